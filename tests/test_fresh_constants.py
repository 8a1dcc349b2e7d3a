"""NumPy constants in f and g: certified in double precision although run in single."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo
from pdbo._fresh_constants import with_fresh_constants

CENTER = np.array([3.0, -4.0])
OTHER = CENTER.copy()


def helper(y):
    return jnp.sum((y - CENTER) ** 2)


def closure():
    center = np.array([3.0, -4.0])
    return lambda x, y: 0.5 * (x - 1) ** 2 + 0.5 * jnp.sum((y - center) ** 2)


def recursive(x, y, depth=2):
    return recursive(x, y, depth - 1) if depth else 0.5 * (x - 1) ** 2 + 0.5 * helper(y)


FUNCTIONS = {
    "closure": closure(),
    "global": lambda x, y: 0.5 * (x - 1) ** 2 + 0.5 * jnp.sum((y - CENTER) ** 2),
    "helper": lambda x, y: 0.5 * (x - 1) ** 2 + 0.5 * helper(y),
    "default": lambda x, y, c=OTHER: 0.5 * (x - 1) ** 2 + 0.5 * jnp.sum((y - c) ** 2),
    "partial": functools.partial(
        lambda c, x, y: 0.5 * (x - 1) ** 2 + 0.5 * jnp.sum((y - c) ** 2), CENTER.copy()
    ),
    "jit": jax.jit(lambda x, y: 0.5 * (x - 1) ** 2 + 0.5 * jnp.sum((y - CENTER) ** 2)),
    "recursive": recursive,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_certificate_is_in_double_precision(name, x32):
    problem = pdbo.Problem(FUNCTIONS[name], lambda x, y: 0.5 * jnp.sum(y**2))
    solver = pdbo.PDBO(primal_step=0.01, dual_step=10.0, slack=1e-2)
    with jax.numpy_dtype_promotion("standard"):
        sol = pdbo.solve(problem, 1.0, jnp.ones(2), solver, steps=1000)
        again = pdbo.solve(problem, 1.0, jnp.ones(2), solver, steps=1000)  # and still runs
    assert sol.x.dtype == jnp.float32
    assert sol.certificate.eps.dtype == np.float64
    assert again.certificate.eps == sol.certificate.eps <= 1e-2


def test_functions_without_arrays_are_themselves():
    for function in (lambda x, y: x + y, jax.jit(lambda x: x), np.sum, 3):
        assert with_fresh_constants(function) is function


def test_a_function_over_copies_is_made_once():
    closure = FUNCTIONS["closure"]
    assert with_fresh_constants(closure) is with_fresh_constants(closure)
    assert with_fresh_constants(closure) is not closure
