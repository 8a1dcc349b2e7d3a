"""The default solver against truths of its own: exact, certified, quick, and never wrongly sure.

Run as `python -m benchmarks.default`, or with the names of some families: quadratics, nullspaces,
scaling, games, first, adversarial, call, workloads. Every problem is drawn from a seed and has a
truth that pdbo does not compute: a closed form, or a search by SciPy or NumPy. The record of each
family is written to benchmarks/records/default.json.
"""

import contextlib
import json
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pdbo

from . import adversarial, first_call, first_problems, untuned
from .first_problems import Case, apart, flat
from .record import FOLDER, write

SEED = 0
LIMIT = 60  # seconds of the processor for one solve
WRONG = 1e-2  # relative: an x this far off is wrong


class Outcome(NamedTuple):
    """How a solve ended.

    Attributes:
        solution: the solution, None if there is none.
        ok: whether it is certified.
        result: the result code, or the error's name.
        seconds: of the processor, that the call took.
    """

    solution: Any
    ok: bool
    result: str
    seconds: float


class OutOfTime(Exception):
    """A solve took more of the processor than `LIMIT`."""


@contextlib.contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Raise `OutOfTime` after some seconds of the processor."""

    def stop(number: int, frame: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(problem: pdbo.Problem, x0: Any, y0: Any) -> Outcome:
    """Solve with the defaults; errors become results."""
    began = time.process_time()
    solution, ok = None, False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with alarm(LIMIT):
                solution = pdbo.solve(problem, x0, y0, throw=False)
                ok, result = bool(solution.ok), solution.result.name
        except Exception as error:
            result = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return Outcome(solution, ok, result, time.process_time() - began)


def session(double: bool) -> Any:
    """A session with 64-bit types, or one without."""
    return jax.enable_x64(double)


# Quadratics


def solve_exactly(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Gaussian elimination with pivots in extended precision."""
    a = np.concatenate([matrix, right[:, None]], axis=1).astype(np.longdouble)
    n = len(a)
    for k in range(n):
        pivot = k + int(np.argmax(np.abs(a[k:, k])))
        a[[k, pivot]] = a[[pivot, k]]
        for row in range(k + 1, n):
            a[row] -= a[row, k] / a[k, k] * a[k]
    for k in range(n - 1, -1, -1):
        a[k, n] = (a[k, n] - a[k, k + 1 : n] @ a[k + 1 : n, n]) / a[k, k]
    return a[:, n].astype(np.float64)


def _quadratic_f(x: Any, y: Any, d: Any) -> Any:
    z = jnp.concatenate([x, y]) - d["z"]
    return 0.5 * z @ (d["M"] @ z)


def _quadratic_g(x: Any, y: Any, d: Any) -> Any:
    return 0.5 * y @ (d["H"] @ y) - y @ (d["B"] @ x + d["c"])


def quadratic(
    seed: int, condition: float, nx: int = 2, ny: int = 3
) -> tuple[dict[str, Any], Any, Any]:
    """Data of a strongly convex problem, in single precision, and its exact solution."""
    rng = np.random.default_rng([seed, round(np.log10(condition))])
    turn = np.linalg.qr(rng.standard_normal((ny, ny)))[0]
    H = turn * np.geomspace(1, 1 / condition, ny) @ turn.T
    R = rng.standard_normal((nx + ny, nx + ny))
    data = {
        "H": (H + H.T) / 2, "B": rng.standard_normal((ny, nx)), "c": rng.standard_normal(ny),
        "M": R @ R.T + np.eye(nx + ny), "z": rng.standard_normal(nx + ny),
    }  # fmt: skip
    data = {k: np.asarray(v, np.float32) for k, v in data.items()}
    d = {k: np.asarray(v, np.longdouble) for k, v in data.items()}
    zero = np.zeros
    # stationarity of f + <v, g_y> in x and y, and g_y = 0
    matrix = np.block([
        [d["M"], np.concatenate([-d["B"].T, d["H"]])],
        [-d["B"], d["H"], zero((ny, ny))],
    ])  # fmt: skip
    z = solve_exactly(matrix, np.concatenate([d["M"] @ d["z"], d["c"]]))
    return data, z[:nx], z[nx : nx + ny]


