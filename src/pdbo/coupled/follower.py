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
import scipy.linalg
import scipy.sparse as sparse
from jaxtyping import Float
from scipy.sparse.linalg import splu

from .oracle import Oracle
from .pattern import Sparse

Vector = Float[np.ndarray, " n"]

STEPS = 60  # the most Newton steps for one barrier
HALVINGS = 12
SHORT_OF = 0.995  # of the way to a bound
CLOSE = 1e-2  # the residuals of an answer, in barriers
FLOOR = 1e-10  # the smallest residual that is asked for
ROUNDED = 1e-6  # residuals below this may be rounding ...
STALLED = 5  # ... if so many steps do not halve them
LOST = 10.0  # times what was asked for: such an answer is none
TINY = 1e-10  # added to the diagonal of K, with the sign of the block
ROUNDING = 1e-13  # added to the diagonal of a definite matrix, relative
SHIFTS = (0.0, 1e-6, 1e-4, 1e-2, 1.0, 1e2)  # added to H until K has the right signs
DENSE = 0.1  # a matrix with more entries than this part is factored as a dense one
SMALL = 100  # or if it has up to so many rows


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
        self.J, self.E, self.J1, self.J2 = oracle.rows_at(x, at.y)
        self.H, self.one = oracle.hessian_at(x, at.y, at.m, at.u), oracle.bound
        self.thin = at.s / at.m
        self.convex = True
        for shift in SHIFTS:
            if self._factor(shift):
                break
            self.convex = False

    def _factor(self, shift: float) -> bool:
        """Factor K with a shift of H; whether it has the signs of a minimum."""
        n, thick = self.J.shape[1], 1 / self.thin[self.one]
        bounds = np.asarray(self.J1.power(2).T @ thick).ravel()
        rows: Sparse = sparse.vstack([self.J2, self.E]).tocsr()
        low = np.concatenate([self.thin[~self.one], np.zeros(self.E.shape[0])]) + TINY
        diagonal = self.H.diagonal() + bounds + shift
        free = diagonal == 0  # entries that rows alone hold
        diagonal = diagonal + TINY
        self._rows, self._split = rows, self.J2.shape[0]
        if self.H.nnz == np.count_nonzero(self.H.diagonal()) and not np.any(free):
            if not np.all(diagonal > 0):
                return False
            self._diagonal = diagonal
            S = (rows @ sparse.diags_array(1 / diagonal) @ rows.T).tocsc() + sparse.diags_array(low)
            self._solve = _definite(S) if rows.shape[0] else np.copy
            return True
        self._diagonal = None
        whole = self.H + sparse.diags_array(bounds + shift + TINY)
        K = sparse.block_array([[whole, rows.T], [rows, -sparse.diags_array(low)]]).tocsc()
        factor = _symmetric(K)
        self._solve = factor.solve
        signs = factor.U.diagonal()
        return bool(np.array_equal(factor.perm_r, factor.perm_c) and np.sum(signs > 0) == n)

    def solve(self, ry: Vector, rm: Vector, ru: Vector) -> tuple[Vector, Vector, Vector]:
        """K (v, w, t) = (ry, rm, ru), refined once."""
        out = self._once(ry, rm, ru)
        for _ in range(1):
            v, w, t = out
            left = (
                ry - (self.H @ v + self.J.T @ w + self.E.T @ t),
                rm - (self.J @ v - self.thin * w),
                ru - self.E @ v,
            )
            fix = self._once(*left)
            out = tuple(a + b for a, b in zip(out, fix, strict=True))
        return out  # type: ignore

    def _once(self, ry: Vector, rm: Vector, ru: Vector) -> tuple[Vector, Vector, Vector]:
        one, thin = self.one, self.thin
        top = ry + self.J1.T @ (rm[one] / thin[one])
        tail = np.concatenate([rm[~one], ru])
        if self._diagonal is None:
            v, low = np.split(self._solve(np.concatenate([top, tail])), [len(top)])
        else:
            v = top / self._diagonal
            low = self._solve(self._rows @ v - tail)
            v = v - (self._rows.T @ low) / self._diagonal
        w = np.empty_like(rm)
        w[one] = (self.J1 @ v - rm[one]) / thin[one]
        w[~one] = low[: self._split]
        return v, w, low[self._split :]


def _symmetric(K: Sparse):
    options = {"SymmetricMode": True}
    return splu(K, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)


def _definite(S: Sparse):
    """Solutions with a positive definite matrix, or nearly so: rows may depend on each other."""
    S = S + sparse.diags_array(ROUNDING * S.diagonal())
    if S.shape[0] <= SMALL or S.nnz > DENSE * S.shape[0] ** 2:
        try:
            factor = scipy.linalg.cho_factor(S.toarray(), lower=True, check_finite=False)
        except scipy.linalg.LinAlgError:
            return _symmetric(sparse.csc_array(S)).solve
        return lambda b: scipy.linalg.cho_solve(factor, b, check_finite=False)
    return _symmetric(sparse.csc_array(S)).solve


def begun(oracle: Oracle, x: Vector, y: Vector) -> Answer:
    """Where the first solve begins."""
    values = oracle.inner(x, y, np.zeros(oracle.below), np.zeros(oracle.zero))
    s = np.maximum(-values.c, 1.0)
    return Answer(y, s, oracle.share / s, np.zeros(oracle.zero), np.inf)


def answer(oracle: Oracle, x: Vector, start: Answer, mu: float) -> tuple[Answer, Factors]:
    """The answer at x for a barrier, from one nearby, and K there."""
    at, goal = start, max(CLOSE * mu, FLOOR)
    r, K = _residuals(oracle, x, at, mu), Factors(oracle, x, at)
    lowest, stalled = np.inf, 0
    for _ in range(STEPS):
        size = _size(r)
        stalled = stalled + 1 if size > 0.5 * lowest else 0
        lowest = min(lowest, size)
        if not size > goal or (size < ROUNDED and stalled >= STALLED):
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
