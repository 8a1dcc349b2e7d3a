"""The README's picture and its table of speeds, both written from the records of runs."""

import json
import pathlib
import re
import runpy

from .record import FOLDER, write

ROOT = pathlib.Path(__file__).parents[1]
MARKS = ("<!-- speeds: python -m benchmarks.readme -->", "<!-- end of speeds -->")


def speeds() -> str:
    """The table of speeds, from the records of `python -m benchmarks.core`."""
    records = [json.loads((FOLDER / f"core-{kind}.json").read_text()) for kind in ("cpu", "gpu")]
    rows = [
        ("one PDBO iteration on the toy", "toy", "microseconds_per_iteration", "{:.3g} µs"),
        ("the same, per start, many starts under `vmap`", "starts",
         "microseconds_per_iteration_and_start", "{:.3g} µs"),
        ("first call with `PDBO()`: compilation and all", "compilation", "seconds", "{:.1f} s"),
        ("share of the copy bandwidth on {variables} variables", "memory_speed",
         "share_of_copy_bandwidth", "{:.0%}"),
        ("cost of a live progress line", "progress", "overhead", "{:.1%}"),
    ]  # fmt: skip
    kinds = [f"{r['device']}, {r['platform'].split(', ')[1]}, JAX {r['versions']['jax']}"
             for r in records]  # fmt: skip
    lines = ["| | " + " | ".join(kinds) + " |", "|---|---|---|"]
    for title, part, key, form in rows:
        sizes = " and ".join(f"{r['results'][part].get('variables', 0):,}" for r in records)
        values = [form.format(r["results"][part][key]) for r in records]
        lines.append(f"| {title.format(variables=sizes)} | {' | '.join(values)} |")
    return "\n".join(lines)


def fill(text: str) -> str:
    """The README with its table of speeds made anew."""
    pattern = re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1])
    return re.sub(pattern, "\n".join((MARKS[0], speeds(), MARKS[1])), text, flags=re.S)


if __name__ == "__main__":
    toy = runpy.run_path(str(ROOT / "examples" / "toy.py"))
    settings = {"start": [2.0, [0.5, 0.5]], "steps": 100, "solvers": list(toy["solvers"])}
    print("kept in", write("toy", settings, toy["main"](str(ROOT / "docs" / "toy.png"))))
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text()))
