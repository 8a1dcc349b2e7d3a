"""Mini-batches: the streams, the steps on them, the passes over all, and data on disk."""

import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo
from pdbo._batches import Batches, Cursor, Source, Stream, shuffled
from pdbo.solvers._streamed import Streamed

N, M, D = 103, 40, 3
RNG = np.random.default_rng(0)
INNER = {"X": RNG.normal(size=(N, D)), "target": RNG.normal(size=N)}
OUTER = {"X": RNG.normal(size=(M, D)), "target": RNG.normal(size=M)}
X0, Y0 = np.zeros(D), np.full(D, 0.1)


def f(x, y, batch):
    return jnp.mean((batch["X"] @ y - batch["target"]) ** 2)


def g(x, y, batch):
    return f(x, y, batch) + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def ordinary():
    """The problem with all its data, as one without batches has them."""
    return pdbo.Problem(
        lambda x, y, d: f(x, y, d["outer"]),
        lambda x, y, d: g(x, y, d["inner"]),
        {"outer": OUTER, "inner": INNER},
    )


def batched(size=(7, 11), outer=OUTER, inner=INNER, **options):
    return pdbo.Problem(f, g, Batches(outer, inner, size, **options))


SOLVERS = {
    "PDBO": pdbo.PDBO(0.05, 0.1, 0.05, 3),
    "ProximalPDBO": pdbo.ProximalPDBO(pdbo.PDBO(0.05, 0.1, 0.05, 3), round_steps=5),
    "ProximalPDBO random": pdbo.ProximalPDBO(
        pdbo.PDBO(0.05, 0.1, 0.05, 3), round_steps=5, choose="random"
    ),
    "BOME": pdbo.BOME(0.05, 0.05),
    "F2SA": pdbo.F2SA(0.05),
    "VPBGD": pdbo.VPBGD(inner_step=0.05),
    "BVFIM": pdbo.BVFIM(inner_step=0.05, barrier_step=0.05),
    "MEHA": pdbo.MEHA(0.05, 0.05, 0.05),
    "ITD": pdbo.ITD(0.05, 0.05),
    "AIDFixedPoint": pdbo.AIDFixedPoint(0.05, 0.05),
    "AIDConjugateGradient": pdbo.AIDConjugateGradient(0.05, 0.05),
    "BigSAM": pdbo.BigSAM(0.05, 0.05),
}


def epochs(stream, seed, count):
    """The indices of so many batches, one after the other."""
    cursor, found = stream.begin(jax.random.key(seed)), []
    draw = jax.jit(lambda c: (stream.indices(c), stream._advance(c)))
    for _ in range(count):
        indices, cursor = draw(cursor)
        found.append(np.asarray(indices))
    return np.concatenate(found), cursor


@pytest.mark.parametrize("size", [1, 7, 20, 39])
def test_an_epoch_covers_each_example_once(size):
    """Also where batches go on into the next epoch; and every epoch has an order of its own."""
    stream = batched((size, 11)).data.outer
    count = 3 * M // size + 1
    found, cursor = epochs(stream, 0, count)
    orders = found[: 3 * M].reshape(3, M)
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(M))
    assert not np.array_equal(orders[0], orders[1]) and not np.array_equal(orders[1], orders[2])
    assert divmod(count * size, M) == (int(cursor.epoch), int(cursor.offset))


def test_orders_are_even():
    """All 120 orders of five examples, and pairs of positions among twelve, are equally likely."""
    words = jax.random.bits(jax.random.key(3), (2,), jnp.uint32)

    def orders(n, count):
        zero = jnp.zeros((), jnp.int32)
        one = jax.vmap(lambda epoch: shuffled(words, epoch, zero, n, n))
        return np.asarray(jax.jit(one)(jnp.arange(count, dtype=jnp.int32)))

    def surprise(counts):  # chi-squared, in standard deviations above its mean
        expected = counts.sum() / counts.size
        degrees = counts.size - 1
        chi = ((counts - expected) ** 2 / expected).sum()
        return (chi - degrees) / np.sqrt(2 * degrees)

    _, counts = np.unique(orders(5, 60_000) @ 5 ** np.arange(5), return_counts=True)
    assert len(counts) == 120 and surprise(counts) < 5
    twelve = orders(12, 60_000)
    for a, b in [(0, 1), (0, 11), (3, 7), (10, 11)]:
        pairs = np.bincount(twelve[:, a] * 12 + twelve[:, b], minlength=144).reshape(12, 12)
        assert surprise(pairs[~np.eye(12, dtype=bool)]) < 5
    assert surprise(np.bincount((twelve[1:, 0] - twelve[:-1, 0]) % 12)) < 5  # epoch to epoch


