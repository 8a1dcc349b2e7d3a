"""Sinusoid meta-learning in ten seconds of processor time, in a fresh process for every run.

    python -m benchmarks.meta [--seconds 10]

calls `pdbo.solve(problem, x0, y0)`, with nothing to tune, for the eight waves of five seeds, and
two methods with steps that were tuned on tasks of another seed. Each run is stopped at the first
record after so many seconds of processor time, of both cores together and with compilation: it
takes no longer by the clock on a machine that has nothing else to do. The record,
benchmarks/records/meta-seconds.json, holds f at the solution, which is the validation loss of the
weights y there, the same after the weights of every task were learnt from x again, which may end in
another minimum, and that for new tasks.
"""

import argparse
import concurrent.futures
import multiprocessing
import time
from typing import Any

import equinox as eqx
import jax
import numpy as np

import pdbo
from pdbo.experiments import meta

from .record import write

SEEDS, MOST = 5, 1_000_000


def measure(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """The losses of one method and seed."""
    tasks = meta.sinusoids(seed)
    problem, x, w = meta.problem(tasks), *meta.start(tasks, seed)
    jax.block_until_ready(w)
    began, spent = time.perf_counter(), time.process_time()
    named: dict[str, Any] = {}  # the default is called with nothing
    if name != meta.DEFAULT:
        named = {"solver": meta.solvers("sinusoid")[name], "tol": None, "steps": MOST}
    below: list[float] = []  # the seconds at records where f was below the target

    def over(row: dict[str, Any]) -> bool:
        passed = time.process_time() - spent
        if row["f"] < meta.TARGET:
            below.append(passed)
        return passed >= seconds

    found = pdbo.solve(problem, x, w, callback=over, throw=False, **named)  # rivals may diverge
    took = {
        "wall seconds": time.perf_counter() - began, "CPU seconds": time.process_time() - spent,
    }  # fmt: skip
    new, loss = meta.problem(tasks, new=True), eqx.filter_jit(lambda p, x: meta.adapted(p, x)[1])
    return took | {
        "steps": int(found.steps),
        f"CPU seconds until f is below {meta.TARGET}": below[0] if below else None,
        "f": float(problem.outer(found.x, found.y)),
        "validation loss": float(loss(problem, found.x)),
        "at the start": float(loss(problem, x)),
        "on new tasks": float(loss(new, found.x)),
        "on new tasks at the start": float(loss(new, x)),
    }


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in (meta.DEFAULT, *meta.RIVALS["sinusoid"]):
        rows = []
        for seed in range(SEEDS):
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
                rows.append(pool.submit(measure, name, seed, options.seconds).result())
            print(name, seed, rows[-1], flush=True)
        means = {
            f"mean {key}": float(np.mean([row[key] for row in rows]))
            for key in ("f", "validation loss", "at the start", "on new tasks")
        }
        print(name, means)
        results[name] = means | {f"seed {seed}": row for seed, row in enumerate(rows)}
    settings = {"processor seconds": options.seconds, "tasks": meta.TASKS, "shots": meta.SHOTS}
    print("written to", write("meta-seconds", settings, results))


if __name__ == "__main__":
    main()
