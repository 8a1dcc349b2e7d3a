"""The workloads' functions in PyTorch, written as a PyTorch user would."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from .worker import once

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@once
def functions(family: str, data: dict[str, np.ndarray]) -> tuple[Function, Function]:
    """The outer and the inner function, both of (x, y)."""
    if family == "counter-example":
        return _outer_counter, _inner_counter
    if family == "ridge":
        tensors = {name: torch.from_numpy(data[name]) for name in ("A", "b", "A_val", "b_val")}
        return (
            lambda x, y: 0.5 * torch.mean((tensors["A_val"] @ y - tensors["b_val"]) ** 2),
            lambda x, y: (
                0.5 * torch.mean((tensors["A"] @ y - tensors["b"]) ** 2)
                + 2 * torch.sum(torch.sigmoid(x) * y**2)
            ),
        )
    if family == "logistic":
        train, validation = _design(data, "A"), _design(data, "A_val")
        labels, held = torch.from_numpy(data["b"]), torch.from_numpy(data["b_val"])
        return (
            lambda x, y: F.cross_entropy(validation @ y, held),
            lambda x, y: F.cross_entropy(train @ y, labels) + 0.5 * torch.mean(torch.exp(x) * y**2),
        )
    if family == "cleaning":
        train, validation = _design(data, "A"), _design(data, "A_val")
        labels, held = torch.from_numpy(data["b"]), torch.from_numpy(data["b_val"])

        def inner(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            losses = F.cross_entropy(train @ y, labels, reduction="none")
            return torch.mean(torch.sigmoid(x) * losses) + 5e-4 * torch.sum(y**2)

        return lambda x, y: F.cross_entropy(validation @ y, held), inner
    raise ValueError(f"no functions for {family!r}")


def _outer_counter(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.sum((x - y[1]) ** 2) + 0.5 * torch.sum((y[0] - 1) ** 2)


def _inner_counter(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.sum(y[0] ** 2) - torch.sum(x * y[0])


def _design(data: dict[str, np.ndarray], name: str) -> torch.Tensor:
    """The design matrix, dense or sparse."""
    if name in data:
        return torch.from_numpy(data[name])
    rows, columns, values = (data[f"{name}.{part}"] for part in ("rows", "columns", "values"))
    index = torch.from_numpy(np.stack([rows, columns]).astype(np.int64))
    size = tuple(int(n) for n in data[f"{name}.shape"])
    return torch.sparse_coo_tensor(index, torch.from_numpy(values), size).coalesce()


def start(data: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh x and y, both with gradients."""
    x, y = torch.from_numpy(data["x0"].copy()), torch.from_numpy(data["y0"].copy())
    return x.requires_grad_(), y.requires_grad_()


def optimiser(kind: str, parameters: list[torch.Tensor], step: float) -> torch.optim.Optimizer:
    """The outer optimiser."""
    return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind](parameters, lr=step)
