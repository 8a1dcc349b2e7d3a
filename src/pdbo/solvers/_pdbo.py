"""PDBO, Algorithm 1 of the paper."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from .. import _trees as trees
from .._checks import number, whole_number
from .._errors import ProblemError
from .._problem import Gradients, Problem
from .._solver import Calls, Point
from ..schedules import Schedule, Theory, constant
from ._descent import (
    GradientSolver,
    Transformation,
    begin,
    descend,
    in_units_of_g,
    inner_slope,
    move,
)


class Average(NamedTuple):
    r"""$\bar z = \Gamma^{-1} \sum_t \gamma_t z_{t+1}$ and $\Gamma$, updated at every iteration."""

    z: PyTree
    total: Float[Array, ""]


class PDBOState(eqx.Module):
    """Iterate, inner estimate, multiplier, last constraint value and, if kept, the average.

    `rules` are the states of the transformations of x, y and the inner estimate.
    """

    t: Int[Array, ""]
    x: PyTree
    y: PyTree
    y_hat: PyTree
    multiplier: Float[Array, ""]
    h: Float[Array, ""]
    average: Average | None
    rules: tuple[PyTree, PyTree, PyTree] = (None, None, None)

    @property
    def z(self) -> tuple[PyTree, PyTree]:
        """The pair (x, y) to return: the average if it is kept, else the iterate."""
        return (self.x, self.y) if self.average is None else self.average.z


class PDBO(GradientSolver):
    r"""Primal-Dual Bilevel Optimiser: first-order, x and y moved together as $z = (x, y)$.

    On $\min f(z)$ s.t. $\tilde h(z) = g(z) - \tilde g^*(x) - \delta \le 0$, where
    $\tilde g^*(x) = \min_y g(x, y) + \tfrac{\alpha}{2}\|y\|^2$, iteration t takes N projected
    gradient steps on $\tilde g(x_t, \cdot)$ to $\hat y$, then with
    $\hat h_t = g(z_t) - \tilde g(x_t, \hat y) - \delta$

    $$\lambda_{t+1} = \Pi_{[0, B]}\bigl(\lambda_t + \tfrac{1}{\tau_t}
        ((1 + \theta_t)\hat h_t - \theta_t \hat h_{t-1})\bigr)$$
    $$z_{t+1} = \Pi_Z\bigl(z_t - \tfrac{1}{\eta_t}(\nabla f(z_t) + \lambda_{t+1}
        (\nabla g(z_t) - (\nabla_x g(x_t, \hat y), 0)))\bigr)$$

    Arguments:
        primal_step: $1/\eta$.
        dual_step: $1/\tau$.
        inner_step: the step of the inner projected gradient.
        inner_steps: N.
        extrapolation: $\theta$.
        smoothing: $\alpha$.
        slack: $\delta$.
        dual_bound: B.
        multiplier0: $\lambda_0$.
        schedule: a `Schedule` in place of primal_step, dual_step and extrapolation; one made by
            `theory` also supplies inner_step, smoothing, slack and dual_bound, as `from_theory`
            does.
        inner_start: where the inner steps start: "warm" (the last estimate), "y" (the current
            y, whose gradient then serves twice) or a pytree shaped like y (that point, at every
            iteration).
        average: whether the output is the weighted average; None leaves it to the schedule (the
            theory's output is the average, that of constant steps the last iterate).
        outer: an Optax transformation for the steps in x, in place of the primal step.
        inner: one for the steps in y, of their direction over $\max(1, \lambda_{t+1})$, and in
            $\hat y$. If `inner_start` is not "warm", it begins again with every inner start.

    Reference: Sow, Ji, Guan & Liang, A Primal-Dual Approach to Bilevel Optimization with
    Multiple Inner Minima (2022), Algorithm 1.

    Differs from the paper in: $\hat h$ carries the $-\delta$ that $\tilde h$ is defined with;
    with constant steps the last iterate is the output unless the average is asked for.
    """

    label = "PDBO"
    family = "primal-dual"
    citation = (
        "Sow, Ji, Guan & Liang, A Primal-Dual Approach to Bilevel Optimization with "
        "Multiple Inner Minima, 2022"
    )

    schedule: Schedule
    inner_step: Array
    inner_steps: int = eqx.field(static=True)
    smoothing: Array
    slack: Array
    dual_bound: Array
    multiplier0: Array
    inner_start: str = eqx.field(static=True)
    inner_point: PyTree
    average: bool = eqx.field(static=True)

    def __init__(
        self,
        primal_step: ArrayLike = 0.2,
        dual_step: ArrayLike = 0.1,
        inner_step: ArrayLike = 0.5,
        inner_steps: int = 5,
        extrapolation: ArrayLike = 0.0,
        smoothing: ArrayLike = 1e-4,
        slack: ArrayLike = 0.0,
        dual_bound: ArrayLike = jnp.inf,
        multiplier0: ArrayLike = 2.0,
        schedule: Schedule | None = None,
        *,
        inner_start: Literal["warm", "y"] | PyTree = "warm",
        average: bool | None = None,
        outer: Transformation | None = None,
        inner: Transformation | None = None,
    ):
        if schedule is None:
            schedule = constant(primal_step, dual_step, extrapolation)
        elif not are_defaults((primal_step, dual_step, extrapolation), (0.2, 0.1, 0.0)):
            raise ProblemError(
                "primal_step, dual_step and extrapolation are the schedule's: give either them or "
                "schedule."
            )
        if isinstance(schedule, Theory):
            if not are_defaults(
                (inner_step, smoothing, slack, dual_bound), (0.5, 1e-4, 0.0, jnp.inf)
            ):
                raise ProblemError(
                    "inner_step, smoothing, slack and dual_bound come from the theory schedule: "
                    "set smoothing and slack in theory(...)."
                )
            inner_step, dual_bound = schedule.inner_step, schedule.dual_bound
            smoothing, slack = schedule.smoothing, schedule.slack
        whole_number("inner_steps", inner_steps)
        if isinstance(inner_start, str) and inner_start not in ("warm", "y"):
            raise ProblemError(f'inner_start must be "warm", "y" or a point, got {inner_start!r}.')
        self.schedule = schedule
        self.inner_step = number(inner_step, "inner_step")
        self.inner_steps = inner_steps
        self.smoothing = number(smoothing, "smoothing")
        self.slack = number(slack, "slack")
        self.dual_bound = number(dual_bound, "dual_bound")
        self.multiplier0 = number(multiplier0, "multiplier0")
        named = isinstance(inner_start, str)
        self.inner_start = inner_start if named else "fixed"
        self.inner_point = None if named else jax.tree.map(number, inner_start)
        self.average = isinstance(schedule, Theory) if average is None else average
        self.outer, self.inner = outer, inner

    @classmethod
    def from_theory(
        cls,
        theory: Theory,
        *,
        inner_steps: int = 5,
        multiplier0: ArrayLike = 2.0,
        inner_start: Literal["warm", "y"] | PyTree = "warm",
        average: bool = True,
    ) -> Self:
        """PDBO with the steps, inner step, smoothing, slack and dual bound of its theorem, from
        `pdbo.schedules.theory`, and the average as output.
        """
        return cls(
            inner_steps=inner_steps,
            multiplier0=multiplier0,
            schedule=check_theory(theory),
            inner_start=inner_start,
            average=average,
        )

    def init(self, problem: Problem, x: PyTree, y: PyTree, key: Array) -> PDBOState:
        """The state before the first step."""
        return self.start(x, y, self.average)

    def start(self, x: PyTree, y: PyTree, average: bool) -> PDBOState:
        """The state at iteration 0 from (x, y), with or without a running average."""
        dtype, inner = trees.dtype(x), begin(self.inner, y, "inner")
        return PDBOState(
            t=jnp.zeros((), jnp.int32),
            x=x,
            y=y,
            y_hat=y,
            multiplier=jnp.asarray(self.multiplier0, dtype),
            h=jnp.zeros((), dtype),
            average=Average((x, y), jnp.zeros((), dtype)) if average else None,
            rules=(begin(self.outer, x, "outer"), inner, inner),
        )

    def step(self, problem: Problem, state: PDBOState) -> PDBOState:
        """One iteration of Algorithm 1."""
        return self.regularised_step(problem, state, None)

    def regularised_step(
        self, problem: Problem, state: PDBOState, proximal: "Proximal | None"
    ) -> PDBOState:
        """One iteration on f and h, or on the $f_k$ and $h_k$ of a proximal subproblem."""
        x, y = state.x, state.y
        dtype = trees.dtype(x)
        steps = trees.astype(self.schedule(state.t), dtype)
        alpha, delta, bound = trees.astype((self.smoothing, self.slack, self.dual_bound), dtype)

        at, hat = self._gradients(problem, state)
        h = at.g - at.g_hat - 0.5 * alpha * trees.dot(at.y_hat, at.y_hat) - delta
        grad_h = (trees.sub(at.g_x, at.g_xhat), at.g_y)
        grad_f = (at.f_x, at.f_y)
        if proximal is not None:
            h, grad_h, grad_f = proximal.add(x, y, h, grad_h, grad_f)

        h_before = jnp.where(state.t == 0, h, state.h)  # z_{-1} = z_0
        ascent = h + steps.extrapolation * (h - h_before)
        multiplier = jnp.clip(state.multiplier + steps.dual * ascent, 0, bound)
        d_x, d_y = trees.axpy(multiplier, grad_h, grad_f)
        d_y = in_units_of_g(self.inner, multiplier, d_y)
        outer, inner, _ = state.rules
        x_new, outer = move(self.outer, outer, d_x, x, steps.primal, problem.x_set)
        y_new, inner = move(self.inner, inner, d_y, y, steps.primal, problem.y_set)

        average = state.average
        if average is not None:
            total = average.total + steps.weight
            toward = trees.sub((x_new, y_new), average.z)
            average = Average(trees.axpy(steps.weight / total, toward, average.z), total)
        rules = (outer, inner, hat)
        return PDBOState(state.t + 1, x_new, y_new, at.y_hat, multiplier, h, average, rules)

    def _gradients(self, problem: Problem, state: PDBOState) -> tuple[Gradients, PyTree]:
        """All that a step asks of f and g, and the state of the inner transformation."""
        x, y = state.x, state.y
        start = state.y_hat if self.inner_start == "warm" else None
        if self.inner is None and self.inner_start != "fixed":
            sizes = trees.astype((self.inner_step, self.smoothing), trees.dtype(y))
            found = problem.gradients(x, y, start, self.inner_steps, *sizes)
            if found is not None:
                return found, None
        g, (g_x, g_y) = jax.value_and_grad(problem.inner, (0, 1))(x, y)
        y_hat, hat = self._inner(problem, state, g_y)
        g_hat, g_xhat = jax.value_and_grad(problem.inner, 0)(x, y_hat)
        f_x, f_y = jax.grad(problem.outer, (0, 1))(x, y)
        return Gradients(g, g_x, g_y, y_hat, g_hat, g_xhat, f_x, f_y), hat

    def _inner(
        self, problem: Problem, state: PDBOState, slope_at_y: PyTree
    ) -> tuple[PyTree, PyTree]:
        """N projected gradient steps on g(x, .) + smoothing/2 |.|^2."""
        dtype = trees.dtype(state.y)
        step, alpha = trees.astype((self.inner_step, self.smoothing), dtype)

        def smoothed(slope: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
            return lambda y: trees.axpy(alpha, y, slope(y))

        start, steps, y_set, rule = state.y_hat, self.inner_steps, problem.y_set, state.rules[2]
        if self.inner_start != "warm":
            rule = begin(self.inner, start, "inner")
        if self.inner_start == "fixed":
            start = trees.astype(self.inner_point, dtype)
        elif self.inner_start == "y":  # the slope there is known
            known = smoothed(lambda _: slope_at_y)
            start, rule = descend(known, y_set, state.y, step, 1, self.inner, rule)
            steps = steps - 1
        slope = smoothed(inner_slope(problem, state.x))
        return descend(slope, y_set, start, step, steps, self.inner, rule)

    def output(self, state: PDBOState) -> Point:
        """The weighted average if it is kept, else the last iterate."""
        x, y = state.z
        return Point(x, y, state.multiplier, jnp.asarray(self.slack, state.h.dtype))

    @property
    def inner_calls(self) -> int:
        """Gradients of g per iteration: N + 2, or N + 1 if the inner steps start at y."""
        return self.inner_steps + (1 if self.inner_start == "y" else 2)

    def calls(self, state: PDBOState) -> Calls:
        """One gradient of f and `inner_calls` of g per iteration."""
        return Calls(state.t, self.inner_calls * state.t, 0 * state.t)


class Proximal(NamedTuple):
    r"""The terms $\rho_f\|z - \tilde z\|^2$ of $f_k$ and $\rho\|x - \tilde x\|^2$ of $h_k$."""

    x: PyTree
    y: PyTree
    f: Float[Array, ""]
    h: Float[Array, ""]

    def add(
        self, x: PyTree, y: PyTree, h: Array, grad_h: PyTree, grad_f: PyTree
    ) -> tuple[Array, PyTree, PyTree]:
        """h, its gradient and the gradient of f with the proximal terms added."""
        dx, dy = trees.sub(x, self.x), trees.sub(y, self.y)
        h = h + self.h * trees.dot(dx, dx)
        grad_h = (trees.axpy(2 * self.h, dx, grad_h[0]), grad_h[1])
        return h, grad_h, trees.axpy(2 * self.f, (dx, dy), grad_f)


def are_defaults(values: tuple[ArrayLike, ...], defaults: tuple[float, ...]) -> bool:
    """Whether these arguments have their default values."""
    pairs = zip(values, defaults, strict=True)
    return all(isinstance(value, int | float) and value == default for value, default in pairs)


def check_theory(theory: object) -> Theory:
    """The schedule, or a `ProblemError` if `pdbo.schedules.theory` did not make it."""
    if not isinstance(theory, Theory):
        kind = type(theory).__name__
        raise ProblemError(f"theory must be made by pdbo.schedules.theory, got {kind}.")
    return theory
