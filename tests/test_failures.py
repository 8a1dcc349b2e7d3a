"""Failures: each its own code, the iteration and the place named, the last finite point kept."""

import dataclasses
import math
import pathlib
import pickle
import random
import re
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import cases
import pdbo
from pdbo import RESULTS

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from benchmarks import reliability

sys.path.pop(0)

SOLVERS = list(pdbo.solvers.SOLVERS.values())


def test_a_failure_passes_between_processes():
    """A pool of processes pickles what is raised, and breaks if that cannot be built again."""
    again = pickle.loads(pickle.dumps(pdbo.SolveError("why", {"x": 1.0})))
    assert str(again) == "why" and again.solution == {"x": 1.0}


def test_values_that_are_not_finite():
    """A sample of what benchmarks/reliability.py does for every solver and iteration."""
    found = reliability.nonfinite(iterations=(1, 17), solvers=["PDBO"])
    assert all(found[f"nonfinite: {place}"] == 6 for place in reliability.PLACES)


@pytest.mark.parametrize(
    ("place", "named"),
    [("f", "f"), ("g", "g"), ("gradient of f", "the gradient of f"),
     ("gradient of g", "the gradient of g"), ("projection", "the solver's state")],
)  # fmt: skip
def test_the_place_is_named(place, named):
    first, clock = reliability._clock("PDBO")
    problem = reliability.clocked(place, (0.5 * (clock[8] + clock[9]), np.inf))
    with pytest.raises(pdbo.SolveError) as error:
        pdbo.solve(problem, state=first, steps=60, every=60, tol=1e9)
    assert str(error.value).startswith(f"Failed at iteration 9: {named} is not finite. A value")
    assert error.value.solution.steps == 8


def test_a_gradient_that_is_not_finite_at_the_start():
    problem = pdbo.Problem(lambda x, y: jnp.sqrt(x) + y**2, lambda x, y: (y - x) ** 2)
    sol = pdbo.solve(problem, 0.0, 0.0, pdbo.PDBO(), throw=False)
    assert sol.result is RESULTS.nonfinite and sol.steps == 0 and not sol.ok
    assert sol.x == 0 and "Failed at iteration 1" in sol.message


def f(x, y, d):
    return d["line"] * x + d["square"] * x**2 + d["fourth"] * x**4 + d["far"] * (x - 1e4) ** 2


def g(x, y, d):
    return 0.5 * d["inner"] * (y - x) ** 2 + d["slope"] * y


ZERO = dict(line=0.0, square=0.0, fourth=0.0, far=0.0, inner=1.0, slope=0.0)


