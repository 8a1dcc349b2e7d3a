"""Checkpoints of a run while it goes on."""

import signal
import time
from typing import Any

from .._errors import CheckpointError, CheckpointWarning, warn
from .._mesh import agree
from .._problem import Problem
from .._signals import Signals, leave
from .._solution import Solution, State
from .folder import Folder


class CheckpointWriter:
    """Writes the checkpoints of a run that goes on, and ends it if a signal asks for that.

    Arguments:
        path: the folder.
        seconds: between two checkpoints.
        problem, start, columns: what is solved, the digest of what the run was started with, and
            the names of its history.
    """

    def __init__(
        self, path: Any, seconds: float, problem: Problem, start: str | None, columns: set[str]
    ):
        self.folder, self.signals = Folder(path, problem.mesh), Signals()
        self.seconds, self.problem, self.start, self.columns = seconds, problem, start, columns
        self.written = time.monotonic()
        self.number, self.said = 0, ""  # the signal to leave on, and what became of the last save

    def __enter__(self) -> "CheckpointWriter":
        self.folder.__enter__()
        self.signals.__enter__()
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        self.signals.__exit__()
        self.folder.__exit__()
        if self.signals.received and not self.number and error is None:
            signal.raise_signal(self.signals.received)  # it came too late to be answered here

    def resume(self, run: State) -> tuple[Solution, dict[str, Any]] | None:
        """The last good checkpoint of this run and the driver's own notes in it."""
        return self.folder.resume(run, self.problem, self.start, self.columns)

    def due(self) -> bool:
        """Whether it is time for a checkpoint, or to leave with one; the same in all processes."""
        late = self.folder.is_leader and time.monotonic() - self.written >= self.seconds
        late, self.number = agree(self.problem.mesh, int(late), self.signals.received or 0)
        return bool(late or self.number)

    def save(self, solution: Solution, notes: dict[str, Any]) -> None:
        """Write a checkpoint; if that fails the run goes on."""
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
