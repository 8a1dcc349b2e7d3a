"""Checkpoints: nothing is lost, nothing damaged or foreign is read, signals end a run with one."""

import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo import _host, _sealed
from pdbo._history import History
from pdbo._kept_search import Kept
from pdbo._options import Options
from pdbo._signals import Signals
from pdbo._solution import launch
from pdbo.checkpoint import CheckpointWriter, Folder, arrays, description, format, packing
from pdbo.checkpoint import folder as folder_of

SOLVER = pdbo.ProximalPDBO(cases.paper_pdbo(), round_steps=7, choose="random")
X0, Y0, KEY = 2.0, jnp.array([0.5, 0.5]), jax.random.key(3)
OPTIONS = dict(tol=0, every=5, key=KEY)


def leaves(tree):
    """All arrays of a tree as bytes, with their dtypes and shapes."""
    found = []
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if eqx.is_array_like(leaf):
            array = np.asarray(leaf)
            found.append((str(array.dtype), array.shape, array.tobytes()))
    return found


def same(a, b):
    """Whether two solutions are the same to the byte."""
    parts = ("x", "y", "multiplier", "f", "g", "certificate", "code", "state", "steps")
    assert list(a.history) == list(b.history)
    return all(leaves(getattr(a, p)) == leaves(getattr(b, p)) for p in parts) and leaves(
        a.history
    ) == leaves(b.history)


def run(folder=None, steps=60, problem=None, solver=SOLVER, **options):
    options = OPTIONS | dict(checkpoint=folder, checkpoint_every=0) | options
    return pdbo.solve(problem or cases.toy(), X0, Y0, solver, steps=steps, **options)


@pytest.fixture(scope="module")
def whole():
    return run()


def files(folder):
    return sorted(p.name for p in folder.iterdir() if p.name != "lock")


def test_save_and_load_return_every_byte(whole, tmp_path):
    path = tmp_path / "run.pdbo"
    pdbo.save(path, whole)
    again = pdbo.load(path, cases.toy(), SOLVER)
    assert same(whole, again) and again.message == whole.message
    assert jax.tree.structure(again.state) == jax.tree.structure(whole.state)
    further = [pdbo.solve(cases.toy(), state=s.state, steps=9, tol=0) for s in (whole, again)]
    assert same(*further)


def test_a_folder_is_resumed_to_the_byte(whole, tmp_path):
    assert run(tmp_path, steps=23).steps == 23
    assert files(tmp_path) == ["step-000000000020.pdbo", "step-000000000023.pdbo"]
    (tmp_path / "step-000000000023.pdbo").unlink()  # as if killed before the end of that call
    assert same(run(tmp_path), whole)
    assert files(tmp_path) == ["step-000000000055.pdbo", "step-000000000060.pdbo"]
    assert same(run(tmp_path), whole)  # finished: returned as it is
    assert same(pdbo.load(tmp_path, cases.toy(), SOLVER), whole)
    longer = run(tmp_path, steps=70)
    assert longer.steps == 70 and same(longer, run(steps=70))


def test_a_finished_run_is_judged_anew(tmp_path):
    met = run(tmp_path, steps=500, tol=0.5)
    assert met.ok and met.steps < 500
    assert run(tmp_path, steps=500, tol=0.5).ok
    tighter = run(tmp_path, steps=500, tol=1e-3)
    assert tighter.ok and tighter.steps > met.steps
    assert same(tighter, run(steps=500, tol=1e-3))
    assert run(tmp_path, steps=500, tol=0.6).certificate.eps == tighter.certificate.eps


def test_a_tolerance_met_in_working_precision_only_is_resumed(tmp_path, monkeypatch):
    """The tolerance the driver asks for inside the loop is a part of the checkpoint."""
    measure = _host.measure_in_double

    def stricter(*arguments):
        found = measure(*arguments)
        return dataclasses.replace(found, eps=5 * found.eps)

    monkeypatch.setattr(_host, "measure_in_double", stricter)
    alone = run(steps=500, tol=0.2)
    assert alone.ok and alone.steps < 500
    first = alone.history["step"][np.argmax(alone.history["eps"] <= 0.2)]
    assert first + 10 < alone.steps
    run(tmp_path, steps=int(first) + 7, tol=0.2)
    (tmp_path / files(tmp_path)[-1]).unlink()
    assert same(run(tmp_path, steps=500, tol=0.2), alone)


