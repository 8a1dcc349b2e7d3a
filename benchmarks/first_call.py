"""What a newcomer waits for: the first call of a process, on the README's toy problem.

Each figure is the median over processes of their own, in CPU seconds of the call alone: imports are
done, nothing is compiled. The second process finds the programs of the first in JAX's cache.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

REPEATS = 5
CALLS = {
    "solve": "pdbo.solve(problem, 2.0, y0)",
    "solve with PDBO()": "pdbo.solve(problem, 2.0, y0, pdbo.PDBO())",
    "multistart, 64 starts": "pdbo.multistart(problem, 2.0, y0, starts=64)",
}
SCRIPT = """
import json, os, resource
import jax.numpy as jnp
import pdbo
pdbo.solve, pdbo.multistart, pdbo.PDBO
problem = pdbo.Problem(
    lambda x, y: 0.5 * (x - y[1]) ** 2 + 0.5 * (y[0] - 1) ** 2,
    lambda x, y: 0.5 * y[0] ** 2 - x * y[0],
)
y0 = jnp.array([0.5, 0.5])
y0.block_until_ready()
def used():
    now = os.times()
    return now.user + now.system
def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
cpu, megabytes = used(), memory()
found = CALL
print(json.dumps({
    "cpu": used() - cpu, "megabytes": memory() - megabytes, "ok": bool(found.ok),
    "error": abs(float(found.x) - 1),
}))
"""


def measured() -> dict[str, Any]:
    """Median CPU seconds and megabytes of each first call, and of `solve` in a second process."""
    found = {name: _median(call) for name, call in CALLS.items()}
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        _once(CALLS["solve"], cache)
        found["solve in a second process"] = _median(CALLS["solve"], cache)
    ratio = found["solve"]["cpu"] / found["solve with PDBO()"]["cpu"]
    return {"processes each": REPEATS, "solve / solve with PDBO()": ratio, "calls": found}


def _once(call: str, environment: dict[str, str]) -> dict[str, Any]:
    environment = os.environ | environment
    script = [sys.executable, "-W", "ignore", "-c", SCRIPT.replace("CALL", call)]
    done = subprocess.run(script, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def _median(call: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    rows = [_once(call, environment or {}) for _ in range(REPEATS)]
    middle = {k: statistics.median(row[k] for row in rows) for k in ("cpu", "megabytes", "error")}
    return middle | {"ok": all(row["ok"] for row in rows)}
