"""MA-SOBA: SOBA along a moving average of the hypergradients."""

import equinox as eqx
from jaxtyping import Array, PyTree

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from ._single_loop import SingleLoopSolver, SingleLoopState, directions


class MASOBA(SingleLoopSolver):
    r"""SOBA with a Moving Average: x follows $h_t$, an average of the hypergradients so far.

    All at $(x_t, y_t, v_t)$, with $d = \nabla_x f - \nabla^2_{xy} g\, v_t$ and $h_0 = 0$,

    $$x_{t+1} = \Pi_X(x_t - \gamma h_t),\qquad h_{t+1} = (1 - \theta) h_t + \theta d,$$

    and y and v move as in SOBA. The average takes the place of decreasing steps: the noise of
    one batch moves x by a share $\theta$ only.

    Arguments:
        outer_step: $\gamma$.
        inner_step: the step in y and in v.
        averaging: $\theta$, at most 1.
        outer, inner: Optax transformations for the steps in x, of $h_t$, and in y; not for those
            in v.

    Constraints: any x_set. For y_set Free, Box, NonNegative and their products, with v zero on the
    coordinates on a bound; the theory covers only Free.

    Reference: Chen, Xiao & Balasubramanian, Optimal Algorithms for Stochastic Bilevel Optimization
    under Relaxed Smoothness Conditions (2023), Algorithm 1.

    Differs from the paper in: the projections; constant steps; one batch of g serves y, v and x.
    """

    label = "MA-SOBA"
    family = "hypergradient"
    citation = (
        "Chen, Xiao & Balasubramanian, Optimal Algorithms for Stochastic Bilevel Optimization "
        "under Relaxed Smoothness Conditions, 2023"
    )

    averaging: Array = eqx.field(converter=number, default=0.1)

    def memory0(self, problem: Problem, x: PyTree, y: PyTree) -> PyTree:
        """The average of no hypergradients."""
        return trees.zeros_like(x)

    def step(self, problem: Problem, state: SingleLoopState) -> SingleLoopState:
        """One iteration."""
        h = state.memory
        d = directions(problem, state.x, state.y, state.v)
        average = trees.axpy(self.averaging, trees.sub(d.x, h), h)
        new = self.advance(problem, state, d._replace(x=h), memory=average)
        if self.outer is not None:  # it sees no average before there is one
            parts = lambda s: (s.x, s.rules[0])  # noqa: E731
            new = eqx.tree_at(parts, new, trees.where(state.t == 0, parts(state), parts(new)))
        return new
