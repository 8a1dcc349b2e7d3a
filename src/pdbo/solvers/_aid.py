"""AID and StocBiO: implicit differentiation, with a linear system in place of the trajectory."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._problem import Problem
from .._solver import Calls
from ..sets import Set
from ._hypergradient import HypergradientSolver, HypergradientState, Inner

Operator = Callable[[PyTree], PyTree]


class ImplicitSolver(HypergradientSolver):
    r"""A hypergradient by the implicit function theorem; subclasses give the linear solver.

    $$\nabla^2_{yy} g(x, y)\, v = \nabla_y f(x, y),\qquad
      d = \nabla_x f(x, y) - \nabla^2_{xy} g(x, y)\, v$$

    Coordinates of y on a bound are left out of the system: they do not move with x.
    """

    covers = ("Free", "Box", "NonNegative")

    linear_steps: int = eqx.field(static=True, default=5)
    warm_linear: bool = eqx.field(static=True, default=False, kw_only=True)

    def __check_init__(self):
        whole_number("linear_steps", self.linear_steps)

    @abc.abstractmethod
    def solve(self, operator: Operator, b: PyTree, start: PyTree | None) -> PyTree:
        """K steps on `operator(v) = b`, from zero if there is no start."""

    def linear0(self, y: PyTree) -> PyTree | None:
        """Zero if the solution is kept, else None."""
        return trees.zeros_like(y) if self.warm_linear else None

    def hypergradient(
        self, problem: Problem, x: PyTree, start: Inner, linear: PyTree | None
    ) -> tuple[PyTree, Inner, PyTree | None]:
        """N inner steps, K linear steps and the implicit gradient."""
        end = self.follow(problem, x, start, self.inner_steps)
        y = end.y
        free = free_part(problem.y_set, y)
        f_x, f_y = jax.grad(problem.outer, (0, 1))(x, y)
        _, second = jax.vjp(jax.grad(problem.inner, 1), x, y)  # v -> (g_xy v, g_yy v)
        v0 = None if linear is None else free(linear)
        v = self.solve(lambda v: free(second(v)[1]), free(f_y), v0)
        return trees.sub(f_x, second(v)[0]), end, v if self.warm_linear else None


class AIDFixedPoint(ImplicitSolver):
    r"""Approximate implicit differentiation, its linear system by fixed-point steps (AID-FP).

    N inner steps $y \leftarrow \Pi_Y(y - s\,\nabla_y g(x, y))$, then from $v = 0$ K times

    $$v \leftarrow v - s\,(\nabla^2_{yy} g(x, y)\, v - \nabla_y f(x, y)),\qquad
      d = \nabla_x f(x, y) - \nabla^2_{xy} g(x, y)\, v,$$

    where $\nabla^2_{yy} g\, v = \nabla_y f$ is solved for v on the coordinates that are not on a
    bound. Along a direction of zero curvature v moves by $s K$ times the slope of f, and with a
    warm start again at every iteration: if there are many inner minima, v means little there.
    Each iteration makes K Hessian- and one Jacobian-vector product.

    Arguments:
        outer_step: the step on x.
        inner_step: s, of the inner and of the linear steps.
        inner_steps: N.
        linear_steps: K.
        warm_start: whether the inner steps start at the last y (the default, as in the authors'
            code) or always at y0.
        warm_linear: whether the linear steps start at the last v or (the default) at zero.
        outer, inner: Optax transformations for the steps in x and in y; not for those in v.

    Constraints: any x_set. For y_set Free, Box, NonNegative and their products: a coordinate that
    ends on a bound is held fixed there, which is right if the inner gradient pushes it against
    that bound. The theory covers only Free; coupled or curved sets are an error.

    Reference: Grazzi, Franceschi, Pontil & Salzo, On the Iteration Complexity of Hypergradient
    Computation (2020).

    Differs from the paper in: always K steps, without a tolerance; v is the paper's times s;
    bounds on y.
    """

    label = "AID-FP"
    family = "hypergradient"
    citation = (
        "Grazzi, Franceschi, Pontil & Salzo, On the Iteration Complexity of Hypergradient "
        "Computation, 2020"
    )

    def solve(self, operator: Operator, b: PyTree, start: PyTree | None) -> PyTree:
        """K fixed-point steps."""
        return _fixed_point(operator, b, self.inner_step, self.linear_steps, start)

    def calls(self, state: HypergradientState) -> Calls:
        """One gradient of f, N of g and K + 1 products per iteration."""
        t = state.t
        return Calls(t, self.inner_steps * t, (self.linear_steps + 1) * t)


class AIDConjugateGradient(ImplicitSolver):
    r"""Approximate implicit differentiation, its linear system by conjugate gradients (AID-CG).

    N inner steps $y \leftarrow \Pi_Y(y - s\,\nabla_y g(x, y))$, then K steps of conjugate
    gradients from $v = 0$ on

    $$\nabla^2_{yy} g(x, y)\, v = \nabla_y f(x, y),\qquad
      d = \nabla_x f(x, y) - \nabla^2_{xy} g(x, y)\, v,$$

    on the coordinates that are not on a bound; see `conjugate_gradient` for the rule on zero and
    negative curvature. If there are many inner minima, the system can have no solution: v is then
    finite, but can be large, and the iterates need not settle. Each iteration makes K Hessian-
    (one more from a warm v) and one Jacobian-vector product.

    Arguments:
        outer_step: the step on x.
        inner_step: s.
        inner_steps: N.
        linear_steps: K.
        warm_start: whether the inner steps start at the last y (the default, as in the authors'
            code) or always at y0.
        warm_linear: whether the linear solve starts at the last v or (the default) at zero.
        outer, inner: Optax transformations for the steps in x and in y; not for those in v.

    Constraints: any x_set. For y_set Free, Box, NonNegative and their products: a coordinate that
    ends on a bound is held fixed there, which is right if the inner gradient pushes it against
    that bound. The theory covers only Free; coupled or curved sets are an error.

    Reference: Pedregosa, Hyperparameter Optimization with Approximate Gradient (2016); Grazzi,
    Franceschi, Pontil & Salzo, On the Iteration Complexity of Hypergradient Computation (2020).

    Differs from the paper in: a fixed number of steps instead of decreasing tolerances
    (Pedregosa); the rule on curvature; bounds on y.
    """

    label = "AID-CG"
    family = "hypergradient"
    citation = (
        "Grazzi, Franceschi, Pontil & Salzo, On the Iteration Complexity of Hypergradient "
        "Computation, 2020"
    )

    def solve(self, operator: Operator, b: PyTree, start: PyTree | None) -> PyTree:
        """K steps of conjugate gradients."""
        return conjugate_gradient(operator, b, self.linear_steps, start)

    def calls(self, state: HypergradientState) -> Calls:
        """One gradient of f, N of g and K + 1 products per iteration, one more from a warm v."""
        t = state.t
        return Calls(t, self.inner_steps * t, (self.linear_steps + 1 + self.warm_linear) * t)


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
        return _fixed_point(operator, b, self.linear_step, self.linear_steps, start)

    def calls(self, state: HypergradientState) -> Calls:
        """One gradient of f, N of g and K + 1 products per iteration."""
        t = state.t
        return Calls(t, self.inner_steps * t, (self.linear_steps + 1) * t)


def _fixed_point(
    operator: Operator, b: PyTree, step: Array, steps: int, start: PyTree | None
) -> PyTree:
    """So many steps `v - step (operator(v) - b)`, from zero or a given start."""

    def one(_: Int[Array, ""], v: PyTree) -> PyTree:
        return trees.axpy(-step, trees.sub(operator(v), b), v)

    return lax.fori_loop(0, steps, one, trees.zeros_like(b) if start is None else start)


def conjugate_gradient(
    operator: Operator,
    b: PyTree,
    steps: ArrayLike,
    start: PyTree | None = None,
    tolerance: ArrayLike | None = None,
) -> PyTree:
    r"""At most `steps` steps of conjugate gradients on $A v = b$, from zero or a given start.

    It ends early, keeping the current v, before a direction p of zero or negative curvature,
    $p^\top A p \le 8 \epsilon\, \sigma\, \|p\|^2$ with $\sigma$ the largest $\|Ap\| / \|p\|$ so
    far and $\epsilon$ the rounding unit, and after a step that leaves a residual of at most
    $\epsilon \|b\|$. So v is finite for any symmetric A, and with enough steps a solution if there
    is one and A is semidefinite. Without a tolerance all products are computed, also after the
    end; with one, the residual relative to b that suffices, the loop stops there.
    """
    v = trees.zeros_like(b) if start is None else start
    r = b if start is None else trees.sub(b, operator(start))
    eps = jnp.finfo(trees.dtype(b)).eps
    enough = ((eps if tolerance is None else jnp.maximum(eps, tolerance)) * trees.norm(b)) ** 2
    rr = trees.dot(r, r)

    def one(_: Int[Array, ""], s: tuple) -> tuple:
        v, r, p, rr, size, going = s
        ap = operator(p)
        length = trees.norm(p)
        size = jnp.maximum(size, trees.norm(ap) / jnp.where(going, length, 1))
        curvature = trees.dot(p, ap)
        going &= curvature > 8 * eps * size * length**2
        along = jnp.where(going, rr / jnp.where(going, curvature, 1), 0)
        v, r = trees.axpy(along, p, v), trees.axpy(-along, ap, r)
        left = trees.dot(r, r)
        going &= left > enough
        p = trees.axpy(jnp.where(going, left / jnp.where(going, rr, 1), 0), p, r)
        return v, r, p, left, size, going

    state: tuple[Array, ...] = (v, r, r, rr, jnp.zeros_like(rr), rr > enough)
    if tolerance is None:
        return lax.fori_loop(0, steps, one, state)[0]
    numbered = (jnp.zeros((), jnp.int32), state)
    return lax.while_loop(
        lambda s: s[1][-1] & (s[0] < steps), lambda s: (s[0] + 1, one(*s)), numbered
    )[1][0]


def free_part(constraint: Set, y: PyTree) -> Operator:
    """The map that sets the entries of coordinates of y on a bound to zero."""
    ones = jax.tree.map(jnp.ones_like, y)
    up, down = constraint.tangent(y, ones), constraint.tangent(y, trees.scale(-1, ones))

    def one(v: Array, up: Array, down: Array) -> Array:
        return jnp.where((up > 0) & (down < 0), v, 0)

    return lambda v: jax.tree.map(one, v, up, down)
