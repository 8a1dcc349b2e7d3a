"""F2SA, F2SA-2 and F3SA, the fully first-order methods on two inner sequences."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._problem import Problem
from .._solver import Calls, Point
from ._descent import (
    GradientSolver,
    begin,
    descend,
    in_units_of_g,
    inner_slope,
    move,
    recursive,
)


class F2SAState(eqx.Module):
    """x, the two inner sequences, the next multiplier, states of the three transformations."""

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    z: PyTree
    multiplier: Float[Array, ""]
    rules: tuple[PyTree, PyTree, PyTree] = (None, None, None)


class F2SA(GradientSolver):
    r"""Fully First-order (Stochastic) Approximation: the hypergradient from two inner sequences.

    Iteration k takes T projected gradient steps on each of

    $$z \approx \arg\min g(x_k, \cdot) \text{ with step } \gamma, \qquad
      y \approx \arg\min f(x_k, \cdot) + \lambda_k g(x_k, \cdot) \text{ with step }
      \alpha_k = \frac{\gamma}{2\lambda_k},$$

    both from their last points, then

    $$x_{k+1} = \Pi_X\bigl(x_k - \xi\alpha_k(\nabla_x f(x_k, y) + \lambda_k(\nabla_x g(x_k, y)
        - \nabla_x g(x_k, z)))\bigr), \qquad \lambda_{k+1} = \lambda_k + \delta.$$

    The distance to a solution is of order $1/\lambda_k$.

    Arguments:
        inner_step: $\gamma$.
        inner_steps: T.
        outer_ratio: $\xi$, the step of x over that of y.
        multiplier0: $\lambda_0$; the theory asks for at least twice the Lipschitz constant of
            $\nabla f$ over the strong convexity of g.
        increment: $\delta$; steps of x fall like $\xi\gamma/(2\delta k)$, so a larger one needs a
            larger `outer_ratio`.
        outer: an Optax transformation of the hypergradient, in place of $\xi\alpha_k$.
        inner: one for the steps in z and in y, there of their direction over $\max(1, \lambda_k)$.

    Constraints: x and y are projected onto their sets, which the theory does not cover.

    Reference: Kwon, Kwon, Wright & Nowak, A Fully First-Order Method for Stochastic Bilevel
    Optimization (2023), Algorithm 1; T, $\lambda_0$ and $\delta$ are those of the bilevel benchmark
    of benchopt.

    Differs from the paper in: the projections; gradients are exact, not sampled; $\delta$ is
    constant, while the theory's falls, so that $\lambda$ grows like k and not like $k^{1/3}$.
    """

    label = "F2SA"
    family = "first-order"
    citation = (
        "Kwon, Kwon, Wright & Nowak, A Fully First-Order Method for Stochastic Bilevel "
        "Optimization, 2023"
    )

    inner_step: Array = eqx.field(converter=number, default=0.5)
    inner_steps: int = eqx.field(static=True, default=10)
    outer_ratio: Array = eqx.field(converter=number, default=1.0)
    multiplier0: Array = eqx.field(converter=number, default=1.0)
    increment: Array = eqx.field(converter=number, default=0.1)

    def __check_init__(self):
        whole_number("inner_steps", self.inner_steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> F2SAState:
        """The state before the first step."""
        multiplier = jnp.asarray(self.multiplier0, trees.dtype(x))
        inner = begin(self.inner, y, "inner")
        rules = (begin(self.outer, x, "outer"), inner, inner)
        return F2SAState(jnp.zeros((), jnp.int32), x, y, y, multiplier, rules)

    def step(self, problem: Problem, state: F2SAState) -> F2SAState:
        """One iteration."""
        x, multiplier = state.x, state.multiplier
        gamma, xi, delta = trees.astype(
            (self.inner_step, self.outer_ratio, self.increment), trees.dtype(x)
        )
        alpha = gamma / (2 * multiplier)

        slope = inner_slope(problem, x)

        def penalised(v: PyTree) -> PyTree:
            both = trees.axpy(multiplier, slope(v), jax.grad(problem.outer, 1)(x, v))
            return in_units_of_g(self.inner, multiplier, both)

        outer, at_y, at_z = state.rules
        T, y_set = self.inner_steps, problem.y_set
        z, at_z = descend(slope, y_set, state.z, gamma, T, self.inner, at_z)
        y, at_y = descend(penalised, y_set, state.y, alpha, T, self.inner, at_y)
        f_x = jax.grad(problem.outer, 0)(x, y)
        g_xy, g_xz = jax.grad(problem.inner, 0)(x, y), jax.grad(problem.inner, 0)(x, z)
        hypergradient = trees.axpy(multiplier, trees.sub(g_xy, g_xz), f_x)
        x, outer = move(self.outer, outer, hypergradient, x, xi * alpha, problem.x_set)
        return F2SAState(state.t + 1, x, y, z, multiplier + delta, (outer, at_y, at_z))

    def output(self, state: F2SAState) -> Point:
        r"""x and the minimiser y of the penalised function, with $\lambda$ as its multiplier."""
        return Point(state.x, state.y, state.multiplier)

    def calls(self, state: F2SAState) -> Calls:
        """T + 1 gradients of f and 2 T + 2 of g per iteration."""
        once = self.inner_steps + 1
        return Calls(once * state.t, 2 * once * state.t, 0 * state.t)


class F2SA2State(eqx.Module):
    """x, the two inner sequences, and the states of the transformations of the three."""

    t: Int[Array, ""]
    x: PyTree
    up: PyTree
    down: PyTree
    rules: tuple[PyTree, PyTree, PyTree]


class F2SA2(GradientSolver):
    r"""F²SA with a central difference: f is added to g once and subtracted once.

    Iteration k takes T projected gradient steps of size $\gamma$ on each of

    $$y_+ \approx \arg\min g(x_k, \cdot) + \nu f(x_k, \cdot),\qquad
      y_- \approx \arg\min g(x_k, \cdot) - \nu f(x_k, \cdot),$$

    both from their last points, then $x_{k+1} = \Pi_X(x_k - \xi d)$ with

    $$d = \tfrac12\bigl(\nabla_x f(x_k, y_+) + \nabla_x f(x_k, y_-)\bigr)
        + \tfrac{1}{2\nu}\bigl(\nabla_x g(x_k, y_+) - \nabla_x g(x_k, y_-)\bigr).$$

    It is the derivative at zero of $\nu \mapsto \min_y g + \nu f$ by a central difference, so d is
    off by $O(\nu^2)$, where the one-sided difference of F²SA with $\nu = 1/\lambda$ is off by
    $O(\nu)$, for as many inner sequences. The y returned, $\tfrac12(y_+ + y_-)$, is within
    $O(\nu^2)$ of the inner minimum.

    Arguments:
        outer_step: $\xi$.
        inner_step: $\gamma$.
        inner_steps: T.
        offset: $\nu$, above zero; the inner functions stay convex if it is below the convexity of g
            over the curvature of f. Rounding and noise enter d over $2\nu$.
        outer, inner: Optax transformations for the steps in x, of d, and in $y_+$ and $y_-$.

    Constraints: x and y are projected onto their sets, which the theory does not cover.

    Reference: Chen, Li, Chayti & Zhang, Faster Gradient Methods for Highly-Smooth Stochastic
    Bilevel Optimization (2025), with p = 2.

    Differs from the paper in: the projections; the outer step is not divided by the norm of d
    (`outer=optax.chain(optax.normalize_by_update_norm(), optax.sgd(...))` does that).
    """

    label = "F2SA-2"
    family = "first-order"
    citation = (
        "Chen, Li, Chayti & Zhang, Faster Gradient Methods for Highly-Smooth Stochastic Bilevel "
        "Optimization, 2025"
    )

    outer_step: Array = eqx.field(converter=number, default=0.1)
    inner_step: Array = eqx.field(converter=number, default=0.5)
    inner_steps: int = eqx.field(static=True, default=10)
    offset: Array = eqx.field(converter=number, default=0.1)

    def __check_init__(self):
        whole_number("inner_steps", self.inner_steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> F2SA2State:
        """The state before the first step."""
        inner = begin(self.inner, y, "inner")
        rules = (begin(self.outer, x, "outer"), inner, inner)
        return F2SA2State(jnp.zeros((), jnp.int32), x, y, y, rules)

    def step(self, problem: Problem, state: F2SA2State) -> F2SA2State:
        """One iteration."""
        x, (outer, at_up, at_down) = state.x, state.rules
        xi, gamma, nu = trees.astype(
            (self.outer_step, self.inner_step, self.offset), trees.dtype(x)
        )

        def follow(sign: int, y: PyTree, rule: PyTree) -> tuple[PyTree, PyTree]:
            def slope(v: PyTree) -> PyTree:
                f_y, g_y = jax.grad(problem.outer, 1)(x, v), jax.grad(problem.inner, 1)(x, v)
                return trees.axpy(sign * nu, f_y, g_y)

            return descend(slope, problem.y_set, y, gamma, self.inner_steps, self.inner, rule)

        up, at_up = follow(1, state.up, at_up)
        down, at_down = follow(-1, state.down, at_down)
        f_x = trees.add(*(jax.grad(problem.outer, 0)(x, y) for y in (up, down)))
        g_x = trees.sub(*(jax.grad(problem.inner, 0)(x, y) for y in (up, down)))
        d = trees.scale(0.5, trees.axpy(1 / nu, g_x, f_x))
        x, outer = move(self.outer, outer, d, x, xi, problem.x_set)
        return F2SA2State(state.t + 1, x, up, down, (outer, at_up, at_down))

    def output(self, state: F2SA2State) -> Point:
        """x and the middle of the two inner sequences."""
        return Point(state.x, trees.scale(0.5, trees.add(state.up, state.down)))

    def calls(self, state: F2SA2State) -> Calls:
        """2 T + 2 gradients of f and as many of g per iteration."""
        once = 2 * (self.inner_steps + 1) * state.t
        return Calls(once, once, 0 * state.t)


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
