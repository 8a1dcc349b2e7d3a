"""Nonsmooth terms of the inner problem: closed forms, brute force, differences, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import pdbo
from pdbo import L1, Box, ElasticNet, GroupL2, NonNegative, Problem, ProblemError, SparseGroup
from pdbo.exact.dense import Curvature
from pdbo.exact.newton import minimise
from pdbo.exact.oracle import Oracle
from pdbo.exact.prox import Kinks, minimise_quadratic
from pdbo.exact.reduced import reduce


def soft(u, a):
    return np.sign(u) * np.maximum(np.abs(u) - a, 0)


def shrink(u, b):
    return np.maximum(1 - b / np.linalg.norm(u), 0) * u


def near(target):
    """Half the squared distance from a point."""
    at = np.asarray(target, float)
    return lambda x, y: 0.5 * jnp.sum((y - jnp.asarray(at, y.dtype)) ** 2)


B = np.array([3.0, -2.0, 0.5, 0.1])
PAIR = np.array([3.0, 4.0])

CLOSED = {  # the problem, a start and the solution
    "a soft threshold": (
        Problem(near(1.0), near(3.0), inner_term=L1(jnp.exp)), (0.0, 0.0), (np.log(2), 1.0),
    ),
    "a kink where y closes": (
        Problem(
            lambda x, y: near(-1.0)(x, y) + 0.05 * x**2, near(3.0), inner_term=L1(jnp.exp)
        ), (0.0, 0.0), (np.log(3), 0.0),
    ),
    "x in g, a constant weight": (
        Problem(near(2.0), lambda x, y: 0.5 * (y - x) ** 2, inner_term=L1(1.0)),
        (5.0, 0.0), (3.0, 2.0),
    ),
    "x is the weight, at its bound": (
        Problem(near(4.0), near(3.0), x_set=NonNegative(), inner_term=L1(lambda x: x)),
        (1.0, 0.0), (0.0, 3.0),
    ),
    "a weight for each entry": (
        Problem(near([2.0, -1.5, 0.2, 0.05]), near(B), inner_term=L1(jnp.exp)),
        (np.full(4, -3.0), np.zeros(4)),
        (np.log(np.abs(B) - [2.0, 1.5, 0.2, 0.05]), [2.0, -1.5, 0.2, 0.05]),
    ),
    "the quadratic part": (
        Problem(near(1.0), near(3.0), inner_term=ElasticNet(0.5, jnp.exp)),
        (0.0, 0.0), (np.log(1.5), 1.0),
    ),
    "the linear part beside a quadratic one": (
        Problem(near(0.5), near(3.0), inner_term=ElasticNet(jnp.exp, 1.0)),
        (0.0, 0.0), (np.log(2), 0.5),
    ),
    "a group": (
        Problem(near(0.25 * PAIR), near(PAIR), inner_term=GroupL2(jnp.exp, [0, 0])),
        (0.0, np.zeros(2)), (np.log(0.75 * 5), 0.25 * PAIR),
    ),
    "two groups, one of them empty, and an entry without": (
        Problem(
            near([0.6, 0.8, 0, 0, 7]), near([3, 4, 0.1, -0.1, 7]),
            inner_term=GroupL2(lambda x: jnp.stack([jnp.exp(x), jnp.ones_like(x)]),
                               [0, 0, 1, 1, -1]),
        ), (0.0, np.zeros(5)), (np.log(4), [0.6, 0.8, 0, 0, 7]),
    ),
    "a sparse group": (
        Problem(
            near(0.5 * soft(np.array([3.0, 5.0, 0.5]), 1.0)), near([3.0, 5.0, 0.5]),
            inner_term=SparseGroup(1.0, jnp.exp, [0, 0, 0]),
        ), (0.0, np.zeros(3)), (np.log(0.5 * np.hypot(2, 4)), [1.0, 2.0, 0.0]),
    ),
    "no negative entries": (
        Problem(near([1.0, 5.0]), near([3.0, -1.0]), y_set=NonNegative(), inner_term=L1(jnp.exp)),
        (0.0, np.zeros(2)), (np.log(2), [1.0, 0.0]),
    ),
    "a box": (
        Problem(near([1.0, 5.0]), near([3.0, 9.0]), y_set=Box(-2.0, 2.0), inner_term=L1(jnp.exp)),
        (0.0, np.zeros(2)), (np.log(2), [1.0, 2.0]),
    ),
    "an intercept that is not penalised": (
        Problem(
            lambda x, y: 0.5 * (y["w"] - 1) ** 2,
            lambda x, y: 0.5 * (y["w"] - 3) ** 2 + 0.5 * (y["b"] - 7) ** 2,
            inner_term=L1(lambda x: {"w": jnp.exp(x), "b": jnp.zeros_like(x)}),
        ), (0.0, {"w": 0.0, "b": 0.0}), (np.log(2), {"w": 1.0, "b": 7.0}),
    ),
}  # fmt: skip


def close(found, expected, tol=1e-6):
    a, b = (np.concatenate([np.ravel(v) for v in jax.tree.leaves(z)]) for z in (found, expected))
    np.testing.assert_allclose(a, b, atol=tol)


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms(name):
    problem, start, (x, y) = CLOSED[name]
    solution = pdbo.solve(problem, *start)
    assert solution.ok, solution
    close((solution.x, solution.y), (x, y))
    assert "open in" in solution.certificate.in_words
    again = pdbo.certify(problem, solution.x, solution.y)
    assert again.eps <= 1e-4 and again.support == solution.certificate.support


@pytest.mark.parametrize("unit", [1e-8, 1e-3, 1e3, 1e8])
@pytest.mark.parametrize("what", ["f", "g", "y"])
@pytest.mark.parametrize("kink", [False, True])
def test_other_units(what, unit, kink):
    """The soft threshold and the kink with f, g or y measured in other units."""
    f_unit, g_unit, length = ((unit if what == k else 1.0) for k in "fgy")
    target, pull = (-1.0, 0.05) if kink else (1.0, 0.0)
    problem = Problem(
        lambda x, y: f_unit * (0.5 * (y / length - target) ** 2 + pull * x**2),
        lambda x, y: 0.5 * g_unit * (y / length - 3) ** 2,
        inner_term=L1(lambda x: g_unit / length * jnp.exp(x)),
    )
    solution = pdbo.solve(problem, 0.0, 0.0)
    assert solution.ok, solution
    np.testing.assert_allclose(solution.x, np.log(3 if kink else 2), atol=1e-6)


def test_single_precision():
    problem, _, (x, y) = CLOSED["a weight for each entry"]
    with jax.enable_x64(False):
        start = jnp.full(4, -3.0, jnp.float32), jnp.zeros(4, jnp.float32)
        solution = pdbo.solve(problem, *start)
        assert solution.ok and solution.x.dtype == np.float64
    close((solution.x, solution.y), (x, y))


# A regression, against brute force and the published derivative


def regression(seed=0, rows=40, columns=12):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(2, rows, columns))
    truth = np.where(np.arange(columns) < 4, [[2.0]], 0.0)[0]
    return {"A": A[0], "b": A[0] @ truth + rng.normal(size=rows), "C": A[1],
            "d": A[1] @ truth + rng.normal(size=rows)}  # fmt: skip


def held_out(x, y, d):
    return 0.5 * jnp.mean((d["C"] @ y - d["d"]) ** 2)


def fitted(x, y, d):
    return 0.5 * jnp.mean((d["A"] @ y - d["b"]) ** 2)


DATA = regression()
TERMS = {
    "l1": (L1(jnp.exp), 12),
    "one": (L1(lambda x: jnp.exp(x[0])), 1),
    "net": (ElasticNet(lambda x: jnp.exp(x[0]), lambda x: jnp.exp(x[1])), 2),
    "group": (GroupL2(jnp.exp, np.arange(12) // 3), 4),
    "sparse group": (
        SparseGroup(lambda x: jnp.exp(x[0]), lambda x: jnp.exp(x[1:]), np.arange(12) // 3), 5,
    ),
}  # fmt: skip


def oracle_of(term, size):
    problem = Problem(held_out, fitted, DATA, inner_term=term)
    return Oracle(problem, np.zeros(size), np.zeros(12))


@pytest.mark.parametrize("name", TERMS)
def test_derivatives_against_differences(name):
    term, size = TERMS[name]
    oracle = oracle_of(term, size)
    x = np.log(np.random.default_rng(1).uniform(0.05, 0.3, size))

    def at(x):
        found = minimise(oracle, x, np.zeros(12))
        assert found.found
        return found

    found = at(x)
    inner = Curvature(oracle, x, found.y, found.values)
    reduced = reduce(oracle, x, found.y, found.values, inner)
    assert 0 < np.sum(found.y == 0) < 12  # both kinds of entries take part
    h = 1e-5
    sides = [[at(x + s * h * e) for s in (1, -1)] for e in np.eye(size)]
    slope = [(a.values.f - b.values.f) / (2 * h) for a, b in sides]
    bend = [(a.values.f - 2 * found.values.f + b.values.f) / h**2 for a, b in sides]
    np.testing.assert_allclose(reduced.gradient, slope, atol=1e-8)
    np.testing.assert_allclose(np.diag(reduced.B), bend, atol=2e-4)


def test_the_published_derivative_of_the_lasso():
    """On the support S: -n exp(x) sign(y_S)' (A_S' A_S)^-1 f_y, Bertrand et al. 2022."""
    oracle = oracle_of(*TERMS["one"])
    x = np.log(np.array([0.1]))
    found = minimise(oracle, x, np.zeros(12))
    S = np.flatnonzero(found.y)
    A, n = DATA["A"][:, S], len(DATA["A"])
    outer = DATA["C"][:, S].T @ (DATA["C"] @ found.y - DATA["d"]) / n
    published = -n * np.exp(x) * (np.sign(found.y[S]) @ np.linalg.solve(A.T @ A, outer))
    inner = Curvature(oracle, x, found.y, found.values)
    reduced = reduce(oracle, x, found.y, found.values, inner)
    np.testing.assert_allclose(reduced.gradient, published, rtol=1e-10)


@pytest.mark.parametrize("name", ["one", "net"])
def test_a_lasso_against_a_grid(name):
    term, size = TERMS[name]
    problem = Problem(held_out, fitted, DATA, x_set=Box(-12.0, 3.0), inner_term=term)
    solution = pdbo.solve(problem, np.full(size, -2.0), np.zeros(12))
    assert solution.ok, solution
    oracle = oracle_of(term, size)
    grid = np.linspace(-7, 1, 41 if size == 1 else 9)
    points = np.stack(np.meshgrid(*[grid] * size), -1).reshape(-1, size)
    lowest = min(minimise(oracle, x, np.asarray(solution.y)).values.f for x in points)
    assert float(solution.f) <= lowest + 1e-12


def test_a_smooth_loss_that_is_not_quadratic():
    sign = np.sign(DATA["b"])

    def logistic(x, y, d):
        return jnp.mean(jax.nn.softplus(-sign * (d["A"] @ y)))

    problem = Problem(held_out, logistic, DATA, inner_term=L1(lambda x: jnp.exp(x[0])))
    oracle = Oracle(problem, np.zeros(1), np.zeros(12))
    for level in (-5.0, -3.0, -2.0):
        found = minimise(oracle, np.array([level]), np.zeros(12))
        margin = sign * (DATA["A"] @ found.y)
        slope = -(DATA["A"].T @ (sign / (1 + np.exp(margin)))) / 40
        gap = soft(found.y - slope, np.exp(level)) - found.y
        np.testing.assert_allclose(gap, 0, atol=1e-13)
    solution = pdbo.solve(problem, np.zeros(1), np.zeros(12))
    assert solution.ok


# The minimum of a quadratic with a term


@pytest.mark.parametrize("rank", [30, 8])
@pytest.mark.parametrize("kind", ["l1", "group", "sparse group", "non-negative"])
def test_a_quadratic_with_a_term(kind, rank):
    rng = np.random.default_rng(rank)
    A, b = rng.normal(size=(rank, 20)) * 10.0 ** rng.uniform(-2, 2, 20), rng.normal(size=rank)
    H, c = A.T @ A, -A.T @ b
    unit = np.abs(A).max(0)
    l1 = 0.3 * rng.uniform(0, 1, 20) * unit * (kind != "group")
    labels, group = (None, np.zeros(0))
    if "group" in kind:
        labels, group = np.minimum(np.arange(20) // 4, 4), 3 * rng.uniform(0, 1, 4)
        l1, H, c = l1 / unit, H / unit / unit[:, None], c / unit
    kinks = Kinks(l1, group, labels, 0.0 if kind == "non-negative" else -np.inf)
    y = minimise_quadratic(H, c, kinks, np.zeros(20))
    unit = 1 / np.linalg.eigvalsh(H)[-1]
    again = kinks.prox(y - unit * (H @ y + c), np.full(20, unit))
    np.testing.assert_allclose(again, y, atol=1e-13 * np.max(np.abs(y)))
    value = lambda v: 0.5 * v @ H @ v + c @ v + kinks.value(v)
    for _ in range(50):
        other = kinks.clip(y + 0.1 * rng.normal(size=20) * (np.abs(y) + 1e-3))
        assert value(y) <= value(other) + 1e-12


def test_proximal_operators():
    """In JAX and in NumPy, against a minimiser that knows nothing of them."""
    y = np.array([1.0, -0.4, 0.3, 0.2, -2.0])
    term = SparseGroup(lambda x: x * jnp.ones(5), lambda x: 2 * x * jnp.ones(2), [0, 0, 1, 1, -1])
    found = np.asarray(term.prox(0.3, jnp.asarray(y), 0.5))

    kinks = Kinks(np.full(5, 0.3), np.full(2, 0.6), np.array([0, 0, 1, 1, 2]))
    assert kinks.value(y) == pytest.approx(float(term.value(0.3, jnp.asarray(y))))

    def objective(w):
        return 0.5 * kinks.value(w) + 0.5 * np.sum((w - y) ** 2)

    strict = {"xatol": 1e-9, "fatol": 1e-14, "maxiter": 5000}
    tried = scipy.optimize.minimize(objective, y, method="Nelder-Mead", options=strict)
    np.testing.assert_allclose(found, tried.x, atol=1e-5)
    np.testing.assert_allclose(kinks.prox(y, np.full(5, 0.5)), found, atol=1e-15)
    net = ElasticNet(0.4, 2.0)
    np.testing.assert_allclose(net.prox(None, jnp.asarray(y), 0.5), soft(y, 0.2) / 2, atol=1e-15)
    assert np.array_equal(net.support(jnp.asarray([0.0, 1.0])), [False, True])


# Refusals

SCALAR = CLOSED["a soft threshold"][0]


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: Problem(near(1), near(1), inner_term=3.0), "must be a term such as pdbo.L1"),
        (lambda: Problem(near(1), near(1), inner_term=L1), "forget the parentheses"),
        (lambda: L1(np.nan), "a weight of L1"),
        (lambda: GroupL2(1.0, [0, 2]), "1 is missing"),
        (lambda: GroupL2(1.0, [0.0, 1.0]), "whole numbers"),
        (lambda: GroupL2(1.0, [-2, 0]), "got -2"),
        (lambda: Problem(near(1), near(1), inner_term=L1(1.0), inner_constraint=near(1)),
         "cannot go with"),
    ],
)  # fmt: skip
def test_what_is_not_a_term(make, sentence):
    with pytest.raises(ProblemError, match=sentence):
        make()


@pytest.mark.parametrize(
    "term, y_set, sentence",
    [
        (L1(-1.0), None, "is -1 at x0; expected finite numbers >= 0"),
        (L1(lambda x: x), None, "is -1 at x0"),
        (L1(np.ones(3)), None, "weights of L1 do not fit"),
        (L1(lambda x: x[4]), None, "weights of L1 do not fit"),
        (GroupL2(1.0, [0, 0, 1]), None, "one label for each of the 2 entries of y, got 3"),
        (GroupL2(1.0, [0, 1]), Box(-1.0, 1.0), "y_set=Free or NonNegative, got Box"),
        (L1(1.0), pdbo.Ball(1.0), "got Ball"),
    ],
)
def test_what_does_not_fit(term, y_set, sentence):
    problem = Problem(near(1.0), near(3.0), y_set=y_set, inner_term=term)
    with pytest.raises(ProblemError, match=sentence):
        pdbo.solve(problem, -1.0, np.zeros(2))


def test_what_cannot_handle_a_term():
    for call in (
        lambda: pdbo.solve(SCALAR, 0.0, 0.0, pdbo.PDBO()),
        lambda: pdbo.compare(SCALAR, 0.0, 0.0, [pdbo.AutoPDBO()]),
        lambda: pdbo.shard(SCALAR),
        lambda: jax.jit(lambda x: pdbo.solve(SCALAR, x, 0.0).x)(0.0),
    ):
        with pytest.raises(ProblemError, match="inner_term"):
            call()
    many = Problem(near(0.0), near(1.0), inner_term=L1(1.0))
    with pytest.raises(ProblemError, match="inner_term works in double precision with up to"):
        pdbo.solve(many, 0.0, np.zeros(600))
    batches = pdbo.Batches(np.ones((4, 1)), np.ones((4, 1)), size=2)
    with pytest.raises(ProblemError, match="cannot go with Batches"):
        Problem(held_out, fitted, batches, inner_term=L1(1.0))


def test_a_wrong_point_is_not_certified():
    wrong = pdbo.certify(SCALAR, 0.3, 3 - np.exp(0.3))
    assert wrong.eps > 0.01 and wrong.exact
    assert pdbo.certify(SCALAR, np.log(2), 0.0).eps > 0.1
    best = pdbo.multistart(SCALAR, 0.0, 0.0, starts=3)
    assert best.ok and abs(best.x - np.log(2)) < 1e-8


# Kinks within g


@pytest.mark.parametrize(
    "g",
    [
        lambda x, y: jnp.abs(y - x),
        lambda x, y: jnp.maximum(y - x, 2 * (x - y)),
        lambda x, y: jnp.where(y > x, y - x, x - y) + (y - x) ** 2,
        lambda x, y: jnp.linalg.norm(jnp.stack([y - x, 2 * (y - x)])),
    ],
)
@pytest.mark.parametrize("x", [1.764, 1e-6, -1e6])
def test_a_kink_of_g_is_named_and_not_certified(g, x):
    problem = Problem(lambda x, y: (y - 1.5) ** 2, g)
    with pytest.warns(pdbo.errors.KinkWarning, match="inner_term, such as pdbo.L1"):
        assert pdbo.certify(problem, x, x).eps == np.inf


def test_a_kink_of_g_is_not_solved():
    problem = Problem(lambda x, y: (y - 1.5) ** 2 + 0.1 * (x - 1) ** 2, lambda x, y: jnp.abs(y - x))
    with pytest.warns(pdbo.errors.KinkWarning):
        assert not pdbo.solve(problem, 0.3, 0.7, throw=False).ok


@pytest.mark.parametrize(
    "g",
    [
        lambda x, y: jnp.abs(y - x) ** 3 + (y - x) ** 2,
        lambda x, y: (y - x) ** 2 + 1e-3 * jnp.abs(y + 5),
        lambda x, y: 1e-8 * (y - x) ** 2 + jnp.maximum(x - y - 1, 0.0),
        lambda x, y: jnp.logaddexp(y - x, x - y),
        lambda x, y: jax.nn.logsumexp(jnp.stack([y - x, x - y])) + 1e-6 * (y - x) ** 2,
    ],
)
def test_kinks_elsewhere_do_no_harm(g, recwarn):
    """The inner minimum is at x, up to a part in a thousand, where g is smooth."""
    found = pdbo.solve(Problem(lambda x, y: (y - 1.5) ** 2, g), 1.0, 1.0)
    assert found.ok and abs(found.y - 1.5) < 1e-6
    assert not [w for w in recwarn if w.category is pdbo.errors.KinkWarning]


def test_a_negative_weight_is_named_by_solve():
    problem = pdbo.Problem(lambda x, y: y**2, lambda x, y: (y - x) ** 2, inner_term=pdbo.L1(-1.0))
    with pytest.raises(pdbo.ProblemError, match="a weight of L1 is -1 at x0"):
        pdbo.solve(problem, 0.0, 0.0)
