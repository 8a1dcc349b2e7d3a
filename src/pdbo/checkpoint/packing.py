"""A solution to arrays, and back."""

import pathlib
from typing import SupportsFloat

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .. import __version__
from .._certificate import Certificate
from .._errors import RESULTS
from .._problem import Problem, values
from .._sealed import JsonObject
from .._solution import Outcome, Solution, State, launch
from .._solver import Point, Solver
from .arrays import is_kept, is_split, keys, kind, named, plain, restore, store
from .description import describe_problem, describe_solver, encode
from .format import Saved, Stored

PARTS = "parts"  # the suffix of the folder of what is split over processes, and its list

SAME = 1e-3  # relative to their size: values of f (or g) at one point that differ by less agree


def pack(
    solution: Solution,
    problem: Problem | None = None,
    start: str | None = None,
    notes: JsonObject | None = None,
    split: dict[str, jax.Array] | None = None,
) -> tuple[JsonObject, dict[str, Stored]]:
    """The header and the arrays of a solution and, if given, facts about its run.

    What is `split` over processes is only listed: all of them write it, beside the file.
    """
    split = split or {}
    state = solution.state
    assert state is not None
    point = state.point
    leaves = {f"state{name}": leaf for name, leaf in named(state) if name not in split}
    leaves |= {f"history.{name}": column for name, column in solution.history.items()}
    leaves |= {"f": solution.f, "g": solution.g}
    outcome = solution.seen
    if outcome.certificate is not None:
        leaves |= {f"certificate.{n}": v for n, v in vars(outcome.certificate).items()}
    header = {
        "pdbo": __version__,
        "jax": jax.__version__,
        "step": int(solution.steps),
        "result": RESULTS(int(outcome.code)).name,
        "note": outcome.note,
        "notes": notes,
        "start": start,
        "solver": describe_solver(state.solver),
        "problem": None if problem is None else describe_problem(problem),
        "x": encode(point.x),
        "y": encode(point.y),
        PARTS: [
            {"name": f"state{n}", "dtype": kind(v)[0], "shape": kind(v)[1]}
            for n, v in split.items()
        ],
    }
    return header, {name: store(name, leaf) for name, leaf in leaves.items()}


def split_leaves(state: State) -> dict[str, jax.Array]:
    """The arrays of a state of which no process holds all, by their names."""
    return {name: leaf for name, leaf in named(state) if is_split(leaf)}


def write_parts(path: pathlib.Path, split: dict[str, jax.Array]) -> None:
    """Write what is split over processes to the folder beside a file; all of them call this."""
    from .._parts import write  # few runs need it

    write(path.with_suffix(f".{PARTS}"), list(split.values()))


def _read_parts(saved: Saved, template: State, problem: Problem) -> dict[str, jax.Array]:
    """What was split over processes, split as it is to be here; verified."""
    listed = saved.header.get(PARTS) or []
    if not listed:
        return {}
    from .._parts import read

    point = eqx.filter_eval_shape(lambda state: state.point, template)
    layout = problem.layout(point.x, point.y)
    alone = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    place = (lambda _: alone) if layout is None else layout.place
    found = read(saved.path.with_suffix(f".{PARTS}"), place, problem.mesh)
    return {entry["name"]: array for entry, array in zip(listed, found, strict=True)}


def unpack(saved: Saved, template: State, problem: Problem, solver: Solver) -> Solution:
    """The solution in a file; its state must have the structure of the template."""
    state = _state(saved, template, problem, solver)
    try:
        kept = {n: plain(s) for n, s in saved.arrays.items() if not n.startswith("state")}
        cut = {n.partition(".")[::2]: array for n, array in kept.items()}
        history = {name: array for (part, name), array in cut.items() if part == "history"}
        numbers = {n: array[()] for (part, n), array in cut.items() if part == "certificate"}
        certificate = Certificate(**numbers) if numbers else None
        f, g = kept["f"][()], kept["g"][()]
        code = RESULTS[saved.header["result"]]
        note = str(saved.header["note"])
        multiplier = history["multiplier"][-1] if certificate is None else certificate.multiplier
    except (KeyError, IndexError, TypeError):
        raise saved.error("its contents are not those of a solution") from None
    point = state.point
    check_values(saved, problem, point, f, g, history)
    multiplier = multiplier if point.multiplier is None else point.multiplier
    outcome = Outcome(multiplier, certificate, np.int32(code), note)
    return Solution(point.x, point.y, f, g, outcome, history, state, int(state.step))


def _state(saved: Saved, template: State, problem: Problem, solver: Solver) -> State:
    different = _difference(saved, template)
    if different:
        raise saved.error(different)
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    parts = _read_parts(saved, template, problem)

    def fill(path: tuple, leaf: PyTree) -> PyTree:
        name = f"state{jax.tree_util.keystr(path)}"
        if not is_kept(leaf):
            return leaf
        return parts[name] if name in parts else restore(saved.arrays[name], leaf)

    filled = [fill(path, leaf) for path, leaf in leaves]
    state: State = jax.tree.unflatten(structure, filled)
    # settings that are not arrays come from the solver given
    state = eqx.tree_at(lambda s: s.solver, state, eqx.combine(state.solver, solver))
    return problem.placed(state, state.point.x, state.point.y)


def template(saved: Saved, problem: Problem, solver: Solver, x: PyTree, y: PyTree) -> State:
    """The shapes of the state of a run whose key is of the kind in the file."""
    tried = []
    if solver.on_host:
        blank = solver.blank(problem, x, y)
        tried.append(State(solver, blank, np.int32(0), np.float64(0.0)))  # type: ignore
        if not _difference(saved, tried[-1]):
            return tried[-1]
    for key in keys(saved):
        tried.append(eqx.filter_eval_shape(launch, problem, x, y, solver, key))
        if not _difference(saved, tried[-1]):
            return tried[-1]
    return tried[0]


def check_values(
    saved: Saved,
    problem: Problem,
    point: Point,
    f: SupportsFloat,
    g: SupportsFloat,
    history: dict[str, np.ndarray],
) -> None:
    """Refuse a file whose f or g differs from the problem's at the saved point."""
    for name, then, now in zip("fg", (f, g), values(problem, point.x, point.y), strict=True):
        then, now = float(then), float(now)
        size = max(abs(then), float(np.max(np.abs(history[name]), initial=0)))
        if np.isfinite(then) and not abs(now - then) <= SAME * (size + SAME):
            raise saved.error(
                f"{name} is {then:.6g} in it and {now:.6g} here, at the same point: the problem "
                "or its data is different"
            )


def _difference(saved: Saved, template: State) -> str:
    """The first difference in names, dtypes or shapes between file and state; empty if none."""
    here = {f"state{name}": kind(leaf) for name, leaf in named(template)}
    there = {n: (s.dtype, s.shape) for n, s in saved.arrays.items() if n.startswith("state")}
    there |= {e["name"]: (e["dtype"], tuple(e["shape"])) for e in saved.header.get(PARTS) or []}
    for name in here:
        if name not in there:
            return f"it has no {name}"
        for what, a, b in zip(("dtype", "shape"), there[name], here[name], strict=True):
            if a != b:
                return f"{name} has {what} {a} in it and {b} here"
    extra = sorted(set(there) - set(here))
    return f"it has {extra[0]}, which is not in the state here" if extra else ""
