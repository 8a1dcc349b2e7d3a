"""The appendix's figure: multiplier and constraint along PDBO's path on the toy problem."""

import numpy as np

from ._results import Claim, Record, Results, Track
from ._views import Curve, Figure, Panel, counted
from .toy import NAMES, STARTS

FIRST = (2.0, 0.0)
"""The first multipliers: the paper's, and zero."""
RUNS = [f"{name}, first multiplier {first:g}" for first in FIRST for name in NAMES]


def run(seed: int, quick: bool, track: Track = iter) -> Results:
    """PDBO from the paper's two starts, and the certificates at its last points.

    It runs once with the paper's first multiplier and once with zero, so that the constraint has
    to raise it.
    """
    import equinox as eqx
    import jax.numpy as jnp

    from .. import certify
    from ._paper import SETTINGS, pdbo, toy
    from ._trace import trace

    steps = 400
    x0, y0 = jnp.asarray(STARTS[:2, 0]), jnp.asarray(STARTS[:2, 1:])
    rows: dict[str, list[np.ndarray]] = {"x": [], "y": [], "multiplier": []}
    calls, seconds = {}, {}
    first = {f"PDBO, first multiplier {value:g}": value for value in FIRST}
    for name in track(list(first)):
        solver = eqx.tree_at(lambda s: s.multiplier0, pdbo(), jnp.asarray(first[name]))
        found = trace(toy(), solver, x0, y0, steps=steps, seed=seed)
        for key, values in rows.items():
            values.append(found.rows[key])
        calls[name], seconds[name] = found.calls, found.seconds
    arrays = {k: np.concatenate(v) for k, v in rows.items()}
    ends = zip(*(arrays[k][:, -1] for k in rows), strict=True)
    arrays["eps"] = np.array([certify(toy(), *end).eps for end in ends])
    settings = SETTINGS | {
        "first multiplier": list(FIRST), "iterations": steps,
        "starts (x, y1, y2)": STARTS[:2].tolist(),
    }  # fmt: skip
    return Results(settings, arrays, calls, seconds)


def constraint(record: Record) -> np.ndarray:
    """h(z) = g(z) minus the smoothed inner minimum, exactly."""
    x, y1 = record["x"], record["y"][..., 0]
    alpha = record.settings["smoothing (not in the paper)"]
    return 0.5 * y1**2 - x * y1 + 0.5 * x**2 / (1 + alpha)


def figures(record: Record) -> list[Figure]:
    """Three panels: the multiplier, the constraint, and its absolute value."""

    def panel(title: str, label: str, values: np.ndarray, log: bool = False) -> Panel:
        curves = [Curve(f"PDBO from {n}", counted(v), v) for n, v in zip(RUNS, values, strict=True)]
        return Panel(title, "iteration", label, curves, y_log=log)

    panels = [
        panel("(a) dual variable", "multiplier", record["multiplier"]),
        panel("(b) constraint", "h", constraint(record)),
        panel("(c) its absolute value", "|h|", np.abs(constraint(record)), log=True),
    ]
    last = np.abs(constraint(record)[:, -1])
    alpha = record.settings["smoothing (not in the paper)"]
    slowest = np.abs(np.diff(record["multiplier"][:, -2:])).max()
    caption = (
        "PDBO on the toy problem: dual variable and constraint along the iterations, from the "
        "paper's two starts, with its first multiplier 2 and with 0. "
        f"At the end |h| is at most {last.max():.2g}, with a smoothing of {alpha:g}, and the dual "
        f"variable changes by {slowest:.1g} per iteration."
    )
    return [Figure("paths", caption, panels)]


def claims(record: Record) -> list[Claim]:
    """Positive multiplier, active constraint, slackness, KKT point."""
    source = "Appendix A, figure 3"
    multiplier, h = record["multiplier"], constraint(record)[:, -1]
    last, alpha = multiplier[:, -1], record.settings["smoothing (not in the paper)"]
    half = multiplier[:, multiplier.shape[1] // 2 :]
    drift = (half.max(1) - half.min(1)) / np.maximum(np.abs(last), 1e-12)
    every = "both starts and both first multipliers, 2 and 0"
    return [
        Claim(
            "The two plots show that the optimization terminates with a strictly positive dual "
            "variable",
            source,
            f"the smallest last multiplier, {every}",
            float(last.min()),
            ">",
            0.0,
        ),
        Claim(
            "The dual variable has settled when the optimization terminates.",
            "implied by Appendix A",
            f"its range over the second half of the run, relative to its last value; {every}",
            float(drift.max()),
            "<=",
            0.01,
            quoted=False,
        ),
        Claim(
            "and that the constraint is satisfied with equality.",
            source,
            f"the largest last |h|, {every}, compared with the smoothing",
            float(np.abs(h).max()),
            "<=",
            alpha,
        ),
        Claim(
            "Thus, the slackness condition is satisfied.",
            source,
            f"the largest last |multiplier h|, {every}, compared with three times the smoothing",
            float(np.abs(last * h).max()),
            "<=",
            3 * alpha,
        ),
        Claim(
            "This also confirms that our algorithm PDBO did converge to a KKT point of the "
            "reformulated problem.",
            source,
            f"the largest eps of the certificates at the end, {every}",
            float(record["eps"].max()),
            "<=",
            1e-3,
        ),
    ]
