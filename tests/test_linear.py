"""SparseMatrix against the dense matrix, under every transformation."""

import importlib.util
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax import lax

import pdbo
from pdbo import _slices, linear
from pdbo.linear import DenseMatrix, SparseMatrix, cross_entropy

ROWS, COLUMNS, CLASSES = 30, 50, 4


def entries(seed=0):
    """Some rows and columns empty, one entry stored twice, one explicit zero."""
    matrix = sp.random(ROWS, COLUMNS, 0.1, random_state=seed, format="coo")
    keep = (matrix.row != 3) & (matrix.col != 7)
    row = np.concatenate([matrix.row[keep], [5, 5, 29]])
    col = np.concatenate([matrix.col[keep], [6, 6, 49]])
    data = np.concatenate([matrix.data[keep], [0.5, 0.25, 0.0]])
    return sp.coo_matrix((data, (row, col)), matrix.shape)


SCIPY = entries()
DENSE = jnp.asarray(SCIPY.toarray())
X = SparseMatrix.from_scipy(SCIPY)
LABELS = jnp.arange(ROWS) % CLASSES
W = {
    "weights": jax.random.normal(jax.random.key(0), (COLUMNS, CLASSES)),
    "offsets": jnp.linspace(-1, 1, CLASSES),
}


def near(a, b, tol=1e-13):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=tol, rtol=tol), a, b)


def loss(w, X):
    return cross_entropy(w, X, LABELS)


def hvp(w, X):
    return jax.jvp(lambda w: jax.grad(loss)(w, X), (w,), (w,))[1]


def third(w, X):
    return jax.grad(lambda w: sum(jnp.sum(a**3) for a in jax.tree.leaves(hvp(w, X))))(w)


LAWS = {
    "product": lambda w, X: X @ w["weights"],
    "vector": lambda w, X: X @ w["weights"][:, 0],
    "grad": jax.grad(loss),
    "value_and_grad": jax.value_and_grad(loss),
    "jvp": lambda w, X: jax.jvp(lambda w: loss(w, X), (w,), (w,)),
    "hvp": hvp,
    "reverse_over_reverse": lambda w, X: jax.vjp(lambda w: jax.grad(loss)(w, X), w)[1](w)[0],
    "hessian": lambda w, X: jax.hessian(lambda v: loss(w | {"offsets": v}, X))(w["offsets"]),
    "third": third,
    "scan": lambda w, X: lax.scan(lambda v, _: (v - X.T @ (X @ v), X @ v), w["weights"], length=3),
    "grad_of_scan": jax.grad(
        lambda w, X: jnp.sum(
            lax.fori_loop(0, 3, lambda _, v: v - jnp.tanh(X.T @ (X @ v)), w["weights"]) ** 2
        )
    ),
    "vmap": lambda w, X: jax.vmap(lambda s: jax.grad(loss)(jax.tree.map(lambda a: s * a, w), X))(
        jnp.array([1.0, 2.0, 3.0])
    ),
    "vmap_of_vmap": lambda w, X: jax.vmap(jax.vmap(lambda a, b: X @ (a * b * w["weights"])))(
        *jnp.meshgrid(jnp.arange(1.0, 3), jnp.arange(1.0, 4))
    ),
    "jacobian": lambda w, X: jax.jacfwd(lambda v: X @ v)(w["weights"][:, 0]),
    "remat": lambda w, X: jax.grad(jax.checkpoint(loss))(w, X),
}


@pytest.mark.parametrize("law", LAWS)
def test_agrees_with_the_dense_matrix(law):
    call = jax.jit(LAWS[law])
    near(call(W, X), call(W, DENSE))


def test_transpose_is_the_other_half():
    near(X.T @ DENSE, DENSE.T @ DENSE)
    near(X.T.T.todense(), DENSE)


