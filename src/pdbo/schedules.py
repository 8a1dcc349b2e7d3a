"""Step-size schedules: constant ones, and those of the convergence theorems with their bounds."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from . import _trees as trees
from ._checks import at_least, check_point, is_number, number
from ._errors import ProblemError
from ._problem import Problem, check_problem
from .sets import Set

__all__ = [
    "Bound",
    "Constants",
    "Schedule",
    "Steps",
    "constant",
    "estimate_constants",
    "theory",
]


class Steps(NamedTuple):
    r"""What iteration t uses: $1/\eta_t$, $1/\tau_t$, $\theta_t$ and $\gamma_t$."""

    primal: Float[Array, ""]
    dual: Float[Array, ""]
    extrapolation: Float[Array, ""]
    weight: Float[Array, ""]


class Schedule(eqx.Module):
    """Maps the iteration t = 0, 1, ... to its `Steps`."""

    @abc.abstractmethod
    def __call__(self, t: Int[Array, ""]) -> Steps:
        """The steps of iteration t."""


class Constant(Schedule):
    """The same steps at every iteration, with output weights t + 1."""

    primal: Float[Array, ""]
    dual: Float[Array, ""]
    extrapolation: Float[Array, ""]

    def __call__(self, t: Int[Array, ""]) -> Steps:
        """The steps of iteration t."""
        return Steps(self.primal, self.dual, self.extrapolation, number(t + 1))


def constant(primal: ArrayLike, dual: ArrayLike, extrapolation: ArrayLike = 0.0) -> Constant:
    r"""Constant steps: primal $1/\eta$, dual $1/\tau$, extrapolation $\theta$."""
    return Constant(
        at_least("primal_step", primal, 0),
        at_least("dual_step", dual, 0),
        at_least("extrapolation", extrapolation, 0),
    )


class Constants(NamedTuple):
    r"""The constants of a problem that the theorems need, in the paper's symbols.

    Attributes:
        rho_f, rho_g: Lipschitz constants of $\nabla f$ and $\nabla g$.
        L_g: $\sup\|\nabla g\|$.
        mu: the strong convexity of f (negative if f is not convex).
        D_f: $\sup |f(z) - f(z')|$.
        D_Z: the diameter of the sets.
    """

    rho_f: float | Float[Array, ""]
    rho_g: float | Float[Array, ""]
    L_g: float | Float[Array, ""]
    mu: float | Float[Array, ""]
    D_f: float | Float[Array, ""]
    D_Z: float | Float[Array, ""]


def estimate_constants(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    *,
    radius: float = 10.0,
    samples: int = 64,
    iterations: int = 50,
    key: Array | None = None,
) -> Constants:
    r"""Estimates of the theory's constants over the sets of a problem.

    The Lipschitz constants and $\mu$ are extreme eigenvalues of the Hessians, by power iteration
    on Hessian-vector products at every sample; the suprema are taken over the samples. Half of
    the samples are spread over the sets, half are extreme points of them, where convex functions
    have their suprema. All are estimates from below. Eigenvalues of quadratics are exact; the
    suprema improve with `samples`.

    Arguments:
        problem: the problem.
        x, y: a point that gives the shapes, and the centre of the ball sampled if a set is
            unbounded.
        radius: the radius of that ball.
        samples: how many points; iterations: how many power iterations at each.
        key: a PRNG key.
    """
    whole = all(isinstance(v, int | np.integer) for v in (samples, iterations))
    if not whole or samples < 2 or iterations < 1 or not (is_number(radius) and radius > 0):
        raise ProblemError("whole numbers samples >= 2 and iterations >= 1, and radius > 0 needed.")
    check_problem(problem)
    problem, x, y = problem.entered(x, y)
    x, y = check_point(problem, x, y)
    key = jax.random.key(0) if key is None else key
    return Constants(*map(float, _estimate(problem, x, y, radius, samples, iterations, key)))


@eqx.filter_jit
def _estimate(
    problem: Problem,
    x: PyTree,
    y: PyTree,
    radius: ArrayLike,
    samples: int,
    iterations: int,
    key: Array,
) -> Constants:
    z0, unravel = ravel_pytree((x, y))
    parts = ((problem.x_set, x), (problem.y_set, y))
    outer = lambda z: problem.outer(*unravel(z))  # noqa: E731
    inner = lambda z: problem.inner(*unravel(z))  # noqa: E731

    def draw(sample: Callable[..., PyTree], keys: Array) -> Float[Array, "samples z"]:
        def one(key: Array) -> Float[Array, " z"]:
            pairs = zip(parts, jax.random.split(key), strict=True)
            return ravel_pytree(tuple(sample(s, k, z, radius) for (s, z), k in pairs))[0]

        return jax.vmap(one)(keys)

    def at(z: Float[Array, " z"], key: Array) -> tuple[Float[Array, ""], ...]:
        rho_f, mu = _eigenvalues(outer, z, key, iterations)
        rho_g, _ = _eigenvalues(inner, z, key, iterations)
        return rho_f, rho_g, jnp.linalg.norm(jax.grad(inner)(z)), mu, outer(z)

    keys = jax.random.split(key, samples)
    half = samples // 2
    points = [draw(_spread_point, keys[:half]), draw(_extreme_point, keys[half:]), z0[None]]
    points = jnp.concatenate(points)
    rho_f, rho_g, slope, mu, value = jax.vmap(at)(points, jax.random.split(key, len(points)))
    extents = jnp.stack([_extent(s, z, radius) for s, z in parts])
    return Constants(
        rho_f=jnp.max(rho_f),
        rho_g=jnp.max(rho_g),
        L_g=jnp.max(slope),
        mu=jnp.min(mu),
        D_f=jnp.max(value) - jnp.min(value),
        D_Z=2 * jnp.linalg.norm(extents),
    )


def _extent(constraint: Set, z: PyTree, radius: ArrayLike) -> Float[Array, ""]:
    """Half the diameter of a set, or `radius` if it is unbounded."""
    half = constraint.diameter(z) / 2
    return jnp.where(jnp.isfinite(half), half, jnp.asarray(radius, half.dtype))


def _spread_point(constraint: Set, key: Array, z: PyTree, radius: ArrayLike) -> PyTree:
    """A random point of a set, around z if it is unbounded."""
    return constraint.sample(key, z, _extent(constraint, z, radius))


def _extreme_point(constraint: Set, key: Array, z: PyTree, radius: ArrayLike) -> PyTree:
    """An extreme point of a set in a random direction, at `radius` from z if it is unbounded."""
    flat, unravel = ravel_pytree(z)
    direction = jax.random.normal(key, flat.shape, flat.dtype)
    length = jnp.maximum(trees.norm(direction), 1e-30)
    bounded = jnp.isfinite(constraint.diameter(z))
    # far outside a bounded set every direction projects to an extreme point
    reach = _extent(constraint, z, radius) * jnp.where(bounded, 1e3, 1.0)
    return constraint.project(unravel(flat + reach / length * direction))


def _eigenvalues(
    function: Callable[[Float[Array, " z"]], Float[Array, ""]],
    z: Float[Array, " z"],
    key: Array,
    iterations: int,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The largest modulus of an eigenvalue of the Hessian at z, and its smallest eigenvalue."""
    hvp = lambda v: jax.jvp(jax.grad(function), (z,), (v,))[1]  # noqa: E731
    start = jax.random.normal(key, z.shape, z.dtype)

    def power(apply: Callable[[Float[Array, " z"]], Float[Array, " z"]]) -> Float[Array, ""]:
        def once(_: Int[Array, ""], v: Float[Array, " z"]) -> Float[Array, " z"]:
            v = apply(v)
            size = jnp.linalg.norm(v)
            return v / jnp.where(size > 0, size, 1)

        v = lax.fori_loop(0, iterations, once, start / jnp.linalg.norm(start))
        return jnp.vdot(v, apply(v)) / jnp.maximum(jnp.vdot(v, v), 1e-30)

    # shifted by the modulus, the spectrum is one-sided and the power method finds its ends
    largest = jnp.abs(power(lambda v: hvp(hvp(v)))) ** 0.5
    return largest, largest - power(lambda v: largest * v - hvp(v))


class Bound(NamedTuple):
    r"""The theorem's right-hand sides, and their largest, which bounds all three.

    Attributes:
        outer: bounds $f(\bar z) - f(z^*)$.
        constraint: bounds $[\tilde h(\bar z)]_+$.
        distance2: bounds $\|\bar z - z^*\|^2$.
    """

    outer: float
    constraint: float
    distance2: float

    @property
    def largest(self) -> float:
        """The bound on the largest of the three errors."""
        return max(self)


class Theory(Schedule):
    r"""The theorem's schedule: $\gamma_t = t + t_0 + 1$, $\eta_t = \mu(t + t_0 + 1)/2$,
    $\tau_t = 4L_g^2/(\mu t)$, $\theta_t = (t + t_0)/(t + t_0 + 1)$.

    Attributes:
        mu, L_g, t0: the constants of the formulas above.
        dual_bound: B.
        inner_step: $2/(\rho_g + 2\alpha)$.
        smoothing, slack: $\alpha$ and $\delta$.
        proximal_f, proximal_h: $\rho_f$ and $\rho$ of the subproblems; zero for PDBO.
        constants: the `Constants` it was built from.

    Differs from the paper in: $1/\tau_0 = 0$, the only finite reading of $\tau_0$; $\theta_t$
    is the appendix's.
    """

    mu: Float[Array, ""]
    L_g: Float[Array, ""]
    t0: Float[Array, ""]
    dual_bound: Float[Array, ""]
    inner_step: Float[Array, ""]
    smoothing: Float[Array, ""]
    slack: Float[Array, ""]
    proximal_f: Float[Array, ""]
    proximal_h: Float[Array, ""]
    constants: Constants

    def __call__(self, t: Int[Array, ""]) -> Steps:
        """The steps of iteration t."""
        t = number(t)
        weight = t + self.t0 + 1
        return Steps(
            primal=2 / (self.mu * weight),
            dual=self.mu * t / (4 * self.L_g**2),
            extrapolation=(t + self.t0) / weight,
            weight=weight,
        )

    def bound(self, steps: int, inner_steps: int) -> Bound:
        r"""The theorem's right-hand sides after T = `steps` iterations with N = `inner_steps`.

        Differs from the paper in: the dual terms start at t = 1, since $\tau_0$ is infinite:
        $\gamma_1\tau_1$ stands for $\gamma_0\tau_0$ and the unanswered first dual gap adds
        $2\gamma_0 B(L_g D_Z + \delta)$; the distance is the average's, by strong convexity of the
        Lagrangian, while the printed line is the last iterate's; its $2L_gBD_Z$ is kept.
        """
        mu, L, t0, B, alpha, delta = map(
            float, (self.mu, self.L_g, self.t0, self.dual_bound, self.smoothing, self.slack)
        )
        rho_g, D = float(self.constants.rho_g), float(self.constants.D_Z)
        bias = (rho_g * D + 4 * L) * B * D * (1 - alpha / (rho_g + 2 * alpha)) ** inner_steps
        gamma0, gamma1_tau1 = t0 + 1, (t0 + 2) * 4 * L**2 / mu
        primal = gamma0 * (mu * (t0 + 1) / 2 - mu) * D**2
        common = 2 * L * B * D + 2 * gamma0 * B * (L * D + delta) + primal
        outer = common / steps**2 + bias
        constraint = (common + gamma1_tau1 * B**2) / steps**2 + bias
        return Bound(outer, constraint, 2 / mu * constraint)

    def kkt_bound(self, rounds: int, steps: int, inner_steps: int, violation: float = 0.0) -> float:
        r"""The $\epsilon$ of Proximal-PDBO's theorem for K = `rounds`, T = `steps`.

        $\epsilon = (D_f + \rho_f D_Z^2 + \bar B V_0)/K + 16(\bar B + 1)\Delta/\rho_f$ with
        $\Delta$ the largest of `bound(steps, inner_steps)` and $V_0$ the start's violation.
        """
        if not float(self.proximal_f) > 0:
            raise ProblemError(
                "kkt_bound belongs to Proximal-PDBO: use theory(..., proximal=True)."
            )
        c, bar = self.constants, float(self.dual_bound) - 1
        delta = self.bound(steps, inner_steps).largest
        start = float(c.D_f) + float(c.rho_f) * float(c.D_Z) ** 2 + bar * violation
        return start / rounds + 16 * (bar + 1) / float(c.rho_f) * delta


def theory(
    constants: Constants, *, smoothing: float, slack: float, proximal: bool = False
) -> Theory:
    r"""The schedule of the convergence theorem of PDBO, or of Proximal-PDBO's subproblems.

    Use it as `PDBO.from_theory(theory(...))`, or `ProximalPDBO.from_theory(theory(...,
    proximal=True))`.

    Arguments:
        constants: from `estimate_constants`, or known.
        smoothing: $\alpha > 0$; slack: $\delta > 0$.
        proximal: whether it is for the subproblems of Proximal-PDBO: there $\mu = \rho_f$,
            $3\rho_f$ and $2\rho_h$ replace $\rho_f$ and $\rho_h$, and
            $B = (D_f + \rho_f D_Z^2)/\delta + 1$.
    """
    if not isinstance(constants, Constants):
        raise ProblemError(
            f"constants must be pdbo.schedules.Constants, got {type(constants).__name__}."
        )
    for name, value in (("smoothing", smoothing), ("slack", slack)):
        if not (is_number(value) and 0 < value < np.inf):
            raise ProblemError(f"{name} must be a positive number in the theory, got {value}.")
    bad = [n for n, v in zip(constants._fields, constants, strict=True) if not np.isfinite(v)]
    if bad:
        raise ProblemError(f"the theory needs finite constants, but {', '.join(bad)} is not.")
    c = Constants(*map(float, constants))
    if not proximal and c.mu <= 0:
        raise ProblemError(
            f"PDBO's theorem needs a strongly convex f, but mu = {c.mu:.3g}; "
            "use proximal=True with ProximalPDBO."
        )
    if min(c.rho_f, c.rho_g, c.L_g) <= 0:
        raise ProblemError("rho_f, rho_g and L_g must be positive for the theory's steps.")
    rho_h = c.rho_g * (2 + c.rho_g / smoothing)
    mu = c.rho_f if proximal else c.mu
    rho_f, rho_h = (3 * c.rho_f, 2 * rho_h) if proximal else (c.rho_f, rho_h)
    spread = c.D_f + (c.rho_f * c.D_Z**2 if proximal else 0.0)
    dual_bound = spread / slack + 1
    return Theory(
        mu=number(mu),
        L_g=number(c.L_g),
        t0=number(2 * (rho_f + dual_bound * rho_h) / mu),
        dual_bound=number(dual_bound),
        inner_step=number(2 / (c.rho_g + 2 * smoothing)),
        smoothing=number(smoothing),
        slack=number(slack),
        proximal_f=number(c.rho_f if proximal else 0.0),
        proximal_h=number(c.rho_g + c.rho_g**2 / (2 * smoothing) if proximal else 0.0),
        constants=Constants(*map(number, c)),
    )
