"""Steps in x and y that the solvers share: plain projected gradient steps, or Optax's."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import kind
from .._errors import ProblemError, brief
from .._problem import Problem
from .._solver import Solver
from ..sets import Set

if TYPE_CHECKING:
    from jax.typing import DTypeLike


class Transformation(Protocol):
    """What is used of an `optax.GradientTransformation`; Optax itself is not imported."""

    @property
    def init(self) -> Callable[[PyTree], PyTree]:
        """The state before the first step, for a point."""
        ...

    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]:
        """What to add to the point, and the next state; from the gradient, the state, the point."""
        ...


class GradientSolver(Solver):
    r"""A method that takes gradient steps in x and in y, each of which Optax can replace.

    Arguments:
        outer: an Optax transformation for the steps in x, such as `optax.adam(1e-2)`, in place of
            the method's own step size; the projection follows it.
        inner: the same for the steps in y, each sequence of which has a state of its own.
    """

    outer: Transformation | None = eqx.field(static=True, default=None, kw_only=True)
    inner: Transformation | None = eqx.field(static=True, default=None, kw_only=True)

    def __check_init__(self):
        check_transformation("outer", self.outer)
        check_transformation("inner", self.inner)


def check_transformation(name: str, rule: object) -> None:
    """Raise a ProblemError if a value is neither None nor an Optax transformation."""
    parts = (getattr(rule, "init", None), getattr(rule, "update", None))
    if rule is not None and not all(map(callable, parts)):
        raise ProblemError(
            f"{name} must be an Optax transformation such as optax.adam(1e-2), got {kind(rule)}."
        )


def begin(rule: Transformation | None, z: PyTree, name: str) -> PyTree:
    """The state of a transformation before its first step; None for plain steps.

    A ProblemError says in one sentence why a transformation cannot be used.
    """
    if rule is None:
        return None
    try:
        with jax.numpy_dtype_promotion("standard"):
            state = jax.tree.map(_strong, rule.init(z))
            updates, after = jax.eval_shape(rule.update, z, state, z)
    except Exception as error:
        raise ProblemError(
            f"{name} cannot be used, as a step gives it the gradient, its state and the point, "
            f"nothing else: {brief(error)}."
        ) from error
    if jax.tree.structure((updates, after)) != jax.tree.structure((z, state)):
        raise ProblemError(f"{name} cannot be used: its state changes its structure in a step.")
    return state


def _strong(leaf: PyTree) -> Array:
    """An array whose dtype holds in a loop."""
    return _cast(leaf, jnp.asarray(leaf).dtype)


def _cast(leaf: PyTree, dtype: "DTypeLike") -> Array:
    """A leaf in a dtype; a random key as it is."""
    return leaf if jnp.issubdtype(dtype, jax.dtypes.extended) else jnp.asarray(leaf, dtype)


def move(
    rule: Transformation | None,
    state: PyTree,
    slope: PyTree,
    z: PyTree,
    step: Float[Array, ""],
    constraint: Set,
) -> tuple[PyTree, PyTree]:
    r"""$P(z - s \cdot slope)$, or P(z + update) with a transformation, and its next state."""
    if rule is None:
        return constraint.project(trees.axpy(-step, slope, z)), None
    with jax.numpy_dtype_promotion("standard"):  # Optax mixes numbers of several kinds
        updates, after = rule.update(slope, state, z)
    moved = jax.tree.map(lambda u, leaf: leaf + jnp.asarray(u, leaf.dtype), updates, z)
    after = jax.tree.map(lambda new, old: _cast(new, old.dtype), after, state)
    return constraint.project(moved), after


def descend(
    slope: Callable[[PyTree], PyTree],
    constraint: Set,
    start: PyTree,
    step: Float[Array, ""],
    steps: int,
    rule: Transformation | None = None,
    state: PyTree = None,
) -> tuple[PyTree, PyTree]:
    r"""The point after `steps` steps $y \leftarrow P(y - s \cdot slope(y))$ from `start`.

    With it, the state of the transformation, if there is one in place of s.
    """

    def once(_: Int[Array, ""], at: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        y, state = at
        return move(rule, state, slope(y), y, step, constraint)

    return lax.fori_loop(0, steps, once, (start, state))


def in_units_of_g(
    rule: Transformation | None, multiplier: Float[Array, ""], slope: PyTree
) -> PyTree:
    r"""$\nabla_y(f + \lambda g)$ as a transformation gets it, over $\max(1, \lambda)$.

    So a transformation that suits g suits it as well. For plain steps it stays as it is.
    """
    return slope if rule is None else trees.scale(1 / jnp.maximum(multiplier, 1), slope)


def inner_slope(problem: Problem, x: PyTree) -> Callable[[PyTree], PyTree]:
    r"""The slope of plain inner descent, $\nabla_y g(x, \cdot)$."""
    return lambda y: jax.grad(problem.inner, 1)(x, y)


def recursive(now: PyTree, before: PyTree, estimate: PyTree, rate: Float[Array, ""]) -> PyTree:
    r"""STORM's estimate $now + (1 - \eta)(estimate - before)$.

    `before` is the same batch's value at the last point (Cutkosky & Orabona, Momentum-Based
    Variance Reduction in Non-Convex SGD, 2019).
    """
    return trees.axpy(1 - rate, trees.sub(estimate, before), now)
