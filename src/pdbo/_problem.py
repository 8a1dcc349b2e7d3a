"""The bilevel problem: two functions, two sets and the data they share."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from . import _trees as trees
from ._checks import kind, traced
from ._data import DataView, Whole
from ._errors import ProblemError
from ._fresh_constants import as_it_is_now, with_fresh_constants
from ._mesh import Layout, is_spec
from .sets import Free, Set

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from ._batches import Source
    from ._solution import Solution
    from .terms import Term
    from .torch._direct import Direct
    from .torch._functions import TorchFunction

S = TypeVar("S", bound="Solution")


class _Originals:
    """The doubles that data were given in, by what they were rounded to in this session.

    All are equal, so that they make no difference to compiled programs.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[Array, np.ndarray]] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Originals)

    def __hash__(self) -> int:
        return 0

    def rounded(self, leaf: np.ndarray | np.generic | float) -> Array:
        """A leaf as JAX has it; what it was is kept if it is a double and was rounded."""
        array = jnp.asarray(leaf)
        if np.asarray(leaf).dtype == np.float64 and array.dtype != np.float64:
            self.pairs.append((array, np.asarray(leaf).copy()))
        return array

    def restored(self, data: PyTree) -> PyTree:
        """The data with its doubles as they were given."""
        known = {id(array): original for array, original in self.pairs}
        return jax.tree.map(lambda leaf: known.get(id(leaf), leaf), data)


class Equal(eqx.Module):
    """What a constraint returns for an entry that must be zero, rather than at most zero.

    Arguments:
        value: a number or an array, met where every entry is zero.
    """

    value: Array


