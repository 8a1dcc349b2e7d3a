"""The README's picture and its tables, written from the records of runs."""

import json
import pathlib
import re
import runpy

from .record import FOLDER, write

ROOT = pathlib.Path(__file__).parents[1]


def records(name: str) -> list[dict]:
    """The records of a benchmark on a CPU and on a GPU."""
    return [json.loads((FOLDER / f"{name}-{kind}.json").read_text()) for kind in ("cpu", "gpu")]


def table(found: list[dict], rows: list[tuple[str, list[str]]]) -> str:
    """A row for each figure, a column for each device."""
    kinds = [f"{r['device']}, {r['platform'].split(', ')[1]}, JAX {r['versions']['jax']}"
             for r in found]  # fmt: skip
    lines = ["| | " + " | ".join(kinds) + " |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {title} | {' | '.join(values)} |" for title, values in rows)])


def speeds() -> str:
    """The table of speeds, from the records of `python -m benchmarks.core`."""
    found = records("core")
    figures = [
        ("one PDBO iteration on the toy", "toy", "microseconds_per_iteration", "{:.3g} µs"),
        ("the same, per start, many starts under `vmap`", "starts",
         "microseconds_per_iteration_and_start", "{:.3g} µs"),
        ("first call with `PDBO()`: compilation and all", "compilation", "seconds", "{:.1f} s"),
        ("share of the copy bandwidth on {variables} variables", "memory_speed",
         "share_of_copy_bandwidth", "{:.0%}"),
        ("cost of a live progress line", "progress", "overhead", "{:.1%}"),
    ]  # fmt: skip
    rows = []
    for title, part, key, form in figures:
        sizes = " and ".join(f"{r['results'][part].get('variables', 0):,}" for r in found)
        values = [form.format(r["results"][part][key]) for r in found]
        rows.append((title.format(variables=sizes), values))
    return table(found, rows)


def sparse() -> str:
    """The speeds on sparse data, from the records of `python -m benchmarks.sparse`."""
    found = records("sparse")
    figures = [
        ("value and gradient, against SciPy by hand on the CPU", "gradient", "times_scipy",
         "{:.2f} times"),
        ("one PDBO iteration, N = 5", "iterations", "PDBO_milliseconds", "{:.3g} ms"),
        ("one ITD iteration, N = 5", "iterations", "ITD_milliseconds", "{:.3g} ms"),
        ("bytes PDBO's iteration cannot do without, per second", "iterations",
         "bandwidth_GB_per_s", "{:,.0f} GB"),
        ("the same, of the copy bandwidth", "iterations", "share_of_copy_bandwidth", "{:.0%}"),
    ]  # fmt: skip
    rows = [
        (title, [form.format(r["results"][part][key]) for r in found])
        for title, part, key, form in figures
    ]
    return table(found, rows)


def newsgroups() -> str:
    """The table of 20 Newsgroups, from the record of `python -m benchmarks.newsgroups`."""
    from pdbo.experiments import _record, newsgroups

    (table,) = newsgroups.tables(_record.read(FOLDER / "newsgroups"))
    lines = [f"| {' | '.join(table.header)} |", f"|{'---|' * len(table.header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in table.rows)])


def fill(text: str) -> str:
    """The README with its tables made anew."""
    for name, make in (("speeds", speeds), ("sparse", sparse), ("newsgroups", newsgroups)):
        marks = f"<!-- {name}: python -m benchmarks.readme -->", f"<!-- end of {name} -->"
        if marks[0] in text:
            pattern = re.escape(marks[0]) + ".*?" + re.escape(marks[1])
            text = re.sub(pattern, "\n".join((marks[0], make(), marks[1])), text, flags=re.S)
    return text


if __name__ == "__main__":
    toy = runpy.run_path(str(ROOT / "examples" / "toy.py"))
    settings = {"start": [2.0, [0.5, 0.5]], "steps": 100, "solvers": list(toy["solvers"])}
    print("kept in", write("toy", settings, toy["main"](str(ROOT / "docs" / "toy.png"))))
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text()))
