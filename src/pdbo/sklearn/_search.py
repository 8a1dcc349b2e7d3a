"""One fit: arrays in, penalties searched by the descent of `_penalties`, weights out."""

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
LEVELS = np.arange(1.0, -16.0, -2.0)  # log-penalties tried first, the strongest foremost
STILL = {"level": 0.0, "exponent": 0.0, "each": 0.0}
SMALL = 1_000_000  # a sparse matrix with fewer entries, zeros included, is made dense
PATIENCE = 8  # steps without a better loss that end a descent
# Newton steps, CG steps in each, decrement and CG accuracy: for few weights, for more, for many.
# With few the systems are factorised, so that rounding does not show in what is learned.
EFFORTS = {
    "path": ((30, 0, 0, 0), (20, 20, 1e-3, 0.1), (4, 10, 1e-3, 0.1)),
    "descent": ((30, 0, 0, 0), (3, 20, 1e-4, 0.05), (1, 10, 1e-4, 0.05)),
}
FEW = 200  # weights of a model


class Table(NamedTuple):
    """What is to be fitted.

    Attributes:
        X: the features, dense or a SciPy sparse matrix.
        target: labels from 0 on, or columns to be predicted.
        outputs: the scores a row has.
        weight: one for each row.
        roles: for each split, what a row does: it trains the weights, tunes the penalties, or
            validates: its loss says when to stop.
        groups: for each feature which penalty is its own; None for one for every weight.
    """

    X: Any
    target: np.ndarray
    outputs: int
    weight: np.ndarray
    roles: np.ndarray
    groups: np.ndarray | None


class Plan(NamedTuple):
    """What is to be searched.

    Attributes:
        exponent: whether penalties may follow a power of the features' variances.
        each: whether they are freed one by one.
        intercept: whether there is one.
        steps, tol: the most steps of a descent, and the accuracy of the last fit.
        name: who prints progress; None where nobody does.
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
    """A descent: its best point with the losses of the rows watched there and at the start."""

    x: PyTree
    w: PyTree
    losses: np.ndarray
    first: np.ndarray
    steps: int


def bucket(count: int, least: int) -> int:
    """Room for so many: sizes are rounded up, so that nearly equal ones share a program."""
    unit = max(2 ** (count.bit_length() - 3), least)
    return -(-count // unit) * unit


def moments(X: Any, weight: np.ndarray, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean (zero unless asked for) and variance about it, in double precision."""
    share = weight.astype(np.float64) / weight.sum(dtype=np.float64)
    if scipy.sparse.issparse(X):
        mean = np.asarray(X.T @ share) if centred else np.zeros(X.shape[1])
        square = np.asarray(X.multiply(X).T @ share)
        variance = square - mean**2
    else:
        mean = share @ X if centred else np.zeros(X.shape[1])
        square = share @ X.astype(np.float64) ** 2
        variance = share @ (X - mean) ** 2
    return mean, np.where(variance > 1e-12 * square, variance, 0)


