"""SIGTERM and SIGHUP as Ctrl-C, and one interrupt for several signals that come at once.

A CI that cancels a job sends SIGTERM, a terminal that closes SIGHUP; what runs below us is in
its own process groups, so that only we can end it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

CLEANUP_S = 8.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """The handler: the first signal interrupts, those that follow within CLEANUP_S do not.

    An impatient second Ctrl-C would else end the work of ending the processes below us.
    """

    def __init__(self) -> None:
        self.last = -CLEANUP_S
        self.held = False
        self.pending = False

    def __call__(self, *_: object) -> None:
        if self.held:
            self.pending = True
        elif time.monotonic() - self.last >= CLEANUP_S:
            self.last = time.monotonic()
            raise KeyboardInterrupt

    def release(self) -> None:
        """Let interrupts through again, beginning with one that came meanwhile."""
        self.held = False
        if self.pending:
            self.pending = False
            self()


def catch_signals() -> None:
    """Install one Interrupt for ENDING_SIGNALS, except those that are ignored, as nohup does.

    Only the main thread can; in another one, nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    interrupt = Interrupt()
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def ignore_signals() -> None:
    """Let nothing change how an interrupted process ends, not even while Python shuts down."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let an interrupt wait for the end of the block, where catch_signals has one handled.

    Between the start of a process and the note that it runs, nothing could end it.
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
        interrupt.release()
