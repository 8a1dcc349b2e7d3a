"""The cleaning experiment: its data, its scores, its budget, and a small run of it."""

import dataclasses
import gzip
import json
import pathlib
import struct

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdbo import presets
from pdbo.app.report._draw import draw
from pdbo.experiments import Unavailable, _corruption, _images, cleaning
from pdbo.experiments._corruption import PROTOCOLS
from pdbo.experiments._results import Record
from pdbo.presets import _rows

SHARED = pathlib.Path(__file__).parents[2] / "shared" / "data" / "mnist"


def write_idx(path, values, packed=False):
    head = b"\x00\x00\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    raw = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if packed else raw)


@pytest.fixture
def folder(tmp_path):
    """Forty images of two by three pixels, in the four files, one of them packed."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("t10k", 12)):
        images = rng.integers(0, 256, (count, 2, 3))
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", images)
        name = f"{part}-labels-idx1-ubyte{'.gz' if part == 'train' else ''}"
        write_idx(tmp_path / name, rng.integers(0, 10, count), part == "train")
    return tmp_path


def test_idx_files_are_read(folder):
    found = _images.images(folder)
    raw = (folder / "train-images-idx3-ubyte").read_bytes()[16:]
    assert found.name == "MNIST" and found.pixels.shape == (40, 6)
    assert found.test_pixels.shape == (12, 6) and found.test_labels.shape == (12,)
    np.testing.assert_array_equal(np.rint(255 * found.pixels.ravel()), np.frombuffer(raw, np.uint8))


def test_the_folder_is_found_by_option_then_environment_then_debian(folder, monkeypatch):
    (folder / "sub").mkdir()
    monkeypatch.delenv(_images.FOLDER, raising=False)
    monkeypatch.setattr(_images, "DEBIAN", folder / "fashion-mnist")
    assert _images.images(None).name == "digits"
    folder.rename(folder.parent / "fashion-mnist")
    moved = folder.parent / "fashion-mnist"
    monkeypatch.setattr(_images, "DEBIAN", moved)
    assert _images.images(None).name == "Fashion-MNIST"
    assert _images.images(moved.parent).name == "Fashion-MNIST"
    monkeypatch.setenv(_images.FOLDER, str(moved / "sub"))
    with pytest.raises(Unavailable, match="sub holds no idx files"):
        _images.images(None)
    assert _images.images(moved).name == "Fashion-MNIST"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda raw: raw[:-1], "no idx file of bytes, or a damaged one"),
        (lambda raw: raw + b"x", "no idx file of bytes, or a damaged one"),
        (lambda raw: b"", "no idx file of bytes, or a damaged one"),
        (lambda raw: b"\x00\x00\x0d" + raw[3:], "no idx file of bytes, or a damaged one"),
        (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], "no idx file of bytes, or a damaged one"),
        (lambda raw: raw[:4] + struct.pack(">3I", 20, 4, 3) + raw[16:], "as many labels"),
    ],
)  # fmt: skip
def test_damaged_files_are_one_sentence(folder, damage, sentence):
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Unavailable, match=sentence):
        _images.images(folder)


def test_damaged_packed_files_are_one_sentence(folder):
    path = folder / "train-labels-idx1-ubyte.gz"
    for raw in (path.read_bytes()[:-9], b"nothing"):
        path.write_bytes(raw)
        with pytest.raises(Unavailable, match="cannot be read"):
            _images.images(folder)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/mnist")
def test_mnist():
    found = _images.images(SHARED)
    assert (found.name, found.pixels.shape, found.test_pixels.shape) == (
        "MNIST", (60_000, 784), (10_000, 784),
    )  # fmt: skip
    assert found.labels[:5].tolist() == [5, 0, 4, 1, 9] and found.pixels.max() == 1


def test_exactly_half_of_the_labels_are_wrong_ones():
    """None of the replaced labels is the true one, and no image is in two parts."""
    digits = _images._digits()
    marked = digits._replace(pixels=np.arange(len(digits.labels), dtype=np.float32)[:, None])
    data = cleaning.draw(marked, [0, 1], 600)
    train = data["train"]["X"][:, 0].astype(int)
    validation = data["validation"]["X"][:, 0].astype(int)
    right = data["train"]["y"] == digits.labels[train]
    assert np.array_equal(right, data["clean"]["clean"]) and right.sum() == 300
    assert np.array_equal(data["validation"]["y"], digits.labels[validation])
    assert len({*train, *validation}) == 1200
    assert len(np.unique(data["train"]["y"][~right])) == 10
    again = cleaning.draw(marked, [0, 1], 600)
    assert np.array_equal(again["train"]["y"], data["train"]["y"])
    assert not np.array_equal(cleaning.draw(marked, [0, 2], 600)["train"]["y"], data["train"]["y"])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_corrupt_as_published(name):
    """Exactly half of the labels are replaced; which images count as clean differs."""
    digits, protocol = _images._digits(), PROTOCOLS[name]
    marked = digits._replace(pixels=np.arange(len(digits.labels), dtype=np.float32)[:, None])
    data = _corruption.draw(marked, [3], protocol)
    mean, spread = 0.0, 1.0
    if protocol.standard:
        order = np.random.default_rng([3]).permutation(1200)[: len(data["train"]["y"])]
        mean, spread = marked.pixels[order].mean(), marked.pixels[order].std() + 1e-4
    parts = {
        k: np.rint(data[k]["X"][:, 0] * spread + mean).astype(int)
        for k in ("train", "validation", "test")
    }
    true, given = digits.labels[parts["train"]], data["train"]["y"]
    clean, count = data["clean"]["clean"], len(given)
    assert count / len(parts["validation"]) == pytest.approx(
        protocol.train / protocol.validation, rel=0.05
    )
    assert not set(parts["train"]) & set(parts["validation"])
    wrong = (given != true).mean()
    if name == "ours":
        assert wrong == 0.5 and np.array_equal(clean, given == true)
    else:  # a label drawn anew is right in one of ten cases
        assert 0.4 < wrong < 0.5
        assert np.array_equal(given[clean], true[clean])
        assert clean.mean() == 0.5 if name == "V-PBGD" else np.array_equal(clean, given == true)
    if name == "V-PBGD":
        assert not set(parts["test"]) & {*parts["train"], *parts["validation"]}
    problem, x0 = _corruption.problem(data, protocol, 2.0)
    w = jax.tree.map(lambda a: a + 0.1, cleaning.start("linear", 1, 0))
    batch = {k: v[:4] for k, v in problem.data.inner.examples.items()}
    weight = x0[0] if name == "BOME" else 0.5
    ridge = protocol.ridge * sum(float(jnp.sum(v**2)) for v in w.values())
    expected = float(weight) * float(cleaning.outer(None, w, batch)) + ridge
    assert float(problem.g(x0, w, batch)) == pytest.approx(expected, rel=1e-5)
    at = jnp.where(jnp.asarray(clean), 0.9, 0.1 if name == "BOME" else -0.1)
    assert float(_corruption.f1(at, jnp.asarray(clean), protocol)) == 1


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, f1_score, log_loss

    rng = np.random.default_rng(1)
    x, clean = rng.normal(size=50), rng.random(50) < 0.5
    assert float(cleaning.f1(jnp.asarray(x), jnp.asarray(clean))) == pytest.approx(
        f1_score(clean, x > 0)
    )
    X, y = rng.normal(size=(50, 6)), rng.integers(0, 10, 50).astype(np.int32)
    for model in cleaning.MODELS:
        w = jax.tree.map(lambda a: a.astype(float), cleaning.start(model, 6, 0))
        w = jax.tree.map(lambda a: a + 0.1 * rng.normal(size=a.shape), w)
        shares = np.asarray(jax.nn.softmax(cleaning.logits(w, X)))
        value = cleaning.outer(None, w, {"X": X, "y": y})
        assert float(value) == pytest.approx(log_loss(y, shares, labels=range(10)))
        found = float(cleaning.accuracy(w, X, y))
        assert found == pytest.approx(accuracy_score(y, shares.argmax(1)))


def test_the_inner_function_weighs_images():
    """Against a sum written out."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(8, 6)), rng.integers(0, 10, 8).astype(np.int32)
    w = jax.tree.map(lambda a: a.astype(float) + 0.1, cleaning.start("linear", 6, 0))
    x, index = rng.normal(size=20), np.arange(3, 11)
    batch = {"X": X, "y": y, "index": index, "scale": np.full(8, 2.0)}
    expected = 0.5 * cleaning.RIDGE * sum(float(jnp.sum(v**2)) for v in w.values())
    for k in range(8):
        one = {"X": X[k : k + 1], "y": y[k : k + 1]}
        expected += float(cleaning.outer(None, w, one)) / (1 + np.exp(-2 * x[k + 3])) / 8
    assert float(cleaning.inner(jnp.asarray(x), w, batch)) == pytest.approx(expected)


