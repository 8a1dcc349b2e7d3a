"""Problems with constraints that couple the two levels, from BOLIB.

Formulas, starts and listed values of 102 problems of Zhou, Zemkoho and Tin, BOLIB: Bilevel
Optimization LIBrary of Test Problems (2020), entered as data. Ten listed values are not the best:
`best` is the better one, and `note` says where it is attained. `python -m benchmarks.bolib` checks
the points it finds for such values by linear programming or SLSQP.
"""

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._problem import Problem

_FUNCTIONS = ("abs", "cos", "cosh", "exp", "log", "pi", "sin", "sinh", "sqrt", "tan", "tanh")


@dataclasses.dataclass(frozen=True)
class CoupledEntry:
    """A problem as formulas.

    Attributes:
        name: its name in BOLIB.
        f, g: the outer and inner function, in terms of x[0], x[1], ... and y[0], y[1], ...
        outer, inner: the rows of the constraints, each to be <= 0.
        x0, y0: a start.
        listed: the value of f that BOLIB lists, None if it lists none.
        best: the best known one, None if none is known or f is unbounded.
        note: where `best` is attained if it is not the listed value.
        proven: whether BOLIB calls its value optimal, rather than best known.
        tags: "linear", "nonlinear" or "simple", and "coupled inner", "coupled outer".
    """

    name: str
    f: str
    g: str
    outer: tuple[str, ...]
    inner: tuple[str, ...]
    x0: tuple[float, ...]
    y0: tuple[float, ...]
    listed: float | None
    best: float | None
    proven: bool
    tags: frozenset[str]
    note: str = ""

    @property
    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """The start as arrays."""
        return np.array(self.x0), np.array(self.y0)

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem; all bounds are rows of the constraints."""
        return Problem(
            _compiled(self.f),
            _compiled(self.g),
            outer_constraint=_rows(self.outer),
            inner_constraint=_rows(self.inner),
        )

    def evaluate(self, formula: str, x: np.ndarray, y: np.ndarray) -> float:
        """One of its formulas in NumPy."""
        names = {k: getattr(np, k) for k in _FUNCTIONS}
        return float(eval(formula, {"__builtins__": {}}, names | {"x": x, "y": y}))


def _compiled(formula: str) -> Callable:
    code = compile(formula, "<formula>", "eval")
    names = {k: getattr(jnp, k) for k in _FUNCTIONS}
    return lambda x, y: jnp.asarray(
        eval(code, {"__builtins__": {}}, names | {"x": x, "y": y}), x.dtype
    )


def _rows(formulas: tuple[str, ...]) -> Callable | None:
    if not formulas:
        return None
    rows = [_compiled(formula) for formula in formulas]
    return lambda x, y: jnp.stack([row(x, y) for row in rows])


@functools.cache
def _entries() -> dict[str, CoupledEntry]:
    text = (
        importlib.resources.files(__name__.rpartition(".")[0])
        .joinpath("bolib.json")
        .read_text("utf-8")
    )

    def entry(data: dict[str, Any]) -> CoupledEntry:
        data |= {k: tuple(data[k]) for k in ("outer", "inner", "x0", "y0")}
        data["tags"] = frozenset(data["tags"])
        return CoupledEntry(**data)

    return {data["name"]: entry(data) for data in json.loads(text)}


def names() -> tuple[str, ...]:
    """The names of all problems."""
    return tuple(_entries())


def get(name: str) -> CoupledEntry:
    """Returns the problem of that name."""
    if name not in _entries():
        raise ValueError(f"unknown problem {name!r}; pdbo.problems.bolib.names() lists them.")
    return _entries()[name]
