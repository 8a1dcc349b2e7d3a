"""Logistic regression with squares as penalties: scikit-learn's checks, and what it promises."""

import pickle
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pytest

pytest.importorskip("sklearn")

import scipy.sparse
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from cases import COMPILED
from pdbo.sklearn import BilevelLogisticRegression, PenaltyWarning, _classification, _search
from pdbo.sklearn import _fit as plain
from pdbo.sklearn._design import Design
from pdbo.sklearn._penalties import LOGISTIC, Effort, PenaltyDescent
from pdbo.sklearn._search import Plan, Search, Table

pytestmark = [
    pytest.mark.usefixtures("optimised"),  # few programs, many fits
    pytest.mark.filterwarnings("ignore::pdbo.sklearn.PenaltyWarning"),
]
X, Y = load_wine(return_X_y=True)
X = StandardScaler().fit_transform(X)
GROUPS = ["a"] * 5 + ["b"] * 8
PERS = ("scalar", "feature", "weight", "group")


def classifier(per="feature", **options):
    options = {"random_state": 0, "groups": GROUPS if per == "group" else None, **options}
    return BilevelLogisticRegression(per, **options)


@pytest.fixture
def many(monkeypatch):
    """As if there were many weights: the compiled search."""
    monkeypatch.setattr(_classification, "WORK", 0)


STEPS = 5  # as many as scikit-learn gives its own estimators in these checks