def quadratics(count: int = 40) -> dict[str, Any]:
    """Strongly convex problems of 2 + 3 variables: 40 per condition of the inner problem."""
    results = {}
    for double in (False, True):
        for power in range(7):
            rows = []
            refused = 0
            with session(double):
                for seed in range(count):
                    data, x, y = quadratic(seed, 10.0**power)
                    problem = pdbo.Problem(_quadratic_f, _quadratic_g, data)
                    out = attempt(problem, np.zeros(2), np.zeros(3))
                    error = np.inf
                    if out.solution is not None:
                        error = np.linalg.norm(flat(out.solution.x) - x) / np.linalg.norm(x)
                    rows.append((out, float(error)))
                    refused += not pdbo.certify(problem, x, y).eps <= 1e-4
            name = f"{'double' if double else 'single'}, condition 1e{power}"
            results[name] = _summary(rows) | {"exact solutions refused": refused}
            _show(name, results[name])
    return {"problems each": count, "x": 2, "y": 3, "cases": results}


# Null spaces


def _selection_f(x: Any, y: Any, d: Any) -> Any:
    return 0.5 * jnp.sum((x - d["a"]) ** 2) + 0.5 * jnp.sum((y - d["b"]) ** 2)


def _selection_g(x: Any, y: Any, d: Any) -> Any:
    return 0.5 * jnp.sum((d["A"] @ y - d["B"] @ x - d["c"]) ** 2)


def nullspace(seed: int, ny: int, condition: float = 1e6, nx: int = 5) -> tuple[Any, Any, Any]:
    """Half of y is invisible to g, whose other half has this condition; and the solution."""
    rng = np.random.default_rng([seed, ny])
    k = ny // 2
    left, right = (np.linalg.qr(rng.standard_normal((n, k)))[0] for n in (k, ny))
    data = {
        "A": left * np.geomspace(1, condition**-0.5, k) @ right.T,
        "B": rng.standard_normal((k, nx)) / ny**0.5, "c": rng.standard_normal(k) / ny**0.5,
        "a": rng.standard_normal(nx), "b": rng.standard_normal(ny),
    }  # fmt: skip
    data = {k: np.asarray(v, np.float32) for k, v in data.items()}
    d = {k: np.asarray(v, np.float64) for k, v in data.items()}
    C, z = np.concatenate([-d["B"], d["A"]], axis=1), np.concatenate([d["a"], d["b"]])
    for _ in range(2):  # the nearest point of the plane C z = c; again, for rounding
        z = z - np.linalg.lstsq(C, C @ z - d["c"], rcond=1e-14)[0]
    return data, z[:nx], z[nx:]


def nullspaces(count: int = 10) -> dict[str, Any]:
    """Null spaces of half the dimension of y, in a 64-bit and a default session."""
    results = {}
    for double in (False, True):
        for ny in (10, 100, 400, 1000):
            rows = []
            with session(double):
                for seed in range(count):
                    data, x, y = nullspace(seed, ny)
                    problem = pdbo.Problem(_selection_f, _selection_g, data)
                    out = attempt(problem, np.zeros(5), np.zeros(ny))
                    error = np.inf
                    if out.solution is not None:
                        error = max(apart(out.solution.x, x), apart(out.solution.y, y))
                    rows.append((out, float(error)))
            name = f"{'double' if double else 'single'}, ny = {ny}"
            results[name] = _summary(rows)
            _show(name, results[name])
    return {"problems each": count, "condition": 1e6, "x": 5, "cases": results}


# Scaling


def rescaled(case: Case) -> Callable[[dict[str, Any]], tuple[pdbo.Problem, Any, Any]]:
    """The problem of a case in other units: x = s_x u, y = s_y w, f s_f, g s_g + constant."""
    f, g = case.f, case.g

    def outer(u: Any, w: Any, d: Any) -> Any:
        return d["f"] * f(u * d["x"], w * d["y"])

    def inner(u: Any, w: Any, d: Any) -> Any:
        return d["g"] * g(u * d["x"], w * d["y"]) + d["constant"]

    def make(units: dict[str, Any]) -> tuple[pdbo.Problem, Any, Any]:
        sets = {}
        for name, side in (("x_set", "x"), ("y_set", "y")):
            kept = getattr(case, name)
            if isinstance(kept, pdbo.Box):
                lo, hi = (np.asarray(b, np.float64) / units[side] for b in (kept.lo, kept.hi))
                sets[name] = pdbo.Box(lo, hi)
            elif kept is not None:
                raise ValueError(f"{case.name}: only boxes can be rescaled")
        problem = pdbo.Problem(outer, inner, units, **sets)
        start = (np.asarray(z, np.float64) / units[k] for k, z in (("x", case.x0), ("y", case.y0)))
        return problem, *start

    return make


