r"""Newton's method for small nonlinear programs, many starts side by side.

    min objective(p)  subject to  equal(p, r, s) = 0,  below(p, r, s) <= t,  lo < (p, r, s) < hi

on the merit $\phi = objective - \lambda \cdot c + \frac\rho2 |c|^2 +
\frac1{2\rho} \sum \max(0, \kappa + \rho d)^2 - \mu \sum \log(z - lo) + \log(hi - z)$, an augmented
Lagrangian with a primal-dual barrier for the bounds:

    mu = 0.1 t0; rho = 10; shift = 1e-4; lambda = kappa = 0
    repeat
      factor H + {0, 1, 30, 1e3, 3e4} shift; take the first direction of descent
      take the step length 2^-k, k = 0 ... 13, of lowest phi, short of the bounds; if phi is
        lower at 1 or 1/2 than at 1/4 and here, the others are not looked at
      no decrease: stay and raise the shift; else lower it
      after 8 steps, or if the gradient is small beside mu:
        lambda -= rho c; kappa = max(0, kappa + rho d); mu /= 4
        rho *= 4 unless c has become smaller by that much

References: Conn, Gould and Toint, LANCELOT (1992); for the bounds, Waechter and Biegler, On the
implementation of an interior-point filter line-search algorithm (2006).
"""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import lapack

Lanes = Float[np.ndarray, " lanes"]
Many = Float[np.ndarray, "lanes n"]

SHIFTS = (0.0, 1.0, 30.0, 1e3, 3e4)
LENGTHS = 0.5 ** np.arange(14)  # step lengths that are tried ...
FIRST = 3  # ... so many of them first, the others if the last of these is the best
FIRST_BARRIER, LAST_BARRIER = 0.1, 1e-9
FIRST_PENALTY, LAST_PENALTY = 10.0, 1e7
SHRINK = 0.25  # of the barrier, and of the violation if the penalty is to stay
EAGER = 0.25  # the power of the barrier by which it shrinks if a program is eager ...
READY = 3, 1e-4  # ... or a stage has taken so few steps with such a barrier
SHORT_OF = 0.995  # of the way to a bound
SMALL = 1e-7  # the gradient of a stage that has ended
BAND = 1e4  # how far the bounds' multipliers may be from barrier / distance, as a factor
MOST = 1e8  # the largest multiplier
LATE = 6  # the most stages with the last barrier ...
ENOUGH = 1  # ... and after how many one ends the run that meets all rows, or gets no closer
LONGER = 1.4  # times as many steps as half of the lanes need are the most
NEAR = 1e-4  # rows that are off by less, with such a barrier, are nearly met
MET = 1e-8  # rows that are off by less are met as far as rounding allows
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
    """What the engine minimises, for many lanes.

    Attributes:
        eager: whether the barrier falls ever faster where stages end early.
    """

    eager: ClassVar[bool] = False

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


class Bounds:
    """The bounds of z, as distances that stay positive."""

    def __init__(self, lo: np.ndarray, hi: np.ndarray):
        self._low, self._high = np.flatnonzero(np.isfinite(lo)), np.flatnonzero(np.isfinite(hi))
        self._lo, self._hi = lo[self._low], hi[self._high]

    def room(self, z: Many) -> Many:
        """The distances."""
        return np.concatenate(
            [z[..., self._low] - self._lo, self._hi - z[..., self._high]], axis=-1
        )

    def along(self, move: Many) -> Many:
        """How they change with z."""
        return np.concatenate([move[..., self._low], -move[..., self._high]], axis=-1)

    def slopes(self, weights: Many, like: Many) -> Many:
        """The derivative in z of their sum with weights."""
        return self._placed(weights, like, -1.0)

    def curves(self, weights: Many, like: Many) -> Many:
        """The weights, where they belong in z."""
        return self._placed(weights, like, 1.0)

    def _placed(self, weights: Many, like: Many, sign: float) -> Many:
        out, k = np.zeros_like(like), len(self._low)
        out[:, self._low] = weights[:, :k]
        out[:, self._high] += sign * weights[:, k:]
        return out


@dataclasses.dataclass
class State:
    """Where the lanes stand."""

    z: Many
    objective: Lanes
    c: Many  # the rows `equal` ...
    d: Many  # ... and `below` there
    room: Many  # the distances to the bounds ...
    force: Many  # ... and their multipliers
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
        parts = {k: v[lanes] for k, v in vars(self).items() if k != "at"}
        return State(**parts, at=Multipliers(*(part[lanes] for part in self.at)))

    @staticmethod
    def joined(many: "list[State]") -> "State":
        """All lanes of several."""
        parts = {k: np.concatenate([vars(s)[k] for s in many]) for k in vars(many[0]) if k != "at"}
        each = zip(*(s.at for s in many), strict=True)
        return State(**parts, at=Multipliers(*map(np.concatenate, each)))


