"""The exact certificate: how far a point is from a solution, measured by the steps left to it.

At a solution no step is left: none of Newton's method on the inner problem, and none of Newton's
method on f along the inner minima. So both are computed, and compared with the sizes of x and y.
Where the inner minimum changes its face, f has a kink, and the step left is that of the pieces on
both sides. Searches from far away look for lower valleys of g.
"""

import itertools
from typing import NamedTuple

import numpy as np

from .dense import EPS, Curvature
from .kinks import falls_beside, step_left
from .newton import Minimum, minimise, newton_step, terms
from .oracle import Oracle, Values, Vector
from .reduced import Reduced, energy, reduce, sizes_of
from .small import KINKED, Move, newton

FAR_STARTS = 8  # starts of inner searches at each radius
FEW = 4  # up to so many entries of y there are three times as many
RADII = (1.0, 10.0, 100.0)  # in units of 2 + 2 rms(y), if Y is unbounded
JUMPS = (
    1e-4,
    1e-6,
    1e-8,
    1e-10,
)  # relative to y: how far from it the slope of g may jump
BURST = 12  # Newton steps of a search that has not met the valley of y at once


class Facts(NamedTuple):
    """What is known of a point.

    Attributes:
        inner_left: the step left to the inner minimum, relative to y.
        outer_left: the step left to a solution, relative to x and y.
        gap: how much lower g is elsewhere.
        gap_left: the root of that, relative to the range of g.
        tie_left: the step in x after which g would not be lower elsewhere, to first order.
        jump: whether the inner minimum jumps, right beside x, to where f is lower.
        slope: the size of the reduced gradient.
        residual: the size of the gradient of g on its face.
        curvature: the least curvature of f along the inner minima, relative to the largest.
        valleys: how many valleys of g were found.
        unique: whether the inner minimum is the only one nearby and g curves in all directions.
        radius: how far from y lower valleys were looked for; infinite if there can be none.
        adjoint: the size of the adjoint v, and g's curvature along it.
        gain: how far f could fall by the step left, relative to f.
        swing: how much f changes over the size of x, in all entries together: to second order, and
            to first order where a bound holds x.
        kinks: with a nonsmooth term, how many entries of y are open, and how far the others are
            from leaving their kinks.
        longest: the entry of x, and y after it, whose step is the longest; -1 if it is not known.
    """

    inner_left: float
    outer_left: float
    gap: float
    gap_left: float
    slope: float
    residual: float
    curvature: float
    valleys: int
    unique: bool
    radius: float
    adjoint: tuple[float, float]
    gain: float = np.inf
    swing: float = np.inf
    tie_left: float = 0.0
    jump: bool = False
    kinks: tuple[int, float] | None = None
    longest: int = -1

    @property
    def eps(self) -> float:
        """The largest of the entries, and of the curvature if f curves down."""
        return max(self.inner_left, self.outer_left, self.gap_left, -self.curvature)


def look(oracle: Oracle, x: Vector, y: Vector, tol: float, elsewhere: bool = True) -> Facts | None:
    """The facts of a point; None if the inner problem has no smooth minimum near it.

    `elsewhere` is whether to look for other valleys of g.
    """
    values = oracle.values(x, y)
    if not values.finite:
        return None
    outside = max(_apart(x, oracle.project_x(x)), _apart(y, oracle.project_y(y)))
    inner = Curvature.of(oracle, x, y, values)
    step = newton_step(oracle, x, y, values, inner)
    inner_steps = _left(step.shift, y, _units(inner, x, y, values))
    inner_left = max(_longest(inner_steps), outside)
    smooth = inner.spectrum.finite and not step.flat and not inner.spectrum.negative
    if not smooth or rough(oracle, x, y, values, inner):
        return None
    reduced = reduce(oracle, x, y, values, inner)
    move = newton(reduced, x, 1.0)
    outer_steps = _outer_left(oracle, x, y, reduced, move)
    outer_left = max(_longest(outer_steps), float(move.endless and not move.both))
    steps = np.maximum(outer_steps, np.append(np.zeros(oracle.nx), inner_steps))
    here = Minimum(y, values, inner, True, step.shift, 0)
    jump = False
    if inner_left <= tol and not oracle.free_y and oracle.nx <= KINKED:
        if outer_left > tol:
            outer_left = min(outer_left, step_left(oracle, x, here))
        elif falls_beside(oracle, x, here):
            outer_left, jump = 1.0, True
    others = _others(oracle, x, y, values, step.shift, inner_left <= tol, elsewhere)
    gap, gap_left, tie_left, valleys, radius = others
    half = 0.5 * abs(float(step.shift @ inner.H @ step.shift))
    everywhere = inner.everywhere
    return Facts(
        inner_left=inner_left,
        outer_left=outer_left,
        gap=max(gap, half),
        gap_left=gap_left,
        slope=reduced.slope,
        residual=float(np.linalg.norm(inner.face.basis.T @ values.g_y)),
        curvature=_curvature(reduced),
        valleys=valleys,
        unique=not np.any(everywhere.flat) and not everywhere.negative,
        radius=radius,
        adjoint=(float(np.linalg.norm(reduced.v)), float(reduced.v @ inner.H @ reduced.v)),
        gain=abs(move.slope) / max(abs(reduced.f), 1e-300),
        swing=_swing(reduced, sizes_of(x)),
        tie_left=tie_left,
        jump=jump,
        kinks=_kinks(oracle, x, y, values),
        longest=int(np.argmax(steps)) if max(inner_left, outer_left) > tol and not jump else -1,
    )


