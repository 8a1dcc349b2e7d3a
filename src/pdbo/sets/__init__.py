"""Closed convex sets: the nearest point, the tangent cone and what follows from them.

Here are what all sets have and the sets that are bounds; the others are loaded on first use.
"""

import abc
import functools
import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from .. import _trees as trees
from .._errors import ProblemError

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from ._flat import Affine as Affine
    from ._flat import Halfspace as Halfspace
    from ._polyhedron import Polyhedron as Polyhedron
    from ._product import Product as Product
    from ._round import Ball as Ball
    from ._round import Simplex as Simplex

__all__ = [
    "Affine",
    "Ball",
    "Box",
    "Free",
    "Halfspace",
    "NonNegative",
    "Polyhedron",
    "Product",
    "Set",
    "Simplex",
]

_LATER = {
    "Affine": "_flat",
    "Ball": "_round",
    "Halfspace": "_flat",
    "Polyhedron": "_polyhedron",
    "Product": "_product",
    "Simplex": "_round",
}


def __getattr__(name: str) -> Any:
    """Load a set on first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    globals()[name] = value
    return value


class Set(eqx.Module):
    r"""A closed convex set $S$ of pytrees, each pytree seen as one vector.

    The numbers of a set are array leaves, cast to the dtype of the point. A subclass implements
    `_project` and `_tangent`.
    """

    in_parts: ClassVar[bool] = False
    """Whether a point split over devices is projected without a device that holds all of it."""

    def __repr__(self) -> str:
        from .._show import module

        return module(self)

    def project(self, z: PyTree) -> PyTree:
        r"""The nearest point $P(z) = \arg\min_{w \in S} \|w - z\|$."""
        return self._project(_arrays(z))

    def distance(self, z: PyTree) -> Float[Array, ""]:
        r"""The Euclidean distance $\|z - P(z)\|$."""
        z = _arrays(z)
        return _norm(trees.sub(z, self._project(z)))

    def tangent(self, z: PyTree, v: PyTree, eps: float | None = None) -> PyTree:
        """The projection of `v` onto the tangent cone at the point `z` of the set.

        A bound is active if it holds with equality up to a few units in the last place. `eps`
        is that unit if `z` was computed in a lower precision than that of its dtype.
        """
        z = _arrays(z)
        return self._tangent(z, _arrays(v), _few_ulps(z) if eps is None else 8 * eps)

    def residual(self, z: PyTree, gradient: PyTree) -> Float[Array, ""]:
        r"""How far `z` is from stationary: $\mathrm{dist}(-\nabla, N(z)) = \|P_{T(z)}(-\nabla)\|$.

        The two are equal by Moreau's decomposition; $N$ is the normal and $T$ the tangent cone.
        """
        return _norm(self.tangent(z, jax.tree.map(jnp.negative, gradient)))

    def contains(self, z: PyTree, tol: ArrayLike | None = None) -> Bool[Array, ""]:
        """Whether the distance is at most `tol`, by default a few units in the last place."""
        if tol is None:
            return self._contains(_arrays(z))
        distance = self.distance(z)
        return distance <= jnp.asarray(tol, distance.dtype)

    def diameter(self, z: PyTree) -> Float[Array, ""]:
        """The largest distance between two points shaped like `z`, `inf` if unbounded."""
        return jnp.asarray(self._diameter(_arrays(z)), trees.dtype(_arrays(z)))

    def from_unit_cube(self, u: PyTree, z: PyTree, radius: ArrayLike) -> PyTree:
        """Map `u`, numbers from 0 to 1 shaped like `z`, to a point of the set.

        Uniform `u` give uniform points over the finite sides of a box, over a simplex, over the
        cube around a ball, and otherwise over the cube of half-width `radius` around `z`. Points
        outside the set are projected.
        """
        return self._from_unit_cube(_arrays(u), _arrays(z), radius)

    def sample(self, key: Array, z: PyTree, radius: ArrayLike) -> PyTree:
        """A random point: `from_unit_cube` of random numbers."""
        return self.from_unit_cube(_random(jax.random.uniform, key, _arrays(z)), z, radius)

    def hashed_point(self, index: ArrayLike, z: PyTree, radius: ArrayLike) -> PyTree:
        """`from_unit_cube` of a hash of `index`: the same for the same index, quick to compile."""
        return self.from_unit_cube(_hashed(index, _arrays(z)), z, radius)

    @property
    def factors(self) -> "list[Set]":
        """The sets that it is a product of: itself, unless it is a `Product`."""
        return [self]

    def check(self, z: PyTree, name: str) -> None:
        """Raise a `ProblemError` if the arrays of the set do not fit `z`.

        `name` is the argument that holds the set, such as `y_set`; the point is then `y0`.
        """
        self._check(z, name, name.removesuffix("_set") + "0")

    def constraints(self, z: PyTree) -> tuple[Float[Array, " below"], Float[Array, " zero"]]:
        """Smooth functions of `z`: a point is in the set if all are <= 0, or zero, respectively."""
        z = _arrays(z)
        below, zero = self._rows(z)
        return _ravelled(below, z), _ravelled(zero, z)

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        raise ProblemError(
            f"{type(self).__name__} cannot be used in a problem with constraints: it is not given "
            "by smooth functions."
        )

    @abc.abstractmethod
    def _project(self, z: PyTree) -> PyTree: ...

    @abc.abstractmethod
    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree: ...

    def _contains(self, z: PyTree) -> Bool[Array, ""]:
        return self.distance(z) <= self._close(z, _few_ulps(z))

    def _close(self, z: PyTree, ulps: float) -> Float[Array, ""]:
        """The distance within which `z` counts as being on the boundary."""
        return ulps * trees.norm(z)

    def _diameter(self, z: PyTree) -> ArrayLike:
        return math.inf

    def _from_unit_cube(self, u: PyTree, z: PyTree, radius: ArrayLike) -> PyTree:
        return self._project(jax.tree.map(lambda u, z: _around(u, z, radius), u, z))

    def _check(self, z: PyTree, name: str, point: str) -> None:
        """Every `z` fits a set without arrays."""


@final
class Free(Set):
    """The whole space."""

    in_parts = True

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        return (), ()

    def _project(self, z: PyTree) -> PyTree:
        return z

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        return v


@final
class Box(Set):
    r"""The box $\{z : lo \le z \le hi\}$.

    Arguments:
        lo, hi: numbers, arrays that broadcast to the leaves of the point, or pytrees of these with
            the structure of the point or a prefix of it; infinities are allowed.
    """

    in_parts = True

    lo: PyTree[Array]
    hi: PyTree[Array]

    def __init__(self, lo: PyTree, hi: PyTree):
        self.lo = _floats("Box lo", lo)
        self.hi = _floats("Box hi", hi)
        _check_bounds(lo, hi)

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        return (trees.sub(_fit(self.lo, z), z), trees.sub(z, _fit(self.hi, z))), ()

    def _project(self, z: PyTree) -> PyTree:
        return jax.tree.map(jnp.clip, z, _fit(self.lo, z), _fit(self.hi, z))

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        def tangent(z: Array, v: Array, lo: Array, hi: Array) -> Array:
            close = ulps * jnp.abs(z)
            v = jnp.where(z - lo <= close, jnp.maximum(v, 0), v)
            return jnp.where(hi - z <= close, jnp.minimum(v, 0), v)

        return jax.tree.map(tangent, z, v, _fit(self.lo, z), _fit(self.hi, z))

    def _contains(self, z: PyTree) -> Bool[Array, ""]:
        def contains(z: Array, lo: Array, hi: Array) -> Bool[Array, ""]:
            close = _few_ulps(z) * jnp.abs(z)
            return jnp.all((lo - z <= close) & (z - hi <= close))

        return _all(jax.tree.map(contains, z, _fit(self.lo, z), _fit(self.hi, z)))

    def _diameter(self, z: PyTree) -> Float[Array, ""]:
        return trees.norm(trees.sub(_fit(self.hi, z), _fit(self.lo, z)))

    def _from_unit_cube(self, u: PyTree, z: PyTree, radius: ArrayLike) -> PyTree:
        def between(u: Array, z: Array, lo: Array, hi: Array) -> Array:
            bounded = jnp.isfinite(lo) & jnp.isfinite(hi)
            inside = (1 - u) * jnp.where(bounded, lo, 0) + u * jnp.where(bounded, hi, 0)
            return jnp.clip(jnp.where(bounded, inside, _around(u, z, radius)), lo, hi)

        return jax.tree.map(between, u, z, _fit(self.lo, z), _fit(self.hi, z))

    def _check(self, z: PyTree, name: str, point: str) -> None:
        _check_fit("Box lo", self.lo, z, name, point)
        _check_fit("Box hi", self.hi, z, name, point)


@final
class NonNegative(Set):
    r"""The orthant $\{z : z \ge 0\}$."""

    in_parts = True

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        return jax.tree.map(jnp.negative, z), ()

    def _project(self, z: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.maximum(leaf, 0), z)

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        return jax.tree.map(lambda z, v: jnp.where(z > 0, v, jnp.maximum(v, 0)), z, v)

    def _contains(self, z: PyTree) -> Bool[Array, ""]:
        # Not z >= 0: XLA simplifies max(z, 0) >= 0 to true, also for NaN.
        return _all(jax.tree.map(lambda p, z: jnp.all(p == z), self._project(z), z))


def _is_set(x: object) -> bool:
    return isinstance(x, Set)


def _arrays(z: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, z)


def _ravelled(tree: PyTree, z: PyTree) -> Float[Array, " n"]:
    leaves = jax.tree.leaves(tree)
    return ravel_pytree(leaves)[0] if leaves else jnp.zeros(0, trees.dtype(z))


def _entries(z: PyTree) -> int:
    return sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(z))


def _eps(dtype: "DTypeLike") -> float:
    return float(jnp.finfo(dtype if jnp.issubdtype(dtype, jnp.floating) else float).eps)


def _few_ulps(z: PyTree) -> float:
    """The relative tolerance within which a bound counts as active."""
    return 8 * _eps(trees.dtype(z))


def _all(flags: PyTree[Bool[Array, ""]]) -> Bool[Array, ""]:
    return functools.reduce(jnp.logical_and, jax.tree.leaves(flags), jnp.array(True))


def _norm(a: PyTree) -> Float[Array, ""]:
    """The norm, with gradient zero instead of NaN at zero."""
    nonzero = trees.max_abs(a) != 0
    length = trees.norm(jax.tree.map(lambda leaf: jnp.where(nonzero, leaf, 1), a))
    return jnp.where(nonzero, length, 0)


def _fit(prefix: PyTree, z: PyTree) -> PyTree:
    """The numbers of a set, given as a prefix of `z`, in the structure, shapes and dtype of `z`."""

    def fit(array: Array, leaf: Array) -> Array:
        return jnp.broadcast_to(jnp.asarray(array, leaf.dtype), leaf.shape)

    return jax.tree.map(fit, jax.tree.broadcast(prefix, z), z)


def _random(draw: Callable, key: Array, z: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(z)
    keys = jax.random.split(key, len(leaves))
    drawn = [draw(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def _hashed(index: ArrayLike, z: PyTree) -> PyTree:
    """Numbers from 0 to 1 shaped like `z`: a hash of `index` and of each entry's place.

    Reference: the mixing function lowbias32 of Wellons, Prospecting for Hash Functions (2018).
    """
    leaves, structure = jax.tree.flatten(z)
    seed = jnp.asarray(index).astype(jnp.uint32) * np.uint32(0x9E3779B9)
    drawn, before = [], 0
    for leaf in leaves:
        place = jax.lax.iota(jnp.uint32, leaf.size) + np.uint32(before)
        h = (place * np.uint32(0x85EBCA6B)) ^ _mixed(seed)
        top = (_mixed(h) >> 8).astype(leaf.dtype)
        drawn.append((top * 2.0**-24).reshape(leaf.shape))
        before += leaf.size
    return jax.tree.unflatten(structure, drawn)


def _mixed(h: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    h = (h ^ (h >> 16)) * np.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * np.uint32(0x846CA68B)
    return h ^ (h >> 16)


def _around(u: Array, z: Array, radius: ArrayLike) -> Array:
    return z + jnp.asarray(radius, z.dtype) * (2 * u - 1)


def _concrete(x: PyTree) -> bool:
    """Whether the values of `x` can be read: not traced, and all on this process."""
    return all(
        not isinstance(leaf, Tracer) and getattr(leaf, "is_fully_addressable", True)
        for leaf in jax.tree.leaves(x)
    )


def _check_numbers(what: str, array: Array | np.ndarray, finite: bool) -> None:
    """Raise a `ProblemError` unless an array holds real numbers, finite ones if `finite`."""
    if not (jnp.issubdtype(array.dtype, jnp.floating) or array.dtype.kind in "iub"):
        raise ProblemError(f"{what} is of type {array.dtype}; expected real numbers.")
    if _concrete(array):
        values = np.asarray(array, float)
        bad = ~np.isfinite(values) if finite else np.isnan(values)
        if bad.any():
            value, place = _first(bad, values)
            wanted = "a finite number" if finite else "a number"
            raise ProblemError(f"{what} is {value}{place}; expected {wanted}.")


def _floats(what: str, tree: PyTree, finite: bool = False) -> PyTree:
    """Every leaf as an array of the default floating dtype, or an error that names it."""

    def convert(path: tuple, leaf: ArrayLike) -> Array:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        _check_numbers(what + jax.tree_util.keystr(path), array, finite)
        return jnp.asarray(array, float)

    return jax.tree.map_with_path(convert, tree)


def _scalar(what: str, value: ArrayLike, finite: bool = False) -> Float[Array, ""]:
    array = _floats(what, value, finite)
    if jax.tree.structure(array) != jax.tree.structure(0) or array.shape != ():
        raise ProblemError(f"{what} is {value!r}; expected one number.")
    return array


def _first(bad: np.ndarray, *arrays: np.ndarray) -> tuple:
    """The entries of the arrays at the first bad index, and that index in words."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return *(array[index] for array in arrays), f" at index {index}" if index else ""


