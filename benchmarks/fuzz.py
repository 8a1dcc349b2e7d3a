"""Fuzzing: invalid command lines, problem files and records for the command.

Whatever the input, the command must exit with one of its documented codes, show no traceback, give
the reason in a line that begins with its name, and write nothing outside its output folder. A case
depends on its number and the seed alone. It runs in its own process, forked from one that has
imported everything; every hundredth starts a new Python, as a user does. To run ten thousand cases
in minutes, experiments are replaced by a finished one, and only one in ten of the problem files
that reach the solver is solved.

    python -m benchmarks.fuzz --count 10000
"""

import argparse
import concurrent.futures
import io
import json
import multiprocessing
import os
import pathlib
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

CODES = (0, 1, 2, 3, 130, 143)
LIMIT = 300.0  # seconds; a case that takes longer is killed and counts as wrong
COLD = 100  # one case in this many starts a new Python

PROBLEM = """
import jax.numpy as jnp
import pdbo

problem = pdbo.Problem(
    lambda x, y: 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2),
    lambda x, y: 0.5 * y[0] ** 2 - x * y[0],
    x_set=pdbo.Box(-3.0, 3.0),
)
x0, y0 = 2.0, jnp.array([0.5, 0.5])
"""
WORDS = (
    "", " ", "0", "1", "-1", "1.5", "1e400", "nan", "inf", "-inf", "9" * 30, "9" * 5000, "a" * 300,
    "a" * 5000, "\n", "a\nb", "\x1b[31mred", "\0", "\t", "ü", "💥", "\udcff", "..", "/dev/null",
    "/dev/null/x", "/proc/nowhere", "[", "[" * 2000, "[1, 2]", "[[1], [2, 3]]", "{}", '{"a": 1}',
    '{"a": [1, 2], "b": 3}', "null", "true", '"text"', "[null]", "1,2", "$(touch x)", "; touch x",
    "%s%n", "--", "-", "=", ":", "a:b", "mine.py", "mine.py:", ":problem", "mine.py:problem",
    "mine.py:problme", "mine.py:x0", "mine.py:problem:problem", "./mine.py:problem", "mine.py:1",
    "folder", "folder:problem", "folder/paths", "thesis.tex", "thesis.tex:a", "toy", "paths", "tyo",
    "digits", "solve", "AutoPDBO", "PDBO", "Newton", "Calls", "__import__('os')",
)  # fmt: skip
OPTIONS = {
    "reproduce": ("--quick", "--seed", "--out", "--data", "--resume", "--help"),
    "list": ("--help",),
    "solve": ("--x0", "--y0", "--solver", "--steps", "--tol", "--every", "--seed", "--out",
              "--force", "--help"),
    "report": ("--help",),
}  # fmt: skip
ALONE = ("--quick", "--resume", "--force", "--help", "--debug", "-h", "--version")
OUTS = ("out", "out/deep/er", "../beside/out", "folder", "empty", "thesis.tex", "thesis.tex/x")
OUTER = (
    "x + y", "0.0", "jnp.sum(y) * x", "jnp.log(x)", "jnp.nan", "1 / 0", "'text'", "None", "x", "y",
    "sys.exit(7)", "boom()", "jnp.ones(3)", "jnp.sum(y ** 2) + x ** 2", "x @ y", "y[5]", "int(x)",
    "(x, y)", "jnp.exp(1e9 * x)", "-x ** 2 - jnp.sum(y ** 2)", "f(x, y)", "1j * x",
)  # fmt: skip
STARTS = (
    "0.0", "2.0", "'two'", "None", "[]", "[1, 2]", "jnp.array([0.5, 0.5])", "jnp.nan", "jnp.inf",
    "10 ** 400", "{'a': 1.0}", "object()", "lambda: 1", "jnp.zeros((0,))", "jnp.zeros((2, 2))",
    "1j", "True", "b'bytes'", "jnp.arange(3)", "(1.0, (2.0,))",
)  # fmt: skip
SETS = (
    "pdbo.Free()", "pdbo.Box(-1.0, 1.0)", "pdbo.Box(1.0, -1.0)", "None", "3", "pdbo.Ball(-1.0)",
    "pdbo.Simplex(1.0)", "pdbo.Box(0.0, float('nan'))", "object()", "pdbo.Product({})",
)  # fmt: skip
LINES = (
    "raise KeyboardInterrupt", "raise SystemExit(5)", "raise BaseException('odd')", "1 / 0",
    "import nowhere", "raise RecursionError", "import sys; sys.exit()", "def a(): a()\na()",
    "raise Exception('two\\nlines')", "x0 = x0, x0", "del x0", "problem = [problem]", "pdbo = None",
    "import warnings; warnings.warn('beware')", "raise MemoryError", "assert False", "print('hi')",
    "import sys; sys.stdout = None", "import sys; sys.stderr.write('noise')", "exec('y0 = 3')",
)  # fmt: skip
SCRAPS = (b"\0", b"\xff", b"\xfe\xff", b"(", b")", b"'", b"\\", b"\n", b"\t", b"lambda", b"=", b"0")


