"""Parts of the exact path on their own: wrong derivatives, dead ends, functions without JAX."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo
from pdbo._stages import facts_of
from pdbo.exact import (
    composite,
    kinks,
    large,
    large_certificate,
    minimum,
    newton,
    prox,
    valleys,
)
from pdbo.exact.inner import Inner
from pdbo.exact.large import Large
from pdbo.exact.oracle import Oracle
from pdbo.exact.prox import Kinks
from pdbo.exact.small import Small
from pdbo.exact.status import CONVERGED, RUNNING, STALLED


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), np.errstate(all="ignore"):
        yield


def upside_down(value):
    """A value with the derivatives of its negative, as of a function whose derivative is wrong."""
    return 2 * jax.lax.stop_gradient(value) - value


def square(x, y):
    return 0.5 * jnp.sum((y - x) ** 2)


def oracle_of(f, g, n=2, **sets):
    return Oracle(pdbo.Problem(f, g, **sets), np.zeros(n), np.zeros(n))


class OnTheHost(pdbo.Problem):
    """f = |y - 1|^2 / 2 + |x|^2 and g = |y - 2 x|^2 / 2 in NumPy, asked without JAX."""

    def direct(self, x, y):
        return self

    def outer_values(self, x, y):
        return np.concatenate([[0.5 * np.sum((y - 1) ** 2) + np.sum(x**2)], 2 * x, y - 1])

    def inner_values(self, x, y):
        return np.concatenate([[0.5 * np.sum((y - 2 * x) ** 2)], 4 * x - 2 * y, y - 2 * x])

    def values(self, x, y):
        f, g = self.outer_values(x, y), self.inner_values(x, y)
        return np.concatenate([f[:1], g[:1], f[1:], g[1:]])

    def product(self, x, y, w):
        return -2 * w, w

    def curved(self, x, y, w):
        return w

    def products(self, x, y, rows):
        return np.concatenate([-2 * rows, rows], 1)

    def bends(self, x, y, v, rows):
        return rows * np.repeat([2.0, 1.0], [x.size, y.size])


@pytest.mark.parametrize("n", [3, 600])
def test_functions_of_the_host_are_asked_without_jax(n):
    """Both paths, by matrices and by products, end at x = 0.4 / 1.2 and y = 2 x."""

    def fail(x, y):
        raise AssertionError("JAX was asked")

    problem = OnTheHost(fail, fail)
    oracle = Oracle(problem, np.zeros(n), np.zeros(n))
    path = Small(oracle) if n == 3 else Large(oracle, 1e-4)
    state = path.start(np.zeros(n), np.zeros(n))
    while state.status == RUNNING:
        state = path.step(state)
    assert state.status == CONVERGED
    np.testing.assert_allclose(state.x, 1 / 3, rtol=1e-8)
    np.testing.assert_allclose(state.y, 2 / 3, rtol=1e-8)
    x, y = np.full(n, 0.5), np.full(n, 2.0)
    seen, part = oracle.values(x, y), oracle.inner_values(x, y)
    assert part.f == 0 and part.f_y.size == 0 and part.g == seen.g == 0.5 * n
    whole = oracle.completed(x, y, part)
    for a, b in zip(whole, seen, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(oracle.curved(x, y, y), oracle.product(x, y, y)[1])
    cross, curved = oracle.products(x, y, np.eye(n)[:2])
    np.testing.assert_array_equal(cross, -2 * curved)


def test_an_inner_problem_whose_derivatives_are_wrong_has_no_minimum():
    def g(x, y):
        return upside_down(square(x, y))

    oracle = oracle_of(square, g)
    x, y = np.zeros(2), np.ones(2)
    assert not newton.minimise(oracle, x, y).found
    assert not newton.minimise(oracle, x, x).found  # a maximum with no lower value beside it
    found = minimum.minimise(Inner(oracle), x, y, oracle.values(x, y), 1e-8)
    assert not found[2] and np.array_equal(found[0], y)
    assert valleys._elsewhere(oracle, x, y, 1) is None
    state = types.SimpleNamespace(x=x, y=y, f=1.0)
    assert not valleys._falls_towards(oracle, np.ones(2), state)
    assert kinks.descend(oracle, x, newton.minimise(oracle, x, y), 1e-8) is None


def test_an_inner_solve_of_too_few_steps_says_so(monkeypatch):
    oracle = oracle_of(square, lambda x, y: jnp.sum(jnp.cosh(y - x)))
    x, y = np.zeros(2), np.full(2, 5.0)
    at = oracle.values(x, y)
    found = minimum.minimise(Inner(oracle), x, y, at, 1e-10, True)
    assert found[2]
    np.testing.assert_allclose(found[0], 0, atol=1e-9)
    monkeypatch.setattr(minimum, "MOST_STEPS", 1)
    early = minimum.minimise(Inner(oracle), x, y, at, 1e-10, True)
    assert not early[2] and early[1].g < at.g
    assert not newton.minimise(oracle, x, y, rounds=1).found


def test_an_inner_value_that_is_not_finite_is_no_minimum():
    oracle = oracle_of(square, lambda x, y: jnp.sum(y - jnp.log(y)))
    assert newton.minimise(oracle, np.zeros(2), np.full(2, 0.5)).found
    assert not newton.minimise(oracle, np.zeros(2), np.full(2, -0.5)).found


def lasso(g=square):
    problem = pdbo.Problem(
        lambda x, y: square(1.0, y), lambda x, y: g(3.0, y), inner_term=pdbo.L1(jnp.exp)
    )
    return Oracle(problem, np.zeros(2), np.zeros(2))


def test_proximal_newton_steps_and_their_dead_ends():
    x, y = np.zeros(2), np.array([1.0, 4.0])
    oracle = lasso()
    found = newton.minimise(oracle, x, y)
    assert found.found
    np.testing.assert_allclose(found.y, 2.0, rtol=1e-12)  # the soft threshold of 3 by 1
    assert not newton.minimise(oracle, np.full(2, 1e3), y).found  # an infinite weight
    assert not newton.minimise(oracle, np.full(2, 1e3), y, found.inner).found
    values = oracle.values(x, y)
    assert composite._search(oracle, x, y, values, oracle.kinks(x), y - 2.0) is None  # uphill
    assert composite._search(oracle, x, y, values, oracle.kinks(x), np.zeros(2)) is None
    target, seen = composite._search(oracle, x, y, values, oracle.kinks(x), 2.0 - y)
    np.testing.assert_allclose(target, 2.0)
    assert seen.g == 1.0 + 4.0  # halves of the squares of 1, and |2| twice
    wrong = lasso(lambda x, y: upside_down(square(x, y)))
    assert not newton.minimise(wrong, x, y).found
    assert not newton.minimise(wrong, x, y, found.inner).found  # curvatures from nearby, too
    curved = lasso(lambda x, y: jnp.sum(jnp.cosh(y - x)))
    assert not newton.minimise(curved, x, y, rounds=1).found
    least = newton.minimise(curved, x, y)
    assert least.found
    np.testing.assert_allclose(least.y, 3 - np.arcsinh(1), rtol=1e-10)  # sinh(y - 3) = -1


def test_a_matrix_is_made_positive_by_its_own_eigenvalues():
    H = np.array([[1.0, 3.0], [3.0, 1.0]])  # 4 and -2
    np.testing.assert_allclose(composite._convex(H), [[3.0, 1.0], [1.0, 3.0]])
    np.testing.assert_array_equal(composite._convex(np.eye(2)), np.eye(2))


def test_a_majorant_is_above_its_matrix():
    rng = np.random.default_rng(0)
    for n in (4, prox.SMALL + 1):
        root = rng.normal(size=(n, n)) * np.geomspace(1, 1e3, n)
        term = Kinks(np.zeros(n), np.zeros(0), None)
        H = root.T @ root
        top = prox.majorant(H, term)
        unit = 1 / np.sqrt(top)
        assert np.linalg.eigvalsh(unit[:, None] * H * unit)[-1] <= 1 + 1e-9
    np.testing.assert_array_equal(
        prox.majorant(np.zeros((2, 2)), Kinks(*np.zeros((2, 2)), None)), 1e-300
    )


def ended(path, x, y):
    state = path.start(x, y)
    while state.status == RUNNING:
        state = path.step(state)
    return state


@pytest.mark.parametrize("x_set", [pdbo.Free(), pdbo.Box(-5.0, 5.0)], ids=["free", "box"])
@pytest.mark.parametrize(
    "kind", [Small, lambda oracle: Large(oracle, 1e-4)], ids=["small", "large"]
)
def test_a_run_whose_f_has_wrong_derivatives_stalls_where_it_began(kind, x_set):
    oracle = oracle_of(lambda x, y: upside_down(square(1.0, y)), square, x_set=x_set)
    state = ended(kind(oracle), np.full(2, 3.0), np.zeros(2))
    assert state.status == STALLED
    np.testing.assert_allclose(state.x, 3.0, rtol=1e-3)


def test_a_small_run_steps_back_from_where_f_or_the_inner_minimum_ends():
    """Newton's first step from 0.5 would pass x = 1, where f, and x = 2, where g has no minimum."""
    exact = (3 - np.sqrt(1 + 4 * 0.001)) / 2  # 0.01 / (1 - x) = 10 (2 - x)
    oracle = oracle_of(
        lambda x, y: jnp.sum(-0.01 * jnp.log(1 - x) + 5 * (y - 2) ** 2), lambda x, y: square(x, y)
    )
    state = ended(Small(oracle), np.full(2, 0.5), np.zeros(2))
    np.testing.assert_allclose(state.x, exact, rtol=1e-6)
    cliff = oracle_of(
        lambda x, y: jnp.sum(jnp.cosh(x - 1.5) + 100 * jnp.exp(-20 * (2.1 - x))),
        lambda x, y: jnp.sum(0.5 * (2 - x) * y**2 - y),
    )
    state = ended(Small(cliff), np.full(2, -4.0), np.ones(2))
    assert state.status == CONVERGED and np.all(state.x < 2)
    np.testing.assert_allclose(state.y, 1 / (2 - state.x), rtol=1e-8)
    slope = np.sinh(state.x - 1.5) + 2000 * np.exp(-20 * (2.1 - state.x))
    np.testing.assert_allclose(slope, 0, atol=1e-6)


