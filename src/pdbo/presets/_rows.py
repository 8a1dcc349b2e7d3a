"""The rows of each study: which solver, with which settings, in which units of the problem."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .._solver import Solver


class Row(NamedTuple):
    """A solver's class, its arguments, and numbers of the problem that these belong to."""

    solver: str
    settings: Mapping[str, Any] = {}
    units: Mapping[str, float] = {}


# The paper's two synthetic problems

_STEPS = {"outer_step": 0.2, "inner_step": 0.5, "inner_steps": 5}
_PDBO = {
    "primal_step": 0.2, "dual_step": 0.1, "inner_step": 0.5, "inner_steps": 5, "extrapolation": 0.0,
    "smoothing": 1e-4, "slack": 0.0, "multiplier0": 2.0,
}  # fmt: skip
_PROXIMAL = {"proximal_f": 0.02, "proximal_h": 0.02, "round_steps": 50}
PAPER = {
    "PDBO": Row("PDBO", _PDBO),
    "Proximal-PDBO": Row("ProximalPDBO", _PDBO | _PROXIMAL),
    "BigSAM+ITD": Row("BigSAM", _STEPS | {"averaging": 0.5}),
    "AID-FP": Row("AIDFixedPoint", _STEPS | {"linear_steps": 5}),
    "ITD-R": Row("ITD", _STEPS),
}

# One l2 strength per weight of a linear classifier of digits

_OTHERS = {"outer_step": 100.0, "inner_step": 1.0, "inner_steps": 5}
DIGITS = {
    "PDBO": Row(
        "PDBO",
        {"primal_step": 1.0, "dual_step": 0.001, "inner_step": 1.0, "inner_steps": 5,
         "smoothing": 1e-8, "multiplier0": 1.0},
    ),
    "BigSAM+ITD": Row("BigSAM", _OTHERS | {"averaging": 0.5}),
    "AID-FP": Row("AIDFixedPoint", _OTHERS | {"linear_steps": 5}),
    "ITD-R": Row("ITD", _OTHERS),
}  # fmt: skip

# The same for 20 Newsgroups, per weight or per word

_FIRST = {
    "primal_step": 100.0, "dual_step": 0.001, "inner_step": 100.0, "inner_steps": 5,
    "smoothing": 1e-8, "multiplier0": 1.0,
}  # fmt: skip
_RIVALS = {"outer_step": 100.0, "inner_step": 100.0, "inner_steps": 5}
_STRENGTHS = {"proximal_f": 1e-6, "proximal_h": 1e-6, "round_steps": 500}
NEWSGROUPS = {
    "PDBO": Row("PDBO", _FIRST),
    "AID-FP": Row("AIDFixedPoint", _RIVALS | {"linear_steps": 5}),
    "ITD-R": Row("ITD", _RIVALS),
    "BigSAM+ITD": Row("BigSAM", _RIVALS | {"averaging": 0.5}),
    "Proximal-PDBO": Row("ProximalPDBO", _FIRST | _STRENGTHS),
    "AutoPDBO": Row("AutoPDBO"),
    "BOME": Row("BOME", {"primal_step": 100.0, "inner_step": 100.0, "inner_steps": 5}),
    "F2SA": Row("F2SA", {"inner_step": 100.0, "inner_steps": 5}),
    "V-PBGD": Row(
        "VPBGD", {"penalty": 1.0, "primal_step": 50.0, "inner_step": 100.0, "inner_steps": 5}
    ),
    "PDBO with N = 1": Row(
        "PDBO", _FIRST | {"primal_step": 200.0, "inner_steps": 1, "inner_start": "y"}
    ),
    "PDBO, per feature": Row(
        "PDBO",
        _FIRST | {"primal_step": 10.0, "multiplier0": 10.0},
        {"unit of x": 10.0, "speed of level and exponent": 0.1},
    ),
    "AID-CG, per feature": Row(
        "AIDConjugateGradient",
        {"outer_step": 30.0, "inner_step": 100.0, "inner_steps": 10, "linear_steps": 10},
        {"speed of level and exponent": 0.1},
    ),
    "AutoPDBO, per feature": Row("AutoPDBO", {}, {"speed of level and exponent": 10.0}),
}

# Data cleaning: what was not tuned; the files beside this one hold what was

CLEANING = {
    "PDBO": Row("PDBO", {"inner_steps": 2, "smoothing": 0.0}),
    "Proximal-PDBO": Row("ProximalPDBO", {"inner_steps": 2, "smoothing": 0.0, "round_steps": 50}),
    "AutoPDBO": Row("AutoPDBO"),
    "BOME": Row("BOME", {"inner_steps": 5}),
    "F2SA": Row("F2SA", {"inner_steps": 2}),
    "VPBGD": Row("VPBGD", {"inner_steps": 1}),
    "BVFIM": Row("BVFIM", {"inner_steps": 5, "barrier_steps": 5}),
    "MEHA": Row("MEHA"),
    "BigSAM+ITD": Row("BigSAM", {"inner_steps": 5}),
    "AID-FP": Row("AIDFixedPoint", {"inner_steps": 5, "linear_steps": 5}),
    "AID-CG": Row("AIDConjugateGradient", {"inner_steps": 5, "linear_steps": 5}),
    "ITD-R": Row("ITD", {"inner_steps": 5}),
}


def studies() -> dict[str, dict[str, Row]]:
    """The rows of every study."""
    plain = {"paper": PAPER, "digits": DIGITS, "newsgroups": NEWSGROUPS}
    return plain | {f"cleaning-{model}": _cleaning(model) for model in ("linear", "network")}


def file_of(model: str) -> pathlib.Path:
    """Where the settings chosen for data cleaning are kept, with the ranges tried."""
    return pathlib.Path(__file__).with_name(f"cleaning-{model}.json")


def _cleaning(model: str) -> dict[str, Row]:
    """The rows of data cleaning: what was not tuned, and what was."""
    chosen = json.loads(file_of(model).read_text("utf-8"))["chosen"]
    rows = {}
    for label, row in CLEANING.items():
        numbers = dict(chosen[label]["settings"]) if label in chosen else {"scale": 1.0}
        units = {"scale": numbers.pop("scale")}
        rows[label] = Row(row.solver, {**row.settings, **numbers}, units)
    return rows


def solver_of(kind: str, settings: Mapping[str, Any]) -> Solver:
    """The solver of this class; the settings of Proximal-PDBO are also those of its PDBO."""
    from .. import solvers

    if kind != "ProximalPDBO":
        return getattr(solvers, kind)(**settings)
    own = ("proximal_f", "proximal_h", "round_steps")
    rest = {k: v for k, v in settings.items() if k not in own}
    return solvers.ProximalPDBO(solvers.PDBO(**rest), **{k: settings[k] for k in own})
