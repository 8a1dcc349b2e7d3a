"""The certificate of any point, however it was found."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from . import _trees as trees
from ._batches import reading
from ._certificate import MAX_SLACK, Certificate, measure
from ._checks import check_point, is_number, traced, whole_number
from ._driver import chosen
from ._errors import ProblemError
from ._mesh import everywhere
from ._precision import Start, certified_in_double
from ._problem import Problem, check_problem


def certify(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    multiplier: ArrayLike | None = None,
    *,
    slack: ArrayLike | None = None,
    max_slack: ArrayLike = MAX_SLACK,
    iterations: int | None = None,
    examples: int | None = None,
    key: Array | None = None,
) -> Certificate:
    r"""The certificate of a point, however it was found.

    Outside of jit and vmap it is computed in double precision, whatever that of the problem; a
    point given in double is certified as it is, not rounded. The inner value is computed by a
    minimiser of its own, started at y, beside it and, if y has at most 10,000 entries and the data
    are not in `Batches`, at eight points drawn from Y: it is a global minimum only if these find
    it. Two multipliers are tried, the one given and the least-squares one,
    $\arg\min_{\lambda \ge 0} \mathrm{dist}(\nabla f + \lambda\nabla h, -N)$;
    the better certificate is returned.

    At an exact inner solution $\nabla h$ vanishes and no finite multiplier exists. Then the
    conditions are checked at a neighbour $(x, y_w)$ with $y_w$ near
    $\arg\min_y f(x, y) + \lambda g(x, y)$: its distance to y counts towards `eps`, and what is
    left of stationarity is the hypergradient, if the inner minimum is unique.

    With constraints it is a `ConstrainedCertificate`; multiplier, slack and iterations do nothing.

    Arguments:
        problem, x, y: the problem and the point.
        multiplier: the multiplier to try first.
        slack: the relaxation to certify. None takes the smallest that makes the point feasible,
            but no more than `max_slack`.
        iterations: the most gradients of g spent on the inner value from each of its starts, and
            again on the neighbour; 2,000 unless given, with `Batches` their `passes`.
        examples, key: with `Batches`, look at so many examples only, drawn with a PRNG key, for a
            `pdbo.results.SampledCertificate`: an estimate that never certifies a point.
    """
    _check_options(problem, multiplier, slack, max_slack, iterations)
    problem, x, y = problem.entered(x, y)
    if problem.coupled:
        from ._coupled import certify_coupled  # most problems do without it

        return certify_coupled(Start(problem, x, y), chosen(None))
    if examples is not None:
        return _estimated(problem, x, y, examples, key)
    count = problem.view.effort() if iterations is None else iterations
    with reading(problem):
        slack = None if slack is None else jnp.asarray(slack)
        checked = check_point(problem, x, y, project=False)
        if traced(problem, *checked, multiplier, slack):
            if multiplier is not None:
                multiplier = jnp.asarray(multiplier, trees.dtype(checked))
            return measure(problem, *checked, multiplier, slack, max_slack, count)
        if problem.mesh is not None:
            x, y = checked
            multiplier = None if multiplier is None else jnp.asarray(multiplier, trees.dtype(x))
            multiplier = everywhere(problem.mesh, multiplier)
        return certified_in_double(problem, x, y, multiplier, slack, max_slack, count)


def _estimated(
    problem: Problem, x: PyTree, y: PyTree, examples: int, key: Array | None
) -> Certificate:
    """The certificate estimated from some of the examples."""
    from ._sampled import GROUPS, sampled  # few need it

    whole_number("examples", examples)
    if not problem.in_batches:
        raise ProblemError("examples needs data in batches: give the data as pdbo.Batches(...).")
    fewest = min(problem.data.outer.length, problem.data.inner.length, int(examples))
    if fewest < GROUPS:
        raise ProblemError(f"examples must be at least {GROUPS}, of f and of g, got {fewest}.")
    with reading(problem):
        x, y = check_point(problem, x, y, project=False)
        return sampled(problem, x, y, int(examples), jax.random.key(0) if key is None else key)


def _check_options(
    problem: object, multiplier: object, slack: object, max_slack: object, count: object
) -> None:
    check_problem(problem)
    for name, value in (("multiplier", multiplier), ("slack", slack), ("max_slack", max_slack)):
        if value is None or traced(value):
            continue
        if not is_number(value) or not 0 <= value < np.inf:
            raise ProblemError(f"{name} must be one finite number >= 0, got {value!r}.")
    if count is not None:
        whole_number("iterations", count)
