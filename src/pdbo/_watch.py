"""Signs of life among the processes of a run: if one is lost, the others name it and end."""

import contextlib
import ctypes
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from jax._src.distributed import global_state  # private: see Store

LOST = 3
"""The exit code of a process whose run lost another one."""


class Store:
    """Messages between the processes, through the key-value store that process 0 keeps for JAX.

    All uses of private parts of JAX are here. The store, the address of process 0 and leaving
    without waiting for the others have no public names (JAX 0.10.2; `jax.distributed` has three
    functions).
    """

    def __init__(self) -> None:
        self.client: Any = global_state.client  # jaxlib's, without types
        self.rank, self.count = global_state.process_id, global_state.num_processes
        host, _, port = str(global_state.coordinator_address).rpartition(":")
        self.address = host.strip("[]"), int(port)

    def put(self, topic: str, rank: int, text: str) -> None:
        """Set the message about a process."""
        self.client.key_value_set(f"pdbo/{topic}/{rank}", text, allow_overwrite=True)

    def get(self, topic: str) -> dict[int, str]:
        """The messages, by the rank of the process they are about."""
        found = self.client.key_value_dir_get(f"pdbo/{topic}")
        return {int(key.rpartition("/")[2]): text for key, text in found}

    def abandon(self) -> None:
        """Keep JAX from waiting for the others at exit or when its objects are deleted."""
        for part in (global_state.client, global_state.service):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
        global_state.client = global_state.service = None


class Watch:
    """Tells the others that this process lives, and ends it if another one is lost.

    One thread talks to the store, which may hang; another watches the clock.
    """

    def __init__(self, heartbeat: float) -> None:
        self.store = Store()
        self.rank, self.count = self.store.rank, self.store.count
        self.heartbeat, self.pause = heartbeat, min(0.5, heartbeat / 10)
        self.over = threading.Event()
        self.beats = [""] * self.count
        self.heard = [time.monotonic()] * self.count
        on_abort(self._aborted)
        for work in (self._talk, self._judge):
            threading.Thread(target=work, daemon=True).start()

    def meet(self, seconds: float) -> bool:
        """Wait for the others to finish too, and return whether they did."""
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Exception):
                self.store.put("done", self.rank, "yes")
                if list(self.store.get("done").values()).count("yes") == self.count:
                    return True
            if time.monotonic() > until:
                with contextlib.suppress(Exception):  # later processes must not wait for this one
                    self.store.put("done", self.rank, "no")
                return False
            time.sleep(self.pause / 5)

    def close(self) -> None:
        """Leave after all the others have finished."""
        self.over.set()
        jax.distributed.shutdown()
        on_abort(None)

    def leave(self, why: str) -> None:
        """Leave before the others have finished, and tell them why."""
        self.over.set()
        self._tell(self.rank, f"has left ({why})")
        self.store.abandon()

    def _talk(self) -> None:
        beats = map(str, itertools.count())
        while not self.over.wait(self.pause):
            try:
                self.store.put("alive", self.rank, next(beats))
                alive, gone = self.store.get("alive"), self.store.get("gone")
            except Exception:
                continue  # the store does not answer: the clock decides
            self.heard[0] = time.monotonic()
            for rank, text in alive.items():
                if text != self.beats[rank]:
                    self.beats[rank], self.heard[rank] = text, time.monotonic()
            for rank, what in gone.items():
                self._end(rank, what)

    def _judge(self) -> None:
        while not self.over.wait(self.pause):
            for rank, heard in enumerate(self.heard):  # 0 first: without it nothing else is known
                silence = time.monotonic() - heard
                if silence > self.heartbeat:
                    self._end(rank, f"is lost: no sign of life for {silence:.0f} s")

    def _aborted(self) -> None:
        if self.over.is_set():  # this process is leaving already
            os._exit(1)
        with contextlib.suppress(OSError):
            socket.create_connection(self.store.address, timeout=1).close()
            return  # process 0 answers: something else is wrong
        self._end(0, "is lost: its address no longer answers")

    def _end(self, rank: int, what: str) -> None:
        if self.over.is_set() or rank == self.rank:
            return
        self.over.set()
        if self.rank == 0:
            self._tell(rank, what)
        say_and_exit(
            f"process {rank} of {self.count} {what}; process {self.rank} stops. Started again, "
            "they carry on from the last checkpoint."
        )

    def _tell(self, rank: int, what: str) -> None:
        """Tell the others who is gone; process 0 keeps the store open until they have read it."""
        with contextlib.suppress(Exception):
            self.store.put("gone", rank, what)
        if self.rank == 0:
            time.sleep(4 * self.pause)


def say_and_exit(sentence: str) -> NoReturn:
    """End the process at once, whatever its other threads do."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(2, f"pdbo: {sentence}\n".encode())
    os._exit(LOST)


_handler: object = None  # kept here, since C calls it: it must not be collected


def on_abort(answer: Callable[[], object] | None) -> None:
    """Call `answer` before JAX aborts the process, as it does if process 0 cannot be reached.

    JAX has no better way: its callback for a missed heartbeat cannot be a Python function (jaxlib
    0.10.2 fails with a bad cast), and a handler set by `signal.signal` runs too late. The signal
    comes from a thread of JAX that holds no lock of Python, so `answer` may run Python.
    """
    global _handler
    if os.name == "posix":
        _handler = answer and ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: answer())
        ctypes.CDLL(None).signal(signal.SIGABRT, _handler)  # None is the default action
