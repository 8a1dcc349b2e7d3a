"""The default where every batch holds all examples: implicit gradients, with no noise to fear."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _trees as trees
from .._minimize import minimize
from .._problem import Problem
from .._solver import Calls, Point
from ..exact.degree import degree
from ..sets import Free

RATES, TRIAL = 8, 6  # rates of x that are tried, from 4^-7 in factors of 4, and steps of each
MORE = 24  # the most rates tried beyond these, where the best one is the first or the last
ROUND = 100  # steps of a round
CAUTION = 4  # the rate of the lowest trial, over that of the first round
INNER, SETTLE = 20, 200  # gradients of g for y in a step, and in the last one of a round
PRODUCTS, CLOSE = 40, 0.03  # the most products for the adjoint, and the residual that is enough
MEAN, SQUARE = 0.9, 0.99  # what is kept of the averages of slopes and of their squares
EXAMPLES = 10  # of f for each number that they have to determine
GAIN, LEAST = 0.01, 1e-6  # the share of all gains that a round has to add if they do not, and else
PATIENCE = 4  # rounds without improvement that end a run
FIRST, LAST = 4.0**-7, 4.0 ** (RATES - 8)
_TINY = 1e-30
UNSOUND = -1  # in place of the number of steps, after one that was not finite


class WholeState(eqx.Module):
    """Where the run stands, the best round so far, and averages of the slope of x.

    `round` counts trials and then rounds, `k` the steps of one; in its last step x rests and y is
    brought to the inner minimum. `value` is f in the best round and `first` before all rounds.
    `trial` is the rate that is tried, `more` how many beyond the usual ones may follow.
    """

    t: Int[Array, ""]
    round: Int[Array, ""]
    k: Int[Array, ""]
    idle: Int[Array, ""]
    x: PyTree
    y: PyTree
    best: tuple[PyTree, PyTree]
    mean: PyTree
    square: PyTree
    value: Float[Array, ""]
    first: Float[Array, ""]
    tried: Float[Array, ""]
    trial: Float[Array, ""]
    more: Int[Array, ""]
    rate: Float[Array, ""]
    gradients: Int[Array, ""]
    products: Int[Array, ""]


def applies(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether batches hold all examples, y is free and not split, and g has second derivatives."""
    if problem.splits_point or not (problem.view.whole and isinstance(problem.y_set, Free)):
        return False
    try:
        jax.eval_shape(lambda x, y: adjoint(problem, x, y), x, y)
    except Exception:  # g has no second derivatives
        return False
    return True


