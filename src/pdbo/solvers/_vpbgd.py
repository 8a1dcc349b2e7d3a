"""V-PBGD, gradient descent on the value-function penalty."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._problem import Problem
from .._solver import Calls, Point
from ._descent import GradientSolver, begin, descend, in_units_of_g, inner_slope, move


class VPBGDState(eqx.Module):
    """Iterate, inner estimate, states of the transformations of the three."""

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    y_hat: PyTree
    rules: tuple[PyTree, PyTree, PyTree] = (None, None, None)


class VPBGD(GradientSolver):
    r"""Value-function Penalty-Based Gradient Descent: x and y moved together, at a fixed penalty.

    Iteration k takes T projected gradient steps on $g(x_k, \cdot)$ from the last $\hat y$ to the
    next, then with $z = (x, y)$ one on $f(z) + \gamma(g(z) - g^*(x))$:

    $$z_{k+1} = \Pi_Z\Bigl(z_k - \frac{\alpha}{\max(1, \gamma)}\bigl(\nabla f(z_k) + \gamma
        (\nabla g(z_k) - (\nabla_x g(x_k, \hat y), 0))\bigr)\Bigr).$$

    The distance to a solution is of order $1/\gamma$.

    Arguments:
        penalty: $\gamma$.
        primal_step: $\alpha$.
        inner_step: the step of the inner projected gradient.
        inner_steps: T.
        outer: an Optax transformation for the steps in x.
        inner: one for the steps in $\hat y$ and in y, there of their direction over
            $\max(1, \gamma)$.

    The multiplier returned is $\gamma$. It balances the gradients at the minimiser of the penalty
    function, but that point is infeasible by about $\|\nabla_y f\|^2 / \gamma^2$.

    Constraints: closed convex sets for x and for y, covered by the theory.

    Reference: Shen & Chen, On Penalty-based Bilevel Gradient Descent Method (2023), Algorithm 1
    and, for y in a set, Section 4; $\gamma = 10$, $\alpha = 0.1$ and T = 1 are the authors'.

    Differs from the paper in: $\hat y$ is kept, while the paper starts it at $y_k$, and $\alpha$ is
    divided by $\gamma$, both as in the authors' code.
    """

    label = "VPBGD"
    family = "first-order"
    citation = "Shen & Chen, On Penalty-based Bilevel Gradient Descent Method, 2023"

    penalty: Array = eqx.field(converter=number, default=10.0)
    primal_step: Array = eqx.field(converter=number, default=0.1)
    inner_step: Array = eqx.field(converter=number, default=0.5)
    inner_steps: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        whole_number("inner_steps", self.inner_steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> VPBGDState:
        """The state before the first step."""
        inner = begin(self.inner, y, "inner")
        rules = (begin(self.outer, x, "outer"), inner, inner)
        return VPBGDState(jnp.zeros((), jnp.int32), x, y, y, rules)

    def step(self, problem: Problem, state: VPBGDState) -> VPBGDState:
        """One iteration."""
        x, y = state.x, state.y
        gamma, alpha = trees.astype((self.penalty, self.primal_step), trees.dtype(x))

        slope = inner_slope(problem, x)
        outer, inner, hat = state.rules
        step, T = self.inner_step, self.inner_steps
        y_hat, hat = descend(slope, problem.y_set, state.y_hat, step, T, self.inner, hat)
        g_x, g_y = jax.grad(problem.inner, (0, 1))(x, y)
        g_xhat = jax.grad(problem.inner, 0)(x, y_hat)
        grad_f = jax.grad(problem.outer, (0, 1))(x, y)
        gradient = trees.axpy(gamma, (trees.sub(g_x, g_xhat), g_y), grad_f)
        d_x, d_y = gradient[0], in_units_of_g(self.inner, gamma, gradient[1])
        size = alpha / jnp.maximum(gamma, 1)
        x, outer = move(self.outer, outer, d_x, x, size, problem.x_set)
        y, inner = move(self.inner, inner, d_y, y, size, problem.y_set)
        return VPBGDState(state.t + 1, x, y, y_hat, (outer, inner, hat))

    def output(self, state: VPBGDState) -> Point:
        """The last iterate."""
        return Point(state.x, state.y, jnp.asarray(self.penalty, trees.dtype(state.x)))

    def calls(self, state: VPBGDState) -> Calls:
        """One gradient of f and T + 2 of g per iteration."""
        return Calls(state.t, (self.inner_steps + 2) * state.t, 0 * state.t)
