"""The command `pdbo`. Whatever needs JAX or matplotlib is imported once it is needed."""

import contextlib
import difflib
import io
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer

from .. import __version__
from .._errors import ProblemError, brief
from .._signals import Terminated, leave, leave_at_once
from ..experiments import EXPERIMENTS, PROBLEMS

OK, FAILED, BAD_INPUT, LOST, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143
CHECKPOINT = "checkpoint"
RECORD_FILES = ("record.json", "arrays.npz", "times.json")
MOST = 2**31 - 1
DEEPEST = 32  # lists within lists, in a start
EXIT_CODES = (
    "Exit codes: 0 all went well, 1 a run failed or was not certified, 2 bad input, "
    "3 another process of the run was lost, 130 interrupted, 143 terminated."
)
_NOT_SOLVERS = ("Calls", "Point", "Solver")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


class InputError(ProblemError):
    """What was asked for cannot be done; the message is one sentence."""


class Interrupted(Exception):
    """A run was interrupted or terminated; the message says how to carry on."""

    def __init__(self, cause: BaseException, again: str):
        self.code = TERMINATED if isinstance(cause, Terminated) else INTERRUPTED
        word = "terminated" if self.code == TERMINATED else "interrupted"
        super().__init__(f"{word}; carry on with: {again}")


class RunError(Exception):
    """A run failed; the message is one sentence."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever a file is called can be said
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)
    warnings.showwarning = lambda message, *_, **__: _complain(str(message), OK)
    code = run(sys.argv[1:] if arguments is None else list(arguments))
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BrokenPipeError:
        os._exit(code)  # who read the output is gone
    except OSError as error:
        # a reason already given is mostly this one
        os._exit(code or _complain(f"the output cannot be written: {error.strerror}.", FAILED))
    if code in (INTERRUPTED, TERMINATED):  # a compilation cut short can crash the teardown
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command; every error is one sentence on standard error."""
    try:
        result = app(arguments, prog_name="pdbo", standalone_mode=False)
        if result == INTERRUPTED:  # by typer, which says nothing
            raise KeyboardInterrupt
        return result if isinstance(result, int) else OK
    except Interrupted as error:
        return _complain(str(error), error.code)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted.", INTERRUPTED)
    except Terminated:
        return _complain("terminated.", TERMINATED)
    except InputError as error:
        return _complain(str(error), BAD_INPUT)
    except RunError as error:
        return _complain(str(error), FAILED)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # who read the output is gone
            return OK
        raise
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error: wrong option, wrong number
            text = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
            return _complain(text, BAD_INPUT) if text else BAD_INPUT
        if os.environ.get("PDBO_DEBUG"):
            raise
        if isinstance(error, OSError) and error.strerror:
            where = f"{error.filename}: " if error.filename else ""
            return _complain(f"{where}{error.strerror}.", FAILED)
        return _complain(f"{brief(error)} (PDBO_DEBUG=1 shows where).", FAILED)


def _complain(sentence: str, code: int) -> int:
    _say(f"pdbo: {_one_line(sentence)}", err=True, fg="red")
    return code


def _say(text: str, err: bool = False, **look: Any) -> None:
    """Print, in colour where that is wanted: https://no-color.org."""
    typer.secho(text, err=err, color=False if os.environ.get("NO_COLOR") else None, **look)


