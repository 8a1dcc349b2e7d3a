"""A problem from a user's file: load it, solve it, keep the record."""

import difflib
import pathlib
import runpy
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pdbo

from .._checkpoint import Folder
from .._errors import brief
from .._signals import Terminated
from ..experiments._results import Record
from . import solved
from .records import provenance, write
from .runner import with_claims


def solve_file(
    path: pathlib.Path,
    name: str,
    given: dict[str, Any],
    solver: str,
    *,
    steps: int,
    tol: float,
    every: int,
    seed: int,
    out: pathlib.Path,
    checkpoint: pathlib.Path,
    resume: bool,
    fail: type[Exception],
    rank: int | None = None,
) -> str:
    """Solve FILE:NAME and write its record; returns the sentence of a run that fell short.

    What the user can put right raises `fail` with one sentence. With a rank the run is one of
    several processes, of which the first writes.
    """
    found = _load(path, fail)
    problem, start = _problem(found, path, name, fail)
    start |= {k: found[k] for k in ("x0", "y0") if k in found}
    start |= {k: _arrays(v) for k, v in given.items()}
    missing = [k for k in ("x0", "y0") if k not in start]
    if missing:
        raise fail(f"a start is needed: give --{missing[0]}, or {missing[0]} in {path}.")
    began = time.perf_counter()
    try:
        problem = problem if rank is None else pdbo.shard(problem)
        if not rank and not resume and checkpoint.is_dir():
            with Folder(checkpoint) as folder:
                folder.clear()
        solution = pdbo.solve(
            problem,
            **start,
            solver=getattr(pdbo, solver)(),
            steps=steps,
            tol=tol,
            every=every,
            key=jax.random.key(seed),
            throw=False,
            progress=True,
            checkpoint=checkpoint,
        )
    except (pdbo.ProblemError, pdbo.CheckpointError) as error:
        raise fail(str(error)) from None
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:
        if rank is not None:  # a lost process, perhaps
            raise
        raise fail(f"{name} in {path} cannot be solved: {brief(error)}.") from None
    if solution.certificate is None or not len(solution.history["step"]):
        raise fail(solution.message)
    if rank:
        return "" if solution.ok else solution.message
    print(solution)
    record = Record(
        "solve",
        seed,
        False,
        {
            "problem": _text(f"{path.name}:{name}"), "solver": solver, "steps": steps, "tol": tol,
            "every": every, "result": solution.result.name, "iterations": int(solution.steps),
        },
        _results(solution),
        {solver: {k: int(solution.history[k][-1]) for k in ("f_calls", "g_calls", "products")}},
        (),
        provenance(),
        {"wall": time.perf_counter() - began},
    )  # fmt: skip
    write(out, with_claims(record, solved))
    return "" if solution.ok else solution.message


def _load(path: pathlib.Path, fail: type[Exception]) -> dict[str, Any]:
    sys.path.insert(0, str(path.resolve().parent))  # so that it can import its neighbours
    try:
        return runpy.run_path(str(path), run_name="__pdbo__")
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # whatever it does, sys.exit among it
        raise fail(f"{path} cannot be run: {brief(error)}.") from None
    finally:
        sys.path.pop(0)


def _text(name: str) -> str:
    """A name that can be written down: bytes that are no characters are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def _problem(
    found: dict[str, Any], path: pathlib.Path, name: str, fail: type[Exception]
) -> tuple[pdbo.Problem, dict[str, Any]]:
    """The problem and, where it is an entry of the collection, its start."""
    if name not in found:
        problems = [k for k, v in found.items() if isinstance(v, pdbo.Problem)]
        close = difflib.get_close_matches(name, problems, 1, 0.5)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise fail(f"{path} has no {name!r}{hint}")
    thing = found[name]
    if isinstance(thing, pdbo.Problem):
        return thing, {}
    if isinstance(getattr(thing, "problem", None), pdbo.Problem) and hasattr(thing, "start"):
        return thing.problem, dict(zip(("x0", "y0"), thing.start, strict=True))
    raise fail(f"{name} in {path} must be a pdbo.Problem, got {type(thing).__name__}.")


def _arrays(tree: Any) -> Any:
    """Lists of numbers become arrays; dicts stay dicts."""
    if isinstance(tree, dict):
        return {k: _arrays(v) for k, v in tree.items()}
    return jnp.asarray(tree, float)


def _results(solution: pdbo.Solution) -> dict[str, np.ndarray]:
    arrays = {f"history.{k}": np.asarray(v) for k, v in solution.history.items()}
    for part in ("x", "y"):
        leaves = jax.tree_util.tree_leaves_with_path(getattr(solution, part))
        for index, (_, leaf) in enumerate(leaves):
            arrays[f"{part}.{index}"] = np.asarray(leaf)
    certificate = solution.certificate
    for k in solved.CERTIFICATE:
        arrays[f"certificate.{k}"] = np.asarray(getattr(certificate, k))
    return arrays
