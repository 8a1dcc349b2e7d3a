"""The inner solution as a function of x, y0, data and sets: its derivatives by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo

STEP = 1e-5


def problem(g, **more):
    return pdbo.Problem(lambda x, y: jnp.sum(x) + 0 * jnp.sum(y), g, **more)


CASES = {
    "a line of minima": (
        problem(lambda x, y: 0.5 * y[0] ** 2 - x[0] * x[1] * y[0]),
        ([2.0, 0.5], [0.5, 0.7]),
    ),
    "a circle of minima": (
        problem(lambda x, y: (jnp.sum((y - x) ** 2) - 1) ** 2),
        ([0.3, 0.9], [2.5, 0.7]),
    ),
    "a ball": (
        problem(
            lambda x, y: jnp.sum(jnp.array([1.0, 3.0]) * (y - x) ** 2), y_set=pdbo.Ball(1.0)
        ),
        ([1.3, 1.9], [0.5, 0.7]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_derivatives_by_x_and_by_y0(name):
    found, (x, y0) = CASES[name]
    z = jnp.array([x, y0])
    weights = jnp.array([1.0, -2.0])
    answer = lambda z: weights @ pdbo.inner_solution(found, z[0], z[1])
    both = jax.jit(lambda z, along: jax.jvp(answer, (z,), (along,)))
    direction = jnp.array([[1.0, 0.5], [-0.3, 2.0]])
    value = lambda z: float(both(z, direction)[0])
    differences = np.array(
        [
            [value(z.at[i, j].add(STEP)) - value(z.at[i, j].add(-STEP)) for j in range(2)]
            for i in range(2)
        ]
    ) / (2 * STEP)
    backward = jax.jit(jax.grad(answer))(z)
    np.testing.assert_allclose(backward, differences, atol=1e-8)
    forward = both(z, direction)[1]
    np.testing.assert_allclose(forward, np.sum(direction * differences), atol=1e-8)


def test_the_answer_is_the_nearest_of_many_minima():
    circle, (x, y0) = CASES["a circle of minima"]
    x, y0 = np.array(x), np.array(y0)
    nearest = x + (y0 - x) / np.linalg.norm(y0 - x)
    np.testing.assert_allclose(pdbo.inner_solution(circle, x, y0), nearest, atol=1e-9)


def test_derivatives_by_data_and_by_bounds():
    """The lower bound of y[0] is active: y = (lo, (d - y0) / 2 within its bounds)."""

    def g(x, y, data):
        return (y[0] - x) ** 2 + (y[1] + 0.5 * y[0] - 0.5 * data["d"]) ** 2 + 2 * y[0]

    def answer(lo, d):
        box = pdbo.Box(jnp.stack([lo, lo - 5]), jnp.array([3.0, 3.0]))
        given = pdbo.Problem(lambda x, y, data: x, g, data={"d": d}, y_set=box)
        return pdbo.inner_solution(given, jnp.array(0.1), jnp.zeros(2))

    lo, d = jnp.array(0.5), jnp.array(2.0)
    np.testing.assert_allclose(answer(lo, d), [0.5, 0.75], atol=1e-12)
    by_lo, by_d = jax.jacfwd(answer, (0, 1))(lo, d)
    np.testing.assert_allclose(by_lo, [1.0, -0.5], atol=1e-9)
    np.testing.assert_allclose(by_d, [0.0, 0.5], atol=1e-9)


def test_vmap_and_second_derivatives():
    """y = sin(x) + x^2 is the only minimum."""
    found = problem(lambda x, y: 0.5 * jnp.sum((y - jnp.sin(x) - x**2) ** 2))
    call = lambda x: pdbo.inner_solution(found, x, jnp.array(0.0))
    xs = jnp.array([0.3, 1.1, -2.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(call))(xs), jnp.cos(xs) + 2 * xs, atol=1e-9)
    second = jax.grad(jax.grad(call))(xs[0])
    np.testing.assert_allclose(second, 2 - jnp.sin(xs[0]), atol=1e-9)


def test_many_variables_and_many_minima():
    """Least squares with fewer rows than columns: the answer is y0 projected onto the solutions."""
    draw = np.random.default_rng(0)
    A, b, y0 = draw.normal(size=(10, 210)), draw.normal(size=10), draw.normal(size=210)
    found = problem(lambda x, y: 0.5 * jnp.sum((A @ y - b * x) ** 2))
    pseudo = np.linalg.pinv(A)
    call = lambda x: pdbo.inner_solution(found, x, y0)
    y, slope = jax.jvp(call, (jnp.array(1.5),), (jnp.array(1.0),))
    np.testing.assert_allclose(y, y0 - pseudo @ (A @ y0 - 1.5 * b), atol=1e-8)
    np.testing.assert_allclose(slope, pseudo @ b, atol=1e-8)


def test_what_has_no_answer_is_refused():
    falling = problem(lambda x, y: jnp.sum(x * y))
    with pytest.raises(pdbo.ProblemError, match="no inner minimiser was found"):
        pdbo.inner_solution(falling, jnp.array(1.0), jnp.array(0.0))
    assert np.isnan(jax.jit(lambda x: pdbo.inner_solution(falling, x, jnp.array(0.0)))(1.0))
    rows = pdbo.Batches(np.ones(8), np.ones(8), 4)
    drawn = pdbo.Problem(lambda x, y, d: x, lambda x, y, d: (y - jnp.mean(d)) ** 2, rows)
    with pytest.raises(pdbo.ProblemError, match="inner_solution needs all of the data at once"):
        pdbo.inner_solution(drawn, jnp.array(1.0), jnp.array(0.0))
    coupled = problem(lambda x, y: jnp.sum(y**2), inner_constraint=lambda x, y: x - y)
    with pytest.raises(pdbo.ProblemError, match="inner_solution cannot handle inner_constraint"):
        pdbo.inner_solution(coupled, jnp.array(1.0), jnp.array(0.0))
