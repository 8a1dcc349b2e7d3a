"""What the command prints: one line for one sentence, in colour if that is wanted."""

import os
import re
import shutil
import textwrap
from typing import Any

import typer

LONGEST = 2000  # characters of a sentence; the rest is cut off


def say(text: str, err: bool = False, **look: Any) -> None:
    """Print, in colour unless NO_COLOR is set: https://no-color.org."""
    typer.secho(text, err=err, color=False if os.environ.get("NO_COLOR") else None, **look)


def complain(sentence: str, code: int) -> int:
    """Print a sentence on standard error and return the exit code."""
    say(f"pdbo: {_one_line(sentence)}", err=True, fg="red")
    return code


def _one_line(text: str) -> str:
    """A sentence that a terminal can show, whatever names it holds."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    text = re.sub(r"(\S{150})\S{80,}(\S{40})", r"\1...\2", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def wrapped(text: str, indent: int) -> str:
    """Lines that fit the terminal; those after the first are indented."""
    width = max(30, min(88, shutil.get_terminal_size().columns))
    return textwrap.fill(
        text, width, initial_indent="  ", subsequent_indent=" " * indent, break_on_hyphens=False
    )
