"""A worker's limits, with real processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.cases import pool as pool_module
from ci.cases.pool import (
    ABORTED,
    IMPORTS,
    LATE,
    MAX_WORKER_BYTES,
    STARTER,
    Ended,
    Lease,
    Pool,
    ScratchPool,
    Worker,
    begin_imports,
    find_fork_server,
    is_server,
    open_scratch_pool,
)
from provisioning.console.allowance import Allowance
from provisioning.console.usage import Watch
from provisioning.errors import StoreError, UnfitError, UsageError
from provisioning.files import SPARE_BYTES
from tests.stand_ins.runs import run_to_end


@pytest.fixture
def worker() -> Iterator[Worker]:
    started = Worker(multiprocessing.get_context("fork"))
    yield started
    started.end()
    assert started.process.exitcode is not None


def grow() -> int:
    blocks = [b"x" * (16 << 20) for _ in range(40)]
    time.sleep(600)
    return len(blocks)


def rest() -> int:
    time.sleep(600)
    return 0


def test_a_worker_over_its_memory_or_time_limit_is_not_reused(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.cases.pool.WATCH_S", 0.01)
    most = worker.size_bytes() + (256 << 20)
    lease = Lease(worker, tmp_path / "log", Allowance(60, most))
    assert lease.call(partial(bytes, 64 << 20)).failure == ""
    grown = lease.call(grow)
    assert ("GiB" in grown.failure, grown.died, grown.exceeded) == (True, False, True)
    assert not lease.reusable
    assert worker.size_bytes() < most + (1 << 30)
    late = Worker(multiprocessing.get_context("fork"))
    lease = Lease(late, tmp_path / "log", Allowance(0.05))
    ended = lease.call(rest)
    assert ended.exceeded
    assert ended.failure.startswith(f"{LATE} 0.05 s: it used")
    assert not lease.reusable
    late.end()  # else it holds the pipe for which the end of the tests waits


def test_a_worker_that_ends_by_itself_has_died(worker: Worker, tmp_path: Path) -> None:
    lease = Lease(worker, tmp_path / "log", Allowance(60))
    assert not lease.call(os.getpid).died
    ended = lease.call(partial(os.kill, worker.process.pid, signal.SIGKILL))
    assert (ended.died, ended.exceeded, "SIGKILL" in ended.failure) == (True, False, True)


def test_jobs_of_a_kind_share_a_process_unless_they_ask_for_a_fresh_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.cases.pool.WATCH_S", 0.01)
    pool = Pool.__new__(Pool)
    pool.context, pool.idle, pool.memory = multiprocessing.get_context("fork"), {}, (0, 0)
    pool.aborted, pool.starting, pool.has_started = threading.Event(), threading.Lock(), False
    pool.waited_s = {}
    monkeypatch.setattr(pool_module, "is_server", lambda _: True)
    log = tmp_path / "log"
    first, second, of_other_kind, fresh, third = (
        pool.run(job, log, 60.0, **options).result
        for job, options in (
            (os.getpid, {}),
            (os.getpid, {}),
            (partial(os.getpid), {}),
            (os.getpid, {"fresh": True}),
            (os.getpid, {}),
        )
    )
    assert first == second == third
    assert len({first, of_other_kind, fresh, os.getpid()}) == 4
    with pool.lease(type(os.getpid), log, 60.0) as lease:
        assert lease.call(os.getpid).result == first
    for idle_worker in pool.idle.values():
        idle_worker.end()
    assert len(pool.idle) == 2


class StubWorker:
    """Answers with ``answers``, and notes how it ends."""

    used = has_died = has_exceeded = False

    def __init__(self, *answers: tuple[Any, str], size: int = 0) -> None:
        self.answers, self.size = [*answers], size
        self.asked: list[tuple[Any, Path, Allowance]] = []
        self.ends: list[str] = []
        self.process = SimpleNamespace(pid=os.getpid(), is_alive=lambda: True)

    def call(self, job: Any, log: Path, watch: Watch) -> tuple[Any, str]:
        self.asked.append((job, log, watch.allowance))
        return self.answers.pop(0)

    def size_bytes(self) -> int:
        return self.size

    def close(self) -> None:
        self.ends.append("close")

    def end(self) -> None:
        self.ends.append("end")


def make_pool(monkeypatch: pytest.MonkeyPatch, *workers: Any) -> Pool:
    """A pool without a fork server, whose workers are these."""
    pool, left = Pool.__new__(Pool), [*workers]
    pool.context, pool.idle, pool.aborted = None, {}, threading.Event()
    pool.memory, pool.starting, pool.again = (0, 0), threading.Lock(), threading.Lock()
    pool.has_started, pool.waited_s = False, {}
    monkeypatch.setattr(pool_module, "Worker", lambda _: left.pop(0))
    monkeypatch.setattr(pool_module, "is_server", lambda _: True)
    return pool


GOOD, BAD = (7, ""), (None, "the process died")


def test_a_pool_counts_what_the_jobs_of_a_thread_wait_for_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowWorker(StubWorker):
        def call(self, job: Any, log: Path, watch: Watch) -> tuple[Any, str]:
            watch.started, watch.checked, watch.own_s = 0.0, 9.0, 2.0
            return super().call(job, log, watch)

    pool = make_pool(monkeypatch, SlowWorker(GOOD, GOOD))
    counts = []
    for _ in range(2):
        pool.run(rest, tmp_path / "log", 60.0)
        counts.append(pool.read_waited())
    assert counts == [7.0, 14.0]
    thread = threading.Thread(target=lambda: counts.append(pool.read_waited()))
    thread.start()
    thread.join()
    assert counts == [7.0, 14.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "size", "fresh", "end"),
    [
        (GOOD, 0, False, ""),
        (GOOD, MAX_WORKER_BYTES - 1, False, ""),
        (GOOD, MAX_WORKER_BYTES, False, "close"),
        (GOOD, 0, True, "close"),
        (BAD, 0, False, "end"),
        (BAD, 0, True, "end"),
        ((UsageError("no"), ""), 0, False, ""),
    ],
)
def test_only_a_small_worker_that_answered_is_reused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[Any, str],
    size: int,
    fresh: bool,
    end: str,
) -> None:
    worker = StubWorker(answer, GOOD, size=size)
    pool = make_pool(monkeypatch, worker, StubWorker(GOOD))
    pool.run(rest, tmp_path / "log", 60.0, fresh=fresh)
    assert worker.ends == [end] * bool(end)
    assert [*pool.idle.values()] == [worker] * (not end)
    assert pool.run(rest, tmp_path / "log", 60.0).used is not bool(end)


@pytest.mark.parametrize("is_full", [True, False])
def test_a_full_disk_in_a_worker_ends_the_run_only_if_the_session_cannot_write_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    worker: Any = StubWorker((StoreError("no space", place=tmp_path / "a" / "b"), ""))
    monkeypatch.setattr("provisioning.files.free_bytes", lambda _: SPARE_BYTES - is_full)
    with pytest.raises(StoreError, match="no space") if is_full else nullcontext():
        ended = Lease(worker, tmp_path / "log", Allowance(60)).call(rest)
        assert "other processes can write there" in ended.advice.causes[0].text


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_that_cannot_start_is_the_machine_s_fault_unless_the_pool_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], stopped: bool
) -> None:
    def start(_: Any) -> Worker:
        if stopped:
            pool.close()
        raise error

    ended: list[int] = []
    monkeypatch.setattr(pool_module, "end_fork_server", lambda: ended.append(1))
    pool = make_pool(monkeypatch)
    monkeypatch.setattr(pool_module, "Worker", start)
    if stopped:
        for _ in range(2):  # while it starts, and after that
            assert pool.run(rest, tmp_path / "log", 60.0) == Ended(None, ABORTED, "")
        assert ended == [1]
    else:
        with pytest.raises(UnfitError, match="cannot be started"):
            pool.run(rest, tmp_path / "log", 60.0)


ROOM = ctypes.create_string_buffer(4096)


def speak() -> None:
    """Print a line that is not written before a flush, even with PYTHONUNBUFFERED."""
    library = ctypes.CDLL(None)
    library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), ROOM, 0, len(ROOM))
    library.puts(b"of C")


def speak_python() -> None:
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    print("of Python")


def mute() -> None:
    sys.stdout.close()


def speak_and_fail() -> None:
    speak()
    raise ValueError("no")


def test_the_output_of_jobs_is_in_their_log_immediately(worker: Worker, tmp_path: Path) -> None:
    lease = Lease(worker, tmp_path / "log", Allowance(60))
    assert lease.call(partial(os.write, 1, b"out\n")).log_tail == "out"
    assert lease.call(partial(os.write, 2, b"error\n")).log_tail == "out\nerror"
    assert lease.call(speak).log_tail == "out\nerror\nof C"
    assert lease.call(speak_python).log_tail == "out\nerror\nof C\nof Python"
    assert not lease.call(mute).failure
    printed = lease.call(speak_and_fail).log_tail.splitlines()
    assert (printed[:4], printed.count("of C")) == (["out", "error", "of C", "of Python"], 2)
    first, second = (lease.call(partial(os.listdir, "/proc/self/fd")).result for _ in range(2))
    assert len(first) == len(second)


@pytest.mark.parametrize(("imports", "code", "shown"), [("this", 0, ""), ("this none", 1, "Zen")])
def test_what_imports_print_is_shown_only_if_one_fails(imports: str, code: int, shown: str) -> None:
    variables = {**os.environ, STARTER: str(os.getpid()), IMPORTS: imports}
    words = [sys.executable, "-c", "import ci.cases.fork_server"]
    printed = run_to_end(words, timeout_s=1200, codes={code}, env=variables)
    assert bool(printed) == bool(shown)
    assert shown in printed


def test_a_worker_that_ignores_sigterm_is_killed(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(worker, tmp_path / "log", Allowance(60))
    assert not lease.call(partial(signal.signal, signal.SIGTERM, signal.SIG_IGN)).failure
    monkeypatch.setattr("ci.cases.pool.GRACE_S", 0.05)
    worker.end()
    worker.process.join()
    assert worker.process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("imports", [("json",), ("csv",)])
def test_a_pool_that_was_begun_early_is_used_for_the_same_imports_only(
    monkeypatch: pytest.MonkeyPatch, imports: tuple[str, ...]
) -> None:
    monkeypatch.setattr(ScratchPool, "guess", lambda self, profile: self.open(os.environ))
    with begin_imports("emulator", ("json",)):
        begun = find_fork_server()
        with open_scratch_pool(imports) as scratch:
            assert is_server(begun) == (imports == ("json",))
            scratch.open(os.environ)
            assert is_server(find_fork_server())
        assert not is_server(find_fork_server())
        with open_scratch_pool(("json",)) as scratch:  # it was used, so this one is another
            assert scratch.pool is None
    assert not list(Path(scratch.scratch).parent.glob(scratch.scratch.name))
