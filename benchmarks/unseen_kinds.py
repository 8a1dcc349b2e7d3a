"""Small problems with constraints of eight kinds, against brute force.

    python -m benchmarks.unseen_kinds [COUNT]    COUNT of each; the record is
                                                 benchmarks/records/unseen_kinds.json

x is a number in [-2, 2], y two numbers in [-2, 2]. The kinds:

- equality: the follower has an equality that x moves;
- ties: a linear follower whose costs are parallel to a row, so that an edge is as good as a vertex;
- disconnected: an outer constraint on y that leaves two parts;
- bilinear: rows of the follower with products of x and y;
- tiny, huge: x and y in units of 1e-6 and 1e6, f, g and the rows in other ones;
- infeasible: the follower has no point at any x;
- unbounded: without bounds on x and y, and g or f falls without end.

Brute force has every x of a grid, and then of a finer one around the best. At each SLSQP solves the
inner problem from the lowest points of a grid of y, and then looks for the lowest f among the y
that are as good. A certificate is false if a row is violated, if a y that brute force finds at this
x is better for the follower by more than 1e-3, or if the problem has no solution.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import pdbo

from .record import write

KINDS = ("equality", "ties", "disconnected", "bilinear", "tiny", "huge", "infeasible", "unbounded")
WITHOUT = ("infeasible", "unbounded")
UNITS = {"tiny": 1e-6, "huge": 1e6}
GRID, COARSE, FINE, MINIMA = np.linspace(-2, 2, 41), np.linspace(-2, 2, 81), 15, 4


def draw(kind: str, seed: int) -> dict[str, Any]:
    """f, g, the inner rows <= 0 and = 0, and the outer rows, for NumPy and JAX alike."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    A, b, C = rng.normal(size=(2, 2)), rng.normal(size=2), rng.normal(size=(3, 3))
    d, target = rng.uniform(0.3, 1.5, 3), rng.normal(size=3)
    Q, wave = A @ A.T + 0.2 * np.eye(2), rng.uniform(0, 0.6)
    side = rng.choice([-1.0, 1.0])

    def f(x: Any, u: Any, v: Any, xp: Any) -> Any:
        if kind == "unbounded" and seed % 2:
            return -x + (v - target[1]) ** 2  # v is zero
        return (x - target[0]) ** 2 + (u - target[1]) ** 2 + (v - target[2]) ** 2

    def g(x: Any, u: Any, v: Any, xp: Any) -> Any:
        if kind == "ties":
            return -(C[0, 1] * u + C[0, 2] * v)
        if kind == "unbounded":
            return side * u if seed % 2 == 0 else (u - 0.5 * x) ** 2 + v**2
        curved = Q[0, 0] * u * u + 2 * Q[0, 1] * u * v + Q[1, 1] * v * v
        return 0.5 * curved + (b[0] + x) * u + b[1] * x * v + wave * xp.cos(2 * u + x)

    def below(x: Any, u: Any, v: Any, xp: Any) -> list[Any]:
        rows = [C[i, 0] * x + C[i, 1] * u + C[i, 2] * v - d[i] for i in range(2)]
        if kind == "bilinear":
            rows = [x * u + 0.5 * v - d[0], u * v * 0.5 + x * v - d[1]]
        if kind == "infeasible":
            rows = [u + 1 - x, x - u + d[0] - 0.5 + v * v]
        if kind == "unbounded":
            rows = [side * u - x * 0 - 3.0] if seed % 2 == 0 else [u + v - x - 9]
        return rows

    def zero(x: Any, u: Any, v: Any, xp: Any) -> list[Any]:
        return [C[2, 1] * u + C[2, 2] * v - 0.5 * x] if kind == "equality" else []

    def outer(x: Any, u: Any, v: Any, xp: Any) -> list[Any]:
        return [0.3 - (u - target[1]) ** 2] if kind == "disconnected" else []

    return {"f": f, "g": g, "below": below, "zero": zero, "outer": outer}


def slsqp(goal: Any, start: np.ndarray, rows: list[Any], equal: list[Any]) -> Any:
    """An end of SLSQP from a start; rows are <= 0."""
    limits = [{"type": "ineq", "fun": lambda y, r=r: -np.asarray(r(y))} for r in rows]
    limits += [{"type": "eq", "fun": e} for e in equal]
    with np.errstate(all="ignore"):
        return scipy.optimize.minimize(
            goal, start, method="SLSQP", bounds=[(-2, 2)] * 2, constraints=limits,
            options={"ftol": 1e-12, "maxiter": 60},
        )  # fmt: skip


def violation(p: dict[str, Any], x: float, y: np.ndarray, outside: bool = True) -> float:
    """By how much rows are violated."""
    rows = p["below"](x, *y, np) + (p["outer"](x, *y, np) if outside else [])
    return float(max([0.0, *rows, *(abs(r) for r in p["zero"](x, *y, np))]))


