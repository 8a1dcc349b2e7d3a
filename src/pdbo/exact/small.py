"""The exact path for small problems: Newton's method on both levels.

At an inner minimum y let H = g_yy. Its inverse on the directions it curves in gives the implicit
gradient f_x + g_xy v with v = -H^+ f_y; along the directions it does not curve in, the inner
minimum is not unique and y may move with f. Both together are the tangent space of the constraint
g_y = 0. A Newton step of f + <v, g_y> on it, followed by an inner solve, converges quadratically to
a solution that is exact up to rounding: no slack, no penalty.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .dense import EPS, Curvature, Matrix, Spectrum
from .kinks import descend
from .newton import Minimum, minimise
from .oracle import Oracle, Values, Vector
from .reduced import Reduced, reduce, relative
from .status import CONVERGED, FAILED, NONCONVEX, RUNNING, STALLED

HALVINGS = 30  # the most times an outer step is shortened
SHORT = 1e-6  # relative to x: Newton steps this short should shrink, or they are rounding
HARDLY = 1e-10  # a fall of f by this part of its whole fall is hardly one ...
STILL = 5  # ... and so many in a row end a run: the minimum may be at infinity
LESSER = 1e-6  # of the largest curvature, in the units of the start: directions below ...
SEEN = 1e4 * EPS  # ... wait as long as f falls by more than this in the others, relatively
KINK = 1e-9  # relative to x: at a kink a step this short is none
CRAMPED = 0.1  # a step shortened to this may have met a kink
KINKED = 30  # the most entries of x for which kinks are looked for
POLISH = 3  # the most steps at the end that f cannot tell from none
CLOSE = 1e-3  # relative to x: the longest of those
NEXT_TO_NOTHING = 1e-4  # an entry this small beside the largest, by curvatures, has no size
PASSES = 12  # the most inner steps of negative curvature before the path gives up


class Move(NamedTuple):
    """A Newton step in x and the flat directions of y.

    Attributes:
        step: the step.
        slope: how f falls along it, to first order.
        shift: what of it, entry by entry in x, rounding does not explain.
        both: whether it may as well be taken backwards: a step away from a saddle.
        endless: whether f falls along a direction in which it does not curve.
    """

    step: Vector
    slope: float
    shift: Vector
    both: bool = False
    endless: bool = False


def newton(
    reduced: Reduced,
    x: Vector,
    reach: float,
    first: bool = True,
    tiny: bool = False,
    units: Vector | None = None,
) -> Move:
    """A Newton step, made a descent where f curves down and bounded where it hardly curves.

    If f curves up in all directions and no step had to be shortened, the first step is not
    bounded, and the others are at most ten times the largest entry of x (or one, if that is
    smaller); else they are at most `reach` times that, up to 1. Entries are compared in the units
    that make the curvatures one; if f curves down, in units of their own sizes. `tiny` is
    whether to take a step that only the gradient can tell from none, `units` those of x at the
    start, if there was one.
    """
    Q, spectrum, far = reduced.open, reduced.spectrum, _size(reduced, x)
    along = Q.T @ reduced.gradient
    main = _main(reduced, units) if spectrum.negative and units is not None else None
    if main is not None:
        along, spectrum = main
    elif spectrum.negative:  # its own size says more of x than a curvature that will change
        spectrum, far = spectrum.in_units(_own_units(reduced, x, far)), 1.0
    parts = spectrum.split(along)
    doubt = spectrum.split_noise(np.abs(Q.T) @ reduced.noise)
    curved = ~spectrum.flat
    size = np.where(curved, np.abs(spectrum.values), 0.0)
    slopes = np.where(curved | (np.abs(parts) > doubt), parts, 0.0)
    # a step that f cannot tell from none is none: towards a minimum at infinity there is no end
    safe = np.where(curved, size, 1.0)
    gain = np.where(curved, 0.5 * slopes**2 / safe, np.inf)
    slopes = np.where((gain > EPS * abs(reduced.f)) | (tiny & curved), slopes, 0.0)
    free = reach >= 1 and not spectrum.negative and not np.any(slopes[~curved])
    most = (np.inf if first else 10.0) if free else min(reach, 1.0)
    step = _bounded(Q, spectrum, slopes, size, most * far)
    known = np.abs(Q) @ spectrum.join_noise(np.where(curved, doubt / safe, 0.0))
    shift = np.where(np.abs(step) > known, step, 0.0)
    both = False
    if not np.any(shift) and spectrum.negative:
        step = shift = Q @ (spectrum.unit * spectrum.vectors[:, 0]) * min(reach, 1.0) * far
        both = True
    endless = bool(np.any(slopes[~curved]))
    return Move(step, float(reduced.gradient @ step), shift, both, endless)


def _main(reduced: Reduced, units: Vector) -> tuple[Vector, Spectrum] | None:
    """The slope and curvatures in the directions that matter to f, if they are all it takes.

    Beside a valley of minima, f curves along it by a share that vanishes with the distance, down or
    up, in the units that made its curvatures one at the start. As long as f does not curve down in
    the other directions and falls along them, only they count: the valley is reached first.
    """
    Q, spectrum = reduced.open, reduced.spectrum
    if reduced.gradient.size > units.size:  # the inner minimum is not unique
        return None
    worth = np.abs(np.diag(spectrum.matrix)) * (np.abs(Q.T) @ units) ** 2
    kept = worth > LESSER * np.max(worth)
    if np.all(kept):
        return None
    main = Spectrum(spectrum.matrix * kept * kept[:, None])
    slope = kept * (Q.T @ reduced.gradient)
    safe = np.where(main.flat, np.inf, main.values)
    gain = 0.5 * float(np.sum(main.split(slope) ** 2 / safe))
    return None if main.negative or gain <= SEEN * abs(reduced.f) else (slope, main)


def _size(reduced: Reduced, x: Vector) -> float:
    """The largest entry of x in the units of the curvatures, or one if that is larger."""
    Q, unit = reduced.open[: x.size], reduced.spectrum.unit
    return float(np.max(np.abs(Q.T @ x) / unit, initial=np.max(1 / unit, initial=0.0)))


def _own_units(reduced: Reduced, x: Vector, far: float) -> Vector:
    """The sizes of the entries of x, if they are not next to nothing in units of the curvatures."""
    Q, unit = reduced.open[: x.size], far * reduced.spectrum.unit
    own = np.abs(Q.T @ x)
    return np.where(own > NEXT_TO_NOTHING * unit, own, unit)


def _bounded(Q: Matrix, spectrum: Spectrum, slopes: Vector, size: Vector, bound: float) -> Vector:
    """The Newton step, with as much curvature added as brings it within a bound."""

    def parts(more: float) -> Vector:
        safe = np.where(size + more > 0, size + more, 1.0)
        return np.where(size + more > 0, slopes / safe, 0.0)

    def step(more: float) -> Vector:
        return -(Q @ spectrum.join(parts(more)))

    def fits(more: float) -> bool:
        loose = more == 0 and np.any(slopes[size == 0])
        long = np.max(np.abs(spectrum.vectors @ parts(more)), initial=0.0)
        return not loose and float(long) <= bound

    if fits(0.0):
        return step(0.0)
    low, high = 1e-30, 1e-30
    while not fits(high) and high < 1e30:
        low, high = high, 100 * high
    for _ in range(20):
        middle = np.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return step(high)


def shortest(move: Move, reduced: Reduced, units: Vector) -> Move:
    """The move without what it goes along directions in which f neither curves nor falls.

    Which part that is depends on the units of x: those of the start, so that a run does not drift
    along a valley of minima whose curvatures change on the way.
    """
    Q, spectrum = reduced.open, reduced.spectrum
    if not np.any(spectrum.flat) or move.both or move.endless or not np.any(move.shift):
        return move
    own = _units(reduced)
    own[: units.size] = units
    level = Q @ (spectrum.unit[:, None] * spectrum.vectors[:, spectrum.flat]) / own[:, None]
    along = np.linalg.lstsq(level, move.step / own, rcond=None)[0]
    step = move.step - own * (level @ along)
    return move._replace(step=step, shift=step, slope=float(reduced.gradient @ step))


def _units(reduced: Reduced) -> Vector:
    """Units of x and the flat directions in which the second derivatives are one, if not zero."""
    curved = np.abs(np.diag(reduced.B))
    return 1 / np.sqrt(np.where(curved > 0, curved, np.max(curved, initial=0.0) or 1.0))


def steepest(reduced: Reduced, x: Vector) -> Move:
    """A step down the gradient, for where a bound is in the way of Newton's."""
    size = float(np.max(np.abs(np.diag(reduced.B)), initial=0.0))
    slope = float(np.linalg.norm(reduced.gradient))
    far = max(float(np.max(np.abs(x), initial=0.0)), 1.0) / max(slope, 1e-300)
    step = -(1 / size if size > 0 else far) * reduced.gradient
    return Move(step, float(reduced.gradient @ step), step)


