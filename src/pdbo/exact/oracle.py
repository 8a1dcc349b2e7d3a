"""f, g and their derivatives on flat NumPy vectors: a few small compiled programs.

Compiling a whole method costs seconds and running it on a small problem milliseconds. So the exact
path compiles these programs only, and does the rest in NumPy.
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import SingleDeviceSharding
from jaxtyping import Float, PyTree

from .._checks import traced
from .._problem import Problem
from ..sets import Box, Free, NonNegative, Set
from .points import kronecker

if TYPE_CHECKING:
    from .prox import Kinks

MOST_Y, MOST_X = 500, 500  # the most entries of y and x
FEW_NUMBERS = 10**6  # in x, y and data together: up to here the CPU is faster than a GPU
MOST_NUMBERS = 10**7  # in x, y and data together
MOST_WORK = 2 * 10**8  # the most numbers of data that one matrix of second derivatives may read

Vector = Float[np.ndarray, " n"]


class Shapes:
    """How a flat vector is cut into the leaves of a pytree; hashable."""

    def __init__(self, tree: PyTree):
        leaves, self.structure = jax.tree.flatten(tree)
        self.shapes = tuple(np.shape(leaf) for leaf in leaves)
        self.size = sum(int(np.prod(shape)) for shape in self.shapes)
        self._key = (self.structure, self.shapes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shapes) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def tree(self, flat: Array | np.ndarray) -> PyTree:
        """The pytree of a flat vector."""
        leaves, start = [], 0
        for shape in self.shapes:
            count = int(np.prod(shape))
            leaves.append(flat[start : start + count].reshape(shape))
            start += count
        return jax.tree.unflatten(self.structure, leaves)


class Program:
    """What the compiled programs of a problem are made from, without its arrays; hashable."""

    def __init__(self, problem: Problem, x: PyTree, y: PyTree):
        leaves, self.structure = jax.tree.flatten(problem)
        self.is_array = tuple(eqx.is_array(leaf) for leaf in leaves)
        self.constants = tuple(v for v, a in zip(leaves, self.is_array, strict=True) if not a)
        self.x, self.y = Shapes(x), Shapes(y)
        self._key = (self.structure, self.is_array, self.constants, self.x, self.y)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Program) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def problem(self, arrays: tuple[Array, ...]) -> Problem:
        """The problem with these arrays."""
        rest, given = iter(self.constants), iter(arrays)
        leaves = [next(given) if a else next(rest) for a in self.is_array]
        return jax.tree.unflatten(self.structure, leaves)

    def side(self, which: str, arrays: tuple[Array, ...]) -> tuple[Set, Shapes]:
        """The set and the shapes of x or y."""
        problem = self.problem(arrays)
        return (problem.x_set, self.x) if which == "x" else (problem.y_set, self.y)

    def split(self, z: Array) -> tuple[PyTree, PyTree]:
        """x and y of a flat z."""
        return self.x.tree(z[: self.x.size]), self.y.tree(z[self.x.size :])


def _flat(tree: PyTree) -> Array:
    return ravel_pytree(tree)[0]


@functools.partial(jax.jit, static_argnums=0)
def _evaluate(program: Program, arrays: tuple[Array, ...], z: Array) -> Array:
    """f, g and their gradients in one array: one transfer."""
    problem, (x, y) = program.problem(arrays), program.split(z)
    f, grad_f = jax.value_and_grad(problem.outer, (0, 1))(x, y)
    g, grad_g = jax.value_and_grad(problem.inner, (0, 1))(x, y)
    return _flat((f, g, grad_f, grad_g))


@functools.partial(jax.jit, static_argnums=0)
def _product(program: Program, arrays: tuple[Array, ...], z: Array, w: Array) -> Array:
    """The second derivatives of g, g_xy and g_yy, times a direction in y."""
    problem, (x, y) = program.problem(arrays), program.split(z)
    gradient = functools.partial(jax.grad(problem.inner, (0, 1)), x)
    return _flat(jax.jvp(gradient, (y,), (program.y.tree(w),))[1])


@functools.partial(jax.jit, static_argnums=0)
def _bend(program: Program, arrays: tuple[Array, ...], z: Array, v: Array, w: Array) -> Array:
    """The second derivatives of the Lagrangian f + <v, g_y> times a direction in (x, y)."""
    problem, direction = program.problem(arrays), program.y.tree(v)

    def lagrangian(z: Array) -> Array:
        x, y = program.split(z)
        slope = jax.jvp(functools.partial(problem.inner, x), (y,), (direction,))[1]
        return problem.outer(x, y) + slope

    return jax.jvp(jax.grad(lagrangian), (z,), (w,))[1]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _weights(program: Program, slopes: bool, arrays: tuple[Array, ...], x: Array) -> Array:
    """The weights of the kinks of the inner term at x, of entries and groups, or their slopes."""
    term, y = program.problem(arrays).inner_term, program.y.tree(np.zeros(program.y.size))
    assert term is not None

    def weights(x: Array) -> Array:
        parts = term.parts(program.x.tree(x), y)
        return jnp.concatenate([parts.l1, parts.group])

    return jax.jacfwd(weights)(x) if slopes else weights(x)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _project(
    program: Program, which: str, arrays: tuple[Array, ...], u: Array, w: Array
) -> tuple[Array, Array]:
    """The projection of u onto X or Y, and the derivative of the projection there times w."""
    constraint, shapes = program.side(which, arrays)
    return jax.jvp(lambda flat: _flat(constraint.project(shapes.tree(flat))), (u,), (w,))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _around(
    program: Program, which: str, arrays: tuple[Array, ...], z: Array, index: Array, radius: Array
) -> Array:
    """A point of X or Y: anywhere in a bounded set, else around z; the same for the same index."""
    constraint, shapes = program.side(which, arrays)
    return _flat(constraint.hashed_point(index, shapes.tree(z), radius))


_KINKED = {
    "abs", "argmax", "argmin", "clamp", "max", "min", "reduce_max", "reduce_min", "select_n",
    "sign", "sort", "sqrt", "top_k",
}  # fmt: skip


def _has_kinks(jaxpr: Any) -> bool:
    """Whether a program holds an operation with kinks, but for those whose derivative is given."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in _KINKED:
            return True
        if not name.startswith("custom_") and any(
            _has_kinks(getattr(part, "jaxpr", part))
            for part in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
            if _is_program(part)
        ):
            return True
    return False


