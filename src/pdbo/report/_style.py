"""One colour and dash per method, on paper and on the page; colours by Okabe and Ito."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FLOOR = 1e-12
"""What lies below is drawn here on a logarithmic axis."""


class Style(NamedTuple):
    """The slot of a colour, the lengths of dashes and gaps, and the width of a line."""

    slot: int
    dash: tuple[float, ...]
    width: float


COLORS = (
    "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#222222", "#888888",
)  # fmt: skip
"""By slot; the last two are those of lines that belong to no method."""

_METHODS = {
    "PDBO": Style(0, (), 2.0),
    "Proximal-PDBO": Style(1, (6, 2), 2.0),
    "BigSAM+ITD": Style(2, (7, 2, 1.5, 2), 2.0),
    "AID-FP": Style(3, (), 3.2),  # wide: ITD-R often lies on it
    "ITD-R": Style(4, (1.5, 1.5), 2.0),
    "AutoPDBO": Style(5, (), 2.0),
    "fit": Style(7, (1.5, 2), 1.5),
}
_OTHER = Style(6, (5, 3), 1.5)
_AGAIN = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """The style of every label of a figure; labels that begin with a method's name are its own."""
    found: dict[str, Style] = {}
    for label in labels:
        if label in found:
            continue
        names = [m for m in _METHODS if label.startswith(m)]
        style = _METHODS[max(names, key=len)] if names else _OTHER
        same = sum(s.slot == style.slot for s in found.values())
        found[label] = style if not same else style._replace(dash=_AGAIN[same % len(_AGAIN)])
    return found


def on_log(values: np.ndarray) -> np.ndarray:
    """Values as a logarithmic axis can show them: what is too small lies on the floor."""
    return np.where(values < FLOOR, np.where(values >= 0, FLOOR, np.nan), values)