def _one_line(text: str) -> str:
    """A sentence as a terminal can show it, whatever names it holds."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    text = re.sub(r"(\S{150})\S{80,}(\S{40})", r"\1...\2", text)
    return text if len(text) <= 2000 else f"{text[:2000]}..."


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pdbo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")
    ] = False,
) -> None:
    """Bilevel optimisation where the inner problem has many minima: reproduce the paper, solve."""
    if debug:
        os.environ["PDBO_DEBUG"] = "1"


Out = Annotated[pathlib.Path, typer.Option(help="The folder to write to.", metavar="DIR")]
Seed = Annotated[int, typer.Option(help="The seed of every random draw.", min=0, max=MOST)]


@app.command(epilog=EXIT_CODES)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiments; without any, the short ones that need no download.", metavar="NAMES"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller runs, under a minute.")] = False,
    seed: Seed = 0,
    out: Out = pathlib.Path("results"),
    data: Annotated[
        pathlib.Path | None,
        typer.Option(help="A folder of data sets, for those that read any.", metavar="DIR"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Carry on in a folder; what is finished is kept.")
    ] = False,
) -> int:
    """Reproduce the paper: run experiments, draw the figures, write the page."""
    wanted = _experiments(names or [])
    if data is not None and not _is(data, "dir"):
        raise InputError(f"--data must be a folder, got {data}.")
    _check_folder(out, resume, "carry on there with --resume", wanted)
    _need("matplotlib", *sorted({m for n in wanted for m in EXPERIMENTS[n].needs}))
    from .runner import reproduce

    if resume:
        _check_same_run(out, seed, quick)
    _get_ready()
    try:
        failures = reproduce(wanted, seed, quick, out, data, bool(os.environ.get("PDBO_DEBUG")))
    except (KeyboardInterrupt, Terminated) as cause:
        options = f"{' --quick' if quick else ''} --seed {seed} --out {shlex.quote(str(out))}"
        options += f" --data {shlex.quote(str(data))}" if data else ""
        again = " ".join(["pdbo reproduce", *(names or [])]) + f"{options} --resume"
        raise Interrupted(cause, again) from None
    for failure in failures:
        _complain(failure, FAILED)
    damaged = _report(out) if len(failures) < len(wanted) else OK
    return FAILED if failures else damaged


@app.command("list", epilog=EXIT_CODES)
def list_() -> None:
    """List experiments, problems and solvers."""
    _say("experiments", bold=True)
    for name, experiment in EXPERIMENTS.items():
        data = f"{experiment.data}, downloaded" if experiment.download else experiment.data
        note = f" ({data})" if data else ""
        _say(_wrapped(f"{name:<12}{experiment.text}{note}", 14))
    for title, found in (("problems", PROBLEMS), ("solvers", sorted(_solvers()))):
        _say(title, bold=True)
        _say(_wrapped(", ".join(found), 2))


@app.command(epilog=EXIT_CODES)
def solve(
    target: Annotated[
        str, typer.Argument(help="A Python file and a name.", metavar="FILE.py:NAME")
    ],
    x0: Annotated[str | None, typer.Option(help="The start of x, as JSON.")] = None,
    y0: Annotated[str | None, typer.Option(help="The start of y, as JSON.")] = None,
    solver: Annotated[str | None, typer.Option(help="A solver's name.")] = None,
    steps: Annotated[int, typer.Option(help="The most iterations.", min=1, max=MOST)] = 10_000,
    tol: Annotated[float, typer.Option(help="The certificate's eps to reach.")] = 1e-4,
    every: Annotated[
        int, typer.Option(help="Iterations between two records.", min=1, max=MOST)
    ] = 100,
    seed: Seed = 0,
    out: Out = pathlib.Path("solution"),
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier record.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Carry on from the last checkpoint in the folder.")
    ] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed", help="Split the data over the devices of all processes of this run."
        ),
    ] = False,
    address: Annotated[
        str | None, typer.Option(help="Where process 0 is.", metavar="HOST:PORT")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many processes there are.", min=1, max=MOST)
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Which of them this is, from 0 on.", min=0, max=MOST)
    ] = None,
    heartbeat: Annotated[
        float | None,
        typer.Option(help="Seconds without a sign of life after which a process is lost; 30."),
    ] = None,
) -> int:
    """Solve a problem of your own: print its certificate, keep a record, a figure and a page.

    NAME is a pdbo.Problem in the file. The start is given by --x0 and --y0, or by x0 and y0 in the
    file. A checkpoint is written every minute and when the run is interrupted.

    With --distributed the same command is started once for each process. SLURM, Kubernetes and Open
    MPI say which is which; elsewhere give --processes and --rank, and --address where they are on
    several machines.
    """
    path, name = _target(target)
    given = {k: _start(k, v) for k, v in (("x0", x0), ("y0", y0)) if v is not None}
    chosen = _solver_name(solver)
    if not 0 <= tol < math.inf:
        raise InputError(f"--tol must be a finite number >= 0, got {tol}.")
    if force and resume:
        raise InputError("--force starts anew and --resume carries on: give one of them.")
    remedy = "carry on there with --resume or replace what is there with --force"
    _need("matplotlib")
    options = {"address": address, "processes": processes, "rank": rank, "heartbeat": heartbeat}
    try:
        with _together(distributed, {k: v for k, v in options.items() if v is not None}) as rank:
            if rank == 0:
                _check_folder(out, force or resume, remedy, ["solve"])
            from .user import solve_file

            _get_ready()
            failure = solve_file(
                path, name, given, chosen, steps=steps, tol=tol, every=every, seed=seed, out=out,
                checkpoint=out / CHECKPOINT, resume=resume, fail=InputError,
                rank=rank if distributed else None,
            )  # fmt: skip
            code = _report(out) if rank == 0 else OK
    except (KeyboardInterrupt, Terminated) as cause:
        raise Interrupted(cause, _again()) from None
    if failure:
        raise RunError(failure)
    return code


@contextlib.contextmanager
def _together(distributed: bool, options: dict[str, Any]) -> Iterator[int]:
    """The rank of this process among those of the run; 0 where it is alone."""
    if not distributed:
        if options:
            raise InputError(f"--{next(iter(options))} needs --distributed.")
        yield 0
        return
    from .._hosts import distributed as join

    with contextlib.ExitStack() as stack:
        try:
            rank = stack.enter_context(join(**options))
        except ProblemError as error:
            raise InputError(str(error)) from None
        yield rank


@app.command(epilog=EXIT_CODES)
def report(
    folder: Annotated[pathlib.Path, typer.Argument(help="A folder of records.", metavar="DIR")],
) -> int:
    """Rebuild figures and page from the records in a folder."""
    if not _is(folder, "dir"):
        raise InputError(f"{folder} is not a folder.")
    _check_pages(folder)
    _check_writable(folder)
    _need("matplotlib")
    return _report(folder)


def _get_ready() -> None:
    """Import what every run needs; from here on the run itself answers an interrupt."""
    import jax  # noqa: F401
    import matplotlib.figure  # noqa: F401

    from .. import solve  # noqa: F401

    if signal.getsignal(signal.SIGINT) is leave_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _again() -> str:
    """The command line that carries on."""
    given = [a for a in sys.argv[1:] if a not in ("--force", "--resume")]
    return shlex.join(["pdbo", *given, "--resume"])


def _report(folder: pathlib.Path) -> int:
    """Build the page and say where it is; damaged records are named, and bad input."""
    from .records import RecordError
    from .report import build

    try:
        page, damaged = build(folder)
    except RecordError as error:
        raise InputError(str(error)) from None
    if page is not None:
        _say(str(page))
    for sentence in damaged:
        _complain(sentence, BAD_INPUT)
    return BAD_INPUT if damaged else OK


def _experiments(names: list[str]) -> list[str]:
    if not names:
        return [n for n, e in EXPERIMENTS.items() if not e.by_name]
    for name in names:
        if name not in EXPERIMENTS:
            raise InputError(_unknown("experiment", name, EXPERIMENTS))
    return [n for n in EXPERIMENTS if n in names]


def _unknown(what: str, name: str, known: Any) -> str:
    spelled = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), spelled, 1, 0.5)
    hint = f"did you mean {spelled[close[0]]}?" if close else f"there are {', '.join(known)}."
    return f"there is no {what} {name!r}; {hint}"


def _is(path: pathlib.Path, kind: str) -> bool:
    """Whether there is a "dir" or a "file"; False too where there cannot be one."""
    try:
        return path.is_dir() if kind == "dir" else path.is_file()
    except (OSError, ValueError):  # too long a name, a character that names cannot have
        return False


def _check_folder(out: pathlib.Path, allowed: bool, remedy: str, names: list[str]) -> None:
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file, not a folder.")
        occupied = out.is_dir() and any(out.iterdir())
    except OSError as error:
        raise InputError(f"{out} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{out} cannot be a folder: {error}.") from None
    if occupied and not allowed:
        raise InputError(f"{out} is not empty: {remedy}, or choose another with --out.")
    if occupied:
        for name in names:
            _check_own(out / name)
        _check_pages(out)
        if not any(out.glob("*/record.json")):
            for name in ("index.html", "figures"):
                if (out / name).exists():
                    raise InputError(f"{out / name} is not pdbo's: choose another folder.")
    _check_writable(out)


def _check_own(folder: pathlib.Path) -> None:
    """Refuse to replace a folder that holds anything but a record of pdbo."""
    if folder.is_dir():
        foreign = sorted({p.name for p in folder.iterdir()} - {*RECORD_FILES})
        if foreign:
            raise InputError(f"{folder / foreign[0]} is not pdbo's: choose another folder.")
    elif folder.exists():
        raise InputError(f"{folder} is in the way: choose another folder.")


def _check_pages(folder: pathlib.Path) -> None:
    """Refuse where something else stands in the place of the page or of the figures."""
    page, figures = folder / "index.html", folder / "figures"
    if page.is_dir():
        raise InputError(f"{page} is a folder and in the way of the page.")
    if figures.exists() and not figures.is_dir():
        raise InputError(f"{figures} is a file and in the way of the figures.")


def _check_same_run(out: pathlib.Path, seed: int, quick: bool) -> None:
    """Refuse to carry on with other options than those of the records that are there."""
    from .runner import finished

    for name in EXPERIMENTS:
        record = finished(out, name)
        if record is None:
            continue
        version = record.provenance["versions"].get("pdbo")
        if (record.seed, record.quick, version) != (seed, quick, __version__):
            kind = "quick" if record.quick else "full"
            raise InputError(
                f"{out / name} holds a {kind} run with seed {record.seed} of pdbo {version}: "
                "resume with the same, or choose another folder."
            )


def _check_writable(out: pathlib.Path) -> None:
    """Try to write to a folder; what is made for the trial is removed again."""
    missing = [p for p in (out, *out.parents) if not p.exists()]
    probe = out / f".pdbo-{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{out} cannot be written to: {error.strerror}.") from None
    finally:
        for folder in missing:
            if folder.is_dir():
                folder.rmdir()


def _need(*modules: str) -> None:
    from importlib.util import find_spec

    missing = [m for m in modules if find_spec(m) is None]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} must be installed first: pip install 'pdbo[experiments]'."
        )


def _target(target: str) -> tuple[pathlib.Path, str]:
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise InputError(f"the problem is named as FILE.py:NAME, got {target!r}.")
    path = pathlib.Path(file)
    if not _is(path, "file"):
        raise InputError(f"there is no file {file}.")
    _check_source(path, name)
    return path, name


def _check_source(path: pathlib.Path, name: str) -> None:
    """Find what is wrong with a file without running it, where that can be seen."""
    import ast

    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except SyntaxError as error:
        line = f"line {error.lineno}, " if error.lineno else ""
        raise InputError(f"{path} is not Python: {line}{error.msg}.") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path} is not Python: {brief(error)}.") from None
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id in ("globals", "vars", "locals", "exec"):
                return  # any name may come to be
            bound |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            if node.name == "*":
                return
            bound.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.MatchAs | ast.MatchStar):
            bound.add(node.name or "")
        elif isinstance(node, ast.MatchMapping):
            bound.add(node.rest or "")
    if name not in bound:
        close = difflib.get_close_matches(name, sorted(bound), 1, 0.5)
        raise InputError(f"{path} has no {name!r}{f'; did you mean {close[0]}?' if close else '.'}")


def _start(option: str, text: str) -> Any:
    """The start that an option holds: numbers, lists of them and dicts of such."""

    def reject() -> NoReturn:
        raise InputError(
            f"--{option} must be JSON such as 2.0 or [0.5, 0.5], got {text!r}."
        ) from None

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        reject()

    def shape(value: Any, depth: int = 0) -> tuple[int, ...]:
        if isinstance(value, list) and value and depth < DEEPEST:
            inner = {shape(v, depth + 1) for v in value}
            if len(inner) == 1:
                return (len(value), *inner.pop())
        elif isinstance(value, int | float) and type(value) is not bool:
            return () if abs(value) <= sys.float_info.max else reject()
        return reject()

    def check(value: Any, depth: int = 0) -> None:
        if isinstance(value, dict) and value and depth < DEEPEST:
            for part in value.values():
                check(part, depth + 1)
        else:
            shape(value)

    check(value)
    return value


def _solvers() -> list[str]:
    from .. import _NAMES

    return [n for n in _NAMES["solvers"].split() if n not in _NOT_SOLVERS]


def _solver_name(name: str | None) -> str:
    if name is None:
        return "AutoPDBO"
    if name not in _solvers():
        raise InputError(_unknown("solver", name, _solvers()))
    return name


def _wrapped(text: str, indent: int) -> str:
    """Lines that fit the terminal, those after the first set in."""
    width = max(30, min(88, shutil.get_terminal_size().columns))
    return textwrap.fill(
        text, width, initial_indent="  ", subsequent_indent=" " * indent, break_on_hyphens=False
    )
