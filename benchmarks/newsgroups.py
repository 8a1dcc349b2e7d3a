"""The full study of 20 Newsgroups, best on a GPU: its record is kept, and the README's table.

Run as `python -m benchmarks.newsgroups [--data FOLDER] [--out FOLDER]`, the data being found as
`pdbo reproduce newsgroups` finds it; then `python -m benchmarks.readme`.
"""

import argparse
import pathlib
import time
from collections.abc import Iterable, Iterator

from pdbo.experiments import _record, _runner, newsgroups

from .record import FOLDER


def track(names: Iterable[str]) -> Iterator[str]:
    """Say which row is being measured."""
    start = time.perf_counter()
    for name in names:
        print(f"{time.perf_counter() - start:5.0f} s  {name}", flush=True)
        yield name


def main() -> None:
    """Run every row on every split, keep the record, print claims and table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER)
    options = parser.parse_args()
    record = _runner.run(newsgroups, "newsgroups", 0, False, track, data=options.data)
    _record.write(options.out, record)
    for claim in record.claims:
        sign = "held" if claim.held else "NOT HELD"
        print(f"{sign}: {claim.sentence} {claim.value:.4g} {claim.relation} {claim.bound:.4g}")
    for table in newsgroups.tables(record):
        for row in (table.header, *table.rows):
            print(" | ".join(str(cell) for cell in row))


if __name__ == "__main__":
    main()
