"""The appendix's second problem: an inner function with many basins, far from convex."""

import numpy as np

from ._results import Claim, Record, Results, Track
from ._views import Curve, Figure, Panel, Scene, Table, counted, fates, level, listed
from .toy import AUTO, METHODS, SHOWN

STARTS = np.array([[3, 3], [-4, 1], [6, -2], [1, 7], [-6, -6], [0, 0.5]], float)
"""The paper's start, and five more for the page's landscape."""
BEST = -np.pi / 4  # x* and y*
VALUE = np.pi**2 / 8  # f*
TRIED = {
    "multiplier bound": ("PDBO", "dual_bound", np.array([1.0, 2, 3, 5, 10, 20, 50])),
    "multiplier bound, proximal": (
        "Proximal-PDBO", "dual_bound", np.array([1.0, 2, 3, 5, 10, 20, 50]),
    ),
    "averaging of BigSAM": (
        "BigSAM+ITD", "averaging", np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9]),
    ),
}  # fmt: skip
"""What the paper leaves open here: the method, its setting and the values to try."""
FIRST, PRIMAL = np.array([0.0, 0.5, 1, 2, 5]), np.array([0.05, 0.1, 0.2])
"""First multipliers and primal steps of PDBO to try; the paper's are 2 and 0.2."""
NEAR = 0.01  # both |f - f*| and the inner gap must be this small at an optimum


def run(seed: int, quick: bool, track: Track = iter) -> Results:
    """The five methods with the paper's steps, and the automatic solver."""
    import jax.numpy as jnp

    from .. import AutoPDBO
    from ._paper import SETTINGS, methods, sine
    from ._trace import trace

    steps = 1000
    solvers = methods() | {AUTO: AutoPDBO()}
    arrays, calls, seconds = {"starts": STARTS}, {}, {}
    for name in track(list(solvers)):
        x0, y0 = (jnp.asarray(column) for column in STARTS.T)
        found = trace(sine(), solvers[name], x0, y0, steps=steps, seed=seed)
        arrays |= {f"{name}.{k}": v for k, v in found.rows.items()}
        calls[name], seconds[name] = found.calls, found.seconds
    arrays |= _sweep(steps, seed)
    settings = SETTINGS | {
        "iterations": steps, "starts (x, y)": STARTS.tolist(),
        **{f"{name} tried": values.tolist() for name, (_, _, values) in TRIED.items()},
        "first multipliers tried": FIRST.tolist(), "primal steps tried": PRIMAL.tolist(),
    }  # fmt: skip
    return Results(settings, arrays, calls, seconds)


def _sweep(steps: int, seed: int) -> dict[str, np.ndarray]:
    """The last errors from the paper's start with other values of what it leaves open."""
    import jax.numpy as jnp

    from ._paper import sine, varied
    from ._trace import sweep

    x0, y0 = (jnp.asarray(column) for column in STARTS[:1].T)

    def last(solvers: list) -> np.ndarray:
        rows = sweep(sine(), solvers, x0, y0, steps=steps, every=steps, seed=seed).rows
        return error(rows["x"][:, 0, -1], rows["y"][:, 0, -1])

    found = {
        f"sweep.{name}": last([varied(method, **{setting: v}) for v in values])
        for name, (method, setting, values) in TRIED.items()
    }
    grid = [varied("PDBO", primal_step=p, multiplier0=m) for p in PRIMAL for m in FIRST]
    return found | {"sweep.first multiplier": last(grid).reshape(len(PRIMAL), len(FIRST))}


