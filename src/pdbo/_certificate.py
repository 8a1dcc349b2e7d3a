"""The certificate: how far a point is from satisfying the optimality conditions, recomputed."""

from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from . import _trees as trees
from ._checks import traced
from ._minimize import Minimum, minimize
from ._problem import Problem
from ._programs import Program
from .sets import Set

MAX_SLACK = 1e-6
"""The largest relaxation of the inner problem that a certificate grants by itself."""

NEAR = 1e-6  # relative to 1 + |x|: how far from x a kink of the value function may lie
ASIDE = 1e-3  # relative to 1 + |x|: length of the step in x that looks for a kink


_Number: TypeAlias = Float[Array | np.ndarray, ""]  # NumPy's if JAX is limited to 32 bits


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
        inner_gap: $g(x, y) - \min g(x, \cdot)$ at the given point, by a separate inner solve.
        inner_residual: the projected gradient at the end of that inner solve; the smaller it is,
            the more accurate the gap.
        multiplier: the $\lambda \ge 0$ used.
        slack: the relaxation for which the entries hold.
        eps: the largest of stationarity, complementarity, distance and how far the point is from
            feasible: its distance to its sets, and the root of $[h]_+$, since h grows like the
            square of the distance from the inner solutions. If the gradient of f, or the range
            of g, is below one around the point, its entries count relative to it.
        exact: whether the certificate is the exact one: then eps is the largest step left to a
            solution, relative to x and y, and not subject to a slack.
        curvature: the least curvature of f along the inner minima, relative to the largest; below
            zero the point is a saddle or a maximum. NaN if it was not measured.
        radius: how far from y lower values of g were looked for, if Y is unbounded; infinite if g
            is quadratic in y, so that there are none. NaN if lower values were found.
    """

    stationarity: _Number
    feasibility: _Number
    complementarity: _Number
    distance: _Number
    inner_gap: _Number
    inner_residual: _Number
    multiplier: _Number
    slack: _Number
    eps: _Number
    exact: _Number | bool = False
    curvature: _Number | float = float("nan")
    radius: _Number | float = float("nan")

    @property
    def in_words(self) -> str:
        """What it says, in a sentence."""
        sentence = f"y is an inner minimiser to {float(self.inner_gap):.1e}"
        if self.exact:
            if self.radius == np.inf:
                sentence += " (g is quadratic in y: nowhere is it lower)"
            elif self.radius > 0:
                sentence += f" (no lower g was found within {float(self.radius):.2g} of it)"
            sentence += f"; the step left to a solution is {float(self.eps):.1e} of x and y"
            if self.curvature < 0:
                sentence += "; the point is a saddle or a maximum"
            return sentence + "."
        return (
            f"{sentence}, of which {float(self.slack):.1e} is granted; no first-order improvement "
            f"of f above {float(self.stationarity):.1e}; eps is {float(self.eps):.1e}."
        )

    def __str__(self) -> str:
        rows = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return "\n".join(f"{name:<16}{_text(value)}" for name, value in rows.items())


class ConstrainedCertificate(Certificate):
    """The certificate of a point of a problem with constraints.

    `feasibility`, `inner_gap`, `inner_residual`, `stationarity` and `complementarity` are in units
    of the problem, and `eps` is the largest; `multiplier` is not defined.

    Attributes:
        weak: `stationarity` if the signs of multipliers of biactive rows do not count: a point
            where only this one is small is weakly stationary.
        biactive: how many inner rows are active with a multiplier of zero.
        ties: how many other inner minima, as low as y, take part.
        unstable: whether the inner value depends on how well the inner rows are met: the inner set
            is degenerate, or nearly so, and `eps` is at least what the value may be off by.
    """

    weak: _Number | float = float("nan")
    biactive: _Number | float = 0.0
    ties: _Number | float = 0.0
    unstable: _Number | bool = False

    @property
    def in_words(self) -> str:
        """What it says, in a sentence."""
        sentence = (
            f"With constraints: eps is {float(self.eps):.1e}; constraints are met to "
            f"{float(self.feasibility):.1e}, and g at y is {float(self.inner_gap):.1e} above the "
            "lowest value found"
        )
        if np.isfinite(self.stationarity):
            sentence += f"; no first-order improvement of f above {float(self.stationarity):.1e}"
        if self.ties > 0:
            sentence += f"; {int(self.ties)} other inner minima tie with y"
        if self.unstable:
            sentence += "; the inner set is degenerate, its lowest value unstable"
        return sentence + "."


class TermCertificate(Certificate):
    """The certificate of a point of a problem with an `inner_term`; it is always exact.

    Derivatives are taken on the entries of y that are neither at a kink of the term nor at a bound.

    Attributes:
        support: how many entries of y these are.
        margin: how far the other entries are from leaving their kinks, relative to the weights of
            the term. At zero strict complementarity fails: y may change its support at x, and f
            may have a kink there, which `eps` takes into account.
    """

    support: _Number | float = float("nan")
    margin: _Number | float = float("nan")

    @property
    def in_words(self) -> str:
        """What it says, in a sentence."""
        return (
            f"{super().in_words[:-1]}; y is open in {int(self.support)} entries, the others are "
            f"{float(self.margin):.1e} of a weight from leaving their kinks."
        )


class SampledCertificate(Certificate):
    """What a sample of the examples says about a point; it never holds: `eps` is infinite.

    `stationarity` is the length of the hypergradient, which noise makes too long rather than too
    short; `inner_gap` is that of a quadratic model of g.

    Attributes:
        error, gap_error: the standard errors of these two.
        examples: how many examples of f, and of g, were looked at.
    """

    error: _Number | float = float("nan")
    gap_error: _Number | float = float("nan")
    examples: _Number | float = 0.0

    @property
    def in_words(self) -> str:
        """What it says, in a sentence."""
        return (
            f"From {int(self.examples)} examples of f and of g: the hypergradient is "
            f"{float(self.stationarity):.1e} ± {float(self.error):.1e} long, and y is "
            f"an inner minimiser to {float(self.inner_gap):.1e} ± "
            f"{float(self.gap_error):.1e}; only all examples can certify a point."
        )


def _text(value: _Number) -> str:
    if traced(value) or np.ndim(value) > 0:
        return str(value)
    if np.asarray(value).dtype.kind == "b":
        return "       yes" if value else "        no"
    return f"{float(value):10.3e}" if not np.isnan(value) else "         -"


class _Facts(NamedTuple):
    """What the certificates at one x share."""

    problem: Problem
    x: PyTree
    z_set: "Pair"
    inner: "_Inner"
    kinks: "_Kinks"
    outside: Float[Array, ""]  # distance of the given point to its sets
    gap: Float[Array, ""]  # inner gap of the given point
    scale_f: ArrayLike  # largest gradient of f around the point, at most one
    scale_g: ArrayLike  # range of g around the point, at most one
    slack: Float[Array, ""] | None  # the relaxation, if it is given ...
    max_slack: Float[Array, ""]  # ... and the most that is granted if not


class _Case(NamedTuple):
    """A y to certify, with the multiplier given, or with the one that fits best."""

    y: PyTree
    given: Float[Array, ""]
    fit: Bool[Array, ""]
    distance: Float[Array, ""]  # from the given point


def measure(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    multiplier: Array | None,
    slack: Array | None,
    max_slack: ArrayLike,
    iterations: ArrayLike,
    neighbour: bool = True,
    eps: float | None = None,
) -> Certificate:
    """The part of `certify` that can be traced; it measures the point itself and, if `neighbour`,
    a point nearby where the conditions may hold better.

    `eps` is the precision the point was computed in, if lower than that of its dtype.
    """
    z_set = Pair(problem, eps)
    max_slack = jnp.asarray(max_slack, trees.dtype(x))
    inner, point, large = _inner_and_neighbour(problem, x, y, iterations, neighbour)
    scale_f, scale_g = _scales(problem, x, y) if neighbour else (1.0, 1.0)
    outside = jnp.maximum(problem.x_set.distance(x), problem.y_set.distance(y))
    gap = jnp.maximum(problem.inner(x, y) - inner.best.value, 0)
    kinks = _kinks(problem, x, y, inner, max_slack * scale_g)
    facts = _Facts(
        problem, x, z_set, inner, kinks, outside, gap, scale_f, scale_g, slack, max_slack
    )

    zero = jnp.zeros_like(inner.best.value)
    cases = [_Case(y, zero, jnp.array(True), zero)]
    if multiplier is not None:
        cases.insert(0, _Case(y, jnp.asarray(multiplier, zero.dtype), jnp.array(False), zero))
    if neighbour:
        apart = trees.length(trees.sub(point, y))
        cases.append(_Case(point, large, jnp.array(False), apart))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)
    # a loop, so that it is compiled once
    found = lax.map(lambda case: _certificate_at(facts, case), stacked)
    best = jnp.argmin(jnp.where(jnp.isnan(found.eps), jnp.inf, found.eps))
    return jax.tree.map(lambda leaf: leaf[best], found)


def _certificate_at(facts: _Facts, case: _Case) -> Certificate:
    """The certificate of one case."""
    problem, x, kinks, scale_g = facts.problem, facts.x, facts.kinks, facts.scale_g
    z = (x, case.y)
    grad_f = jax.grad(problem.outer, (0, 1))(*z)
    value, (g_x, g_y) = jax.value_and_grad(problem.inner, (0, 1))(*z)
    grad_h = (trees.sub(g_x, kinks.slope), g_y)
    gap = jnp.maximum(value - facts.inner.best.value, 0)
    granted = facts.slack
    if granted is None:
        granted = jnp.minimum(gap, facts.max_slack * scale_g)
    granted = jnp.asarray(granted, gap.dtype)
    h = gap - granted
    m, shares = _multipliers(facts.z_set, z, grad_f, grad_h, kinks, case.given, case.fit)
    violation = jnp.maximum(h, 0)
    apart = jnp.maximum(jnp.maximum(jnp.sqrt(violation / scale_g), facts.outside), case.distance)
    gradient = kinks.turned(shares, trees.axpy(m, grad_h, grad_f))
    stationarity = facts.z_set.residual(z, gradient)
    others = jnp.sum(shares * jnp.abs(h - kinks.above))
    own = jnp.where(kinks.at_y, gap, h)  # y counts as an inner minimiser only up to its own gap
    complementarity = jnp.abs((m - jnp.sum(shares)) * own) + others
    return Certificate(
        stationarity=stationarity,
        feasibility=jnp.maximum(violation, facts.outside),
        complementarity=complementarity,
        distance=case.distance,
        inner_gap=facts.gap,
        inner_residual=facts.inner.best.residual,
        multiplier=m,
        slack=granted,
        eps=jnp.maximum(jnp.maximum(stationarity, complementarity) / facts.scale_f, apart),
        exact=jnp.zeros((), bool),
        curvature=jnp.full_like(gap, jnp.nan),
        radius=jnp.full_like(gap, jnp.nan),
    )


measure_jit = Program(measure)


class Pair(eqx.Module):
    """The set X x Y of z = (x, y)."""

    problem: Problem
    eps: float | None = None

    def tangent(self, z: PyTree, v: PyTree) -> tuple[PyTree, ...]:
        sets = (self.problem.x_set, self.problem.y_set)
        return tuple(s.tangent(a, b, self.eps) for s, a, b in zip(sets, z, v, strict=True))

    def residual(self, z: PyTree, gradient: PyTree) -> Float[Array, ""]:
        return trees.length(self.tangent(z, trees.scale(-1, gradient)))


class _Inner(NamedTuple):
    """The best inner minimum found, and all of them: points and values with a leading axis.

    The last one is the inner minimum after a step in x along which f falls, with its value at x:
    nothing else shows an inner solution that jumps just beyond x.
    """

    best: Minimum
    points: PyTree
    values: Float[Array, " minima"]


class _Kinks(NamedTuple):
    r"""The kink of the value function if several points attain the minimum of g(x, .).

    Its subgradients are the convex hull of the $\nabla_x g(x, \hat y_k)$, and every $\hat y_k$
    has its own constraint and its own share of the multiplier.

    Attributes:
        at_y: whether y itself is one of the minimisers.
        slope: $\nabla_x g$ at y if it is, else at the best minimiser.
        turns: the slope less that at each minimiser, zero if that one is not used; a leading axis.
        above: how much higher than the best each lies. A minimiser is used if the kink is at x up
            to rounding: a small move in x makes up for the difference of heights.
    """

    at_y: Bool[Array, ""]
    slope: PyTree
    turns: PyTree
    above: Float[Array, " minima"]

    def turned(
        self, shares: Float[Array, " minima"], v: tuple[PyTree, PyTree]
    ) -> tuple[PyTree, PyTree]:
        """The gradient v of the Lagrangian with shares moved from the best to the others."""
        turn = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), self.turns)
        return trees.add(v[0], turn), v[1]


def _kinks(
    problem: Problem, x: PyTree, y: PyTree, inner: _Inner, tolerance: Float[Array, ""]
) -> _Kinks:
    """The kink at x, among the minima found whose values are equal up to a tolerance."""
    slope = jax.grad(problem.inner, 0)
    near = NEAR * (1 + trees.length(x))
    slope_y, slope_best = slope(x, y), slope(x, inner.best.point)
    gap = problem.inner(x, y) - inner.best.value
    at_y = (gap <= tolerance) & (gap <= near * trees.length(trees.sub(slope_y, slope_best)))
    base = trees.where(at_y, slope_y, slope_best)
    turns = jax.vmap(lambda v: trees.sub(base, slope(x, v)))(inner.points)
    above = inner.values - inner.best.value
    lengths = jax.vmap(trees.length)(turns)
    used = (above <= tolerance) & (lengths > 1e-6 * (1 + trees.length(base)))
    used = used & jnp.isfinite(lengths) & (above <= near * lengths).at[:-1].set(True)

    def masked(leaf: Array) -> Array:
        return jnp.where(used.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)

    return _Kinks(at_y, base, jax.tree.map(masked, turns), jnp.where(used, above, 0))


def _multipliers(
    z_set: Pair,
    z: PyTree,
    grad_f: PyTree,
    grad_h: PyTree,
    kinks: _Kinks,
    given: Float[Array, ""],
    fit: Bool[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, " minima"]]:
    """The multiplier, and the shares of it that belong to inner minimisers other than the best.

    Alternates between the multiplier that fits best, unless it is given, and its shares, each
    the best with the others held fixed.
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

    def improve(_: Int[Array, ""], s: tuple[Array, Array]) -> tuple[Array, Array]:
        m, shares = s
        best = _least_squares(z_set, z, kinks.turned(shares, grad_f), grad_h)
        m = jnp.where(fit, jnp.maximum(best, jnp.sum(shares)), m)
        sweeps = jnp.where(jnp.any(sizes > 0), 20 * count, 0)
        return lax.fori_loop(0, sweeps, share, (m, shares))

    rounds = jnp.where(jnp.any(sizes > 0), 3, 1)
    m, shares = lax.fori_loop(0, rounds, improve, (given, jnp.zeros_like(sizes)))
    return jnp.maximum(m, jnp.sum(shares)), shares