def answers(p: dict[str, Any], x: float) -> tuple[float, list[np.ndarray]]:
    """The lowest inner value at x, and the points where SLSQP found it."""
    u, v = np.meshgrid(GRID, GRID, indexing="ij")
    zero = [np.abs(r) for r in p["zero"](x, u, v, np)]
    off = np.max([r + 0 * u for r in (*p["below"](x, u, v, np), *zero)], axis=0)
    G = p["g"](x, u, v, np) + 20 * np.maximum(off - 0.05, 0)
    order = np.argsort(G, axis=None)[:: max(1, G.size // (3 * MINIMA))][:MINIMA]
    places = np.stack([u.ravel()[order], v.ravel()[order]], axis=1)
    rows = [lambda y, i=i: p["below"](x, *y, np)[i] for i in range(len(p["below"](x, 0, 0, np)))]
    equal = [lambda y, i=i: p["zero"](x, *y, np)[i] for i in range(len(p["zero"](x, 0, 0, np)))]
    ends = [slsqp(lambda y: p["g"](x, *y, np), place, rows, equal) for place in places]
    fit = [(float(e.fun), e.x) for e in ends if violation(p, x, e.x, False) <= 1e-7]
    lowest = min((value for value, _ in fit), default=np.inf)
    return lowest, [y for value, y in fit if value <= lowest + 1e-6]


def best_at(p: dict[str, Any], x: float) -> float:
    """The lowest f among the follower's answers at x that meet the outer rows."""
    lowest, found = answers(p, x)
    rows = [lambda y, i=i: p["below"](x, *y, np)[i] for i in range(len(p["below"](x, 0, 0, np)))]
    rows += [lambda y, i=i: p["outer"](x, *y, np)[i] for i in range(len(p["outer"](x, 0, 0, np)))]
    rows.append(lambda y: p["g"](x, *y, np) - lowest - 1e-7)
    equal = [lambda y, i=i: p["zero"](x, *y, np)[i] for i in range(len(p["zero"](x, 0, 0, np)))]
    best = np.inf
    for y in found[:2]:
        for end in (y, slsqp(lambda y: p["f"](x, *y, np), y, rows, equal).x):
            as_good = p["g"](x, *end, np) <= lowest + 1e-6
            if as_good and violation(p, x, end) <= 1e-6:
                best = min(best, float(p["f"](x, *end, np)))
    return best


def brute(p: dict[str, Any]) -> float:
    """The lowest f of brute force."""
    values = [best_at(p, x) for x in COARSE]
    middle, step = COARSE[int(np.argmin(values))], COARSE[1] - COARSE[0]
    around = np.linspace(max(-2, middle - step), min(2, middle + step), FINE)
    return float(min([*values, *(best_at(p, x) for x in around)]))


def solved(kind: str, p: dict[str, Any]) -> tuple[pdbo.Solution, float, np.ndarray]:
    """The solution by pdbo in the kind's units, and x and y without them."""
    unit = UNITS.get(kind, 1.0)

    def at(call: Any, x: Any, y: Any) -> Any:
        return call(x / unit, y[0] / unit, y[1] / unit, jnp)

    def inner(x: Any, y: Any) -> list[Any]:
        equal = [pdbo.Equal(row) for row in at(p["zero"], x, y)]
        return [*equal, *(row * unit for row in at(p["below"], x, y))]

    bounds = pdbo.Free() if kind == "unbounded" else pdbo.Box(-2.0 * unit, 2.0 * unit)
    problem = pdbo.Problem(
        lambda x, y: unit * at(p["f"], x, y), lambda x, y: at(p["g"], x, y) / unit,
        x_set=bounds, y_set=bounds, inner_constraint=inner,
        outer_constraint=(lambda x, y: at(p["outer"], x, y)) if p["outer"](0, 0, 0, np) else None,
    )  # fmt: skip
    jax.clear_caches()
    start = np.array([0.3, -0.2]) * unit
    sol = pdbo.multistart(problem, 0.1 * unit, start, starts=16, throw=False)
    return sol, float(sol.x) / unit, np.asarray(sol.y, float) / unit


def one(kind: str, seed: int) -> dict[str, Any]:
    """A problem solved, and looked at by brute force."""
    p = draw(kind, seed)
    sol, x, y = solved(kind, p)
    row = {"ok": bool(sol.ok), "result": sol.result.name}
    if kind in WITHOUT:
        return row | {"false": row["ok"]}
    off, gap = violation(p, x, y), float(p["g"](x, *y, np)) - answers(p, x)[0]
    false = row["ok"] and (off > 1e-4 or gap > 1e-3)
    f = float(p["f"](x, *y, np))
    return row | {"f": f, "brute force": brute(p), "off": off, "gap": gap, "false": bool(false)}


def main(count: int) -> None:
    """All problems, and the record."""
    found: dict[str, dict[str, Any]] = {}
    table = {}
    for kind in KINDS:
        found[kind] = {str(seed): one(kind, seed) for seed in range(count)}
        rows = list(found[kind].values())
        table[kind] = {
            "certified": sum(r["ok"] for r in rows),
            "false": sum(r["false"] for r in rows),
        }
        if kind not in WITHOUT:
            low = [r["f"] <= r["brute force"] + 0.01 or r["brute force"] == np.inf for r in rows]
            table[kind]["as low as brute force"] = sum(low)
        print(kind, table[kind], *rows, sep="\n", flush=True)
    write(
        "unseen_kinds", {"starts": 16, "of each kind": count}, {"summary": table, "problems": found}
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
