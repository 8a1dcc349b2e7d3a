"""The comparison: budgets, one tidy table, curves, and solvers that fail."""

import itertools
import types

import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import _compare

START = cases.X0, cases.Y0
OPTIMUM = cases.X_STAR, cases.Y_STAR
PDBO = pdbo.PDBO(primal_step=0.05)  # 1 gradient of f and 7 of g a step
ITD = pdbo.ITD()  # 1 gradient of f, 5 of g and 10 products a step


def clock(tick, events=()):
    """Goes on by a tick with every look at it, and by a thousand for each of the events."""
    looks = itertools.count(0.0, tick)
    return types.SimpleNamespace(perf_counter=lambda: next(looks) + 1e3 * len(events))


@pytest.fixture(scope="module")
def comparison():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_compare, "time", clock(0.5, cases.COMPILED))
        return pdbo.compare(
            cases.home(),
            *START,
            {"ours": PDBO, "theirs": ITD},
            budget=47,
            every=20,
            optimum=OPTIMUM,
        )


def rows(comparison, name):
    """The table of one solver."""
    return {k: v[comparison.table["solver"] == name] for k, v in comparison.table.items()}


def test_table_is_tidy(comparison):
    assert isinstance(comparison, pdbo.Comparison)
    table = comparison.table
    assert {v.shape for v in table.values()} == {(8,)}
    assert table["solver"].tolist() == ["ours"] * 4 + ["theirs"] * 4
    assert {"step", "calls", "seconds", "f", "inner_gap", "stationarity", "eps"} <= set(table)
    assert all(np.issubdtype(v.dtype, np.number) for k, v in table.items() if k != "solver")
    assert all(np.all(np.isfinite(v)) for k, v in table.items() if k != "solver")
    assert comparison.results == dict.fromkeys(["ours", "theirs"], pdbo.RESULTS.max_steps)


def test_budget_in_steps(comparison):
    for name, cost in (("ours", 8), ("theirs", 16)):
        found = rows(comparison, name)
        assert found["step"].tolist() == [0, 20, 40, 47]
        assert found["calls"].tolist() == [cost * step for step in (0, 20, 40, 47)]
        assert found["seconds"].tolist() == [0, 0.5, 1.0, 1.5]  # compilation is not counted


def test_rows_are_those_of_solve(comparison):
    """The errors too, which are the distances to the optimum; `solve` estimates the certificate."""
    estimated = ("h", "multiplier", "stationarity", "complementarity", "feasibility", "inner_gap")
    run = pdbo.solve(cases.home(), *START, ITD, steps=47, every=20, tol=0)
    found = rows(comparison, "theirs")
    for name in set(run.history) - {*estimated, "eps"}:
        column = run.history[name]
        np.testing.assert_allclose(found[name], column, rtol=1e-9, atol=1e-12, err_msg=name)
    for name, start, end, best in zip("xy", START, (run.x, run.y), OPTIMUM, strict=True):
        ends = [np.linalg.norm(z - best) for z in (start, end)]
        np.testing.assert_allclose(found[f"{name}_error"][[0, -1]], ends, rtol=1e-9)


def test_final_is_the_last_row_of_each(comparison):
    final = comparison.final()
    assert set(final) == set(comparison.table)
    assert final["solver"].tolist() == ["ours", "theirs"] and final["step"].tolist() == [47, 47]
    assert np.array_equal(final["f"], comparison.table["f"][[3, 7]])


def test_f_is_told_at_what_the_follower_answers():
    """f = x^2 + y and g = (y - x)^2 / 2: the follower answers y = x, whatever y a run returns."""
    problem = pdbo.Problem(lambda x, y: x**2 + y, lambda x, y: 0.5 * (y - x) ** 2)
    solvers = {"PDBO": PDBO, "fails": pdbo.ITD(outer_step=np.inf)}
    result = pdbo.compare(problem, 2.0, 0.5, solvers, budget=3, every=3, optimum=(-0.5, -0.5))
    x, y = (abs(result.final()[f"{name}_error"][0]) - 0.5 for name in "xy")
    assert result.final()["f"][0] == pytest.approx(x**2 + y)
    assert abs(x - y) > 0.1 and result.f_resolved["PDBO"] == pytest.approx(x**2 + x)
    assert result.f_resolved["fails"] == pytest.approx(2.0**2 + 2.0)  # it never left its start
    head, *lines = str(result).splitlines()
    assert "f resolved" in head and f"{x**2 + x:.6g}" in lines[0]


