"""Betty: two `ImplicitProblem`s and an `Engine` (Choe et al., 2023)."""

import logging
from typing import Any

import numpy as np
import torch
from betty.configs import Config, EngineConfig
from betty.engine import Engine
from betty.problems import ImplicitProblem

from . import in_torch
from .worker import Counted, serve


class Variable(torch.nn.Module):
    """One tensor as a module."""

    def __init__(self, value: torch.Tensor):
        super().__init__()
        self.value = torch.nn.Parameter(value.detach().clone())

    def forward(self) -> torch.Tensor:
        """The tensor."""
        return self.value


class Level(ImplicitProblem):
    """A level with its loss; there are no batches."""

    def __init__(self, loss: Any, **options: Any):
        super().__init__(train_data_loader=[(torch.zeros(1),)], device="cpu", **options)
        self.loss = loss

    def training_step(self, batch: Any) -> torch.Tensor:
        """The loss of this level."""
        return self.loss()


class Levels:
    """One outer step every `unroll_steps` inner steps, hypergradients as configured."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        logging.disable(logging.CRITICAL)
        self.f, self.g = map(Counted, in_torch.functions(job["family"], data))
        self.settings = s = job["settings"]
        x, y = map(Variable, in_torch.start(data))
        self.x, self.y = x.value, y.value
        outer = Level(
            lambda: self.f(self.x, self.y),
            name="outer",
            config=Config(retain_graph=True),
            module=x,
            optimizer=in_torch.optimiser(s["outer"], list(x.parameters()), s["outer_step"]),
        )
        inner = Level(
            lambda: self.g(self.x, self.y),
            name="inner",
            config=Config(
                type=s["mode"],
                unroll_steps=s["inner_steps"],
                cg_iterations=s.get("linear_steps", 1),
                neumann_iterations=s.get("linear_steps", 1),
                neumann_alpha=s["inner_step"],
            ),
            module=y,
            optimizer=torch.optim.SGD(y.parameters(), lr=s["inner_step"]),
        )
        links = {"u2l": {outer: [inner]}, "l2u": {inner: [outer]}}
        config = EngineConfig(train_iters=1, valid_step=10**9)
        self.engine = Engine(config=config, problems=[outer, inner], dependencies=links)

    def advance(self, steps: int) -> None:
        """Take `steps` outer steps."""
        self.engine.train_iters = steps * self.settings["inner_steps"]
        self.engine.run()

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        return self.x.detach().numpy(), self.y.detach().numpy()

    def calls(self) -> dict[str, int]:
        """Evaluations of f and g."""
        return {"f": self.f.count, "g": self.g.count}


if __name__ == "__main__":
    serve(Levels)
