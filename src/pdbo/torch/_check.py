# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch need not be installed where types are checked.
"""One look at f and g at the start: a sentence if they cannot be used as they are."""

from collections.abc import Sequence
from typing import Any

import torch

from .._checks import kind
from .._errors import ProblemError, brief, line_of
from ._functions import TorchFunction
from ._sides import Side

_NORMS = torch.nn.modules.batchnorm._NormBase
_DROPS = torch.nn.modules.dropout._DropoutNd


def check_layers(side: Side) -> None:
    """Refuse layers that make every call another function."""
    if side.module is None:
        return
    for name, layer in side.module.named_modules():
        where = f"{side.name}0.{name}" if name else f"{side.name}0"
        if isinstance(layer, _DROPS) and layer.training and layer.p > 0:
            raise ProblemError(
                f"{where} is a {type(layer).__name__} in training mode, so f and g would be random "
                "and have no certificate: call .eval() on the module, or regularise by a term in g."
            )
        if isinstance(layer, _NORMS) and layer.training and layer.track_running_stats:
            raise ProblemError(
                f"{where} is a {type(layer).__name__} in training mode, whose buffers change with "
                "every call: call .eval() on the module, or use LayerNorm or GroupNorm."
            )


def check_functions(
    functions: Sequence[TorchFunction], structure: Any, z: list[torch.Tensor], indices: list
) -> None:
    """Raise a ProblemError unless f and g are scalar functions of x and y that do not change."""
    count = structure.children()[0].num_leaves
    reached: set[bool] = set()
    for function, rows in zip(functions, indices, strict=True):
        point = [leaf.detach().clone().requires_grad_() for leaf in z]
        value = _evaluated(function, structure, point, rows)
        name = function.name
        if not isinstance(value, torch.Tensor) or value.ndim != 0:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
            got = kind(value) if shape is None else f"shape {shape}: use .mean() or .sum()"
            raise ProblemError(f"{name} must return a scalar tensor, got {got}.")
        if value.dtype != z[0].dtype:
            raise ProblemError(
                f"{name} returns {value.dtype} for {z[0].dtype} x and y: data or constants in it "
                "have another dtype."
            )
        found = [None] * len(z)
        if value.requires_grad:
            found = torch.autograd.grad(value, point, allow_unused=True)
        depends = [
            any(part is not None for part in half) for half in (found[:count], found[count:])
        ]
        reached |= {depends[0]}
        if not depends[1]:
            raise ProblemError(
                f"{name} does not depend on y: look for .detach(), .item() or torch.no_grad()."
            )
        function.single = _single(function, structure, z, rows)
        function.checked.add((structure, tuple(leaf.shape for leaf in z)))
    if True not in reached:
        raise ProblemError(
            "neither f nor g depends on x: look for .detach(), .item() or torch.no_grad() in them."
        )


def _evaluated(function: TorchFunction, structure: Any, point: list, rows: list) -> Any:
    """The value, after a look at what the call changed."""
    random = _random_state(point[0].device)
    before = [leaf.detach().clone() for leaf in point]
    try:
        with torch.enable_grad():
            value = function.value(structure, point, rows)
    except ProblemError:
        raise
    except Exception as error:
        raise ProblemError(
            f"{function.name} cannot be evaluated at (x0, y0): {brief(error)}{line_of(error)}."
        ) from error
    if any(
        not torch.equal(a, b) for a, b in zip(random, _random_state(point[0].device), strict=True)
    ):
        raise ProblemError(
            f"{function.name} draws random numbers, so it is another function at every call: draw "
            "them once, before the problem is made, or call .eval() on the module."
        )
    if not all(torch.equal(a, b) for a, b in zip(before, point, strict=True)):
        raise ProblemError(f"{function.name} changes x or y in place: work on a copy, x.clone().")
    return value


def _single(function: TorchFunction, structure: Any, z: list[torch.Tensor], rows: list) -> str:
    """Why a function cannot be evaluated in double; empty if it can."""
    if z[0].dtype == torch.float64:
        return ""
    try:
        with torch.no_grad():
            value = function.value(structure, [leaf.detach().double() for leaf in z], rows)
        if value.dtype == torch.float64:
            return ""
        reason = f"it returns {str(value.dtype).removeprefix('torch.')}"
    except Exception as error:
        reason = brief(error)
    return (
        f"{function.name} cannot be evaluated in double ({reason}): hand tensors over as data, not "
        "by closure."
    )


def _random_state(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states
