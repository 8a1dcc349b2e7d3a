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
        self.every = range(structure.num_leaves)

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """What `Gradients` holds, flat, from x, y, step, smoothing, indices and a start, if any."""
        total, device = len(self.every), self.f.sides[0].device
        step, smoothing = map(float, arrays[total : total + 2])
        rest = arrays[total + 2 :]
        of_f, of_g, start = (
            rest[: self.rows],
            rest[self.rows : 2 * self.rows],
            rest[2 * self.rows :],
        )
        with LOCK:
            point = [tensor_of(a, device).requires_grad_() for a in arrays[:total]]
            with blamed(self.g):
                g, slopes = self._at(self.g, point, of_g, self.every)
                x = [leaf.detach() for leaf in point[: self.count]]
                known = None if start else slopes[self.count :]
                begin = [tensor_of(a, device) for a in start] or point[self.count :]
                y = self._descended(x, begin, known, of_g, step, step * smoothing)
                for leaf in x:
                    leaf.requires_grad_()
                least, of_x = self._at(self.g, [*x, *y], of_g, range(self.count))
            with blamed(self.f):
                _, own = self._at(self.f, point, of_f, self.every)
            out = [g, *slopes, *y, least, *of_x, *own]
            return [leaf.detach().cpu().numpy() for leaf in out]

    def _at(
        self, function: TorchFunction, point: Tensors, rows: Sequence, wanted: Sequence[int]
    ) -> tuple[torch.Tensor, Tensors]:
        """A value, and the gradient by some leaves."""
        value = function.value(self.structure, point, rows)
        return value, gradient(value, point, wanted, False)

    def _descended(
        self, x: Tensors, begin: Tensors, known: Tensors | None, rows: Sequence, step: float,
        decay: float,
    ) -> Tensors:  # fmt: skip
        """y after the inner steps; the slope at their start may be known."""
        y, wanted = [leaf.detach().clone() for leaf in begin], self.every[self.count :]
        for _ in range(self.steps):
            for leaf in y:
                leaf.requires_grad_()
            slopes = known or self._at(self.g, [*x, *y], rows, wanted)[1]
            known = None
            with torch.no_grad():
                torch._foreach_add_(y, y, alpha=-decay)  # type: ignore  # faster than a product
                torch._foreach_add_(y, slopes, alpha=-step)  # type: ignore
        return [leaf.detach() for leaf in y]


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
