"""A call of the host in the middle of a compiled program, as cheap as JAX makes it.

`jax.pure_callback` puts every argument on a device again before the call, which takes as long as a
small network. Here the host gets the buffers of the compiled program themselves.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array

Shape = jax.ShapeDtypeStruct

_call = Primitive("pdbo_host_call")
_call.multiple_results = True


def host_call(
    function: Callable[..., Sequence[np.ndarray]], like: Sequence[Shape], *operands: Array
) -> list[Array]:
    """What `function(*operands)` returns: NumPy arrays of these shapes, from NumPy arrays.

    The operands are memory of the compiled program: they are read only, and gone after the call.
    """
    # doubles travel as pairs of integers: the thread of the call may have no 64-bit types
    split = [s.dtype.itemsize == 8 for s in like]
    sent = tuple(
        Shape((*s.shape, 2), np.int32) if two else s for s, two in zip(like, split, strict=True)
    )

    def call(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        found = function(*arrays)
        return tuple(
            np.ascontiguousarray(a).reshape(*s.shape, 1).view(np.int32) if two else a
            for a, s, two in zip(found, like, split, strict=True)
        )

    out = _call.bind(*operands, call=call, like=sent)
    return [
        lax.bitcast_convert_type(a, s.dtype) if two else a
        for a, s, two in zip(out, like, split, strict=True)
    ]


@_call.def_abstract_eval
def _(*_: ShapedArray, call: Callable, like: Sequence[Shape]) -> list[ShapedArray]:
    return [ShapedArray(s.shape, s.dtype) for s in like]


def _lower(context: Any, *operands: Any, call: Callable, like: Sequence[Shape]) -> Any:
    results, _, _ = mlir.emit_python_callback(
        context,
        call,
        None,
        list(operands),
        context.avals_in,
        context.avals_out,
        has_side_effect=False,
        returns_token=False,
    )
    return results


def in_turn(bind: Callable[..., Any], operands: Sequence[Array], axes: Sequence[int | None]) -> Any:
    """A batch of calls, one after the other; with the axes of what they return."""
    mapped = [axis is not None for axis in axes]
    front = [jnp.moveaxis(o, a, 0) for o, a in zip(operands, axes, strict=True) if a is not None]

    def one(parts: list[Array]) -> Any:
        rest = iter(parts)
        return bind(*(next(rest) if m else o for o, m in zip(operands, mapped, strict=True)))

    out = lax.map(one, front)
    return out, [0] * len(out)


def _batch(operands: Sequence[Array], axes: Sequence[int | None], **parameters: Any) -> Any:
    return in_turn(lambda *parts: _call.bind(*parts, **parameters), operands, axes)


_call.def_impl(
    lambda *operands, **parameters: jax.jit(lambda *o: _call.bind(*o, **parameters))(*operands)
)
batching.primitive_batchers[_call] = _batch
mlir.register_lowering(_call, _lower)
