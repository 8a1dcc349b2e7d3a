"""Processes of one run: they agree, one writes, and a lost one is named."""

import json
import os
import re
import signal
import socket
import time

import pytest

import pdbo
from pdbo import _hosts as hosts
from pdbo import _signals as signals
from pdbo import _watch as watch
from processes import finish, free_address, python, start
from split import SOLVER, X0, Y0, numbers, problem, worst

HEARTBEAT = 8

SOLVE = f"""
    import pdbo
    folder, steps, *who = sys.argv[1:]
    who = dict(zip(("address", "processes", "rank"), (who[:1] + list(map(int, who[1:])))))
    with pdbo.distributed(**who, heartbeat={HEARTBEAT}) as rank:
        from split import *
        sharded = pdbo.shard(problem(), x=PartitionSpec("data"))
        assert not sharded.data["train"][0].is_fully_addressable
        solution = pdbo.solve(
            sharded, X0, Y0, SOLVER, steps=int(steps), every=20, tol=None, progress=True,
            checkpoint=folder, checkpoint_every=0,
        )
        assert not solution.x.is_fully_addressable
        print(json.dumps([rank, numbers(solution)]))
"""


def test_a_run_outlives_a_process(tmp_path):
    """Four processes of which one is killed, then two that SLURM told who they are.

    Each holds a part of x, which no file holds whole. They carry on and give the numbers of one
    process that was never disturbed.
    """
    folder = tmp_path / "checkpoints"
    address = free_address()
    processes = [start(python(SOLVE, folder, 10**6, address, 4, rank)) for rank in range(4)]
    while not list(folder.glob("*.pdbo")):
        assert all(p.poll() is None for p in processes), finish(processes)
        time.sleep(0.05)
    check_loss(processes, 1)
    saved = max(int(re.sub(r"\D", "", path.stem)) for path in folder.glob("*.pdbo"))

    port = free_address().rpartition(":")[2]
    variables = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "JAX_COORDINATOR_PORT": port,
        "JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{port}",
    }
    steps = saved + 30
    tasks = [
        start(
            python(SOLVE, folder, steps),
            **variables,
            SLURM_PROCID=str(rank),
            SLURM_LOCALID=str(rank),
        )
        for rank in range(2)
    ]
    ended = finish(tasks)
    assert [code for code, _, _ in ended] == [0, 0], ended
    found = [json.loads(out.splitlines()[-1]) for _, out, _ in ended]
    assert [rank for rank, _ in found] == [0, 1]
    assert found[0][1] == found[1][1]
    reference = pdbo.solve(problem(), X0, Y0, SOLVER, steps=steps, every=20, tol=None)
    assert worst(found[0][1], numbers(reference)) <= 1e-10
    assert [f"step {steps}/{steps}" in err for _, _, err in ended] == [True, False]
    check_parts(folder, steps, found[0][1]["x"])


def check_parts(folder, steps, x):
    """One process reads what two wrote in parts; a damaged part is refused."""
    loaded = pdbo.load(folder, problem(), SOLVER)
    assert loaded.steps == steps
    assert loaded.x.tolist() == x
    parts = folder / f"step-{steps:012d}.parts"
    file = max((f for f in parts.rglob("d/*")), key=lambda f: f.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)
    with pytest.raises(pdbo.CheckpointError, match=r"cannot be read|is damaged"):
        pdbo.load(folder, problem(), SOLVER)


def check_loss(processes, lost):
    """Kill a process: the others end by themselves, and name it."""
    processes[lost].send_signal(signal.SIGKILL)
    for process in processes:
        process.wait(60)
    for rank, (code, _, err) in enumerate(finish(processes)):
        assert code == (-signal.SIGKILL if rank == lost else 3), err
        named = f"pdbo: process {lost} of {len(processes)} is lost"
        assert rank == lost or named in err.splitlines()[-1]


RUN = f"""
    import pdbo
    from pdbo._mesh import agree
    address, count, rank, fails = sys.argv[1:]
    with pdbo.distributed(address, int(count), int(rank), heartbeat={HEARTBEAT}):
        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        assert agree(mesh, int(rank), 5) == (int(count) - 1, 5)
        print("together", flush=True)
        if fails == rank:
            raise pdbo.ProblemError("the file is not here.")
        while True:
            agree(mesh, 1)
"""


def together(count, fails=-1):
    address = free_address()
    processes = [start(python(RUN, address, count, rank, fails)) for rank in range(count)]
    for process in processes:
        lines = iter(process.stdout.readline, "")
        assert "together\n" in lines, process.stderr.read()
    return processes


