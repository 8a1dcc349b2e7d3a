"""The solvers: one algorithm or family per file."""

from .._solver import Calls as Calls
from .._solver import Point as Point
from .._solver import Solver as Solver
from ._aid import AIDConjugateGradient as AIDConjugateGradient
from ._aid import AIDFixedPoint as AIDFixedPoint
from ._bigsam import BigSAM as BigSAM
from ._bome import BOME as BOME
from ._bvfim import BVFIM as BVFIM
from ._f2sa import F2SA as F2SA
from ._itd import ITD as ITD
from ._meha import MEHA as MEHA
from ._pdbo import PDBO as PDBO
from ._proximal import ProximalPDBO as ProximalPDBO
from ._vpbgd import VPBGD as VPBGD
from .auto import AutoPDBO as AutoPDBO
