"""Factors of symmetric sparse matrices whose entries stay where they are: ordered once.

Finding an elimination order takes longer than factoring a matrix in a known one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
from jaxtyping import Float
from scipy.sparse.linalg import splu

from .pattern import Sparse

Vector = Float[np.ndarray, " n"]
Solve = Callable[[Vector], Vector]

ROUNDING = 1e-13  # added to the diagonal of a definite matrix, relative
DENSE = 0.1  # a matrix with more entries than this part is factored as a dense one
SMALL = 100  # or if it has up to so many rows


class Order:
    """An elimination order, and how to put a matrix with the same entries into it."""

    def __init__(self, matrix: Sparse, order: np.ndarray):
        self.indices, self.indptr = matrix.indices.copy(), matrix.indptr.copy()
        self.order = np.argsort(order)
        numbered = sparse.csc_array(
            (np.arange(1.0, matrix.nnz + 1), matrix.indices, matrix.indptr), shape=matrix.shape
        )
        turned = sparse.csc_array(numbered[self.order][:, self.order])
        turned.sort_indices()
        self._turned, self._from = turned, turned.data.astype(int) - 1

    def fits(self, matrix: Sparse) -> bool:
        """Whether a matrix has its entries at the same places."""
        same = np.array_equal(matrix.indptr, self.indptr)
        return same and np.array_equal(matrix.indices, self.indices)

    def put(self, matrix: Sparse) -> Sparse:
        """The matrix in this order."""
        t = self._turned
        return sparse.csc_array((matrix.data[self._from], t.indices, t.indptr), shape=t.shape)


class Ordering:
    """Factors of matrices of one problem; the last order is used again where it fits."""

    def __init__(self) -> None:
        self._last: Order | None = None

    def symmetric(self, matrix: Sparse) -> tuple[Solve, Vector | None]:
        """Solutions with a symmetric matrix, and its pivots; None if it needed others."""
        matrix = sparse.csc_array(matrix)
        matrix.sort_indices()
        known = self._last
        if known is not None and known.fits(matrix):
            factor = _factored(known.put(matrix), "NATURAL")
            return _in_order(factor, known.order), _pivots(factor)
        factor = _factored(matrix, "MMD_AT_PLUS_A")
        self._last = Order(matrix, factor.perm_c)
        return factor.solve, _pivots(factor)

    def definite(self, matrix: Sparse) -> Solve:
        """Solutions with a definite matrix, or nearly so: rows may depend on each other."""
        matrix = matrix + sparse.diags_array(ROUNDING * matrix.diagonal())
        if matrix.shape[0] <= SMALL or matrix.nnz > DENSE * matrix.shape[0] ** 2:
            try:
                factor = scipy.linalg.cho_factor(matrix.toarray(), lower=True, check_finite=False)
            except scipy.linalg.LinAlgError:
                return self.symmetric(matrix)[0]
            return lambda b: scipy.linalg.cho_solve(factor, b, check_finite=False)
        return self.symmetric(matrix)[0]


def _factored(matrix: Sparse, order: str) -> Any:
    options = {"SymmetricMode": True}
    return splu(matrix, permc_spec=order, diag_pivot_thresh=0.0, options=options)


def _pivots(factor: Any) -> Vector | None:
    same = np.array_equal(factor.perm_r, factor.perm_c)
    return factor.U.diagonal() if same else None


def _in_order(factor: Any, order: np.ndarray) -> Solve:
    def solve(b: Vector) -> Vector:
        out = np.empty_like(b)
        out[order] = factor.solve(b[order])
        return out

    return solve