class Mine(eqx.Module):
    inner: jax.Array


def at_start(whole, problem, x, y, key=KEY):
    """A solution of another problem, without the time it takes to compile a run."""
    state = launch(problem, x, y, SOLVER, key)
    begun = whole.with_outcome(multiplier=state.solver_state.center.multiplier)
    return dataclasses.replace(
        begun, state=state, x=x, y=y, steps=0, f=problem.f(x, y), g=problem.g(x, y)
    )


def test_points_of_any_structure(whole, tmp_path):
    problem = pdbo.Problem(
        lambda x, y: jnp.sum((x["a"][0] - 1) ** 2) + jnp.sum(y.inner**2),
        lambda x, y: jnp.sum((y.inner - x["a"][1]) ** 2),
    )
    x0, y0 = {"a": (jnp.ones(3), [jnp.zeros(())][0])}, Mine(jnp.ones(2))
    sol = at_start(whole, problem, x0, y0)
    pdbo.save(tmp_path / "a", sol)
    with pytest.raises(pdbo.CheckpointError, match="y is made of your own containers: give y0"):
        pdbo.load(tmp_path / "a", problem, SOLVER)
    again = pdbo.load(tmp_path / "a", problem, SOLVER, y0=y0)
    assert same(again, sol) and jax.tree.structure(again.x) == jax.tree.structure(x0)
    other = Mine(jnp.ones(3))
    with pytest.raises(pdbo.CheckpointError, match=r"has shape \(2,\) in it and \(3,\) here"):
        pdbo.load(tmp_path / "a", problem, SOLVER, y0=other)


def test_keys_of_every_kind(whole, tmp_path):
    keys = [jax.random.key(1, impl="rbg"), jax.random.PRNGKey(1), jax.random.key(2)]
    for number, key in enumerate(keys):
        sol = at_start(whole, cases.toy(), jnp.asarray(X0), Y0, key)
        pdbo.save(tmp_path / str(number), sol)
        assert same(pdbo.load(tmp_path / str(number), cases.toy(), SOLVER), sol)


def test_dtypes_that_numpy_lacks(whole, tmp_path):
    problem = pdbo.Problem(lambda x, y: x * y, lambda x, y: y * y)
    one = jnp.ones((), jnp.bfloat16)
    sol = at_start(whole, problem, one, one)
    pdbo.save(tmp_path / "a", sol)
    assert same(pdbo.load(tmp_path / "a", problem, SOLVER), sol)


def test_streams_of_batches_are_resumed(tmp_path):
    draw = np.random.default_rng(0)
    examples = {"a": draw.normal(size=(50, 2)), "b": draw.normal(size=50)}
    problem = pdbo.Problem(
        lambda x, y, d: jnp.mean((d["a"] @ y - d["b"]) ** 2),
        lambda x, y, d: jnp.mean((d["a"] @ y - d["b"]) ** 2) + jnp.exp(x) * jnp.sum(y**2),
        pdbo.Batches(examples, examples, (7, 9)),
    )
    go = lambda **options: pdbo.solve(
        problem, 0.1, jnp.zeros(2), pdbo.PDBO(), tol=0, every=5, key=KEY, **options
    )
    kept = dict(checkpoint=tmp_path, checkpoint_every=0)
    go(steps=20, **kept)
    (tmp_path / "step-000000000020.pdbo").unlink()
    assert same(go(steps=30, **kept), go(steps=30))
    assert pdbo.load(tmp_path, problem, pdbo.PDBO()).steps == 30


