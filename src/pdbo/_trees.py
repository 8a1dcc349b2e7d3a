"""Vector algebra on pytrees: the few operations the algorithms are written in."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


def add(a: PyTree, b: PyTree) -> PyTree:
    """`a + b`, leaf by leaf."""
    return jax.tree.map(operator.add, a, b)


def sub(a: PyTree, b: PyTree) -> PyTree:
    """`a - b`, leaf by leaf."""
    return jax.tree.map(operator.sub, a, b)


def scale(s: Any, a: PyTree) -> PyTree:
    """`s * a` for a scalar `s`, in the dtype of each leaf of `a`."""
    return jax.tree.map(lambda leaf: jnp.asarray(s, leaf.dtype) * leaf, a)


def axpy(s: Any, a: PyTree, b: PyTree) -> PyTree:
    """`s * a + b` for a scalar `s`, in the dtype of each leaf of `b`."""
    return jax.tree.map(lambda u, v: jnp.asarray(s, v.dtype) * u + v, a, b)


def dot(a: PyTree, b: PyTree) -> Array:
    """The inner product of two pytrees seen as vectors."""
    parts = jax.tree.leaves(jax.tree.map(lambda u, v: jnp.sum(u * v), a, b))
    return functools.reduce(operator.add, parts) if parts else jnp.zeros(())


def matmul(a: Array, b: Array) -> Array:
    """`a @ b` in full single precision too: by default GPUs round its factors to ten bits."""
    return jnp.matmul(a, b, precision="highest")


def length(a: PyTree) -> Array:
    """The Euclidean norm of a pytree seen as one vector."""
    return jnp.sqrt(dot(a, a))


def norm(a: PyTree) -> Array:
    """`length` safe from overflow and underflow of the squares, at twice the work."""
    top = max_abs(a)
    unit = jnp.where((top > 0) & jnp.isfinite(top), top, jnp.ones_like(top))
    scaled = jax.tree.map(lambda leaf: leaf / unit, a)
    return unit * jnp.sqrt(dot(scaled, scaled))


def max_abs(a: PyTree) -> Array:
    """The largest absolute entry of a pytree, zero where it has no entries."""
    parts = [jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(a)]
    return functools.reduce(jnp.maximum, parts) if parts else jnp.zeros(())


def where(condition: Any, a: PyTree, b: PyTree) -> PyTree:
    """`a` where the scalar condition holds, else `b`, leaf by leaf."""
    return jax.tree.map(lambda u, v: jnp.where(condition, u, v), a, b)


def zeros_like(a: PyTree) -> PyTree:
    """A pytree of zeros of the same structure."""
    return jax.tree.map(jnp.zeros_like, a)


def finite(a: PyTree) -> Array:
    """Whether every entry of every floating leaf is finite."""
    flags = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree.leaves(a)
        if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.inexact)
    ]
    return functools.reduce(jnp.logical_and, flags) if flags else jnp.array(True)


def astype(a: PyTree, dtype: Any) -> PyTree:
    """Floating leaves in `dtype`; everything else untouched."""

    def cast(leaf: Any) -> Any:
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(leaf, dtype)
        return leaf

    return jax.tree.map(cast, a)


def dtype(a: PyTree) -> Any:
    """The dtype of the first leaf: problems are checked to have just one."""
    return jax.tree.leaves(a)[0].dtype
