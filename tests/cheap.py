"""Compiling is nearly all of what the tests take: make it cheap, for all processes of a run.

Programs that run once need not be optimised, and what one process has compiled serves the others
from a folder that is fresh for every run. All of it travels by the environment, so that the
workers and the children of the tests have it too."""

import os
import subprocess
import sys
import tempfile

CACHE = "JAX_COMPILATION_CACHE_DIR"
VARIABLES = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}
# One LLVM module instead of 32, and no detour through MLIR for every fused loop.
FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
PROBE = "from jaxlib import xla_client; xla_client.CompileOptions()"


def compiling() -> str | None:
    """Set what is not set yet; returns the folder of programs if this process made it."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    flags = os.environ.get("XLA_FLAGS", "")
    if FLAGS not in flags:
        flags = f"{flags} {FLAGS}".strip()
        # A flag that this version of XLA does not know would end the process.
        probe = [sys.executable, "-c", PROBE]
        known = subprocess.run(probe, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True)
        if known.returncode == 0:
            os.environ["XLA_FLAGS"] = flags
    if CACHE in os.environ:
        return None
    os.environ[CACHE] = tempfile.mkdtemp(prefix="pdbo-tests-")
    return os.environ[CACHE]


PROGRAMS = compiling()
