"""SOBA, a single stochastic loop on x, y and the linear system."""

import equinox as eqx
from jaxtyping import Array

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from ._single_loop import SingleLoopSolver, SingleLoopState, directions


class SOBA(SingleLoopSolver):
    r"""StOchastic Bilevel Algorithm: x, y and the linear system v move at once.

    With $s_t = (t + 1)^{-p}$, all at $(x_t, y_t, v_t)$,

    $$y_{t+1} = \Pi_Y\bigl(y_t - \rho s_t\nabla_y g\bigr),\qquad
      v_{t+1} = v_t - \rho s_t(\nabla^2_{yy} g\, v_t - \nabla_y f),\qquad
      x_{t+1} = \Pi_X\bigl(x_t - \gamma s_t(\nabla_x f - \nabla^2_{xy} g\, v_t)\bigr).$$

    Each step makes one gradient of f, one of g and two products, all on one batch.

    Arguments:
        outer_step: $\gamma$.
        inner_step: $\rho$, also of the steps in v.
        decay: p; 1/2 is the theory's for noisy gradients, zero suits exact ones.
        outer, inner: Optax transformations for the steps in x and in y, without $s_t$; not for
            those in v.

    Constraints: any x_set. For y_set Free, Box, NonNegative and their products, with v zero on the
    coordinates on a bound; the theory covers only Free.

    Reference: Dagréou, Ablin, Vaiter & Moreau, A Framework for Bilevel Optimization that Enables
    Stochastic and Global Variance Reduction Algorithms (2022), Algorithm 1 with stochastic
    gradients.

    Differs from the paper in: the projections; the sign of v.
    """

    label = "SOBA"
    family = "hypergradient"
    citation = (
        "Dagréou, Ablin, Vaiter & Moreau, A Framework for Bilevel Optimization that Enables "
        "Stochastic and Global Variance Reduction Algorithms, 2022"
    )

    decay: Array = eqx.field(converter=number, default=0.5)

    def step(self, problem: Problem, state: SingleLoopState) -> SingleLoopState:
        """One iteration."""
        dtype = trees.dtype(state.x)
        shrunk = (state.t + 1).astype(dtype) ** -self.decay.astype(dtype)
        d = directions(problem, state.x, state.y, state.v)
        return self.advance(problem, state, d, shrunk)
