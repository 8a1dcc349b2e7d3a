"""What a step of the default costs for a network of ten million parameters, beside its gradients.

    python -m benchmarks.network [--width 2800] [--steps 100]

measures the seconds of a step and of the three gradients in it, and the memory of the compiled
steps, and writes benchmarks/records/network-DEVICE.json.
"""

import argparse
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pdbo
from pdbo._driver import take_steps
from pdbo._solution import State
from pdbo.solvers import BatchPDBO
from pdbo.solvers._batch_pdbo import RATES, TRIAL
from pdbo.solvers._streamed import Streamed

from .record import median_seconds, write

EXAMPLES, INPUTS, CLASSES, SIZE = 20_000, 784, 10, 256


def losses(w: Any, batch: Any) -> jax.Array:
    """The cross-entropy of every example for a network with three hidden layers."""
    h = batch["X"]
    for k, (W, b) in enumerate(w):
        h = h @ W + b
        h = jnp.tanh(h) if k < len(w) - 1 else h
    picked = jnp.take_along_axis(h, batch["y"][:, None], 1)[:, 0]
    return jax.nn.logsumexp(h, -1) - picked


def outer(x: Any, w: Any, batch: Any) -> jax.Array:
    """The loss on validation examples."""
    return losses(w, batch).mean()


def inner(x: Any, w: Any, batch: Any) -> jax.Array:
    """The weighted loss on training examples."""
    return (jax.nn.sigmoid(x[batch["index"]]) * losses(w, batch)).mean()


def setup(width: int) -> tuple[pdbo.Problem, Any, Any]:
    """The problem on made-up data, and a start."""
    rng = np.random.default_rng(0)

    def part() -> dict[str, np.ndarray]:
        X = rng.normal(size=(EXAMPLES, INPUTS)).astype(np.float32)
        return {"X": X, "y": rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)}

    index = np.arange(EXAMPLES, dtype=np.int32)
    data = pdbo.Batches(part(), part() | {"index": index}, SIZE)
    sizes = (INPUTS, width, width, CLASSES)
    keys = jax.random.split(jax.random.key(0), 3)
    w = [
        (jax.random.normal(k, (a, b), jnp.float32) / a**0.5, jnp.zeros(b, jnp.float32))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    return pdbo.Problem(outer, inner, data), jnp.zeros(EXAMPLES, jnp.float32), w


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--width", type=int, default=2800)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    problem, x, w = setup(options.width)
    solver = Streamed(BatchPDBO())
    state = eqx.filter_jit(solver.init)(problem, x, w, jax.random.key(0))
    walking = eqx.tree_at(  # past the trials, in a round that does not end during the measurement
        lambda s: (s.solver.round, s.solver.k, s.solver.t),
        state, tuple(jnp.asarray(v, jnp.int32) for v in (1, 0, RATES * TRIAL)),
    )  # fmt: skip

    def steps(problem: Any, state: Any, count: jax.Array) -> Any:
        zero = jnp.zeros((), jnp.int32)
        run = State(solver, state, zero, jnp.ones(()))
        return take_steps(problem, run, count).solver_state

    def gradients(problem: Any, state: Any, count: jax.Array) -> Any:
        """The three gradients of a step, on the batches it would draw, and nothing else."""

        def one(_: int, carry: Any) -> Any:
            outer_at, inner_at, y, z, total = carry
            f_batch, outer_at = problem.data.outer.draw(outer_at)
            g_batch, inner_at = problem.data.inner.draw(inner_at)
            g_hat = jax.grad(problem.g, (0, 1))(x, z, g_batch)
            g = jax.grad(problem.g, (0, 1))(x, y, g_batch)
            f = jax.grad(problem.f, (0, 1))(x, y, f_batch)
            # every gradient is used, or it would not be computed; a plain step is the least use
            y = jax.tree.map(lambda a, b, c: a - 1e-4 * (b + c), y, g[1], f[1])
            z = jax.tree.map(lambda a, b: a - 1e-4 * b, z, g_hat[1])
            return outer_at, inner_at, y, z, total + g[0][0] - g_hat[0][0]

        first = (state.outer, state.inner, w, w, jnp.zeros((), jnp.float32))
        return lax.fori_loop(0, count, one, first)

    count, results = jnp.asarray(options.steps, jnp.int32), {}
    numbers = sum(leaf.size for leaf in jax.tree.leaves(w))
    for name, function in (("step", steps), ("gradients", gradients)):
        compiled = eqx.filter_jit(function).lower(problem, walking, count).compile()
        seconds = median_seconds(lambda c=compiled: c(problem, walking, count)) / options.steps
        memory = compiled.compiled.memory_analysis()
        results[name] = {
            "milliseconds": 1e3 * seconds,
            "copies of y in the state": memory.output_size_in_bytes / (4 * numbers),
            "copies of y as scratch": memory.temp_size_in_bytes / (4 * numbers),
        }
        print(name, results[name], flush=True)
    results["step / gradients"] = (
        results["step"]["milliseconds"] / results["gradients"]["milliseconds"]
    )
    print(results["step / gradients"])
    settings = {"parameters": numbers, "images in a batch": SIZE, "steps": options.steps}
    device = "gpu" if "gpu" in jax.default_backend() else "cpu"
    print("written to", write(f"network-{device}", settings, results))


if __name__ == "__main__":
    main()
