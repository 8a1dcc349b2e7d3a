"""Bilevel problems whose f and g are written in PyTorch."""

try:
    import torch as _installed  # noqa: F401  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "pdbo.torch needs PyTorch: pip install 'pdbo[torch]'.", name="torch"
    ) from None

from ._batches import batches
from ._problem import load_into, problem

__all__ = ["batches", "load_into", "problem"]