def constraint_rows(tree: PyTree) -> tuple[Array, Array]:
    """What a constraint returned, flat: the entries to be <= 0, and those to be zero."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Equal))
    below = [jnp.ravel(leaf) for leaf in leaves if not isinstance(leaf, Equal)]
    zero = [jnp.ravel(leaf.value) for leaf in leaves if isinstance(leaf, Equal)]
    return tuple(jnp.concatenate(part) if part else jnp.zeros(0) for part in (below, zero))  # type: ignore


class Gradients(NamedTuple):
    r"""What a step of PDBO asks of f and g at (x, y) and at the inner estimate $\hat y$."""

    g: Float[Array, ""]
    g_x: PyTree
    g_y: PyTree
    y_hat: PyTree
    g_hat: Float[Array, ""]
    g_xhat: PyTree
    f_x: PyTree
    f_y: PyTree


class Problem(eqx.Module):
    r"""$\min_{x \in X,\ y \in S(x)} f(x, y)$ with $S(x) = \arg\min_{y \in Y} g(x, y)$.

    Arguments:
        f: the outer function, called as `f(x, y)`, or `f(x, y, data)` if data is given.
        g: the inner function, called the same way.
        data: a pytree of arrays handed to both functions. It is an argument of the compiled
            program, never a constant in it, so other data of the same shapes does not recompile.
            Floats are arrays too; Python integers stay what they are, a part of the program.
            With `Batches` each function is called with a mini-batch of its own examples.
        x_set, y_set: closed convex sets for x and y.
        outer_constraint: called like f; returns a number, an array or a pytree of these, met where
            every entry is at most zero. `pdbo.Equal` around an entry makes it an equality.
        inner_constraint: the same for the inner problem: y minimises g(x, .) among the points of Y
            that meet it. Both constraints may depend on x and y.
        inner_term: a nonsmooth term of the inner problem such as `pdbo.L1(weights)`, whose weights
            may depend on x: y minimises g(x, .) plus the term. Its kinks are known, so that it is
            solved to the last digit, which abs or max within g are not.

    x, y and data are arbitrary pytrees; all entries of x and y share one floating dtype.
    """

    f: Callable
    g: Callable
    data: PyTree
    x_set: Set
    y_set: Set
    mesh: Mesh | None
    specs: tuple[PyTree, PyTree]
    outer_constraint: Callable | None
    inner_constraint: Callable | None
    inner_term: "Term | None"
    _originals: _Originals = eqx.field(static=True)

    def __init__(
        self,
        f: Callable,
        g: Callable,
        data: PyTree = None,
        x_set: Set | None = None,
        y_set: Set | None = None,
        *,
        outer_constraint: Callable | None = None,
        inner_constraint: Callable | None = None,
        inner_term: "Term | None" = None,
    ):
        self.f = checked_callable("f", f, data is not None)
        self.g = checked_callable("g", g, data is not None)
        self.outer_constraint = _optional("outer_constraint", outer_constraint, data)
        self.inner_constraint = _optional("inner_constraint", inner_constraint, data)
        self.inner_term = _term(inner_term, data, self.coupled)
        self._originals = originals = _Originals()
        self.data = jax.tree.map(
            lambda a: originals.rounded(a) if isinstance(a, np.ndarray | np.generic | float) else a,
            data,
        )
        self.x_set = _set("x_set", x_set)
        self.y_set = _set("y_set", y_set)
        self.mesh = None  # the devices `shard` spreads the data over ...
        self.specs = (None, None)  # ... and how x and y are split over them

    def __repr__(self) -> str:
        from ._show import problem

        return problem(self)

    @property
    def view(self) -> DataView:
        """How the functions see the data."""
        return self.data if isinstance(self.data, DataView) else Whole(self.data)

    @property
    def in_batches(self) -> bool:
        """Whether the functions see a part of the data at a time."""
        return isinstance(self.data, DataView) and self.data.in_batches

    def outer(self, x: PyTree, y: PyTree) -> Array:
        """The value of f."""
        return self.view.value_f(self.f, *self._held(x, y))

    def inner(self, x: PyTree, y: PyTree) -> Array:
        """The value of g, and of the inner term if there is one."""
        value = self.view.value_g(self.g, *self._held(x, y))
        return value if self.inner_term is None else value + self.inner_term.value(x, y)

    def _held(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """A traced point with every leaf in its place, and its cotangents too.

        Without this the compiler may split x and y like the data.
        """
        layout = self.layout(x, y)
        if layout is None:
            return x, y
        return lax.with_sharding_constraint((x, y), (layout.x, layout.y))

    @property
    def splits_point(self) -> bool:
        """Whether x or y is split over devices."""
        return bool(
            jax.tree.leaves(self.specs, is_leaf=lambda node: node is not None and is_spec(node))
        )

    def layout(self, x: PyTree, y: PyTree) -> Layout | None:
        """How points like (x, y) lie on the devices; None without a mesh."""
        return None if self.mesh is None else Layout.of(self.mesh, self.specs, x, y)

    def placed(self, tree: PyTree, x: PyTree, y: PyTree) -> PyTree:
        """A tree whose arrays lie on the devices as those of the point (x, y) do."""
        layout = self.layout(x, y)
        if layout is None:
            return tree
        return layout.held(tree) if traced(tree) else layout.put(tree)

    @property
    def sources(self) -> "list[Source | TorchFunction]":
        """What may fail on the host in the middle of a run."""
        return list(self.data.sources) if isinstance(self.data, DataView) else []

    def entered(self, x0: PyTree, y0: PyTree) -> "tuple[Problem, PyTree, PyTree]":
        """The problem for this kind of point, and the point as arrays; see `pdbo.torch`.

        Its functions are those of today: a number or array that one of them uses may have changed.
        """
        return self._with_functions(as_it_is_now), x0, y0

    def arrays(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """A point of a kind that was entered, as arrays."""
        return x, y

    def is_known(self, name: str, x: PyTree, y: PyTree) -> bool:
        """Whether "f" or "g" is known to return a scalar of a point's dtype; see `pdbo.torch`."""
        return False

    def direct(self, x: PyTree, y: PyTree) -> "Direct | None":
        """What evaluates f and g on the host without JAX; see `pdbo.torch`."""
        return None

    def gradients(
        self,
        x: PyTree,
        y: PyTree,
        start: PyTree,
        steps: int,
        step: Float[Array, ""],
        smoothing: Float[Array, ""],
    ) -> "Gradients | None":
        """The gradients of a step at once, if f and g are functions of the host; see `pdbo.torch`.

        The inner steps begin at `start`, or at y, whose slope then serves twice, if that is None.
        """
        return None

    def left(self, solution: S) -> S:
        """A solution with x and y of the kind that was entered."""
        return solution

    def observer(self, observe: Callable | None) -> Callable | None:
        """What looks at x and y as arrays, of what looks at them as they were entered."""
        return observe

    def on_all(self) -> "Problem":
        """The problem on all of its data, if this one has a batch of them."""
        return eqx.tree_at(lambda p: p.data, self, self.view.everything)

    def pooled(self) -> "Problem":
        """The problem with all of its data in every step, if they come in batches."""
        return eqx.tree_at(lambda p: p.data, self, self.view.pooled())

    @property
    def coupled(self) -> bool:
        """Whether it has constraints besides its sets."""
        return self.outer_constraint is not None or self.inner_constraint is not None

    def constraint(self, which: str, x: PyTree, y: PyTree) -> PyTree:
        """What the "outer" or the "inner" constraint returns; an empty pytree if there is none."""
        call = self.outer_constraint if which == "outer" else self.inner_constraint
        return () if call is None else self.view.value_f(call, x, y)

    @staticmethod
    def is_equality(entry: object) -> bool:
        """Whether an entry of what a constraint returned has to be zero."""
        return isinstance(entry, Equal)

    def rows(self, which: str, x: PyTree, y: PyTree) -> tuple[Array, Array]:
        """All that binds the "outer" or the "inner" problem, flat: rows <= 0 and rows = 0."""
        parts = [constraint_rows(self.constraint(which, x, y))]
        parts.append(self.x_set.constraints(x) if which == "outer" else self.y_set.constraints(y))
        return tuple(jnp.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore

    def with_fresh_constants(self) -> "Problem":
        """The same problem over copies of the NumPy arrays its functions close over."""
        return self._with_functions(with_fresh_constants)

    def _with_functions(self, change: Callable[[Callable], Callable]) -> "Problem":
        """The problem with other functions in place of its own; itself if they are the same."""
        weights = [n for n in ("l1", "l2", "group") if callable(getattr(self.inner_term, n, None))]

        def functions(p: Problem) -> list[Callable]:
            calls = [p.f, p.g, p.outer_constraint, p.inner_constraint]
            calls += [getattr(p.inner_term, name) for name in weights]
            return [call for call in calls if call is not None]

        parts = [change(call) for call in functions(self)]
        if all(new is old for new, old in zip(parts, functions(self), strict=True)):
            return self
        return eqx.tree_at(functions, self, parts)

    @property
    def originals(self) -> object:
        """The doubles that data were given in, if they were rounded; the same only as itself."""
        return self._originals if self._originals.pairs else None

    def astype(self, dtype: "DTypeLike") -> "Problem":
        """The same problem with every floating array it carries in another precision.

        In double precision, data that were given in double are what they were.
        """
        if np.dtype(dtype) != np.float64 or not self._originals.pairs:
            return trees.astype(self, dtype)
        data = self._originals.restored(self.data)
        return trees.astype(eqx.tree_at(lambda p: p.data, self, data), dtype)


def checked_callable(name: str, function: object, with_data: bool) -> Callable:
    """The function; a ProblemError if it does not take x, y and, if there are any, the data."""
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


def _optional(name: str, function: object, data: PyTree) -> Callable | None:
    if function is None:
        return None
    if isinstance(data, DataView):
        raise ProblemError(f"{name} needs all of the data at once: it cannot be used with Batches.")
    return checked_callable(name, function, data is not None)


def _set(name: str, value: object) -> Set:
    value = Free() if value is None else value
    if not isinstance(value, Set):
        raise ProblemError(f"{name} must be a set such as pdbo.Box(lo, hi), got {kind(value)}.")
    return value


def _term(term: object, data: PyTree, coupled: bool) -> "Term | None":
    if term is None:
        return None
    from .terms import Term  # most problems have none

    if not isinstance(term, Term):
        raise ProblemError(f"inner_term must be a term such as pdbo.L1(weights), got {kind(term)}.")
    if isinstance(data, DataView):
        raise ProblemError("inner_term needs all of the data at once: it cannot go with Batches.")
    if coupled:
        raise ProblemError("inner_term cannot go with outer_constraint or inner_constraint.")
    return term


def refuse_constraints(problem: Problem, what: str) -> None:
    """Raise a ProblemError that names what cannot handle them if a problem has constraints.

    An inner term is refused, too.
    """
    if problem.inner_term is not None:
        raise ProblemError(
            f"{what} cannot handle inner_term: call solve, multistart or certify without a solver."
        )
    if problem.coupled:
        name = "inner_constraint" if problem.outer_constraint is None else "outer_constraint"
        raise ProblemError(
            f"{what} cannot handle {name}: call solve, multistart or certify without a solver."
        )


def check_problem(problem: object) -> None:
    """Raise a ProblemError if a value is not a problem."""
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must be a pdbo.Problem, got {kind(problem)}.")


@eqx.filter_jit
def values(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    """f and g at a point."""
    return problem.outer(x, y), problem.inner(x, y)
