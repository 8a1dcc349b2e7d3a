"""From the search to polishing: when, and with which multiplier."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..._problem import Problem
from ...sets import Free
from .slack import SLOW
from .state import AutoState

EARLY = 1e-3  # ranges of g: polishing is tried if the search is slow and the slack at most this
SOON = 10  # iterations without a shrink after which it is tried if Y is free, the active slots ...
SOONER = 1e-2  # ... agree, and the slack is at most this, in ranges of g
MAX_BALANCE = 30.0  # above this multiple of the multiplier that balances the gradients in y, one
# found by the search is treated as spurious
ALIKE = 0.2  # of the slope of g in x: slots that differ by less stand for one inner solution
ACTIVE = 1e-2  # of the largest mix: a slot with more takes part in the solution


def ready(problem: Problem, state: AutoState) -> Bool[Array, ""]:
    """Whether the search has settled or become slow, so that polishing should be tried."""
    search, range_g = state.search, state.scales.range_g
    slow = (search.since_shrink >= SLOW) & (search.slack <= EARLY * range_g)
    if isinstance(problem.y_set, Free):
        soon = (search.since_shrink >= SOON) & (search.slack <= SOONER * range_g)
        slow = slow | (soon & slots_agree(state, jnp.argmax(search.mix)))
    slow = slow & (search.stuck == 0)
    return (search.confirmed | slow) & (state.multiplier > 0)


def slots_agree(state: AutoState, k: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether the active slots agree with the k-th on the slope of g in x."""
    mine, mix = state.cuts.x[1 + k], state.search.mix
    active = mix > ACTIVE * mix[k]
    apart = jnp.linalg.norm(state.cuts.x[1:] - mine, axis=1)
    return jnp.all(~active | (apart <= ALIKE * jnp.linalg.norm(mine)))


def last_multiplier(problem: Problem, state: AutoState, size_x: int) -> Float[Array, ""]:
    """The multiplier at the last slack, extrapolated from that at the present one."""
    found = state.multiplier
    if isinstance(problem.y_set, Free):
        pull, push = jnp.linalg.norm(state.grad_f[size_x:]), jnp.linalg.norm(state.cuts.y[0])
        balance = jnp.where((pull > 0) & (push > 0), pull / jnp.where(push > 0, push, 1), jnp.inf)
        found = jnp.where(found <= MAX_BALANCE * balance, found, balance)
    return found * jnp.sqrt(state.search.slack / state.floor)
