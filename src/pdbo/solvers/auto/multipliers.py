"""The multipliers of the cuts, from quadratic models (idea 2 of `AutoPDBO`)."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from ... import _trees as trees
from .state import SLOTS

LOG_MAX_MIX = 18.0  # logarithm of the largest mix: there f no longer counts, only feasibility
SWEEPS = 2  # passes over the slots per iteration
BISECTIONS = 24  # halvings of the interval for the logarithm of one mix


class Model(NamedTuple):
    """Quadratic models of the cuts, as functions of the mix l. Gradients are in units."""

    h: Float[Array, " slots"]  # the cuts: g(x, y) - g(x, slot)
    slack: Float[Array, ""]
    grad_f: Float[Array, " z"]
    grad_h: Float[Array, "slots z"]
    L_f: Float[Array, ""]  # curvature of f
    L_h: Float[Array, ""]  # curvature of the cuts
    step_for: Callable[[Float[Array, " slots"]], Float[Array, " z"]]  # the step d(l), projected
    free: bool  # whether the projection does nothing

    @property
    def excess(self) -> Float[Array, " slots"]:
        """How far each cut exceeds the slack."""
        return self.h - self.slack

    def direct(self, mix: Float[Array, " slots"]) -> Float[Array, " slots"]:
        """The models, less the slack, after the step of this mix."""
        d = self.step_for(mix)
        return self.excess + trees.matmul(self.grad_h, d) + 0.5 * self.L_h * trees.dot(d, d)

    def gram(self) -> Callable[[Float[Array, " slots"]], Float[Array, " slots"]]:
        """`direct` if nothing is projected, from inner products computed once."""
        rows = jnp.concatenate([self.grad_f[None] / self.L_f, self.grad_h / self.L_h])
        products = trees.matmul(rows, rows.T)

        def model(mix: Float[Array, " slots"]) -> Float[Array, " slots"]:
            weights = jnp.concatenate([jnp.ones(1, mix.dtype), mix]) / (1 + jnp.sum(mix))
            along = trees.matmul(products, weights)
            return self.excess + self.L_h * (0.5 * trees.dot(weights, along) - along[1:])

        return model


def complementary(model: Model, mix: Float[Array, " slots"]) -> Float[Array, " slots"]:
    """The mix l >= 0 complementary to the models <= 0, by sweeps of bisection in log l."""
    excess = model.gram() if model.free else model.direct
    top = jnp.full((), LOG_MAX_MIX, mix.dtype)

    def solve(k: Int[Array, ""], mix: Float[Array, " slots"]) -> Float[Array, " slots"]:
        def bisect(_: Int[Array, ""], ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            violated = excess(mix.at[k].set(jnp.exp(middle)))[k] > 0
            return jnp.where(violated, middle, low), jnp.where(violated, high, middle)

        def active(_: None) -> Float[Array, ""]:
            return jnp.exp(lax.fori_loop(0, BISECTIONS, bisect, (-top, top))[1])

        inactive = excess(mix.at[k].set(0))[k] <= 0
        return mix.at[k].set(lax.cond(inactive, lambda _: 0 * top, active, None))

    return lax.fori_loop(0, SWEEPS * SLOTS, lambda i, mix: solve(i % SLOTS, mix), mix)
