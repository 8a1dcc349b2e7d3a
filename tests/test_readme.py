"""Everything the README shows is run: its code, its output, its table, its example."""

import contextlib
import io
import pathlib
import re
import subprocess
import sys

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def test_the_examples_print_what_is_shown(tmp_path, monkeypatch):
    """The blocks that show an output, one after the other."""
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n([^`]*)```\n+```text\n([^`]*)```", README)
    assert len(blocks) >= 2
    for code, shown in blocks:
        out = io.StringIO()
        promote = jax.numpy_dtype_promotion("standard")
        with jax.enable_x64(False), promote, contextlib.redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), names)
        printed = out.getvalue()
        assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
        for a, b in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
            assert float(a) == pytest.approx(float(b), rel=0.05, abs=1e-3)


def test_the_table_of_speeds_is_what_the_records_say():
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.readme import fill
    finally:
        sys.path.pop(0)
    assert fill(README) == README


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path, tmp_path):
    pytest.importorskip("matplotlib")
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(path.read_text().splitlines()) < 60


def test_the_toy_example_shows_who_stops(tmp_path):
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "toy.py"], cwd=tmp_path, capture_output=True, text=True
    )
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()[1:]}
    assert abs(float(rows["PDBO"][0]) - 1) <= 1e-3
    for name in ("AID-FP (implicit)", "ITD-R (unrolled)"):
        assert float(rows[name][0]) == pytest.approx(0.746, abs=1e-3)
    assert (tmp_path / "toy.png").stat().st_size > 10_000


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
