"""The estimators with L1, groups and squares: scikit-learn's checks, its solvers, differences."""

import importlib.util
import pickle
import sys
import tracemalloc
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")

import jax
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pdbo
from pdbo.sklearn import (
    BilevelElasticNet,
    BilevelGroupLasso,
    BilevelLasso,
    BilevelLogisticRegression,
    BilevelRidge,
    PenaltyWarning,
    _certificate,
    _fit,
    _ridge,
)
from pdbo.sklearn._base import Learned
from pdbo.sklearn._design import Design
from pdbo.sklearn._fit import LOGISTIC, SQUARED, Models, Penalty, Task, _solved

X, Y = load_diabetes(return_X_y=True)
X, Y = X[:200] * 20, Y[:200]
BLOCKS = np.arange(10) // 2
REGRESSORS = (BilevelLasso, BilevelElasticNet, BilevelRidge, BilevelGroupLasso)

pytestmark = pytest.mark.filterwarnings("ignore::pdbo.sklearn.PenaltyWarning")


@parametrize_with_checks(
    [
        BilevelLasso(max_iter=1, cv=3),
        BilevelElasticNet(l1_ratio=0.5, max_iter=1, cv=3),
        BilevelRidge(max_iter=1, cv=3),
        BilevelGroupLasso(max_iter=1, cv=3),
        BilevelLogisticRegression("scalar", penalty="l1", cv=3),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def sparse_truth(seed, rows=100, features=40, test=2000):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows + test, features))
    y = x[:, :4] @ [3.0, -2.0, 2.0, 1.0] + 2 * rng.normal(size=rows + test)
    return x[:rows], y[:rows], x[rows:], y[rows:]


# What is fitted: against scikit-learn's own solvers.


@pytest.mark.parametrize("intercept", [True, False])
def test_one_penalty_is_that_of_scikit_learn(intercept):
    weight = np.random.default_rng(0).uniform(0.5, 2, len(Y))
    options = {"random_state": 0, "fit_intercept": intercept}
    strict = {"tol": 1e-10, "max_iter": 100_000, "fit_intercept": intercept}

    lasso = BilevelLasso("scalar", **options).fit(X, Y, weight)
    net = BilevelElasticNet("scalar", **options).fit(X, Y, weight)
    ridge = BilevelRidge("scalar", **options).fit(X, Y, weight)
    alpha = net.penalty_ + net.l2_penalty_
    theirs = [
        (lasso, Lasso(lasso.penalty_, **strict)),
        (net, ElasticNet(alpha, l1_ratio=net.penalty_ / alpha, **strict)),
        (ridge, Ridge(ridge.penalty_, fit_intercept=intercept)),
    ]
    for ours, model in theirs:
        model.fit(X, Y, sample_weight=weight)
        np.testing.assert_allclose(ours.coef_, model.coef_, atol=1e-4)
        np.testing.assert_allclose(ours.predict(X), model.predict(X), rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_with_l1(classes):
    rng = np.random.default_rng(0)
    y = np.argmax(X[:, :classes] + rng.gumbel(size=(len(X), classes)), 1)
    ours = BilevelLogisticRegression("scalar", penalty="l1", random_state=0).fit(X, y)
    theirs = LogisticRegression(
        C=1 / ours.penalty_, l1_ratio=1, solver="saga", tol=1e-8, max_iter=100_000
    ).fit(X, y)
    assert 0 < np.count_nonzero(ours.coef_) < ours.coef_.size
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("per", ["feature", "group"])
def test_penalties_per_feature_are_those_of_the_model(per):
    """The conditions of a minimum, in the units of the features."""
    x, y, *_ = sparse_truth(0)
    x = x * 10.0 ** np.linspace(-2, 2, 40) if per == "feature" else x
    groups = np.arange(40) % 10 if per == "group" else None
    model = BilevelLasso(per, groups=groups, random_state=0).fit(x, y)
    penalty = model.penalty_ if groups is None else model.penalty_[groups]
    slope = (x - x.mean(0)).T @ (y - model.predict(x)) / len(y)
    used = model.coef_ != 0
    np.testing.assert_allclose(slope[used], (penalty * np.sign(model.coef_))[used], rtol=1e-4)
    assert np.all(np.abs(slope) <= penalty * (1 + 1e-6)) and 0 < used.sum() < 40


def test_groups_are_those_of_the_model():
    model = BilevelGroupLasso(groups=BLOCKS, l1_ratio=0.3, random_state=0).fit(X, Y)
    unit = X.std(0)
    slope = (X - X.mean(0)).T @ (Y - model.predict(X)) / len(Y) / unit
    v = model.coef_ * unit
    for k in range(5):
        own = BLOCKS == k
        norm = np.linalg.norm(v[own])
        if norm > 0:
            pull = model.penalty_[k] * v[own] / norm + model.l1_penalty_[own] * np.sign(v[own])
            np.testing.assert_allclose(slope[own][v[own] != 0], pull[v[own] != 0], rtol=1e-4)
        else:
            over = np.maximum(np.abs(slope[own]) - model.l1_penalty_[own], 0)
            assert np.linalg.norm(over) <= model.penalty_[k] * (1 + 1e-6)


def test_several_targets_share_their_penalties():
    both = np.stack([Y, 3 * Y[::-1]], 1)
    lasso = BilevelLasso("scalar", random_state=0).fit(X, both)
    theirs = Lasso(lasso.penalty_, tol=1e-10, max_iter=100_000).fit(X, both)
    np.testing.assert_allclose(lasso.coef_, theirs.coef_, atol=1e-4)
    ridge = BilevelRidge(random_state=0).fit(X, both)
    assert ridge.coef_.shape == (2, 10) and ridge.penalty_.shape == (10,)
    centred = X - X.mean(0)
    normal = centred.T @ centred + np.diag(ridge.penalty_)
    exact = np.linalg.solve(normal, centred.T @ (both - both.mean(0)))
    np.testing.assert_allclose(ridge.coef_, exact.T, rtol=1e-6)


@pytest.mark.parametrize("kind", ["primal", "dual", "products"])
def test_ridge_systems_of_any_size(kind, monkeypatch):
    monkeypatch.setattr(_ridge, "DENSE", 0 if kind == "products" else 4000)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 8 if kind == "primal" else 400))
    s, l2, b = (rng.uniform(0.5, 1, k) for k in (40, x.shape[1], x.shape[1]))
    s /= s.sum()
    design = Design(scipy.sparse.csr_matrix(x) if kind == "products" else x, np.ones(40), True)
    z = (x - x.mean(0)) / x.std(0)
    z = z - s @ z
    system = _ridge.Ridge(design, s, l2, True)
    assert system.kind == kind
    np.testing.assert_allclose(
        system.solve(b), np.linalg.solve((z.T * s) @ z + np.diag(l2), b), rtol=1e-6
    )


