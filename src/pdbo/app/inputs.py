"""Checks of what a user typed, before anything runs. Needs no JAX."""

import ast
import difflib
import json
import pathlib
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import NoReturn

from .. import _catalogue
from .._errors import brief
from ..experiments import EXPERIMENTS
from .errors import InputError
from .folders import exists

DEEPEST = 32  # the most levels of nested lists, or of nested dicts, in a start
_BIND_ANYTHING = ("globals", "vars", "locals", "exec")  # functions that can define any name


def experiments(names: list[str]) -> list[str]:
    """The experiments named, in the order of `EXPERIMENTS`; if none, the short ones."""
    if not names:
        return [n for n, e in EXPERIMENTS.items() if not e.by_name]
    for name in names:
        if name not in EXPERIMENTS:
            raise InputError(_unknown("experiment", name, EXPERIMENTS))
    return [n for n in EXPERIMENTS if n in names]


def solver_name(name: str | None) -> str:
    """The solver named, or the default."""
    if name is None:
        return "AutoPDBO"
    if name not in _catalogue.names():
        raise InputError(_unknown("solver", name, _catalogue.names()))
    return name


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    spelled = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), spelled, 1, 0.5)
    hint = f"did you mean {spelled[close[0]]}?" if close else f"there are {', '.join(known)}."
    return f"there is no {what} {name!r}; {hint}"


def need(*modules: str) -> None:
    """Raise an error if a module is not installed."""
    missing = [m for m in modules if find_spec(m) is None]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} must be installed first: pip install 'pdbo[experiments]'."
        )


def target(text: str, what: str = "the problem") -> tuple[pathlib.Path, str]:
    """The file and the name in FILE.py:NAME."""
    file, colon, name = text.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise InputError(f"{what} is named as FILE.py:NAME, got {text!r}.")
    path = pathlib.Path(file)
    if not exists(path, "file"):
        raise InputError(f"there is no file {file}.")
    bound = _bound_names(_parsed(path))
    if bound is not None and name not in bound:
        close = difflib.get_close_matches(name, sorted(bound), 1, 0.5)
        raise InputError(f"{path} has no {name!r}{f'; did you mean {close[0]}?' if close else '.'}")
    return path, name


def _parsed(path: pathlib.Path) -> ast.Module:
    """The syntax tree of a file; the file is not run."""
    try:
        return ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except SyntaxError as error:
        line = f"line {error.lineno}, " if error.lineno else ""
        raise InputError(f"{path} is not Python: {line}{error.msg}.") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path} is not Python: {brief(error)}.") from None


def _bound_names(tree: ast.Module) -> set[str] | None:
    """The names that a file defines; None if only a run of the file can tell."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id in _BIND_ANYTHING:
                return None
            bound |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            if node.name == "*":
                return None
            bound.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.MatchAs | ast.MatchStar):
            bound.add(node.name or "")
        elif isinstance(node, ast.MatchMapping):
            bound.add(node.rest or "")
    return bound


def start(option: str, text: str) -> object:
    """The start given by an option: a number, nested lists of numbers, or dicts of these."""

    def reject() -> NoReturn:
        raise InputError(
            f"--{option} must be JSON such as 2.0 or [0.5, 0.5], got {text!r}."
        ) from None

    def shape(value: object, depth: int = 0) -> tuple[int, ...]:
        if isinstance(value, list) and value and depth < DEEPEST:
            shapes = {shape(v, depth + 1) for v in value}
            if len(shapes) == 1:
                return (len(value), *shapes.pop())
        elif isinstance(value, int | float) and type(value) is not bool:
            return () if abs(value) <= sys.float_info.max else reject()
        return reject()

    def check(value: object, depth: int = 0) -> None:
        if isinstance(value, dict) and value and depth < DEEPEST:
            for part in value.values():
                check(part, depth + 1)
        else:
            shape(value)

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        reject()
    check(value)
    return value
