"""The limited-memory BFGS method: pairs of steps and gradient changes in ring buffers."""

from typing import NamedTuple

import numpy as np

from .oracle import Vector


class Pairs(NamedTuple):
    """The latest steps and the changes of the gradient along them: the rows of two ring buffers."""

    steps: tuple[Vector, ...]
    changes: tuple[Vector, ...]
    written: np.int64  # rows written since the buffers were last empty


def no_pairs(most: int, size: int) -> Pairs:
    """Empty buffers of `most` rows."""
    rows = (np.zeros(size),) * most
    return Pairs(rows, rows, np.int64(0))


def forget(pairs: Pairs) -> Pairs:
    """The same buffers, empty."""
    return pairs._replace(written=np.int64(0))


def remember(pairs: Pairs, step: Vector, change: Vector) -> Pairs:
    """The pairs with one more, in place of the oldest if the buffers are full."""
    row = int(pairs.written) % len(pairs.steps)

    def put(rows: tuple[Vector, ...], value: Vector) -> tuple[Vector, ...]:
        return (*rows[:row], value, *rows[row + 1 :])

    return Pairs(put(pairs.steps, step), put(pairs.changes, change), pairs.written + 1)


def descent(pairs: Pairs, scale: Vector, gradient: Vector) -> Vector:
    """Minus the approximate inverse Hessian times the gradient, by the two-loop recursion.

    `scale` is the diagonal of the inverse Hessian that the pairs correct.
    """
    count, most = int(pairs.written), len(pairs.steps)
    rows = [i % most for i in range(max(0, count - most), count)]
    weights = [1 / (pairs.steps[i] @ pairs.changes[i]) for i in rows]
    q, used = gradient, []
    for i, weight in zip(reversed(rows), reversed(weights), strict=True):
        used.append(weight * (pairs.steps[i] @ q))
        q = q - used[-1] * pairs.changes[i]
    q = scale * q
    for i, weight, part in zip(rows, weights, reversed(used), strict=True):
        q = q + (part - weight * (pairs.changes[i] @ q)) * pairs.steps[i]
    return -q
