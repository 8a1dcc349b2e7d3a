"""The one verb: a compiled loop, chunk by chunk, with a certificate at every record."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._batches import check_means, reading
from ._certificate import MAX_SLACK, effort, measure, measure_double
from ._errors import RESULTS, ProblemError, SolveError
from ._mesh import agree, everywhere, writes
from ._problem import (
    Problem,
    check_functions,
    check_point,
    check_problem,
    is_number,
    kind,
    traced,
    whole_number,
)
from ._progress import Progress
from ._solution import Solution, State
from .solvers._auto import AutoPDBO
from .solvers._base import Solver
from .solvers._streamed import streamed

STEPS = 10_000
COLUMNS = [
    "step",
    "f",
    "g",
    "h",
    "multiplier",
    "stationarity",
    "feasibility",
    "complementarity",
    "inner_gap",
    "eps",
    "f_calls",
    "g_calls",
    "products",
]
RUNAWAY = 1e10  # an iterate this many times the size of its start has run away
_ROWS = 128  # records a compiled chunk has room for
_RUNNING = -1
_MOST = 2**31 - 1


def solve(
    problem: Problem,
    x0: PyTree = None,
    y0: PyTree = None,
    solver: Solver | None = None,
    *,
    steps: int | None = None,
    tol: Any = 1e-4,
    every: int = 100,
    state: State | None = None,
    key: Array | None = None,
    throw: bool = True,
    progress: bool = False,
    observe: Callable[[PyTree, PyTree], dict[str, Any]] | None = None,
) -> Solution:
    """Solve a bilevel problem.

    Arguments:
        problem: the problem.
        x0, y0: the start. Outside its set it is projected, with a warning.
        solver: the method; None is `AutoPDBO()`, which has nothing to tune.
        steps: the most steps this call takes: 10,000 unless the solver sets its own budget.
            Reaching it is no failure.
        tol: the run ends when the certificate's eps is at most this.
        every: a certificate is computed and a row of history recorded every so many steps.
        state: the `state` of an earlier solution, to carry on from in place of a start.
        key: a PRNG key for solvers that draw random numbers.
        throw: whether failures raise an exception that carries the Solution, or return their code.
        progress: whether a live line on standard error shows how the run is doing.
        observe: `observe(x, y)` returns a dict of arrays to record in the history too.

    Under jit and vmap nothing is raised or shown and the certificate has the precision of the
    problem; elsewhere the run succeeds exactly where the certificate, recomputed in double
    precision at the point returned, is within the tolerance.
    """
    _check_numbers(steps, tol, every)
    check_problem(problem)
    try:
        with reading(problem):
            run = _begin(problem, x0, y0, solver, state, key)
        _check_observe(run, observe)
        own = run.solver.budget
        if own is not None and not traced(run.step) and int(run.step) >= own:
            raise ProblemError(
                f"the solver's own budget of {own} steps is used up: give it more rounds to go on."
            )
    except ProblemError as error:
        error.solution = _no_solution(x0, y0, str(error))
        if throw:
            raise
        return error.solution
    budget = (STEPS if own is None else own) if steps is None else int(steps)
    if own is not None and not traced(run.step):
        budget = min(budget, own - int(run.step))

    if traced(problem, run, tol):
        return _solve_traced(problem, run, budget, tol, every, state is None, observe)
    with reading(problem):
        solution = _solve_host(problem, run, budget, tol, every, state is None, observe, progress)
    if throw and solution.result not in (RESULTS.success, RESULTS.max_steps, RESULTS.settled):
        raise SolveError(solution.message, solution)
    return solution


def _check_numbers(steps: Any, tol: Any, every: Any) -> None:
    for name, value in (("steps", 1 if steps is None else steps), ("every", every)):
        whole_number(name, value)
        if value > _MOST:
            raise ProblemError(f"{name} must be at most {_MOST:,}, got {value:,}.")
    if not traced(tol) and not (is_number(tol) and tol >= 0):
        raise ProblemError(f"tol must be a number >= 0, got {tol!r}.")


def _begin(
    problem: Problem, x0: PyTree, y0: PyTree, solver: Solver | None, state: Any, key: Array | None
) -> State:
    """The state to start from: the one given, or the solver's at the start given."""
    if solver is not None and not isinstance(solver, Solver):
        raise ProblemError(f"solver must be a pdbo solver, got {kind(solver)}.")
    if state is not None:
        if not isinstance(state, State):
            raise ProblemError(f"state must be a solution.state, got {type(state).__name__}.")
        if x0 is not None or y0 is not None:
            raise ProblemError(
                "give either a start (x0, y0) or a state to carry on from, not both."
            )
        solver = streamed(problem, state.solver if solver is None else solver)
        if solver.name != state.solver.name:
            raise ProblemError(f"the state belongs to {state.solver.name}, not to {solver.name}.")
        state = eqx.tree_at(lambda s: s.solver, state, solver)
        state = state if traced(state) else everywhere(problem.mesh, state)
        point = state.solver.output(state.inner)
        problem.x_set.check(point.x, "x_set")
        problem.y_set.check(point.y, "y_set")
        check_functions(problem, point.x, point.y)
        return state
    if x0 is None or y0 is None:
        raise ProblemError("x0 and y0 are needed: a start for x and one for y.")
    solver = streamed(problem, AutoPDBO() if solver is None else solver)
    x, y = check_point(problem, x0, y0)
    check_means(problem, x, y)
    key = jax.random.key(0) if key is None else key
    return (_launch if traced(problem, x, y, solver, key) else _launch_jit)(
        problem, x, y, solver, key
    )


