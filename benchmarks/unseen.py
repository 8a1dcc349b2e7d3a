"""Random small problems with constraints between the levels, against brute force.

    python -m benchmarks.unseen [COUNT]    the record is benchmarks/records/unseen.json

x is a number in [-2, 2], y two numbers in [-2, 2]; f, g and two rows are random, g with waves.
Brute force has every x of a grid, and for each the lowest g and, among answers as good, the lowest
f on a grid of y. A certificate is false if a row is violated, or if a y of the grid that meets the
rows is better for the follower by more than 1e-3.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pdbo

from .record import write

FINE = np.linspace(-2, 2, 401)
COARSE = np.linspace(-2, 2, 201)


def draw(seed: int) -> tuple[Any, Any, Any]:
    """f, g and the rows of a random problem, for NumPy and JAX alike."""
    rng = np.random.default_rng(seed)
    A, b, C = rng.normal(size=(2, 2)), rng.normal(size=2), rng.normal(size=(2, 3))
    d = rng.uniform(0.3, 1.5, 2)
    Q, wave, target = A @ A.T + 0.1 * np.eye(2), rng.uniform(0, 0.8), rng.normal(size=3)

    def f(x: Any, u: Any, v: Any, _: Any) -> Any:
        return (x - target[0]) ** 2 + (u - target[1]) ** 2 + (v - target[2]) ** 2

    def g(x: Any, u: Any, v: Any, xp: Any) -> Any:
        curved = Q[0, 0] * u * u + 2 * Q[0, 1] * u * v + Q[1, 1] * v * v
        return 0.5 * curved + (b[0] + x) * u + b[1] * x * v + wave * xp.cos(3 * u + x)

    def rows(x: Any, u: Any, v: Any, _: Any) -> list[Any]:
        return [C[i, 0] * x + C[i, 1] * u + C[i, 2] * v - d[i] for i in range(2)]

    return f, g, rows


def brute(f: Any, g: Any, rows: Any) -> float:
    """The lowest f on the grid."""
    u, v = np.meshgrid(COARSE, COARSE, indexing="ij")
    best = np.inf
    for x in FINE:
        fits = np.all([r <= 1e-9 for r in rows(x, u, v, np)], axis=0)
        if not np.any(fits):
            continue
        values = np.where(fits, g(x, u, v, np), np.inf)
        near = values <= np.min(values) + 1e-9
        best = min(best, float(np.min(np.where(near, f(x, u, v, np), np.inf))))
    return best


def one(seed: int) -> dict[str, Any]:
    """A problem solved, and looked at by brute force."""
    f, g, rows = draw(seed)
    problem = pdbo.Problem(
        lambda x, y: f(x, y[0], y[1], jnp), lambda x, y: g(x, y[0], y[1], jnp),
        x_set=pdbo.Box(-2.0, 2.0), y_set=pdbo.Box(-2.0, 2.0),
        inner_constraint=lambda x, y: jnp.stack(rows(x, y[0], y[1], jnp)),
    )  # fmt: skip
    jax.clear_caches()
    sol = pdbo.multistart(problem, 0.0, np.zeros(2), starts=16)
    x, (y0, y1) = float(sol.x), map(float, sol.y)
    u, v = np.meshgrid(COARSE, COARSE, indexing="ij")
    fits = np.all([r <= 0 for r in rows(x, u, v, np)], axis=0)
    lowest = float(np.min(np.where(fits, g(x, u, v, np), np.inf)))
    off = max(0.0, *(float(r) for r in rows(x, y0, y1, np)))
    gap = float(g(x, y0, y1, np)) - lowest
    return {
        "ok": bool(sol.ok), "f": float(sol.f), "brute force": brute(f, g, rows), "off": off,
        "gap": gap, "false": bool(sol.ok and (off > 1e-4 or gap > 1e-3)), "result": sol.result.name,
    }  # fmt: skip


def main(count: int) -> None:
    """All problems, and the record."""
    found = {str(seed): one(seed) for seed in range(count)}
    for seed, row in found.items():
        print(seed, row, flush=True)
    lower = [r["f"] <= r["brute force"] + 0.05 for r in found.values()]
    table = {
        "problems": count, "certified": sum(r["ok"] for r in found.values()),
        "false": sum(r["false"] for r in found.values()), "as low as brute force": sum(lower),
    }  # fmt: skip
    print(table)
    write("unseen", {"starts": 16}, {"summary": table, "problems": found})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
