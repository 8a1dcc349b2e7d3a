"""How results look: plain tables, HTML for notebooks, figures. Loaded when first used."""

import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _trees as trees
from ._errors import ProblemError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from ._compare import Comparison
    from ._problem import Problem
    from ._solution import Solution

AXES = ("step", "calls", "seconds")
CURVES = ("f", "inner_gap", "stationarity", "x_error", "y_error")
LEAST = 1e-16  # what zero is drawn as on a logarithmic axis


def module(value: object) -> str:
    """A module as text, with its numbers in place of their types."""
    fields = {k: v for k, v in vars(value).items() if not k.startswith("_")}
    parts = (f"{name}={_field(v)}" for name, v in fields.items())
    return f"{type(value).__name__}({', '.join(parts)})"


def _field(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_field(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_field, value)) + ")"
    return trees.text(value) if hasattr(value, "dtype") else repr(value)


def problem(value: "Problem") -> str:
    """A problem as text: its functions, its data by shape and its sets."""
    named = [
        (name, getattr(value, name)) for name in ("f", "g", "outer_constraint", "inner_constraint")
    ]
    lines = [f"{name} = {_function(call)}" for name, call in named if call is not None]
    if value.data is not None:
        lines.append(trees.describe("data", value.data))
    lines += [f"x in {value.x_set}", f"y in {value.y_set}"]
    return "Problem\n" + "\n".join(f"  {line}" for part in lines for line in part.splitlines())


def _function(call: object) -> str:
    name = getattr(call, "__qualname__", None)
    code = getattr(call, "__code__", None)
    if name is None or code is None:
        return repr(call)
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{name.rpartition('.')[2]} ({file}, line {code.co_firstlineno})"


def table(columns: Mapping[str, Sequence[str]]) -> str:
    """Columns of text as an aligned table: the first to the left, the others to the right."""
    widths = {k: max(map(len, (k, *v))) for k, v in columns.items()}
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    first, *others = widths.values()
    lines = []
    for name, *cells in rows:
        right = (f"{cell:>{width}}" for cell, width in zip(cells, others, strict=True))
        lines.append("  ".join([f"{name:<{first}}", *right]))
    return "\n".join(lines)


def comparison_columns(comparison: "Comparison") -> dict[str, list[str]]:
    """The last row of every solver, as text."""
    last = comparison.final()
    at = {name: k for k, name in enumerate(last["solver"])}
    numbers = {
        "steps": ("step", "{:,.0f}"), "calls": ("calls", "{:,.0f}"),
        "seconds": ("seconds", "{:.3g}"),
        "f": ("f", "{:.6g}"), "inner gap": ("inner_gap", "{:.1e}"), "eps": ("eps", "{:.1e}"),
        "x error": ("x_error", "{:.1e}"), "y error": ("y_error", "{:.1e}"),
    }  # fmt: skip
    columns = {"solver": list(comparison.results)}
    for title, (key, form) in numbers.items():
        if key in last:
            columns[title] = [
                form.format(float(last[key][at[name]])) if name in at else "-"
                for name in comparison.results
            ]
        if title == "f":
            again = [comparison.f_resolved.get(name, float("nan")) for name in comparison.results]
            columns["f resolved"] = [f"{f:.6g}" if np.isfinite(f) else "-" for f in again]
    columns["ended"] = [result.name for result in comparison.results.values()]
    return columns


def html_table(columns: Mapping[str, Sequence[str]]) -> str:
    """The same in HTML."""
    head = "".join(f"<th>{html.escape(k)}</th>" for k in columns)
    rows = (
        "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        for row in zip(*columns.values(), strict=True)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def solution_html(solution: "Solution") -> str:
    """A solution in HTML: the verdict, the point, f, the certificate and the cost."""
    verdict, *rest = str(solution).splitlines()
    color = "#999999" if solution.is_costly else "#009E73" if solution.ok is True else "#D55E00"
    lines = "".join(f"<tr><td><code>{html.escape(line)}</code></td></tr>" for line in rest)
    return (
        f'<div style="border-left: 4px solid {color}; padding-left: 0.7em">'
        f"<b>{html.escape(verdict)}</b><table>{lines}</table></div>"
    )


def frame(columns: Mapping[str, Any]) -> "pandas.DataFrame":
    """A data frame; a column of arrays becomes one column for each of their entries."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise ProblemError("pandas must be installed first: pip install pandas.") from None
    flat: dict[str, np.ndarray] = {}
    first = [name for name in ("solver", "step", "f", "g") if name in columns]
    for name in dict.fromkeys([*first, *columns]):
        column = columns[name]
        values = np.asarray(column)
        if values.ndim <= 1:
            flat[name] = values
        else:
            for index in np.ndindex(values.shape[1:]):
                flat[f"{name}[{', '.join(map(str, index))}]"] = values[(slice(None), *index)]
    return pandas.DataFrame(flat)


def plot(
    curves: Mapping[str, Mapping[str, Any]], axis: str, wanted: Sequence[str] | None
) -> "Figure":
    """A panel per curve with a line for every name; an empty name has no legend."""
    if axis not in AXES:
        raise ProblemError(f"axis must be one of {', '.join(AXES)}, got {axis!r}.")
    known = set.intersection(*(set(v) for v in curves.values()))
    if axis not in known:
        raise ProblemError(f"the history has no column {axis!r}.")
    chosen = [c for c in CURVES if c in known] if wanted is None else list(wanted)
    unknown = [c for c in chosen if c not in known]
    if unknown:
        raise ProblemError(f"the table has no column {unknown[0]!r}.")
    figure = _picture((3.4 * len(chosen), 3.0))
    panels = figure.subplots(1, len(chosen), squeeze=False)[0]
    for panel, curve in zip(panels, chosen, strict=True):
        for name, columns in curves.items():
            values = np.asarray(columns[curve], float)
            if curve != "f":  # f may be negative
                values = np.where(values == 0, LEAST, values)
            mark = "o" if len(values) < 30 else None
            panel.plot(np.asarray(columns[axis]), values, label=name, marker=mark, markersize=3)
        panel.set(title=curve, xlabel=axis)
        if curve == "f":
            panel.set_yscale("symlog", linthresh=1e-6)
        else:
            panel.set_yscale("log")
    if any(curves):
        panels[0].legend(fontsize="small")
    return figure


def _picture(size: tuple[float, float]) -> "Figure":
    """A figure that a notebook shows, whether or not pyplot is loaded."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ProblemError("matplotlib must be installed first: pip install matplotlib.") from None

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png", dpi=100)
            return out.getvalue()

    return Picture(figsize=size, layout="constrained")
