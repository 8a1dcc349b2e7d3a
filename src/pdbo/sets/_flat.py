"""Half-spaces and affine sets."""

from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from .. import _trees as trees
from .._errors import ProblemError
from . import (
    Set,
    _check_fit,
    _check_numbers,
    _concrete,
    _entries,
    _eps,
    _fit,
    _floats,
    _norm,
    _scalar,
)
from ._round import _divide


@final
class Halfspace(Set):
    r"""The half-space $\{z : \langle a, z \rangle \le b\}$.

    Arguments:
        a: a number, an array or a pytree of these, like the bounds of a `Box`.
        b: a number.
    """

    in_parts = True

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
        rows, offset = (jnp.asarray(v, flat.dtype) for v in (self.rows, self.offset))
        return (), trees.matmul(rows, flat) - offset

    def _project(self, z: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(z)
        return unravel(_onto(self.rows, flat, self.offset))

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        flat, unravel = ravel_pytree(v)
        return unravel(_onto(self.rows, flat, jnp.zeros_like(self.offset)))

    def _check(self, z: PyTree, name: str, point: str) -> None:
        if self.rows.shape[1] != _entries(z):
            raise ProblemError(
                f"{name}: Affine A has {self.rows.shape[1]} columns "
                f"but {point} has {_entries(z)} entries."
            )


def _onto(
    rows: Float[Array, "rank n"], flat: Float[Array, " n"], offset: Float[Array, " rank"]
) -> Float[Array, " n"]:
    """The nearest point with rows z = offset, for orthonormal rows."""
    rows, offset = (jnp.asarray(v, flat.dtype) for v in (rows, offset))
    for _ in range(2):  # the second pass removes the rounding error of the first
        gap = trees.matmul(rows, flat) - offset
        flat = flat - trees.matmul(gap, rows)
    return flat


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
