"""Checks of what users hand over: one sentence if it is not fit."""

import functools
import pickle
import random
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._errors import ProblemError, StartProjected, brief, line_of, warn
from ._mesh import put
from ._programs import Program

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from ._problem import Problem
    from .sets import Set

_LEAVES = (int, float, np.ndarray, np.generic, jax.Array)


def traced(*trees_: PyTree) -> bool:
    """Whether any leaf is being traced, so that its value cannot be read."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees_))


# Numbers


def kind(value: object) -> str:
    """What a wrong argument is, in words."""
    if isinstance(value, type):
        return f"the class {value.__name__} (did you forget the parentheses?)"
    return type(value).__name__


def is_number(value: object) -> TypeGuard[float | np.ndarray | jax.Array]:
    """Whether a value is one real number."""
    kinds = (int, float, np.integer, np.floating, np.ndarray, jax.Array)
    if isinstance(value, bool) or not isinstance(value, kinds) or np.ndim(value) != 0:
        return False
    return np.asarray(value).dtype.kind in "iuf"


def whole_number(name: str, value: object) -> None:
    """Raise a ProblemError if a value is not a whole number >= 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ProblemError(f"{name} must be a whole number >= 1, got {value!r}.")


def number(value: ArrayLike, name: str = "the value") -> Array:
    """A float array: as a leaf of a module, another value does not recompile."""
    try:
        return jnp.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ProblemError(f"{name} must be a number, got {value!r}.") from None


def at_least(name: str, value: ArrayLike, least: float) -> Array:
    """The number; a ProblemError if it is known to be below `least` or not a number."""
    array = number(value, name)
    if not traced(array) and not np.all(np.asarray(array) >= least):
        raise ProblemError(f"{name} must be a number >= {least:g}, got {np.asarray(array)}.")
    return array


# Starts


def point_arrays(x0: PyTree, y0: PyTree, spread: bool = False) -> tuple[PyTree, PyTree]:
    """Array leaves of one floating dtype; whole numbers take the dtype of the others.

    If they are to be `spread` over devices, no device gets all of them: they stay where they are.
    """
    found: dict[np.dtype, str] = {}
    for name, tree in (("x0", x0), ("y0", y0)):
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        for path, leaf in leaves:
            where = name + jax.tree_util.keystr(path)
            dtype = _leaf_dtype(leaf, where)
            if dtype is not None:
                found.setdefault(dtype, where)
        if not sum(np.size(leaf) for _, leaf in leaves):
            raise ProblemError(f"{name} has no entries: it must be a number, array or pytree.")
    if len(found) > 1:
        (a, at_a), (b, at_b) = list(found.items())[:2]
        raise ProblemError(f"x and y must share one dtype, but {at_a} is {a} and {at_b} is {b}.")
    dtype = next(iter(found), jax.dtypes.canonicalize_dtype(np.float64))

    def convert(leaf: ArrayLike) -> Array | np.ndarray:
        there = spread and not isinstance(leaf, jax.Array)
        return np.asarray(leaf, dtype) if there else jnp.asarray(leaf, dtype)

    return jax.tree.map(convert, (x0, y0))