def is_undetermined(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether f has too few examples to determine x, or y if f sees x by y alone.

    Then later and smaller gains fit their noise, and an inner estimate that has learnt its own
    examples by heart tells less about them. A step sees one batch; all examples count.
    """
    enough = examples_needed(problem, x, y)
    every = problem.on_all().view
    return every.in_batches and every.parts(enough) < enough


def examples_needed(problem: Problem, x: PyTree, y: PyTree) -> int:
    """The examples of f that determine a solution; f may see x by y alone, and y be smaller."""
    entries = [sum(np.size(leaf) for leaf in jax.tree.leaves(z)) for z in (x, y)]
    program = jax.make_jaxpr(problem.outer)(*jax.eval_shape(lambda: (x, y))).jaxpr
    leaves = [len(jax.tree.leaves(z)) for z in (x, y)]
    sees_x = degree(program, leaves[0] * [1.0] + leaves[1] * [0.0]) > 0
    return EXAMPLES * (entries[0] if sees_x else min(entries))


def rate_after(
    tried: Float[Array, ""], best: Float[Array, ""], first: float, last: float, doubled: ArrayLike
) -> tuple[Bool[Array, ""], Float[Array, ""]]:
    """Whether to try a rate beyond the first or the last one, and which.

    Only if the best one so far is the outermost on its side; a higher one only if the last has at
    least doubled the gain, as it does while the way is long.
    """
    up = (best == tried) & (tried >= last) & doubled
    outermost = jnp.where(tried >= last, first, tried)
    down = (best == outermost) & (outermost <= first)
    return up | down, jnp.where(up, 4 * tried, outermost / 4)


def begin(problem: Problem, x: PyTree, y: PyTree) -> WholeState:
    """The state before the first step, which brings y to an inner minimum."""
    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), trees.dtype(x))
    return WholeState(
        t=zero, round=zero - RATES - 1, k=zero, idle=zero, x=x, y=y, best=(x, y),
        mean=trees.zeros_like(x), square=trees.zeros_like(x), value=0 * one, first=0 * one,
        tried=one * _most(one), trial=one * FIRST, more=zero + MORE,
        rate=0 * one, gradients=zero, products=zero,
    )  # fmt: skip


def walk(problem: Problem, s: WholeState) -> WholeState:
    """A step of y towards the inner minimum, then one of x along the implicit gradient."""
    k, length = s.k + 1, _length(s)
    rests = k >= length
    effort = jnp.where(rests, SETTLE, INNER)
    flat, shaped = ravel_pytree(s.y)  # one array: the program of many is long to compile
    flat = minimize(lambda v: problem.inner(s.x, shaped(v)), Free(), flat, effort).point
    y = shaped(flat)
    slope, products = adjoint(problem, s.x, y)
    sound = trees.finite((y, slope))
    count = k.astype(s.rate.dtype)
    share = count / length
    rate = jnp.where(rests, 0, jnp.where(s.round < 0, s.trial, s.rate * (1 - share)))
    mean = jax.tree.map(lambda m, v: MEAN * m + (1 - MEAN) * v, s.mean, slope)
    square = jax.tree.map(lambda m, v: SQUARE * m + (1 - SQUARE) * v**2, s.square, slope)
    mean_of, square_of = 1 - MEAN**count, 1 - SQUARE**count
    x = jax.tree.map(
        lambda x, m, v: x - rate * (m / mean_of) / (jnp.sqrt(v / square_of) + _TINY),
        s.x, mean, square,
    )  # fmt: skip
    moved = (problem.x_set.project(x), y, mean, square)
    x, y, mean, square = trees.where(sound, moved, (s.x, s.y, s.mean, s.square))
    return _with(
        s, x=x, y=y, mean=mean, square=square, t=s.t + 1, k=jnp.where(sound, k, UNSOUND),
        gradients=s.gradients + effort + 1, products=s.products + products,
    )  # fmt: skip


def due(s: WholeState) -> Bool[Array, ""]:
    """Whether a trial or a round is over."""
    return (s.k >= _length(s)) | (s.k == UNSOUND)


def turn(problem: Problem, s: WholeState) -> WholeState:
    """The end of the first step, of a trial or of a round, judged by f at the inner minimum."""
    value = problem.outer(s.x, s.y)
    value = jnp.where((s.k != UNSOUND) & jnp.isfinite(value), value, _most(value))
    opening, trying = s.round < -RATES, (s.round >= -RATES) & (s.round < 0)
    found = trying & (value < s.tried)
    share = GAIN if is_undetermined(problem, s.x, s.y) else LEAST
    better = (s.round >= 0) & (value < s.value - share * (s.first - s.value))
    x, y = trees.where(better | opening, (s.x, s.y), s.best)
    clean = trees.zeros_like(s.mean)
    failed = (s.round >= 0) & ~better
    rate = jnp.where(found, s.trial / CAUTION, jnp.where(failed, s.rate / 4, s.rate))
    doubled = s.first - value > 2 * (s.first - s.tried)
    beyond, other = rate_after(s.trial, CAUTION * rate, FIRST, LAST, doubled)
    again = (s.round == -1) & beyond & (s.more > 0)
    return _with(
        s, x=x, y=y, best=(x, y), mean=clean, square=clean, rate=rate, k=0 * s.k,
        value=jnp.where(better | opening, value, s.value),
        first=jnp.where(opening, value, s.first), tried=jnp.where(found, value, s.tried),
        trial=jnp.where(again, other, jnp.where(trying, 4 * s.trial, s.trial)),
        more=jnp.where(again, s.more - 1, s.more),
        round=jnp.where(again, s.round, s.round + 1), idle=jnp.where(failed, s.idle + 1, 0),
    )  # fmt: skip


def output(s: WholeState) -> Point:
    """The best round."""
    return Point(*s.best)


def settled(s: WholeState) -> Bool[Array, ""]:
    """Whether the last rounds brought nothing."""
    return s.idle >= PATIENCE


def calls(s: WholeState) -> Calls:
    """A gradient of f per step; gradients of g and products as counted."""
    return Calls(s.t, s.gradients, s.products)


def _most(value: Float[Array, ""]) -> float:
    """More than any value of f; a state holds finite numbers only."""
    return float(jnp.finfo(value.dtype).max)


def _length(s: WholeState) -> Int[Array, ""]:
    return jnp.where(s.round < -RATES, 1, jnp.where(s.round < 0, TRIAL, ROUND))


def adjoint(problem: Problem, x: PyTree, y: PyTree) -> tuple[PyTree, Int[Array, ""]]:
    r"""The implicit gradient $f_x + g_{xy} v$ with $g_{yy} v = -f_y$, and the products it took.

    Conjugate gradients from zero, which end where g does not curve upwards.
    """
    f_x, f_y = jax.grad(problem.outer, (0, 1))(x, y)
    flat, shaped = ravel_pytree(y)
    slope = lambda v: jax.grad(lambda x, v: problem.inner(x, shaped(v)), (0, 1))(x, v)  # noqa: E731
    b = -ravel_pytree(f_y)[0]
    size = b @ b

    def going(c: tuple) -> Bool[Array, ""]:
        *_, rr, count, on = c
        return on & (count < PRODUCTS) & (rr > CLOSE**2 * size)

    def once(c: tuple) -> tuple:
        v, r, p, rr, count, _ = c
        bent = jax.jvp(slope, (flat,), (p,))[1][1]
        curvature = p @ bent
        on = curvature > 0
        length = jnp.where(on, rr / jnp.where(on, curvature, 1), 0)
        v, r = v + length * p, r - length * bent
        new = r @ r
        p = r + new / jnp.where(rr > 0, rr, 1) * p
        return v, r, p, new, count + 1, on

    start = (jnp.zeros_like(b), b, b, size, jnp.zeros((), jnp.int32), size > 0)
    v, *_, count, _ = lax.while_loop(going, once, start)
    along = jax.jvp(slope, (flat,), (v,))[1][0]
    return trees.add(f_x, along), count + 1


def _with(state: WholeState, **changed: PyTree) -> WholeState:
    """A state with some fields changed."""
    fields = {name: getattr(state, name) for name in state.__dataclass_fields__}
    return WholeState(**(fields | changed))
