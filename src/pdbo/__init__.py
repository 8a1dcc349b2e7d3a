"""Bilevel optimisation that stays right when the inner problem has many minimisers."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the table of contents; names are loaded when they are first used
    from ._batches import Batches as Batches
    from ._batches import Source as Source
    from ._certificate import Certificate as Certificate
    from ._certificate import certify as certify
    from ._communication import Communication as Communication
    from ._communication import communication as communication
    from ._compare import Comparison as Comparison
    from ._compare import compare as compare
    from ._errors import RESULTS as RESULTS
    from ._errors import CheckpointError as CheckpointError
    from ._errors import CheckpointWarning as CheckpointWarning
    from ._errors import DataReplicated as DataReplicated
    from ._errors import ProblemError as ProblemError
    from ._errors import SolveError as SolveError
    from ._errors import StartProjected as StartProjected
    from ._hosts import distributed as distributed
    from ._multistart import BestOf as BestOf
    from ._multistart import multistart as multistart
    from ._problem import Problem as Problem
    from ._schedules import Schedule as Schedule
    from ._schedules import Steps as Steps
    from ._schedules import constant as constant
    from ._sets import Affine as Affine
    from ._sets import Ball as Ball
    from ._sets import Box as Box
    from ._sets import Free as Free
    from ._sets import Halfspace as Halfspace
    from ._sets import NonNegative as NonNegative
    from ._sets import Product as Product
    from ._sets import Set as Set
    from ._sets import Simplex as Simplex
    from ._shard import shard as shard
    from ._solution import Solution as Solution
    from ._solution import State as State
    from ._solve import solve as solve
    from ._theory import Bound as Bound
    from ._theory import Constants as Constants
    from ._theory import estimate_constants as estimate_constants
    from ._theory import theory as theory
    from .checkpoint import load as load
    from .checkpoint import save as save
    from .solvers import BOME as BOME
    from .solvers import BVFIM as BVFIM
    from .solvers import F2SA as F2SA
    from .solvers import ITD as ITD
    from .solvers import MEHA as MEHA
    from .solvers import PDBO as PDBO
    from .solvers import VPBGD as VPBGD
    from .solvers import AIDConjugateGradient as AIDConjugateGradient
    from .solvers import AIDFixedPoint as AIDFixedPoint
    from .solvers import AutoPDBO as AutoPDBO
    from .solvers import BigSAM as BigSAM
    from .solvers import Calls as Calls
    from .solvers import Point as Point
    from .solvers import ProximalPDBO as ProximalPDBO
    from .solvers import Solver as Solver

__version__ = "0.1.0"

_NAMES = {
    "_batches": "Batches Source",
    "_certificate": "Certificate certify",
    "_communication": "Communication communication",
    "_compare": "Comparison compare",
    "_errors": "CheckpointError CheckpointWarning DataReplicated RESULTS ProblemError SolveError "
    "StartProjected",
    "_hosts": "distributed",
    "_multistart": "BestOf multistart",
    "_problem": "Problem",
    "_schedules": "Schedule Steps constant",
    "_sets": "Affine Ball Box Free Halfspace NonNegative Product Set Simplex",
    "_shard": "shard",
    "_solution": "Solution State",
    "_solve": "solve",
    "_theory": "Bound Constants estimate_constants theory",
    "checkpoint": "load save",
    "solvers": "AIDConjugateGradient AIDFixedPoint AutoPDBO BOME BVFIM BigSAM Calls F2SA ITD MEHA "
    "PDBO Point ProximalPDBO Solver VPBGD",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBMODULES = ("linear", "orbax", "problems", "sklearn", "solvers")

__all__ = sorted(_HOMES)  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Load a public name on first use: `import pdbo` alone does not import JAX."""
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module 'pdbo' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_SUBMODULES})
