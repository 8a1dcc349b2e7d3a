"""PDBO and Proximal-PDBO: the paper's toy, plain transcriptions, rounds and parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo

SOLVERS = {
    "pdbo": cases.paper_pdbo(),
    "proximal": pdbo.ProximalPDBO(cases.paper_pdbo(), round_steps=50),
}


@pytest.mark.parametrize("start", cases.TOY_STARTS, ids=str)
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_toy_reaches_the_optimum(name, start, dtype):
    """The paper's settings, within 500 iterations, multiplier positive, constraint active."""
    x0, y0 = jnp.asarray(start[0], dtype), jnp.asarray(start[1], dtype)
    sol = pdbo.solve(cases.toy(), x0, y0, SOLVERS[name], steps=500)
    assert abs(sol.x - 1) <= 1e-3
    assert np.linalg.norm(sol.y - 1) <= 1e-3
    assert sol.multiplier > 0.1
    assert abs(sol.history["h"][-1]) <= 1e-3
    assert sol.certificate.inner_gap <= 1e-4
    assert sol.x.dtype == sol.y.dtype == dtype


class Quadratic:
    """A box-constrained problem with curvature everywhere, for transcriptions in NumPy."""

    c, d = np.array([1.0, -2.0]), np.array([0.5, 1.5])
    lo, hi = -1.2, 1.2
    problem = pdbo.Problem(
        lambda x, y: 0.5 * jnp.sum((x - Quadratic.c) ** 2) + jnp.sum(jnp.sin(x * y)),
        lambda x, y: 0.5 * jnp.sum(Quadratic.d * (y - x) ** 2) + 0.1 * jnp.sum(x * y),
        x_set=pdbo.Box(lo, hi),
        y_set=pdbo.Box(lo, hi),
    )

    @classmethod
    def grad_f(cls, x, y):
        return x - cls.c + y * np.cos(x * y), x * np.cos(x * y)

    @classmethod
    def g(cls, x, y):
        return 0.5 * np.sum(cls.d * (y - x) ** 2) + 0.1 * np.sum(x * y)

    @classmethod
    def grad_g(cls, x, y):
        return -cls.d * (y - x) + 0.1 * y, cls.d * (y - x) + 0.1 * x

    @classmethod
    def clip(cls, z):
        return np.clip(z, cls.lo, cls.hi)


def transcription(x, y, schedule, T, N, inner_step, alpha, delta, bound, m, start, prox=None):
    """Algorithm 1 as its box reads, in NumPy; with `prox` one round of Algorithm 2."""
    q = Quadratic
    y_hat, before, total = y, None, 0.0
    mean = (0 * x, 0 * y)
    for t in range(T):
        primal, dual, theta, weight = schedule(t)
        y_hat = {"warm": y_hat, "y": y}.get(start, start) if isinstance(start, str) else start
        for _ in range(N):
            y_hat = q.clip(y_hat - inner_step * (q.grad_g(x, y_hat)[1] + alpha * y_hat))
        h = q.g(x, y) - q.g(x, y_hat) - alpha / 2 * np.sum(y_hat**2) - delta
        gf, gg = q.grad_f(x, y), q.grad_g(x, y)
        gh = (gg[0] - q.grad_g(x, y_hat)[0], gg[1])
        if prox:
            (cx, cy), rho_f, rho = prox
            h = h + rho * np.sum((x - cx) ** 2)
            gh = (gh[0] + 2 * rho * (x - cx), gh[1])
            gf = (gf[0] + 2 * rho_f * (x - cx), gf[1] + 2 * rho_f * (y - cy))
        before = h if before is None else before
        m = np.clip(m + dual * ((1 + theta) * h - theta * before), 0, bound)
        before = h
        x = q.clip(x - primal * (gf[0] + m * gh[0]))
        y = q.clip(y - primal * (gf[1] + m * gh[1]))
        mean = (mean[0] + weight * x, mean[1] + weight * y)
        total += weight
    return x, y, m, (mean[0] / total, mean[1] / total), y_hat


FIXED = np.array([0.3, -0.7])
START = (np.array([0.2, -0.4]), np.array([1.0, 0.6]))


