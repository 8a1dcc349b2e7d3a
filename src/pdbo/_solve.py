"""The one verb: a run from its start to its certificate."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from ._batches import reading
from ._certificate import MAX_SLACK, measure
from ._checks import point_arrays, traced, undifferentiable
from ._driver import advance, begin, chosen, replay
from ._errors import RESULTS, ProblemError, SolveError
from ._history import Certified, columns
from ._host import HostRun, outcome_at, solution_at
from ._options import Options
from ._portfolio import Portfolio, applies, begin_exact, determined, refuse_term
from ._precision import Start, returned, session
from ._problem import Problem, check_problem
from ._solution import Outcome, Solution, State
from ._solver import Solver
from ._verdict import SOUND, falls_forever, final
from .solvers._implicit import Implicit, ImplicitState

if TYPE_CHECKING:
    from .checkpoint import CheckpointWriter


def solve(
    problem: Problem,
    x0: PyTree = None,
    y0: PyTree = None,
    solver: Solver | None = None,
    *,
    steps: int | None = None,
    tol: ArrayLike | None = 1e-4,
    every: int | None = None,
    state: State | None = None,
    key: Array | None = None,
    throw: bool = True,
    progress: bool = False,
    observe: Callable[[PyTree, PyTree], dict[str, Array]] | None = None,
    callback: Callable[[dict[str, Any]], object] | None = None,
    seconds: float | None = None,
    checkpoint: str | os.PathLike | None = None,
    checkpoint_every: float = 60.0,
) -> Solution:
    """Solve a bilevel problem.

    Arguments:
        problem: the problem.
        x0, y0: the start. Outside its set it is projected, with a warning.
        solver: the method. None takes one that needs no tuning: `AutoPDBO()`; `Implicit()` or
            `BatchPDBO()` on `Batches`; `BatchPDBO()` if `shard` splits x or y.
        steps: the most steps this call takes, 10,000 unless the solver sets its own budget.
        tol: the run ends when the certificate's eps is at most this. With None the run takes all
            its steps, and the certificate is computed when you first look at it.
        every: the steps between two rows of the history: 100, or ten passes over data in batches.
            The certificate is estimated there, and computed if that is within the tolerance.
        state: the `state` of an earlier solution, to carry on from in place of a start.
        key: a PRNG key for solvers that draw random numbers.
        throw: whether failures raise an exception that carries the Solution, or return their code.
        progress: whether a live line on standard error shows how the run is doing.
        observe: `observe(x, y)` returns a dict of arrays to record in the history too.
        callback: `callback(row)` is called with every row recorded; the run stops if it returns
            True.
        seconds: the run stops at the first record after this time.
        checkpoint: a folder, created if there is none. A checkpoint of this run in it is carried on
            from, bit for bit, up to `steps` in all. Ctrl-C or SIGTERM ends the run after
            the current chunk with a checkpoint; another Ctrl-C ends the process at once.
        checkpoint_every: the seconds between two checkpoints; 0 writes one at every record.

    Under jit and vmap nothing is raised or shown and the certificate has the precision of the
    problem. Elsewhere it is computed in double, at the point returned. `AutoPDBO` runs in double up
    to a million numbers even if JAX has no 64-bit types; x and y are then NumPy arrays.
    """
    options = Options(
        steps, tol, every, key, throw, progress, observe, callback, seconds, checkpoint,
        checkpoint_every,
    )  # fmt: skip
    check_problem(problem)
    try:
        return _entered(Start(problem, x0, y0, _state(state, x0, y0)), solver, options)
    except ProblemError as error:
        error.solution = error.solution or no_solution(x0, y0, str(error))
        if throw:
            raise
        return error.solution


def _entered(given: Start, solver: Solver | None, options: Options) -> Solution:
    """The solution in the kind of arrays, or tensors, that the start is given in."""
    problem, x, y = given.problem.entered(given.x, given.y)
    options = dataclasses.replace(options, observe=problem.observer(options.observe))
    try:
        return problem.left(_solve(Start(problem, x, y, given.state), solver, options))
    except SolveError as error:
        error.solution = problem.left(error.solution)
        raise
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        if traced(problem, x, y):
            raise
        raise ProblemError(
            "f or g use a value from outside that jax.grad, jit or vmap traces: pass it in data=. "
            "To differentiate, put it into x, or use pdbo.inner_solution(problem, x, y0): solve "
            "itself has no derivative."
        ) from None


def _state(state: object, x0: PyTree, y0: PyTree) -> State | None:
    if state is None:
        if x0 is None or y0 is None:
            raise ProblemError("x0 and y0 are needed: a start for x and one for y.")
        return None
    if not isinstance(state, State):
        raise ProblemError(f"state must be a solution.state, got {type(state).__name__}.")
    if x0 is not None or y0 is not None:
        raise ProblemError("give either a start (x0, y0) or a state to carry on from, not both.")
    return state


def no_solution(x0: PyTree, y0: PyTree, why: str) -> Solution:
    """What is returned if the problem or its start is not usable."""
    nan, code = float("nan"), np.int32(RESULTS.bad_problem)
    return Solution(x0, y0, nan, nan, Outcome(nan, None, code, why), {}, None, 0)


def _solve(given: Start, solver: Solver | None, options: Options) -> Solution:
    began = time.perf_counter()
    rival = _on_all_examples(given, solver, options) if given.problem.in_batches else None
    if rival is not None and (given.state is not None or rival.ok):
        return rival
    named = chosen(solver) if given.state is None else given.state.solver
    if given.problem.coupled:
        from ._coupled import solve_coupled  # most problems do without it

        return _handed_over(solve_coupled(given, named, options), given.problem, options, began)
    with session(given, named) as start, reading(start.problem):
        exact = applies(start, named)
        if start.problem.inner_term is not None:
            refuse_term(start, named, exact)
        run = begin_exact(start, named) if exact else begin(start, solver, options.key)
        names = columns(run, options.observe)
        if traced(start.problem, run, options.tolerance):
            if options.checkpoint is not None:
                raise ProblemError("checkpoint needs values: it cannot be used under jit or vmap.")
            if options.callback is not None or options.seconds is not None:
                raise ProblemError("callback and seconds cannot be used under jit or vmap.")
            return _solve_traced(start, run, options, options.budget(run.solver.budget, run.step))
        with contextlib.ExitStack() as stack:
            writer = _writer(start, options, names)
            if writer is not None:
                stack.enter_context(writer)
            if exact:
                part = isinstance(run.solver, Implicit) and run.solver.part  # of AutoPDBO
                searches = part and start.problem.inner_term is None
                search = chosen(None if named.on_host else named) if searches else None
                solution = Portfolio(start, search, options, writer).solve(run)
            else:
                until = int(run.step) + options.budget(run.solver.budget, run.step)
                host = HostRun(start.problem, options, writer, until)
                solution = host.solve(run, first=start.state is None)
    if rival is not None:
        from ._resolve import further  # most runs do without it

        solution = further(rival, solution, given.problem)
    return _handed_over(solution, given.problem, options, began)


def _on_all_examples(given: Start, solver: Solver | None, options: Options) -> Solution | None:
    """The default's solution by `Implicit` on all examples, if there is one; it may not be ok.

    It is looked for if the problem is small and f's examples determine x, or else fitting them
    exactly would fit their noise.
    """
    if traced(given.problem, given.x, given.y, given.state):
        return None
    whole = given._replace(problem=given.problem.pooled())
    if given.state is not None:
        exact = isinstance(given.state.solver_state, ImplicitState)
        return _solve(whole, solver, options) if exact else None
    if not chosen(solver).exact_first or not determined(*whole[:3]):
        return None
    plain = dataclasses.replace(options, checkpoint=None, throw=False)
    solution = _solve(whole, Implicit(), plain)
    if not solution.ok:
        return solution if solution.result is RESULTS.settled else None
    return solution if options.checkpoint is None else _solve(whole, Implicit(), options)


def _handed_over(solution: Solution, problem: Problem, options: Options, began: float) -> Solution:
    from ._resolve import with_answer  # most runs do without it

    solution = returned(solution, time.perf_counter() - began)
    if options.throw and not solution.is_pending and solution.result not in SOUND:
        raise SolveError(solution.message, solution)
    return with_answer(solution, problem, float(np.asarray(options.tolerance)))


def _writer(start: Start, options: Options, names: set[str]) -> "CheckpointWriter | None":
    if options.checkpoint is None:
        return None
    from .checkpoint import CheckpointWriter

    return CheckpointWriter(
        options.checkpoint,
        float(options.checkpoint_every),
        start.problem,
        _start_digest(start, options),
        names,
    )


def _start_digest(start: Start, options: Options) -> str | None:
    from .checkpoint import digest

    if start.state is not None:
        return digest(start.state)
    spread = start.problem.mesh is not None
    return digest(*point_arrays(start.x, start.y, spread), options.key)


def _solve_traced(start: Start, run: State, options: Options, budget: int) -> Solution:
    """The whole run as one traceable expression, for jit and vmap."""
    start, run = undifferentiable((start, run))
    problem, tol = start.problem, options.tolerance
    every = options.spacing(problem.view)
    first = start.state is None
    outside = ~(problem.x_set.contains(run.point.x) & problem.y_set.contains(run.point.y))
    rows = -(-budget // every) + 2
    recorder = Certified(tol, every, options.observe)
    chunk = advance(problem, run, recorder, run.step + budget, every, first, rows=rows)
    failed = chunk.code == RESULTS.nonfinite
    run, _, failure = replay(problem, chunk.run, jnp.where(failed, every, 0))
    point = run.point
    slack = MAX_SLACK if point.slack is None else jnp.maximum(point.slack, MAX_SLACK)
    effort = problem.view.effort()
    certificate = measure(problem, point.x, point.y, point.multiplier, None, slack, effort)
    f, g = problem.outer(point.x, point.y), problem.inner(point.x, point.y)
    code = jnp.where(failed, failure, chunk.code)
    code = final(code, certificate.eps <= tol, falls_forever(certificate, g) & ~failed)
    code = jnp.where(outside & first, RESULTS.bad_problem, code).astype(jnp.int32)
    return solution_at(run, outcome_at(run, certificate, code), f, g, chunk.rows, run.step)
