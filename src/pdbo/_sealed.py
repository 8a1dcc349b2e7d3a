"""Sealed files: JSON and arrays that are read only if nothing has changed since they were written.

The JSON holds its own seal under "sha256", the SHA-256 of all its other entries. If arrays belong
to it, one of these entries is "arrays_sha256", the SHA-256 of the arrays as NumPy's npz: the one
seal covers both. A record of an experiment keeps the two parts as two files, since people and tools
open them. A checkpoint is one file: a line `pdbo KIND VERSION`, the JSON as one line, the npz.

Nothing here is pickled: a file names no code, and reading it runs none.
"""

import hashlib
import io
import json
import pathlib
import zipfile
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from ._files import replacing

if TYPE_CHECKING:
    from typing_extensions import Buffer

JsonObject = dict[str, Any]  # values by name, as JSON holds them

SEAL, ARRAYS = "sha256", "arrays_sha256"
CHANGED = "was changed or damaged after it was written"
_UNKNOWN = "0" * 64  # stands in for a digest, of the same length, until it is known
_DATE = (1980, 1, 1, 0, 0, 0)  # the date of every array in a zip file: the earliest allowed
_BLOCK = 1 << 20  # bytes read at a time
_HEADER = 4096  # bytes; an upper bound on the header of one array


class Damaged(Exception):
    """What is wrong with a file, to follow its path in a sentence: "is empty"."""


def digest(*parts: "Buffer") -> str:
    """The SHA-256 of the bytes of all parts, in this order."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part)
    return sha256.hexdigest()


def seal(body: JsonObject, indent: int | None = 1) -> bytes:
    """A dict as JSON, with its seal as one more entry."""
    return _dump(body | {SEAL: digest(_dump(body))}, indent)


def unseal(text: bytes, kind: str) -> JsonObject:
    """The dict that was sealed; `kind` is the word for it in an error."""
    try:
        body = dict(json.loads(text))
        given = body.pop(SEAL)
        found = digest(_dump(body))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Damaged(f"is not a {kind} of pdbo") from None
    if found != given:
        raise Damaged(CHANGED)
    return body


def _dump(body: JsonObject, indent: int | None = 1) -> bytes:
    return (json.dumps(body, indent=indent, sort_keys=True) + "\n").encode()


def write_npz(file: IO[bytes], arrays: dict[str, np.ndarray], compress: bool = False) -> None:
    """Write arrays as NumPy's npz; equal arrays of equal names give equal bytes."""
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w") as archive:
        for name in sorted(arrays):
            array = np.asarray(arrays[name], order="C")
            info = zipfile.ZipInfo(f"{name}.npy", _DATE)
            info.compress_type, info.create_system = method, 3
            info.file_size = array.nbytes + _HEADER  # zip must be told if it may exceed 2 GiB
            with archive.open(info, "w") as entry:
                np.save(entry, array, allow_pickle=False)


def read_npz(file: IO[bytes]) -> dict[str, np.ndarray]:
    """The arrays that `write_npz` wrote."""
    try:
        with np.load(file, allow_pickle=False) as found:
            return dict(found)
    except OSError:
        raise
    except Exception:  # NumPy and zipfile raise many kinds
        raise Damaged("is damaged: its arrays cannot be read") from None


def write(
    path: pathlib.Path, kind: str, version: int, header: JsonObject, arrays: dict[str, np.ndarray]
) -> None:
    """Write header and arrays to one file, completely or not at all."""
    with replacing(path) as file:
        file.write(_first_line(kind, version))
        place = file.tell()
        file.write(seal(header | {ARRAYS: _UNKNOWN}, None))
        rest = Hashed(file)
        write_npz(cast(IO[bytes], rest), arrays)
        file.seek(place)
        file.write(seal(header | {ARRAYS: rest.sha256.hexdigest()}, None))  # of the same length


def read(path: pathlib.Path, kind: str, version: int) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """The header and the arrays of a file, every byte of it verified."""
    with path.open("rb") as file:
        _check_first_line(file.readline(64), kind, version)
        line = file.readline()
        header = unseal(line, kind)
        if seal(header, None) != line:  # the seal does not cover spaces between entries
            raise Damaged(CHANGED)
        place, sha256 = file.tell(), hashlib.sha256()
        while block := file.read(_BLOCK):
            sha256.update(block)
        if header.pop(ARRAYS, None) != sha256.hexdigest():
            raise Damaged(CHANGED)
        file.seek(place)
        return header, read_npz(file)


def _first_line(kind: str, version: int) -> bytes:
    return f"pdbo {kind} {version}\n".encode()


def _check_first_line(line: bytes, kind: str, version: int) -> None:
    if line == _first_line(kind, version):
        return
    if not line:
        raise Damaged("is empty")
    start, _, number = line.rstrip(b"\n").rpartition(b" ")
    if start == f"pdbo {kind}".encode() and number.isdigit():
        raise Damaged(f"has format {number.decode()}, and this pdbo reads format {version}")
    raise Damaged(f"is not a {kind}, or its first line is damaged")


class Hashed(io.RawIOBase):
    """A stream that writes to a file and keeps the digest of what was written; it cannot seek."""

    def __init__(self, file: BinaryIO):
        self.file, self.sha256 = file, hashlib.sha256()

    def write(self, content: "Buffer", /) -> int:
        """Write to the file and add to the digest."""
        self.sha256.update(content)
        return self.file.write(content)

    def writable(self) -> bool:
        """True, which NumPy and zipfile ask."""
        return True
