"""Large problems with constraints as the doors run them: a sparse follower, or gradients alone."""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import PyTree

from ._certificate import Certificate
from ._checks import check_rows, point_arrays, report_outside, report_point
from ._errors import RESULTS, ProblemError
from ._history import COLUMNS, History
from ._options import Options
from ._precision import is_double
from ._problem import Problem
from ._progress import Progress
from ._solution import Answer as Known
from ._solution import Outcome, Solution
from .coupled.certificate import Facts
from .coupled.follower import Answer, answer, begun
from .coupled.large import Step, answer_again, inner_gap
from .coupled.large import descend as descend_by_gradients
from .coupled.large_certificate import convex, look
from .coupled.model import shaped
from .coupled.oracle import Oracle, flat, seen_at
from .coupled.reduced import FIRST, SHRINK, Leader, Point, Vector, descend

STEPS = 200  # those of x, unless said otherwise
SMALL, LAST = 1e-4, 1e-9  # barriers from and down to which `certify` looks at a point
FAR = 1e5  # an inner point this large, in sizes of the start, runs away
MOVES = 3  # random points at which constraints are looked at
SHRUNK = "the follower's answers end here: his set may have shrunk to a point."
NOT_CONVEX = "the follower is not seen to be convex, so that g may have lower minima elsewhere."
BY_GRADIENTS = "the second derivatives of g are not sparse: gradients alone certify nothing."


def solve_large(problem: Problem, x0: PyTree, y0: PyTree, options: Options) -> Solution:
    """The solution from one start."""
    x, y = _checked(problem, x0, y0, told=True)
    if options.checkpoint is not None:
        raise ProblemError("checkpoint cannot be used with constraints of this size.")
    oracle = _oracle(problem, x, y)
    if oracle is None:
        return _by_gradients(problem, x, y, options)
    return _by_newton(problem, oracle, options)


def certify_large(problem: Problem, x0: PyTree, y0: PyTree) -> Certificate:
    """The certificate of a point: of the follower's answer to x, and how far y is from it."""
    inside = _checked(problem, x0, y0)
    oracle, off = _oracle(problem, *inside), max(map(_distance, (x0, y0), inside))
    if oracle is None:
        raise ProblemError(f"a problem of this size cannot be certified if {BY_GRADIENTS}")
    leader, (x, y), best = Leader(oracle, *oracle.bounds()), oracle.start, None
    for mu, at in _answers(oracle, x, begun(oracle, x, y), FIRST):
        here = leader.point(x, at, mu) if mu < 2 * SMALL else None
        if here is not None:
            facts = look(leader, here)
            apart = float(np.linalg.norm(y - at.y) / max(float(np.linalg.norm(y)), 1e-300))
            facts = facts._replace(
                residual=max(facts.residual, apart), feasibility=max(facts.feasibility, off)
            )
            best = facts if best is None or facts.eps < best.eps else best
    if best is None or not convex(oracle, x, at):  # type: ignore
        raise ProblemError(
            "the point cannot be certified: "
            + ("the follower has no answer to its x." if best is None else NOT_CONVEX)
        )
    return best.certificate


def answer_large(problem: Problem, x0: PyTree, y0: PyTree) -> tuple[PyTree, float]:
    """The follower's answer to x, and f there; y itself if it is not computed."""
    x, y = _checked(problem, x0, y0)
    oracle = _oracle(problem, x, y)
    if oracle is not None:
        *_, (_, at) = _answers(oracle, oracle.start[0], begun(oracle, *oracle.start), FIRST)
        y = y if at.lost else oracle.point(oracle.start[0], at.y)[1]
    return y, float(seen_at(problem, x, y).f)


def _answers(oracle: Oracle, x: Vector, at: Answer, mu: float) -> Iterator[tuple[float, Answer]]:
    """Ever smaller barriers, and the follower's answer to x under each."""
    while mu > 0.5 * LAST:
        at, _ = answer(oracle, x, at, mu)
        yield mu, at
        mu *= SHRINK


def _known(problem: Problem, oracle: Oracle, here: Point) -> Known:
    """The follower's answer to the x of a point, for the smallest barrier that has one, and f."""
    mu = float(np.max(here.at.m * here.at.s / oracle.share, initial=LAST))
    at = here.at
    for _, new in _answers(oracle, here.x, here.at, max(SHRINK * mu, LAST)):
        if new.lost:
            break
        at = new
    x, y, *_ = oracle.solution(here.x, at)
    return Known(y, np.float64(seen_at(problem, x, y).f))


