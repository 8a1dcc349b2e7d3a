"""f and g in PyTorch: what a step adds to its passes, and time to target beside PyTorch libraries.

Run `python -m benchmarks.torch_bridge`, in an environment with PyTorch; one thread.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import torch
import torch.nn.functional as F

import pdbo
from pdbo._driver import begin, take_steps_jit
from pdbo._precision import Start

from . import record
from .peers.process import PeerError, versions
from .suite import Bench, Found
from .workloads import WORKLOADS

LIBRARIES = ("betty", "higher", "torchopt", "boat")
OURS = "pdbo in PyTorch, untuned"
SIZES = {"10^3": (12, 64), "10^5": (300, 128), "10^7": (3100, 128)}  # units per layer, batch
INNER = 5  # gradients of g of a step beside those at the point


def network(units: int, batch: int) -> tuple[pdbo.Problem, torch.Tensor, torch.nn.Module]:
    """A network of two hidden layers with a weight decay for each of its parameters' tensors."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, units), torch.nn.Linear(units, units), torch.nn.Linear(units, 10)
    net = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
    data = {"X": torch.randn(batch, 64), "t": torch.randint(0, 10, (batch,))}

    def f(x: Any, y: Any, data: Any) -> torch.Tensor:
        return F.cross_entropy(y(data["X"]), data["t"])

    def g(x: Any, y: Any, data: Any) -> torch.Tensor:
        decay = sum(s * (p**2).sum() for s, p in zip(torch.exp(x), y.parameters(), strict=True))
        return F.cross_entropy(y(data["X"]), data["t"]) + 1e-3 * decay

    return pdbo.torch.problem(f, g, data=data), torch.full((6,), -3.0), net


def passes(problem: Any, x: torch.Tensor, net: torch.nn.Module) -> Callable[[], None]:
    """The forward and backward passes of one step, as PyTorch alone does them."""
    (f, g), reader = problem.bindings.calls, problem.bindings.readers[0]
    data = reader((), torch.float32, torch.device("cpu"))
    own = list(net.parameters())
    at = x.clone().requires_grad_()

    def run() -> None:
        torch.autograd.grad(f(at, net, *data), [at, *own], allow_unused=True)
        torch.autograd.grad(g(at, net, *data), [at, *own])
        torch.autograd.grad(g(at, net, *data), [at])  # at the inner estimate, for x alone
        for _ in range(INNER):
            torch.autograd.grad(g(x, net, *data), own)

    return run


def overhead(units: int, batch: int, rounds: int) -> dict[str, float]:
    """Milliseconds of processor time of a step of PDBO, and of its passes; they alternate.

    `solve` makes calls of 100 steps. Here there are 50, or 4 if the network is large, and one: a
    call copies x, y and the rest of the state once.
    """
    problem, x, net = network(units, batch)
    alone = passes(problem, x, net)
    bound, x0, y0 = problem.entered(x, net)
    solver = pdbo.PDBO(primal_step=1e-3, inner_step=1e-2, inner_steps=INNER)
    state = begin(Start(bound, x0, y0), solver, None)
    few = 4 if units > 1000 else 50

    def step(count: int) -> float:
        steps = jax.numpy.asarray(count, jax.numpy.int32)
        start = time.process_time()
        jax.block_until_ready(take_steps_jit(bound, state, steps))
        return (time.process_time() - start) / count

    def passed() -> float:
        start = time.process_time()
        for _ in range(few):
            alone()
        return (time.process_time() - start) / few

    found = [(step(few), passed(), step(1)) for _ in range(rounds + 1)][1:]
    ours, theirs, single = (1e3 * statistics.median(v) for v in zip(*found, strict=True))
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "steps_per_call": few,
        "step_ms": ours,
        "passes_ms": theirs,
        "ratio": ours / theirs,
        "beyond_1.15_ms": ours - 1.15 * theirs,
        "one_step_per_call_ms": single,
        "one_step_per_call_beyond_1.15_ms": single - 1.15 * theirs,
    }


def to_target(name: str, rounds: int) -> dict[str, Any]:
    """Seconds to the target of a workload: ours untuned, others with their best settings.

    The settings of the others are the best of the search in the record of `python -m benchmarks`.
    The libraries take turns, so that whatever else the machine does slows all of them.
    """
    known = json.loads((record.FOLDER / "peers.json").read_text())["results"]["workloads"][name]
    found: dict[str, Any] = {}
    with Bench(WORKLOADS[name], 1) as bench, contextlib.ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for entry in (OURS, *LIBRARIES):
            peer = "ours_torch" if entry == OURS else entry
            chosen = {} if entry == OURS else known["entries"][entry]["settings"]
            try:
                turns[entry] = Turn(bench, peer, bench.best(peer, [chosen]), stack)
            except PeerError as error:
                found[entry] = {"error": str(error)}
        for _ in range(rounds + 1):  # the first one is not kept
            for turn in turns.values():
                turn.take()
        found |= {entry: turn.result() for entry, turn in turns.items()}
    for entry, result in found.items():
        print(name, entry, result, flush=True)
    return found


class Turn:
    """A library whose process runs up to the target again and again.

    Arguments:
        bench: the workload.
        peer: the file in benchmarks/peers.
        best: its settings, and the iterations that they need.
        stack: closes the process.
    """

    def __init__(self, bench: Bench, peer: str, best: Found, stack: contextlib.ExitStack):
        self.peer, self.best, self.job = peer, best, bench.job(best.settings)
        self.process = stack.enter_context(bench.process(peer))
        self.busy: list[float] = []
        self.wall: list[float] = []

    def take(self) -> None:
        """Run once, from the start to the target."""
        parts = [self.process.ask("start", job=self.job)]
        parts.append(self.process.ask("advance", steps=self.best.steps))
        self.busy.append(sum(part["busy"] for part in parts))
        self.wall.append(sum(part["seconds"] for part in parts))

    def result(self) -> dict[str, Any]:
        """Medians of all runs but the first."""
        wanted = {"torch", "numpy", "jax", self.peer, f"{self.peer}-ml", f"{self.peer}-torch"}
        return {
            "settings": self.best.settings,
            "reached": self.best.reached,
            "left": self.best.left,
            "iterations": self.best.steps,
            "processor_seconds": statistics.median(self.busy[1:]),
            "processor_quartiles": statistics.quantiles(self.busy[1:], n=4)[::2],
            "wall_seconds": statistics.median(self.wall[1:]),
            "versions": {k: v for k, v in versions(self.peer).items() if k in wanted},
        }


def main() -> None:
    """Measure and keep a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("overhead", "target"))
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    if chosen.only != "target":
        results["overhead"] = {}
        for size, (units, batch) in SIZES.items():
            results["overhead"][size] = overhead(units, batch, chosen.rounds)
            print(size, results["overhead"][size], flush=True)
    if chosen.only != "overhead":
        tasks = ("digits", "cleaning")
        results["target"] = {name: to_target(name, chosen.rounds) for name in tasks}
    settings: dict[str, Any] = {}
    known = record.FOLDER / "torch.json"
    if chosen.only is not None and known.exists():
        before = json.loads(known.read_text())
        settings, results = before["settings"], before["results"] | results
    settings |= {"torch": torch.__version__, "threads": 1, "inner_steps": INNER}
    parts = ("overhead", "target") if chosen.only is None else (chosen.only,)
    settings |= {f"rounds_{part}": chosen.rounds for part in parts}
    record.write("torch", settings, results)


if __name__ == "__main__":
    main()
