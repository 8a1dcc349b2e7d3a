"""Balls and simplices."""

import functools
import math
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PyTree

from .. import _trees as trees
from .._errors import ProblemError
from . import Set, _check_fit, _concrete, _entries, _fit, _floats, _norm, _scalar


@final
class Ball(Set):
    r"""The Euclidean ball $\{z : \|z - center\| \le radius\}$, the norm taken over all leaves.

    Arguments:
        radius: a number, at least 0.
        center: a number, an array or a pytree of these, like the bounds of a `Box`.
    """

    in_parts = True

    radius: Float[Array, ""]
    center: PyTree[Array]

    def __init__(self, radius: ArrayLike, center: PyTree = 0.0):
        self.radius = _scalar("Ball radius", radius)
        self.center = _floats("Ball center", center, finite=True)
        if _concrete(radius) and np.asarray(radius) < 0:
            raise ProblemError(f"Ball radius is {radius}; expected at least 0.")

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        offset = trees.sub(z, _fit(self.center, z))
        return trees.dot(offset, offset) - jnp.asarray(self.radius, trees.dtype(z)) ** 2, ()

    def _project(self, z: PyTree) -> PyTree:
        center = _fit(self.center, z)
        offset = trees.sub(z, center)
        length = _norm(offset)
        radius = jnp.asarray(self.radius, length.dtype)
        outside = length > radius
        # Both factors are masked, so that the branch not taken has a finite gradient.
        unit = _divide(offset, jnp.where(outside, length, 1))
        onto = trees.axpy(jnp.where(outside, radius, 1), unit, center)
        return trees.where(outside, onto, z)

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        offset = trees.sub(z, _fit(self.center, z))
        length = _norm(offset)
        radius = jnp.asarray(self.radius, length.dtype)
        active = radius - length <= self._close(z, ulps)
        unit = _divide(offset, jnp.where(length > 0, length, 1))
        outward = jnp.where(active, jnp.maximum(trees.dot(unit, v), 0), 0)
        inward = trees.axpy(-outward, unit, v)
        return trees.where(radius > 0, inward, trees.zeros_like(v))

    def _close(self, z: PyTree, ulps: float) -> Float[Array, ""]:
        offset = trees.sub(z, _fit(self.center, z))
        return ulps * jnp.maximum(trees.norm(z), trees.norm(offset))

    def _diameter(self, z: PyTree) -> Float[Array, ""]:
        return 2 * self.radius

    def _from_unit_cube(self, u: PyTree, z: PyTree, radius: ArrayLike) -> PyTree:
        bounded = jnp.isfinite(self.radius)
        middle = trees.where(bounded, _fit(self.center, z), z)
        return super()._from_unit_cube(u, middle, jnp.where(bounded, self.radius, radius))

    def _check(self, z: PyTree, name: str, point: str) -> None:
        _check_fit("Ball center", self.center, z, name, point)


@final
class Simplex(Set):
    r"""The simplex $\{z \ge 0 : \sum_i z_i = total\}$ over all entries of all leaves.

    Arguments:
        total: a number, at least 0.

    Reference: Michelot, A finite algorithm for finding the projection of a point onto the canonical
    simplex of R^n, 1986. It needs sums alone, so entries may lie on many devices.
    """

    in_parts = True

    total: Float[Array, ""]

    def __init__(self, total: ArrayLike = 1.0):
        self.total = _scalar("Simplex total", total, finite=True)
        if _concrete(total) and np.asarray(total) < 0:
            raise ProblemError(f"Simplex total is {total}; expected at least 0.")

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        flat = ravel_pytree(z)[0]
        return -flat, jnp.sum(flat) - self._total(flat)

    def _project(self, z: PyTree) -> PyTree:
        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), z)
        return _fill(z, none, self._total(z))

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        positive = jax.tree.map(lambda leaf: leaf > ulps * self._total(z), z)
        return _fill(v, positive, jnp.zeros((), trees.dtype(v)))

    def _total(self, z: PyTree) -> Float[Array, ""]:
        return jnp.asarray(self.total, trees.dtype(z))

    def _diameter(self, z: PyTree) -> Float[Array, ""]:
        return (math.sqrt(2) if _entries(z) > 1 else 0.0) * self.total

    def _from_unit_cube(self, u: PyTree, z: PyTree, radius: ArrayLike) -> PyTree:
        # the spacings of uniform numbers are uniform over the simplex
        spacings = jax.tree.map(lambda u: -jnp.log1p(-u) + jnp.finfo(u.dtype).tiny, u)
        share = jnp.asarray(self.total, trees.dtype(z)) / _norm1(spacings)
        return self._project(trees.scale(share, spacings))

    def _check(self, z: PyTree, name: str, point: str) -> None:
        if _entries(z) == 0:
            raise ProblemError(f"{name}: Simplex needs an entry but {point} has none.")


