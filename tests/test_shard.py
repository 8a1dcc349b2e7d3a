"""Split over devices a problem gives the numbers it gives on one."""

import json
import re

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import pdbo
from pdbo._mesh import Layout, put, shardings
from processes import TESTS, finish, python, start
from split import COLUMNS, ROWS, WIDE, inner, outer, problem

EIGHT = """
    import equinox as eqx
    import numpy as np
    import optax
    import pdbo
    sys.path.insert(0, sys.argv[1])
    from benchmarks.communication import counted
    from pdbo._certificate import measure
    from pdbo._checks import check_point
    from pdbo._driver import advance, begin
    from pdbo._history import Certified, estimated
    from pdbo._precision import Start
    from pdbo._programs import QUICK
    from pdbo._solution import launch
    from pdbo.solvers import BatchPDBO
    from split import *
    FAST = QUICK | {"xla_backend_optimization_level": 0}
    mesh = jax.make_mesh((8,), ("all",))
    found = {}
    is_key = lambda a: hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jax.dtypes.prng_key)

    def note(name, outputs, programs):
        real = [[a for a in jax.tree.leaves(o) if not is_key(a)] for o in outputs]
        flat = lambda a: np.nan_to_num(gathered(a).astype(float)).ravel().tolist()
        leaves = [[flat(leaf) for leaf in r] for r in real]
        ours, theirs = (dict(enumerate(part)) for part in leaves)
        held, whole = (p.memory_analysis() for p in programs)
        sizes = [m.argument_size_in_bytes + m.temp_size_in_bytes for m in (held, whole)]
        sent = counted(programs[0].as_text())
        found[name] = {
            "apart": worst(ours, theirs), "memory": 8 * sizes[0] / sizes[1],
            "kinds": list(sent.operations), "count": sum(sent.operations.values()),
            "largest": sent.largest, "open": sent.open_loops,
        }

    def both(name, make, problems=None):
        outputs, programs = [], []
        for p in problems or (split_wide(mesh), wide()):
            call, arguments = make(p)
            program = eqx.filter_jit(call, compiler_options=FAST).lower(*arguments).compile()
            outputs.append(program(*arguments))
            programs.append(program.compiled)
        note(name, outputs, programs)
        return outputs

    def start(p, solver):
        x, y = check_point(p, WIDE_X0, WIDE_Y0)
        return eqx.filter_jit(launch, compiler_options=FAST)(p, x, y, solver, jax.random.key(0))

    def stepped(solver):
        def make(p):
            run = start(p, solver)
            def step(p, run):
                s = solver.step(p, run.solver_state)
                return p.placed(s, run.point.x, run.point.y) if p.mesh is not None else s
            return step, (p, run)
        return make

    for name, made in pdbo.solvers.SOLVERS.items():
        if made.in_parts:
            state = both(name, stepped(made()))[0]
            found[name]["calls"] = sum(np.asarray(c).item() for c in made().calls(state))
    alone = jax.make_mesh((1,), ("all",), devices=jax.devices()[:1])
    default = begin(Start(split_wide(alone), WIDE_X0, WIDE_Y0), None, None).solver
    assert isinstance(default, BatchPDBO) and default.estimate
    both("default", stepped(default), (split_wide(mesh), split_wide(alone)))
    adam = pdbo.PDBO(outer=optax.adam(0.01), inner=optax.adamw(0.02))
    state = both("Optax", stepped(adam))[0]
    large = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (WIDE,)]
    assert len(large) == 9
    assert {a.addressable_shards[0].data.shape for a in large} == {(WIDE // 8,)}
    single = [p.astype(jnp.float32) for p in (split_wide(mesh), wide())]
    WIDE_X0, WIDE_Y0, kept = *jax.tree.map(np.float32, (WIDE_X0, WIDE_Y0)), (WIDE_X0, WIDE_Y0)
    both("float32", stepped(pdbo.PDBO()), single)
    WIDE_X0, WIDE_Y0 = kept
    both("batches", stepped(pdbo.solvers.SOBA()), (split_wide(mesh, True), wide(True)))

    def chunk(p):
        recorder = Certified(jnp.asarray(0.0), jnp.asarray(2), None, estimated)
        advanced = lambda p, run: advance(p, run, recorder, run.step + 4, 2, True, rows=4)
        return advanced, (p, start(p, adam))
    chunks = both("driver", chunk)
    part = lambda run: run.point.x.addressable_shards[0].data.shape[0]
    # each carries on from where the other stopped
    there = zip((wide(), split_wide(mesh)), chunks)
    moved = [begin(Start(p, state=c.run), None, None) for p, c in there]
    assert {part(run) for run in (chunks[0].run, *moved)} == {WIDE // 8}

    def certificate(p):
        x, y = check_point(p, WIDE_X0, WIDE_Y0)
        def call(p, x, y):
            found = measure(p, x, y, jnp.asarray(1.5), None, 1e-6, 200)
            # the gradient a search ends with is rounding: relative to those it began with, near 1
            return eqx.tree_at(lambda c: c.inner_residual, found, 1 + found.inner_residual)
        return call, (p, x, y)
    both("certificate", certificate)

    sets = pdbo.Ball(0.5), pdbo.Simplex(2.0), pdbo.NonNegative(), pdbo.Halfspace(np.ones(WIDE), 0.1)
    for s in sets:
        def make(p):
            x, _ = check_point(p, WIDE_X0, WIDE_Y0)
            return (lambda x: (s.project(x), s.tangent(s.project(x), x))), (x,)
        both(type(s).__name__, make)

    # data alone
    import warnings
    from benchmarks.communication import communication
    grid = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    data = pdbo.shard(problem(), grid).data
    assert {leaf.addressable_shards[0].data.shape[0] for leaf in data["train"]} == {ROWS // 8}
    dense = data["validation"][0].transposed
    assert dense.addressable_shards[0].data.shape == (COLUMNS, ROWS // 8)
    for spec in (PartitionSpec("a"), PartitionSpec(None, "b"), PartitionSpec("a", "b")):
        split = pdbo.shard(problem(), grid, split={**dict.fromkeys(data, False), "sparse": spec})
        held = split.data["sparse"]
        y = np.linspace(-1, 1, COLUMNS)
        pull = [jax.vjp(lambda y: m @ y, jnp.asarray(y)) for m in (held, problem().data["sparse"])]
        product, back = ([p[0], p[1](np.ones(ROWS))[0]] for p in pull)
        assert held.shape == (ROWS, COLUMNS) and np.allclose(product[0], back[0], 0, 1e-15)
        assert np.allclose(product[1], back[1], 0, 1e-14)

    four = jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])
    f = lambda x, y, data: sum(leaf.sum() for leaf in data.values()) * (x + y)
    data = {"even": np.ones(8), "odd": np.ones((10, 2)), "few": np.ones(3), "one": 2.0}
    held = lambda p: {k: v.addressable_shards[0].data.shape[:1] for k, v in p.data.items()}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sharded = pdbo.shard(pdbo.Problem(f, f, data), four)
    assert said[0].filename == "<string>", said[0]
    assert held(sharded) == {"even": (2,), "odd": (10,), "few": (3,), "one": ()}, held(sharded)
    assert [w.category for w in said] == [pdbo.DataReplicated]
    chosen = {"even": False, "odd": False, "few": True, "one": True}
    assert held(pdbo.shard(pdbo.Problem(f, f, data), four, split=chosen))["even"] == (8,)
    assert sharded.outer(1.0, 1.0) == 2 * (8 + 20 + 3 + 2)

    rows, columns, steps = 64, 5, 7
    data = {"a": np.ones((rows, columns)), "b": np.ones((rows, columns))}
    f = lambda x, y, data: ((data["b"] @ y) ** 2).mean()
    g = lambda x, y, data: ((data["a"] @ y - x) ** 2).sum()
    two = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    whole = pdbo.shard(pdbo.Problem(f, g, data), two)
    sent = communication(whole, 1.0, np.ones(columns), pdbo.PDBO(inner_steps=steps))
    sent = [sent.operations, sent.payload, sent.open_loops, sent.sent(4)]
    print(json.dumps({"in parts": found, "uneven": str(said[0].message), "sent": sent}))
"""


