"""pdbo: a solver's steps in one compiled loop, or `pdbo.solve` with all that it checks."""

import functools
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pdbo

from . import in_jax
from .worker import once, serve


def matrix(values: Any, rows: Any, columns: Any, shape: Any) -> Any:
    """A sparse matrix as pdbo has it."""
    import scipy.sparse

    whole = scipy.sparse.coo_array((values, (rows, columns)), shape=tuple(shape))
    return pdbo.linear.SparseMatrix.from_scipy(whole)


@eqx.filter_jit
def begin(problem: pdbo.Problem, solver: Any, x: Any, y: Any, batched: bool) -> Any:
    """The state before the first step, one per start where there are many."""
    init = lambda x, y: solver.init(problem, x, y, jax.random.key(0))
    return jax.vmap(init, (0, 1))(x, y) if batched else init(x, y)


@eqx.filter_jit(donate="all-except-first")
def go(constant: tuple[pdbo.Problem, Any], state: Any, steps: Any, batched: bool) -> Any:
    """So many steps."""
    problem, solver = constant
    step = lambda state: solver.step(problem, state)
    step = jax.vmap(step) if batched else step
    return jax.lax.fori_loop(0, steps, lambda _, state: step(state), state)


@functools.cache
def solver_of(settings: str) -> Any:
    """The solver that the settings name."""
    named = json.loads(settings)
    return getattr(pdbo, named["solver"])(**named.get("options", {}))


@once
def problem_of(family: str, data: dict[str, np.ndarray]) -> pdbo.Problem:
    """The workload as a problem."""
    return pdbo.Problem(*in_jax.functions(family), data=in_jax.arrays(data, matrix))


class Steps:
    """`init`, then `step` over and over in one compiled loop, as a user's own loop would."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        self.problem = problem_of(job["family"], data)
        self.solver = solver_of(json.dumps(job["settings"]))
        self.batched = job["settings"].get("batched", False)
        x, y = jnp.asarray(data["x0"]), jnp.asarray(data["y0"])
        self.state = begin(self.problem, self.solver, x, y, self.batched)

    def advance(self, steps: int) -> None:
        """So many steps."""
        count = jnp.asarray(steps, jnp.int32)
        self.state = go((self.problem, self.solver), self.state, count, self.batched)
        jax.block_until_ready(self.state)

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        point = self.solver.output(self.state)
        return np.asarray(point.x), np.asarray(point.y).T if self.batched else np.asarray(point.y)

    def calls(self) -> dict[str, int]:
        """Gradients of f and g and second-order products."""
        calls = self.solver.calls(self.state)
        return {name: int(np.sum(getattr(calls, name))) for name in ("f", "g", "products")}


class Solve:
    """`pdbo.solve` to its own end, certificate and all; one iteration is the whole of it."""

    finished = True

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        self.problem = problem_of(job["family"], data)
        self.options = job["settings"]["solve"]
        self.start = jnp.asarray(data["x0"]), jnp.asarray(data["y0"])

    def advance(self, steps: int) -> None:
        """The whole solve."""
        self.solution = pdbo.solve(self.problem, *self.start, **self.options)

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        return np.asarray(self.solution.x), np.asarray(self.solution.y)

    def calls(self) -> dict[str, int]:
        """Gradients of f and g of the whole solve."""
        history = self.solution.history
        return {name: int(history[f"{name}_calls"][-1]) for name in ("f", "g")}


if __name__ == "__main__":
    serve(lambda job, data: (Solve if "solve" in job["settings"] else Steps)(job, data))
