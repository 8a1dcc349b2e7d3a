"""The default as `solve` runs it: the exact path, the search, and the exact path again.

1. `Implicit` from the start. If its answer is certified, and nothing hints at another one, that is
   the answer.
2. Else the search of `AutoPDBO`, for what has kinks, jumps, basins or a linear inner problem.
3. `Implicit` again from where the search ended, to make the answer exact.

One certificate judges all of them. Only what a run reaches is compiled.
"""

import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from . import _trees as trees
from ._certificate import Certificate
from ._checks import traced
from ._driver import begin, enter_on_host, launch_on_host
from ._errors import RESULTS, ProblemError
from ._history import COLUMNS, History
from ._host import HostRun, outcome_at, solution_at
from ._options import Options
from ._precision import MOST_NUMBERS, Start, is_double, measure_in_double
from ._problem import Problem, refuse_constraints
from ._solution import Outcome, Solution, State
from ._solver import Solver
from ._stages import decided, exact_certificate, facts_of
from ._verdict import FAR, RUNAWAY, of_saved
from .exact.certificate import Facts
from .exact.large_certificate import look_where_stalled
from .exact.oracle import MOST_WORK, MOST_X, MOST_Y, Oracle, fits
from .exact.oracle import SMALL as EXACT_SMALL
from .exact.outer import LargeState
from .exact.small import SmallState
from .exact.status import CONVERGED, RUNNING, STALLED
from .exact.valleys import explore, lowest
from .sets import Free
from .solvers._implicit import Implicit, ImplicitState, path_of
from .solvers._whole import examples_needed

if TYPE_CHECKING:
    from .checkpoint import CheckpointWriter

SMALL = 50  # entries of x and y together: up to here other valleys of f are looked for
EXACT = 1e-8  # an exact eps of this much is as good as it gets, whatever the tolerance
LEVEL = 1e-10  # relative to the fall of f: what f changes to second order where it is flat
FINISH = 100  # the most steps from where the search ended
BESIDE = 0.03  # relative to x: how far beside a relaxed solution lower ones are looked for
NEXT = 1e-7  # relative to x: the inner minimum so close by is one here too, up to relaxation
JUMP = 1e-3  # relative to the fall of f: a difference of this much at one x is no relaxation
FAR_OFF = 0.1  # a run that stalls with a reduced gradient of this size is far from a solution
TIED = 1e-5  # relative to the start: so far x may be from where two inner minima tie
SAME = 1e-6  # relative to the fall of f: values that differ by less are the same
NEAR = 1e-2  # relative: an exact point this close to the search's is the same solution


class Found(NamedTuple):
    """An exact solution and what is known of it."""

    run: State
    facts: Facts | None
    certificate: Certificate | None

    def holds(self, tol: float) -> bool:
        """Whether it is certified, or as good as an exact solution gets."""
        return self.facts is not None and self.facts.eps <= max(tol, EXACT)

    def closer_than(self, other: Solution) -> bool:
        """Whether its certificate is closer to holding than that of a solution."""
        if self.certificate is None or other.certificate is None:
            return False
        return bool(self.certificate.eps < other.certificate.eps)

    @property
    def f(self) -> float:
        """The value of f there."""
        return float(self.run.solver_state.path.f)


def applies(start: Start, solver: Solver) -> bool:
    """Whether a run begins, or is to go on, on the exact path."""
    if start.state is not None:
        return isinstance(start.state.solver_state, ImplicitState)
    if not (solver.on_host or solver.exact_first):
        return False
    path = fits(start.problem, start.x, start.y)
    if not path or (start.problem.inner_term is not None and path != EXACT_SMALL):
        return False
    return is_double(start.x, start.y)