def case(seed: int, index: int) -> dict[str, Any]:
    """One case: its kind, arguments and files."""
    draw = random.Random(f"{seed}/{index}")
    kind = draw.choices(("line", "file", "problem", "record"), (45, 25, 15, 15))[0]
    made: dict[str, Any] = {
        "kind": kind, "source": PROBLEM.encode(), "record": None,
        "solves": draw.random() < 0.1, "cold": index % COLD == COLD // 2,
    }  # fmt: skip
    if kind == "line":
        made["arguments"] = _line(draw)
    elif kind == "record":
        made["record"] = draw.randrange(2**32)
        made["arguments"] = draw.choice(
            (["report", "folder"], ["reproduce", "paths", "--quick", "--resume", "--out", "folder"])
        )
    else:
        made["source"] = _mutated(draw) if kind == "file" else _written(draw)
        made["arguments"] = ["solve", "mine.py:problem", "--steps", "3", "--solver", "PDBO"]
        if draw.random() < 0.3:
            made["arguments"] += [draw.choice(("--x0", "--y0")), draw.choice(WORDS)]
    if made["cold"]:  # a command line cannot hold this character
        made["arguments"] = [a.replace("\0", "") for a in made["arguments"]]
    return made


def _line(draw: random.Random) -> list[str]:
    command = draw.choice(tuple(OPTIONS))
    found = [command if draw.random() < 0.9 else draw.choice(WORDS)]
    if draw.random() < 0.05:
        found.insert(0, draw.choice(ALONE))
    if command == "solve" and draw.random() < 0.7:
        found.append("mine.py:problem")
    if command == "report" and draw.random() < 0.5:
        found.append(draw.choice(OUTS))
    for _ in range(draw.randrange(5)):
        option = draw.choice((*OPTIONS[command], *draw.choices(WORDS, k=2)))
        value = draw.choice(OUTS) if option == "--out" else draw.choice(WORDS)
        if option in ALONE or not option.startswith("--") or draw.random() < 0.1:
            found.append(option)
        else:
            found += [f"{option}={value}"] if draw.random() < 0.2 else [option, value]
    return found


def _mutated(draw: random.Random) -> bytes:
    """The problem file with a few bytes changed."""
    source = bytearray(PROBLEM.encode())
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(source) + 1)
        what = draw.randrange(4)
        if what == 0:
            source[at:at] = draw.choice(SCRAPS)
        elif what == 1:
            del source[at : at + draw.randint(1, 20)]
        elif what == 2 and at < len(source):
            source[at] = draw.randrange(256)
        else:
            other = draw.randrange(len(source) + 1)
            source[at:at] = source[other : other + 15]
    return bytes(source)


def _written(draw: random.Random) -> bytes:
    """A problem file that is Python, with functions, sets, starts and lines of all sorts."""
    f, g = (draw.choice(OUTER) for _ in "fg")
    x_set, y_set = (draw.choice(SETS) if draw.random() < 0.3 else "pdbo.Free()" for _ in "xy")
    x0 = draw.choice(STARTS) if draw.random() < 0.5 else "2.0"
    y0 = draw.choice(STARTS) if draw.random() < 0.5 else "jnp.array([0.5, 0.5])"
    lines = [
        "import sys", "import jax.numpy as jnp", "import pdbo",
        "class Boom(BaseException): ...", "def boom(): raise Boom('bang')",
        f"f = lambda x, y: {f}",
        f"problem = pdbo.Problem(f, lambda x, y: {g}, x_set={x_set}, y_set={y_set})",
        f"x0, y0 = {x0}, {y0}",
    ]  # fmt: skip
    if draw.random() < 0.3:
        lines.insert(draw.randint(3, len(lines)), draw.choice(LINES))
    return "\n".join(lines).encode()


