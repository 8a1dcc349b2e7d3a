"""Records of runs: settings, claims and provenance as JSON, results as plain arrays."""

import contextlib
import dataclasses
import importlib.metadata
import io
import math
import os
import pathlib
import platform
from collections.abc import Iterator

import numpy as np

from .. import __version__
from .._files import write_folder
from .._sealed import ARRAYS as ARRAYS_DIGEST
from .._sealed import CHANGED, Damaged, JsonObject, digest, read_npz, seal, unseal, write_npz
from ..experiments._results import Record
from .folders import ARRAYS, RECORD, TIMES

_ABOUT = ("versions", "device", "platform", "x64")


class RecordError(ValueError):
    """A record is missing, damaged or not written by pdbo."""


def provenance() -> JsonObject:
    """The versions and the device of this run."""
    import jax

    packages = ("jax", "jaxlib", "equinox", "numpy", "scikit-learn")
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "versions": {"pdbo": __version__, "python": platform.python_version(), **versions},
        "device": str(jax.devices()[0].device_kind),
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "x64": jax.dtypes.canonicalize_dtype(float) == np.float64,
    }


def write(folder: pathlib.Path, record: Record) -> None:
    """Write a record to folder/NAME/, completely or not at all.

    Runs with the same seed write the same JSON and arrays, byte for byte: times have a file of
    their own.
    """
    arrays = io.BytesIO()
    write_npz(arrays, record.arrays, compress=True)
    body = {
        "name": record.name,
        "seed": record.seed,
        "quick": record.quick,
        "settings": record.settings,
        "calls": record.calls,
        "claims": [dataclasses.asdict(c) | {"held": c.held} for c in record.claims],
        **record.provenance,
        ARRAYS_DIGEST: digest(arrays.getbuffer()),
    }
    files = {
        ARRAYS: arrays.getvalue(),
        TIMES: seal(_plain_entries(record.times)),
        RECORD: seal(_plain_entries(body)),
    }
    write_folder(folder / record.name, files)


def read(folder: pathlib.Path) -> Record:
    """The record in a folder, without its claims, which are computed from the rest.

    A RecordError says what is wrong with the record.
    """
    try:
        raw = {name: (folder / name).read_bytes() for name in (RECORD, TIMES, ARRAYS)}
    except OSError:
        raise RecordError(f"{folder} holds no complete record.") from None
    with _named(folder / RECORD):
        body = unseal(raw[RECORD], "record")
    with _named(folder / TIMES):
        times = unseal(raw[TIMES], "record")
    with _named(folder / ARRAYS):
        if digest(raw[ARRAYS]) != body.get(ARRAYS_DIGEST):
            raise Damaged(CHANGED)
        arrays = read_npz(io.BytesIO(raw[ARRAYS]))
    try:
        about = {k: body[k] for k in _ABOUT}
        fields = {k: body[k] for k in ("name", "seed", "quick", "settings", "calls")}
    except KeyError:
        raise RecordError(f"{folder / RECORD} is not a record of pdbo.") from None
    return Record(**fields, arrays=arrays, provenance=about, times=times)


@contextlib.contextmanager
def _named(path: pathlib.Path) -> Iterator[None]:
    """Turn an error about a file into one that names the file."""
    try:
        yield
    except Damaged as error:
        raise RecordError(f"{path} {error}.") from None


def plain(value: object) -> object:
    """A value that JSON can hold; a number that is not finite becomes its name, "nan" or "inf"."""
    if isinstance(value, dict):
        return _plain_entries(value)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _plain_entries(value: dict) -> JsonObject:
    return {str(k): plain(v) for k, v in value.items()}