def test_budget_in_calls():
    """All rows are within it, and another round of `every` steps would not have been."""
    result = pdbo.compare(cases.home(), *START, [PDBO, ITD], budget={"calls": 200}, every=10)
    assert list(result.results) == ["PDBO", "ITD"]
    assert "x_error" not in result.table
    for name, cost in (("PDBO", 8), ("ITD", 16)):
        found = rows(result, name)
        assert np.all(found["calls"] <= 200), found["calls"]
        assert found["calls"][-1] + 10 * cost > 200
        assert np.all(found["f_calls"] + found["g_calls"] + found["products"] == found["calls"])


def test_budget_in_seconds(monkeypatch):
    """The seconds of the steps, not of the certificates, and no row beyond them."""
    certified, row = [], _compare._row
    monkeypatch.setattr(_compare, "_row", lambda *args: (certified.append(0), row(*args))[1])
    monkeypatch.setattr(_compare, "time", clock(3.0, certified))
    result = pdbo.compare(cases.home(), *START, [ITD], budget={"seconds": 10.0}, every=20)
    assert result.table["seconds"].tolist() == [0, 3, 6, 9] and len(certified) == 5
    assert result.table["step"].tolist() == [0, 20, 40, 60]


def test_success_is_what_solve_calls_success():
    """A solver that meets the certificate succeeds, also if the budget or itself ends the run."""
    problem = pdbo.Problem(lambda x, y: (y - 1) ** 2 + x**2, lambda x, y: (y - x) ** 2)
    solvers = {
        "exact": pdbo.AutoPDBO(),
        "near": pdbo.ITD(outer_step=0.2, inner_step=0.4, inner_steps=60),
        "slow": pdbo.ITD(outer_step=1e-3, inner_step=0.4, inner_steps=60),
    }
    result = pdbo.compare(problem, 3.0, 1.0, solvers, budget=100)
    met = [name for name, how in result.results.items() if how is pdbo.RESULTS.success]
    assert met == ["exact", "near"] and np.all(result.final()["eps"][:2] <= 1e-4)
    assert abs(pdbo.solve(problem, 3.0, 1.0).x - 0.5) < 1e-12
    assert result.results["slow"] is pdbo.RESULTS.max_steps and result.final()["eps"][2] > 1e-4


def test_a_solver_that_fails_keeps_its_rows_and_code():
    problem = cases.home(f=0.4)
    slow = pdbo.ITD(outer_step=1e-4)
    solvers = {"fails": pdbo.ITD(outer_step=0.02), "goes on": slow}
    result = pdbo.compare(problem, *START, solvers, budget=100, every=5)
    assert result.results["fails"] is pdbo.RESULTS.nonfinite
    assert result.results["goes on"] is pdbo.RESULTS.max_steps
    found = rows(result, "fails")
    assert 1 < len(found["step"]) < 20 and np.all(np.isfinite(found["f"]))
    assert result.final()["step"].tolist() == [found["step"][-1], 100]


def test_a_solver_that_fails_at_once():
    """Even one without a single row has its code, and the others their rows."""
    problem = pdbo.Problem(lambda x, y: jnp.sqrt(x**2) + y**2, lambda x, y: (y - 1) ** 2)
    result = pdbo.compare(problem, 0.0, 0.0, [ITD], budget=10)
    assert result.results == {"ITD": pdbo.RESULTS.nonfinite}
    assert np.isnan(result.f_resolved["ITD"]) and " - " in str(result)
    assert len(result.final()["step"]) == len(result.table["step"]) == 0