@parametrize_with_checks([BilevelLogisticRegression(max_iter=STEPS, cv=3)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# What is fitted: against scikit-learn's own solvers.


@pytest.mark.parametrize("classes", [2, 3])
def test_one_penalty_is_logistic_regression(classes):
    x, y = X[classes > Y], Y[classes > Y]
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    ours = classifier("scalar").fit(x, y, sample_weight=weight)
    theirs = LogisticRegression(C=1 / ours.penalty_, tol=1e-10, max_iter=10_000)
    theirs.fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-5)


@pytest.mark.parametrize("intercept", [True, False])
def test_a_penalty_per_feature_is_a_scaling_of_the_features(intercept):
    ours = classifier(fit_intercept=intercept).fit(X, Y)
    unit = np.sqrt(ours.penalty_)
    theirs = LogisticRegression(C=1, tol=1e-10, max_iter=10_000, fit_intercept=intercept)
    theirs.fit(X / unit, Y)
    np.testing.assert_allclose(ours.coef_ * unit, theirs.coef_, atol=1e-4)
    expected = theirs.decision_function(X / unit)
    np.testing.assert_allclose(ours.decision_function(X), expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["few", "many"])
@pytest.mark.parametrize("per", PERS)
def test_the_weights_are_stationary_for_the_penalties(per, kind, monkeypatch):
    monkeypatch.setattr(_classification, "WORK", np.inf if kind == "few" else 0)
    model = classifier(per, max_iter=10).fit(X, Y)
    shapes = {"scalar": (), "feature": (13,), "weight": (3, 13), "group": (2,)}
    assert np.shape(model.penalty_) == shapes[per]
    penalty = model.penalty_
    if per == "group":
        assert list(model.groups_) == ["a", "b"]
        penalty = np.repeat(penalty, [5, 8])
    residual = model.predict_proba(X) - np.eye(3)[Y]
    np.testing.assert_allclose(residual.T @ X + penalty * model.coef_, 0, atol=1e-3)


def test_a_warning_is_given_at_the_line_of_the_user(many, monkeypatch):
    """However deep below that line the library is."""
    step = Search.step

    def rough(*arguments):
        w, report = step(*arguments)
        return w, report._replace(decrement=np.ones(()))

    monkeypatch.setattr(Search, "step", rough)
    with pytest.warns(ConvergenceWarning, match="did not settle") as said:
        classifier("scalar", max_iter=1).fit(X, Y)
    assert [w.filename for w in said] == [__file__]


# What is learned.


def test_the_gradient_of_the_penalties():
    """Adam's first moment is a fifth of the gradient: against differences, in plain NumPy."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
    roles = np.stack([np.where(np.arange(60) % 3 == k, 2, 0) for k in range(3)])
    table = Table(x, y, 1, rng.uniform(0.5, 2, 60), roles, np.arange(4))
    search = Search(LOGISTIC, table, Plan(True, True, False, 1, 1e-6, None))
    problem = search.problem(search.roles == 0, search.roles == 2)
    start = search.start()
    each = rng.normal(size=(3, 4))
    point = start[0] | {"level": 1.3, "exponent": 0.4}
    point["each"] = start[0]["each"].at[:, :4].set(each)
    point = jax.tree.map(jax.numpy.asarray, point)
    rate = jax.tree.map(jax.numpy.zeros_like, point)
    solver = PenaltyDescent(search.loss, problem.data.held, rate, Effort(9, 50, 1e-12, 1e-12))
    state = eqx.filter_jit(solver.step)(problem, solver.init(problem, point, start[1], None))

    scale = np.asarray(search.common["log_scale"])[:4]
    models = plain.Models(Design(x, np.ones(60), False), plain.LOGISTIC, False)
    unit = np.sqrt(np.mean(x**2, 0))

    def held_out(level, exponent, each):
        total = 0.0
        for k in range(3):
            fit, out = (np.where(roles[k] == role, table.weight, 0) for role in (0, 2))
            l2 = np.exp(level + exponent * scale + each[k]) / unit**2 / fit.sum()
            task = plain.Task(fit / fit.sum(), out / out.sum(), y, k, 1)
            term = plain.Penalty(np.zeros(4), l2, np.zeros(0), None)
            (fit,) = models.solve([task], [term], [models.blank(task)])
            total += models.held(task, fit).sum() / 3
        return total

    h = 1e-4
    for name, values in (("level", (h, 0)), ("exponent", (0, h))):
        up, down = (held_out(1.3 + t * values[0], 0.4 + t * values[1], each) for t in (1, -1))
        assert float(state.mean[name]) / 0.2 == pytest.approx((up - down) / (2 * h), rel=1e-4)
    for k, j in ((0, 0), (1, 3), (2, 1)):
        move = np.zeros((3, 4))
        move[k, j] = h
        numeric = (held_out(1.3, 0.4, each + move) - held_out(1.3, 0.4, each - move)) / (2 * h)
        assert float(state.mean["each"][k, j]) / 0.2 == pytest.approx(numeric, rel=1e-4)


def test_what_was_learned_is_shown(monkeypatch):
    mixed = np.random.default_rng(0).permutation(Y)  # nothing to learn
    with pytest.warns(PenaltyWarning, match="one per feature"):
        model = classifier(max_iter=1).fit(X, mixed)
    assert model.per_ == "scalar" and set(model.path_) == {"stage", "level", "loss", "nonzero"}
    assert model.path_["stage"][-1] == "level"
    monkeypatch.setattr(_classification, "WORK", 0)
    with pytest.warns(PenaltyWarning, match="one per feature"):
        model = classifier(max_iter=1).fit(X, mixed)
    assert model.per_ == "scalar" and set(model.path_) == {"stage", "level", "loss"}
    assert model.path_["stage"][-1] == "refit" and model.certificate_.inner_gap < 1e-6


def test_useless_features_are_penalised_away():
    truth, gains = np.where(np.arange(40) < 4, 2.0, 0.0), []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x, test = rng.normal(size=(300, 40)), rng.normal(size=(2000, 40))
        y, answers = (rng.random(len(a)) < 1 / (1 + np.exp(-a @ truth)) for a in (x, test))
        one, each = (classifier(per).fit(x, y) for per in ("scalar", "feature"))
        assert np.max(np.log(each.penalty_[:4])) < np.median(np.log(each.penalty_[4:])) - 1
        gains.append(each.score(test, answers) - one.score(test, answers))
    assert min(gains) > 0 and np.mean(gains) > 0.01
    told = classifier("group", groups=["yes"] * 4 + ["no"] * 36).fit(x, y)
    assert told.penalty_[0] > np.e * told.penalty_[1]  # "no" comes first


def test_features_of_any_scale():
    """A penalty per feature makes up for units that one penalty cannot."""
    scale = 10.0 ** np.random.default_rng(0).uniform(-3, 3, 13)
    scores = [cross_val_score(classifier(), x, Y, cv=3).mean() for x in (X, X * scale + 5)]
    assert min(scores) > 0.94


# What scikit-learn's users do with it.


@pytest.mark.parametrize(
    "per, kind", [("feature", scipy.sparse.csr_matrix), ("weight", scipy.sparse.csc_array)]
)
def test_sparse_is_dense(per, kind, many, monkeypatch):
    monkeypatch.setattr(_search, "SMALL", 0)  # else it is made dense
    exact = dict.fromkeys(_search.EFFORTS, [(30, 500, 0, 1e-12)] * 2)
    monkeypatch.setattr(_search, "EFFORTS", exact)  # what is left to chance would tell them apart
    x = np.where(np.abs(X) > 1, X, 0)
    dense, sparse = (classifier(per, max_iter=10).fit(data, Y) for data in (x, kind(x)))
    np.testing.assert_allclose(sparse.penalty_, dense.penalty_, rtol=1e-3)
    np.testing.assert_allclose(sparse.predict_proba(kind(x)), dense.predict_proba(x), atol=1e-4)


def test_labels_of_any_type():
    names = np.array(["zinfandel", "alicante", "merlot"], object)
    numbers = np.argsort([1, 2, 0])
    model, plain = (classifier(max_iter=5).fit(X, labels[Y]) for labels in (names, numbers))
    assert list(model.classes_) == ["alicante", "merlot", "zinfandel"]
    assert set(model.predict(X)) <= set(names)
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X))
    two = classifier(max_iter=5).fit(X, Y == 1)
    assert two.predict(X).dtype == bool and two.coef_.shape == (1, 13)
    np.testing.assert_allclose(two.predict_proba(X)[:, 1] > 0.5, two.decision_function(X) > 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_that_of_the_data(x32, dtype):
    model = classifier().fit(X.astype(dtype), Y)
    assert not jax.config.jax_enable_x64
    for name in ("coef_", "intercept_", "penalty_"):
        assert getattr(model, name).dtype == dtype
    assert model.predict_proba(X.astype(dtype)).dtype == dtype
    assert model.score(X, Y) > 0.98


def test_pipeline_search_and_pickle():
    pipe = make_pipeline(StandardScaler(), classifier())
    search = GridSearchCV(pipe, {"bilevellogisticregression__per": ["scalar", "feature"]}, cv=3)
    search.fit(X, Y)
    assert search.best_score_ > 0.95
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(X), search.predict_proba(X))


def test_data_of_nearly_the_same_shape_share_a_program(many):
    classifier(max_iter=5).fit(X[18:], Y[18:])
    before = len(COMPILED)
    assert cross_val_score(classifier(max_iter=5), X, Y, cv=5).min() > 0.8
    classifier("scalar", tol=1e-7, max_iter=7).fit(X[25:], Y[25:])
    assert len(COMPILED) == before


def test_random_state_and_splits():
    a, b, c = (classifier(random_state=k).fit(X, Y).penalty_ for k in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)
    splits = list(GroupKFold(5).split(X, Y, groups=np.arange(len(Y)) // 9))
    model = classifier(cv=splits, max_iter=5)
    np.testing.assert_array_equal(*(model.fit(X, Y).penalty_ for _ in range(2)))


def test_progress_on_request(capsys, monkeypatch):
    classifier(max_iter=2).fit(X, Y)
    assert capsys.readouterr().out == ""
    classifier(max_iter=2, verbose=1).fit(X, Y)
    assert "[BilevelLogisticRegression] level: level 4.6" in capsys.readouterr().out
    monkeypatch.setattr(_classification, "WORK", 0)
    classifier(max_iter=2, verbose=1).fit(X, Y)
    assert "[BilevelLogisticRegression] level 2: held-out loss 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"per": "column"}, ValueError, "per must be one of scalar, feature, weight, group, got"),
        ({"groups": [1]}, ValueError, "groups, one label for each feature, must be given with"),
        ({"per": "group", "groups": None}, ValueError, "groups, one label for each feature"),
        ({"per": "group", "groups": [1, 2]}, ValueError, "for each of the 13 features, got shape"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1, got 0"),
        ({"max_iter": 1.5}, TypeError, "max_iter must be an integer, got 1.5"),
        ({"tol": -1}, ValueError, "tol must be a number above 0, got -1"),
        ({"cv": "five"}, ValueError, "Expected .?cv.? as an integer"),
    ],
)  # fmt: skip
def test_bad_parameters(options, error, words):
    with pytest.raises(error, match=words):
        classifier(**options).fit(X, Y)


def test_many_weights_need_three_splits(many):
    with pytest.raises(ValueError, match="cv must make at least 3 splits with per='feature', got"):
        classifier(cv=2).fit(X, Y)


def test_a_split_must_have_a_part_that_trains(many):
    halves = np.arange(89), np.arange(89, 178)
    splits = [(halves[1 - k % 2], halves[k % 2]) for k in range(3)]  # the rest tunes
    with pytest.raises(ValueError, match="cv leaves a split without samples to train on"):
        classifier(cv=splits).fit(X, Y)


def test_very_many_weights_are_learned_on_one_split(many, monkeypatch):
    monkeypatch.setattr(_classification, "ROOM", 0)
    model = classifier("scalar", max_iter=2).fit(X, Y)
    assert model.score(X, Y) > 0.95 and np.all(np.isfinite(model.path_["loss"]))


def test_bad_data():
    with pytest.raises(ValueError, match="only one class"):
        classifier().fit(X, np.zeros(len(Y)))
    with pytest.raises(ValueError, match="Unknown label type"):
        classifier().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="Negative"):
        classifier().fit(X, Y, sample_weight=-np.ones(len(Y)))
    with pytest.raises(ValueError, match="at least one non-zero number"):
        classifier().fit(X, Y, sample_weight=np.zeros(len(Y)))
    with pytest.raises(NotFittedError):
        classifier().predict(X)


def test_without_scikit_learn():
    code = "import sys; sys.modules['sklearn'] = None; import pdbo.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("pdbo.sklearn needs scikit-learn: pip install scikit-learn.")
