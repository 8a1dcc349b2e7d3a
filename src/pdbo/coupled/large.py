r"""Large problems with inner constraints, by gradients alone: an augmented Lagrangian inside.

    repeat at x
      y, m = argmin over Y of g(x, y) + |max(0, m + rho c(x, y))|^2 / (2 rho), until m is steady
      H v + A'w = f_y, A v = 0     the adjoint, A the active rows, H of the inner Lagrangian
      x = P(x - s (f_x - L_xy v - c_x'w))     a projected gradient step, with a line search

It needs a follower whose solution is unique and varies smoothly with x nearly everywhere: a
strongly convex g. There is no outer constraint. Where that fails the adjoint is not solved, and the
certificate says so. Everything is products with derivatives; nothing is stored but vectors.

References: Hestenes, Multiplier and gradient methods (1969); Birgin, Martinez and Raydan,
Nonmonotone spectral projected gradient methods on convex sets (2000).
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.optimize import nnls

from .. import _trees as trees
from .._minimize import search
from .._problem import Problem, constraint_rows

ROUNDS = 60  # the most multiplier updates of an inner solve
ITERATIONS = 2000  # the most gradient steps between two of them
SHRINK = 0.5  # of the violation, or the penalty grows by 4
MOST = 1e4  # the largest penalty, relative to the first
ADJOINT = 40  # multiplier updates of the adjoint
SOLVES = 300  # conjugate-gradient steps of each
POWER = 12  # products behind an estimate of a largest eigenvalue
TRIES = 12  # ever shorter steps of x
PAST = 5  # values of f, the largest of which a step must lower
SEEN = 40  # points whose derivatives are kept
SAMPLES = 8  # random directions that measure the rows

Scalar = Float[Array, ""]


class Answer(NamedTuple):
    """The follower's answer at x: y, the multipliers of rows <= 0 and = 0, and how exact it is."""

    y: PyTree
    m: Array
    u: Array
    rho: Array
    residual: Scalar  # of the inner optimality conditions, relative to their terms
    off: Scalar  # the largest violation of a row, or m times its slack, relative to the rows


class Slope(NamedTuple):
    """f, its total derivative in x, the size of the parts of that, and the adjoint's residual."""

    f: Scalar
    by_x: PyTree
    size: Scalar
    left: Scalar


