"""The command `pdbo` and its subcommands. Only a run imports JAX and matplotlib."""

import contextlib
import io
import math
import os
import pathlib
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer

from .. import __version__, _catalogue
from .._errors import ProblemError, brief
from .._signals import Terminated, leave, leave_at_once
from ..experiments import EXPERIMENTS, PROBLEMS
from . import inputs
from .errors import (
    BAD_INPUT,
    EXIT_CODES,
    FAILED,
    INTERRUPTED,
    OK,
    TERMINATED,
    InputError,
    Interrupted,
    RunError,
)
from .folders import check_folder, check_pages, check_same_run, check_writable, exists
from .terminal import complain, say, wrapped

CHECKPOINT = "checkpoint"
MOST = 2**31 - 1  # the largest seed and number of iterations: the largest int32

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: without the types that its boxes show
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # so any file name can be printed
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)
    warnings.showwarning = lambda message, *_, **__: complain(str(message), OK)
    code = run(sys.argv[1:] if arguments is None else list(arguments))
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BrokenPipeError:
        os._exit(code)  # nobody reads the output any more
    except OSError as error:
        # if an error was reported already, it was most likely this one
        os._exit(code or complain(f"the output cannot be written: {error.strerror}.", FAILED))
    if code in (INTERRUPTED, TERMINATED):  # an interrupted compilation can crash Python's own exit
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command; every error is one sentence on standard error."""
    try:
        result = app(arguments, prog_name="pdbo", standalone_mode=False)
        if result == INTERRUPTED:  # typer returns it without a word
            raise KeyboardInterrupt
        return result if isinstance(result, int) else OK
    except Interrupted as error:
        return complain(str(error), error.code)
    except (KeyboardInterrupt, typer.Abort):
        return complain("interrupted.", INTERRUPTED)
    except Terminated:
        return complain("terminated.", TERMINATED)
    except InputError as error:
        return complain(str(error), BAD_INPUT)
    except RunError as error:
        return complain(str(error), FAILED)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # nobody reads the output any more
            return OK
        raise
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error: wrong option, wrong number
            text = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
            return complain(text, BAD_INPUT) if text else BAD_INPUT
        if os.environ.get("PDBO_DEBUG"):
            raise
        if isinstance(error, OSError) and error.strerror:
            where = f"{error.filename}: " if error.filename else ""
            return complain(f"{where}{error.strerror}.", FAILED)
        return complain(f"{brief(error)} (PDBO_DEBUG=1 shows the traceback).", FAILED)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pdbo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")
    ] = False,
) -> None:
    """Bilevel optimisation with many inner minima: reproduce the paper, solve your own problems."""
    if debug:
        os.environ["PDBO_DEBUG"] = "1"


def _at_least(least: int) -> Callable[[typer.CallbackParam, int | None], int | None]:
    """A check that a whole number lies in the range of int32, which the help need not show."""

    def check(option: typer.CallbackParam, value: int | None) -> int | None:
        if value is not None and not least <= value <= MOST:
            raise InputError(f"--{option.name} must be from {least} to {MOST}, got {value}.")
        return value

    return check


def _number(text: str, least: int) -> Any:
    return typer.Option(help=text, metavar="N", callback=_at_least(least))


def _beginning(names: Iterable[str]) -> Callable[[str], list[str]]:
    """What the shell completes a word to: those of the names that begin with it."""
    return lambda incomplete: sorted(name for name in names if name.startswith(incomplete))


# Arguments are explained in the text of a command: a list of them in the help would show types
Out = Annotated[pathlib.Path, typer.Option(help="The folder to write to.", metavar="DIR")]
Seed = Annotated[int, _number("The seed of every random draw.", 0)]
Steps = Annotated[int, _number("The largest number of iterations.", 1)]
Every = Annotated[int, _number("Iterations between two records.", 1)]
SolverName = Annotated[
    str | None,
    typer.Option(
        help="A solver; AutoPDBO by default.",
        metavar="NAME",
        autocompletion=_beginning(_catalogue.names()),
    ),
]
Tolerance = Annotated[
    float, typer.Option(help="Stop when the certificate's eps is this small.", metavar="EPS")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier record.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Carry on from the folder's last checkpoint.")
]
Distributed = Annotated[
    bool,
    typer.Option("--distributed", help="Split the data over the devices of all processes."),
]
Address = Annotated[str | None, typer.Option(help="The address of process 0.", metavar="HOST:PORT")]
Processes = Annotated[int | None, _number("The number of processes.", 1)]
Rank = Annotated[int | None, _number("The number of this process, from 0.", 0)]
Heartbeat = Annotated[
    float | None,
    typer.Option(
        help="Seconds of silence after which a process counts as lost; 30 by default.",
        metavar="S",
    ),
]


@app.command(epilog=EXIT_CODES)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAMES", hidden=True, autocompletion=_beginning(EXPERIMENTS)),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller runs, under a minute.")] = False,
    seed: Seed = 0,
    out: Out = pathlib.Path("results"),
    data: Annotated[
        pathlib.Path | None,
        typer.Option(help="A folder of data sets, for experiments that need one.", metavar="DIR"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Carry on in a folder; keep what is finished.")
    ] = False,
    solver: Annotated[
        str | None,
        typer.Option(
            help="With problems: a solver of your own for the scoreboard.", metavar="FILE.py:NAME"
        ),
    ] = None,
) -> int:
    """Reproduce the paper: run experiments, draw the figures, write the page.

    NAMES are experiments, see `pdbo list`; by default the short ones that need no download.

    `pdbo reproduce problems --solver FILE.py:NAME` puts a method of your own on the scoreboard,
    beside the default and three others.
    """
    wanted = inputs.experiments(names or [])
    own = None if solver is None else inputs.target(solver, "the solver")
    if own is not None and "problems" not in wanted:
        raise InputError("--solver is for the scoreboard: pdbo reproduce problems --solver ...")
    if data is not None and not exists(data, "dir"):
        raise InputError(f"--data must be a folder, got {data}.")
    check_folder(out, resume, "carry on there with --resume", wanted)
    inputs.need("matplotlib", *sorted({m for n in wanted for m in EXPERIMENTS[n].needs}))
    from .runner import reproduce

    if resume:
        check_same_run(out, seed, quick)
    _get_ready()
    extra: dict[str, dict[str, Any]] = {}
    if own is not None:
        from .user import load_solver

        extra["problems"] = {"own": load_solver(*own)}
    debug = bool(os.environ.get("PDBO_DEBUG"))
    try:
        failures = reproduce(wanted, seed, quick, out, data, debug, extra)
    except (KeyboardInterrupt, Terminated) as cause:
        raise Interrupted(cause, _again()) from None
    for failure in failures:
        complain(failure, FAILED)
    if own is not None:
        _say_scores(out)
    damaged = _report(out) if len(failures) < len(wanted) else OK
    return FAILED if failures else damaged


def _say_scores(out: pathlib.Path) -> None:
    """Print the scoreboard, if it was measured; the page has more."""
    from ..experiments.problems import scores
    from .runner import finished

    record = finished(out, "problems")
    if record is not None:
        say(scores(record))


@app.command("list", epilog=EXIT_CODES)
def list_() -> None:
    """List experiments, problems and solvers."""
    say("experiments", bold=True)
    for name, experiment in EXPERIMENTS.items():
        data = f"{experiment.data}, downloaded" if experiment.download else experiment.data
        note = f" ({data})" if data else ""
        say(wrapped(f"{name:<12}{experiment.text}{note}", 14))
    for title, found in (("problems", PROBLEMS), ("solvers", sorted(_catalogue.names()))):
        say(title, bold=True)
        say(wrapped(", ".join(found), 2))


@app.command(epilog=EXIT_CODES)
def solve(
    target: Annotated[str, typer.Argument(metavar="FILE.py:NAME", hidden=True)],
    x0: Annotated[str | None, typer.Option(help="The start of x, as JSON.", metavar="JSON")] = None,
    y0: Annotated[str | None, typer.Option(help="The start of y, as JSON.", metavar="JSON")] = None,
    solver: SolverName = None,
    steps: Steps = 10_000,
    tol: Tolerance = 1e-4,
    every: Every = 100,
    seed: Seed = 0,
    out: Out = pathlib.Path("solution"),
    force: Force = False,
    resume: Resume = False,
    distributed: Distributed = False,
    address: Address = None,
    processes: Processes = None,
    rank: Rank = None,
    heartbeat: Heartbeat = None,
) -> int:
    """Solve a problem of your own: print its certificate, write a record and a page.

    NAME is a pdbo.Problem in the Python file. The start is given by --x0 and --y0, or by x0 and y0
    in the file. A checkpoint is written every minute and when the run is interrupted. `pdbo report`
    writes the page's figures as files, too.

    With --distributed, start the same command once per process. SLURM, Kubernetes and Open MPI
    number the processes; elsewhere give --processes and --rank, and --address if they run on
    several machines.
    """
    path, name = inputs.target(target)
    given = {k: inputs.start(k, v) for k, v in (("x0", x0), ("y0", y0)) if v is not None}
    chosen = inputs.solver_name(solver)
    if not 0 <= tol < math.inf:
        raise InputError(f"--tol must be a finite number >= 0, got {tol}.")
    if force and resume:
        raise InputError("--force starts again and --resume carries on: give only one of them.")
    remedy = "carry on there with --resume or replace what is there with --force"
    options = {"address": address, "processes": processes, "rank": rank, "heartbeat": heartbeat}
    try:
        with _together(distributed, {k: v for k, v in options.items() if v is not None}) as rank:
            if rank == 0:
                check_folder(out, force or resume, remedy, ["solve"])
            from .user import solve_file

            _get_ready()
            failure = solve_file(
                path, name, given, chosen, steps=steps, tol=tol, every=every, seed=seed, out=out,
                checkpoint=out / CHECKPOINT, resume=resume, rank=rank if distributed else None,
            )  # fmt: skip
            code = _report(out, files=False) if rank == 0 else OK
    except (KeyboardInterrupt, Terminated) as cause:
        raise Interrupted(cause, _again()) from None
    if failure:
        raise RunError(failure)
    return code


@contextlib.contextmanager
def _together(distributed: bool, options: dict[str, Any]) -> Iterator[int]:
    """The rank of this process in the run; 0 if it is alone."""
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
    folder: Annotated[pathlib.Path, typer.Argument(metavar="DIR", hidden=True)],
) -> int:
    """Rebuild figures and page from the records in a folder DIR."""
    if not exists(folder, "dir"):
        raise InputError(f"{folder} is not a folder.")
    check_pages(folder)
    check_writable(folder)
    inputs.need("matplotlib")
    return _report(folder)


def _get_ready() -> None:
    """Import what every run needs, in double precision and with programs kept on disk.

    From here on the run itself handles an interrupt.
    """
    import jax

    from .. import solve  # noqa: F401
    from .._precision import double_from_now_on
    from .folders import programs

    double_from_now_on()
    cache = programs()
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    if signal.getsignal(signal.SIGINT) is leave_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _again() -> str:
    """The command line that carries on."""
    given = [a for a in sys.argv[1:] if a not in ("--force", "--resume")]
    return shlex.join(["pdbo", *given, "--resume"])


def _report(folder: pathlib.Path, files: bool = True) -> int:
    """Build the page and print its path; a damaged record is named and counts as bad input."""
    from .records import RecordError
    from .report import build

    try:
        page, damaged = build(folder, files)
    except RecordError as error:
        raise InputError(str(error)) from None
    if page is not None:
        say(str(page))
    for sentence in damaged:
        complain(sentence, BAD_INPUT)
    return BAD_INPUT if damaged else OK
