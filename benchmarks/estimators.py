"""The estimators with L1 and groups against models with cross-validated penalties, same data.

Run as `python -m benchmarks.estimators sparse`, `real` or both without a name; a number after the
name is the number of seeds. Each is written to benchmarks/records/estimators-NAME.json. skglm
takes part if it is installed. Seconds are
processor time: set OPENBLAS_NUM_THREADS=1.
"""

import inspect
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

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
    LogisticRegressionCV,
    RidgeCV,
)
from sklearn.model_selection import GridSearchCV, KFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pdbo.sklearn import (
    BilevelElasticNet,
    BilevelGroupLasso,
    BilevelLasso,
    BilevelLogisticRegression,
    BilevelRidge,
)

from .record import write

TEST = 1000  # test samples of artificial data
GROUP = 20  # features in a group
Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def regression(seed: int) -> Parts:
    """scikit-learn's make_regression: 300 samples, 30 features, 6 of which matter."""
    X, y = make_regression(300 + TEST, 30, n_informative=6, noise=20, random_state=seed)
    return X[:300], y[:300], X[300:], y[300:]


def _noisy(X: np.ndarray, T: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> Parts:
    """Targets with noise half as long as the signal."""
    scale = np.linalg.norm(X @ truth) / len(X) ** 0.5 / 2
    y, u = (A @ truth + scale * rng.normal(size=len(A)) for A in (X, T))
    return X, y, T, u


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


def models(title: str, features: int, seed: int) -> dict[str, Any]:
    """The models to compare; only some of them if there are more than 600 features."""
    cv = _folds(seed)
    chosen: dict[str, Any] = {
        "BilevelLasso": BilevelLasso(cv=cv),
        "LassoCV": LassoCV(cv=cv, max_iter=5000),
        "ElasticNetCV": ElasticNetCV(cv=cv, l1_ratio=[0.1, 0.5, 0.9, 1.0], max_iter=5000),
    }
    if features <= 600:
        chosen["BilevelElasticNet"] = BilevelElasticNet(cv=cv)
        chosen["BilevelRidge"] = BilevelRidge(cv=cv)
        chosen["ARDRegression"] = ARDRegression()
    if "groups" in title:
        chosen["BilevelGroupLasso"] = BilevelGroupLasso(groups=np.arange(features) // GROUP, cv=cv)
    return chosen


def guests(X: np.ndarray, y: np.ndarray, cv: KFold) -> dict[str, Any]:
    """Models of skglm with a penalty from a grid, if it is installed."""
    if X.shape[1] > 600:
        return {}
    try:
        import skglm  # type: ignore
    except ImportError:
        return {}
    top = np.max(np.abs((X - X.mean(0)).T @ (y - y.mean()))) / len(y)
    kinds: dict[str, Any] = {"Lasso": skglm.Lasso(), "MCPRegression": skglm.MCPRegression()}
    grid = {"alpha": top * np.logspace(0, -2.5, 20)}
    return {
        f"skglm {name}, grid": GridSearchCV(m, grid, cv=cv, scoring="neg_mean_squared_error")
        for name, m in kinds.items()
    }


def _timed(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return time.process_time() - start


def sparse(seeds: int = 10) -> dict[str, Any]:
    """Mean squared errors on test samples of artificial data with few features that matter."""
    results: dict[str, Any] = {}
    for title, make in SETTINGS.items():
        errors: dict[str, list[float]] = {}
        seconds: dict[str, list[float]] = {}
        for seed in range(seeds):
            X, y, T, u = make(seed)
            chosen = models(title, X.shape[1], seed) | guests(X, y, _folds(seed))
            for name, model in chosen.items():
                spent = _timed(model, X, y)
                if not seed and "skglm" in name:
                    spent = _timed(model, X, y)  # the first fit compiles
                seconds.setdefault(name, []).append(spent)
                errors.setdefault(name, []).append(float(np.mean((u - model.predict(T)) ** 2)))
        results[title] = _summary(errors, seconds)
        print(title, results[title], flush=True)
    return results


def _summary(errors: dict[str, list[float]], seconds: dict[str, list[float]]) -> dict[str, Any]:
    reference = np.array(next(v for k, v in errors.items() if k in ("LassoCV", "RidgeCV")))
    return {
        name: {
            "error": float(np.mean(values)),
            "standard_error": float(np.std(values, ddof=1) / len(values) ** 0.5),
            "relative_to_reference": float(np.mean(np.array(values) / reference)),
            "median_seconds": float(np.median(seconds[name])),
        }
        for name, values in errors.items()
    }


def real(seeds: int = 10) -> dict[str, Any]:
    """scikit-learn's own data, standardised; a quarter of the samples tests."""
    results: dict[str, Any] = {}
    X, y = load_diabetes(return_X_y=True)
    wine = load_wine().data
    for title, (A, b) in {
        "diabetes": (X, y),
        "wine, alcohol from the others": (wine[:, 1:], wine[:, 0]),
    }.items():
        results[title] = _real(title, A, b, _regressors, seeds)
    for title, load in {
        "wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits,
    }.items():  # fmt: skip
        few = min(seeds, 3) if title == "digits" else seeds
        results[title] = _real(title, *load(return_X_y=True), _classifiers, few)
    return results


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
    for seed in range(seeds):
        parts = train_test_split(
            X, y, test_size=0.25, random_state=seed, stratify=y if classify else None
        )
        for name, model in choose(title, seed).items():
            pipe = make_pipeline(StandardScaler(), model)
            seconds.setdefault(name, []).append(_timed(pipe, parts[0], parts[2]))
            found = pipe.predict(parts[1])
            wrong = found != parts[3] if classify else (found - parts[3]) ** 2
            errors.setdefault(name, []).append(float(np.mean(wrong)))
    table = {
        name: {
            "error": float(np.mean(values)),
            "standard_error": float(np.std(values, ddof=1) / len(values) ** 0.5),
            "median_seconds": float(np.median(seconds[name])),
        }
        for name, values in errors.items()
    } | {"splits": seeds}
    print(title, table, flush=True)
    return table


def main() -> None:
    """Measure the parts named, or all, and write the records."""
    parts = {"sparse": sparse, "real": real}
    words = sys.argv[1:]
    seeds = [int(w) for w in words if w.isdigit()]
    for name in [w for w in words if not w.isdigit()] or parts:
        if name not in parts:
            sys.exit(f"no such part: {name}; choose from {', '.join(parts)}.")
        settings = {k: p.default for k, p in inspect.signature(parts[name]).parameters.items()}
        settings |= {"seeds": seeds[0]} if seeds else {}
        print("written to", write(f"estimators-{name}", settings, parts[name](**settings)))


if __name__ == "__main__":
    main()
