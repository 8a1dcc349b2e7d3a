r"""The certificate of a point of a problem with constraints: four residuals, free of units.

Every number is measured in units of the problem: x and y in sizes of x and y, a row in the size of
its change over such a length around the point. The residuals are

1. how far the point is from meeting all rows;
2. the inner gap g(x, y) - v, v from inner solves of its own; well below zero y gains by violating a
   row, so that its absolute value counts;
3. the inner optimality conditions, with multipliers by non-negative least squares on active rows;
4. stationarity of the bilevel program, strong if that holds: the gradient of f is a combination of
   the gradients of the inner optimality conditions (free), active rows (with a sign where their
   inner multiplier is zero) and, for every other inner minimum w as low as y, of the switch between
   the two, $(\nabla_x L(x, w) - \nabla_x g(x, y), -\nabla_y g(x, y))$ (with a sign). Where a row
   and its inner multiplier are both zero, either may become positive: there may be no combination
   at a local solution, but there is one for every branch.

A row counts as active if it is nearly zero, so that multipliers times what it is off by, the
complementarity of both levels, is a fifth.

Reference: Scheel and Scholtes, Mathematical programs with complementarity constraints:
stationarity, optimality, and sensitivity (2000).
"""

import contextlib
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from .._certificate import ConstrainedCertificate
from .model import Model, Points

Vector = Float[np.ndarray, " n"]

ACTIVE = 1e-4  # a row this close to zero is active
STRONG = 1e-4  # an inner multiplier above this is positive
AROUND = 0.1  # the neighbourhood in which rows are measured, in sizes of x and y
NEIGHBOURS = 32
BRANCHES = 6  # the most rows that are zero with their inner multipliers, for a look at all branches
TIES = 6  # the most other inner minima that are used
MET = 1e-7  # how well inner rows are met by inner solves ...
UNSTABLE = 1e-4  # ... and by how much, times the inner multipliers, the inner value may be off


class Facts(NamedTuple):
    """What the certificate knows.

    Attributes:
        feasibility, gap, residual, stationarity: the four residuals.
        complementarity: multipliers times how far their rows are from zero.
        weak: the fourth if the signs of rows whose inner multiplier is zero do not count.
        biactive: how many such rows there are.
        ties: how many other inner minima take part.
        doubt: how much the inner value changes with how well the inner rows are met.
        multipliers: of the inner rows, in the problem's own units, for every row of the model.
    """

    feasibility: float
    gap: float
    residual: float
    stationarity: float
    complementarity: float
    weak: float
    biactive: int
    ties: int
    doubt: float
    multipliers: Vector

    @property
    def unstable(self) -> bool:
        """Whether the inner set is degenerate, or nearly so."""
        return self.doubt > UNSTABLE

    @property
    def eps(self) -> float:
        """The largest residual; the gap is known up to the doubt."""
        gap = max(abs(self.gap), self.doubt)
        parts = (self.feasibility, gap, self.residual, self.stationarity, self.complementarity)
        return float(np.max(np.nan_to_num(parts, nan=np.inf, posinf=np.inf)))

    @property
    def certificate(self) -> ConstrainedCertificate:
        """The certificate as users see it."""
        nan = float("nan")
        numbers = {
            "stationarity": self.stationarity, "feasibility": self.feasibility,
            "complementarity": self.complementarity, "distance": 0.0, "inner_gap": self.gap,
            "inner_residual": self.residual, "multiplier": nan, "slack": 0.0, "eps": self.eps,
            "curvature": nan, "radius": nan, "weak": self.weak, "biactive": self.biactive,
            "ties": self.ties,
        }  # fmt: skip
        known = {k: np.float64(v) for k, v in numbers.items()}
        return ConstrainedCertificate(**known, exact=np.False_, unstable=np.bool_(self.unstable))  # type: ignore


