"""A process that runs one library: orders come in and answers go out as lines of JSON.

The suite sends `start` (a fresh run of a workload with some settings), `advance` (a number of
iterations, timed here) and `point` (write the current point to a file). This process judges
nothing: the suite looks at the points. The module needs only NumPy, so any environment can load it.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Run(Protocol):
    """A run under way."""

    def advance(self, steps: int) -> None:
        """Take `steps` outer iterations and wait until they are done."""

    def point(self) -> tuple[Any, Any]:
        """The current x and y."""


def once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function of arrays once per process and cache its result.

    A process has the data of one workload.
    """
    kept: dict[str, Any] = {}

    def prepared(*arguments: Any) -> Any:
        if "it" not in kept:
            kept["it"] = make(*arguments)
        return kept["it"]

    return prepared


class Counted:
    """A function that counts how often it is evaluated."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.count = function, 0

    def __call__(self, *arguments: Any) -> Any:
        """Evaluate and count."""
        self.count += 1
        return self.function(*arguments)


def serve(begin: Callable[[dict[str, Any], dict[str, np.ndarray]], Run]) -> None:
    """Answer orders until the input ends; `begin(job, data)` makes a run."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    sys.stdout = sys.stderr  # libraries print; answers go through a separate channel
    session = _Session(begin)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(session, order.pop("do"))(**order)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps(answer), file=answers)


class _Session:
    def __init__(self, begin: Callable[..., Run]):
        self.begin = begin
        self.data: dict[str, np.ndarray] = {}
        self.run: Any = None

    def load(self, file: str) -> dict[str, Any]:
        """Read the workload's arrays."""
        with np.load(file) as arrays:
            self.data = {name: arrays[name] for name in arrays.files}
        return {}

    def start(self, job: dict[str, Any]) -> dict[str, Any]:
        """A fresh run; what it takes to set up is timed."""
        self.run = None
        begun, busy = time.perf_counter(), time.process_time()
        self.run = self.begin(job, self.data)
        return {"seconds": time.perf_counter() - begun, "busy": time.process_time() - busy}

    def advance(self, steps: int) -> dict[str, Any]:
        """Take `steps` iterations; return wall-clock and processor seconds."""
        begun, busy = time.perf_counter(), time.process_time()
        self.run.advance(steps)
        return {"seconds": time.perf_counter() - begun, "busy": time.process_time() - busy}

    def point(self, file: str) -> dict[str, Any]:
        """Write x and y to a file; say whether they are finite."""
        x, y = (np.asarray(part, np.float64) for part in self.run.point())
        np.savez(file, x=x, y=y)
        return {"finite": bool(np.isfinite(x).all() and np.isfinite(y).all())}

    def finished(self) -> dict[str, Any]:
        """Whether the run has ended by itself, so that further iterations change nothing."""
        return {"finished": bool(getattr(self.run, "finished", False))}

    def calls(self) -> dict[str, Any]:
        """Evaluations of f and g since the start, if the run counts them."""
        counted = getattr(self.run, "calls", None)
        return {"calls": counted() if counted else None}

    def reset_peak(self) -> dict[str, Any]:
        """Reset the peak memory, if the system allows it."""
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:
            pass
        return {"bytes": memory("VmRSS")}

    def peak(self) -> dict[str, Any]:
        """The largest resident memory since the last reset."""
        return {"bytes": memory("VmHWM")}


def memory(which: str) -> int:
    """Resident memory of this process in bytes, now (VmRSS) or at its largest (VmHWM)."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(which):
                return 1024 * int(line.split()[1])
    return 0
