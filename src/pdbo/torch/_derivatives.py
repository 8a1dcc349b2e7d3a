r"""A scalar function of the host with all its derivatives, as JAX differentiates: both ways.

One primitive stands for $\nabla_z\, D^k F(z)[v_1, \dots, v_k]$, the gradient of the k-th derivative
along k directions. It is linear and symmetric in the directions, so it is closed under JAX's rules:
its derivative in z has one direction more, its derivative in a direction is itself, and its
transpose in a direction is itself with the cotangent in that place. So `grad`, `jvp`, products with
second derivatives in every order of the two, and the third derivatives of the exact path all end
up as one call of the host each.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from ._host import Shape, host_call, in_turn

Leaves = tuple[int, ...]  # the numbers of some leaves of z


class Function(Protocol):
    """A scalar function of the host; hashable."""

    def derivative(
        self,
        z: Sequence[np.ndarray],
        indices: Sequence[np.ndarray],
        directions: Sequence[dict[int, np.ndarray]],
        wanted: Leaves,
        value: bool,
    ) -> Sequence[np.ndarray]:
        """The value, if wanted, and the gradient along directions by the leaves wanted."""
        ...


_derivative = Primitive("pdbo_derivative")
_derivative.multiple_results = True


class _Call(NamedTuple):
    """A call of the host, and what is where among its operands: z, indices, directions."""

    function: Function
    leaves: int
    extras: int
    directions: tuple[Leaves, ...]
    wanted: Leaves
    value: bool

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, list[dict[int, Any]]]:
        """z, the indices and the directions by leaf."""
        start = self.leaves + self.extras
        ends = start + np.cumsum([0, *map(len, self.directions)])
        ways = [
            dict(zip(numbers, operands[a:b], strict=True))
            for numbers, (a, b) in zip(self.directions, itertools.pairwise(ends), strict=True)
        ]
        return operands[: self.leaves], operands[self.leaves : start], ways

    def shapes(self, operands: Sequence[Any]) -> list[Shape]:
        """What the call returns."""
        scalar = [Shape((), operands[0].dtype)] if self.value else []
        return scalar + [Shape(operands[i].shape, operands[i].dtype) for i in self.wanted]


def value_of(function: Function, z: Sequence[Array], indices: Sequence[Array]) -> Float[Array, ""]:
    """The value of a function of the host, for JAX to differentiate."""
    return _bind(function, z, indices, [], (), True)[0]


def _bind(
    function: Function,
    z: Sequence[Array],
    indices: Sequence[Array],
    directions: Sequence[dict[int, Array]],
    wanted: Leaves,
    value: bool,
) -> list[Array]:
    operands = [*z, *indices, *(v for way in directions for v in way.values())]
    ways = tuple(tuple(way) for way in directions)
    call = _Call(function, len(z), len(indices), ways, wanted, value)
    return _derivative.bind(*operands, call=call)


@_derivative.def_abstract_eval
def _(*operands: ShapedArray, call: _Call) -> list:
    return [ShapedArray(s.shape, s.dtype) for s in call.shapes(operands)]


def _evaluate(*operands: Array, call: _Call) -> list[Array]:
    """The call of the host."""

    def called(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        return call.function.derivative(*call.split(arrays), call.wanted, call.value)

    return host_call(called, call.shapes(operands), *operands)


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, call: _Call
) -> tuple[list[Array], list[Any]]:
    function, wanted, value = call.function, call.wanted, call.value
    z, indices, ways = call.split(primals)
    dz, _, dways = call.split(tangents)
    moved = {i: t for i, t in enumerate(dz) if _moves(t)}
    first = tuple(moved) if value else ()  # leaves whose gradient the value's derivative needs
    every = tuple(dict.fromkeys((*wanted, *first)))
    out = _bind(function, z, indices, ways, every, value)
    gradient = dict(zip(every, out[value:], strict=True))
    along = [None] * len(wanted)
    if moved and wanted:
        along = _bind(function, z, indices, [*ways, moved], wanted, False)
    for j, way in enumerate(dways):
        turned = {i: t for i, t in way.items() if _moves(t)}
        if turned and wanted:
            others = [*ways[:j], turned, *ways[j + 1 :]]
            more = _bind(function, z, indices, others, wanted, False)
            along = [b if a is None else a + b for a, b in zip(along, more, strict=True)]
    slopes = [jnp.sum(gradient[i] * t) for i, t in moved.items()] if value else []
    scalar = [sum(slopes[1:], slopes[0]) if slopes else None] if value else []
    primal_out = [*out[:value], *(gradient[i] for i in wanted)]
    tangent_out = [
        ad.Zero.from_primal_value(p) if t is None else t  # pyright: ignore[reportAttributeAccessIssue]
        for p, t in zip(primal_out, [*scalar, *along], strict=True)
    ]
    return primal_out, tangent_out


def _moves(tangent: Any) -> bool:
    """Whether a tangent is one: neither a zero nor that of a whole number."""
    return not isinstance(tangent, ad.Zero) and np.dtype(tangent.dtype).kind == "f"


def _transpose(cotangents: Sequence[Any], *operands: Any, call: _Call) -> list[Any]:
    z, indices, ways = call.split(operands)
    back = {
        i: c for i, c in zip(call.wanted, cotangents, strict=True) if not isinstance(c, ad.Zero)
    }
    found: list[Any] = [None] * (call.leaves + call.extras)
    for j, way in enumerate(ways):
        linear = tuple(i for i, v in way.items() if ad.is_undefined_primal(v))
        if not linear or not back:
            found += [ad.Zero(v.aval) if i in linear else None for i, v in way.items()]
            continue
        others = [*ways[:j], back, *ways[j + 1 :]]
        more = _bind(call.function, z, indices, others, linear, False)
        turned = dict(zip(linear, more, strict=True))
        found += [turned.get(i) for i in way]
    return found


def _batch(operands: Sequence[Array], axes: Sequence[int | None], **parameters: Any) -> Any:
    return in_turn(lambda *parts: _derivative.bind(*parts, **parameters), operands, axes)


_derivative.def_impl(_evaluate)
ad.primitive_jvps[_derivative] = _jvp
ad.primitive_transposes[_derivative] = _transpose
batching.primitive_batchers[_derivative] = _batch
mlir.register_lowering(_derivative, mlir.lower_fun(_evaluate, multiple_results=True))
