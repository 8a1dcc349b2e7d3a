"""Many devices: the data of a problem split over them, everything else on each of them."""

import equinox as eqx
import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from ._errors import DataReplicated, ProblemError, warn
from ._mesh import everywhere, mesh_of, put, rows, whole
from ._problem import Problem, check_problem, refuse_constraints
from .linear import DenseMatrix, SparseMatrix, SplitMatrix


def shard(problem: Problem, mesh: Mesh | None = None, *, split: PyTree = True) -> Problem:
    """The same problem with its data split over the devices of a mesh, row by row.

    `solve`, `certify`, `multistart` and `compare` accept it like any problem. Every leaf of the
    data is split along its leading axis, a matrix of `pdbo.linear` by its rows; every device holds
    x and y, and the compiler adds the sums over devices that f, g and their gradients need. The
    functions need no change.

    Arguments:
        problem: the problem.
        mesh: the devices, such as `jax.make_mesh((8,), ("data",))`; all axes together split the
            rows. None means all devices of all hosts.
        split: which leaves to split: True for all, or a tree of booleans shaped like the data or
            its upper levels. A leaf with fewer rows than devices is never split; if the devices
            do not divide the rows of a leaf evenly, each of them holds all of it, with a warning.

    On many hosts every process calls this with the same problem and data. A leaf that is already
    spread over the mesh is kept as it is, so no host needs to hold all of the data.
    """
    check_problem(problem)
    refuse_constraints(problem, "shard")
    if problem.mesh is not None:
        raise ProblemError("the problem is split over devices already: shard the original.")
    if problem.view.sources:
        raise ProblemError(
            "data that is fetched from outside of memory cannot be split over devices: hand it to "
            "Batches as arrays."
        )
    mesh = mesh_of(mesh)
    uneven = []

    def place(path: tuple, leaf: PyTree, wanted: bool) -> PyTree:
        if not isinstance(leaf, jax.Array | SparseMatrix | DenseMatrix):
            return leaf
        if isinstance(leaf, jax.Array) and leaf.sharding.device_set == whole(mesh).device_set:
            return leaf
        count = leaf.shape[0] if leaf.shape and wanted else 0
        if count < mesh.size or count % mesh.size:
            if count > mesh.size:
                uneven.append(f"data{jax.tree_util.keystr(path)} has {count}")
            return everywhere(mesh, leaf)
        if isinstance(leaf, SparseMatrix):
            leaf = SplitMatrix.of(leaf, mesh)
        if isinstance(leaf, DenseMatrix):  # it stores its transpose
            return DenseMatrix(put(leaf.transposed, rows(mesh, 1)))
        return jax.tree.map(lambda array: put(array, rows(mesh)), leaf)

    data = jax.tree_util.tree_map_with_path(
        place, problem.data, _flags(problem.data, split), is_leaf=_is_matrix
    )
    if uneven:
        warn(
            f"{', '.join(uneven)} rows, which {mesh.size} devices do not divide evenly: each "
            "device holds all of it. Drop or pad rows, or say so with split.",
            DataReplicated,
        )
    return eqx.tree_at(
        lambda p: (p.data, p.mesh), problem, (data, mesh), is_leaf=lambda node: node is None
    )


def _is_matrix(node: object) -> bool:
    return isinstance(node, SparseMatrix | DenseMatrix)


def _flags(data: PyTree, split: PyTree) -> PyTree:
    """One boolean for each leaf of the data."""
    wrong = [leaf for leaf in jax.tree.leaves(split) if not isinstance(leaf, bool)]
    if wrong:
        raise ProblemError(f"split must hold True or False for each leaf, got {wrong[0]!r}.")
    try:
        return jax.tree.map(
            lambda flag, part: jax.tree.map(lambda _: flag, part, is_leaf=_is_matrix), split, data
        )
    except ValueError:
        raise ProblemError("split must be shaped like the data or its upper levels.") from None
