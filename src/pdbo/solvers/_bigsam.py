"""BigSAM + ITD: inner steps along averaged directions, then reverse mode through them."""

import equinox as eqx
import jax
from jax import lax
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from .._solver import Calls
from ..sets import Affine, Box, Free, Halfspace, NonNegative, Simplex
from ._hypergradient import HypergradientSolver, HypergradientState


class BigSAM(HypergradientSolver):
    r"""Sequential averaging inside the inner loop, then differentiated (BigSAM + ITD, or BDA).

    With weights $a_k = a / (k + 1)$ the N inner steps descend on f as well as on g,

    $$y^{k+1} = \Pi_Y\bigl(y^k - s\,(a_k \nabla_y f(x, y^k) + (1 - a_k)\nabla_y g(x, y^k))\bigr),
      \qquad d = \tfrac{d}{dx} f(x, y^N(x)),$$

    which moves y, among many inner minima, towards those f prefers. The weights vanish and their
    sum does not, as the theory requires; after N steps y is still about $a/N$ off the inner minima,
    unless f is stationary there. Memory grows in proportion to N.

    The reverse of each step makes one Hessian- and one Jacobian-vector product of f and one each
    of g: 4N products per iteration.

    Arguments:
        outer_step: the step on x.
        inner_step: s, the step along both directions.
        inner_steps: N.
        averaging: a, between 0 (which is ITD) and 1.
        warm_start: whether the inner steps start at the last y or always at y0. From y0, f acts
            for N steps only, and y stops short on a line of inner minima.
        adam: whether the outer step is Adam's, of about `outer_step` in every entry of x.

    Constraints: any x_set. For y_set the polyhedra Free, Box, NonNegative, Simplex, Halfspace,
    Affine and their products, whose projections are piecewise linear and differentiated as they
    are; a curved set is an error.

    Reference: Sabach & Shtern, A First Order Method for Solving Convex Bilevel Optimization
    Problems (2017) for the averaging; Liu, Mu, Yuan, Zeng & Zhang, A Generic First-Order
    Algorithmic Framework for Bi-Level Programming Beyond Lower-Level Singleton (2020) for its
    use here.

    Differs from the paper in: one step s serves both directions (BDA has two); the averaged step
    is projected (BigSAM averages projected ones); the inner steps start warm, and the weights
    start again with them.
    """

    label = "BigSAM+ITD"
    family = "hypergradient"
    citation = (
        "Liu, Mu, Yuan, Zeng & Zhang, A Generic First-Order Algorithmic Framework for "
        "Bi-Level Programming Beyond Lower-Level Singleton, 2020"
    )

    covers = (Free, Box, NonNegative, Simplex, Halfspace, Affine)

    averaging: Array = eqx.field(converter=number, default=0.5)

    def hypergradient(
        self, problem: Problem, x: PyTree, y: PyTree, linear: None
    ) -> tuple[PyTree, PyTree, None]:
        """N averaged inner steps, all differentiated."""

        def unrolled(x: PyTree) -> tuple[Array, PyTree]:
            def one(k: Int[Array, ""], y: PyTree) -> PyTree:
                weight = self.averaging / number(k + 1)
                f_y, g_y = jax.grad(problem.outer, 1)(x, y), jax.grad(problem.inner, 1)(x, y)
                slope = trees.axpy(weight, trees.sub(f_y, g_y), g_y)
                return problem.y_set.project(trees.axpy(-self.inner_step, slope, y))

            y_end = lax.fori_loop(0, self.inner_steps, one, y)
            return problem.outer(x, y_end), y_end

        gradient, y_end = jax.grad(unrolled, has_aux=True)(x)
        return gradient, y_end, None

    def calls(self, state: HypergradientState) -> Calls:
        """N + 1 gradients of f, N of g and 4N products per iteration."""
        n, t = self.inner_steps, state.t
        return Calls((n + 1) * t, n * t, 4 * n * t)
