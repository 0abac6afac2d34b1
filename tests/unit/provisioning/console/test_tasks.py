from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from provisioning.console.interrupts import ENDING_SIGNALS, catch_signals
from provisioning.console.process import Completed, run_process, run_tasks

# Longer than a test may take: nothing here waits for what it ends.
SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]


def test_results_come_in_the_order_of_the_tasks() -> None:
    def work(number: int) -> int:
        time.sleep(0.3 * (2 - number))
        return number

    seen: list[int] = []
    tasks = [partial(work, number) for number in range(3)]
    assert run_tasks(tasks, 3, on_done=seen.append) == [0, 1, 2]
    assert seen == [2, 1, 0]


def test_a_signal_that_another_thread_received_is_acted_on() -> None:
    def interrupt_this_thread() -> Completed:
        threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        return run_process(SLEEP, check=False)

    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    catch_signals()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_tasks([interrupt_this_thread], 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_interrupt_between_two_tasks_ends_the_first() -> None:
    def tasks() -> Iterator[Callable[[], Completed]]:
        yield lambda: run_process(SLEEP, check=False)
        time.sleep(0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(tasks(), 2)


def test_what_one_task_raises_ends_the_others_and_aborts() -> None:
    aborted = threading.Event()

    def fail() -> Completed:
        time.sleep(0.3)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        run_tasks([lambda: run_process(SLEEP, check=False), fail], 2, abort=aborted.set)
    assert aborted.is_set()


def test_what_ended_well_counts_if_another_task_fails_at_the_same_moment() -> None:
    failing, seen = threading.Event(), []

    def fail() -> int:
        failing.set()
        raise OSError("no room")

    def take(number: int) -> None:
        seen.append(number)
        failing.wait(10)
        time.sleep(0.1)  # until the future of fail is done, too

    tasks = [*(partial(int, one) for one in range(8)), fail]
    with pytest.raises(OSError, match="no room"):
        run_tasks(tasks, 1, on_done=take)
    assert sorted(seen) == [*range(8)]
