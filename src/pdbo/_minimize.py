"""An accurate first-order minimiser over a convex set, for inner values nobody has to trust."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, PyTree

from . import _trees as trees
from .sets import Free, Set

MEMORY = 8  # moves remembered where there is no set to stay in ...
MEMORABLE = 5_000_000  # ... and the point has at most so many numbers


class Minimum(NamedTuple):
    """The best point found, its value and its projected-gradient residual."""

    point: PyTree
    value: Array
    residual: Array


class Search(NamedTuple):
    """Where a search is, and how it goes on."""

    z: PyTree
    value: Array
    gradient: PyTree
    step: Array  # of a trial along the gradient, where nothing is remembered
    reference: Array  # the value a trial has to stay below: a decaying average of past ones
    best: Minimum
    stalled: Array  # iterations since the best residual last fell by a tenth
    taken: Array
    pairs: "Pairs | None"


class Pairs(NamedTuple):
    """The last moves and what they changed in the gradient, in a ring."""

    rows: Array  # the moves, then the changes
    along: Array  # moves times changes: right where the change is not the older one
    changes: Array  # changes times changes
    next: Array  # the move to be written
    kept: Array  # how many are remembered

    @staticmethod
    def none(z: Array) -> "Pairs":
        """Nothing remembered."""
        rows, grid = jnp.zeros((2 * MEMORY, z.size), z.dtype), jnp.zeros((MEMORY, MEMORY), z.dtype)
        return Pairs(rows, grid, grid, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def add(self, move: Array, change: Array, keep: Array, convex: Array) -> "Pairs":
        """One more where the move was kept and curved upwards, none at all where it was not."""
        k, room = self.next, MEMORY - 1
        move, change = (jnp.where(keep, v, 0) for v in (move, change))  # may be no numbers
        rows = self.rows.at[k].set(move).at[k + MEMORY].set(change)
        by_move, by_change = jnp.split(trees.matmul(rows, change), 2)
        kept = jnp.minimum(self.kept, room) + jnp.where(convex, 1, 0)
        return Pairs(
            rows,
            self.along.at[:, k].set(by_move),
            self.changes.at[:, k].set(by_change).at[k].set(by_change),
            jnp.where(keep & convex, (k + 1) % MEMORY, k),
            jnp.where(keep, kept, 0),
        )

    def step(self, gradient: Array, otherwise: Array) -> Array:
        """That of L-BFGS, in the compact form of Byrd, Nocedal & Schnabel (1994)."""
        age = jnp.arange(MEMORY, dtype=self.next.dtype)
        order, there = (self.next + age) % MEMORY, age >= MEMORY - self.kept  # the oldest first
        grids = [m[order][:, order] for m in (self.along, self.changes)]
        along, changes = (jnp.where(there[:, None] & there, m, 0) for m in grids)
        by_move, by_change = (
            jnp.where(there, v[order], 0) for v in jnp.split(trees.matmul(self.rows, gradient), 2)
        )
        scale = along[-1, -1] / jnp.where(there[-1], changes[-1, -1], 1)
        scale = jnp.where(there[-1], scale, otherwise)
        upper = jnp.triu(along) + jnp.diag((~there).astype(gradient.dtype))
        a = solve_triangular(upper, by_move)
        b = jnp.diag(along) * a + scale * (trees.matmul(changes, a) - by_change)
        weights = jnp.stack([solve_triangular(upper, b, trans=1), -scale * a])
        weights = jnp.zeros_like(weights).at[:, order].set(weights).ravel()
        return scale * gradient + trees.matmul(weights, self.rows)


def minimize(
    function: Callable[[PyTree], Array], constraint: Set, start: PyTree, iterations: Any
) -> Minimum:
    """The best point of a search as accurate as the arithmetic allows."""
    return search(function, constraint, start, iterations).best


def search(
    function: Callable[[PyTree], Array],
    constraint: Set,
    start: PyTree,
    iterations: Any,
    tol: Any = 0.0,
    step: Any = None,
) -> Search:
    r"""Spectral projected gradient: $z^+ = P(z - s \nabla\phi(z))$ with Barzilai-Borwein steps s;
    with no set to stay in and not too many numbers, limited-memory quasi-Newton steps.

    Needs no constants of the function, one gradient an iteration, and stops where the residual is
    at most `tol`, or at the accuracy its arithmetic allows; `step` is the first trial. A trial is
    kept where the value stays below a decaying average of past values plus their rounding;
    otherwise the step is cut to a quarter, and what was remembered is forgotten.

    References: Birgin, Martinez & Raydan, SIAM J. Optim. 10 (2000); Zhang & Hager, SIAM J.
    Optim. 14 (2004) for the average; Liu & Nocedal, Math. Program. 45 (1989) for L-BFGS.
    """
    value_and_grad = jax.value_and_grad(function)
    start = constraint.project(start)
    value, gradient = value_and_grad(start)
    eps = jnp.finfo(value.dtype).eps
    residual = trees.length(constraint.tangent(start, trees.scale(-1, gradient)))
    if step is None:  # by a hundredth of the size of the point; the secant takes over from there
        step = 0.01 * (1 + trees.length(start)) / jnp.maximum(trees.length(gradient), eps)
    best = Minimum(start, value, residual)
    zero = jnp.zeros((), jnp.int32)
    flat, to_tree = ravel_pytree(start)
    small = isinstance(constraint, Free) and flat.size <= MEMORABLE
    pairs = Pairs.none(flat) if small else None
    first = Search(start, value, gradient, step, value, best, zero, zero, pairs)

    def going(s: Search) -> Array:
        return (s.taken < iterations) & (s.best.residual > tol) & (s.stalled < 60)

    def trial(s: Search) -> Search:
        if s.pairs is None:
            z = constraint.project(trees.axpy(-s.step, s.gradient, s.z))
        else:
            z = trees.sub(s.z, to_tree(s.pairs.step(ravel_pytree(s.gradient)[0], s.step)))
        value, gradient = value_and_grad(z)
        move, change = trees.sub(z, s.z), trees.sub(gradient, s.gradient)
        rounding = 8 * eps * jnp.maximum(jnp.abs(value), jnp.abs(s.reference))
        slope = trees.dot(s.gradient, move)
        keep = value <= s.reference + 1e-4 * jnp.minimum(slope, 0) + rounding  # false for NaN
        residual = trees.length(constraint.tangent(z, trees.scale(-1, gradient)))
        ss, sy, yy = trees.dot(move, move), trees.dot(move, change), trees.dot(change, change)
        # alternate the long and the short secant step; with no curvature lengthen the last one
        long, short = ss / jnp.where(sy > 0, sy, 1), sy / jnp.where(yy > 0, yy, 1)
        secant = jnp.where(s.taken % 2 == 0, long, short)
        longer = jnp.where((sy > 0) & (yy > 0), secant, 4 * s.step)
        step = jnp.where(keep, longer, s.step / 4)
        better = keep & (
            (value < s.best.value - rounding)
            | ((value <= s.best.value + rounding) & (residual < s.best.residual))
        )
        best = trees.where(better, Minimum(z, value, residual), s.best)
        progress = better & (
            (residual < 0.9 * s.best.residual) | (value < s.best.value - 10 * rounding)
        )
        pairs = s.pairs
        if pairs is not None:
            convex = sy > eps * jnp.sqrt(ss) * jnp.sqrt(yy)
            pairs = pairs.add(ravel_pytree(move)[0], ravel_pytree(change)[0], keep, convex)
        reference = jnp.where(keep, 0.5 * s.reference + 0.5 * value, s.reference)
        z, value, gradient = trees.where(keep, (z, value, gradient), (s.z, s.value, s.gradient))
        return Search(
            z,
            value,
            gradient,
            step,
            jnp.maximum(reference, value),
            best,
            jnp.where(progress, 0, s.stalled + 1),
            s.taken + 1,
            pairs,
        )

    return lax.while_loop(going, trial, first)
