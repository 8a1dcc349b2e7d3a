"""The inner problem at a fixed x in compiled loops: its minimum, and the adjoint there.

The same mathematics as in `krylov`, `inner` and `minimum`, on traced arrays of any precision.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _trees as trees
from .._problem import Problem
from .._trees import dot, length, max_abs
from ..sets import Free, Set
from .dense import FLAT as ZERO
from .inner import MOST_PRODUCTS, ROUNDED, TIE
from .krylov import EPS, FLAT, NEGATIVE, NEGLIGIBLE, WEAK
from .minimum import DECREASE, MOST_STEPS, SHORTEST
from .newton import TRUSTED

COARSE = 64  # times the rounding unit: no curvature smaller than this is told from zero
LOOSEST = 0.1  # accuracy of the linear solves far from the minimum
MOST_DENSE = 50  # entries of y: up to here linear systems are solved by eigenvalues

Vector = Float[Array, " n"]
Scalar = Float[Array, ""]
Map = Callable[[Vector], Vector]


class Functions:
    """f, g and the projections on flat vectors, for as long as a trace lasts.

    Arguments:
        problem: the problem.
        x, y: a point of it, for the shapes.
    """

    def __init__(self, problem: Problem, x: PyTree, y: PyTree):
        self.to_x, self.to_y = ravel_pytree(x)[1], ravel_pytree(y)[1]
        self.f = lambda x, y: problem.outer(self.to_x(x), self.to_y(y))
        self.g = lambda x, y: problem.inner(self.to_x(x), self.to_y(y))
        self.free_x = isinstance(problem.x_set, Free)
        self.free_y = isinstance(problem.y_set, Free)
        self.y_set = problem.y_set
        self.project_x = _flat_projection(problem.x_set, self.to_x)
        self.project_y = _flat_projection(problem.y_set, self.to_y)

    def turn_x(self, at: Vector) -> Map:
        """The derivative of the projection onto X."""
        return _derivative(self.project_x, at, self.free_x)

    def turn_y(self, at: Vector) -> Map:
        """The derivative of the projection onto Y."""
        return _derivative(self.project_y, at, self.free_y)

    def slope(self, x: Vector, y: Vector) -> tuple[Vector, Callable]:
        """The gradient of g in y, and the map of w to (g_xy w, g_yy w)."""
        return jax.vjp(jax.grad(self.g, 1), x, y)


def _flat_projection(constraint: Set, to_tree: Callable) -> Map:
    return lambda u: ravel_pytree(constraint.project(to_tree(u)))[0]


def _derivative(project: Map, at: Vector, free: bool) -> Map:
    return (lambda w: w) if free else (lambda w: jax.jvp(project, (at,), (w,))[1])


class Solved(NamedTuple):
    """An approximate least-squares solution; see `krylov.Solved`."""

    v: Vector
    residual: Vector
    null: Bool[Array, ""]
    negative: Bool[Array, ""]
    top: Scalar
    products: Int[Array, ""]


def conjugate_residuals(
    product: Map, b: Vector, start: Vector | None, accuracy: ArrayLike, most: ArrayLike
) -> Solved:
    """Solve A v = b as `krylov.conjugate_residuals` does, with an accuracy relative to b.

    b may be a tree.
    """
    dtype = trees.dtype(b)
    eps, none = float(jnp.finfo(dtype).eps), jnp.zeros((), jnp.int32)
    weak, down, flat = max(WEAK, COARSE * eps), max(NEGATIVE, COARSE * eps), FLAT / EPS * eps
    unit = max_abs(b)
    unit = jnp.where(unit > 0, unit, 1)  # squares of small numbers would underflow
    b = jax.tree.map(lambda leaf: leaf / unit, b)
    reference, zero, no = length(b), jnp.zeros((), dtype), jnp.zeros((), bool)
    if start is None:
        v, r, top, count = trees.zeros_like(b), b, zero, none
    else:
        v = jax.tree.map(lambda leaf: leaf / unit, start)
        curved = product(v)
        size = length(v)
        r, count = trees.sub(b, curved), none + 1
        top = jnp.where(size > 0, length(curved) / jnp.where(size > 0, size, 1), 0)

    def going(s: tuple) -> Bool[Array, ""]:
        return s[-1] & (s[-2] < most)

    def body(s: tuple) -> tuple:
        v, r, p, Ap, previous, top, *_, count, _ = s
        Ar = product(r)
        rr, rAr, ArAr = dot(r, r), dot(r, Ar), dot(Ar, Ar)
        top = jnp.maximum(top, jnp.sqrt(ArAr / rr))
        null, negative = rAr <= weak * top * rr, rAr < -down * top * rr
        go = rAr > COARSE * eps * top * rr
        outside = rAr / jnp.sqrt(jnp.where(go, ArAr, 1))
        energy = jnp.where(null, 0, rr * (rr / jnp.where(go, rAr, 1)))
        met = (outside <= accuracy * reference) & (
            energy <= accuracy**2 * jnp.abs(dot(v, trees.sub(b, r)))
        )
        go &= ~met
        beta = jnp.where(previous > 0, rAr / jnp.where(previous > 0, previous, 1), 0)
        p, Ap = trees.axpy(beta, p, r), trees.axpy(beta, Ap, Ar)
        size = dot(Ap, Ap)
        alpha = jnp.where(go & (size > 0), rAr / jnp.where(size > 0, size, 1), 0)
        v, r = trees.axpy(alpha, p, v), trees.axpy(-alpha, Ap, r)
        bound = jnp.maximum(NEGLIGIBLE * accuracy * reference, flat * top * length(v))
        small = length(r) <= bound
        go_on = go & ~small & (alpha > 0)
        return v, r, p, Ap, rAr, top, null & ~(go & small), negative, count + 1, go_on

    zeros = trees.zeros_like(b)
    first = (v, r, zeros, zeros, zero, top, no, no, count, dot(r, r) > 0)
    v, r, *_, top, null, negative, count, _ = lax.while_loop(going, body, first)
    v, r = trees.scale(unit, v), trees.scale(unit, r)
    return Solved(v, r, null & ~negative, negative, top, count)


def dense_solve(product: Map, b: Vector, wanted: Bool[Array, ""]) -> Solved:
    """The least-squares solution by eigenvalues; zero unless it is wanted."""
    eps, n = float(jnp.finfo(b.dtype).eps), b.size

    def solve() -> tuple:
        A = lax.map(product, jnp.eye(n, dtype=b.dtype))
        values, basis = jnp.linalg.eigh((A + A.T) / 2)
        top = jnp.max(jnp.abs(values))
        curved = values > max(ZERO, COARSE * eps) * top
        parts = trees.matmul(b, basis)
        v = trees.matmul(basis, jnp.where(curved, parts / jnp.where(curved, values, 1), 0))
        residual = trees.matmul(basis, jnp.where(curved, 0, parts))
        return v, residual, values[0] < -max(NEGATIVE, COARSE * eps) * top, top

    zero = jnp.zeros((), b.dtype)
    nothing = (jnp.zeros_like(b), b, jnp.zeros((), bool), zero)
    v, residual, negative, top = lax.cond(wanted, solve, lambda: nothing)
    count = jnp.where(wanted, jnp.asarray(n, jnp.int32), 0)
    return Solved(v, residual, ~negative, negative, top, count)


def solve(
    product: Map, b: Vector, start: Vector | None, accuracy: Scalar, wanted: Bool[Array, ""]
) -> Solved:
    """The least-squares solution of A v = b; a wrong one unless it is wanted."""
    if b.size <= MOST_DENSE:
        return dense_solve(product, b, wanted)
    most = jnp.where(wanted, min(2 * b.size + 20, MOST_PRODUCTS), 0)
    found = conjugate_residuals(product, b, start, accuracy, most)
    return found if start is None else _refined(product, found, accuracy, most)


def _refined(product: Map, found: Solved, accuracy: Scalar, most: Int[Array, ""]) -> Solved:
    """The solution again if its residual r lies in the null space, but for a small part.

    Beside the null part conjugate residuals see the rest only to the root of the rounding unit.
    In A r the null part is gone: solving with A twice gives what is missing in v.
    """
    most = jnp.where(found.null, most, 0)

    def again(_: Int[Array, ""], s: tuple) -> tuple:
        u, count = s
        better = conjugate_residuals(product, u, None, accuracy, most)
        return better.v, count + better.products

    begin = (product(found.residual), found.products + 1)
    more, count = lax.fori_loop(0, 2, again, begin)
    return found._replace(
        v=found.v + more, residual=found.residual - product(more), products=count + 1
    )


class Memory(NamedTuple):
    """What the inner solves learn from each other, and count; see `inner.Memory`."""

    top: Scalar
    bent: Scalar
    negative: Int[Array, ""]
    gradients: Int[Array, ""]  # of g
    products: Int[Array, ""]


class Minimum(NamedTuple):
    """Where an inner solve stands."""

    y: Vector
    g: Scalar
    g_y: Vector
    first: Scalar  # the residual at the start
    residual: Scalar
    predicted: Scalar  # the residual left by the linear solve, relative to that before the step
    whole: Bool[Array, ""]  # whether the last Newton step was taken as it was
    lost: Bool[Array, ""]  # whether no part of it lowered g
    move: Scalar  # its length
    fall: Scalar  # of g
    memory: Memory
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    ok: Bool[Array, ""]


class Face(NamedTuple):
    """The face of Y that a projected gradient step reaches; see `inner.Face`."""

    at: Vector
    unit: Scalar
    move: Vector
    residual: Scalar
    turn: Map


def face(functions: Functions, y: Vector, g_y: Vector, top: Scalar, f_y: Vector | None) -> Face:
    """The face of Y at y; f_y, if given, decides where the boundary could go either way."""
    if functions.free_y:
        return Face(y, jnp.ones((), y.dtype), -g_y, max_abs(g_y), lambda w: w)
    slope, size = max_abs(g_y), max_abs(y)
    fallback = jnp.where(size > 0, size, 1) / jnp.where(slope > 0, slope, 1)
    unit = jnp.where(top > 0, 1 / jnp.where(top > 0, top, 1), fallback)
    at = y - unit * g_y
    move = functions.project_y(at) - y
    if f_y is not None:
        pull, length = max_abs(f_y), jnp.maximum(size, unit * slope)
        tie = max(TIE, 4 * float(jnp.finfo(y.dtype).eps)) * jnp.where(length > 0, length, 1)
        at = at - jnp.where(pull > 0, tie / jnp.where(pull > 0, pull, 1), 0) * f_y
    return Face(at, unit, move, max_abs(move) / unit, functions.turn_y(at))


def on_face(face: Face, free: bool, pull: Callable) -> Map:
    """The second derivatives of g on a face, with the curvature of a round boundary."""

    def product(w: Vector) -> Vector:
        along = face.turn(w)
        curved = face.turn(pull(along)[1])
        return curved if free else curved + (along - face.turn(along)) / face.unit

    return product


def minimise(
    functions: Functions, x: Vector, y: Vector, memory: Memory, accuracy: float
) -> Minimum:
    """Minimise g(x, .) from y by Newton's method, until its gradient is rounding.

    It falls to `accuracy` of the first one, or as far as the values of g can tell.
    """
    dtype, eps = y.dtype, float(jnp.finfo(y.dtype).eps)
    rounded, size = ROUNDED / EPS * eps, max_abs(y)
    one, yes, no = jnp.ones((), dtype), jnp.ones((), bool), jnp.zeros((), bool)
    start = Minimum(
        y, functions.g(x, y).astype(dtype), jnp.zeros_like(y), 0 * one, 0 * one, 0 * one, no,
        no, 0 * one, 0 * one, memory, jnp.zeros((), jnp.int32), no, yes,
    )  # fmt: skip

    def body(s: Minimum) -> Minimum:
        g_y, pull = functions.slope(x, s.y)
        at = face(functions, s.y, g_y, s.memory.top, None)
        begun, before = s.steps > 0, s.residual
        first = jnp.where(begun, s.first, at.residual)
        after = at.residual / jnp.where(before > 0, before, 1)
        bent = jnp.where(s.whole, jnp.clip(after - s.predicted, 0, 1), 1)
        bent = jnp.where(begun, bent, s.memory.bent)
        far = jnp.maximum(max_abs(s.y), size)
        enough = jnp.maximum(accuracy * first, rounded * s.memory.top * max_abs(s.y))
        met = at.residual <= enough
        stuck = begun & (s.fall <= rounded * jnp.abs(s.g)) & (after > 0.5)
        over = met | stuck | s.lost | (s.steps >= MOST_STEPS) | ~jnp.isfinite(s.g)
        ok = met | ((stuck | s.lost) & (s.move <= TRUSTED * far))
        target = 0.3 * enough / jnp.where(at.residual > 0, at.residual, 1)
        loose = jnp.clip(jnp.maximum(target, LOOSEST * bent), eps, LOOSEST)
        direction, found, memory = _newton(functions, at, pull, g_y, s.memory, loose, over)
        share, new, g = _search(functions, x, s.y, s.g, g_y, direction, over)
        return Minimum(
            new, g, g_y, first, at.residual,
            max_abs(found.residual) / jnp.where(at.residual > 0, at.residual, 1),
            (share == 1) & ~found.negative, share == 0, max_abs(direction), s.g - g,
            memory._replace(bent=bent), s.steps + 1, over, ok,
        )  # fmt: skip

    return lax.while_loop(lambda s: ~s.done, body, start)


def _top(functions: Functions, top: Scalar, found: Solved) -> Scalar:
    """The largest curvature of g met: on a round face, which depends on it, it would shrink."""
    if not functions.free_y:
        return jnp.maximum(top, found.top)
    return jnp.where(found.top > 0, found.top, top)


def _newton(
    functions: Functions,
    at: Face,
    pull: Callable,
    g_y: Vector,
    memory: Memory,
    accuracy: Scalar,
    over: Bool[Array, ""],
) -> tuple[Vector, Solved, Memory]:
    """A Newton direction; with a set Y, a projected gradient step and Newton's from there."""
    b, top, products = -g_y, memory.top, memory.products
    if not functions.free_y:
        curved, length = pull(at.move)[1], max_abs(at.move)
        seen = max_abs(curved) / jnp.where(length > 0, length, 1)
        top, products = jnp.maximum(top, seen), products + 1
        b = at.turn(at.move / at.unit - curved)
    found = solve(on_face(at, functions.free_y, pull), b, None, accuracy, ~over)
    memory = memory._replace(
        top=_top(functions, top, found),
        negative=memory.negative + jnp.where(found.negative, 1, 0),
        gradients=memory.gradients + 1,
        products=products + found.products,
    )
    if not functions.free_y:
        return at.move + at.turn(found.v), found, memory
    steepest = b / jnp.where(memory.top > 0, memory.top, 1)
    return jnp.where(jnp.any(found.v != 0), found.v, steepest), found, memory


