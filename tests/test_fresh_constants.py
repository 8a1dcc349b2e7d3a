"""NumPy constants in f and g: certified in double precision although run in single."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo
from pdbo._fresh_constants import as_it_is_now, with_fresh_constants

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


total, squash = jnp.sum, jax.nn.softplus
labels = {"one": 1.0, 2: 2.0, None: np.ones(3)}


def test_functions_of_jax_and_dicts_without_an_order_are_no_obstacle():
    function = lambda x, y: total((squash(y) - x) ** 2)
    assert with_fresh_constants(function) is as_it_is_now(function) is function
    other = lambda x, y: total((y - labels[None]) ** 2) + x**2
    assert as_it_is_now(other) is other
    labels[None][0] = 5.0
    assert as_it_is_now(other) is not other  # compiled again


def test_a_function_over_copies_is_made_once():
    closure = FUNCTIONS["closure"]
    assert with_fresh_constants(closure) is with_fresh_constants(closure)
    assert with_fresh_constants(closure) is not closure


TARGET = 1.0


def scaled(y, c):
    return jnp.sum((y - c) ** 2)


def changing(kind):
    """f with its minimum over y = x where `set_to` says, by something that f reaches."""
    array, table, costs = np.ones(2), {"target": 1.0}, [1.0, 1.0]
    target = 1.0

    def rebind(value):
        nonlocal target
        target = value

    def rebind_global(value):
        globals()["TARGET"] = value

    def set_costs(value):
        costs[:] = [value, value]

    inner = jax.jit(lambda x, y: scaled(y, array))
    kinds = {
        "array": (lambda x, y: scaled(y, array), array.fill),
        "closure": (lambda x, y: scaled(y, target), rebind),
        "global": (lambda x, y: scaled(y, TARGET), rebind_global),
        "dict": (lambda x, y: scaled(y, table["target"]), lambda v: table.update(target=v)),
        "list": (lambda x, y: scaled(y, jnp.array(costs)), set_costs),
        "jit": (inner, array.fill),
        "partial": (functools.partial(lambda c, x, y: scaled(y, c), array), array.fill),
    }
    return kinds[kind]


@pytest.mark.parametrize("door", ["default", "PDBO"])
@pytest.mark.parametrize("kind", ["array", "closure", "global", "dict", "list", "jit", "partial"])
def test_a_value_that_changed_is_used(kind, door):
    """As in a notebook: a number is changed in one cell, and the cell that solves is run again."""
    f, set_to = changing(kind)
    problem = pdbo.Problem(f, lambda x, y: jnp.sum((y - x) ** 2))
    solver = pdbo.PDBO(primal_step=0.05) if door == "PDBO" else None
    for value in (1.0, 3.0, 3.0, 1.0):
        set_to(value)
        sol = pdbo.solve(problem, np.zeros(2), np.zeros(2), solver, steps=400, throw=False)
        np.testing.assert_allclose(sol.x, value, atol=1e-10 if door == "default" else 0.1)
        assert pdbo.certify(problem, np.full(2, value), np.full(2, value)).eps < 1e-8
        assert pdbo.certify(problem, np.full(2, value + 1), np.full(2, value + 1)).eps > 0.1


def test_nothing_is_compiled_again_if_nothing_changed():
    traced = []
    target = np.ones(2)

    def f(x, y):
        traced.append("f")
        return jnp.sum((y - target) ** 2)

    problem = pdbo.Problem(f, lambda x, y: jnp.sum((y - x) ** 2))
    pdbo.solve(problem, np.zeros(2), np.zeros(2))
    first = len(traced)
    assert pdbo.solve(problem, np.zeros(2), np.zeros(2)).ok and len(traced) == first
