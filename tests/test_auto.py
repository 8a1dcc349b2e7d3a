"""The automatic solver and multistart: defaults only."""

import pathlib
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import problems
from pdbo._multistart import _spread, kronecker, multistart
from pdbo.solvers.auto import AutoPDBO
from pdbo.solvers.auto.penalised import penalised
from pdbo.solvers.auto.state import POLISH

SOLVER = AutoPDBO()


def run(problem, x, y, key, steps=600):
    """A run to its rest, traceable."""
    state = SOLVER.init(problem, x, y, key)
    start = (jnp.zeros((), int), state)
    return jax.lax.while_loop(
        lambda s: (s[0] < steps) & ~SOLVER.settled(s[1]),
        lambda s: (s[0] + 1, SOLVER.step(problem, s[1])),
        start,
    )[1]


def total(calls):
    return np.asarray(calls.f + calls.g + calls.products)


TOY, SINE = problems.get("toy"), problems.get("sine")  # once, so that they are compiled once


@pytest.mark.parametrize("start", [(2.0, [0.5, 0.5]), (0.0, [2.0, 2.0])])
def test_toy(start):
    entry = TOY
    sol = pdbo.solve(entry.problem, start[0], jnp.array(start[1]), SOLVER)
    assert sol.ok
    assert abs(sol.f) <= 1e-6 and abs(sol.x - 1) <= 1e-3
    assert entry.inner_gap(sol.x, sol.y) <= 1e-6
    assert sol.history["f_calls"][-1] + sol.history["g_calls"][-1] < 20_000


def test_sine():
    entry = SINE
    best = multistart(entry.problem, 3.0, 3.0, starts=16)
    x, y = np.asarray(best.all.x)[0], np.asarray(best.all.y)[0]  # from the start that was given
    assert best.all.ok[0]  # a certified solution, and no corner
    assert abs(x) < 9.9 and abs(y) < 9.9
    assert entry.inner_gap(x, y) <= 1e-6

    assert best.ok and isinstance(best, pdbo.Solution)
    assert abs(best.f - np.pi**2 / 8) <= 1e-3
    assert entry.inner_gap(best.x, best.y) <= 1e-6
    assert best.all.f.shape == (16,) and best.f == best.all.f[best.index]
    assert best.f <= np.min(np.asarray(best.all.f)[np.asarray(best.all.ok)])


def test_multistart_returns_doubles(x32):
    best = multistart(SINE.problem, 3.0, 3.0, starts=16)
    for array in (best.x, best.y, best.all.x, best.all.y):
        assert isinstance(array, np.ndarray) and array.dtype == np.float64
    again = pdbo.certify(SINE.problem, best.x, best.y, best.multiplier)
    assert best.ok and again.eps == best.certificate.eps


def pick(entries, kind):
    """The f or the g of one of some problems, its number the first of the data."""

    def value(x, y, data):
        return jnp.stack([getattr(entry.problem, kind)(x, y) for entry in entries])[data[0]]

    return value


SCALED = ["sine", "mb-3.13", "iaptt"]
RANDOM = "mb-3.14"  # two cuts are active at its solution
# of f, of g and of y
SCALES = np.array([[1, 1, 1], [1e3, 1, 1], [1, 1e3, 1], [1, 1, 1e-3]])


@pytest.fixture(scope="module")
def runs():
    """x, y and calls of runs of all problems but one from 4 starts each, in every scale, and of
    the last from 12: all of them by one program, which is worth optimising."""
    entries = [problems.get(name) for name in [*SCALED, RANDOM]]
    bounds = jnp.asarray([[*entry.spread[0], *entry.spread[1]] for entry in entries])
    f, g = pick(entries, "outer"), pick(entries, "inner")

    def one(which, scale, x, y, key):
        a, b, c = scale
        lo_x, hi_x, lo_y, hi_y = bounds[which]
        problem = pdbo.Problem(
            lambda x, y, data: data[1] * f(x, y / data[3], data),
            lambda x, y, data: data[2] * g(x, y / data[3], data),
            data=(which, a, b, c),
            x_set=pdbo.Box(lo_x, hi_x),
            y_set=pdbo.Box(lo_y * c, hi_y * c),
        )
        state = run(problem, x, y * c, key)
        return state.x, state.y / c, SOLVER.calls(state)

    rows = []
    for which, entry in enumerate(entries):
        count, scales = (12, SCALES[:1]) if entry.name == RANDOM else (4, SCALES)
        seed = 5 if entry.name == RANDOM else 1
        starts = entry.starts(count, seed=seed)
        keys = jax.random.split(jax.random.key(seed), count)
        rows += [
            (which, scale, starts[0][i], starts[1][i], keys[i])
            for scale in scales
            for i in range(count)
        ]
    *columns, keys = zip(*rows, strict=True)
    arguments = (*(jnp.asarray(np.array(column)) for column in columns), jnp.stack(keys))
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(*arguments))
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def test_random_starts(runs):
    entry = problems.get(RANDOM)
    x, y, calls = jax.tree.map(lambda a: a[-12:], runs)
    assert np.mean([entry.solved(x[i], y[i]) for i in range(12)]) >= 0.8
    assert np.median(total(calls)) <= 8_000


