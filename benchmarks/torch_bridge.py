"""f and g in PyTorch: what a step adds to its passes, and time to target beside PyTorch libraries.

Run `python -m benchmarks.torch_bridge`, in an environment with PyTorch; one thread.
"""

import argparse
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
    """Milliseconds of processor time of a step of PDBO, and of its passes; both alternate."""
    problem, x, net = network(units, batch)
    alone = passes(problem, x, net)
    bound, x0, y0 = problem.entered(x, net)
    solver = pdbo.PDBO(primal_step=1e-3, inner_step=1e-2, inner_steps=INNER)
    state = begin(Start(bound, x0, y0), solver, None)
    few = 4 if units > 1000 else 50
    steps = jax.numpy.asarray(few, jax.numpy.int32)
    jax.block_until_ready(take_steps_jit(bound, state, steps))
    alone()
    ours, theirs = [], []
    for _ in range(rounds):
        start = time.process_time()
        jax.block_until_ready(take_steps_jit(bound, state, steps))
        ours.append((time.process_time() - start) / few)
        start = time.process_time()
        for _ in range(few):
            alone()
        theirs.append((time.process_time() - start) / few)
    step, passed = (1e3 * statistics.median(v) for v in (ours, theirs))
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "step_ms": step,
        "passes_ms": passed,
        "ratio": step / passed,
        "beyond_1.15_ms": step - 1.15 * passed,
    }


def to_target(name: str, repeats: int) -> dict[str, Any]:
    """Processor seconds to the target of a workload: ours untuned, others with their best settings.

    The settings of the others are the best of the search in the record of `python -m benchmarks`.
    """
    found = {}
    known = json.loads((record.FOLDER / "peers.json").read_text())["results"]["workloads"][name]
    with Bench(WORKLOADS[name], 1) as bench:
        for entry in (OURS, *LIBRARIES):
            peer = "ours_torch" if entry == OURS else entry
            chosen = {} if entry == OURS else known["entries"][entry]["settings"]
            try:
                found[entry] = timed(bench, peer, bench.best(peer, [chosen]), repeats)
            except PeerError as error:
                found[entry] = {"error": str(error)}
            print(name, entry, found[entry], flush=True)
    return found


def timed(bench: Bench, peer: str, best: Found, repeats: int) -> dict[str, Any]:
    """The median of several runs up to the target in one process, after one that is not timed."""
    job, busy = bench.job(best.settings), []
    with bench.process(peer) as process:
        for _ in range(repeats + 1):
            begun = process.ask("start", job=job)["busy"]
            busy.append(begun + process.ask("advance", steps=best.steps)["busy"])
    wanted = {"torch", "numpy", "jax", peer, f"{peer}-ml", f"{peer}-torch"}
    return {
        "settings": best.settings,
        "reached": best.reached,
        "left": best.left,
        "iterations": best.steps,
        "processor_seconds": statistics.median(busy[1:]),
        "versions": {k: v for k, v in versions(peer).items() if k in wanted},
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
    settings = {
        "torch": torch.__version__, "threads": 1, "inner_steps": INNER, "rounds": chosen.rounds,
    }  # fmt: skip
    known = record.FOLDER / "torch.json"
    if chosen.only is not None and known.exists():
        results = json.loads(known.read_text())["results"] | results
    record.write("torch", settings, results)


if __name__ == "__main__":
    main()
