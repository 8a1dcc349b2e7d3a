"""A solver's path, start by start, as one compiled program."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._driver import Recorder, Row, advance
from .._problem import Problem
from .._solution import State, launch
from .._solver import Calls
from ..solvers import Point, Solver

Observe = Callable[[Problem, Point], dict[str, Array]]
"""What a row holds: arrays by name, computed from the point."""


class Trace(NamedTuple):
    """What a run leaves behind.

    Attributes:
        rows: the arrays observed, by name.
        last: the last point.
        calls: the oracle calls of one start.
        seconds: the time of the compiled steps, all starts together.
        memory: bytes that the compiled program holds at most: data, state and scratch.
    """

    rows: dict[str, np.ndarray]
    last: Point
    calls: dict[str, int]
    seconds: float
    memory: int


def point(problem: Problem, at: Point) -> dict[str, Array]:
    """The point itself; the multiplier is NaN if the method has none."""
    multiplier = jnp.nan if at.multiplier is None else at.multiplier
    return {"x": at.x, "y": at.y, "multiplier": jnp.asarray(multiplier, float)}


def trace(
    problem: Problem,
    solver: Solver,
    x0: PyTree,
    y0: PyTree,
    *,
    steps: int,
    every: int = 1,
    seed: int = 0,
    observe: Observe = point,
    batched_problem: bool = False,
) -> Trace:
    """Run a solver from many starts (the leading axis) and observe it every `every` steps.

    Arguments:
        problem, solver, x0, y0: the problem, the method and the starts.
        steps, every: how many steps it takes, and how many of them per row; the start is row 0.
        seed: of the solver's key.
        observe: what a row holds.
        batched_problem: whether the arrays of the problem have the leading axis as well.
    """
    batch = _over_starts(_path(steps, every, observe), batched_problem)
    return _timed(batch, [(solver, problem, x0, y0, jax.random.key(seed))])[0]


def sweep(
    problem: Problem,
    solvers: Sequence[Solver],
    x0: PyTree,
    y0: PyTree,
    *,
    steps: int,
    every: int = 1,
    seed: int = 0,
    observe: Observe = point,
    batched_problem: bool = False,
) -> Trace:
    """`trace` for solvers that differ in numbers only; rows begin with an axis for the solvers."""
    numbers, rest = zip(*(eqx.partition(s, eqx.is_array) for s in solvers), strict=True)
    many = eqx.combine(jax.tree.map(lambda *v: jnp.stack(v), *numbers), rest[0])
    batch = _over_starts(_path(steps, every, observe), batched_problem)
    batch = eqx.filter_vmap(batch, in_axes=(eqx.if_array(0), None, None, None, None))
    return _timed(batch, [(many, problem, x0, y0, jax.random.key(seed))])[0]


def _over_starts(path: Callable[..., "_Path"], batched_problem: bool) -> Callable[..., "_Path"]:
    axes = (None, eqx.if_array(0) if batched_problem else None, 0, 0, None)
    return eqx.filter_vmap(path, in_axes=axes)


def trace_each(
    problems: Sequence[Problem],
    solver: Solver,
    starts: Sequence[tuple[PyTree, PyTree]],
    *,
    steps: int,
    every: int,
    seed: int,
    observe: Observe,
) -> list[Trace]:
    """Run a solver on several large problems of one shape, one by one in one compiled program."""
    pairs = zip(problems, starts, strict=True)
    arguments = [(solver, problem, *start, jax.random.key(seed)) for problem, start in pairs]
    return _timed(_path(steps, every, observe), arguments)


_Path = tuple[dict[str, Array], Point, Calls]


class _Observed(Recorder):
    """A recorder whose rows are what `observe` returns."""

    observe: Observe

    def record(self, problem: Problem, run: State) -> tuple[Row, Array]:
        _, running = super().record(problem, run)
        return jax.tree.map(jnp.asarray, self.observe(problem, run.point)), running


def _path(steps: int, every: int, observe: Observe) -> Callable[..., _Path]:
    """A function that runs a solver and returns the rows, the last point and the calls."""
    rows = steps // every

    def path(solver: Solver, problem: Problem, x: PyTree, y: PyTree, key: Array) -> _Path:
        run = launch(problem, x, y, solver, key)
        end = advance(problem, run, _Observed(observe), every * rows, every, True, rows=rows + 1)
        return end.rows, end.run.point, solver.calls(end.run.solver_state)

    return path


def _timed(function: Callable[..., _Path], runs: list[tuple]) -> list[Trace]:
    """Compile once, then run and time each tuple of arguments."""
    compiled = eqx.filter_jit(function).lower(*runs[0]).compile()  # pyright: ignore[reportFunctionMemberAccess]
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
