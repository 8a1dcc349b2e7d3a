r"""Systems $(Z^\top S Z + C)\,v = b$ of ridge regression with a diagonal C, whatever their size."""

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from ._design import Design

DENSE = 4000  # the most rows or features for which a matrix of their square is factorised
ACCURACY = 1e-10  # relative residual of conjugate gradients for larger ones


class Ridge:
    """One matrix: rows weighted by s, of sum one, and centred about their weighted mean."""

    def __init__(self, design: Design, s: np.ndarray, l2: np.ndarray, centred: bool):
        self.design, self.s, self.l2 = design, s, np.maximum(l2, 1e-300)
        self.mean = design.slopes(s[:, None])[:, 0] if centred else np.zeros(design.shape[1])
        rows, features = int(np.count_nonzero(s)), design.shape[1]
        self.kind = "primal" if features <= max(rows, 300) else "dual"
        if min(rows, features) > DENSE:
            self.kind = "products"
            return
        used = s > 0
        M = np.sqrt(s[used])[:, None] * (design.columns(np.arange(features))[used] - self.mean)
        if self.kind == "primal":
            square = M.T @ M
            square[np.diag_indices(features)] += self.l2
            self.unit = 1 / np.sqrt(np.diag(square))
            square *= self.unit * self.unit[:, None]
            square[np.diag_indices(features)] += 1e-15
            self.factor = scipy.linalg.cho_factor(square, check_finite=False)
        else:
            self.M = M
            # weaker penalties than this are none, and rounding would be all that is left
            self.l2 = self.l2 * max(1.0, 1e-10 * float(np.max((M / self.l2 * M).sum(1))))
            square = (M / self.l2) @ M.T
            square[np.diag_indices(rows)] += 1.0
            self.factor = scipy.linalg.cho_factor(square, check_finite=False)

    def solve(self, b: np.ndarray) -> np.ndarray:
        """The solution for a right side."""
        if self.kind == "primal":
            return self.unit * scipy.linalg.cho_solve(self.factor, self.unit * b)
        if self.kind == "dual":
            first = b / self.l2
            return first - self.M.T @ scipy.linalg.cho_solve(self.factor, self.M @ first) / self.l2
        diagonal = np.sqrt(1 + self.l2)

        def times(v: np.ndarray) -> np.ndarray:
            v = v.ravel() / diagonal
            rows = self.s * (self.design.product(v) - self.mean @ v)
            out = self.design.slopes(rows[:, None])[:, 0] - self.mean * rows.sum()
            return (out + self.l2 * v) / diagonal

        operator = scipy.sparse.linalg.LinearOperator((len(b), len(b)), matvec=times)  # type: ignore
        found, _ = scipy.sparse.linalg.cg(operator, b / diagonal, rtol=ACCURACY, maxiter=500)
        return found / diagonal
