r"""The two nonlinear programs: the inner problem at an x, and the bilevel problem as one program.

The second replaces the inner problem by its optimality conditions with multipliers $m \ge 0$ and
slacks $s \ge 0$, relaxes complementarity to $m_i s_i \le t$, and adds a cut
$g(x, y) \le g(x, w) + l \cdot c(x, w)$ for other inner minima $w$ that were found to be lower. With
Fritz John conditions, $m_0 + \sum m = 1$, it needs no constraint qualification.

References: Scholtes, Convergence properties of a regularization scheme for mathematical programs
with complementarity constraints (2001); Outrata, On the numerical solution of a class of
Stackelberg problems (1990), for the value function.
"""

from typing import NamedTuple

import numpy as np

from .engine import Lanes, Many, Multipliers, Nonlinear, System, pushed, run
from .model import Model

INNER_STEPS, OUTER_STEPS = 80, 200
INNER_STAGE, OUTER_STAGE = 6, 8
LOOSE = 5e-8  # slack of the inner rows, so that sets without interior can be entered
TINY = 1e-7  # weight of |m|^2: multipliers that are not unique stay small
CUT = 1e-6  # slack of a cut


class Inner(Nonlinear):
    """min g(x, y) over y subject to c <= 0, e = 0; unknowns y and the slacks of c."""

    eager = True

    def __init__(self, model: Model, x: Many):
        self.model, self.x = model, x
        n = model.sizes
        self._bounds = np.r_[np.full(n.y, -np.inf), np.zeros(n.c)], np.full(n.y + n.c, np.inf)
        self._loose = LOOSE / model.cut(model.sharp[None]).c

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The slacks are positive."""
        return self._bounds

    def _equal(self, R: np.ndarray, slacks: Many) -> Many:
        rows = self.model.cut(R)
        return np.concatenate([rows.c - self._loose + slacks, rows.e], axis=1)

    def relaxed(self) -> np.ndarray:
        """There are no rows to relax."""
        return np.zeros(0)

    def values(self, z: Many, lanes: np.ndarray) -> tuple[Lanes, Many, Many]:
        """g, (c + s, e), nothing."""
        ny = self.model.ny
        R = self.model.inside(np.concatenate([self.x[lanes], z[:, :ny]], axis=1))
        return R[:, 1], self._equal(R, z[:, ny:]), np.zeros((len(z), 0))

    def derive(self, z: Many, at: Multipliers, ahead: Multipliers, lanes: np.ndarray) -> System:
        """Derivatives of the merit."""
        model, n, count = self.model, self.model.sizes, len(z)
        point = np.concatenate([self.x[lanes], z[:, : n.y]], axis=1)
        m, u = -ahead.equal[:, : n.c], -ahead.equal[:, n.c :]
        a = model.join(0.0, 1.0, 0.0, 0.0, m, u, count)
        J, slope, H = model.bend(point, a)
        J = model.cut(J)
        if n.e:
            H = H + at.penalty[:, None, None] * (_turned(J.e) @ J.e)
        slack = np.repeat(at.penalty[:, None], n.c, axis=1)
        gradient = np.concatenate([slope, m], axis=1)
        side, corner, none = (np.zeros((count, *k)) for k in ((n.y, 0), (0, 0), (0,)))
        return System(gradient, H, side, corner, J.c, at.penalty, none, slack)


class Cuts(NamedTuple):
    """For every lane inner points w, the rows' weights there, and whether each is in force."""

    w: np.ndarray
    weights: np.ndarray
    on: np.ndarray


