"""Dense linear algebra for small problems: faces, second derivatives and what they imply."""

import copy
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from .oracle import Matrix, Oracle, Values, Vector

EPS = float(np.finfo(np.float64).eps)
FLAT = 1e-10  # an eigenvalue this small against the largest is zero, in units that make diagonals 1
NEGATIVE = 1e-8  # one this far below zero, against the largest, is negative
LEAST = 1e-8  # what is smaller than this counts as zero where nothing else sets a scale
CLOSED = 1e-9  # a direction that the projection shrinks to this is not open


VectorOrColumns = TypeVar("VectorOrColumns", Vector, Matrix)


def _times(diagonal: Vector, b: VectorOrColumns) -> VectorOrColumns:
    """A diagonal matrix times a vector or a matrix."""
    return diagonal * b if b.ndim == 1 else diagonal[:, None] * b


class Face(NamedTuple):
    """The part of the boundary a point is on.

    Attributes:
        basis: orthonormal columns, the directions in which the point may move.
        bend: the curvature that a round boundary adds along them.
    """

    basis: Matrix
    bend: Vector
    free: bool = False  # whether nothing is in the way: the basis is the identity

    def inside(self, matrix: Matrix) -> Matrix:
        """A symmetric matrix along the open directions, with the curvature of the boundary."""
        if self.free:
            return matrix
        return self.basis.T @ matrix @ self.basis + np.diag(self.bend)

    def same(self, other: "Face") -> bool:
        """Whether two faces have the same directions."""
        return self.basis.shape == other.basis.shape and np.array_equal(self.basis, other.basis)


def face_at(turn: Callable[[Vector, Vector], Vector], at: Vector, step: float) -> Face:
    """The face that a projected gradient step of a length ends on; `at` is where it projects."""
    n = at.size
    shrink = np.stack([turn(at, row) for row in np.eye(n)], axis=1)
    if np.array_equal(shrink, np.diag(np.diag(shrink))):
        size, basis = np.diag(shrink).copy(), np.eye(n)
    else:
        size, basis = np.linalg.eigh((shrink + shrink.T) / 2)
    kept = size > CLOSED
    size = np.where(size > 1 - 1e-12, 1.0, size)[kept]
    return Face(basis[:, kept], (1 / size - 1) / step)


def whole(n: int) -> Face:
    """The face of a point with nothing in its way."""
    return Face(np.eye(n), np.zeros(n), True)


class Spectrum:
    """A symmetric matrix in units that make its diagonal one, and its eigenvalues there.

    Arguments:
        matrix: the matrix.
        noise: how large an entry of the diagonal may be by rounding alone.
        flat: an eigenvalue this small against the largest counts as zero.

    Attributes:
        matrix: the matrix, without what is noise.
        unit: the units.
        values, vectors: eigenvalues and eigenvectors.
        top: the largest eigenvalue in absolute value.
        flat: which eigenvalues count as zero.
    """

    def __init__(self, matrix: Matrix, noise: Vector | float = 0.0, flat: float = FLAT):
        diagonal = np.abs(np.diag(matrix))
        known = diagonal > noise
        self.matrix, self._flat = matrix * known * known[:, None], flat
        self._decompose(1 / np.sqrt(np.where(known, diagonal, 1.0)))

    def _decompose(self, unit: Vector) -> None:
        self.unit = unit
        scaled = self.matrix * unit * unit[:, None]
        scaled = (scaled + scaled.T) / 2
        self.finite = bool(np.all(np.isfinite(scaled)))
        if not self.finite:
            scaled = np.zeros_like(scaled)
        if scaled.size:
            self.values, self.vectors = np.linalg.eigh(scaled)
        else:
            self.values, self.vectors = np.zeros(0), scaled
        self.top = float(np.max(np.abs(self.values), initial=0.0))
        self.flat = np.abs(self.values) <= self._flat * self.top
        self.least = float(np.min(self.values, initial=np.inf))

    def in_units(self, unit: Vector) -> "Spectrum":
        """The same matrix in other units."""
        other = copy.copy(self)
        other._decompose(unit)
        return other

    @property
    def negative(self) -> bool:
        """Whether the matrix has a negative eigenvalue beyond rounding."""
        return self.least < -NEGATIVE * self.top

    # what follows takes a vector, or a matrix of columns

    def split(self, b: VectorOrColumns) -> VectorOrColumns:
        """The components of a gradient along the eigenvectors."""
        return self.vectors.T @ _times(self.unit, b)

    def join(self, c: VectorOrColumns) -> VectorOrColumns:
        """The direction with these components."""
        return _times(self.unit, self.vectors @ c)

    def split_noise(self, noise: VectorOrColumns) -> VectorOrColumns:
        """How far the components of a gradient may be off if its entries are by `noise`."""
        return np.abs(self.vectors.T) @ _times(self.unit, noise)

    def join_noise(self, noise: VectorOrColumns) -> VectorOrColumns:
        """How far a direction may be off if its components are by `noise`."""
        return _times(self.unit, np.abs(self.vectors) @ noise)

    def solve(self, b: VectorOrColumns) -> VectorOrColumns:
        """The least-norm solution in these units, without the flat directions."""
        inverse = np.where(self.flat, 0.0, 1 / np.where(self.flat, 1.0, self.values))
        return self.join(_times(inverse, self.split(b)))

    def kernel(self) -> Matrix:
        """The flat directions as columns of length one."""
        columns = self.unit[:, None] * self.vectors[:, self.flat]
        return columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)


