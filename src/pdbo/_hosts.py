"""Many hosts: the processes of a run find each other, and notice when one of them is gone."""

import contextlib
import ctypes
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
from jax._src import distributed as runtime  # the key-value store has no public name

from ._checks import is_number, whole_number
from ._errors import ProblemError, brief

LOST = 3
"""The exit code of a process whose run another one was lost to."""

LOOPBACK = "127.0.0.1:47163"
HEARTBEAT = 30.0
_MEETING = 60  # seconds the processes wait for each other at the beginning


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
    watch = _Watch(heartbeat)
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
    if address is not None:
        _split(address)


def _split(address: Any) -> tuple[str, int]:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ProblemError(f"address must be HOST:PORT such as {LOOPBACK}, got {address!r}.")
    return host.strip("[]"), int(port)


def _join(address: str | None, processes: int | None, rank: int | None, heartbeat: float) -> None:
    if jax.distributed.is_initialized():
        raise ProblemError("this process has joined a run already.")
    local = None
    if "OMPI_COMM_WORLD_SIZE" in os.environ and "OMPI_MCA_orte_hnp_uri" not in os.environ:
        # Open MPI 5, which JAX does not know yet
        size, here = (int(os.environ[f"OMPI_COMM_WORLD_{k}"]) for k in ("SIZE", "LOCAL_SIZE"))
        processes = size if processes is None else processes
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"]) if rank is None else rank
        local = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
        if address is None and here < size:
            raise ProblemError("address is needed: Open MPI 5 does not say where process 0 is.")
    # a signal is for the driver to answer, between two chunks
    with contextlib.suppress(AttributeError):
        jax.config.update("jax_enable_preemption_service", False)
    met = False
    try:
        try:
            _initialize(address, processes, rank, local, heartbeat)
        except ValueError as error:
            if "coordinator_address" not in str(error) or address is not None:
                raise
            _initialize(LOOPBACK, processes, rank, local, heartbeat)
        met = True
    except (ValueError, TypeError):
        raise ProblemError(
            "no cluster was found (SLURM, Kubernetes or Open MPI): say how many processes there "
            "are and which rank this one has."
        ) from None
    except RuntimeError as error:
        if "must be called before" in str(error):
            raise ProblemError(
                "processes must join before the first JAX computation of the program."
            ) from None
        where = runtime.global_state.coordinator_address
        raise ProblemError(f"process {rank} cannot use {where}: {brief(error)}.") from None
    finally:
        if not met:
            _on_abort(None)


def _initialize(
    address: str | None,
    processes: int | None,
    rank: int | None,
    local: int | None,
    heartbeat: float,
) -> None:
    loopback = address is not None and _split(address)[0] in ("127.0.0.1", "::1", "localhost")
    _on_abort(
        lambda: _say_and_exit(
            f"the processes did not meet within {_MEETING} s: is each of them started, with a rank "
            "of its own, and can it reach process 0?"
        )
    )
    jax.distributed.initialize(
        address,
        processes,
        rank,
        local,
        initialization_timeout=_MEETING,
        heartbeat_timeout_seconds=int(3 * heartbeat) + 20,  # ours is to speak first
        shutdown_timeout_seconds=int(heartbeat) + 5,
        coordinator_bind_address=address if loopback else None,
    )


def _say_and_exit(sentence: str) -> NoReturn:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(2, f"pdbo: {sentence}\n".encode())
    os._exit(LOST)


_abort: Any = None


def _on_abort(answer: Callable[[], Any] | None) -> None:
    """Call `answer` before JAX aborts the process, as it does once process 0 cannot be reached.

    JAX offers nothing gentler: its callback for a missed heartbeat cannot be a Python function
    (jaxlib 0.10.2 dies of a bad cast). The signal comes from within abort(), in a thread of JAX
    that holds no lock of Python's, so that the handler may run Python.
    """
    global _abort
    if os.name == "posix":
        _abort = answer and ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: answer())
        ctypes.CDLL(None).signal(signal.SIGABRT, _abort)  # None is the default action


