"""A live line on standard error, fed between compiled chunks."""

import shutil
import sys
import time
from typing import Self, TextIO

import numpy as np

REFRESH = 0.25  # seconds between two updates of the line on a terminal


class Pace:
    """How many records a chunk should hold so that it lasts about `seconds`.

    If `seconds` is None, it holds as many as it has room for.
    """

    def __init__(self, seconds: float | None):
        self.seconds = seconds
        self.asked = time.monotonic()
        self.count = 1

    def records(self, most: int) -> int:
        """The records of the next chunk."""
        if self.seconds is None:
            return most
        now = time.monotonic()
        elapsed, self.asked = now - self.asked, now
        if elapsed < self.seconds / 2:
            self.count = min(2 * self.count, most)
        elif elapsed > 2 * self.seconds:
            self.count = max(self.count // 2, 1)
        return self.count


class Progress:
    """Shows step, f, h, multiplier and eps during a run; does nothing unless enabled.

    On a terminal one line is rewritten; otherwise a plain line is written every ten seconds. It
    says "compiling" up to the first rows, and the time left is estimated from there on.
    """

    def __init__(
        self, start: int, until: int, tol: float, enabled: bool, file: TextIO | None = None
    ):
        self.start, self.until, self.tol, self.enabled = start, until, tol, enabled
        self.file = sys.stderr if file is None else file
        self.live = self.file.isatty()
        self.began = self.shown = time.monotonic()
        self.first: tuple[float, float] | None = None  # when the first rows came, and their step
        self.last: dict[str, float] | None = None

    def __enter__(self) -> Self:
        if self.enabled:
            self._write("compiling ...", end="" if self.live else "\n")
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            self._show(end="\n") if self.last is not None else self._write("", end="\n")

    def update(self, rows: dict[str, np.ndarray]) -> None:
        """Record the rows of a chunk and refresh the line if it is due."""
        if not self.enabled or not len(rows["step"]):
            return
        self.last = {k: float(rows[k][-1]) for k in ("step", "f", "h", "multiplier", "eps")}
        now = time.monotonic()
        self.first = self.first or (now, self.last["step"])
        if now - self.shown >= (REFRESH if self.live else 10.0):
            self.shown = now
            self._show(end="" if self.live else "\n")

    def _show(self, end: str) -> None:
        assert self.last is not None
        done = (self.last["step"] - self.start) / max(self.until - self.start, 1)
        now = time.monotonic()
        bar = "█" * round(20 * done) + "░" * (20 - round(20 * done))
        text = (
            f"{bar} step {self.last['step']:,.0f}/{self.until:,}  f {self.last['f']:.5g}  "
            f"h {self.last['h']:.2e}  multiplier {self.last['multiplier']:.3g}  "
            f"eps {self.last['eps']:.2e} (tol {self.tol:.0e})  "
            f"{now - self.began:.0f} s{self._left(now)}"
        )
        room = shutil.get_terminal_size().columns - 1
        self._write(text if not self.live or len(text) <= room else text[len(bar) + 1 :], end)

    def _left(self, now: float) -> str:
        """The time left at the pace since the first rows, which had to wait for compilation."""
        assert self.first is not None and self.last is not None
        since, step = now - self.first[0], self.last["step"] - self.first[1]
        if step <= 0:
            return ""
        return f", at most {since / step * (self.until - self.last['step']):.0f} s left"

    def _write(self, text: str, end: str) -> None:
        if self.live:  # a line that wraps could not be rewritten
            text = "\r\x1b[2K" + text[: shutil.get_terminal_size().columns - 1]
        self.file.write(text + end)
        self.file.flush()
