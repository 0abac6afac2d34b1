"""Tasks in threads, where an interrupt ends what they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from provisioning.console.process import end_running

# A signal that another thread received, or that came just before the main thread went to sleep,
# does not wake it; only the main thread runs Python's handlers.
WAKE_S = 0.2
R = TypeVar("R")


def run_tasks(
    tasks: Iterable[Callable[[], R]],
    threads: int,
    *,
    on_done: Callable[[R], None] | None = None,
    abort: Callable[[], None] | None = None,
) -> list[R]:
    """The tasks' results in order; ``on_done`` gets each as soon as it is there.

    An interrupt, and what a task or ``on_done`` raises, ends the processes that tasks have
    started (``abort`` those that run_process does not know), and goes on to the caller.
    """
    results: dict[int, R] = {}
    futures: dict[Future[R], int] = {}
    with ThreadPoolExecutor(threads) as pool:
        try:
            for number, task in enumerate(tasks):
                futures[pool.submit(task)] = number
            pending = set(futures)
            while pending:
                done, pending = wait(pending, WAKE_S, FIRST_COMPLETED)
                for future in done:
                    results[futures[future]] = future.result()
                    if on_done:
                        on_done(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            if abort:
                abort()
            end_running(futures)
            raise
    return [results[number] for number in sorted(results)]
