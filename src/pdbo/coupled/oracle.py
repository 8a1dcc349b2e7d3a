"""A large problem on flat NumPy vectors in units of its own: products with derivatives, compiled.

x, y, f, g and every row are measured in units, so that barriers and tolerances have none. The
matrices of the inner problem are sparse, and computed once if they are the same everywhere.
"""

import functools
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._problem import Problem, constraint_rows
from .._programs import INSTANT
from ..exact.oracle import MEDIUM, Compiled, Program
from ..sets import Box, Free, NonNegative, Set
from .matrices import RowMatrices
from .ordering import Ordering
from .pattern import Pattern, Sparse, entries, products

if TYPE_CHECKING:
    from .follower import Answer

Vector = Float[np.ndarray, " n"]

SAMPLES = 8  # random directions that measure the outer rows
SAME = 1e-9  # products this close, relative, are of the same matrix
APART = (0.0, 0.3, 1.0)  # how far from the start matrices are looked at, in units


Numbers: TypeAlias = Array | np.ndarray


class Units(NamedTuple):
    """What x, y, f, g and the rows are measured in, and which inner rows <= 0 are used."""

    x: Numbers
    y: Numbers
    f: Numbers
    g: Numbers
    below: Numbers
    zero: Numbers
    kept: Numbers
    outer_below: Numbers
    outer_zero: Numbers


class Outside(NamedTuple):
    """Multipliers of the outer rows <= 0 and = 0, and the penalty."""

    below: Numbers
    zero: Numbers
    penalty: Numbers


class Inside(NamedTuple):
    """g, the inner rows and the gradient of the Lagrangian in y."""

    g: float
    c: Vector
    e: Vector
    slope: Vector


class Level:
    """The functions of a problem in its units, for the compiled programs."""

    def __init__(self, program: Program, arrays: tuple[Array, ...], units: Units):
        self.program, self.units = program, units
        self.problem = program.problem(arrays)

    def point(self, x: Array, y: Array) -> tuple[PyTree, PyTree]:
        """x and y as the problem has them."""
        return self.program.split(jnp.concatenate([self.units.x * x, self.units.y * y]))

    def rows(self, x: Array, y: Array) -> tuple[Array, Array]:
        """The inner rows."""
        below, zero = self.problem.rows("inner", *self.point(x, y))
        return below[self.units.kept] / self.units.below, zero / self.units.zero

    def lagrangian(self, x: Array, y: Array, m: Array, u: Array) -> Array:
        """That of the inner problem."""
        below, zero = self.rows(x, y)
        return self.problem.inner(*self.point(x, y)) / self.units.g + m @ below + u @ zero

    def by_y(self, x: Array, y: Array, m: Array, u: Array) -> Array:
        """Its gradient in y."""
        return jax.grad(self.lagrangian, 1)(x, y, m, u)

    def outer_rows(self, x: Array, y: Array) -> tuple[Array, Array]:
        """The rows of the outer constraint, and those of x_set that are not bounds."""
        x_, y_ = self.point(x, y)
        pairs = constraint_rows(self.problem.constraint("outer", x_, y_)), of_set(self.problem, x_)
        below, zero = (jnp.concatenate(part) for part in zip(*pairs, strict=True))
        return below / self.units.outer_below, zero / self.units.outer_zero

    def outer(self, x: Array, y: Array, outside: Outside) -> Array:
        """f with its constraints as an augmented Lagrangian."""
        rho = outside.penalty
        below, zero = self.outer_rows(x, y)
        hinge = jnp.maximum(0, outside.below + rho * below)
        more = (hinge @ hinge - outside.below @ outside.below) / (2 * rho)
        more = more + outside.zero @ zero + rho / 2 * zero @ zero
        return self.problem.outer(*self.point(x, y)) / self.units.f + more


def is_box(set_: Set) -> bool:
    """Whether a set says bounds alone."""
    return all(isinstance(part, Box | Free | NonNegative) for part in set_.factors)


def of_set(problem: Problem, x: PyTree) -> tuple[Array, Array]:
    """The rows of x_set, none if they are bounds."""
    if is_box(problem.x_set):
        return jnp.zeros(0), jnp.zeros(0)
    return problem.x_set.constraints(x)


_compiled = functools.partial(Compiled, most=MEDIUM, options=INSTANT)


class Seen(NamedTuple):
    """f, g and all rows <= 0 and = 0 at a point: of the constraints and of the sets."""

    f: Numbers
    g: Numbers
    outer: tuple[Numbers, Numbers]
    inner: tuple[Numbers, Numbers]
    x_set: tuple[Numbers, Numbers]
    y_set: tuple[Numbers, Numbers]


