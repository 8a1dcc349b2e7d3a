"""The paper's two synthetic problems, its five methods and their settings."""

from .. import ITD, PDBO, AIDFixedPoint, BigSAM, Problem, ProximalPDBO, Solver
from ..problems import get
from ._results import Settings

SETTINGS: Settings = {
    "primal step": 0.2,
    "dual step": 0.1,
    "inner step": 0.5,
    "inner steps N": 5,
    "extrapolation": 0.0,
    "first multiplier": 2.0,
    "round steps T": 50,
    "averaging of BigSAM": 0.5,
    "smoothing (not in the paper)": 1e-4,
    "slack (not in the paper)": 0.0,
    "proximal strengths (not in the paper)": 0.02,
}


def toy() -> Problem:
    """f = ((1 - y1)^2 + (x - y2)^2)/2 over g = y1^2/2 - x y1, which does not depend on y2."""
    return get("toy").problem


def sine() -> Problem:
    """f = x^2 + y^2 over g = sin(x + y), x and y in [-10, 10]."""
    return get("sine").problem


def pdbo() -> PDBO:
    """PDBO with the paper's settings."""
    s = SETTINGS
    return PDBO(
        s["primal step"],
        s["dual step"],
        s["inner step"],
        s["inner steps N"],
        s["extrapolation"],
        s["smoothing (not in the paper)"],
        s["slack (not in the paper)"],
        multiplier0=s["first multiplier"],
    )


def methods() -> dict[str, Solver]:
    """The five methods the paper compares."""
    s = SETTINGS
    steps = (s["primal step"], s["inner step"], s["inner steps N"])
    strength = s["proximal strengths (not in the paper)"]
    return {
        "PDBO": pdbo(),
        "Proximal-PDBO": ProximalPDBO(pdbo(), strength, strength, round_steps=s["round steps T"]),
        "BigSAM+ITD": BigSAM(*steps, averaging=s["averaging of BigSAM"]),
        "AID-FP": AIDFixedPoint(*steps, linear_steps=s["inner steps N"]),
        "ITD-R": ITD(*steps),
    }
