"""The certificate: how far a point is from satisfying the optimality conditions, recomputed."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._checks import traced
from ._minimize import Minimum, minimize
from ._problem import Problem
from .sets import Set

MAX_SLACK = 1e-6
"""The largest relaxation of the inner problem that a certificate grants by itself."""

NEAR = 1e-6  # relative: how far from x a kink of the value function may lie
ASIDE = 1e-3  # relative: a step in x that looks for one


class Certificate(eqx.Module):
    r"""How well a point satisfies the $\epsilon$-KKT conditions of the value-function problem.

    The problem certified is $\min f(z)$ over $z \in X \times Y$ subject to
    $h(z) = g(z) - g^*(x) - \text{slack} \le 0$ (Definition 1 of the paper).

    Attributes:
        stationarity: $\mathrm{dist}(\nabla f + \lambda \nabla h, -N(z))$.
        feasibility: the larger of $[h(z)]_+$ and the distance of the point to its sets.
        complementarity: $|\lambda h(z)|$.
        distance: how far from the given point the point z lies at which the entries above were
            measured; zero unless the conditions hold better at a neighbour, which Definition 1
            allows.
        inner_gap: $g(x, y) - \min g(x, \cdot)$ at the given point, from an inner solve of its own.
        inner_residual: the projected gradient that inner solve ended with; the gap is as good
            as this is small.
        multiplier: the $\lambda \ge 0$ used.
        slack: the relaxation for which the entries hold.
        eps: the largest of stationarity, complementarity, distance and how far the point is from
            feasible: its distance to its sets, and the root of $[h]_+$, since h grows like the
            square of the distance from the inner solutions. Where the gradient of f, or the range
            of g, is below one around the point, its entries count relative to it.
    """

    stationarity: Any
    feasibility: Any
    complementarity: Any
    distance: Any
    inner_gap: Any
    inner_residual: Any
    multiplier: Any
    slack: Any
    eps: Any

    def __str__(self) -> str:
        rows = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return "\n".join(f"{name:<16}{_number(value)}" for name, value in rows.items())


def _number(value: Any) -> str:
    if traced(value) or np.ndim(value) > 0:
        return str(value)
    return f"{float(value):10.3e}"


def measure(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    multiplier: Array | None,
    slack: Array | None,
    max_slack: Any,
    iterations: Any,
    neighbour: bool = True,
    eps: float | None = None,
) -> Certificate:
    """The traceable heart of `certify`; without `neighbour` only the point itself is measured.

    `eps` is the precision the point was computed in, where its dtype has a higher one.
    """
    z_set = _Pair(problem, eps)
    max_slack = jnp.asarray(max_slack, trees.dtype(x))
    inner, point, large = _inner_and_neighbour(problem, x, y, iterations, neighbour)
    scale_f, scale_g = _scales(problem, x, y) if neighbour else (1.0, 1.0)
    outside = jnp.maximum(problem.x_set.distance(x), problem.y_set.distance(y))
    gap_here = jnp.maximum(problem.inner(x, y) - inner.best.value, 0)
    kinks = _kinks(problem, x, y, inner, max_slack * scale_g)

    def at(y_: PyTree, given: Array, fit: Array, distance: Array) -> Certificate:
        """The certificate at (x, y_) with the multiplier given, or with the one that fits best."""
        grad_f = jax.grad(problem.outer, (0, 1))(x, y_)
        value, (g_x, g_y) = jax.value_and_grad(problem.inner, (0, 1))(x, y_)
        grad_h = (trees.sub(g_x, kinks.slope), g_y)
        gap = jnp.maximum(value - inner.best.value, 0)
        granted = jnp.minimum(gap, max_slack * scale_g) if slack is None else slack
        granted = jnp.asarray(granted, gap.dtype)
        h = gap - granted
        m, shares = _multipliers(z_set, (x, y_), grad_f, grad_h, kinks, given, fit)
        violation = jnp.maximum(h, 0)
        apart = jnp.maximum(jnp.maximum(jnp.sqrt(violation / scale_g), outside), distance)
        stationarity = z_set.residual((x, y_), kinks.turned(shares, trees.axpy(m, grad_h, grad_f)))
        others = jnp.sum(shares * jnp.abs(h - kinks.above))
        own = jnp.where(kinks.here, gap, h)  # y vouches for itself only as far as it is one
        complementarity = jnp.abs((m - jnp.sum(shares)) * own) + others
        return Certificate(
            stationarity=stationarity,
            feasibility=jnp.maximum(violation, outside),
            complementarity=complementarity,
            distance=distance,
            inner_gap=gap_here,
            inner_residual=inner.best.residual,
            multiplier=m,
            slack=granted,
            eps=jnp.maximum(jnp.maximum(stationarity, complementarity) / scale_f, apart),
        )

    zero = jnp.zeros_like(inner.best.value)
    cases = [(y, zero, jnp.array(True), zero)]
    if multiplier is not None:
        cases.insert(0, (y, jnp.asarray(multiplier, zero.dtype), jnp.array(False), zero))
    if neighbour:
        apart = trees.length(trees.sub(point, y))
        cases.append((point, large, jnp.array(False), apart))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)
    found = lax.map(lambda case: at(*case), stacked)  # a loop, so that it is compiled once
    best = jnp.argmin(jnp.where(jnp.isnan(found.eps), jnp.inf, found.eps))
    return jax.tree.map(lambda leaf: leaf[best], found)


measure_jit = eqx.filter_jit(measure)


class _Pair(eqx.Module):
    """The set X x Y of z = (x, y)."""

    problem: Problem
    eps: float | None = None

    def tangent(self, z: PyTree, v: PyTree) -> PyTree:
        sets = (self.problem.x_set, self.problem.y_set)
        return tuple(s.tangent(a, b, self.eps) for s, a, b in zip(sets, z, v, strict=True))

    def residual(self, z: PyTree, gradient: PyTree) -> Array:
        return trees.length(self.tangent(z, trees.scale(-1, gradient)))


class _Inner(NamedTuple):
    """The best inner minimum found, and all: points and values with a leading axis.

    The last of them is that of a step aside in x, where f falls, with its value at x: where the
    inner solution jumps just beyond x, nothing else tells of it.
    """

    best: Minimum
    points: PyTree
    values: Array


class _Kinks(NamedTuple):
    r"""Where the minimum of g(x, .) is attained at several points the value function has a kink.

    Its subgradients are the convex hull of the $\nabla_x g(x, \hat y_k)$, and every $\hat y_k$
    has a constraint, and a share of the multiplier, of its own.

    Attributes:
        here: whether y itself is one of them.
        slope: $\nabla_x g$ at y where it is, else at the best.
        turns: by how much it differs at the others, zero where one is not used; a leading axis.
        above: how much higher than the best they lie. A kink counts where it is at x but for
            rounding: the heights differ by no more than their slopes make up for nearby.
    """

    here: Array
    slope: PyTree
    turns: PyTree
    above: Array

    def turned(self, shares: Array, v: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        """The gradient v of the Lagrangian with shares moved from the best to the others."""
        turn = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), self.turns)
        return trees.add(v[0], turn), v[1]


def _kinks(problem: Problem, x: PyTree, y: PyTree, inner: _Inner, tolerance: Any) -> _Kinks:
    slope = jax.grad(problem.inner, 0)
    near = NEAR * (1 + trees.length(x))
    at_y, at_best = slope(x, y), slope(x, inner.best.point)
    gap = problem.inner(x, y) - inner.best.value
    here = (gap <= tolerance) & (gap <= near * trees.length(trees.sub(at_y, at_best)))
    base = trees.where(here, at_y, at_best)
    turns = jax.vmap(lambda v: trees.sub(base, slope(x, v)))(inner.points)
    above = inner.values - inner.best.value
    lengths = jax.vmap(trees.length)(turns)
    used = (above <= tolerance) & (lengths > 1e-6 * (1 + trees.length(base)))
    used = used & jnp.isfinite(lengths) & (above <= near * lengths).at[:-1].set(True)

    def masked(leaf: Array) -> Array:
        return jnp.where(used.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)

    return _Kinks(here, base, jax.tree.map(masked, turns), jnp.where(used, above, 0))


def _multipliers(
    z_set: "_Pair",
    z: PyTree,
    grad_f: PyTree,
    grad_h: PyTree,
    kinks: _Kinks,
    given: Array,
    fit: Array,
) -> tuple[Array, Array]:
    """The multiplier, and the shares of it that belong to other inner minimisers than the best.

    In turn: the multiplier that fits best, or the one given, then its shares, each the best
    with the others held.
    """
    sizes = jax.vmap(lambda turn: trees.dot(turn, turn))(kinks.turns)
    count = sizes.size

    def share(i: Array, s: tuple[Array, Array]) -> tuple[Array, Array]:
        m, shares = s
        k = i % count
        turn = jax.tree.map(lambda leaf: leaf[k], kinks.turns)
        v = kinks.turned(shares, trees.axpy(m, grad_h, grad_f))
        down = z_set.tangent(z, trees.scale(-1, v))[0]
        step = trees.dot(turn, down) / jnp.where(sizes[k] > 0, sizes[k], 1)
        most = jnp.where(fit, jnp.inf, jnp.maximum(m - jnp.sum(shares) + shares[k], 0))
        new = jnp.clip(shares[k] + step, 0, most)
        return m, shares.at[k].set(jnp.where(jnp.isfinite(new), new, 0))

    def improve(_: Any, s: tuple[Array, Array]) -> tuple[Array, Array]:
        m, shares = s
        best = _least_squares(z_set, z, kinks.turned(shares, grad_f), grad_h)
        m = jnp.where(fit, jnp.maximum(best, jnp.sum(shares)), m)
        sweeps = jnp.where(jnp.any(sizes > 0), 20 * count, 0)
        return lax.fori_loop(0, sweeps, share, (m, shares))

    rounds = jnp.where(jnp.any(sizes > 0), 3, 1)
    m, shares = lax.fori_loop(0, rounds, improve, (given, jnp.zeros_like(sizes)))
    return jnp.maximum(m, jnp.sum(shares)), shares


def _inner_and_neighbour(
    problem: Problem, x: PyTree, y: PyTree, iterations: Any, neighbour: bool
) -> tuple[_Inner, PyTree, Array]:
    r"""The inner minima, and $y_w \approx \arg\min_v f(x, v)/\lambda + g(x, v)$ near y.

    $\lambda$ is set so that $y_w$ lies about $\epsilon^{1/3}$ (relative) from an exact inner
    solution, which balances the bias of a finite multiplier against rounding times $\lambda$. A
    first guess from the curvature of g along $\nabla_y f$ is corrected by where it led.
    """
    if not neighbour:
        best = minimize(lambda v: problem.inner(x, v), problem.y_set, y, iterations)
        alone = jax.tree.map(lambda leaf: leaf[None], (best.point, best.value))
        return _Inner(best, *alone), y, jnp.zeros_like(best.value)
    slope = jax.grad(problem.outer, 1)(x, y)
    size = trees.length(slope)
    move = jnp.finfo(size.dtype).eps ** (1 / 3) * (1 + trees.length(y))
    inner_slope = jax.grad(problem.inner, 1)
    probe = problem.y_set.project(trees.axpy(-move / jnp.where(size > 0, size, 1), slope, y))
    change = trees.length(trees.sub(inner_slope(x, probe), inner_slope(x, y)))
    curvature = jnp.where(change > 0, change / move, 1)
    guess = jnp.where(size > 0, size / (curvature * move), 1)

    starts, count = _inner_starts(problem, y)
    fall = jax.grad(problem.outer, 0)(x, y)
    steep = trees.length(fall)
    stride = ASIDE * (1 + trees.length(x)) / jnp.where(steep > 0, steep, 1)
    aside = problem.x_set.project(trees.axpy(-stride, fall, x))

    # one loop, so that the minimiser is compiled once: g alone from every start, then a step aside
    # in x, the neighbour for a first multiplier and the one that it suggests
    def solve(index: Any, s: tuple[_Inner, PyTree, Array, Array]) -> tuple[Any, ...]:
        (best, points, values), _, _, multiplier = s
        alone = index <= count
        x_ = trees.where(index == count, aside, x)
        weight = jnp.where(alone, 0, 1 / multiplier)
        which = jnp.where(alone, index, 0)  # the neighbour is looked for from y
        start = jax.tree.map(lambda leaf: leaf[which], starts)
        found = minimize(
            lambda v: weight * problem.outer(x_, v) + problem.inner(x_, v),
            problem.y_set,
            start,
            iterations,
        )
        value = jnp.where(index == count, problem.inner(x, found.point), found.value)
        ratio = trees.length(trees.sub(found.point, y)) / move  # falls like 1 / multiplier
        ratio = jnp.where(alone, 1, jnp.clip(ratio, 0.1, 1e3))
        rounding = 8 * jnp.finfo(size.dtype).eps * jnp.abs(best.value)
        lower = (index == 0) | ((index < count) & (value < best.value - rounding))
        best = trees.where(lower, found, best)
        kept = jax.tree.map(
            lambda many, one: many.at[which].set(jnp.where(alone, one, many[which])),
            (points, values),
            (found.point, value),
        )
        return _Inner(best, *kept), found.point, multiplier, multiplier * ratio

    none = jnp.zeros_like(size)
    blank = _Inner(Minimum(y, none, none), starts, jnp.zeros(count + 1, size.dtype))
    inner, point, multiplier, _ = lax.fori_loop(0, count + 3, solve, (blank, y, guess, guess))
    return inner, point, multiplier


def _inner_starts(problem: Problem, y: PyTree) -> tuple[PyTree, int]:
    """Where the inner minimum is looked for: y, beside it, far from it where y is small, and y.

    A start beside y leaves maxima and saddles of g; the others find lower basins. They are left out
    where every gradient is a pass over data in batches.
    """
    small = sum(leaf.size for leaf in jax.tree.leaves(y)) <= 10_000
    far = 8 if small and not problem.view.in_batches else 0

    def draw(index: Array) -> PyTree:
        point = _around(problem.y_set, y, index)
        near = problem.y_set.project(trees.axpy(1e-2, trees.sub(point, y), y))
        return trees.where(index == 0, near, point)

    drawn = jax.vmap(draw)(jnp.arange(far + 1))
    return jax.tree.map(lambda a, d: jnp.concatenate([a[None], d, a[None]]), y, drawn), far + 2


def _around(constraint: Set, z: PyTree, index: Array) -> PyTree:
    """A point spread over a bounded set, or around z: the same for an index every time."""
    entries = sum(leaf.size for leaf in jax.tree.leaves(z))
    return constraint.hashed_point(index, z, 2 + 2 * trees.length(z) / max(entries, 1) ** 0.5)


def _scales(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    """The largest gradient of f and the range of g around the point, neither above one."""

    def look(index: Array) -> tuple[Array, Array]:
        x_, y_ = _around(problem.x_set, x, index + 16), _around(problem.y_set, y, index)
        slope = trees.length(jax.grad(problem.outer, (0, 1))(x_, y_))
        rise = [problem.inner(v, y_) - problem.inner(v, y) for v in (x, x_)]
        return slope, jnp.stack(rise)

    slope, rise = jax.vmap(look)(jnp.arange(1, 4))
    rise = jnp.where(jnp.isfinite(rise), rise, 0)

    def at_most_one(v: Array) -> Array:
        return jnp.where((v > 0) & (v < 1), v, 1)  # also where it is not a number

    spread = jnp.maximum(jnp.max(rise), 0) - jnp.minimum(jnp.min(rise), 0)
    return at_most_one(jnp.max(slope)), at_most_one(spread)


def _least_squares(z_set: _Pair, z: PyTree, v: PyTree, w: PyTree) -> Array:
    r"""$\arg\min_{\lambda \ge 0} \|P_T(-v - \lambda w)\|$ with T the tangent cone at z.

    The square is convex in $\lambda$ with derivative $-2\langle w, P_T(-v - \lambda w)\rangle$;
    a safeguarded secant finds its root, in one step where T is a subspace.
    """

    def descent(m: Array) -> Array:
        return trees.dot(w, z_set.tangent(z, trees.scale(-1, trees.axpy(m, w, v))))

    zero = jnp.zeros((), trees.dtype(v))
    ww = trees.dot(w, w)
    at_zero = descent(zero)
    guess = jnp.maximum(at_zero, 0) / jnp.where(ww > 0, ww, 1)

    # lo always has descent > 0; hi is inf until a multiplier with descent <= 0 is met
    def refine(_: Any, s: tuple[Array, ...]) -> tuple[Array, ...]:
        lo, d_lo, hi, d_hi, m = s
        d = descent(m)
        low = d > 0
        secant = m + d * (m - lo) / jnp.where(d_lo - d > 0, d_lo - d, 1)
        lo_, d_lo_ = jnp.where(low, m, lo), jnp.where(low, d, d_lo)
        hi_, d_hi_ = jnp.where(low, hi, m), jnp.where(low, d_hi, d)
        beyond = jnp.where((d_lo > d) & (secant > m), secant, 2 * m)
        inside = lo_ + (hi_ - lo_) * jnp.clip(
            d_lo_ / jnp.where(d_lo_ > d_hi_, d_lo_ - d_hi_, 1), 0.05, 1
        )
        return lo_, d_lo_, hi_, d_hi_, jnp.where(jnp.isfinite(hi_), inside, beyond)

    start = (zero, at_zero, zero + jnp.inf, zero, guess)
    *_, m = lax.fori_loop(0, 30, refine, start)
    return jnp.where((at_zero > 0) & (ww > 0) & jnp.isfinite(m), m, 0)
