"""The bilevel problem of a penalised linear model, and descent along its implicit gradient.

x holds the logarithms of the penalties, y the weights of one model for each split: the inner
function fits every model to the training part of its split, the outer one is their loss on the
rows held out.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from .. import _trees as trees
from .._problem import Problem
from .._solver import Calls, Point, Solver
from ..linear import SparseMatrix
from ..solvers._aid import conjugate_gradient


class Data(eqx.Module):
    """What f and g depend on besides penalties and weights.

    Attributes:
        X: the features, a dense matrix or a `SparseMatrix`.
        shift: subtracted from every row of X, which nearly decouples intercept and weights.
        target: labels from 0 on.
        train, held: for each split a weight for every row: in the inner and in the outer loss.
        square: for each split and feature the sum of squares over its training part.
        log_scale: for each feature the logarithm of its variance, centred.
        groups: for each feature the number of its penalty; None if every weight has its own.
        intercept: 1, or 0 for a model without intercept.
    """

    X: Float[Array, "rows features"] | SparseMatrix
    shift: Float[Array, " features"]
    target: Shaped[Array, "rows ..."]
    train: Float[Array, "splits rows"]
    held: Float[Array, "splits rows"]
    square: Float[Array, "splits features"]
    log_scale: Float[Array, " features"]
    groups: Int[Array, " features"] | None
    intercept: Float[Array, ""]


class Loss(NamedTuple):
    """A loss.

    Attributes:
        rows: the loss of every row, from scores and target.
        curvature: the second derivative in every score.
        right: whether the scores of a row give the right answer.
    """

    rows: Callable[[Array, Array], Array]
    curvature: Callable[[Array], Array]
    right: Callable[[Array, Array], Array]


def _logistic(scores: Array, target: Array) -> Array:
    if scores.shape[-1] == 1:  # two classes
        z = scores[..., 0]
        return jax.nn.softplus(z) - target.astype(z.dtype) * z
    right = target[:, None] == jnp.arange(scores.shape[-1], dtype=target.dtype)
    return jax.nn.logsumexp(scores, -1) - jnp.sum(jnp.where(right, scores, 0), -1)


def _logistic_curvature(scores: Array) -> Array:
    two = scores.shape[-1] == 1
    p = jax.nn.sigmoid(scores) if two else jax.nn.softmax(scores, -1)
    return p * (1 - p)


def _right(scores: Array, target: Array) -> Array:
    if scores.shape[-1] == 1:
        return (scores[..., 0] > 0) == (target > 0)
    return jnp.argmax(scores, -1).astype(target.dtype) == target


LOGISTIC = Loss(_logistic, _logistic_curvature, _right)


def log_penalties(x: PyTree, data: Data) -> Float[Array, "splits features _"]:
    """The logarithm of the penalty for each split, feature and output (or one for all outputs)."""
    each = x["each"] if data.groups is None else x["each"][:, data.groups, None]
    return x["level"] + x["exponent"] * data.log_scale[:, None] + each


def scores(w: PyTree, data: Data) -> Float[Array, "splits rows outputs"]:
    """The scores of every row, for each split."""

    def one(weights: Array, offsets: Array) -> Array:
        return data.X @ weights + (data.intercept * offsets - data.shift @ weights)

    return jax.vmap(one)(w["weights"], w["offsets"])


def losses(loss: Loss, w: PyTree, data: Data) -> Float[Array, "splits rows"]:
    """The loss of every row, for each split."""
    return jax.vmap(loss.rows, (0, None))(scores(w, data), data.target)


def _means(
    weight: Float[Array, "splits rows"], rows: Float[Array, "splits rows"]
) -> Float[Array, " splits"]:
    """The weighted mean over the rows, for each split."""
    return jnp.sum(weight * rows, 1) / jnp.sum(weight, 1)


def make_problem(loss: Loss, data: Data) -> Problem:
    """The bilevel problem over log-penalties x and weights w."""
    return Problem(*_FUNCTIONS[loss], data=data)


def _functions(loss: Loss) -> tuple[Callable, Callable]:
    def held_out(x: PyTree, w: PyTree, data: Data) -> Float[Array, ""]:
        return jnp.mean(_means(data.held, losses(loss, w, data)))

    def fitted(x: PyTree, w: PyTree, data: Data) -> Float[Array, ""]:
        value = 0.5 * jnp.sum(jnp.exp(log_penalties(x, data)) * w["weights"] ** 2)
        if w["offsets"].shape[-1] > 1:
            # adding a constant to all intercepts changes nothing: this makes their sum zero
            value += 0.5 * jnp.sum(jnp.sum(w["offsets"], -1) ** 2)
        return jnp.sum(data.train * losses(loss, w, data)) + value

    return held_out, fitted


_FUNCTIONS = {LOGISTIC: _functions(LOGISTIC)}  # made once, so that jit recognises them


def _scale(loss: Loss, x: PyTree, w: PyTree, data: Data) -> PyTree:
    """About one over the root of the inner Hessian's diagonal: CG runs in these units."""
    total = jnp.sum(data.train, 1)[:, None]
    share = data.train[..., None] * loss.curvature(scores(w, data))
    bend = jnp.sum(share, 1) / total  # the mean curvature of a score, for each split and output
    bend = jnp.maximum(bend, jnp.sqrt(jnp.finfo(bend.dtype).eps))
    weights = bend[:, None, :] * data.square[:, :, None] + jnp.exp(log_penalties(x, data))
    offsets = bend * total + 1.0
    return jax.tree.map(lambda a: 1 / jnp.sqrt(a), {"weights": weights, "offsets": offsets})


