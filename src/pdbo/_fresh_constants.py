"""Functions that close over NumPy arrays, prepared for a second precision."""

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

_Function = TypeVar("_Function", bound=Callable)

_MADE: WeakKeyDictionary = WeakKeyDictionary()  # what was made of a function, by that function


def with_fresh_constants(function: _Function) -> _Function:
    """The same function over copies of the NumPy arrays it reaches, itself if it reaches none.

    JAX remembers, for every NumPy array, the dtype it was first traced with, so a function traced
    in single precision cannot be traced in double: it mixes the two and does not lower. Copies are
    new to JAX. Closures, defaults, globals and the functions, partials and jitted functions among
    them are followed; anything else is left as it is.
    """
    try:
        if function not in _MADE:
            _MADE[function] = _fresh(function, {})
        return _MADE[function]
    except TypeError:  # not hashable or no weak references: not a plain function
        return function


def _fresh(value: Any, seen: dict[int, object]) -> Any:
    if isinstance(value, np.ndarray):
        return seen.setdefault(id(value), value.copy())
    if isinstance(value, functools.partial):
        old = [value.func, *value.args, *value.keywords.values()]
        func, *rest = new = [_fresh(part, seen) for part in old]
        if all(a is b for a, b in zip(old, new, strict=True)):
            return value
        args, values = rest[: len(value.args)], rest[len(value.args) :]
        return functools.partial(func, *args, **dict(zip(value.keywords, values, strict=True)))
    if not isinstance(value, types.FunctionType) and callable(getattr(value, "__wrapped__", None)):
        wrapped = _fresh(value.__wrapped__, seen)  # jax.jit and the like
        return value if wrapped is value.__wrapped__ else wrapped
    if not isinstance(value, types.FunctionType) or id(value) in seen:
        return seen.get(id(value), value)
    seen[id(value)] = value  # ends the recursion if the function refers to itself
    contents = [_content(cell) for cell in value.__closure__ or ()]
    used = {n: value.__globals__[n] for n in _names(value.__code__) if n in value.__globals__}
    old = [*contents, *(value.__defaults__ or ()), *used.values()]
    new = [_fresh(part, seen) for part in old]
    if all(a is b for a, b in zip(old, new, strict=True)):
        return value
    cells, rest = new[: len(contents)], new[len(contents) :]
    defaults, globals_ = rest[: len(rest) - len(used)], rest[len(rest) - len(used) :]
    copy = types.FunctionType(
        value.__code__,
        value.__globals__ | dict(zip(used, globals_, strict=True)),
        value.__name__,
        tuple(defaults) or None,
        tuple(types.CellType(c) for c in cells),
    )
    copy.__kwdefaults__ = value.__kwdefaults__
    copy.__globals__.update({n: copy for n, part in used.items() if part is value})  # recursion
    seen[id(value)] = copy
    return copy


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names(code: types.CodeType) -> list[str]:
    """The global names that a function and the functions nested in it use."""
    nested = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [*code.co_names, *(name for part in nested for name in _names(part))]