def test_what_differs_is_said(whole, tmp_path):
    path = tmp_path / "run.pdbo"
    pdbo.save(path, whole)
    toy, inner = cases.toy(), cases.paper_pdbo()
    wrong = [
        (toy, inner, "solver is ProximalPDBO in it and PDBO here"),
        (toy, pdbo.ProximalPDBO(inner, round_steps=8, choose="random"), "round_steps is 7 in it"),
        (
            toy,
            pdbo.ProximalPDBO(cases.paper_pdbo(inner_step=0.4), round_steps=7, choose="random"),
            r"inner_step is 0.5 \(float64\) in it and 0.4 \(float64\) here",
        ),
        (pdbo.Problem(lambda x, y: toy.f(x, y) + 1, toy.g), SOLVER, "the problem or its data is"),
    ]
    for problem, solver, match in wrong:
        with pytest.raises(pdbo.CheckpointError, match=match) as error:
            pdbo.load(path, problem, solver)
        assert str(path) in str(error.value)
    with jax.enable_x64(False), pytest.raises(pdbo.CheckpointError, match="float64"):
        pdbo.load(path, toy, SOLVER)


def test_another_run_in_the_folder_is_refused(tmp_path):
    run(tmp_path, steps=20)
    toy = cases.toy()
    boxed = pdbo.Problem(toy.f, toy.g, x_set=pdbo.Box(-9.0, 9.0))
    before = files(tmp_path)
    for options, match in [
        (dict(key=jax.random.key(4)), "another x0, y0 or key"),
        (dict(problem=boxed), "x_set is Free in it and Box here"),
        (dict(problem=pdbo.Problem(lambda x, y: 2 * toy.f(x, y), toy.g)), "f is .* at the same"),
        (dict(solver=pdbo.PDBO()), "solver is ProximalPDBO"),
        (dict(observe=lambda x, y: {"x": x}), "lacks 'x'"),
    ]:
        with pytest.raises(pdbo.CheckpointError, match=match):
            run(tmp_path, **options)
    assert files(tmp_path) == before


def test_wrong_arguments(whole, tmp_path):
    with pytest.raises(pdbo.ProblemError, match="solution must be what solve returned, got int"):
        pdbo.save(tmp_path / "a", 3)
    with pytest.raises(pdbo.ProblemError, match="a path must be a string"):
        pdbo.save(3, whole)
    with pytest.raises(pdbo.ProblemError, match="solver must be a pdbo solver, got the class PDBO"):
        pdbo.load(tmp_path, cases.toy(), pdbo.PDBO)
    with pytest.raises(pdbo.CheckpointError, match="holds no checkpoint"):
        pdbo.load(tmp_path, cases.toy())
    with pytest.raises(pdbo.CheckpointError, match="there is no checkpoint"):
        pdbo.load(tmp_path / "none", cases.toy())
    with pytest.raises(pdbo.ProblemError, match="checkpoint_every must be a number >= 0"):
        run(tmp_path, checkpoint_every=-1)
    with pytest.raises(pdbo.CheckpointError, match="batch of runs"):
        pdbo.save(tmp_path / "a", whole.with_outcome(code=np.zeros(2)))
    with pytest.raises(pdbo.CheckpointError, match="without a state"):
        pdbo.save(tmp_path / "a", dataclasses.replace(whole, state=None))
    with pytest.raises(pdbo.ProblemError, match="cannot be used under jit"):
        jax.jit(lambda x: pdbo.solve(cases.toy(), x, Y0, SOLVER, checkpoint=tmp_path))(1.0)
    assert files(tmp_path) == []


def damage(path, way, draw):
    """Harm a file in one of the ways files come to harm."""
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    if way == "flip":
        content[place] ^= 1 << draw.randrange(8)
    elif way == "zero":
        before = bytes(content)
        content[place : place + 512] = bytes(len(content[place : place + 512]))
        if bytes(content) == before:
            content[0] = 0
    elif way == "truncate":
        del content[place:]
    elif way == "append":
        content += b"x"
    elif way == "version":
        content = bytearray(content.replace(b"checkpoint 2\n", b"checkpoint 1\n", 1))
    elif way == "empty":
        content.clear()
    path.write_bytes(content)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    run(folder, steps=20)
    return {p.name: p.read_bytes() for p in folder.glob("step-*")}


