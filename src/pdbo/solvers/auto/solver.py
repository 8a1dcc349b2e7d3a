"""AutoPDBO: the primal-dual method with nothing to tune."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ..._problem import Problem
from ..._solver import Calls, Point, Solver
from .oracles import cuts_at, draw, first_steps
from .polish import polish
from .search import search
from .slack import FIRST_SLACK, LAST_SLACK, LAST_SLACK_ABSOLUTE
from .state import (
    DONE,
    SEARCH,
    SLOTS,
    AutoState,
    Cuts,
    Incumbent,
    PolishState,
    Scales,
    SearchState,
    no_value,
)
from .units import PROBES, measure


class AutoPDBO(Solver):
    r"""The default: nothing to choose, an exact path, and a search for what that cannot solve.

    `solve`, `compare` and `multistart` run it as a short portfolio with one certificate as judge:

    - `Implicit` from the start. If its answer is certified and nothing contradicts it, it ends.
    - Else the search described below, for kinks, jumps, basins and linear inner problems.
    - `Implicit` again from where the search ended.

    Only what a run reaches is compiled. Under jit and vmap, on a mesh and with `exact=False` it is
    the search alone: primal-dual bilevel optimisation without a step size, a smoothing or a slack
    to choose. There both would have to be compiled before either runs, which takes nearly half as
    long again; name `Implicit` to have the exact path.

    The search works on $\min f(z)$ over $z = (x, y)$ subject to $h(z) \le \delta$ as PDBO does,
    with these ideas in place of the numbers PDBO asks for:

    1. **Cuts instead of one inner estimate.** $g^*(x) \le g(x, \hat y_k)$ for any
       $\hat y_k \in Y$, so $h_k(z) = g(x, y) - g(x, \hat y_k) \le \delta$ is necessary even if
       $\hat y_k$ has not converged, and needs no smoothing. Four warm slots $\hat y_k$ are kept,
       each with its own Barzilai-Borwein step: if the inner minimum jumps between basins, two cuts
       are active at the solution, and one estimate alone never settles.
    2. **Multipliers from a local model, not by ascent.** With curvatures $L_f, L_h$ the step for
       $l_k = \lambda_k L_h / L_f$ is
       $d(l) = P(z - \frac{\nabla f / L_f + \sum_k l_k \nabla h_k / L_h}{1 + \sum_k l_k}) - z$, a
       mean of an f-step and h-steps, bounded however large the multipliers become (they grow like
       $1/\sqrt\delta$). l is complementary to
       $h_k + \langle\nabla h_k, d\rangle + \tfrac{L_h}{2}\|d\|^2 \le \delta$.
    3. **Steps from what was measured.** A trial is kept if f and every cut stay below their
       models; the curvatures follow the secants of what was seen and bound the step by a radius.
    4. **First f alone, then the inner problem.** $\delta$ starts above the range of g, so the run
       starts from a minimum of f and the feasible set closes in on it: the nearest solutions are
       the good ones. $\delta$ shrinks on evidence, when the f-error left,
       $\|(L_f + \Lambda L_h) d\|^2 / (2 L_f)$, is small against the bias $\Lambda\delta$ of the
       relaxation; a random kick within the relaxation then leaves symmetric saddles.
    5. **Wrong basins are noticed.** Slots that are duplicates, or idle and worst, are drawn again
       from Y (around y if Y is unbounded) or set to y. y moves to a slot that is as good for g and
       better for f, or if y cannot become feasible. The best feasible point met is kept, and the
       run returns to it if the path it followed ends higher.
    6. **Units.** x and y are measured in half-widths of their sets; if a set is unbounded, in
       lengths that make the curvatures of f and g in x and in y alike. If they have none in x, x
       is measured by what moves the inner solution by a unit, after some inner steps if x has no
       effect at the start (a penalty on weights of zero). Only the last slack depends on the scale
       of f, g, x or y: it is at most a tenth of what a certificate allows, or what rounding leaves.
    7. **Polishing.** A large multiplier makes the joint problem stiff, and the search slow at its
       end, but not $\phi(x) = \min_y f + \lambda (g - g^*)$, where y and the slot follow x. Once
       the search has settled, or has become slow, spectral steps on $\phi$ take over: near a
       solution, or, if Y is free, anywhere if the active slots agree on the slope of $g^*$.

    The search has four phases: SEARCH (ideas 1 to 5), APPROACH, where y and a slot are taken to
    their minima and polishing may be refused, POLISH (idea 7), and DONE, where the state no longer
    changes. If polishing fails, the run goes back to SEARCH.

    A multiplier magnifies the rounding of single precision, so `solve` runs small problems in
    double.

    Measured by `benchmarks/multipliers.py` on the problems of the collection with one x and one y,
    32 random starts of 1,000 steps, solved to 1 % of f with an inner gap below 1e-4, on the half
    on which constants were chosen and on the other: 99.6 and 84.8 % of the runs, a median of 2,200
    gradients. With other rules for the multipliers and all else equal: a closed form from the
    linearised worst cut 27 and 47 %, an augmented Lagrangian at best 44 and 29 %, clipped ascent at
    best 51 and 52 %.

    Reference: the constraint and the primal-dual view are those of Sow, Ji, Guan & Liang, A
    Primal-Dual Approach to Bilevel Optimization with Multiple Inner Minima (2022).
    """

    label = "AutoPDBO"
    family = "automatic"
    citation = (
        "this package, after Sow, Ji, Guan & Liang, A Primal-Dual Approach to Bilevel "
        "Optimization with Multiple Inner Minima, 2022"
    )
    batch_refusal = "it compares values of f and g from step to step"
    prefers_double = True
    in_parts = False

    exact: bool = eqx.field(static=True, default=True)
    """Whether `solve` runs `Implicit` before and after the search, on problems it is made for."""

    @property
    def exact_first(self) -> bool:
        """Whether `solve` runs `Implicit` before and after it."""
        return self.exact

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> AutoState:
        """Units, slots and the range of g from a look around the start."""
        flat_y = ravel_pytree(y)[0]
        dtype = flat_y.dtype
        seed = jnp.sum(jax.random.key_data(key), dtype=jnp.uint32)
        unit, f, grad_f, spent = measure(problem, x, y, seed)
        slots = jnp.concatenate([flat_y[None], draw(problem, y, unit[1], seed, SLOTS - 1)])
        cuts = cuts_at(problem, x, y, slots)
        range_g = _range(cuts, unit[1])
        steps = first_steps(cuts.y[1:], unit[1])
        zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
        return AutoState(
            phase=none + SEARCH,
            t=none,
            seed=seed,
            x=x,
            y=y,
            f=f,
            grad_f=grad_f,
            slots=slots,
            cuts=cuts,
            multiplier=zero,
            scales=Scales(
                unit=unit,
                range_g=range_g,
                last_slack=jnp.minimum(LAST_SLACK * range_g, LAST_SLACK_ABSOLUTE),
                low_f=f,
                high_f=f,
                steepest=zero,
            ),
            incumbent=Incumbent(x, y, jnp.full((), no_value(dtype), dtype)),
            search=SearchState.start(steps, slack=FIRST_SLACK * range_g, drop=range_g),
            polish=PolishState.start(x, dtype),
            f_calls=none + PROBES,
            g_calls=none + SLOTS + 1 + spent,
            products=none,
        )

    def step(self, problem: Problem, state: AutoState) -> AutoState:
        """One iteration of the phase the run is in."""
        return lax.cond(state.phase == DONE, lambda s: s, lambda s: _iterate(problem, s), state)

    def output(self, state: AutoState) -> Point:
        """The current point, with the sum of the multipliers of its cuts."""
        return Point(state.x, state.y, state.multiplier, None)

    def settled(self, state: AutoState) -> Bool[Array, ""]:
        """Whether the run is done: further steps change nothing."""
        return state.phase == DONE

    def calls(self, state: AutoState) -> Calls:
        """Gradients of f and g."""
        return Calls(state.f_calls, state.g_calls, state.products)

    def with_calls(self, state: AutoState, calls: Calls) -> AutoState:
        """A state to which the calls made before it are added."""
        return dataclasses.replace(
            state,
            f_calls=state.f_calls + jnp.asarray(calls.f, jnp.int32),
            g_calls=state.g_calls + jnp.asarray(calls.g, jnp.int32),
            products=state.products + jnp.asarray(calls.products, jnp.int32),
        )


def _iterate(problem: Problem, state: AutoState) -> AutoState:
    """Search, or polish: APPROACH and POLISH are one program."""
    state = lax.cond(
        state.phase == SEARCH, lambda s: search(problem, s), lambda s: polish(problem, s), state
    )
    return dataclasses.replace(state, t=state.t + 1)


def _range(cuts: Cuts, unit_y: Float[Array, ""]) -> Float[Array, ""]:
    """The spread of g among the slots; if there is none, what its slope makes of a unit of y."""
    spread = jnp.max(cuts.value) - jnp.min(cuts.value)
    slope = jnp.linalg.norm(cuts.y[0]) * unit_y
    return jnp.where(spread > 0, spread, jnp.where(slope > 0, slope, 1))
