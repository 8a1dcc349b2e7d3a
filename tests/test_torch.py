"""f and g in PyTorch: values, derivatives and runs as in JAX, and sentences for the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo
from pdbo.exact.large import Large
from pdbo.exact.oracle import Oracle

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'pdbo[torch]'")

from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

torch.set_num_threads(1)  # these networks are so small that threads would mostly wait

SHAPES = {"a": (6, 5), "b": (5,), "c": (5, 3)}


def mlp_problem(lib):
    """One network with a weight decay per layer, in PyTorch or in JAX."""
    rng = np.random.default_rng(0)
    X, t = rng.normal(size=(24, 6)), rng.integers(0, 3, 24)
    y = {k: 0.5 * rng.normal(size=s) for k, s in SHAPES.items()}
    make = torch.tensor if lib is torch else jnp.asarray
    single = torch.float32 if lib is torch else jnp.float32
    whole = torch.int64 if lib is torch else jnp.int32

    def loss(y, X, t):
        rows = lib.tanh(X @ y["a"] + y["b"]) @ y["c"]
        if lib is torch:
            return functional.cross_entropy(rows, t)
        return jnp.mean(jax.nn.logsumexp(rows, 1) - rows[jnp.arange(len(t)), t])

    def f(x, y, data):
        return loss(y, data["X"][12:], data["t"][12:])

    def g(x, y, data):
        decay = lib.exp(x[0]) * (y["a"] ** 2).sum() + lib.exp(x[1]) * (y["c"] ** 2).sum()
        return loss(y, data["X"][:12], data["t"][:12]) + 0.1 * decay

    data = {"X": make(X, dtype=single), "t": make(t, dtype=whole)}
    starts = (
        make(np.array([-1.0, -2.0]), dtype=single),
        {k: make(v, dtype=single) for k, v in y.items()},
    )
    build = pdbo.torch.problem if lib is torch else pdbo.Problem
    return build(f, g, data=data), *starts


def conv_problem(lib):
    """A small convolutional network whose filters are regularised."""
    rng = np.random.default_rng(1)
    images, t = rng.normal(size=(4, 1, 4, 4)), rng.normal(size=4)
    make = torch.tensor if lib is torch else jnp.asarray
    single = torch.float32 if lib is torch else jnp.float32

    def out(y, images):
        if lib is torch:
            maps = functional.conv2d(images, y["filters"])
        else:
            maps = jax.lax.conv_general_dilated(images, y["filters"], (1, 1), "VALID")
        return lib.tanh(maps).reshape(len(images), -1) @ y["last"]

    def f(x, y, data):
        return ((out(y, data["images"][2:]) - data["t"][2:]) ** 2).mean()

    def g(x, y, data):
        error = ((out(y, data["images"][:2]) - data["t"][:2]) ** 2).mean()
        return error + 0.1 * (lib.exp(x)[:, None, None, None] * y["filters"] ** 2).sum()

    y = {"filters": 0.3 * rng.normal(size=(2, 1, 3, 3)), "last": 0.3 * rng.normal(size=8)}
    data = {"images": make(images, dtype=single), "t": make(t, dtype=single)}
    starts = (
        make(np.array([-1.0, -1.0]), dtype=single),
        {k: make(v, dtype=single) for k, v in y.items()},
    )
    build = pdbo.torch.problem if lib is torch else pdbo.Problem
    return build(f, g, data=data), *starts


def to_numpy(tree):
    return jax.tree.map(np.asarray, tree)


@pytest.mark.parametrize("build", [mlp_problem, conv_problem])
def test_gradients_and_products_are_those_of_torch_and_jax(build):
    problem, x, y = build(torch)
    bound, *point = problem.entered(x, y)
    theirs, *same = build(jnp)
    rng = np.random.default_rng(2)
    w = jax.tree.map(lambda v: jnp.asarray(rng.normal(size=v.shape), jnp.float32), tuple(same))

    def product(problem, point):
        slope = jax.grad(lambda z: problem.inner(*z))
        forward = jax.jvp(slope, (tuple(point),), (w,))[1]
        dot = lambda z: sum(
            jnp.sum(a * b)
            for a, b in zip(jax.tree.leaves(slope(z)), jax.tree.leaves(w), strict=True)
        )
        return slope(tuple(point)), forward, jax.grad(dot)(tuple(point))

    ours = jax.jit(lambda z: product(bound, z))(jax.tree.map(jnp.asarray, tuple(point)))
    wanted = jax.jit(lambda z: product(theirs, z))(tuple(same))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    slopes = jax.jit(jax.vmap(jax.grad(bound.inner), (0, None)))(np.stack([point[0]] * 2), point[1])
    np.testing.assert_allclose(slopes, np.stack([ours[0][0]] * 2), rtol=1e-6)
    leaves, structure = jax.tree.flatten((x, y))
    leaves = [v.clone().requires_grad_() for v in leaves]
    data = problem.bindings.readers[1]((), torch.float32, torch.device("cpu"))
    by_torch = problem.bindings.calls[1](*jax.tree.unflatten(structure, leaves), *data)
    exact = torch.autograd.grad(by_torch, leaves)
    for a, b in zip(jax.tree.leaves(ours[0]), exact, strict=True):
        np.testing.assert_allclose(a, b.numpy(), atol=1e-6)


@pytest.mark.parametrize("build", [mlp_problem, conv_problem])
def test_a_run_equals_that_of_the_same_problem_in_jax(build):
    solver = pdbo.PDBO(0.01, 0.01, inner_step=0.1, inner_steps=5)
    runs = [
        pdbo.solve(*build(lib), solver, steps=100, tol=None, throw=False) for lib in (torch, jnp)
    ]
    for a, b in zip(*(jax.tree.leaves(to_numpy((s.x, s.y))) for s in runs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_exact_path_asks_torch_for_what_jax_would_compute():
    """The large method step by step, and second derivatives in one backward pass or several."""
    states, moved, dense = [], [], []
    for lib in (torch, jnp):
        problem, *point = mlp_problem(lib)[0].entered(*mlp_problem(lib)[1:])
        with jax.enable_x64(True):
            problem = problem.astype(jnp.float64)
            oracle = Oracle(problem, *point)
            large = Large(oracle, 1e-4)
            x, y = oracle.flat(*point)
            states.append(large.start(x, y))
            moved.append(large.step(states[-1]).x)
            rows = np.eye(oracle.ny)
            G, H = oracle.products(x, y, rows)
            v = np.linspace(-1, 1, oracle.ny)
            bent = oracle.bends(x, y, v, np.eye(oracle.nx + oracle.ny))
            dense.append((G, H, bent))
            if lib is torch:
                one = [oracle.product(x, y, row) for row in rows]
                np.testing.assert_allclose(G, np.stack([a for a, _ in one], 1), atol=1e-14)
                np.testing.assert_allclose(H, np.stack([b for _, b in one], 1), atol=1e-14)
                np.testing.assert_allclose(oracle.curved(x, y, rows[3]), H[:, 3], atol=1e-14)
                problem.direct(*point).batched = False  # as where a layer has no rule for it
                np.testing.assert_allclose(oracle.products(x, y, rows)[1], H, atol=1e-14)
    for a, b in zip(*dense, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    for name in ("x", "y", "v", "gradient"):
        np.testing.assert_allclose(*(getattr(s, name) for s in states), rtol=1e-9, atol=1e-12)
    for a, b in zip(states[0].at, states[1].at, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(*moved, atol=1e-5)  # conjugate residuals amplify rounding


def toy(**sets):
    """The paper's toy problem: y[1] is invisible to g."""
    return pdbo.torch.problem(
        lambda x, y: 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2),
        lambda x, y: 0.5 * y[0] ** 2 - x * y[0],
        **sets,
    )


