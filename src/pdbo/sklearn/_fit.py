r"""Penalised linear models for given penalties, in NumPy, and the derivative of a held-out loss.

$$\min_{W, b}\ \sum_i s_i\, \ell(y_i, z_i^\top W + b) + \sum_e a_e |W_e| + \tfrac12 \sum_e c_e W_e^2
+ \sum_G b_G \|W_G\|,\qquad \sum_i s_i = 1.$$

All models that differ in their samples, targets or penalties are solved side by side: one product
with the features finds the entries that want to open in each of them, and a proximal Newton step
on the few entries that are open solves for those.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs  # type: ignore
from scipy.special import expit

from ..exact.prox import Kinks, minimise_quadratic
from ._design import Design
from ._ridge import Ridge

TURNS = 200  # the most products with the features in a solve
NOISE = 1e-9  # slopes beyond their weights by this part of the largest slope do not open an entry
OPEN = 0.8  # entries open together whose slopes want it this much, relative to the first
SMALLEST = 1e-8  # the shortest Newton step tried, and the relative move at which a fit ends


class Loss(NamedTuple):
    """A loss of scores (rows, outputs) and targets: values, first and second derivatives."""

    rows: Callable[[np.ndarray, np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray]
    bend: Callable[[np.ndarray], np.ndarray]
    quadratic: bool = False


def _exponentials(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest score of each row, the exponentials of what the others lack, and their sum.

    SciPy's functions check so much that a small fit spends half of its time in them.
    """
    peak = scores.max(axis=1, keepdims=True)
    powers = np.exp(scores - peak)
    return peak, powers, powers.sum(axis=1, keepdims=True)


def _shares(scores: np.ndarray) -> np.ndarray:
    _, powers, total = _exponentials(scores)
    return powers / total


def _logistic_rows(scores: np.ndarray, target: np.ndarray) -> np.ndarray:
    if scores.shape[1] == 1:
        return np.logaddexp(0, scores[:, 0]) - target * scores[:, 0]
    peak, _, total = _exponentials(scores)
    return peak[:, 0] + np.log(total[:, 0]) - scores[np.arange(len(target)), target]


def _logistic_slope(scores: np.ndarray, target: np.ndarray) -> np.ndarray:
    if scores.shape[1] == 1:
        return expit(scores) - target[:, None]
    return _shares(scores) - np.eye(scores.shape[1])[target]


def _logistic_bend(scores: np.ndarray) -> np.ndarray:
    if scores.shape[1] == 1:
        p = expit(scores)
        return (p * (1 - p))[:, :, None]
    p = _shares(scores)
    return p[:, :, None] * (np.eye(p.shape[1]) - p[:, None, :])


LOGISTIC = Loss(_logistic_rows, _logistic_slope, _logistic_bend)
SQUARED = Loss(
    lambda scores, target: 0.5 * (scores[:, 0] - target) ** 2,
    lambda scores, target: scores - target[:, None],
    lambda scores: np.ones((len(scores), 1, 1)),
    quadratic=True,
)


class Task(NamedTuple):
    """The samples of one model.

    Attributes:
        train: a weight for every row, of sum one.
        held: a weight for every row held out, of sum one; None if there are none.
        target: labels from 0 on, or the values to predict.
        split: the number of its split.
        outputs: the scores per row.
    """

    train: np.ndarray
    held: np.ndarray | None
    target: np.ndarray
    split: int
    outputs: int


class Penalty(NamedTuple):
    """The penalties of one model: of |W|, of half of W squared, of the norms of its groups."""

    l1: np.ndarray
    l2: np.ndarray
    group: np.ndarray
    labels: np.ndarray | None  # the group of every entry

    @property
    def kinks(self) -> Kinks:
        """The nonsmooth part."""
        return Kinks(self.l1, self.group, self.labels)

    @property
    def smooth(self) -> bool:
        """Whether there is no nonsmooth part."""
        return self.labels is None and not np.any(self.l1 > 0)


class Fit(NamedTuple):
    """A model: weights, flat with the outputs last; offsets; scores of all rows.

    `slope` is the gradient of its training loss in the weights, if that is known.
    """

    weights: np.ndarray
    offsets: np.ndarray
    scores: np.ndarray
    slope: np.ndarray | None = None


