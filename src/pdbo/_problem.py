"""The bilevel problem: two functions, two sets and the data they share."""

import abc
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._errors import ProblemError, StartProjected
from ._mesh import everywhere, held_whole
from ._renew import renew
from ._sets import Free, Set


class Parts(eqx.Module):
    """Data of which f has one part and g another."""

    outer: Any
    inner: Any

    @abc.abstractmethod
    def value(self, function: Callable, part: Any, x: PyTree, y: PyTree) -> Array:
        """The value of a function on its part."""


class Problem(eqx.Module):
    r"""$\min_{x \in X,\ y \in S(x)} f(x, y)$ with $S(x) = \arg\min_{y \in Y} g(x, y)$.

    Arguments:
        f: the outer function, called as `f(x, y)`, or `f(x, y, data)` where data is given.
        g: the inner function, called the same way.
        data: a pytree of arrays handed to both functions. It is an argument of the compiled
            program, never a constant in it, so other data of the same shapes does not recompile.
            Floats are arrays too; Python integers stay what they are, a part of the program.
            With `Batches` each function is called with a mini-batch of its own examples.
        x_set, y_set: closed convex sets for x and y.

    x, y and data are arbitrary pytrees; all entries of x and y share one floating dtype.
    """

    f: Callable
    g: Callable
    data: PyTree
    x_set: Set
    y_set: Set
    mesh: Mesh | None

    def __init__(
        self,
        f: Callable,
        g: Callable,
        data: PyTree = None,
        x_set: Set | None = None,
        y_set: Set | None = None,
    ):
        self.f = _callable("f", f, data is not None)
        self.g = _callable("g", g, data is not None)
        self.data = jax.tree.map(
            lambda a: jnp.asarray(a) if isinstance(a, np.ndarray | np.generic | float) else a, data
        )
        self.x_set = _set("x_set", x_set)
        self.y_set = _set("y_set", y_set)
        self.mesh = None  # the devices `shard` spreads the data over

    def outer(self, x: PyTree, y: PyTree) -> Array:
        """The value of f."""
        x, y = held_whole(self.mesh, (x, y))
        if isinstance(self.data, Parts):
            return self.data.value(self.f, self.data.outer, x, y)
        return self.f(x, y) if self.data is None else self.f(x, y, self.data)

    def inner(self, x: PyTree, y: PyTree) -> Array:
        """The value of g."""
        x, y = held_whole(self.mesh, (x, y))
        if isinstance(self.data, Parts):
            return self.data.value(self.g, self.data.inner, x, y)
        return self.g(x, y) if self.data is None else self.g(x, y, self.data)

    def renewed(self) -> "Problem":
        """The same problem over copies of the NumPy arrays its functions close over."""
        parts = (renew(self.f), renew(self.g))
        return eqx.tree_at(lambda p: (p.f, p.g), self, parts)

    def astype(self, dtype: Any) -> "Problem":
        """The same problem with every floating array it carries in another precision."""
        return trees.astype(self, dtype)

    def doubled(self) -> "Problem":
        """The same problem in double precision, for a session that has it for a while."""
        return self.renewed().astype(jnp.float64)


def _callable(name: str, function: Any, with_data: bool) -> Callable:
    if not callable(function):
        raise ProblemError(f"{name} must be a function, got {type(function).__name__}.")
    call = f"{name}(x, y, data)" if with_data else f"{name}(x, y)"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins have none
        return function
    try:
        signature.bind(*[None] * (3 if with_data else 2))
    except TypeError:
        why = "data is given" if with_data else "no data is given"
        raise ProblemError(
            f"{name} has the wrong number of arguments: {why}, so it is called as {call}, "
            f"but its signature is {name}{signature}."
        ) from None
    return function


def _set(name: str, value: Any) -> Set:
    value = Free() if value is None else value
    if not isinstance(value, Set):
        raise ProblemError(f"{name} must be a set such as pdbo.Box(lo, hi), got {kind(value)}.")
    return value


_LEAVES = (int, float, np.ndarray, np.generic, jax.Array)


def traced(*trees_: PyTree) -> bool:
    """Whether any leaf is being traced, so that no value can be looked at."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees_))


def has_double() -> bool:
    """Whether the session has 64-bit types."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def kind(value: Any) -> str:
    """What a wrong argument is, in words."""
    if isinstance(value, type):
        return f"the class {value.__name__} (did you forget the parentheses?)"
    return type(value).__name__


def is_number(value: Any) -> bool:
    """Whether a value is one real number."""
    kinds = (int, float, np.integer, np.floating, np.ndarray, jax.Array)
    if isinstance(value, bool) or not isinstance(value, kinds) or np.ndim(value) != 0:
        return False
    return np.asarray(value).dtype.kind in "iuf"


