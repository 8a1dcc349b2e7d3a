"""Data on disk beside the same data in memory: steps of the default in turns.

    python -m benchmarks.streaming [--gigabytes 1.0] [--folder FOLDER]

writes examples to a file, and takes steps of `BatchPDBO` in a round with the examples in memory,
on disk (`numpy.memmap`) as the system has cached them, and on disk with the cache of the file
dropped before every run, so that the batches are read from the disk itself. The orders and the
batches are the same. The record, benchmarks/records/streaming.json, has the seconds of a step, by
the clock and of processor time, the medians of their ratios over turns, the rate at which the disk
gave single examples at random, and the memory that steps from disk add to the process.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pdbo
from pdbo._driver import take_steps_jit
from pdbo._solution import State
from pdbo.solvers import BatchPDBO
from pdbo.solvers._batch_pdbo import RATES, TRIAL
from pdbo.solvers._streamed import Streamed

from .network import inner, outer
from .record import write

INPUTS, HIDDEN, CLASSES, SIZE, VALIDATION = 1024, 512, 10, 256, 20_000
STEPS, TURNS = 8, 7


def stored(folder: pathlib.Path, gigabytes: float) -> pathlib.Path:
    """A file of random examples."""
    path, count = folder / "X.npy", int(gigabytes * 1e9 / 4 / INPUTS)
    X = np.lib.format.open_memmap(path, "w+", np.float32, (count, INPUTS))
    rng = np.random.default_rng(0)
    for start in range(0, count, 10_000):
        X[start : start + 10_000] = rng.random(X[start : start + 10_000].shape, np.float32)
    X.flush()
    return path


def dropped(path: pathlib.Path) -> None:
    """Ask the system to forget what it has cached of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def problem(X: np.ndarray) -> pdbo.Problem:
    """Cleaning with a weight for each example of the file; f has examples of its own in memory."""
    rng = np.random.default_rng(1)

    def labels(count: int) -> np.ndarray:
        return rng.integers(0, CLASSES, count).astype(np.int32)

    held = {"X": rng.normal(size=(VALIDATION, INPUTS)).astype(np.float32), "y": labels(VALIDATION)}
    train = {"X": X, "y": labels(len(X)), "index": np.arange(len(X), dtype=np.int32)}
    return pdbo.Problem(outer, inner, pdbo.Batches(held, train, SIZE))


def begun(problem: pdbo.Problem, count: int) -> State:
    """A run in a round that does not end during the measurement."""
    solver, sizes = Streamed(BatchPDBO()), (INPUTS, HIDDEN, CLASSES)
    keys = jax.random.split(jax.random.key(0), 2)
    w = [
        (jax.random.normal(k, (a, b), jnp.float32) / a**0.5, jnp.zeros(b, jnp.float32))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    state = eqx.filter_jit(solver.init)(problem, jnp.zeros(count), w, jax.random.key(0))
    state = eqx.tree_at(
        lambda s: (s.solver.round, s.solver.k, s.solver.t),
        state, tuple(jnp.asarray(v, jnp.int32) for v in (1, 0, RATES * TRIAL)),
    )  # fmt: skip
    return State(solver, state, jnp.zeros((), jnp.int32), jnp.ones(()))


def timed(problem: pdbo.Problem, run: State) -> tuple[float, float, Any]:
    """Seconds of a step by the clock and of the processor, and where the steps lead."""
    began, spent = time.perf_counter(), time.process_time()
    end = jax.block_until_ready(take_steps_jit(problem, run, jnp.asarray(STEPS, jnp.int32)))
    clock, processor = time.perf_counter() - began, time.process_time() - spent
    return clock / STEPS, processor / STEPS, end


def reading(path: pathlib.Path) -> float:
    """Examples that the disk gives in a second, one after the other at random, none cached."""
    X = np.load(path, mmap_mode="r")
    rows = np.random.default_rng(2).permutation(len(X))[:2000]
    dropped(path)
    began = time.perf_counter()
    for row in rows:
        np.array(X[row])
    return len(rows) / (time.perf_counter() - began)


def own_memory() -> float:
    """Megabytes of this process that belong to no file."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = stored(pathlib.Path(folder), options.gigabytes)
        results = measured(path)
    results["load of the machine"] = os.getloadavg()[0]
    print(results)
    settings = {
        "gigabytes on disk": options.gigabytes, "numbers in an example": INPUTS,
        "examples in a batch": SIZE, "hidden units": HIDDEN, "steps": STEPS, "turns": TURNS,
    }  # fmt: skip
    print("written to", write("streaming", settings, results))


def measured(path: pathlib.Path) -> dict[str, Any]:
    """What the record says."""
    on_disk = problem(np.load(path, mmap_mode="r"))
    run = begun(on_disk, on_disk.data.inner.length)
    timed(on_disk, run)  # compiles
    before = own_memory()
    timed(on_disk, run)
    added = own_memory() - before
    in_memory = problem(np.load(path))
    *_, end = timed(in_memory, run)
    *_, other = timed(on_disk, run)
    pairs = zip(jax.tree.leaves(end.point), jax.tree.leaves(other.point), strict=True)
    apart = max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)
    rows: dict[str, list[tuple[float, float]]] = {"memory": [], "disk, cached": [], "disk": []}
    for _ in range(TURNS):
        for name, seen in rows.items():
            if name == "disk":
                dropped(path)
            seen.append(timed(in_memory if name == "memory" else on_disk, run)[:2])
    results: dict[str, Any] = {}
    for k, kind in enumerate(("clock", "processor")):
        base = [row[k] for row in rows["memory"]]
        results[f"seconds of a step, {kind}"] = {
            name: statistics.median(row[k] for row in seen) for name, seen in rows.items()
        }
        results[f"over memory, {kind}"] = {
            name: statistics.median(row[k] / b for row, b in zip(seen, base, strict=True))
            for name, seen in rows.items()
            if name != "memory"
        }
    return results | {
        "largest difference of the ends": apart,
        "examples from disk in a second, one by one": reading(path),
        "megabytes that steps from disk add": added,
        "megabytes of the file": path.stat().st_size / 2**20,
    }


if __name__ == "__main__":
    main()
