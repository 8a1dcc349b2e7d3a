"""Hypergradients against closed forms, finite differences and counted oracle calls."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cases
import pdbo
from cases import iterate
from pdbo import _trees as trees
from pdbo.solvers._aid import AIDConjugateGradient, AIDFixedPoint, conjugate_gradient
from pdbo.solvers._bigsam import BigSAM
from pdbo.solvers._itd import ITD

KEY = jax.random.key(0)
UNROLLED = (ITD, BigSAM)
IMPLICIT = (AIDFixedPoint, AIDConjugateGradient)
ALL = UNROLLED + IMPLICIT


def hypergradient(problem, solver, x, y):
    """The hypergradient at x: the first step moves y only."""
    state = iterate(problem, solver, x, y, 1)
    assert trees.max_abs(trees.sub(state.x, x)) == 0
    return state.hypergradient


def differences(value, x, h=1e-5):
    """Central differences of a function of a NumPy vector."""
    x = np.asarray(x)
    return np.array([(value(x + h * e) - value(x - h * e)) / (2 * h) for e in np.eye(x.size)])


def close(a, b, rtol):
    a, b = np.asarray(a), np.asarray(b)
    assert np.linalg.norm(a - b) <= rtol * np.linalg.norm(b), (a, b)


# Ridge regression with one regulariser exp(x_i) per feature.

_rng = np.random.default_rng(0)
A, A_VAL = _rng.normal(size=(2, 12, 5)) / np.sqrt(12)
B, B_VAL = _rng.normal(size=(2, 12))
X = 0.3 * _rng.normal(size=5) - 1
STEP = 1 / (np.linalg.norm(A, 2) ** 2 + np.exp(X).max())


def _ridge_f(x, y, data):
    return 0.5 * jnp.sum((data["A_val"] @ y - data["b_val"]) ** 2) + 0.05 * jnp.sum(x**2)


def _ridge_g(x, y, data):
    return 0.5 * jnp.sum((data["A"] @ y - data["b"]) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def ridge(y_set=None):
    data = {"A": A, "b": B, "A_val": A_VAL, "b_val": B_VAL}
    return pdbo.Problem(_ridge_f, _ridge_g, data, y_set=y_set)


def ridge_hessian(x):
    return A.T @ A + np.diag(np.exp(x))


def ridge_outer(x, y):
    return 0.5 * np.sum((A_VAL @ y - B_VAL) ** 2) + 0.05 * np.sum(x**2)


def ridge_gradient(x):
    """The hypergradient in closed form."""
    y = np.linalg.solve(ridge_hessian(x), A.T @ B)
    v = np.linalg.solve(ridge_hessian(x), A_VAL.T @ (A_VAL @ y - B_VAL))
    return 0.1 * x - np.exp(x) * y * v


ACCURATE = [
    ITD(inner_step=STEP, inner_steps=400),
    AIDFixedPoint(inner_step=STEP, inner_steps=400, linear_steps=400),
    AIDConjugateGradient(inner_step=STEP, inner_steps=400, linear_steps=5),
    AIDConjugateGradient(inner_step=STEP, inner_steps=400, linear_steps=50, warm_linear=True),
]


@pytest.mark.parametrize("solver", ACCURATE)
def test_ridge(solver):
    found = hypergradient(ridge(), solver, jnp.asarray(X), jnp.zeros(5))
    numeric = differences(lambda x: ridge_outer(x, np.linalg.solve(ridge_hessian(x), A.T @ B)), X)
    close(found, numeric, 1e-6)
    close(found, ridge_gradient(X), 1e-9)


def test_averaging_bias_vanishes():
    """BigSAM's hypergradient is off by about a/N, where inner minima are unique."""

    def error(steps):
        solver = BigSAM(inner_step=STEP, inner_steps=steps)
        found = hypergradient(ridge(), solver, jnp.asarray(X), jnp.zeros(5))
        return np.linalg.norm(found - ridge_gradient(X))

    np.testing.assert_allclose(error(500) / error(2000), 4, rtol=0.1)


