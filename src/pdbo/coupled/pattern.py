r"""A sparse matrix of derivatives from products with it: which entries there are, and their values.

To find the entries, columns are thrown into buckets. In a bucket b the products with the vectors
$a_j$, $j a_j$ and $b_j$, $j \in b$, say for every row whether it has one entry there, which and how
large: the second over the first is then the whole number j, and the third agrees. What is known is
subtracted, and the rest is thrown into more buckets. Rows with too many entries are computed one by
one, by products with the transposed matrix.

To compute the values again elsewhere, columns that share no row have one colour, and one product
per colour is enough.

References: Curtis, Powell and Reid, On the estimation of sparse Jacobian matrices (1974); for the
buckets, Goodrich and Mitzenmacher, Invertible Bloom lookup tables (2011).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sparse
from jaxtyping import Float

BUCKETS = (8, 8, 32, 32, 128, 128)
FEW = 64  # rows that may be dense
NOTHING = 1e-10  # a number this small beside the largest of its row is zero
TOGETHER = 8  # products in one call
HOPELESS = 0.9  # of the rows left by more buckets: the others will not be found by more

Sparse: TypeAlias = Any  # SciPy has no types
Products = Callable[[Float[np.ndarray, "k n"]], Float[np.ndarray, "k m"]]


def products(call: Products, W: np.ndarray) -> np.ndarray:
    """Products with any number of vectors, a few in every call."""
    out = []
    for begin in range(0, len(W), TOGETHER):
        part = W[begin : begin + TOGETHER]
        full = np.concatenate([part, np.zeros((TOGETHER - len(part), W.shape[1]))])
        out.append(np.asarray(call(full))[: len(part)])
    return np.concatenate(out)


def entries(push: Products, pull: Products, shape: tuple[int, int]) -> Sparse | None:
    """The matrix whose products with vectors, and of whose transpose, are given.

    Rows with few entries are found first, then columns with few entries in the other rows. None if
    more than a few rows or columns are left.
    """
    m, n = shape
    known, left = _by_rows(push, sparse.csr_array(shape), np.arange(m), n)
    if len(left) > FEW:  # the other rows, by their columns
        keep = np.ones(m)
        keep[left] = 0.0
        known = sparse.csr_array(sparse.diags_array(keep) @ known)
        part, over = _by_rows(
            lambda P: pull(_placed(P, left, m)), sparse.csr_array((n, len(left))), np.arange(n),
            len(left),
        )  # fmt: skip
        if len(over) > FEW:
            return None
        if len(over):
            columns = products(push, _units(over, n))[:, left]
            part = _replaced(part, over, columns)
        spread = sparse.csr_array(
            (np.ones(len(left)), (left, np.arange(len(left)))), shape=(m, len(left))
        )
        known = known + spread @ part.T
    elif len(left):
        known = _replaced(known, left, products(pull, _units(left, m)))
    known = sparse.csr_array(known)
    known.eliminate_zeros()
    known.sort_indices()
    return known


def _by_rows(push: Products, known: Sparse, left: np.ndarray, n: int) -> tuple[Sparse, np.ndarray]:
    """The entries of rows that have few of them, and the other rows."""
    rng = np.random.default_rng(0)
    for buckets in BUCKETS:
        if len(left) <= FEW:
            break
        before = len(left)
        found, left = _sorted_out(push, known, left, rng.integers(buckets, size=n), buckets, rng)
        known = known + found
        if buckets > BUCKETS[0] and len(left) > HOPELESS * before:
            break
    return known, left


def _replaced(known: Sparse, places: np.ndarray, rows: np.ndarray) -> Sparse:
    """A matrix with some of its rows replaced by dense ones."""
    rows = np.where(np.abs(rows) > NOTHING * np.max(np.abs(rows), axis=1, keepdims=True), rows, 0.0)
    new = sparse.coo_array(rows)
    keep = np.ones(known.shape[0])
    keep[places] = 0.0
    new = sparse.csr_array((new.data, (places[new.row], new.col)), shape=known.shape)
    return sparse.csr_array(sparse.diags_array(keep) @ known) + new


def _placed(P: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros((len(P), size))
    out[:, places] = P
    return out


def _units(places: np.ndarray, size: int) -> np.ndarray:
    return _placed(np.eye(len(places)), places, size)


def _sorted_out(
    push: Products, known: Sparse, left: np.ndarray, bucket: np.ndarray, count: int,
    rng: np.random.Generator,
) -> tuple[Sparse, np.ndarray]:  # fmt: skip
    """Entries that are alone in their bucket, and the rows that have others."""
    n = len(bucket)
    a, b = rng.uniform(1, 2, (2, n))
    weights = np.stack([a, a * np.arange(1, n + 1), b])
    size = np.zeros(len(left))
    seen = np.zeros((count, 3, len(left)))
    part = known[left]
    for k in range(count):
        W = np.where(bucket == k, weights, 0.0)
        full = products(push, W)[:, left]
        seen[k] = full - (part @ W.T).T
        size = np.maximum(size, np.abs(full[0]))
    first, second, third = seen[:, 0], seen[:, 1], seen[:, 2]
    there = np.abs(first) > NOTHING * np.maximum(size, 1e-300)
    with np.errstate(all="ignore"):
        place = np.nan_to_num(second / first) - 1
    column = np.clip(np.rint(place), 0, n - 1).astype(int)
    value = first / a[column]
    alone = there & (np.abs(place - column) < 1e-3) & (bucket[column] == np.arange(count)[:, None])
    alone &= np.abs(third - value * b[column]) <= 1e-6 * np.abs(third)
    k, row = np.nonzero(alone)
    found = sparse.csr_array(
        (value[k, row], (left[row], column[k, row])), shape=(known.shape[0], n)
    )
    return found, left[np.any(there & ~alone, axis=0)]


class Pattern:
    """Where a matrix has entries, and how to compute their values with few products."""

    def __init__(self, matrix: Sparse):
        self.shape = matrix.shape
        full = np.diff(matrix.indptr) > 4 * FEW
        every = sparse.coo_array(matrix)
        dense = full[every.row]
        self.thin = every.row[~dense], every.col[~dense]
        self.wide = every.row[dense], every.col[dense]
        self.column_colour = _coloured(*self.thin, matrix.shape)
        self.row_colour = _coloured(self.wide[1], self.wide[0], matrix.shape[::-1])

    def at(self, push: Products, pull: Products) -> Sparse:
        """The matrix with these products."""
        (rows, columns), (wide_rows, wide_columns) = self.thin, self.wide
        parts = [
            _by_colour(push, self.column_colour, columns, rows),
            _by_colour(pull, self.row_colour, wide_rows, wide_columns),
        ]
        where = np.concatenate([rows, wide_rows]), np.concatenate([columns, wide_columns])
        return sparse.csr_array((np.concatenate(parts), where), shape=self.shape)


def _by_colour(call: Products, colour: np.ndarray, of: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Entries from one product per colour."""
    if not len(of):
        return np.zeros(0)
    masks = colour == np.arange(int(np.max(colour)) + 1)[:, None]
    return products(call, masks.astype(float))[colour[of], at]


def _coloured(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A colour for every column, different for columns that share a row; -1 for empty ones."""
    m, n = shape
    rng, colour = np.random.default_rng(1), np.full(n, -1)
    waiting = np.zeros(n, bool)
    waiting[columns] = True
    number = 0
    while np.any(waiting):
        free = np.ones(m, bool)  # rows without a column of this colour
        open_ = waiting.copy()
        while np.any(open_):
            priority = np.where(open_, rng.permutation(n) + 1, 0)
            top = np.zeros(m, int)
            np.maximum.at(top, rows, priority[columns])
            beaten = np.zeros(n, bool)
            beaten[columns[top[rows] > priority[columns]]] = True
            picked = open_ & ~beaten
            colour[picked] = number
            waiting &= ~picked
            free[rows[picked[columns]]] = False
            open_ &= waiting
            open_[columns[~free[rows]]] = False
        number += 1
    return colour