def _is_program(value: object) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


@functools.lru_cache(maxsize=64)
def _may_have_kinks(program: Program, shapes: tuple[jax.ShapeDtypeStruct, ...]) -> bool:
    def inner(arrays: tuple[Array, ...], z: Array) -> Array:
        return program.problem(arrays).inner(*program.split(z))

    z = jax.ShapeDtypeStruct((program.x.size + program.y.size,), np.float64)
    return _has_kinks(jax.make_jaxpr(inner)(shapes, z).jaxpr)


def _place(numbers: PyTree) -> SingleDeviceSharding | None:
    """The CPU for few numbers: a GPU would mostly wait for the host. None is JAX's own choice."""
    few = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(numbers)) <= FEW_NUMBERS
    if not few or jax.default_backend() == "cpu":
        return None
    return SingleDeviceSharding(jax.devices("cpu")[0])


SMALL, LARGE = "small", "large"


def fits(problem: Problem, x: PyTree, y: PyTree) -> str:
    """Which exact path a problem is for: `SMALL`, `LARGE` or, empty, neither.

    The small one has matrices of second derivatives, the large one products with them.
    """
    if problem.mesh is not None or problem.view.in_batches or traced(problem, x, y):
        return ""
    nx, ny, data = (
        sum(int(np.size(leaf)) for leaf in jax.tree.leaves(z)) for z in (x, y, problem.data)
    )
    if nx == 0 or ny == 0 or nx + ny + data > MOST_NUMBERS:
        return ""
    return SMALL if nx <= MOST_X and ny <= MOST_Y and (nx + ny) * data <= MOST_WORK else LARGE


