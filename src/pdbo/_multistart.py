"""Many starts in one compiled batch, and the best of what they found."""

import dataclasses
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from ._certificate import Certificate
from ._certify import certify
from ._checks import check_point, is_number, whole_number
from ._driver import chosen
from ._errors import RESULTS, ProblemError, SolveError
from ._mesh import everywhere
from ._options import Options
from ._portfolio import Portfolio, applies, begin_exact, ran_away
from ._precision import Start, as_lifted, returned, session
from ._problem import Problem, check_problem
from ._programs import Program
from ._solution import Solution
from ._solve import no_solution, solve
from ._solver import Solver
from ._verdict import SOUND, final
from .exact.points import kronecker
from .sets import Set
from .solvers._batch_pdbo import BatchPDBO

if TYPE_CHECKING:
    from .coupled.model import Model

STEPS = 1_000
EVEN = 32  # the most dimensions in which starts follow a low-discrepancy sequence


class BestOf(Solution):
    """The best solution of a batch.

    Attributes:
        all: every solution, as one `Solution` with a leading axis.
        index: which of them this one is.
    """

    all: Solution | None = None
    index: int = eqx.field(static=True, default=0)


def multistart(
    problem: Problem,
    x0s: PyTree,
    y0s: PyTree,
    solver: Solver | None = None,
    *,
    starts: int | None = None,
    radius: ArrayLike | None = None,
    steps: int = STEPS,
    tol: float = 1e-4,
    every: int = 100,
    key: Array | None = None,
    throw: bool = True,
) -> BestOf:
    """Solve from many starts at once and return the best solution; `.all` holds every one.

    The best solution is the one of lowest f among those whose certificate is within the tolerance;
    if there is none, among those whose inner gap is. Its certificate is computed in double.

    Arguments:
        problem: the problem.
        x0s, y0s: the starts, with a leading axis; or one start, if `starts` is given.
        solver: the method, `AutoPDBO()` unless named.
        starts: how many starts to make from the one given: itself, and points spread evenly over
            the bounded sets or, if a set is unbounded, over a cube around it.
        radius: half the width of that cube; three times the root mean square of x0 for x and of
            y0 for y unless given, at least 1.
        steps, tol, every: as in `solve`, for each start.
        key: a PRNG key for the spread and for solvers that draw random numbers.
        throw: whether failures raise an exception that carries the solution, or return their code:
            a problem or start that is not usable, or no run that ended soundly.
    """
    options = Options(steps=steps, tol=tol, every=every, key=key)
    try:
        best = _best_of_many(problem, x0s, y0s, solver, starts, radius, options)
    except ProblemError as error:
        error.solution = error.solution or _as_best(no_solution(x0s, y0s, str(error)))
        if throw:
            raise
        return error.solution
    if throw and best.result not in SOUND:
        raise SolveError(best.message, best)
    return best


def _best_of_many(
    problem: Problem, x0s: PyTree, y0s: PyTree, solver: Solver | None, starts: int | None,
    radius: ArrayLike | None, options: Options,
) -> BestOf:  # fmt: skip
    from ._resolve import with_answer  # most sessions do without it

    check_problem(problem)
    solver = chosen(solver, problem)
    tol, steps, every = float(np.asarray(options.tolerance)), options.steps, options.every
    assert every is not None
    try:
        x0, y0 = jax.tree.map(lambda v: v if starts is not None else v[0], (x0s, y0s))
    except (TypeError, IndexError):  # no batch of starts, as is said below
        x0, y0 = x0s, y0s
    problem, x0, y0 = problem.entered(x0, y0)
    x0s, y0s = problem.arrays(x0s, y0s)
    if problem.coupled:
        best = _coupled(Start(problem, x0, y0), x0s, y0s, solver, starts, radius, options)
        return with_answer(best, problem, tol)
    with session(Start(problem, x0, y0), solver) as start:
        x0s, y0s = as_lifted(start, (x0s, y0s))
        x0s, y0s, keys = _starts(start.problem, x0s, y0s, starts, radius, options.key)
        batch = _exact_batch(start, x0s, y0s, solver, options)
        if isinstance(solver, BatchPDBO):  # its steps differ: under vmap each would cost all kinds
            batch = _one_by_one(start.problem, x0s, y0s, solver, keys, options)
        if batch is None:
            batch = _batch(start.problem, x0s, y0s, solver, keys, tol, steps, every)
        best = _best(start.problem, batch, tol)
    return problem.left(with_answer(returned(best), problem, float(tol)))  # type: ignore


