"""The two theorems: error against T, N and K, with fitted slopes and the bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._results import Claim, Record, Results, Track
from ._views import Curve, Figure, Panel

if TYPE_CHECKING:
    from jax.typing import ArrayLike
    from jaxtyping import Array, Float

    from .. import Problem
    from ..schedules import Theory
    from ._trace import Trace

ALPHA, DELTA = 1.0, 0.3  # smoothing and slack
CURVATURE, TARGET, AIM = np.array([1.0, 0.5]), np.array([0.1, 0.1]), 1.2
SMOOTHED = float(np.sum(CURVATURE * ALPHA * TARGET**2 / (2 * (CURVATURE + ALPHA))))
"""The minimum over y of the smoothed inner function, minus 0.3 x."""
INNER = 40  # inner steps N while T or K varies
CORNER = 1.0
"""All coordinates of the start, a point where the constraint is violated."""
QUANTITIES = ("|f - f*|", "[h]+", "|z - z*|^2")
FITTED = {"T": 5, "N": 5, "K": 4}
"""How many of the last points the slopes are fitted to: the orders are asymptotic."""


def problem(bumps: float = 0.0) -> Problem:
    """f is strongly convex if bumps = 0, h~ is convex; one scalar equation gives the optimum.

    The sets are small so that the theorems' constants are small and the bounds informative.
    """
    import jax.numpy as jnp

    from .. import Box, Problem

    k, b = jnp.asarray(CURVATURE), jnp.asarray(TARGET)
    return Problem(
        lambda x, y: (
            0.5 * bumps * jnp.cos(2 * x) + 0.5 * (x - y[0]) ** 2 + 0.5 * jnp.sum((y - AIM) ** 2)
        ),
        lambda x, y: 0.5 * jnp.sum(k * (y - b) ** 2) + 0.3 * x,
        x_set=Box(0.0, 1.0),
        y_set=Box(0.0, 1.0),
    )


def optimum() -> tuple[float, np.ndarray, float]:
    """y(l) = (AIM + l K B)/(1 + l K) with h~(y(l)) = 0 by bisection, and x = y[0]."""

    def y(m: float) -> np.ndarray:
        return (AIM + m * CURVATURE * TARGET) / (1 + m * CURVATURE)

    low, high = 0.0, 100.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        above = 0.5 * np.sum(CURVATURE * (y(middle) - TARGET) ** 2) > DELTA + SMOOTHED
        low, high = (middle, high) if above else (low, middle)
    return float(y(low)[0]), y(low), low


def errors(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The theorem's three errors: |f - f*|, [h~]+ and |z - z*|^2."""

    def f(x: np.ndarray | float, y: np.ndarray) -> np.ndarray:
        return 0.5 * (x - y[..., 0]) ** 2 + 0.5 * np.sum((y - AIM) ** 2, -1)

    at_x, at_y, _ = optimum()
    distance = (x - at_x) ** 2 + np.sum((y - at_y) ** 2, -1)
    return np.stack([np.abs(f(x, y) - f(at_x, at_y)), violation(y), distance], -1)


def violation(y: np.ndarray) -> np.ndarray:
    """[h~]+, which does not depend on x."""
    return np.maximum(0.5 * np.sum(CURVATURE * (y - TARGET) ** 2, -1) - SMOOTHED - DELTA, 0)


def kkt_residuals(
    problem: Problem, x: ArrayLike, y: ArrayLike, multiplier: ArrayLike
) -> np.ndarray:
    """The largest of stationarity, feasibility and complementarity, point by point."""
    import jax
    import jax.numpy as jnp

    from .. import certify

    def residual(x: Array, y: Array, multiplier: Array) -> Float[Array, ""]:
        c = certify(problem, x, y, multiplier, slack=DELTA + SMOOTHED)
        return jnp.maximum(jnp.maximum(c.stationarity, c.feasibility), c.complementarity)

    return np.asarray(jax.jit(jax.vmap(residual))(*map(jnp.asarray, (x, y, multiplier))))


