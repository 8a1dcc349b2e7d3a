"""Logistic regression on an NVIDIA GPU: Pallas kernels for sparse products and for the softmax."""

import importlib.util
from typing import TYPE_CHECKING, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

if TYPE_CHECKING:
    from jax.typing import DTypeLike

# Chosen by the time of PDBO's iterations on an H200, for 20 Newsgroups and 20 classes.
HEIGHT = 32  # pieces of rows in a slice
DEPTH = 32  # most entries in a piece: longer rows are cut
WIDTH = 32  # columns of the dense matrix that one program works on
TOGETHER = 4  # lines of a slice whose rows of the dense matrix are fetched at once
WARPS = 8  # of 32 threads each, per program
BLOCK = 32  # rows of scores that one program turns into losses


class Compressed(Protocol):
    """What is used of a CSR matrix of SciPy's."""

    shape: tuple[int, int]
    nnz: int
    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray


class Slices(eqx.Module):
    """Pieces of rows in order of their length, HEIGHT of them side by side in a slice.

    Slice s holds the lines `starts[s] : starts[s + 1]` of `values` and `columns`: the k-th of them
    has the k-th entry of each piece. `rows[s]` is the row that each piece adds to: -1 - row if the
    piece is the whole row, and the number of rows if the place is empty.

    Reference: Kreutzer, Hager, Wellein, Fehske & Bishop, SIAM J. Sci. Comput. 36 (2014), who call
    it SELL-C-sigma; cutting long rows is added.
    """

    values: Float[Array, "lines height"]
    columns: Int[Array, "lines height"]
    starts: Int[Array, " slices+1"]
    rows: Int[Array, "slices height"]


def available() -> bool:
    """Whether the default device is an NVIDIA GPU and this JAX compiles Pallas kernels for it."""
    if importlib.util.find_spec("jax.experimental.pallas.triton") is None:
        return False
    return "cuda" in jax.devices()[0].client.platform_version.lower()