class Search:
    """The arrays of one fit on the device, and the search."""

    def __init__(self, loss: Loss, table: Table, plan: Plan):
        self.loss, self.table, self.plan = loss, table, plan
        X = table.X
        if scipy.sparse.issparse(X) and X.shape[0] * X.shape[1] < SMALL:
            X = X.toarray()
        self.dtype, (self.rows, self.features) = X.dtype, X.shape
        sparse = scipy.sparse.issparse(X)
        rows = bucket(self.rows, 32)
        self.columns = self.features if sparse else bucket(self.features, 8)
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
        splits, weights = len(table.roles), (self.columns + 1) * table.outputs
        few = weights <= FEW and not sparse
        few &= splits * rows * table.outputs * weights <= 10 * SMALL  # the memory it takes
        self.size = 0 if few else 1 if splits > 1 else 2
        more = [(0, rows - self.rows)]
        self.weight = np.pad(table.weight, more)
        self.roles = np.pad(table.roles, [(0, 0), *more], constant_values=-1)
        self.target = np.pad(table.target, more + [(0, 0)] * (table.target.ndim - 1))

        varies = self.variance > 0
        log_scale = np.log(np.where(varies, self.variance, 1))
        middle = np.average(log_scale, weights=self.variance) if np.any(varies) else 0.0
        # a penalty as strong as the data, on a feature of middling variance
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
        """Values with an axis over the features, on the device."""
        more = [(0, 0)] * values.ndim
        more[axis] = (0, self.columns - self.features)
        return jnp.asarray(np.pad(values, more), self.dtype)

    def problem(self, train: np.ndarray, held: np.ndarray) -> Problem:
        """The bilevel problem with these rows of each split to train on and these held out."""
        train = np.asarray(train * self.weight, self.dtype)
        totals = train.sum(1, dtype=np.float64)[:, None]
        data = Data(
            train=jnp.asarray(train),
            held=jnp.asarray(held * self.weight, self.dtype),
            square=self._pad(totals * self.variance),
            **self.common,
        )
        return make_problem(self.loss, data)

    def start(self, earlier: Model | None) -> tuple[PyTree, PyTree]:
        """Penalties and weights to start from: none, or those of an earlier fit."""
        splits, outputs = len(self.roles), self.table.outputs
        free = (self.columns,) if self.table.groups is not None else (self.columns, outputs)
        each, level = np.zeros(free), self.level
        weights, offsets = np.zeros((self.columns, outputs)), np.zeros(outputs)
        if earlier is not None:
            penalties = np.log(np.asarray(earlier.penalties, np.float64))
            level = penalties.mean()
            if self.table.groups is None:
                each[: self.features] = penalties - level
            else:
                each[self.table.groups] = penalties[:, 0] - level
            weights[: self.features] = earlier.weights
            offsets = earlier.offsets + self.mean @ earlier.weights

        def copies(values: np.ndarray) -> jax.Array:
            return jnp.asarray(np.broadcast_to(values, (splits, *values.shape)), self.dtype)

        numbers = (jnp.asarray(v, self.dtype) for v in (level, 0.0))
        x = dict(zip(("level", "exponent"), numbers, strict=True)) | {"each": copies(each)}
        return x, {"weights": copies(weights), "offsets": copies(offsets)}

    def run(self, earlier: Model | None = None) -> Model:
        """Level and exponent, then every penalty, then the weights on all rows."""
        plan = self.plan
        x, w = self.start(earlier)
        validate = self.roles == VALIDATE
        problem = self.problem((self.roles >= 0) & ~validate, validate)
        self.watched = problem.data.held
        self.least = 1e-3 * self.null_loss()  # a fall of the loss that is worth a step
        if earlier is None:
            x, w = self.path(problem, x, w)
        rate = STILL | {"level": 0.3, "exponent": 0.05 * plan.exponent}
        trail = self.descend(problem, x, w, rate, "level")
        steps = trail.steps
        if plan.each:
            tuning = self.problem(self.roles == TRAIN, self.roles == TUNE)
            freed = self.descend(tuning, trail.x, trail.w, STILL | {"each": 0.1}, "each")
            steps += freed.steps
            if _surely_less(freed.losses, freed.first):
                problem, trail = tuning, freed
        x, w = self.strengthen(problem, trail)
        return self.finish(x, w, steps)

    def null_loss(self) -> float:
        """The loss of the model without weights."""
        if self.loss.right is None:
            return 0.5 * self.table.outputs  # of targets in units of their standard deviations
        shares = np.bincount(self.table.target, self.table.weight)
        shares = shares[shares > 0] / shares.sum()
        return max(float(-np.sum(shares * np.log(shares))), 1e-3)

    def steps(
        self, problem: Problem, x: PyTree, w: PyTree, rate: dict[str, float], effort: Any, most: int
    ) -> Iterator[Descent]:
        """The states after one step, two, and so on; their reports are on the host."""
        effort = EFFORTS[effort][self.size] if isinstance(effort, str) else effort
        eps = float(np.finfo(self.dtype).eps)
        effort = (*effort[:2], max(effort[2], eps**0.6), effort[3])
        counts = (jnp.asarray(k, jnp.int32) for k in effort[:2])
        numbers = (jnp.asarray(v, self.dtype) for v in effort[2:])
        solver = PenaltyDescent(
            self.loss,
            self.watched,
            {k: jnp.asarray(v, self.dtype) for k, v in rate.items()},
            Effort(*counts, *numbers),
            self.size == 0,
        )
        state, zero = solver.init(problem, x, w, None), jnp.zeros((), jnp.int32)
        run = State(solver, state, zero, jnp.ones((), self.dtype))
        one_at_a_time = Pace(0.0)
        taken = chunks(problem, run, Recorder(), most, 1, False, one_at_a_time)
        while True:
            with jax.default_matmul_precision("highest"):  # GPUs round single precision otherwise
                chunk = next(taken, None)
            if chunk is None:
                return
            state: Descent = chunk.run.solver_state
            yield state._replace(report=jax.tree.map(np.asarray, state.report))

    def step(self, problem: Problem, x: PyTree, w: PyTree, effort: Any) -> tuple[PyTree, Report]:
        """The weights for some penalties, from others on, and the report on them."""
        state = next(self.steps(problem, x, w, STILL, effort, 1))
        return state.w, state.report

    def path(self, problem: Problem, x: PyTree, w: PyTree) -> tuple[PyTree, PyTree]:
        """The best on the way from strong to weak penalties, every fit started at the last."""
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
                self.show("path", report)
                loss = report.losses.mean()
                since = 0 if loss < lowest - self.least else since + 1
                if loss < best - self.least:
                    best, found = loss, (at, v)
                lowest = min(loss, lowest)
                if since == 2:
                    break
        return found

    def descend(
        self, problem: Problem, x: PyTree, w: PyTree, rate: dict[str, float], what: str
    ) -> Trail:
        """Descent until the loss on the rows watched has stopped falling."""
        best, since = None, 0
        for taken, state in enumerate(self.steps(problem, x, w, rate, "descent", self.plan.steps)):
            self.show(f"{what} {taken + 1}", state.report)
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
            x = state.x  # whose weights the next step finds
        assert best is not None
        if not np.all(np.isfinite(best.losses)):
            raise ValueError("The loss is not finite: are there features of very large values?")
        return best

    def strengthen(self, problem: Problem, trail: Trail) -> tuple[PyTree, PyTree]:
        """Stronger penalties with fewer wrong answers, their loss within two standard errors.

        The loss counts also how sure an answer is, so it is lowest at weaker penalties than the
        share of wrong answers.
        """
        x, w, splits = trail.x, trail.w, len(self.roles)
        found, best = (x, w), -np.inf
        if self.loss.right is None or splits < 2:
            return found
        most = trail.losses.mean() + 2 * trail.losses.std(ddof=1) / splits**0.5
        for _ in range(20):
            found_w, report = self.step(problem, x, w, "path")
            self.show("strengthen", report)
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
        # as many copies as there are splits, so that the same compiled program serves
        each, w = jax.tree.map(lambda v: jnp.broadcast_to(jnp.mean(v, 0), v.shape), (x["each"], w))
        x = x | {"each": each}
        tol = max(self.plan.tol, float(np.finfo(self.dtype).eps) ** 0.5)
        w, report = self.step(problem, x, w, (200, 500, tol, 1e-3))
        self.show("refit", report)
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

    def show(self, what: str, report: Report) -> None:
        """A line of progress, where asked for."""
        if self.plan.name is not None:
            print(f"[{self.plan.name}] {what}: held-out loss {report.losses.mean():.5f}")


def _surely_less(losses: np.ndarray, first: np.ndarray) -> bool:
    """Whether losses fell, and where there are several splits by more than a standard error."""
    fall = first - losses
    error = fall.std(ddof=1) / len(fall) ** 0.5 if len(fall) > 1 else 0.0
    return bool(fall.mean() > error)
