"""Data in mini-batches."""

from ._batches import Batches as Batches
from ._batches import Source as Source
