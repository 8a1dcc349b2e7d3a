"""f, g and their derivatives on flat NumPy vectors: a few small compiled programs.

Compiling a whole method costs seconds and running it on a small problem milliseconds. So the exact
path compiles these programs only, and does the rest in NumPy.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

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
from .._programs import FEW, QUICK, quickly
from ..sets import Box, Free, NonNegative, Set
from .degree import degree
from .points import kronecker

if TYPE_CHECKING:
    from .prox import Kinks

MOST_Y, MOST_X = 500, 500  # the most entries of y and x
FEW_NUMBERS = 10**6  # in x, y and data together: up to here the CPU is faster than a GPU
MOST_NUMBERS = 10**7  # in x, y and data together
MOST_WORK = 2 * 10**8  # the most numbers of data that one matrix of second derivatives may read

MEDIUM = 10**5  # numbers in all up to which programs that do not run often are compiled quickly

MOST_ROWS = 128  # directions that go through a program at once ...
MOST_AT_ONCE = 2 * 10**7  # ... and numbers of x, y and data times directions

T = TypeVar("T")
Vector = Float[np.ndarray, " n"]
Matrix = Float[np.ndarray, "m n"]


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
        self.numbers = self.x.size + self.y.size + sum(map(np.size, filter(eqx.is_array, leaves)))
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

    def split(self, z: Array | np.ndarray) -> tuple[PyTree, PyTree]:
        """x and y of a flat z."""
        return self.x.tree(z[: self.x.size]), self.y.tree(z[self.x.size :])


def _flat(tree: PyTree) -> Array:
    return ravel_pytree(tree)[0]


class Counted(Protocol):
    """What says how many numbers there are, so that it decides how to compile; hashable."""

    numbers: int


class Compiled:
    """A function of a program and arrays, compiled: quickly if the arrays hold few numbers.

    Arguments:
        function: the function.
        most: the most numbers for that. Quickly compiled, a long loop takes up to a third longer.
        static: how many of the first arguments are no arrays.
        options: how it is compiled quickly.
    """

    def __init__(
        self, function: Callable[..., Any], most: int = FEW, static: int = 1,
        options: dict[str, Any] = QUICK,
    ):  # fmt: skip
        self.most, fixed = most, tuple(range(static))
        self._plain = jax.jit(function, static_argnums=fixed)
        self._quick = jax.jit(function, static_argnums=fixed, compiler_options=options)

    def __call__(self, program: Counted, *args: Any) -> Any:
        """The value of the function."""
        if program.numbers > self.most or jax.default_backend() != "cpu":
            return self._plain(program, *args)
        return quickly(self._quick, self._plain, program, *args)


@functools.partial(Compiled, most=MEDIUM)
def _evaluate(program: Program, arrays: tuple[Array, ...], z: Array) -> Array:
    """f, g and their gradients in one array: one transfer."""
    problem, (x, y) = program.problem(arrays), program.split(z)
    f, grad_f = jax.value_and_grad(problem.outer, (0, 1))(x, y)
    g, grad_g = jax.value_and_grad(problem.inner, (0, 1))(x, y)
    return _flat((f, g, grad_f, grad_g))


def _one_product(program: Program, arrays: tuple[Array, ...], z: Array, w: Array) -> Array:
    """The second derivatives of g, g_xy and g_yy, times a direction in y."""
    problem, (x, y) = program.problem(arrays), program.split(z)
    gradient = functools.partial(jax.grad(problem.inner, (0, 1)), x)
    return _flat(jax.jvp(gradient, (y,), (program.y.tree(w),))[1])


_product = Compiled(_one_product)


@functools.partial(Compiled, most=MEDIUM)
def _products(program: Program, arrays: tuple[Array, ...], z: Array, rows: Array) -> Array:
    """The same for several directions at once, each a row."""
    return jax.vmap(lambda w: _one_product(program, arrays, z, w))(rows)


@functools.partial(Compiled, most=MEDIUM)
def _bends(program: Program, arrays: tuple[Array, ...], z: Array, v: Array, rows: Array) -> Array:
    """The second derivatives of the Lagrangian f + <v, g_y> times directions in (x, y), as rows."""
    problem, direction = program.problem(arrays), program.y.tree(v)

    def lagrangian(z: Array) -> Array:
        x, y = program.split(z)
        slope = jax.jvp(functools.partial(problem.inner, x), (y,), (direction,))[1]
        return problem.outer(x, y) + slope

    return jax.vmap(lambda w: jax.jvp(jax.grad(lagrangian), (z,), (w,))[1])(rows)


@functools.partial(Compiled, static=2)
def _weights(program: Program, slopes: bool, arrays: tuple[Array, ...], x: Array) -> Array:
    """The weights of the kinks of the inner term at x, of entries and groups, or their slopes."""
    term, y = program.problem(arrays).inner_term, program.y.tree(np.zeros(program.y.size))
    assert term is not None

    def weights(x: Array) -> Array:
        parts = term.parts(program.x.tree(x), y)
        return jnp.concatenate([parts.l1, parts.group])

    return jax.jacfwd(weights)(x) if slopes else weights(x)


@functools.partial(Compiled, static=2)
def _project(
    program: Program, which: str, arrays: tuple[Array, ...], u: Array, w: Array
) -> tuple[Array, Array]:
    """The projection of u onto X or Y, and the derivative of the projection there times w."""
    constraint, shapes = program.side(which, arrays)
    return jax.jvp(lambda flat: _flat(constraint.project(shapes.tree(flat))), (u,), (w,))


@functools.partial(Compiled, static=2)
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
def _read(program: Program, which: str, shapes: tuple[jax.ShapeDtypeStruct, ...]) -> Any:
    """The program of f ("outer") or g ("inner") before it is compiled; x and y come last."""

    def function(arrays: tuple[Array, ...], x: Array, y: Array) -> Array:
        point = program.x.tree(x), program.y.tree(y)
        return getattr(program.problem(arrays), which)(*point)

    x, y = (jax.ShapeDtypeStruct((n,), np.float64) for n in (program.x.size, program.y.size))
    return jax.make_jaxpr(function)(shapes, x, y).jaxpr


@functools.lru_cache(maxsize=64)
def _degrees(program: Program, shapes: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[float, float]:
    """The degree of g as a polynomial in y, and that of f and g in (x, y); infinite if unknown."""
    constant = [0.0] * len(shapes)
    f, g = (_read(program, which, shapes) for which in ("outer", "inner"))
    whole = [*constant, 1.0, 1.0]
    return degree(g, [*constant, 0.0, 1.0]), max(degree(f, whole), degree(g, whole))


def _place(numbers: PyTree) -> SingleDeviceSharding | None:
    """The CPU for few numbers: a GPU would mostly wait for the host. None is JAX's own choice."""
    few = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(numbers)) <= FEW_NUMBERS
    if not few or jax.default_backend() == "cpu":
        return None
    return SingleDeviceSharding(jax.devices("cpu")[0])


