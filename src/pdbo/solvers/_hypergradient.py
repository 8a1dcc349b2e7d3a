"""What the hypergradient methods share: inner steps, a hypergradient, a projected outer step."""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._errors import ProblemError
from .._problem import Problem
from .._solver import Calls, Point, Solver
from ..sets import Product, Set
from ._descent import descend, inner_slope


class Moments(NamedTuple):
    """Adam's decaying means of the hypergradients and of their squares."""

    mean: PyTree
    square: PyTree


class HypergradientState(eqx.Module):
    """x, the inner solution y found there and the hypergradient computed at the two.

    `start` is where every inner solve starts, None if it starts at the last y; `linear` is the
    last solution of the linear system, None if it is not kept; `moments` are Adam's, None if the
    outer step is plain.
    """

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    hypergradient: PyTree
    start: PyTree | None
    linear: PyTree | None
    moments: Moments | None = None


class HypergradientSolver(Solver):
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
        adam: whether every entry of x moves by about $\beta$, whatever the size of its derivative,
            which suits many hyperparameters of unlike effect (Kingma & Ba, Adam, 2015).
    """

    covers: ClassVar[tuple[type[Set], ...]]
    needs_products = True

    outer_step: Array = eqx.field(converter=number, default=0.2)
    inner_step: Array = eqx.field(converter=number, default=0.5)
    inner_steps: int = eqx.field(static=True, default=5)
    warm_start: bool = eqx.field(static=True, default=True, kw_only=True)
    adam: bool = eqx.field(static=True, default=False, kw_only=True)

    def __check_init__(self):
        whole_number("inner_steps", self.inner_steps)

    @abc.abstractmethod
    def hypergradient(
        self, problem: Problem, x: PyTree, y: PyTree, linear: PyTree | None
    ) -> tuple[PyTree, PyTree, PyTree | None]:
        """The hypergradient at x, the inner solution found from y, and what to keep of a solve."""

    def linear0(self, y: PyTree) -> PyTree | None:
        """Where the first linear solve starts; None for a method that keeps no such solution."""
        return None

    def inner(self, problem: Problem, x: PyTree, y: PyTree, steps: int) -> PyTree:
        """Projected gradient steps on g(x, .) from y."""
        return descend(inner_slope(problem, x), problem.y_set, y, self.inner_step, steps)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> HypergradientState:
        """The state before the first step; raises if the method does not cover the set Y."""
        for part in _factors(problem.y_set):
            if not isinstance(part, self.covers):
                known = ", ".join(kind.__name__ for kind in self.covers)
                raise ProblemError(
                    f"y_set has a {type(part).__name__}, which {type(self).__name__} cannot "
                    f"differentiate through; it takes {known} and products of these."
                )
        return HypergradientState(
            t=jnp.zeros((), jnp.int32),
            x=x,
            y=y,
            hypergradient=trees.zeros_like(x),
            start=None if self.warm_start else y,
            linear=self.linear0(y),
            moments=Moments(trees.zeros_like(x), trees.zeros_like(x)) if self.adam else None,
        )

    def step(self, problem: Problem, state: HypergradientState) -> HypergradientState:
        """One iteration: outer step, inner steps, hypergradient."""
        direction, moments = _direction(state)
        x = trees.axpy(-self.outer_step, direction, state.x)
        x = problem.x_set.project(x)
        start = state.y if state.start is None else state.start
        hypergradient, y, linear = self.hypergradient(problem, x, start, state.linear)
        return HypergradientState(state.t + 1, x, y, hypergradient, state.start, linear, moments)

    def output(self, state: HypergradientState) -> Point:
        """x and the inner solution at which its hypergradient was computed."""
        return Point(state.x, state.y)

    @abc.abstractmethod
    def calls(self, state: HypergradientState) -> Calls:
        """The oracle calls made since `init`."""


def _direction(state: HypergradientState) -> tuple[PyTree, Moments | None]:
    """The hypergradient, or Adam's direction from it and the earlier ones."""
    d, moments = state.hypergradient, state.moments
    if moments is None:
        return d, None
    mean = trees.axpy(0.1, trees.sub(d, moments.mean), moments.mean)
    square = jax.tree.map(lambda s, g: s + 0.001 * (g**2 - s), moments.square, d)
    seen = jnp.maximum(state.t, 1).astype(trees.dtype(d))  # hypergradients so far

    def scaled(m: Array, s: Array) -> Array:
        size = jnp.sqrt(s / (1 - 0.999**seen))
        return m / (1 - 0.9**seen) / (size + 1e-8)

    return jax.tree.map(scaled, mean, square), Moments(mean, square)


def _factors(constraint: Set) -> list[Set]:
    """The sets a set is a product of."""
    if not isinstance(constraint, Product):
        return [constraint]
    parts = jax.tree.leaves(constraint.tree, is_leaf=lambda part: isinstance(part, Set))
    return [factor for part in parts for factor in _factors(part)]
