"""Every optimum of the collection, recomputed by brute force or checked against a closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdbo import problems

SCALAR = [n for n in problems.names() if problems.get(n).dimension == (1, 1)]
# where y is free: a range that holds every inner minimiser and every better f
Y_RANGE = {"vpbgd": (-3.5, 0.5), "penalty-trap": (-3.0, 3.0)}


def brute_force(entry, x_points, y_points, slack):
    """The lowest f over the grid points whose g is within `slack` of the best of their row."""
    (x_lo, x_hi), y_range = entry.spread
    x = jnp.linspace(x_lo, x_hi, x_points)
    y = jnp.linspace(*Y_RANGE.get(entry.name, y_range), y_points)

    @jax.jit
    def row(x):
        g = jax.vmap(lambda y: entry.problem.inner(x, y))(y)
        f = jax.vmap(lambda y: entry.problem.outer(x, y))(y)
        return jnp.min(jnp.where(g <= jnp.min(g) + slack, f, jnp.inf))

    return float(jnp.min(jax.lax.map(row, x)))


@pytest.mark.parametrize("name", SCALAR)
def test_optimum_by_brute_force(name):
    entry = problems.get(name)
    # the relaxed optimum lies below f* by about sqrt(slack), on mb-3.13 by slack^(1/3)
    found = brute_force(entry, 2001, 8001, 1e-6)
    assert abs(found - entry.f_star) <= 1.5e-2 * max(1, abs(entry.f_star))


@pytest.mark.parametrize("name", problems.names())
def test_entry(name):
    entry = problems.get(name)
    assert entry.name.startswith(name) and entry.formula and entry.reference and entry.tags
    for x, y in entry.solutions:
        x, y = jax.tree.map(jnp.asarray, (x, y))
        assert entry.problem.x_set.contains(x) and entry.problem.y_set.contains(y)
        np.testing.assert_allclose(entry.problem.outer(x, y), entry.f_star, atol=1e-6)
        assert abs(entry.inner_gap(x, y)) <= 1e-8
        assert entry.solved(x, y)
    x, y = entry.starts(50)
    p = entry.problem
    within, values = jax.jit(
        jax.vmap(lambda x, y: ((p.x_set.contains(x), p.y_set.contains(y)), p.inner(x, y)))
    )(x, y)
    assert np.all(within)
    lowest = [entry.inner_min(jax.tree.map(lambda leaf: leaf[i], x)) for i in range(50)]
    assert (values >= jnp.asarray(lowest) - 1e-8).all()


def test_starts_fit_their_problems():
    for name in problems.names():
        entry = problems.get(name)
        x, y = jax.tree.map(jnp.asarray, entry.start)
        assert entry.problem.x_set.contains(x) and entry.problem.y_set.contains(y)
        assert (
            jnp.isfinite(entry.problem.outer(x, y)) and jnp.shape(entry.problem.outer(x, y)) == ()
        )


@pytest.mark.parametrize("name", ["toy", "bda", "bvfim-sine", "coreset", "desilva", "toll-5"])
def test_inner_min_is_reached(name):
    entry = problems.get(name)
    xs, ys = jax.tree.map(jnp.asarray, entry.starts(200, seed=1))

    @jax.jit
    def lowest(x):
        def descend(_, y):
            slope = jax.grad(entry.problem.inner, 1)(x, y)
            return entry.problem.y_set.project(jax.tree.map(lambda u, v: u - 0.2 * v, y, slope))

        found = jax.vmap(lambda y: jax.lax.fori_loop(0, 500, descend, y))(ys)
        return jnp.min(jax.vmap(entry.problem.inner, (None, 0))(x, found))

    for i in range(3):
        x = jax.tree.map(lambda leaf: leaf[i], xs)
        np.testing.assert_allclose(lowest(x), entry.inner_min(x), atol=1e-6)


@pytest.mark.parametrize(("name", "slope"), [("desilva", 2.0), ("falk-liu", 3.0)])
def test_tracking_optimum(name, slope):
    x = np.linspace(-3, 3, 60_001)
    y = np.clip(x, 0.5, 1.5)
    best = 2 * np.min(x**2 - slope * x + y**2)
    np.testing.assert_allclose(best, problems.get(name).f_star, atol=1e-6)


def test_toll_optimum():
    x = np.linspace(0, 10, 10_001)
    uses = (2 * x + 3 <= 8).astype(float) + (2 * x + 4 <= 6)
    np.testing.assert_allclose(np.min(-x * uses), problems.get("toll-5").f_star, atol=1e-6)


def test_coreset_optimum():
    corners = np.array([[1.0, 3.0], [3.0, 1.0], [-2.0, 2.0], [-3.0, -2.0]])
    steps = np.linspace(0, 1, 101)
    a, b, c = np.meshgrid(steps, steps, steps, indexing="ij")
    keep = a + b + c <= 1 + 1e-12
    weights = np.stack([a[keep], b[keep], c[keep], 1 - (a + b + c)[keep]], axis=1)
    values = 0.1 * np.sum((weights @ corners - np.array([3.0, -2.0])) ** 2, axis=1)
    entry = problems.get("coreset")
    assert np.min(values) >= entry.f_star - 1e-12
    np.testing.assert_allclose(np.min(values), entry.f_star, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 100])
def test_bvfim_sine_family(n):
    entry = problems.get("bvfim-sine", n)
    known = {1: 0.253749, 2: 0.338332, 100: 0.502473}[n]
    np.testing.assert_allclose(entry.f_star, known, atol=1e-6)
    x = np.linspace(-10, 10, 200_001)
    rows = np.pi * (2 * np.arange(-6, 7) - 0.5)
    nearest = np.min((rows[:, None] - x + 2 - 4) ** 2, axis=0)  # each y_i on its best row
    np.testing.assert_allclose(np.min((x - 2) ** 2 + n * nearest), known, atol=1e-5)


@pytest.mark.parametrize("sizes", [(1, 1, 0), (2, 3, 1), (5, 8, 3), (4, 6, 6), (30, 60, 30)])
def test_random_quadratic(sizes):
    x_size, y_size, null = sizes
    entry = problems.random_quadratic(x_size, y_size, null, seed=3)
    (x, y), data = entry.solutions[0], entry.problem.data
    assert entry.dimension == (x_size, y_size)
    hessian = jax.jit(jax.hessian(entry.problem.inner, 1))(jnp.asarray(x), jnp.asarray(y))
    assert np.sum(np.linalg.eigvalsh(hessian) < 1e-10) == null
    np.testing.assert_allclose(entry.inner_gap(x, y), 0, atol=1e-12)
    assert np.isclose(entry.problem.outer(x, y), entry.f_star)
    # optimal among the feasible: f does not fall along any direction that keeps My = Bx + c
    K = np.concatenate([-data["B"], data["M"]], axis=1)
    along = np.linalg.svd(K)[2][np.linalg.matrix_rank(K) :]
    slope = np.concatenate([x - data["a"], y - data["b"]])
    np.testing.assert_allclose(along @ slope, 0, atol=1e-10)


def test_families_and_errors():
    assert problems.get("bda", 3).dimension == (3, 6)
    assert problems.get("quadratic", 4).dimension == (4, 8)
    with pytest.raises(ValueError, match="unknown problem 'nothing'"):
        problems.get("nothing")
    with pytest.raises(ValueError, match="one size only"):
        problems.get("toy", 3)
    with pytest.raises(ValueError, match="n must be"):
        problems.get("bda", 0)
    with pytest.raises(ValueError, match="null in"):
        problems.random_quadratic(1, 2, 3)


def test_a_problem_without_rows_has_no_constraint():
    from pdbo.problems import bolib

    assert bolib._rows(()) is None
    row = bolib._rows(("x[0] - 2*y[1]",))
    assert row is not None
    np.testing.assert_array_equal(row(np.ones(1), np.array([0.0, 3.0])), [-5.0])
