"""The solvers: one algorithm or family per file, one line each here.

A solver's class variables say what tables, figures, command line and driver need to know of it;
they show the solvers in the order of the lines below.
"""

# isort: off
from . import _batch_pdbo
from .._solver import Calls as Calls
from .._solver import Point as Point
from .._solver import Solver as Solver
from .auto import AutoPDBO as AutoPDBO
from ._implicit import Implicit as Implicit
from ._pdbo import PDBO as PDBO
from ._proximal import ProximalPDBO as ProximalPDBO
from ._itd import ITD as ITD
from ._aid import AIDFixedPoint as AIDFixedPoint
from ._aid import AIDConjugateGradient as AIDConjugateGradient
from ._bigsam import BigSAM as BigSAM
from ._aid import StocBiO as StocBiO
from ._soba import SOBA as SOBA
from ._soba import MASOBA as MASOBA
from ._soba import SABA as SABA
from ._sustain import SUSTAIN as SUSTAIN
from ._bome import BOME as BOME
from ._f2sa import F2SA as F2SA
from ._f2sa import F2SA2 as F2SA2
from ._f2sa import F3SA as F3SA
from ._vpbgd import VPBGD as VPBGD
from ._bvfim import BVFIM as BVFIM
from ._meha import MEHA as MEHA

SOLVERS: dict[str, type[Solver]] = {
    name: value
    for name, value in globals().items()
    if isinstance(value, type) and issubclass(value, Solver) and value is not Solver
}
"""Every solver of the package that takes any problem, by the name of its class."""

BatchPDBO = _batch_pdbo.BatchPDBO  # for batches and split points: it has no row in studies
