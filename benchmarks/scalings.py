"""AutoPDBO's defaults on sparse multinomial logistic regression, scaled at random.

Run as `python -m benchmarks.scalings`: 100,000 features, 20 classes, one l2 hyperparameter per
weight and 20 random scalings of data and regulariser over six orders of magnitude, in single
precision. Writes f, g, the accuracy and the result of each run to benchmarks/records/scalings.json.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import pdbo
from pdbo import linear

from .record import write


def problem(
    rows: int, features: int, classes: int, scale: float, regulariser: float, seed: int = 0
) -> tuple[pdbo.Problem, Any, Any]:
    """Random documents of 50 words, half for training and half for validation, and a start."""
    rng = np.random.default_rng(seed)
    data: dict[str, Any] = {"regulariser": np.float32(regulariser)}
    words = rng.standard_normal((features, classes)) * (rng.random((features, 1)) < 0.01)
    for part in ("train", "valid"):
        column = (features * rng.random((rows, 50)) ** 2).astype(int)  # some words are frequent
        value = np.full(column.size, scale / 50**0.5, np.float32)
        places = (np.repeat(np.arange(rows), 50), column.ravel())
        matrix = scipy.sparse.coo_array((value, places), shape=(rows, features)).tocsr()
        label = np.argmax(matrix @ words + 0.1 * rng.gumbel(size=(rows, classes)), axis=1)
        X = linear.SparseMatrix.from_scipy(matrix, jnp.float32, nnz=rows * 50)
        data[part] = (X, label.astype(np.int32))
    start = np.zeros((features, classes), np.float32)
    w = {"weights": start, "offsets": np.zeros(classes, np.float32)}
    return pdbo.Problem(outer, inner, data), start, w


def outer(x: Any, w: Any, data: Any) -> Any:
    """The loss on the validation half."""
    return linear.cross_entropy(w, *data["valid"])


def inner(x: Any, w: Any, data: Any) -> Any:
    """The regularised loss on the training half."""
    return linear.cross_entropy(w, *data["train"]) + data["regulariser"] * linear.penalty(x, w)


def scalings(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """Scales of the data and of the regulariser, each from 1e-3 to 1e3."""
    rng = np.random.default_rng(seed)
    return [tuple(10.0 ** rng.uniform(-3, 3, 2)) for _ in range(count)]


def main(rows: int = 2000, steps: int = 200) -> None:
    """Run every scaling and write the record."""
    results = []
    for scale, regulariser in scalings(20):
        p, x, w = problem(rows, 100_000, 20, scale, regulariser)
        sol = pdbo.solve(p, x, w, steps=steps, every=50, throw=False)
        finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((sol.x, sol.y)))
        results.append({
            "data": scale, "regulariser": regulariser, "finite": finite, "steps": int(sol.steps),
            "result": sol.result.name, "f at the start": float(sol.history["f"][0]),
            "f": float(sol.f), "g at the start": float(sol.history["g"][0]), "g": float(sol.g),
            "validation accuracy": float(linear.accuracy(sol.y, *p.data["valid"])),
        })  # fmt: skip
        print(results[-1], flush=True)
    print(write("scalings", {"rows": rows, "features": 100_000, "classes": 20}, results))


if __name__ == "__main__":
    main()
