"""The collection of test problems, with known optima, random starts and a score."""

from . import bolib as bolib
from ._collection import get as get
from ._collection import names as names
from ._entry import Entry as Entry
from ._quadratic import random_quadratic as random_quadratic
