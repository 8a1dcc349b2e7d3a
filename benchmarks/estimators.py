"""The estimators with L1 and groups against models with cross-validated penalties, same data.

Run as `python -m benchmarks.estimators sparse`, `held_out`, `real`, `by_solve` or all without a
name; a number after the name is the number of seeds. Each is written to
benchmarks/records/estimators-NAME.json. skglm and celer take part if they are installed. Seconds
are processor time: set OPENBLAS_NUM_THREADS=1. Constants of the estimators were chosen with random
seeds below 1000.
"""

import contextlib
import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_wine,
    make_regression,
)
from sklearn.linear_model import (
    ARDRegression,
    ElasticNetCV,
    LassoCV,
    LinearRegression,
    LogisticRegressionCV,
    RidgeCV,
)
from sklearn.model_selection import GridSearchCV, KFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pdbo
from pdbo.sklearn import (
    BilevelElasticNet,
    BilevelGroupLasso,
    BilevelLasso,
    BilevelLogisticRegression,
    BilevelRidge,
)

from .record import write

FIRST = 1000  # the first random seed of artificial data
SLOW = 5  # data sets of each setting on which slow models are measured
TEST = 1000  # test samples of artificial data
GROUP = 20  # features in a group


class Parts(NamedTuple):
    """Samples to fit, samples that test, and which features matter."""

    X: np.ndarray
    y: np.ndarray
    T: np.ndarray
    u: np.ndarray
    truth: np.ndarray


class Oracle(LinearRegression):
    """Least squares for those who know which features matter: no method can ask for more."""

    def __init__(self, truth: np.ndarray | None = None):
        super().__init__()
        self.truth = truth

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: Any = None) -> "Oracle":
        """Fit the features that matter."""
        return super().fit(X[:, self.truth], y, sample_weight)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Predict from the features that matter."""
        return np.asarray(super().predict(X[:, self.truth]))


def regression(seed: int) -> Parts:
    """scikit-learn's make_regression: 300 samples, 30 features, 6 of which matter."""
    X, y, truth = make_regression(
        300 + TEST, 30, n_informative=6, noise=20, random_state=seed, coef=True
    )
    return Parts(X[:300], y[:300], X[300:], y[300:], truth != 0)


def _noisy(X: np.ndarray, T: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> Parts:
    """Targets with noise half as long as the signal."""
    scale = np.linalg.norm(X @ truth) / len(X) ** 0.5 / 2
    y, u = (A @ truth + scale * rng.normal(size=len(A)) for A in (X, T))
    return Parts(X, y, T, u, truth != 0)


def correlated(features: int) -> Callable[[int], Parts]:
    """200 samples with correlations 0.5^|j - k|; 15 weights are one."""

    def make(seed: int) -> Parts:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(200 + TEST, features))
        for j in range(1, features):
            X[:, j] = 0.5 * X[:, j - 1] + 0.75**0.5 * X[:, j]
        truth = np.zeros(features)
        truth[rng.choice(features, 15, replace=False)] = 1
        return _noisy(X[:200], X[200:], truth, rng)

    return make


def grouped(features: int) -> Callable[[int], Parts]:
    """200 samples, groups of 20 features; three groups have weights 1 to 5 on five features."""

    def make(seed: int) -> Parts:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(200 + TEST, features))
        truth = np.zeros(features)
        for k in range(3):
            truth[GROUP * k : GROUP * k + 5] = np.arange(1, 6)
        return _noisy(X[:200], X[200:], truth, rng)

    return make


SETTINGS: dict[str, Callable[[int], Parts]] = {
    "make_regression, p = 30": regression,
    "correlated, p = 250": correlated(250),
    "correlated, p = 2500": correlated(2500),
    "sparse groups, p = 600": grouped(600),
    "sparse groups, p = 4800": grouped(4800),
}


def _folds(seed: int) -> KFold:
    return KFold(5, shuffle=True, random_state=seed)


def models(title: str, parts: Parts, cv: Any) -> dict[str, Any]:
    """The models of the first round; all use the same splits."""
    X, y = parts.X, parts.y
    chosen: dict[str, Any] = {
        "BilevelLasso": BilevelLasso(cv=cv),
        "LassoCV": LassoCV(cv=cv, max_iter=5000),
        "the true features": Oracle(parts.truth),
    }
    if "groups" in title:
        labels = np.arange(X.shape[1]) // GROUP
        chosen["BilevelGroupLasso"] = BilevelGroupLasso(groups=labels, cv=cv)
    with contextlib.suppress(ImportError):
        import skglm  # type: ignore

        chosen["skglm MCP"] = _over_grid(skglm.MCPRegression(), X, y, cv)
    return chosen


