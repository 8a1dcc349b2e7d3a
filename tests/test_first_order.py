"""BOME, F2SA, VPBGD, BVFIM and MEHA: their boxes, biases and where they end on known problems."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from cases import TARGET, X0, Y0, Y_STAR, A, H
from pdbo import _trees as trees
from pdbo.solvers._bome import BOME
from pdbo.solvers._bvfim import BVFIM
from pdbo.solvers._f2sa import F2SA
from pdbo.solvers._meha import MEHA
from pdbo.solvers._vpbgd import VPBGD

KEY = jax.random.key(0)
SOLVERS = [BOME(), F2SA(), VPBGD(), BVFIM(), MEHA()]
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)


def outcome(problem, solver, x, y, steps):
    state = cases.iterate(problem, solver, jnp.asarray(x, float), jnp.asarray(y, float), steps)
    return solver.output(state)


def close(a, b, atol):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=0, atol=atol), a, b)


def shared_box(c):
    """falk-liu (c = 3) and desilva (c = 2), where the box binds at the solution."""
    return pdbo.Problem(_shared_f, _shared_g, jnp.asarray(float(c)), y_set=pdbo.Box(0.5, 1.5))


def _shared_f(x, y, c):
    return jnp.sum(x**2 - c * x + y**2)


def _shared_g(x, y, c):
    return jnp.sum((x - y) ** 2)


BINDING = {  # problem, start, solution
    "falk-liu": (shared_box(3), ([0.2, 1.4], [1.2, 0.7]), ([0.75, 0.75], [0.75, 0.75])),
    "desilva": (shared_box(2), ([0.2, 1.4], [1.2, 0.7]), ([0.5, 0.5], [0.5, 0.5])),
}

# All but BOME are off by about the inverse of their penalty, BOME by about its step.
ACCURATE = [
    BOME(primal_step=5e-4),
    F2SA(),
    VPBGD(penalty=1e3, primal_step=0.5, inner_step=0.3),
    BVFIM(outer_step=2e-3, smoothing=0.01, slack=0.01, outer_smoothing=0.01, barrier=20.0),
    MEHA(x_step=0.3, y_step=0.3, proximal_step=0.3, penalty0=10.0),
]


@pytest.mark.parametrize("name", BINDING)
@pytest.mark.parametrize("solver", ACCURATE, ids=lambda s: type(s).__name__)
def test_all_agree_where_a_box_binds(solver, name):
    problem, start, solution = BINDING[name]
    point = outcome(problem, solver, *start, 40_000)
    close((point.x, point.y), jax.tree.map(np.asarray, solution), 1e-3)


@pytest.mark.parametrize(
    "solver, other",
    [
        (VPBGD(penalty=50.0, primal_step=0.5), VPBGD(penalty=100.0, primal_step=0.5)),
        (BOME(primal_step=8e-3), BOME(primal_step=4e-3)),
    ],
    ids=["penalty", "step"],
)
def test_bias_is_of_the_order_stated(solver, other):
    """Twice the penalty, or half the step, halves the distance to the solution."""
    points = [outcome(cases.home(), s, X0, Y0, 20_000) for s in (solver, other)]
    far, near = (np.linalg.norm(p.y - Y_STAR) for p in points)
    assert far / near == pytest.approx(2, rel=0.15)


# Where the inner minima are many all five methods reach the optimum (1, (1, 1)) with their
# defaults: after so many steps they are this near.
TOY = {
    "BOME": (1_000, 1e-8),
    "F2SA": (10_000, 3e-6),
    "VPBGD": (5_000, 1e-6),
    "BVFIM": (10_000, 1e-3),
    "MEHA": (5_000, 3e-6),
}


@every_solver
def test_toy_with_many_inner_minima(solver):
    steps, within = TOY[type(solver).__name__]
    point = outcome(cases.toy(), solver, *cases.TOY_STARTS[0], steps)
    close((point.x, point.y), (1.0, np.ones(2)), within)


# The algorithm boxes once more, in NumPy, on the home problem.

BOX = (-0.6, 0.7)


def f_x(x, y):
    return 0.5 * x


def f_y(x, y):
    return y - TARGET


def g_y(x, y):
    return H @ (y - A @ x)


def g_x(x, y):
    return -A.T @ g_y(x, y)


def f_value(x, y):
    return 0.5 * np.sum((y - TARGET) ** 2) + 0.25 * np.sum(x**2)


def g_value(x, y):
    return 0.5 * (y - A @ x) @ H @ (y - A @ x)


def bome(x, y, project, steps, barrier="gradient", xi=0.1, beta=0.5, inner=10, eta=0.5):
    for _ in range(steps):
        v = y
        for _ in range(inner):
            v = project(v - beta * g_y(x, v))
        q = np.concatenate([g_x(x, y) - g_x(x, v), g_y(x, y)])
        f = np.concatenate([f_x(x, y), f_y(x, y)])
        phi = eta * (q @ q if barrier == "gradient" else g_value(x, y) - g_value(x, v))
        multiplier = max((phi - f @ q) / (q @ q), 0.0)
        d = f + multiplier * q
        x, y = x - xi * d[:2], project(y - xi * d[2:])
    return x, y, multiplier


def f2sa(x, y, project, steps, gamma=0.5, inner=10, xi=1.0, multiplier=1.0, delta=0.1):
    z = y
    for _ in range(steps):
        alpha = gamma / (2 * multiplier)
        for _ in range(inner):
            z = project(z - gamma * g_y(x, z))
            y = project(y - alpha * (f_y(x, y) + multiplier * g_y(x, y)))
        x = x - xi * alpha * (f_x(x, y) + multiplier * (g_x(x, y) - g_x(x, z)))
        multiplier += delta
    return x, y, multiplier


def vpbgd(x, y, project, steps, gamma=10.0, alpha=0.1, beta=0.5, inner=1):
    omega = y
    for _ in range(steps):
        for _ in range(inner):
            omega = project(omega - beta * g_y(x, omega))
        d_x = f_x(x, y) + gamma * (g_x(x, y) - g_x(x, omega))
        d_y = f_y(x, y) + gamma * g_y(x, y)
        x, y = x - alpha / gamma * d_x, project(y - alpha / gamma * d_y)
    return x, y, gamma


def bvfim(x, y, project, steps, alpha=0.02, start=(0.1, 0.1, 0.01, 10.0), decay=1.1):
    z, refused = y, 0
    for k in range(steps):
        mu1, mu2, theta, tau = (value / (k + 1) ** decay for value in start)
        for _ in range(50):
            z = project(z - 0.5 * (g_y(x, z) + mu1 * z))
        best = g_value(x, z) + mu1 / 2 * z @ z + mu2

        def phi(v):
            gap = best - g_value(x, v)
            smooth = f_value(x, v) + theta / 2 * v @ v
            return smooth - tau * np.log(gap) if gap > 0 else np.inf

        if phi(y) > phi(z):
            y, refused = z, refused + 1
        step = 0.5
        for _ in range(25):
            gap = best - g_value(x, y)
            trial = project(y - step * (f_y(x, y) + theta * y + tau / gap * g_y(x, y)))
            if phi(trial) <= phi(y):
                y = trial
            else:
                step, refused = step / 2, refused + 1
        multiplier = tau / (best - g_value(x, y))
        x = x - alpha * (f_x(x, y) + multiplier * (g_x(x, y) - g_x(x, z)))
    assert refused > 0  # the rule was used
    return x, y, multiplier


def meha(x, y, project, steps, alpha=0.2, beta=0.2, eta=0.2, gamma=5.0, c0=2.0, p=0.49):
    theta = y
    for k in range(steps):
        c = c0 * (k + 1) ** p
        theta = project(theta - eta * (g_y(x, theta) + (theta - y) / gamma))
        x = x - alpha * (f_x(x, y) / c + g_x(x, y) - g_x(x, theta))
        y = project(y - beta * (f_y(x, y) / c + g_y(x, y) - (y - theta) / gamma))
    return x, y, None


BOXES = [bome, f2sa, vpbgd, bvfim, meha]


@pytest.mark.parametrize("box", [False, True], ids=["free", "box"])
@pytest.mark.parametrize(
    "solver, transcript",
    [*zip(SOLVERS, BOXES, strict=True), (BOME(barrier="value"), lambda *a: bome(*a, "value"))],
    ids=["BOME", "F2SA", "VPBGD", "BVFIM", "MEHA", "BOME by value"],
)
def test_five_steps_of_the_algorithm_box(solver, transcript, box):
    def project(y):
        return np.clip(y, *BOX) if box else y

    point = outcome(cases.home(pdbo.Box(*BOX) if box else None), solver, X0, Y0, 5)
    x, y, multiplier = transcript(X0, Y0, project, 5)
    assert np.linalg.norm(x - X0) > 1e-3 and np.linalg.norm(y - Y0) > 1e-2
    close((point.x, point.y), (x, y), 1e-10)
    if multiplier is None:
        assert point.multiplier is None
    else:
        assert float(point.multiplier) == pytest.approx(multiplier, rel=1e-10)


def test_bome_multiplier_is_small_without_a_gap():
    """At an exact inner solution the gradient of the gap vanishes and x and y follow f alone."""
    point = outcome(cases.home(), BOME(), X0, A @ X0, 1)
    assert 0 <= point.multiplier <= 1
    close((point.x, point.y), (X0 - 0.1 * f_x(X0, None), A @ X0 - 0.1 * f_y(X0, A @ X0)), 1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_bvfim_never_leaves_the_domain_of_its_log(dtype):
    """A steep g, a slack below its rounding and an x that moves far: finite all the way."""
    problem = pdbo.Problem(
        lambda x, y: 0.5 * jnp.sum((y - 1) ** 2) + 50 * jnp.sum((x - 2) ** 2),
        lambda x, y: 1e3 * jnp.sum((y - x) ** 2) + 7e4,
    )
    solver = BVFIM(inner_step=4e-4, slack=1e-12, smoothing=1e-9, outer_step=0.015)
    x, y = jnp.asarray([-3.0, 5.0], dtype), jnp.asarray([100.0, -100.0], dtype)
    state = solver.init(problem, x, y, KEY)
    step = eqx.filter_jit(solver.step)
    for _ in range(100):
        state = step(problem, state)
        assert trees.finite(state) and state.multiplier > 0


@pytest.mark.parametrize("kind", [BOME, F2SA, VPBGD, BVFIM])
@pytest.mark.parametrize("value", [0, 2.5, True])
def test_wrong_loop_lengths_are_refused(kind, value):
    with pytest.raises(pdbo.ProblemError, match="inner_steps must be a whole number >= 1"):
        kind(inner_steps=value)


def test_wrong_barrier_is_refused():
    with pytest.raises(pdbo.ProblemError, match="barrier must be"):
        BOME(barrier="norm")