def test_methods_are_solvers_with_settings_of_their_own():
    from pdbo.solvers import SOLVERS

    known = _rows.CLEANING
    assert set(known) == set(cleaning.METHODS) == set(cleaning.CALLS_PER_STEP)
    assert set(cleaning.HYPERGRADIENT) < set(known)
    labels = {kind: kind.label for kind in SOLVERS.values()}
    for model in cleaning.MODELS:
        record = json.loads(_rows.file_of(model).read_text())
        assert not set(record["seeds"]) & set(range(1000))  # splits apart
        assert set(record["chosen"]) == set(known) - {"AutoPDBO"}  # which has no numbers
        for name in known:
            numbers = dict(record["chosen"].get(name, {"settings": {}})["settings"])
            refused = not numbers
            scale = numbers.pop("scale", None)
            assert refused or cleaning_range(record, name, "scale", scale)
            assert all(cleaning_range(record, name, k, v) for k, v in numbers.items())
            solver = cleaning.build(name, numbers)
            assert bool(solver.batch_refusal) == refused
            assert labels[type(solver if refused else solver.solver)] == name


def cleaning_range(record, name, key, value):
    low, high = (record["drawn from"][name] | {"scale": record["drawn from"]["scale"]})[key]
    return low <= value <= high


@pytest.mark.parametrize("name", [n for n in cleaning.METHODS if n != "AutoPDBO"])
def test_a_step_costs_what_the_budget_says(name):
    """But for the automatic method, whose steps differ."""
    solver = cleaning.build(name, presets.get(f"cleaning-linear/{name}").settings)
    rng = np.random.default_rng(0)
    size = 2 * cleaning.SIZE
    part = {"X": rng.random((size, 4)).astype(np.float32), "y": np.zeros(size, np.int32)}
    data = {"validation": part, "train": part | {"index": np.arange(size, dtype=np.int32)}}
    problem = cleaning.problem(data, 3.0)
    x0, w0 = jnp.zeros(size, jnp.float32), cleaning.start("linear", 4, 0)

    @eqx.filter_jit
    def calls(steps):
        state = solver.init(problem, x0, w0, jax.random.key(0))
        state = jax.lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state)
        return sum(solver.calls(state))

    assert int(calls(jnp.asarray(12))) == 12 * cleaning.CALLS_PER_STEP[name]


