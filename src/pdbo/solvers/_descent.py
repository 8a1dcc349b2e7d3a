"""The inner loop that the solvers share."""

from collections.abc import Callable

import jax
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._problem import Problem
from ..sets import Set


def descend(
    slope: Callable[[PyTree], PyTree],
    constraint: Set,
    start: PyTree,
    step: Float[Array, ""],
    steps: int,
) -> PyTree:
    r"""The point after `steps` steps $y \leftarrow P(y - s \cdot slope(y))$ from `start`."""

    def once(_: Int[Array, ""], y: PyTree) -> PyTree:
        return constraint.project(trees.axpy(-step, slope(y), y))

    return lax.fori_loop(0, steps, once, start)


def inner_slope(problem: Problem, x: PyTree) -> Callable[[PyTree], PyTree]:
    r"""The slope of plain inner descent, $\nabla_y g(x, \cdot)$."""
    return lambda y: jax.grad(problem.inner, 1)(x, y)
