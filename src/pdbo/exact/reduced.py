"""f as a function of x and of the flat directions of y, to second order."""

from typing import NamedTuple

import numpy as np

from .dense import EPS, LEAST, Curvature, Face, Matrix, Spectrum, face_at, whole
from .oracle import Oracle, Values, Vector

NOTHING = 1e-24  # a share of f's second-order change this small is made of rounding alone
NEAR = 1e-9  # relative to x: a bound this close is reached
ASIDE = 1e-4  # relative to the gradient step of y: length of the differences of a projection


def sizes_of(z: Vector) -> Vector:
    """What steps are relative to: each entry, or the largest, at most one, if that is larger."""
    return np.maximum(np.abs(z), max(min(1.0, float(np.max(np.abs(z), initial=0.0))), LEAST))


def relative(step: Vector, z: Vector) -> float:
    """The largest step relative to its entry."""
    return float(np.max(np.abs(step) / np.maximum(np.abs(z), LEAST), initial=0.0))


class Reduced(NamedTuple):
    """f as a function of x and of the flat directions of y, at an inner minimum.

    Attributes:
        f: its value.
        v: the adjoint.
        gradient: the implicit gradient in x, then the gradient along the flat directions.
        terms: the sizes of the terms that it is made of, before they cancel.
        tangent: how (x, y) move with x and the flat directions, column by column.
        B: the second derivatives.
        open: the directions in which x and the flat part of y may move, column by column.
        spectrum: that of B along these.
    """

    f: float
    v: Vector
    gradient: Vector
    terms: Vector
    tangent: Matrix
    B: Matrix
    open: Matrix
    spectrum: Spectrum

    @property
    def noise(self) -> Vector:
        """How far the gradient may be off by rounding."""
        return 16 * EPS * self.terms

    @property
    def slope(self) -> float:
        """The size of the gradient along the open directions."""
        return float(np.linalg.norm(self.open.T @ self.gradient))


def reduce(oracle: Oracle, x: Vector, y: Vector, values: Values, inner: Curvature) -> Reduced:
    """First and second derivatives of f on the inner minima, computed once for a point."""
    known = (x, y, inner)
    return oracle.once("reduced", known, lambda: _reduced(oracle, x, y, values, inner))


def _reduced(oracle: Oracle, x: Vector, y: Vector, values: Values, inner: Curvature) -> Reduced:
    nx = oracle.nx
    v = -inner.solve(values.f_y)
    flat = inner.kernel
    follow = -inner.solve(inner.G.T)
    tangent = np.block([[np.eye(nx), np.zeros((nx, flat.shape[1]))], [follow, flat]])
    slope = np.concatenate([values.f_x + inner.G @ v, flat.T @ values.f_y])
    bent = oracle.bends(x, y, v, tangent.T)
    B = tangent.T @ bent
    if np.any(inner.face.bend):
        B = B + _bent_boundary(oracle, y, values, inner, v, tangent)
    B = (B + B.T) / 2
    sure = np.abs(tangent)
    sure[nx:, :nx] += inner.doubt(inner.G.T)
    doubt = 16 * EPS * np.sum(sure * np.abs(bent), axis=0)
    reach = np.concatenate([sizes_of(x), np.full(flat.shape[1], np.max(sizes_of(y)))])
    worth = np.abs(np.diag(B)) * reach**2
    doubt = np.maximum(doubt, NOTHING * np.max(worth) / reach**2)
    terms = np.abs(tangent[nx:].T) @ np.abs(values.f_y) + np.abs(B[:, :nx]) @ np.abs(x)
    terms[:nx] += np.abs(values.f_x) + np.abs(inner.G) @ np.abs(v)
    face = _with_flat(outer_face(oracle, x, slope[:nx]), flat.shape[1])
    Q = face.basis
    doubt = doubt if face.free else (Q.T**2) @ doubt
    spectrum = Spectrum(face.inside(B), doubt, 64 * EPS * len(B))
    return Reduced(values.f, v, slope, terms, tangent, B, Q, spectrum)


def _bent_boundary(
    oracle: Oracle, y: Vector, values: Values, inner: Curvature, v: Vector, tangent: Matrix
) -> Matrix:
    r"""What a round boundary of Y, such as a ball's, adds to the second derivatives of f.

    An inner minimum is a fixed point of the projected gradient step, $y = P(u)$ with
    $u = y - s\,g_y$. With its multiplier $\lambda$ the Lagrangian is
    $f + \langle\lambda, y - P(u)\rangle$, and $P''$ is the part that $f + \langle v, g_y\rangle$
    lacks. It is found by differences of the derivative of P.
    """
    nx, step, face = oracle.nx, inner.step, inner.face
    u = y - step * values.g_y
    inside = face.basis.T @ v
    off = values.f_y + inner.H @ v
    # along the face P shrinks by 1 / (1 + step bend)
    multiplier = (
        face.basis @ (inside * (1 / step + face.bend)) - off + face.basis @ (face.basis.T @ off)
    )
    moves = tangent[nx:] - step * (inner.G.T @ tangent[:nx] + inner.H @ tangent[nx:])
    length = ASIDE * float(np.linalg.norm(step * values.g_y))
    rows = []
    for move in moves.T:
        size = float(np.linalg.norm(move))
        aside = move * (length / size) if size > 0 else move
        ends = [oracle.turn_y(u + side * aside, multiplier) for side in (1.0, -1.0)]
        rows.append((ends[0] - ends[1]) * (size / (2 * length)) if length > 0 else 0.0 * move)
    return -np.stack(rows) @ moves


def _with_flat(face: Face, flat: int) -> Face:
    """The face of X, and so many flat directions of y."""
    if flat == 0:
        return face
    n, k = face.basis.shape
    basis = np.block([[face.basis, np.zeros((n, flat))], [np.zeros((flat, k)), np.eye(flat)]])
    return Face(basis, np.concatenate([face.bend, np.zeros(flat)]), face.free)


def outer_face(oracle: Oracle, x: Vector, slope: Vector) -> Face:
    """The face of X that x is on and that a descent would not leave."""
    if oracle.free_x:
        return whole(oracle.nx)
    if oracle.boxed_x:  # entry by entry: they may differ in their units
        steps = NEAR * np.maximum(np.abs(x), 1e-280) * np.sign(slope)
        return face_at(oracle.turn_x, x - steps, 1.0)
    size = float(np.linalg.norm(slope))
    far = max(float(np.max(np.abs(x), initial=0.0)), LEAST)
    step = NEAR * far / size if size > 0 else NEAR * far
    return face_at(oracle.turn_x, x - step * slope, step)


def energy(diagonal: Vector, slopes: Vector) -> float:
    """What the terms that cancel in a gradient would be worth, by second derivatives."""
    safe = np.where(diagonal > 0, diagonal, 1.0)
    return float(np.sum(np.where(diagonal > 0, slopes**2 / safe, 0.0)))