def test_lower_valleys_that_no_certificate_holds_in_are_told_apart(monkeypatch):
    f = lambda x, y: jnp.sum((y**2 - 1) ** 2 + 0.3 * y)
    oracle = oracle_of(f, square, 1)
    state = ended(Small(oracle), np.array([1.5]), np.array([1.5]))
    right, left = (max(np.roots([4, 0, -4, 0.3]).real), min(np.roots([4, 0, -4, 0.3]).real))
    np.testing.assert_allclose(state.x, right, rtol=1e-8)
    best, lower = valleys.explore(oracle, state, 1e-4)
    np.testing.assert_allclose(best.x, left, rtol=1e-6)
    assert lower is None
    monkeypatch.setattr(valleys, "look", lambda *_: None)
    best, lower = valleys.explore(oracle, state, 1e-4)
    np.testing.assert_array_equal(best.x, state.x)
    np.testing.assert_allclose(lower.x, left, rtol=1e-6)


N = 600  # entries: too many for matrices of second derivatives


def large_facts(f, at, g=square, off=0.0):
    x = np.full(N, float(at))
    return facts_of(pdbo.Problem(f, g), x, x + off)


def test_the_newton_step_of_a_large_problem_is_told_or_refused(monkeypatch):
    weights = np.geomspace(1.0, 1e-3, N)
    f = lambda x, y: 0.5 * jnp.sum(weights * (y - 1) ** 2)
    assert large_facts(f, 1.0).eps <= 1e-12
    assert large_facts(f, 1.0, off=0.1) is None  # y is no inner minimum
    down = large_facts(lambda x, y: -0.5 * jnp.sum((y - 1) ** 2), 1.1)
    assert down.curvature == -1 and down.eps == 1
    level = large_facts(lambda x, y: jnp.sum(y), 1.0)
    assert level.curvature == 0 and level.outer_left == 1
    edge = large_facts(lambda x, y: jnp.sum(jnp.sqrt(y - 1)), 1.0 + 1e-5)  # it ends at y = 1
    assert edge.outer_left == 1
    monkeypatch.setattr(large_certificate, "MOST_PRODUCTS", 1)
    assert large_facts(f, 1.05).outer_left >= large_certificate.UNSURE


