"""Single or double precision: which runs have which, how a problem is lifted, what comes back.

A run is in the precision of its start, with one exception: in a session without 64-bit types a
solver that `prefers_double` runs in double all the same, on problems of up to a million numbers,
and on all problems with constraints.
Certificates are always computed in double. What was computed in double is returned in double: as
NumPy arrays if the session has no 64-bit types.
"""

import contextlib
import dataclasses
import operator
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._certificate import MAX_SLACK, Certificate, measure_jit
from ._checks import check_functions, point_arrays, traced
from ._errors import KinkWarning, PrecisionWarning, ProblemError, brief, warn
from ._problem import Problem
from ._programs import FEW
from ._solution import Outcome, Pending, Solution, State
from ._solver import Point, Solver
from ._stages import NO_FACTS, decided, exact_certificate, facts_of, is_rough

if TYPE_CHECKING:
    from jax.typing import DTypeLike

MOST_NUMBERS = 10**6  # in x, y and data together: up to here a run may be lifted to double
_LIFTABLE = {np.dtype(t) for t in (np.float64, np.float32)}


def double() -> contextlib.AbstractContextManager:
    """A session that has 64-bit types for a while."""
    return jax.enable_x64(True)


def single() -> contextlib.AbstractContextManager:
    """A session without them."""
    return jax.enable_x64(False)


def double_unless(dtype: "DTypeLike") -> contextlib.AbstractContextManager:
    """The session as it is for float32 data, one with 64-bit types for any other."""
    return contextlib.nullcontext() if dtype == np.float32 else double()


def double_from_now_on() -> None:
    """Give this process 64-bit types: for a command, which owns its process."""
    jax.config.update("jax_enable_x64", True)


def has_double() -> bool:
    """Whether the session has 64-bit types."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


S = TypeVar("S", bound=Solution)


T = TypeVar("T")


class Start(NamedTuple):
    """What a run begins with, in the precision it has.

    Attributes:
        problem, x, y: the problem and the start.
        state: the state to carry on from in place of a start.
        coarse: the dtype the start came in if it was lifted to a finer one: within the rounding
            of that dtype it lies in its sets.
    """

    problem: Problem
    x: PyTree = None
    y: PyTree = None
    state: State | None = None
    coarse: "DTypeLike | None" = None


@contextlib.contextmanager
def session(start: Start, solver: Solver) -> Iterator[Start]:
    """The start as the solver is to have it, in a session that has its precision."""
    with _near(start):
        lifted = _lifted(start, solver)
        if lifted is None:
            yield start
            return
        with double():
            yield lifted


def _near(start: Start) -> contextlib.AbstractContextManager:
    """The CPU for a small problem: a GPU would mostly wait for the next kernel.

    Arrays that were put on a device on purpose stay there.
    """
    leaves = [a for a in jax.tree.leaves((start.problem, start[1:])) if eqx.is_array_like(a)]
    known = jax.default_backend() != "cpu" and not traced(start) and start.problem.mesh is None
    bound = any(isinstance(a, Array) and a.committed for a in leaves) if known else True
    if bound or sum(map(np.size, leaves)) > FEW:
        return contextlib.nullcontext()
    return jax.default_device(jax.devices("cpu")[0])


def _lifted(start: Start, solver: Solver) -> Start | None:
    """The start in double precision if the run is to be lifted to it, else None."""
    problem = start.problem
    if traced(start) or problem.mesh is not None or problem.in_batches:
        return None
    if has_double() and not _is_single(start):
        return None
    if start.state is not None:
        if trees.dtype(start.state.scale) != np.float64:
            return None
        with double():
            return start._replace(problem=to_float64(problem))
    leaves = jax.tree.leaves((start.x, start.y))
    if not solver.prefers_double or not leaves or not all(map(_liftable, leaves)):
        return None
    numbers = sum(np.size(v) for v in (*leaves, *jax.tree.leaves(problem.data)))
    if numbers > MOST_NUMBERS and not problem.coupled:  # barriers need double precision
        return None
    with double():
        fine = to_float64(problem)
        x, y = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (start.x, start.y))
        reason = _refusal(fine, x, y)
    if reason is None:
        return Start(fine, x, y, coarse=np.float32)
    if _refusal(problem, *point_arrays(start.x, start.y)) is None:
        warn(
            f"f and g cannot be evaluated in double precision, so the run is in single: {reason}",
            PrecisionWarning,
        )
    return None  # what is wrong in either precision is for the run to say


def _is_single(start: Start) -> bool:
    """Whether a new run starts from float32 numbers."""
    leaves = jax.tree.leaves((start.x, start.y)) if start.state is None else []
    return any(getattr(leaf, "dtype", None) == np.float32 for leaf in leaves)


def as_lifted(start: Start, points: PyTree) -> PyTree:
    """Further starts of a run, lifted if its start was."""
    if start.coarse is None:
        return points
    return trees.astype(jax.tree.map(jnp.asarray, points), jnp.float64)


def was_lifted(dtype: str, solver: Solver) -> bool:
    """Whether a saved run of this dtype is one that `session` lifted, and would lift again."""
    return dtype == "float64" and solver.prefers_double and not has_double()


def is_double(*points: PyTree) -> bool:
    """Whether a run from these points is in double: they are, or whole or Python's numbers."""
    dtypes = [getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(points)]
    return has_double() and all(
        d is None or d == np.float64 or np.issubdtype(d, np.integer) for d in dtypes
    )


