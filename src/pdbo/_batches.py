"""Data in mini-batches: drawn for the steps, passed over in full for values and certificates."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree, UInt32

from . import _trees as trees
from ._checks import traced, whole_number
from ._data import DataView
from ._errors import ProblemError, brief

if TYPE_CHECKING:
    from ._problem import Problem

PASSES = 200
"""The most full passes over the data that an inner solve of a certificate takes."""

_CHUNK = 2**24  # bytes of examples a full pass reads at a time by default
_MOST = 2**31 - 1  # examples: indices are 32-bit integers
_ROUNDS = 32  # of the shuffle; fewer mix less well


class Source:
    """Examples outside of memory: how many there are, and how to fetch some of them.

    Arguments:
        length: the number of examples.
        take: `take(indices)`, with a NumPy array of whole numbers from 0 to length - 1, returns
            those examples: a pytree of NumPy arrays with one entry per index along their leading
            axis. It must return the same for the same indices, and is called in a thread.

    The next examples are fetched while the last ones are used.
    """

    blame = "examples could not be fetched"

    def __init__(self, length: int, take: Callable[[np.ndarray], PyTree]):
        whole_number("length", length)
        if not callable(take):
            raise ProblemError(f"take must be a function, got {type(take).__name__}.")
        self.length = int(length)
        self.error: Exception | None = None
        self._take = take
        self._lock = threading.Lock()
        self._ahead: dict[bytes, concurrent.futures.Future] = {}
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        try:
            self.example = self._read(np.zeros(1, np.int64))
        except Exception as error:
            raise ProblemError(f"take cannot fetch example 0: {brief(error)}.") from error
        _count("what take returns", self.example, "examples")

    def __repr__(self) -> str:
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape[1:])}", self.example)
        return f"Source({self.length}, {shapes})"

    def specification(self, count: int) -> PyTree:
        """The shapes and dtypes in JAX of `count` examples."""

        def one(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
            return jax.ShapeDtypeStruct((count, *leaf.shape[1:]), dtype)

        return jax.tree.map(one, self.example)

    def fetch(self, indices: ArrayLike, following: ArrayLike) -> PyTree:
        """The examples of some indices; the following ones are fetched in the background."""
        now, later = np.asarray(indices, np.int64), np.asarray(following, np.int64)
        with self._lock:
            found = self._ahead.pop(now.tobytes(), None)
        try:
            examples = self._read(now) if found is None else found.result()
        except Exception as error:
            self.error = error
            raise
        with self._lock:
            if self._thread is None:
                self._thread = concurrent.futures.ThreadPoolExecutor(1, "pdbo-source")
            while len(self._ahead) >= 4:  # fetched but never used
                self._ahead.pop(next(iter(self._ahead)))
            key = later.tobytes()
            if key not in self._ahead:
                self._ahead[key] = self._thread.submit(self._read, later)
        return examples

    def _read(self, indices: np.ndarray) -> PyTree:
        found = jax.tree.map(np.asarray, self._take(indices))
        if not hasattr(self, "example"):
            return found
        same = jax.tree.structure(found) == jax.tree.structure(self.example) and all(
            a.shape == (len(indices), *b.shape[1:]) and a.dtype == b.dtype
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(self.example), strict=True)
        )
        if not same:
            raise ValueError(
                "take returned arrays of another structure, shape or dtype than for example 0"
            )
        return found


class Cursor(eqx.Module):
    """The position in a stream."""

    words: UInt32[Array, "2"]  # of the key that decides the order
    epoch: Int[Array, ""]
    offset: Int[Array, ""]  # examples of this epoch used so far


class Stream(eqx.Module):
    """The examples of one function, in memory or in a source, and how many it takes at a time."""

    examples: PyTree
    source: Source | None = eqx.field(static=True)
    length: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)

    def begin(self, key: Array) -> Cursor:
        """The start of the first epoch."""
        words = jax.random.bits(key, (2,), jnp.uint32)
        return Cursor(words, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def draw(self, cursor: Cursor) -> tuple[PyTree, Cursor]:
        """The next batch; in its own order if it holds all examples."""
        onward = self._advance(cursor)
        if self.size == self.length:
            every = jnp.arange(self.length, dtype=jnp.int32)
            return (self.examples if self.source is None else self._take(every, every)), onward
        return self._take(self.indices(cursor), self.indices(onward)), onward

    @property
    def blocks(self) -> int:
        """How many fixed batches there are."""
        return self.length // self.size

    def block(self, cursor: Cursor) -> Int[Array, ""]:
        """The number of the next fixed batch; an epoch has all of them, in its own order."""
        place = cursor.offset // self.size
        return shuffled(cursor.words, cursor.epoch, place, 1, self.blocks)[0]

    def draw_block(self, cursor: Cursor) -> tuple[PyTree, Int[Array, ""], Cursor]:
        """The next fixed batch and its number."""
        onward = self._advance(cursor)

        def rows(cursor: Cursor) -> Int[Array, " size"]:
            return self.size * self.block(cursor) + jnp.arange(self.size, dtype=jnp.int32)

        return self._take(rows(cursor), rows(onward)), self.block(cursor), onward

    def indices(self, cursor: Cursor) -> Int[Array, " size"]:
        """The examples of the batch that begins at a cursor; it may reach into the next epoch."""
        return shuffled(cursor.words, cursor.epoch, cursor.offset, self.size, self.length)

    def mean(self, function: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """The value of a function on all examples, the mean of its values on chunks."""
        whole, rest = divmod(self.length, self.chunk)
        if whole == 1 and rest == 0 and self.source is None:
            return _at(function, x, y, self.examples)

        def part(x: PyTree, y: PyTree, start: Array, count: int) -> Array:
            indices = start + jnp.arange(count, dtype=jnp.int32)
            ahead = (indices + count) % self.length
            if self.source is None:
                cut = lambda a: lax.dynamic_slice_in_dim(a, start, count)  # noqa: E731
                return _at(function, x, y, jax.tree.map(cut, self.examples))
            return _at(function, x, y, self._take(indices, ahead))

        part = jax.checkpoint(part, static_argnums=3)  # a gradient keeps one chunk, not all
        weight = self.chunk / self.length

        def add(total: Array, start: Array) -> tuple[Array, None]:
            return total + weight * part(x, y, start, self.chunk), None

        starts = self.chunk * jnp.arange(whole, dtype=jnp.int32)
        total, _ = lax.scan(add, jnp.zeros((), trees.dtype((x, y))), starts)
        if rest:
            last = jnp.asarray(whole * self.chunk, jnp.int32)
            total = total + rest / self.length * part(x, y, last, rest)
        return total

    def take(self, indices: Int[Array, " size"]) -> PyTree:
        """Some of the examples."""
        return self._take(indices, indices)

    def _advance(self, cursor: Cursor) -> Cursor:
        offset = cursor.offset - (self.length - self.size)  # a sum could overflow
        over = offset >= 0
        return Cursor(
            cursor.words,
            cursor.epoch + over.astype(jnp.int32),
            jnp.where(over, offset, offset + self.length),
        )

    def _take(self, indices: Array, following: Array) -> PyTree:
        if self.source is None:
            return jax.tree.map(lambda a: a[indices], self.examples)
        source, like = self.source, self.source.specification(len(indices))

        def fetch(indices: Array, following: Array) -> PyTree:
            # called in a thread, which has other settings of JAX: the dtypes come from `like`
            found = source.fetch(indices, following)
            return jax.tree.map(lambda a, b: np.asarray(a, b.dtype), found, like)

        return jax.pure_callback(fetch, like, indices, following, vmap_method="sequential")


class Batches(DataView):
    """Data in mini-batches: every step sees one batch of f's examples and one of g's.

    `Problem(f, g, data=Batches(outer, inner, size))` calls `f(x, y, batch)` with examples of
    `outer` and `g(x, y, batch)` with examples of `inner`. Both must be **means over the examples
    of their batch**, plus terms without examples, such as a regulariser. Then the gradient of a
    batch is right on average. Histories and certificates are computed on all examples, in chunks.

    Arguments:
        outer, inner: the examples of f and of g, pytrees of arrays with one leading axis for the
            examples; they may be the same. NumPy and JAX arrays are kept in memory and batched
            inside the compiled loop. If one of the arrays is a `numpy.memmap`, or for a `Source`,
            examples are fetched batch by batch during the run, so there may be more of them than
            fit in memory.
        size: how many examples a batch has, or a pair: those of f and those of g.
        chunk: how many examples a full pass reads at a time; by default as many as 16 MB hold,
            but at least a batch.
        passes: the most passes over all examples that an inner solve of a certificate takes.

    The two streams are independent. Each goes through all its examples once per epoch, in an order
    drawn again for every epoch from the key given to `solve`; if batches do not divide an epoch
    evenly, a batch continues into the next one. A batch that holds all examples is used as it is.
    All inner steps of an iteration use the same batch, and oracle calls count gradients of batches.
    The position of the streams is part of the solution's state, so a run continues bit for bit.

    If a function has parameters for every example, such as a weight, put their index among the
    examples: `{"X": X, "index": np.arange(len(X))}`.
    """

    in_batches = True

    outer: Stream
    inner: Stream
    passes: int = eqx.field(static=True)

    def __init__(
        self,
        outer: PyTree,
        inner: PyTree,
        size: int | tuple[int, int],
        *,
        chunk: int | None = None,
        passes: int = PASSES,
    ):
        sizes = size if isinstance(size, tuple) else (size, size)
        if len(sizes) != 2:
            raise ProblemError(f"size must be a number or a pair of them, got {size!r}.")
        if chunk is not None:
            whole_number("chunk", chunk)
        whole_number("passes", passes)
        self.outer = _stream("outer", outer, sizes[0], chunk)
        self.inner = _stream("inner", inner, sizes[1], chunk)
        self.passes = int(passes)

    @property
    def sources(self) -> list[Source]:
        """The sources that fetch examples from outside of memory."""
        return [s.source for s in (self.outer, self.inner) if s.source is not None]

    @property
    def whole(self) -> bool:
        """Whether every batch holds all examples."""
        return all(s.size == s.length for s in (self.outer, self.inner))

    @property
    def steps_a_pass(self) -> int:
        """The steps after which g has seen all its examples."""
        return -(-self.inner.length // self.inner.size)

    @property
    def blocks(self) -> tuple[int, int]:
        """The fixed batches of f and of g; a ProblemError if the batches' size does not divide."""
        for name, stream in (("outer", self.outer), ("inner", self.inner)):
            if stream.length % stream.size:
                raise ProblemError(
                    "a solver that remembers every batch needs equal ones: size must divide the "
                    f"{stream.length} examples of {name}, got {stream.size}."
                )
        return self.outer.blocks, self.inner.blocks

    def value_f(self, f: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """f on all its examples."""
        return self.outer.mean(f, x, y)

    def value_g(self, g: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """g on all its examples."""
        return self.inner.mean(g, x, y)

    def pooled(self) -> "Pooled":
        """All examples in every step."""
        return Pooled(self)

    def parts(self, most: int) -> int:
        """How many parts the examples of f can be cut into."""
        return min(most, self.outer.length)

    def parts_of_f(
        self, f: Callable[..., Array], x: PyTree, y: PyTree, most: int
    ) -> Float[Array, " parts"]:
        """f on each of these parts, every part from all over the examples."""
        count = self.parts(most)
        size = min(self.outer.length // count, self.outer.chunk)

        def one(k: Int[Array, ""]) -> Float[Array, ""]:
            rows = k + count * jnp.arange(size, dtype=jnp.int32)
            return _at(f, x, y, self.outer._take(rows, rows))

        return lax.map(one, jnp.arange(count, dtype=jnp.int32))

    def effort(self) -> int:
        """Full passes over the examples of g."""
        return self.passes

    def effort_at_record(self, every: int | Int[Array, ""]) -> Int[Array, ""]:
        """Full passes over the examples of g."""
        least = min(20, self.passes)
        return jnp.clip(every // (2 * self.steps_a_pass), least, self.passes)

    def every(self) -> int:
        """At least ten passes, so that the values of f and g on all examples cost little."""
        return max(super().every(), 10 * self.steps_a_pass if self.steps_a_pass > 1 else 1)

    def effort_of_estimate(self, every: int | Int[Array, ""]) -> Int[Array, ""]:
        """Full passes over the examples of g; none if that would cost more than the steps."""
        if self.steps_a_pass == 1:
            return super().effort_of_estimate(every)
        return jnp.clip(every // (20 * self.steps_a_pass), 0, self.passes)

    def check(self, f: Callable, g: Callable, x: PyTree, y: PyTree) -> None:
        """Raise a ProblemError if a function is not a mean over the examples of its batch."""
        if traced(self, x, y):
            return
        for name, call, stream in (("f", f, self.outer), ("g", g, self.inner)):
            if stream.length < 2:
                continue
            count = max(min(stream.size, 32) // 2, 1)
            together, apart = (float(v) for v in _halves(call, stream, x, y, count))
            allowed = 1e3 * float(jnp.finfo(trees.dtype((x, y))).eps) * max(abs(together), 1e-30)
            if np.isfinite(together) and abs(together - apart) > allowed:
                raise ProblemError(
                    f"{name} is not a mean over the examples of its batch: on {2 * count} of them "
                    f"it is {together:.6g}, on one half and the other {apart:.6g} on average."
                )


class Pooled(DataView):
    """All examples in every step, for methods that compare exact values."""

    batches: Batches

    def value_f(self, f: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """f on all its examples."""
        return self.batches.value_f(f, x, y)

    def value_g(self, g: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """g on all its examples."""
        return self.batches.value_g(g, x, y)

    def check(self, f: Callable, g: Callable, x: PyTree, y: PyTree) -> None:
        """Raise a ProblemError if a function is not a mean over the examples of its batch."""
        self.batches.check(f, g, x, y)


class Drawn(DataView):
    """One batch for each of the two functions, with their numbers if they are fixed ones."""

    outer: PyTree
    inner: PyTree
    numbers: tuple[Int[Array, ""], Int[Array, ""]] | None = None
    source: Batches | None = None

    @property
    def everything(self) -> DataView:
        """The examples these were drawn from."""
        return self if self.source is None else self.source

    @property
    def block(self) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Which of the fixed batches these are."""
        return super().block if self.numbers is None else self.numbers

    def value_f(self, f: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """f on its batch."""
        return _at(f, x, y, self.outer)

    def value_g(self, g: Callable[..., Array], x: PyTree, y: PyTree) -> Float[Array, ""]:
        """g on its batch."""
        return _at(g, x, y, self.inner)


@eqx.filter_jit
def _halves(
    function: Callable[..., Array], stream: Stream, x: PyTree, y: PyTree, count: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The value on a few examples, and the mean of the values on the two halves of them."""
    indices = jnp.arange(2 * count, dtype=jnp.int32)
    batch = stream._take(indices, indices)
    halves = [jax.tree.map(lambda a: a[i : i + count], batch) for i in (0, count)]  # noqa: B023
    first, second = (_at(function, x, y, half) for half in halves)
    return _at(function, x, y, batch), 0.5 * (first + second)


@contextlib.contextmanager
def reading(problem: "Problem") -> Iterator[None]:
    """Turn a failure on the host into a `ProblemError` of one sentence."""
    sources = problem.sources
    for source in sources:
        source.error = None
    try:
        yield
    except Exception as error:
        if isinstance(error, ProblemError) and error.solution is not None:
            raise  # it is known already
        for source in sources:
            if source.error is not None:
                raise ProblemError(f"{source.blame}: {brief(source.error)}.") from error
        raise


def shuffled(
    words: UInt32[Array, "2"],
    epoch: Int[Array, ""],
    offset: Int[Array, ""],
    count: int,
    length: int,
) -> Int[Array, " count"]:
    r"""Entries `offset` to `offset + count` of a permutation that key and epoch determine.

    A swap-or-not shuffle: every round pairs i with $k_r - i$ mod n and swaps the pair on a hashed
    bit, so single entries are computed without storing a permutation. Positions beyond the end are
    the first of the next epoch.

    Reference: Hoang, Morris & Rogaway, An Enciphering Scheme Based on a Card Shuffle (2012).
    """
    n = jnp.asarray(length, jnp.uint32)
    position = offset.astype(jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)
    late = position >= n
    epoch_ = epoch.astype(jnp.uint32) + late.astype(jnp.uint32)
    pivot = _mix(_mix(epoch_ ^ words[0]) ^ words[1])
    coin = _mix(_mix(epoch_ ^ words[1]) + words[0])

    def swap(index: Array, step: Array) -> tuple[Array, None]:
        partner = _mix(pivot + step) % n + n - index
        partner = jnp.where(partner >= n, partner - n, partner)
        bit = _mix(jnp.maximum(index, partner) ^ _mix(coin + step)) >> 31
        return jnp.where(bit == 1, partner, index), None

    steps = jnp.arange(1, _ROUNDS + 1, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    first = jnp.where(late, position - n, position)
    return lax.scan(swap, first, steps, unroll=4)[0].astype(jnp.int32)


def _mix(v: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The finaliser of MurmurHash3: every bit of v touches every bit of the result."""
    v = (v ^ (v >> 16)) * jnp.uint32(0x85EBCA6B)
    v = (v ^ (v >> 13)) * jnp.uint32(0xC2B2AE35)
    return v ^ (v >> 16)


def _at(function: Callable[..., Array], x: PyTree, y: PyTree, batch: PyTree) -> Float[Array, ""]:
    """The value of a function on a batch, with floating entries in the dtype of x and y."""
    return function(x, y, trees.astype(batch, trees.dtype((x, y))))


def _stream(name: str, given: PyTree, size: int, chunk: int | None) -> Stream:
    source = given if isinstance(given, Source) else None
    if source is None:
        length = _count(name, given, "examples")
        if any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(given)):
            source = Source(length, lambda indices: jax.tree.map(lambda a: a[indices], given))
    else:
        length = source.length
    whole_number("size", size)
    if size > length:
        raise ProblemError(f"size must be at most the {length} examples of {name}, got {size}.")
    if length > _MOST:
        raise ProblemError(f"{name} must have at most {_MOST:,} examples, got {length:,}.")
    example = jax.tree.map(lambda a: a[:1], given) if source is None else source.example
    bytes_ = sum(leaf.nbytes for leaf in jax.tree.leaves(example))
    fits = max(_CHUNK // max(bytes_, 1), size) if chunk is None else chunk
    examples = jax.tree.map(jnp.asarray, given) if source is None else None
    return Stream(examples, source, length, int(size), int(min(fits, length)))


def _count(name: str, examples: PyTree, what: str) -> int:
    """The length of the leading axis that all arrays share."""
    leaves = jax.tree_util.tree_leaves_with_path(examples)
    if not leaves:
        raise ProblemError(f"{name} holds no arrays: it must be a pytree of arrays of {what}.")
    lengths: dict[int, str] = {}
    for path, leaf in leaves:
        where = name + jax.tree_util.keystr(path)
        if not isinstance(leaf, np.ndarray | jax.Array) or np.ndim(leaf) == 0:
            raise ProblemError(
                f"{where} must be an array with a leading axis of {what}, got "
                f"{type(leaf).__name__}."
            )
        lengths.setdefault(leaf.shape[0], where)
    if len(lengths) > 1:
        (a, at_a), (b, at_b) = list(lengths.items())[:2]
        raise ProblemError(
            f"all arrays of {name} need the same number of {what}, but {at_a} has {a} and {at_b} "
            f"has {b}."
        )
    (length,) = lengths
    if length == 0:
        raise ProblemError(f"{name} holds no {what}: its arrays are empty.")
    return length
