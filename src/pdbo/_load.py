"""`load`: a solution from a file or a folder, if it belongs to the problem and solver given."""

import os

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from . import _trees as trees
from ._batches import reading
from ._driver import chosen
from ._errors import CheckpointError
from ._precision import double, returned, to_float64, was_lifted
from ._problem import Problem, check_problem
from ._resolve import answering
from ._solution import Solution
from ._solver import Solver
from .checkpoint.description import check_description, decode
from .checkpoint.folder import latest
from .checkpoint.format import Saved, as_path, read
from .checkpoint.packing import template, unpack
from .solvers._implicit import part_of
from .solvers._streamed import streamed


def load(
    path: str | os.PathLike[str],
    problem: Problem,
    solver: Solver | None = None,
    x0: PyTree = None,
    y0: PyTree = None,
) -> Solution:
    """Read a saved solution, to look at it or to carry on from its `state`.

    A file that was damaged, or that belongs to another problem or solver, raises a
    `CheckpointError` with one sentence on the difference.

    Arguments:
        path: a file, or a checkpoint folder, whose last good file is read.
        problem: the problem that was solved; the file holds no functions and no data.
        solver: the solver that was used; `AutoPDBO()` if None.
        x0, y0: any point of the right structure; needed only if x or y is made of containers
            other than dicts, lists and tuples.
    """
    check_problem(problem)
    problem, x0, y0 = problem.entered(x0, y0)
    solver = chosen(solver, problem)
    saved = _saved(path)
    solver = streamed(problem, part_of(solver, saved.header))
    scale = saved.arrays.get("state.scale")
    if scale is None or not was_lifted(scale.dtype, solver):
        return problem.left(answering(_loaded(saved, problem, solver, x0, y0), problem))
    with double():
        x0, y0 = trees.astype((x0, y0), jnp.float64)
        solution = _loaded(saved, to_float64(problem), solver, x0, y0)
    return problem.left(answering(returned(solution), problem))


def _saved(path: str | os.PathLike[str]) -> Saved:
    path = as_path(path)
    if not path.is_dir():
        return read(path)
    saved, failures = latest(path)
    if saved is None:
        raise CheckpointError(failures[0].sentence if failures else f"{path} holds no checkpoint.")
    return saved


def _loaded(saved: Saved, problem: Problem, solver: Solver, x0: PyTree, y0: PyTree) -> Solution:
    check_description(saved, problem, solver)
    point = []
    for name, given in (("x", x0), ("y", y0)):
        try:
            structure = decode(saved.header[name])
        except (KeyError, TypeError, ValueError):
            raise saved.error(f"its {name} cannot be understood") from None
        if structure is None and given is None:
            raise saved.error(f"{name} is made of your own containers: give {name}0 too")
        point.append(structure if given is None else jax.tree.map(jnp.asarray, given))
    for leaf in jax.tree.leaves(point):
        if jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
            raise saved.error(
                f"it is in {leaf.dtype}, which this session lacks: set jax_enable_x64 first"
            )
    with reading(problem):
        return unpack(saved, template(saved, problem, solver, *point), problem, solver)