@_compiled
def _seen(program, arrays, z):
    problem, (x, y) = program.problem(arrays), program.split(z)
    outer, inner = (
        constraint_rows(problem.constraint(which, x, y)) for which in ("outer", "inner")
    )
    sets = of_set(problem, x), problem.y_set.constraints(y)
    return Seen(problem.outer(x, y), problem.inner(x, y), outer, inner, *sets)


def seen_at(problem: Problem, x: PyTree, y: PyTree) -> Seen:
    """f, g and all rows at a point."""
    arrays = tuple(v for v in jax.tree.leaves(problem) if eqx.is_array(v))
    return jax.tree.map(np.asarray, _seen(Program(problem, x, y), arrays, flat(x, y)))


def flat(x: PyTree, y: PyTree) -> Vector:
    """A point as one vector."""
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves((x, y))])


@_compiled
def _inside(program, arrays, units, x, y, m, u):
    level = Level(program, arrays, units)
    g = level.problem.inner(*level.point(x, y)) / units.g
    return g, *level.rows(x, y), level.by_y(x, y, m, u)


@_compiled
def _push(program, arrays, units, x, y, W):
    level = Level(program, arrays, units)
    return jax.vmap(lambda w: jax.jvp(functools.partial(level.rows, x), (y,), (w,))[1])(W)


@_compiled
def _pull(program, arrays, units, x, y, P, Q):
    level = Level(program, arrays, units)
    back = jax.vjp(functools.partial(level.rows, x), y)[1]
    return jax.vmap(lambda p, q: back((p, q))[0])(P, Q)


@_compiled
def _bend(program, arrays, units, x, y, m, u, W):
    level = Level(program, arrays, units)
    return jax.vmap(lambda w: jax.jvp(lambda y: level.by_y(x, y, m, u), (y,), (w,))[1])(W)


@_compiled
def _outer(program, arrays, units, outside, x, y):
    level = Level(program, arrays, units)
    f, slopes = jax.value_and_grad(level.outer, (0, 1))(x, y, outside)
    return f, *slopes, *level.outer_rows(x, y)


@_compiled
def _outer_push(program, arrays, units, x, y, X, Y):
    level = Level(program, arrays, units)
    return jax.vmap(lambda v, w: jax.jvp(level.outer_rows, (x, y), (v, w))[1])(X, Y)


def _coupled(level: Level, x, y, m, u, v, w, t):
    """The inner conditions times an adjoint."""
    below, zero = level.rows(x, y)
    along = jax.jvp(lambda y: level.lagrangian(x, y, m, u), (y,), (v,))[1]
    return along + w @ below + t @ zero


@_compiled
def _adjoint(program, arrays, units, x, y, m, u, v, w, t):
    level = Level(program, arrays, units)
    return jax.grad(lambda x: _coupled(level, x, y, m, u, v, w, t))(x)


@_compiled
def _ahead(program, arrays, units, x, y, m, u, d):
    level = Level(program, arrays, units)
    return jax.jvp(lambda x: (level.by_y(x, y, m, u), *level.rows(x, y)), (x,), (d,))[1]


@_compiled
def _turned(program, arrays, units, outside, at, adjoint, along):
    level, (v, q, t) = Level(program, arrays, units), adjoint

    def merit(x, y, m, u):
        return level.outer(x, y, outside) - _coupled(level, x, y, m, u, v, -q * m, t)

    return jax.jvp(jax.grad(merit, (0, 1, 2, 3)), at, along)[1]


