"""SABA: SOBA with what every batch said last kept, so that its noise fades out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from .. import _trees as trees
from .._problem import Problem
from ._aid import free_part
from ._soba import Directions, SingleLoopSolver, SingleLoopState


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
