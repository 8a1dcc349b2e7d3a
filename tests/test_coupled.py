"""Constraints that couple the levels: closed forms, linear programs, brute force, and refusals."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import pdbo
from pdbo import RESULTS, Box, Equal, NonNegative, Problem, ProblemError, _coupled
from pdbo.coupled import rounds
from pdbo.coupled.certificate import fit
from pdbo.coupled.model import Model
from pdbo.coupled.polish import polish
from pdbo.coupled.rounds import Found, Search
from pdbo.problems import bolib
from pdbo.sets import Affine, Ball, Free, Halfspace, Polyhedron, Product, Set, Simplex


def pull(x, y):  # the follower wants to be at 2, the leader at 0
    return (y - 2) ** 2


def capacity(x, y):
    return y - x


TUG = Problem(lambda x, y: x**2 + (y - 0.5) ** 2, pull, inner_constraint=capacity)
"""y = min(x, 2), so f = x^2 + (x - 1/2)^2, lowest at x = y = 1/4; the multiplier is 2 (2 - 1/4)."""


def scaled(f_unit, g_unit, row_unit, length):
    """The same problem in other units."""
    return Problem(
        lambda x, y: f_unit * TUG.f(x / length, y / length),
        lambda x, y: g_unit * TUG.g(x / length, y / length),
        inner_constraint=lambda x, y: row_unit * (y - x),
    )


def test_a_closed_form_with_its_multiplier():
    solution = pdbo.solve(TUG, 1.0, 0.0)
    assert solution.ok and solution.state is None
    np.testing.assert_allclose([solution.x, solution.y], [0.25, 0.25], atol=1e-6)
    np.testing.assert_allclose(solution.inner_multipliers, 3.5, rtol=1e-5)
    # the multiplier is the derivative of the follower's value with its capacity
    value = lambda b: (min(b, 2.0) - 2) ** 2
    slope = (value(0.25 + 1e-6) - value(0.25 - 1e-6)) / 2e-6
    np.testing.assert_allclose(-slope, solution.inner_multipliers, rtol=1e-5)
    assert solution.history["f"][-1] == pytest.approx(0.125, abs=1e-6)
    assert "With constraints: eps is" in str(solution)


def test_without_a_tolerance_the_default_one_decides():
    assert pdbo.solve(TUG, 1.0, 0.0, tol=None).ok


def test_equalities_have_free_multipliers():
    weights = np.array([1.0, 2.0])
    problem = Problem(
        lambda x, y: (x - 2) ** 2 + jnp.sum(y**2),
        lambda x, y: jnp.sum(weights * (y - 1) ** 2),
        inner_constraint=lambda x, y: {"sum": Equal(jnp.sum(y) - x), "far": -y - 50},
    )
    # y = 1 + (x - 2) s with s = (1/w) / sum(1/w); f is a parabola in x
    share = (1 / weights) / np.sum(1 / weights)
    best = scipy.optimize.minimize_scalar(
        lambda x: (x - 2) ** 2 + np.sum((1 + (x - 2) * share) ** 2)
    )
    solution = pdbo.solve(problem, 1.0, jnp.zeros(2))
    assert solution.ok
    np.testing.assert_allclose(solution.x, best.x, atol=1e-5)
    u = solution.inner_multipliers["sum"]
    np.testing.assert_allclose(2 * weights * (np.asarray(solution.y) - 1), -u, atol=1e-5)
    np.testing.assert_array_equal(solution.inner_multipliers["far"], np.zeros(2))


def test_a_linear_follower_against_a_grid_of_linear_programs():
    A, b = np.array([[1.0, 2.0], [3.0, 1.0]]), np.array([4.0, 6.0])
    problem = Problem(
        lambda x, y, d: jnp.sum((x - 1) ** 2) - y[0],
        lambda x, y, d: -y[0] - x[0] * y[1],
        {"A": A, "b": b},
        x_set=Box(0.0, 3.0),
        y_set=NonNegative(),
        inner_constraint=lambda x, y, d: d["A"] @ y - d["b"],
    )

    def lowest(x):  # f is linear in y: the best of the follower's optimal vertices
        found = scipy.optimize.linprog([-1, -x], A, b)
        fixed = scipy.optimize.linprog([-1, 0], np.r_[A, [[-1, -x]]], np.r_[b, found.fun + 1e-9])
        return (x - 1) ** 2 + fixed.fun

    grid = min(lowest(x) for x in np.linspace(0, 3, 301))
    solution = pdbo.solve(problem, np.array([2.0]), np.zeros(2))
    assert solution.ok
    assert float(solution.f) <= grid + 1e-6
    np.testing.assert_allclose(solution.f, lowest(float(solution.x[0])), atol=1e-5)


def test_a_tiny_number_is_not_taken_for_the_unit_of_x():
    """x ends at zero but for rounding, where g is flat in y and the leader picks the lowest y."""
    entry = bolib.get("MitsosBarton2006Ex311")
    found = pdbo.solve(entry.problem, *entry.start)
    assert found.ok
    np.testing.assert_allclose([found.f, found.f_resolved, found.y[0]], -0.8, atol=1e-6)
    assert pdbo.certify(entry.problem, np.array([-1e-19]), np.array([-0.8])).eps < 1e-6


def test_the_answer_of_an_indifferent_follower_is_y(recwarn):
    """All y with y0 + y1 = 1 are as good for him; the leader's y is one of them."""
    problem = Problem(
        lambda x, y: (x - 1) ** 2 + (y[0] - 0.2 * x) ** 2, lambda x, y: -y[0] - y[1],
        x_set=Box(-2.0, 2.0), y_set=Box(-2.0, 2.0),
        inner_constraint=lambda x, y: y[0] + y[1] - 1,
    )  # fmt: skip
    found = pdbo.multistart(problem, 0.1, np.zeros(2), starts=4)
    assert found.ok
    np.testing.assert_allclose([found.x, found.f, found.f_resolved], [1, 0, 0], atol=1e-5)
    np.testing.assert_allclose(found.y_resolved, [0.2, 0.8], atol=1e-4)
    assert not [w for w in recwarn if issubclass(w.category, pdbo.errors.AnswerWarning)]


