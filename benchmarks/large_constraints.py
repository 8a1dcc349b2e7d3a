"""Large problems with sparse constraints between the levels, beside a direct KKT formulation.

    python -m benchmarks.large_constraints            every size; the record is
                                                      benchmarks/records/large_constraints.json
    python -m benchmarks.large_constraints KIND N WHO one run, printed as JSON

Three problems:

- allocation: a leader buys capacities x of n / 100 resources; n users, each of whom needs three of
  them, share the capacities so that all get as near as possible to what they want. The leader earns
  from what they use. f is linear, the follower's problem a quadratic program.
- conflict: the same, but from a quarter of the users the leader loses.
- toll: a leader sets tolls on 50 roads of a grid; travellers from 20 places to a corner spread over
  its roads at the least cost, with congestion. n is about the number of roads.

The rivals get the follower's optimality conditions as constraints. HiGHS gets them as a
mixed-integer program, with a binary variable for each pair of a row and its multiplier; that needs
a linear f. SLSQP and trust-constr get complementarity as m s <= 1e-6. Every run is a process of its
own: seconds of the clock and of the processor without imports, and its peak memory.
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sparse

from .record import FOLDER, write

RUNS = [
    *((kind, n, "pdbo") for n in (1000, 10_000) for kind in ("toll", "allocation", "conflict")),
    ("conflict", 100, "pdbo"),
    *((kind, 100_000, "pdbo") for kind in ("toll", "allocation")),
    *(("allocation", n, "HiGHS") for n in (1000, 10_000)),
    *(("conflict", n, "HiGHS") for n in (100, 1000)),
    ("conflict", 100, "SLSQP"),
    *(("conflict", n, "trust-constr") for n in (100, 1000)),
]
LIMIT = 60.0  # seconds of the processor for SLSQP and trust-constr ...
CLOCK = 180.0  # ... and of the clock for HiGHS
BIG = 20.0  # no slack and, in its unit, no multiplier of the allocation is larger


def allocation(n: int, least: float = 0.5) -> dict[str, Any]:
    """The numbers of an allocation problem."""
    rng, count = np.random.default_rng(0), max(3, n // 100)
    place = rng.integers(0, count, 3 * n), np.repeat(np.arange(n), 3)
    A = sparse.csr_array((rng.uniform(0.5, 1.5, 3 * n), place), shape=(count, n))
    share = float(A.sum(axis=1).mean())
    return {
        "A": A / share, "want": rng.uniform(0.5, 2, n), "value": rng.uniform(least, 1.5, n) / n,
        "price": rng.uniform(0.5, 1.5, count) * 0.25 * share / n, "share": share,
    }  # fmt: skip


def numbers(kind: str, n: int) -> dict[str, Any]:
    """The numbers of an allocation with or without conflict."""
    return allocation(n, -0.5 if kind == "conflict" else 0.5)


def toll(n: int) -> dict[str, Any]:
    """The numbers of a toll problem: roads lead right and down."""
    rng, side = np.random.default_rng(0), max(4, round(np.sqrt(n / 2)))
    at = np.arange(side * side).reshape(side, side)
    roads = [np.stack([at[:, :-1], at[:, 1:]]), np.stack([at[:-1], at[1:]])]
    first, last = np.concatenate([part.reshape(2, -1) for part in roads], axis=1)
    count = len(first)
    rows, columns = np.concatenate([first, last]), np.tile(np.arange(count), 2)
    A = sparse.csr_array((np.repeat([1.0, -1.0], count), (rows, columns)))
    out = np.zeros(side * side)
    out[rng.choice(side * side // 2, min(20, side), replace=False)] = 1.0
    out[-1] -= np.sum(out)
    strip = np.flatnonzero(first // side + first % side == side + side // 2)
    tolled = strip[1 :: max(2, len(strip) // 50)][:50]
    return {"A": A, "out": out, "cost": rng.uniform(1, 2, count), "tolled": tolled}


def by_pdbo(kind: str, n: int) -> dict[str, Any]:
    """`pdbo.solve` from a plain start."""
    import jax.numpy as jnp

    import pdbo
    from pdbo.linear import SparseMatrix

    d = toll(n) if kind == "toll" else numbers(kind, n)
    data: dict[str, Any] = {k: v for k, v in d.items() if k not in ("A", "tolled", "share")}
    data["A"] = SparseMatrix.from_scipy(d["A"])
    if kind != "toll":
        problem = pdbo.Problem(
            lambda x, y, d: d["price"] @ x - d["value"] @ y,
            lambda x, y, d: 0.5 * jnp.sum((y - d["want"]) ** 2),
            data, x_set=pdbo.Box(0.05, 2.0), y_set=pdbo.NonNegative(),
            inner_constraint=lambda x, y, d: d["A"] @ y - x,
        )  # fmt: skip
        start = np.full(len(d["price"]), 0.5), np.full(n, 0.5)
    else:
        tolled = jnp.asarray(d["tolled"])
        problem = pdbo.Problem(
            lambda x, y, d: -x @ y[tolled],
            lambda x, y, d: d["cost"] @ y + x @ y[tolled] + 0.5 * y @ y,
            data, x_set=pdbo.Box(0.0, 20.0), y_set=pdbo.NonNegative(),
            inner_constraint=lambda x, y, d: pdbo.Equal(d["A"] @ y - d["out"]),
        )  # fmt: skip
        start = np.ones(len(tolled)), np.full(len(d["cost"]), 0.5)
    solution = pdbo.solve(problem, *start, tol=1e-3, throw=False)
    c: Any = solution.certificate
    return {
        "f": float(solution.f), "ok": bool(solution.ok), "steps": len(solution.history["step"]),
        "eps": float(c.eps), "biactive": int(c.biactive), "inner gap": float(c.inner_gap),
        "x": len(start[0]), "y": len(start[1]),
    }  # fmt: skip


def by_milp(kind: str, n: int) -> dict[str, Any]:
    """The allocation as a mixed-integer program: z = (x, y, m, b) and binary variables."""
    d = numbers(kind, n)
    A, r = d["A"], len(d["price"])
    eye, none, most = sparse.eye_array, sparse.csr_array, BIG * d["share"]
    # y - want + A'm - b = 0; A y - x <= 0; x - A y <= BIG (1 - p), m <= BIG share p;
    # y <= BIG (1 - q), b <= BIG q
    blocks = [
        [none((n, r)), eye(n), A.T, -eye(n), none((n, r)), none((n, n))],
        [-eye(r), A, none((r, r)), none((r, n)), none((r, r)), none((r, n))],
        [eye(r), -A, none((r, r)), none((r, n)), BIG * eye(r), none((r, n))],
        [
            none((r, r)),
            none((r, n)),
            eye(r),
            none((r, n)),
            -most * eye(r),
            none((r, n)),
        ],
        [none((n, r)), eye(n), none((n, r)), none((n, n)), none((n, r)), BIG * eye(n)],
        [none((n, r)), none((n, n)), none((n, r)), eye(n), none((n, r)), -BIG * eye(n)],
    ]
    zeros = np.zeros
    high = [d["want"], zeros(r), np.full(r, BIG), zeros(r), np.full(n, BIG), zeros(n)]
    low = np.full(sum(map(len, high)), -np.inf)
    low[:n] = d["want"]
    rows = scipy.optimize.LinearConstraint(sparse.block_array(blocks), low, np.concatenate(high))
    c = np.concatenate([d["price"], -d["value"], zeros(2 * r + 2 * n)])
    lower = np.r_[np.full(r, 0.05), zeros(len(c) - r)]
    upper = np.r_[np.full(r, 2.0), np.full(2 * n + r, np.inf), np.ones(r + n)]
    found = scipy.optimize.milp(
        c, constraints=rows, bounds=scipy.optimize.Bounds(lower, upper),  # type: ignore
        integrality=np.r_[zeros(2 * r + 2 * n), np.ones(r + n)],
        options={"time_limit": CLOCK, "mip_rel_gap": 1e-3},
    )  # fmt: skip
    gap = getattr(found, "mip_gap", None)
    return {
        "f": None if found.x is None else float(found.fun), "ok": found.status == 0,
        "gap to its bound": None if gap is None else float(gap),
    }  # fmt: skip


def by_nlp(kind: str, n: int, method: str) -> dict[str, Any]:
    """The allocation as a nonlinear program: z = (x, y, m, b)."""
    d = numbers(kind, n)
    A, r = d["A"], len(d["price"])
    ends = np.cumsum([r, n, r])
    eye, none = sparse.eye_array, sparse.csr_array
    equal = sparse.block_array([[none((n, r)), eye(n), A.T, -eye(n)]]).tocsr()
    room = sparse.block_array([[eye(r), -A, none((r, r)), none((r, n))]]).tocsr()
    c = np.concatenate([d["price"], -d["value"], np.zeros(r + n)])

    def pairs(z: np.ndarray) -> np.ndarray:
        x, y, m, b = np.split(z, ends)
        return 1e-6 - np.concatenate([m * (x - A @ y), b * y])

    def slopes(z: np.ndarray) -> Any:
        x, y, m, b = np.split(z, ends)
        D = sparse.diags_array
        return -sparse.block_array(
            [
                [D(m), -D(m) @ A, D(x - A @ y), None],
                [none((n, r)), D(b), none((n, r)), D(y)],
            ]
        ).tocsr()

    y = np.full(n, 0.5)
    start = np.concatenate([np.maximum(A @ y, 0.5), y, np.full(r, 0.1), np.full(n, 0.1)])
    bounds = scipy.optimize.Bounds(
        np.r_[np.full(r, 0.05), np.zeros(n + r + n)],
        np.r_[np.full(r, 2.0), np.full(2 * n + r, BIG * d["share"])],
    )
    began = time.process_time()

    def watch(*_: Any) -> None:
        if time.process_time() - began > LIMIT:
            raise TimeoutError

    if method == "SLSQP":
        dense = [M.toarray() for M in (equal, room)]
        constraints: Any = [
            {"type": "eq", "fun": lambda z: dense[0] @ z - d["want"], "jac": lambda z: dense[0]},
            {"type": "ineq", "fun": lambda z: dense[1] @ z, "jac": lambda z: dense[1]},
            {"type": "ineq", "fun": pairs, "jac": lambda z: slopes(z).toarray()},
        ]
        options = {"maxiter": 500}
    else:
        constraints = [
            scipy.optimize.LinearConstraint(equal, d["want"], d["want"]),
            scipy.optimize.LinearConstraint(room, 0, np.inf),
            scipy.optimize.NonlinearConstraint(pairs, 0, np.inf, jac=slopes),  # type: ignore
        ]
        options = {"maxiter": 2000}
    try:
        found = scipy.optimize.minimize(
            lambda z: c @ z, start, jac=lambda z: c, hess=lambda z: none((len(c), len(c))),
            method=method, bounds=bounds, constraints=constraints, options=options, callback=watch,
        )  # fmt: skip
    except TimeoutError:
        return {"f": None, "ok": False, "off": None}
    z = found.x
    off = max(np.max(np.abs(equal @ z - d["want"])), -np.min(room @ z), -np.min(pairs(z)), 0.0)
    return {"f": float(found.fun), "ok": bool(found.success and off < 1e-4), "off": float(off)}


def one(kind: str, n: int, who: str) -> dict[str, Any]:
    """A run in this process."""
    import pdbo.coupled.reduced  # noqa: F401  imports are not timed

    began, cpu = time.perf_counter(), time.process_time()
    if who == "pdbo":
        out = by_pdbo(kind, n)
    else:
        out = by_milp(kind, n) if who == "HiGHS" else by_nlp(kind, n, who)
    out["seconds"] = round(time.perf_counter() - began, 2)
    out["cpu"] = round(time.process_time() - cpu, 2)
    out["peak MB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return out


TITLES = {
    "toll": "tolls on a grid", "allocation": "allocation", "conflict": "allocation with conflict"
}  # fmt: skip


def figures(record: dict[str, Any]) -> str:
    """Its table in docs/results.md."""
    rivals = [who for found in record["results"].values() for who in found if who != "pdbo"]
    rivals = list(dict.fromkeys(rivals))
    ours = ["f", "eps", "certified", "CPU s", "peak MB"]
    head = ["problem", "follower's variables", *ours, *rivals]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, found in record["results"].items():
        row, kind = found["pdbo"], name.rpartition(" ")[0]
        cells = [TITLES.get(kind, kind), f"{row['y']:,}", f"{row['f']:.4g}", f"{row['eps']:.1e}"]
        cells += ["yes" if row["ok"] else "no", f"{row['cpu']:.1f}", f"{row['peak MB']:,}"]
        cells += [_rival(found[who]) if who in found else "" for who in rivals]
        lines.append(f"| {' | '.join(cells)} |")
    tol = record["settings"]["tol"]
    about = f"{record['platform']}, JAX {record['versions']['jax']}"
    note = f"; {record['settings']['note']}" if "note" in record["settings"] else ""
    return (
        f"CPU seconds of one process with compilation, tolerance {tol:g}, {about}{note}.\n\n"
        + "\n".join(lines)
    )


def _rival(row: dict[str, Any]) -> str:
    """Where a rival ended, in a cell."""
    f = "no point" if row["f"] is None else f"f {row['f']:.4g}"
    gap = row.get("gap to its bound")
    proved = "" if gap is None else f", gap {gap:.2g}"
    return f"{f}{proved}, {'' if row['ok'] else 'stopped after '}{row['cpu']:.1f} s"


def _place(name: str) -> tuple[int, int]:
    kind, n = name.rsplit(" ")
    return list(TITLES).index(kind), int(n)


def main() -> None:
    """Every run in a process of its own, and the record; runs that are in the record stay."""
    path = FOLDER / "large_constraints.json"
    record = json.loads(path.read_text()) if path.exists() else {"results": {}, "settings": {}}
    results: dict[str, Any] = record["results"]
    settings = record["settings"] | {"tol": 1e-3, "limits of rivals": [LIMIT, CLOCK], "big": BIG}
    for kind, n, who in RUNS:
        known = results.setdefault(f"{kind} {n}", {})
        if who in known:
            continue
        command = [sys.executable, "-m", "benchmarks.large_constraints", kind, str(n), who]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        known[who] = json.loads(ended.stdout.strip().splitlines()[-1])
        print(kind, n, who, known[who], flush=True)
        ordered = {name: results[name] for name in sorted(results, key=_place)}
        write("large_constraints", settings, ordered)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(one(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        main()
