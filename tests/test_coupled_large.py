"""Large problems with constraints: sparse matrices from products, closed forms, refusals."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sparse

import pdbo
from pdbo import RESULTS, Box, Equal, NonNegative, Problem, ProblemError, _coupled_large
from pdbo.coupled import follower, large_certificate, reduced
from pdbo.coupled.follower import Answer, begun
from pdbo.coupled.oracle import Oracle
from pdbo.coupled.ordering import SMALL, Ordering
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


@pytest.mark.parametrize(
    ("constraints", "match"),
    [
        ({"inner_constraint": lambda x, y: x - 9}, "inner_constraint never depends on y: what"),
        ({"outer_constraint": lambda x, y: x * 0}, "outer_constraint depends on neither x nor y"),
        ({"inner_constraint": lambda x, y: []}, "inner_constraint returns no numbers"),
        ({"inner_constraint": lambda x, y: y - x}, "inner_constraint cannot be evaluated"),
        ({"inner_constraint": lambda x, y: jnp.log(-y)}, "inner_constraint is not finite"),
        (  # -inf at the start
            {"inner_constraint": lambda x, y: jnp.append(y - x[KIND], jnp.log(y[0] - 1))},
            "inner_constraint is not finite",
        ),
        ({"outer_constraint": lambda x, y: jnp.log(x - 0.5)}, "outer_constraint is not finite"),
    ],
)
def test_bad_constraints(constraints, match):
    problem = Problem(capacity_f, wants_two, y_set=NonNegative(), **constraints)
    with pytest.raises(ProblemError, match=match) as error:
        pdbo.solve(problem, np.array([0.5, 1.5]), np.ones(N))
    assert str(error.value).count(". ") == 0


def test_a_row_that_appears_far_from_the_start_is_not_overlooked():
    late = lambda y: jnp.where(y < 1e4, -jnp.inf, y - 2e4)
    problem = Problem(
        capacity_f, wants_two, x_set=Box(0.0, 5e5), y_set=NonNegative(),
        inner_constraint=lambda x, y: jnp.append(y - x[KIND], late(y[0])),
    )  # fmt: skip
    start = np.array([0.5, 1.5]), np.ones(N)
    assert pdbo.solve(problem, *start).ok
    oracle = Oracle(problem, *map(jnp.asarray, start))
    assert not oracle.appeared(*oracle.start) and oracle.appeared(oracle.start[0], np.full(N, 3e4))


def test_a_point_without_room_is_not_certified():
    """At x = 0 the follower's set is one point, and the barrier alone decides where y is."""
    problem = Problem(
        lambda x, y: x @ x - jnp.sum(y), wants_two, x_set=Box(0.0, 5.0), y_set=NonNegative(),
        inner_constraint=capacity,
    )  # fmt: skip
    found = pdbo.solve(problem, np.array([0.5, 1.5]), np.ones(N))
    np.testing.assert_allclose(found.x, [2.0, 2.0], atol=1e-2)  # f falls until y is what he wants
    shut = pdbo.certify(problem, np.full(2, 1e-9), np.full(N, 5e-10))
    assert shut.eps > 1e-2


def test_large_problems_run_in_double(monkeypatch):
    """Whatever their size: in single precision no barrier method works."""
    monkeypatch.setattr("pdbo._precision.MOST_NUMBERS", 10)
    found = pdbo.solve(CAPACITIES, np.array([0.5, 1.5], np.float32), np.ones(N, np.float32))
    assert found.ok and np.asarray(found.y).dtype == np.float64


def test_a_follower_that_is_not_sparse_is_solved_by_gradients():
    problem = Problem(
        capacity_f, lambda x, y: wants_two(x, y) + jnp.sum(y) ** 2 / N,
        x_set=Box(0.0, 5.0), inner_constraint=capacity,
    )  # fmt: skip
    found = pdbo.solve(problem, np.array([0.5, 1.5]), np.ones(N), throw=False, steps=3)
    assert not found.ok
    with pytest.raises(ProblemError, match="cannot be certified"):
        pdbo.certify(problem, found.x, found.y)


