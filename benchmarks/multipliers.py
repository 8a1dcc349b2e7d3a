"""Rules for AutoPDBO's multipliers compared: all else equal, random starts, default settings.

Run as `python -m benchmarks.multipliers`. It uses the problems of the collection with one x and one
y in boxes, which share a compiled program. The rule is chosen on the first half of the collection
(the even positions of its list, counted from zero); both halves are in the record,
benchmarks/records/multipliers.json.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pdbo
from pdbo import problems
from pdbo.experiments import problems as board
from pdbo.solvers.auto import search

from .record import write

STARTS, STEPS = 32, 1000


def closed_form(model: Any, mix: jax.Array) -> jax.Array:
    """The smallest multiplier that brings the linearised worst cut to the slack in one f-step."""
    worst = jnp.argmax(model.excess)
    slope = model.grad_h[worst]
    size = slope @ slope
    m = (model.L_f * model.excess[worst] - slope @ model.grad_f) / jnp.where(size > 0, size, 1)
    return jnp.zeros_like(mix).at[worst].set(jnp.maximum(m, 0) * model.L_h / model.L_f)


def ascent(rate: float) -> Callable:
    """Clipped ascent: up or down by at most `rate` of itself, as the cut is violated or not."""

    def rule(model: Any, mix: jax.Array) -> jax.Array:
        width = jnp.maximum(jnp.max(jnp.abs(model.excess)), 1e-30)
        c = rate * jnp.clip(model.excess / width, -1, 1)
        return jnp.clip(mix * (1 + c) + jnp.maximum(c, 0), 0, 1e8)

    return rule


def augmented(weight: float) -> Callable:
    r"""Augmented Lagrangian: $[\lambda_k + \rho\,(h_k - \delta)]_+$ after every step.

    $\rho$ is `weight` times $L_f / \|\nabla h_k\|^2$; at weight 1 the penalty is as stiff as f.
    """

    def rule(model: Any, mix: jax.Array) -> jax.Array:
        size = jnp.sum(model.grad_h**2, axis=1)
        rho = weight * model.L_f / jnp.where(size > 0, size, 1)
        return jnp.clip(mix + rho * model.excess * model.L_h / model.L_f, 0, 1e8)

    return rule


RULES = {
    "local model": search.complementary,
    "closed form": closed_form,
    "augmented Lagrangian, 0.1": augmented(0.1),
    "augmented Lagrangian, 1": augmented(1.0),
    "augmented Lagrangian, 10": augmented(10.0),
    "clipped ascent, 0.1": ascent(0.1),
    "clipped ascent, 0.5": ascent(0.5),
}


def measure(rule: Callable, entries: dict[str, Any]) -> dict[str, Any]:
    """For each half, the per cent of runs solved and the median of their oracle calls."""
    search.complementary = rule
    jax.clear_caches()
    marks = np.unique(np.geomspace(1, STEPS, 20).astype(int))
    names = list(problems.names())
    scores: dict[str, list[Any]] = {"first half": [], "second half": []}
    for name, (entry, problem) in entries.items():
        found = board._runs(problem, pdbo.AutoPDBO(), entry.starts(STARTS, 0), marks, 0)
        half = "first half" if names.index(name) % 2 == 0 else "second half"
        scores[half].append(board._score(entry, found, STARTS))
    return {
        half: {
            "solved": round(100 * float(np.mean([s["solved"] for s in rows])), 1),
            "oracle calls": float(np.median([s["all_calls"] for s in rows])),
        }
        for half, rows in scores.items()
    }


def main() -> None:
    """Measure every rule and write the record."""
    jax.config.update("jax_enable_x64", True)
    entries = board._entries(list(problems.names()))
    alike = {n: e for n, e in entries.items() if e[1] is not e[0].problem}
    results = {}
    for name, rule in RULES.items():
        results[name] = measure(rule, alike)
        print(f"{name:<28}{results[name]}", flush=True)
    search.complementary = RULES["local model"]
    settings = {"starts": STARTS, "steps": STEPS, "problems": list(alike)}
    print(write("multipliers", settings, results))


if __name__ == "__main__":
    main()
