"""The derivatives of the inner rows in the parts that a factorisation needs, put together once."""

import numpy as np
import scipy.sparse as sparse
from jaxtyping import Float

from .pattern import Sparse

Vector = Float[np.ndarray, " n"]


class RowMatrices:
    """The derivatives of the inner rows in y.

    Arguments:
        every: those of all rows, the rows <= 0 first.
        bound: which of the rows <= 0 have one entry.

    Attributes:
        J, E: those of the rows <= 0 and = 0.
        bounds: those of J with one entry.
        others: the rest of J, and E.
    """

    def __init__(self, every: Sparse, bound: np.ndarray):
        below = len(bound)
        self.J, self.E = every[:below], every[below:]
        self.bounds = self.J[bound]
        self.others = sparse.csr_array(sparse.vstack([self.J[~bound], self.E]))
        self.JT, self.ET = self.J.T, self.E.T
        self.boundsT, self.othersT = self.bounds.T, self.others.T
        self._squares = self.bounds.power(2).T.tocsr()
        self._base: tuple[Sparse, Sparse, np.ndarray] | None = None

    def weighed(self, weights: Vector) -> Vector:
        """The diagonal of bounds' diag(weights) bounds."""
        return self._squares @ weights

    def saddle(self, H: Sparse, top: Vector, low: Vector) -> Sparse:
        """[H + diag(top), others'; others, -diag(low)]."""
        known = self._base
        if known is None or known[0] is not H:
            known = (H, *self._assembled(H))
            self._base = known
        _, base, diagonal = known
        data = base.data.copy()
        data[diagonal] += np.concatenate([top, -low])
        return sparse.csc_array((data, base.indices, base.indptr), shape=base.shape)

    def _assembled(self, H: Sparse) -> tuple[Sparse, np.ndarray]:
        """It with a diagonal that is stored even where it is zero, and where that is."""
        rows: Sparse = sparse.coo_array(self.others)
        n, H = H.shape[0], sparse.coo_array(H)
        size = n + rows.shape[0]
        every = np.arange(size)
        base = sparse.csc_array(
            (
                np.concatenate([H.data, rows.data, rows.data, np.zeros(size)]),
                (
                    np.concatenate([H.row, n + rows.row, rows.col, every]),
                    np.concatenate([H.col, rows.col, n + rows.row, every]),
                ),
            ),
            shape=(size, size),
        )
        base.sort_indices()
        column = np.repeat(every, np.diff(base.indptr))
        return base, np.flatnonzero(base.indices == column)
