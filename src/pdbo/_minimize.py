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
from ._sets import Free, Set

MEMORY = 10


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
    step: Array  # trial step
    reference: Array  # the value a trial has to stay below: a decaying average of past ones
    best: Minimum
    stalled: Array  # iterations since the best residual last fell by a tenth
    taken: Array
    pairs: "Pairs"


class Pairs(NamedTuple):
    """The last moves and the changes of the gradient along them, in a ring; none on a set."""

    moves: Array
    changes: Array
    next: Array  # the row to be written
    count: Array

    @staticmethod
    def none(z: Array, room: int) -> "Pairs":
        rows, zero = jnp.zeros((room, z.size), z.dtype), jnp.zeros((), jnp.int32)
        return Pairs(rows, rows, zero, zero)

    def add(self, keep: Array, move: Array, change: Array, good: Array) -> "Pairs":
        room = len(self.moves)
        write = keep & good
        row = self.next
        new = (
            rows.at[row].set(jnp.where(write, v, rows[row]))
            for rows, v in ((self.moves, move), (self.changes, change))
        )
        count = jnp.where(keep, jnp.minimum(self.count + write, room), 0)
        return Pairs(*new, jnp.where(write, (row + 1) % room, row), count)

    def apply(self, g: Array) -> Array:
        """The inverse Hessian of L-BFGS, in the compact form of Byrd, Nocedal & Schnabel (1994)."""
        room = len(self.moves)
        order = (self.next + jnp.arange(room)) % room  # the oldest first
        there = jnp.arange(room) >= room - self.count
        S, Y = self.moves, self.changes
        both = there[:, None] & there
        pick = lambda v: jnp.where(there, v[order], 0)
        grid = lambda m: jnp.where(both, m[order][:, order], 0)
        SY, YY = grid(S @ Y.T), grid(Y @ Y.T)
        R = jnp.triu(SY) + jnp.diag(jnp.where(there, 0, 1).astype(g.dtype))
        D = jnp.diag(SY)
        gamma = SY[-1, -1] / jnp.where(YY[-1, -1] > 0, YY[-1, -1], 1)
        p, q = pick(S @ g), pick(Y @ g)
        a = solve_triangular(R, p)
        top = solve_triangular(R, D * a + gamma * (YY @ a) - gamma * q, trans=1)
        back = lambda v: jnp.zeros_like(v).at[order].set(v)
        return gamma * g + back(top) @ S - gamma * (back(a) @ Y)


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
    r"""Spectral projected gradient: $z^+ = P(z - s \nabla\phi(z))$ with Barzilai-Borwein steps s.

    Needs no constants of the function, one gradient an iteration, and stops where the residual is
    at most `tol`, or at the accuracy its arithmetic allows; `step` is the first trial. A trial is
    kept where the value stays below a decaying average of past values plus their rounding;
    otherwise the step is cut to a quarter.

    References: Birgin, Martinez & Raydan, SIAM J. Optim. 10 (2000); Zhang & Hager, SIAM J.
    Optim. 14 (2004) for the average.
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
    room = MEMORY if isinstance(constraint, Free) else 0
    flat, to_tree = ravel_pytree(start)
    first = Search(start, value, gradient, step, value, best, zero, zero, Pairs.none(flat, room))

    def going(s: Search) -> Array:
        return (s.taken < iterations) & (s.best.residual > tol) & (s.stalled < 60)

    def trial(s: Search) -> Search:
        way = trees.scale(s.step, s.gradient)
        if room:
            newton = lambda: to_tree(s.pairs.apply(ravel_pytree(s.gradient)[0]))
            way = lax.cond(s.pairs.count > 0, newton, lambda: way)
        z = constraint.project(trees.sub(s.z, way))
        value, gradient = value_and_grad(z)
        move, change = trees.sub(z, s.z), trees.sub(gradient, s.gradient)
        rounding = 8 * eps * jnp.maximum(jnp.abs(value), jnp.abs(s.reference))
        slope = trees.dot(s.gradient, move)
        keep = value <= s.reference + 1e-4 * slope + rounding  # false for NaN
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
        reference = jnp.where(keep, 0.5 * s.reference + 0.5 * value, s.reference)
        pairs = s.pairs
        if room:
            flat = (ravel_pytree(v)[0] for v in (move, change))
            pairs = pairs.add(keep, *flat, sy > eps * jnp.sqrt(ss * yy))
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
