"""The default on mini-batches: no settings, whatever the units of the problem."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo._driver import take_steps_jit
from pdbo._solution import State
from pdbo.solvers import BatchPDBO
from pdbo.solvers import _whole as whole
from pdbo.solvers._batch_pdbo import FIRST, LAG, LAST, RATES, ROUND, TRIAL, _parts
from pdbo.solvers._streamed import Streamed

RNG = np.random.default_rng(7)
TRUTH, COUNT, FEW = np.array([1.0, -2.0, 0.5]), 60, 28  # FEW do not determine three weights
A, B = RNG.normal(size=(COUNT, 3)), RNG.normal(size=(40, 3))[:FEW]
WRONG = np.arange(COUNT) % 3 == 0
OFF = 4.0 * RNG.choice([-1, 1], COUNT)
GIVEN = A @ TRUTH + np.where(WRONG, OFF, 0.05 * RNG.normal(size=COUNT))
TRAIN = {"A": A, "b": GIVEN, "index": np.arange(COUNT)}
VALID = {"A": B, "b": B @ TRUTH + 0.05 * RNG.normal(size=40)[:FEW]}
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
    """Those whose x is below zero; and the weights without their influence, in any order drawn.

    Calling no example wrong would be right for two thirds. How many are found depends on the order.
    """
    problem, solver = regression(), Streamed(BatchPDBO())
    x, y = map(jnp.asarray, START)
    zero, one = jnp.zeros((), jnp.int32), jnp.ones(())
    plain = np.linalg.lstsq(A, GIVEN)[0]
    right = []
    for k in range(4):
        begun = solver.init(problem, x, y, jax.random.key(k))
        point = take_steps_jit(problem, State(solver, begun, zero, one), zero + STEPS).point
        right.append(np.mean((np.asarray(point.x) < 0) == WRONG))
        assert np.linalg.norm(point.y - TRUTH) < 0.1 < 0.3 < np.linalg.norm(plain - TRUTH)
    assert np.mean(right) > 0.8


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
    """From the lowest point of a kink, where no certificate holds; what it says is that."""
    kink = pdbo.Problem(
        lambda x, y, b: jnp.where(x[0] < 1, 2 - 2 * x[0], x[0] - 1) + 0 * jnp.mean(b["b"]),
        lambda x, y, b: jnp.mean((y[0] - x[0]) ** 2 + 0 * b["b"]),
        pdbo.Batches(VALID, TRAIN, 20),
    )
    sol = pdbo.solve(kink, np.ones(1), np.ones(1), BatchPDBO(), tol=1e-6)
    assert sol.steps < 10_000 and sol.result is pdbo.RESULTS.settled and not sol.ok
    assert "no longer improving" in sol.message and "inner minimisers" not in sol.message


def test_many_starts_one_after_the_other(optimised):
    """The best of them is the one of lowest f; its certificate is the full one."""
    starts = [np.stack([np.zeros_like(v), 0.1 + v]) for v in START]
    found = pdbo.multistart(regression(), *starts, steps=700, every=700)
    assert found.all.f.shape == (2,) and found.index == int(np.argmin(found.all.f))
    assert isinstance(found.state.solver.solver, BatchPDBO)
    assert np.isfinite(float(found.certificate.eps))


@pytest.mark.parametrize("unit", [2.0**16, 2.0**-24], ids=["large", "small"])
def test_rates_go_on_where_an_outermost_is_best(unit):
    """With y in other units the rate found is beyond those of the grid, and g falls as far."""

    def ends(unit):
        train = TRAIN | {"b": unit * GIVEN}
        problem = pdbo.Problem(lambda z, w, b: 0.0, regression().g, pdbo.Batches(VALID, train, 20))
        state = run(problem, (RATES + 14) * TRIAL)[1].solver
        return float(state.tried / state.begun), float(state.units.rate)

    (plain, _), (left, rate) = ends(1.0), ends(unit)
    assert left < 1.2 * plain < 0.9  # trials meet other batches
    assert not FIRST <= rate <= LAST


def test_what_the_examples_have_to_determine():
    """All of x if f sees it; else x by y, and y has three entries where x has sixty."""
    problem, seen = regression(), regression()
    seen = pdbo.Problem(lambda z, w, b: problem.f(z, w, b) + z[0], problem.g, problem.data)
    start = tuple(map(jnp.asarray, START))
    needed = [whole.examples_needed(p.pooled(), *start) for p in (problem, seen)]
    assert needed == [30, 600]


def repeated(times):
    """The same regression with every example of f so many times: it has 28 for 3 entries of y."""
    more = {name: np.concatenate(times * [part]) for name, part in VALID.items()}
    problem = regression()
    return pdbo.Problem(problem.f, problem.g, pdbo.Batches(more, TRAIN, 20))


@pytest.mark.parametrize(("times", "lag"), [(1, LAG), (15, 1.0)], ids=["few", "enough"])
def test_the_inner_estimate_lags_if_examples_are_few(times, lag):
    """All examples of f count, not those of a batch; its step over its slope is so much of y's."""
    problem = repeated(times)
    solver, state = run(problem, RATES * TRIAL)
    begun = eqx.tree_at(lambda s: s.solver.round, state, jnp.ones((), jnp.int32))
    before, after = begun.solver.at, solver.walk(problem, begun, 1).solver
    mean = after.moments.mean
    estimate = (after.at.y_hat - before.y_hat) / mean.y_hat
    np.testing.assert_allclose(estimate, lag * (after.at.y - before.y) / mean.y, rtol=1e-9)
    assert whole.is_undetermined(problem, begun.solver.at.x, begun.solver.at.y) == (times == 1)


