"""Problems with closed forms, shared by the tests."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pdbo


@functools.cache
def toy() -> pdbo.Problem:
    """The paper's toy problem: y[1] is invisible to g, so every inner problem has many minima."""
    return pdbo.Problem(
        f=lambda x, y: 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2),
        g=lambda x, y: 0.5 * y[0] ** 2 - x * y[0],
    )


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
        return value, _no_second(gradient)

    def backward(gradient, cotangent):
        return jax.tree.map(lambda leaf: cotangent * leaf, gradient)

    once.defvjp(forward, backward)
    return once


@jax.custom_vjp
def _no_second(gradient):
    return gradient


def _raise(*_):
    raise AssertionError("a second derivative was taken")


_no_second.defvjp(_raise, _raise)
