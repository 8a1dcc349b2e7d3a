"""The default against tuned methods on data cleaning, with three ways to corrupt the labels.

    python -m benchmarks.protocols --data FOLDER [--models linear network] [--protocols ours ...]

runs the default, which has nothing to tune, and presets, which were tuned on other splits of MNIST,
with the same number of oracle calls on five splits of the idx files in FOLDER. Accuracy on test
images and F1 of the last iterate go to benchmarks/records/protocols-NAME.json.
"""

import argparse
import pathlib
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pdbo
from pdbo import presets
from pdbo.experiments import _corruption, cleaning
from pdbo.experiments._corruption import PROTOCOLS
from pdbo.experiments._images import Images, images
from pdbo.solvers import BatchPDBO
from pdbo.solvers._batch_pdbo import RATES, TRIAL
from pdbo.solvers._streamed import Streamed

from .record import write

CALLS, SPLITS, SEED = 10_000, 5, 700
DEFAULT = RATES * TRIAL + (CALLS - RATES * TRIAL) // 3  # steps of the default
RIVALS = ("PDBO", "VPBGD", "F2SA")


@eqx.filter_jit
def _run(problem: pdbo.Problem, solver: Any, x: Any, y: Any, steps: jax.Array, key: Any) -> Any:
    state = solver.init(problem, x, y, key)
    return solver.output(lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state))


@eqx.filter_jit
def _plain(part: dict, w: Any, step: float) -> Any:
    return jax.tree.map(lambda a: a[-1], cleaning.fit(part, w, cleaning.FITS, step, 0))


def rows(model: str, name: str) -> dict[str, tuple[Any, int, float]]:
    """By row: the solver, its steps, and the unit of x."""
    found: dict[str, tuple[Any, int, float]] = {"default": (BatchPDBO(), DEFAULT, 1.0)}
    if not PROTOCOLS[name].boxed:  # presets are for logits
        for rival in RIVALS:
            preset = presets.get(f"cleaning-{model}/{rival}")
            steps = CALLS // cleaning.CALLS_PER_STEP[rival]
            found[f"{rival}, tuned"] = (preset.solver, steps, preset.units["scale"])
    return found


def measure(found: Images, model: str, name: str, share: float) -> dict[str, Any]:
    """The scores of every row on every split, in per cent."""
    protocol, results = PROTOCOLS[name], {}
    splits = [_corruption.draw(found, [SEED, k], protocol, share) for k in range(SPLITS)]
    kept = [(row, given) for row, given in rows(model, name).items()]
    for row, given in [*kept, ("trained on noisy labels", None)]:
        began, scores = time.perf_counter(), {"accuracy": [], "f1": []}
        for k, data in enumerate(splits):
            w = cleaning.start(model, found.pixels.shape[1], k)
            if given is None:
                part = {key: jnp.asarray(data["train"][key]) for key in "Xy"}
                y = _plain(part, w, jnp.asarray(cleaning.FIT_STEP[model], jnp.float32))
            else:
                solver, steps, scale = given
                problem, x = _corruption.problem(data, protocol, scale)
                at = _run(problem, Streamed(solver), x, w, jnp.asarray(steps), jax.random.key(k))
                y = at.y
                clean = jnp.asarray(data["clean"]["clean"])
                scores["f1"].append(100 * float(_corruption.f1(at.x, clean, protocol)))
            test = (jnp.asarray(data["test"][key]) for key in "Xy")
            scores["accuracy"].append(100 * float(cleaning.accuracy(y, *test)))
        results[row] = scores | {"seconds": time.perf_counter() - began}
        means = {k: round(float(np.mean(v)), 2) for k, v in scores.items() if v}
        print(found.name, name, model, row, means, f"{results[row]['seconds']:.0f} s", flush=True)
    return results


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder of idx files")
    parser.add_argument("--models", nargs="*", default=cleaning.MODELS)
    parser.add_argument("--protocols", nargs="*", default=list(PROTOCOLS))
    parser.add_argument("--share", type=float, default=1.0, help="of the images to use")
    options = parser.parse_args()
    found = images(options.data)
    results = {
        f"{name}, {model}": measure(found, model, name, options.share)
        for name in options.protocols
        for model in options.models
        if not (PROTOCOLS[name].boxed and model == "network")  # published for linear models
    }
    settings = {
        "data": found.name, "images": len(found.labels), "oracle calls": CALLS, "splits": SPLITS,
        "share of the images": options.share,
        "protocols": {name: PROTOCOLS[name]._asdict() for name in options.protocols},
    }  # fmt: skip
    print("written to", write(f"protocols-{found.name.lower()}", settings, results))


if __name__ == "__main__":
    main()