def units(rng: Any, case: Case) -> dict[str, Any]:
    """Random powers of ten, entry by entry, and a constant."""
    power = lambda size=None: 10.0 ** rng.integers(-8, 9, size)
    sizes = (np.shape(z) or None for z in (case.x0, case.y0))
    x, y = (np.asarray(power(s), np.float64) for s in sizes)
    constant = rng.choice([0.0, 1.0, -1.0]) * 10.0 ** rng.uniform(0, 10)
    return {"x": x, "y": y, "f": np.float64(power()), "g": np.float64(power()),
            "constant": np.float64(constant)}  # fmt: skip


def scaling(count: int = 20) -> dict[str, Any]:
    """Twenty problems in twenty units each: the same verdict and the same answer."""
    results = {}
    with session(True):
        for number, case in enumerate(first_problems.scalable()[:20]):
            make, rng = rescaled(case), np.random.default_rng([SEED, number])
            one = {k: np.ones(np.shape(z)) for k, z in (("x", case.x0), ("y", case.y0))}
            one |= {"f": np.float64(1), "g": np.float64(1), "constant": np.float64(0)}
            plain = attempt(*make(one))
            x = flat(np.nan if plain.solution is None else plain.solution.x)
            odd, worst, slow = [], 0.0, 0.0
            for index in range(count):
                unit = units(rng, case)
                out = attempt(*make(unit))
                slow = max(slow, out.seconds)
                away = np.inf
                if out.solution is not None and plain.solution is not None:
                    away = apart(flat(out.solution.x) * np.ravel(unit["x"]), x)
                worst = max(worst, away if out.ok else 0.0)
                if out.ok != plain.ok or away > 1e-5:
                    odd.append({"index": index, "result": out.result, "ok": out.ok, "away": away,
                                **{k: np.asarray(v).tolist() for k, v in unit.items()}}
    )  # fmt: skip
            results[case.name] = {
                "verdict in its own units": plain.result, "differ": len(odd),
                "wrong": sum(o["ok"] and o["away"] > WRONG for o in odd),
                "largest distance of a certified one": worst, "slowest": slow, "odd ones": odd,
            }  # fmt: skip
            _show(case.name, {k: v for k, v in results[case.name].items() if k != "odd ones"})
    return {"units each": count, "powers of ten": [-8, 8], "cases": results}


# Pricing games


def _game_f(x: Any, y: Any, d: Any) -> Any:
    return -jnp.sum((x - d["cost"]) * y[:3])


def _game_g(x: Any, y: Any, d: Any) -> Any:
    price = jnp.concatenate([x, jnp.zeros_like(x[:1])])
    return jnp.sum((price - d["value"]) * y) + 0.5 * y @ (d["D"] @ y)


def _entropy_g(x: Any, y: Any, d: Any) -> Any:
    price = jnp.concatenate([x, jnp.zeros_like(x[:1])])
    some = y + d["some"]
    return jnp.sum((price - d["value"]) * y) + d["heat"] * jnp.sum(some * jnp.log(some))


class Game(NamedTuple):
    """A pricing game: its data, and the shares that buyers choose, by NumPy alone."""

    data: dict[str, np.ndarray]
    entropy: bool
    highest: float

    def shares(self, x: np.ndarray) -> np.ndarray:
        """The shares at each of many prices."""
        d = {k: np.asarray(v, np.float64) for k, v in self.data.items()}
        cost = np.concatenate([x, np.zeros((len(x), 1))], axis=1) - d["value"]
        if self.entropy:
            return self._by_level(cost, float(d["heat"]), float(d["some"]))
        best, low = np.zeros_like(cost), np.full(len(x), np.inf)
        for face in range(1, 16):
            used = [k for k in range(4) if face >> k & 1]
            m = len(used)
            system = np.ones((m + 1, m + 1))
            system[:m, :m], system[m, m] = d["D"][np.ix_(used, used)], 0.0
            right = np.concatenate([-cost[:, used], np.ones((len(x), 1))], axis=1)
            y = np.zeros_like(cost)
            y[:, used] = np.linalg.solve(system, right.T).T[:, :m]
            g = np.sum(cost * y, 1) + 0.5 * np.sum(y @ d["D"] * y, 1)
            better = np.all(y >= -1e-13, 1) & (g < low)
            best[better], low[better] = y[better], g[better]
        return np.maximum(best, 0.0)

    @staticmethod
    def _by_level(cost: np.ndarray, heat: float, some: float) -> np.ndarray:
        """y = max(exp((level - cost) / heat - 1) - some, 0); the level makes it sum to one."""
        at = lambda level: np.maximum(np.exp((level - cost) / heat - 1) - some, 0.0)
        low = np.min(cost, 1, keepdims=True) + heat * (1 + np.log(some))
        high = np.min(cost, 1, keepdims=True) + heat * (1 + np.log(1 + some))
        for _ in range(200):
            middle = (low + high) / 2
            above = np.sum(at(middle), 1, keepdims=True) > 1
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return at((low + high) / 2)

    def f(self, x: np.ndarray) -> np.ndarray:
        """What the seller loses at each of many prices."""
        return -np.sum((x - np.asarray(self.data["cost"], np.float64)) * self.shares(x)[:, :3], 1)

    def descend(self, x: np.ndarray, size: float) -> tuple[np.ndarray, float]:
        """A pattern search from x with steps of at most a size."""
        rng = np.random.default_rng(1)
        best = float(self.f(x[None])[0])
        while size > 1e-10:
            ways = rng.standard_normal((64, 3))
            ways /= np.linalg.norm(ways, axis=1, keepdims=True)
            ways = np.concatenate([np.eye(3), -np.eye(3), ways])
            tried = np.clip(x + size * ways, 0, self.highest)
            seen = self.f(tried)
            k = int(np.argmin(seen))
            if seen[k] < best:
                x, best = tried[k], float(seen[k])
                size *= 1.5
            else:
                size *= 0.5
        return x, best

    def optimum(self) -> float:
        """The lowest f by a grid and pattern searches from its ten best points."""
        side = np.linspace(0, self.highest, 17)
        grid = np.stack(np.meshgrid(side, side, side), -1).reshape(-1, 3)
        order = np.argsort(self.f(grid))
        return min(self.descend(grid[k], side[1])[1] for k in order[:10])