def test_rescaling_changes_nothing(runs):
    x, y = (part[:-12].reshape(len(SCALED), len(SCALES), 4) for part in runs[:2])
    for i, name in enumerate(SCALED):
        entry = problems.get(name)
        f = np.asarray(entry.problem.outer(x[i], y[i]))  # entry by entry
        assert f.shape == x[i].shape
        for other in f[1:]:  # the same solution from the same start
            np.testing.assert_allclose(other, f[0], atol=5e-3 * max(1, abs(entry.f_star)))


def test_a_session_without_64_bit_types(x32):
    entry = TOY
    sol = pdbo.solve(entry.problem, *entry.start, SOLVER, steps=600, throw=False)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves((sol.x, sol.y)))
    assert sol.result in (pdbo.RESULTS.success, pdbo.RESULTS.max_steps)
    assert abs(float(sol.f)) <= 1e-3 and entry.inner_gap(sol.x, sol.y) <= 1e-4


def test_single_precision_is_no_excuse(x32, tmp_path):
    """Small problems run in double: what is returned is certified, kept and resumed."""
    entry = problems.get("mb-3.20")
    problem = entry.problem
    start = jax.tree.map(jnp.asarray, entry.start)
    sol = pdbo.solve(problem, *start, checkpoint=tmp_path, steps=100)
    sol = pdbo.solve(problem, *start, checkpoint=tmp_path, every=100)
    assert sol.ok and entry.solved(sol.x, sol.y)
    assert {leaf.dtype for leaf in jax.tree.leaves((sol.x, sol.y))} == {np.dtype(np.float64)}
    assert pdbo.certify(problem, sol.x, sol.y, sol.multiplier).eps <= 1e-4
    again = pdbo.load(tmp_path, problem)
    assert again.x.dtype == np.float64 and np.array_equal(again.x, sol.x)
    assert pdbo.solve(problem, state=again.state).ok
    assert jnp.zeros(()).dtype == jnp.float32  # the session is what it was


def test_a_start_on_the_simplex_is_on_it_in_double_too(x32, recwarn):
    problem = pdbo.Problem(
        lambda x, y: x**2 + y[0], lambda x, y: jnp.sum((y - x) ** 2), y_set=pdbo.Simplex()
    )
    start = jnp.array([0.3, 0.3, 0.4], jnp.float32)
    assert pdbo.solve(problem, 0.5, start, steps=100).ok
    assert not [w for w in recwarn if issubclass(w.category, pdbo.StartProjected)]
    with pytest.warns(pdbo.StartProjected):
        pdbo.solve(problem, 0.5, 2 * start, steps=100, throw=False)


def test_sizes_take_the_same_iterations():
    iterations = []
    for n in (1, 10_000):
        entry = problems.get("bda", n)
        x, y = jax.tree.map(jnp.asarray, entry.start)
        state = jax.jit(lambda x, y, e=entry: run(e.problem, x, y, jax.random.key(0)))(x, y)
        assert entry.solved(state.x, state.y)
        iterations.append(int(state.t))
    assert max(iterations) <= 3 * min(iterations)


def test_spread_is_even():
    points = kronecker(64, [0.3, 0.8])
    assert points.min() >= 0 and points.max() < 1
    cells = np.histogram2d(points[:, 0], points[:, 1], bins=4, range=[[0, 1], [0, 1]])[0]
    assert cells.min() >= 2 and cells.max() <= 6  # random points: 0 and 9 are common
    with pytest.raises(pdbo.ProblemError, match="leading axis"):
        multistart(SINE.problem, 3.0, 3.0)
    with pytest.raises(pdbo.ProblemError, match="starts must be"):
        multistart(SINE.problem, 3.0, 3.0, starts=0)


