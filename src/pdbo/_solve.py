"""The one verb: a compiled loop, chunk by chunk, with a certificate at every record."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._batches import reading
from ._certificate import MAX_SLACK, Certificate, measure, measure_double
from ._checks import (
    check_functions,
    check_point,
    is_number,
    kind,
    point_arrays,
    traced,
    whole_number,
)
from ._errors import RESULTS, ProblemError, SolveError
from ._mesh import agree, everywhere
from ._mesh import is_leader as writes
from ._minimize import minimize
from ._problem import Problem, check_problem, has_double, values
from ._progress import REFRESH, Pace, Progress
from ._solution import Solution, State, launch, round_off
from ._solver import Solver
from .checkpoint import CheckpointWriter as Keeper
from .checkpoint import digest
from .solvers._auto import AutoPDBO
from .solvers._streamed import streamed

STEPS = 10_000
SMALL = 10**6  # numbers of a problem, up to which AutoPDBO runs in double precision
DOUBLED = {np.dtype(t) for t in (np.float64, np.float32, np.int64)}  # Python's numbers among them
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
FAR = 100.0  # one this many times its size may be on its way
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
    checkpoint: Any = None,
    checkpoint_every: Any = 60.0,
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
        checkpoint: a folder, made if need be. Where it holds a checkpoint of this run, the run
            carries on from there, bit for bit, up to `steps` in all; where it is empty the run
            starts. Ctrl-C or SIGTERM then ends the run after the chunk it is in, with a checkpoint
            and KeyboardInterrupt or SystemExit(143); another Ctrl-C ends the process at once.
        checkpoint_every: the seconds between two checkpoints; 0 is one at every record.

    Under jit and vmap nothing is raised or shown and the certificate has the precision of the
    problem; elsewhere the run succeeds exactly where the certificate, recomputed in double
    precision at the point returned, is within the tolerance. `AutoPDBO`, whose multiplier would
    magnify the rounding of single precision, there runs in double on problems of up to a million
    numbers; x and y are returned in the precision of the start.
    """
    _check_numbers(steps, tol, every, checkpoint_every)
    check_problem(problem)
    options = (tol, every, key, throw, progress, observe, checkpoint, checkpoint_every)
    doubled = in_double(problem, x0, y0, solver, state)
    if doubled is None:
        return _solve(problem, x0, y0, solver, state, steps, None, *options)
    with jax.enable_x64(True):
        return _solve(*doubled, solver, state, steps, jnp.float32, *options)


def in_double(
    problem: Problem, x0: PyTree, y0: PyTree, solver: Solver | None, state: Any = None
) -> tuple[Problem, PyTree, PyTree] | None:
    """The problem and the start in double precision where a run is to have it, else None.

    That is a run of `AutoPDBO` on a small problem, in a session without 64-bit types; one that is
    carried on stays in its precision.
    """
    if isinstance(state, State):
        solver = state.solver
        x0, y0 = state.solver.output(state.inner)[:2]
    if not (solver is None or isinstance(solver, AutoPDBO)) or traced(problem, x0, y0, state):
        return None
    if problem.mesh is not None or problem.view.in_batches:
        return None
    if has_double():
        return None
    leaves = jax.tree.leaves((x0, y0))
    known = all(isinstance(leaf, float | int | np.ndarray | np.generic | Array) for leaf in leaves)
    if not leaves or not known:
        return None
    dtypes = {leaf.dtype if hasattr(leaf, "dtype") else np.dtype(type(leaf)) for leaf in leaves}
    if not dtypes <= ({np.dtype(np.float64)} if isinstance(state, State) else DOUBLED):
        return None
    if sum(np.size(leaf) for leaf in (*leaves, *jax.tree.leaves(problem.data))) > SMALL:
        return None
    with jax.enable_x64(True):
        double = problem.doubled()
        point = trees.astype((x0, y0), jnp.float64)
        try:
            x, y = point_arrays(*point)
            check_functions(double, x, y)
            if state is None:  # a start inside its set but for rounding is inside
                near_x, near_y = trees.astype((x, y), jnp.float32)
                x = double.x_set.project(x) if problem.x_set.contains(near_x) else x
                y = double.y_set.project(y) if problem.y_set.contains(near_y) else y
        except Exception:  # they insist on a precision, or are wrong: for the run to say
            return None
    return (double, None, None) if isinstance(state, State) else (double, x, y)