TOY = (torch.tensor(2.0), torch.tensor([0.5, 0.5]))


def test_the_default_solves_it_and_answers_in_tensors():
    sol = pdbo.solve(toy(), *TOY)
    assert sol.ok and isinstance(sol.x, torch.Tensor) and sol.x.dtype == torch.float32
    np.testing.assert_allclose(sol.x, 1, atol=1e-4)
    np.testing.assert_allclose(sol.y, [1, 1], atol=1e-4)
    assert pdbo.certify(toy(), sol.x, sol.y).eps <= 1e-4


def test_sets_compare_multistart_save_and_load(tmp_path):
    problem = toy(x_set=pdbo.Box(-3.0, 0.5))
    sol = pdbo.solve(problem, torch.tensor(0.0), TOY[1], pdbo.PDBO(), steps=5, tol=None)
    assert float(sol.x) <= 0.5
    pdbo.save(tmp_path / "run", sol)
    read = pdbo.load(tmp_path / "run", problem, pdbo.PDBO())
    assert torch.equal(read.y, sol.y)
    on = pdbo.solve(problem, state=read.state, steps=5, tol=None)
    whole = pdbo.solve(problem, torch.tensor(0.0), TOY[1], pdbo.PDBO(), steps=10, tol=None)
    assert torch.equal(on.y, whole.y) and on.steps == 10
    for steps in (5, 10):
        again = pdbo.solve(
            problem, torch.tensor(0.0), TOY[1], pdbo.PDBO(), steps=steps, tol=None,
            checkpoint=tmp_path / "kept", checkpoint_every=0,
        )  # fmt: skip
    assert torch.equal(again.y, whole.y) and again.steps == 10
    solvers = [pdbo.PDBO(), pdbo.solvers.Implicit()]
    table = pdbo.compare(toy(), *TOY, solvers, budget=2, every=1).table
    assert {"PDBO", "Implicit"} == set(table["solver"])
    best = pdbo.multistart(toy(), torch.tensor([2.0, 0.0]), torch.zeros(2, 2))
    assert best.ok and torch.allclose(best.all.x, torch.ones(2), atol=1e-4)


