"""Files that are there whole or not at all, whenever the machine stops."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
    """A file under a temporary name that takes the place of `path` once it is on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            yield file
            flush(file)
        temporary.replace(path)
        sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def flush(file: BinaryIO) -> None:
    """Put what was written on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync(folder: pathlib.Path) -> None:
    """Put the names in a folder on the disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
