"""SUSTAIN: recursive momentum on the inner gradient and on the hypergradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._problem import Problem
from .._solver import Calls, Point
from ._aid import free_part
from ._descent import GradientSolver, begin, move, recursive
from ._hypergradient import check_y_set


class SUSTAINState(eqx.Module):
    """This and the last iterate, the two estimates, and the states of the transformations."""

    t: Int[Array, ""]
    z: tuple[PyTree, PyTree]
    last: tuple[PyTree, PyTree]
    estimates: tuple[PyTree, PyTree]
    rules: tuple[PyTree, PyTree]


class SUSTAIN(GradientSolver):
    r"""SingLe-timescale Stochastic BilevEl OptimizatioN: momentum that corrects its own lag.

    With d the hypergradient by a Neumann series of K terms and the subscript of a batch $\xi$ of
    the iteration, both taken at this point $z_t = (x_t, y_t)$ and at the last,

    $$h^g_t = \nabla_y g_\xi(z_t) + (1 - \eta)(h^g_{t-1} - \nabla_y g_\xi(z_{t-1})),\qquad
      h^f_t = d_\xi(z_t) + (1 - \eta)(h^f_{t-1} - d_\xi(z_{t-1})),$$
    $$y_{t+1} = \Pi_Y(y_t - \beta h^g_t),\qquad x_{t+1} = \Pi_X(x_t - \alpha h^f_t).$$

    Each step makes two gradients of f, two of g and 2K + 2 products.

    Arguments:
        outer_step: $\alpha$.
        inner_step: $\beta$.
        momentum: $\eta$, at most 1, which is plain gradients.
        linear_step: the step of the series, at most the inverse of the largest eigenvalue of
            $\nabla^2_{yy} g$.
        linear_steps: K.
        outer, inner: Optax transformations for the steps in x, of $h^f_t$, and in y, of $h^g_t$.

    Constraints: any x_set. For y_set Free, Box, NonNegative and their products, with the series on
    the coordinates that are not on a bound; the theory covers only Free.

    Reference: Khanduri, Zeng, Hong, Wai, Wang & Yang, A Near-Optimal Algorithm for Stochastic
    Bilevel Optimization via Double-Momentum (2021), Algorithm 1.

    Differs from the paper in: all terms of the series, not a random number of them scaled up; one
    batch of g for all products; constant steps and one $\eta$ for both.
    """

    label = "SUSTAIN"
    family = "hypergradient"
    citation = (
        "Khanduri, Zeng, Hong, Wai, Wang & Yang, A Near-Optimal Algorithm for Stochastic Bilevel "
        "Optimization via Double-Momentum, 2021"
    )
    needs_products = True
    covers = ("Free", "Box", "NonNegative")

    outer_step: Array = eqx.field(converter=number, default=0.1)
    inner_step: Array = eqx.field(converter=number, default=0.5)
    momentum: Array = eqx.field(converter=number, default=0.2)
    linear_step: Array = eqx.field(converter=number, default=0.5)
    linear_steps: int = eqx.field(static=True, default=5)

    def __check_init__(self):
        whole_number("linear_steps", self.linear_steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> SUSTAINState:
        """The state before the first step; raises if the method does not cover the set Y."""
        check_y_set(problem.y_set, self.covers, self.name)
        rules = (begin(self.outer, x, "outer"), begin(self.inner, y, "inner"))
        z = (x, y)
        return SUSTAINState(jnp.zeros((), jnp.int32), z, z, trees.zeros_like(z), rules)

    def step(self, problem: Problem, state: SUSTAINState) -> SUSTAINState:
        """One iteration."""
        (x, y), (outer, inner) = state.z, state.rules
        rate = jnp.where(state.t == 0, 1, self.momentum.astype(trees.dtype(x)))
        now, before = self._directions(problem, *state.z), self._directions(problem, *state.last)
        h_x, h_y = recursive(now, before, state.estimates, rate)
        x, outer = move(self.outer, outer, h_x, x, self.outer_step, problem.x_set)
        y, inner = move(self.inner, inner, h_y, y, self.inner_step, problem.y_set)
        return SUSTAINState(state.t + 1, (x, y), state.z, (h_x, h_y), (outer, inner))

    def _directions(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """The hypergradient and the inner gradient."""
        free = free_part(problem.y_set, y)
        f_x, f_y = jax.grad(problem.outer, (0, 1))(x, y)
        g_y, second = jax.vjp(jax.grad(problem.inner, 1), x, y)

        def one(_: Int[Array, ""], v: PyTree) -> PyTree:
            return trees.axpy(-self.linear_step, free(trees.sub(second(v)[1], f_y)), v)

        v = lax.fori_loop(0, self.linear_steps, one, trees.zeros_like(y))
        return trees.sub(f_x, second(v)[0]), g_y

    def output(self, state: SUSTAINState) -> Point:
        """The last iterate."""
        return Point(*state.z)

    def calls(self, state: SUSTAINState) -> Calls:
        """Two gradients of f, two of g and 2K + 2 products per iteration."""
        return Calls(2 * state.t, 2 * state.t, 2 * (self.linear_steps + 1) * state.t)
