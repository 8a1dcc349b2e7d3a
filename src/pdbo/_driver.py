"""The one loop over a solver's steps: compiled in chunks, with the host looking on in between."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, PyTree

from . import _trees as trees
from ._checks import check_functions, check_point, kind, point_arrays, report_point, traced
from ._errors import RESULTS, ProblemError
from ._mesh import agree, is_leader
from ._precision import Start
from ._problem import Problem, refuse_constraints
from ._programs import Program
from ._progress import Pace
from ._solution import State, launch
from ._solver import Solver
from ._verdict import RUNNING, runaway
from .solvers._batch_pdbo import BatchPDBO
from .solvers._implicit import path_of
from .solvers._streamed import streamed
from .solvers.auto import AutoPDBO

_MANY = 2**31 - 1
ROWS = 128  # records that one chunk on the host has room for

Row = dict[str, Array]


class Recorder(eqx.Module):
    """What a run writes down at a record, and whether that ends it."""

    def record(self, problem: Problem, run: State) -> tuple[Row, Array]:
        """A row of arrays, and RUNNING or the code the run ends with."""
        return {}, jnp.asarray(RUNNING, jnp.int32)


class Chunk(NamedTuple):
    """What the compiled loop returns.

    Attributes:
        run: the run at its last record whose numbers were finite.
        code: RUNNING, or the code it ended with.
        written: how many rows were written.
        rows: the rows, with room for more; unused ones hold NaN or -1.
        last: the last row computed, also if its numbers were not finite.
    """

    run: State
    code: Int[Array, ""]
    written: Int[Array, ""]
    rows: Row
    last: Row


def advance(
    problem: Problem,
    run: State,
    recorder: Recorder,
    until: ArrayLike,
    every: int | Int[Array, "*marks"],
    first: bool | Bool[Array, ""] = False,
    most: ArrayLike | None = None,
    rows: int = 1,
) -> Chunk:
    """Steps and records until a verdict, the step `until` or `most` records; may be traced.

    Arguments:
        every: how many steps lie between two records, or an increasing array of the steps that
            are recorded.
        first: whether the start is recorded too.
        most: the most records made, `rows` unless given.
        rows: the room for them.
    """
    most = rows if most is None else most
    shapes = eqx.filter_eval_shape(recorder.record, problem, run)[0]
    solver, scale, point = run.solver, run.scale, run.point

    def placed(state: PyTree) -> PyTree:
        return problem.placed(state, point.x, point.y) if problem.splits_point else state

    def blank(row: jax.ShapeDtypeStruct, *leading: int) -> Array:
        fill = jnp.nan if jnp.issubdtype(row.dtype, jnp.inexact) else -1
        return jnp.full((*leading, *row.shape), fill, row.dtype)

    def going(s: tuple) -> Bool[Array, ""]:
        _, step, code, count, *_ = s
        return (code == RUNNING) & (count < most) & (step < until)

    def body(s: tuple) -> tuple:
        state, step, _, count, written, _ = s
        ahead = jnp.minimum(_to_next(every, step), until - step)
        ahead = jnp.where(first & (count == 0), 0, ahead)
        moved = _walked(problem, solver, state, ahead, placed)
        row, code = recorder.record(problem, State(solver, moved, step + ahead, scale))
        kept = code != RESULTS.nonfinite  # else the run stays at the last good record
        after = jax.tree.map(lambda buffer, value: buffer.at[count].set(value), written, row)
        state, step, written = trees.where(
            kept, (moved, step + ahead, after), (state, step, written)
        )
        return state, step, code, count + kept.astype(jnp.int32), written, row

    none = jnp.zeros((), jnp.int32)
    buffers = jax.tree.map(lambda row: blank(row, rows), shapes)
    running = jnp.asarray(RUNNING, jnp.int32)
    start = (run.solver_state, run.step, running, none, buffers, jax.tree.map(blank, shapes))
    state, step, code, count, written, last = lax.while_loop(going, body, start)
    return Chunk(State(solver, state, step, scale), code, count, written, last)


def _walked(
    problem: Problem,
    solver: Solver,
    state: PyTree,
    count: ArrayLike,
    placed: Callable[[PyTree], PyTree],
) -> PyTree:
    """The state so many steps later.

    Where steps come in rounds, a loop of its own takes those of one round: what they do not change
    is not copied.
    """
    if not solver.stages:
        return lax.fori_loop(0, count, lambda _, s: placed(solver.step(problem, s)), state)

    def stretch(kind: int) -> Callable[[tuple], tuple]:
        def on(c: tuple) -> Bool[Array, ""]:
            return (c[0] < count) & ~solver.due(c[1])

        def once(c: tuple) -> tuple:
            return c[0] + 1, placed(solver.walk(problem, c[1], kind))

        return lambda c: lax.while_loop(on, once, c)

    def round_(c: tuple) -> tuple:
        done, state = lax.switch(solver.stage(c[1]), [stretch(k) for k in range(solver.stages)], c)
        turned = lax.cond(
            solver.due(state), lambda s: placed(solver.turn(problem, s)), lambda s: s, state
        )
        return done, turned

    start = (jnp.zeros((), jnp.int32), state)
    return lax.while_loop(lambda c: c[0] < count, round_, start)[1]


def _to_next(every: int | Int[Array, "*marks"], step: Int[Array, ""]) -> Int[Array, ""]:
    """How many steps to go to the next record."""
    if not isinstance(every, Array) or every.ndim == 0:
        return every - step % every
    place = jnp.searchsorted(every, step, side="right")
    return every[jnp.minimum(place, len(every) - 1)] - step


advance_jit = Program(advance)


def take_steps(problem: Problem, run: State, count: Int[Array, ""]) -> State:
    """The run so many steps later, with nothing recorded."""
    recorder = Recorder()
    return advance(problem, run, recorder, run.step + count, _MANY, most=_MANY).run


take_steps_jit = Program(take_steps)


def chunks(
    problem: Problem,
    run: State,
    recorder: Recorder,
    until: int,
    every: int | Int[Array, ""],
    first: bool,
    pace: Pace,
) -> Iterator[Chunk]:
    """A run on the host, chunk by chunk, up to its verdict or the step `until`.

    Between two chunks the caller does as it likes: show progress, write a checkpoint, answer a
    signal, or stop taking chunks.
    """
    leader = is_leader(problem.mesh)
    while True:
        (records,) = agree(problem.mesh, pace.records(ROWS) if leader else 0)
        chunk = advance_jit(
            problem,
            run,
            recorder,
            jnp.asarray(until, jnp.int32),
            jnp.asarray(every, jnp.int32),
            jnp.asarray(first),
            jnp.asarray(records, jnp.int32),
            ROWS,
        )
        code = int(chunk.code)  # blocks until the chunk is done
        run, first = chunk.run, False
        yield chunk
        if code != RUNNING or int(run.step) >= until:
            return


PLACES = ("the solver's state", "f", "the gradient of f", "g", "the gradient of g")


class _Faults(Recorder):
    """Which of `PLACES` are not finite."""

    def record(self, problem: Problem, run: State) -> tuple[Row, Array]:
        point = run.point
        f, grad_f = jax.value_and_grad(problem.outer, (0, 1))(point.x, point.y)
        g, grad_g = jax.value_and_grad(problem.inner, (0, 1))(point.x, point.y)
        parts = (run.solver_state, f, grad_f, g, grad_g)
        found = ~jnp.stack([trees.finite(part) for part in parts])
        code = jnp.where(jnp.any(found), RESULTS.nonfinite, RUNNING)
        return {"found": found}, code.astype(jnp.int32)


def replay(problem: Problem, run: State, count: Int[Array, ""]) -> tuple[State, Array, Array]:
    """The last finite state within `count` steps, found again one step at a time.

    With it, which of `PLACES` are not finite one step later, and the code the run ends with.
    """
    end = advance(problem, run, _Faults(), run.step + count, 1, most=_MANY)
    return end.run, end.last["found"], runaway(end.run, RESULTS.nonfinite).astype(jnp.int32)


replay_jit = Program(replay)


# The beginning of a run


def chosen(solver: Solver | None, problem: Problem | None = None) -> Solver:
    """The solver given, the automatic one if there is none; a ProblemError if it is not one."""
    if solver is None or (isinstance(solver, Solver) and solver.exact_first):
        if problem is not None and problem.in_batches:
            return BatchPDBO()
        split = problem is not None and problem.splits_point
        return BatchPDBO(estimate=True) if split else solver or AutoPDBO()
    if not isinstance(solver, Solver):
        hint = " (such as pdbo.PDBO(), without quotes)" if isinstance(solver, str) else ""
        raise ProblemError(f"solver must be a pdbo solver{hint}, got {kind(solver)}.")
    return solver


_launch_jit = Program(launch)


def begin(start: Start, solver: Solver | None, key: Array | None) -> State:
    """The run to carry on with, or a new one at the start given; checked, once."""
    if start.state is not None:
        return _carry_on(start.problem, start.state, solver)
    problem = start.problem
    solver = streamed(problem, chosen(solver, problem))
    refuse_constraints(problem, solver.name)
    if problem.splits_point and not solver.in_parts:
        raise ProblemError(
            f"{solver.name} needs x and y whole on every device: name a first-order solver such as "
            "pdbo.PDBO(...), or split the data alone."
        )
    x, y = check_point(problem, start.x, start.y, coarse=start.coarse)
    problem.view.check(problem.f, problem.g, x, y)
    key = jax.random.key(0) if key is None else key
    call = launch if traced(problem, x, y, solver, key) else _launch_jit
    return call(problem, x, y, solver, key)


def enter_on_host(start: Start) -> tuple[PyTree, PyTree]:
    """The start as NumPy arrays inside their sets; checked without a program of its own."""
    problem = start.problem
    x, y = point_arrays(start.x, start.y, spread=True)  # NumPy's arrays stay what they are
    problem.x_set.check(x, "x_set")
    problem.y_set.check(y, "y_set")
    if start.coarse is None:
        check_functions(problem, x, y)
    oracle = path_of(problem, x, y).oracle
    oracle.start_anew()
    flat = oracle.flat(x, y)
    inside = (oracle.project_x(flat[0]), oracle.project_y(flat[1]))
    ulps = 8 * float(np.finfo(start.coarse or np.float64).eps)
    with np.errstate(invalid="ignore"):  # infinite starts are refused below
        apart = [float(np.linalg.norm(a - b)) for a, b in zip(flat, inside, strict=True)]
    far = [d if d > ulps * np.linalg.norm(a) else 0.0 for d, a in zip(apart, flat, strict=True)]
    values = oracle.values(*inside)
    report_point(far, (values.f, values.g))
    return jax.tree.map(np.asarray, oracle.trees(*inside))


def launch_on_host(problem: Problem, x: PyTree, y: PyTree, solver: Solver) -> State:
    """The state before the first step of a solver that runs on the host, as NumPy arrays."""
    size = max((float(np.max(np.abs(v), initial=0.0)) for v in jax.tree.leaves((x, y))), default=0)
    state = solver.init(problem, x, y, None)  # type: ignore
    return State(solver, state, np.int32(0), np.float64(1 + size))  # type: ignore


def _check_settings(problem: Problem, state: State, solver: Solver) -> None:
    """Refuse a solver with other settings than the state's, if its own state would look different.

    The settings are those that are no numbers, such as an Optax transformation.
    """
    if solver.on_host or jax.tree.structure(solver) == jax.tree.structure(state.solver):
        return
    point = state.point
    fresh = eqx.filter_eval_shape(solver.init, problem, point.x, point.y, jax.random.key(0))
    if jax.tree.structure(fresh) != jax.tree.structure(state.solver_state):
        raise ProblemError(
            f"the state belongs to another {solver.name}: what it keeps differs from what the "
            "solver given would keep."
        )


def _carry_on(problem: Problem, state: State, solver: Solver | None) -> State:
    solver = streamed(problem, state.solver if solver is None else chosen(solver))
    if solver.name != state.solver.name:
        raise ProblemError(f"the state belongs to {state.solver.name}, not to {solver.name}.")
    _check_settings(problem, state, solver)
    state = eqx.tree_at(lambda s: s.solver, state, solver)
    state = state if traced(state) else problem.placed(state, state.point.x, state.point.y)
    problem.x_set.check(state.point.x, "x_set")
    problem.y_set.check(state.point.y, "y_set")
    check_functions(problem, state.point.x, state.point.y)
    return state
