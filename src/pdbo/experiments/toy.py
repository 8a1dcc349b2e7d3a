"""The paper's first figure: five methods on a problem whose inner minima form a line."""

import numpy as np

from ._results import Claim, Record, Results, Track
from ._views import Curve, Figure, Panel, Scene, Table, counted, fates, first_within, level, listed

METHODS = ("PDBO", "Proximal-PDBO", "BigSAM+ITD", "AID-FP", "ITD-R")
"""The methods the paper compares."""
AUTO = "AutoPDBO"
SHOWN = (*METHODS, AUTO)
OURS, STUCK = METHODS[:2], METHODS[3:]
STARTS = np.array(
    [[2, 0.5, 0.5], [0, 2, 2], [-1, 0, -0.5], [2.5, 1, 2.5], [-0.5, -1, 2], [2, 1, -0.5]], float
)
"""x, y1, y2: the paper's two starts, and four more for the page's landscape."""
NAMES = ("(2, (0.5, 0.5))", "(0, (2, 2))")
AVERAGING = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
"""Weights of BigSAM's averaging to try: the paper gives none for this problem."""
OUTER_STEPS = np.array([0.05, 0.1, 0.2])
"""Outer steps of BigSAM to try; the paper's is the last."""
CLOSE = 0.05  # distance to the optimum within which a method counts as arrived


def run(seed: int, quick: bool, track: Track = iter) -> Results:
    """The paper's five methods and the automatic solver, from every start."""
    import jax.numpy as jnp

    from .. import AutoPDBO
    from ._paper import SETTINGS, methods, toy
    from ._trace import trace

    steps = 200
    arrays, calls, seconds = {"starts": STARTS}, {}, {}
    solvers = methods() | {AUTO: AutoPDBO()}
    for name in track(list(solvers)):
        found = trace(
            toy(), solvers[name], jnp.asarray(STARTS[:, 0]), jnp.asarray(STARTS[:, 1:]),
            steps=steps, seed=seed,
        )  # fmt: skip
        arrays[f"{name}.x"], arrays[f"{name}.y"] = found.rows["x"], found.rows["y"]
        calls[name], seconds[name] = found.calls, found.seconds
    arrays["sweep.arrival"] = _sweep(steps, seed)
    settings = SETTINGS | {
        "iterations": steps, "starts (x, y1, y2)": STARTS.tolist(),
        "averaging of BigSAM tried": AVERAGING.tolist(),
        "outer steps of BigSAM tried": OUTER_STEPS.tolist(),
    }  # fmt: skip
    return Results(settings, arrays, calls, seconds)


def _sweep(steps: int, seed: int) -> np.ndarray:
    """When BigSAM arrives from the paper's two starts: an array (outer steps, weights, starts)."""
    import jax.numpy as jnp

    from ._paper import toy, varied
    from ._trace import sweep

    solvers = [
        varied("BigSAM+ITD", outer_step=step, averaging=weight)
        for step in OUTER_STEPS
        for weight in AVERAGING
    ]
    x0, y0 = jnp.asarray(STARTS[:2, 0]), jnp.asarray(STARTS[:2, 1:])
    rows = sweep(toy(), solvers, x0, y0, steps=steps, seed=seed).rows
    far = np.sqrt((rows["x"] - 1) ** 2 + np.sum((rows["y"] - 1) ** 2, -1))
    arrival = np.apply_along_axis(first_within, -1, far, CLOSE)
    return arrival.reshape(len(OUTER_STEPS), len(AVERAGING), 2)


def measures(record: Record, method: str) -> dict[str, np.ndarray]:
    """The quantities of the figure, each an array (starts, iterations + 1)."""
    x, y = record[f"{method}.x"], record[f"{method}.y"]
    y1, y2 = y[..., 0], y[..., 1]
    return {
        "f": 0.5 * ((1 - y1) ** 2 + (x - y2) ** 2),
        "gap": 0.5 * (y1 - x) ** 2,
        "gradient": np.sqrt(2 * (x - y2) ** 2 + (1 - y1) ** 2),
        "y": np.hypot(y1 - 1, y2 - 1),
        "x": np.abs(x - 1),
        "z": np.sqrt((x - 1) ** 2 + (y1 - 1) ** 2 + (y2 - 1) ** 2),
    }