class Outer(Nonlinear):
    """The bilevel problem; unknowns (x, y), then m0, m, u, and the slacks s of c and S of C.

    m are the multipliers of c, u those of e.
    """

    def __init__(self, model: Model, fritz_john: Lanes, cuts: Cuts):
        self.model, self.fritz_john, self.cuts = model, fritz_john, cuts
        n = model.sizes
        free = [np.full(n.y, -np.inf), np.zeros(1 + n.c), np.full(n.e, -np.inf)]
        lo = np.concatenate([model.x_lo, *free, np.zeros(n.c + n.C)])
        self._bounds = lo, np.r_[model.x_hi, np.full(len(lo) - n.x, np.inf)]
        self.ends = np.cumsum([n.x + n.y, 1, n.c, n.e, n.c])
        self.parts = np.cumsum([n.y, 1, n.c, n.C, n.e])

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """x has its bounds; m0, m and slacks are positive."""
        return self._bounds

    def split(self, z: Many) -> list[np.ndarray]:
        """(x, y), m0, m, u, s and S."""
        return np.split(z, self.ends, axis=1)

    def weights(self, m0: Many, m: Many, u: Many) -> np.ndarray:
        """The inner multipliers as weights of the rows."""
        return self.model.join(0.0, m0[:, 0], 0.0, 0.0, m, u, len(m0))

    def _equal(self, z: Many, R: np.ndarray, st: Many, lanes: np.ndarray) -> Many:
        _, m0, m, _, s, S = self.split(z)
        rows, fj = self.model.cut(R), self.fritz_john[lanes]
        total = m0 - 1 + (fj * np.sum(m, axis=1))[:, None]
        return np.concatenate([st, total, rows.c + s, rows.C + S, rows.e, rows.E], axis=1)

    def relaxed(self) -> np.ndarray:
        """Complementarity is relaxed, cuts are not."""
        return np.r_[np.ones(self.model.sizes.c), np.zeros(self.cuts.on.shape[1])]

    def _below(self, z: Many, R: np.ndarray, lanes: np.ndarray) -> Many:
        point, _, m, _, s, _ = self.split(z)
        over = np.full((len(z), self.cuts.on.shape[1]), -1.0)
        which, slot = np.nonzero(self.cuts.on[lanes])
        if len(which):
            w, weights = self.cuts.w[lanes[which], slot], self.cuts.weights[lanes[which], slot]
            there = self.model.rows(np.concatenate([point[which, : self.model.nx], w], axis=1))
            over[which, slot] = R[which, 1] - np.sum(weights * there, axis=1) - CUT
        return np.concatenate([m * s, over], axis=1)

    def values(self, z: Many, lanes: np.ndarray) -> tuple[Lanes, Many, Many]:
        """f, the optimality conditions, and complementarity with the cuts."""
        point, m0, m, u, _, _ = self.split(z)
        R, st = self.model.slopes(point, self.weights(m0, m, u))
        objective = R[:, 0] + TINY * np.sum(m**2, axis=1)
        return objective, self._equal(z, R, st, lanes), self._below(z, R, lanes)

    def derive(self, z: Many, at: Multipliers, ahead: Multipliers, lanes: np.ndarray) -> System:
        """Derivatives of the merit."""
        model, n, count = self.model, self.model.sizes, len(z)
        point, m0, m, u, s, _ = self.split(z)
        b = self.weights(m0, m, u)
        v, total, c_, C_, e_, E_ = np.split(-ahead.equal, self.parts, axis=1)
        products, cut = ahead.below[:, : n.c], ahead.below[:, n.c :]
        a = model.join(1.0, np.sum(cut, axis=1), C_, E_, c_, e_, count)
        d = model.derive(point, a, b, v)
        J, P, DP = model.cut(d.J), model.cut(d.P), model.cut(d.DP)
        rho = at.penalty[:, None, None]
        equal = np.concatenate([d.D, J.e, J.E], axis=1)
        slope, H = d.slope, d.H + rho * (_turned(equal) @ equal)
        if np.any(self.cuts.on[lanes]):
            slope, H = self._with_cuts(point, J.g, cut, at.penalty, slope, H, lanes)

        # derivatives of the inner gradient in r = (m0, m, u), and of the normalisation
        inner = np.concatenate([J.g[:, None], J.c, J.e], axis=1)[:, :, n.x :]
        unit = np.zeros((count, 1 + n.c + n.e))
        unit[:, 0], unit[:, 1 : 1 + n.c] = 1.0, self.fritz_john[lanes, None]
        by_r = np.concatenate([P.g[:, None], P.c, P.e], axis=1) + total * unit
        by_r[:, 1 : 1 + n.c] += 2 * TINY * m + products * s
        gradient = np.concatenate([slope, by_r, c_ + products * m, C_], axis=1)
        pr = _turned(np.concatenate([DP.g[:, None], DP.c, DP.e], axis=1) + rho * inner @ d.D)
        rr = rho * (inner @ _turned(inner) + unit[:, :, None] * unit[:, None])
        active = at.penalty[:, None] * (products > 0)
        diagonal = np.arange(1, 1 + n.c)
        rr[:, diagonal, diagonal] += 2 * TINY + active * s**2
        slack = np.repeat(at.penalty[:, None], n.c + n.C, axis=1)
        slack[:, : n.c] += active * m**2
        rows = np.concatenate([J.c, J.C], axis=1)
        return System(gradient, H, pr, rr, rows, at.penalty, active * m * s + products, slack)

    def _with_cuts(
        self, point: Many, g: Many, cut: Many, rho: Lanes, slope: Many, H: np.ndarray,
        lanes: np.ndarray,
    ) -> tuple[Many, np.ndarray]:  # fmt: skip
        """The merit's derivatives with those of the cuts added."""
        model, nx = self.model, self.model.nx
        which, slot = np.nonzero(self.cuts.on[lanes])
        w, weights = self.cuts.w[lanes[which], slot], self.cuts.weights[lanes[which], slot]
        there = np.concatenate([point[which, :nx], w], axis=1)
        none = np.zeros_like(weights), np.zeros_like(w)
        d = model.derive(there, weights, *none)
        size = cut[which, slot][:, None]
        turned = g[which].copy()
        turned[:, :nx] -= d.slope[:, :nx]
        active = np.where(size > 0, rho[which][:, None], 0.0)
        curve = (active * turned)[:, :, None] * turned[:, None]
        curve[:, :nx, :nx] -= size[:, :, None] * d.H[:, :nx, :nx]
        slope, H = slope.copy(), H.copy()
        np.subtract.at(slope[:, :nx], which, size * d.slope[:, :nx])
        np.add.at(H, which, np.where(size[:, :, None] > 0, curve, 0.0))
        return slope, H


