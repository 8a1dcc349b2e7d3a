"""Arrays that no host holds whole, written and read by all hosts together through Orbax."""

import os
import pathlib

import jax
from jax.sharding import Mesh, Sharding
from jaxtyping import PyTree

from ._errors import CheckpointError
from ._mesh import mesh_of, rows, whole
from ._parts import read, write


def save_arrays(path: str | os.PathLike[str], tree: PyTree) -> None:
    """Write nested dicts and lists of arrays, spread over devices or not, to a new folder.

    Every process calls this; on many hosts all of them must see the folder. Orbax does not notice
    most damaged files, so checksums are kept beside the arrays.
    """
    if pathlib.Path(path).exists():
        raise CheckpointError(f"{path} exists already: choose another folder.")
    write(pathlib.Path(path), tree)


def load_arrays(path: str | os.PathLike[str], mesh: Mesh | None = None) -> PyTree:
    """Read what `save_arrays` wrote, split over the devices of a mesh as `pdbo.shard` splits data.

    As the data of a `Problem` passed to `shard` with the same mesh, the arrays are not moved. The
    mesh may differ from the one the arrays were written from; None means all devices.
    """
    mesh = mesh_of(mesh)

    def place(leaf: jax.ShapeDtypeStruct) -> Sharding:
        split = leaf.shape and leaf.shape[0] >= mesh.size and leaf.shape[0] % mesh.size == 0
        return rows(mesh) if split else whole(mesh)

    return read(pathlib.Path(path), place, mesh)
