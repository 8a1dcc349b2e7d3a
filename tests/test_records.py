"""What records cost and hold during a run, and outcomes that are computed when looked at."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo._estimate import estimate
from pdbo._solver import Point
from pdbo._verdict import final

X0, Y0 = 2.0, np.array([0.5, 0.5])


def quadratic():
    """y = B x - c is the inner minimum; f is a quadratic of x and y."""
    rng = np.random.default_rng(0)
    B, c, a = rng.standard_normal((3, 2)), rng.standard_normal(3), rng.standard_normal(3)
    f = lambda x, y: 0.5 * jnp.sum((y - a) ** 2) + 0.5 * jnp.sum(x**2)
    g = lambda x, y: 0.5 * jnp.sum(jnp.array([1.0, 2.0, 5.0]) * (y - B @ x + c) ** 2)
    return pdbo.Problem(f, g), B, c, a


def test_the_outcome_waits_until_it_is_looked_at():
    sol = pdbo.solve(cases.toy(), X0, Y0, cases.paper_pdbo(), steps=20, tol=1e-9)
    assert sol.is_pending
    copy = pickle.loads(pickle.dumps(sol.outcome))
    assert not sol.is_pending and not sol.ok and sol.result is pdbo.RESULTS.max_steps
    again = pdbo.certify(cases.toy(), sol.x, sol.y, sol.multiplier)
    assert float(sol.certificate.eps) == float(again.eps) == float(copy.certificate.eps)
    assert "After 20 iterations" in sol.message


def test_printing_a_large_run_computes_nothing(monkeypatch):
    """A certificate of a network may take a minute: it waits until someone asks for it."""
    options = dict(steps=20, tol=1e-9)
    small = pdbo.solve(cases.toy(), X0, Y0, cases.paper_pdbo(), **options)
    monkeypatch.setattr("pdbo._solution.MANY", 2)
    sol = pdbo.solve(cases.toy(), X0, Y0, cases.paper_pdbo(), **options)
    for text in (str(sol), sol._repr_html_()):
        assert sol.is_pending and not sol.answer.known
        assert "After 20 iterations: not judged yet" in text and "f = " in text
        assert "eps is" not in text and "solved again" not in text
    assert "with y solved again" in str(small) and not small.is_pending
    assert not sol.ok and "not judged yet" not in str(sol) and "eps is" in str(sol)


def test_a_run_that_meets_its_tolerance_has_been_judged():
    sol = pdbo.solve(cases.toy(), X0, Y0, cases.paper_pdbo(), tol=0.1, every=10)
    assert not sol.is_pending and sol.ok and sol.steps < 10_000
    assert sol.certificate.eps <= 0.1


def test_without_a_tolerance_nothing_is_estimated():
    sol = pdbo.solve(cases.toy(), X0, Y0, cases.paper_pdbo(), steps=200, tol=None)
    known = pdbo.solve(cases.toy(), X0, Y0, cases.paper_pdbo(), steps=200, tol=0)
    assert np.isnan(sol.history["eps"]).all() and np.isfinite(known.history["eps"]).all()
    np.testing.assert_array_equal(sol.history["f"], known.history["f"])
    np.testing.assert_array_equal(sol.x, known.x)
    assert sol.is_pending and float(sol.certificate.eps) == float(known.certificate.eps)


def test_the_implicit_gradient_is_that_of_the_closed_form():
    problem, B, c, a = quadratic()
    x = np.array([0.3, -0.7])
    y = B @ x - c
    with jax.enable_x64(True):
        found = estimate(problem, Point(jnp.asarray(x), jnp.asarray(y)), 50)
    slope = x + B.T @ (y - a)
    assert float(found.stationarity) == pytest.approx(np.linalg.norm(slope), rel=1e-9)
    assert float(found.inner_gap) == pytest.approx(0, abs=1e-12)


def test_the_implicit_gradient_keeps_to_the_face_of_y():
    """y1 is held at its bound, so f falls with y0 = x alone."""
    problem = pdbo.Problem(
        lambda x, y: (y[0] - 1) ** 2 + (y[1] - 1) ** 2,
        lambda x, y: 0.5 * (y[0] - x) ** 2 + 0.5 * (y[1] + x) ** 2 + 3 * y[1],
        y_set=pdbo.NonNegative(),
    )
    with jax.enable_x64(True):
        point = Point(jnp.asarray(0.25), jnp.asarray([0.25, 0.0]))
        found = estimate(problem, point, 50)
    assert float(found.stationarity) == pytest.approx(1.5, rel=1e-9)


def test_the_lagrangian_is_that_of_definition_1():
    """At (x, y) with multiplier 2 on f = x + y0 and g = (y0 - x)^2 / 2, by hand."""
    problem = pdbo.Problem(lambda x, y: x + y[0], lambda x, y: 0.5 * jnp.sum((y - x) ** 2))
    with jax.enable_x64(True):
        point = Point(jnp.asarray(1.0), jnp.asarray([1.5]), jnp.asarray(2.0), None)
        found = estimate(problem, point, 50)
    # with multiplier 2 the gradient is (1 - 1, 1 + 1); the one that fits best is 0, with (1, 1)
    assert float(found.inner_gap) == pytest.approx(0.125, rel=1e-9)
    assert float(found.stationarity) == pytest.approx(2**0.5, rel=1e-9)
    assert float(found.multiplier) == 0


def test_g_without_a_minimum_is_a_failure_at_once():
    problem = pdbo.Problem(lambda x, y: (y - 1) ** 2 + x**2, lambda x, y: x * y)
    with pytest.raises(pdbo.SolveError, match="g"):
        pdbo.solve(problem, 1.0, 1.0, pdbo.PDBO(), steps=30)


def test_batches_are_recorded_after_ten_passes():
    rng = np.random.default_rng(0)
    data = {"a": rng.standard_normal(200)}
    problem = pdbo.Problem(
        lambda x, y, d: jnp.mean((y - d["a"]) ** 2) + x**2,
        lambda x, y, d: jnp.mean((y - x - d["a"]) ** 2),
        pdbo.Batches(data, data, 5),
    )
    solver = pdbo.PDBO(primal_step=0.01, dual_step=0.01, inner_step=0.1)
    sol = pdbo.solve(problem, 0.0, 0.0, solver, steps=1_000)
    np.testing.assert_array_equal(sol.history["step"], [0, 400, 800, 1000])
    assert np.isnan(sol.history["eps"]).all() and np.isfinite(sol.history["f"]).all()
    often = pdbo.solve(problem, 0.0, 0.0, solver, steps=1_600, every=800, tol=0)
    assert np.isfinite(often.history["eps"]).all()


def test_a_large_multiplier_is_no_failure_if_the_certificate_holds():
    R = pdbo.RESULTS
    assert final(R.multiplier_diverged, True) == R.success
    assert final(R.multiplier_diverged, False) == R.multiplier_diverged


def test_a_callback_sees_every_row_and_may_stop_the_run():
    seen = []

    def callback(row):
        seen.append(int(row["step"]))
        return row["step"] >= 40

    run = (cases.toy(), X0, Y0, cases.paper_pdbo())
    sol = pdbo.solve(*run, steps=2000, every=20, tol=0, callback=callback)
    assert sol.result is pdbo.RESULTS.stopped and "stopped the run" in sol.message
    assert seen == list(range(0, sol.steps + 1, 20)) and 40 <= sol.steps < 2000
    rest = pdbo.solve(cases.toy(), state=sol.state, steps=2000 - sol.steps, every=20, tol=0)
    whole = pdbo.solve(*run, steps=2000, every=20, tol=0)
    np.testing.assert_array_equal(rest.x, whole.x)


def test_a_time_limit_stops_the_run_at_a_record():
    run = (cases.toy(), X0, Y0)
    sol = pdbo.solve(*run, cases.paper_pdbo(), steps=10**6, every=20, tol=0, seconds=0)
    assert sol.result is pdbo.RESULTS.stopped and sol.steps < 10**6
    exact = pdbo.solve(*run, seconds=0)
    assert exact.result is pdbo.RESULTS.stopped and exact.steps == 0
    steps = []
    done = pdbo.solve(*run, seconds=60, callback=lambda row: steps.append(int(row["step"])))
    assert done.ok and steps == [0, done.steps]


def test_bad_limits_and_callbacks():
    run = (cases.toy(), X0, Y0)
    with pytest.raises(pdbo.ProblemError, match="seconds must be a number >= 0, got -1"):
        pdbo.solve(*run, seconds=-1)
    with pytest.raises(pdbo.ProblemError, match="callback must be a function of a row, got 3"):
        pdbo.solve(*run, callback=3)
    with pytest.raises(pdbo.ProblemError, match="cannot be used under jit or vmap"):
        jax.jit(lambda x: pdbo.solve(cases.toy(), x, jnp.ones(2), seconds=1.0).x)(1.0)
