r"""Penalties learned on held-out samples: their level, their shape, and one by one.

The penalty of parameter g is $e^t \omega_g e^{d_g}$: a level t, a shape $\omega$, deviations d. All
are chosen by the mean loss on the rows that the splits hold out.

1. Level: a path from strong to weak penalties, then steps along the derivative of the loss.
2. Shape: $\omega_g = (|w_g| / \max|w| + \epsilon)^{-\gamma}$ with the weights w of the model
   before, which every split fits to its own samples. Rounds go on while the loss falls.
3. Each: d minimises the loss plus $\tfrac\rho2\|d\|^2$. The strength $\rho$ is the one that does
   best on a split that had no part in d; d stays zero unless that is surely better.

References: Zou, The adaptive lasso and its oracle properties, 2006; Bühlmann & Meier, discussion of
One-step sparse estimates in nonconcave penalized likelihood models, 2008; Bertrand et al., Implicit
differentiation for fast hyperparameter selection in non-smooth convex learning, 2022.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize

from ._fit import Fit, Models, Penalty, Task

STEP = 0.4  # of the logarithm of the level along a path; smooth penalties take longer ones
SMOOTH_STEP = 1.0
LONGEST = 30  # the most steps of a path
PATIENCE = 2  # steps of a path without a lower loss after which it ends
SECANT = 12  # the most steps that refine a level
ROUNDS = 2  # the most rounds that change the shape
POWERS = (1.0, 2.0)  # exponents of a shape that are tried
FLOOR = 0.01  # added to weights, relative to the largest, before a power is taken
STRENGTHS = (0.01,)  # of the shrinkage of deviations that are tried, relative to the loss
BOUND = 3.0  # of the deviations


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
        losses: the held-out loss of every split.
        stage: how it was found.
        strength, deviations: the shrinkage in use, and the deviations; None before stage 3.
    """

    shapes: list[Penalty]
    level: float
    fits: list[Fit]
    losses: np.ndarray
    stage: str
    strength: float = 0.0
    deviations: np.ndarray | None = None

    @property
    def loss(self) -> float:
        """The mean over the splits."""
        return float(self.losses.mean())


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

    def gather(self, d: Penalty, term: Penalty) -> np.ndarray:
        """The derivative in these numbers, from that in the penalties."""
        entry = d.l1 * term.l1
        if self.group is None:
            entry = entry if np.any(term.l1 > 0) else d.l2 * term.l2
            return np.bincount(self.entry, entry, self.size)
        return np.bincount(self.entry, entry, self.size) + np.bincount(
            self.group, d.group * term.group, self.size
        )

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
        self.null = float(self._losses(tasks, self.blank).mean())
        # classes that can be told apart: the loss falls for ever, and means nothing any more
        self.least = 0.0 if models.loss.quadratic else 1e-3 * self.null

    def learn(self, bases: list[Penalty], parameters: Parameters | None, steps: int) -> Point:
        """The best point of all stages; only the level is learned without parameters."""
        count = len(self.tasks) + len(self.whole)
        best = self.lowest([[base] * count for base in bases], "level")
        if parameters is None or not any(np.any(fit.weights) for fit in best.fits):
            return self.refined(best)
        first = best.shapes[0]
        for turn in range(ROUNDS):
            fits = [*best.fits, *self.finish(best)]
            found = self.lowest(
                [self.reshaped(first, fits, parameters, power) for power in POWERS],
                f"shape {turn + 1}",
            )
            if not found.loss < best.loss:
                break
            best = found
        return self.each(self.refined(best), parameters, steps)

    def _losses(self, tasks: Sequence[Task], fits: Sequence[Fit]) -> np.ndarray:
        """The held-out loss of every split, summed over its targets."""
        values = np.zeros(self.splits)
        for task, fit in zip(tasks, fits, strict=True):
            values[task.split] += self.models.held(task, fit)
        return values

    def at(self, shapes: list[Penalty], level: float, fits: list[Fit], stage: str) -> Point:
        """The point of a level."""
        terms = [scaled(shape, level) for shape in shapes[: len(self.tasks)]]
        fits = self.models.solve(self.tasks, terms, fits)
        return self.noted(Point(shapes, level, fits, self._losses(self.tasks, fits), stage))

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

    def lowest(self, choices: list[list[Penalty]], stage: str) -> Point:
        """The best point of the paths of some shapes."""
        return min((self.along(shapes, stage) for shapes in choices), key=lambda p: p.loss)

    def along(self, shapes: list[Penalty], stage: str) -> Point:
        """The best point of a path from strong to weak penalties."""
        start, point, best, since = self.top(shapes), None, None, 0
        for k in range(LONGEST):
            fits = self.blank if point is None else point.fits
            point = self.at(shapes, start - k * _step(shapes), fits, stage)
            since = 0 if best is None or point.loss < best.loss - self.least else since + 1
            if best is None or point.loss < best.loss:
                best = point
            if since == (PATIENCE if best.loss < self.null else 2 * PATIENCE):
                break
        assert best is not None
        return best

    def range(self, point: Point) -> tuple[float, float]:
        """The levels between which that of a point is chosen."""
        top = self.top(point.shapes)
        return top - LONGEST * _step(point.shapes), top

    def slope(self, point: Point) -> float:
        """The derivative of the mean held-out loss in the level."""
        total = 0.0
        for task, shape, fit in zip(self.tasks, point.shapes, point.fits, strict=False):
            term = scaled(shape, point.level)
            d = self.models.derivative(task, term, fit)
            total += float(d.l1 @ term.l1 + d.l2 @ term.l2 + d.group @ term.group)
        return total / self.splits

    def refined(self, point: Point) -> Point:
        """The point near a point of a path where the derivative changes sign."""
        best, slope, step = point, self.slope(point), _step(point.shapes)
        least, most = self.range(point)
        lower, upper = max(point.level - step, least), min(point.level + step, most)
        ends = {True: (upper, np.nan), False: (lower, np.nan)}  # beyond the minimum, before it
        last = None
        for _ in range(SECANT):
            side = slope > 0
            other = ends[not side]
            if side == last:  # the Illinois rule: else one end may never move
                ends[not side] = (other[0], 0.5 * other[1])
            ends[side], last = (point.level, slope), side
            (high, above), (low, below) = ends[True], ends[False]
            if abs(slope) <= 1e-10 * self.null or high - low <= 1e-9:
                break
            part = below / (below - above) if np.isfinite(above - below) else 0.5
            level = low + float(np.clip(part, 0.01, 0.99)) * (high - low)
            point = self.at(point.shapes, level, point.fits, point.stage)
            slope = self.slope(point)
            if point.loss <= best.loss:
                best = point
        return best

    # Shape

    def reshaped(
        self, shape: Penalty, fits: list[Fit], parameters: Parameters, power: float
    ) -> list[Penalty]:
        """For every task the shape from the weights of its split; the given one if all are zero."""
        tasks = [*self.tasks, *self.whole]
        squares: dict[int, np.ndarray] = {}
        for task, fit in zip(tasks, fits, strict=True):
            more = parameters.squares(fit.weights)
            squares[task.split] = squares.get(task.split, 0.0) + more
        by = 2 * power if shape.smooth else power
        logs = {split: _log_sizes(square) for split, square in squares.items()}
        return [parameters.spread(shape, -by * logs[task.split]) for task in tasks]

    # Each

    def each(self, point: Point, parameters: Parameters, steps: int) -> Point:
        """Deviations of the penalties from their shape, if they do better on unseen samples."""
        if self.splits < 3:
            return point
        tuning = [_tuned_elsewhere(task, self.tasks) for task in self.tasks]
        terms = [scaled(shape, point.level) for shape in point.shapes]
        plain = self.models.solve(tuning, terms[: len(tuning)], point.fits)
        before = self._losses(self.tasks, plain)
        best, chosen, starts = np.inf, 0.0, np.zeros((self.splits, parameters.size))
        for strength in STRENGTHS:
            fits = list(plain)
            for k in range(self.splits):
                own = [i for i, task in enumerate(tuning) if task.split == k]
                starts[k], found, _ = self.descend(
                    [tuning[i] for i in own], [terms[i] for i in own], [fits[i] for i in own],
                    parameters, strength * point.loss, starts[k], steps,
                )  # fmt: skip
                for i, fit in zip(own, found, strict=True):
                    fits[i] = fit
            after = self._losses(self.tasks, fits)
            if after.mean() >= best:
                break
            if _surely_less(after, before):
                best, chosen = float(after.mean()), strength
        if not chosen:
            return point
        d, fits, losses = self.descend(
            self.tasks, terms[: len(self.tasks)], point.fits, parameters, chosen * point.loss,
            np.zeros(parameters.size), steps,
        )  # fmt: skip
        shapes = [parameters.spread(shape, d) for shape in point.shapes]
        found = Point(shapes, point.level, fits, losses, "each", chosen * point.loss, d)
        return self.noted(found)

    def descend(
        self, tasks: list[Task], terms: list[Penalty], fits: list[Fit], parameters: Parameters,
        strength: float, start: np.ndarray, steps: int,
    ) -> tuple[np.ndarray, list[Fit], np.ndarray]:  # fmt: skip
        """The deviations with the lowest held-out loss plus shrinkage, their models and losses."""
        splits = len({task.split for task in tasks})
        last = list(fits)

        def value(d: np.ndarray) -> tuple[float, np.ndarray]:
            moved = [parameters.spread(term, d) for term in terms]
            last[:] = self.models.solve(tasks, moved, last)
            total, slope = 0.5 * strength * float(d @ d), strength * d
            for task, term, fit in zip(tasks, moved, last, strict=True):
                total += self.models.held(task, fit) / splits
                derivative = self.models.derivative(task, term, fit)
                slope = slope + parameters.gather(derivative, term) / splits
            return total / self.null, slope / self.null

        used = np.flatnonzero(value(start)[1])  # those of weights that are zero stay as they are
        if not used.size:
            return start, last, self._losses(tasks, last)

        def part(d: np.ndarray) -> tuple[float, np.ndarray]:
            total, slope = value(_with(start, used, d))
            return total, slope[used]

        found = scipy.optimize.minimize(
            part, start[used], jac=True, method="L-BFGS-B", bounds=[(-BOUND, BOUND)] * len(used),
            options={"maxiter": steps, "maxfun": 2 * steps},
        )  # fmt: skip
        d = _with(start, used, found.x)
        value(d)
        return d, last, self._losses(tasks, last)

    def finish(self, point: Point) -> list[Fit]:
        """The models of all samples."""
        terms = [scaled(shape, point.level) for shape in point.shapes[len(self.tasks) :]]
        return self.models.solve(self.whole, terms, [self.models.blank(t) for t in self.whole])


