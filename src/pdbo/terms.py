r"""Nonsmooth terms of the inner problem, with weights that may depend on x.

Each is a case of

$$\sum_j a_j |y_j| + \tfrac12 \sum_j c_j y_j^2 + \sum_G b_G \|y_G\|,$$

whose proximal operator is known in closed form.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._checks import traced
from ._errors import ProblemError, brief
from .sets import Set, _fit, _floats

__all__ = ["L1", "ElasticNet", "GroupL2", "SparseGroup", "Term"]

Weights = PyTree | Callable[[PyTree], PyTree]


class Parts(NamedTuple):
    """The weights at an x: of |y_j|, of half of y_j^2, and of the norm of every group."""

    l1: Float[Array, " n"]
    l2: Float[Array, " n"]
    group: Float[Array, " groups"]


class Term(eqx.Module):
    """A nonsmooth term of the inner problem: the base of `L1`, `ElasticNet` and the others."""

    l1: Weights
    l2: Weights
    group: Weights
    labels: Int[Array, " n"] | None
    count: int = eqx.field(static=True)  # of groups

    def _build(
        self, l1: Weights = 0.0, l2: Weights = 0.0, group: Weights = 0.0, groups: PyTree = None
    ) -> None:
        name = type(self).__name__
        self.l1, self.l2, self.group = (
            w if callable(w) else _floats(f"a weight of {name}", w, finite=True)
            for w in (l1, l2, group)
        )
        self.labels, self.count = (None, 0) if groups is None else _labels(name, groups)

    @property
    def by_entry(self) -> bool:
        """Whether it is a sum over the entries of y."""
        return self.count == 0

    def parts(self, x: PyTree, y: PyTree) -> Parts:
        """The weights at x, flat."""
        l1, l2 = (ravel_pytree(_fit(_at(w, x), y))[0] for w in (self.l1, self.l2))
        group = jnp.broadcast_to(jnp.asarray(_at(self.group, x), l1.dtype), (self.count,))
        return Parts(l1, l2, group)

    def value(self, x: PyTree, y: PyTree) -> Float[Array, ""]:
        """The value of the term."""
        parts, flat = self.parts(x, y), ravel_pytree(y)[0]
        size = flat * jax.lax.stop_gradient(jnp.sign(flat))  # of slope zero at the kink
        total = jnp.sum(parts.l1 * size) + 0.5 * jnp.sum(parts.l2 * flat**2)
        if self.labels is None:
            return total
        square = self._sums(flat**2)
        inside = square > 0  # the norm has no derivative at zero
        norm = jnp.where(inside, jnp.sqrt(jnp.where(inside, square, 1)), 0)
        return total + jnp.sum(parts.group * norm)

    def prox(self, x: PyTree, y: PyTree, step: ArrayLike) -> PyTree:
        r"""$\arg\min_w \text{step} \cdot \text{term}(x, w) + \tfrac12 \|w - y\|^2$."""
        parts, (flat, shaped) = self.parts(x, y), ravel_pytree(y)
        step = jnp.asarray(step, flat.dtype)
        w = jnp.sign(flat) * jnp.maximum(jnp.abs(flat) - step * parts.l1, 0)
        if self.labels is not None:
            norm = jnp.sqrt(self._sums(w**2))
            shrink = jnp.maximum(1 - step * parts.group / jnp.where(norm > 0, norm, 1), 0)
            w = w * jnp.append(shrink, 1)[self.labels]
        return shaped(w / (1 + step * parts.l2))

    def support(self, y: PyTree) -> PyTree[Bool[Array, "..."]]:
        """Which entries of y are not zero."""
        return jax.tree.map(lambda leaf: leaf != 0, y)

    def _sums(self, flat: Float[Array, " n"]) -> Float[Array, " groups"]:
        return jax.ops.segment_sum(flat, self.labels, self.count + 1)[:-1]  # type: ignore

    def check(self, x: PyTree, y: PyTree, y_set: Set) -> None:
        """Raise a ProblemError if the weights or groups do not fit the point."""
        name = type(self).__name__
        size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(y))
        if self.labels is not None and self.labels.size != size:
            raise ProblemError(
                f"groups of {name} must have one label for each of the {size} entries of y, got "
                f"{self.labels.size}."
            )
        try:
            parts = eqx.filter_eval_shape(self.parts, x, y)
            parts = parts if traced(self, x, y) else self.parts(x, y)
        except Exception as error:
            raise ProblemError(
                f"the weights of {name} do not fit: they must be numbers, arrays that broadcast "
                f"to y (one number for each group) or a function of x that returns these, but "
                f"there is a {brief(error)}."
            ) from error
        for part in parts if not traced(parts) else ():
            values = np.asarray(part)
            if not np.all(np.isfinite(values) & (values >= 0)):
                bad = values[~(np.isfinite(values) & (values >= 0))][0]
                raise ProblemError(
                    f"a weight of {name} is {bad:g} at x0; expected finite numbers >= 0, such as "
                    "jnp.exp(x)."
                )
        _check_set(name, self.by_entry, y_set)


def _check_set(name: str, by_entry: bool, y_set: Set) -> None:
    kinds = ("Free", "NonNegative", "Box") if by_entry else ("Free", "NonNegative")
    if type(y_set).__name__ not in kinds:
        raise ProblemError(
            f"inner_term={name} goes with y_set={' or '.join(kinds)}, got {type(y_set).__name__}."
        )


def _at(weights: Weights, x: PyTree) -> PyTree:
    return weights(x) if callable(weights) else weights


def _labels(name: str, groups: PyTree) -> tuple[Int[Array, " n"], int]:
    """The group of every entry, flat, and their number; the number itself stands for no group."""
    leaves = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(groups)]
    labels = np.concatenate(leaves) if leaves else np.zeros(0, int)
    if labels.dtype.kind not in "iu" or not labels.size:
        raise ProblemError(
            f"groups of {name} must be whole numbers shaped like y, got dtype {labels.dtype}."
        )
    count = int(labels.max()) + 1
    missing = np.setdiff1d(np.arange(count), labels)
    if labels.min() < -1 or missing.size or count == 0:
        raise ProblemError(
            f"groups of {name} must be numbered 0, 1, 2 and so on without gaps, with -1 for "
            f"entries without a group; "
            + (f"{missing[0]} is missing." if missing.size else f"got {labels.min()}.")
        )
    return jnp.asarray(np.where(labels < 0, count, labels), jnp.int32), count


class L1(Term):
    r"""$\sum_j a_j |y_j|$: the lasso.

    Arguments:
        weights: the numbers a >= 0: one number, an array that broadcasts to y, a pytree of these
            with the structure of y or a prefix of it, or a function of x that returns these. An
            entry with weight zero is not penalised.
    """

    def __init__(self, weights: Weights):
        self._build(l1=weights)


class ElasticNet(Term):
    r"""$\sum_j a_j |y_j| + \tfrac12 \sum_j c_j y_j^2$: the elastic net.

    Arguments:
        l1, l2: the numbers a and c >= 0, given like the weights of `L1`.
    """

    def __init__(self, l1: Weights, l2: Weights):
        self._build(l1=l1, l2=l2)


class GroupL2(Term):
    r"""$\sum_G b_G \|y_G\|$: the group lasso.

    Arguments:
        weights: the numbers b >= 0: one, or an array with one for each group, or a function of x
            that returns these.
        groups: the group of every entry of y, whole numbers from 0 shaped like y; -1 stands for
            entries that are not penalised.
    """

    def __init__(self, weights: Weights, groups: PyTree):
        self._build(group=weights, groups=groups)


class SparseGroup(Term):
    r"""$\sum_j a_j |y_j| + \sum_G b_G \|y_G\|$: the sparse group lasso.

    Arguments:
        l1: the numbers a >= 0, given like the weights of `L1`.
        group: the numbers b >= 0, given like the weights of `GroupL2`.
        groups: the group of every entry of y, as for `GroupL2`.
    """

    def __init__(self, l1: Weights, group: Weights, groups: PyTree):
        self._build(l1=l1, group=group, groups=groups)