@pytest.fixture(scope="module")
def small():
    """A quick run on digits of two methods with the linear model."""
    patch = pytest.MonkeyPatch()
    patch.setattr(cleaning, "MODELS", ("linear",))
    patch.setattr(cleaning, "QUICK", ("PDBO", "ITD-R"))
    patch.delenv(_images.FOLDER, raising=False)
    patch.setattr(_images, "DEBIAN", pathlib.Path("nowhere"))
    promotion = jax.numpy_dtype_promotion("standard")
    with promotion, jax.enable_x64(True):
        results = cleaning.run(0, True)
    yield Record("cleaning", 0, True, results.settings, results.arrays, results.calls, ())
    patch.undo()


def test_a_small_run_has_rows_and_columns(small):
    assert small.settings["data"] == "digits"
    (table,) = cleaning.tables(small)
    assert [row[0] for row in table.rows] == [
        "PDBO", "ITD-R", *(f"trained on {n}" for n in cleaning.PLAIN),
    ]  # fmt: skip
    for name in ("PDBO", "ITD-R"):
        for score, kinds in cleaning.columns(small, f"linear.{name}").items():
            assert (kinds["chosen"] <= kinds["best"]).all() and (
                kinds["last"] <= kinds["best"]
            ).all()
            rows = small[f"linear.{name}.{score}"]
            assert rows.shape == (2, cleaning.ROWS + 1)
        pick = np.argmax(small[f"linear.{name}.validation"], 1)
        chosen = cleaning.columns(small, f"linear.{name}")["test"]["chosen"]
        assert np.array_equal(chosen, 100 * small[f"linear.{name}.test"][np.arange(2), pick])
    plain = cleaning.columns(small, "linear.all")
    assert np.allclose(plain["f1"]["last"], 200 / 3)
    clean = cleaning.columns(small, "linear.clean half + validation")["test"]["last"].mean()
    assert clean > plain["test"]["last"].mean() > 50
    total = sum(small.calls["linear.PDBO"].values())
    assert total <= small.settings["oracle calls of every method, on batches"] < 1.2 * total


def test_claims_follow_the_numbers(small):
    """The marks belong to MNIST alone, and a worse PDBO holds fewer."""
    plain = cleaning.claims(small)
    assert len(plain) == 2
    full = dataclasses.replace(small, settings=small.settings | {"data": "MNIST"}, quick=False)
    assert [c.bound for c in cleaning.claims(full)[:2]] == [90.1, 91.7]
    perfect, poor = (
        dataclasses.replace(
            full,
            arrays=small.arrays
            | {f"linear.PDBO.{k}": v + 0 * small[f"linear.PDBO.{k}"] for k in ("test", "f1")},
        )
        for v in (0.999, 0.01)
    )
    assert all(c.held for c in cleaning.claims(perfect))
    assert not any(c.held for c in cleaning.claims(poor))


def test_the_figure_is_drawn(small):
    (figure,) = cleaning.figures(small)
    assert [p.title[:3] for p in figure.panels] == ["(a)", "(b)"]
    assert draw(figure)["png"].startswith(b"\x89PNG")
