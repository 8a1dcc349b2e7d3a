"""The default on sinusoid meta-learning with ten seconds, in a fresh process for every seed.

    python -m benchmarks.meta [--seconds 10]

calls `pdbo.solve(problem, x0, y0, seconds=10)`, with nothing else, for the eight waves of five
seeds. The time includes compilation. The record, benchmarks/records/meta-seconds.json, holds f at
the solution, the validation loss after the weights of every task were learnt from x, and the same
for new tasks.
"""

import argparse
import concurrent.futures
import multiprocessing
import time
from typing import Any

import jax
import numpy as np

import pdbo
from pdbo.experiments import meta

from .record import write

SEEDS = 5


def measure(seed: int, seconds: float) -> dict[str, Any]:
    """The losses of one seed."""
    tasks = meta.sinusoids(seed)
    problem, x, w = meta.problem(tasks), *meta.start(tasks, seed)
    jax.block_until_ready(w)
    began, spent = time.perf_counter(), time.process_time()
    found = pdbo.solve(problem, x, w, seconds=seconds)
    took = {
        "wall seconds": time.perf_counter() - began, "CPU seconds": time.process_time() - spent,
    }  # fmt: skip
    new = meta.problem(tasks, new=True)
    return took | {
        "steps": int(found.steps),
        "f": float(problem.outer(found.x, found.y)),
        "validation loss": float(meta.adapted(problem, found.x)[1]),
        "at the start": float(meta.adapted(problem, x)[1]),
        "on new tasks": float(meta.adapted(new, found.x)[1]),
        "on new tasks at the start": float(meta.adapted(new, x)[1]),
    }


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for seed in range(SEEDS):
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
            results[f"seed {seed}"] = pool.submit(measure, seed, options.seconds).result()
        print(seed, results[f"seed {seed}"], flush=True)
    losses = [row["validation loss"] for row in results.values()]
    results["mean validation loss"] = float(np.mean(losses))
    print(results["mean validation loss"])
    settings = {"seconds": options.seconds, "tasks": meta.TASKS, "shots": meta.SHOTS}
    print("written to", write("meta-seconds", settings, results))


if __name__ == "__main__":
    main()
