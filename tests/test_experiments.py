"""The experiments: records that repeat byte for byte, claims that follow their numbers, figures."""

import dataclasses
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from pdbo._files import write_file
from pdbo._sealed import digest, seal, write_npz
from pdbo.app import cli, folders, records, report, runner
from pdbo.app.progress import Progress
from pdbo.experiments import EXPERIMENTS, _views, load, rates
from pdbo.experiments._results import Claim, Record
from pdbo.problems import bolib

DEFAULT = [name for name, experiment in EXPERIMENTS.items() if not experiment.by_name]
CLAIM = Claim("It works.", "page 1", "a number", 1.0, "<", 2.0)


@pytest.fixture(scope="module")
def results(quick_run):
    return quick_run("first")


@pytest.fixture
def record():
    return Record(
        "paths", 0, True, {"a": 1.5, "b": [1, 2]},
        {"v": np.arange(3.0), "s": np.array(2.0), "m": np.ones((2, 2), np.int32)},
        {"PDBO": {"f": 1}}, (CLAIM,),
        {"versions": {}, "device": "cpu", "platform": "here", "x64": True}, {"wall": 1.0},
    )  # fmt: skip


def test_every_experiment_leaves_a_record_figures_and_a_place_on_the_page(results):
    page = (results / "index.html").read_text()
    for name in DEFAULT:
        record = records.read(results / name)
        assert record.quick
        assert record.seed == 0
        assert record.provenance["x64"]
        assert record.times["wall"] > 0
        assert load(name).claims(record)
        assert all(sum(c.values()) > 0 for c in record.calls.values())
        for figure in load(name).figures(record):
            for format in ("pdf", "svg", "png"):
                assert (results / "figures" / f"{figure.name}.{format}").stat().st_size > 1000
        assert f'<section id="{name}">' in page


def test_same_seed_same_bytes(results, quick_run):
    """By an experiment that shares its code with the others, in another process."""
    again = quick_run("second", "paths")
    for file in (folders.RECORD, folders.ARRAYS):
        assert (again / "paths" / file).read_bytes() == (results / "paths" / file).read_bytes()
    drawn = sorted((again / "figures").iterdir())
    assert {figure.stem for figure in drawn} == {"paths", "paths-where"}
    for figure in drawn:
        assert (results / "figures" / figure.name).read_bytes() == figure.read_bytes()


def test_a_quick_run_announces_a_minute_and_a_full_one_five():
    full, quick = zip(*(EXPERIMENTS[n].seconds for n in DEFAULT), strict=True)
    assert sum(quick) < 60
    assert sum(full) < 300


# the page shows every experiment; drawing takes long, and repeats for those named
REPORT = """
import pathlib, sys
from pdbo.app import report
draw = report.draw
report.draw = lambda figure: draw(figure) if figure.name in sys.argv[2:] else {}
report.build(pathlib.Path(sys.argv[1]))
assert 'jax' not in sys.modules
"""


def test_report_needs_the_records_alone(results, tmp_path):
    for name in DEFAULT:
        shutil.copytree(results / name, tmp_path / name)
    drawn = ("paths", "paths-where")
    subprocess.run([sys.executable, "-c", REPORT, tmp_path, *drawn], check=True)
    assert (tmp_path / "index.html").read_bytes() == (results / "index.html").read_bytes()
    figures = sorted((tmp_path / "figures").iterdir())
    assert {f.stem for f in figures} == set(drawn)
    for figure in figures:
        assert figure.read_bytes() == (results / "figures" / figure.name).read_bytes()


