# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch need not be installed where types are checked.
"""All gradients of one step of a first-order method in one call of the host.

A call costs as much as a pass through a small network, and on a GPU x and y travel with it. So the
inner steps are taken by PyTorch, in place, between the gradients at their two ends.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jaxtyping import Array, Float, PyTree

from .._problem import Gradients
from ._functions import LOCK, TorchFunction, blamed, gradient, tensor_of
from ._host import Shape, host_call

Tensors = list[torch.Tensor]


class Round:
    """The two functions and the inner descent between their gradients.

    Arguments:
        functions: f and g.
        structure: that of (x, y).
        steps: how many inner steps are taken.
        rows: how many numbers of examples f gets.
    """

    def __init__(self, functions: tuple[TorchFunction, ...], structure: Any, steps: int, rows: int):
        self.f, self.g = functions
        self.structure, self.steps, self.rows = structure, steps, rows
        self.count = structure.children()[0].num_leaves  # leaves of x

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """What `Gradients` holds, flat, from x, y, step, smoothing, indices and a start, if any."""
        total, device = self.structure.num_leaves, self.f.sides[0].device
        step, smoothing = map(float, arrays[total : total + 2])
        rest, n = arrays[total + 2 :], self.rows
        of_f, of_g, start = rest[:n], rest[n : 2 * n], rest[2 * n :]
        with LOCK:
            point = [tensor_of(a, device).requires_grad_() for a in arrays[:total]]
            begin = [tensor_of(a, device) for a in start] or point[self.count :]
            x = [leaf.detach() for leaf in point[: self.count]]
            y = [leaf.detach().clone().requires_grad_() for leaf in begin]
            with self.g.placed(self.structure, point) as given:
                g, slopes = _pass(self.g, given, of_g, point)
                _, own = _pass(self.f, given, of_f, point)
            with self.g.placed(self.structure, [*x, *y]) as given:
                known = None if start else slopes[self.count :]
                for _ in range(self.steps):
                    _move(y, known or _pass(self.g, given, of_g, y)[1], step, smoothing)
                    known = None
                for leaf in (*x, *y):
                    leaf.requires_grad_(not leaf.requires_grad)
                least, of_x = _pass(self.g, given, of_g, x)
            out = [g, *slopes, *y, least, *of_x, *own]
            return [leaf.numpy(force=True) for leaf in out]


def _pass(
    function: TorchFunction, given: list, rows: Sequence[np.ndarray], leaves: Tensors
) -> tuple[torch.Tensor, Tensors]:
    """A value, and the gradient by some leaves."""
    with blamed(function):
        data = function.read(rows, leaves[0].dtype, leaves[0].device)
        value = function.call(*given, *data)
        return value.detach(), gradient(value, leaves)


def _move(y: Tensors, slopes: Tensors, step: float, smoothing: float) -> None:
    """One inner step, in place."""
    with torch.no_grad():
        for leaf, slope in zip(y, slopes, strict=True):
            leaf.add_(leaf, alpha=-step * smoothing)  # faster than a product
            leaf.add_(slope, alpha=-step)


def round_of(
    functions: tuple[TorchFunction, ...],
    point: tuple[PyTree, PyTree],
    start: PyTree,
    steps: int,
    sizes: tuple[Float[Array, ""], Float[Array, ""]],
    rows: tuple[Sequence[Array], Sequence[Array]],
) -> Gradients:
    """See `Problem.gradients`."""
    leaves, structure = jax.tree.flatten(point)
    call = Round(functions, structure, steps, len(rows[0]))
    scalar = [Shape((), leaves[0].dtype)]
    every = [Shape(leaf.shape, leaf.dtype) for leaf in leaves]
    x, y = every[: call.count], every[call.count :]
    like = [*scalar, *every, *y, *scalar, *x, *every]
    begin = [] if start is None else jax.tree.leaves(start)
    out = iter(host_call(call, like, *leaves, *sizes, *rows[0], *rows[1], *begin))
    of_x, of_y = structure.children()

    def part(tree: Any) -> PyTree:
        return jax.tree.unflatten(tree, [next(out) for _ in range(tree.num_leaves)])

    g, slopes, y_hat = next(out), (part(of_x), part(of_y)), part(of_y)
    return Gradients(g, *slopes, y_hat, next(out), part(of_x), part(of_x), part(of_y))
