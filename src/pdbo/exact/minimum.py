"""The inner minimum of a large problem: Newton's method with conjugate residuals."""

import numpy as np

from .inner import ROUNDED, Face, Inner
from .krylov import Solved, conjugate_residuals, norm
from .oracle import Values, Vector

MOST_STEPS = 100  # of Newton's method
MOST_NEGATIVE = 40  # steps of negative curvature on the way to one minimum
LOOSEST = 0.3  # accuracy of the linear solves far from the minimum
DECREASE = 1e-4  # the part of the predicted decrease that a step must achieve
SHORTEST = 1e-12  # part of a step below which the line search gives up
RESTING = 1e-12  # relative to y: a Newton step this short starts from no slope of g
PROBES, LOOSE = 20, 1e-3  # products that look for negative curvature of g, and their accuracy
SLOW, MOST_SLOW = 0.9, 8  # so many steps in a row that shrink the residual no further end a solve


def minimise(
    inner: Inner, x: Vector, y: Vector, at: Values, accuracy: float, strict: bool = False
) -> tuple[Vector, Values, bool]:
    """Minimise g(x, .) from y.

    Returns y, the values there, and whether the residual fell to `accuracy` of the first, or to
    rounding. Unless `strict` a full step whose gradient came out as predicted will do.
    """
    before = inner.negative
    y, at, found = _minimised(inner, x, y, at, accuracy, strict)
    if found:  # what lay on the way to a minimum does not count
        inner.negative = before
    return y, inner.oracle.completed(x, y, at), found


def leave_saddle(inner: Inner, x: Vector, y: Vector, at: Values) -> Vector:
    """A lower point beside y if g has no slope there but curves down, else y itself.

    Newton's method would stay: its first direction is the slope. Of the ways down the one is taken
    that f falls along, if there is one.
    """
    face, oracle = inner.face(y, at), inner.oracle
    product = inner.product(x, y, face, False)
    if not at.finite:
        return y
    anywhere = face.turn(np.random.default_rng(0).standard_normal(y.size))
    size, curved = norm(anywhere), norm(product(anywhere)[1])
    if size == 0 or face.residual * size > RESTING * curved * (norm(y) or size):
        return y
    for aside in (-face.turn(oracle.completed(x, y, at).f_y), anywhere):
        found = conjugate_residuals(product, aside, None, LOOSE, PROBES, False)
        if not found.negative:
            continue
        down = found.residual / norm(found.residual)  # along it g curves down
        length = norm(y) or 1.0
        while length > SHORTEST * (norm(y) or 1.0):
            for side in (1.0, -1.0) if down @ aside >= 0 else (-1.0, 1.0):
                new = oracle.project_y(y + side * length * down)
                values = oracle.values(x, new)
                if values.finite and values.g < at.g - ROUNDED * abs(at.g):
                    return new
            length *= 0.25
    return y


def _minimised(
    inner: Inner, x: Vector, y: Vector, at: Values, accuracy: float, strict: bool
) -> tuple[Vector, Values, bool]:
    """See `minimise`; the values may be those of g alone."""
    inner.prepare(x, y, at)
    before = inner.negative
    first, slow = inner.face(y, at).residual, 0
    for _ in range(MOST_STEPS):
        face = inner.face(y, at)
        enough = max(accuracy * first, ROUNDED * inner.top * norm(y))
        if face.residual <= enough:
            return y, at, True
        target = 0.3 * enough / face.residual if strict else accuracy
        loose = min(LOOSEST, max(target, LOOSEST * inner.bent))
        direction, solved = _newton(inner, x, y, at, face, loose)
        share, new, values = _search(inner, x, y, at, direction)
        if share == 0 or inner.negative > before + MOST_NEGATIVE:
            return y, at, False
        after = inner.face(new, values).residual / face.residual
        whole = share == 1 and not solved.negative
        unforeseen = after - norm(solved.residual) / face.residual
        inner.bent = min(1.0, max(0.0, unforeseen)) if whole else 1.0
        missed = norm(face.turn(values.g_y) + solved.residual) / face.residual
        stuck = at.g - values.g <= ROUNDED * abs(at.g) and after > 0.5
        y, at = new, values
        if whole and not strict and max(loose, missed) <= accuracy and after <= 0.5:
            return y, at, True
        slow = slow + 1 if after > SLOW and not solved.negative else 0
        if stuck or slow == MOST_SLOW:
            return y, at, after * face.residual <= max(1e-6 * first, 1e4 * enough)
    return y, at, False


def _newton(
    inner: Inner, x: Vector, y: Vector, at: Values, face: Face, accuracy: float
) -> tuple[Vector, Solved]:
    """A Newton direction; with a set Y, a projected gradient step and Newton's from there."""
    free = inner.oracle.free_y
    if free:
        b = -at.g_y
    else:
        curved = inner.oracle.curved(x, y, face.move)
        b = face.turn(face.move / face.unit - curved)
    found = inner.solve((x, y), face, b, None, accuracy, False)
    if not free:
        return face.move + face.turn(found.v), found
    return found.v if found.v.any() else b / (inner.top or 1.0), found


def _search(
    inner: Inner, x: Vector, y: Vector, at: Values, direction: Vector
) -> tuple[float, Vector, Values]:
    """The part of a direction that decreases g, zero if none, and the point reached."""
    slope, share = min(0.0, float(at.g_y @ direction)), 1.0
    while share > SHORTEST:
        new = inner.oracle.project_y(y + share * direction)
        values = inner.oracle.inner_values(x, new)
        bound = at.g + DECREASE * share * slope + 0.5 * ROUNDED * abs(at.g)
        if values.finite and values.g <= bound:
            return share, new, values
        share *= 0.25
    return 0.0, y, at
