"""The automatic solver: a search with cuts, then polishing of what it found."""

from .solver import AutoPDBO as AutoPDBO