def test_an_outer_constraint_on_both():
    problem = Problem(
        lambda x, y: x**2 + y**2, lambda x, y: (y - x) ** 2,
        outer_constraint=lambda x, y: [2 - x - y, jnp.stack([x - 10, y - 10])],
    )  # fmt: skip
    solution = pdbo.solve(problem, 5.0, 0.0)
    assert solution.ok and solution.inner_multipliers is None
    np.testing.assert_allclose([solution.x, solution.y], [1, 1], atol=1e-5)


def test_inner_minima_that_tie():
    """Without a cut and its multiplier the point is neither found nor certified."""
    entry = bolib.get("MitsosBarton2006Ex314")  # f = (x - 1/4)^2 + y^2, g = y^3/3 - xy
    best = pdbo.multistart(entry.problem, *entry.start, starts=16)
    assert best.ok and best.certificate.ties > 0
    np.testing.assert_allclose([best.x[0], abs(best.y[0])], [0.25, 0.5], atol=1e-3)


def test_multistart_takes_starts_and_returns_all():
    starts = np.array([0.5, 1.0, 3.0])
    best = pdbo.multistart(TUG, starts, starts)
    assert best.ok and best.all.x.shape == (3,) and 0 <= best.index < 3
    np.testing.assert_allclose(best.x, 0.25, atol=1e-6)


def test_given_starts_are_in_the_problems_units(monkeypatch):
    """Measured in 1e5 the search starts where it is told to."""
    seen = []

    def search(model, starts, seed):
        seen.append(starts * model.length)
        return Search(model, starts, seed)

    monkeypatch.setattr("pdbo._coupled.Search", search)
    x0s, y0s = np.array([2e4, 3e5]), np.array([1e4, 1e5])
    best = pdbo.multistart(scaled(1.0, 1.0, 1.0, 1e5), x0s, y0s)
    np.testing.assert_allclose(seen[0], np.stack([x0s, y0s], axis=1))
    assert best.ok
    np.testing.assert_allclose(best.x, 0.25e5, rtol=1e-6)


@pytest.mark.parametrize("units", [(1e6, 1e-6, 1e5, 1.0), (1e-6, 1e6, 1e-5, 1e4), (1, 1, 1, 1e-4)])
def test_the_certificate_has_no_units(units):
    """At the solution and at a wrong point eps is what it is in other units."""
    for x, y in ((0.25, 0.25), (0.25, 0.2), (0.3, 0.3), (0.25, 0.26)):
        plain = pdbo.certify(TUG, x, y).eps
        other = pdbo.certify(scaled(*units), x * units[-1], y * units[-1]).eps
        if plain < 1e-6:
            assert other < 1e-5
        else:
            np.testing.assert_allclose(other, plain, rtol=0.3)


