"""Processes of one run: they agree, one writes, and a lost one is named."""

import json
import re
import signal
import time

import pytest

import pdbo
from pdbo import _hosts as hosts
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
