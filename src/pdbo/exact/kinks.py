"""Steps across kinks: f at the inner minimum has one where the inner minimum changes its face.

On each face f is smooth, with an implicit gradient and second derivatives of its own: a piece. The
pieces met model f as their maximum; a step minimises that model. Where no step is left, zero lies
in the convex hull of the pieces' gradients: a kink may be a solution although f is not stationary
on either side.

Reference: Lukšan & Vlček, A bundle-Newton method for nonsmooth unconstrained minimization, 1998.
"""

from typing import NamedTuple

import numpy as np

from .dense import EPS, LEAST, Face, Matrix, Spectrum, Vector
from .newton import Minimum, minimise
from .oracle import Oracle
from .reduced import outer_face, reduce, relative

ROUNDS = 40  # the most inner solves from one point
LOOSE = 1e-3  # the least curvature of the model, against the largest
FARTHEST = 1.0  # relative to x: the longest step
ASIDE = 1e-7  # relative to x: how far aside the other pieces of a kink are looked for
SOME = 1e-3  # a step is taken if f falls by this share of what the model says
LEAP = 1e-2  # relative to y: an inner minimum this far away from that of an x beside has jumped


class Piece(NamedTuple):
    """f on a face of Y: its value, gradient and second derivatives in x at an inner minimum."""

    x: Vector
    minimum: Minimum
    slope: Vector
    B: Matrix

    @property
    def f(self) -> float:
        """Its value."""
        return self.minimum.values.f

    @property
    def face(self) -> Face:
        """The face it belongs to."""
        return self.minimum.inner.face

    def at(self, x: Vector) -> tuple[float, Vector]:
        """Value and gradient of the piece at x, to second order."""
        way = x - self.x
        bent = self.B @ way
        return self.f + float(self.slope @ way + 0.5 * way @ bent), self.slope + bent


def piece_at(oracle: Oracle, x: Vector, minimum: Minimum) -> Piece | None:
    """The piece of an inner minimum, if that is unique."""
    if not minimum.found or not minimum.values.finite or np.any(minimum.inner.spectrum.flat):
        return None
    minimum = minimum.refreshed(oracle, x)
    reduced = reduce(oracle, x, minimum.y, minimum.values, minimum.inner)
    return Piece(x, minimum, reduced.gradient, reduced.B)


class Step(NamedTuple):
    """A step to the minimum of the model.

    Attributes:
        move: the step.
        fall: how far f should fall.
        left: its length, relative to x entry by entry.
    """

    move: Vector
    fall: float
    left: float


def model_step(oracle: Oracle, here: Piece, pieces: list[Piece]) -> Step:
    """The step to the minimum of the maximum of the pieces from `here`, which is one of them."""
    x, f = here.x, here.f
    seen = [piece.at(x) for piece in pieces]
    noise = 64 * EPS * abs(f)
    # a piece above f is the lower of two: f follows the other side and has no ridge there
    kept = [k for k, (value, _) in enumerate(seen) if value <= f + noise or pieces[k] is here]
    below = np.array([max(f - seen[k][0], 0.0) for k in kept])
    slopes = np.stack([seen[k][1] for k in kept])
    shares = np.array([float(pieces[k] is here) for k in kept])
    Q = root = rows = np.zeros((0, 0))
    for _ in range(3):  # the curvature depends on the shares
        B = np.tensordot(shares, np.stack([pieces[k].B for k in kept]), 1)
        Q = outer_face(oracle, x, shares @ slopes).basis
        spectrum = Spectrum(Q.T @ B @ Q, EPS * float(np.max(np.abs(B), initial=0.0)))
        size = np.maximum(np.abs(spectrum.values), LOOSE * max(spectrum.top, 1e-300))
        root = spectrum.unit[:, None] * spectrum.vectors / np.sqrt(size)
        rows = slopes @ Q @ root
        shares = _shares(rows, below)
    mixed = shares @ rows
    move = -(Q @ (root @ mixed))
    return Step(move, float(mixed @ mixed + shares @ below), relative(move, x))