def test_what_the_certificate_refuses():
    right = pdbo.certify(TUG, 0.25, 0.25)
    assert right.eps < 1e-6 and isinstance(right, pdbo.results.ConstrainedCertificate)
    assert pdbo.certify(TUG, 0.25, 0.3).feasibility > 1e-2
    assert pdbo.certify(TUG, 0.25, 0.2).inner_gap > 1e-2
    off = pdbo.certify(TUG, 0.5, 0.5)  # feasible, an inner minimum, but f falls with x
    assert off.inner_gap < 1e-6 and off.feasibility < 1e-9 and off.stationarity > 1e-2


def test_a_row_that_is_active_everywhere_without_a_multiplier():
    """y = x, and nothing else, is the answer. The gradients of the conditions depend on each other,
    and no single combination of them with the right signs gives that of f at its minimum 1/2."""
    meets = Problem(
        lambda x, y: (x - 1) ** 2 + y**2, lambda x, y: (y - x) ** 2, inner_constraint=capacity
    )
    found = pdbo.solve(meets, 1, 1)  # whole numbers
    np.testing.assert_allclose([found.x, found.y], [0.5, 0.5], atol=1e-6)
    assert found.ok and found.certificate.biactive == 1
    assert pdbo.certify(meets, 0.4, 0.4).stationarity > 1e-2


def test_a_kink_is_certified_if_f_rises_on_both_sides():
    """y = max(x, 0): f = a x + b y has the slope a to the left of 0, and a + b to the right."""
    for a, b in ((-1.0, 2.0), (-1.0, 0.5), (1.0, 0.5), (1.0, -2.0)):
        problem = Problem(
            lambda x, y, a=a, b=b: a * x + b * y, lambda x, y: (y - x) ** 2,
            inner_constraint=lambda x, y: -y,
        )  # fmt: skip
        certificate = pdbo.certify(problem, 0.0, 0.0)
        assert certificate.biactive == 1
        assert (certificate.eps < 1e-6) == (a <= 0 <= a + b)


def test_a_start_outside_its_set_is_projected_with_a_warning():
    boxed = Problem(TUG.f, TUG.g, x_set=Box(0.0, 1.0), inner_constraint=capacity)
    with pytest.warns(pdbo.errors.StartProjected, match="x0 lies outside x_set"):
        assert pdbo.solve(boxed, 5.0, 0.0).ok
    assert pdbo.certify(boxed, 5.0, 2.0).feasibility > 0.1


def capacity_root(x, y):
    return jnp.stack([y**2 - x, y - 1])


def test_a_degenerate_inner_set_is_flagged():
    problem = Problem(
        lambda x, y: x + (y + 1) ** 2, lambda x, y: (y - 3) ** 2,
        x_set=NonNegative(), inner_constraint=lambda x, y: y**2 - x,
    )  # fmt: skip
    found = pdbo.solve(problem, 1.0, 0.5, throw=False)  # f falls to 1 at x = 0, where y has no room
    assert not found.ok
    wide = Problem(problem.f, problem.g, x_set=Box(0.0, 1.0), inner_constraint=capacity_root)
    assert pdbo.certify(wide, 1e-10, 1e-5).unstable


def test_unbounded_and_infeasible_are_results_of_their_own():
    far = Problem(lambda x, y: -x, lambda x, y: (y - x) ** 2, inner_constraint=lambda x, y: y - x)
    with pytest.raises(pdbo.SolveError, match="f falls without end") as error:
        pdbo.solve(far, 1.0, 1.0)
    assert error.value.solution.result is RESULTS.unbounded
    deep = Problem(lambda x, y: x**2, lambda x, y: -y, inner_constraint=lambda x, y: x - y)
    with pytest.raises(pdbo.SolveError, match=r"g\(x, .\) falls without end"):
        pdbo.solve(deep, 1.0, 1.0)
    none = Problem(
        lambda x, y: x**2, lambda x, y: y**2, inner_constraint=lambda x, y: [y**2 + 1 + x**2]
    )
    found = pdbo.solve(none, 1.0, 1.0, throw=False)
    assert found.result is RESULTS.infeasible and "no y was found" in found.message
    shut = Problem(
        lambda x, y: x**2, lambda x, y: (y - x) ** 2, outer_constraint=lambda x, y: [1 - x, 1 + y]
    )
    assert pdbo.solve(shut, 0.0, 0.0, throw=False).result is RESULTS.infeasible


def test_an_inner_problem_without_a_point_at_the_start():
    """y is in [1, x]: there is none at x = 0."""
    problem = Problem(
        lambda x, y: (x - 1.5) ** 2 + y, lambda x, y: (y - 3) ** 2,
        inner_constraint=lambda x, y: jnp.stack([1 - y, y - x]),
    )  # fmt: skip
    found = pdbo.solve(problem, 0.0, 0.0)
    assert found.ok
    np.testing.assert_allclose([found.x, found.y], [1.0, 1.0], atol=1e-3)


