"""What the hypergradient methods share: inner steps, a hypergradient, a projected outer step."""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._errors import ProblemError
from .._problem import Problem
from .._solver import Calls, Point
from ..sets import Set
from ._descent import GradientSolver, begin, descend, inner_slope, move


class Inner(NamedTuple):
    """A point of the inner steps, with the state of their transformation."""

    y: PyTree
    rule: PyTree


class HypergradientState(eqx.Module):
    """x, the inner solution y found there and the hypergradient computed at the two.

    `start` is where every inner solve starts, None if it starts at the last y; `linear` is the
    last solution of the linear system, None if it is not kept; `rules` are the states of `outer`
    and `inner`, None for plain steps.
    """

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    hypergradient: PyTree
    start: PyTree | None
    linear: PyTree | None
    rules: tuple[PyTree, PyTree] = (None, None)


class HypergradientSolver(GradientSolver):
    r"""A method that descends along an estimate $d_t$ of the hypergradient of $f(x, y(x))$.

    $$x_t = \Pi_X(x_{t-1} - \beta\, d_{t-1}),\qquad y_t \approx \arg\min_y g(x_t, y),\qquad
      d_t \approx \tfrac{d}{dx} f(x, y(x))\big|_{x = x_t}$$

    with $d_0 = 0$: an iteration begins with the outer step, so the x and y returned belong
    together and the hypergradient of the state is the one computed at them.

    Arguments:
        outer_step: $\beta$.
        inner_step: the step of the inner projected gradient.
        inner_steps: N.
        warm_start: whether an inner solve starts at the last y rather than always at y0.
        outer: an Optax transformation of $d_t$ in place of $\beta$.
        inner: one for the inner steps; if these always start at y0, so does it.
    """

    covers: ClassVar[tuple[str, ...]]
    needs_products = True

    outer_step: Array = eqx.field(converter=number, default=0.2)
    inner_step: Array = eqx.field(converter=number, default=0.5)
    inner_steps: int = eqx.field(static=True, default=5)
    warm_start: bool = eqx.field(static=True, default=True, kw_only=True)

    def __check_init__(self):
        whole_number("inner_steps", self.inner_steps)

    @abc.abstractmethod
    def hypergradient(
        self, problem: Problem, x: PyTree, start: Inner, linear: PyTree | None
    ) -> tuple[PyTree, Inner, PyTree | None]:
        """The hypergradient at x, the inner solution found, and what to keep of a linear solve."""

    def linear0(self, y: PyTree) -> PyTree | None:
        """Where the first linear solve starts; None for a method that keeps no such solution."""
        return None

    def follow(self, problem: Problem, x: PyTree, start: Inner, steps: int) -> Inner:
        """Projected gradient steps on g(x, .)."""
        slope, (y, rule) = inner_slope(problem, x), start
        return Inner(*descend(slope, problem.y_set, y, self.inner_step, steps, self.inner, rule))

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> HypergradientState:
        """The state before the first step; raises if the method does not cover the set Y."""
        check_y_set(problem.y_set, self.covers, self.name)
        return HypergradientState(
            t=jnp.zeros((), jnp.int32),
            x=x,
            y=y,
            hypergradient=trees.zeros_like(x),
            start=None if self.warm_start else y,
            linear=self.linear0(y),
            rules=(begin(self.outer, x, "outer"), begin(self.inner, y, "inner")),
        )

    def step(self, problem: Problem, state: HypergradientState) -> HypergradientState:
        """One iteration: outer step, inner steps, hypergradient."""
        d, (outer, inner) = state.hypergradient, state.rules
        x, moved = move(self.outer, outer, d, state.x, self.outer_step, problem.x_set)
        if self.outer is not None:  # it sees no hypergradient before there is one
            x, moved = trees.where(state.t == 0, (state.x, outer), (x, moved))
        start = Inner(state.y, inner)
        if state.start is not None:
            start = Inner(state.start, begin(self.inner, state.start, "inner"))
        d, end, linear = self.hypergradient(problem, x, start, state.linear)
        rules = (moved, end.rule)
        return HypergradientState(state.t + 1, x, end.y, d, state.start, linear, rules)

    def output(self, state: HypergradientState) -> Point:
        """x and the inner solution at which its hypergradient was computed."""
        return Point(state.x, state.y)

    @abc.abstractmethod
    def calls(self, state: HypergradientState) -> Calls:
        """The oracle calls made since `init`."""


def check_y_set(y_set: Set, covers: tuple[str, ...], name: str) -> None:
    """Raise a ProblemError if a method does not cover the set of y."""
    for part in y_set.factors:
        if type(part).__name__ not in covers:
            raise ProblemError(
                f"y_set has a {type(part).__name__}, which {name} cannot "
                f"differentiate through; it takes {', '.join(covers)} and products of these."
            )
