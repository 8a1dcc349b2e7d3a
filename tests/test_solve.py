"""The driver: stops, codes, restarts, batches, compilation, history and progress."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import _driver, _progress
from pdbo._programs import FEW, Program
from pdbo._progress import Progress

PDBO = cases.paper_pdbo()
RANDOM = pdbo.ProximalPDBO(PDBO, round_steps=7, choose="random")
X0, Y0 = 2.0, jnp.array([0.5, 0.5])


def equal(a, b):
    """Whether two pytrees are the same to the bit."""
    return all(
        np.array_equal(np.asarray(u), np.asarray(v))
        for u, v in zip(*map(_arrays, (a, b)), strict=True)
    )


def _arrays(tree):
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return [
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in leaves
    ]


@pytest.mark.parametrize("solver", [cases.paper_pdbo(average=True), RANDOM], ids=["mean", "key"])
def test_restart_carries_averages_and_keys(solver):
    problem, options = cases.toy(), dict(tol=0, every=25)
    whole = pdbo.solve(problem, X0, Y0, solver, steps=330, key=jax.random.key(3), **options)
    part = pdbo.solve(problem, X0, Y0, solver, steps=110, key=jax.random.key(3), **options)
    rest = pdbo.solve(problem, state=part.state, steps=220, **options)
    assert rest.steps == 330 and equal(whole.state, rest.state)


def test_batch_of_runs():
    """Under jit and vmap a run stops, records and draws as it does alone."""
    problem = cases.toy()
    xs, ys = jnp.linspace(-1, 3, 5), jnp.linspace(0, 1, 10).reshape(5, 2)
    keys = jax.random.split(jax.random.key(0), 5)

    def run(x, y, key):
        return pdbo.solve(problem, x, y, RANDOM, steps=120, every=40, key=key, tol=1e-2)

    batch = jax.jit(jax.vmap(run))(xs, ys, keys)
    for i in range(5):
        one = run(xs[i], ys[i], keys[i])
        np.testing.assert_allclose(batch.x[i], one.x, rtol=1e-12)
        np.testing.assert_allclose(batch.y[i], one.y, rtol=1e-12)
        assert batch.code[i] == one.code and batch.steps[i] == one.steps
        rows = batch.history["step"][i] >= 0
        np.testing.assert_array_equal(batch.history["step"][i][rows], one.history["step"])
        np.testing.assert_allclose(batch.history["f"][i][rows], one.history["f"], rtol=1e-10)


def test_solvers_built_under_vmap():
    problem = cases.toy()
    solvers = eqx.filter_vmap(lambda s: pdbo.PDBO(primal_step=s))(jnp.array([0.05, 0.1, 0.2]))
    found = eqx.filter_jit(eqx.filter_vmap(lambda s: pdbo.solve(problem, X0, Y0, s, steps=300).x))(
        solvers
    )
    for step, x in zip([0.05, 0.1, 0.2], found, strict=True):
        one = pdbo.solve(problem, X0, Y0, pdbo.PDBO(primal_step=step), steps=300)
        np.testing.assert_allclose(x, one.x, rtol=1e-12)


def test_new_bounds_do_not_recompile():
    def run(hi, target):
        x_set = pdbo.Box(-5.0, hi)
        problem = pdbo.Problem(_shifted, _tied, {"target": jnp.array(target)}, x_set=x_set)
        return pdbo.solve(problem, jnp.zeros(2), jnp.zeros(2), pdbo.PDBO(), steps=50)

    before = len(cases.COMPILED)
    run(3.0, 1.0)
    compiled = len(cases.COMPILED)
    assert compiled > before
    run(2.5, 4.0)
    assert len(cases.COMPILED) == compiled


def _shifted(x, y, data):
    return jnp.sum((x - data["target"]) ** 2) + jnp.sum(y**2)


def _tied(x, y, data):
    return 0.5 * jnp.sum((y - x) ** 2)


def test_stops_at_the_first_record_within_tolerance():
    sol = pdbo.solve(cases.toy(), X0, Y0, PDBO, steps=10_000, tol=1e-3, every=10)
    assert sol.ok and sol.steps < 1000
    assert np.all(sol.history["eps"][:-1] > 1e-3) and sol.history["eps"][-1] <= 1e-3


def test_budget_is_no_failure():
    sol = pdbo.solve(cases.toy(), X0, Y0, PDBO, steps=7, every=3)
    assert sol.result is pdbo.RESULTS.max_steps and not sol.ok
    assert sol.history["step"].tolist() == [0, 3, 6, 7]
    assert "step budget" in sol.message


def test_nonfinite_under_jit():
    """What is raised elsewhere is a code here; the point is the same."""
    problem, x, y = cases.home(f=0.1), jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    solver = pdbo.PDBO(primal_step=0.01)
    alone = pdbo.solve(problem, x, y, solver, steps=100, throw=False)
    traced = jax.jit(lambda x: pdbo.solve(problem, x, y, solver, steps=100))(x)
    assert alone.result is pdbo.RESULTS.nonfinite and traced.code == pdbo.RESULTS.nonfinite
    assert 0 < traced.steps == alone.steps < 100
    np.testing.assert_allclose(traced.x, alone.x, rtol=1e-12)


def test_divergence_has_its_code():
    problem = pdbo.Problem(lambda x, y: -(x**2), lambda x, y: 0.5 * y**2)
    with pytest.raises(pdbo.SolveError, match="ran away") as error:
        pdbo.solve(problem, 1.0, 1.0, pdbo.PDBO(), steps=2000)
    assert error.value.solution.result is pdbo.RESULTS.diverged


def test_runaway_multiplier_has_its_code():
    """An inner estimate that starts far away each time never lets the constraint be met."""
    problem = pdbo.Problem(
        lambda x, y: 0.5 * (y - 1) ** 2, lambda x, y: 0.5 * y**2, y_set=pdbo.Box(1.0, 2.0)
    )
    solver = pdbo.PDBO(primal_step=0.0, dual_step=1e9, inner_step=1.0, smoothing=0.0)
    problem = pdbo.Problem(problem.f, problem.g)
    with pytest.raises(pdbo.SolveError, match="multiplier ran away") as error:
        pdbo.solve(problem, 0.0, 1.0, solver, steps=1000)
    assert error.value.solution.result is pdbo.RESULTS.multiplier_diverged


def test_history_has_the_promised_columns_and_observations():
    sol = pdbo.solve(
        cases.toy(),
        X0,
        Y0,
        PDBO,
        steps=20,
        every=5,
        tol=0,
        observe=lambda x, y: {"x": x, "y": y, "error": jnp.abs(x - 1)},
    )
    h = sol.history
    for name in ("step", "f", "g", "h", "multiplier", "stationarity", "inner_gap", "eps"):
        assert len(h[name]) == 5
    assert h["y"].shape == (5, 2)
    np.testing.assert_allclose(h["error"], np.abs(h["x"] - 1))
    assert h["f_calls"].tolist() == [0, 5, 10, 15, 20]
    assert h["g_calls"].tolist() == [0, 35, 70, 105, 140]
    np.testing.assert_allclose(h["f"][0], cases.toy().f(X0, Y0))


def test_long_histories_span_chunks():
    sol = pdbo.solve(cases.toy(), X0, Y0, PDBO, steps=1000, every=1, tol=0)
    assert sol.history["step"].tolist() == list(range(1001))


def test_progress_shows_the_run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for file, live in ((Terminal(), True), (io.StringIO(), False)):
        with Progress(0, 100, 1e-4, enabled=True, file=file) as bar:
            bar.shown -= 60
            row = {k: np.array([50.0]) for k in ("step", "f", "h", "multiplier", "eps")}
            bar.update(row)
        text = file.getvalue()
        assert ("\r" in text) == live and text.endswith("\n")
        assert "compiling" in text.partition("step")[0] and "left" not in text
        for part in ("step 50/100", "f 50", "multiplier 50", "eps 5.00e+01", "██████████░"):
            assert part in text


def test_time_left_is_estimated_without_compilation(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with Progress(0, 100, 1e-4, enabled=True, file=io.StringIO()) as bar:
        for moment, step in ((1000.0, 10.0), (1001.0, 20.0)):
            now[0] = moment
            bar.update({k: np.array([step]) for k in ("step", "f", "h", "multiplier", "eps")})
    assert bar.file.getvalue().endswith("1001 s, at most 8 s left\n")


def test_progress_changes_nothing(capsys):
    options = dict(steps=3000, every=10, tol=0)
    quiet = pdbo.solve(cases.toy(), X0, Y0, PDBO, **options)
    assert capsys.readouterr().err == ""
    shown = pdbo.solve(cases.toy(), X0, Y0, PDBO, progress=True, **options)
    assert "step 3,000/3,000" in capsys.readouterr().err
    assert equal(quiet.state, shown.state)
    assert all(np.array_equal(quiet.history[k], shown.history[k]) for k in quiet.history)


def test_memory_does_not_grow_with_the_iterations_or_the_inner_steps():
    """Scratch memory of the compiled loop, from the compiler itself."""
    n = 1000
    problem = pdbo.Problem(
        lambda x, y: 0.5 * jnp.sum((x - y) ** 2), lambda x, y: 0.5 * jnp.sum((y - 1) ** 2 * x**2)
    )

    def scratch(inner_steps):
        solver = pdbo.PDBO(inner_steps=inner_steps)
        state = solver.init(problem, jnp.ones(n), jnp.ones(n), jax.random.key(0))
        many = lambda state, k: jax.lax.fori_loop(0, k, lambda _, s: solver.step(problem, s), state)
        compiled = jax.jit(many).lower(state, 10).compile()  # the count is an argument
        return compiled.memory_analysis().temp_size_in_bytes

    assert scratch(500) <= scratch(5) <= 12 * 8 * n


def test_texts_of_all_codes():
    for code in pdbo.RESULTS:
        assert code.text.endswith(".")
    for code in (pdbo.RESULTS.nonfinite, pdbo.RESULTS.diverged, pdbo.RESULTS.multiplier_diverged):
        assert "(a)" in code.text and "(b)" in code.text


@pytest.mark.parametrize(
    ("observe", "match"),
    [
        (lambda x, y: 1.0, "must return a dict of arrays"),
        (lambda x, y: None, "must return a dict of arrays"),
        (lambda x, y: {"a": float(x)}, "cannot be evaluated"),
        (lambda x, y: {"f": x}, "which the history has already"),
    ],
)
def test_bad_observations(observe, match):
    with pytest.raises(pdbo.ProblemError, match=match):
        pdbo.solve(cases.toy(), 2.0, jnp.ones(2), pdbo.PDBO(), steps=2, observe=observe)


def test_a_state_is_checked_against_the_problem():
    sol = pdbo.solve(cases.toy(), 2.0, jnp.ones(2), pdbo.PDBO(), steps=2)
    other = pdbo.Problem(lambda x, y: jnp.sum(x[0] + y), lambda x, y: jnp.sum(y**2))
    with pytest.raises(pdbo.ProblemError, match="f cannot be evaluated"):
        pdbo.solve(other, state=sol.state)


def test_an_exhausted_budget_is_said():
    solver = pdbo.ProximalPDBO(pdbo.PDBO(), rounds=2, round_steps=5)
    sol = pdbo.solve(cases.toy(), 2.0, jnp.ones(2), solver)
    with pytest.raises(pdbo.ProblemError, match="own budget of 10 steps is used up"):
        pdbo.solve(cases.toy(), state=sol.state, steps=5)


def test_floats_in_data_do_not_recompile():
    f = lambda x, y, d: (x - d) ** 2 + y**2
    g = lambda x, y, d: (y - x) ** 2
    run = lambda d: pdbo.solve(pdbo.Problem(f, g, d), 0.0, 0.0, pdbo.PDBO(), steps=5)
    run(1.0)
    compiled = _driver.advance_jit._quick._cached._cache_size()
    run(2.0)
    assert _driver.advance_jit._quick._cached._cache_size() == compiled


def test_a_solution_prints_its_point_certificate_and_cost():
    sol = pdbo.solve(cases.toy(), 2.0, np.array([0.5, 0.5]))
    text = str(sol)
    for part in (
        "within the tolerance",
        "\nx = 1.",
        "\ny = [1., 1.]",
        "y is an inner minimiser",
        "y solved again",
    ):
        assert part in text, text
    n = 20
    follows = pdbo.Problem(
        lambda x, y: jnp.sum((y["a"] - 1) ** 2), lambda x, y: jnp.sum((y["a"] - x) ** 2)
    )
    wide = str(pdbo.solve(follows, np.zeros(n), {"a": np.zeros(n)}, pdbo.PDBO(), steps=2, tol=None))
    assert "y['a'] = array of shape (20,), from 0" in wide and "no first-order improvement" in wide
    assert "2 steps, " in wide and "gradients of g" in wide


def test_small_problems_are_compiled_quickly_and_large_ones_well():
    program = Program(lambda x: x + 1)
    for size in (10, 10 * FEW):
        np.testing.assert_array_equal(program(jnp.zeros(size)), np.ones(size))
    counts = [p._cached._cache_size() for p in (program._quick, program._plain)]
    assert counts == [1, 1]
    assert jax.jit(program)(jnp.zeros(2)).shape == (2,)
