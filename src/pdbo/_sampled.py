"""An estimate of the certificate from a sample of the examples, with its standard error."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from . import _trees as trees
from ._batches import Batches, Drawn, shuffled
from ._certificate import SampledCertificate
from ._problem import Problem
from ._programs import Program
from .exact.compiled_inner import conjugate_residuals

GROUPS = 16  # of the sample: their spread gives the standard errors
PRODUCTS = 50  # the most products with second derivatives of g per linear system


@Program
def sampled(
    problem: Problem, x: PyTree, y: PyTree, examples: int, key: Array
) -> SampledCertificate:
    r"""What a sample says about the hypergradient and the inner gap at a point.

    With $H v = -f_y$ the hypergradient is $d = f_x + g_{xy} v$. A group of the sample moves its
    length by $\hat d \cdot d_k - q \cdot r_k$, where $d_k$ and $r_k = f_y + H v$ are those of the
    group and $H q = g_{yx} \hat d$. With $H w = g_y$ the inner gap is about $w \cdot g_y / 2$, and
    a group moves it by $w \cdot g_y - w \cdot H w / 2$.
    """
    over, used = _groups(problem, examples, key)
    (_, to_x), (_, to_y) = ravel_pytree(x), ravel_pytree(y)

    def slopes(part: Problem) -> tuple[Array, ...]:
        f_x, f_y = jax.grad(part.outer, (0, 1))(x, y)
        g_y = jax.grad(part.inner, 1)(x, y)
        return tuple(ravel_pytree(z)[0] for z in (f_x, f_y, _onto_face(problem, x, y, g_y)))

    def times(part: Problem, v: Float[Array, " y"]) -> tuple[Array, Array]:
        """g_xy v and g_yy v."""
        slope = jax.grad(part.inner, (0, 1))
        along, curved = jax.jvp(lambda w: slope(x, w), (y,), (to_y(v),))[1]
        return ravel_pytree(along)[0], ravel_pytree(_onto_face(problem, x, y, curved))[0]

    def turned(part: Problem, u: Float[Array, " x"]) -> Float[Array, " y"]:
        """g_yx u."""
        slope = lambda z: jax.grad(part.inner, 1)(z, y)  # noqa: E731
        return ravel_pytree(jax.jvp(slope, (x,), (to_x(u),))[1])[0]

    def solve(b: Float[Array, " y"]) -> Float[Array, " y"]:
        product = lambda v: over(lambda part: times(part, v)[1]).mean(0)  # noqa: E731
        return conjugate_residuals(product, b, None, jnp.finfo(b.dtype).eps, PRODUCTS).v

    f_x, f_y, g_y = over(slopes)
    v = solve(-f_y.mean(0))
    halves = [half.mean(0) for half in jnp.split(g_y, 2)]
    ways = [solve(half) for half in halves]  # each meets the other's noise, so the gap has no bias
    gap, w = 0.25 * (ways[0] @ halves[1] + ways[1] @ halves[0]), 0.5 * (ways[0] + ways[1])
    along, curved = over(lambda part: times(part, v))
    hyper = f_x + along
    down = ravel_pytree(problem.x_set.tangent(x, to_x(-hyper.mean(0))))[0]
    size = jnp.sqrt(jnp.sum(down**2))
    unit = -down / jnp.where(size > 0, size, 1)
    q = solve(over(lambda part: turned(part, unit)).mean(0))
    moves = hyper @ unit - (f_y + curved) @ q
    gaps = g_y @ w - 0.5 * over(lambda part: times(part, w)[1]) @ w
    residual = jnp.sqrt(jnp.sum(g_y.mean(0) ** 2))
    errors = _standard_error(moves), _standard_error(gaps)
    return _certificate(problem, (x, y), size, jnp.maximum(gap, 0), residual, errors, used)


def _certificate(
    problem: Problem, at: tuple[PyTree, PyTree], stationarity: Array, gap: Array, residual: Array,
    errors: tuple[Array, Array], examples: int,
) -> SampledCertificate:  # fmt: skip
    """The certificate with these entries, which holds for no tolerance."""
    outside = jnp.maximum(problem.x_set.distance(at[0]), problem.y_set.distance(at[1]))
    nothing = jnp.zeros_like(stationarity)
    return SampledCertificate(
        stationarity=stationarity,
        feasibility=outside.astype(stationarity.dtype),
        complementarity=nothing,
        distance=nothing,
        inner_gap=gap,
        inner_residual=residual,
        multiplier=nothing + jnp.nan,
        slack=nothing,
        eps=nothing + jnp.inf,
        error=errors[0],
        gap_error=errors[1],
        examples=jnp.asarray(examples, stationarity.dtype),
    )


def _groups(
    problem: Problem, examples: int, key: Array
) -> tuple[Callable[[Callable[[Problem], PyTree]], PyTree], int]:
    """A function that maps over the groups of a sample, and the size of the sample."""
    data: Batches = problem.data
    words = jax.random.bits(key, (2,), jnp.uint32)
    zero = jnp.zeros((), jnp.int32)
    sizes = [min(examples, s.length) // GROUPS for s in (data.outer, data.inner)]
    rows = [
        shuffled(words + k, zero, zero, GROUPS * size, stream.length).reshape(GROUPS, size)
        for k, (stream, size) in enumerate(zip((data.outer, data.inner), sizes, strict=True))
    ]

    def over(function: Callable[[Problem], PyTree]) -> PyTree:
        def one(at: tuple[Array, Array]) -> PyTree:
            drawn = Drawn(*(s.take(i) for s, i in zip((data.outer, data.inner), at, strict=True)))
            return function(eqx.tree_at(lambda p: p.data, problem, drawn))

        return lax.map(one, tuple(rows))

    return over, GROUPS * min(sizes)


def _onto_face(problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> PyTree:
    """The part of a direction in y that its set leaves open, at an inner minimum."""
    return trees.scale(-1, problem.y_set.tangent(y, trees.scale(-1, v)))


def _standard_error(values: Float[Array, " groups"]) -> Float[Array, ""]:
    return jnp.std(values) / (GROUPS - 1) ** 0.5
