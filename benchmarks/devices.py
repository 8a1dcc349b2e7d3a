"""Many devices and many processes: agreement, a lost process, cost per iteration, bytes sent.

Run as `python -m benchmarks.devices`, or with some of the parts `agreement loss cost sent`. The
results are written to benchmarks/records/devices.json, and its tables in docs/results.md and
docs/scaling.png are written again from them. All sockets are on loopback. On a busy machine
collectives wait for threads that wait for a core: measure on a quiet one.
"""

import importlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pdbo
from pdbo.linear import cross_entropy, penalty

from .communication import communication
from .readme import tables
from .record import FOLDER, write

ROOT = pathlib.Path(__file__).parents[1]
RECORD = FOLDER / "devices.json"
DEVICES, PROCESSES = (1, 2, 4, 8), (2, 3, 4)
HEARTBEAT = 10.0  # seconds without a sign of life after which a process counts as lost
HOSTS = 64  # for the column of bytes sent per host


# The problem: logistic regression with one penalty per feature


def data(rows: int, columns: int, classes: int, dtype: Any, seed: int = 0) -> dict[str, Any]:
    """Training and validation data, half of the rows each."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=(columns, classes))

    def half() -> tuple[np.ndarray, np.ndarray]:
        a = draw.normal(size=(rows // 2, columns)).astype(dtype)
        return a, np.argmax(a @ truth + draw.gumbel(size=(rows // 2, classes)), 1)

    return {"train": half(), "validation": half()}


def problem(given: dict[str, Any]) -> pdbo.Problem:
    """Validation loss over the weights that minimise the penalised training loss."""
    return pdbo.Problem(
        lambda x, w, d: cross_entropy(w, *d["validation"]),
        lambda x, w, d: cross_entropy(w, *d["train"]) + penalty(x, w),
        given,
        x_set=pdbo.Box(-8.0, 3.0),
    )


def start(columns: int, classes: int, dtype: Any) -> tuple[Any, Any]:
    """Log-penalties and weights to start from."""
    zeros = np.zeros((columns, classes), dtype), np.zeros(classes, dtype)
    return np.full((columns, 1), -3, dtype), dict(zip(("weights", "offsets"), zeros, strict=True))


SMALL = {"rows": 480, "columns": 6, "classes": 3}
STEPS = {"PDBO": 200, "AutoPDBO": 10}


def small() -> tuple[pdbo.Problem, tuple[Any, Any]]:
    """The problem of the agreement and of the lost process, in double precision."""
    sizes = (SMALL["columns"], SMALL["classes"], np.float64)
    return problem(data(SMALL["rows"], *sizes)), start(*sizes)


def numbers(solution: Any) -> dict[str, Any]:
    """What a run found."""
    named = {k: getattr(solution, k) for k in ("x", "multiplier", "f", "g")}
    named |= solution.y | {"eps": solution.certificate.eps, "h": solution.history["h"]}
    return {k: np.asarray(jax.device_get(v)).tolist() for k, v in named.items()}


def apart(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """The largest difference, each relative to the largest entry."""
    worst = 0.0
    for name, value in theirs.items():
        a, b = np.asarray(ours[name]), np.asarray(value)
        worst = max(worst, float(np.max(np.abs(a - b)) / np.max(np.abs(b))))
    return worst


def solve(given: pdbo.Problem, name: str) -> Any:
    """The run that is compared."""
    _, point = small()
    solver = pdbo.PDBO(inner_step=1.0) if name == "PDBO" else pdbo.AutoPDBO()
    return pdbo.solve(given, *point, solver, steps=STEPS[name], every=STEPS[name], tol=0)


# Processes


def address() -> str:
    """The address of a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def launch(arguments: list[str], devices: int = 1, single: bool = True) -> subprocess.Popen:
    """Start a Python process with this many devices, each with one thread if `single`."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    flags += " --xla_cpu_multi_thread_eigen=false" if single else ""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def begin(
    function: str, *arguments: Any, processes: int = 1, **options: Any
) -> list[subprocess.Popen]:
    """Start fresh processes that run a function together, of this module or `module:function`."""
    where = address()
    asked = [json.dumps([function, arguments, where, processes, r]) for r in range(processes)]
    return [launch(["-m", "benchmarks.devices", "--call", text], **options) for text in asked]


def call(function: str, *arguments: Any, processes: int = 1, **options: Any) -> list[Any]:
    """Run a function of this module in fresh processes; return the result of each."""
    running = begin(function, *arguments, processes=processes, **options)
    ended = [p.communicate(timeout=1800) for p in running]
    for process, (_, err) in zip(running, ended, strict=True):
        if process.returncode:
            raise RuntimeError(f"{function} failed:\n{err}")
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def answer(text: str) -> None:
    """Run what `call` asked for, in the process it started, and print the result."""
    name, arguments, where, processes, rank = json.loads(text)
    module, _, function = name.rpartition(":")
    found = getattr(importlib.import_module(module or "benchmarks.devices"), function)
    if processes == 1:
        print(json.dumps(found(*arguments)))
        return
    with pdbo.hosts.distributed(where, processes, rank, heartbeat=HEARTBEAT):
        print(json.dumps(found(*arguments)))


# Agreement


def on_devices() -> dict[str, float]:
    """How far runs on 2, 4 and 8 devices are from the run on one device."""
    plain, point = small()
    calls: dict[str, Callable[[pdbo.Problem], dict[str, Any]]] = {
        "PDBO": lambda p: numbers(solve(p, "PDBO")),
        "AutoPDBO": lambda p: numbers(solve(p, "AutoPDBO")),
        "certify": lambda p: {"eps": pdbo.certify(p, *point).eps},
        "multistart": lambda p: numbers(
            pdbo.multistart(p, *point, pdbo.PDBO(inner_step=1.0), starts=3, steps=50, every=50)
        ),
    }
    found = {}
    for name, run in calls.items():
        reference = run(plain)
        for count in DEVICES[1:]:
            mesh = jax.make_mesh((count,), ("data",), devices=jax.devices()[:count])
            found[f"{name}, {count} devices"] = apart(run(pdbo.shard(plain, mesh)), reference)
    return found


def on_one() -> dict[str, Any]:
    """The run on one device."""
    return numbers(solve(small()[0], "PDBO"))


def on_hosts() -> dict[str, Any]:
    """The same run on all devices of all processes."""
    return numbers(solve(pdbo.shard(small()[0]), "PDBO"))


def agreement() -> dict[str, float]:
    """The largest relative differences from one device, on devices and on processes."""
    (found,) = call("on_devices", devices=max(DEVICES))
    (reference,) = call("on_one")
    for count in PROCESSES:
        everyone = call("on_hosts", processes=count)
        if any(numbers != everyone[0] for numbers in everyone):
            raise RuntimeError("the processes differ from each other")
        found[f"PDBO, {count} processes"] = apart(everyone[0], reference)
    return found


# Loss


def kept(folder: str, steps: int) -> dict[str, Any]:
    """A run on all devices of all processes that writes a checkpoint at every record."""
    given, point = small()
    solution = pdbo.solve(
        pdbo.shard(given),
        *point,
        pdbo.PDBO(inner_step=1.0),
        steps=steps,
        every=10,
        tol=0,
        checkpoint=folder,
        checkpoint_every=0,
    )
    return numbers(solution) | {"steps": solution.steps}


def loss() -> dict[str, Any]:
    """Kill each of three processes in turn, then continue with two processes."""
    found = {}
    for lost in range(3):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            running = begin("kept", name, 10**9, processes=3)
            while len(list(folder.glob("*.pdbo"))) < 2:
                if any(p.poll() is not None for p in running):
                    raise RuntimeError(running[0].communicate()[1])
                time.sleep(0.05)
            began = time.monotonic()
            running[lost].send_signal(signal.SIGKILL)
            others = [p for rank, p in enumerate(running) if rank != lost]
            for process in others:
                process.wait(60)
            seconds = time.monotonic() - began
            last = [p.communicate()[1].splitlines()[-1] for p in others]
            saved = max(int(re.sub(r"\D", "", path.stem)) for path in folder.glob("*.pdbo"))
            resumed = call("kept", name, saved + 100, processes=2)[0]
            with tempfile.TemporaryDirectory() as fresh:
                (reference,) = call("kept", fresh, saved + 100)
            found[f"process {lost}"] = {
                "seconds": seconds,
                "heartbeat": HEARTBEAT,
                "named": all(f"process {lost} of 3 is lost" in line for line in last),
                "codes": [p.returncode for p in others],
                "resumed at": saved,
                "apart": apart(resumed, reference),
            }
    return found


# Cost


def iteration(rows: int, columns: int, classes: int, steps: int, repeats: int) -> float:
    """Seconds per PDBO iteration on all devices, in single precision."""
    given = problem(data(rows, columns, classes, np.float32))
    given = pdbo.shard(given) if jax.device_count() > 1 else given
    solver = pdbo.PDBO(inner_step=1.0)
    x, w = jax.tree.map(jnp.asarray, start(columns, classes, np.float32))

    @eqx.filter_jit
    def run(problem: pdbo.Problem, state: Any, steps: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, s: solver.step(problem, s), state)

    state = eqx.filter_jit(solver.init)(given, x, w, jax.random.key(0))
    count = jnp.asarray(steps)
    jax.block_until_ready(run(given, state, count))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(run(given, state, count))
        times.append((time.perf_counter() - began) / steps)
    return float(np.median(times))


SIZE = {"columns": 64, "classes": 10}
ROWS = tuple(2**k for k in range(10, 18))
WEAK, STRONG = 2**17, 2**20


def cost(repeats: int = 5) -> dict[str, Any]:
    """Seconds per iteration against rows, devices and processes; one thread per device."""

    def seconds(rows: int, devices: int = 1, processes: int = 1) -> float:
        steps = max(3, min(200, 2**20 // rows))
        arguments = (rows, *SIZE.values(), steps, repeats)
        return max(call("iteration", *arguments, devices=devices, processes=processes))

    return {
        "rows": {n: seconds(n) for n in ROWS},
        "strong, devices": {k: seconds(STRONG, k) for k in DEVICES},
        "weak, devices": {k: seconds(WEAK * k, k) for k in DEVICES},
        "strong, processes": {k: seconds(STRONG, 1, k) for k in (1, 2, 4)},
        "weak, processes": {k: seconds(WEAK * k, 1, k) for k in (1, 2, 4)},
    }


# Bytes


def an_iteration() -> dict[str, Any]:
    """What one iteration sends, from the program compiled for two devices."""
    found = {}
    cases = {
        "64 features, 10 classes": (SIZE["columns"], SIZE["classes"]),
        "50,000 features, 20 classes": (50_000, 20),
    }
    for name, (columns, classes) in cases.items():
        sizes = (columns, classes, np.float32)
        sharded = pdbo.shard(problem(data(8, *sizes)))
        for solver in (pdbo.PDBO(), pdbo.AutoPDBO()):
            sent = communication(sharded, *start(*sizes), solver)
            found[f"{type(solver).__name__}, {name}"] = {
                "operations": sum(sent.operations.values()),
                "payload": sum(sent.payload.values()),
                "sent": sent.sent(HOSTS),
                "variables": columns * (1 + classes) + classes,
                "open_loops": sent.open_loops,
            }
    return found


def sent() -> dict[str, Any]:
    """Bytes sent per iteration."""
    return call("an_iteration", devices=2)[0]


# Record, page and picture

PARTS: dict[str, Callable[[], Any]] = {
    "agreement": agreement, "loss": loss, "cost": cost, "sent": sent
}  # fmt: skip


def figures(record: dict[str, Any]) -> str:
    """Its tables in docs/results.md."""
    results, lines = record["results"], []
    about = f"{record['platform']}, JAX {record['versions']['jax']}"
    lines += [f"Measured on {about}.", "", "| compared with one device | largest difference |"]
    lines += ["|---|---|"]
    lines += [f"| {name} | {value:.1e} |" for name, value in results["agreement"].items()]
    lines += ["", "| killed | the others ended after | heartbeat | named | relaunched with two |"]
    lines += ["|---|---|---|---|---|"]
    for name, row in results["loss"].items():
        named = "by all" if row["named"] else "no"
        lines.append(
            f"| {name} of 3 | {row['seconds']:.1f} s | {row['heartbeat']:.0f} s | {named} | "
            f"from step {row['resumed at']}, {row['apart']:.1e} from an undisturbed run |"
        )
    lines += ["", "| | " + " | ".join(f"{k}" for k in DEVICES) + " |"]
    lines += ["|---|" + "---|" * len(DEVICES)]
    for name in ("strong, devices", "weak, devices", "strong, processes", "weak, processes"):
        row = results["cost"][name]
        cells = [f"{1e3 * row[str(k)]:.1f} ms" if str(k) in row else "" for k in DEVICES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    rows, size = record["settings"]["rows"], record["settings"]["size"]
    lines += ["", f"Strong scaling splits {rows['strong']:,} rows over the devices, weak scaling "
              f"gives each {rows['weak']:,}; a row has {size['columns']} features and "
              f"{size['classes']} classes, in single precision."]  # fmt: skip
    sending = f"bytes sent by each of {HOSTS} hosts"
    lines += ["", f"| per iteration | variables | collectives | {sending} |"]
    lines += ["|---|---|---|---|"]
    for name, row in results["sent"].items():
        lines.append(
            f"| {name} | {row['variables']:,} | {row['operations']} | {row['sent']:,.0f} |"
        )
    lines += ["", "![Cost per iteration against rows and against devices](scaling.png)"]
    return "\n".join(lines)


def draw(record: dict[str, Any], path: pathlib.Path) -> None:
    """Cost per iteration against rows, and against devices and processes."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    cost = record["results"]["cost"]
    cores = int(record["platform"].split(", ")[1].split()[0])
    left, right = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")[1]
    rows = np.array([int(n) for n in cost["rows"]])
    seconds = np.array(list(cost["rows"].values()))
    left.loglog(rows, 1e3 * seconds, "o-", color="#0072B2", label="measured")
    left.loglog(
        rows, 1e3 * seconds[-1] * rows / rows[-1], ":", color="#888888", label="in proportion"
    )
    left.set(xlabel="rows of data", ylabel="ms per iteration", title="one device, one thread")
    left.legend(frameon=False)
    shown = {"devices": ("#0072B2", "o"), "processes": ("#D55E00", "s")}
    for kind, (color, mark) in shown.items():
        for name, dash in (("strong", "-"), ("weak", "--")):
            row = cost[f"{name}, {kind}"]
            count = np.array([int(k) for k in row])
            ratio = np.array(list(row.values())) / row["1"]
            label = f"{name} scaling, {kind}"
            right.loglog(count, ratio, dash, marker=mark, color=color, label=label)
    count = np.array(DEVICES)
    right.loglog(count, 1 / np.minimum(count, cores), ":", color="#888888", label="ideal, strong")
    right.axvline(cores, color="#888888", linewidth=0.8)
    right.annotate(f"{cores} cores", (cores, 0.98), xycoords=("data", "axes fraction"),
                   ha="right", va="top", rotation=90, color="#555555")  # fmt: skip
    right.set(xlabel="devices or processes", ylabel="time, one device = 1")
    right.set_xticks(count, [str(k) for k in count])
    ticks = [0.5, 1, 2, 4, 8, 16]
    right.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    right.minorticks_off()
    right.legend(frameon=False, fontsize=7)
    plt.gcf().savefig(path, dpi=150)


def main(wanted: list[str]) -> None:
    """Measure, write the record, and write the page and its picture again."""
    results = json.loads(RECORD.read_text())["results"] if RECORD.exists() else {}
    settings = {
        "small": SMALL, "steps": STEPS, "size": SIZE, "rows": {"weak": WEAK, "strong": STRONG},
        "threads": "one a device",
    }  # fmt: skip
    for name in wanted:
        results[name] = json.loads(json.dumps(PARTS[name]()))
        print(name, json.dumps(results[name], indent=1), flush=True)
        write(RECORD.stem, settings, results)
    if set(results) == set(PARTS):
        page()


def page() -> None:
    """Its tables in docs/results.md, and docs/scaling.png, from the record."""
    draw(json.loads(RECORD.read_text()), ROOT / "docs" / "scaling.png")
    tables()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--call"]:
        answer(sys.argv[2])
    elif sys.argv[1:2] == ["--page"]:
        page()
    else:
        main(sys.argv[1:] or list(PARTS))
