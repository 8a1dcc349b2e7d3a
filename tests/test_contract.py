"""The contract: laws that no public solver may break, each stated once for all of them.

Tests are grouped by solver, and those that call `solve` share one session, one problem and one
solver, so that each solver is compiled a few times only.
"""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import cases
import pdbo
import pdbo.solvers as S
from pdbo import _catalogue
from pdbo import _trees as trees
from pdbo.solvers._streamed import streamed

PUBLIC = list(pdbo.solvers.SOLVERS.values())


def penalised():
    """PDBO where no finite multiplier exists: held at a large one, the bias is its inverse."""
    return pdbo.PDBO(
        primal_step=4e-4, inner_steps=3, smoothing=0.0, dual_bound=2000.0, multiplier0=2000.0
    )


# Settings for the home problem, where after STEPS steps all are within 1e-3 of the optimum. A
# solver that is not named here is one that needs no settings.
STEPS = 40_000
HOME = {
    pdbo.AIDConjugateGradient: lambda: pdbo.AIDConjugateGradient(inner_steps=10, linear_steps=3),
    pdbo.AIDFixedPoint: lambda: pdbo.AIDFixedPoint(inner_steps=10, linear_steps=20),
    pdbo.AutoPDBO: lambda: pdbo.AutoPDBO(exact=False),  # the exact path: test_exact
    pdbo.BOME: lambda: pdbo.BOME(primal_step=5e-4),
    pdbo.BVFIM: lambda: pdbo.BVFIM(outer_step=2e-3, smoothing=0.01, slack=0.01, barrier=20.0),
    pdbo.BigSAM: lambda: pdbo.BigSAM(inner_steps=20, averaging=0.01),
    pdbo.F2SA: lambda: pdbo.F2SA(inner_steps=3),
    pdbo.solvers.Implicit: lambda: pdbo.solvers.Implicit(compiled=True),  # on the host: test_exact
    S.F2SA2: lambda: S.F2SA2(inner_steps=5, offset=0.02),
    S.F3SA: lambda: S.F3SA(inner_step=0.3, increment=0.1),
    S.SOBA: lambda: S.SOBA(decay=0.0),
    S.SUSTAIN: lambda: S.SUSTAIN(linear_steps=20),
    S.StocBiO: lambda: S.StocBiO(inner_steps=10, linear_steps=20),
    pdbo.ITD: lambda: pdbo.ITD(inner_steps=10),
    pdbo.MEHA: lambda: pdbo.MEHA(x_step=0.3, y_step=0.3, proximal_step=0.3, penalty0=10.0),
    pdbo.PDBO: penalised,
    pdbo.ProximalPDBO: lambda: pdbo.ProximalPDBO(penalised(), round_steps=20),
    pdbo.VPBGD: lambda: pdbo.VPBGD(penalty=2e3, primal_step=0.8),
}
AUTO = {"AutoPDBO"}  # draws at random
CAREFUL = {"AutoPDBO", "Implicit"}  # refuse a step to where f or g is not finite


def home(kind):
    return HOME.get(kind, kind)()


ROWS = np.random.default_rng(0).normal(size=(6, 3))


def rows_f(x, y, data):
    return 0.5 * jnp.mean(jnp.sum((y - data["rows"]) ** 2, 1)) + 0.25 * jnp.sum(x**2)


def rows_g(x, y, data):
    apart = y - jnp.stack([x[0], x[1], x[0] - x[1]]) - 0.1 * data["rows"]
    return 0.4 * jnp.mean(jnp.sum(apart**2, 1))


