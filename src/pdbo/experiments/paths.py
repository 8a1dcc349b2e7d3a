"""The appendix's figure: multiplier and constraint along PDBO's path on the toy problem."""

from typing import Any

import numpy as np

from ._record import Claim, Record, Results
from ._views import Curve, Figure, Panel, counted
from .toy import NAMES, STARTS


def run(seed: int, quick: bool, track: Any = iter) -> Results:
    """PDBO from the paper's two starts, and the certificates of where it ends."""
    import jax.numpy as jnp

    from .. import certify
    from ._paper import SETTINGS, pdbo, toy
    from ._trace import trace

    steps = 400
    starts = STARTS[:2]
    arrays: dict[str, np.ndarray] = {}
    calls, seconds = {}, {}
    for part in track(["PDBO", "certificates"]):
        if part == "PDBO":
            found = trace(
                toy(), pdbo(), jnp.asarray(starts[:, 0]), jnp.asarray(starts[:, 1:]),
                steps=steps, seed=seed,
            )  # fmt: skip
            arrays |= found.rows
            calls[part], seconds[part] = found.calls, found.seconds
        else:
            ends = zip(*(arrays[k][:, -1] for k in ("x", "y", "multiplier")), strict=True)
            arrays["eps"] = np.array([certify(toy(), *end).eps for end in ends])
    settings = SETTINGS | {"iterations": steps, "starts (x, y1, y2)": starts.tolist()}
    return Results(settings, arrays, calls, seconds)


def constraint(record: Record) -> np.ndarray:
    """h(z) = g(z) minus the smoothed inner minimum, exactly."""
    x, y1 = record["x"], record["y"][..., 0]
    alpha = record.settings["smoothing (not in the paper)"]
    return 0.5 * y1**2 - x * y1 + 0.5 * x**2 / (1 + alpha)


def figures(record: Record) -> list[Figure]:
    """The two panels."""

    def panel(title: str, label: str, values: np.ndarray, log: bool = False) -> Panel:
        curves = [
            Curve(f"PDBO from {n}", counted(v), v) for n, v in zip(NAMES, values, strict=True)
        ]
        return Panel(title, "iteration", label, curves, y_log=log)

    panels = [
        panel("(a) dual variable", "multiplier", record["multiplier"]),
        panel("(b) constraint", "h", constraint(record)),
        panel("(c) its absolute value", "|h|", np.abs(constraint(record)), log=True),
    ]
    caption = (
        "PDBO on the toy problem: dual variable and constraint along the iterations. "
        "|h| levels off at half the smoothing."
    )
    return [Figure("paths", caption, panels)]


def claims(record: Record) -> list[Claim]:
    """Positive multiplier, active constraint, slackness, KKT point."""
    source = "Appendix A, figure 3"
    last, h = record["multiplier"][:, -1], constraint(record)[:, -1]
    kkt = (
        "This also confirms that our algorithm PDBO did converge to a KKT point of the "
        "reformulated problem."
    )
    return [
        Claim(
            "The two plots show that the optimization terminates with a strictly positive dual "
            "variable",
            source,
            "the smaller of the two last multipliers",
            float(last.min()),
            ">",
            0.0,
        ),
        Claim(
            "and that the constraint is satisfied with equality.",
            source,
            "the larger of the two last |h|",
            float(np.abs(h).max()),
            "<=",
            1e-4,
        ),
        Claim(
            "Thus, the slackness condition is satisfied.",
            source,
            "the larger of the two last |multiplier h|",
            float(np.abs(last * h).max()),
            "<=",
            1e-3,
        ),
        Claim(
            kkt,
            source,
            "the larger of the two certificates' eps at the end",
            float(record["eps"].max()),
            "<=",
            1e-3,
        ),
    ]