def _divide(a: PyTree, s: Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf / s, a)


def _norm1(a: PyTree) -> Float[Array, ""]:
    return functools.reduce(jnp.add, [jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(a)])


def _fill(v: PyTree, free: PyTree[Bool[Array, "..."]], total: Float[Array, ""]) -> PyTree:
    r"""The $d$ nearest to $v$ with $\sum_i d_i = total$ and $d_i \ge 0$ unless i is free.

    It is $v - \tau$, cut at zero unless free.
    """
    # Differences to the largest entry are summed: sums of entries near 1e6 lose 1 % in float32.
    top = functools.reduce(
        jnp.maximum, [jnp.max(leaf, initial=-jnp.inf) for leaf in jax.tree.leaves(v)]
    )
    v = jax.tree.map(lambda leaf: leaf - jax.lax.stop_gradient(top), v)
    level = _level(jax.lax.stop_gradient(v), free, jax.lax.stop_gradient(total))
    d = jax.tree.map(lambda leaf: leaf - level, v)
    # Newton steps on the sum remove its rounding error and carry the derivative.
    for _ in range(2):
        support = jax.tree.map(lambda free, leaf: free | (leaf > 0), free, d)
        excess, count = _sum_of(d, support)
        d = jax.tree.map(lambda leaf: leaf - (excess - total) / jnp.maximum(count, 1), d)  # noqa: B023
    return jax.tree.map(lambda free, leaf: jnp.where(free | ~(leaf <= 0), leaf, 0), free, d)


def _level(
    v: PyTree, free: PyTree[Bool[Array, "..."]], total: Float[Array, ""]
) -> Float[Array, ""]:
    r"""The $\tau$ at which the free entries of $v - \tau$ and its positive ones sum to the total.

    Newton's method from below: the mean over the entries above the level is the next level, and
    entries only ever leave. The largest entry must be zero.
    """

    def mean_above(level: Float[Array, ""]) -> Float[Array, ""]:
        above = jax.tree.map(lambda free, leaf: free | (leaf > level), free, v)
        sum_, count = _sum_of(v, above)
        return jnp.where(count > 0, (sum_ - total) / jnp.maximum(count, 1), level)

    sum_, count = _sum_of(v, free)
    least = jnp.where(count > 0, (sum_ - total) / jnp.maximum(count, 1), -total)
    first = jnp.maximum(least, mean_above(jnp.full_like(total, -jnp.inf)))
    levels = (first, mean_above(first))
    return jax.lax.while_loop(lambda s: s[1] > s[0], lambda s: (s[1], mean_above(s[1])), levels)[0]


def _sum_of(v: PyTree, chosen: PyTree[Bool[Array, "..."]]) -> tuple[Array, Array]:
    """The sum of the entries chosen, and how many they are."""
    sums = jax.tree.map(lambda leaf, c: jnp.sum(jnp.where(c, leaf, 0)), v, chosen)
    counts = jax.tree.map(lambda leaf, c: jnp.sum(c, dtype=leaf.dtype), v, chosen)
    return tuple(functools.reduce(jnp.add, jax.tree.leaves(part)) for part in (sums, counts))  # type: ignore
