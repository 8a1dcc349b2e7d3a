"""Problems with closed forms, and what counts and forbids derivatives, shared by the tests."""

import collections
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pdbo


@functools.cache
def toy() -> pdbo.Problem:
    """The paper's toy problem: y[1] is invisible to g, so every inner problem has many minima."""
    return pdbo.problems.get("toy").problem


TOY_STARTS = [(2.0, (0.5, 0.5)), (0.0, (2.0, 2.0))]


def paper_pdbo(**changes: Any) -> pdbo.PDBO:
    """PDBO with the settings of the paper's toy experiment."""
    settings = dict(
        primal_step=0.2,
        dual_step=0.1,
        inner_step=0.5,
        inner_steps=5,
        extrapolation=0.0,
        smoothing=1e-4,
        multiplier0=2.0,
    )
    return pdbo.PDBO(**(settings | changes))


def iterate(problem: pdbo.Problem, solver: pdbo.Solver, x: Any, y: Any, steps: int) -> Any:
    """The solver's state after so many steps, from arrays; compiled once whatever their number."""
    return _iterate(problem, solver, x, y, jnp.asarray(steps))


@eqx.filter_jit
def _iterate(problem, solver, x, y, steps):
    state = solver.init(problem, x, y, jax.random.key(0))
    return jax.lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state)


# The home of every solver: a quadratic with one inner minimum, y = A x, and one optimum.

A = np.array([[1.0, 0.5], [-0.3, 0.8], [0.2, -0.6]])
H = np.diag([1.0, 0.8, 0.6])
TARGET = np.array([1.0, -2.0, 0.5])
X0, Y0 = np.array([0.9, -0.4]), np.array([0.3, -0.5, 0.6])
X_STAR = np.linalg.solve(A.T @ A + 0.5 * np.eye(2), A.T @ TARGET)
Y_STAR = A @ X_STAR


def home(y_set: pdbo.Set | None = None, **limit: float) -> pdbo.Problem:
    """The quadratic; f, g or the gradient of f is NaN where x is farther than a limit from X0.

    The gradients of an f or g that is NaN are those of the quadratic, so that iterates carry on.
    """
    limits = {"f": np.inf, "g": np.inf, "gradient": np.inf} | limit
    # copies: JAX remembers what it made of an array in a session with 64-bit types, or without
    data = {"A": A.copy(), "H": H.copy(), "target": TARGET.copy(), "start": X0.copy()}
    data["limit"] = {name: np.array(value) for name, value in limits.items()}
    return pdbo.Problem(home_f, home_g, data, y_set=y_set)


def home_f(x: Any, y: Any, data: Any) -> Any:
    value = 0.5 * jnp.sum((y - data["target"]) ** 2) + 0.25 * jnp.sum(x**2)
    steep = jnp.sqrt(jnp.where(_far(x, data, "gradient"), 0 * value, 1.0)) - 1
    return value + steep + jnp.where(_far(x, data, "f"), jnp.nan, 0.0)


def home_g(x: Any, y: Any, data: Any) -> Any:
    r = y - data["A"] @ x
    return 0.5 * jnp.dot(r, data["H"] @ r) + jnp.where(_far(x, data, "g"), jnp.nan, 0.0)


def _far(x, data, name):
    return jnp.sum((x - data["start"]) ** 2) > data["limit"][name] ** 2


class Known(NamedTuple):
    """A relaxed problem with its optimum and multiplier in closed form."""

    name: str
    problem: pdbo.Problem
    x: Any
    y: Any
    multiplier: float
    slack: float


