"""How f and g see the data of a problem: whole, in mini-batches, or as one batch drawn."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

if TYPE_CHECKING:
    from ._batches import Source

EVERY = 100  # steps between two records
INNER_EFFORT = 2000
"""The most gradients of g spent on the inner value of a certificate."""


class DataView(eqx.Module):
    """What the rest of the library needs from data of any kind."""

    in_batches: ClassVar[bool] = False
    """Whether every step sees another mini-batch."""

    @abc.abstractmethod
    def value_f(self, f: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """The value of the outer function."""

    @abc.abstractmethod
    def value_g(self, g: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """The value of the inner function."""

    @property
    def sources(self) -> "list[Source]":
        """The sources that fetch examples from outside of memory."""
        return []

    @property
    def whole(self) -> bool:
        """Whether every mini-batch holds all examples."""
        return False

    @property
    def blocks(self) -> tuple[int, int]:
        """How many fixed batches the examples of f and of g are cut into."""
        return 1, 1

    @property
    def block(self) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Which of the fixed batches of f and of g these are."""
        return jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)

    @property
    def everything(self) -> "DataView":
        """All of the data, of which this may be a batch."""
        return self

    def pooled(self) -> "DataView":
        """All of the data in every step."""
        return self

    def parts(self, most: int) -> int:
        """How many parts the examples of f can be cut into."""
        return 1

    def parts_of_f(
        self, f: Callable[..., Array], x: PyTree, y: PyTree, most: int
    ) -> Float[Array, " parts"]:
        """The value of the outer function on each of these parts."""
        return self.value_f(f, x, y)[None]

    def effort(self) -> int:
        """The most gradients of g to spend on the inner value of a final certificate."""
        return INNER_EFFORT

    def effort_at_record(self, every: int | Int[Array, ""]) -> Int[Array, ""]:
        """The same for the certificate of a record; records are `every` steps apart."""
        return jnp.clip(every // 2, 20, 500)

    def every(self) -> int:
        """The steps between two records, unless the user says otherwise."""
        return EVERY

    def effort_of_estimate(self, every: int | Int[Array, ""]) -> Int[Array, ""]:
        """The most gradients of g, and products with its second derivatives, for a record."""
        return jnp.clip(every // 20, 5, 50)

    def check(self, f: Callable, g: Callable, x: PyTree, y: PyTree) -> None:
        """Raise a ProblemError if the functions do not suit this kind of data."""


class Whole(DataView):
    """All of the data at once, or no data."""

    data: PyTree

    def value_f(self, f: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """f(x, y), or f(x, y, data)."""
        return f(x, y) if self.data is None else f(x, y, self.data)

    def value_g(self, g: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """g(x, y), or g(x, y, data)."""
        return g(x, y) if self.data is None else g(x, y, self.data)