def _liftable(leaf: object) -> bool:
    if isinstance(leaf, bool):
        return False
    if isinstance(leaf, int | float):
        return True
    dtype = getattr(leaf, "dtype", None)
    return dtype in _LIFTABLE or (dtype is not None and jnp.issubdtype(dtype, jnp.integer))


def _refusal(problem: Problem, x: PyTree, y: PyTree) -> str | None:
    """Why f or g cannot be evaluated at a point; None if they can."""
    try:
        check_functions(problem, x, y)
    except ProblemError as error:
        return str(error)
    return None


class _Lifted(threading.local):
    """The small problem that this thread lifted last, leaf by leaf, and what came of it."""

    entry: tuple[list[Any], Any, Problem] | None = None


_LIFTED = _Lifted()


def to_float64(problem: Problem) -> Problem:
    """A problem in double precision, for a session that has it for a while.

    A small one is the same object as before, so that what was prepared for it is not lost.
    """
    leaves, structure = jax.tree.flatten(problem)
    leaves.append(problem.originals)  # which the structure does not tell apart
    if _LIFTED.entry is not None:
        known, before, lifted = _LIFTED.entry
        same = len(known) == len(leaves) and all(map(operator.is_, known, leaves))
        if same and before == structure:
            return lifted
    lifted = problem.with_fresh_constants().astype(jnp.float64)
    numbers = sum(int(np.size(leaf)) for leaf in leaves if eqx.is_array_like(leaf))
    _LIFTED.entry = (leaves, structure, lifted) if numbers <= FEW else None
    return lifted


def measure_in_double(problem: Problem, point: Point) -> Certificate:
    """The certificate of a solver's point, which grants it the slack it was run with."""
    max_slack = max(MAX_SLACK, 0.0 if point.slack is None else float(point.slack))
    effort = problem.view.effort()
    return certified_in_double(problem, point.x, point.y, point.multiplier, None, max_slack, effort)


