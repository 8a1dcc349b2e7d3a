"""The file of a checkpoint: sealed, with names, dtypes and shapes of the arrays in its header."""

import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from .. import _sealed
from .._checks import kind
from .._errors import CheckpointError, ProblemError

KIND, VERSION = "checkpoint", 2  # 1 is the format of pdbo 0.1.0, which is not read


class Stored(NamedTuple):
    """An array as it is kept: keys as integers, dtypes that NumPy does not know as bits."""

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


class Saved(NamedTuple):
    """A file that was read and verified."""

    path: pathlib.Path
    header: dict[str, Any]
    arrays: dict[str, Stored]

    def error(self, sentence: str) -> CheckpointError:
        """The error that names the file."""
        return CheckpointError(f"{self.path} does not fit: {sentence}.")


def as_path(path: Any) -> pathlib.Path:
    """A path that a user gave."""
    if not isinstance(path, str | os.PathLike):
        raise ProblemError(f"a path must be a string or a pathlib.Path, got {kind(path)}.")
    return pathlib.Path(path)


def write(path: pathlib.Path, header: dict[str, Any], arrays: dict[str, Stored]) -> None:
    """Write a file, all of it or nothing."""
    listed = [{"name": n, "dtype": s.dtype, "shape": s.shape} for n, s in arrays.items()]
    numbered = {str(i): s.data for i, s in enumerate(arrays.values())}  # any name is allowed
    try:
        _sealed.write(path, KIND, VERSION, header | {"arrays": listed}, numbered)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}.") from error


def read(path: pathlib.Path) -> Saved:
    """Read a file; a CheckpointError names it and says what is wrong."""
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
