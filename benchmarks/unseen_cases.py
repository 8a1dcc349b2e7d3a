"""Small problems with constraints, written as users would write them, against brute force.

    python -m benchmarks.unseen_cases    the record is benchmarks/records/unseen_cases.json

Each has one or two entries of x and up to four of y. Brute force has a grid of x, refined twice
around the best; at each SLSQP solves the inner problem from several starts and then looks for the
lowest f among the y that are as good. Those without a solution say so. A certificate is false if a
row is violated by more than 1e-4, if brute force finds a y at this x that is better for the
follower by more than 1e-3, or if the problem has no solution. "Lowest" allows 1e-3, relative.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.optimize

import pdbo

from .record import write

GRID, REFINED, STARTS = 41, 9, 6
Rows = Callable[[Any, Any, Any], list[Any]]  # of x, y and the array module


def nothing(x: Any, y: Any, xp: Any) -> list[Any]:
    """No rows."""
    return []


@dataclasses.dataclass
class Case:
    """A problem with boxes for x and y; `expected` is the result if there is no solution."""

    f: Callable[[Any, Any, Any], Any]
    g: Callable[[Any, Any, Any], Any]
    x: list[tuple[float, float]]
    y: list[tuple[float, float]]
    below: Rows = nothing
    equal: Rows = nothing
    outer: Rows = nothing
    expected: str | None = None


ROADS = np.array([2.0, 3.0, 6.0])
RECIPE = np.array([[1.0, 2.0, 1.0], [2.0, 0.5, 1.0]])
MEETS = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 0.5]])
INF = np.inf

CASES = {
    "a price and a capacity": Case(
        lambda x, y, xp: -(x[0] - 1) * (y[0] + y[1]),
        lambda x, y, xp: 0.5 * (y[0] ** 2 + 2 * y[1] ** 2) - (6 - x[0]) * y[0] - (4 - x[0]) * y[1],
        [(0, 6)], [(0, 9)] * 2, lambda x, y, xp: [y[0] + y[1] - 2],
    ),
    "a price and a budget": Case(
        lambda x, y, xp: -x[0] * y[0] - 0.3 * y[1],
        lambda x, y, xp: -2 * xp.log(1 + y[0]) - xp.log(1 + y[1]),
        [(0.2, 4)], [(0, 9)] * 2, lambda x, y, xp: [x[0] * y[0] + y[1] - 3],
    ),
    "two tolls with congestion": Case(
        lambda x, y, xp: -x[0] * y[0] - x[1] * y[1],
        lambda x, y, xp: (
            sum((ROADS[i] * y[i] + 0.5 * y[i] ** 2) for i in range(3)) + x[0] * y[0] + x[1] * y[1]
        ),
        [(0, 6)] * 2, [(0, 1)] * 3, equal=lambda x, y, xp: [y[0] + y[1] + y[2] - 1],
    ),
    "two tolls without congestion": Case(
        lambda x, y, xp: -x[0] * y[0] - x[1] * y[1],
        lambda x, y, xp: sum(ROADS[i] * y[i] for i in range(3)) + x[0] * y[0] + x[1] * y[1],
        [(0, 6)] * 2, [(0, 1)] * 3, equal=lambda x, y, xp: [y[0] + y[1] + y[2] - 1],
        below=lambda x, y, xp: [y[0] - 0.7],
    ),
    "a linear follower": Case(
        lambda x, y, xp: 0.4 * (x[0] + x[1]) - y[0] - 0.5 * y[1] + 0.2 * y[2],
        lambda x, y, xp: -(y[0] + 2 * y[1] + 1.5 * y[2]),
        [(0, 4)] * 2, [(0, 3)] * 3,
        lambda x, y, xp: [sum(RECIPE[i, j] * y[j] for j in range(3)) - x[i] for i in range(2)],
    ),
    "a quadratic follower": Case(
        lambda x, y, xp: (x[0] - 1.5) ** 2 + (y[0] - 0.2) ** 2 + (y[1] + 1) ** 2,
        lambda x, y, xp: (y[0] - 2 * x[0]) ** 2 + (y[1] + y[0]) ** 2 + 0.5 * y[0] * y[1],
        [(-2, 2)], [(-3, 3)] * 2, lambda x, y, xp: [y[0] - x[0], -y[1] - 0.5 - x[0] ** 2],
    ),
    "two wells that tie": Case(
        lambda x, y, xp: (x[0] - 0.4) ** 2 + (y[0] + 1) ** 2,
        lambda x, y, xp: (y[0] ** 2 - 1) ** 2 - x[0] * y[0],
        [(-1, 1)], [(-2, 2)], lambda x, y, xp: [y[0] - 1.2 - 0.1 * x[0]],
    ),
    "an indifferent follower": Case(
        lambda x, y, xp: (y[1] - x[0]) ** 2 + 0.5 * y[0] + x[0] ** 2 - x[0],
        lambda x, y, xp: (y[0] - x[0]) ** 2,
        [(-2, 2)], [(-2, 2)] * 2, lambda x, y, xp: [y[0] + y[1] - 0.6],
    ),
    "equalities": Case(
        lambda x, y, xp: (y[0] - 1) ** 2 + (y[1] - x[1]) ** 2 + y[2] + 0.1 * x[0] ** 2,
        lambda x, y, xp: y[0] ** 2 + 2 * y[1] ** 2 + y[2] ** 2 - x[1] * y[2],
        [(-2, 2)] * 2, [(-9, 9)] * 3,
        equal=lambda x, y, xp: [sum(MEETS[i, j] * y[j] for j in range(3)) - x[i] for i in range(2)],
    ),
    "a row that never has a multiplier": Case(
        lambda x, y, xp: (x[0] - 1) ** 2 + y[0] ** 2, lambda x, y, xp: (y[0] - x[0]) ** 2,
        [(-2, 2)], [(-3, 3)], lambda x, y, xp: [y[0] - x[0]],
    ),
    "a set that shrinks to a point": Case(
        lambda x, y, xp: x[0] + 0.3 * y[0] + (y[1] - 0.2) ** 2,
        lambda x, y, xp: -y[0] - 2 * y[1],
        [(0, 2)], [(0, 5)] * 2, lambda x, y, xp: [y[0] + y[1] - x[0]],
    ),
    "a product of both": Case(
        lambda x, y, xp: (x[0] - 2) ** 2 + (y[0] - 1) ** 2,
        lambda x, y, xp: (y[0] - 3) ** 2,
        [(0.1, 4)], [(0, 5)], lambda x, y, xp: [x[0] * y[0] - 1],
    ),
    "an outer row on the answer": Case(
        lambda x, y, xp: (x[0] + 0.5) ** 2 + y[0], lambda x, y, xp: (y[0] - x[0] ** 2) ** 2,
        [(-2, 2)], [(-1, 5)], lambda x, y, xp: [y[0] - 3], outer=lambda x, y, xp: [1 - y[0]],
    ),
    "no answer anywhere": Case(
        lambda x, y, xp: x[0] ** 2, lambda x, y, xp: y[0] ** 2,
        [(-2, 2)], [(-INF, INF)], lambda x, y, xp: [y[0] - x[0], x[0] + 1 - y[0]],
        expected="infeasible",
    ),
    "an outer row that no answer meets": Case(
        lambda x, y, xp: x[0] ** 2, lambda x, y, xp: (y[0] - xp.sin(x[0])) ** 2,
        [(-2, 2)], [(-3, 3)], lambda x, y, xp: [y[0] - 2], outer=lambda x, y, xp: [1.5 - y[0]],
        expected="infeasible",
    ),
    "a leader without end": Case(
        lambda x, y, xp: -x[0] + 0.5 * y[0], lambda x, y, xp: (y[0] - x[0]) ** 2,
        [(-INF, INF)], [(-INF, INF)], lambda x, y, xp: [y[0] - x[0] - 1], expected="unbounded",
    ),
    "a follower without end": Case(
        lambda x, y, xp: x[0] ** 2 + y[1] ** 2, lambda x, y, xp: y[1] ** 2 - y[0],
        [(-2, 2)], [(-INF, INF)] * 2, lambda x, y, xp: [y[1] - x[0] - y[0]], expected="unbounded",
    ),
}  # fmt: skip


def ends(case: Case, goal: Callable, x: np.ndarray, starts: list, as_good: float = INF) -> list:
    """Ends of SLSQP over y that meet the inner rows, and the outer ones if g is limited."""
    rows = [case.below, case.outer] if as_good < INF else [case.below]
    limits: list[dict[str, Any]] = [
        {"type": "ineq", "fun": lambda y, r=r: -np.array(r(x, y, np), float)}
        for r in rows
        if r(x, np.zeros(len(case.y)), np)
    ]
    if case.equal(x, np.zeros(len(case.y)), np):
        limits.append({"type": "eq", "fun": lambda y: np.array(case.equal(x, y, np), float)})
    if as_good < INF:
        limits.append({"type": "ineq", "fun": lambda y: as_good + 1e-8 - case.g(x, y, np)})
    found = []
    for start in starts:
        with np.errstate(all="ignore"):
            end = scipy.optimize.minimize(
                lambda y: goal(x, y, np), start, method="SLSQP", bounds=case.y,
                constraints=limits, options={"ftol": 1e-13, "maxiter": 200},
            )  # fmt: skip
        good = off(case, x, end.x, as_good < INF) <= 1e-6
        if np.isfinite(end.fun) and good and case.g(x, end.x, np) <= as_good + 1e-6:
            found.append((float(end.fun), end.x))
    return found


def off(case: Case, x: np.ndarray, y: np.ndarray, outside: bool = True) -> float:
    """By how much rows and boxes are violated."""
    rows = [*case.below(x, y, np), *(abs(e) for e in case.equal(x, y, np))]
    rows += case.outer(x, y, np) if outside else []
    sides = zip(np.r_[x, y], [*case.x, *case.y], strict=True)
    return float(max([0.0, *rows, *(max(lo - z, z - hi) for z, (lo, hi) in sides)]))


def best_at(case: Case, x: np.ndarray) -> tuple[float, float]:
    """The lowest f among the follower's answers at x, and g there."""
    rng, box = np.random.default_rng(0), np.clip(np.array(case.y), -9, 9)
    starts = [rng.uniform(*box.T) for _ in range(STARTS)]
    inner = ends(case, case.g, x, starts)
    if not inner:
        return INF, INF
    lowest = min(value for value, _ in inner)
    good = [y for value, y in inner if value <= lowest + 1e-6]
    outer = ends(case, case.f, x, good, lowest)
    met = [case.f(x, y, np) for y in good if off(case, x, y) <= 1e-6]
    return min([value for value, _ in outer] + met, default=INF), lowest