def error(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The larger of |f - f*| and the inner gap."""
    return np.maximum(np.abs(x**2 + y**2 - VALUE), np.sin(x + y) + 1)


def measures(record: Record, method: str, start: int = 0) -> dict[str, np.ndarray]:
    """The quantities of the figures from one start."""
    x, y = record[f"{method}.x"][start], record[f"{method}.y"][start]
    return {
        "f": np.abs(x**2 + y**2 - VALUE),
        "x": np.abs(x - BEST),
        "y": np.abs(y - BEST),
        "gap": np.sin(x + y) + 1,
        "worst": error(x, y),
    }


def figures(record: Record) -> list[Figure]:
    """The paper's three panels, and three that show why its fixed steps fail."""
    found = {m: measures(record, m) for m in SHOWN}

    def panel(title: str, label: str, key: str) -> Panel:
        curves = [Curve(m, counted(found[m][key]), found[m][key]) for m in SHOWN]
        return Panel(title, "iteration", label, curves, y_log=True)

    def pdbo_panel(title: str, label: str, key: str, log: bool) -> Panel:
        values = {m: record[f"{m}.{key}"][0] for m in ("PDBO", "Proximal-PDBO", AUTO)}
        if log:  # AutoPDBO's multiplier starts at zero
            values = {m: np.where(v < 1e-2, np.nan, v) for m, v in values.items()}
        curves = [Curve(m, counted(v), v) for m, v in values.items()]
        return Panel(title, "iteration", label, curves, y_log=log)

    first = Figure(
        "sine",
        "Sine problem from (3, 3). |f - f*| alone does not show whether a point is feasible: the "
        "next figure shows the inner gap.",
        [
            panel("(a) outer optimality gap", "|f - f*|", "f"),
            panel("(b) outer convergence error", "|x - x*|", "x"),
            panel("(c) inner convergence error", "|y - y*|", "y"),
        ],
    )
    why = Figure(
        "sine-why",
        "Why fixed steps fail: the constraint has no finite multiplier at the solution, so "
        f"PDBO's dual variable grows to {record['PDBO.multiplier'][0].max():.3g}, and the primal "
        f"step of {record.settings['primal step']:g} times the gradient then overshoots. "
        "Proximal-PDBO starts each round with the first multiplier again. AutoPDBO bounds its "
        f"steps whatever the multiplier. {_note(record, 0)}",
        [
            panel("(d) inner gap", "g - min g", "gap"),
            pdbo_panel("(e) dual variable", "multiplier", "multiplier", True),
            pdbo_panel("(f) iterate", "x", "x", False),
        ],
    )
    return [first, why, _where(record)]


def _where(record: Record) -> Figure:
    """The last errors for other values of what the paper leaves open."""
    tried = {name: np.array(record.settings[f"{name} tried"]) for name in TRIED}
    bounds, weights = tried["multiplier bound"], tried["averaging of BigSAM"]
    capped = np.maximum(
        record["sweep.multiplier bound"], record["sweep.multiplier bound, proximal"]
    )
    rival = float(min(measures(record, m)["worst"][-1] for m in ("ITD-R", "AID-FP")))
    averaged = record["sweep.averaging of BigSAM"]
    best = float(capped.min())
    first, steps = (
        np.array(record.settings[k]) for k in ("first multipliers tried", "primal steps tried")
    )
    by_bound = [
        Curve("PDBO", bounds, record["sweep.multiplier bound"], points=True),
        Curve("Proximal-PDBO", bounds, record["sweep.multiplier bound, proximal"], points=True),
        level("AID-FP and ITD-R, the better", bounds, rival),
        level("BigSAM+ITD", bounds, float(measures(record, "BigSAM+ITD")["worst"][-1])),
    ]
    by_first = [
        Curve(f"PDBO, primal step {step:g}", first, row, points=True)
        for step, row in zip(steps, record["sweep.first multiplier"], strict=True)
    ]
    by_weight = [
        Curve("half of BigSAM+ITD", weights, averaged / 2, points=True),
        level("PDBO and Proximal-PDBO, the worse, best bound", weights, best),
    ]
    y = "last error"
    caption = (
        "Where the paper's sentences would hold. The error is the larger of |f - f*| and the inner "
        "gap after the last iteration. The paper does not give the bound B on the multiplier. "
        "PDBO, Proximal-PDBO and BigSAM+ITD all end better than AID-FP and ITD-R with these B: "
        f"{listed(bounds[capped < rival])}. With B = {bounds[np.argmin(capped)]:g} and these "
        "averaging weights of BigSAM, PDBO and Proximal-PDBO have less than half of BigSAM+ITD's "
        f"error: {listed(weights[best < averaged / 2])}. "
        "(h) has no bound: the smallest error there is "
        f"{record['sweep.first multiplier'].min():.2g}."
    )
    return Figure(
        "sine-where",
        caption,
        [
            Panel("(g) bound on the multiplier", "B", y, by_bound, True, True),
            Panel(
                "(h) first multiplier and primal step", "first multiplier", y, by_first, False, True
            ),
            Panel("(i) averaging of BigSAM", "averaging weight", y, by_weight),
        ],
    )


def claims(record: Record) -> list[Claim]:
    """The three sentences of the appendix, and one of our own."""
    source = "Appendix B, figure 4"
    last = {m: {k: float(v[-1]) for k, v in measures(record, m).items()} for m in SHOWN}
    ours = max(last[m]["worst"] for m in METHODS[:2])
    hypergradients = min(last[m]["f"] for m in ("ITD-R", "AID-FP"))
    better = max(last[m]["worst"] for m in METHODS[:3])
    return [
        Claim(
            "The plots show that ITD-R and AID-FP methods converge to a bad stationary point and "
            "could not find good solutions.",
            source,
            "the smaller of their last |f - f*|",
            hypergradients,
            ">",
            1.0,
        ),
        Claim(
            "The methods PDBO, Proximal-PDBO, and BigSAM+ITD converge to better points",
            source,
            "the worst of their last errors (the larger of |f - f*| and the inner gap), compared "
            "with the best of ITD-R and AID-FP",
            better,
            "<",
            min(last[m]["worst"] for m in ("ITD-R", "AID-FP")),
        ),
        Claim(
            "but our algorithms PDBO and Proximal-PDBO significantly outperform BigSAM+ITD.",
            source,
            "the worse of their two last errors after 1,000 iterations with the paper's steps, "
            "compared with half that of BigSAM+ITD",
            ours,
            "<",
            0.5 * last["BigSAM+ITD"]["worst"],
        ),
        Claim(
            "The automatic solver reaches the optimum with nothing to tune.",
            "this package",
            "its last error (the larger of |f - f*| and the inner gap)",
            last[AUTO]["worst"],
            "<=",
            1e-3,
            quoted=False,
        ),
    ]


def tables(record: Record) -> list[Table]:
    """A table of where each method ends."""
    rows = []
    for m in SHOWN:
        v = measures(record, m)
        rows.append([
            m, record[f"{m}.x"][0, -1], record[f"{m}.y"][0, -1], v["f"][-1], v["gap"][-1],
            record[f"{m}.multiplier"][0, -1], v["worst"].min(), sum(record.calls[m].values()),
        ])  # fmt: skip
    header = (
        "method", "x", "y", "|f - f*|", "inner gap", "multiplier", "smallest error along the path",
        "oracle calls",
    )  # fmt: skip
    return [Table("Where the methods end from (3, 3); x* = y* = -0.7854.", header, rows)]


def scene(record: Record) -> Scene:
    """f in the plane of x and y, with the lines of inner minima."""
    axis = np.linspace(-10, 10, 81)
    lines = []
    for k in range(-3, 4):
        total = -np.pi / 2 + 2 * np.pi * k
        ends = np.clip([-10.0, 10.0], total - 10, total + 10)
        if ends[0] < ends[1]:
            lines.append(("inner minima", np.stack([ends, total - ends], -1)))
    return Scene(
        "Sine problem",
        "Contours show f; on the dashed lines g is at its minimum. The star marks the point of "
        "these lines where f is smallest.",
        ("x", "y"),
        axis,
        axis,
        axis[None] ** 2 + axis[:, None] ** 2,
        np.array([1.2337, 5, 15, 30, 50, 75, 105, 140, 180]),
        lines,
        np.array([[BEST, BEST]]),
        STARTS,
        {m: np.stack([record[f"{m}.x"], record[f"{m}.y"]], -1) for m in SHOWN},
        [_note(record, k) for k in range(len(record["starts"]))],
    )


def _note(record: Record, start: int) -> str:
    """Where every method ended from a start, in one sentence."""
    x, y = record["starts"][start]
    return f"From ({x:g}, {y:g}): {fates({m: _fate(record, m, start) for m in SHOWN})}"


def _fate(record: Record, method: str, start: int) -> str:
    """Where a method ends, in words."""
    at = measures(record, method, start)
    x, y = record[f"{method}.x"][start], record[f"{method}.y"][start]
    if at["worst"][-1] <= NEAR:
        return f"reached the optimum to within {NEAR:g}"
    if at["gap"][-1] <= NEAR:
        own = _line(x[-1] + y[-1]) == _line(x[0] + y[0])
        line = "the line nearest to the start" if own else "another line"
        return f"ended on {line}, where f is {x[-1] ** 2 + y[-1] ** 2:.2f}"
    edge = max(abs(x[-1]), abs(y[-1])) >= 10 - 1e-6
    return f"ended {'at the edge of the box' if edge else 'off the lines'}, inner gap " + (
        f"{at['gap'][-1]:.2f}"
    )


def _line(total: float) -> int:
    """The number of the line x + y = -pi/2 + 2 pi k nearest to a point."""
    return round((total + np.pi / 2) / (2 * np.pi))
