"""What a newcomer meets first: import, names, version, metadata."""

import importlib
import importlib.metadata
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import pdbo

ROOT = pathlib.Path(__file__).parents[1]


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_import_starts_no_backend_and_no_extras():
    code = (
        "import sys, pdbo\n"
        "assert 'jax' not in sys.modules\n"
        "pdbo.solve, pdbo.PDBO, pdbo.Box\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "names = {'matplotlib', 'sklearn', 'torch', 'optax', 'typer', 'rich', 'pandas'}\n"
        "heavy = names & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    python(code)


def test_names_are_the_table_of_contents():
    """The names for type checkers, loaded lazily at run time, are one list."""
    text = pathlib.Path(pdbo.__file__).read_text()
    listed = re.findall(r"^    from \.\w+ import (\w+) as \1$", text, re.M)
    assert sorted(listed) == sorted(pdbo._HOMES)
    assert set(pdbo.__all__) < set(listed) and len(pdbo.__all__) <= 25
    for name in listed:
        assert getattr(pdbo, name).__name__ == name
    assert re.findall(r"^    from \. import (\w+) as \1$", text, re.M) == list(pdbo._SUBMODULES)
    assert dir(pdbo) == sorted(["__version__", *pdbo.__all__, *pdbo._SUBMODULES])
    with pytest.raises(AttributeError, match="no attribute 'Sovler'"):
        _ = pdbo.Sovler


def test_names_of_a_submodule_are_the_same_ones_at_the_top():
    """All that used to be there still answers, and nothing is public in one place only by luck."""
    for module, names in pdbo._ELSEWHERE.items():
        home = importlib.import_module(f"pdbo.{module}")
        for name in names.split():
            assert getattr(home, name) is getattr(pdbo, name)
    for module in ("data", "errors", "hosts", "results", "schedules", "sets"):
        home = importlib.import_module(f"pdbo.{module}")
        listed = getattr(home, "__all__", None) or [n for n in vars(home) if not n.startswith("_")]
        assert all(getattr(pdbo, name) is getattr(home, name) for name in listed)


def test_import_brings_the_dependencies_and_little_else():
    """Named and counted, with what jax, equinox, jaxtyping and numpy import themselves."""

    def modules(code):
        return set(python(f"import sys\n{code}\nprint(*sys.modules)").stdout.split())

    light, ours, theirs = map(
        modules, ("import pdbo", "import pdbo; pdbo.solve", "import jax, equinox, jaxtyping, numpy")
    )
    assert {name for name in light if name.startswith("pdbo")} == {"pdbo"}
    assert not light & {"jax", "equinox", "jaxtyping", "numpy"}
    more = ours - theirs
    own = {name for name in more if name.partition(".")[0] == "pdbo"}
    assert {name.partition(".")[0] for name in more - own} <= {"jax", *sys.stdlib_module_names}
    assert len(own) < 90 and len(more - own) < 40
    aside = {"app", "experiments", "linear", "orbax", "problems", "sklearn", "torch"}
    assert not {name.split(".")[1] for name in own - {"pdbo"}} & aside


def test_version_is_said_once():
    assert importlib.metadata.version("pdbo") == pdbo.__version__
    assert f"version: {pdbo.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_is_typed_and_documented():
    assert (pathlib.Path(pdbo.__file__).parent / "py.typed").exists()
    for name in (*pdbo._HOMES, *pdbo._SUBMODULES):
        if name != "torch" or importlib.util.find_spec("torch"):
            assert getattr(pdbo, name).__doc__, name


def test_ci_runs_the_command_of_the_readme():
    commands = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    tests = [c for c in commands if "pytest" in c]
    assert len(tests) == 1
    assert "README.md" in (ROOT / ".ci" / "run").read_text()