@pytest.mark.parametrize(
    ("constraints", "match"),
    [
        ({"inner_constraint": 3}, "inner_constraint must be a function, got int"),
        ({"inner_constraint": lambda y: y}, "inner_constraint has the wrong number of arguments"),
        ({"inner_constraint": lambda x, y: x - 1}, "inner_constraint never depends on y"),
        ({"outer_constraint": lambda x, y: 0 * x}, "outer_constraint depends on neither x nor y"),
        (
            {"inner_constraint": lambda x, y: "y"},
            r"inner_constraint\(x, y\) must be a number or an",
        ),
        (
            {"inner_constraint": lambda x, y: -1},
            "is the constant -1: it depends on neither x nor y",
        ),
        ({"inner_constraint": lambda x, y: Equal(0.5)}, r"\.value is the constant 0\.5"),
        (
            {"inner_constraint": lambda x, y: Equal({"a": y - x})},
            "inner_constraint: pdbo.Equal takes a number or an array, got dict; put it around each",
        ),
        ({"outer_constraint": lambda x, y: Equal(Equal(y - x))}, "takes .* got Equal; put it"),
        ({"inner_constraint": lambda x, y: Equal}, "got the class Equal .did you forget the par"),
        ({"inner_constraint": Equal(1.0)}, "inner_constraint must be a function, got Equal"),
        ({"inner_constraint": lambda x, y: Equal(x - 1)}, "inner_constraint never depends on y"),
        ({"inner_constraint": lambda x, y: Equal(y == x)}, r"\.value is bool for float\d\d"),
        ({"inner_constraint": lambda x, y: y - x, "x_set": Equal(1.0)}, "x_set must be a set"),
        ({"inner_constraint": lambda x, y: jnp.arange(3)}, r"is int\d\d for float\d\d x and y"),
        (
            {"inner_constraint": lambda x, y: jax.lax.complex(y, y)},
            r"is complex\d+ for float\d\d x and y",
        ),
        ({"inner_constraint": lambda x, y: y - jnp.nan}, "inner_constraint is not finite at the"),
        ({"inner_constraint": lambda x, y: None}, "inner_constraint returns no numbers"),
        ({"inner_constraint": lambda x, y: y - x[0]}, "check the shapes of x0, y0 and data"),
        ({"inner_constraint": lambda x, y, d: y - x}, "has the wrong number of arguments"),
        ({"inner_constraint": lambda x, y: y - x if y > 0 else y}, "in place of a Python if"),
        ({"inner_constraint": lambda x, y: y < x}, r"is bool for float\d\d x and y"),
        ({"inner_constraint": lambda x, y: y @ np.ones(3)}, "inner_constraint cannot be evaluated"),
        ({"outer_constraint": lambda x, y: []}, "outer_constraint returns no numbers"),
        ({"inner_constraint": lambda x, y: jnp.log(y - 5)}, "inner_constraint is not finite"),
        (  # -inf at the start, and y <= 2 elsewhere
            {"inner_constraint": lambda x, y: jnp.stack([jnp.log(y - 1), y - x - 9])},
            "inner_constraint is not finite",
        ),
        ({"outer_constraint": lambda x, y: jnp.log(x - 1)}, "outer_constraint is not finite"),
    ],
)
def test_bad_constraints(constraints, match):
    with pytest.raises(ProblemError, match=match) as error:
        pdbo.solve(Problem(TUG.f, TUG.g, **constraints), 1.0, 1.0)
    assert str(error.value).count(". ") == 0
    kept = error.value.solution  # nothing is lost
    if kept is not None:
        assert kept.result is RESULTS.bad_problem and float(kept.x) == 1.0


@pytest.mark.parametrize("start", [(np.nan, 1.0), (1.0, np.inf), (True, 1.0), (1j, 1.0)])
@pytest.mark.parametrize("door", [pdbo.solve, pdbo.multistart, pdbo.certify])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_starts_that_are_no_finite_real_numbers(door, start):
    with pytest.raises(
        ProblemError, match=r"choose one where both|must be a number or an"
    ) as error:
        door(TUG, *start)
    assert str(error.value).count(". ") == 0