def test_a_batch_of_matrices():
    other = entries(1)
    room = max(SCIPY.nnz, other.nnz)
    pair = [SparseMatrix.from_scipy(m, nnz=room) for m in (SCIPY, other)]
    both = jax.tree.map(lambda *a: jnp.stack(a), *pair)
    dense = jnp.stack([p.todense() for p in pair])
    starts = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), W)
    for axes, w in ((0, starts), (None, W)):
        many = jax.jit(jax.vmap(hvp, (axes, 0)))
        near(many(w, both), many(w, dense))


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_spare_room_meets_no_number_of_w(bad):
    """Only rows with an entry in column 0 see w[0], whatever the room and the kernel."""
    roomy = SparseMatrix.from_scipy(SCIPY, nnz=SCIPY.nnz + 9)
    near(roomy.todense(), DENSE)
    for matrix, stored in ((roomy, SCIPY.tocsr()), (roomy.T, SCIPY.T.tocsr())):
        w = jnp.ones((matrix.shape[1], 2)).at[0].set(bad)
        sees = np.isin(np.arange(matrix.shape[0]), stored[:, [0]].nonzero()[0])
        assert not sees[-1]
        leaves = jax.tree.leaves(matrix)
        both = jax.tree.map(lambda a: jnp.stack([a, a]), matrix)
        for product in (matrix @ w, linear._summed(*leaves, w), *jax.vmap(lambda m: m @ w)(both)):
            np.testing.assert_array_equal(np.isfinite(product).all(1), ~sees)


def test_the_sums_of_an_accelerator_agree():
    leaves = jax.tree.leaves(X)
    near(linear._summed(*leaves, W["weights"]), DENSE @ W["weights"])


def from_slices(found, shape):
    """The matrix that slices stand for, read entry by entry."""
    dense = np.zeros(shape)
    starts, rows = np.asarray(found.starts), np.asarray(found.rows)
    of = np.repeat(np.arange(len(rows)), np.diff(starts))  # the slice of each line
    for line, columns, values in zip(rows[of], found.columns, found.values, strict=False):
        for row, column, value in zip(line, columns, values, strict=True):
            if row < shape[0]:
                dense[row if row >= 0 else -1 - row, column] += value
    return dense


def test_slices_hold_the_matrix():
    """Rows longer than a slice is deep, short ones and empty ones; room to spare."""
    matrix = sp.random(70, 100, 0.3, random_state=0, format="csr")
    matrix.data[matrix.indptr[3] : matrix.indptr[4]] = 0
    matrix.eliminate_zeros()
    lengths = np.diff(matrix.indptr)
    assert lengths.min() == 0 and lengths.max() > _slices.DEPTH
    found = [_slices.slices(matrix, float, matrix.nnz + more) for more in (0, 100)]
    for each in found:
        np.testing.assert_array_equal(from_slices(each, matrix.shape), matrix.toarray())
    whole = np.asarray(found[0].rows).ravel()
    whole = -1 - whole[whole < 0]
    assert sorted(whole) == sorted(np.flatnonzero((lengths > 0) & (lengths <= _slices.DEPTH)))


def test_shapes_of_slices_depend_on_shape_and_room_alone():
    shapes = {
        tuple(a.shape for a in jax.tree.leaves(_slices.slices(entries(k).tocsr(), float, 300)))
        for k in range(5)
    }
    assert len(shapes) == 1


@pytest.mark.skipif(
    importlib.util.find_spec("jax.experimental.pallas.triton") is None, reason="no Pallas on Triton"
)
def test_the_kernel_is_lowered_for_a_gpu(monkeypatch):
    monkeypatch.setattr(linear, "available", lambda: True)
    made = SparseMatrix.from_scipy(SCIPY)
    call = jax.jit(jax.grad(loss)).trace(W, made)
    assert "triton" in call.lower(lowering_platforms=("cuda",)).as_text()
    near(call.lower().compile()(W, made), jax.grad(loss)(W, DENSE))  # and still runs on a CPU


@pytest.mark.skipif(
    importlib.util.find_spec("jax.experimental.pallas.triton") is None, reason="no Pallas on Triton"
)
def test_the_kernel_of_losses(monkeypatch):
    """Its numbers, interpreted on a CPU, and derivatives of both orders, against autodiff."""
    monkeypatch.setattr(linear, "available", lambda: True)
    products, offsets = DENSE @ W["weights"], W["offsets"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = _slices.losses_in_one(products, offsets, LABELS, interpret=True)
    near(found, _slices.plain_losses(products, offsets, LABELS))
    near(jnp.mean(found[0]), loss(W, DENSE))
    made, v = SparseMatrix.from_scipy(SCIPY), jax.tree.map(jnp.cos, W)
    turn = lambda X: jax.jvp(lambda w: jax.value_and_grad(loss)(w, X), (W,), (v,))
    near(turn(made), turn(DENSE))
    many = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), W)
    near(jax.vmap(lambda w: loss(w, made))(many), jax.vmap(lambda w: loss(w, DENSE))(many))


