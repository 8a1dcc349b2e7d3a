"""Solvers side by side: one start, one certificate, one budget."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._batches import reading
from ._checks import whole_number
from ._driver import Row, begin, chosen, take_steps_jit
from ._errors import RESULTS, ProblemError
from ._history import Certified
from ._options import STEPS, TOL, Options
from ._portfolio import Portfolio, applies, begin_exact
from ._precision import Start, session
from ._problem import Problem, check_problem, refuse_constraints
from ._resolve import answered
from ._solution import State
from ._solver import Solver
from ._verdict import final

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class Comparison(eqx.Module):
    """What `compare` measured.

    Attributes:
        table: a dict of equally long arrays, one row per solver and record; `to_pandas()` makes a
            data frame of it: solver, step, calls (all oracle calls so far), seconds (of
            the solver alone, compilation and certificates left out) and the columns of a history,
            with the certificate computed in full in every row.
        results: how each solver ended, by name: success if the certificate in its last row is
            within 1e-4, the tolerance of `solve`.
        f_resolved: f where each solver ended, at the inner problem solved again from its y: what
            the follower really answers.
    """

    table: dict[str, np.ndarray]
    results: dict[str, RESULTS]
    f_resolved: dict[str, float]

    def final(self) -> dict[str, np.ndarray]:
        """The last row of every solver that has one."""
        where = [np.flatnonzero(self.table["solver"] == name) for name in self.results]
        last = np.array([rows[-1] for rows in where if len(rows)], int)
        return {k: v[last] for k, v in self.table.items()}

    def plot(self, axis: str = "step", curves: Sequence[str] | None = None) -> "Figure":
        """A figure with a panel per curve against "step", "calls" or "seconds" (matplotlib)."""
        from ._show import plot

        by_name = {name: self.table["solver"] == name for name in self.results}
        rows = {n: {k: v[i] for k, v in self.table.items()} for n, i in by_name.items()}
        return plot(rows, axis, curves)

    def to_pandas(self) -> "pandas.DataFrame":
        """The table as a data frame (pandas)."""
        from ._show import frame

        return frame(self.table)

    def __str__(self) -> str:
        from ._show import comparison_columns, table

        return table(comparison_columns(self))

    def _repr_html_(self) -> str:
        from ._show import comparison_columns, html_table

        return html_table(comparison_columns(self))


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
            those of the compiled steps alone. No row lies beyond it.
        every: the steps between two rows.
        optimum: a known (x, y), for the columns x_error and y_error.
        key: a PRNG key for solvers that draw random numbers.
    """
    unit, most = _budget(budget)
    whole_number("every", every)
    check_problem(problem)
    refuse_constraints(problem, "compare")
    if optimum is not None and jax.tree.structure(optimum) != jax.tree.structure((x0, y0)):
        raise ProblemError("optimum must be a pair (x, y) shaped like the start.")
    problem, x0, y0 = problem.entered(x0, y0)
    optimum = None if optimum is None else problem.arrays(*optimum)
    tables, results, resolved, refused = [], {}, {}, []
    for name, solver in _named(solvers).items():
        try:
            with session(Start(problem, x0, y0), chosen(solver)) as start, reading(start.problem):
                found = _measure_exact(start, chosen(solver), unit, most, int(every), optimum)
                if found is None:
                    run = begin(start, solver, key)
                    found = _measure(start.problem, run, unit, most, int(every), optimum)
                rows, code, end = found
                resolved[name] = _resolved(start.problem, end)
        except ProblemError as error:  # a set the method does not cover: the others go on
            results[name] = RESULTS.bad_problem
            refused.append(error)
            continue
        met = len(rows["eps"]) > 0 and bool(rows["eps"][-1] <= TOL)
        results[name] = RESULTS(int(final(code, met)))
        tables.append({"solver": np.full(len(rows["step"]), name), **rows})
    if not tables:
        raise refused[0]
    table = {k: np.concatenate([t[k] for t in tables]) for k in tables[0]}
    return Comparison(table, results, resolved)


Measured: TypeAlias = tuple[dict[str, np.ndarray], int, State | None]
"""The rows of a solver, the code it ended with and its state at the last row."""


def _resolved(problem: Problem, end: State | None) -> float:
    """f at what the follower answers where a solver ended; NaN if it never was anywhere."""
    return float("nan") if end is None else float(answered(problem, end.point.x, end.point.y).f)


