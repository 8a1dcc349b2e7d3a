"""An accurate first-order minimiser over a convex set, independent of any solver."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from . import _trees as trees
from .sets import Free, Set

MEMORY = 8  # moves remembered for quasi-Newton steps if the set is Free ...
MEMORABLE = 5_000_000  # ... and the point has at most this many numbers


class Minimum(NamedTuple):
    """The best point found, its value and its projected-gradient residual."""

    point: PyTree
    value: Float[Array, ""]
    residual: Float[Array, ""]


class Search(NamedTuple):
    """The state of a search."""

    z: PyTree
    value: Float[Array, ""]
    gradient: PyTree
    step: Float[Array, ""]  # of the next trial along the gradient, if no moves are remembered
    reference: Float[Array, ""]  # what a trial must stay below: a decaying average of past values
    best: Minimum
    stalled: Int[Array, ""]  # iterations since the best residual last fell by a tenth
    taken: Int[Array, ""]  # iterations so far
    pairs: "Pairs | None"  # None for projected gradient steps


class Pairs(NamedTuple):
    """The last moves and the changes of the gradient along them, in a ring buffer."""

    rows: PyTree  # shaped like z with an axis ahead: the moves, then the changes
    along: Float[Array, "moves changes"]  # products; valid unless the change is the older one
    changes: Float[Array, "changes changes"]  # products of changes
    next: Int[Array, ""]  # the slot to be written next
    kept: Int[Array, ""]  # how many are remembered

    @staticmethod
    def empty(z: PyTree) -> "Pairs":
        """No moves yet, for points like z."""
        rows = jax.tree.map(lambda leaf: jnp.zeros((2 * MEMORY, *leaf.shape), leaf.dtype), z)
        grid = jnp.zeros((MEMORY, MEMORY), trees.dtype(z))
        return Pairs(rows, grid, grid, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def products(self, z: PyTree) -> tuple[Array, Array]:
        """The products of z with the moves and with the changes."""
        by_row = jax.tree.map(
            lambda rows, leaf: jnp.tensordot(rows, leaf, leaf.ndim, precision="highest"),
            self.rows,
            z,
        )
        by_move, by_change = jnp.split(functools.reduce(jnp.add, jax.tree.leaves(by_row)), 2)
        return by_move, by_change

    def add(
        self,
        move: PyTree,
        change: PyTree,
        keep: Bool[Array, ""],
        convex: Bool[Array, ""],
    ) -> "Pairs":
        """Adds a pair if the move was kept and curved upwards; forgets all if it was not kept."""
        k, room = self.next, MEMORY - 1
        move, change = trees.where(keep, (move, change), trees.zeros_like((move, change)))  # NaN
        rows = jax.tree.map(
            lambda rows, m, c: rows.at[k].set(m).at[k + MEMORY].set(c), self.rows, move, change
        )
        by_move, by_change = self._replace(rows=rows).products(change)
        kept = jnp.minimum(self.kept, room) + jnp.where(convex, 1, 0)
        return Pairs(
            rows,
            self.along.at[:, k].set(by_move),
            self.changes.at[:, k].set(by_change).at[k].set(by_change),
            jnp.where(keep & convex, (k + 1) % MEMORY, k),
            jnp.where(keep, kept, 0),
        )

    def step(self, gradient: PyTree, first_scale: Float[Array, ""]) -> PyTree:
        """The step of L-BFGS, in the compact form of Byrd, Nocedal & Schnabel (1994).

        `first_scale` times the gradient if no pair is remembered.
        """
        age = jnp.arange(MEMORY, dtype=self.next.dtype)
        order, used = (self.next + age) % MEMORY, age >= MEMORY - self.kept  # the oldest first
        grids = [m[order][:, order] for m in (self.along, self.changes)]
        along, changes = (jnp.where(used[:, None] & used, m, 0) for m in grids)
        by_move, by_change = (jnp.where(used, v[order], 0) for v in self.products(gradient))
        scale = along[-1, -1] / jnp.where(used[-1], changes[-1, -1], 1)
        scale = jnp.where(used[-1], scale, first_scale)
        upper = jnp.triu(along) + jnp.diag((~used).astype(along.dtype))
        a = solve_triangular(upper, by_move)
        b = jnp.diag(along) * a + scale * (trees.matmul(changes, a) - by_change)
        weights = jnp.stack([solve_triangular(upper, b, trans=1), -scale * a])
        weights = jnp.zeros_like(weights).at[:, order].set(weights).ravel()

        def combined(rows: Array, leaf: Array) -> Array:
            return scale * leaf + jnp.tensordot(weights, rows, 1, precision="highest")

        return jax.tree.map(combined, self.rows, gradient)


def minimize(
    function: Callable[[PyTree], Array], constraint: Set, start: PyTree, iterations: ArrayLike
) -> Minimum:
    """The best point of a search, as accurate as the arithmetic allows."""
    return search(function, constraint, start, iterations).best


def search(
    function: Callable[[PyTree], Array],
    constraint: Set,
    start: PyTree,
    iterations: ArrayLike,
    tol: ArrayLike = 0.0,
    step: Float[Array, ""] | None = None,
    remember: bool = True,
) -> Search:
    r"""Spectral projected gradient: $z^+ = P(z - s \nabla\phi(z))$ with Barzilai-Borwein steps s;
    limited-memory quasi-Newton steps if the set is Free and the point not too large.

    Needs no constants of the function and one gradient per iteration. It stops if the residual is
    at most `tol`, or at the accuracy its arithmetic allows; `step` is the first trial, and without
    `remember` there are no quasi-Newton steps. A trial is kept if its value stays below a decaying
    average of past values plus their rounding; otherwise the step is cut to a quarter and the
    remembered moves are forgotten.

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
    size = sum(leaf.size for leaf in jax.tree.leaves(start))
    small = remember and isinstance(constraint, Free) and size <= MEMORABLE
    pairs = Pairs.empty(start) if small else None
    first = Search(start, value, gradient, step, value, best, zero, zero, pairs)

    def going(s: Search) -> Bool[Array, ""]:
        return (s.taken < iterations) & (s.best.residual > tol) & (s.stalled < 60)

    def iterate(s: Search) -> Search:
        if s.pairs is None:
            z = constraint.project(trees.axpy(-s.step, s.gradient, s.z))
        else:
            z = trees.sub(s.z, s.pairs.step(s.gradient, s.step))
        value, gradient = value_and_grad(z)
        return _after_trial(constraint, s, z, value, gradient)

    return lax.while_loop(going, iterate, first)


