"""The search: inner steps of the slots, one trial step of x and y, now and then a review."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from ... import _trees as trees
from ..._problem import Problem
from .handover import ready
from .multipliers import complementary
from .oracles import by_row, finite, inner, sane
from .review import REVIEW, review
from .slack import Seen, shrink
from .state import APPROACH, DONE, RESIDUAL, SEARCH, SLOTS, AutoState, Cuts
from .trial import Frame, attempt, kicked, local_model

INNER_STEPS = 2  # projected gradient steps per slot and iteration


def search(problem: Problem, state: AutoState) -> AutoState:
    """One iteration of the search, which may end it."""
    state = _move(problem, _descend(problem, state))
    due = state.t % REVIEW == REVIEW - 1
    state = lax.cond(due, lambda s: review(problem, s), lambda s: s, state)
    begins = (state.phase == SEARCH) & ready(problem, state)
    return dataclasses.replace(state, phase=jnp.where(begins, APPROACH, state.phase))


def _descend(problem: Problem, state: AutoState) -> AutoState:
    """Projected Barzilai-Borwein steps on g(x, .) from every slot, kept if g falls."""
    _, unravel = ravel_pytree(state.y)
    project = jax.vmap(lambda v: ravel_pytree(problem.y_set.project(unravel(v)))[0])
    eps = float(jnp.finfo(state.slots.dtype).eps)

    def once(_: Int[Array, ""], s: tuple[Array, Array, Cuts]) -> tuple[Array, Array, Cuts]:
        slots, step, cuts = s
        value, slope = cuts.value[1:], cuts.y[1:]
        trial = project(slots - step[:, None] * slope)
        found = inner(problem, state.x, state.y, trial)
        move, change = trial - slots, found.y - slope
        decrease = 1e-4 * jnp.sum(slope * move, 1) + 4 * eps * jnp.abs(value)
        keep = (found.value <= value + decrease) & finite(found)
        ss, sy = jnp.sum(move * move, 1), jnp.sum(move * change, 1)
        secant = jnp.where(sy > 0, ss / jnp.where(sy > 0, sy, 1), 3 * step)
        longer = jnp.where(keep, jnp.clip(secant, 0.3 * step, 3 * step), 0.3 * step)
        step = jnp.where(ss > 0, longer, step)
        cuts = jax.tree.map(
            lambda old, new: old.at[1:].set(jnp.where(by_row(keep, new), new, old[1:])), cuts, found
        )
        return jnp.where(keep[:, None], trial, slots), step, cuts

    start = (state.slots, state.search.inner_step, state.cuts)
    slots, step, cuts = lax.fori_loop(0, INNER_STEPS, once, start)
    search = dataclasses.replace(
        state.search,
        inner_step=sane(step, state.search.inner_step),
        inner_drop=state.cuts.value[1:] - cuts.value[1:],
    )
    g_calls = state.g_calls + INNER_STEPS * SLOTS
    return dataclasses.replace(state, slots=slots, cuts=cuts, search=search, g_calls=g_calls)


def _move(problem: Problem, state: AutoState) -> AutoState:
    """One trial step of z, and what it says about curvatures and slack."""
    frame = Frame.of(problem, state)
    model = local_model(problem, state, frame)
    mix = complementary(model, state.search.mix)
    d = model.step_for(mix)
    weight = (1 + jnp.sum(mix)) * model.L_f  # L_f + sum of multipliers * L_h
    residual = weight * jnp.linalg.norm(d)
    d = jnp.where(state.search.kick, kicked(state, frame, model, d), d)
    trial = attempt(problem, state, frame, model, d)

    steepest = jnp.maximum(state.scales.steepest, jnp.linalg.norm(model.grad_f))
    multiplier = jnp.sum(mix) * model.L_f / model.L_h
    relative = residual / jnp.where(steepest > 0, steepest, 1)
    seen = Seen(
        worst=jnp.max(model.h),
        mix=mix,
        multiplier=multiplier,
        residual=residual,
        relative=relative,
        L_f=model.L_f,
        squared=trial.squared,
        radius=frame.radius,
        keep=trial.keep,
    )
    curvature_f, curvature_h = trial.curvatures(model)
    search = dataclasses.replace(
        shrink(state, seen),
        mix=sane(mix, state.search.mix),
        curvature_f=sane(curvature_f, state.search.curvature_f),
        curvature_h=sane(curvature_h, state.search.curvature_h),
    )
    x, y, f, grad_f, cuts = trees.where(
        trial.keep,
        (trial.x, trial.y, trial.f, trial.grad_f, trial.cuts),
        (state.x, state.y, state.f, state.grad_f, state.cuts),
    )
    scales = dataclasses.replace(
        state.scales,
        low_f=jnp.minimum(state.scales.low_f, f),
        high_f=jnp.maximum(state.scales.high_f, f),
        steepest=steepest,
    )
    solved = search.confirmed & ((relative <= RESIDUAL) | (multiplier == 0))
    return dataclasses.replace(
        state,
        phase=jnp.where(solved, DONE, state.phase),
        x=x,
        y=y,
        f=f,
        grad_f=grad_f,
        cuts=cuts,
        multiplier=sane(multiplier, state.multiplier),
        scales=scales,
        search=search,
        f_calls=state.f_calls + 1,
        g_calls=state.g_calls + SLOTS + 1,
    )
