"""Solvers side by side: one start, one certificate, one budget."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._errors import RESULTS, ProblemError
from ._problem import Problem
from ._solution import State
from ._solve import _begin, _judge, _record
from .solvers._base import Solver

AXES = ("step", "calls", "seconds")
CURVES = ("f", "inner_gap", "stationarity", "x_error", "y_error")


class Comparison(eqx.Module):
    """What `compare` measured.

    Attributes:
        table: a dict of equally long arrays, one row per solver and record, ready for
            `pandas.DataFrame(table)`: solver, step, calls (all oracle calls so far), seconds (of
            the solver alone, compilation and certificates left out) and the columns of a history.
        results: how each solver ended, by name.
    """

    table: dict[str, np.ndarray]
    results: dict[str, RESULTS]

    def final(self) -> dict[str, np.ndarray]:
        """The last row of every solver."""
        names = self.table["solver"]
        last = [np.flatnonzero(names == name)[-1] for name in self.results]
        return {k: v[last] for k, v in self.table.items()}

    def plot(self, axis: str = "step", curves: Sequence[str] | None = None) -> Any:
        """A figure with a panel per curve against "step", "calls" or "seconds" (matplotlib)."""
        if axis not in AXES:
            raise ProblemError(f"axis must be one of {', '.join(AXES)}, got {axis!r}.")
        curves = [c for c in CURVES if c in self.table] if curves is None else curves
        unknown = [c for c in curves if c not in self.table]
        if unknown:
            raise ProblemError(f"the table has no column {unknown[0]!r}.")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.4 * len(curves), 3.0), layout="constrained")
        panels = figure.subplots(1, len(curves), squeeze=False)[0]
        for panel, curve in zip(panels, curves, strict=True):
            for name in self.results:
                rows = self.table["solver"] == name
                panel.plot(self.table[axis][rows], self.table[curve][rows], label=name)
            panel.set(title=curve, xlabel=axis, yscale="symlog" if curve == "f" else "log")
            if curve == "f":
                panel.set_yscale("symlog", linthresh=1e-6)
        panels[0].legend(fontsize="small")
        return figure


def compare(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    solvers: Mapping[str, Solver] | Sequence[Solver],
    *,
    budget: int | Mapping[str, float] = 1000,
    every: int = 10,
    optimum: tuple[PyTree, PyTree] | None = None,
    key: Array | None = None,
) -> Comparison:
    """Run solvers from one start within one budget and tabulate how they do.

    Arguments:
        problem, x0, y0: the problem and the start all of them get.
        solvers: by name, or a list that is named after its classes.
        budget: a number of steps, or one of {"steps": n}, {"calls": n}, {"seconds": s}: calls are
            gradients of f and g and Hessian- and Jacobian-vector products together, seconds are
            those of the compiled steps alone.
        every: the steps between two rows.
        optimum: a known (x, y), for the columns x_error and y_error.
        key: a PRNG key for solvers that draw random numbers.
    """
    unit, most = _budget(budget)
    table: dict[str, list[Any]] = {}
    results = {}
    for name, solver in _named(solvers).items():
        run = _begin(problem, x0, y0, solver, None, key)
        advance, record = _compiled(problem, run, every, optimum)
        seconds = 0.0
        while True:
            row, code = jax.device_get(record(problem, run))
            code = int(code)
            spent = {
                "steps": int(row["step"]),
                "calls": int(row["f_calls"] + row["g_calls"] + row["products"]),
                "seconds": seconds,
            }
            row = {"solver": name, **row, "calls": spent["calls"], "seconds": seconds}
            if code != RESULTS.nonfinite:
                for k, v in row.items():
                    table.setdefault(k, []).append(v)
            if code > RESULTS.max_steps or spent[unit] >= most:
                break
            count = min(every, int(most) - spent["steps"]) if unit == "steps" else every
            start = time.perf_counter()
            run = jax.block_until_ready(advance(problem, run, jnp.asarray(count, jnp.int32)))
            seconds += time.perf_counter() - start
        results[name] = RESULTS.max_steps if code < RESULTS.max_steps else RESULTS(code)
    return Comparison({k: np.asarray(v) for k, v in table.items()}, results)


def _budget(budget: Any) -> tuple[str, float]:
    if isinstance(budget, Mapping):
        if len(budget) == 1 and next(iter(budget)) in ("steps", "calls", "seconds"):
            ((unit, most),) = budget.items()
        else:
            got = ", ".join(map(str, budget))
            raise ProblemError(f"budget must be one of steps, calls and seconds, got {got}.")
    else:
        unit, most = "steps", budget
    if isinstance(most, bool) or not isinstance(most, int | float) or not 0 < most < np.inf:
        raise ProblemError(f"budget must be a positive number of {unit}, got {most!r}.")
    return unit, most


def _named(solvers: Any) -> dict[str, Solver]:
    if isinstance(solvers, Mapping):
        named = dict(solvers)
    else:
        named = {type(s).__name__: s for s in solvers}
        if len(named) != len(solvers):
            raise ProblemError("two solvers are of one class: name them, {'a': ..., 'b': ...}.")
    if not named:
        raise ProblemError("solvers must hold at least one solver.")
    return named


def _compiled(problem: Problem, run: State, every: int, optimum: Any) -> tuple[Any, Any]:
    """Compiled steps and records; both are called once so that no timing holds a compilation."""

    def errors(x: PyTree, y: PyTree) -> dict[str, Array]:
        if optimum is None:
            return {}
        at = jax.tree.map(lambda a, b: jnp.asarray(b, a.dtype), (x, y), optimum)
        return {
            "x_error": trees.length(trees.sub(x, at[0])),
            "y_error": trees.length(trees.sub(y, at[1])),
        }

    @eqx.filter_jit
    def advance(problem: Problem, run: State, count: Array) -> State:
        step = lambda _, inner: run.solver.step(problem, inner)  # noqa: E731
        inner = lax.fori_loop(0, count, step, run.inner)
        return State(run.solver, inner, run.step + count, run.scale)

    @eqx.filter_jit
    def record(problem: Problem, run: State) -> tuple[dict[str, Array], Array]:
        row = _record(problem, run, jnp.asarray(every), errors)
        return row, _judge(run, row, -1.0)

    jax.block_until_ready(advance(problem, run, jnp.zeros((), jnp.int32)))
    return advance, record
