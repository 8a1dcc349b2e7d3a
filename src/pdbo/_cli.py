"""The command `pdbo`. Whatever needs JAX or matplotlib is imported once it is needed."""

import difflib
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

from . import __version__
from .experiments import EXPERIMENTS, PROBLEMS

try:
    import typer
except ImportError:  # pragma: no cover
    sys.exit("pdbo: the command needs packages of its own: pip install 'pdbo[experiments]'.")

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
RECORD_FILES = ("record.json", "arrays.npz", "times.json")
EXIT_CODES = (
    "Exit codes: 0 all went well, 1 a run failed or was not certified, 2 bad input, "
    "130 interrupted."
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


class InputError(Exception):
    """What was asked for cannot be done; the message is one sentence."""


class Interrupted(Exception):
    """A run was interrupted; the message says how to carry on."""


class RunError(Exception):
    """A run failed; the message is one sentence."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave with its exit code."""
    code = run(sys.argv[1:] if arguments is None else list(arguments))
    if code == INTERRUPTED:  # a compilation cut short can crash while Python is taken down
        sys.stdout.flush()
        sys.stderr.flush()
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
        return _complain(str(error), INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted.", INTERRUPTED)
    except InputError as error:
        return _complain(str(error), BAD_INPUT)
    except RunError as error:
        return _complain(str(error), FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error: wrong option, wrong number
            text = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
            return _complain(text, BAD_INPUT) if text else BAD_INPUT
        if os.environ.get("PDBO_DEBUG"):
            raise
        return _complain(f"{_brief(error)} (PDBO_DEBUG=1 shows where).", FAILED)


def _complain(sentence: str, code: int) -> int:
    typer.secho(f"pdbo: {sentence}", fg="red", err=True)
    return code


def _brief(error: BaseException) -> str:
    lines = str(error).strip().split("\n")
    return f"{type(error).__name__}: {lines[0]}".rstrip(" .:")


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
Seed = Annotated[int, typer.Option(help="The seed of every random draw.", min=0, max=2**31 - 1)]


@app.command(epilog=EXIT_CODES)
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiments; without any, all that need no download.", metavar="NAMES"
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
    if data is not None and not data.is_dir():
        raise InputError(f"--data must be a folder, got {data}.")
    _check_folder(out, resume, "carry on there with --resume", wanted)
    _need("matplotlib", *sorted({m for n in wanted for m in EXPERIMENTS[n].needs}))
    from .experiments._runner import finished, reproduce

    for name in wanted if resume else ():
        record = finished(out, name)
        if record is not None and (record.seed, record.quick) != (seed, quick):
            kind = "quick" if record.quick else "full"
            raise InputError(
                f"{out / name} holds a {kind} run with seed {record.seed}: resume it with the same "
                "options, or choose another folder."
            )
    try:
        failures = reproduce(wanted, seed, quick, out, data, bool(os.environ.get("PDBO_DEBUG")))
    except KeyboardInterrupt:
        options = f"{' --quick' if quick else ''} --seed {seed} --out {shlex.quote(str(out))}"
        again = " ".join(["pdbo reproduce", *(names or [])]) + f"{options} --resume"
        raise Interrupted(f"interrupted; carry on with: {again}") from None
    if len(failures) < len(wanted):
        _report(out)
    for failure in failures:
        _complain(f"{failure.rstrip('.')}.", FAILED)
    return FAILED if failures else OK


@app.command("list", epilog=EXIT_CODES)
def list_() -> None:
    """List experiments, problems and solvers."""
    from . import _NAMES

    typer.secho("experiments", bold=True)
    for name, experiment in EXPERIMENTS.items():
        data = f"{experiment.data}, downloaded" if experiment.download else experiment.data
        note = f" ({data})" if data else ""
        typer.echo(f"  {name:<12}{experiment.text}{note}")
    solvers = [n for n in _NAMES["solvers"].split() if n not in _NOT_SOLVERS]
    for title, found in (("problems", PROBLEMS), ("solvers", sorted(solvers))):
        typer.secho(title, bold=True)
        typer.echo(_wrapped(found))


@app.command(epilog=EXIT_CODES)
def solve(
    target: Annotated[
        str, typer.Argument(help="A Python file and a name.", metavar="FILE.py:NAME")
    ],
    x0: Annotated[str | None, typer.Option(help="The start of x, as JSON.")] = None,
    y0: Annotated[str | None, typer.Option(help="The start of y, as JSON.")] = None,
    solver: Annotated[str | None, typer.Option(help="A solver's name.")] = None,
    steps: Annotated[int, typer.Option(help="The most iterations.", min=1)] = 10_000,
    tol: Annotated[float, typer.Option(help="The certificate's eps to reach.")] = 1e-4,
    every: Annotated[int, typer.Option(help="Iterations between two records.", min=1)] = 100,
    seed: Seed = 0,
    out: Out = pathlib.Path("solution"),
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier record.")] = False,
) -> int:
    """Solve a problem of your own: print its certificate, keep a record, a figure and a page.

    NAME is a pdbo.Problem in the file. The start is given by --x0 and --y0, or by x0 and y0 in the
    file.
    """
    path, name = _target(target)
    given = {k: _json(k, v) for k, v in (("x0", x0), ("y0", y0)) if v is not None}
    chosen = _solver_name(solver)
    if not tol >= 0:
        raise InputError(f"--tol must be a number >= 0, got {tol}.")
    _check_folder(out, force, "replace what is there with --force", ["solve"])
    _need("matplotlib")
    from .experiments._user import solve_file

    failure = solve_file(
        path, name, given, chosen, steps=steps, tol=tol, every=every, seed=seed, out=out,
        fail=InputError,
    )  # fmt: skip
    _report(out)
    if failure:
        raise RunError(failure)
    return OK


@app.command(epilog=EXIT_CODES)
def report(
    folder: Annotated[pathlib.Path, typer.Argument(help="A folder of records.", metavar="DIR")],
) -> int:
    """Rebuild figures and page from the records in a folder."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.")
    _check_writable(folder)
    _need("matplotlib")
    _report(folder)
    return OK


def _report(folder: pathlib.Path) -> None:
    from .experiments._record import RecordError
    from .report import build

    try:
        typer.echo(f"{build(folder)}")
    except RecordError as error:
        raise InputError(str(error)) from None


def _experiments(names: list[str]) -> list[str]:
    if not names:
        return [n for n, e in EXPERIMENTS.items() if not e.download]
    for name in names:
        if name not in EXPERIMENTS:
            raise InputError(_unknown("experiment", name, EXPERIMENTS))
    return [n for n in EXPERIMENTS if n in names]


def _unknown(what: str, name: str, known: Any) -> str:
    spelled = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), spelled, 1, 0.5)
    hint = f"did you mean {spelled[close[0]]}?" if close else f"there are {', '.join(known)}."
    return f"there is no {what} {name!r}; {hint}"


def _check_folder(out: pathlib.Path, allowed: bool, remedy: str, names: list[str]) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder.")
    try:
        occupied = out.is_dir() and any(out.iterdir())
    except OSError as error:
        raise InputError(f"{out} cannot be read: {error.strerror}.") from None
    if occupied and not allowed:
        raise InputError(f"{out} is not empty: {remedy}, or choose another with --out.")
    if occupied:
        for name in names:
            _check_own(out / name)
        if (out / "index.html").exists() and not any(out.glob("*/record.json")):
            raise InputError(f"{out / 'index.html'} is not a page of pdbo: choose another folder.")
    _check_writable(out)


def _check_own(folder: pathlib.Path) -> None:
    """Refuse to replace a folder that holds anything but a record of pdbo."""
    if folder.is_dir():
        foreign = sorted({p.name for p in folder.iterdir()} - {*RECORD_FILES})
        if foreign:
            raise InputError(f"{folder / foreign[0]} is not pdbo's: choose another folder.")
    elif folder.exists():
        raise InputError(f"{folder} is in the way: choose another folder.")


def _check_writable(out: pathlib.Path) -> None:
    probe = out / f".pdbo-{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{out} cannot be written to: {error.strerror}.") from None


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
    if not path.is_file():
        raise InputError(f"there is no file {file}.")
    return path, name


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InputError(
            f"--{option} must be JSON such as 2.0 or [0.5, 0.5], got {text!r}."
        ) from None


def _solver_name(name: str | None) -> str:
    from . import _NAMES

    known = [n for n in _NAMES["solvers"].split() if n not in _NOT_SOLVERS]
    if name is None:
        return "AutoPDBO" if "AutoPDBO" in known else "PDBO"
    if name not in known:
        raise InputError(_unknown("solver", name, known))
    return name


def _wrapped(words: Sequence[str]) -> str:
    import textwrap

    return textwrap.fill(
        ", ".join(words), 88, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