def _search(
    functions: Functions,
    x: Vector,
    y: Vector,
    g: Scalar,
    g_y: Vector,
    direction: Vector,
    over: Bool[Array, ""],
) -> tuple[Scalar, Vector, Scalar]:
    """The part of a direction that decreases g, zero if none, and the point reached."""
    slope = jnp.minimum(dot(g_y, direction), 0)
    noise = 0.5 * ROUNDED / EPS * float(jnp.finfo(y.dtype).eps) * jnp.abs(g)

    def body(s: tuple) -> tuple:
        share = s[0]
        new = functions.project_y(y + share * direction)
        value = functions.g(x, new).astype(y.dtype)
        good = jnp.isfinite(value) & (value <= g + DECREASE * share * slope + noise)
        return jnp.where(good, share, 0.25 * share), new, value, good

    start = (jnp.ones_like(g), y, g, over)
    share, new, value, good = lax.while_loop(lambda s: ~s[-1] & (s[0] > SHORTEST), body, start)
    kept = good & ~over
    return jnp.where(kept, share, 0), jnp.where(kept, new, y), jnp.where(kept, value, g)


class Adjoint(NamedTuple):
    """What implicit differentiation gives.

    Attributes:
        v: the least-squares solution of g_yy v = -f_y on the face of y.
        gradient: the reduced gradient, its x part and its part in flat directions of y.
        at: where the face of Y is measured.
        error: <v, g_y>, to first order what f misses by the error of the inner solve.
    """

    v: Vector
    gradient: Vector
    at: Vector
    error: Scalar


