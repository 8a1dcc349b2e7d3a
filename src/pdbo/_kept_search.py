"""Checkpoints of a search on a problem with constraints: one after a round."""

import signal
import time
from typing import Self

import numpy as np

from ._errors import CheckpointError, CheckpointWarning, warn
from ._history import History
from ._options import Options
from ._signals import Signals, leave
from .checkpoint import Folder, digest
from .checkpoint.arrays import plain, store
from .checkpoint.description import describe_problem
from .coupled.model import Points
from .coupled.rounds import Search

KIND = "search"


class Kept:
    """Writes what a search needs to carry on, and ends it if a signal asks for that.

    Arguments:
        options: with the folder, and the seconds between two checkpoints.
        search: the search.
        starts: its starts, which a checkpoint belongs to.
    """

    def __init__(self, options: Options, search: Search, starts: Points):
        assert options.checkpoint is not None
        self.folder, self.signals = Folder(options.checkpoint), Signals()
        self.search, self.seconds = search, float(options.checkpoint_every)
        self.start = digest(search.model.start, starts, options.key)
        self.written = time.monotonic()
        self.problem = describe_problem(search.model.problem)

    def __enter__(self) -> Self:
        self.folder.__enter__()
        self.signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.signals.__exit__()
        self.folder.__exit__()

    def resumed(self) -> History:
        """The history of the last good checkpoint, after the search went back to it."""
        saved = self.folder.last()
        if saved is None:
            return History()
        header = saved.header
        if header.get("kind") != KIND:
            raise saved.error("it is that of a problem without constraints")
        if header["problem"] != self.problem:
            raise saved.error("it is that of another problem")
        if header["start"] != self.start:
            raise saved.error("the run in it was started with another x0, y0 or key")
        arrays = {name: plain(stored) for name, stored in saved.arrays.items()}
        count = sum(name.isdigit() for name in arrays)
        self.search.restore(header["facts"], [arrays[str(i)].copy() for i in range(count)])
        return History({k: v for k, v in arrays.items() if not k.isdigit()})

    def save(self, history: History, stops: bool) -> None:
        """Write a checkpoint if one is due or the run stops; leave if a signal asked for that."""
        number = self.signals.received or 0
        due = time.monotonic() - self.written >= self.seconds
        if not (due or number or stops or self.search.over):
            return
        facts, leaves = self.search.saved()
        arrays = {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)} | history.rows
        step = facts["rounds"]
        header = {
            "kind": KIND, "step": step, "facts": facts, "problem": self.problem,
            "start": self.start,
        }  # fmt: skip
        self.written = time.monotonic()
        said = f"round {step} is saved in {self.folder.path}: the same call carries on."
        try:
            self.folder.put(step, header, {name: store(name, a) for name, a in arrays.items()})
        except CheckpointError as error:
            said = str(error)
            warn(f"{error} The run goes on without it.", CheckpointWarning)
        if number == signal.SIGINT:
            raise KeyboardInterrupt(f"interrupted; {said}")
        if number:
            leave(number)
