"""BOAT: operations named in a configuration, losses found by their dotted names.

Its log of losses, a file rewritten at every iteration, is switched off, which makes it faster.
"""

import sys
from typing import Any

import boat_torch
import numpy as np
import torch

from . import in_torch
from .worker import Counted, serve


class Variable(torch.nn.Module):
    """One tensor as a module."""

    def __init__(self, value: torch.Tensor):
        super().__init__()
        self.value = torch.nn.Parameter(value.detach().clone())


def value_of(model: torch.nn.Module, params: Any = None) -> torch.Tensor:
    """The inner variable, from the parameters given or from the model."""
    return model.value if params is None else params[0]


def inner_loss(feed: dict[str, Any], upper: Any, lower: Any, params: Any = None) -> torch.Tensor:
    """The lower-level loss, as BOAT calls it."""
    return feed["g"](upper.value, value_of(lower, params))


def outer_loss(feed: dict[str, Any], upper: Any, lower: Any, params: Any = None) -> torch.Tensor:
    """The upper-level loss, as BOAT calls it."""
    return feed["f"](upper.value, value_of(lower, params))


def aggregated_loss(
    inner: dict[str, Any], outer: dict[str, Any], upper: Any, lower: Any, params: Any = None
) -> torch.Tensor:
    """The loss of gradient descent aggregation: both, the outer one with a decaying weight."""
    x, y, alpha = upper.value, value_of(lower, params), inner["alpha"]
    return alpha * outer["f"](x, y) + (1 - alpha) * inner["g"](x, y)


class Composed:
    """The operations named in the settings, one `run_iter` per iteration."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        f, g = in_torch.functions(job["family"], data)
        self.f, self.g = Counted(f), Counted(g)
        s = job["settings"]
        self.upper, self.lower = map(Variable, in_torch.start(data))
        here = sys.modules[__name__].__name__
        config = {
            "fo_op": s.get("first_order"),
            "gm_op": s.get("mapping"),
            "na_op": s.get("approximation"),
            "lower_level_model": self.lower,
            "upper_level_model": self.upper,
            "lower_level_var": list(self.lower.parameters()),
            "upper_level_var": list(self.upper.parameters()),
            "lower_level_opt": torch.optim.SGD(self.lower.parameters(), lr=s["inner_step"]),
            "upper_level_opt": in_torch.optimiser(
                s["outer"], list(self.upper.parameters()), s["outer_step"]
            ),
            "lower_iters": s["inner_steps"],
            "device": "cpu",
            "loss_log_path": "",
            "accumulate_grad": False,
            "return_grad": False,
            "fo_ol_batch_input": False,
            "copy_last_param": s.get("copy_last", True),
            "GDA": {"alpha_init": s.get("alpha", 0.0), "alpha_decay": s.get("alpha_decay", 1.0)},
            "RGT": {"truncate_iter": 0},
            "CG": {"tolerance": 1e-6, "k": s.get("linear_steps", 5)},
            "NS": {"tolerance": 1e-6, "k": s.get("linear_steps", 5)},
            "VFO": {"y_hat_lr": s["inner_step"], "eta": 0.5, "u1": 0.5},
        }
        losses = {
            "lower_level_loss": {"function": f"{here}.inner_loss", "params": {}},
            "upper_level_loss": {"function": f"{here}.outer_loss", "params": {}},
            "gda_loss": {"function": f"{here}.aggregated_loss", "params": {}},
        }
        self.problem = boat_torch.Problem(config, losses)
        self.problem.save_losses = lambda **_: None
        self.problem.build_ll_solver()
        self.problem.build_ul_solver()
        self.taken = 0

    def advance(self, steps: int) -> None:
        """Call `run_iter` `steps` times."""
        for _ in range(steps):
            self.problem.run_iter({"g": self.g}, {"f": self.f}, current_iter=self.taken)
            self.taken += 1

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        return self.upper.value.detach().numpy(), self.lower.value.detach().numpy()

    def calls(self) -> dict[str, int]:
        """Evaluations of f and g."""
        return {"f": self.f.count, "g": self.g.count}


if __name__ == "__main__":
    serve(Composed)
