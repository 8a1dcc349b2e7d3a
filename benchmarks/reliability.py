"""Reliability: kills, damaged checkpoints, values that are not finite, full disks, wild commands.

Run as `python -m benchmarks.reliability`, or with the names of some parts. Every part does random
damage, from a seed, and counts the outcomes; a part that finds a fault ends with an error. The
record is written to benchmarks/records/reliability.json.
"""

import collections
import contextlib
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pdbo
from pdbo._sealed import Hashed
from pdbo._solution import launch
from pdbo.checkpoint.arrays import named, store
from pdbo.checkpoint.packing import pack
from pdbo.solvers import SOLVERS

from . import fuzz
from .record import FOLDER, write

RESULTS = pdbo.RESULTS


class Fault(AssertionError):
    """Something happened that must not happen."""


def toy() -> pdbo.Problem:
    """The paper's toy problem."""
    return pdbo.problems.get("toy").problem


START = (2.0, (0.5, 0.5))
KEPT = {  # runs with an average, with random draws, and with AutoPDBO's large state
    "PDBO": lambda: pdbo.PDBO(average=True),
    "ProximalPDBO": lambda: pdbo.ProximalPDBO(round_steps=7, choose="random"),
    "AutoPDBO": pdbo.AutoPDBO,
}


def run(kind: str, folder: Any = None, steps: int = 400) -> pdbo.results.Solution:
    """A run of about a hundred records, with a checkpoint at each."""
    x0, y0 = START
    return pdbo.solve(
        toy_, x0, jnp.array(y0), KEPT[kind](), steps=steps, every=4, tol=0, key=jax.random.key(7),
        checkpoint=folder, checkpoint_every=0,
    )  # fmt: skip


toy_ = toy()


def contents(solution: pdbo.results.Solution) -> dict[str, bytes]:
    """All parts of a solution, as bytes by name."""
    header, arrays = pack(solution)
    point = {"x": solution.x, "y": solution.y, "multiplier": solution.multiplier}
    stored = {n: store(n, leaf) for n, leaf in named(point)}
    found = {n: s.data.tobytes() for n, s in (arrays | stored).items()}
    return found | {"result": header["result"].encode(), "step": str(header["step"]).encode()}


# Kills


def _killed(kind: str, folder: str, calls: int, cache: str) -> None:
    """A run, in its own process, that is killed at a given call inside a save, if any."""
    _use_cache(cache)
    if calls:
        _kill_at(calls)
    run(kind, folder)


def _use_cache(cache: str) -> None:
    """Read compiled programs from a folder; add none, because this process may be killed."""
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _watched() -> list[tuple[Any, str]]:
    """The calls by which a save changes the disk, in order."""
    return [(Hashed, "write"), (os, "fsync"), (os, "replace"), (os, "unlink")]


def _kill_at(calls: int) -> None:
    """End this process by SIGKILL halfway into, or just before, the n-th of these calls."""
    done = 0

    def deadly(call: Callable) -> Callable:
        def watched(*arguments: Any) -> Any:
            nonlocal done
            done += 1
            if done == calls and isinstance(arguments[0], Hashed):
                half = bytes(arguments[1])[: len(arguments[1]) // 2]
                arguments[0].file.write(half)
                arguments[0].file.flush()
            if done == calls:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return watched

    for owner, name in _watched():
        setattr(owner, name, deadly(getattr(owner, name)))


def _count_calls(kind: str, folder: str) -> int:
    """How many such calls a run makes."""
    total = 0

    def counting(call: Callable) -> Callable:
        def counted(*arguments: Any) -> Any:
            nonlocal total
            total += 1
            return call(*arguments)

        return counted

    with contextlib.ExitStack() as stack:
        for owner, name in _watched():
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, counting(getattr(owner, name)))
        run(kind, folder)
    return total


