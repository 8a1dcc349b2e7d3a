"""A solver's path, start by start, as one compiled program."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._driver import Recorder, Row, advance
from .._problem import Problem
from .._solution import State, launch
from ..solvers import Point, Solver


class Trace(NamedTuple):
    """The rows observed, the last point, the oracle calls of one start, the seconds of all.

    `memory` is what the compiled program holds at most, in bytes: its data, state and scratch.
    """

    rows: dict[str, np.ndarray]
    last: Point
    calls: dict[str, int]
    seconds: float
    memory: int


def point(problem: Problem, at: Point) -> dict[str, Any]:
    """The point itself; NaN where the method has no multiplier."""
    multiplier = jnp.nan if at.multiplier is None else at.multiplier
    return {"x": at.x, "y": at.y, "multiplier": jnp.asarray(multiplier, float)}


def trace(
    problem: Problem,
    solver: Solver,
    x0: Any,
    y0: Any,
    *,
    steps: int,
    every: int = 1,
    seed: int = 0,
    observe: Callable[[Problem, Point], dict[str, Any]] = point,
    batched_problem: bool = False,
) -> Trace:
    """Run a solver from many starts (the leading axis) and observe every so many steps.

    Arguments:
        problem, solver, x0, y0: the problem, the method and the starts.
        steps, every: how far, and how many steps lie between two rows; the start is row 0.
        seed: of the solver's key.
        observe: what a row holds.
        batched_problem: whether the arrays of the problem have the leading axis too.
    """
    axes = (None, eqx.if_array(0) if batched_problem else None, 0, 0, None)
    batch = eqx.filter_vmap(_path(steps, every, observe), in_axes=axes)
    return _timed(batch, [(solver, problem, x0, y0, jax.random.key(seed))])[0]


def trace_each(
    problems: Sequence[Problem],
    solver: Solver,
    starts: Sequence[tuple[Any, Any]],
    *,
    steps: int,
    every: int,
    seed: int,
    observe: Callable[[Problem, Point], dict[str, Any]],
) -> list[Trace]:
    """Problems of one shape too large for a batch, one after the other in one compiled program."""
    pairs = zip(problems, starts, strict=True)
    arguments = [(solver, problem, *start, jax.random.key(seed)) for problem, start in pairs]
    return _timed(_path(steps, every, observe), arguments)


class _Observed(Recorder):
    """A row is what `observe` sees of the point."""

    observe: Callable[[Problem, Point], dict[str, Any]]

    def record(self, problem: Problem, run: State) -> tuple[Row, Array]:
        _, running = super().record(problem, run)
        return jax.tree.map(jnp.asarray, self.observe(problem, run.point)), running


def _path(steps: int, every: int, observe: Callable) -> Callable:
    """The rows, the last point and the calls of one run."""
    rows = steps // every

    def path(solver: Solver, problem: Problem, x: Any, y: Any, key: Any) -> Any:
        run = launch(problem, x, y, solver, key)
        end = advance(problem, run, _Observed(observe), every * rows, every, True, rows=rows + 1)
        return end.rows, end.run.point, solver.calls(end.run.solver_state)

    return path


def _timed(function: Callable, runs: list[tuple]) -> list[Trace]:
    compiled: Any = eqx.filter_jit(function).lower(*runs[0]).compile()  # pyright: ignore[reportFunctionMemberAccess]
    found = compiled.compiled.memory_analysis()
    parts = (found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes)
    memory = sum(parts) - found.alias_size_in_bytes
    traces = []
    for arguments in runs:
        start = time.perf_counter()
        rows, last, calls = jax.block_until_ready(compiled(*arguments))
        seconds = time.perf_counter() - start
        counts = {k: int(np.max(v)) for k, v in calls._asdict().items()}
        found_rows = {k: np.asarray(v) for k, v in rows.items()}
        traces.append(Trace(found_rows, last, counts, seconds, memory))
    return traces
