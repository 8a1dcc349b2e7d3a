"""The exact certificate of a large problem, by products with second derivatives."""

import numpy as np

from .certificate import Facts
from .dense import LEAST
from .krylov import norm
from .large import STRICT_ADJOINT, STRICT_INNER, Large
from .oracle import Oracle, Vector

ASIDE = 1e-3  # relative to x: length of the steps that measure the curvature of f
MOST_PRODUCTS = 40  # with the second derivatives of f along the inner minima
SEEN = 0.01  # part of the gradient, squared, at which these products explain it
FAR_OFF = 0.1  # relative to x and y: a step this long is long enough to say no
STRAIGHT = 1e-4  # relative: curvature this small may be that of the differences
NEAR_MINIMUM = 1e-6  # the gradient of g at an inner minimum is below this part of that of f
ROUNDING = 1e-13  # relative to its terms: a gradient this small is rounding


def look_at_large(oracle: Oracle, x: Vector, y: Vector, tol: float) -> Facts | None:
    """The facts of a point; None if the inner problem has no smooth minimum near it.

    Other valleys of g are not looked for.
    """
    values = oracle.values(x, y)
    if oracle.free_y and norm(values.g_y) > NEAR_MINIMUM * norm(values.f_y):
        return None  # the point of a first-order method, which holds only if it is relaxed
    path = Large(oracle, tol)
    state = path.start(x, y)
    if not path.sound(state):
        return None
    state = path.solved(state, STRICT_INNER, STRICT_ADJOINT, True)
    if path.inner.nonconvex:
        return None
    nx = oracle.nx
    slope = np.concatenate([path.downhill(state), state.gradient[nx:]])
    terms = norm(state.at.f_x) + norm(state.at.f_y)
    left, curvature = _left(oracle, path, x, state.y, slope, terms, tol)
    _, bent = oracle.product(x, state.y, state.v)
    return Facts(
        inner_left=norm(state.y - y) / max(norm(y), LEAST),
        outer_left=left,
        gap=max(values.g - state.g, 0.0),
        gap_left=0.0,
        slope=norm(slope),
        residual=norm(state.at.g_y)
        if oracle.free_y
        else path.inner.face(state.y, state.at).residual,
        curvature=curvature,
        valleys=1,
        unique=True,
        radius=0.0,
        adjoint=(norm(state.v), float(state.v @ bent)),
    )


def _left(
    oracle: Oracle, path: Large, x: Vector, y: Vector, slope: Vector, terms: float, tol: float
) -> tuple[float, float]:
    """The Newton step, relative to x and y, and -1 if f curves down on the way there, else 0.

    Conjugate gradients, with products by differences of the reduced gradient; its steps only grow.
    If they do not arrive, the step along the residual that is left is added, and what is not within
    the tolerance then is no solution.
    """
    nx = oracle.nx
    if norm(slope) <= ROUNDING * terms or not slope.any():
        return 0.0, 0.0
    units = np.concatenate([np.full(nx, _unit(x)), np.full(oracle.ny, _unit(y))])

    def product(p: Vector) -> Vector | None:
        step = ASIDE / norm(p)
        move = step * units * p
        state = path.start(oracle.project_x(x - move[:nx]), y - move[nx:])
        if not path.sound(state):
            return None
        state = path.solved(state, STRICT_INNER, STRICT_ADJOINT, True)
        there = np.concatenate([path.downhill(state), state.gradient[nx:]])
        return units * (slope - there) / step

    r = p = units * slope
    v, first = np.zeros_like(r), float(r @ r)
    rest, rr, along = first, first, np.inf
    for _ in range(MOST_PRODUCTS):
        curved = product(p)
        if curved is None:
            return 1.0, 0.0
        along, rr = float(p @ curved), float(r @ r)
        if along <= STRAIGHT * norm(p) * norm(curved):
            return 1.0, -1.0 if along < -STRAIGHT * norm(p) * norm(curved) else 0.0
        v, r = v + rr / along * p, r - rr / along * curved
        rest = float(r @ r)
        if _size(v, nx) > FAR_OFF or rest <= SEEN * first:
            break
        p = r + rest / rr * p
    if rest <= SEEN * first:
        return _size(v, nx), 0.0
    left = _size(v, nx) + norm(r) * (rr / along)
    return left if left <= tol else max(left, FAR_OFF), 0.0


def _size(v: Vector, nx: int) -> float:
    return max(norm(v[:nx]), norm(v[nx:]))


def _unit(z: Vector) -> float:
    return max(norm(z), min(1.0, float(np.sqrt(z.size))))
