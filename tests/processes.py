"""Python processes of a test, run side by side: devices of their own, sockets on loopback only."""

import os
import pathlib
import socket
import subprocess
import sys
import textwrap

TESTS = pathlib.Path(__file__).parent
PREAMBLE = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
"""


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def environment(devices: int = 1) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}


def start(command: list[str], devices: int = 1, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        env=environment(devices) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), *map(str, arguments)]


def finish(processes: list[subprocess.Popen], seconds: float = 300) -> list[tuple[int, str, str]]:
    """Code, standard output and standard error of each, all of them ended."""
    try:
        ended = [p.communicate(timeout=seconds) for p in processes]
        return [(p.returncode, *texts) for p, texts in zip(processes, ended, strict=True)]
    finally:
        for p in processes:
            p.kill()
