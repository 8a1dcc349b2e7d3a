"""A trial step of z = (x, y): the local models, the step, and how the point compares with them."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ... import _trees as trees
from ..._problem import Problem
from ...sets import Free
from .multipliers import Model
from .oracles import cuts_at, draw_index, finite, outer
from .state import AutoState, Cuts
from .units import RADIUS

MODEL = 0.51  # of curvature * |d|^2: how far a trial may lie above its slope; half, and rounding
SLACK_ROOM = 0.05  # of the slack: how far a cut may lie above its model besides
KICK = 0.3  # length of the random kick after a shrink, in widths of the relaxation


class Frame(NamedTuple):
    """z = (x, y) as one vector, in units."""

    problem: Problem
    z: Float[Array, " z"]
    unit: Float[Array, " z"]  # of every entry
    to_x: Callable[[Array], PyTree]
    to_y: Callable[[Array], PyTree]
    size_x: int

    @classmethod
    def of(cls, problem: Problem, state: AutoState) -> "Frame":
        """That of the current point."""
        flat_x, to_x = ravel_pytree(state.x)
        flat_y, to_y = ravel_pytree(state.y)
        unit_x, unit_y = state.scales.unit[0], state.scales.unit[1]
        unit = jnp.concatenate(
            [jnp.full_like(flat_x, 1) * unit_x, jnp.full_like(flat_y, 1) * unit_y]
        )
        z = jnp.concatenate([flat_x, flat_y]) / unit
        return cls(problem, z, unit, to_x, to_y, flat_x.size)

    @property
    def radius(self) -> float:
        """The longest step."""
        return RADIUS * self.z.size**0.5

    def split(self, z: Float[Array, " z"]) -> tuple[PyTree, PyTree]:
        """x and y, in their own numbers and shapes."""
        z = z * self.unit
        return self.to_x(z[: self.size_x]), self.to_y(z[self.size_x :])

    def project(self, z: Float[Array, " z"]) -> Float[Array, " z"]:
        """The nearest point of X times Y."""
        x, y = self.split(z)
        sets = self.problem.x_set.project(x), self.problem.y_set.project(y)
        return ravel_pytree(sets)[0] / self.unit


def local_model(problem: Problem, state: AutoState, frame: Frame) -> Model:
    """The models of f and of the cuts at z, their curvatures large enough for the radius."""
    tiny = float(jnp.finfo(frame.z.dtype).tiny) ** 0.5
    cuts = state.cuts
    in_x = cuts.x[0] - cuts.x[1:]
    in_y = jnp.broadcast_to(cuts.y[0], cuts.y[1:].shape)
    grad_h = jnp.concatenate([in_x, in_y], 1) * frame.unit
    grad_f = state.grad_f * frame.unit
    steep_f = jnp.linalg.norm(grad_f)
    steep_h = jnp.max(jnp.linalg.norm(grad_h, axis=1))
    L_f = jnp.maximum(jnp.maximum(state.search.curvature_f, steep_f / frame.radius), tiny)
    L_h = jnp.maximum(jnp.maximum(state.search.curvature_h, steep_h / frame.radius), tiny)

    def step_for(mix: Float[Array, " slots"]) -> Float[Array, " z"]:
        mean = (grad_f / L_f + trees.matmul(mix, grad_h) / L_h) / (1 + jnp.sum(mix))
        return frame.project(frame.z - mean) - frame.z

    free = isinstance(problem.x_set, Free) and isinstance(problem.y_set, Free)
    h = cuts.value[0] - cuts.value[1:]
    return Model(h, state.search.slack, grad_f, grad_h, L_f, L_h, step_for, free)


def kicked(
    state: AutoState, frame: Frame, model: Model, d: Float[Array, " z"]
) -> Float[Array, " z"]:
    """The step with a random kick within the relaxation."""
    z = frame.z
    length_one = (3 / z.size) ** 0.5
    noise = Free().hashed_point(draw_index(state), jnp.zeros_like(z), length_one)
    width = jnp.minimum(jnp.sqrt(model.slack / model.L_h), frame.radius)
    return frame.project(z + d + KICK * width * noise) - z


class Trial(NamedTuple):
    """The point after a step, and how it compares with the models."""

    x: PyTree
    y: PyTree
    f: Float[Array, ""]
    grad_f: Float[Array, " z"]
    cuts: Cuts
    squared: Float[Array, ""]  # length of the step, squared; in units
    above_f: Float[Array, ""]  # f above its slope, beyond rounding
    above_h: Float[Array, ""]  # the same of the cut that is farthest above
    fits_f: Bool[Array, ""]  # whether f stays below its model
    fits_h: Bool[Array, ""]  # whether all cuts stay below theirs
    finite: Bool[Array, ""]  # whether all values and gradients are finite
    keep: Bool[Array, ""]  # whether the step is taken

    def curvatures(self, model: Model) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The next ones of f and of the cuts."""
        of_f = self._curvature(model.L_f, self.fits_f, self.above_f)
        return of_f, self._curvature(model.L_h, self.fits_h, self.above_h)

    def _curvature(self, L: Array, fits: Bool[Array, ""], above: Array) -> Float[Array, ""]:
        """Lower after a step that was kept, higher if the model failed."""
        real, dd = self.finite & (self.squared > 0), self.squared
        measured = jnp.where(real, 2 * above / jnp.where(dd > 0, dd, 1), 0)
        longer = jnp.maximum(0.7 * L, measured)
        shorter = jnp.where(fits, L, jnp.maximum(2 * L, 1.5 * measured))
        return jnp.where(self.keep, longer, jnp.where(self.finite, shorter, 4 * L))


def attempt(
    problem: Problem, state: AutoState, frame: Frame, model: Model, d: Float[Array, " z"]
) -> Trial:
    """f and the cuts after the step d; it is kept if they stay below their models."""
    eps = float(jnp.finfo(d.dtype).eps)
    x, y = frame.split(frame.z + d)
    f, grad_f = outer(problem, x, y)
    cuts = cuts_at(problem, x, y, state.slots)
    h = cuts.value[0] - cuts.value[1:]
    dd = trees.dot(d, d)
    round_f = 8 * eps * (jnp.abs(f) + jnp.abs(state.f))
    round_h = 8 * eps * jnp.max(jnp.abs(state.cuts.value) + jnp.abs(cuts.value))
    above_f = f - state.f - trees.dot(model.grad_f, d) - round_f
    above_h = jnp.max(h - model.h - trees.matmul(model.grad_h, d)) - round_h
    good = jnp.isfinite(f) & jnp.all(jnp.isfinite(grad_f)) & jnp.all(finite(cuts))
    # with room to spare: on a quadratic the two sides are equal but for rounding, and a compiler
    # that computes `keep` twice may then take x from one point and y from the other
    fits_f = above_f <= MODEL * model.L_f * dd
    fits_h = above_h <= MODEL * model.L_h * dd + SLACK_ROOM * model.slack
    keep = good & fits_f & fits_h
    return Trial(x, y, f, grad_f, cuts, dd, above_f, above_h, fits_f, fits_h, good, keep)
