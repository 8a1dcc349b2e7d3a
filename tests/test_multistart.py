"""Which of many runs is the best one."""

import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo._multistart import _best
from pdbo._solution import Outcome

R = pdbo.RESULTS


def batch(codes, f):
    """Solutions at the toy's optimum, with other codes and outer values written over theirs."""
    n = len(codes)
    one = jnp.ones(n)
    certificate = pdbo.Certificate(*(0 * one,) * 9)
    history = {"step": jnp.zeros((n, 1), int)}
    outcome = Outcome(0 * one, certificate, jnp.array(codes))
    return pdbo.Solution(
        one, jnp.ones((n, 2)), jnp.array(f), one, outcome, history, None, jnp.zeros(n, int)
    )


@pytest.mark.parametrize(
    ("codes", "f", "index"),
    [
        ([R.success, R.settled, R.nonfinite], [3.0, 2.0, 1.0], 0),  # certified first
        ([R.nonfinite, R.settled, R.diverged], [1.0, 2.0, 0.0], 1),  # at rest is no failure
        ([R.max_steps, R.settled, R.max_steps], [3.0, 1.0, 2.0], 1),  # then the lowest f
        ([R.success, R.success, R.settled], [3.0, 2.0, 1.0], 1),
    ],
)
def test_order(codes, f, index):
    best = _best(cases.toy(), batch(codes, f), 1e-4)
    assert best.index == index
    assert np.shape(best.all.f) == (3,)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (dict(starts=0), "starts must be a whole number >= 1"),
        (dict(solver=pdbo.PDBO), "did you forget the parentheses"),
        (dict(problem=None), r"problem must be a pdbo\.Problem, got NoneType"),
        (dict(), "need one leading axis of the same length"),
    ],
)
def test_bad_input(changes, match):
    call = dict(problem=cases.toy(), x0s=2.0, y0s=jnp.ones(2)) | changes
    with pytest.raises(pdbo.ProblemError, match=match):
        pdbo.multistart(**call)


def test_failures_raise_or_return_their_code():
    """f falls for ever; and a start that is not usable."""
    endless = pdbo.Problem(lambda x, y: -(x**2) - y**2, lambda x, y: (y - x) ** 2)
    exact = pdbo.solvers.Implicit()
    found = pdbo.multistart(endless, 1.0, 1.0, exact, starts=2, throw=False)
    assert found.result is R.diverged and np.shape(found.all.f) == (2,)
    with pytest.raises(pdbo.SolveError) as caught:
        pdbo.multistart(endless, 1.0, 1.0, exact, starts=2)
    assert caught.value.solution.result is R.diverged
    wrong = pdbo.multistart(endless, "x", 1.0, starts=2, throw=False)
    assert wrong.result is R.bad_problem and "must be a number or an array" in wrong.message
