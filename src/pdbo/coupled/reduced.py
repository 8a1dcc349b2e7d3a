r"""The leader of a large problem: Newton's method for $F(x) = f(x, y_\mu(x))$.

y is the follower's answer:

    for mu = 0.1, 0.01, ... down to 1e-9
      repeat
        y, m = the follower's answer at x; K its matrix, factored
        K (v, w, t) = (f_y, 0, 0);  F' = f_x - d/dx [v grad_y L + w c + t e]
        d = conjugate gradients on F'' d = -F' within a radius, in the entries of x off their
            bounds; those that are pushed to a bound nearby go there
        take the step if F falls as F'' says; else halve the radius
      until F' is small
      multipliers and penalty of the outer rows, an augmented Lagrangian

A product with F'' costs two solves with K. Where a row of the follower becomes active F has a
kink, which the barrier rounds off. Where his set shrinks to a point, often at a bound of x, the
barrier is stronger than g: x stays about sqrt(mu) off its bounds, and goes there in the end if he
has an answer.

References: Nocedal and Wright, Numerical Optimization (2006), ch. 7; Lin and More, Newton's method
for large bound-constrained optimization problems (1999); for the barrier inside, Jiang, Xiao,
Medina and Ruozzi, Barrier function for bilevel optimization with coupled lower-level constraints
(2024).
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .certificate import AROUND
from .follower import Answer, Factors, answer, follow
from .oracle import Oracle, Outside

Vector = Float[np.ndarray, " n"]

FIRST, LAST, SHRINK = 0.1, 1e-9, 0.1  # barriers
EACH = 30  # the most steps for a barrier
LATE = 60  # ... and for the last
PRODUCTS = 60  # the most of a step
FORCING = 0.1  # how exact a step is, relative to the gradient
RADIUS = 0.5  # the first, in sizes of x
APART, MOST_APART = 0.3, 0.03  # how far x stays from its bounds, in sqrt(mu) and in sizes of x
EARLY = 1e-4  # from this barrier on a point may be good enough
MORE = 10  # stages with the last barrier
LEAST = 1e-10  # a radius this small ends a stage
GROW = 4.0  # of the penalty if the outer rows do not become smaller by that
STEEPEST = 1e6  # the largest penalty


class Point(NamedTuple):
    """x with the follower's answer, K, the adjoint (v, w, t), F and its gradient."""

    x: Vector
    at: Answer
    K: Factors
    p: tuple[Vector, Vector, Vector]
    f: float
    slope: Vector
    size: float  # of the parts of the gradient
    rows: tuple[Vector, Vector]  # the outer ones


