"""The scoreboard of constraints between the levels: 102 problems of BOLIB, one setting.

A problem is solved if the point meets all rows to within 1e-4, if y is an inner minimum to within
1e-4, and if f is at most 1 % above the best known value, all relative to sizes above one. The inner
minimum is recomputed without pdbo: by linear programming if the inner problem is linear, else by
SLSQP from 20 starts. A certificate is false if the point behind it fails one of the first two.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ._results import Claim, Record, Results, Track
from ._views import Curve, Figure, Panel, Table

if TYPE_CHECKING:
    from jaxtyping import Array, PyTree

    from ..problems.bolib import CoupledEntry

WITHIN, NEAR, TRIES = 1e-4, 1e-2, 20
SOLVE, MULTISTART, RIVAL = "pdbo.solve", "pdbo.multistart", "SLSQP on the KKT conditions"
METHODS: tuple[str, ...] = (SOLVE, MULTISTART, RIVAL)
QUICK = ("Bard1988Ex3", "ClarkWesterberg1988", "DempeDutta2012Ex24", "MitsosBarton2006Ex314")
RIVAL_STARTS = 16
FLAGS = ("solved", "certified", "false")


def violation(entry: CoupledEntry, x: np.ndarray, y: np.ndarray) -> float:
    """By how much a point violates a row."""
    return max([0.0, *(entry.evaluate(row, x, y) for row in (*entry.outer, *entry.inner))])


def inner_value(entry: CoupledEntry, x: np.ndarray, y: np.ndarray) -> float:
    """The lowest inner value at x that SciPy finds, at most that of y if y is feasible."""
    from scipy.optimize import linprog

    def g(v: np.ndarray) -> float:
        return entry.evaluate(entry.g, x, v)

    rows = [lambda v, row=row: entry.evaluate(row, x, v) for row in entry.inner]
    linear = _linear([g, *rows], len(y))
    if linear is not None:
        (c, c0), *bounds = linear
        A, b = np.array([a for a, _ in bounds]), -np.array([a0 for _, a0 in bounds])
        found = linprog(c, A, b + 1e-9, bounds=[(None, None)] * len(y))
        return float(found.fun + c0) if found.status == 0 else -np.inf
    rng, best = np.random.default_rng(0), np.inf
    constraints = [{"type": "ineq", "fun": lambda v, r=row: -r(v)} for row in rows]
    for k in range(TRIES):
        spread = (1 + np.abs(y)) * rng.standard_normal(len(y)) * (0.0, 0.3, 1.0, 3.0, 10.0)[k % 5]
        found = _slsqp(g, y + spread, constraints, ftol=1e-12)
        if found is None:
            continue
        if max([0.0, *(row(found.x) for row in rows)]) <= 1e-7 and np.isfinite(found.fun):
            best = min(best, float(found.fun))
    own = g(y) if max([0.0, *(row(y) for row in rows)]) <= WITHIN else np.inf
    return min(best, own)


def _slsqp(function: Any, start: np.ndarray, constraints: list, **options: Any) -> Any:
    """SciPy's SLSQP; None if it fails on numbers that are not finite."""
    from scipy.optimize import minimize

    jac = options.pop("jac", None)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return minimize(
                function, start, method="SLSQP", jac=jac, constraints=constraints,
                options={"maxiter": 200} | options,
            )  # fmt: skip
        except (ValueError, ZeroDivisionError, OverflowError):
            return None


def _linear(functions: list, n: int) -> list[tuple[np.ndarray, float]] | None:
    """Slopes and offsets of functions if all are affine."""
    rng, out = np.random.default_rng(1), []
    for function in functions:
        with np.errstate(all="ignore"):
            at = function(np.zeros(n))
            slope = np.array([function(np.eye(n)[i]) - at for i in range(n)])
            points = 5 * rng.standard_normal((8, n))
            off = [abs(function(p) - at - slope @ p) > 1e-9 * (1 + abs(at)) for p in points]
        if any(off) or not np.isfinite(at):
            return None
        out.append((slope, at))
    return out


def judge(entry: CoupledEntry, x: PyTree, y: PyTree) -> dict[str, Any]:
    """How good a point is, without pdbo."""
    x, y = (np.atleast_1d(np.asarray(v, np.float64)) for v in (x, y))
    f, g = (entry.evaluate(formula, x, y) for formula in (entry.f, entry.g))
    gap = (g - inner_value(entry, x, y)) / max(1.0, abs(g))
    off = violation(entry, x, y) / max(1.0, float(np.max(np.abs(np.concatenate([x, y])))))
    valid = bool(off <= WITHIN and gap <= WITHIN)
    error = None if entry.best is None else (f - entry.best) / max(1.0, abs(entry.best))
    solved = None if error is None else bool(valid and error <= NEAR)
    return {
        "f": f, "violation": off, "gap": gap, "error": error, "valid": valid, "solved": solved,
        "x": x.tolist(), "y": y.tolist(),
    }  # fmt: skip


