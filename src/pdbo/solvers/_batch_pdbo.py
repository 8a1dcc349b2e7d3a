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
from .._solver import Calls, Point, Solver, one_step
from . import _whole as whole
from ._whole import WholeState

RATES = 12  # rates of y that are tried, from 4^-9 in factors of 4, and more if an outermost is best
FIRST, LAST = 4.0**-9, 4.0 ** (RATES - 10)
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
WARM = 8  # the most rounds before x moves; one if f's examples do not determine x
GAIN = 0.1  # the share of all gains that counts if f's examples do not determine x
PATIENCE = 6  # rounds without improvement that end a run
EVEN = 1.0  # the multiplier, in that unit, once x rests for good: f and g weigh the same
LAG = 0.1  # the rate of the inner estimate while x moves, over that of y, if f's examples are few
_TINY = 1e-30
UNSOUND = -1  # in place of the number of steps, after one that was not finite


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

    `trials` rates of y are tried, `trial` is the present one, `begun` is g at the start and `tried`
    the least of the ends. `round` is negative meanwhile and zero during the warm-up, `k` counts the
    steps of a trial or of a round, `values` are those of f in the best round and `first` after the
    warm-up. `reach` is zero once x rests for good.
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
    begun: Float[Array, ""]
    tried: Float[Array, ""]
    trial: Float[Array, ""]
    trials: Int[Array, ""]
    units: Units
    weight: Float[Array, ""]
    reach: Float[Array, ""]


State = BatchPDBOState | WholeState


