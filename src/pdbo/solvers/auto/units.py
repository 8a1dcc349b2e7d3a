"""The lengths that x and y are measured in (idea 6 of `AutoPDBO`)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree, UInt32

from ..._minimize import minimize
from ..._problem import Problem
from ...sets import Free, Set

PROBES = 3  # gradients per probe: at the point, with x moved, with y moved
LOOK = 30  # inner steps before g is probed again, if x has no effect at the start
MAX_X_UNIT = 100.0  # bound on the unit of x, in x-steps that move the inner solution by one unit
RADIUS = 0.2  # the longest step of an iteration, in units per entry
NO_SLOPE = 1e3  # probe lengths: a slope of g in x that turns within them is taken for rounding


class Units(NamedTuple):
    """The units, and what else was evaluated on the way."""

    lengths: Float[Array, "2"]  # of an entry of x and of an entry of y
    f: Float[Array, ""]  # at the start
    grad_f: Float[Array, " z"]  # at the start
    spent: Int[Array, ""]  # gradients of g


class _Probe(NamedTuple):
    """A function's value and gradients at a point, and the sizes of its second derivatives along
    random directions, by differences."""

    value: Float[Array, ""]
    x: Float[Array, " x"]
    y: Float[Array, " y"]
    xx: Float[Array, ""]
    yy: Float[Array, ""]
    xy: Float[Array, ""]


def measure(problem: Problem, x: PyTree, y: PyTree, seed: UInt32[Array, ""]) -> Units:
    """Half-widths of the sets; if they are unbounded, lengths that balance curvatures."""
    flat_x, flat_y = ravel_pytree(x)[0], ravel_pytree(y)[0]
    f, g = (_probe(function, x, y, seed) for function in (problem.outer, problem.inner))
    ratio = _curvature_ratio(f, g)
    size_x, size_y = (jnp.sqrt(jnp.mean(flat**2)) for flat in (flat_x, flat_y))

    # if x has no effect at the start, g is probed again nearer to the inner solution
    def nearer(_: None) -> tuple[Float[Array, ""], Float[Array, ""]]:
        best = minimize(lambda y: problem.inner(x, y), problem.y_set, y, LOOK).point
        found = _probe(problem.inner, x, best, seed)
        return _reach(found), _bend(found, flat_x, seed)

    far, most = _reach(g), _bend(g, flat_x, seed)
    mute = (far == 0) & (ratio == 0)
    far, most = lax.cond(mute, nearer, lambda _: (far, most), None)
    guessed = (far > 0) & ((ratio == 0) | (ratio > MAX_X_UNIT * far))
    ratio = jnp.where(guessed, far, ratio)
    ratio = jnp.where(ratio > 0, ratio, _over(size_x, size_y))
    ratio = jnp.where((ratio > 0) & jnp.isfinite(ratio), ratio, 1)
    width_x = _half_width(problem.x_set, x, flat_x.size)
    width_y = _half_width(problem.y_set, y, flat_y.size)
    around = _newton_length(f, g, size_y)
    unit_y = jnp.where(width_y > 0, width_y, jnp.where(width_x > 0, width_x / ratio, around))
    unit_x = unit_y * ratio
    unit_x = jnp.where(guessed & (most > 0), jnp.minimum(unit_x, most), unit_x)
    unit_x = jnp.where(width_x > 0, width_x, unit_x)
    lengths = jnp.stack([unit_x, unit_y]).astype(flat_y.dtype)
    spent = PROBES + jnp.where(mute, LOOK + PROBES, 0).astype(jnp.int32)
    return Units(lengths, f.value, jnp.concatenate([f.x, f.y]), spent)


def _probe(
    function: Callable[[PyTree, PyTree], Array], x: PyTree, y: PyTree, seed: UInt32[Array, ""]
) -> _Probe:
    """The function at (x, y), with x moved a little, and with y moved a little."""
    flat_x, to_x = ravel_pytree(x)
    flat_y, to_y = ravel_pytree(y)
    move_x, move_y = _aside(flat_x, seed), _aside(flat_y, seed)
    xs = flat_x + jnp.stack([0 * move_x, move_x, 0 * move_x])
    ys = flat_y + jnp.stack([0 * move_y, 0 * move_y, move_y])
    at = jax.value_and_grad(lambda x, y: function(to_x(x), to_y(y)), (0, 1))
    value, (in_x, in_y) = jax.vmap(at)(xs, ys)
    eps = float(jnp.finfo(flat_y.dtype).eps)

    def curvature(rows: Float[Array, "3 n"], row: int, move: Array) -> Float[Array, ""]:
        change = jnp.linalg.norm(rows[row] - rows[0])
        real = change > 16 * eps * jnp.linalg.norm(rows[0])
        return jnp.where(real, change / jnp.linalg.norm(move), 0)

    return _Probe(
        value[0],
        in_x[0],
        in_y[0],
        xx=curvature(in_x, 1, move_x),
        yy=curvature(in_y, 2, move_y),
        xy=curvature(in_y, 1, move_x),
    )


def _aside(z: Float[Array, " n"], seed: UInt32[Array, ""]) -> Float[Array, " n"]:
    """A small random move from z, good for differences of gradients."""
    v = Free().hashed_point(seed, jnp.zeros_like(z), 1)
    size = jnp.linalg.norm(z)
    eps = float(jnp.finfo(z.dtype).eps)
    return eps ** (1 / 3) * jnp.where(size > 0, size, 1) * v / jnp.linalg.norm(v)


def _over(a: Array, b: Array) -> Array:
    """a / b, or 0 if b is not positive."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _half_width(set_: Set, z: PyTree, size: int) -> Float[Array, ""]:
    """Half the width of a set per entry, or 0 if it is unbounded."""
    diameter = set_.diameter(z)
    return jnp.where(jnp.isfinite(diameter), diameter, 0) / (2 * size**0.5)


def _curvature_ratio(f: _Probe, g: _Probe) -> Float[Array, ""]:
    """The unit of x, in units of y, that makes curvatures in x and y alike; 0 if unknown."""
    ratios = [jnp.sqrt(_over(p.yy, p.xx)) for p in (f, g)]
    both = (ratios[0] > 0) & (ratios[1] > 0)
    return jnp.where(both, jnp.sqrt(ratios[0] * ratios[1]), jnp.maximum(*ratios))


def _reach(g: _Probe) -> Float[Array, ""]:
    """How far x has to go for the inner solution to go as far as a unit of y."""
    return _over(g.yy, g.xy) * (g.y.size / g.x.size) ** 0.5


def _bend(g: _Probe, flat_x: Float[Array, " x"], seed: UInt32[Array, ""]) -> Float[Array, ""]:
    """How far x goes before the slope of g in x is another; 0 if there is next to no slope."""
    length = _over(jnp.linalg.norm(g.x), g.xx)
    real = length > NO_SLOPE * jnp.linalg.norm(_aside(flat_x, seed))
    return jnp.where(real, length, 0) / flat_x.size**0.5


def _newton_length(f: _Probe, g: _Probe, size_y: Float[Array, ""]) -> Float[Array, ""]:
    """The longer Newton step in y of f and g per entry, near the size of y unless that is 0."""
    newton = jnp.zeros((), f.y.dtype)
    for p in (f, g):
        newton = jnp.maximum(newton, _over(jnp.linalg.norm(p.y), p.yy) / p.y.size**0.5)
    around = jnp.where(size_y > 0, jnp.clip(newton, size_y, 10 * size_y), newton)
    return jnp.where((around > 0) & jnp.isfinite(around), around, 1)