def _shares(rows: Matrix, below: Vector) -> Vector:
    """The convex combination that minimises half the square of its slope plus `below`."""
    size = np.max(np.abs(rows), initial=0.0) ** 2 + np.max(below)
    if size == 0 or len(rows) == 1:
        return np.full(len(rows), 1 / len(rows))
    M = (rows @ rows.T) / size + 1e-14 * np.eye(len(rows))
    R = np.linalg.cholesky(M).T
    from scipy.optimize import nnls  # slow to import, and most problems have no kinks

    weight = 1e3 * np.sqrt(np.trace(M))
    A = np.vstack([R, np.full((1, len(rows)), weight)])
    shares, _ = nnls(A, np.concatenate([-np.linalg.solve(R.T, below / size), [weight]]))
    used = shares > 1e-9 * np.max(shares)
    count = int(np.sum(used))
    system = np.ones((count + 1, count + 1))  # the same without penalty, on the planes in use
    system[:-1, :-1], system[-1, -1] = M[np.ix_(used, used)], 0.0
    right = np.concatenate([-below[used] / size, [1.0]])
    exact = np.linalg.lstsq(system, right, rcond=None)[0][:-1]
    if np.all(exact >= 0):
        shares = np.zeros_like(shares)
        shares[used] = exact
    return shares / max(float(np.sum(shares)), 1e-300)


def descend(
    oracle: Oracle, x: Vector, minimum: Minimum, short: float
) -> tuple[Vector, Minimum, float] | None:
    """Steps across kinks from x until none is left: the point, and the step left there.

    That step is relative to x, and zero if f should not fall by more than rounding; at most
    `short` means a solution. None if the inner minimum is not unique.
    """
    here = piece_at(oracle, x, minimum)
    if here is None:
        return None
    pieces, length = [here], 1.0
    step = model_step(oracle, here, pieces)
    for _ in range(ROUNDS):
        if step.fall <= 4 * EPS * abs(here.f):
            step = step._replace(left=0.0)
        if step.left <= short:
            break
        move = step.move / max(1.0, step.left / FARTHEST)
        target = oracle.project_x(here.x + length * move)
        there = piece_at(oracle, target, minimise(oracle, target, here.minimum.y))
        if there is None:
            length *= 0.25
            if length < 1e-6:
                break
            continue
        known = any(there.face.same(piece.face) for piece in pieces)
        pieces = [p for p in pieces if p is here or not there.face.same(p.face)]
        if there.f < here.f - SOME * length * step.fall:
            pieces = [p for p in pieces if not p.face.same(there.face)]
            here, length = there, min(1.0, 2 * length)
        else:
            length = 0.5 * length if known else 1.0
        pieces.append(there)
        step = model_step(oracle, here, pieces)
    return here.x, here.minimum, step.left


def step_left(oracle: Oracle, x: Vector, minimum: Minimum) -> float:
    """The step left at x, relative to it, if f may have a kink within `ASIDE` of x."""
    here = piece_at(oracle, x, minimum)
    if here is None:
        return np.inf
    pieces = [here]
    for aside in _aside(oracle, x):
        there = piece_at(oracle, aside, minimise(oracle, aside, minimum.y))
        if there is not None and not any(there.face.same(p.face) for p in pieces):
            pieces.append(there)
    for _ in range(x.size + 2):  # pieces that meet in a corner: look where the model says f falls
        step = model_step(oracle, here, _met(pieces, here))
        if step.left <= ASIDE:
            break
        aside = oracle.project_x(x + ASIDE / step.left * step.move)
        there = piece_at(oracle, aside, minimise(oracle, aside, minimum.y))
        if there is None or any(there.face.same(p.face) for p in pieces):
            break
        pieces.append(there)
    return model_step(oracle, here, _met(pieces, here)).left + ASIDE


def falls_beside(oracle: Oracle, x: Vector, minimum: Minimum) -> bool:
    """Whether the inner minimum jumps within `ASIDE` of x to where f is lower."""
    f, f_y = minimum.values.f, minimum.values.f_y
    for aside in _aside(oracle, x):
        there = minimise(oracle, aside, minimum.y)
        way = there.y - minimum.y
        if there.found and relative(way, minimum.y) > LEAP:
            noise = 64 * EPS * max(abs(f), abs(there.values.f))
            if f - there.values.f > SOME * abs(float(f_y @ way)) + noise:
                return True
    return False


def _aside(oracle: Oracle, x: Vector) -> list[Vector]:
    """The points next to x in each of its entries."""
    reach = ASIDE * np.maximum(np.abs(x), LEAST)
    return [oracle.project_x(x + s * reach * row) for s in (1.0, -1.0) for row in np.eye(x.size)]


def _met(pieces: list[Piece], here: Piece) -> list[Piece]:
    """The pieces with a kink within reach: what they differ by there is not held against them."""
    return [here, *(p._replace(minimum=p.minimum.with_f(_lowered(p, here))) for p in pieces[1:])]


def _lowered(piece: Piece, here: Piece) -> float:
    """The value that makes a piece meet f at `here` if a move within reach would."""
    value, slope = piece.at(here.x)
    reach = ASIDE * float(np.abs(slope - here.slope) @ np.maximum(np.abs(here.x), LEAST))
    return piece.f + (here.f - value if abs(here.f - value) <= 4 * reach else 0.0)
