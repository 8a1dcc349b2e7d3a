"""The default on mini-batches: no settings, whatever the units of the problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo.solvers import BatchPDBO
from pdbo.solvers._batch_pdbo import RATES, ROUND, TRIAL
from pdbo.solvers._streamed import Streamed

RNG = np.random.default_rng(7)
TRUTH, COUNT = np.array([1.0, -2.0, 0.5]), 60
A, B = RNG.normal(size=(COUNT, 3)), RNG.normal(size=(40, 3))
WRONG = np.arange(COUNT) % 3 == 0
OFF = 4.0 * RNG.choice([-1, 1], COUNT)
GIVEN = A @ TRUTH + np.where(WRONG, OFF, 0.05 * RNG.normal(size=COUNT))
TRAIN = {"A": A, "b": GIVEN, "index": np.arange(COUNT)}
VALID = {"A": B, "b": B @ TRUTH + 0.05 * RNG.normal(size=40)}
START = np.zeros(COUNT), np.zeros(3)
STEPS = RATES * TRIAL + 5 * ROUND // 2


def regression(f=1.0, g=1.0, x=1.0):
    """A weight for each example of a regression, a third of which are wrong; in other units."""

    def loss(w, batch):
        return (batch["A"] @ w - batch["b"]) ** 2

    def inner(z, w, batch):
        return g * jnp.mean(jax.nn.sigmoid(x * z[batch["index"]]) * loss(w, batch))

    data = pdbo.Batches(VALID, TRAIN, 20)
    return pdbo.Problem(lambda z, w, batch: f * jnp.mean(loss(w, batch)), inner, data)


def run(problem, steps=STEPS, start=START):
    solver = Streamed(BatchPDBO())
    return solver, cases.iterate(problem, solver, *map(jnp.asarray, start), steps)


def test_finds_the_wrong_examples():
    """Those whose x is below zero; and the weights without their influence."""
    solver, state = run(regression())
    point = solver.output(state)
    found = np.asarray(point.x) < 0
    assert np.mean(found == WRONG) > 0.9
    plain = np.linalg.lstsq(A, GIVEN)[0]
    assert np.linalg.norm(point.y - TRUTH) < 0.1 < 0.3 < np.linalg.norm(plain - TRUTH)


def test_the_units_make_no_difference():
    """f times 64, g over 16, x in eighths: powers of two, so that rounding is the same."""
    plain, other = (run(p, 900) for p in (regression(), regression(64.0, 1 / 16, 8.0)))
    one, two = plain[0].output(plain[1]), other[0].output(other[1])
    np.testing.assert_allclose(two.x * 8, one.x, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(two.y, one.y, rtol=1e-6)


def test_stays_finite_where_rates_are_too_large():
    """Values overflow for the largest rates and far from the start."""
    problem = regression()
    steep = pdbo.Problem(
        problem.f, lambda x, w, b: problem.g(x, w, b) + jnp.mean(jnp.exp(w**2)), problem.data
    )
    solver, state = run(steep, 1000)
    point = solver.output(state)
    assert np.all(np.isfinite(point.x)) and np.all(np.isfinite(point.y))
    assert float(steep.outer(point.x, point.y)) < float(steep.outer(*map(jnp.asarray, START)))


def test_a_function_without_third_derivatives_will_do():
    problem = regression()
    data = problem.data
    first = pdbo.Problem(*map(cases.first_order, (problem.f, problem.g)), data)
    solver, state = run(first, RATES * TRIAL + 20)
    assert float(state.solver.units.x) == 1.0
    assert not np.allclose(solver.output(state).y, 0)


def test_it_is_the_default_and_carries_on_to_the_bit(tmp_path):
    problem, key = regression(), jax.random.key(1)
    options = dict(every=200, tol=None)
    whole = pdbo.solve(problem, *START, steps=700, key=key, **options)
    part = pdbo.solve(problem, *START, steps=533, key=key, **options)
    assert isinstance(whole.state.solver.solver, BatchPDBO)
    pdbo.save(tmp_path / "part.pdbo", part)
    read = pdbo.load(tmp_path / "part.pdbo", problem)
    for state in (part.state, read.state):
        rest = pdbo.solve(problem, state=state, steps=167, **options)
        leaves = (jax.tree.leaves(s.state.solver_state) for s in (whole, rest))
        assert all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
    calls = [int(whole.history[f"{name}_calls"][-1]) for name in "fg"]
    assert calls == [220, 480 + 2 * 220 + 1] and int(whole.history["products"][-1]) == 3


def test_ends_when_rounds_bring_nothing(optimised):
    """From a solution, where nothing is to be gained."""
    flat = pdbo.Problem(
        lambda x, y, b: jnp.mean(b["b"] ** 2) + 0 * jnp.sum(y),
        lambda x, y, b: jnp.mean((y[0] - x[0]) ** 2 + 0 * b["b"]),
        pdbo.Batches(VALID, TRAIN, 20),
    )
    solver, state = run(flat, RATES * TRIAL + 7 * ROUND, (np.ones(1), np.ones(1)))
    assert bool(solver.settled(state))


def test_many_starts_one_after_the_other(optimised):
    """The best of them is the one of lowest f; its certificate is the full one."""
    starts = [np.stack([np.zeros_like(v), 0.1 + v]) for v in START]
    found = pdbo.multistart(regression(), *starts, steps=700, every=700)
    assert found.all.f.shape == (2,) and found.index == int(np.argmin(found.all.f))
    assert isinstance(found.state.solver.solver, BatchPDBO)
    assert np.isfinite(float(found.certificate.eps))


def test_needs_batches():
    with pytest.raises(pdbo.ProblemError, match="BatchPDBO needs mini-batches"):
        pdbo.solve(cases.toy(), 2.0, jnp.zeros(2), BatchPDBO())