def whole_number(name: str, value: Any) -> None:
    """Raise a ProblemError where a value is not a whole number >= 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ProblemError(f"{name} must be a whole number >= 1, got {value!r}.")


def check_problem(problem: Any) -> None:
    """Raise a ProblemError where a value is not a problem."""
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must be a pdbo.Problem, got {kind(problem)}.")


def check_point(
    problem: Problem, x0: PyTree, y0: PyTree, project: bool = True
) -> tuple[PyTree, PyTree]:
    """A point as arrays, inside its sets if `project`; a ProblemError with one sentence if not fit.

    Where nothing can be looked at, under jit and vmap, values are not checked.
    """
    x, y = point_arrays(x0, y0)
    problem.x_set.check(x, "x_set")
    problem.y_set.check(y, "y_set")
    check_functions(problem, x, y)
    if traced(problem, x, y):
        return (problem.x_set.project(x), problem.y_set.project(y)) if project else (x, y)
    x, y = everywhere(problem.mesh, (x, y))
    x, y, apart, values = _enter(problem, x, y, project)
    for name, distance in zip("xy", apart, strict=True):
        if project and distance > 0:
            warnings.warn(
                f"{name}0 lies outside {name}_set (distance {float(distance):.3g}); "
                "its projection is used instead.",
                StartProjected,
                stacklevel=5,
            )
    for name, value in zip("fg", values, strict=True):
        if not np.isfinite(value):
            raise ProblemError(
                f"{name} is {float(value)} at the point (x0, y0); choose one where both functions "
                "are finite."
            )
    return x, y


@eqx.filter_jit
def _enter(
    problem: Problem, x: PyTree, y: PyTree, project: bool
) -> tuple[PyTree, PyTree, PyTree, PyTree]:
    """The point to use, how far the given one lies outside its sets, and the values there."""
    sets = ((problem.x_set, x), (problem.y_set, y))
    apart = [jnp.where(s.contains(z), 0, s.distance(z)) for s, z in sets]
    if project:
        x, y = (s.project(z) for s, z in sets)
    return x, y, apart, (problem.outer(x, y), problem.inner(x, y))


@eqx.filter_jit
def values(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    """f and g at a point."""
    return problem.outer(x, y), problem.inner(x, y)


def point_arrays(x0: PyTree, y0: PyTree) -> tuple[PyTree, PyTree]:
    """Array leaves of one floating dtype; Python numbers take the dtype of the others."""
    found: dict[Any, str] = {}
    for name, tree in (("x0", x0), ("y0", y0)):
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        if not leaves:
            raise ProblemError(f"{name} has no entries: it must be a number, array or pytree.")
        for path, leaf in leaves:
            where = name + jax.tree_util.keystr(path)
            if isinstance(leaf, bool) or not isinstance(leaf, _LEAVES):
                raise ProblemError(
                    f"{where} must be a number or an array, got {type(leaf).__name__}."
                )
            if isinstance(leaf, int | float) and not isinstance(leaf, np.generic):
                continue
            dtype = jnp.result_type(leaf) if isinstance(leaf, jax.Array) else _canonical(leaf)
            if not jnp.issubdtype(dtype, jnp.floating):
                raise ProblemError(
                    f"{where} has dtype {dtype}, but x and y must be real floating arrays."
                )
            found.setdefault(dtype, where)
    if len(found) > 1:
        (a, at_a), (b, at_b) = list(found.items())[:2]
        raise ProblemError(f"x and y must share one dtype, but {at_a} is {a} and {at_b} is {b}.")
    dtype = next(iter(found), jnp.zeros(()).dtype)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (x0, y0))


def _canonical(leaf: Any) -> Any:
    """The dtype JAX gives a NumPy array: float64 is float32 unless 64 bits are enabled."""
    return jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)


def check_functions(problem: Problem, x: PyTree, y: PyTree) -> None:
    """Raise a ProblemError where f or g do not take the point to a scalar of its dtype."""
    for name, call in (("f", problem.outer), ("g", problem.inner)):
        _check_function(name, call, x, y)


def _check_function(name: str, call: Callable, x: PyTree, y: PyTree) -> None:
    try:
        out = eqx.filter_eval_shape(call, x, y)
    except Exception as error:  # whatever the user's function raised, in one sentence
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ProblemError(
            f"{name} cannot be evaluated at (x0, y0), check the shapes of x0, y0 and data: "
            f"{type(error).__name__}: {first}"
        ) from error
    if not hasattr(out, "shape") or out.shape != ():
        got = f"shape {out.shape}" if hasattr(out, "shape") else type(out).__name__
        raise ProblemError(f"{name} must return a scalar, got {got}.")
    if out.dtype != trees.dtype((x, y)):
        raise ProblemError(
            f"{name} returns {out.dtype} for {trees.dtype((x, y))} x and y: data or constants in "
            "it have another dtype."
        )