def _checked(problem: Problem, x0: PyTree, y0: PyTree, told: bool = False) -> tuple[PyTree, PyTree]:
    """The start as arrays, projected on its sets, with a warning if it is to be told."""
    x, y = point_arrays(x0, y0)
    problem.x_set.check(x, "x_set")
    problem.y_set.check(y, "y_set")
    inside = problem.x_set.project(x), problem.y_set.project(y)
    if told:
        report_outside([_distance(*pair) for pair in zip((x, y), inside, strict=True)])
    return inside


def _distance(there: PyTree, here: PyTree) -> float:
    """How far apart points are, relative to 1 + their size; zero for what float32 rounds."""
    a, b = flat(there, ()), flat(here, ())
    apart = float(np.linalg.norm(a - b) / (1 + np.linalg.norm(a)))
    return apart if apart > 1e-6 else 0.0


def _oracle(problem: Problem, x: PyTree, y: PyTree) -> Oracle | None:
    """The problem if the follower's matrices are sparse."""
    seen = seen_at(problem, x, y)
    report_point((0, 0), (float(seen.f), float(seen.g)))
    for which in ("outer", "inner"):
        if getattr(problem, f"{which}_constraint") is not None:
            check_rows(which, *_looked_at(problem, which, x, y))
    oracle = Oracle(problem, x, y) if is_double(x, y) else None
    return oracle if oracle is not None and oracle.sparse else None


def _looked_at(
    problem: Problem, which: str, x: PyTree, y: PyTree
) -> tuple[np.ndarray, np.ndarray, bool]:
    """A constraint's rows; which are minus infinity elsewhere, too; whether any changes."""
    rng = np.random.default_rng(0)

    def rows(x: PyTree, y: PyTree) -> np.ndarray:
        return np.concatenate(getattr(seen_at(problem, x, y), which))

    def moved(leaf: jax.Array) -> np.ndarray:
        old = np.asarray(leaf)
        return old + ((1 + abs(old)) * rng.uniform(-1, 1, old.shape)).astype(old.dtype)

    here = rows(x, y)
    absent, depends = here == -np.inf, False
    for _ in range(MOVES):
        x_ = jax.tree.map(moved, x) if which == "outer" else x
        there = rows(x_, jax.tree.map(moved, y))
        absent, depends = absent & (there == -np.inf), depends or bool(np.any(there != here))
    return here, absent, depends


class _Told:
    """What is written and shown of every step, and whether to stop."""

    def __init__(self, options: Options, bar: Progress, most: int):
        self.options, self.bar, self.most = options, bar, most
        self.history, self.number, self.stopped = History(), 0, False

    def __call__(self, x: PyTree, y: PyTree, known: dict[str, float]) -> bool:
        row = dict.fromkeys(COLUMNS, np.float64(np.nan)) | {"step": np.int32(self.number)}
        row |= {name: np.int64(0) for name in ("f_calls", "g_calls", "products")}
        seen = {} if self.options.observe is None else self.options.observe(x, y)
        rows = {k: np.asarray(v)[None] for k, v in (row | known | seen).items()}
        self.history.put(rows)
        self.bar.update(rows)
        self.number += 1
        self.stopped = self.options.stops(rows)
        return self.stopped or self.number >= self.most


def _by_newton(problem: Problem, oracle: Oracle, options: Options) -> Solution:
    tol = float(np.asarray(options.tolerance))
    leader = Leader(oracle, *oracle.bounds())
    most = STEPS if options.steps is None else int(options.steps)
    with Progress(0, most, tol, options.progress) as bar:
        told = _Told(options, bar, most)

        def each(here: Point) -> bool:
            left = leader.residual(here)
            known = {"f": here.f * oracle.units.f, "stationarity": left, "eps": left}
            return told(*oracle.point(here.x, here.at.y), known)

        inside = leader.within(FIRST)
        x = np.clip(oracle.start[0], inside.lo, inside.hi)
        first = leader.point(x, begun(oracle, x, oracle.start[1]), FIRST)
        if first is None:
            return _without_answer(problem, oracle, told)
        each(first)
        here = descend(leader, first, tol, each, lambda here: look(leader, here).eps <= 0.6 * tol)
    facts, code, note = look(leader, here), RESULTS.settled, ""
    if facts.eps <= tol and convex(oracle, here.x, here.at):
        code = RESULTS.success
    elif facts.eps <= tol:
        note = NOT_CONVEX
    elif facts.feasibility > max(tol, 1e-3) and not oracle.bound_outside:
        note = SHRUNK
    elif facts.feasibility > max(tol, 1e-3):
        code, note = RESULTS.infeasible, "no point was found that meets outer_constraint."
    elif told.stopped:
        code = RESULTS.stopped
    elif told.number >= most:
        code = RESULTS.max_steps
    ended = _ended(problem, facts, code, note, told, *oracle.solution(here.x, here.at))
    return dataclasses.replace(ended, answer=_known(problem, oracle, here))