@pytest.mark.parametrize("way", ["flip", "zero", "truncate", "append", "version", "empty"])
def test_damage_is_noticed_and_the_previous_checkpoint_used(way, good, tmp_path):
    draw = random.Random(way)
    old, new = sorted(good)
    for _ in range(12 if way in ("flip", "zero", "truncate") else 1):
        for name, content in good.items():
            (tmp_path / name).write_bytes(content)
        damage(tmp_path / new, way, draw)
        with pytest.warns(pdbo.CheckpointWarning, match=f"{new}.*{old} is used instead") as said:
            found = pdbo.load(tmp_path, cases.toy(), SOLVER)
        assert said[0].filename == __file__  # the line of the user's
        assert found.steps == 15 and found.result is pdbo.RESULTS.interrupted
        damage(tmp_path / old, way, draw)
        with pytest.raises(pdbo.CheckpointError, match=new):
            pdbo.load(tmp_path, cases.toy(), SOLVER)


def test_a_run_goes_on_past_a_damaged_checkpoint(whole, good, tmp_path):
    old, new = sorted(good)
    (tmp_path / old).write_bytes(good[old])
    (tmp_path / new).write_bytes(good[new][:-9])
    (tmp_path / f".{new}.123-4").write_bytes(b"of a run that was killed")
    with pytest.warns(pdbo.CheckpointWarning, match=new):
        assert same(run(tmp_path), whole)
    assert files(tmp_path) == [
        "step-000000000020.unreadable",
        "step-000000000055.pdbo",
        "step-000000000060.pdbo",
    ]


def test_swapped_files_and_none_left(good, tmp_path):
    old, new = sorted(good)
    (tmp_path / old).write_bytes(good[new])
    (tmp_path / new).write_bytes(good[old])
    with pytest.raises(
        pdbo.CheckpointError, match=f"{new} holds step 15, not the one in its name.*remove them"
    ):
        run(tmp_path)
    (tmp_path / old).write_bytes(b"")
    with pytest.raises(pdbo.CheckpointError, match="remove them to start again"):
        run(tmp_path)
    assert files(tmp_path) == [old, new]


def test_a_file_made_to_mislead_is_refused(whole, tmp_path, monkeypatch):
    """With digests that are right, and contents that are not."""
    path = tmp_path / "run.pdbo"
    header, arrays = packing.pack(whole)
    pickled = dict(arrays)
    pickled["f"] = format.Stored("float64", (), np.array([print], object))
    for change in (
        lambda: (header | {"x": "os.system"}, arrays),
        lambda: (header | {"x": {"set": []}}, arrays),
        lambda: (header | {"solver": 3}, arrays),
        lambda: (header | {"result": "perfect"}, arrays),
        lambda: (header, {k: v for k, v in arrays.items() if k != "f"}),
        lambda: (header, arrays | {"state.more": arrays["f"]}),
        lambda: (header, {k: v for k, v in arrays.items() if k != "state.step"}),
        lambda: (header, arrays | {"state.step": arrays["history.f"]}),
    ):
        format.write(path, *change())
        with pytest.raises(pdbo.CheckpointError):
            pdbo.load(path, cases.toy(), SOLVER)
    for listed in (3, [3], [{"name": "f"}], [{"name": "f", "dtype": "int8", "shape": 1}]):
        _sealed.write(path, "checkpoint", format.VERSION, header | {"arrays": listed}, {})
        with pytest.raises(pdbo.CheckpointError, match="its arrays are not those listed"):
            pdbo.load(path, cases.toy(), SOLVER)
    monkeypatch.setattr(_sealed, "write_npz", lambda file, arrays: np.savez(file, **arrays))
    format.write(path, header, pickled)
    with pytest.raises(pdbo.CheckpointError, match="its arrays cannot be read"):
        pdbo.load(path, cases.toy(), SOLVER)


def test_loading_imports_nothing(tmp_path, whole):
    pdbo.save(tmp_path / "a", whole)
    pdbo.load(tmp_path / "a", cases.toy(), SOLVER)
    before = set(sys.modules)
    pdbo.load(tmp_path / "a", cases.toy(), SOLVER)
    assert set(sys.modules) == before


