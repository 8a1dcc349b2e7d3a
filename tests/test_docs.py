"""README, pages and examples: what they show is run, links lead somewhere, names are covered."""

import importlib.util
import inspect
import json
import pathlib
import re
import runpy
import subprocess
import sys

import jax
import pytest

import pdbo

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUN = runpy.run_path(str(DOCS / "run.py"))
NOTEBOOKS = runpy.run_path(str(DOCS / "notebooks.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def same(printed, shown):
    """The same words, and numbers as another machine may have them."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    for a, b in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert float(a) == pytest.approx(float(b), rel=0.05, abs=1e-3), (printed, shown)


@pytest.fixture
def session():
    """A session as a user's starts."""
    before = {name: getattr(jax.config, name) for name in RUN["SESSION"]}
    for name, value in RUN["SESSION"].items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("page", RUN["pages"](), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages_print_what_they_show(page):
    if "import torch" in page.read_text():
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'pdbo[torch]'")
    notes = importlib.util.find_spec("higher") is not None  # folded notes have the same in higher
    for match, printed in RUN["outputs"](page, notes):
        assert printed or match["shown"] is None
        same(printed, match["shown"] or "")


def test_no_block_is_overlooked():
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        text = page.read_text()
        fences = re.findall(r"^\s*```+(.*)$", text, re.M)[::2]
        assert set(fences) <= {"python", "text", "sh", "yaml"} | set(re.findall(r" \{\.py.*", text))
        assert len(re.findall(r"^```python$", text, re.M)) == len(RUN["BLOCK"].findall(text)), page


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_print_what_the_gallery_shows(path, tmp_path, monkeypatch, capsys, session):
    pytest.importorskip("matplotlib")
    for module in ("flax", "sklearn"):
        if f"from {module}" in path.read_text():
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert len(path.read_text().splitlines()) < 60
    page = (DOCS / "gallery" / f"{path.stem}.md").read_text()
    same(capsys.readouterr().out, re.search(r"```text\n(.*?)```", page, re.S)[1])
    assert (tmp_path / f"{path.stem}.png").stat().st_size > 5_000
    assert (DOCS / "gallery" / f"{path.stem}.png").stat().st_size < 100_000


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_print_what_they_show(path, session):
    pytest.importorskip("matplotlib")
    notebook = json.loads(path.read_text())
    again = json.loads(path.read_text())
    NOTEBOOKS["execute"](again)
    for shown, found in zip(notebook["cells"], again["cells"], strict=True):
        for a, b in zip(shown.get("outputs", []), found.get("outputs", []), strict=True):
            same("".join(b.get("text", [])), "".join(a.get("text", [])))
    assert NOTEBOOKS["page"](notebook, path.stem) == path.with_suffix(".md").read_text()


def written_by_tensorboard(space):
    """The values of f in the event file: a length, its checksum, an event, its checksum, again."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = pathlib.Path("runs").iterdir()
    rest, found = file.read_bytes(), []
    while rest:
        length = int.from_bytes(rest[:8], "little")
        event, rest = Event.FromString(rest[12 : 12 + length]), rest[16 + length :]
        found += [value.simple_value for value in event.summary.value if value.tag == "f"]
    return found


def written_by_mlflow(space):
    """The values of f in the database."""
    run = space["mlflow"].last_active_run().info.run_id
    return [m.value for m in space["mlflow"].MlflowClient().get_metric_history(run, "f")]


def written_by_wandb(space):
    """Those values of f that stand among the numbers of the file that `wandb sync` uploads."""
    space["wandb"].teardown()  # waits until the file is written
    (file,) = pathlib.Path("wandb").glob("offline-run-*/*.wandb")
    numbers = [float(n) for n in re.findall(rb"\d+\.?\d*(?:e[+-]?\d+)?", file.read_bytes())]
    f = space["sol"].history["f"].tolist()
    return [value for value in f if pytest.approx(value, rel=1e-6) in numbers]


RECIPES = {
    "to_tensorboard": written_by_tensorboard,
    "to_mlflow": written_by_mlflow,
    "to_wandb": written_by_wandb,
}


@pytest.mark.filterwarnings("default")  # what these packages warn about is not ours to mend
@pytest.mark.parametrize("path", sorted((DOCS / "recipes").glob("*.py")), ids=lambda p: p.stem)
def test_logging_recipes(path, tmp_path, monkeypatch, session):
    """What was logged is read back; `.ci/run` installs the packages, which pdbo does not need."""
    pytest.importorskip(re.search(r"; needs (\w+)", path.read_text())[1])
    assert f'--8<-- "docs/recipes/{path.name}"' in (DOCS / "guides" / "logging.md").read_text()
    monkeypatch.chdir(tmp_path)
    space = runpy.run_path(str(path), run_name="__main__")
    assert len(space["sol"].history["f"]) > 2
    assert RECIPES[path.stem](space) == pytest.approx(space["sol"].history["f"], rel=1e-6)


def test_the_toy_example_shows_who_stops():
    """What the page shows, which the test above compares with a run."""
    shown = re.search(r"```text\n(.*?)```", (DOCS / "gallery" / "toy.md").read_text(), re.S)[1]
    rows = {line[:20].strip(): line[20:].split() for line in shown.splitlines()[1:]}
    assert abs(float(rows["PDBO"][0]) - 1) <= 1e-3
    for name in ("AID-FP (implicit)", "ITD-R (unrolled)"):
        assert float(rows[name][0]) == pytest.approx(0.746, abs=1e-3)


def public():
    """Every name a user may call, with its module: the top one where it is there for daily use."""
    pytest.importorskip("sklearn")
    names = {f"pdbo.{name}" for name in pdbo.__all__}
    for home, listed in pdbo._ELSEWHERE.items():
        names |= {f"pdbo.{home}.{name}" for name in listed.split()}
    names |= {f"pdbo.solvers.{name}" for name in pdbo.solvers.SOLVERS if name not in pdbo.__all__}
    homes = (
        pdbo.callbacks,
        pdbo.linear,
        pdbo.orbax,
        pdbo.presets,
        pdbo.problems,
        pdbo.problems.bolib,
        pdbo.sklearn,
    )
    for module in homes:
        home = module.__name__
        for name, value in vars(module).items():
            ours = inspect.isclass(value) or inspect.isfunction(value)
            ours = ours and value.__module__.startswith(home)
            if ours and not name.startswith("_"):
                names.add(f"{home}.{name}")
    return names


def test_every_public_name_has_a_reference_entry():
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    entries = re.findall(r"^::: (\S+)$", pages, re.M)
    ours = [entry for entry in entries if not entry.startswith("pdbo.torch.")]
    assert sorted(ours) == sorted(public())
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'pdbo[torch]'")
    assert sorted(set(entries) - set(ours)) == [f"pdbo.torch.{n}" for n in pdbo.torch.__all__]


def test_tables_are_what_the_records_say(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.readme import fill, pages

    assert len(pages()) >= 3
    for page in pages():
        assert fill(page.read_text()) == page.read_text(), page


def test_the_site(tmp_path):
    """Built strictly, so that a broken link or reference is an error; read without a network."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "-d", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {page: page.read_text() for page in tmp_path.rglob("*.html")}
    assert pages[tmp_path / "mathematics.html"].count("<math") > 30
    for page, text in pages.items():
        assert not [url for url in loaded(text) if re.match(r"(https?:)?//", url)], page
        assert "arithmatex" not in text, page
        assert not re.search(r"<m[ion][^>]*>[\\$]", text), page  # an unknown command
        prose = re.sub(r"<(math|code|pre|script|style)\b.*?</\1>", "", text, flags=re.S)
        assert not re.search(r"\\[a-zA-Z]{2}|\$\$", prose), page  # a formula not seen as one
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text()), style
    reference = "".join(t for page, t in pages.items() if page.parent.name == "reference")
    assert not [name for name in public() if f'id="{name}"' not in reference]


def loaded(text):
    """What a page makes the browser load."""
    yield from re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?([^\s\">]+)", text)
    for link in re.findall(r"<link\b[^>]*>", text):
        if not re.search(r"rel=\"?canonical", link):
            yield from re.findall(r"href=\"?([^\s\">]+)", link)


def test_no_page_takes_more_than_ten_minutes():
    for page in DOCS.rglob("*.md"):
        prose = re.sub(r"^```.*?^```|^\|.*?$|\$\$.*?\$\$", "", page.read_text(), flags=re.S | re.M)
        assert len(prose.split()) <= 2000, page


def test_the_readme_is_short_and_has_no_dead_links():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 700
    code = re.search(r"```python\n(.*?)```", text, re.S)[1]
    assert len([line for line in code.splitlines() if line]) <= 12
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / target).exists(), target
