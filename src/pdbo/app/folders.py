"""Checks of the folders a user gave, before anything runs or is written. Needs no JAX."""

import os
import pathlib
import sys
from typing import Literal

from .. import __version__
from ..experiments import EXPERIMENTS
from .errors import InputError

FILES = RECORD, ARRAYS, TIMES = "record.json", "arrays.npz", "times.json"
"""The files of a record."""
PAGE, FIGURES = "index.html", "figures"


def exists(path: pathlib.Path, kind: Literal["dir", "file"]) -> bool:
    """Whether a folder or file exists; False if its name is not a valid one."""
    try:
        return path.is_dir() if kind == "dir" else path.is_file()
    except (OSError, ValueError):  # the name is too long, or has a forbidden character
        return False


def check_folder(out: pathlib.Path, allowed: bool, remedy: str, names: list[str]) -> None:
    """Refuse an output folder that is not empty, unless that is allowed, or holds foreign files.

    Arguments:
        out: the folder.
        allowed: whether it may hold records already.
        remedy: what the user can do if it may not.
        names: the records that will be written.
    """
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file, not a folder.")
        occupied = out.is_dir() and any(out.iterdir())
    except OSError as error:
        raise InputError(f"{out} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{out} cannot be a folder: {error}.") from None
    if occupied and not allowed:
        raise InputError(f"{out} is not empty: {remedy}, or choose another with --out.")
    if occupied:
        for name in names:
            _check_own(out / name)
        check_pages(out)
        if not any(out.glob(f"*/{RECORD}")):
            for name in (PAGE, FIGURES):
                if (out / name).exists():
                    raise InputError(f"{out / name} is not pdbo's: choose another folder.")
    check_writable(out)


def _check_own(folder: pathlib.Path) -> None:
    """Refuse to replace a folder that holds anything but a record of pdbo."""
    if folder.is_dir():
        foreign = sorted({p.name for p in folder.iterdir()} - {*FILES})
        if foreign:
            raise InputError(f"{folder / foreign[0]} is not pdbo's: choose another folder.")
    elif folder.exists():
        raise InputError(f"{folder} is in the way: choose another folder.")


def check_pages(folder: pathlib.Path) -> None:
    """Refuse if a folder has the page's name, or a file that of the figures."""
    page, figures = folder / PAGE, folder / FIGURES
    if page.is_dir():
        raise InputError(f"{page} is a folder and in the way of the page.")
    if figures.exists() and not figures.is_dir():
        raise InputError(f"{figures} is a file and in the way of the figures.")


def check_same_run(out: pathlib.Path, seed: int, quick: bool) -> None:
    """Refuse to carry on if the records in the folder have other options."""
    from .runner import finished

    for name in EXPERIMENTS:
        record = finished(out, name)
        if record is None:
            continue
        version = record.provenance["versions"].get("pdbo")
        if (record.seed, record.quick, version) != (seed, quick, __version__):
            kind = "quick" if record.quick else "full"
            raise InputError(
                f"{out / name} holds a {kind} run with seed {record.seed} of pdbo {version}: "
                "resume with the same options, or choose another folder."
            )


def check_writable(out: pathlib.Path) -> None:
    """Refuse a folder that cannot be written to; the attempt leaves nothing behind."""
    missing = [p for p in (out, *out.parents) if not p.exists()]
    probe = out / f".pdbo-{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{out} cannot be written to: {error.strerror}.") from None
    finally:
        for folder in missing:
            if folder.is_dir():
                folder.rmdir()


def programs() -> pathlib.Path | None:
    """A folder for compiled programs, so that the next run need not compile them again.

    It is PDBO_CACHE or a folder in the user's cache; None if that is empty or cannot be made, or
    if JAX has been given one already.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return None
    given = os.environ.get("PDBO_CACHE")
    if given is not None:
        folder = pathlib.Path(given) if given else None
    elif sys.platform == "win32":
        folder = pathlib.Path(os.environ.get("LOCALAPPDATA", "~")).expanduser() / "pdbo"
    elif sys.platform == "darwin":
        folder = pathlib.Path("~/Library/Caches/pdbo").expanduser()
    else:
        folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pdbo"
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if folder is not None and os.access(folder, os.W_OK) else None
