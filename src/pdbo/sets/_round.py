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

    Reference: Held, Wolfe and Crowder, Validation of subgradient optimization, 1974.
    """

    total: Float[Array, ""]

    def __init__(self, total: ArrayLike = 1.0):
        self.total = _scalar("Simplex total", total, finite=True)
        if _concrete(total) and np.asarray(total) < 0:
            raise ProblemError(f"Simplex total is {total}; expected at least 0.")

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        flat = ravel_pytree(z)[0]
        return -flat, jnp.sum(flat) - self._total(flat)

    def _project(self, z: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(z)
        return unravel(_fill(flat, jnp.zeros(flat.shape, bool), self._total(flat)))

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        flat = ravel_pytree(z)[0]
        direction, unravel = ravel_pytree(v)
        positive = flat > ulps * self._total(flat)
        return unravel(_fill(direction, positive, jnp.zeros((), direction.dtype)))

    def _total(self, flat: Float[Array, " n"]) -> Float[Array, ""]:
        return jnp.asarray(self.total, flat.dtype)

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


def _fill(
    v: Float[Array, " n"], free: Bool[Array, " n"], total: Float[Array, ""]
) -> Float[Array, " n"]:
    r"""The $d$ nearest to $v$ with $\sum_i d_i = total$ and $d_i \ge 0$ unless i is free.

    It is $v - \tau$, cut at zero unless free, and $\tau$ is the largest of
    $(\sum_{i \in I} v_i - total) / |I|$ over the index sets $I$ that hold the free entries and the
    $k$ largest others, $k = 0, 1, \dots$
    """
    # Differences to the largest entry are summed: sums of entries near 1e6 lose 1 % in float32.
    v = v - jax.lax.stop_gradient(jnp.max(v))
    fixed = jax.lax.stop_gradient(v)
    others = -jnp.sort(jnp.where(free, jnp.inf, -fixed))
    others = jnp.concatenate([jnp.zeros(1, v.dtype), others])
    sums = jnp.cumsum(others) + jnp.sum(jnp.where(free, fixed, 0))
    counts = jnp.arange(others.size, dtype=v.dtype) + jnp.sum(free, dtype=v.dtype)
    levels = jnp.where(counts > 0, (sums - total) / jnp.maximum(counts, 1), -jnp.inf)
    d = v - jax.lax.stop_gradient(jnp.max(levels))
    # Newton steps on the sum remove its rounding error and carry the derivative.
    for _ in range(2):
        support = free | (d > 0)
        excess = jnp.sum(jnp.where(support, d, 0)) - total
        d = d - excess / jnp.maximum(jnp.sum(support, dtype=v.dtype), 1)
    return jnp.where(free | ~(d <= 0), d, 0)  # keeps NaN