def determined(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether a pooled problem is small, and f's examples determine a solution."""
    if problem.sources or problem.coupled or fits(problem, x, y) != EXACT_SMALL:
        return False
    numbers = sum(np.size(v) for v in jax.tree.leaves((x, y, problem.data)))
    given = problem.data.batches.outer.length
    return numbers <= MOST_NUMBERS and examples_needed(problem, x, y) <= given


def refuse_term(start: Start, solver: Solver, exact: bool) -> None:
    """Raise a ProblemError if a run cannot handle the inner term of its problem."""
    if not (solver.on_host or solver.exact_first):
        refuse_constraints(start.problem, solver.name)
    if traced(start.problem, start.x, start.y):
        raise ProblemError("a problem with inner_term cannot be solved under jit or vmap.")
    if not exact:
        assert start.problem.inner_term is not None
        start.problem.inner_term.check(start.x, start.y, start.problem.y_set)
        raise ProblemError(
            f"inner_term works in double precision with up to {MOST_X} entries of x and {MOST_Y} "
            f"of y, and {MOST_WORK:.0e} entries of x and y times numbers of data."
        )


def begin_exact(start: Start, solver: Solver) -> State:
    """The run on its exact path: a new one, or the one to carry on with."""
    if start.state is not None:
        return start.state
    solver = solver if solver.on_host else Implicit(part=True)
    return launch_on_host(start.problem, *enter_on_host(start), solver)


class Portfolio:
    """A run of the default on the host.

    Arguments:
        start, options: what is solved, and how.
        search: the solver for what the exact path does not solve, if there is one.
        writer: writes its checkpoints, if any are wanted.
    """

    def __init__(
        self,
        start: Start,
        search: Solver | None,
        options: Options,
        writer: "CheckpointWriter | None" = None,
    ):
        self.start, self.search, self.options, self.writer = start, search, options, writer
        self.problem, self.tol = start.problem, float(np.asarray(options.tolerance))
        self.every = options.spacing(start.problem.view)
        self.history = History()
        self.stopped, self.told = False, -1  # whether by the callback; the last step it was told of
        self.lower: SmallState | None = None  # where f is lower than at the exact solution, if seen
        self.seconds: dict[int, float] = {}  # what the steps up to each record took

    def solve(self, run: State) -> Solution:
        """The solution of a run that is on the exact path."""
        until = int(run.step) + self.options.budget(None, run.step)
        searching = self._is_searching()
        if self.writer is not None and not searching:
            saved = self.writer.resume(run)
            if saved is not None:
                assert saved[0].state is not None
                result = of_saved(saved[0], self.tol, until)
                if result is not None:
                    return saved[0].with_outcome(code=np.int32(result))
                run, self.history = saved[0].state, History(saved[0].history)
        solution = self._solved(run, until, searching)
        if self.writer is not None and _on_host(solution):  # else the search has saved it
            self.writer.due()
            self.writer.save(solution, {})
            self.writer.leave()
        return solution

    def _is_searching(self) -> bool:
        """Whether the checkpoints are those of the search, which goes on from there."""
        if self.writer is None or self.search is None:
            return False
        return self.writer.saved_solver() == type(self.search).__name__

    def _solved(self, run: State, until: int, searching: bool) -> Solution:
        first = self.walk(run, until, keep=not searching)
        if self.search is not None and searching:
            return self._best(first, self._searched(self.search, first.run, until))
        if ran_away(first.run):
            return self.solution(first, RESULTS.diverged)
        if self.stopped or self.options.late:
            return self.solution(first, RESULTS.stopped)
        if not self._settled(first.run):
            return self.solution(first, RESULTS.max_steps)
        end = first
        if self.search is not None:
            first = self._from_the_lowest(end)
        # where f was lower in another valley of g, it may be lower where the two tie
        tied = first is not end and first.f > end.f + SAME * (abs(first.f) + abs(end.f))
        if self.search is None or (self.alone(first) and not tied):
            return self.solution(first)
        if first.facts is not None and self.single(first.facts) and not decided(first.facts):
            if self._leaves_nothing(first):  # the relaxed certificate can wait until it is asked
                return self.solution(first._replace(certificate=None))
            certificate = measure_in_double(self.problem, first.run.point)
            if certificate.eps <= self.tol:
                relaxed = self.solution(first._replace(certificate=certificate))
                return self._confirmed(relaxed, float(run.scale), None)
        if self._leaves_nothing(first):
            return self.solution(first)
        return self._best(first, self._searched(self.search, first.run, until))

    def walk(self, begun: State, until: int, look_around: bool = True, keep: bool = True) -> Found:
        """The exact path from a state on, and what is known of its end.

        `look_around` is whether to look for other valleys of f and g, `keep` whether checkpoints
        are written on the way.
        """
        self._record(begun)
        run = begun
        for run in self._steps(begun, until):
            if int(run.step) % self.every == 0:
                self._record(run)
            if keep:
                self._keep(run)
            if ran_away(run):
                self._record(run)
                return Found(run, None, None)
        self._record(run)
        facts = None
        if int(run.solver_state.path.status) in (CONVERGED, STALLED):
            run, facts = self._explored(run, look_around)
        return self._found(run, facts)

    def _steps(self, run: State, until: int) -> Iterator[State]:
        """The states of the exact path after `run`, until it settles or the steps are used up."""
        taken, step = 0.0, run.solver.step
        while not self._settled(run) and int(run.step) < until:
            if self.stopped or self.options.late:
                return
            began = time.perf_counter()
            state = step(self.problem, run.solver_state)
            taken += time.perf_counter() - began
            run = dataclasses.replace(run, solver_state=state, step=np.int32(run.step + 1))
            self.seconds[int(run.step)] = taken
            yield run

    def judged(self, run: State) -> Found:
        """An exact state and all that is known of it."""
        point = run.solver_state.point
        return self._found(run, facts_of(self.problem, point.x, point.y, self.tol))

    def _keep(self, run: State) -> None:
        """Write a checkpoint if one is due, and leave if a signal asked for that."""
        if self.writer is None or not self.writer.due():
            return
        self._record(run)
        point, path, rows = run.solver_state.point, run.solver_state.path, self.history.rows
        outcome = Outcome(np.float64(0.0), None, np.int32(RESULTS.interrupted))
        at = (point.x, point.y, path.f, path.g)
        self.writer.save(Solution(*at, outcome, rows, run, int(run.step)), {})
        self.writer.leave()

    def _found(self, run: State, facts: Facts | None) -> Found:
        if facts is None:
            return Found(run, None, None)
        point = run.solver_state.point
        return Found(run, facts, exact_certificate(facts, point.y))

    def _explored(self, run: State, look_around: bool) -> tuple[State, Facts | None]:
        """The lowest solution in reach, and what is known of it."""
        state: ImplicitState = run.solver_state
        point, large = state.point, state.path if isinstance(state.path, LargeState) else None
        oracle = path_of(self.problem, state.x0, state.y0).oracle
        if large is not None and self._stalled(large) and large.size > FAR_OFF:
            return run, look_where_stalled(oracle, large)
        v = None if large is None else large.v
        facts = facts_of(self.problem, point.x, point.y, self.tol, look_around, v)
        if facts is None and large is not None and self._stalled(large):
            return run, look_where_stalled(oracle, large)
        small = state.path.x.size + state.path.y.size <= SMALL
        if not (look_around and small) or facts is None or facts.eps > self.tol:
            return run, facts
        if oracle.quadratic:  # a minimum of f along the inner minima is global, too
            return run, facts
        with np.errstate(all="ignore"):
            path, self.lower = explore(oracle, state.path, self.tol)  # type: ignore
        moved = not np.array_equal(path.x, state.path.x)
        run = dataclasses.replace(run, solver_state=state._replace(path=path))
        if moved:
            point = run.solver_state.point
            facts = facts_of(self.problem, point.x, point.y, self.tol)
        return run, facts

    def alone(self, found: Found) -> bool:
        """Whether an exact solution is certified and nothing hints at another one.

        Hints are other inner minima, lower values of f, and an f that x does not change here.
        """
        if not found.holds(self.tol) or self.lower is not None:
            return False
        facts = found.facts
        assert facts is not None
        return facts.swing > LEVEL * abs(found.f) and self.single(facts)

    def _leaves_nothing(self, found: Found) -> bool:
        """Whether a search could find nothing better than an exact point that is not certified.

        It could not if f is smooth along the one inner minimum, and x and y have too many entries
        to look for other valleys of f. Such a run ends where f is flat, often far away.
        """
        path, facts = found.run.solver_state.path, found.facts
        if path.x.size + path.y.size <= SMALL or not isinstance(self.problem.y_set, Free):
            return False
        if self._stalled(path):
            return True
        if facts is None:
            return False
        return facts.unique and facts.valleys == 1 and facts.inner_left <= self.tol

    def _stalled(self, path: SmallState | LargeState) -> bool:
        """Whether a large run ended far from a solution although g curves up all the way."""
        large = isinstance(path, LargeState) and isinstance(self.problem.y_set, Free)
        return large and int(path.status) == STALLED

    def single(self, facts: Facts | None) -> bool:
        """Whether g has one valley, and one minimum or a free Y to move in along its minima."""
        if facts is None:
            return False
        return facts.valleys == 1 and (facts.unique or isinstance(self.problem.y_set, Free))

    def _searched(self, search: Solver, run: State, until: int) -> Solution:
        """The search, after the steps and calls of the exact path; from the lowest point seen."""
        state: ImplicitState = run.solver_state
        x, y = state.x0, state.y0
        if self.lower is not None:  # f is known to be lower there
            x, y = path_of(self.problem, x, y).oracle.trees(self.lower.x, self.lower.y)
        start = self.start._replace(x=x, y=y, state=None)
        fresh = begin(start, search, self.options.key)
        counted = search.with_calls(fresh.solver_state, state.calls)
        fresh = dataclasses.replace(fresh, solver_state=counted, step=run.step + fresh.step)
        host = self._host(until)
        host.history = History(self.history.rows)
        return host.solve(fresh, first=False)

    def _host(self, until: int) -> HostRun:
        return HostRun(self.problem, self.options, self.writer, until)

    def _best(self, first: Found, searched: Solution) -> Solution:
        """The best of the exact path, the search, and the exact path from the search's end."""
        best, before, state, last = searched, self.history, searched.state, None
        if state is not None and searched.result is not RESULTS.nonfinite:
            self.history = History(searched.history)
            last = self._ended(self._begun(searched.x, searched.y), int(state.step))
            converged = int(last.run.solver_state.path.status) == CONVERGED
            if converged and last.holds(self.tol) and not first.holds(self.tol):
                last = self._found(*self._explored(last.run, True))  # as the first one was
            if converged and last.holds(self.tol):
                same = _close(last.run.point.x, searched.x)
                if same or not searched.ok or last.f < float(searched.f):
                    best = self.solution(last)
        if first.holds(self.tol):
            lower = first.f < float(best.f) - SAME * (abs(first.f) + abs(float(best.f)))
            if not best.ok or lower:
                self.history = before
                best = self.solution(first)
        elif not best.ok and first.closer_than(best):
            self.history = before
            best = self.solution(first)
        best = self._confirmed(best, float(first.run.scale), last if best is searched else None)
        if searched.result is RESULTS.max_steps:  # a search cut short can go on
            return dataclasses.replace(best, state=state, steps=searched.steps)
        return best

    def _confirmed(self, best: Solution, scale: float, onward: Found | None) -> Solution:
        """A solution with a relaxed certificate, unless the exact path refutes it or beats it.

        Relaxed certificates hold at maxima where g is degenerate, and where f or g becomes flat far
        away. The exact path from the point (`onward`, if it is known) and from beside it tells.
        """
        if not best.ok or best.certificate.exact:  # type: ignore
            return best
        oracle = path_of(self.problem, best.x, best.y).oracle
        if oracle.nx + oracle.ny > SMALL:
            return best
        at, follower = oracle.flat(best.x, best.y)
        if max(np.max(np.abs(at)), np.max(np.abs(follower))) > FAR * scale:
            note = "x or y went far away from the start: f or g may have no minimum."
            return best.with_outcome(code=np.int32(RESULTS.settled), note=note)
        f, steps = float(best.f), int(best.steps)
        onward = onward or self._ended(self._begun(best.x, best.y), steps)
        if onward.holds(self.tol) and onward.f < f:
            return self.solution(onward)
        if self._refutes(onward, f):
            note = "f is lower further on, where it may become flat: it may have no minimum."
            return best.with_outcome(code=np.int32(RESULTS.settled), note=note)
        for aside in _beside(oracle, at, BESIDE):
            begun = self._begun(*oracle.trees(aside, follower))
            if begun.solver_state.path.f < f - SAME * abs(f):
                found = self._from_the_lowest(self._ended(begun, steps))
                if found.holds(self.tol) and found.f < f:
                    return self.solution(found)
        return self._sharpened(best, oracle, scale)

    def _sharpened(self, best: Solution, oracle: Oracle, scale: float) -> Solution:
        """A relaxed solution at an inner minimum rather than near one, the best at its x.

        Where the inner minimum jumps, x is settled and y is not: the inner minima on both sides
        are minima here, and f chooses among them. If f is much lower at one of them, or like the
        solution's at none, and the certificate does not hold there, the solution does not hold.
        """
        (at, follower), f = oracle.flat(best.x, best.y), float(best.f)
        apart = JUMP * (abs(float(self.history.rows["f"][0]) - f) + abs(f))
        begun = (self._begun(*oracle.trees(x, follower)) for x in (at, *_beside(oracle, at, NEXT)))
        runs = [self._moved(run, oracle, at) for run in begun]
        alike = [run for run in runs if abs(run.solver_state.path.f - f) <= apart]
        lowest = min(runs, key=lambda run: run.solver_state.path.f)
        run = lowest if lowest.solver_state.path.f < f - apart else (alike or runs)[0]
        certificate = measure_in_double(self.problem, run.point)
        if certificate.eps <= self.tol:
            return self._tied(self._at(best, run, certificate), scale)
        if abs(run.solver_state.path.f - f) <= apart:
            return self._tied(best, scale)
        note = "f is quite different at an inner minimum of this x."
        return best.with_outcome(code=np.int32(RESULTS.settled), note=note)

    def _at(self, best: Solution, run: State, certificate: Certificate) -> Solution:
        """A solution moved to the point of an exact state; it goes on from where it was."""
        moved = self.solution(Found(run, None, certificate))
        return dataclasses.replace(moved, state=best.state, steps=best.steps, history=best.history)

    def _moved(self, run: State, oracle: Oracle, x: np.ndarray) -> State:
        """An exact state with another x and its values there."""
        state: ImplicitState = run.solver_state
        with np.errstate(all="ignore"):
            seen = oracle.values(x, state.path.y)
        path = state.path._replace(x=x, f=np.float64(seen.f), g=np.float64(seen.g))
        return dataclasses.replace(run, solver_state=state._replace(path=path))

    def _tied(self, best: Solution, scale: float) -> Solution:
        """A relaxed solution, unless another inner minimum is lower and x far from their tie."""
        facts = facts_of(self.problem, best.x, best.y, self.tol)
        if facts is None or facts.tie_left <= TIED * scale:
            return best
        note = "g is lower at another inner minimum, and x would have to move far to change that."
        return best.with_outcome(code=np.int32(RESULTS.settled), note=note)

    def _refutes(self, found: Found, f: float) -> bool:
        """Whether f has fallen along inner minima, by more than rounding and relaxation explain."""
        facts = found.facts
        if facts is None or facts.inner_left > self.tol or facts.gap_left > 0:
            return False
        fall = abs(float(self.history.rows["f"][0]) - f)
        return f - found.f > SAME * (fall + abs(f))

    def _begun(self, x: PyTree, y: PyTree) -> State:
        """The exact path at its beginning."""
        x, y = jax.tree.map(np.asarray, (x, y))
        return launch_on_host(self.problem, x, y, Implicit(part=True))

    def _ended(self, begun: State, step: int) -> Found:
        """Where the exact path leads that begins after so many steps."""
        begun = dataclasses.replace(begun, step=np.int32(step))
        *_, run = begun, *self._steps(begun, step + FINISH)
        return self.judged(run)

    def _from_the_lowest(self, found: Found) -> Found:
        """Where the exact path leads from a lower inner minimum at the x of its end.

        The end itself if there is none, or if no certificate holds where that leads.
        """
        path, facts = found.run.solver_state.path, found.facts
        if facts is None or facts.gap_left <= self.tol or path.x.size + path.y.size > SMALL:
            return found
        oracle = path_of(self.problem, found.run.point.x, found.run.point.y).oracle
        with np.errstate(all="ignore"):
            y = lowest(oracle, path.x, path.y)
        if y is None:
            return found
        again = self._ended(self._begun(*oracle.trees(path.x, y)), int(found.run.step))
        return again if again.holds(self.tol) else found

    @staticmethod
    def _settled(run: State) -> bool:
        return bool(run.solver_state.path.status != RUNNING)

    def _record(self, run: State, certificate: Certificate | None = None) -> None:
        """Add a row for a state, or renew the last one."""
        path = run.solver_state.path
        calls = run.solver_state.calls
        row = dict.fromkeys(COLUMNS, np.float64(0.0)) | {
            "step": np.int32(run.step),
            "f": path.f,
            "g": path.g,
            "stationarity": path.slope,
            "eps": path.shift,
            "f_calls": np.asarray(calls.f, np.int64),
            "g_calls": np.asarray(calls.g, np.int64),
            "products": np.asarray(calls.products, np.int64),
        }
        if certificate is not None:
            row |= {k: v for k, v in vars(certificate).items() if k in COLUMNS}
            row["h"] = certificate.inner_gap
        if self.options.observe is not None:
            seen = self.options.observe(run.point.x, run.point.y)
            row |= {k: np.asarray(v) for k, v in seen.items()}
        rows = {k: np.asarray(v)[None] for k, v in row.items()}
        self.history.put(rows)
        if certificate is None and int(run.step) > self.told:
            self.told = int(run.step)
            self.stopped = self.options.stops(rows) or self.stopped

    def solution(self, found: Found, code: RESULTS = RESULTS.settled) -> Solution:
        """The solution at an exact state."""
        run, certificate = found.run, found.certificate
        if certificate is None:
            return self._host(int(run.step)).concluded(run, int(code), self.history)
        self._record(run, certificate)
        rows, path = self.history.rows, run.solver_state.path
        note = "" if found.facts is None else self._no_minimum(run, found.facts, rows["f"][0])
        if certificate.eps <= self.tol and not note:
            code = RESULTS.success
        elif not note and found.facts is not None:
            note = self._what_is_left(run, found.facts)
        outcome = outcome_at(run, certificate, np.int32(code), note)
        return solution_at(run, outcome, path.f, path.g, rows, int(run.step))

    def _what_is_left(self, run: State, facts: Facts) -> str:
        """A sentence on what keeps an exact point from being certified, if it is known."""
        if facts.longest >= 0:
            name = trees.entry((("x", run.point.x), ("y", run.point.y)), facts.longest)
            return f"The longest step left is that of {name}."
        if facts.gap_left > self.tol:
            return "g is lower elsewhere: y is not the follower's answer."
        return ""

    def _no_minimum(self, run: State, facts: Facts, first: float) -> str:
        """A sentence if x went far and f became flat there; empty otherwise."""
        fall = abs(first - float(run.solver_state.path.f))
        if _size(run) > FAR * float(run.scale) and facts.swing <= LEVEL * fall:
            return "f becomes flat far away from the start: it may have no minimum."
        return ""


def _beside(oracle: Oracle, x: np.ndarray, share: float) -> list[np.ndarray]:
    """Points at a share of x from it, in its first entries."""
    far = share * (1 + np.max(np.abs(x)))
    return [oracle.project_x(x + s * far * e) for e in np.eye(x.size)[:4] for s in (1, -1)]


def _on_host(solution: Solution) -> bool:
    """Whether a solution is one of the exact path."""
    return solution.state is not None and solution.state.solver.on_host


def ran_away(run: State) -> bool:
    """Whether a run on the exact path went far beyond its start."""
    return _size(run) > RUNAWAY * float(run.scale)


def _size(run: State) -> float:
    """The largest entry of x and y."""
    path = run.solver_state.path
    return max(float(np.max(np.abs(path.x))), float(np.max(np.abs(path.y))))


def _close(a: PyTree, b: PyTree) -> bool:
    """Whether two points agree to within `NEAR`."""
    u, v = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(z)]) for z in (a, b))
    return bool(np.linalg.norm(u - v) <= NEAR * (1e-8 + max(np.linalg.norm(u), np.linalg.norm(v))))
