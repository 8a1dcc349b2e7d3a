"""A solver's path, start by start, as one compiled scan."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._problem import Problem
from ..solvers import Point, Solver


class Trace(NamedTuple):
    """The rows observed, the last point, the oracle calls of one start and the seconds of all."""

    rows: dict[str, np.ndarray]
    last: Point
    calls: dict[str, int]
    seconds: float


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

    def one(problem: Problem, x: Any, y: Any, key: Any) -> Any:
        state = solver.init(problem, x, y, key)

        def row(state: Any, _: Any) -> Any:
            state = lax.fori_loop(0, every, lambda _, s: solver.step(problem, s), state)
            return state, observe(problem, solver.output(state))

        first = observe(problem, solver.output(state))
        state, rows = lax.scan(row, state, length=steps // every)
        rows = jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), first, rows)
        return rows, solver.output(state), solver.calls(state)

    axes = (eqx.if_array(0) if batched_problem else None, 0, 0, None)
    arguments = (problem, x0, y0, jax.random.key(seed))
    batch: Any = eqx.filter_jit(eqx.filter_vmap(one, in_axes=axes))
    compiled = batch.lower(*arguments).compile()
    start = time.perf_counter()
    rows, last, calls = jax.block_until_ready(compiled(*arguments))
    seconds = time.perf_counter() - start
    counts = {k: int(np.max(v)) for k, v in calls._asdict().items()}
    return Trace({k: np.asarray(v) for k, v in rows.items()}, last, counts, seconds)
