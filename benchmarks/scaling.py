"""How the cost per iteration grows with dimension and non-zeros, and memory with N."""

import pathlib
import statistics
import tempfile
from typing import Any

import numpy as np

from .peers.process import PeerError, Process
from .settings import ENTRIES
from .workloads import Arrays, counter_example

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
INNER = (1, 10, 100, 1_000)
CLASSES = 4
PER_ROW = 10
FEATURES = 200
UNROLLED: dict[str, dict[str, Any]] = {
    "pdbo": {"solver": "PDBO"},
    "jaxopt": {"mode": "unrolled", "linear_steps": 5},
    "torchopt": {"mode": "explicit"},
    "higher": {},
    "betty": {"mode": "darts"},
    "boat": {"mapping": ["NGD"], "approximation": ["RAD"]},
}


def dimension(threads: int, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Microseconds per PDBO iteration on the counter-example against n."""

    def job(n: int) -> dict[str, Any]:
        settings = {"solver": "PDBO", "options": {"dual_step": 0.1 / n}}
        return {"family": "counter-example", "settings": settings, "count": False}

    return _against("n", sizes, lambda n: counter_example(n, 0.0, 0.0), job, threads)


def non_zeros(threads: int, sizes: tuple[int, ...] = SIZES[1:]) -> dict[str, Any]:
    """Microseconds per PDBO iteration of sparse logistic regression against the non-zeros."""
    options = {"primal_step": 0.1, "dual_step": 1e-3, "smoothing": 1e-8}
    job = {"family": "logistic", "settings": {"solver": "PDBO", "options": options}, "count": False}
    return _against("non-zeros", sizes, sparse_data, lambda n: job, threads)


def sparse_data(count: int) -> Arrays:
    """Random sparse data with `count` non-zeros, ten per row: more rows, the same features."""
    rng = np.random.default_rng(0)
    rows = count // PER_ROW
    block = FEATURES // PER_ROW  # a row has one entry in each block of columns
    arrays: Arrays = {}
    for name in ("A", "A_val"):
        columns = block * np.arange(PER_ROW) + rng.integers(0, block, (rows, PER_ROW))
        arrays |= {
            f"{name}.values": rng.standard_normal(count).astype(np.float32) / PER_ROW**0.5,
            f"{name}.rows": np.repeat(np.arange(rows, dtype=np.int32), PER_ROW),
            f"{name}.columns": columns.ravel().astype(np.int32),
            f"{name}.shape": np.array([rows, FEATURES]),
            f"b{name[1:]}": rng.integers(0, CLASSES, rows),
        }
    zero = np.zeros((FEATURES, CLASSES), np.float32)
    return arrays | {"x0": zero, "y0": zero}


def _against(
    what: str, sizes: tuple[int, ...], make: Any, job: Any, threads: int, repeats: int = 5
) -> dict[str, Any]:
    micros = []
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder, Process("ours", threads) as process:
            file = str(pathlib.Path(folder) / "data.npz")
            np.savez(file, **make(n))
            process.ask("load", file=file)
            process.ask("start", job=job(n), within=300)
            process.ask("advance", steps=1, within=300)
            steps = 1
            while (seconds := process.ask("advance", steps=steps)["seconds"]) < 0.1:
                steps *= 4
            times = [seconds]
            times += [process.ask("advance", steps=steps)["seconds"] for _ in range(repeats)]
        micros.append(1e6 * statistics.median(times) / steps)
    slope = np.polyfit(np.log(sizes), np.log(micros), 1)[0]
    return {
        "against": what,
        "sizes": list(sizes),
        "microseconds_per_iteration": micros,
        "exponent": float(slope),
    }


def memory(
    threads: int, entries: list[str], n: int = 100_000, counts: tuple[int, ...] = INNER
) -> dict[str, Any]:
    """Peak bytes of one iteration on the counter-example against the inner steps N."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = str(pathlib.Path(folder) / "data.npz")
        np.savez(file, **counter_example(n, 0.0, 0.0))  # type: ignore
        for entry in entries:
            if entry not in UNROLLED:
                continue
            try:
                found[entry] = [_peak(entry, file, n, count, threads) for count in counts]
            except PeerError as error:
                found[entry] = {"error": str(error)}
    return {"n": n, "inner_steps": list(counts), "bytes": found}


def _peak(entry: str, file: str, n: int, count: int, threads: int) -> int:
    """Peak bytes, in a fresh process because freed memory is not always returned to the system."""
    base = {"inner_step": 0.1, "inner_steps": count, "outer": "sgd", "outer_step": 0.1}
    settings = base | UNROLLED[entry]
    if entry == "pdbo":
        settings |= {"options": {"inner_steps": count, "dual_step": 0.1 / n}}
    with Process(ENTRIES[entry], threads) as process:
        process.ask("load", file=file)
        job = {"family": "counter-example", "settings": settings, "count": False}
        process.ask("start", job=job)
        before = process.ask("reset_peak")["bytes"]
        process.ask("advance", steps=2, within=300)
        return process.ask("peak")["bytes"] - before
