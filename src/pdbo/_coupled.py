"""Problems with constraints as the doors run them: checked, searched, certified, returned."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ._certificate import Certificate
from ._checks import check_functions, check_rows, point_arrays, report_point, traced
from ._driver import chosen
from ._errors import RESULTS, ProblemError
from ._history import COLUMNS, History, columns
from ._kept_search import Kept
from ._options import Options
from ._precision import Start, session
from ._problem import Problem, refuse_constraints
from ._progress import Progress
from ._solution import Answer as Known
from ._solution import Outcome, Solution
from ._solver import Point, Solver
from .coupled.certificate import Facts, look
from .coupled.engine import Lanes
from .coupled.model import Model, Points, entries_of, shaped
from .coupled.rounds import ROUNDS, Answer, Found, Round, Search

MOST = 200  # the most entries of x, y and rows together
STARTS = 16  # those that `solve` makes of the one given
NUMBERS = 10**6  # in the data
SAME = 1e-6  # inner values this close are one, relative: rows are met up to 5e-8 times multipliers


class Searched(NamedTuple):
    """The best solution, that of every start, and which start led to the best."""

    best: Solution
    all: list[Solution]
    start: int


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    """Small programs called thousands of times: a GPU would mostly wait."""
    if jax.default_backend() == "cpu":
        yield
        return
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def solve_coupled(given: Start, solver: Solver, options: Options) -> Solution:
    """The solution from one start."""
    _check_options(given, solver, options)
    with session(given, solver) as start, _on_cpu():
        if _is_large(start.problem, start.x, start.y):
            from ._coupled_large import solve_large  # few problems are

            return solve_large(start.problem, start.x, start.y, options)
        model = model_of(start.problem, start.x, start.y, start.coarse is None)
        return _searched(model, model.spread(STARTS, 1), options).best


def _is_large(problem: Problem, x0: PyTree, y0: PyTree) -> bool:
    """Whether a problem is too large for the dense method."""
    x, y = point_arrays(x0, y0)
    check_functions(problem, x, y)
    return entries_of(problem, x, y) > MOST


def multistart_coupled(
    given: Start, solver: Solver, options: Options, starts: Callable[[Model], Points]
) -> Searched:
    """The solutions from many starts."""
    _check_options(given, solver, options)
    with session(given, solver) as start, _on_cpu():
        model = model_of(start.problem, start.x, start.y, start.coarse is None)
        return _searched(model, starts(model), options)


def certify_coupled(given: Start, solver: Solver) -> Certificate:
    """The certificate of a point."""
    if traced(given.problem, given.x, given.y):
        raise ProblemError("a problem with constraints cannot be certified under jit or vmap.")
    with session(given, solver) as start, _on_cpu():
        if _is_large(start.problem, start.x, start.y):
            from ._coupled_large import certify_large  # few problems are

            return certify_large(start.problem, start.x, start.y)
        model = model_of(start.problem, start.x, start.y, start.coarse is None, told=False)
        x, y = np.split(model.start, [model.nx])
        return _facts(model, x, y, None)[0].certificate


def answer_coupled(problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, float]:
    """The lowest inner solution found at x, of equal ones that nearest to y, and f there."""
    with session(Start(problem, x, y), chosen(None)) as start, _on_cpu():
        if _is_large(start.problem, start.x, start.y):
            from ._coupled_large import answer_large  # few problems are

            return answer_large(start.problem, start.x, start.y)
        model = Model(start.problem, *point_arrays(start.x, start.y))  # checked by the run
        x, y = np.split(model.start, [model.nx])
        search = Search(model, model.start[None], 1)
        known = _answered(search, x, y, *search.lookout(x, y))
        return known.y, float(known.f)


def _answered(search: Search, x: np.ndarray, y: np.ndarray, Y: Points, values: Lanes) -> Known:
    """The lowest of inner solutions at x, of equal ones that nearest to y, and f there."""
    model, Y, values = search.model, np.vstack([Y, y]), np.append(values, search.value(x, y))
    lowest = np.min(values)
    apart = np.linalg.norm(Y - y, axis=1)
    best = np.argmin(np.where(values <= lowest + SAME * max(1.0, abs(lowest)), apart, np.inf))
    f = model.all_rows(np.concatenate([x, Y[best]])[None])[0][0]
    return Known(model.point(x, Y[best])[1], np.float64(f))


def _check_options(given: Start, solver: Solver, options: Options) -> None:
    if not solver.exact_first:
        refuse_constraints(given.problem, solver.name)
    if given.state is not None:
        raise ProblemError("a problem with constraints has no state: give x0 and y0.")
    if traced(given.problem, given.x, given.y):
        raise ProblemError("a problem with constraints cannot be solved under jit or vmap.")


def model_of(
    problem: Problem, x0: PyTree, y0: PyTree, check: bool = True, told: bool = True
) -> Model:
    """The model of a problem, checked; with a warning of a start that is outside its sets."""
    x, y = point_arrays(x0, y0)
    problem.x_set.check(x, "x_set")
    problem.y_set.check(y, "y_set")
    if check:
        check_functions(problem, x, y)
    size = entries_of(problem, x, y)
    data = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(problem.data))
    if size > MOST or data > NUMBERS:
        raise ProblemError(
            f"here x, y and the rows of all constraints may have up to {MOST} entries together, "
            f"got {size}; beyond that there are solve and certify."
        )
    model = Model(problem, x, y)
    first = model.all_rows(model.start[None])[0]
    report_point(_apart(model, first) if told else (0, 0), first[:2])
    slopes = model.sampled_slopes()
    for which, kinds, part in (
        ("outer", (2, 3), slice(None)),
        ("inner", (4, 5), slice(model.nx, None)),
    ):
        if getattr(problem, f"{which}_constraint") is not None:
            own = np.flatnonzero(np.isin(model.kind, kinds))[model.own[which]]
            check_rows(which, first[own], ~model.finite[own], bool(np.any(slopes[own][:, part])))
    return model


def _apart(model: Model, rows: np.ndarray) -> tuple[float, float]:
    """How far the start is beyond the rows of x_set and of y_set, unless float32 rounds it."""
    near = 1e-6 * (1 + float(np.max(np.abs(model.start))))
    out = []
    for which, below, zero in (("outer", 2, 3), ("inner", 4, 5)):
        own, kind = ~model.own[which], model.kind[np.isin(model.kind, (below, zero))]
        of_set = rows[np.isin(model.kind, (below, zero))][own]
        off = np.where(kind[own] == zero, np.abs(of_set), np.maximum(of_set, 0.0))
        most = float(np.max(np.nan_to_num(off, neginf=0.0), initial=0.0))
        out.append(most if most > near else 0.0)
    return out[0], out[1]


class _At(NamedTuple):
    """Something at a point."""

    point: Point


def _searched(model: Model, starts: Points, options: Options) -> Searched:
    history, tol = History(), float(np.asarray(options.tolerance))
    columns(_At(Point(*model.like)), options.observe)  # type: ignore
    search = Search(model, starts, _seed(options.key))
    with contextlib.ExitStack() as stack:
        kept = None
        if options.checkpoint is not None:
            kept = stack.enter_context(Kept(options, search, starts))
            history = kept.resumed()
        bar = stack.enter_context(Progress(len(search.rounds), ROUNDS, tol, options.progress))

        def told(index: int, round: Round) -> bool:
            row = _row(model, index, round, options.observe)
            history.put(row)
            bar.update(row)
            stops = options.stops(row)
            if kept is not None:
                kept.save(history, stops)
            return stops

        answer = search.run(told, options.steps)
    if answer.held:
        _polish(model, search, answer)
        answer.best = search.clipped(answer.best)
    facts, reply = _facts(model, answer.best.x[0], answer.best.y[0], None, answer)
    if answer.held and facts.eps > tol:
        for near, weights in search.finished(answer.best):
            point = search.clipped(near)
            x, y, known = point.x[0], point.y[0], float(point.value[0] / model.inner_unit)
            if look(model, x, y, known, answer.minima, weights).eps > tol:
                continue
            other, elsewhere = _facts(model, x, y, weights)
            if other.eps <= tol:
                answer.best, facts, reply = point, other, elsewhere
                break
    return _outcome(model, answer, facts, reply, history, tol)


def _polish(model: Model, search: Search, answer: Answer) -> None:
    """Replace the answer by the exact point nearby if the certificate of that one is better."""

    def seen(point: Found) -> Facts:
        value = float(point.value[0] / model.inner_unit)
        return look(model, point.x[0], point.y[0], value, answer.minima)

    best = answer.best
    facts = seen(best)
    weights = facts.multipliers[model.kept] * model.unit[1] / model.unit
    weights[1] = 1.0
    point, _ = search.polished(best, weights)
    close = np.abs(point.f - best.f) <= 1e-3 * np.maximum(1.0, np.abs(best.f))
    if close[0] and point.violation[0] <= best.violation[0] + 1e-9 and seen(point).eps < facts.eps:
        answer.best = point


def _seed(key: Array | None) -> int:
    """A seed for NumPy from a key."""
    if key is None:
        return 0
    data = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    return int(np.asarray(data).ravel()[-1]) % 2**31


def _facts(
    model: Model, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None,
    answer: Answer | None = None,
) -> tuple[Facts, Known]:  # fmt: skip
    """What the certificate knows of a point, by inner solves of its own, and the follower's answer.

    If a search has checked a point hardly apart from it, they start where its check ended.
    """
    search = Search(model, np.concatenate([x, y])[None], 1)
    if answer is not None and len(answer.around):
        Y, values = search.again(x, y, answer.around)
    else:
        Y, values = search.lookout(x, y)
    g = float(model.rows(np.concatenate([x, y])[None])[0, 1] * model.sharp[1])
    lowest = float(np.min(values, initial=np.inf))
    near = values <= max(g, lowest) + 1e-4 * max(1.0, abs(g))
    apart = np.linalg.norm(Y - y, axis=1) > 1e-3 * (1 + np.linalg.norm(y))
    value = lowest / model.inner_unit if np.isfinite(lowest) else np.nan
    facts = look(model, x, y, value, Y[near & apart], weights)
    return facts, _answered(search, x, y, Y, values)


def _row(model: Model, index: int, round: Round, observe: Callable | None) -> dict[str, np.ndarray]:
    """A row of history: the best point after a round."""
    row = dict.fromkeys(COLUMNS, np.float64(np.nan))
    row |= {"step": np.int32(index), "f_calls": np.int64(model.calls.values)}
    row |= {"g_calls": np.int64(model.calls.values), "products": np.int64(model.calls.products)}
    best = round.best
    if best is not None:
        row |= {"f": best.f[0] / model.unit[0], "g": best.g[0] / model.inner_unit}
        row |= {"h": best.gap[0], "inner_gap": best.gap[0], "feasibility": best.violation[0]}
    if observe is not None:
        z = np.split(model.start, [model.nx]) if best is None else (best.x[0], best.y[0])
        seen = observe(*model.point(*z))
        row |= {k: np.asarray(v) for k, v in seen.items()}
    return {k: np.asarray(v)[None] for k, v in row.items()}


def _outcome(
    model: Model, answer: Answer, facts: Facts, known: Known, history: History, tol: float
) -> Searched:
    certificate, best = facts.certificate, answer.best
    code, note = _verdict(model, answer, facts, tol)
    rows = history.rows
    for name in ("stationarity", "feasibility", "complementarity", "inner_gap", "eps"):
        rows[name][-1] = getattr(certificate, name)

    def solution(
        found: Found, i: int, code: RESULTS, certificate: Certificate, note: str
    ) -> Solution:
        x, y = model.point(found.x[i], found.y[i])
        f, g = model.all_rows(np.concatenate([found.x[i], found.y[i]])[None])[0][:2]
        multipliers = inner_multipliers(model, facts.multipliers) if certificate is own else None
        ended = Outcome(certificate.multiplier, certificate, np.int32(code), note)
        steps = len(rows["step"])
        return Solution(x, y, f, g, ended, rows, None, steps, inner_multipliers=multipliers)

    own = certificate
    nan = float("nan")
    blank = Facts(nan, nan, nan, nan, nan, nan, 0, 0, 0.0, facts.multipliers).certificate
    every = [
        solution(answer.lanes, i, RESULTS.settled, blank, "") for i in range(len(answer.lanes.f))
    ]
    index = int(best.lane[0])
    every[index] = solution(best, 0, code, certificate, note)
    return Searched(dataclasses.replace(every[index], answer=known), every, index)


def _verdict(model: Model, answer: Answer, facts: Facts, tol: float) -> tuple[RESULTS, str]:
    """The result and, if it is a failure, a sentence that says more."""
    if answer.empty and not answer.stopped:
        return RESULTS.infeasible, "no y was found that meets inner_constraint and y_set, at any x."
    if answer.endless:
        return RESULTS.unbounded, "g(x, .) falls without end in all inner problems that were tried."
    if answer.beyond is not None:
        value = answer.beyond.f[0] / model.unit[0]
        away = model.length * np.concatenate([answer.beyond.x[0], answer.beyond.y[0]])
        where = f"at a point of size {np.max(np.abs(away)):.1g}"
        return RESULTS.unbounded, f"f falls without end: it is {value:.3g} {where}."
    if facts.eps <= tol and answer.held:
        return RESULTS.success, ""
    if answer.stopped:
        return RESULTS.stopped, ""
    if answer.best.violation[0] > 1e-3:
        return RESULTS.infeasible, "no point was found that meets all constraints."
    return (RESULTS.max_steps if answer.cut_short else RESULTS.settled), ""


def inner_multipliers(model: Model, weights: np.ndarray) -> PyTree:
    """The multipliers of the inner constraint, shaped like what it returns."""
    if model.problem.inner_constraint is None:
        return None
    return shaped(model.problem, *model.like, *(weights[model.kind == k] for k in (4, 5)))