def adjoint(
    functions: Functions,
    point: tuple[Vector, Vector],
    slope_f: tuple[Vector, Vector],
    v: Vector,
    memory: Memory,
    accuracy: float,
    running: Bool[Array, ""],
) -> tuple[Adjoint, Memory]:
    """The adjoint at an inner minimum, as far as that was found: see `inner.Inner.adjoint`."""
    (x, y), (f_x, f_y) = point, slope_f
    g_y, pull = functions.slope(x, y)
    here = face(functions, y, g_y, memory.top, f_y)
    b = -here.turn(f_y)
    product, exact = on_face(here, functions.free_y, pull), jnp.asarray(accuracy, b.dtype)
    found = solve(product, b, v, exact, running)
    r, eps = found.residual, float(jnp.finfo(b.dtype).eps)
    flat = found.null & (max_abs(r) > ROUNDED / EPS * eps * max_abs(b))
    along = dot(found.v, r) / jnp.where(flat, dot(r, r), 1)
    v = here.turn(found.v - jnp.where(flat, along, 0) * r)
    gradient = jnp.concatenate([f_x + pull(v)[0], jnp.where(flat, -here.turn(r), 0)])
    top = _top(functions, memory.top, found)
    gradients, products = memory.gradients + 1, memory.products + found.products + 1
    memory = memory._replace(top=top, gradients=gradients, products=products)
    return Adjoint(v, gradient, here.at, dot(v, g_y)), memory