def test_streams_are_independent_and_follow_the_key():
    """f and g draw differently from equally long data, and differently for another key."""
    same = batched((10, 10), INNER, INNER)
    state = [
        Streamed(SOLVERS["PDBO"]).init(same, X0, Y0, jax.random.key(seed)) for seed in (0, 0, 1)
    ]
    stream = same.data.inner
    drawn = [[np.asarray(stream.indices(c)) for c in (s.outer, s.inner)] for s in state]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0][0], drawn[0][1])
    assert not np.array_equal(drawn[0][0], drawn[2][0])

    def epoch(cursor):
        return shuffled(cursor.words, cursor.epoch, cursor.offset, N, N)

    @jax.jit
    @jax.vmap
    def hits(key):
        now = Streamed(SOLVERS["PDBO"]).init(same, X0, Y0, key)
        return jnp.sum(epoch(now.outer) == epoch(now.inner))

    total = int(hits(jax.random.split(jax.random.key(7), 400)).sum())  # Poisson with mean 400
    assert abs(total - 400) < 5 * 20


def test_batch_gradients_average_to_the_full_gradient():
    """Over an epoch of N batches of 11, in which every example comes 11 times."""
    problem, whole = batched(), ordinary()
    x, y = jnp.asarray(RNG.normal(size=D)), jnp.asarray(RNG.normal(size=D))
    for name, function, stream in (
        ("outer", f, problem.data.outer),
        ("inner", g, problem.data.inner),
    ):
        gradient = jax.grad(function, (0, 1))

        def step(_, s, stream=stream, gradient=gradient):
            total, cursor = s
            batch, cursor = stream.draw(cursor)
            return jax.tree.map(jnp.add, total, gradient(x, y, batch)), cursor

        start = (jax.tree.map(jnp.zeros_like, (x, y)), stream.begin(jax.random.key(5)))
        total, _ = jax.lax.fori_loop(0, stream.length, step, start)
        expected = jax.grad(getattr(whole, name), (0, 1))(x, y)
        for a, b in zip(total, expected, strict=True):
            np.testing.assert_allclose(a / stream.length, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 10, 40, 103, 1000])
def test_full_passes_equal_the_problem_without_batches(chunk):
    """Values, gradients and products, whether the chunks divide the data or not."""
    problem, whole = batched(chunk=chunk), ordinary()
    x, y, v = (jnp.asarray(RNG.normal(size=D)) for _ in range(3))
    for level in ("outer", "inner"):
        ours, theirs = getattr(problem, level), getattr(whole, level)
        for derive in (
            lambda h: h(x, y),
            lambda h: jax.grad(h, (0, 1))(x, y),
            lambda h: jax.jvp(lambda y: jax.grad(h, 1)(x, y), (y,), (v,)),
            lambda h: jax.vmap(h)(jnp.stack([x, y]), jnp.stack([y, v])),
        ):
            same = jax.tree.map(
                lambda a, b: np.allclose(a, b, rtol=1e-12, atol=1e-14), derive(ours), derive(theirs)
            )
            assert jax.tree.all(same)


@eqx.filter_jit
def walk(problem, solver, steps):
    state = solver.init(problem, jnp.asarray(X0), jnp.asarray(Y0), jax.random.key(2))
    state = jax.lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state)
    return solver.output(state), solver.calls(state)


@pytest.mark.parametrize("name", SOLVERS)
def test_full_batches_equal_the_ordinary_steps_exactly(name):
    """And with small batches a solver of each kind still moves, to somewhere finite and else."""
    whole = walk(ordinary(), SOLVERS[name], 12)
    full = walk(batched((M, N)), Streamed(SOLVERS[name]), 12)
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, full))
    if name not in ("PDBO", "F2SA", "ITD", "BigSAM"):  # the others draw their batches alike
        return
    small, calls = walk(batched((8, 30)), Streamed(SOLVERS[name]), 12)
    assert jax.tree.all(jax.tree.map(lambda a: np.isfinite(a).all(), small))
    assert not np.array_equal(small.y, whole[0].y)
    assert calls == whole[1]


