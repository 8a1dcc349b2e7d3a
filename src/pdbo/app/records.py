"""What a run leaves behind: settings, claims and provenance as JSON, results as plain arrays."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import io
import json
import math
import os
import pathlib
import platform
import shutil
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import __version__
from .._files import flush, replacing, sync
from ..experiments._results import Record
from .folders import ARRAYS, RECORD, TIMES


class RecordError(ValueError):
    """A record is missing, damaged or not one of ours."""


def provenance() -> dict[str, Any]:
    """Versions and device of this run."""
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
    """Keep a record as folder/NAME/, all of it or nothing."""
    arrays = pack(record.arrays)
    body = {
        "name": record.name,
        "seed": record.seed,
        "quick": record.quick,
        "settings": record.settings,
        "calls": record.calls,
        "claims": [dataclasses.asdict(c) | {"held": c.held} for c in record.claims],
        **record.provenance,
        "arrays_sha256": hashlib.sha256(arrays).hexdigest(),
    }
    with fresh_folder(folder / record.name) as temporary:
        _put(temporary / ARRAYS, arrays)
        _put(temporary / TIMES, _seal(record.times))
        _put(temporary / RECORD, _seal(body))


def read(folder: pathlib.Path) -> Record:
    """The record in a folder, less its claims: those follow from the rest.

    A RecordError says what is wrong with it.
    """
    body, times = _unseal(folder / RECORD), _unseal(folder / TIMES)
    try:
        raw = (folder / ARRAYS).read_bytes()
    except OSError:
        raise RecordError(f"{folder} holds no complete record.") from None
    if hashlib.sha256(raw).hexdigest() != body.get("arrays_sha256"):
        raise RecordError(f"{folder / ARRAYS} does not belong to its record or is damaged.")
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as found:
            arrays = dict(found)
        about = {k: body[k] for k in ("versions", "device", "platform", "x64")}
        fields = {k: body[k] for k in ("name", "seed", "quick", "settings", "calls")}
        return Record(**fields, arrays=arrays, provenance=about, times=times)
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile):
        raise RecordError(f"{folder / RECORD} is not a record of pdbo.") from None


def _seal(body: dict[str, Any]) -> bytes:
    """JSON with the checksum of the rest inside, so that damage is noticed."""
    return dump(body | {"sha256": hashlib.sha256(dump(body)).hexdigest()})


def _unseal(path: pathlib.Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text("utf-8"))
    except OSError:
        raise RecordError(f"{path.parent} holds no complete record.") from None
    except (ValueError, RecursionError):
        raise RecordError(f"{path} is not a record of pdbo.") from None
    given = body.pop("sha256", None) if isinstance(body, dict) else None
    if given is None:
        raise RecordError(f"{path} is not a record of pdbo.")
    if hashlib.sha256(dump(body)).hexdigest() != given:
        raise RecordError(f"{path} was changed or damaged after it was written.")
    return body


def pack(arrays: dict[str, np.ndarray]) -> bytes:
    """Arrays as the bytes of an npz file that depend on nothing but the arrays."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            entry = io.BytesIO()
            np.save(entry, np.asarray(arrays[name], order="C"), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            archive.writestr(info, entry.getvalue())
    return out.getvalue()


def dump(body: Any) -> bytes:
    """JSON with sorted keys; a number that is not finite becomes its name, "nan" or "inf"."""
    return (json.dumps(plain(body), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@contextlib.contextmanager
def fresh_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary folder that takes the place of `path` at the end, or vanishes on an error."""
    _clear(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.mkdir()
        yield temporary
        sync(temporary)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_file(path: pathlib.Path, content: bytes) -> None:
    """A file, all of it or nothing."""
    _clear(path)
    with replacing(path) as file:
        file.write(content)


def _clear(path: pathlib.Path) -> None:
    """Make the folder of `path` and remove what killed processes left there under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.iterdir():
        start, _, process = old.name.rpartition(".")
        number = process.partition("-")[0]
        if start == f".{path.name}" and number.isdecimal() and not _runs(int(number)):
            shutil.rmtree(old) if old.is_dir() else old.unlink()


def _runs(process: int) -> bool:
    """Whether a process other than this one is there."""
    if process == os.getpid() or os.name == "nt":
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def _put(path: pathlib.Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        flush(file)