def test_a_support_vector_machine_whose_leader_gets_all_he_wants():
    """b has no curvature and no bound, and f_y is zero at the solution, in a valley of c."""
    rng, n = np.random.default_rng(0), 80
    labels = np.repeat([-1.0, 1.0], n)
    Z = rng.normal(size=(2 * n, 2)) + 0.4 * labels[:, None]
    train, held = slice(0, None, 2), slice(1, None, 2)

    def loss(w, b, xp):
        return xp.mean(xp.exp(-labels[held] * (Z[held] @ w + b)))

    problem = Problem(
        lambda c, y: loss(y["w"], y["b"], jnp),
        lambda c, y: 0.5 * y["w"] @ y["w"] + 0.5 * jnp.exp(c) @ y["slack"] ** 2,
        inner_constraint=lambda c, y: 1 - y["slack"] - labels[train] * (Z[train] @ y["w"] + y["b"]),
    )
    y0 = {"w": np.ones(2), "b": 0.0, "slack": np.ones(n)}
    sol = pdbo.solve(problem, np.full(n, -3.0), y0)
    assert sol.ok
    best = scipy.optimize.minimize(lambda v: loss(v[:2], v[2], np), np.zeros(3), tol=1e-10)
    np.testing.assert_allclose(sol.f, best.fun, rtol=1e-6)

    def follower(v):
        slack = np.maximum(1 - labels[train] * (Z[train] @ v[:2] + v[2]), 0)
        return 0.5 * v[:2] @ v[:2] + 0.5 * np.exp(np.asarray(sol.x)) @ slack**2

    answer = scipy.optimize.minimize(follower, np.zeros(3), tol=1e-12)
    np.testing.assert_allclose(np.r_[sol.y["w"], sol.y["b"]], answer.x, atol=1e-3)


def test_a_matrix_with_dense_rows_and_a_few_dense_columns():
    """A hundred rows with eighty entries each: columns have ten of them, but for two."""
    rng = np.random.default_rng(0)
    A = np.where(rng.random((100, 800)) < 0.1, rng.standard_normal((100, 800)), 0.0)
    A[:, [3, 70]] = rng.standard_normal((100, 2))
    A = np.concatenate([A, np.eye(50, 800)])
    found = entries(lambda W: W @ A.T, lambda P: P @ A, A.shape)
    np.testing.assert_allclose(found.toarray(), A, atol=1e-9)


def test_matrices_that_are_semidefinite():
    definite, n = large_certificate._semidefinite, 40
    chain = sparse.diags_array(
        [-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]
    )
    assert definite(sparse.csr_array(chain))
    assert not definite(sparse.csr_array(chain - 0.1 * sparse.eye_array(n)))
    assert not definite(sparse.csr_array(np.diag([1.0, np.inf])))
    assert not definite(sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]])))
    zero = np.full((2, 2), 1.0) - np.diag([1e-9, 1e-9])  # singular once it is shifted
    assert not definite(sparse.csr_array(zero))


def test_a_follower_is_convex_if_rows_are_affine_and_g_bends_up_everywhere():
    at = Answer(np.ones(20), *(np.zeros(0),) * 3, 0.0)
    bent = lambda x, y, m, u: sparse.csr_array(np.diag(12 * y**2 - 4))  # of (y^2 - 1)^2
    oracle = SimpleNamespace(affine=True, straight=False, hessian_at=bent)
    assert not large_certificate.convex(oracle, None, at)  # it bends down nearer to zero
    oracle.hessian_at = lambda x, y, m, u: sparse.csr_array(np.diag(12 * y**2))
    assert large_certificate.convex(oracle, None, at)
    oracle.affine = False
    assert not large_certificate.convex(oracle, None, at)


