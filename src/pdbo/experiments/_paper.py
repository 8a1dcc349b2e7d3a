"""The paper's two synthetic problems, its five methods and their settings."""

from .. import PDBO, Problem, Solver, presets
from ..presets._rows import PAPER, solver_of
from ..problems import get
from ._results import Settings

_PDBO, _PROXIMAL = PAPER["PDBO"].settings, PAPER["Proximal-PDBO"].settings
SETTINGS: Settings = {
    "primal step": _PDBO["primal_step"],
    "dual step": _PDBO["dual_step"],
    "inner step": _PDBO["inner_step"],
    "inner steps N": _PDBO["inner_steps"],
    "extrapolation": _PDBO["extrapolation"],
    "first multiplier": _PDBO["multiplier0"],
    "round steps T": _PROXIMAL["round_steps"],
    "averaging of BigSAM": PAPER["BigSAM+ITD"].settings["averaging"],
    "smoothing (not in the paper)": _PDBO["smoothing"],
    "slack (not in the paper)": _PDBO["slack"],
    "proximal strengths (not in the paper)": _PROXIMAL["proximal_f"],
}


def toy() -> Problem:
    """f = ((1 - y1)^2 + (x - y2)^2)/2 over g = y1^2/2 - x y1, which does not depend on y2."""
    return get("toy").problem


def sine() -> Problem:
    """f = x^2 + y^2 over g = sin(x + y), x and y in [-10, 10]."""
    return get("sine").problem


def pdbo() -> PDBO:
    """PDBO with the paper's settings."""
    return PDBO(**_PDBO)


def varied(name: str, **settings: float) -> Solver:
    """One of the five methods with some of the paper's settings replaced."""
    row = PAPER[name]
    return solver_of(row.solver, {**row.settings, **settings})


def methods() -> dict[str, Solver]:
    """The five methods the paper compares."""
    return {name: presets.get(f"paper/{name}").solver for name in PAPER}
