"""Arrays on the devices of a mesh, and processes that must do the same thing."""

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
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    value = np.asarray(leaf)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def everywhere(mesh: Mesh | None, tree: PyTree) -> PyTree:
    """The arrays of a tree on every device of the mesh; unchanged without a mesh."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: put(leaf, whole(mesh)) if eqx.is_array(leaf) else leaf, tree)


def held_whole(mesh: Mesh | None, tree: PyTree) -> PyTree:
    """A traced tree that every device holds whole, and its cotangents too.

    Without this the compiler may split x and y like the data, and then no host can read them.
    """
    return tree if mesh is None else lax.with_sharding_constraint(tree, whole(mesh))


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
