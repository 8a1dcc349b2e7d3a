"""Files and folders that are written completely or not at all, even if the machine stops."""

import contextlib
import os
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
    """A file under a temporary name that replaces `path` once it is on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            yield file
            _flush(file)
        temporary.replace(path)
        _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Write a file, completely or not at all."""
    _clear(path)
    with replacing(path) as file:
        file.write(content)


def write_folder(path: pathlib.Path, files: dict[str, bytes]) -> None:
    """Write a folder of files, completely or not at all; it replaces an older one."""
    _clear(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.mkdir()
        for name, content in files.items():
            with (temporary / name).open("wb") as file:
                file.write(content)
                _flush(file)
        _sync(temporary)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _flush(file: BinaryIO) -> None:
    """Force what was written onto the disk."""
    file.flush()
    os.fsync(file.fileno())


def _sync(folder: pathlib.Path) -> None:
    """Force the names in a folder onto the disk."""
    if os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _clear(path: pathlib.Path) -> None:
    """Make the folder of `path`; remove temporary files that killed processes left for `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.iterdir():
        start, _, process = old.name.rpartition(".")
        number = process.partition("-")[0]
        if start == f".{path.name}" and number.isdecimal() and not _runs(int(number)):
            shutil.rmtree(old) if old.is_dir() else old.unlink()


def _runs(process: int) -> bool:
    """Whether a process other than this one is running."""
    if process == os.getpid() or os.name == "nt":
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True
