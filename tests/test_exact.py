"""The default on problems with closed forms: exact, certified, no answer where there is none."""

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cases
import pdbo
from pdbo._precision import to_float64
from pdbo.exact.degree import UNKNOWN, degree
from pdbo.exact.newton import minimise
from pdbo.exact.oracle import Oracle
from pdbo.exact.reduced import reduce
from pdbo.exact.small import Small
from pdbo.solvers import Implicit, _implicit


def quadratic_f(x, y, data):
    z = jnp.concatenate([x, y]) - data["target"]
    return 0.5 * z @ data["weight"] @ z


def quadratic_g(x, y, data):
    return 0.5 * y @ data["H"] @ y + y @ data["C"] @ x


def quadratic(seed, condition, nx=2, ny=3, flat=0):
    """A random quadratic problem, its inner null space of dimension `flat`, and its solution."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(ny, ny)))
    curved, null = basis[:, flat:], basis[:, :flat]
    values = np.geomspace(1, 1 / condition, ny - flat)
    H, inverse = curved * values @ curved.T, curved / values @ curved.T
    C = curved @ rng.normal(size=(ny - flat, nx))
    root, target = rng.normal(size=(nx + ny, nx + ny)), rng.normal(size=nx + ny)
    weight = root @ root.T / (nx + ny) + np.eye(nx + ny)
    tangent = np.block([[np.eye(nx), np.zeros((nx, flat))], [-inverse @ C, null]])
    z = tangent @ np.linalg.solve(tangent.T @ weight @ tangent, tangent.T @ weight @ target)
    data = {"H": H, "C": C, "target": target, "weight": weight}
    return pdbo.Problem(quadratic_f, quadratic_g, data), z[:nx], z[nx:]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6])
def test_quadratics_are_exact_and_certified(condition, double):
    with jax.enable_x64(double):
        for seed in range(5):
            problem, x, y = quadratic(seed, condition)
            sol = pdbo.solve(problem, np.zeros(2), np.ones(3))
            assert sol.ok and sol.certificate.exact
            np.testing.assert_allclose(sol.x, x, rtol=1e-7, atol=1e-7)
            np.testing.assert_allclose(sol.y, y, rtol=1e-7, atol=1e-7 * np.abs(y).max())
            assert pdbo.certify(problem, x, y).eps <= 1e-4  # the closed form is not refused
            assert pdbo.certify(problem, x + 0.1, y).eps >= 1e-2


@pytest.mark.parametrize(("ny", "flat"), [(6, 3), (40, 20)])
def test_flat_directions_follow_f(ny, flat):
    problem, x, y = quadratic(1, 1e4, 3, ny, flat)
    sol = pdbo.solve(problem, np.zeros(3), np.ones(ny))
    assert sol.ok
    np.testing.assert_allclose(sol.x, x, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(sol.y, y, rtol=1e-6, atol=1e-6 * np.abs(y).max())


def scaled_f(x, y, data):
    return data["f"] * quadratic_f(x / data["x"], y / data["y"], data)


def scaled_g(x, y, data):
    return data["g"] * quadratic_g(x / data["x"], y / data["y"], data) + data["constant"]


def test_units_make_no_difference():
    base, x, y = quadratic(3, 1e2)
    rng = np.random.default_rng(0)
    for _ in range(20):
        unit_x, unit_y = 10.0 ** rng.integers(-8, 9, 2), 10.0 ** rng.integers(-8, 9, 3)
        sizes = {"f": 10.0 ** rng.integers(-8, 9), "g": 10.0 ** rng.integers(-8, 9)}
        constant = sizes["g"] * 10.0 ** rng.integers(0, 7)
        data = jax.tree.map(np.asarray, base.data) | sizes
        data |= {"x": unit_x, "y": unit_y, "constant": constant}
        sol = pdbo.solve(pdbo.Problem(scaled_f, scaled_g, data), np.zeros(2), unit_y)
        assert sol.ok
        np.testing.assert_allclose(sol.x / unit_x, x, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(sol.y / unit_y, y, rtol=1e-5, atol=1e-7)


# name: f, g, start, solution, sets
EASY = {
    "the gradient of f is zero at the start": (
        lambda x, y: (y - 1) ** 2, lambda x, y: (y - x) ** 2, (3.0, 1.0), (1.0, 1.0), {},
    ),
    "a weak direction": (
        lambda x, y: (y[1] - 1) ** 2 + (x - 1) ** 2,
        lambda x, y: 0.5 * (y[0] - x) ** 2 + 0.5e-4 * y[1] ** 2,
        (3.0, np.ones(2)), (1.0, np.array([1.0, 0.0])), {},
    ),
    "everything is zero": (
        lambda x, y: y**2 + x**2, lambda x, y: (y - x) ** 2, (3.0, 1.0), (0.0, 0.0), {},
    ),
    "the kink of a limit price": (  # nobody buys above 1, everybody up to 1
        lambda x, y: -x * y, lambda x, y: 0.5 * y**2 - 10 * (1.1 - x) * y,
        (0.3, 0.5), (1.0, 1.0), {"x_set": pdbo.Box(0.0, 2.0), "y_set": pdbo.Box(0.0, 1.0)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EASY)
def test_easy_problems_are_solved(name):
    f, g, start, solution, sets = EASY[name]
    sol = pdbo.solve(pdbo.Problem(f, g, **sets), *start)
    assert sol.ok and isinstance(sol.state.solver, Implicit)
    np.testing.assert_allclose(sol.x, solution[0], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(sol.y, solution[1], rtol=1e-7, atol=1e-7)


def test_a_maximum_at_the_start_is_left():
    box = pdbo.Box(-1.0, 1.0)
    problem = pdbo.Problem(lambda x, y: -(y**2), lambda x, y: (y - x) ** 2, x_set=box)
    sol = pdbo.solve(problem, 0.0, 0.0)
    assert sol.ok and abs(float(sol.x)) == 1


def test_y_in_a_ball():
    # y = x / |x|, so that all of x = (0, t) is optimal: a valley along which nothing may drift
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((y - jnp.array([0.0, 1.0])) ** 2) + 0 * jnp.sum(x),
        lambda x, y: jnp.sum((y - x) ** 2),
        y_set=pdbo.Ball(1.0),
    )
    sol = pdbo.solve(problem, np.array([3.0, 1.0]), np.zeros(2))
    assert sol.ok and float(sol.f) <= 1e-12
    assert abs(sol.x[0]) <= 1e-9 and 1 < sol.x[1] < 10


def test_only_a_ratio_counts():
    # every x = (0, t) is optimal: beside that valley f curves down along it, by next to nothing
    problem = pdbo.Problem(lambda x, y: y**2 + 0 * jnp.sum(x), lambda x, y: (y - x[0] / x[1]) ** 2)
    sol = pdbo.solve(problem, np.array([3.0, 1.0]), 0.0, Implicit())
    assert sol.ok and float(sol.f) <= 1e-16
    assert abs(sol.x[0]) <= 1e-9 and 0.1 < sol.x[1] < 10


def test_second_derivatives_where_the_inner_minimum_slides_along_a_ball():
    A = np.array([[3.0, 1.0, 0.5], [1.0, 2.0, 0.3], [0.5, 0.3, 1.0]])
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((y - 1) ** 2) + jnp.sin(y[0] * y[1]) + jnp.sum(x**2),
        lambda x, y: 0.5 * y @ A @ y + 3 * y[0] * x[0] + y[1] * x[1] * x[0] - 2 * y[2] + y[2] ** 4,
        y_set=pdbo.Ball(0.6, center=jnp.array([0.1, 0.0, 0.2])),
    )
    with jax.enable_x64(True):
        oracle = Oracle(to_float64(problem), np.zeros(2), np.zeros(3))

        def reduced(x):
            found = minimise(oracle, x, np.zeros(3)).refreshed(oracle, x)
            assert np.any(found.inner.face.bend)  # y is on the ball
            return reduce(oracle, x, found.y, found.values, found.inner)

        x, h = np.array([0.7, -0.4]), 1e-5
        ends = [[reduced(x + s * h * e).gradient for s in (1, -1)] for e in np.eye(2)]
        expected = np.stack([(up - down) / (2 * h) for up, down in ends])
        np.testing.assert_allclose(reduced(x).B, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("unit", [1.0, 1e8])
def test_another_valley_of_f_is_found_in_any_unit_of_x(unit):
    # f at the inner minimum has a valley at 0.01 and a deeper one at 1
    problem = pdbo.Problem(
        lambda x, y: 100 * (y / unit - (x / unit) ** 2) ** 2 + (1 - x / unit) ** 2,
        lambda x, y: (y / unit - x / unit) ** 2,
    )
    sol = pdbo.solve(problem, -0.5 * unit, 0.0)
    assert sol.ok
    np.testing.assert_allclose(sol.x, unit, rtol=1e-7)


def test_no_inner_minimum_is_never_ok():
    f = lambda x, y: (y - 1) ** 2 + (x - 1) ** 2
    falling = pdbo.Problem(f, lambda x, y: jnp.exp(-y) + 0 * x)
    assert pdbo.certify(falling, 1.0, 50.0).eps >= 1e-2  # though g could fall by 2e-22 only
    for g in (falling.g, lambda x, y: x * y, lambda x, y: y**3 + 0 * x):
        assert not pdbo.solve(pdbo.Problem(f, g), 0.5, 0.5, Implicit(), throw=False).ok


def test_a_saddle_or_maximum_is_not_certified():
    problem = pdbo.Problem(lambda x, y: -(y**2), lambda x, y: (y - x) ** 2)
    certificate = pdbo.certify(problem, 0.0, 0.0)
    assert certificate.exact and certificate.curvature < 0 and certificate.eps >= 1e-2


def test_a_far_basin_is_found_and_its_radius_stated():
    well = lambda x, y: -jnp.exp(-((y - x) ** 2)) - 2 * jnp.exp(-((y - 20) ** 2)) + 1e-4 * y**2
    problem = pdbo.Problem(lambda x, y: (y - 1) ** 2 + x**2, well)
    assert pdbo.certify(problem, 0.5, 0.5).eps >= 1e-2
    one = pdbo.certify(pdbo.Problem(lambda x, y: (y - 1) ** 2, lambda x, y: (y - x) ** 2), 1.0, 1.0)
    assert one.eps == 0 and one.radius >= 100


def test_doubles_in_data_stay_doubles(x32):
    third = np.float64(1 / 3)
    problem = pdbo.Problem(
        lambda x, y, d: (y - d) ** 2, lambda x, y, d: (y - x) ** 2, data=np.array(third)
    )
    assert problem.data.dtype == jnp.float32
    assert pdbo.solve(problem, 0.0, 0.0).x == third


def test_the_newton_step_agrees_with_finite_differences():
    """The reduced gradient and its derivative, against differences at re-solved inner minima."""
    problem = pdbo.Problem(
        lambda x, y: jnp.sum(jnp.sin(y)) + jnp.sum(x**2 * y[0]),
        lambda x, y: jnp.sum(jnp.cosh(y - jnp.outer(x, x).ravel()[:3])) + jnp.sum(y**4),
    )
    from pdbo.exact.newton import minimise
    from pdbo.exact.reduced import reduce

    x, y = np.array([0.3, -0.7]), np.zeros(3)
    oracle = Oracle(problem, jnp.asarray(x), jnp.asarray(y))

    def at(x):
        found = minimise(oracle, x, y)
        assert found.found
        found = found.refreshed(oracle, x)
        return found.values.f, reduce(oracle, x, found.y, found.values, found.inner)

    _, reduced = at(x)
    h = 1e-5
    for i, row in enumerate(np.eye(2)):
        (up, above), (down, below) = at(x + h * row), at(x - h * row)
        assert reduced.gradient[i] == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-8)
        slope = (above.gradient - below.gradient)[:2] / (2 * h)
        np.testing.assert_allclose(reduced.B[i, :2], slope, rtol=1e-5, atol=1e-6)


def test_a_run_is_carried_on_bit_for_bit():
    problem = pdbo.Problem(lambda x, y: (y - 1) ** 4 + x**2, lambda x, y: jnp.cosh(y - x) + y**2)
    whole = pdbo.solve(problem, 3.0, 1.0)
    part = pdbo.solve(problem, 3.0, 1.0, steps=2)
    assert not part.ok and part.steps == 2
    rest = pdbo.solve(problem, state=part.state)
    assert rest.ok and rest.steps == whole.steps
    for a, b in ((rest.x, whole.x), (rest.y, whole.y)):
        np.testing.assert_array_equal(a, b)


def test_a_run_is_saved_loaded_and_checkpointed(tmp_path):
    problem = cases.toy()
    sol = pdbo.solve(problem, 2.0, np.array([0.5, 0.5]), checkpoint=tmp_path / "run")
    again = pdbo.solve(problem, 2.0, np.array([0.5, 0.5]), checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(again.x, sol.x)
    assert again.steps == sol.steps and again.ok
    pdbo.save(tmp_path / "toy.pdbo", sol)
    loaded = pdbo.load(tmp_path / "toy.pdbo", problem)
    np.testing.assert_array_equal(loaded.y, sol.y)
    assert loaded.certificate.eps == sol.certificate.eps


def test_multistart_and_compare_take_the_same_path():
    problem = cases.toy()
    best = pdbo.multistart(problem, 2.0, np.array([0.5, 0.5]), starts=5)
    assert best.ok and best.all.x.shape == (5,)
    table = pdbo.compare(problem, 2.0, np.array([0.5, 0.5]), [pdbo.AutoPDBO(), Implicit()])
    last = table.final()
    assert last["f"][0] == last["f"][1] and np.all(last["eps"] <= 1e-6)


def test_named_on_its_own():
    sol = pdbo.solve(cases.toy(), 2.0, np.array([0.5, 0.5]), Implicit())
    assert sol.ok and sol.state.solver.name == "Implicit"
    assert sol.x == pytest.approx(1, abs=1e-12)


def test_states_do_not_change_once_a_run_has_ended():
    oracle = Oracle(cases.toy(), jnp.asarray(2.0), jnp.zeros(2))
    path = Small(oracle)
    state = path.start(np.array([2.0]), np.zeros(2))
    while state.status == 0:
        state = path.step(state)
    assert path.step(state) is state


@pytest.mark.parametrize("name", ["exp(x)", "1 / (1 + x^2)", "-y^2"])
def test_f_without_a_minimum_is_never_ok(name):
    f = {
        "exp(x)": lambda x, y: jnp.exp(x) + (y - x) ** 2,
        "1 / (1 + x^2)": lambda x, y: 1 / (1 + x**2),
        "-y^2": lambda x, y: -(y**2),
    }[name]
    problem = pdbo.Problem(f, lambda x, y: (y - x) ** 2)
    assert not pdbo.solve(problem, 0.5, 0.5, Implicit(), throw=False).ok


def test_boxes_with_entries_in_unlike_units():
    unit = np.array([1e-6, 1.0, 1e6])
    problem = pdbo.Problem(
        lambda x, y, u: (
            jnp.sum((y - jnp.array([0.3, 2.0, -1.0])) ** 2) + 0.1 * jnp.sum((x / u) ** 2)
        ),
        lambda x, y, u: jnp.sum((y - x / u) ** 2),
        data=unit,
        x_set=pdbo.Box(-unit, unit),
    )
    sol = pdbo.solve(problem, np.zeros(3), np.zeros(3))
    assert sol.ok
    np.testing.assert_allclose(sol.x / unit, [0.3 / 1.1, 1.0, -1.0 / 1.1], rtol=1e-7)


def test_single_precision_starts_in_a_64_bit_session_are_lifted():
    problem, x, _ = quadratic(0, 1e4)
    sol = pdbo.solve(problem, np.zeros(2, np.float32), np.ones(3, np.float32))
    assert sol.ok and sol.x.dtype == np.float64
    np.testing.assert_allclose(sol.x, x, rtol=1e-7, atol=1e-7)


def test_large_problems_go_by_products():
    problem, x, _ = quadratic(0, 10.0, 120, 150)
    sol = pdbo.solve(problem, np.zeros(120), np.ones(150))
    assert sol.ok and sol.certificate.exact and isinstance(sol.state.solver, Implicit)
    np.testing.assert_allclose(sol.x, x, atol=1e-5)
    assert pdbo.certify(problem, sol.x, sol.y).eps == sol.certificate.eps
    elsewhere = x + 0.3
    inner = -np.linalg.solve(
        np.asarray(problem.data["H"]), np.asarray(problem.data["C"]) @ elsewhere
    )
    wrong = pdbo.certify(problem, elsewhere, inner)
    assert wrong.exact and wrong.eps >= 1e-2
    part = pdbo.solve(problem, np.zeros(120), np.ones(150), steps=3)
    rest = pdbo.solve(problem, state=part.state)
    np.testing.assert_array_equal(rest.x, sol.x)


def test_flat_directions_of_a_large_problem():
    n = 300
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((x - y["b"]) ** 2) + jnp.sum((y["a"] - 1) ** 2),
        lambda x, y: jnp.sum((y["b"] - x) ** 2),
    )
    sol = pdbo.solve(problem, np.full(n, 3.0), {"a": np.zeros(n), "b": np.full(n, 5.0)})
    assert sol.ok and float(sol.f) <= 1e-12
    np.testing.assert_allclose(sol.y["a"], 1, rtol=1e-6)


def test_checkpoints_on_the_way(tmp_path):
    problem = pdbo.Problem(lambda x, y: (y - 1) ** 4 + x**2, lambda x, y: jnp.cosh(y - x) + y**2)
    whole = pdbo.solve(problem, 3.0, 1.0)
    options = {"checkpoint": tmp_path, "checkpoint_every": 0}
    part = pdbo.solve(problem, 3.0, 1.0, steps=2, **options)
    assert part.steps == 2 and not part.ok
    sol = pdbo.solve(problem, 3.0, 1.0, **options)
    assert sol.ok and sol.steps == whole.steps
    np.testing.assert_array_equal(sol.x, whole.x)
    with pytest.raises(pdbo.CheckpointError, match="another x0, y0 or key"):
        pdbo.solve(problem, 2.0, 1.0, **options)


def test_one_problem_is_solved_in_several_sizes():
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((y - 1) ** 2) + jnp.sum(x**2), lambda x, y: jnp.sum((y - x) ** 2)
    )
    with jax.enable_x64(True):
        for n in (3, 2, 1):
            sol = pdbo.solve(problem, np.zeros(n), np.ones(n))
            np.testing.assert_allclose(sol.x, np.full(n, 0.5), rtol=1e-12)


def test_the_folder_of_another_solver_is_refused(tmp_path):
    problem, start = cases.toy(), (2.0, np.array([0.5, 0.5]))
    pdbo.solve(problem, *start, pdbo.PDBO(), steps=3, checkpoint=tmp_path)
    with pytest.raises(pdbo.CheckpointError, match="PDBO"):
        pdbo.solve(problem, *start, checkpoint=tmp_path)
    held = pdbo.load(tmp_path, problem, pdbo.PDBO())
    assert held.steps == 3


# a linear follower: buys up to a price of 3, where both answers are minima
LIMIT_PRICE = pdbo.Problem(
    lambda x, y: -x * y,
    lambda x, y: (x - 3) * y,
    x_set=pdbo.Box(0.0, 10.0),
    y_set=pdbo.Box(0.0, 1.0),
)


def test_a_search_goes_on_from_its_checkpoint(tmp_path):
    # the inner solution jumps at x = 3, so the exact path leaves it to the search
    part = pdbo.solve(LIMIT_PRICE, 1.0, 0.5, steps=60, checkpoint=tmp_path)
    assert part.state is not None and isinstance(part.state.solver, pdbo.AutoPDBO)
    sol = pdbo.solve(LIMIT_PRICE, 1.0, 0.5, checkpoint=tmp_path)
    whole = pdbo.solve(LIMIT_PRICE, 1.0, 0.5)
    assert sol.ok and sol.steps == whole.steps
    np.testing.assert_array_equal(sol.x, whole.x)


def test_where_the_inner_minimum_jumps_f_chooses_the_side():
    sol = pdbo.solve(LIMIT_PRICE, 1.0, 0.5)
    assert sol.ok
    np.testing.assert_allclose([sol.x, sol.y], [3.0, 1.0], rtol=1e-7)
    assert not pdbo.certify(LIMIT_PRICE, np.float64(3 + 1e-8), np.float64(0.0)).eps <= 1e-4


def test_a_curvature_next_to_rounding_is_refused():
    turn = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    curve = jnp.asarray(turn @ np.diag([1.0, 1e-12]) @ turn.T)
    along = jnp.asarray(turn[:, 0])

    def g(x, y):
        return 0.5 * (y - x * along) @ curve @ (y - x * along)

    f = lambda x, y: (turn[:, 1] @ y - 1) ** 2 + (x - 1) ** 2
    sol = pdbo.solve(pdbo.Problem(f, g), 0.5, np.zeros(2), Implicit(), throw=False)
    assert not sol.ok or abs(turn[:, 1] @ sol.y) <= 1e-3  # y is exactly x times the first column


def test_steps_that_only_the_gradient_can_tell_are_taken():
    # f is 1e6 and flat to 1e-10 around its minimum, where x is known to 1e-8 by its gradient alone
    problem = pdbo.Problem(
        lambda x, y: 1e6 + (y - 2) ** 4 + (y - 2) ** 2, lambda x, y: (y - x) ** 2
    )
    sol = pdbo.solve(problem, 0.0, 0.0)
    assert sol.ok
    np.testing.assert_allclose(sol.x, 2.0, rtol=1e-9)


def test_a_lower_valley_in_sight_is_taken():
    problem = pdbo.Problem(lambda x, y: (y**2 - 1) ** 2 + 0.3 * y, lambda x, y: (y - x) ** 2)
    sol = pdbo.solve(problem, 1.5, 1.5)
    assert sol.ok and float(sol.x) < -1
    alone = pdbo.solve(problem, 1.5, 1.5, Implicit(), observe=lambda x, y: {"double": 2 * x})
    assert alone.history["double"][-1] == 2 * float(alone.x)


DEGREES = {
    "affine": (lambda z: 3 * z.sum() - z[0] / 4 + 1, 1),
    "square": (lambda z: jnp.mean(jnp.square(2 * z[::-1] - 1)), 2),
    "power": (lambda z: jnp.sum(z**3), 3),
    "bilinear": (lambda z: z[:2] @ jnp.ones((2, 2)) @ z[1:], 2),
    "constant functions": (lambda z: jnp.exp(jnp.arange(3.0)) @ z, 1),
    "concatenated": (lambda z: jnp.sum(jnp.concatenate([z, 1 - z]).reshape(2, 3)), 1),
    "chosen by a constant": (lambda z: jnp.sum(jnp.where(jnp.arange(3) > 1, z, z**2)), 2),
    "chosen by z": (lambda z: jnp.sum(jnp.where(z > 0, z, 2 * z)), UNKNOWN),
    "divided by z": (lambda z: 1 / z[0], UNKNOWN),
    "exponential": (lambda z: jnp.exp(z[0]), UNKNOWN),
    "inside jit": (jax.jit(lambda z: z @ z), 2),
    "a loop": (lambda z: jax.lax.fori_loop(0, 2, lambda _, v: v * z[0], z[0]), UNKNOWN),
}


@pytest.mark.parametrize("name", DEGREES)
def test_degrees_are_read_off_programs(name):
    function, expected = DEGREES[name]
    assert degree(jax.make_jaxpr(function)(jnp.ones(3)).jaxpr, [1.0]) == expected


def test_nothing_is_looked_for_beside_a_quadratic_problem():
    problem, x, y = quadratic(1, 10.0)
    sol = pdbo.solve(problem, np.zeros(2), np.ones(3))
    assert sol.ok and sol.certificate.radius == np.inf
    assert "nowhere is it lower" in sol.certificate.in_words
    assert sol.history["f_calls"][-1] < 20  # looking from elsewhere takes more than a hundred
    np.testing.assert_allclose(sol.x, x, rtol=1e-9, atol=1e-9)
    boxed = pdbo.Problem(quadratic_f, quadratic_g, problem.data, y_set=pdbo.Box(-50.0, 50.0))
    assert not Oracle(boxed, x, y).quadratic_g
    cubic = pdbo.Problem(lambda x, y: x**2, lambda x, y: y**3 - 3 * x * y)
    assert not Oracle(cubic, 1.0, 1.0).quadratic_g
    hyper = pdbo.Problem(lambda x, y: (y - 1) ** 4, lambda x, y: jnp.exp(x) * y**2 - y)
    assert Oracle(hyper, 1.0, 1.0).quadratic_g and not Oracle(hyper, 1.0, 1.0).quadratic


def saturated(x, y, data):
    """Penalties that level off at both ends: f curves down almost everywhere."""
    fit = data["A"] @ y - data["b"]
    return 0.5 * jnp.mean(fit**2) + 2 * jnp.sum(jax.nn.sigmoid(x) * y**2)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_a_bound_that_holds_x_is_an_answer(scale):
    """There f is linear, and nothing else says that x changes it."""
    problem = pdbo.Problem(
        lambda x, y: -(x + y), lambda x, y: (y - x) ** 2, x_set=pdbo.Box(0.0, 3.0 * scale)
    )
    sol = pdbo.solve(problem, scale, scale)
    assert sol.ok and sol.certificate.exact and sol.steps < 10  # without a search
    np.testing.assert_allclose((sol.x, sol.y), 3.0 * scale, rtol=1e-12)


def test_penalties_that_level_off_end_at_their_best_value():
    rng = np.random.default_rng(0)
    weights, best = np.where(np.arange(60) < 6, 1.0, 0.0), np.inf
    A, V = rng.normal(size=(2, 150, 60))
    b, c = (M @ weights + 2 * rng.normal(size=150) for M in (A, V))
    problem = pdbo.Problem(lambda x, y, d: 0.5 * jnp.mean((d["V"] @ y - d["c"]) ** 2), saturated,
                           {"A": A, "b": b, "V": V, "c": c})  # fmt: skip
    sol = pdbo.solve(problem, np.full(60, -2.0), np.zeros(60))

    def value(x):  # L-BFGS on the closed form is the independent answer
        part = 1 / (1 + np.exp(-np.clip(x, -30, 30)))
        H = A.T @ A / 150 + np.diag(4 * part)
        y = np.linalg.solve(H, A.T @ b / 150)
        left = V @ y - c
        v = np.linalg.solve(H, V.T @ left / 150)
        return 0.5 * np.mean(left**2), -4 * part * (1 - part) * y * v

    for start in (-2.0, 0.0, 2.0):
        found = scipy.optimize.minimize(value, np.full(60, start), jac=True, method="L-BFGS-B")
        best = min(best, found.fun)
    first = value(np.full(60, -2.0))[0]
    assert sol.f - best <= 0.01 * (first - best)
    assert sol.steps <= 80  # steps in units of the curvatures overshot to where f is level
    assert np.isclose(sol.f, value(np.asarray(sol.x))[0], rtol=1e-9)


def test_what_the_last_step_prepared_goes_with_its_problem_and_stays_in_its_thread():
    def prepared(seed):
        problem = quadratic(seed, 1.0)[0]
        path = _implicit.path_of(problem, np.zeros(2), np.ones(3))
        return problem, path

    problem, path = prepared(0)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.extend(prepared(1)))
    thread.start()
    thread.join()
    assert elsewhere[1] is not path
    assert _implicit.path_of(problem, np.zeros(2), np.ones(3)) is path
    gone = weakref.ref(path)
    del problem, path
    gc.collect()
    assert gone() is None and _implicit._LATEST.entry is None


def test_nothing_is_evaluated_twice_and_nothing_else_is_remembered():
    square = pdbo.Problem(lambda x, y: jnp.sum((y - 1) ** 2), lambda x, y: jnp.sum((y - x) ** 2))
    fourth = pdbo.Problem(lambda x, y: jnp.sum((y - 1) ** 4), lambda x, y: jnp.sum((y - x) ** 4))
    with jax.enable_x64(True):
        for problem, again in ((square, 0), (fourth, 2)):
            oracle = Oracle(problem, np.zeros(2), np.zeros(2))
            seen = {}
            for at in (0.0, 3.0, 3.0):
                seen[at] = oracle.values(np.zeros(2), np.full(2, at))
                curved = oracle.products(np.zeros(2), np.full(2, at), np.eye(2))[1]
            assert oracle.calls.values == 2 and oracle.calls.products == 2 + 2 * again
            assert seen[0.0].f == 2.0 and seen[3.0].f == (8.0 if problem is square else 32.0)
            diagonal = 2.0 if problem is square else 12 * 3.0**2
            np.testing.assert_allclose(curved, diagonal * np.eye(2))


@pytest.mark.parametrize("x0", [-0.5, 0.0, 0.5])
def test_a_lower_valley_of_g_is_followed(x0):
    """g has its lower minimum at y < 0 if x > 0; the run starts in the other valley."""
    problem = pdbo.Problem(lambda x, y: (x - 1) ** 2, lambda x, y: (y**2 - 1) ** 2 + 0.5 * x * y)
    sol = pdbo.solve(problem, x0, 1.0)
    assert sol.ok and sol.certificate.exact
    lowest = min(np.roots([4, 0, -4, 0.5]).real)  # of g's derivative at x = 1
    np.testing.assert_allclose([sol.x, sol.y], [1.0, lowest], atol=1e-8)
    alone = pdbo.solve(problem, x0, 1.0, pdbo.solvers.Implicit())
    assert not alone.ok and alone.note == "g is lower elsewhere: y is not the follower's answer."
    assert "no lower g was found" not in alone.certificate.in_words
