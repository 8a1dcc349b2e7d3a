"""pdbo: a solver's steps in one compiled loop, or `pdbo.solve` with all its checks."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pdbo

from . import in_jax
from .worker import serve


def matrix(values: Any, rows: Any, columns: Any, shape: Any) -> Any:
    """A sparse matrix in pdbo's format."""
    import scipy.sparse

    whole = scipy.sparse.coo_array((values, (rows, columns)), shape=tuple(shape))
    return pdbo.linear.SparseMatrix.from_scipy(whole)


def cross_entropy(w: Any, X: Any, labels: Any, weights: Any = None) -> Any:
    """pdbo's cross-entropy, without offsets."""
    offsets = jnp.zeros(w.shape[1], w.dtype)
    return pdbo.linear.cross_entropy({"weights": w, "offsets": offsets}, X, labels, weights)


def problem_of(family: str, data: Any) -> pdbo.Problem:
    """The workload as a problem."""
    return pdbo.Problem(*in_jax.functions(family, cross_entropy), data=data)


@functools.cache
def compiled(family: str, settings: str) -> tuple[Any, Any, Any]:
    """The solver, its `init` and a loop of its `step`; cached, so that nothing compiles twice."""
    named = json.loads(settings)
    options = named.get("options", {})
    if options.pop("outer", "sgd") == "adam":
        import optax

        options["outer"] = optax.adam(options["outer_step"])
    solver = getattr(pdbo.solvers, named["solver"])(**options)
    batched = named.get("batched", False)

    @jax.jit
    def begin(x: Any, y: Any, data: Any) -> Any:
        init = lambda x, y: solver.init(problem_of(family, data), x, y, jax.random.key(0))
        return jax.vmap(init, (0, 1))(x, y) if batched else init(x, y)

    @functools.partial(jax.jit, donate_argnums=0)
    def go(state: Any, steps: Any, data: Any) -> Any:
        step = lambda state: solver.step(problem_of(family, data), state)
        step = jax.vmap(step) if batched else step
        return jax.lax.fori_loop(0, steps, lambda _, state: step(state), state)

    return solver, begin, go


class Steps:
    """`init`, then repeated `step` in one compiled loop, like a user's own loop."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        self.data = in_jax.arrays(data, matrix, pdbo.linear.DenseMatrix.from_array)
        self.batched = job["settings"].get("batched", False)
        self.solver, begin, self.go = compiled(job["family"], json.dumps(job["settings"]))
        self.state = begin(jnp.asarray(data["x0"]), jnp.asarray(data["y0"]), self.data)

    def advance(self, steps: int) -> None:
        """Take `steps` steps."""
        self.state = jax.block_until_ready(self.go(self.state, np.int32(steps), self.data))

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        point = self.solver.output(self.state)
        return np.asarray(point.x), np.asarray(point.y).T if self.batched else np.asarray(point.y)

    def calls(self) -> dict[str, int]:
        """Gradients of f and g and second-order products."""
        calls = self.solver.calls(self.state)
        return {name: int(np.sum(getattr(calls, name))) for name in ("f", "g", "products")}


class Solve:
    """`pdbo.solve` until it stops, including the certificate; one iteration is the whole solve."""

    finished = True

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        arrays = in_jax.arrays(data, matrix, pdbo.linear.DenseMatrix.from_array)
        self.problem = problem_of(job["family"], arrays)
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
