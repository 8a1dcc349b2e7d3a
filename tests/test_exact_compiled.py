"""The exact path as one compiled program: the same answers under jit, vmap and on a mesh."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo.exact.status import NONCONVEX
from pdbo.solvers import Implicit
from test_exact import quadratic


def walk(problem, x, y, steps=100):
    """The solver and its state at the end of a compiled run."""
    solver = Implicit()
    return solver, cases.iterate(problem, solver, jnp.asarray(x), jnp.asarray(y), steps)


def stacked(problems):
    """Problems that differ in their data, as one with a leading axis."""
    data = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(p.data for p in problems))
    return eqx.tree_at(lambda p: p.data, problems[0], data)


def batch_of(condition_seeds, **sizes):
    known = [quadratic(seed, condition, **sizes) for condition, seed in condition_seeds]
    problems, xs, ys = zip(*known, strict=True)
    return stacked(problems), np.stack(xs), np.stack(ys)


SEEDS = [(condition, seed) for condition in (1.0, 1e2, 1e4) for seed in range(5)]


@pytest.mark.parametrize(("ny", "flat"), [(3, 0), (6, 3)])
def test_quadratics_in_a_batch_reach_their_closed_forms(ny, flat):
    problems, xs, ys = batch_of(SEEDS, ny=ny, flat=flat)

    def run(data):
        problem = eqx.tree_at(lambda p: p.data, problems, data)
        return walk(problem, np.zeros(2), np.ones(ny))[1]

    state = jax.vmap(run)(problems.data)
    assert np.all(Implicit().settled(state))
    np.testing.assert_allclose(state.x, xs, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state.y, ys, rtol=1e-6, atol=1e-6 * np.abs(ys).max())


def test_conjugate_residuals_take_over_beyond_small_systems():
    problem, x, y = quadratic(0, 1e2, 4, 80, 30)
    solver, state = walk(problem, np.zeros(4), np.ones(80), 200)
    assert solver.settled(state)
    np.testing.assert_allclose(state.x, x, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state.y, y, rtol=1e-5, atol=1e-6)


def test_single_precision_loses_digits_and_nothing_else():
    for condition, seed in [(1.0, 0), (1e1, 1), (1e2, 2), (1e6, 3)]:
        problem, x, _ = quadratic(seed, condition)
        start = np.zeros(2, np.float32), np.ones(3, np.float32)
        state = walk(problem.astype(jnp.float32), *start)[1]
        assert state.x.dtype == np.float32
        assert np.all(np.isfinite(state.x)) and np.all(np.isfinite(state.y))
        if condition <= 1e2:
            np.testing.assert_allclose(state.x, x, rtol=1e-3, atol=1e-3)


def face_f(x, y, data):
    return 0.5 * jnp.sum((x - data["x"]) ** 2) + 0.1 * jnp.sum(data["y"] * y)


def face_g(x, y, data):
    return 0.5 * jnp.sum((y - data["A"] @ x) ** 2)


@pytest.mark.parametrize("y_set", [pdbo.Box(-0.6, 0.7), pdbo.Simplex(1.0), pdbo.Ball(0.8)])
def test_faces_of_y_as_on_the_host(y_set):
    """The follower's answer ends on the boundary in all three."""
    data = {"A": cases.A, "x": np.array([2.0, 1.0]), "y": np.array([1.0, -2.0, 0.5])}
    problem = pdbo.Problem(face_f, face_g, data, y_set=y_set)
    x, y = np.array([0.9, -0.4]), np.array([0.2, 0.2, 0.6])
    host = pdbo.solve(problem, x, y, Implicit())
    solver, state = walk(problem, x, y)
    assert host.ok and solver.settled(state)
    assert not np.allclose(host.y, cases.A @ host.x)
    np.testing.assert_allclose(state.x, host.x, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state.y, host.y, rtol=1e-6, atol=1e-6)


def test_solve_under_jit_and_vmap():
    y0 = jnp.array([0.5, 0.5])

    @jax.jit
    @jax.vmap
    def run(x0):
        return pdbo.solve(cases.toy(), x0, y0, Implicit(), steps=40, every=40)

    sol = run(jnp.array([2.0, -3.0, 1e3]))
    np.testing.assert_allclose(sol.x, 1, rtol=1e-9)
    np.testing.assert_allclose(sol.y, 1, rtol=1e-9)
    assert np.all(sol.ok)


def ridge_f(x, y, data):
    return jnp.mean((data @ y - 1) ** 2) + 0.1 * jnp.sum(x**2)


def ridge_g(x, y, data):
    return jnp.mean((data @ y - jnp.sum(x)) ** 2) + jnp.sum(jnp.exp(x) * y**2)


def test_on_a_mesh(tmp_path):
    """As on the host; the state is carried on, saved and loaded."""
    data = np.random.default_rng(0).normal(size=(8, 3))
    problem, start = pdbo.Problem(ridge_f, ridge_g, data), (np.zeros(3), np.zeros(3))
    host = pdbo.solve(problem, *start, Implicit())
    spread = pdbo.shard(problem, jax.make_mesh((1,), ("data",)))
    options = {"every": 50, "tol": 1e-3}
    part = pdbo.solve(spread, *start, Implicit(), steps=3, **options, throw=False)
    pdbo.save(tmp_path / "part.pdbo", part)
    loaded = pdbo.load(tmp_path / "part.pdbo", spread, Implicit())
    rest = pdbo.solve(spread, state=loaded.state, steps=97, **options)
    assert rest.ok
    np.testing.assert_allclose(rest.x, host.x, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rest.y, host.y, rtol=1e-6, atol=1e-6)


def test_an_inner_problem_without_a_minimum_ends_the_run():
    problem = pdbo.Problem(lambda x, y: (x - 1) ** 2 + y, lambda x, y: -(y**2) + x * y)
    solver, state = walk(problem, 0.5, 0.5)
    assert state.status == NONCONVEX and solver.settled(state)
    assert np.isfinite(state.x) and np.isfinite(state.y)
