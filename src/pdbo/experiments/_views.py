"""What an experiment shows, as plain data: drawn on paper by matplotlib and on the page by SVG."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True)
class Curve:
    """Labelled data; a label that begins with the name of a method gets the method's colour.

    Attributes:
        label: what the legend calls it.
        x, y: the data; values that are not finite are left out.
        points: whether markers are drawn too.
        spread: half the width of the band around y, or of the whiskers of bars.
        kind: a "line", "steps" that keep their height up to the next x, as in a performance
            profile, or "bars".
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    points: bool = False
    spread: np.ndarray | None = None
    kind: Literal["line", "steps", "bars"] = "line"


def bars(label: str, y: Sequence[float], spread: np.ndarray | None = None) -> Curve:
    """One bar for each of a panel's categories; several curves of bars stand side by side."""
    return Curve(label, np.arange(len(y)), np.asarray(y), False, spread, "bars")


@dataclasses.dataclass(frozen=True)
class Panel:
    """Axes with curves; categories, if any are named, stand at x = 0, 1, 2, ..."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    x_log: bool = False
    y_log: bool = False
    categories: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Figure:
    """Panels side by side, `columns` in a row."""

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 3


class Spread(NamedTuple):
    """A cell of a table: a mean, its standard error, and the decimals shown."""

    mean: float
    spread: float
    decimals: int = 2

    def __str__(self) -> str:
        spread = f" ± {self.spread:.{self.decimals}f}" if np.isfinite(self.spread) else ""
        return f"{self.mean:.{self.decimals}f}{spread}"


def mean_and_error(values: ArrayLike, decimals: int = 2) -> Spread:
    """The mean over runs and its standard error, NaN for a single run."""
    values = np.asarray(values, float)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return Spread(float(values.mean()), float(error), decimals)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under a header; a cell is text, a number or a `Spread`."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclasses.dataclass(frozen=True)
class Scene:
    """A landscape in the plane with the path of every method from every start.

    Attributes:
        title, text: the heading and the explanation.
        axes: the names of the two coordinates.
        x, y, z: the grid and the values on it, z[j, i] at (x[i], y[j]).
        levels: of the contour lines.
        lines: further lines (label, points) to draw, such as the inner minima.
        optima: the best points.
        starts: the starts, one row each.
        paths: by method an array (starts, iterations + 1, 2).
        notes: where the methods ended, one text for every start.
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
    notes: Sequence[str]


def fates(found: dict[str, str]) -> str:
    """Where every method ended, in one sentence; methods with the same fate share a clause."""
    groups: dict[str, list[str]] = {}
    for method, fate in found.items():
        groups.setdefault(fate, []).append(method)
    parts = []
    for fate, names in groups.items():
        *others, last = names
        parts.append(f"{', '.join(others)} and {last} {fate}" if others else f"{last} {fate}")
    return "; ".join(parts) + "."


def level(label: str, x: np.ndarray, value: float) -> Curve:
    """A horizontal line over the range of x."""
    ends = np.array([np.min(x), np.max(x)], float)
    return Curve(label, ends, np.full(2, value))


def listed(values: np.ndarray) -> str:
    """Numbers in a sentence: "0.1, 0.2 and 0.5", or "none"."""
    words = [f"{v:g}" for v in values]
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else (words or ["none"])[0]


def counted(values: np.ndarray) -> np.ndarray:
    """0, 1, 2, ..., one for each value."""
    return np.arange(len(values))


def first_within(errors: np.ndarray, tolerance: float) -> float:
    """The first iteration from which the errors stay within the tolerance; infinite if none."""
    outside = np.flatnonzero(~(errors <= tolerance))
    if not len(outside):
        return 0.0
    return float(outside[-1] + 1) if outside[-1] + 1 < len(errors) else float("inf")
