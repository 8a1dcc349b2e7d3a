"""higher: gradients through an unrolled inner loop (Grefenstette et al., 2019)."""

from typing import Any

import higher
import numpy as np
import torch

from . import in_torch
from .worker import Counted, serve


class Inner(torch.nn.Module):
    """The inner variable as a module, which is what higher differentiates through."""

    def __init__(self, y: torch.Tensor):
        super().__init__()
        self.y = torch.nn.Parameter(y.detach().clone())


class Unrolled:
    """N inner SGD steps in `innerloop_ctx`, one backward pass, one outer step, y kept."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        self.f, self.g = map(Counted, in_torch.functions(job["family"], data))
        self.settings = job["settings"]
        self.x, y = in_torch.start(data)
        self.model = Inner(y)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=self.settings["inner_step"])
        self.outer = in_torch.optimiser(
            self.settings["outer"], [self.x], self.settings["outer_step"]
        )

    def advance(self, steps: int) -> None:
        """Take `steps` outer steps."""
        for _ in range(steps):
            self.outer.zero_grad()
            with higher.innerloop_ctx(self.model, self.inner) as (model, inner):
                for _ in range(self.settings["inner_steps"]):
                    inner.step(self.g(self.x, model.y))
                self.f(self.x, model.y).backward()
                self.model.y.data.copy_(model.y.detach())
            self.outer.step()

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        return self.x.detach().numpy(), self.model.y.detach().numpy()

    def calls(self) -> dict[str, int]:
        """Evaluations of f and g."""
        return {"f": self.f.count, "g": self.g.count}


if __name__ == "__main__":
    serve(Unrolled)
