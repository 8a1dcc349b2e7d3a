r"""The exact path for large problems: products with second derivatives, no matrices of them.

At an inner minimum y let H = g_yy on the face of Y that y lies on. Conjugate residuals on
$H v = -f_y$ return the least-squares solution v and the residual $f_y + H v$, the part of $f_y$ in
the null space of H. The reduced gradient is $(f_x + g_{xy} v,\ f_y + H v)$: x moves along the
first part and y along the inner minima by the second. L-BFGS minimises over both, and y is brought
back to the inner minimum after every step. Nothing here has a unit of its own: scaling f, g, x or y
leaves the path as it is. Only the tolerance, which ends a run early, is in the units of the caller.
"""

from collections.abc import Callable

import jax
import numpy as np

from . import lbfgs, outer
from .inner import Inner, no_memory
from .krylov import norm
from .minimum import leave_saddle, minimise
from .oracle import Oracle, Values, Vector
from .outer import LargeState
from .status import CONVERGED, FAILED, NONCONVEX, RUNNING, STALLED

FINEST = 1e-9  # size of the reduced gradient at which a run has converged
MET = 0.3  # part of the tolerance below which a run goes on only for a few more steps ...
MET_SIZE = 3.0  # ... if the size is below this multiple of it
ACCURACY = 0.1  # of the inner and adjoint solves at the start
NEAR_ACCURACY = 0.03  # near a solution, until a line search fails
NARROWING = 0.3  # the accuracy asked for, in multiples of the size of the reduced gradient
LEAST_ACCURACY = 1e-8  # a line search that fails with this accuracy ends the run
STRICT_INNER, STRICT_ADJOINT = 1e-13, 1e-12  # accuracies of the last solves
PROGRESS = 1e-6  # a decrease of f by this part of f, or of its whole decrease, is progress
MOST_STALLED = 30  # steps without progress
MOST_CALLS = 20_000  # of the oracle
DOUBTFUL = 2_500  # calls of the oracle after which a run ends ...
FEWEST = 10  # steps that it takes before that
SIGN = 0.03  # ... if its size has never been below this: its minimum may be at infinity
PAIRS, PAIRS_IF_HUGE, HUGE = 40, 10, 10_000  # pairs kept; fewer above this many variables
PROBE = 1e-6  # relative to the point: step of the projected gradient


def blank(nx: int, ny: int) -> LargeState:
    """A state of the right shapes."""
    x, y, n, zero, none = np.zeros(nx), np.zeros(ny), nx + ny, np.float64(0), np.int64(0)
    at = Values(0.0, 0.0, x, y, x, y)
    state = LargeState(
        x, y, y, at, np.zeros(n), zero, np.zeros(2),
        pairs=lbfgs.no_pairs(PAIRS if n <= HUGE else PAIRS_IF_HUGE, n),
        scales=np.zeros(2), radius=np.zeros(2), accuracy=zero, best=zero, low=zero, mark=zero,
        first=zero, stalled=none, met=none, memory=no_memory(nx, ny), step=none, values=none,
        products=none, status=none,
    )  # fmt: skip
    return jax.tree.map(lambda leaf: np.asarray(leaf)[()], state)


