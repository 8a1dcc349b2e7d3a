"""The search: rounds of bilevel programs from many starts, each checked by inner solves of its own.

spread the starts; solve the inner problem at each
repeat up to 5 times
  solve the bilevel program from every start
  solve the inner problem again at every x found: from y, from the last answer, from elsewhere
  a start whose y is not the lowest gets a cut and goes on; the others start near the best point,
  or anew
the lowest point found that many more inner solves do not refute is the answer
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from .engine import Lanes
from .model import Model, Points
from .polish import polish
from .programs import OUTER_STEPS, Cuts, Ends, solve_inner, solve_outer

ROUNDS = 5
SLOTS = 3  # cuts of a start
TOL = 1e-5  # violations and inner gaps up to this are none
LOOSE = 1e-4  # or up to this, if no point is better
SHARP = 2e-7  # the violation of an inner point that counts
BESIDE, ONTO = 1e-2, 12  # an inner solve that violates rows by less gets so many steps onto them
DEAR = 30.0  # what a violation costs, relative to f
REFUTED = 5e-5  # the inner gap by which a check refutes a point
GAINED = 1e-3  # the gap below zero by which y gains from violating a row
FAR = 1e4  # points this many times as large as the start do not count
FALLS = 4  # inner solves in a row, each of which lowers g and takes y further by a factor of 2
RAY = (1e4, 1e5, 1e6)  # distances at which f must fall if it falls without end
SAMPLES = 256  # inner points among which the best is a start of an inner solve
OFTEN = 0.25  # a value that this part of the starts finds is the lowest
FINISHED = 3  # ends of runs from the best point that are looked at, and points seen elsewhere
NEARLY = 1e-2  # relative to f: what is not higher by more is about as low
FEW = 63  # inner starts of a check if all lead to one value; else there are 255
SIDES = 16  # inner solutions that are kept of a check
CHECKS = 40  # points that are checked
T0 = np.array([1.0, 1e-2, 1e-1, 1e-4])  # first barriers, in turn
INNER_T0 = np.array([1e-3, 1.0, 1e-2, 1e-4])
NEAR_T0 = np.array([1e-4, 1e-2])  # ... near a solution


class Found(NamedTuple):
    """Points, with f, g, the violation and the lowest inner value that is known at their x."""

    x: Points
    y: Points
    f: Lanes
    g: Lanes
    violation: Lanes
    value: Lanes
    lane: np.ndarray

    @property
    def gap(self) -> Lanes:
        """How far g is above the lowest inner value, relative if it is large."""
        return (self.g - self.value) / np.maximum(1.0, np.abs(self.g))

    @property
    def size(self) -> Lanes:
        """The largest entries."""
        return np.max(np.abs(np.concatenate([self.x, self.y], axis=1)), axis=1)

    def only(self, which: np.ndarray) -> "Found":
        """Some of the points."""
        return Found(*(part[which] for part in self))

    @staticmethod
    def joined(many: "list[Found]") -> "Found":
        """All points of several."""
        return Found(*(np.concatenate(parts) for parts in zip(*many, strict=True)))


class Round(NamedTuple):
    """What a round left: the lowest f so far, and the engine's steps."""

    steps: int
    best: Found | None


@dataclasses.dataclass
class Answer:
    """What the search found.

    Attributes:
        best: the point, the lowest that was not refuted, or the one nearest to feasible.
        held: whether it is feasible and was not refuted.
        lanes: the best point of every start.
        rounds: what each round left.
        minima: other inner points at the answer's x, as low as its y.
        around: inner solutions that were found near this x, the lowest first.
        beyond: a point far away from which f falls without end, if there is one.
        endless: whether g fell without end in the inner solves.
        empty: whether no inner solve met the inner constraint, at any x.
        cut_short: whether the steps were used up.
        stopped: whether it was stopped from outside.
    """

    best: Found
    held: bool
    lanes: Found
    rounds: list[Round]
    minima: Points
    around: Points
    beyond: Found | None
    endless: bool
    empty: bool
    cut_short: bool
    stopped: bool