def _measure_exact(
    start: Start,
    solver: Solver,
    unit: str,
    most: float,
    every: int,
    optimum: tuple[PyTree, PyTree] | None,
) -> Measured | None:
    """The rows of the exact path, if that is how `solve` would solve the problem."""
    if not applies(start, solver):
        return None
    limit = int(most) if unit == "steps" else STEPS
    options = Options(steps=limit, every=every, observe=_Errors(optimum))
    Portfolio(start, None, options).walk(begin_exact(start, solver), limit)  # compiled here
    path = Portfolio(start, None, options)
    found = path.walk(begin_exact(start, solver), limit)
    if not (solver.on_host or path.alone(found)):
        return None
    rows = path.history.rows
    rows["calls"] = rows["f_calls"] + rows["g_calls"] + rows["products"]
    rows["seconds"] = np.array([path.seconds.get(int(step), 0.0) for step in rows["step"]])
    spent = {"steps": rows["step"], "calls": rows["calls"], "seconds": rows["seconds"]}[unit]
    kept = {k: v[spent <= most] for k, v in rows.items()}
    return kept, int(RESULTS.settled), found.run


def _measure(
    problem: Problem,
    run: State,
    unit: str,
    most: float,
    every: int,
    optimum: tuple[PyTree, PyTree] | None,
) -> Measured:
    """The rows of one solver."""
    recorder = Certified(-1.0, jnp.asarray(every, jnp.int32), _Errors(optimum))
    limit = min(most if unit == "steps" else np.inf, run.solver.budget or np.inf)
    jax.block_until_ready(take_steps_jit(problem, run, jnp.zeros((), jnp.int32)))  # compiled here
    rows: list[dict] = []
    seconds, block, count = 0.0, every, every
    before: State | None = None  # the state at the last row but one
    while True:
        row, code = jax.device_get(_row(recorder, problem, run))
        calls = row["f_calls"] + row["g_calls"] + row["products"]
        spent = {"steps": row["step"], "calls": calls, "seconds": seconds}
        rows.append({**row, "calls": calls, "seconds": seconds})
        if int(code) == RESULTS.nonfinite:
            kept, end = rows[:-1], before
            break
        if spent[unit] > most:
            rows.pop()
            if unit == "seconds" or count == 1:
                kept, end = rows, before
                break
            assert before is not None  # nothing is spent at the start
            run, block = before, count // 2  # nearer to the budget in smaller blocks
        elif int(code) > RESULTS.max_steps or spent[unit] == most or row["step"] >= limit:
            kept, end = rows, run
            break
        count = int(min(block, limit - int(run.step)))
        before = run
        start = time.perf_counter()
        run = jax.block_until_ready(take_steps_jit(problem, run, jnp.asarray(count, jnp.int32)))
        seconds += time.perf_counter() - start
    table = {k: np.asarray([r[k] for r in kept]).reshape(len(kept), *np.shape(v))
             for k, v in rows[0].items()}  # fmt: skip
    return table, int(code), end


def _budget(budget: int | Mapping[str, float]) -> tuple[str, float]:
    if isinstance(budget, Mapping):
        if len(budget) != 1 or next(iter(budget)) not in ("steps", "calls", "seconds"):
            got = ", ".join(map(str, budget))
            raise ProblemError(f"budget must be one of steps, calls and seconds, got {got}.")
        ((unit, most),) = budget.items()
    else:
        unit, most = "steps", budget
    kinds = (int, np.integer) if unit != "seconds" else (int, float, np.integer, np.floating)
    if isinstance(most, bool) or not isinstance(most, kinds) or not 0 < most < np.inf:
        whole = "" if unit == "seconds" else "whole "
        raise ProblemError(f"budget must be a positive {whole}number of {unit}, got {most!r}.")
    return unit, float(most)


def _named(solvers: object) -> dict[str, Solver]:
    if isinstance(solvers, Mapping):
        named = dict(solvers)
    elif isinstance(solvers, Sequence) and not isinstance(solvers, str):
        named = {type(s).__name__: s for s in solvers}
        if len(named) != len(solvers):
            raise ProblemError("two solvers are of one class: name them, {'a': ..., 'b': ...}.")
    else:
        raise ProblemError(f"solvers must be a dict or a list, got {type(solvers).__name__}.")
    if not named:
        raise ProblemError("solvers must hold at least one solver.")
    return named


@eqx.filter_jit
def _row(recorder: Certified, problem: Problem, run: State) -> tuple[Row, Array]:
    return recorder.record(problem, run)


class _Errors(eqx.Module):
    """How far a point is from the optimum, if one is known."""

    optimum: tuple[PyTree, PyTree] | None

    def __call__(self, x: PyTree, y: PyTree) -> dict[str, Array]:
        if self.optimum is None:
            return {}
        at = jax.tree.map(lambda a, b: jnp.asarray(b, a.dtype), (x, y), self.optimum)
        return {
            "x_error": trees.length(trees.sub(x, at[0])),
            "y_error": trees.length(trees.sub(y, at[1])),
        }
