"""x and y split over devices: bytes per unknown, and the cost per iteration beside a model.

Run as `python -m benchmarks.parts`, or with some of the parts `memory scaling`. The results are
written to benchmarks/records/parts.json, and tables of docs/results.md and docs/parts.png again
from them. Devices share the cores of this machine, so what scales is measured as processor time per
device: what a device with a core of its own is busy for.
"""

import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.sharding import PartitionSpec

import pdbo
from pdbo._checks import check_point
from pdbo._solution import launch
from pdbo.linear import SparseMatrix

from .communication import counted
from .devices import ROOT, call
from .readme import tables
from .record import FOLDER, write

RECORD = FOLDER / "parts.json"
DEVICES = (1, 2, 4, 8)
FAR = (16, 32, 64)  # devices for which the model is extrapolated
UNKNOWNS = 2**16  # entries of x, and of y, for the memory
WORK = 4  # arrays beside the states: the gradients of f and g in x and y
STRONG, WEAK, ROWS = 2**19, 2**16, 16  # entries of x in all, or per device; rows of data


def problem(size: int, split: bool) -> pdbo.Problem:
    """A ridge penalty for each weight, few rows; the columns go with the weights."""
    draw = np.random.default_rng(0)
    data = {"a": draw.normal(size=(ROWS, size)).astype(np.float32) / size**0.5}
    data["b"] = draw.normal(size=ROWS).astype(np.float32)
    plain = pdbo.Problem(
        lambda x, y, d: jnp.mean((d["a"] @ y - d["b"]) ** 2),
        lambda x, y, d: jnp.mean((d["a"] @ y - d["b"] + 1) ** 2) + jnp.mean(jnp.exp(x) * y**2),
        data,
        x_set=pdbo.Box(-8.0, 3.0),
    )
    if not split:
        return plain
    spec, columns = PartitionSpec("all"), PartitionSpec(None, "all")
    mesh = jax.make_mesh((jax.device_count(),), ("all",))
    return pdbo.shard(plain, mesh, split={"a": columns, "b": False}, x=spec, y=spec)


def program(given: pdbo.Problem, size: int, solver: Any) -> tuple[Any, Any, Callable]:
    """The state before the first step, and many steps of it as one compiled program."""
    zeros = np.zeros(size, np.float32)
    x, y = check_point(given, zeros, zeros)
    run = eqx.filter_jit(launch)(given, x, y, solver, jax.random.key(0))

    def steps(given: pdbo.Problem, state: Any, count: Any) -> Any:
        def step(_: Any, s: Any) -> Any:
            return (
                given.placed(solver.step(given, s), x, y) if given.mesh else solver.step(given, s)
            )

        return jax.lax.fori_loop(0, count, step, state)

    return run.solver_state, steps, eqx.filter_jit(steps)


# Memory


def bytes_per_unknown(name: str) -> dict[str, Any]:
    """Bytes of the compiled loop per entry of x and y, data aside, on each of the devices."""
    solver = pdbo.solvers.SOLVERS[name]()
    split = jax.device_count() > 1
    given = problem(UNKNOWNS, split)
    state, _, steps = program(given, UNKNOWNS, solver)
    compiled = steps.lower(given, state, jnp.asarray(2)).compile().compiled
    found = compiled.memory_analysis()
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(given.data)) // jax.device_count()
    whole = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    arrays = sum(int(leaf.size) for leaf in jax.tree.leaves(state) if leaf.size >= UNKNOWNS)
    return {
        "measured": jax.device_count() * (whole - data) / (2 * UNKNOWNS),
        "state": 4 * arrays / (2 * UNKNOWNS),
    }


def memory() -> dict[str, Any]:
    """Bytes per unknown of every solver that splits them, and per non-zero of a sparse matrix."""
    names = [name for name, made in pdbo.solvers.SOLVERS.items() if made.in_parts]
    solvers = {}
    for count in (1, max(DEVICES)):
        (solvers[count],) = call("benchmarks.parts:all_of", names, devices=count, single=False)
    return {"solvers": solvers, "sparse": bytes_per_nonzero()}


def all_of(names: list[str]) -> dict[str, Any]:
    """The bytes of several solvers."""
    return {name: bytes_per_unknown(name) for name in names}