def _after_trial(
    constraint: Set, s: Search, z: PyTree, value: Float[Array, ""], gradient: PyTree
) -> Search:
    """The search after a trial at z, which becomes its point if the value is low enough."""
    eps = jnp.finfo(value.dtype).eps
    move, change = trees.sub(z, s.z), trees.sub(gradient, s.gradient)
    rounding = 8 * eps * jnp.maximum(jnp.abs(value), jnp.abs(s.reference))
    slope = trees.dot(s.gradient, move)
    keep = value <= s.reference + 1e-4 * jnp.minimum(slope, 0) + rounding  # false for NaN
    residual = trees.length(constraint.tangent(z, trees.scale(-1, gradient)))
    ss, sy, yy = trees.dot(move, move), trees.dot(move, change), trees.dot(change, change)
    step = jnp.where(keep, _secant_step(s, ss, sy, yy), s.step / 4)
    best, progress = _improved(s.best, Minimum(z, value, residual), keep, rounding)
    pairs = s.pairs
    if pairs is not None:
        convex = sy > eps * jnp.sqrt(ss) * jnp.sqrt(yy)
        pairs = pairs.add(move, change, keep, convex)
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


def _secant_step(
    s: Search, ss: Float[Array, ""], sy: Float[Array, ""], yy: Float[Array, ""]
) -> Float[Array, ""]:
    """The long and the short Barzilai-Borwein step in turn; without curvature a longer step.

    Arguments:
        s: the search.
        ss, sy, yy: products of the move s and the change y of the gradient along it.
    """
    long, short = ss / jnp.where(sy > 0, sy, 1), sy / jnp.where(yy > 0, yy, 1)
    secant = jnp.where(s.taken % 2 == 0, long, short)
    return jnp.where((sy > 0) & (yy > 0), secant, 4 * s.step)


def _improved(
    best: Minimum, found: Minimum, keep: Bool[Array, ""], rounding: Float[Array, ""]
) -> tuple[Minimum, Bool[Array, ""]]:
    """The better of two points, of equal values that of the lower residual, and whether the new
    one is better by enough to go on."""
    better = keep & (
        (found.value < best.value - rounding)
        | ((found.value <= best.value + rounding) & (found.residual < best.residual))
    )
    chosen = trees.where(better, found, best)
    progress = better & (
        (found.residual < 0.9 * best.residual) | (found.value < best.value - 10 * rounding)
    )
    return chosen, progress
