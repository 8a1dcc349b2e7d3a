"""Random large problems with constraints, whose follower has a closed form.

    python -m benchmarks.unseen_large [COUNT]    the record is benchmarks/records/unseen_large.json

120 followers have one of 3 capacities each: y = min(max(0, w + B x), a x + b). A certificate is
false if y is off by 2 %, or if f is lower by more than 1e-3, in its own size, at one of 4,000
points at most 0.03 from x (by 3e-3 if at most 0.1).
"""

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

import pdbo

from .record import write

N, K = 120, 3
KIND = np.arange(N) % K
NEAR = {1e-3: 1e-3, 1e-2: 1e-3, 3e-2: 1e-3, 1e-1: 3e-3}  # distances, and what f may gain there


def draw(seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The numbers of a problem, and a start."""
    rng = np.random.default_rng(seed)
    normal, pick, uniform = rng.normal, rng.choice, rng.uniform
    alike = rng.random() < 0.4  # all followers of a capacity: kinks do not average out
    d = {
        "c": normal(size=K) * pick([0, 1, 5]), "v": normal(size=N) * pick([0, 1, 1]),
        "r": pick([0.0, 0.05, 1.0]), "t": normal(size=N) + 1, "e": pick([0, 0.1, 2]) * N / 10,
        "q": 10 ** uniform(-1, 1, N), "w": normal(size=N) + 1,
        "B": normal(size=(N, K)) * pick([0, 0.3, 1]), "a": uniform(0.2, 1.5, N),
        "b": uniform(0, 0.5, N) * pick([0, 1.0]),
    }  # fmt: skip
    if alike:
        d |= {k: d[k][KIND] for k in ("w", "t", "v", "a", "b", "q", "B")}
    return {k: np.asarray(v, float) for k, v in d.items()}, uniform(0.2, 2, K)


def outer(x: Any, y: Any, d: Any) -> Any:
    """f."""
    return d["c"] @ x + d["v"] @ y + 0.5 * d["r"] * jnp.sum((y - d["t"]) ** 2) + d["e"] * x @ x / 2


def exact(X: np.ndarray, d: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """f at the follower's answers, and these, at many x."""
    y = np.clip(d["w"] + X @ d["B"].T, 0, d["a"] * X[:, KIND] + d["b"])
    f = X @ d["c"] + y @ d["v"] + 0.5 * d["r"] * np.sum((y - d["t"]) ** 2, axis=1)
    return f + 0.5 * d["e"] * np.sum(X**2, axis=1), y


def one(seed: int) -> dict[str, Any]:
    """A problem solved, and looked at by its closed form."""
    d, start = draw(seed)
    problem = pdbo.Problem(
        outer, lambda x, y, d: 0.5 * jnp.sum(d["q"] * (y - d["w"] - d["B"] @ x) ** 2), d,
        x_set=pdbo.Box(0.0, 4.0), y_set=pdbo.NonNegative(),
        inner_constraint=lambda x, y, d: y - d["a"] * x[KIND] - d["b"],
    )  # fmt: skip
    sol = pdbo.solve(problem, start, np.full(N, 0.5), tol=1e-3, throw=False)
    x, size = np.asarray(sol.x), np.linalg.norm
    (f,), (y,) = exact(x[None], d)
    off = float(np.max(np.abs(y - sol.y)) / max(1.0, np.max(np.abs(y))))
    by_x, by_y = d["c"] + d["e"] * x, d["v"] + d["r"] * (y - d["t"])
    unit = size(by_x) * max(size(x), size(start)) + size(by_y) * max(size(y), 0.5 * N**0.5)
    U = np.random.default_rng(0).normal(size=(4000, K))
    U = U / size(U, axis=1, keepdims=True)
    gains = {
        h: float(np.max(f - exact(np.clip(x + h * U, 0, 4), d)[0]) / max(unit, 1e-12)) for h in NEAR
    }
    wrong = off > 0.02 or any(gains[h] > NEAR[h] for h in NEAR)
    return {
        "ok": bool(sol.ok), "eps": float(sol.certificate.eps), "off": off,  # type: ignore
        "gains": gains, "false": bool(sol.ok and wrong),
    }  # fmt: skip


def main(count: int) -> None:
    """All problems, and the record."""
    found = {str(seed): one(seed) for seed in range(count)}
    table = {
        "problems": count, "certified": sum(r["ok"] for r in found.values()),
        "false": sum(r["false"] for r in found.values()),
    }  # fmt: skip
    print(table)
    write("unseen_large", {"tol": 1e-3}, {"summary": table, "problems": found})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