def game(seed: int) -> Game:
    """A random game; every fifth has utilities with an entropy."""
    rng = np.random.default_rng([SEED, seed])
    R = rng.standard_normal((4, 4))
    data = {"cost": rng.uniform(0, 1, 3), "value": np.append(rng.uniform(1, 4, 3), 0.0)}
    entropy = seed % 5 == 4
    if entropy:
        data |= {"heat": rng.uniform(0.3, 1.5), "some": 0.01}
    else:
        data |= {"D": 0.2 * R @ R.T + np.diag(rng.uniform(0.3, 2, 4))}
    return Game({k: np.asarray(v, np.float32) for k, v in data.items()}, entropy, 5.0)


def games(count: int = 100) -> dict[str, Any]:
    """Random pricing games: three products, an outside option, prices in a box."""
    rows = []
    box, simplex = pdbo.Box(0.0, 5.0), pdbo.Simplex()
    for seed in range(count):
        made = game(seed)
        inner = _entropy_g if made.entropy else _game_g
        problem = pdbo.Problem(_game_f, inner, made.data, box, simplex)
        out = attempt(problem, np.ones(3, np.float32), np.full(4, 0.25, np.float32))
        best = made.optimum()
        row: dict[str, Any] = {"game": seed, "ok": out.ok, "result": out.result,
                               "seconds": out.seconds, "brute force": best}  # fmt: skip
        row |= {"f": np.inf, "x": None, "global": False, "right": False}
        if out.solution is not None:
            x, f = flat(out.solution.x), float(out.solution.f)
            shares = made.shares(x[None])[0]
            follows = np.max(np.abs(shares - flat(out.solution.y))) <= 1e-6
            near = made.descend(x, 1e-3)[1]
            row |= {"f": f, "x": x.tolist(), "global": f <= best + 1e-6 * (1 + abs(best)),
                    "below": bool(f < best - 1e-6 * (1 + abs(best)))}  # fmt: skip
            local = f <= near + 1e-7 * (1 + abs(f))
            row["right"] = bool(follows and (row["global"] or local))
        rows.append(row)
        if not (row["ok"] and row["right"]):
            print(row, flush=True)
    return {
        "games": count, "certified": sum(r["ok"] for r in rows),
        "certified and right": sum(r["ok"] and r["right"] for r in rows),
        "certified and global": sum(r["ok"] and r["global"] for r in rows),
        "wrong": sum(r["ok"] and not r["right"] for r in rows),
        "median seconds": statistics.median(r["seconds"] for r in rows),
        "slowest": max(r["seconds"] for r in rows), "cases": rows,
    }  # fmt: skip


# Tables