def test_systems_of_rows_of_any_size():
    n, b = SMALL + 1, np.random.default_rng(0).standard_normal(SMALL + 1)
    chain = sparse.diags_array(
        [-np.ones(n - 1), 3 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]
    )
    chain = sparse.csc_array(chain)
    np.testing.assert_allclose(
        Ordering().definite(chain)(b), np.linalg.solve(chain.toarray(), b), rtol=1e-10
    )
    saddle = np.array([[1.0, 2.0], [2.0, 1.0]])  # rounding may make a matrix so
    found = Ordering().definite(sparse.csc_array(saddle))(b[:2])
    np.testing.assert_allclose(found, np.linalg.solve(saddle, b[:2]), rtol=1e-8)


def test_an_elimination_order_is_used_again_where_it_fits():
    rng, ordering = np.random.default_rng(0), Ordering()
    A = sparse.random_array((60, 60), density=0.05, rng=rng, data_sampler=rng.standard_normal)
    for shift in (9.0, 5.0, 7.0):
        matrix = sparse.csc_array(A + A.T + sparse.diags_array(shift + rng.random(60)))
        solve, pivots = ordering.symmetric(matrix)
        b = rng.standard_normal(60)
        np.testing.assert_allclose(solve(b), np.linalg.solve(matrix.toarray(), b), rtol=1e-9)
        assert np.sum(pivots > 0) == np.sum(np.linalg.eigvalsh(matrix.toarray()) > 0)
    other = sparse.csc_array(
        sparse.diags_array([np.full(59, 1.0), np.full(60, 4.0)], offsets=[1, 0])
    )
    other = sparse.csc_array(other + other.T)
    solve, _ = ordering.symmetric(other)  # entries elsewhere
    np.testing.assert_allclose(solve(b), np.linalg.solve(other.toarray(), b), rtol=1e-9)


def test_the_answer_is_exact_where_y_is_still_inside():
    """y is that of the barrier at which the certificate held; the answer is min(2, x)."""
    found = pdbo.solve(CAPACITIES, np.array([0.5, 1.5]), np.ones(N), tol=1e-2)
    known = np.minimum(2.0, found.x[KIND])
    assert np.max(np.abs(found.y_resolved - known)) < 1e-6 < np.max(np.abs(found.y - known))


def test_a_start_outside_its_set_is_projected_with_a_warning():
    far = np.array([0.5, 9.0])
    with pytest.warns(pdbo.errors.StartProjected, match="x0 lies outside x_set"):
        assert pdbo.solve(CAPACITIES, far, np.ones(N)).ok
    assert pdbo.certify(CAPACITIES, far, np.full(N, 0.5)).feasibility > 0.1


def test_a_step_that_lowers_nothing_becomes_short(monkeypatch):
    monkeypatch.setattr(follower, "_residuals", lambda *_: (np.ones(2),))
    at = Answer(np.zeros(2), np.ones(1), np.ones(1), np.zeros(0), 0.0)
    step = Answer(np.ones(2), np.zeros(1), np.zeros(1), np.zeros(0), 0.0)
    oracle = SimpleNamespace(straight=False)
    new, _ = follower._search(oracle, None, at, step, 1.0, (np.ones(2),), 0.0)
    np.testing.assert_array_equal(new.y, 0.5 ** (follower.HALVINGS - 1))


class Bowl:
    """A leader whose F is |x|^2 / 2 and whose steps are those of Newton, cut to the radius."""

    def point(self, x, near, mu):
        return SimpleNamespace(x=x, at=None, f=0.5 * x @ x, size=1.0)

    def residual(self, here):
        return np.linalg.norm(here.x)

    def direction(self, here, radius):
        d = -here.x * min(1.0, radius / np.linalg.norm(here.x))
        return d, -here.x @ d - 0.5 * d @ d, None


