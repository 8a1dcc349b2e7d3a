"""How far all runs and the current one are: bars on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    import rich.progress

QUIET = 5.0  # seconds between two lines in a log, at least
NARROW = 80  # columns; a narrower terminal gets no bars

Track = Callable[[Sequence[str]], Iterator[str]]
"""Passes on the parts of a run, one by one, and shows how many are done."""


class Progress:
    """Shows an overall bar, and a bar for the current run.

    Arguments:
        weights: the names of the runs, with their approximate seconds.
        file: where to show it, standard error by default.
    """

    overall: "rich.progress.TaskID"  # set with `bars`
    current: "rich.progress.TaskID"  # set by `start`

    def __init__(self, weights: dict[str, float], file: TextIO | None = None):
        self.weights = weights
        self.file = sys.stderr if file is None else file
        self.began = self.said = time.monotonic()
        self.done = 0.0
        self.number = 0
        self.bars: rich.progress.Progress | None = None

    def __enter__(self) -> Self:
        if self.file.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            console = Console(file=self.file)
            bar = (BarColumn(complete_style="#0072B2", finished_style="#009E73"),)
            wide = console.width >= NARROW
            self.bars = Progress(
                TextColumn("{task.description:<28}" if wide else "{task.description}", "bold"),
                *(bar if wide else ()),
                TextColumn("{task.percentage:>3.0f} %"),
                *((TimeElapsedColumn(),) if wide else ()),
                TextColumn("{task.fields[left]}", style="dim"),
                console=console,
            )
            self.bars.start()
            total = sum(self.weights.values())
            self.overall = self.bars.add_task("all experiments", total=total, left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def start(self, name: str) -> Track:
        """Announce a run; returns the function that moves its bar."""
        self.number += 1
        started = time.monotonic()
        if self.bars is None:
            self.say(f"[{self.number}/{len(self.weights)}] {name} ...")
        else:
            self.current = self.bars.add_task(name, total=1.0, left="")

        def track(parts: Sequence[str]) -> Iterator[str]:
            for index, part in enumerate(parts):
                self._show(name, part, index / len(parts), started)
                yield part
            self._show(name, "done", 1.0, started)

        return track

    def finish(self, name: str, text: str) -> None:
        """Close a run with a line of text."""
        self.done += self.weights[name]
        if self.bars is not None:
            self.bars.remove_task(self.current)
            self.bars.update(self.overall, completed=self.done, left=self._left(self.done))
        self.say(f"[{self.number}/{len(self.weights)}] {name}: {text}")

    def say(self, line: str) -> None:
        """Print a line above the bars, or in the log."""
        if self.bars is None:
            print(line, file=self.file, flush=True)
        else:
            self.bars.console.print(line, markup=False, highlight=False)

    def _show(self, name: str, part: str, fraction: float, started: float) -> None:
        completed = self.done + self.weights[name] * fraction
        now = time.monotonic()
        if self.bars is not None:
            left = f"{(now - started) / fraction * (1 - fraction):.0f} s left" if fraction else ""
            self.bars.update(
                self.current, completed=fraction, description=f"{name}: {part}", left=left
            )
            self.bars.update(self.overall, completed=completed, left=self._left(completed))
        elif now - self.said >= QUIET:
            self.said = now
            share = 100 * completed / sum(self.weights.values())
            self.say(f"    {name}: {part} ({share:.0f} % of all, {self._left(completed)})")

    def _left(self, completed: float) -> str:
        if not completed:
            return "time left unknown"
        elapsed = time.monotonic() - self.began
        return f"{elapsed * (sum(self.weights.values()) / completed - 1):.0f} s left"
