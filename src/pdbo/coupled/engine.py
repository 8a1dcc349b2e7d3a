r"""Newton's method for small nonlinear programs, many starts side by side.

    min objective(p)  subject to  equal(p, r, s) = 0,  below(p, r, s) <= t,  lo < (p, r, s) < hi

on the merit $\phi = objective - \lambda \cdot c + \frac\rho2 |c|^2 +
\frac1{2\rho} \sum \max(0, \kappa + \rho d)^2 - \mu \sum \log(z - lo) + \log(hi - z)$, an augmented
Lagrangian with a primal-dual barrier for the bounds:

    mu = 0.1 t0; rho = 10; shift = 1e-4; lambda = kappa = 0
    repeat
      factor H + {0, 1, 30, 1e3, 3e4} shift; take the first direction of descent
      take the step length 2^-k, k = 0 ... 13, of lowest phi, short of the bounds
      no decrease: stay and raise the shift; else lower it
      after 8 steps, or if the gradient is small beside mu:
        lambda -= rho c; kappa = max(0, kappa + rho d); mu /= 4
        rho *= 4 unless c has become smaller by that much

References: Conn, Gould and Toint, LANCELOT (1992); for the bounds, Waechter and Biegler, On the
implementation of an interior-point filter line-search algorithm (2006).
"""

import abc
import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import lapack

Lanes = Float[np.ndarray, " lanes"]
Many = Float[np.ndarray, "lanes n"]

SHIFTS = (0.0, 1.0, 30.0, 1e3, 3e4)
LENGTHS = 0.5 ** np.arange(14)  # step lengths tried at once
FIRST_BARRIER, LAST_BARRIER = 0.1, 1e-9
FIRST_PENALTY, LAST_PENALTY = 10.0, 1e7
SHRINK = 0.25  # of the barrier, and of the violation if the penalty is to stay
SHORT_OF = 0.995  # of the way to a bound
SMALL = 1e-7  # the gradient of a stage that has ended
BAND = 1e4  # how far the bounds' multipliers may be from barrier / distance, as a factor
MOST = 1e8  # the largest multiplier
LATE = 6  # the most stages with the last barrier ...
ENOUGH = 1  # ... and after how many one ends the run that meets all rows, or gets no closer
AWAY = 1e12  # an unknown of this size has run away
FLOOR = 1e-11  # added to every diagonal


class System(NamedTuple):
    """The derivatives of a merit in z = (p, r, s), as its slacks s have few of them.

    Rows with slacks are J p + s; `link` couples the slacks to some entries of r, the first of which
    has the index `at`.

    Attributes:
        gradient: the first derivatives.
        pp, pr, rr: second derivatives, without those of the rows with slacks.
        J: these rows.
        penalty: the weight of their squares.
        link: second derivatives between slacks and entries of r.
        slack: second derivatives of the slacks.
    """

    gradient: Many
    pp: np.ndarray
    pr: np.ndarray
    rr: np.ndarray
    J: np.ndarray
    penalty: Lanes
    link: Many
    slack: Many

    def only(self, lanes: np.ndarray) -> "System":
        """Some of the lanes."""
        return System(*(part[lanes] for part in self))

    def solve(self, curve: Many, delta: Lanes) -> Many:
        """Newton directions; NaN where the second derivatives are not positive definite."""
        count, p, r = len(delta), self.pp.shape[1], self.rr.shape[1]
        k, rows = self.link.shape[1], self.slack.shape[1]
        shift = curve + delta[:, None] + FLOOR
        rho, slack = self.penalty[:, None], self.slack + shift[:, p + r :]
        slack = np.where(slack > 0, slack, np.nan)
        H = np.empty((count, p + r, p + r))
        JT = self.J.transpose(0, 2, 1)
        H[:, :p, :p] = self.pp + (JT * (rho - rho**2 / slack)[:, None]) @ self.J
        H[:, :p, p:], H[:, p:, p:] = self.pr, self.rr
        first, last = p + 1, p + 1 + k  # the entries of r that are linked
        if k:
            H[:, :p, first:last] -= JT[:, :, :k] * (rho * self.link / slack[:, :k])[:, None]
            diagonal = np.arange(first, last)
            H[:, diagonal, diagonal] -= self.link**2 / slack[:, :k]
        diagonal = np.arange(p + r)
        H[:, diagonal, diagonal] += shift[:, : p + r]
        tail = self.gradient[:, p + r :]
        right = self.gradient[:, : p + r].copy()
        right[:, :p] -= rho * (JT @ (tail / slack)[:, :, None])[:, :, 0]
        if k:
            right[:, first:last] -= self.link * (tail / slack)[:, :k]
        move = np.full((count, p + r + rows), np.nan)
        for i in range(count):
            factor, info = lapack.dpotrf(H[i].T, lower=1, clean=0, overwrite_a=1)  # type: ignore
            if info == 0:
                move[i, : p + r] = lapack.dpotrs(factor, -right[i], lower=1)[0]  # type: ignore
        back = rho * (self.J @ move[:, :p, None])[:, :, 0]
        if k:
            back[:, :k] += self.link * move[:, first:last]
        move[:, p + r :] = (-tail - back) / slack
        return move


