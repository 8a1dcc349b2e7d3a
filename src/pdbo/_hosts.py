"""Many hosts: the processes of a run find each other."""

import contextlib
import math
import os
from collections.abc import Iterator

import jax

from ._checks import is_number, whole_number
from ._errors import ProblemError, brief
from ._watch import LOST as LOST
from ._watch import Watch, on_abort, say_and_exit

LOOPBACK = "127.0.0.1:47163"  # HOST:PORT of process 0 if all run on one machine
HEARTBEAT = 30.0  # seconds without a sign of life after which a process counts as lost
MEETING = 60  # seconds the processes wait for each other at the start


@contextlib.contextmanager
def distributed(
    address: str | None = None,
    processes: int | None = None,
    rank: int | None = None,
    *,
    heartbeat: float = HEARTBEAT,
) -> Iterator[int]:
    """Join the other processes of a run; `shard` then uses the devices of all of them.

    Every process runs the same program and enters this before its first JAX computation:

        with pdbo.hosts.distributed() as rank:
            solution = pdbo.solve(pdbo.shard(problem), x0, y0)

    JAX finds missing arguments under SLURM, Kubernetes and Open MPI. With `processes` and `rank`
    alone the processes meet on this machine.

    Arguments:
        address: HOST:PORT of process 0.
        processes: how many processes there are.
        rank: the number of this process, from 0 on.
        heartbeat: seconds. A process that gives no sign of life for this long is lost: the others
            then name it on standard error and exit at once with code 3.

    If a process leaves by an exception, the others end too and name it and the reason.
    """
    _check(address, processes, rank, heartbeat)
    _join(address, processes, rank, heartbeat)
    watch = Watch(heartbeat)
    try:
        yield watch.rank
    except BaseException as error:
        # What stops one process usually stops all of them, but one may still write a checkpoint;
        # and after a broken connection the watch needs time to find the process that was lost.
        patience = 4 * watch.pause + (0 if isinstance(error, ProblemError) else heartbeat)
        if watch.meet(patience):
            watch.close()
        else:
            watch.leave(brief(error))
        raise
    watch.meet(math.inf)  # one of them may still write
    watch.close()


def _check(address: str | None, processes: int | None, rank: int | None, heartbeat: float) -> None:
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
        # Open MPI 5, which JAX does not detect yet
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
    with contextlib.suppress(AttributeError):  # the driver handles signals, between two chunks
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
            heartbeat_timeout_seconds=int(3 * heartbeat) + 20,  # the watch must act first
            shutdown_timeout_seconds=int(heartbeat) + 5,
            coordinator_bind_address=address if inside else None,
        )
    except BaseException:
        on_abort(None)
        raise