def test_a_ridge_without_penalties_interpolates():
    rng = np.random.default_rng(0)
    x, t, s = rng.normal(size=(40, 400)), rng.normal(size=40), np.full(40, 1 / 40)
    z = (x - x.mean(0)) / x.std(0)
    system = _ridge.Ridge(Design(x, np.ones(40), True), s, np.full(400, 1e-20), True)
    np.testing.assert_allclose(z @ system.solve(z.T @ (s * t)), t - t.mean(), atol=1e-4)


# Derivatives.


@pytest.mark.parametrize("kind", ["l1", "elasticnet", "l2", "groups", "logistic", "classes"])
def test_the_derivative_in_the_penalties(kind):
    """Against differences of the held-out loss."""
    rng = np.random.default_rng(1)
    x, outputs = rng.normal(size=(60, 8)), 3 if kind == "classes" else 1
    target = x[:, 0] - 0.5 * x[:, 1] + 0.5 * rng.normal(size=60)
    loss = SQUARED
    if kind == "logistic":
        target, loss = (target > 0).astype(int), LOGISTIC
    elif kind == "classes":
        target, loss = np.argmax(x[:, :3] + rng.gumbel(size=(60, 3)), 1), LOGISTIC
    train = np.where(np.arange(60) < 40, rng.uniform(0.5, 2, 60), 0)
    held = np.where(np.arange(60) < 40, 0.0, 1.0)
    task = Task(train / train.sum(), held / held.sum(), target, 0, outputs)
    models = Models(Design(x, np.ones(60), True), loss, True)
    size = 8 * outputs
    l1 = rng.uniform(0.02, 0.08, size) * (kind != "l2")
    l2 = rng.uniform(0.1, 0.3, size) * (kind in ("l2", "elasticnet"))
    labels = np.arange(8) // 2 if kind == "groups" else None
    group = rng.uniform(0.02, 0.06, 4 if kind == "groups" else 0)
    term = Penalty(l1, l2, group, labels)

    def held_out(term):
        return models.held(task, models.solve([task], [term], [models.blank(task)])[0]).sum()

    fit = models.solve([task], [term], [models.blank(task)])[0]
    found = models.derivative(task, term, fit)
    assert np.count_nonzero(fit.weights) > 2
    for name in ("l1", "l2", "group"):
        values, slope = getattr(term, name), getattr(found, name)
        for j in range(len(values)):
            if values[j] > 0:
                up, down = (values.copy() for _ in range(2))
                up[j], down[j] = values[j] * (1 + 1e-4), values[j] * (1 - 1e-4)
                ends = [held_out(term._replace(**{name: v})) for v in (up, down)]
                numeric = (ends[0] - ends[1]) / (up[j] - down[j])
                assert slope[j] == pytest.approx(numeric, rel=1e-3, abs=1e-6)