@dataclasses.dataclass
class Leader:
    """F on a box."""

    oracle: Oracle
    lo: Vector
    hi: Vector

    def within(self, mu: float) -> "Leader":
        """The same on a box that is a little smaller."""
        with np.errstate(invalid="ignore"):
            wide = np.where(np.isfinite(self.hi - self.lo), self.hi - self.lo, np.inf)
        apart = np.minimum(min(APART * np.sqrt(mu), MOST_APART), 0.05 * wide)
        return dataclasses.replace(self, lo=self.lo + apart, hi=self.hi - apart)

    def point(self, x: Vector, near: Answer, mu: float) -> Point | None:
        """F at x, from an answer nearby; None if the follower has no answer there."""
        at, K = answer(self.oracle, x, near, mu)
        if at.lost:
            return None
        f, f_x, f_y, below, zero = self.oracle.outer(x, at.y)
        p = K.solve(f_y, np.zeros_like(at.m), np.zeros_like(at.u))
        shift = self.oracle.adjoint(x, (at.y, at.m, at.u), p)
        slope, size = f_x - shift, float(np.linalg.norm(f_x) + np.linalg.norm(shift))
        # the parts of the shift may cancel: with random signs they do not; f_y may be zero: nearby
        # it is not
        signs = np.random.default_rng(0).choice([-1.0, 1.0], len(f_y))
        beside = self.oracle.outer(x, at.y + AROUND * float(np.sqrt(np.mean(at.y**2))) * signs)[2]
        parts = signs * np.fmax(np.abs(f_y), np.abs(np.where(np.isfinite(beside), beside, 0.0)))
        parts = K.solve(parts, np.zeros_like(at.m), np.zeros_like(at.u))
        parts = float(np.linalg.norm(self.oracle.adjoint(x, (at.y, at.m, at.u), parts)))
        size = max(size, parts if np.isfinite(parts) else 0.0)
        if not (np.isfinite(f) and np.all(np.isfinite(slope))):
            return None
        return Point(x, at, K, p, f, slope, max(size, 1e-300), (below, zero))

    def along(self, here: Point, d: Vector) -> tuple[Vector, Vector, Vector]:
        """How y, m and u change along d."""
        at = here.at
        moved = self.oracle.ahead(here.x, (at.y, at.m, at.u), d)
        return here.K.solve(*(-part for part in moved))

    def product(
        self, here: Point, d: Vector, along: tuple[Vector, Vector, Vector] | None = None
    ) -> Vector:
        """F'' d; `along` is how the answer changes along d, if that is known."""
        at, (v, w, t) = here.at, here.p
        inside = (at.y, at.m, at.u)
        along = along or self.along(here, d)
        by_x, *rest = self.oracle.turned((here.x, *inside), (v, -w / at.m, t), (d, *along))
        return by_x - self.oracle.adjoint(here.x, inside, here.K.solve(*rest))

    def tangent(self, x: Vector, d: Vector, near: float = 0.0) -> np.ndarray:
        """Which entries can follow d within the box."""
        return ~(((x - self.lo <= near) & (d < 0)) | ((self.hi - x <= near) & (d > 0)))

    def residual(self, here: Point) -> float:
        """How far a step along the gradient, relative to its parts, leads within the box."""
        ahead = np.clip(here.x - here.slope / here.size, self.lo, self.hi)
        return float(np.linalg.norm(ahead - here.x))

    def direction(self, here: Point, radius: float) -> tuple[Vector, float, Answer]:
        """A step within a radius, the decrease that the model predicts, and its answer's start."""
        near = min(1e-3, radius, float(np.linalg.norm(here.slope) / here.size))
        free = self.tangent(here.x, -here.slope, near)
        bound = np.where(here.slope > 0, self.lo, self.hi) - here.x
        r = np.where(free, -here.slope, 0.0)
        d, p, rr = np.zeros_like(r), r.copy(), float(r @ r)
        goal = (FORCING * np.sqrt(rr)) ** 2
        for _ in range(min(PRODUCTS, 2 * len(d))):
            if rr <= goal:
                break
            Hp = np.where(free, self.product(here, p), 0.0)
            curve = float(p @ Hp)
            step = rr / curve if curve > 0 else np.inf
            new = d + min(step, 1e300) * p if np.isfinite(step) else d
            if not np.isfinite(step) or np.linalg.norm(new) >= radius:
                d = d + _to_sphere(d, p, radius) * p
                break
            d, r = new, r - step * Hp
            old, rr = rr, float(r @ r)
            p = r + rr / old * p
        d = np.where(free, d, bound)  # entries that are pushed to a bound nearby go there
        d = np.clip(here.x + d, self.lo, self.hi) - here.x
        along = self.along(here, d)
        fall = -float(here.slope @ d + 0.5 * d @ self.product(here, d, along))
        return d, fall, follow(here.at, along)


def _to_sphere(d: Vector, p: Vector, radius: float) -> float:
    """The step along p from d to the sphere."""
    a, b, c = float(p @ p), float(d @ p), float(d @ d) - radius**2
    return (-b + np.sqrt(max(b * b - a * c, 0.0))) / max(a, 1e-300)


