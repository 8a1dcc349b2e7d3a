"""Speed of the core: the toy per iteration, many starts, compilation, memory speed, progress.

Run as `python -m benchmarks.core`; on a machine with an accelerator it measures the accelerator.
Every figure is written to benchmarks/records/core-DEVICE.json with the versions used.
"""

import contextlib
import io
import json
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pdbo

from .record import median_seconds, seconds_per_turn, write

TOY = pdbo.problems.get("toy").problem
START = (2.0, jnp.array([0.5, 0.5]))


def toy(steps: int = 1_000_000) -> dict[str, float]:
    """Microseconds per PDBO iteration on the toy, certificates every 10,000 steps included."""
    run = lambda: pdbo.solve(TOY, *START, pdbo.PDBO(), steps=steps, every=10_000, tol=0).x
    run()
    return {"microseconds_per_iteration": 1e6 * median_seconds(run) / steps}


def starts(count: int = 1000, steps: int = 2000) -> dict[str, float]:
    """Microseconds per iteration and start for complete solves of many starts under vmap."""
    xs = jnp.linspace(-2, 3, count)
    ys = jnp.stack([jnp.linspace(0, 2, count), jnp.linspace(1, -1, count)], axis=1)
    one = lambda x, y: pdbo.solve(TOY, x, y, pdbo.PDBO(), steps=steps, every=1000, tol=0).x
    run = jax.jit(jax.vmap(one))
    jax.block_until_ready(run(xs, ys))
    seconds = median_seconds(lambda: run(xs, ys))
    return {"microseconds_per_iteration_and_start": 1e6 * seconds / (steps * count)}


FIRST_CALL = """
import time, json, jax.numpy as jnp, pdbo
from benchmarks.core import TOY, START
jnp.zeros(()).block_until_ready()
times = []
for _ in range(2):
    start = time.perf_counter()
    pdbo.solve(TOY, *START, pdbo.PDBO(), steps=500)
    times.append(time.perf_counter() - start)
print(json.dumps(times))
"""


def compilation(repeats: int = 5) -> dict[str, float]:
    """How many seconds the first solve of a fresh process takes more than the second."""
    pairs = []
    for _ in range(repeats):
        out = subprocess.run(
            [sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=True
        )
        pairs.append(json.loads(out.stdout))
    first, second = np.median(pairs, axis=0)
    return {"seconds": float(first - second), "second_call_seconds": float(second)}


def copy_bandwidth(size: int) -> float:
    """Bytes read and written per second: NumPy's copy on a CPU, a compiled loop elsewhere."""
    if jax.default_backend() == "cpu":
        source, target = np.ones(size, np.float32), np.zeros(size, np.float32)
        return 8 * size / median_seconds(lambda: np.copyto(target, source), 9)

    @jax.jit
    def add(block: Any, times: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, a: a + 1, block)

    block = jnp.ones(size)
    jax.block_until_ready(add(block, 1))
    return 8 * size / seconds_per_turn(lambda k: add(block, k))


def memory_speed(variables: int = 10_000_000, inner_steps: int = 5) -> dict[str, float]:
    """The share of the copy bandwidth that PDBO reaches on the n-dimensional counter-example.

    The least bytes per iteration: each inner step reads x and both halves of the estimate and
    writes the halves (5 n), the rest reads x, y and the estimate (5 n) and writes x and y (3 n).
    """
    n = variables // 3
    problem = pdbo.Problem(
        lambda x, y: 0.5 * jnp.sum((x - y[1]) ** 2) + 0.5 * jnp.sum((y[0] - 1) ** 2),
        lambda x, y: 0.5 * jnp.sum(y[0] ** 2) - jnp.sum(x * y[0]),
    )
    solver = pdbo.PDBO(inner_steps=inner_steps, multiplier0=1.0, smoothing=1e-6)
    state = solver.init(problem, jnp.zeros(n), (jnp.zeros(n), jnp.ones(n)), jax.random.key(0))

    @eqx.filter_jit
    def run(solver: Any, state: Any, steps: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state)

    jax.block_until_ready(run(solver, state, 1))
    shares, bandwidths = [], []
    for _ in range(5):  # alternate, because the machine is shared
        bandwidth = copy_bandwidth(variables)
        seconds = seconds_per_turn(lambda k: run(solver, state, k))
        shares.append((5 * inner_steps + 8) * n * 4 / seconds / bandwidth)
        bandwidths.append(bandwidth / 1e9)
    return {
        "variables": variables,
        "copy_bandwidth_GB_per_s": float(np.median(bandwidths)),
        "share_of_copy_bandwidth": float(np.median(shares)),
    }


def scratch() -> dict[str, list[int]]:
    """Scratch bytes of the compiled loop against N; the number of iterations is an argument."""
    n, counts = 100_000, [1, 10, 100]
    problem = pdbo.Problem(
        lambda x, y: 0.5 * jnp.sum((x - y) ** 2), lambda x, y: 0.5 * jnp.sum((y - 1) ** 2 * x**2)
    )
    sizes = []
    for count in counts:
        solver = pdbo.PDBO(inner_steps=count)
        state = solver.init(problem, jnp.ones(n), jnp.ones(n), jax.random.key(0))
        many = lambda s, k, solver=solver: jax.lax.fori_loop(
            0, k, lambda _, v: solver.step(problem, v), s
        )
        compiled = jax.jit(many).lower(state, 10).compile()
        sizes.append(int(compiled.memory_analysis().temp_size_in_bytes))
    return {"inner_steps": counts, "bytes": sizes}


def progress(steps: int = 20_000_000) -> dict[str, float]:
    """The relative cost of a live progress line at its default refresh."""
    solver, quiet, shown = pdbo.PDBO(), [], []

    def run(flag: bool) -> Any:
        with contextlib.redirect_stderr(io.StringIO()):
            return pdbo.solve(
                TOY, *START, solver, steps=steps, every=10_000, tol=0, progress=flag
            ).x

    run(True)
    for _ in range(7):
        quiet.append(median_seconds(lambda: run(False), 1))
        shown.append(median_seconds(lambda: run(True), 1))
    ratios = np.array(shown) / np.array(quiet)
    return {"overhead": float(np.median(ratios) - 1), "seconds": float(np.median(quiet))}


def main() -> None:
    """Measure everything, print it and write the record."""
    small = {toy: {}, starts: {}, compilation: {}, memory_speed: {}, scratch: {}, progress: {}}
    large = {  # on an accelerator: more starts and variables; the toy runs on the CPU there too
        toy: {},
        starts: {"count": 100_000},
        compilation: {},
        memory_speed: {"variables": 300_000_000},
        scratch: {},
        progress: {},
    }
    backend = jax.default_backend()
    settings = small if backend == "cpu" else large
    results = {}
    for part, options in settings.items():
        results[part.__name__] = part(**options)
        print(part.__name__, results[part.__name__], flush=True)
    named = {part.__name__: options for part, options in settings.items()}
    print("written to", write(f"core-{backend}", named, results))


if __name__ == "__main__":
    main()
