"""Arrays on the devices of a mesh, and processes that must do the same thing."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree

from ._errors import ProblemError


def mesh_of(mesh: object) -> Mesh:
    """The given mesh, or one of all devices, with axes that the compiler manages."""
    if mesh is None:
        return Mesh(np.asarray(jax.devices()), ("data",))
    if not isinstance(mesh, Mesh):
        raise ProblemError(
            f"mesh must be a jax.sharding.Mesh such as jax.make_mesh((8,), ('data',)), "
            f"got {type(mesh).__name__}."
        )
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def whole(mesh: Mesh) -> NamedSharding:
    """Every device holds all of an array."""
    return NamedSharding(mesh, PartitionSpec())


def rows(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """An array is split over the devices along its leading axis, or another one."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, mesh.axis_names))


def put(leaf: Array | np.ndarray, sharding: NamedSharding) -> Array:
    """An array on the devices of a sharding; on many hosts each provides its own part."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and leaf.sharding.device_set == sharding.device_set:
        return jax.device_put(leaf, sharding)  # no host ever holds it whole
    value = np.asarray(leaf)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def everywhere(mesh: Mesh | None, tree: PyTree) -> PyTree:
    """The arrays of a tree on every device of the mesh; unchanged without a mesh."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: put(leaf, whole(mesh)) if eqx.is_array(leaf) else leaf, tree)


# x and y, whole on every device or split

LARGE = 2**14  # entries of a leaf: from here on the name of an axis splits it

Spec = PartitionSpec | str | None
"""How a leaf of x or y is split: JAX's own words, or the name of an axis for every large leaf."""


def is_spec(node: object) -> bool:
    """Whether a node of a tree says how leaves are split."""
    return node is None or isinstance(node, PartitionSpec | str)


def check_specs(mesh: Mesh, specs: PyTree, name: str) -> None:
    """Raise a ProblemError if a tree holds something else, or names an axis the mesh lacks."""
    for spec in jax.tree.leaves(specs, is_leaf=is_spec):
        if not is_spec(spec):
            raise ProblemError(
                f"{name} must hold PartitionSpecs or names of axes of the mesh, got "
                f"{type(spec).__name__}."
            )
        for axis in _axes(spec):
            if axis not in mesh.axis_names:
                has = ", ".join(map(repr, mesh.axis_names))
                raise ProblemError(f"{name} names the axis {axis!r}, but the mesh has {has}.")


def _axes(spec: Spec) -> list[str]:
    """The axes of a mesh that a leaf is split over."""
    if spec is None or isinstance(spec, str):
        return [] if spec is None else [spec]
    entries = [(e,) if isinstance(e, str) else e for e in spec]
    return [axis for entry in entries if entry is not None for axis in entry]


