r"""Quadratic functions with a nonsmooth term, in NumPy: to the last digit.

$$\min_y\ \tfrac12 y^\top H y + c^\top y + \sum_j a_j |y_j| + \sum_G b_G \|y_G\|
\quad\text{with}\quad lo \le y \le hi.$$

A proximal gradient step finds out which entries are not zero, a Newton step on those entries solves
for them. Where the step would change a sign, the entry stops at zero.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float

Vector = Float[np.ndarray, " n"]
Matrix = Float[np.ndarray, "m n"]

EPS = float(np.finfo(np.float64).eps)
ROUNDS = 500  # the most steps
GROWTHS = 100  # the most times the entries in use are added to
SMALL = 300  # the most entries for which eigenvalues are computed
STILL = 2  # rounds in a row whose step is rounding, after which the solve ends
SHORTER = (1.0, 0.5, 0.1, 0.01)  # lengths of a Newton step that are tried


class Kinks(NamedTuple):
    """A nonsmooth term at an x.

    Attributes:
        l1: the weights a of every entry.
        group: the weights b of every group.
        labels: the group of every entry, the number of groups for entries without one.
        lo, hi: the bounds.
    """

    l1: Vector
    group: Vector
    labels: np.ndarray | None
    lo: Vector | float = -np.inf
    hi: Vector | float = np.inf

    def on(self, part: np.ndarray) -> "Kinks":
        """The term on some of the entries; its groups are whole."""
        lo, hi = (v if np.ndim(v) == 0 else v[part] for v in (self.lo, self.hi))  # type: ignore
        labels = None if self.labels is None else self.labels[part]
        if labels is None:
            return Kinks(self.l1[part], self.group, None, lo, hi)
        kept, again = np.unique(labels, return_inverse=True)
        own = kept < len(self.group)  # the others have no group
        again = np.where(own[again], again, np.sum(own))
        return Kinks(self.l1[part], self.group[kept[own]], again, lo, hi)

    def norms(self, y: Vector) -> Vector:
        """The norms of the groups, and 1 for entries without one."""
        count = len(self.group)
        assert self.labels is not None
        norms = np.sqrt(np.bincount(self.labels, y**2, count + 1))
        norms[count] = 1.0
        return norms

    def value(self, y: Vector) -> float:
        """The value of the term."""
        total = float(self.l1 @ np.abs(y))
        return total if self.labels is None else total + float(self.group @ self.norms(y)[:-1])

    def slope(self, y: Vector) -> Vector:
        """Its gradient, zero where it has a kink."""
        slope = self.l1 * np.sign(y)
        return slope if self.labels is None else slope + self._pull(self.norms(y))[self.labels] * y

    def _pull(self, norms: Vector) -> Vector:
        """The weights of the groups divided by their norms, zero if these are."""
        return np.append(self.group, 0.0) * (norms > 0) / np.where(norms > 0, norms, 1.0)

    def bend(self, y: Vector, part: np.ndarray) -> Matrix:
        """Its second derivatives on some of the entries."""
        bent = np.zeros((len(part), len(part)))
        if self.labels is None:
            return bent
        norms, labels, z = self.norms(y), self.labels[part], y[part]
        pull = self._pull(norms)
        unit = z / np.where(norms > 0, norms, 1.0)[labels]
        same = labels[:, None] == labels
        bent = np.where(same, -np.outer(unit, unit) * pull[labels], 0.0)
        bent[np.diag_indices(len(part))] += pull[labels]
        return bent

    def clip(self, y: Vector) -> Vector:
        """The nearest point within the bounds."""
        return np.clip(y, self.lo, self.hi)

    def prox(self, u: Vector, step: Vector) -> Vector:
        """The proximal operator; the steps of the entries of a group are equal."""
        if self.labels is None:
            return self.clip(np.sign(u) * np.maximum(np.abs(u) - step * self.l1, 0.0))
        w = np.clip(np.sign(u) * np.maximum(np.abs(u) - step * self.l1, 0.0), self.lo, None)
        norms = self.norms(w)[self.labels]
        group = np.append(self.group, 0.0)[self.labels]
        return w * np.maximum(1 - step * group / np.where(norms > 0, norms, 1.0), 0.0)

    def open(self, y: Vector) -> Bool[np.ndarray, " n"]:
        """The entries that may move to both sides of y without meeting a kink or a bound."""
        closed = ((y == 0) & (self.l1 > 0)) | (y <= self.lo) | (y >= self.hi)
        if self.labels is not None:
            empty = np.append((self.norms(y)[:-1] == 0) & (self.group > 0), False)
            closed |= empty[self.labels]
        return ~closed

    def stopped(self, y: Vector, move: Vector) -> Vector:
        """y + move, where entries stop at kinks and bounds on the way."""
        target = y + move
        return self.clip(np.where((y * target < 0) & (self.l1 > 0), 0.0, target))

    def leave(self, y: Vector, slope: Vector, step: Vector) -> Vector:
        """How far a proximal gradient step moves the entries that are not open."""
        shut = ~self.open(y)
        if self.labels is None:
            moved = self.prox(y - step * slope, step)
        else:  # the norm of a group that is not zero is smooth
            empty = self.norms(y)[:-1] == 0
            moved = self._replace(group=np.where(empty, self.group, 0.0)).prox(
                y - step * slope, step
            )
        return np.where(shut, moved - y, 0.0)

    def pulls(self, y: Vector, slope: Vector) -> tuple[Vector, Vector]:
        """For every entry and for every group that is closed the weight that would just close it.

        Zero for what is open, and for entries of groups that are closed.
        """
        shut = ~self.open(y) & (self.l1 > 0) & (y == 0)
        if self.labels is None:
            return np.where(shut, np.abs(slope), 0.0), np.zeros(0)
        empty = np.append((self.norms(y)[:-1] == 0) & (self.group > 0), False)
        over = np.maximum(np.abs(slope) - self.l1, 0.0)
        size = np.sqrt(np.bincount(self.labels, over**2, len(self.group) + 1))[:-1]
        entries = np.where(shut & ~empty[self.labels], np.abs(slope), 0.0)
        return entries, np.where(empty[:-1], size, 0.0)

    def room(self, y: Vector, slope: Vector) -> float:
        """How far the slopes at kinks are from leaving them, relative to the weights.

        Zero means that strict complementarity fails: f may have a kink there.
        """
        pull = np.concatenate(self.pulls(y, slope))
        weight = np.concatenate([self.l1, self.group])
        return 1 - float(np.max(pull / np.where(weight > 0, weight, 1.0), initial=0.0))


def majorant(H: Matrix, kinks: Kinks) -> Vector:
    """A diagonal matrix above H, in the units of its diagonal; equal within each group."""
    root = np.sqrt(np.maximum(np.diag(H), 0.0))
    safe = np.where(root > 0, root, 1.0)
    scaled = H / safe / safe[:, None]
    if len(H) <= SMALL:
        most = float(np.max(np.linalg.eigvalsh(scaled), initial=0.0))
    else:
        most = float(np.max(np.sum(np.abs(scaled), axis=1)))
    top = (1 + 1e-12) * most * safe**2
    if kinks.labels is not None:
        largest = np.zeros(len(kinks.group) + 1)
        np.maximum.at(largest, kinks.labels, top)
        top = np.where(kinks.labels < len(kinks.group), largest[kinks.labels], top)
    return np.where(top > 0, top, max(float(np.max(top, initial=0.0)), 1e-300))


def minimise_quadratic(
    H: Matrix, c: Vector, kinks: Kinks, y: Vector, tol: float = 4 * EPS
) -> Vector:
    """The minimum, from y on, up to steps of the relative size tol; H is positive semidefinite.

    It is found on a growing set of entries: those that are open, and those that most want to be.
    """
    y = kinks.clip(y)
    diagonal = np.diag(H)
    step = 1 / np.where(diagonal > 0, diagonal, max(float(np.max(diagonal, initial=0.0)), 1e-300))
    step = _within_groups(step, kinks)
    for _ in range(GROWTHS):
        slope = H @ y + c
        noise = tol * (np.abs(H) @ np.abs(y) + np.abs(c) + kinks.l1)
        want = np.abs(kinks.leave(y, slope, step))
        want = np.where(want > step * noise, want / np.sqrt(step), 0.0)
        used = kinks.open(y) | (y != 0)
        count = int(np.count_nonzero(want))
        if count:
            more = max(10, int(np.count_nonzero(used)))
            used |= want >= np.partition(want, -more)[-more] if count > more else want > 0
        part = np.flatnonzero(used if kinks.labels is None else _whole_groups(used, kinks))
        if not part.size:
            return y
        y = y.copy()
        y[part] = _minimise(
            H[np.ix_(part, part)], slope[part] - H[np.ix_(part, part)] @ y[part],
            kinks.on(part), y[part], tol,
        )  # fmt: skip
        if not count:
            return y
    return y


def _within_groups(step: Vector, kinks: Kinks) -> Vector:
    """Steps that are equal within each group, the least of them."""
    if kinks.labels is None:
        return step
    least = np.full(len(kinks.group) + 1, np.inf)
    np.minimum.at(least, kinks.labels, step)
    return np.where(kinks.labels < len(kinks.group), least[kinks.labels], step)


def _whole_groups(used: np.ndarray, kinks: Kinks) -> np.ndarray:
    """The entries of groups some of whose entries are used, and entries used without a group."""
    assert kinks.labels is not None
    count = np.bincount(kinks.labels, used, len(kinks.group) + 1)
    return used | ((count[kinks.labels] > 0) & (kinks.labels < len(kinks.group)))


def _minimise(H: Matrix, c: Vector, kinks: Kinks, y: Vector, tol: float) -> Vector:
    """The minimum over few entries."""
    step = 1 / majorant(H, kinks)

    def value(y: Vector) -> float:
        return float(0.5 * y @ (H @ y) + c @ y) + kinks.value(y)

    still, best = 0, value(y)
    for _ in range(ROUNDS):
        slope = H @ y + c
        z = kinks.prox(y - step * slope, step)
        target, low = z, value(z)
        move = _newton(H, H @ z + c, kinks, z)
        for length in SHORTER:
            trial = kinks.stopped(z, length * move)
            reached = value(trial)
            if reached <= low:
                target, low = trial, reached
                break
        size = np.abs(y) + np.abs(target) + step * (np.abs(H) @ np.abs(y) + np.abs(c))
        rests = np.all(np.abs(target - y) <= tol * size)
        rests |= tol > 4 * EPS and best - low <= 4 * EPS * abs(best)  # its fall is rounding
        still = still + 1 if rests else 0
        if low > best + 16 * EPS * (abs(best) + abs(low)) and still == 0:
            break
        y, best = target, min(low, best)
        if still == STILL or (still and tol > 4 * EPS):
            break
    return y


def _newton(H: Matrix, slope: Vector, kinks: Kinks, y: Vector) -> Vector:
    """The Newton step on the open entries; zero if there is none."""
    part, move = np.flatnonzero(kinks.open(y)), np.zeros_like(y)
    if not part.size:
        return move
    A = H[np.ix_(part, part)] + kinks.bend(y, part)
    b = -(slope + kinks.slope(y))[part]
    unit = 1 / np.sqrt(np.maximum(np.diag(A), 1e-300))
    A = A * unit * unit[:, None]
    try:
        factor = scipy.linalg.cho_factor(A, check_finite=False)
        move[part] = unit * scipy.linalg.cho_solve(factor, unit * b, check_finite=False)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(A)
        safe = np.maximum(values, 1e-12 * max(float(values[-1]), 1e-300))
        move[part] = unit * (vectors @ ((vectors.T @ (unit * b)) / safe))
    return move if np.all(np.isfinite(move)) else np.zeros_like(y)
