"""Sparse products: against handwritten SciPy, per product, and per iteration with its roofline.

Run as `python -m benchmarks.sparse`; on a machine with an accelerator it measures the accelerator.
The matrix is random, of the size of half of the training documents of 20 Newsgroups, and its word
frequencies fall like 1 / rank. Every figure is written to benchmarks/records/sparse-DEVICE.json.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import pdbo
from pdbo import linear

from .core import copy_bandwidth
from .record import median_seconds, seconds_per_turn, write

DOCUMENTS, WORDS, CLASSES, LENGTH = 5657, 130_107, 20, 220
INNER_STEPS = 5
SHRINK = 2.8e-4  # about 1 / ||X||^2: keeps repeated products in range


def documents(seed: int) -> tuple[Any, np.ndarray]:
    """A matrix of word frequencies with rows of unit length, and random labels."""
    draw = np.random.default_rng(seed)
    ranks = (WORDS ** draw.random((DOCUMENTS, LENGTH))).astype(np.int32) - 1
    rows = np.repeat(np.arange(DOCUMENTS), LENGTH)
    shape = (DOCUMENTS, WORDS)
    counts = scipy.sparse.csr_matrix((np.ones(rows.size), (rows, ranks.ravel())), shape)
    counts.sum_duplicates()
    length = np.sqrt(np.asarray(counts.multiply(counts).sum(1)).ravel())
    scaled = scipy.sparse.csr_matrix(scipy.sparse.diags(1 / length) @ counts)
    return scaled, draw.integers(CLASSES, size=DOCUMENTS, dtype=np.int32)


def gradient(dtype: Any = np.float32, repeats: int = 15) -> dict[str, float]:
    """Value and gradient of the logistic loss, against SciPy's products and NumPy's softmax."""
    matrix, labels = documents(0)
    matrix = matrix.astype(dtype)
    w = 0.1 * np.random.default_rng(1).normal(size=(WORDS, CLASSES)).astype(dtype)

    def by_hand() -> Any:
        scores = matrix @ w
        top = scores.max(1, keepdims=True)
        powers = np.exp(scores - top)
        total = powers.sum(1, keepdims=True)
        right = scores[np.arange(DOCUMENTS), labels]
        value = np.mean(np.log(total[:, 0]) + top[:, 0] - right)
        residual = powers / total
        residual[np.arange(DOCUMENTS), labels] -= 1
        return value, matrix.T @ (residual / DOCUMENTS)

    X, y = linear.SparseMatrix.from_scipy(matrix, dtype), jnp.asarray(labels)
    weights = {"weights": jnp.asarray(w), "offsets": jnp.zeros(CLASSES, dtype)}
    ours = jax.jit(jax.value_and_grad(lambda w, X, y: linear.cross_entropy(w, X, y)))
    value, slope = ours(weights, X, y)
    theirs = by_hand()
    error = np.abs(slope["weights"] - theirs[1]).max() / np.abs(theirs[1]).max()
    times = np.asarray(
        [  # alternate, because the machine may be shared
            (median_seconds(lambda: ours(weights, X, y), 1), median_seconds(by_hand, 1))
            for _ in range(repeats)
        ]
    )
    return {
        "milliseconds": 1e3 * float(np.median(times[:, 0])),
        "milliseconds_of_scipy": 1e3 * float(np.median(times[:, 1])),
        "times_scipy": float(np.median(times[:, 0] / times[:, 1])),
        "relative_error": float(error),
        "value_error": float(abs(value - theirs[0])),
    }


def products(turns: int, pairs: int = 8) -> dict[str, float]:
    """Microseconds of a product with X and one with its transpose, and of sums over segments.

    Every product depends on the one before; several pairs share the cost of a turn of the loop.
    """
    matrix, _ = documents(0)
    X = linear.SparseMatrix.from_scipy(matrix)
    w = jnp.ones((WORDS, CLASSES), X.dtype)
    kinds = {
        "chosen": lambda X, v: X @ v,
        "segment_sums": lambda X, v: linear._summed(*jax.tree.leaves(X), v),
    }
    found = {}
    for name, product in kinds.items():

        @jax.jit
        def loop(X: Any, w: Any, k: Any, product: Any = product) -> Any:
            def turn(_: Any, w: Any) -> Any:
                for _ in range(pairs):
                    w = product(X.T, SHRINK * product(X, w))
                return w

            return jax.lax.fori_loop(0, k, turn, w)

        jax.block_until_ready(loop(X, w, 1))
        each = seconds_per_turn(lambda k, loop=loop: loop(X, w, k), turns) / pairs
        found[f"{name}_microseconds_of_a_pair"] = 1e6 * each
    return found


def iterations(turns: int) -> dict[str, Any]:
    """Milliseconds per iteration with one hyperparameter per weight, and PDBO's roofline.

    The least bytes per iteration of PDBO, with a dense array for every w: of the 2 (N + 2) + 1
    products N + 3 read one array and N + 2 write one, each of the N inner updates reads three and
    writes one, and the update of x and w reads x, w, the estimate and two gradients and writes
    two; every product reads its matrix.
    """
    halves = [documents(k) for k in range(2)]
    parts = [
        {"X": linear.SparseMatrix.from_scipy(m), "y": jnp.asarray(labels)} for m, labels in halves
    ]
    problem = pdbo.Problem(
        lambda x, w, d: linear.cross_entropy(w, d[1]["X"], d[1]["y"]),
        lambda x, w, d: linear.cross_entropy(w, d[0]["X"], d[0]["y"]) + linear.penalty(x, w),
        parts,
    )
    x = jnp.zeros((WORDS, CLASSES))
    w = {"weights": x, "offsets": jnp.zeros(CLASSES)}
    N = INNER_STEPS
    solvers = {
        "PDBO": pdbo.PDBO(10.0, 0.001, 10.0, N, smoothing=1e-8),
        "ITD": pdbo.solvers.ITD(10.0, 10.0, N),
        "AIDFixedPoint": pdbo.solvers.AIDFixedPoint(10.0, 10.0, N, linear_steps=N),
    }
    found: dict[str, Any] = {}
    for name, solver in solvers.items():
        state = solver.init(problem, x, w, jax.random.key(0))

        @eqx.filter_jit
        def run(problem: Any, solver: Any, state: Any, k: Any) -> Any:
            return jax.lax.fori_loop(0, k, lambda _, s: solver.step(problem, s), state)

        call = lambda k, run=run, solver=solver, state=state: run(problem, solver, state, k)
        jax.block_until_ready(call(jnp.asarray(1)))
        found[f"{name}_milliseconds"] = 1e3 * seconds_per_turn(
            lambda k, call=call: call(jnp.asarray(k)), turns
        )
    dense = 4 * WORDS * CLASSES * ((N + 3) + (N + 2) + 4 * N + 7)
    sparse = 8 * max(m.nnz for m, _ in halves) * (2 * (N + 2) + 1)
    bandwidth = copy_bandwidth(50_000_000)
    seconds = found["PDBO_milliseconds"] / 1e3
    return found | {
        "nonzeros": [m.nnz for m, _ in halves],
        "bytes": dense + sparse,
        "copy_bandwidth_GB_per_s": bandwidth / 1e9,
        "bandwidth_GB_per_s": (dense + sparse) / seconds / 1e9,
        "share_of_copy_bandwidth": (dense + sparse) / seconds / bandwidth,
    }


def main() -> None:
    """Measure everything, print it and write the record."""
    backend = jax.default_backend()
    turns = 3 if backend == "cpu" else 200
    settings: dict[Any, dict[str, Any]] = {
        gradient: {},
        products: {"turns": turns},
        iterations: {"turns": turns},
    }
    results = {}
    for part, options in settings.items():
        results[part.__name__] = part(**options)
        print(part.__name__, results[part.__name__], flush=True)
    named = {part.__name__: options for part, options in settings.items()}
    print("written to", write(f"sparse-{backend}", named, results))


if __name__ == "__main__":
    main()
