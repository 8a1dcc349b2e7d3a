"""Every kind of bad input gets one clear sentence that names the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo
from pdbo._checks import check_point

F = lambda x, y: jnp.sum(x**2) + jnp.sum(y**2)
G = lambda x, y: 0.5 * jnp.sum((y - jnp.sum(x)) ** 2)
SOLVER = pdbo.PDBO()


def run(f=F, g=G, x0=1.0, y0=(1.0, 2.0), data=None, throw=True, **sets):
    problem = pdbo.Problem(f, g, data, **sets)
    y0 = jnp.array(y0) if isinstance(y0, tuple) else y0
    return pdbo.solve(problem, x0, y0, SOLVER, steps=3, throw=throw)


BAD = {
    "wrong shapes in g": (
        dict(g=lambda x, y: jnp.sum((y - jnp.ones(3)) ** 2)),
        r"g cannot be evaluated at \(x0, y0\), check the shapes of x0, y0 and data",
    ),
    "wrong shapes in f": (
        dict(f=lambda x, y: jnp.ones((2, 3)) @ y),
        r"f cannot be evaluated at \(x0, y0\)",
    ),
    "set of another shape": (
        dict(y_set=pdbo.Box(jnp.zeros(3), jnp.ones(3))),
        r"y_set: Box lo has shape \(3,\)",
    ),
    "vector f": (dict(f=lambda x, y: x + y), r"f must return a scalar, got shape \(2,\)"),
    "tuple g": (dict(g=lambda x, y: (x, 1.0)), r"g must return a scalar, got tuple"),
    "no entries": (dict(x0=np.zeros(0)), "x0 has no entries"),
    "boolean leaf": (
        dict(y0={"a": np.ones(3, bool)}, g=lambda x, y: x),
        r"y0\['a'\] has dtype bool",
    ),
    "complex": (dict(x0=jnp.array(1j)), "x0 has dtype complex"),
    "boolean": (dict(x0=True), "x0 must be a number or an array, got bool"),
    "mixed dtypes": (
        dict(x0=jnp.array(1.0, jnp.float32), y0=jnp.ones(2, jnp.float64)),
        "x and y must share one dtype, but x0 is float32 and y0 is float64",
    ),
    "data of another dtype": (
        dict(
            f=lambda x, y, d: jnp.sum(d**2),
            g=lambda x, y, d: jnp.sum(y**2),
            data=jnp.ones(2, jnp.float64),
            x0=jnp.array(1.0, jnp.float32),
            y0=jnp.ones(2, jnp.float32),
        ),
        "f returns float64 for float32 x and y: data or constants in it have another dtype",
    ),
    "nan f": (dict(f=lambda x, y: jnp.log(-x) + jnp.sum(y)), r"f is nan at the point \(x0, y0\)"),
    "inf g": (dict(g=lambda x, y: jnp.sum(y) / 0.0), r"g is inf at the point \(x0, y0\)"),
    "nothing": (dict(x0=()), "x0 has no entries"),
    "text": (dict(x0="2"), "x0 must be a number or an array, got str"),
}


def test_whole_numbers_are_fine_as_scalars_and_as_arrays():
    problem = pdbo.Problem(lambda x, y: jnp.sum(x * y), lambda x, y: jnp.sum((y - x) ** 2))
    x, y = check_point(problem, np.arange(2), jnp.ones(2, jnp.float32))
    assert x.dtype == y.dtype == jnp.float32
    x, y = check_point(problem, np.arange(2), 1)
    assert x.dtype == y.dtype == jnp.float64


@pytest.mark.parametrize("name", BAD)
def test_bad_start(name):
    changes, match = BAD[name]
    with pytest.raises(pdbo.ProblemError, match=match) as error:
        run(**changes)
    assert "\n" not in str(error.value)
    assert error.value.solution.result is pdbo.RESULTS.bad_problem  # nothing is lost
    returned = run(**changes, throw=False)
    assert returned.result is pdbo.RESULTS.bad_problem and not returned.ok
    assert returned.message == str(error.value)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: pdbo.Problem(3, G), "f must be a function, got int"),
        (lambda: pdbo.Problem(lambda x: x, G), r"f has the wrong number of arguments: no data"),
        (lambda: pdbo.Problem(F, lambda x, y, d: x), r"it is called as g\(x, y\)"),
        (lambda: pdbo.Problem(F, G, jnp.ones(3)), r"data is given, so it is called as f\(x, y, d"),
        (lambda: pdbo.Problem(F, G, x_set=[0, 1]), "x_set must be a set such as"),
        (lambda: pdbo.Problem(F, G, y_set=pdbo.NonNegative), "did you forget the parentheses"),
        (lambda: pdbo.Problem(F, G, y_set=pdbo.Box(1.0, 0.0)), "lo"),
    ],
)
def test_bad_problem(build, match):
    with pytest.raises(pdbo.ProblemError, match=match) as error:
        build()
    assert "\n" not in str(error.value)


def test_start_outside_its_set_is_projected_and_said():
    message = r"x0 lies outside x_set \(distance 2\)"
    with pytest.warns(pdbo.StartProjected, match=message) as said:
        sol = run(x0=3.0, x_set=pdbo.Box(0.0, 1.0))
    assert 0 <= sol.x <= 1
    assert {w.filename for w in said} == {__file__}


def test_python_numbers_take_the_dtype_of_the_arrays():
    sol = run(x0=2, y0=jnp.ones(2, jnp.float32), f=lambda x, y: x**2 + jnp.sum(y))
    assert sol.x.dtype == jnp.float32


def test_numpy_float64_is_float32_by_default(x32):
    problem = pdbo.Problem(F, G)
    sol = pdbo.solve(problem, np.float64(1.0), np.ones(2), SOLVER, steps=3)
    assert sol.x.dtype == jnp.float32
    assert sol.certificate.eps.dtype == np.float64  # recomputed in double precision


def test_pytrees_everywhere():
    problem = pdbo.Problem(
        lambda x, y, d: jnp.sum((x["w"] - d[0]) ** 2) + jnp.sum((y[0] - 1) ** 2) + x["b"] ** 2,
        lambda x, y, d: 0.5 * jnp.sum((y[0] - x["w"]) ** 2) + y[1]["c"] ** 2,
        data=(jnp.ones(3), {"unused": jnp.arange(4)}),
        y_set=pdbo.Product((pdbo.Box(-2.0, 2.0), pdbo.NonNegative())),
    )
    x0 = {"w": jnp.zeros(3), "b": 1.0}
    y0 = (jnp.zeros(3), {"c": jnp.array(1.0)})
    sol = pdbo.solve(problem, x0, y0, pdbo.PDBO(0.1, 0.1), steps=2000)
    np.testing.assert_allclose(sol.x["w"], 1.0, atol=1e-3)
    np.testing.assert_allclose(sol.y[0], 1.0, atol=1e-3)
    assert sol.y[1]["c"] == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (dict(steps=0), "steps must be a whole number >= 1"),
        (dict(steps=2.5), "steps must be a whole number >= 1"),
        (dict(every=-1), "every must be a whole number >= 1"),
        (dict(tol=-1.0), "tol must be a number >= 0"),
        (dict(tol=np.nan), "tol must be a number >= 0"),
        (dict(solver=pdbo.PDBO), "solver must be a pdbo solver, got .* forget the parentheses"),
        (dict(x0=None), "x0 and y0 are needed"),
        (dict(state=3, x0=None, y0=None), "state must be a solution.state"),
    ],
)
def test_bad_call(changes, match):
    call = dict(x0=1.0, y0=jnp.ones(2), solver=SOLVER) | changes
    with pytest.raises(pdbo.ProblemError, match=match):
        pdbo.solve(pdbo.Problem(F, G), **call)


def test_start_and_state_exclude_each_other():
    problem = pdbo.Problem(F, G)
    sol = pdbo.solve(problem, 1.0, jnp.ones(2), SOLVER, steps=3)
    with pytest.raises(pdbo.ProblemError, match="either a start"):
        pdbo.solve(problem, 1.0, jnp.ones(2), state=sol.state)
    with pytest.raises(pdbo.ProblemError, match="the state belongs to PDBO, not to ProximalPDBO"):
        pdbo.solve(problem, state=sol.state, solver=pdbo.ProximalPDBO())


def test_callable_modules_and_partials_are_functions():
    import functools

    problem = pdbo.Problem(functools.partial(lambda s, x, y: s * F(x, y), 2.0), jax.jit(G))
    assert pdbo.solve(problem, 1.0, jnp.ones(2), SOLVER, steps=3).f > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_index_past_the_end_is_refused(dtype):
    """JAX returns the last entry, and another problem would be solved."""
    start = np.zeros(3, dtype)
    problem = pdbo.Problem(lambda x, y: (y[5] - 1) ** 2, lambda x, y: jnp.sum((y - x) ** 2))
    with pytest.raises(pdbo.ProblemError, match=r"f reads past the end of x or y.*index 5"):
        pdbo.solve(problem, start, start)
    fine = pdbo.Problem(
        lambda x, y: (y[-1] - 1) ** 2 + jnp.sum(x[1:7] ** 2), lambda x, y: jnp.sum((y - x) ** 2)
    )
    assert pdbo.solve(fine, start, start).ok
