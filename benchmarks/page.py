"""The page of the benchmark, docs/benchmarks.md, and its pictures, from the record alone."""

import math
import pathlib
from typing import Any

OURS = "pdbo"
HEAD = """\
# Benchmarks

How long each library takes to a target accuracy, on the same data, from the same start, on the same
number of cores; the best of several settings counts. A ratio is the library's time divided by
pdbo's: above 1, pdbo is ahead. The column pdbo names the solver that was tuned; "pdbo, untuned" is
the default of 18 November 2026, an older `AutoPDBO`, with nothing set. Other figures: [Measured
results](results.md).
"""
METHOD = """\
`python -m benchmarks` measured everything on this page and wrote it. Each library runs in its own
virtual environment and process. The suite checks the iterates from outside, in double precision,
and stops at the first check at which the target is reached, if the next check confirms it. Then it
times that many iterations again in a fresh process: once cold, then several times warm. The page
reports the median of the warm times. The settings tried and the best ones are in
`benchmarks/settings.py` and `benchmarks/records/peers.json`.
"""
TERMS = """\
**time**: to the target, warm. **first call**: the same in a fresh process, including compilation.
**total**: first call plus the start of the process and all imports. **memory**: the increase of
resident memory since before the first call. **calls**: evaluations of f and g per iteration (for
pdbo their gradients, and second-order products, marked p).
"""


def write(record: dict[str, Any], folder: pathlib.Path) -> list[str]:
    """Write the page and its pictures to a folder; return the paths."""
    pictures = _pictures(record, folder)
    path = folder / "benchmarks.md"
    path.write_text(text(record, [p.name for p in pictures]))
    return [str(p) for p in (path, *pictures)]


def text(record: dict[str, Any], pictures: list[str]) -> str:
    """The text of the page in Markdown."""
    workloads = record["results"]["workloads"]
    parts = [HEAD, _summary(workloads)]
    parts += [f"![{name}]({name})\n" for name in pictures[:1]]
    parts += ["## Where pdbo is behind\n", _behind(workloads), "## Details\n"]
    parts += [_folded(_title(w), _detail(w)) for w in workloads.values()]
    growth = [_growth(record["results"]["scaling"])]
    growth += [f"![{name}]({name})\n" for name in pictures[1:]]
    parts += [_folded("How the cost grows", "\n".join(growth))]
    how = f"{METHOD}\n{TERMS}\n{_machine(record)}\n{_versions(record)}"
    parts += [_folded("How it was measured", how)]
    return "\n".join(parts)


def _folded(title: str, body: str) -> str:
    """A part of the page that is shown on a click."""
    return f'<details markdown="1"><summary>{title}</summary>\n\n{body}\n</details>\n'


def _title(workload: dict[str, Any]) -> str:
    return f"{workload['title'][0].upper()}{workload['title'][1:]}"


def _solver(name: str, entry: dict[str, Any]) -> str:
    """The name of a row; which of our solvers it is if it is one of ours."""
    if OURS not in name or "settings" not in entry:
        return name
    return f"{name} ({entry['settings'].get('solver', 'AutoPDBO')})"


def _machine(record: dict[str, Any]) -> str:
    v = record["versions"]
    return (
        f"Machine: {record['platform']}, {record.get('processor', record['device'])}; "
        f"{record['settings']['threads']} core(s) for each library. pdbo {v['pdbo']}, JAX "
        f"{v['jax']}, Python {record['python']}, single precision.\n"
    )


def _names(workloads: dict[str, Any]) -> list[str]:
    names = [name for w in workloads.values() for name in w["entries"]]
    return [n for n in dict.fromkeys(names) if n != OURS]


def ratio(theirs: dict[str, Any], ours: dict[str, Any], key: str) -> float | None:
    """Their figure divided by ours; None if either is missing or did not reach the target."""
    if not theirs or not ours or "error" in theirs or "error" in ours:
        return None
    timed = key in ("seconds", "total_seconds")
    if timed and not (theirs["reached"] and ours["reached"]):
        return None
    return theirs[key] / ours[key] if ours[key] > 0 else None


def _summary(workloads: dict[str, Any]) -> str:
    names = _names(workloads)
    rows = [["workload", OURS, *names]]
    for w in workloads.values():
        ours = w["entries"].get(OURS, {})
        solver = ours.get("settings", {}).get("solver")
        cells = [_told(ours, ours, "seconds") + (f", {solver}" if solver else "")]
        for name in names:
            theirs = w["entries"].get(name)
            cells.append("–" if theirs is None else _told(theirs, ours, "seconds"))
        rows.append([w["title"], *cells])
    note = (
        "\n“never”: not reached within the time limit, or not finite. "
        "–: the library has no method for it; the default was not run on many starts at once, on a "
        "fixed number of iterations, and on 20 Newsgroups, where it takes minutes.\n"
    )
    median = _median(workloads)
    if median is not None:
        note += (
            f"\nThe median lead over the fastest peer that reaches the target, over all workloads, "
            f"is {_times(median)}.\n"
        )
    return _table(rows) + note


