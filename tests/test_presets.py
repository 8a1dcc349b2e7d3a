"""The tuned settings by name: those of the tables, ready for `solve`."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import presets
from pdbo.experiments import _paper, cleaning, digits, newsgroups


def test_every_row_of_the_tables_has_one():
    rows = {f"cleaning-{m}/{name}" for m in cleaning.MODELS for name in cleaning.METHODS}
    rows |= {f"digits/{name}" for name in digits.METHODS}
    rows |= {f"newsgroups/{name}" for name in newsgroups.METHODS}
    rows |= {f"paper/{name}" for name in _paper.methods()}
    assert set(presets.names()) == rows


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_is_a_solver_with_these_settings(name):
    found = presets.get(name)
    assert isinstance(found.solver, pdbo.solvers.Solver) and len(found.about) > 20
    inside = getattr(found.solver, "inner", None)  # of Proximal-PDBO
    homes = [found.solver, inside, *(getattr(s, "schedule", None) for s in (found.solver, inside))]
    for key, value in found.settings.items():
        spellings = (key, {"primal_step": "primal", "dual_step": "dual"}.get(key, key))
        held = next(getattr(home, k) for home in homes for k in spellings if hasattr(home, k))
        assert held == value if isinstance(value, str) else np.isclose(float(held), value)
    assert all(unit > 0 for unit in found.units.values())


def test_one_runs():
    solver, start = presets.get("paper/PDBO").solver, (jnp.array(2.0), jnp.array([0.5, 0.5]))
    point = solver.output(cases.iterate(cases.toy(), solver, *start, 500))
    assert float(point.x) == pytest.approx(1.0, abs=1e-2)


def test_an_unknown_name_is_one_sentence():
    for name in ("cleaning-linear/PDBOO", "PDBO", "nothing/PDBO", ""):
        with pytest.raises(pdbo.ProblemError, match=r"there is no preset .*names\(\) lists them"):
            presets.get(name)


def test_names_need_no_jax():
    code = "import sys, pdbo; pdbo.presets.names(); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