class Values(NamedTuple):
    """f, g and their gradients at a point."""

    f: float
    g: float
    f_x: Vector
    f_y: Vector
    g_x: Vector
    g_y: Vector

    @property
    def finite(self) -> bool:
        """Whether all of them are finite."""
        total = self.f + self.g + self.f_x.sum() + self.f_y.sum() + self.g_x.sum() + self.g_y.sum()
        return bool(np.isfinite(total)) or all(np.all(np.isfinite(part)) for part in self)


class Calls:
    """How often the oracles were called."""

    def __init__(self, values: int = 0, products: int = 0):
        self.values, self.products = values, products


class Oracle:
    """A problem on flat NumPy vectors in double precision, in a session that has it.

    Arguments:
        problem: the problem, in double precision.
        x, y: a point of it, for the shapes.

    Attributes:
        nx, ny: the sizes of x and y.
        free_x, free_y: whether their sets are the whole space, and no term has kinks in it.
        has_term: whether the inner problem has a nonsmooth term.
        calls: how often it was asked.
    """

    def __init__(self, problem: Problem, x: PyTree, y: PyTree):
        self._program = Program(problem, x, y)
        arrays = tuple(v for v in jax.tree.leaves(problem) if eqx.is_array(v))
        self._place = _place((x, y, arrays))
        self._arrays = arrays if self._place is None else jax.device_put(arrays, self._place)
        self.nx, self.ny = self._program.x.size, self._program.y.size
        self.free_x = isinstance(problem.x_set, Free)
        self.has_term = problem.inner_term is not None
        self._plain_y = isinstance(problem.y_set, Free)
        self.free_y = self._plain_y and not self.has_term
        self.boxed_x = isinstance(problem.x_set, Box | NonNegative)
        self.boxed_y = isinstance(problem.y_set, Box | NonNegative) and not self.has_term
        self.problem, self.calls = problem, Calls()
        self._direct = problem.direct(x, y)
        self._last: tuple[Vector, Vector, Array] | None = None
        self._kinks: tuple[Vector, Kinks] | None = None

    @functools.cached_property
    def may_have_kinks(self) -> bool:
        """Whether g is made with operations that have kinks, such as abs."""
        shapes = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self._arrays)
        return _may_have_kinks(self._program, tuple(shapes))

    @functools.cached_property
    def bounded_y(self) -> bool:
        """Whether Y is bounded."""
        y = self._program.y.tree(np.zeros(self.ny))
        return not self.free_y and bool(np.isfinite(self.problem.y_set.diameter(y)))

    def flat(self, x: PyTree, y: PyTree) -> tuple[Vector, Vector]:
        """A point as two flat vectors."""
        return tuple(
            np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(z)])
            for z in (x, y)
        )  # type: ignore

    def trees(self, x: Vector, y: Vector) -> tuple[PyTree, PyTree]:
        """Two flat vectors as a point."""
        return self._program.x.tree(x), self._program.y.tree(y)

    def _at(self, x: Vector, y: Vector) -> Array:
        """(x, y) on the device, kept for the products that follow."""
        if self._last is None or self._last[0] is not x or self._last[1] is not y:
            self._last = (x, y, jax.device_put(np.concatenate([x, y]), self._place))
        return self._last[2]

    def _sent(self, z: Vector) -> Vector | Array:
        """A vector for one call: JAX sends it fastest itself if the place is its own choice."""
        return z if self._place is None else jax.device_put(z, self._place)

    def values(self, x: Vector, y: Vector) -> Values:
        """f, g and their gradients."""
        self.calls.values += 1
        z = np.concatenate([x, y])
        if self._direct is None:
            out = np.asarray(_evaluate(self._program, self._arrays, self._sent(z)))
        else:
            out = self._direct.values(z)
        nx, n = self.nx, self.nx + self.ny
        cuts = (out[2 : 2 + nx], out[2 + nx : 2 + n], out[2 + n : 2 + n + nx], out[2 + n + nx :])
        return Values(float(out[0]), float(out[1]), *cuts)

    def product(self, x: Vector, y: Vector, w: Vector) -> tuple[Vector, Vector]:
        """g_xy w and g_yy w."""
        self.calls.products += 1
        if self._direct is None:
            out = np.asarray(_product(self._program, self._arrays, self._at(x, y), w))
        else:
            out = self._direct.product(x, y, w)
        return out[: self.nx], out[self.nx :]

    def bend(self, x: Vector, y: Vector, v: Vector, w: Vector) -> Vector:
        """The second derivatives of f + <v, g_y> in (x, y), times w."""
        self.calls.products += 1
        if self._direct is not None:
            return self._direct.bend(x, y, v, w)
        return np.asarray(_bend(self._program, self._arrays, self._at(x, y), v, w))

    def project_x(self, u: Vector) -> Vector:
        """The nearest point of X."""
        return u if self.free_x else np.asarray(self._projected("x", u, u)[0])

    def project_y(self, u: Vector) -> Vector:
        """The nearest point of Y."""
        return u if self._plain_y else np.asarray(self._projected("y", u, u)[0])

    @functools.cached_property
    def _bounds_y(self) -> tuple[Vector, Vector]:
        """The bounds of Y, if it is a box."""
        return tuple(self.project_y(np.full(self.ny, end)) for end in (-np.inf, np.inf))  # type: ignore

    def kinks(self, x: Vector) -> "Kinks":
        """The nonsmooth term at x."""
        if self._kinks is None or self._kinks[0] is not x:
            from .prox import Kinks  # most problems have no term

            term = self.problem.inner_term
            assert term is not None
            l1, group = np.split(self._weights(x, False), [self.ny])
            labels = None if term.labels is None else np.asarray(term.labels)
            self._kinks = (x, Kinks(l1, group, labels, *self._bounds_y))
        return self._kinks[1]

    def _weights(self, x: Vector, slopes: bool) -> np.ndarray:
        return np.asarray(_weights(self._program, slopes, self._arrays, self._sent(x)))

    def weights(self, x: Vector) -> tuple[Vector, np.ndarray]:
        """The weights of the term's kinks, of entries and then groups, and their derivatives."""
        return self._weights(x, False), self._weights(x, True)

    def turn_x(self, u: Vector, w: Vector) -> Vector:
        """The derivative of the projection onto X at u, times w."""
        return w if self.free_x else np.asarray(self._projected("x", u, w)[1])

    def turn_y(self, u: Vector, w: Vector) -> Vector:
        """The derivative of the projection onto Y at u, times w."""
        return w if self.free_y else np.asarray(self._projected("y", u, w)[1])

    def around_x(self, x: Vector, index: int, radius: float) -> Vector:
        """A point of X within a radius of x, anywhere in X if that is bounded."""
        return self._point("x", self.free_x, x, index, radius)

    def around_y(self, y: Vector, index: int, radius: float) -> Vector:
        """A point of Y within a radius of y, anywhere in Y if that is bounded."""
        return self._point("y", self._plain_y, y, index, radius)

    def _point(self, which: str, free: bool, z: Vector, index: int, radius: float) -> Vector:
        if free:
            return z + radius * (2 * kronecker(index + 1, np.full(z.size, 0.5))[-1] - 1)
        number, far = np.uint32(index), np.float64(radius)
        sent = self._sent(z)
        return np.asarray(_around(self._program, which, self._arrays, sent, number, far))

    def _projected(self, which: str, u: Vector, w: Vector) -> tuple[Array, Array]:
        return _project(self._program, which, self._arrays, self._sent(u), w)