def test_the_published_derivative_of_a_lasso():
    r"""On the support, d w = -(Z^T Z / n)^{-1} sign(w) d lambda (Bertrand et al. 2022, (8))."""
    x, y, test, answer = sparse_truth(0, test=50)
    rows, n = np.vstack([x, test]), len(x)
    train = np.where(np.arange(len(rows)) < n, 1 / n, 0)
    held = np.where(train > 0, 0, 1 / 50)
    target = np.concatenate([y, answer])
    models = Models(Design(rows, np.ones(len(rows)), False), SQUARED, False)
    task = Task(train, held, target, 0, 1)
    term = Penalty(np.full(40, 0.3), np.zeros(40), np.zeros(0), None)
    fit = models.solve([task], [term], [models.blank(task)])[0]
    support = np.flatnonzero(fit.weights)
    z = (rows / np.sqrt(np.mean(rows**2, 0)))[:, support]
    move = -np.linalg.solve(z[:n].T @ z[:n] / n, np.sign(fit.weights[support]))
    slope = z[n:].T @ (z[n:] @ fit.weights[support] - answer) / 50
    found = np.sum(models.derivative(task, term, fit).l1)
    assert found == pytest.approx(float(slope @ move), rel=1e-9)


# What is learned.


def test_many_penalties_beat_one_on_sparse_truths():
    for kind in (BilevelLasso, BilevelRidge):
        gains = []
        for seed in range(3):
            x, y, test, answer = sparse_truth(seed)
            one, each = (kind(per, random_state=0).fit(x, y) for per in ("scalar", "feature"))
            errors = [np.mean((answer - m.predict(test)) ** 2) for m in (one, each)]
            gains.append(errors[0] - errors[1])
            assert each.per_ == "feature"
            assert np.median(each.penalty_[4:]) > 3 * np.max(each.penalty_[:4])
        assert min(gains) > 0 and np.mean(gains) > 0.1


def test_groups_beat_a_lasso_on_sparse_groups():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1060, 40))
    y = x[:, :4] @ np.ones(4) + 2 * rng.normal(size=1060)
    lasso = BilevelLasso(random_state=0).fit(x[:60], y[:60])
    group = BilevelGroupLasso("group", groups=np.arange(40) // 4, random_state=0).fit(
        x[:60], y[:60]
    )
    errors = [np.mean((y[60:] - m.predict(x[60:])) ** 2) for m in (group, lasso)]
    assert errors[0] < errors[1]
    assert list(group.groups_) == list(range(10)) and group.penalty_.shape == (10,)


def test_what_is_given_up_is_said():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 6)), rng.normal(size=80)  # no feature matters
    with pytest.warns(
        PenaltyWarning, match=r'one per feature, so all.*\(per_ is "scalar"\)'
    ) as said:
        model = BilevelLasso(random_state=0).fit(x, y)
    assert said[0].filename == __file__
    assert model.per == "feature" and model.per_ == "scalar"
    spread = model.penalty_ / x.std(0)
    assert np.ptp(model.penalty_) < 1e-12 or np.ptp(spread) < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BilevelLasso("scalar", random_state=0).fit(x, y).per_ == "scalar"


def test_the_path_lists_what_was_tried():
    model = BilevelLasso(random_state=0).fit(X, Y)
    path = model.path_
    assert set(path) == {"stage", "level", "loss", "nonzero"}
    assert len(path["loss"]) == model.n_iter_ and path["stage"][0] == "level"
    assert path["nonzero"][0] == 0  # the strongest penalty


