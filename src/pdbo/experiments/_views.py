"""What an experiment shows, as plain data: drawn on paper by matplotlib and on the page by SVG."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Curve:
    """A labelled line; the label of a method decides its colour. `points` draws markers too."""

    label: str
    x: np.ndarray
    y: np.ndarray
    points: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """Axes with curves."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    x_log: bool = False
    y_log: bool = False


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels side by side, `columns` in a row."""

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 3


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text and numbers under a header."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Scene:
    """A landscape in the plane, with the path of every method from every start.

    Attributes:
        title, text: what is drawn and what one sees.
        axes: the names of the two coordinates.
        x, y, z: the grid and the values on it, z[j, i] at (x[i], y[j]).
        levels: of the contour lines.
        lines: further lines (label, points) to be drawn in, such as the inner minima.
        optima: the best points.
        starts: the starts, one row each.
        paths: by method an array (starts, iterations + 1, 2).
    """

    title: str
    text: str
    axes: tuple[str, str]
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    levels: np.ndarray
    lines: Sequence[tuple[str, np.ndarray]]
    optima: np.ndarray
    starts: np.ndarray
    paths: dict[str, np.ndarray]


def counted(values: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... for as many values."""
    return np.arange(len(values))


def first_within(errors: np.ndarray, tolerance: float) -> float:
    """The iteration from which on the errors stay within the tolerance; infinite if never."""
    outside = np.flatnonzero(~(errors <= tolerance))
    if not len(outside):
        return 0.0
    return float(outside[-1] + 1) if outside[-1] + 1 < len(errors) else float("inf")