def run(
    program: Nonlinear, z: Many, t0: Lanes, ratio: Lanes, most: int, stage: int,
    ceiling: float = np.inf,
) -> State:  # fmt: skip
    """The engine from z, inside its bounds; `ratio` times the barrier is t.

    Lanes whose objective stays above the ceiling while they come near their rows end early, as do
    the last few of many.
    """
    bounds, count, barrier = Bounds(*program.bounds()), len(z), FIRST_BARRIER * t0
    lanes = np.arange(count)
    objective, c, d = program.values(z, lanes)
    room, ones = bounds.room(z), np.ones(count)
    state = State(
        z=z.copy(),
        objective=objective,
        c=c,
        d=d,
        room=room,
        force=barrier[:, None] / room,
        at=Multipliers(0 * c, 0 * d, FIRST_PENALTY * ones),
        barrier=barrier.copy(),
        shift=1e-4 * ones,
        inside=np.zeros(count, int),
        violation=np.inf * ones,
        late=np.zeros(count, int),
        steps=np.zeros(count, int),
        over=np.zeros(count, bool),
    )
    places, ended, half = [], [], most
    for step in range(most):
        if step > LONGER * half:
            break  # the last few
        state = _step(program, bounds, state, ratio[lanes], stage, lanes)
        near = (state.violation <= NEAR) & (state.barrier <= NEAR) & (state.inside == 0)
        state.over |= near & (state.objective > ceiling)
        if np.any(state.over):
            places.append(lanes[state.over])
            ended.append(state.only(state.over))
            lanes, state = lanes[~state.over], state.only(~state.over)
            if not len(lanes):
                break
            half = min(half, step) if len(lanes) <= count / 2 else half
    return State.joined([*ended, state]).only(np.argsort(np.concatenate([*places, lanes])))


def _step(
    program: Nonlinear, bounds: Bounds, s: State, ratio: Lanes, stage: int, lanes: np.ndarray
) -> State:
    t = (ratio * s.barrier)[:, None] * program.relaxed()
    ahead = s.at.ahead(s.c, s.d - t)
    system = program.derive(s.z, s.at, ahead, lanes)
    residual = np.max(np.abs(system.gradient - bounds.slopes(s.force, s.z)), axis=1)
    push = bounds.slopes(s.barrier[:, None] / s.room, s.z)
    system = system._replace(gradient=system.gradient - push)
    move, used = _direction(system, bounds.curves(s.force / s.room, s.z), s.shift)
    found = np.isfinite(used)
    cap = 100.0 * (1 + np.max(np.abs(s.z), axis=1)) / (1e-300 + np.max(np.abs(move), axis=1))
    move *= np.minimum(1.0, cap)[:, None]
    along = bounds.along(move)
    z, objective, c, d, best, good = _search(program, bounds, s, t, move, along, found, lanes)
    force = _forces(s, along, good)
    used = np.where(found, used, s.shift)
    kept = np.maximum(np.where(best == 0, used / 5, used), 1e-8)
    shift = np.where(good, kept, np.minimum(np.maximum(used, s.shift) * 10, 1e8))

    small = residual <= np.maximum(10 * s.barrier, SMALL)
    done = small | (s.inside >= stage) | (~good & (shift > 1e4))
    excess = np.maximum(d - t, -s.at.below / s.at.penalty[:, None])
    violation = np.max(np.concatenate([np.abs(c), excess], axis=1), axis=1, initial=0.0)
    worse = violation > np.maximum(SHRINK * s.violation, 1e-9)
    fast = small & (program.eager | ((s.inside <= READY[0]) & (s.barrier <= READY[1])))
    barrier = np.where(fast, np.minimum(SHRINK, s.barrier**EAGER), SHRINK) * s.barrier
    barrier = np.where(done, np.maximum(barrier, LAST_BARRIER), s.barrier)
    last = s.barrier <= LAST_BARRIER
    late = s.late + (done & last)
    met = violation <= 1e-9
    ended = done & last & ((met & (small | ~good)) | ((late > ENOUGH) & (met | worse)))
    ended |= last & ~good & (violation <= MET)  # all is rounding
    room = bounds.room(z)
    near = barrier[:, None] / room
    return State(
        z=z,
        objective=objective,
        c=c,
        d=d,
        room=room,
        force=np.minimum(np.maximum(force, near / BAND), near * BAND),
        at=_multipliers(s.at, c, d - t, done, worse),
        barrier=barrier,
        shift=np.where(done, np.minimum(shift, 1.0), shift),
        inside=np.where(done, 0, s.inside + 1),
        violation=np.where(done, violation, s.violation),
        late=late,
        steps=s.steps + 1,
        over=ended | (late > LATE) | (np.max(np.abs(z), axis=1) > AWAY),
    )