def judged(case: Case, twice: bool = True) -> dict[str, Any]:
    """Solve a case, twice to have it warm, and compare with its truth."""
    with session(case.double):
        try:
            problem, x0, y0 = case.problem()
        except Exception as error:
            return {"case": case.name, "result": f"not built: {error}", "ok": False, "right": False,
                    "first": 0.0, "seconds": 0.0, "expected": case.expected}  # fmt: skip
        cold = attempt(problem, x0, y0)
        warm = attempt(problem, x0, y0) if twice else cold
        row = {"case": case.name, "expected": case.expected, "ok": warm.ok,
               "result": warm.result, "first": cold.seconds, "seconds": warm.seconds}  # fmt: skip
        if warm.solution is None:
            return row | {"right": False}
        sol = warm.solution
        x, y = flat(sol.x), flat(sol.y)
        row |= {"f": float(sol.f), "x": x[:8].tolist(), "y": y[:8].tolist()}
        row |= {k: _entry(sol.certificate, k) for k in ("eps", "radius")}
        with jax.enable_x64(True):
            row["right"], row["why"] = case.judge(sol)
        row["same twice"] = bool(cold.ok == warm.ok)
        return row


def _entry(certificate: Any, name: str) -> float | None:
    value = getattr(certificate, name, None)
    return None if value is None else float(value)


def _line(row: dict[str, Any]) -> str:
    sure = "ok" if row["ok"] else "--"
    right = "right" if row["right"] else "WRONG" if row["ok"] else "     "
    text = f"{row['case'][:44]:44s} {sure} {right} {row['seconds']:6.2f}s {row['result'][:60]}"
    if row["ok"] and not row["right"]:
        text += f"  x={row['x'][:3]} y={row['y'][:3]} {row.get('why', '')}"
    return text


def first() -> dict[str, Any]:
    """First problems that a user would write."""
    rows = []
    for case in first_problems.cases():
        rows.append(judged(case))
        print(_line(rows[-1]), flush=True)
    good = [r for r in rows if r["ok"] and r["right"]]
    return {
        "problems": len(rows), "certified and right": len(good),
        "wrong": sum(r["ok"] and not r["right"] for r in rows),
        "within 2 s warm": sum(r["seconds"] <= 2 for r in rows),
        "median first call": statistics.median(r["first"] for r in rows), "cases": rows,
    }  # fmt: skip


def adverse() -> dict[str, Any]:
    """Problems meant to make the default say ok wrongly, or fail."""
    rows = []
    for case in adversarial.cases():
        row = judged(case, twice=False)
        jax.clear_caches()  # else the programs of all searches fill the memory for them
        row["met"] = _met(row)
        rows.append(row)
        print(_line(row), "" if row["met"] else f"  <-- expected {case.expected}", flush=True)
    false = [r["case"] for r in rows if r["ok"] and not r["right"]]
    return {
        "problems": len(rows), "false oks": len(false), "which": false,
        "as expected": sum(r["met"] for r in rows),
        "solved": sum(r["ok"] and r["right"] for r in rows),
        "slowest": max(r["seconds"] for r in rows), "cases": rows,
    }  # fmt: skip


def _met(row: dict[str, Any]) -> bool:
    if row["ok"] and not row["right"]:
        return False
    if row["expected"] == "solved":
        return bool(row["ok"])
    if row["expected"] == "refused":
        return not row["ok"]
    return True


def _summary(rows: list[tuple[Any, float]]) -> dict[str, Any]:
    """How many of the outcomes are certified, and how wrong these are, from their errors in x."""
    return {
        "certified": sum(o.ok for o, _ in rows),
        "wrong": sum(o.ok and e > WRONG for o, e in rows),
        "largest error of a certified one": max((e for o, e in rows if o.ok), default=0.0),
        "median seconds": statistics.median(o.seconds for o, _ in rows),
        "not certified": {str(k): o.result for k, (o, _) in enumerate(rows) if not o.ok},
    }


def _show(name: str, numbers: dict[str, Any]) -> None:
    short = (f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in numbers.items())
    print(f"{name:34s}", ", ".join(short), flush=True)


FAMILIES = {
    "quadratics": quadratics, "nullspaces": nullspaces, "scaling": scaling, "games": games,
    "first": first, "adversarial": adverse, "call": first_call.measured,
    "workloads": untuned.measured,
}  # fmt: skip


def main() -> None:
    """Run the families named, or all, and write the record."""
    path = FOLDER / "default.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in sys.argv[1:] or list(FAMILIES):
        began = time.process_time()
        found = FAMILIES[name]()
        results[name] = found | {"seconds": round(time.process_time() - began)}
        summary = {k: v for k, v in results[name].items() if k != "cases"}
        print(name, json.dumps(summary, indent=1), flush=True)
        settings = {"seed": SEED, "limit": LIMIT, "wrong": WRONG, "solve": "defaults"}
        print("written to", write("default", settings, results), flush=True)


if __name__ == "__main__":
    main()
