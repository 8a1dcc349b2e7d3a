"""Ctrl-C and SIGTERM, heard while compiled code runs and answered between its chunks."""

import contextlib
import os
import signal
import socket
import threading
from typing import Any, NoReturn


class Terminated(SystemExit):
    """SIGTERM came: uncaught, it ends the process with the code a shell gives that, 143."""


def leave(number: int, _: Any = None) -> NoReturn:
    """A handler that ends the process in an orderly way."""
    raise Terminated(128 + number)


def leave_at_once(number: int, _: Any = None) -> NoReturn:
    """A handler for as long as there is nothing to lose: one sentence, and the process ends.

    An exception in the middle of an import is swallowed by some extension modules.
    """
    os.write(2, b"pdbo: interrupted.\n")
    os._exit(128 + number)


class Signals:
    """Notes the first Ctrl-C or SIGTERM in `received`; another Ctrl-C ends the process at once.

    A handler in Python waits for the compiled code the main thread is in, however long that takes.
    So a thread of its own reads what Python's handler in C writes to a socket, and is in time.

    Only the default handlers are replaced, those of `pdbo` too, and put back at the end: a program
    that handles a signal itself keeps doing so. Outside the main thread nothing is changed.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is not threading.main_thread():
            return self
        default = (signal.SIG_DFL, signal.default_int_handler, leave)
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler in default:
                signal.signal(number, self._note)
                self._before[number] = handler
        if self._before:
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if not self._before:
            return
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._writer.close()  # the thread reads an end
        self._thread.join()
        self._reader.close()

    def _note(self, number: int, _: Any) -> None:
        if self.received is None:
            self.received = number

    def _listen(self) -> None:
        noted = 0
        while byte := self._reader.recv(1):
            if self._wakeup >= 0:  # somebody else listened before
                with contextlib.suppress(OSError):
                    os.write(self._wakeup, byte)
            number = byte[0]
            if number not in self._before:
                continue
            if noted and number == signal.SIGINT:
                os._exit(128 + number)
            noted += 1
            self._note(number, None)