@pytest.mark.skipif(not _slices.available(), reason="no NVIDIA GPU")
def test_the_kernels_on_a_gpu():
    """Products both ways, the loss and its gradient, against SciPy in double precision."""
    rng = np.random.default_rng(0)
    matrix = sp.random(700, 900, 0.1, random_state=0, format="csr")
    labels = rng.integers(CLASSES, size=700)
    w, v = rng.normal(size=(900, CLASSES)), rng.normal(size=(700, CLASSES))
    made = SparseMatrix.from_scipy(matrix, np.float32)
    assert made.direct.slices is not None
    near(made @ jnp.asarray(w, np.float32), matrix @ w, 1e-5)
    near(made.T @ jnp.asarray(v, np.float32), matrix.T @ v, 1e-5)
    point = {"weights": jnp.asarray(w, np.float32), "offsets": jnp.zeros(CLASSES, np.float32)}
    value, slope = jax.jit(jax.value_and_grad(cross_entropy))(point, made, jnp.asarray(labels))
    powers = np.exp(matrix @ w)
    shares = powers / powers.sum(1, keepdims=True)
    near(value, -np.mean(np.log(shares[np.arange(700), labels])), 1e-5)
    shares[np.arange(700), labels] -= 1
    near(slope["weights"], matrix.T @ shares / 700, 1e-5)
    near(slope["offsets"], shares.mean(0), 1e-5)


def test_gradient_agrees_with_scipy_by_hand():
    weights, labels = np.asarray(W["weights"]), np.asarray(LABELS)
    scores = SCIPY @ weights + np.asarray(W["offsets"])
    residual = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    residual[np.arange(ROWS), labels] -= 1
    near(jax.grad(loss)(W, X)["weights"], SCIPY.T @ residual / ROWS)


def test_sample_weights_count_rows():
    """A weight of two is the row given twice."""
    twice = jnp.concatenate([DENSE, DENSE[:10]])
    labels = jnp.concatenate([LABELS, LABELS[:10]])
    weight = jnp.where(jnp.arange(ROWS) < 10, 2.0, 1.0)
    near(cross_entropy(W, X, LABELS, weight), cross_entropy(W, twice, labels))


def test_room_for_more_does_not_recompile():
    traced = []
    product = jax.jit(lambda X, w: traced.append(1) or X @ w)
    for seed in range(3):
        matrix = entries(seed)
        padded = SparseMatrix.from_scipy(matrix, nnz=400)
        near(product(padded, W["weights"]), matrix.toarray() @ W["weights"])
    assert len(traced) == 1


def test_a_matrix_of_zeros():
    near(SparseMatrix.from_scipy(sp.csr_array((3, 5))) @ jnp.ones(5), jnp.zeros(3))


def test_float32_by_default(x32):
    single = SparseMatrix.from_scipy(SCIPY)
    assert single.dtype == jnp.float32
    w = jnp.ones((COLUMNS, 2))
    np.testing.assert_allclose(single @ w, SCIPY @ np.ones((COLUMNS, 2)), rtol=1e-5)


def test_data_of_a_problem_is_never_a_constant():
    """Twenty thousand non-zeros show in the program no more than two hundred do."""
    labels = jnp.arange(200) % 3
    w = {"weights": jnp.zeros((1000, 3)), "offsets": jnp.zeros(3)}
    solver = pdbo.PDBO(smoothing=1e-8)

    def length(density):
        problem = pdbo.Problem(
            lambda x, w, X: cross_entropy(w, X, labels),
            lambda x, w, X: cross_entropy(w, X, labels) + linear.penalty(x, w),
            data=SparseMatrix.from_scipy(sp.random(200, 1000, density, random_state=0)),
        )
        assert problem.astype(jnp.float32).data.dtype == jnp.float32
        state = solver.init(problem, jnp.zeros((1000, 1)), w, jax.random.key(0))
        return len(eqx.filter_jit(solver.step).lower(problem, state).as_text())

    long, short = length(0.1), length(0.001)
    assert long < 1.05 * short
    if jax.default_backend() == "cpu":  # elsewhere the kernel's text is part of it
        assert long < 100_000


