"""Bilevel optimisation that stays right when the inner problem has many minimisers."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what __getattr__ finds; names are loaded when they are first used
    from . import callbacks as callbacks
    from . import data as data
    from . import errors as errors
    from . import hosts as hosts
    from . import linear as linear
    from . import orbax as orbax
    from . import presets as presets
    from . import problems as problems
    from . import results as results
    from . import schedules as schedules
    from . import sets as sets
    from . import sklearn as sklearn
    from . import solvers as solvers
    from . import terms as terms
    from . import torch as torch
    from ._batches import Batches as Batches
    from ._certify import certify as certify
    from ._compare import compare as compare
    from ._errors import RESULTS as RESULTS
    from ._errors import ProblemError as ProblemError
    from ._errors import SolveError as SolveError
    from ._inner_solution import inner_solution as inner_solution
    from ._load import load as load
    from ._multistart import multistart as multistart
    from ._problem import Equal as Equal
    from ._problem import Problem as Problem
    from ._shard import shard as shard
    from ._solve import solve as solve
    from .checkpoint import save as save
    from .data import Source as Source
    from .errors import AnswerWarning as AnswerWarning
    from .errors import CheckpointError as CheckpointError
    from .errors import CheckpointWarning as CheckpointWarning
    from .errors import DataReplicated as DataReplicated
    from .errors import KinkWarning as KinkWarning
    from .errors import PrecisionWarning as PrecisionWarning
    from .errors import StartProjected as StartProjected
    from .hosts import distributed as distributed
    from .results import BestOf as BestOf
    from .results import Certificate as Certificate
    from .results import Comparison as Comparison
    from .results import ConstrainedCertificate as ConstrainedCertificate
    from .results import SampledCertificate as SampledCertificate
    from .results import Solution as Solution
    from .results import State as State
    from .results import TermCertificate as TermCertificate
    from .schedules import Bound as Bound
    from .schedules import Constants as Constants
    from .schedules import Schedule as Schedule
    from .schedules import Steps as Steps
    from .schedules import constant as constant
    from .schedules import estimate_constants as estimate_constants
    from .schedules import theory as theory
    from .sets import Affine as Affine
    from .sets import Ball as Ball
    from .sets import Box as Box
    from .sets import Free as Free
    from .sets import Halfspace as Halfspace
    from .sets import NonNegative as NonNegative
    from .sets import Polyhedron as Polyhedron
    from .sets import Product as Product
    from .sets import Set as Set
    from .sets import Simplex as Simplex
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
    from .solvers import BatchPDBO as BatchPDBO
    from .solvers import BigSAM as BigSAM
    from .solvers import Calls as Calls
    from .solvers import Implicit as Implicit
    from .solvers import Point as Point
    from .solvers import ProximalPDBO as ProximalPDBO
    from .solvers import Solver as Solver
    from .terms import L1 as L1
    from .terms import ElasticNet as ElasticNet
    from .terms import GroupL2 as GroupL2
    from .terms import SparseGroup as SparseGroup
    from .terms import Term as Term

__version__ = "0.1.0"

_DAILY = {  # by module, the names for daily use
    "_batches": "Batches",
    "_certify": "certify",
    "_compare": "compare",
    "_errors": "RESULTS ProblemError SolveError",
    "_inner_solution": "inner_solution",
    "_load": "load",
    "_multistart": "multistart",
    "_problem": "Equal Problem",
    "_shard": "shard",
    "_solve": "solve",
    "checkpoint": "save",
    "sets": "Affine Ball Box Free Halfspace NonNegative Product Simplex",
    "solvers": "PDBO AutoPDBO ProximalPDBO",
}
_ELSEWHERE = {  # by submodule, names that are public there and answer here, too
    "data": "Source",
    "errors": "AnswerWarning CheckpointError CheckpointWarning DataReplicated KinkWarning "
    "PrecisionWarning StartProjected",
    "hosts": "distributed",
    "results": "BestOf Certificate Comparison ConstrainedCertificate "
    "SampledCertificate Solution State TermCertificate",
    "schedules": "Bound Constants Schedule Steps constant estimate_constants theory",
    "sets": "Polyhedron Set",
    "solvers": "BOME BVFIM F2SA ITD MEHA VPBGD AIDConjugateGradient AIDFixedPoint BatchPDBO BigSAM "
    "Calls Implicit Point Solver",
    "terms": "ElasticNet GroupL2 L1 SparseGroup Term",
}
_HOMES = {
    name: module
    for names in (_DAILY, _ELSEWHERE)
    for module, listed in names.items()
    for name in listed.split()
}
_SUBMODULES = (
    "callbacks", "data", "errors", "hosts", "linear", "orbax", "presets", "problems", "results",
    "schedules", "sets", "sklearn", "solvers", "terms", "torch",
)  # fmt: skip

__all__ = sorted(" ".join(_DAILY.values()).split())  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll]


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
    return sorted({*__all__, *_SUBMODULES, "__version__"})
