"""A step of L-BFGS on x and on the flat directions of y: its direction, length and memory."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from . import lbfgs
from .inner import Inner, Memory
from .krylov import EPS, norm
from .lbfgs import Pairs
from .minimum import LOOSEST, minimise
from .oracle import Oracle, Values, Vector

FIRST_RADIUS = 0.1  # of the steps, relative to the unit of the variables
DECREASE = 1e-4  # the part of the predicted decrease that a step must achieve
SHORTEST = 1e-3  # part of a step below which the line search gives up
PROBE = 1e-6  # relative to the unit of y: step of the difference that measures f's curvature
MOST_ERROR = 0.3  # of f, relative to the decrease predicted: above it inner solves get tighter
LOOSER = 2.0  # accuracy of the first inner solve at a trial, in multiples of the run's
SHARPER = 4  # the most times an inner solve is repeated to bring that error down
TIGHTEST = 1e-6  # accuracy from which on they do not
TIE = 1e-9  # relative to x: the step that decides on which face of X x lies
STRAIGHT = 0.5  # a relative change of the gradient up to which the radius grows
GROWTH = 3.0  # of the radius after such a step

CURVED = 1e-10  # a pair is kept if the cosine of its step and change exceeds this

Two: TypeAlias = Float[np.ndarray, "2"]  # a number for x and one for y


class LargeState(NamedTuple):
    """Where a run stands.

    Attributes:
        x, y, v: the point and its adjoint.
        at: f, g and their gradients there.
        gradient: the reduced gradient, its x part and its part in flat directions of y.
        size: the length of its projection, x and y relative to their entries of `steepest`.
        steepest: the largest gradient of f met, with respect to x, also through y, and to y.
        pairs: the memory of L-BFGS.
        scales: the first guess of the inverse Hessian for x and for y.
        radius: the largest step of x and of y; zero while not known.
        accuracy: of the inner and adjoint solves.
        best: the smallest size met.
        low, mark, first: the lowest f, the lowest f at the last progress, and the first f.
        stalled: steps since the last progress.
        met: the step at which the tolerance was met, -1 before.
        memory: what the inner solves learnt.
        step, values, products: counts of steps and of calls of the oracle.
        status: whether and how the run ended.
    """

    x: Vector
    y: Vector
    v: Vector
    at: Values
    gradient: Vector
    size: np.float64
    steepest: Two
    pairs: Pairs
    scales: Two
    radius: Two
    accuracy: np.float64
    best: np.float64
    low: np.float64
    mark: np.float64
    first: np.float64
    stalled: np.int64
    met: np.int64
    memory: Memory
    step: np.int64
    values: np.int64
    products: np.int64
    status: np.int64

    @property
    def f(self) -> float:
        """The outer value."""
        return self.at.f

    @property
    def g(self) -> float:
        """The inner value."""
        return self.at.g

    @property
    def slope(self) -> float:
        """The length of the reduced gradient."""
        return norm(self.gradient)

    @property
    def shift(self) -> np.float64:
        """How far the run is from a solution, relatively."""
        return self.size


class Trial(NamedTuple):
    """A step that the line search accepted."""

    x: Vector
    y: Vector
    at: Values
    move: Vector  # of x, and of y before the inner solve
    share: float  # of the step that was proposed


def lengths(z: Vector, nx: int) -> Two:
    """The lengths of the x part and of the y part."""
    return np.array([norm(z[:nx]), norm(z[nx:])])


def with_units(oracle: Oracle, s: LargeState) -> LargeState:
    """The state with a radius and a scale for parts of the gradient that are no longer zero."""
    nx, slopes = s.x.size, lengths(s.gradient, s.x.size)
    scales, radius = s.scales.copy(), s.radius.copy()
    if slopes[0] > 0 and radius[0] == 0:
        # x's own length, else what changes f through y like y's own length, else f's
        through = norm(s.gradient[:nx] - s.at.f_x)
        unit = norm(s.x) or (norm(s.y) * norm(s.at.f_y) / through if through > 0 else 0.0)
        radius[0] = FIRST_RADIUS * (unit or abs(s.f) / slopes[0] or nx**0.5)
        scales[0] = radius[0] / slopes[0]
    if slopes[1] > 0 and radius[1] == 0:
        unit, flat = norm(s.y) or abs(s.f) / slopes[1] or s.y.size**0.5, s.gradient[nx:]
        radius[1] = FIRST_RADIUS * unit
        scales[1] = radius[1] / slopes[1]
        length = PROBE * unit / slopes[1]
        change = (oracle.values(s.x, s.y + length * flat).f_y - s.at.f_y) / length
        if flat @ change > 0:
            scales[1] = slopes[1] ** 2 / (flat @ change)
            radius[1] = max(radius[1], 2 * scales[1] * slopes[1])
    return s._replace(scales=scales, radius=radius)


def onto_faces(oracle: Oracle, inner: Inner, s: LargeState) -> Callable[[Vector], Vector]:
    """The projection of a direction onto the faces of X and Y that the gradient leaves open."""
    if oracle.free_x and oracle.free_y:
        return lambda u: u
    nx, slope = s.x.size, norm(s.gradient[: s.x.size])
    length = TIE * (norm(s.x) or float(s.radius[0])) / slope if slope > 0 else 0.0
    at, turn = s.x - length * s.gradient[:nx], inner.face(s.y, s.at).turn
    return lambda u: np.concatenate([oracle.turn_x(at, u[:nx]), turn(u[nx:])])


def direction(s: LargeState, onto: Callable[[Vector], Vector]) -> tuple[Vector, LargeState]:
    """A direction of descent no longer than the radius, and the state without useless pairs."""
    scale = np.repeat(s.scales, [s.x.size, s.y.size])
    along = onto(s.gradient)
    p = onto(lbfgs.descent(s.pairs, scale, along)) - scale * (s.gradient - along)
    if not s.gradient @ p < 0:
        p, s = -scale * s.gradient, s._replace(pairs=lbfgs.forget(s.pairs))
    p = p * np.repeat(s.radius > 0, [s.x.size, s.y.size])
    sizes = lengths(p, s.x.size)
    cut = np.min(s.radius[sizes > 0] / sizes[sizes > 0], initial=1.0)
    return cut * p, s


def is_vague(s: LargeState, p: Vector) -> bool:
    """Whether the inner solve may have changed f by more than a step along p would."""
    return hides(s.v, s.at, float(s.gradient @ p)) and float(s.accuracy) > TIGHTEST


def hides(v: Vector, at: Values, slope: float) -> bool:
    """Whether what an inner solve left may have changed f by more than a fall of this slope."""
    return abs(float(v @ at.g_y)) > MOST_ERROR * abs(slope)


def search(oracle: Oracle, inner: Inner, s: LargeState, p: Vector) -> Trial | None:
    """The longest share of a direction that decreases f at the inner minimum; None if none does.

    It compares f + <v, g_y>, in which the error of the inner solves is of second order.
    """
    nx, slope, share = s.x.size, float(s.gradient @ p), 1.0
    before = s.f + float(s.v @ s.at.g_y)
    negative = inner.negative
    while share > SHORTEST:
        inner.negative = negative  # a trial where g has no minimum is too long
        x = oracle.project_x(s.x + share * p[:nx])
        y = oracle.project_y(s.y + share * p[nx:])
        move = np.concatenate([x - s.x, y - s.y])
        at, after = oracle.inner_values(x, y), np.inf
        expected = float(s.gradient @ move)
        if at.finite:
            y, at, ok = minimise(inner, x, y, at, min(LOOSER * float(s.accuracy), LOOSEST))
            for _ in range(SHARPER):  # after a long step the error of f may exceed its decrease
                if not ok or not hides(s.v, at, expected):
                    break
                y, at, ok = minimise(inner, x, y, at, min(LOOSER * float(s.accuracy), LOOSEST))
            after = at.f + float(s.v @ at.g_y) if ok else np.inf
        if expected < 0 and after <= before + DECREASE * expected + 8 * EPS * abs(before):
            return Trial(x, y, at, move, share)
        parabola = -0.5 * slope * share / (after - before - slope * share)
        share *= min(max(parabola, 0.1), 0.5) if np.isfinite(after) else 0.1
    inner.negative = negative
    return None


def moved(
    inner: Inner,
    s: LargeState,
    p: Vector,
    trial: Trial,
    onto: Callable[[Vector], Vector],
) -> LargeState:
    """The state after a step, with what it taught about the curvature."""
    nx = s.x.size
    v, gradient = inner.adjoint(trial.x, trial.y, trial.at, s.v, float(s.accuracy))
    change, slopes = gradient - s.gradient, lengths(s.gradient, nx)
    sizes, radius = lengths(p, nx), s.radius
    if trial.share < 1:
        radius = np.maximum(2 * trial.share * sizes, 0.1 * radius)
    elif s.scales @ lengths(change, nx) ** 2 <= STRAIGHT**2 * (s.scales @ slopes**2):
        radius = np.where(sizes > 0.5 * radius, GROWTH * radius, radius)
    step, change, scales, pairs = onto(trial.move), onto(change), s.scales, s.pairs
    rise = np.array([step[:nx] @ change[:nx], step[nx:] @ change[nx:]])
    bounds = CURVED * lengths(step, nx) * lengths(change, nx)
    if rise.sum() > bounds.sum():
        pairs = lbfgs.remember(pairs, step, change)
        scales = np.where(rise > bounds, rise / lengths(change, nx) ** 2, scales)
    elif rise.sum() <= 0:
        scales = 4 * scales
    return s._replace(
        x=trial.x, y=trial.y, at=trial.at, v=v, gradient=gradient,
        pairs=pairs, scales=scales, radius=radius, step=s.step + 1,
    )  # fmt: skip
