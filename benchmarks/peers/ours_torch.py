"""pdbo with f and g in PyTorch: `pdbo.solve` without a solver and without settings."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import pdbo

from . import in_torch
from .worker import serve


def functions(family: str) -> tuple[Any, Any]:
    """The functions of `in_torch`, with the data as an argument."""

    def outer(x: Any, y: Any, data: Any) -> torch.Tensor:
        return F.cross_entropy(data["A_val"] @ y, data["b_val"])

    def decayed(x: Any, y: Any, data: Any) -> torch.Tensor:
        loss = F.cross_entropy(data["A"] @ y, data["b"])
        return loss + 0.5 * torch.mean(torch.exp(x) * y**2)

    def cleaned(x: Any, y: Any, data: Any) -> torch.Tensor:
        losses = F.cross_entropy(data["A"] @ y, data["b"], reduction="none")
        return torch.mean(torch.sigmoid(x) * losses) + 5e-4 * torch.sum(y**2)

    return outer, {"logistic": decayed, "cleaning": cleaned}[family]


class Solve:
    """`pdbo.solve` without a solver named, for a number of steps."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        self.start = tuple(v.detach() for v in in_torch.start(data))
        tensors = {k: torch.from_numpy(v) for k, v in data.items() if k not in ("x0", "y0")}
        self.problem = pdbo.torch.problem(*functions(job["family"]), data=tensors)
        self.state = None

    def advance(self, steps: int) -> None:
        """Carry on for `steps` steps."""
        start = (None, None) if self.state is not None else self.start
        self.solution = pdbo.solve(
            self.problem, *start, steps=steps, tol=None, state=self.state, throw=False
        )
        self.state = self.solution.state

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y."""
        return self.solution.x.numpy(), self.solution.y.numpy()

    def calls(self) -> dict[str, int]:
        """Gradients of f and g of the whole solve."""
        history = self.solution.history
        return {name: int(history[f"{name}_calls"][-1]) for name in ("f", "g")}


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(Solve)
