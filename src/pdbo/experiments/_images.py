"""Labelled images of ten classes: MNIST or Fashion-MNIST as idx files, or scikit-learn's digits."""

import gzip
import os
import pathlib
import zlib
from typing import NamedTuple

import numpy as np

from . import Unavailable

FOLDER = "PDBO_DATA"
"""The environment variable that names a folder of data sets."""

DEBIAN = pathlib.Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""

_PARTS = ("train", "t10k")


class Images(NamedTuple):
    """Pixels from 0 to 1 and labels from 0 to 9, for training and for testing."""

    name: str
    pixels: np.ndarray
    labels: np.ndarray
    test_pixels: np.ndarray
    test_labels: np.ndarray


def images(folder: pathlib.Path | None) -> Images:
    """The images in the folder; without a folder, the system's, else scikit-learn's digits."""
    named = os.environ.get(FOLDER)
    if folder is None and named:
        folder = pathlib.Path(named)
    for place in (folder, *_below(folder)) if folder is not None else (DEBIAN,):
        if all(_file(place, part, kind) for part in _PARTS for kind in ("images", "labels")):
            return _read_all(place)
    if folder is not None:
        raise Unavailable(
            f"{folder} holds no idx files: it needs train-images-idx3-ubyte, "
            "train-labels-idx1-ubyte and the two of t10k, packed with gzip or not."
        )
    return _digits()


def _below(folder: pathlib.Path) -> list[pathlib.Path]:
    return [folder / name for name in ("mnist", "MNIST", "fashion-mnist", "FashionMNIST")]


def _file(folder: pathlib.Path, part: str, kind: str) -> pathlib.Path | None:
    """The file of images or labels, packed or not, by either of its usual names."""
    axes = {"images": 3, "labels": 1}[kind]
    names = [f"{part}-{kind}{mark}idx{axes}-ubyte" for mark in "-."]
    found = [folder / (n + end) for n in names for end in ("", ".gz")]
    return next((path for path in found if path.is_file()), None)


def _read_all(folder: pathlib.Path) -> Images:
    parts = []
    for part in _PARTS:
        paths = [_file(folder, part, kind) for kind in ("images", "labels")]
        pixels, labels = (read_idx(path) for path in paths if path is not None)
        if pixels.ndim != 3 or labels.shape != pixels.shape[:1] or labels.max(initial=0) > 9:
            raise Unavailable(f"{folder} does not hold as many labels from 0 to 9 as images.")
        parts += [pixels.reshape(len(pixels), -1).astype(np.float32) / 255, labels.astype(np.int32)]
    return Images(_name(folder), *parts)


def _name(folder: pathlib.Path) -> str:
    return "Fashion-MNIST" if "fashion" in str(folder.resolve()).lower() else "MNIST"


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Returns the array of bytes in an idx file; raises `Unavailable` if it cannot be read."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise Unavailable(f"{path} cannot be read: {error}.") from None
    axes = raw[3] if raw[:3] == b"\x00\x00\x08" and len(raw) > 3 else 0
    shape = tuple(np.frombuffer(raw, ">u4", axes, 4).tolist()) if len(raw) >= 4 + 4 * axes else ()
    if not axes or not shape or len(raw) != 4 + 4 * axes + int(np.prod(shape, dtype=object)):
        raise Unavailable(f"{path} is no idx file of bytes, or a damaged one.")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _digits() -> Images:
    """The 1,797 digits of scikit-learn, the last third for testing."""
    from sklearn.datasets import load_digits

    pixels, labels = (np.asarray(v) for v in load_digits(return_X_y=True))
    order = np.random.default_rng(0).permutation(len(labels))
    pixels, labels = pixels[order].astype(np.float32) / 16, labels[order].astype(np.int32)
    cut = 1200
    return Images("digits", pixels[:cut], labels[:cut], pixels[cut:], labels[cut:])
