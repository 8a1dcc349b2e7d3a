"""Random small problems with constraints between the levels, against brute force.

    python -m benchmarks.unseen [COUNT]    the record is benchmarks/records/unseen.json

x is a number in [-2, 2], y two numbers in [-2, 2]; f, g and two rows are random, g with waves.
Brute force has every x of a grid. At each, the lowest points of g on a grid of y, up to a little
outside the rows, are starts of SLSQP; of the lowest ends that with the lowest f counts. On the grid
alone f is wrong by up to 0.15, as rows cut between its points. A certificate is false if a row is
violated, or if a y that brute force finds at this x is better for the follower by more than 1e-3.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import pdbo

from .record import write

FINE = np.linspace(-2, 2, 401)
COARSE = np.linspace(-2, 2, 201)
BESIDE, MINIMA = 0.06, 6


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


def answers(g: Any, rows: Any, x: float) -> list[tuple[float, np.ndarray]]:
    """Inner minima at x, with g there, by SLSQP from the lowest points of a grid."""
    u, v = np.meshgrid(COARSE, COARSE, indexing="ij")
    off = np.max([r + 0 * u for r in rows(x, u, v, np)], axis=0)
    G = np.where(off <= BESIDE, g(x, u, v, np), np.inf)
    wide = np.pad(G, 1, constant_values=np.inf)
    n = len(COARSE)
    moves = [(i, j) for i in range(3) for j in range(3)]
    lowest = np.min([wide[i : i + n, j : j + n] for i, j in moves], axis=0)
    found = np.argwhere((lowest == G) & np.isfinite(G))
    found = found[np.argsort(G[tuple(found.T)])][:MINIMA]
    limits = {"type": "ineq", "fun": lambda y: -np.array(rows(x, y[0], y[1], np))}
    out = []
    for place in found:
        end = scipy.optimize.minimize(
            lambda y: g(x, y[0], y[1], np), COARSE[place], method="SLSQP",
            bounds=[(-2, 2)] * 2, constraints=limits, options={"ftol": 1e-12, "maxiter": 60},
        )  # fmt: skip
        if max(rows(x, *end.x, np)) <= 1e-7:
            out.append((float(end.fun), end.x))
    return out


def brute(f: Any, g: Any, rows: Any) -> float:
    """The lowest f of brute force."""
    best = np.inf
    for x in FINE:
        found = answers(g, rows, x)
        lowest = min((value for value, _ in found), default=np.inf)
        best = min([best, *(f(x, *y, np) for value, y in found if value <= lowest + 1e-7)])
    return float(best)


def one(seed: int) -> dict[str, Any]:
    """A problem solved, and looked at by brute force."""
    f, g, rows = draw(seed)
    problem = pdbo.Problem(
        lambda x, y: f(x, y[0], y[1], jnp), lambda x, y: g(x, y[0], y[1], jnp),
        x_set=pdbo.Box(-2.0, 2.0), y_set=pdbo.Box(-2.0, 2.0),
        inner_constraint=lambda x, y: jnp.stack(rows(x, y[0], y[1], jnp)),
    )  # fmt: skip
    jax.clear_caches()
    sol = pdbo.multistart(problem, 0.0, np.zeros(2), starts=16, throw=False)
    x, (y0, y1) = float(sol.x), map(float, sol.y)
    lowest = min((value for value, _ in answers(g, rows, x)), default=np.inf)
    off = max(0.0, *(float(r) for r in rows(x, y0, y1, np)))
    gap = float(g(x, y0, y1, np)) - lowest
    return {
        "ok": bool(sol.ok), "f": float(sol.f), "brute force": brute(f, g, rows), "off": off,
        "gap": gap, "false": bool(sol.ok and (off > 1e-4 or gap > 1e-3)), "result": sol.result.name,
    }  # fmt: skip


def main(count: int) -> None:
    """All problems, and the record."""
    found = {}
    for seed in range(count):
        found[str(seed)] = one(seed)
        print(seed, found[str(seed)], flush=True)
    lower = [r["f"] <= r["brute force"] + 0.01 for r in found.values()]
    table = {
        "problems": count, "certified": sum(r["ok"] for r in found.values()),
        "false": sum(r["false"] for r in found.values()), "as low as brute force": sum(lower),
        "most that brute force is lower": max(r["f"] - r["brute force"] for r in found.values()),
    }  # fmt: skip
    print(table)
    write("unseen", {"starts": 16}, {"summary": table, "problems": found})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