class Oracle:
    """A large problem: values, products and the inner matrices.

    Attributes:
        below, zero: how many inner rows there are of each kind.
        bound: which rows <= 0 have one entry.
        share: the barriers of the rows <= 0, relative: of how many entries of y each one is.
        affine: whether the inner rows are affine in y.
        straight: whether g is quadratic in y, too.
        ordering: how the follower's matrix is factored.
        sparse: whether they are sparse; if not there is no oracle.
    """

    def __init__(self, problem: Problem, x: PyTree, y: PyTree):
        self.program = Program(problem, x, y)
        self.nx, self.ny = self.program.x.size, self.program.y.size
        self.arrays = tuple(v for v in jax.tree.leaves(problem) if eqx.is_array(v))
        self.start = np.split(np.asarray(flat(x, y), float), [self.nx])
        seen = seen_at(problem, x, y)
        below, zero = map(np.concatenate, zip(seen.inner, seen.y_set, strict=True))
        kept = np.flatnonzero(np.isfinite(below))
        self.below, self.zero, self._rows = len(kept), len(zero), len(below)
        sizes = [_typical(part) for part in self.start]
        one, out = np.ones(()), [len(seen.outer[k]) + len(seen.x_set[k]) for k in (0, 1)]
        self.units = Units(
            one * sizes[0], one * sizes[1], one, one, np.ones(len(kept)), np.ones(len(zero)), kept,
            *map(np.ones, out),
        )  # fmt: skip
        self.start = [part / size for part, size in zip(self.start, sizes, strict=True)]
        self.outside = Outside(np.zeros(out[0]), np.zeros(out[1]), np.asarray(10.0))
        self.ordering, self.sparse = Ordering(), self._look()

    @property
    def bound_outside(self) -> bool:
        """Whether there are outer rows."""
        return len(self.outside.below) + len(self.outside.zero) > 0

    def point(self, x: Vector, y: Vector) -> tuple[PyTree, PyTree]:
        """A point in the problem's own shapes and units."""
        units = self.units
        return self.program.split(np.concatenate([units.x * np.asarray(x), units.y * y]))

    def solution(self, x: Vector, at: "Answer") -> tuple[PyTree, PyTree, Vector, Vector]:
        """The point and the multipliers of the inner rows in the problem's own units."""
        point = self.point(x, at.y)
        point = self.program.problem(self.arrays).x_set.project(point[0]), point[1]
        below = np.zeros(self._rows)
        below[self.units.kept] = at.m * self.units.g / self.units.below
        return *point, below, at.u * self.units.g / self.units.zero

    def appeared(self, x: Vector, y: Vector) -> bool:
        """Whether an inner row that was minus infinity at the start, and left out, is not here."""
        if self.below == self._rows:
            return False
        below = np.asarray(self.program.problem(self.arrays).rows("inner", *self.point(x, y))[0])
        return bool(np.any(np.delete(below, self.units.kept) != -np.inf))

    @property
    def _given(self) -> tuple:
        return self.program, self.arrays, self.units

    def _look(self) -> bool:
        """Find the entries of the inner matrices, and measure the rows."""
        x, y = self.start
        J = entries(lambda W: self._pushed(x, y, W), lambda P: self._pulled(x, y, P),
                    (self.below + self.zero, self.ny))  # fmt: skip
        if J is None:
            return False
        size = np.sqrt(np.asarray(J.power(2).sum(axis=1)).ravel())
        size = np.where(size > 0, size, 1.0)
        self.units = self.units._replace(below=size[: self.below], zero=size[self.below :])
        J = sparse.csr_array(sparse.diags_array(1 / size) @ J)
        self.bound = np.diff(J.indptr)[: self.below] == 1
        self.share = np.asarray(abs(J).sum(axis=1)).ravel()[: self.below] ** 2
        slope = np.abs(self.inner(x, y, np.zeros(self.below), np.zeros(self.zero)).slope)
        m, u = np.ones(self.below), np.ones(self.zero)

        def bent(W: np.ndarray) -> np.ndarray:
            return self._bent(x, y, m, u, W)

        H = entries(bent, bent, (self.ny, self.ny))
        if H is None:
            return False
        self.straight = self._settle(J, H)
        unit = np.median(slope[slope > 0]) if np.any(slope > 0) else 1.0
        self.units = self.units._replace(g=np.asarray(unit if unit > 0 else 1.0))
        if self._H is not None:
            self._H = self._H / unit
        self._measure()
        return True

    def _measure(self) -> None:
        """The units of f and of the outer rows, by their derivatives along random directions."""
        rng = np.random.default_rng(5)
        along = rng.choice([-1.0, 1.0], (SAMPLES, self.nx + self.ny))
        below, zero = _outer_push(*self._given, *self.start, *np.split(along, [self.nx], axis=1))
        sizes = [np.sqrt(np.mean(np.asarray(v) ** 2, axis=0)) for v in (below, zero)]
        sizes = [np.where(size > 0, size, 1.0) for size in sizes]
        used, self.outside = self.outside, self.outside._replace(penalty=np.asarray(1e-100))
        _, f_x, f_y, *_ = self.outer(*self.start)
        self.outside = used
        size = float(np.sqrt(f_x @ f_x * self.nx) + np.linalg.norm(f_y) * np.sqrt(self.ny))
        self.units = self.units._replace(
            outer_below=sizes[0], outer_zero=sizes[1], f=np.asarray(size if size > 0 else 1.0)
        )

    def bounds(self) -> tuple[Vector, Vector]:
        """Those of x: infinite if x_set is none of boxes."""
        set_, shapes = self.program.side("x", self.arrays)
        ends = [np.full(self.nx, end) for end in (-np.inf, np.inf)]
        if is_box(set_):
            trees = [set_.project(shapes.tree(jnp.asarray(end))) for end in ends]
            ends = [np.asarray(ravel_pytree(tree)[0]) / self.units.x for tree in trees]
        return ends[0], ends[1]

    def _settle(self, J: Sparse, H: Sparse) -> bool:
        """Keep the matrices if they are the same everywhere; whether they are the same at all y."""
        rng = np.random.default_rng(3)
        w = rng.standard_normal(self.ny)
        x0, y0 = self.start
        same = [[], []]  # in y, in x and y
        for far in APART[1:]:
            for moved in (0, 1):
                x = x0 + moved * far * 0.1 * rng.standard_normal(self.nx)
                y = y0 + far * rng.standard_normal(self.ny)
                m, u = rng.random(self.below), rng.standard_normal(self.zero)
                there = self._along(x, y, m, u, w)
                same[moved].append([_same(there[0], J @ w), _same(there[1], H @ w)])
        in_y, in_both = (np.all(part, axis=0) for part in same)
        self._cut = RowMatrices(J, self.bound) if in_both[0] else None
        self._H = H if in_both[1] else None
        self.affine = bool(in_y[0])
        self._pattern_J, self._pattern_H = Pattern(J), Pattern(H)
        return bool(np.all(in_y))

    # Products

    def _pushed(self, x: Vector, y: Vector, W: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(v) for v in _push(*self._given, x, y, W)], axis=1)

    def _pulled(self, x: Vector, y: Vector, P: np.ndarray) -> np.ndarray:
        return np.asarray(_pull(*self._given, x, y, *np.split(P, [self.below], axis=1)))

    def _bent(self, x: Vector, y: Vector, m: Vector, u: Vector, W: np.ndarray) -> np.ndarray:
        return np.asarray(_bend(*self._given, x, y, m, u, W))

    def _along(self, x: Vector, y: Vector, m: Vector, u: Vector, w: Vector) -> tuple:
        """The products of both inner matrices with w."""
        ways = lambda W: self._pushed(x, y, W), lambda W: self._bent(x, y, m, u, W)
        return tuple(products(way, w[None])[0] for way in ways)

    def rows_at(self, x: Vector, y: Vector) -> RowMatrices:
        """The derivatives of the inner rows in y."""
        if self._cut is not None:
            return self._cut
        J = self._pattern_J.at(lambda W: self._pushed(x, y, W), lambda P: self._pulled(x, y, P))
        return RowMatrices(J, self.bound)

    def hessian_at(self, x: Vector, y: Vector, m: Vector, u: Vector) -> Sparse:
        """The second derivatives of the inner Lagrangian in y."""
        if self._H is not None:
            return self._H

        def bent(W: np.ndarray) -> np.ndarray:
            return self._bent(x, y, m, u, W)

        H = self._pattern_H.at(bent, bent)
        return sparse.csr_array((H + H.T) / 2)

    def inner(self, x: Vector, y: Vector, m: Vector, u: Vector) -> Inside:
        """g, the inner rows and the gradient of the Lagrangian in y."""
        g, *rest = _inside(*self._given, x, y, m, u)
        return Inside(float(g), *map(np.asarray, rest))

    def outer(self, x: Vector, y: Vector) -> tuple[float, Vector, Vector, Vector, Vector]:
        """The outer merit, its gradients in x and y, and the outer rows."""
        f, *rest = _outer(*self._given, self.outside, x, y)
        return (float(f), *map(np.asarray, rest))  # type: ignore

    def adjoint(self, x: Vector, at: tuple, p: tuple) -> Vector:
        """The derivative in x of the inner conditions at (y, m, u) times (v, w, t)."""
        return np.asarray(_adjoint(*self._given, x, *at, *p))

    def ahead(self, x: Vector, at: tuple, d: Vector) -> tuple[Vector, ...]:
        """The change of the inner conditions along d in x."""
        return tuple(map(np.asarray, _ahead(*self._given, x, *at, d)))

    def turned(self, at: tuple, adjoint: tuple, along: tuple) -> tuple[Vector, ...]:
        """The change along a direction of the gradient of the outer Lagrangian."""
        return tuple(map(np.asarray, _turned(*self._given, self.outside, at, adjoint, along)))


def _typical(part: Vector) -> float:
    size = float(np.sqrt(np.mean(part**2))) if len(part) else 0.0
    return size if size > 0 else 1.0


def _same(a: Vector, b: Vector) -> bool:
    size = np.max(np.abs(b), initial=0.0)
    return bool(np.max(np.abs(a - b), initial=0.0) <= SAME * max(size, 1e-300))
