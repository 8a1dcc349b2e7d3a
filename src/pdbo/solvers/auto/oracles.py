"""Values and gradients of f and g, random points of Y, and numbers kept finite."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from ..._problem import Problem
from .state import SLOTS, AutoState, Cuts

SPREAD = 3.0  # units around y within which slots are drawn if Y is unbounded
FIRST_MOVE = 0.1  # units per entry: how far the first inner step of a slot goes


def outer(problem: Problem, x: PyTree, y: PyTree) -> tuple[Float[Array, ""], Float[Array, " z"]]:
    """f and its gradient, ravelled."""
    value, gradient = jax.value_and_grad(problem.outer, (0, 1))(x, y)
    return value, ravel_pytree(gradient)[0]


def inner(problem: Problem, x: PyTree, y: PyTree, rows: Float[Array, "rows y"]) -> Cuts:
    """g and its gradients at (x, row) for every row, shaped like y when unravelled."""
    _, unravel = ravel_pytree(y)

    def one(row: Float[Array, " y"]) -> Cuts:
        value, (in_x, in_y) = jax.value_and_grad(problem.inner, (0, 1))(x, unravel(row))
        return Cuts(value, ravel_pytree(in_x)[0], ravel_pytree(in_y)[0])

    return jax.vmap(one)(rows)


def cuts_at(problem: Problem, x: PyTree, y: PyTree, slots: Float[Array, "slots y"]) -> Cuts:
    """g and its gradients at (x, y) and at (x, slot) for every slot."""
    return inner(problem, x, y, jnp.concatenate([ravel_pytree(y)[0][None], slots]))


def finite(cuts: Cuts) -> Bool[Array, " rows"]:
    """Whether g and its gradients are finite, row by row."""
    in_x, in_y = (jnp.all(jnp.isfinite(part), axis=1) for part in (cuts.x, cuts.y))
    return jnp.isfinite(cuts.value) & in_x & in_y


def by_row(chosen: Bool[Array, " rows"], like: Array) -> Bool[Array, "rows ..."]:
    """One flag per row, shaped to broadcast with the rows."""
    return chosen.reshape((-1,) + (1,) * (like.ndim - 1))


def first_steps(slope: Float[Array, "slots y"], unit: Float[Array, ""]) -> Float[Array, " slots"]:
    """Inner step sizes that move each slot by a tenth of a unit per entry."""
    length = jnp.linalg.norm(slope, axis=1)
    return FIRST_MOVE * unit * slope.shape[1] ** 0.5 / jnp.where(length > 0, length, 1)


def draw_index(state: AutoState) -> UInt32[Array, ""]:
    """Where this iteration's random draws begin; different for every key."""
    return state.seed + np.uint32(SLOTS) * state.t.astype(jnp.uint32)


def draw(
    problem: Problem, y: PyTree, unit: Float[Array, ""], index: UInt32[Array, ""], count: int
) -> Float[Array, "count y"]:
    """Points spread over Y, ravelled; within a few units of y if Y is unbounded."""
    indices = index + jnp.arange(count, dtype=jnp.uint32)
    return jax.vmap(lambda i: ravel_pytree(problem.y_set.hashed_point(i, y, SPREAD * unit))[0])(
        indices
    )


def sane(new: Array, old: Array) -> Array:
    """The new numbers; the old ones in place of any that are near overflow or not a number."""
    return jnp.where(jnp.abs(new) < float(jnp.finfo(new.dtype).max) ** 0.5, new, old)