def shardings(mesh: Mesh, specs: PyTree, tree: PyTree, name: str) -> PyTree:
    """Where each leaf of a tree lies; a ProblemError if it cannot be split as it should be."""
    given: list[Spec] = []

    def note(spec: Spec, part: PyTree) -> None:
        given.extend([spec] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(note, specs, tree, is_leaf=is_spec)
    except ValueError:
        raise ProblemError(
            f"{name} in shard must be shaped like {name} or its upper levels."
        ) from None
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    found = []
    for spec, (path, leaf) in zip(given, leaves, strict=True):
        where = name + jax.tree_util.keystr(path)
        found.append(NamedSharding(mesh, _resolved(mesh, spec, np.shape(leaf), where)))
    return jax.tree.unflatten(structure, found)


def _resolved(mesh: Mesh, spec: Spec, shape: tuple[int, ...], where: str) -> PartitionSpec:
    """The partition of one leaf."""
    if isinstance(spec, str):
        fits = [k for k, size in enumerate(shape) if size % mesh.shape[spec] == 0]
        if math.prod(shape) < LARGE:
            return PartitionSpec()
        if not fits:
            raise ProblemError(
                f"{where} has shape {shape}, of which the {mesh.shape[spec]} devices of {spec!r} "
                "divide no axis evenly: pad it, or give a PartitionSpec for each leaf."
            )
        return PartitionSpec(*[None] * fits[0], spec)
    spec = PartitionSpec() if spec is None else spec
    if len(spec) > len(shape):
        raise ProblemError(f"{where} has {len(shape)} axes, fewer than {spec}.")
    for axis, entry in enumerate(spec):
        count = math.prod(mesh.shape[name] for name in _axes(PartitionSpec(entry)))
        if shape[axis] % count:
            raise ProblemError(
                f"{where} has {shape[axis]} entries along axis {axis}, which {count} devices do "
                f"not divide evenly: pad it, or change {spec}."
            )
    return spec


class Layout(NamedTuple):
    """How x, y and all that is shaped like them lie on the devices of a mesh.

    Attributes:
        mesh: the devices.
        x, y: the sharding of each leaf.
        shapes: of the leaves that are split, and how.
    """

    mesh: Mesh
    x: PyTree
    y: PyTree
    shapes: dict[tuple[int, ...], PartitionSpec]

    @staticmethod
    def of(mesh: Mesh, specs: tuple[PyTree, PyTree], x: PyTree, y: PyTree) -> "Layout":
        """The layout of points like (x, y)."""
        at = [shardings(mesh, s, z, n) for s, z, n in zip(specs, (x, y), "xy", strict=True)]
        shapes = {
            np.shape(leaf): place.spec
            for leaf, place in zip(jax.tree.leaves((x, y)), jax.tree.leaves(at), strict=True)
            if _axes(place.spec)
        }
        return Layout(mesh, at[0], at[1], shapes)

    def place(self, leaf: Array | jax.ShapeDtypeStruct) -> NamedSharding:
        """The sharding of an array: split if it is shaped like a split leaf of x or y.

        It may have further axes in front, as the memory of a method has.
        """
        for ahead in range(len(leaf.shape)):
            spec = self.shapes.get(tuple(leaf.shape[ahead:]))
            if spec is not None:
                return NamedSharding(self.mesh, PartitionSpec(*[None] * ahead, *spec))
        return whole(self.mesh)

    def held(self, tree: PyTree) -> PyTree:
        """A traced tree, with every array in its place."""
        if not self.shapes:
            return tree
        hold = lambda leaf: lax.with_sharding_constraint(leaf, self.place(leaf))  # noqa: E731
        return jax.tree.map(lambda leaf: hold(leaf) if eqx.is_array(leaf) else leaf, tree)

    def put(self, tree: PyTree) -> PyTree:
        """A tree with every array in its place."""
        return jax.tree.map(
            lambda leaf: put(leaf, self.place(leaf)) if eqx.is_array(leaf) else leaf, tree
        )


def many_hosts(mesh: Mesh | None) -> bool:
    """Whether the devices belong to more than one process."""
    return mesh is not None and mesh.is_multi_process


def is_leader(mesh: Mesh | None) -> bool:
    """Whether this process, the first one, writes files and shows progress."""
    return mesh is None or not many_hosts(mesh) or jax.process_index() == _first(mesh)


def _first(mesh: Mesh) -> int:
    return min(device.process_index for device in mesh.devices.flat)


def agree(mesh: Mesh | None, *values: int) -> tuple[int, ...]:
    """The largest of each value over the processes, so that all of them act alike.

    Every process has its own clock and signals; processes that run different compiled code would
    wait for each other forever.
    """
    if mesh is None or not many_hosts(mesh):
        return values
    mine = np.asarray([values], np.int32)
    shape = (mesh.size, len(values))
    spread = jax.make_array_from_callback(shape, rows(mesh), lambda _: mine)
    return tuple(int(v) for v in np.asarray(_largest(spread, whole(mesh))))


def _largest(spread: Int[Array, "devices n"], sharding: NamedSharding) -> Int[Array, " n"]:
    return jax.jit(_columns, out_shardings=sharding)(spread)


def _columns(spread: Int[Array, "devices n"]) -> Int[Array, " n"]:
    return jnp.max(spread, axis=0)
