"""Closed convex sets: the nearest point, the tangent cone and what follows from them."""

import abc
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PyTree, UInt32

from . import _trees as trees
from ._errors import ProblemError

if TYPE_CHECKING:
    from jax.typing import DTypeLike

EMPTY = 1e-6  # a polyhedron whose rows are missed by less, relative to b and d, is not empty

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


class Set(eqx.Module):
    r"""A closed convex set $S$ of pytrees, each pytree seen as one vector.

    The numbers of a set are array leaves, cast to the dtype of the point. A subclass implements
    `_project` and `_tangent`.
    """

    def __repr__(self) -> str:
        from ._show import module

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

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        return jax.tree.map(jnp.negative, z), ()

    def _project(self, z: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.maximum(leaf, 0), z)

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        return jax.tree.map(lambda z, v: jnp.where(z > 0, v, jnp.maximum(v, 0)), z, v)

    def _contains(self, z: PyTree) -> Bool[Array, ""]:
        # Not z >= 0: XLA simplifies max(z, 0) >= 0 to true, also for NaN.
        return _all(jax.tree.map(lambda p, z: jnp.all(p == z), self._project(z), z))


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


@final
class Halfspace(Set):
    r"""The half-space $\{z : \langle a, z \rangle \le b\}$.

    Arguments:
        a: a number, an array or a pytree of these, like the bounds of a `Box`.
        b: a number.
    """

    a: PyTree[Array]
    b: Float[Array, ""]

    def __init__(self, a: PyTree, b: ArrayLike):
        self.a = _floats("Halfspace a", a, finite=True)
        self.b = _scalar("Halfspace b", b)
        zero = all(_concrete(leaf) and not np.any(leaf) for leaf in jax.tree.leaves(a))
        if _concrete(b) and (np.asarray(b) == -np.inf or (zero and np.asarray(b) < 0)):
            a_is = "zero" if zero else "finite"
            raise ProblemError(f"Halfspace a is {a_is} and b is {b}: no point has <a, z> <= b.")

    def _normal(self, z: PyTree) -> tuple[PyTree, Float[Array, ""]]:
        """The unit normal, zero if `a` is, and its offset."""
        a = _fit(self.a, z)
        length = _norm(a)
        length = jnp.where(length > 0, length, 1)
        return _divide(a, length), jnp.asarray(self.b, length.dtype) / length

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        normal, offset = self._normal(z)
        return trees.dot(normal, z) - offset, ()

    def _project(self, z: PyTree) -> PyTree:
        normal, offset = self._normal(z)
        outside = trees.dot(normal, z) > offset
        for _ in range(2):  # the second pass removes the rounding error of the first
            excess = jnp.where(outside, trees.dot(normal, z) - offset, 0)
            z = trees.axpy(-excess, normal, z)
        return z

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        normal, offset = self._normal(z)
        active = offset - trees.dot(normal, z) <= self._close(z, ulps)
        outward = jnp.where(active, jnp.maximum(trees.dot(normal, v), 0), 0)
        return trees.axpy(-outward, normal, v)

    def _check(self, z: PyTree, name: str, point: str) -> None:
        _check_fit("Halfspace a", self.a, z, name, point)


