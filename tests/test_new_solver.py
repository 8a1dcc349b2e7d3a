"""A solver is one file and one line: in a copy of the package, all else follows from these two."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("benchmarks", "docs", "src", "tests")

FILE = '''
"""Gap descent: gradient descent on f and a multiple of the inner gap."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from .._solver import Calls, Point, Solver


class GapDescentState(eqx.Module):
    """Iterate and inner estimate."""

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    y_hat: PyTree


class GapDescent(Solver):
    """Gradient steps on f(x, y) + c (g(x, y) - g(x, y_hat)), y_hat by gradient steps on g."""

    label = "Gap-D"
    family = "first-order"
    citation = "nobody, a method for the tests, 2024"

    weight: Array = eqx.field(converter=number, default=2e3)
    primal_step: Array = eqx.field(converter=number, default=4e-4)
    inner_step: Array = eqx.field(converter=number, default=0.5)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> GapDescentState:
        """The state before the first step."""
        return GapDescentState(jnp.zeros((), jnp.int32), x, y, y)

    def step(self, problem: Problem, state: GapDescentState) -> GapDescentState:
        """One iteration."""
        x, y = state.x, state.y
        weight, step = trees.astype((self.weight, self.primal_step), trees.dtype(x))
        slope = jax.grad(problem.inner, 1)(x, state.y_hat)
        y_hat = problem.y_set.project(trees.axpy(-self.inner_step, slope, state.y_hat))
        g_x, g_y = jax.grad(problem.inner, (0, 1))(x, y)
        g_x = trees.sub(g_x, jax.grad(problem.inner, 0)(x, y_hat))
        gradient = trees.axpy(weight, (g_x, g_y), jax.grad(problem.outer, (0, 1))(x, y))
        x, y = trees.axpy(-step, gradient, (x, y))
        x, y = problem.x_set.project(x), problem.y_set.project(y)
        return GapDescentState(state.t + 1, x, y, y_hat)

    def output(self, state: GapDescentState) -> Point:
        """The last iterate."""
        return Point(state.x, state.y)

    def calls(self, state: GapDescentState) -> Calls:
        """One gradient of f and three of g per iteration."""
        return Calls(state.t, 3 * state.t, 0 * state.t)
'''
LINE = "from ._gap import GapDescent as GapDescent\n"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package with the file and the line, and the pages that are generated from it."""
    for module in ("matplotlib", "sklearn", "typer"):
        pytest.importorskip(module)
    root = tmp_path_factory.mktemp("copy")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for file in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / file, root)
    solvers = root / "src" / "pdbo" / "solvers"
    (solvers / "_gap.py").write_text(FILE.lstrip())
    text = (solvers / "__init__.py").read_text()
    end = list(re.finditer(r"^from \..* import .*\n", text, re.M))[-1].end()
    (solvers / "__init__.py").write_text(text[:end] + LINE + text[end:])
    run(root, "-m", "benchmarks.readme", "tables")
    return root


def run(root, *arguments):
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_obeys_the_laws_and_breaks_no_test_of_the_others(copy):
    """The contract suite on it, and the tests that go over all solvers."""
    files = ("contract", "failures", "cleaning", "page", "docs", "package")
    chosen = (
        "GapDescent or methods_are or one_colour or reference_entry or tables_are or contents"
        " or every_public_solver"
    )
    paths = [f"tests/test_{file}.py" for file in files]
    out = run(copy, "-m", "pytest", "-p", "no:cacheprovider", "-vv", *paths, "-k", chosen)
    passed = set(re.findall(r"^\S+::(\w+)\[\S*GapDescent\S* PASSED", out, re.M))
    text = (ROOT / "tests" / "test_contract.py").read_text()
    laws = set(re.findall(r"^def (test_\w+)\(kind\b", text, re.M))
    assert len(laws) > 12
    assert passed == laws | {"test_no_solver_takes_a_negative_number"}


def test_everything_else_knows_it(copy):
    """Comparison, command line, scoreboard, reliability, styles and the tables of the docs."""
    code = """
import json, sys
from pdbo.experiments import problems
from pdbo.app.report._style import styles
looks = styles(["Gap-D", "GapDescent", "GapDescent from a", "PDBO", "bound"])
assert "jax" not in sys.modules
import pdbo
from benchmarks import reliability
toy = pdbo.problems.get("toy")
both = [pdbo.solvers.GapDescent(), pdbo.PDBO()]
table = pdbo.compare(toy.problem, *toy.start, both, budget=20, every=10).final()
print(json.dumps({
    "compared": list(table["solver"]),
    "finite": all(abs(float(f)) < 1e3 for f in table["f"]),
    "rivals": list(problems.RIVALS),
    "reliability": list(reliability.SOLVERS),
    "slots": {label: style.slot for label, style in looks.items()},
}))
"""
    found = json.loads(run(copy, "-c", code))
    assert found["compared"] == ["GapDescent", "PDBO"] and found["finite"]
    assert "GapDescent" in found["rivals"] and "GapDescent" in found["reliability"]
    slots = found["slots"]
    assert slots["Gap-D"] == slots["GapDescent"] == slots["GapDescent from a"] != slots["bound"]
    assert "GapDescent" in run(copy, "-m", "pdbo", "list")
    row = "| Gap-D | `GapDescent` | first-order | no | yes | nobody, a method for the tests, 2024 |"
    assert row in (copy / "docs" / "choosing.md").read_text()
    assert "::: pdbo.solvers.GapDescent\n" in (copy / "docs/reference/solvers.md").read_text()
