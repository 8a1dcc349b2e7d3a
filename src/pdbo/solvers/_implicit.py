"""The exact path as a solver."""

import threading
import weakref
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, PyTree

from .._checks import traced
from .._problem import Problem
from .._solver import Calls, Point, Solver
from ..exact import compiled
from ..exact.compiled import CompiledState
from ..exact.large import Large, blank
from ..exact.oracle import SMALL, Oracle, fits
from ..exact.outer import LargeState
from ..exact.small import Small, SmallState
from ..exact.status import RUNNING

TOL = 1e-4  # the tolerance after which a large run goes on for a few more steps only


class ImplicitState(NamedTuple):
    """Where a run stands: the path, and its start, which has the structure of x and y."""

    path: SmallState | LargeState
    x0: PyTree
    y0: PyTree

    @property
    def point(self) -> Point:
        """The current point; the method has no multiplier."""
        return Point(_shaped(self.path.x, self.x0), _shaped(self.path.y, self.y0))

    @property
    def calls(self) -> Calls:
        """On the host f and g are evaluated together."""
        return Calls(self.path.values, self.path.values, self.path.products)


class Implicit(Solver):
    r"""Newton's method on f along the inner minima: exact up to rounding.

    At an inner minimum let $H = g_{yy}$ on the face of Y that y is on. If H is regular, the inner
    minimum follows x, $dy = -H^{-1} g_{yx}\,dx$, and f has the implicit gradient
    $f_x + g_{xy} v$ with $H v = -f_y$. If H is singular, the inner minimum is not unique: along
    the null space of H y moves with f itself. The tangent space of both kinds is that of the
    constraint $g_y = 0$, and the Lagrangian $f + \langle v, g_y\rangle$ has second derivatives on
    it. A step is Newton's on that space, followed by an inner solve. There is no slack and no
    penalty, so the answer is exact.

    1. **Units.** Matrices are scaled to a diagonal of one before their rank is judged, and steps
       are compared with what rounding explains: nothing depends on the units of f, g, x or y.
    2. **Faces.** The derivative of the projection onto Y (onto X) tells which directions are open.
       If f has a kink where the face changes, the pieces on both sides make the step.
    3. **Saddles.** If f curves downwards, the step follows the descent, and is measured in units of
       x itself; at a maximum it goes either way.

    It runs on the host, around a few small compiled programs, so that the first call takes a
    fraction of a second. Beyond 500 entries of x or y there are no matrices: conjugate
    residuals solve with H, their residual is the part of $f_y$ in the null space, and L-BFGS takes
    the place of Newton's method in x.

    Under jit and vmap, on a mesh and beyond ten million numbers it is one compiled program: the
    method for large problems, with eigenvalues in place of conjugate residuals up to 50 entries of
    y, in the precision of the start; single precision is for inner problems with a condition number
    up to about 1e3. That takes seconds to compile and then less time than on the host. It neither
    looks for other valleys nor makes steps from both sides of a kink, and does not leave a maximum
    of f that it starts from.

    Arguments:
        compiled: whether to run as one compiled program outside of jit and vmap, too.

    Reference: the implicit function theorem in bilevel optimisation goes back to Kolstad & Lasdon,
    Derivative evaluation and computational experience with large bilevel mathematical programs,
    1990.
    """

    label = "Implicit"
    family = "hypergradient"
    citation = (
        "this package, after Kolstad & Lasdon, Derivative evaluation and computational experience "
        "with large bilevel mathematical programs, 1990"
    )
    batch_refusal = "it compares values of f and g from step to step"
    needs_products = True
    prefers_double = True
    in_parts = False

    compiled: bool = eqx.field(static=True, default=False)
    """Whether it is one compiled program wherever it runs."""

    part: bool = eqx.field(static=True, default=False)
    """Whether it runs as a part of AutoPDBO."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return "AutoPDBO" if self.part else "Implicit"

    @property
    def on_host(self) -> bool:
        """Whether its steps are NumPy's around compiled programs, where values are known."""
        return not self.compiled

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, key: Array
    ) -> ImplicitState | CompiledState:
        """The state at the inner minimum that y leads to; if compiled, before looking for it."""
        if self.compiled or problem.mesh is not None or traced(problem, x, y):
            return compiled.start(x, y)
        x, y = jax.tree.map(np.asarray, (x, y))
        path = path_of(problem, x, y)
        with np.errstate(all="ignore"):
            return ImplicitState(path.start(*path.oracle.flat(x, y)), x, y)

    def blank(self, problem: Problem, x: PyTree, y: PyTree) -> ImplicitState:
        """A state with the shapes of a run from (x, y)."""
        x, y = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), (x, y))
        sizes = [sum(leaf.size for leaf in jax.tree.leaves(z)) for z in (x, y)]
        small = fits(problem, x, y) == SMALL
        return ImplicitState((SmallState.blank if small else blank)(*sizes), x, y)

    def step(
        self, problem: Problem, state: ImplicitState | CompiledState
    ) -> ImplicitState | CompiledState:
        """One step in x and the flat directions of y, and an inner solve."""
        if isinstance(state, CompiledState):
            return compiled.step(problem, state)
        path = path_of(problem, state.x0, state.y0)
        with np.errstate(all="ignore"):
            return state._replace(path=path.step(state.path))  # type: ignore

    def output(self, state: ImplicitState | CompiledState) -> Point:
        """The current point; the method has no multiplier."""
        if isinstance(state, CompiledState):
            return Point(state.x, state.y)
        return state.point

    def settled(self, state: ImplicitState | CompiledState) -> bool | Bool[Array, ""]:
        """Whether further steps would change nothing."""
        if isinstance(state, CompiledState):
            return state.status != RUNNING
        return bool(state.path.status != RUNNING)

    def calls(self, state: ImplicitState | CompiledState) -> Calls:
        """Gradients and products so far."""
        if isinstance(state, CompiledState):
            memory = state.memory
            return Calls(state.outer_gradients, memory.gradients, memory.products)
        return state.calls


class _Latest(threading.local):
    """What this thread made its last step with; nothing once the problem is gone."""

    entry: tuple[weakref.ref[Problem], PyTree, Small | Large] | None = None


_LATEST = _Latest()


def path_of(problem: Problem, x: PyTree, y: PyTree) -> Small | Large:
    """The method on a problem; the same as before if the problem is, with what it has prepared."""
    like = jax.tree.map(np.shape, (x, y)), jax.tree.structure((x, y))
    if _LATEST.entry is not None:
        known, before, path = _LATEST.entry
        if known() is problem and before == like:
            return path
    oracle = Oracle(problem, x, y)
    path = Small(oracle) if fits(problem, x, y) == SMALL else Large(oracle, TOL)
    mine = _LATEST.__dict__  # of this thread, whichever lets go of the problem

    def forget(gone: weakref.ref[Problem]) -> None:
        if (entry := mine.get("entry")) is not None and entry[0] is gone:
            mine["entry"] = None

    _LATEST.entry = weakref.ref(problem, forget), like, path
    return path


def part_of(solver: Solver, header: dict[str, Any]) -> Solver:
    """The part of a solver that a file with this header holds: its exact path, or itself."""
    saved = header.get("solver")
    exact = isinstance(saved, dict) and saved.get("solver") == Implicit.__name__
    return Implicit(part=True) if exact and solver.exact_first else solver


def _shaped(flat: np.ndarray, like: PyTree) -> PyTree:
    """A flat vector with the structure of a pytree."""
    leaves, structure = jax.tree.flatten(like)
    cuts = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
    parts = np.split(flat, cuts)
    shaped = [p.reshape(np.shape(leaf)) for p, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)
