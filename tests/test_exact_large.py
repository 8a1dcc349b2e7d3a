"""The exact path for large problems against closed forms, dense solutions and differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo
from pdbo._stages import facts_of
from pdbo.exact import lbfgs
from pdbo.exact.inner import Inner
from pdbo.exact.krylov import Preconditioner, conjugate_residuals
from pdbo.exact.large import CONVERGED, FAILED, NONCONVEX, RUNNING, Large
from pdbo.exact.minimum import minimise
from pdbo.exact.oracle import Oracle
from pdbo.problems import random_quadratic


def finished(problem, x, y, most=400, tol=1e-4):
    oracle = Oracle(problem, x, y)
    large = Large(oracle, tol)
    state = large.start(*oracle.flat(x, y))
    while state.status == RUNNING and state.step < most:
        state = large.step(state)
    return state


def counter_example():
    """Every (x, y_1, y_2) of ones is the solution; y_2 is free in the inner problem."""

    def f(x, y):
        return 0.5 * jnp.sum((x - y[1]) ** 2) + 0.5 * jnp.sum((y[0] - 1) ** 2)

    def g(x, y):
        return 0.5 * jnp.sum(y[0] ** 2) - jnp.sum(x * y[0])

    return pdbo.Problem(f, g)


def singular(rank, n, seed=0):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((n, n)))[0]
    eigenvalues = np.where(np.arange(n) < rank, np.geomspace(1e-2, 1, n), 0)
    return (basis * eigenvalues) @ basis.T, rng.standard_normal(n)


@pytest.mark.parametrize("rank", [30, 20])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_conjugate_residuals_find_the_least_squares_solution_and_the_null_space(
    rank, preconditioned
):
    A, b = singular(rank, 30)
    C = np.random.default_rng(1).standard_normal((4, 30))
    solve = Preconditioner(A + 1e-4 * A @ A).solve if preconditioned else conjugate_residuals
    found = solve(lambda w: (C @ w, A @ w), b, None, 1e-10, 500, True)
    truth = np.linalg.pinv(A, rcond=1e-9) @ b
    np.testing.assert_allclose(A @ found.v, A @ truth, atol=1e-7)
    np.testing.assert_allclose(found.cross, C @ found.v, atol=1e-9)
    np.testing.assert_allclose(found.residual, b - A @ truth, atol=1e-7)
    assert found.null == (rank < 30) and not found.negative


def test_conjugate_residuals_report_negative_curvature():
    A = np.diag([1.0, -0.5, 2.0])
    assert conjugate_residuals(lambda w: (w, A @ w), np.ones(3), None, 1e-10, 50, True).negative


def test_two_loops_are_the_bfgs_matrix_and_the_oldest_pair_is_dropped():
    rng = np.random.default_rng(0)
    H = np.diag(np.arange(1.0, 6))
    scale, pairs, inverse = np.full(5, 0.3), lbfgs.no_pairs(3, 5), 0.3 * np.eye(5)
    steps = rng.standard_normal((4, 5))
    for s in steps:
        pairs = lbfgs.remember(pairs, s, H @ s)
    for s in steps[1:]:
        c = H @ s
        V = np.eye(5) - np.outer(c, s) / (s @ c)
        inverse = V.T @ inverse @ V + np.outer(s, s) / (s @ c)
    q = rng.standard_normal(5)
    np.testing.assert_allclose(lbfgs.descent(pairs, scale, q), -inverse @ q, rtol=1e-12)
    np.testing.assert_allclose(lbfgs.descent(lbfgs.forget(pairs), scale, q), -0.3 * q)


def test_the_reduced_gradient_is_the_dense_one_with_a_null_space():
    entry = random_quadratic(6, 12, 5, condition=5.0)
    oracle = Oracle(entry.problem, *entry.start)
    inner, (x, y) = Inner(oracle), oracle.flat(*entry.start)
    y, at, ok = minimise(inner, x, y, oracle.values(x, y), 1e-12, True)
    v, gradient = inner.adjoint(x, y, at, None, 1e-12, True)
    data = {name: np.asarray(value) for name, value in entry.problem.data.items()}
    H = data["M"].T @ data["M"]
    truth = -np.linalg.pinv(H, rcond=1e-9) @ (y - data["b"])
    assert ok
    np.testing.assert_allclose(v, truth, atol=1e-8)
    x_part = x - data["a"] - data["B"].T @ data["M"] @ truth
    np.testing.assert_allclose(gradient, np.r_[x_part, y - data["b"] + H @ truth], atol=1e-8)


def penalised(rows=40, features=30):
    """Ridge regression with a penalty per feature, and its outer value in closed form."""
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, rows, features))
    a, b = (M @ np.sin(np.arange(features)) + rng.standard_normal(rows) for M in (A, B))

    def g(x, y):
        return 0.5 * jnp.mean((A @ y - a) ** 2) + jnp.sum(jax.nn.sigmoid(x) * y**2)

    def value(x):
        penalty = 2 / (1 + np.exp(-x))
        y = np.linalg.solve(A.T @ A / rows + np.diag(penalty), A.T @ a / rows)
        return 0.5 * np.mean((B @ y - b) ** 2)

    return pdbo.Problem(lambda x, y: 0.5 * jnp.mean((B @ y - b) ** 2), g), value, features


def test_the_gradient_of_a_state_is_that_of_differences():
    problem, value, n = penalised()
    x, y = jnp.full(n, -1.0), jnp.zeros(n)
    oracle = Oracle(problem, x, y)
    inner = Inner(oracle)
    x, y = oracle.flat(x, y)
    y, at, _ = minimise(inner, x, y, oracle.values(x, y), 1e-12, True)
    gradient = inner.adjoint(x, y, at, None, 1e-12, True)[1]
    steps = 1e-5 * np.eye(n)
    differences = [(value(x + s) - value(x - s)) / 2e-5 for s in steps]
    np.testing.assert_allclose(gradient[:n], differences, atol=1e-8)
    assert not gradient[n:].any()


def test_hyperparameters_end_at_a_minimum_of_the_closed_form():
    problem, value, n = penalised()
    state = finished(problem, jnp.full(n, -1.0), jnp.zeros(n))
    assert state.status == CONVERGED and state.size < 3e-4
    np.testing.assert_allclose(state.f, value(state.x), rtol=1e-10)
    for s in 0.1 * np.eye(n)[::3]:
        assert min(value(state.x + s), value(state.x - s)) >= state.f - 1e-5


@pytest.mark.parametrize("n", [10, 2000])
def test_counter_example(n):
    state = finished(counter_example(), jnp.zeros(n), jnp.zeros((2, n)))
    assert state.status == CONVERGED and state.f < 1e-15
    np.testing.assert_allclose(np.r_[state.x, state.y], 1, atol=1e-7)
    assert state.values + state.products < 100


@pytest.mark.parametrize("null", [0, 15])
def test_random_quadratics(null):
    entry = random_quadratic(25, 40, null, condition=10.0)
    state = finished(entry.problem, *entry.start)
    x, y = entry.solutions[0]
    assert state.status == CONVERGED
    np.testing.assert_allclose(state.f, entry.f_star, rtol=1e-9)
    np.testing.assert_allclose(state.x, x, atol=1e-4)
    np.testing.assert_allclose(state.y, y, atol=1e-4)


@pytest.mark.parametrize("name", ["f", "g", "x", "y"])
@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_scaling_leaves_the_path_as_it_is(name, factor):
    scale = {"f": 1.0, "g": 1.0, "x": 1.0, "y": 1.0} | {name: factor}
    entry = random_quadratic(10, 15, 5, condition=3.0)
    data = {k: np.asarray(value) for k, value in entry.problem.data.items()}
    outer, inner = entry.problem.f, entry.problem.g
    scaled = pdbo.Problem(
        lambda x, y, d: scale["f"] * outer(x / scale["x"], y / scale["y"], d),
        lambda x, y, d: scale["g"] * inner(x / scale["x"], y / scale["y"], d),
        data=data,
    )
    x, y = (jnp.asarray(z) for z in entry.start)
    plain, other = (finished(p, x, y, most=8) for p in (entry.problem, scaled))
    assert plain.values == other.values and abs(plain.products - other.products) < 10
    np.testing.assert_allclose(other.f / scale["f"], plain.f, rtol=1e-4)
    np.testing.assert_allclose(other.x / scale["x"], plain.x, atol=1e-3)


def test_a_box_for_x_is_kept():
    entry = random_quadratic(25, 30, 0, condition=3.0)
    box = pdbo.Box(-0.2, 0.3)
    problem = pdbo.Problem(entry.problem.f, entry.problem.g, data=entry.problem.data, x_set=box)
    state = finished(problem, *entry.start)
    data = {name: np.asarray(value) for name, value in problem.data.items()}
    inverse = np.linalg.inv(data["M"])
    y = inverse @ (data["B"] @ state.x + data["c"])
    gradient = state.x - data["a"] + (inverse @ data["B"]).T @ (y - data["b"])
    projected = state.x - np.clip(state.x - gradient, -0.2, 0.3)
    assert state.status == CONVERGED and np.abs(projected).max() < 1e-4
    assert (np.abs(state.x - 0.05) > 0.2499).any()


def test_faces_of_y_are_found():
    """y = clip(x): entries of y inside the box follow x, the others stay at their bound."""
    n = 24
    c, a = np.tile([0.2, 0.5, 0.0], n // 3), np.tile([0.1, 0.6, 3.0], n // 3)
    problem = pdbo.Problem(
        lambda x, y: 0.5 * jnp.sum((y - c) ** 2) + 0.5 * jnp.sum((x - a) ** 2),
        lambda x, y: 0.5 * jnp.sum((y - x) ** 2),
        y_set=pdbo.Box(-1.0, 1.0),
    )
    state = finished(problem, jnp.asarray(a), jnp.zeros(n))
    x = np.where(a < 1, (a + c) / 2, a)
    np.testing.assert_allclose(state.x, x, atol=1e-6)
    np.testing.assert_allclose(state.y, np.clip(x, -1, 1), atol=1e-6)
    assert state.status == CONVERGED


def leaves(state):
    return [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(state)]


def test_a_run_resumes_bit_for_bit_and_keeps_its_structure():
    """Long enough for a preconditioner, which is built again from the state."""
    entry = random_quadratic(20, 40, 10, condition=100.0)
    oracle = Oracle(entry.problem, *entry.start)
    large = Large(oracle, 1e-4)
    state = first = large.start(*oracle.flat(*entry.start))
    for _ in range(12):
        state = large.step(state)
    saved = jax.tree.map(lambda leaf: np.array(leaf)[()], state)
    assert saved.memory.anchor.built
    again = Large(Oracle(entry.problem, *entry.start), 1e-4)
    for _ in range(12):
        state, saved = large.step(state), again.step(saved)
    assert leaves(first) == leaves(state) == leaves(saved)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(saved), strict=True):
        np.testing.assert_array_equal(one, other)


def test_calls_are_counted_and_an_ended_run_stays():
    n = 5
    x, y = jnp.zeros(n), jnp.zeros((2, n))
    oracle = Oracle(counter_example(), x, y)
    large = Large(oracle, 1e-4)
    state = large.start(*oracle.flat(x, y))
    while state.status == RUNNING:
        state = large.step(state)
    assert (state.values, state.products) == (oracle.calls.values, oracle.calls.products)
    assert large.step(state) is state


def test_a_nonconvex_inner_problem_is_left_soon():
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((x - y) ** 2), lambda x, y: jnp.sum(jnp.cos(y) * (1 + x**2) - y**2)
    )
    state = finished(problem, jnp.ones(20), jnp.full(20, 0.1))
    assert state.status == NONCONVEX and state.values + state.products < 200
    assert np.isfinite(state.size) and np.isfinite(state.y).all()


def test_negative_curvature_on_the_way_to_an_inner_minimum_is_no_obstacle():
    """g has a maximum in y between two minima: every inner solve from near it meets that."""
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((y - 1.5) ** 2) + 0.01 * jnp.sum(x**2),
        lambda x, y: jnp.sum(y**4 / 4 - y**2 / 2 - x * y),
    )
    oracle = Oracle(problem, np.zeros(20), np.zeros(20))
    inner, x, y = Inner(oracle), np.linspace(0.1, 0.5, 20), np.full(20, 0.01)
    for _ in range(12):
        found, at, ok = minimise(inner, x, y, oracle.values(x, y), 1e-8, True)
        assert ok and not inner.nonconvex
    roots = [max(np.roots([1, 0, -1, -b]).real) for b in x]
    np.testing.assert_allclose(found, roots, atol=1e-7)
    assert np.isclose(at.f, float(problem.outer(x, found)))
    state = finished(problem, x, y)
    assert state.status == CONVERGED and np.ptp(state.x) < 1e-5


def test_a_start_at_a_saddle_of_g_is_left_towards_lower_f():
    # y = 0 is a maximum of g, and g has minima at every combination of 1 and -1
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((y - 1) ** 2) + jnp.sum((x - 0.1) ** 2),
        lambda x, y: jnp.sum((y**2 - 1) ** 2) + 0 * jnp.sum(x),
    )
    sol = pdbo.solve(problem, np.zeros(3), np.zeros(600), pdbo.solvers.Implicit())
    assert sol.ok
    np.testing.assert_allclose(sol.y, 1.0, atol=1e-9)
    np.testing.assert_allclose(sol.x, 0.1, atol=1e-9)


def test_values_that_are_not_finite():
    """f is infinite beyond x = 1, which the first step would pass; the start may not be."""
    problem = pdbo.Problem(
        lambda x, y: jnp.sum(-0.01 * jnp.log(1 - x) + 5 * (y - 2) ** 2),
        lambda x, y: 0.5 * jnp.sum((y - x) ** 2),
    )
    state = finished(problem, jnp.full(20, 0.5), jnp.zeros(20))
    exact = (3 - np.sqrt(1 + 4 * 0.001)) / 2  # 0.01 / (1 - x) = 10 (2 - x)
    assert state.status == CONVERGED
    np.testing.assert_allclose(state.x, exact, rtol=1e-6)
    assert finished(problem, jnp.full(20, 2.0), jnp.zeros(20)).status == FAILED


def test_a_start_at_the_solution_converges():
    state = finished(counter_example(), jnp.ones(10), jnp.ones((2, 10)))
    assert state.status == CONVERGED and state.f < 1e-30


def test_an_error_along_a_weak_direction_is_seen():
    """The gradient is small and points elsewhere, but x is off by a tenth in one entry."""
    n = 600
    weights = np.geomspace(1, 1e-3, n)
    problem = pdbo.Problem(
        lambda x, y: 0.5 * jnp.sum(weights * (y - 1) ** 2), lambda x, y: 0.5 * jnp.sum((y - x) ** 2)
    )
    with jax.enable_x64(True):
        at = np.ones(n)
        assert facts_of(problem, at, at).eps <= 1e-12
        at[0], at[-1] = 1 + 1e-4, 1.1
        facts = facts_of(problem, at, at)
    assert facts.eps == pytest.approx(0.1 / np.sqrt(n), rel=0.01)


def test_a_large_run_towards_infinity_ends_without_a_search():
    def g(x, y, data):
        return jnp.mean(jnp.logaddexp(0.0, -data * y)) + 0.5 * jnp.mean(jnp.exp(x) * y**2)

    def f(x, y, data):
        return jnp.mean(jnp.log1p(jnp.exp(-data * y)))

    labels = np.where(np.arange(600) % 2, 1.0, -1.0)
    problem = pdbo.Problem(f, g, labels)
    sol = pdbo.solve(problem, np.zeros(600), np.zeros(600), throw=False)
    assert not sol.ok and sol.result is pdbo.RESULTS.settled
    assert sol.certificate.exact and sol.certificate.eps > 1e-3
    assert type(sol.state.solver).__name__ == "Implicit"
    assert sol.f < 0.01 * sol.history["f"][0]


@pytest.mark.parametrize("n", [800, 1600])  # with a dense preconditioner, and by more products
def test_an_ill_conditioned_rod_is_solved(n):
    K = (2 + 1e-4) * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    t = np.linspace(0, 1, n)
    loads = np.stack([np.ones(n), t, np.sin(9 * t)], axis=1)
    bend = np.linalg.solve(K, loads)
    size = np.max(np.abs(bend))
    wanted, weak = size * np.sin(3 * t), np.sqrt(1e-3) * size * np.eye(3)
    best = np.linalg.lstsq(np.r_[bend, weak], np.r_[wanted, np.zeros(3)], rcond=None)[0]

    def f(x, y):
        return jnp.mean(((y - wanted) / size) ** 2) + 1e-3 / n * jnp.sum(x**2)

    def g(x, y):
        aside = jnp.diff(y, prepend=0.0, append=0.0)
        return 0.5 * jnp.sum(aside**2) + 0.5e-4 * jnp.sum(y**2) - y @ (loads @ x)

    sol = pdbo.solve(pdbo.Problem(f, g), np.zeros(3), np.zeros(n))
    assert sol.ok and sol.certificate.exact
    np.testing.assert_allclose(sol.x, best, rtol=0, atol=1e-6)
    np.testing.assert_allclose(sol.y, bend @ best, rtol=0, atol=1e-6 * size)


def test_half_of_the_directions_are_flat_and_the_others_ill_conditioned():
    n, rng = 600, np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((n, n)))[0]
    curved, flat = turn[:, : n // 2], turn[:, n // 2 :]
    weights, B = np.geomspace(1e-6, 1, n // 2), rng.standard_normal((n // 2, 3))
    H, wanted = (curved * weights) @ curved.T, rng.standard_normal(n)
    follow = curved @ B  # y = follow x + flat z minimises g for every z

    def f(x, y):
        return 0.5 * jnp.sum((y - wanted) ** 2) + 0.5 * jnp.sum(x**2)

    def g(x, y):
        return 0.5 * (y - follow @ x) @ (H @ (y - follow @ x))

    sol = pdbo.solve(pdbo.Problem(f, g), np.zeros(3), np.zeros(n))
    best = np.linalg.solve(B.T @ B + np.eye(3), follow.T @ wanted)
    assert sol.ok and sol.certificate.exact
    np.testing.assert_allclose(sol.x, best, rtol=0, atol=1e-5 * np.max(np.abs(best)))
    y = follow @ best + flat @ (flat.T @ wanted)
    np.testing.assert_allclose(sol.y, y, rtol=0, atol=1e-5 * np.max(np.abs(y)))