def _launch(problem: Problem, x: PyTree, y: PyTree, solver: Solver, key: Array) -> State:
    scale = 1 + trees.max_abs((x, y))
    return State(solver, solver.init(problem, x, y, key), jnp.zeros((), jnp.int32), scale)


def _check_observe(run: State, observe: Any) -> None:
    """Raise a ProblemError where `observe` does not return a dict of arrays for new columns."""
    if observe is None:
        return
    point = run.solver.output(run.inner)
    try:
        seen = eqx.filter_eval_shape(observe, point.x, point.y)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ProblemError(f"observe(x, y) cannot be evaluated: {first}") from error
    if not isinstance(seen, dict) or not all(hasattr(v, "shape") for v in seen.values()):
        raise ProblemError("observe(x, y) must return a dict of arrays.")
    taken = sorted(set(seen) & set(COLUMNS))
    if taken:
        raise ProblemError(f"observe(x, y) returns {taken[0]!r}, which the history has already.")


def _no_solution(x0: PyTree, y0: PyTree, why: str) -> Solution:
    nan = float("nan")
    code = np.int32(RESULTS.bad_problem)
    return Solution(x0, y0, nan, nan, nan, None, code, {}, None, 0, note=why)


class _Chunk(NamedTuple):
    """The carry of the compiled loop: where the run stands and the rows written so far."""

    inner: Any
    step: Array
    code: Array
    row: Array
    rows: dict[str, Array]


def _record(problem: Problem, run: State, every: Any, observe: Any) -> dict[str, Array]:
    """One row of history, with the certificate of the current point."""
    point = run.solver.output(run.inner)
    f, g = problem.outer(point.x, point.y), problem.inner(point.x, point.y)
    slack = jnp.zeros_like(g) if point.slack is None else jnp.asarray(point.slack, g.dtype)
    certificate = measure(
        problem,
        point.x,
        point.y,
        point.multiplier,
        None,
        jnp.maximum(slack, MAX_SLACK),
        effort(problem, every),
        neighbour=point.multiplier is None,
    )
    calls = run.solver.calls(run.inner)
    multiplier = certificate.multiplier if point.multiplier is None else point.multiplier
    row = {
        "step": run.step,
        "f": f,
        "g": g,
        "h": certificate.inner_gap - slack,
        "multiplier": multiplier,
        "stationarity": certificate.stationarity,
        "feasibility": certificate.feasibility,
        "complementarity": certificate.complementarity,
        "inner_gap": certificate.inner_gap,
        "eps": certificate.eps,
        "f_calls": jnp.asarray(calls.f),
        "g_calls": jnp.asarray(calls.g),
        "products": jnp.asarray(calls.products),
    }
    return row | (observe(point.x, point.y) if observe else {})


