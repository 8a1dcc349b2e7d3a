"""A problem with data of every kind, and its numbers on any devices, for tests to compare."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.sharding import NamedSharding, PartitionSpec

import pdbo
from pdbo.linear import DenseMatrix, SparseMatrix

ROWS, COLUMNS = 48, 4
X0, Y0 = np.zeros(ROWS), np.full(COLUMNS, 0.1)
SOLVER = pdbo.PDBO(primal_step=0.05, inner_step=0.1)


def problem() -> pdbo.Problem:
    """Weighted least squares, one weight a row: x itself is as long as the data."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=COLUMNS)
    train, validation = draw.normal(size=(2, ROWS, COLUMNS))
    data = {
        "train": (train, train @ truth + 0.1 * draw.normal(size=ROWS)),
        "validation": (DenseMatrix.from_array(validation), validation @ truth),
        "sparse": SparseMatrix.from_scipy(
            scipy.sparse.random_array((ROWS, COLUMNS), density=0.5, rng=draw)
        ),
        "decay": 1e-2,
        "count": ROWS,
    }
    return pdbo.Problem(outer, inner, data, y_set=pdbo.Box(-3.0, 3.0))


def outer(x, y, data):
    a, b = data["validation"]
    return jnp.mean((a @ y - b) ** 2) + 0.1 * jnp.mean((data["sparse"] @ y - 1) ** 2)


def inner(x, y, data):
    a, b = data["train"]
    loss = jnp.sum(jax.nn.sigmoid(x) * (a @ y - b) ** 2) / data["count"]
    return loss + data["decay"] * jnp.sum(y**2)


WIDE, FEW = 512, 16  # entries of x and of y, and rows of data: what is sent depends on rows alone
WIDE_X0 = np.linspace(-1, 1, WIDE)
WIDE_Y0 = {"w": np.linspace(0, 0.1, WIDE), "c": np.zeros(3)}


def wide(batched: bool = False) -> pdbo.Problem:
    """A ridge penalty for each of many weights, on few rows; the data may come in batches."""
    draw = np.random.default_rng(1)
    a, sparse = draw.normal(size=(2, FEW, WIDE)) / WIDE**0.5
    rows = {"a": a, "b": draw.normal(size=FEW)}
    kept = scipy.sparse.csr_array(np.where(draw.random((FEW, WIDE)) < 0.1, sparse, 0))
    data = rows | {"s": SparseMatrix.from_scipy(kept)}
    sets = pdbo.Box(-np.ones(WIDE), 1.0), pdbo.Product({"w": pdbo.Box(-3.0, 3.0), "c": pdbo.Free()})
    batches = pdbo.Batches(rows, rows, 8) if batched else data
    return pdbo.Problem(wide_outer, wide_inner, batches, *sets)


def wide_outer(x, y, data):
    loss = jnp.mean((data["a"] @ y["w"] - data["b"]) ** 2) + 0.1 * jnp.sum((y["c"] - 1) ** 2)
    return loss + (0.1 * jnp.mean((data["s"] @ y["w"]) ** 2) if "s" in data else 0.0)


def wide_inner(x, y, data):
    loss = jnp.mean((data["a"] @ y["w"] - data["b"] + 1) ** 2)
    return loss + jnp.mean(jnp.exp(x) * y["w"] ** 2) + jnp.sum(y["c"] ** 2)


def split_wide(mesh, batched: bool = False) -> pdbo.Problem:
    """The same with x, the weights and the columns split over all devices."""
    spec, columns = PartitionSpec(mesh.axis_names), PartitionSpec(None, mesh.axis_names)
    split = True if batched else {"a": columns, "b": False, "s": columns}
    return pdbo.shard(wide(batched), mesh, split=split, x=spec, y={"w": spec, "c": None})


def numbers(solution: pdbo.Solution) -> dict[str, list]:
    """What a run found, to compare with another."""
    named = {k: getattr(solution, k) for k in ("x", "y", "multiplier", "f", "g")}
    named |= {f"history.{k}": v for k, v in solution.history.items()}
    named["eps"] = solution.certificate.eps
    return {k: np.nan_to_num(gathered(v)).tolist() for k, v in named.items()}


def gathered(leaf):
    """An array as NumPy has it, wherever its parts are."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        whole = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        leaf = jax.jit(lambda a: a, out_shardings=whole)(leaf)
    return np.asarray(leaf)


def worst(ours: dict[str, list], theirs: dict[str, list]) -> float:
    """The largest difference of two runs, each relative to the largest entry."""
    assert ours.keys() == theirs.keys()
    apart = []
    for name in ours:
        a, b = np.asarray(ours[name]), np.asarray(theirs[name])
        assert a.shape == b.shape, name
        apart.append(np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), 1e-300))
    return float(max(apart))
