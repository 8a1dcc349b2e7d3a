"""Checkpoints during a run."""

import os
import signal
import time
from typing import Self

from .._errors import CheckpointError, CheckpointWarning, warn
from .._mesh import agree
from .._problem import Problem
from .._sealed import JsonObject
from .._signals import Signals, leave
from .._solution import Solution, State
from .folder import Folder


class CheckpointWriter:
    """Writes checkpoints during a run, and ends the run if a signal asks for it.

    Arguments:
        path: the folder.
        seconds: the time between two checkpoints.
        problem, start, columns: the problem, the digest of x0, y0 and key, and the names of the
            columns of the history.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        seconds: float,
        problem: Problem,
        start: str | None,
        columns: set[str],
    ):
        self.folder, self.signals = Folder(path, problem.mesh), Signals()
        self.seconds, self.problem, self.start, self.columns = seconds, problem, start, columns
        self.written = time.monotonic()
        self.number, self.said = 0, ""  # the signal to end on; the outcome of the last save

    def __enter__(self) -> Self:
        self.folder.__enter__()
        self.signals.__enter__()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.signals.__exit__()
        self.folder.__exit__()
        if self.signals.received and not self.number and error is None:
            signal.raise_signal(self.signals.received)  # it came after the last step

    def resume(self, run: State) -> tuple[Solution, JsonObject] | None:
        """The last good checkpoint of this run and the driver's notes in it."""
        return self.folder.resume(run, self.problem, self.start, self.columns)

    def saved_solver(self) -> str:
        """The class of the solver that the last good checkpoint belongs to; empty if none is."""
        return self.folder.saved_solver()

    def due(self) -> bool:
        """Whether to write a checkpoint now; all processes get the same answer."""
        late = self.folder.is_leader and time.monotonic() - self.written >= self.seconds
        late, self.number = agree(self.problem.mesh, int(late), self.signals.received or 0)
        return bool(late or self.number)

    def save(self, solution: Solution, notes: JsonObject) -> None:
        """Write a checkpoint; if that fails, warn, and the run goes on."""
        self.written = time.monotonic()
        try:
            self.folder.write(solution, self.problem, self.start, notes)
            self.said = (
                f"step {solution.steps} is saved in {self.folder.path}: the same call carries on."
            )
        except CheckpointError as error:
            self.said = str(error)
            warn(f"{error} The run goes on without it.", CheckpointWarning)

    def leave(self) -> None:
        """End the run if a signal asked for it."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt(f"interrupted; {self.said}")
        if self.number:
            leave(self.number)