def test_the_loss_of_the_first_process_is_named():
    check_loss(together(2), 0)


def test_a_process_that_fails_takes_the_others_along():
    (code, _, err), (own_code, _, own_err) = finish(together(2, fails=1))
    assert code == 3
    assert "pdbo: process 1 of 2 has left (ProblemError: the file is not here)" in err
    assert own_code == 1
    assert own_err.splitlines()[-1].endswith("ProblemError: the file is not here.")


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "processes must join before the first JAX computation"),
        ({"processes": 0, "rank": 0}, "processes must be a whole number >= 1"),
        ({"processes": 2, "rank": -1}, "rank must be a whole number >= 0"),
        ({"processes": 2, "rank": 2}, "rank must be below processes, 2, got 2"),
        ({"address": "here"}, "address must be HOST:PORT"),
        ({"address": "here:99999"}, "address must be HOST:PORT"),
        ({"heartbeat": 0}, "heartbeat must be from 1 to 3600 seconds, got 0"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(pdbo.ProblemError, match=re.escape(message)), pdbo.distributed(**options):
        pass


ALONE = """
    import pdbo
    for options in ({}, {"processes": 2}, {"rank": 0}):
        try:
            with pdbo.distributed(**options):
                pass
        except pdbo.ProblemError as error:
            print(error)
"""


def test_outside_a_cluster_we_must_say_who_we_are():
    ((code, out, err),) = finish([start(python(ALONE))])
    assert code == 0, err
    assert out.count("no cluster was found (SLURM, Kubernetes or Open MPI): say how many") == 3


def test_open_mpi_5_says_who_we_are(monkeypatch):
    """JAX does not know its variables; without an address the processes are on one machine."""
    calls = []

    def initialize(address, *rest):
        if address is None:
            raise ValueError("coordinator_address should be defined.")
        calls.append((address, *rest))

    monkeypatch.setattr("pdbo._hosts._initialize", initialize)
    for name, value in {"SIZE": 4, "LOCAL_SIZE": 4, "RANK": 3, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    hosts._join(None, None, None, 10.0)
    hosts._join("node7:1234", None, None, 10.0)
    assert calls == [(hosts.LOOPBACK, 4, 3, 1, 10.0), ("node7:1234", 4, 3, 1, 10.0)]
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    with pytest.raises(pdbo.ProblemError, match="address is needed"):
        hosts._join(None, None, None, 10.0)


def test_the_command_asks_for_distributed(capsys):
    from pdbo.app import cli, errors

    assert cli.run(["solve", f"{__file__}:problem", "--rank", "0"]) == errors.BAD_INPUT
    assert capsys.readouterr().err == "pdbo: --rank needs --distributed.\n"
    assert errors.LOST == hosts.LOST


class Board:
    """A store in memory, of which the other processes know nothing; it may fall silent."""

    def __init__(self, rank, count, silent=False, **messages):
        self.rank, self.count, self.silent = rank, count, silent
        self.messages, self.abandoned = {"alive": {}, "gone": {}, "done": {}} | messages, False

    def put(self, topic, rank, text):
        if self.silent:
            raise ConnectionError
        self.messages[topic][rank] = text

    def get(self, topic):
        return dict(self.messages[topic])

    def abandon(self):
        self.abandoned = True


def end(code):
    """The end of a process; in a thread it ends the thread alone."""
    raise SystemExit(code)


@pytest.fixture
def watching(monkeypatch):
    """A watch on a board, and what it says at the end."""
    said, begun = [], []

    def say(sentence):
        said.append(sentence)
        end(3)

    def begin(board, heartbeat=0.1):
        monkeypatch.setattr(watch, "Store", lambda: board)
        begun.append(watch.Watch(heartbeat))
        return begun[-1], said

    monkeypatch.setattr(watch, "say_and_exit", say)
    monkeypatch.setattr(watch, "on_abort", lambda _: None)
    monkeypatch.setattr(watch.threading, "excepthook", lambda _: None)  # as it is for exits
    monkeypatch.setattr(os, "_exit", end)
    yield begin
    for watcher in begun:
        watcher.over.set()


@pytest.mark.parametrize(
    ("board", "lost", "what"),
    [
        (Board(0, 2), 1, "is lost: no sign of life for "),
        (Board(1, 2, silent=True), 0, "is lost: no sign of life for "),
        (Board(1, 3, gone={1: "has left", 2: "has left (out of memory)"}), 2, "has left (out of "),
    ],
)
def test_a_watch_names_the_process_that_is_gone(watching, board, lost, what):
    # the others' beats do not change, so that they are silent from the start
    watcher, said = watching(board, 0.1 if "lost" in what else 60)
    assert watcher.over.wait(30)
    for _ in range(500):
        if said:
            break
        time.sleep(0.01)
    (sentence,) = said
    assert sentence.startswith(f"process {lost} of {board.count} {what}")
    assert f"; process {board.rank} stops. Started again, they carry on" in sentence
    assert (lost in board.messages["gone"]) == (board.rank == 0 or lost == 2)
    with pytest.raises(SystemExit):  # JAX aborts a process that is leaving already
        watcher._aborted()


def test_before_an_abort_process_0_is_asked_whether_it_lives(watching):
    board = Board(1, 2)
    watcher, said = watching(board, 60)
    with socket.create_server(("127.0.0.1", 0)) as server:
        board.address = server.getsockname()
        watcher._aborted()  # it answers: something else is wrong
    assert not said and not watcher.over.is_set()
    with pytest.raises(SystemExit):
        watcher._aborted()
    assert said[0].startswith("process 0 of 2 is lost: its address no longer answers; process 1")


def test_processes_meet_or_say_why_they_leave(watching):
    board = Board(1, 2, done={0: "yes"})
    watcher, _ = watching(board, 60)
    assert watcher.meet(0)
    board.messages["done"][0] = "no"
    assert not watcher.meet(0) and board.messages["done"][1] == "no"
    watcher.leave("no memory")
    assert board.abandoned and board.messages["gone"] == {1: "has left (no memory)"}


def test_the_last_sentence_of_a_process(monkeypatch, capfd):
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit) as raised:
        watch.say_and_exit("process 1 of 2 is lost.")
    assert raised.value.code == watch.LOST
    with pytest.raises(SystemExit) as raised:
        signals.leave_at_once(signal.SIGINT)
    assert raised.value.code == 130
    assert capfd.readouterr().err == "pdbo: process 1 of 2 is lost.\npdbo: interrupted.\n"


def test_systems_without_signals_of_posix_have_no_handler(monkeypatch):
    before = watch._handler
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        watch.on_abort(print)
    assert watch._handler is before


def test_signals_are_passed_on_and_another_interrupt_ends_at_once(monkeypatch):
    """The bytes that Python writes for signals: an unknown one, two interrupts."""
    monkeypatch.setattr(os, "_exit", end)
    listener, (theirs, wakeup) = signals.Signals(), socket.socketpair()
    listener._reader, writer = socket.socketpair()
    listener._wakeup, listener._before = wakeup.fileno(), {signal.SIGINT: signal.SIG_DFL}
    sent = bytes([99, signal.SIGINT, signal.SIGINT])
    with theirs, wakeup, writer, listener._reader:
        writer.sendall(sent)
        with pytest.raises(SystemExit) as raised:
            listener._listen()
        assert raised.value.code == 130 and listener.received == signal.SIGINT
        assert theirs.recv(8) == sent


def test_joining_fails_in_words(monkeypatch):
    def refuse(*_):
        raise RuntimeError("address in use")

    monkeypatch.setattr(hosts, "_initialize", refuse)
    with pytest.raises(pdbo.ProblemError, match=r"process 1 cannot use h:1: .*address in use"):
        hosts._join("h:1", 2, 1, 8)
    with pytest.raises(pdbo.ProblemError, match="this process cannot use the address of process 0"):
        hosts._join(None, None, None, 8)
    monkeypatch.setattr(hosts.jax.distributed, "is_initialized", lambda: True)
    with pytest.raises(pdbo.ProblemError, match="this process has joined a run already"):
        hosts._check("h:1", 2, 1, 8)


def test_all_processes_that_fail_alike_leave_together(monkeypatch):
    left = []

    class Watcher:
        rank, pause = 0, 0.0

        def meet(self, seconds):
            left.append(seconds)
            return True

        def close(self):
            left.append("closed")

    monkeypatch.setattr(hosts, "_join", lambda *_: None)
    monkeypatch.setattr(hosts, "Watch", lambda _: Watcher())
    with pytest.raises(ValueError, match="no"), pdbo.distributed("h:1", 2, 0, heartbeat=8):
        raise ValueError("no")
    assert left == [8, "closed"]
