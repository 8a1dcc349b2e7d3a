"""Environments for the peers, and the processes that run in them."""

import contextlib
import json
import os
import pathlib
import select
import subprocess
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".peers"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
INSTALL_SECONDS = 1800
OURS = ("ours", "ours_torch")  # run in the environment of the suite


class PeerError(RuntimeError):
    """A peer did not install, did not start, or failed at what it was asked."""


def names() -> list[str]:
    """The peers: all names with an environment file."""
    return sorted(path.stem for path in HERE.glob("*.txt"))


def environment(name: str) -> str:
    """The Python of a peer's environment, made on the first call and again if its file changes.

    The requirements are installed line by line, so that a later line does not pull in another
    version of an earlier one.
    """
    if name in OURS:
        return sys.executable
    wanted = (HERE / f"{name}.txt").read_text()
    home = FOLDER / name
    python, mark, log = home / "bin" / "python", home / "installed.txt", FOLDER / f"{name}.log"
    if mark.exists() and mark.read_text() == wanted:
        return str(python)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    print(f"making the environment of {name}", flush=True)
    lines = [line for line in wanted.splitlines() if line and not line.startswith("#")]
    commands = [[sys.executable, "-m", "venv", "--clear", str(home)]]
    commands += [[str(python), "-m", "pip", "install", "--quiet", *line.split()] for line in lines]
    with log.open("w") as file:
        for command in commands:
            try:
                done = subprocess.run(
                    command, stdout=file, stderr=subprocess.STDOUT, timeout=INSTALL_SECONDS
                )
            except subprocess.TimeoutExpired:
                raise PeerError(f"{command[-1]} took too long to install") from None
            if done.returncode:
                file.flush()
                said = [line for line in log.read_text().splitlines() if "ERROR" in line]
                raise PeerError((said or ["pip failed"])[-1][:300])
    mark.write_text(wanted)
    return str(python)


def versions(name: str) -> dict[str, str]:
    """What is installed in a peer's environment."""
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions()}))"
    )
    out = subprocess.run(
        [environment(name), "-c", code], capture_output=True, text=True, check=True
    )
    return json.loads(out.stdout)


class Process:
    """A worker of one peer, as a context; `ask` sends an order and waits for the answer."""

    def __init__(self, name: str, threads: int, log: pathlib.Path | None = None):
        python = environment(name)
        inherited = {k: v for k, v in os.environ.items() if name in OURS or k != "PYTHONPATH"}
        pinned = dict.fromkeys(THREADS, str(threads))
        cores = sorted(os.sched_getaffinity(0))[:threads]
        FOLDER.mkdir(exist_ok=True)
        self.log = (log or FOLDER / f"{name}.err").open("w+")
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            [python, "-m", f"benchmarks.peers.{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env=inherited | pinned | {"JAX_PLATFORMS": "cpu"},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        try:
            self._answer(120)
        except PeerError:
            self.close()
            raise
        self.startup = time.perf_counter() - begun

    def ask(self, do: str, within: float = 120, **order: Any) -> dict[str, Any]:
        """Send an order and return the answer; raise PeerError if none comes in time."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        except BrokenPipeError:
            raise PeerError(self._last_words()) from None
        return self._answer(within)

    def _answer(self, within: float) -> dict[str, Any]:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], within)[0]:
            self.process.kill()
            raise PeerError(f"no answer within {within:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(self._last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self.process.wait()
        self.log.seek(0)
        said = [line for line in self.log.read().splitlines() if line.strip()]
        return (said or [f"the process ended with {self.process.returncode}"])[-1][:300]

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()  # type: ignore
        self.log.close()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
