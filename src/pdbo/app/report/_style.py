"""One colour and dash per method, on paper and on the page, safe for colour-blind readers."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ... import _catalogue
from ...experiments._views import Curve

FLOOR = 1e-12
"""The smallest value on a logarithmic axis; smaller ones are drawn here."""


class Style(NamedTuple):
    """The slot of a colour, the dashes and gaps in multiples of the width, the width in points."""

    slot: int
    dash: tuple[float, ...]
    width: float


COLORS = (
    "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#222222", "#888888",
    "#882255", "#999933", "#332288", "#44AA99", "#AA7744", "#661100",
)  # fmt: skip
"""By slot: eight of Okabe and Ito, whose black and grey belong to no method, and six of Tol."""

_METHODS = {
    "PDBO": Style(0, (), 2.0),
    "Proximal-PDBO": Style(1, (6, 2), 2.0),
    "BigSAM+ITD": Style(2, (7, 2, 1.5, 2), 2.0),
    "AID-FP": Style(3, (), 3.2),  # wide: ITD-R often lies on it
    "ITD-R": Style(4, (1.5, 1.5), 2.0),
    "AutoPDBO": Style(5, (), 2.0),
    "fit": Style(7, (1.5, 2), 1.5),
    "AID-CG": Style(8, (4, 1.5), 2.0),
    "BOME": Style(9, (), 2.0),
    "F2SA": Style(10, (6, 2), 2.0),
    "VPBGD": Style(11, (7, 2, 1.5, 2), 2.0),
    "BVFIM": Style(12, (1.5, 1.5), 2.0),
    "MEHA": Style(13, (4, 1.5, 1.5, 1.5), 2.0),
}
_OTHER = Style(6, (5, 3), 1.5)  # for labels that name no method
_SPARE = ((3, 1), (8, 3), (2, 4), (9, 2, 3, 2))  # dashes for methods without a row above
_AGAIN = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))  # dashes if a figure repeats a colour


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """The style of every label of a figure; a label that begins with a method's name has its style.

    A method is named by its label or by its class.
    """
    classes = {name: card.label for name, card in _catalogue.cards().items()}
    known = {m: m for m in _METHODS} | {m: m for m in classes.values()} | classes
    found: dict[str, Style] = {}
    for label in labels:
        if label in found:
            continue
        name = max((m for m in known if label.startswith(m)), key=len, default=None)
        style = _OTHER if name is None else _METHODS.get(known[name]) or _assigned(known[name])
        same = sum(s.slot == style.slot for s in found.values())
        found[label] = style if not same else style._replace(dash=_AGAIN[same % len(_AGAIN)])
    return found


def _assigned(method: str) -> Style:
    """The style of a method without a row above: always the same, with a dash of its own."""
    slots = sorted({style.slot for name, style in _METHODS.items() if name != "fit"})
    dash, slot = divmod(zlib.crc32(method.encode()), len(slots))
    return Style(slots[slot], _SPARE[dash % len(_SPARE)], 2.0)


def on_log(values: np.ndarray) -> np.ndarray:
    """Values for a logarithmic axis: those below the floor are raised to it, negative ones NaN."""
    return np.where(values < FLOOR, np.where(values >= 0, FLOOR, np.nan), values)


def reach(curve: Curve, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper edge of a curve's spread.

    On a logarithmic axis the lower edge stays at or above the curve's smallest positive value,
    since a mean minus its spread may be negative.
    """
    assert curve.spread is not None
    low, high = curve.y - curve.spread, curve.y + curve.spread
    if log:
        floor = np.min(curve.y, where=curve.y > 0, initial=np.inf)
        low = np.maximum(low, floor if np.isfinite(floor) else FLOOR)
    return low, high