def test_claims_in_the_record_follow_from_the_record(results):
    for name in DEFAULT:
        claims = load(name).claims(records.read(results / name))
        body = json.loads((results / name / "record.json").read_text())
        wanted = [records.plain(dataclasses.asdict(c) | {"held": c.held}) for c in claims]
        assert body["claims"] == wanted


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures, for tests of what else is on them."""
    monkeypatch.setattr(report, "draw", lambda figure: {})


def test_report_trusts_results_only_and_goes_on_after_damage(results, tmp_path, capsys, undrawn):
    """Claims edited with the checksum set right do not reach the page; the rest is noticed."""
    for name in ("paths", "rates"):
        shutil.copytree(results / name, tmp_path / name)
    page, damaged = report.build(tmp_path)
    before = page.read_bytes()
    assert not damaged

    body = json.loads((tmp_path / "rates" / "record.json").read_text())
    del body["sha256"]
    for claim in body["claims"]:
        claim |= {"value": 0.0, "bound": 1.0, "relation": "<", "held": True, "sentence": "Mine."}
    (tmp_path / "rates" / "record.json").write_bytes(seal(body))
    report.build(tmp_path)
    assert page.read_bytes() == before

    record = tmp_path / "paths" / "record.json"
    record.write_text(record.read_text().replace('"quick": true', '"quick": false'))
    assert cli.run(["report", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert f"pdbo: {record} was changed or damaged after it was written.\n" in shown.err
    text = page.read_text()
    assert shown.out.strip() == str(page)
    assert '<section id="rates">' in text
    assert '<section id="paths">' not in text
    assert "paths/record.json was changed or damaged" in text


@pytest.mark.parametrize(
    "body",
    [
        [], None, 3, "text", {}, {"sha256": 1}, {"arrays_sha256": 1},
        {"calls": []}, {"calls": {"PDBO": None}}, {"settings": [1]}, {"seed": {}},
        {"versions": []}, {"quick": "maybe"}, {"name": ["paths"]}, {"name": "toy"},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_of_another_shape_is_one_sentence(body, results, tmp_path, capsys, undrawn):
    folder = shutil.copytree(results / "paths", tmp_path / "paths")
    whole = json.loads((folder / "record.json").read_text())
    del whole["sha256"]
    sealed = isinstance(body, dict) and body and "sha256" not in body
    raw = seal(whole | body) if sealed else json.dumps(body).encode()
    (folder / "record.json").write_bytes(raw)
    code = cli.run(["report", str(tmp_path)])
    error = capsys.readouterr().err
    if body in ({"seed": {}}, {"quick": "maybe"}):  # nothing follows from them but what is shown
        assert code in (0, 2)
        return
    assert code == 2
    assert error.startswith("pdbo: ") and error.count("\n") == 1
    assert "Error:" not in error and "PDBO_DEBUG" not in error


def test_what_the_paper_shows_on_the_toy_problem(results):
    toy, record = load("toy"), records.read(results / "toy")
    ends = {m: toy.measures(record, m)["z"][:2, -1] for m in toy.METHODS}
    assert np.all(ends["PDBO"] <= 1e-3)
    assert np.all(ends["Proximal-PDBO"] <= 1e-2)
    assert np.all(ends["AID-FP"] >= 0.5)
    assert np.all(ends["ITD-R"] >= 0.5)
    figure, where = toy.figures(record)
    assert len(figure.panels) == 9 and len(where.panels) == 2
    assert all(len(panel.curves) == 6 for panel in figure.panels)
    x, y2 = record["AID-FP.x"][0, -1], 0.5
    assert (
        f"stopped at x = {x:.3f} and never moved y2, for which x = 0.750 is best"
        in (toy.scene(record).notes[0])
    )
    assert abs(x - (1 + y2) / 2) > 1e-3  # near the best for its y2, not there


def test_positive_multiplier_and_slackness_on_the_paths(results):
    paths, record = load("paths"), records.read(results / "paths")
    assert all(c.held for c in paths.claims(record) if c.quoted)
    assert np.all(record["multiplier"][2:, 0] == 0)
    assert np.all(record["multiplier"][2:, -1] > 0.1)  # the constraint alone raised it


def without(record, **arrays):
    return dataclasses.replace(record, arrays=record.arrays | arrays)


def test_claims_fail_where_the_paper_is_contradicted(results):
    """Each is turned by results that contradict it."""
    paths, record = load("paths"), records.read(results / "paths")
    ended = np.concatenate([record["multiplier"][:, :-1], np.zeros((4, 1))], 1)
    assert not paths.claims(without(record, multiplier=ended))[0].held
    steady = np.repeat(record["multiplier"][:, -1:], record["multiplier"].shape[1], 1)
    assert paths.claims(without(record, multiplier=steady))[1].held
    away = record["y"] + np.array([0.1, 0.0])
    assert not any(c.held for c in paths.claims(without(record, y=away))[2:4])
    assert not paths.claims(without(record, eps=np.full(4, 0.1)))[4].held

    record = records.read(results / "rates")
    assert np.all(record["T.errors"] > 0)  # the constraint is violated on the way: nothing is void
    for key, claims in (("T", (0, 3)), ("N", (1, 3)), ("K", (2, 4))):
        flat = np.broadcast_to(record[f"{key}.errors"][:1], record[f"{key}.errors"].shape)
        for claim in claims:
            worse = 1e6 * flat if claim > 2 else flat
            held = [c.held for c in rates.claims(without(record, **{f"{key}.errors": worse}))]
            assert not held[claim]
    bounds = record["K.bounds"]
    assert bounds[0] / bounds[-1] > 5  # it is the part in 1/K that is seen


def test_notes_follow_the_data(results):
    """A start from which a method reaches the optimum is not described by where another ended."""
    sine, record = load("sine"), records.read(results / "sine")
    notes = sine.scene(record).notes
    assert len(notes) == len(record["starts"])
    for k, note in enumerate(notes):
        for part in note.split(": ", 1)[1].split("; "):
            named = [m for m in sine.SHOWN if m in re.split(r", | and | ", part)]
            reached = [sine.measures(record, m, k)["worst"][-1] <= sine.NEAR for m in named]
            assert named and set(reached) == {"reached the optimum" in part}
    best = np.full_like(record["PDBO.x"], sine.BEST)
    better = without(record, **{"PDBO.x": best, "PDBO.y": best})
    assert sine.scene(better).notes[0].startswith("From (3, 3): PDBO")
    assert "PDBO ended" not in sine.scene(better).notes[0].replace("Proximal-PDBO ended", "")


def test_fixed_steps_fail_on_the_sine_problem_and_the_automatic_solver_does_not(results):
    sine, record = load("sine"), records.read(results / "sine")
    last = {m: sine.measures(record, m)["worst"][-1] for m in record.calls}
    assert last["PDBO"] > 1
    assert last["AID-FP"] > 1
    assert record["PDBO.multiplier"][0, -1] > 20
    assert last["AutoPDBO"] <= 1e-3


def test_sweeps_agree_with_the_runs_at_the_settings_of_the_paper(results):
    """One of the values tried is what the experiment itself runs with, in another program."""
    toy, record = load("toy"), records.read(results / "toy")
    at = (list(toy.OUTER_STEPS).index(0.2), list(toy.AVERAGING).index(0.5))
    own = [toy._arrival(record, "BigSAM+ITD", start) for start in (0, 1)]
    assert record["sweep.arrival"][at].tolist() == own
    paths, record = load("paths"), records.read(results / "paths")
    np.testing.assert_allclose(
        record["sweep.drift"][paths.SMOOTHING.index(1e-4)], paths._drift(record["multiplier"])
    )
    sine, record = load("sine"), records.read(results / "sine")
    last = {m: sine.measures(record, m)["worst"][-1] for m in ("PDBO", "BigSAM+ITD")}
    at = (list(sine.PRIMAL).index(0.2), list(sine.FIRST).index(2.0))
    np.testing.assert_allclose(record["sweep.first multiplier"][at], last["PDBO"], rtol=1e-6)
    weight = list(sine.TRIED["averaging of BigSAM"][2]).index(0.5)
    averaged = record["sweep.averaging of BigSAM"][weight]
    np.testing.assert_allclose(averaged, last["BigSAM+ITD"], rtol=1e-6)
    record = records.read(results / "digits")
    np.testing.assert_allclose(record["sweep.own"][0], record["PDBO.own"])


def test_captions_name_the_settings_at_which_a_claim_would_hold(results):
    paths, record = load("paths"), records.read(results / "paths")
    drift = record["sweep.drift"]
    caption = paths.figures(record)[-1].caption
    held = [a for a, row in zip(paths.SMOOTHING, drift, strict=True) if max(row) <= paths.SETTLED]
    assert 0 < len(held) < len(drift) and _views.listed(np.array(held)) in caption
    never = without(record, **{"sweep.drift": np.ones_like(drift)})
    assert "smoothings none" in paths.figures(never)[-1].caption
    assert _views.listed(np.array([0.1])) == "0.1"
    assert _views.listed(np.array([0.1, 2.0, 3.0])) == "0.1, 2 and 3"


def test_the_theorems_hold(results):
    assert all(c.held for c in rates.claims(records.read(results / "rates")))


def test_the_optimum_of_the_rates_problem_is_certified():
    import pdbo

    x, y, multiplier = rates.optimum()
    slack = rates.DELTA + rates.SMOOTHED
    certificate = pdbo.certify(rates.problem(), x, y, multiplier, slack=slack)
    assert certificate.eps <= 1e-6
    assert np.all(rates.errors(np.array(x), y) <= 1e-12)


def test_digits_are_split_without_overlap():
    digits = load("digits")
    parts = digits.splits(3, 2)
    again, other = digits.splits(3, 2), digits.splits(4, 2)
    rows = [{r.tobytes() for r in parts[f"{n}.X"][0]} for n in ("train", "validation", "test")]
    assert sum(map(len, rows)) == len(set.union(*rows)) == 1797
    np.testing.assert_array_equal(parts["test.X"], again["test.X"])
    assert not np.array_equal(parts["test.X"], other["test.X"])


def test_a_claim_is_held_by_its_number_alone():
    assert CLAIM.held
    assert not dataclasses.replace(CLAIM, value=2.0).held
    assert dataclasses.replace(CLAIM, value=2.0, relation="<=").held
    for relation in ("<", "<=", ">", ">="):
        assert not dataclasses.replace(CLAIM, value=float("nan"), relation=relation).held


def test_a_record_reads_back(record, tmp_path):
    record = dataclasses.replace(record, claims=(dataclasses.replace(CLAIM, value=np.inf),))
    records.write(tmp_path, record)
    found = records.read(tmp_path / "paths")
    for field in ("name", "seed", "quick", "settings", "calls", "provenance", "times"):
        assert getattr(found, field) == getattr(record, field)
    assert found["m"].dtype == np.int32
    np.testing.assert_array_equal(found["v"], record["v"])
    assert found["s"].shape == ()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["paths"]
    records.write(tmp_path, dataclasses.replace(record, seed=1))  # replaces
    assert records.read(tmp_path / "paths").seed == 1


def test_records_do_not_depend_on_time_or_order(record):
    def packed(arrays, compress):
        out = io.BytesIO()
        write_npz(out, arrays, compress)
        return out.getvalue()

    for compress in (False, True):
        first = packed(record.arrays, compress)
        assert first == packed(dict(reversed(record.arrays.items())), compress)
    assert digest(first) == hashlib.sha256(first).hexdigest()


@pytest.mark.parametrize("damage", ["arrays.npz", "record.json", "times.json", "bit", "pickle"])
def test_a_damaged_record_is_noticed_and_run_again(damage, record, tmp_path):
    records.write(tmp_path, record)
    folder = tmp_path / "paths"
    if damage == "bit":
        raw = bytearray((folder / "arrays.npz").read_bytes())
        raw[len(raw) // 2] ^= 1
        (folder / "arrays.npz").write_bytes(raw)
    elif damage == "pickle":
        np.savez(folder / "arrays.npz", v=np.array([{}], object))
        body = json.loads((folder / "record.json").read_text())
        raw = (folder / "arrays.npz").read_bytes()
        body["arrays_sha256"] = hashlib.sha256(raw).hexdigest()
        del body["sha256"]
        (folder / "record.json").write_bytes(seal(body))
    else:
        (folder / damage).unlink()
    with pytest.raises(records.RecordError):
        records.read(folder)
    assert runner.finished(tmp_path, "paths") is None
    page, damaged = report.build(tmp_path)
    assert page is None
    assert len(damaged) == 1 and str(folder) in damaged[0]


def test_a_failed_write_leaves_nothing(record, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write(tmp_path, record)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "page.html", b"text")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_kill_are_cleared(record, tmp_path):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True).stdout.strip()  # fmt: skip
    (tmp_path / f".paths.{gone}").mkdir()
    (tmp_path / f".paths.{gone}" / "arrays.npz").write_bytes(b"half")
    (tmp_path / f".index.html.{gone}").write_bytes(b"half")
    (tmp_path / f".index.html.{os.getppid()}").write_bytes(b"of a process that runs")
    (tmp_path / ".index.html.mine").write_bytes(b"of somebody else")
    records.write(tmp_path, record)
    write_file(tmp_path / "index.html", b"whole")
    kept = [f".index.html.{os.getppid()}", ".index.html.mine", "index.html", "paths"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [40, 100])
def test_progress_in_a_log_and_on_a_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for file in (io.StringIO(), Terminal()):
        with Progress({"toy": 1.0, "sine": 2.0}, file) as progress:
            for name in ("toy", "sine"):
                assert list(progress.start(name)(["a", "b"])) == ["a", "b"]
                progress.finish(name, "1 s")
        text = file.getvalue()
        assert "[1/2] toy: 1 s" in text
        assert "[2/2] sine: 1 s" in text
        assert ("all experiments" in text) == file.isatty()
        assert "…" not in text  # nothing is cut off
        if file.isatty():
            assert ("━" in text) == (columns == 100)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_says_how_much_time_is_left(terminal, monkeypatch):
    """40 s for the first of two runs of equal weight, in four parts of 10 s."""
    clock = [0.0]
    monkeypatch.setattr("pdbo.app.progress.time.monotonic", lambda: clock[0])
    monkeypatch.setenv("COLUMNS", "60")
    file = Terminal() if terminal else io.StringIO()
    with Progress({"toy": 1.0, "sine": 1.0}, file) as progress:
        for _ in progress.start("toy")(["a", "b", "c", "d"]):
            if terminal:
                progress.bars.refresh()
            clock[0] += 10.0
        progress.finish("toy", "40.0 s")
    text = file.getvalue()
    if terminal:
        assert "30 s left" in text  # of toy, after a quarter of it
        assert "40 s left" in text  # of all, after half
    else:
        assert "    toy: b (12 % of all, 70 s left)\n" in text
        assert "    toy: d (38 % of all, 50 s left)\n" in text


def test_the_live_line_of_solve_fits_the_terminal(monkeypatch):
    from pdbo._progress import Progress as Line

    monkeypatch.setenv("COLUMNS", "50")
    file = Terminal()
    with Line(0, 100, 1e-4, True, file) as line:
        line.update({k: np.array([50.0]) for k in ("step", "f", "h", "multiplier", "eps")})
    before, shown = file.getvalue().rstrip("\n").split("\r\x1b[2K")[-2:]
    assert before == "compiling ..."
    assert shown.startswith("step 50/100  f 50")
    assert len(shown) == 49


def test_the_trace_is_the_path_of_solve():
    import jax.numpy as jnp

    import pdbo
    from pdbo.experiments._paper import pdbo as solver
    from pdbo.experiments._paper import toy
    from pdbo.experiments._trace import trace

    x0, y0 = 2.0, jnp.array([0.5, 0.5])
    found = trace(toy(), solver(), jnp.array([x0]), y0[None], steps=20, every=5)
    sol = pdbo.solve(
        toy(), x0, y0, solver(), steps=20, every=5, tol=0, observe=lambda x, y: {"x": x}
    )
    np.testing.assert_allclose(found.rows["x"][0], sol.history["x"], rtol=1e-12)
    assert found.calls["g"] == sol.history["g_calls"][-1]
    assert jax.config.read("jax_enable_x64")


def test_first_within_means_staying():
    errors = np.array([1.0, 0.01, 1.0, 0.01, 0.01])
    assert _views.first_within(errors, 0.1) == 3
    assert _views.first_within(errors, 2.0) == 0
    assert _views.first_within(errors, 1e-3) == np.inf
    assert _views.first_within(np.array([np.nan, 0.0]), 0.1) == 1


def test_scores_count_what_stays_solved_on_both_sides_of_f_star():
    """Five runs on the toy problem, of which a score has to tell apart the first."""
    from pdbo import problems

    entry = problems.get("toy")  # g* = -x^2/2, f* = 0
    x = np.ones((5, 3))
    outer = np.array([[1, 0.005, 0], [0, 1, 1], [0, 0, -0.1], [0, 0, np.nan], [1, 1, 0]])
    inner = np.full((5, 3), -0.5)
    inner[4, 2] += 2e-4  # f is right, the inner gap is not
    count = np.broadcast_to([10, 20, 40], (5, 3))
    found = {"x": x, "outer": outer, "inner": inner, "steps": count // 10}
    found |= {"f": count, "g": count, "products": 0 * count}
    score = load("problems")._score(entry, found, 5)
    assert score["solved"].tolist() == [True, False, False, False, False]
    assert score["on_the_way"].tolist() == [True, True, True, True, False]
    assert score["steps"][0] == 2 and score["calls"][0] == 40
    assert np.isnan(score["calls"][1:]).all()
    np.testing.assert_allclose(score["gap"][4], 2e-4)


def test_scoreboard(monkeypatch, tmp_path, capsys):
    import pdbo

    module = load("problems")
    monkeypatch.setattr(module, "QUICK", ("mb-3.18",))
    monkeypatch.setattr(module, "QUICK_RIVALS", ("PDBO",))
    mine = ("PDBO", pdbo.PDBO())  # a solver of one's own, here with the name of another
    record = runner.run(module, "problems", 1, True, iter, own=mine)
    assert record["PDBO.solved"].shape == (1, 16)
    assert record["AutoPDBO.solved"].shape == (1, 16 // module.EACH)
    for key in ("solved", "f_error", "gap", "steps", "calls"):
        np.testing.assert_array_equal(record[f"PDBO (own).{key}"], record[f"PDBO.{key}"])
    assert "PDBO (own)" in [row[0] for row in module.tables(record)[0].rows]
    # what the runs ended with, against the definition of solved
    near = record["AutoPDBO.f_error"] <= 1e-2
    np.testing.assert_array_equal(
        record["AutoPDBO.solved"], near & (record["AutoPDBO.gap"] <= 1e-4)
    )
    assert module.share(record, "AutoPDBO") > module.share(record, "PDBO")
    assert np.isnan(module.share(record, "PDBO", "unique"))
    claims = {c.sentence: c.held for c in record.claims}
    assert claims["multistart from 16 starts solves nearly every problem."]
    records.write(tmp_path, record)
    cli._say_scores(tmp_path)  # as the command does for a solver of one's own
    _, header, *board = capsys.readouterr().out.splitlines()
    assert header.split() == ["solver", "all", "many", "minima", "at", "any", "time"]
    first, *_ = (re.split("  +", line) for line in board)
    assert len(board) == 3 and first[:2] == ["AutoPDBO", f"{100 * near.mean():.0f}"]
    report.build(tmp_path)
    assert "mb-3.18" in (tmp_path / "index.html").read_text()
    (figure,) = module.figures(record)
    assert "AutoPDBO and Implicit from every fourth" in figure.caption
    older = {k: v for k, v in record.settings.items() if k != "run by solve"}
    (plain,) = module.figures(dataclasses.replace(record, settings=older))
    assert "16 starts each: the share" in plain.caption
    for panel in figure.panels:
        for curve in panel.curves:
            assert (np.diff(curve.y) >= 0).all() and curve.y[-1] <= 100


def test_scoreboard_of_constraints(monkeypatch, tmp_path):
    module = load("bolib")
    monkeypatch.setattr(module, "QUICK", ("MitsosBarton2006Ex314",))
    monkeypatch.setattr(module, "TRIES", 4)
    record = runner.run(module, "bolib", 1, True, iter)
    ours = [module.METHODS.index(m) for m in (module.SOLVE, module.MULTISTART)]
    assert record["solved"][ours].all() and record["certified"][ours].all()
    np.testing.assert_allclose(record["f"][ours], 1 / 4, atol=1e-3)
    assert {c.sentence: c.held for c in record.claims}["No certificate is false."]
    records.write(tmp_path, record)
    report.build(tmp_path)
    assert "MitsosBarton2006Ex314" in (tmp_path / "index.html").read_text()


def test_a_point_is_judged_without_the_package():
    module = load("bolib")
    entry = bolib.get("MitsosBarton2006Ex314")  # f = (x - 1/4)^2 + y^2, g = y^3/3 - xy
    at = lambda x, y: module.judge(entry, x, y)
    assert at(0.25, 0.5)["solved"]
    assert not at(0.25, 0.4)["valid"]  # not an inner minimum
    assert at(1.0, 1.0)["valid"] and not at(1.0, 1.0)["solved"]


def test_linear_followers_are_judged_by_linear_programs(monkeypatch):
    module = load("bolib")

    def entry(g, *inner):
        return types.SimpleNamespace(g=g, inner=inner, evaluate=lambda row, x, y: row(x, y))

    x, y = np.array([2.0]), np.array([0.5, 0.5])
    box = (lambda x, y: y[0] - x[0], lambda x, y: -y[0], lambda x, y: y[1] - 1, lambda x, y: -y[1])
    linear = entry(lambda x, y: 3 - y[0] + 2 * y[1], *box)
    assert module.inner_value(linear, x, y) == pytest.approx(1.0, abs=1e-6)
    endless = entry(lambda x, y: -y[0], lambda x, y: y[1] - 1)
    assert module.inner_value(endless, x, y) == -np.inf
    # without an end of SLSQP the point itself is all that is known
    monkeypatch.setattr(module, "_slsqp", lambda *_, **__: None)
    curved = entry(lambda x, y: y[0] ** 2 + y[1], *box)
    assert module.inner_value(curved, x, y) == 0.75
    assert module.inner_value(curved, x, 3 * y) == np.inf  # it violates a row
    outside = types.SimpleNamespace(x=np.array([-9.0, 0.0]), fun=-9.0)  # and so does what is found
    monkeypatch.setattr(module, "_slsqp", lambda *_, **__: outside)
    assert module.inner_value(curved, x, y) == 0.75
    monkeypatch.setattr(module, "_slsqp", lambda *_, **__: None)
    start = bolib.get("MitsosBarton2006Ex314")
    x, y, calls = module.by_kkt(start, 2)
    np.testing.assert_array_equal(np.r_[x, y], np.r_[start.x0, start.y0])
    assert calls == 0


def test_numbers_that_slsqp_cannot_take_end_it():
    assert load("bolib")._slsqp(lambda v: 1 / 0, np.ones(1), []) is None


def test_a_refused_problem_counts_as_unsolved(monkeypatch):
    import pdbo

    module = load("problems")

    def refuse(*_):
        raise pdbo.ProblemError("not for this set.")

    many = {"solved": True, "certified": True, "f_error": 0.0, "gap": 0.0}
    for name, double in (("_runs", refuse), ("_solved", refuse), ("_many_starts", lambda *_: many)):
        monkeypatch.setattr(module, name, double)
    monkeypatch.setattr(module, "QUICK", ("mb-3.18",))
    monkeypatch.setattr(module, "QUICK_RIVALS", ("PDBO",))
    results = module.run(0, True)
    assert results.settings["refused"]["PDBO"] == {"mb-3.18": "not for this set."}
    assert "own solver" not in results.settings
    assert not results.arrays["PDBO.solved"].any() and np.isnan(results.arrays["PDBO.gap"]).all()
    assert results.arrays[f"{module.MULTISTART}.solved"].all() and not results.calls


def test_where_a_path_that_moved_both_ways_ended():
    toy = load("toy")
    t = np.linspace(0, 1, 50)[None]
    record = {"PDBO.x": 0 * t, "PDBO.y": np.stack([0 * t, 0.25 * np.minimum(1, 2 * t)], -1)}
    assert toy._fate(record, "PDBO", 0) == "stopped at x = 0.000, y2 = 0.250"
    record["PDBO.y"][..., 1] = 0.25
    assert toy._fate(record, "PDBO", 0).endswith("and never moved y2, for which x = 0.625 is best")
