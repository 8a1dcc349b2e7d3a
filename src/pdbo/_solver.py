"""What every solver offers to the driver."""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import equinox as eqx
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, PyTree

from ._checks import at_least
from ._problem import Problem


class Point(NamedTuple):
    """What a solver returns: a point and, if the method has them, multiplier and slack."""

    x: PyTree
    y: PyTree
    multiplier: Array | None = None
    slack: Array | None = None


class Calls(NamedTuple):
    """Oracle calls: gradients of f, gradients of g, Hessian- or Jacobian-vector products."""

    f: ArrayLike
    g: ArrayLike
    products: ArrayLike


class Solver(eqx.Module):
    """A method: `init` once, then `step` again and again, and `output` at any time.

    A solver holds its parameters only; everything that changes is in the state, a pytree of
    arrays whose structure, shapes and dtypes stay the same from `init` on.

    A field annotated as an `Array` is one of the method's numbers: a step, a penalty, a rate. None
    of these makes sense below zero.

    Class variables say what tables, figures and the driver need to know of a method:

    Attributes:
        label: what papers and figures call it, such as "AID-FP".
        family: "automatic", "primal-dual", "hypergradient" or "first-order".
        citation: authors, title and year.
        batch_refusal: why it cannot run on mini-batches, in a few words; empty if it can.
        fixed_batches: whether the examples of a batch must stay together, because the method
            remembers something of each batch.
        needs_products: whether it uses Hessian- or Jacobian-vector products.
        prefers_double: whether it runs in double precision on small problems, also in a session
            without 64-bit types.
        in_parts: whether x and y may be split over devices: no device then holds all of a leaf.
        at_rest: what it means that a run has settled, in a sentence or two in place of the usual.
        knows_its_end: whether it ends a run itself, so that on a large problem no certificate has
            to be estimated at records.
        stages: of how many kinds the steps of a method are that works in rounds; none if it does
            not. Then `step` is a `walk`, and a `turn` if one is `due`, and the driver repeats walks
            without looking at what only a turn needs.
    """

    label: ClassVar[str] = ""
    family: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    batch_refusal: ClassVar[str] = ""
    fixed_batches: ClassVar[bool] = False
    needs_products: ClassVar[bool] = False
    prefers_double: ClassVar[bool] = False
    in_parts: ClassVar[bool] = True
    at_rest: ClassVar[str] = ""
    knows_its_end: ClassVar[bool] = False
    stages: ClassVar[int] = 0

    def __check_init__(self):
        for field in dataclasses.fields(self):
            if field.type is Array:
                at_least(field.name, getattr(self, field.name), 0)

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @property
    def exact_first(self) -> bool:
        """Whether `solve` runs `Implicit` before and after it, on problems that is made for."""
        return False

    @property
    def on_host(self) -> bool:
        """Whether its steps are NumPy's around compiled programs, where values are known."""
        return False

    @property
    def budget(self) -> int | None:
        """The most steps a run of this solver takes; None if it sets no limit itself."""
        return None

    @abc.abstractmethod
    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> PyTree:
        """The state before the first step, from a start inside its sets."""

    @abc.abstractmethod
    def step(self, problem: Problem, state: PyTree) -> PyTree:
        """The state one iteration later."""

    def stage(self, state: PyTree) -> Int[Array, ""]:
        """Which kind the next step is of; it changes in turns only."""
        raise NotImplementedError

    def walk(self, problem: Problem, state: PyTree, stage: int) -> PyTree:
        """The state one step of this kind later, before its turn."""
        raise NotImplementedError

    def due(self, state: PyTree) -> Bool[Array, ""]:
        """Whether a turn comes next."""
        raise NotImplementedError

    def turn(self, problem: Problem, state: PyTree) -> PyTree:
        """The state after the end of a round."""
        raise NotImplementedError

    @abc.abstractmethod
    def output(self, state: PyTree) -> Point:
        """The point this state stands for."""

    def settled(self, state: PyTree) -> bool | Bool[Array, ""]:
        """Whether further steps would change nothing; a run that has settled is ended."""
        return False

    @abc.abstractmethod
    def calls(self, state: PyTree) -> Calls:
        """The oracle calls made since `init`, those of `init` included."""

    def blank(self, problem: Problem, x: PyTree, y: PyTree) -> PyTree:
        """A state with the shapes of a run from (x, y); for solvers on the host."""
        raise NotImplementedError

    def with_calls(self, state: PyTree, calls: Calls) -> PyTree:
        """A state to which the calls made before it are added; for `exact_first` solvers."""
        raise NotImplementedError


def one_step(solver: Solver, problem: Problem, state: PyTree) -> PyTree:
    """The state one step later in a solver with rounds: a walk, and a turn if one is due."""
    walks = [lambda s, k=k: solver.walk(problem, s, k) for k in range(solver.stages)]
    state = lax.switch(solver.stage(state), walks, state)
    return lax.cond(solver.due(state), lambda s: solver.turn(problem, s), lambda s: s, state)
