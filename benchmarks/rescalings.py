"""The default on data cleaning in random units: is it ever not finite, or below plain training?

    python -m benchmarks.rescalings [--count 200] [--processes 1]

draws units of f, g, x and the pixels, the size of batches and the start, for digits with half of
the labels wrong, linear model and network, and compares the test accuracy with that of plain
training on the noisy labels in the units of the data. The record is
benchmarks/records/rescalings.json.
"""

import argparse
import concurrent.futures
import multiprocessing
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pdbo
from pdbo._driver import take_steps
from pdbo._solution import State
from pdbo.experiments import cleaning
from pdbo.experiments._images import _digits
from pdbo.solvers import BatchPDBO
from pdbo.solvers._batch_pdbo import RATES, TRIAL
from pdbo.solvers._streamed import Streamed

from .record import write

CALLS, COUNT, SPLITS = 6000, 200, 4
STEPS = RATES * TRIAL + (CALLS - RATES * TRIAL) // 3
SIZES = (10, 30, 100, 300)
RANGES = {"f": 3.0, "g": 3.0, "x": 2.0, "pixels": 1.0, "start": 1.0}  # factors 10^-r to 10^r


def outer(x: Any, w: Any, batch: Any) -> jax.Array:
    """The loss on validation images, in a unit of its own."""
    return batch["unit"][0] * cleaning.outer(x, w, batch)


def inner(x: Any, w: Any, batch: Any) -> jax.Array:
    """The weighted loss on training images, in a unit of its own."""
    return batch["unit"][0] * cleaning.inner(x, w, batch)


def problem(data: Any, units: dict[str, float], size: int) -> pdbo.Problem:
    """The problem in other units; x is in such that a logit is `x` times it."""

    def part(given: dict, unit: float, **more: float) -> dict:
        numbers = {"unit": unit, **more}
        filled = {k: np.full(len(given["y"]), v, np.float32) for k, v in numbers.items()}
        return given | {"X": given["X"] * np.float32(units["pixels"])} | filled

    validation = part(data["validation"], units["f"])
    train = part(data["train"], units["g"], scale=units["x"])
    return pdbo.Problem(outer, inner, pdbo.Batches(validation, train, size))


@eqx.filter_jit
def _run(problem: pdbo.Problem, x: Any, y: Any, key: Any) -> Any:
    solver = Streamed(BatchPDBO())
    run = State(solver, solver.init(problem, x, y, key), jnp.zeros((), jnp.int32), jnp.ones(()))
    return solver.output(take_steps(problem, run, jnp.asarray(STEPS)).solver_state)


def measure(numbers: list[int]) -> list[dict[str, Any]]:
    """A row for each of these draws."""
    digits, rows = _digits(), []
    splits = [cleaning.draw(digits, [900 + k], 600) for k in range(SPLITS)]
    test = jnp.asarray(digits.test_pixels), jnp.asarray(digits.test_labels)
    plain = {
        model: [float(cleaning.accuracy(_fitted(split, model), *test)) for split in splits]
        for model in cleaning.MODELS
    }
    for number in numbers:
        rng, model = np.random.default_rng([0, number]), cleaning.MODELS[number % 2]
        split = splits[k := int(rng.integers(SPLITS))]
        units = {name: float(10 ** rng.uniform(-r, r)) for name, r in RANGES.items()}
        size, spread = int(rng.choice(SIZES)), np.float32(0.1 * units["start"])
        leaves, structure = jax.tree.flatten(cleaning.start(model, 64, number))
        w = [a + spread * rng.normal(size=a.shape).astype(np.float32) for a in leaves]
        x = jnp.asarray(0.1 / units["x"] * rng.normal(size=600).astype(np.float32), jnp.float32)
        given = problem(split, units, size)
        at = _run(given, x, jax.tree.unflatten(structure, w), jax.random.key(number))
        finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(at[:2]))
        pixels = test[0] * np.float32(units["pixels"])
        rows.append(
            {
                "model": model, "split": k, "size": size, "units": units, "finite": finite,
                "accuracy": float(cleaning.accuracy(at.y, pixels, test[1])),
                "f1": float(cleaning.f1(at.x, jnp.asarray(split["clean"]["clean"]))),
                "plain": plain[model][k],
            }
        )  # fmt: skip
        print(number, model, size, finite, rows[-1]["accuracy"], rows[-1]["f1"], flush=True)
    return rows


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    shares = [list(range(options.count))[k :: options.processes] for k in range(options.processes)]
    with concurrent.futures.ProcessPoolExecutor(
        options.processes, multiprocessing.get_context("spawn")
    ) as pool:
        rows = [row for part in pool.map(measure, shares) for row in part]
    below = [r for r in rows if not r["finite"] or r["accuracy"] < r["plain"]]

    def quantiles(score: str) -> dict[str, list[float]]:
        shares = [0, 0.05, 0.25, 0.5]
        return {
            m: np.quantile([r[score] for r in rows if r["model"] == m], shares).tolist()
            for m in cleaning.MODELS
        }

    results = {
        "runs": len(rows), "not finite": sum(not r["finite"] for r in rows),
        "below plain training": len(below), "failures": below,
        "highest accuracy of plain training": max(r["plain"] for r in rows),
        "accuracy, quantiles 0 5 25 50": quantiles("accuracy"),
        "f1, quantiles 0 5 25 50": quantiles("f1"),
    }  # fmt: skip
    print({k: v for k, v in results.items() if k != "failures"})
    settings = {"oracle calls": CALLS, "factors 10^-r to 10^r": RANGES, "sizes": SIZES}
    print("written to", write("rescalings", settings, results))


def _fitted(split: Any, model: str) -> Any:
    """Plain training on the noisy labels, the last iterate."""
    w = cleaning.start(model, 64, 0)
    fit = jax.jit(lambda part, w: cleaning.fit(part, w, 1500, cleaning.FIT_STEP[model], 0))
    return jax.tree.map(lambda a: a[-1], fit(cleaning.parts(split)["all"], w))


if __name__ == "__main__":
    main()