def test_a_stage_ends_at_its_goal_or_when_told_or_after_the_most_steps():
    bowl = Bowl()
    first, never = bowl.point(np.full(4, 3.0), None, 1.0), lambda here: False
    end, stopped = reduced.stage(bowl, first, 1.0, 1e-12, 30, never)
    assert not stopped and np.all(end.x == 0)
    seen = []
    end, stopped = reduced.stage(
        bowl, first, 1.0, 1e-12, 30, lambda here: seen.append(here) or True
    )
    assert stopped and seen == [end]
    np.testing.assert_allclose(np.linalg.norm(end.x - first.x), reduced.RADIUS * 2)
    end, stopped = reduced.stage(bowl, first, 1.0, 1e-12, 2, never)
    np.testing.assert_allclose(np.linalg.norm(end.x), 6 - 3 * reduced.RADIUS * 2)
    tiny = bowl.point(np.full(4, 1e-9), None, 1.0)  # no decrease that could be seen is left
    steps = []
    reduced.stage(bowl, tiny, 1.0, 0.0, 30, lambda here: bool(steps.append(here)))
    assert len(steps) == 1


def small(n=4, **more):
    """The problem of capacities with few followers, for what needs no size."""
    kind = np.arange(n) % 2
    f = lambda x, y: jnp.mean((y - jnp.asarray([1.0, 3.0])[kind]) ** 2) + 0.1 * x @ x
    more = {"y_set": NonNegative(), "inner_constraint": lambda x, y: y - x[kind]} | more
    return Problem(more.pop("f", f), more.pop("g", wants_two), **more)


def oracle_of(problem, n=4):
    return Oracle(problem, jnp.asarray([0.5, 1.5]), jnp.ones(n))


def test_a_descent_that_nothing_ends_goes_to_the_last_barrier(monkeypatch):
    oracle = oracle_of(small())
    leader = reduced.Leader(oracle, *oracle.bounds())
    assert np.all(np.isinf(leader.hi))
    here = leader.point(oracle.start[0], begun(oracle, *oracle.start), reduced.FIRST)
    never = lambda here: False
    end = reduced.descend(leader, here, 1e-4, never, never)
    x, y = oracle.point(end.x, end.at.y)
    np.testing.assert_allclose(x, lowest_capacities(), atol=2e-3)
    np.testing.assert_allclose(y, np.minimum(2, np.asarray(x))[np.arange(4) % 2], atol=1e-4)
    assert large_certificate.look(leader, end).feasibility < 1e-6
    monkeypatch.setattr(oracle, "appeared", lambda *_: True)  # a row that was left out
    assert large_certificate.look(leader, end).feasibility == np.inf
    monkeypatch.setattr(reduced, "_followed", lambda *_: None)  # no answer for the next barrier
    early = reduced.descend(leader, here, 1e-4, never, never)
    assert np.linalg.norm(early.x - end.x) < 1.0 and early.f >= 0
    monkeypatch.setattr(reduced, "stage", lambda leader, here, *_: (here, True))
    assert reduced.descend(leader, here, 1e-4, never, never) is here


def test_where_f_is_not_finite_there_is_no_point(monkeypatch):
    oracle = oracle_of(small(f=lambda x, y: jnp.log(x[0] - 0.2) + x @ x + jnp.sum(y)))
    leader, begin = reduced.Leader(oracle, *oracle.bounds()), begun(oracle, *oracle.start)
    assert leader.point(oracle.start[0], begin, 1.0) is not None
    assert leader.point(0.2 * oracle.start[0], begin, 1.0) is None
    lost = lambda oracle, x, at, *_: (at, (np.full(4, np.nan),) * 4)
    monkeypatch.setattr(follower, "_search", lost)
    assert leader.point(oracle.start[0], begin, 1.0) is None


def test_where_g_bends_down_its_matrix_is_shifted():
    wells = small(g=lambda x, y: jnp.sum((y**2 - 1) ** 2), y_set=Box(-3.0, 3.0))
    oracle = oracle_of(wells)
    x, y = oracle.start
    down, up = (follower.Factors(oracle, x, begun(oracle, x, t * y)) for t in (0.01, 1.0))
    assert up.convex and not down.convex
    none = np.zeros(oracle.below), np.zeros(0)
    assert down.solve(np.ones(4), *none)[0] @ np.ones(4) > 0  # a direction of descent