@pytest.mark.parametrize("kept", [1, 3, 7])
def test_truncation(kept):
    """The last K terms of the sum that reverse mode stands for."""
    steps, hessian = 7, ridge_hessian(X)
    path = [np.full(5, 0.1)]
    for _ in range(steps):
        path.append(path[-1] - STEP * (hessian @ path[-1] - A.T @ B))
    v = A_VAL.T @ (A_VAL @ path[-1] - B_VAL)
    expected = 0.1 * X
    for y in path[-2 : -2 - kept : -1]:
        expected = expected - STEP * np.exp(X) * y * v
        v = v - STEP * hessian @ v
    solver = ITD(inner_step=STEP, inner_steps=steps, truncate=kept)
    close(hypergradient(ridge(), solver, jnp.asarray(X), jnp.asarray(path[0])), expected, 1e-12)


def test_truncation_to_all_steps_is_none():
    x, y = jnp.asarray(X), jnp.zeros(5)
    full, kept = ITD(inner_steps=6), ITD(inner_steps=6, truncate=6)
    assert np.array_equal(hypergradient(ridge(), full, x, y), hypergradient(ridge(), kept, x, y))


def test_no_averaging_is_itd():
    x, y = jnp.asarray(X), jnp.ones(5)
    close(
        hypergradient(ridge(), BigSAM(averaging=0.0), x, y),
        hypergradient(ridge(), ITD(), x, y),
        1e-14,
    )


# Constraints on y.

LO, HI = np.array([-0.2, -0.1, -5, -5, 0.05]), np.array([0.2, 0.1, 5, 5, 0.5])


def boxed_solution(x):
    y, hessian = np.zeros(5), ridge_hessian(x)
    for _ in range(4000):
        y = np.clip(y - STEP * (hessian @ y - A.T @ B), LO, HI)
    return y


@pytest.mark.parametrize("solver", ACCURATE)
def test_box(solver):
    y = boxed_solution(X)
    active = (y <= LO) | (y >= HI)
    assert 0 < active.sum() < 5
    numeric = differences(lambda x: ridge_outer(x, boxed_solution(x)), X)
    found = hypergradient(ridge(pdbo.Box(LO, HI)), solver, jnp.asarray(X), jnp.asarray(LO + 0.01))
    close(found, numeric, 1e-6)
    close(found[active], 0.1 * X[active], 1e-9)  # a coordinate held by a bound feels no x


@pytest.mark.parametrize("solver", ACCURATE)
def test_product(solver):
    def joined(function):
        return lambda x, y, data: function(x, jnp.concatenate([y["a"], y["b"]]), data)

    def solution(x):
        y, hessian = np.zeros(5), ridge_hessian(x)
        for _ in range(4000):
            y = y - STEP * (hessian @ y - A.T @ B)
            y[1:] = np.maximum(y[1:], 0)
        return y

    assert 0 < np.sum(solution(X)[1:] == 0) < 4
    plain, y = ridge(), {"a": jnp.ones(1), "b": jnp.ones(4)}
    y_set = pdbo.Product({"a": pdbo.Free(), "b": pdbo.NonNegative()})
    problem = pdbo.Problem(joined(plain.f), joined(plain.g), plain.data, y_set=y_set)
    numeric = differences(lambda x: ridge_outer(x, solution(x)), X)
    close(hypergradient(problem, solver, jnp.asarray(X), y), numeric, 1e-6)


@pytest.mark.parametrize(
    "y_set",
    [
        pdbo.Simplex(1.0),
        pdbo.Halfspace(np.ones(5), -0.5),
        pdbo.Affine(np.ones((1, 5)), np.array([0.3])),
    ],
    ids=lambda s: type(s).__name__,
)
def test_polyhedra(y_set):
    problem, solver = ridge(y_set), ITD(inner_step=STEP, inner_steps=600)
    y = y_set.project(jnp.ones(5))
    found = hypergradient(problem, solver, jnp.asarray(X), y)

    @jax.jit
    def solution(x):
        def one(_, y):
            return y_set.project(y - STEP * (A.T @ (A @ y - B) + jnp.exp(x) * y))

        return jax.lax.fori_loop(0, 600, one, y)

    numeric = differences(lambda x: ridge_outer(x, np.asarray(solution(x))), X)
    close(found, numeric, 1e-6)
    with pytest.raises(pdbo.ProblemError, match=type(y_set).__name__):
        AIDFixedPoint().init(problem, jnp.asarray(X), y, KEY)


