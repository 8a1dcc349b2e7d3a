"""Tuned solvers: the settings that the rows of the published tables ran with, by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from .._errors import ProblemError
from . import _rows

if TYPE_CHECKING:
    from .._solver import Solver

_ABOUT = {
    "paper": "the toy and the sine problem of the paper; settings are the paper's where it has any",
    "digits": "one l2 strength per weight of a linear classifier of 64 pixels and 10 classes",
    "newsgroups": "one l2 strength per weight, or per word, of a linear classifier of 20 "
    "Newsgroups; chosen on a fifth of the training documents",
}
_MODELS = {"linear": "a linear model", "network": "a network with 300 hidden units"}


class Preset(NamedTuple):
    """A solver with the settings of a row.

    Attributes:
        solver: ready for `solve`.
        settings: its arguments, as plain numbers.
        units: numbers of the problem that the settings belong to. The steps suit x and y in these
            units only: `scale` is that of weights of examples, `sigmoid(scale * x)`.
        about: the problem, and how the settings were chosen.
    """

    solver: Solver
    settings: dict[str, Any]
    units: dict[str, float]
    about: str


def names() -> list[str]:
    """The names of all presets: a study and a row of its table."""
    return [f"{study}/{row}" for study, rows in _rows.studies().items() for row in rows]


def get(name: str) -> Preset:
    """The preset of this name, such as "cleaning-network/PDBO"."""
    study, _, label = str(name).partition("/")
    rows = _rows.studies().get(study, {})
    if label not in rows:
        raise ProblemError(f"there is no preset {name!r}: pdbo.presets.names() lists them.")
    row = rows[label]
    settings = dict(row.settings)
    return Preset(_rows.solver_of(row.solver, settings), settings, dict(row.units), _about(study))


def _about(study: str) -> str:
    """The problem of a study, and how its settings were chosen."""
    if study in _ABOUT:
        return _ABOUT[study]
    model = study.partition("-")[2]
    record = json.loads(_rows.file_of(model).read_text("utf-8"))
    tried = record["settings tried for each method"]
    return (
        f"a weight for each of 5,000 training images, half of them mislabelled, for "
        f"{_MODELS[model]}, in batches of 100; the best of {tried} random settings for each method "
        f"on images of {record['data']} held out"
    )
