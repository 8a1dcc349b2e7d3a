"""The default on mini-batches: a penalty method whose every step is in measured units."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _trees as trees
from .._errors import ProblemError
from .._problem import Problem
from .._solver import Calls, Point, Solver

RATES = 12  # rates of y that are tried, from 4^-9 in factors of 4
TRIAL = 40  # steps of each
ROUND = 300  # steps of a round; longer ones learn noise in the data by heart
PARTS = 16  # of f's examples, over which an improvement is judged
SURE = 2.0  # standard errors that make a difference count
MEAN, SQUARE = 0.9, 0.99  # what is kept of the averages of gradients and of their squares
REST = 0.8  # the share of a round in which x moves, so that the inner estimate catches up
WEIGHT, MOST = 0.1, 100.0  # the multiplier at first and at most, in units of |f_y| / |g_y|
REACH = 0.05  # the step of x at first, in units of its own
MEASURED = 8  # steps over which the unit of the multiplier is measured
CHECK = 75  # steps with x at rest that an improvement has to survive
WARM = 8  # the most rounds before x moves
EXAMPLES = 10  # of f for each entry of x: fewer do not determine x
GAIN = 0.1  # the share of all gains that counts if they do not
PATIENCE = 6  # rounds without improvement that end a run
_TINY = 1e-30


class Place(NamedTuple):
    """x, y and the inner estimate."""

    x: PyTree
    y: PyTree
    y_hat: PyTree


class Moments(NamedTuple):
    """Averages of slopes, and of the squares for y and its estimate, over so many `slopes`.

    `square_x` is a sum over all `seen` slopes of x.
    """

    mean: Place
    square: PyTree
    slopes: Float[Array, ""]
    square_x: Float[Array, ""]
    seen: Float[Array, ""]

    def forgotten(self) -> "Moments":
        """As before the first slope; averages over none count for nothing."""
        none = 0 * self.slopes
        return self._replace(slopes=none, square_x=none, seen=none)


class Units(NamedTuple):
    """The rate of y, the unit of x, and the sums of squares whose ratio is the multiplier's."""

    rate: Float[Array, ""]
    x: Float[Array, ""]
    f_y: Float[Array, ""]
    g_y: Float[Array, ""]


class BatchPDBOState(eqx.Module):
    """Where the run stands, the best round so far, and what has been measured.

    `round` is negative while rates are tried and zero during the warm-up, `k` counts the steps of a
    trial or of a round, `values` are those of f in the best round and `first` after the warm-up.
    """

    t: Int[Array, ""]
    round: Int[Array, ""]
    k: Int[Array, ""]
    idle: Int[Array, ""]
    warmed: Int[Array, ""]
    checking: Bool[Array, ""]
    at: Place
    best: Place
    moments: Moments
    values: Float[Array, " parts"]
    first: Float[Array, " parts"]
    tried: Float[Array, ""]
    units: Units
    weight: Float[Array, ""]
    reach: Float[Array, ""]