def test_a_full_disk_costs_a_checkpoint_not_the_run(whole, tmp_path, monkeypatch):
    run(tmp_path, steps=20)
    before = {p.name: p.read_bytes() for p in tmp_path.glob("step-*")}
    sync = os.fsync

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(pdbo.CheckpointWarning, match="No space left on device. The run goes on"):
        assert same(run(tmp_path), whole)
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*step-*")} == before
    with pytest.raises(pdbo.CheckpointError, match="cannot be written: No space"):
        pdbo.save(tmp_path / "a", whole)
    monkeypatch.setattr(os, "fsync", sync)
    assert same(run(tmp_path), whole)


def test_a_folder_that_cannot_be_written_to_is_said_at_once(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "folder", "/proc/none"):
        with pytest.raises(pdbo.CheckpointError, match="cannot be written to"):
            run(path)


def test_two_runs_on_one_folder(whole, tmp_path):
    """The second is refused, in the same process too; the lock of a dead process is not one."""
    with Folder(tmp_path), pytest.raises(pdbo.CheckpointError, match="is in use by"):
        run(tmp_path)
    holder = "import sys, time\nfrom pdbo.checkpoint import Folder\n"
    holder += "with Folder(sys.argv[1]):\n    print('locked', flush=True)\n    time.sleep(100)\n"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        with pytest.raises(pdbo.CheckpointError, match=f"in use by process {other.pid} on"):
            run(tmp_path)
        other.kill()
    assert same(run(tmp_path), whole)


# Signals

LONG = """
import sys, signal, warnings
import jax, jax.numpy as jnp
import pdbo
problem = pdbo.problems.get("toy").problem
def go(steps, every=100):
    return pdbo.solve(
        problem, 2.0, jnp.array([0.5, 0.5]), pdbo.PDBO(), steps=steps, every=every, tol=0,
        checkpoint=sys.argv[1], checkpoint_every=1000, progress=True, observe=tell,
    )
def tell(x, y):
    jax.debug.callback(lambda: (print("going", flush=True)), ordered=False)
    return {}
"""


def start(code, folder):
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return subprocess.Popen(
        [sys.executable, "-c", listen + LONG + textwrap.dedent(code), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process, word):
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(process.stderr.read())


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -2), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_ends_a_run_with_a_checkpoint(number, code, tmp_path):
    with start("go(2**31 - 1)", tmp_path) as running:
        wait_for(running, "going")
        running.send_signal(number)
        threading.Thread(target=running.stdout.read, daemon=True).start()
        error = running.stderr.read()
    assert running.returncode == code, error
    (name,) = files(tmp_path)
    step = int(name[5:17])
    assert 0 <= step < 2**31 - 1 and step % 100 == 0
    if number == signal.SIGINT:
        assert f"KeyboardInterrupt: interrupted; step {step} is saved in {tmp_path}" in error


def test_a_second_ctrl_c_ends_the_process_at_once(tmp_path):
    """Also inside compiled code that takes far longer than anybody waits."""
    with start("go(2**31 - 1, every=2**31 - 1)", tmp_path) as running:
        wait_for(running, "going")
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        running.wait(timeout=60)
    assert running.returncode == 130
    assert files(tmp_path) == []


def test_handlers_are_put_back_and_those_of_others_left(tmp_path):
    default = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    run(tmp_path, steps=10)
    mine = lambda *_: None
    signal.signal(signal.SIGTERM, mine)
    try:
        seen = []
        run(tmp_path, steps=20, observe=None)
        with Signals():
            seen.append(signal.getsignal(signal.SIGTERM))
        assert seen == [mine] and signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, default[1])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == default
    assert signal.set_wakeup_fd(before) == before


