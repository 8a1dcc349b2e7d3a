"""MEHA, a single loop on the Moreau envelope."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from .._solver import Calls, Point
from ._descent import GradientSolver, begin, move


class MEHAState(eqx.Module):
    """Iterate, proximal point of y, states of the transformations of the three."""

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    theta: PyTree
    rules: tuple[PyTree, PyTree, PyTree] = (None, None, None)


class MEHA(GradientSolver):
    r"""Moreau Envelope based Hessian-free Algorithm: one proximal, x and y step per iteration.

    On the penalty $f(x, y)/c_k + g(x, y) - v_\gamma(x, y)$ of the Moreau envelope
    $v_\gamma(x, y) = \min_{\theta \in Y} g(x, \theta) + \tfrac{1}{2\gamma}\|\theta - y\|^2$,
    with $c_k = c_0 (k + 1)^p$,

    $$\theta_{k+1} = \Pi_Y\bigl(\theta_k - \eta(\nabla_y g(x_k, \theta_k)
        + \tfrac{1}{\gamma}(\theta_k - y_k))\bigr)$$
    $$x_{k+1} = \Pi_X\bigl(x_k - \alpha(\tfrac{1}{c_k}\nabla_x f(x_k, y_k) + \nabla_x g(x_k, y_k)
        - \nabla_x g(x_k, \theta_{k+1}))\bigr)$$
    $$y_{k+1} = \Pi_Y\bigl(y_k - \beta(\tfrac{1}{c_k}\nabla_y f(x_{k+1}, y_k)
        + \nabla_y g(x_{k+1}, y_k) - \tfrac{1}{\gamma}(y_k - \theta_{k+1}))\bigr).$$

    The distance to a solution is of order $1/c_k$.

    Arguments:
        x_step: $\alpha$.
        y_step: $\beta$.
        proximal_step: $\eta$.
        proximal: $\gamma$; less than half the inverse of the weak convexity of g in y.
        penalty0: $c_0$.
        growth: p, in [0, 1/2).
        outer, inner: Optax transformations for the steps in x, and in y and $\theta$.

    It returns no multiplier: the penalty $c_k$ weighs the gap to the Moreau envelope, whose
    gradient in y differs from that of the gap to the value function.

    Constraints: closed convex sets for x and for y, covered by the theory.

    Reference: Liu, Liu, Yao, Zeng & Zhang, Moreau Envelope for Nonconvex Bi-level Optimization: A
    Single-loop and Hessian-free Solution Strategy (2024), Algorithm 1; $1/\gamma = 0.2$ and
    p = 0.49 are the authors', for a problem with many inner minima.

    Differs from the paper in: g is smooth, with no second part given by its proximal map; the
    steps are constant.
    """

    label = "MEHA"
    family = "first-order"
    citation = (
        "Liu, Liu, Yao, Zeng & Zhang, Moreau Envelope for Nonconvex Bi-level Optimization: A "
        "Single-loop and Hessian-free Solution Strategy, 2024"
    )

    x_step: Array = eqx.field(converter=number, default=0.2)
    y_step: Array = eqx.field(converter=number, default=0.2)
    proximal_step: Array = eqx.field(converter=number, default=0.2)
    proximal: Array = eqx.field(converter=number, default=5.0)
    penalty0: Array = eqx.field(converter=number, default=2.0)
    growth: Array = eqx.field(converter=number, default=0.49)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> MEHAState:
        """The state before the first step."""
        inner = begin(self.inner, y, "inner")
        rules = (begin(self.outer, x, "outer"), inner, inner)
        return MEHAState(jnp.zeros((), jnp.int32), x, y, y, rules)

    def step(self, problem: Problem, state: MEHAState) -> MEHAState:
        """One iteration."""
        x, y, theta = state.x, state.y, state.theta
        dtype = trees.dtype(x)
        alpha, beta, eta = trees.astype((self.x_step, self.y_step, self.proximal_step), dtype)
        gamma, c0, p = trees.astype((self.proximal, self.penalty0, self.growth), dtype)
        weight = 1 / (c0 * (state.t + 1).astype(dtype) ** p)

        outer, inner, proximal = state.rules
        pull = trees.scale(1 / gamma, trees.sub(theta, y))
        slope = trees.add(jax.grad(problem.inner, 1)(x, theta), pull)
        theta, proximal = move(self.inner, proximal, slope, theta, eta, problem.y_set)

        g_x = trees.sub(jax.grad(problem.inner, 0)(x, y), jax.grad(problem.inner, 0)(x, theta))
        d_x = trees.axpy(weight, jax.grad(problem.outer, 0)(x, y), g_x)
        x, outer = move(self.outer, outer, d_x, x, alpha, problem.x_set)

        g_y = trees.axpy(1 / gamma, trees.sub(theta, y), jax.grad(problem.inner, 1)(x, y))
        d_y = trees.axpy(weight, jax.grad(problem.outer, 1)(x, y), g_y)
        y, inner = move(self.inner, inner, d_y, y, beta, problem.y_set)
        return MEHAState(state.t + 1, x, y, theta, (outer, inner, proximal))

    def output(self, state: MEHAState) -> Point:
        """The last iterate."""
        return Point(state.x, state.y)

    def calls(self, state: MEHAState) -> Calls:
        """Two gradients of f and four of g per iteration."""
        return Calls(2 * state.t, 4 * state.t, 0 * state.t)
