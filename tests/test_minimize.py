"""The minimiser behind the certificate, against SciPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize

import pdbo
from pdbo._minimize import minimize


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