@pytest.mark.parametrize(
    ("numbers", "code", "match"),
    [
        (dict(line=1.0), RESULTS.diverged, "f falls without end"),
        (dict(square=-1.0), RESULTS.diverged, "f falls without end"),
        (dict(fourth=-1.0), RESULTS.diverged, "f falls without end"),
        (dict(square=0.5, inner=0.0, slope=1.0), RESULTS.diverged, "g.x, .. has no minimum"),
        (dict(square=0.5, inner=-1.0), RESULTS.diverged, "ran away"),
        (dict(far=1e-4), RESULTS.max_steps, "budget"),
        (dict(square=0.5), RESULTS.success, "within the tolerance"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, dict) else "",
)
def test_problems_without_a_minimum(numbers, code, match):
    problem = pdbo.Problem(f, g, ZERO | numbers)
    sol = pdbo.solve(problem, 1.0, 1.0, pdbo.PDBO(), throw=False)
    assert sol.result is code, sol.message
    assert np.isfinite(sol.x) and np.isfinite(sol.y)
    assert re.search(match, sol.message)


def test_an_empty_set_that_only_the_compiled_program_knows():
    def code(low):
        problem = pdbo.Problem(
            lambda x, y: x**2, lambda x, y: (y - x) ** 2, x_set=pdbo.Box(low, 1.0)
        )
        return pdbo.solve(problem, jnp.ones(()), jnp.ones(()), pdbo.PDBO(), steps=5).code

    codes = jax.jit(jax.vmap(code))(jnp.array([0.0, 1.0, 2.0]))
    assert [int(c) for c in codes] == [RESULTS.max_steps, RESULTS.success, RESULTS.bad_problem]


def test_oracle_calls_beyond_32_bits():
    solver = cases.paper_pdbo()
    sol = pdbo.solve(cases.toy(), 2.0, jnp.ones(2), solver, steps=4, every=2, tol=0)
    many = 2_000_000_000
    state = eqx.tree_at(lambda s: s.solver_state.t, sol.state, jnp.asarray(many, jnp.int32))
    rows = pdbo.solve(cases.toy(), state=state, steps=6, every=2, tol=0).history
    assert rows["f_calls"].tolist() == [many + 2, many + 4, many + 6]
    assert rows["g_calls"].tolist() == [7 * (many + 2), 7 * (many + 4), 7 * (many + 6)]


@pytest.mark.parametrize("kind", SOLVERS, ids=lambda kind: kind.__name__)
def test_no_solver_takes_a_negative_number(kind):
    names = [field.name for field in dataclasses.fields(kind) if field.type is Array]
    assert names or not jax.tree.leaves(kind())
    for name in names:
        for value in (-0.5, float("nan")):
            with pytest.raises(pdbo.ProblemError, match=f"{name} must be a number >= 0, got"):
                kind(**{name: value})
        assert kind(**{name: 0.0})


def _branch(x, y):
    return jnp.sum(y) if y[0] > 0 else x


def _in_place(x, y):
    y[0] = x
    return jnp.sum(y)


def _buffer(x, y):
    z = np.zeros(2)
    z[0] = y[0]
    return jnp.sum(y) + z[0]


@pytest.mark.parametrize(
    ("f", "match"),
    [
        (lambda x, y: np.sin(y).sum(), r"use jax\.numpy \(jnp\.sin"),
        (lambda x, y: math.exp(x) + jnp.sum(y), "in place of math, float or int"),
        (_branch, r"use jnp\.where\(condition, a, b\)"),
        (_in_place, r"use y = y\.at\[i\]\.set\(value\)"),
        (_buffer, r"use z = jnp\.zeros\(n\) and z = z\.at\[i\]\.set\(value\)"),
        (lambda x, y: jnp.sum(y[y > x]), r"use jnp\.where\(mask, y, 0\.0\) in place of y\[mask\]"),
        (lambda x, y: jnp.sum(y) * np.random.normal(), "f draws random numbers"),  # noqa: NPY002
        (lambda x, y: jnp.sum(y) * random.random(), "f draws .*in data="),
        (lambda x, y: jnp.dot(y, jnp.ones(3)), "check the shapes"),
        (lambda x, y: jnp.sum(y) / 0 * (1 // 0), r"at \(x0, y0\): ZeroDivisionError"),
    ],
    ids=[
        *("numpy", "math", "branch", "in place", "buffer", "mask", "draw", "random", "shapes"),
        "own fault",
    ],
)
def test_functions_that_cannot_be_traced_get_a_hint(f, match):
    problem = pdbo.Problem(f, lambda x, y: jnp.sum((y - x) ** 2))
    for _ in range(2):
        with pytest.raises(pdbo.ProblemError, match=match):
            pdbo.solve(problem, 1.0, np.zeros(2))


@pytest.mark.parametrize("name", ["x0", "y0"])
def test_a_start_that_is_a_list_of_numbers_gets_a_hint(name):
    problem = pdbo.Problem(lambda x, y: jnp.sum(x - y), lambda x, y: jnp.sum((y - x) ** 2))
    start = {"x0": jnp.ones(2), "y0": jnp.ones(2)} | {name: [1.0, 2.0]}
    with pytest.raises(pdbo.ProblemError, match=rf"use {name}=jnp\.array\(\[...\]\) in place of"):
        pdbo.solve(problem, **start)
    listed = pdbo.Problem(lambda x, y: (x[0] - 1) ** 2 + y**2, lambda x, y: (y - x[1]) ** 2)
    sol = pdbo.solve(listed, [0.0, 3.0], 0.0, pdbo.PDBO(), steps=1)  # f may take a list
    assert isinstance(sol.x, list)


def test_derivatives_of_solve_are_refused():
    def value(a):
        problem = pdbo.Problem(
            lambda x, y, d: jnp.sum((y - d) ** 2), lambda x, y, d: (y - x) ** 2, data=a
        )
        return pdbo.solve(problem, 1.0, 0.0, pdbo.PDBO(), steps=2).f

    with pytest.raises(pdbo.ProblemError, match="solve cannot be differentiated"):
        jax.grad(value)(1.0)
    assert np.isfinite(jax.jit(jax.vmap(value))(jnp.ones(2))).all()

    def closed_over(a):
        return pdbo.solve(
            pdbo.Problem(lambda x, y: (y - a) ** 2, lambda x, y: (y - x) ** 2), 1.0, 0.0
        ).f

    with pytest.raises(pdbo.ProblemError, match=r"pass it in data=.*pdbo.inner_solution"):
        jax.grad(closed_over)(1.0)


def test_an_uncertified_run_names_the_entry_with_the_longest_step():
    """f falls for ever along x['b'][0, 1], ever less; everything else has a minimum."""
    f = lambda x, y: jnp.sum((y - 1) ** 2) + 1 / (1 + x["b"][0, 1] ** 2)
    g = lambda x, y: 0.5 * jnp.sum((y - x["a"]) ** 2)
    start = {"a": np.zeros(60), "b": np.ones((1, 2))}
    sol = pdbo.solve(pdbo.Problem(f, g), start, np.zeros(60), throw=False)
    assert not sol.ok
    assert sol.note == "The longest step left is that of x['b'][0, 1]."


def test_an_error_names_the_line_of_the_user():
    def helper(y):
        return jnp.sum(y) + undefined  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    line = helper.__code__.co_firstlineno + 1
    problem = pdbo.Problem(lambda x, y: helper(y), lambda x, y: jnp.sum((y - x) ** 2))
    with pytest.raises(pdbo.ProblemError, match=rf"defined \(test_failures.py, line {line}\)\.$"):
        pdbo.solve(problem, 1.0, np.ones(3))
    constant = pdbo.Problem(lambda x, y: 5.0, lambda x, y: jnp.sum((y - x) ** 2))
    with pytest.raises(pdbo.ProblemError, match=r"f is the constant 5\.0"):
        pdbo.solve(constant, 1.0, np.ones(3))
