from __future__ import annotations

from pathlib import Path

import pytest

from ci.emulator.job import RunJob, RunResult
from ci.emulator.pool import ABORTED, Pool


class SlowWorker:
    """A worker whose start is overtaken by an abort."""

    ended = 0

    def __init__(self, pool: Pool) -> None:
        pool.abort()

    def call(self, *_: object) -> tuple[bytes, str]:
        return b"", "its process was ended"

    def end(self) -> None:
        self.ended += 1

    def close(self) -> None:
        self.end()


def test_an_aborted_pool_starts_nothing_and_ends_what_it_was_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool()
    workers: list[SlowWorker] = []

    def take(*, fresh: bool) -> SlowWorker:
        workers.append(SlowWorker(pool))
        return workers[-1]

    monkeypatch.setattr(pool, "_take", take)
    job = RunJob("a.pte", "list", "out")
    first, second = (pool.run("run", job, RunResult, tmp_path / "log", 1.0) for _ in range(2))
    assert (first.result, first.failure) == (None, "its process was ended")
    assert workers[0].ended == 2
    assert (second.failure, len(workers)) == (ABORTED, 1)
