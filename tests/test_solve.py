"""The driver: stops, codes, restarts, batches, compilation, history and progress."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import _solve
from pdbo._progress import Progress

SOLVERS = {
    "pdbo": cases.paper_pdbo(),
    "average": cases.paper_pdbo(average=True),
    "proximal": pdbo.ProximalPDBO(cases.paper_pdbo(), round_steps=50),
    "random": pdbo.ProximalPDBO(cases.paper_pdbo(), round_steps=7, choose="random"),
}
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


@pytest.mark.parametrize("name", SOLVERS)
def test_restart_equals_the_uninterrupted_run(name):
    problem, options = cases.toy(), dict(tol=0, every=25, key=jax.random.key(3))
    whole = pdbo.solve(problem, X0, Y0, SOLVERS[name], steps=330, **options)
    part = pdbo.solve(problem, X0, Y0, SOLVERS[name], steps=110, **options)
    rest = pdbo.solve(problem, state=part.state, steps=220, tol=0, every=25)
    assert equal(whole.state, rest.state)
    assert equal((whole.x, whole.y, whole.multiplier), (rest.x, rest.y, rest.multiplier))
    assert rest.steps == 330
    # rows at multiples of `every` agree; the break adds one row of its own
    steps = np.concatenate([part.history["step"], rest.history["step"]])
    eps = np.concatenate([part.history["eps"], rest.history["eps"]])
    kept = np.isin(steps, whole.history["step"])
    assert np.array_equal(steps[kept], whole.history["step"])
    assert np.array_equal(eps[kept], whole.history["eps"])


@pytest.mark.parametrize("name", SOLVERS)
def test_vmap_equals_a_loop(name):
    problem = cases.toy()
    xs, ys = jnp.linspace(-1, 3, 5), jnp.linspace(0, 1, 10).reshape(5, 2)
    keys = jax.random.split(jax.random.key(0), 5)

    def run(x, y, key):
        return pdbo.solve(problem, x, y, SOLVERS[name], steps=120, every=40, key=key, tol=1e-2)

    batch = jax.jit(jax.vmap(run))(xs, ys, keys)
    for i in range(5):
        one = run(xs[i], ys[i], keys[i])
        np.testing.assert_allclose(batch.x[i], one.x, rtol=1e-12)
        np.testing.assert_allclose(batch.y[i], one.y, rtol=1e-12)
        assert batch.code[i] == one.code and batch.steps[i] == one.steps
        rows = batch.history["step"][i] >= 0
        np.testing.assert_array_equal(batch.history["step"][i][rows], one.history["step"])
        np.testing.assert_allclose(batch.history["f"][i][rows], one.history["f"], rtol=1e-10)


def test_jit_and_grid_of_steps():
    problem = cases.toy()
    solvers = eqx.filter_vmap(lambda s: pdbo.PDBO(primal_step=s))(jnp.array([0.05, 0.1, 0.2]))
    found = eqx.filter_jit(eqx.filter_vmap(lambda s: pdbo.solve(problem, X0, Y0, s, steps=300).x))(
        solvers
    )
    for step, x in zip([0.05, 0.1, 0.2], found, strict=True):
        one = pdbo.solve(problem, X0, Y0, pdbo.PDBO(primal_step=step), steps=300)
        np.testing.assert_allclose(x, one.x, rtol=1e-12)


def test_new_numbers_do_not_recompile():
    traces = []

    def f(x, y, data):
        traces.append(None)
        return jnp.sum((x - data["t"]) ** 2) + jnp.sum(y**2)

    g = lambda x, y, data: 0.5 * jnp.sum((y - x) ** 2)

    def run(target, start, hi, tol=1e-3, **settings):
        problem = pdbo.Problem(f, g, {"t": target * jnp.ones(2)}, x_set=pdbo.Box(-5.0, hi))
        solver = pdbo.PDBO(**settings)
        return pdbo.solve(problem, start * jnp.ones(2), jnp.zeros(2), solver, steps=50, tol=tol)

    run(1.0, 0.5, 3.0)
    run(2.0, 0.5, 3.0)
    checks = len(traces)
    run(1.5, 0.7, 4.0)
    per_call = len(traces) - checks  # the cheap shape checks of every call
    before = len(traces)
    run(0.3, 0.1, 2.0, primal_step=0.03, dual_step=0.3, smoothing=1e-3, multiplier0=0.1, tol=1e-2)
    assert len(traces) - before == per_call
    compiled = _solve._advance_jit._cached._cache_size()
    run(0.2, 0.3, 2.5, primal_step=0.01)
    assert _solve._advance_jit._cached._cache_size() == compiled


def test_success_is_what_the_double_certificate_says(x32):
    """In float32, over problems and tolerances: ok exactly where the recomputed eps is <= tol."""
    seen = set()
    for tol in (1e-1, 1e-2, 1e-3, 2e-4, 1e-4, 1e-6):
        for start in cases.TOY_STARTS:
            problem = cases.toy()
            sol = pdbo.solve(
                problem, start[0], jnp.array(start[1]), SOLVERS["pdbo"], steps=400, tol=tol
            )
            again = pdbo.certify(problem, sol.x, sol.y, sol.multiplier)
            assert sol.ok == (again.eps <= tol)
            assert sol.certificate.eps == pytest.approx(again.eps, rel=1e-6)
            assert sol.result is (pdbo.RESULTS.success if sol.ok else pdbo.RESULTS.max_steps)
            seen.add(sol.ok)
    assert seen == {True, False}


def test_stops_at_the_first_record_within_tolerance():
    sol = pdbo.solve(cases.toy(), X0, Y0, SOLVERS["pdbo"], steps=10_000, tol=1e-3, every=10)
    assert sol.ok and sol.steps < 1000
    assert np.all(sol.history["eps"][:-1] > 1e-3) and sol.history["eps"][-1] <= 1e-3


def test_budget_is_no_failure():
    sol = pdbo.solve(cases.toy(), X0, Y0, SOLVERS["pdbo"], steps=7, every=3)
    assert sol.result is pdbo.RESULTS.max_steps and not sol.ok
    assert sol.history["step"].tolist() == [0, 3, 6, 7]
    assert "step budget" in sol.message


def nonfinite_after(where):
    """The toy with a function that turns NaN once x has come below 1.5."""
    toy = cases.toy()
    spoil = lambda x: jnp.where(x < 1.5, jnp.nan, 0.0)
    if where == "f":
        return pdbo.Problem(lambda x, y: toy.f(x, y) + spoil(x), toy.g)
    if where == "g":
        return pdbo.Problem(toy.f, lambda x, y: toy.g(x, y) + spoil(x))
    spoil_gradient = lambda x: jnp.sqrt(jnp.where(x < 1.5, 0.0 * x, 1.0))
    return pdbo.Problem(lambda x, y: toy.f(x, y) + spoil_gradient(x), toy.g)


@pytest.mark.parametrize("where", ["f", "g", "gradient"])
@pytest.mark.parametrize("name", SOLVERS)
def test_nonfinite_keeps_the_last_finite_point(name, where):
    problem, solver = nonfinite_after(where), SOLVERS[name]
    with pytest.raises(pdbo.SolveError, match="Failed at iteration") as error:
        pdbo.solve(problem, X0, Y0, solver, steps=300, every=100)
    sol = error.value.solution
    assert sol.result is pdbo.RESULTS.nonfinite and not sol.ok
    assert np.isfinite(sol.x) and np.all(np.isfinite(sol.y)) and np.isfinite(sol.f)
    assert np.isfinite(sol.certificate.eps)
    # one more step from the state returned is the one that fails
    state = sol.state.inner
    after = solver.step(problem, state)
    point = solver.output(after)
    values = [jax.value_and_grad(h, (0, 1))(point.x, point.y) for h in (problem.f, problem.g)]
    leaves = jax.tree.leaves(eqx.filter((after, values), eqx.is_inexact_array))
    assert not all(np.all(np.isfinite(leaf)) for leaf in leaves)
    returned = pdbo.solve(problem, X0, Y0, solver, steps=300, every=100, throw=False)
    assert equal(returned.x, sol.x) and returned.steps == sol.steps
    traced = jax.jit(lambda x: pdbo.solve(problem, x, Y0, solver, steps=300, every=100))(X0)
    assert traced.code == pdbo.RESULTS.nonfinite and traced.steps == sol.steps


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
        SOLVERS["pdbo"],
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
    sol = pdbo.solve(cases.toy(), X0, Y0, SOLVERS["pdbo"], steps=1000, every=1, tol=0)
    assert sol.history["step"].tolist() == list(range(1001))


@pytest.mark.parametrize("solver", [SOLVERS["pdbo"], SOLVERS["proximal"]])
def test_declared_calls_equal_counted_ones(solver):
    """Gradients are counted by the program itself, through callbacks in the derivative."""
    counts = {"f": 0, "g": 0}

    def counted(name, function):
        @jax.custom_vjp
        def call(x, y):
            return function(x, y)

        def forward(x, y):
            value, grads = jax.value_and_grad(function, (0, 1))(x, y)
            jax.debug.callback(lambda: counts.__setitem__(name, counts[name] + 1))
            return value, grads

        call.defvjp(forward, lambda grads, ct: jax.tree.map(lambda g: ct * g, grads))
        return call

    toy = cases.toy()
    problem = pdbo.Problem(counted("f", toy.f), counted("g", toy.g))
    state = solver.init(problem, jnp.array(X0), Y0, jax.random.key(0))
    jax.effects_barrier()
    counts.update(f=0, g=0)
    for _ in range(4):
        state = solver.step(problem, state)
    jax.effects_barrier()
    calls = solver.calls(state)
    assert (int(calls.f), int(calls.g)) == (counts["f"], counts["g"])
    assert int(calls.products) == 0


def test_progress_shows_the_run():
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
        for part in ("step 50/100", "f 50", "multiplier 50", "eps 5.00e+01", "██████████░"):
            assert part in text


def test_progress_changes_nothing(capsys):
    options = dict(steps=3000, every=10, tol=0)
    quiet = pdbo.solve(cases.toy(), X0, Y0, SOLVERS["pdbo"], **options)
    assert capsys.readouterr().err == ""
    shown = pdbo.solve(cases.toy(), X0, Y0, SOLVERS["pdbo"], progress=True, **options)
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
