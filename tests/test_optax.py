"""Optax transformations in the solvers: what they do, and that nothing of a run is lost."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cases
import pdbo
import pdbo.solvers as S

SGD = optax.sgd
PLAIN = {  # solvers whose plain steps are SGD's with these rates
    "ITD": (S.ITD(0.1, 0.3, 3), SGD(0.1), SGD(0.3)),
    "AIDFixedPoint": (S.AIDFixedPoint(0.1, 0.3, 3), SGD(0.1), SGD(0.3)),
    "AIDConjugateGradient": (S.AIDConjugateGradient(0.1, 0.3), SGD(0.1), SGD(0.3)),
    "StocBiO": (S.StocBiO(0.1, 0.3, warm_start=False), SGD(0.1), SGD(0.3)),
    "BigSAM": (S.BigSAM(0.1, 0.3), SGD(0.1), SGD(0.3)),
    "SOBA": (S.SOBA(0.1, 0.3, 0.0), SGD(0.1), SGD(0.3)),
    "MASOBA": (S.MASOBA(0.1, 0.3), SGD(0.1), SGD(0.3)),
    "SABA": (S.SABA(0.1, 0.3), SGD(0.1), SGD(0.3)),
    "SUSTAIN": (S.SUSTAIN(0.1, 0.3), SGD(0.1), SGD(0.3)),
    "F2SA2": (S.F2SA2(0.1, 0.3), SGD(0.1), SGD(0.3)),
    "MEHA": (S.MEHA(0.1, 0.2, 0.2), SGD(0.1), SGD(0.2)),
    "BVFIM": (S.BVFIM(0.01, 0.3), SGD(0.01), SGD(0.3)),
    # the multiplier is at most one here: directions in y are not divided by it
    "PDBO": (S.PDBO(0.2, 0.1, 0.2, dual_bound=0.9, multiplier0=0.5), SGD(0.2), SGD(0.2)),
    "PDBO from y": (S.PDBO(0.2, 0.1, 0.2, dual_bound=0.9, inner_start="y"), SGD(0.2), SGD(0.2)),
    "VPBGD": (S.VPBGD(0.8, 0.2, 0.2), SGD(0.2), SGD(0.2)),
    "F2SA": (S.F2SA(0.2, 3, 0.7, 0.5, 0.0), SGD(0.14), SGD(0.2)),
    "F3SA": (S.F3SA(0.2, 0.7, 0.3, 0.5, 0.0), SGD(0.14), SGD(0.2)),
    "BOME": (S.BOME(0.2, 0.2), SGD(0.2), None),
}


def with_rules(solver, outer, inner):
    """The same solver with transformations for its steps."""
    for name, rule in (("outer", outer), ("inner", inner)):
        object.__setattr__(solver, name, rule)
    return solver


def test_every_solver_with_gradient_steps_is_here():
    takes = {n for n, kind in S.SOLVERS.items() if "outer" in kind.__dataclass_fields__}
    assert takes == set(S.SOLVERS) - {"AutoPDBO", "Implicit", "ProximalPDBO"}
    assert takes <= set(PLAIN)


@pytest.mark.parametrize("name", PLAIN)
def test_sgd_is_the_plain_step(name):
    """With a bound that binds, so that the projection follows the transformation."""
    solver, outer, inner = PLAIN[name]
    problem = cases.home(pdbo.Box(-0.6, 0.7))
    start = jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    plain = solver.output(cases.iterate(problem, solver, *start, 6))
    ours = jax.tree.map(lambda leaf: leaf, solver)  # a copy
    with_rules(ours, outer, inner)
    found = ours.output(cases.iterate(problem, ours, *start, 6))
    np.testing.assert_allclose(found.x, plain.x, rtol=1e-12)
    np.testing.assert_allclose(found.y, plain.y, rtol=1e-12)


def test_chains_schedules_clipping_decay_and_masks():
    """x from the recorded hypergradients, by formulas written out here."""
    rate = optax.exponential_decay(0.3, 1, 0.9)
    outer = optax.chain(
        optax.clip(0.5),
        optax.add_decayed_weights(0.1, mask={"a": True, "b": False}),
        optax.sgd(rate),
    )
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((y - 1) ** 2),
        lambda x, y: 0.5 * jnp.sum(jnp.exp(x["a"]) * y**2 - 2 * x["b"] * y),
        x_set=pdbo.Product({"a": pdbo.Free(), "b": pdbo.Box(-1.0, 0.8)}),
    )
    solver = S.AIDConjugateGradient(inner_step=0.2, outer=outer)
    start = {"a": jnp.array([0.5, -1.0]), "b": jnp.array([0.7, 0.5])}
    state = solver.init(problem, start, jnp.zeros(2), jax.random.key(0))
    a, b = np.array([0.5, -1.0]), np.array([0.7, 0.5])
    for t in range(12):
        d = state.hypergradient
        state = solver.step(problem, state)
        if t > 0:  # the first step has no hypergradient yet
            s = 0.3 * 0.9 ** (t - 1)
            a = a - s * (np.clip(d["a"], -0.5, 0.5) + 0.1 * a)
            b = np.clip(b - s * np.clip(d["b"], -0.5, 0.5), -1.0, 0.8)
        np.testing.assert_allclose(state.x["a"], a, rtol=1e-6)  # the schedule is in float32
        np.testing.assert_allclose(state.x["b"], b, rtol=1e-6)
    assert np.any(b == 0.8)


OUTER, INNER = optax.adam(optax.cosine_decay_schedule(0.1, 60)), optax.adamw(0.05)
SOLVER = pdbo.ProximalPDBO(pdbo.PDBO(outer=OUTER, inner=INNER), round_steps=7)
START = 2.0, jnp.array([0.5, 0.5])
OPTIONS = dict(every=10, tol=0.0)


def same(a, b):
    pairs = zip(*(jax.tree.leaves((s.x, s.y, s.state.solver_state)) for s in (a, b)), strict=True)
    return all(np.array_equal(np.asarray(u), np.asarray(v)) for u, v in pairs if u.dtype != KEYS)


KEYS = jax.random.key(0).dtype


@pytest.fixture(scope="module")
def whole():
    return pdbo.solve(cases.toy(), *START, SOLVER, steps=40, **OPTIONS)


def test_a_run_carries_on_to_the_bit(whole, tmp_path):
    """From its state, from a file and from a folder."""
    part = pdbo.solve(cases.toy(), *START, SOLVER, steps=23, **OPTIONS)
    assert same(whole, pdbo.solve(cases.toy(), state=part.state, steps=17, **OPTIONS))
    pdbo.save(tmp_path / "part.pdbo", part)
    read = pdbo.load(tmp_path / "part.pdbo", cases.toy(), SOLVER)
    assert same(part, read)
    assert same(whole, pdbo.solve(cases.toy(), state=read.state, steps=17, **OPTIONS))
    folder = dict(checkpoint=tmp_path / "run", checkpoint_every=0)
    pdbo.solve(cases.toy(), *START, SOLVER, steps=23, **OPTIONS, **folder)
    assert same(whole, pdbo.solve(cases.toy(), *START, SOLVER, steps=40, **OPTIONS, **folder))


def test_another_transformation_is_refused(whole, tmp_path):
    """By what it was made with, and by what it keeps."""
    pdbo.save(tmp_path / "whole.pdbo", whole)

    def made(outer):
        return pdbo.ProximalPDBO(pdbo.PDBO(outer=outer, inner=INNER), round_steps=7)

    again = optax.adam(optax.cosine_decay_schedule(0.1, 60))
    assert same(whole, pdbo.load(tmp_path / "whole.pdbo", cases.toy(), made(again)))
    others = {
        r"init_value is 0.1 in it and 0.2 here": optax.adam(optax.cosine_decay_schedule(0.2, 60)),
        r"b1 is 0.9 in it and 0.8 here": optax.adam(optax.cosine_decay_schedule(0.1, 60), 0.8),
        r"solver.inner.outer\S* is \S+ in it and \S+ here": optax.sgd(0.1),
        r"solver.inner.outer is \w+ in it and None here": None,
    }
    for match, other in others.items():
        with pytest.raises(pdbo.errors.CheckpointError, match=match):
            pdbo.load(tmp_path / "whole.pdbo", cases.toy(), made(other))
    with pytest.raises(pdbo.ProblemError, match="the state belongs to another ProximalPDBO"):
        pdbo.solve(cases.toy(), state=whole.state, solver=made(optax.sgd(0.1)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_batch_of_starts_is_a_loop(dtype):
    """With the dtypes of the state as they are, in float32 and float64."""
    solver = pdbo.PDBO(outer=OUTER, inner=INNER)
    problem = cases.home().astype(dtype)
    xs = jnp.stack([s * jnp.asarray(cases.X0, dtype) for s in (1.0, -0.5)])
    y = jnp.asarray(cases.Y0, dtype)
    batch = jax.vmap(lambda x: cases.iterate(problem, solver, x, y, 12))(xs)
    for k in range(2):
        alone = cases.iterate(problem, solver, xs[k], y, 12)
        for u, v in zip(jax.tree.leaves(batch), jax.tree.leaves(alone), strict=True):
            assert u.dtype == v.dtype
            np.testing.assert_allclose(u[k], v, rtol=1e-5 if dtype == jnp.float32 else 1e-12)


def test_a_schedule_as_a_number_does_not_recompile():
    """Optax keeps injected hyperparameters in its state."""
    rule = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    solver = pdbo.PDBO(outer=rule)
    problem, y = cases.home(), jnp.asarray(cases.Y0)
    state = solver.init(problem, jnp.asarray(cases.X0), y, jax.random.key(0))
    assert float(state.rules[0].hyperparams["learning_rate"]) == pytest.approx(0.1)
    assert np.all(np.isfinite(solver.step(problem, state).x))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (optax.polyak_sgd(), "outer cannot be used.*required keyword-only argument: 'value'"),
        (optax.lbfgs(), "outer cannot be used.*'value', 'grad', and 'value_fn'"),
        (optax.adam, "outer must be an Optax transformation such as .*, got function"),
        (0.1, "outer must be an Optax transformation such as .*, got float"),
        (optax.masked(optax.sgd(0.1), {"no": True}), "outer cannot be used.*ValueError"),
    ],
    ids=["value", "line search", "not called", "number", "mask"],
)
def test_one_sentence_says_what_is_wrong(wrong, match):
    with pytest.raises(pdbo.ProblemError, match=match) as error:
        pdbo.solve(cases.toy(), *START, pdbo.PDBO(outer=wrong), steps=5)
    assert str(error.value).count("\n") == 0
