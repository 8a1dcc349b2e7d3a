"""Double precision unless a test asks for float32 by dtype, and no implicit promotion."""

import gc
import os
import shutil
import subprocess
import sys
import time

import cheap  # before JAX reads the environment

# isort: split
import jax
import pytest

gc.set_threshold(100_000, 20, 100)  # tracing makes many objects, of which few are garbage
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_unconfigure():
    if cheap.PROGRAMS:
        shutil.rmtree(cheap.PROGRAMS, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One process runs all tests of a file, which share fixtures and programs."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.option.dist == "load" else None


@pytest.fixture(scope="module", autouse=True)
def forget():
    """Let compiled code go: each piece holds memory maps, of which a process has 65,530."""
    yield
    if maps() > 15_000:
        jax.clear_caches()


def maps():
    """The memory maps of this process, many if they cannot be counted."""
    try:
        with open("/proc/self/maps") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return sys.maxsize


@pytest.fixture
def optimised():
    """For tests that spend more time in their programs than in compiling them."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def x32():
    """A session without 64-bit types, as users have by default."""
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory):
    """`quick_run(name)` is the folder of a run of `pdbo reproduce --quick`, made once for all.

    The processes that share the tests share it. It runs the experiments named, or all of them.
    """
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent

    def get(name, *experiments):
        folder = base / f"quick-{name}"
        out, done = folder / "results", folder / "done"
        try:
            folder.mkdir()
        except FileExistsError:
            for _ in range(6000):
                if done.exists():
                    break
                time.sleep(0.1)
        else:
            command = [
                sys.executable,
                "-m",
                "pdbo",
                "reproduce",
                *experiments,
                "--quick",
                "--out",
                out,
            ]
            run = subprocess.run(command, capture_output=True, text=True, timeout=600)
            (folder / "log").write_text(run.stderr)
            done.write_text(str(run.returncode))
        assert done.read_text() == "0", (folder / "log").read_text()
        return out

    return get
