"""The experiment on meta-learning: its tasks, its functions, and a small run of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdbo.experiments import _images, meta
from pdbo.experiments._results import Record


def test_waves_are_sines_of_one_amplitude_and_phase_per_task():
    tasks = meta.sinusoids(3)
    for name in ("", "new "):
        t, u = (
            np.concatenate([tasks[name + part][k] for part in ("train", "validation")], 0)
            for k in "tu"
        )
        for k in range(meta.TASKS):  # a sine of known frequency is linear in two numbers
            waves = np.stack([np.sin(t[:, k, 0]), np.cos(t[:, k, 0])], 1)
            rest = np.linalg.lstsq(waves, u[:, k])[1]
            assert rest[0] < 1e-9
    assert not np.array_equal(tasks["train"]["t"], tasks["new train"]["t"])


def test_tasks_of_digits_have_five_classes_and_no_image_twice():
    digits = _images._digits()
    marked = digits._replace(
        pixels=np.arange(1200, dtype=np.float32)[:, None],
        test_pixels=np.arange(597, dtype=np.float32)[:, None],
    )
    tasks = meta.few_shot(marked, 0)
    for name, labels in (("", digits.labels), ("new ", digits.test_labels)):
        for k in range(meta.TASKS):
            rows = [tasks[name + p]["t"][:, k, 0].astype(int) for p in ("train", "validation")]
            assert len(set(np.concatenate(rows))) == 2 * meta.WAYS * meta.PER_CLASS
            for part, classes in zip(rows, (tasks[name + "train"]["u"][:, k],) * 2, strict=True):
                pairs = set(zip(labels[part].tolist(), classes.tolist(), strict=True))
                assert len(pairs) == meta.WAYS


def test_functions_against_sums_written_out():
    tasks = meta.sinusoids(0)
    x, w = meta.start(tasks, 0)
    w = jax.tree.map(
        lambda a: a * jnp.arange(1, 9, dtype=a.dtype).reshape(8, *[1] * (a.ndim - 1)), w
    )
    batch, total, apart = tasks["train"], 0.0, 0.0
    for k in range(meta.TASKS):
        own = jax.tree.map(lambda a, k=k: np.asarray(a[k]), w)
        h = batch["t"][:, k]
        for W, b in own[:-1]:
            h = np.tanh(h @ W + b)
        out = (h @ own[-1][0] + own[-1][1])[:, 0]
        total += np.mean((out - batch["u"][:, k]) ** 2) / meta.TASKS
        leaves = zip(jax.tree.leaves(own), jax.tree.leaves(x), strict=True)
        apart += sum(np.sum((a - np.asarray(b)) ** 2) for a, b in leaves)
    assert float(meta.outer(x, w, batch)) == pytest.approx(total, rel=1e-4)
    expected = total + 0.5 * meta.PROXIMAL / meta.TASKS * apart
    assert float(meta.inner(x, w, batch)) == pytest.approx(expected, rel=1e-4)


def test_a_small_run_has_rows_claims_and_figures(monkeypatch):
    rivals = {"sinusoid": {"AID-CG": meta.RIVALS["sinusoid"]["AID-CG"]}}
    changes = {
        "KINDS": ("sinusoid",), "RIVALS": rivals, "ROWS": 2, "ADAPT": 5, "QUICK": (2, 600),
        "HIDDEN": 4,
    }  # fmt: skip
    for name, value in changes.items():
        monkeypatch.setattr(meta, name, value)
    with jax.numpy_dtype_promotion("standard"):
        results = meta.run(0, True)
    record = Record("meta", 0, True, results.settings, results.arrays, results.calls, ())
    (table,), (figure,) = meta.tables(record), meta.figures(record)
    claim, below = meta.claims(record)
    assert [row[0] for row in table.rows] == [meta.DEFAULT, "AID-CG", meta.START]
    assert [curve.label for curve in figure.panels[0].curves] == [meta.DEFAULT, "AID-CG"]
    rows = record[f"sinusoid.{meta.DEFAULT}.validation"]
    assert rows.shape == (2, 3) and claim.value == pytest.approx((rows[:, -1] / rows[:, 0]).mean())
    assert np.array_equal(rows[:, 0], record["sinusoid.AID-CG.validation"][:, 0])
    assert below.value == pytest.approx(rows[:, -1].mean()) and below.bound == 0.35
    spent = [sum(calls.values()) for calls in record.calls.values()]
    assert max(spent) <= 600 + 4 and spent[1] > 0.9 * 600


def test_the_loss_of_classes_is_the_cross_entropy():
    rng = np.random.default_rng(0)
    batch = {"t": rng.normal(size=(6, 3, 2)), "u": rng.integers(4, size=(6, 3))}
    w = [(rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 4)))]
    total = 0.0
    for k in range(3):
        out = batch["t"][:, k] @ w[0][0][k] + w[0][1][k]
        share = np.exp(out) / np.exp(out).sum(1, keepdims=True)
        total -= np.mean(np.log(share[np.arange(6), batch["u"][:, k]])) / 3
    found = meta.outer(None, w, jax.tree.map(jnp.asarray, batch))
    assert float(found) == pytest.approx(total, rel=1e-6)
