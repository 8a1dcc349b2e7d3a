r"""The exact path in one compiled program, for jit, vmap and a mesh.

The method of `large`: at an inner minimum conjugate residuals give the reduced gradient in x and in
the flat directions of y, L-BFGS minimises over both, and y is brought back to the inner minimum
after every step. All solves are as accurate as the arithmetic allows, so that no accuracy has to be
chosen on the way.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _trees as trees
from .._problem import Problem
from .._trees import dot, max_abs
from .compiled_inner import Functions, Map, Memory, Scalar, Vector, adjoint, minimise
from .inner import MOST_NEGATIVE
from .large import HUGE, PAIRS, PAIRS_IF_HUGE
from .outer import CURVED, DECREASE, FIRST_RADIUS, GROWTH, SHORTEST, STRAIGHT, TIE
from .small import HARDLY, STILL
from .status import CONVERGED, FAILED, NONCONVEX, RUNNING, STALLED

POWER = 0.6  # of the rounding unit: the accuracy of the inner and adjoint solves
SHORT = 16.0  # times the rounding unit, relative to x and y: a step this short is rounding

Two = Float[Array, "2"]  # a number for x and one for y


class Pairs(NamedTuple):
    """The latest steps and the changes of the gradient along them, in ring buffers."""

    steps: Float[Array, "pairs n"]
    changes: Float[Array, "pairs n"]
    written: Int[Array, ""]


class CompiledState(NamedTuple):
    """Where a run stands; see `outer.LargeState`.

    Attributes:
        x, y: the point.
        v, at: its adjoint, and where the face of Y is measured.
        f, first: the value of f, or of f + <v, g_y> if Y is free, and the first one.
        gradient: the reduced gradient, its x part and its part in flat directions of y.
        pairs, scales, radius: what L-BFGS knows, for x and for y.
        sizes: the largest entries of x and y at the start.
        best: the smallest size of the gradient met.
        still: steps in a row without progress.
        memory: what the inner solves learnt.
        step, outer_gradients, status: counts, and whether and how the run ended.
    """

    x: PyTree
    y: PyTree
    v: Vector
    at: Vector
    f: Scalar
    first: Scalar
    gradient: Vector
    pairs: Pairs
    scales: Two
    radius: Two
    sizes: Two
    best: Scalar
    still: Int[Array, ""]
    memory: Memory
    step: Int[Array, ""]
    outer_gradients: Int[Array, ""]
    status: Int[Array, ""]


def start(x: PyTree, y: PyTree) -> CompiledState:
    """The state before the first step, which solves the inner problem."""
    flat, ny = ravel_pytree((x, y))[0], ravel_pytree(y)[0].size
    n, dtype = flat.size, flat.dtype
    most = PAIRS if n <= HUGE else PAIRS_IF_HUGE
    zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    rows, two, blank = jnp.zeros((most, n), dtype), jnp.zeros(2, dtype), jnp.zeros(ny, dtype)
    return CompiledState(
        x, y, blank, blank, zero, zero, jnp.zeros(n, dtype), Pairs(rows, rows, none), two,
        radius=two, sizes=jnp.stack([trees.max_abs(x), trees.max_abs(y)]),
        best=zero + jnp.finfo(dtype).max, still=none,
        memory=Memory(zero, zero, none, none, none), step=none, outer_gradients=none,
        status=none + RUNNING,
    )  # fmt: skip


def step(problem: Problem, state: CompiledState) -> CompiledState:
    """One step; the same state again once the run has ended."""

    def moved(state: CompiledState) -> CompiledState:
        new = _step(problem, state)
        return jax.tree.map(lambda a, b: lax.convert_element_type(a, b.dtype), new, state)

    return lax.cond(state.status == RUNNING, moved, lambda state: state, state)


class Trial(NamedTuple):
    """A step that the line search tried."""

    x: Vector
    y: Vector
    f: Scalar
    slope_f: tuple[Vector, Vector]
    move: Vector
    share: Scalar
    good: Bool[Array, ""]
    memory: Memory
    outer_gradients: Int[Array, ""]


def _step(problem: Problem, s: CompiledState) -> CompiledState:
    functions = Functions(problem, s.x, s.y)
    x, y = ravel_pytree(s.x)[0], ravel_pytree(s.y)[0]
    first, accuracy = s.step == 0, float(jnp.finfo(x.dtype).eps) ** POWER
    onto = _onto_faces(functions, x, s)
    p = _direction(s, onto, x.size)
    sizes, whole = _lengths(p, x.size), jnp.stack([max_abs(x), max_abs(y)])
    short = float(SHORT * jnp.finfo(x.dtype).eps)
    running = (s.status == RUNNING) & (first | jnp.any(sizes > short * whole))
    s = s._replace(memory=s.memory._replace(negative=0 * s.memory.negative))
    trial = _search(functions, x, y, s, p, accuracy, running)
    found, memory = adjoint(
        functions, (trial.x, trial.y), trial.slope_f, s.v, trial.memory, accuracy, trial.good
    )
    good = trial.good & trees.finite(found)
    new = s._replace(
        x=functions.to_x(trial.x), y=functions.to_y(trial.y), v=found.v, at=found.at,
        f=trial.f + found.error if functions.free_y else trial.f, gradient=found.gradient,
    )  # fmt: skip
    new = _learnt(s, new, p, trial, onto)
    new = _with_units(new, trial.slope_f, (trial.x, trial.y))
    new = trees.where(good, _judged(s, new), _without_step(s, running))
    convex = memory.negative <= MOST_NEGATIVE
    return new._replace(
        step=s.step + 1, outer_gradients=trial.outer_gradients, memory=memory,
        status=jnp.where(convex, new.status, NONCONVEX),
    )  # fmt: skip


def _lengths(z: Vector, nx: int) -> Two:
    """The largest entries of the x part and of the y part."""
    return jnp.stack([max_abs(z[:nx]), max_abs(z[nx:])])


def _sums(z: Vector, nx: int) -> Two:
    return jnp.stack([jnp.sum(z[:nx]), jnp.sum(z[nx:])])


def _spread(two: Two, nx: int, n: int) -> Vector:
    """A number for x and one for y, entry by entry."""
    return jnp.where(jnp.arange(n) < nx, two[0], two[1])


def _onto_faces(functions: Functions, x: Vector, s: CompiledState) -> Map:
    """The projection of a direction onto the faces of X and Y that the gradient leaves open."""
    nx, turn_y = x.size, functions.turn_y(s.at)
    slope, size = max_abs(s.gradient[:nx]), max_abs(x)
    unit = max(TIE, 4 * float(jnp.finfo(x.dtype).eps)) * jnp.where(size > 0, size, s.radius[0])
    length = jnp.where(slope > 0, unit / jnp.where(slope > 0, slope, 1), 0)
    turn_x = functions.turn_x(x - length * s.gradient[:nx])
    return lambda u: jnp.concatenate([turn_x(u[:nx]), turn_y(u[nx:])])


def _direction(s: CompiledState, onto: Map, nx: int) -> Vector:
    """A direction of descent no longer than the radius."""
    scale = _spread(s.scales, nx, s.gradient.size)
    along = onto(s.gradient)
    p = onto(_descent(s.pairs, scale, along)) - scale * (s.gradient - along)
    p = jnp.where(dot(s.gradient, p) < 0, p, -scale * s.gradient)
    p = p * _spread((s.radius > 0).astype(p.dtype), nx, p.size)
    sizes = _lengths(p, nx)
    ratio = jnp.where(sizes > 0, s.radius / jnp.where(sizes > 0, sizes, 1), 1)
    return jnp.minimum(jnp.min(ratio), 1) * p


def _descent(pairs: Pairs, scale: Vector, gradient: Vector) -> Vector:
    """Minus the approximate inverse Hessian times the gradient: see `lbfgs.descent`."""
    most = len(pairs.steps)
    kept = jnp.minimum(pairs.written, most)
    rise = jnp.sum(pairs.steps * pairs.changes, axis=1)
    weight = jnp.where(rise > 0, 1 / jnp.where(rise > 0, rise, 1), 0)

    def back(k: Int[Array, ""], s: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
        q, used = s
        i = (pairs.written - 1 - k) % most
        part = weight[i] * dot(pairs.steps[i], q)
        return q - part * pairs.changes[i], used.at[i].set(part)

    def forth(k: Int[Array, ""], q: Vector) -> Vector:
        i = (pairs.written - kept + k) % most
        return q + (used[i] - weight[i] * dot(pairs.changes[i], q)) * pairs.steps[i]

    q, used = lax.fori_loop(0, kept, back, (gradient, jnp.zeros_like(weight)))
    return -lax.fori_loop(0, kept, forth, scale * q)


def _search(
    functions: Functions,
    x: Vector,
    y: Vector,
    s: CompiledState,
    p: Vector,
    accuracy: float,
    running: Bool[Array, ""],
) -> Trial:
    """Ever shorter parts of a direction until f falls at the inner minimum; the first is taken.

    If Y is free it compares f + <v, g_y>, in which the error of inner solves is of second order.
    """
    nx, slope, first = x.size, dot(s.gradient, p), s.step == 0
    noise = 8 * float(jnp.finfo(x.dtype).eps) * jnp.abs(s.f)
    gradient_f = jax.value_and_grad(functions.f, (0, 1))

    def body(t: Trial) -> Trial:
        to = functions.project_x(x + t.share * p[:nx])
        near = functions.project_y(y + t.share * p[nx:])
        move = jnp.concatenate([to - x, near - y])
        found = minimise(functions, to, near, t.memory, accuracy)
        f, slope_f = gradient_f(to, found.y)
        after = f + dot(s.v, found.g_y) if functions.free_y else f  # else v may leave the face
        finite = found.ok & jnp.isfinite(after) & trees.finite(slope_f)
        expected = dot(s.gradient, move)
        good = first | ((expected < 0) & (after <= s.f + DECREASE * expected + noise))
        good &= finite
        bend = after - s.f - slope * t.share
        parabola = -0.5 * slope * t.share / jnp.where(bend > 0, bend, 1)
        cut = jnp.where(finite & (bend > 0), jnp.clip(parabola, 0.1, 0.5), 0.1)
        share = jnp.where(good, t.share, jnp.where(first, 0, cut * t.share))
        memory = found.memory
        return Trial(to, found.y, f, slope_f, move, share, good, memory, t.outer_gradients + 1)

    def going(t: Trial) -> Bool[Array, ""]:
        convex = t.memory.negative <= MOST_NEGATIVE
        return running & ~t.good & (t.share > SHORTEST) & convex

    no = jnp.zeros((), bool)
    begin = Trial(
        x, y, s.f, (jnp.zeros_like(x), jnp.zeros_like(y)), jnp.zeros_like(p),
        jnp.ones((), x.dtype), no, s.memory, s.outer_gradients,
    )  # fmt: skip
    return lax.while_loop(going, body, begin)


def _learnt(
    s: CompiledState, new: CompiledState, p: Vector, trial: Trial, onto: Map
) -> CompiledState:
    """The state with what a step taught about the curvature: see `outer.moved`."""
    nx = p.size - s.v.size
    change, slopes, sizes = new.gradient - s.gradient, _lengths(s.gradient, nx), _lengths(p, nx)
    straight = dot(s.scales, _lengths(change, nx) ** 2) <= STRAIGHT**2 * dot(s.scales, slopes**2)
    grown = jnp.where(straight & (sizes > 0.5 * s.radius), GROWTH * s.radius, s.radius)
    cut = jnp.maximum(2 * trial.share * sizes, 0.1 * s.radius)
    step, change = onto(trial.move), onto(change)
    rise, squares = _sums(step * change, nx), _sums(change**2, nx)
    bounds = CURVED * jnp.sqrt(_sums(step**2, nx) * squares)
    keep = (jnp.sum(rise) > jnp.sum(bounds)) & (s.step > 0)
    row = s.pairs.written % len(s.pairs.steps)
    pairs = Pairs(
        s.pairs.steps.at[row].set(jnp.where(keep, step, s.pairs.steps[row])),
        s.pairs.changes.at[row].set(jnp.where(keep, change, s.pairs.changes[row])),
        s.pairs.written + jnp.where(keep, 1, 0),
    )
    secant = jnp.where(rise > bounds, rise / jnp.where(squares > 0, squares, 1), s.scales)
    longer = jnp.where(jnp.sum(rise) <= 0, 4 * s.scales, s.scales)
    return new._replace(
        pairs=pairs, scales=jnp.where(keep, secant, longer),
        radius=jnp.where(trial.share < 1, cut, grown),
    )  # fmt: skip


def _with_units(
    s: CompiledState, slope_f: tuple[Vector, Vector], point: tuple[Vector, Vector]
) -> CompiledState:
    """A radius and a scale for parts of the gradient that are no longer zero."""
    (f_x, f_y), (x, y), nx = slope_f, point, point[0].size
    slopes = _lengths(s.gradient, nx)
    safe = jnp.where(slopes > 0, slopes, 1)

    def or_else(*sizes: Scalar) -> Scalar:
        """The first that is positive."""
        unit = sizes[-1]
        for size in reversed(sizes[:-1]):
            unit = jnp.where(size > 0, size, unit)
        return unit

    size_x, size_y = jnp.maximum(s.sizes, jnp.stack([max_abs(x), max_abs(y)]))
    through = max_abs(s.gradient[:nx] - f_x)
    by_y = jnp.where(through > 0, size_y * max_abs(f_y) / jnp.where(through > 0, through, 1), 0)
    by_f = jnp.abs(s.f) / safe
    units = jnp.stack([
        or_else(size_x, by_y, by_f[0], jnp.asarray(nx**0.5, x.dtype)),
        or_else(size_y, by_f[1], jnp.asarray(y.size**0.5, y.dtype)),
    ])  # fmt: skip
    fresh = (slopes > 0) & (s.radius == 0)
    radius = jnp.where(fresh, FIRST_RADIUS * units, s.radius)
    return s._replace(radius=radius, scales=jnp.where(fresh, radius / safe, s.scales))


def _judged(s: CompiledState, new: CompiledState) -> CompiledState:
    """The state after a step, with its progress and its status."""
    size = max_abs(new.gradient)
    first = jnp.where(s.step == 0, new.f, s.first)
    noise = SHORT * float(jnp.finfo(size.dtype).eps) * jnp.abs(new.f)
    hardly = jnp.maximum(HARDLY * (first - new.f), noise)
    progress = (size < 0.9 * s.best) | (new.f < s.f - hardly)
    still = jnp.where(progress, 0, s.still + 1)
    status = jnp.where(still >= STILL, CONVERGED, RUNNING)
    best = jnp.minimum(size, s.best)
    return new._replace(first=first, best=best, still=still, status=status)


def _without_step(s: CompiledState, tried: Bool[Array, ""]) -> CompiledState:
    """The state after a line search that found nothing, or a direction too short to try.

    The search is repeated along the gradient, from shorter steps on.
    """
    again = tried & (s.step > 0) & (s.still < STILL)
    ended = jnp.where(s.step == 0, FAILED, jnp.where(tried, STALLED, CONVERGED))
    slopes = _lengths(s.gradient, s.gradient.size - s.v.size)
    radius = 10 * SHORTEST * s.radius
    other = s._replace(
        still=s.still + 1, radius=radius, scales=radius / jnp.where(slopes > 0, slopes, 1),
        pairs=s.pairs._replace(written=jnp.zeros_like(s.pairs.written)),
    )  # fmt: skip
    return trees.where(again, other, s)._replace(status=jnp.where(again, RUNNING, ended))