def kills(count: int = 200, seed: int = 0) -> dict[str, Any]:
    """Kill runs by SIGKILL, half at random times, half inside a save; then resume and compare.

    The killed run is a separate process, forked from one that has imported JAX and not used it.
    It is resumed here and must equal, to the byte, a run without a kill, also computed here.
    """
    draw = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.reliability"])
    tally: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as place:
        cache = f"{place}/cache"
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        expected = {kind: contents(run(kind)) for kind in KEPT}
        calls = {kind: _count_calls(kind, f"{place}/{kind}") for kind in KEPT}
        warm = context.Process(target=_killed, args=("PDBO", f"{place}/warm", 0, cache))
        warm.start()  # also starts the server
        warm.join()
        seconds = {}
        for kind in KEPT:
            process = context.Process(target=_killed, args=(kind, f"{place}/{kind}0", 0, cache))
            began = time.monotonic()
            process.start()
            process.join()
            seconds[kind] = time.monotonic() - began
            if process.exitcode != 0:
                raise Fault(f"a run that was not killed ended with {process.exitcode}")
        for number in itertools.count():  # if a run ends before its kill, do one more
            if tally["killed"] == count:
                break
            kind = list(KEPT)[number % len(KEPT)]
            folder = pathlib.Path(place) / f"run{number}"
            inside = number % 2 == 1
            at = draw.randint(1, calls[kind]) if inside else 0
            process = context.Process(target=_killed, args=(kind, str(folder), at, cache))
            process.start()
            if not inside:
                process.join(draw.uniform(0.2, 1.0) * seconds[kind])
                process.kill()
            process.join()
            tally["killed"] += process.exitcode == -signal.SIGKILL
            tally["killed inside a save"] += inside and process.exitcode == -signal.SIGKILL
            before = sorted(p.name for p in folder.glob("*")) if folder.exists() else []
            tally["a save cut short"] += any(name.startswith(".step") for name in before)
            tally["resumed from a checkpoint"] += any(name.startswith("step") for name in before)
            resumed = contents(run(kind, folder))
            different = [n for n in expected[kind] if resumed.get(n) != expected[kind][n]]
            if different or set(resumed) != set(expected[kind]):
                raise Fault(f"kill {number} of {kind}: {different} differ after {before}")
            tally["equal to the byte"] += process.exitcode == -signal.SIGKILL
            tally["ended before the kill"] += process.exitcode == 0
            shutil.rmtree(folder)
            if sys.stderr.isatty():
                print(f"\rkills {tally['killed']}/{count}", end="", file=sys.stderr, flush=True)
    return {**tally, "seconds_of_a_run": seconds}


# Damage


def damage(count: int = 1000, seed: int = 0, resumed: int = 7) -> dict[str, Any]:
    """Damage checkpoint folders in all the ways of `WAYS`; no damage may go unnoticed.

    Each folder is loaded; one in `resumed` is also resumed to the end and compared.
    """
    draw = random.Random(seed)
    tally: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as place:
        folder, other, work = (pathlib.Path(place) / n for n in ("good", "other", "work"))
        expected = contents(run("ProximalPDBO"))
        run("ProximalPDBO", folder, steps=40)
        pdbo.solve(
            toy_, 1.0, jnp.zeros(2), KEPT["ProximalPDBO"](), steps=40, every=4, tol=0,
            checkpoint=other, checkpoint_every=0,
        )  # fmt: skip
        old, new = sorted(p.name for p in folder.glob("step-*"))
        good = contents(pdbo.load(folder / old, toy_, KEPT["ProximalPDBO"]()))
        for number in range(count):
            way = WAYS[number % len(WAYS)]
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(folder, work)
            fatal = number // len(WAYS) % 5 == 4  # both checkpoints of the folder
            _harm(way, work, new, old, other, draw)
            if fatal and way not in ("swapped", "foreign", "missing"):
                _harm(way, work, old, old, other, draw)
            sentence, found = _load(work)
            if way == "foreign":  # an intact file of another run: only resuming can tell
                sentence, found = _resume(work)
            if found is None:
                if "Error" in sentence or str(work / new) not in sentence:
                    raise Fault(f"{way}: {sentence}")
                tally["refused"] += 1
            elif way == "missing" or str(work / new) in sentence:
                if contents(found) != good:
                    raise Fault(f"{way}: not the previous checkpoint")
                tally["previous checkpoint used"] += 1
            else:
                raise Fault(f"{way}: read silently")
            tally[f"way: {way}"] += 1
            if number % resumed == 0 and found is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", pdbo.errors.CheckpointWarning)
                    if contents(run("ProximalPDBO", work)) != expected:
                        raise Fault(f"{way}: the resumed run differs")
                tally["resumed to the same end"] += 1
    return {"damaged": count, **tally}