def test_a_row_that_appears_far_from_the_start_is_not_overlooked():
    """It is minus infinity wherever rows are looked at first, and then demands y <= 1e6."""
    limits = np.array([0.0, np.inf])
    problem = Problem(TUG.f, TUG.g, inner_constraint=lambda x, y: y - x - limits)
    assert pdbo.solve(problem, 1.0, 1.0).ok  # an infinite limit is none
    late = lambda x, y: jnp.where(x < 1e6, -jnp.inf, y - 1e6)
    problem = Problem(
        lambda x, y: -x, lambda x, y: (y - x) ** 2, x_set=Box(0.0, 3e6),
        inner_constraint=lambda x, y: jnp.stack([late(x, y), y - x - 9]),
    )  # fmt: skip
    assert pdbo.certify(problem, 2e6, 2e6).feasibility > 0.1
    found = pdbo.solve(problem, 1.0, 1.0, throw=False)
    assert not found.ok


def test_what_cannot_handle_constraints_says_so():
    sentence = "cannot handle inner_constraint"
    for solver in (pdbo.PDBO(), pdbo.solvers.Implicit(), pdbo.solvers.ITD()):
        with pytest.raises(ProblemError, match=f"{type(solver).__name__} {sentence}"):
            pdbo.solve(TUG, 1.0, 1.0, solver)
    with pytest.raises(ProblemError, match=f"PDBO {sentence}"):
        pdbo.multistart(TUG, 1.0, 1.0, pdbo.PDBO(), starts=2)
    with pytest.raises(ProblemError, match=f"compare {sentence}"):
        pdbo.compare(TUG, 1.0, 1.0, [pdbo.PDBO()])
    with pytest.raises(ProblemError, match=f"shard {sentence}"):
        pdbo.shard(TUG)
    with pytest.raises(ProblemError, match="under jit or vmap"):
        jax.jit(lambda x: pdbo.solve(TUG, x, 1.0).x)(1.0)
    with pytest.raises(ProblemError, match="under jit or vmap"):
        jax.jit(lambda x: pdbo.certify(TUG, x, 1.0).eps)(1.0)
    with pytest.raises(ProblemError, match="radius must be a number > 0, got -1"):
        pdbo.multistart(TUG, 1.0, 1.0, starts=2, radius=-1)
    data = pdbo.Batches(np.ones(4), np.ones(4), 2)
    with pytest.raises(ProblemError, match="cannot be used with Batches"):
        Problem(lambda x, y, d: x, lambda x, y, d: y, data, inner_constraint=lambda x, y, d: y)


SETS: list[Set] = [
    Free(), Box(-1.0, np.array([0.5, np.inf, 1.0])), NonNegative(), Ball(1.0), Simplex(1.0),
    Halfspace(np.array([1.0, 2.0, 0.0]), 0.5), Affine(np.ones((1, 3)), np.ones(1)),
    Polyhedron(np.ones((1, 3)), np.ones(1), -np.eye(3), np.zeros(3)),
]  # fmt: skip


@pytest.mark.parametrize("set_", SETS, ids=lambda s: type(s).__name__)
def test_the_rows_of_a_set_say_what_it_contains(set_):
    draws = np.random.default_rng(0).normal(size=(20, 3))

    @jax.jit
    @jax.vmap
    def look(z):
        return set_.project(z), set_.constraints(z), set_.contains(z, 1e-5)

    inside = []
    for points in (draws, look(draws)[0]):
        _, (below, zero), contained = jax.tree.map(np.asarray, look(points))
        rows = np.all(below <= 1e-6, 1) & np.all(np.abs(zero) <= 1e-6, 1)
        assert rows.tolist() == contained.tolist()
        inside.append(rows)
    assert inside[1].all()


def test_a_polyhedron_is_what_other_sets_are():
    """A simplex and a box, written as rows, with and without a constraint."""
    simplex = Polyhedron(np.ones((1, 3)), np.ones(1), -np.eye(3), np.zeros(3))
    cube = Polyhedron(C=np.concatenate([np.eye(3), -np.eye(3)]), d=np.full(6, 2.0))
    f = lambda x, y: jnp.sum((y - jnp.array([0.6, 0.3, 0.1])) ** 2) + 0.1 * jnp.sum(x**2)
    g = lambda x, y: jnp.sum((y - x) ** 2)
    for row in (None, lambda x, y: y[0] - 0.5 - 0.1 * x[1]):
        pairs = ((cube, simplex), (Box(-2.0, 2.0), Simplex(1.0)))
        one, other = (
            pdbo.solve(
                Problem(f, g, x_set=x_set, y_set=y_set, inner_constraint=row),
                np.zeros(3, np.float32 if row is None else float), np.full(3, 1 / 3, np.float32),
            )
            for x_set, y_set in pairs
        )  # fmt: skip
        assert one.ok and other.ok
        np.testing.assert_allclose(one.y, other.y, atol=1e-5)
        np.testing.assert_allclose(one.f, other.f, atol=1e-6)