class BatchPDBO(Solver):
    r"""A primal-dual penalty method without settings, for mini-batches or x and y split by `shard`.

    It measures three units, and moves x, y and an inner estimate $\hat y$ in rounds:

    1. **The rate r of y.** Adam trains y on g, a few steps for each of twelve rates, or more where
       the smallest or the largest is best; the lowest g on all examples wins, and the run starts
       there.
    2. **The unit $\rho = |f_y| / |g_y|$ of the multiplier** $\lambda = w\rho$.
    3. **The unit u of x**, the change that matters to $g_y$: the smaller of
       $|g_y| / |g_{xy}d|$ and $|g_{xy}d| / |g_{xxy}dd|$ for a random sign vector d, after rounds in
       which x rests, as long as those lower f at $\hat y$. Write x so that all its entries have
       about the same unit.

    A step takes one batch of f and one of g. y follows $g_y(x, y) + f_y(x, y)/\lambda$ and
    $\hat y$ follows $g_y(x, \hat y)$ by Adam with one preconditioner for both, so that they
    differ only by the influence of f; x follows an average of
    $f_x + \lambda(g_x(x, y) - g_x(x, \hat y))$ over its root mean square so far. In a round the
    rates fall to zero, that of x somewhat earlier.

    A round is judged by f at $(x, \hat y)$ on all examples, in parts. If f is significantly lower,
    x rests for a while, so that $\hat y$ catches up, and the round counts if f is lower still. If f
    is significantly higher, the round is undone, and x moves in smaller steps. In between, it is
    undone, and the multiplier grows tenfold. The best round is returned; a run ends when six rounds
    in a row have brought nothing.

    If f has fewer than ten examples for each entry of x, later gains fit the noise of the examples,
    and an inner estimate that has memorised its own examples cannot tell which of them are wrong.
    Then x moves after a single round of y alone, the multiplier stays low, so that y keeps learning
    from f's examples, and $\hat y$ follows at a tenth of the rate while x moves. x rests for good
    after a round that gains less than a tenth of what all rounds before it have. From then on f
    and g weigh the same, and y and $\hat y$ go on as long as that lowers f significantly.

    If every batch holds all examples, and Y is free, there is no noise, and it takes implicit
    gradients instead: y by a quasi-Newton method, the adjoint by conjugate gradients that end where
    g does not curve upwards, x by Adam with a rate from trials, in rounds that are judged by f at
    the inner minimum.

    Without batches every step takes all of the data. It holds seven copies of y. It is a heuristic:
    the certificate says how good a point is.

    Arguments:
        estimate: whether $\hat y$ is returned in place of y, which learns from f's examples too.
            It is returned if `solve` chose this method because x or y is split over devices.

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
    at_rest = (
        "It is no longer improving: the last rounds brought nothing, so the best one is returned. "
        "The certificate there is not within the tolerance; another key or start may lead to "
        "another point."
    )
    knows_its_end = True
    stages = 2

    estimate: bool = eqx.field(static=True, default=False)

    def init(
        self, problem: Problem, x: PyTree, y: PyTree, key: Array
    ) -> BatchPDBOState | WholeState:
        """The state before the first step; raises if neither data nor x and y are in parts."""
        if not (problem.in_batches or problem.splits_point):
            raise ProblemError("BatchPDBO needs mini-batches: give the data as pdbo.Batches(...).")
        if whole.applies(problem, x, y):
            return whole.begin(problem, x, y)
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
            begun=jnp.asarray(problem.inner(x, y), dtype),
            tried=jnp.asarray(jnp.finfo(dtype).max, dtype),
            trial=FIRST * one,
            trials=zero + RATES,
            units=Units(one, one, 0 * one, 0 * one),
            weight=WEIGHT * one,
            reach=REACH * one,
        )

    def step(self, problem: Problem, state: State) -> State:
        """A step of Adam on g with the rate that is tried, or a step of a round."""
        return one_step(self, problem, state)

    def stage(self, state: State) -> Int[Array, ""]:
        """0 while rates are tried, 1 in a round."""
        if isinstance(state, WholeState):
            return 0 * state.t
        return (state.round >= 0).astype(jnp.int32)

    def walk(self, problem: Problem, state: State, stage: int) -> State:
        """A step inside of a trial or a round.

        It reads and writes every number once. Values tell whether it is sound before y is changed.
        """
        if isinstance(state, WholeState):
            return state if stage else whole.walk(problem, state)
        s = state
        find = _slopes_of_round if stage else _slopes_of_trial
        slopes, value, units = find(problem, s)
        along = trees.dot(slopes.x, slopes.x) if stage else jnp.zeros_like(value)
        sound = jnp.isfinite(value + along)
        share = (s.k + 1).astype(s.weight.dtype) / self._length(s)
        moved = self._moved(problem, s, slopes, along, share)
        at, moments, units = trees.where(sound, (*moved, units), (s.at, s.moments, s.units))
        k = jnp.where(sound | (stage == 0), s.k + 1, UNSOUND)
        return _with(s, at=at, moments=moments, units=units, t=s.t + 1, k=k)

    def due(self, state: State) -> Bool[Array, ""]:
        """Whether a trial or a round is over."""
        if isinstance(state, WholeState):
            return whole.due(state)
        return (state.k >= self._length(state)) | (state.k == UNSOUND)

    def turn(self, problem: Problem, state: State) -> State:
        """The end of a trial or of a round."""
        if isinstance(state, WholeState):
            return whole.turn(problem, state)
        kept = state.moments
        small = _with(state, moments=kept._replace(mean=None, square=None))
        s = lax.cond(
            state.round < 0,
            lambda s: self._tried(problem, s),
            lambda s: self._judge(problem, s),
            small,
        )
        return _with(s, moments=s.moments._replace(mean=kept.mean, square=kept.square))

    def _length(self, s: BatchPDBOState) -> Int[Array, ""]:
        """The steps of this trial or round."""
        length = jnp.where(s.round == 0, ROUND // 2, jnp.where(s.checking, CHECK, ROUND))
        return jnp.where(s.round < 0, TRIAL, length)

    def _moved(
        self, problem: Problem, s: BatchPDBOState, slopes: Place, along: Array, share: Array
    ) -> tuple[Place, Moments]:
        """The point after a step along these slopes, when this share of the round is over.

        `along` is the square of the length of the slope of x.
        """
        at, old = s.at, s.moments
        count, seen = old.slopes + 1, old.seen + 1
        mean = _kept(MEAN, old.mean, slopes, old.slopes)
        both = jax.tree.map(lambda a, b: jnp.maximum(a**2, b**2), slopes.y, slopes.y_hat)
        square = _kept(SQUARE, old.square, both, old.slopes)
        size = sum(leaf.size for leaf in jax.tree.leaves(slopes.x))
        square_x = old.square_x + along / size

        rate = jnp.where(s.round < 0, s.trial, s.units.rate * (1 - share))
        y = _adam(at.y, rate, mean.y, square, count)
        few = whole.is_undetermined(problem, at.x, at.y)
        rests = (s.round <= 0) | s.checking | (s.reach == 0)
        behind = jnp.where(rests, 1, LAG) if few else 1
        y_hat = _adam(at.y_hat, behind * rate, mean.y_hat, square, count)
        reach = jnp.where(rests, 0, s.reach) * jnp.maximum(1 - share / REST, 0)
        usual = jnp.sqrt(square_x / seen) * (1 - MEAN**count) + _TINY
        x = problem.x_set.project(trees.axpy(-reach * s.units.x / usual, mean.x, at.x))
        place = Place(x, problem.y_set.project(y), problem.y_set.project(y_hat))
        return place, Moments(mean, square, count, square_x, seen)

    def _tried(self, problem: Problem, s: BatchPDBOState) -> BatchPDBOState:
        """The end of a trial; after the last one the unit of x is measured and rounds begin."""
        value = problem.on_all().inner(s.at.x, s.at.y)
        lower = value < s.tried  # false for NaN
        rate = jnp.where(lower, s.trial, s.units.rate)
        y = trees.where(lower, s.at.y, s.best.y_hat)  # the best so far
        doubled = s.begun - value > 2 * (s.begun - s.tried)
        beyond, other = whole.rate_after(s.trial, rate, FIRST, LAST, doubled)
        again = (s.round == -1) & beyond & (s.trials < RATES + whole.MORE)
        last, x = (s.round == -1) & ~again, s.at.x
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
            trial=jnp.where(again, other, 4 * s.trial),
            trials=jnp.where(again, s.trials + 1, s.trials),
            units=s.units._replace(rate=rate),
            round=jnp.where(again, s.round, s.round + 1),
            k=0 * s.k,
        )

    def _judge(self, problem: Problem, s: BatchPDBOState) -> BatchPDBOState:
        """The end of a round, or of one that is not finite any more."""
        values, warming = _parts(problem, s.at), s.round == 0
        v = _verdict(s, values, whole.is_undetermined(problem, s.at.x, s.at.y))
        best, kept = trees.where(v.accepted, (s.at, values), (s.best, s.values))
        unit = lax.cond(
            warming & ~v.again, lambda: _unit_of_x(problem, *s.at[::2]), lambda: s.units.x
        )
        reach = jnp.where(v.worse, s.reach / 4, s.reach)
        return _with(
            s,
            at=trees.where(v.checked, s.at, best),
            best=best,
            moments=trees.where(s.k != UNSOUND, s.moments, s.moments.forgotten()),
            values=kept,
            first=jnp.where(warming, values, s.first),
            round=jnp.where(v.again, s.round, s.round + 1),
            warmed=s.warmed + 1,
            checking=v.checked,
            k=0 * s.k,
            idle=v.idle,
            units=s.units._replace(x=unit),
            reach=jnp.where(v.enough, 0, reach),
            weight=jnp.where(v.grown, jnp.minimum(10 * s.weight, MOST), s.weight),
        )

    def output(self, state: State) -> Point:
        """The best round, before the end of the first the point reached."""
        if isinstance(state, WholeState):
            return whole.output(state)
        at = trees.where(state.round > 0, state.best, state.at)
        trying = state.round < 0  # the estimate rests then
        return Point(at.x, trees.where(trying, at.y, at.y_hat) if self.estimate else at.y)

    def settled(self, state: State) -> Bool[Array, ""]:
        """Whether the last rounds brought nothing."""
        if isinstance(state, WholeState):
            return whole.settled(state)
        return state.idle >= PATIENCE

    def calls(self, state: State) -> Calls:
        """One gradient of g per step of a trial, then one of f and two of g; for the unit of x one
        of g and three products. Values on all examples are not counted.
        """
        if isinstance(state, WholeState):
            return whole.calls(state)
        trials = jnp.minimum(state.t, state.trials * TRIAL)
        walked, units = state.t - trials, (state.round > 0).astype(state.t.dtype)
        return Calls(walked, trials + 2 * walked + units, 3 * units)


class _Verdict(NamedTuple):
    """What follows from a round, and how many in a row have brought nothing.

    Attributes:
        accepted: it is the best so far.
        checked: it is if it survives a while with x at rest.
        again: the next round is of the same kind.
        worse: x moves in smaller steps.
        enough: x has moved enough, and rests from here on.
        grown: the multiplier grows.
        idle: that many.
    """

    accepted: Bool[Array, ""]
    checked: Bool[Array, ""]
    again: Bool[Array, ""]
    worse: Bool[Array, ""]
    enough: Bool[Array, ""]
    grown: Bool[Array, ""]
    idle: Int[Array, ""]


def _verdict(s: BatchPDBOState, values: Float[Array, " parts"], few: bool) -> _Verdict:
    """What follows from f's values at the end of a round; `few` examples do not determine x."""
    change, warming, resting = values - s.values, s.round == 0, s.reach == 0
    spread = jnp.std(change) / max(len(values) - 1, 1) ** 0.5
    mean = jnp.where((s.k != UNSOUND) & jnp.isfinite(spread), jnp.mean(change), jnp.inf)
    sure, worse = mean < -SURE * spread, ~(mean <= SURE * spread)
    least = GAIN * (jnp.mean(s.first) - jnp.mean(s.values)) if few else 0
    better = sure & ((mean < -least) | warming | resting)
    checked = better & ~(warming | s.checking | resting)  # the inner estimate may lag behind x
    accepted = (better & ~checked) | (warming & jnp.isfinite(mean))
    worse = (worse & ~warming) | (s.checking & ~better)
    again = (warming & better & (s.warmed < WARM) & (not few)) | checked
    grown = ~(better | warming | worse) & (not few)
    idle = jnp.where(accepted, 0, jnp.where(checked, s.idle, s.idle + 1))
    enough = few & ~(warming | better | resting) & ((sure & ~worse) | (idle >= PATIENCE))
    idle = jnp.where(enough, 0, jnp.where(resting & ~accepted, PATIENCE, idle))
    return _Verdict(accepted, checked, again, worse, enough, grown, idle)


