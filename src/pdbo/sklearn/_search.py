"""One fit: arrays in, penalties found by the descent of `_penalties`, weights out."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import PyTree
from sklearn.exceptions import ConvergenceWarning

from .._driver import Recorder, chunks
from .._errors import warn
from .._problem import Problem
from .._progress import Pace
from .._solution import State
from ..linear import SparseMatrix
from ._design import Matrix, moments
from ._penalties import (
    Data,
    Descent,
    Effort,
    Loss,
    PenaltyDescent,
    Report,
    log_penalties,
    make_problem,
)

TRAIN, TUNE, VALIDATE = 0, 1, 2  # what a row does in a split: see `Table.roles`
LEVELS = np.arange(1.0, -16.0, -2.0)  # log-penalties tried first, from the strongest down
STILL = {"level": 0.0, "exponent": 0.0, "each": 0.0}  # the step sizes that keep x fixed
SMALL = 1_000_000  # entries, zeros included, below which a sparse matrix is made dense
PATIENCE = 8  # steps without a better loss after which a descent ends
# The fields of `Effort` for several splits and for one split.
EFFORTS = {
    "path": ((20, 20, 1e-3, 0.1), (4, 10, 1e-3, 0.1)),
    "descent": ((3, 20, 1e-4, 0.05), (1, 10, 1e-4, 0.05)),
}
Rate = dict[str, float]
Work = str | tuple[float, float, float, float]  # a key of EFFORTS, or the fields of `Effort`


class Table(NamedTuple):
    """The data to fit.

    Attributes:
        X: the features, dense or a SciPy sparse matrix.
        target: labels from 0 on.
        outputs: the number of scores per row.
        weight: the sample weight of each row.
        roles: for each split, what a row does: it trains the weights, tunes the penalties, or
            validates, that is, decides when to stop.
        groups: for each feature the number of its penalty; None if every weight has its own.
    """

    X: Matrix
    target: np.ndarray
    outputs: int
    weight: np.ndarray
    roles: np.ndarray
    groups: np.ndarray | None


class Plan(NamedTuple):
    """What to search for.

    Attributes:
        exponent: whether penalties may follow a power of the features' variances.
        each: whether every penalty is tuned by itself.
        intercept: whether the model has an intercept.
        steps, tol: the most steps of a descent, and the accuracy of the last fit.
        name: the name printed with the progress; None prints nothing.
    """

    exponent: bool
    each: bool
    intercept: bool
    steps: int
    tol: float
    name: str | None


class Model(NamedTuple):
    """Weights (features, outputs), offsets, penalties (features, outputs or 1) and steps taken."""

    weights: np.ndarray
    offsets: np.ndarray
    penalties: np.ndarray
    steps: int


class Trail(NamedTuple):
    """A descent: its best point, the validation losses there and at the start, and its steps."""

    x: PyTree
    w: PyTree
    losses: np.ndarray
    first: np.ndarray
    steps: int


def bucket(count: int, least: int) -> int:
    """The size rounded up, so that nearly equal sizes share a compiled program."""
    unit = max(2 ** (count.bit_length() - 3), least)
    return -(-count // unit) * unit


def number(value: float, dtype: Any) -> Any:
    """A number for a compiled program: NumPy's, which is faster to make than JAX's."""
    return np.asarray(value, dtype)


class Tried(NamedTuple):
    """A point of the search: its stage, the mean logarithm of its level, its held-out loss."""

    stage: str
    level: float
    loss: float


class Learned(NamedTuple):
    """The bilevel problem that was solved, and the point found."""

    problem: Problem
    x: PyTree
    w: PyTree


class Search:
    """The arrays of one fit, on the device, and the search for its penalties."""

    def __init__(self, loss: Loss, table: Table, plan: Plan):
        self.loss, self.table, self.plan = loss, table, plan
        self.fresh: Descent | None = None
        self.tried: list[Tried] = []
        self.freed = False  # whether every penalty was tuned by itself
        X = table.X
        if scipy.sparse.issparse(X) and X.shape[0] * X.shape[1] < SMALL:
            X = X.toarray()
        self.dtype, (self.rows, self.features) = X.dtype, X.shape
        sparse = scipy.sparse.issparse(X)
        rows = bucket(self.rows, 256)
        self.columns = self.features if sparse else bucket(self.features, 16)
        self.mean, self.variance = moments(X, table.weight, plan.intercept)
        if sparse:
            matrix = scipy.sparse.csr_matrix(X, copy=True)
            matrix.resize(rows, self.columns)
            self.X = SparseMatrix.from_scipy(matrix, self.dtype, nnz=bucket(X.nnz, 256))
            shift = self.mean
        else:
            more = ((0, rows - self.rows), (0, self.columns - self.features))
            self.X = jnp.asarray(np.pad(X - self.mean, more), self.dtype)
            shift = np.zeros(self.features)
        more = [(0, rows - self.rows)]
        self.weight = np.pad(table.weight, more)
        self.roles = np.pad(table.roles, [(0, 0), *more], constant_values=-1)
        self.target = np.pad(table.target, more + [(0, 0)] * (table.target.ndim - 1))

        varies = self.variance > 0
        log_scale = np.log(np.where(varies, self.variance, 1))
        middle = np.average(log_scale, weights=self.variance) if np.any(varies) else 0.0
        # a tenth of the sum of squares of a feature of average variance
        self.level = np.log(0.1 * table.weight.sum(dtype=np.float64)) + middle
        self.common = {
            "X": self.X,
            "shift": self._pad(shift),
            "target": jnp.asarray(self.target),
            "log_scale": self._pad(np.where(varies, log_scale - middle, 0)),
            "groups": None,
            "intercept": jnp.asarray(plan.intercept, self.dtype),
        }
        if table.groups is not None:
            groups = np.pad(table.groups, (0, self.columns - self.features))
            self.common["groups"] = jnp.asarray(groups, jnp.int32)

    def _pad(self, values: np.ndarray, axis: int = -1) -> jax.Array:
        """Values with an axis over the features, padded to `columns`, on the device."""
        more = [(0, 0)] * values.ndim
        more[axis] = (0, self.columns - self.features)
        return jnp.asarray(np.pad(values, more), self.dtype)

    def problem(self, train: np.ndarray, held: np.ndarray) -> Problem:
        """The bilevel problem that trains on some rows of each split and holds out others."""
        train = np.asarray(train * self.weight, self.dtype)
        totals = train.sum(1, dtype=np.float64)[:, None]
        data = Data(
            train=jnp.asarray(train),
            held=jnp.asarray(held * self.weight, self.dtype),
            square=self._pad(totals * self.variance),
            **self.common,
        )
        return make_problem(self.loss, data)

    def start(self) -> tuple[PyTree, PyTree]:
        """The penalties and weights to start from."""
        splits, outputs = len(self.roles), self.table.outputs
        free = (self.columns,) if self.table.groups is not None else (self.columns, outputs)
        numbers = (jnp.asarray(v, self.dtype) for v in (self.level, 0.0))
        x = dict(zip(("level", "exponent"), numbers, strict=True))
        each, weights, offsets = (
            jnp.zeros((splits, *shape), self.dtype)
            for shape in (free, (self.columns, outputs), (outputs,))
        )
        return x | {"each": each}, {"weights": weights, "offsets": offsets}

    def run(self) -> Model:
        """Level and exponent, then every penalty, then the weights on all rows."""
        plan = self.plan
        x, w = self.start()
        validate = self.roles == VALIDATE
        problem = self.problem((self.roles >= 0) & ~validate, validate)
        self.validation = problem.data.held
        self.least = 1e-3 * self.null_loss()  # a smaller fall of the loss does not count
        x, w = self.path(problem, x, w)
        rate = STILL | {"level": 0.3, "exponent": 0.05 * plan.exponent}
        trail = self.descend(problem, x, w, rate, "level")
        steps = trail.steps
        if plan.each:
            tuning = self.problem(self.roles == TRAIN, self.roles == TUNE)
            freed = self.descend(tuning, trail.x, trail.w, STILL | {"each": 0.1}, "each")
            steps += freed.steps
            if _surely_less(freed.losses, freed.first):
                problem, trail, self.freed = tuning, freed, True
        self.learned = Learned(problem, trail.x, trail.w)
        x, w = self.strengthen(problem, trail)
        return self.finish(x, w, steps)

    def null_loss(self) -> float:
        """The loss of the model without weights."""
        shares = np.bincount(self.table.target, self.table.weight)
        shares = shares[shares > 0] / shares.sum()
        return max(float(-np.sum(shares * np.log(shares))), 1e-3)

    def steps(
        self, problem: Problem, x: PyTree, w: PyTree, rate: Rate, effort: Work, most: int
    ) -> Iterator[Descent]:
        """The states after one step, two steps, and so on; their reports are NumPy arrays."""
        work = EFFORTS[effort][int(len(self.roles) == 1)] if isinstance(effort, str) else effort
        newton, linear, tol, accuracy = work
        tol = max(tol, float(np.finfo(self.dtype).eps) ** 0.6)
        counts = (number(k, np.int32) for k in (newton, linear))
        numbers = (number(v, self.dtype) for v in (tol, accuracy))
        solver = PenaltyDescent(
            self.loss,
            self.validation,
            {k: number(v, self.dtype) for k, v in rate.items()},
            Effort(*counts, *numbers),
        )
        if self.fresh is None:  # its zeros are made once for all steps
            self.fresh = solver.init(problem, x, w, None)
        state = self.fresh._replace(x=x, w=w)
        run = State(solver, state, number(0, np.int32), number(1, self.dtype))
        one_at_a_time = Pace(0.0)
        taken = chunks(problem, run, Recorder(), most, 1, False, one_at_a_time)
        while True:
            with jax.default_matmul_precision("highest"):  # GPUs round single precision otherwise
                chunk = next(taken, None)
            if chunk is None:
                return
            state: Descent = chunk.run.solver_state
            yield state._replace(report=jax.tree.map(np.asarray, state.report))

    def step(self, problem: Problem, x: PyTree, w: PyTree, effort: Work) -> tuple[PyTree, Report]:
        """The weights for the penalties x, found from w on, and the report on them."""
        state = next(self.steps(problem, x, w, STILL, effort, 1))
        return state.w, state.report

    def path(self, problem: Problem, x: PyTree, w: PyTree) -> tuple[PyTree, PyTree]:
        """The best point on a path from strong to weak penalties; each fit starts at the last."""
        best, found = np.inf, (x, w)
        exponents = (0.0,)
        if self.plan.exponent:
            exponents = (0.5,) if len(self.roles) == 1 else (0.0, 0.5, 1.0)
        for exponent in exponents:
            v, lowest, since = w, np.inf, 0
            for level in LEVELS:
                moved = {"level": float(level), "exponent": exponent}
                at = x | {k: x[k] + by for k, by in moved.items()}
                v, report = self.step(problem, at, v, "path")
                self.show("path", at, report)
                loss = report.losses.mean()
                since = 0 if loss < lowest - self.least else since + 1
                if loss < best - self.least:
                    best, found = loss, (at, v)
                lowest = min(loss, lowest)
                if since == 2:
                    break
        return found

    def descend(self, problem: Problem, x: PyTree, w: PyTree, rate: Rate, what: str) -> Trail:
        """Descent until the validation loss stops falling."""
        best, since = None, 0
        for taken, state in enumerate(self.steps(problem, x, w, rate, "descent", self.plan.steps)):
            self.show(f"{what} {taken + 1}", x, state.report)
            losses = np.asarray(state.report.losses)
            loss = losses.mean()
            if best is None:
                best = Trail(x, state.w, losses, losses, 0)
            elif loss < best.losses.mean() - self.least:
                best, since = Trail(x, state.w, losses, best.first, 0), 0
            else:
                since += 1
            best = best._replace(steps=taken + 1)
            if since == PATIENCE or not np.isfinite(loss):
                break
            x = state.x  # the next step finds its weights
        assert best is not None
        if not np.all(np.isfinite(best.losses)):
            raise ValueError("The loss is not finite: do some features have very large values?")
        return best

    def strengthen(self, problem: Problem, trail: Trail) -> tuple[PyTree, PyTree]:
        """Stronger penalties with fewer wrong answers whose loss is within two standard errors.

        The loss also measures confidence, so it is lowest at weaker penalties than the share of
        wrong answers.
        """
        x, w, splits = trail.x, trail.w, len(self.roles)
        found, best = (x, w), -np.inf
        if splits < 2:
            return found
        most = trail.losses.mean() + 2 * trail.losses.std(ddof=1) / splits**0.5
        for _ in range(20):
            found_w, report = self.step(problem, x, w, "path")
            self.show("strengthen", x, report)
            if best >= 0 and not report.losses.mean() <= most:
                break
            w = found_w
            if report.right.mean() > best + 1e-9:
                found, best = (x, w), report.right.mean()
            x = x | {"level": x["level"] + 0.5}
        return found

    def finish(self, x: PyTree, w: PyTree, steps: int) -> Model:
        """The weights for the penalties found, fitted to all rows."""
        rows = self.roles >= 0
        problem = self.problem(rows, rows)
        # one copy per split, so that the compiled program is the same
        each, w = jax.tree.map(lambda v: jnp.broadcast_to(jnp.mean(v, 0), v.shape), (x["each"], w))
        x = x | {"each": each}
        tol = max(self.plan.tol, float(np.finfo(self.dtype).eps) ** 0.5)
        w, report = self.step(problem, x, w, (200, 500, tol, 1e-3))
        self.show("refit", x, report)
        if not report.decrement <= tol:
            warn(
                f"The weights did not settle within {report.taken} Newton steps (decrement "
                f"{report.decrement:.1e}, tol {tol:.1e}): scale the features or raise tol.",
                ConvergenceWarning,
            )
        weights = np.asarray(w["weights"][0])[: self.features]
        offsets = np.asarray(w["offsets"][0]) - (self.mean @ weights).astype(self.dtype)
        penalties = np.asarray(jnp.exp(log_penalties(x, problem.data)[0]))[: self.features]
        return Model(weights, offsets * self.dtype.type(self.plan.intercept), penalties, steps)

    def show(self, what: str, x: PyTree, report: Report) -> None:
        """Notes a point, and prints a line of progress if the plan has a name."""
        self.tried.append(Tried(what, float(x["level"]), float(report.losses.mean())))
        if self.plan.name is not None:
            print(f"[{self.plan.name}] {what}: held-out loss {report.losses.mean():.5f}")


def _surely_less(losses: np.ndarray, first: np.ndarray) -> bool:
    """Whether the losses fell; with several splits, by more than a standard error."""
    fall = first - losses
    error = fall.std(ddof=1) / len(fall) ** 0.5 if len(fall) > 1 else 0.0
    return bool(fall.mean() > error)
