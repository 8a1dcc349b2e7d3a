"""Bilevel optimisation that stays right when the inner problem has many minimisers."""

from ._certificate import Certificate as Certificate
from ._certificate import certify as certify
from ._compare import Comparison as Comparison
from ._compare import compare as compare
from ._errors import RESULTS as RESULTS
from ._errors import ProblemError as ProblemError
from ._errors import SolveError as SolveError
from ._errors import StartProjected as StartProjected
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
from ._solution import Solution as Solution
from ._solution import State as State
from ._solve import solve as solve
from ._theory import Bound as Bound
from ._theory import Constants as Constants
from ._theory import estimate_constants as estimate_constants
from ._theory import theory as theory
from .solvers import BOME as BOME
from .solvers import BVFIM as BVFIM
from .solvers import F2SA as F2SA
from .solvers import ITD as ITD
from .solvers import MEHA as MEHA
from .solvers import PDBO as PDBO
from .solvers import VPBGD as VPBGD
from .solvers import AIDConjugateGradient as AIDConjugateGradient
from .solvers import AIDFixedPoint as AIDFixedPoint
from .solvers import BigSAM as BigSAM
from .solvers import Calls as Calls
from .solvers import Point as Point
from .solvers import ProximalPDBO as ProximalPDBO
from .solvers import Solver as Solver

__version__ = "0.1.0"