def by_kkt(entry: CoupledEntry, starts: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The best point of SLSQP on the inner problem's KKT conditions, and its oracle calls."""
    import jax
    import jax.numpy as jnp

    from ..coupled.model import Model

    problem, (x0, y0) = entry.problem, entry.start
    nx, ny, k = len(x0), len(y0), len(entry.inner)

    def split(z: Array) -> PyTree:
        return z[:nx], z[nx : nx + ny], z[nx + ny :]

    def rows(which: str, z: Array) -> Array:
        x, y, _ = split(z)
        return jnp.asarray(problem.rows(which, x, y)[0], float)

    def stationary(z: Array) -> Array:
        x, y, m = split(z)

        def lagrangian(v: Array) -> Array:
            return problem.inner(x, v) + m @ problem.rows("inner", x, v)[0]

        return jax.grad(lagrangian)(y)

    def below(z: Array) -> Array:
        c, m = rows("inner", z), z[nx + ny :]
        return jnp.concatenate([-rows("outer", z), -c, m, 1e-8 + m * c])

    def outer(z: Array) -> Array:
        return problem.outer(*split(z)[:2])

    value = jax.jit(jax.value_and_grad(outer))
    constraints = [
        {"type": kind, "fun": jax.jit(call), "jac": jax.jit(jax.jacrev(call))}
        for kind, call in (("eq", stationary), ("ineq", below))
    ]
    spread = Model(problem, x0, y0)
    Z, calls, best = spread.spread(starts, 1) * spread.length, 0, (np.inf, x0, y0)
    for z in Z:
        start = np.concatenate([z, np.ones(k)])
        found = _slsqp(lambda z: tuple(map(np.asarray, value(z))), start, constraints, jac=True)
        if found is None or not np.all(np.isfinite(found.x)):
            continue
        calls += int(found.nfev + found.njev)
        off = np.max(np.maximum(-np.asarray(below(found.x)), 0.0), initial=0.0)
        off = max(off, np.max(np.abs(np.asarray(stationary(found.x)))))
        x, y, _ = split(found.x)
        best = min(best, (float(found.fun) + 1e6 * float(off > WITHIN), x, y), key=lambda b: b[0])
    return best[1], best[2], calls


def run(seed: int, quick: bool, track: Track = iter) -> Results:
    """`solve`, `multistart` and the rival on every problem."""
    import jax

    import pdbo

    from ..problems import bolib

    chosen = [n for n in sorted(bolib.names()) if not quick or n in QUICK]
    starts, rival_starts = (16, 4) if quick else (64, RIVAL_STARTS)
    shape = (len(METHODS), len(chosen))
    arrays = {k: np.zeros(shape, bool) for k in FLAGS} | {
        k: np.full(shape, np.nan) for k in ("f", "calls", "eps")
    }
    seconds: dict[str, float] = dict.fromkeys(METHODS, 0.0)
    parts = [(m, n) for n in chosen for m in METHODS]
    for part in track([f"{m} on {n}" for m, n in parts]):
        method, _, name = part.rpartition(" on ")
        entry, at = bolib.get(name), (METHODS.index(method), chosen.index(name))
        began = time.perf_counter()
        if method == RIVAL:
            x, y, arrays["calls"][at] = by_kkt(entry, rival_starts)
            certified = False
        else:
            if method == SOLVE:
                solution = pdbo.solve(entry.problem, *entry.start, throw=False)
            else:
                key = jax.random.key(seed)
                solution = pdbo.multistart(
                    entry.problem, *entry.start, starts=starts, key=key, throw=False
                )
            x, y, certified = solution.x, solution.y, bool(solution.ok)
            rows = solution.history
            if rows:  # it has none if the problem was refused
                arrays["calls"][at] = rows["f_calls"][-1] + rows["products"][-1]
                arrays["eps"][at] = float(solution.certificate.eps)  # type: ignore
        seconds[method] += time.perf_counter() - began
        found = judge(entry, x, y)
        arrays["f"][at] = found["f"]
        arrays["solved"][at] = bool(found["solved"])
        arrays["certified"][at] = certified
        arrays["false"][at] = certified and not found["valid"]
    settings = {
        "problems": chosen, "starts": starts, "starts of the rival": rival_starts,
        "with a value": [n for n in chosen if bolib.get(n).best is not None],
        "tags": {n: sorted(bolib.get(n).tags) for n in chosen},
        "best": {n: bolib.get(n).best for n in chosen},
        "solved": "rows met to 1e-4, inner gap at most 1e-4, f at most 1 % above the best known "
        "value; checked by SciPy",
    }  # fmt: skip
    return Results(settings, arrays, {}, seconds)


def groups(record: Record) -> dict[str, np.ndarray]:
    """The problems with a known value that count in each column."""
    names, tags = record.settings["problems"], record.settings["tags"]
    valued = np.isin(names, record.settings["with a value"])
    first = np.arange(len(names)) % 2 == 0
    found = {"all": valued, "first half": valued & first, "second half": valued & ~first}
    for tag in sorted({t for listed in tags.values() for t in listed}):
        found[tag] = valued & np.array([tag in tags[n] for n in names])
    return {name: chosen for name, chosen in found.items() if chosen.any()}


def claims(record: Record) -> list[Claim]:
    """What the package promises about problems with constraints."""
    valued = groups(record)["all"]

    def claim(sentence: str, measure: str, value: float, relation: str, bound: float) -> Claim:
        return Claim(sentence, "this package", measure, value, relation, bound, quoted=False)

    def share(method: str) -> float:
        return 100 * float(record["solved"][METHODS.index(method)][valued].mean())

    return [
        claim(
            f"multistart from {record.settings['starts']} starts solves nearly every problem.",
            "problems with a known value that are solved, in per cent", share(MULTISTART),
            ">=", 97.0,
        ),
        claim(
            "solve from one start solves most of them.",
            "problems with a known value that are solved, in per cent", share(SOLVE), ">=", 70.0,
        ),
        claim(
            "No certificate is false.",
            "certified points that violate a row, or whose y is not an inner minimum",
            float(record["false"].sum()), "<=", 0.0,
        ),
    ]  # fmt: skip


def figures(record: Record) -> list[Figure]:
    """Performance profiles: the share of problems solved within a number of oracle calls."""

    def profile(index: int, chosen: np.ndarray) -> Curve:
        calls = np.where(record["solved"][index], record["calls"][index], np.nan)[chosen]
        at = np.sort(calls[np.isfinite(calls)])
        x = np.concatenate([[10.0], at, [most]])
        y = np.concatenate([[0.0], np.arange(1, len(at) + 1), [len(at)]]) / len(calls)
        return Curve(METHODS[index], x, 100 * y, kind="steps")

    most = float(np.nanmax(record["calls"]))
    shown = ("all", "coupled inner", "coupled outer")
    panels = [
        Panel(
            f"({letter}) {group}", "oracle calls", "per cent of the problems solved",
            [profile(i, chosen) for i in range(len(METHODS))], x_log=True,
        )
        for letter, (group, chosen) in zip(
            "abc", ((g, c) for g, c in groups(record).items() if g in shown), strict=False
        )
    ]  # fmt: skip
    valued = int(groups(record)["all"].sum())
    caption = (
        f"Problems of BOLIB with constraints between the levels, {valued} with a known value: the "
        "share solved within a number of oracle calls (values of the rows, and products with their "
        "derivatives; for SLSQP values and gradients, all its starts together)."
    )
    return [Figure("bolib", caption, panels)]


def tables(record: Record) -> list[Table]:
    """Problems solved by class, and the problems one by one."""
    columns, names = groups(record), record.settings["problems"]
    seconds = record.times.get("seconds", {})
    board = [
        [
            method,
            *(f"{record['solved'][i][c].sum()} of {c.sum()}" for c in columns.values()),
            "" if method == RIVAL else int(record["certified"][i].sum()),
            "" if method == RIVAL else int(record["false"][i].sum()),
            f"{seconds[method] / len(names):.1f}" if method in seconds else "",
        ]
        for i, method in enumerate(METHODS)
    ]  # fmt: skip
    header = ("method", *columns, "certified", "falsely certified", "seconds per problem")
    caption = (
        "Problems solved, by class; certified points, of which false ones; and the mean time with "
        "compilation. SLSQP is given the inner problem's KKT conditions as constraints."
    )
    rows = [
        [
            name, ", ".join(record.settings["tags"][name]), str(record.settings["best"][name]),
            *(
                f"{record['f'][i][k]:.6g}{'' if record['solved'][i][k] else ' (not solved)'}"
                for i in range(len(METHODS))
            ),
            "yes" if record["certified"][1][k] else "no",
        ]
        for k, name in enumerate(names)
    ]  # fmt: skip
    singles = Table(
        "The problems: the best known value, the values found, and whether multistart's is "
        "certified.",
        ("problem", "tags", "best known", *METHODS, "certified"),
        rows,
    )
    return [Table(caption, header, board), singles]