def test_a_ball_for_x_is_a_row_of_the_leader():
    oracle = oracle_of(small(x_set=pdbo.Ball(1.0)))
    assert np.all(np.isinf(oracle.bounds()))
    x = oracle.start[0]  # 0.5, 1.5, in other units
    inside, outside = (oracle.outer(t * x, oracle.start[1])[3] for t in (0.5, 2.0))
    assert np.all(inside < 0) and np.any(outside > 0)


def test_rows_that_are_dense_both_ways_are_not_for_newton():
    A = np.random.default_rng(0).standard_normal((100, 120))
    assert not oracle_of(small(120, inner_constraint=lambda x, y: A @ y - x[0]), 120).sparse


def test_how_a_large_run_ends():
    start = np.array([0.5, 1.5]), np.ones(N)
    cut = pdbo.solve(CAPACITIES, *start, steps=2, throw=False)
    assert cut.result is RESULTS.max_steps and len(cut.history["f"]) == 2
    late = pdbo.solve(CAPACITIES, *start, seconds=0.0, throw=False)
    assert late.result is RESULTS.stopped
    with pytest.raises(ProblemError, match="checkpoint cannot be used with constraints of this"):
        pdbo.solve(CAPACITIES, *start, checkpoint="nowhere")


def test_an_outer_constraint_that_no_answer_meets():
    problem = Problem(
        capacity_f, wants_two, x_set=Box(0.0, 5.0), y_set=NonNegative(),
        outer_constraint=lambda x, y: 3 - jnp.mean(y) - 0.01 * jnp.sum(x),
    )  # fmt: skip
    found = pdbo.solve(problem, np.array([0.5, 1.5]), np.ones(N), throw=False)
    assert found.result is RESULTS.infeasible and "meets outer_constraint" in found.message
    assert found.inner_multipliers is None
    np.testing.assert_allclose(found.y, 2.0, atol=1e-3)


def test_a_follower_with_two_wells_is_not_certified():
    wells = Problem(
        capacity_f, lambda x, y: jnp.sum((y**2 - 1) ** 2), x_set=Box(0.0, 5.0),
        y_set=Box(-3.0, 3.0), inner_constraint=lambda x, y: y - 2 - x[KIND],
    )  # fmt: skip
    start = np.array([0.5, 1.5]), np.ones(N)
    found = pdbo.solve(wells, *start, throw=False)
    assert found.result is RESULTS.settled and "not seen to be convex" in found.message
    np.testing.assert_allclose(found.x, 0.0, atol=1e-2)
    np.testing.assert_allclose(np.abs(found.y), 1.0, atol=1e-3)
    with pytest.raises(ProblemError, match="the follower is not seen to be convex"):
        pdbo.certify(wells, found.x, found.y)


def test_a_dense_follower_at_rest_and_what_gradients_cannot_do(monkeypatch):
    dense = lambda x, y: wants_two(x, y) + jnp.sum(y) ** 2 / N
    start = np.zeros(2), np.ones(N)
    rest = Problem(
        lambda x, y: x @ x + 0 * jnp.sum(y), dense, inner_constraint=lambda x, y: y - 9 - x[KIND]
    )
    found = pdbo.solve(rest, *start, throw=False)
    assert found.result is RESULTS.settled and len(found.history["f"]) == 1
    np.testing.assert_allclose(found.y, 1.0, atol=1e-4)  # 2 (y - 2) + 2 y = 0
    monkeypatch.setattr(_coupled_large, "_oracle", lambda *_: None)  # as it has been found above
    y, f = _coupled_large.answer_large(rest, *map(jnp.asarray, start))
    np.testing.assert_array_equal(y, start[1])
    assert f == 0
    both = Problem(rest.f, dense, outer_constraint=lambda x, y: x[0] - y)
    with pytest.raises(ProblemError, match="outer_constraint needs a follower whose second deriv"):
        pdbo.solve(both, *start)
