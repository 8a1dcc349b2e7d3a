"""The features of a fit in units of their standard deviations, dense or sparse, in NumPy."""

from typing import Any

import numpy as np
import scipy.sparse

Matrix = Any
"""A dense array or a SciPy sparse matrix, which has no types."""


# Deviations below these parts of the size of a column, squared, are rounding: it is constant.
ROUNDING, SPARSE_ROUNDING = 1e-20, 1e-12


def moments(X: Matrix, weight: np.ndarray, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean (zero unless `centred`) and variance about it, in double precision."""
    share = weight.astype(np.float64) / weight.sum(dtype=np.float64)
    if scipy.sparse.issparse(X):
        mean = np.asarray(X.T @ share) if centred else np.zeros(X.shape[1])
        square = np.asarray(X.multiply(X).T @ share)
        variance, rounding = square - mean**2, SPARSE_ROUNDING
    else:
        mean = share @ X if centred else np.zeros(X.shape[1])
        square = share @ X.astype(np.float64) ** 2
        variance, rounding = share @ (X - mean) ** 2, ROUNDING
    return mean, np.where(variance > rounding * square, variance, 0)


class Design:
    """Columns with mean zero and standard deviation one; constant columns are zero.

    A sparse matrix stays sparse: only the columns in use are made dense.
    """

    def __init__(self, X: Matrix, weight: np.ndarray, centred: bool):
        self.mean, variance = moments(X, weight, centred)
        self.varies = variance > 0
        self.unit = np.sqrt(np.where(self.varies, variance, 1.0))
        self.shape: tuple[int, int] = X.shape
        self.sparse = scipy.sparse.issparse(X)
        self.scale = self.varies / self.unit
        if self.sparse:
            self.X: Matrix = scipy.sparse.csc_matrix(X, dtype=np.float64)
        else:
            self.X = np.asfortranarray((X - self.mean) * self.scale)

    def columns(self, part: np.ndarray) -> np.ndarray:
        """Some of the columns, dense."""
        if not self.sparse:
            return self.X[:, part]
        return (self.X[:, part].toarray() - self.mean[part]) * self.scale[part]

    def slopes(self, rows: np.ndarray) -> np.ndarray:
        """The transposed matrix times some columns."""
        if not self.sparse:
            return self.X.T @ rows
        centre = self.mean[:, None] * rows.sum(0)
        return (np.asarray(self.X.T @ rows) - centre) * self.scale[:, None]

    def scores(self, weights: np.ndarray) -> np.ndarray:
        """The matrix times weights of shape (features, outputs), few of which are not zero."""
        part = np.flatnonzero(np.any(weights != 0, axis=1))
        return self.columns(part) @ weights[part]

    def product(self, v: np.ndarray) -> np.ndarray:
        """The matrix times a vector."""
        if not self.sparse:
            return self.X @ v
        v = v * self.scale
        return np.asarray(self.X @ v) - self.mean @ v
