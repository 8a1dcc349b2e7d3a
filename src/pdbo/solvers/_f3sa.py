"""F3SA: F2SA in a single loop, with recursive momentum."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from .._solver import Calls, Point
from ._descent import GradientSolver, begin, in_units_of_g, move, recursive


class Triple(NamedTuple):
    """x and the two inner sequences."""

    x: PyTree
    y: PyTree
    z: PyTree


class Gradients(NamedTuple):
    """Those of f at (x, y), of g at (x, y) and of g at (x, z), each in both variables."""

    f: tuple[PyTree, PyTree]
    g: tuple[PyTree, PyTree]
    g_z: tuple[PyTree, PyTree]


class F3SAState(eqx.Module):
    """This and the last point, the estimates, the multiplier, states of the transformations."""

    t: Int[Array, ""]
    at: Triple
    last: Triple
    estimates: Gradients
    multiplier: Float[Array, ""]
    rules: tuple[PyTree, PyTree, PyTree]


class F3SA(GradientSolver):
    r"""Faster Fully First-order Stochastic Approximation: F²SA with momentum, one loop.

    Every gradient G of a batch, of f at (x, y) and of g at (x, y) and (x, z), is replaced by

    $$h_k = G(p_k) + (1 - \eta)(h_{k-1} - G(p_{k-1})),\qquad p = (x, y, z),$$

    G on the same batch at this and at the last point. Then, with $\alpha_k = \gamma/(2\lambda_k)$,

    $$z_{k+1} = \Pi_Y(z_k - \gamma h^{g}_z),\qquad
      y_{k+1} = \Pi_Y\bigl(y_k - \alpha_k(h^f_y + \lambda_k h^g_y)\bigr),$$
    $$x_{k+1} = \Pi_X\bigl(x_k - \xi\alpha_k(h^f_x + \lambda_k(h^g_x - h^{g}_{xz}))\bigr),\qquad
      \lambda_{k+1} = \lambda_k + \delta.$$

    Each step makes two gradients of f and four of g.

    Arguments:
        inner_step: $\gamma$.
        outer_ratio: $\xi$, the step of x over that of y.
        momentum: $\eta$, at most 1, which is plain gradients.
        multiplier0: $\lambda_0$.
        increment: $\delta$.
        outer: an Optax transformation for the steps in x.
        inner: one for the steps in z and in y, there of their direction over $\max(1, \lambda_k)$.

    Constraints: x and y are projected onto their sets, which the theory does not cover.

    Reference: Kwon, Kwon, Wright & Nowak, A Fully First-Order Method for Stochastic Bilevel
    Optimization (2023), the momentum-assisted method F³SA.

    Differs from the paper in: the projections; x moves along gradients at $y_k$ and $z_k$, not at
    the next ones, so that one evaluation serves both; $\eta$ and $\delta$ are constant.
    """

    label = "F3SA"
    family = "first-order"
    citation = (
        "Kwon, Kwon, Wright & Nowak, A Fully First-Order Method for Stochastic Bilevel "
        "Optimization, 2023"
    )

    inner_step: Array = eqx.field(converter=number, default=0.5)
    outer_ratio: Array = eqx.field(converter=number, default=1.0)
    momentum: Array = eqx.field(converter=number, default=0.2)
    multiplier0: Array = eqx.field(converter=number, default=1.0)
    increment: Array = eqx.field(converter=number, default=0.01)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> F3SAState:
        """The state before the first step."""
        at, inner = Triple(x, y, y), begin(self.inner, y, "inner")
        none = trees.zeros_like(Gradients((x, y), (x, y), (x, y)))
        multiplier = jnp.asarray(self.multiplier0, trees.dtype(x))
        rules = (begin(self.outer, x, "outer"), inner, inner)
        return F3SAState(jnp.zeros((), jnp.int32), at, at, none, multiplier, rules)

    def step(self, problem: Problem, state: F3SAState) -> F3SAState:
        """One iteration."""
        at, multiplier, dtype = state.at, state.multiplier, state.multiplier.dtype
        gamma, xi, eta, delta = trees.astype(
            (self.inner_step, self.outer_ratio, self.momentum, self.increment), dtype
        )
        alpha = gamma / (2 * multiplier)
        rate = jnp.where(state.t == 0, 1, eta)
        now, before = _gradients(problem, at), _gradients(problem, state.last)
        h = recursive(now, before, state.estimates, rate)

        outer, at_y, at_z = state.rules
        d_x = trees.axpy(multiplier, trees.sub(h.g[0], h.g_z[0]), h.f[0])
        d_y = in_units_of_g(self.inner, multiplier, trees.axpy(multiplier, h.g[1], h.f[1]))
        x, outer = move(self.outer, outer, d_x, at.x, xi * alpha, problem.x_set)
        y, at_y = move(self.inner, at_y, d_y, at.y, alpha, problem.y_set)
        z, at_z = move(self.inner, at_z, h.g_z[1], at.z, gamma, problem.y_set)
        rules = (outer, at_y, at_z)
        return F3SAState(state.t + 1, Triple(x, y, z), at, h, multiplier + delta, rules)

    def output(self, state: F3SAState) -> Point:
        r"""x and the minimiser y of the penalised function, with $\lambda$ as its multiplier."""
        return Point(state.at.x, state.at.y, state.multiplier)

    def calls(self, state: F3SAState) -> Calls:
        """Two gradients of f and four of g per iteration."""
        return Calls(2 * state.t, 4 * state.t, 0 * state.t)


def _gradients(problem: Problem, at: Triple) -> Gradients:
    f, g = jax.grad(problem.outer, (0, 1)), jax.grad(problem.inner, (0, 1))
    return Gradients(f(at.x, at.y), g(at.x, at.y), g(at.x, at.z))