def _leaf_dtype(leaf: object, where: str) -> np.dtype | None:
    """The floating dtype of a leaf; None for whole numbers and Python's own."""
    if isinstance(leaf, bool) or not isinstance(leaf, _LEAVES):
        raise ProblemError(f"{where} must be a number or an array, got {type(leaf).__name__}.")
    if isinstance(leaf, int | float) and not isinstance(leaf, np.generic):
        return None
    # NumPy's float64 is float32 unless 64 bits are enabled
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else jax.dtypes.canonicalize_dtype(leaf.dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return None
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ProblemError(f"{where} has dtype {dtype}, but x and y must be real numbers.")
    return dtype


def check_point(
    problem: "Problem",
    x0: PyTree,
    y0: PyTree,
    project: bool = True,
    coarse: "DTypeLike | None" = None,
) -> tuple[PyTree, PyTree]:
    """A point as arrays, projected onto its sets if `project`; a ProblemError if it is not fit.

    `coarse` is the dtype the point came in, if it was lifted to a finer one: then f and g have been
    checked, and what lies in its set but for the rounding of that dtype is projected without a
    warning. Under jit and vmap values cannot be read, so they are not checked.
    """
    x, y = point_arrays(x0, y0, problem.mesh is not None)
    layout = problem.layout(x, y)
    problem.x_set.check(x, "x_set")
    problem.y_set.check(y, "y_set")
    if coarse is None:
        check_functions(problem, x, y)
    if traced(problem, x, y):
        return (problem.x_set.project(x), problem.y_set.project(y)) if project else (x, y)
    if layout is not None:
        x, y = jax.tree.map(put, (x, y), (layout.x, layout.y))
    x, y, apart, found = _enter(problem, x, y, project, coarse)
    report_point(apart if project else (0, 0), found)
    return x, y


def report_point(apart: Sequence[SupportsFloat], found: Sequence[SupportsFloat]) -> None:
    """Warn of a start outside its sets; raise a ProblemError if f or g is not finite there."""
    report_outside(apart)
    for name, value in zip("fg", found, strict=True):
        if not np.isfinite(float(value)):
            raise ProblemError(
                f"{name} is {float(value)} at the point (x0, y0); choose one where both functions "
                "are finite."
            )


def report_outside(apart: Sequence[SupportsFloat]) -> None:
    """Warn of a start outside its sets."""
    for name, distance in zip("xy", apart, strict=True):
        if float(distance) > 0:
            warn(
                f"{name}0 lies outside {name}_set (distance {float(distance):.3g}); "
                "its projection is used instead.",
                StartProjected,
            )


@Program
def _enter(
    problem: "Problem", x: PyTree, y: PyTree, project: bool, coarse: "DTypeLike | None"
) -> tuple[PyTree, PyTree, PyTree, PyTree]:
    """The point to use, how far the given one lies outside its sets, and f and g there."""
    sets = ((problem.x_set, x), (problem.y_set, y))
    apart = [jnp.where(_contains(s, z, coarse), 0, s.distance(z)) for s, z in sets]
    if project:
        x, y = (s.project(z) for s, z in sets)
    return x, y, apart, (problem.outer(x, y), problem.inner(x, y))


def _contains(constraint: "Set", z: PyTree, coarse: "DTypeLike | None") -> Array:
    inside = constraint.contains(z)
    if coarse is None:
        return inside
    return inside | trees.astype(constraint, coarse).contains(trees.astype(z, coarse))


# Derivatives


@jax.custom_jvp
def _same(leaves: list[Array]) -> list[Array]:
    return leaves


@_same.defjvp
def _refuse(*_: object) -> tuple[list[Array], list[Array]]:
    raise ProblemError(
        "solve cannot be differentiated, its answer may jump: put what you would differentiate by "
        "into x, or differentiate the inner solution, pdbo.inner_solution(problem, x, y0)."
    )


def undifferentiable(tree: PyTree) -> PyTree:
    """The same values; a ProblemError if they are differentiated."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    return eqx.combine(jax.tree.unflatten(structure, _same(leaves)), rest)


# Functions


FEW = 10_000  # entries of x and y up to which indices are checked
_CHECKED: dict[str, tuple[Any, ...]] = {}  # what the last problem and point found fit look like


def check_functions(problem: "Problem", x: PyTree, y: PyTree) -> None:
    """Raise a ProblemError unless f and g take the point to a scalar of its dtype."""
    if problem.inner_term is not None:
        problem.inner_term.check(x, y, problem.y_set)
    for name in "fg":
        _check_function(name, problem, x, y)
    if problem.coupled:
        for which in ("outer", "inner"):
            _check_constraint(problem, which, x, y)


def _check_function(name: str, problem: "Problem", x: PyTree, y: PyTree) -> None:
    like = _likeness((problem, x, y))
    if _CHECKED.get(name) == like or problem.is_known(name, x, y):
        return
    _check_value(name, problem.outer if name == "f" else problem.inner, x, y)
    if not traced(problem, x, y):
        _CHECKED[name] = like


def _likeness(tree: PyTree) -> tuple[Any, ...]:
    """What decides how functions of a tree are compiled: all but the values of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    seen = ((v.shape, v.dtype) if hasattr(v, "dtype") else (type(v), v) for v in leaves)
    return structure, *seen


def _hint(error: Exception, x: PyTree, y: PyTree) -> str:
    """What to change in a function that JAX cannot trace, or in its start; empty if unknown."""
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return ", use jnp.where(condition, a, b) in place of a Python if, min, max or while"
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return ", use jax.numpy (jnp.sin, jnp.sum, ...) in place of numpy"
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return ", use jnp.where(mask, y, 0.0) in place of y[mask]"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return ", use jax.numpy (jnp.exp, jnp.sqrt, ...) in place of math, float or int"
    if "immutable" in str(error):
        return ", use y = y.at[i].set(value) in place of y[i] = value"
    if "setting an array element" in str(error):
        return ", use z = jnp.zeros(n) and z = z.at[i].set(value) in place of a NumPy array"
    if isinstance(error, TypeError):
        for name, start in (("x0", x), ("y0", y)):
            if _numbers(start):
                return (
                    f", use {name}=jnp.array([...]) in place of a {type(start).__name__} of numbers"
                )
    shaped = isinstance(error, TypeError | ValueError | IndexError)
    return ", check the shapes of x0, y0 and data" if shaped else ""


def _numbers(start: PyTree) -> bool:
    """Whether a start is a list or tuple of numbers, which f and g get as such."""
    return isinstance(start, list | tuple) and all(getattr(v, "shape", None) == () for v in start)


def _check_constraint(problem: "Problem", which: str, x: PyTree, y: PyTree) -> None:
    """Raise a ProblemError unless a constraint returns real arrays of the point's dtype."""
    name, wanted = f"{which}_constraint", trees.dtype((x, y))
    out = _evaluated(name, functools.partial(problem.constraint, which), x, y)
    for leaf in jax.tree.leaves(out, is_leaf=problem.is_equality):
        if problem.is_equality(leaf) and not jax.tree_util.all_leaves([leaf.value]):
            raise ProblemError(
                f"{name}: pdbo.Equal takes a number or an array, got {kind(leaf.value)}; put it "
                "around each entry of a pytree."
            )
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        where = f"{name}(x, y){jax.tree_util.keystr(path)}"
        if isinstance(leaf, int | float):
            raise ProblemError(f"{where} is the constant {leaf!r}: it depends on neither x nor y.")
        if not hasattr(leaf, "dtype"):
            raise ProblemError(f"{where} must be a number or an array, got {kind(leaf)}.")
        if leaf.dtype != wanted:
            raise ProblemError(
                f"{where} is {leaf.dtype} for {wanted} x and y: constraints return real numbers "
                "that are to be <= 0, and their data and constants have the dtype of x and y."
            )


def check_rows(which: str, here: np.ndarray, absent: np.ndarray, depends: bool) -> None:
    """Raise a ProblemError unless the rows of a constraint can be used.

    Arguments:
        here: the rows at (x0, y0).
        absent: which of them are minus infinity wherever they were looked at, so that they say
            nothing. A row that is minus infinity at (x0, y0) alone, like log(y) at 0, says
            something elsewhere.
        depends: whether any row changes with what it should.
    """
    name = f"{which}_constraint"
    if not len(here):
        raise ProblemError(f"{name} returns no numbers.")
    if not np.all(np.isfinite(here) | (absent & (here == -np.inf))):
        raise ProblemError(f"{name} is not finite at the point (x0, y0); choose one where it is.")
    if not depends and which == "outer":
        raise ProblemError(f"{name} depends on neither x nor y: it restricts nothing.")
    if not depends:
        raise ProblemError(
            f"{name} never depends on y: what restricts x belongs to outer_constraint."
        )


def _evaluated(name: str, call: Callable, x: PyTree, y: PyTree) -> PyTree:
    """The shapes that a function returns, in one sentence if it raises or draws numbers."""
    before = _generators()
    try:
        out = eqx.filter_eval_shape(call, x, y)
    except ProblemError:  # it says what is wrong
        raise
    except Exception as error:  # whatever the user's function raised
        raise ProblemError(
            f"{name} cannot be evaluated at (x0, y0){_hint(error, x, y)}: {brief(error)}"
            f"{line_of(error)}."
        ) from error
    if _generators() != before:
        raise ProblemError(
            f"{name} draws random numbers, which happens only once, when it is compiled: draw them "
            "before and pass them in data=."
        )
    return out


def _generators() -> bytes:
    """The state of the global random generators of Python and NumPy."""
    return pickle.dumps((random.getstate(), np.random.get_state(legacy=False)))  # noqa: NPY002


def _check_indices(name: str, call: Callable, x: PyTree, y: PyTree) -> None:
    """Raise a ProblemError if a function reads past the end of x or y, which JAX does not notice.

    NumPy does. The function is only traced, so nothing is compiled.
    """
    if sum(np.size(leaf) for leaf in jax.tree.leaves((x, y))) > FEW or traced(x, y):
        return
    point = jax.tree.map(np.array, (x, y))
    with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
        try:
            jax.eval_shape(lambda: call(*point))
        except IndexError as error:
            if "out of bounds" in str(error):
                raise ProblemError(
                    f"{name} reads past the end of x or y, where JAX would return the last entry: "
                    f"{brief(error)}{line_of(error)}."
                ) from error
        except Exception:
            return  # what works with JAX's arrays alone


def _check_value(name: str, call: Callable, x: PyTree, y: PyTree) -> None:
    out = _evaluated(name, call, x, y)
    _check_indices(name, call, x, y)
    if isinstance(out, int | float):
        raise ProblemError(
            f"{name} is the constant {out!r}: it depends on neither x nor y; add 0 * x if it is to."
        )
    if not hasattr(out, "shape") or out.shape != ():
        got = type(out).__name__
        if hasattr(out, "shape"):
            got = f"shape {out.shape}: add the entries up with jnp.sum"
        raise ProblemError(f"{name} must return a scalar, got {got}.")
    if out.dtype != trees.dtype((x, y)):
        raise ProblemError(
            f"{name} returns {out.dtype} for {trees.dtype((x, y))} x and y: data or constants in "
            "it have another dtype."
        )
