"""The default beside pdbo's tuned solvers on the workloads of the peers, in processor seconds.

The tuned settings are those of benchmarks/records/peers.json. Processor seconds of processes that
take turns can be compared on a machine that others use, too; the page of the peers has wall time.
"""

import json
import statistics
from typing import Any

from .record import FOLDER
from .settings import UNTUNED
from .suite import PATIENCE, Bench
from .workloads import WORKLOADS

TURNS = 3  # processes of each
WARM = 5  # warm calls in each


def measured() -> dict[str, Any]:
    """First and warm calls of both on every workload that both have, each in its own process."""
    known = json.loads((FOLDER / "peers.json").read_text())["results"]["workloads"]
    found: dict[str, Any] = {}
    for name, workload in known.items():
        entries = {n: e for n, e in workload["entries"].items() if n in ("pdbo", UNTUNED)}
        if len(entries) < 2:
            continue
        with Bench(WORKLOADS[name], 1) as bench:
            turns = [{n: _turn(bench, e) for n, e in entries.items()} for _ in range(TURNS)]
        row: dict[str, Any] = {
            n: {k: statistics.median(turn[n][k] for turn in turns) for k in ("first", "warm")}
            | {"left": turns[0][n]["left"]}
            for n in entries
        }
        row["untuned / tuned, warm"] = row[UNTUNED]["warm"] / row["pdbo"]["warm"]
        row["untuned / tuned, first"] = row[UNTUNED]["first"] / row["pdbo"]["first"]
        print(name, json.dumps(row), flush=True)
        found[name] = row
    return {"processes each": TURNS, "warm calls each": WARM, "workloads": found}


def _turn(bench: Bench, entry: dict[str, Any]) -> dict[str, float]:
    """Processor seconds of a first call and of warm ones, and the verdict on the last point."""
    job, steps = bench.job(entry["settings"]), entry["iterations"]

    def once() -> float:
        begun = process.ask("start", job=job, within=PATIENCE)["busy"]
        return begun + process.ask("advance", steps=steps, within=PATIENCE)["busy"]

    with bench.process("ours") as process:
        first, warm = once(), statistics.median(once() for _ in range(WARM))
        return {"first": first, "warm": warm, "left": bench.look(process)}
