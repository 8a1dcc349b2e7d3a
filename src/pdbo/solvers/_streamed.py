"""Solvers on mini-batches: every step sees the next batch of f and the next of g."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Int, PyTree

from .._batches import Cursor, Drawn
from .._errors import ProblemError
from .._problem import Problem
from .._solver import Calls, Point, Solver, one_step

_OUTER, _INNER = 2**31 - 1, 2**31 - 2  # folded into the key, so that the two streams differ


class StreamedState(eqx.Module):
    """A solver's state and the positions in the two streams."""

    solver: PyTree
    outer: Cursor
    inner: Cursor


class Streamed(Solver):
    """A solver whose every step sees new batches in place of the data."""

    solver: Solver

    @property
    def name(self) -> str:
        """The solver's, with the words "on mini-batches"."""
        return f"{self.solver.name} on mini-batches"

    @property
    def at_rest(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The solver's."""
        return self.solver.at_rest

    @property
    def budget(self) -> int | None:
        """The solver's."""
        return self.solver.budget

    @property
    def prefers_double(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The solver's."""
        return self.solver.prefers_double

    @property
    def knows_its_end(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The solver's."""
        return self.solver.knows_its_end

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> StreamedState:
        """The solver's state, and both streams at their first epoch."""
        data = problem.data
        return StreamedState(
            self.solver.init(problem, x, y, key),
            data.outer.begin(jax.random.fold_in(key, _OUTER)),
            data.inner.begin(jax.random.fold_in(key, _INNER)),
        )

    def step(self, problem: Problem, state: StreamedState) -> StreamedState:
        """The solver's step on the next two batches."""
        if self.stages:
            return one_step(self, problem, state)
        return self._on_next(problem, state, self.solver.step)

    @property
    def stages(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The solver's."""
        return self.solver.stages

    def stage(self, state: StreamedState) -> Int[Array, ""]:
        """The solver's."""
        return self.solver.stage(state.solver)

    def walk(self, problem: Problem, state: StreamedState, stage: int) -> StreamedState:
        """The solver's step inside of a round, on the next two batches."""
        return self._on_next(problem, state, lambda p, s: self.solver.walk(p, s, stage))

    def due(self, state: StreamedState) -> Bool[Array, ""]:
        """The solver's."""
        return self.solver.due(state.solver)

    def turn(self, problem: Problem, state: StreamedState) -> StreamedState:
        """The solver's; the batches that it sees are those of the next step too."""
        seen = self._on_next(problem, state, self.solver.turn)
        return StreamedState(seen.solver, state.outer, state.inner)

    def _on_next(
        self, problem: Problem, state: StreamedState, call: Callable[[Problem, PyTree], PyTree]
    ) -> StreamedState:
        """What a function of the solver makes of the next two batches."""
        data = problem.data
        if self.solver.fixed_batches:
            outer, block_f, outer_cursor = data.outer.draw_block(state.outer)
            inner, block_g, inner_cursor = data.inner.draw_block(state.inner)
            drawn = Drawn(outer, inner, (block_f, block_g), data)
        else:
            outer, outer_cursor = data.outer.draw(state.outer)
            inner, inner_cursor = data.inner.draw(state.inner)
            drawn = Drawn(outer, inner, None, data)
        seen = eqx.tree_at(lambda p: p.data, problem, drawn)
        return StreamedState(call(seen, state.solver), outer_cursor, inner_cursor)

    def output(self, state: StreamedState) -> Point:
        """The solver's."""
        return self.solver.output(state.solver)

    def settled(self, state: StreamedState) -> bool | Bool[Array, ""]:
        """The solver's."""
        return self.solver.settled(state.solver)

    def calls(self, state: StreamedState) -> Calls:
        """The solver's, each a gradient of one batch."""
        return self.solver.calls(state.solver)


def streamed(problem: Problem, solver: Solver) -> Solver:
    """The solver as this problem's data need it; a ProblemError if it cannot run on batches."""
    solver = solver.solver if isinstance(solver, Streamed) else solver
    if not problem.in_batches:
        return solver
    if solver.batch_refusal:
        raise ProblemError(
            f"{solver.name} cannot run on mini-batches: {solver.batch_refusal}; choose another "
            "solver, such as pdbo.PDBO(...), or give the data as they are, without Batches."
        )
    return Streamed(solver)
