"""The estimators: scikit-learn's interface to the search of `_search`."""

import contextlib
import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import Tags
from sklearn.utils.extmath import safe_sparse_dot, softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ._penalties import LOGISTIC, SQUARED, Loss
from ._search import TUNE, VALIDATE, Matrix, Model, Plan, Search, Table, moments

PARTS = 5  # splits, unless `cv` says otherwise
ROOM = 1_000_000  # weights in all splits together above which only one split is used
Splits = Any
"""None, a number of splits, a splitter of scikit-learn, or pairs of index arrays."""

KINDS = ("scalar", "feature", "weight", "group")


class _BilevelLinear(BaseEstimator):
    """What the classifier and the regressor share."""

    _loss: ClassVar[Loss]

    def __init__(
        self,
        per: str = "feature",
        *,
        groups: ArrayLike | None = None,
        fit_intercept: bool = True,
        cv: Splits = None,
        max_iter: int = 100,
        tol: float = 1e-6,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ):
        self.per = per
        self.groups = groups
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_params(self) -> None:
        if self.per not in KINDS:
            raise ValueError(f"per must be one of {', '.join(KINDS)}, got {self.per!r}.")
        if (self.per == "group") != (self.groups is not None):
            raise ValueError(
                "groups, one label for each feature, must be given with per='group' and only then."
            )
        if isinstance(self.max_iter, bool) or not isinstance(self.max_iter, Integral):
            raise TypeError(f"max_iter must be an integer, got {self.max_iter!r}.")
        if self.max_iter < 1:
            raise ValueError(f"max_iter must be at least 1, got {self.max_iter}.")
        if not isinstance(self.tol, Real) or not self.tol > 0:
            raise ValueError(f"tol must be a number above 0, got {self.tol!r}.")

    def _learn(
        self,
        X: Matrix,
        target: np.ndarray,
        strata: np.ndarray | None,
        outputs: int,
        weight: np.ndarray,
        unit: np.ndarray | float = 1.0,
        mean: np.ndarray | float = 0.0,
    ) -> None:
        """Learn the penalties, fit the weights to all samples, set the shared attributes."""
        groups = self._group_of_features(X.shape[1])
        table = Table(X, target, outputs, weight, self._roles(X, strata, outputs), groups)
        plan = Plan(
            exponent=self.per in ("feature", "weight"),
            each=self.per != "scalar",
            intercept=bool(self.fit_intercept),
            steps=int(self.max_iter),
            tol=float(self.tol),
            name=type(self).__name__ if self.verbose else None,
        )
        earlier = None
        if self.warm_start and hasattr(self, "penalty_"):
            earlier = self._earlier(groups, (X.shape[1], outputs), unit, mean)
        double = contextlib.nullcontext() if X.dtype == np.float32 else jax.enable_x64(True)
        with double:
            model = Search(self._loss, table, plan).run(earlier)
        self.coef_ = np.asarray((model.weights * unit).T, X.dtype, order="C")
        self.intercept_ = np.asarray(model.offsets * unit + mean, X.dtype)
        self.n_iter_ = model.steps
        if groups is None:
            self.penalty_ = np.ascontiguousarray(model.penalties.T)
        else:
            self.penalty_ = model.penalties[np.unique(groups, return_index=True)[1], 0]
        if self.per == "scalar":
            self.penalty_ = self.penalty_[0]

    def _earlier(
        self,
        groups: np.ndarray | None,
        shape: tuple[int, int],
        unit: np.ndarray | float,
        mean: np.ndarray | float,
    ) -> Model:
        """The last fit, to start from."""
        coef = np.atleast_2d(self.coef_)
        if coef.T.shape != shape:
            raise ValueError(
                f"warm_start needs data as before: {coef.shape[1]} features and {coef.shape[0]} "
                f"outputs, got {shape[0]} and {shape[1]}."
            )
        penalty = np.asarray(self.penalty_)
        expected = shape[::-1] if groups is None else (groups.max() + 1,)
        if penalty.shape != (() if self.per == "scalar" else expected):
            raise ValueError("warm_start needs per and groups as before.")
        spread = penalty.T if groups is None else np.atleast_1d(penalty)[groups][:, None]
        return Model(coef.T / unit, (np.atleast_1d(self.intercept_) - mean) / unit, spread, 0)

    def _group_of_features(self, features: int) -> np.ndarray | None:
        """For each feature the number of its penalty; None if every weight has its own."""
        if self.per == "weight":
            return None
        if self.per != "group":
            return np.zeros(features, int) if self.per == "scalar" else np.arange(features)
        groups = np.asarray(self.groups)
        if groups.shape != (features,):
            raise ValueError(
                f"groups must have one label for each of the {features} features, got shape "
                f"{groups.shape}."
            )
        self.groups_, index = np.unique(groups, return_inverse=True)
        return index

    def _weight(self, X: Matrix, sample_weight: ArrayLike | None) -> np.ndarray:
        weight = _check_sample_weight(sample_weight, X, dtype=X.dtype)
        if np.any(weight < 0):
            raise ValueError("Negative values in data passed to `sample_weight`.")
        if not np.any(weight > 0):
            raise ValueError("Sample weights must contain at least one non-zero number.")
        return weight

    def _roles(self, X: Matrix, strata: np.ndarray | None, outputs: int) -> np.ndarray:
        """For each split the role of every row; half of the folds that do not validate tune."""
        count = X.shape[0]
        cv: Splits = self.cv
        least = 2 if self.per == "scalar" else 3
        if count < least:
            raise ValueError(
                f"Found array with n_samples={count} while a minimum of {least} is required."
            )
        single = False
        if cv is None:
            smallest = count if strata is None else np.min(np.unique(strata, return_counts=True)[1])
            parts = int(np.clip(smallest, 3, PARTS))
            single = parts * X.shape[1] * outputs > ROOM
            kind = KFold if strata is None else StratifiedKFold
            cv = kind(min(parts, count), shuffle=True, random_state=self.random_state)
        labels = np.zeros(count) if strata is None else strata
        with warnings.catch_warnings():
            if self.cv is None:  # a class with few members is not an error here
                warnings.filterwarnings("ignore", "The least populated class")
            splitter: Splits = check_cv(cv, labels, classifier=strata is not None)
            tests = [test for _, test in splitter.split(np.zeros(count), labels)]
        if len(tests) < least:
            raise ValueError(
                f"cv must make at least {least} splits with per={self.per!r}, got {len(tests)}: "
                "one part trains the weights, one tunes the penalties and one validates."
            )
        roles = np.zeros((len(tests), count), int)
        for k, test in enumerate(tests):
            for after in range(1, 1 + (len(tests) - 1) // 2):
                roles[k, tests[(k + after) % len(tests)]] = TUNE
            roles[k, test] = VALIDATE
        if not np.all(np.any(roles == 0, 1)):
            raise ValueError("cv leaves a split without samples to train on.")
        return roles[:1] if single else roles

    def _decide(self, X: Matrix) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        return safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_


class BilevelLogisticRegression(ClassifierMixin, _BilevelLinear):
    r"""Logistic regression that learns its own l2 penalties.

    It learns the penalties $p$ on held-out samples, then minimises over all samples

    $$\sum_i s_i\, \ell(y_i, x_i^\top W + b) + \tfrac12 \sum_{jk} p_{jk} W_{jk}^2$$

    with the cross-entropy $\ell$ and the sample weights s. With `per="scalar"` that is
    `LogisticRegression(C=1 / penalty_)`; with two classes there is one column of weights.

    Parameters
    ----------
    per : {"feature", "scalar", "weight", "group"}, default="feature"
        What has its own penalty: every feature, shared by its weights for all classes; nothing,
        so that one penalty serves all weights; every single weight; or every group of features.

    groups : array-like of shape (n_features,), default=None
        The group of each feature, as labels of any type. For `per="group"` only.

    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.

    cv : int, cross-validation generator or iterable, default=None
        The splits on which penalties are learned, as usual in scikit-learn: at least 3, or 2 with
        `per="scalar"`. None means 5 shuffled stratified folds; only the first is used if five
        copies of the weights would be more than a million numbers.

    max_iter : int, default=100
        The most steps on the penalties in each of phases 1 and 2 (see Notes).

    tol : float, default=1e-6
        The last fit ends if its Newton decrement, divided by the square root of the sum of the
        sample weights, is at most `tol`; in float32, at most the larger of `tol` and 3.5e-4.

    warm_start : bool, default=False
        Whether `fit` starts from the penalties and weights of the last fit.

    random_state : int, RandomState instance or None, default=None
        Shuffles the samples before they are split; not used if `cv` is given.

    verbose : int, default=0
        Above 0, prints a line with the held-out loss at every step.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The class labels.

    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        The weights W, transposed.

    intercept_ : ndarray of shape (1,) or (n_classes,)
        The intercepts b.

    penalty_ : float or ndarray
        The penalties: one number, or of shape (n_features,), (n_groups,) or the shape of `coef_`.

    n_iter_ : int
        The steps taken on the penalties.

    groups_ : ndarray of shape (n_groups,)
        The groups, in the order of `penalty_`. With `per="group"` only.

    n_features_in_ : int
        The number of features seen in `fit`.

    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if `X` has names that are all strings.

    See Also
    --------
    BilevelRidge : The same for regression.
    sklearn.linear_model.LogisticRegressionCV : One penalty, from a grid.

    Notes
    -----
    Learning the penalties is a bilevel problem: the inner problem fits the weights of each split,
    the outer function is the loss on the samples that the split holds out. The inner problem is
    strictly convex, so its minimum is unique and the implicit gradient applies (Pedregosa 2016).
    Each step takes a few Newton steps with conjugate gradients, solves one more system for the
    adjoint, and makes a step of Adam on the logarithms of the penalties. All of it is one compiled
    program; data of nearly the same shape share it. The phases:

    1. A path from strong to weak penalties, then steps on one level and, for `per="feature"` and
       `per="weight"`, on an exponent: the penalty of a feature is the level times a power of its
       variance. Exponent 0 is the plain model, 1 the model of standardised features.
    2. Unless `per="scalar"`, every penalty is tuned by itself, in each split separately. One part
       of the samples trains the weights, one tunes the penalties, and one validates: its loss
       decides when to stop. The penalties are the geometric means over the splits. They are used
       only if the loss fell by more than a standard error over the splits; else those of phase 1
       are used.
    3. With several splits, stronger penalties whose loss is within two standard errors of the best
       are tried, and those with the highest held-out accuracy are kept: the loss also measures
       confidence, so it is lowest at weaker penalties than the share of wrong answers.
    4. The weights are fitted to all samples.

    References
    ----------
    F. Pedregosa, Hyperparameter optimization with approximate gradient, ICML 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from pdbo.sklearn import BilevelLogisticRegression
    >>> X, y = load_wine(return_X_y=True)
    >>> model = BilevelLogisticRegression(random_state=0).fit(X, y)
    >>> model.penalty_.shape
    (13,)
    >>> model.score(X, y) > 0.98
    True
    """

    _loss = LOGISTIC

    def fit(self, X: Matrix, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the penalties, then fit the model to all samples."""
        self._check_params()
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order="C"
        )
        check_classification_targets(y)
        weight = self._weight(X, sample_weight)
        classes, labels = np.unique(y, return_inverse=True)
        if len(np.unique(labels[weight > 0])) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data "
                f"contains only one class: {y[weight > 0][0]!r}"
            )
        outputs = 1 if len(classes) == 2 else len(classes)
        self._learn(X, labels.astype(np.int32), labels, outputs, weight)
        if outputs > 1:  # a constant added to all scores of a sample changes nothing
            self.intercept_ -= self.intercept_.mean()
        self.classes_ = classes
        return self

    def decision_function(self, X: Matrix) -> np.ndarray:
        """The score of each class; with two classes, that of the second."""
        scores = self._decide(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Matrix) -> np.ndarray:
        """The most probable class of each sample."""
        scores = self._decide(X)
        index = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)
        return self.classes_[index]

    def predict_proba(self, X: Matrix) -> np.ndarray:
        """The probability of each class, in the order of `classes_`."""
        scores = self._decide(X)
        if scores.shape[1] == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        return softmax(scores)

    def predict_log_proba(self, X: Matrix) -> np.ndarray:
        """The logarithm of the probability of each class."""
        return np.log(self.predict_proba(X))


class BilevelRidge(RegressorMixin, _BilevelLinear):
    r"""Ridge regression that learns its own penalties.

    It learns the penalties $p$ on held-out samples, then minimises over all samples

    $$\sum_i s_i\, \|y_i - x_i^\top W - b\|^2 + \sum_{jk} p_{jk} W_{jk}^2$$

    with the sample weights s. With `per="scalar"` that is `Ridge(alpha=penalty_)`.

    Parameters
    ----------
    per : {"feature", "scalar", "weight", "group"}, default="feature"
        What has its own penalty: every feature, shared by its weights for all targets; nothing,
        so that one penalty serves all weights; every single weight; or every group of features.

    groups : array-like of shape (n_features,), default=None
        The group of each feature, as labels of any type. For `per="group"` only.

    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.

    cv : int, cross-validation generator or iterable, default=None
        The splits on which penalties are learned, as usual in scikit-learn: at least 3, or 2 with
        `per="scalar"`. None means 5 shuffled folds; only the first is used if five copies of the
        weights would be more than a million numbers.

    max_iter : int, default=100
        The most steps on the penalties in each of phases 1 and 2 (see Notes).

    tol : float, default=1e-6
        The last fit ends if its Newton decrement, divided by the square root of the sum of the
        sample weights, is at most `tol`; in float32, at most the larger of `tol` and 3.5e-4.

    warm_start : bool, default=False
        Whether `fit` starts from the penalties and weights of the last fit.

    random_state : int, RandomState instance or None, default=None
        Shuffles the samples before they are split; not used if `cv` is given.

    verbose : int, default=0
        Above 0, prints a line with the held-out loss at every step.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        The weights W, transposed.

    intercept_ : float or ndarray of shape (n_targets,)
        The intercepts b.

    penalty_ : float or ndarray
        The penalties: one number, or of shape (n_features,), (n_groups,) or, with one for every
        weight, (n_targets, n_features).

    n_iter_ : int
        The steps taken on the penalties.

    groups_ : ndarray of shape (n_groups,)
        The groups, in the order of `penalty_`. With `per="group"` only.

    n_features_in_ : int
        The number of features seen in `fit`.

    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if `X` has names that are all strings.

    See Also
    --------
    BilevelLogisticRegression : The same for classification, with notes on the method.
    sklearn.linear_model.RidgeCV : One penalty, from a grid.

    Notes
    -----
    Learning the penalties is a bilevel problem: the inner problem fits the weights of each split,
    the outer function is the loss on the samples that the split holds out. The inner problem is
    strictly convex, so its minimum is unique and the implicit gradient applies (Pedregosa 2016).
    Each step takes a few Newton steps with conjugate gradients, solves one more system for the
    adjoint, and makes a step of Adam on the logarithms of the penalties. All of it is one compiled
    program; data of nearly the same shape share it. The phases:

    1. A path from strong to weak penalties, then steps on one level and, for `per="feature"` and
       `per="weight"`, on an exponent: the penalty of a feature is the level times a power of its
       variance. Exponent 0 is the plain model, 1 the model of standardised features.
    2. Unless `per="scalar"`, every penalty is tuned by itself, in each split separately. One part
       of the samples trains the weights, one tunes the penalties, and one validates: its loss
       decides when to stop. The penalties are the geometric means over the splits. They are used
       only if the loss fell by more than a standard error over the splits; else those of phase 1
       are used.
    3. The weights are fitted to all samples.

    Several targets are measured in units of their standard deviations.

    References
    ----------
    F. Pedregosa, Hyperparameter optimization with approximate gradient, ICML 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from pdbo.sklearn import BilevelRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BilevelRidge(random_state=0).fit(X, y)
    >>> model.penalty_.shape
    (10,)
    """

    _loss = SQUARED

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Matrix, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the penalties, then fit the model to all samples."""
        self._check_params()
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            order="C",
            multi_output=True,
            y_numeric=True,
        )
        weight = self._weight(X, sample_weight)
        columns = np.asarray(y if y.ndim == 2 else y[:, None], X.dtype)
        mean, variance = moments(columns, weight, bool(self.fit_intercept))
        unit = np.sqrt(np.where(variance > 0, variance, 1))
        target = ((columns - mean) / unit).astype(X.dtype)
        self._learn(X, target, None, columns.shape[1], weight, unit, mean)
        if y.ndim == 1:
            self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        return self

    def predict(self, X: Matrix) -> np.ndarray:
        """The value predicted for each sample."""
        return self._decide(X)