WAYS = (
    "bit flipped", "truncated", "block zeroed", "missing", "swapped", "version", "empty",
    "byte added", "block moved", "foreign",
)  # fmt: skip


def _harm(
    way: str, folder: pathlib.Path, name: str, old: str, other: pathlib.Path, draw: random.Random
) -> None:
    path = folder / name
    content = bytearray(path.read_bytes())
    before = bytes(content)
    while bytes(content) == before and way not in ("missing", "swapped", "foreign"):
        place = draw.randrange(len(content))
        if way == "bit flipped":
            content[place] ^= 1 << draw.randrange(8)
        elif way == "truncated":
            del content[place:]
        elif way == "block zeroed":
            end = min(place + draw.choice([1, 64, 512, 4096]), len(content))
            content[place:end] = bytes(end - place)
        elif way == "version":
            content = bytearray(
                before.replace(b"point 2\n", b"point %d\n" % draw.choice([1, 3]), 1)
            )
        elif way == "empty":
            content.clear()
        elif way == "byte added":
            content.insert(draw.choice([place, len(content)]), draw.randrange(256))
        elif way == "block moved":
            content = content[place:] + content[:place]
    if way == "missing":
        path.unlink()
    elif way == "swapped":
        path.write_bytes((folder / old).read_bytes())
        (folder / old).write_bytes(before)
    elif way == "foreign":
        path.write_bytes((other / name).read_bytes())
    else:
        path.write_bytes(content)