def test_spread_covers_every_kind_of_set():
    """Starts made of one lie in their sets and differ, evenly over a simplex, wide elsewhere."""
    sets = {
        "free": pdbo.Free(),
        "box": pdbo.Box(-2.0, 3.0),
        "half": pdbo.NonNegative(),
        "ball": pdbo.Ball(2.0, 5.0),
        "simplex": pdbo.Simplex(4.0),
        "side": pdbo.Halfspace(1.0, 1.0),
        "plane": pdbo.Affine(np.ones((1, 3)), np.ones(1)),
    }
    problem = pdbo.Problem(
        lambda x, y: jnp.sum(x), lambda x, y: x[0] + 0 * y["free"][0], y_set=pdbo.Product(sets)
    )
    start = {name: set_.project(jnp.full(3, 0.2)) for name, set_ in sets.items()}
    x, y = _spread(problem, jnp.full(2, 4.0), start, 200, None, jax.random.key(0))
    assert np.abs(x - 4).max() > 10 and np.abs(x - 4).max() <= 12  # three times the size of x0
    for name, set_ in sets.items():
        assert jax.vmap(lambda z, s=set_: s.contains(z, 1e-6))(y[name]).all()
        assert len(np.unique(np.asarray(y[name]), axis=0)) > 100
        np.testing.assert_allclose(y[name][0], start[name])
    np.testing.assert_allclose(y["box"].mean(0), 0.5, atol=0.2)
    np.testing.assert_allclose(y["simplex"].mean(0), 4 / 3, atol=0.2)
    small = np.mean(np.asarray(y["simplex"]) < 0.4)  # with probability 1 - 0.9^2
    np.testing.assert_allclose(small, 0.19, atol=0.04)
    reach = 3 * np.sqrt(np.mean(np.concatenate(list(start.values())) ** 2))
    assert 0.8 * reach < np.abs(y["free"] - 0.2).max() <= reach
    wide = _spread(problem, jnp.full(2, 4.0), start, 200, 7.0, jax.random.key(0))[1]["free"]
    assert 6 < np.abs(wide - 0.2).max() <= 7


def test_scalings_of_a_sparse_classifier_are_never_nan(x32):
    """100,000 features, data and regulariser scaled over six orders of magnitude each."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    try:
        from benchmarks.scalings import problem, scalings
    finally:
        sys.path.pop(0)
    made = scalings(20)
    for scale, regulariser in [made[i] for i in (1, 16)]:  # two corners
        p, *start = problem(20, 100_000, 2, scale, regulariser)
        x, w = jax.tree.map(jnp.asarray, start)
        state = cases.iterate(p, SOLVER, x, w, 20)
        for leaf in jax.tree.leaves((state.x, state.y, state.f, state.cuts, state.multiplier)):
            assert bool(jnp.isfinite(leaf).all())
        assert state.f < p.outer(x, w)


def test_a_penalty_for_every_feature_is_certified():
    keys = jax.random.split(jax.random.key(1), 2)
    A = jax.random.normal(keys[0], (60, 8))
    b = A @ jnp.where(jnp.arange(8) < 4, 1.0, 0.0) + 2 * jax.random.normal(keys[1], (60,))

    def error(w, rows):
        return jnp.mean((A[rows] @ w - b[rows]) ** 2)

    problem = pdbo.Problem(
        lambda x, w: error(w, slice(30, 60)),
        lambda x, w: error(w, slice(0, 30)) + jnp.mean(jnp.exp(x) * w**2),
        x_set=pdbo.Box(-6.0, 6.0),
    )
    sol = pdbo.solve(problem, jnp.zeros(8), jnp.zeros(8), SOLVER)

    def outer(x):  # the weights in closed form
        H = A[:30].T @ A[:30] / 30 + jnp.diag(jnp.exp(x)) / 8
        return error(jnp.linalg.solve(H, A[:30].T @ b[:30] / 30), slice(30, 60))

    assert sol.ok
    assert problem.x_set.residual(sol.x, jax.jit(jax.grad(outer))(sol.x)) <= 1e-3


def classifier(key, rows=60, columns=6, classes=3):
    """Labelled rows of a linear model, half to train on and half held out, and the loss."""
    keys = jax.random.split(key, 3)
    A = jax.random.normal(keys[0], (2 * rows, columns))
    truth = 2 * jax.random.normal(keys[1], (columns, classes))
    labels = jnp.argmax(A @ truth + 2 * jax.random.gumbel(keys[2], (2 * rows, classes)), 1)

    def losses(w, part):
        scores = A[part] @ w
        return jax.nn.logsumexp(scores, 1) - scores[jnp.arange(rows), labels[part]]

    train, held = slice(0, rows), slice(rows, 2 * rows)
    return losses, train, held, jnp.zeros((columns, classes))


def minimiser(g, start):
    """By Newton steps."""

    def step(w, _):
        value = lambda v: g(v.reshape(start.shape))
        return w - jnp.linalg.solve(jax.hessian(value)(w), jax.grad(value)(w)), None

    return jax.lax.scan(step, start.ravel(), length=20)[0].reshape(start.shape)


def test_one_penalty_from_weights_of_zero():
    """At w = 0 the penalty has neither value nor slope, and x is unbounded: the grid's best."""
    losses, train, held, zero = classifier(jax.random.key(0))
    problem = pdbo.Problem(
        lambda x, w: jnp.mean(losses(w, held)),
        lambda x, w: jnp.mean(losses(w, train)) + 0.01 * jnp.exp(x) * jnp.sum(w**2),
    )

    @jax.jit
    @jax.vmap
    def best(x):
        return problem.f(x, minimiser(lambda w: problem.g(x, w), zero))

    sol = pdbo.solve(problem, 0.0, zero, SOLVER)
    grid = np.linspace(-4.0, 4.0, 81)
    *values, at_start, found = np.asarray(best(np.array([*grid, 0.0, sol.x])))
    assert 0 < np.argmin(values) < 80 and at_start > 1.01 * min(values)
    assert sol.f <= 1.001 * min(values) and found <= 1.001 * min(values)


