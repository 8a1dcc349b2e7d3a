"""An entry of the collection: a problem and its known solution."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import PyTree

from .._multistart import EVEN
from .._problem import Problem
from ..exact.points import kronecker

Leaf = np.ndarray | float


@dataclasses.dataclass(frozen=True)
class Entry:
    """A problem, its known solution, and a score that is independent of any solver.

    Attributes:
        name: the name for `get`.
        problem: the problem itself.
        formula: f, g and the sets in words and symbols.
        f_star: the optimal value, or the infimum if it is not attained.
        solutions: points (x, y) where f_star is attained: one of them if there are many, one
            close to the infimum if it is not attained.
        inner_min: the smallest value of g(x, .) over Y, from a formula or a grid, in NumPy.
        start: a start (x, y).
        spread: (lowest, highest) pairs for x and for y, numbers or pytrees of them, between which
            random starts are drawn: the sets themselves if they are bounded.
        reference: the source of the problem.
        tags: words to select by: "unique", "many minima" or "basins" for the inner minimisers,
            "convex inner", "box", "simplex", "free", "family", "not attained".
    """

    name: str
    problem: Problem
    formula: str
    f_star: float
    solutions: tuple[tuple[PyTree, PyTree], ...]
    inner_min: Callable[[PyTree], float]
    start: tuple[PyTree, PyTree]
    spread: tuple[tuple[PyTree, PyTree], tuple[PyTree, PyTree]]
    reference: str
    tags: frozenset[str]

    @property
    def dimension(self) -> tuple[int, int]:
        """The number of entries of x and of y."""
        x, y = (sum(np.size(leaf) for leaf in jax.tree.leaves(part)) for part in self.start)
        return x, y

    def starts(self, count: int, seed: int = 0) -> tuple[PyTree, PyTree]:
        """Starts spread evenly: x and y with a leading axis of `count`, inside their sets.

        They are a low-discrepancy sequence shifted at random, or random points in more than 32
        dimensions.
        """
        rng = np.random.default_rng(seed)
        size = sum(self.dimension)
        u = kronecker(count, rng.random(size)) if size <= EVEN else rng.random((count, size))
        columns = iter(np.split(u, u.shape[1], axis=1))

        def draw(like: Leaf, lo: Leaf, hi: Leaf) -> np.ndarray:
            shape = (count, *np.shape(like))
            part = [next(columns) for _ in range(np.size(like))]
            return lo + (hi - lo) * np.concatenate(part, axis=1).reshape(shape)

        def part(like: PyTree, spread: tuple[PyTree, PyTree]) -> PyTree:
            lo, hi = (jax.tree.broadcast(end, like) for end in spread)
            return jax.tree.map(draw, like, lo, hi)

        x, y = (part(like, spread) for like, spread in zip(self.start, self.spread, strict=True))
        projected = jax.vmap(self.problem.x_set.project)(x), jax.vmap(self.problem.y_set.project)(y)
        return jax.tree.map(np.asarray, projected)

    def inner_gap(self, x: PyTree, y: PyTree) -> float:
        """g(x, y) minus the smallest inner value; rounding may make it negative, down to -1e-9."""
        return float(self.problem.inner(x, y)) - self.inner_min(x)

    def solved(self, x: PyTree, y: PyTree) -> bool:
        """Whether the inner gap is at most 1e-4 and f is within 1 % of f_star, above or below."""
        error = abs(float(self.problem.outer(x, y)) - self.f_star)
        return self.inner_gap(x, y) <= 1e-4 and error <= 1e-2 * max(1.0, abs(self.f_star))
