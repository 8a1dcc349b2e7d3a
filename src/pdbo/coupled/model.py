r"""A problem with constraints as one vector of rows R of a flat z = (x, y), with derivatives.

The rows are, in this order: f, g, the outer inequalities C <= 0 and equalities E = 0, the inner
inequalities c <= 0 and equalities e = 0; sets are rows, too. Rows that are affine become numbers,
and only the others are compiled. Everything is for many points at once, on the host.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._problem import Equal, Problem
from ..exact.oracle import Calls, Compiled, Program
from ..exact.points import kronecker

Number = np.ndarray | float
Points = Float[np.ndarray, "points n"]
KINDS = ("f", "g", "C", "E", "c", "e")
INNER = (1, 4, 5)  # the kinds of the inner problem
LANES = 32  # points whose derivatives are computed in one call
MANY = 256  # points whose values are computed in one call
SAMPLES = 64  # points at which rows are looked at
AFFINE = 1e-9  # a row that is affine up to this part of its terms is affine
STEEP = 1e-5  # the unit of a row that is extremely steep
NOTHING = 1e-12  # an x or y whose largest entry is this small is zero: it says nothing about units
WIDE = 3.0  # half the width of the cube around the start, in sizes of the start ...
RADII = (1 / 3, 1.0, 3.0, 9.0)  # ... and by what it is multiplied, in turn


class Sizes(NamedTuple):
    """How many entries x and y have, and how many rows there are of each kind."""

    x: int
    y: int
    C: int
    E: int
    c: int
    e: int


class Kinds(NamedTuple):
    """Numbers for every row, by kind; rows are the second axis."""

    f: np.ndarray
    g: np.ndarray
    C: np.ndarray
    E: np.ndarray
    c: np.ndarray
    e: np.ndarray


class Derivatives(NamedTuple):
    r"""Derivatives at z of the rows R, of $P = R'(z)(0, v)$ and of $\Psi = a \cdot R + b \cdot P$.

    Attributes:
        R, J: the rows and their derivatives.
        P, DP: the same of P.
        st, D: the gradient of b . R in y, and its derivatives.
        slope, H: the first and second derivatives of Psi.
    """

    R: np.ndarray
    J: np.ndarray
    P: np.ndarray
    DP: np.ndarray
    st: np.ndarray
    D: np.ndarray
    slope: np.ndarray
    H: np.ndarray


def entries_of(problem: Problem, x: PyTree, y: PyTree) -> int:
    """How many entries x, y and the rows of all constraints have together."""
    shapes = [eqx.filter_eval_shape(problem.rows, k, x, y) for k in ("outer", "inner")]
    rows = sum(part.size for pair in shapes for part in pair)
    return rows + sum(int(np.size(leaf)) for leaf in jax.tree.leaves((x, y)))


def shaped(problem: Problem, x: PyTree, y: PyTree, below: np.ndarray, zero: np.ndarray) -> PyTree:
    """Multipliers of rows <= 0 and = 0, shaped like what the inner constraint returns."""
    tree = eqx.filter_eval_shape(problem.constraint, "inner", x, y)
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda leaf: isinstance(leaf, Equal))
    out, at = [], [0, 0]
    for leaf in leaves:
        source, k = (zero, 1) if isinstance(leaf, Equal) else (below, 0)
        shape = leaf.value.shape if isinstance(leaf, Equal) else leaf.shape
        count = int(np.prod(shape))
        out.append(source[at[k] : at[k] + count].reshape(shape))
        at[k] += count
    return jax.tree.unflatten(structure, out)


# The compiled programs


class Rows:
    """Which rows of a problem a compiled program computes; hashable."""

    def __init__(self, program: Program, picked: dict[str, tuple[int, ...]] | None = None):
        self.program, self.picked = program, picked
        self.numbers = program.numbers
        self._key = (program, None if picked is None else tuple(sorted(picked.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self, arrays: tuple[Array, ...], z: Array) -> Array:
        """The rows at z; functions none of whose rows are wanted are not called."""
        length, *rest = arrays  # what z is measured in
        problem, (x, y) = self.program.problem(tuple(rest)), self.program.split(length * z)
        wanted = self.picked
        parts = []
        if wanted is None or wanted["f"]:
            parts.append(problem.outer(x, y)[None])
        if wanted is None or wanted["g"]:
            parts.append(problem.inner(x, y)[None])
        for which, kinds in (("outer", "CE"), ("inner", "ce")):
            if wanted is not None and not any(wanted[k] for k in kinds):
                continue
            found = problem.rows(which, x, y)
            for kind, rows in zip(kinds, found, strict=True):
                parts += [rows] if wanted is None else [rows[i][None] for i in wanted[kind]]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)


@functools.partial(jax.jit, static_argnums=0)
def _rows(rows: Rows, arrays: tuple[Array, ...], Z: Array) -> Array:
    return jax.vmap(functools.partial(rows, arrays))(Z)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _slopes(
    outer: Rows, inner: Rows, arrays: tuple[Array, ...], Z: Array, B: Array
) -> tuple[Array, Array]:
    """The rows, and the gradient of b . R in y; b weighs inner rows only."""

    def one(z: Array, b: Array) -> tuple[Array, Array]:
        R, pull = jax.vjp(functools.partial(inner, arrays), z)
        return jnp.concatenate([outer(arrays, z), R]), pull(b)[0][inner.program.x.size :]

    return jax.vmap(one)(Z, B)


@Compiled
def _bend(inner: Rows, arrays: tuple[Array, ...], Z: Array, A: Array) -> tuple[Array, ...]:
    """The gradient of a . R in y, and the derivatives in y of R and of the gradient."""
    nx, ny = inner.program.x.size, inner.program.y.size

    def one(z: Array, a: Array) -> tuple[Array, ...]:
        def first(y: Array) -> tuple[Array, Array]:
            R, pull = jax.vjp(lambda y: inner(arrays, jnp.concatenate([z[:nx], y])), y)
            return R, pull(a)[0]

        push = functools.partial(jax.jvp, first, (z[nx:],))
        (_, slope), (J, H) = jax.vmap(lambda w: push((w,)), out_axes=(None, -1))(jnp.eye(ny))
        return slope, J, H

    return jax.vmap(one)(Z, A)


@functools.partial(Compiled, static=2)
def _derive(
    outer: Rows, inner: Rows, arrays: tuple[Array, ...], Z: Array, A: Array, B: Array, V: Array
) -> tuple[Array, ...]:
    """Everything in `Derivatives`, in one pass over the entries of z; P of inner rows only."""
    nx = inner.program.x.size

    def one(z: Array, a: Array, b: Array, v: Array) -> tuple[Array, ...]:
        along = jnp.concatenate([jnp.zeros(nx), v])
        split = a.size - b.size

        def first(z: Array) -> tuple[Array, ...]:
            inside = functools.partial(inner, arrays)
            (R, P), pull = jax.vjp(lambda z, w: jax.jvp(inside, (z,), (w,)), z, along)
            slope, turn = pull((a[split:], b))
            R_outer, pull = jax.vjp(functools.partial(outer, arrays), z)
            return jnp.concatenate([R_outer, R]), P, turn[nx:], slope + pull(a[:split])[0]

        push = functools.partial(jax.jvp, first, (z,))
        along_all = jax.vmap(lambda w: push((w,)), out_axes=(None, -1))
        (R, P, st, slope), (J, DP, D, H) = along_all(jnp.eye(z.size))
        return R, J, P, DP, st, D, slope, H

    return jax.vmap(one)(Z, A, B, V)


def in_chunks(size: int, call: Callable, *arrays: np.ndarray) -> list[np.ndarray]:
    """A compiled function of arrays with `size` rows, applied to any number of rows."""
    count, ends = len(arrays[0]), []
    for begin in range(0, count, size):
        part = [a[begin : begin + size] for a in arrays]
        short = size - len(part[0])
        full = [np.concatenate([a, np.repeat(a[-1:], short, 0)]) if short else a for a in part]
        ends.append((size - short, call(*full)))  # which may return before it is computed
    parts = [[np.asarray(o)[:kept] for o in out] for kept, out in ends]
    return parts[0] if len(parts) == 1 else [np.concatenate(c) for c in zip(*parts, strict=True)]


# The model


def _unit(size: float, least: float = 1e-2, most: float = 1e3) -> float:
    """A unit for numbers of a size: one unless they are very small or very large."""
    return 1.0 if size == 0 or least <= size <= most else float(size)


def _mapped(Z: Points, A: np.ndarray) -> np.ndarray:
    """A z for many z, without BLAS: its threads cost more than such products."""
    return np.einsum("ij,kj->ik", Z, A)


class Model:
    """The rows of a problem, and what is known of them.

    Arguments:
        problem: the problem, in double precision, in a session that has it.
        x, y: a point of it.

    Attributes:
        length: what the entries of z are measured in.
        kind: the kind of every row, as an index of `KINDS`.
        curved: the rows that are not affine.
        slope, offset: of the affine rows, slope z + offset; zero for the others.
        finite: the rows that are not minus infinity wherever they were looked at.
        lo, hi: bounds of the entries of z that rows alone say.
        kept: the rows that are not bounds of x.
        unit: what every row is multiplied by, so that its derivatives are about one.
        sharp: what violations and gaps are multiplied by: its own unit is used for a row that is
            steep, unless it is extremely so, because it may be flat elsewhere.
    """

    def __init__(self, problem: Problem, x: PyTree, y: PyTree):
        self.problem, self.program = problem, Program(problem, x, y)
        self.nx, self.ny = self.program.x.size, self.program.y.size
        self.like, self.calls = (x, y), Calls()
        start = [np.ravel(np.asarray(v, np.float64)) for v in jax.tree.leaves((x, y))]
        start = np.concatenate(start)
        parts = (start[: self.nx], start[self.nx :])
        sizes = [float(np.max(np.abs(part))) for part in parts]
        sizes = [size if size > NOTHING else 0.0 for size in sizes]
        units = [_unit(size or max(sizes)) for size in sizes]  # one that is zero says nothing
        self.length = np.repeat(units, [part.size for part in parts])
        self.start = start / self.length
        arrays = (v for v in jax.tree.leaves(problem) if eqx.is_array(v))
        self.arrays = (jnp.asarray(self.length), *arrays)
        self._all = Rows(self.program)
        shapes = [eqx.filter_eval_shape(problem.rows, k, x, y) for k in ("outer", "inner")]
        counts = [1, 1, *(part.size for pair in shapes for part in pair)]
        self.own = {
            k: self._own(k, pair) for k, pair in zip(("outer", "inner"), shapes, strict=True)
        }
        self.kind = np.repeat(np.arange(6), counts)
        first = np.cumsum([0, *counts[:-1]])
        with np.errstate(invalid="ignore"):
            self._look_for_affine_rows()
        self._look_for_bounds()
        inner = np.isin(self.kind[self.curved], INNER)
        self.curved = np.concatenate([self.curved[~inner], self.curved[inner]])
        self._bent = int(np.sum(~inner))  # where the inner rows begin among the curved ones
        self._programs = tuple(
            Rows(
                self.program,
                {
                    k: tuple(int(i - first[j]) for i in part if self.kind[i] == j)
                    for j, k in enumerate(KINDS)
                },
            )
            for part in (
                self.curved[~np.isin(self.kind[self.curved], INNER)],
                self.curved[self._bent :],
            )
        )
        self._keep()

    @property
    def inner_unit(self) -> float:
        """What inner values are multiplied by where they are compared."""
        return float(self.unit[1] * self.sharp[1])

    def _own(self, which: str, shapes: tuple) -> np.ndarray:
        """Which rows <= 0 and = 0 of a level are its constraint's, rather than its set's."""
        x, y = self.like
        set_, z = (self.problem.x_set, x) if which == "outer" else (self.problem.y_set, y)
        of_set = eqx.filter_eval_shape(set_.constraints, z)
        parts = [np.arange(a.size) < a.size - b.size for a, b in zip(shapes, of_set, strict=True)]
        return np.concatenate(parts)

    @property
    def n(self) -> int:
        """The entries of z."""
        return self.nx + self.ny

    def point(self, x: np.ndarray, y: np.ndarray) -> tuple[PyTree, PyTree]:
        """A point in the problem's own shapes and units."""
        nx = self.nx
        return self.program.x.tree(self.length[:nx] * x), self.program.y.tree(self.length[nx:] * y)

    def sampled_slopes(self) -> np.ndarray:
        """For every row the largest derivatives that were seen."""
        slopes = np.abs(self.slope)
        slopes[self.curved] = self._curved_slopes
        return slopes

    def all_rows(self, Z: Points) -> np.ndarray:
        """Every row at many points, in its own units."""
        self.calls.values += len(Z)
        return in_chunks(MANY, lambda z: (_rows(self._all, self.arrays, z),), Z)[0]

    def _look_for_affine_rows(self) -> None:
        """Fit every row by an affine function and see whether that holds elsewhere."""
        n, size = self.n, max(1.0, float(np.sqrt(np.mean(self.start**2))))
        h = size * np.eye(n)
        around = (
            self.start
            + WIDE
            * size
            * (2 * kronecker(SAMPLES, np.full(n, 0.5)) - 1)
            * (np.array(RADII)[np.arange(SAMPLES) % len(RADII), None])
        )
        R = self.all_rows(
            np.concatenate([self.start[None], self.start + h, self.start - h, around])
        )
        slope = ((R[1 : n + 1] - R[n + 1 : 2 * n + 1]) / (2 * size)).T
        offset = R[0] - slope @ self.start
        self.finite = ~np.all(R == -np.inf, axis=0)
        terms = np.abs(R[0]) + np.abs(around) @ np.abs(slope).T + np.abs(slope) @ np.abs(self.start)
        # NaN is not affine
        fits = np.abs(around @ slope.T + offset - R[2 * n + 1 :]) <= AFFINE * terms
        bend = np.abs(R[1 : n + 1] + R[n + 1 : 2 * n + 1] - 2 * R[0])
        straight = bend <= AFFINE * (np.abs(R[0]) + size * np.abs(slope).T)
        affine = np.all(fits, axis=0) & np.all(straight, axis=0)
        largest = np.max(np.abs(slope), axis=1, keepdims=True)
        slope = np.where(np.abs(slope) > AFFINE * largest, slope, 0.0)
        self.curved = np.flatnonzero(~affine & self.finite)
        use = (affine & self.finite)[:, None]
        self.slope = np.where(use, slope, 0.0)
        self.offset = np.where(
            use[:, 0], np.where(self.finite, R[0], 0) - self.slope @ self.start, 0.0
        )

    def _look_for_bounds(self) -> None:
        """Rows in one entry alone are its bounds."""
        self.lo, self.hi = np.full(self.n, -np.inf), np.full(self.n, np.inf)
        bound = np.zeros(len(self.kind), bool)
        for i in np.flatnonzero(np.count_nonzero(self.slope, axis=1) == 1):
            entry = int(np.flatnonzero(self.slope[i])[0])
            outer = self.kind[i] == 2 and entry < self.nx
            if not (outer or (self.kind[i] == 4 and entry >= self.nx)):
                continue
            at = -self.offset[i] / self.slope[i, entry]
            if self.slope[i, entry] > 0:
                self.hi[entry] = min(self.hi[entry], at)
            else:
                self.lo[entry] = max(self.lo[entry], at)
            bound[i] = outer
        pinned = ~(self.hi - self.lo > 1e-6)  # no room for a barrier
        pinned[self.nx :] = False
        bound &= ~np.any((self.slope != 0) & pinned, axis=1)
        self.x_lo = np.where(pinned, -np.inf, self.lo)[: self.nx]
        self.x_hi = np.where(pinned, np.inf, self.hi)[: self.nx]
        self.bound = bound

    def _keep(self) -> None:
        self.kept = np.flatnonzero(self.finite & ~self.bound)
        kinds = self.kind[self.kept]
        self._inner = np.flatnonzero(np.isin(kinds, INNER))
        self.sizes = Sizes(self.nx, self.ny, *(int(np.sum(kinds == k)) for k in range(2, 6)))
        self._ends = np.cumsum([1, 1, *self.sizes[2:]])
        place = {int(i): k for k, i in enumerate(self.kept)}
        self.at_curved = np.array([place[int(i)] for i in self.curved], int)
        self.unit, self._curved_slopes = np.ones(len(self.kept)), np.zeros((0, self.n))
        A = self.slope[self.kept]
        size = np.max(np.abs(A), axis=1, initial=0.0)
        if len(self.curved):
            Z = self.spread(SAMPLES, 7)
            zero = np.zeros((SAMPLES, len(self.kept)))
            J = np.abs(self._curve(Z, zero, zero, np.zeros((SAMPLES, self.ny)))[1])
            J = np.where(np.isfinite(J), J, 0.0)
            self._curved_slopes = np.max(J, axis=0)
            largest = np.max(J, axis=-1)[np.arange(SAMPLES) % len(RADII) < 2]  # not too far away
            largest = np.where(np.any(largest > 0, axis=0), largest, 1.0)
            size[self.at_curved] = [np.median(column[column > 0]) for column in largest.T]
        self.unit = np.array([_unit(1 / s, 1.0, 100.0) if s > 0 else 1.0 for s in size])
        self.sharp = np.where((self.unit < 1) & (self.unit > STEEP), 1 / self.unit, 1.0)
        self.A, self.a0 = self.unit[:, None] * A, self.unit * self.offset[self.kept]

    def spread(self, count: int, seed: int, radius: float | None = None) -> Points:
        """The start, and points spread over the bounds or, without them, around the start.

        `radius` is half the width of the cube around the start, in the problem's own units.
        """
        shift = np.random.default_rng(seed).random(self.n)
        u = (
            kronecker(count, shift)
            if self.n <= 32
            else np.random.default_rng(seed).random((count, self.n))
        )
        size = WIDE * max(1.0, float(np.sqrt(np.mean(self.start**2))))
        reach = size * np.array(RADII)[np.arange(count) % len(RADII), None]
        if radius is not None:
            reach = radius / self.length
        lo, hi = self.lo, self.hi
        low = np.where(
            np.isfinite(lo), lo, np.where(np.isfinite(hi), hi - 2 * reach, self.start - reach)
        )
        high = np.where(
            np.isfinite(hi), hi, np.where(np.isfinite(lo), lo + 2 * reach, self.start + reach)
        )
        Z = low + u * (high - low)
        Z[0] = np.minimum(np.maximum(self.start, lo), hi)
        return Z

    def full(self, d: Derivatives, Z: Points) -> tuple[np.ndarray, np.ndarray]:
        """All finite rows and their derivatives at points, in their own units."""
        R = Z @ self.slope.T + self.offset
        J = np.repeat(self.slope[None], len(Z), axis=0)
        at = self.at_curved
        R[:, self.curved] = d.R[:, at] / self.unit[at]
        J[:, self.curved] = d.J[:, at] / self.unit[at, None]
        return R[:, self.finite], J[:, self.finite]

    # Rows that are kept, scaled

    def cut(self, rows: np.ndarray) -> Kinds:
        """Numbers for every row, by kind."""
        e = self._ends
        parts = (rows[:, a:b] for a, b in itertools.pairwise(e[1:]))
        return Kinds(rows[:, 0], rows[:, 1], *parts)

    def join(
        self, f: Number, g: Number, C: Number, E: Number, c: Number, e: Number, count: int
    ) -> np.ndarray:
        """Numbers by kind as one array."""
        out = np.empty((count, len(self.kept)))
        out[:, 0], out[:, 1] = f, g
        for part, a, b in zip((C, E, c, e), self._ends[1:-1], self._ends[2:], strict=True):
            out[:, a:b] = part
        return out

    def rows(self, Z: Points) -> np.ndarray:
        """The rows at many points."""
        return self.slopes(Z, np.zeros((len(Z), len(self.kept))))[0]

    def slopes(self, Z: Points, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows, and the gradient of b . R in y."""
        self.calls.values += len(Z)
        R, st = _mapped(Z, self.A) + self.a0, _mapped(b, self.A[:, self.nx :].T)
        if len(self.curved):
            unit, at = self.unit[self.at_curved], self.at_curved
            call = functools.partial(_slopes, *self._programs, self.arrays)
            bent, turn = in_chunks(MANY, call, Z, (b[:, at] * unit)[:, self._bent :])
            R[:, at] = bent * unit
            st += turn
        return R, st

    def inside(self, Z: Points) -> np.ndarray:
        """The rows at many points, those of the inner problem alone; zero for the others."""
        self.calls.values += len(Z)
        R = np.zeros((len(Z), len(self.kept)))
        R[:, self._inner] = _mapped(Z, self.A[self._inner]) + self.a0[self._inner]
        at = self.at_curved[self._bent :]
        if len(at):
            call = functools.partial(_rows, self._programs[1], self.arrays)
            R[:, at] = in_chunks(MANY, lambda z: (call(z),), Z)[0] * self.unit[at]
        return R

    def bend(self, Z: Points, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the inner rows the derivatives in y, and the first and second ones of a . R in y."""
        self.calls.products += len(Z) * self.ny
        A = self.A[:, self.nx :]
        J, slope = np.broadcast_to(A, (len(Z), *A.shape)), _mapped(a, A.T)
        at = self.at_curved[self._bent :]
        if not len(at):
            return J, slope, np.zeros((len(Z), self.ny, self.ny))
        call = functools.partial(_bend, self._programs[1], self.arrays)
        slope_, J_, H = in_chunks(MANY, call, Z, a[:, at] * self.unit[at])
        J = J.copy()
        J[:, at] = J_ * self.unit[at, None]
        return J, slope + slope_, H

    def derive(self, Z: Points, a: np.ndarray, b: np.ndarray, v: np.ndarray) -> Derivatives:
        """All that a Newton step needs."""
        count, n = len(Z), self.n
        self.calls.products += count * n
        R, st, slope = (
            _mapped(Z, self.A) + self.a0,
            _mapped(b, self.A[:, self.nx :].T),
            _mapped(a, self.A.T),
        )
        J = np.broadcast_to(self.A, (count, *self.A.shape))
        P, DP = _mapped(v, self.A[:, self.nx :]), np.zeros((count, *self.A.shape))
        D, H = np.zeros((count, self.ny, n)), np.zeros((count, n, n))
        if len(self.curved):
            at, unit = self.at_curved, self.unit[self.at_curved]
            R_, J_, P_, DP_, st_, D, slope_, H = self._curve(Z, a, b, v)
            J = J.copy()
            R[:, at], J[:, at] = R_ * unit, J_ * unit[:, None]
            at, unit = at[self._bent :], unit[self._bent :]
            P[:, at], DP[:, at] = P_ * unit, DP_ * unit[:, None]
            st, slope = st + st_, slope + slope_
        return Derivatives(R, J, P, DP, st, D, slope, H)

    def _curve(self, Z: Points, a: np.ndarray, b: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
        at, unit = self.at_curved, self.unit[self.at_curved]
        call = functools.partial(_derive, *self._programs, self.arrays)
        b = (b[:, at] * unit)[:, self._bent :]
        return in_chunks(LANES, call, Z, a[:, at] * unit, b, v)
