"""What a run returns, and what it takes to carry on."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from . import _trees as trees
from ._checks import traced
from ._errors import RESULTS
from ._problem import Problem
from ._solver import Point, Solver

if TYPE_CHECKING:
    from ._certificate import Certificate


Number = Array | np.ndarray | float


class State(eqx.Module):
    """Where a run stands: hand it to `solve(problem, state=...)` to carry on, bit for bit.

    Attributes:
        solver: the solver, so that it need not be named again.
        solver_state: the solver's own state.
        step: how many steps it has taken since its start.
        scale: the size of its start, against which running away is judged.
    """

    solver: Solver
    solver_state: PyTree
    step: Int[Array, ""]
    scale: Float[Array, ""]

    @property
    def point(self) -> Point:
        """What the solver would return now."""
        return self.solver.output(self.solver_state)


def launch(problem: Problem, x: PyTree, y: PyTree, solver: Solver, key: Array) -> State:
    """The state before the first step."""
    scale = 1 + trees.max_abs((x, y))
    return State(solver, solver.init(problem, x, y, key), jnp.zeros((), jnp.int32), scale)


class Solution(eqx.Module):
    """The outcome of `solve`.

    Attributes:
        x, y: the point returned. What was computed in double precision is returned in double: as
            NumPy arrays in a session without 64-bit types.
        multiplier: the solver's multiplier of the value-function constraint; the certificate's
            if the method has none.
        f, g: the outer and inner values there.
        certificate: computed at exactly (x, y), in double precision outside of jit and vmap.
        code: the result code as an integer array.
        history: a dict of arrays with one row per recorded step: step, f, g, h, multiplier,
            stationarity, feasibility, complementarity, inner_gap, eps, the oracle calls so far
            (f_calls, g_calls, products) and whatever `observe` returned. Under jit and vmap the
            arrays have room for every row; unused ones hold step -1.
        state: where the run stands.
        steps: the steps taken since the start of the run, restarts included.
        note: what more is known of a failure, in a sentence.
    """

    x: PyTree
    y: PyTree
    multiplier: Number
    f: Number
    g: Number
    certificate: "Certificate | None"
    code: Int[Array | np.ndarray, "*batch"] | np.int32
    history: dict[str, PyTree]
    state: State | None
    steps: int | Int[Array, "*batch"]
    note: str = eqx.field(static=True, default="")

    @property
    def result(self) -> Any:
        """The code as a member of `pdbo.RESULTS`; an integer array under jit and vmap."""
        if traced(self.code) or np.ndim(self.code) > 0:
            return self.code
        return RESULTS(int(self.code))

    @property
    def ok(self) -> Any:
        """True only if the certificate at the returned point is within the tolerance."""
        held = self.code == RESULTS.success
        return held if traced(held) or np.ndim(held) > 0 else bool(held)

    @property
    def message(self) -> str:
        """What happened, in one or two sentences."""
        result = self.result
        if not isinstance(result, RESULTS):
            return "a batch of runs: see code"
        if result is RESULTS.bad_problem:
            return self.note
        failed = result in (RESULTS.nonfinite, RESULTS.diverged, RESULTS.multiplier_diverged)
        at = int(self.steps) + (result is RESULTS.nonfinite)
        where = f"Failed at iteration {at}" if failed else f"After {at} iterations"
        return f"{where}: {self.note} {result.text}" if self.note else f"{where}: {result.text}"

    def __str__(self) -> str:
        if not isinstance(self.result, RESULTS):
            return f"Solution(batch of {np.shape(self.code)})"
        return (
            f"{self.message}\nf = {float(self.f):.6g}, g = {float(self.g):.6g}\n{self.certificate}"
        )
