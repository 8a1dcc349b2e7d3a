"""What f and g reach: arrays prepared for a second precision, values that have changed since."""

import functools
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax
import numpy as np

_Function = TypeVar("_Function", bound=Callable)

MOST_BYTES = 2**24  # of an array whose content is looked at: larger ones are told by identity
_SEALED = ("jax", "jaxlib", "numpy")  # packages whose functions reach nothing of the user's

_MADE: WeakKeyDictionary = WeakKeyDictionary()  # what was made of a function, by that function
_SEEN: WeakKeyDictionary = WeakKeyDictionary()  # by function: what it reached, and a copy or None


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
    if _is_sealed(value):
        return value
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


def as_it_is_now(function: _Function) -> _Function:
    """The function, or a copy of it if a number or array that it reaches has changed since.

    JAX compiles a function with the values that it reaches when it is first called. A copy is new
    to JAX, and so compiled with the values of today. Closures, defaults, globals and the functions
    and partials among them are followed, and lists, tuples and dicts of floats and arrays. Those of
    whole numbers are not: they may count calls.
    """
    try:
        before, copy = _SEEN.get(function, (None, None))
        now = tuple(_reached(function, set()))
        if before not in (None, now):
            copy = _copied(function)
        _SEEN[function] = now, copy
    except TypeError:  # not hashable or no weak references: not a plain function
        return function
    return copy or function


def _reached(value: object, seen: set[int]) -> Iterator[tuple[Any, ...]]:
    """What tells apart the values that a function reaches."""
    if isinstance(value, np.ndarray):
        yield _told(value)
    elif isinstance(value, jax.Array):
        yield ("jax", id(value))
    elif isinstance(value, bool | int | float | complex | str | np.generic):
        yield (type(value), repr(value))
    elif _is_sealed(value):
        return
    elif isinstance(value, list | tuple | dict):
        leaves = [*_leaves(value)]
        if all(isinstance(leaf, float | np.ndarray | jax.Array) for leaf in leaves):
            for leaf in leaves:
                yield from _reached(leaf, seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _reached(part, seen)
    elif callable(getattr(value, "__wrapped__", None)):  # jax.jit and the like
        yield from _reached(value.__wrapped__, seen)  # type: ignore
    elif isinstance(value, types.FunctionType) and id(value) not in seen:
        seen.add(id(value))
        used = (value.__globals__.get(name) for name in _names(value.__code__))
        contents = (_content(cell) for cell in value.__closure__ or ())
        given = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        for part in (*used, *contents, *given):
            yield from _reached(part, seen)


def _is_sealed(value: object) -> bool:
    """Whether a value is a function of JAX's or NumPy's."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _SEALED


def _leaves(tree: object) -> Iterator[object]:
    """The leaves of lists, tuples and dicts; a dict's keys need no order, unlike in JAX."""
    if isinstance(tree, dict | list | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)
    elif tree is not None:
        yield tree


def _told(array: np.ndarray) -> tuple[Any, ...]:
    if array.dtype.hasobject or array.nbytes > MOST_BYTES:
        return ("array", id(array))
    content = hashlib.blake2b(array.tobytes(), digest_size=16).digest()
    return (array.shape, array.dtype.str, content)


def _copied(value: Any) -> Any:
    """A function that does the same and is new to JAX."""
    if isinstance(value, functools.partial):
        return functools.partial(_copied(value.func), *value.args, **value.keywords)
    if not isinstance(value, types.FunctionType):
        wrapped = getattr(value, "__wrapped__", None)
        return value if wrapped is None else _copied(wrapped)
    code, names = value.__code__, value.__globals__
    copy = types.FunctionType(code, names, value.__name__, value.__defaults__, value.__closure__)
    copy.__kwdefaults__ = value.__kwdefaults__
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