@pytest.mark.parametrize("times", [1, 15], ids=["few", "enough"])
def test_small_gains_and_a_higher_multiplier_need_enough_examples(times):
    """A gain of a twentieth of all before it, in every part, and a round without any gain."""
    problem = repeated(times)
    solver, state = run(problem, RATES * TRIAL)
    for gain, field in ((0.05, "checking"), (0.0, "weight")):
        due = ended(problem, state, gain)
        old, new = (float(getattr(s.solver, field)) for s in (due, solver.turn(problem, due)))
        assert (new > old) == (times > 1), field


def ended(problem, state, gain):
    """A first round with x moving that brought f down by this share in every part; its turn is due.

    All rounds before it brought f down by the whole of it.
    """
    values, one = _parts(problem, state.solver.at), jnp.ones((), jnp.int32)
    return eqx.tree_at(
        lambda s: (s.solver.values, s.solver.first, s.solver.round, s.solver.k),
        state, (values + gain * jnp.mean(values), values + jnp.mean(values), one, ROUND * one),
    )  # fmt: skip


def test_x_rests_for_good_after_a_small_gain():
    """y goes on by a mean of both slopes, each in its unit, and the first failure ends the run."""
    problem = repeated(1)
    solver, state = run(problem, RATES * TRIAL + 10)  # the multiplier's unit has been measured
    rested = solver.turn(problem, ended(problem, state, 0.05))
    assert float(rested.solver.reach) == 0 < float(state.solver.reach)
    assert not bool(solver.settled(rested))
    before = rested.solver.at
    np.testing.assert_array_equal(before.y, state.solver.best.y)  # the small gain is undone
    walked = solver.walk(problem, rested, 1)
    after, kept = walked.solver.at, rested.solver.moments.mean.y
    (f_batch, _), (g_batch, _) = (
        stream.draw(cursor)
        for stream, cursor in zip(
            (problem.data.outer, problem.data.inner), (rested.outer, rested.inner), strict=True
        )
    )
    f_y = jax.grad(problem.f, 1)(before.x, before.y, f_batch)
    g_y = jax.grad(problem.g, 1)(before.x, before.y, g_batch)
    units = rested.solver.units
    slope = g_y + f_y * jnp.sqrt(units.g_y / units.f_y)
    np.testing.assert_allclose(walked.solver.moments.mean.y, 0.9 * kept + 0.1 * slope, rtol=1e-9)
    np.testing.assert_array_equal(after.x, before.x)
    mean = walked.solver.moments.mean
    pace = (after.y_hat - before.y_hat) / mean.y_hat
    np.testing.assert_allclose(pace, (after.y - before.y) / mean.y, rtol=1e-9)
    assert bool(solver.settled(solver.turn(problem, ended(problem, rested, -0.05))))