def _median(workloads: dict[str, Any]) -> float | None:
    """The median over workloads of the lead over the fastest peer that reaches the target."""
    leads = []
    for w in workloads.values():
        ours = w["entries"].get(OURS, {})
        others = [ratio(e, ours, "seconds") for n, e in w["entries"].items() if OURS not in n]
        reached = [r for r in others if r is not None]
        if reached:
            leads.append(min(reached))
    return sorted(leads)[len(leads) // 2] if leads else None


def _told(entry: dict[str, Any], ours: dict[str, Any], key: str) -> str:
    if not entry:
        return "–"
    if "error" in entry:
        return "error"
    if not entry["reached"]:
        return "never"
    value = _seconds(entry[key])
    against = ratio(entry, ours, key)
    return value if entry is ours or against is None else _times(against)


def _behind(workloads: dict[str, Any]) -> str:
    """Every figure of a peer that is better than pdbo's, and what limits pdbo."""
    keys = {
        "seconds": "time to target",
        "total_seconds": "total with start-up and compilation",
        "microseconds_per_iteration": "time per iteration",
    }
    lines, memory = [], {}
    for w in workloads.values():
        ours = w["entries"].get(OURS, {})
        if ours and not ours.get("reached"):
            lines.append(f"- {w['title']}: pdbo does not reach the target.")
        for name, theirs in w["entries"].items():
            if OURS in name:
                continue
            against = {key: ratio(theirs, ours, key) for key in (*keys, "peak_bytes")}
            less = {key: r for key, r in against.items() if r is not None and r < 1}
            if "peak_bytes" in less:
                memory.setdefault(name, []).append(less.pop("peak_bytes"))
            if less:
                same = "" if theirs["reached"] else " (which does not reach the target)"
                worse = ", ".join(f"{keys[key]} {_times(r)}" for key, r in less.items())
                lines.append(f"- {w['title']}: {name}{same}: {worse}.")
                if "total_seconds" in less:
                    compiling = ours["first_call_seconds"] - ours["seconds"]
                    lines.append(
                        "  The limit is compilation: pdbo takes "
                        f"{_seconds(ours['total_seconds'])}, of which {_seconds(compiling)} are "
                        f"XLA's compiler and {_seconds(ours['startup_seconds'])} imports."
                    )
    if memory:
        ranges = [f"{n} {_times(min(v))} to {_times(max(v))}" for n, v in memory.items()]
        lines.append(f"- Memory, on the workloads where it is less: {', '.join(ranges)} of pdbo's.")
    tiny = workloads.get("counter-10", {}).get("entries", {}).get(OURS)
    if memory and tiny:
        lines.append(
            f"  Even the smallest problem takes {tiny['peak_bytes'] / 1e6:.0f} MB, for XLA and the "
            "programs it compiled. This does not grow with the inner steps."
        )
    return "\n".join(lines or ["Nowhere."]) + "\n"


def _detail(workload: dict[str, Any]) -> str:
    head = f"Target: {workload['target']}.\n"
    if "error" in workload:
        return f"{head}\nNot measured: {workload['error']}\n"
    ours = workload["entries"].get(OURS, {})
    rows = [["", "reached", "iterations", "µs each", "time", "first call", "total", "memory",
             "calls f, g"]]  # fmt: skip
    for name, e in workload["entries"].items():
        if "error" in e:
            rows.append([name, f"error: {e['error']}", *[""] * 7])
            continue
        calls = e["calls_in_one_iteration"]
        each = "–"
        if calls:
            each = f"{calls['f']:,}, {calls['g']:,}"
            each += f", {calls['products']:,} p" if calls.get("products") else ""
        yes = "yes" if e["reached"] else "never"
        whole = "solve" in e["settings"]
        rows.append([
            _solver(name, e),
            yes,
            "its own" if whole else f"{e['iterations']:,}",
            "–" if whole else _with(e, ours, "microseconds_per_iteration", _number),
            _with(e, ours, "seconds", _seconds) if e["reached"] else "–",
            _seconds(e["first_call_seconds"]) if e["reached"] else "–",
            _with(e, ours, "total_seconds", _seconds) if e["reached"] else "–",
            _with(e, ours, "peak_bytes", lambda b: f"{b / 1e6:.0f} MB"),
            each,
        ])  # fmt: skip
    return f"{head}\n{_table(rows)}"


def _with(entry: dict[str, Any], ours: dict[str, Any], key: str, form: Any) -> str:
    against = ratio(entry, ours, key)
    value = form(entry[key])
    return value if entry is ours or against is None else f"{value} ({_times(against)})"


def _growth(growth: dict[str, Any]) -> str:
    parts = []
    for what in ("dimension", "non-zeros"):
        g = growth[what]
        rows = [
            [g["against"], *(f"{n:,}" for n in g["sizes"])],
            ["µs per iteration", *(_number(v) for v in g["microseconds_per_iteration"])],
        ]
        decades = math.log10(g["sizes"][-1] / g["sizes"][0])
        parts.append(
            f"{_table(rows)}\nFitted exponent over {decades:.0f} decades: {g['exponent']:.2f}.\n"
        )
    m = growth["memory"]
    rows = [
        [
            f"memory, compilation included, n = {m['n']:,}, N =",
            *(f"{n:,}" for n in m["inner_steps"]),
        ]
    ]
    for name, values in m["bytes"].items():
        if isinstance(values, dict):
            rows.append([name, f"error: {values['error']}", *[""] * (len(m["inner_steps"]) - 1)])
        else:
            rows.append([name, *(f"{b / 1e6:.0f} MB" for b in values)])
    return "\n".join([*parts, _table(rows)])


def _versions(record: dict[str, Any]) -> str:
    kept = ("torch", "torchopt", "higher", "betty-ml", "boat-torch", "jax", "jaxlib", "jaxopt",
            "optax", "numpy", "scipy", "scikit-learn", "optuna")  # fmt: skip
    rows = [["peer", "installed"]]
    for name, peer in record["results"]["peers"].items():
        if "error" in peer:
            rows.append([name, f"error: {peer['error']}"])
        else:
            found = peer["versions"]
            rows.append([name, ", ".join(f"{k} {found[k]}" for k in kept if k in found)])
    return _table(rows) if len(rows) > 1 else ""


def _table(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size or unit == "µs":
            return f"{_number(value / size)} {unit}"
    raise AssertionError


def _times(value: float) -> str:
    return f"{value:,.0f}×" if value >= 10 else f"{value:.2g}×"


def _pictures(record: dict[str, Any], folder: pathlib.Path) -> list[pathlib.Path]:
    """Time to target relative to pdbo, and cost against size."""
    import matplotlib
    from matplotlib.figure import Figure

    from pdbo.app.report._draw import _RC
    from pdbo.app.report._style import COLORS

    workloads = record["results"]["workloads"]
    names, paths = _names(workloads), []
    marks = "osD^vP*X"
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(7.2, 0.42 * len(workloads) + 1.6), layout="constrained")
        ax = figure.subplots()
        rows = list(workloads.values())[::-1]
        for index, name in enumerate(names):
            points = []
            for row, w in enumerate(rows):
                r = ratio(w["entries"].get(name, {}), w["entries"].get(OURS, {}), "seconds")
                points += [] if r is None else [(r, row)]
            if points:
                ax.plot(*zip(*points, strict=True), marks[index % 8], label=name,
                        color=COLORS[(0, 2, 3, 4, 5, 6, 8, 9)[index % 8]])  # fmt: skip
        ax.axvline(1, color="#222222", linewidth=1)
        ax.set_xscale("log")
        ax.set_yticks(range(len(rows)), [w["title"].split(",")[0] if len(w["title"]) > 44
                                         else w["title"] for w in rows])  # fmt: skip
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.set_xlabel("time to target divided by pdbo's; not shown: never reached")
        if ax.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", ncols=4, frameon=False)
        paths.append(_save(figure, folder / "benchmarks-time.png"))

        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        cost, held = figure.subplots(1, 2)
        growth = record["results"]["scaling"]
        for what, color, mark in (("dimension", COLORS[0], "o"), ("non-zeros", COLORS[3], "s")):
            g = growth[what]
            cost.loglog(g["sizes"], g["microseconds_per_iteration"], mark + "-", color=color,
                        label=f"{g['against']}, exponent {g['exponent']:.2f}")  # fmt: skip
        cost.set(xlabel="n, non-zeros", ylabel="µs per iteration", title="cost per iteration")
        cost.legend(frameon=False)
        m = growth["memory"]
        for index, (name, values) in enumerate(m["bytes"].items()):
            if isinstance(values, list):
                held.loglog(m["inner_steps"], [max(v, 1e4) / 1e6 for v in values],
                            marks[index % 8] + "-", label=name,
                            color=COLORS[(0, 2, 3, 4, 5, 6, 8, 9)[index % 8]])  # fmt: skip
        held.set(xlabel="inner steps N", ylabel="MB", title=f"memory, n = {m['n']:,}")
        held.set_ylim(1, max(held.get_ylim()[1], 1e3))
        held.legend(frameon=False)
        paths.append(_save(figure, folder / "benchmarks-growth.png"))
    return paths


def _save(figure: Any, path: pathlib.Path) -> pathlib.Path:
    figure.savefig(path, dpi=160)
    return path
