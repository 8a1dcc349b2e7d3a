"""SOBA, MA-SOBA and SABA: a single stochastic loop on x, y and the linear system."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import number
from .._problem import Problem
from .._solver import Calls, Point
from ._aid import free_part
from ._descent import GradientSolver, begin, move
from ._hypergradient import check_y_set


class Directions(NamedTuple):
    r"""Where x, y and v move against: $f_x - g_{xy}v$, $g_y$ and $g_{yy}v - f_y$."""

    x: PyTree
    y: PyTree
    v: PyTree


class SingleLoopState(eqx.Module):
    """x, y, the solution v of the linear system, the states of the transformations, a memory."""

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    v: PyTree
    rules: tuple[PyTree, PyTree]
    memory: PyTree


class SingleLoopSolver(GradientSolver):
    r"""x, y and v move at once, each along a direction that is linear in f and g.

    $$D_y = \nabla_y g,\qquad D_v = \nabla^2_{yy} g\, v - \nabla_y f,\qquad
      D_x = \nabla_x f - \nabla^2_{xy} g\, v$$

    all at the same $(x_t, y_t, v_t)$. A batch gives unbiased estimates of all three.
    """

    needs_products = True
    covers = ("Free", "Box", "NonNegative")

    outer_step: Array = eqx.field(converter=number, default=0.1)
    inner_step: Array = eqx.field(converter=number, default=0.5)

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> SingleLoopState:
        """The state before the first step; raises if the method does not cover the set Y."""
        check_y_set(problem.y_set, self.covers, self.name)
        rules = (begin(self.outer, x, "outer"), begin(self.inner, y, "inner"))
        v, memory = trees.zeros_like(y), self.memory0(problem, x, y)
        return SingleLoopState(jnp.zeros((), jnp.int32), x, y, v, rules, memory)

    def memory0(self, problem: Problem, x: PyTree, y: PyTree) -> PyTree:
        """What else the method keeps, before the first step."""
        return None

    def advance(
        self,
        problem: Problem,
        at: SingleLoopState,
        d: Directions,
        decay: float | Float[Array, ""] = 1.0,
        memory: PyTree = None,
    ) -> SingleLoopState:
        """The steps along these directions, with the step sizes times `decay`."""
        sizes = trees.astype((self.outer_step, self.inner_step), trees.dtype(at.x))
        outer_step, inner_step = (decay * size for size in sizes)
        x, outer = move(self.outer, at.rules[0], d.x, at.x, outer_step, problem.x_set)
        y, inner = move(self.inner, at.rules[1], d.y, at.y, inner_step, problem.y_set)
        v = trees.axpy(-inner_step, d.v, at.v)
        return SingleLoopState(at.t + 1, x, y, v, (outer, inner), memory)

    def output(self, state: SingleLoopState) -> Point:
        """The last iterate."""
        return Point(state.x, state.y)

    def calls(self, state: SingleLoopState) -> Calls:
        """One gradient of f, one of g and two products per iteration."""
        return Calls(state.t, state.t, 2 * state.t)


def directions(problem: Problem, x: PyTree, y: PyTree, v: PyTree) -> Directions:
    """The three directions at a point; v stays zero where y is on a bound."""
    free = free_part(problem.y_set, y)
    f_x, f_y = jax.grad(problem.outer, (0, 1))(x, y)
    g_y, second = jax.vjp(jax.grad(problem.inner, 1), x, y)
    cross, curved = second(free(v))
    return Directions(trees.sub(f_x, cross), g_y, free(trees.sub(curved, f_y)))


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


class Memory(NamedTuple):
    """The last value of every batch, along a leading axis, and their mean."""

    values: PyTree
    mean: PyTree


class SABA(SingleLoopSolver):
    r"""Stochastic Average Bilevel Algorithm: SAGA's variance reduction for x, y and v at once.

    The steps are those of SOBA with constant sizes. Every gradient and product c of batch i is
    replaced by $c - m_i + \tfrac{1}{n}\sum_k m_k$, with $m_k$ what batch k gave when it was drawn
    last, zero before; then $m_i \leftarrow c$. This is unbiased, and its noise vanishes as the
    iterates settle, so that on strongly convex problems constant steps converge linearly.

    On `Batches` its batches are fixed: blocks of examples in their order, of which one is drawn.
    `size` must divide the number of examples. The memory is one vector like x and one like y
    for every block of f, one like x and two like y for every block of g: choose larger batches if
    that is too much.

    Arguments:
        outer_step: $\gamma$.
        inner_step: $\rho$, also of the steps in v.
        outer, inner: Optax transformations for the steps in x and in y; not for those in v.

    Constraints: any x_set. For y_set Free, Box, NonNegative and their products, with v zero on the
    coordinates on a bound; the theory covers only Free.

    Reference: Dagréou, Ablin, Vaiter & Moreau, A Framework for Bilevel Optimization that Enables
    Stochastic and Global Variance Reduction Algorithms (2022), Algorithm 1 with SAGA's estimates;
    Defazio, Bach & Lacoste-Julien, SAGA (2014).

    Differs from the paper in: the projections; the sign of v; a memory per batch, not per example;
    blocks are drawn without replacement, in another order in every epoch.
    """

    label = "SABA"
    family = "hypergradient"
    citation = (
        "Dagréou, Ablin, Vaiter & Moreau, A Framework for Bilevel Optimization that Enables "
        "Stochastic and Global Variance Reduction Algorithms, 2022"
    )
    fixed_batches = True

    def memory0(self, problem: Problem, x: PyTree, y: PyTree) -> tuple[Memory, Memory]:
        r"""Empty memories of $(f_x, f_y)$ and of $(g_y, g_{xy}v, g_{yy}v)$."""
        blocks_f, blocks_g = problem.view.blocks
        return _empty((x, y), blocks_f), _empty((y, x, y), blocks_g)

    def step(self, problem: Problem, state: SingleLoopState) -> SingleLoopState:
        """One iteration."""
        x, y, (of_f, of_g), (block_f, block_g) = state.x, state.y, state.memory, problem.view.block
        free = free_part(problem.y_set, y)
        g_y, second = jax.vjp(jax.grad(problem.inner, 1), x, y)
        drawn_f, drawn_g = jax.grad(problem.outer, (0, 1))(x, y), (g_y, *second(free(state.v)))
        (f_x, f_y), of_f = _averaged(of_f, drawn_f, block_f)
        (g_y, cross, curved), of_g = _averaged(of_g, drawn_g, block_g)
        d = Directions(trees.sub(f_x, cross), g_y, free(trees.sub(curved, f_y)))
        return self.advance(problem, state, d, memory=(of_f, of_g))


def _empty(like: PyTree, blocks: int) -> Memory:
    values = jax.tree.map(lambda leaf: jnp.zeros((blocks, *leaf.shape), leaf.dtype), like)
    return Memory(values, trees.zeros_like(like))


def _averaged(memory: Memory, new: PyTree, block: Int[Array, ""]) -> tuple[PyTree, Memory]:
    """SAGA's estimate from a batch's new value, and the memory with this value in it."""
    change = jax.tree.map(lambda table, c: c - table[block], memory.values, new)
    estimate = trees.add(memory.mean, change)
    count = len(jax.tree.leaves(memory.values)[0])
    mean = trees.axpy(1 / count, change, memory.mean)
    values = jax.tree.map(lambda table, c: table.at[block].set(c), memory.values, new)
    return estimate, Memory(values, mean)