def slow_models(title: str, parts: Parts, cv: Any) -> dict[str, Any]:
    """The models of the second round, which take longer, or find what LassoCV finds."""
    X, y = parts.X, parts.y
    ratios = [0.1, 0.5, 0.9, 1.0]
    chosen: dict[str, Any] = {
        "BilevelElasticNet": BilevelElasticNet(cv=cv),
        "BilevelRidge": BilevelRidge(cv=cv),
        "ElasticNetCV": ElasticNetCV(cv=cv, l1_ratio=ratios, max_iter=5000),
        "ARDRegression": ARDRegression(),
    }
    with contextlib.suppress(ImportError):
        import celer  # type: ignore

        chosen["celer Lasso"] = _over_grid(celer.Lasso(), X, y, cv)
        if "groups" in title:
            chosen["celer GroupLasso"] = _over_grid(celer.GroupLasso(groups=GROUP), X, y, cv)
    return chosen


def _over_grid(model: Any, X: np.ndarray, y: np.ndarray, cv: Any) -> Any:
    """The model with the penalty of twenty that cross-validation prefers."""
    top = np.max(np.abs((X - X.mean(0)).T @ (y - y.mean()))) / len(y)
    grid = {"alpha": top * np.logspace(0, -2.5, 20)}
    return GridSearchCV(model, grid, cv=cv, scoring="neg_mean_squared_error")


