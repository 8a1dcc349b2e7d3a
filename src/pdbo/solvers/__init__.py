"""The solvers: one algorithm or family per file."""

from ._base import Calls as Calls
from ._base import Point as Point
from ._base import Solver as Solver
from ._pdbo import PDBO as PDBO
from ._proximal import ProximalPDBO as ProximalPDBO
