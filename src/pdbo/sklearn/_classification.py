"""Classification: logistic regression with penalties that are learned."""

from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from .._precision import double_unless
from . import _fit
from ._base import BilevelModel, Data, Splits, check_ratio, final, raw_weights
from ._design import Matrix
from ._penalties import LOGISTIC
from ._search import TUNE, VALIDATE, Plan, Search, Table

ROOM = 1_000_000  # weights in all splits together above which only one split is used
WORK = 2e7  # products per Newton step above which the compiled search learns penalties of squares
KINDS = ("l2", "l1", "elasticnet")


class BilevelLogisticRegression(ClassifierMixin, BilevelModel):
    r"""Logistic regression that learns its own penalties.

    It learns the penalties $p$ on held-out samples, then minimises over all samples

    $$\sum_i s_i\, \ell(y_i, x_i^\top W + b) + \tfrac12 \sum_{jk} p_{jk} W_{jk}^2$$

    with the cross-entropy $\ell$ and the sample weights s. With `per="scalar"` that is
    `LogisticRegression(C=1 / penalty_)`; with two classes there is one column of weights. With
    `penalty="l1"` the penalty is $\sum_{jk} p_{jk} |W_{jk}|$, with `penalty="elasticnet"` this
    plus $\tfrac12 \sum_{jk} q_{jk} W_{jk}^2$.

    Parameters
    ----------
    per : {"feature", "scalar", "weight", "group"}, default="feature"
        What has its own penalty: every feature, shared by its weights for all classes; nothing,
        so that one penalty serves all weights; every single weight; or every group of features.

    penalty : {"l2", "l1", "elasticnet"}, default="l2"
        The kind of penalty.

    l1_ratio : float, default=None
        The share of L1 in an elastic net, between 0 (excluded) and 1. None tries several.

    groups : array-like of shape (n_features,), default=None
        The group of each feature, as labels of any type. For `per="group"` only.

    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.

    cv : int, cross-validation generator or iterable, default=None
        The splits on which penalties are learned, as usual in scikit-learn; with many weights (see
        Notes) at least 3, or 2 with `per="scalar"`. None means 5 shuffled stratified folds; only
        the first is used if five copies of the weights would be more than a million numbers.

    max_iter : int, default=100
        The most rounds that change the shape of the penalties; with many weights, the most steps
        on the penalties in each of phases 1 and 2.

    tol : float, default=1e-6
        With many weights, the last fit ends if its Newton decrement, divided by the square root of
        the sum of the sample weights, is at most `tol`; in float32, at most the larger of `tol`
        and 3.5e-4.

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

    l2_penalty_ : float or ndarray
        The penalties q, in the same form. With `penalty="elasticnet"` only.

    per_ : str
        `per`, or "scalar" if one level did as well on held-out samples.

    path_ : dict of ndarray
        What was tried, in order: "stage", "level" (the logarithm of the common factor), "loss"
        (held out) and "nonzero" (the mean number of weights in use), but with many weights.

    certificate_ : object
        Whether the weights minimise their problem and the level of the penalties the held-out
        loss: `ok`, `inner_gap`, `distance` and `where`, computed when it is first looked at.
        With many weights (see Notes) it is that of `pdbo.certify`.

    n_iter_ : int
        The number of points tried.

    groups_ : ndarray of shape (n_groups,)
        The groups, in the order of `penalty_`, if there are any.

    n_features_in_ : int
        The number of features seen in `fit`.

    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if `X` has names that are all strings.

    See Also
    --------
    BilevelRidge : The same for regression.
    BilevelLasso : Has notes on how penalties are learned.
    sklearn.linear_model.LogisticRegressionCV : One penalty, from a grid.

    Notes
    -----
    Penalties are learned as in `BilevelLasso`, except for `penalty="l2"` with many weights: if
    those of one model, squared, times the samples are more than 20 million. This is about that.
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

    _kinds = ("scalar", "feature", "weight", "group")

    def __init__(
        self,
        per: str = "feature",
        *,
        penalty: str = "l2",
        l1_ratio: float | None = None,
        groups: ArrayLike | None = None,
        fit_intercept: bool = True,
        cv: Splits = None,
        max_iter: int = 100,
        tol: float = 1e-6,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ):
        self.per = per
        self.penalty = penalty
        self.l1_ratio = l1_ratio
        self.groups = groups
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def _check_params(self) -> None:
        super()._check_params()
        if self.penalty not in KINDS:
            raise ValueError(f"penalty must be one of {', '.join(KINDS)}, got {self.penalty!r}.")
        if self.l1_ratio is not None and self.penalty != "elasticnet":
            raise ValueError("l1_ratio goes with penalty='elasticnet' only.")
        check_ratio(self.l1_ratio, zero=False)
        if not isinstance(self.tol, Real) or not self.tol > 0:
            raise ValueError(f"tol must be a number above 0, got {self.tol!r}.")

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
        data = Data(X, [labels.astype(np.int32)], outputs, weight, labels)
        weights = X.shape[1] * outputs
        if self.penalty == "l2" and (X.shape[0] + weights) * weights**2 > WORK:
            self._learn_many(data)
        else:
            self._learn_few(data)
        if outputs > 1:  # a constant added to all scores of a sample changes nothing
            self.intercept_ -= self.intercept_.mean()
        self.classes_ = classes
        return self

    def _learn_few(self, data: Data) -> None:
        """L1, elastic net and few squares."""
        X, outputs = data.X, data.outputs
        parameters = self._parameters(X.shape[1], outputs)
        learned, fits = self._learn(
            data,
            _fit.LOGISTIC,
            lambda design: self._bases(design, self.penalty, outputs, self.l1_ratio),
            parameters,
            int(self.max_iter),
        )
        design = learned.learner.models.design
        weights, offsets = raw_weights(fits, design, outputs)
        self.coef_ = np.asarray(weights.T, X.dtype, order="C")
        self.intercept_ = np.asarray(offsets, X.dtype)
        term, unit = final(learned), np.repeat(design.unit, outputs)
        total = float(data.weight.sum(dtype=np.float64))
        l1 = self._shown(total * term.l1 * unit, outputs).astype(X.dtype)
        l2 = self._shown(total * term.l2 * unit**2, outputs).astype(X.dtype)
        self.penalty_ = l2 if self.penalty == "l2" else l1
        if self.penalty == "elasticnet":
            self.l2_penalty_ = l2

    def _learn_many(self, data: Data) -> None:
        """L2 with many weights: the compiled search."""
        X, outputs = data.X, data.outputs
        index = self._parameters(X.shape[1], outputs)
        groups = np.zeros(X.shape[1], int) if index is None else index.entry[::outputs]
        groups = None if self.per == "weight" else groups
        roles = self._roles(X, data.strata, outputs)
        table = Table(X, data.targets[0], outputs, data.weight, roles, groups)
        plan = Plan(
            exponent=self.per in ("feature", "weight"),
            each=self.per != "scalar",
            intercept=bool(self.fit_intercept),
            steps=int(self.max_iter),
            tol=float(self.tol),
            name=type(self).__name__ if self.verbose else None,
        )
        with double_unless(X.dtype):
            search = Search(LOGISTIC, table, plan)
            model = search.run()
        self.coef_ = np.asarray(model.weights.T, X.dtype, order="C")
        self.intercept_ = np.asarray(model.offsets, X.dtype)
        if groups is None:
            self.penalty_ = np.ascontiguousarray(model.penalties.T)
        else:
            self.penalty_ = model.penalties[np.unique(groups, return_index=True)[1], 0]
        if self.per == "scalar":
            self.penalty_ = self.penalty_[0]
        self._set_learned(search.tried, search.learned, plan.each and not search.freed)
        self.n_iter_ = model.steps

    def _roles(self, X: Matrix, strata: np.ndarray | None, outputs: int) -> np.ndarray:
        """For each split the role of every row; half of the folds that do not validate tune."""
        tests, least = self._held_out(X.shape[0], strata), 2 if self.per == "scalar" else 3
        if len(tests) < least:
            raise ValueError(
                f"cv must make at least {least} splits with per={self.per!r}, got {len(tests)}: "
                "one part trains the weights, one tunes the penalties and one validates."
            )
        roles = np.zeros((len(tests), X.shape[0]), int)
        for k, test in enumerate(tests):
            for after in range(1, 1 + (len(tests) - 1) // 2):
                roles[k, tests[(k + after) % len(tests)]] = TUNE
            roles[k, test] = VALIDATE
        if not np.all(np.any(roles == 0, 1)):
            raise ValueError("cv leaves a split without samples to train on.")
        single = self.cv is None and len(tests) * X.shape[1] * outputs > ROOM
        return roles[:1] if single else roles

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
