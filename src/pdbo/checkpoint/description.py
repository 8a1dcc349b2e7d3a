"""Solvers, problems and points in words, to compare a file with the arguments of a call."""

import dataclasses
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._problem import Problem
from .._sealed import JsonObject
from .._solver import Solver
from ..sets import Set
from .arrays import digest
from .format import Saved

Encoded = JsonObject | str | None  # the structure of a point, as JSON

DEEP = 30  # functions in functions: where the description ends, as some call themselves
SHORT = 8  # entries: a longer array is described by its digest, not by its numbers


def describe_solver(solver: Solver) -> dict[str, str]:
    """A solver: its class and settings."""
    return _describe(solver, "solver")


def describe_problem(problem: Problem) -> dict[str, str]:
    """A problem without its functions: its sets with their numbers, its data by shape only."""
    found = {}
    for field in dataclasses.fields(problem):
        if field.name not in ("f", "g", "mesh", "specs"):
            value = getattr(problem, field.name)
            found |= _describe(value, field.name, numbers=isinstance(value, Set))
    return found


def check_description(saved: Saved, problem: Problem, solver: Solver) -> None:
    """Refuse a solver of another class or with other numbers, and a problem of other structure."""
    given = {"solver": describe_solver(solver), "problem": describe_problem(problem)}
    for what, here in given.items():
        there = saved.header.get(what)
        if what == "problem" and there is None:  # `save` is not given the problem
            continue
        if not isinstance(there, dict):
            raise saved.error(f"it does not say which {what} it belongs to")
        for name in [*there, *(n for n in here if n not in there)]:
            a, b = there.get(name, "missing"), here.get(name, "missing")
            if a != b:
                raise saved.error(f"{name} is {a} in it and {b} here")


def _describe(value: Any, name: str, numbers: bool = True) -> dict[str, str]:
    """The classes, settings and arrays of a value; `numbers` includes the arrays' entries."""
    if isinstance(value, eqx.Module) and hasattr(value, "dtype"):
        # a matrix of `pdbo.linear`, the same on any number of devices
        return {name: f"a matrix of {value.dtype}{list(value.shape)}"}  # type: ignore
    if isinstance(value, eqx.Module):
        parts = {f".{f.name}": getattr(value, f.name) for f in dataclasses.fields(value)}
    elif isinstance(value, dict):
        parts = {f"[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"[{index}]": part for index, part in enumerate(value)}
    elif isinstance(value, types.FunctionType):
        return _function(value, name, numbers)
    elif hasattr(value, "dtype"):
        return {name: _array_text(value, numbers)}
    else:
        simple = value is None or isinstance(value, bool | int | float | str)
        return {name: repr(value) if simple else f"a {type(value).__name__}"}
    found = {name: type(value).__name__}
    for key, part in parts.items():
        found |= _describe(part, name + key, numbers)
    return found


def _function(value: types.FunctionType, name: str, numbers: bool) -> dict[str, str]:
    """A function, such as a part of an Optax transformation: its name, the numbers written in it
    and whatever it was made with. The code itself is not compared.
    """
    written = [repr(c) for c in value.__code__.co_consts if isinstance(c, float)]
    found = {name: " ".join([value.__qualname__, *written])}
    free = value.__code__.co_freevars if name.count(".") < DEEP else ()
    for variable, cell in zip(free, value.__closure__ or (), strict=False):
        try:
            part = cell.cell_contents
        except ValueError:  # not set yet
            continue
        if type(part) is int:  # Optax may turn it into a float when it is used
            part = float(part)
        found |= _describe(part, f"{name}.{variable}", numbers)
    return found


def _array_text(value: Any, numbers: bool) -> str:
    text = f"{value.dtype}{list(value.shape) or ''}"
    if not numbers:
        return text
    if np.size(value) > SHORT:
        return f"{text} of SHA-256 {digest(value)}"
    shown = ", ".join(map(str, np.asarray(value).ravel()))  # the shortest exact form
    return f"{shown} ({text})"


def encode(tree: PyTree) -> Encoded:
    """The structure of a point as JSON; a container that JSON lacks becomes its class's name."""
    if tree is None:
        return None
    if hasattr(tree, "dtype"):
        return {"shape": list(tree.shape), "dtype": str(tree.dtype)}
    if type(tree) is dict and all(type(k) is str for k in tree):
        return {"dict": {k: encode(v) for k, v in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [encode(v) for v in tree]}
    return type(tree).__name__


def decode(tree: Encoded) -> PyTree:
    """The structure again, with shapes and dtypes for leaves; None if a container is unknown."""
    try:
        return _build(tree)
    except _UnknownContainer:
        return None


class _UnknownContainer(Exception):
    pass


def _build(tree: Encoded) -> PyTree:
    if tree is None:
        return None
    if isinstance(tree, str):
        raise _UnknownContainer
    if "shape" in tree:
        return jax.ShapeDtypeStruct(tuple(map(int, tree["shape"])), jnp.dtype(str(tree["dtype"])))
    ((name, parts),) = tree.items()
    if name == "dict":
        return {k: _build(v) for k, v in parts.items()}
    return {"list": list, "tuple": tuple}[name](_build(v) for v in parts)