def _rows(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    below, zero = constraint_rows(problem.constraint("inner", x, y))
    return below, zero


def _lagrangian(problem: Problem, x: PyTree, y: PyTree, m: Array, u: Array) -> Scalar:
    below, zero = _rows(problem, x, y)
    return problem.inner(x, y) + m @ below + u @ zero


@eqx.filter_jit
def first_penalty(problem: Problem, x: PyTree, y: PyTree) -> tuple[Scalar, Array, Array]:
    """The penalty at which g and the rows are as curved, and the sizes of the rows."""

    def top(product: Callable[[PyTree], PyTree]) -> Scalar:
        def step(_: int, w: PyTree) -> PyTree:
            w = product(w)
            return trees.scale(1 / jnp.maximum(trees.norm(w), 1e-300), w)

        start = jax.tree.map(lambda leaf: jnp.cos(1.7 * jnp.arange(leaf.size, dtype=leaf.dtype))
                             .reshape(leaf.shape), y)  # fmt: skip
        return trees.norm(product(lax.fori_loop(0, POWER, step, start)))

    def curve(w: PyTree) -> PyTree:
        return jax.jvp(jax.grad(lambda v: problem.inner(x, v)), (y,), (w,))[1]

    def rows(v: PyTree) -> tuple[Array, Array]:
        return _rows(problem, x, v)

    _, pull = jax.vjp(rows, y)

    def squares(w: PyTree) -> PyTree:
        return pull(jax.jvp(rows, (y,), (w,))[1])[0]

    size = jnp.maximum(trees.max_abs(y), 1e-12)

    def along(key: Array) -> tuple[Array, Array]:
        signs = jax.tree.map(lambda leaf: jax.random.rademacher(key, leaf.shape, leaf.dtype), y)
        return jax.jvp(rows, (y,), (trees.scale(size, signs),))[1]

    sampled = jax.vmap(along)(jax.random.split(jax.random.key(0), SAMPLES))
    below, zero = (jnp.sqrt(jnp.mean(part**2, axis=0)) for part in sampled)
    return top(curve) / jnp.maximum(top(squares), 1e-300), below, zero


@eqx.filter_jit
def _round(
    problem: Problem, x: PyTree, at: Answer, tol: Scalar, sizes: tuple[Array, Array]
) -> Answer:
    """The inner problem with the multipliers held, and the multipliers after it."""
    rho = at.rho

    def merit(v: PyTree) -> Scalar:
        below, zero = _rows(problem, x, v)
        hinge = jnp.maximum(0, at.m + rho * below)
        return problem.inner(x, v) + hinge @ hinge / (2 * rho) + at.u @ zero + rho / 2 * zero @ zero

    slope = trees.norm(jax.grad(lambda v: problem.inner(x, v))(at.y))
    y = search(merit, problem.y_set, at.y, ITERATIONS, tol * jnp.maximum(slope, 1e-300)).best.point
    below, zero = _rows(problem, x, y)
    m, u = jnp.maximum(0, at.m + rho * below), at.u + rho * zero
    by_g = jax.grad(lambda v: problem.inner(x, v))(y)
    by_l = jax.grad(lambda v: _lagrangian(problem, x, v, m, u))(y)
    left = trees.norm(problem.y_set.tangent(y, trees.scale(-1, by_l)))
    size = trees.norm(by_g) + trees.norm(trees.sub(by_l, by_g))
    known = [jnp.where(s > 0, s, 1) for s in sizes]
    off = jnp.maximum(
        jnp.max(jnp.abs(m - at.m) / rho / known[0], initial=0),
        jnp.max(jnp.abs(zero) / known[1], initial=0),
    )
    return Answer(y, m, u, rho, left / jnp.maximum(size, 1e-300), off)


def respond(
    problem: Problem, x: PyTree, start: Answer, tol: float, sizes: tuple[Array, Array], first: float
) -> Answer:
    """The follower's answer at x, from an answer nearby."""
    at, before = start, np.inf
    for _ in range(ROUNDS):
        at = _round(problem, x, at, jnp.asarray(tol), sizes)
        off = float(at.off)
        if off <= tol and float(at.residual) <= 2 * tol:
            break
        if off > SHRINK * before and float(at.rho) < MOST * first:
            at = at._replace(rho=4 * at.rho)
        before = off
    return at


@eqx.filter_jit
def slope(problem: Problem, x: PyTree, at: Answer) -> Slope:
    """The total derivative of f at the follower's answer."""
    y, m, u, rho = at.y, at.m, at.u, 10 * at.rho
    f, (f_x, f_y) = jax.value_and_grad(problem.outer, (0, 1))(x, y)

    def by_y(x: PyTree, y: PyTree) -> PyTree:
        return jax.grad(lambda v: _lagrangian(problem, x, v, m, u))(y)

    def held(x: PyTree, y: PyTree) -> tuple[Array, Array]:
        below, zero = _rows(problem, x, y)
        return jnp.where(m > 0, below, 0), zero

    step = trees.norm(y) / jnp.maximum(trees.norm(by_y(x, y)), 1e-300)
    step = jnp.minimum(step, 1.0) * 1e-3
    inside = trees.axpy(-step, by_y(x, y), y)

    def turn(w: PyTree) -> PyTree:
        return jax.jvp(problem.y_set.project, (inside,), (w,))[1]

    def push(w: PyTree) -> tuple[Array, Array]:
        return jax.jvp(lambda v: held(x, v), (y,), (w,))[1]

    _, pull = jax.vjp(held, x, y)

    def curve(w: PyTree) -> PyTree:
        return jax.jvp(lambda v: by_y(x, v), (y,), (w,))[1]

    def operator(w: PyTree) -> PyTree:
        t = turn(w)
        full = trees.axpy(rho, pull(push(t))[1], curve(t))
        return trees.add(turn(full), trees.sub(w, t))

    def update(_: Array, pair: tuple) -> tuple:
        v, w = pair
        right = turn(trees.sub(f_y, pull(w)[1]))
        v = jax.scipy.sparse.linalg.cg(operator, right, v, tol=1e-9, maxiter=SOLVES)[0]
        return v, jax.tree.map(lambda old, new: old + rho * new, w, push(turn(v)))

    zero = jax.tree.map(jnp.zeros_like, push(y))
    v, w = lax.fori_loop(0, ADJOINT, update, (trees.zeros_like(y), zero))
    v = turn(v)
    left = turn(trees.sub(f_y, trees.add(curve(v), pull(w)[1])))
    leak = trees.norm(pull(push(v))[1]) * rho
    answered = jax.vjp(lambda x: by_y(x, y), x)[1](v)[0]
    shift = trees.add(answered, pull(w)[0])
    size = trees.norm(f_x) + trees.norm(shift)
    right = jnp.maximum(trees.norm(turn(f_y)), 1e-300)
    return Slope(f, trees.sub(f_x, shift), size, (trees.norm(left) + leak) / right)


def stationarity(problem: Problem, past: list[tuple[PyTree, Slope]], near: float) -> float:
    """How far the last point is from stationary, relative to the parts of f's derivative.

    f has kinks where a row becomes active. What counts is the shortest convex combination of the
    derivatives at points that are near, after Goldstein, Optimization of Lipschitz continuous
    functions (1977).
    """
    x, last = past[-1]
    reach = near * float(trees.norm(x))
    close = [s for z, s in past[:-1] if float(trees.norm(trees.sub(z, x))) <= reach]
    flat = [np.asarray(ravel_pytree(s.by_x)[0]) / float(s.size or 1) for s in [*close, last]]
    best = np.inf
    unravel = ravel_pytree(last.by_x)[1]
    for columns in ([flat[-1]], flat):
        D = np.stack(columns, axis=1)
        heavy = 1e3 * max(1.0, float(np.max(np.abs(D), initial=0.0)))
        system = np.concatenate([D, np.full((1, D.shape[1]), heavy)])
        weights = nnls(system, np.r_[np.zeros(len(D)), heavy])[0]
        weights = weights / max(float(np.sum(weights)), 1e-300)
        best = min(best, float(problem.x_set.residual(x, unravel(D @ weights))))
    return best


class Step(NamedTuple):
    """Where the descent stands after a step."""

    number: int
    x: PyTree
    at: Answer
    slope: Slope
    stationarity: float


def descend(
    problem: Problem, x: PyTree, y: PyTree, tol: float, steps: int, told: Callable[[Step], bool]
) -> tuple[Step, bool]:
    """Spectral projected gradient steps on f at the follower's answers; whether it was stopped.

    It ends if the derivative is within the tolerance, if no step lowers f, or if `told`, which
    sees every step, returns True.
    """
    exact = min(1e-2 * tol, 1e-6)
    penalty, *sizes = first_penalty(problem, x, y)
    below, zero = (0 * part for part in sizes)
    start = Answer(y, below, zero, penalty, jnp.inf, jnp.inf)  # type: ignore
    at = respond(problem, x, start, exact, tuple(sizes), float(penalty))  # type: ignore
    s = slope(problem, x, at)
    seen = [(x, s)]
    here = Step(0, x, at, s, stationarity(problem, seen, tol))
    length = 0.1 * (1 + float(trees.norm(x))) / max(float(trees.norm(s.by_x)), 1e-300)
    past = [float(s.f)]
    while True:
        if told(here):
            return here, True
        if here.stationarity <= 0.5 * tol or here.number >= steps:
            return here, False
        for _ in range(TRIES):
            x = problem.x_set.project(trees.axpy(-length, here.slope.by_x, here.x))
            move = trees.sub(x, here.x)
            at = respond(problem, x, here.at, exact, tuple(sizes), float(penalty))  # type: ignore
            f = float(_outer(problem, x, at.y))
            fall = float(trees.dot(here.slope.by_x, move))
            if f <= max(past[-PAST:]) + 1e-4 * fall:
                break
            length /= 4
        else:
            return here, False
        s = slope(problem, x, at)
        change = trees.sub(s.by_x, here.slope.by_x)
        ss, sy = float(trees.dot(move, move)), float(trees.dot(move, change))
        length = ss / sy if sy > 1e-300 else 4 * length
        past.append(f)
        seen = [*seen[1 - SEEN :], (x, s)]
        here = Step(here.number + 1, x, at, s, stationarity(problem, seen, tol))


@eqx.filter_jit
def _outer(problem: Problem, x: PyTree, y: PyTree) -> Scalar:
    return problem.outer(x, y)


@eqx.filter_jit
def inner_gap(problem: Problem, x: PyTree, y: PyTree, other: PyTree) -> Scalar:
    """How far g at y is from g at another answer, relative to its change over the size of y."""
    by_g = jax.grad(lambda v: problem.inner(x, v))(y)
    size = trees.norm(by_g) * trees.norm(y)
    gap = problem.inner(x, y) - problem.inner(x, other)
    return gap / jnp.maximum(size, 1e-300)


def answer_again(problem: Problem, x: PyTree, y: PyTree, tol: float) -> Answer:
    """The follower's answer at x from elsewhere: from the point of Y nearest to zero."""
    penalty, *sizes = first_penalty(problem, x, y)
    below, zero = (0 * part for part in sizes)
    cold = problem.y_set.project(trees.zeros_like(y))
    start = Answer(cold, below, zero, penalty, jnp.inf, jnp.inf)  # type: ignore
    return respond(problem, x, start, min(1e-2 * tol, 1e-6), tuple(sizes), float(penalty))  # type: ignore
