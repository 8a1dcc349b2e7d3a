"""F2SA, the fully first-order method with a growing multiplier."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._problem import Problem
from .._solver import Calls, Point
from ._descent import GradientSolver, begin, descend, in_units_of_g, inner_slope, move


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
