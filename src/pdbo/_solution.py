"""What a run returns, and what it takes to carry on."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from . import _trees as trees
from ._checks import kind, traced
from ._errors import RESULTS, ProblemError
from ._problem import Problem
from ._solver import Point, Solver

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from ._certificate import Certificate


Number = Array | np.ndarray | float
T = TypeVar("T")
MANY = 1_000_000  # numbers in x, y and data: with more, printing computes nothing


class Record(eqx.Module):
    """A module whose methods are no pytrees, so that looking at its fields costs little."""

    if not TYPE_CHECKING:
        __getattribute__ = object.__getattribute__


class State(Record):
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
        found = self.solver.output(self.solver_state)
        if not isinstance(found, Point):
            name, got = type(self.solver).__name__, kind(found)
            raise ProblemError(f"{name}.output must return pdbo.solvers.Point(x, y), got {got}.")
        return found


def launch(problem: Problem, x: PyTree, y: PyTree, solver: Solver, key: Array) -> State:
    """The state before the first step."""
    scale = 1 + trees.max_abs((x, y))
    state = State(solver, solver.init(problem, x, y, key), jnp.zeros((), jnp.int32), scale)
    return problem.placed(state, x, y) if problem.splits_point else state


class Answer(NamedTuple):
    """The inner solution found again from y, and f there."""

    y: PyTree
    f: Number


class Outcome(Record):
    """How a run ended, and the certificate that says so; see `Solution`."""

    multiplier: Number
    certificate: "Certificate | None"
    code: Int[Array | np.ndarray, "*batch"] | np.int32
    note: str = eqx.field(static=True, default="")


class Pending(Generic[T]):
    """A value that is computed when it is first looked at, in the precision of its run.

    Arguments:
        compute: returns it.
        costly: whether that may take long, so that printing does without.
    """

    def __init__(self, compute: Callable[[], T], costly: bool = False):
        self.costly = costly
        self._compute: Callable[[], T] | None = compute
        self._value: T | None = None
        self._double = bool(jax.config.jax_enable_x64)  # type: ignore

    @property
    def known(self) -> bool:
        """Whether it has been looked at."""
        return self._value is not None

    def look(self) -> T:
        """The value."""
        if self._value is None:
            assert self._compute is not None
            with jax.enable_x64(self._double):
                self._value, self._compute = self._compute(), None
        return self._value

    def __reduce__(self) -> tuple[Callable, tuple[T]]:
        return _same, (self.look(),)  # a copy in another process has the value itself


def _same(value: T) -> T:
    return value


def is_large(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether a certificate may take long: for many numbers, or examples outside of memory."""
    count = sum(np.size(leaf) for leaf in jax.tree.leaves((x, y, problem.data)))
    return count > MANY or bool(problem.sources)


