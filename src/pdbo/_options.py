"""What a run is asked for beside its problem and its start."""

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PyTree

from ._checks import is_number, traced, whole_number
from ._data import DataView
from ._errors import ProblemError

TOL = 1e-4  # the tolerance of a certificate unless it says otherwise
STEPS = 10_000  # the most steps of a run unless it says otherwise
_MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Options:
    """The keyword arguments of `solve`, checked; what each means is said there."""

    steps: int | None = None
    tol: ArrayLike | None = 1e-4
    every: int | None = None
    key: Array | None = None
    throw: bool = True
    progress: bool = False
    observe: Callable[[PyTree, PyTree], dict[str, Array]] | None = None
    callback: Callable[[dict[str, Any]], object] | None = None
    seconds: float | None = None
    checkpoint: str | os.PathLike | None = None
    checkpoint_every: float = 60.0
    began: float = dataclasses.field(default_factory=time.monotonic)

    def __post_init__(self):
        steps = STEPS if self.steps is None else self.steps
        every = 1 if self.every is None else self.every
        for name, value in (("steps", steps), ("every", every)):
            whole_number(name, value)
            if value > _MOST:
                raise ProblemError(f"{name} must be at most {_MOST:,}, got {value:,}.")
        if self.callback is not None and not callable(self.callback):
            raise ProblemError(f"callback must be a function of a row, got {self.callback!r}.")
        seconds = 0 if self.seconds is None else self.seconds
        numbers = (
            ("tol", self.tolerance),
            ("seconds", seconds),
            ("checkpoint_every", self.checkpoint_every),
        )
        for name, value in numbers:
            if not traced(value) and not (is_number(value) and value >= 0):
                raise ProblemError(f"{name} must be a number >= 0, got {value!r}.")

    @property
    def may_stop(self) -> bool:
        """Whether the run may be stopped before its steps are used up."""
        return self.callback is not None or self.seconds is not None

    def stops(self, rows: dict[str, np.ndarray]) -> bool:
        """Whether the callback, called with each of the rows, or the time limit ends the run."""
        asked = False
        if self.callback is not None:
            for k in range(len(rows["step"])):
                row = {name: column[k] for name, column in rows.items()}
                said = self.callback(row)
                asked = asked or (isinstance(said, bool | np.bool_) and bool(said))
        return asked or self.late

    @property
    def late(self) -> bool:
        """Whether the time limit is over."""
        return self.seconds is not None and time.monotonic() - self.began > self.seconds

    @property
    def tolerance(self) -> ArrayLike:
        """The tolerance of the certificate, also if none is asked for during the run."""
        return TOL if self.tol is None else self.tol

    def spacing(self, view: DataView) -> int:
        """The steps between two records."""
        return view.every() if self.every is None else int(self.every)

    def budget(self, own: int | None, taken: Int[Array, ""] | int) -> int:
        """The most steps to take now, of a solver that may have a budget of its own."""
        if own is None:
            return STEPS if self.steps is None else int(self.steps)
        if not traced(taken):
            if int(taken) >= own:
                raise ProblemError(
                    f"the solver's own budget of {own} steps is used up: give it more rounds to "
                    "go on."
                )
            own -= int(taken)
        return own if self.steps is None else min(int(self.steps), own)