@pytest.fixture(scope="module", params=PUBLIC, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def close(a, b, rtol=0.0, atol=0.0):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for u, v in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_allclose(plain(u), plain(v), rtol=rtol, atol=atol)


def plain(leaf):
    """A leaf as NumPy has it; keys as the integers they are made of."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def test_every_public_solver_has_a_home():
    assert len(PUBLIC) >= 11 and set(HOME) <= set(PUBLIC)
    for kind in PUBLIC:
        assert type(home(kind)) is kind  # one left out of the table can be made without arguments


def test_says_what_it_is(kind):
    """In class variables, which the catalogue reads from the source without importing JAX."""
    assert kind.family in {"automatic", "primal-dual", "hypergradient", "first-order"}
    assert kind.label and re.search(r", \d{4}$", kind.citation)
    card = _catalogue.cards()[kind.__name__]
    assert card == (kind.label, kind.family)
    assert _catalogue.names() == tuple(pdbo.solvers.SOLVERS)
    assert isinstance(kind.prefers_double, bool)


def test_runs_on_mini_batches_or_says_why_not(kind):
    """A batch of everything is the problem itself."""
    whole = pdbo.Problem(rows_f, rows_g, {"rows": ROWS})
    split = pdbo.Problem(rows_f, rows_g, pdbo.Batches({"rows": ROWS}, {"rows": ROWS}, 6))
    start, solver = (jnp.asarray(cases.X0), jnp.asarray(cases.Y0)), home(kind)
    if solver.batch_refusal:
        with pytest.raises(pdbo.ProblemError, match=re.escape(solver.batch_refusal)):
            streamed(split, solver)
        return
    ours = cases.iterate(split, streamed(split, solver), *start, 3).solver
    theirs = cases.iterate(whole, solver, *start, 3)
    close(solver.output(ours), solver.output(theirs), rtol=1e-9)
    assert not np.allclose(solver.output(ours).y, cases.Y0)


def test_converges(kind):
    """All methods agree on the optimum where the inner minimum is unique."""
    start = jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    solver = home(kind)
    point = solver.output(cases.iterate(cases.home(), solver, *start, STEPS))
    close((point.x, point.y), (cases.X_STAR, cases.Y_STAR), atol=1e-3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_keeps_dtype_and_structure(kind, dtype):
    solver, problem = home(kind), cases.home(pdbo.Box(-0.6, 0.7)).astype(dtype)
    x, y = jnp.asarray(cases.X0, dtype), jnp.asarray(cases.Y0, dtype)

    def describe(state):
        return jax.tree.structure(state), [
            (leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(state)
        ]

    start = eqx.filter_eval_shape(solver.init, problem, x, y, jax.random.key(0))
    after = eqx.filter_eval_shape(solver.step, problem, start)
    assert describe(start) == describe(after)
    point = eqx.filter_eval_shape(solver.output, after)
    assert describe((point.x, point.y)) == describe(jax.eval_shape(lambda *z: z, x, y))
    floating = {a.dtype for a in jax.tree.leaves(after) if jnp.issubdtype(a.dtype, jnp.inexact)}
    assert floating == {jnp.dtype(dtype)}
    assert point.multiplier is None or point.multiplier.dtype == dtype


# One compiled program steps a batch of solvers from a batch of starts on a batch of data.


@eqx.filter_jit
def batched(problems, solvers, xs, ys, steps):
    return eqx.filter_vmap(lambda *run: cases.iterate(*run, steps))(problems, solvers, xs, ys)


def stack(*instances):
    """The arrays of each stacked; what is no array is the same in all."""
    return jax.tree.map(lambda *a: jnp.stack(a) if eqx.is_array(a[0]) else a[0], *instances)


def scaled(tree, factor):
    return jax.tree.map(lambda a: factor * a if eqx.is_inexact_array(a) else a, tree)


def check_batch(*runs):
    """The states of the runs, from a batch and from a loop alike."""
    for steps in (20, 5):  # fewer if all is rounding by then
        alone = [cases.iterate(*run, steps) for run in runs]
        if not np.any(runs[0][1].settled(stack(*alone))):
            break
    batch = batched(*map(stack, *runs), jnp.asarray(steps))
    close(batch, stack(*alone), rtol=1e-9, atol=1e-10)
    return alone


def test_vmap_equals_a_loop(kind):
    """Over starts and data."""
    solver, problem = home(kind), cases.home()
    x, y = jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    one, two, three = check_batch(
        (problem, solver, x, y),
        (problem, solver, -0.5 * x, y + 0.1),
        (scaled(problem, 0.9), solver, x, y),
    )
    outputs = [solver.output(state) for state in (one, two, three)]
    assert not np.allclose(outputs[0].x, outputs[1].x)
    assert not np.allclose(outputs[0].y, outputs[2].y)


def parts(module):
    """Whatever the fields of a module hold, and the modules among them."""
    for value in vars(module).values():
        yield from parts(value) if isinstance(value, eqx.Module) else [value]


def test_numbers_are_array_leaves(kind):
    """A grid of them is a batch."""
    solver, problem = home(kind), cases.home()
    x, y = jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    assert all(eqx.is_inexact_array(leaf) for leaf in jax.tree.leaves(solver))
    assert not any(isinstance(value, float) for value in parts(solver))
    one, two, _ = check_batch(*((problem, scaled(solver, s), x, y) for s in (1.0, 0.9, 0.8)))
    if jax.tree.leaves(solver):  # else there is no number to choose
        assert not np.allclose(solver.output(one).x, solver.output(two).x)


def test_declared_calls_equal_counted_ones(kind):
    """Gradients of f, gradients of g and products, counted by the functions themselves."""
    problem, tally = cases.counted()
    solver = home(kind)
    for steps in (0, 1, 12):
        tally.clear()
        state = cases.iterate(problem, solver, jnp.zeros(2), jnp.zeros(2), steps)
        calls = jax.block_until_ready(solver.calls(state))
        jax.effects_barrier()
        products = tally["f", "product"] + tally["g", "product"]
        counted = tally["f", "gradient"], tally["g", "gradient"], products
        assert tuple(int(count) for count in calls) == counted


def tree_f(x, y, data):
    value = 0.5 * jnp.sum((y[0] - data) ** 2) + 0.5 * (y[1]["by f"] - 1) ** 2
    return value + 0.1 * x["by both"][0] ** 2 + 0.5 * jnp.sum(x["by f"] ** 2)


def tree_g(x, y, data):
    return 0.5 * jnp.sum((y[0] - 0.5 * (x["by both"] + x["by g"])) ** 2) + 0.3 * y[1]["by g"] ** 2


def test_pytrees_and_leaves_that_f_or_g_ignore(kind):
    """A pytree is the vector of its leaves, and a leaf that nobody sees has a zero gradient."""
    x = {"by both": [0.5, -0.2], "by f": [0.7], "by g": 1.5, "by none": [3.0]}
    x = {name: jnp.array(value) for name, value in x.items()}
    y = (jnp.array([0.1, 0.4]), {"by f": jnp.array(0.3), "by g": jnp.array(0.2)})
    y[1]["by none"] = jnp.array([2.0])
    solver, data = home(kind), jnp.array([1.0, -1.0])
    problem = pdbo.Problem(tree_f, tree_g, data)
    if kind.__name__ in AUTO:  # other draws for another pytree: the optimum, 0, is the same
        tree = solver.output(cases.iterate(problem, solver, x, y, 2000))
        assert problem.outer(tree.x, tree.y) <= 1e-3
        assert jax.tree.structure((tree.x, tree.y)) == jax.tree.structure((x, y))
        return

    tree = solver.output(cases.iterate(problem, solver, x, y, 20))
    flat_x, to_x = ravel_pytree(x)
    flat_y, to_y = ravel_pytree(y)
    flat = pdbo.Problem(
        lambda x, y, data: tree_f(to_x(x), to_y(y), data),
        lambda x, y, data: tree_g(to_x(x), to_y(y), data),
        data,
    )
    point = solver.output(cases.iterate(flat, solver, flat_x, flat_y, 20))
    close((tree.x, tree.y), (to_x(point.x), to_y(point.y)), rtol=1e-10, atol=1e-10)
    assert trees.finite(tree) and not np.allclose(tree.x["by f"], x["by f"])
    assert jnp.array_equal(tree.x["by none"], x["by none"])


def test_f_without_y_and_g_without_x(kind):
    problem = pdbo.Problem(lambda x, y: jnp.sum(x**2), lambda x, y: jnp.sum(y**2))
    solver = home(kind)

    def run(x, y):
        return solver.output(cases.iterate(problem, solver, x, y, 3))

    assert eqx.filter_eval_shape(run, jnp.ones(2), jnp.ones(3)).x.shape == (2,)


def test_takes_no_second_derivative(kind):
    """Of a first-order method; the others are caught."""
    x, y = jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    trace = functools.partial(eqx.filter_eval_shape, one_step, home(kind), x, y)
    if kind.needs_products:
        with pytest.raises(AssertionError, match="second derivative"):
            trace()
    else:
        assert trace().x.shape == cases.X0.shape


def guarded():
    """The home problem without second derivatives."""
    plain = cases.home()
    return pdbo.Problem(*map(cases.first_order, (plain.f, plain.g)), plain.data)


def one_step(solver, x, y):
    state = solver.init(guarded(), x, y, jax.random.key(0))
    return solver.output(solver.step(guarded(), state))


@pytest.mark.parametrize("method", [pdbo.AutoPDBO, pdbo.MEHA, pdbo.PDBO], ids=lambda m: m.__name__)
def test_the_driver_takes_no_second_derivative(method):
    """With its certificates: MEHA has no multiplier, the others have one of their own."""

    def run(x, y):
        return pdbo.solve(guarded(), x, y, home(method), steps=3)

    start = jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    assert eqx.filter_eval_shape(run, *start).x.shape == cases.X0.shape


# What follows is about runs of `solve`, in a session as users have it: without 64-bit types.


def solve(kind, *, factor=1.0, start=1.0, limit=None, **options):
    """A run on the home problem, other numbers of which do not change the compiled program."""
    problem = cases.home(**(limit or {}))
    x, y = start * jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    options = dict(steps=60, every=20, tol=0.0) | options
    return pdbo.solve(problem, x, y, scaled(home(kind), factor), **options)


def test_new_numbers_do_not_recompile(kind, x32):
    """Neither in the solver, nor in the start, the data, the tolerance or the step budget."""
    solve(kind)
    solve(kind, tol=1e-8)  # a run that meets its tolerance compiles its certificate
    before = len(cases.COMPILED)
    solve(kind, factor=0.9, start=0.8, limit={"f": 99.0}, tol=1e-9, steps=50, every=30)
    assert len(cases.COMPILED) == before
    jax.jit(lambda: 0)()
    assert len(cases.COMPILED) == before + 1  # so they are counted


def test_restart_is_bit_exact(kind, x32):
    key = jax.random.key(3)
    whole = solve(kind, key=key)
    cut = whole.steps // 2 + 3
    part = solve(kind, key=key, steps=cut)
    left = whole.steps - cut
    rest = pdbo.solve(cases.home(), state=part.state, steps=left, tol=0.0, every=20)
    assert whole.steps == rest.steps
    assert whole.steps == 60 or whole.state.solver.settled(whole.state.solver_state)
    for a, b in zip(*(jax.tree.leaves((s.state, s.x, s.y)) for s in (whole, rest)), strict=True):
        assert np.array_equal(plain(a), plain(b))
    # rows at multiples of `every` agree; the break adds one row of its own
    steps = np.concatenate([part.history["step"], rest.history["step"]])
    assert steps.tolist() == sorted({*range(0, whole.steps + 1, 20), cut})
    at = steps.tolist().index(cut)
    for name, column in whole.history.items():
        pieces = np.concatenate([part.history[name], rest.history[name]])
        assert np.array_equal(np.delete(pieces, at, 0), column), name


@pytest.mark.parametrize("where", ["f", "g", "gradient"])
def test_nonfinite_values_are_detected(kind, where, x32):
    """And the last finite point is kept: the step after it is the one that fails."""
    moved = np.linalg.norm(solve(kind).x - cases.X0)
    limit = {where: float(moved) / 2}
    if kind.__name__ in CAREFUL:
        solution = solve(kind, limit=limit)
        assert solution.result in (pdbo.RESULTS.max_steps, pdbo.RESULTS.settled)
        assert solution.steps == 60 or kind.__name__ not in AUTO
        assert np.linalg.norm(solution.x - cases.X0) <= limit[where]
        return
    with pytest.raises(pdbo.SolveError, match="Failed at iteration") as error:
        solve(kind, limit=limit)
    solution = error.value.solution
    assert solution.result is pdbo.RESULTS.nonfinite and not solution.ok
    assert trees.finite((solution.x, solution.y, solution.f, solution.g, solution.state))
    assert np.isfinite(solution.certificate.eps) and 0 <= solution.steps < 60
    assert solution.history["step"].tolist() == list(range(0, solution.steps + 1, 20))
    again = pdbo.solve(cases.home(**limit), state=solution.state, steps=1, tol=0.0, throw=False)
    assert again.result is pdbo.RESULTS.nonfinite and again.steps == solution.steps
    assert np.array_equal(again.x, solution.x) and np.array_equal(again.y, solution.y)


def test_ok_is_what_the_certificate_says(kind, x32):
    """Over tolerances: ok exactly where the eps recomputed in float64 is within it."""
    reached = float(solve(kind, steps=2).certificate.eps)
    assert reached > 0
    seen = []
    for tol in (100 * reached, 2 * reached, 0.5 * reached, 0.01 * reached):
        solution = solve(kind, tol=tol, steps=2)
        expected = np.float64 if kind.prefers_double else np.float32
        assert solution.x.dtype == solution.y.dtype == expected
        point = solution.state.point
        slack = 0.0 if point.slack is None else float(point.slack)
        problem = cases.home()
        with jax.enable_x64(True):
            doubled = (problem.astype(jnp.float64), *trees.astype((point.x, point.y), jnp.float64))
            multiplier = None if point.multiplier is None else float(point.multiplier)
            again = pdbo.certify(*doubled, multiplier, max_slack=max(1e-6, slack))
        assert solution.certificate.eps == pytest.approx(again.eps, rel=1e-6)
        assert solution.certificate.eps.dtype == np.float64
        assert solution.ok == (again.eps <= tol)
        assert solution.result is pdbo.RESULTS(not solution.ok)
        seen.append(solution.ok)
    assert seen[0] and not seen[-1]
