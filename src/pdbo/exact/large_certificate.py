"""The exact certificate of a large problem, by products with second derivatives."""

import numpy as np

from .certificate import Facts
from .dense import LEAST
from .krylov import norm
from .large import STRICT_ADJOINT, STRICT_INNER, Large
from .oracle import Oracle, Vector

ASIDE = 1e-3  # relative to x: length of the step that measures the curvature of f
NEAR_MINIMUM = 1e-6  # the gradient of g at an inner minimum is below this part of that of f
ROUNDING = 1e-13  # relative to its terms: a gradient this small is rounding


def look_at_large(oracle: Oracle, x: Vector, y: Vector, tol: float) -> Facts | None:
    """The facts of a point; None if the inner problem has no smooth minimum near it.

    The step left to a solution is measured along the gradient alone. Other valleys of g are not
    looked for.
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
    left, curvature = _left(
        oracle, path, x, state.y, slope, norm(state.at.f_x) + norm(state.at.f_y)
    )
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
    oracle: Oracle, path: Large, x: Vector, y: Vector, slope: Vector, terms: float
) -> tuple[float, float]:
    """The Newton step along the gradient, relative to x and y, and whether f curves down there."""
    size, nx = norm(slope), oracle.nx
    if size <= ROUNDING * terms or size == 0:
        return 0.0, 0.0
    units = np.array([_unit(x), _unit(y)])
    sizes = np.array([norm(slope[:nx]), norm(slope[nx:])])
    step = ASIDE * float(np.min(units / np.maximum(sizes, 1e-300)))
    state = path.start(oracle.project_x(x - step * slope[:nx]), y - step * slope[nx:])
    if not path.sound(state):
        return 1.0, 0.0
    state = path.solved(state, STRICT_INNER, STRICT_ADJOINT, True)
    fall = float(slope @ (slope - state.gradient)) / step
    if not fall > 0:
        return 1.0, 0.0 if norm(state.gradient) > 2 * size else -1.0
    return float(np.max(size**2 / fall * sizes / units)), 0.0


def _unit(z: Vector) -> float:
    return max(norm(z), min(1.0, float(np.sqrt(z.size))))