def _check_bounds(lo: PyTree, hi: PyTree) -> None:
    """Raise a `ProblemError` if no number lies between the two bounds of a box."""
    finer = next((tree for tree in (lo, hi) if _is_prefix(lo, tree) and _is_prefix(hi, tree)), None)
    if finer is None:
        raise ProblemError(
            f"Box lo has structure {jax.tree.structure(lo)} and hi has structure "
            f"{jax.tree.structure(hi)}; expected one to be a prefix of the other."
        )
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(finer)]
    lows, highs = (jax.tree.leaves(jax.tree.broadcast(bound, finer)) for bound in (lo, hi))
    for path, low, high in zip(paths, lows, highs, strict=True):
        if _broadcast(np.shape(low), np.shape(high)) is None:
            raise ProblemError(
                f"Box lo{path} has shape {np.shape(low)} and hi{path} has shape {np.shape(high)}; "
                "expected shapes that broadcast."
            )
        if _concrete((low, high)):
            low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
            empty = (low > high) | (low == np.inf) | (high == -np.inf)
            if empty.any():
                low, high, place = _first(empty, low, high)
                raise ProblemError(
                    f"Box lo{path} is {low} and hi{path} is {high}{place}; "
                    "expected a number between them."
                )


def _is_prefix(prefix: PyTree, full: PyTree) -> bool:
    try:
        jax.tree.structure(prefix, is_leaf=_is_set).flatten_up_to(full)
    except ValueError:
        return False
    return True


def _broadcast(*shapes: tuple) -> tuple | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _check_fit(what: str, prefix: PyTree, z: PyTree, name: str, point: str) -> None:
    """Raise a `ProblemError` if the numbers of a set do not broadcast to the leaves of `z`."""
    if not _is_prefix(prefix, z):
        raise _structure_error(what, jax.tree.structure(prefix), z, name, point)
    arrays = jax.tree.leaves(jax.tree.broadcast(prefix, z))
    for array, (path, leaf) in zip(arrays, jax.tree.leaves_with_path(z), strict=True):
        have, wanted = array.shape, np.shape(leaf)
        if _broadcast(have, wanted) != wanted:
            where = " " + jax.tree_util.keystr(path) if path else ""
            raise ProblemError(
                f"{name}: {what} has shape {have} but {point} has a leaf{where} of shape {wanted}."
            )


def _structure_error(
    what: str, structure: object, z: PyTree, name: str, point: str
) -> ProblemError:
    return ProblemError(
        f"{name}: {what} has structure {structure} but {point} has structure "
        f"{jax.tree.structure(z)}."
    )
