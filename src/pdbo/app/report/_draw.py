"""Figures on paper, with matplotlib."""

import io
import math
from typing import Any

from ...experiments._views import Curve, Figure, Panel
from ._style import COLORS, Style, on_log, reach, styles

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
        width = 3.1 * columns if columns > 1 else 6.2
        canvas = Canvas(figsize=(width, 2.35 * rows + 0.4), layout="constrained")
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
            handles=handles, loc="outside lower center", ncols=_fitting(list(looks), width),
            frameon=False, handlelength=3,
        )  # fmt: skip
        _plainly(legend.get_texts())
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # it is laid out once, for all formats
        found = {}
        for format in FORMATS:
            out = io.BytesIO()
            canvas.savefig(out, format=format, dpi=200, metadata=_WITHOUT_DATE[format])
            found[format] = out.getvalue()
    return found


def _panel(ax: Any, panel: Panel, looks: dict[str, Style]) -> None:
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
    names = []
    if panel.categories:
        room = ax.get_figure().get_figwidth() / ax.get_gridspec().ncols - 0.8
        slanted = 0.08 * len(panel.categories) * max(map(len, panel.categories)) > room
        turn = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        names = ax.set_xticks(range(len(panel.categories)), panel.categories, **turn)
        names = [name.label1 for name in names]
        ax.grid(False, axis="x")
    _plainly([ax.title, ax.xaxis.label, ax.yaxis.label, *names])


def _line(ax: Any, curve: Curve, panel: Panel, look: Style) -> None:
    style = {"color": COLORS[look.slot]}
    steps = curve.kind == "steps"
    if curve.spread is not None:
        low, high = reach(curve, panel.y_log)
        ax.fill_between(
            curve.x, low, high, alpha=0.18, linewidth=0, step="post" if steps else None, **style
        )
    ax.plot(
        curve.x,
        on_log(curve.y) if panel.y_log else curve.y,
        linewidth=look.width if len(curve.x) < MANY else 0.6 * look.width,
        linestyle=(0, look.dash) if look.dash else "-",
        marker="o" if curve.points else None,
        markersize=4,
        drawstyle="steps-post" if steps else "default",
        **style,
    )


def _bars(ax: Any, curve: Curve, panel: Panel, look: Style, groups: list[Curve]) -> None:
    width = 0.8 / len(groups)
    middle = curve.x - 0.4 + (groups.index(curve) + 0.5) * width
    ax.bar(middle, curve.y, 0.92 * width, color=COLORS[look.slot])
    if curve.spread is not None:
        low, high = reach(curve, panel.y_log)
        ax.vlines(middle, low, high, color="#222222", linewidth=1.2)


def _fitting(labels: list[str], inches: float) -> int:
    """How many entries of a legend fit beside each other."""
    widest = 0.75 + 0.075 * max(map(len, labels))
    rows = math.ceil(len(labels) / max(1, int(inches / widest)))
    return math.ceil(len(labels) / rows)  # rows of equal length


def _plainly(texts: list[Any]) -> None:
    """Labels are shown as they are: a dollar sign in one is no formula."""
    for text in texts:
        text.set_parse_math(False)