def _counted(number: int, what: str) -> str:
    """A number of things in words."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


_NOT_YET = (
    "not judged yet; sol.certificate, sol.ok and sol.result compute the certificate, which may "
    "take long."
)


class Solution(Record):
    """The outcome of `solve`.

    Attributes:
        x, y: the point returned. What was computed in double precision is returned in double: as
            NumPy arrays in a session without 64-bit types.
        f, g: the outer and inner values there.
        outcome: how the run ended: the properties below. It may be computed when it is first
            looked at.
        history: a dict of arrays with one row per recorded step: step, f, g, h, multiplier,
            stationarity, feasibility, complementarity, inner_gap, eps, the oracle calls so far
            (f_calls, g_calls, products) and whatever `observe` returned. The entries of the
            certificate are estimates, at the cost of a few gradients. Under jit and vmap the
            arrays have room for every row; unused ones hold step -1.
        state: where the run stands.
        steps: the steps taken since the start of the run, restarts included.
        seconds: what the call of `solve` took, compilation included; 0 if it is not known.
        inner_multipliers: those of the inner constraint, shaped like what it returns; None without
            one.
        answer: what the follower answers: `y_resolved` and `f_resolved` below.
    """

    x: PyTree
    y: PyTree
    f: Number
    g: Number
    outcome: Outcome | Pending[Outcome]
    history: dict[str, PyTree]
    state: State | None
    steps: int | Int[Array, "*batch"]
    seconds: Number = 0.0
    inner_multipliers: PyTree = None
    answer: "Pending[Answer] | Answer | None" = None

    @property
    def is_pending(self) -> bool:
        """Whether the outcome is still to be computed; then the run is no failure."""
        return isinstance(self.outcome, Pending) and not self.outcome.known

    @property
    def seen(self) -> Outcome:
        """The outcome."""
        return self.outcome.look() if isinstance(self.outcome, Pending) else self.outcome

    @property
    def multiplier(self) -> Number:
        """The solver's multiplier of the value-function constraint, or the certificate's."""
        return self.seen.multiplier

    @property
    def certificate(self) -> "Certificate | None":
        """Computed at exactly (x, y), in double precision outside of jit and vmap."""
        return self.seen.certificate

    @property
    def code(self) -> Int[Array | np.ndarray, "*batch"] | np.int32:
        """The result code as an integer array."""
        return self.seen.code

    @property
    def note(self) -> str:
        """What more is known of a failure, in a sentence."""
        return self.seen.note

    @property
    def f_resolved(self) -> Number:
        """f at the inner problem solved again from y; computed when it is first looked at.

        NaN under jit and vmap.
        """
        return float("nan") if self.answer is None else self._answer.f

    @property
    def y_resolved(self) -> PyTree:
        """The inner solution found again from y; None under jit and vmap."""
        return None if self.answer is None else self._answer.y

    @property
    def _answer(self) -> "Answer":
        assert self.answer is not None
        return self.answer.look() if isinstance(self.answer, Pending) else self.answer

    def with_outcome(self, **changes: Any) -> Self:
        """The same solution with another code, certificate, multiplier or note."""
        return dataclasses.replace(self, outcome=dataclasses.replace(self.seen, **changes))

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
        """What happened, in one or two sentences; it needs the certificate."""
        result = self.result
        if not isinstance(result, RESULTS):
            return "a batch of runs: see code"
        if result is RESULTS.bad_problem:
            return self.note
        failed = result in (RESULTS.nonfinite, RESULTS.diverged, RESULTS.multiplier_diverged)
        at = int(self.steps) + (result is RESULTS.nonfinite)
        where = f"Failed at iteration {at}" if failed else self._after()
        rest = self.state.solver.at_rest if self.state is not None else ""
        text = rest if rest and result is RESULTS.settled else result.text
        return f"{where}: {self.note} {text}" if self.note else f"{where}: {text}"

    @property
    def is_costly(self) -> bool:
        """Whether the outcome is still to be computed, and that may take long."""
        return self.is_pending and isinstance(self.outcome, Pending) and self.outcome.costly

    def __str__(self) -> str:
        costly = self.is_costly
        if not costly and not isinstance(self.result, RESULTS):
            return f"Solution(batch of {np.shape(self.code)})"
        first = f"{self._after()}: {_NOT_YET}" if costly else self.message
        lines = [first, trees.describe("x", self.x), trees.describe("y", self.y)]
        lines.append(f"f = {float(self.f):.9g}, g = {float(self.g):.9g}")
        later = isinstance(self.answer, Pending) and self.answer.costly and not self.answer.known
        if self.answer is not None and not later:
            lines[-1] += f"; f = {float(self.f_resolved):.9g} with y solved again"
        if not costly and self.certificate is not None:
            lines.append(self.certificate.in_words)
        return "\n".join([*lines, self._cost()])

    def _repr_html_(self) -> str:
        from ._show import solution_html

        return solution_html(self)

    def plot(self, axis: str = "step", curves: Sequence[str] | None = None) -> "Figure":
        """A figure of the history, a panel per curve (matplotlib).

        By default f, the inner gap, stationarity and eps; `axis` is "step".
        """
        from ._show import plot

        curves = ("f", "inner_gap", "stationarity", "eps") if curves is None else curves
        rows = np.asarray(self.history["step"]) >= 0
        return plot({"": {k: np.asarray(v)[rows] for k, v in self.history.items()}}, axis, curves)

    def to_pandas(self) -> "pandas.DataFrame":
        """The history as a data frame (pandas), one row per record."""
        from ._show import frame

        return frame(self.history)

    def _after(self) -> str:
        return f"After {_counted(int(self.steps), 'iteration')}"

    def _cost(self) -> str:
        """What the run took, in a line."""
        counts = {"gradients of f": "f_calls", "gradients of g": "g_calls", "products": "products"}
        known = {k: self.history.get(v, []) for k, v in counts.items()}
        calls = [f"{int(v[-1]):,} {k}" for k, v in known.items() if len(v)]
        taken = [f"{float(self.seconds):.3g} s"] if float(self.seconds) > 0 else []
        return ", ".join([_counted(int(self.steps), "step"), *calls, *taken])
