"""A problem from a user's file: load it, solve it, write the record."""

import contextlib
import difflib
import pathlib
import runpy
import sys
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

import pdbo

from .._checks import kind
from .._errors import brief, line_of
from .._signals import Terminated
from ..checkpoint import Folder
from ..experiments._results import Record
from . import solved
from .errors import InputError
from .records import provenance, write
from .runner import with_claims
from .terminal import say


def solve_file(
    path: pathlib.Path,
    name: str,
    given: dict[str, object],
    solver: str,
    *,
    steps: int,
    tol: float,
    every: int,
    seed: int,
    out: pathlib.Path,
    checkpoint: pathlib.Path,
    resume: bool,
    rank: int | None = None,
) -> str:
    """Solve FILE:NAME and write its record; returns a sentence if the certificate is not met.

    An error that the user can correct raises `InputError`. With a rank the run is one of several
    processes, and process 0 writes.
    """
    problem, start = _problem_and_start(path, name, given)
    began = time.perf_counter()
    with _explained(f"{name} in {path}", alone=rank is None):
        problem = problem if rank is None else pdbo.shard(problem)
        if not rank and not resume and checkpoint.is_dir():
            with Folder(checkpoint) as folder:
                folder.clear()
        solution = pdbo.solve(
            problem,
            **start,
            solver=pdbo.solvers.SOLVERS[solver](),
            steps=steps,
            tol=tol,
            every=every,
            key=jax.random.key(seed),
            throw=False,
            progress=True,
            checkpoint=checkpoint,
        )
    if solution.certificate is None or not len(solution.history["step"]):
        raise InputError(solution.message)
    if not rank:
        _say(solution)
        settings = {
            "problem": _text(f"{path.name}:{name}"), "solver": solver, "steps": steps, "tol": tol,
            "every": every,
        }  # fmt: skip
        record = _record(solution, seed, settings, {"wall": time.perf_counter() - began})
        write(out, with_claims(record, solved))
    return "" if solution.ok else solution.message


def _say(solution: pdbo.Solution) -> None:
    """Print a solution, its verdict in colour; that of a failure is printed by the command."""
    verdict, *lines = str(solution).splitlines()
    if solution.ok:
        say(verdict, bold=True, fg="green")
    for line in lines:
        say(line)


def load_solver(path: pathlib.Path, name: str) -> tuple[str, pdbo.solvers.Solver]:
    """A solver in a user's file and its name: an instance, or a class that needs no arguments.

    It takes two steps on the toy problem, so that an error is told before the others have run.
    """
    found = _load(path).get(name)
    with _explained(f"{name} in {path}", alone=True):
        solver = found() if isinstance(found, type) else found
    if not isinstance(solver, pdbo.solvers.Solver):
        raise InputError(f"{name} in {path} must be a pdbo.solvers.Solver, got {kind(found)}.")
    toy = pdbo.problems.get("toy")
    failing = f"the toy problem with {name} in {path}"
    with _explained(failing, alone=True), contextlib.suppress(pdbo.SolveError):
        pdbo.solve(toy.problem, *toy.start, solver, steps=2, tol=None)
    return name, solver


@contextlib.contextmanager
def _explained(what: str, alone: bool) -> Iterator[None]:
    """Turn errors of a run into one sentence; among several processes others may be the cause."""
    try:
        yield
    except (pdbo.ProblemError, pdbo.CheckpointError) as error:
        raise InputError(str(error)) from None
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        if not alone:
            raise
        raise InputError(f"{what} cannot be solved: {brief(error)}.") from None


def _record(
    solution: pdbo.Solution, seed: int, settings: dict[str, object], times: dict[str, float]
) -> Record:
    about = {"result": solution.result.name, "iterations": int(solution.steps)}
    if (certificate := solution.certificate) is not None:
        about["in words"] = certificate.in_words
    columns = ("f_calls", "g_calls", "products")
    calls = {k: int(solution.history[k][-1]) for k in columns}
    return Record(
        "solve", seed, False, settings | about, _results(solution),
        {str(settings["solver"]): calls}, (), provenance(), times,
    )  # fmt: skip


def _problem_and_start(
    path: pathlib.Path, name: str, given: dict[str, object]
) -> tuple[pdbo.Problem, dict[str, PyTree]]:
    """The problem in a file and its start; `given` has priority over x0 and y0 in the file."""
    found = _load(path)
    problem, start = _problem(found, path, name)
    start |= {k: _start(found[k]) for k in ("x0", "y0") if k in found}
    start |= {k: _arrays(v) for k, v in given.items()}
    missing = [k for k in ("x0", "y0") if k not in start]
    if missing:
        raise InputError(f"a start is needed: give --{missing[0]}, or {missing[0]} in {path}.")
    return problem, start


def _load(path: pathlib.Path) -> dict[str, object]:
    sys.path.insert(0, str(path.resolve().parent))  # so that it can import files beside it
    try:
        return runpy.run_path(str(path), run_name="__pdbo__")
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # a file may do anything, such as sys.exit
        raise InputError(f"{path} cannot be run: {brief(error)}{line_of(error)}.") from None
    finally:
        sys.path.pop(0)


def _text(name: str) -> str:
    """A name that UTF-8 can hold: bytes that are not characters are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def _problem(
    found: dict[str, object], path: pathlib.Path, name: str
) -> tuple[pdbo.Problem, dict[str, PyTree]]:
    """The problem of this name and, if it is an entry of the collection, its start."""
    if name not in found:
        problems = [k for k, v in found.items() if isinstance(v, pdbo.Problem)]
        close = difflib.get_close_matches(name, problems, 1, 0.5)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise InputError(f"{path} has no {name!r}{hint}")
    thing = found[name]
    if isinstance(thing, pdbo.Problem):
        return thing, {}
    problem, start = getattr(thing, "problem", None), getattr(thing, "start", None)
    if isinstance(problem, pdbo.Problem) and start is not None:
        return problem, dict(zip(("x0", "y0"), start, strict=True))
    raise InputError(f"{name} in {path} must be a pdbo.Problem, got {kind(thing)}.")


def _start(tree: object) -> PyTree:
    """The start in a file; a list of numbers is an array, as it is in --x0 and --y0."""
    numbers = isinstance(tree, list) and all(isinstance(v, int | float) for v in tree)
    return _arrays(tree) if numbers else tree


def _arrays(tree: object) -> PyTree:
    """The start as arrays; dicts stay dicts."""
    if isinstance(tree, dict):
        return {k: _arrays(v) for k, v in tree.items()}
    return jnp.asarray(tree, float)


def _results(solution: pdbo.Solution) -> dict[str, np.ndarray]:
    arrays = {f"history.{k}": np.asarray(v) for k, v in solution.history.items()}
    for part in ("x", "y"):
        leaves = jax.tree_util.tree_leaves_with_path(getattr(solution, part))
        for index, (_, leaf) in enumerate(leaves):
            arrays[f"{part}.{index}"] = np.asarray(leaf)
    arrays["f_resolved"] = np.asarray(solution.f_resolved)
    certificate = solution.certificate
    for k in solved.CERTIFICATE:
        arrays[f"certificate.{k}"] = np.asarray(getattr(certificate, k))
    return arrays
