# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch need not be installed where types are checked.
"""f, g and their derivatives on flat vectors in double precision, with no JAX in between.

The exact path runs on the host: there PyTorch is asked directly. The graph of the gradient of g is
kept at its last point, so that each of many products there is one backward pass.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jaxtyping import PyTree

from ._functions import LOCK, TorchFunction, blamed, gradient

Vector = np.ndarray


class Direct:
    """The two functions for the exact path.

    Arguments:
        functions: f and g.
        x, y: a point, for the shapes.
    """

    def __init__(self, functions: tuple[TorchFunction, TorchFunction], x: PyTree, y: PyTree):
        self.f, self.g = functions
        leaves, self.structure = jax.tree.flatten((x, y))
        self.shapes = [np.shape(leaf) for leaf in leaves]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.count = self.structure.children()[0].num_leaves  # leaves of x
        self._slope: tuple[tuple[Vector, ...], list, Any] | None = None
        self._bent: tuple[tuple[Vector, ...], list, Any] | None = None

    def values(self, z: Vector) -> Vector:
        """f, g and their gradients in one vector."""
        numbers, slopes = [], []
        for function in (self.f, self.g):
            with LOCK, blamed(function):
                point = self._point(z)
                value = function.value(self.structure, point, ())
                numbers.append([value.item()])
                slopes.append(_flat(gradient(value, point, range(len(point)), False)))
        return np.concatenate([*numbers, *slopes])

    def product(self, x: Vector, y: Vector, w: Vector) -> Vector:
        """The second derivatives of g, g_xy and g_yy, times a direction in y."""
        with LOCK, blamed(self.g):
            if not _is_at(self._slope, (x, y)):
                point = self._point(np.concatenate([x, y]))
                self._slope = ((x, y), point, self._slope_of_g(point))
            _, point, slope = self._slope  # type: ignore
            return _along(slope, point, self._parts(w, self.count))

    def bend(self, x: Vector, y: Vector, v: Vector, w: Vector) -> Vector:
        """The second derivatives of the Lagrangian f + <v, g_y> times a direction in (x, y)."""
        with LOCK, blamed(self.g):
            if not _is_at(self._bent, (x, y, v)):
                point = self._point(np.concatenate([x, y]))
                scalar = self.f.value(self.structure, point, ())
                for slope, part in zip(
                    self._slope_of_g(point), self._parts(v, self.count), strict=True
                ):
                    scalar = scalar + (slope * part).sum()
                slopes = gradient(scalar, point, range(len(point)), True)
                self._bent = ((x, y, v), point, slopes)
            _, point, slopes = self._bent  # type: ignore
            return _along(slopes, point, self._parts(w, 0))

    def _slope_of_g(self, point: list[torch.Tensor]) -> list[torch.Tensor]:
        value = self.g.value(self.structure, point, ())
        return gradient(value, point, range(self.count, len(point)), True)

    def _point(self, z: Vector) -> list[torch.Tensor]:
        return [leaf.requires_grad_() for leaf in self._parts(z, 0)]

    def _parts(self, flat: Vector, first: int) -> list[torch.Tensor]:
        """A flat vector as the leaves from one on."""
        tensor = torch.from_numpy(np.ascontiguousarray(flat)).to(self.f.sides[0].device)
        parts = tensor.split(self.sizes[first:])
        return [p.view(shape) for p, shape in zip(parts, self.shapes[first:], strict=True)]


def _is_at(kept: tuple | None, point: tuple[Vector, ...]) -> bool:
    return kept is not None and all(a is b for a, b in zip(kept[0], point, strict=True))


def _along(
    slopes: list[torch.Tensor], point: list[torch.Tensor], direction: list[torch.Tensor]
) -> Vector:
    """The derivative of slopes along a direction, whose graph is kept."""
    pairs = [(s, w) for s, w in zip(slopes, direction, strict=True) if s.requires_grad]
    found: Sequence[torch.Tensor | None] = [None] * len(point)
    if pairs:
        found = torch.autograd.grad(
            [s for s, _ in pairs], point, [w for _, w in pairs],
            retain_graph=True, allow_unused=True,
        )  # fmt: skip
    zeros = (torch.zeros_like(p) if a is None else a for a, p in zip(found, point, strict=True))
    return _flat(list(zeros))


def _flat(leaves: Sequence[torch.Tensor]) -> Vector:
    """Leaves as one vector."""
    return torch.cat([leaf.detach().reshape(-1) for leaf in leaves]).cpu().numpy()
