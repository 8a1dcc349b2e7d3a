"""Whether a function is a polynomial of degree two at most, read off its program.

A yes is a proof; a no means only that this reading does not tell.
"""

import math
from typing import Any

from jax.extend.core import Literal

UNKNOWN = math.inf

_LINEAR = {
    "add", "add_any", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p",
    "cumsum", "expand_dims", "neg", "pad", "reduce_sum", "reshape", "rev", "slice", "squeeze",
    "sub", "transpose",
}  # fmt: skip
_PRODUCT = {"mul", "dot_general"}
_INDEXED = {"dynamic_slice", "gather", "select_n"}  # linear if what chooses is constant
_CALLS = {"pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint"}


def degree(jaxpr: Any, degrees: list[float]) -> float:
    """The degree of the outputs of a program whose inputs have these degrees."""
    return max(_degrees(jaxpr, degrees))


def _degrees(jaxpr: Any, degrees: list[float]) -> list[float]:
    known = dict.fromkeys(jaxpr.constvars, 0.0) | dict(zip(jaxpr.invars, degrees, strict=True))

    def of(atom: Any) -> float:
        return 0.0 if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        given = [of(atom) for atom in equation.invars]
        found = _after(equation, given)
        known |= dict(zip(equation.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _after(equation: Any, given: list[float]) -> list[float]:
    """The degrees of what an operation returns."""
    name, count = equation.primitive.name, len(equation.outvars)
    if not any(given):
        return [0.0] * count
    if name in _CALLS:
        inner = next(
            (equation.params[k] for k in ("jaxpr", "call_jaxpr") if k in equation.params), None
        )
        inner = getattr(inner, "jaxpr", inner)
        return [UNKNOWN] * count if inner is None else _degrees(inner, given)
    found = UNKNOWN
    if name in _LINEAR:
        found = max(given)
    elif name in _PRODUCT:
        found = sum(given)
    elif name == "div" and given[1] == 0:
        found = given[0]
    elif name == "square":
        found = 2 * given[0]
    elif name == "integer_pow" and equation.params["y"] >= 0:
        found = equation.params["y"] * given[0]
    elif name in _INDEXED:
        chosen, choosing = (given[1:], given[:1]) if name == "select_n" else (given[:1], given[1:])
        found = UNKNOWN if any(choosing) else max(chosen)
    return [found] * count
