"""How results look in a terminal, in a notebook, as a figure and as a data frame."""

import logging
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import _show
from pdbo import _trees as trees
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
    with pytest.warns(pdbo.errors.AnswerWarning, match="the inner problem solved again from there"):
        early = pdbo.solve(cases.toy(), 2.0, np.array([0.5, 0.5]), pdbo.PDBO(), steps=3, tol=1e-3)
    x, y = float(early.x), np.asarray(early.y)
    by_hand = 0.5 * ((1 - x) ** 2 + (x - y[1]) ** 2)  # the follower answers y[0] = x
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
    with pytest.warns(pdbo.errors.AnswerWarning, match="f is .* at the y returned, but"):
        with_answer(held, cases.toy(), 1e-4)


def test_an_uncertified_run_warns_if_the_follower_answers_otherwise():
    """A price of 1.5: 3 pieces would earn 4.50, but the customer buys 2.46 of them: 3.69."""
    shop = pdbo.Problem(lambda x, y: -x * y, lambda x, y: 0.5 * y**2 - (3.96 - x) * y)
    still = pdbo.PDBO(primal_step=0.0)  # it stays where it is
    with pytest.warns(pdbo.errors.AnswerWarning, match=r"f is -4\.5 .* but -3\.69 at the") as seen:
        sol = pdbo.solve(shop, 1.5, 3.0, still, steps=1)
    assert not sol.ok and float(sol.f_resolved) == pytest.approx(-3.69)
    assert seen[0].filename == __file__ and len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the follower's own answer, and a start that says nothing
        pdbo.solve(shop, 1.5, 2.46, still, steps=1)
        pdbo.solve(shop, 1.5, 3.0, still, steps=1, tol=None)


def test_a_large_uncertified_run_warns_by_its_estimate():
    """Customers of 600 products: their answer is not computed unless it is asked for."""
    n = 600
    shop = pdbo.Problem(lambda x, y: -x @ y, lambda x, y: 0.5 * y @ y - (2 - x) @ y)
    at = (np.full(n, 1.0), np.full(n, 2.0))
    told = "f is -1200 .* where g is 3.0e.02 above"
    with pytest.warns(pdbo.errors.AnswerWarning, match=told) as seen:
        sol = pdbo.solve(shop, *at, pdbo.PDBO(primal_step=0.0), steps=1)
    assert not sol.answer.known and len(seen) == 1
    assert float(sol.f_resolved) == pytest.approx(-n, rel=1e-5)


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


def test_a_batch_of_solutions_tells_its_size_and_codes(solution):
    codes = np.array([pdbo.RESULTS.success, pdbo.RESULTS.max_steps], np.int32)
    many = solution.with_outcome(code=codes)
    assert str(many) == "Solution(batch of (2,))" and many.message == "a batch of runs: see code"
    np.testing.assert_array_equal(many.result, codes)
    np.testing.assert_array_equal(many.ok, [True, False])


def test_what_is_no_array_of_numbers_is_printed_as_it_is():
    assert trees.text(np.array([1.0, 2.0])) == "[1., 2.]"
    assert trees.text(jax.random.key(3)) == "Array((), dtype=key<fry>) overlaying: [0 3]"
    assert trees.text(True) == "True" and trees.text("word") == "word"
    assert trees.text(np.array(["a", "b"])) == "['a' 'b']"
    told = []
    jax.jit(lambda v: told.append((trees.text(v), str(v))))(1.0)
    assert told[0][0] == told[0][1]
    far = types.SimpleNamespace(is_fully_addressable=False, shape=(4, 2), ndim=2, dtype=float)
    assert trees.text(far) == "array of shape (4, 2), split over processes"


def test_problems_of_callables_without_code_print_too():
    class Squared:
        def __call__(self, x, y):
            return x**2 + y**2

        def __repr__(self):
            return "squared"

    text = str(pdbo.Problem(Squared(), lambda x, y: y**2))
    assert "f = squared\n" in text and "g = <lambda> (test_show.py, line" in text
    assert "data" not in text
    fields = types.SimpleNamespace(parts=[1.5, {"a": "b"}], at=np.array(2.0), _own=3)
    assert _show.module(fields) == "SimpleNamespace(parts=(1.5, {'a': 'b'}), at=2.)"


def test_figures_refuse_an_axis_they_lack(solution):
    with pytest.raises(
        pdbo.ProblemError, match="axis must be one of step, calls, seconds, got 'x'"
    ):
        solution.plot("x")
    with pytest.raises(pdbo.ProblemError, match="the history has no column 'seconds'"):
        solution.plot("seconds")
