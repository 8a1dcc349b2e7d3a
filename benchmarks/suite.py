"""Runs libraries on workloads: first a search for what reaches the target, then the clock."""

import dataclasses
import math
import pathlib
import statistics
import tempfile
from typing import Any

import numpy as np

from .peers.process import PeerError, Process
from .workloads import Judge, Workload

ENOUGH = 10**7  # iterations


@dataclasses.dataclass
class Found:
    """What a setting came to: iterations and seconds at the last look, and what was left then."""

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
        """Those who reach the target by time, the others by what is left."""
        return not self.reached, self.seconds if self.reached else self.left


class Bench:
    """A workload made ready: its data on disk and its judge."""

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
        """What a worker needs to know to start."""
        return {"family": self.workload.family, "settings": settings, "count": count}

    def look(self, process: Process) -> float:
        """The judge's word on where a run stands; infinite where it is not finite."""
        file = str(pathlib.Path(self.folder.name) / "point.npz")
        if not process.ask("point", file=file)["finite"]:
            return math.inf
        with np.load(file) as point:
            return float(self.judge(point["x"], point["y"]))

    def search(self, process: Process, settings: dict[str, Any]) -> Found:
        """Iterate with looks in between until the target is reached or the time is over."""
        limit = self.workload.budget
        process.ask("start", job=self.job(settings))
        process.ask("advance", steps=1)  # compiles, so that the clock below does not see it
        process.ask("start", job=self.job(settings))
        taken, seconds, left = 0, 0.0, math.inf
        while seconds < limit and taken < ENOUGH:
            more = max(1, math.ceil(taken * (self.workload.ratio - 1)))
            if taken:  # no more than the time allows
                more = min(more, max(1, math.ceil((limit - seconds) * taken / seconds)))
            seconds += process.ask("advance", steps=more, within=60 + 5 * limit)["seconds"]
            taken += more
            left = self.look(process)
            if left <= 1 or not math.isfinite(left):
                break
        return Found(settings, taken, seconds, left)

    def best(self, peer: str, settings: list[dict[str, Any]]) -> Found:
        """The best setting; an error only where every one fails."""
        found: list[Found] = []
        errors: list[PeerError] = []
        for one in settings:
            try:
                with self.process(peer) as process:
                    found.append(self.search(process, one))
            except PeerError as error:
                errors.append(error)
        if not found:
            raise errors[-1]
        return min(found, key=lambda f: f.rank)

    def measure(self, peer: str, found: Found) -> dict[str, Any]:
        """The clock on a known number of iterations, in a fresh process, first cold, then warm."""
        job, steps = self.job(found.settings), found.steps
        within = 60 + 5 * self.workload.budget
        with self.process(peer) as process:
            before = process.ask("reset_peak")["bytes"]
            cold = self._once(process, job, steps, within)
            peak = process.ask("peak")["bytes"]
            warm = [self._once(process, job, steps, within) for _ in range(self.workload.repeats)]
            process.ask("start", job=self.job(found.settings, count=True))
            process.ask("advance", steps=1, within=within)
            calls = process.ask("calls")["calls"]
        return {
            "settings": found.settings,
            "reached": found.reached,
            "left": found.left if math.isfinite(found.left) else None,
            "iterations": steps,
            "seconds": statistics.median(warm),
            "microseconds_per_iteration": 1e6 * statistics.median(warm) / steps,
            "first_call_seconds": cold,
            "startup_seconds": process.startup,
            "total_seconds": process.startup + cold,
            "peak_bytes": peak - before,
            "calls_per_iteration": calls,
        }

    @staticmethod
    def _once(process: Process, job: dict[str, Any], steps: int, within: float) -> float:
        begun = process.ask("start", job=job, within=within)["seconds"]
        return begun + process.ask("advance", steps=steps, within=within)["seconds"]