@pytest.fixture(scope="module")
def eight():
    """What a process with eight devices found."""
    ((status, out, err),) = finish([start(python(EIGHT, TESTS.parent), devices=8)])
    assert status == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def in_parts(eight):
    return eight["in parts"]


def test_split_unknowns_agree(in_parts):
    """Every solver, Optax, batches, the driver, the certificate and the sets, x and y split."""
    assert {"PDBO", "BOME", "ITD", "default", "driver", "certificate", "Simplex"} < set(in_parts)
    apart = {n: f["apart"] for n, f in in_parts.items()}
    assert apart.pop("float32") <= 1e-6
    assert {n: a for n, a in apart.items() if a > 1e-12} == {}


def test_split_unknowns_share_the_memory(in_parts):
    """Per device at most 1.3 of all over eight; a batch comes on top, and scalars beside a set."""
    few = {"batches", "Ball", "Simplex", "NonNegative", "Halfspace"}
    held = {n: f["memory"] for n, f in in_parts.items() if n not in few}
    assert {n: m for n, m in held.items() if m > 1.3} == {}


def test_no_leaf_is_gathered(in_parts):
    """Sums over devices alone, none as long as x, and a few for each gradient."""
    for name, found in in_parts.items():
        if name == "batches":  # devices gather the batch
            continue
        assert set(found["kinds"]) <= {"all-reduce"}, name
        assert found["largest"] < 8 * WIDE, name
        if "calls" in found:
            assert found["open"] == 0
            assert found["count"] <= 2 * found["calls"] + 8, name