class _Watch:
    """Tells the others that this process lives, and ends it where one of them does not.

    Signs of life are counters in the key-value store that process 0 keeps for JAX, and so is the
    word of who is gone. One thread talks to the store, which may hang; another minds the clock.
    """

    def __init__(self, heartbeat: float):
        state = runtime.global_state
        self.client: Any = state.client
        self.rank, self.count = state.process_id, state.num_processes
        self.address = state.coordinator_address
        self.heartbeat, self.pause = heartbeat, min(0.5, heartbeat / 10)
        self.over = threading.Event()
        self.counters = [""] * self.count
        self.heard = [time.monotonic()] * self.count
        _on_abort(self._aborted)
        for work in (self._talk, self._judge):
            threading.Thread(target=work, daemon=True).start()

    def meet(self, seconds: float) -> bool:
        """Wait for the others to come to their end too; whether they did."""
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Exception):
                self.client.key_value_set(f"pdbo/done/{self.rank}", "", True)
                if len(self.client.key_value_dir_get("pdbo/done")) == self.count:
                    return True
            if time.monotonic() > until:
                with contextlib.suppress(Exception):  # who comes later has no one to meet
                    self.client.key_value_delete(f"pdbo/done/{self.rank}")
                return False
            time.sleep(self.pause / 5)

    def close(self) -> None:
        """Part from the others, all of whom have come to their end."""
        self.over.set()
        jax.distributed.shutdown()
        _on_abort(None)

    def leave(self, why: str) -> None:
        """Part from the others, who are told why."""
        self.over.set()
        self._tell(self.rank, f"has left ({why})")
        # at exit JAX would wait for the others, who are not coming
        state = runtime.global_state
        for part in (state.client, state.service):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
        state.client = state.service = None

    def _tell(self, rank: int, what: str) -> None:
        """Leave word of who is gone; process 0 keeps the store open until it is read."""
        with contextlib.suppress(Exception):
            self.client.key_value_set(f"pdbo/gone/{rank}", what, True)
        if self.rank == 0:
            time.sleep(4 * self.pause)

    def _talk(self) -> None:
        beat = 0
        while not self.over.wait(self.pause):
            beat += 1
            try:
                self.client.key_value_set(f"pdbo/alive/{self.rank}", str(beat), True)
                alive = self.client.key_value_dir_get("pdbo/alive")
                gone = self.client.key_value_dir_get("pdbo/gone")
            except Exception:
                continue  # the store does not answer: the clock decides
            self.heard[0] = time.monotonic()
            for rank, counter in _by_rank(alive):
                if counter != self.counters[rank]:
                    self.counters[rank], self.heard[rank] = counter, time.monotonic()
            for rank, what in _by_rank(gone):
                self._end(rank, what)

    def _judge(self) -> None:
        while not self.over.wait(self.pause):
            silence = [time.monotonic() - heard for heard in self.heard]
            for rank in range(self.count):  # without process 0 nothing is known of the others
                if silence[rank] > self.heartbeat:
                    self._end(rank, f"is lost: no sign of life for {silence[rank]:.0f} s")

    def _end(self, rank: int, what: str) -> None:
        if self.over.is_set() or rank == self.rank:
            return
        self.over.set()
        if self.rank == 0:
            self._tell(rank, what)
        _say_and_exit(
            f"process {rank} of {self.count} {what}; process {self.rank} stops. Started again, "
            "they carry on from the last checkpoint."
        )

    def _aborted(self) -> None:
        if self.over.is_set():  # on the way out already
            os._exit(1)
        with contextlib.suppress(OSError):
            socket.create_connection(_split(self.address), timeout=1).close()
            return  # process 0 is there: something else is wrong
        self._end(0, "is lost: its address no longer answers")


def _by_rank(entries: list[tuple[str, str]]) -> list[tuple[int, str]]:
    return [(int(key.rpartition("/")[2]), value) for key, value in entries]
