"""Result codes and the exceptions that carry them."""

import enum
import os
import sys
import sysconfig
import traceback
import types
import warnings
from typing import Any

_OWN = ("pdbo", "contextlib", "equinox")  # packages that a call of the user's passes through


class RESULTS(enum.IntEnum):
    """How a run ended. Only `success` means that the certificate was met."""

    success = 0
    max_steps = 1
    nonfinite = 2
    diverged = 3
    multiplier_diverged = 4
    bad_problem = 5
    settled = 6
    interrupted = 7
    stopped = 8
    unbounded = 9
    infeasible = 10

    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        """One sentence on what happened, with the likely causes of a failure."""
        return _TEXTS[self]


_TEXTS = {
    RESULTS.success: "The certificate at the returned point is within the tolerance.",
    RESULTS.max_steps: (
        "The step budget was used up before the certificate was within the tolerance; carry on "
        "with solve(problem, state=solution.state), or ask for a looser tol."
    ),
    RESULTS.nonfinite: (
        "A value that is not finite appeared; the last finite point is returned. Likely causes: "
        "(a) a step size too large for the curvature of f or of multiplier * g, (b) f or g is not "
        "defined at a point the iterates reached (a log or a root without a set to guard it), "
        "(c) float32 ran out of range."
    ),
    RESULTS.diverged: (
        "The iterates ran away. Likely causes: (a) a step size too large, (b) f has no minimum "
        "over the feasible set, (c) the inner problem is unbounded below; a bounded x_set or "
        "y_set cures (b) and (c)."
    ),
    RESULTS.multiplier_diverged: (
        "The multiplier ran away. Likely causes: (a) the constraint cannot be met with this slack "
        "and smoothing (the multiplier grows like 1/sqrt(slack)), (b) the dual step is too large, "
        "(c) the inner steps do not converge; a larger slack or a dual_bound cures (a)."
    ),
    RESULTS.settled: (
        "The solver came to rest at a point that the certificate does not accept within the "
        "tolerance. Likely causes: (a) f or g has a kink there (abs, max, a norm), (b) several "
        "inner minimisers are active at the solution, (c) the tolerance is below what float32 "
        "allows, (d) no solution exists; other starts (multistart) or a looser tol may help."
    ),
    RESULTS.interrupted: (
        "The run was still going on when this was saved; the call that started it, with the same "
        "checkpoint folder, carries on."
    ),
    RESULTS.stopped: (
        "The callback or the time limit stopped the run before the certificate was within the "
        "tolerance; carry on with solve(problem, state=solution.state)."
    ),
    RESULTS.unbounded: (
        "f or g has no minimum under the constraints; a bounded x_set or y_set cures that."
    ),
    RESULTS.infeasible: (
        "The constraints cannot be met, or no start led to where they can; check their signs "
        "(every entry is to be <= 0), or give another start."
    ),
    RESULTS.bad_problem: "The problem or its start is not usable as given.",
}


def brief(error: BaseException) -> str:
    """The kind of an error and the first line of what it says, without a full stop."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(" .:")


def line_of(error: BaseException) -> str:
    """Where in the user's files an error arose, in brackets; empty if it did not."""
    paths = sysconfig.get_paths()
    others = tuple(paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib"))
    own = [
        f"{frame.f_code.co_filename.replace(os.sep, '/').rpartition('/')[2]}, line {number}"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if _package(frame) not in _OWN and not frame.f_code.co_filename.startswith(others)
    ]
    return f" ({own[-1]})" if own else ""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's that led here, however deep the library is in its own."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame) in _OWN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame: types.FrameType) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


class ProblemError(ValueError):
    """The problem, a set or a start is not usable as given; `solution` holds what there is."""

    def __init__(self, message: str, solution: Any = None):
        super().__init__(message)
        self.solution = solution


class SolveError(RuntimeError):
    """A run failed; `solution` holds its last finite point, certificate, history and state."""

    def __init__(self, message: str, solution: Any):
        super().__init__(message)
        self.solution = solution

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.solution)  # else no process pool can hand it over


class AnswerWarning(UserWarning):
    """The follower may answer otherwise: f differs where the inner problem is solved again."""


class StartProjected(UserWarning):
    """A start lay outside its set and was replaced by its projection."""


class DataReplicated(UserWarning):
    """Some of the data could not be split over the devices, so that each of them holds it whole."""


class PrecisionWarning(UserWarning):
    """What should be in double precision is in single: f or g insist on it."""


class KinkWarning(UserWarning):
    """g has a kink at y, so no certificate holds there: give the kink as `inner_term`."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, belongs to another run or cannot be written."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be read or written; the run goes on without it."""
