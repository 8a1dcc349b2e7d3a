"""BigSAM + ITD: inner steps along averaged directions, then reverse mode through them."""

import equinox as eqx
import jax
from jax import lax
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from .._solver import Calls
from ._descent import move
from ._hypergradient import HypergradientSolver, HypergradientState, Inner


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
        outer, inner: Optax transformations for the steps in x and in y. That of y is differentiated
            too: Adam needs an `eps_root` above zero for this.

    Constraints: any x_set. For y_set the polyhedra Free, Box, NonNegative, Simplex, Halfspace,
    Affine, Polyhedron and their products, whose projections are piecewise linear and differentiated
    as they are; a curved set is an error.

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

    covers = ("Free", "Box", "NonNegative", "Simplex", "Halfspace", "Affine", "Polyhedron")

    averaging: Array = eqx.field(converter=number, default=0.5)

    def hypergradient(
        self, problem: Problem, x: PyTree, start: Inner, linear: None
    ) -> tuple[PyTree, Inner, None]:
        """N averaged inner steps, all differentiated."""

        def unrolled(x: PyTree) -> tuple[Array, Inner]:
            def one(k: Int[Array, ""], at: Inner) -> Inner:
                y, rule = at
                weight = self.averaging / number(k + 1)
                f_y, g_y = jax.grad(problem.outer, 1)(x, y), jax.grad(problem.inner, 1)(x, y)
                slope = trees.axpy(weight, trees.sub(f_y, g_y), g_y)
                return Inner(*move(self.inner, rule, slope, y, self.inner_step, problem.y_set))

            end = lax.fori_loop(0, self.inner_steps, one, start)
            return problem.outer(x, end.y), end

        gradient, end = jax.grad(unrolled, has_aux=True)(x)
        return gradient, end, None

    def calls(self, state: HypergradientState) -> Calls:
        """N + 1 gradients of f, N of g and 4N products per iteration."""
        n, t = self.inner_steps, state.t
        return Calls((n + 1) * t, n * t, 4 * n * t)
