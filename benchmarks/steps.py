"""How far the step-size recipe of the guide gets on data cleaning, beside defaults and presets.

    python -m benchmarks.steps --data FOLDER

runs every solver with the same number of oracle calls on several splits of digits and of the idx
files in FOLDER, and writes the test accuracy and the F1 of the last iterate to
benchmarks/records/steps.json.
"""

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import pdbo
from pdbo import presets
from pdbo.experiments import cleaning
from pdbo.experiments._images import Images, _digits, images
from pdbo.solvers import F2SA, SOBA, BatchPDBO
from pdbo.solvers._batch_pdbo import RATES, TRIAL
from pdbo.solvers._streamed import Streamed

from .record import write

CALLS, SPLITS = 10_000, 3
OURS = RATES * TRIAL + (CALLS - RATES * TRIAL) // 3  # steps of the default
FALLING = "PDBO, recipe with falling rates"
FIXED: dict[str, Any] = {
    "dual_step": 0.0, "multiplier0": 1.0, "smoothing": 0.0, "inner_steps": 1,
}  # fmt: skip


def falling(rate: float, steps: int) -> optax.Schedule:
    """A rate that falls to zero."""
    return optax.linear_schedule(rate, 0.0, steps)


def solvers(model: str) -> dict[str, tuple[Callable[[], pdbo.solvers.Solver], int, float]]:
    """By row: the solver, the oracle calls of its step, if they are constant, the scale of x."""
    adam = {"outer": optax.adam(0.1), "inner": optax.adam(0.01)}
    steps = CALLS // 4
    slower = {
        "outer": optax.adam(falling(0.1, steps)),
        "inner": optax.adam(falling(0.01, steps)),
    }
    preset = presets.get(f"cleaning-{model}/PDBO")
    return {
        "PDBO()": (pdbo.PDBO, 8, 1.0),
        "the default, BatchPDBO": (BatchPDBO, 0, 1.0),
        "PDBO, recipe": (lambda: pdbo.PDBO(**FIXED, **adam), 4, 1.0),
        FALLING: (lambda: pdbo.PDBO(**FIXED, **slower), 4, 1.0),
        "F2SA, recipe": (
            lambda: F2SA(inner_steps=1, multiplier0=1.0, increment=0.0, **adam), 6, 1.0,
        ),
        "SOBA, recipe": (lambda: SOBA(inner_step=0.1, decay=0.0, **adam), 4, 1.0),
        f"preset cleaning-{model}/PDBO": (lambda: preset.solver, 5, preset.units["scale"]),
    }  # fmt: skip


@eqx.filter_jit
def _run(problem: pdbo.Problem, solver: Any, x: Any, y: Any, steps: jax.Array) -> Any:
    state = solver.init(problem, x, y, jax.random.key(0))
    return solver.output(lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state))


def measure(found: Images, model: str) -> dict[str, dict[str, list[float]]]:
    """The scores of every row on every split."""
    size = cleaning.size(found, quick=False)
    test = jnp.asarray(found.test_pixels), jnp.asarray(found.test_labels)
    results: dict[str, dict[str, list[float]]] = {}
    for row, (make, calls, scale) in solvers(model).items():
        scores = results[row] = {"accuracy": [], "f1": []}
        for split in range(SPLITS):
            data = cleaning.draw(found, [500 + split], size)
            problem = cleaning.problem(data, scale)
            w = cleaning.start(model, found.pixels.shape[1], split)
            x = jnp.zeros(size, jnp.float32)
            at = _run(
                problem, Streamed(make()), x, w, jnp.asarray(CALLS // calls if calls else OURS)
            )
            scores["accuracy"].append(float(cleaning.accuracy(at.y, *test)))
            scores["f1"].append(float(cleaning.f1(at.x, jnp.asarray(data["clean"]["clean"]))))
        print(found.name, model, row, {k: np.round(v, 3) for k, v in scores.items()}, flush=True)
    return results


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder of idx files")
    options = parser.parse_args()
    digits, larger = _digits(), images(options.data)
    results = {
        f"{found.name}, {model}": measure(found, model)
        for found, model in ((digits, "network"), (digits, "linear"), (larger, "linear"))
    }
    settings = {
        "oracle calls": CALLS, "splits": SPLITS, "images in a batch": cleaning.SIZE,
        "share of wrong labels": 0.5,
    }  # fmt: skip
    print("written to", write("steps", settings, results))


if __name__ == "__main__":
    main()
