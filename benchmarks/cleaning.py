"""Choose the settings of `pdbo reproduce cleaning` on validation images of separate splits.

    python -m benchmarks.cleaning --data FOLDER

draws the same number of random settings for every method, runs them on splits that the
experiment never uses, with four fifths of the validation images for f and the rest held out, and
keeps the settings with the best accuracy on the held-out images. They are written to the file of
the presets that the experiment uses, with the ranges tried. It uses no test image and no knowledge
of the wrong labels.
"""

import argparse
import json
import pathlib
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pdbo.app.records import plain
from pdbo.experiments import cleaning
from pdbo.experiments._images import images
from pdbo.presets import _rows

from .record import provenance

SEEDS = (1000,)
TRIALS = {"linear": 16, "network": 8}
CALLS = {"linear": 6_000, "network": 2_500}  # oracle calls per trial
STEP, SCALE = (0.05, 0.5), (10, 100)
PRIMAL_DUAL = {
    "primal_step": STEP,
    "dual_step": (1e-4, 1e-2),
    "inner_step": STEP,
    "multiplier0": (0.3, 3),
}
HYPERGRADIENT = {"outer_step": (0.1, 10), "inner_step": STEP}
RANGES = {
    "PDBO": PRIMAL_DUAL,
    "Proximal-PDBO": PRIMAL_DUAL | {"proximal_f": (1e-5, 1e-2), "proximal_h": (1e-5, 1e-2)},
    "BOME": {"primal_step": STEP, "inner_step": STEP, "rate": (0.1, 2)},
    "F2SA": {
        "inner_step": STEP,
        "outer_ratio": (0.3, 10),
        "multiplier0": (0.3, 3),
        "increment": (1e-4, 1e-2),
    },
    "VPBGD": {"penalty": (0.3, 3), "primal_step": STEP, "inner_step": STEP},
    "BVFIM": {
        "outer_step": STEP,
        "inner_step": STEP,
        "barrier_step": STEP,
        "smoothing": (1e-4, 1e-2),
        "slack": (1e-2, 1),
        "outer_smoothing": (1e-4, 1e-2),
        "barrier": (0.1, 3),
        "decay": (1e-2, 0.5),
    },
    "MEHA": {
        "x_step": STEP,
        "y_step": STEP,
        "proximal_step": STEP,
        "proximal": (1, 50),
        "penalty0": (0.5, 5),
        "growth": (1e-2, 0.3),
    },
    "BigSAM+ITD": HYPERGRADIENT | {"averaging": (0.05, 1)},
    "AID-FP": HYPERGRADIENT,
    "AID-CG": HYPERGRADIENT,
    "ITD-R": HYPERGRADIENT,
}
"""The range of each setting, drawn log-uniformly; the scale of the images' weights is added."""


def draw(name: str, count: int) -> list[dict[str, float]]:
    """The settings to try, rounded to three digits."""
    rng = np.random.default_rng([2022, list(RANGES).index(name)])
    return [
        {
            k: float(f"{np.exp(rng.uniform(np.log(lo), np.log(hi))):.3g}")
            for k, (lo, hi) in (RANGES[name] | {"scale": SCALE}).items()
        }
        for _ in range(count)
    ]


def splits(folder: pathlib.Path) -> tuple[str, list[tuple]]:
    """The name of the data and, for every seed, the data for a run and the held-out images."""
    found = images(folder)
    pairs = []
    for seed in SEEDS:
        data = cleaning.draw(found, [seed], cleaning.size(found, quick=False))
        cut = 4 * len(data["validation"]["y"]) // 5
        held = {k: jnp.asarray(v[cut:]) for k, v in data["validation"].items()}
        data["validation"] = {k: v[:cut] for k, v in data["validation"].items()}
        pairs.append((jax.tree.map(jnp.asarray, data), held))
    return found.name, pairs


def choose(name: str, model: str, pairs: list[tuple], count: int) -> dict:
    """The settings whose last iterate has the best mean accuracy on the held-out images."""
    steps = CALLS[model] // cleaning.CALLS_PER_STEP[name]
    width = pairs[0][0]["train"]["X"].shape[-1]
    w0 = cleaning.start(model, width, SEEDS[0])

    @eqx.filter_jit
    def score(numbers: dict, data: dict, held: dict) -> jax.Array:
        numbers = dict(numbers)
        problem = cleaning.problem(data, numbers.pop("scale"))
        solver = cleaning.build(name, numbers)
        x0 = jnp.zeros(data["train"]["index"].shape, jnp.float32)
        state = solver.init(problem, x0, w0, jax.random.key(SEEDS[0]))
        state = lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state)
        w = solver.output(state).y
        found = cleaning.accuracy(w, held["X"], held["y"])
        return jnp.where(jnp.isfinite(cleaning.outer(None, w, held)), found, 0)

    began = time.perf_counter()
    tried = draw(name, count)
    scores = [
        np.mean([score(jax.tree.map(jnp.float32, numbers), *pair) for pair in pairs])
        for numbers in tried
    ]
    best = int(np.argmax(scores))
    spent = time.perf_counter() - began
    print(f"{name:<14}{model:<8}{scores[best]:.4f} {tried[best]} {spent:.0f} s", flush=True)
    return {"settings": tried[best], "accuracy held out": float(scores[best])}


def main() -> None:
    """Try all settings and write those chosen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder of idx files")
    parser.add_argument("--model", choices=cleaning.MODELS, nargs="*", default=cleaning.MODELS)
    options = parser.parse_args()
    data, pairs = splits(options.data)
    for model in options.model:
        chosen = {name: choose(name, model, pairs, TRIALS[model]) for name in RANGES}
        record = {
            "data": data,
            "seeds": SEEDS,
            "settings tried for each method": TRIALS[model],
            "oracle calls of each trial": CALLS[model],
            "drawn from": RANGES | {"scale": SCALE},
            "chosen": chosen,
            **provenance(),
        }
        text = json.dumps(plain(record), indent=1, sort_keys=True)
        _rows.file_of(model).write_text(text + "\n")


if __name__ == "__main__":
    main()
