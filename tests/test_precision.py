"""One precision policy: what runs in double, what comes back, and what it is certified as."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import _checks
from pdbo.errors import PrecisionWarning

X0, Y0 = 2.0, np.array([0.5, 0.5])
OPTIONS = dict(steps=400, every=100)


@pytest.fixture(scope="module")
def solution():
    """The toy problem by the default solver, in a session without 64-bit types."""
    with jax.enable_x64(False):
        return pdbo.solve(cases.toy(), X0, Y0, **OPTIONS)


def is_plain_double(*values):
    return all(isinstance(v, np.ndarray) and v.dtype == np.float64 for v in values)


def test_doubles_are_returned_unrounded(solution, x32):
    assert solution.ok
    assert is_plain_double(solution.x, solution.y, np.asarray(solution.multiplier))
    assert solution.x != np.float32(solution.x) or np.any(solution.y != np.float32(solution.y))


def test_the_certificate_is_that_of_the_point_returned(solution, x32):
    again = pdbo.certify(cases.toy(), solution.x, solution.y, solution.multiplier)
    for name in ("eps", "stationarity", "inner_gap", "multiplier"):
        assert getattr(again, name) == getattr(solution.certificate, name), name


def test_a_session_with_64_bit_types_finds_the_same(solution):
    double = pdbo.solve(cases.toy(), X0, Y0, **OPTIONS)
    assert isinstance(double.x, jax.Array)
    np.testing.assert_array_equal(double.x, solution.x)
    np.testing.assert_array_equal(double.y, solution.y)
    assert double.certificate.eps == solution.certificate.eps


def test_compare_runs_the_default_as_solve_does(solution, x32):
    table = pdbo.compare(
        cases.toy(), X0, Y0, [pdbo.AutoPDBO(), cases.paper_pdbo()], budget=200, every=100
    )
    last = {k: v[0] for k, v in table.final().items()}
    for name in ("step", "f", "g"):
        assert last[name] == solution.history[name][-1], name


def test_a_run_in_double_is_saved_loaded_and_carried_on(solution, x32, tmp_path):
    pdbo.save(tmp_path / "toy.pdbo", solution)
    loaded = pdbo.load(tmp_path / "toy.pdbo", cases.toy())
    assert is_plain_double(loaded.x, loaded.y)
    np.testing.assert_array_equal(loaded.x, solution.x)
    for state in (solution.state, loaded.state):
        further = pdbo.solve(cases.toy(), state=state, steps=100, tol=0)
        assert is_plain_double(further.x, further.y)
        assert further.steps == solution.steps  # it had arrived
        np.testing.assert_array_equal(further.x, solution.x)


def test_other_solvers_stay_in_the_precision_of_the_session(x32):
    found = pdbo.solve(cases.toy(), X0, Y0, cases.paper_pdbo(), steps=100)
    assert isinstance(found.x, jax.Array) and found.x.dtype == jnp.float32
    assert found.certificate.eps.dtype == np.float64


@pytest.mark.parametrize("solver", [None, cases.paper_pdbo()], ids=["default", "pdbo"])
@pytest.mark.parametrize("double", [False, True], ids=["x32", "x64"])
def test_f_and_g_are_checked_once_per_precision(solver, double, monkeypatch):
    """A problem is checked once where it enters; only a certificate in another precision adds."""
    seen = []
    check = _checks._check_function
    monkeypatch.setattr(
        _checks, "_check_function", lambda *given: (seen.append(given[0]), check(*given))[1]
    )
    with jax.enable_x64(double):
        assert pdbo.solve(cases.toy(), X0, Y0, solver, tol=0, **OPTIONS).certificate is not None
    lifted_for_the_certificate = not double and solver is not None
    assert seen == ["f", "g"] * (2 if lifted_for_the_certificate else 1)


def insisting():
    """f and g return single precision whatever x and y are, so that nothing runs in double."""
    return pdbo.Problem(
        lambda x, y: ((x - 1) ** 2 + (y - 1) ** 2).astype(jnp.float32),
        lambda x, y: ((y - x) ** 2).astype(jnp.float32),
    )


def test_functions_that_insist_on_single_precision_say_so_once_per_result(x32):
    """A fallback warns, in the run, the certificate and the answer, and nothing is silent."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = pdbo.solve(insisting(), 0.0, 0.0, throw=False)
    said = [str(w.message) for w in caught if issubclass(w.category, PrecisionWarning)]
    kinds = ("so the run is in single", "the certificate is in single", "f_resolved is in single")
    assert len(said) == 3
    assert all(kind in text for kind, text in zip(kinds, said, strict=True))
    assert all(w.filename == __file__ for w in caught)
    assert abs(float(found.x) - 1) <= 1e-2
    assert found.x.dtype == jnp.float32 and found.certificate.eps.dtype == np.float32
    assert found.f_resolved.dtype == np.float32 and abs(found.y_resolved - found.x) <= 1e-3


def test_an_error_of_f_is_not_taken_for_a_matter_of_precision(x32):
    calls = []

    def f(x, y):
        calls.append(1)
        if len(calls) > 30:
            raise ValueError("the file is gone")
        return (x - 1) ** 2 + (y - 1) ** 2

    problem = pdbo.Problem(f, lambda x, y: (y - x) ** 2)
    found = pdbo.solve(problem, 0.5, 0.5, cases.paper_pdbo(), steps=2, tol=None)
    calls += [1] * 30
    with pytest.warns(PrecisionWarning, match="the file is gone"), pytest.raises(ValueError):
        found.f_resolved  # noqa: B018
