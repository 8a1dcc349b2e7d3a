"""Step-size schedules: what each iteration t uses."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array

from ._checks import at_least, number


class Steps(NamedTuple):
    r"""What iteration t uses: $1/\eta_t$, $1/\tau_t$, $\theta_t$ and $\gamma_t$."""

    primal: Array
    dual: Array
    extrapolation: Array
    weight: Array


class Schedule(eqx.Module):
    """Maps the iteration t = 0, 1, ... to its `Steps`."""

    @abc.abstractmethod
    def __call__(self, t: Array) -> Steps:
        """The steps of iteration t."""


class Constant(Schedule):
    """The same steps at every iteration, with output weights t + 1."""

    primal: Array
    dual: Array
    extrapolation: Array

    def __call__(self, t: Array) -> Steps:
        """The steps of iteration t."""
        return Steps(self.primal, self.dual, self.extrapolation, number(t + 1))


def constant(primal: Any, dual: Any, extrapolation: Any = 0.0) -> Constant:
    r"""Constant steps: primal $1/\eta$, dual $1/\tau$, extrapolation $\theta$."""
    return Constant(
        at_least("primal_step", primal, 0),
        at_least("dual_step", dual, 0),
        at_least("extrapolation", extrapolation, 0),
    )
