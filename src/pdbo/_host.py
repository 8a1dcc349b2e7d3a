"""A run on the host: chunk by chunk, with history, progress line and checkpoints."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from . import _trees as trees
from ._batches import reading
from ._certificate import Certificate
from ._driver import PLACES, chunks, replay_jit
from ._errors import RESULTS, ProblemError
from ._history import Certified, History, estimated, unjudged
from ._mesh import agree, is_leader, many_hosts
from ._options import Options
from ._precision import measure_in_double
from ._problem import Problem, values
from ._progress import REFRESH, Pace, Progress
from ._solution import Number, Outcome, Pending, Solution, State, is_large
from ._verdict import FAR, RUNNING, final, of_saved, unbounded_reason
from .exact.oracle import SMALL, fits

if TYPE_CHECKING:
    from .checkpoint import CheckpointWriter


def outcome_at(
    run: State, certificate: Certificate, code: Array | np.int32, note: str = ""
) -> Outcome:
    """How a run ended at a state."""
    multiplier = run.point.multiplier
    if multiplier is None:
        multiplier = certificate.multiplier
    return Outcome(multiplier, certificate, code, note)


def solution_at(
    run: State,
    outcome: Outcome | Pending,
    f: Number,
    g: Number,
    history: dict,
    steps: int | Array,
) -> Solution:
    """The solution at a state."""
    point = run.point
    return Solution(point.x, point.y, f, g, outcome, history, run, steps)


Rows = dict[str, np.ndarray]


class HostRun:
    """A run on the host: its history, progress line and checkpoints.

    Arguments:
        problem, options: what is solved, and how.
        writer: writes its checkpoints, if any are wanted.
        until: the step at which it ends.
    """

    def __init__(
        self, problem: Problem, options: Options, writer: "CheckpointWriter | None", until: int
    ):
        self.problem, self.options, self.writer, self.until = problem, options, writer, until
        self.tol = self.working_tol = float(np.asarray(options.tolerance))
        self.every = options.spacing(problem.view)
        self.history = History()
        self.last: State | None = None  # the run at its last record
        if writer is not None:
            self.pace = Pace(min(REFRESH, writer.seconds))
        else:
            short = options.progress or options.may_stop or bool(problem.sources)
            self.pace = Pace(REFRESH if short else None)

    def solve(self, run: State, first: bool) -> Solution:
        """The run from a state on; `first` is whether that state is recorded too."""
        saved = None if self.writer is None else self.writer.resume(run)
        if saved is not None:
            solution, notes = saved
            assert solution.state is not None
            result = of_saved(solution, self.tol, self.until)
            if result is not None:
                return solution.with_outcome(code=np.int32(result))
            self.history, run, first = History(solution.history), solution.state, False
            if notes.get("tol") == self.tol:
                self.working_tol = notes["working_tol"]
            if int(run.step) >= self.until:
                return self._conclude(run, RUNNING, None)
        with self._progress(run) as bar, self._salvaged():
            while True:
                run, code, faults = self._advance(run, first, bar)
                first = False
                solution = self._conclude(run, code, faults)
                over = code not in (RUNNING, RESULTS.success) or int(run.step) >= self.until
                if over or solution.ok:
                    if self.writer is not None:
                        self.writer.due()
                        self.writer.save(solution, {})  # with the certificate
                        self.writer.leave()
                    return solution
                # the estimate was too hopeful, or the precision too low: ask for more
                self.working_tol = min(self.working_tol, self.history.rows["eps"][-1]) / 2
                self._keep(run)

    def concluded(self, run: State, code: int, history: History) -> Solution:
        """The solution at a state that was reached elsewhere."""
        self.history = history
        return self._conclude(run, code, None)

    def _is_left_to(self, run: State) -> bool:
        """Whether the end of a run is its solver's affair: so it is with a network in batches."""
        if not (run.solver.knows_its_end and self.problem.in_batches):
            return False
        return fits(self.problem.pooled(), *run.point[:2]) != SMALL

    def _progress(self, run: State) -> Progress:
        shown = self.options.progress and is_leader(self.problem.mesh)
        return Progress(int(run.step), self.until, self.tol, enabled=shown)

    def _advance(self, run: State, first: bool, bar: Progress) -> tuple[State, int, Array | None]:
        """Chunks up to a verdict: the run then, its code and what was not finite, if anything."""
        every, code = jnp.asarray(self.every, jnp.int32), RUNNING
        silent = self.options.tol is None or self._is_left_to(run)
        look = unjudged if silent else estimated
        recorder = Certified(jnp.asarray(self.working_tol), every, self.options.observe, look)
        for chunk in chunks(self.problem, run, recorder, self.until, every, first, self.pace):
            code = int(chunk.code)
            rows = self.history.add(run, chunk.rows, int(chunk.written))
            bar.update(rows)
            run = self.last = chunk.run
            (stops,) = agree(self.problem.mesh, int(self.options.stops(rows)))
            if stops and code == RUNNING:
                return run, int(RESULTS.stopped), None
            if code == RUNNING and int(run.step) < self.until:
                self._keep(run)
        if code != RESULTS.nonfinite:
            return run, code, None
        run, faults, failure = replay_jit(self.problem, run, every)
        return run, int(failure), faults

    @contextlib.contextmanager
    def _salvaged(self) -> Iterator[None]:
        """Keep what the run has so far if its examples cannot be fetched any more."""
        try:
            with reading(self.problem):
                yield
        except ProblemError as error:
            if self.last is not None:
                error.solution = self._interim(self.last)
                if self.writer is not None:
                    self.writer.save(error.solution, self._notes)
            raise

    def _keep(self, run: State) -> None:
        """Write a checkpoint if one is due, and leave if a signal asked for that."""
        if self.writer is None or not self.writer.due():
            return
        self.writer.save(self._interim(run), self._notes)
        self.writer.leave()

    @property
    def _notes(self) -> dict[str, float]:
        return {"tol": self.tol, "working_tol": self.working_tol}

    def _interim(self, run: State) -> Solution:
        """The solution at the last record of a run that goes on, or would."""
        point, rows = run.point, self.history.rows
        multiplier = rows["multiplier"][-1] if point.multiplier is None else point.multiplier
        outcome = Outcome(multiplier, None, np.int32(RESULTS.interrupted))
        f, g = rows["f"][-1], rows["g"][-1]
        return Solution(point.x, point.y, f, g, outcome, rows, run, int(run.step))

    def _conclude(self, run: State, code: int, faults: Array | None) -> Solution:
        """The solution at a state; its outcome is left for later if it is no failure."""
        point, rows = run.point, self.history.rows
        if faults is None:
            f, g = rows["f"][-1], rows["g"][-1]
        else:  # the point found again lies between two records
            f, g = values(self.problem, point.x, point.y)

        def compute() -> Outcome:
            with reading(self.problem):
                return self._outcome(run, code, faults, float(f), float(g), rows)

        step = int(run.step)
        if self._is_calm(run, code, rows):
            later = Pending(compute, is_large(self.problem, point.x, point.y))
            return solution_at(run, later, f, g, rows, step)
        return solution_at(run, compute(), f, g, rows, step)

    def _is_calm(self, run: State, code: int, rows: Rows) -> bool:
        """Whether nothing hints at a failure: neither the code, nor f, g, x and y so far."""
        sound = (RUNNING, RESULTS.settled, RESULTS.stopped, RESULTS.max_steps)
        if code not in sound or many_hosts(self.problem.mesh):
            return False
        far = float(trees.max_abs((run.point.x, run.point.y))) > FAR * float(run.scale)
        return not (far or rows["eps"][-1] == np.inf)

    def _outcome(
        self, run: State, code: int, faults: Array | None, f: float, g: float, rows: Rows
    ) -> Outcome:
        """How the run ended, by the certificate, which is computed in double precision."""
        certificate = measure_in_double(self.problem, run.point)
        met, note = bool(certificate.eps <= self.tol), ""
        if code == RESULTS.nonfinite:
            where = [place for place, bad in zip(PLACES, np.asarray(faults), strict=True) if bad]
            note = f"{where[0]} is not finite." if where else ""
        unbounded = ""
        if RESULTS(int(final(code, met))) not in (RESULTS.success, RESULTS.multiplier_diverged):
            first = float(rows["f"][0]) if len(rows["f"]) else f
            unbounded = unbounded_reason(self.problem, run, certificate, f, g, first)
        return outcome_at(run, certificate, final(code, met, bool(unbounded)), unbounded or note)
