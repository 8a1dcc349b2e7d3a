"""The inner problem with a nonsmooth term: proximal Newton steps, to the last digit.

Each step minimises the second-order model of g plus the term itself. On the entries that are open,
neither at a kink nor at a bound, g plus the term is smooth, and derivatives of the inner minimum
are those on this face. Where an entry opens or closes, f has a kink.

Reference: Lee, Sun & Saunders, Proximal Newton-type methods for minimizing composite functions,
2014; derivatives on the support: Bertrand et al., Implicit differentiation for fast hyperparameter
selection in non-smooth convex learning, 2022.
"""

import copy

import numpy as np

from .dense import EPS, LEAST, Curvature, Face, Matrix
from .newton import CHORD, Minimum, Step, is_small, rounding
from .oracle import Oracle, Values, Vector
from .prox import Kinks, minimise_quadratic

OPENED = 0.5  # weights that are this part of what would close an entry open it
ALONE = 8  # the most entries and groups that are opened one by one
FAINT = 1e-3  # of the largest slope at a kink: smaller ones are not worth opening
SHORTENED = 0.25  # a step that does not lower g enough is multiplied by this ...
SHORTEST = 1e-8  # ... down to here


def open_face(kinks: Kinks, y: Vector) -> Face:
    """The face that y is on: its open entries."""
    basis = np.eye(y.size)[:, kinks.open(y)]
    return Face(basis, np.zeros(basis.shape[1]))


def minimise(oracle: Oracle, x: Vector, y: Vector, inner: Curvature | None, rounds: int) -> Minimum:
    """The minimum of g(x, .) plus the term from y."""
    kinks = oracle.kinks(x)
    y = kinks.clip(y)
    values, fresh = oracle.values(x, y), inner is None
    if not (values.finite and np.all(np.isfinite(kinks.l1)) and np.all(np.isfinite(kinks.group))):
        blank = Curvature(oracle, x, y, values) if inner is None else inner
        return Minimum(y, values, blank, False, np.full(y.size, np.inf), 0)
    inner = Curvature(oracle, x, y, values) if inner is None else _moved(inner, kinks, y)
    step = newton_step(oracle, x, y, values, inner)
    for _ in range(rounds):
        if not (values.finite and inner.spectrum.finite) or not np.any(step.shift):
            break
        trial = _search(oracle, x, y, values, kinks, step.move)
        if trial is None:
            if fresh:
                found = is_small(step.shift, np.maximum(np.abs(y), LEAST))
                return Minimum(y, values, inner, found, step.shift, 0)
            inner, fresh = Curvature(oracle, x, y, values), True
            step = newton_step(oracle, x, y, values, inner)
            continue
        before, (y, values) = step, trial
        inner, fresh = _moved(inner, kinks, y), False
        step = newton_step(oracle, x, y, values, inner)
        if np.any(step.shift) and step.residual > CHORD * before.residual:
            inner, fresh = Curvature(oracle, x, y, values), True
            step = newton_step(oracle, x, y, values, inner)
    found = values.finite and not np.any(step.shift) and not inner.spectrum.negative
    return Minimum(y, values, inner, bool(found), step.shift, 0)


