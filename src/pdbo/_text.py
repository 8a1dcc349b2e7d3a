"""Points as text: values if they are few, else shape and range."""

import jax
import numpy as np
from jaxtyping import PyTree

FEW = 8  # entries of an array that are printed one by one


def describe(name: str, tree: PyTree) -> str:
    """A point, one line for each of its arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return "\n".join(
        f"{name}{jax.tree_util.keystr(path)} = {_array(leaf)}" for path, leaf in leaves
    )


def _array(leaf: object) -> str:
    array = np.asarray(leaf)
    if array.size <= FEW:
        return np.array2string(array, precision=8, separator=", ").replace("\n", "")
    lowest, highest = float(np.min(array)), float(np.max(array))
    return f"array of shape {array.shape}, from {lowest:.6g} to {highest:.6g}"
