"""Linear models on large sparse data: a differentiable sparse matrix and logistic regression."""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.experimental import sparse
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._checks import whole_number
from ._errors import ProblemError
from ._slices import (
    BLOCK,
    Compressed,
    Slices,
    available,
    losses_in_one,
    multiply,
    plain_losses,
    slices,
)

if TYPE_CHECKING:
    from jax.typing import DTypeLike


class Rows(eqx.Module):
    """The non-zeros of a matrix, row by row."""

    values: Float[Array, " nonzeros"]
    columns: Int[Array, " nonzeros"]
    rows: Int[Array, " nonzeros"]
    starts: Int[Array, " rows+1"]  # index of the first non-zero of each row, and of the end
    slices: Slices | None  # a second copy, in the layout of the GPU kernel


class SparseMatrix(eqx.Module):
    """A sparse matrix X together with its transpose, for products `X @ w` with dense w.

    The product is linear in w and its transpose is the product with the other half, so
    derivatives of any order, forward or reverse, cost as much as the products. It works under
    `jit`, `scan` and `vmap`, which joins the products of a batch of w into one. There are no
    derivatives with respect to the matrix itself.

    Make one with `SparseMatrix.from_scipy` and pass it to f and g as data of the problem: a
    matrix that is closed over becomes a constant of the program, slow to compile.

    A CPU multiplies with the compressed rows (the kernel of `jax.experimental.sparse.BCSR`), an
    NVIDIA GPU with a separate kernel if the matrix was made while the GPU was the default device,
    and other devices with sums over sorted segments. JAX 0.10.2 to 0.11.0 are reported to be slow
    at these sums on a GPU.
    """

    direct: Rows
    transposed: Rows

    @classmethod
    def from_scipy(
        cls,
        matrix: Any,  # SciPy has no types
        dtype: "DTypeLike | None" = None,
        nnz: int | None = None,
    ) -> "SparseMatrix":
        """The matrix of a SciPy sparse matrix or array.

        Arguments:
            matrix: in any of SciPy's formats; duplicate entries are added up.
            dtype: float32 or float64; JAX's default float unless given.
            nnz: room for this many non-zeros, the rest left empty: matrices of one shape with
                the same room share a compiled program.
        """
        if not hasattr(matrix, "tocsr") or len(matrix.shape) != 2:
            raise ProblemError(
                f"matrix must be a two-dimensional SciPy sparse matrix, got {_kind(matrix)}."
            )
        dtype = jnp.zeros((), dtype).dtype
        if not jnp.issubdtype(dtype, jnp.floating) or matrix.dtype.kind not in "biuf":
            raise ProblemError(
                f"matrix must be real and dtype floating, got {matrix.dtype} and {dtype}."
            )
        if 0 in matrix.shape:
            raise ProblemError(f"matrix must have rows and columns, got shape {matrix.shape}.")
        matrix = matrix.tocsr(copy=True)
        matrix.sum_duplicates()
        if not np.all(np.isfinite(matrix.data)):
            raise ProblemError("matrix must have finite entries, but some are not.")
        room = max(matrix.nnz, 1) if nnz is None else nnz
        whole_number("nnz", room)
        if room < matrix.nnz:
            raise ProblemError(f"nnz must be at least {matrix.nnz}, got {nnz}.")
        return cls(_rows(matrix, dtype, room), _rows(matrix.T.tocsr(), dtype, room))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.direct.starts.shape[-1] - 1, self.transposed.starts.shape[-1] - 1

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the entries, which is also that of w."""
        return self.direct.values.dtype

    @property
    def T(self) -> "SparseMatrix":
        """The transpose, at no cost."""
        return SparseMatrix(self.transposed, self.direct)

    def __matmul__(self, w: ArrayLike) -> Array:
        """The product with a dense vector or matrix of the same dtype."""
        w = jnp.asarray(w)
        if w.ndim not in (1, 2) or w.shape[0] != self.shape[1]:
            raise ProblemError(
                f"w must be a vector or matrix with {self.shape[1]} rows, got shape {w.shape}."
            )
        if w.dtype != self.dtype:
            raise ProblemError(f"w must be {self.dtype} as the matrix is, got {w.dtype}.")
        columns = w[:, None] if w.ndim == 1 else w
        product = _product.bind(*jax.tree.leaves(self), columns)
        return product[:, 0] if w.ndim == 1 else product

    def todense(self) -> Array:
        """The same matrix with its zeros."""
        zeros = jnp.zeros(self.shape, self.dtype)
        return zeros.at[self.direct.rows, self.direct.columns].add(self.direct.values)


class DenseMatrix(eqx.Module):
    """A dense matrix X kept as its transpose, for products `X @ w` and their derivatives.

    `X @ w` is computed as w^T X^T, which leaves the entries of a column side by side: products and
    reductions then run along memory, forward and backward. With `cross_entropy` a gradient took 30
    microseconds, with a plain array 70 (599 rows, 64 features, 10 classes, one core).
    """

    transposed: Float[Array, "columns rows"]

    @classmethod
    def from_array(cls, X: ArrayLike) -> "DenseMatrix":
        """The matrix of a two-dimensional array."""
        X = np.asarray(X)
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise ProblemError(
                f"X must be a real two-dimensional array, got {X.dtype} of shape {X.shape}."
            )
        dtype = jax.dtypes.canonicalize_dtype(X.dtype if X.dtype.kind == "f" else np.float64)
        return cls(jnp.asarray(np.ascontiguousarray(X.T, dtype), dtype))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.transposed.shape[-1], self.transposed.shape[-2]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the entries."""
        return self.transposed.dtype

    def __matmul__(self, w: Array) -> Array:
        """The product with a vector or a matrix."""
        return (w.T @ self.transposed).T


