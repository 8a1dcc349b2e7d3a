"""Regression: squares, L1, elastic net and groups, with penalties that are learned."""

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from ._base import BilevelModel, Data, Learned, Splits, check_ratio, final, raw_weights
from ._design import Design, Matrix, moments
from ._fit import SQUARED, Penalty
from ._learn import Parameters


class _Regressor(RegressorMixin, BilevelModel):
    """What the regressors share."""

    _kind: ClassVar[str]
    l1_ratio: Any = None  # only some have it as a parameter

    def __init__(
        self,
        per: str = "feature",
        *,
        groups: ArrayLike | None = None,
        fit_intercept: bool = True,
        cv: Splits = None,
        max_iter: int = 10,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ):
        self.per = per
        self.groups = groups
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Matrix, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the penalties, then fit the model to all samples."""
        self._check_params()
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order="C",
            multi_output=True, y_numeric=True,
        )  # fmt: skip
        weight = self._weight(X, sample_weight)
        columns = np.asarray(y if y.ndim == 2 else y[:, None], np.float64)
        mean, variance = moments(columns, weight, bool(self.fit_intercept))
        unit = self._target_units(variance)
        targets = list(((columns - mean) / unit).T)
        data = Data(X, targets, 1, weight, None)
        parameters = self._parameters(X.shape[1])
        learned, fits = self._learn(data, SQUARED, self._first, parameters, int(self.max_iter))
        design = learned.learner.models.design
        weights, offsets = raw_weights(fits, design, 1)
        self.coef_ = np.asarray((weights * unit).T, X.dtype, order="C")
        self.intercept_ = np.asarray(offsets * unit + mean, X.dtype)
        self._show(learned, design, float(unit[0]), float(weight.sum(dtype=np.float64)), X.dtype)
        if y.ndim == 1:
            self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        return self

    def predict(self, X: Matrix) -> np.ndarray:
        """The value predicted for each sample."""
        return self._decide(X)

    def _target_units(self, variance: np.ndarray) -> np.ndarray:
        """The units of the targets: one for all, so that one penalty is the same for all."""
        mean = float(np.mean(variance))
        return np.full(len(variance), np.sqrt(mean) if mean > 0 else 1.0)

    def _first(self, design: Design) -> list[Penalty]:
        return self._bases(design, self._kind, 1, self.l1_ratio)

    def _show(self, learned: Learned, design: Design, unit: float, total: float, dtype: Any):
        """Set `penalty_` and its like."""
        term = final(learned)
        self.penalty_ = self._shown(term.l1 * design.unit * unit).astype(dtype)


class BilevelRidge(_Regressor):
    r"""Ridge regression that learns its own penalties.

    It learns the penalties $p$ on held-out samples, then minimises over all samples

    $$\sum_i s_i\, \|y_i - x_i^\top W - b\|^2 + \sum_{jk} p_j W_{jk}^2$$

    with the sample weights s. With `per="scalar"` that is `Ridge(alpha=penalty_)`.

    Parameters
    ----------
    per : {"feature", "scalar", "group"}, default="feature"
        What has its own penalty: every feature, shared by its weights for all targets; nothing,
        so that one penalty serves all weights; or every group of features.

    groups : array-like of shape (n_features,), default=None
        The group of each feature, as labels of any type. For `per="group"` only.

    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.

    cv : int, cross-validation generator or iterable, default=None
        The splits on which penalties are learned, as usual in scikit-learn; there may be one.
        None means 5 shuffled folds.

    max_iter : int, default=10
        The most rounds that change the shape of the penalties; they end before if the held-out
        loss no longer surely falls.

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

    penalty_ : float or ndarray of shape (n_features,) or (n_groups,)
        The penalties.

    per_ : str
        `per`, or "scalar" if one level did as well on held-out samples.

    path_ : dict of ndarray
        What was tried, in order: "stage", "level" (the logarithm of the common factor), "loss"
        (held out, in units of the targets' deviations) and "nonzero" (the mean number of weights
        in use).

    certificate_ : object
        Whether the weights minimise their problem and the level of the penalties the held-out
        loss: `ok`, `inner_gap`, `distance` and `where`, computed when it is first looked at.

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
    BilevelLasso : The same with L1, with notes on the method.
    sklearn.linear_model.RidgeCV : One penalty, from a grid.

    Notes
    -----
    Several targets are measured in units of their standard deviations. For the method see
    `BilevelLasso`; a shape uses the squares of the weights here.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from pdbo.sklearn import BilevelRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BilevelRidge(random_state=0).fit(X, y)
    >>> model.penalty_.shape
    (10,)
    """

    _kind = "l2"

    def _target_units(self, variance: np.ndarray) -> np.ndarray:
        return np.sqrt(np.where(variance > 0, variance, 1.0))

    def _show(self, learned: Learned, design: Design, unit: float, total: float, dtype: Any):
        term = final(learned)
        self.penalty_ = self._shown(term.l2 * design.unit**2 * total).astype(dtype)


class BilevelLasso(_Regressor):
    r"""A lasso that learns its own penalties.

    It learns the penalties $p$ on held-out samples, then minimises over all samples

    $$\frac{1}{2\sum_i s_i} \sum_i s_i\, \|y_i - x_i^\top W - b\|^2 + \sum_{jk} p_j |W_{jk}|$$

    with the sample weights s. With `per="scalar"` that is `Lasso(alpha=penalty_)`.

    Parameters
    ----------
    per : {"feature", "scalar", "group"}, default="feature"
        What has its own penalty: every feature, shared by its weights for all targets; nothing,
        so that one penalty serves all weights; or every group of features.

    groups : array-like of shape (n_features,), default=None
        The group of each feature, as labels of any type. For `per="group"` only.

    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.

    cv : int, cross-validation generator or iterable, default=None
        The splits on which penalties are learned, as usual in scikit-learn; there may be one.
        None means 5 shuffled folds.

    max_iter : int, default=10
        The most rounds that change the shape of the penalties; they end before if the held-out
        loss no longer surely falls.

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

    penalty_ : float or ndarray of shape (n_features,) or (n_groups,)
        The penalties.

    per_ : str
        `per`, or "scalar" if one level did as well on held-out samples.

    path_ : dict of ndarray
        What was tried, in order: "stage", "level" (the logarithm of the common factor), "loss"
        (held out, in units of the targets' deviations) and "nonzero" (the mean number of weights
        in use).

    certificate_ : object
        Whether the weights minimise their problem and the level of the penalties the held-out
        loss: `ok`, `inner_gap`, `distance` and `where`, computed when it is first looked at.

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
    BilevelElasticNet, BilevelGroupLasso, BilevelRidge : The same with other penalties.
    sklearn.linear_model.LassoCV : One penalty, from a grid.

    Notes
    -----
    Learning the penalties is a bilevel problem: the inner problem fits the weights of every split,
    the outer function is the mean loss on the samples that the splits hold out. Penalties are a
    level times a shape, learned one after the other:

    1. Level: a path from strong to weak penalties, all splits side by side, refined by the
       derivative of the outer function, which is taken on the support (Bertrand et al. 2022). With
       `per="feature"` penalties are tried in units of the features' standard deviations and, if
       these differ by more than a factor of 2, as they are.
    2. Shape: a penalty is divided by a power of the weight that the model before gave to it (Zou
       2006), in every split by the weights of that split alone. Two powers are tried in each
       round, at levels around the one at which the penalties weigh the models before as they did.
       A round counts if it lowers the held-out loss by more than half a standard error.

    If the first round does not count, one level is used for all, `per_` is "scalar", and a
    `PenaltyWarning` says so. Many penalties fitted to few samples would overfit; a handful of
    choices, judged on samples that had no part in them, is the protection.

    References
    ----------
    H. Zou, The adaptive lasso and its oracle properties, 2006.

    Q. Bertrand et al., Implicit differentiation for fast hyperparameter selection in non-smooth
    convex learning, 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from pdbo.sklearn import BilevelLasso
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BilevelLasso(random_state=0).fit(X, y)
    >>> model.penalty_.shape
    (10,)
    """

    _kind = "l1"


class BilevelElasticNet(_Regressor):
    r"""An elastic net that learns its own penalties.

    It learns the penalties $p$ and $q$ on held-out samples, then minimises over all samples

    $$\frac{1}{2\sum_i s_i} \sum_i s_i\, \|y_i - x_i^\top W - b\|^2 + \sum_{jk} p_j |W_{jk}|
    + \tfrac12 \sum_{jk} q_j W_{jk}^2$$

    with the sample weights s. With `per="scalar"` that is `ElasticNet(alpha=penalty_ +
    l2_penalty_, l1_ratio=penalty_ / (penalty_ + l2_penalty_))`. With several penalties, p is
    learned one by one; q follows the units of the features.

    Parameters
    ----------
    per : {"feature", "scalar", "group"}, default="feature"
        What has its own penalty: every feature, shared by its weights for all targets; nothing,
        so that one penalty serves all weights; or every group of features.

    groups : array-like of shape (n_features,), default=None
        The group of each feature, as labels of any type. For `per="group"` only.

    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.

    cv : int, cross-validation generator or iterable, default=None
        The splits on which penalties are learned, as usual in scikit-learn; there may be one.
        None means 5 shuffled folds.

    max_iter : int, default=10
        The most rounds that change the shape of the penalties; they end before if the held-out
        loss no longer surely falls.

    random_state : int, RandomState instance or None, default=None
        Shuffles the samples before they are split; not used if `cv` is given.

    verbose : int, default=0
        Above 0, prints a line with the held-out loss at every step.

    l1_ratio : float, default=None
        The share of L1, between 0 (excluded) and 1, in the level of stage 1. None tries several.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        The weights W, transposed.

    intercept_ : float or ndarray of shape (n_targets,)
        The intercepts b.

    penalty_, l2_penalty_ : float or ndarray of shape (n_features,) or (n_groups,)
        The penalties p and q.

    per_ : str
        `per`, or "scalar" if one level did as well on held-out samples.

    path_ : dict of ndarray
        What was tried, in order: "stage", "level" (the logarithm of the common factor), "loss"
        (held out, in units of the targets' deviations) and "nonzero" (the mean number of weights
        in use).

    certificate_ : object
        Whether the weights minimise their problem and the level of the penalties the held-out
        loss: `ok`, `inner_gap`, `distance` and `where`, computed when it is first looked at.

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
    BilevelLasso : L1 alone, with notes on the method.
    sklearn.linear_model.ElasticNetCV : One penalty, from a grid.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from pdbo.sklearn import BilevelElasticNet
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BilevelElasticNet(random_state=0).fit(X, y)
    >>> model.l2_penalty_.shape
    (10,)
    """

    _kind = "elasticnet"

    def __init__(
        self,
        per: str = "feature",
        *,
        l1_ratio: float | None = None,
        groups: ArrayLike | None = None,
        fit_intercept: bool = True,
        cv: Splits = None,
        max_iter: int = 10,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ):
        super().__init__(
            per, groups=groups, fit_intercept=fit_intercept, cv=cv, max_iter=max_iter,
            random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.l1_ratio = l1_ratio

    def _check_params(self) -> None:
        super()._check_params()
        check_ratio(self.l1_ratio, zero=False)

    def _show(self, learned: Learned, design: Design, unit: float, total: float, dtype: Any):
        super()._show(learned, design, unit, total, dtype)
        self.l2_penalty_ = self._shown(final(learned).l2 * design.unit**2).astype(dtype)


class BilevelGroupLasso(_Regressor):
    r"""A group lasso, or sparse group lasso, that learns its own penalties.

    With features $z$ in units of their standard deviations it minimises over all samples

    $$\frac{1}{2\sum_i s_i} \sum_i s_i\, \|y_i - z_i^\top V - b\|^2 + \sum_j p_j |V_j|
    + \sum_G q_G \|V_G\|.$$

    At level t and with the share r of L1, p is $e^t r$ and q is $e^t (1 - r)$ times the root of the
    size of the group, before shapes and deviations. Several targets are fitted each by itself.

    Parameters
    ----------
    per : {"feature", "group", "scalar"}, default="feature"
        What has its own penalty: every group and, in the L1 part, every feature; every group,
        shared by the L1 part; or nothing, so that one level serves all.

    groups : array-like of shape (n_features,), default=None
        The group of each feature, as labels of any type. None makes each feature a group of its
        own, which is a lasso.

    l1_ratio : float, default=0.5
        The share r of L1, between 0 (the group lasso) and 1 (excluded).

    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.

    cv : int, cross-validation generator or iterable, default=None
        The splits on which penalties are learned, as usual in scikit-learn; there may be one.
        None means 5 shuffled folds.

    max_iter : int, default=10
        The most rounds that change the shape of the penalties; they end before if the held-out
        loss no longer surely falls.

    random_state : int, RandomState instance or None, default=None
        Shuffles the samples before they are split; not used if `cv` is given.

    verbose : int, default=0
        Above 0, prints a line with the held-out loss at every step.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        The weights, for features as they are.

    intercept_ : float or ndarray of shape (n_targets,)
        The intercepts.

    penalty_ : ndarray of shape (n_groups,)
        The penalties q of the groups, in the order of `groups_`, in units of features' deviations.

    l1_penalty_ : ndarray of shape (n_features,)
        The penalties p.

    per_ : str
        `per`, or "scalar" if one level did as well on held-out samples.

    path_ : dict of ndarray
        What was tried, in order: "stage", "level" (the logarithm of the common factor), "loss"
        (held out, in units of the targets' deviations) and "nonzero" (the mean number of weights
        in use).

    certificate_ : object
        Whether the weights minimise their problem and the level of the penalties the held-out
        loss: `ok`, `inner_gap`, `distance` and `where`, computed when it is first looked at.

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
    BilevelLasso : L1 alone, with notes on the method.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from pdbo.sklearn import BilevelGroupLasso
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BilevelGroupLasso(groups=["person"] * 4 + ["blood"] * 6, random_state=0).fit(X, y)
    >>> model.penalty_.shape
    (2,)
    """

    _own_groups = True

    def __init__(
        self,
        per: str = "feature",
        *,
        groups: ArrayLike | None = None,
        l1_ratio: float = 0.5,
        fit_intercept: bool = True,
        cv: Splits = None,
        max_iter: int = 10,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ):
        super().__init__(
            per, groups=groups, fit_intercept=fit_intercept, cv=cv, max_iter=max_iter,
            random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.l1_ratio = l1_ratio

    def _check_params(self) -> None:
        super()._check_params()
        check_ratio(self.l1_ratio, one=False)

    def _parameters(self, features: int, outputs: int = 1) -> Parameters | None:
        if self.groups is None:  # every feature is a group of its own: the lasso
            self.groups_ = np.arange(features)
            number = np.arange(features)
            return None if self.per == "scalar" else Parameters(number, None, features)
        labels = self._group_numbers(features)
        count = len(self.groups_)
        if self.per == "scalar":
            return None
        if self.per == "group":
            return Parameters(labels, np.arange(count), count, labels)
        number = count + np.arange(features)
        return Parameters(number, np.arange(count), count + features, labels)

    def _first(self, design: Design) -> list[Penalty]:
        zero, r = np.zeros(design.shape[1]), self.l1_ratio
        if self.groups is None:
            return [Penalty(zero + 1, zero, np.zeros(0), None)]
        labels = self._group_numbers(design.shape[1])
        return [Penalty(zero + r, zero, (1 - r) * np.sqrt(np.bincount(labels)), labels)]

    def _show(self, learned: Learned, design: Design, unit: float, total: float, dtype: Any):
        term, r = final(learned), self.l1_ratio
        l1, group = (
            (term.l1, term.group) if self.groups is not None else (r * term.l1, (1 - r) * term.l1)
        )
        self.penalty_, self.l1_penalty_ = (group * unit).astype(dtype), (l1 * unit).astype(dtype)
