"""The workloads: data, start, and an independent judge of any point (x, y) in double precision.

A judge returns one number, at most 1 if the target accuracy is reached. It computes the inner
solution itself if it can do so accurately, instead of trusting the library's.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Judge = Callable[[np.ndarray, np.ndarray], float]


@dataclasses.dataclass(frozen=True)
class Workload:
    """A problem, its target, and how long a library may try."""

    name: str
    title: str
    family: str
    target: str
    make: Callable[[], Arrays]
    judge: Callable[[Arrays], Judge]
    budget: float = 8.0  # seconds a setting has to reach the target
    first: int = 1  # iterations before the first look at a run
    ratio: float = 1.25  # of the iterations at two successive looks
    repeats: int = 5
    fixed: int = 0  # iterations to take if the workload has no target accuracy


def counter_example(n: int, x: float, y: float) -> Arrays:
    """A start with all entries of x equal, and all entries of y."""
    return {"x0": np.full(n, x, np.float32), "y0": np.full((2, n), y, np.float32)}


def many_starts(count: int) -> Arrays:
    """One independent toy per start, with starts spread around the solution."""
    rng = np.random.default_rng(0)
    x0, y0 = rng.uniform(-2, 3, count), rng.uniform(-1, 2, (2, count))
    return {"x0": x0.astype(np.float32), "y0": y0.astype(np.float32)}


def near_ones(tolerance: float, worst: bool = False) -> Callable[[Arrays], Judge]:
    """The root mean square distance of (x, y) from one, over all entries or of the worst start."""

    def judge(x: np.ndarray, y: np.ndarray) -> float:
        squares = np.concatenate([x[None], y]) - 1
        start = np.sqrt(np.mean(squares**2, axis=0))
        return float((np.max(start) if worst else np.sqrt(np.mean(start**2))) / tolerance)

    return lambda data: judge


def ridge_data(rows: int = 400, features: int = 100, seed: int = 0) -> Arrays:
    """A regression where a tenth of the features matter; columns of unit mean square."""
    rng = np.random.default_rng(seed)
    weights = np.where(np.arange(features) < features // 10, 1.0, 0.0)
    A = rng.standard_normal((2 * rows, features))
    b = A @ weights + 2 * rng.standard_normal(2 * rows)
    half = slice(0, rows), slice(rows, None)
    arrays = {"A": A[half[0]], "b": b[half[0]], "A_val": A[half[1]], "b_val": b[half[1]]}
    start = {"x0": np.full(features, -2.0), "y0": np.zeros(features)}
    return {name: np.asarray(value, np.float32) for name, value in (arrays | start).items()}


def ridge_judge(part: float) -> Callable[[Arrays], Judge]:
    """The outer value at the exact inner solution, against the best value of a quasi-Newton method.

    The target: at most `part` of the start's distance to the best value is left.
    """
    from scipy.optimize import minimize

    def make(data: Arrays) -> Judge:
        A, b, A_val, b_val = (data[k].astype(float) for k in ("A", "b", "A_val", "b_val"))
        gram, right = A.T @ A / len(b), A.T @ b / len(b)

        def value(x: np.ndarray) -> tuple[float, np.ndarray]:
            part = 1 / (1 + np.exp(-np.clip(x, -30, 30)))
            H = gram + np.diag(4 * part)
            y = np.linalg.solve(H, right)
            residual = A_val @ y - b_val
            v = np.linalg.solve(H, A_val.T @ residual / len(b_val))
            return 0.5 * float(np.mean(residual**2)), -4 * part * (1 - part) * y * v

        first = value(data["x0"].astype(float))[0]
        found = minimize(value, data["x0"].astype(float), jac=True, method="L-BFGS-B",
                         options={"maxiter": 2000, "maxfun": 5000, "gtol": 1e-9})  # fmt: skip
        best = float(found.fun)
        return lambda x, y: (value(x)[0] - best) / (part * (first - best))

    return make


def digits_data(per_weight: bool) -> Arrays:
    """Handwritten digits: a third for training, a third for validation, pixels from 0 to 1."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    third = len(labels) // 3
    train, validation = order[:third], order[third : 2 * third]
    return {
        "A": (pixels[train] / 16).astype(np.float32),
        "b": labels[train].astype(np.int64),
        "A_val": (pixels[validation] / 16).astype(np.float32),
        "b_val": labels[validation].astype(np.int64),
        "x0": np.zeros((64, 10) if per_weight else (), np.float32),
        "y0": np.zeros((64, 10), np.float32),
    }


