"""The scoreboard of problems with constraints: 102 problems of BOLIB, one setting.

    python -m benchmarks.bolib            every problem, solve and multistart(64); the record is
                                          benchmarks/records/bolib.json
    python -m benchmarks.bolib NAME ...   some of them, printed only

A problem is solved if the point returned meets all rows to within 1e-4, if y is an inner minimum
to within 1e-4, and if f is at most 1 % above the best known value, all relative to sizes above one.
The inner minimum is recomputed without pdbo: by linear programming if the inner problem is linear,
else by SLSQP from 20 starts. A certificate is false if the point behind it fails one of the first
two.
The first half is the problems at even positions by name. The method was corrected after looking at
both halves, so that neither is unseen.
"""

import json
import resource
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np
import scipy.optimize

import pdbo
from pdbo.problems import bolib
from pdbo.problems.bolib import CoupledEntry

from .record import FOLDER, write

STARTS = 64
WITHIN = 1e-4
NEAR = 1e-2
TRIES = 20


def cpu_seconds() -> float:
    """The CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def violation(entry: CoupledEntry, x: np.ndarray, y: np.ndarray) -> float:
    """By how much a point violates a row."""
    return max([0.0, *(entry.evaluate(row, x, y) for row in (*entry.outer, *entry.inner))])


def inner_value(entry: CoupledEntry, x: np.ndarray, y: np.ndarray) -> float:
    """The lowest inner value at x that SciPy finds, at most that of y if y is feasible."""
    g = lambda v: entry.evaluate(entry.g, x, v)
    rows = [lambda v, row=row: entry.evaluate(row, x, v) for row in entry.inner]
    linear = _linear([g, *rows], len(y))
    if linear is not None:
        (c, c0), *bounds = linear
        A, b = np.array([a for a, _ in bounds]), -np.array([a0 for _, a0 in bounds])
        found = scipy.optimize.linprog(c, A, b + 1e-9, bounds=[(None, None)] * len(y))
        return float(found.fun + c0) if found.status == 0 else -np.inf
    rng, best = np.random.default_rng(0), np.inf
    constraints = [{"type": "ineq", "fun": lambda v, r=row: -r(v)} for row in rows]
    for k in range(TRIES):
        spread = (1 + np.abs(y)) * rng.standard_normal(len(y)) * (0.0, 0.3, 1.0, 3.0, 10.0)[k % 5]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                found = scipy.optimize.minimize(
                    g, y + spread, method="SLSQP", constraints=constraints,
                    options={"maxiter": 200, "ftol": 1e-12},
                )  # fmt: skip
            except (ValueError, ZeroDivisionError, OverflowError):
                continue
        if max([0.0, *(row(found.x) for row in rows)]) <= 1e-7 and np.isfinite(found.fun):
            best = min(best, float(found.fun))
    own = g(y) if max([0.0, *(row(y) for row in rows)]) <= WITHIN else np.inf
    return min(best, own)


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


def judge(entry: CoupledEntry, solution: pdbo.Solution) -> dict[str, Any]:
    """How good a solution is, without pdbo."""
    x, y = (np.atleast_1d(np.asarray(v, np.float64)) for v in (solution.x, solution.y))
    f, g = (entry.evaluate(formula, x, y) for formula in (entry.f, entry.g))
    value = inner_value(entry, x, y)
    gap = (g - value) / max(1.0, abs(g))
    off = violation(entry, x, y) / max(1.0, float(np.max(np.abs(np.concatenate([x, y])))))
    valid = bool(off <= WITHIN and gap <= WITHIN)
    error = None if entry.best is None else (f - entry.best) / max(1.0, abs(entry.best))
    solved = None if error is None else bool(valid and error <= NEAR)
    return {
        "f": f, "violation": off, "gap": gap, "error": error, "valid": valid,
        "solved": solved,
        "certified": bool(solution.ok), "false": bool(solution.ok and not valid),
        "result": solution.result.name, "eps": float(solution.certificate.eps),  # type: ignore
        "x": x.tolist(), "y": y.tolist(),
    }  # fmt: skip


def measure(entry: CoupledEntry) -> dict[str, Any]:
    """`solve`, which compiles, and then `multistart` on a problem, with their CPU seconds."""
    out: dict[str, Any] = {}
    jax.clear_caches()
    for how in ("solve", "multistart"):
        began, clock = cpu_seconds(), time.perf_counter()
        if how == "solve":
            solution = pdbo.solve(entry.problem, *entry.start, throw=False)
        else:
            solution = pdbo.multistart(entry.problem, *entry.start, starts=STARTS)
        taken = {
            "cpu": round(cpu_seconds() - began, 2),
            "wall": round(time.perf_counter() - clock, 2),
        }
        out[how] = judge(entry, solution) | taken
    return out


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Counts by half and by class."""
    names = sorted(bolib.names())
    halves = {"first half": names[::2], "second half": names[1::2], "all": names}
    tags = sorted({tag for n in names for tag in bolib.get(n).tags})
    groups = halves | {tag: [n for n in names if tag in bolib.get(n).tags] for tag in tags}
    table = {}
    for group, members in groups.items():
        for how in ("solve", "multistart"):
            rows = [results[n][how] for n in members if n in results]
            valued = [r for r in rows if r["solved"] is not None]
            table[f"{group}, {how}"] = {
                "with a value": len(valued),
                "solved": sum(r["solved"] for r in valued),
                "certified": sum(r["certified"] for r in rows),
                "false": sum(r["false"] for r in rows),
                "median cpu": float(np.median([r["cpu"] for r in rows])) if rows else None,
            }
    return table


def main(names: list[str]) -> None:
    """Run some problems, or all and write the record."""
    results: dict[str, Any] = {}
    part = FOLDER / "bolib.part.json"
    chosen = names or sorted(bolib.names())
    if not names and part.exists():
        results = json.loads(part.read_text())
    for name in chosen:
        if name in results:
            continue
        results[name] = measure(bolib.get(name))
        for how, row in results[name].items():
            print(
                f"{name:28s} {how:10s} solved {row['solved']!s:5} ok {row['certified']!s:5} "
                f"{'FALSE ' if row['false'] else ''}f {row['f']:.6g} best {bolib.get(name).best} "
                f"eps {row['eps']:.1e} viol {row['violation']:.1e} gap {row['gap']:.1e} "
                f"{row['result']} cpu {row['cpu']}",
                flush=True,
            )
        if not names:
            part.write_text(json.dumps(results))
    table = summary(results)
    print(json.dumps(table, indent=1))
    if not names:
        settings = {"starts": STARTS, "within": WITHIN, "near": NEAR}
        write("bolib", settings, {"summary": table, "problems": results})
        part.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
