"""Newton's method on the inner problem of a small problem, to the last digit."""

from typing import NamedTuple

import numpy as np

from .dense import EPS, LEAST, Curvature
from .oracle import Oracle, Values, Vector

ROUNDS = 60  # the most Newton steps of one inner solve
HALVINGS = 40  # the most times a step is shortened
CHORD = 0.2  # old second derivatives are kept while they shrink the gradient to this
TRUSTED = 1e-6  # relative to y: a step this short may be rounding


class Minimum(NamedTuple):
    """Where an inner solve ended.

    Attributes:
        y, values: the point, and f and g there.
        inner: the second derivatives of g that were used last.
        found: whether it is a minimum up to rounding.
        shift: the Newton step left, entry by entry, beyond what rounding explains.
        passes: how often it met negative curvature.
    """

    y: Vector
    values: Values
    inner: Curvature
    found: bool
    shift: Vector
    passes: int

    def refreshed(self, oracle: Oracle, x: Vector) -> "Minimum":
        """The same with the second derivatives of g at this very point."""
        return self._replace(inner=Curvature.of(oracle, x, self.y, self.values))

    def with_f(self, f: float) -> "Minimum":
        """The same with another value of f."""
        return self._replace(values=self.values._replace(f=f))


class Step(NamedTuple):
    """A Newton step.

    Attributes:
        move: the step.
        shift: what of it, entry by entry, rounding does not explain.
        residual: the size of the gradient, in units that make second derivatives one.
        flat: whether the gradient has a part along flat directions.
    """

    move: Vector
    shift: Vector
    residual: float
    flat: bool


def minimise(
    oracle: Oracle, x: Vector, y: Vector, inner: Curvature | None = None, rounds: int = ROUNDS
) -> Minimum:
    """The minimum of g(x, .) on Y from y, with second derivatives from nearby to begin with."""
    if oracle.has_term:
        from . import composite  # most problems have no term

        return composite.minimise(oracle, x, y, inner, rounds)
    values = oracle.values(x, y)
    fresh, passes, reach = inner is None, 0, 1.0
    size = np.maximum(np.abs(y), LEAST)  # rounding is relative to where the solve came from
    if inner is None:
        inner = Curvature.of(oracle, x, y, values)
    else:
        inner = inner.at(oracle, x, y, values)
    step = _newton(oracle, x, y, values, inner, reach, size)
    for _ in range(rounds):
        if not (values.finite and inner.spectrum.finite):
            break
        if not np.any(step.shift):
            if not inner.spectrum.negative:
                return Minimum(y, values, inner, True, step.shift, passes)
            escape = _leave(oracle, x, y, values, inner)
            if escape is None:
                return Minimum(y, values, inner, False, step.shift, passes)
            (y, values), passes, fresh = escape, passes + 1, True
            inner = Curvature.of(oracle, x, y, values)
            step = _newton(oracle, x, y, values, inner, reach, size)
            continue
        passes += inner.spectrum.negative
        trial = _shorten(oracle, x, y, values, step, inner)
        if trial is None:
            if fresh:
                small = is_small(step.shift, size)
                return Minimum(y, values, inner, small, step.shift, passes)
            inner, fresh = Curvature.of(oracle, x, y, values), True
            step = _newton(oracle, x, y, values, inner, reach, size)
            continue
        before, (y, values, length) = step, trial
        reach = 4 * reach if step.flat and length == 1 else max(1.0, reach / 4)
        inner = inner.at(oracle, x, y, values)
        step = _newton(oracle, x, y, values, inner, reach, size)
        if step.residual > CHORD * before.residual or step.flat:
            stuck = fresh and step.residual > 0.5 * before.residual and length == 1
            if stuck and is_small(step.shift, size):
                return Minimum(y, values, inner, True, step.shift, passes)
            inner, fresh = Curvature.of(oracle, x, y, values), True
            step = _newton(oracle, x, y, values, inner, reach, size)
        else:
            fresh = False
    return Minimum(y, values, inner, False, step.shift, passes)


def newton_step(oracle: Oracle, x: Vector, y: Vector, values: Values, inner: Curvature) -> Step:
    """The Newton step on the inner problem at a point."""
    if oracle.has_term:
        from . import composite

        return composite.newton_step(oracle, x, y, values, inner)
    return _newton(oracle, x, y, values, inner, 1.0, np.maximum(np.abs(y), LEAST))


def is_small(shift: Vector, size: Vector) -> bool:
    """Whether a step may be rounding."""
    return bool(np.linalg.norm(shift) <= TRUSTED * np.linalg.norm(size))