def certified_in_double(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    multiplier: ArrayLike | None,
    slack: Array | None,
    max_slack: ArrayLike,
    iterations: int,
) -> Certificate:
    """The certificate of a point, computed in double precision, as NumPy numbers.

    If f or g insist on another precision it is computed in that, with a warning.
    """
    eps = _eps((x, y))

    def fine(problem: Problem, x: PyTree, y: PyTree) -> Certificate:
        facts = None if slack is not None else facts_of(problem, x, y)
        if facts is not None and decided(facts):
            return exact_certificate(facts, y)
        if problem.inner_term is not None:  # nothing else knows of its kinks
            return exact_certificate(facts or NO_FACTS, y)
        first = None if multiplier is None else in_double(multiplier)
        relaxed = measure_jit(problem, x, y, first, slack, max_slack, iterations, eps=eps)
        relaxed = _numpy(relaxed)
        return _doubted(relaxed) if is_rough(problem, x, y) else relaxed

    def coarse(problem: Problem, x: PyTree, y: PyTree) -> Certificate:
        first = None if multiplier is None else jnp.asarray(multiplier, trees.dtype(x))
        return _numpy(measure_jit(problem, x, y, first, slack, max_slack, iterations, eps=None))

    return in_double_if_possible("the certificate", problem, (x, y), fine, coarse)


def in_double_if_possible(
    what: str,
    problem: Problem,
    point: tuple[PyTree, PyTree],
    fine: Callable[[Problem, PyTree, PyTree], T],
    coarse: Callable[[Problem, PyTree, PyTree], T] | None = None,
) -> T:
    """`fine(problem, x, y)` with all of it in double precision.

    If f or g insist on another precision it is `coarse` of the problem as it is, `fine` unless
    given, and a warning says that `what` is in single precision.
    """
    own = has_double()
    with double():
        lifted = problem.astype(jnp.float64) if own else to_float64(problem)
        x, y = jax.tree.map(in_double, point)
        try:
            if not own or _eps(point) > float(np.finfo(np.float64).eps):  # else it was checked
                check_functions(lifted, x, y)
            return fine(lifted, x, y)
        except (ProblemError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, ProblemError) else f"{brief(error)}."
    warn(f"{what} is in single precision: {reason}", PrecisionWarning)
    return (coarse or fine)(problem, *point_arrays(*point))


def _doubted(certificate: Certificate) -> Certificate:
    """The certificate of a point where g has a kink: it does not hold."""
    warn(
        "g has a kink at y, as abs, max or a norm have: no certificate holds there. Give the part "
        "with the kink as inner_term, such as pdbo.L1(weights), or make g smooth.",
        KinkWarning,
    )
    return dataclasses.replace(certificate, eps=np.float64(np.inf))


def in_double(leaf: ArrayLike) -> Array:
    """A leaf in double precision; what is split over devices stays where it is."""
    spread = isinstance(leaf, Array) and len(leaf.sharding.device_set) > 1
    return jnp.asarray(leaf if spread else np.asarray(leaf), jnp.float64)


def _eps(tree: PyTree) -> float:
    """The rounding unit of the coarsest floating leaf; Python's numbers are doubles."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    units = [jnp.finfo(d).eps for d in dtypes if jnp.issubdtype(d, jnp.floating)]
    return float(max(units, default=np.finfo(np.float64).eps))


def _numpy(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[()], tree)


def returned(solution: S, seconds: float | None = None) -> S:
    """A solution whose arrays are JAX's, or NumPy's doubles if the session has no 64-bit types.

    With the seconds that it took, if they are given.

    Its state is left as it is: it is for `solve` to carry on from.
    """
    own = has_double()

    def plain(leaf: object) -> object:
        if own:
            return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
        return np.asarray(leaf) if isinstance(leaf, Array) and leaf.dtype == np.float64 else leaf

    def seen(outcome: Outcome) -> Outcome:
        if own:
            return dataclasses.replace(outcome, multiplier=plain(outcome.multiplier))
        return jax.tree.map(plain, outcome)

    names = ("x", "y", "f", "g")
    if not own:
        names = [f.name for f in dataclasses.fields(solution) if f.name not in ("state", "outcome")]
    changed = {n: jax.tree.map(plain, getattr(solution, n)) for n in names}
    outcome = solution.outcome
    if isinstance(outcome, Pending):
        later = Pending(lambda: seen(outcome.look()), outcome.costly)
    else:
        later = seen(outcome)
    if seconds is not None:
        changed["seconds"] = seconds
    return dataclasses.replace(solution, outcome=later, **changed)
