"""The last digits: Newton's method on the bilevel program with its active rows held at zero.

The engine ends a little inside: a relaxation t of complementarity leaves sqrt(t) where a row and
its multiplier are both zero. Here such a row and such a multiplier are both held at zero.
"""

import numpy as np

from .engine import Many
from .model import Model

STEPS = 6
ACTIVE = 1e-4  # a row this close to zero is held there
POSITIVE = 1e-3  # a multiplier above this is positive


def polish(model: Model, x: Many, y: Many, weights: np.ndarray) -> tuple[Many, Many, np.ndarray]:
    """A point nearby with the same active rows that is stationary, with its multipliers.

    It is where Newton's method leads, and not necessarily a solution.
    """
    n = model.sizes
    z = np.concatenate([x[0], y[0]])
    R, w = model.cut(model.rows(z[None])), model.cut(weights[None])
    c, C = np.flatnonzero(R.c[0] > -ACTIVE), np.flatnonzero(R.C[0] > -ACTIVE)
    m = np.concatenate([w.c[0][c], w.e[0]])
    zero = np.flatnonzero(w.c[0][c] <= POSITIVE)  # of these the multipliers are held at zero, too
    k, dual = len(m), np.zeros(n.y + len(c) + n.e + len(C) + n.E + len(zero))
    held = np.eye(k)[zero]
    for _ in range(STEPS):
        every = np.zeros((1, n.c))
        every[0, c] = m[: len(c)]
        b = model.join(0.0, 1.0, 0.0, 0.0, every, m[len(c) :], 1)
        v, on_c, on_e, on_C, on_E, _ = np.split(dual, np.cumsum([n.y, len(c), n.e, len(C), n.E]))
        rows_c, rows_C = np.zeros((1, n.c)), np.zeros((1, n.C))
        rows_c[0, c], rows_C[0, C] = on_c, on_C
        a = model.join(1.0, 0.0, rows_C, on_E, rows_c, on_e, 1)
        d = model.derive(z[None], a, b, v[None])
        R, J, DP = model.cut(d.R), model.cut(d.J), model.cut(d.DP)
        inner = np.concatenate([J.c[0][c], J.e[0]])  # gradients of the rows whose multipliers are m
        mixed = np.concatenate([DP.c[0][c], DP.e[0]])
        h = np.concatenate([d.st[0], R.c[0][c], R.e[0], R.C[0][C], R.E[0], m[zero]])
        by_z = np.concatenate([d.D[0], inner, J.C[0][C], J.E[0], np.zeros((len(zero), len(z)))])
        by_m = np.zeros((len(h), k))
        by_m[: n.y], by_m[len(h) - len(zero) :] = inner[:, n.x :].T, held
        A = np.concatenate([by_z, by_m], axis=1)
        H = np.block([[d.H[0], mixed.T], [mixed, np.zeros((k, k))]])
        system = np.block([[H, A.T], [A, np.zeros((len(h), len(h)))]])
        right = -np.concatenate([J.f[0], np.zeros(k), h])
        if not (np.all(np.isfinite(system)) and np.all(np.isfinite(right))):
            break
        step = np.linalg.lstsq(system, right, rcond=1e-12)[0]
        z, m, dual = z + step[: len(z)], m + step[len(z) : len(z) + k], step[len(z) + k :]
    every = np.zeros((1, n.c))
    every[0, c] = m[: len(c)]
    final = model.join(0.0, 1.0, 0.0, 0.0, every, m[len(c) :], 1)
    x = np.clip(z[None, : n.x], model.x_lo, model.x_hi)
    return x, z[None, n.x :], final[0]