def _judge(run: State, row: dict[str, Array], tol: Any) -> Array:
    """The code of a recorded state."""
    point = run.solver.output(run.inner)
    size = trees.max_abs((point.x, point.y))
    healthy = trees.finite(run.inner) & jnp.isfinite(row["f"]) & jnp.isfinite(row["g"])
    healthy = healthy & ~jnp.isnan(row["stationarity"])  # a gradient that is not finite
    code = jnp.where(run.solver.settled(run.inner), RESULTS.settled, _RUNNING)
    code = jnp.where(row["eps"] <= tol, RESULTS.success, code)
    if point.multiplier is not None:
        code = jnp.where(point.multiplier > RUNAWAY, RESULTS.multiplier_diverged, code)
    code = jnp.where(size > RUNAWAY * run.scale, RESULTS.diverged, code)
    return jnp.where(healthy, code, RESULTS.nonfinite).astype(jnp.int32)


def _advance(
    problem: Problem,
    run: State,
    until: Any,
    tol: Any,
    every: Any,
    first: Any,
    most: Any,
    rows: int,
    observe: Any,
) -> _Chunk:
    """Steps and records until a verdict, the step `until`, or `most` records."""
    shapes = eqx.filter_eval_shape(_record, problem, run, every, observe)

    def blank(row: Any) -> Array:
        fill = jnp.nan if jnp.issubdtype(row.dtype, jnp.inexact) else -1
        return jnp.full((rows, *row.shape), fill, row.dtype)

    chunk = _Chunk(
        run.inner,
        run.step,
        jnp.asarray(_RUNNING, jnp.int32),
        jnp.zeros((), jnp.int32),
        jax.tree.map(blank, shapes),
    )

    def record(chunk: _Chunk, inner: Any, step: Array) -> _Chunk:
        now = State(run.solver, inner, step, run.scale)
        row = _record(problem, now, every, observe)
        code = _judge(now, row, tol)
        written = jax.tree.map(lambda b, v: b.at[chunk.row].set(v), chunk.rows, row)
        kept = code != RESULTS.nonfinite  # else back to the last good record, to be replayed
        inner, step, rows = trees.where(
            kept, (inner, step, written), (chunk.inner, chunk.step, chunk.rows)
        )
        return _Chunk(inner, step, code, chunk.row + kept.astype(jnp.int32), rows)

    def going(chunk: _Chunk) -> Array:
        return (chunk.code == _RUNNING) & (chunk.row < most) & (chunk.step < until)

    def body(chunk: _Chunk) -> _Chunk:
        count = jnp.minimum(every - chunk.step % every, until - chunk.step)
        count = jnp.where(first & (chunk.row == 0), 0, count)  # the start is recorded too
        inner = lax.fori_loop(0, count, lambda _, s: run.solver.step(problem, s), chunk.inner)
        return record(chunk, inner, chunk.step + count)

    return lax.while_loop(going, body, chunk)


