"""Strongly convex quadratics in batches: the default beside SABA with the best of many steps.

    python -m benchmarks.quadratics

measures the time to a squared hypergradient norm of 1e-10, by the closed form, on 1,024 + 1,024
samples with 20 inner and 10 outer variables, compiled before, until the device is done. SABA runs
alone, without certificates, for as many steps as it needs; the default's time is that of `solve`
with its certificate. The record is benchmarks/records/quadratics.json.
"""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pdbo
from pdbo.solvers import SABA
from pdbo.solvers._streamed import Streamed

from .record import write

COUNT, NX, NY, SIZE, TARGET = 1024, 10, 20, 64, 1e-10
OUTER, INNER = (0.001, 0.003, 0.01, 0.03), (0.03, 0.1, 0.3)  # steps of x; of y, in units of 1 / L
STEPS = (1000, 2000, 4000, 8000, 16_000, 32_000)


def outer(x: Any, y: Any, d: Any) -> jax.Array:
    """A least-squares loss in y and a distance in x."""
    return jnp.mean(0.5 * (d["C"] @ y - d["d"]) ** 2) + 0.05 * jnp.sum((x - 1) ** 2)


def inner(x: Any, y: Any, d: Any) -> jax.Array:
    """A quadratic in y, tilted by x."""
    curved = jnp.mean(0.5 * (d["A"] @ y) ** 2 - d["c"] @ y) + 0.05 * jnp.sum(y**2)
    return curved - jnp.mean(d["B"] @ y @ x)


def data(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The samples of f and of g."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(COUNT, NY)) * np.logspace(0, -0.5, NY)
    c = rng.normal(size=(COUNT, NY)) + 0.3
    B = (rng.normal(size=(NX, NY)) + 0.1 * rng.normal(size=(COUNT, NX, NY))) / NY**0.5
    C, d = rng.normal(size=(COUNT, NY)), rng.normal(size=COUNT) + 1
    return {"C": C, "d": d}, {"A": A, "B": B, "c": c}


def hypergradient(f: dict, g: dict, x: np.ndarray) -> float:
    """The squared norm of the hypergradient at x, by the closed form."""
    H = g["A"].T @ g["A"] / COUNT + 0.1 * np.eye(NY)
    B = g["B"].mean(0)
    y = np.linalg.solve(H, g["c"].mean(0) + x @ B)
    f_y = f["C"].T @ (f["C"] @ y - f["d"]) / COUNT
    return float(np.sum((0.1 * (x - 1) + B @ np.linalg.solve(H, f_y)) ** 2))


@eqx.filter_jit
def _run(problem: pdbo.Problem, solver: Any, steps: jax.Array) -> Any:
    state = solver.init(problem, jnp.zeros(NX), jnp.zeros(NY), jax.random.key(0))
    return solver.output(lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state)).x


def timed(call: Any, repeats: int = 5) -> tuple[Any, float]:
    """What a call returns, and the least seconds it takes once it is compiled."""
    found, seconds = jax.block_until_ready(call()), []
    for _ in range(repeats):
        began = time.perf_counter()
        found = jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    return found, min(seconds)


def saba(problem: pdbo.Problem, f: dict, g: dict) -> dict[str, float]:
    """The fastest of the steps tried."""
    largest = float(np.linalg.eigvalsh(g["A"].T @ g["A"] / COUNT)[-1] + 0.1)
    best = {"seconds": float("inf")}
    for x_step in OUTER:
        for share in INNER:
            solver = Streamed(SABA(x_step, share / largest))
            for steps in STEPS:
                x = np.asarray(_run(problem, solver, jnp.asarray(steps)))
                left = hypergradient(f, g, x)
                if not np.isfinite(left) or left > 1e6:
                    break
                if left <= TARGET:
                    _, seconds = timed(lambda s=solver, n=steps: _run(problem, s, jnp.asarray(n)))
                    if seconds < best["seconds"]:
                        best = {
                            "seconds": seconds, "steps": steps, "squared hypergradient": left,
                            "outer step": x_step, "inner step": share / largest,
                        }  # fmt: skip
                    break
    return best


def main() -> None:
    """Measure and write the record."""
    jax.config.update("jax_enable_x64", True)
    results = {}
    for seed in range(3):
        f, g = data(seed)
        problem = pdbo.Problem(outer, inner, pdbo.Batches(f, g, SIZE))
        start = np.zeros(NX), np.zeros(NY)
        ours, seconds = timed(lambda p=problem, s=start: pdbo.solve(p, *s))
        left = hypergradient(f, g, np.asarray(ours.x))
        results[f"seed {seed}"] = {
            "default": {"seconds": seconds, "squared hypergradient": left, "ok": bool(ours.ok)},
            "SABA": saba(problem, f, g),
        }
        print(results[f"seed {seed}"], flush=True)
    settings = {"samples": COUNT, "inner": NY, "outer": NX, "samples in a batch": SIZE}
    print("written to", write("quadratics", settings, results))


if __name__ == "__main__":
    main()
