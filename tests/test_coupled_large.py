"""Large problems with constraints: sparse matrices from products, closed forms, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sparse

import pdbo
from pdbo import RESULTS, Box, Equal, NonNegative, Problem, ProblemError
from pdbo.coupled.follower import begun
from pdbo.coupled.oracle import Oracle
from pdbo.coupled.pattern import Pattern, entries
from pdbo.coupled.reduced import Leader
from pdbo.linear import SparseMatrix

N = 150
KIND = np.arange(N) % 2


def capacity_f(x, y):
    return jnp.mean((y - jnp.asarray([1.0, 3.0])[KIND]) ** 2) + 0.1 * x @ x


def wants_two(x, y):
    return jnp.sum((y - 2) ** 2)


def capacity(x, y):
    return {"capacity": y - x[KIND]}


CAPACITIES = Problem(
    capacity_f, wants_two, x_set=Box(0.0, 5.0), y_set=NonNegative(), inner_constraint=capacity
)
"""Each follower wants 2 and has the capacity of its kind: y = min(2, x), x towards 1 and 3."""


def lowest_capacities():
    f = lambda x, target: 0.5 * (np.minimum(2, x) - target) ** 2 + 0.1 * x**2
    grid = np.linspace(0, 5, 500_001)
    return [grid[np.argmin(f(grid, target))] for target in (1.0, 3.0)]


def scattered(kind):
    """A sparse matrix: with few entries per row, with dense rows, or with dense columns too."""
    rng, (m, n) = np.random.default_rng(0), (400, 500)
    A = sparse.random_array((m, n), density=0.008, rng=rng, data_sampler=rng.standard_normal)
    A = A.toarray()
    if kind != "thin":
        A[:100] = np.where(rng.random((100, n)) < 0.3, rng.standard_normal((100, n)), 0)
        A[:100] *= np.arange(n) % 7 == np.arange(100)[:, None] % 7
        A[3], A[:, 5] = 1.0, 2.0
    return A


@pytest.mark.parametrize("kind", ["thin", "wide"])
def test_a_sparse_matrix_is_known_by_its_products(kind):
    A = scattered(kind)
    found = entries(lambda W: W @ A.T, lambda P: P @ A, A.shape)
    np.testing.assert_allclose(found.toarray(), A, atol=1e-9)
    B = np.where(A != 0, A**2 + 1, 0)
    again = Pattern(found).at(lambda W: W @ B.T, lambda P: P @ B)
    np.testing.assert_allclose(again.toarray(), B, atol=1e-12)
    dense = np.random.default_rng(1).standard_normal((400, 500))
    assert entries(lambda W: W @ dense.T, lambda P: P @ dense, dense.shape) is None


def test_derivatives_against_finite_differences():
    """Curved g and rows whose coefficients depend on x, with an equality."""
    rng = np.random.default_rng(0)
    A = jnp.asarray(np.where(rng.random((4, 60)) < 0.2, 1.0, 0.0))
    problem = Problem(
        lambda x, y: jnp.sum(jnp.sin(y)) + x[0] * y[3] + x @ x,
        lambda x, y: jnp.sum(jnp.cosh(y - x[0])) + x[1] * y[2] * y[1] + y @ y,
        y_set=NonNegative(),
        inner_constraint=lambda x, y: [x[1] * (A @ y) - 3, Equal(y[0] + y[4] - x[0])],
    )
    with jax.enable_x64(True):
        oracle = Oracle(problem, jnp.asarray([0.7, 0.9]), jnp.full(60, 0.5))
        assert oracle.sparse and oracle.affine and not oracle.straight
        leader, mu, h = Leader(oracle, *oracle.bounds()), 1e-6, 1e-5
        x, d = oracle.start[0], rng.standard_normal(2)
        here = leader.point(x, begun(oracle, *oracle.start), 1.0)
        here = leader.point(x, here.at, mu)
        ahead, back = (leader.point(x + s * h * d, here.at, mu) for s in (1, -1))
        np.testing.assert_allclose(here.slope @ d, (ahead.f - back.f) / (2 * h), rtol=1e-5)
        bent = (ahead.slope - back.slope) / (2 * h)
        np.testing.assert_allclose(leader.product(here, d), bent, rtol=1e-3, atol=1e-6)


def test_a_closed_form_with_its_multipliers():
    found = pdbo.solve(CAPACITIES, np.array([0.5, 1.5]), np.ones(N))
    assert found.ok and found.certificate.eps <= 1e-3
    np.testing.assert_allclose(found.x, lowest_capacities(), atol=2e-3)
    slack = 2 * (2 - np.minimum(2, np.asarray(found.x)))[KIND]
    np.testing.assert_allclose(found.inner_multipliers["capacity"], slack, atol=2e-2)
    assert pdbo.certify(CAPACITIES, found.x, found.y).eps < 0.05
    assert pdbo.certify(CAPACITIES, found.x + 0.3, found.y).eps > 0.05


def test_a_linear_follower_goes_the_leaders_way():
    """Of 210 roads one has a toll: what the cheapest other one costs more can be asked."""
    cost = np.r_[1.0, np.random.default_rng(0).uniform(3, 9, 209)]
    problem = Problem(
        lambda x, y, c: -x * y[0], lambda x, y, c: c @ y + x * y[0], jnp.asarray(cost),
        x_set=Box(0.0, 20.0), y_set=NonNegative(),
        inner_constraint=lambda x, y, c: Equal(jnp.sum(y) - 1),
    )  # fmt: skip
    found = pdbo.solve(problem, 0.5, np.full(210, 1 / 210))
    assert found.ok
    np.testing.assert_allclose(-found.f, np.min(cost[1:]) - 1, rtol=5e-3)


def test_an_outer_constraint_and_a_sparse_matrix():
    """Against SLSQP on the closed form of y: prices on 3 groups, a demand that must be met."""
    group = sparse.csr_array((np.ones(120), (np.arange(120) % 3, np.arange(120))))
    want = np.linspace(1, 2, 120)
    problem = Problem(
        lambda x, y, d: -jnp.sum((d["A"] @ y) * x) / 40 + x @ x,
        lambda x, y, d: 0.5 * jnp.sum((y - d["want"]) ** 2) + x @ (d["A"] @ y),
        {"A": SparseMatrix.from_scipy(group), "want": want},
        y_set=NonNegative(),
        inner_constraint=lambda x, y, d: d["A"] @ y - 70.0,
        outer_constraint=lambda x, y, d: [160.0 - jnp.sum(y)],
    )

    def y(x):
        return np.maximum(0, want - (group.T @ x))

    known = scipy.optimize.minimize(
        lambda x: -(group @ y(x)) @ x / 40 + x @ x, np.full(3, 0.3), method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: np.sum(y(x)) - 160},
    )  # fmt: skip
    found = pdbo.solve(problem, np.full(3, 0.3), np.ones(120))
    assert found.ok and float(jnp.sum(found.y)) > 159.9
    np.testing.assert_allclose(found.f, known.fun, atol=3e-3)


def test_what_has_no_answer_says_so():
    start = np.array([0.5, 1.5]), np.ones(N)
    shut = Problem(
        capacity_f, wants_two, inner_constraint=lambda x, y: [y - x[KIND], 2 + x[KIND] ** 2 - y]
    )
    found = pdbo.solve(shut, *start, throw=False)
    assert found.result is RESULTS.infeasible and "no y was found" in found.message
    open_ = Problem(capacity_f, lambda x, y: -jnp.sum(y), inner_constraint=lambda x, y: x[KIND] - y)
    found = pdbo.solve(open_, *start, throw=False)
    assert found.result is RESULTS.unbounded and "falls without end" in found.message
    with pytest.raises(ProblemError, match="got 456; beyond that there are solve and certify"):
        pdbo.multistart(CAPACITIES, *start, starts=2)


def test_a_follower_that_is_not_sparse_is_solved_by_gradients():
    problem = Problem(
        capacity_f, lambda x, y: wants_two(x, y) + jnp.sum(y) ** 2 / N,
        x_set=Box(0.0, 5.0), inner_constraint=capacity,
    )  # fmt: skip
    found = pdbo.solve(problem, np.array([0.5, 1.5]), np.ones(N), throw=False, steps=3)
    assert not found.ok
    with pytest.raises(ProblemError, match="cannot be certified"):
        pdbo.certify(problem, found.x, found.y)
