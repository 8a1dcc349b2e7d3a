"""What the calls return."""

from ._certificate import Certificate as Certificate
from ._certificate import ConstrainedCertificate as ConstrainedCertificate
from ._certificate import SampledCertificate as SampledCertificate
from ._certificate import TermCertificate as TermCertificate
from ._compare import Comparison as Comparison
from ._multistart import BestOf as BestOf
from ._solution import Solution as Solution
from ._solution import State as State