@pytest.mark.parametrize("start", ["warm", "y", FIXED], ids=["warm", "y", "fixed"])
@pytest.mark.parametrize("average", [False, True])
def test_pdbo_is_algorithm_1(start, average):
    solver = pdbo.PDBO(
        0.05, 0.3, 0.4, 3, 0.7, 0.01, 0.02, 1.5, 0.5, inner_start=start, average=average
    )
    sol = pdbo.solve(Quadratic.problem, *START, solver, steps=20, tol=0)
    schedule = lambda t: (0.05, 0.3, 0.7, t + 1)
    x, y, m, mean, _ = transcription(*START, schedule, 20, 3, 0.4, 0.01, 0.02, 1.5, 0.5, start)
    expected = mean if average else (x, y)
    np.testing.assert_allclose(sol.x, expected[0], rtol=1e-12)
    np.testing.assert_allclose(sol.y, expected[1], rtol=1e-12)
    np.testing.assert_allclose(sol.multiplier, m, rtol=1e-12)
    np.testing.assert_allclose(sol.state.solver_state.x, x, rtol=1e-12)  # the last iterate is kept
    shared = isinstance(start, str) and start == "y"  # the first inner gradient and that at y
    assert solver.calls(sol.state.solver_state).g == 20 * (4 if shared else 5)


def test_proximal_pdbo_is_algorithm_2():
    inner = pdbo.PDBO(0.05, 0.3, 0.4, 3, 0.7, 0.01, 0.02, 1.5, 0.5, inner_start=FIXED)
    solver = pdbo.ProximalPDBO(inner, 0.2, 0.3, rounds=4, round_steps=7)
    sol = pdbo.solve(Quadratic.problem, *START, solver, tol=0)
    schedule = lambda t: (0.05, 0.3, 0.7, t + 1)
    center = START
    for _ in range(4):
        *_, m, center, _ = transcription(
            *center, schedule, 7, 3, 0.4, 0.01, 0.02, 1.5, 0.5, FIXED, (center, 0.2, 0.3)
        )
    assert sol.steps == 28
    assert solver.calls(sol.state.solver_state).g == 28 * 5
    np.testing.assert_allclose(sol.x, center[0], rtol=1e-12)
    np.testing.assert_allclose(sol.y, center[1], rtol=1e-12)
    np.testing.assert_allclose(sol.multiplier, m, rtol=1e-12)


def test_theory_schedule_is_the_appendix():
    constants = pdbo.Constants(rho_f=2.0, rho_g=1.5, L_g=3.0, mu=0.5, D_f=4.0, D_Z=2.0)
    th = pdbo.theory(constants, smoothing=0.5, slack=0.25)
    bound = 4 / 0.25 + 1
    t0 = 2 * (2 + bound * 1.5 * (2 + 1.5 / 0.5)) / 0.5
    assert float(th.dual_bound) == pytest.approx(bound)
    assert float(th.t0) == pytest.approx(t0)
    assert float(th.inner_step) == pytest.approx(2 / 2.5)
    steps = th(jnp.array(3))
    assert float(steps.primal) == pytest.approx(2 / (0.5 * (3 + t0 + 1)))
    assert float(steps.dual) == pytest.approx(0.5 * 3 / (4 * 9))
    assert float(steps.extrapolation) == pytest.approx((3 + t0) / (4 + t0))
    assert float(steps.weight) == pytest.approx(4 + t0)
    assert float(th(jnp.array(0)).dual) == 0
    sol = pdbo.solve(
        Quadratic.problem, *START, pdbo.PDBO.from_theory(th, inner_start=FIXED), steps=15, tol=0
    )
    schedule = lambda t: (
        2 / (0.5 * (t + t0 + 1)),
        0.5 * t / 36,
        (t + t0) / (t + t0 + 1),
        t + t0 + 1,
    )
    *_, m, mean, _ = transcription(*START, schedule, 15, 5, 2 / 2.5, 0.5, 0.25, bound, 2.0, FIXED)
    np.testing.assert_allclose(sol.x, mean[0], rtol=1e-12)
    np.testing.assert_allclose(sol.multiplier, m, rtol=1e-12)


