"""An accurate first-order minimiser over a convex set, for inner values nobody has to trust."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._sets import Set


class Minimum(NamedTuple):
    """The best point found, its value and its projected-gradient residual."""

    point: PyTree
    value: Array
    residual: Array


class Search(NamedTuple):
    """Where a search is, and how it goes on."""

    z: PyTree
    value: Array
    gradient: PyTree
    step: Array  # trial step
    reference: Array  # the value a trial has to stay below: a decaying average of past ones
    best: Minimum
    stalled: Array  # iterations since the best residual last fell by a tenth
    taken: Array


def minimize(
    function: Callable[[PyTree], Array], constraint: Set, start: PyTree, iterations: Any
) -> Minimum:
    """The best point of a search as accurate as the arithmetic allows."""
    return search(function, constraint, start, iterations).best


def search(
    function: Callable[[PyTree], Array],
    constraint: Set,
    start: PyTree,
    iterations: Any,
    tol: Any = 0.0,
    step: Any = None,
) -> Search:
    r"""Spectral projected gradient: $z^+ = P(z - s \nabla\phi(z))$ with Barzilai-Borwein steps s.

    Needs no constants of the function, one gradient an iteration, and stops where the residual is
    at most `tol`, or at the accuracy its arithmetic allows; `step` is the first trial. A trial is
    kept where the value stays below a decaying average of past values plus their rounding;
    otherwise the step is cut to a quarter.

    References: Birgin, Martinez & Raydan, SIAM J. Optim. 10 (2000); Zhang & Hager, SIAM J.
    Optim. 14 (2004) for the average.
    """
    value_and_grad = jax.value_and_grad(function)
    start = constraint.project(start)
    value, gradient = value_and_grad(start)
    eps = jnp.finfo(value.dtype).eps
    residual = trees.length(constraint.tangent(start, trees.scale(-1, gradient)))
    if step is None:  # by a hundredth of the size of the point; the secant takes over from there
        step = 0.01 * (1 + trees.length(start)) / jnp.maximum(trees.length(gradient), eps)
    best = Minimum(start, value, residual)
    zero = jnp.zeros((), jnp.int32)
    first = Search(start, value, gradient, step, value, best, zero, zero)

    def going(s: Search) -> Array:
        return (s.taken < iterations) & (s.best.residual > tol) & (s.stalled < 60)

    def trial(s: Search) -> Search:
        z = constraint.project(trees.axpy(-s.step, s.gradient, s.z))
        value, gradient = value_and_grad(z)
        move, change = trees.sub(z, s.z), trees.sub(gradient, s.gradient)
        rounding = 8 * eps * jnp.maximum(jnp.abs(value), jnp.abs(s.reference))
        slope = trees.dot(s.gradient, move)
        keep = value <= s.reference + 1e-4 * slope + rounding  # false for NaN
        residual = trees.length(constraint.tangent(z, trees.scale(-1, gradient)))
        ss, sy, yy = trees.dot(move, move), trees.dot(move, change), trees.dot(change, change)
        # alternate the long and the short secant step; with no curvature lengthen the last one
        long, short = ss / jnp.where(sy > 0, sy, 1), sy / jnp.where(yy > 0, yy, 1)
        secant = jnp.where(s.taken % 2 == 0, long, short)
        longer = jnp.where((sy > 0) & (yy > 0), secant, 4 * s.step)
        step = jnp.where(keep, longer, s.step / 4)
        better = keep & (
            (value < s.best.value - rounding)
            | ((value <= s.best.value + rounding) & (residual < s.best.residual))
        )
        best = trees.where(better, Minimum(z, value, residual), s.best)
        progress = better & (
            (residual < 0.9 * s.best.residual) | (value < s.best.value - 10 * rounding)
        )
        reference = jnp.where(keep, 0.5 * s.reference + 0.5 * value, s.reference)
        z, value, gradient = trees.where(keep, (z, value, gradient), (s.z, s.value, s.gradient))
        return Search(
            z,
            value,
            gradient,
            step,
            jnp.maximum(reference, value),
            best,
            jnp.where(progress, 0, s.stalled + 1),
            s.taken + 1,
        )

    return lax.while_loop(going, trial, first)
