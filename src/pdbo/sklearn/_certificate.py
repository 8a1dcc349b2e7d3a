"""The certificate of learned penalties: how nearly the weights and the level are minimisers."""

from typing import Any, NamedTuple

import numpy as np

from .._certify import certify
from .._precision import double
from ._fit import Fit, Models, Penalty, Task
from ._learn import Learner, Point, scaled
from ._search import Learned as Found

GAP = 1e-6  # the largest relative gap of an exact fit
NEAR = 1e-3  # the largest distance to a minimum, in logarithms of penalties
NO_LOSS = 1e-20  # a loss that is rounding: targets have unit variance, or there are classes
NOTHING = 1e-8  # a held-out loss, relative to that without weights, that is as good as zero
DISTANCES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # that are tried
WHERE = {
    "minimum": "a smooth minimum of the held-out loss",
    "kink": "a minimum of the held-out loss where features enter or leave the model",
    "strongest": "at the strongest penalties that were tried, where the held-out loss is lowest",
    "weakest": "at the weakest penalties that were tried, where the held-out loss is lowest",
    "negligible": "where the held-out loss is negligible and its minimum was not looked for",
    "unknown": "not near a minimum of the held-out loss",
}


class PenaltyCertificate(NamedTuple):
    """Whether the weights minimise the problem of their penalties, and the level the held-out loss.

    Attributes:
        inner_gap: a bound on how far the objective of a fit is above its minimum, relative to that
            of the model without weights: the largest over the models of the splits and the final
            one.
        distance: how far, in logarithms of the common level of the penalties, a minimum of the
            held-out loss is away at most: the loss falls towards the level from below and rises
            above it.
        below, above: the derivatives of the held-out loss in the logarithm of the level at that
            distance below and above, relative to the loss of the model without weights.
        where: "minimum"; "kink", if features enter or leave the model there; "strongest" or
            "weakest", if the level is at an end of those tried; "negligible", if the held-out loss
            is next to nothing, so that its minimum means nothing; or "unknown".
    """

    inner_gap: float
    distance: float
    below: float
    above: float
    where: str

    @property
    def eps(self) -> float:
        """The larger of gap and distance."""
        return max(self.inner_gap, self.distance)

    @property
    def ok(self) -> bool:
        """Whether the gap is at most 1e-6 and the distance at most 1e-3."""
        return self.inner_gap <= GAP and self.distance <= NEAR

    @property
    def in_words(self) -> str:
        """What it says, in a sentence."""
        near = f"within {self.distance:.0e} of " if self.where in ("minimum", "kink") else ""
        return (
            f"The weights minimise their problem to {self.inner_gap:.1e}, and the logarithm of the "
            f"level is {near}{WHERE[self.where]}."
        )

    def __str__(self) -> str:
        return self.in_words


def certificate(learned: Any) -> Any:
    """The certificate of what was learned; with very many weights that of `pdbo.certify`."""
    if isinstance(learned, Found):
        with double():
            return certify(learned.problem, learned.x, learned.w)
    learner, point = learned.learner, learned.point
    tasks = [*learner.tasks, *learner.whole]
    terms = [scaled(shape, point.level) for shape in point.shapes]
    gap = max(gaps(learner.models, tasks, terms, [*point.fits, *learned.fits]))
    return PenaltyCertificate(gap, *_level(learner, point))


def gaps(models: Models, tasks: list[Task], terms: list[Penalty], fits: list[Fit]) -> list[float]:
    """For every model a bound on how far its objective is above the minimum.

    The loss is convex, so it lies above its tangent; the penalties less the tangent are minimised
    in closed form, among weights whose penalties are at most the objective reached.
    """
    found = []
    for task, term, fit, slope in zip(tasks, terms, fits, models.slopes(tasks, fits), strict=True):
        w, rows = fit.weights, models.loss.rows(fit.scores, task.target)
        penalty = term.kinks.value(w) + 0.5 * float(term.l2 @ w**2)
        over = np.maximum(np.abs(slope) - term.l1, 0.0)
        squared = term.l2 > 0
        lower = float(np.sum(over[squared] ** 2 / (2 * term.l2[squared])))
        excess = _excess(np.where(squared, 0.0, over), term)
        lower += excess * (float(task.train @ rows) + penalty) if excess > 0 else 0.0
        gap = penalty + float(slope @ w) + lower
        if models.intercept:
            part = task.train[:, None] * models.loss.slope(fit.scores, task.target)
            gap += float(np.abs(part.sum(0)) @ (1 + np.abs(fit.offsets)))
        null = float(task.train @ models.loss.rows(models.blank(task).scores, task.target))
        found.append(max(gap, 0.0) / (null if null > NO_LOSS else 1.0))
    return found


def _excess(over: np.ndarray, term: Penalty) -> float:
    """By which part of the penalties slopes exceed them at most."""
    if term.labels is not None:
        over = np.sqrt(np.bincount(term.labels, over**2, len(term.group) + 1))[:-1]
        over, weight = np.maximum(over - term.group, 0.0), term.group
    else:
        weight = term.l1
    part = over > 0
    if not np.any(part):
        return 0.0
    return float(np.max(over[part] / weight[part])) if np.all(weight[part] > 0) else np.inf


def _level(learner: Learner, point: Point) -> tuple[float, float, float, str]:
    """The distance to a minimum of the held-out loss, its derivatives there, and its kind."""
    low, high = learner.range(point.shapes)
    null = learner.null if learner.null > NO_LOSS else 1.0
    if point.loss <= max(learner.least, NOTHING * null):
        return np.inf, np.nan, np.nan, "negligible"
    below, above = np.nan, np.nan
    for distance in DISTANCES:
        ends = (point.level - distance, point.level + distance)
        beside = [learner.solved(point.shapes, level, point.fits, "") for level in ends]
        below, above = (learner.slope(p) / null for p in beside)
        if point.level > high - distance and below <= 0:
            return distance, below, above, "strongest"
        if point.level < low + distance and above >= 0:
            return distance, below, above, "weakest"
        if below <= 0 <= above:
            used = [[np.flatnonzero(fit.weights) for fit in p.fits] for p in beside]
            same = all(np.array_equal(a, b) for a, b in zip(*used, strict=True))
            return distance, below, above, "minimum" if same else "kink"
    return np.inf, below, above, "unknown"