def one_device():
    return jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])


def test_one_device_is_no_change():
    mesh = one_device()
    sharded = pdbo.shard(problem(), mesh)
    point = np.linspace(-1, 1, ROWS), np.linspace(0, 1, COLUMNS)
    assert sharded.outer(*point) == problem().outer(*point)
    assert sharded.inner(*point) == problem().inner(*point)


def test_uneven_data_is_held_whole_and_said(eight):
    pattern = r"data\['odd'\] has 10 rows, which 4 devices do not divide evenly"
    assert re.match(pattern, eight["uneven"])


def test_what_an_iteration_sends(eight):
    """Seven inner gradients in y, then the gradients of f in y and of g in both, and two values."""
    operations, payload, open_loops, sent = eight["sent"]
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
        ((problem(),), {"split": 1}, "split must hold True, False or a PartitionSpec"),
        ((pdbo.shard(problem(), one_device()),), {}, "split over devices already"),
        ((problem(), one_device()), {"x": 3}, "x must hold PartitionSpecs or names of axes"),
        (
            (problem(), one_device()),
            {"y": "model"},
            "y names the axis 'model', but the mesh has 'data'",
        ),
        (
            (pdbo.Problem(outer, inner, {}, x_set=pdbo.Affine([[1.0, 1.0]], [1.0])), one_device()),
            {"x": PartitionSpec("data")},
            "x_set: Affine cannot be projected onto in parts",
        ),
    ],
)
def test_wrong_arguments(arguments, options, message):
    with pytest.raises(pdbo.ProblemError, match=re.escape(message)):
        pdbo.shard(*arguments, **options)


