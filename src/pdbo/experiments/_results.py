"""What an experiment returns, the record kept of it and its claims, as plain data."""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

TOO_SMALL = ("digits", "newsgroups", "problems")
"""Experiments whose quick runs are too small to judge their claims by."""

Settings = dict[str, Any]
"""Values that JSON can hold, by name."""

Track = Callable[[Sequence[str]], Iterable[str]]
"""Goes through the names of an experiment's parts and moves the progress bar."""

_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence, the number that tests it and the bound this number has to meet.

    Attributes:
        sentence: what is claimed.
        source: the page or section it is from.
        measure: what the number is.
        value, relation, bound: the claim holds if `value relation bound` is true.
        quoted: whether the sentence is the source's word for word.
    """

    sentence: str
    source: str
    measure: str
    value: float
    relation: str
    bound: float
    quoted: bool = True

    @property
    def held(self) -> bool:
        """Whether the number meets the bound; NaN never does."""
        return bool(_RELATIONS[self.relation](self.value, self.bound))


@dataclasses.dataclass(frozen=True)
class Results:
    """What an experiment returns: its settings, arrays, oracle calls and seconds by method.

    `measured` holds whatever else differs from run to run, such as peak memory. Like the seconds it
    is kept apart from the rest, which is the same for the same seed.
    """

    settings: Settings
    arrays: dict[str, np.ndarray]
    calls: dict[str, dict[str, int]]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    measured: Settings = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Record:
    """A finished run, as read back from its folder."""

    name: str
    seed: int
    quick: bool
    settings: Settings
    arrays: dict[str, np.ndarray]
    calls: dict[str, dict[str, int]]
    claims: tuple[Claim, ...] = ()
    provenance: Settings = dataclasses.field(default_factory=dict)
    times: Settings = dataclasses.field(default_factory=dict)

    @property
    def judged(self) -> bool:
        """Whether the run is large enough to judge its claims by."""
        return not (self.quick and self.name in TOO_SMALL)

    def __getitem__(self, key: str) -> np.ndarray:
        return self.arrays[key]
