"""``python -m tests.bench.staged FILE WORD...``: ``python -m ci WORD...`` with a clock.

Named ``__main__``, which multiprocessing does not import anew in each worker. Writes the seconds of
each stage, added up over all cases, to FILE as JSON. "imports" are those of the fork server until
its first worker is there, and of the compiler in each worker.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ci.__main__ import main
from ci.cases import pipeline as case
from ci.cases.pool import Pool, Worker

seconds: Counter[str] = Counter()
lock = threading.Lock()


def add(taken: dict[str, float]) -> None:
    """Add to the seconds of some stages; cases run in threads."""
    with lock:
        seconds.update(taken)


def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, whose time counts for a stage."""

    def run(*words: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return call(*words, **named)
        finally:
            add({name: time.monotonic() - began})

    return run


def note_stages(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, a lowering, whose own stages count."""

    def run(*words: Any) -> Any:
        ended = call(*words)
        add(getattr(ended.result, "stages", {}))
        return ended

    return run


def watch_imports() -> None:
    """Time the fork server from its start until it first forks."""
    start: dict[str, float] = {}
    make_pool, make_worker = Pool.__init__, Worker.__init__

    def note_start(self: Pool, *words: Any) -> None:
        start.setdefault("at", time.monotonic())
        make_pool(self, *words)

    def note_end(self: Worker, context: Any) -> None:
        make_worker(self, context)
        with lock:
            seconds.setdefault("imports", 0.0)
            seconds["imports"] += time.monotonic() - start.pop("at", time.monotonic())

    setattr(Pool, "__init__", note_start)  # noqa: B010 - a method, to mypy
    setattr(Worker, "__init__", note_end)  # noqa: B010


if __name__ == "__main__":
    watch_imports()
    setattr(case.CaseRun, "lower", note_stages(case.CaseRun.lower))  # noqa: B010
    setattr(case.CaseRun, "execute", timed("running", case.CaseRun.execute))  # noqa: B010
    setattr(case, "judge_case", timed("judging", case.judge_case))  # noqa: B010
    code = main(sys.argv[2:])
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(dict(seconds)))
    sys.exit(code)
