"""What the command prints: one line per sentence, in colour unless NO_COLOR is set."""

import os
import re
import shutil
import textwrap

import typer

LONGEST = 2000  # characters; a longer sentence is cut off


def say(text: str, err: bool = False, bold: bool | None = None, fg: str | None = None) -> None:
    """Print, in colour unless NO_COLOR is set: https://no-color.org."""
    color = False if os.environ.get("NO_COLOR") else None
    typer.secho(text, err=err, color=color, bold=bold, fg=fg)


def complain(sentence: str, code: int) -> int:
    """Print a sentence on standard error and return the exit code."""
    say(f"pdbo: {_one_line(sentence)}", err=True, fg="red")
    return code


def _one_line(text: str) -> str:
    """A sentence as one printable line, whatever file names it holds."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    text = re.sub(r"(\S{150})\S{80,}(\S{40})", r"\1...\2", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def wrapped(text: str, indent: int) -> str:
    """The text in lines that fit the terminal; all but the first are indented."""
    width = max(30, min(88, shutil.get_terminal_size().columns))
    return textwrap.fill(
        text, width, initial_indent="  ", subsequent_indent=" " * indent, break_on_hyphens=False
    )
