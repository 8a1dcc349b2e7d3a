"""What an experiment returns, what is kept of it and what it claims, as plain data."""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence, the number that tests it and the bound it has to meet.

    Attributes:
        sentence: as the source has it.
        source: the page or section it is from.
        measure: what the number is.
        value, relation, bound: the claim is held if `value relation bound` is true.
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
        """Whether the number meets the bound; one that is not a number never does."""
        return bool(_RELATIONS[self.relation](self.value, self.bound))


@dataclasses.dataclass(frozen=True)
class Results:
    """What an experiment returns: its settings, arrays, oracle calls and seconds by method.

    `measured` holds whatever else differs from run to run, such as peak memory; both are kept with
    the times, apart from the record that a seed repeats.
    """

    settings: dict[str, Any]
    arrays: dict[str, np.ndarray]
    calls: dict[str, dict[str, int]]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Record:
    """A finished run, as read back from its folder."""

    name: str
    seed: int
    quick: bool
    settings: dict[str, Any]
    arrays: dict[str, np.ndarray]
    calls: dict[str, dict[str, int]]
    claims: tuple[Claim, ...] = ()
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)
    times: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __getitem__(self, key: str) -> np.ndarray:
        return self.arrays[key]