def _inner_and_neighbour(
    problem: Problem, x: PyTree, y: PyTree, iterations: ArrayLike, neighbour: bool
) -> tuple[_Inner, PyTree, Float[Array, ""]]:
    r"""The inner minima, and $y_w \approx \arg\min_v f(x, v)/\lambda + g(x, v)$ near y.

    $\lambda$ is set so that $y_w$ lies about $\epsilon^{1/3}$ (relative) from an exact inner
    solution, which balances the bias of a finite multiplier against rounding times $\lambda$. A
    first guess from the curvature of g along $\nabla_y f$ is corrected by the distance it led to.
    Without `neighbour`, only the inner minimum from y, and y itself.
    """
    if not neighbour:
        best = minimize(lambda v: problem.inner(x, v), problem.y_set, y, iterations)
        alone = jax.tree.map(lambda leaf: leaf[None], (best.point, best.value))
        return _Inner(best, *alone), y, jnp.zeros_like(best.value)
    move, guess = _first_multiplier(problem, x, y)
    starts, count = _inner_starts(problem, y)
    aside = _step_aside(problem, x, y)

    # one loop, so that the minimiser is compiled once: g alone from every start, g alone after a
    # step aside in x, the neighbour for the first multiplier and for the corrected one
    def solve(
        index: Int[Array, ""], s: tuple[_Inner, PyTree, Array, Array]
    ) -> tuple[_Inner, PyTree, Array, Array]:
        (best, points, values), _, _, multiplier = s
        alone = index <= count
        x_ = trees.where(index == count, aside, x)
        weight = jnp.where(alone, 0, 1 / multiplier)
        which = jnp.where(alone, index, 0)  # the search for the neighbour starts at y
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
        rounding = 8 * jnp.finfo(guess.dtype).eps * jnp.abs(best.value)
        lower = (index == 0) | ((index < count) & (value < best.value - rounding))
        best = trees.where(lower, found, best)
        kept = jax.tree.map(
            lambda many, one: many.at[which].set(jnp.where(alone, one, many[which])),
            (points, values),
            (found.point, value),
        )
        return _Inner(best, *kept), found.point, multiplier, multiplier * ratio

    zero = jnp.zeros_like(guess)
    blank = _Inner(Minimum(y, zero, zero), starts, jnp.zeros(count + 1, guess.dtype))
    inner, point, multiplier, _ = lax.fori_loop(0, count + 3, solve, (blank, y, guess, guess))
    return inner, point, multiplier