def _coupled(
    start: Start, x0s: PyTree, y0s: PyTree, solver: Solver, starts: int | None,
    radius: ArrayLike | None, options: Options,
) -> BestOf:  # fmt: skip
    """The best of many starts of a problem with constraints."""
    from ._coupled import multistart_coupled  # most problems do without it

    if starts is not None:
        whole_number("starts", starts)
    if radius is not None and not (is_number(radius) and float(radius) > 0):
        raise ProblemError(f"radius must be a number > 0, got {radius!r}.")

    def points(model: "Model") -> np.ndarray:
        if starts is not None:
            return model.spread(starts, 1, None if radius is None else float(radius))  # type: ignore
        x, y, _ = _starts(start.problem, x0s, y0s, None, None, options.key)
        flat = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves((x, y))]
        flat = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in flat], axis=1)
        return flat / model.length

    found = multistart_coupled(start, solver, options, points)
    return returned(_as_best(found.best, stacked(found.all), found.start))


def _starts(
    problem: Problem,
    x0s: PyTree,
    y0s: PyTree,
    starts: int | None,
    radius: ArrayLike | None,
    key: Array | None,
) -> tuple[PyTree, PyTree, Array]:
    """The starts with a leading axis, and a key for each."""
    key = jax.random.key(0) if key is None else key
    if problem.splits_point:
        raise ProblemError("multistart needs x and y whole on every device: split the data alone.")
    if starts is not None:
        whole_number("starts", starts)
        x0, y0 = check_point(problem, x0s, y0s)
        x0s, y0s = _spread(problem, x0, y0, starts, radius, key)
    x0s, y0s = everywhere(problem.mesh, jax.tree.map(jnp.asarray, (x0s, y0s)))
    counts = {np.shape(leaf)[:1] for leaf in jax.tree.leaves((x0s, y0s))}
    if len(counts) != 1 or counts == {()} or counts == {(0,)}:
        raise ProblemError(
            "x0s and y0s need one leading axis of the same length, the starts; with one start give "
            "starts=n."
        )
    check_point(problem, _first(x0s), _first(y0s), project=False)
    (count,) = next(iter(counts))
    return x0s, y0s, jax.random.split(key, count)


def _exact_batch(
    start: Start, x0s: PyTree, y0s: PyTree, solver: Solver, options: Options
) -> Solution | None:
    """What the exact path makes of every start, if the best of it leaves nothing open."""
    if not applies(start._replace(x=_first(x0s), y=_first(y0s)), solver):
        return None
    x0s, y0s = jax.tree.map(np.asarray, (x0s, y0s))
    count = len(jax.tree.leaves(x0s)[0])
    ends: list[Solution] = []
    lowest, best = np.inf, None
    for index in range(count):
        x0, y0 = jax.tree.map(lambda leaf, i=index: leaf[i], (x0s, y0s))
        one = start._replace(x=x0, y=y0)
        path = Portfolio(one, None, options)
        found = path.walk(begin_exact(one, solver), options.budget(None, 0), False)
        if index == 0 and not (solver.on_host or path.single(path.judged(found.run).facts)):
            return None
        if found.certificate is None:
            found = found._replace(certificate=NOT_MEASURED)
        code = RESULTS.diverged if ran_away(found.run) else RESULTS.settled
        ends.append(path.solution(found, code))
        if ends[-1].ok and found.f < lowest:
            lowest, best = found.f, (path, found)
    alone = best is not None and best[0].alone(best[0].judged(best[1].run))
    return stacked(ends) if alone or solver.on_host else None


def _one_by_one(
    problem: Problem, x0s: PyTree, y0s: PyTree, solver: Solver, keys: Array, options: Options
) -> Solution:
    """The solutions from all starts, one after the other."""
    ends = []
    for index, key in enumerate(keys):
        x0, y0 = jax.tree.map(lambda leaf, i=index: leaf[i], (x0s, y0s))
        ends.append(
            solve(
                problem, x0, y0, solver, steps=options.steps, tol=options.tol, every=options.every,
                key=key, throw=False,
            )
        )  # fmt: skip
    return stacked(ends)


def _first(batch: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], batch)