def test_a_module_is_what_the_functions_get_and_takes_the_answer():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    net.eval()
    net[0].bias.requires_grad_(False)
    frozen, start = net[0].bias.clone(), net[0].weight.detach().clone()
    X, t = torch.randn(10, 3), torch.randn(10, 1)

    def f(x, y, data):
        assert y is net
        return ((y(data["X"]) - data["t"]) ** 2).mean()

    def g(x, y, data):
        return f(x, y, data) + torch.exp(x) * sum((p**2).sum() for p in y.parameters())

    problem = pdbo.torch.problem(f, g, data={"X": X, "t": t})
    seen = []
    sol = pdbo.solve(
        problem, torch.tensor(0.0), net, pdbo.PDBO(), steps=4, every=2, tol=None,
        observe=lambda x, y: {"error": (y(X) - t).abs().mean()}, callback=seen.append,
    )  # fmt: skip
    assert set(sol.y) == {n for n, p in net.named_parameters() if p.requires_grad}
    assert torch.equal(net[0].weight, start)  # the module itself is as it was
    pdbo.torch.load_into(net, sol.y)
    assert torch.equal(net[0].bias, frozen) and torch.equal(net[0].weight, sol.y["0.weight"])
    np.testing.assert_allclose(
        sol.history["error"][-1], float((net(X) - t).abs().mean().detach()), rtol=1e-5
    )
    assert len(seen) == len(sol.history["f"])
    assert np.isfinite(pdbo.certify(problem, sol.x, sol.y, iterations=5).eps)
    with pytest.raises(pdbo.ProblemError, match="another module"):
        pdbo.torch.load_into(torch.nn.Linear(3, 4), sol.y)


class Squares(Dataset):
    """Examples that are read one by one, in an order that is noted."""

    def __init__(self, count, noted):
        self.count, self.noted = count, noted

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.noted.append(index)
        return torch.tensor([1.0, float(index)]), torch.tensor(0.1 * index)


def loss(x, y, batch):
    X, t = batch
    return ((X @ y - t) ** 2).mean() + 1e-3 * torch.exp(x) * (y**2).sum()