def _load(folder: pathlib.Path) -> tuple[str, pdbo.results.Solution | None]:
    """The messages and the solution from loading a folder."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = pdbo.load(folder, toy_, KEPT["ProximalPDBO"]())
        except pdbo.errors.CheckpointError as error:
            return str(error), None
    return " ".join(str(w.message) for w in said), found


def _resume(folder: pathlib.Path) -> tuple[str, pdbo.results.Solution | None]:
    try:
        return "", run("ProximalPDBO", folder)
    except pdbo.errors.CheckpointError as error:
        return str(error), None


# Values that are not finite


class Poisoned(pdbo.sets.Set):
    """The whole space, with a projection that fails between two readings of the clock."""

    limit: Any
    value: Any

    def _project(self, z: Any) -> Any:
        bad = (z["clock"] > self.limit[0]) & (z["clock"] < self.limit[1])
        return {"clock": z["clock"], "w": jnp.where(bad, self.value, z["w"])}

    def _tangent(self, z: Any, v: Any, ulps: float) -> Any:
        return v


PLACES = ("f", "g", "gradient of f", "gradient of g", "projection", "inner solve")
_NEVER = (np.inf, np.inf)


def clocked(place: str = "", limit: tuple[float, float] = _NEVER, value: float = np.nan) -> Any:
    """A quadratic whose x has a clock that advances with every iteration.

    Between two readings of the clock, `limit`, the given place is not finite.
    """
    data = {name: jnp.asarray(limit if name == place else _NEVER) for name in PLACES}
    data["value"] = jnp.asarray(value)
    x_set = Poisoned(data["projection"], data["value"])
    return pdbo.Problem(_outer, _inner, data, x_set=x_set)


def _bad(x: Any, data: Any, place: str) -> Any:
    return (x["clock"] > data[place][0]) & (x["clock"] < data[place][1])


def _steep(value: Any, bad: Any) -> Any:
    """The same value, with a gradient that is not finite if `bad`."""
    return value + jnp.sqrt(jnp.where(bad, 0 * value, 1.0)) - 1


def _outer(x: Any, y: Any, data: Any) -> Any:
    value = 0.5 * jnp.sum((y - 1) ** 2) + 0.25 * jnp.sum(x["w"] ** 2) - x["clock"]
    value = _steep(value, _bad(x, data, "gradient of f"))
    return value + jnp.where(_bad(x, data, "f"), data["value"], 0.0)


def _inner(x: Any, y: Any, data: Any) -> Any:
    apart = y - 0.5 * x["w"]
    value = 0.5 * jnp.sum(apart**2)
    value = _steep(value, _bad(x, data, "gradient of g"))
    # near the inner solution, which an inner solve reaches
    close = _bad(x, data, "inner solve") & (jnp.sum(apart**2) < 0.05)
    value = _steep(value, close)
    return value + jnp.where(_bad(x, data, "g"), data["value"], 0.0)


CAREFUL = ("AutoPDBO", "Implicit")  # refuse steps to where values are not finite
_LAST = 60  # steps per run, with one record at the end


def nonfinite(
    iterations: Any = range(1, 51), solvers: Any = tuple(SOLVERS), places: Any = PLACES
) -> dict[str, Any]:
    """NaN and Inf from iteration k on, or at iteration k alone, in every place, for every solver.

    The tolerance would accept any finite point and there is one record, at step 60, so a run that
    notices nothing ends in success. It has to end as `nonfinite`, one iteration before the damage
    (an inner solve is damaged one iteration later), and return only finite values. AutoPDBO and
    Implicit refuse steps to points where values are not finite; their runs have to end at a finite
    point.

    A method may never evaluate f or g at one particular iteration; in that case every iteration
    is recorded.
    """
    with jax.enable_x64(True):
        tally: collections.Counter = collections.Counter()
        for name in solvers:
            first, clock = _clock(name)
            for place in places:
                for lasting, value in ((True, np.nan), (True, np.inf), (False, np.nan)):
                    _poison(name, first, clock, place, value, lasting, iterations, tally)
            print(name, dict(tally), flush=True)
    return {"iterations": [min(iterations), max(iterations)], **tally}


def _clock(name: str) -> tuple[pdbo.results.State, np.ndarray]:
    """The start of a solver's run, and the clock at each of its iterations."""
    start = {"clock": jnp.zeros(()), "w": jnp.full(2, 0.5)}, jnp.full(2, 0.7)
    clean = clocked()
    first = launch(clean, *start, SOLVERS[name](), jax.random.key(0))
    read = lambda x, y: {"clock": x["clock"]}
    path = pdbo.solve(clean, state=first, steps=_LAST, every=1, tol=0, observe=read, throw=False)
    return first, np.concatenate([[0.0], path.history["clock"]])


def _poison(
    name: str,
    first: pdbo.results.State,
    clock: np.ndarray,
    place: str,
    value: float,
    lasting: bool,
    iterations: Any,
    tally: Any,
) -> None:
    for k in iterations:
        over = k + 1 >= len(clock)  # the run ends by itself before
        if over or not clock[k] > np.max(clock[:k]):  # not every method moves x at every iteration
            tally["no such iteration"] += 1
            continue
        low = 0.5 * (np.max(clock[:k]) + clock[k])
        high = 0.5 * (clock[k] + clock[k + 1]) if clock[k + 1] > clock[k] else np.inf
        limit = (low, np.inf if lasting else high)
        every = 1 if not lasting and place in ("f", "g") else _LAST
        tol = 0.0 if every == 1 else 1e9
        found = pdbo.solve(
            clocked(place, limit, value), state=first, steps=_LAST, every=every, tol=tol,
            throw=False,
        )  # fmt: skip
        what = f"{name}, {place} {value} at iteration {k}{' on' if lasting else ''}"
        at = np.asarray(found.x["clock"])
        point = jax.tree.leaves((found.x, found.y, found.f, found.g))
        if not np.all(np.isfinite([np.max(np.abs(part)) for part in point])):
            raise Fault(f"{what}: the point returned is not finite")
        late = place == "inner solve"
        if name in CAREFUL:
            # if the inner solution at a point is damaged, so is its certificate, which says so
            fails = found.result is RESULTS.nonfinite and not late
            if fails or (lasting and at > low and not late):
                raise Fault(f"{what}: {found.message}")
            tally[f"refused by {name}"] += 1
            continue
        ahead = name == "ProximalPDBO"  # its clock is an average, which lags behind the iterates
        if found.result is not RESULTS.nonfinite:
            if lasting or not (late or ahead):
                raise Fault(f"{what}: {found.result.name}")
            # an inner solve that was not close enough, or iterates past the damage
            tally["elsewhere at that time"] += 1
            continue
        # the certificate's own inner solve may be damaged, too, and it says so
        if found.ok or not (late or np.isfinite(found.certificate.eps)):
            raise Fault(f"{what}: no finite certificate")
        early = ahead and found.steps < k - 1 and at < low
        if found.steps != k - 1 and not early and not (late and found.steps >= k - 1):
            raise Fault(f"{what}: reported at iteration {found.steps + 1}")
        if f"Failed at iteration {found.steps + 1}:" not in found.message:
            raise Fault(f"{what}: {found.message}")
        tally[f"nonfinite: {place}"] += 1