class Effort(NamedTuple):
    """How far an inner solve goes.

    Attributes:
        newton: the most Newton steps.
        linear: the most CG steps per Newton step.
        tol: the Newton decrement, per root of the sample weights, at which it ends.
        accuracy: the relative residual at which CG ends.
    """

    newton: Int[Array, ""]
    linear: Int[Array, ""]
    tol: Float[Array, ""]
    accuracy: Float[Array, ""]


def _times(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.multiply, a, b)


class Report(NamedTuple):
    """What a step found out about the penalties it started from.

    Attributes:
        losses: the validation loss of each split.
        right: the share of right answers on its validation rows.
        decrement: the Newton decrement that the inner solve ended with.
        taken: the Newton steps it took.
    """

    losses: Float[Array, " splits"]
    right: Float[Array, " splits"]
    decrement: Float[Array, ""]
    taken: Int[Array, ""]


class Descent(NamedTuple):
    """The state of the outer loop.

    Attributes:
        x: the penalties for the next step.
        w: the weights of the penalties before.
        adjoint: the solution of the last adjoint system.
        mean, square: Adam's moments.
        t: the steps taken.
        report: what the last step found out.
    """

    x: PyTree
    w: PyTree
    adjoint: PyTree
    mean: PyTree
    square: PyTree
    t: Int[Array, ""]
    report: Report


class _Solve(NamedTuple):
    """The inner solve: weights, adjoint, Newton decrement, steps taken, whether it is done."""

    w: PyTree
    adjoint: PyTree
    decrement: Float[Array, ""]
    taken: Int[Array, ""]
    done: Bool[Array, ""]


def _inner(loss: Loss, problem: Problem, state: Descent, effort: Effort) -> _Solve:
    """Newton steps on the weights until they have settled, then the adjoint system.

    Both need the same Hessian, so one loop serves both: its last turn solves the adjoint system.
    """
    x, data = state.x, problem.data
    count = jnp.sum(data.train)
    eps = jnp.finfo(count.dtype).eps

    def turn(s: _Solve) -> _Solve:
        settled = (s.taken >= effort.newton) | (s.decrement <= effort.tol)
        slope, hessian = jax.linearize(jax.grad(lambda w: problem.inner(x, w)), s.w)
        aim = trees.where(settled, jax.grad(problem.outer, 1)(x, s.w), slope)
        scale = _scale(loss, x, s.w, data)
        guess = trees.where(settled, jax.tree.map(jnp.divide, s.adjoint, scale), zero)
        v = conjugate_gradient(
            lambda v: _times(scale, hessian(_times(scale, v))),
            _times(scale, aim),
            effort.linear,
            guess,
            tolerance=effort.accuracy,
        )
        v = _times(scale, v)
        gain = trees.dot(slope, v)
        value = problem.inner(x, s.w)
        rounding = 8 * eps * jnp.abs(value)

        def too_far(t: Float[Array, ""]) -> Bool[Array, ""]:
            after = problem.inner(x, trees.axpy(-t, v, s.w))
            return ~settled & ~(after <= value - 1e-4 * t * gain + rounding) & (t > 1e-6)

        t = lax.while_loop(too_far, lambda t: t / 2, jnp.ones_like(value))
        return _Solve(
            trees.where(settled, s.w, trees.axpy(-t, v, s.w)),
            trees.where(settled, v, s.adjoint),
            jnp.where(settled, s.decrement, jnp.sqrt(jnp.maximum(gain, 0) / count)),
            jnp.where(settled, s.taken, s.taken + 1),
            settled,
        )

    zero = trees.zeros_like(state.w)
    start = _Solve(state.w, state.adjoint, count + jnp.inf, jnp.zeros((), jnp.int32), count < 0)
    return lax.while_loop(lambda s: ~s.done, turn, start)


