"""Vector algebra on pytrees: the few operations the algorithms are written in."""

import functools
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PyTree

if TYPE_CHECKING:
    from jax.typing import DTypeLike


def add(a: PyTree, b: PyTree) -> PyTree:
    """`a + b`, leaf by leaf."""
    return jax.tree.map(operator.add, a, b)


def sub(a: PyTree, b: PyTree) -> PyTree:
    """`a - b`, leaf by leaf."""
    return jax.tree.map(operator.sub, a, b)


def scale(s: ArrayLike, a: PyTree) -> PyTree:
    """`s * a` for a scalar `s`, in the dtype of each leaf of `a`."""
    return jax.tree.map(lambda leaf: jnp.asarray(s, leaf.dtype) * leaf, a)


def axpy(s: ArrayLike, a: PyTree, b: PyTree) -> PyTree:
    """`s * a + b` for a scalar `s`, in the dtype of each leaf of `b`."""
    return jax.tree.map(lambda u, v: jnp.asarray(s, v.dtype) * u + v, a, b)


def dot(a: PyTree, b: PyTree) -> Float[Array, ""]:
    """The inner product of two pytrees seen as vectors."""
    parts = jax.tree.leaves(jax.tree.map(lambda u, v: jnp.sum(u * v), a, b))
    return functools.reduce(operator.add, parts) if parts else jnp.zeros(())


def matmul(a: Array, b: Array) -> Array:
    """`a @ b` without the loss of GPUs, which by default round float32 factors to ten bits."""
    return jnp.matmul(a, b, precision="highest")


def length(a: PyTree) -> Float[Array, ""]:
    """The Euclidean norm of a pytree seen as one vector."""
    return jnp.sqrt(dot(a, a))


def norm(a: PyTree) -> Float[Array, ""]:
    """`length` safe from overflow and underflow of the squares, at twice the work."""
    top = max_abs(a)
    unit = jnp.where((top > 0) & jnp.isfinite(top), top, jnp.ones_like(top))
    scaled = jax.tree.map(lambda leaf: leaf / unit, a)
    return unit * jnp.sqrt(dot(scaled, scaled))


def max_abs(a: PyTree) -> Float[Array, ""]:
    """The largest absolute entry of a pytree, zero if it has no entries."""
    leaves = jax.tree.leaves(a)
    if all(isinstance(leaf, np.ndarray) for leaf in leaves):  # nothing to compile for
        return np.max([np.max(np.abs(leaf), initial=0) for leaf in leaves], initial=0)  # type: ignore
    parts = [jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(a)]
    return functools.reduce(jnp.maximum, parts) if parts else jnp.zeros(())


def where(condition: ArrayLike, a: PyTree, b: PyTree) -> PyTree:
    """`a` if the scalar condition holds, else `b`, leaf by leaf."""
    return jax.tree.map(lambda u, v: jnp.where(condition, u, v), a, b)


def zeros_like(a: PyTree) -> PyTree:
    """A pytree of zeros of the same structure."""
    return jax.tree.map(jnp.zeros_like, a)


def finite(a: PyTree) -> Bool[Array, ""]:
    """Whether every entry of every floating leaf is finite."""
    flags = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree.leaves(a)
        if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.inexact)
    ]
    return functools.reduce(jnp.logical_and, flags) if flags else jnp.array(True)


def astype(a: PyTree, dtype: "DTypeLike") -> PyTree:
    """Floating leaves in `dtype`; everything else untouched."""

    def cast(leaf: PyTree) -> PyTree:
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating):
            # NumPy converts without a program of its own
            return jnp.asarray(np.asarray(leaf, dtype) if _is_near(leaf) else leaf, dtype)
        return leaf

    return jax.tree.map(cast, a)


def _is_near(leaf: "Array") -> bool:
    """Whether an array lies in the memory of the CPU, and nobody said that it must."""
    if not isinstance(leaf, Array) or isinstance(leaf, Tracer) or leaf.committed:
        return False
    return leaf.is_fully_addressable and next(iter(leaf.devices())).platform == "cpu"


def dtype(a: PyTree) -> np.dtype:
    """The dtype of the first leaf; checked points have the same in all leaves."""
    return jax.tree.leaves(a)[0].dtype


def entry(named: Iterable[tuple[str, PyTree]], index: int) -> str:
    """The name of an entry of named pytrees, counted through all of their leaves."""
    for name, tree in named:
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if index < np.size(leaf):
                at = ", ".join(map(str, np.unravel_index(index, np.shape(leaf))))
                return f"{name}{jax.tree_util.keystr(path)}" + (f"[{at}]" if at else "")
            index -= np.size(leaf)
    raise IndexError(index)


FEW = 8  # entries of an array that are printed one by one


def describe(name: str, tree: PyTree) -> str:
    """A pytree as text, one line for each of its arrays: its values or, if many, their range."""
    named = [(jax.tree_util.keystr(p), v) for p, v in jax.tree_util.tree_leaves_with_path(tree)]
    return "\n".join(f"{name}{path} = {text(leaf)}" for path, leaf in named)


def text(leaf: object) -> str:
    """A number or an array as text: its values or, if many, their range."""
    if not isinstance(leaf, np.ndarray) and isinstance(leaf, Tracer):
        return str(leaf)
    if not getattr(leaf, "is_fully_addressable", True):
        return f"array of shape {np.shape(leaf)}, split over processes"  # type: ignore
    known = hasattr(leaf, "dtype")  # keys are no arrays for NumPy, and their dtype has no kind
    kind = getattr(leaf.dtype, "kind", "") if known else np.asarray(leaf).dtype.kind  # type: ignore
    if kind not in [*"biuf"]:
        return str(leaf).replace("\n", " ")
    array = np.asarray(leaf)
    if array.size <= FEW:
        return np.array2string(array, precision=8, separator=", ").replace("\n", "")
    lowest, highest = float(np.min(array)), float(np.max(array))
    return f"array of shape {array.shape}, from {lowest:.6g} to {highest:.6g}"