# Codes


def codes() -> dict[str, Any]:
    """Result codes of unbounded problems, empty sets, runaway multipliers and used-up budgets."""
    square = lambda x, y: 0.5 * (y - x) ** 2
    line = pdbo.Problem(lambda x, y: x + 0 * y, square)
    flat = pdbo.Problem(lambda x, y: 0.5 * (y - 1) ** 2 + 0 * x, lambda x, y: 0.5 * y**2 + 0 * x)
    steep = pdbo.PDBO(primal_step=0.0, dual_step=1e9, inner_step=1.0, smoothing=0.0)
    expected = {
        "f falls along a line": (line, pdbo.PDBO(), RESULTS.diverged),
        "f falls along a line, AutoPDBO": (line, None, RESULTS.diverged),
        "f falls like a square": (pdbo.Problem(lambda x, y: -(x**2) + 0 * y, square), pdbo.PDBO(),
                                  RESULTS.diverged),
        "f falls like a fourth power": (pdbo.Problem(lambda x, y: -(x**4) + 0 * y, square),
                                        pdbo.PDBO(), RESULTS.diverged),
        "g falls along a line": (pdbo.Problem(lambda x, y: (x - 1) ** 2, lambda x, y: x * y),
                                 pdbo.PDBO(), RESULTS.diverged),
        "g falls like a square": (pdbo.Problem(lambda x, y: (x - 1) ** 2, lambda x, y: -(y**2)),
                                  pdbo.PDBO(), RESULTS.diverged),
        "the multiplier runs away": (flat, steep, RESULTS.multiplier_diverged),
        "the budget is used up": (toy_, pdbo.PDBO(), RESULTS.max_steps),
        "a minimum far away": (pdbo.Problem(lambda x, y: 1e-4 * (x - 1e4) ** 2 + 0 * y, square),
                               pdbo.PDBO(), RESULTS.max_steps),
    }  # fmt: skip
    found = {}
    for name, (problem, solver, code) in expected.items():
        budget = {"steps": 7} if code is RESULTS.max_steps and problem is toy_ else {}
        x0, y0 = (2.0, jnp.array([0.5, 0.5])) if problem is toy_ else (1.0, 1.0)
        began = time.perf_counter()
        solution = pdbo.solve(problem, x0, y0, solver, throw=False, **budget)
        seconds = time.perf_counter() - began
        if solution.result is not code:
            raise Fault(f"{name}: {solution.message}")
        found[name] = {"code": code.name, "steps": int(solution.steps), "seconds": seconds}
    empty = [
        lambda: pdbo.Box(1.0, -1.0), lambda: pdbo.Ball(-1.0), lambda: pdbo.Simplex(-1.0),
        lambda: pdbo.Halfspace(0.0, -1.0), lambda: pdbo.Affine([[1.0], [1.0]], [0.0, 1.0]),
    ]  # fmt: skip
    for make in empty:
        try:
            make()
        except pdbo.ProblemError:
            continue
        raise Fault("an empty set was accepted")

    def boxed(low: Any) -> Any:
        """A run with bounds known only inside the compiled program."""
        problem = pdbo.Problem(lambda x, y: x**2 + y**2, square, x_set=pdbo.Box(low, 1.0))
        return pdbo.solve(problem, jnp.ones(()), jnp.ones(()), pdbo.PDBO(), steps=5).code

    seen = jax.jit(jax.vmap(boxed))(jnp.array([0.0, 2.0]))
    if [int(c) for c in seen] != [RESULTS.max_steps, RESULTS.bad_problem]:
        raise Fault(f"an empty set under vmap has the codes {seen}")
    return {"codes": found, "empty sets refused": len(empty) + 1}