def newton_step(oracle: Oracle, x: Vector, y: Vector, values: Values, inner: Curvature) -> Step:
    """The proximal Newton step at a point."""
    kinks = oracle.kinks(x)
    H, size = _convex(inner.smooth), np.maximum(np.abs(y), LEAST)
    smooth = values.g_y - kinks.slope(y)
    move = minimise_quadratic(H, smooth - H @ y, kinks, y) - y
    noise = rounding(inner, x, size, values) + 8 * EPS * kinks.l1
    Q, spectrum = inner.face.basis, inner.spectrum
    doubt = spectrum.split_noise(np.abs(Q.T) @ noise)
    curve = np.where(spectrum.flat, np.inf, np.abs(spectrum.values))
    known = np.abs(Q) @ spectrum.join_noise(doubt / curve)
    shift = np.where(kinks.open(y) & (np.abs(move) > known + 2 * EPS * size), move, 0.0)
    length = np.full(y.size, inner.step)
    leave = np.abs(kinks.leave(y, smooth, length)) > 8 * EPS * size + inner.step * noise
    if not np.any(leave) and np.any(move * ~kinks.open(y)):  # rounding opens an entry
        move = np.where(kinks.open(y), move, 0.0)
    shift = np.where(leave, move, shift)
    slope = Q.T @ values.g_y
    parts = spectrum.split(slope)
    flat = bool(np.any(np.abs(np.where(spectrum.flat, parts, 0.0)) > 100 * doubt))
    residual = float(np.linalg.norm(parts)) + float(np.linalg.norm(move * leave) / inner.step)
    return Step(move, shift, residual, flat)


def _convex(H: Matrix) -> Matrix:
    """A positive semidefinite matrix: the same, or with its curvatures made positive."""
    diagonal = np.abs(np.diag(H))
    unit = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh(H / unit / unit[:, None])
    if values[0] >= -1e-10 * max(float(values[-1]), 0.0):
        return H
    return (vectors * np.abs(values)) @ vectors.T * unit * unit[:, None]


def _moved(inner: Curvature, kinks: Kinks, y: Vector) -> Curvature:
    """The second derivatives of g from nearby, with those of the term at y, on the face of y."""
    other = copy.copy(inner)
    every = np.arange(y.size)
    other.H = inner.smooth + kinks.bend(y, every)
    other.face = open_face(kinks, y)
    other.spectrum = other.on(other.face)
    return other


def _search(
    oracle: Oracle, x: Vector, y: Vector, values: Values, kinks: Kinks, move: Vector
) -> tuple[Vector, Values] | None:
    """The first of ever shorter steps that lowers g plus the term; None if none does."""
    smooth = values.g_y - kinks.slope(y)
    fall = float(smooth @ move) + kinks.value(y + move) - kinks.value(y)
    noise, length = 16 * EPS * (abs(values.g) + kinks.value(y)), 1.0
    while length > SHORTEST and np.any(move):
        target = kinks.clip(y + length * move)
        seen = oracle.values(x, target)
        if seen.finite and seen.g <= values.g + 1e-4 * length * min(fall, 0.0) + noise:
            return target, seen
        length *= SHORTENED
    return None


def reopened(oracle: Oracle, x: Vector, y: Vector) -> list[Vector]:
    """Points at which closed entries and groups are open: all at once, and one by one.

    Where an entry is closed f does not depend on its weight: a plateau, which may be high.
    """
    kinks, values = oracle.kinks(x), oracle.values(x, y)
    slope = values.g_y - kinks.slope(y)
    pull = np.concatenate(kinks.pulls(y, slope))
    order = np.argsort(-pull)
    order = order[pull[order] > FAINT * max(float(np.max(pull, initial=0.0)), 1e-300)]
    chosen = [order, *(order[k : k + 1] for k in range(min(len(order), ALONE)))]
    targets = [_lowered(oracle, x, rows, OPENED * pull[rows]) for rows in chosen if len(rows)]
    return [target for target in targets if target is not None]


def _lowered(oracle: Oracle, x: Vector, rows: np.ndarray, goal: Vector) -> Vector | None:
    """An x at which some weights are near a goal, by Newton's method; None if it fails."""
    for _ in range(20):
        weights, slopes = oracle.weights(x)
        over = weights[rows] - goal
        if np.all(np.abs(over) <= 0.1 * goal):
            break
        move = np.linalg.lstsq(slopes[rows], -over, rcond=1e-8)[0]
        after = oracle.project_x(x + move)
        if not np.all(np.isfinite(after)) or np.array_equal(after, x):
            return None
        x = after
    return x