@pytest.mark.parametrize("kind", ALL)
def test_curved_set(kind):
    for y_set in (pdbo.Ball(2.0), pdbo.Product((pdbo.Free(), pdbo.Product([pdbo.Ball(1.0)])))):
        y = jnp.zeros(5) if isinstance(y_set, pdbo.Ball) else (jnp.zeros(1), [jnp.zeros(4)])
        problem = pdbo.Problem(lambda x, y: 0.0 * jnp.sum(x), lambda x, y: 0.0 * x[0], y_set=y_set)
        with pytest.raises(pdbo.ProblemError, match=f"a Ball, which {kind.__name__} cannot"):
            pdbo.solve(problem, jnp.asarray(X), y, kind())


# Conjugate gradients.


@functools.partial(jax.jit, static_argnums=2)
def cg(matrix, b, steps, start=None):
    return conjugate_gradient(lambda v: matrix @ v, b, steps, start)


def system(values, b, dtype):
    """A symmetric matrix with these eigenvalues, and b given in its eigenvectors."""
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(len(values), len(values))))[0]
    matrix = basis @ np.diag(values) @ basis.T
    return jnp.asarray(matrix, dtype), jnp.asarray(basis @ np.asarray(b), dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
class TestConjugateGradient:
    def test_regular(self, dtype):
        matrix, b = system([1, 2, 3, 4, 5], [1, -1, 2, 0.5, 1], dtype)
        solution = jnp.asarray(np.linalg.solve(matrix, b), dtype)
        for v in (cg(matrix, b, 5), cg(matrix, b, 50), cg(matrix, b, 6, solution + 1)):
            assert v.dtype == dtype
            close(v, solution, 100 * jnp.finfo(dtype).eps)
        close(cg(matrix, b, 6, solution), solution, 10 * jnp.finfo(dtype).eps)

    def test_one_step(self, dtype):
        b = jnp.asarray([1.0, -2.0, 3.0], dtype)
        for steps in (1, 2, 20):
            close(cg(4 * jnp.eye(3, dtype=dtype), b, steps), b / 4, jnp.finfo(dtype).eps)

    def test_singular_with_a_solution(self, dtype):
        matrix, b = system([1, 2, 0, 0, 7], [1, -1, 0, 0, 1], dtype)
        expected = np.linalg.pinv(np.asarray(matrix), rcond=1e-5) @ np.asarray(b)
        for steps in (3, 10, 500):
            close(cg(matrix, b, steps), expected, 1000 * jnp.finfo(dtype).eps)

    def test_singular_without_solution(self, dtype):
        for values in ([1, 2, 0, 0, 7], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1e-12, 0, 0, 0, 1]):
            for size in (1e-6, 1.0, 1e6):
                matrix, b = system(values, size * np.array([1, -1, 2, 0.5, 1]), dtype)
                for steps in (1, 5, 500):
                    assert jnp.all(jnp.isfinite(cg(matrix, b, steps)))

    def test_stops_before_zero_curvature(self, dtype):
        """On diag(1, 0) the first step is taken, the second has nothing to go by."""
        b = jnp.asarray([0.5, -1.0], dtype)
        close(cg(jnp.diag(jnp.asarray([1, 0], dtype)), b, 9), 5 * b, 10 * jnp.finfo(dtype).eps)

    def test_stops_before_negative_curvature(self, dtype):
        b = jnp.asarray([1.0, 1.0], dtype)
        at_once, later = (jnp.diag(jnp.asarray(d, dtype)) for d in ([1, -2], [3, -1]))
        assert np.array_equal(cg(at_once, b, 9), jnp.zeros(2))
        close(cg(later, b, 9), b, 10 * jnp.finfo(dtype).eps)

    def test_zero(self, dtype):
        zero = jnp.zeros(2, dtype)
        assert np.array_equal(cg(jnp.eye(2, dtype=dtype), zero, 9), zero)
        assert np.array_equal(cg(jnp.eye(2, dtype=dtype), zero, 9, zero), zero)
        assert np.array_equal(cg(jnp.zeros((2, 2), dtype), zero + 1, 9), zero)


# Published behaviour, and where every method must agree.


TOY = cases.toy()