def cleaning_data() -> Arrays:
    """Handwritten digits, half of the training labels replaced by wrong ones."""
    data = digits_data(True)
    rng, labels = np.random.default_rng(1), data["b"]
    wrong = rng.permutation(len(labels))[: len(labels) // 2]
    noisy = labels.copy()
    noisy[wrong] = (labels[wrong] + rng.integers(1, 10, len(wrong))) % 10
    return data | {"b": noisy, "x0": np.zeros(len(labels), np.float32)}


def newsgroups_data(iterations: int = 150) -> Arrays:
    """20 Newsgroups: 11,314 documents of unit length, half for training, half for validation.

    The start is a model already fitted with one penalty, exp(0), for all weights.
    """
    from sklearn.datasets import fetch_20newsgroups_vectorized

    bunch: Any = fetch_20newsgroups_vectorized(subset="train", normalize=True)
    order = np.random.default_rng(0).permutation(len(bunch.target))
    half = len(order) // 2
    arrays: Arrays = {}
    for name, rows in (("A", order[:half]), ("A_val", order[half:])):
        part = bunch.data[rows].tocoo()
        arrays |= {
            f"{name}.values": part.data.astype(np.float32),
            f"{name}.rows": part.row.astype(np.int32),
            f"{name}.columns": part.col.astype(np.int32),
            f"{name}.shape": np.array(part.shape),
            f"b{name[1:]}": bunch.target[rows].astype(np.int64),
        }
    zero = np.zeros((bunch.data.shape[1], 20))
    fitted = Classifier(arrays, iterations).fit(zero, zero)
    return arrays | {"x0": zero.astype(np.float32), "y0": fitted.astype(np.float32)}


def cleaning_judge(part: float) -> Callable[[Arrays], Judge]:
    """The validation loss of weights refitted to the images as weighted by sigmoid(x).

    The target: it falls by `part` of the gain from equal weights to leaving out every wrong label.
    """
    from scipy.optimize import minimize

    def make(data: Arrays) -> Judge:
        clean = digits_data(True)["b"] == data["b"]
        model = Classifier(data, 0)
        shape = len(model.seen), data["y0"].shape[1]

        def validate(weights: np.ndarray) -> float:
            def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
                w = flat.reshape(shape)
                loss, slope = model.loss(model.train, model.labels, w, weights)
                return loss + 5e-4 * float(np.sum(w**2)), (slope + 1e-3 * w).ravel()

            options = {"maxiter": 2000, "maxfun": 5000, "gtol": 1e-8}
            found = minimize(value, np.zeros(math.prod(shape)), jac=True, method="L-BFGS-B",
                             options=options)  # fmt: skip
            return model.loss(model.validation, model.held, found.x.reshape(shape))[0]

        first, told = validate(np.full(len(clean), 0.5)), validate(clean.astype(float))
        goal = first - part * (first - told)
        return lambda x, y: validate(1 / (1 + np.exp(-np.clip(x, -30, 30)))) / goal

    return make


class Classifier:
    """Softmax regression in double precision with SciPy: fits and validation losses."""

    def __init__(self, data: Arrays, iterations: int):
        train, validation = _matrix(data, "A"), _matrix(data, "A_val")
        # a feature that occurs in no training row keeps a weight of zero
        self.seen = np.flatnonzero(np.asarray(abs(train).sum(0)))
        self.train, self.validation = train[:, self.seen], validation[:, self.seen]
        self.labels, self.held = data["b"], data["b_val"]
        self.iterations = iterations

    def loss(
        self, A: Any, labels: np.ndarray, w: np.ndarray, each: Any = 1.0
    ) -> tuple[float, np.ndarray]:
        """The mean cross-entropy and its gradient; `each` holds optional weights of the rows."""
        scores = A @ w
        scores -= scores.max(1, keepdims=True)
        weights = np.exp(scores)
        total = weights.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        value = float(np.mean(each * (np.log(total[:, 0]) - scores[rows, labels])))
        weights /= total
        weights[rows, labels] -= 1
        weights *= np.reshape(each, (-1, 1))
        return value, A.T @ weights / len(labels)

    def fit(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The weights fitted with the penalties exp(x), starting from w."""
        from scipy.optimize import minimize

        strength = np.broadcast_to(np.exp(np.clip(x, -50, 50)), w.shape)[self.seen] / w.size

        def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
            v = flat.reshape(strength.shape)
            loss, slope = self.loss(self.train, self.labels, v)
            return loss + 0.5 * float(np.sum(strength * v**2)), (slope + strength * v).ravel()

        options = {"maxiter": self.iterations, "maxcor": 5, "gtol": 1e-8, "ftol": 0.0}
        start = w[self.seen].astype(float).ravel()
        found = minimize(value, start, jac=True, method="L-BFGS-B", options=options)
        fitted = np.zeros(w.shape)
        fitted[self.seen] = found.x.reshape(strength.shape)
        return fitted

    def validate(self, x: np.ndarray, w: np.ndarray) -> float:
        """The validation loss of the weights fitted with the penalties exp(x)."""
        return self.loss(self.validation, self.held, self.fit(x, w)[self.seen])[0]

    def best_single(self, w: np.ndarray, low: float, high: float, tolerance: float) -> float:
        """The validation loss with the best single penalty, by golden section in its logarithm."""
        ratio = (5**0.5 - 1) / 2
        seen: dict[float, tuple[float, np.ndarray]] = {}

        def look(x: float) -> float:
            if x not in seen:
                near = min(seen, key=lambda other: abs(other - x), default=None)
                fitted = self.fit(np.asarray(x), w if near is None else seen[near][1])
                loss = self.loss(self.validation, self.held, fitted[self.seen])[0]
                seen[x] = loss, fitted
            return seen[x][0]

        a, d = low, high
        while d - a > tolerance:
            b, c = d - ratio * (d - a), a + ratio * (d - a)
            a, d = (a, c) if look(b) < look(c) else (b, d)
        return min(loss for loss, _ in seen.values())


def _matrix(data: Arrays, name: str) -> Any:
    if name in data:
        return data[name].astype(float)
    import scipy.sparse

    parts = (data[f"{name}.{part}"] for part in ("values", "rows", "columns"))
    values, rows, columns = parts
    return scipy.sparse.coo_array(
        (values.astype(float), (rows, columns)), shape=tuple(data[f"{name}.shape"])
    ).tocsr()


def one_penalty_judge(tolerance: float) -> Callable[[Arrays], Judge]:
    """The validation loss of refitted weights, relative to that with the best single penalty."""

    def make(data: Arrays) -> Judge:
        model, w = Classifier(data, 2000), data["y0"]
        best = model.best_single(w, -8.0, 6.0, 0.01)
        return lambda x, y: (model.validate(x, w) / best - 1) / tolerance

    return make


def per_weight_judge(gain: float) -> Callable[[Arrays], Judge]:
    """The validation loss of refitted weights; the target is `gain` below the best penalty's."""

    def make(data: Arrays) -> Judge:
        model, w = Classifier(data, 2000), data["y0"]
        goal = (1 - gain) * model.best_single(w, -8.0, 6.0, 0.02)
        return lambda x, y: model.validate(x, w) / goal

    return make


def from_start_judge(gain: float, iterations: int) -> Callable[[Arrays], Judge]:
    """The validation loss of weights refitted from the start's; the target is `gain` below it."""

    def make(data: Arrays) -> Judge:
        model, w = Classifier(data, iterations), data["y0"]
        goal = (1 - gain) * model.validate(data["x0"].astype(float), w)
        return lambda x, y: model.validate(x, w) / goal

    return make


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "toy",
            "toy problem, one x, two y",
            "counter-example",
            "every entry within 0.003 of the solution, root mean square",
            lambda: counter_example(1, 2.0, 0.5),
            near_ones(3e-3),
            budget=4.0,
        ),
        Workload(
            "toy-500",
            "toy problem, 500 iterations of five inner steps",
            "counter-example",
            "500 iterations",
            lambda: counter_example(1, 2.0, 0.5),
            lambda data: lambda x, y: 0.0,
            fixed=500,
        ),
        *(
            Workload(
                f"counter-{n}",
                f"counter-example, n = {n:,}",
                "counter-example",
                "every entry within 0.003 of the solution, root mean square",
                functools.partial(counter_example, n, 0.0, 0.0),
                near_ones(3e-3),
                budget=4.0 if n < 10_000 else 8.0,
            )
            for n in (10, 1_000, 100_000)
        ),
        Workload(
            "starts",
            "1,000 starts of the toy at once",
            "counter-example",
            "every start within 0.003 of the solution",
            lambda: many_starts(1_000),
            near_ones(3e-3, worst=True),
            budget=4.0,
        ),
        Workload(
            "ridge",
            "ridge regression, a penalty per feature, 400 × 100",
            "ridge",
            "99 % of the way from the start to the best validation loss",
            ridge_data,
            ridge_judge(0.01),
        ),
        Workload(
            "one-penalty",
            "digits, one penalty, 599 × 64, 10 classes",
            "logistic",
            "validation loss of refitted weights within 0.1 % of the best",
            lambda: digits_data(False),
            one_penalty_judge(1e-3),
        ),
        Workload(
            "digits",
            "digits, a penalty per weight, 599 × 64, 10 classes",
            "logistic",
            "validation loss of refitted weights 10 % below that of the best single penalty",
            lambda: digits_data(True),
            per_weight_judge(0.1),
        ),
        Workload(
            "cleaning",
            "digits with half of the labels wrong, a weight per image, 599 × 64, 10 classes",
            "cleaning",
            "validation loss of refitted weights down by nine tenths of what leaving out every "
            "wrong label gains",
            cleaning_data,
            cleaning_judge(0.9),
        ),
        Workload(
            "newsgroups",
            "20 Newsgroups, a penalty per weight, 5,657 × 130,107 sparse, 20 classes",
            "logistic",
            "validation loss of refitted weights 5 % below that of the start",
            newsgroups_data,
            from_start_judge(0.05, 30),
            budget=40.0,
            first=8,
            ratio=1.5,
            repeats=1,
        ),
    )
}
