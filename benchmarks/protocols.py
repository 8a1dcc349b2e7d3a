"""The default against tuned methods on data cleaning, with three ways to corrupt the labels.

    python -m benchmarks.protocols --data FOLDER [--models linear network] [--protocols ours ...]
                                   [--rows default "PDBO, tuned" ...]

runs the default, which has nothing to tune, and presets, which were tuned on other splits of MNIST,
with the same number of oracle calls on five splits of the idx files in FOLDER, or of scikit-learn's
digits if FOLDER is "digits". Accuracy on test images and F1 of the last iterate go to
benchmarks/records/protocols-NAME.json, row by row, each with its date and commit; other rows of a
record with the same settings stay. V-PBGD's published runs took 40,000 steps for the linear model
and 80,000 for the network, whose units are logistic there, with all images in each.

For BOME's protocol there are two bounds besides: a linear model fitted, without a ridge, to the
validation images and to all training images with their true labels, as in BOME's code, or to those
alone whose label is right, as if a method had found every wrong one. Of the points on the way, that
with the lowest loss on the images of the training set that no part has counts, as in that code.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import pathlib
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import pdbo
from pdbo import presets
from pdbo._driver import take_steps
from pdbo._minimize import minimize
from pdbo._solution import State
from pdbo.experiments import _corruption, cleaning
from pdbo.experiments._corruption import PROTOCOLS
from pdbo.experiments._images import Images, _digits, images
from pdbo.solvers import BatchPDBO
from pdbo.solvers._batch_pdbo import RATES, TRIAL
from pdbo.solvers._streamed import Streamed

from .record import FOLDER, moment, write

CALLS, SPLITS, SEED = 10_000, 5, 700
DEFAULT = RATES * TRIAL + (CALLS - RATES * TRIAL) // 3  # steps of the default
RIVALS = ("PDBO", "VPBGD", "F2SA")
BOUNDS = {"fitted to all true labels": False, "fitted to the right labels": True}
LOOKS, BETWEEN = 8, 20  # at the loss on other images, and gradients between two of them


@eqx.filter_jit
def _run(problem: pdbo.Problem, solver: Any, x: Any, y: Any, steps: jax.Array, key: Any) -> Any:
    run = State(solver, solver.init(problem, x, y, key), jnp.zeros((), jnp.int32), jnp.ones(()))
    return solver.output(take_steps(problem, run, steps).solver_state)


@eqx.filter_jit
def _plain(part: dict, w: Any, step: float) -> Any:
    return jax.tree.map(lambda a: a[-1], cleaning.fit(part, w, cleaning.FITS, step, 0))


@eqx.filter_jit
def _nearer(w: Any, part: dict[str, jax.Array]) -> Any:
    """The weights after some more quasi-Newton steps on the mean loss of these images."""
    flat, shaped = ravel_pytree(w)

    def loss(v: jax.Array) -> jax.Array:
        return cleaning.losses(shaped(v), part["X"], part["y"]).mean()

    return shaped(minimize(loss, pdbo.Free(), flat, BETWEEN).point)


def bound(found: Images, split: Any, seed: list[int], w: Any, right: bool) -> float:
    """The accuracy of a model fitted to true labels, of all training images or the right ones."""
    order = np.random.default_rng(seed).permutation(len(found.labels))
    train, held = split["train"], split["validation"]
    rest = order[len(train["y"]) + len(held["y"]) :]
    pixels = found.pixels[order[: len(train["y"])]]
    apart = (found.pixels[rest] - pixels.mean(dtype=np.float32)) / (
        pixels.std(dtype=np.float32) + np.float32(1e-4)
    )
    true, clean = found.labels[order[: len(train["y"])]], split["clean"]["clean"]
    np.testing.assert_array_equal(true == train["y"], clean)  # the images of this split
    kept = clean if right else np.full(len(clean), True)
    part = {
        "X": jnp.asarray(np.concatenate([train["X"][kept], held["X"]])),
        "y": jnp.asarray(np.concatenate([true[kept], held["y"]])),
    }
    seen = []
    for _ in range(LOOKS):
        w = _nearer(w, part)
        loss = cleaning.losses(w, jnp.asarray(apart), jnp.asarray(found.labels[rest])).mean()
        test = (jnp.asarray(split["test"][key]) for key in "Xy")
        seen.append((float(loss), 100 * float(cleaning.accuracy(w, *test))))
    return min(seen)[1]


def rows(model: str, name: str) -> dict[str, tuple[Any, int, float] | None]:
    """By row: the solver, its steps, and the unit of x; None for plain training and bounds."""
    found: dict[str, tuple[Any, int, float] | None] = {"default": (BatchPDBO(), DEFAULT, 1.0)}
    if not PROTOCOLS[name].boxed:  # presets are for logits
        for rival in RIVALS:
            preset = presets.get(f"cleaning-{model}/{rival}")
            steps = CALLS // cleaning.CALLS_PER_STEP[rival]
            found[f"{rival}, tuned"] = (preset.solver, steps, preset.units["scale"])
    found["trained on noisy labels"] = None
    return found | (dict.fromkeys(BOUNDS) if PROTOCOLS[name].boxed else {})


def measure(data: pathlib.Path, model: str, name: str, share: float, row: str) -> dict[str, Any]:
    """The scores of a row on every split, in per cent."""
    found, protocol = _read(data), PROTOCOLS[name]
    given = rows(model, name)[row]
    began, scores = time.perf_counter(), {"accuracy": [], "f1": []}
    for k in range(SPLITS):
        split = _corruption.draw(found, [SEED, k], protocol, share)
        w = cleaning.start(model, found.pixels.shape[1], k)
        if row in BOUNDS:
            scores["accuracy"].append(bound(found, split, [SEED, k], w, BOUNDS[row]))
            continue
        if given is None:
            part = {key: jnp.asarray(split["train"][key]) for key in "Xy"}
            y = _plain(part, w, jnp.asarray(cleaning.FIT_STEP[model], jnp.float32))
        else:
            solver, steps, scale = given
            problem, x = _corruption.problem(split, protocol, scale)
            at = _run(problem, Streamed(solver), x, w, jnp.asarray(steps), jax.random.key(k))
            y = at.y
            clean = jnp.asarray(split["clean"]["clean"])
            scores["f1"].append(100 * float(_corruption.f1(at.x, clean, protocol)))
        test = (jnp.asarray(split["test"][key]) for key in "Xy")
        scores["accuracy"].append(100 * float(cleaning.accuracy(y, *test)))
    seconds = time.perf_counter() - began
    means = {k: round(float(np.mean(v)), 2) for k, v in scores.items() if v}
    print(found.name, name, model, row, means, f"{seconds:.0f} s", flush=True)
    return scores | {"seconds": seconds, **moment()}


def _read(data: pathlib.Path) -> Images:
    return _digits() if data == pathlib.Path("digits") else images(data)


def _kept(name: str, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The protocols and the rows of an earlier record, if its other settings are the same."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return {}, {}
    record = json.loads(path.read_text())
    protocols = record["settings"].pop("protocols")
    return (protocols, record["results"]) if record["settings"] == settings else ({}, {})


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder of idx files")
    parser.add_argument("--models", nargs="*", default=cleaning.MODELS)
    parser.add_argument("--protocols", nargs="*", default=list(PROTOCOLS))
    parser.add_argument("--rows", nargs="*", help="all unless given")
    parser.add_argument("--share", type=float, default=1.0, help="of the images to use")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    found = _read(options.data)
    tasks = [
        (model, name, row)
        for name in options.protocols
        for model in options.models
        if not (PROTOCOLS[name].boxed and model == "network")  # published for linear models
        for row in rows(model, name)
        if not options.rows or row in options.rows
    ]
    settings = {
        "data": found.name, "images": len(found.labels), "oracle calls": CALLS, "splits": SPLITS,
        "share of the images": options.share,
    }  # fmt: skip
    record = f"protocols-{found.name.lower()}"
    protocols, results = _kept(record, settings)
    protocols |= {name: PROTOCOLS[name]._asdict() for name in options.protocols}
    settings["protocols"] = protocols
    with concurrent.futures.ProcessPoolExecutor(
        options.processes, multiprocessing.get_context("spawn")
    ) as pool:
        given = [(m, n, options.share, row) for m, n, row in tasks]
        futures = [pool.submit(measure, options.data, *g) for g in given]
        for (model, name, row), future in zip(tasks, futures, strict=True):
            results.setdefault(f"{name}, {model}", {})[row] = future.result()
            path = write(record, settings, results)
    print("written to", path)


if __name__ == "__main__":
    main()
