"""StocBiO: inner steps, a truncated Neumann series, one outer step."""

import equinox as eqx
from jax import lax
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number
from .._solver import Calls
from ._aid import ImplicitSolver, Operator
from ._hypergradient import HypergradientState


class StocBiO(ImplicitSolver):
    r"""Stochastic Bilevel Optimiser: the hypergradient by a Neumann series of K terms.

    N inner steps $y \leftarrow \Pi_Y(y - s\,\nabla_y g(x, y))$, then

    $$v = \eta\sum_{k=0}^{K-1}(I - \eta\nabla^2_{yy} g)^k\,\nabla_y f,\qquad
      d = \nabla_x f - \nabla^2_{xy} g\, v,$$

    on the coordinates that are not on a bound. It is computed as K steps
    $v \leftarrow v - \eta(\nabla^2_{yy} g\, v - \nabla_y f)$ from zero: K Hessian- and one
    Jacobian-vector product per iteration.

    Arguments:
        outer_step: the step on x.
        inner_step: s.
        inner_steps: N.
        linear_steps: K.
        linear_step: $\eta$, at most the inverse of the largest eigenvalue of $\nabla^2_{yy} g$.
        warm_start: whether the inner steps start at the last y (the default, as in the paper) or
            always at y0.
        warm_linear: whether the series starts at the last v or (the default) at zero.
        outer, inner: Optax transformations for the steps in x and in y; not for those in v.

    Constraints: any x_set. For y_set Free, Box, NonNegative and their products: a coordinate that
    ends on a bound is held fixed there. The theory covers only Free; coupled or curved sets are
    an error.

    Reference: Ji, Yang & Liang, Bilevel Optimization: Convergence Analysis and Enhanced Design
    (2021), Algorithms 2 and 3.

    Differs from the paper in: all inner steps and products of an iteration use one batch of g,
    where the paper draws one for each, more of them for earlier factors of the series; bounds on y.
    On exact gradients it is AID-FP with a step of its own for v.
    """

    label = "StocBiO"
    family = "hypergradient"
    citation = (
        "Ji, Yang & Liang, Bilevel Optimization: Convergence Analysis and Enhanced Design, 2021"
    )

    linear_step: Array = eqx.field(converter=number, default=0.5)

    def solve(self, operator: Operator, b: PyTree, start: PyTree | None) -> PyTree:
        """K terms of the series."""

        def one(_: Int[Array, ""], v: PyTree) -> PyTree:
            return trees.axpy(-self.linear_step, trees.sub(operator(v), b), v)

        start = trees.zeros_like(b) if start is None else start
        return lax.fori_loop(0, self.linear_steps, one, start)

    def calls(self, state: HypergradientState) -> Calls:
        """One gradient of f, N of g and K + 1 products per iteration."""
        t = state.t
        return Calls(t, self.inner_steps * t, (self.linear_steps + 1) * t)
