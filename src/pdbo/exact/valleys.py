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
STEPS = 40  # the most steps of a run from elsewhere


def explore(oracle: Oracle, state: SmallState, tol: float) -> SmallState:
    """The lowest solution found from elsewhere, or the one given if there is none lower."""
    best, small = state, Small(oracle)
    if oracle.has_term:
        from .composite import reopened  # most problems have no term

        for x in reopened(oracle, best.x, best.y):
            best = _lower(small, x, best, tol)
    for index in range(1, STARTS + 1):
        x = oracle.around_x(best.x, index, 2 * (1 + float(np.sqrt(np.mean(best.x**2)))))
        if not _falls_towards(oracle, x, best):
            best = _lower(small, x, best, tol)
    calls = oracle.calls
    return best._replace(
        step=state.step,
        values=state.values + np.int64(calls.values),
        products=state.products + np.int64(calls.products),
    )


def _lower(small: Small, x: Vector, best: SmallState, tol: float) -> SmallState:
    """The solution that a run from x leads to, if it is lower than the best one known."""
    other = small.start(x, best.y)
    for _ in range(STEPS):
        if other.status != RUNNING:
            break
        other = small.step(other)
    hardly = max(1e-8 * (abs(best.f) + abs(other.f)), HARDLY * abs(other.first - other.f))
    if other.status == CONVERGED and other.f < best.f - hardly:
        facts = look(small.oracle, other.x, other.y, tol)
        if facts is not None and facts.eps <= tol:
            return other
    return best


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
