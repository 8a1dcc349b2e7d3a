"""The workloads' functions in JAX, of (x, y, data), for every library on JAX."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .worker import once

Function = Callable[[Any, Any, Any], Any]


@functools.cache
def functions(family: str, cross_entropy: Callable[..., Any]) -> tuple[Function, Function]:
    """The outer and the inner function; `cross_entropy` is the library's.

    `cross_entropy(w, X, labels)` is the mean loss, and with weights the weighted mean.
    """
    return {
        "counter-example": (_outer_counter, _inner_counter),
        "ridge": (_outer_ridge, _inner_ridge),
        "logistic": _logistic(cross_entropy),
        "cleaning": _cleaning(cross_entropy),
    }[family]


@once
def arrays(
    data: dict[str, np.ndarray], sparse: Callable[..., Any], dense: Callable[[Any], Any]
) -> dict[str, Any]:
    """The data of the functions; `sparse(values, rows, columns, shape)` makes a matrix."""
    found: dict[str, Any] = {
        name: jnp.asarray(data[name]) for name in ("b", "b_val") if name in data
    }
    for name in ("A", "A_val"):
        if f"{name}.values" in data:
            parts = (data[f"{name}.{part}"] for part in ("values", "rows", "columns", "shape"))
            found[name] = sparse(*parts)
        elif name in data:
            found[name] = dense(data[name])
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


def _logistic(cross_entropy: Callable[..., Any]) -> tuple[Function, Function]:
    def outer(x: Any, y: Any, data: Any) -> Any:
        return cross_entropy(y, data["A_val"], data["b_val"])

    def inner(x: Any, y: Any, data: Any) -> Any:
        return cross_entropy(y, data["A"], data["b"]) + 0.5 * jnp.mean(jnp.exp(x) * y**2)

    return outer, inner


def _cleaning(cross_entropy: Callable[..., Any]) -> tuple[Function, Function]:
    def outer(x: Any, y: Any, data: Any) -> Any:
        return cross_entropy(y, data["A_val"], data["b_val"])

    def inner(x: Any, y: Any, data: Any) -> Any:
        part = jax.nn.sigmoid(x)
        loss = jnp.mean(part) * cross_entropy(y, data["A"], data["b"], part)
        return loss + 5e-4 * jnp.sum(y**2)

    return outer, inner