def _replay(problem: Problem, run: State, count: Any) -> State:
    """The last finite state within `count` steps, found again one step at a time."""

    def healthy(inner: Any) -> Array:
        point = run.solver.output(inner)
        outer = jax.value_and_grad(problem.outer, (0, 1))(point.x, point.y)
        return trees.finite(
            (inner, outer, jax.value_and_grad(problem.inner, (0, 1))(point.x, point.y))
        )

    def going(s: tuple[Any, Any, Array]) -> Array:
        _, after, taken = s
        return (taken < count) & healthy(after)

    def body(s: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
        _, after, taken = s
        return after, run.solver.step(problem, after), taken + 1

    after = run.solver.step(problem, run.inner)
    inner, _, taken = lax.while_loop(going, body, (run.inner, after, jnp.zeros((), jnp.int32)))
    return State(run.solver, inner, run.step + taken, run.scale)


_launch_jit = eqx.filter_jit(_launch)
_advance_jit = eqx.filter_jit(_advance)
_replay_jit = eqx.filter_jit(_replay)


def _solve_traced(
    problem: Problem, run: State, budget: int, tol: Any, every: int, first: bool, observe: Any
) -> Solution:
    """The whole run as one traceable expression, for jit and vmap."""
    rows = -(-budget // every) + 2
    until = run.step + budget
    chunk = _advance(problem, run, until, tol, every, first, rows, rows, observe)
    failed = chunk.code == RESULTS.nonfinite
    run = State(run.solver, chunk.inner, chunk.step, run.scale)
    run = _replay(problem, run, jnp.where(failed, every, 0))
    point = run.solver.output(run.inner)
    slack = MAX_SLACK if point.slack is None else jnp.maximum(point.slack, MAX_SLACK)
    certificate = measure(problem, point.x, point.y, point.multiplier, None, slack, effort(problem))
    settled = chunk.code == RESULTS.settled
    sound = settled | (chunk.code == _RUNNING) | (chunk.code == RESULTS.success)
    ended = jnp.where(settled, RESULTS.settled, RESULTS.max_steps)
    verdict = jnp.where(certificate.eps <= tol, RESULTS.success, ended)
    return Solution(
        point.x,
        point.y,
        certificate.multiplier if point.multiplier is None else point.multiplier,
        problem.outer(point.x, point.y),
        problem.inner(point.x, point.y),
        certificate,
        jnp.where(sound, verdict, chunk.code).astype(jnp.int32),
        chunk.rows,
        run,
        run.step,
    )


def _solve_host(
    problem: Problem,
    run: State,
    budget: int,
    tol: Any,
    every: int,
    first: bool,
    observe: Any,
    progress: bool,
) -> Solution:
    """The run chunk by chunk; the host looks on in between."""
    tol = float(tol)
    start, until = int(run.step), int(run.step) + budget
    history: list[dict[str, np.ndarray]] = []
    inner_tol = tol
    leads = writes(problem.mesh)
    with Progress(start, until, tol, enabled=progress and leads) as bar:
        while True:
            (records,) = agree(problem.mesh, bar.records(_ROWS) if leads else 0)
            chunk = _advance_jit(
                problem,
                run,
                jnp.asarray(until, jnp.int32),
                jnp.asarray(inner_tol),
                jnp.asarray(every, jnp.int32),
                jnp.asarray(first),
                jnp.asarray(records, jnp.int32),
                _ROWS,
                observe,
            )
            code, count = int(chunk.code), int(chunk.row)  # blocks until the chunk is done
            run, first = State(run.solver, chunk.inner, chunk.step, run.scale), False
            history.append({k: np.asarray(v)[:count] for k, v in chunk.rows.items()})
            bar.update(history[-1])
            if code == RESULTS.nonfinite:
                run = _replay_jit(problem, run, jnp.asarray(every, jnp.int32))
            finished = code not in (_RUNNING, RESULTS.success) or int(run.step) >= until
            if not (finished or code == RESULTS.success):
                continue
            solution = _conclude(problem, run, code, tol, history)
            if finished or solution.ok:
                return solution
            inner_tol /= 2  # met in working precision only: ask for more


def _conclude(
    problem: Problem, run: State, code: int, tol: float, history: list[dict[str, np.ndarray]]
) -> Solution:
    """The solution at a state, its certificate recomputed in double precision."""
    point = run.solver.output(run.inner)
    max_slack = max(MAX_SLACK, 0.0 if point.slack is None else float(point.slack))
    certificate = measure_double(
        problem, point.x, point.y, point.multiplier, None, max_slack, effort(problem)
    )
    if code in (_RUNNING, RESULTS.success, RESULTS.settled):
        ended = RESULTS.settled if code == RESULTS.settled else RESULTS.max_steps
        code = RESULTS.success if certificate.eps <= tol else ended
    merged = {k: np.concatenate([rows[k] for rows in history]) for k in history[0]}
    if code == RESULTS.nonfinite:  # the point found again lies between two records
        f, g = _values(problem, point.x, point.y)
    else:
        f, g = merged["f"][-1], merged["g"][-1]
    return Solution(
        point.x,
        point.y,
        certificate.multiplier if point.multiplier is None else point.multiplier,
        f,
        g,
        certificate,
        np.int32(code),
        merged,
        run,
        int(run.step),
    )


@eqx.filter_jit
def _values(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    return problem.outer(x, y), problem.inner(x, y)