def test_the_level_is_the_one_that_solve_finds():
    model = BilevelRidge("scalar", random_state=0).fit(X, Y)
    problem, x, y = model.as_problem()
    found = pdbo.solve(problem, x + 1.0, jax.tree.map(np.zeros_like, y))
    assert found.ok and abs(found.x) < 1e-3
    assert problem.outer(x, y) <= found.f * (1 + 1e-9)
    assert model.certificate_.ok and model.certificate_.where == "minimum"
    assert model.certificate_ is model.certificate_


def test_a_kink_is_a_minimum_of_the_held_out_loss():
    """The losses beside it are those of scikit-learn's lasso on the same splits."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(100, 8))
    y = x[:, :4] @ [3.0, -2.0, 2.0, 1.0] + 2 * rng.normal(size=100)
    parts = list(KFold(4, shuffle=True, random_state=0).split(x))
    model = BilevelLasso("scalar", cv=parts).fit(x / x.std(0), y)
    found = model.certificate_
    assert found.ok and found.where == "kink" and found.below < 0 < found.above
    assert "features enter or leave" in str(found)

    def held_out(level):
        lasso = Lasso(model.penalty_ * np.exp(level), tol=1e-12, max_iter=100_000)
        z = x / x.std(0)
        return np.mean(
            [np.mean((y[b] - lasso.fit(z[a], y[a]).predict(z[b])) ** 2) for a, b in parts]
        )

    beside = [held_out(t) for t in (-0.01, 0.0, 0.01)]
    assert beside[1] < min(beside[0], beside[2])


def test_a_certificate_is_refused_away_from_a_minimum():
    model = BilevelLasso("scalar", random_state=0).fit(X, Y)
    learner, point, _ = model._learned
    moved = learner.solved(point.shapes, point.level + 0.5, point.fits, "")
    found = _certificate.certificate(Learned(learner, moved, learner.finish(moved)))
    assert found.where == "unknown" and not found.ok and found.inner_gap < 1e-9
    found = _certificate.certificate(Learned(learner, point, learner.finish(moved)))
    assert found.inner_gap > 1e-4 and not found.ok  # the final weights are others'


@pytest.mark.parametrize(
    "target, where, ok",
    [
        (np.random.default_rng(1).normal(size=200), "strongest", True),  # noise
        (X @ np.arange(10.0), "negligible", False),
        (np.ones(200), "negligible", False),
    ],
)
def test_certificates_at_the_ends(target, where, ok):
    found = BilevelLasso("scalar", random_state=0).fit(X, target).certificate_
    assert (found.where, found.ok) == (where, ok)
    assert found.inner_gap < 1e-9


@pytest.mark.parametrize("kind", ["l1", "elasticnet", "l2", "groups", "classes"])
def test_gaps_are_bounds(kind):
    """On how far the objective of weights that are no minimisers is above the minimum."""
    rng = np.random.default_rng(0)
    outputs = 3 if kind == "classes" else 1
    target = rng.integers(0, 3, 40) if kind == "classes" else rng.normal(size=40)
    models = Models(
        Design(rng.normal(size=(40, 6)), np.ones(40), True),
        LOGISTIC if kind == "classes" else SQUARED,
        True,
    )
    task = Task(np.full(40, 1 / 40), None, target, -1, outputs)
    zero, labels = np.zeros(6 * outputs), np.arange(6) // 2
    term = Penalty(
        zero + 0.05 * (kind != "l2"),
        zero + 0.1 * (kind in ("l2", "elasticnet")),
        np.full(3, 0.02) if kind == "groups" else np.zeros(0),
        labels if kind == "groups" else None,
    )
    (best,) = models.solve([task], [term], [models.blank(task)])
    null = float(task.train @ models.loss.rows(models.blank(task).scores, target))
    assert _certificate.gaps(models, [task], [term], [best])[0] < 1e-8
    for size in (1e-3, 0.1, 1.0):
        part = np.arange(6 * outputs)
        z = np.concatenate([best.weights + size * rng.normal(size=len(part)), best.offsets])
        other = models._placed(best, part, z, outputs)
        excess = models._value(task, term, other) - models._value(task, term, best)
        (gap,) = _certificate.gaps(models, [task], [term], [other])
        assert 0 < excess <= gap * null


def test_certificates_of_many_weights_and_of_pickles():
    many = BilevelRidge(random_state=0).fit(np.random.default_rng(0).normal(size=(30, 120)), Y[:30])
    assert many.certificate_.ok
    group = BilevelGroupLasso("scalar", groups=BLOCKS, random_state=0).fit(X, Y)
    assert group.certificate_.ok
    again = pickle.loads(pickle.dumps(group.fit(X, Y)))
    with pytest.raises(AttributeError, match="look at it before pickling"):
        again.certificate_  # noqa: B018


@pytest.mark.parametrize("intercept", [True, False])
def test_the_problem_of_a_classifier(intercept):
    """Of three classes: its f is the mean of the held-out losses, its y the minimum of g."""
    model = BilevelLogisticRegression(
        "scalar", penalty="l1", fit_intercept=intercept, cv=3, random_state=0
    ).fit(X[:90, :4], np.digitize(Y[:90], [100, 180]))
    problem, x, y = model.as_problem()
    np.testing.assert_allclose(problem.outer(x, y), min(model.path_["loss"]), rtol=1e-6)
    assert pdbo.certify(problem, x, y).inner_gap < 1e-9 and ("offsets" in y) == intercept
    assert model.certificate_.ok


def test_a_problem_of_groups_and_none_at_all():
    model = BilevelGroupLasso(
        "scalar", groups=BLOCKS, fit_intercept=False, cv=2
    ).fit(X, Y - Y.mean())  # fmt: skip
    assert pdbo.certify(*model.as_problem()).inner_gap < 1e-9
    with pytest.raises(ValueError, match="No feature is in use"):
        BilevelLasso().fit(X, np.ones(200)).as_problem()


# What is easy: features far from zero, and classes with few members.


@pytest.mark.parametrize("model", [BilevelLasso(), BilevelRidge(), BilevelGroupLasso()])
def test_features_far_from_zero_are_not_constant(model):
    x, y, *_ = sparse_truth(0, features=5)
    here = model.set_params(cv=3).fit(x, y).predict(x)
    np.testing.assert_allclose(model.fit(x + 1e6, y).predict(x + 1e6), here, atol=1e-4)
    x[:, 3] = 0.1 * 3  # not a number of the machine
    assert model.fit(x, y).coef_[3] == 0


def test_memory_is_flat_in_the_number_of_folds():
    x = np.random.default_rng(0).normal(size=(400, 1500))
    peaks = []
    for folds in (2, 10):
        tracemalloc.start()
        BilevelLasso("scalar", cv=folds).fit(x, x[:, :5].sum(1))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_classes_with_few_members():
    x = X[:6]
    model = BilevelLogisticRegression(random_state=0).fit(x, [0, 0, 1, 1, 2, 2])
    assert model.coef_.shape == (3, 10)
    with pytest.raises(ValueError, match="Every class has one sample only"):
        model.fit(x, np.arange(6))


# What scikit-learn's users do with it.


@pytest.mark.parametrize(
    "model",
    [BilevelLasso(), BilevelRidge(), BilevelLogisticRegression("scalar", penalty="l1")],
)
def test_sparse_is_dense(model):
    x = np.where(np.abs(X) > 0.8, X, 0)
    y = (Y > 140).astype(int) if isinstance(model, BilevelLogisticRegression) else Y
    model.set_params(random_state=0)
    dense = model.fit(x, y).coef_.copy()
    sparse = model.fit(scipy.sparse.csr_matrix(x), y).coef_
    np.testing.assert_allclose(sparse, dense, atol=1e-5 * np.abs(dense).max())


def test_pipeline_search_pickle_and_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"c{k}" for k in range(10)])
    pipe = make_pipeline(StandardScaler(), BilevelLasso(random_state=0, max_iter=1))
    search = GridSearchCV(pipe, {"bilevellasso__per": ["scalar", "feature"]}, cv=3).fit(frame, Y)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(frame), search.predict(frame))
    model = BilevelLasso("scalar").fit(frame, Y)
    assert list(model.feature_names_in_[:2]) == ["c0", "c1"]
    polars = pytest.importorskip("polars")
    np.testing.assert_allclose(model.predict(polars.from_pandas(frame)), model.predict(frame))


def test_random_state_and_splits():
    a, b, c = (BilevelLasso("scalar", random_state=k).fit(X, Y).penalty_ for k in (0, 0, 1))
    assert a == b != c
    splits = list(LeaveOneGroupOut().split(X, Y, groups=np.arange(len(Y)) % 4))
    assert BilevelLasso("scalar", cv=splits).fit(X, Y).penalty_ > 0
    assert cross_val_score(BilevelRidge("scalar"), X, Y, cv=3).mean() > 0.3


def test_precision_progress_and_picture(capsys):
    model = BilevelLasso("scalar", random_state=0, verbose=1).fit(X.astype(np.float32), Y)
    assert model.coef_.dtype == model.penalty_.dtype == np.float32
    assert "[BilevelLasso] level: level" in capsys.readouterr().out
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    for one in (model, BilevelGroupLasso(groups=BLOCKS).fit(X, Y), BilevelRidge().fit(X, Y)):
        axes = one.plot_penalties()
        assert axes.get_yscale() == "log" and axes.lines
        matplotlib.pyplot.close(axes.figure)


# What cannot be.


@pytest.mark.parametrize(
    "model, words",
    [
        (BilevelLasso("column"), "per must be one of scalar, feature, group, got 'column'"),
        (BilevelLasso("group"), "groups, one label for each feature, must be given"),
        (BilevelLasso("group", groups=[1, 2]), "one label for each of the 10 features, got shape"),
        (BilevelGroupLasso(groups=np.r_[np.nan, :9.0]), "a label for every feature, got NaN"),
        (BilevelGroupLasso(l1_ratio=1.0, groups=BLOCKS), r"a number in \[0, 1\), got 1.0"),
        (BilevelElasticNet(l1_ratio=0), r"None or a number in \(0, 1\], got 0"),
        (BilevelLasso(max_iter=0), "max_iter must be at least 1, got 0"),
        (BilevelLasso(cv=1), "k-fold cross-validation requires at least one train/test split"),
        (BilevelLogisticRegression(penalty="l0"), "penalty must be one of l2, l1, elasticnet"),
        (BilevelLogisticRegression(l1_ratio=0.5), "l1_ratio goes with penalty='elasticnet' only"),
    ],
)  # fmt: skip
def test_bad_parameters(model, words):
    with pytest.raises(ValueError, match=words):
        model.fit(X, (Y > 140).astype(int))


def test_bad_data():
    with pytest.raises(ValueError, match="Input X contains NaN"):
        BilevelLasso().fit(np.where(X > 1, np.nan, X), Y)
    with pytest.raises(ValueError, match="Negative"):
        BilevelLasso().fit(X, Y, sample_weight=-np.ones(len(Y)))
    constant = np.column_stack([X, np.ones(len(X))])
    model = BilevelLasso("scalar", random_state=0).fit(constant, Y)
    assert model.coef_[-1] == 0 and np.all(np.isfinite(model.coef_))
    np.testing.assert_array_equal(BilevelLasso().fit(np.ones((9, 2)), np.arange(9.0)).coef_, 0)
    rare = (np.arange(len(Y)) == 0).astype(int)  # one sample trains in every split
    assert BilevelLogisticRegression("scalar", penalty="l1").fit(X, rare).coef_.shape == (1, 10)
    splits = [(np.arange(1, 200), np.arange(1)), (np.arange(100), np.arange(100, 200))]
    with pytest.raises(ValueError, match="cv leaves class number 1 out of the samples"):
        BilevelLogisticRegression("scalar", penalty="l1", cv=splits).fit(X, rare)
    with pytest.raises(ValueError, match="at least one non-zero number"):
        BilevelLasso().fit(X, Y, sample_weight=np.zeros(len(Y)))
    weight = np.r_[np.zeros(100), np.ones(100)]
    one, other = (np.arange(100), np.arange(100, 200)), (np.arange(100, 200), np.arange(100))
    with pytest.raises(ValueError, match="cv leaves a split without samples to train on"):
        BilevelLasso("scalar", cv=[one]).fit(X, Y, sample_weight=weight)
    with pytest.raises(ValueError, match="cv holds out no sample with a positive weight"):
        BilevelLasso("scalar", cv=[other]).fit(X, Y, sample_weight=weight)
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ValueError, match="The loss is not finite: do some features"),
    ):
        BilevelLasso("scalar", cv=3).fit(X, Y * 1e200)


def test_a_penalty_per_feature_needs_three_splits():
    with pytest.warns(PenaltyWarning, match="one per feature"):
        model = BilevelLasso(cv=2, random_state=0).fit(X, Y)
    assert model.per_ == "scalar"
    assert model.penalty_.shape == (10,)


def test_elastic_net_classifiers_show_both_penalties():
    x, y = X[:100, :4], (Y[:100] > 140).astype(int)
    model = BilevelLogisticRegression(
        "scalar", penalty="elasticnet", l1_ratio=0.5, cv=3, random_state=0
    ).fit(x, y)  # fmt: skip
    l1, l2 = np.broadcast_to(model.penalty_, 4), np.broadcast_to(model.l2_penalty_, 4)
    p = model.predict_proba(x)[:, 1]
    slope = x.T @ (p - y) + l2 * model.coef_[0]
    used = model.coef_[0] != 0
    assert np.any(used)
    np.testing.assert_allclose(slope[used], -(l1 * np.sign(model.coef_[0]))[used], rtol=1e-3)
    assert np.all(np.abs(slope) <= l1 * (1 + 1e-3))


def test_a_nearly_singular_system_is_solved():
    """Rounding has made it indefinite by more than any shift that is tried."""
    H = np.array([[1.0, 1 + 1e-6], [1 + 1e-6, 1.0]])
    found = _solved(H.copy(), H @ np.array([2.0, 2.0]))
    np.testing.assert_allclose(found, [2.0, 2.0], rtol=1e-5)


def test_a_classifier_with_a_penalty_per_weight():
    labels = np.digitize(Y[:90], [100, 180])
    model = BilevelLogisticRegression("weight", penalty="l1", cv=3, max_iter=1, random_state=0)
    model.fit(X[:90, :4], labels)
    assert model.penalty_.shape == model.coef_.shape == (3, 4)
    assert np.all(model.penalty_ > 0)


def test_breast_cancer_with_few_features():
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    model = BilevelLogisticRegression(penalty="l1", random_state=0).fit(x[::2], y[::2])
    assert model.score(x[1::2], y[1::2]) > 0.94 and np.mean(model.coef_ != 0) < 0.7


def test_a_lasso_by_signs_is_one_by_any_other_method(monkeypatch):
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(20, 6))
    H, c, none = Z.T @ Z, rng.normal(size=6) * 9, np.zeros(0)
    kinks = Penalty(np.full(6, 4.0), np.zeros(6), none, None).kinks
    signs = _fit.minimum(H, c, kinks, np.zeros(6))
    slope = H @ signs + c
    assert np.all(np.abs(slope) <= 4.0 + 1e-9) and 0 < np.count_nonzero(signs) < 6
    np.testing.assert_allclose(slope[signs != 0], -4.0 * np.sign(signs[signs != 0]))
    monkeypatch.setattr(_fit, "_feature_sign", lambda *_: None)  # too many changes
    np.testing.assert_allclose(_fit.minimum(H, c, kinks, np.zeros(6)), signs, atol=1e-7)


def test_a_step_that_lowers_no_loss_is_not_taken(monkeypatch):
    labels = (Y > 140).astype(float)
    models = Models(Design(X, np.ones(200), True), LOGISTIC, True)
    task = Task(np.full(200, 1 / 200), None, labels, 0, 1)
    term = Penalty(np.zeros(10), np.ones(10), np.zeros(0), None)
    fit, values = models.blank(task), iter(range(1000))
    monkeypatch.setattr(models, "_value", lambda *_: float(next(values)))
    same, moved = models._search(task, term, fit, np.arange(10), np.zeros(11), np.ones(11))
    assert same is fit and not moved


def test_unused_features_are_hollow_in_the_picture():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    x = np.column_stack([X[:, :3], np.ones(len(X))])
    model = BilevelLasso("group", groups=[0, 0, 1, 2], max_iter=1, random_state=0).fit(x, Y)
    model.per_, model.penalty_ = "group", np.array([1.0, 2.0, 3.0])
    axes = model.plot_penalties()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["in use", "zero"]
    assert 2 in axes.lines[1].get_xdata()
    matplotlib.pyplot.close(axes.figure)


def test_a_broken_scikit_learn_is_not_a_missing_one(monkeypatch):
    class Broken:
        def find_spec(self, name, *_):
            if name == "sklearn":
                raise ModuleNotFoundError("No module named 'joblib'", name="joblib")

    monkeypatch.delitem(sys.modules, "sklearn")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    spec = pdbo.sklearn.__spec__
    with pytest.raises(ModuleNotFoundError, match="joblib"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
