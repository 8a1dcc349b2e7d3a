"""The rows of a run: what is recorded with a certificate, and how the host puts rows together."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PyTree

from ._certificate import MAX_SLACK, measure
from ._driver import Recorder, Row
from ._errors import ProblemError, brief
from ._estimate import Estimate, estimate, values_only
from ._problem import Problem
from ._solution import State
from ._solver import Point
from ._verdict import judge

COLUMNS = [
    "step",
    "f",
    "g",
    "h",
    "multiplier",
    "stationarity",
    "feasibility",
    "complementarity",
    "inner_gap",
    "eps",
    "f_calls",
    "g_calls",
    "products",
]
_COUNTS = ("f_calls", "g_calls", "products")


def measured(problem: Problem, point: Point, every: int | Int[Array, ""]) -> Estimate:
    """The certificate of a point, with an effort that suits a record."""
    f, g = problem.outer(point.x, point.y), problem.inner(point.x, point.y)
    slack = jnp.zeros_like(g) if point.slack is None else jnp.asarray(point.slack, g.dtype)
    certificate = measure(
        problem,
        point.x,
        point.y,
        point.multiplier,
        None,
        jnp.maximum(slack, MAX_SLACK),
        problem.view.effort_at_record(every),
        neighbour=point.multiplier is None,
    )
    entries = {k: v for k, v in vars(certificate).items() if k in Estimate._fields}
    if point.multiplier is not None:
        entries["multiplier"] = point.multiplier
    return Estimate(f=f, g=g, h=jnp.asarray(certificate.inner_gap) - slack, **entries)


def estimated(problem: Problem, point: Point, every: int | Int[Array, ""]) -> Estimate:
    """An estimate of it; of data in batches only if the steps between two records cost more."""
    effort = problem.view.effort_of_estimate(every)
    if not problem.in_batches:
        return estimate(problem, point, effort)
    return lax.cond(
        effort > 0,
        lambda: estimate(problem, point, effort),
        lambda: values_only(problem, point),
    )


def unjudged(problem: Problem, point: Point, every: int | Int[Array, ""]) -> Estimate:
    """f and g alone."""
    return values_only(problem, point)


class Certified(Recorder):
    """Records f, g and the certificate, and ends a run whose certificate is within `tol`.

    Attributes:
        tol: the tolerance; a negative one is never met.
        every: the steps between two records: the certificate's effort is in proportion.
        observe: what the user wants recorded too.
        look: what is known of the certificate in a row: `measured`, `estimated` or nothing.
    """

    tol: ArrayLike
    every: int | Int[Array, ""]
    observe: Callable[[PyTree, PyTree], Row] | None = None
    look: Callable[[Problem, Point, int | Int[Array, ""]], Estimate] = eqx.field(
        static=True, default=measured
    )

    def record(self, problem: Problem, run: State) -> tuple[Row, Array]:
        """A row for the current point, and the verdict on it."""
        point = run.point
        found = self.look(problem, point, self.every)
        calls = run.solver.calls(run.solver_state)
        row = {"step": run.step, **found._asdict()}
        row |= {name: jnp.asarray(n) for name, n in zip(_COUNTS, calls, strict=True)}
        row |= self.observe(point.x, point.y) if self.observe else {}
        return row, judge(run, row, self.tol)


def columns(run: State, observe: Callable[[PyTree, PyTree], Row] | None) -> set[str]:
    """The columns of a history; a ProblemError unless `observe` returns a dict of new ones."""
    if observe is None:
        return set(COLUMNS)
    try:
        seen = eqx.filter_eval_shape(observe, run.point.x, run.point.y)
    except Exception as error:
        raise ProblemError(f"observe(x, y) cannot be evaluated: {brief(error)}.") from error
    if not isinstance(seen, dict) or not all(hasattr(v, "shape") for v in seen.values()):
        raise ProblemError("observe(x, y) must return a dict of arrays.")
    taken = sorted(set(seen) & set(COLUMNS))
    if taken:
        raise ProblemError(f"observe(x, y) returns {taken[0]!r}, which the history has already.")
    return {*COLUMNS, *seen}


class History:
    """The rows of a run on the host.

    Arguments:
        rows: those of the part of the run that a checkpoint holds.
    """

    def __init__(self, rows: dict[str, np.ndarray] | None = None):
        self.parts = [] if rows is None else [rows]

    def add(self, run: State, rows: Row, count: int) -> dict[str, np.ndarray]:
        """Append the first `count` rows of a chunk that began at `run`; returns them."""
        kept = {name: np.asarray(column)[:count] for name, column in rows.items()}
        self.parts.append(kept | self._exact_calls(run, kept))
        return self.parts[-1]

    def put(self, row: dict[str, np.ndarray]) -> None:
        """Append a row, in place of the last one if that is of the same step."""
        if self.parts and len(self.parts[-1]["step"]) and self.parts[-1]["step"][-1] == row["step"]:
            self.parts[-1] = {k: column[:-1] for k, column in self.parts[-1].items()}
        self.parts.append(row)

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """All of them, column by column."""
        return {k: np.concatenate([part[k] for part in self.parts]) for k in self.parts[0]}

    def _exact_calls(self, run: State, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The oracle calls in 64 bits: compiled code counts them modulo 2^32."""

        def wide(leaf: PyTree) -> PyTree:
            known = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.integer)
            return np.asarray(leaf, np.int64) if known else leaf

        last = next((part for part in reversed(self.parts) if len(part["step"])), None)
        if last is None:
            base = run.solver.calls(jax.tree.map(wide, run.solver_state))
        else:
            base = [last[name][-1] for name in _COUNTS]
        exact = {}
        for name, start in zip(_COUNTS, base, strict=True):
            start = np.asarray(start, np.int64)
            counts = np.concatenate([[start], rows[name].astype(np.int64)])
            exact[name] = start + np.cumsum(np.diff(counts) % 2**32)
        return exact
