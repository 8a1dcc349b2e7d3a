"""The minimiser behind the certificate, against SciPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize

import pdbo
from pdbo._minimize import MEMORY, Pairs, minimize


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_quadratic(condition, dtype):
    scales = jnp.asarray(np.geomspace(1, condition, 20), dtype)
    function = lambda z: 0.5 * jnp.sum(scales * (z - 1) ** 2)
    found = jax.jit(lambda z: minimize(function, pdbo.Free(), z, 2000))(jnp.zeros(20, dtype))
    eps = jnp.finfo(dtype).eps
    assert found.value <= 1e3 * eps * condition
    assert found.residual <= 1e4 * eps * condition
    assert found.point.dtype == dtype


@pytest.mark.parametrize("seed", range(3))
def test_box_constrained_logistic_against_scipy(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(40, 8)), np.sign(rng.normal(size=40))
    function = lambda z: jnp.mean(jnp.logaddexp(0.0, -jnp.asarray(b) * (jnp.asarray(a) @ z)))
    found = jax.jit(lambda z: minimize(function, pdbo.Box(-0.3, 0.3), z, 2000))(jnp.zeros(8))
    value_and_grad = jax.jit(jax.value_and_grad(function))
    other = scipy_minimize(
        lambda z: tuple(np.asarray(v) for v in value_and_grad(jnp.asarray(z))),
        np.zeros(8),
        jac=True,
        bounds=[(-0.3, 0.3)] * 8,
        method="L-BFGS-B",
        options={"ftol": 1e-16, "gtol": 1e-12},
    )
    assert float(found.value) <= other.fun + 1e-12
    assert found.residual <= 1e-9


def test_simplex_and_pytrees():
    function = lambda z: 0.5 * jnp.sum((z["a"] - 2) ** 2) + 0.5 * (z["b"] + 1) ** 2
    start = {"a": jnp.zeros(3), "b": jnp.array(1.0)}
    found = jax.jit(lambda z: minimize(function, pdbo.Simplex(1.0), z, 500))(start)
    np.testing.assert_allclose(found.point["a"], 1 / 3, atol=1e-9)
    assert found.point["b"] == pytest.approx(0.0, abs=1e-9)


def test_never_worse_than_the_start_and_never_nan():
    function = lambda z: jnp.where(z > 1, jnp.nan, (z - 1.0) ** 2)
    found = jax.jit(lambda z: minimize(function, pdbo.Free(), z, 200))(jnp.array(0.0))
    assert jnp.isfinite(found.value) and found.value <= 1e-6


def test_stops_by_itself_at_the_accuracy_of_its_arithmetic():
    calls = []

    def function(z):
        jax.debug.callback(lambda: calls.append(None))
        return 0.5 * jnp.sum((z - 3) ** 2)

    jax.jit(lambda z: minimize(function, pdbo.Free(), z, 10_000))(jnp.zeros(3))
    jax.effects_barrier()
    assert len(calls) < 200


def test_the_quasi_newton_step_is_that_of_bfgs():
    """Against the update of the whole matrix, with more pairs than are remembered."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(12, 12))
    hessian = root @ root.T + np.eye(12)
    moves = rng.normal(size=(MEMORY + 5, 12))
    pairs = Pairs.empty(jnp.zeros(12))
    for k, move in enumerate(moves):
        if k == 3:  # what curves downwards is not remembered
            pairs = pairs.add(move, -move, jnp.array(True), jnp.array(False))
        pairs = pairs.add(move, hessian @ move, jnp.array(True), jnp.array(True))
    inverse = np.eye(12) * (moves[-1] @ hessian @ moves[-1]) / np.sum((hessian @ moves[-1]) ** 2)
    for move in moves[-MEMORY:]:
        change = hessian @ move
        keep = np.eye(12) - np.outer(move, change) / (move @ change)
        inverse = keep @ inverse @ keep.T + np.outer(move, move) / (move @ change)
    gradient = rng.normal(size=12)
    found = pairs.step(jnp.asarray(gradient), jnp.array(0.5))
    np.testing.assert_allclose(found, inverse @ gradient, rtol=1e-8)
    forgotten = pairs.add(jnp.full(12, jnp.nan), moves[0], jnp.array(False), jnp.array(True))
    np.testing.assert_allclose(
        forgotten.step(jnp.asarray(gradient), jnp.array(0.5)), 0.5 * gradient
    )


@pytest.mark.parametrize("seed", range(3))
def test_penalties_of_all_sizes_against_scipy(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(60, 30)), np.sign(rng.normal(size=60))
    weights = np.exp(rng.uniform(-9, 3, 30))
    function = lambda z: (
        jnp.mean(jnp.logaddexp(0.0, -b * (jnp.asarray(a) @ z))) + jnp.sum(weights * z**2) / 60
    )
    found = jax.jit(lambda z: minimize(function, pdbo.Free(), z, 500))(jnp.zeros(30))
    value_and_grad = jax.jit(jax.value_and_grad(function))
    other = scipy_minimize(
        lambda z: tuple(np.asarray(v) for v in value_and_grad(jnp.asarray(z))),
        np.zeros(30),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-10, "maxiter": 5000},
    )
    assert float(found.value) <= other.fun + 1e-12
    assert found.residual <= 1e-7