def test_full_batches_equal_the_ordinary_solve_exactly():
    """The history, certificates included, bit for bit."""
    ours = pdbo.solve(batched((M, N)), X0, Y0, SOLVERS["PDBO"], steps=200, tol=0)
    theirs = pdbo.solve(ordinary(), X0, Y0, SOLVERS["PDBO"], steps=200, tol=0)
    assert set(ours.history) == set(theirs.history)
    for column, values in theirs.history.items():
        assert np.array_equal(values, ours.history[column]), column
    assert np.array_equal(ours.x, theirs.x) and np.array_equal(ours.y, theirs.y)


def test_history_and_certificate_are_about_all_examples():
    """Not about the batch of the last step."""
    found = pdbo.solve(batched(), X0, Y0, SOLVERS["PDBO"], steps=300, tol=0)
    whole = ordinary()
    assert found.f == pytest.approx(float(whole.outer(found.x, found.y)), rel=1e-12)
    assert found.g == pytest.approx(float(whole.inner(found.x, found.y)), rel=1e-12)
    known = pdbo.certify(whole, found.x, found.y, found.multiplier)
    assert found.certificate.inner_gap == pytest.approx(known.inner_gap, rel=1e-6)
    assert found.certificate.eps == pytest.approx(known.eps, rel=1e-4)


def test_small_steps_lead_near_the_solution():
    """With the regulariser alone in x, f can only fall; batches lead to where exact steps do."""
    solver = pdbo.VPBGD(5.0, 0.02, 0.02)
    exact = pdbo.solve(ordinary(), X0, Y0, solver, steps=2000, every=1000, tol=None)
    noisy = pdbo.solve(batched((20, 50)), X0, Y0, solver, steps=2000, every=1000, tol=None)
    start = exact.history["f"][0]
    assert exact.f < start - 0.01
    assert abs(noisy.f - exact.f) < 0.05 * (start - exact.f) + 0.01
    assert not np.array_equal(noisy.y, exact.y)


def test_a_run_carries_on_bit_for_bit():
    """From a state whose streams are in the middle of an epoch."""
    problem, solver = batched(), SOLVERS["PDBO"]
    whole = pdbo.solve(problem, X0, Y0, solver, steps=50, every=25, tol=0)
    half = pdbo.solve(problem, X0, Y0, solver, steps=17, every=25, tol=0)
    assert int(half.state.solver_state.inner.offset) == 17 * 11 % N
    rest = pdbo.solve(problem, state=half.state, steps=33, every=25, tol=0)
    again = pdbo.solve(problem, state=half.state, solver=solver, steps=33, every=25, tol=0)
    for other in (rest, again):
        same = jax.tree.map(np.array_equal, whole.state.solver_state, other.state.solver_state)
        assert jax.tree.all(same)