@final
class Affine(Set):
    r"""The affine set $\{z : A z = b\}$, where $z$ is the leaves ravelled in order.

    Stored as $\{z : rows \cdot z = offset\}$ with orthonormal rows, zero beyond the rank of $A$.

    Arguments:
        A: an array of shape (m, n) and of any rank.
        b: an array of shape (m,).
    """

    rows: Float[Array, "rank n"]
    offset: Float[Array, " rank"]

    def __init__(self, A: ArrayLike, b: ArrayLike):
        self.rows, self.offset = _orthonormal("Affine", A, b)

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        flat = ravel_pytree(z)[0]
        return (), trees.matmul(jnp.asarray(self.rows, flat.dtype), flat) - jnp.asarray(
            self.offset, flat.dtype
        )

    def _project(self, z: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(z)
        return unravel(self._onto(flat, jnp.asarray(self.offset, flat.dtype)))

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        flat, unravel = ravel_pytree(v)
        return unravel(self._onto(flat, jnp.zeros(self.offset.shape, flat.dtype)))

    def _onto(self, flat: Float[Array, " n"], offset: Float[Array, " rank"]) -> Float[Array, " n"]:
        rows = jnp.asarray(self.rows, flat.dtype)
        for _ in range(2):  # the second pass removes the rounding error of the first
            gap = trees.matmul(rows, flat) - offset
            flat = flat - trees.matmul(gap, rows)
        return flat

    def _check(self, z: PyTree, name: str, point: str) -> None:
        if self.rows.shape[1] != _entries(z):
            raise ProblemError(
                f"{name}: Affine A has {self.rows.shape[1]} columns "
                f"but {point} has {_entries(z)} entries."
            )


@final
class Polyhedron(Set):
    r"""The polyhedron $\{z : A z = b,\ C z \le d\}$, where $z$ is the leaves ravelled in order.

    $\{A z = b,\ z \ge 0\}$ is `Polyhedron(A, b, -numpy.eye(n), numpy.zeros(n))`. The projection is
    a dual active-set method: rows that are violated join the active ones, one at a time, and rows
    whose multiplier reaches zero leave. It is dense: meant for up to about a thousand rows.

    Arguments:
        A: an array of shape (m, n) and of any rank, or None.
        b: an array of shape (m,), or None.
        C: an array of shape (k, n), or None.
        d: an array of shape (k,), or None; it may be infinite.

    Reference: Goldfarb and Idnani, A numerically stable dual method for solving strictly convex
    quadratic programs, 1983.
    """

    plane: Affine
    sides: Float[Array, "k n"]  # the rows of C, of length one
    limits: Float[Array, " k"]
    normals: Float[Array, "k n"]  # the same within the plane, zero if they are normal to it
    bounds: Float[Array, " k"]

    def __init__(
        self,
        A: ArrayLike | None = None,
        b: ArrayLike | None = None,
        C: ArrayLike | None = None,
        d: ArrayLike | None = None,
    ):
        for names, first, second in (("A and b", A, b), ("C and d", C, d)):
            if (first is None) != (second is None):
                raise ProblemError(f"Polyhedron needs both {names}, or neither.")
        if A is None and C is None:
            raise ProblemError("Polyhedron needs A and b, or C and d; Free() is the whole space.")
        concrete = all(_concrete(v) for v in (A, b, C, d))
        np_ = np if concrete else jnp
        given = np.zeros((0, 0)) if C is None else C
        nothing = np.zeros((0, *np.shape(given if A is None else A)[1:])), np.zeros(0)
        plane = _orthonormal("Polyhedron", *(nothing if A is None or b is None else (A, b)))
        sides, limits = _unit_rows(*(nothing if C is None or d is None else (C, d)))
        if plane[0].shape[1] != sides.shape[1]:
            raise ProblemError(
                f"Polyhedron A has {plane[0].shape[1]} columns and C has {sides.shape[1]}; "
                "expected as many."
            )
        rows, offset = (np_.asarray(part, float) for part in plane)
        if concrete:
            _check_not_empty(*map(np.asarray, (rows, offset, sides, limits)))
        normals = sides
        for _ in range(2):  # the second pass removes the rounding error of the first
            normals = normals - (normals @ rows.T) @ rows
        length = np_.linalg.norm(normals, axis=1)
        across = length <= 64 * _eps(jnp.result_type(float))
        room, length = limits - sides @ (offset @ rows), np_.where(across, 1, length)
        normals = np_.where(across[:, None], 0, normals / length[:, None])
        self.plane = Affine(rows, offset)
        self.sides, self.limits, self.normals, self.bounds = (
            jnp.asarray(v, float)
            for v in (sides, limits, normals, np_.where(across, np_.inf, room / length))
        )

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        flat = ravel_pytree(z)[0]
        sides, limits = (jnp.asarray(v, flat.dtype) for v in (self.sides, self.limits))
        return trees.matmul(sides, flat) - limits, self.plane._rows(z)[1]

    def _project(self, z: PyTree) -> PyTree:
        given, unravel = ravel_pytree(z)
        flat, normals, bounds = self._work(given, self.normals, self.bounds)
        for _ in range(2):  # the second pass removes the rounding error of the first
            flat = self.plane._project(flat)
            flat = _within(normals, bounds, flat)
        return unravel(self.plane._project(flat).astype(given.dtype))

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        given, unravel = ravel_pytree(v)
        flat, direction, *rest = self._work(
            ravel_pytree(z)[0], given, self.sides, self.limits, self.normals
        )
        sides, limits, normals = rest
        active = limits - trees.matmul(sides, flat) <= self._close(flat, ulps)
        bounds = jnp.where(active, jnp.zeros_like(limits), jnp.inf)
        direction = self.plane._tangent(flat, direction, ulps)
        for _ in range(2):
            direction = _within(normals, bounds, direction)
        return unravel(direction.astype(given.dtype))

    def _work(self, *arrays: Array) -> list[Array]:
        """Arrays in the set's own precision: rows may meet at small angles."""
        dtype = max(arrays[0].dtype, self.sides.dtype, key=lambda dtype: dtype.itemsize)
        return [array.astype(dtype) for array in arrays]

    def _check(self, z: PyTree, name: str, point: str) -> None:
        if self.sides.shape[1] != _entries(z):
            raise ProblemError(
                f"{name}: Polyhedron has {self.sides.shape[1]} columns "
                f"but {point} has {_entries(z)} entries."
            )


@final
class Product(Set):
    r"""The product $S_1 \times \dots \times S_k$ of sets, one for each part of the point.

    Arguments:
        tree: a pytree of sets with the structure of the point or a prefix of it.
    """

    tree: PyTree[Set]

    def __init__(self, tree: PyTree):
        for path, leaf in jax.tree.leaves_with_path(tree, is_leaf=_is_set):
            if not _is_set(leaf):
                where = jax.tree_util.keystr(path)
                raise ProblemError(f"Product tree{where} is {leaf!r}; expected a set.")
        self.tree = tree

    @property
    def parts(self) -> list[Set]:
        """The sets."""
        return jax.tree.leaves(self.tree, is_leaf=_is_set)

    def _map(self, function: Callable, *trees: PyTree) -> PyTree:
        return jax.tree.map(function, self.tree, *trees, is_leaf=_is_set)

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        pairs = self._map(lambda part, z: part.constraints(z), z)
        flat = jax.tree.leaves(pairs, is_leaf=lambda leaf: isinstance(leaf, tuple))
        return [pair[0] for pair in flat], [pair[1] for pair in flat]

    def _project(self, z: PyTree) -> PyTree:
        return self._map(lambda part, z: part.project(z), z)

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        return self._map(lambda part, z, v: part._tangent(z, v, ulps), z, v)

    def _contains(self, z: PyTree) -> Bool[Array, ""]:
        return _all(self._map(lambda part, z: part.contains(z), z))

    def _diameter(self, z: PyTree) -> Float[Array, ""]:
        return trees.norm(self._map(lambda part, z: part.diameter(z), z))

    def _from_unit_cube(self, u: PyTree, z: PyTree, radius: ArrayLike) -> PyTree:
        return self._map(lambda part, u, z: part.from_unit_cube(u, z, radius), u, z)

    def _check(self, z: PyTree, name: str, point: str) -> None:
        structure = jax.tree.structure(self.tree, is_leaf=_is_set)
        if not _is_prefix(self.tree, z):
            raise _structure_error("Product tree", structure, z, name, point)
        sets = jax.tree.leaves_with_path(self.tree, is_leaf=_is_set)
        for (path, part), z_part in zip(sets, structure.flatten_up_to(z), strict=True):
            where = jax.tree_util.keystr(path)
            part._check(z_part, name + where, point + where)


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


def _divide(a: PyTree, s: Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf / s, a)


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


def _orthonormal(
    what: str, A: ArrayLike, b: ArrayLike
) -> tuple[Float[Array, "rank n"], Float[Array, " rank"]]:
    """The equations A z = b with orthonormal rows, zero beyond the rank of A."""
    concrete = _concrete(A) and _concrete(b)
    np_ = np if concrete else jnp
    A, b = np_.asarray(A), np_.asarray(b)
    _check_numbers(f"{what} A", A, finite=True)
    _check_numbers(f"{what} b", b, finite=True)
    if A.ndim != 2 or b.shape != A.shape[:1]:
        raise ProblemError(
            f"{what} A has shape {A.shape} and b has shape {b.shape}; expected (m, n) and (m,)."
        )
    eps = max(_eps(A.dtype), _eps(b.dtype))
    A, b = np_.asarray(A, float), np_.asarray(b, float)
    # Scale all rows alike: a row of small numbers is as much a constraint as any other.
    size = np_.max(np_.abs(A), axis=1, initial=0)
    size = np_.where(size > 0, size, 1)
    A, b = A / size[:, None], b / size
    left, values, rows = np_.linalg.svd(A, full_matrices=False)
    # Errors of eps in the entries are errors of eps times the Frobenius norm in the values.
    unsure = 8 * eps * np_.linalg.norm(A)
    kept = values > unsure
    rows = np_.where(kept[:, None], rows, 0)
    offset = np_.where(kept, (b @ left) / np_.where(kept, values, 1), 0)
    if concrete:
        gap = np.abs(A @ (offset @ rows) - b)
        known = unsure * np.linalg.norm(offset) + eps * np.linalg.norm(b)
        if (gap > 8 * known).any():
            row = int(np.argmax(gap))
            raise ProblemError(
                f"{what} A z = b has no solution: the nearest to one misses b at index {row} "
                f"by {gap[row] * size[row]:.3g}."
            )
    return jnp.asarray(rows, float), jnp.asarray(offset, float)


def _unit_rows(
    C: ArrayLike, d: ArrayLike
) -> tuple[Float[Array, "k n"] | np.ndarray, Float[Array, " k"] | np.ndarray]:
    """The inequalities C z <= d with rows of length one; rows of zeros stay."""
    np_ = np if _concrete(C) and _concrete(d) else jnp
    C, d = np_.asarray(C), np_.asarray(d)
    _check_numbers("Polyhedron C", C, finite=True)
    _check_numbers("Polyhedron d", d, finite=False)
    if C.ndim != 2 or d.shape != C.shape[:1]:
        raise ProblemError(
            f"Polyhedron C has shape {C.shape} and d has shape {d.shape}; expected (k, n) and (k,)."
        )
    C, d = np_.asarray(C, float), np_.asarray(d, float)
    for length in (np_.max(np_.abs(C), axis=1, initial=0), None):  # no squares of large numbers
        length = np_.linalg.norm(C, axis=1) if length is None else length
        length = np_.where(length > 0, length, 1)
        C, d = C / length[:, None], d / length
    return C, d


def _check_not_empty(
    rows: np.ndarray, offset: np.ndarray, sides: np.ndarray, limits: np.ndarray
) -> None:
    """Raise a `ProblemError` if a polyhedron has no points, by a linear program."""
    from scipy.optimize import linprog  # slow to import, and nothing else here needs them
    from scipy.sparse import csr_array

    missing = np.inf
    if np.all(limits > -np.inf):
        sides, limits = sides[limits < np.inf], limits[limits < np.inf]
        size = max(np.max(np.abs(limits), initial=0), np.max(np.abs(offset), initial=0), 1e-300)
        used = np.any(rows, axis=1)
        margin = linprog(  # the largest t with sides z + t <= limits, up to 1
            -np.eye(rows.shape[1] + 1)[-1],
            csr_array(np.pad(sides, ((0, 0), (0, 1)), constant_values=1)), limits / size,
            csr_array(np.pad(rows[used], ((0, 0), (0, 1)))), offset[used] / size,
            bounds=[(None, None)] * rows.shape[1] + [(None, 1.0)], method="highs-ipm",
        )  # fmt: skip
        if margin.status != 0 or margin.x[-1] >= -EMPTY:
            return  # not known to be empty
        missing = -margin.x[-1] * size
    raise ProblemError(
        f"Polyhedron has no points: no z with A z = b is nearer than {missing:.3g} to all of the "
        "half-spaces C z <= d."
    )


def _within(
    normals: Float[Array, "k n"], bounds: Float[Array, " k"], flat: Float[Array, " n"]
) -> Float[Array, " n"]:
    r"""The $w$ nearest to `flat` with $normals \cdot w \le bounds$, for unit normals."""
    if not bounds.size:
        return flat
    gram, excess = trees.matmul(normals, normals.T), trees.matmul(normals, flat) - bounds
    size = jnp.maximum(trees.norm(flat), jnp.where(jnp.isfinite(bounds), jnp.abs(bounds), 0))
    close = 4 * _eps(flat.dtype) * size
    active, inverse = _active_rows(*map(jax.lax.stop_gradient, (gram, excess, close)))
    # Newton steps after the first remove rounding errors, and carry derivatives in the normals.
    for _ in range(3):
        left = jnp.where(active, trees.matmul(normals, flat) - bounds, 0)
        flat = flat - trees.matmul(trees.matmul(inverse, left), normals)
    return flat


def _active_rows(
    gram: Float[Array, "k k"], excess: Float[Array, " k"], close: Float[Array, " k"]
) -> tuple[Bool[Array, " k"], Float[Array, "k k"]]:
    """The rows that are active at the nearest point, and the inverse of their Gram matrix.

    Rows that depend on active ones and stay violated are left out: that is rounding, or the set is
    empty.
    """
    k, eps = excess.size, _eps(gram.dtype)
    place, none = jnp.arange(k, dtype=jnp.int32), jnp.int32(-1)

    def violated(weights: Array, active: Array, left_out: Array) -> Array:
        over = excess - trees.matmul(gram, weights)
        rounding = close + 16 * eps * jnp.sum(weights)
        return jnp.where(active | left_out | ~(over > rounding), -jnp.inf, over)

    def unfinished(state: tuple) -> Array:
        weights, active, left_out, _, waiting, steps = state
        more = jnp.any(violated(weights, active, left_out) > -jnp.inf)
        return (more | (waiting >= 0)) & (steps < 10 * k + 20)

    def step(state: tuple) -> tuple:
        weights, active, left_out, inverse, waiting, steps = state
        worst = jnp.argmax(violated(weights, active, left_out)).astype(jnp.int32)
        j = jnp.where(waiting >= 0, waiting, worst)
        turn = trees.matmul(inverse, gram[:, j])  # how the active weights fall as that of j rises
        free = gram[j, j] - gram[j] @ turn
        over = excess[j] - gram[j] @ weights
        longest = jnp.where(free > 16 * eps, jnp.maximum(over, 0) / free, jnp.inf)
        ratio = jnp.where(active & (turn > eps), weights / turn, jnp.inf)
        i = jnp.argmin(ratio).astype(jnp.int32)
        length = jnp.minimum(longest, ratio[i])
        stuck, joins = jnp.isinf(length), longest <= ratio[i]
        unit = jnp.where(place == j, 1, 0).astype(turn.dtype)
        weights = weights + jnp.where(stuck, 0, length) * (unit - turn)
        leaves = ~(stuck | joins)
        joined = inverse + jnp.outer(unit - turn, (unit - turn) / free)
        stays = place != i
        kept = inverse - jnp.outer(inverse[:, i], inverse[i] / inverse[i, i])
        kept = jnp.where(stays[:, None] & stays, kept, 0)
        inverse = jnp.where(stuck, inverse, jnp.where(joins, joined, kept))
        active = jnp.where(stuck, active, jnp.where(joins, active | (place == j), active & stays))
        left_out = left_out | (stuck & (place == j))
        weights = jnp.where(active | (leaves & (place == j)), weights, 0)
        drift = jnp.where(active, excess - trees.matmul(gram, weights), 0)
        weights = jnp.maximum(weights + trees.matmul(inverse, drift), 0)
        return weights, active, left_out, inverse, jnp.where(leaves, j, none), steps + 1

    zero = jnp.zeros_like(excess)
    never = jnp.zeros(k, bool)
    state = (zero, never, never, jnp.zeros_like(gram), none, jnp.int32(0))
    _, active, _, inverse, _, _ = jax.lax.while_loop(unfinished, step, state)
    return active, inverse


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
