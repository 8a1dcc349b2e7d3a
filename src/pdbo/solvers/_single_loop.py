"""What the single-loop stochastic methods share: one small step of x, y and v per iteration."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from .._solver import Calls, Point
from ..sets import Box, Free, NonNegative
from ._aid import free_part
from ._descent import GradientSolver, begin, move
from ._hypergradient import check_y_set


class Directions(NamedTuple):
    r"""Where x, y and v move against: $f_x - g_{xy}v$, $g_y$ and $g_{yy}v - f_y$."""

    x: PyTree
    y: PyTree
    v: PyTree


class SingleLoopState(eqx.Module):
    """x, y, the solution v of the linear system, the states of the transformations, a memory."""

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    v: PyTree
    rules: tuple[PyTree, PyTree]
    memory: PyTree


class SingleLoopSolver(GradientSolver):
    r"""x, y and v move at once, each along a direction that is linear in f and g.

    $$D_y = \nabla_y g,\qquad D_v = \nabla^2_{yy} g\, v - \nabla_y f,\qquad
      D_x = \nabla_x f - \nabla^2_{xy} g\, v$$

    all at the same $(x_t, y_t, v_t)$. A batch gives unbiased estimates of all three.
    """

    needs_products = True
    covers = (Free, Box, NonNegative)

    outer_step: Array = eqx.field(converter=number, default=0.1)
    inner_step: Array = eqx.field(converter=number, default=0.5)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> SingleLoopState:
        """The state before the first step; raises if the method does not cover the set Y."""
        check_y_set(problem.y_set, self.covers, self.name)
        rules = (begin(self.outer, x, "outer"), begin(self.inner, y, "inner"))
        v, memory = trees.zeros_like(y), self.memory0(problem, x, y)
        return SingleLoopState(jnp.zeros((), jnp.int32), x, y, v, rules, memory)

    def memory0(self, problem: Problem, x: PyTree, y: PyTree) -> PyTree:
        """What else the method keeps, before the first step."""
        return None

    def advance(
        self,
        problem: Problem,
        at: SingleLoopState,
        d: Directions,
        decay: float | Float[Array, ""] = 1.0,
        memory: PyTree = None,
    ) -> SingleLoopState:
        """The steps along these directions, with the step sizes times `decay`."""
        sizes = trees.astype((self.outer_step, self.inner_step), trees.dtype(at.x))
        outer_step, inner_step = (decay * size for size in sizes)
        x, outer = move(self.outer, at.rules[0], d.x, at.x, outer_step, problem.x_set)
        y, inner = move(self.inner, at.rules[1], d.y, at.y, inner_step, problem.y_set)
        v = trees.axpy(-inner_step, d.v, at.v)
        return SingleLoopState(at.t + 1, x, y, v, (outer, inner), memory)

    def output(self, state: SingleLoopState) -> Point:
        """The last iterate."""
        return Point(state.x, state.y)

    def calls(self, state: SingleLoopState) -> Calls:
        """One gradient of f, one of g and two products per iteration."""
        return Calls(state.t, state.t, 2 * state.t)


def directions(problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> Directions:
    """The three directions at a point; v stays zero where y is on a bound."""
    free = free_part(problem.y_set, y)
    f_x, f_y = jax.grad(problem.outer, (0, 1))(x, y)
    g_y, second = jax.vjp(jax.grad(problem.inner, 1), x, y)
    cross, curved = second(free(v))
    return Directions(trees.sub(f_x, cross), g_y, free(trees.sub(curved, f_y)))


def recursive(now: PyTree, before: PyTree, estimate: PyTree, rate: Float[Array, ""]) -> PyTree:
    r"""STORM's estimate $now + (1 - \eta)(estimate - before)$.

    `before` is the same batch's value at the last point (Cutkosky & Orabona, Momentum-Based
    Variance Reduction in Non-Convex SGD, 2019).
    """
    return trees.axpy(1 - rate, trees.sub(estimate, before), now)
