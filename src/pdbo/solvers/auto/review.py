"""The review: now and then, a better minimiser for y, the incumbent, and fresh starts for slots
that are duplicates or idle (idea 5 of `AutoPDBO`)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ... import _trees as trees
from ..._problem import Problem
from .oracles import by_row, cuts_at, draw, draw_index, finite, first_steps, outer
from .state import DONE, SEARCH, SLOTS, AutoState, Incumbent, no_value

REVIEW = 6  # iterations between two reviews
SETTLED = 1e-6  # ranges of g: an inner decrease, or a difference between slots, that counts as none
STUCK = 20  # infeasible iterations after which y is set to a slot
JUMPS = 3  # returns to the incumbent allowed per run
JUMP_MARGIN = 0.03  # of the range of f met: how much lower the incumbent must be for a return
JUMP_SLACK = 0.01  # ranges of g: the least slack after a return
DUPLICATE = 1e-6  # squared units per entry: slots at most this far apart are the same


def review(problem: Problem, state: AutoState) -> AutoState:
    """Move y or the whole point if there is a better one, and start some slots again."""
    _, to_y = ravel_pytree(state.y)
    f_slots = jax.vmap(lambda v: problem.outer(state.x, to_y(v)))(state.slots)
    f_slots = jnp.where(jnp.isfinite(f_slots), f_slots, jnp.inf)
    incumbent = _incumbent(state, f_slots)
    to = _destination(state, incumbent, f_slots)
    x, y, jump, moved = to.x, to.y, to.jump, to.moved
    chosen, fresh = _fresh(problem, state, y, jump)
    found = cuts_at(problem, x, y, jnp.where(chosen[:, None], fresh, state.slots))
    good = finite(found)
    chosen = chosen & good[1:]
    # a slot that cannot be evaluated is not taken; if nothing moved, the other rows stay
    cuts = jax.tree.map(
        lambda old, new: jnp.where(
            by_row(good & (moved | jnp.append(False, chosen)), new), new, old
        ),
        state.cuts,
        found,
    )
    f, grad_f = lax.cond(
        moved, lambda z: outer(problem, *z), lambda _: (state.f, state.grad_f), (x, y)
    )
    s, scales = state.search, state.scales
    search = dataclasses.replace(
        s,
        inner_step=jnp.where(chosen, first_steps(found.y[1:], scales.unit[1]), s.inner_step),
        mix=jnp.where(chosen, 0, s.mix),
        slack=jnp.where(jump, jnp.maximum(s.slack, JUMP_SLACK * scales.range_g), s.slack),
        stuck=jnp.where(moved, 0, s.stuck),
        at_rest=jnp.where(moved, 0, s.at_rest),
        since_shrink=jnp.where(moved, 0, s.since_shrink),
        pause=jnp.where(moved, 0, s.pause),
        jumps=s.jumps + jnp.where(jump, 1, 0),
    )
    return dataclasses.replace(
        state,
        phase=jnp.where(moved & (state.phase == DONE), SEARCH, state.phase),
        x=x,
        y=y,
        f=f,
        grad_f=grad_f,
        slots=jnp.where(chosen[:, None], fresh, state.slots),
        cuts=cuts,
        incumbent=incumbent._replace(f=jnp.where(jump, no_value(f.dtype), incumbent.f)),
        search=search,
        f_calls=state.f_calls + jnp.where(moved, 1, 0),
        g_calls=state.g_calls + SLOTS + 1,
    )


def _incumbent(state: AutoState, f_slots: Float[Array, " slots"]) -> Incumbent:
    """The old one, or x with its best inner solution if f is lower there."""
    value, settled = state.cuts.value[1:], SETTLED * state.scales.range_g
    tight = (value <= jnp.min(value) + settled) & (state.search.inner_drop <= settled)
    tight = jnp.where(tight, f_slots, jnp.inf)
    i = jnp.argmin(tight)
    _, to_y = ravel_pytree(state.y)
    found = Incumbent(state.x, to_y(state.slots[i]), tight[i])
    return trees.where(found.f < state.incumbent.f, found, state.incumbent)


class _Destination(NamedTuple):
    """Where the run goes on from."""

    x: PyTree
    y: PyTree
    jump: Bool[Array, ""]  # whether that is the incumbent
    moved: Bool[Array, ""]  # whether that is another point than before


def _destination(
    state: AutoState, incumbent: Incumbent, f_slots: Float[Array, " slots"]
) -> _Destination:
    """The incumbent if it is much lower in f; y at a slot if that is as good for g and lower in
    f, or if y has been infeasible for long; else the current point."""
    value, search = state.cuts.value[1:], state.search
    bias = state.multiplier * search.slack
    rounding = 8 * float(jnp.finfo(f_slots.dtype).eps) * jnp.abs(state.f)
    within = jnp.where(value <= jnp.min(value) + search.slack, f_slots, jnp.inf)
    j = jnp.argmin(within)
    active = (state.multiplier > 0) & (search.stuck == 0)
    margin = bias + JUMP_MARGIN * (state.scales.high_f - state.scales.low_f)
    jump = active & (state.f > incumbent.f + margin) & (search.jumps < JUMPS)
    swap = ((within[j] < state.f - bias - rounding) | (search.stuck >= STUCK)) & ~jump
    swap = swap & jnp.isfinite(within[j])
    _, to_y = ravel_pytree(state.y)
    y = trees.where(swap, to_y(state.slots[j]), state.y)
    x, y = trees.where(jump, (incumbent.x, incumbent.y), (state.x, y))
    return _Destination(x, y, jump, jump | swap)


def _fresh(
    problem: Problem, state: AutoState, y: PyTree, jump: Bool[Array, ""]
) -> tuple[Bool[Array, " slots"], Float[Array, "slots y"]]:
    """Which slots start again, and where: duplicates and the worst idle one, anywhere in Y, and
    every other time one of them at y."""
    flat_y, unit = ravel_pytree(y)[0], state.scales.unit[1]
    value, index = state.cuts.value[1:], jnp.arange(SLOTS)
    apart = jax.vmap(lambda v: jnp.sum((state.slots - v) ** 2, 1))(state.slots)
    close = apart <= DUPLICATE * flat_y.size * unit**2
    # of two that agree the lower one stays, of two that tie the first
    ahead = (value[None] < value[:, None]) | (
        (value[None] == value[:, None]) & (index[None] < index[:, None])
    )
    duplicate = jnp.any(close & ahead, axis=1)
    idle = ~duplicate & (state.search.mix == 0)
    worst = idle & (index == jnp.argmax(jnp.where(idle, value, -jnp.inf)))
    chosen = (duplicate | worst) & (index != jnp.argmin(value))
    from_y = (jump | (state.t // REVIEW % 2 == 1)) & chosen & (jnp.cumsum(chosen) == 1)
    fresh = draw(problem, state.y, unit, draw_index(state), SLOTS)
    return chosen, jnp.where(from_y[:, None], flat_y, fresh)
