"""Polyhedra, with a dual active-set method for the nearest point."""

from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PyTree

from .. import _trees as trees
from .._errors import ProblemError
from . import Set, _check_numbers, _concrete, _entries, _eps
from ._flat import _onto, _orthonormal

EMPTY = 1e-6  # a polyhedron whose rows are missed by less, relative to b and d, is not empty
PROJECTIONS = 100  # that look for a point of it before a linear program does


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

    rows: Float[Array, "rank n"]  # those of A, orthonormal
    offset: Float[Array, " rank"]
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
        bounds = np_.where(across, np_.inf, room / length)
        self.rows, self.offset = (jnp.asarray(v, float) for v in (rows, offset))
        self.sides, self.limits = (jnp.asarray(v, float) for v in (sides, limits))
        self.normals, self.bounds = (jnp.asarray(v, float) for v in (normals, bounds))

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        flat = ravel_pytree(z)[0]
        sides, limits = (jnp.asarray(v, flat.dtype) for v in (self.sides, self.limits))
        rows, offset = (jnp.asarray(v, flat.dtype) for v in (self.rows, self.offset))
        return trees.matmul(sides, flat) - limits, trees.matmul(rows, flat) - offset

    def _project(self, z: PyTree) -> PyTree:
        given, unravel = ravel_pytree(z)
        flat, normals, bounds = self._work(given, self.normals, self.bounds)
        for _ in range(2):  # the second pass removes the rounding error of the first
            flat = _onto(self.rows, flat, self.offset)
            flat = _within(normals, bounds, flat)
        return unravel(_onto(self.rows, flat, self.offset).astype(given.dtype))

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        given, unravel = ravel_pytree(v)
        flat, direction, *rest = self._work(
            ravel_pytree(z)[0], given, self.sides, self.limits, self.normals
        )
        sides, limits, normals = rest
        active = limits - trees.matmul(sides, flat) <= self._close(flat, ulps)
        bounds = jnp.where(active, jnp.zeros_like(limits), jnp.inf)
        direction = _onto(self.rows, direction, jnp.zeros_like(self.offset))
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
    """Raise a `ProblemError` if a polyhedron has no points: by a linear program, if need be."""
    from scipy.optimize import linprog  # slow to import, and nothing else here needs them
    from scipy.sparse import csr_array

    missing = np.inf
    if np.all(limits > -np.inf):
        sides, limits = sides[limits < np.inf], limits[limits < np.inf]
        size = max(np.max(np.abs(limits), initial=0), np.max(np.abs(offset), initial=0), 1e-300)
        if _reached(rows, offset, sides, limits, EMPTY * size):
            return
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


def _reached(
    rows: np.ndarray, offset: np.ndarray, sides: np.ndarray, limits: np.ndarray, close: float
) -> bool:
    """Whether alternating projections reach a point that is in a polyhedron, nearly.

    Each goes a little beyond the half-spaces that are violated, weighted by how much they are.
    """
    z = offset @ rows
    for _ in range(PROJECTIONS):
        over = sides @ z - limits
        if np.max(over, initial=0.0) <= close:
            return True
        over = np.where(over > 0, over + close, 0.0)
        step = over @ sides
        step -= (step @ rows.T) @ rows
        size = float(step @ step)
        if size == 0:
            return False
        z = z - 1.9 * float(over @ over) / size * step
        z = z - (z @ rows.T - offset) @ rows
    return False


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