def _with(state: BatchPDBOState, **changed: PyTree) -> BatchPDBOState:
    """A state with some fields changed."""
    fields = {name: getattr(state, name) for name in state.__dataclass_fields__}
    return BatchPDBOState(**(fields | changed))


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


def _slopes_of_trial(problem: Problem, s: BatchPDBOState) -> tuple[Place, Array, Units]:
    """That of g in y, with its value; x and the inner estimate rest."""
    value, y = jax.value_and_grad(problem.inner, 1)(s.at.x, s.at.y)
    return Place(trees.zeros_like(s.at.x), y, trees.zeros_like(y)), value, s.units


def _slopes_of_round(problem: Problem, s: BatchPDBOState) -> tuple[Place, Array, Units]:
    """Those of the penalised problem, the sum of all values, and the units.

    The units are measured in the first steps.
    """
    x, y, y_hat = s.at
    slope = jax.value_and_grad(problem.inner, (0, 1))
    (low, (g_xh, g_h)), (high, (g_x, g_y)) = slope(x, y_hat), slope(x, y)
    value, (f_x, f_y) = jax.value_and_grad(problem.outer, (0, 1))(x, y)
    early = s.t < s.trials * TRIAL + MEASURED
    units = s.units._replace(
        f_y=s.units.f_y + jnp.where(early, trees.dot(f_y, f_y), 0),
        g_y=s.units.g_y + jnp.where(early, trees.dot(g_y, g_y), 0),
    )
    multiplier = _multiplier(units, jnp.where(s.reach == 0, EVEN, s.weight))
    d_x = trees.axpy(multiplier, trees.sub(g_x, g_xh), f_x)
    slopes = Place(d_x, trees.axpy(1 / multiplier, f_y, g_y), g_h)
    return slopes, value + low + high, units


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


def _parts(problem: Problem, at: Place) -> Float[Array, " parts"]:
    """f at the inner estimate on all examples, in parts."""
    return problem.on_all().view.parts_of_f(problem.f, at.x, at.y_hat, PARTS)