def _turned(A: np.ndarray) -> np.ndarray:
    return A.transpose(0, 2, 1)


class Ends(NamedTuple):
    """Where runs ended: points, the rows' weights in the inner problem, and the steps taken."""

    x: Many
    y: Many
    weights: np.ndarray
    steps: np.ndarray


def solve_inner(model: Model, x: Many, y: Many, t0: Lanes) -> Ends:
    """Inner solutions from many starts."""
    n = model.sizes
    c = model.cut(model.inside(np.concatenate([x, y], axis=1))).c
    z = np.concatenate([y, np.maximum(-c, 0.1 * t0[:, None])], axis=1)
    with np.errstate(all="ignore"):
        end = run(Inner(model, x), z, t0, np.zeros(len(x)), INNER_STEPS, INNER_STAGE)
    m, u = np.maximum(-end.at.equal[:, : n.c], 0.0), -end.at.equal[:, n.c :]
    return Ends(x, end.z[:, : n.y], model.join(0.0, 1.0, 0.0, 0.0, m, u, len(x)), end.steps)


def solve_outer(
    model: Model, start: Ends, t0: Lanes, ratio: Lanes, fritz_john: Lanes, cuts: Cuts, most: int,
    ceiling: float = np.inf,
) -> Ends:  # fmt: skip
    """Solutions of the bilevel program from many starts, as far as f is below a ceiling."""
    program = Outer(model, fritz_john, cuts)
    R = model.cut(model.rows(np.concatenate([start.x, start.y], axis=1)))
    given = model.cut(start.weights)
    m = np.where(np.isfinite(given.c), np.maximum(given.c, 1e-2), 1.0)
    u = np.where(np.isfinite(given.e), given.e, 0.0)
    total = np.where(fritz_john > 0, 1 + np.sum(m, axis=1), 1.0)[:, None]
    s, S = (np.maximum(-rows, 0.1 * t0[:, None]) for rows in (R.c, R.C))
    z = np.concatenate([start.x, start.y, 1 / total, m / total, u / total, s, S], axis=1)
    with np.errstate(all="ignore"):
        most = min(most, OUTER_STEPS)
        end = run(program, pushed(program, z), t0, ratio, most, OUTER_STAGE, ceiling)
    point, m0, m, u, _, _ = program.split(end.z)
    x = np.minimum(np.maximum(point[:, : model.nx], model.x_lo), model.x_hi)
    m0 = np.maximum(m0, 1e-12)
    return Ends(x, point[:, model.nx :], program.weights(m0 / m0, m / m0, u / m0), end.steps)
