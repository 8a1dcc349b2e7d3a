"""TorchOpt: explicit gradients with its functional SGD, implicit ones with `custom_root`."""

from typing import Any

import numpy as np
import torch
import torchopt
from torchopt.diff.implicit import custom_root

from . import in_torch
from .worker import Counted, serve


class Base:
    """What both modes share: the outer step and the storage of y."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        self.f, self.g = map(Counted, in_torch.functions(job["family"], data))
        self.settings = job["settings"]
        self.x, self.y = in_torch.start(data)
        self.outer = in_torch.optimiser(
            self.settings["outer"], [self.x], self.settings["outer_step"]
        )

    def solve(self) -> torch.Tensor:
        """The inner solution from the last one, differentiable in x."""
        raise NotImplementedError

    def advance(self, steps: int) -> None:
        """Take `steps` outer steps."""
        for _ in range(steps):
            self.outer.zero_grad()
            y = self.solve()
            self.f(self.x, y).backward()
            self.outer.step()
            self.y = y.detach().requires_grad_()

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        return self.x.detach().numpy(), self.y.detach().numpy()

    def calls(self) -> dict[str, int]:
        """Evaluations of f and g."""
        return {"f": self.f.count, "g": self.g.count}


class Explicit(Base):
    """Differentiate through N steps of `torchopt.sgd`."""

    def solve(self) -> torch.Tensor:
        """N unrolled steps."""
        optimiser = torchopt.sgd(lr=self.settings["inner_step"])
        y = (self.y,)
        state = optimiser.init(y)
        for _ in range(self.settings["inner_steps"]):
            slope = torch.autograd.grad(self.g(self.x, y[0]), y, create_graph=True)
            updates, state = optimiser.update(slope, state, inplace=False)
            y = torchopt.apply_updates(y, updates, inplace=False)
        return y[0]


class Implicit(Base):
    """N inner steps, and the implicit function theorem with conjugate gradients."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        super().__init__(job, data)
        slope = torch.func.grad(lambda y, x: self.g(x, y))
        linear = torchopt.linear_solve.solve_cg(maxiter=self.settings["linear_steps"], rtol=1e-6)

        @custom_root(slope, argnums=1, solve=linear)
        @torch.enable_grad()
        def solver(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            optimiser = torchopt.sgd(lr=self.settings["inner_step"])
            parameters = (y.detach().requires_grad_(),)
            state = optimiser.init(parameters)
            for _ in range(self.settings["inner_steps"]):
                gradient = torch.autograd.grad(self.g(x.detach(), parameters[0]), parameters)
                updates, state = optimiser.update(gradient, state)
                parameters = torchopt.apply_updates(parameters, updates)
            return parameters[0].detach()

        self.solver = solver

    def solve(self) -> torch.Tensor:
        """The solver's y."""
        return self.solver(self.y, self.x)


MODES = {"explicit": Explicit, "implicit": Implicit}

if __name__ == "__main__":
    serve(lambda job, data: MODES[job["settings"]["mode"]](job, data))
