"""Random problems of any size whose inner problem has a null space, solved in closed form."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._problem import Problem
from ._entry import Entry


def random_quadratic(
    x_size: int, y_size: int, null: int, *, condition: float = 10.0, seed: int = 0
) -> Entry:
    r"""A strongly convex f over an inner problem with an affine set of minimisers.

    $$f = \tfrac12\|x - a\|^2 + \tfrac12\|y - b\|^2, \qquad
      g = \tfrac12\|M y - B x - c\|^2 + \langle d, x\rangle$$

    with M of full row rank, $y\_size - null$ rows and singular values from 1/condition to 1, so
    that $S(x) = \{y : M y = B x + c\}$ has dimension `null` and $g^*(x) = \langle d, x\rangle$. The
    solution is the projection of (a, b) onto $\{(x, y) : M y - B x = c\}$.
    """
    if not 0 <= null <= y_size or x_size < 1 or y_size < 1:
        raise ValueError(
            f"random_quadratic needs x_size, y_size >= 1 and null in [0, y_size], got {x_size}, "
            f"{y_size} and {null}."
        )
    rng = np.random.default_rng(seed)
    rank = y_size - null
    singular = np.geomspace(1 / condition, 1, rank) if rank > 1 else np.ones(rank)
    rows = np.linalg.qr(rng.standard_normal((y_size, rank)))[0].T
    M = singular[:, None] * rows
    B = rng.standard_normal((rank, x_size)) / np.sqrt(x_size)
    a, b = rng.standard_normal(x_size), rng.standard_normal(y_size)
    c, d = rng.standard_normal(rank), rng.standard_normal(x_size)

    K = np.concatenate([-B, M], axis=1)
    center = np.concatenate([a, b])
    z = center - K.T @ np.linalg.solve(K @ K.T, K @ center - c)

    def f(x: Float[Array, " x"], y: Float[Array, " y"], data: dict[str, Array]) -> Float[Array, ""]:
        return 0.5 * jnp.sum((x - data["a"]) ** 2) + 0.5 * jnp.sum((y - data["b"]) ** 2)

    def g(x: Float[Array, " x"], y: Float[Array, " y"], data: dict[str, Array]) -> Float[Array, ""]:
        residual = data["M"] @ y - data["B"] @ x - data["c"]
        return 0.5 * jnp.sum(residual**2) + jnp.sum(data["d"] * x)

    return Entry(
        name=f"quadratic-{x_size}-{y_size}-{null}",
        problem=Problem(f, g, data={"a": a, "b": b, "c": c, "d": d, "M": M, "B": B}),
        formula="f = |x - a|^2/2 + |y - b|^2/2, g = |My - Bx - c|^2/2 + <d, x>, free",
        f_star=float(0.5 * np.sum((z - center) ** 2)),
        solutions=((z[:x_size], z[x_size:]),),
        inner_min=lambda x: float(d @ np.asarray(x, float)),
        start=(np.zeros(x_size), np.zeros(y_size)),
        spread=((-3.0, 3.0), (-3.0, 3.0)),
        reference="this package",
        tags=frozenset({"convex inner", "many minima" if null else "unique", "free", "family"}),
    )