class PenaltyDescent(Solver):
    r"""Adam along the hypergradient $-\nabla^2_{xw} g\,(\nabla^2_{ww} g)^{-1}\nabla f$.

    The weights of a state belong to the penalties of the state before it.

    Attributes:
        loss: the loss of the model.
        validation: for each split the weights of the validation rows.
        rate: the step size of each part of x; zero keeps the part fixed.
        effort: how far the inner solve goes.
    """

    loss: Loss
    validation: Float[Array, "splits rows"]
    rate: PyTree
    effort: Effort

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array | None) -> Descent:
        """The state before the first step."""
        zero, none, t = trees.zeros_like(x), trees.zeros_like(y), jnp.zeros((), jnp.int32)
        unknown = jnp.zeros_like(self.validation[:, 0])
        report = Report(unknown, unknown, jnp.zeros_like(unknown[0]), t)
        return Descent(x, y, none, zero, zero, t, report)

    def step(self, problem: Problem, state: Descent) -> Descent:
        """The inner solve, the hypergradient and a step of Adam."""
        x, data = state.x, problem.data
        inner = _inner(self.loss, problem, state, self.effort)
        _, cross = jax.vjp(lambda x: jax.grad(problem.inner, 1)(x, inner.w), x)
        gradient = trees.scale(-1, cross(inner.adjoint)[0])
        t = state.t + 1
        mean = jax.tree.map(lambda m, g: 0.8 * m + 0.2 * g, state.mean, gradient)
        square = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g**2, state.square, gradient)
        x = _moved(x, mean, square, t.astype(self.validation.dtype), self.rate)
        report = self._report(inner, data)
        return Descent(x, inner.w, inner.adjoint, mean, square, t, report)

    def _report(self, inner: _Solve, data: Data) -> Report:
        reached = scores(inner.w, data)
        rows = jax.vmap(self.loss.rows, (0, None))(reached, data.target)
        right = self.loss.right(reached, data.target).astype(rows.dtype)
        losses, shares = (_means(self.validation, v) for v in (rows, right))
        return Report(losses, shares, inner.decrement, inner.taken)

    def output(self, state: Descent) -> Point:
        """The penalties, and the weights of the penalties before."""
        return Point(state.x, state.w)

    def calls(self, state: Descent) -> Calls:
        """One gradient of f per step; the work of the inner solves is not counted."""
        return Calls(state.t, 0 * state.t, 0 * state.t)


def _moved(x: PyTree, mean: PyTree, square: PyTree, age: Array, rate: PyTree) -> PyTree:
    """A step of Adam in which entries with small gradients move less than the others."""

    def one(x: Array, m: Array, s: Array, rate: Array) -> Array:
        size = jnp.sqrt(s / (1 - 0.95**age))
        there = jnp.maximum(jnp.sum((size > 0).astype(size.dtype)), 1)  # the rest is padding
        floor = 0.1 * jnp.sum(size) / there + jnp.finfo(size.dtype).tiny
        return x - rate * m / (1 - 0.8**age) / (size + floor)

    return jax.tree.map(one, x, mean, square, rate)
