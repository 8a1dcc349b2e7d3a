"""What `pdbo solve` records and shows of a user's problem."""

import numpy as np

from ..experiments._results import Claim, Record
from ..experiments._views import Curve, Figure, Panel, Table

SHOWN = ("f", "inner_gap", "stationarity", "eps", "multiplier")
CERTIFICATE = (
    "stationarity", "feasibility", "complementarity", "distance", "inner_gap", "inner_residual",
    "multiplier", "slack", "eps",
)  # fmt: skip
ENTRIES = 8  # the most numbers of a leaf that the page shows


def claims(record: Record) -> list[Claim]:
    """One claim: the certificate is within the tolerance asked for."""
    return [
        Claim(
            f"{record.settings['problem']} is solved.",
            "the tolerance asked for",
            "the certificate's eps at the point returned",
            float(record["certificate.eps"]),
            "<=",
            float(record.settings["tol"]),
            quoted=False,
        )
    ]


def figures(record: Record) -> list[Figure]:
    """The history, one panel per quantity."""
    step, solver = record["history.step"], record.settings["solver"]
    panels = [
        Panel(
            key.replace("_", " "),
            "iteration",
            key,
            [Curve(solver, step, record[f"history.{key}"], points=len(step) < 30)],
            y_log=key not in ("f", "multiplier"),
        )
        for key in SHOWN
    ]
    told = [p for p in panels if _tells(p.curves[0].y)]
    caption = f"{record.settings['problem']} with {solver}."
    return [Figure("solve", caption, told or panels[:1])]


def _tells(values: np.ndarray) -> bool:
    """Whether a curve is worth a panel: it has two points, and not all of them are zero."""
    finite = values[np.isfinite(values)]
    return len(finite) > 1 and bool(np.any(finite))


def tables(record: Record) -> list[Table]:
    """The point returned, with the first entries of each leaf, and its certificate."""
    point = []
    leaves = sorted(k for k in record.arrays if k.split(".")[0] in ("x", "y"))
    for key in leaves:
        name = key[0] if f"{key[0]}.1" not in leaves else key
        values = record[key].ravel()
        more = ", ..." if len(values) > ENTRIES else ""
        point.append([name, ", ".join(f"{v:.6g}" for v in values[:ENTRIES]) + more])
    values = {"f": "history.f", "g": "history.g", "f with y solved again": "f_resolved"}
    for name, key in values.items():
        if key in record.arrays:  # records of earlier versions do not have all
            point.append([name, f"{float(np.ravel(record[key])[-1]):.6g}"])
    rows = [[k, float(record[f"certificate.{k}"])] for k in CERTIFICATE]
    return [
        Table("The point returned.", ("", "values"), point),
        Table("The certificate, recomputed there.", ("entry", "value"), rows),
    ]