@pytest.fixture
def heard():
    """Ctrl-C as in a terminal: a job in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_that_comes_too_late_is_passed_on(heard, tmp_path):
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with CheckpointWriter(tmp_path, 0.0, cases.toy(), None, set()) as writer:
            signal.raise_signal(signal.SIGINT)
            until = time.monotonic() + 10  # a thread hears it
            while writer.signals.received is None and time.monotonic() < until:
                time.sleep(0.01)
            assert writer.signals.received == signal.SIGINT


def test_a_run_that_failed_can_be_put_right(tmp_path):
    """The same failure again, or none where the function is mended."""
    problem = lambda limit: cases.home(f=limit)
    start = jnp.asarray(cases.X0), jnp.asarray(cases.Y0)
    options = dict(steps=100, every=10, tol=0, throw=False)
    go = lambda limit, **kept: pdbo.solve(
        problem(limit), *start, pdbo.PDBO(primal_step=0.01), **options, **kept
    )
    kept = dict(checkpoint=tmp_path, checkpoint_every=0)
    failed = go(0.1, **kept)
    assert failed.result is pdbo.RESULTS.nonfinite
    assert same(go(0.1, **kept), failed)
    mended = go(np.inf, **kept)
    assert mended.result is pdbo.RESULTS.max_steps and mended.steps == 100
    assert leaves(mended.state) == leaves(go(np.inf).state)


def test_outside_the_main_thread(whole, tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(run(tmp_path)))
    thread.start()
    thread.join()
    assert same(found[0], whole)


# Kills: a small sample of what benchmarks/reliability.py does 200 times


@pytest.mark.parametrize("call", [3, 8, 13])
def test_a_kill_inside_a_save_loses_nothing(call, tmp_path):
    """The process ends at the n-th flush, wherever in a save that is."""
    code = f"""
    import os
    flush, count = os.fsync, 0
    def kill(handle):
        global count
        count += 1
        if count == {call}:
            os.kill(os.getpid(), signal.SIGKILL)
        flush(handle)
    tell = None
    if len(sys.argv) < 3:
        os.fsync = kill
    sol = pdbo.solve(problem, 2.0, jnp.array([0.5, 0.5]), pdbo.PDBO(), steps=60, every=10, tol=0,
                     checkpoint=sys.argv[1], checkpoint_every=0)
    """
    with start(code, tmp_path) as running:
        error = running.communicate()[1]
    assert running.returncode == -signal.SIGKILL, error
    assert any(p.name.startswith((".step", "step")) for p in tmp_path.iterdir())
    options = dict(steps=60, every=10, tol=0)
    with jax.enable_x64(False), warnings.catch_warnings():
        y0 = jnp.array([0.5, 0.5], jnp.float32)
        alone = pdbo.solve(cases.toy(), 2.0, y0, pdbo.PDBO(), **options)
        again = pdbo.solve(
            cases.toy(), 2.0, y0, pdbo.PDBO(), **options, checkpoint=tmp_path, checkpoint_every=0
        )
    assert same(alone, again)
    assert not list(pathlib.Path(tmp_path).glob(".step*"))


def test_the_structure_of_a_point_goes_through_json():
    tree = {"a": [jnp.ones(3, jnp.float32), None], "b": (jnp.zeros((2, 1), jnp.int32), {})}
    built = description.decode(json.loads(json.dumps(description.encode(tree))))
    assert jax.tree.structure(built) == jax.tree.structure(tree)
    assert [(v.shape, str(v.dtype)) for v in jax.tree.leaves(built)] == [
        ((3,), "float32"), ((2, 1), "int32")
    ]  # fmt: skip
    assert description.encode(Mine(jnp.ones(2))) == "Mine" and description.decode("Mine") is None
    assert description.decode({"list": [None, "Mine"]}) is None


def test_settings_are_described_by_their_numbers_long_arrays_by_a_digest():
    def made(scale, count):
        def rule(x):
            return scale * x + 0.25 * count

        return rule

    short, long = np.arange(3.0), np.arange(1000.0)
    told = description._describe([made(short, 2), {"long": long}, True, object()], "rule")
    name = "test_settings_are_described_by_their_numbers_long_arrays_by_a_digest.<locals>"
    assert told["rule[0]"] == f"{name}.made.<locals>.rule 0.25"
    assert told["rule[0].scale"] == "0.0, 1.0, 2.0 (float64[3])" and told["rule[0].count"] == "2.0"
    assert told["rule[1]['long']"].startswith("float64[1000] of SHA-256 ")
    other = description._describe([made(short, 2), {"long": long + 1}, True, object()], "rule")
    assert [k for k in told if told[k] != other[k]] == ["rule[1]['long']"]
    assert told["rule[2]"] == "True" and told["rule[3]"] == "a object"


def test_what_is_no_array_of_numbers_is_not_saved(monkeypatch):
    with pytest.raises(pdbo.CheckpointError, match="x is not an array of numbers"):
        arrays.store("x", np.array([None, "a"]))
    monkeypatch.setattr(arrays, "is_split", lambda leaf: True)  # as of an array over processes
    with pytest.raises(pdbo.CheckpointError, match="x is split over processes"):
        arrays.store("x", np.ones(2))


@pytest.mark.parametrize("taken", [False, True])
def test_the_lock_of_a_folder_on_windows(taken, tmp_path, monkeypatch):
    """It locks the first byte, and is refused with a PermissionError, which elsewhere is one."""
    asked = []

    def locking(*wanted):
        asked.append(wanted)
        if taken:
            raise PermissionError

    windows = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    with (tmp_path / "lock").open("a+") as file:
        file.write("process 1")
        monkeypatch.setattr(folder_of.os, "name", "nt")
        locked = folder_of._locked(file)
        monkeypatch.setattr(folder_of.os, "name", "posix")
        assert locked is not taken and file.tell() == 0 and asked == [(file.fileno(), 2, 1)]


def test_a_lock_that_the_system_does_not_give_is_an_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("fcntl.flock", refuse)
    with (tmp_path / "lock").open("a+") as file, pytest.raises(PermissionError, match="permitted"):
        folder_of._locked(file)


def search(problem, rounds):
    """What `Kept` knows of a search: where it is, and whether it is over."""
    state = {"rounds": rounds, "at": np.arange(3.0) + rounds}

    def restore(facts, leaves):
        state.update(rounds=facts["rounds"], at=leaves[0])

    return types.SimpleNamespace(
        model=types.SimpleNamespace(problem=problem, start=np.ones(2)),
        saved=lambda: ({"rounds": state["rounds"]}, [state["at"]]),
        restore=restore, over=False, state=state,
    )  # fmt: skip


def test_a_search_is_saved_when_it_is_due_stops_or_is_told_to(tmp_path):
    problem, starts = cases.toy(), np.zeros(2)
    other_set = pdbo.Problem(problem.f, problem.g, x_set=pdbo.Ball(3.0))
    options = Options(checkpoint=tmp_path, checkpoint_every=1e6, key=KEY)
    rows = History({"step": np.arange(2), "f": np.array([2.0, 1.0])})
    early = search(problem, 3)
    with Kept(options, early, starts) as kept:
        assert kept.resumed().parts == []
        kept.save(rows, stops=False)
        assert files(tmp_path) == []  # it is not due
        kept.save(rows, stops=True)
        assert files(tmp_path) == ["step-000000000003.pdbo"]
        kept.signals.received = signal.SIGINT
        with pytest.raises(
            KeyboardInterrupt, match=r"round 3 is saved in .*: the same call carries"
        ):
            kept.save(rows, stops=False)
        kept.signals.received = signal.SIGTERM
        with pytest.raises(SystemExit, match="143"):
            kept.save(rows, stops=False)
        kept.signals.received = None
    later = search(problem, 0)
    with Kept(options, later, starts) as kept:
        np.testing.assert_array_equal(kept.resumed().rows["f"], [2.0, 1.0])
    assert later.state["rounds"] == 3
    np.testing.assert_array_equal(later.state["at"], [3.0, 4.0, 5.0])
    for other, at, match in (
        (search(problem, 0), np.ones(2), "another x0, y0 or key"),
        (search(other_set, 0), starts, "another problem"),
    ):
        with Kept(options, other, at) as kept, pytest.raises(pdbo.CheckpointError, match=match):
            kept.resumed()


def test_a_search_does_not_carry_on_from_another_kind_of_run(whole, tmp_path):
    with Folder(tmp_path) as folder:
        folder.write(whole, cases.toy(), None, {})
    kept = Kept(Options(checkpoint=tmp_path, key=KEY), search(cases.toy(), 0), np.zeros(2))
    with kept, pytest.raises(pdbo.CheckpointError, match="that of a problem without constraints"):
        kept.resumed()
