"""Symmetric linear systems, perhaps singular, by products alone: conjugate residuals."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .oracle import Vector

EPS = float(np.finfo(np.float64).eps)
FLAT = 4 * EPS  # curvature below this part of the largest counts as zero
WEAK = 1e-10  # a residual along which the curvature is below this part lies in the null space
NEGATIVE = 1e-8  # curvature below minus this part of the largest counts as negative
NEGLIGIBLE = 1e-3  # a residual below this part of the accuracy asked for ends a solve at once
NULL = 1e-13  # times the size: eigenvalues below this part of the largest count as zero

Product = Callable[[Vector], tuple[Vector | float, Vector]]
"""w -> (C w, A w): the matrix A of the system, and a matrix C to multiply the solution with.

C w is zero if nothing is to be multiplied.
"""


def norm(u: Vector) -> float:
    """The Euclidean length."""
    return math.sqrt(u @ u)


class Solved(NamedTuple):
    """An approximate least-squares solution of A v = b.

    Attributes:
        v: the solution.
        residual: b - A v. If A is singular it tends to the part of b in the null space.
        cross: C v.
        null: whether the residual lies in the null space, nearly.
        top: an estimate of the largest eigenvalue, from below; zero if not known.
        products: how many were computed.
        negative: whether negative curvature ended the solve; v is what was found before.
    """

    v: Vector
    residual: Vector
    cross: Vector | float
    null: bool
    top: float
    products: int
    negative: bool


def conjugate_residuals(
    product: Product, b: Vector, start: Vector | None, accuracy: float, most: int, strict: bool
) -> Solved:
    """Solve A v = b for a symmetric A, nearly positive semi-definite, by conjugate residuals.

    The solve ends if the residual outside of the null space and its energy are small enough: the
    residual relative to b, or to the residual of the start unless `strict`; the energy relative
    to that of v. Without the energy test errors along weak directions would go unseen.

    Arguments:
        product: the products with A and C.
        b: the right-hand side.
        start: where v starts; zero if None.
        accuracy: what to reduce the residual to, relatively.
        most: the largest number of products.
        strict: whether the accuracy is relative to b although there is a start.
    """
    v, r, cross, top, count = np.zeros_like(b), b, 0.0, 0.0, 0
    if start is not None:
        cross, curved = product(start)
        v, r, count = start, b - curved, 1
        length = norm(start)
        top = norm(curved) / length if length > 0 else 0.0
    reference = norm(b) if start is None or strict else 0.0
    null = negative = False
    previous = 0.0
    p = Ap = b
    Cp: Vector | float = 0.0
    while count < most and r.any():
        Cr, Ar = product(r)
        count += 1
        rr, rAr, ArAr = float(r @ r), float(r @ Ar), float(Ar @ Ar)
        top = max(top, math.sqrt(ArAr / rr))
        null, negative = rAr <= WEAK * top * rr, rAr < -NEGATIVE * top * rr
        if not rAr > FLAT * top * rr:
            break
        outside = rAr / math.sqrt(ArAr)  # estimates the residual outside of the null space
        reference = reference or outside
        # the energy of the error is at least this if the residual has no part in the null space
        energy = 0.0 if null else rr * (rr / rAr)
        if outside <= accuracy * reference and energy <= accuracy**2 * abs(v @ (b - r)):
            break
        if previous == 0:
            p, Ap, Cp = r, Ar, Cr
        else:
            beta = rAr / previous
            p, Ap, Cp = r + beta * p, Ar + beta * Ap, Cr + beta * Cp
        previous = rAr
        alpha = rAr / float(Ap @ Ap)
        v, r, cross = v + alpha * p, r - alpha * Ap, cross + alpha * Cp
        length = norm(r)
        if length <= max(NEGLIGIBLE * accuracy * reference, FLAT * top * norm(v)):
            null = False
            break
    return Solved(v, r, cross, null and not negative, top, count, negative)


class Preconditioner:
    """Units and directions in which a dense A is nearly the identity, for matrices near A."""

    def __init__(self, A: np.ndarray):
        eigenvalues, self.basis = np.linalg.eigh(0.5 * (A + A.T))
        largest = float(np.max(np.abs(eigenvalues)))
        null = eigenvalues <= NULL * len(A) * largest
        self.scales = np.sqrt(np.where(null, largest if largest > 0 else 1.0, eigenvalues))

    def solve(
        self,
        product: Product,
        b: Vector,
        start: Vector | None,
        accuracy: float,
        most: int,
        strict: bool,
    ) -> Solved:
        """`conjugate_residuals` in these units and directions."""
        basis, scales = self.basis, self.scales

        def inside(u: Vector) -> tuple[Vector | float, Vector]:
            cross, curved = product(basis @ (u / scales))
            return cross, (curved @ basis) / scales

        begin = None if start is None else scales * (start @ basis)
        found = conjugate_residuals(inside, (b @ basis) / scales, begin, accuracy, most, strict)
        v, residual = basis @ (found.v / scales), basis @ (scales * found.residual)
        return found._replace(v=v, residual=residual, top=0.0)