_LABELS = {
    "f": ("outer objective", "f"),
    "gap": ("inner optimality gap", "g - min g"),
    "gradient": ("gradient norm", "|grad f|"),
    "y": ("distance of y", "|y - y*|"),
    "x": ("distance of x", "|x - x*|"),
}


def figures(record: Record) -> list[Figure]:
    """The nine panels: five from the first start, four from the second."""
    wanted = [(0, k) for k in ("f", "gap", "gradient", "y", "x")]
    wanted += [(1, k) for k in ("f", "gap", "y", "x")]
    found = {m: measures(record, m) for m in SHOWN}
    panels = [
        Panel(
            f"({letter}) {_LABELS[key][0]}, start {start + 1}",
            "iteration",
            _LABELS[key][1],
            [Curve(m, counted(found[m][key][start]), found[m][key][start]) for m in SHOWN],
            y_log=True,
        )
        for letter, (start, key) in zip("abcdefghi", wanted, strict=True)
    ]
    far = found["PDBO"]["z"][:, -1]
    caption = (
        f"Toy problem. (a) to (e) from {NAMES[0]}, (f) to (i) from {NAMES[1]}; values below "
        "1e-12 are drawn at 1e-12. The gradient is "
        "that of f in x and y together; among the inner minima it vanishes at the optimum only. "
        f"PDBO's last distances to the optimum, {far[0]:.1g} and {far[1]:.1g}, are the "
        f"bias of its smoothing of {record.settings['smoothing (not in the paper)']:g}. AutoPDBO "
        "has nothing to tune."
    )
    return [Figure("toy", caption, panels), _where(record)]


def _where(record: Record) -> Figure:
    """When BigSAM arrives, for the settings that the paper leaves open, beside PDBO's arrival."""
    arrivals = record["sweep.arrival"]
    weights, steps = (
        np.array(record.settings[f"{name} of BigSAM tried"])
        for name in ("averaging", "outer steps")
    )
    panels, held = [], np.ones(arrivals.shape[:2], bool)
    for start, name in enumerate(NAMES):
        own = {m: _arrival(record, m, start) for m in OURS}
        curves = [
            Curve(f"BigSAM+ITD, outer step {step:g}", weights, found[:, start], points=True)
            for step, found in zip(steps, arrivals, strict=True)
        ]
        curves += [level(m, weights, value) for m, value in own.items()]
        title = f"({'jk'[start]}) from {name}"
        panels.append(Panel(title, "averaging weight of BigSAM", "iterations", curves, y_log=True))
        held &= arrivals[..., start] > max(own.values())
    places = [f"{listed(weights[h])} (outer step {s:g})" for s, h in zip(steps, held, strict=True)]
    caption = (
        "Where “fastest rate” would hold, counted in iterations: the iterations until BigSAM+ITD "
        f"stays within {CLOSE:g} of the optimum, for other averaging weights and outer steps. A "
        "point that is missing never arrives. The paper gives no averaging weight for this "
        f"problem; ours, {record.settings['averaging of BigSAM']:g}, is that of its other "
        "experiment. PDBO and Proximal-PDBO are faster from both starts at the averaging weights "
        + ", ".join(places)
        + "."
    )
    return Figure("toy-where", caption, panels, 2)


def _arrival(record: Record, method: str, start: int, unit: str = "iterations") -> float:
    """When a method gets close and stays so, in iterations or in oracle calls."""
    iterations = first_within(measures(record, method)["z"][start], CLOSE)
    if unit == "iterations":
        return iterations
    return iterations * sum(record.calls[method].values()) / record.settings["iterations"]


