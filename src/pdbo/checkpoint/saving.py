"""`save`: a solution as one file."""

import os

import numpy as np

from .._checks import kind
from .._errors import CheckpointError, ProblemError
from .._solution import Solution
from .format import as_path, write
from .packing import pack


def save(path: str | os.PathLike[str], solution: Solution) -> None:
    """Write a solution, its history and the state to carry on from to one file.

    The file is written completely or not at all: under another name, flushed, then renamed.

    Arguments:
        path: the file.
        solution: what `solve` returned, for one run.
    """
    if not isinstance(solution, Solution):
        raise ProblemError(f"solution must be what solve returned, got {kind(solution)}.")
    if solution.state is None:
        raise CheckpointError("a solution without a state, of a bad problem, cannot be saved.")
    if np.ndim(solution.code) > 0:
        raise CheckpointError("a batch of runs cannot be saved: save the solutions one by one.")
    write(as_path(path), *pack(solution))
