"""Result codes, exceptions and warnings."""

from ._errors import RESULTS as RESULTS
from ._errors import AnswerWarning as AnswerWarning
from ._errors import CheckpointError as CheckpointError
from ._errors import CheckpointWarning as CheckpointWarning
from ._errors import DataReplicated as DataReplicated
from ._errors import KinkWarning as KinkWarning
from ._errors import PrecisionWarning as PrecisionWarning
from ._errors import ProblemError as ProblemError
from ._errors import SolveError as SolveError
from ._errors import StartProjected as StartProjected
