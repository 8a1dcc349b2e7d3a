# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch need not be installed where types are checked.
"""f and g in PyTorch: values and derivatives by autograd, on the buffers that JAX hands over."""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jaxtyping import Array, Float, PyTree

from .._errors import ProblemError
from ._derivatives import Leaves, value_of
from ._sides import Side

Reader = Callable[[Sequence[np.ndarray], torch.dtype, torch.device], tuple]

Slot = tuple[dict[str, Any], str]  # where a module keeps a parameter, and under which name

LOCK = threading.Lock()  # XLA may ask for f and g at once, and a module holds one point at a time

with warnings.catch_warnings():  # PyTorch says once that it may not write to what JAX hands over
    warnings.simplefilter("ignore")
    torch.from_numpy(np.broadcast_to(np.zeros(1, np.float32), (1,)))

# once 16 MB were freed glibc keeps that much: else gradients go back to the system at every step
torch.empty(2**24, dtype=torch.uint8)


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
        self.checked: set[tuple] = set()  # points, by structure and shapes, it was checked at
        self._slots = _slots(sides)
        self._trained = [[self._slots[f"{s.name}.{n}"] for n in s.names] for s in sides]
        self._constants: dict[torch.dtype, list[tuple[Slot, torch.Tensor]]] = {}

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
        data = self.read(indices, z[0].dtype, z[0].device)
        return self.at(self.call, structure, z, data)

    def at(self, call: Callable, structure: Any, z: list[torch.Tensor], data: tuple = ()) -> Any:
        """What a function of the user's returns at a point given as tensors."""
        with self.placed(structure, z) as given:
            return call(*given, *data)

    @contextlib.contextmanager
    def placed(self, structure: Any, z: list[torch.Tensor]) -> Iterator[list]:
        """x and y as the user's functions take them; modules hold the tensors of the point."""
        halves = structure.children()
        count = halves[0].num_leaves
        given, slots, tensors = [], [], []
        for side, half, part, own in zip(
            self.sides, halves, (z[:count], z[count:]), self._trained, strict=True
        ):
            given.append(half.unflatten(part) if side.module is None else side.module)
            if side.module is not None:
                slots += own
                tensors += part
        for slot, tensor in self._fixed(z[0].dtype) if slots else ():
            slots.append(slot)
            tensors.append(tensor)
        before = [held[key] for held, key in slots]
        try:  # as `torch.func.functional_call` does, but faster
            for (held, key), tensor in zip(slots, tensors, strict=True):
                held[key] = tensor
            yield given
        finally:
            for (held, key), tensor in zip(slots, before, strict=True):
                held[key] = tensor

    def _fixed(self, dtype: torch.dtype) -> list[tuple[Slot, torch.Tensor]]:
        """Buffers and frozen parameters in the precision of a point, if they have another."""
        if dtype not in self._constants:
            unknown = {f"{side.name}.{name}" for side in self.sides for name in side.names}
            fixed = [(held, key) for n, (held, key) in self._slots.items() if n not in unknown]
            self._constants[dtype] = [
                ((held, key), held[key].to(dtype))
                for held, key in fixed
                if held[key].is_floating_point() and held[key].dtype != dtype
            ]
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
        with LOCK, blamed(self.function):
            device = self.function.sides[0].device
            point = [tensor_of(leaf, device) for leaf in z]
            needed = {*wanted, *(i for way in directions for i in way)}
            with torch.set_grad_enabled(bool(needed)):
                for i in needed:
                    point[i].requires_grad_()
                scalar = self.function.value(self.structure, point, indices)
                out = [scalar.detach()] if value else []
                for way in directions:
                    slopes = gradient(scalar, [point[i] for i in way], again=True)
                    turned = [
                        (s * tensor_of(v, device)).sum()
                        for s, v in zip(slopes, way.values(), strict=True)
                    ]
                    scalar = sum(turned[1:], turned[0])
                if wanted:
                    out += gradient(scalar, [point[i] for i in wanted])
            return [leaf.numpy() if leaf.is_cpu else leaf.cpu().numpy() for leaf in out]


@contextlib.contextmanager
def blamed(function: TorchFunction) -> Iterator[None]:
    """Keep an error for the sentence that the user reads."""
    try:
        yield
    except Exception as error:
        function.error = error
        raise


def gradient(
    scalar: torch.Tensor, leaves: list[torch.Tensor], again: bool = False
) -> list[torch.Tensor]:
    """The gradient by some leaves, zeros where the scalar does not depend on them."""
    if not scalar.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(scalar, leaves, create_graph=again, allow_unused=True)
    return [
        torch.zeros_like(leaf) if part is None else part
        for part, leaf in zip(found, leaves, strict=True)
    ]


def tensor_of(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The memory of an array on the CPU, a copy of it elsewhere."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)


def _slots(sides: tuple[Side, Side]) -> dict[str, Slot]:
    """Where the modules among x and y keep each of their parameters and buffers."""
    found = {}
    for side in sides:
        for path, layer in side.module.named_modules() if side.module is not None else ():
            prefix = f"{side.name}.{path}." if path else f"{side.name}."
            for held in (layer._parameters, layer._buffers):
                found |= {prefix + key: (held, key) for key, v in held.items() if v is not None}
    return found