class Models:
    """Models of one design and one loss, solved side by side."""

    def __init__(self, design: Design, loss: Loss, intercept: bool):
        self.design, self.loss, self.intercept = design, loss, intercept

    def blank(self, task: Task) -> Fit:
        """The model without weights."""
        rows, features = self.design.shape
        zero = np.zeros(features * task.outputs)
        fit = Fit(zero, np.zeros(task.outputs), np.zeros((rows, task.outputs)))
        nothing = Penalty(zero, zero, np.zeros(0), None)
        for _ in range(50 if self.intercept else 0):
            fit, moved = self._newton(task, nothing, fit, np.zeros(0, int))
            if self.loss.quadratic or not moved:
                break
        return fit

    def slopes(self, tasks: list[Task], fits: list[Fit]) -> list[np.ndarray]:
        """The gradients of the training losses in the weights."""
        if not tasks:
            return []
        rows = [
            t.train[:, None] * self.loss.slope(f.scores, t.target)
            for t, f in zip(tasks, fits, strict=True)
        ]
        every = self.design.slopes(np.hstack(rows))
        ends = np.cumsum([t.outputs for t in tasks])[:-1]
        return [part.ravel() for part in np.split(every, ends, axis=1)]

    def held(self, task: Task, fit: Fit) -> np.ndarray:
        """The loss of every row, times its weight among those held out."""
        assert task.held is not None
        return task.held * self.loss.rows(fit.scores, task.target)

    def solve(self, tasks: list[Task], terms: list[Penalty], fits: list[Fit]) -> list[Fit]:
        """The models for their penalties, from earlier ones on."""
        if self.loss.quadratic and terms[0].smooth:
            return [self._ridge(task, term) for task, term in zip(tasks, terms, strict=True)]
        fits, waiting = list(fits), list(range(len(tasks)))
        settled: dict[int, np.ndarray] = {}  # models that are done on some of their entries
        for _ in range(TURNS):
            fresh, left = [i for i in waiting if fits[i].slope is None], []
            slopes = self.slopes([tasks[i] for i in fresh], [fits[i] for i in fresh])
            for i, slope in zip(fresh, slopes, strict=True):
                fits[i] = fits[i]._replace(slope=slope)
            for i in waiting:
                part, opened = self._working(fits[i], terms[i])
                if i in settled and (not opened or np.array_equal(part, settled[i])):
                    continue
                fits[i], moved = self._newton(tasks[i], terms[i], fits[i], part)
                if self.loss.quadratic or not moved:
                    settled[i] = part
                left.append(i)
            waiting = left
            if not waiting:
                break
        return fits

    def _ridge(self, task: Task, term: Penalty) -> Fit:
        """The model of a squared loss with a smooth penalty."""
        system = Ridge(self.design, task.train, term.l2, self.intercept)
        middle = float(task.train @ task.target) if self.intercept else 0.0
        rows = task.train * (task.target - middle)
        w = system.solve(self.design.slopes(rows[:, None])[:, 0]) * self.design.varies
        offset = middle - float(system.mean @ w)
        scores = self.design.product(w) + offset
        return Fit(w, np.full(1, offset * self.intercept), scores[:, None])

    def _working(self, fit: Fit, term: Penalty) -> tuple[np.ndarray, bool]:
        """The entries that are open and those that most want to be, and whether there are such."""
        kinks, w, slope = term.kinks, fit.weights, fit.slope
        assert slope is not None
        entries, groups = kinks.pulls(w, slope + term.l2 * w)
        noise = NOISE * float(np.max(np.abs(slope), initial=0.0))
        over = np.maximum(entries - term.l1 - noise, 0.0)
        if term.labels is not None:
            more = np.append(np.maximum(groups - term.group - noise, 0.0), 0.0)[term.labels]
            over = over + np.where(np.abs(slope) > term.l1, more, 0.0)
        used = kinks.open(w) | (w != 0)
        count, most = int(np.count_nonzero(over)), 10 + int(np.count_nonzero(used)) // 4
        used |= over >= np.partition(over, -most)[-most] if count > most else over > 0
        varies = np.repeat(self.design.varies, len(w) // len(self.design.varies))
        return np.flatnonzero(used & varies), count > 0

    def quadratic(
        self, task: Task, fit: Fit, part: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The second derivatives of the training loss, and products with slopes of rows.

        Both are in the entries of `part`, then in the offsets.
        """
        outputs = task.outputs
        if outputs == 1:
            Z = self.design.columns(part)
            Z = np.column_stack([Z, np.ones(len(Z))]) if self.intercept else Z
            bend = task.train * self.loss.bend(fit.scores)[:, 0, 0]
            return (Z.T * bend) @ Z, Z.T @ rows[:, 0]
        features, place = np.divmod(part, outputs)
        used, again = np.unique(features, return_inverse=True)
        Z = self.design.columns(used)
        if self.intercept:
            Z = np.column_stack([Z, np.ones(len(Z))])
            again = np.concatenate([again, np.full(outputs, len(used))])
            place = np.concatenate([place, np.arange(outputs)])
        product = (Z.T @ rows)[again, place]
        bend = task.train[:, None, None] * self.loss.bend(fit.scores)
        H = np.empty((len(again), len(again)))
        at = [np.flatnonzero(place == a) for a in range(outputs)]
        for a in range(outputs):
            for b in range(a, outputs):
                block = ((Z.T * bend[:, a, b]) @ Z)[again[at[a]][:, None], again[at[b]]]
                H[at[a][:, None], at[b]] = block
                H[at[b][:, None], at[a]] = block.T
        if outputs > 1 and self.intercept:  # a constant added to all offsets changes nothing
            H[-outputs:, -outputs:] += 1.0
        return H, product

    def _newton(self, task: Task, term: Penalty, fit: Fit, part: np.ndarray) -> tuple[Fit, bool]:
        """A proximal Newton step on some entries, and whether it moved them."""
        rows = task.train[:, None] * self.loss.slope(fit.scores, task.target)
        H, slope = self.quadratic(task, fit, part, rows)
        free = len(slope) - len(part)
        z = np.concatenate([fit.weights[part], fit.offsets[:free]])
        more = np.concatenate([term.l2[part], np.zeros(free)])
        H[np.diag_indices(len(z))] += more
        kinks = _extended(term.kinks.on(part), free)
        target = minimum(H, slope + more * z - H @ z, kinks, z)
        return self._search(task, term, fit, part, z, target)

    def _search(
        self, task: Task, term: Penalty, fit: Fit, part: np.ndarray, z: np.ndarray, goal: np.ndarray
    ) -> tuple[Fit, bool]:
        """The first of ever shorter steps that lowers the objective."""
        move = goal - z
        size = float(np.max(np.abs(z), initial=0.0)) + float(np.max(np.abs(goal), initial=0.0))
        small = float(np.max(np.abs(move), initial=0.0)) <= SMALLEST * size
        if self.loss.quadratic:
            return self._placed(fit, part, goal, task.outputs), False
        value, length = self._value(task, term, fit), 1.0
        while length >= SMALLEST:
            trial = self._placed(fit, part, z + length * move, task.outputs)
            reached = self._value(task, term, trial)
            if reached <= value + 1e-13 * abs(value):
                return trial, not small
            length *= 0.25
        return fit, False

    def _value(self, task: Task, term: Penalty, fit: Fit) -> float:
        w = fit.weights
        loss = float(task.train @ self.loss.rows(fit.scores, task.target))
        return loss + term.kinks.value(w) + 0.5 * float(term.l2 @ w**2)

    def _placed(self, fit: Fit, part: np.ndarray, z: np.ndarray, outputs: int) -> Fit:
        """The model with entries and offsets from z."""
        weights, offsets = np.zeros_like(fit.weights), fit.offsets
        weights[part] = z[: len(part)]
        if self.intercept:
            offsets = z[len(part) :]
        scores = self.design.scores(weights.reshape(-1, outputs)) + offsets
        return Fit(weights, offsets, scores)

    def derivative(self, task: Task, term: Penalty, fit: Fit) -> Penalty:
        """The derivative of the held-out loss in the penalties, on the support of the model."""
        assert task.held is not None
        w, kinks = fit.weights, term.kinks
        rows = task.held[:, None] * self.loss.slope(fit.scores, task.target)
        if self.loss.quadratic and term.smooth:
            system = Ridge(self.design, task.train, term.l2, self.intercept)
            right = self.design.slopes(rows)[:, 0] - system.mean * float(rows.sum())
            return term._replace(l1=np.zeros_like(w), l2=-w * system.solve(right))
        part = np.flatnonzero(kinks.open(w) & (w != 0))
        H, slope = self.quadratic(task, fit, part, rows)
        k = len(part)
        H[np.arange(k), np.arange(k)] += term.l2[part]
        H[:k, :k] += kinks.bend(w, part)
        v = np.zeros_like(w)
        v[part] = -_solved(H, slope)[:k]
        group = np.zeros(len(term.group))
        if term.labels is not None:
            norms = kinks.norms(w)
            along = w * v / np.where(norms > 0, norms, 1.0)[term.labels]
            group = np.bincount(term.labels, along, len(term.group) + 1)[:-1]
        return Penalty(np.sign(w) * v, w * v, group, term.labels)


def _extended(kinks: Kinks, free: int) -> Kinks:
    """The term with entries behind it that are not penalised."""
    labels = kinks.labels
    if labels is not None:
        labels = np.concatenate([labels, np.full(free, len(kinks.group))])
    return kinks._replace(l1=np.concatenate([kinks.l1, np.zeros(free)]), labels=labels)


def _solved(H: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The solution of a system that is positive definite but for rounding."""
    unit = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    H = H * unit * unit[:, None]
    for more in (0.0, 1e-12, 1e-10, 1e-8):
        H[np.diag_indices(len(b))] += more
        factor, failed = dpotrf(H, lower=True, clean=False)
        if not failed:
            return unit * dpotrs(factor, unit * b, lower=True)[0]
    return unit * np.linalg.lstsq(H, unit * b, rcond=1e-8)[0]


def minimum(H: np.ndarray, c: np.ndarray, kinks: Kinks, z: np.ndarray) -> np.ndarray:
    """The minimum of a quadratic function plus a term, from z on."""
    if not len(z):
        return z
    if kinks.labels is None:
        found = _feature_sign(H, c, kinks.l1, z)
        if found is not None:
            return found
    return minimise_quadratic(H, c, kinks, z, tol=1e-9)


def _feature_sign(H: np.ndarray, c: np.ndarray, l1: np.ndarray, z: np.ndarray) -> np.ndarray | None:
    """The minimum of a lasso by changes of its signs, None if too many are needed.

    Reference: Lee, Battle, Raina & Ng, Efficient sparse coding algorithms, 2007.
    """
    noise = 1e-11 * float(np.max(np.abs(c)))
    w, slope = z, H @ z + c
    for _ in range(40 + len(z)):
        over = np.where((w == 0) & (l1 > 0), np.abs(slope) - l1, 0.0)
        worst = float(np.max(over))
        opened, goal = over > max(OPEN * worst, noise), w
        for _ in range(len(z)):
            signs = np.where(opened, -np.sign(slope), np.sign(w))
            part = np.flatnonzero((signs != 0) | (l1 == 0))
            goal = np.zeros_like(w)
            goal[part] = _solved(H[np.ix_(part, part)], -c[part] - l1[part] * signs[part])
            wrong = opened & (goal * signs < 0)
            if not np.any(wrong):
                break
            opened &= ~wrong
        w, changed = _first_zero(H, c, l1, w, goal)
        slope = H @ w + c
        closed = (w == 0) & (l1 > 0)
        if not changed and np.all(np.abs(slope[closed]) <= l1[closed] + noise):
            return w
    return None


def _first_zero(
    H: np.ndarray, c: np.ndarray, l1: np.ndarray, w: np.ndarray, goal: np.ndarray
) -> tuple[np.ndarray, bool]:
    """The lowest point on the way to a goal at which an entry is zero, or the goal itself."""
    crossed = np.flatnonzero((w * goal < 0) & (l1 > 0))
    if not crossed.size:
        return goal, False
    times = w[crossed] / (w[crossed] - goal[crossed])
    move = goal - w
    bend, slope = float(move @ (H @ move)), float(move @ (H @ w + c))
    tried = np.append(np.sort(times), 1.0)
    points = w + tried[:, None] * move
    values = 0.5 * bend * tried**2 + slope * tried + np.abs(points) @ l1
    k = int(np.argmin(values))
    target = points[k].copy()
    target[crossed[times == tried[k]]] = 0.0
    return target, True
