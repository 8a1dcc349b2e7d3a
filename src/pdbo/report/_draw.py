"""Figures on paper, with matplotlib."""

import io
import math
from typing import Any

from ..experiments._views import Figure, Panel
from ._style import COLORS, on_log, styles

FORMATS = ("pdf", "svg", "png")
MANY = 500  # points; a line of as many is drawn thin
_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "pdbo",
}
_WITHOUT_DATE: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {},
}


def draw(figure: Figure) -> dict[str, bytes]:
    """The bytes of a figure in every format; they depend on nothing but the figure."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    columns = min(figure.columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    looks = styles([c.label for p in figure.panels for c in p.curves])
    with matplotlib.rc_context(_RC):
        canvas = Canvas(figsize=(3.1 * columns, 2.35 * rows + 0.4), layout="constrained")
        axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for panel, ax in zip(figure.panels, axes, strict=False):
            _panel(ax, panel, looks)
        for ax in axes[len(figure.panels) :]:
            ax.set_axis_off()
        handles = [
            Line2D([], [], color=COLORS[s.slot], linewidth=s.width, label=label,
                   linestyle=(0, s.dash) if s.dash else "-")
            for label, s in looks.items()
        ]  # fmt: skip
        legend = canvas.legend(
            handles=handles, loc="outside lower center", ncols=_fitting(list(looks), 3.1 * columns),
            frameon=False, handlelength=3,
        )  # fmt: skip
        _plainly(legend.get_texts())
        found = {}
        for format in FORMATS:
            out = io.BytesIO()
            canvas.savefig(out, format=format, dpi=200, metadata=_WITHOUT_DATE[format])
            found[format] = out.getvalue()
    return found


def _panel(ax: Any, panel: Panel, looks: dict[str, Any]) -> None:
    for curve in panel.curves:
        look = looks[curve.label]
        ax.plot(
            curve.x,
            on_log(curve.y) if panel.y_log else curve.y,
            color=COLORS[look.slot],
            linewidth=look.width if len(curve.x) < MANY else 0.6 * look.width,
            linestyle=(0, look.dash) if look.dash else "-",
            marker="o" if curve.points else None,
            markersize=4,
        )
    ax.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    _plainly([ax.title, ax.xaxis.label, ax.yaxis.label])
    if panel.x_log:
        ax.set_xscale("log")
    if panel.y_log:
        ax.set_yscale("log")


def _fitting(labels: list[str], inches: float) -> int:
    """How many entries of a legend fit beside each other."""
    widest = 0.75 + 0.075 * max(map(len, labels))
    return max(1, min(len(labels), int(inches / widest)))


def _plainly(texts: list[Any]) -> None:
    """Labels are shown as they are: a dollar sign in one is no formula."""
    for text in texts:
        text.set_parse_math(False)
