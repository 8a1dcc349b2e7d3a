"""BVFIM, the interior-point method on the regularised value function."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._problem import Problem
from .._solver import Calls, Point
from ._descent import GradientSolver, begin, descend, move


class BVFIMState(eqx.Module):
    """x, the two inner points, the multiplier, states of the transformations of x and of z."""

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    z: PyTree
    multiplier: Float[Array, ""]
    rules: tuple[PyTree, PyTree] = (None, None)


class Trial(NamedTuple):
    """A y, the barrier function there, its gradient, the gap in its log, and the step to try."""

    y: PyTree
    value: Float[Array, ""]
    gradient: PyTree
    gap: Float[Array, ""]
    step: Float[Array, ""]


class BVFIM(GradientSolver):
    r"""Bilevel Value-Function-based Interior-point Method: a log barrier keeps y near-optimal.

    Iteration k, with $(\mu_1, \mu_2, \theta, \tau)$ the arguments over $(k + 1)^p$, takes $T_z$
    projected gradient steps to $z \approx \arg\min_y g(x_k, y) + \tfrac{\mu_1}{2}\|y\|^2$, sets
    $g^*_\mu = g(x_k, z) + \tfrac{\mu_1}{2}\|z\|^2 + \mu_2$, takes $T_y$ on

    $$\min_y\ f(x_k, y) + \tfrac{\theta}{2}\|y\|^2 - \tau\log(g^*_\mu - g(x_k, y)),$$

    and then, with $\lambda = \tau / (g^*_\mu - g(x_k, y))$,

    $$x_{k+1} = \Pi_X\bigl(x_k - \alpha(\nabla_x f(x_k, y) + \lambda(\nabla_x g(x_k, y)
        - \nabla_x g(x_k, z)))\bigr).$$

    The log never sees a number that is not positive: if the gap $g^*_\mu - g(x_k, y)$ is not,
    the barrier function counts as infinite; the steps on y start from z, where the gap is
    $\tfrac{\mu_1}{2}\|z\|^2 + \mu_2$, or from the last y, whichever has the lower barrier function;
    and a step that raises it is not taken but tried again from the same y at half its length.

    Arguments:
        outer_step: $\alpha$.
        inner_step: the step on z.
        inner_steps: $T_z$.
        barrier_step: the first step tried on y in every iteration.
        barrier_steps: $T_y$.
        smoothing: $\mu_1$ at the start.
        slack: $\mu_2$ at the start; positive.
        outer_smoothing: $\theta$ at the start.
        barrier: $\tau$ at the start.
        decay: p.
        outer, inner: Optax transformations for the steps in x and in z; those in y, with their
            rule, stay what they are.

    Choose a barrier well above smoothing and slack: $\lambda$ starts near their ratio, and steps on
    y fall to about $1/\lambda$ instead of to $\tau$.

    Constraints: x and y are projected onto their sets; the theory has no set for y.

    Reference: Liu, Liu, Yuan, Zeng & Zhang, A Value-Function-based Interior-point Method for
    Non-convex Bi-level Optimization (2021), Algorithm 1; the loop lengths, $\mu_1, \theta, \tau$
    and p are those of the authors' codes.

    Differs from the paper in: the rule above, while the authors' code divides by $g^*_\mu$ instead
    of the gap; $\mu, \theta, \tau$ fall at every iteration, not after several on x.
    """

    label = "BVFIM"
    family = "first-order"
    citation = (
        "Liu, Liu, Yuan, Zeng & Zhang, A Value-Function-based Interior-point Method for "
        "Non-convex Bi-level Optimization, 2021"
    )

    outer_step: Array = eqx.field(converter=number, default=0.02)
    inner_step: Array = eqx.field(converter=number, default=0.5)
    inner_steps: int = eqx.field(static=True, default=50)
    barrier_step: Array = eqx.field(converter=number, default=0.5)
    barrier_steps: int = eqx.field(static=True, default=25)
    smoothing: Array = eqx.field(converter=number, default=0.1)
    slack: Array = eqx.field(converter=number, default=0.1)
    outer_smoothing: Array = eqx.field(converter=number, default=0.01)
    barrier: Array = eqx.field(converter=number, default=10.0)
    decay: Array = eqx.field(converter=number, default=1.1)

    def __check_init__(self):
        whole_number("inner_steps", self.inner_steps)
        whole_number("barrier_steps", self.barrier_steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> BVFIMState:
        """The state before the first step."""
        rules = (begin(self.outer, x, "outer"), begin(self.inner, y, "inner"))
        return BVFIMState(jnp.zeros((), jnp.int32), x, y, y, jnp.zeros((), trees.dtype(x)), rules)

    def step(self, problem: Problem, state: BVFIMState) -> BVFIMState:
        """One iteration."""
        x, dtype = state.x, trees.dtype(state.x)
        alpha, step, decay = trees.astype((self.outer_step, self.barrier_step, self.decay), dtype)
        regularisers = (self.smoothing, self.slack, self.outer_smoothing, self.barrier)
        fall = (state.t + 1).astype(dtype) ** -decay
        mu1, mu2, theta, tau = trees.scale(fall, trees.astype(regularisers, dtype))

        def slope(v: PyTree) -> PyTree:
            return trees.axpy(mu1, v, jax.grad(problem.inner, 1)(x, v))

        z, inner = descend(
            slope, problem.y_set, state.z, self.inner_step, self.inner_steps, self.inner,
            state.rules[1],
        )  # fmt: skip
        g_z, g_xz = jax.value_and_grad(problem.inner, 0)(x, z)
        margin = 0.5 * mu1 * trees.dot(z, z) + mu2

        def barrier(v: PyTree) -> tuple[Array, PyTree, Array]:
            """The barrier function, infinite outside its domain, its gradient and the gap."""
            f, f_y = jax.value_and_grad(problem.outer, 1)(x, v)
            g, g_y = jax.value_and_grad(problem.inner, 1)(x, v)
            gap = margin + (g_z - g)
            inside = gap > 0
            gap = jnp.where(inside, gap, 1)
            value = f + 0.5 * theta * trees.dot(v, v) - tau * jnp.log(gap)
            gradient = trees.axpy(tau / gap, g_y, trees.axpy(theta, v, f_y))
            return jnp.where(inside, value, jnp.inf), gradient, gap

        def attempt(at: Trial, v: PyTree) -> Trial:
            """Move to v if the barrier function is no higher there, else halve the step."""
            value, gradient, gap = barrier(v)
            moved = Trial(v, value, gradient, gap, at.step)
            return trees.where(value <= at.value, moved, at._replace(step=at.step / 2))

        def once(_: Int[Array, ""], at: Trial) -> Trial:
            return attempt(at, problem.y_set.project(trees.axpy(-at.step, at.gradient, at.y)))

        start = attempt(Trial(z, *barrier(z), step), state.y)._replace(step=step)
        best = lax.fori_loop(0, self.barrier_steps, once, start)
        y, multiplier = best.y, tau / best.gap

        f_x = jax.grad(problem.outer, 0)(x, y)
        g_x = trees.sub(jax.grad(problem.inner, 0)(x, y), g_xz)
        d_x = trees.axpy(multiplier, g_x, f_x)
        x, outer = move(self.outer, state.rules[0], d_x, x, alpha, problem.x_set)
        return BVFIMState(state.t + 1, x, y, z, multiplier, (outer, inner))

    def output(self, state: BVFIMState) -> Point:
        """The last iterate and the multiplier that the barrier stands for."""
        return Point(state.x, state.y, state.multiplier)

    def calls(self, state: BVFIMState) -> Calls:
        r"""$T_y + 3$ gradients of f and $T_z + T_y + 4$ of g per iteration."""
        once = self.barrier_steps + 3
        return Calls(once * state.t, (self.inner_steps + 1 + once) * state.t, 0 * state.t)
