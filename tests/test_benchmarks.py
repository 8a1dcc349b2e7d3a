"""The benchmark suite: what it tries, how it judges, a run without peers and the page it writes."""

import json
import pathlib
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")
ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import __main__ as command  # noqa: E402
from benchmarks import page, scaling, workloads  # noqa: E402
from benchmarks.peers import in_jax, ours, process  # noqa: E402
from benchmarks.settings import ENTRIES, settings  # noqa: E402

sys.path.remove(str(ROOT))


def test_every_peer_has_code_and_pins():
    for peer in {file for file in ENTRIES.values() if file != "ours"}:
        lines = (ROOT / "benchmarks" / "peers" / f"{peer}.txt").read_text().splitlines()
        assert all("==" in line for line in lines)
        assert (ROOT / "benchmarks" / "peers" / f"{peer}.py").exists()
    assert sorted(set(ENTRIES.values()) - {"ours"}) == process.names()
    for workload in workloads.WORKLOADS:
        assert settings("pdbo", workload)


def test_judges_know_the_solution():
    judge = workloads.near_ones(1e-2)({})
    assert judge(np.ones(3), np.ones((2, 3))) == 0
    assert judge(np.full(3, 1.02), np.full((2, 3), 1.02)) == pytest.approx(2)
    worst = workloads.near_ones(1e-2, worst=True)({})
    assert worst(np.array([1, 1.03]), np.array([[1, 1.03], [1, 1.03]])) == pytest.approx(3)


def test_ridge_judge_is_one_hundred_at_the_start_and_zero_at_the_best():
    data = workloads.ridge_data(rows=60, features=8)
    judge = workloads.ridge_judge(0.01)(data)
    assert judge(data["x0"].astype(float), data["y0"]) == pytest.approx(100)
    # far better than chance, and never below the best: a random search around the start
    rng = np.random.default_rng(0)
    tried = [judge(data["x0"] + rng.normal(0, 3, 8), data["y0"]) for _ in range(300)]
    assert -1e-6 < min(tried) < 60


def test_refits_minimise_the_inner_function():
    """The judge's SciPy model and the functions the libraries get are the same problem."""
    data = workloads.digits_data(True)
    model = workloads.Classifier(data, 500)
    x = np.random.default_rng(0).normal(-2, 1, data["x0"].shape)
    w = model.fit(x, data["y0"])
    arrays = in_jax.arrays(data, ours.matrix, ours.pdbo.linear.DenseMatrix.from_array)
    f, g = in_jax.functions("logistic", ours.cross_entropy)
    import jax

    arrays = jax.tree.map(lambda a: a.astype(float) if a.dtype.kind == "f" else a, arrays)
    slope = jax.grad(g, 1)(x, w, arrays)
    assert np.abs(slope).max() < 1e-5
    loss = model.loss(model.validation, model.held, w[model.seen])[0]
    assert float(f(x, w, arrays)) == pytest.approx(loss, rel=1e-12)
    assert model.validate(x, w) == pytest.approx(loss, rel=1e-3)  # further iterations change little


def test_cleaning_is_solved_by_leaving_out_the_wrong_labels():
    data = workloads.cleaning_data()
    clean = workloads.digits_data(True)["b"] == data["b"]
    assert np.mean(clean) == pytest.approx(0.5, abs=1e-2)
    judge = workloads.cleaning_judge(0.9)(data)
    assert judge(data["x0"], data["y0"]) > 2
    assert judge(np.where(clean, 30.0, -30.0), data["y0"]) < 1
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=len(clean)), rng.normal(size=(64, 10))
    matrix = ours.pdbo.linear.DenseMatrix.from_array(data["A"].astype(float))
    arrays = {"A": matrix, "b": data["b"]}
    _, g = in_jax.functions("cleaning", ours.cross_entropy)
    scores = data["A"].astype(float) @ w
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(x)), data["b"]]
    expected = np.mean(losses / (1 + np.exp(-x))) + 5e-4 * np.sum(w**2)
    assert float(g(x, w, arrays)) == pytest.approx(expected, rel=1e-6)


def test_a_quick_run_writes_record_page_and_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scaling, "SIZES", (100, 1_000, 10_000))
    monkeypatch.setattr(scaling, "INNER", (1, 10))
    monkeypatch.setattr(command, "settings", lambda *names: settings(*names)[:2])
    against = scaling._against  # two sizes of each, a process for each of them

    def fewer(what, sizes, *rest):
        return against(what, sizes[:2], *rest, repeats=1)

    monkeypatch.setattr(scaling, "_against", fewer)
    run = ["--quick", "--workloads", "toy", "--out", str(tmp_path)]
    assert command.main(run) == 0
    record = json.loads((tmp_path / "peers.json").read_text())
    toy = record["results"]["workloads"]["toy"]["entries"]["pdbo"]
    assert toy["reached"] and toy["left"] <= 1 and toy["seconds"] > 0
    assert toy["first_call_seconds"] > 0
    assert toy["calls_in_one_iteration"]["f"] == 1
    assert {p.name for p in tmp_path.glob("*.png")} == {
        "benchmarks-time.png", "benchmarks-growth.png"
    }  # fmt: skip
    text = (tmp_path / "benchmarks.md").read_text()
    assert "toy problem, one x, two y" in text and "Fitted exponent" in text
    assert "written:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--workloads", "tooy"], ["--peers", "hypertorch"], ["--threads", "0"]]
)
def test_wrong_arguments_end_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--quick", *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_ratios_and_words_of_the_page():
    ours_ = {"reached": True, "seconds": 2.0, "total_seconds": 4.0, "peak_bytes": 10,
             "microseconds_per_iteration": 3.0}  # fmt: skip
    faster = ours_ | {"seconds": 1.0}
    never = ours_ | {"reached": False, "microseconds_per_iteration": 1.0}
    assert page.ratio(faster, ours_, "seconds") == 0.5
    assert page.ratio(never, ours_, "seconds") is None
    assert page.ratio({"error": "no"}, ours_, "seconds") is None
    entries = {"pdbo": ours_, "a": faster, "b": never, "c": {"error": "no"}}
    behind = page._behind({"w": {"title": "this", "entries": entries}})
    assert "this: a: time to target 0.5×" in behind
    assert "b (which does not reach the target): time per iteration 0.33×" in behind
    assert "c" not in behind.replace("which", "").replace("reach", "")
    assert page._median({"w": {"entries": entries}}) == 0.5


def test_the_page_is_what_the_record_says():
    path = ROOT / "benchmarks" / "records" / "peers.json"
    if not path.exists():
        pytest.skip("no record of a full run")
    record = json.loads(path.read_text())
    pictures = ["benchmarks-time.png", "benchmarks-growth.png"]
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page.text(record, pictures)


def test_a_peer_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr(process, "environment", lambda name: sys.executable)
    with pytest.raises(process.PeerError, match="No module named"):
        process.Process("no_such_peer", 1)