def test_a_weight_for_every_example_is_measured_by_what_it_moves():
    """Logits of weights: no curvature in x at the start, where all examples weigh the same."""
    losses, train, held, zero = classifier(jax.random.key(1))
    wrong = jnp.arange(60) % 2 == 0

    def trained(x, w):
        right = jnp.exp(-losses(w, train))
        shown = jnp.where(wrong, (1 - right) / 2, right)  # one of the other two labels
        return -jnp.mean(jax.nn.sigmoid(x) * jnp.log(shown)) + 1e-3 * jnp.sum(w**2)

    problem = pdbo.Problem(lambda x, w: jnp.mean(losses(w, held)), trained)
    sol = pdbo.solve(problem, jnp.zeros(60), zero, pdbo.AutoPDBO(exact=False), steps=300)
    assert 0.1 < sol.state.solver_state.scales.unit[0] < 100  # measured at the start, and kept
    assert jnp.max(jnp.abs(sol.x)) < 1e3
    assert sol.f < 0.8 * problem.f(0, zero)
    assert jnp.mean(sol.x[wrong]) < jnp.mean(sol.x[~wrong]) - 1


def test_the_slope_of_polishing_is_near_the_hypergradient():
    """Against the inner solution in closed form; where that is zero whatever the penalty, weakening
    the penalty earns nothing, though y is then free to leave it."""
    keys = jax.random.split(jax.random.key(3), 4)
    A, C = jax.random.normal(keys[0], (8, 5)), jax.random.normal(keys[1], (8, 5))
    b, d = jax.random.normal(keys[2], (8,)), jax.random.normal(keys[3], (8,))
    A = A.at[:, 0].set(0)
    problem = pdbo.Problem(
        lambda x, w: 0.5 * jnp.sum((C @ w - d) ** 2),
        lambda x, w: 0.5 * jnp.sum((A @ w - b) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * w**2),
    )

    def outer(x):
        return problem.f(x, jnp.linalg.solve(A.T @ A + jnp.diag(jnp.exp(x)), A.T @ b))

    x = jnp.linspace(-1.0, 1.0, 5)

    @jax.jit
    def at(weight):
        state = SOLVER.init(problem, x, jnp.zeros(5), jax.random.key(0))
        state = eqx.tree_at(
            lambda s: (s.phase, s.polish.residual, s.scales.steepest),
            state,
            (jnp.full_like(state.phase, POLISH), jnp.zeros(()), jnp.ones(())),
        )
        return penalised(problem, state, x, jnp.array(0), weight, jnp.full(2, 0.01))

    exact = jax.grad(outer)(x)
    assert exact[0] == 0
    near, nearer = at(jnp.array(200.0)), at(jnp.array(400.0))
    assert not near.unfinished and not nearer.unfinished
    assert 1.6 < jnp.linalg.norm(near.slope - exact) / jnp.linalg.norm(nearer.slope - exact) < 2.4
    assert jnp.linalg.norm(nearer.slope - exact) < 0.05 * jnp.linalg.norm(exact)
    saved = 200.0 * 0.5 * jnp.exp(x[0]) * near.y[0] ** 2
    assert jnp.abs(near.slope[0]) < 1e-3 * saved