class Curvature:
    """The second derivatives of g at a point, on a face of Y.

    Attributes:
        H, G: $g_{yy}$ and $g_{xy}$.
        smooth: $g_{yy}$ without the curvature of a nonsmooth term.
        face: the face.
        spectrum: that of g_yy on the face.
    """

    def __init__(self, oracle: Oracle, x: Vector, y: Vector, values: Values):
        self.G, H = oracle.products(x, y, np.eye(oracle.ny))
        self.H = oracle.once("H", (H,), lambda: (H + H.T) / 2)
        self.smooth = self.H
        if oracle.has_term:
            self.smooth = self.H - oracle.kinks(x).bend(y, np.arange(oracle.ny))
        self.step = _step_length(self.smooth, y, values.g_y)
        self.face = inner_face(oracle, x, y, values, self.step)
        known = (self.H, self.face.basis, self.face.bend)
        self.spectrum = oracle.once("spectrum", known, lambda: self.on(self.face))

    @classmethod
    def of(cls, oracle: Oracle, x: Vector, y: Vector, values: Values) -> "Curvature":
        """The same, computed once for a point."""
        return oracle.once("curvature", (x, y), lambda: cls(oracle, x, y, values))

    def on(self, face: Face) -> Spectrum:
        """The spectrum of g_yy on a face."""
        return Spectrum(face.inside(self.H))

    def at(self, oracle: Oracle, x: Vector, y: Vector, values: Values) -> "Curvature":
        """The same second derivatives on the face of a point nearby."""
        face = inner_face(oracle, x, y, values, self.step)
        if face.same(self.face):
            return self
        other = copy.copy(self)
        other.face, other.spectrum = face, self.on(face)
        return other

    @property
    def everywhere(self) -> Spectrum:
        """The spectrum of g_yy in all directions, those that the face closes included."""
        bend, closed = self.face.bend, len(self.H) - self.face.bend.size
        if closed == 1 and np.any(bend) and np.ptp(bend) <= 1e-6 * np.max(bend):
            return Spectrum(self.H + np.max(bend) * np.eye(len(self.H)))  # a ball bends all ways
        return Spectrum(self.H) if closed or np.any(bend) else self.spectrum

    def solve(self, b: VectorOrColumns) -> VectorOrColumns:
        """The inverse of g_yy on the face, without its flat directions, times b."""
        if self.face.free:
            return self.spectrum.solve(b)
        Q = self.face.basis
        return Q @ self.spectrum.solve(Q.T @ b)

    def doubt(self, b: VectorOrColumns) -> VectorOrColumns:
        """How large a solution could be if nothing cancelled: what rounding is relative to."""
        Q, spectrum = np.abs(self.face.basis), self.spectrum
        inverse = 1 / np.where(spectrum.flat, np.inf, np.abs(spectrum.values))
        noise = spectrum.split_noise(np.abs(b) if self.face.free else Q.T @ np.abs(b))
        doubt = spectrum.join_noise(_times(inverse, noise))
        return doubt if self.face.free else Q @ doubt  # type: ignore

    @property
    def kernel(self) -> Matrix:
        """The flat directions of g at the point: along them the inner minimum is not unique."""
        kernel = self.spectrum.kernel()
        return kernel if self.face.free else self.face.basis @ kernel


def _step_length(H: Matrix, y: Vector, slope: Vector) -> float:
    """The length of a projected gradient step on g, in units of its gradient."""
    top = np.max(np.sum(np.abs(H), axis=1), initial=0.0)
    if top > 0:
        return 1 / top
    size = float(np.linalg.norm(slope))
    return max(float(np.linalg.norm(y)), 1.0) / size if size > 0 else 1.0


def inner_face(oracle: Oracle, x: Vector, y: Vector, values: Values, step: float) -> Face:
    """The face of Y that y is on: where the boundary could go either way, the one f prefers."""
    if oracle.has_term:
        from .composite import open_face  # most problems have no term

        return open_face(oracle.kinks(x), y)
    if oracle.free_y:
        return whole(oracle.ny)
    if oracle.boxed_y:  # entry by entry: they may differ in their units
        tied = 1e-9 * np.maximum(np.abs(y), 1e-280) * np.sign(values.f_y)
        return face_at(oracle.turn_y, y - step * values.g_y - tied, step)
    size = float(np.linalg.norm(values.f_y))
    tie = 1e-9 * float(np.linalg.norm(y)) / size if size > 0 else 0.0
    return face_at(oracle.turn_y, y - step * values.g_y - tie * values.f_y, step)
