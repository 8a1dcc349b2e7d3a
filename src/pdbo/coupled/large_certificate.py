r"""The certificate of a point of a large problem, from the multipliers of both levels.

The follower is convex if his rows are affine and his second derivatives positive semidefinite, and
then sum of m s bounds how far g is above its minimum. With the adjoint (v, w, t) of
`reduced`, the leader's point is strongly stationary if

    f_x - d/dx [v grad_y L + w c + t e] points out of X,   f_y = H v + J'w + E't,
    w s = 0 and m (J v) = 0, row by row, and w <= 0, J v <= 0 where m and s are both zero.

Everything is relative: see `certificate`. At a bound of x the follower's set may shrink to a point.
His multipliers are then as large as the barrier makes them, the adjoint is of no use, and the set
is degenerate: multipliers that nearly cancel each other tell.
"""

import numpy as np
import scipy.sparse as sparse

from .certificate import AROUND, MET, Facts
from .follower import Answer
from .oracle import Oracle
from .ordering import Ordering
from .pattern import Sparse
from .reduced import Leader, Point

BOTH = 1e-4  # a slack and a multiplier below this are both zero ...
ROUND = 10.0  # ... or below so many square roots of the barrier
INDEFINITE = 1e-9  # relative: second derivatives down to minus this are not negative
SAMPLES = 3  # other points at which they are looked at if g is not quadratic


def look(leader: Leader, here: Point) -> Facts:
    """The certificate of a point."""
    oracle, at, (v, w, t) = leader.oracle, here.at, here.p
    J, E, H = here.K.rows.J, here.K.rows.E, here.K.H
    inside = oracle.inner(here.x, at.y, at.m, at.u)
    g_y = inside.slope - J.T @ at.m - E.T @ at.u
    _, f_x, f_y, below, zero = oracle.outer(here.x, at.y)
    off = (np.maximum(inside.c, 0), np.abs(inside.e), np.maximum(below, 0), np.abs(zero))
    feasibility = max(float(np.max(part, initial=0.0)) for part in off)
    if oracle.appeared(here.x, at.y):
        feasibility = np.inf
    # the change of g over the size of y, with the derivative at y or nearby
    slope = max(float(np.linalg.norm(g_y)), AROUND * float(np.linalg.norm(H @ at.y)))
    g_size = max(slope * float(np.linalg.norm(at.y)), 1e-300)
    # multipliers that cancel each other say that the follower's set is hardly more than a point
    doubt = MET * float(np.sum(at.m)) / max(float(np.sum(np.abs(J.T @ at.m))), 1e-300)
    f_size = abs(f_x) @ np.maximum(abs(here.x), 1.0) + abs(f_y) @ np.maximum(abs(at.y), 1.0)
    f_size = max(float(f_size), 1e-300)
    gap = float(at.m @ at.s) / g_size
    residual = np.linalg.norm(inside.slope) / max(
        float(np.linalg.norm(g_y) + np.linalg.norm(inside.slope - g_y)), 1e-300
    )
    nu = J @ v
    barrier = float(np.max(at.m * at.s / oracle.share, initial=0.0))
    zero_up_to = max(BOTH, ROUND * np.sqrt(barrier))
    both = np.maximum(at.s, at.m) <= zero_up_to * np.sqrt(oracle.share)
    wrong = np.where(both, np.maximum(w, 0.0), 0.0)
    y_left = f_y - H @ v - J.T @ w - E.T @ t
    weak = max(leader.residual(here), float(np.linalg.norm(y_left)) / _size(f_y))
    shift = oracle.adjoint(here.x, (at.y, at.m, at.u), (0 * v, wrong, 0 * t))
    strong = max(
        leader.residual(here._replace(slope=here.slope + shift)),
        float(np.linalg.norm(y_left + J.T @ wrong)) / _size(f_y),
        float(np.sum(np.where(both, np.maximum(nu, 0.0), 0.0) * np.sqrt(oracle.share))) / f_size,
    )
    outer = oracle.outside.below @ np.maximum(-below, 0.0)
    pairs = np.abs(w) @ at.s + np.abs(nu) @ at.m + float(outer)
    return Facts(
        feasibility, gap, float(residual), max(strong, weak), float(pairs) / f_size, weak,
        int(np.sum(both)), 0, doubt, np.zeros(0),
    )  # fmt: skip


def _size(v: np.ndarray) -> float:
    return max(float(np.linalg.norm(v)), 1e-300)


def convex(oracle: Oracle, x: np.ndarray, at: Answer) -> bool:
    """Whether the follower's problem is seen to be convex: for a quadratic g a proof."""
    if not oracle.affine:
        return False
    rng, points = np.random.default_rng(7), [at.y]
    if not oracle.straight:
        points += [at.y * rng.uniform(0.3, 3.0, len(at.y)) for _ in range(SAMPLES)]
    return all(_semidefinite(oracle.hessian_at(x, y, at.m, at.u)) for y in points)


def _semidefinite(H: Sparse) -> bool:
    diagonal = H.diagonal()
    if not np.all(np.isfinite(H.data)):
        return False
    size = float(np.max(np.abs(H.data), initial=0.0))
    if H.nnz == np.count_nonzero(diagonal):
        return bool(np.all(diagonal >= -INDEFINITE * size))
    shifted = sparse.csc_array(H + INDEFINITE * max(size, 1e-300) * sparse.eye_array(H.shape[0]))
    try:
        _, pivots = Ordering().symmetric(shifted)
    except RuntimeError:  # exactly singular
        return False
    return pivots is not None and bool(np.all(pivots > 0))
