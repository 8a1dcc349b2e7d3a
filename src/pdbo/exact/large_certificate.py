"""The exact certificate of a large problem, by products with second derivatives."""

import numpy as np

from .certificate import Facts
from .dense import LEAST
from .krylov import conjugate_residuals, norm
from .large import Large
from .minimum import LOOSE, PROBES
from .oracle import Oracle, Values, Vector
from .outer import LargeState

ASIDE = 1e-3  # relative to x: length of the steps that measure the curvature of f
MOST_PRODUCTS = 40  # with the second derivatives of f along the inner minima
SEEN = 0.01  # part of the gradient, squared, at which these products explain it
LONG = 10.0  # times the tolerance: a step this long is long enough to say no
UNSURE = 0.1  # relative to x and y: the least step told if products do not explain the gradient
PRODUCT_INNER, PRODUCT_ADJOINT = 1e-4, 1e-4  # accuracies of solves that are only compared
STRAIGHT = 1e-4  # relative: curvature this small may be that of the differences
NEAR_MINIMUM = 1e-6  # the gradient of g at an inner minimum is below this part of that of f,
# or the best step along it is below this part of y
ROUNDING = 1e-13  # relative to its terms: a gradient this small is rounding


def look_at_large(
    path: Large, x: Vector, y: Vector, tol: float, v: Vector | None = None
) -> Facts | None:
    """The facts of a point; None if the inner problem has no smooth minimum near it.

    Other valleys of g are not looked for. `path` is the method on the problem, perhaps with what
    earlier solves have taught it, and `v` the adjoint that it found.
    """
    oracle, values = path.oracle, path.oracle.values(x, y)
    if oracle.free_y and not _near_minimum(oracle, values, x, y):
        return None  # the point of a first-order method, which holds only if it is relaxed
    state = path.at(x, y, v)
    if not path.sound(state) or path.inner.negative or _curves_down(path, state):
        return None
    nx = oracle.nx
    slope = np.concatenate([path.downhill(state), state.gradient[nx:]])
    terms = norm(state.at.f_x) + norm(state.at.f_y)
    left, curvature = _left(oracle, path, state, slope, terms, tol)
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


def look_where_stalled(oracle: Oracle, state: LargeState) -> Facts:
    """The facts of a point where a run ended far from a solution: enough to say no."""
    _, bent = oracle.product(state.x, state.y, state.v)
    slope = norm(state.at.g_y)
    curved = slope and norm(oracle.product(state.x, state.y, state.at.g_y / slope)[1])
    step = slope / curved if curved else 0.0
    return Facts(
        inner_left=step / max(norm(state.y), LEAST),
        outer_left=max(float(state.size), UNSURE),
        gap=0.5 * slope * step,
        gap_left=0.0,
        slope=norm(state.gradient),
        residual=slope,
        curvature=0.0,
        valleys=1,
        unique=True,
        radius=0.0,
        adjoint=(norm(state.v), float(state.v @ bent)),
    )


def _near_minimum(oracle: Oracle, values: Values, x: Vector, y: Vector) -> bool:
    """Whether a point can be an inner minimum up to rounding, by its gradient alone."""
    slope = norm(values.g_y)
    if slope <= NEAR_MINIMUM * norm(values.f_y):
        return True
    direction = values.g_y / slope
    _, bent = oracle.product(x, y, direction)
    return slope <= NEAR_MINIMUM * float(direction @ bent) * norm(y)


def _curves_down(path: Large, at: LargeState) -> bool:
    """Whether g has negative curvature in y, by products from a random direction.

    The adjoint sees only what the gradient of f does: nothing at a saddle that f shares.
    """
    face = path.inner.face(at.y, at.at)
    aside = face.turn(np.random.default_rng(0).standard_normal(at.y.size))
    product = path.inner.product(at.x, at.y, face, False)
    return conjugate_residuals(product, aside, None, LOOSE, PROBES, False).negative


def _left(
    oracle: Oracle, path: Large, at: LargeState, slope: Vector, terms: float, tol: float
) -> tuple[float, float]:
    """The Newton step, relative to x and y, and -1 if f curves down on the way there, else 0.

    Conjugate gradients, with products by differences of the reduced gradient; its steps only grow.
    If they do not arrive, the step along the residual that is left is added, and what is not within
    the tolerance then is no solution.
    """
    nx, x, y = oracle.nx, at.x, at.y
    if norm(slope) <= ROUNDING * terms or not slope.any():
        return 0.0, 0.0
    units = np.concatenate([np.full(nx, _unit(x)), np.full(oracle.ny, _unit(y))])

    def product(p: Vector) -> Vector | None:
        step = ASIDE / norm(p)
        move = step * units * p
        aside, follower = oracle.project_x(x - move[:nx]), oracle.project_y(y - move[nx:])
        seen = oracle.values(aside, follower)
        if not seen.finite:
            return None
        state = at._replace(x=aside, y=follower, at=seen)
        state = path.solved(state, PRODUCT_INNER, PRODUCT_ADJOINT, False)
        if path.inner.nonconvex:
            return None
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
        if _size(v, nx) > LONG * tol or rest <= SEEN * first:
            break
        p = r + rest / rr * p
    if rest <= SEEN * first:
        return _size(v, nx), 0.0
    left = _size(v, nx) + norm(r) * (rr / along)
    return left if left <= tol else max(left, UNSURE), 0.0


def _size(v: Vector, nx: int) -> float:
    return max(norm(v[:nx]), norm(v[nx:]))


def _unit(z: Vector) -> float:
    return max(norm(z), min(1.0, float(np.sqrt(z.size))))
