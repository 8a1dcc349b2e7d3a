"""The certificate against closed forms, finite differences and brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import _trees as trees
from pdbo._certificate import Certificate, ConstrainedCertificate, Pair, _least_squares

KNOWN = cases.known()
REST = ("inner_gap", "inner_residual", "multiplier", "slack")
ENTRIES = ("stationarity", "feasibility", "complementarity", "distance")


@pytest.mark.parametrize("case", KNOWN, ids=lambda c: c.name)
def test_optima_with_known_multipliers_pass(case):
    c = pdbo.certify(case.problem, case.x, case.y, case.multiplier, slack=case.slack)
    for name in ENTRIES:
        assert getattr(c, name) <= 1e-6, name
    assert c.inner_gap <= case.slack * (1 + 1e-9)
    assert c.slack == case.slack


@pytest.mark.parametrize("case", KNOWN, ids=lambda c: c.name)
def test_least_squares_multiplier_is_the_known_one(case):
    """Where a wrong one is given, which is replaced, and where none is."""
    given = None if case.name in ("coupled", "simplex") else 10 * case.multiplier + 1
    c = pdbo.certify(case.problem, case.x, case.y, given, slack=case.slack)
    assert c.eps <= 1e-6
    assert c.multiplier == pytest.approx(case.multiplier, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("case", KNOWN, ids=lambda c: c.name)
@pytest.mark.parametrize("moved", ["x", "y"])
def test_displaced_points_are_reported(case, moved):
    rng = np.random.default_rng(0)
    for _ in range(5):
        z = {"x": case.x, "y": case.y}
        leaves, tree = jax.tree.flatten(z[moved])
        steps = [rng.normal(size=np.shape(leaf)) for leaf in leaves]
        size = np.sqrt(sum(np.sum(s**2) for s in steps))
        z[moved] = tree.unflatten(
            [leaf + 1e-2 * s / size for leaf, s in zip(leaves, steps, strict=True)]
        )
        c = pdbo.certify(case.problem, z["x"], z["y"], case.multiplier, slack=case.slack)
        assert c.eps >= 1e-4


@pytest.mark.parametrize("name", ["distance", "box", "simplex", "ball", "pytree"])
def test_optima_rounded_to_float32_pass(name, x32):
    """Certified in double precision: a rounded point on a sphere still counts as on it."""
    # its own constants: JAX knows those of KNOWN in float64
    (case,) = (c for c in cases.known() if c.name == name)
    x, y = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (case.x, case.y))
    problem = case.problem.astype(jnp.float32)
    c = pdbo.certify(problem, x, y, case.multiplier, slack=case.slack)
    assert max(c.stationarity, c.feasibility, c.complementarity) <= 1e-5
    assert c.eps <= 1e-4  # rounding leaves h = 1e-9, which counts with its root
    assert c.eps.dtype == np.float64


def test_point_outside_its_set_is_reported_not_moved():
    case = next(c for c in KNOWN if c.name == "box")
    c = pdbo.certify(case.problem, case.x + 0.5, case.y, case.multiplier, slack=case.slack)
    assert c.feasibility >= 0.5


def test_stationarity_is_the_distance_to_the_normal_cone():
    """Against minimisation over the cone's generators for a corner of a box."""
    problem = pdbo.Problem(
        lambda x, y: 3 * x[0] - 2 * x[1] + 0.5 * x[2],
        lambda x, y: 0.5 * y**2,
        x_set=pdbo.Box(0.0, 1.0),
    )
    x = jnp.array([0.0, 0.0, 0.5])  # normal cone: -e0, -e1
    c = pdbo.certify(problem, x, 0.0, 0.0, slack=0.0)
    assert c.stationarity == pytest.approx(np.hypot(2.0, 0.5), rel=1e-12)


@pytest.mark.parametrize(
    "constraint", [pdbo.Free(), pdbo.Box(0.0, 1.0), pdbo.Simplex(1.0), pdbo.Ball(1.0)], ids=str
)
def test_least_squares_against_a_grid(constraint):
    rng = np.random.default_rng(1)
    problem = pdbo.Problem(lambda x, y: x[0], lambda x, y: y, x_set=constraint)
    pair = Pair(problem)

    grid = np.concatenate([np.linspace(0, 20, 4001), np.linspace(0, 1, 1001) ** 3])

    @jax.jit
    def fitted(near, v, w):
        z = constraint.project(near), jnp.array(0.0)
        m = _least_squares(pair, z, v, w)
        on_grid = jax.vmap(lambda s: pair.residual(z, trees.axpy(s, w, v)))
        values = on_grid(jnp.append(grid, m))  # the last is that of m
        return m, values[-1], values[:-1].min()

    for _ in range(20):
        near = np.round(rng.normal(size=4) * 3)
        v, w = ((rng.normal(size=4), rng.normal()) for _ in range(2))
        m, value, least = fitted(near, v, w)
        assert m >= 0
        assert value <= float(least) + 1e-6


