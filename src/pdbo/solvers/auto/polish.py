"""Polishing: steps of x that y and a slot follow (idea 7 of `AutoPDBO`)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ... import _trees as trees
from ..._problem import Problem
from ...sets import Free
from .handover import last_multiplier, slots_agree
from .oracles import cuts_at, outer, sane
from .penalised import POLISHABLE, Penalised, penalised
from .slack import SLOW
from .state import (
    APPROACH,
    DONE,
    POLISH,
    RESIDUAL,
    SEARCH,
    AutoState,
    Incumbent,
    PolishState,
    no_value,
)
from .units import RADIUS

TURNS = 20  # iterations of APPROACH at most, while y or the slot is still on its way
PROGRESS = 1e-4  # of the range of f met: a fall of f that counts
BETTER = 0.99  # a residual below this part of the lowest counts as progress
STALLED = 40  # polishing steps without progress in f or in the residual after which it ends
PAUSE = 2 * SLOW  # iterations after a failure before slowness counts again


def polish(problem: Problem, state: AutoState) -> AutoState:
    r"""One spectral gradient step in x on $\phi(x) = \min_y f + \lambda (g - g^*)$.

    The multiplier makes the joint problem stiff, but not this one: y and the slot follow x. A step
    is kept if f is not above the highest of the last ones, as in Raydan (1997), or if the residual
    is the lowest so far. It ends if the residual is met, or, if neither falls for long, at the
    point of the lowest f met, among equal ones that of the lowest residual. APPROACH does the same
    with x fixed, until y and the slot have reached their minima; what is left must be small.
    """
    k = jnp.argmax(state.search.mix)
    weight, steps = _setting(problem, state)
    x, step_x = _trial_x(problem, state, steps[0])
    at = penalised(problem, state, x, k, weight, steps[1:])
    verdict = _judge(problem, state, at, k)
    step_x = _next_step(state, at, verdict, x, step_x, steps[0])
    incumbent = trees.where(verdict.leads, Incumbent(x, at.y, at.f), state.incumbent)
    x, y, f, slot, slope = trees.where(
        verdict.keep | verdict.nearing,
        (x, at.y, at.f, at.slot, at.slope),
        (state.x, state.y, state.f, state.slots[k], state.polish.slope),
    )
    first, failed = state.phase == APPROACH, verdict.failed
    back = verdict.over | (failed & ~first)
    x, y = trees.where(back, (incumbent.x, incumbent.y), (x, y))
    slots = sane(state.slots.at[k].set(slot), state.slots)
    cuts, f, grad_f = lax.cond(
        failed & ~_begins(state),  # back to the search, from another point
        lambda _: (cuts_at(problem, x, y, slots), *outer(problem, x, y)),
        lambda _: (state.cuts, f, state.grad_f),
        None,
    )
    most = no_value(f.dtype)
    search = dataclasses.replace(
        state.search,
        since_shrink=jnp.where(failed, 0, state.search.since_shrink),
        pause=jnp.where(failed, PAUSE, state.search.pause),
    )
    return dataclasses.replace(
        state,
        phase=verdict.phase,
        x=x,
        y=y,
        f=f,
        grad_f=grad_f,
        slots=slots,
        cuts=cuts,
        multiplier=jnp.where(failed, state.multiplier, verdict.raise_by * weight),
        incumbent=incumbent._replace(f=jnp.where(verdict.wide & ~first, most, incumbent.f)),
        search=search,
        polish=_remember(state.polish, at, verdict, slope, jnp.append(step_x, at.steps)),
        f_calls=state.f_calls + at.f_calls,
        g_calls=state.g_calls + at.g_calls,
    )


def _begins(state: AutoState) -> Bool[Array, ""]:
    """Whether this is the first iteration after the search."""
    return (state.phase == APPROACH) & (state.polish.turns == 0)


def _setting(problem: Problem, state: AutoState) -> tuple[Float[Array, ""], Float[Array, "3"]]:
    """The multiplier, and the step sizes of x, y and the slot."""
    begins, unit = _begins(state), state.scales.unit
    size_x = ravel_pytree(state.x)[0].size
    weight = jnp.where(begins, last_multiplier(problem, state, size_x), state.multiplier)
    L_f, L_h = state.search.curvature_f, state.search.curvature_h
    stiff = jnp.stack([L_f, L_f / weight + L_h, L_h])
    lengths = jnp.stack([unit[0], unit[1], unit[1]]) ** 2
    return weight, jnp.where(begins, lengths / jnp.where(stiff > 0, stiff, 1), state.polish.steps)


def _trial_x(
    problem: Problem, state: AutoState, step: Float[Array, ""]
) -> tuple[PyTree, Float[Array, ""]]:
    """The next x, the same in APPROACH, and the step size, bounded by the radius."""
    flat_x, to_x = ravel_pytree(state.x)
    slope, unit = state.polish.slope, state.scales.unit[0]
    length = jnp.linalg.norm(slope)
    longest = RADIUS * flat_x.size**0.5 * unit / jnp.where(length > 0, length, 1)
    step = jnp.minimum(step, longest)
    moved = problem.x_set.project(to_x(flat_x - step * slope))
    return trees.where(state.phase == APPROACH, state.x, moved), step


class _Verdict(NamedTuple):
    """What becomes of a trial."""

    keep: Bool[Array, ""]  # whether the step is taken
    better: Bool[Array, ""]  # whether its residual is the lowest, by enough
    leads: Bool[Array, ""]  # whether it is the new incumbent
    wide: Bool[Array, ""]  # whether y left the inner solution by too much
    raise_by: Float[Array, ""]  # the factor by which the multiplier rises for that
    nearing: Bool[Array, ""]  # whether APPROACH goes on
    failed: Bool[Array, ""]  # whether the search has to go on
    over: Bool[Array, ""]  # whether the run is done
    stalled: Int[Array, ""]  # steps without progress
    recent: Float[Array, " recent"]  # f at the last kept steps
    phase: Int[Array, ""]  # the next


def _judge(problem: Problem, state: AutoState, at: Penalised, k: Int[Array, ""]) -> _Verdict:
    past, scales, first = state.polish, state.scales, state.phase == APPROACH
    free = isinstance(problem.y_set, Free)
    # if one slot speaks for all, x may be far, unless Y is bounded: there may be no multiplier
    unexplained = at.residual
    if free:
        unexplained = jnp.where(slots_agree(state, k), at.residual_y, at.residual)
    recent = jnp.where(first | (past.recent[0] >= no_value(at.f.dtype)), at.f, past.recent)
    rounding = 8 * float(jnp.finfo(at.f.dtype).eps) * jnp.abs(at.f)
    low = (at.f <= jnp.max(recent) + rounding) | (at.residual < past.residual)
    keep = jnp.where(first, unexplained < POLISHABLE, low & ~at.unfinished) & ~at.lower_slot
    finite = jnp.isfinite(at.f) & jnp.isfinite(at.residual)
    keep = keep & finite & (at.excess <= 1)
    better = keep & (first | (at.residual < BETTER * past.residual))
    worth = PROGRESS * (scales.high_f - scales.low_f)
    falls = keep & (at.f < jnp.min(recent) - worth)
    met = keep & (at.residual <= RESIDUAL)
    lowest = jnp.where(first, at.f, state.incumbent.f)
    leads = met | (better & (at.f <= lowest + worth)) | (keep & (at.f < lowest - worth))
    # if y left the inner solution by too much the multiplier has to rise: the gap falls with its
    # square. f then rises too, and is no longer compared with what it was
    wide = finite & ~at.lower_slot & ~at.unfinished & (at.excess > 1) & free
    wide = wide & (at.residual_y <= POLISHABLE)  # else it is only rounding
    raise_by = jnp.where(wide, jnp.clip(1.2 * jnp.sqrt(at.excess), 1, 4), 1)
    # y and a slot that have not reached their minima yet continue from their present points
    nearing = first & ~keep & finite & ~at.lower_slot & (at.unfinished | wide)
    nearing = nearing & (past.turns < TURNS)
    failed = (at.lower_slot & ~at.unfinished) | (first & ~keep & ~nearing)
    stalled = jnp.where(better | falls, 0, past.stalled + 1)
    over = met | (~first & ~failed & (stalled >= STALLED))
    phase = jnp.where(nearing, APPROACH, jnp.full_like(state.phase, POLISH))
    phase = jnp.where(failed, SEARCH, phase)
    phase = jnp.where(over | (failed & state.search.confirmed), DONE, phase)
    recent = jnp.where(keep, jnp.roll(recent, 1).at[0].set(at.f), past.recent)
    return _Verdict(
        keep, better, leads, wide, raise_by, nearing, failed, over, stalled, recent, phase
    )


def _next_step(
    state: AutoState,
    at: Penalised,
    verdict: _Verdict,
    x: PyTree,
    step: Float[Array, ""],
    first_step: Float[Array, ""],
) -> Float[Array, ""]:
    """The step size of x: the secant's after a step that was kept, else shorter."""
    move = ravel_pytree(x)[0] - ravel_pytree(state.x)[0]
    ss, sy = trees.dot(move, move), trees.dot(move, at.slope - state.polish.slope)
    secant = jnp.where(sy > 0, ss / jnp.where(sy > 0, sy, 1), 4 * step)
    step = jnp.where(verdict.keep, secant, jnp.where(verdict.wide, step, step / 4))
    return jnp.where(state.phase == APPROACH, first_step, step)


def _remember(
    past: PolishState,
    at: Penalised,
    verdict: _Verdict,
    slope: Float[Array, " x"],
    steps: Float[Array, "3"],
) -> PolishState:
    """The sub-state after the trial."""
    return PolishState(
        turns=jnp.where(verdict.nearing, past.turns + 1, 0),
        stalled=verdict.stalled,
        residual=jnp.where(verdict.better, at.residual, past.residual),
        recent=jnp.where(verdict.wide, no_value(at.f.dtype), verdict.recent),
        slope=slope,
        steps=sane(steps, past.steps),
    )