def bytes_per_nonzero(rows: int = 1000, columns: int = 2000) -> dict[str, float]:
    """Of a `SparseMatrix` in single precision, on a CPU: the matrix and its transpose."""
    draw = np.random.default_rng(0)
    matrix = scipy.sparse.random_array((rows, columns), density=0.05, rng=draw)
    made = SparseMatrix.from_scipy(matrix, np.float32)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(made))
    per_line = 4 * (rows + columns + 2)
    return {"predicted": 24 + per_line / matrix.nnz, "measured": total / matrix.nnz}


# Cost


def timed(call: Callable[[], Any], turns: int, repeats: int) -> tuple[float, float]:
    """Seconds per turn, and processor seconds per turn and device: the least of some repeats."""
    found = []
    for _ in range(repeats):
        began, busy = time.perf_counter(), time.process_time()
        jax.block_until_ready(call())
        found.append((time.perf_counter() - began, time.process_time() - busy))
    seconds, busy = (min(column) / turns for column in zip(*found, strict=True))
    return seconds, busy / jax.device_count()


def iteration(size: int, steps: int, repeats: int) -> dict[str, Any]:
    """The cost of a PDBO iteration on all devices, how often it sums, and the cost of a sum."""
    given = problem(size, jax.device_count() > 1)
    state, _, run = program(given, size, pdbo.PDBO())
    count = jnp.asarray(steps)
    compiled = run.lower(given, state, count).compile()
    jax.block_until_ready(compiled(given, state, count))
    seconds, processor = timed(lambda: compiled(given, state, count), steps, repeats)
    sums = sum(counted(compiled.compiled.as_text()).operations.values())
    found = {"seconds": seconds, "processor": processor, "sums": sums}
    return found | ({"sum": one_sum(10 * steps, repeats)} if sums else {})


def one_sum(turns: int, repeats: int) -> float:
    """Processor seconds per device of a sum over devices of as many numbers as there are rows."""
    mesh = jax.make_mesh((jax.device_count(),), ("all",))
    spec = jax.sharding.NamedSharding(mesh, PartitionSpec("all"))
    block = jax.device_put(np.ones((jax.device_count(), ROWS), np.float32), spec)

    @jax.jit
    def loop(block: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, b: b * 0 + jnp.sum(b, 0) / len(b), block)

    jax.block_until_ready(loop(block, 1))
    return timed(lambda: loop(block, turns), turns, repeats)[1]


def scaling(steps: int = 10, repeats: int = 5) -> dict[str, Any]:
    """Strong and weak scaling; one thread per device."""
    place = "benchmarks.parts:iteration"
    return {
        "strong": {k: call(place, STRONG, steps, repeats, devices=k)[0] for k in DEVICES},
        "weak": {k: call(place, WEAK * k, steps, repeats, devices=k)[0] for k in DEVICES},
    }


def cost_of_a_sum(scaling: dict[str, Any]) -> tuple[float, float]:
    """a and b so that a sum over d devices costs about a + b log2 d."""
    rows = [(int(k), row["sum"]) for kind in scaling.values() for k, row in kind.items()
            if "sum" in row]  # fmt: skip
    devices, seconds = np.asarray(rows).T
    b, a = np.polyfit(np.log2(devices), seconds, 1)
    return float(a), float(b)


def predicted(scaling: dict[str, Any], kind: str, devices: int) -> float:
    """Processor seconds per device by the model: its share of the work, and its sums."""
    row = scaling[kind]
    work = row["1"]["processor"] / (devices if kind == "strong" else 1)
    if devices == 1:
        return work
    a, b = cost_of_a_sum(scaling)
    return work + row[str(max(DEVICES))]["sums"] * (a + b * float(np.log2(devices)))


# Record and page


