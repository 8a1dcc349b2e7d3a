"""Figures on paper, with matplotlib."""

import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...experiments._views import Curve, Figure, Panel
from ._style import COLORS, Style, on_log, reach, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

FORMATS = ("pdf", "svg", "png")
MANY = 500  # points; a line with this many or more is drawn thin
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
_WITHOUT_DATE: dict[str, dict[str, None]] = {  # metadata: a date would change the bytes
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {},
}


def draw(figure: Figure) -> dict[str, bytes]:
    """The bytes of a figure in every format; equal figures give equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    columns = min(figure.columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    looks = styles([c.label for p in figure.panels for c in p.curves])
    with matplotlib.rc_context(_RC):
        width = 3.1 * columns if columns > 1 else 6.2
        canvas = Canvas(figsize=(width, 2.35 * rows + 0.4), layout="constrained")
        axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for panel, ax in zip(figure.panels, axes, strict=False):
            _panel(ax, panel, looks, width / columns)
        for ax in axes[len(figure.panels) :]:
            ax.set_axis_off()
        handles = [
            Line2D([], [], color=COLORS[s.slot], linewidth=s.width, label=label,
                   linestyle=(0, s.dash) if s.dash else "-")
            for label, s in looks.items()
        ]  # fmt: skip
        legend = canvas.legend(
            handles=handles, loc="outside lower center", ncols=_fitting(list(looks), width),
            frameon=False, handlelength=3,
        )  # fmt: skip
        _plainly(legend.get_texts())
        canvas.draw_without_rendering()
        canvas.set_layout_engine(None)  # all formats share one layout; "none" would draw twice
        found = {}
        for format in FORMATS:
            out = io.BytesIO()
            canvas.savefig(out, format=format, dpi=200, metadata=_WITHOUT_DATE[format])
            found[format] = out.getvalue()
    return found


def _panel(ax: "Axes", panel: Panel, looks: dict[str, Style], inches: float) -> None:
    groups = [c for c in panel.curves if c.kind == "bars"]
    for curve in panel.curves:
        if curve.kind == "bars":
            _bars(ax, curve, panel, looks[curve.label], groups)
        else:
            _line(ax, curve, panel, looks[curve.label])
    ax.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    if panel.x_log:
        ax.set_xscale("log")
    if panel.y_log:
        ax.set_yscale("log")
    _plainly([ax.title, ax.xaxis.label, ax.yaxis.label])
    if panel.categories:
        _categories(ax, panel.categories, inches)


def _categories(ax: "Axes", names: Sequence[str], inches: float) -> None:
    """Write the names of categories below the axis, slanted if they are too long for it."""
    places = range(len(names))
    if 0.08 * len(names) * max(map(len, names)) > inches - 0.8:
        ticks = ax.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor")
    else:
        ticks = ax.set_xticks(places, names)
    _plainly([tick.label1 for tick in ticks])
    ax.grid(False, axis="x")


def _line(ax: "Axes", curve: Curve, panel: Panel, look: Style) -> None:
    color = COLORS[look.slot]
    steps = curve.kind == "steps"
    if curve.spread is not None:
        low, high = reach(curve, panel.y_log)
        ax.fill_between(
            curve.x, low, high, alpha=0.18, linewidth=0, step="post" if steps else None, color=color
        )
    ax.plot(
        curve.x,
        on_log(curve.y) if panel.y_log else curve.y,
        linewidth=look.width if len(curve.x) < MANY else 0.6 * look.width,
        linestyle=(0, look.dash) if look.dash else "-",
        marker="o" if curve.points else None,
        markersize=4,
        drawstyle="steps-post" if steps else "default",
        color=color,
    )


def _bars(ax: "Axes", curve: Curve, panel: Panel, look: Style, groups: list[Curve]) -> None:
    width = 0.8 / len(groups)
    middle = curve.x - 0.4 + (groups.index(curve) + 0.5) * width
    ax.bar(middle, curve.y, 0.92 * width, color=COLORS[look.slot])
    if curve.spread is not None:
        low, high = reach(curve, panel.y_log)
        ax.vlines(middle, low, high, color="#222222", linewidth=1.2)


def _fitting(labels: list[str], inches: float) -> int:
    """The number of columns of a legend that fits in the width."""
    widest = 0.75 + 0.075 * max(map(len, labels))
    rows = math.ceil(len(labels) / max(1, int(inches / widest)))
    return math.ceil(len(labels) / rows)  # rows of equal length


def _plainly(texts: Iterable["Text"]) -> None:
    """Show labels as they are: a dollar sign does not start a formula."""
    for text in texts:
        text.set_parse_math(False)