def test_first_order_steps_project_on_a_polyhedron():
    simplex = Polyhedron(np.ones((1, 3)), np.ones(1), -np.eye(3), np.zeros(3))
    f = lambda x, y: jnp.sum((y - x) ** 2) + jnp.sum((x - 1) ** 2)
    g = lambda x, y: jnp.sum((y - jnp.array([0.6, 0.3, 0.1])) ** 2)
    solver, ends = pdbo.solvers.ITD(), []
    for y_set in (simplex, Simplex(1.0)):
        problem = Problem(f, g, y_set=y_set)
        state = solver.init(problem, jnp.zeros(3), jnp.ones(3) / 3, jax.random.key(0))
        step = jax.jit(lambda state, problem=problem: solver.step(problem, state))
        for _ in range(50):
            state = step(state)
        ends.append(solver.output(state))
    np.testing.assert_allclose(ends[0].x, ends[1].x, atol=1e-10)
    np.testing.assert_allclose(ends[0].y, ends[1].y, atol=1e-10)


def test_rounds_can_be_seen_stopped_and_saved(tmp_path):
    entry = bolib.get("MitsosBarton2006Ex314")

    def run(**options):  # no point is within this tolerance
        return pdbo.solve(entry.problem, *entry.start, tol=0.0, throw=False, **options)

    whole = run()
    assert len(whole.history["step"]) > 1
    rows = []
    stopped = run(callback=lambda row: rows.append(row) or True)
    assert stopped.result is RESULTS.stopped and len(rows) == 1 and rows[0]["step"] == 1
    saves = {"checkpoint": tmp_path}
    late = run(seconds=0.0, **saves)
    assert late.result is RESULTS.stopped and len(list(tmp_path.glob("step*"))) == 1
    resumed = run(**saves)
    again = run(**saves)  # it had ended
    for solution in (resumed, again):
        np.testing.assert_array_equal(solution.y, whole.y)
        for name, column in whole.history.items():
            np.testing.assert_array_equal(solution.history[name], column)
    with pytest.raises(pdbo.errors.CheckpointError, match="with another x0, y0 or key"):
        pdbo.solve(entry.problem, entry.start[0] + 0.1, entry.start[1], **saves)
    with pytest.raises(pdbo.errors.CheckpointError, match="it is that of another problem"):
        other = Problem(TUG.f, TUG.g, y_set=Box(0.0, 1.0), inner_constraint=capacity)
        pdbo.solve(other, 1.0, 0.0, **saves)


def test_the_radius_bounds_the_starts():
    model = Model(TUG, 1.0, 2.0)
    Z = model.spread(64, 1, 0.1) * model.length
    assert np.all(np.abs(Z - [1.0, 2.0]) <= 0.1 + 1e-12) and np.ptp(Z, axis=0).min() > 0.1
    assert pdbo.multistart(TUG, 1.0, 0.0, starts=4, radius=0.5).ok


def test_sets_bind_the_follower_too():
    problem = Problem(
        lambda x, y: (y["a"][0] - 0.2) ** 2 + x**2 + (y["b"] - 1) ** 2,
        lambda x, y: x * y["a"][0] - 2 * y["a"][1] + y["a"][0] ** 2 + (y["b"] - 3) ** 2,
        y_set=Product({"a": Simplex(1.0), "b": Free()}),
        inner_constraint=lambda x, y: y["b"] - x - 1,
    )

    def f(x):  # a = (t, 1 - t) with t = (-x - 2) / 2 in [0, 1], b = min(3, 1 + x)
        t = np.clip((-x - 2) / 2, 0, 1)
        return (t - 0.2) ** 2 + x**2 + (min(3.0, 1 + x) - 1) ** 2

    best = min(f(x) for x in np.linspace(-4, 4, 8001))
    solution = pdbo.solve(problem, 1.0, {"a": jnp.array([0.5, 0.5]), "b": 0.0})
    assert solution.ok and problem.y_set.contains(solution.y, 1e-6)
    np.testing.assert_allclose(solution.f, best, atol=1e-5)


def test_affine_rows_and_bounds_are_found():
    problem = Problem(
        lambda x, y: x[0] * y[0] + x[1], lambda x, y: y @ y,
        outer_constraint=lambda x, y: jnp.stack([x[0] - 3, -2 * x[1], x[0] + x[1] - y[0]]),
        inner_constraint=lambda x, y: jnp.stack([y[0] - x[0] ** 2, 1 - y[1]]),
    )  # fmt: skip
    with jax.enable_x64(True):
        model = Model(problem, np.ones(2), np.ones(2))
    assert list(model.curved) == [0, 1, 5]
    np.testing.assert_allclose(model.x_hi, [3, np.inf])
    np.testing.assert_allclose(model.x_lo, [-np.inf, 0])
    np.testing.assert_allclose(model.lo[3], 1)