class SplitMatrix(eqx.Module):
    """A sparse matrix in blocks, one for each device of a mesh, for products `X @ w`.

    `pdbo.shard` makes it: of rows, of columns, or both ways. The two leading axes of each leaf of
    `blocks` count the blocks down and across; all blocks have room for the same number of
    non-zeros, and each has its transpose beside it. Where columns are split, w is split like them,
    and a product is the sum over the blocks across; a gradient in w is one over those down.
    """

    blocks: SparseMatrix
    mesh: Mesh = eqx.field(static=True)
    spec: PartitionSpec = eqx.field(static=True)  # the axes of the mesh down and across

    @classmethod
    def of(cls, matrix: SparseMatrix, mesh: Mesh, spec: PartitionSpec) -> "SplitMatrix":
        """The matrix in blocks; the devices must divide the rows and columns evenly."""
        from scipy.sparse import csr_array

        spec = PartitionSpec(*[*spec, None, None][:2])
        direct = jax.tree.map(np.asarray, matrix.direct)
        whole = csr_array((direct.values, direct.columns, direct.starts), shape=matrix.shape)
        down, across = (np.prod([mesh.shape[a] for a in _names(part)], dtype=int) for part in spec)
        stripes = [whole[part] for part in _slices_of(matrix.shape[0], down)]
        parts = [[s[:, part] for part in _slices_of(matrix.shape[1], across)] for s in stripes]
        room = max(1, *(part.nnz for line in parts for part in line))

        def stacked(trees: list) -> Any:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

        lines = [
            stacked([SparseMatrix.from_scipy(part, matrix.dtype, room) for part in line])
            for line in parts
        ]
        return cls(stacked(lines), mesh, spec)

    @property
    def sharding(self) -> NamedSharding:
        """Where the leaves of the blocks lie: one block on each device."""
        return NamedSharding(self.mesh, self.spec)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix."""
        down, across, starts = self.blocks.direct.starts.shape
        return down * (starts - 1), across * (self.blocks.transposed.starts.shape[2] - 1)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the entries, which is also that of w."""
        return self.blocks.dtype

    def __matmul__(self, w: ArrayLike) -> Array:
        """The product with a dense vector or matrix, split over the devices like the rows."""

        def product(blocks: SparseMatrix, w: Array) -> Array:
            return (jax.tree.map(lambda leaf: leaf[0, 0], blocks) @ w)[None]

        down, across = self.spec
        specs = {
            "in_specs": (self.spec, PartitionSpec(across)),
            "out_specs": PartitionSpec(across, down),
        }
        parts = jax.shard_map(product, mesh=self.mesh, **specs, check_vma=False)(
            self.blocks, jnp.asarray(w)
        )
        return jnp.sum(parts, axis=0)