class BatchPDBO(Solver):
    r"""A primal-dual penalty method without settings, for mini-batches.

    It measures three units, and moves x, y and an inner estimate $\hat y$ in rounds:

    1. **The rate r of y.** Adam trains y on g, a few steps for each of twelve rates; the lowest g
       on all examples wins, and the run starts there.
    2. **The unit $\rho = |f_y| / |g_y|$ of the multiplier** $\lambda = w\rho$.
    3. **The unit u of x**, the change that matters to $g_y$: the smaller of
       $|g_y| / |g_{xy}d|$ and $|g_{xy}d| / |g_{xxy}dd|$ for a random sign vector d, after rounds in
       which x rests, as long as those lower f at $\hat y$. Write x so that all its entries have
       about the same unit.

    A step takes one batch of f and one of g. y follows $g_y(x, y) + f_y(x, y)/\lambda$ and
    $\hat y$ follows $g_y(x, \hat y)$ by Adam with one preconditioner for both, so that they
    differ by what f says only; x follows an average of
    $f_x + \lambda(g_x(x, y) - g_x(x, \hat y))$ over its root mean square so far. In a round the
    rates fall to zero, that of x somewhat earlier.

    A round is judged by f at $(x, \hat y)$ on all examples, in parts. Better for sure: x rests for
    a while, so that $\hat y$ catches up, and the round counts if it is better still. Worse for
    sure: it is undone, and x moves in smaller steps. Neither: it is undone, and the multiplier
    grows tenfold. So that stays low while it helps, and y keeps learning from f's examples. If f
    has fewer than ten examples for each entry of x, a round has to gain a tenth of what all rounds
    before it have: smaller gains fit the noise of the examples. The best round is returned; a run
    ends when six rounds in a row have brought nothing.

    It holds seven copies of y. It is a heuristic: the certificate says how good a point is.

    Reference: this package, after Sow, Ji, Guan & Liang, A Primal-Dual Approach to Bilevel
    Optimization with Multiple Inner Minima (2022) for the constraint on the inner gap, and Kingma
    & Ba, Adam: A Method for Stochastic Optimization (2015) for the steps.
    """

    label = "BatchPDBO"
    family = "automatic"
    citation = (
        "this package, after Sow, Ji, Guan & Liang, A Primal-Dual Approach to Bilevel "
        "Optimization with Multiple Inner Minima, 2022"
    )
    needs_products = True

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> BatchPDBOState:
        """The state before the first step; raises if the data are not in batches."""
        if not problem.view.in_batches:
            raise ProblemError("BatchPDBO needs mini-batches: give the data as pdbo.Batches(...).")
        zero, dtype = jnp.zeros((), jnp.int32), trees.dtype(x)
        place, one = Place(x, y, y), jnp.ones((), dtype)
        parts = jnp.zeros(problem.view.parts(PARTS), dtype)
        moments = Moments(trees.zeros_like(place), trees.zeros_like(y), 0 * one, 0 * one, 0 * one)
        return BatchPDBOState(
            t=zero,
            round=zero - RATES,
            k=zero,
            idle=zero,
            warmed=zero,
            checking=jnp.zeros((), bool),
            at=place,
            best=place,
            moments=moments,
            values=parts,
            first=parts,
            tried=jnp.asarray(jnp.finfo(dtype).max, dtype),
            units=Units(one, one, 0 * one, 0 * one),
            weight=WEIGHT * one,
            reach=REACH * one,
        )

    def step(self, problem: Problem, state: BatchPDBOState) -> BatchPDBOState:
        """A step of Adam on g with the rate that is tried, or a step of a round.

        A branch returns only what it changes: what passes through it is copied.
        """
        s, trying = state, state.round < 0
        slopes, units = lax.cond(
            trying,
            lambda: (_slopes_of_trial(problem, s.at), s.units),
            lambda: _slopes_of_round(problem, s),
        )
        length = jnp.where(s.round == 0, ROUND // 2, jnp.where(s.checking, CHECK, ROUND))
        length = jnp.where(trying, TRIAL, length)
        share = (s.k + 1).astype(s.weight.dtype) / length
        sound = _is_finite(slopes)
        moved = self._moved(problem, s, slopes, share)
        at, moments = trees.where(sound, moved, (s.at, s.moments))
        small = moments._replace(mean=None, square=None)
        s = _with(s, at=at, moments=small, units=units, t=s.t + 1, k=s.k + 1)
        s = lax.cond(
            (s.k >= length) | ~(sound | trying),
            lambda s: self._ended(problem, s, sound),
            lambda s: s,
            s,
        )
        moments = s.moments._replace(mean=moments.mean, square=moments.square)
        return _with(s, moments=moments)

    def _moved(
        self, problem: Problem, s: BatchPDBOState, slopes: Place, share: Float[Array, ""]
    ) -> tuple[Place, Moments]:
        """The point after a step along these slopes, when this share of the round is over."""
        at, old = s.at, s.moments
        count, seen = old.slopes + 1, old.seen + 1
        mean = _kept(MEAN, old.mean, slopes, old.slopes)
        both = jax.tree.map(lambda a, b: jnp.maximum(a**2, b**2), slopes.y, slopes.y_hat)
        square = _kept(SQUARE, old.square, both, old.slopes)
        size = sum(leaf.size for leaf in jax.tree.leaves(slopes.x))
        square_x = old.square_x + trees.dot(slopes.x, slopes.x) / size

        rate = jnp.where(s.round < 0, _rate(s), s.units.rate * (1 - share))
        y = _adam(at.y, rate, mean.y, square, count)
        y_hat = _adam(at.y_hat, rate, mean.y_hat, square, count)
        rests = (s.round <= 0) | s.checking
        reach = jnp.where(rests, 0, s.reach) * jnp.maximum(1 - share / REST, 0)
        usual = jnp.sqrt(square_x / seen) * (1 - MEAN**count) + _TINY
        x = problem.x_set.project(trees.axpy(-reach * s.units.x / usual, mean.x, at.x))
        place = Place(x, problem.y_set.project(y), problem.y_set.project(y_hat))
        return place, Moments(mean, square, count, square_x, seen)

    def _ended(self, problem: Problem, s: BatchPDBOState, sound: Bool[Array, ""]) -> BatchPDBOState:
        """The end of a trial or of a round."""
        tried, judge = (
            (lambda s: self._tried(problem, s)),
            (lambda s: self._judge(problem, s, sound)),
        )
        return lax.cond(s.round < 0, tried, judge, s)

    def _tried(self, problem: Problem, s: BatchPDBOState) -> BatchPDBOState:
        """The end of a trial; after the last one the unit of x is measured and rounds begin."""
        value = problem.on_all().inner(s.at.x, s.at.y)
        lower = value < s.tried  # false for NaN
        rate = jnp.where(lower, _rate(s), s.units.rate)
        y = trees.where(lower, s.at.y, s.best.y_hat)  # the best so far
        last, x = s.round == -1, s.at.x
        start = trees.where(last, y, s.best.y)
        at = Place(x, start, start)
        values = lax.cond(last, lambda: _parts(problem, at), lambda: s.values)
        return _with(
            s,
            at=at,
            best=s.best._replace(y_hat=y),
            moments=s.moments.forgotten(),
            values=values,
            tried=jnp.where(lower, value, s.tried),
            units=s.units._replace(rate=rate),
            round=s.round + 1,
            k=0 * s.k,
        )

    def _judge(self, problem: Problem, s: BatchPDBOState, sound: Bool[Array, ""]) -> BatchPDBOState:
        """The end of a round, or of one that is not finite any more."""
        values, warming = _parts(problem, s.at), s.round == 0
        change = values - s.values
        spread = jnp.std(change) / max(len(values) - 1, 1) ** 0.5
        mean = jnp.where(sound & jnp.isfinite(spread), jnp.mean(change), jnp.inf)
        gained = jnp.mean(s.first) - jnp.mean(s.values)
        least = jnp.where(warming, 0, _share(problem, s.at.x) * gained)
        better, worse = mean < -jnp.maximum(SURE * spread, least), ~(mean <= SURE * spread)
        checked = better & ~warming & ~s.checking  # the inner estimate may lag behind x
        worse = (worse & ~warming) | (s.checking & ~better)
        accepted = (better & ~checked) | (warming & jnp.isfinite(mean))
        best, kept = trees.where(accepted, (s.at, values), (s.best, s.values))
        again = (warming & better & (s.warmed < WARM)) | checked
        grown = ~(better | warming | worse)
        unit = lax.cond(
            warming & ~again, lambda: _unit_of_x(problem, *s.at[::2]), lambda: s.units.x
        )
        return _with(
            s,
            at=trees.where(checked, s.at, best),
            best=best,
            values=kept,
            first=jnp.where(warming, values, s.first),
            round=jnp.where(again, s.round, s.round + 1),
            warmed=s.warmed + 1,
            checking=checked,
            k=0 * s.k,
            idle=jnp.where(accepted, 0, jnp.where(checked, s.idle, s.idle + 1)),
            units=s.units._replace(x=unit),
            reach=jnp.where(worse, s.reach / 4, s.reach),
            weight=jnp.where(grown, jnp.minimum(10 * s.weight, MOST), s.weight),
        )

    def output(self, state: BatchPDBOState) -> Point:
        """The best round, before the end of the first the point reached."""
        at = trees.where(state.round > 0, state.best, state.at)
        return Point(at.x, at.y)

    def settled(self, state: BatchPDBOState) -> Bool[Array, ""]:
        """Whether the last rounds brought nothing."""
        return state.idle >= PATIENCE

    def calls(self, state: BatchPDBOState) -> Calls:
        """One gradient of g per step of a trial, then one of f and two of g; for the unit of x one
        of g and three products. Values on all examples are not counted.
        """
        trials = jnp.minimum(state.t, RATES * TRIAL)
        walked, units = state.t - trials, (state.round > 0).astype(state.t.dtype)
        return Calls(walked, trials + 2 * walked + units, 3 * units)


def _with(state: BatchPDBOState, **changed: PyTree) -> BatchPDBOState:
    """A state with some fields changed."""
    fields = {name: getattr(state, name) for name in state.__dataclass_fields__}
    return BatchPDBOState(**(fields | changed))


def _rate(s: BatchPDBOState) -> Float[Array, ""]:
    """The rate of y that is tried."""
    return 4.0 ** (s.round + RATES - 9).astype(s.tried.dtype)


def _multiplier(units: Units, weight: Float[Array, ""]) -> Float[Array, ""]:
    """The multiplier, from its unit and its weight."""
    unit = jnp.sqrt(units.f_y / units.g_y)
    return weight * jnp.where(jnp.isfinite(unit) & (unit > 0), unit, 1)


def _unit_of_x(problem: Problem, x: PyTree, y: PyTree) -> Float[Array, ""]:
    """The change of x that matters to the slope of g in y; one if g cannot tell."""
    try:
        unit = _measured(problem, x, y)
    except Exception:  # g has no third derivatives, which nothing else here needs
        return jnp.ones((), trees.dtype(x))
    return jnp.where(jnp.isfinite(unit) & (unit > 0), unit, 1)


def _measured(problem: Problem, x: PyTree, y: PyTree) -> Float[Array, ""]:
    key = jax.random.key(0)
    signs = jax.tree.map(lambda leaf: jax.random.rademacher(key, leaf.shape, leaf.dtype), x)

    def slope(x: PyTree) -> PyTree:
        return jax.grad(problem.inner, 1)(x, y)

    def along(x: PyTree) -> tuple[PyTree, PyTree]:
        return jax.jvp(slope, (x,), (signs,))

    (value, first), (_, second) = jax.jvp(along, (x,), (signs,))
    sizes = [trees.norm(part) for part in (value, first, second)]
    return jnp.minimum(sizes[0] / sizes[1], sizes[1] / sizes[2])


def _slopes_of_trial(problem: Problem, at: Place) -> Place:
    """That of g in y; x and the inner estimate rest."""
    y = jax.grad(problem.inner, 1)(at.x, at.y)
    return Place(trees.zeros_like(at.x), y, trees.zeros_like(y))


def _slopes_of_round(problem: Problem, s: BatchPDBOState) -> tuple[Place, Units]:
    """Those of the penalised problem, and the units, measured in the first steps."""
    x, y, y_hat = s.at
    (g_xh, g_h), (g_x, g_y) = (jax.grad(problem.inner, (0, 1))(x, v) for v in (y_hat, y))
    f_x, f_y = jax.grad(problem.outer, (0, 1))(x, y)
    early = s.t < RATES * TRIAL + MEASURED
    units = s.units._replace(
        f_y=s.units.f_y + jnp.where(early, trees.dot(f_y, f_y), 0),
        g_y=s.units.g_y + jnp.where(early, trees.dot(g_y, g_y), 0),
    )
    multiplier = _multiplier(units, s.weight)
    d_x = trees.axpy(multiplier, trees.sub(g_x, g_xh), f_x)
    return Place(d_x, trees.axpy(1 / multiplier, f_y, g_y), g_h), units


def _kept(share: float, mean: PyTree, new: PyTree, count: Float[Array, ""]) -> PyTree:
    """A decaying mean with another value, the first if there were none before."""
    kept = lambda m, v: jnp.where(count > 0, share * m, 0) + (1 - share) * v  # noqa: E731
    return jax.tree.map(kept, mean, new)  # what is forgotten may have overflowed


def _adam(
    y: PyTree, rate: Float[Array, ""], mean: PyTree, square: PyTree, count: Float[Array, ""]
) -> PyTree:
    """Adam's step, from averages of so many gradients and squares."""
    mean_of, square_of = 1 - MEAN**count, 1 - SQUARE**count
    return jax.tree.map(
        lambda y, m, v: y - rate * (m / mean_of) / (jnp.sqrt(v / square_of) + _TINY),
        y, mean, square,
    )  # fmt: skip


def _share(problem: Problem, x: PyTree) -> float:
    """The share of all gains so far that a round must gain to count.

    Where f's examples do not determine x, later and smaller gains fit their noise.
    """
    enough = EXAMPLES * sum(leaf.size for leaf in jax.tree.leaves(x))
    return 0.0 if problem.on_all().view.parts(enough) == enough else GAIN


def _parts(problem: Problem, at: Place) -> Float[Array, " parts"]:
    """f at the inner estimate on all examples, in parts."""
    return problem.on_all().view.parts_of_f(problem.f, at.x, at.y_hat, PARTS)


def _is_finite(slopes: PyTree) -> Bool[Array, ""]:
    """Whether slopes are finite; one sum tells, so that a step stays one pass over them."""
    return jnp.isfinite(sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(slopes)))
