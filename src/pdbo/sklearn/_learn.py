r"""Penalties learned on held-out samples: their level, then their shape.

The penalty of parameter g is $e^t \omega_g$: a level t and a shape $\omega$. Both are chosen by the
mean loss on the rows that the splits hold out.

1. Level: a path from strong to weak penalties, then steps along the derivative of the loss.
2. Shape: $\omega_g = (|w_g| / \max|w| + \epsilon)^{-\gamma}$ with the weights w of the model
   before, which every split fits to its own samples. Rounds go on while the loss falls by more
   than noise.

References: Zou, The adaptive lasso and its oracle properties, 2006; Bühlmann & Meier, discussion of
One-step sparse estimates in nonconcave penalized likelihood models, 2008; Bertrand et al., Implicit
differentiation for fast hyperparameter selection in non-smooth convex learning, 2022.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._fit import Fit, Models, Penalty, Task

STEP = 0.4  # of the logarithm of the level along a path; smooth penalties take longer ones
SMOOTH_STEP = 1.0
LONGEST = 30  # the most steps of a path
PATIENCE = 2  # steps of a path without a lower loss after which it ends
SECANT = 25  # the most steps that refine a level
NARROW = 3e-4  # width of the levels that a minimum lies between at which a refinement ends
NEGLIGIBLE = 1e-11  # slopes, relative to the loss without weights, at which a refinement ends
SHAPES = ((2.0, 0.01), (3.0, 0.1))  # powers, and what is added to weights relative to the largest
SMOOTH_SHAPES = ((2.0, 0.01), (4.0, 0.01))  # of squares
SURE = 0.5  # standard errors over the rows by which the loss must fall for a shape to count


class Row(NamedTuple):
    """A point of the search: its stage, level and held-out loss, and the weights in use."""

    stage: str
    level: float
    loss: float
    nonzero: float


class Point(NamedTuple):
    """Penalties and the models for them.

    Attributes:
        shapes: for every task the penalties at level zero, those of all samples last.
        level: the logarithm that they are multiplied by.
        fits: the models of the splits.
        rows: what every row adds to the held-out loss, the mean over the splits.
        stage: how it was found.
    """

    shapes: list[Penalty]
    level: float
    fits: list[Fit]
    rows: np.ndarray
    stage: str

    @property
    def loss(self) -> float:
        """The mean over the splits."""
        return float(self.rows.sum())


class Parameters(NamedTuple):
    """What has its own penalty: the number of every weight, and of every group if there are any.

    `labels` has the group of every weight.
    """

    entry: np.ndarray
    group: np.ndarray | None
    size: int
    labels: np.ndarray | None = None

    def spread(self, shape: Penalty, log: np.ndarray) -> Penalty:
        """A penalty times the exponentials of numbers, one for each parameter.

        With L1 penalties the squares of an elastic net keep theirs.
        """
        by = np.exp(log)
        if self.group is not None:
            return shape._replace(l1=shape.l1 * by[self.entry], group=shape.group * by[self.group])
        if np.any(shape.l1 > 0):
            return shape._replace(l1=shape.l1 * by[self.entry])
        return shape._replace(l2=shape.l2 * by[self.entry])

    def squares(self, weights: np.ndarray) -> np.ndarray:
        """The mean square of the weights of each parameter."""
        members = np.maximum(np.bincount(self.entry, minlength=self.size), 1)
        squares = np.bincount(self.entry, weights**2, self.size) / members
        if self.group is not None and self.labels is not None:
            members = np.bincount(self.labels, minlength=len(self.group))
            squares[self.group] = np.bincount(self.labels, weights**2) / members
        return squares


def scaled(shape: Penalty, level: float) -> Penalty:
    """The penalties of a level."""
    by = np.exp(level)
    return shape._replace(l1=by * shape.l1, l2=by * shape.l2, group=by * shape.group)


class Learner:
    """The search for the penalties of one fit; `path` lists what was tried."""

    def __init__(self, models: Models, tasks: list[Task], whole: list[Task], name: str | None):
        self.models, self.tasks, self.whole, self.name = models, tasks, whole, name
        self.path: list[Row] = []
        self.blank = [models.blank(task) for task in tasks]
        self.splits = 1 + max(task.split for task in tasks)
        self.held = np.any([np.asarray(t.held) > 0 for t in tasks], axis=0)
        self.null = float(self._rows(self.blank).sum())
        # classes that can be told apart: the loss falls for ever, and means nothing any more
        self.least = 0.0 if models.loss.quadratic else 1e-3 * self.null

    def learn(self, bases: list[Penalty], parameters: Parameters | None, rounds: int) -> Point:
        """The best point of both stages; only the level is learned without parameters."""
        count = len(self.tasks) + len(self.whole)
        paths = (self.along([base] * count, "level") for base in bases)
        best = min(paths, key=_loss)
        if parameters is None or not any(np.any(fit.weights) for fit in best.fits):
            return self.refined(best)
        first = best.shapes[0]
        kinds = SMOOTH_SHAPES if first.smooth else SHAPES
        for turn in range(rounds):
            fits, stage = [*best.fits, *self.finish(best)], f"shape {turn + 1}"
            shapes = (self.reshaped(first, fits, parameters, *kind) for kind in kinds)
            found = min((self.around(shape, best, stage) for shape in shapes), key=_loss)
            if not self.surely_less(found, best):
                break
            best = found
        return self.refined(best)

    def _rows(self, fits: Sequence[Fit]) -> np.ndarray:
        """What every row adds to the held-out loss, the mean over the splits."""
        rows = np.zeros(self.models.design.shape[0])
        for task, fit in zip(self.tasks, fits, strict=True):
            rows += self.models.held(task, fit)
        return rows / self.splits

    def at(self, shapes: list[Penalty], level: float, fits: list[Fit], stage: str) -> Point:
        """The point of a level, which the path now lists."""
        return self.noted(self.solved(shapes, level, fits, stage))

    def solved(self, shapes: list[Penalty], level: float, fits: list[Fit], stage: str) -> Point:
        """The point of a level, from earlier models on."""
        terms = [scaled(shape, level) for shape in shapes[: len(self.tasks)]]
        fits = self.models.solve(self.tasks, terms, fits)
        return Point(shapes, level, fits, self._rows(fits), stage)

    def noted(self, point: Point) -> Point:
        """The point, which the path now lists."""
        count = float(np.mean([np.count_nonzero(fit.weights) for fit in point.fits]))
        self.path.append(Row(point.stage, point.level, point.loss, count))
        if self.name is not None:
            print(
                f"[{self.name}] {point.stage}: level {point.level:.3f}, "
                f"held-out loss {point.loss:.6g}"
            )
        return point

    # Level

    def top(self, shapes: list[Penalty]) -> float:
        """The level above which no weight is used; for smooth penalties a strong one."""
        slopes, most = self.models.slopes(self.tasks, self.blank), 0.0
        for slope, shape in zip(slopes, shapes, strict=False):
            if shape.labels is not None:
                most = max(most, _closing_level(slope, shape))
            elif np.any(shape.l1 > 0):
                most = max(most, float(np.max(np.abs(slope) / np.maximum(shape.l1, 1e-300))))
            else:
                most = max(most, 1e2 / float(np.median(shape.l2)))
        return float(np.log(max(most, 1e-12)))

    def along(self, shapes: list[Penalty], stage: str) -> Point:
        """The best point of a path from strong to weak penalties."""
        bounds = self.range(shapes)
        first = self.at(shapes, bounds[1], self.blank, stage)
        return self.walk(first, -_step(shapes), bounds)

    def around(self, shapes: list[Penalty], before: Point, stage: str) -> Point:
        """The best point near the level whose penalties weigh the models before as theirs did."""
        bounds = self.range(shapes)
        level = float(np.clip(before.level + _matched(shapes, before), *bounds))
        first = self.at(shapes, level, before.fits, stage)
        step = _step(shapes) * (-1 if self.slope(first) > 0 else 1)
        best = self.walk(first, step, bounds)
        return self.walk(first, -step, bounds) if best is first else best

    def walk(self, first: Point, step: float, bounds: tuple[float, float]) -> Point:
        """The best point of a walk through the levels, which ends when the loss rises."""
        point, best, since = first, first, 0
        while bounds[0] <= point.level + step <= bounds[1] + 1e-9:
            point = self.at(point.shapes, point.level + step, point.fits, point.stage)
            since = 0 if point.loss < best.loss - self.least else since + 1
            if point.loss < best.loss:
                best = point
            dense = self.path[-1].nonzero > 0.5 * self.models.design.shape[0]
            if since >= (2 * PATIENCE if best.loss >= self.null else 1 if dense else PATIENCE):
                break
        return best

    def range(self, shapes: list[Penalty]) -> tuple[float, float]:
        """The levels between which that of some shapes is chosen."""
        top = self.top(shapes)
        return top - LONGEST * _step(shapes), top

    def slope(self, point: Point) -> float:
        """The derivative of the mean held-out loss in the level."""
        total = 0.0
        for task, shape, fit in zip(self.tasks, point.shapes, point.fits, strict=False):
            term = scaled(shape, point.level)
            d = self.models.derivative(task, term, fit)
            total += float(d.l1 @ term.l1 + d.l2 @ term.l2 + d.group @ term.group)
        return total / self.splits

    def refined(self, point: Point) -> Point:
        """A local minimum near the best point of a path: one between it and a neighbour.

        The loss falls from the best point towards `far`, where it is higher or falls back. Both
        ends move, by the secant of their derivatives if these differ in sign, else by halves; by
        halves, too, if the step before left more than half, as happens at a kink.
        """
        if point.loss <= self.least:
            return point
        best, slope, step = point, self.slope(point), _step(point.shapes)
        far = float(np.clip(point.level - np.sign(slope) * step, *self.range(point.shapes)))
        pulls, moved, before = [slope, np.nan], None, np.inf  # pulls: at the best point, at `far`
        for _ in range(SECANT):
            length = far - best.level
            if abs(length) <= NARROW or abs(slope) <= NEGLIGIBLE * self.null:
                break
            secant = pulls[0] * pulls[1] < 0 and abs(length) <= 0.5 * before
            part, before = pulls[0] / (pulls[0] - pulls[1]) if secant else 0.5, abs(length)
            level = best.level + float(np.clip(part, 0.01, 0.99)) * length
            trial = self.at(point.shapes, level, best.fits, point.stage)
            there = self.slope(trial)
            if trial.loss > best.loss + 1e-14 * self.null:
                far, pulls[1], end = level, there, 1
            else:
                if there * slope <= 0:
                    far, pulls[1] = best.level, slope
                best, slope, pulls[0], end = trial, there, there, 0
            if end == moved:  # the Illinois rule: else one end may never move
                pulls[1 - end] *= 0.5
            moved = end
        return best

    # Shape

    def reshaped(
        self, shape: Penalty, fits: list[Fit], parameters: Parameters, power: float, floor: float
    ) -> list[Penalty]:
        """For every task the shape from the weights of its split; the given one if all are zero."""
        tasks = [*self.tasks, *self.whole]
        squares: dict[int, np.ndarray] = {}
        for task, fit in zip(tasks, fits, strict=True):
            more = parameters.squares(fit.weights)
            squares[task.split] = squares.get(task.split, 0.0) + more
        logs = {split: _log_sizes(square, floor) for split, square in squares.items()}
        return [parameters.spread(shape, -power * logs[task.split]) for task in tasks]

    def surely_less(self, point: Point, before: Point) -> bool:
        """Whether the loss fell by more than the least and by more than noise.

        Rows tell the noise of a difference better than a handful of splits would, and one split is
        enough.
        """
        fall = (before.rows - point.rows)[self.held]
        error = float(fall.std()) * len(fall) ** 0.5
        return bool(fall.sum() > SURE * error + self.least)

    def finish(self, point: Point) -> list[Fit]:
        """The models of all samples."""
        terms = [scaled(shape, point.level) for shape in point.shapes[len(self.tasks) :]]
        return self.models.solve(self.whole, terms, [self.models.blank(t) for t in self.whole])


def _loss(point: Point) -> float:
    return point.loss


def _step(shapes: list[Penalty]) -> float:
    return SMOOTH_STEP if shapes[0].smooth else STEP


def _matched(shapes: list[Penalty], before: Point) -> float:
    """The change of level after which the penalties of the models before are as large as theirs."""
    sizes = np.zeros(2)
    for shape, old, fit in zip(shapes, before.shapes, before.fits, strict=False):
        for k, term in enumerate((old, shape)):
            sizes[k] += term.kinks.value(fit.weights) + 0.5 * float(term.l2 @ fit.weights**2)
    return float(np.log(sizes[0] / sizes[1])) if np.all(sizes > 0) else 0.0


def _log_sizes(squares: np.ndarray, floor: float) -> np.ndarray:
    """The logarithms of sizes relative to the largest, bounded below; zero if all are zero."""
    most = float(np.max(squares))
    return np.log(np.sqrt(squares / most) + floor) if most > 0 else np.zeros_like(squares)


def _closing_level(slope: np.ndarray, shape: Penalty) -> float:
    """The level of a sparse group penalty at which every group is closed, by bisection."""
    assert shape.labels is not None
    least = max(float(np.min(shape.group)), 1e-300)
    low, high = 0.0, 1e-300 + float(np.linalg.norm(slope)) / least
    for _ in range(60):
        level = 0.5 * (low + high)
        over = np.maximum(np.abs(slope) - level * shape.l1, 0.0)
        norms = np.sqrt(np.bincount(shape.labels, over**2, len(shape.group) + 1))[:-1]
        low, high = (low, level) if np.all(norms <= level * shape.group) else (level, high)
    return high