def test_least_squares_with_signs():
    rng = np.random.default_rng(1)
    for _ in range(20):
        A, b, free = rng.normal(size=(6, 5)), rng.normal(size=6), rng.random(5) < 0.4
        lo = np.where(free, -np.inf, 0.0)
        known = scipy.optimize.lsq_linear(A, b, (lo, np.full(5, np.inf)), tol=1e-14)
        w, left = fit(A, b, free)
        assert np.all(w[~free] >= 0)
        np.testing.assert_allclose(left, np.sqrt(2 * known.cost), atol=1e-8)


def test_derivatives_against_finite_differences():
    problem = Problem(
        lambda x, y: jnp.exp(x[0] * y[0]) + y[1] ** 3,
        lambda x, y: jnp.sin(x[0] + y[0]) * y[1] ** 2,
        inner_constraint=lambda x, y: jnp.stack([x[0] * y[0] ** 2 - 4, y[0] + y[1] - 5]),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        model = Model(problem, np.ones(1), np.ones(2))
        z = rng.normal(size=(1, 3))
        a, b, v = rng.normal(size=(1, 4)), rng.normal(size=(1, 4)), rng.normal(size=(1, 2))
        b[0, 0] = 0.0  # the weights are of inner rows

        def psi(z):
            d = model.derive(z, a, b, v)
            return (a @ d.R[0] + b @ d.P[0])[0], d

        value, d = psi(z)
        h = 1e-5 * np.eye(3)
        slope = np.array([(psi(z + e)[0] - psi(z - e)[0]) / 2e-5 for e in h])
        np.testing.assert_allclose(d.slope[0], slope, rtol=1e-6, atol=1e-7)
        turn = lambda part: np.stack(
            [(getattr(psi(z + e)[1], part)[0] - getattr(psi(z - e)[1], part)[0]) / 2e-5 for e in h],
            axis=-1,
        )
        for first, second in (("R", "J"), ("st", "D"), ("slope", "H")):
            np.testing.assert_allclose(
                getattr(d, second)[0], turn(first), rtol=1e-5, atol=1e-6, err_msg=second
            )
        np.testing.assert_allclose(d.DP[0, 1:], turn("P")[1:], rtol=1e-5, atol=1e-6)
        assert np.isfinite(value)


def test_bolib_is_complete():
    assert len(bolib.names()) == 102
    with pytest.raises(ValueError, match="unknown problem"):
        bolib.get("nothing")
    entry = bolib.get("Bard1988Ex3")
    x, y = entry.start
    problem = entry.problem
    np.testing.assert_allclose(problem.outer(x, y), entry.evaluate(entry.f, x, y), rtol=1e-6)
    rows = [entry.evaluate(row, x, y) for row in entry.inner]
    np.testing.assert_allclose(problem.constraint("inner", x, y), rows, rtol=1e-6)


# Parts of the search.


def found(x, y, f, g=0.0, violation=0.0, value=0.0):
    """Points of TUG with numbers of one's own."""
    columns = np.broadcast_arrays(x, y, f, g, violation, value)
    x, y, f, g, violation, value = (np.atleast_1d(c).astype(float) for c in columns)
    return Found(x[:, None], y[:, None], f, g, violation, value, np.arange(len(x)))


@pytest.fixture
def search():
    return Search(Model(TUG, 1.0, 0.0), np.array([[1.0, 0.0]]), 0)


def test_a_point_far_away_counts_if_it_is_lower_than_all_others(search):
    far = 1e6
    assert search._beyond(found([1.0, 2.0], 0.0, [3.0, 4.0])) is None  # none is far away
    alone = search._beyond(found([far], 0.0, [3.0]))
    assert alone is not None and alone.x[0, 0] == far
    lower = search._beyond(found([1.0, far], 0.0, [3.0, 1.0]))
    assert lower is not None and lower.x[0, 0] == far
    assert search._beyond(found([1.0, far], 0.0, [3.0, 3.0])) is None
    # so far away, a violation of 1e-5 may explain a decrease of 2
    assert search._beyond(found([1.0, far], 0.0, [3.0, 1.0], violation=1e-5)) is None


def test_the_first_point_that_more_inner_solves_do_not_refute(search, monkeypatch):
    """g is 0 at every point, and the inner solves find a value of its own for every x."""
    values = {1.0: np.inf, 2.0: 0.5, 3.0: -1.0, 4.0: 0.0}
    monkeypatch.setattr(
        search, "lookout", lambda x, y: (np.array([[9.0]]), np.array([values[float(x[0])]]))
    )
    looked = found([1.0, 1.0, 2.0, 3.0, 4.0], 0.0, 0.0, value=[0.0, 0.0, 0.5, 0.0, 0.0])
    point, *_ = search._unrefuted(looked)
    assert point is not None and point.x[0, 0] == 4.0
    monkeypatch.setattr(rounds, "CHECKS", 2)
    point, minima, around = search._unrefuted(looked)
    assert point is None and minima.size == around.size == 0


def test_points_stay_where_a_polish_ends_nowhere(search, monkeypatch):
    nowhere = np.full((1, 1), np.nan)
    monkeypatch.setattr(rounds, "polish", lambda *_: (nowhere, nowhere, nowhere))
    point, weights = found([1.0], 0.5, 2.0), np.ones(3)
    same, kept = search.polished(point, weights)
    assert same is point and kept is weights


def test_a_curved_row_is_reached_by_gauss_newton_steps(monkeypatch):
    """From outside the unit circle, along the ray: each step is one of Newton for a root."""
    problem = Problem(
        lambda x, y: x**2, lambda x, y: -jnp.sum(y), inner_constraint=lambda x, y: y @ y - 1
    )
    model = Model(problem, 1.0, np.array([0.5, 0.0]))
    search = Search(model, np.array([[1.0, 0.5, 0.0]]), 0)
    x, y = np.ones((1, 1)), np.array([[1.001, 0.0]]) / model.length[1:]
    ends = search._onto_rows(x, y) * model.length[1:]
    np.testing.assert_allclose(ends, [[1.0, 0.0]], atol=1e-7)
    monkeypatch.setattr(rounds, "ONTO", 1)
    once = search._onto_rows(x, y) * model.length[1:]
    np.testing.assert_allclose(once, [[(1.001 + 1 / 1.001) / 2, 0.0]], atol=1e-12)


def test_a_linear_problem_has_no_program():
    problem = Problem(
        lambda x, y: x + 2 * y, lambda x, y: -y, inner_constraint=lambda x, y: y - 3 * x - 1
    )
    model = Model(problem, 1.0, 2.0)
    assert not len(model.curved)
    z = np.array([[0.3, -0.7]])
    rows = model.rows(z) / model.unit
    x, y = z[0] * model.length
    np.testing.assert_allclose(rows, [[x + 2 * y, -y, y - 3 * x - 1]], rtol=1e-12)
    ones, none = np.ones((1, 3)), np.zeros((1, 3))
    d = model.derive(z, ones, none, np.zeros((1, 1)))
    J = d.J[0] / model.unit[:, None] / model.length
    np.testing.assert_allclose(J, [[1, 2], [0, -1], [-3, 1]], rtol=1e-12)
    assert not np.any(d.H)
    np.testing.assert_allclose(model.slopes(z, ones)[1], d.J.sum(axis=1)[:, 1:], rtol=1e-12)


def test_what_is_observed_is_in_the_history():
    solution = pdbo.solve(TUG, 1.0, 0.0, observe=lambda x, y: {"apart": abs(x - y)})
    np.testing.assert_allclose(solution.history["apart"][-1], 0.0, atol=1e-6)
    row = _coupled._row(Model(TUG, 1.0, 0.25), 0, rounds.Round(0, None), lambda x, y: {"y": y})
    np.testing.assert_allclose(row["y"], [0.25])  # no point has been found: the start
    assert np.isnan(row["f"])


def test_small_programs_run_on_the_processor(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with _coupled._on_cpu():
        assert jax.config.jax_default_device == jax.devices("cpu")[0]
    assert jax.config.jax_default_device is None


def test_a_problem_with_constraints_has_no_state():
    start = SimpleNamespace(problem=TUG, x=1.0, y=0.0, state=1)
    with pytest.raises(ProblemError, match="has no state: give x0 and y0"):
        _coupled._check_options(start, pdbo.AutoPDBO(), None)


def test_a_slope_without_end_ends_a_polish():
    problem = Problem(
        lambda x, y: x**2 + jnp.sqrt(y), lambda x, y: (y - x) ** 2,
        inner_constraint=lambda x, y: -y,
    )  # fmt: skip
    model = Model(problem, 1.0, 1.0)
    x, y, _ = polish(model, np.ones((1, 1)), np.zeros((1, 1)), np.ones(len(model.kept)))
    np.testing.assert_array_equal([x, y], [[[1.0]], [[0.0]]])
