"""The scoreboard of problems with constraints: 102 problems of BOLIB, one setting.

    python -m benchmarks.bolib            every problem, solve and multistart(64); the record is
                                          benchmarks/records/bolib.json
    python -m benchmarks.bolib NAME ...   some of them, printed only

The record has CPU seconds; `pdbo reproduce bolib` draws a page, with a rival. What "solved" and
"false" mean is said in `pdbo.experiments.bolib`, which judges without pdbo.
The first half is the problems at even positions by name. The method was corrected after looking at
both halves, so that neither is unseen.
"""

import json
import resource
import sys
import time
from typing import Any

import jax
import numpy as np

import pdbo
from pdbo.experiments.bolib import NEAR, WITHIN, judge
from pdbo.problems import bolib
from pdbo.problems.bolib import CoupledEntry

from .record import FOLDER, write

STARTS = 64


def cpu_seconds() -> float:
    """The CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def judged(entry: CoupledEntry, solution: pdbo.Solution) -> dict[str, Any]:
    """How good a solution is, without pdbo."""
    found = judge(entry, solution.x, solution.y)
    return found | {
        "certified": bool(solution.ok), "false": bool(solution.ok and not found["valid"]),
        "result": solution.result.name, "eps": float(solution.certificate.eps),  # type: ignore
    }  # fmt: skip


def measure(entry: CoupledEntry) -> dict[str, Any]:
    """`solve`, which compiles, and then `multistart` on a problem, with their CPU seconds."""
    out: dict[str, Any] = {}
    jax.clear_caches()
    for how in ("solve", "multistart"):
        began, clock = cpu_seconds(), time.perf_counter()
        if how == "solve":
            solution = pdbo.solve(entry.problem, *entry.start, throw=False)
        else:
            solution = pdbo.multistart(entry.problem, *entry.start, starts=STARTS, throw=False)
        taken = {
            "cpu": round(cpu_seconds() - began, 2),
            "wall": round(time.perf_counter() - clock, 2),
        }
        out[how] = judged(entry, solution) | taken
    return out


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Counts by half and by class."""
    names = sorted(bolib.names())
    halves = {"first half": names[::2], "second half": names[1::2], "all": names}
    tags = sorted({tag for n in names for tag in bolib.get(n).tags})
    groups = halves | {tag: [n for n in names if tag in bolib.get(n).tags] for tag in tags}
    table = {}
    for group, members in groups.items():
        for how in ("solve", "multistart"):
            rows = [results[n][how] for n in members if n in results]
            valued = [r for r in rows if r["solved"] is not None]
            table[f"{group}, {how}"] = {
                "with a value": len(valued),
                "solved": sum(r["solved"] for r in valued),
                "certified": sum(r["certified"] for r in rows),
                "false": sum(r["false"] for r in rows),
                "median cpu": float(np.median([r["cpu"] for r in rows])) if rows else None,
            }
    return table


def figures(record: dict[str, Any]) -> str:
    """Its table in docs/results.md."""
    lines = ["| problems | `solve` solves | `multistart` solves | certified | falsely | CPU s |"]
    lines.append("|---" * 6 + "|")
    table = record["results"]["summary"]
    for group in dict.fromkeys(name.rpartition(", ")[0] for name in table):
        single, many = (table[f"{group}, {how}"] for how in ("solve", "multistart"))
        solved = (f"{part['solved']} of {part['with a value']}" for part in (single, many))
        pairs = (f"{single[k]} / {many[k]}" for k in ("certified", "false"))
        cpu = f"{single['median cpu']:.1f} / {many['median cpu']:.1f}"
        lines.append("| " + " | ".join([group, *solved, *pairs, cpu]) + " |")
    return "\n".join(lines)


def main(names: list[str]) -> None:
    """Run some problems, or all and write the record."""
    results: dict[str, Any] = {}
    part = FOLDER / "bolib.part.json"
    chosen = names or sorted(bolib.names())
    if not names and part.exists():
        results = json.loads(part.read_text())
    for name in chosen:
        if name in results:
            continue
        results[name] = measure(bolib.get(name))
        for how, row in results[name].items():
            print(
                f"{name:28s} {how:10s} solved {row['solved']!s:5} ok {row['certified']!s:5} "
                f"{'FALSE ' if row['false'] else ''}f {row['f']:.6g} best {bolib.get(name).best} "
                f"eps {row['eps']:.1e} viol {row['violation']:.1e} gap {row['gap']:.1e} "
                f"{row['result']} cpu {row['cpu']}",
                flush=True,
            )
        if not names:
            part.write_text(json.dumps(results))
    table = summary(results)
    print(json.dumps(table, indent=1))
    if not names:
        settings = {"starts": STARTS, "within": WITHIN, "near": NEAR}
        write("bolib", settings, {"summary": table, "problems": results})
        part.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
