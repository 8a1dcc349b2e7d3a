"""What `pdbo solve` records and shows of a user's problem."""

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
    caption = f"{record.settings['problem']} with {solver}."
    return [Figure("solve", caption, panels)]


def tables(record: Record) -> list[Table]:
    """The point returned, with the first entries of each leaf, and its certificate."""
    point = []
    for key in sorted(k for k in record.arrays if k.split(".")[0] in ("x", "y")):
        values = record[key].ravel()
        more = ", ..." if len(values) > ENTRIES else ""
        point.append([key, ", ".join(f"{v:.6g}" for v in values[:ENTRIES]) + more])
    rows = [[k, float(record[f"certificate.{k}"])] for k in CERTIFICATE]
    return [
        Table("The point returned, leaf by leaf.", ("leaf", "values"), point),
        Table("The certificate, recomputed there.", ("entry", "value"), rows),
    ]
