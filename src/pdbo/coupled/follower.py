r"""The follower of a large problem, by an interior point method with sparse factors.

    min over y of g(x, y)  subject to  c(x, y) <= 0, e(x, y) = 0

is solved for a barrier $\mu > 0$, where $y(x)$ is smooth: Newton's method on

    grad_y L(x, y, m, u) = 0,   c + s = 0,   e = 0,   m s = mu,   L = g + m c + u e.

The matrix of its steps, with H of L and J, E of the rows, is

    K = [H  J' E'; J  -s/m  0; E  0  0]

It is the matrix of the adjoint, too. Rows of J with one entry are bounds: they are eliminated. If H
is diagonal, so is what remains of it, and only the rows are factored.

References: Mehrotra, On the implementation of a primal-dual interior point method (1992);
Vanderbei, Symmetric quasidefinite matrices (1995).
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sparse
from jaxtyping import Float

from .oracle import Oracle

Vector = Float[np.ndarray, " n"]

STEPS = 60  # the most Newton steps for one barrier
HALVINGS = 12
SHORT_OF = 0.995  # of the way to a bound
CLOSE = 1e-2  # the residuals of an answer, in barriers
FLOOR = 1e-10  # the smallest residual that is asked for
ROUNDED = 1e-6  # residuals below this may be rounding ...
STALLED = 5  # ... if so many steps do not halve them, as they are if these may be full ones
HOPELESS = 20  # if so many steps of any length do not halve them there is no answer
LOST = 10.0  # times what was asked for: such an answer is none
TINY = 1e-10  # added to the diagonal of K, with the sign of the block
SHIFTS = (0.0, 1e-6, 1e-4, 1e-2, 1.0, 1e2)  # added to H until K has the right signs


class Answer(NamedTuple):
    """The follower's answer for a barrier: y, the slacks s, the multipliers m and u."""

    y: Vector
    s: Vector
    m: Vector
    u: Vector
    left: float  # the largest residual, in those that were asked for

    @property
    def lost(self) -> bool:
        """Whether it is none."""
        return not self.left <= LOST


class Factors:
    """K at a point, factored."""

    def __init__(self, oracle: Oracle, x: Vector, at: Answer):
        self.rows, self._ordering = oracle.rows_at(x, at.y), oracle.ordering
        self.H, self.one = oracle.hessian_at(x, at.y, at.m, at.u), oracle.bound
        self.thin = at.s / at.m
        self.convex = True
        for shift in SHIFTS:
            if self._factor(shift):
                break
            self.convex = False

    def _factor(self, shift: float) -> bool:
        """Factor K with a shift of H; whether it has the signs of a minimum."""
        rows, n = self.rows, self.H.shape[0]
        bounds, along = rows.weighed(1 / self.thin[self.one]), self.H.diagonal()
        low = np.concatenate([self.thin[~self.one], np.zeros(rows.E.shape[0])]) + TINY
        diagonal = along + bounds + shift
        free = diagonal == 0  # entries that rows alone hold
        diagonal = diagonal + TINY
        if self.H.nnz == np.count_nonzero(along) and not np.any(free):
            if not np.all(diagonal > 0):
                return False
            self._diagonal = diagonal
            S = rows.others @ sparse.diags_array(1 / diagonal) @ rows.othersT
            S = S.tocsc() + sparse.diags_array(low)
            self._solve = self._ordering.definite(S) if len(low) else np.copy
            return True
        self._diagonal = None
        K = rows.saddle(self.H, bounds + shift + TINY, low)
        self._solve, pivots = self._ordering.symmetric(K)
        return pivots is not None and int(np.sum(pivots > 0)) == n

    def solve(self, ry: Vector, rm: Vector, ru: Vector) -> tuple[Vector, Vector, Vector]:
        """K (v, w, t) = (ry, rm, ru), refined once."""
        v, w, t = self._once(ry, rm, ru)
        rows = self.rows
        fix = self._once(
            ry - (self.H @ v + rows.JT @ w + rows.ET @ t),
            rm - (rows.J @ v - self.thin * w),
            ru - rows.E @ v,
        )
        return v + fix[0], w + fix[1], t + fix[2]

    def _once(self, ry: Vector, rm: Vector, ru: Vector) -> tuple[Vector, Vector, Vector]:
        one, thin, rows = self.one, self.thin, self.rows
        top = ry + rows.boundsT @ (rm[one] / thin[one])
        tail = np.concatenate([rm[~one], ru])
        if self._diagonal is None:
            v, low = np.split(self._solve(np.concatenate([top, tail])), [len(top)])
        else:
            v = top / self._diagonal
            low = self._solve(rows.others @ v - tail)
            v = v - (rows.othersT @ low) / self._diagonal
        w = np.empty_like(rm)
        w[one] = (rows.bounds @ v - rm[one]) / thin[one]
        split = len(low) - len(ru)
        w[~one] = low[:split]
        return v, w, low[split:]