def ridge():
    """Per-feature ridge: unique inner minimum, hyper-objective in closed form."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=6) * (rng.random(6) < 0.5)
    data = {}
    for part in ("train", "valid"):
        a = rng.normal(size=(30, 6))
        data[part] = (jnp.asarray(a), jnp.asarray(a @ w + 0.5 * rng.normal(size=30)))

    def loss(y, part):
        return 0.5 * jnp.mean((part[0] @ y - part[1]) ** 2)

    problem = pdbo.Problem(
        f=lambda x, y, d: loss(y, d["valid"]),
        g=lambda x, y, d: loss(y, d["train"]) + 0.5 * jnp.sum(jnp.exp(x) * y**2),
        data=data,
        x_set=pdbo.Box(-4.0, 4.0),
    )
    a, b = data["train"]

    def inner(x):
        return jnp.linalg.solve(a.T @ a / len(b) + jnp.diag(jnp.exp(x)), a.T @ b / len(b))

    return problem, inner, jax.jit(jax.grad(lambda x: loss(inner(x), data["valid"])))


def test_ranks_the_optimum_first_where_the_inner_minimum_is_unique():
    """At exact inner solutions grad h = 0; the certificate still measures the hypergradient."""
    problem, inner, hypergradient = ridge()
    x, seen = jnp.zeros(6), []

    @jax.jit
    def descend(x, steps):
        return jax.lax.fori_loop(
            0, steps, lambda _, v: jnp.clip(v - 5 * hypergradient(v), -4, 4), x
        )

    for steps in (0, 10, 100, 5000):
        x = descend(x, steps)
        true = float(problem.x_set.residual(x, hypergradient(x)))
        c = pdbo.certify(problem, x, inner(x))
        assert c.stationarity == pytest.approx(true, rel=2e-3, abs=2e-5)
        assert c.exact and c.slack == 0 and c.inner_gap <= 1e-14
        seen.append(c.eps)
    assert seen[3] <= 1e-4 and min(seen[:3]) >= 0.1


def test_ranks_the_optimum_first_on_the_toy():
    problem = cases.toy()
    best = pdbo.certify(problem, 1.0, jnp.ones(2)).eps
    stuck = pdbo.certify(problem, 0.746, jnp.array([0.746, 0.746])).eps  # where ITD stops
    unconstrained = pdbo.certify(problem, 2.0, jnp.array([1.0, 2.0])).eps  # f = 0, not feasible
    assert best <= 1e-6 < 0.1 < min(stuck, unconstrained)


def test_inner_gap_against_a_grid():
    problem = pdbo.Problem(
        lambda x, y: x + y,
        lambda x, y: (y - x) ** 2 + 0.3 * jnp.sin(x * y),
        y_set=pdbo.Box(-2.0, 2.0),
    )
    for x, y in [(0.3, 1.0), (1.5, -2.0), (-1.0, 0.2)]:
        v = np.append(np.linspace(-2, 2, 200_001), y)
        values = (v - x) ** 2 + 0.3 * np.sin(x * v)
        expected = values[-1] - values.min()
        assert pdbo.certify(problem, x, y).inner_gap == pytest.approx(expected, abs=1e-8)


def bowl(x, y, data):
    """A quadratic, zero at (p, q)."""
    a, p, b, q = data["f"]
    return a * (x - p) ** 2 + b * (y - q) ** 2


def wells(x, y, data):
    """Two wells in y, at -1 and 1, tilted by c + d x; a spring between x and y."""
    w, c, d, s = data["g"]
    return w * (y**2 - 1) ** 2 + (c + d * x) * y + s * (y - x) ** 2


def slope(x, y, data):
    a, b = data["f"]
    return a * x[0] + b * x[1] + y**2


def three(x, y, data):
    return 8 * (y * (y**2 - 1)) ** 2 + x[0] * y + x[1] * y**2


def planar(f, g):
    """Two functions of two numbers: one compiled program for all of them."""
    return pdbo.Problem(bowl, wells, {"f": np.array(f), "g": np.array(g)})


def tied(f):
    """Three wells, which tie at x = 0, and a linear f: one program again."""
    return pdbo.Problem(slope, three, {"f": np.array(f)})


def test_unbounded_inner_problem_is_never_certified():
    problem = planar([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0])  # x^2 and y
    assert not pdbo.certify(problem, 0.0, 0.0).eps <= 1e3


def test_works_under_jit_and_vmap():
    problem = cases.toy()
    xs, ys = jnp.array([1.0, 0.5]), jnp.array([[1.0, 1.0], [0.5, 0.5]])
    batch = jax.jit(jax.vmap(lambda x, y: pdbo.certify(problem, x, y).eps))(xs, ys)
    single = [pdbo.certify(problem, x, y).eps for x, y in zip(xs, ys, strict=True)]
    np.testing.assert_allclose(batch, single, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("multiplier", [-1.0, np.nan, np.array([1.0, 2.0])])
def test_bad_multiplier(multiplier):
    with pytest.raises(pdbo.ProblemError, match="multiplier must be one finite number >= 0"):
        pdbo.certify(cases.toy(), 1.0, jnp.ones(2), multiplier)


def test_prints_as_a_table():
    text = str(pdbo.certify(cases.toy(), 1.0, jnp.ones(2)))
    for name in (*ENTRIES, "inner_gap", "eps"):
        assert name in text


HONEST = {
    "inner maximum": (planar([1, 1.0, 1, 0], [1.0, 0, 0, 0]), 1.0, 0.0),
    "lower basin elsewhere": (planar([1, 0, 1, 0.96], [1, 0.3, 0, 0]), 0.0, 0.9602),
    "small g": (planar([1, 3.0, 1, 1], [0, 0, 0, 1e-7]), 3.0, 1.0),
    # two inner minima, -1 and 1, tie at x = 0 and 1 is the only one for x > 0, where f is lower
    "a kink towards lower f": (planar([1, 1.0, 1, 1], [1, 0, -0.5, 0]), 0.0, 1.0),
    # they tie at x = 1e-3 only: up to there f falls, and the other minimum is not one yet
    "a kink not reached": (planar([1, 1.0, 1, -1], [1, 5e-4, -0.5, 0]), 0.0, -1.0),
    "a kink and another multiplier than it takes": (tied([1, -0.5]), np.zeros(2), 0.0),
    "small f": (planar([1e-5, 3, 1e-5, 1], [0.0, 0, 0, 1]), 0.0, 0.0),
}


@pytest.mark.parametrize("name", HONEST)
def test_wrong_points_are_not_certified(name):
    """Points that are stationary, or nearly so, and wrong: eps says so."""
    problem, x, y = HONEST[name]
    assert pdbo.certify(problem, x, y).eps >= 1e-2


KINKS = {
    # S(x) is {-1} for x < 0 and {1} for x > 0: f would fall with x but for the jump of y
    "two minima": (planar([1, -1.0, 1, 1], [1, 0, -0.5, 0]), 0.0, 1.0),
    # minima -1, 0 and 1; y = 0 is the lowest where x[1] >= |x[0]|, and f is least there at x = 0
    "three minima": (tied([0.5, 1]), np.zeros(2), 0.0),
}


@pytest.mark.parametrize("name", KINKS)
def test_kinks_of_the_value_function_are_certified(name):
    """Solutions where the inner minimum is about to jump: each minimiser has a multiplier."""
    problem, x, y = KINKS[name]
    assert pdbo.certify(problem, x, y).eps <= 1e-4


@pytest.mark.parametrize(
    ("name", "which"), [("mb-3.14", 0), ("mb-3.16", 1), ("mb-3.20", 0), ("mb-3.21", 0)]
)
def test_optima_of_the_collection_where_basins_tie(name, which):
    entry = pdbo.problems.get(name)
    x, y = entry.solutions[which]
    assert pdbo.certify(entry.problem, x, y).eps <= 1e-3  # some are known to six digits only
    for dx, dy in ((-0.05, 0.0), (0.05, 0.0), (0.05, 0.05)):
        assert pdbo.certify(entry.problem, x + dx, y + dy).eps >= 1e-2


@pytest.mark.parametrize("gap", [0.0, 1e-4, -1e-5, 1e-6, -1e-7, 1e-8])
def test_a_point_beside_the_inner_solution_is_no_second_one(gap):
    problem = planar([1.0, 0, 0, 0], [0.0, 0, 0, 1])  # x^2 and (y - x)^2
    assert pdbo.certify(problem, 1.0, 1.0 + gap).eps >= 1e-2


def test_an_inner_solution_that_jumps_between_corners():
    """Beyond x = 2.5 everybody leaves the toll road; short of it there is more to be had."""
    entry = pdbo.problems.get("toll-5")
    ((x, y),) = entry.solutions
    for off in (0.0, 1e-8, -1e-8, 1e-7, -1e-7, 1e-3, -1e-3, -1e-4):
        eps = pdbo.certify(entry.problem, x + off, y).eps
        assert eps <= 1e-4 if abs(off) <= 1e-7 else eps >= 1e-3, off


def test_an_inner_problem_that_is_flat_at_the_solution():
    entry = pdbo.problems.get("mb-3.11")
    for x in (0.0, 1e-9, -1e-9):
        assert pdbo.certify(entry.problem, x, -0.8).eps <= 1e-4
        assert pdbo.certify(entry.problem, x, 0.3).eps >= 1e-2
        assert pdbo.certify(entry.problem, x + 0.1, -0.8).eps >= 1e-2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(slack=-1.0), "slack must be one finite number >= 0"),
        (dict(slack=np.nan), "slack must be one finite number >= 0"),
        (dict(max_slack="a"), "max_slack must be one finite number >= 0"),
        (dict(iterations=0), "iterations must be a whole number >= 1"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(pdbo.ProblemError, match=match):
        pdbo.certify(cases.toy(), 1.0, jnp.ones(2), **options)
    with pytest.raises(pdbo.ProblemError, match=r"problem must be a pdbo\.Problem"):
        pdbo.certify(None, 1.0, jnp.ones(2))


def test_what_a_certificate_says_in_words():
    at = dict.fromkeys(("complementarity", "distance", "inner_residual", "multiplier"), 0.0)
    at |= {"stationarity": 2.0, "feasibility": 3e-7, "inner_gap": 1e-9, "slack": 4e-8, "eps": 5e-6}
    first = "y is an inner minimiser to 1.0e-09"
    step = "the step left to a solution is 5.0e-06 of x and y"
    looked = "no lower g was found within 12 of it"
    everywhere = "g is quadratic in y: nowhere is it lower"
    saddle = {"radius": 12.0, "curvature": -0.5}
    for more, words in (
        ({}, f"{first}; {step}."),
        ({"radius": 12.0, "curvature": 0.5}, f"{first} ({looked}); {step}."),
        ({"radius": np.inf}, f"{first} ({everywhere}); {step}."),
        (saddle, f"{first} ({looked}); {step}; the point is a saddle or a maximum."),
    ):
        assert Certificate(**at, exact=True, **more).in_words == words
    relaxed = Certificate(**at).in_words
    assert relaxed.startswith(f"{first}, of which 4.0e-08 is granted; no first-order improvement")
    first = "With constraints: eps is 5.0e-06; constraints are met to 3.0e-07, and g at y is "
    first += "1.0e-09 above the lowest value found; no first-order improvement of f above 2.0e+00"
    ties, unstable = (
        "; 2 other inner minima tie with y",
        "; the inner set is degenerate, its lowest",
    )
    for more, words in (
        ({}, f"{first}."),
        ({"ties": 2.0}, f"{first}{ties}."),
        ({"ties": 2.0, "unstable": True}, f"{first}{ties}{unstable} value unstable."),
    ):
        assert ConstrainedCertificate(**at, **more).in_words == words


def test_a_batch_of_certificates_and_one_under_jit_print():
    def made(eps):
        return Certificate(**dict.fromkeys(ENTRIES, eps), **dict.fromkeys(REST, eps), eps=eps)

    def row(certificate):
        return str(certificate).splitlines()[len(ENTRIES) + len(REST)]

    told = []
    jax.jit(lambda eps: told.append((row(made(eps)), str(eps))))(1.0)
    assert told[0][0] == f"eps             {told[0][1]}"
    assert row(made(np.array([1.0, 0.5]))) == "eps             [1.  0.5]"
    assert row(made(0.5)).split() == ["eps", "5.000e-01"]
