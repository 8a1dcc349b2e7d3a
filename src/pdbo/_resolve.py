"""What the follower answers: f at the inner problem solved again from the y that a run returned."""

import dataclasses
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ._batches import reading
from ._certificate import MAX_SLACK
from ._errors import AnswerWarning, warn
from ._minimize import minimize
from ._precision import in_double_if_possible
from ._problem import Problem
from ._programs import Program
from ._solution import Answer, Pending, Solution, is_large
from ._verdict import SOUND
from .exact.newton import minimise
from .exact.oracle import SMALL, Oracle, fits

S = TypeVar("S", bound=Solution)


def with_answer(solution: S, problem: Problem, tol: float) -> S:
    """`answering`, which is looked at here if the follower may answer otherwise than with y.

    On a large problem the answer may cost as much as the run. There a run that ended uncertified is
    judged by the last estimate of its inner gap alone.
    """
    solution = answering(solution, problem, tol)
    doubt = _doubt(solution)
    small = problem.coupled or fits(problem, solution.x, solution.y) == SMALL
    if doubt == np.inf or (small and doubt > MAX_SLACK):
        solution.answer.look()  # type: ignore
    elif doubt > tol:
        warn(
            f"f is {float(solution.f):.6g} at the y returned, where g is {doubt:.1e} above the "
            "lowest value seen (relative to 1 + |g|): the run ended before y was the follower's "
            "answer; sol.f_resolved is f at the answer.",
            AnswerWarning,
        )
    return solution


def _doubt(solution: Solution) -> float:
    """How far g lies above its minimum at y, as far as is known, relative to 1 + |g|.

    Infinite if a relaxed certificate holds: then y may lie far from the answer nevertheless.
    """
    certificate = None
    if not solution.is_pending:
        certificate = solution.certificate
        if certificate is None or solution.result not in SOUND:
            return 0.0
        if solution.ok:
            return 0.0 if certificate.exact else np.inf
    seen = solution.history["inner_gap"] if certificate is None else [certificate.inner_gap]
    return float(seen[-1]) / (1 + abs(float(solution.g))) if len(seen) else 0.0


def answering(solution: S, problem: Problem, tol: float = 1e-4) -> S:
    """The solution with f at the inner problem solved again from y, computed when looked at.

    A warning says so if this f differs from the solution's by more than `tol`, relatively.
    """
    point, f, known = (solution.x, solution.y), float(solution.f), solution.answer

    def compute() -> Answer:
        answer = known if isinstance(known, Answer) else answered(problem, *point)
        if abs(float(answer.f) - f) > tol * (1 + abs(f)):
            warn(
                f"f is {f:.6g} at the y returned, but {float(answer.f) + 0.0:.6g} at the "
                "follower's answer, the inner problem solved again from there: either g hardly "
                "tells the two apart, or the run ended before y was the answer.",
                AnswerWarning,
            )
        return answer

    later = Pending(compute, is_large(problem, *point))
    return dataclasses.replace(solution, answer=later)


def answered(problem: Problem, x: PyTree, y: PyTree) -> Answer:
    """The inner problem solved again from y, in double precision if f and g allow it."""
    if problem.coupled:
        from ._coupled import answer_coupled  # most problems do without it

        return Answer(*answer_coupled(problem, x, y))

    def solved(problem: Problem, x: PyTree, y: PyTree) -> Answer:
        return _numpy(_solved(problem, x, y, problem.view.effort()))

    def fine(problem: Problem, x: PyTree, y: PyTree) -> Answer:
        return _small(problem, x, y) or solved(problem, x, y)

    with reading(problem):
        return in_double_if_possible("f_resolved", problem, (x, y), fine, solved)


def further(exact: Solution, found: Solution, problem: Problem) -> Solution:
    """The exact end of a run if f is as low at its answer as at that of `found`; else that.

    So it is where a minimum lies at infinity, or has no end in x: no certificate holds, but exact
    steps go further. A relaxed certificate of `found` says less, as it allows a gap.
    """
    ours, other = (float(answered(problem, s.x, s.y).f) for s in (exact, found))
    certified = found.ok and found.certificate is not None and bool(found.certificate.exact)
    return found if certified or other < ours else exact  # other may be NaN


def _small(problem: Problem, x: PyTree, y: PyTree) -> Answer | None:
    """The answer by Newton's method, if the problem is small and it succeeds."""
    if fits(problem, x, y) != SMALL:
        return None
    oracle = Oracle(problem, x, y)
    flat = oracle.flat(x, y)
    with np.errstate(all="ignore"):
        found = minimise(oracle, *flat)
    if not found.found:
        return None
    return Answer(oracle.trees(flat[0], found.y)[1], np.float64(found.values.f))


@Program
def _solved(problem: Problem, x: PyTree, y: PyTree, effort: int) -> Answer:
    found = minimize(lambda v: problem.inner(x, v), problem.y_set, y, effort)
    return Answer(found.point, problem.outer(x, found.point))


def _numpy(answer: Answer) -> Answer:
    def plain(leaf: Array) -> Array | np.ndarray:
        return np.asarray(leaf)[()] if leaf.is_fully_replicated else leaf  # else it stays split

    return jax.tree.map(plain, answer)