def test_sparse_products_of_one_iteration():
    """Two for every gradient of w, one for the value at the inner estimate: 2(N + 2) + 1."""
    problem = pdbo.Problem(
        lambda x, w, X: cross_entropy(w, X, LABELS),
        lambda x, w, X: cross_entropy(w, X, LABELS) + linear.penalty(x, w),
        data=X,
    )
    solver = pdbo.PDBO(inner_steps=1)
    state = solver.init(problem, jnp.zeros((COLUMNS, 1)), W, jax.random.key(0))
    text = str(jax.make_jaxpr(lambda s: solver.step(problem, s))(state))
    assert text.count("sparse_product") == 7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SparseMatrix.from_scipy(np.ones((2, 3))), "SciPy sparse matrix, got ndarray"),
        (lambda: SparseMatrix.from_scipy(sp.coo_array(np.ones(3))), "two-dimensional"),
        (lambda: SparseMatrix.from_scipy(SCIPY.astype(complex)), "must be real"),
        (lambda: SparseMatrix.from_scipy(SCIPY, int), "dtype floating"),
        (lambda: SparseMatrix.from_scipy(sp.csr_array((0, 3))), "must have rows"),
        (lambda: SparseMatrix.from_scipy(sp.csr_array([[np.inf, 1.0]])), "finite entries"),
        (lambda: SparseMatrix.from_scipy(SCIPY, nnz=3), "nnz must be at least"),
        (lambda: SparseMatrix.from_scipy(SCIPY, nnz="3"), "nnz must be a whole number"),
        (lambda: X @ jnp.ones(3), "with 50 rows, got shape"),
        (lambda: X @ jnp.ones(50, jnp.float32), "w must be float64"),
        (lambda: jax.grad(lambda X: jnp.sum(X @ W["weights"]), allow_int=True)(X), "entries"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(pdbo.ProblemError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_dense_matrix_is_the_array_in_every_derivative():
    X = np.random.default_rng(1).standard_normal((ROWS, COLUMNS))
    kept, plain = DenseMatrix.from_array(X), jnp.asarray(X)
    assert (kept.shape, kept.dtype) == (plain.shape, plain.dtype)
    w, v = W["weights"], W["weights"][:, 0]
    near(kept @ w, X @ np.asarray(w))
    near(kept @ v, X @ np.asarray(v))
    direction = jax.tree.map(jnp.sin, W)

    def derivatives(X):
        def value(w):
            return cross_entropy(w, X, LABELS)

        slope = jax.grad(value)
        product = jax.vjp(slope, W)[1](direction)[0]
        batch = jax.vmap(slope)(jax.tree.map(lambda a: jnp.stack([a, 2 * a]), W))
        return value(W), slope(W), product, jax.jvp(slope, (W,), (direction,))[1], batch

    jax.tree.map(near, *map(jax.jit(derivatives), (kept, plain)))


@pytest.mark.parametrize("X", [np.ones(3), np.array([["a"]]), np.ones((2, 2), complex)])
def test_dense_matrix_refuses(X):
    with pytest.raises(pdbo.ProblemError, match="X must be a real two-dimensional array"):
        DenseMatrix.from_array(X)


def test_the_kernels_fall_back_and_zeros_stay_zeros():
    """A matrix that was not made for a GPU has no slices, and no cotangent gives none."""
    leaves = jax.tree.leaves(X)
    near(linear._sliced(*leaves, W["weights"]), DENSE @ W["weights"])
    zero = linear.ad.Zero(jax.core.ShapedArray((ROWS, CLASSES), W["weights"].dtype))
    back = linear._transpose(zero, *leaves, W["weights"])
    assert back == [None] * len(leaves) + [zero]
