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
from typing import Any, Protocol

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


class _Layout:
    """What is where among the operands: z, the indices of a batch, the directions; hashable."""

    def __init__(self, leaves: int, extras: int, directions: tuple[Leaves, ...]):
        self.leaves, self.extras, self.directions = leaves, extras, directions
        starts = leaves + extras + np.cumsum([0, *map(len, directions)])
        self.spans = [slice(a, b) for a, b in itertools.pairwise(starts)]

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, list[dict[int, Any]]]:
        """z, the indices and the directions by leaf."""
        ways = [
            dict(zip(numbers, operands[span], strict=True))
            for numbers, span in zip(self.directions, self.spans, strict=True)
        ]
        start = self.leaves + self.extras
        return operands[: self.leaves], operands[self.leaves : start], ways


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
    return _derivative.bind(
        *operands,
        function=function,
        leaves=len(z),
        extras=len(indices),
        directions=ways,
        wanted=wanted,
        value=value,
    )


def _shapes(z: Sequence[Any], wanted: Leaves, value: bool) -> list[Shape]:
    scalar = [Shape((), z[0].dtype)] if value else []
    return scalar + [Shape(z[i].shape, z[i].dtype) for i in wanted]


@_derivative.def_abstract_eval
def _(*operands: ShapedArray, leaves: int, wanted: Leaves, value: bool, **_: Any) -> list:
    return [ShapedArray(s.shape, s.dtype) for s in _shapes(operands[:leaves], wanted, value)]


def _evaluate(
    *operands: Array,
    function: Function,
    leaves: int,
    extras: int,
    directions: tuple[Leaves, ...],
    wanted: Leaves,
    value: bool,
) -> list[Array]:
    """The call of the host."""
    layout = _Layout(leaves, extras, directions)

    def call(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        z, indices, ways = layout.split(arrays)
        return function.derivative(z, indices, ways, wanted, value)

    return host_call(call, _shapes(operands[:leaves], wanted, value), *operands)


def _jvp(
    primals: Sequence[Array],
    tangents: Sequence[Any],
    *,
    function: Function,
    leaves: int,
    extras: int,
    directions: tuple[Leaves, ...],
    wanted: Leaves,
    value: bool,
) -> tuple[list[Array], list[Any]]:
    layout = _Layout(leaves, extras, directions)
    z, indices, ways = layout.split(primals)
    dz, _, dways = layout.split(tangents)
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


def _transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    function: Function,
    leaves: int,
    extras: int,
    directions: tuple[Leaves, ...],
    wanted: Leaves,
    value: bool,
) -> list[Any]:
    z, indices, ways = _Layout(leaves, extras, directions).split(operands)
    back = {i: c for i, c in zip(wanted, cotangents, strict=True) if not isinstance(c, ad.Zero)}
    found: list[Any] = [None] * (leaves + extras)
    for j, way in enumerate(ways):
        linear = tuple(i for i, v in way.items() if ad.is_undefined_primal(v))
        if not linear or not back:
            found += [ad.Zero(v.aval) if i in linear else None for i, v in way.items()]
            continue
        others = [*ways[:j], back, *ways[j + 1 :]]
        turned = dict(zip(linear, _bind(function, z, indices, others, linear, False), strict=True))
        found += [turned.get(i) for i in way]
    return found


def _batch(operands: Sequence[Array], axes: Sequence[int | None], **parameters: Any) -> Any:
    return in_turn(lambda *parts: _derivative.bind(*parts, **parameters), operands, axes)


_derivative.def_impl(_evaluate)
ad.primitive_jvps[_derivative] = _jvp
ad.primitive_transposes[_derivative] = _transpose
batching.primitive_batchers[_derivative] = _batch
mlir.register_lowering(_derivative, mlir.lower_fun(_evaluate, multiple_results=True))