@pytest.fixture
def on_disk(tmp_path):
    """The inner examples as memory maps of files, in single precision."""
    maps = {}
    for name, values in INNER.items():
        np.save(tmp_path / f"{name}.npy", values.astype(np.float32))
        maps[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    return maps


def test_data_on_disk_give_the_same_run(on_disk):
    """Memory maps, a source of one's own and arrays in memory: one trajectory."""
    in_memory = {k: np.asarray(v) for k, v in on_disk.items()}
    threads, most = set(), []

    def take(indices):
        threads.add(threading.current_thread().name)
        most.append(len(indices))
        return {k: v[indices] for k, v in in_memory.items()}

    found = [
        pdbo.solve(
            batched((7, 11), OUTER, inner, chunk=25, passes=3),
            X0, Y0, SOLVERS["PDBO"], steps=40, every=20, tol=0,
        )
        for inner in (in_memory, on_disk, Source(N, take))
    ]  # fmt: skip
    for other in found[1:]:
        assert jax.tree.all(
            jax.tree.map(np.array_equal, found[0].state.solver_state, other.state.solver_state)
        )
        assert np.allclose(found[0].certificate.eps, other.certificate.eps, rtol=1e-9)
    assert max(most) <= 25  # never more at a time than a chunk
    assert any(name.startswith("pdbo-source") for name in threads)  # fetched ahead


def test_data_on_disk_in_single_precision(on_disk, x32):
    """The certificate is in double precision all the same; under jit and vmap it runs too."""
    outer = {k: v.astype(np.float32) for k, v in OUTER.items()}
    problem = batched((7, 11), outer, on_disk, chunk=25, passes=3)
    found = pdbo.solve(problem, X0, Y0, SOLVERS["PDBO"], steps=20, every=20, tol=0)
    assert found.y.dtype == np.float32 and found.certificate.eps.dtype == np.float64
    starts = jnp.stack([Y0, 2 * Y0]).astype(jnp.float32)
    run = jax.jit(jax.vmap(lambda y: walk_from(problem, y)))
    one = jax.jit(lambda y: walk_from(problem, y))
    np.testing.assert_allclose(run(starts)[1], one(starts[1]), rtol=1e-5)


def walk_from(problem, y):
    solver = Streamed(SOLVERS["PDBO"])
    state = solver.init(problem, jnp.zeros(D, y.dtype), y, jax.random.key(0))
    return jax.lax.fori_loop(0, 5, lambda _, s: solver.step(problem, s), state).solver.y


def test_a_source_that_fails_is_one_sentence():
    def take(indices):
        if indices.max() > 50:
            raise OSError("the disk is gone")
        return {k: v[indices] for k, v in INNER.items()}

    problem = batched((7, 11), OUTER, Source(N, take))
    with pytest.raises(pdbo.ProblemError, match=r"could not be fetched: OSError: the disk is gone"):
        pdbo.solve(problem, X0, Y0, SOLVERS["PDBO"], steps=10)
    with pytest.raises(pdbo.ProblemError, match=r"could not be fetched: OSError: the disk is gone"):
        pdbo.certify(problem, X0, Y0)

    def other_shape(indices):
        return INNER["X"][indices] if len(indices) == 1 else INNER["X"][:1]

    with pytest.raises(pdbo.ProblemError, match="another structure, shape or dtype"):
        data = Batches(OUTER, Source(N, other_shape), 5)
        inner = lambda x, y, batch: jnp.mean(batch @ y)
        pdbo.solve(pdbo.Problem(f, inner, data), X0, Y0, SOLVERS["PDBO"])


def test_a_source_that_fails_in_the_middle_leaves_what_there_is(tmp_path):
    """The exception carries the last record, and the checkpoint goes on from there, to the bit."""
    left = 150

    def take(indices):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("the disk is gone")
        return {k: v[indices] for k, v in INNER.items()}

    problem, solver = batched((7, 11), OUTER, Source(N, take)), pdbo.VPBGD(5.0, 0.02, 0.02)
    options = dict(every=5, tol=None)
    with pytest.raises(pdbo.ProblemError, match="OSError: the disk is gone") as caught:
        pdbo.solve(problem, X0, Y0, solver, steps=300, checkpoint=tmp_path, **options)
    so_far = caught.value.solution
    assert so_far.steps >= 5 and so_far.history["step"][-1] == so_far.steps
    assert np.isfinite(so_far.f) and so_far.state is not None
    left = 10**9
    steps = so_far.steps + 20
    rest = pdbo.solve(problem, X0, Y0, solver, steps=steps, checkpoint=tmp_path, **options)
    whole = pdbo.solve(problem, X0, Y0, solver, steps=steps, **options)
    assert rest.steps == whole.steps == steps and np.array_equal(rest.y, whole.y)
    assert np.array_equal(rest.history["f"], whole.history["f"])


def test_small_problems_are_solved_exactly_by_default(tmp_path):
    """On all examples, as without batches, and as AutoPDBO is; if they determine x."""
    rng, truth = np.random.default_rng(1), np.array([1.0, -1.0, 0.5])
    noise = 3 * rng.normal(size=N)  # which a penalty is good against
    inner = {"X": INNER["X"], "target": INNER["X"] @ truth + noise}
    outer = {"X": OUTER["X"], "target": OUTER["X"] @ truth}
    shrunk = lambda x, y, b: g(jnp.broadcast_to(x, (D,)), y, b)
    problem = pdbo.Problem(f, shrunk, Batches(outer, inner, (7, 11)))
    found = pdbo.solve(problem, np.zeros(1), Y0, checkpoint=tmp_path)
    assert found.ok and found.certificate.exact
    H = 2 * INNER["X"].T @ INNER["X"] / N + np.exp(float(found.x[0])) * np.eye(D)
    y = np.linalg.solve(H, 2 * inner["X"].T @ inner["target"] / N)
    np.testing.assert_allclose(found.y, y, rtol=1e-9)
    slope = 2 * outer["X"].T @ (outer["X"] @ y - outer["target"]) / M
    assert abs(slope @ np.linalg.solve(H, np.exp(float(found.x[0])) * y)) < 1e-8
    again = pdbo.solve(problem, np.zeros(1), Y0, pdbo.AutoPDBO())
    assert np.array_equal(again.y, found.y)
    onward = pdbo.solve(problem, state=found.state, steps=3)
    assert onward.ok and np.allclose(onward.x, found.x)


def test_exact_steps_are_kept_where_a_minimum_lies_at_infinity():
    """The sign of the one weight is wrong for f's examples: the best penalty is infinite, y zero.

    No certificate holds there, and mini-batches do not get as far.
    """
    rng = np.random.default_rng(1)
    inner, outer = (
        {"X": X, "target": X @ [slope] + rng.normal(size=len(X))}
        for X, slope in ((rng.normal(size=(60, 1)), 1.0), (rng.normal(size=(50, 1)), -1.0))
    )
    problem = pdbo.Problem(f, g, Batches(outer, inner, 10))
    found = pdbo.solve(problem, np.zeros(1), np.zeros(1), steps=700)
    assert found.state.solver.name == "Implicit" and not found.ok
    assert found.f == pytest.approx(np.mean(outer["target"] ** 2), rel=1e-6)
    assert abs(float(found.y[0])) < 1e-6


def test_a_sampled_certificate_is_right_within_its_errors():
    """The hypergradient and the gap against their closed forms; no sample is ever ok."""
    x, y = np.full(D, -0.5), np.array([0.3, -0.2, 0.1])
    scale = np.exp(x)
    H = 2 * INNER["X"].T @ INNER["X"] / N + np.diag(scale)
    slope = 2 * INNER["X"].T @ (INNER["X"] @ y - INNER["target"]) / N + scale * y
    f_y = 2 * OUTER["X"].T @ (OUTER["X"] @ y - OUTER["target"]) / M
    length = np.linalg.norm(scale * y * np.linalg.solve(H, f_y))
    gap = 0.5 * slope @ np.linalg.solve(H, slope)
    seen = [pdbo.certify(batched(), x, y, examples=32, key=jax.random.key(k)) for k in range(20)]
    for value, error, true in (("stationarity", "error", length), ("inner_gap", "gap_error", gap)):
        found = np.array([getattr(s, value) for s in seen])
        errors = np.array([getattr(s, error) for s in seen])
        assert abs(found.mean() - true) < 2 * errors.mean()
        assert 0.3 < found.std() / errors.mean() < 2
    assert all(np.isinf(s.eps) for s in seen)
    assert seen[0].in_words.startswith("From 32 examples") and "±" in seen[0].in_words


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Batches(OUTER, INNER, 0), "size must be a whole number >= 1, got 0"),
        (lambda: Batches(OUTER, INNER, 2.5), "size must be a whole number >= 1, got 2.5"),
        (lambda: Batches(OUTER, INNER, (1, 2, 3)), "size must be a number or a pair of them"),
        (lambda: Batches(OUTER, INNER, 41), "at most the 40 examples of outer, got 41"),
        (lambda: Batches(OUTER, INNER, (5, 104)), "at most the 103 examples of inner, got 104"),
        (
            lambda: Batches(OUTER | {"target": np.zeros(39)}, INNER, 5),
            r"outer\['X'\] has 40 and outer\['target'\] has 39",
        ),
        (lambda: Batches({}, INNER, 5), "outer holds no arrays"),
        (lambda: Batches(OUTER, {"X": np.zeros((0, 3))}, 5), "inner holds no examples"),
        (lambda: Batches(OUTER, 3.0, 5), "inner must be an array with a leading axis"),
        (lambda: Batches(OUTER, np.float64(3.0), 5), "inner must be an array with a leading axis"),
        (lambda: Batches(OUTER, INNER, 5, chunk=0), "chunk must be a whole number >= 1"),
        (lambda: Batches(OUTER, INNER, 5, passes=0), "passes must be a whole number >= 1"),
        (lambda: Source(0, np.zeros), "length must be a whole number >= 1"),
        (lambda: Source(5, 3), "take must be a function, got int"),
        (lambda: Source(5, lambda i: {}[i]), "take cannot fetch example 0: TypeError"),
        (lambda: pdbo.Problem(lambda x, y: y, g, Batches(OUTER, INNER, 5)), "f has the wrong"),
        (
            lambda: pdbo.solve(batched(), X0, Y0, pdbo.solvers.Implicit()),
            "Implicit cannot run on mini-batches: it compares",
        ),
        (lambda: pdbo.certify(ordinary(), X0, Y0, examples=20), "examples needs data in batches"),
        (lambda: pdbo.certify(batched(), X0, Y0, examples=9), "at least 16, of f and of g, got 9"),
        (lambda: pdbo.certify(batched(), X0, Y0, examples=0), "examples must be a whole number"),
        (
            lambda: pdbo.solve(batched(), X0, Y0, pdbo.ProximalPDBO(choose="best")),
            "ProximalPDBO cannot run on mini-batches",
        ),
        (
            lambda: pdbo.solve(
                pdbo.Problem(lambda x, y, b: M * f(x, y, b), lambda x, y, b: jnp.sum(b["X"] @ y),
                             Batches(OUTER, INNER, 5)), X0, Y0, pdbo.PDBO()),
            "g is not a mean over the examples of its batch",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(make, sentence):
    with pytest.raises(pdbo.ProblemError, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_state_of_batches_belongs_to_a_problem_with_batches():
    solver = SOLVERS["PDBO"]
    streamed, plain = (
        pdbo.State(
            s, s.init(p, jnp.asarray(X0), jnp.asarray(Y0), jax.random.key(0)), jnp.asarray(0), 1.0
        )
        for p, s in ((batched(), Streamed(solver)), (ordinary(), solver))
    )
    with pytest.raises(pdbo.ProblemError, match="belongs to PDBO on mini-batches, not to PDBO"):
        pdbo.solve(ordinary(), state=streamed)
    with pytest.raises(pdbo.ProblemError, match="not to VPBGD on mini-batches"):
        pdbo.solve(batched(), state=streamed, solver=pdbo.VPBGD())
    with pytest.raises(pdbo.ProblemError, match="belongs to PDBO, not to PDBO on mini-batches"):
        pdbo.solve(batched(), state=plain)


def test_other_data_of_the_same_shape_does_not_recompile():
    solver = Streamed(SOLVERS["PDBO"])
    count = 0

    @eqx.filter_jit
    def step(problem):
        nonlocal count
        count += 1
        state = solver.init(problem, jnp.asarray(X0), jnp.asarray(Y0), jax.random.key(0))
        return solver.output(solver.step(problem, state)).y

    first = step(batched())
    second = step(batched((7, 11), OUTER, {k: 2 * v for k, v in INNER.items()}))
    assert count == 1 and not np.array_equal(first, second)


def test_positions_do_not_overflow():
    """Beyond 2^31 examples drawn, and for the largest data there can be."""
    last = jnp.asarray(2**31 - 3, jnp.int32)
    stream = Stream(np.zeros(1), None, 2**31 - 1, 2**30, 1)
    cursor = Cursor(jnp.zeros(2, jnp.uint32), jnp.zeros((), jnp.int32), last)
    onward = stream._advance(cursor)
    total = 2**31 - 3 + 2**30
    assert (int(onward.epoch), int(onward.offset)) == divmod(total, 2**31 - 1)
    indices = np.asarray(shuffled(cursor.words, cursor.epoch, cursor.offset, 8, stream.length))
    assert (indices >= 0).all() and (indices < 2**31 - 1).all() and len(set(indices)) == 8