def begun(oracle: Oracle, x: Vector, y: Vector) -> Answer:
    """Where the first solve begins."""
    values = oracle.inner(x, y, np.zeros(oracle.below), np.zeros(oracle.zero))
    s = np.maximum(-values.c, 1.0)
    return Answer(y, s, oracle.share / s, np.zeros(oracle.zero), np.inf)


def answer(oracle: Oracle, x: Vector, start: Answer, mu: float) -> tuple[Answer, Factors]:
    """The answer at x for a barrier, from one nearby, and K there."""
    at, goal = start, max(CLOSE * mu, FLOOR)
    r, K = _residuals(oracle, x, at, mu), Factors(oracle, x, at)
    sizes, full, length = [], 0, 0.0
    for _ in range(STEPS):
        sizes.append(_size(r))
        full = full + 1 if length == 1.0 else 0
        rounded = (full >= STALLED or sizes[-1] < ROUNDED) and _stale(sizes, STALLED)
        if not sizes[-1] > goal or rounded or _stale(sizes, HOPELESS):
            break
        rd, rp, re, rc = r
        dy, dm, du = K.solve(-rd, rc / at.m - rp, -re)
        ds = -(rc + at.s * dm) / at.m
        step = Answer(dy, ds, dm, du, 0.0)
        length = min(1.0, _room(at.s, ds), _room(at.m, dm))
        at, r = _search(oracle, x, at, step, length, r, mu)
        if not np.isfinite(_size(r)):
            break
        K = Factors(oracle, x, at)
    return at._replace(left=_size(r) / goal), K


def _stale(sizes: list[float], steps: int) -> bool:
    """Whether the last steps have not halved the least of the sizes before them."""
    return len(sizes) > steps and min(sizes[-steps:]) > 0.5 * min(sizes[:-steps])


def follow(at: Answer, along: tuple[Vector, Vector, Vector]) -> Answer:
    """The answer where it leads along a tangent, short of where a slack or multiplier is zero."""
    dy, dm, du = along
    ds = -at.s * dm / at.m  # m s stays the same
    length = min(1.0, _room(at.s, ds), _room(at.m, dm))
    return Answer(
        at.y + length * dy, at.s + length * ds, at.m + length * dm, at.u + length * du, np.inf
    )


def _search(
    oracle: Oracle, x: Vector, at: Answer, step: Answer, length: float, r: tuple, mu: float
) -> tuple[Answer, tuple]:
    """The end of a step, with its residuals: shorter until they fall, unless all is linear."""
    for _ in range(HALVINGS):
        new = Answer(
            at.y + length * step.y, at.s + length * step.s, at.m + length * step.m,
            at.u + length * step.u, np.inf,
        )  # fmt: skip
        r_new = _residuals(oracle, x, new, mu)
        if oracle.straight or _norm(r_new) <= (1 - 1e-4 * length) * _norm(r):
            return new, r_new
        length /= 2
    return new, r_new  # type: ignore


def _residuals(oracle: Oracle, x: Vector, at: Answer, mu: float) -> tuple[Vector, ...]:
    values = oracle.inner(x, at.y, at.m, at.u)
    return values.slope, values.c + at.s, values.e, at.m * at.s - mu * oracle.share


def _size(r: tuple[Vector, ...]) -> float:
    return max(float(np.max(np.abs(part), initial=0.0)) for part in r)


def _norm(r: tuple[Vector, ...]) -> float:
    return float(np.sqrt(sum(part @ part for part in r)))


def _room(value: Vector, move: Vector) -> float:
    """The step up to short of zero."""
    down = move < 0
    return float(np.min(-SHORT_OF * value[down] / move[down], initial=np.inf))