class Stand(NamedTuple):
    """Where a round starts: its starts, the last inner solutions, and the cuts."""

    start: Ends
    inner: Ends
    cuts: Cuts


class Search:
    """The search on a model, from starts given as points z."""

    def __init__(self, model: Model, starts: Points, seed: int):
        self.model, self.count, self.seed = model, len(starts), seed
        self.x, self.y = starts[:, : model.nx], starts[:, model.nx :]
        self.rng = np.random.default_rng(seed)
        self.samples = model.spread(SAMPLES, 11 + seed)[:, model.nx :]
        self.pool: list[Found] = []
        self.rounds: list[Round] = []
        self.left, self.empty, self.over = ROUNDS * OUTER_STEPS, True, False
        self.stand: Stand | None = None

    def run(
        self, told: Callable[[int, Round], bool] | None = None, most: int | None = None
    ) -> Answer:
        """The answer, after at most so many Newton steps from every start.

        `told` sees every round; the search stops if it returns True.
        """
        if most is not None and self.stand is None:
            self.left = most
        stand = self._begun() if self.stand is None else self.stand
        lane = np.arange(self.count)
        t0, ratio = T0[(lane // 2) % 4], np.where((lane // 32) % 2 == 0, 1.0, 10.0)
        fritz_john = np.where((lane // 8) % 4 == 3, 1.0, 0.0)
        stopped = False
        while not (self.over or stopped):
            index = len(self.rounds)
            ends = solve_outer(
                self.model, stand.start, t0, ratio, fritz_john, stand.cuts, self.left,
                self._ceiling(),
            )  # fmt: skip
            self.left -= int(np.max(ends.steps))
            ends = self._mended(ends)
            inner, value = self._inner(ends.x, [ends.y, stand.inner.y, *self._drawn(index)[:1]])
            found = self._found(ends.x, ends.y, value)
            other = np.where(np.isfinite(value)[:, None], inner.y, ends.y)
            self.pool += [found, self._found(ends.x, other, value)]
            self.rounds.append(Round(int(np.sum(ends.steps)), self._lowest()))
            spent = len(self.rounds) == ROUNDS or self.left <= 0
            self.over = spent or self._enough(self.rounds, found)
            if not self.over:
                start = self._next(index, found, ends, inner, value, stand.cuts)
                stand = Stand(start, inner, stand.cuts)
            self.stand = stand
            stopped = told is not None and told(index + 1, self.rounds[-1])
        return self._answer(self.rounds, self.left <= 0, stopped and not self.over)

    def _ceiling(self) -> float:
        """What f must stay below for a run to go on: it is clearly higher than the best."""
        best = self.rounds[-1].best if self.rounds else None
        f = np.inf if best is None else float(best.f[0])
        return f + NEARLY * max(1.0, abs(f))

    def _begun(self) -> "Stand":
        """Where the first round starts."""
        n, lane = self.count, np.arange(self.count)
        inner, value = self._inner(self.x, [self.y, *self._drawn(0)])
        use = (np.isfinite(value) & (lane % 2 == 0))[:, None]
        ones = np.ones_like(inner.weights)
        start = Ends(
            self.x, np.where(use, inner.y, self.y), np.where(use, inner.weights, ones), lane
        )
        cuts = Cuts(
            np.zeros((n, SLOTS, self.model.ny)),
            np.zeros((n, SLOTS, ones.shape[1])),
            np.zeros((n, SLOTS)),
        )
        return Stand(start, inner, cuts)

    def saved(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """What a later process needs to carry on after a round, as JSON and arrays."""
        calls = self.model.calls
        facts = {
            "rounds": len(self.rounds), "left": self.left, "over": self.over, "empty": self.empty,
            "found": [r.best is not None for r in self.rounds],
            "steps": [r.steps for r in self.rounds], "random": self.rng.bit_generator.state,
            "calls": [int(calls.values), int(calls.products)],
        }  # fmt: skip
        bests = [r.best for r in self.rounds if r.best is not None]
        return facts, jax.tree.leaves((self.stand, self.pool, bests))

    def restore(self, facts: dict[str, Any], arrays: list[np.ndarray]) -> None:
        """Go back to where a search was saved."""
        ends, found = Ends(*range(4)), Found(*range(7))  # type: ignore
        like = (
            Stand(ends, ends, Cuts(*range(3))),  # type: ignore
            [found] * (2 * facts["rounds"]), [found] * sum(facts["found"]),
        )  # fmt: skip
        self.stand, self.pool, bests = jax.tree.unflatten(jax.tree.structure(like), arrays)
        place = iter(bests)
        self.rounds = [
            Round(steps, next(place) if best else None)
            for steps, best in zip(facts["steps"], facts["found"], strict=True)
        ]
        self.left, self.over, self.empty = facts["left"], facts["over"], facts["empty"]
        self.rng.bit_generator.state = facts["random"]
        self.model.calls.values, self.model.calls.products = facts["calls"]

    def _drawn(self, index: int) -> list[Points]:
        """Inner points drawn for every start."""
        places = np.arange(self.count)
        return [self.samples[(places + 64 * index + 100 * k) % SAMPLES] for k in range(2)]

    def _mended(self, ends: Ends) -> Ends:
        """Ends that are not finite go back to the start."""
        bad = ~(np.all(np.isfinite(ends.x), axis=1) & np.all(np.isfinite(ends.y), axis=1))[:, None]
        x, y = self.x[:1], self.y[:1]
        return ends._replace(x=np.where(bad, x, ends.x), y=np.where(bad, y, ends.y))

    def _rows(self, x: Points, y: Points) -> tuple[Lanes, Lanes, Lanes, Lanes]:
        """f, scaled, and g, the violation of all rows and that of the inner rows, sharp."""
        with np.errstate(all="ignore"):
            rows = self.model.rows(np.concatenate([x, y], axis=1))
            R, V = self.model.cut(rows), self.model.cut(rows * self.model.sharp)
            outer = np.concatenate([V.C, np.abs(V.E)], axis=1)
            inner = np.concatenate([V.c, np.abs(V.e)], axis=1)
        within = np.max(np.where(np.isnan(inner), np.inf, inner), axis=1, initial=0.0)
        outside = np.max(np.where(np.isnan(outer), np.inf, outer), axis=1, initial=0.0)
        return R.f, V.g, np.maximum(within, outside), within

    def _found(self, x: Points, y: Points, value: Lanes) -> Found:
        f, g, violation, _ = self._rows(x, y)
        fit = np.isfinite(f) & np.isfinite(g)
        violation = np.where(fit, violation, np.inf)
        f, g = np.where(fit, f, np.inf), np.where(fit, g, 0.0)
        return Found(
            x, y, f, g, violation, np.where(np.isfinite(value), value, -np.inf), np.arange(len(x))
        )

    def _solved(self, x: Points, y: Points, t0: Lanes) -> tuple[Ends, Lanes]:
        """Inner solutions and their values, infinite if they violate a row.

        A start that is feasible and lower stays what it is.
        """
        ends = solve_inner(self.model, x, y, t0)
        ends = ends._replace(y=self._onto_rows(x, ends.y))
        _, g0, _, v0 = self._rows(x, y)
        _, g1, _, v1 = self._rows(x, ends.y)
        value = np.where((v1 <= SHARP) & np.isfinite(g1), g1, np.inf)
        before = np.where((v0 <= SHARP / 2) & np.isfinite(g0), g0, np.inf)
        stay = before < value
        self.empty = self.empty and not np.any(np.isfinite(np.minimum(value, before)))
        y = np.where(stay[:, None], y, ends.y)
        return ends._replace(y=y), np.where(stay, before, value)

    def _onto_rows(self, x: Points, y: Points) -> Points:
        """y moved onto the inner rows that it violates a little, by Gauss-Newton steps.

        Where the gradients of such rows vanish no multipliers exist, and inner solves end beside
        the feasible set.
        """
        model, y = self.model, y.copy()
        for _ in range(ONTO):
            within = self._rows(x, y)[3]
            left = np.flatnonzero((within > SHARP / 2) & (within < BESIDE))
            if not len(left):
                break
            Z, none = np.concatenate([x[left], y[left]], axis=1), np.zeros((len(left), model.ny))
            zero = np.zeros((len(left), len(model.kept)))
            with np.errstate(all="ignore"):
                d = model.derive(Z, zero, zero, none)
                R, J = model.cut(d.R), model.cut(d.J[:, :, model.nx :])
                r = np.concatenate([np.maximum(R.c, 0), R.e], axis=1)
                A = np.concatenate([np.where((R.c > 0)[:, :, None], J.c, 0.0), J.e], axis=1)
                fit = np.all(np.isfinite(A), axis=(1, 2)) & np.all(np.isfinite(r), axis=1)
                A, r = (np.where(fit.reshape(-1, *(1,) * (v.ndim - 1)), v, 0.0) for v in (A, r))
            y[left] -= (np.linalg.pinv(A, rcond=1e-10) @ r[:, :, None])[:, :, 0]
        return y

    def _inner(self, x: Points, guesses: list[Points]) -> tuple[Ends, Lanes]:
        """The best inner solution at every x from the guesses and from the best sample."""
        n, m = len(x), SAMPLES
        X = np.repeat(x, m, axis=0)
        _, g, _, violation = self._rows(X, np.tile(self.samples, (n, 1)))
        g, violation = g.reshape(n, m), violation.reshape(n, m)
        fit = np.where(np.isfinite(g) & (violation <= SHARP), g, np.inf)
        some = np.isfinite(np.min(fit, axis=1))
        pick = np.where(some, np.argmin(fit, axis=1), np.argmin(violation, axis=1))
        starts = [*guesses, self.samples[pick]]
        k = len(starts)
        ends, value = self._solved(
            np.repeat(x, k, axis=0), np.stack(starts, axis=1).reshape(n * k, -1),
            np.tile(INNER_T0[-k:], n),
        )  # fmt: skip
        best = np.argmin(value.reshape(n, k), axis=1)
        pick = np.arange(n) * k + best
        return Ends(*(part[pick] for part in ends)), value[pick]

    def _lowest(self) -> Found | None:
        """The lowest point so far that is feasible."""
        pool = Found.joined(self.pool)
        ok = np.flatnonzero((pool.violation <= TOL) & (pool.gap <= TOL) & ~self._far(pool))
        return pool.only(ok[[np.argmin(pool.f[ok])]]) if len(ok) else None

    def _far(self, found: Found) -> np.ndarray:
        limit = FAR * max(1.0, float(np.max(np.abs(self.model.start))))
        return found.size > limit

    def _enough(self, rounds: list[Round], found: Found) -> bool:
        """Whether nothing lower awaits a cut, and the best was found often or two rounds ago."""
        best = rounds[-1].best
        if best is None:
            return False
        now = float(best.f[0])
        size = max(1.0, abs(now))
        awaiting = (found.gap > TOL) & (found.violation < TOL) & (found.f < now - 1e-3 * size)
        if np.any(awaiting & ~self._far(found)):
            return False
        valid = (found.gap <= TOL) & (found.violation <= TOL)
        if np.mean(valid & (np.abs(found.f - now) <= 1e-4 * size)) >= OFTEN:
            return True
        before = rounds[-3].best if len(rounds) > 2 else None
        return before is not None and now > float(before.f[0]) - 1e-4 * size

    def _next(
        self, index: int, found: Found, ends: Ends, inner: Ends, value: Lanes, cuts: Cuts
    ) -> Ends:
        """The starts of the next round, and their cuts."""
        model, n, lane = self.model, self.count, np.arange(self.count)
        refuted = (found.gap > TOL) & np.isfinite(value)
        slot = index % SLOTS
        cuts.on[refuted, slot] = 1.0
        cuts.w[refuted, slot], cuts.weights[refuted, slot] = (
            inner.y[refuted],
            inner.weights[refuted],
        )
        cuts.on[~refuted] = 0.0
        fresh = model.spread(n, 101 + index + self.seed)
        x, y = fresh[:, : model.nx], fresh[:, model.nx :]
        good = (found.violation < LOOSE) & (found.gap <= LOOSE)
        if np.any(good):
            best = int(np.argmin(np.where(good, found.f, np.inf)))
            z = np.concatenate([found.x[best], found.y[best]])
            size = 10.0 ** self.rng.uniform(-2, 0, (n, 1)) * (1 + np.abs(z))
            near = np.clip(z + size * self.rng.standard_normal((n, model.n)), model.lo, model.hi)
            use = (self.rng.random(n) < 0.5)[:, None]
            x, y = np.where(use, near[:, : model.nx], x), np.where(use, near[:, model.nx :], y)
        again, own = refuted[:, None], (lane % 2 == 0)[:, None]
        weights = np.where(own, np.clip(np.nan_to_num(ends.weights), -1e3, 1e3), inner.weights)
        return Ends(
            np.where(again, ends.x, x),
            np.where(again, np.where(own, ends.y, inner.y), y),
            np.where(again, weights, 1.0),
            lane,
        )

    # The answer

    def _answer(self, rounds: list[Round], cut_short: bool, stopped: bool) -> Answer:
        pool = Found.joined(self.pool)
        away = self._beyond(pool)
        beyond = away if away is not None and self._keeps_falling(away) else None
        near = pool.only(~self._far(pool))
        none = np.zeros((0, self.model.ny))
        best, minima, around = None, none, none
        if not np.any((near.violation <= LOOSE) & (near.gap <= LOOSE)):
            near = pool  # what there is, however far away
        for tol in (TOL, LOOSE):
            fit = np.flatnonzero((near.violation <= tol) & (near.gap <= tol))
            if best is None:
                size = np.maximum(1.0, np.abs(near.f[fit]))
                debt = DEAR * size * (near.violation[fit] + np.maximum(near.gap[fit], 0.0))
                best, minima, around = self._unrefuted(
                    near.only(fit[np.argsort(near.f[fit] + debt)])
                )
        held = best is not None
        if best is None:
            pool = near if len(near.f) else pool
            gap = np.where(np.isfinite(pool.value), pool.gap, 1.0)
            best = pool.only(np.array([np.argmin(np.maximum(pool.violation, gap))]))
        endless = bool(not held or self._far(best)[0]) and self._falls(best.x[0])
        return Answer(
            best, held, self._lanes(pool), rounds, minima, around, beyond, endless, self.empty,
            cut_short, stopped,
        )  # fmt: skip

    def finished(self, best: Found) -> list[tuple[Found, np.ndarray | None]]:
        """Points about as low as the best, with inner multipliers if they are known.

        They are ends of runs from there, and what the search has seen elsewhere.
        """
        ends = self._again(best)
        y = np.repeat(best.y, len(ends.x), axis=0)
        _, value = self._inner(ends.x, [ends.y, y])
        found = self._found(ends.x, ends.y, value)._replace(lane=np.repeat(best.lane, len(y)))
        limit = best.f[0] + NEARLY * max(1.0, abs(float(best.f[0])))
        out: list[tuple[Found, np.ndarray | None]] = []
        for many, weights in ((found, ends.weights), (Found.joined(self.pool), None)):
            fit = (many.violation <= TOL) & (np.abs(many.gap) <= TOL) & (many.f <= limit)
            order = np.argsort(many.violation + np.abs(many.gap))
            for i in [i for i in order if fit[i]][:FINISHED]:
                point, given = many.only(np.array([i])), None if weights is None else weights[i]
                known = given
                if known is None:
                    known = self._solved(point.x, point.y, np.full(1, NEAR_T0[0]))[0].weights[0]
                out += [self.polished(point, known), (point, given)]
        return [(p, w) for p, w in out if p.violation[0] <= TOL and p.f[0] <= limit]

    def clipped(self, point: Found) -> Found:
        """A point within its bounds to the last digit."""
        lo, hi = self.model.lo, self.model.hi
        z = np.minimum(np.maximum(np.concatenate([point.x, point.y], axis=1), lo), hi)
        x, y = np.split(z, [self.model.nx], axis=1)
        return self._found(x, y, point.value)._replace(lane=point.lane)

    def polished(self, point: Found, weights: np.ndarray) -> tuple[Found, np.ndarray]:
        """The exact point nearby, with its inner multipliers; the same if there is none."""
        with np.errstate(all="ignore"):
            x, y, near = polish(self.model, point.x, point.y, weights)
        bad = not (np.all(np.isfinite(x)) and np.all(np.isfinite(y)))
        if bad:
            return point, weights
        _, value = self._solved(x, y, np.full(1, 1e-4))
        return self._found(x, y, value)._replace(lane=point.lane), near

    def _beyond(self, pool: Found) -> Found | None:
        """The lowest point if it is far away and lower than all that are not."""
        fit, far = (pool.violation <= LOOSE) & (pool.gap <= LOOSE), self._far(pool)
        if not np.any(fit & far):
            return None
        lowest = pool.only(np.array([np.argmin(np.where(fit & far, pool.f, np.inf))]))
        near = float(np.min(pool.f[fit & ~far], initial=np.inf))
        # far away a violation, however small, may explain a lot
        doubt = 10 * lowest.size * (lowest.violation + np.maximum(lowest.gap, 0.0) + 1e-9)
        if not np.isfinite(near):
            return lowest
        return lowest if lowest.f[0] + doubt[0] < near - 1e-3 * max(1.0, abs(near)) else None

    def _keeps_falling(self, lowest: Found) -> bool:
        """Whether f falls with the distance along the ray to a point, at inner solutions."""
        before, start = np.inf, max(1.0, float(np.max(np.abs(self.model.start))))
        for reach in RAY:
            size = reach * start
            x, y = (z * (size / lowest.size[0]) for z in (lowest.x, lowest.y))
            around = y + size * self.rng.standard_normal((32, y.shape[1]))
            Y = np.concatenate([y, around, self.samples[:31]])
            X = np.repeat(x, len(Y), axis=0)
            Y = solve_inner(self.model, X, Y, np.tile(INNER_T0, 16)).y
            found = self._found(X, Y, np.full(len(Y), np.nan))
            *_, within = self._rows(X, Y)
            best = int(np.argmin(np.where(within <= 1e-6 * size, found.g, np.inf)))
            f = float(found.f[best])
            lower = not np.isfinite(before) or f < before - 0.5 * abs(before)
            if not (within[best] <= 1e-6 * size and found.violation[best] <= 1e-3 * size and lower):
                return False
            before = f
        return before < 0

    def _again(self, best: Found) -> Ends:
        """Ends of runs from a point, with small barriers."""
        n, model = 2 * len(T0), self.model
        x, y = np.repeat(best.x, n, axis=0), np.repeat(best.y, n, axis=0)
        inner, _ = self._solved(x, y, np.full(n, 1e-4))
        zero = np.zeros((n, SLOTS, model.ny)), np.zeros((n, SLOTS, len(model.kept)))
        ends = solve_outer(
            model, inner._replace(y=y), np.tile(T0, 2) * 1e-2, np.repeat([1.0, 0.1], len(T0)),
            np.zeros(n), Cuts(*zero, np.zeros((n, SLOTS))), OUTER_STEPS,
        )  # fmt: skip
        return self._mended(ends)

    def _falls(self, x: np.ndarray) -> bool:
        """Whether g(x, .) falls without end: ever further away it is ever lower."""
        X, t0 = np.repeat(x[None], 64, axis=0), np.tile(INNER_T0, 16)
        Y, low, size = self.samples[:64], 0.0, 1.0
        for _ in range(FALLS):
            Y = solve_inner(self.model, X, Y, t0).y
            _, g, _, violation = self._rows(X, Y)
            fit = violation <= 1e-3 * (1 + np.abs(g))
            g = np.where(fit & np.isfinite(g), g, np.inf)
            best = int(np.argmin(g))
            reach = float(np.max(np.abs(Y[best])))
            if not (g[best] < 2 * low and reach > 2 * size):
                return False
            low, size = float(min(g[best], -1.0)), max(reach, 1.0)
            Y = np.repeat(Y[[best]], 64, axis=0) * (1 + np.arange(64)[:, None] / 32)
        return True

    def _lanes(self, pool: Found) -> Found:
        """The best point of every start."""
        ok = (pool.violation <= TOL) & (pool.gap <= TOL)
        rank = np.lexsort((np.where(ok, pool.f, pool.violation + np.maximum(pool.gap, 0)), ~ok))
        first = [rank[np.argmax(pool.lane[rank] == k)] for k in range(self.count)]
        return pool.only(np.array(first))

    def _unrefuted(self, found: Found) -> tuple[Found | None, Points, Points]:
        """The first point that many inner solves do not refute; other inner minima there; all."""
        seen: list[np.ndarray] = []
        for i in range(len(found.f)):
            point = found.only(np.array([i]))
            z = np.concatenate([point.x[0], point.y[0]])
            if any(np.allclose(z, old, atol=1e-4, rtol=1e-4) for old in seen):
                continue
            seen.append(z)
            if len(seen) > CHECKS:
                break
            Y, value = self.lookout(point.x[0], point.y[0])
            lowest = float(np.min(value, initial=np.inf))
            if not np.isfinite(lowest):
                continue
            point = point._replace(value=np.minimum(point.value, lowest))
            if point.gap[0] < -GAINED:
                continue
            if point.gap[0] > REFUTED:  # an inner point that is lower only within the tolerances
                b = int(np.argmin(value))
                other = self._found(point.x, Y[[b]], np.array([lowest]))._replace(lane=point.lane)
                close = other.f[0] - point.f[0] <= 1e-3 * max(1.0, abs(point.f[0]))
                if not (other.violation[0] <= 1e-6 and close):
                    continue
                point = other
            size = max(1.0, abs(float(point.g[0])))
            apart = np.linalg.norm(Y - point.y[0], axis=1) > 1e-3 * (1 + np.linalg.norm(point.y[0]))
            return point, Y[(value <= point.g[0] + 1e-4 * size) & apart], _distinct(Y, value)
        none = np.zeros((0, self.model.ny))
        return None, none, none

    def lookout(self, x: np.ndarray, y: np.ndarray) -> tuple[Points, Lanes]:
        """Inner solutions at x from many starts, and their values."""
        rng = np.random.default_rng(self.seed)
        around = y + rng.standard_normal((40, len(y))) * (1 + np.abs(y))
        starts = np.concatenate([y[None], around, self.samples[41:]])
        found: list[tuple[Points, Lanes]] = []
        for Y in np.split(starts[rng.permutation(len(starts))], [FEW]):
            Y = np.concatenate([y[None], Y])
            ends, value = self._solved(
                np.repeat(x[None], len(Y), axis=0), Y, 10.0 ** -(np.arange(len(Y)) % 4)
            )
            found.append((ends.y, value))
            seen = value[np.isfinite(value) & (ends.steps < np.max(ends.steps))]  # not cut short
            if len(seen) > FEW / 2 and np.ptp(seen) <= 1e-6 * max(1.0, np.max(np.abs(seen))):
                break  # all of them lead to one value
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def value(self, x: np.ndarray, y: np.ndarray) -> float:
        """g at a point, infinite if it violates an inner row."""
        _, g, _, within = self._rows(x[None], y[None])
        return float(g[0]) if within[0] <= SHARP and np.isfinite(g[0]) else np.inf

    def again(self, x: np.ndarray, y: np.ndarray, around: Points) -> tuple[Points, Lanes]:
        """Inner solutions at x from those found nearby, and their values."""
        Y = np.repeat(np.concatenate([y[None], around]), len(NEAR_T0), axis=0)
        t0 = np.resize(NEAR_T0, len(Y))
        ends, value = self._solved(np.repeat(x[None], len(Y), axis=0), Y, t0)
        return ends.y, value


def _distinct(Y: Points, value: Lanes) -> Points:
    """The lowest of some points, as far as they are not the same."""
    kept: list[np.ndarray] = []
    for i in np.argsort(value):
        if len(kept) == SIDES or not np.isfinite(value[i]):
            break
        if all(np.linalg.norm(Y[i] - v) > 1e-4 * (1 + np.linalg.norm(v)) for v in kept):
            kept.append(Y[i])
    return np.array(kept).reshape(len(kept), Y.shape[1])