# q = (1 - 1/2)^5 is what is left of the start; warm: (1 - q)(x - 1) + x - 1/2 = 0,
# cold: (1 - q)((1 - q) x + q/2 - 1) + x - 1/2 = 0, with an exact linear solve x - 1 + x - 1/2 = 0
Q = 0.5**5
STUCK = {
    "warm": (1.5 - Q) / (2 - Q),
    "cold": (0.5 + (1 - Q) * (1 - Q / 2)) / (1 + (1 - Q) ** 2),
    "exact": 0.75,
}


@pytest.mark.parametrize(
    "solver, where",
    [
        (ITD(), "warm"),
        (AIDFixedPoint(), "warm"),
        (ITD(warm_start=False), "cold"),
        (AIDFixedPoint(warm_start=False), "cold"),
        (AIDFixedPoint(warm_linear=True), "exact"),
    ],
)
def test_toy_is_not_solved(solver, where):
    state = iterate(TOY, solver, jnp.asarray(2.0), jnp.array([0.5, 0.5]), 300)
    np.testing.assert_allclose(state.x, STUCK[where], atol=1e-12)
    assert state.y[1] == 0.5
    np.testing.assert_allclose(state.hypergradient, 0, atol=1e-12)


def test_toy_stops_at_the_measured_point():
    np.testing.assert_allclose(STUCK["warm"], 0.746, atol=5e-4)
    solution = pdbo.solve(TOY, 2.0, jnp.array([0.5, 0.5]), ITD(), steps=300)
    assert not solution.ok
    np.testing.assert_allclose(solution.x, STUCK["warm"], atol=1e-12)


@pytest.mark.parametrize("start", [(2.0, [0.5, 0.5]), (0.0, [2.0, 2.0])])
def test_toy_is_solved_by_averaging(start):
    x, y = jnp.asarray(start[0]), jnp.asarray(start[1])
    for steps, accuracy in ((50, 2e-3), (100, 2e-6), (200, 5e-12)):
        state = iterate(TOY, BigSAM(), x, y, steps)
        assert abs(state.x - 1) <= accuracy and jnp.max(jnp.abs(state.y - 1)) <= 2 * accuracy
    # started at y0 again and again, averaging stops short
    state = iterate(TOY, BigSAM(warm_start=False), x, y, 500)
    assert 0.1 < abs(state.x - 1) < 0.3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("kind", ALL)
def test_singular_hessian_is_finite(kind, dtype):
    solvers = [kind()]
    if kind in IMPLICIT:
        solvers += [kind(linear_steps=40), kind(warm_linear=True)]
    for solver in solvers:
        x, y = jnp.asarray(2.0, dtype), jnp.full(2, 0.5, dtype)
        before = solver.init(TOY, x, y, KEY)
        state = iterate(TOY, solver, x, y, 2000)
        assert trees.finite(state)
        assert jax.eval_shape(lambda s: s, before) == jax.eval_shape(lambda s: s, state)


@pytest.mark.parametrize(
    "solver", [ITD(inner_steps=40), AIDFixedPoint(inner_steps=40, linear_steps=40)]
)
def test_unrolling_stops_at_a_quarter(solver):
    """The n-dimensional counter-example: y2 never moves, and f ends at n/4 instead of 0."""
    n = 10
    problem = pdbo.Problem(
        f=lambda x, y: 0.5 * jnp.sum((x - y[1]) ** 2) + 0.5 * jnp.sum((y[0] - 1) ** 2),
        g=lambda x, y: 0.5 * jnp.sum(y[0] ** 2) - jnp.sum(x * y[0]),
    )
    start = jnp.full(n, 2.0), (jnp.full(n, 2.0), jnp.zeros(n))
    state = iterate(problem, solver, *start, 200)
    np.testing.assert_allclose(problem.outer(state.x, state.y), n / 4, rtol=1e-9)
    averaged = iterate(problem, BigSAM(), *start, 200)
    assert problem.outer(averaged.x, averaged.y) < 1e-20


def precise(kind, inner_step=0.5):
    steps = {"inner_steps": 2000} if kind is BigSAM else {"inner_steps": 60}
    return kind(0.2, inner_step, **steps, **({"linear_steps": 60} if kind in IMPLICIT else {}))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("x0", [0.0, 1.4])
