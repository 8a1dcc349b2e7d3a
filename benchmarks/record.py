"""Records of measurements: settings, versions, device and results as JSON."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax

import pdbo

FOLDER = pathlib.Path(__file__).parent / "records"


def provenance() -> dict[str, Any]:
    """Date, commit, versions and device of this run."""
    packages = ("jax", "jaxlib", "equinox", "numpy")
    versions = {p: importlib.metadata.version(p) for p in packages}
    return {
        **moment(),
        "versions": {"pdbo": pdbo.__version__, **versions},
        "python": platform.python_version(),
        "device": str(jax.devices()[0].device_kind),
        "processor": _processor(),
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "x64": bool(jax.config.jax_enable_x64),
    }


def moment() -> dict[str, str]:
    """The date, and the commit of the code that runs, if it is in a repository."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    commit, changed = _git("rev-parse", "--short=10", "HEAD"), _git("status", "--porcelain", "src")
    return {"date": date, "commit": f"{commit or 'unknown'}{', with changes' if changed else ''}"}


def _git(*arguments: str) -> str:
    """What a command of git prints; nothing if there is none or it fails."""
    try:
        call = ["git", "-C", str(FOLDER.parent), *arguments]
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    """The name of the processor if the system gives it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write(name: str, settings: dict[str, Any], results: Any) -> pathlib.Path:
    """Write a record to benchmarks/records/NAME.json."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    record = {"name": name, "settings": settings, "results": results, **provenance()}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def median_seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    """The median seconds of a call, including the wait for its result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def seconds_per_turn(call: Callable[[int], Any], turns: int = 20) -> float:
    """Seconds per turn of a compiled loop, without the cost of starting it."""
    long, short = (median_seconds(lambda k=k: call(k), 3) for k in (turns + 2, 2))
    return (long - short) / turns