def _multipliers(
    at: Multipliers, c: Many, d: Many, done: np.ndarray, worse: np.ndarray
) -> Multipliers:
    """The estimates after a step, other ones where a stage is done."""
    if not np.any(done):
        return at
    ahead, each = at.ahead(c, d), done[:, None]
    penalty = np.where(worse, np.minimum(at.penalty * 4, LAST_PENALTY), at.penalty)
    return Multipliers(
        np.where(each, np.clip(ahead.equal, -MOST, MOST), at.equal),
        np.where(each, np.minimum(ahead.below, MOST), at.below),
        np.where(done, penalty, at.penalty),
    )


def pushed(program: Nonlinear, z: Many) -> Many:
    """Starts well inside their bounds."""
    lo, hi = program.bounds()
    with np.errstate(invalid="ignore"):
        wide = np.where(np.isfinite(lo) & np.isfinite(hi), hi - lo, np.inf)
    push = np.minimum(1e-2 * np.maximum(1.0, np.abs(z)), 0.1 * wide)
    return np.minimum(np.maximum(z, lo + push), hi - push)


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
        fit = np.sum(trial * part.gradient, axis=1) < 0  # false where it is not a number
        fit &= np.isfinite(np.sum(trial, axis=1))
        move[left[fit]], used[left[fit]] = trial[fit], delta[fit]
        left = left[~fit]
        if not len(left):
            break
    return move, used


def _search(
    program: Nonlinear, bounds: Bounds, s: State, t: Many, move: Many, along: Many,
    found: np.ndarray, lanes: np.ndarray,
) -> tuple[Many, Lanes, Many, Many, np.ndarray, np.ndarray]:  # fmt: skip
    """The points of lowest merit among ever shorter steps, or the old ones."""
    reach = np.min(np.where(along < 0, -s.room / along, np.inf), axis=1, initial=np.inf)
    longest = np.minimum(1.0, SHORT_OF * reach)
    here = _merit(s, t, s.room, s.objective, s.c, s.d)
    z, lowest, best = s.z.copy(), np.full(len(t), np.inf), np.zeros(len(t), int)
    objective, c, d = s.objective.copy(), s.c.copy(), s.d.copy()
    left = np.flatnonzero(found)
    for begin, tried in ((0, LENGTHS[:FIRST]), (FIRST, LENGTHS[FIRST:])):
        if not len(left):
            break
        Z = s.z[left] + (longest[left] * tried[:, None])[:, :, None] * move[left]
        values = program.values(Z.reshape(-1, Z.shape[2]), np.tile(lanes[left], len(tried)))
        part = s if len(left) == len(t) else s.only(left)
        values = [v.reshape(*Z.shape[:2], *v.shape[1:]) for v in values]
        phi = _merit(part, t[left], bounds.room(Z), *values)
        k, each = np.argmin(phi, axis=0), np.arange(len(left))
        phi = phi[k, each]
        lower = phi < lowest[left]
        new, pick = left[lower], (k[lower], each[lower])
        lowest[new], best[new], z[new] = phi[lower], begin + k[lower], Z[pick]
        objective[new], c[new], d[new] = (v[pick] for v in values)
        last = (best[left] == FIRST - 1) | ~np.isfinite(lowest[left])
        left = left[last | ~(lowest[left] < here[left])]
    lower = found & (lowest <= here - 1e-14 * np.abs(here))
    good = np.isfinite(lowest) & (lower | ~np.isfinite(here))
    stay = ~good
    if np.any(stay):
        z[stay], objective[stay] = s.z[stay], s.objective[stay]
        c[stay], d[stay] = s.c[stay], s.d[stay]
    return z, objective, c, d, best, good


def _merit(s: State, t: Many, room: Many, objective: Lanes, c: Many, d: Many) -> Lanes:
    """The merit with its barrier, infinite where it is not a number."""
    rho = s.at.penalty[:, None]
    hinge = np.maximum(0.0, s.at.below + rho * (d - t))
    phi = objective - np.sum((s.at.equal - 0.5 * rho * c) * c, axis=-1)
    phi = phi + 0.5 / s.at.penalty * np.sum(hinge**2, axis=-1)
    phi = phi - s.barrier * np.sum(np.log(room), axis=-1)
    return np.where(np.isfinite(phi), phi, np.inf)


def _forces(s: State, along: Many, good: np.ndarray) -> Many:
    """The bounds' multipliers after a step of their own length."""
    change = (s.barrier[:, None] - s.force * along) / s.room - s.force
    reach = np.where(change < 0, -SHORT_OF * s.force / change, np.inf)
    length = np.minimum(np.where(good, 1.0, 0.0), np.min(reach, axis=1, initial=np.inf))
    return s.force + length[:, None] * change
