"""What the follower answers: f at the inner problem solved again from the y that a run returned."""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ._batches import reading
from ._errors import AnswerWarning, warn
from ._minimize import minimize
from ._precision import has_double, in_double, to_float64
from ._problem import Problem
from ._programs import Program
from ._solution import Answer, Pending, Solution
from .exact.newton import minimise
from .exact.oracle import SMALL, Oracle, fits

S = TypeVar("S", bound=Solution)


def with_answer(solution: S, problem: Problem, tol: float) -> S:
    """`answering`, which is looked at here if the certificate is relaxed.

    Then y may lie beside what the follower answers.
    """
    solution = answering(solution, problem, tol)
    relaxed = not solution.is_pending and solution.ok and not solution.certificate.exact  # type: ignore
    if relaxed:
        solution.answer.look()  # type: ignore
    return solution


def answering(solution: S, problem: Problem, tol: float = 1e-4) -> S:
    """The solution with f at the inner problem solved again from y, computed when looked at.

    A warning says so if this f differs from the solution's by more than `tol`, relatively.
    """
    point, f = (solution.x, solution.y), float(solution.f)

    def compute() -> Answer:
        answer = answered(problem, *point)
        if abs(float(answer.f) - f) > tol * (1 + abs(f)):
            warn(
                f"f is {f:.6g} at the y returned, but {float(answer.f):.6g} at the inner problem "
                "solved again from there: g hardly tells these two answers apart.",
                AnswerWarning,
            )
        return answer

    return dataclasses.replace(solution, answer=Pending(compute))


def answered(problem: Problem, x: PyTree, y: PyTree) -> Answer:
    """The inner problem solved again from y, in double precision if f and g allow it."""
    if problem.coupled:
        from ._coupled import answer_coupled  # it needs SciPy, as nothing else does

        return Answer(*answer_coupled(problem, x, y))
    own = has_double()
    with jax.enable_x64(True), reading(problem):
        try:
            double = problem.astype(jnp.float64) if own else to_float64(problem)
            at = jax.tree.map(in_double, (x, y))
            return _small(double, *at) or _numpy(_solved(double, *at, problem.view.effort()))
        except (TypeError, ValueError):  # they insist on another precision
            pass
    with reading(problem):
        return _numpy(_solved(problem, x, y, problem.view.effort()))


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