def _others(
    oracle: Oracle, x: Vector, y: Vector, values: Values, shift: Vector, met: bool, elsewhere: bool
) -> tuple[float, float, float, int, float]:
    """What `_elsewhere` returns, if there is a need to look; `met` is whether y is a minimum."""
    if met and oracle.quadratic_g:  # g is convex: there is no other valley
        return 0.0, 0.0, 0.0, 1, np.inf
    if met and elsewhere:
        return _elsewhere(oracle, x, y, values)
    if elsewhere and not met and not oracle.bounded_y:
        gap, left = _runaway(oracle, x, y, values, float(np.linalg.norm(shift)))
        return gap, left, 0.0, 1, 0.0
    return 0.0, 0.0, 0.0, 1, 0.0


def rough(oracle: Oracle, x: Vector, y: Vector, values: Values, inner: Curvature) -> bool:
    """Whether the gradient of g jumps at y, by abs or max: by as much at a hundredth the distance.

    Distances are relative to what the curvatures of g make of its slopes, in the units of each
    entry. The kinks of an inner term are known and do not count.
    """
    if oracle.has_term or not oracle.may_have_kinks:
        return False
    curved, slopes = np.abs(np.diag(inner.H)), terms(inner, x, np.abs(y), values)
    known = (curved > 0) & (slopes > 0)
    size = np.where(known, slopes / np.where(known, curved, 1.0), np.max(np.abs(y)) or 1.0)
    for pattern in (np.ones(y.size), (-1.0) ** np.arange(y.size)):
        far, *ends = [_sides(oracle, x, y, length * size * pattern) for length in (1.0, *JUMPS)]
        most = np.max(np.abs([*np.where(np.isfinite(far), far, 0.0), *ends[0]]), axis=0)
        jumps = [np.abs(right - left) for right, left in ends]
        for wide, narrow in itertools.pairwise(jumps):
            if np.any((narrow > 0.5 * wide) & (narrow > 1e4 * EPS * most)):
                return True
    return False


def _sides(oracle: Oracle, x: Vector, y: Vector, move: Vector) -> list[Vector]:
    """The gradients of g on both sides of y."""
    return [oracle.values(x, oracle.project_y(y + side * move)).g_y for side in (1, -1)]


def _kinks(oracle: Oracle, x: Vector, y: Vector, values: Values) -> tuple[int, float] | None:
    """How many entries of y are open, and how far the others are from leaving their kinks."""
    if not oracle.has_term:
        return None
    kinks = oracle.kinks(x)
    return int(np.sum(kinks.open(y))), kinks.room(y, values.g_y - kinks.slope(y))


def _swing(reduced: Reduced, size: Vector) -> float:
    """How much f changes over the size of x, by its curvature and by its slope against bounds."""
    curved = np.abs(np.diag(reduced.B))[: size.size] * size**2
    held = reduced.gradient - reduced.open @ (reduced.open.T @ reduced.gradient)
    sloped = np.where(np.abs(held) > reduced.noise, np.abs(held), 0.0)[: size.size] * size
    return float(np.sum(curved + sloped))


def _curvature(reduced: Reduced) -> float:
    """The least curvature of f relative to the largest, zero unless it is negative."""
    spectrum = reduced.spectrum
    return min(spectrum.least / spectrum.top, 0.0) if spectrum.top > 0 else 0.0


def _apart(z: Vector, nearest: Vector) -> float:
    away = np.abs(z - nearest)
    return float(
        np.max(np.where(away > 16 * EPS * np.abs(z), away, 0.0) / sizes_of(z), initial=0.0)
    )


class _Units(NamedTuple):
    """Curvatures by entry, and the energy that steps are compared with."""

    curvature: Vector
    energy: float


def _units(inner: Curvature, x: Vector, y: Vector, values: Values) -> _Units:
    diagonal = np.abs(np.diag(inner.H))
    return _Units(diagonal, energy(diagonal, terms(inner, x, np.abs(y), values)))