def known() -> list[Known]:
    """Optima of min f s.t. g - min g <= slack, each derived in a line of algebra."""
    d = 1e-2
    r = float(np.sqrt(2 * d))
    c = np.array([3.0, -4.0])
    w = np.array([1.0, 2.0, -1.0])
    cost = np.array([0.3, -2.0, 1.0])
    vertex = np.eye(3)[np.argmin(cost + w)]
    quad = lambda x, y: 0.5 * jnp.sum((y - x) ** 2)
    return [
        # y = -r, 1 = lambda r
        Known(
            "linear",
            pdbo.Problem(lambda x, y: 0.5 * x**2 + y, lambda x, y: 0.5 * y**2),
            0.0,
            -r,
            1 / r,
            d,
        ),
        # y on the sphere of radius r towards c
        Known(
            "distance",
            pdbo.Problem(
                lambda x, y: 0.5 * (x - 1) ** 2 + 0.5 * jnp.sum((y - c) ** 2),
                lambda x, y: 0.5 * jnp.sum(y**2),
            ),
            1.0,
            c / 5 * r,
            (5 - r) / r,
            d,
        ),
        # x + y = a + b, (y - x)(1 + 2 lambda) = b - a with a = 0, b = 2
        Known(
            "coupled",
            pdbo.Problem(lambda x, y: 0.5 * x**2 + 0.5 * (y - 2) ** 2, quad),
            1 - r / 2,
            1 + r / 2,
            (2 / r - 1) / 2,
            d,
        ),
        # x pushed onto its bound: -2 + 1 < 0
        Known(
            "box",
            pdbo.Problem(
                lambda x, y: -2 * x + y, quad, x_set=pdbo.Box(0.0, 1.0), y_set=pdbo.Box(-5.0, 5.0)
            ),
            1.0,
            1.0 - r,
            1 / r,
            d,
        ),
        # x a vertex of the simplex: cost + w is smallest there
        Known(
            "simplex",
            pdbo.Problem(
                lambda x, y: jnp.sum(cost * x) + jnp.sum(w * y), quad, x_set=pdbo.Simplex(1.0)
            ),
            vertex,
            vertex - w * r / np.linalg.norm(w),
            np.linalg.norm(w) / r,
            d,
        ),
        # x on the sphere, f linear in x + y: gradient (c + c), outward normal
        Known(
            "ball",
            pdbo.Problem(lambda x, y: -jnp.sum(c * x) - jnp.sum(c * y), quad, x_set=pdbo.Ball(2.0)),
            2 * c / 5,
            2 * c / 5 + c / 5 * r,
            5 / r,
            d,
        ),
        # the constraint does not bind: multiplier 0
        Known(
            "slack",
            pdbo.Problem(lambda x, y: 0.5 * x**2 + 0.5 * (y - r / 2) ** 2, lambda x, y: 0.5 * y**2),
            0.0,
            r / 2,
            0.0,
            d,
        ),
        # pytrees and data
        Known(
            "pytree",
            pdbo.Problem(
                lambda x, y, data: 0.5 * x["a"] ** 2 + y["p"] + data["t"] * y["q"][0],
                lambda x, y, data: 0.5 * (y["p"] ** 2 + jnp.sum(y["q"] ** 2)),
                data={"t": jnp.array(1.0)},
            ),
            {"a": 0.0},
            {"p": -np.sqrt(d), "q": np.array([-np.sqrt(d)])},
            1 / np.sqrt(d),
            d,
        ),
    ]


def first_order(function: Any) -> Any:
    """The same function with a gradient that cannot be differentiated again."""

    @jax.custom_vjp
    def once(*args):
        return function(*args)

    def forward(*args):
        value, gradient = jax.value_and_grad(function, (0, 1))(*args)
        return value, (_no_second(gradient), len(args))

    def backward(kept, cotangent):
        gradient, count = kept
        scaled = jax.tree.map(lambda leaf: cotangent * leaf, gradient)
        return (*scaled, *[None] * (count - 2))  # data has no gradient

    once.defvjp(forward, backward)
    return once


@jax.custom_vjp
def _no_second(gradient):
    return gradient


def _raise(*_):
    raise AssertionError("a second derivative was taken")


_no_second.defvjp(_raise, _raise)


def counted() -> tuple[pdbo.Problem, Any]:
    """A problem of two quadratics on the host, and a tally of what was asked of them.

    The tally's keys are ("f", "gradient"), ("f", "product") and the same for g.
    """
    tally = collections.Counter()
    matrices = np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([[1.0, 0.5], [0.5, 1.5]])
    f, g = (
        _counted(np.kron(m, np.eye(2)), tally, name) for m, name in zip(matrices, "fg", strict=True)
    )
    return pdbo.Problem(f, g, y_set=pdbo.Box(-9.0, 9.0)), tally


def _counted(matrix, tally, name):
    n = matrix.shape[0] // 2

    def host(event, function, shape):
        def call(*args):
            tally[name, event] += 1
            return function(*map(np.asarray, args))

        return lambda *args: jax.pure_callback(call, shape, *args, vmap_method="sequential")

    like = jax.ShapeDtypeStruct((n,), jnp.float64)
    stack = np.concatenate
    first = host(
        "gradient", lambda x, y: tuple((matrix @ (stack([x, y]) - 1)).reshape(2, n)), (like, like)
    )
    to_x = host("product", lambda u, v: (matrix @ stack([u, v]))[:n], like)
    to_y = host("product", lambda u, v: (matrix @ stack([u, v]))[n:], like)

    gradient = jax.custom_vjp(first)
    gradient.defvjp(lambda x, y: (first(x, y), None), lambda _, c: (to_x(*c), to_y(*c)))

    @jax.custom_vjp
    def value(x, y):
        z = jnp.concatenate([x, y]) - 1
        return 0.5 * z @ matrix @ z

    value.defvjp(
        lambda x, y: (value(x, y), (x, y)),
        lambda z, c: tuple(c * part for part in gradient(*z)),
    )
    return value


COMPILED: list[str] = []
"""Grows by one entry with every program that JAX compiles."""


@jax.monitoring.register_event_duration_secs_listener
def _note_compilation(event, *_, **__):
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)