def run(seed: int, quick: bool, track: Track = iter) -> Results:
    """PDBO with the theorem's schedule against T and N, Proximal-PDBO against K."""
    import pdbo

    x0, y0 = _start()
    constants = pdbo.schedules.estimate_constants(problem(), x0[0], y0[0])
    theory = pdbo.schedules.theory(constants, smoothing=ALPHA, slack=DELTA)
    steps = 64_000 // 2 ** np.arange(8)[::-1]
    inner = np.arange(1, 5 if quick else 7)  # each of them compiles a program of its own
    inner_steps = 400_000
    rounds, round_steps = 64, 10_000 if quick else 40_000
    arrays: dict[str, np.ndarray] = {"T": steps, "N": inner}
    by_inner: dict[str, list[np.ndarray]] = {"N.errors": [], "N.bounds": []}
    calls, seconds = {}, {}
    for part in track(["T", *(f"N = {n}" for n in inner), "K"]):
        if part == "T":
            found, error = _pdbo_path(theory, INNER, int(steps[-1]), int(steps[0]), seed)
            arrays["T.errors"] = error[steps // steps[0]]
            arrays["T.bounds"] = np.array([theory.bound(int(t), INNER) for t in steps])
        elif part == "K":
            found, by_rounds = _against_rounds(rounds, round_steps, seed)
            arrays |= by_rounds
        else:
            n = int(part.split()[-1])
            found, error = _pdbo_path(theory, n, inner_steps, inner_steps, seed, y0[0])
            by_inner["N.errors"].append(error[-1])
            by_inner["N.bounds"].append(np.array(theory.bound(inner_steps, n)))
        calls[part], seconds[part] = found.calls, found.seconds
    arrays |= {k: np.stack(v) for k, v in by_inner.items()}
    settings = {
        "smoothing": ALPHA, "slack": DELTA, "N while T varies": INNER,
        "T while N varies": inner_steps, "round steps T while K varies": round_steps,
        "rate in N promised": 1 - ALPHA / (float(constants.rho_g) + 2 * ALPHA),
        "constants": {k: float(v) for k, v in constants._asdict().items()},
    }  # fmt: skip
    return Results(settings, arrays, calls, seconds)


def _start() -> tuple[Float[Array, " 1"], Float[Array, "1 2"]]:
    """The one start of all runs."""
    import jax.numpy as jnp

    return jnp.full(1, CORNER), jnp.full((1, 2), CORNER)


def _pdbo_path(
    theory: Theory, n: int, steps: int, every: int, seed: int, cold: Array | None = None
) -> tuple[Trace, np.ndarray]:
    """PDBO with n inner steps, and the errors of its rows.

    If a `cold` point is given, every inner solve starts there, so that n alone decides the inner
    accuracy; else it starts at the last inner solution.
    """
    from .. import PDBO
    from ._trace import trace

    start = "warm" if cold is None else cold
    solver = PDBO.from_theory(theory, inner_steps=n, multiplier0=0.0, inner_start=start)
    found = trace(problem(), solver, *_start(), steps=steps, every=every, seed=seed)
    return found, errors(found.rows["x"][0], found.rows["y"][0])


def _against_rounds(
    rounds: int, round_steps: int, seed: int
) -> tuple[Trace, dict[str, np.ndarray]]:
    """Proximal-PDBO on an f that is not convex: the mean KKT residual of the first K rounds."""
    import jax.numpy as jnp

    import pdbo

    from ._trace import trace

    curved = problem(bumps=0.5)
    x0, y0 = _start()
    known = pdbo.schedules.estimate_constants(curved, x0[0], y0[0])
    schedule = pdbo.schedules.theory(known, smoothing=ALPHA, slack=DELTA, proximal=True)
    solver = pdbo.ProximalPDBO.from_theory(
        schedule, rounds, round_steps, inner_steps=INNER, multiplier0=0.0
    )
    found = trace(curved, solver, x0, y0, steps=rounds * round_steps, every=round_steps, seed=seed)
    rows = [jnp.asarray(found.rows[k][0, 1:]) for k in ("x", "y", "multiplier")]
    residual = kkt_residuals(curved, *rows)
    counts = rounds // 2 ** np.arange(int(np.log2(rounds)) + 1)[::-1]
    start = float(violation(np.asarray(y0[0])))
    bounds = [schedule.kkt_bound(int(k), round_steps, INNER, start) for k in counts]
    mean = np.cumsum(residual) / np.arange(1, rounds + 1)
    return found, {"K": counts, "K.errors": mean[counts - 1], "K.bounds": np.array(bounds)}


def _fit(record: Record, key: str, column: int = 0) -> tuple[float, np.ndarray]:
    """The slope fitted to the last points of an error, and the fitted line at all points."""
    x, y = record[key].astype(float), _column(record, f"{key}.errors", column)
    at = x if key == "N" else np.log(x)
    fitted = slice(-FITTED[key], None)
    slope, offset = np.polyfit(at[fitted], np.log(np.maximum(y[fitted], 1e-300)), 1)
    return float(slope), np.exp(slope * at + offset)


def _column(record: Record, key: str, column: int) -> np.ndarray:
    return record[key].reshape(len(record[key]), -1)[:, column]


def figures(record: Record) -> list[Figure]:
    """One panel per error against T and N, one for the KKT residual against K."""
    wanted = [
        (key, column, quantity, method, axis)
        for key, method, axis, quantities in (
            ("T", "PDBO", "iterations T", QUANTITIES),
            ("N", "PDBO", "inner steps N", QUANTITIES),
            ("K", "Proximal-PDBO", "rounds K", ("mean KKT residual",)),
        )
        for column, quantity in enumerate(quantities)
    ]
    panels = []
    for letter, (key, column, quantity, method, axis) in zip("abcdefg", wanted, strict=True):
        x = record[key]
        slope, line = _fit(record, key, column)
        order = f"{np.exp(slope):.2g}^N" if key == "N" else f"{key}^{slope:.2f}"
        curves = [
            Curve(method, x, _column(record, f"{key}.errors", column), points=True),
            Curve("fitted", x, line),
            Curve("theorem's bound", x, _column(record, f"{key}.bounds", column)),
        ]
        panels.append(
            Panel(f"({letter}) fitted: {order}", axis, quantity, curves, key != "N", True)
        )
    s = record.settings
    caption = (
        "Measured errors, the lines fitted to their last points, and the theorems' right-hand "
        f"sides. (a) to (f): PDBO's averaged output on a strongly convex f, (a) to (c) with N = "
        f"{s['N while T varies']}, (d) to (f) with T = {s['T while N varies']:,} and cold inner "
        "starts. (g): Proximal-PDBO on an f that is not convex, the expectation over its random "
        f"round, with T = {s['round steps T while K varies']:,}. All start in a corner where the "
        "constraint is violated."
    )
    return [Figure("rates", caption, panels)]


def claims(record: Record) -> list[Claim]:
    """The orders of the theorems, and that the bounds hold."""
    columns = range(len(QUANTITIES))

    def largest_ratio(keys: str) -> float:
        return max(float(np.max(record[f"{k}.errors"] / record[f"{k}.bounds"])) for k in keys)

    first = int(record["T"][-FITTED["T"]])
    return [
        Claim(
            "Optimality gap, constraint violation and squared distance fall at the order of 1/T^2, "
            "up to the error of the inner steps.",
            "Theorem 1",
            f"the worst slope of the three against T >= {first:,}, both in logarithms",
            max(_fit(record, "T", c)[0] for c in columns),
            "<=",
            -1.8,
            quoted=False,
        ),
        Claim(
            "Updates [...] converge exponentially fast [...] w.r.t. N. Hence, with only a few "
            "steps, we can obtain a good estimate.",
            "Section 3.1 and Theorem 1",
            "the factor by which the slowest of the three errors falls per inner step, compared "
            "with 1 - alpha/(rho_g + 2 alpha)",
            max(float(np.exp(_fit(record, "N", c)[0])) for c in columns),
            "<=",
            float(record.settings["rate in N promised"]),
        ),
        Claim(
            "Proximal-PDBO's KKT residual falls at the order of 1/K.",
            "Theorem 2",
            f"the slope of the mean KKT residual against K >= {int(record['K'][-FITTED['K']])}, "
            "both in logarithms",
            _fit(record, "K")[0],
            "<=",
            -0.9,
            quoted=False,
        ),
        Claim(
            "The three errors stay below the right-hand side of the theorem.",
            "Theorem 1",
            "the largest ratio of an error to its own bound, over all T and N",
            largest_ratio("TN"),
            "<=",
            1.0,
            quoted=False,
        ),
        Claim(
            "The KKT residual stays below the right-hand side of the theorem.",
            "Theorem 2",
            "the largest ratio of the mean residual to its bound, over all K",
            largest_ratio("K"),
            "<=",
            1.0,
            quoted=False,
        ),
    ]