SADDLES = {
    "maximum": lambda x, y: -square(x, y),
    "one direction": lambda x, y: square(x, y) - 2 * (y[0] - x[0]) ** 2,
    "wells": lambda x, y: jnp.sum((y - x) ** 4 - (y - x) ** 2),
    "factor": lambda x, y: (jnp.sum(y**2) - 1) ** 2,
    "a log of nothing": lambda x, y: jnp.sum(jnp.log(y)),
}


@pytest.mark.parametrize("name", SADDLES)
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_a_large_inner_problem_without_a_minimum_has_no_facts(name, target):
    """Where f is level in y, too, as by symmetry, the adjoint is zero and sees no curvature."""
    f = lambda x, y: jnp.sum((y - target) ** 2 + x**2)
    assert large_facts(f, 0.0, SADDLES[name]) is None
    assert large_facts(f, 0.0) is not None


def test_a_large_run_ends_when_its_calls_are_used_up(monkeypatch):
    f = lambda x, y: jnp.sum((y - 1) ** 4 + jnp.cosh(y))
    oracle = oracle_of(f, square, 20)
    assert ended(Large(oracle, 1e-4), np.full(20, 4.0), np.zeros(20)).status == CONVERGED
    monkeypatch.setattr(large, "MOST_CALLS", 10)
    monkeypatch.setattr(large, "DOUBTFUL", 10)
    state = ended(Large(oracle, 1e-4), np.full(20, 4.0), np.zeros(20))
    assert state.status == STALLED and state.step < 20
    assert state.f < oracle.values(np.full(20, 4.0), np.full(20, 4.0)).f
