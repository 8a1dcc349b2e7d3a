"""How results look in a terminal, in a notebook, as a figure and as a data frame."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo._resolve import with_answer


@pytest.fixture(scope="module")
def solution():
    return pdbo.solve(cases.toy(), 2.0, np.array([0.5, 0.5]))


@pytest.fixture(scope="module")
def comparison():
    solvers = {"PDBO": pdbo.PDBO(primal_step=0.05), "none": pdbo.solvers.Implicit()}
    return pdbo.compare(cases.toy(), 2.0, np.array([0.5, 0.5]), solvers, budget=20)


def test_a_notebook_shows_the_verdict_and_every_line(solution):
    page = solution._repr_html_()
    assert page.count("<tr>") == len(str(solution).splitlines()) - 1
    assert "within the tolerance" in page and "#009E73" in page


def test_figures(solution, comparison):
    pytest.importorskip("matplotlib")
    for figure, lines in ((solution.plot(), 1), (comparison.plot(), 2)):
        titles = [panel.get_title() for panel in figure.axes]
        assert titles[:3] == ["f", "inner_gap", "stationarity"]
        assert {len(panel.lines) for panel in figure.axes} == {lines}
        assert figure._repr_png_().startswith(b"\x89PNG")
    (panel,) = solution.plot(curves=["f"]).axes
    np.testing.assert_array_equal(panel.lines[0].get_ydata(), solution.history["f"])
    with pytest.raises(pdbo.ProblemError, match="no column 'loss'"):
        solution.plot(curves=["loss"])


def test_data_frames(solution, comparison):
    pytest.importorskip("pandas")
    frame = solution.to_pandas()
    assert list(frame.columns[:3]) == ["step", "f", "g"] and set(frame) == set(solution.history)
    assert len(comparison.to_pandas()) == len(comparison.table["step"])
    seen = pdbo.solve(
        cases.toy(), 2.0, np.ones(2), pdbo.PDBO(), steps=2, observe=lambda x, y: {"y": y}
    )
    np.testing.assert_array_equal(seen.to_pandas()["y[1]"], seen.history["y"][:, 1])


def test_a_comparison_prints_as_a_table(comparison):
    head, *rows = str(comparison).splitlines()
    assert head.split()[:4] == ["solver", "steps", "calls", "seconds"]
    assert [row.split()[0] for row in rows] == ["PDBO", "none"]
    assert rows[0].split()[1] == "20" and len({len(row) for row in (head, *rows)}) == 1
    assert comparison._repr_html_().count("<tr>") == 3


def test_sets_and_problems_print_their_numbers():
    assert str(pdbo.Box(0.0, np.array([1.0, 2.0]))) == "Box(lo=0., hi=[1., 2.])"
    many = str(pdbo.Halfspace(np.arange(20.0), 1.0))
    assert "array of shape (20,), from 0 to 19" in many
    tree = pdbo.Product({"a": pdbo.Simplex(2.0), "b": pdbo.Free()})
    assert str(tree) == "Product(tree={'a': Simplex(total=2.), 'b': Free()})"
    problem = pdbo.Problem(
        lambda x, y, d: x, lambda x, y, d: y, data={"a": np.ones((3, 4))}, x_set=pdbo.Ball(2.0)
    )
    text = str(problem)
    assert "data['a'] = array of shape (3, 4), from 1 to 1" in text
    assert "x in Ball(radius=2., center=0.)" in text and "test_show.py" in text


def test_f_is_told_at_what_the_follower_answers(solution):
    assert float(solution.f_resolved) == pytest.approx(float(solution.f), abs=1e-12)
    np.testing.assert_allclose(solution.y_resolved, [1.0, 1.0], atol=1e-9)
    early = pdbo.solve(cases.toy(), 2.0, np.array([0.5, 0.5]), pdbo.PDBO(), steps=3, tol=1e-3)
    x, y = float(early.x), np.asarray(early.y)
    by_hand = 0.5 * ((1 - x) ** 2 + (x - y[1]) ** 2)  # the follower answers y[0] = x
    with pytest.warns(pdbo.errors.AnswerWarning, match="at the inner problem solved again"):
        assert float(early.f_resolved) == pytest.approx(by_hand)


def test_saved_and_best_solutions_tell_what_the_follower_answers(solution, tmp_path):
    pdbo.save(tmp_path / "kept", solution)
    again = pdbo.load(tmp_path / "kept", cases.toy())
    assert float(again.f_resolved) == float(solution.f_resolved)
    best = pdbo.multistart(cases.toy(), 2.0, np.array([0.5, 0.5]), starts=2)
    np.testing.assert_allclose(best.y_resolved, [1.0, 1.0], atol=1e-9)
    assert float(best.f_resolved) == pytest.approx(0, abs=1e-12)


def test_a_relaxed_answer_that_the_follower_does_not_give_is_warned_of():
    """y is 0.3 off the follower's answer, and a relaxed certificate is said to hold there."""
    early = pdbo.solve(cases.toy(), 1.0, np.array([0.7, 1.0]), pdbo.PDBO(), steps=1, tol=None)
    held = early.with_outcome(code=np.int32(pdbo.RESULTS.success))
    with pytest.warns(pdbo.errors.AnswerWarning, match="g hardly tells these two answers apart"):
        with_answer(held, cases.toy(), 1e-4)


def test_the_answer_of_a_follower_with_constraints():
    """y >= x and g = y^2: the follower answers y = x."""
    problem = pdbo.Problem(
        f=lambda x, y: (x - 1) ** 2 + (y - 2) ** 2,
        g=lambda x, y: y**2,
        x_set=pdbo.Box(0.0, 3.0),
        inner_constraint=lambda x, y: x - y,
    )
    sol = pdbo.solve(problem, 0.5, 0.5)
    assert sol.ok and float(sol.f_resolved) == pytest.approx(0.5, abs=1e-4)


def test_callbacks_pass_rows_on(caplog):
    seen, log = [], logging.getLogger("pdbo-test")
    log.setLevel(logging.INFO)
    options = {"steps": 4, "every": 2, "tol": 0}
    start = (cases.toy(), 2.0, jnp.ones(2), pdbo.PDBO())
    sol = pdbo.solve(
        *start, callback=pdbo.callbacks.scalars(lambda *e: seen.append(e), ["f"]), **options
    )
    assert seen == [("f", float(f), s) for f, s in zip(sol.history["f"], (0, 2, 4), strict=True)]
    with caplog.at_level(logging.INFO, "pdbo-test"):
        pdbo.solve(*start, callback=pdbo.callbacks.lines(log.info, ["f"]), **options)
    assert [r.getMessage().split("  ")[0] for r in caplog.records] == ["step 0", "step 2", "step 4"]
