"""Ctrl-C and SIGTERM, noticed while compiled code runs and handled between its chunks."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, Self, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class Terminated(SystemExit):
    """SIGTERM was received: uncaught, it ends the process with code 143, as shells report it."""


def leave(number: int, _: FrameType | None = None) -> NoReturn:
    """A handler that ends the process in an orderly way."""
    raise Terminated(128 + number)


def leave_at_once(number: int, _: FrameType | None = None) -> NoReturn:
    """A handler for the time before there is anything to lose: prints one sentence and exits.

    It raises no exception, since some extension modules swallow one during their import.
    """
    os.write(2, b"pdbo: interrupted.\n")
    os._exit(128 + number)


class Signals:
    """Notes the first Ctrl-C or SIGTERM in `received`; another Ctrl-C ends the process at once.

    A handler in Python waits until the compiled code in the main thread returns. So a separate
    thread reads what Python's handler in C writes to a socket, without delay.

    Only default handlers, and those of `pdbo`, are replaced, and they are restored at the end: a
    program that handles a signal itself keeps doing so. Outside the main thread nothing changes.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> Self:
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

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._writer.close()  # ends the thread
        self._thread.join()
        self._reader.close()

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received = number

    def _listen(self) -> None:
        noted = 0
        while byte := self._reader.recv(1):
            if self._wakeup >= 0:  # another listener was installed before: pass it on
                with contextlib.suppress(OSError):
                    os.write(self._wakeup, byte)
            number = byte[0]
            if number not in self._before:
                continue
            if noted and number == signal.SIGINT:
                os._exit(128 + number)
            noted += 1
            self._note(number, None)
