"""The collection of test problems: known optima, random starts and an independent score."""

from ._collection import get as get
from ._collection import names as names
from ._entry import Entry as Entry
from ._quadratic import random_quadratic as random_quadratic
