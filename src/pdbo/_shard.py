"""Many devices: the data of a problem split over them, and x and y too if they are large."""

import dataclasses
from typing import TypeGuard

import equinox as eqx
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from ._checks import kind
from ._errors import DataReplicated, ProblemError, warn
from ._mesh import check_specs, everywhere, is_spec, mesh_of, put, rows, shardings, whole
from ._problem import Problem, check_problem, refuse_constraints
from .linear import DenseMatrix, SparseMatrix, SplitMatrix
from .sets import Product, Set


def shard(
    problem: Problem,
    mesh: Mesh | None = None,
    *,
    split: PyTree = True,
    x: PyTree = None,
    y: PyTree = None,
) -> Problem:
    """The same problem with its data, and x and y if wanted, split over the devices of a mesh.

    `solve`, `certify` and `compare` accept it like any problem. Every leaf of the data is split
    along its leading axis, a matrix of `pdbo.linear` by its rows; every device holds x and y unless
    they are split, and the compiler adds the sums over devices that f, g and their gradients need.
    The functions need no change.

    Arguments:
        problem: the problem.
        mesh: the devices, such as `jax.make_mesh((8,), ("data",))`; all axes together split the
            rows. None means all devices of all hosts.
        split: which leaves to split: True for all, or a tree of booleans shaped like the data or
            its upper levels. A leaf with fewer rows than devices is never split; if the devices
            do not divide the rows of a leaf evenly, each of them holds all of it, with a warning.
            In place of a boolean, a `jax.sharding.PartitionSpec` says how: `PartitionSpec(None,
            "data")` splits a sparse matrix by columns, `PartitionSpec("rows", "columns")` both
            ways.
        x, y: how x and y are split: None for whole on every device; a `PartitionSpec`, or a tree of
            them shaped like x or its upper levels; or the name of an axis of the mesh, which splits
            every leaf of 16,384 entries or more along its first axis that the devices divide. All
            that is shaped like x or y is split alike: gradients, estimates, states of Optax.

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
    x_set = _placed_set(problem.x_set, mesh, x, "x")
    y_set = _placed_set(problem.y_set, mesh, y, "y")
    return eqx.tree_at(
        lambda p: (p.data, p.mesh, p.specs, p.x_set, p.y_set),
        problem,
        (_placed_data(problem.data, mesh, split), mesh, (x, y), x_set, y_set),
        is_leaf=lambda node: node is None or node is problem.specs,
    )


def _placed_data(data: PyTree, mesh: Mesh, split: PyTree) -> PyTree:
    """The data on the devices, with a warning if some of it cannot be split."""
    uneven = []

    def place(path: tuple, leaf: PyTree, wanted: bool | PartitionSpec) -> PyTree:
        if not isinstance(leaf, jax.Array | SparseMatrix | DenseMatrix):
            return leaf
        where = f"data{jax.tree_util.keystr(path)}"
        if isinstance(wanted, PartitionSpec):
            return _as_told(leaf, mesh, wanted, where)
        if isinstance(leaf, jax.Array) and leaf.sharding.device_set == whole(mesh).device_set:
            return leaf
        count = leaf.shape[0] if leaf.shape and wanted else 0
        if count < mesh.size or count % mesh.size:
            if count > mesh.size:
                uneven.append(f"{where} has {count}")
            return everywhere(mesh, leaf)
        return _as_told(leaf, mesh, rows(mesh).spec, where)

    placed = jax.tree_util.tree_map_with_path(place, data, _flags(data, split), is_leaf=_is_matrix)
    if uneven:
        warn(
            f"{', '.join(uneven)} rows, which {mesh.size} devices do not divide evenly: each "
            "device holds all of it. Drop or pad rows, or say so with split.",
            DataReplicated,
        )
    return placed


def _as_told(leaf: PyTree, mesh: Mesh, spec: PartitionSpec, where: str) -> PyTree:
    """A leaf of the data split as a specification says; a ProblemError if it cannot be."""
    check_specs(mesh, spec, where)
    sharding = shardings(mesh, spec, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), where)
    if isinstance(leaf, SparseMatrix):
        split = SplitMatrix.of(leaf, mesh, spec)
        return jax.tree.map(lambda array: put(array, split.sharding), split)
    if isinstance(leaf, DenseMatrix):  # it stores its transpose
        turned = PartitionSpec(*reversed([*spec, None, None][:2]))
        return DenseMatrix(put(leaf.transposed, NamedSharding(mesh, turned)))
    return put(leaf, sharding)


def _placed_set(constraint: Set, mesh: Mesh, specs: PyTree, name: str) -> Set:
    """A set whose numbers lie on the devices; a ProblemError if a split point has no use for it."""
    check_specs(mesh, specs, name)
    if specs is None:
        return constraint
    parts = [constraint]
    if isinstance(constraint, Product):
        parts = jax.tree.leaves(constraint.tree, is_leaf=_is_set)
    for part in parts:
        if not part.in_parts:
            raise ProblemError(
                f"{name}_set: {kind(part)} cannot be projected onto in parts, so {name} cannot be "
                "split over devices."
            )
    return _spread_set(constraint, mesh, specs)


def _spread_set(constraint: Set, mesh: Mesh, specs: PyTree) -> Set:
    """A set whose arrays are split like the leaves of the point they belong to."""
    if isinstance(constraint, Product):
        below = specs
        if is_spec(specs):
            below = jax.tree.map(lambda _: specs, constraint.tree, is_leaf=_is_set)
        spread_part = lambda part, spec: _spread_set(part, mesh, spec)  # noqa: E731
        return Product(jax.tree.map(spread_part, constraint.tree, below, is_leaf=_is_set))

    def fitting(array: Array, spec: PyTree) -> Array:
        try:
            return put(array, shardings(mesh, spec, array, ""))
        except ProblemError:  # a number for many entries
            return put(array, whole(mesh))

    def spread(numbers: PyTree) -> PyTree:
        try:
            return jax.tree.map(
                lambda spec, part: jax.tree.map(lambda array: fitting(array, spec), part),
                specs,
                numbers,
                is_leaf=is_spec,
            )
        except ValueError:  # an array for many leaves
            return everywhere(mesh, numbers)

    names = [field.name for field in dataclasses.fields(constraint)]
    values = [spread(getattr(constraint, name)) for name in names]
    return eqx.tree_at(lambda c: [getattr(c, name) for name in names], constraint, values)


def _is_set(node: object) -> bool:
    return isinstance(node, Set)


def _is_matrix(node: object) -> bool:
    return isinstance(node, SparseMatrix | DenseMatrix)


def _is_flag(node: object) -> TypeGuard[bool | PartitionSpec]:
    return isinstance(node, bool | PartitionSpec)


def _flags(data: PyTree, split: PyTree) -> PyTree:
    """One boolean, or partition, for each leaf of the data."""
    wrong = [leaf for leaf in jax.tree.leaves(split) if not _is_flag(leaf)]
    if wrong:
        raise ProblemError(
            f"split must hold True, False or a PartitionSpec for each leaf, got {wrong[0]!r}."
        )
    try:
        return jax.tree.map(
            lambda flag, part: jax.tree.map(lambda _: flag, part, is_leaf=_is_matrix), split, data
        )
    except ValueError:
        raise ProblemError("split must be shaped like the data or its upper levels.") from None
