"""BOME, bilevel optimisation with a dynamic barrier."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._errors import ProblemError
from .._problem import Problem
from .._solver import Calls, Point
from ._descent import GradientSolver, begin, descend, in_units_of_g, inner_slope, move


class BOMEState(eqx.Module):
    """Iterate, multiplier of the last step, states of the transformations of x and of y."""

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    multiplier: Float[Array, ""]
    rules: tuple[PyTree, PyTree] = (None, None)


class BOME(GradientSolver):
    r"""Bilevel Optimisation Made Easy: descend f while the inner gap falls at a given rate.

    Iteration t takes T projected gradient steps on $g(x_t, \cdot)$ from $y_t$ to $\hat y$. With
    $\hat q(x, y) = g(x, y) - g(x, \hat y)$, $\hat y$ held fixed in its gradient,

    $$\lambda_t = \max\Bigl(\frac{\phi_t - \langle\nabla f, \nabla\hat q\rangle}
        {\|\nabla\hat q\|^2}, 0\Bigr), \qquad
      z_{t+1} = \Pi_Z\bigl(z_t - \xi(\nabla f + \lambda_t \nabla\hat q)\bigr), \quad z = (x, y),$$

    where $\phi_t = \eta\|\nabla\hat q\|^2$ or $\phi_t = \eta\hat q$: the step nearest to $\nabla f$
    that lowers $\hat q$ at rate $\phi_t$.

    Arguments:
        primal_step: $\xi$.
        inner_step: the step of the inner projected gradient.
        inner_steps: T.
        rate: $\eta$.
        barrier: what $\phi$ is a multiple of: the "gradient" ($\|\nabla\hat q\|^2$) or the
            "value" ($\hat q$).
        outer: an Optax transformation for the steps in x.
        inner: one for the steps in y, of their direction over $\max(1, \lambda_t)$, and in
            $\hat y$, where it begins again in every iteration.

    The multiplier grows like $\|\nabla f\| / \|\nabla\hat q\|$ as the inner problem is solved, to
    the order of $1/\xi$; the iterates settle within $O(\xi)$ of a solution.

    Constraints: x and y are projected onto their sets, which the theory does not cover. If y is on
    a bound, $\nabla\hat q$ keeps its part normal to it and $\lambda$ is not the best one.

    Reference: Ye, Liu, Wright, Stone & Liu, BOME! Bilevel Optimization Made Easy: A Simple
    First-Order Approach (2022), Algorithm 1; $\eta = 0.5$ and T = 10 are the authors'.

    Differs from the paper in: the projections; $10^{-16}$ is added to $\|\nabla\hat q\|^2$, so that
    $\lambda$ is zero if $\nabla\hat q$ is, and otherwise at most some $10^7\|\nabla f\|$ (the
    authors' code adds $10^{-8}$, which alone would keep y off a solution by some $10^{-3}$).
    """

    label = "BOME"
    family = "first-order"
    citation = (
        "Ye, Liu, Wright, Stone & Liu, BOME! Bilevel Optimization Made Easy: A Simple "
        "First-Order Approach, 2022"
    )

    primal_step: Array = eqx.field(converter=number, default=0.1)
    inner_step: Array = eqx.field(converter=number, default=0.5)
    inner_steps: int = eqx.field(static=True, default=10)
    rate: Array = eqx.field(converter=number, default=0.5)
    barrier: Literal["gradient", "value"] = eqx.field(static=True, default="gradient")

    def __check_init__(self):
        whole_number("inner_steps", self.inner_steps)
        if self.barrier not in ("gradient", "value"):
            raise ProblemError(f'barrier must be "gradient" or "value", got {self.barrier!r}.')

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> BOMEState:
        """The state before the first step."""
        rules = (begin(self.outer, x, "outer"), begin(self.inner, y, "inner"))
        return BOMEState(jnp.zeros((), jnp.int32), x, y, jnp.zeros((), trees.dtype(x)), rules)

    def step(self, problem: Problem, state: BOMEState) -> BOMEState:
        """One iteration."""
        x, y = state.x, state.y
        step, eta = trees.astype((self.primal_step, self.rate), trees.dtype(x))

        slope = inner_slope(problem, x)
        rule = begin(self.inner, y, "inner")
        y_hat, _ = descend(
            slope, problem.y_set, y, self.inner_step, self.inner_steps, self.inner, rule
        )

        g, (g_x, g_y) = jax.value_and_grad(problem.inner, (0, 1))(x, y)
        g_hat, g_xhat = jax.value_and_grad(problem.inner, 0)(x, y_hat)
        grad_f = jax.grad(problem.outer, (0, 1))(x, y)
        grad_q = (trees.sub(g_x, g_xhat), g_y)

        square = trees.dot(grad_q, grad_q)
        phi = eta * (square if self.barrier == "gradient" else g - g_hat)
        multiplier = jnp.maximum((phi - trees.dot(grad_f, grad_q)) / (square + 1e-16), 0)
        d_x, d_y = trees.axpy(multiplier, grad_q, grad_f)
        x, outer = move(self.outer, state.rules[0], d_x, x, step, problem.x_set)
        d_y = in_units_of_g(self.inner, multiplier, d_y)
        y, inner = move(self.inner, state.rules[1], d_y, y, step, problem.y_set)
        return BOMEState(state.t + 1, x, y, multiplier, (outer, inner))

    def output(self, state: BOMEState) -> Point:
        """The last iterate."""
        return Point(state.x, state.y, state.multiplier)

    def calls(self, state: BOMEState) -> Calls:
        """One gradient of f and T + 2 of g per iteration."""
        return Calls(state.t, (self.inner_steps + 2) * state.t, 0 * state.t)