def slices(matrix: Compressed, dtype: "DTypeLike", room: int) -> Slices:
    """The slices of a SciPy CSR matrix; their shapes depend on its shape and the room alone."""
    count, lengths = matrix.shape[0], np.diff(matrix.indptr)
    pieces = -(-lengths // DEPTH)
    row = np.repeat(np.arange(count), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = matrix.indptr[row] + DEPTH * piece
    size = np.minimum(DEPTH, matrix.indptr[row + 1] - start)
    order = np.argsort(-size, kind="stable")
    most = -(-(room // DEPTH + count) // HEIGHT)

    def shaped(a: np.ndarray, fill: int) -> np.ndarray:
        return np.pad(a[order], (0, most * HEIGHT - len(a)), constant_values=fill)

    size, start = shaped(size, 0), shaped(start, 0)
    row = shaped(np.where(pieces[row] == 1, -1 - row, row), count)
    starts = np.concatenate([[0], np.cumsum(size.reshape(most, HEIGHT).max(1))])
    # lengths fall from slice to slice, so the shorter pieces leave at most DEPTH lines empty
    shape = (room // HEIGHT + DEPTH + 2, HEIGHT)
    values, columns = np.zeros(shape), np.zeros(shape, np.int32)
    place, lane = np.repeat(starts[:-1], HEIGHT), np.tile(np.arange(HEIGHT), most)
    for k in range(int(size.max(initial=0))):
        long = size > k
        values[place[long] + k, lane[long]] = matrix.data[start[long] + k]
        columns[place[long] + k, lane[long]] = matrix.indices[start[long] + k]
    return Slices(
        jnp.asarray(values, dtype),
        jnp.asarray(columns),
        jnp.asarray(starts, jnp.int32),
        jnp.asarray(row.reshape(most, HEIGHT), jnp.int32),
    )


def multiply(matrix: Slices, count: int, w: Float[Array, "columns k"]) -> Float[Array, "rows k"]:
    """The product with w of a matrix of `count` rows."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    width = min(WIDTH, 1 << (w.shape[1] - 1).bit_length())

    # the arguments are Pallas references, which have no public type
    def program(values, columns, starts, rows, w, _, out) -> None:
        this = pl.program_id(0)
        column = pl.program_id(1) * width + jnp.arange(width, dtype=jnp.int32)[None, :]
        inside = jnp.broadcast_to(column < out.shape[1], (HEIGHT, width))
        first, last = triton.load(starts.at[this]), triton.load(starts.at[this + 1])

        def add(turn: Int[Array, ""], total: Array) -> Array:
            terms = []
            for line in [first + TOGETHER * turn + k for k in range(TOGETHER)]:
                in_slice, every = jnp.broadcast_to(line < last, (HEIGHT,)), pl.ds(0, HEIGHT)
                at = triton.load(columns.at[line, every], mask=in_slice, other=0)[:, None]
                value = triton.load(values.at[line, every], mask=in_slice, other=0)[:, None]
                real = inside & (value != 0)  # padding must not touch w, which may be inf or NaN
                terms.append(value * triton.load(w.at[at, column], mask=real, other=0))
            return sum(terms, total)

        @pl.when(last > first)
        def _() -> None:
            turns = (last - first + (TOGETHER - 1)) // TOGETHER
            total = lax.fori_loop(0, turns, add, jnp.zeros((HEIGHT, width), out.dtype))
            row = triton.load(rows.at[this, pl.ds(0, HEIGHT)])[:, None]
            whole, part = row < 0, (row >= 0) & (row < count)
            at = jnp.where(whole, -1 - row, jnp.where(part, row, 0))
            triton.store(out.at[at, column], total, mask=inside & whole)
            triton.atomic_add(out, (at, column), total, mask=inside & part)

    call = pl.pallas_call(
        program,
        out_shape=jax.ShapeDtypeStruct((count, w.shape[1]), w.dtype),
        grid=(matrix.starts.shape[0] - 1, -(-w.shape[1] // width)),
        input_output_aliases={5: 0},
        compiler_params=triton.CompilerParams(num_warps=WARPS),
    )
    # a zero that the compiler cannot recognise: constants are shared, and then copied
    zeros = jnp.full((count, w.shape[1]), matrix.starts[0].astype(w.dtype))
    return call(matrix.values, matrix.columns, matrix.starts, matrix.rows, w, zeros)


def plain_losses(
    products: Float[Array, "rows classes"],
    offsets: Float[Array, " classes"],
    labels: Int[Array, " rows"],
) -> tuple[Float[Array, " rows"], Float[Array, "rows classes"], Float[Array, "blocks classes"]]:
    """The cross-entropy of each row of scores, and the gradient of their mean in the scores.

    The scores are the products plus the offsets. With it, the sums of the gradient over BLOCK rows.
    XLA makes half a dozen kernels of this.
    """
    scores = products + offsets
    total = jax.nn.logsumexp(scores, axis=1)
    is_label = labels[:, None] == jnp.arange(scores.shape[1], dtype=labels.dtype)
    own = jnp.sum(jnp.where(is_label, scores, 0), axis=1)
    shares = jnp.exp(scores - total[:, None])
    slopes = (shares - is_label.astype(scores.dtype)) / scores.shape[0]
    blocks = jnp.pad(slopes, ((0, -len(slopes) % BLOCK), (0, 0)))
    return total - own, slopes, jnp.sum(blocks.reshape(-1, BLOCK, scores.shape[1]), axis=1)


def losses_in_one(
    products: Float[Array, "rows classes"],
    offsets: Float[Array, " classes"],
    labels: Int[Array, " rows"],
    interpret: bool = False,
) -> tuple[Float[Array, " rows"], Float[Array, "rows classes"], Float[Array, "blocks classes"]]:
    """The same as one kernel."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    count, classes = products.shape
    width = 1 << (classes - 1).bit_length()
    blocks = -(-count // BLOCK)

    # the arguments are Pallas references, which have no public type
    def program(products, offsets, labels, losses, slopes, sums) -> None:
        this = pl.program_id(0)
        row = this * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        column = jnp.arange(width, dtype=jnp.int32)
        inside, real = row < count, column < classes
        both = inside[:, None] & real[None, :]
        scores = triton.load(products.at[row[:, None], column[None, :]], mask=both, other=0)
        scores = scores + triton.load(offsets.at[column], mask=real, other=0)[None, :]
        scores = jnp.where(real[None, :], scores, -jnp.inf)
        top = jnp.max(scores, axis=1)
        powers = jnp.exp(scores - top[:, None])
        size = jnp.sum(powers, axis=1)
        label = triton.load(labels.at[row], mask=inside, other=0)
        is_label = label.astype(jnp.int32)[:, None] == column[None, :]
        own = jnp.sum(jnp.where(is_label, scores, 0), axis=1)
        triton.store(losses.at[row], jnp.log(size) + top - own, mask=inside)
        slope = (powers / size[:, None] - jnp.where(is_label, 1, 0)) / count
        slope = slope.astype(slopes.dtype)
        triton.store(slopes.at[row[:, None], column[None, :]], slope, mask=both)
        total = jnp.sum(jnp.where(inside[:, None], slope, 0), axis=0)[None, :]
        at = jnp.full((1, 1), this, jnp.int32)
        triton.store(sums.at[at, column[None, :]], total, mask=real[None, :])

    call = pl.pallas_call(
        program,
        out_shape=(
            jax.ShapeDtypeStruct((count,), products.dtype),
            jax.ShapeDtypeStruct((count, classes), products.dtype),
            jax.ShapeDtypeStruct((blocks, classes), products.dtype),
        ),
        grid=(blocks,),
        compiler_params=triton.CompilerParams(num_warps=4),
        interpret=interpret,
    )
    return call(products, offsets, labels)