def claims(record: Record) -> list[Claim]:
    """Which methods arrive first, and which never arrive."""
    found = []
    for unit in ("iterations", "oracle calls"):
        for start, name in enumerate(NAMES):
            slowest = max(_arrival(record, m, start, unit) for m in OURS)
            fastest = min(_arrival(record, m, start, unit) for m in METHODS if m not in OURS)
            found.append(
                Claim(
                    "It can be seen that our two algorithms (Proximal-)PDBO reach the optimal "
                    "solution at the fastest rate.",
                    "Section 5.1, figure 1",
                    f"from {name}: {unit} until the slower of the two stays within {CLOSE} of the "
                    "optimum, compared with the fastest other method",
                    slowest,
                    "<",
                    fastest,
                )
            )
    found.append(
        Claim(
            "Several plots show that, with different initialization points, the classical AID and "
            "ITD methods cannot converge to the global optimal solution of the problem.",
            "Section 5.1, figure 1",
            "the smallest distance to the optimum that AID-FP or ITD-R ends with, both starts",
            min(float(measures(record, m)["z"][:2, -1].min()) for m in STUCK),
            ">",
            CLOSE,
        )
    )
    moved = max(
        float(np.abs(record[f"{m}.y"][:2, :, 1] - STARTS[:2, None, 2]).max()) for m in STUCK
    )
    found.append(
        Claim(
            "[...] such approaches are not equipped with mechanisms to select among the multiple "
            "minimizers.",
            "Section 5.1",
            "the largest distance that AID-FP or ITD-R moves y2, the coordinate that tells the "
            "minima apart",
            moved,
            "<=",
            1e-12,
        )
    )
    return found


def tables(record: Record) -> list[Table]:
    """A table of where each method ends."""
    rows = []
    for start, name in enumerate(NAMES):
        for m in SHOWN:
            v = measures(record, m)
            y = record[f"{m}.y"][start, -1]
            rows.append([
                name, m, record[f"{m}.x"][start, -1], y[0], y[1], v["f"][start, -1],
                v["gap"][start, -1], v["z"][start, -1], _arrival(record, m, start),
                sum(record.calls[m].values()),
            ])  # fmt: skip
    header = (
        "start", "method", "x", "y1", "y2", "f", "inner gap", "distance",
        f"iterations to {CLOSE}", "oracle calls",
    )  # fmt: skip
    return [Table("Where the methods end, and when they stay close to the optimum.", header, rows)]


def scene(record: Record) -> Scene:
    """f on the inner minima, in the plane of x and y2."""
    x, y = np.linspace(-1.5, 3, 91), np.linspace(-1.5, 3, 91)
    z = 0.5 * ((1 - x[None]) ** 2 + (x[None] - y[:, None]) ** 2)
    return Scene(
        "Toy problem",
        "The plane of x and y2. Contours show f at y1 = x, that is, on the inner minima. Every "
        "point of the plane is an inner minimum, because the inner function does not depend on y2: "
        "methods that only follow the inner minimum can move left and right only.",
        ("x", "y2"),
        x,
        y,
        z,
        np.array([0.02, 0.1, 0.25, 0.5, 1, 2, 3, 4.5, 6.5, 9]),
        [],
        np.array([[1.0, 1.0]]),
        STARTS[:, [0, 2]],
        {m: np.stack([record[f"{m}.x"], record[f"{m}.y"][..., 1]], -1) for m in SHOWN},
        [
            f"From x = {x:g}, y = ({y1:g}, {y2:g}): "
            + fates({m: _fate(record, m, k) for m in SHOWN})
            for k, (x, y1, y2) in enumerate(record["starts"])
        ],
    )


def _fate(record: Record, method: str, start: int) -> str:
    """Where a method ends, in words."""
    if measures(record, method)["z"][start, -1] <= CLOSE:
        return f"reached the optimum to within {CLOSE:g}"
    x, y2 = record[f"{method}.x"][start, -1], record[f"{method}.y"][start, -1, 1]
    moved = np.ptp(record[f"{method}.y"][start, :, 1]) > 1e-9
    where = (
        f"stopped at x = {x:.3f}" if _still(record[f"{method}.x"][start]) else "was still moving"
    )
    if moved:
        return f"{where}, y2 = {y2:.3f}"
    return f"{where} and never moved y2, for which x = {(1 + y2) / 2:.3f} is best"


def _still(values: np.ndarray) -> bool:
    """Whether the last tenth of a path stays within 1e-3."""
    return bool(np.ptp(values[-len(values) // 10 :]) <= 1e-3)