def test_proximal_theory_is_the_appendix():
    constants = pdbo.Constants(rho_f=2.0, rho_g=1.5, L_g=3.0, mu=-0.5, D_f=4.0, D_Z=2.0)
    th = pdbo.theory(constants, smoothing=0.5, slack=0.25, proximal=True)
    bound = (4 + 2 * 4) / 0.25 + 1
    rho_h = 1.5 * (2 + 1.5 / 0.5)
    assert float(th.dual_bound) == pytest.approx(bound)
    assert float(th.t0) == pytest.approx((6 * 2 + 4 * bound * rho_h) / 2)
    assert float(th.mu) == 2.0
    assert float(th.proximal_h) == pytest.approx((2 * 0.5 * 1.5 + 1.5**2) / (2 * 0.5))
    solver = pdbo.ProximalPDBO.from_theory(th)
    assert float(solver.proximal_f) == 2.0
    assert float(solver.proximal_h) == pytest.approx(float(th.proximal_h))
    # a schedule of the theory supplies the numbers that are not given
    assert eqx.tree_equal(pdbo.PDBO(schedule=th), pdbo.PDBO.from_theory(th))
    assert eqx.tree_equal(pdbo.ProximalPDBO(pdbo.PDBO(schedule=th)), solver)
    assert float(pdbo.ProximalPDBO(pdbo.PDBO(schedule=th), proximal_f=0.5).proximal_f) == 0.5


def test_random_round_is_uniform_and_from_the_key():
    solver = pdbo.ProximalPDBO(
        cases.paper_pdbo(), 0.5, 0.5, rounds=4, round_steps=3, choose="random"
    )
    last = pdbo.ProximalPDBO(cases.paper_pdbo(), 0.5, 0.5, rounds=4, round_steps=3)
    problem, (x0, y0) = cases.toy(), cases.TOY_STARTS[0]
    rounds = pdbo.solve(
        problem, x0, jnp.array(y0), last, every=3, tol=0, observe=lambda x, y: {"x": x}
    ).history["x"][1:]
    run = jax.jit(
        jax.vmap(lambda k: pdbo.solve(problem, jnp.array(x0), jnp.array(y0), solver, key=k).x)
    )
    drawn = run(jax.random.split(jax.random.key(0), 2000))
    counts = [int(np.isclose(drawn, r, rtol=1e-9).sum()) for r in rounds]
    assert sum(counts) == 2000
    assert all(abs(c - 500) < 4 * np.sqrt(2000 * 3 / 16) for c in counts)  # four sigma


def test_best_round_has_the_smallest_certificate():
    settings = dict(proximal_f=0.1, proximal_h=0.1, rounds=6, round_steps=10)
    problem, (x0, y0) = cases.toy(), cases.TOY_STARTS[1]
    inner = cases.paper_pdbo(dual_step=0.5, multiplier0=0.0)
    last = pdbo.solve(
        problem, x0, jnp.array(y0), pdbo.ProximalPDBO(inner, **settings), every=10, tol=0
    )
    best = pdbo.solve(
        problem,
        x0,
        jnp.array(y0),
        pdbo.ProximalPDBO(inner, **settings, choose="best"),
        every=10,
        tol=0,
    )
    assert best.history["eps"][-1] == pytest.approx(last.history["eps"][1:].min(), rel=1e-6)
    assert np.all(np.diff(best.history["eps"][1:]) <= 1e-12)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: pdbo.PDBO(inner_steps=0), "inner_steps must be a whole number >= 1"),
        (lambda: pdbo.PDBO(inner_steps=2.5), "inner_steps must be a whole number >= 1"),
        (lambda: pdbo.PDBO(primal_step=-0.1), "primal_step must be a number >= 0, got -0.1"),
        (lambda: pdbo.PDBO(dual_step=np.nan), "dual_step must be a number >= 0, got nan"),
        (lambda: pdbo.PDBO(smoothing="small"), "smoothing must be a number, got 'small'"),
        (lambda: pdbo.PDBO(slack=-1), "slack must be a number >= 0"),
        (lambda: pdbo.PDBO(multiplier0=-1), "multiplier0 must be a number >= 0"),
        (lambda: pdbo.PDBO(inner_start="cold"), "inner_start must be"),
        (lambda: pdbo.PDBO(0.1, schedule=pdbo.constant(0.1, 0.1)), "either them or schedule"),
        (lambda: pdbo.ProximalPDBO(inner=3), "inner must be a PDBO"),
        (lambda: pdbo.ProximalPDBO(rounds=0), "rounds must be a whole number"),
        (lambda: pdbo.ProximalPDBO(choose="first"), "choose must be"),
    ],
)
def test_bad_parameters(build, match):
    with pytest.raises(pdbo.ProblemError, match=match):
        build()