def test_falk_liu(kind, x0):
    problem = pdbo.Problem(
        f=lambda x, y: jnp.sum(x**2 - 3 * x + y**2),
        g=lambda x, y: jnp.sum((x - y) ** 2),
        y_set=pdbo.Box(0.5, 1.5),
    )
    state = iterate(problem, precise(kind, 0.3), jnp.full(2, x0), jnp.full(2, 1.0), 300)
    np.testing.assert_allclose(state.x, 0.75, atol=1e-3)
    np.testing.assert_allclose(state.y, 0.75, atol=1e-3)
    np.testing.assert_allclose(problem.outer(state.x, state.y), -2.25, atol=1e-3)


# What the options change in what a solver promises.


COUNTED = [
    ITD(inner_steps=4, truncate=3, warm_start=False),
    AIDFixedPoint(inner_steps=4, linear_steps=6, warm_linear=True),
    AIDConjugateGradient(inner_steps=4, linear_steps=6, warm_linear=True),
]


@pytest.mark.parametrize("solver", COUNTED)
def test_calls(solver):
    """Truncated and from a warm linear start, where the contract has the plain methods."""
    problem, tally = cases.counted()
    state = jax.block_until_ready(iterate(problem, solver, jnp.zeros(2), jnp.zeros(2), 3))
    products = tally["f", "product"] + tally["g", "product"]
    counted = tally["f", "gradient"], tally["g", "gradient"], products
    assert counted == tuple(int(count) for count in solver.calls(state))


@pytest.mark.parametrize("solver", [ITD(warm_start=False), AIDConjugateGradient(warm_linear=True)])
def test_restart(solver):
    """With a start or a linear solution in the state, where the contract has the plain methods."""
    problem, start = ridge(), (jnp.asarray(X), jnp.zeros(5))
    once = pdbo.solve(problem, *start, solver, steps=30, every=5, tol=0)
    half = pdbo.solve(problem, *start, solver, steps=15, every=5, tol=0)
    twice = pdbo.solve(problem, state=half.state, steps=15, every=5, tol=0)
    assert twice.steps == once.steps == 30
    for a, b in zip(
        jax.tree.leaves(once.state.solver_state),
        jax.tree.leaves(twice.state.solver_state),
        strict=True,
    ):
        assert np.array_equal(a, b)


def test_output_is_where_the_hypergradient_was_computed():
    for kind in ALL:
        problem, solver = ridge(), kind(warm_start=False)
        state = iterate(problem, solver, jnp.asarray(X), jnp.ones(5), 4)
        point = solver.output(state)
        again = iterate(problem, solver, point.x, jnp.ones(5), 1)
        close(again.y, point.y, 1e-12)
        close(again.hypergradient, state.hypergradient, 1e-12)
        assert point.multiplier is None


@pytest.mark.parametrize(
    "build, name",
    [
        (lambda: ITD(inner_steps=0), "inner_steps"),
        (lambda: BigSAM(inner_steps=2.0), "inner_steps"),
        (lambda: ITD(inner_steps=3, truncate=4), "truncate"),
        (lambda: ITD(truncate=0), "truncate"),
        (lambda: AIDFixedPoint(linear_steps=0), "linear_steps"),
        (lambda: AIDConjugateGradient(linear_steps=-1), "linear_steps"),
    ],
)
def test_bad_lengths(build, name):
    with pytest.raises(pdbo.ProblemError, match=name):
        build()


def test_adam_follows_its_formula():
    """x from the recorded hypergradients by Adam's recursion, written out here."""
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((y - 1) ** 2), lambda x, y: 0.5 * jnp.sum(jnp.exp(x) * y**2 - 2 * y)
    )
    solver = AIDConjugateGradient(0.1, 0.2, 3, 3, outer=optax.adam(0.1))
    state = solver.init(problem, jnp.array([0.5, -1.0]), jnp.zeros(2), jax.random.key(0))
    x, m, v = np.array([0.5, -1.0]), np.zeros(2), np.zeros(2)
    step = eqx.filter_jit(lambda state: solver.step(problem, state))
    for t in range(1, 30):
        d = np.asarray(state.hypergradient)
        state = step(state)
        if t > 1:  # the first step has no hypergradient yet
            m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d**2
            x = x - 0.1 * (m / (1 - 0.9 ** (t - 1))) / (np.sqrt(v / (1 - 0.999 ** (t - 1))) + 1e-8)
        np.testing.assert_allclose(state.x, x, rtol=1e-10)