def _timed(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return time.process_time() - start


def sparse(seeds: int = 20) -> Iterator[dict[str, Any]]:
    """Errors on test samples of artificial data with few features that matter; five folds."""
    return _compared(list(SETTINGS), _folds, seeds)


def held_out(seeds: int = 20) -> Iterator[dict[str, Any]]:
    """The same with 100 samples that train and 100 that validate, as papers have it."""
    split = [(np.arange(100), np.arange(100, 200))]
    titles = ["sparse groups, p = 600", "correlated, p = 2500"]
    return _compared(titles, lambda seed: split, seeds)


def _compared(
    titles: list[str], splits: Callable[[int], Any], seeds: int
) -> Iterator[dict[str, Any]]:
    """Every model on data with every seed; the results so far after each of them."""
    errors: dict[str, dict[str, list[float]]] = {title: {} for title in titles}
    seconds: dict[str, dict[str, list[float]]] = {title: {} for title in titles}
    rounds = [(models, seed) for seed in range(FIRST, FIRST + seeds)]
    rounds += [(slow_models, seed) for seed in range(FIRST, FIRST + min(seeds, SLOW))]
    for choose, seed in rounds:
        for title in titles:
            parts = SETTINGS[title](seed)
            for name, model in choose(title, parts, splits(seed)).items():
                seconds[title].setdefault(name, []).append(_timed(model, parts.X, parts.y))
                error = float(np.mean((parts.u - model.predict(parts.T)) ** 2))
                errors[title].setdefault(name, []).append(error)
        if seed > FIRST or choose is slow_models:
            yield {title: _summary(errors[title], seconds[title]) for title in titles}


def _summary(errors: dict[str, list[float]], seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Means, ratios to every rival on the same data, and seconds: the first fit may compile."""
    table: dict[str, Any] = {}
    for name, values in errors.items():
        table[name] = {
            **_mean(values),
            "data_sets": len(values),
            "relative_to_LassoCV": _ratio(values, errors["LassoCV"]),
            "first_seconds": seconds[name][0],
            "median_seconds": float(np.median(seconds[name])),
            "errors": [float(f"{v:.5g}") for v in values],
        }
        if name.startswith("Bilevel"):
            rivals = {k: v for k, v in errors.items() if not k.startswith("Bilevel")}
            table[name]["relative_to"] = {k: _ratio(values, v) for k, v in rivals.items()}
    return table


def _ratio(values: list[float], rival: list[float]) -> dict[str, float | None]:
    """The ratio of errors, mean over the data sets that both have."""
    count = min(len(values), len(rival))
    return _mean(np.array(values[:count]) / np.array(rival[:count]))


def _mean(values: Any) -> dict[str, float | None]:
    """Mean and standard error."""
    values = np.asarray(values)
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "standard_error": error}


def real(seeds: int = 20) -> Iterator[dict[str, Any]]:
    """scikit-learn's own data, standardised; a quarter of the samples tests."""
    results: dict[str, Any] = {}
    wine = load_wine().data
    for title, (A, b) in {
        "diabetes": load_diabetes(return_X_y=True),
        "wine, alcohol from the others": (wine[:, 1:], wine[:, 0]),
    }.items():
        results[title] = _real(title, A, b, _regressors, seeds)
        yield results
    for title, load in {
        "wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits,
    }.items():  # fmt: skip
        results[title] = _real(title, *load(return_X_y=True), _classifiers, seeds)
        yield results


def _regressors(title: str, seed: int) -> dict[str, Any]:
    cv = _folds(seed)
    return {
        "BilevelLasso": BilevelLasso(cv=cv),
        "BilevelElasticNet": BilevelElasticNet(cv=cv),
        "BilevelRidge": BilevelRidge(cv=cv),
        "RidgeCV": RidgeCV(np.logspace(-3, 4, 50)),
        "LassoCV": LassoCV(cv=cv),
        "ElasticNetCV": ElasticNetCV(cv=cv, l1_ratio=[0.1, 0.5, 0.9, 1.0]),
        "ARDRegression": ARDRegression(),
    }


def _classifiers(title: str, seed: int) -> dict[str, Any]:
    chosen = {
        "Bilevel l2": BilevelLogisticRegression(random_state=seed),
        "LogisticRegressionCV l2": LogisticRegressionCV(
            l1_ratios=(0.0,), use_legacy_attributes=False, max_iter=1000
        ),
    }
    if title != "digits":
        chosen["Bilevel l1"] = BilevelLogisticRegression(penalty="l1", random_state=seed)
        chosen["LogisticRegressionCV l1"] = LogisticRegressionCV(
            l1_ratios=(1.0,), solver="saga", use_legacy_attributes=False, max_iter=1000, tol=1e-3
        )
    return chosen


def _real(title: str, X: Any, y: Any, choose: Callable[..., Any], seeds: int) -> dict[str, Any]:
    classify = choose is _classifiers
    errors: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(FIRST, FIRST + seeds):
        parts = train_test_split(
            X, y, test_size=0.25, random_state=seed, stratify=y if classify else None
        )
        for name, model in choose(title, seed).items():
            pipe = make_pipeline(StandardScaler(), model)
            seconds.setdefault(name, []).append(_timed(pipe, parts[0], parts[2]))
            found = pipe.predict(parts[1])
            wrong = found != parts[3] if classify else (found - parts[3]) ** 2
            errors.setdefault(name, []).append(float(np.mean(wrong)))
    rivals = {k: np.array(v) for k, v in errors.items() if not k.startswith("Bilevel")}
    table = {}
    for name, values in errors.items():
        table[name] = _mean(values) | {
            "first_seconds": seconds[name][0],
            "median_seconds": float(np.median(seconds[name])),
        }
        if name not in rivals:
            table[name]["above"] = {k: _mean(np.array(values) - v) for k, v in rivals.items()}
    return table


def by_solve(seeds: int = 1) -> Iterator[dict[str, Any]]:
    """The level that `pdbo.solve` finds for the problem that an estimator has solved.

    It starts at e times the estimator's level, and at weights of zero. All penalties share it.
    """
    results: dict[str, Any] = {}
    X, y = load_diabetes(return_X_y=True)
    A, b = regression(FIRST)[:2]
    for title, model, data in (
        ("BilevelRidge, diabetes", BilevelRidge("scalar", random_state=0), (X, y)),
        ("BilevelLasso, diabetes", BilevelLasso("scalar", random_state=0), (X, y)),
        ("BilevelLasso, make_regression", BilevelLasso(random_state=0), (A, b)),
    ):
        _timed(model, *data)
        results[title] = {"fit_seconds": _timed(model, *data)}
        with jax.enable_x64(True):
            problem, x, weights = model.as_problem()
            for call in ("first", "second"):
                start = time.process_time()
                sol = pdbo.solve(problem, x + 1.0, jax.tree.map(jnp.zeros_like, weights))
                results[title][f"{call}_solve_seconds"] = time.process_time() - start
            results[title] |= {
                "held_out_loss": float(problem.outer(x, weights)),
                "held_out_loss_by_solve": float(sol.f),
                "level_by_solve_minus_ours": float(sol.x),
                "ok": bool(sol.ok),
            }
        yield results


def main() -> None:
    """Measure the parts named, or all, and write the records."""
    parts = {"sparse": sparse, "held_out": held_out, "real": real, "by_solve": by_solve}
    words = sys.argv[1:]
    seeds = [int(w) for w in words if w.isdigit()]
    for name in [w for w in words if not w.isdigit()] or parts:
        if name not in parts:
            sys.exit(f"no such part: {name}; choose from {', '.join(parts)}.")
        settings = {k: p.default for k, p in inspect.signature(parts[name]).parameters.items()}
        settings |= {"seeds": seeds[0]} if seeds else {}
        for found in parts[name](**settings):
            print("written to", write(f"estimators-{name}", settings, found), flush=True)


if __name__ == "__main__":
    main()
