"""What `solve` adds to the bare steps of a first-order method: records, checks and certificate.

Run as `python -m benchmarks.overhead [PART ...]`; parts are `variables` (1e5 of them), `newsgroups`
and `network` (1.1e7 parameters, mini-batches). The rounds of `solve` and of bare steps alternate,
all of them compiled beforehand, and the medians are compared. The certificate is not looked at.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pdbo
from pdbo._driver import begin, take_steps_jit
from pdbo._precision import Start
from pdbo.experiments import _corpus, newsgroups

from .record import FOLDER, write

STEPS = 1000
ROUNDS = 5


def _ratios(problem: pdbo.Problem, x0: Any, y0: Any, solver: pdbo.Solver) -> dict[str, Any]:
    """Seconds of the bare steps and of `solve`, with and without a tolerance."""
    run = begin(Start(problem, x0, y0), solver, None)
    count = jnp.asarray(STEPS, jnp.int32)

    def bare() -> Any:
        return take_steps_jit(problem, run, count).solver_state

    def solved(tol: float | None) -> Callable[[], Any]:
        return lambda: pdbo.solve(problem, x0, y0, solver, steps=STEPS, tol=tol).state

    calls = {"bare": bare, "solve": solved(1e-4), "tol=None": solved(None)}
    first = {name: _seconds(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(_seconds(call))
    median = {name: statistics.median(values) for name, values in times.items()}
    look = pdbo.solve(problem, x0, y0, solver, steps=STEPS)
    return {
        "steps": STEPS,
        "seconds": median,
        "first call": first,
        "ratio": median["solve"] / median["bare"],
        "ratio without a tolerance": median["tol=None"] / median["bare"],
        "seconds of the certificate, first": _seconds(lambda: look.certificate),
    }


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready([v for v in jax.tree.leaves(call()) if isinstance(v, jax.Array)])
    return time.perf_counter() - began


def variables(n: int = 50_000) -> dict[str, Any]:
    """A quadratic with 1e5 variables whose inner minimum is a smoothed x."""
    rng = np.random.default_rng(0)
    data = {"a": rng.standard_normal(n).astype(np.float32)}

    def f(x: Any, y: Any, d: Any) -> Any:
        return jnp.sum((y - d["a"]) ** 2) + 0.1 * jnp.sum(x**2)

    def g(x: Any, y: Any, d: Any) -> Any:
        return jnp.sum((y - x) ** 2) + jnp.sum((y[1:] - y[:-1]) ** 2)

    problem = pdbo.Problem(f, g, data)
    zero = np.zeros(n, np.float32)
    solver = pdbo.PDBO(primal_step=1e-3, inner_step=0.1, dual_step=1e-4, inner_steps=1)
    return _ratios(problem, zero, zero, solver)


def documents() -> dict[str, Any]:
    """20 Newsgroups, a hyperparameter per weight, PDBO with N = 1."""
    study = newsgroups.Study(_corpus.load(None), 0, 1)
    name = "PDBO with N = 1"
    problem, start = study.problems(name, "")[0], study.starts("")[0]
    return _ratios(problem, *start, pdbo.presets.get(f"newsgroups/{name}").solver)


def network(width: int = 2900, examples: int = 20_000) -> dict[str, Any]:
    """Weights of the examples of a network of 1.1e7 parameters, in mini-batches."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((examples, 784)).astype(np.float32)
    labels = rng.integers(0, 10, examples)
    train = {"X": X, "y": labels, "index": np.arange(examples)}
    sizes = (784, width, width, 10)
    y0 = [
        (rng.standard_normal((a, b)).astype(np.float32) / a**0.5, np.zeros(b, np.float32))
        for a, b in itertools.pairwise(sizes)
    ]

    def losses(y: Any, batch: Any) -> Any:
        out = batch["X"]
        for k, (W, b) in enumerate(y):
            out = out @ W + b
            out = jax.nn.relu(out) if k < len(y) - 1 else out
        return -jnp.take_along_axis(jax.nn.log_softmax(out), batch["y"][:, None], 1)[:, 0]

    def f(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(losses(y, batch))

    def g(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.sigmoid(x[batch["index"]]) * losses(y, batch))

    problem = pdbo.Problem(f, g, pdbo.Batches(train, train, 128))
    solver = pdbo.PDBO(primal_step=1e-2, inner_step=1e-2, dual_step=0.1, inner_steps=1)
    found = _ratios(problem, np.zeros(examples, np.float32), y0, solver)
    return {"parameters": sum(a * b + b for a, b in itertools.pairwise(sizes))} | found


PARTS = {"variables": variables, "newsgroups": documents, "network": network}


def main() -> None:
    """Measure the parts named, or all, and add them to the record."""
    path = FOLDER / "overhead.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in sys.argv[1:] or PARTS:
        results[name] = {"device": str(jax.devices()[0].device_kind), **PARTS[name]()}
        print(name, json.dumps(results[name], indent=1), flush=True)
        write("overhead", {"rounds": ROUNDS, "steps": STEPS}, results)


if __name__ == "__main__":
    main()