# Disks


@contextlib.contextmanager
def _small_disk() -> Iterator[pathlib.Path | None]:
    """A file system of 128 KB, or None if none can be mounted."""
    with tempfile.TemporaryDirectory() as place:
        command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", place]
        mounted = shutil.which("mount") and subprocess.run(command, capture_output=True)
        if not mounted or mounted.returncode:
            yield None
            return
        try:
            yield pathlib.Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def _fill_up(folder: pathlib.Path) -> tuple[list[str], int]:
    """A run in a folder that gets full; return the warnings and the last good step."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        whole = run("PDBO", folder, steps=4000)
    if contents(whole) != contents(run("PDBO", steps=4000)):
        raise Fault("a full disk changed the run")
    last = pdbo.load(folder, toy_, KEPT["PDBO"]())
    return sorted({str(w.message).partition(": ")[2] for w in said}), int(last.steps)


_UNPRIVILEGED = """
import os, sys, pathlib
import jax.numpy as jnp
from benchmarks import reliability
import pdbo
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)
try:
    reliability.run("PDBO", sys.argv[1], steps=40)
except pdbo.errors.CheckpointError as error:
    print(error)
"""


def disk() -> dict[str, Any]:
    """A full disk, a limit on file sizes and a read-only folder."""
    results: dict[str, Any] = {}
    with _small_disk() as small:
        if small is None:
            results["full disk"] = "no file system could be mounted"
        else:
            said, last = _fill_up(small)
            if not said or not all("No space left on device" in s for s in said):
                raise Fault(f"a full disk was answered with {said}")
            results["full disk"] = {"said": said, "last good step": last}
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place) / "limited"
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
        try:
            said, last = _fill_up(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        if not said or not all("File too large" in s for s in said):
            raise Fault(f"a limit on files was answered with {said}")
        results["files too large"] = {"said": said, "last good step": last}

        folder = pathlib.Path(place) / "read-only"
        run("PDBO", folder, steps=20)
        before_ = {p.name: p.read_bytes() for p in folder.iterdir()}
        pathlib.Path(place).chmod(0o755)
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        root = pathlib.Path(__file__).parents[1]
        done = subprocess.run(
            [sys.executable, "-c", _UNPRIVILEGED, folder],
            capture_output=True, text=True, cwd=root,
        )  # fmt: skip
        folder.chmod(0o755)
        sentence = done.stdout.strip()
        if f"{folder} cannot be written to: Permission denied." != sentence:
            raise Fault(f"a read-only folder was answered with {sentence} {done.stderr}")
        if {p.name: p.read_bytes() for p in folder.iterdir()} != before_:
            raise Fault("a read-only folder was changed")
        results["read-only folder"] = sentence.replace(str(folder), "FOLDER")
    return results


def commands(count: int = 10_000) -> dict[str, Any]:
    """Invalid command lines and problem files, from `benchmarks.fuzz`."""
    with tempfile.TemporaryDirectory() as place:
        found = fuzz.run(count, 0, pathlib.Path(place))
    if found["wrong"]:
        raise Fault(f"commands: {found['wrong']}")
    return found


PARTS = {p.__name__: p for p in (kills, damage, nonfinite, codes, disk, commands)}


def main() -> None:
    """Run the parts named, or all, and write the record."""
    names = sys.argv[1:] or list(PARTS)
    path = FOLDER / "reliability.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in names:
        began = time.perf_counter()
        results[name] = PARTS[name]() | {"seconds": round(time.perf_counter() - began)}
        print(name, json.dumps(results[name], indent=1), flush=True)
        print("written to", write("reliability", {"seed": 0}, results))


if __name__ == "__main__":
    main()