def figures(record: dict[str, Any]) -> str:
    """Its tables in docs/results.md."""
    memory, scaling = record["results"]["memory"], record["results"]["scaling"]
    one, many = (memory["solvers"][str(k)] for k in (1, max(DEVICES)))
    lines = ["| bytes per unknown | state | predicted | one device | eight devices together |"]
    lines += ["|---|---|---|---|---|"]
    for name, row in one.items():
        expected = 2 * row["state"] + 4 * WORK / 2
        both = f"{row['measured']:.0f} | {many[name]['measured']:.0f}"
        lines.append(f"| {name} | {row['state']:.0f} | {expected:.0f} | {both} |")
    sparse = memory["sparse"]
    lines += ["", f"A non-zero of a `SparseMatrix` takes {sparse['measured']:.1f} bytes on a CPU "
              f"(predicted {sparse['predicted']:.1f}): value, column and row, twice."]  # fmt: skip
    shown = [*DEVICES, *FAR]
    lines += ["", "| ms per iteration, devices | " + " | ".join(map(str, shown)) + " |"]
    lines += ["|---|" + "---|" * len(shown)]
    cores = int(record["platform"].split(", ")[1].split()[0])
    for kind, row in scaling.items():
        cells = [f"{1e3 * row[str(k)]['processor']:.2f}" for k in DEVICES]
        lines.append(f"| {kind}, measured | " + " | ".join([*cells, *[""] * len(FAR)]) + " |")
        cells = [f"{1e3 * predicted(scaling, kind, k):.2f}" for k in shown]
        far = [f"*{cell}*" if k in FAR else cell for k, cell in zip(shown, cells, strict=True)]
        lines.append(f"| {kind}, model | " + " | ".join(far) + " |")
    a, b = cost_of_a_sum(scaling)
    sums = scaling["strong"][str(max(DEVICES))]["sums"]
    text = (
        f"Strong scaling splits {STRONG:,} entries of x and as many of y, weak scaling gives each "
        f"device {WEAK:,}; the data have {ROWS} rows. Measured is processor time per device, what "
        "a device with a core of its own is busy for. Here they share the caches of "
        f"{cores} cores, which lifts weak scaling: the work of one device fits a cache, that of "
        f"all does not. The model is one device's work over the devices plus {sums} sums, each "
        f"{1e6 * a:.0f} µs + {1e6 * b:.0f} µs × log₂ of the devices, fitted to sums alone on 2 to "
        f"{max(DEVICES)} devices. *Extrapolated* figures are in italics. Between hosts "
        "[the network](scaling.md#a-plan-for-64-hosts) comes on top."
    )
    picture = "![Strong and weak scaling with x and y split, measured and by the model](parts.png)"
    lines += ["", text, "", picture]
    return "\n".join(lines)


def draw(record: dict[str, Any], path: pathlib.Path) -> None:
    """Strong and weak scaling, measured and by the model, which goes on to more devices."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    scaling = record["results"]["scaling"]
    panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")[1]
    near, far = list(DEVICES), [max(DEVICES), *FAR]
    for panel, kind in zip(panels, ("strong", "weak"), strict=True):
        row = scaling[kind]
        model = lambda counts, kind=kind: [1e3 * predicted(scaling, kind, k) for k in counts]
        busy = [1e3 * row[str(k)]["processor"] for k in near]
        panel.plot(near, busy, "o", color="#0072B2", label="measured, processor time")
        panel.plot(near, model(near), "-", color="#D55E00", label="work + sums, model")
        panel.plot(far, model(far), "--", color="#D55E00", label="the same, extrapolated")
        ideal = [busy[0] / (k if kind == "strong" else 1) for k in near + far[1:]]
        panel.plot(near + far[1:], ideal, ":", color="#888888", label="without sums")
        panel.set_xscale("log", base=2)
        if kind == "strong":
            panel.set_yscale("log")
        else:
            panel.set_ylim(0, 1.2 * max(busy))
        panel.set_xticks(near + far[1:], [str(k) for k in near + far[1:]])
        panel.axvspan(max(near), max(far), color="#EEEEEE", zorder=0)
        title = f"{STRONG:,} entries of x in all" if kind == "strong" else f"{WEAK:,} on each"
        panel.set(xlabel="devices", ylabel="ms per iteration", title=f"{kind} scaling, {title}")
    panels[0].legend(frameon=False, fontsize=7)
    plt.gcf().savefig(path, dpi=150)
    plt.close()


PARTS: dict[str, Callable[[], Any]] = {"memory": memory, "scaling": scaling}


def page() -> None:
    """Its tables in docs/results.md, and docs/parts.png, from the record."""
    draw(json.loads(RECORD.read_text()), ROOT / "docs" / "parts.png")
    tables()


def main(wanted: list[str]) -> None:
    """Measure, write the record, and write the page again."""
    results = json.loads(RECORD.read_text())["results"] if RECORD.exists() else {}
    settings = {"unknowns": UNKNOWNS, "strong": STRONG, "weak": WEAK, "rows": ROWS}
    for name in wanted:
        results[name] = json.loads(json.dumps(PARTS[name]()))
        print(name, json.dumps(results[name], indent=1), flush=True)
        write(RECORD.stem, settings, results)
    if set(results) == set(PARTS):
        page()


if __name__ == "__main__":
    main(sys.argv[1:] or list(PARTS))
