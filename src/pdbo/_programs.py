"""Programs of small problems, compiled in less than half of the time.

XLA's emitters for fused loops on a CPU make large arrays faster and compilation slow. A program on
a few thousand numbers takes longer to compile than it ever runs, so it does without them.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

FEW = 3000  # numbers in the arguments, up to which a program is compiled quickly
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
INSTANT = QUICK | {"xla_backend_optimization_level": 0}  # a third of that time, but slower loops


class Program:
    """A compiled function: `equinox.filter_jit`, quickly compiled if its arguments are small."""

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self._plain = eqx.filter_jit(function)
        self._quick = eqx.filter_jit(function, compiler_options=QUICK)  # type: ignore

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The value of the function."""
        if not _are_few((args, kwargs)):
            return self._plain(*args, **kwargs)
        return quickly(self._quick, self._plain, *args, **kwargs)


def quickly(quick: Callable[..., Any], plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The value of a function compiled quickly, or as usual within a trace or if XLA lacks that."""
    try:
        return quick(*args, **kwargs)
    except Exception as error:
        if "top-level" not in str(error) and _has_quick():
            raise
        return plain(*args, **kwargs)


def _are_few(tree: Any) -> bool:
    """Whether arguments are few numbers on a CPU."""
    if jax.default_backend() != "cpu":
        return False
    count = 0
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, Tracer) or count > FEW:
            return False
        if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1:
            return False
        count += int(np.size(leaf)) if eqx.is_array_like(leaf) else 0
    return count <= FEW


@functools.cache
def _has_quick() -> bool:
    """Whether this version of XLA has these options."""
    try:
        jax.jit(lambda: np.float32(0), compiler_options=INSTANT)()
    except Exception:
        return False
    return True
