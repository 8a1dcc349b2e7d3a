"""Run libraries on workloads: first search for settings that reach the target, then time them."""

import dataclasses
import math
import pathlib
import statistics
import tempfile
from typing import Any

import numpy as np

from .peers.process import PeerError, Process
from .workloads import Judge, Workload

ENOUGH = 10**7  # iterations; a search stops there
PATIENCE = 180.0  # seconds to wait for an answer of a process
LONG = 10.0  # seconds; a longer run is not repeated


@dataclasses.dataclass
class Found:
    """The outcome of a setting: iterations, seconds and verdict at the last look."""

    settings: dict[str, Any]
    steps: int
    seconds: float
    left: float

    @property
    def reached(self) -> bool:
        """Whether the target was reached."""
        return self.left <= 1

    @property
    def rank(self) -> tuple[bool, float]:
        """Settings that reach the target rank by time, the others by the distance left."""
        return not self.reached, self.seconds if self.reached else self.left


class Bench:
    """A workload ready to run: its data on disk and its judge."""

    def __init__(self, workload: Workload, threads: int):
        self.workload, self.threads = workload, threads
        self.folder = tempfile.TemporaryDirectory()
        self.file = str(pathlib.Path(self.folder.name) / "data.npz")
        data = workload.make()
        np.savez(self.file, **data)  # type: ignore
        self.judge: Judge = workload.judge(data)

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: Any) -> None:
        self.folder.cleanup()

    def process(self, peer: str) -> Process:
        """A fresh process of a library, with the data loaded."""
        process = Process(peer, self.threads)
        process.ask("load", file=self.file)
        return process

    def job(self, settings: dict[str, Any], count: bool = False) -> dict[str, Any]:
        """What a worker needs in order to start."""
        return {"family": self.workload.family, "settings": settings, "count": count}

    def look(self, process: Process) -> float:
        """The judge's verdict on the current point; infinite if the point is not finite."""
        file = str(pathlib.Path(self.folder.name) / "point.npz")
        if not process.ask("point", file=file)["finite"]:
            return math.inf
        with np.load(file) as point:
            return float(self.judge(point["x"], point["y"]))

    def search(self, process: Process, settings: dict[str, Any]) -> Found:
        """Iterate, looking in between, until the target is reached or the time is up.

        The target counts as reached only if it still is at the next look: a run that passes
        through it has not solved the problem.
        """
        limit = self.workload.budget
        process.ask("start", job=self.job(settings))
        process.ask("advance", steps=1, within=PATIENCE)  # compile; not timed
        process.ask("start", job=self.job(settings))
        fixed = self.workload.fixed
        taken, seconds, first = 0, 0.0, None
        while True:
            more = fixed or max(1, math.ceil(taken * (self.workload.ratio - 1)))
            more = more if taken or fixed else self.workload.first
            if taken:  # at most what the time allows
                more = min(more, max(1, math.ceil((limit - seconds) * taken / seconds)))
            seconds += process.ask("advance", steps=more, within=PATIENCE + 5 * limit)["seconds"]
            taken += more
            left = self.look(process)
            done = process.ask("finished")["finished"] or fixed
            if left > 1:
                first = None
            elif first is None and not done:
                first = Found(settings, taken, seconds, left)
                continue
            else:
                return first or Found(settings, taken, seconds, left)
            if seconds >= limit or taken >= ENOUGH or done or not math.isfinite(left):
                return Found(settings, taken, seconds, left)

    def best(self, peer: str, settings: list[dict[str, Any]]) -> Found:
        """The best setting; raise an error only if all fail."""
        found: list[Found] = []
        process, error = None, None
        for one in settings:
            try:
                process = process or self.process(peer)
                found.append(self._timed(process, self.search(process, one)))
            except PeerError as raised:  # the next setting gets a fresh process
                error = raised
                if process:
                    process.close()
                process = None
        if process:
            process.close()
        if not found:
            raise error or PeerError("no settings to try")
        return min(found, key=lambda f: f.rank)

    def _timed(self, process: Process, found: Found) -> Found:
        """Time a short successful run again, without the looks; its rank uses that time."""
        if not found.reached or found.seconds > 1:
            return found
        job = self.job(found.settings)
        times = [self._once(process, job, found.steps) for _ in range(self.workload.repeats)]
        return dataclasses.replace(found, seconds=statistics.median(times))

    def measure(self, peer: str, found: Found) -> dict[str, Any]:
        """Time a known number of iterations in a fresh process, first cold, then warm."""
        job, steps = self.job(found.settings), found.steps
        long = found.seconds > LONG  # use the time of the search and do not repeat the run
        with self.process(peer) as process:
            before = process.ask("reset_peak")["bytes"]
            cold = self._once(process, job, 1 if long else steps)
            peak = process.ask("peak")["bytes"]
            repeats = 0 if long else self.workload.repeats
            warm = [self._once(process, job, steps) for _ in range(repeats)] or [found.seconds]
            each = found.seconds / steps if long else self._each(process, job)
            process.ask("start", job=self.job(found.settings, count=True))
            process.ask("advance", steps=1, within=PATIENCE)
            calls = process.ask("calls")["calls"]
        seconds = statistics.median(warm)
        first = cold + seconds - seconds / steps if long else cold
        return {
            "settings": found.settings,
            "reached": found.reached,
            "left": found.left if math.isfinite(found.left) else None,
            "iterations": steps,
            "seconds": seconds,
            "microseconds_per_iteration": 1e6 * each,
            "first_call_seconds": first,
            "startup_seconds": process.startup,
            "total_seconds": process.startup + first,
            "peak_bytes": peak - before,
            "calls_in_one_iteration": calls,
        }

    def _each(self, process: Process, job: dict[str, Any]) -> float:
        """Seconds per iteration, in a run long enough to time."""
        process.ask("start", job=job, within=PATIENCE)
        steps, seconds = 1, 0.0
        while True:
            seconds = process.ask("advance", steps=steps, within=PATIENCE)["seconds"]
            if seconds >= 0.2 or steps >= ENOUGH or process.ask("finished")["finished"]:
                return seconds / steps
            steps *= 4

    @staticmethod
    def _once(process: Process, job: dict[str, Any], steps: int) -> float:
        begun = process.ask("start", job=job, within=PATIENCE)["seconds"]
        return begun + process.ask("advance", steps=steps, within=PATIENCE)["seconds"]