def _solve(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    solver: Solver | None,
    state: State | None,
    steps: int | None,
    rounded: Any,
    tol: Any,
    every: int,
    key: Array | None,
    throw: bool,
    progress: bool,
    observe: Any,
    checkpoint: Any,
    checkpoint_every: Any,
) -> Solution:
    """The run; the point it returns is rounded to the precision given, if any."""
    try:
        with reading(problem):
            run = _begin(problem, x0, y0, solver, state, key)
        columns = _check_observe(run, observe)
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
        if checkpoint is not None:
            raise ProblemError("checkpoint needs values: it cannot be used under jit or vmap.")
        return _solve_traced(problem, run, budget, tol, every, state is None, observe)
    with contextlib.ExitStack() as stack:
        stack.enter_context(reading(problem))
        keeper = None
        if checkpoint is not None:
            start = digest(state) if state is not None else digest(*point_arrays(x0, y0), key)
            keeper = Keeper(checkpoint, float(checkpoint_every), problem, start, columns)
            stack.enter_context(keeper)
        options = (budget, tol, every, state is None, observe, progress, keeper, rounded)
        solution = round_off(_solve_host(problem, run, *options), rounded)
    if throw and solution.result not in (RESULTS.success, RESULTS.max_steps, RESULTS.settled):
        raise SolveError(solution.message, solution)
    return solution


def _check_numbers(steps: Any, tol: Any, every: Any, seconds: Any) -> None:
    for name, value in (("steps", 1 if steps is None else steps), ("every", every)):
        whole_number(name, value)
        if value > _MOST:
            raise ProblemError(f"{name} must be at most {_MOST:,}, got {value:,}.")
    for name, value in (("tol", tol), ("checkpoint_every", seconds)):
        if not traced(value) and not (is_number(value) and value >= 0):
            raise ProblemError(f"{name} must be a number >= 0, got {value!r}.")


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
    problem.view.check(problem.f, problem.g, x, y)
    key = jax.random.key(0) if key is None else key
    return (launch if traced(problem, x, y, solver, key) else _launch_jit)(
        problem, x, y, solver, key
    )


def _check_observe(run: State, observe: Any) -> set[str]:
    """The columns of the history; a ProblemError where `observe` returns no dict of new ones."""
    if observe is None:
        return set(COLUMNS)
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
    return {*COLUMNS, *seen}


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
        problem.view.effort_at_record(every),
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
    healthy = trees.finite(run.inner) & jnp.isfinite(row["f"]) & jnp.isfinite(row["g"])
    healthy = healthy & ~jnp.isnan(row["stationarity"])  # a gradient that is not finite
    code = jnp.where(run.solver.settled(run.inner), RESULTS.settled, _RUNNING)
    code = jnp.where(row["eps"] <= tol, RESULTS.success, code)
    code = _runaway(run, code)
    return jnp.where(healthy, code, RESULTS.nonfinite).astype(jnp.int32)


def _runaway(run: State, code: Any) -> Array:
    """The code of a finite state that has run away, else the one given."""
    point = run.solver.output(run.inner)
    if point.multiplier is not None:
        code = jnp.where(point.multiplier > RUNAWAY, RESULTS.multiplier_diverged, code)
    far = trees.max_abs((point.x, point.y)) > RUNAWAY * run.scale
    return jnp.where(far, RESULTS.diverged, code)


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


PLACES = ("the solver's state", "f", "the gradient of f", "g", "the gradient of g")


def _replay(problem: Problem, run: State, count: Any) -> tuple[State, Array, Array]:
    """The last finite state within `count` steps, found again one step at a time.

    With it, which of `PLACES` are not finite one step later, and its code.
    """

    def faults(inner: Any) -> Array:
        point = run.solver.output(inner)
        f, grad_f = jax.value_and_grad(problem.outer, (0, 1))(point.x, point.y)
        g, grad_g = jax.value_and_grad(problem.inner, (0, 1))(point.x, point.y)
        return ~jnp.stack([trees.finite(part) for part in (inner, f, grad_f, g, grad_g)])

    def going(s: tuple[Any, Any, Array, Array]) -> Array:
        _, _, found, taken = s
        return (taken <= count) & ~jnp.any(found)

    def body(s: tuple[Any, Any, Array, Array]) -> tuple[Any, Any, Array, Array]:
        _, inner, _, taken = s
        after = run.solver.step(problem, inner)
        return inner, after, faults(after), taken + 1

    # one step beyond the state returned, always, so that the step is compiled once
    start = (run.inner, run.inner, jnp.zeros(len(PLACES), bool), jnp.zeros((), jnp.int32))
    inner, _, found, taken = lax.while_loop(going, body, start)
    run = State(run.solver, inner, run.step + taken - 1, run.scale)
    return run, found, _runaway(run, RESULTS.nonfinite).astype(jnp.int32)


_launch_jit = eqx.filter_jit(launch)
_advance_jit = eqx.filter_jit(_advance)
_replay_jit = eqx.filter_jit(_replay)


