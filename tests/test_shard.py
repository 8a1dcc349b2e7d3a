"""Split over devices a problem gives the numbers it gives on one."""

import json
import re

import jax
import numpy as np
import pytest

import pdbo
from processes import TESTS, finish, python, start
from split import COLUMNS, ROWS, problem

SAME = 1e-10

AGREE = """
    import numpy as np
    import optax
    from jax.sharding import Mesh
    import pdbo
    from cases import iterate
    from split import *
    plain = problem()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    sharded = pdbo.shard(plain, mesh)
    rows = {leaf.addressable_shards[0].data.shape[0] for leaf in sharded.data["train"]}
    assert rows == {ROWS // 8}, rows
    dense = sharded.data["validation"][0].transposed
    assert dense.addressable_shards[0].data.shape == (COLUMNS, ROWS // 8)
    apart = {}
    runs = [pdbo.solve(p, X0, Y0, SOLVER, steps=60, every=30, tol=0) for p in (sharded, plain)]
    apart["solve"] = worst(*map(numbers, runs))
    assert runs[0].x.sharding.is_fully_replicated
    # each carries on from where the other stopped
    states = [run.state for run in runs][::-1]
    runs = [pdbo.solve(p, state=s, steps=30, tol=0) for p, s in zip((sharded, plain), states)]
    apart["carried on"] = worst(*map(numbers, runs))
    x, y = np.linspace(-1, 1, ROWS), Y0
    found = [vars(pdbo.certify(p, x, y, jnp.asarray(1.5))) for p in (sharded, plain)]
    # the entries together, relative to the largest of them, eps
    parts = [{"multiplier": c.pop("multiplier"), "entries": list(c.values())} for c in found]
    apart["certify"] = worst(*parts)
    for name, made in pdbo.solvers.SOLVERS.items():
        if made is pdbo.AutoPDBO:
            continue  # AutoPDBO compiles for long: benchmarks/devices.py has it
        solver = made()
        if name == "PDBO":
            solver = made(outer=optax.adam(0.01), inner=optax.adamw(0.02))
        both = [solver.output(iterate(p, solver, x, y, 2)) for p in (sharded, plain)]
        apart[name] = worst(*({"x": o.x.tolist(), "y": o.y.tolist()} for o in both))
    print(json.dumps(apart))
"""


def test_devices_agree():
    """The driver, the certificate and every solver but one on eight devices in two rows."""
    ((status, out, err),) = finish([start(python(AGREE), devices=8)])
    assert status == 0, err
    apart = json.loads(out)
    assert {"solve", "carried on", "certify", "PDBO", "BOME"} < set(apart)
    assert {name: value for name, value in apart.items() if not value <= SAME} == {}


def one_device():
    return jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])


def test_one_device_is_no_change():
    mesh = one_device()
    sharded = pdbo.shard(problem(), mesh)
    point = np.linspace(-1, 1, ROWS), np.linspace(0, 1, COLUMNS)
    assert sharded.outer(*point) == problem().outer(*point)
    assert sharded.inner(*point) == problem().inner(*point)


UNEVEN = """
    import warnings
    import numpy as np
    import pdbo
    f = lambda x, y, data: sum(leaf.sum() for leaf in data.values()) * (x + y)
    data = {"even": np.ones(8), "odd": np.ones((10, 2)), "few": np.ones(3), "one": 2.0}
    held = lambda p: {k: v.addressable_shards[0].data.shape[:1] for k, v in p.data.items()}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sharded = pdbo.shard(pdbo.Problem(f, f, data))
    assert said[0].filename == "<string>", said[0]
    assert held(sharded) == {"even": (2,), "odd": (10,), "few": (3,), "one": ()}, held(sharded)
    assert [w.category for w in said] == [pdbo.DataReplicated]
    chosen = {"even": False, "odd": False, "few": True, "one": True}
    assert held(pdbo.shard(pdbo.Problem(f, f, data), split=chosen))["even"] == (8,)
    assert sharded.outer(1.0, 1.0) == 2 * (8 + 20 + 3 + 2)
    print(said[0].message)
"""


def test_uneven_data_is_held_whole_and_said():
    ((status, out, err),) = finish([start(python(UNEVEN), devices=4)])
    assert status == 0, err
    assert re.match(r"data\['odd'\] has 10 rows, which 4 devices do not divide evenly", out)


SENT = """
    import numpy as np
    import pdbo
    sys.path.insert(0, sys.argv[1])
    from benchmarks.communication import communication
    rows, columns, steps = 64, 5, 7
    data = {"a": np.ones((rows, columns)), "b": np.ones((rows, columns))}
    f = lambda x, y, data: ((data["b"] @ y) ** 2).mean()
    g = lambda x, y, data: ((data["a"] @ y - x) ** 2).sum()
    problem = pdbo.shard(pdbo.Problem(f, g, data))
    found = communication(problem, 1.0, np.ones(columns), pdbo.PDBO(inner_steps=steps))
    print(json.dumps([found.operations, found.payload, found.open_loops, found.sent(4)]))
"""


def test_what_an_iteration_sends():
    """Seven inner gradients in y, then the gradients of f in y and of g in both, and two values."""
    ((status, out, err),) = finish([start(python(SENT, TESTS.parent), devices=2)])
    assert status == 0, err
    operations, payload, open_loops, sent = json.loads(out)
    columns, steps = 5, 7
    assert set(operations) == {"all-reduce"}
    assert operations["all-reduce"] >= steps + 1
    # at the least: columns a step, then twice as many; at the most a few numbers more
    least = 8 * columns * (steps + 2)
    assert least <= payload["all-reduce"] <= least + 8 * 6
    assert open_loops == 0
    assert sent == 2 * 3 / 4 * payload["all-reduce"]


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((3,), {}, "problem must be a pdbo.Problem, got int"),
        ((problem(), 8), {}, "mesh must be a jax.sharding.Mesh"),
        ((problem(),), {"split": {"train": True}}, "split must be shaped like the data"),
        ((problem(),), {"split": 1}, "split must hold True or False"),
        ((pdbo.shard(problem(), one_device()),), {}, "split over devices already"),
    ],
)
def test_wrong_arguments(arguments, options, message):
    with pytest.raises(pdbo.ProblemError, match=re.escape(message)):
        pdbo.shard(*arguments, **options)
