# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch need not be installed where types are checked.
"""f, g and their derivatives on flat vectors in double precision, with no JAX in between.

The exact path runs on the host: there PyTorch is asked directly. The gradient of g is computed with
its graph, which is kept at the last point, so that each of many products there is one backward
pass.
"""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
import torch
from jaxtyping import PyTree

from ._functions import LOCK, TorchFunction, blamed, gradient

MOST_AT_ONCE = 64  # products in one backward pass
FEWEST_AT_ONCE = 8  # fewer are faster one by one

Vector = np.ndarray
Tensors = list[torch.Tensor]


class _Kept(NamedTuple):
    """A graph that products go through, and where it was made."""

    at: tuple[Vector, ...]
    point: Tensors
    slopes: Tensors

    def is_at(self, at: tuple[Vector, ...]) -> bool:
        """Whether it was made here."""
        return all(a is b or np.array_equal(a, b) for a, b in zip(self.at, at, strict=True))


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
        self.device = self.f.sides[0].device
        self.batched = True  # until PyTorch says that it cannot
        self._slope: _Kept | None = None
        self._bent: _Kept | None = None
        self._values: tuple[_Kept, Vector] | None = None

    def serves(self, functions: tuple, x: PyTree, y: PyTree) -> bool:
        """Whether it is for these functions and points of these shapes."""
        leaves, structure = jax.tree.flatten((x, y))
        same = functions[0] is self.f and functions[1] is self.g
        return same and structure == self.structure and [np.shape(v) for v in leaves] == self.shapes

    def values(self, x: Vector, y: Vector) -> Vector:
        """f, g and their gradients in one vector."""
        if self._values is not None and self._values[0].is_at((x, y)):
            return self._values[1]
        point, f, of_f = self._of_f(x, y)
        g, of_g = self._of_g((x, y), point)
        out = _flat([f, g, *of_f, *of_g])
        assert self._slope is not None
        self._values = (self._slope, out)
        return out

    def outer_values(self, x: Vector, y: Vector) -> Vector:
        """f and its gradient in one vector."""
        _, f, slopes = self._of_f(x, y)
        return _flat([f, *slopes])

    def inner_values(self, x: Vector, y: Vector) -> Vector:
        """g and its gradient in one vector."""
        g, slopes = self._of_g((x, y), self._point(x, y))
        return _flat([g, *slopes])

    def _of_f(self, x: Vector, y: Vector) -> tuple[Tensors, torch.Tensor, Tensors]:
        """The point, f and its gradient."""
        point = self._point(x, y)
        with LOCK, blamed(self.f):
            f = self.f.value(self.structure, point, ())
            return point, f, gradient(f, point)

    def _of_g(self, at: tuple[Vector, Vector], point: Tensors) -> tuple[torch.Tensor, Tensors]:
        """g and its gradient, whose part in y keeps its graph."""
        self.forget()
        with LOCK, blamed(self.g):
            g = self.g.value(self.structure, point, ())
            slopes = gradient(g, point, again=True)
        self._slope = _Kept(at, point, slopes[self.count :])
        return g, slopes

    def forget(self) -> None:
        """Free the graphs."""
        self._slope = self._bent = self._values = None

    def product(self, x: Vector, y: Vector, w: Vector) -> tuple[Vector, Vector]:
        """The second derivatives of g, g_xy and g_yy, times a direction in y."""
        with LOCK, blamed(self.g):
            kept = self._slope_at(x, y)
            out = _along(kept.slopes, kept.point, self._parts(w, self.count))
            return _flat(out[: self.count]), _flat(out[self.count :])

    def curved(self, x: Vector, y: Vector, w: Vector) -> Vector:
        """The second derivatives g_yy alone, times a direction in y."""
        with LOCK, blamed(self.g):
            kept = self._slope_at(x, y)
            return _flat(_along(kept.slopes, kept.point[self.count :], self._parts(w, self.count)))

    def products(self, x: Vector, y: Vector, rows: Vector) -> Vector:
        """g_xy and g_yy times every row, one after the other in the rows of the answer."""
        with LOCK, blamed(self.g):
            kept = self._slope_at(x, y)
            return self._rows(kept, rows, self.count)

    def bend(self, x: Vector, y: Vector, v: Vector, w: Vector) -> Vector:
        """The second derivatives of the Lagrangian f + <v, g_y> times a direction in (x, y)."""
        with LOCK, blamed(self.g):
            kept = self._bent_at(x, y, v)
            return _flat(_along(kept.slopes, kept.point, self._parts(w, 0)))

    def bends(self, x: Vector, y: Vector, v: Vector, rows: Vector) -> Vector:
        """The second derivatives of f + <v, g_y> times every row."""
        with LOCK, blamed(self.g):
            return self._rows(self._bent_at(x, y, v), rows, 0)

    def _rows(self, kept: _Kept, rows: Vector, first: int) -> Vector:
        """The derivatives of slopes along every row of a matrix, several in one backward pass."""
        found = []
        for start in range(0, len(rows), MOST_AT_ONCE):
            part = rows[start : start + MOST_AT_ONCE]
            at_once = self._at_once(kept, part, first) if len(part) >= FEWEST_AT_ONCE else None
            if at_once is None:
                ways = (self._parts(row, first) for row in part)
                at_once = np.stack([_flat(_along(kept.slopes, kept.point, w)) for w in ways])
            found.append(at_once)
        return np.concatenate(found)

    def _at_once(self, kept: _Kept, rows: Vector, first: int) -> Vector | None:
        """The derivatives along some rows in one backward pass; None if PyTorch cannot do that."""
        if not self.batched:
            return None
        try:
            with warnings.catch_warnings():  # it says so if it does one after the other
                warnings.simplefilter("error")
                out = _along(kept.slopes, kept.point, self._parts(rows, first), batched=True)
        except Exception:  # whatever a layer has no rule for
            self.batched = False
            return None
        return torch.cat([leaf.reshape(len(rows), -1) for leaf in out], 1).cpu().numpy()

    def _slope_at(self, x: Vector, y: Vector) -> _Kept:
        """The gradient of g in y with its graph."""
        if self._slope is None or not self._slope.is_at((x, y)):
            self.forget()
            point = self._point(x, y)
            self._slope = _Kept((x, y), point, self._slope_of_g(point))
        return self._slope

    def _bent_at(self, x: Vector, y: Vector, v: Vector) -> _Kept:
        """The gradient of f + <v, g_y> with its graph."""
        if self._bent is None or not self._bent.is_at((x, y, v)):
            self._bent = None
            point = self._point(x, y)
            scalar = self.f.value(self.structure, point, ())
            parts = self._parts(v, self.count)
            for slope, part in zip(self._slope_of_g(point), parts, strict=True):
                scalar = scalar + (slope * part).sum()
            slopes = gradient(scalar, point, again=True)
            self._bent = _Kept((x, y, v), point, slopes)
        return self._bent

    def _slope_of_g(self, point: Tensors) -> Tensors:
        value = self.g.value(self.structure, point, ())
        return gradient(value, point[self.count :], again=True)

    def _point(self, x: Vector, y: Vector) -> Tensors:
        return [leaf.requires_grad_() for leaf in self._parts(np.concatenate([x, y]), 0)]

    def _parts(self, flat: Vector, first: int) -> Tensors:
        """A flat vector, or the rows of a matrix, as the leaves from one on."""
        tensor = torch.from_numpy(np.ascontiguousarray(flat)).to(self.device)
        sizes, shapes, rows = self.sizes[first:], self.shapes[first:], flat.shape[:-1]
        parts = tensor.split(sizes, -1) if len(sizes) > 1 else (tensor,)
        return [p.reshape((*rows, *shape)) for p, shape in zip(parts, shapes, strict=True)]


def _along(slopes: Tensors, point: Tensors, direction: Tensors, batched: bool = False) -> Tensors:
    """The derivative of slopes along a direction, or a batch of them, whose graph is kept."""
    pairs = [(s, w) for s, w in zip(slopes, direction, strict=True) if s.requires_grad]
    found: Sequence[torch.Tensor | None] = [None] * len(point)
    if pairs:
        found = torch.autograd.grad(
            [s for s, _ in pairs], point, [w for _, w in pairs],
            retain_graph=True, allow_unused=True, is_grads_batched=batched,
        )  # fmt: skip
    rows = (len(direction[0]),) if batched else ()
    return [
        p.new_zeros((*rows, *p.shape)) if a is None else a
        for a, p in zip(found, point, strict=True)
    ]


def _flat(leaves: Sequence[torch.Tensor]) -> Vector:
    """Leaves as one vector."""
    parts = [leaf.detach().reshape(-1) for leaf in leaves]
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).cpu().numpy()
