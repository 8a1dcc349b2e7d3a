"""F2SA-2: the hypergradient as a central difference, accurate to second order."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._problem import Problem
from .._solver import Calls, Point
from ._descent import GradientSolver, begin, descend, move


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
