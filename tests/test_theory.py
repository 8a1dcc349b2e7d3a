"""The theorems: constants, schedules, measured rates and the bounds they stay below."""

import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo.experiments import rates
from pdbo.experiments.rates import ALPHA, DELTA, SMOOTHED, optimum

PROBLEM = rates.problem()
CONSTANTS = pdbo.estimate_constants(PROBLEM, 0.0, jnp.zeros(2))
THEORY = pdbo.theory(CONSTANTS, smoothing=ALPHA, slack=DELTA)


def errors(solution):
    """The three errors of the theorem."""
    return rates.errors(np.asarray(solution.x), np.asarray(solution.y))


def run(steps, inner_steps, **options):
    solver = pdbo.PDBO.from_theory(THEORY, inner_steps=inner_steps, multiplier0=0.0, **options)
    return pdbo.solve(PROBLEM, 0.0, jnp.zeros(2), solver, steps=steps, every=steps, tol=0)


def slope(x, y):
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def test_the_closed_form_is_the_optimum():
    x, y, multiplier = optimum()
    c = pdbo.certify(PROBLEM, x, y, multiplier, slack=DELTA + SMOOTHED)
    assert max(c.stationarity, c.feasibility, c.complementarity) <= 1e-12


def test_error_falls_like_one_over_T_squared():
    steps = [4_000, 8_000, 16_000, 32_000, 64_000]
    found = np.array([errors(run(t, 30)) for t in steps])
    assert slope(steps, found.max(axis=1)) <= -1.8
    assert slope(steps, found[:, 2]) <= -1.8
    for t, error in zip(steps, found, strict=True):
        assert np.all(error <= THEORY.bound(t, 30))
    _, _, multiplier = optimum()
    assert float(run(64_000, 30).multiplier) == pytest.approx(multiplier, rel=1e-4)


def test_error_falls_geometrically_in_N():
    inner = [1, 2, 3, 4]  # from 5 on T alone decides
    start = jnp.array([2.0, 2.0])  # cold, so that N alone decides the inner accuracy
    found = [errors(run(100_000, n, inner_start=start)) for n in inner]
    largest = np.array([e.max() for e in found])
    rate = np.exp(np.polyfit(inner, np.log(largest), 1)[0])
    assert rate <= 1 - ALPHA / (float(CONSTANTS.rho_g) + 2 * ALPHA)
    for n, error in zip(inner, found, strict=True):
        assert np.all(error <= THEORY.bound(100_000, n))
    floor = errors(run(100_000, 40, inner_start=start)).max()
    assert floor < largest[-1]


def test_kkt_residual_of_proximal_pdbo_falls_like_one_over_K():
    """The expectation over the random round is the mean over rounds, exactly."""
    problem = rates.problem(bumps=1.0)
    constants = pdbo.estimate_constants(problem, 0.0, jnp.zeros(2))
    assert constants.mu < 0  # f is not convex
    schedule = pdbo.theory(constants, smoothing=ALPHA, slack=DELTA, proximal=True)
    rounds, steps = 256, 2000
    solver = pdbo.ProximalPDBO.from_theory(schedule, rounds, steps, inner_steps=30, multiplier0=0.0)
    sol = pdbo.solve(
        problem,
        0.0,
        jnp.zeros(2),
        solver,
        every=steps,
        tol=0,
        observe=lambda x, y: {"x": x, "y": y},
    )
    residual = rates.kkt_residuals(problem, *(sol.history[k][1:] for k in ("x", "y", "multiplier")))
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
        (lambda: pdbo.PDBO.from_theory(CONSTANTS), "theory must be made by .*, got Constants"),
        (lambda: pdbo.ProximalPDBO.from_theory(THEORY), "needs theory.*proximal=True"),
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
