"""The folder of a run: its last checkpoints, and a lock that keeps other runs out."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
from typing import NamedTuple, Self, TextIO

from jax.sharding import Mesh

from .._errors import CheckpointError, CheckpointWarning, warn
from .._mesh import agree, is_leader
from .._problem import Problem
from .._sealed import JsonObject
from .._solution import Solution, State
from .description import check_description
from .format import Saved, Stored, as_path, read, write
from .packing import PARTS, check_values, pack, split_leaves, unpack, write_parts

KEPT = 2  # checkpoints; older ones are removed
LOCK = "lock"
_NAME = re.compile(r"step-\d{12}\.pdbo")


class Failure(NamedTuple):
    """A file that could not be read, and the sentence that says why."""

    path: pathlib.Path
    sentence: str


class Folder:
    """The checkpoints of one run, and a lock that keeps other runs out.

    The lock is the operating system's, on an open file: it is released when its process ends,
    however it ends. The last two checkpoints are kept. If a run has many processes, its leader
    writes for all.
    """

    def __init__(self, path: str | os.PathLike[str], mesh: Mesh | None = None):
        self.path, self.mesh = as_path(path), mesh
        self.is_leader = is_leader(mesh)
        self.lock: TextIO | None = None
        self.split_step = -1  # of the last part written of what is split over processes

    def __enter__(self) -> Self:
        if not self.is_leader:
            return self
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = (self.path / LOCK).open("a+")
            if not _locked(self.lock):
                self.lock.seek(0)
                owner = self.lock.read(200).strip() or "another process"
                raise CheckpointError(
                    f"{self.path} is in use by {owner}: two runs cannot share a checkpoint folder."
                )
            self.lock.truncate(0)
            self.lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            self.lock.flush()
            for leftover in self.path.glob(".step-*"):  # a run was killed while writing
                leftover.unlink()
        except BaseException as error:
            self.__exit__()
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(f"{self.path} cannot be written to: {error.strerror}.") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.close()

    def clear(self) -> None:
        """Remove the checkpoints."""
        for path in _files(self.path):
            path.unlink()
            shutil.rmtree(path.with_suffix(f".{PARTS}"), ignore_errors=True)

    def resume(
        self, run: State, problem: Problem, start: str | None, columns: set[str]
    ) -> tuple[Solution, JsonObject] | None:
        """The last good checkpoint and the driver's notes in it; None if the folder has none.

        `run` is the run at its start, `start` the digest of its x0, y0 and key.
        """
        saved = self.last() if self.is_leader else None
        (step,) = agree(self.mesh, -1 if saved is None else saved.header["step"])
        if step < 0:
            return None
        saved = read(self._file(step)) if saved is None else saved
        check_description(saved, problem, run.solver)
        if None not in (start, saved.header.get("start")) and start != saved.header["start"]:
            raise saved.error("the run in it was started with another x0, y0 or key")
        recorded = {n.removeprefix("history.") for n in saved.arrays if n.startswith("history.")}
        if recorded != columns:
            name = sorted(recorded ^ columns)[0]
            raise saved.error(f"its history {'has' if name in recorded else 'lacks'} {name!r}")
        solution = unpack(saved, run, problem, run.solver)
        rows = solution.history
        if rows["step"].size and rows["step"][0] == int(run.step):
            began = run.point
            check_values(saved, problem, began, rows["f"][0], rows["g"][0], rows)
        return solution, saved.header.get("notes") or {}

    def saved_solver(self) -> str:
        """The class of the solver that the last good checkpoint belongs to; empty if none is."""
        saved = self.last()
        solver = None if saved is None else saved.header.get("solver")
        return str(solver.get("solver", "")) if isinstance(solver, dict) else ""

    def last(self) -> Saved | None:
        """The last good checkpoint; later, damaged ones are renamed."""
        saved, failures = latest(self.path)
        if saved is None:
            if failures:
                raise CheckpointError(
                    f"{failures[0].sentence} None can be read: remove them to start again."
                )
            return None
        for failure in failures:
            failure.path.rename(failure.path.with_suffix(".unreadable"))
        return saved

    def _file(self, step: int) -> pathlib.Path:
        return self.path / f"step-{step:012d}.pdbo"

    def write(
        self, solution: Solution, problem: Problem, start: str | None, notes: JsonObject
    ) -> None:
        """Write a checkpoint and remove all but the last two; all processes call this."""
        assert solution.state is not None
        step, split = int(solution.steps), split_leaves(solution.state)
        if split and step != self.split_step:
            write_parts(self._file(step), split)
            self.split_step = step
        if self.is_leader:
            self.put(step, *pack(solution, problem, start, notes, split))

    def put(self, step: int, header: JsonObject, arrays: dict[str, Stored]) -> None:
        """Write a header, which says the step, and arrays, and remove all but the last two."""
        write(self._file(step), header, arrays)
        for old in _files(self.path)[KEPT:]:
            with contextlib.suppress(OSError):
                old.unlink()
            shutil.rmtree(old.with_suffix(f".{PARTS}"), ignore_errors=True)


def latest(folder: pathlib.Path) -> tuple[Saved | None, list[Failure]]:
    """The last good checkpoint of a folder, and the later, damaged ones, with a warning each."""
    failures = []
    for path in _files(folder):
        try:
            saved = read(path)
            step = saved.header.get("step")
            if step != int(path.stem.removeprefix("step-")):
                raise CheckpointError(f"{path} holds step {step}, not the one in its name.")
        except CheckpointError as error:
            failures.append(Failure(path, str(error)))
            continue
        for failure in failures:
            warn(f"{failure.sentence} {path.name} is used instead.", CheckpointWarning)
        return saved, failures
    return None, failures


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The checkpoints of a folder, the last one first."""
    try:
        return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}.") from None


def _locked(file: TextIO) -> bool:
    """Take the lock of an open file; False if another process holds it."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:
        if os.name == "nt":
            return False
        raise
    return True