def stage(
    leader: Leader, here: Point, mu: float, goal: float, most: int, told: Callable[[Point], bool]
) -> tuple[Point, bool]:
    """Steps for one barrier; whether it was stopped."""
    radius = RADIUS * np.sqrt(len(here.x))
    for _ in range(most):
        if leader.residual(here) <= goal or radius < LEAST:
            break
        d, fall, near = leader.direction(here, radius)
        length = float(np.linalg.norm(d))
        there = leader.point(here.x + d, near, mu) if fall > 0 else None
        ratio = -np.inf if there is None else (here.f - there.f) / max(fall, 1e-300)
        if ratio < 0.25:
            radius = 0.25 * min(radius, max(length, 1e-300))
        elif ratio > 0.75 and length > 0.8 * radius:
            radius *= 2
        tiny = 0 <= fall <= 1e-13 * max(1.0, abs(here.f))
        if there is not None and (ratio > 1e-4 or (tiny and there.size)):
            here = there
            if told(here):
                return here, True
        if tiny:
            break
    return here, False


def descend(
    leader: Leader, here: Point, tol: float, told: Callable[[Point], bool],
    good: Callable[[Point], bool],
) -> Point:  # fmt: skip
    """The leader's point, from one for the first barrier.

    It ends if `told`, which sees every step, or `good`, which sees the last one for a barrier, says
    so, or after the last barrier.
    """
    oracle, mu = leader.oracle, FIRST
    past: list[tuple[float, Vector]] = []
    before, late = np.inf, 0
    while True:
        last, inside = mu <= LAST * 1.001, leader.within(mu)
        goal = max(0.3 * tol, 0.0 if last else 0.1 * min(0.1, np.sqrt(mu)))
        here, stopped = stage(inside, here, mu, goal, LATE if last else EACH, told)
        late += last
        if stopped:
            return here
        if mu <= EARLY:
            here = _on_bounds(leader, here, mu, good)
            if good(here):
                return here
        if late > (MORE if oracle.bound_outside else 0):
            return here
        before = _penalised(oracle, here, before)
        past = [*past[-1:], (np.sqrt(mu), here.x)]
        mu = max(SHRINK * mu, LAST)
        there = _followed(leader.within(mu), here, past, mu)
        if there is None:
            return here
        here = there


def _on_bounds(leader: Leader, here: Point, mu: float, good: Callable[[Point], bool]) -> Point:
    """The point with the entries of x that are pushed to a bound nearby at it, if it is good."""
    free = leader.tangent(here.x, -here.slope, 1.1 * APART * np.sqrt(mu))
    x = np.where(free, here.x, np.where(here.slope > 0, leader.lo, leader.hi))
    there = None if np.all(free) else leader.point(x, here.at, mu)
    return here if there is None or not good(there) else there


def _followed(leader: Leader, here: Point, past: list, mu: float) -> Point | None:
    """The point for the next barrier, where the last two lead: x is about linear in sqrt(mu)."""
    there = leader.point(np.clip(here.x, leader.lo, leader.hi), here.at, mu)
    if len(past) < 2 or there is None or past[1][0] == np.sqrt(mu):
        return there
    (t0, x0), (t1, x1) = past
    x = np.clip(x1 + (np.sqrt(mu) - t1) / (t1 - t0) * (x1 - x0), leader.lo, leader.hi)
    ahead = leader.point(x, there.at, mu)
    return ahead if ahead is not None and ahead.f < there.f else there


def _outer_violation(here: Point) -> float:
    below, zero = here.rows
    return float(max(np.max(below, initial=0.0), np.max(np.abs(zero), initial=0.0)))


def _penalised(oracle: Oracle, here: Point, before: float) -> float:
    """Update the multipliers of the outer rows; how far they are off."""
    (below, zero), old = here.rows, oracle.outside
    off, rho = _outer_violation(here), float(old.penalty)
    oracle.outside = Outside(
        np.maximum(0.0, old.below + rho * below), old.zero + rho * zero,
        np.asarray(min(GROW * rho, STEEPEST) if off > before / GROW else rho),
    )  # fmt: skip
    return off
