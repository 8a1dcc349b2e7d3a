"""Where a run stands: its phase, what the phases share, and a sub-state for each."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

SEARCH = 0  # x and y move together, under cuts whose slack shrinks
APPROACH = 1  # x waits while y and a slot are taken to their minima: may polishing start here?
POLISH = 2  # x moves, and y and the slot follow to their minima
DONE = 3  # nothing changes any more

SLOTS = 4  # inner estimates kept, one cut each
RECENT = 8  # kept polishing steps whose f is remembered: the next may reach the highest
CONFIRM = 30  # iterations at rest, at the last slack, that confirm the end of the search
RESIDUAL = 1e-6  # a residual, relative to the largest gradient of f, that counts as zero
ROUNDING = 32.0  # units in the last place of g: the slack never falls below them


def no_value(dtype: np.dtype) -> float:
    """The value that means "no f yet": the largest number, so that any f is lower."""
    return float(jnp.finfo(dtype).max)


class Cuts(NamedTuple):
    """g and its gradients at (x, y), row 0, and at (x, slot), the other rows."""

    value: Float[Array, " rows"]
    x: Float[Array, "rows x"]  # gradients in x, ravelled
    y: Float[Array, "rows y"]  # gradients in y, ravelled


class Scales(eqx.Module):
    """What the run measures by: the first three are found by `init`, the others grow."""

    unit: Float[Array, "2"]  # a typical change of an entry of x and of one of y
    range_g: Float[Array, ""]  # the spread of g among the first slots
    last_slack: Float[Array, ""]  # the slack at which shrinking ends; in values of g
    low_f: Float[Array, ""]  # the lowest f met by the search
    high_f: Float[Array, ""]  # the highest f met by the search
    steepest: Float[Array, ""]  # the largest gradient of f met; f per unit length


class Incumbent(NamedTuple):
    """The best feasible point met."""

    x: PyTree
    y: PyTree
    f: Float[Array, ""]  # `no_value` if there is none, or none to compare with


class SearchState(eqx.Module):
    """What only the search changes; a failed polishing starts `pause`."""

    inner_step: Float[Array, " slots"]  # step size of each slot's descent on g; y^2 per g
    inner_drop: Float[Array, " slots"]  # decrease of g by the last inner steps of each slot
    mix: Float[Array, " slots"]  # l = multiplier * curvature_h / curvature_f, one per slot
    curvature_f: Float[Array, ""]  # of f; f per squared unit length
    curvature_h: Float[Array, ""]  # of the cuts; g per squared unit length
    slack: Float[Array, ""]  # delta, how far a cut may be exceeded; in values of g
    loose: Int[Array, ""]  # iterations since a cut was last active
    stuck: Int[Array, ""]  # iterations since the point was last feasible
    at_rest: Int[Array, ""]  # iterations at rest, at the last slack
    since_shrink: Int[Array, ""]  # iterations since the slack shrank or y jumped, less pauses
    pause: Int[Array, ""]  # iterations left in which `since_shrink` does not count
    kick: Bool[Array, ""]  # whether the next step gets a random kick
    jumps: Int[Array, ""]  # returns to the incumbent so far

    @classmethod
    def start(cls, inner_step: Float[Array, " slots"], slack: Array, drop: Array) -> "SearchState":
        """Before the first iteration: no multipliers, no curvatures, and `drop` still to gain."""
        zero, none = jnp.zeros((), inner_step.dtype), jnp.zeros((), jnp.int32)
        return cls(
            inner_step=inner_step,
            inner_drop=jnp.full_like(inner_step, drop),
            mix=jnp.zeros_like(inner_step),
            curvature_f=zero,
            curvature_h=zero,
            slack=slack,
            loose=none,
            stuck=none,
            at_rest=none,
            since_shrink=none,
            pause=none,
            kick=jnp.array(False),
            jumps=none,
        )

    @property
    def confirmed(self) -> Bool[Array, ""]:
        """Whether the search has been at rest for long enough."""
        return self.at_rest >= CONFIRM


class PolishState(eqx.Module):
    """What only APPROACH and POLISH change."""

    turns: Int[Array, ""]  # iterations of this APPROACH so far
    stalled: Int[Array, ""]  # polishing steps since f or the residual last fell enough
    residual: Float[Array, ""]  # the lowest met, relative to `Scales.steepest`
    recent: Float[Array, " recent"]  # f at the last kept steps, or `no_value`
    slope: Float[Array, " x"]  # gradient in x of the penalty function at the last kept step
    steps: Float[Array, "3"]  # step sizes of x, of y and of the slot

    @classmethod
    def start(cls, x: PyTree, dtype: np.dtype) -> "PolishState":
        """Before any polishing."""
        none = jnp.zeros((), jnp.int32)
        return cls(
            turns=none,
            stalled=none,
            residual=jnp.zeros((), dtype),
            recent=jnp.zeros(RECENT, dtype),
            slope=jnp.zeros_like(ravel_pytree(x)[0]),
            steps=jnp.zeros(3, dtype),
        )


class AutoState(eqx.Module):
    """What the phases share, and their sub-states."""

    phase: Int[Array, ""]  # SEARCH, APPROACH, POLISH or DONE
    t: Int[Array, ""]  # iterations made
    seed: UInt32[Array, ""]  # of the random draws
    x: PyTree
    y: PyTree
    f: Float[Array, ""]  # at (x, y)
    grad_f: Float[Array, " z"]  # at (x, y), ravelled; POLISH leaves it as it was
    slots: Float[Array, "slots y"]  # inner estimates, ravelled
    cuts: Cuts  # at x; POLISH leaves them as they were
    multiplier: Float[Array, ""]  # the sum over all cuts; f per g
    scales: Scales
    incumbent: Incumbent
    search: SearchState
    polish: PolishState
    f_calls: Int[Array, ""]  # gradients of f so far
    g_calls: Int[Array, ""]  # gradients of g so far
    products: Int[Array, ""]  # those of the exact path that went before

    @property
    def floor(self) -> Float[Array, ""]:
        """The least slack: the last one, or what rounding leaves of a cut if that is more."""
        rounding = ROUNDING * float(jnp.finfo(self.f.dtype).eps) * jnp.abs(self.cuts.value[0])
        return jnp.maximum(self.scales.last_slack, rounding)
