# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch need not be installed where types are checked.
"""x and y as PyTorch has them: tensors, containers of tensors, or modules."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import torch
from jaxtyping import PyTree

from .._checks import kind
from .._errors import ProblemError

REAL = (torch.float32, torch.float64)


class Side:
    """What x or y is to the user's functions, and its entries as arrays.

    Arguments:
        name: "x" or "y".
        given: a start: a tensor, a container of tensors or a module.

    Attributes:
        module: the module, if it is one: its trainable parameters are the unknowns.
        device, dtype: those of all its tensors.
    """

    def __init__(self, name: str, given: PyTree):
        self.name = name
        self.module = given if isinstance(given, torch.nn.Module) else None
        tensors = _named(name, given)
        first, start = next(iter(tensors.items()))
        for where, tensor in tensors.items():
            if tensor.dtype not in REAL:
                raise ProblemError(
                    f"{where} has dtype {_plain(tensor.dtype)}, but x and y must be float32 or "
                    "float64 tensors."
                )
            if tensor.device != start.device:
                raise ProblemError(
                    f"x and y must be on one device, but {first} is on {start.device} and {where} "
                    f"on {tensor.device}: move them with .to(device)."
                )
            if tensor.dtype != start.dtype:
                raise ProblemError(
                    f"x and y must share one dtype, but {first} is {_plain(start.dtype)} and "
                    f"{where} is {_plain(tensor.dtype)}."
                )
        self.device, self.dtype, self.first = start.device, start.dtype, first
        self.names = tuple(sorted(unknowns(self.module))) if self.module is not None else ()

    @property
    def key(self) -> tuple:
        """Equal for starts that one pair of functions serves."""
        return id(self.module) if self.module is not None else None, self.device, self.dtype

    def arrays(self, given: PyTree) -> PyTree:
        """A start as a pytree of NumPy arrays."""
        tree = unknowns(given) if isinstance(given, torch.nn.Module) else given
        return jax.tree.map(_array, tree)

    def tensors(self, arrays: PyTree) -> PyTree:
        """An answer as tensors of the dtype and on the device of the start."""

        def one(leaf: Any) -> torch.Tensor:
            return torch.tensor(np.asarray(leaf), dtype=self.dtype, device=self.device)

        return jax.tree.map(one, arrays)

    def fits(self, given: object) -> bool:
        """Whether a value has the parameters of this side's module, by name."""
        return self.module is not None and isinstance(given, dict) and set(given) == set(self.names)


def unknowns(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a module that are trained."""
    return {n: p for n, p in module.named_parameters() if p.requires_grad}


def _array(leaf: Any) -> Any:
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _named(name: str, given: PyTree) -> dict[str, torch.Tensor]:
    """The tensors of a start, by where they are."""
    if isinstance(given, torch.nn.Module):
        found = {f"{name}0.{n}": p for n, p in unknowns(given).items()}
        if not found:
            raise ProblemError(
                f"{name}0 is a module without trainable parameters: check requires_grad."
            )
        every = given.named_parameters(remove_duplicate=False)
        refuse_shared((f"{name}0.{n}", p) for n, p in every)
        return found
    leaves = jax.tree_util.tree_leaves_with_path(given)
    found = {name + "0" + jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    for where, leaf in found.items():
        if isinstance(leaf, torch.nn.Module):
            raise ProblemError(
                f"{where} is a module inside a container: make one module of them, such as a "
                "torch.nn.ModuleDict."
            )
        if not isinstance(leaf, torch.Tensor):
            raise ProblemError(
                f"{where} must be a torch tensor, got {kind(leaf)}: use torch.tensor(...)."
            )
    if not sum(leaf.numel() for leaf in found.values()):
        raise ProblemError(f"{name}0 has no entries: it must be a tensor, a container or a module.")
    return found


def refuse_shared(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise a ProblemError if one parameter has two names."""
    seen: dict[int, str] = {}
    for where, tensor in tensors:
        if not tensor.requires_grad:
            continue
        other = seen.setdefault(id(tensor), where)
        if other != where:
            raise ProblemError(
                f"{other} and {where} are one shared parameter: give it one name, and use it twice "
                "in forward."
            )


def check_pair(x: Side, y: Side) -> None:
    """Raise a ProblemError if x and y do not go together."""
    for what, a, b in (("device", x.device, y.device), ("dtype", x.dtype, y.dtype)):
        if a != b:
            on = "on " if what == "device" else ""
            a, b = (str(v).removeprefix("torch.") for v in (a, b))
            raise ProblemError(
                f"x and y must share one {what}, but {x.first} is {on}{a} and {y.first} {on}{b}: "
                "move them with .to(...)."
            )
    parts = [(s.name, s.module) for s in (x, y) if s.module is not None]
    refuse_shared((f"{name}0.{k}", p) for name, m in parts for k, p in m.named_parameters())
