r"""The follower's answer as a differentiable function of x.

At an inner minimum y let A be g_yy on the face of Y. By implicit differentiation dy solves
A dy = -g_yx dx. If A is singular the inner minimum is not unique: `inner_solution` is the one
nearest to y0, so that y0 - y = A p for some p, and along the null space N of A the derivative is
that of the projection of y0 onto the inner minima,

$$P_N (I + M)\, n = P_N \big(dy_0 - d_x(g_{yy} p) - (I + M)\, dy\big), \qquad
M = d_y(g_{yy} p),$$

where M holds the curvature of the set of minima (Absil, Mahony & Trumpf, Geometric Science of
Information 2013).
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int, PyTree

from . import _trees as trees
from ._checks import check_point, traced
from ._errors import ProblemError
from ._minimize import search
from ._problem import Problem, check_problem, refuse_constraints
from ._programs import Program
from .exact.compiled import POWER
from .exact.compiled_inner import (
    COARSE,
    Face,
    Functions,
    Map,
    Memory,
    Scalar,
    Vector,
    conjugate_residuals,
    face,
    minimise,
    on_face,
    solve,
)
from .exact.dense import FLAT

MOST_DENSE = 200  # entries of y: up to here A is a matrix, its null space known by eigenvalues
MOST_MOVES = 50  # along the inner minima towards y0
MOST_PRODUCTS = 100  # of the linear solve along a null space that is not known by eigenvalues
ACCURATE = 16  # times the rounding unit: the accuracy of the answer
FLATTER = 1e-4  # relative to the gradient of g at y0: more than this is left at no minimum
ITERATIONS = 2000  # of the first-order search from a y0 where Newton's method does not succeed


def inner_solution(problem: Problem, x: PyTree, y0: PyTree) -> PyTree:
    r"""The inner minimiser at x, as a function that JAX can differentiate.

    If there are many minimisers, it is the nearest one to y0 that the search finds from there. It
    then depends on y0, too, and its derivatives are right in that case as well. It works under
    `jit`, `vmap`, `grad`, `jvp` and `jacobian`, and its derivatives by x, by y0, by the problem's
    data and by the numbers of its sets cost one linear solve each. Second derivatives are right if
    the minimiser is unique.

    ```python
    def outer(x):
        return problem.f(x, pdbo.inner_solution(problem, x, y0))

    jax.grad(outer)(x)
    ```

    Arguments:
        problem: the problem; its f plays no part.
        x: where the inner problem is solved.
        y0: where the search starts.

    Raises a ProblemError if no minimiser is found; under jit and vmap y is NaN then.
    """
    check_problem(problem)
    refuse_constraints(problem, "inner_solution")
    if problem.in_batches:
        raise ProblemError("inner_solution needs all of the data at once: it takes no Batches.")
    x, y0 = check_point(problem, x, y0, project=False)
    y, _, found = _answer((problem, x, y0))
    if not traced(found) and not bool(found):
        raise ProblemError(
            "no inner minimiser was found from y0: g(x, .) may have no minimum, or have kinks."
        )
    return jax.tree.map(lambda leaf: jnp.where(found, leaf, jnp.nan), y)


class _Found(NamedTuple):
    """An inner minimum, the largest curvature of g met, and whether it is one."""

    y: PyTree
    top: Scalar
    ok: Bool[Array, ""]


@eqx.filter_custom_jvp
def _answer(arguments: tuple[Problem, PyTree, PyTree]) -> _Found:
    return _search(*arguments)


@_answer.def_jvp
def _differentiated(primals: tuple, tangents: tuple) -> tuple[_Found, _Found]:
    found = _answer(*primals)
    moved = _moved(primals[0], found.y, found.top, tangents[0])
    return found, _Found(moved, jnp.zeros_like(found.top), None)  # type: ignore


# The answer


class _Walk(NamedTuple):
    """A search along the inner minima for the one nearest to y0.

    Attributes:
        y, ok: the best inner minimum so far, and whether it is one.
        tried: where the next inner solve starts.
        expected: by how much it should come nearer to y0.
        share: the part of a Newton step that is tried.
        top: the largest curvature of g met.
        solves, over: inner solves so far, and whether the search has ended.
    """

    y: Vector
    ok: Bool[Array, ""]
    tried: Vector
    expected: Scalar
    share: Scalar
    top: Scalar
    solves: Int[Array, ""]
    over: Bool[Array, ""]


@Program
def _search(problem: Problem, x: PyTree, y0: PyTree) -> _Found:
    """The inner minimum nearest to y0, in reach from there."""
    functions, at = Functions(problem, x, y0), ravel_pytree(x)[0]
    goal = ravel_pytree(y0)[0]
    accuracy = ACCURATE * float(jnp.finfo(goal.dtype).eps)
    zero, none, no = jnp.zeros((), goal.dtype), jnp.zeros((), jnp.int32), jnp.zeros((), bool)

    def body(s: _Walk) -> _Walk:
        memory = Memory(s.top, zero, none, none, none)
        found = minimise(functions, at, s.tried, memory, accuracy)
        first = s.solves == 0
        fall = trees.length(s.y - goal) ** 2 - trees.length(found.y - goal) ** 2
        better = found.ok & (~s.ok | (fall >= 1e-4 * s.expected))
        y = jnp.where(better, found.y, s.y)
        top = jnp.where(better, found.memory.top, s.top)
        here = _Tangent(functions, at, y, top, goal)
        pull = here.null(goal - y)
        step = here.along(pull)
        step = jnp.where(trees.dot(step, pull) > 0, step, pull)
        share = jnp.where(better, 1, s.share / 4).astype(y.dtype)
        tried = functions.project_y(y + share * step)
        lost = first & ~found.ok
        tried = jnp.where(lost, _by_gradients(functions, at, found.y, lost), tried)
        near = trees.length(pull) <= accuracy * (trees.length(goal - y) + trees.length(y))
        over = ~here.flat | near | (share < accuracy) | (~better & ~s.ok)
        expected = share * trees.dot(step, pull)
        ok = s.ok | better
        return _Walk(y, ok, tried, expected, share, top, s.solves + 1, over & ~lost)

    def going(s: _Walk) -> Bool[Array, ""]:
        return ~s.over & (s.solves < MOST_MOVES)

    begin = functions.project_y(goal)
    end = lax.while_loop(going, body, _Walk(begin, no, begin, zero, zero + 1, zero, none, no))
    flatter = _slope(functions, at, end.y, end.top) <= FLATTER * _slope(functions, at, begin, zero)
    rest = jnp.sqrt(jnp.finfo(goal.dtype).eps) * end.top * trees.max_abs(end.y)
    flatter |= _slope(functions, at, end.y, end.top) <= rest
    return _Found(functions.to_y(end.y), end.top, end.ok & flatter & trees.finite(end.y))


def _slope(functions: Functions, x: Vector, y: Vector, top: Scalar) -> Scalar:
    """The projected gradient of g in y."""
    return face(functions, y, functions.slope(x, y)[0], top, None).residual


def _by_gradients(functions: Functions, x: Vector, y: Vector, wanted: Bool[Array, ""]) -> Vector:
    """A y where g is lower and may be convex; y itself unless it is wanted."""
    effort = jnp.where(wanted, ITERATIONS, 0)
    y_set = functions.y_set
    low = search(
        lambda v: functions.g(x, ravel_pytree(v)[0]), y_set, functions.to_y(y), effort,
        remember=False,
    )  # fmt: skip
    return ravel_pytree(low.best.point)[0]


# Its derivative


@eqx.filter_jit
def _moved(given: tuple[Problem, PyTree, PyTree], y: PyTree, top: Scalar, change: tuple) -> PyTree:
    """How the answer moves when problem, x and y0 do; None stands for what does not move."""
    problem, x, y0 = given
    functions = Functions(problem, x, y)
    at, flat_y, goal = (ravel_pytree(leaf)[0] for leaf in (x, y, y0))
    here = _Tangent(functions, at, flat_y, top, goal)
    varied, rest = eqx.partition((problem, x), eqx.is_inexact_array)
    still = jax.tree.map(jnp.zeros_like, varied)
    change_of = eqx.combine(change[:2], still)
    move_y0 = ravel_pytree(eqx.combine(change[2], trees.zeros_like(y0)))[0]

    def by_leaves(function: Callable[[Problem, PyTree], Vector]) -> Vector:
        """The derivative of a function of problem and x along their change."""
        return jax.jvp(lambda v: function(*eqx.combine(v, rest)), (varied,), (change_of,))[1]

    def slope(problem: Problem, x: PyTree, at: Vector) -> Vector:
        return jax.grad(lambda v: problem.inner(x, functions.to_y(v)))(at)

    def bent(problem: Problem, x: PyTree) -> Vector:
        return jax.jvp(lambda v: slope(problem, x, v), (flat_y,), (here.pulled,))[1]

    def project(problem: Problem, _: PyTree) -> Vector:
        return ravel_pytree(problem.y_set.project(functions.to_y(here.face.at)))[0]

    right = -by_leaves(lambda p, x: slope(p, x, flat_y))
    shift = jnp.zeros_like(flat_y)
    if not functions.free_y:  # the boundary may move
        shift = by_leaves(project)
        right = right + shift / here.face.unit - here.curve(shift)
    move = shift + here.face.turn(here.inverse(here.face.turn(right)))

    def with_null_part() -> Vector:
        rest = move_y0 - by_leaves(bent) - move - here.bend(move)
        return move + here.along(here.null(rest))

    move = lax.cond(here.flat, with_null_part, lambda: move)
    return functions.to_y(move)


class _Tangent:
    """The linear maps at an inner minimum: A, its pseudo-inverse and its null space.

    Attributes:
        face: the face of Y.
        flat: whether the inner minimum is not unique.
        pulled: the p with A p = y0 - y, as far as there is one.
    """

    def __init__(self, functions: Functions, x: Vector, y: Vector, top: Scalar, goal: Vector):
        self.functions, self.x, self.y = functions, x, y
        g_y, pull = functions.slope(x, y)
        self.curve: Map = lambda w: pull(w)[1]
        self.face: Face = face(functions, y, g_y, top, y - goal)
        self.product = on_face(self.face, functions.free_y, pull)
        self._solve, self.flat = self._solver()
        self.pulled = self.face.turn(self.inverse(self.face.turn(goal - y)))

    def _solver(self) -> tuple[Callable[[Map, Vector], Vector], Bool[Array, ""]]:
        """A least-squares solver for A, and whether A is singular on the face."""
        n, dtype = self.y.size, self.y.dtype
        eps = float(jnp.finfo(dtype).eps)
        if n > MOST_DENSE:
            probe = self.face.turn(jnp.cos(jnp.arange(n, dtype=dtype)))
            accuracy = jnp.asarray(eps**POWER, dtype)
            yes, zeros = jnp.ones((), bool), jnp.zeros_like(self.y)
            flat = solve(self.product, probe, zeros, accuracy, yes).null
            return lambda A, b: solve(A, b, zeros, accuracy, yes).v, lax.stop_gradient(flat)
        A = lax.map(self.product, jnp.eye(n, dtype=dtype))
        values, basis = lax.stop_gradient(jnp.linalg.eigh(lax.stop_gradient((A + A.T) / 2)))
        curved = values > max(FLAT, COARSE * n * eps) * jnp.max(jnp.abs(values))
        inverse = jnp.where(curved, 1 / jnp.where(curved, values, 1), 0)
        turned = lax.map(self.face.turn, jnp.eye(n, dtype=dtype))
        free = trees.matmul(turned, basis)  # null vectors that leave the face do not count
        flat = jnp.any(~curved & (jnp.sum(free**2, axis=0) > 0.5))

        def least_squares(_: Map, b: Vector) -> Vector:
            return trees.matmul(basis, inverse * trees.matmul(b, basis))

        return least_squares, lax.stop_gradient(flat)

    def inverse(self, b: Vector) -> Vector:
        """The least-squares solution v of A v = b."""
        return lax.custom_linear_solve(self.product, b, self._solve, symmetric=True)

    def null(self, w: Vector) -> Vector:
        """The part of w along inner minima."""
        w = self.face.turn(w)
        return self.face.turn(w - self.product(self.inverse(w)))

    def bend(self, w: Vector) -> Vector:
        """M w: how much the set of minima curves along w, times the distance to y0."""

        def curved(y: Vector) -> Vector:
            return self.functions.slope(self.x, y)[1](self.pulled)[1]

        return self.face.turn(jax.jvp(curved, (self.y,), (self.face.turn(w),))[1])

    def along(self, w: Vector) -> Vector:
        """The n along inner minima with P_N (I + M) n = w."""

        def product(u: Vector) -> Vector:
            inside = self.null(u)
            return u + self.null(self.bend(inside))

        def solution(A: Map, b: Vector) -> Vector:
            if b.size > MOST_DENSE:
                accuracy = float(jnp.finfo(b.dtype).eps) ** POWER
                return conjugate_residuals(A, b, None, accuracy, MOST_PRODUCTS).v
            return jnp.linalg.solve(lax.map(A, jnp.eye(b.size, dtype=b.dtype)).T, b)

        return self.null(lax.custom_linear_solve(product, w, solution, symmetric=True))