@pytest.mark.parametrize("times", [1, 15], ids=["few", "enough"])
def test_one_round_of_y_alone_if_examples_are_few(times):
    """A round that lowers f in every part; then x moves, or y has another round alone."""
    problem = repeated(times)
    solver, state = run(problem, RATES * TRIAL)
    warm = eqx.tree_at(lambda s: s.solver.round, ended(problem, state, 0.5), 0 * state.solver.round)
    assert int(solver.turn(problem, warm).solver.round) == (1 if times == 1 else 0)


def test_needs_batches():
    with pytest.raises(pdbo.ProblemError, match="BatchPDBO needs mini-batches"):
        pdbo.solve(cases.toy(), 2.0, jnp.zeros(2), BatchPDBO())


def test_the_driver_takes_the_same_steps():
    """It repeats the steps of a round in a loop of its own, and ends rounds outside of it."""
    problem = regression()
    solver, state = run(problem)
    x, y = map(jnp.asarray, START)
    begun = solver.init(problem, x, y, jax.random.key(0))
    zero = jnp.zeros((), jnp.int32)
    ran = take_steps_jit(problem, State(solver, begun, zero, jnp.ones(())), zero + STEPS)
    assert int(ran.step) == STEPS
    for one, two in zip(
        jax.tree.leaves(solver.output(state)), jax.tree.leaves(ran.point), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=1e-9)


def ridge(size=COUNT):
    """A penalty for each of three weights; batches that hold all examples unless size is less."""

    def loss(w, batch):
        return (batch["A"] @ w - batch["b"]) ** 2

    def inner(z, w, batch):
        return jnp.mean(loss(w, batch)) + jnp.sum(jnp.exp(z) * w**2)

    twice = {name: np.concatenate([part, part]) for name, part in VALID.items()}  # are enough
    data = pdbo.Batches(twice, {"A": A, "b": GIVEN}, (2 * FEW, size))
    return pdbo.Problem(lambda z, w, batch: jnp.mean(loss(w, batch)), inner, data)


def test_whole_batches_take_implicit_gradients():
    """Against the closed form of the weights, and f on the best of many penalties."""
    problem, (x, y) = ridge(), (jnp.zeros(3), jnp.zeros(3))
    solver = Streamed(BatchPDBO())
    begun = solver.init(problem, x, y, jax.random.key(0))
    zero = jnp.zeros((), jnp.int32)
    steps = 1 + whole.RATES * whole.TRIAL + 3 * whole.ROUND
    ran = take_steps_jit(problem, State(solver, begun, zero, jnp.ones(())), zero + steps)
    assert isinstance(begun.solver, whole.WholeState)

    def weights(z):
        return np.linalg.solve(A.T @ A / COUNT + np.diag(np.exp(z)), A.T @ GIVEN / COUNT)

    def value(z):
        return np.mean((VALID["A"] @ weights(z) - VALID["b"]) ** 2)

    np.testing.assert_allclose(ran.point.y, weights(np.asarray(ran.point.x)), rtol=1e-5)
    tried = [value(z) for z in RNG.uniform(-12, 4, size=(4000, 3))]
    assert value(np.asarray(ran.point.x)) < min(tried) < 0.01 * value(np.zeros(3))
    start = jnp.zeros(3)
    gradient, _ = whole.adjoint(problem.on_all(), start, jnp.asarray(weights(np.zeros(3))))
    slopes = [(value(m) - value(-m)) / 2e-5 for m in 1e-5 * np.eye(3)]
    assert np.linalg.norm(gradient - np.array(slopes)) < 0.05 * np.linalg.norm(slopes)


def test_parts_of_the_examples_have_noise():
    problem = ridge(COUNT // 2)
    state = Streamed(BatchPDBO()).init(problem, jnp.zeros(3), jnp.zeros(3), jax.random.key(0))
    assert not problem.data.whole and not isinstance(state.solver, whole.WholeState)