def test_loaders_keep_their_seeded_order_and_resume_in_the_middle_of_an_epoch():
    def run(steps, state=None):
        seeded = torch.Generator().manual_seed(3)
        inner = DataLoader(Squares(10, noted := []), 4, shuffle=True, generator=seeded)
        outer = TensorDataset(torch.ones(6, 2), torch.ones(6))
        problem = pdbo.torch.problem(loss, loss, data=pdbo.torch.batches(outer, inner, (3, 4)))
        start = (torch.tensor(0.0), torch.zeros(2))
        if state is not None:
            problem.entered(*start)
            start = (None, None)
        solver = (
            None if state is not None else pdbo.PDBO(0.01, 0.01, inner_step=1e-3, inner_steps=2)
        )
        noted.clear()
        sol = pdbo.solve(problem, *start, solver, steps=steps, tol=None, every=100, state=state)
        return sol, noted

    seeded = torch.Generator().manual_seed(3)
    wanted = [int(i) for i in torch.randperm(10, generator=seeded)]
    whole, noted = run(4)
    found = [noted[i : i + 4] for i in range(len(noted))]
    assert all(wanted[k : k + 4] in found for k in (0, 4))
    first, _ = run(1)
    second, _ = run(3, first.state)
    assert torch.equal(whole.y, second.y)
    assert torch.equal(whole.y, run(4)[0].y)


