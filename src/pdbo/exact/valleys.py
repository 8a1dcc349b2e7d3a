"""Other valleys of f: short looks from elsewhere, and whole runs where they see one."""

import numpy as np

from .certificate import look
from .dense import EPS
from .newton import minimise
from .oracle import Oracle, Vector
from .small import HARDLY, Small, SmallState
from .status import CONVERGED, RUNNING

STARTS = 8  # places to look from
LOOKS = (0.25, 0.5, 0.75, 1.0)  # where f is evaluated on the way from the solution known
SAME = 1e-6  # relative to y and g: what differs by less is the same inner minimum
ODD = 30.0  # units of x this far from one are told from the curvatures of f
STEPS = 40  # the most steps of a run from elsewhere


def explore(oracle: Oracle, state: SmallState, tol: float) -> tuple[SmallState, SmallState | None]:
    """The lowest solution found from elsewhere, or the one given if there is none lower.

    And the lowest end of a run below that, if there is one: no certificate holds there.
    """
    best, lower, small = state, None, Small(oracle)
    values, products = oracle.calls.values, oracle.calls.products
    starts = []
    if oracle.has_term:
        from .composite import reopened  # most problems have no term

        starts += [(x, state.y) for x in reopened(oracle, state.x, state.y)]
    base = 2 * (_unit(state) + float(np.sqrt(np.mean(state.x**2))))
    for index in range(1, STARTS + 1):
        x = oracle.around_x(state.x, index, base)
        if not _falls_towards(oracle, x, state):
            starts.append((x, state.y))
        aside = _elsewhere(oracle, x, state.y, index)
        if aside is not None:
            starts.append((x, aside))
    for x, y in starts:
        other = _end(small, x, y)
        if other.status != CONVERGED or not _below(other, best):
            continue
        facts = look(oracle, other.x, other.y, tol)
        if facts is not None and facts.eps <= tol:
            best = other
        elif lower is None or other.f < lower.f:
            lower = other
    best = best._replace(
        step=state.step,
        values=state.values + (oracle.calls.values - values),
        products=state.products + (oracle.calls.products - products),
    )
    return best, lower if lower is not None and _below(lower, best) else None


def _unit(state: SmallState) -> float:
    """One, or how far x may move before its curvatures change f much, if x is in odd units."""
    size = max(abs(state.f), abs(state.first - state.f))
    far = float(np.sqrt(2 * size * np.mean(state.units**2)))
    return far if far > 0 and not 1 / ODD <= far <= ODD else 1.0


def _end(small: Small, x: Vector, y: Vector) -> SmallState:
    """Where a run from elsewhere ends."""
    other = small.start(x, y)
    for _ in range(STEPS):
        if other.status != RUNNING:
            break
        other = small.step(other)
    return other


def _below(other: SmallState, best: SmallState) -> bool:
    """Whether f is lower there by more than rounding."""
    hardly = max(1e-8 * (abs(best.f) + abs(other.f)), HARDLY * abs(other.first - other.f))
    return bool(other.f < best.f - hardly)


def _elsewhere(oracle: Oracle, x: Vector, y: Vector, index: int) -> Vector | None:
    """An inner minimum at x as low as the one that y leads to, and not the same; else None."""
    known = minimise(oracle, x, y)
    reach = 2 * (1 + float(np.sqrt(np.mean(y**2))))
    other = minimise(oracle, x, oracle.around_y(y, index, reach))
    if not (known.found and other.found):
        return None
    near = np.linalg.norm(other.y - known.y) <= SAME * (1 + np.linalg.norm(known.y))
    noise = SAME * (abs(known.values.g) + abs(other.values.g))
    return None if near or other.values.g > known.values.g + noise else other.y


def lowest(oracle: Oracle, x: Vector, y: Vector) -> Vector | None:
    """The lowest inner minimum at x met from around y, if it is lower than the one y leads to."""
    known = minimise(oracle, x, y)
    reach, best = 2 * (1 + float(np.sqrt(np.mean(y**2)))), known
    for index in range(1, STARTS + 1):
        other = minimise(oracle, x, oracle.around_y(y, index, reach))
        noise = SAME * (abs(best.values.g) + abs(other.values.g))
        if other.found and other.values.g < best.values.g - noise:
            best = other
    return None if best is known else best.y


def _falls_towards(oracle: Oracle, x: Vector, state: SmallState) -> bool:
    """Whether f at the inner minimum falls all the way from x to a solution, ever less steeply."""
    seen, y, inner = [float(state.f)], state.y, None
    for t in LOOKS:
        found = minimise(oracle, state.x + t * (x - state.x), y, inner)
        if not found.found:
            return False
        seen.append(found.values.f)
        y, inner = found.y, found.inner
    rises = np.diff(seen)
    noise = 64 * EPS * max(abs(v) for v in seen)
    return bool(np.all(rises >= -noise) and np.all(np.diff(rises) >= -2 * noise))