def _left(shift: Vector, z: Vector, units: _Units) -> Vector:
    """A step relative to z, entry by entry, or by energy where that is larger."""
    plain = np.abs(shift) / sizes_of(z)
    if not units.energy > 0:
        return plain
    return np.maximum(plain, np.sqrt(units.curvature / units.energy) * np.abs(shift))


def _longest(steps: Vector) -> float:
    return float(np.max(steps, initial=0.0))


def _outer_left(oracle: Oracle, x: Vector, y: Vector, reduced: Reduced, move: Move) -> Vector:
    """The steps left to a solution, in x and in the flat directions of y."""
    nx = oracle.nx
    diagonal = np.abs(np.diag(reduced.B))
    if move.both:  # a saddle: the curvature says so
        return np.zeros(nx + y.size)
    units = _Units(diagonal[:nx], energy(diagonal, reduced.terms))
    along_y = reduced.tangent[nx:, nx:] @ move.shift[nx:]
    return np.append(_left(move.shift[:nx], x, units), np.abs(along_y) / sizes_of(y))


def _elsewhere(
    oracle: Oracle, x: Vector, y: Vector, values: Values
) -> tuple[float, float, float, int, float]:
    """How much lower g is in other valleys, as it is and relatively, and the step in x to a tie.

    And the number of valleys, and the radius.
    """
    rise, lower, valleys, radius, tie = _range(oracle, x, y), 0.0, 1, 0.0, 0.0
    unbounded = not oracle.bounded_y
    base = 2 + 2 * float(np.sqrt(np.mean(y**2)))
    for factor in RADII if unbounded else RADII[:1]:
        for index in range(FAR_STARTS if y.size > FEW else 3 * FAR_STARTS):
            start = oracle.around_y(y, index, factor * base)
            seen = oracle.values(x, start)
            if not np.isfinite(seen.g):
                continue
            if factor == 1:
                rise = max(rise, abs(seen.g - values.g))
            if _same_valley(oracle, x, start, seen, y, values):
                continue
            found = minimise(oracle, x, start, rounds=BURST)
            if _same_valley(oracle, x, found.y, found.values, y, values):
                continue
            fall = values.g - found.values.g
            noise = 64 * EPS * max(abs(values.g), abs(found.values.g))
            elsewhere = np.linalg.norm(found.y - y) > 1e-6 * (np.linalg.norm(y) + base)
            valleys += bool(elsewhere and fall > -1e-6 * rise - noise)
            if np.isfinite(found.values.g) and fall > noise:
                lower = max(lower, fall)
                slope = float(np.linalg.norm(found.values.g_x - values.g_x))
                tie = max(tie, fall / max(slope, 1e-300))
        radius = factor * base
    left = float(np.sqrt(lower / max(rise, lower))) if lower > 0 else 0.0
    return lower, left, tie, valleys, radius


def _runaway(
    oracle: Oracle, x: Vector, y: Vector, values: Values, first: float
) -> tuple[float, float]:
    """How far g falls, and 1, if its minimum runs away from y; else 0 and 0.

    It does if Newton's method goes far, or takes steps that stay as long as the `first` one.
    """
    found = minimise(oracle, x, y)
    away = float(np.linalg.norm(found.y - y))
    endless = away > 10 * first and float(np.linalg.norm(found.shift)) > 0.1 * first
    if found.found or not (endless or away > 1 + 0.5 * float(np.linalg.norm(y))):
        return 0.0, 0.0
    return max(values.g - found.values.g, 0.0), 1.0


def _range(oracle: Oracle, x: Vector, y: Vector) -> float:
    """How much g changes around y at other x: at x itself it may be flat."""
    far_x, far_y = (2 + 2 * float(np.sqrt(np.mean(z**2))) for z in (x, y))
    changes = [0.0]
    for index in (1, 2, 3):
        other, aside = oracle.around_x(x, index, far_x), oracle.around_y(y, index, far_y)
        changes.append(abs(oracle.values(other, aside).g - oracle.values(other, y).g))
    return max(change for change in changes if np.isfinite(change))


def _same_valley(
    oracle: Oracle, x: Vector, start: Vector, seen: Values, y: Vector, values: Values
) -> bool:
    """Whether g falls all the way from a start to y, and ever less steeply."""
    way = y - start
    noise = 64 * EPS * max(abs(values.g), abs(seen.g))
    if not np.any(np.abs(way) > 1e-9 * np.abs(y) + 1e-300):
        return True
    if not (float(seen.g_y @ way) <= noise and seen.g >= values.g - noise):
        return False
    inside = [oracle.values(x, start + t * way).g for t in (0.25, 0.5, 0.75)]
    falls = np.diff([seen.g, *inside, values.g])
    return bool(np.all(falls <= noise) and np.all(np.diff(falls) >= -2 * noise))
