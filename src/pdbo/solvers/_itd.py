"""ITD, iterative differentiation: reverse mode through the inner steps."""

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from .._checks import whole_number
from .._errors import ProblemError
from .._problem import Problem
from .._solver import Calls
from ._hypergradient import HypergradientSolver, HypergradientState, Inner


class ITD(HypergradientSolver):
    r"""Iterative differentiation (ITD-R, RHG): the derivative of f at the end of N inner steps.

    $$y^{k+1} = \Pi_Y\bigl(y^k - s\,\nabla_y g(x, y^k)\bigr),\quad k = 0, \dots, N-1,\qquad
      d = \tfrac{d}{dx} f(x, y^N(x)),$$

    the derivative taken by reverse mode; truncated to the last K steps, as if $y^{N-K}$ did not
    depend on x. The K iterates and the intermediate values of their steps are kept in memory,
    which grows in proportion to K.

    The reverse of each step makes one Hessian- and one Jacobian-vector product,
    $\nabla^2_{yy} g\, v$ and $\nabla^2_{xy} g\, v$: 2K products per iteration.

    Arguments:
        outer_step: the step on x.
        inner_step: s.
        inner_steps: N.
        truncate: K, how many of the last inner steps are differentiated; None is all of them.
        warm_start: whether the inner steps start at the last y (the default, as in the authors'
            later code) or always at y0.
        outer, inner: Optax transformations for the steps in x and in y. That of y is differentiated
            too: Adam needs an `eps_root` above zero for this.

    Constraints: any x_set. For y_set the polyhedra Free, Box, NonNegative, Simplex, Halfspace,
    Affine, Polyhedron and their products, whose projections are piecewise linear and differentiated
    as they are; the theory covers only Free, and a curved set is an error.

    Reference: Franceschi, Donini, Frasconi & Pontil, Forward and Reverse Gradient-Based
    Hyperparameter Optimization (2017); truncation: Shaban, Cheng, Hatch & Boots, Truncated
    Back-propagation for Bilevel Optimization (2019).

    Differs from the paper in: the inner steps start warm by default. If there are many inner
    minima, neither start selects among them.
    """

    label = "ITD-R"
    family = "hypergradient"
    citation = (
        "Franceschi, Donini, Frasconi & Pontil, Forward and Reverse Gradient-Based "
        "Hyperparameter Optimization, 2017"
    )

    covers = ("Free", "Box", "NonNegative", "Simplex", "Halfspace", "Affine", "Polyhedron")

    truncate: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.truncate is not None:
            whole_number("truncate", self.truncate)
            if self.truncate > self.inner_steps:
                raise ProblemError(
                    f"truncate must be at most inner_steps = {self.inner_steps}, "
                    f"got {self.truncate}."
                )

    @property
    def _differentiated(self) -> int:
        return self.inner_steps if self.truncate is None else self.truncate

    def hypergradient(
        self, problem: Problem, x: PyTree, start: Inner, linear: None
    ) -> tuple[PyTree, Inner, None]:
        """N inner steps, the last K of them differentiated."""
        last = self._differentiated
        start = self.follow(problem, x, start, self.inner_steps - last)

        def unrolled(x: PyTree) -> tuple[Array, Inner]:
            end = self.follow(problem, x, start, last)
            return problem.outer(x, end.y), end

        gradient, end = jax.grad(unrolled, has_aux=True)(x)
        return gradient, end, None

    def calls(self, state: HypergradientState) -> Calls:
        """One gradient of f, N of g and 2K products per iteration."""
        t = state.t
        return Calls(t, self.inner_steps * t, 2 * self._differentiated * t)
