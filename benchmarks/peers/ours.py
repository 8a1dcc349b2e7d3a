"""pdbo: a solver's steps in one compiled loop, or `pdbo.solve` with all that it checks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pdbo

from . import in_jax
from .worker import serve


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


class Steps:
    """`init`, then `step` over and over in one compiled loop, as a user's own loop would."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        f, g = in_jax.functions(job["family"])
        self.problem = pdbo.Problem(f, g, data=in_jax.arrays(data, matrix))
        options = dict(job["settings"])
        self.solver = getattr(pdbo, options.pop("solver"))(**options.pop("options", {}))
        self.batched = options.pop("batched", False)
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
    """`pdbo.solve` with its certificates; the run ends as soon as its own test says so."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        f, g = in_jax.functions(job["family"])
        self.problem = pdbo.Problem(f, g, data=in_jax.arrays(data, matrix))
        options = dict(job["settings"])
        name = options.pop("solver", None)
        self.solver = getattr(pdbo, name)(**options.pop("options", {})) if name else None
        self.options = options.pop("solve")
        self.start = jnp.asarray(data["x0"]), jnp.asarray(data["y0"])
        self.solution: Any = None

    def advance(self, steps: int) -> None:
        """At most so many steps, from the start or from where the last call ended."""
        if self.solution is None:
            where = dict(zip(("x0", "y0", "solver"), (*self.start, self.solver), strict=True))
        else:
            where = {"state": self.solution.state}
        self.solution = pdbo.solve(self.problem, **where, steps=steps, **self.options)

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        return np.asarray(self.solution.x), np.asarray(self.solution.y)

    def calls(self) -> dict[str, int]:
        """Gradients of f and g and second-order products."""
        last = {name: self.solution.history[name][-1] for name in ("f_calls", "g_calls")}
        return {"f": int(last["f_calls"]), "g": int(last["g_calls"])}


if __name__ == "__main__":
    serve(lambda job, data: (Solve if "solve" in job["settings"] else Steps)(job, data))
