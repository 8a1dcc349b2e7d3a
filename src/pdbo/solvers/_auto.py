"""AutoPDBO: the primal-dual method with nothing to tune."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from .. import _trees as trees
from .._minimize import minimize, search
from .._problem import Problem
from .._solver import Calls, Point, Solver
from ..sets import Free, Set

LOOK = 30  # inner steps before the units are measured, where x has no say at the start
FAR = 100.0  # times what moves the inner solution by a unit of y: x is not measured in more
PROBES = 3  # gradients of f and of g that the units are measured with
SLOTS = 4  # inner estimates kept, one cut each
INNER_STEPS = 2  # projected gradient steps per slot and iteration
MODEL = 0.51  # half the curvature, and room for rounding: how far a trial may be above its slope
RADIUS = 0.2  # the longest step, in units of each entry
FIRST_SLACK = 4.0  # of the range of g seen at the start: at first f is alone
LAST_SLACK = 1e-8  # of the same range, where the shrinking of the slack ends ...
LAST_SLACK_ABSOLUTE = 1e-7  # ... or here, a tenth of what a certificate grants
ROUNDING = 32.0  # units in the last place of g: no slack is less
SHRINK = 0.5  # of the slack, on evidence
EVIDENCE = 0.3  # the f-error left, against the bias of the relaxation
FEASIBLE = 1.5  # slacks within which a point counts as feasible
PATIENCE = 60  # iterations f may take to settle while no cut is active
AROUND = 3.0  # units within which slots are drawn around y where Y is unbounded
KICK = 0.3  # the length of the random kick after a shrink, in widths of the relaxation
REVIEW = 6  # iterations between two reviews of the slots
STUCK = 20  # infeasible iterations after which y is set to a slot
JUMPS = 3  # returns to the incumbent allowed
JUMP_MARGIN = 0.03  # of the range of f seen: how much better the incumbent must be
TOP = 18.0  # the logarithm of the largest mix: there f does not count, and feasibility is all
SETTLED = 1e-6  # of the range of g: an inner decrease below it counts as none
CONFIRM = 30  # settled iterations at the last slack before a run may rest
SLOW = 40  # iterations without a shrink: then the slack shrinks all the same, and ...
EARLY = 1e-3  # ... polishing is tried if it is at most this part of the range of g
SOON = 10  # iterations after which it is tried where Y is free and the active slots agree ...
SOONER = 1e-2  # ... if the slack is at most this part
RESIDUAL = 1e-6  # of the largest gradient of f: where polishing ends
RECENT = 8  # polishing steps, the highest f of which the next may reach
PROGRESS = 1e-4  # of the range of f: a fall of it that counts
FAIR = 30.0  # times the multiplier that balances the gradients in y: more is none
ALIKE = 0.2  # of the slope in x: how far slots may differ in it that stand for one inner solution
POLISHABLE = 0.1  # a first residual above it: no single slot explains the solution
POLISH_GAP = 7.0  # the last slacks within which it may leave g: in double less than a
# certificate grants
STALLED = 40  # polishing steps without a lower residual or f after which it ends
FOLLOW = 1000  # gradient steps in y and in the slot for one polishing step in x, at most, while ...
FOLLOWED = 0.05  # ... their gradients leave more than this part of the residual in doubt
MISSED = 4.0  # times the accuracy sought, beyond which that many steps were too few
APPROACH = 20  # such turns at the first point, for as long as they end before the minimum is met


class Cuts(NamedTuple):
    """g and its gradients at (x, y), row 0, and at (x, slot), the other rows."""

    value: Array
    x: Array
    y: Array


class AutoState(eqx.Module):
    """Where the method stands. Vectors of x and y are ravelled, except the points put forward."""

    t: Array
    seed: Array
    x: PyTree
    y: PyTree
    slots: Array  # (SLOTS, size of y)
    inner_step: Array  # one a slot
    inner_drop: Array  # what the last inner steps gained, one a slot
    f: Array
    grad_f: Array
    cuts: Cuts
    mix: Array  # l = multiplier * L_h / L_f, one a slot
    curvature_f: Array
    curvature_h: Array
    slack: Array
    last_slack: Array
    unit: Array  # one of x, one of y
    range_g: Array
    low_f: Array
    high_f: Array
    steepest: Array  # the largest gradient of f seen
    multiplier: Array
    residual: Array  # of the Lagrangian's projected gradient, against `steepest`; the lowest met
    # while polishing
    loose: Array  # iterations without an active cut
    stuck: Array  # iterations without feasibility
    settled: Array  # iterations at rest, at the last slack
    held: Array  # iterations since the slack last changed, polishing steps without progress
    kick: Array
    polished: Array  # polishing steps taken; negative, turns at the first point
    recent: Array  # f at the last polishing steps kept; the largest number where there are none
    polish_gradient: Array  # of the penalty function in x, at the last step kept
    polish_step: Array  # of x, of y and of the slot
    incumbent: tuple[PyTree, PyTree]
    incumbent_f: Array
    jumps: Array
    done: Array
    f_calls: Array
    g_calls: Array

    @property
    def floor(self) -> Array:
        """The least slack: where the shrinking ends, or what rounding leaves of a cut."""
        rounding = ROUNDING * float(jnp.finfo(self.f.dtype).eps) * jnp.abs(self.cuts.value[0])
        return jnp.maximum(self.last_slack, rounding)


class AutoPDBO(Solver):
    r"""Primal-dual bilevel optimisation without a step size, a smoothing or a slack to choose.

    It works on $\min f(z)$ over $z = (x, y)$ subject to $h(z) \le \delta$ as PDBO does, with these
    ideas in place of the numbers PDBO asks for:

    1. **Cuts instead of one inner estimate.** $g^*(x) \le g(x, \hat y_k)$ for any
       $\hat y_k \in Y$, so $h_k(z) = g(x, y) - g(x, \hat y_k) \le \delta$ is necessary even where
       $\hat y_k$ has not converged, and needs no smoothing. Four warm slots $\hat y_k$ are kept,
       each with its own Barzilai-Borwein step: where the inner minimum jumps between basins two
       cuts are active at the solution, and one estimate alone never settles.
    2. **Multipliers from a local model, not by ascent.** With curvatures $L_f, L_h$ the step for
       $l_k = \lambda_k L_h / L_f$ is
       $d(l) = P(z - \frac{\nabla f / L_f + \sum_k l_k \nabla h_k / L_h}{1 + \sum_k l_k}) - z$, a
       mean of an f-step and h-steps, bounded however large the multipliers become (they grow like
       $1/\sqrt\delta$). l is complementary to
       $h_k + \langle\nabla h_k, d\rangle + \tfrac{L_h}{2}\|d\|^2 \le \delta$.
    3. **Steps from what was measured.** A trial is kept where f and every cut stay below their
       models; the curvatures follow the secants of what was seen and bound the step by a radius.
    4. **First f alone, then the inner problem.** $\delta$ starts above the range of g, so the run
       starts from a minimum of f and the feasible set closes in on it: the nearest solutions are
       the good ones. $\delta$ shrinks on evidence, when the f-error left,
       $\|(L_f + \Lambda L_h) d\|^2 / (2 L_f)$, is small against the bias $\Lambda\delta$ of the
       relaxation; a random kick within the relaxation then leaves symmetric saddles.
    5. **Wrong basins are noticed.** Slots that are duplicates, or idle and worst, are drawn anew
       from Y (around y where it is unbounded) or set to y. y moves to a slot that is as good for
       g and better for f, or when it cannot become feasible. The best feasible point met is kept,
       and the run returns to it where the path it followed ends higher.
    6. **Units.** x and y are measured in half-widths of their sets; where a set is unbounded, in
       lengths that make the curvatures of f and g in x and in y alike. Where they have none in x,
       x is measured by what moves the inner solution by a unit, after some inner steps where x
       has no say before (a penalty on weights of zero). Nothing depends on the scale of f, g, x or
       y but the last slack, at most a tenth of what a certificate grants, or what rounding leaves.
    7. **Polishing.** A large multiplier makes the joint problem stiff, and the search slow at its
       end, but not $\phi(x) = \min_y f + \lambda (g - g^*)$, where y and the slot follow x. Once
       the search has settled, or has become slow, spectral steps on $\phi$ take over: near a
       solution, or, where Y is free, anywhere if the active slots agree on the slope of $g^*$.

    A run rests, its state no longer changing, once it has settled and been polished. A multiplier
    magnifies the rounding of single precision, so `solve` runs small problems in double.

    Measured by `benchmarks/multipliers.py` on the problems of the collection with one x and one y,
    32 random starts of 1,000 steps, solved to 1 % of f with an inner gap below 1e-4, on the half
    that constants were chosen on and on the other: 99.6 and 84.8 % of the runs, a median of 2,200
    gradients. With other rules for the multipliers and all else equal: a closed form from the
    linearised worst cut 27 and 47 %, an augmented Lagrangian at best 44 and 29 %, clipped ascent at
    best 51 and 52 %.

    Reference: the constraint and the primal-dual view are those of Sow, Ji, Guan & Liang, A
    Primal-Dual Approach to Bilevel Optimization with Multiple Inner Minima (2022).
    """

    label = "AutoPDBO"
    family = "automatic"
    citation = (
        "this package, after Sow, Ji, Guan & Liang, A Primal-Dual Approach to Bilevel "
        "Optimization with Multiple Inner Minima, 2022"
    )
    batch_refusal = "it compares values of f and g from step to step"
    prefers_double = True

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> AutoState:
        """Units, slots and the range of g from a look around the start."""
        flat_y = ravel_pytree(y)[0]
        dtype = flat_y.dtype
        seed = jnp.sum(jax.random.key_data(key), dtype=jnp.uint32)
        unit, f, grad_f, spent = _units(problem, x, y, seed)
        slots = jnp.concatenate([flat_y[None], _draw(problem, y, unit[1], seed, SLOTS - 1)])
        cuts = _inner(problem, x, y, jnp.concatenate([flat_y[None], slots]))
        spread = jnp.max(cuts.value) - jnp.min(cuts.value)
        slope = jnp.linalg.norm(cuts.y[0]) * unit[1]
        range_g = jnp.where(spread > 0, spread, jnp.where(slope > 0, slope, 1))
        last = jnp.minimum(LAST_SLACK * range_g, LAST_SLACK_ABSOLUTE)
        zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
        return AutoState(
            t=none,
            seed=seed,
            x=x,
            y=y,
            slots=slots,
            inner_step=_first_steps(cuts.y[1:], unit[1]),
            inner_drop=jnp.full(SLOTS, range_g, dtype),
            f=f,
            grad_f=grad_f,
            cuts=cuts,
            mix=jnp.zeros(SLOTS, dtype),
            curvature_f=zero,
            curvature_h=zero,
            slack=FIRST_SLACK * range_g,
            last_slack=last,
            unit=unit,
            range_g=range_g,
            low_f=f,
            high_f=f,
            steepest=zero,
            multiplier=zero,
            residual=zero,
            loose=none,
            stuck=none,
            settled=none,
            held=none,
            kick=jnp.array(False),
            polished=none,
            recent=jnp.zeros(RECENT, dtype),
            polish_gradient=jnp.zeros_like(ravel_pytree(x)[0]),
            polish_step=jnp.zeros(3, dtype),
            incumbent=(x, y),
            incumbent_f=jnp.full((), float(jnp.finfo(dtype).max), dtype),
            jumps=none,
            done=jnp.array(False),
            f_calls=none + PROBES,
            g_calls=none + SLOTS + 1 + spent,
        )

    def step(self, problem: Problem, state: AutoState) -> AutoState:
        """Inner steps, the multipliers and a trial; now and then a look at the slots."""
        return lax.cond(state.done, lambda s: s, lambda s: _iterate(problem, s), state)

    def output(self, state: AutoState) -> Point:
        """The current point, with the sum of the multipliers of its cuts."""
        return Point(state.x, state.y, state.multiplier, None)

    def settled(self, state: AutoState) -> Array:
        """Whether the run rests."""
        return state.done

    def calls(self, state: AutoState) -> Calls:
        """Gradients of f and g."""
        return Calls(state.f_calls, state.g_calls, jnp.zeros_like(state.f_calls))


def _iterate(problem: Problem, state: AutoState) -> AutoState:
    slow = (state.held >= SLOW) & (state.slack <= EARLY * state.range_g)
    if isinstance(problem.y_set, Free):
        soon = (state.held >= SOON) & (state.slack <= SOONER * state.range_g)
        slow = slow | (soon & _alike(state, jnp.argmax(state.mix)))
    slow = slow & (state.stuck == 0)
    polish = ((state.settled >= CONFIRM) | slow | (state.polished != 0)) & (state.multiplier > 0)
    state = lax.cond(polish, lambda s: _polish(problem, s), lambda s: _search(problem, s), state)
    return _set(state, t=state.t + 1)


def _search(problem: Problem, state: AutoState) -> AutoState:
    state = _move(problem, _descend(problem, state))
    due = state.t % REVIEW == REVIEW - 1
    return lax.cond(due, lambda s: _review(problem, s), lambda s: s, state)


def _descend(problem: Problem, state: AutoState) -> AutoState:
    """Projected Barzilai-Borwein steps on g(x, .) from every slot, kept where g falls."""
    _, unravel = ravel_pytree(state.y)
    project = jax.vmap(lambda v: ravel_pytree(problem.y_set.project(unravel(v)))[0])
    eps = float(jnp.finfo(state.slots.dtype).eps)

    def descend(_: Any, s: tuple[Array, Array, Cuts]) -> tuple[Array, Array, Cuts]:
        slots, step, cuts = s
        value, slope = cuts.value[1:], cuts.y[1:]
        trial = project(slots - step[:, None] * slope)
        found = _inner(problem, state.x, state.y, trial)
        move, change = trial - slots, found.y - slope
        decrease = 1e-4 * jnp.sum(slope * move, 1) + 4 * eps * jnp.abs(value)
        keep = (found.value <= value + decrease) & _finite(found)
        ss, sy = jnp.sum(move * move, 1), jnp.sum(move * change, 1)
        secant = jnp.where(sy > 0, ss / jnp.where(sy > 0, sy, 1), 3 * step)
        longer = jnp.where(keep, jnp.clip(secant, 0.3 * step, 3 * step), 0.3 * step)
        step = jnp.where(ss > 0, longer, step)
        cuts = jax.tree.map(
            lambda old, new: old.at[1:].set(jnp.where(_rows(keep, new), new, old[1:])), cuts, found
        )
        return jnp.where(keep[:, None], trial, slots), step, cuts

    start = (state.slots, state.inner_step, state.cuts)
    slots, step, cuts = lax.fori_loop(0, INNER_STEPS, descend, start)
    return _set(
        state,
        slots=slots,
        inner_step=_sane(step, state.inner_step),
        inner_drop=state.cuts.value[1:] - cuts.value[1:],
        cuts=cuts,
        g_calls=state.g_calls + INNER_STEPS * SLOTS,
    )


def _move(problem: Problem, state: AutoState) -> AutoState:
    """One trial step of z, and what it says about curvatures and slack."""
    flat_x, to_x = ravel_pytree(state.x)
    flat_y, to_y = ravel_pytree(state.y)
    dtype, size_x = flat_y.dtype, flat_x.size
    eps, tiny = float(jnp.finfo(dtype).eps), float(jnp.finfo(dtype).tiny) ** 0.5
    unit = jnp.concatenate(
        [jnp.full_like(flat_x, 1) * state.unit[0], jnp.full_like(flat_y, 1) * state.unit[1]]
    )
    z = jnp.concatenate([flat_x, flat_y]) / unit

    def split(z: Array) -> tuple[PyTree, PyTree]:
        z = z * unit
        return to_x(z[:size_x]), to_y(z[size_x:])

    def project(z: Array) -> Array:
        x, y = split(z)
        return ravel_pytree((problem.x_set.project(x), problem.y_set.project(y)))[0] / unit

    cuts, slack = state.cuts, state.slack
    h, grad_h = _constraints(cuts, unit)
    grad_f = state.grad_f * unit
    radius = RADIUS * z.size**0.5
    steep_f = jnp.linalg.norm(grad_f)
    steep_h = jnp.max(jnp.linalg.norm(grad_h, axis=1))
    L_f = jnp.maximum(jnp.maximum(state.curvature_f, steep_f / radius), tiny)
    L_h = jnp.maximum(jnp.maximum(state.curvature_h, steep_h / radius), tiny)

    def step_for(mix: Array) -> Array:
        mean = (grad_f / L_f + trees.matmul(mix, grad_h) / L_h) / (1 + jnp.sum(mix))
        return project(z - mean) - z

    free = isinstance(problem.x_set, Free) and isinstance(problem.y_set, Free)
    mix = _multipliers(_Model(h - slack, grad_f, grad_h, L_f, L_h, step_for, free), state.mix)
    d = step_for(mix)
    weight = (1 + jnp.sum(mix)) * L_f  # L_f + sum of multipliers * L_h
    residual = weight * jnp.linalg.norm(d)
    # of length one
    noise = Free().hashed_point(_index(state), jnp.zeros_like(z), (3 / z.size) ** 0.5)
    width = jnp.minimum(jnp.sqrt(slack / L_h), radius)  # of the relaxation
    kicked = project(z + d + KICK * width * noise) - z
    d = jnp.where(state.kick, kicked, d)

    x, y = split(z + d)
    f, grad = _outer(problem, x, y)
    found = _inner(problem, x, y, jnp.concatenate([ravel_pytree(y)[0][None], state.slots]))
    h_new = found.value[0] - found.value[1:]
    dd = trees.dot(d, d)
    round_f = 8 * eps * (jnp.abs(f) + jnp.abs(state.f))
    round_h = 8 * eps * jnp.max(jnp.abs(cuts.value) + jnp.abs(found.value))
    above_f = f - state.f - trees.dot(grad_f, d) - round_f
    above_h = jnp.max(h_new - h - trees.matmul(grad_h, d)) - round_h
    finite = jnp.isfinite(f) & jnp.all(jnp.isfinite(grad)) & jnp.all(_finite(found))
    # with room to spare: on a quadratic the two sides are equal but for rounding, and a compiler
    # that works out `keep` twice may then take x from one point and y from the other
    fits_f = above_f <= MODEL * L_f * dd
    fits_h = above_h <= MODEL * L_h * dd + 0.05 * slack
    keep = finite & fits_f & fits_h

    def curvature(L: Array, fits: Array, above: Array) -> Array:
        measured = jnp.where(finite & (dd > 0), 2 * above / jnp.where(dd > 0, dd, 1), 0)
        longer = jnp.maximum(0.7 * L, measured)
        shorter = jnp.where(fits, L, jnp.maximum(2 * L, 1.5 * measured))
        return jnp.where(keep, longer, jnp.where(finite, shorter, 4 * L))

    total = jnp.sum(mix) * L_f / L_h
    near = jnp.max(h) <= FEASIBLE * slack
    alone = near & (total == 0)
    loose = jnp.where(alone, state.loose + 1, 0)
    rested = alone & keep & ((dd <= (0.05 * radius) ** 2) | (loose > PATIENCE))
    reachable = jnp.max(mix) < 0.9 * float(np.exp(TOP))
    converged = near & ~alone & reachable & (residual**2 / (2 * L_f) <= EVIDENCE * total * slack)
    # with no cut active the slack may fall to where the first one is met
    met = jnp.clip(0.9 * jnp.max(h), SHRINK * slack, 0.9 * slack)
    waited = near & ~alone & (state.held >= SLOW)
    shrunk = jnp.where(rested, met, jnp.where(converged | waited, SHRINK * slack, slack))
    shrunk = jnp.maximum(shrunk, state.floor)
    steepest = jnp.maximum(state.steepest, steep_f)
    relative = residual / jnp.where(steepest > 0, steepest, 1)
    still = (rested | converged | (relative <= RESIDUAL)) & near & (slack <= state.floor)
    settled = jnp.where(still, state.settled + 1, 0)
    x, y, f, grad, cuts = trees.where(
        keep, (x, y, f, grad, found), (state.x, state.y, state.f, state.grad_f, cuts)
    )
    return _set(
        state,
        x=x,
        y=y,
        f=f,
        grad_f=grad,
        cuts=cuts,
        mix=_sane(mix, state.mix),
        curvature_f=_sane(curvature(L_f, fits_f, above_f), state.curvature_f),
        curvature_h=_sane(curvature(L_h, fits_h, above_h), state.curvature_h),
        slack=shrunk,
        low_f=jnp.minimum(state.low_f, f),
        high_f=jnp.maximum(state.high_f, f),
        steepest=steepest,
        multiplier=_sane(total, state.multiplier),
        residual=_sane(relative, state.residual),
        loose=loose,
        stuck=jnp.where(near, 0, state.stuck + 1),
        settled=settled,
        held=jnp.where(shrunk < slack, 0, state.held + 1),
        kick=(shrunk < slack) & (shrunk > 10 * state.floor),
        done=(settled >= CONFIRM) & ((relative <= RESIDUAL) | (total == 0)),
        f_calls=state.f_calls + 1,
        g_calls=state.g_calls + SLOTS + 1,
    )


class _Model(NamedTuple):
    """The quadratic models of the cuts, less the slack, as functions of the mix l."""

    excess: Array
    grad_f: Array
    grad_h: Array
    L_f: Array
    L_h: Array
    step_for: Callable[[Array], Array]
    free: bool

    def direct(self, mix: Array) -> Array:
        d = self.step_for(mix)
        return self.excess + trees.matmul(self.grad_h, d) + 0.5 * self.L_h * trees.dot(d, d)

    def gram(self) -> Callable[[Array], Array]:
        """The same where nothing is projected, from inner products found once."""
        rows = jnp.concatenate([self.grad_f[None] / self.L_f, self.grad_h / self.L_h])
        products = trees.matmul(rows, rows.T)

        def model(mix: Array) -> Array:
            weights = jnp.concatenate([jnp.ones(1, mix.dtype), mix]) / (1 + jnp.sum(mix))
            along = trees.matmul(products, weights)
            return self.excess + self.L_h * (0.5 * trees.dot(weights, along) - along[1:])

        return model


def _multipliers(model: _Model, mix: Array) -> Array:
    """The mix l >= 0 complementary to the models <= 0, by two sweeps of bisection in log l."""
    excess = model.gram() if model.free else model.direct
    top = jnp.full((), TOP, mix.dtype)

    def solve(k: Any, mix: Array) -> Array:
        def bisect(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            violated = excess(mix.at[k].set(jnp.exp(middle)))[k] > 0
            return jnp.where(violated, middle, low), jnp.where(violated, high, middle)

        def active(_: Any) -> Array:
            return jnp.exp(lax.fori_loop(0, 24, bisect, (-top, top))[1])

        inactive = excess(mix.at[k].set(0))[k] <= 0
        return mix.at[k].set(lax.cond(inactive, lambda _: 0 * top, active, None))

    return lax.fori_loop(0, 2 * SLOTS, lambda i, mix: solve(i % SLOTS, mix), mix)


def _review(problem: Problem, state: AutoState) -> AutoState:
    """Now and then: better minimisers for y, the incumbent, and fresh starts for idle slots."""
    flat_y, to_y = ravel_pytree(state.y)
    value = state.cuts.value[1:]
    best = jnp.min(value)
    outer = jax.vmap(lambda v: problem.outer(state.x, to_y(v)))(state.slots)
    outer = jnp.where(jnp.isfinite(outer), outer, jnp.inf)
    bias = state.multiplier * state.slack
    rounding = 8 * float(jnp.finfo(outer.dtype).eps) * jnp.abs(state.f)

    settled = SETTLED * state.range_g
    tight = (value <= best + settled) & (state.inner_drop <= settled)
    tight = jnp.where(tight, outer, jnp.inf)
    i = jnp.argmin(tight)
    incumbent, incumbent_f = trees.where(
        tight[i] < state.incumbent_f,
        ((state.x, to_y(state.slots[i])), tight[i]),
        (state.incumbent, state.incumbent_f),
    )
    within = jnp.where(value <= best + state.slack, outer, jnp.inf)
    j = jnp.argmin(within)

    active = (state.multiplier > 0) & (state.stuck == 0)
    margin = bias + JUMP_MARGIN * (state.high_f - state.low_f)
    jump = active & (state.f > incumbent_f + margin) & (state.jumps < JUMPS)
    swap = ((within[j] < state.f - bias - rounding) | (state.stuck >= STUCK)) & ~jump
    swap = swap & jnp.isfinite(within[j])
    moved = jump | swap
    x, y = trees.where(jump, incumbent, (state.x, trees.where(swap, to_y(state.slots[j]), state.y)))

    # duplicates and the worst idle slot start anew: anywhere in Y, every other time one at y
    index = jnp.arange(SLOTS)
    apart = jax.vmap(lambda v: jnp.sum((state.slots - v) ** 2, 1))(state.slots)
    close = apart <= 1e-6 * flat_y.size * state.unit[1] ** 2
    # of two that agree the lower one stays, of two that tie the first
    ahead = (value[None] < value[:, None]) | (
        (value[None] == value[:, None]) & (index[None] < index[:, None])
    )
    duplicate = jnp.any(close & ahead, axis=1)
    idle = ~duplicate & (state.mix == 0)
    worst = idle & (index == jnp.argmax(jnp.where(idle, value, -jnp.inf)))
    chosen = (duplicate | worst) & (index != jnp.argmin(value))
    from_y = (jump | (state.t // REVIEW % 2 == 1)) & chosen & (jnp.cumsum(chosen) == 1)
    fresh = _draw(problem, state.y, state.unit[1], _index(state), SLOTS)
    fresh = jnp.where(from_y[:, None], ravel_pytree(y)[0], fresh)
    slots = jnp.where(chosen[:, None], fresh, state.slots)

    found = _inner(problem, x, y, jnp.concatenate([ravel_pytree(y)[0][None], slots]))
    good = _finite(found)
    chosen = chosen & good[1:]
    # a slot that cannot be evaluated is not taken; without a move the other rows are what they were
    cuts = jax.tree.map(
        lambda old, new: jnp.where(
            _rows(good & (moved | jnp.append(False, chosen)), new), new, old
        ),
        state.cuts,
        found,
    )
    f, grad_f = lax.cond(
        moved, lambda z: _outer(problem, *z), lambda _: (state.f, state.grad_f), (x, y)
    )
    return _set(
        state,
        x=x,
        y=y,
        slots=jnp.where(chosen[:, None], fresh, state.slots),
        inner_step=jnp.where(chosen, _first_steps(found.y[1:], state.unit[1]), state.inner_step),
        mix=jnp.where(chosen, 0, state.mix),
        f=f,
        grad_f=grad_f,
        cuts=cuts,
        slack=jnp.where(jump, jnp.maximum(state.slack, 0.01 * state.range_g), state.slack),
        stuck=jnp.where(moved, 0, state.stuck),
        settled=jnp.where(moved, 0, state.settled),
        held=jnp.where(moved, 0, state.held),
        done=state.done & ~moved,
        incumbent=incumbent,
        incumbent_f=jnp.where(jump, float(jnp.finfo(f.dtype).max), incumbent_f),
        jumps=state.jumps + jnp.where(jump, 1, 0),
        f_calls=state.f_calls + jnp.where(moved, 1, 0),
        g_calls=state.g_calls + SLOTS + 1,
    )


def _polish(problem: Problem, state: AutoState) -> AutoState:
    r"""One spectral gradient step in x on $\min_y f + \lambda (g - g^*)$.

    The multiplier makes the joint problem stiff, but not this one: y and the slot follow x. A step
    is kept where f is not above the highest of the last ones, as in Raydan (1997), or where the
    residual is the lowest so far; the end is where it is met, or, where neither falls for long, the
    point of the lowest f met, among equal ones that of the lowest residual.
    """
    flat_x, to_x = ravel_pytree(state.x)
    k, unit = jnp.argmax(state.mix), state.unit
    first, begins = state.polished <= 0, state.polished == 0
    free = isinstance(problem.y_set, Free)
    weight = jnp.where(begins, _last_multiplier(state, flat_x.size, free), state.multiplier)
    L_f = state.curvature_f
    stiff = jnp.stack([L_f, L_f / weight + state.curvature_h, state.curvature_h])
    lengths = jnp.stack([unit[0], unit[1], unit[1]]) ** 2
    steps = jnp.where(begins, lengths / jnp.where(stiff > 0, stiff, 1), state.polish_step)

    # the first only takes y and the slot to their minima: what is left must be small
    length = jnp.linalg.norm(state.polish_gradient)
    longest = RADIUS * flat_x.size**0.5 * unit[0] / jnp.where(length > 0, length, 1)
    step_x = jnp.minimum(steps[0], longest)
    moved = problem.x_set.project(to_x(flat_x - step_x * state.polish_gradient))
    x = trees.where(first, state.x, moved)
    at = _penalised(problem, state, x, k, weight, steps[1:])
    # where one slot speaks for all x may be far, unless Y is bounded: the multiplier may be none
    unexplained = jnp.where(_alike(state, k), at.residual_y, at.residual) if free else at.residual

    most = float(jnp.finfo(at.f.dtype).max)
    recent = jnp.where(first | (state.recent[0] >= most), at.f, state.recent)
    rounding = 8 * float(jnp.finfo(at.f.dtype).eps) * jnp.abs(at.f)
    low = (at.f <= jnp.max(recent) + rounding) | (at.residual < state.residual)
    keep = jnp.where(first, unexplained < POLISHABLE, low & ~at.cut) & ~at.under
    finite = jnp.isfinite(at.f) & jnp.isfinite(at.residual)
    keep = keep & finite & (at.excess <= 1)
    better = keep & (first | (at.residual < 0.99 * state.residual))
    worth = PROGRESS * (state.high_f - state.low_f)
    falls = keep & (at.f < jnp.min(recent) - worth)
    met = keep & (at.residual <= RESIDUAL)
    lowest = jnp.where(first, at.f, state.incumbent_f)
    leads = met | (better & (at.f <= lowest + worth)) | (keep & (at.f < lowest - worth))
    # y that leaves the inner solution by too much needs more of a multiplier: the gap falls with
    # its square; f then rises, and is no longer compared with what it was
    roomy = finite & ~at.under & ~at.cut & (at.excess > 1) & free
    roomy = roomy & (at.residual_y <= POLISHABLE)  # else it is but rounding
    more = jnp.where(roomy, jnp.clip(1.2 * jnp.sqrt(at.excess), 1, 4), 1)
    # y and the slot that have not met their minima yet go on from where they are
    nearing = first & ~keep & finite & ~at.under & (at.cut | roomy)
    nearing = nearing & (state.polished > -APPROACH)
    failed = (at.under & ~at.cut) | (first & ~keep & ~nearing)
    move = ravel_pytree(x)[0] - flat_x
    ss, sy = trees.dot(move, move), trees.dot(move, at.slope - state.polish_gradient)
    secant = jnp.where(sy > 0, ss / jnp.where(sy > 0, sy, 1), 4 * step_x)
    step_x = jnp.where(keep, secant, jnp.where(roomy, step_x, step_x / 4))
    step_x = jnp.where(first, steps[0], step_x)
    held = jnp.where(better | falls, 0, state.held + 1)
    over = met | (~first & ~failed & (held >= STALLED))
    best, lowest = trees.where(leads, ((x, at.y), at.f), (state.incumbent, state.incumbent_f))
    x, y, f, slot, slope = trees.where(
        keep | nearing,
        (x, at.y, at.f, at.slot, at.slope),
        (state.x, state.y, state.f, state.slots[k], state.polish_gradient),
    )
    x, y = trees.where(over | (failed & ~first), best, (x, y))
    slots = _sane(state.slots.at[k].set(slot), state.slots)
    cuts, f, grad_f = lax.cond(
        failed & (state.polished != 0),  # back to the search, from another point
        lambda _: (
            _inner(problem, x, y, jnp.concatenate([ravel_pytree(y)[0][None], slots])),
            *_outer(problem, x, y),
        ),
        lambda _: (state.cuts, f, state.grad_f),
        None,
    )
    polished = jnp.where(nearing, state.polished - 1, jnp.where(first, 1, state.polished + 1))
    recent = jnp.where(keep, jnp.roll(recent, 1).at[0].set(at.f), state.recent)
    return _set(
        state,
        x=x,
        y=y,
        f=f,
        grad_f=grad_f,
        cuts=cuts,
        slots=slots,
        residual=jnp.where(better, at.residual, state.residual),
        slack=jnp.where(over, state.floor, state.slack),
        multiplier=jnp.where(failed, state.multiplier, more * weight),
        held=jnp.where(failed, -2 * SLOW, held),
        polished=jnp.where(failed, 0, polished),
        recent=jnp.where(roomy, most, recent),
        incumbent=best,
        incumbent_f=jnp.where(roomy & ~first, most, lowest),
        polish_gradient=slope,
        polish_step=_sane(jnp.append(step_x, at.steps), state.polish_step),
        done=over | (failed & (state.settled >= CONFIRM)),
        f_calls=state.f_calls + at.f_calls,
        g_calls=state.g_calls + at.g_calls,
    )


class _Penalised(NamedTuple):
    r"""$\min_y f + \lambda (g - g^*)$ at a point x: what polishing has to know of it."""

    y: PyTree
    slot: Array
    f: Array
    slope: Array  # in x
    residual_y: Array
    residual: Array  # of x and y
    excess: Array  # the gap of y, of what is allowed
    under: Array  # whether another slot lies lower
    cut: Array  # whether y or the slot has not met its minimum
    steps: Array  # the next of y and of the slot
    f_calls: Array
    g_calls: Array


def _penalised(
    problem: Problem, state: AutoState, x: PyTree, k: Array, weight: Array, steps: Array
) -> _Penalised:
    flat_y, to_y = ravel_pytree(state.y)
    unit, first, begins = state.unit, state.polished <= 0, state.polished == 0
    sought = jnp.where(first, POLISHABLE, jnp.maximum(state.residual, RESIDUAL)) * state.steepest
    tol = FOLLOWED * sought / (weight * unit[1])
    # At first the slot sets out from y: what neither has met yet is then the same in both, and
    # cancels in their difference. One after the other in a loop, so that it is compiled once.
    (y, slot), steps, taken, missed = lax.map(
        lambda row: _follow(problem, x, to_y, tol, *row),
        (
            jnp.stack([flat_y, jnp.where(begins, flat_y, state.slots[k])]),
            steps,
            jnp.stack([1 / weight, jnp.zeros_like(weight)]),
        ),
    )
    # On the other side of the slot the terms that are of second order in y - slot are the same:
    # without them, weakening g is no way to let y leave the inner solution.
    points = [y, slot, 2 * slot - y] if isinstance(problem.y_set, Free) else [y, slot]
    rows = _inner(problem, x, state.y, jnp.stack(points))
    across = (rows.x[0] - rows.x[-1]) / (len(points) - 1)
    across = jnp.where(_finite(rows)[-1], across, rows.x[0] - rows.x[1])
    f, grad_f = _outer(problem, x, to_y(y))
    size = grad_f.size - y.size
    in_x = grad_f[:size] + weight * across
    in_y = grad_f[size:] + weight * rows.y[0]
    scale = jnp.where(state.steepest > 0, state.steepest, 1)
    residual_x = unit[0] * problem.x_set.residual(x, ravel_pytree(x)[1](in_x)) / scale
    residual_y = unit[1] * problem.y_set.residual(to_y(y), to_y(in_y)) / scale
    granted = LAST_SLACK_ABSOLUTE * jnp.minimum(state.range_g, 1)
    allowed = POLISH_GAP * jnp.maximum(state.floor, granted)
    # another slot that lies lower takes part in the solution: this is none of polishing's
    others = jax.vmap(lambda v: problem.inner(x, to_y(v)))(state.slots)
    others = jnp.where(jnp.isfinite(others), others, jnp.inf)
    return _Penalised(
        y=to_y(y),
        slot=slot,
        f=f,
        slope=in_x,
        residual_y=residual_y,
        residual=jnp.hypot(residual_x, residual_y),
        excess=(rows.value[0] - rows.value[1]) / allowed,
        under=jnp.min(others) < rows.value[1] - allowed,
        cut=jnp.any(missed),
        steps=steps,
        f_calls=taken[0] + 1,
        g_calls=taken[0] + taken[1] + len(points) + SLOTS,
    )


def _last_multiplier(state: AutoState, size_x: int, free: bool) -> Array:
    """The multiplier of the last slack, by that of the present one."""
    found = state.multiplier
    if free:  # one that is far from balancing the gradients in y is one of infeasibility alone
        pull, push = jnp.linalg.norm(state.grad_f[size_x:]), jnp.linalg.norm(state.cuts.y[0])
        balance = jnp.where((pull > 0) & (push > 0), pull / jnp.where(push > 0, push, 1), jnp.inf)
        found = jnp.where(found <= FAIR * balance, found, balance)
    return found * jnp.sqrt(state.slack / state.floor)


def _alike(state: AutoState, k: Array) -> Array:
    """Whether the active slots agree with the k-th on the slope in x."""
    mine, active = state.cuts.x[1 + k], state.mix > 1e-2 * state.mix[k]
    apart = jnp.linalg.norm(state.cuts.x[1:] - mine, axis=1)
    return jnp.all(~active | (apart <= ALIKE * jnp.linalg.norm(mine)))


def _follow(
    problem: Problem, x: PyTree, to_y: Callable, tol: Array, y: Array, step: Array, share: Array
) -> tuple[Array, Array, Array, Array]:
    """A minimum of share * f(x, .) + g(x, .) from y, the next step, how many were taken, and
    whether they were too few."""

    def value(y: PyTree) -> Array:
        outer = lax.cond(share > 0, lambda y: problem.outer(x, y), lambda y: 0 * share, y)
        return problem.inner(x, y) + share * outer

    end = search(value, problem.y_set, to_y(y), FOLLOW, tol, step)
    missed = (end.taken >= FOLLOW) & (end.best.residual > MISSED * tol)
    return ravel_pytree(end.best.point)[0], end.step, end.taken + 1, missed


def _outer(problem: Problem, x: PyTree, y: PyTree) -> tuple[Array, Array]:
    value, gradient = jax.value_and_grad(problem.outer, (0, 1))(x, y)
    return value, ravel_pytree(gradient)[0]


def _inner(problem: Problem, x: PyTree, y: PyTree, rows: Array) -> Cuts:
    """g and its gradients at (x, row) for every row, shaped like y when unravelled."""
    _, unravel = ravel_pytree(y)

    def one(row: Array) -> Cuts:
        value, (in_x, in_y) = jax.value_and_grad(problem.inner, (0, 1))(x, unravel(row))
        return Cuts(value, ravel_pytree(in_x)[0], ravel_pytree(in_y)[0])

    return jax.vmap(one)(rows)


def _constraints(cuts: Cuts, unit: Array) -> tuple[Array, Array]:
    """h_k and its gradient in units, for every slot."""
    in_x = cuts.x[0] - cuts.x[1:]
    in_y = jnp.broadcast_to(cuts.y[0], cuts.y[1:].shape)
    return cuts.value[0] - cuts.value[1:], jnp.concatenate([in_x, in_y], 1) * unit


def _finite(cuts: Cuts) -> Array:
    """Row by row."""
    in_x, in_y = (jnp.all(jnp.isfinite(part), axis=1) for part in (cuts.x, cuts.y))
    return jnp.isfinite(cuts.value) & in_x & in_y


def _rows(chosen: Array, like: Array) -> Array:
    """A flag a row, shaped to broadcast with the rows."""
    return chosen.reshape((-1,) + (1,) * (like.ndim - 1))


def _first_steps(slope: Array, unit: Array) -> Array:
    """Inner steps that move by a tenth of a unit an entry."""
    length = jnp.linalg.norm(slope, axis=1)
    return 0.1 * unit * slope.shape[1] ** 0.5 / jnp.where(length > 0, length, 1)


def _index(state: AutoState) -> Array:
    """A number for the draws of an iteration, others for every key."""
    return state.seed + np.uint32(SLOTS) * state.t.astype(jnp.uint32)


def _draw(problem: Problem, y: PyTree, unit: Array, index: Array, count: int) -> Array:
    """Points spread over Y, ravelled; within a few units of y where Y is unbounded."""
    indices = index + jnp.arange(count, dtype=jnp.uint32)
    return jax.vmap(lambda i: ravel_pytree(problem.y_set.hashed_point(i, y, AROUND * unit))[0])(
        indices
    )


class _Units(NamedTuple):
    """The lengths of x and y, f and its gradient at the start, and the gradients of g spent."""

    lengths: Array
    f: Array
    grad_f: Array
    spent: Array


def _units(problem: Problem, x: PyTree, y: PyTree, seed: Array) -> _Units:
    """What idea 6 says."""
    flat_x, to_x = ravel_pytree(x)
    flat_y, to_y = ravel_pytree(y)
    eps = float(jnp.finfo(flat_y.dtype).eps)

    def aside(z: Array) -> Array:
        v = Free().hashed_point(seed, jnp.zeros_like(z), 1)
        size = jnp.linalg.norm(z)
        return eps ** (1 / 3) * jnp.where(size > 0, size, 1) * v / jnp.linalg.norm(v)

    def over(a: Array, b: Array) -> Array:
        return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)

    def probe(function: Callable[[PyTree, PyTree], Array], y: Array) -> _Probe:
        move_x, move_y = aside(flat_x), aside(y)
        xs = flat_x + jnp.stack([0 * move_x, move_x, 0 * move_x])
        ys = y + jnp.stack([0 * move_y, 0 * move_y, move_y])
        at = jax.value_and_grad(lambda x, y: function(to_x(x), to_y(y)), (0, 1))
        value, (in_x, in_y) = jax.vmap(at)(xs, ys)

        def curvature(rows: Array, row: int, move: Array) -> Array:
            change = jnp.linalg.norm(rows[row] - rows[0])
            real = change > 16 * eps * jnp.linalg.norm(rows[0])
            return jnp.where(real, change / jnp.linalg.norm(move), 0)

        return _Probe(
            value[0],
            in_x[0],
            in_y[0],
            curvature(in_x, 1, move_x),
            curvature(in_y, 2, move_y),
            curvature(in_y, 1, move_x),
        )

    def width(set_: Set, z: PyTree, size: int) -> Array:
        diameter = set_.diameter(z)
        return jnp.where(jnp.isfinite(diameter), diameter, 0) / (2 * size**0.5)

    def reach(p: _Probe) -> Array:
        """How far x goes, against y, for the inner solution to go as far as y."""
        return over(p.yy, p.xy) * (flat_y.size / flat_x.size) ** 0.5

    def bend(p: _Probe) -> Array:
        """How far x goes for the slope of the inner function in x to become another; 0 where
        there is next to no slope."""
        length = over(jnp.linalg.norm(p.x), p.xx)
        real = length > 1e3 * jnp.linalg.norm(aside(flat_x))
        return jnp.where(real, length, 0) / flat_x.size**0.5

    f, g = probe(problem.outer, flat_y), probe(problem.inner, flat_y)
    ratios = [jnp.sqrt(over(p.yy, p.xx)) for p in (f, g)]
    newton = jnp.zeros((), flat_y.dtype)
    for p in (f, g):
        newton = jnp.maximum(newton, over(jnp.linalg.norm(p.y), p.yy) / flat_y.size**0.5)
    both = (ratios[0] > 0) & (ratios[1] > 0)
    ratio = jnp.where(both, jnp.sqrt(ratios[0] * ratios[1]), jnp.maximum(*ratios))
    size_x, size_y = (jnp.sqrt(jnp.mean(flat**2)) for flat in (flat_x, flat_y))

    # where x has no say at the start it is asked nearer to the inner solution
    def nearer(_: Any) -> tuple[Array, Array]:
        best = minimize(lambda y: problem.inner(x, y), problem.y_set, y, LOOK).point
        found = probe(problem.inner, ravel_pytree(best)[0])
        return reach(found), bend(found)

    far, most = reach(g), bend(g)
    mute = (far == 0) & (ratio == 0)
    far, most = lax.cond(mute, nearer, lambda _: (far, most), None)
    guessed = (far > 0) & ((ratio == 0) | (ratio > FAR * far))
    ratio = jnp.where(guessed, far, ratio)
    ratio = jnp.where(ratio > 0, ratio, over(size_x, size_y))
    ratio = jnp.where((ratio > 0) & jnp.isfinite(ratio), ratio, 1)
    around = jnp.where(size_y > 0, jnp.clip(newton, size_y, 10 * size_y), newton)
    around = jnp.where((around > 0) & jnp.isfinite(around), around, 1)
    width_x = width(problem.x_set, x, flat_x.size)
    width_y = width(problem.y_set, y, flat_y.size)
    unit_y = jnp.where(width_y > 0, width_y, jnp.where(width_x > 0, width_x / ratio, around))
    unit_x = unit_y * ratio
    unit_x = jnp.where(guessed & (most > 0), jnp.minimum(unit_x, most), unit_x)
    unit_x = jnp.where(width_x > 0, width_x, unit_x)
    units = jnp.stack([unit_x, unit_y]).astype(flat_y.dtype)
    spent = PROBES + jnp.where(mute, LOOK + PROBES, 0).astype(jnp.int32)
    return _Units(units, f.value, jnp.concatenate([f.x, f.y]), spent)


class _Probe(NamedTuple):
    """A function's value and gradients at a point, and the sizes of its second derivatives along
    random directions, by differences."""

    value: Array
    x: Array
    y: Array
    xx: Array
    yy: Array
    xy: Array


def _sane(new: Array, old: Array) -> Array:
    """The new numbers, the old ones in place of those that are near overflow or not numbers."""
    return jnp.where(jnp.abs(new) < float(jnp.finfo(new.dtype).max) ** 0.5, new, old)


def _set(state: AutoState, **fields: Any) -> AutoState:
    """The state with some of its fields replaced."""
    names = tuple(fields)
    return eqx.tree_at(
        lambda s: tuple(getattr(s, name) for name in names), state, tuple(fields.values())
    )
