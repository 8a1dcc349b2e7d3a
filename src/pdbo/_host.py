"""A run on the host: chunk by chunk, with history, progress line and checkpoints."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._certificate import Certificate
from ._driver import PLACES, chunks, replay_jit
from ._errors import RESULTS
from ._history import Certified, History
from ._mesh import is_leader
from ._options import Options
from ._precision import measure_in_double
from ._problem import Problem, values
from ._progress import REFRESH, Pace, Progress
from ._solution import Number, Solution, State
from ._verdict import RUNNING, final, of_saved, unbounded_reason
from .checkpoint import CheckpointWriter


def solution_at(
    run: State,
    certificate: Certificate,
    f: Number,
    g: Number,
    code: Array | np.int32,
    history: dict,
    steps: int | Array,
    note: str = "",
) -> Solution:
    """The solution at a state."""
    point = run.point
    multiplier = certificate.multiplier if point.multiplier is None else point.multiplier
    return Solution(
        point.x, point.y, multiplier, f, g, certificate, code, history, run, steps, note
    )


class HostRun:
    """A run on the host: its history, progress line and checkpoints.

    Arguments:
        problem, options: what is solved, and how.
        writer: writes its checkpoints, if any are wanted.
        until: the step at which it ends.
    """

    def __init__(
        self, problem: Problem, options: Options, writer: CheckpointWriter | None, until: int
    ):
        self.problem, self.options, self.writer, self.until = problem, options, writer, until
        self.tol = self.working_tol = float(np.asarray(options.tol))
        self.history = History()
        if writer is not None:
            self.pace = Pace(min(REFRESH, writer.seconds))
        else:
            self.pace = Pace(REFRESH if options.progress else None)

    def solve(self, run: State, first: bool) -> Solution:
        """The run from a state on; `first` is whether that state is recorded too."""
        saved = None if self.writer is None else self.writer.resume(run)
        if saved is not None:
            solution, notes = saved
            assert solution.state is not None
            result = of_saved(solution, self.tol, self.until)
            if result is not None:
                return dataclasses.replace(solution, code=np.int32(result))
            self.history, run, first = History(solution.history), solution.state, False
            if notes.get("tol") == self.tol:
                self.working_tol = notes["working_tol"]
            if int(run.step) >= self.until:
                return self._conclude(run, RUNNING, None)
        with self._progress(run) as bar:
            while True:
                run, code, faults = self._advance(run, first, bar)
                first = False
                solution = self._conclude(run, code, faults)
                over = code not in (RUNNING, RESULTS.success) or int(run.step) >= self.until
                if over or solution.ok:
                    if self.writer is not None:
                        self.writer.due()
                        self.writer.save(solution, {})
                        self.writer.leave()
                    return solution
                self.working_tol /= 2  # met in working precision only: ask for more
                self._keep(run)

    def concluded(self, run: State, code: int, history: History) -> Solution:
        """The solution at a state that was reached elsewhere."""
        self.history = history
        return self._conclude(run, code, None)

    def _progress(self, run: State) -> Progress:
        shown = self.options.progress and is_leader(self.problem.mesh)
        return Progress(int(run.step), self.until, self.tol, enabled=shown)

    def _advance(self, run: State, first: bool, bar: Progress) -> tuple[State, int, Array | None]:
        """Chunks up to a verdict: the run then, its code and what was not finite, if anything."""
        every, code = jnp.asarray(self.options.every, jnp.int32), RUNNING
        recorder = Certified(jnp.asarray(self.working_tol), every, self.options.observe)
        for chunk in chunks(self.problem, run, recorder, self.until, every, first, self.pace):
            code = int(chunk.code)
            bar.update(self.history.add(run, chunk.rows, int(chunk.written)))
            run = chunk.run
            if code == RUNNING and int(run.step) < self.until:
                self._keep(run)
        if code != RESULTS.nonfinite:
            return run, code, None
        run, faults, failure = replay_jit(self.problem, run, every)
        return run, int(failure), faults

    def _keep(self, run: State) -> None:
        """Write a checkpoint if one is due, and leave if a signal asked for that."""
        if self.writer is None or not self.writer.due():
            return
        point, rows = run.point, self.history.rows
        multiplier = rows["multiplier"][-1] if point.multiplier is None else point.multiplier
        code, f, g = np.int32(RESULTS.interrupted), rows["f"][-1], rows["g"][-1]
        step = int(run.step)
        interim = Solution(point.x, point.y, multiplier, f, g, None, code, rows, run, step)
        self.writer.save(interim, {"tol": self.tol, "working_tol": self.working_tol})
        self.writer.leave()

    def _conclude(self, run: State, code: int, faults: Array | None) -> Solution:
        """The solution at a state, its certificate computed in double precision."""
        point, rows = run.point, self.history.rows
        certificate = measure_in_double(self.problem, point)
        if faults is None:
            f, g = rows["f"][-1], rows["g"][-1]
        else:  # the point found again lies between two records
            f, g = values(self.problem, point.x, point.y)
        met, note = bool(certificate.eps <= self.tol), ""
        if code == RESULTS.nonfinite:
            where = [place for place, bad in zip(PLACES, np.asarray(faults), strict=True) if bad]
            note = f"{where[0]} is not finite." if where else ""
        unbounded = ""
        if RESULTS(int(final(code, met))) not in (RESULTS.success, RESULTS.multiplier_diverged):
            first = float(rows["f"][0]) if len(rows["f"]) else float(f)
            unbounded = unbounded_reason(self.problem, run, certificate, float(f), float(g), first)
        ended = final(code, met, bool(unbounded))
        note = unbounded or note
        return solution_at(run, certificate, f, g, ended, rows, int(run.step), note)