class Multipliers(NamedTuple):
    """Estimates of the multipliers: of the rows = 0, of those <= t, and the penalty."""

    equal: Many
    below: Many
    penalty: Lanes

    def ahead(self, c: Many, d: Many) -> "Multipliers":
        """The estimates after an update at these values."""
        rho = self.penalty[:, None]
        return Multipliers(
            self.equal - rho * c, np.maximum(0.0, self.below + rho * d), self.penalty
        )


class Nonlinear(abc.ABC):
    """What the engine minimises, for many lanes."""

    @abc.abstractmethod
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The bounds of z."""

    @abc.abstractmethod
    def relaxed(self) -> np.ndarray:
        """Which of the rows `below` are relaxed: 1 for those <= t, 0 for those <= 0."""

    @abc.abstractmethod
    def values(self, z: Many, lanes: np.ndarray) -> tuple[Lanes, Many, Many]:
        """The objective, the rows `equal` and the rows `below`."""

    @abc.abstractmethod
    def derive(self, z: Many, at: Multipliers, ahead: Multipliers, lanes: np.ndarray) -> System:
        """The derivatives of the merit without the barrier.

        `ahead` are the multipliers after an update at z.
        """


@dataclasses.dataclass
class State:
    """Where the lanes stand."""

    z: Many
    c: Many  # the rows `equal` ...
    d: Many  # ... and `below` there
    low: Many  # the multipliers of the bounds
    high: Many
    at: Multipliers
    barrier: Lanes
    shift: Lanes
    inside: np.ndarray  # steps since the stage began
    violation: Lanes
    late: np.ndarray  # stages since the barrier is as small as it gets
    steps: np.ndarray
    over: np.ndarray

    def only(self, lanes: np.ndarray) -> "State":
        """Some of the lanes."""
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        at = Multipliers(*(part[lanes] for part in self.at))
        return State(at=at, **{k: v[lanes] for k, v in parts.items() if k != "at"})

    def put(self, lanes: np.ndarray, other: "State") -> None:
        """Replace some of the lanes."""
        for field in dataclasses.fields(self):
            mine, new = getattr(self, field.name), getattr(other, field.name)
            pairs = zip(mine, new, strict=True) if field.name == "at" else [(mine, new)]
            for old, part in pairs:
                old[lanes] = part


def run(program: Nonlinear, z: Many, t0: Lanes, ratio: Lanes, most: int, stage: int) -> State:
    """The engine from z, inside its bounds; `ratio` times the barrier is t."""
    lo, hi = program.bounds()
    count, barrier = len(z), FIRST_BARRIER * t0
    everyone = np.arange(count)
    _, c, d = program.values(z, everyone)
    below, above = _room(lo, hi, z)
    ones = np.ones(count)
    state = State(
        z=z.copy(),
        c=c,
        d=d,
        low=np.where(np.isfinite(lo), barrier[:, None] / below, 0.0),
        high=np.where(np.isfinite(hi), barrier[:, None] / above, 0.0),
        at=Multipliers(0 * c, 0 * d, FIRST_PENALTY * ones),
        barrier=barrier.copy(),
        shift=1e-4 * ones,
        inside=np.zeros(count, int),
        violation=np.inf * ones,
        late=np.zeros(count, int),
        steps=np.zeros(count, int),
        over=np.zeros(count, bool),
    )
    for _ in range(most):
        lanes = np.flatnonzero(~state.over)
        if not len(lanes):
            break
        state.put(lanes, _step(program, state.only(lanes), ratio[lanes], stage, lanes))
    return state


def _step(program: Nonlinear, s: State, ratio: Lanes, stage: int, lanes: np.ndarray) -> State:
    t, (lo, hi) = (ratio * s.barrier)[:, None] * program.relaxed(), program.bounds()
    below, above = _room(lo, hi, s.z)
    system = program.derive(s.z, s.at, s.at.ahead(s.c, s.d - t), lanes)
    residual = np.max(np.abs(system.gradient - s.low + s.high), axis=1)
    mu = s.barrier[:, None]
    push = np.where(np.isfinite(lo), mu / below, 0.0) - np.where(np.isfinite(hi), mu / above, 0.0)
    system = system._replace(gradient=system.gradient - push)
    move, used = _direction(system, s.low / below + s.high / above, s.shift)
    found = np.isfinite(used)
    cap = 100.0 * (1 + np.max(np.abs(s.z), axis=1)) / (1e-300 + np.max(np.abs(move), axis=1))
    move *= np.minimum(1.0, cap)[:, None]
    z, c, d, best, good = _search(program, s, t, move, found, lanes)
    low, high = _bound_multipliers(lo, hi, s, move, good)
    used = np.where(found, used, s.shift)
    kept = np.maximum(np.where(best == 0, used / 5, used), 1e-8)
    shift = np.where(good, kept, np.minimum(np.maximum(used, s.shift) * 10, 1e8))

    small = residual <= np.maximum(10 * s.barrier, SMALL)
    done = small | (s.inside >= stage) | (~good & (shift > 1e4))
    excess = np.maximum(d - t, -s.at.below / s.at.penalty[:, None])
    violation = np.max(np.concatenate([np.abs(c), excess], axis=1), axis=1, initial=0.0)
    worse = violation > np.maximum(SHRINK * s.violation, 1e-9)
    penalty = np.where(worse, np.minimum(s.at.penalty * 4, LAST_PENALTY), s.at.penalty)
    ahead, each = s.at.ahead(c, d - t), done[:, None]
    at = Multipliers(
        np.where(each, np.clip(ahead.equal, -MOST, MOST), s.at.equal),
        np.where(each, np.minimum(ahead.below, MOST), s.at.below),
        np.where(done, penalty, s.at.penalty),
    )
    barrier = np.where(done, np.maximum(s.barrier * SHRINK, LAST_BARRIER), s.barrier)
    last = s.barrier <= LAST_BARRIER
    late = s.late + (done & last)
    met = violation <= 1e-9
    ended = done & last & ((met & (small | ~good)) | ((late > ENOUGH) & (met | worse)))
    below, above = _room(lo, hi, z)
    return State(
        z=z,
        c=c,
        d=d,
        low=_clipped(low, barrier, below, lo),
        high=_clipped(high, barrier, above, hi),
        at=at,
        barrier=barrier,
        shift=np.where(done, np.minimum(shift, 1.0), shift),
        inside=np.where(done, 0, s.inside + 1),
        violation=np.where(done, violation, s.violation),
        late=late,
        steps=s.steps + 1,
        over=ended | (late > LATE) | (np.max(np.abs(z), axis=1) > AWAY),
    )


def pushed(program: Nonlinear, z: Many) -> Many:
    """Starts well inside their bounds."""
    lo, hi = program.bounds()
    with np.errstate(invalid="ignore"):
        wide = np.where(np.isfinite(lo) & np.isfinite(hi), hi - lo, np.inf)
    push = np.minimum(1e-2 * np.maximum(1.0, np.abs(z)), 0.1 * wide)
    return np.minimum(np.maximum(z, lo + push), hi - push)


def _room(lo: np.ndarray, hi: np.ndarray, z: Many) -> tuple[Many, Many]:
    """The distances to the bounds, one where there is none."""
    return np.where(np.isfinite(lo), z - lo, 1.0), np.where(np.isfinite(hi), hi - z, 1.0)


def _clipped(multiplier: Many, barrier: Lanes, room: Many, bound: np.ndarray) -> Many:
    near = barrier[:, None] / room
    clipped = np.minimum(np.maximum(multiplier, near / BAND), near * BAND)
    return np.where(np.isfinite(bound), clipped, 0.0)


def _direction(system: System, curve: Many, shift: Lanes) -> tuple[Many, Lanes]:
    """The first Newton direction of descent with ever larger shifts, and its shift.

    Zero and NaN if there is none.
    """
    move, used = np.zeros_like(system.gradient), np.full(len(shift), np.nan)
    left = np.arange(len(shift))
    for factor in SHIFTS:
        delta = factor * shift[left]
        part = system if len(left) == len(shift) else system.only(left)
        trial = part.solve(curve[left], delta)
        descent = np.sum(trial * part.gradient, axis=1) < 0
        fit = np.all(np.isfinite(trial), axis=1) & descent
        move[left[fit]], used[left[fit]] = trial[fit], delta[fit]
        left = left[~fit]
        if not len(left):
            break
    return move, used


def _search(
    program: Nonlinear, s: State, t: Many, move: Many, found: np.ndarray, lanes: np.ndarray
) -> tuple[Many, Many, Many, np.ndarray, np.ndarray]:
    """The points of lowest merit among ever shorter steps, or the old ones."""
    lo, hi = program.bounds()
    below, above = _room(lo, hi, s.z)
    down, up = np.isfinite(lo) & (move < 0), np.isfinite(hi) & (move > 0)
    room = np.where(down, below, np.where(up, above, np.inf))
    room = room / np.where(down | up, np.abs(move), 1.0)
    longest = np.minimum(1.0, SHORT_OF * np.min(room, axis=1))
    count, tries = len(t), len(LENGTHS) + 1
    lengths = np.concatenate([longest[:, None] * LENGTHS, np.zeros((count, 1))], axis=1)
    Z = s.z[:, None] + lengths[:, :, None] * move[:, None]
    flat, again = Z.reshape(count * tries, -1), np.repeat(np.arange(count), tries)
    objective, c, d = program.values(flat, lanes[again])
    below, above = _room(lo, hi, flat)
    logs = np.sum(np.log(below) + np.log(above), axis=1)
    rho = s.at.penalty[again]
    hinge = np.maximum(0.0, s.at.below[again] + rho[:, None] * (d - t[again]))
    phi = objective - np.sum((s.at.equal[again] - 0.5 * rho[:, None] * c) * c, axis=1)
    phi = phi + 0.5 / rho * np.sum(hinge**2, axis=1) - s.barrier[again] * logs
    phi = np.where(np.isfinite(phi), phi, np.inf).reshape(count, tries)
    here, best = phi[:, -1], np.argmin(phi[:, :-1], axis=1)
    lowest = phi[np.arange(count), best]
    with np.errstate(invalid="ignore"):
        lower = found & (lowest <= here - 1e-14 * np.abs(here))
    good = np.isfinite(lowest) & (lower | ~np.isfinite(here))
    pick = np.arange(count) * tries + np.where(good, best, tries - 1)
    return flat[pick], c[pick], d[pick], best, good


def _bound_multipliers(
    lo: np.ndarray, hi: np.ndarray, s: State, move: Many, good: np.ndarray
) -> tuple[Many, Many]:
    """The bounds' multipliers after a step of their own length."""
    below, above = _room(lo, hi, s.z)
    mu = s.barrier[:, None]
    low = np.where(np.isfinite(lo), (mu - s.low * move) / below - s.low, 0.0)
    high = np.where(np.isfinite(hi), (mu + s.high * move) / above - s.high, 0.0)
    length = np.where(good, 1.0, 0.0)
    for v, dv in ((s.low, low), (s.high, high)):
        ratio = np.where(dv < 0, -SHORT_OF * v / np.where(dv < 0, dv, -1.0), np.inf)
        length = np.minimum(length, np.min(ratio, axis=1))
    return s.low + length[:, None] * low, s.high + length[:, None] * high
