"""Treat SIGTERM and SIGHUP like Ctrl-C, and several signals in quick succession as one interrupt.

CI sends SIGTERM to cancel a job, and a closing terminal sends SIGHUP. Child processes run in their
own process groups and do not receive these signals, so this process has to end them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Longer than end_group needs for a process that ignores SIGTERM.
CLEANUP_S = 8.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """A signal handler. The first signal raises KeyboardInterrupt; signals in the next CLEANUP_S
    seconds are ignored.

    Otherwise, a second, impatient Ctrl-C would interrupt the code that ends child processes.
    """

    def __init__(self) -> None:
        self.last = -CLEANUP_S
        self.held = False
        self.pending = False

    def __call__(self, number: int = 0, frame: FrameType | None = None) -> None:
        if self.held:
            self.pending = True
        elif any(caller.f_code.co_name == "__del__" for caller, _ in traceback.walk_stack(frame)):
            # Python prints and ignores an exception of a finalizer, so this comes after it.
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        elif time.monotonic() - self.last >= CLEANUP_S:
            self.last = time.monotonic()
            raise KeyboardInterrupt


def catch_signals() -> None:
    """Install an Interrupt as the handler of each of ENDING_SIGNALS that is not ignored (nohup
    makes a process ignore SIGHUP).

    Does nothing outside the main thread, since no other thread can install handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    interrupt = Interrupt()
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def ignore_signals() -> None:
    """Ignore further signals, so that an interrupted process exits normally."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay interrupts until the end of the block, if catch_signals installed a handler. Raises
    KeyboardInterrupt if one arrived while they were delayed.

    Without the delay, an interrupt between the start of a process and its registration would leave
    the process running.
    """
    interrupt = signal.getsignal(signal.SIGTERM)
    if (
        not isinstance(interrupt, Interrupt)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    interrupt.held = True
    try:
        yield
    finally:
        interrupt.held = False
        if interrupt.pending:
            interrupt.pending = False
            interrupt()
