"""Many hosts: the processes of a run find each other."""

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import jax

from ._checks import is_number, whole_number
from ._errors import ProblemError, brief
from ._watch import LOST as LOST
from ._watch import Watch, on_abort, say_and_exit

LOOPBACK = "127.0.0.1:47163"  # where the processes of one machine meet
HEARTBEAT = 30.0  # seconds without a sign of life after which a process is lost
MEETING = 60  # seconds the processes wait for each other at the beginning


@contextlib.contextmanager
def distributed(
    address: str | None = None,
    processes: int | None = None,
    rank: int | None = None,
    *,
    heartbeat: float = HEARTBEAT,
) -> Iterator[int]:
    """Join the other processes of a run; their devices together are what `shard` uses.

    Every process runs the same program, and enters this before its first JAX computation:

        with pdbo.distributed() as rank:
            solution = pdbo.solve(pdbo.shard(problem), x0, y0)

    What is not given is found out by JAX under SLURM, Kubernetes and Open MPI. With `processes` and
    `rank` alone the processes meet on this machine.

    Arguments:
        address: HOST:PORT of process 0.
        processes: how many there are.
        rank: which one this is, from 0 on.
        heartbeat: seconds. A process that gives no sign of life for so long is lost: the others
            then name it on standard error and leave with exit code 3, wherever they are.

    A process that leaves by an exception takes the others with it: they name it, and why.
    """
    _check(address, processes, rank, heartbeat)
    _join(address, processes, rank, heartbeat)
    watch = Watch(heartbeat)
    try:
        yield watch.rank
    except BaseException as error:
        # What stops one process mostly stops all of them, though one may have a checkpoint to
        # write; and a broken connection tells of a lost one, which the watch finds out meanwhile.
        patience = 4 * watch.pause + (0 if isinstance(error, ProblemError) else heartbeat)
        if watch.meet(patience):
            watch.close()
        else:
            watch.leave(brief(error))
        raise
    watch.meet(math.inf)  # one of them may still write
    watch.close()


def _check(address: Any, processes: Any, rank: Any, heartbeat: Any) -> None:
    if processes is not None:
        whole_number("processes", processes)
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 0):
        raise ProblemError(f"rank must be a whole number >= 0, got {rank!r}.")
    if processes is not None and rank is not None and rank >= processes:
        raise ProblemError(f"rank must be below processes, {processes}, got {rank}.")
    if not is_number(heartbeat) or not 1 <= heartbeat <= 3600:
        raise ProblemError(f"heartbeat must be from 1 to 3600 seconds, got {heartbeat!r}.")
    host, _, port = str(LOOPBACK if address is None else address).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ProblemError(f"address must be HOST:PORT such as {LOOPBACK}, got {address!r}.")
    if jax.distributed.is_initialized():
        raise ProblemError("this process has joined a run already.")


def _join(address: str | None, processes: int | None, rank: int | None, heartbeat: float) -> None:
    local = None
    if "OMPI_COMM_WORLD_SIZE" in os.environ and "OMPI_MCA_orte_hnp_uri" not in os.environ:
        # Open MPI 5, which JAX does not know yet
        size, here = (int(os.environ[f"OMPI_COMM_WORLD_{k}"]) for k in ("SIZE", "LOCAL_SIZE"))
        processes = size if processes is None else processes
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"]) if rank is None else rank
        local = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
        if address is None and here < size:
            raise ProblemError("address is needed: Open MPI 5 does not say where process 0 is.")
    try:
        _initialize(address, processes, rank, local, heartbeat)
    except (ValueError, TypeError) as error:
        if address is None and "coordinator_address" in str(error):
            return _join(LOOPBACK, processes, rank, heartbeat)
        raise ProblemError(
            "no cluster was found (SLURM, Kubernetes or Open MPI): say how many processes there "
            "are and which rank this one has."
        ) from None
    except RuntimeError as error:
        if "must be called before" in str(error):
            raise ProblemError(
                "processes must join before the first JAX computation of the program."
            ) from None
        who = "this process" if rank is None else f"process {rank}"
        raise ProblemError(
            f"{who} cannot use {address or 'the address of process 0'}: {brief(error)}."
        ) from None


def _initialize(
    address: str | None,
    processes: int | None,
    rank: int | None,
    local: int | None,
    heartbeat: float,
) -> None:
    with contextlib.suppress(AttributeError):  # a signal is the driver's, between two chunks
        jax.config.update("jax_enable_preemption_service", False)
    inside = (address or "").rpartition(":")[0].strip("[]") in ("127.0.0.1", "::1", "localhost")
    on_abort(
        lambda: say_and_exit(
            f"the processes did not meet within {MEETING} s: is each of them started, with a rank "
            "of its own, and can it reach process 0?"
        )
    )
    try:
        jax.distributed.initialize(
            address,
            processes,
            rank,
            local,
            initialization_timeout=MEETING,
            heartbeat_timeout_seconds=int(3 * heartbeat) + 20,  # ours is to speak first
            shutdown_timeout_seconds=int(heartbeat) + 5,
            coordinator_bind_address=address if inside else None,
        )
    except BaseException:
        on_abort(None)
        raise