def test_tensors_in_batches_agree_with_jax_where_inner_steps_start_at_y():
    rng = np.random.default_rng(0)
    X, t = rng.normal(size=(20, 2)).astype(np.float32), rng.normal(size=20).astype(np.float32)
    ours = pdbo.torch.batches(*[(torch.tensor(X), torch.tensor(t))] * 2, 5)
    theirs = pdbo.Batches((X, t), (X, t), 5)

    def in_jax(x, y, batch):
        return jnp.mean((batch[0] @ y - batch[1]) ** 2) + 1e-3 * jnp.exp(x) * jnp.sum(y**2)

    solver = pdbo.PDBO(0.1, 0.1, inner_start="y", inner_steps=2)
    a = pdbo.solve(
        pdbo.torch.problem(loss, loss, data=ours),
        torch.tensor(0.0), torch.zeros(2), solver, steps=9, tol=None,
    )  # fmt: skip
    b = pdbo.solve(
        pdbo.Problem(in_jax, in_jax, data=theirs), 0.0, jnp.zeros(2), solver, steps=9, tol=None
    )
    np.testing.assert_allclose(a.y, b.y, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")
@pytest.mark.parametrize("solver", [None, pdbo.PDBO(0.01, 0.01, inner_step=0.1, inner_steps=5)])
def test_on_a_gpu_data_stay_there_and_the_run_is_that_of_the_cpu(solver):
    problem, x, y = mlp_problem(torch)
    f, g = problem.bindings.calls
    there = jax.tree.map(lambda v: v.cuda(), problem.bindings.readers[0].__self__.data)
    seen = set()

    def watched(x, y, data):
        seen.add((str(x.device), str(y["a"].device), data["t"].data_ptr()))
        return g(x, y, data)

    on_gpu = pdbo.torch.problem(f, watched, data=there)
    steps = 3 if solver is None else 20
    start = (x.cuda(), {k: v.cuda() for k, v in y.items()})
    a = pdbo.solve(on_gpu, *start, solver, steps=steps, tol=None, throw=False)
    b = pdbo.solve(problem, x, y, solver, steps=steps, tol=None, throw=False)
    assert seen == {("cuda:0", "cuda:0", there["t"].data_ptr())}
    assert a.x.is_cuda and all(v.is_cuda for v in a.y.values())
    for u, v in zip(jax.tree.leaves((a.x, a.y)), jax.tree.leaves((b.x, b.y)), strict=True):
        np.testing.assert_allclose(u.cpu(), v, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU here")
def test_on_a_gpu_a_module_takes_batches_of_a_loader():
    net = torch.nn.Linear(2, 1).cuda()
    data = TensorDataset(torch.ones(6, 2), torch.ones(6, 1))

    def loss(x, y, batch):
        assert batch[0].is_cuda
        return ((y(batch[0]) - batch[1]) ** 2).mean() + torch.exp(x) * (y.weight**2).sum()

    problem = pdbo.torch.problem(loss, loss, data=pdbo.torch.batches(data, DataLoader(data, 3), 3))
    sol = pdbo.solve(problem, torch.tensor(0.0).cuda(), net, pdbo.PDBO(), steps=3, tol=None)
    assert all(v.is_cuda for v in sol.y.values())
    with pytest.raises(pdbo.ProblemError, match="one device"):
        pdbo.solve(problem, torch.tensor(0.0), net, pdbo.PDBO(), steps=3)


def shared_layers():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    net[1].weight = net[0].weight
    return net


POINT = (torch.zeros(2), torch.ones(2))
REFUSED = {
    "meta": (POINT[0], torch.ones(2, device="meta"), None, "share one device"),
    "shared": (POINT[0], shared_layers(), None, "one shared parameter"),
    "half a module elsewhere": (
        POINT[0],
        torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta")),
        None,
        r"y0\.0\.weight is on cpu and y0\.1\.weight on meta",
    ),
    "complex": (
        POINT[0],
        torch.nn.Linear(2, 2, dtype=torch.complex64),
        None,
        r"y0\.weight has dtype complex64",
    ),
    "integer": (POINT[0], torch.ones(2, dtype=torch.int64), None, "dtype int64"),
    "two dtypes": (POINT[0], torch.ones(2).double(), None, "share one dtype"),
    "not a tensor": (POINT[0], 1.0, None, "must be a torch tensor"),
    "frozen": (POINT[0], torch.nn.Linear(2, 2).requires_grad_(False), None, "trainable"),
    "not a scalar": (*POINT, lambda x, y: x * y, "got shape"),
    "not a tensor back": (*POINT, lambda x, y: 1.0, "scalar tensor, got float"),
    "without y": (*POINT, lambda x, y: (x * y.detach()).sum(), "does not depend on y"),
    "without x": (*POINT, lambda x, y: (x.detach() * y).sum(), "depends on x"),
    "random": (*POINT, lambda x, y: (x * y * torch.rand(2)).sum(), "draws random numbers"),
    "raises": (*POINT, lambda x, y: (x * y * torch.ones(3)).sum(), "cannot be evaluated"),
    "in place": (*POINT, lambda x, y: (x.data.add_(1) * y).sum(), "changes x or y in place"),
    "dropout": (
        POINT[0],
        torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.5)),
        None,
        r"y0\.1 is a Dropout in training mode",
    ),
    "batch norm": (POINT[0], torch.nn.BatchNorm1d(2), None, "BatchNorm1d in training mode"),
    "instance norm": (
        POINT[0],
        torch.nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
        None,
        "InstanceNorm1d in training mode",
    ),
    "dropout in a function": (
        *POINT,
        lambda x, y: functional.dropout(x * y).sum(),
        "draws random numbers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_in_a_sentence(name):
    x, y, call, words = REFUSED[name]
    call = call or (lambda x, y: (x * y(x)).sum() if callable(y) else (x * y).sum())
    with pytest.raises(pdbo.ProblemError, match=words) as caught:
        pdbo.solve(pdbo.torch.problem(call, call), x, y)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_a_failure_in_the_middle_of_a_run_is_a_sentence():
    calls = []

    def g(x, y):
        calls.append(1)
        if len(calls) > 4:
            raise RuntimeError("out of cheese")
        return ((y - x) ** 2).sum()

    problem = pdbo.torch.problem(lambda x, y: (y**2).sum(), g)
    with pytest.raises(pdbo.ProblemError, match=r"g or one of its derivatives.*out of cheese"):
        pdbo.solve(problem, *POINT, pdbo.PDBO(), steps=50, tol=None)


def test_single_precision_in_a_closure_is_said():
    weight = torch.ones(2, 2)
    problem = pdbo.torch.problem(
        lambda x, y: (y**2).sum(), lambda x, y: ((weight @ y - x) ** 2).sum() + (y**2).sum()
    )
    with pytest.warns(pdbo.PrecisionWarning, match="hand tensors over as data"):
        pdbo.certify(problem, *POINT, iterations=3)


def test_batches_refuse_what_has_no_numbers_or_another_size():
    data = TensorDataset(torch.ones(6, 2), torch.ones(6))
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 6, 6)
    for given, size, words in [
        (DataLoader(data, 2), 3, "batch_size=2"),
        (data, None, "size is needed"),
        (DataLoader(data, 2, sampler=weighted), None, "once per epoch"),
        ({"a": torch.ones(3), "b": torch.ones(4)}, 2, "same number of examples"),
        (np.ones(3), 2, "must be a DataLoader"),
    ]:
        with pytest.raises(pdbo.ProblemError, match=words):
            pdbo.torch.batches(given, given, size)
