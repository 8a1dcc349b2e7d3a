"""JAXopt: a differentiable inner solver, the outer loop compiled around it."""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxopt
import numpy as np
import optax
from jax.experimental import sparse
from jax.scipy.sparse.linalg import cg

from . import in_jax
from .worker import serve


def matrix(values: Any, rows: Any, columns: Any, shape: Any) -> Any:
    """A sparse matrix in JAX's format."""
    index = jnp.asarray(np.stack([rows, columns], 1))
    return sparse.BCOO((jnp.asarray(values), index), shape=tuple(int(n) for n in shape))


def cross_entropy(w: Any, X: Any, labels: Any, weights: Any = None) -> Any:
    """The mean of JAXopt's own logistic loss."""
    losses = jax.vmap(jaxopt.loss.multiclass_logistic_loss)(labels, X @ w)
    return jnp.average(losses, weights=weights)


@functools.cache
def compiled(family: str, settings: str, counter: Callable[[str], None] | None) -> tuple[Any, Any]:
    """The outer optimiser and its loop; cached, so that a second run does not compile again."""
    f, g = in_jax.functions(family, cross_entropy)
    if counter is not None:
        f, g = _counted(counter, "f", f), _counted(counter, "g", g)
    s = json.loads(settings)
    implicit = s["mode"] == "implicit"
    inner = jaxopt.GradientDescent(
        fun=lambda y, x, data: g(x, y, data),
        maxiter=s["inner_steps"],
        tol=0.0,
        stepsize=s["inner_step"],
        acceleration=s.get("acceleration", False),
        implicit_diff=implicit,
        implicit_diff_solve=lambda matvec, b: cg(matvec, b, maxiter=s["linear_steps"])[0],
        unroll=not implicit,
    )
    outer = {"sgd": optax.sgd, "adam": optax.adam}[s["outer"]](s["outer_step"])

    def loss(x: Any, y: Any, data: Any) -> Any:
        y = inner.run(y, x, data).params
        return f(x, y, data), y

    def one(carry: Any, data: Any) -> Any:
        x, y, state = carry
        slope, y = jax.grad(loss, has_aux=True)(x, y, data)
        updates, state = outer.update(slope, state, x)
        return optax.apply_updates(x, updates), y, state

    @jax.jit
    def run(carry: Any, steps: Any, data: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, carry: one(carry, data), carry)

    return outer, run


def _counted(counter: Callable[[str], None], name: str, function: Any) -> Any:
    def counted(*arguments: Any) -> Any:
        jax.debug.callback(lambda: counter(name))
        return function(*arguments)

    return counted


class Differentiated:
    """`jaxopt.GradientDescent` for y, kept warm; optax for x; implicit or unrolled gradients."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        self.data = in_jax.arrays(data, matrix, jnp.asarray)
        self.counts = {"f": 0, "g": 0}
        settings = json.dumps(job["settings"])
        outer, self.run = compiled(job["family"], settings, self._count if job["count"] else None)
        x, y = jnp.asarray(data["x0"]), jnp.asarray(data["y0"])
        self.carry = x, y, outer.init(x)

    def _count(self, name: str) -> None:
        self.counts[name] += 1

    def advance(self, steps: int) -> None:
        """Take `steps` outer steps in one compiled loop."""
        self.carry = jax.block_until_ready(self.run(self.carry, jnp.asarray(steps), self.data))

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        return np.asarray(self.carry[0]), np.asarray(self.carry[1])

    def calls(self) -> dict[str, int]:
        """Evaluations of f and g, if the run counts them."""
        jax.effects_barrier()
        return self.counts


if __name__ == "__main__":
    serve(Differentiated)
