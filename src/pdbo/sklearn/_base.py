"""What the estimators share: parameters, splits, what is learned, and how it is shown."""

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import Tags
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .._errors import warn
from ._design import Design, Matrix
from ._fit import Fit, Loss, Models, Penalty, Task
from ._learn import Learner, Parameters, Point, scaled

PARTS = 5  # splits, unless `cv` says otherwise
ALIKE = 2.0  # features whose deviations differ by less than this factor keep their units
RATIOS = (1.0, 0.9, 0.5, 0.1)  # shares of L1 in an elastic net that are tried
Splits = Any
"""None, a number of splits, a splitter of scikit-learn, or pairs of index arrays."""


class PenaltyWarning(UserWarning):
    """One penalty did as well on held-out samples as many, and is used in their place."""


class Data(NamedTuple):
    """What is fitted: features, one target or label for each task of a split, sample weights."""

    X: Matrix
    targets: list[np.ndarray]
    outputs: int
    weight: np.ndarray
    strata: np.ndarray | None


class Learned(NamedTuple):
    """What a certificate is computed from."""

    learner: Learner
    point: Point
    fits: list[Fit]  # of all samples


class BilevelModel(BaseEstimator):
    """What all estimators share."""

    per: str
    groups: ArrayLike | None
    fit_intercept: bool
    cv: Splits
    max_iter: int
    random_state: Any
    verbose: int
    coef_: np.ndarray
    intercept_: np.ndarray
    _kinds: ClassVar[tuple[str, ...]] = ("scalar", "feature", "group")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore
        state.pop("_learned", None)  # the samples do not travel with the model
        return state

    # Parameters

    def _check_params(self) -> None:
        if self.per not in self._kinds:
            raise ValueError(f"per must be one of {', '.join(self._kinds)}, got {self.per!r}.")
        if (self.per == "group") != (self.groups is not None) and not self._own_groups:
            raise ValueError(
                "groups, one label for each feature, must be given with per='group' and only then."
            )
        if isinstance(self.max_iter, bool) or not isinstance(self.max_iter, Integral):
            raise TypeError(f"max_iter must be an integer, got {self.max_iter!r}.")
        if self.max_iter < 1:
            raise ValueError(f"max_iter must be at least 1, got {self.max_iter}.")

    _own_groups: ClassVar[bool] = False  # whether the penalty itself needs groups

    def _group_numbers(self, features: int) -> np.ndarray:
        """The number of the group of each feature; sets `groups_`."""
        groups = np.asarray(self.groups)
        if groups.shape != (features,):
            raise ValueError(
                f"groups must have one label for each of the {features} features, got shape "
                f"{groups.shape}."
            )
        if groups.dtype.kind == "f" and not np.all(np.isfinite(groups)):
            raise ValueError("groups must have a label for every feature, got NaN or infinity.")
        self.groups_, index = np.unique(groups, return_inverse=True)
        return index

    def _weight(self, X: Matrix, sample_weight: ArrayLike | None) -> np.ndarray:
        weight = _check_sample_weight(sample_weight, X, dtype=X.dtype)
        if np.any(weight < 0):
            raise ValueError("Negative values in data passed to `sample_weight`.")
        if not np.any(weight > 0):
            raise ValueError("Sample weights must contain at least one non-zero number.")
        return weight

    # Splits

    def _held_out(self, count: int, strata: np.ndarray | None) -> list[np.ndarray]:
        """For each split the rows that it holds out."""
        cv: Splits = self.cv
        if count < 2:
            raise ValueError(
                f"Found array with n_samples={count} while a minimum of 2 is required."
            )
        if cv is None:
            members = [count] if strata is None else np.unique(strata, return_counts=True)[1]
            if np.max(members) < 2:
                raise ValueError(
                    "Every class has one sample only, so none can be held out to learn penalties."
                )
            parts = min(int(np.clip(np.min(members), 3, PARTS)), int(np.max(members)))
            kind = KFold if strata is None else StratifiedKFold
            cv = kind(parts, shuffle=True, random_state=self.random_state)
        labels = np.zeros(count) if strata is None else strata
        with warnings.catch_warnings():
            if self.cv is None:  # a class with few members is not an error here
                warnings.filterwarnings("ignore", "The least populated class")
            splitter: Splits = check_cv(cv, labels, classifier=strata is not None)
            tests = [test for _, test in splitter.split(np.zeros(count), labels)]
        return tests

    def _tasks(self, data: Data) -> tuple[list[Task], list[Task]]:
        """The models of every split and target, and those of all samples."""
        tests = self._held_out(len(data.weight), data.strata)
        weight, tasks = data.weight.astype(np.float64), []
        for test in tests:
            train, held = weight.copy(), np.zeros_like(weight)
            train[test], held[test] = 0.0, weight[test]
            self._keep_classes(data.strata, weight, train, held)
            if held.sum() <= 0:
                continue
            if train.sum() <= 0:
                raise ValueError("cv leaves a split without samples to train on.")
            split = len(tasks) // len(data.targets)
            train, held = train / train.sum(), held / held.sum()
            tasks += [Task(train, held, t, split, data.outputs) for t in data.targets]
        if not tasks:
            raise ValueError("cv holds out no sample with a positive weight.")
        every = weight / weight.sum()
        return tasks, [Task(every, None, t, -1, data.outputs) for t in data.targets]

    def _keep_classes(
        self, strata: np.ndarray | None, weight: np.ndarray, train: np.ndarray, held: np.ndarray
    ) -> None:
        """Every class must train: by default its rows then do, a split of the user's is refused."""
        if strata is None:
            return
        missing = np.setdiff1d(strata[weight > 0], strata[train > 0])
        if missing.size and self.cv is not None:
            raise ValueError(
                f"cv leaves class number {missing[0]} out of the samples that a split trains on; "
                "use stratified splits (cv=None) or fewer of them."
            )
        back = np.isin(strata, missing)
        train[back], held[back] = weight[back], 0.0

    # Learning

    def _learn(
        self, data: Data, loss: Loss, bases: Any, parameters: Parameters | None, rounds: int
    ) -> tuple[Learned, list[Fit]]:
        """Learn the penalties and fit all samples; `bases` makes penalties from a design."""
        tasks, whole = self._tasks(data)
        design = Design(data.X, data.weight, bool(self.fit_intercept))
        models = Models(design, loss, bool(self.fit_intercept))
        name = type(self).__name__ if self.verbose else None
        learner = Learner(models, tasks, whole, name)
        if not np.isfinite(learner.null):
            raise ValueError("The loss is not finite: do some features have very large values?")
        point = learner.learn(bases(design), parameters, rounds)
        given_up = parameters is not None and point.stage == "level"
        learned = Learned(learner, point, learner.finish(point))
        self._set_learned(learner.path, learned, given_up)
        return learned, learned.fits

    def _set_learned(self, path: list[Any], learned: Any, given_up: bool) -> None:
        """Set what shows what was learned; warn if many penalties were given up for one."""
        self.per_ = "scalar" if given_up else self.per
        if given_up:
            warn(
                f"One penalty does as well on held-out samples as one per {self.per}, so all have "
                'the same level (per_ is "scalar").',
                PenaltyWarning,
            )
        self.n_iter_ = len(path)
        columns = zip(*path, strict=True)
        names = path[0]._fields
        self.path_ = dict(zip(names, (np.array(c) for c in columns), strict=True))
        self._learned = learned
        self.__dict__.pop("_certificate", None)

    def _parameters(self, features: int, outputs: int = 1) -> Parameters | None:
        """The number of the penalty of every weight; None if they share one."""
        if self.per == "scalar":
            return None
        if self.per == "weight":
            number = np.arange(features * outputs)
        elif self.per == "feature":
            number = np.repeat(np.arange(features), outputs)
        else:
            number = np.repeat(self._group_numbers(features), outputs)
        return Parameters(number, None, int(number.max()) + 1)

    def _shown(self, values: np.ndarray, outputs: int = 1) -> Any:
        """Penalties of all weights in the form of `penalty_`."""
        if self.per == "scalar":
            return values[0]
        table = values.reshape(-1, outputs)
        if self.per == "weight":
            return np.ascontiguousarray(table.T)
        if self.per == "feature":
            return table[:, 0]
        return table[np.unique(self._group_numbers(len(table)), return_index=True)[1], 0]

    def _unit_powers(self, design: Design) -> tuple[float, ...]:
        """Powers of the features' deviations that penalties may follow."""
        if self.per in ("scalar", "group"):
            return (0.0,)
        units = design.unit[design.varies]
        return (1.0,) if units.size == 0 or units.max() < ALIKE * units.min() else (1.0, 0.0)

    def _bases(self, design: Design, kind: str, outputs: int, ratio: float | None) -> list[Penalty]:
        """The penalties at level zero that are tried first."""
        zero, bases = np.zeros(design.shape[1] * outputs), []
        ratios = {"l1": (1.0,), "l2": (0.0,)}.get(kind, RATIOS if ratio is None else (ratio,))
        for power in self._unit_powers(design):
            unit = np.repeat(design.unit ** (power - 1), outputs)
            for r in ratios:
                l1, l2 = r * unit, (1 - r) * unit**2
                bases.append(Penalty(l1 if r else zero, l2 if r < 1 else zero, np.zeros(0), None))
        return bases

    # What is shown

    @property
    def certificate_(self) -> Any:
        """Whether the weights and the level are minimisers, computed when first looked at."""
        found = self._found("certificate_")
        if "_certificate" not in self.__dict__:
            from ._certificate import certificate

            self._certificate = certificate(found)
        return self._certificate

    def as_problem(self) -> Any:
        """The bilevel problem over the level of the penalties, for the solvers of the library.

        Returns
        -------
        problem : pdbo.Problem
            x is the logarithm of the level, relative to the one found; y has the weights of every
            split, for the features in use.

        x, y : pytrees
            The point found.
        """
        found = self._found("as_problem")
        from ._problem import problem

        return problem(found)

    def _found(self, name: str) -> Any:
        """What was learned, with the samples."""
        check_is_fitted(self)
        if "_learned" not in self.__dict__:
            raise AttributeError(
                f"{name} needs the samples, which a pickled model does not hold: look at it before "
                "pickling, or fit again."
            )
        return self._learned

    def plot_penalties(self, ax: Any = None) -> Any:
        """Plot the learned penalties, on a logarithmic axis; returns the Matplotlib axes."""
        check_is_fitted(self)
        from ._plot import plot

        return plot(self, ax)

    def _decide(self, X: Matrix) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        return safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_


def final(learned: Learned) -> Penalty:
    """The penalties of all samples, in units of the features' deviations."""
    return scaled(learned.point.shapes[-1], learned.point.level)


def raw_weights(fits: list[Fit], design: Design, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights (features, outputs) and offsets for features as they are."""
    weights = np.hstack([fit.weights.reshape(-1, outputs) for fit in fits])
    weights = weights * design.scale[:, None]
    offsets = np.concatenate([fit.offsets for fit in fits]) - design.mean @ weights
    return weights, offsets


def check_ratio(ratio: Any, zero: bool = True, one: bool = True) -> None:
    """Raise if a share of L1 is out of its range; zero and one may be excluded."""
    low, high = "[" if zero else "(", "]" if one else ")"
    if ratio is None and one:
        return
    right = isinstance(ratio, Real) and not isinstance(ratio, bool) and 0 <= float(ratio) <= 1
    if not right or (ratio == 0 and not zero) or (ratio == 1 and not one):
        none = "None or " if one else ""
        raise ValueError(f"l1_ratio must be {none}a number in {low}0, 1{high}, got {ratio!r}.")
