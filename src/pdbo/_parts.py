"""Arrays in parts, written and read by all processes together through Orbax, with checksums."""

import pathlib
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, Sharding
from jaxtyping import Array, PyTree, UInt32

from ._errors import CheckpointError, brief
from ._mesh import agree


def write(path: pathlib.Path, tree: PyTree) -> None:
    """Write a tree of arrays and their checksums, in place of whatever the folder holds."""
    ocp = _orbax()
    path = path.absolute()
    sums = {f"sum {i}": _checksum(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, {"arrays": tree, "sums": sums}, force=True)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be written: {brief(error)}.") from None


def read(
    path: pathlib.Path, place: Callable[[jax.ShapeDtypeStruct], Sharding], mesh: Mesh | None
) -> PyTree:
    """What `write` wrote, every array where `place` says; all processes of the mesh call this."""
    ocp = _orbax()
    path = path.absolute()
    if not path.is_dir():
        raise CheckpointError(f"there is no folder {path}.")

    def shape(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        like = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place(like))

    failure = "another process cannot read its part"
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            kept = checkpointer.metadata(path).item_metadata.tree
            found = checkpointer.restore(path, jax.tree.map(shape, kept))
        arrays, sums = found["arrays"], found["sums"]
    except Exception as error:
        arrays, sums, failure = None, {}, brief(error)
    if max(agree(mesh, int(not sums))):  # else the others would wait for this one
        raise CheckpointError(f"{path} cannot be read: {failure}.")
    named = jax.tree_util.tree_leaves_with_path(arrays)
    same = [int(sums[f"sum {i}"]) == int(_checksum(a)) for i, (_, a) in enumerate(named)]
    for (where, _), good in zip(named, same, strict=True):
        if not good:
            name = jax.tree_util.keystr(where)
            raise CheckpointError(f"{path} is damaged: {name} is not what was written.")
    return arrays


def _orbax() -> types.ModuleType:
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise CheckpointError(
            "arrays across hosts need Orbax, which is not installed: pip install 'pdbo[orbax]'."
        ) from None
    return ocp


@jax.jit
def _checksum(array: Array) -> UInt32[Array, ""]:
    """A sum of all words of an array, each times an odd factor that depends on its place.

    It does not depend on how the array is spread over devices; a flipped bit always changes it.
    """
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    size = np.dtype(array.dtype).itemsize
    words = lax.bitcast_convert_type(array, {1: jnp.uint8, 2: jnp.uint16}.get(size, jnp.uint32))
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, length in enumerate(words.shape):
        index = lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        place = place * jnp.uint32(length) + index
    factor = (place * jnp.uint32(2654435761)) ^ (place >> 15)
    return jnp.sum(words.astype(jnp.uint32) * (factor | 1), dtype=jnp.uint32)
