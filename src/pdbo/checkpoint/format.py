"""The file of a checkpoint: sealed; its header lists the arrays by name, dtype and shape."""

import os
import pathlib
from typing import NamedTuple

import numpy as np

from .. import _sealed
from .._checks import kind
from .._errors import CheckpointError, ProblemError
from .._sealed import JsonObject

KIND, VERSION = "checkpoint", 2  # format 1, of pdbo 0.1.0, is refused


class Stored(NamedTuple):
    """An array as the file stores it: keys as integers, dtypes unknown to NumPy as bits."""

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


class Saved(NamedTuple):
    """A file that was read and verified."""

    path: pathlib.Path
    header: JsonObject
    arrays: dict[str, Stored]

    def error(self, sentence: str) -> CheckpointError:
        """An error that names the file."""
        return CheckpointError(f"{self.path} does not fit: {sentence}.")


def as_path(path: object) -> pathlib.Path:
    """The path that a user gave; a ProblemError if it is something else."""
    if not isinstance(path, str | os.PathLike):
        raise ProblemError(f"a path must be a string or a pathlib.Path, got {kind(path)}.")
    return pathlib.Path(path)


def write(path: pathlib.Path, header: JsonObject, arrays: dict[str, Stored]) -> None:
    """Write a file, completely or not at all."""
    listed = [{"name": n, "dtype": s.dtype, "shape": s.shape} for n, s in arrays.items()]
    numbered = {
        str(i): s.data for i, s in enumerate(arrays.values())
    }  # so a name may hold any character
    try:
        _sealed.write(path, KIND, VERSION, header | {"arrays": listed}, numbered)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}.") from error


def read(path: pathlib.Path) -> Saved:
    """Read and verify a file; a CheckpointError says what is wrong with it."""
    try:
        header, numbered = _sealed.read(path, KIND, VERSION)
    except _sealed.Damaged as error:
        raise CheckpointError(f"{path} {error}.") from None
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
    try:
        arrays = {
            entry["name"]: Stored(entry["dtype"], tuple(entry["shape"]), numbered[str(index)])
            for index, entry in enumerate(header["arrays"])
        }
    except (KeyError, TypeError):  # sealed, but by another program
        raise CheckpointError(f"{path} is damaged: its arrays are not those listed.") from None
    return Saved(path, header, arrays)