def _names(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The axes of a mesh in one entry of a partition."""
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def _slices_of(length: int, count: int) -> list[slice]:
    size = length // count
    return [slice(k * size, (k + 1) * size) for k in range(count)]


Matrix: TypeAlias = SparseMatrix | DenseMatrix | SplitMatrix | Array | np.ndarray
"""What the functions below multiply with."""


def _kind(value: object) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f" of shape {shape}")


def _rows(matrix: Compressed, dtype: "DTypeLike", room: int) -> Rows:
    """The arrays of a SciPy CSR matrix; padding belongs to no row, so that products skip it."""
    more, count = room - matrix.nnz, matrix.shape[0]
    rows = np.repeat(np.arange(count), np.diff(matrix.indptr))
    return Rows(
        jnp.asarray(np.pad(matrix.data, (0, more)), dtype),
        jnp.asarray(np.pad(matrix.indices, (0, more)), jnp.int32),
        jnp.asarray(np.pad(rows, (0, more), constant_values=count), jnp.int32),
        jnp.asarray(matrix.indptr, jnp.int32),
        slices(matrix, dtype, room) if available() else None,
    )


# The product as a primitive of JAX: linear in w, its transpose the product with the other half.
# The operands are the leaves of a SparseMatrix and w.

_product = Primitive("sparse_product")


def _direct(leaves: Sequence[Array]) -> Rows:
    half = len(leaves) // 2
    more = leaves[4:half]
    return Rows(*leaves[:4], slices=Slices(*more) if more else None)


@_product.def_abstract_eval
def _(*operands: ShapedArray) -> ShapedArray:
    *leaves, w = operands
    return w.update(shape=(leaves[3].shape[0] - 1, w.shape[1]))


def _compressed(*operands: Array) -> Array:
    """The product by compressed rows."""
    *leaves, w = operands
    X = _direct(leaves)
    shape = (X.starts.shape[0] - 1, w.shape[0])
    return sparse.BCSR((X.values, X.columns, X.starts), shape=shape, indices_sorted=True) @ w


def _summed(*operands: Array) -> Array:
    """The product by sums over sorted segments."""
    *leaves, w = operands
    X = _direct(leaves)
    terms = X.values[:, None] * w[X.columns]
    return jax.ops.segment_sum(terms, X.rows, X.starts.shape[0] - 1, indices_are_sorted=True)


def _sliced(*operands: Array) -> Array:
    """The product by the GPU kernel if the matrix was made for it, else by sums."""
    *leaves, w = operands
    X = _direct(leaves)
    if X.slices is None:
        return _summed(*operands)
    return multiply(X.slices, X.starts.shape[0] - 1, w)


def _quietly(function: Callable, many: bool) -> Callable:
    """A lowering by Pallas: newer versions of JAX announce the end of Pallas on Triton."""

    def lower(context: mlir.LoweringRuleContext, *operands: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return mlir.lower_fun(function, multiple_results=many)(context, *operands)

    return lower


def _jvp(primals: Sequence[Array], tangents: Sequence[Array | ad.Zero]) -> tuple[Array, Array]:
    if not all(isinstance(t, ad.Zero) or t.dtype == jax.dtypes.float0 for t in tangents[:-1]):
        raise ProblemError(
            "a SparseMatrix cannot be differentiated with respect to its entries, only the "
            "product with respect to w."
        )
    return _product.bind(*primals), _product.bind(*primals[:-1], tangents[-1])


def _transpose(
    cotangent: Array | ad.Zero, *operands: Array | ad.UndefinedPrimal
) -> list[Array | ad.Zero | None]:
    leaves = operands[:-1]
    of_matrix = [None] * len(leaves)
    if isinstance(cotangent, ad.Zero):
        return [*of_matrix, cotangent]
    half = len(leaves) // 2
    return [*of_matrix, _product.bind(*leaves[half:], *leaves[:half], cotangent)]


def _batch(operands: Sequence[Array], axes: Sequence[int | None]) -> tuple[Array, int]:
    *leaves, w = operands
    mapped = [axis is not None for axis in axes]
    axis = axes[-1]
    if axis is not None and not any(mapped[:-1]):
        w = jnp.moveaxis(w, axis, 2)
        product = _product.bind(*leaves, w.reshape(w.shape[0], -1))
        return product.reshape(-1, *w.shape[1:]), 2
    front = [jnp.moveaxis(o, a, 0) for o, a in zip(operands, axes, strict=True) if a is not None]

    def one(parts: list[Array]) -> Array:
        rest = iter(parts)
        return _product.bind(
            *(next(rest) if m else o for o, m in zip(operands, mapped, strict=True))
        )

    return lax.map(one, front), 0


_product.def_impl(jax.jit(_product.bind))
ad.primitive_jvps[_product] = _jvp
ad.primitive_transposes[_product] = _transpose
batching.primitive_batchers[_product] = _batch
mlir.register_lowering(_product, mlir.lower_fun(_summed, multiple_results=False))
mlir.register_lowering(
    _product, mlir.lower_fun(_compressed, multiple_results=False), platform="cpu"
)
mlir.register_lowering(_product, _quietly(_sliced, False), platform="cuda")


def scores(w: PyTree, X: Matrix) -> Float[Array, "rows classes"]:
    """One score for each row of X and each class: `X @ w["weights"] + w["offsets"]`."""
    return X @ w["weights"] + w["offsets"]


def cross_entropy(
    w: PyTree,
    X: Matrix,
    labels: Int[Array, " rows"],
    sample_weight: Float[Array, " rows"] | None = None,
) -> Float[Array, ""]:
    """The mean cross-entropy of the softmax of the scores; value and gradient share `X @ w`.

    Arguments:
        w: `{"weights": (features, classes), "offsets": (classes,)}`.
        X: a `SparseMatrix`, a `DenseMatrix` or an array.
        labels: the class of each row, from 0 on.
        sample_weight: a weight for each row; the mean is then weighted.
    """
    if isinstance(X, SparseMatrix) and X.direct.slices is not None and sample_weight is None:
        return _mean_loss(X @ w["weights"], w["offsets"], labels)
    if isinstance(X, DenseMatrix):  # class by class, the layout of its product
        rows, axis = w["weights"].T @ X.transposed + w["offsets"][:, None], 0
    else:
        rows, axis = scores(w, X), 1
    number = jnp.arange(rows.shape[axis], dtype=labels.dtype)
    is_label = jnp.expand_dims(labels, axis) == jnp.expand_dims(number, 1 - axis)
    # a masked sum instead of a look-up, whose derivative would be a scatter
    losses = jax.nn.logsumexp(rows, axis=axis) - jnp.sum(jnp.where(is_label, rows, 0), axis=axis)
    if sample_weight is None:
        return jnp.mean(losses)
    return jnp.sum(sample_weight * losses) / jnp.sum(sample_weight)


# Softmax, losses and their gradient as a primitive of JAX: one kernel on an NVIDIA GPU.

_softmax = Primitive("softmax_losses")
_softmax.multiple_results = True


@_softmax.def_abstract_eval
def _(products: ShapedArray, *_: ShapedArray) -> list[ShapedArray]:
    count, classes = products.shape
    blocks = products.update(shape=(-(-count // BLOCK), classes))
    return [products.update(shape=(count,)), products, blocks]


def _batch_losses(operands: Sequence[Array], axes: Sequence[int | None]) -> tuple[Any, list[int]]:
    return jax.vmap(plain_losses, axes)(*operands), [0, 0, 0]


_softmax.def_impl(jax.jit(_softmax.bind))
batching.primitive_batchers[_softmax] = _batch_losses
mlir.register_lowering(_softmax, mlir.lower_fun(plain_losses, multiple_results=True))
mlir.register_lowering(_softmax, _quietly(losses_in_one, True), platform="cuda")


@jax.custom_jvp
def _mean_loss(products: Array, offsets: Array, labels: Array) -> Float[Array, ""]:
    """The mean cross-entropy of scores on a GPU: value and gradient come from one kernel."""
    return jnp.mean(_losses(products, offsets, labels)[0])


@_mean_loss.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    values, slopes, sums = _losses(*primals)
    return jnp.mean(values), jnp.sum(slopes * tangents[0]) + jnp.sum(sums * tangents[1])


@jax.custom_jvp
def _losses(products: Array, offsets: Array, labels: Array) -> tuple[Array, Array, Array]:
    """The losses of the rows, and the gradients of their mean in the scores and in the offsets."""
    values, slopes, sums = _softmax.bind(products, offsets, labels)
    return values, slopes, jnp.sum(sums, axis=0)


@_losses.defjvp
def _(
    primals: tuple, tangents: tuple
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    values, slopes, sums = _losses(*primals)
    count, labels = slopes.shape[0], primals[2]
    change = tangents[0] + tangents[1]
    is_label = labels[:, None] == jnp.arange(slopes.shape[1], dtype=labels.dtype)
    shares = count * slopes + is_label.astype(slopes.dtype)
    turned = shares * (change - jnp.sum(shares * change, axis=1, keepdims=True))
    turned = turned / count
    moved = (count * jnp.sum(slopes * change, axis=1), turned, jnp.sum(turned, axis=0))
    return (values, slopes, sums), moved


def penalty(x: Array, w: PyTree) -> Float[Array, ""]:
    r"""$\tfrac12$ mean$(e^x w^2)$ over the weights; x has any shape that broadcasts to theirs."""
    return 0.5 * jnp.mean(jnp.exp(x) * w["weights"] ** 2)


def accuracy(w: PyTree, X: Matrix, labels: Int[Array, " rows"]) -> Float[Array, ""]:
    """The share of the rows whose highest score is that of their label."""
    hits: Bool[Array, " rows"] = jnp.argmax(scores(w, X), axis=1) == labels
    return jnp.mean(hits.astype(w["weights"].dtype))
