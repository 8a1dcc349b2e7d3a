"""x and y split over devices: bytes per unknown, and the cost per iteration beside a model.

Run as `python -m benchmarks.parts`, or with some of the parts `memory scaling`. The results are
written to benchmarks/records/parts.json, and the tables of docs/scaling.md again from them.
"""

import json
import re
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
from .record import FOLDER, median_seconds, write

RECORD = FOLDER / "parts.json"
MARKS = ("<!-- parts: python -m benchmarks.parts -->", "<!-- end of parts -->")
DEVICES = (1, 2, 4, 8)
FAR = (16, 64)  # devices for which the model is extrapolated
UNKNOWNS = 2**16  # entries of x, and of y, for the memory
WORK = 4  # arrays beside the states: the gradients of f and g in x and y
STRONG, WEAK, ROWS = 2**18, 2**15, 16  # entries of x in all, or per device; rows of data


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


def iteration(size: int, steps: int, repeats: int) -> dict[str, Any]:
    """Seconds per PDBO iteration on all devices, what it sends, and what one such sum takes."""
    given = problem(size, jax.device_count() > 1)
    state, _, run = program(given, size, pdbo.PDBO())
    count = jnp.asarray(steps)
    compiled = run.lower(given, state, count).compile()
    jax.block_until_ready(compiled(given, state, count))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(compiled(given, state, count))
        times.append((time.perf_counter() - began) / steps)
    sent = counted(compiled.compiled.as_text())
    sums = sum(sent.operations.values())
    return {"seconds": min(times), "sums": sums, "sum": one_sum(steps) if sums else 0.0}


def one_sum(turns: int) -> float:
    """Seconds of one sum over devices of as many numbers as there are rows."""
    mesh = jax.make_mesh((jax.device_count(),), ("all",))
    spec = jax.sharding.NamedSharding(mesh, PartitionSpec("all"))
    block = jax.device_put(np.ones((jax.device_count(), ROWS), np.float32), spec)

    @jax.jit
    def loop(block: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, b: b * 0 + jnp.sum(b, 0) / len(b), block)

    jax.block_until_ready(loop(block, 1))
    return median_seconds(lambda: loop(block, 10 * turns), 3) / (10 * turns)


def scaling(steps: int = 20, repeats: int = 5) -> dict[str, Any]:
    """Strong and weak scaling; one thread per device."""
    place = "benchmarks.parts:iteration"
    return {
        "strong": {k: call(place, STRONG, steps, repeats, devices=k)[0] for k in DEVICES},
        "weak": {k: call(place, WEAK * k, steps, repeats, devices=k)[0] for k in DEVICES},
    }


def predicted(row: dict[str, Any], kind: str, devices: int, cores: int) -> float:
    """Seconds by the model: the work of one device over the cores at hand, and its sums.

    A sum is as long as the longest measured one, beyond the devices measured as well, and there
    each device has a core.
    """
    measured = {int(k): v for k, v in row.items()}
    known = measured[min(devices, max(measured))]
    hands = devices if devices > max(measured) else min(devices, cores)
    work = measured[1]["seconds"] * (devices if kind == "weak" else 1) / hands
    return work + known["sums"] * known["sum"]


# Record and page


def figures(record: dict[str, Any]) -> str:
    """The tables of docs/scaling.md."""
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
    cores = int(record["platform"].split(", ")[1].split()[0])
    shown = [*DEVICES, *FAR]
    lines += ["", "| ms per iteration, devices | " + " | ".join(map(str, shown)) + " |"]
    lines += ["|---|" + "---|" * len(shown)]
    for kind, row in scaling.items():
        cells = [f"{1e3 * row[str(k)]['seconds']:.2f}" for k in DEVICES]
        lines.append(f"| {kind}, measured | " + " | ".join([*cells, *[""] * len(FAR)]) + " |")
        cells = [f"{1e3 * predicted(row, kind, k, cores):.2f}" for k in shown]
        far = [f"*{cell}*" if k in FAR else cell for k, cell in zip(shown, cells, strict=True)]
        lines.append(f"| {kind}, model | " + " | ".join(far) + " |")
    lines += ["", f"Strong scaling splits {STRONG:,} entries of x and as many of y, weak scaling "
              f"gives each device {WEAK:,}; the data have {ROWS} rows. *Extrapolated* figures are "
              "in italics: they assume a core for each device and sums as long as those of eight "
              "devices."]  # fmt: skip
    return "\n".join(lines)


PARTS: dict[str, Callable[[], Any]] = {"memory": memory, "scaling": scaling}


def page() -> None:
    """The tables of docs/scaling.md from the record."""
    path = ROOT / "docs" / "scaling.md"
    pattern = re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1])
    text = "\n".join((MARKS[0], figures(json.loads(RECORD.read_text())), MARKS[1]))
    path.write_text(re.sub(pattern, lambda _: text, path.read_text(), flags=re.S))


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
