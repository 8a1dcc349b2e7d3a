"""How f and g see the data of a problem: whole, in mini-batches, or as one batch drawn."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

INNER_EFFORT = 2000
"""The most gradients of g spent on the inner value of a certificate."""


class DataView(eqx.Module):
    """What the rest of the library asks of data, whatever its kind."""

    in_batches: ClassVar[bool] = False
    """Whether every step sees a mini-batch of its own."""

    @abc.abstractmethod
    def value_f(self, f: Callable, x: PyTree, y: PyTree) -> Array:
        """The value of the outer function."""

    @abc.abstractmethod
    def value_g(self, g: Callable, x: PyTree, y: PyTree) -> Array:
        """The value of the inner function."""

    @property
    def sources(self) -> list[Any]:
        """The sources that fetch examples from outside of memory."""
        return []

    def effort(self) -> int:
        """The gradients of g that the inner value of a final certificate is worth."""
        return INNER_EFFORT

    def effort_at_record(self, every: Any) -> Any:
        """The gradients of g that an inner value is worth at a record, `every` steps apart."""
        return jnp.clip(every // 2, 20, 500)

    def check(self, f: Callable, g: Callable, x: PyTree, y: PyTree) -> None:
        """Raise a ProblemError if the functions do not suit this kind of data."""


class Whole(DataView):
    """All of the data at once, or none."""

    data: PyTree

    def value_f(self, f: Callable, x: PyTree, y: PyTree) -> Array:
        """f(x, y), or f(x, y, data)."""
        return f(x, y) if self.data is None else f(x, y, self.data)

    def value_g(self, g: Callable, x: PyTree, y: PyTree) -> Array:
        """g(x, y), or g(x, y, data)."""
        return g(x, y) if self.data is None else g(x, y, self.data)