def damage(folder: pathlib.Path, number: int) -> None:
    """Damage a record: bits, lengths, types, with or without a matching checksum."""
    from pdbo._sealed import seal

    draw = random.Random(number)
    path = folder / draw.choice(("record.json", "arrays.npz", "times.json"))
    what = draw.randrange(6)
    if what == 0:
        path.unlink()
        if draw.random() < 0.5:
            path.mkdir()
    elif what == 1:
        path.write_bytes(path.read_bytes()[: draw.randrange(2000)])
    elif what == 2:
        raw = bytearray(path.read_bytes())
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        path.write_bytes(raw)
    elif what == 3:
        path.write_text(draw.choice(("[]", "null", "3", '"a"', "{}", "[" * 99999, '{"sha256": 0}')))
    else:
        path = folder / draw.choice(("record.json", "times.json"))
        body = json.loads(path.read_text())
        del body["sha256"]
        key = draw.choice(sorted(body))
        body[key] = draw.choice((None, [], {}, 3, -1.5, "text", True, {"a": []}, [[{}]], "x" * 400))
        if draw.random() < 0.2:
            del body[key]
        path.write_bytes(seal(body))


def _prepare(folder: pathlib.Path, made: dict[str, Any], finished: pathlib.Path) -> pathlib.Path:
    """Make the folder a case runs in: a problem, a record and an unrelated file."""
    work = folder / "work"
    (work / "empty").mkdir(parents=True)
    (work / "mine.py").write_bytes(made["source"])
    (work / "thesis.tex").write_text("mine")
    shutil.copytree(finished / "paths", work / "folder" / "paths")
    if made["record"] is not None:
        damage(work / "folder" / "paths", made["record"])
    return work


def _outputs(arguments: list[str], work: pathlib.Path) -> list[pathlib.Path]:
    """The folders that these arguments allow the command to write to."""
    found = ["results", "solution"]
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        found += [value] if option == "--out" or "report" in arguments else []
        found += [option[6:]] if option.startswith("--out=") else []
    return [pathlib.Path(os.path.normpath(work / f.replace("\0", ""))) for f in found]


def _inside(path: pathlib.Path, folders: list[pathlib.Path], making: bool) -> bool:
    """Whether a path is in an output folder or, if `making` folders, a parent of one."""
    return any(f == path or f in path.parents or (making and path in f.parents) for f in folders)


def _listing(folder: pathlib.Path, folders: list[pathlib.Path]) -> dict[str, bytes]:
    """All files outside the output folders, with their contents."""
    return {
        str(p): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not _inside(p, folders, False) and "__pycache__" not in p.parts
    }


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _watch(folders: list[pathlib.Path], log: int) -> None:
    """Log every attempt of this process to write anywhere else."""
    making = {"os.mkdir", "os.rmdir"}
    changing = {"os.remove", "os.rename", "os.link", "os.symlink", "os.truncate", *making}

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = details
            if not isinstance(path, str | bytes | os.PathLike) or not (flags or 0) & _WRITES:
                return
        elif event in changing:
            path = details[0]
        else:
            return
        place = pathlib.Path(os.path.abspath(os.fsdecode(path)))
        if str(place) != os.devnull and not _inside(place, folders, event in making):
            os.write(log, f"{event} {place}\n".encode(errors="backslashreplace"))

    sys.addaudithook(hook)


def _child(made: dict[str, Any], work: pathlib.Path, outputs: list[pathlib.Path], log: int) -> None:
    """Run a case in this process; the process then ends."""
    os.environ["PDBO_CACHE"] = ""  # compiled programs would be written elsewhere
    import pdbo
    from pdbo.app import cli, records, runner

    def finished(module: Any, name: str, seed: int, quick: bool, track: Any, **_: Any) -> Any:
        if name != "paths":
            raise RuntimeError("it is not run here")
        return record

    def unsolved(*_: Any, **__: Any) -> Any:
        raise pdbo.ProblemError("it is not solved here.")

    record = records.read(work / "folder" / "paths") if made["record"] is None else None
    runner.run = finished
    if not made["solves"]:
        pdbo.solve = unsolved
    os.chdir(work)
    _watch(outputs, log)
    cli.main(made["arguments"])


def _forked(made: dict[str, Any], work: pathlib.Path, outputs: list[pathlib.Path]) -> int | str:
    """The exit code of a case run in a fork of this process, or a message if it was killed."""
    log = os.open(work.parent / "log", os.O_WRONLY | os.O_CREAT)
    files = [os.open(work.parent / n, os.O_WRONLY | os.O_CREAT) for n in ("stdout", "stderr")]
    child = os.fork()
    if not child:
        try:
            for target, file in enumerate(files, 1):
                os.dup2(file, target)
            sys.stdout, sys.stderr = (
                io.TextIOWrapper(io.FileIO(n, "wb", closefd=False), "utf-8", write_through=True)
                for n in (1, 2)
            )
            _child(made, work, outputs, log)
        except SystemExit as error:
            os._exit(error.code if isinstance(error.code, int) else 99)
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(99)
    for handle in (log, *files):
        os.close(handle)
    ended = os.pidfd_open(child)
    ready = select.select([ended], [], [], LIMIT)[0]
    os.close(ended)
    if not ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if ready else f"no answer in {LIMIT:.0f} s"