class Large:
    """The method on one problem.

    Arguments:
        oracle: the problem.
        tol: the tolerance of the certificate that the caller will ask for.
    """

    def __init__(self, oracle: Oracle, tol: float):
        self.oracle, self.tol = oracle, tol
        self.inner = Inner(oracle)

    def start(self, x: Vector, y: Vector) -> LargeState:
        """Project a point onto its sets and solve the inner problem there."""
        oracle, calls = self.oracle, self.oracle.calls
        values, products = calls.values, calls.products
        self.inner = Inner(oracle)
        with np.errstate(all="ignore"):
            x, y = oracle.project_x(x), oracle.project_y(y)
            state = self._solved_from(x, leave_saddle(self.inner, x, y, oracle.values(x, y)))
            state = state._replace(values=np.int64(-values), products=np.int64(-products))
            return self._counted(self._judged(state))

    def at(self, x: Vector, y: Vector, v: Vector | None) -> LargeState:
        """The state at a point, as accurate as it gets, with what earlier solves have taught.

        `v` is an adjoint known from nearby, if there is one.
        """
        self.inner.negative = 0
        if v is None or self.inner.top == 0:
            self.inner = Inner(self.oracle)
            state = self._solved_from(x, y)
        else:
            state = self._first(x, y, v, self.oracle.values(x, y))
        if not self.sound(state):
            return state
        return self.solved(state, STRICT_INNER, STRICT_ADJOINT, True)

    def _solved_from(self, x: Vector, y: Vector) -> LargeState:
        """The state at the inner minimum that y leads to."""
        at, v, status = self.oracle.values(x, y), np.zeros_like(y), FAILED
        state = self._first(x, y, v, at)
        if at.finite:
            y, at, found = minimise(self.inner, x, y, at, ACCURACY)
            if found:
                v, gradient = self.inner.adjoint(x, y, at, None, ACCURACY)
                status = RUNNING if np.isfinite(gradient).all() else FAILED
                state = state._replace(v=v, gradient=gradient)
        f = np.float64(at.f)
        return state._replace(y=y, at=at, low=f, mark=f, first=f, status=np.int64(status))

    def _first(self, x: Vector, y: Vector, v: Vector, at: Values) -> LargeState:
        """A state that has taken no step, before any solve."""
        f, none, n = np.float64(at.f), np.int64(0), x.size + y.size
        return LargeState(
            x, y, v, at, np.concatenate([at.f_x, np.zeros_like(y)]), np.float64(1),
            steepest=np.array([norm(at.f_x), norm(at.f_y)]),
            pairs=lbfgs.no_pairs(PAIRS if n <= HUGE else PAIRS_IF_HUGE, n),
            scales=np.zeros(2), radius=np.zeros(2), accuracy=np.float64(ACCURACY),
            best=np.float64(np.inf), low=f, mark=f, first=f, stalled=none, met=np.int64(-1),
            memory=self.inner.memory, step=none, values=none, products=none,
            status=np.int64(RUNNING),
        )  # fmt: skip

    def step(self, state: LargeState) -> LargeState:
        """One step; the same state again once the run has ended."""
        if state.status != RUNNING:
            return state
        oracle, inner = self.oracle, self.inner
        with np.errstate(all="ignore"):
            inner.recall(state.memory)
            state = state._replace(
                values=state.values - oracle.calls.values,
                products=state.products - oracle.calls.products,
            )
            state, p, onto = self._aimed(state)
            trial = outer.search(oracle, inner, state, p)
            if trial is None:
                new = self._sharpened(state)
            else:
                new = outer.moved(inner, state, p, trial, onto)
            if not np.isfinite(new.gradient).all():
                new = state._replace(status=np.int64(FAILED))
            return self._counted(self._judged(new))

    def _aimed(self, s: LargeState) -> tuple[LargeState, Vector, Callable[[Vector], Vector]]:
        """A direction of descent, from an inner solve that is good enough for it.

        Until then f and its gradient may be those of an inner problem that is not solved.
        """
        tries = 0
        while True:
            s = outer.with_units(self.oracle, s)
            onto = outer.onto_faces(self.oracle, self.inner, s)
            p, s = outer.direction(s, onto)
            if tries == outer.SHARPER or not outer.is_vague(s, p):
                return s, p, onto
            tries += 1
            s = self._sharper(s, float(s.gradient @ p))
            if s.step == 0:  # the units are those of the first gradient
                s = s._replace(scales=np.zeros(2), radius=np.zeros(2))

    def _sharper(self, s: LargeState, slope: float) -> LargeState:
        """The state after inner solves that are good enough for a fall of f by a slope."""
        y, at, accuracy = s.y, s.at, float(s.accuracy)
        for _ in range(outer.SHARPER):
            y, at, found = minimise(self.inner, s.x, y, at, accuracy)
            if not found or not outer.hides(s.v, at, slope):
                break
        v, gradient = self.inner.adjoint(s.x, y, at, s.v, accuracy)
        return s._replace(y=y, at=at, v=v, gradient=gradient)

    def _sharpened(self, s: LargeState) -> LargeState:
        """The same point by more accurate solves, after a line search failed."""
        if self.inner.nonconvex or s.accuracy <= LEAST_ACCURACY:
            return s._replace(stalled=np.int64(MOST_STALLED + 1))
        s = s._replace(accuracy=0.03 * s.accuracy, pairs=lbfgs.forget(s.pairs))
        s = self.solved(s, float(s.accuracy), float(s.accuracy), False)
        slopes = outer.lengths(s.gradient, s.x.size)
        radius = 0.1 * s.radius
        scales = radius / np.where(slopes > 0, slopes, 1.0)
        return s._replace(scales=scales, radius=radius, step=s.step + 1)

    def solved(self, s: LargeState, of_y: float, of_v: float, strict: bool) -> LargeState:
        """The state after another inner solve and its adjoint."""
        y, at, _ = minimise(self.inner, s.x, s.y, s.at, of_y, strict)
        v, gradient = self.inner.adjoint(s.x, y, at, s.v, of_v, strict)
        return s._replace(y=y, at=at, v=v, gradient=gradient)

    def _judged(self, s: LargeState) -> LargeState:
        """The state with its size, its progress and its status."""
        if s.status == FAILED and not self.inner.nonconvex:
            return s
        s = self._sized(s)
        if self.inner.nonconvex:
            return s._replace(status=np.int64(NONCONVEX))
        low = min(s.f, s.low)
        progress = s.size < 0.9 * s.best or low < s.mark - PROGRESS * min(s.first - low, abs(low))
        s = s._replace(
            low=np.float64(low),
            mark=np.float64(low) if progress else s.mark,
            stalled=np.int64(0) if progress and s.stalled <= MOST_STALLED else s.stalled + 1,
            best=min(s.size, s.best),
            met=s.step if s.met < 0 and self._meets(s, MET) else s.met,
        )
        calls = s.values + s.products + self.oracle.calls.values + self.oracle.calls.products
        if calls > (MOST_CALLS if s.best <= SIGN or s.step < FEWEST else DOUBTFUL):
            s = s._replace(stalled=np.int64(MOST_STALLED + 1))
        enough = s.met >= 0 and s.step > s.met + max(5, s.met // 4)
        if not (s.size <= FINEST or s.stalled > MOST_STALLED or (enough and s.size <= 2 * s.best)):
            return s
        s = self._sized(self.solved(s, STRICT_INNER, STRICT_ADJOINT, True))
        over = s.stalled > MOST_STALLED or enough or s.accuracy <= LEAST_ACCURACY
        if s.size <= FINEST or (over and self._meets(s, 1.0)):
            return s._replace(status=np.int64(CONVERGED))
        if over:
            return s._replace(status=np.int64(STALLED))
        return s._replace(accuracy=0.1 * s.accuracy)

    def _meets(self, s: LargeState, part: float) -> bool:
        """Whether a part of the tolerance is met, in the units of the caller and without any.

        A start at a solution cannot improve without units.
        """
        plain, steep = norm(self._projected(s)), norm(s.steepest)
        if s.stalled > MOST_STALLED and plain <= FINEST * steep:
            return True
        small = s.size <= MET_SIZE * self.tol
        return bool(small and plain <= part * self.tol * min(1.0, steep))

    def sound(self, s: LargeState) -> bool:
        """Whether the inner problem was solved and curves up."""
        return s.status != FAILED and not self.inner.nonconvex

    def downhill(self, s: LargeState) -> Vector:
        """The x part of the reduced gradient, without what the bounds of X hold back."""
        slope = s.gradient[: s.x.size]
        size = norm(slope)
        if self.oracle.free_x or size == 0:
            return slope
        length = PROBE * (norm(s.x) or 1.0) / size
        return (s.x - self.oracle.project_x(s.x - length * slope)) / length

    def _sized(self, s: LargeState) -> LargeState:
        """The state with the size of its reduced gradient, and the accuracy that it asks for."""
        slopes = outer.lengths(s.gradient, s.x.size)
        here = np.array([max(norm(s.at.f_x), slopes[0]), norm(s.at.f_y)])
        steepest = np.maximum(s.steepest, here)
        size = norm(self._projected(s) / np.where(steepest > 0, steepest, 1.0))
        enough = max(NARROWING * size, NEAR_ACCURACY)
        accuracy = np.float64(min(enough, float(s.accuracy)))
        return s._replace(size=np.float64(size), steepest=steepest, accuracy=accuracy)

    def _projected(self, s: LargeState) -> outer.Two:
        """The lengths of the x part and of the y part of the projected reduced gradient."""
        nx, oracle, sizes = s.x.size, self.oracle, outer.lengths(s.gradient, s.x.size)
        parts = (
            (oracle.free_x, oracle.project_x, s.x, s.gradient[:nx]),
            (oracle.free_y, oracle.project_y, s.y, s.gradient[nx:]),
        )
        for i, (free, project, z, slope) in enumerate(parts):
            if not free and sizes[i] > 0:
                length = PROBE * (norm(z) or float(s.radius[i]) or 1.0) / sizes[i]
                sizes[i] = norm(project(z - length * slope) - z) / length
        return sizes

    def _counted(self, s: LargeState) -> LargeState:
        """The state with its memory and calls, every leaf of a NumPy type."""
        calls = self.oracle.calls
        s = s._replace(
            memory=self.inner.memory,
            values=s.values + calls.values,
            products=s.products + calls.products,
        )
        return jax.tree.map(lambda leaf: np.asarray(leaf)[()], s)