class SmallState(NamedTuple):
    """Where a run stands; see `Small`."""

    x: Float[np.ndarray, " nx"]
    y: Float[np.ndarray, " ny"]
    units: Float[np.ndarray, " nx"]  # those of x that the curvatures at the start suggest
    f: np.float64
    g: np.float64
    slope: np.float64  # the size of the reduced gradient on its face
    shift: np.float64  # the last Newton step, relative to x
    reach: np.float64  # how far to go where f does not curve, in units of x
    first: np.float64  # f at the start
    still: np.int64  # steps in a row that hardly changed f
    step: np.int64
    status: np.int64
    values: np.int64
    products: np.int64

    @classmethod
    def blank(cls, nx: int, ny: int) -> "SmallState":
        """A state of the right shapes."""
        zero, none = np.float64(0.0), np.int64(0)
        numbers = (zero, zero, zero, zero, zero, zero, none, none, none, none, none)
        return cls(np.zeros(nx), np.zeros(ny), np.zeros(nx), *numbers)


class Small:
    """Newton's method on a small problem: `start`, then `step` until the status says more.

    Arguments:
        oracle: the problem.
    """

    def __init__(self, oracle: Oracle):
        self.oracle = oracle

    def start(self, x: Vector, y: Vector) -> SmallState:
        """The state at the inner minimum that y leads to."""
        oracle = self.oracle
        before = (oracle.calls.values, oracle.calls.products)
        x, y = oracle.project_x(x), oracle.project_y(y)
        found = minimise(oracle, x, y)
        status = RUNNING if found.found else NONCONVEX if found.passes > PASSES else FAILED
        inf, one = np.float64(np.inf), np.float64(1.0)
        state = SmallState(
            x, found.y, np.zeros_like(x), np.float64(found.values.f), np.float64(found.values.g),
            inf, inf, one, np.float64(found.values.f), np.int64(0), np.int64(0), np.int64(status),
            np.int64(0), np.int64(0),
        )  # fmt: skip
        return self._count(state, before)

    def step(self, state: SmallState) -> SmallState:
        """One Newton step in x and the flat directions of y, and an inner solve."""
        if state.status != RUNNING:
            return state
        oracle = self.oracle
        before = (oracle.calls.values, oracle.calls.products)
        x, y = state.x, state.y
        values = oracle.values(x, y)
        inner = Curvature.of(oracle, x, y, values)
        reduced = reduce(oracle, x, y, values, inner)
        begun = state.step > 0
        units = state.units if begun else _units(reduced)[: x.size]
        move = newton(reduced, x, float(state.reach), not begun, units=units if begun else None)
        move = shortest(move, reduced, units)
        state = state._replace(slope=np.float64(reduced.slope), units=units)
        short = relative(move.shift[: oracle.nx], x)
        if not np.any(move.shift) or (state.shift <= SHORT and short > 0.5 * state.shift):
            state = self._polished(state, inner, reduced)
            return self._ended(state, CONVERGED, short, before)
        trial = self._search(x, y, values, inner, reduced, move)
        if trial is None and not oracle.free_x:
            down = steepest(reduced, x)
            trial = self._search(x, y, values, inner, reduced, down)
        if trial is None or trial[2] < CRAMPED:
            bent = None if short <= SHORT else self._across(x, y, values, inner, reduced)
            if bent is not None:
                # a kink ends the run only if f does not fall along its own gradient either
                gain = 0.0 if trial is None else values.f - trial[1].values.f
                nowhere = gain <= 1e-6 * abs(move.slope)
                ended = nowhere and bent[2] <= KINK
                if ended or trial is None or bent[1].values.f < trial[1].values.f:
                    return self._count(self._bent(state, *bent, nowhere), before)
        if trial is None:
            return self._ended(state, CONVERGED if short <= SHORT else STALLED, short, before)
        before_x, (x, found, length) = x, trial
        stuck = relative(x - before_x, before_x) <= KINK and length < CRAMPED
        if stuck and not values.f - found.values.f > 32 * EPS * abs(values.f):
            return self._ended(state, CONVERGED if short <= 10 * SHORT else STALLED, short, before)
        grown = min(4 * state.reach, 1e8) if length == 1 else max(length * state.reach, 1e-8)
        fall, whole = state.f - found.values.f, state.first - found.values.f
        still = state.still + 1 if fall <= HARDLY * whole and short > SHORT else np.int64(0)
        state = state._replace(
            x=x, y=found.y, f=np.float64(found.values.f), g=np.float64(found.values.g),
            shift=np.float64(short), reach=np.float64(grown), still=np.int64(still),
            step=state.step + 1, status=np.int64(STALLED if still >= STILL else RUNNING),
        )  # fmt: skip
        return self._count(state, before)

    def _polished(self, state: SmallState, inner: Curvature, reduced: Reduced) -> SmallState:
        """The state after steps too short for f to tell, as long as the gradient shrinks."""
        oracle, nx = self.oracle, self.oracle.nx
        for _ in range(POLISH):
            move = newton(reduced, state.x, 1.0, tiny=True)
            short = relative(move.shift[:nx], state.x)
            if not np.any(move.shift) or short > CLOSE or move.both:
                break
            x = oracle.project_x(state.x + move.step[:nx])
            start = oracle.project_y(state.y + reduced.tangent[nx:] @ move.step)
            found = minimise(oracle, x, start, inner)
            if not found.found or not found.values.finite:
                break
            inner = Curvature.of(oracle, x, found.y, found.values)
            slope, reduced = reduced.slope, reduce(oracle, x, found.y, found.values, inner)
            if not reduced.slope < 0.5 * slope:
                break
            state = state._replace(
                x=x, y=found.y, f=np.float64(found.values.f), g=np.float64(found.values.g),
                slope=np.float64(reduced.slope),
            )  # fmt: skip
        return state

    def _ended(
        self, state: SmallState, status: int, short: float, before: tuple[int, int]
    ) -> SmallState:
        """The state of a run that ends where it is."""
        ended = state._replace(status=np.int64(status), shift=np.float64(short))
        return self._count(ended, before)

    def _bent(
        self, state: SmallState, x: Vector, found: Minimum, left: float, nowhere: bool
    ) -> SmallState:
        """The state after steps across kinks."""
        status = RUNNING
        if nowhere and left <= KINK:
            status = CONVERGED
        elif nowhere and state.f - found.values.f <= 1e-9 * abs(state.f):
            status = STALLED
        return state._replace(
            x=x, y=found.y, f=np.float64(found.values.f), g=np.float64(found.values.g),
            shift=np.float64(np.inf if status == RUNNING else left), step=state.step + 1,
            status=np.int64(status),
        )  # fmt: skip

    def _across(
        self, x: Vector, y: Vector, values: Values, inner: Curvature, reduced: Reduced
    ) -> tuple[Vector, Minimum, float] | None:
        """Where steps across kinks lead to; None if the inner minimum is not unique."""
        nx = x.size
        if reduced.gradient.size > nx or self.oracle.free_y or nx > KINKED:
            return None
        here = Minimum(y, values, inner, True, np.zeros_like(y), 0)
        return descend(self.oracle, x, here, KINK)

    def _search(
        self, x: Vector, y: Vector, values: Values, inner: Curvature, reduced: Reduced, move: Move
    ) -> tuple[Vector, Minimum, float] | None:
        """The first of ever shorter steps that lowers f at the inner minimum; None if none does."""
        oracle, nx, length = self.oracle, x.size, 1.0
        noise = 32 * EPS * abs(values.f)
        for _ in range(HALVINGS):
            for sign in (1.0, -1.0) if move.both else (1.0,):
                step = sign * length * move.step
                target = oracle.project_x(x + step[:nx])
                actual = step.copy()
                actual[:nx] = target - x
                start = oracle.project_y(y + reduced.tangent[nx:] @ actual)
                if not oracle.values(target, start).finite:
                    continue
                found = minimise(oracle, target, start, inner)
                if not found.found or not found.values.finite:
                    continue
                slope = min(float(reduced.gradient @ actual), 0.0)
                fall = found.values.f - values.f
                if fall < 0 and fall <= 1e-4 * slope:
                    return target, found, length
                if not move.both and abs(slope) <= noise and fall <= noise:
                    return target, found, length
            length *= 0.3
        return None

    def _count(self, state: SmallState, before: tuple[int, int]) -> SmallState:
        calls = self.oracle.calls
        return state._replace(
            values=state.values + (calls.values - before[0]),
            products=state.products + (calls.products - before[1]),
        )