def _without_answer(problem: Problem, oracle: Oracle, told: _Told) -> Solution:
    """What is returned if the follower has no answer to the first x."""
    x, y = oracle.start
    at, _ = answer(oracle, x, begun(oracle, x, y), FIRST)
    inside = oracle.inner(x, np.nan_to_num(at.y), np.nan_to_num(at.m), np.nan_to_num(at.u))
    off = np.max(np.concatenate([inside.c, np.abs(inside.e)]), initial=0.0)
    if off <= 1e-3 * np.max(np.abs(at.y)) and np.max(np.abs(at.y)) > FAR:
        code, note = RESULTS.unbounded, "g(x0, .) falls without end."
    else:
        code, note = RESULTS.infeasible, "no y was found that meets inner_constraint at x0."
    told(*oracle.point(x, y), {})
    nan = float("nan")
    facts = Facts(off, nan, nan, nan, nan, nan, 0, 0, 0.0, np.zeros(0))
    start = Answer(y, at.s, 0 * at.m, 0 * at.u, np.inf)
    return _ended(problem, facts, code, note, told, *oracle.solution(x, start))


def _ended(
    problem: Problem, facts: Facts, code: RESULTS, note: str, told: _Told, x: PyTree, y: PyTree,
    below: np.ndarray, zero: np.ndarray,
) -> Solution:  # fmt: skip
    certificate, rows = facts.certificate, told.history.rows
    for name in ("stationarity", "feasibility", "complementarity", "inner_gap", "eps"):
        rows[name][-1] = getattr(certificate, name)
    ended = Outcome(certificate.multiplier, certificate, np.int32(code), note)
    tree = None
    if problem.inner_constraint is not None:
        tree = shaped(problem, x, y, below, zero)
    f, g, *_ = seen_at(problem, x, y)
    x, y = (jax.tree.map(np.asarray, part) for part in (x, y))
    return Solution(x, y, f, g, ended, rows, None, told.number, inner_multipliers=tree)


def _by_gradients(problem: Problem, x: PyTree, y: PyTree, options: Options) -> Solution:
    if problem.outer_constraint is not None:
        raise ProblemError(
            "outer_constraint needs a follower whose second derivatives are sparse in a problem of "
            "this size."
        )
    tol = float(np.asarray(options.tolerance))
    most = STEPS if options.steps is None else int(options.steps)
    with Progress(0, most, tol, options.progress) as bar:
        told = _Told(options, bar, most)

        def each(step: Step) -> bool:
            known = {"f": float(step.slope.f), "feasibility": float(step.at.off)}
            known |= {"stationarity": step.stationarity, "eps": step.stationarity}
            return told(step.x, step.at.y, known)

        step, _ = descend_by_gradients(problem, x, y, tol, most, each)
    other = answer_again(problem, step.x, step.at.y, tol)
    gap = float(inner_gap(problem, step.x, step.at.y, other.y))
    off, left = float(max(step.at.off, other.off)), float(step.slope.left)
    facts = Facts(
        off, gap, float(step.at.residual), max(step.stationarity, left), off, step.stationarity,
        0, 0, 0.0, np.zeros(0),
    )  # fmt: skip
    code, note = RESULTS.settled, BY_GRADIENTS
    if facts.eps > tol and told.stopped:
        code = RESULTS.stopped
    elif off > max(tol, 1e-3):
        code, note = RESULTS.infeasible, "no y was found that meets inner_constraint at the last x."
    elif facts.eps > tol and told.number >= most:
        code = RESULTS.max_steps
    multipliers = (np.asarray(part) for part in (step.at.m, step.at.u))
    return _ended(problem, facts, code, note, told, step.x, step.at.y, *multipliers)