def _solve_traced(
    problem: Problem, run: State, budget: int, tol: Any, every: int, first: bool, observe: Any
) -> Solution:
    """The whole run as one traceable expression, for jit and vmap."""
    rows = -(-budget // every) + 2
    until = run.step + budget
    start = run.solver.output(run.inner)
    empty = ~(problem.x_set.contains(start.x) & problem.y_set.contains(start.y))
    chunk = _advance(problem, run, until, tol, every, first, rows, rows, observe)
    failed = chunk.code == RESULTS.nonfinite
    run = State(run.solver, chunk.inner, chunk.step, run.scale)
    run, _, failure = _replay(problem, run, jnp.where(failed, every, 0))
    point = run.solver.output(run.inner)
    slack = MAX_SLACK if point.slack is None else jnp.maximum(point.slack, MAX_SLACK)
    certificate = measure(
        problem, point.x, point.y, point.multiplier, None, slack, problem.view.effort()
    )
    f, g = problem.outer(point.x, point.y), problem.inner(point.x, point.y)
    settled = chunk.code == RESULTS.settled
    sound = settled | (chunk.code == _RUNNING) | (chunk.code == RESULTS.success)
    ended = jnp.where(settled, RESULTS.settled, RESULTS.max_steps)
    ended = jnp.where(_bottomless(certificate, g), RESULTS.diverged, ended)
    verdict = jnp.where(certificate.eps <= tol, RESULTS.success, ended)
    code = jnp.where(sound, verdict, jnp.where(failed, failure, chunk.code))
    return Solution(
        point.x,
        point.y,
        certificate.multiplier if point.multiplier is None else point.multiplier,
        f,
        g,
        certificate,
        jnp.where(empty & first, RESULTS.bad_problem, code).astype(jnp.int32),
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
    keeper: Keeper | None,
    rounded: Any,
) -> Solution:
    """The run chunk by chunk; the host looks on in between."""
    tol = float(tol)
    until = int(run.step) + budget
    history: list[dict[str, np.ndarray]] = []
    inner_tol = tol
    saved = None if keeper is None else keeper.resume(run)
    if saved is not None:
        solution, notes = saved
        assert solution.state is not None
        run, history, first = solution.state, [solution.history], False
        inner_tol = notes["inner_tol"] if notes.get("tol") == tol else tol
        ended = _ended(problem, solution, tol, until, rounded)
        if ended is not None:
            return ended
    watched = REFRESH if progress or keeper is not None else None
    pace = Pace(watched if keeper is None else min(REFRESH, keeper.seconds))
    leads = writes(problem.mesh)
    with Progress(int(run.step), until, tol, enabled=progress and leads) as bar:
        while True:
            (records,) = agree(problem.mesh, pace.records(_ROWS) if leads else 0)
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
            rows = {k: np.asarray(v)[:count] for k, v in chunk.rows.items()}
            history.append(rows | _exact_calls(run, rows, history))
            run, first = State(run.solver, chunk.inner, chunk.step, run.scale), False
            bar.update(history[-1])
            faults = None
            if code == RESULTS.nonfinite:
                run, faults, failure = _replay_jit(problem, run, jnp.asarray(every, jnp.int32))
                code = int(failure)
            finished = code not in (_RUNNING, RESULTS.success) or int(run.step) >= until
            if finished or code == RESULTS.success:
                solution = _conclude(problem, run, code, tol, history, rounded, faults)
                if finished or solution.ok:
                    if keeper is not None:
                        keeper.due()
                        keeper.save(solution, {})
                        keeper.leave()
                    return solution
                inner_tol /= 2  # met in working precision only: ask for more
            if keeper is not None and keeper.due():
                keeper.save(_interim(run, history), {"tol": tol, "inner_tol": inner_tol})
                keeper.leave()


def _exact_calls(
    run: State, rows: dict[str, np.ndarray], history: list[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The oracle calls of new rows in 64 bits: compiled code counts them modulo 2^32."""

    def wide(leaf: Any) -> Any:
        known = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.integer)
        return np.asarray(leaf, np.int64) if known else leaf

    names = ("f_calls", "g_calls", "products")
    before = [len(chunk["step"]) > 0 for chunk in history]
    if any(before):
        last = history[len(before) - 1 - before[::-1].index(True)]
        base = [last[name][-1] for name in names]
    else:
        base = run.solver.calls(jax.tree.map(wide, run.inner))
    exact = {}
    for name, start in zip(names, base, strict=True):
        start = np.int64(start)
        counts = np.concatenate([[start], rows[name].astype(np.int64)])
        exact[name] = start + np.cumsum(np.diff(counts) % 2**32)
    return exact


def _interim(run: State, history: list[dict[str, np.ndarray]]) -> Solution:
    """A run that is going on, as a solution without a certificate."""
    point = run.solver.output(run.inner)
    rows = _merged(history)
    multiplier = rows["multiplier"][-1] if point.multiplier is None else point.multiplier
    code, step = np.int32(RESULTS.interrupted), int(run.step)
    f, g = rows["f"][-1], rows["g"][-1]
    return Solution(point.x, point.y, multiplier, f, g, None, code, rows, run, step)


def _merged(history: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {k: np.concatenate([rows[k] for rows in history]) for k in history[0]}


def _ended(
    problem: Problem, saved: Solution, tol: float, until: int, rounded: Any
) -> Solution | None:
    """The outcome of a run that had ended when it was saved; None where it is to carry on."""
    if saved.result in (RESULTS.diverged, RESULTS.multiplier_diverged):
        return saved
    if saved.result is RESULTS.nonfinite:  # f or g may have been put right
        return saved if saved.steps >= until else None
    if saved.certificate is None:
        over = saved.steps >= until
        if not over:
            return None
        return _conclude(problem, saved.state, _RUNNING, tol, [saved.history], rounded)
    met = bool(saved.certificate.eps <= tol)
    if not met and saved.result is not RESULTS.settled and saved.steps < until:
        return None
    ended = RESULTS.settled if saved.result is RESULTS.settled else RESULTS.max_steps
    return dataclasses.replace(saved, code=np.int32(RESULTS.success if met else ended))


def _conclude(
    problem: Problem,
    run: State | None,
    code: int,
    tol: float,
    history: list[dict[str, np.ndarray]],
    rounded: Any,
    faults: Any = None,
) -> Solution:
    """The solution at a state, its certificate recomputed in double precision."""
    assert run is not None
    point = run.solver.output(run.inner)
    max_slack = max(MAX_SLACK, 0.0 if point.slack is None else float(point.slack))
    x, y = point[:2] if rounded is None else trees.astype(point[:2], rounded)
    certificate = measure_double(
        problem, x, y, point.multiplier, None, max_slack, problem.view.effort()
    )
    merged = _merged(history)
    if faults is None:
        f, g = merged["f"][-1], merged["g"][-1]
    else:  # the point found again lies between two records
        f, g = values(problem, point.x, point.y)
    if code in (_RUNNING, RESULTS.success, RESULTS.settled):
        ended = RESULTS.settled if code == RESULTS.settled else RESULTS.max_steps
        code = RESULTS.success if certificate.eps <= tol else ended
    note = ""
    if code == RESULTS.nonfinite:
        where = [place for place, bad in zip(PLACES, np.asarray(faults), strict=True) if bad]
        note = f"{where[0]} is not finite." if where else ""
    if code not in (RESULTS.success, RESULTS.multiplier_diverged):
        bottom = _bottom(problem, run, certificate, f, g, merged)
        code, note = (RESULTS.diverged, bottom) if bottom else (code, note)
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
        note=note,
    )


def _bottomless(certificate: Certificate, g: Any) -> Any:
    """Whether the certificate's own inner solve fell without end."""
    return certificate.inner_gap > RUNAWAY * (1 + abs(g))


def _bottom(
    problem: Problem,
    run: State,
    certificate: Certificate,
    f: Any,
    g: Any,
    history: dict[str, np.ndarray],
) -> str:
    """The sentence on which of f and g has no minimum; none where neither is seen to lack one.

    For g that is an inner solve that falls without end. For f it is a ray: a run that went far may
    still be on its way to a minimum, but not where f falls by as much again at the inner solution
    a thousand and a million times as far away.
    """
    if _bottomless(certificate, float(g)):
        return "g(x, .) has no minimum at the x returned."
    point = run.solver.output(run.inner)
    far = float(trees.max_abs((point.x, point.y))) > FAR * float(run.scale)
    if not far or not len(history["f"]):
        return ""
    gained = max(float(history["f"][0] - f), 0.0)
    before = float(f)
    for factor in (1e3, 1e6):
        x, found, residual = _along(problem, point.x, point.y, jnp.asarray(factor))
        now = float(found)
        if not residual <= 1e-3 * float(1 + trees.max_abs(x)):
            return ""
        if not before - now >= 0.1 * gained > 0:
            return ""
        before = now
        if now == -np.inf:
            break
    return (
        f"f falls without end: at inner solutions {factor:.0e} times as far away it is {now:.3g}."
    )


@eqx.filter_jit
def _along(problem: Problem, x: PyTree, y: PyTree, factor: Any) -> tuple[PyTree, Array, Array]:
    """The point so many times as far away, f at the inner solution there, and its residual."""
    x = problem.x_set.project(trees.scale(factor, x))
    start = trees.scale(factor, y)
    inner = minimize(lambda v: problem.inner(x, v), problem.y_set, start, problem.view.effort())
    return x, problem.outer(x, inner.point), inner.residual
