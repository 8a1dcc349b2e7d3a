"""The certificate of a point on the host, in stages: exact if it can be, relaxed otherwise."""

import jax
import numpy as np
from jaxtyping import PyTree

from ._certificate import Certificate, TermCertificate
from ._problem import Problem
from .exact.certificate import Facts, look, rough
from .exact.dense import Curvature
from .exact.large import Large
from .exact.large_certificate import look_at_large
from .exact.oracle import SMALL, Vector, fits
from .solvers._implicit import path_of

CLOSE = 1e-6  # relative to y: an inner minimum this close leaves a relaxation nothing to explain
NEGLIGIBLE = 1e-10  # a fall of f by this part of its terms: the minimum may be at infinity
WRONG = 1e-2  # relative to x: no small gradient excuses an x this far from a solution
TOL = 1e-4  # the tolerance for which the dear parts of an exact certificate are computed

NO_FACTS = Facts(
    inner_left=np.inf, outer_left=np.inf, gap=np.inf, gap_left=np.inf, slope=np.nan,
    residual=np.nan, curvature=np.nan, valleys=0, unique=False, radius=np.nan,
    adjoint=(0.0, np.nan), kinks=(0, 0.0),
)  # fmt: skip
"""Of a point of a problem with an inner term that the exact certificate does not apply to."""


def facts_of(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    tol: float = TOL,
    elsewhere: bool = True,
    v: Vector | None = None,
) -> Facts | None:
    """What the exact certificate knows of a point in double; None if it does not apply.

    `v` is the adjoint there, if a run on a large problem has found it.
    """
    if problem.in_batches and not problem.sources:
        problem = problem.pooled()
        if fits(problem, x, y) != SMALL:
            return None
    if not fits(problem, x, y):
        return None
    path = path_of(problem, x, y)
    at = path.oracle.flat(x, y)
    with np.errstate(all="ignore"):
        if isinstance(path, Large):
            return look_at_large(path, *at, max(tol, TOL), v)
        return look(path.oracle, *at, max(tol, TOL), elsewhere)


def is_rough(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether g is seen to have a kink at y, so that no certificate holds there."""
    if fits(problem, x, y) != SMALL:
        return False
    oracle = path_of(problem, x, y).oracle
    if not oracle.may_have_kinks:
        return False
    with np.errstate(all="ignore"):
        at = oracle.flat(x, y)
        values = oracle.values(*at)
        return rough(oracle, *at, values, Curvature.of(oracle, *at, values))


def exact_certificate(facts: Facts, y: PyTree) -> Certificate:
    """The certificate, with the entries of Definition 1 at the neighbour y + v / lambda."""
    size, bend = facts.adjoint
    norm = float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(y))))
    move = np.finfo(np.float64).eps ** (1 / 3) * max(norm, 1e-8)
    multiplier = size / move if size > 0 else 0.0
    numbers = {
        "stationarity": facts.slope,
        "feasibility": facts.gap,
        "complementarity": 0.5 * bend / multiplier if multiplier > 0 else 0.0,
        "distance": move if size > 0 else 0.0,
        "inner_gap": facts.gap,
        "inner_residual": facts.residual,
        "multiplier": multiplier,
        "slack": 0.0,
        "eps": facts.eps,
        "curvature": facts.curvature,
        "radius": facts.radius if facts.gap_left == 0 else np.nan,
    }
    known = {k: np.asarray(v)[()] for k, v in numbers.items()}
    if facts.kinks is None:
        return Certificate(**known, exact=np.True_)  # type: ignore
    more = {k: np.float64(v) for k, v in zip(("support", "margin"), facts.kinks, strict=True)}
    return TermCertificate(**known, exact=np.True_, **more)  # type: ignore


def decided(facts: Facts, tol: float = TOL) -> bool:
    """Whether the exact certificate decides alone: it holds, or g is lower elsewhere, or x far off.

    Where g has other valleys, or does not curve, it may hold only if it is relaxed.
    """
    if facts.eps <= tol or facts.gap_left > WRONG or facts.jump:
        return True
    alone = facts.unique and facts.valleys == 1 and facts.gap_left == 0
    wrong = (facts.outer_left > WRONG and facts.gain > NEGLIGIBLE) or facts.curvature < 0
    return alone and facts.inner_left <= CLOSE and wrong
