"""f and g in PyTorch: values and derivatives by autograd, on the buffers that JAX hands over."""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from jaxtyping import Array, Float, PyTree

from .._errors import ProblemError
from ._derivatives import Leaves, value_of
from ._sides import Side, unknowns

Reader = Callable[[Sequence[np.ndarray], torch.dtype, torch.device], tuple]

_LOCK = threading.Lock()  # XLA may ask for f and g at once, and a module holds one point at a time

with warnings.catch_warnings():  # PyTorch says once that it may not write to what JAX hands over
    warnings.simplefilter("ignore")
    torch.from_numpy(np.broadcast_to(np.zeros(1, np.float32), (1,)))


class TorchFunction:
    """One of the two functions for one kind of x and y; JAX differentiates it.

    Arguments:
        name: "f" or "g".
        call: the user's function.
        read: returns the data as the last arguments of the call: nothing, or one.
        sides: what x and y are.
    """

    def __init__(self, name: str, call: Callable, read: Reader, sides: tuple[Side, Side]):
        self.name, self.call, self.read, self.sides = name, call, read, sides
        self.error: Exception | None = None
        self.single = ""  # why it cannot be evaluated in double, if it cannot
        self._shell = _Shell(*(side.module for side in sides))
        self._constants: dict[torch.dtype, dict[str, torch.Tensor]] = {}

    @property
    def blame(self) -> str:
        """What is said if it fails during a run."""
        return f"{self.name} or one of its derivatives cannot be evaluated"

    def __call__(self, x: PyTree, y: PyTree, *indices: Array) -> Float[Array, ""]:
        """The value, in JAX."""
        leaves, structure = jax.tree.flatten((x, y))
        if self.single and leaves[0].dtype == np.float64:
            raise ProblemError(self.single)
        return value_of(_At(self, structure), leaves, indices)

    def value(
        self, structure: Any, z: list[torch.Tensor], indices: Sequence[np.ndarray]
    ) -> torch.Tensor:
        """The value, in PyTorch."""
        x, y = jax.tree.unflatten(structure, z)
        return self.at(self.call, x, y, self.read(indices, z[0].dtype, z[0].device))

    def at(self, call: Callable, x: PyTree, y: PyTree, data: tuple = ()) -> Any:
        """What a function of the user's returns at a point given as tensors."""
        if not self._shell.named:
            return call(x, y, *data)
        parts = dict(self._fixed(jax.tree.leaves((x, y))[0].dtype))
        for side, point in zip(self.sides, (x, y), strict=True):
            if side.module is not None:
                parts |= {f"{side.name}.{name}": point[name] for name in side.names}
        return torch.func.functional_call(
            self._shell, parts, (call, x, y, data), tie_weights=False
        )

    def _fixed(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Buffers and frozen parameters in the precision of a point, if they have another."""
        if dtype not in self._constants:
            self._constants[dtype] = {
                name: tensor.to(dtype)
                for name, tensor in self._shell.fixed()
                if tensor.is_floating_point() and tensor.dtype != dtype
            }
        return self._constants[dtype]


class _At:
    """A function at points of one structure; equal for equal ones."""

    def __init__(self, function: TorchFunction, structure: Any):
        self.function, self.structure = function, structure

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _At)
            and self.function is other.function
            and self.structure == other.structure
        )

    def __hash__(self) -> int:
        return hash((id(self.function), self.structure))

    def derivative(
        self,
        z: Sequence[np.ndarray],
        indices: Sequence[np.ndarray],
        directions: Sequence[dict[int, np.ndarray]],
        wanted: Leaves,
        value: bool,
    ) -> Sequence[np.ndarray]:
        """See `_derivatives.Function`."""
        with _LOCK:
            try:
                return self._derivative(z, indices, directions, wanted, value)
            except Exception as error:
                self.function.error = error
                raise

    def _derivative(
        self,
        z: Sequence[np.ndarray],
        indices: Sequence[np.ndarray],
        directions: Sequence[dict[int, np.ndarray]],
        wanted: Leaves,
        value: bool,
    ) -> Sequence[np.ndarray]:
        device = self.function.sides[0].device
        point = [_tensor(leaf, device) for leaf in z]
        needed = {*wanted, *(i for way in directions for i in way)}
        with torch.set_grad_enabled(bool(needed)):
            for i in needed:
                point[i].requires_grad_()
            scalar = self.function.value(self.structure, point, indices)
            out = [scalar.detach()] if value else []
            for way in directions:
                slopes = _gradient(scalar, point, tuple(way), True)
                turned = [(s * _tensor(v, device)).sum() for s, v in zip(slopes, way.values())]
                scalar = sum(turned[1:], turned[0])
            if wanted:
                out += _gradient(scalar, point, wanted, False)
        return [leaf.detach().cpu().numpy() for leaf in out]


def _gradient(
    scalar: torch.Tensor, point: list[torch.Tensor], wanted: Leaves, again: bool
) -> list[torch.Tensor]:
    """The gradient by some leaves, zeros where the scalar does not depend on them."""
    leaves = [point[i] for i in wanted]
    if not scalar.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(scalar, leaves, create_graph=again, allow_unused=True)
    return [
        torch.zeros_like(leaf) if part is None else part
        for part, leaf in zip(found, leaves, strict=True)
    ]


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The memory of an array on the CPU, a copy of it elsewhere."""
    return torch.from_numpy(array).to(device)


class _Shell(torch.nn.Module):
    """The modules among x and y as parts of one, so that one call sets both."""

    def __init__(self, x: torch.nn.Module | None, y: torch.nn.Module | None):
        super().__init__()
        self.named = [name for name, part in (("x", x), ("y", y)) if part is not None]
        for name, part in (("x", x), ("y", y)):
            if part is not None:
                self.add_module(name, part)

    def forward(self, call: Callable, x: Any, y: Any, data: tuple) -> torch.Tensor:
        """The user's function, with the modules in place of their parameters."""
        parts = self._modules
        return call(parts.get("x", x), parts.get("y", y), *data)

    def fixed(self) -> list[tuple[str, torch.Tensor]]:
        """Buffers and frozen parameters."""
        trained = unknowns(self)
        frozen = [(n, p) for n, p in self.named_parameters() if n not in trained]
        return [*frozen, *self.named_buffers()]
