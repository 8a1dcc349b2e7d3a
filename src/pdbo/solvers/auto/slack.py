"""When the slack of the cuts shrinks, and when the search is at rest (idea 4 of `AutoPDBO`)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .multipliers import LOG_MAX_MIX
from .state import RESIDUAL, AutoState, SearchState

FIRST_SLACK = 4.0  # the first slack, in ranges of g: at first f is alone
LAST_SLACK = 1e-8  # the slack at which shrinking ends, in ranges of g ...
LAST_SLACK_ABSOLUTE = 1e-7  # ... but at most this: a tenth of what a certificate allows
SHRINK = 0.5  # what a shrink leaves of the slack
ALMOST = 0.9  # of the slack, or of the worst cut, to which it falls while no cut is active
EVIDENCE = 0.3  # shrink once the f-error left is at most this part of the relaxation's bias
FEASIBLE = 1.5  # slacks: a point whose cuts are all below this counts as feasible
SHORT = 0.05  # radii: a step that f takes alone and that is shorter counts as settled
PATIENCE = 60  # iterations without an active cut after which f counts as settled anyway
SLOW = 40  # iterations without a shrink after which the slack shrinks anyway
KICK_FROM = 10.0  # last slacks: below them a shrink is not followed by a random kick


class Seen(NamedTuple):
    """What an iteration of the search says about the slack."""

    worst: Float[Array, ""]  # the largest cut h_k before the step
    mix: Float[Array, " slots"]
    multiplier: Float[Array, ""]  # the sum of the multipliers
    residual: Float[Array, ""]  # of the Lagrangian's projected gradient; f per unit length
    relative: Float[Array, ""]  # the same, relative to the largest gradient of f
    L_f: Float[Array, ""]  # curvature of f
    squared: Float[Array, ""]  # length of the step, squared; in units
    radius: float  # the longest step; in units
    keep: Bool[Array, ""]  # whether the step was taken


def shrink(state: AutoState, seen: Seen) -> SearchState:
    """The slack and the counters after an iteration."""
    search, slack, floor = state.search, state.search.slack, state.floor
    near = seen.worst <= FEASIBLE * slack
    alone = near & (seen.multiplier == 0)
    loose = jnp.where(alone, search.loose + 1, 0)
    short = seen.squared <= (SHORT * seen.radius) ** 2
    rested = alone & seen.keep & (short | (loose > PATIENCE))
    reachable = jnp.max(seen.mix) < 0.9 * float(np.exp(LOG_MAX_MIX))
    error, bias = seen.residual**2 / (2 * seen.L_f), EVIDENCE * seen.multiplier * slack
    converged = near & ~alone & reachable & (error <= bias)
    # with no cut active the slack may fall to where the first one is met
    met = jnp.clip(ALMOST * seen.worst, SHRINK * slack, ALMOST * slack)
    waited = near & ~alone & (search.since_shrink >= SLOW)
    new = jnp.where(rested, met, jnp.where(converged | waited, SHRINK * slack, slack))
    new = jnp.maximum(new, floor)
    shrunk, paused = new < slack, search.pause > 0
    still = (rested | converged | (seen.relative <= RESIDUAL)) & near & (slack <= floor)
    return dataclasses.replace(
        search,
        slack=new,
        loose=loose,
        stuck=jnp.where(near, 0, search.stuck + 1),
        at_rest=jnp.where(still, search.at_rest + 1, 0),
        since_shrink=jnp.where(shrunk | paused, 0, search.since_shrink + 1),
        pause=jnp.where(shrunk | ~paused, 0, search.pause - 1),
        kick=shrunk & (new > KICK_FROM * floor),
    )