class _Frame:
    """A model at a point in the point's own units."""

    def __init__(self, model: Model, z: Vector):
        self.model, self.z, nx = model, z, model.nx
        self.kind = model.kind[model.finite]
        self.length = np.concatenate(
            [_length(model, z, slice(0, nx)), _length(model, z, slice(nx, None))]
        )
        rng = np.random.default_rng(0)
        Z = z + AROUND * self.length * rng.uniform(-1, 1, (NEIGHBOURS, model.n))
        self.R, self.J, size = self._at(np.concatenate([z[None], Z]))
        with np.errstate(all="ignore"):
            size = np.where(np.isfinite(size), size, np.nan)
            size = np.fmax(size[0], np.nanmedian(size, axis=0))
        self.size = np.where(np.isfinite(size) & (size > 0), size, 1.0)
        self.R, self.J = self.R[0] / self.size, self.J[0] / self.size[:, None]

    def _at(self, Z: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        model, none = self.model, np.zeros((len(Z), len(self.model.kept)))
        with np.errstate(all="ignore"):
            d = model.derive(Z, none, none, np.zeros((len(Z), model.ny)))
            R, J = model.full(d, Z)
            J = J * self.length
            # the size of a row of the inner problem is that of its change with y
            size = np.linalg.norm(J, axis=2)
            inner = self.kind == 1
            size[:, inner] = np.linalg.norm(J[:, inner, model.nx :], axis=2)
        return R, J, size

    def elsewhere(self, w: Vector) -> tuple[np.ndarray, np.ndarray]:
        """Rows and derivatives at another y, in the units of this point."""
        R, J, _ = self._at(np.concatenate([self.z[: self.model.nx], w])[None])
        return R[0] / self.size, J[0] / self.size[:, None]

    def bend(self, weights: Vector) -> np.ndarray:
        """The derivatives in z of the inner Lagrangian's gradient in y."""
        model = self.model
        every = np.zeros(len(model.kind))
        every[model.finite] = weights / self.size
        b = (every[model.kept] / model.unit)[None]
        d = model.derive(self.z[None], np.zeros_like(b), b, np.zeros((1, model.ny)))
        return d.D[0] * self.length * self.length[model.nx :, None]

    def active(self, R: Vector, which: tuple[int, ...]) -> np.ndarray:
        """The indices of active rows of some kinds."""
        return np.flatnonzero(
            np.isin(self.kind, which) & (np.isin(self.kind, (3, 5)) | (R >= -ACTIVE))
        )

    def multipliers(self, R: Vector, J: np.ndarray) -> tuple[Vector, float]:
        """The inner multipliers that fit best, as weights of the rows, and what is left."""
        nx = self.model.nx
        rows = self.active(R, (4, 5))
        weights, free = np.zeros(len(self.kind)), self.kind[rows] == 5
        weights[rows], left = fit(-J[rows][:, nx:].T, J[1, nx:], free)
        return weights, left


def _length(model: Model, z: Vector, part: slice) -> Vector:
    """The size of x or y: of the point, start and bounds; at least one if the start is zero."""
    known = [np.abs(z[part]), np.abs(model.start[part])]
    known += [np.abs(b[part])[np.isfinite(b[part])] for b in (model.lo, model.hi)]
    size = max((float(np.max(k)) for k in known if len(k)), default=0.0)
    size = size if np.any(model.start[part]) else max(size, 1.0)
    return np.full(len(z[part]), size)


def fit(A: np.ndarray, b: Vector, free: np.ndarray) -> tuple[Vector, float]:
    """min |A w - b| with w >= 0 but where free; what is left."""
    width = np.linalg.norm(A, axis=0)
    used = width > 1e-12
    w = np.zeros(A.shape[1])
    if not np.any(used):
        return w, float(np.linalg.norm(b))
    scaled, loose = A[:, used] / width[used], free[used]
    F, S = scaled[:, loose], scaled[:, ~loose]
    left, values, _ = (
        np.linalg.svd(F, full_matrices=False)
        if F.shape[1]
        else (np.zeros((len(b), 0)), np.zeros(0), None)
    )
    Q = left[:, values > 1e-10 * np.max(values, initial=0.0)]
    S_off, b_off = (v - Q @ (Q.T @ v) for v in (S, b))
    found = np.zeros(scaled.shape[1])
    if S.shape[1]:
        with contextlib.suppress(RuntimeError):  # it did not end: no multipliers
            found[~loose] = nnls(S_off, b_off, maxiter=100 * S.shape[1])[0]
    if F.shape[1]:
        found[loose] = np.linalg.lstsq(F, b - S @ found[~loose], rcond=1e-10)[0]
    w[used] = found / width[used]
    return w, float(np.linalg.norm(A @ w - b))


def look(
    model: Model, x: Vector, y: Vector, value: float, minima: Points, weights: Vector | None = None
) -> Facts:
    """The certificate of a point.

    Arguments:
        value: the lowest inner value that is known at x, in the problem's own units.
        minima: other inner minima at x that are as low as y.
        weights: inner multipliers to try, for every row that is kept, scaled.
    """
    frame = _Frame(model, np.concatenate([x, y]))
    true = model.all_rows(frame.z[None])[0]
    appeared = np.any(true[~model.finite] != -np.inf)
    true = true[model.finite] / frame.size
    off = np.where(np.isin(frame.kind, (3, 5)), np.abs(true), np.maximum(true, 0.0))
    feasibility = float(np.max(np.nan_to_num(off[2:], nan=np.inf), initial=0.0))
    if appeared or np.max(np.abs(true - frame.R) / (1 + np.abs(true)), initial=0.0) > 1e-6:
        feasibility = np.inf  # a row that seemed to be absent or affine is not
    gap = float(true[1] - value / frame.size[1])
    fits = [frame.multipliers(frame.R, frame.J)]
    if weights is not None:
        fits.append(_given(frame, weights))
    fits = [f for f in fits if f[1] <= max(ACTIVE, 2 * fits[0][1])]
    turns = _switches(frame, minima)
    cases = [(*_stationarity(frame, m, turns), m, left) for m, left in fits]
    strong, off, weak, biactive, m, left = min(cases, key=lambda case: max(case[:2]))
    off = max(off, float(np.sum(np.abs(m * frame.R)[2:])))
    every = np.zeros(len(model.kind))
    every[model.finite] = m / frame.size * frame.size[1]
    return Facts(
        feasibility, gap, left, strong, off, weak, biactive, len(turns),
        MET * float(np.sum(np.abs(m))), every,
    )  # fmt: skip


def _given(frame: _Frame, weights: Vector) -> tuple[Vector, float]:
    """Multipliers of the solver in the frame's units, and how well they fit."""
    model = frame.model
    every = np.zeros(len(model.kind))
    every[model.kept] = weights * model.unit
    m = every[model.finite] * frame.size / (every[1] * frame.size[1])
    m = np.where(np.isin(frame.kind, (4, 5)), m, 0.0)
    keep = frame.active(frame.R, (4, 5))
    m[np.setdiff1d(np.arange(len(m)), keep)] = 0.0
    y = slice(model.nx, None)
    return m, float(np.linalg.norm(frame.J[1, y] + m @ frame.J[:, y]))


def _switches(frame: _Frame, minima: Points) -> list[Vector]:
    """The gradients of the switches to other inner minima."""
    nx, kept, turns = frame.model.nx, [], []
    for w in minima:
        at = w / frame.length[nx:]
        if len(kept) < TIES and all(np.linalg.norm(at - v) > 1e-3 for v in kept):
            kept.append(at)
            R, J = frame.elsewhere(w)
            m, _ = frame.multipliers(R, J)
            by_x = J[1, :nx] + m @ J[:, :nx] - frame.J[1, :nx]
            turns.append(np.concatenate([by_x, -frame.J[1, nx:]]))
    return turns


def _stationarity(frame: _Frame, m: Vector, turns: list[Vector]) -> tuple[float, float, float, int]:
    """Stationarity, complementarity, weak stationarity, and the number of biactive rows."""
    n, nx = frame.model.n, frame.model.nx
    inner = frame.active(frame.R, (4, 5))
    outer = frame.active(frame.R, (2, 3))
    positive = (m[inner] > STRONG) | (frame.kind[inner] == 5)
    both = np.flatnonzero(~positive)
    count = len(inner)
    weights = m.copy()
    weights[1] = 1.0
    sizes = np.maximum(1.0, np.abs(m[inner]))  # multipliers are measured in sizes of their own
    by_m = sizes * frame.J[inner, nx:].T
    conditions = np.concatenate([frame.bend(weights), by_m], axis=1).T
    corner = np.zeros((n + count, len(both)))
    corner[n + both, np.arange(len(both))] = 1.0
    switches = np.array(turns).reshape(len(turns), n).T
    outer_rows, inner_rows, switched = (
        np.concatenate([A, np.zeros((count, A.shape[1]))])
        for A in (-frame.J[outer].T, -frame.J[inner].T, switches)
    )
    columns = [conditions, outer_rows, inner_rows, corner, switched]
    free = [
        np.ones(conditions.shape[1], bool), frame.kind[outer] == 3, positive,
        np.zeros(len(both), bool), np.zeros(len(turns), bool),
    ]  # fmt: skip
    A, b = np.concatenate(columns, axis=1), np.concatenate([frame.J[0], np.zeros(count)])
    if not (np.all(np.isfinite(A)) and np.all(np.isfinite(b))):
        return np.inf, np.inf, np.inf, len(both)
    slack = [np.zeros(len(conditions.T)), frame.R[outer], frame.R[inner], m[inner][both]]
    slack = np.abs(np.concatenate([*slack, np.zeros(len(turns))]))

    def fitted(rows: np.ndarray, corners: np.ndarray) -> tuple[float, float]:
        """What is left with these columns free, and complementarity."""
        w, left = fit(A, b, np.concatenate([*free[:2], rows, corners, free[4]]))
        return left, float(np.abs(w) @ slack)

    strong, off = fitted(*free[2:4])
    weak, _ = fitted(np.ones(count, bool), np.ones(len(both), bool))
    if max(strong, off) > ACTIVE and weak < 0.5 * strong and len(both) <= BRANCHES:
        ends = []
        for held in itertools.product((False, True), repeat=len(both)):
            rows, corners = positive.copy(), ~np.array(held)
            rows[both] = held  # these are zero, and the multipliers of the others
            ends.append(fitted(rows, corners))
        strong, off = min((strong, off), tuple(np.max(ends, axis=0)), key=max)
    return strong, off, min(weak, strong), len(both)