def _with(values: np.ndarray, part: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Values with some of them replaced."""
    values = values.copy()
    values[part] = new
    return values


def _step(shapes: list[Penalty]) -> float:
    return SMOOTH_STEP if shapes[0].smooth else STEP


def _log_sizes(squares: np.ndarray) -> np.ndarray:
    """The logarithms of sizes relative to the largest, bounded below; zero if all are zero."""
    most = float(np.max(squares))
    return np.log(np.sqrt(squares / most) + FLOOR) if most > 0 else np.zeros_like(squares)


def _tuned_elsewhere(task: Task, tasks: list[Task]) -> Task:
    """The task with half of its training rows held out: those that the next splits hold out."""
    splits = 1 + max(t.split for t in tasks)
    held = np.zeros_like(task.train)
    for other in tasks:
        if 0 < (other.split - task.split) % splits <= (splits - 1) // 2:
            assert other.held is not None
            held = np.maximum(held, np.where(task.train > 0, other.held, 0.0))
    weight = np.where(held > 0, task.train, 0.0)
    train = task.train - weight
    if not (train.sum() > 0 and weight.sum() > 0):
        return task
    return task._replace(train=train / train.sum(), held=weight / weight.sum())


def _surely_less(losses: np.ndarray, first: np.ndarray) -> bool:
    """Whether the losses fell by more than a standard error over the splits."""
    fall = first - losses
    return bool(fall.mean() > fall.std(ddof=1) / len(fall) ** 0.5)


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