def brute(case: Case) -> float:
    """The lowest f of brute force."""
    box, best, count = np.array(case.x, float), INF, GRID if len(case.x) == 1 else 13
    for _ in range(3):
        sides = [np.linspace(lo, hi, count) for lo, hi in box]
        found = [(best_at(case, np.array(x))[0], x) for x in itertools.product(*sides)]
        value, x = min(found, key=lambda pair: pair[0])
        best, step = min(best, value), (box[:, 1] - box[:, 0]) / (count - 1)
        if not np.isfinite(value):
            break
        box = np.clip(np.stack([x - step, x + step], axis=1), *np.array(case.x).T[:, :, None])
        count = REFINED
    return float(best)


def solved(case: Case, how: str) -> dict[str, Any]:
    """What pdbo finds."""
    import jax.numpy as jnp

    def rows(of: list[Rows], x: Any, y: Any) -> list[Any]:
        equal = [pdbo.Equal(row) for row in case.equal(x, y, jnp)] if of[0] is case.below else []
        return [*equal, *(row for part in of for row in part(x, y, jnp))]

    at = np.zeros(len(case.x)), np.zeros(len(case.y))
    inside = (lambda x, y: rows([case.below], x, y)) if rows([case.below], *at) else None
    outside = (lambda x, y: rows([case.outer], x, y)) if case.outer is not nothing else None
    sets = [pdbo.Box(*map(np.array, zip(*box, strict=True))) for box in (case.x, case.y)]
    problem = pdbo.Problem(
        lambda x, y: case.f(x, y, jnp), lambda x, y: case.g(x, y, jnp), x_set=sets[0],
        y_set=sets[1], inner_constraint=inside, outer_constraint=outside,
    )  # fmt: skip
    x0, y0 = (np.clip(np.full(len(box), 0.7), *np.array(box).T) for box in (case.x, case.y))
    if how == "solve":
        sol = pdbo.solve(problem, x0, y0, throw=False)
    else:
        sol = pdbo.multistart(problem, x0, y0, starts=64, throw=False)
    x, y = np.asarray(sol.x, float), np.asarray(sol.y, float)
    row = {"ok": bool(sol.ok), "result": sol.result.name, "f": float(case.f(x, y, np))}
    if case.expected is not None:
        return row | {"right": row["result"] == case.expected, "false": row["ok"]}
    gap = float(case.g(x, y, np)) - best_at(case, x)[1]
    false = row["ok"] and (off(case, x, y) > 1e-4 or gap > 1e-3)
    return row | {"off": off(case, x, y), "gap": gap, "x": x.tolist(), "false": bool(false)}


def main() -> None:
    """All problems, and the record."""
    found: dict[str, dict[str, Any]] = {}
    for name, case in CASES.items():
        jax.clear_caches()
        known = None if case.expected else brute(case)
        row: dict[str, Any] = {"brute force": known}
        for how in ("solve", "multistart"):
            row[how] = solved(case, how)
            if known is not None:
                row[how]["right"] = row[how]["f"] <= known + 1e-3 * max(1.0, abs(known))
        found[name] = row
        print(name, row, flush=True)
    summary = {
        how: {key: sum(r[how][key] for r in found.values()) for key in ("right", "ok", "false")}
        for how in ("solve", "multistart")
    }
    print(summary)
    settings = {"starts of multistart": 64, "problems": len(CASES)}
    write("unseen_cases", settings, {"summary": summary, "problems": found})


if __name__ == "__main__":
    main()