NOT_MEASURED = Certificate(*[np.float64(np.nan)] * 9)  # type: ignore


def stacked(solutions: list[Solution]) -> Solution:
    """Solutions as one, with a leading axis; unused rows of their histories hold step -1."""
    rows = max(len(solution.history["step"]) for solution in solutions)

    def padded(column: np.ndarray) -> np.ndarray:
        fill = np.nan if np.issubdtype(column.dtype, np.floating) else -1
        more = [(0, rows - len(column))] + [(0, 0)] * (column.ndim - 1)
        return np.pad(column, more, constant_values=fill)

    filled = [
        dataclasses.replace(
            s, history={k: padded(v) for k, v in s.history.items()}, inner_multipliers=None
        )
        for s in (one.with_outcome(note="") for one in solutions)
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *filled)


@Program
def _batch(
    problem: Problem,
    x0s: PyTree,
    y0s: PyTree,
    solver: Solver,
    keys: Array,
    tol: ArrayLike,
    steps: int | None,
    every: int,
) -> Solution:
    def one(x0: PyTree, y0: PyTree, key: Array) -> Solution:
        return solve(problem, x0, y0, solver, steps=steps, tol=tol, every=every, key=key)

    return eqx.filter_vmap(one)(x0s, y0s, keys)


def _best(problem: Problem, batch: Solution, tol: float) -> BestOf:
    code, f = np.asarray(batch.code), np.asarray(batch.f, float)
    gap = np.asarray(batch.certificate.inner_gap, float)  # type: ignore
    sound = np.isin(code, SOUND) & np.isfinite(f)
    certified = code == RESULTS.success
    rank = np.where(certified, 0, np.where(sound & (gap <= tol), 1, np.where(sound, 2, 3)))
    index = int(np.lexsort((np.where(np.isfinite(f), f, np.inf), rank))[0])
    best: Solution = jax.tree.map(
        lambda leaf: leaf[index] if hasattr(leaf, "dtype") else leaf, batch
    )
    multiplier = best.multiplier if np.isfinite(best.multiplier) else None  # not measured
    certificate = certify(problem, best.x, best.y, multiplier)
    rows = np.asarray(best.history["step"]) >= 0
    ended = final(code[index], bool(certificate.eps <= tol))
    best = dataclasses.replace(
        best.with_outcome(certificate=certificate, code=ended),
        history={name: np.asarray(column)[rows] for name, column in best.history.items()},
        steps=int(best.steps),
    )
    return _as_best(best, batch, index)


def _as_best(best: Solution, batch: Solution | None = None, index: int = 0) -> BestOf:
    """A solution as the best one of a batch."""
    fields = {field.name: getattr(best, field.name) for field in dataclasses.fields(best)}
    return BestOf(**fields, all=batch, index=index)


def _spread(
    problem: Problem, x0: PyTree, y0: PyTree, starts: int, radius: ArrayLike | None, key: Array
) -> tuple[PyTree, PyTree]:
    """The start given and `starts - 1` points of a shifted Kronecker sequence over the sets."""
    flat = ravel_pytree((x0, y0))[0]
    # beyond a few dozen dimensions no sequence is more even than random points
    even = flat.size <= EVEN
    u = jax.random.uniform(key, (flat.size,) if even else (starts, flat.size))
    u = jnp.asarray(kronecker(starts, np.asarray(u)) if even else u, flat.dtype)
    return _points((problem.x_set, problem.y_set), (x0, y0), radius, u)


@eqx.filter_jit
def _points(
    sets: tuple[Set, Set], start: tuple[PyTree, PyTree], radius: ArrayLike | None, u: Array
) -> tuple[PyTree, PyTree]:
    """The points of the sets that belong to points of the unit cube, the first one the start."""
    split = ravel_pytree(start)[1]

    def at(u: Array) -> tuple[PyTree, ...]:
        return tuple(
            set_.from_unit_cube(u, z, _reach(z) if radius is None else radius)
            for set_, u, z in zip(sets, split(u), start, strict=True)
        )

    return jax.tree.map(lambda many, one: many.at[0].set(one), jax.vmap(at)(u), start)


def _reach(z: PyTree) -> Array:
    """Three times the root mean square of a start, at least 1."""
    flat = ravel_pytree(z)[0]
    return jnp.maximum(3 * jnp.sqrt(jnp.mean(flat**2)), 1)
