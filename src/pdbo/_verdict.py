"""How a run ended: the one place that turns what was seen into a result code."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PyTree

from . import _trees as trees
from ._certificate import Certificate
from ._checks import traced
from ._errors import RESULTS
from ._minimize import minimize
from ._problem import Problem
from ._programs import Program
from ._solution import Solution, State

RUNNING = -1  # the code of a run that goes on
RUNAWAY = 1e10  # an iterate this many times the size of its start has run away
FAR = 100.0  # an iterate this many times the size of its start may be running away
SOUND = (RESULTS.success, RESULTS.max_steps, RESULTS.settled, RESULTS.stopped)
"""The results that are no failures."""


def judge(run: State, row: dict[str, Array], tol: ArrayLike) -> Int[Array, ""]:
    """The code of a recorded state, by its row of history."""
    healthy = trees.finite(run.solver_state) & jnp.isfinite(row["f"]) & jnp.isfinite(row["g"])
    # a gradient that is not finite; where nothing is estimated there is no gap either
    healthy = healthy & ~(jnp.isnan(row["stationarity"]) & ~jnp.isnan(row["inner_gap"]))
    code = jnp.where(run.solver.settled(run.solver_state), RESULTS.settled, RUNNING)
    code = runaway(run, code)
    code = jnp.where(row["eps"] <= tol, RESULTS.success, code)
    return jnp.where(healthy, code, RESULTS.nonfinite).astype(jnp.int32)


def runaway(run: State, code: ArrayLike) -> Int[Array, ""]:
    """The code of a finite state that has run away, else the one given."""
    point = run.point
    if point.multiplier is not None:
        code = jnp.where(point.multiplier > RUNAWAY, RESULTS.multiplier_diverged, code)
    far = trees.max_abs((point.x, point.y)) > RUNAWAY * run.scale
    return jnp.where(far, RESULTS.diverged, code)


def final(code: Any, met: Any, unbounded: Any = False) -> Any:
    """The result of a run that ended with `code`, once its certificate is known.

    `met` is whether the certificate at the point returned is within the tolerance, `unbounded`
    whether f or g was seen to have no minimum. On the host and under jit alike.
    """
    xp = jnp if traced(code, met, unbounded) or np.ndim(code) else np
    sound = code == RUNNING
    for result in (*SOUND, RESULTS.multiplier_diverged):  # a large multiplier may be the right one
        sound = sound | (code == result)
    large = code == RESULTS.multiplier_diverged
    kept = (code == RESULTS.settled) | (code == RESULTS.stopped)
    ended = xp.where(kept, code, RESULTS.max_steps)
    ended = xp.where(sound & ~large, ended, code)
    endless = unbounded & (ended != RESULTS.multiplier_diverged)
    ended = xp.where(endless, RESULTS.diverged, ended)
    return xp.where(sound & met, RESULTS.success, ended).astype(np.int32)


def of_saved(saved: Solution, tol: float, until: int) -> RESULTS | None:
    """The result of a run that had ended when it was saved; None if it is to go on."""
    over = saved.steps >= until
    if saved.result in (RESULTS.diverged, RESULTS.multiplier_diverged):
        return saved.result
    if saved.result is RESULTS.nonfinite:  # f or g may have been put right
        return saved.result if over else None
    if saved.certificate is None:
        return None
    met = bool(saved.certificate.eps <= tol)
    if not (met or over or saved.result is RESULTS.settled):
        return None
    return RESULTS(int(final(int(saved.code), met)))


def falls_forever(certificate: Certificate, g: Any) -> Any:
    """Whether the certificate's own inner solve fell without end."""
    return certificate.inner_gap > RUNAWAY * (1 + abs(g))


def unbounded_reason(
    problem: Problem, run: State, certificate: Certificate, f: float, g: float, first_f: float
) -> str:
    """The sentence on which of f and g has no minimum; empty if neither was seen to lack one.

    For g that is an inner solve that falls without end. For f it is a ray: a run that went far may
    still be on its way to a minimum, but not if f falls by as much again at the inner solution
    a thousand and a million times as far away.
    """
    if falls_forever(certificate, g):
        return "g(x, .) has no minimum at the x returned."
    point = run.point
    if not float(trees.max_abs((point.x, point.y))) > FAR * float(run.scale):
        return ""
    gained, before = max(first_f - f, 0.0), f
    for factor in (1e3, 1e6):
        x, found, residual = _along_ray(problem, point.x, point.y, jnp.asarray(factor))
        now = float(found)
        if not residual <= 1e-3 * float(1 + trees.max_abs(x)):
            return ""
        if not before - now >= 0.1 * gained > 0:
            return ""
        before = now
        if now == -np.inf:
            break
    return (
        f"f falls without end: at inner solutions {factor:.0e} times as far away it is {now:.3g}."
    )


@Program
def _along_ray(
    problem: Problem, x: PyTree, y: PyTree, factor: Array
) -> tuple[PyTree, Array, Array]:
    """The point so many times as far away, f at the inner solution there, and its residual."""
    x = problem.x_set.project(trees.scale(factor, x))
    start = trees.scale(factor, y)
    found = minimize(lambda v: problem.inner(x, v), problem.y_set, start, problem.view.effort())
    return x, problem.outer(x, found.point), found.residual
