"""The solvers' names and labels, read from their source: commands and figures need no JAX."""

import ast
import functools
import pathlib
from typing import NamedTuple

_SOLVERS = pathlib.Path(__file__).parent / "solvers" / "__init__.py"


class Card(NamedTuple):
    """The class variables of a solver that tables and figures show."""

    label: str
    family: str


@functools.cache
def names() -> tuple[str, ...]:
    """The names of the solvers' classes, in the order of `solvers/__init__.py`."""
    return tuple(name for _, name in _imports(_SOLVERS))


@functools.cache
def cards() -> dict[str, Card]:
    """The card of every solver, by the name of its class."""
    found = {}
    for name in names():
        words = {
            node.targets[0].id: node.value.value
            for node in _body(_SOLVERS, name)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        found[name] = Card(str(words["label"]), str(words["family"]))
    return found


def _body(path: pathlib.Path, name: str) -> list[ast.stmt]:
    """The body of the class of this name, in a file or in the module the file imports it from."""
    for node in _parsed(path):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node.body
    (module,) = (module for module, known in _imports(path) if known == name)
    file = path.with_name(f"{module}.py")
    return _body(file if file.exists() else path.parent / module / "__init__.py", name)


def _imports(path: pathlib.Path) -> list[tuple[str, str]]:
    """The modules of the same folder that a file imports from, with the imported names."""
    return [
        (node.module, alias.name)
        for node in _parsed(path)
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        for alias in node.names
    ]


@functools.cache
def _parsed(path: pathlib.Path) -> list[ast.stmt]:
    return ast.parse(path.read_text("utf-8")).body
