"""What a small problem with constraints costs: 10 + 10 unknowns, curved rows on both levels.

    python -m benchmarks.small_constraints    the record is
                                              benchmarks/records/small_constraints.json

CPU seconds of one process. Compiling is the first `solve` less the second one; with a cache it is
that of a process that finds all programs in JAX's compilation cache. A round is what the
search does between two looks at its best point: 64 runs of the bilevel program, and the inner
problem solved again from 256 starts; the same is measured on a problem of BOLIB with 2 + 2.
"""

import os
import resource
import subprocess
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pdbo
from pdbo.coupled.model import Model
from pdbo.coupled.rounds import Search
from pdbo.problems import bolib

from .record import write

REPEATS = 3


def cpu() -> float:
    """The CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def ten() -> tuple[pdbo.Problem, np.ndarray, np.ndarray]:
    """A problem of 10 + 10 unknowns with 6 inner rows and an outer one, and its start."""
    rng, n = np.random.default_rng(0), 10
    A, B, Q = rng.normal(size=(5, n)), rng.normal(size=(5, n)), rng.normal(size=(n, n))
    data = {"A": A, "B": B, "Q": Q @ Q.T / n + np.eye(n), "target": rng.normal(size=n)}

    def f(x: Any, y: Any, d: Any) -> Any:
        return jnp.sum((y - d["target"]) ** 2) + 0.1 * x @ x + 0.3 * jnp.sin(x) @ y

    def rows(x: Any, y: Any, d: Any) -> dict[str, Any]:
        return {"linear": d["B"] @ y - d["A"] @ x - 1, "ball": y @ y - 8 - x[0]}

    problem = pdbo.Problem(
        f, lambda x, y, d: 0.5 * y @ d["Q"] @ y - x @ y + 0.05 * jnp.sum(y**4), data,
        x_set=pdbo.Box(-3.0, 3.0), inner_constraint=rows,
        outer_constraint=lambda x, y, d: x @ y - 4,
    )  # fmt: skip
    return problem, np.zeros(n), np.zeros(n)


def rounds(problem: pdbo.Problem, x: Any, y: Any) -> list[float]:
    """The seconds of the second round of warm searches."""
    model, out = Model(problem, x, y), []
    for _ in range(REPEATS + 1):
        search = Search(model, model.spread(64, 1), 0)
        search.run(lambda *_: True)  # its first round
        at = [cpu()]
        search.over = False

        def told(*_: Any, at: list[float] = at) -> bool:
            at.append(cpu())
            return True

        search.run(told)
        out.append(round(at[1] - at[0], 3))
    return out[1:]


def calls(count: int) -> tuple[list[float], pdbo.Solution]:
    """The seconds of `solve`, several times."""
    problem, x, y = ten()
    (jnp.zeros(3) + 1).block_until_ready()
    out = []
    for _ in range(count):
        began = cpu()
        solution = pdbo.solve(problem, x, y, throw=False)
        out.append(cpu() - began)
    return out, solution  # type: ignore


def cached() -> float:
    """The seconds of the first `solve` in a second process that shares a cache with another."""
    with tempfile.TemporaryDirectory() as folder:
        known = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
        command = [sys.executable, "-m", "benchmarks.small_constraints", "first"]
        for _ in range(2):
            ended = subprocess.run(
                command, env=os.environ | known, capture_output=True, text=True, check=True
            )
    return float(ended.stdout)  # type: ignore


def main() -> None:
    """Every figure, and the record."""
    problem, x, y = ten()
    taken, solution = calls(1 + REPEATS)
    first, warm = taken[0], float(np.median(taken[1:]))
    entry = bolib.get("Bard1988Ex3")
    with jax.enable_x64(True):
        found = {
            "solve": {
                "first": first, "warm": warm, "compiling": first - warm,
                "first with a cache": cached(),
            },
            "ok": bool(solution.ok), "f": float(solution.f),
            "round of 64 starts, 10 + 10": rounds(problem, x, y),
            "round of 64 starts, 2 + 2": rounds(entry.problem, *entry.start),
        }  # fmt: skip
    print(found)
    write("small_constraints", {"repeats": REPEATS}, found)


if __name__ == "__main__":
    if sys.argv[1:] == ["first"]:
        print(calls(1)[0][0])
    else:
        main()