def _cold(made: dict[str, Any], work: pathlib.Path) -> int | str:
    """The exit code of a case run as a user runs it, except long runs."""
    arguments = made["arguments"]
    if arguments[:1] == ["reproduce"] and made["kind"] == "line":
        arguments = [*arguments, "quux"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pdbo", *arguments], capture_output=True, cwd=work, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {LIMIT:.0f} s"
    (work.parent / "stderr").write_bytes(done.stderr)
    (work.parent / "log").touch()
    return done.returncode


def check(seed: int, index: int, finished: pathlib.Path) -> tuple[str, int | str, list[str]]:
    """Run a case; return its kind, its exit code and its faults."""
    made = case(seed, index)
    with tempfile.TemporaryDirectory(prefix=f"case-{index}-") as name:
        folder = pathlib.Path(name).resolve()
        work = _prepare(folder, made, finished)
        outputs = _outputs(made["arguments"], work)
        before = _listing(work, outputs)
        code = _cold(made, work) if made["cold"] else _forked(made, work, outputs)
        errors = (folder / "stderr").read_text(errors="replace")
        wrong = [f"wrote: {line}" for line in (folder / "log").read_text().splitlines()]
        if code not in CODES:
            wrong.append(f"exited with {code}")
        asked = "--debug" in made["arguments"]
        if "Traceback (most recent call last)" in errors and not asked:
            wrong.append("traceback")
        if code != 0 and "pdbo: " not in errors:
            wrong.append("no reason given")
        if _listing(work, outputs) != before:
            wrong.append("changed a file outside its output folder")
        return made["kind"], code, [f"{w} ({errors.strip()[-300:]})" for w in wrong]


def _chunk(seed: int, indices: list[int], finished: pathlib.Path) -> list[Any]:
    """Run some cases, forked from a process that has imported everything."""
    import matplotlib.figure  # noqa: F401

    from pdbo import solve  # noqa: F401
    from pdbo.app import cli, report, user  # noqa: F401

    return [(index, *check(seed, index, finished)) for index in indices]


def run(count: int, seed: int, folder: pathlib.Path) -> dict[str, Any]:
    """Run `count` cases; the result says how they ended and names those that went wrong.

    If `folder / "finished"` holds a run of the experiment paths, it is used.
    """
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pdbo", "reproduce", "paths", "--quick", "--out"]
    finished = folder / "finished"
    if not finished.exists():
        subprocess.run([*command, finished], check=True, capture_output=True)
    workers = len(os.sched_getaffinity(0))
    chunks = list(_chunks(count, max(1, min(100, count // workers))))
    context = multiprocessing.get_context("spawn")
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    wrong = {}
    os.environ["TMPDIR"] = str(folder)  # the cases run there
    with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
        work = [pool.submit(_chunk, seed, indices, finished) for indices in chunks]
        for future in concurrent.futures.as_completed(work):
            for index, kind, code, faults in future.result():
                kinds[kind] += 1
                codes[str(code)] += 1
                if faults:
                    wrong[index] = faults
            print(f"\r{sum(kinds.values()):,} of {count:,}, {len(wrong)} wrong", end="", flush=True)
    print()
    return {
        "cases": count,
        "from nothing": count // COLD,
        "kinds": dict(sorted(kinds.items())),
        "exit codes": dict(sorted(codes.items())),
        "wrong": {str(k): wrong[k] for k in sorted(wrong)},
        "seconds": time.perf_counter() - start,
    }


def _chunks(count: int, size: int) -> Iterator[list[int]]:
    for first in range(0, count, size):
        yield list(range(first, min(first + size, count)))


def main() -> None:
    """Run, show what went wrong and, if asked, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=pathlib.Path, help="the folder to work in")
    parser.add_argument("--show", type=int, help="show this case and run nothing")
    parser.add_argument("--keep", action="store_true", help="write the record")
    options = parser.parse_args()
    if options.show is not None:
        print(case(options.seed, options.show))
        return
    with tempfile.TemporaryDirectory() as name:
        results = run(options.count, options.seed, options.folder or pathlib.Path(name))
    print(json.dumps(results, indent=1))
    if options.keep:
        from .record import write

        print("written to", write("fuzz", {"count": options.count, "seed": options.seed}, results))
    sys.exit(1 if results["wrong"] else 0)


if __name__ == "__main__":
    main()
