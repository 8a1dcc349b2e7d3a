"""The workloads' functions in JAX, of (x, y, data), for every library on JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .worker import once

Function = Callable[[Any, Any, Any], Any]


def functions(family: str) -> tuple[Function, Function]:
    """The outer and the inner function."""
    return {
        "counter-example": (_outer_counter, _inner_counter),
        "ridge": (_outer_ridge, _inner_ridge),
        "logistic": (_outer_logistic, _inner_logistic),
    }[family]


@once
def arrays(data: dict[str, np.ndarray], sparse: Callable[..., Any]) -> dict[str, Any]:
    """The data the functions need; `sparse(values, rows, columns, shape)` makes a matrix."""
    found = {name: jnp.asarray(data[name]) for name in ("A", "b", "A_val", "b_val") if name in data}
    for name in ("A", "A_val"):
        if f"{name}.values" in data:
            parts = (data[f"{name}.{part}"] for part in ("values", "rows", "columns", "shape"))
            found[name] = sparse(*parts)
    return found


def _outer_counter(x: Any, y: Any, data: Any) -> Any:
    return 0.5 * jnp.sum((x - y[1]) ** 2) + 0.5 * jnp.sum((y[0] - 1) ** 2)


def _inner_counter(x: Any, y: Any, data: Any) -> Any:
    return 0.5 * jnp.sum(y[0] ** 2) - jnp.sum(x * y[0])


def _outer_ridge(x: Any, y: Any, data: Any) -> Any:
    return 0.5 * jnp.mean((data["A_val"] @ y - data["b_val"]) ** 2)


def _inner_ridge(x: Any, y: Any, data: Any) -> Any:
    penalty = 2 * jnp.sum(jax.nn.sigmoid(x) * y**2)
    return 0.5 * jnp.mean((data["A"] @ y - data["b"]) ** 2) + penalty


def _cross_entropy(scores: Any, labels: Any) -> Any:
    right = jnp.take_along_axis(scores, labels[:, None], 1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(scores, -1) - right)


def _outer_logistic(x: Any, y: Any, data: Any) -> Any:
    return _cross_entropy(data["A_val"] @ y, data["b_val"])


def _inner_logistic(x: Any, y: Any, data: Any) -> Any:
    return _cross_entropy(data["A"] @ y, data["b"]) + 0.5 * jnp.mean(jnp.exp(x) * y**2)
