"""The bilevel problem of a level of penalties, for the solvers of the library."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._problem import Problem
from ..sets import Box
from ..terms import L1, SparseGroup
from ._fit import Penalty
from ._learn import scaled
from ._penalties import LOGISTIC
from ._search import Learned as Found


class Numbers(NamedTuple):
    """The data of the problem: rows, targets, weights and penalties, one layer for each model."""

    Z: Array
    target: Array
    train: Array
    held: Array
    l1: Array
    l2: Array
    group: Array


def problem(learned: Any) -> tuple[Problem, PyTree, PyTree]:
    """The bilevel problem on the features in use, with the x and y found."""
    if isinstance(learned, Found):
        return learned.problem, learned.x, learned.w
    learner, point = learned.learner, learned.point
    models, tasks = learner.models, learner.tasks
    outputs, quadratic = tasks[0].outputs, models.loss.quadratic
    used, entries = _in_use(point, outputs)
    if not entries.size:
        raise ValueError("No feature is in use, so there is no problem to solve.")
    terms = [_on(scaled(s, point.level), entries) for s in point.shapes[: len(tasks)]]
    data = Numbers(
        *(jnp.asarray(v) for v in (
            models.design.columns(used),
            np.stack([t.target for t in tasks]),
            np.stack([t.train for t in tasks]),
            np.stack([t.held for t in tasks]),
            np.stack([t.l1 for t in terms]),
            np.stack([t.l2 for t in terms]),
            np.stack([t.group for t in terms]),
        ))
    )  # fmt: skip
    y = {"weights": np.stack([f.weights[entries] for f in point.fits])}
    if models.intercept:
        y["offsets"] = np.stack([f.offsets for f in point.fits])
    f, g = _functions(quadratic, outputs, learner.splits)
    term = _term(data, terms[0], models.intercept)
    x_set = Box(*(v - point.level for v in learner.range(point.shapes)))
    built = Problem(f, g, data, x_set=x_set, inner_term=term)
    return built, jnp.zeros(()), jax.tree.map(jnp.asarray, y)


def _in_use(point: Any, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """The features in use in some split, and all their weights."""
    some = np.any([f.weights.reshape(-1, outputs) != 0 for f in point.fits], axis=(0, 2))
    labels = point.shapes[0].labels
    if labels is not None:
        some = (np.bincount(labels, some) > 0)[labels]
    used = np.flatnonzero(some)
    return used, (used[:, None] * outputs + np.arange(outputs)).ravel()


def _on(term: Penalty, entries: np.ndarray) -> Penalty:
    """The penalties of some entries; their groups are whole."""
    kinks = term.kinks.on(entries)
    return Penalty(kinks.l1, term.l2[entries], kinks.group, kinks.labels)


def _functions(quadratic: bool, outputs: int, splits: int) -> Any:
    """The outer and the inner function of the logarithm of the level."""

    def losses(y: PyTree, data: Numbers) -> Array:
        scores = jnp.einsum("ij,tjc->tic", data.Z, y["weights"].reshape(len(data.l1), -1, outputs))
        if "offsets" in y:
            scores = scores + y["offsets"][:, None]
        if quadratic:
            return 0.5 * (scores[..., 0] - data.target) ** 2
        return jax.vmap(LOGISTIC.rows)(scores, data.target)

    def f(x: Array, y: PyTree, data: Numbers) -> Array:
        return jnp.sum(data.held * losses(y, data)) / splits

    def g(x: Array, y: PyTree, data: Numbers) -> Array:
        squares = jnp.exp(x) * data.l2 * y["weights"] ** 2
        value = jnp.sum(data.train * losses(y, data)) + 0.5 * jnp.sum(squares)
        if outputs > 1 and "offsets" in y:  # a constant added to all offsets changes nothing
            value += 0.5 * jnp.sum(jnp.sum(y["offsets"], -1) ** 2)
        return value

    return f, g


def _term(data: Numbers, first: Penalty, intercept: bool) -> Any:
    """The nonsmooth part, None if there is none."""
    if first.smooth:
        return None

    def l1(x: Array) -> PyTree:
        weights = {"weights": data.l1 * jnp.exp(x)}
        return weights | {"offsets": 0.0} if intercept else weights

    if first.labels is None:
        return L1(l1)
    models, groups = len(data.l1), data.group.shape[1]
    labels = {"weights": np.arange(models)[:, None] * groups + first.labels}
    if intercept:
        labels["offsets"] = np.full((models, 1), -1)
    ordered = {k: labels[k] for k in sorted(labels)}
    return SparseGroup(l1, lambda x: (data.group * jnp.exp(x)).ravel(), ordered)
