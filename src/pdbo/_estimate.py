"""The cheap stage of the certificate: what a few gradients tell about a point during a run.

It is no certificate: the inner search is short, from one start, and kinks of the value function are
not looked for. A run whose estimate is within the tolerance gets the full certificate; any other
one would very likely fail it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from . import _trees as trees
from ._certificate import MAX_SLACK, Pair, at_most_one
from ._minimize import search
from ._problem import Problem
from ._solver import Point
from .exact.compiled_inner import conjugate_residuals

FAR = 2.0  # times the size of y: a short inner search that goes this far may have no end


class Estimate(NamedTuple):
    """The entries of a certificate that a record holds, and the values of f and g.

    eps is infinite if the inner search runs away.
    """

    f: Float[Array, ""]
    g: Float[Array, ""]
    h: Float[Array, ""]
    multiplier: Float[Array, ""]
    stationarity: Float[Array, ""]
    feasibility: Float[Array, ""]
    complementarity: Float[Array, ""]
    inner_gap: Float[Array, ""]
    eps: Float[Array, ""]


def estimate(problem: Problem, point: Point, iterations: ArrayLike) -> Estimate:
    """The estimate at a solver's point, with so many gradients of g for the inner search.

    With a multiplier, the conditions of Definition 1 are measured at the point itself. Without one
    the point is taken for an inner minimum, and the implicit gradient of f is measured.
    """
    x, y = point.x, point.y
    f, grad_f = jax.value_and_grad(problem.outer, (0, 1))(x, y)
    g, grad_g = jax.value_and_grad(problem.inner, (0, 1))(x, y)
    found = search(lambda v: problem.inner(x, v), problem.y_set, y, iterations, remember=False)
    best = found.best
    gap = jnp.maximum(g - best.value, 0)
    slack = jnp.zeros_like(g) if point.slack is None else jnp.asarray(point.slack, g.dtype)
    h = gap - jnp.minimum(gap, jnp.maximum(slack, MAX_SLACK))
    outside = jnp.maximum(problem.x_set.distance(x), problem.y_set.distance(y))
    if point.multiplier is None:
        reached = trees.axpy(-found.step, grad_g[1], y)
        multiplier, stationarity = _implicit(problem, x, y, reached, grad_f, iterations)
        complementarity = jnp.zeros_like(g)
        scale = at_most_one(trees.length(grad_f))
    else:
        slope = jax.grad(problem.inner, 0)(x, best.point)
        grad_h = (trees.sub(grad_g[0], slope), grad_g[1])
        given = jnp.asarray(point.multiplier, g.dtype)
        multiplier, stationarity = _lagrangian(problem, (x, y), grad_f, grad_h, given)
        complementarity = multiplier * jnp.abs(h)
        scale = jnp.ones_like(g)
    apart = jnp.maximum(jnp.sqrt(h), outside)
    moved = trees.length(trees.sub(best.point, y))
    runs_away = moved > FAR * (1 + trees.length(y))
    return Estimate(
        f=f,
        g=g,
        h=gap - slack,
        multiplier=multiplier,
        stationarity=stationarity,
        feasibility=jnp.maximum(h, outside),
        complementarity=complementarity,
        inner_gap=gap,
        eps=jnp.where(
            runs_away,
            jnp.inf,
            jnp.maximum(jnp.maximum(stationarity, complementarity) / scale, apart),
        ),
    )


def values_only(problem: Problem, point: Point) -> Estimate:
    """f and g at a solver's point; nothing else is estimated."""
    f, g = problem.outer(point.x, point.y), problem.inner(point.x, point.y)
    unknown = jnp.full_like(g, jnp.nan)
    multiplier = unknown if point.multiplier is None else jnp.asarray(point.multiplier, g.dtype)
    return Estimate(f, g, unknown, multiplier, *[unknown] * 5)


def _lagrangian(
    problem: Problem, z: PyTree, grad_f: PyTree, grad_h: PyTree, given: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The given multiplier or the one that fits best, and the stationarity with it."""

    def left(m: Float[Array, ""]) -> PyTree:
        return Pair(problem).tangent(z, trees.scale(-1, trees.axpy(m, grad_h, grad_f)))

    along = trees.dot(grad_h, left(jnp.zeros_like(given)))
    size = trees.dot(grad_h, grad_h)
    fitted = jnp.maximum(along, 0) / jnp.where(size > 0, size, 1)
    own, best = trees.length(left(given)), trees.length(left(fitted))
    return jnp.where(own <= best, given, fitted), jnp.minimum(own, best)


def _implicit(
    problem: Problem, x: PyTree, y: PyTree, reached: PyTree, grad_f: PyTree, iterations: ArrayLike
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""The implicit gradient $f_x + g_{xy} v$ with the rest of $f_y + H v$, for $H v = -f_y$.

    Both are zero at a solution. v is found by conjugate residuals, on the face of Y onto which the
    point `reached` by a gradient step from y is projected. The multiplier returned is that of a
    point a small step $v / \lambda$ from y.
    """
    f_x, f_y = grad_f
    slope = jax.grad(problem.inner, (0, 1))

    def onto_face(v: PyTree) -> PyTree:
        return jax.jvp(problem.y_set.project, (reached,), (v,))[1]

    b = onto_face(trees.scale(-1, f_y))

    def times(v: PyTree) -> PyTree:
        return onto_face(jax.jvp(lambda w: slope(x, w)[1], (y,), (v,))[1])

    solved = conjugate_residuals(times, b, None, jnp.finfo(trees.dtype(b)).eps, iterations)
    v, rest = solved.v, solved.residual
    turn = jax.jvp(lambda w: slope(x, w)[0], (y,), (v,))[1]
    down = problem.x_set.tangent(x, trees.scale(-1, trees.add(f_x, turn)))
    size = trees.length(v)
    move = jnp.finfo(size.dtype).eps ** (1 / 3) * (1 + trees.length(y))
    return size / move, jnp.hypot(trees.length(down), trees.length(rest))