def _inside(u: Vector, lo: Vector, hi: Vector) -> Vector:
    """The derivative of the projection onto a box by entries: as JAX has it, 1/2 at a bound."""
    return np.heaviside(u - lo, 0.5) * np.heaviside(hi - u, 0.5)


SMALL, LARGE = "small", "large"


def fits(problem: Problem, x: PyTree, y: PyTree) -> str:
    """Which exact path a problem is for: `SMALL`, `LARGE` or, empty, neither.

    The small one has matrices of second derivatives, the large one products with them.
    """
    if problem.mesh is not None or problem.in_batches or traced(problem, x, y):
        return ""
    nx, ny, data = (
        sum(int(np.size(leaf)) for leaf in jax.tree.leaves(z)) for z in (x, y, problem.data)
    )
    if nx == 0 or ny == 0 or nx + ny + data > MOST_NUMBERS:
        return ""
    return SMALL if nx <= MOST_X and ny <= MOST_Y and (nx + ny) * data <= MOST_WORK else LARGE


NOTHING = np.zeros(0)
"""In place of a gradient that was not computed."""


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


def _is_same(a: object, b: object) -> bool:
    if a is b:
        return True
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)


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
        self._y_set, self._term, self.calls = problem.y_set, problem.inner_term, Calls()
        self._direct = problem.direct(x, y)
        self._last: tuple[Vector, Vector, Array | Vector] | None = None
        self._seen: tuple[Vector, Values] | None = None  # the last small point, and what is there
        self._constant: dict[str, tuple[Matrix, Any]] = {}  # second derivatives that do not change
        self._made: dict[str, tuple[tuple[Any, ...], Any]] = {}  # what was made last; see `once`
        self._kinks: tuple[Vector, Kinks] | None = None

    @functools.cached_property
    def may_have_kinks(self) -> bool:
        """Whether g is made with operations that have kinks, such as abs."""
        return _has_kinks(_read(self._program, "inner", self._shapes))

    @functools.cached_property
    def quadratic_g(self) -> bool:
        """Whether g is quadratic in y and Y is the whole space: an inner minimum is global."""
        free = self.free_y and self._direct is None
        return free and _degrees(self._program, self._shapes)[0] <= 2

    @functools.cached_property
    def quadratic(self) -> bool:
        """Whether f is quadratic along inner minima, too, without bounds: a minimum is global."""
        free = self.free_x and self.quadratic_g
        return free and _degrees(self._program, self._shapes)[1] <= 2

    @functools.cached_property
    def _shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self._arrays)

    @functools.cached_property
    def bounded_y(self) -> bool:
        """Whether Y is bounded."""
        y = self._program.y.tree(np.zeros(self.ny))
        return not self.free_y and bool(np.isfinite(self._y_set.diameter(y)))

    def flat(self, x: PyTree, y: PyTree) -> tuple[Vector, Vector]:
        """A point as two flat vectors."""
        return tuple(
            np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(z)])
            for z in (x, y)
        )  # type: ignore

    def trees(self, x: Vector, y: Vector) -> tuple[PyTree, PyTree]:
        """Two flat vectors as a point."""
        return self._program.x.tree(x), self._program.y.tree(y)

    def _at(self, x: Vector, y: Vector) -> Array | Vector:
        """(x, y) on the device, kept for the products that follow."""
        if self._last is None or self._last[0] is not x or self._last[1] is not y:
            z = np.concatenate([x, y])
            # JAX sends few numbers faster with each call than on their own
            few = self._place is None and z.size <= MOST_X + MOST_Y
            self._last = (x, y, z if few else jax.device_put(z, self._place))
        return self._last[2]

    def _sent(self, z: Vector) -> Vector | Array:
        """A vector for one call: JAX sends it fastest itself if the place is its own choice."""
        return z if self._place is None else jax.device_put(z, self._place)

    def values(self, x: Vector, y: Vector) -> Values:
        """f, g and their gradients."""
        z = np.concatenate([x, y])
        if self._seen is not None and np.array_equal(self._seen[0], z):
            return self._seen[1]
        self.calls.values += 1
        if self._direct is None:
            out = np.asarray(_evaluate(self._program, self._arrays, self._sent(z)))
        else:
            out = self._direct.values(x, y)
        nx, n = self.nx, self.nx + self.ny
        cuts = (out[2 : 2 + nx], out[2 + nx : 2 + n], out[2 + n : 2 + n + nx], out[2 + n + nx :])
        values = Values(float(out[0]), float(out[1]), *cuts)
        if n <= MOST_X + MOST_Y and self._direct is None:  # PyTorch's data may change in place
            self._seen = (z, values)
        return values

    def inner_values(self, x: Vector, y: Vector) -> Values:
        """The values of g; those of f too if they come with it, or faces depend on them."""
        if self._direct is None or not self.free_y:
            return self.values(x, y)
        self.calls.values += 1
        out = self._direct.inner_values(x, y)
        return Values(
            0.0, float(out[0]), NOTHING, NOTHING, out[1 : 1 + self.nx], out[1 + self.nx :]
        )

    def completed(self, x: Vector, y: Vector, values: Values) -> Values:
        """Values with f and its gradient, if they are without."""
        if values.f_y is not NOTHING:
            return values
        assert self._direct is not None
        f, f_x, f_y = np.split(self._direct.outer_values(x, y), [1, 1 + self.nx])
        return values._replace(f=float(f[0]), f_x=f_x, f_y=f_y)

    def product(self, x: Vector, y: Vector, w: Vector) -> tuple[Vector, Vector]:
        """g_xy w and g_yy w."""
        self.calls.products += 1
        if self._direct is not None:
            return self._direct.product(x, y, w)
        out = np.asarray(_product(self._program, self._arrays, self._at(x, y), w))
        return out[: self.nx], out[self.nx :]

    def curved(self, x: Vector, y: Vector, w: Vector) -> Vector:
        """g_yy w alone."""
        if self._direct is None:
            return self.product(x, y, w)[1]
        self.calls.products += 1
        return self._direct.curved(x, y, w)

    def products(self, x: Vector, y: Vector, rows: Matrix) -> tuple[Matrix, Matrix]:
        """g_xy w and g_yy w for every row w, as columns."""
        return self._fixed("products", rows, lambda: self._products(x, y, rows))

    def _products(self, x: Vector, y: Vector, rows: Matrix) -> tuple[Matrix, Matrix]:
        self.calls.products += len(rows)
        if self._direct is None:
            z = self._at(x, y)
            out = self._by_blocks(lambda w: _products(self._program, self._arrays, z, w), rows)
        else:
            out = self._direct.products(x, y, rows)
        return out[:, : self.nx].T, out[:, self.nx :].T

    def bends(self, x: Vector, y: Vector, v: Vector, rows: Matrix) -> Matrix:
        """The second derivatives of f + <v, g_y> times every row, as columns."""
        return self._fixed("bends", rows, lambda: self._bends(x, y, v, rows))

    def _bends(self, x: Vector, y: Vector, v: Vector, rows: Matrix) -> Matrix:
        self.calls.products += len(rows)
        if self._direct is not None:
            return self._direct.bends(x, y, v, rows).T
        z, sent = self._at(x, y), self._sent(v)
        return self._by_blocks(lambda w: _bends(self._program, self._arrays, z, sent, w), rows).T

    def _fixed(self, name: str, rows: Matrix, compute: Callable[[], T]) -> T:
        """Products with rows, computed once for the same rows if f and g are quadratic."""
        if not self.quadratic:
            return compute()
        known = self._constant.get(name)
        if known is None or not np.array_equal(known[0], rows):
            known = self._constant[name] = (rows, compute())
        return known[1]

    def once(self, name: str, of: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What was made last under this name if it was made of the same things, else made now.

        Vectors are the same if their entries are, other things if they are identical.
        """
        before = self._made.get(name)
        if before is not None and self._direct is None and all(map(_is_same, before[0], of)):
            return before[1]
        made = make()
        self._made[name] = of, made
        return made

    def start_anew(self) -> None:
        """Forget what was computed, so that a run does not depend on those before it."""
        self._last = self._seen = self._kinks = None
        self._constant, self._made = {}, {}

    def _by_blocks(self, of: Callable[[Array | Matrix], Array], rows: Matrix) -> Matrix:
        """What a program gives for rows, so many at a time that it is compiled only once."""
        size = min(rows.shape[1], self._block)
        missing = -len(rows) % size
        padded = np.concatenate([rows, np.zeros((missing, rows.shape[1]))]) if missing else rows
        parts = [of(self._sent(padded[k : k + size])) for k in range(0, len(padded), size)]
        out = np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)
        return out[: len(rows)]

    @functools.cached_property
    def _block(self) -> int:
        """How many directions go through a program at once."""
        numbers = self.nx + self.ny + sum(int(np.size(a)) for a in self._arrays)
        return max(1, min(MOST_ROWS, MOST_AT_ONCE // numbers))

    def project_x(self, u: Vector) -> Vector:
        """The nearest point of X."""
        if self.boxed_x:
            return np.clip(u, *self._bounds_x)
        return u if self.free_x else np.asarray(self._projected("x", u, u)[0])

    def project_y(self, u: Vector) -> Vector:
        """The nearest point of Y."""
        if self.boxed_y:
            return np.clip(u, *self._bounds_y)
        return u if self._plain_y else np.asarray(self._projected("y", u, u)[0])

    @functools.cached_property
    def _bounds_x(self) -> tuple[Vector, Vector]:
        """The bounds of X, if it is a box."""
        return self._bounds("x", self.nx)

    @functools.cached_property
    def _bounds_y(self) -> tuple[Vector, Vector]:
        """The bounds of Y, if it is a box."""
        if self._plain_y:
            return np.full(self.ny, -np.inf), np.full(self.ny, np.inf)
        return self._bounds("y", self.ny)

    def _bounds(self, which: str, size: int) -> tuple[Vector, Vector]:
        ends = (np.full(size, end) for end in (-np.inf, np.inf))
        return tuple(np.asarray(self._projected(which, u, u)[0]) for u in ends)  # type: ignore

    def kinks(self, x: Vector) -> "Kinks":
        """The nonsmooth term at x."""
        if self._kinks is None or self._kinks[0] is not x:
            from .prox import Kinks  # most problems have no term

            term = self._term
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
        if self.boxed_x:
            return _inside(u, *self._bounds_x) * w
        return w if self.free_x else np.asarray(self._projected("x", u, w)[1])

    def turn_y(self, u: Vector, w: Vector) -> Vector:
        """The derivative of the projection onto Y at u, times w."""
        if self.boxed_y:
            return _inside(u, *self._bounds_y) * w
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
