"""20 Newsgroups: the full study, best on a GPU, and the time to the rivals' accuracy.

Run as `python -m benchmarks.newsgroups [--data FOLDER] [--out FOLDER]`; it finds the data as
`pdbo reproduce newsgroups` does. `--rows NAME ...` runs some rows of the stored record again, and
`python -m benchmarks.newsgroups arrival` measures the time. Then run `python -m benchmarks.readme`.
"""

import argparse
import dataclasses
import pathlib
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import equinox as eqx
import jax

import pdbo
from pdbo.app import records, runner
from pdbo.experiments import _corpus, newsgroups
from pdbo.experiments._results import Record

from .record import FOLDER, write


def track(names: Iterable[str]) -> Iterator[str]:
    """Print which row is being measured."""
    start = time.perf_counter()
    for name in names:
        print(f"{time.perf_counter() - start:5.0f} s  {name}", flush=True)
        yield name


RACE = ("PDBO", "PDBO with N = 1", "AID-FP", "ITD-R")
EVERY = 5  # steps per timed call


def _advance(solver: Any, steps: int) -> Any:
    """A compiled function that takes `steps` steps."""

    @eqx.filter_jit
    def advance(problem: Any, state: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state)

    return advance


def iterations() -> dict[str, list[int]]:
    """How many bring each split of the full study to the rivals' accuracy, from its record.

    The record has a checkpoint every few iterations: PDBO counts with the first checkpoint that
    reached the target, rivals are credited with the one before.
    """
    record = records.read(FOLDER / "newsgroups")
    found = {}
    for name in RACE:
        passed = 100 * record[f"{name}.accuracy"] >= newsgroups.RIVALS
        if not passed.any(1).all():
            raise SystemExit(f"{name} does not reach {newsgroups.RIVALS} per cent on every split.")
        rows = passed.argmax(1) if "PDBO" in name else passed.argmax(1) - 1
        found[name] = [int(record[f"{name}.step"][row]) for row in rows]
    return found


def seconds(study: Any, rounds: int = 7) -> dict[str, float]:
    """Seconds per iteration: the median over rounds in which each method runs once."""
    ready = {}
    for name in RACE:
        solver, problem = pdbo.presets.get(f"newsgroups/{name}").solver, study.problems(name, "")[0]
        state = solver.init(problem, *study.starts("")[0], jax.random.key(0))
        advance = _advance(solver, EVERY)
        ready[name] = (advance, problem, jax.block_until_ready(advance(problem, state)))
    times: dict[str, list[float]] = {name: [] for name in RACE}
    for _ in range(rounds):
        for name, (advance, problem, state) in ready.items():
            began = time.perf_counter()
            jax.block_until_ready(advance(problem, state))
            times[name].append((time.perf_counter() - began) / EVERY)
    return {name: statistics.median(values) for name, values in times.items()}


def arrival(data: pathlib.Path | None) -> None:
    """Write how many iterations the full study took, and how long they take here."""
    counts = iterations()
    settings = {"accuracy": newsgroups.RIVALS, "splits": len(counts["PDBO"])}
    each = seconds(newsgroups.Study(_corpus.load(data), 0, 1))
    found = {n: {"iterations": counts[n], "seconds_each": each[n]} for n in RACE}
    print(found)
    print("written to", write(f"arrival-{jax.default_backend()}", settings, found))


def with_rows_again(rows: tuple[str, ...], data: pathlib.Path | None) -> Record:
    """The stored record with some rows run again, with the same versions on the same device."""
    kept = records.read(FOLDER / "newsgroups")
    with jax.enable_x64(True):
        here = records.provenance()
        if here != kept.provenance:
            raise SystemExit(f"The record was made with {kept.provenance}, this is {here}.")
        found = newsgroups.run(0, False, track, data, rows)
    times, steps = kept.times, "iterations"
    now = {n: v for n, v in found.settings[steps].items() if n in rows}
    record = dataclasses.replace(
        kept,
        settings=kept.settings | {steps: kept.settings[steps] | now},
        arrays=kept.arrays | found.arrays,
        calls=kept.calls | found.calls,
        times=times
        | {
            "seconds": times["seconds"] | found.seconds,
            "measured": found.measured
            | {"bytes": times["measured"]["bytes"] | found.measured["bytes"]},
        },
    )
    return runner.with_claims(record, newsgroups)


def main() -> None:
    """Run all rows, or some, on every split; write the record, print claims and table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=("study", "arrival"), default="study")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER)
    parser.add_argument("--rows", nargs="+", choices=(newsgroups.PLAIN, *newsgroups.METHODS))
    options = parser.parse_args()
    if options.part == "arrival":
        return arrival(options.data)
    if options.rows:
        record = with_rows_again(tuple(options.rows), options.data)
    else:
        record = runner.run(newsgroups, "newsgroups", 0, False, track, data=options.data)
    records.write(options.out, record)
    for claim in record.claims:
        sign = "holds" if claim.held else "DOES NOT HOLD"
        print(f"{sign}: {claim.sentence} {claim.value:.4g} {claim.relation} {claim.bound:.4g}")
    for table in newsgroups.tables(record):
        for row in (table.header, *table.rows):
            print(" | ".join(str(cell) for cell in row))


if __name__ == "__main__":
    main()
