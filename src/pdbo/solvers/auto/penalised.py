r"""The penalty function $\phi(x) = \min_y f + \lambda (g - g^*)$ at one x."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..._minimize import search
from ..._problem import Problem
from ...sets import Free
from .oracles import finite, inner, outer
from .slack import LAST_SLACK_ABSOLUTE
from .state import APPROACH, RESIDUAL, SLOTS, AutoState

POLISHABLE = 0.1  # a relative residual above which no single slot explains the first point
MAX_GAP = 7.0  # last slacks: the inner gap that y may have; in double less than a certificate
# allows
FOLLOW = 1000  # gradient steps of y, and of the slot, per step of x at most
FOLLOWED = (
    0.05  # of the residual sought: the gradients of y and of the slot may leave this in doubt
)
MISSED = 4.0  # accuracies sought: a gradient above this after FOLLOW steps counts as unfinished


class Penalised(NamedTuple):
    """What polishing has to know of the penalty function at a point x."""

    y: PyTree  # the minimiser
    slot: Float[Array, " y"]  # a minimiser of g(x, .), ravelled
    f: Float[Array, ""]
    slope: Float[Array, " x"]  # the gradient in x
    residual_y: Float[Array, ""]  # of y alone, relative to the largest gradient of f
    residual: Float[Array, ""]  # of x and y
    excess: Float[Array, ""]  # the inner gap of y, as a multiple of what is allowed
    lower_slot: Bool[Array, ""]  # whether another slot has a lower g
    unfinished: Bool[Array, ""]  # whether y or the slot has not reached its minimum
    steps: Float[Array, "2"]  # the next step sizes of y and of the slot
    f_calls: Int[Array, ""]
    g_calls: Int[Array, ""]


def penalised(
    problem: Problem,
    state: AutoState,
    x: PyTree,
    k: Int[Array, ""],
    weight: Float[Array, ""],
    steps: Float[Array, "2"],
) -> Penalised:
    """The penalty function at x with multiplier `weight`, from y and the k-th slot."""
    flat_y, to_y = ravel_pytree(state.y)
    unit, steepest = state.scales.unit, state.scales.steepest
    first = state.phase == APPROACH
    begins = first & (state.polish.turns == 0)
    sought = jnp.where(first, POLISHABLE, jnp.maximum(state.polish.residual, RESIDUAL)) * steepest
    tol = FOLLOWED * sought / (weight * unit[1])
    # At first the slot starts from y: what neither has reached yet is then the same in both, and
    # cancels in their difference. One after the other in a loop, so that it is compiled once.
    (y, slot), steps, taken, missed = lax.map(
        lambda row: _follow(problem, x, to_y, tol, *row),
        (
            jnp.stack([flat_y, jnp.where(begins, flat_y, state.slots[k])]),
            steps,
            jnp.stack([1 / weight, jnp.zeros_like(weight)]),
        ),
    )
    # On the other side of the slot the terms that are of second order in y - slot are the same:
    # without them, weakening g is no way to let y leave the inner solution.
    points = [y, slot, 2 * slot - y] if isinstance(problem.y_set, Free) else [y, slot]
    rows = inner(problem, x, state.y, jnp.stack(points))
    across = (rows.x[0] - rows.x[-1]) / (len(points) - 1)
    across = jnp.where(finite(rows)[-1], across, rows.x[0] - rows.x[1])
    f, grad_f = outer(problem, x, to_y(y))
    size = grad_f.size - y.size
    in_x = grad_f[:size] + weight * across
    in_y = grad_f[size:] + weight * rows.y[0]
    scale = jnp.where(steepest > 0, steepest, 1)
    residual_x = unit[0] * problem.x_set.residual(x, ravel_pytree(x)[1](in_x)) / scale
    residual_y = unit[1] * problem.y_set.residual(to_y(y), to_y(in_y)) / scale
    allowed = _allowed_gap(state)
    # polishing assumes one active slot: it gives up if another has a lower g
    others = jax.vmap(lambda v: problem.inner(x, to_y(v)))(state.slots)
    others = jnp.where(jnp.isfinite(others), others, jnp.inf)
    return Penalised(
        y=to_y(y),
        slot=slot,
        f=f,
        slope=in_x,
        residual_y=residual_y,
        residual=jnp.hypot(residual_x, residual_y),
        excess=(rows.value[0] - rows.value[1]) / allowed,
        lower_slot=jnp.min(others) < rows.value[1] - allowed,
        unfinished=jnp.any(missed),
        steps=steps,
        f_calls=taken[0] + 1,
        g_calls=taken[0] + taken[1] + len(points) + SLOTS,
    )


def _allowed_gap(state: AutoState) -> Float[Array, ""]:
    """The inner gap that polishing may leave."""
    granted = LAST_SLACK_ABSOLUTE * jnp.minimum(state.scales.range_g, 1)
    return MAX_GAP * jnp.maximum(state.floor, granted)


def _follow(
    problem: Problem,
    x: PyTree,
    to_y: Callable[[Array], PyTree],
    tol: Float[Array, ""],
    y: Float[Array, " y"],
    step: Float[Array, ""],
    share: Float[Array, ""],
) -> tuple[Array, Array, Array, Array]:
    """A minimum of share * f(x, .) + g(x, .) from y, the next step, how many were taken, and
    whether they were too few."""

    def value(y: PyTree) -> Array:
        f = lax.cond(share > 0, lambda y: problem.outer(x, y), lambda y: 0 * share, y)
        return problem.inner(x, y) + share * f

    end = search(value, problem.y_set, to_y(y), FOLLOW, tol, step)
    missed = (end.taken >= FOLLOW) & (end.best.residual > MISSED * tol)
    return ravel_pytree(end.best.point)[0], end.step, end.taken + 1, missed
