"""The inner problem at a fixed x, by products: faces of Y, linear solves on them, the adjoint."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .krylov import EPS, Preconditioner, Product, Solved, conjugate_residuals, norm
from .oracle import Oracle, Values, Vector

MOST_PRODUCTS = 400  # per linear solve, until one needs more
MOST_NEGATIVE = 8  # steps of negative curvature after which the inner problem is not convex
MOST_DENSE = 1500  # the largest y for which a dense preconditioner may be built
ROUNDED = 16 * EPS  # a residual below this part of (curvature times |y|) is rounding
TIE = 1e-9  # part of |y| by which f's gradient decides on which face a degenerate y lies


class Anchor(NamedTuple):
    """Where the preconditioner was built, so that it can be built again: see `Face`."""

    x: Vector
    y: Vector
    at: Vector
    unit: np.float64
    built: np.bool_


class Memory(NamedTuple):
    """What the inner solves learn from each other.

    Attributes:
        top: the largest curvature of g in y met by the last solve without preconditioner.
        bent: by how much the last Newton step missed its prediction, relatively; at most one.
        spent: products since the preconditioner was built.
        negative: steps of negative curvature so far.
        most: products that a linear solve may take.
        anchor: where the preconditioner was built; its vectors are empty if there cannot be one.
    """

    top: np.float64
    bent: np.float64
    spent: np.int64
    negative: np.int64
    most: np.int64
    anchor: Anchor


def no_memory(nx: int, ny: int) -> Memory:
    """What is known before the first inner solve."""
    most = np.int64(min(2 * ny + 20, MOST_PRODUCTS))
    nx, ny = (nx, ny) if ny <= MOST_DENSE else (0, 0)
    empty = np.zeros(ny)
    anchor = Anchor(np.zeros(nx), empty, empty, np.float64(0), np.bool_(False))
    return Memory(np.float64(0), np.float64(0), np.int64(0), np.int64(0), most, anchor)


class Face(NamedTuple):
    """The face of Y that a projected gradient step reaches from y.

    Attributes:
        at: the point whose projection that is.
        unit: the length of the step, in multiples of the gradient.
        move: the step.
        residual: its length over `unit`: the size of the projected gradient.
        turn: the derivative of the projection, times a direction; onto the face if it is flat.
        flat: whether applying `turn` twice is the same as once.
    """

    at: Vector
    unit: float
    move: Vector
    residual: float
    turn: Callable[[Vector], Vector]
    flat: bool


class Inner:
    """Linear solves with the second derivatives of g, with a memory of the solves before."""

    def __init__(self, oracle: Oracle):
        self.oracle = oracle
        self.top, self.bent, self.spent, self.negative = 0.0, 0.0, 0, 0
        *_, most, self.anchor = no_memory(oracle.nx, oracle.ny)
        self.most = int(most)
        self._preconditioner: Preconditioner | None = None

    @property
    def memory(self) -> Memory:
        """What later solves depend on."""
        counts = np.int64(self.spent), np.int64(self.negative), np.int64(self.most)
        return Memory(np.float64(self.top), np.float64(self.bent), *counts, self.anchor)

    def recall(self, memory: Memory) -> None:
        """Carry on from a memory."""
        self.top, self.bent = float(memory.top), float(memory.bent)
        self.spent, self.negative = int(memory.spent), int(memory.negative)
        self.most = int(memory.most)
        if all(map(np.array_equal, memory.anchor, self.anchor)):
            return
        self.anchor = memory.anchor
        self._preconditioner = self._built(memory.anchor) if memory.anchor.built else None

    @property
    def nonconvex(self) -> bool:
        """Whether there was too much negative curvature."""
        return self.negative > MOST_NEGATIVE

    def prepare(self, x: Vector, y: Vector, e: Values) -> None:
        """Measure the curvature of g if faces depend on it and it is not known."""
        if self.top == 0 and not self.oracle.free_y and e.g_y.any():
            self.top = norm(self.oracle.curved(x, y, e.g_y)) / norm(e.g_y)

    def face(self, y: Vector, e: Values) -> Face:
        """The face of Y at y."""
        oracle = self.oracle
        if oracle.free_y:
            return Face(y, 1.0, -e.g_y, norm(e.g_y), lambda w: w, True)
        slope = norm(e.g_y)
        unit = 1 / self.top if self.top > 0 else (norm(y) or 1.0) / (slope or 1.0)
        step = y - unit * e.g_y
        move = oracle.project_y(step) - y
        pull = norm(e.f_y)
        length = max(norm(y), unit * slope) or 1.0
        at = step - (TIE * length / pull if pull > 0 else 0.0) * e.f_y
        once = oracle.turn_y(at, e.f_y)
        flat = norm(oracle.turn_y(at, once) - once) <= ROUNDED * pull
        return Face(at, unit, move, norm(move) / unit, lambda w: oracle.turn_y(at, w), flat)

    def product(self, x: Vector, y: Vector, face: Face, crossed: bool) -> Product:
        """The second derivatives of g on a face times a direction; g_xy times it if `crossed`."""
        oracle, turn = self.oracle, face.turn

        def product(w: Vector) -> tuple[Vector | float, Vector]:
            along = turn(w)
            if crossed:
                cross, curved = oracle.product(x, y, along)
            else:
                cross, curved = 0.0, oracle.curved(x, y, along)
            curved = turn(curved)
            return cross, curved if face.flat else curved + (along - turn(along)) / face.unit

        return product

    def solve(
        self,
        point: tuple[Vector, Vector],
        face: Face,
        b: Vector,
        start: Vector | None,
        accuracy: float,
        strict: bool,
        crossed: bool = False,
    ) -> Solved:
        """Solve with the second derivatives of g; build a preconditioner if that is slow.

        `crossed` is whether g_xy times the solution is wanted, too.
        """
        product, tool = self.product(*point, face, crossed), self._preconditioner
        solve = conjugate_residuals if tool is None else tool.solve
        found = solve(product, b, start, accuracy, self.most, strict)
        self.top = found.top or self.top
        self.spent += found.products
        self.negative += found.negative
        if found.products == self.most and not found.null:
            self.most = min(2 * self.most, 2 * b.size + 20)
        few, share = (15, 0.5) if tool is None else (25, 1.0)
        slow = found.products > max(b.size / 10, few) and self.spent > share * b.size
        if slow and b.size <= MOST_DENSE and not strict:
            self.anchor = Anchor(*point, face.at, np.float64(face.unit), np.bool_(True))
            self._preconditioner = self._built(self.anchor)
            self.spent = 0
        return found

    def _built(self, anchor: Anchor) -> Preconditioner:
        turn = lambda w: self.oracle.turn_y(anchor.at, w)  # noqa: E731
        along = np.stack([turn(row) for row in np.eye(anchor.y.size)])
        _, curved = self.oracle.products(anchor.x, anchor.y, along)
        matrix = np.stack([turn(column) for column in curved.T])
        if not self.oracle.free_y:
            matrix += (along - np.stack([turn(row) for row in along])) / anchor.unit
        return Preconditioner(matrix)

    def adjoint(
        self,
        x: Vector,
        y: Vector,
        e: Values,
        start: Vector | None,
        accuracy: float,
        strict: bool = False,
    ) -> tuple[Vector, Vector]:
        """The adjoint v and the reduced gradient, its x part and its part in flat directions of y.

        v is the least-squares solution of g_yy v = -f_y on the face of y. The residual is what f
        gains along the inner minima; implicit gradients miss it.
        """
        face = self.face(y, e)
        b = -face.turn(e.f_y)
        found = self.solve((x, y), face, b, start, accuracy, strict, crossed=True)
        v, r = found.v, found.residual
        flat = np.zeros_like(r)
        if found.null and norm(r) > ROUNDED * norm(b):
            v = v - (v @ r) / (r @ r) * r
            flat = -face.turn(r)
        return face.turn(v), np.concatenate([e.f_x + found.cross, flat])
