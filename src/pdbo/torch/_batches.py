# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch need not be installed where types are checked.
"""Mini-batches of tensors, datasets and data loaders: JAX draws numbers, PyTorch the examples."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, Int, PyTree
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    default_collate,
)

from .._batches import PASSES, Batches, Cursor, Stream
from .._checks import kind, whole_number
from .._errors import ProblemError, brief
from ._host import host_call

_CHUNK = 2**24  # bytes of examples a full pass reads at a time by default
_KEPT = 4  # batches that are kept: the inner steps of an iteration use one again and again


class _Reader:
    """The examples of one function.

    Arguments:
        length: how many there are.
        take: returns those of some numbers.
    """

    def __init__(self, length: int, take: Callable[[np.ndarray], PyTree]):
        self.length, self.take = length, take
        self._kept: dict[tuple, tuple] = {}

    def read(self, indices: Sequence[np.ndarray], dtype: torch.dtype, device: Any) -> tuple:
        """The examples of some numbers as the one argument, in the precision of x and y."""
        numbers = np.asarray(indices[0], np.int64)
        key = (numbers.tobytes(), dtype)
        if key not in self._kept:
            while len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)))
            examples = jax.tree.map(lambda a: _moved(a, dtype, device), self.take(numbers))
            self._kept[key] = (examples,)
        return self._kept[key]

    def bytes_each(self) -> int:
        """The size of an example."""
        leaves = jax.tree.leaves(self.take(np.zeros(1, np.int64)))
        return sum(v.numel() * v.element_size() for v in leaves if isinstance(v, torch.Tensor))


def _moved(leaf: Any, dtype: torch.dtype, device: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.to(device, dtype) if leaf.is_floating_point() else leaf.to(device)


def batches(
    outer: PyTree,
    inner: PyTree,
    size: int | tuple[int, int] | None = None,
    *,
    chunk: int | None = None,
    passes: int = PASSES,
) -> "TorchBatches":
    """Data in mini-batches for `pdbo.torch.problem`; see `pdbo.Batches`.

    Arguments:
        outer, inner: the examples of f and of g: tensors or containers of tensors with one leading
            axis for the examples, a `torch.utils.data.Dataset`, or a `DataLoader`, whose dataset,
            batch size, order and `collate_fn` are used.
        size: how many examples a batch has, or a pair: those of f and those of g. Not needed for
            data loaders.
        chunk: how many examples a full pass reads at a time; by default as many as 16 MB hold, but
            at least a batch.
        passes: the most passes over all examples that an inner solve of a certificate takes.

    The order of the examples follows from the key given to `solve`. A `DataLoader` with a sampler
    of its own keeps its order: it starts from the state its generator has now, and the position is
    part of the solution's state, so that a run resumes in the middle of an epoch. A last batch that
    would be smaller continues into the next epoch. Examples are read in the process itself: the
    workers of a loader are not used.
    """
    sizes = list(size) if isinstance(size, tuple) else [size, size]
    if len(sizes) != 2:
        raise ProblemError(f"size must be a number or a pair of them, got {size!r}.")
    readers, orders = [], []
    for k, (name, given) in enumerate((("outer", outer), ("inner", inner))):
        if isinstance(given, DataLoader):
            sizes[k] = _loader_size(name, given, sizes[k])
            orders.append(_order(name, given))
            readers.append(_of_dataset(name, given.dataset, given.collate_fn))
        else:
            orders.append(None)
            readers.append(_of_dataset(name, given, default_collate))
        if sizes[k] is None:
            raise ProblemError("size is needed: how many examples a batch has.")
    return TorchBatches(tuple(readers), tuple(orders), tuple(sizes), chunk, passes)  # type: ignore


class TorchBatches(Batches):
    """What `batches` returns: for JAX an example is its number."""

    readers: tuple = eqx.field(static=True)

    def __init__(self, readers: tuple, orders: tuple, sizes: tuple, chunk: int | None, passes: int):
        numbers = [np.arange(r.length, dtype=np.int32) for r in readers]
        super().__init__(*numbers, sizes, chunk=chunk, passes=passes)  # type: ignore
        self.readers = readers
        self.outer, self.inner = (
            _Ordered(*_stream(s, r, chunk), order)  # type: ignore
            for s, r, order in zip((self.outer, self.inner), readers, orders, strict=True)
        )


def _stream(stream: Stream, reader: _Reader, chunk: int | None) -> tuple:
    """The parts of a stream whose chunks are measured by the examples themselves."""
    most = _CHUNK // max(reader.bytes_each(), 1) if chunk is None else chunk
    fits = int(min(max(most, stream.size), stream.length))
    return stream.examples, None, stream.length, stream.size, fits


class _Ordered(Stream):
    """A stream in the order of a data loader, if that has one."""

    order: "Order | None" = eqx.field(static=True)

    def indices(self, cursor: Cursor) -> Int[Array, " size"]:
        """The numbers of the batch that begins at a cursor."""
        if self.order is None:
            return super().indices(cursor)
        like = [jax.ShapeDtypeStruct((self.size,), jnp.int32)]
        order, size = self.order, self.size

        def call(epoch: np.ndarray, offset: np.ndarray) -> list[np.ndarray]:
            return [order.rows(int(epoch), int(offset), size)]

        return host_call(call, like, cursor.epoch, cursor.offset)[0]


class Order:
    """The order in which a sampler goes through the examples, for every epoch.

    Arguments:
        name: "outer" or "inner".
        sampler: yields the number of each example once.
        length: how many examples there are.
    """

    def __init__(self, name: str, sampler: Any, length: int):
        self.name, self.sampler, self.length = name, sampler, length
        self.generator = getattr(sampler, "generator", None)
        self._states = [] if self.generator is None else [self.generator.get_state()]
        self._lock = threading.Lock()
        self._kept: dict[int, np.ndarray] = {}
        self.epoch(0)

    def rows(self, epoch: int, offset: int, count: int) -> np.ndarray:
        """Some numbers from an offset in an epoch on; they may reach into the next epoch."""
        found = self.epoch(epoch)[offset : offset + count]
        if len(found) < count:
            found = np.concatenate([found, self.epoch(epoch + 1)[: count - len(found)]])
        return found

    def epoch(self, number: int) -> np.ndarray:
        """The numbers of an epoch."""
        with self._lock:
            first = number if self.generator is None else min(number, len(self._states) - 1)
            for k in range(first, number + 1):
                if k not in self._kept:
                    self._kept = dict([*self._kept.items()][-1:]) | {k: self._drawn(k)}
            return self._kept[number]

    def _drawn(self, epoch: int) -> np.ndarray:
        if self.generator is not None:
            self.generator.set_state(self._states[epoch])
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(epoch)
            found = np.fromiter(self.sampler, np.int32)
        if self.generator is not None and len(self._states) == epoch + 1:
            self._states.append(self.generator.get_state())
        if not np.array_equal(np.sort(found), np.arange(self.length)):
            raise ProblemError(
                f"the sampler of {self.name} must yield each of its {self.length} examples once "
                "per epoch: weights of examples belong into the loss."
            )
        return found


def _order(name: str, loader: Any) -> Order | None:
    sampler = loader.sampler
    if type(loader.batch_sampler) is not BatchSampler:
        raise ProblemError(
            f"{name} has a batch_sampler of its own: give its DataLoader batch_size and sampler."
        )
    if isinstance(sampler, RandomSampler) and sampler.generator is None:
        return None  # shuffled, and not seeded: the key of `solve` decides
    return Order(name, sampler, len(loader.dataset))


def _loader_size(name: str, loader: Any, given: int | None) -> int:
    if isinstance(loader.dataset, IterableDataset):
        raise ProblemError(f"{name} is an IterableDataset: examples are needed by number.")
    if loader.batch_size is None:
        raise ProblemError(f"{name} has no batch_size: give its DataLoader one.")
    if given is not None and given != loader.batch_size:
        raise ProblemError(
            f"size is {given}, but the DataLoader of {name} has batch_size={loader.batch_size}: "
            "leave size out."
        )
    return loader.batch_size


def _of_dataset(name: str, given: Any, collate: Callable) -> _Reader:
    """The examples of a dataset, or of containers of tensors."""
    if isinstance(given, IterableDataset):
        raise ProblemError(f"{name} is an IterableDataset: examples are needed by number.")
    if isinstance(given, TensorDataset) and collate is default_collate:
        given = list(given.tensors)
    if not isinstance(given, Dataset):
        return _of_tensors(name, given)
    length = len(given)  # type: ignore
    whole_number(f"the number of examples of {name}", length)

    def take(numbers: np.ndarray) -> PyTree:
        with torch.random.fork_rng(devices=[]):  # augmentations: the same for the same numbers
            torch.manual_seed(int(numbers.sum()))
            return collate([given[int(i)] for i in numbers])

    try:
        take(np.zeros(1, np.int64))
    except Exception as error:
        raise ProblemError(f"example 0 of {name} cannot be read: {brief(error)}.") from error
    return _Reader(length, take)


def _of_tensors(name: str, given: PyTree) -> _Reader:
    leaves = jax.tree.leaves(given)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            raise ProblemError(
                f"{name} must be a DataLoader, a Dataset or tensors with a leading axis of "
                f"examples, got {kind(leaf)}."
            )
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) != 1 or lengths[0] == 0:
        raise ProblemError(
            f"all tensors of {name} need the same number of examples, got {lengths}."
        )

    def take(numbers: np.ndarray) -> PyTree:
        if len(numbers) == lengths[0] and np.array_equal(numbers, np.arange(lengths[0])):
            return given
        rows = torch.from_numpy(numbers)
        return jax.tree.map(lambda a: a[rows.to(a.device)], given)

    return _Reader(lengths[0], take)
