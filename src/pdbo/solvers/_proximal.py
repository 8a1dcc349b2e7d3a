"""Proximal-PDBO, Algorithm 2 of the paper."""

from typing import Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._certificate import measure
from .._checks import number, whole_number
from .._errors import ProblemError
from .._problem import Problem
from .._solver import Calls, Point, Solver
from ..schedules import Theory
from ._pdbo import PDBO, PDBOState, Proximal, are_defaults, check_theory


class ProximalPDBOState(eqx.Module):
    """The current subproblem, its centre, and the round chosen so far."""

    inner: PDBOState
    center: Point
    chosen: Point
    score: Float[Array, ""]
    round: Int[Array, ""]
    total: Int[Array, ""]
    key: Array


class ProximalPDBO(Solver):
    r"""Proximal-PDBO: rounds of PDBO on regularised subproblems, for nonconvex f and $\tilde h$.

    Round k runs T iterations of PDBO from $z_0 = \tilde z_{k-1}$, with the multiplier reset, on

    $$\min_z\ f(z) + \rho_f \|z - \tilde z_{k-1}\|^2 \quad\text{s.t.}\quad
      \tilde h(z) + \rho \|x - \tilde x_{k-1}\|^2 \le 0,$$

    and its weighted average is $\tilde z_k$. One step is one iteration of PDBO; the state holds
    the round.

    Arguments:
        inner: the PDBO run inside each round; its Optax transformations go on from round to round.
        proximal_f: $\rho_f$; its default is the theory's if the inner PDBO is made from one.
        proximal_h: $\rho$; with the same default.
        rounds: K, the most rounds a run takes; None leaves it to the step budget.
        round_steps: T.
        choose: which round is returned: the "last" (inside a round its running average), the
            "best" by its certificate, or a uniformly "random" one drawn with the key. The
            certificates of "best" are not counted as oracle calls.

    Reference: Sow, Ji, Guan & Liang, A Primal-Dual Approach to Bilevel Optimization with
    Multiple Inner Minima (2022), Algorithm 2.

    Differs from the paper in: the estimate of $\tilde h_k$ uses $\rho$ and the centre
    $\tilde x_{k-1}$ of the subproblem, while the text prints $\rho_h$ and $\tilde x_k$; rounds
    start with the inner solver's multiplier0 (the paper's is 0); the last round is returned by
    default.
    """

    label = "Proximal-PDBO"
    family = "primal-dual"
    citation = (
        "Sow, Ji, Guan & Liang, A Primal-Dual Approach to Bilevel Optimization with "
        "Multiple Inner Minima, 2022"
    )

    inner: PDBO
    proximal_f: Array
    proximal_h: Array
    rounds: int | None = eqx.field(static=True)
    round_steps: int = eqx.field(static=True)
    choose: str = eqx.field(static=True)

    def __init__(
        self,
        inner: PDBO | None = None,
        proximal_f: ArrayLike = 0.02,
        proximal_h: ArrayLike = 0.02,
        rounds: int | None = None,
        round_steps: int = 50,
        *,
        choose: Literal["last", "best", "random"] = "last",
    ):
        inner = PDBO() if inner is None else inner
        if not isinstance(inner, PDBO):
            raise ProblemError(f"inner must be a PDBO, got {type(inner).__name__}.")
        if rounds is not None:
            whole_number("rounds", rounds)
        whole_number("round_steps", round_steps)
        if choose not in ("last", "best", "random"):
            raise ProblemError(f'choose must be "last", "best" or "random", got {choose!r}.')
        if isinstance(theory := inner.schedule, Theory):
            proximal_f = theory.proximal_f if are_defaults((proximal_f,), (0.02,)) else proximal_f
            proximal_h = theory.proximal_h if are_defaults((proximal_h,), (0.02,)) else proximal_h
        self.inner = inner
        self.proximal_f = number(proximal_f, "proximal_f")
        self.proximal_h = number(proximal_h, "proximal_h")
        self.rounds = rounds
        self.round_steps = round_steps
        self.choose = choose

    @classmethod
    def from_theory(
        cls,
        theory: Theory,
        rounds: int | None = None,
        round_steps: int = 50,
        *,
        inner_steps: int = 5,
        multiplier0: ArrayLike = 2.0,
        inner_start: Literal["warm", "y"] | PyTree = "warm",
        choose: Literal["last", "best", "random"] = "last",
    ) -> Self:
        """Proximal-PDBO with all numbers of its theorem, from `pdbo.schedules.theory(...,
        proximal=True)`.
        """
        if not float(check_theory(theory).proximal_f) > 0:
            raise ProblemError("Proximal-PDBO needs theory(..., proximal=True).")
        inner = PDBO.from_theory(
            theory, inner_steps=inner_steps, multiplier0=multiplier0, inner_start=inner_start
        )
        strengths = theory.proximal_f, theory.proximal_h
        return cls(inner, *strengths, rounds, round_steps, choose=choose)

    @property
    def budget(self) -> int | None:
        """K T iterations if K is given, else None."""
        return None if self.rounds is None else self.rounds * self.round_steps

    @property
    def batch_refusal(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Only the choice of the best round needs certificates."""
        return 'choose="best" compares certificates' if self.choose == "best" else ""

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> ProximalPDBOState:
        """The state at the start of the first round."""
        inner = self.inner.start(x, y, average=True)
        center = self.inner.output(inner)
        worst = jnp.full_like(inner.multiplier, jnp.finfo(inner.multiplier.dtype).max)
        zero = jnp.zeros((), jnp.int32)
        return ProximalPDBOState(inner, center, center, worst, zero, zero, key)

    def step(self, problem: Problem, state: ProximalPDBOState) -> ProximalPDBOState:
        """One iteration of PDBO on the subproblem; the T-th ends the round."""
        strengths = trees.astype((self.proximal_f, self.proximal_h), trees.dtype(state.center.x))
        proximal = Proximal(state.center.x, state.center.y, *strengths)
        inner = self.inner.regularised_step(problem, state.inner, proximal)
        state = eqx.tree_at(lambda s: (s.inner, s.total), state, (inner, state.total + 1))
        done = inner.t == self.round_steps
        if self.choose == "last":
            return trees.where(done, self._close(problem, state), state)
        # one certificate per round, not per iteration
        return lax.cond(done, lambda s: self._close(problem, s), lambda s: s, state)

    def _close(self, problem: Problem, state: ProximalPDBOState) -> ProximalPDBOState:
        """The state at the start of the next round."""
        inner = state.inner
        center = self.inner.output(inner)
        x, y = center.x, center.y
        start = self.inner.start(x, y, average=True)
        kept = (inner.y_hat, inner.rules)  # they go on from round to round
        start = eqx.tree_at(lambda s: (s.y_hat, s.rules), start, kept)
        round_ = state.round + 1
        take, score = jnp.array(True), state.score
        if self.choose == "best":
            slack = jnp.asarray(self.inner.slack, score.dtype)
            found = measure(problem, x, y, inner.multiplier, None, slack, 200, neighbour=False).eps
            take, score = found < score, jnp.minimum(found, score)
        elif self.choose == "random":  # each of k rounds with probability 1/k
            take = jax.random.randint(jax.random.fold_in(state.key, round_), (), 0, round_) == 0
        chosen = trees.where(take, center, state.chosen)
        return ProximalPDBOState(start, center, chosen, score, round_, state.total, state.key)

    def output(self, state: ProximalPDBOState) -> Point:
        """The chosen round."""
        if self.choose != "last":
            return state.chosen
        running = self.inner.output(state.inner)
        return trees.where(state.inner.t == 0, state.center, running)

    def calls(self, state: ProximalPDBOState) -> Calls:
        """One gradient of f per iteration, and as many of g as the inner PDBO makes."""
        return Calls(state.total, self.inner.inner_calls * state.total, 0 * state.total)