@pytest.mark.parametrize(
    "spec, x0, message",
    [
        (PartitionSpec("a"), np.zeros(5), "x has 5 entries along axis 0, which 2 devices do not"),
        (PartitionSpec(None, "a"), np.zeros(4), "x has 1 axes, fewer than"),
        ({"w": PartitionSpec("a")}, np.zeros(4), "x in shard must be shaped like x"),
        ("a", np.zeros((151, 151)), "the 2 devices of 'a' divide no axis evenly"),
    ],
)
def test_a_point_that_cannot_be_split(spec, x0, message):
    """Shapes are known when the start is: two devices that need not be there."""
    mesh = jax.sharding.AbstractMesh((2,), ("a",))
    with pytest.raises(pdbo.ProblemError, match=re.escape(message)):
        shardings(mesh, spec, x0, "x")


@pytest.mark.parametrize("solver", [pdbo.AutoPDBO(exact=False), pdbo.solvers.Implicit()])
def test_methods_that_need_the_whole_point_say_so(solver):
    split = pdbo.shard(problem(), one_device(), x=PartitionSpec("data"))
    with pytest.raises(pdbo.ProblemError, match="needs x and y whole on every device"):
        pdbo.solve(split, np.zeros(ROWS), np.zeros(COLUMNS), solver)
    with pytest.raises(pdbo.ProblemError, match="multistart needs x and y whole"):
        pdbo.multistart(split, np.zeros((2, ROWS)), np.zeros((2, COLUMNS)), solver)


def test_split_unknowns_keep_to_the_method_in_parts():
    """With all examples in a batch, BatchPDBO would make one array of y, which gathers it."""
    rows = np.ones((8, 3), np.float32)
    whole = pdbo.Problem(
        lambda x, y, d: ((d @ (y - x)) ** 2).mean(),
        lambda x, y, d: ((d @ y) ** 2).mean() + x**2 @ y,
        pdbo.Batches(rows, rows, 8),
    )
    split = pdbo.shard(whole, one_device(), y=PartitionSpec("data"))
    start = np.ones(3, np.float32), np.ones(3, np.float32)
    ends = [
        pdbo.solve(p, *start, pdbo.solvers.BatchPDBO(), steps=1, tol=None) for p in (whole, split)
    ]
    kinds = [type(end.state.solver_state.solver).__name__ for end in ends]
    assert kinds == ["WholeState", "BatchPDBOState"]


def test_data_that_is_fetched_cannot_be_split():
    rows = pdbo.data.Source(16, lambda index: np.ones((len(index), 2)))
    fetched = pdbo.Problem(outer, inner, pdbo.Batches(rows, rows, 4))
    with pytest.raises(pdbo.ProblemError, match="fetched from outside of memory cannot be split"):
        pdbo.shard(fetched, one_device())


def test_sets_follow_the_point_they_belong_to():
    """One specification for a product, one box for many leaves, keys among the data."""
    spec, z = PartitionSpec("data"), {"a": np.full(4, 3.0), "b": np.full(2, -3.0)}
    boxes = pdbo.Product({"a": pdbo.Box(-1.0, np.full(4, 2.0)), "b": pdbo.NonNegative()})
    for given, specs in ((boxes, spec), (pdbo.Box(-1.0, 2.0), {"a": spec, "b": None})):
        drawn = pdbo.Problem(lambda x, y, d: x["a"], lambda x, y, d: y, jax.random.key(0), given)
        split = pdbo.shard(drawn, one_device(), x=specs)
        for one, other in zip(
            jax.tree.leaves(split.x_set.project(z)), jax.tree.leaves(given.project(z)), strict=True
        ):
            np.testing.assert_array_equal(one, other)
        assert jax.random.key_data(split.data).tolist() == [0, 0]


def test_a_point_that_is_whole_is_held_as_it_is():
    whole = Layout.of(one_device(), (None, None), np.zeros(3), np.zeros(2))
    tree = {"x": np.zeros(3)}
    assert whole.held(tree) is tree


def test_keys_are_placed_as_their_numbers_are():
    found = put(jax.random.key(7), NamedSharding(one_device(), PartitionSpec()))
    assert jax.random.uniform(found) == jax.random.uniform(jax.random.key(7))
