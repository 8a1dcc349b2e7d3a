"""Runs experiments one after the other and writes their records."""

import dataclasses
import pathlib
import time
import traceback
from types import ModuleType
from typing import Any

from .._errors import brief
from ..experiments import EXPERIMENTS, Unavailable, load
from ..experiments._results import Record
from .progress import Progress, Track
from .records import RecordError, provenance, read, write


def finished(out: pathlib.Path, name: str) -> Record | None:
    """The record of a finished experiment; None if it is missing or cannot be read."""
    try:
        return read(out / name)
    except RecordError:
        return None


def reproduce(
    names: list[str],
    seed: int,
    quick: bool,
    out: pathlib.Path,
    data: pathlib.Path | None = None,
    debug: bool = False,
    extra: dict[str, dict[str, Any]] | None = None,
) -> list[str]:
    """Run the experiments without a record; returns a sentence for each that failed.

    `extra` holds more arguments of an experiment's run, by its name.
    """
    todo = [n for n in names if finished(out, n) is None]
    failures = []
    with Progress({n: EXPERIMENTS[n].seconds[quick] for n in todo}) as progress:
        for name in [n for n in names if n not in todo]:
            progress.say(f"{name}: already there")
        for name in todo:
            track = progress.start(name)
            start = time.perf_counter()
            try:
                options = {"data": data} if EXPERIMENTS[name].data else {}
                options |= (extra or {}).get(name, {})
                record = run(load(name), name, seed, quick, track, **options)
                write(out, record)
            except Unavailable as error:
                failures.append(f"{name} was not run: {error}")
                progress.finish(name, "not run")
                continue
            except Exception as error:
                if debug:
                    traceback.print_exc()
                failures.append(f"{name} failed with {brief(error)}.")
                progress.finish(name, "failed")
                continue
            seconds = time.perf_counter() - start
            progress.finish(name, f"{seconds:.1f} s, {_verdict(record)}")
    return failures


def _verdict(record: Record) -> str:
    if not record.judged:
        return "too small to judge its claims"
    held = sum(c.held for c in record.claims)
    return f"{held} of {len(record.claims)} claims held"


def run(
    module: ModuleType,
    name: str,
    seed: int,
    quick: bool,
    track: Track,
    **options: Any,
) -> Record:
    """Run one experiment in double precision; returns its record."""
    from .._precision import double

    start = time.perf_counter()
    with double():
        results = module.run(seed, quick, track, **options)
        about = provenance()
    record = Record(
        name, seed, quick, results.settings, results.arrays, results.calls, (), about,
        {
            "wall": time.perf_counter() - start,
            "seconds": results.seconds,
            "measured": results.measured,
        },
    )  # fmt: skip
    return with_claims(record, module)


def with_claims(record: Record, module: ModuleType) -> Record:
    """The record with its claims, computed from its numbers."""
    return dataclasses.replace(record, claims=tuple(module.claims(record)))
