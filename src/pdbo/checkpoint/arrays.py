"""One array, as the file stores it: random keys as integers, dtypes unknown to NumPy as bits."""

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _sealed
from .._errors import CheckpointError
from .format import Saved, Stored

_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")  # JAX's, by the names it gives them

Leaf = bool | int | float | np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct
"""A number, an array, or the shape and dtype of one."""


def digest(*trees: PyTree) -> str | None:
    """The SHA-256 of the leaves of trees; None if one is split over processes."""
    try:
        found = [store("", leaf).data for leaf in jax.tree.leaves(trees) if is_kept(leaf)]
    except CheckpointError:
        return None
    each = [_sealed.digest(np.ascontiguousarray(data).data) for data in found]
    return _sealed.digest("".join(each).encode())


def named(tree: PyTree) -> list[tuple[str, Leaf]]:
    """The numbers and arrays of a tree, with their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if is_kept(leaf)]


def is_kept(leaf: object) -> TypeGuard[Leaf]:
    """Whether a leaf is a number, an array, or the shape and dtype of one."""
    return isinstance(leaf, bool | int | float) or hasattr(leaf, "dtype")


def kind(leaf: Leaf) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of a leaf."""
    if isinstance(leaf, bool | int | float):
        leaf = np.asarray(leaf)
    return str(leaf.dtype), tuple(leaf.shape)


def is_split(leaf: object) -> TypeGuard[jax.Array]:
    """Whether a leaf is an array of which this process holds a part only."""
    known = isinstance(leaf, jax.Array)
    return known and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def store(name: str, leaf: Leaf) -> Stored:
    """A leaf as the file stores it; `name` is for the error."""
    if is_split(leaf):
        raise CheckpointError(f"{name} is split over processes and cannot be saved from one.")
    data = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    if data.dtype.hasobject:
        raise CheckpointError(f"{name} is not an array of numbers and cannot be saved.")
    if data.dtype.isbuiltin != 1:  # such as bfloat16
        data = data.view(f"u{data.dtype.itemsize}")
    return Stored(*kind(leaf), data)


def plain(stored: Stored) -> np.ndarray:
    """A stored array in its own dtype."""
    known = str(stored.data.dtype) == stored.dtype
    return stored.data if known else stored.data.view(jnp.dtype(stored.dtype))


def restore(stored: Stored, like: Leaf) -> Leaf:
    """A stored array as a leaf of the same kind as `like`."""
    if isinstance(like, bool | int | float):
        return type(like)(stored.data.item())
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(stored.data), impl=_generator(like))
    return jnp.asarray(plain(stored))


def keys(saved: Saved) -> list[jax.ShapeDtypeStruct]:
    """The kinds of key a run may have been given; those that occur in the file come first."""
    raw = [jax.ShapeDtypeStruct((n,), jnp.uint32) for n in (2, 4)]
    seen = {stored.dtype for stored in saved.arrays.values()}
    return sorted([_key(n) for n in _GENERATORS] + raw, key=lambda k: str(k.dtype) not in seen)


def _is_key(leaf: Leaf) -> TypeGuard[jax.Array]:
    if isinstance(leaf, bool | int | float):
        return False
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _generator(like: jax.Array | jax.ShapeDtypeStruct) -> Any:
    if isinstance(like, jax.Array):
        return jax.random.key_impl(like)
    return next(n for n in _GENERATORS if str(_key(n).dtype) == str(like.dtype))


def _key(generator: str) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0, impl=generator))