def test_divergence_is_a_row_and_a_code():
    problem = pdbo.Problem(lambda x, y: -(x**2), lambda x, y: 0.5 * y**2)
    result = pdbo.compare(problem, 1.0, 1.0, [pdbo.ITD(outer_step=1.0)], budget=100, every=5)
    assert result.results == {"ITD": pdbo.RESULTS.diverged}
    assert result.table["f"][-1] < -1e10 and result.table["step"][-1] < 100


def test_the_budget_of_a_solver_is_kept():
    """Proximal-PDBO ends after its rounds, in a comparison as in a run of its own."""
    solver = pdbo.ProximalPDBO(PDBO, rounds=2, round_steps=6)
    result = pdbo.compare(cases.home(), *START, [solver], budget=30, every=5)
    assert result.table["step"].tolist() == [0, 5, 10, 12]


@pytest.mark.parametrize("axis", ["step", "calls", "seconds"])
def test_plot(comparison, axis, tmp_path):
    pytest.importorskip("matplotlib")
    figure = comparison.plot(axis)
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == ["f", "inner_gap", "stationarity", "x_error", "y_error"]
    for panel in figure.axes:
        assert panel.get_xlabel() == axis and len(panel.lines) == 2
        for line, name in zip(panel.lines, ("ours", "theirs"), strict=True):
            assert np.array_equal(line.get_xdata(), rows(comparison, name)[axis])
            assert np.array_equal(line.get_ydata(), rows(comparison, name)[panel.get_title()])
    figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_plot_of_chosen_curves(comparison):
    pytest.importorskip("matplotlib")
    (panel,) = comparison.plot(curves=["eps"]).axes
    assert panel.get_title() == "eps"
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["ours", "theirs"]


def test_wrong_axes_and_curves(comparison):
    with pytest.raises(pdbo.ProblemError, match="axis must be one of step, calls, seconds"):
        comparison.plot("hours")
    with pytest.raises(pdbo.ProblemError, match="no column 'loss'"):
        comparison.plot(curves=["f", "loss"])


@pytest.mark.parametrize(
    "budget",
    [
        *(0, -5, 2.5, np.nan, np.inf, True, "10", None, {}),
        *({"epochs": 3}, {"steps": 1, "calls": 2}, {"steps": 2.5}, {"calls": 0}),
        {"seconds": -1.0},
    ],
    ids=repr,
)
def test_wrong_budgets(budget):
    with pytest.raises(pdbo.ProblemError, match="budget must be"):
        pdbo.compare(cases.home(), *START, [], budget=budget)


@pytest.mark.parametrize("every", [0, -1, 2.5, True])
def test_wrong_every(every):
    with pytest.raises(pdbo.ProblemError, match="every must be a whole number >= 1"):
        pdbo.compare(cases.home(), *START, [], every=every)


@pytest.mark.parametrize(
    ("solvers", "match"),
    [
        ([], "at least one solver"),
        ({}, "at least one solver"),
        ([ITD, pdbo.ITD(0.1)], "two solvers are of one class"),
        ([pdbo.ITD], "solver must be a pdbo solver.*parentheses"),
        ({"a": 3}, "solver must be a pdbo solver, got int"),
        (ITD, "solvers must be"),
    ],
    ids=["none", "no name", "twice", "class", "number", "alone"],
)
def test_wrong_solvers(solvers, match):
    with pytest.raises(pdbo.ProblemError, match=match):
        pdbo.compare(cases.home(), *START, solvers, budget=1)


def test_a_solver_that_does_not_cover_the_set_leaves_the_others():
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((y - x) ** 2), lambda x, y: jnp.sum((y - x) ** 2), y_set=pdbo.Ball(1.0)
    )
    result = pdbo.compare(problem, jnp.ones(2), jnp.zeros(2), [PDBO, ITD], budget=10)
    assert result.results["ITD"] is pdbo.RESULTS.bad_problem
    assert set(result.table["solver"]) == {"PDBO"}