def _first_multiplier(
    problem: Problem, x: PyTree, y: PyTree
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """How far from y the neighbour should lie, and a multiplier that takes it about that far."""
    slope = jax.grad(problem.outer, 1)(x, y)
    size = trees.length(slope)
    move = jnp.finfo(size.dtype).eps ** (1 / 3) * (1 + trees.length(y))
    inner_slope = jax.grad(problem.inner, 1)
    probe = problem.y_set.project(trees.axpy(-move / jnp.where(size > 0, size, 1), slope, y))
    change = trees.length(trees.sub(inner_slope(x, probe), inner_slope(x, y)))
    curvature = jnp.where(change > 0, change / move, 1)
    return move, jnp.where(size > 0, size / (curvature * move), 1)


def _step_aside(problem: Problem, x: PyTree, y: PyTree) -> PyTree:
    """A point near x where f is lower."""
    fall = jax.grad(problem.outer, 0)(x, y)
    steep = trees.length(fall)
    stride = ASIDE * (1 + trees.length(x)) / jnp.where(steep > 0, steep, 1)
    return problem.x_set.project(trees.axpy(-stride, fall, x))


def _inner_starts(problem: Problem, y: PyTree) -> tuple[PyTree, int]:
    """Starts of the inner searches: y, one beside it, eight far from it if y is small, and y.

    The start beside y leaves maxima and saddles of g; those far away find lower basins. They are
    left out if the data come in batches: every gradient would then be a pass over all of them.
    """
    small = sum(leaf.size for leaf in jax.tree.leaves(y)) <= 10_000
    far = 8 if small and not problem.in_batches else 0

    def draw(index: Int[Array, ""]) -> PyTree:
        point = _around(problem.y_set, y, index)
        near = problem.y_set.project(trees.axpy(1e-2, trees.sub(point, y), y))
        return trees.where(index == 0, near, point)

    drawn = jax.vmap(draw)(jnp.arange(far + 1))
    return jax.tree.map(lambda a, d: jnp.concatenate([a[None], d, a[None]]), y, drawn), far + 2


def _around(constraint: Set, z: PyTree, index: Int[Array, ""]) -> PyTree:
    """A point of a bounded set, or around z otherwise; the same index gives the same point."""
    entries = sum(leaf.size for leaf in jax.tree.leaves(z))
    return constraint.hashed_point(index, z, 2 + 2 * trees.length(z) / max(entries, 1) ** 0.5)


def _scales(problem: Problem, x: PyTree, y: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The largest gradient of f and the range of g around the point, each at most one."""

    def look(index: Int[Array, ""]) -> tuple[Float[Array, ""], Float[Array, "2"]]:
        x_, y_ = _around(problem.x_set, x, index + 16), _around(problem.y_set, y, index)
        slope = trees.length(jax.grad(problem.outer, (0, 1))(x_, y_))
        rise = [problem.inner(v, y_) - problem.inner(v, y) for v in (x, x_)]
        return slope, jnp.stack(rise)

    slope, rise = jax.vmap(look)(jnp.arange(1, 4))
    rise = jnp.where(jnp.isfinite(rise), rise, 0)

    spread = jnp.maximum(jnp.max(rise), 0) - jnp.minimum(jnp.min(rise), 0)
    return at_most_one(jnp.max(slope)), at_most_one(spread)


def at_most_one(v: Float[Array, ""]) -> Float[Array, ""]:
    """A positive number, or one if it is larger; NaN and zero count as one."""
    return jnp.where((v > 0) & (v < 1), v, 1)


def _least_squares(z_set: Pair, z: PyTree, v: PyTree, w: PyTree) -> Float[Array, ""]:
    r"""$\arg\min_{\lambda \ge 0} \|P_T(-v - \lambda w)\|$ with T the tangent cone at z.

    The square is convex in $\lambda$ with derivative $-2\langle w, P_T(-v - \lambda w)\rangle$;
    a safeguarded secant finds its root, in one step if T is a subspace.
    """

    def descent(m: Float[Array, ""]) -> Float[Array, ""]:
        return trees.dot(w, z_set.tangent(z, trees.scale(-1, trees.axpy(m, w, v))))

    zero = jnp.zeros((), trees.dtype(v))
    ww = trees.dot(w, w)
    at_zero = descent(zero)
    guess = jnp.maximum(at_zero, 0) / jnp.where(ww > 0, ww, 1)

    # lo always has descent > 0; hi is inf until a multiplier with descent <= 0 is found
    def refine(_: Int[Array, ""], s: tuple[Array, ...]) -> tuple[Array, ...]:
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
