"""The theorems: constants, schedules, measured rates and the bounds they stay below."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import cases
import pdbo

ALPHA, DELTA = 1.0, 0.5
K, B = jnp.array([1.0, 0.2]), jnp.array([0.5, -0.5])
SMOOTHED = float(jnp.sum(K * ALPHA * B**2 / (2 * (K + ALPHA))))  # min over y of g~, less 0.3 x


def strongly_convex(bumps=0.0):
    """f strongly convex (bumps = 0), h~ convex, optimum and multiplier by one scalar equation."""
    return pdbo.Problem(
        lambda x, y: (
            0.5 * bumps * jnp.cos(2 * x) + 0.5 * (x - y[0]) ** 2 + 0.5 * jnp.sum((y - 2) ** 2)
        ),
        lambda x, y: 0.5 * jnp.sum(K * (y - B) ** 2) + 0.3 * x,
        x_set=pdbo.Box(-2.0, 2.0),
        y_set=pdbo.Box(-2.0, 2.0),
    )


def optimum():
    """y(l) = (2 + l K B)/(1 + l K) with h~(y(l)) = 0, and x = y[0]."""
    y = lambda m: (2 + m * K * B) / (1 + m * K)
    h = lambda m: float(0.5 * jnp.sum(K * (y(m) - B) ** 2) - DELTA - SMOOTHED)
    multiplier = brentq(h, 0, 100, xtol=1e-15)
    return y(multiplier)[0], y(multiplier), multiplier


PROBLEM = strongly_convex()
CONSTANTS = pdbo.estimate_constants(PROBLEM, 0.0, jnp.zeros(2))
THEORY = pdbo.theory(CONSTANTS, smoothing=ALPHA, slack=DELTA)


def errors(solution):
    """The three errors of the theorem, signs kept for the first."""
    x, y, _ = optimum()
    gap = PROBLEM.f(solution.x, solution.y) - PROBLEM.f(x, y)
    h = PROBLEM.g(solution.x, solution.y) - 0.3 * solution.x - SMOOTHED - DELTA
    distance2 = (solution.x - x) ** 2 + jnp.sum((solution.y - y) ** 2)
    return np.array([float(gap), max(float(h), 0.0), float(distance2)])


def run(steps, inner_steps, **options):
    solver = pdbo.PDBO(schedule=THEORY, inner_steps=inner_steps, multiplier0=0.0, **options)
    return pdbo.solve(PROBLEM, 0.0, jnp.zeros(2), solver, steps=steps, every=steps, tol=0)


def slope(x, y):
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def test_the_closed_form_is_the_optimum():
    x, y, multiplier = optimum()
    c = pdbo.certify(PROBLEM, x, y, multiplier, slack=DELTA + SMOOTHED)
    assert c.eps <= 1e-12


def test_error_falls_like_one_over_T_squared():
    steps = [4_000, 8_000, 16_000, 32_000, 64_000]
    found = np.array([np.abs(errors(run(t, 30))) for t in steps])
    assert slope(steps, found.max(axis=1)) <= -1.8
    assert slope(steps, found[:, 2]) <= -1.8
    for t, error in zip(steps, found, strict=True):
        assert np.all(error <= THEORY.bound(t, 30))
    _, _, multiplier = optimum()
    assert float(run(64_000, 30).multiplier) == pytest.approx(multiplier, rel=1e-4)


def test_error_falls_geometrically_in_N():
    inner = [1, 2, 3, 4, 5]
    start = jnp.array([2.0, 2.0])  # cold, so that N alone decides the inner accuracy
    found = [np.abs(errors(run(100_000, n, inner_start=start))) for n in inner]
    largest = np.array([e.max() for e in found])
    rate = np.exp(np.polyfit(inner, np.log(largest), 1)[0])
    assert rate <= 1 - ALPHA / (float(CONSTANTS.rho_g) + 2 * ALPHA)
    for n, error in zip(inner, found, strict=True):
        assert np.all(error <= THEORY.bound(100_000, n))
    floor = np.abs(errors(run(100_000, 40, inner_start=start))).max()
    assert floor < largest[-1]


def test_kkt_residual_of_proximal_pdbo_falls_like_one_over_K():
    """The expectation over the random round is the mean over rounds, exactly."""
    problem = strongly_convex(bumps=1.0)
    constants = pdbo.estimate_constants(problem, 0.0, jnp.zeros(2))
    assert constants.mu < 0  # f is not convex
    schedule = pdbo.theory(constants, smoothing=ALPHA, slack=DELTA, proximal=True)
    rounds, steps = 256, 2000
    solver = pdbo.ProximalPDBO(
        pdbo.PDBO(schedule=schedule, inner_steps=30, multiplier0=0.0),
        rounds=rounds,
        round_steps=steps,
    )
    sol = pdbo.solve(
        problem,
        0.0,
        jnp.zeros(2),
        solver,
        every=steps,
        tol=0,
        observe=lambda x, y: {"x": x, "y": y},
    )

    def kkt(x, y, multiplier):
        c = pdbo.certify(problem, x, y, multiplier, slack=DELTA + SMOOTHED)
        return jnp.maximum(jnp.maximum(c.stationarity, c.feasibility), c.complementarity)

    points = [jnp.asarray(sol.history[k][1:]) for k in ("x", "y", "multiplier")]
    residual = np.asarray(jax.jit(jax.vmap(kkt))(*points))
    assert len(residual) == rounds
    mean = np.cumsum(residual) / np.arange(1, rounds + 1)
    counts = np.array([32, 64, 128, 256])
    assert slope(counts, mean[counts - 1]) <= -0.9
    assert residual[-1] <= 1e-3 * residual[0]
    for k in counts:
        violation = max(float(problem.g(0.0, jnp.zeros(2))) - SMOOTHED - DELTA, 0.0)
        assert mean[k - 1] <= schedule.kkt_bound(int(k), steps, 30, violation)


def test_constants_of_a_quadratic_are_exact():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(5, 5))
    hessian_f, hessian_g = a @ a.T + 0.3 * np.eye(5), a + a.T
    join = lambda x, y: jnp.concatenate([x, y])
    problem = pdbo.Problem(
        lambda x, y: 0.5 * join(x, y) @ jnp.asarray(hessian_f) @ join(x, y),
        lambda x, y: 0.5 * join(x, y) @ jnp.asarray(hessian_g) @ join(x, y),
        x_set=pdbo.Box(-1.0, 1.0),
        y_set=pdbo.Ball(2.0),
    )
    c = pdbo.estimate_constants(problem, jnp.zeros(2), jnp.zeros(3), iterations=2000, samples=256)
    eigen_f, eigen_g = np.linalg.eigvalsh(hessian_f), np.linalg.eigvalsh(hessian_g)
    assert c.rho_f == pytest.approx(eigen_f[-1], rel=1e-6)
    assert c.mu == pytest.approx(eigen_f[0], rel=1e-3)
    assert c.rho_g == pytest.approx(np.abs(eigen_g).max(), rel=1e-6)
    assert c.D_Z == pytest.approx(np.sqrt(8 + 16), rel=1e-12)
    # suprema are estimates from below, within 15 % of a dense sample's
    z = rng.normal(size=(200_000, 3))
    y = 2 * z / np.linalg.norm(z, axis=1, keepdims=True)
    points = np.concatenate([rng.choice([-1.0, 1.0], size=(200_000, 2)), y], axis=1)
    steepest = np.linalg.norm(points @ hessian_g, axis=1).max()
    assert 0.85 * steepest <= c.L_g <= steepest * (1 + 1e-3)
    highest = (0.5 * np.sum((points @ hessian_f) * points, axis=1)).max()
    assert 0.7 * highest <= c.D_f <= highest * (1 + 1e-3)


def test_constants_of_the_toy_in_a_ball_around_the_start():
    c = pdbo.estimate_constants(cases.toy(), 0.0, jnp.zeros(2), radius=3.0)
    hessian = np.array([[1.0, 0, -1], [0, 1, 0], [-1, 0, 1]])
    assert c.rho_f == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-4)
    assert c.mu == pytest.approx(0.0, abs=1e-4)
    assert c.D_Z == pytest.approx(2 * np.hypot(3, 3))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: pdbo.theory(CONSTANTS, smoothing=0.0, slack=1.0), "smoothing must be a positive"),
        (lambda: pdbo.theory(CONSTANTS, smoothing=1.0, slack=-1.0), "slack must be a positive"),
        (
            lambda: pdbo.theory(CONSTANTS._replace(mu=-1.0), smoothing=1.0, slack=1.0),
            "needs a strongly convex f, but mu = -1",
        ),
        (
            lambda: pdbo.theory(CONSTANTS._replace(D_Z=np.inf), smoothing=1.0, slack=1.0),
            "needs finite constants, but D_Z is not",
        ),
        (lambda: pdbo.PDBO(schedule=THEORY, slack=0.1), "come from the theory schedule"),
        (lambda: THEORY.kkt_bound(1, 1, 1), "belongs to Proximal-PDBO"),
        (
            lambda: pdbo.estimate_constants(PROBLEM, 0.0, jnp.zeros(2), samples=1),
            "samples >= 2",
        ),
    ],
)
def test_bad_input(build, match):
    with pytest.raises(pdbo.ProblemError, match=match):
        build()