def _newton(
    oracle: Oracle,
    x: Vector,
    y: Vector,
    values: Values,
    inner: Curvature,
    reach: float,
    size: Vector,
) -> Step:
    """The step on the face, and the projected gradient step that leaves it."""
    Q, spectrum = inner.face.basis, inner.spectrum
    slope = Q.T @ values.g_y
    size = np.maximum(np.abs(y), size)
    noise = rounding(inner, x, size, values)
    parts, doubt = spectrum.split(slope), spectrum.split_noise(np.abs(Q.T) @ noise)
    curved = ~spectrum.flat
    curve = np.where(curved, np.abs(spectrum.values), 1.0)
    along = np.where(curved, parts / curve, 0.0)
    steep = np.where(curved, 0.0, parts)
    flat = bool(np.any(np.abs(steep) > 100 * doubt))
    if flat:
        far = np.linalg.norm(spectrum.join(steep))
        along = along + steep * reach * max(float(np.linalg.norm(y)), 1.0) / far
    move = -(Q @ spectrum.join(along))
    known = np.abs(Q) @ spectrum.join_noise(np.where(curved, doubt / curve, 0.0))
    shift = np.where(np.abs(move) > known + 2 * EPS * size, move, 0.0)
    if not oracle.free_y:
        off = values.g_y - Q @ slope
        leave = oracle.project_y(y - inner.step * off) - y
        keep = np.abs(leave) > 8 * EPS * size + inner.step * noise
        move, shift = move + np.where(keep, leave, 0.0), shift + np.where(keep, leave, 0.0)
    return Step(move, shift, float(np.linalg.norm(parts)), flat)


def rounding(inner: Curvature, x: Vector, size: Vector, values: Values) -> Vector:
    """How far the gradient of g in y may be off by rounding, at a y of this size."""
    return 8 * EPS * terms(inner, x, size, values)


def terms(inner: Curvature, x: Vector, size: Vector, values: Values) -> Vector:
    """The sizes of the terms that the gradient of g in y is made of, before they cancel."""
    return np.abs(inner.H) @ size + np.abs(inner.G.T) @ np.abs(x) + np.abs(values.g_y)


def _shorten(
    oracle: Oracle, x: Vector, y: Vector, values: Values, step: Step, inner: Curvature
) -> tuple[Vector, Values, float] | None:
    """The first of ever shorter steps that lowers g, else a projected gradient step, else None."""
    slope = float(values.g_y @ step.move)
    noise = 16 * EPS * abs(values.g)
    for move in (step.move, -inner.step * values.g_y):
        length = 1.0
        for _ in range(HALVINGS):
            target = oracle.project_y(y + length * move)
            seen = oracle.values(x, target)
            if np.array_equal(target, y):
                break
            if seen.finite:
                fall = min(float(values.g_y @ (target - y)), 0.0)
                if seen.g <= values.g + 1e-4 * fall and seen.g < values.g:
                    return target, seen, length
                if seen.g <= values.g + noise and abs(fall) <= noise:
                    before, after = (
                        _residual(oracle, at, inner, there)
                        for at, there in ((y, values), (target, seen))
                    )
                    if after <= 0.9 * before:
                        return target, seen, length
            length *= 0.25
        if oracle.free_y and slope < 0:
            break
    return None


def _residual(oracle: Oracle, y: Vector, inner: Curvature, values: Values) -> float:
    """The size of the projected gradient step: what a bound holds back does not count."""
    if oracle.free_y:
        return float(np.linalg.norm(values.g_y))
    return float(np.linalg.norm(oracle.project_y(y - inner.step * values.g_y) - y))


def _leave(
    oracle: Oracle, x: Vector, y: Vector, values: Values, inner: Curvature
) -> tuple[Vector, Values] | None:
    """A lower point beside a maximum or saddle of g."""
    spectrum = inner.spectrum
    down = inner.face.basis @ (spectrum.unit * spectrum.vectors[:, 0])
    # far enough for g to fall by more than rounding, in units that make its curvature one
    seen_fall = np.sqrt(1e4 * EPS * abs(values.g) / -spectrum.least)
    length = max(max(float(np.linalg.norm(y)), LEAST) / np.linalg.norm(down), seen_fall)
    for _ in range(20):
        for sign in (1.0, -1.0):
            target = oracle.project_y(y + sign * length * down)
            seen = oracle.values(x, target)
            if seen.finite and seen.g < values.g - 16 * EPS * abs(values.g):
                return target, seen
        length /= 4
    return None
