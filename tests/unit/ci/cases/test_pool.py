"""A worker's limits, with real processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ci.cases import pool as pool_module
from ci.cases.pool import (
    IMPORTS,
    LATE,
    ROOT,
    STARTER,
    TUNABLES,
    Lease,
    Pool,
    Worker,
    list_python_path,
)
from ci.models.numerics import VARIABLES
from provisioning.console.caller import DIRECTORY_VARIABLE


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(multiprocessing.get_context("fork"))
    yield made
    made.end()
    assert made.process.exitcode is not None


def grow() -> int:
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))
        time.sleep(0.001)


def rest() -> int:
    time.sleep(60)
    return 0


def answer() -> int:
    return len(b"x" * (64 << 20))


def test_a_worker_that_grows_too_large_is_given_up(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.cases.pool.WATCH_S", 0.01)
    most = worker.size_bytes() + (256 << 20)
    lease = Lease(worker, tmp_path / "log", 60, most)
    assert lease.call(answer).result == 64 << 20
    ended = lease.call(grow)
    assert "GiB" in ended.failure
    assert not lease.reusable
    assert worker.size_bytes() < most + (1 << 30)


@pytest.mark.parametrize("given", ["", "glibc.malloc.check=1"])
def test_workers_inherit_the_environment_and_what_they_need_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    servers = iter([None, 7, 7, 7])
    seen: list[tuple[dict[str, str], Path]] = []
    monkeypatch.setattr(pool_module, "find_fork_server", lambda: next(servers))
    monkeypatch.setattr(
        pool_module.forkserver,
        "ensure_running",
        lambda: seen.append((dict(os.environ), Path.cwd())),
    )
    before = dict(os.environ)
    environment = {"PYTHONPATH": "lib", "LD_LIBRARY_PATH": "/sdk/lib", "GLIBC_TUNABLES": given}
    Pool(environment, tmp_path / "own", ("one", "two"))
    assert (dict(os.environ), Path.cwd()) == (before, tmp_path / "user")
    ((variables, directory),) = seen
    assert directory == tmp_path / "own"
    assert variables == {
        "PYTHONPATH": f"{tmp_path}/user/lib:{ROOT}",
        "LD_LIBRARY_PATH": "/sdk/lib",
        "GLIBC_TUNABLES": f"{given}:{TUNABLES}".removeprefix(":"),
        "PYTHONUTF8": "1",
        DIRECTORY_VARIABLE: f"{tmp_path}/user",
        STARTER: str(os.getpid()),
        IMPORTS: "one two",
        **VARIABLES,
    }
    with pytest.raises(RuntimeError, match="another fork server"):
        Pool(environment, tmp_path / "own", ())


def test_an_installed_project_needs_no_path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("site-packages", "dist-packages"):
        monkeypatch.setattr(pool_module, "ROOT", Path("/env") / name)
        assert list_python_path("/a::/b:/a") == "/a:/b"
    monkeypatch.setattr(pool_module, "ROOT", Path("/own"))
    assert list_python_path("") == "/own"
    assert list_python_path("/own:/a") == "/own:/a"


def test_jobs_of_a_kind_share_a_process_unless_they_ask_for_a_fresh_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.cases.pool.WATCH_S", 0.01)
    pool = Pool.__new__(Pool)
    pool.context, pool.idle = multiprocessing.get_context("fork"), {}
    pool.aborted = threading.Event()
    log = tmp_path / "log"
    first, second, other, fresh, third = (
        pool.run(job, log, 60.0, **more).result
        for job, more in (
            (os.getpid, {}),
            (os.getpid, {}),
            (partial(os.getpid), {}),
            (os.getpid, {"fresh": True}),
            (os.getpid, {}),
        )
    )
    assert first == second == third
    assert len({first, other, fresh, os.getpid()}) == 4
    with pool.lease(type(os.getpid), log, 60.0) as lease:
        assert lease.call(os.getpid).result == first
    for one in pool.idle.values():
        one.end()
    assert len(pool.idle) == 2


def test_a_worker_that_is_late_is_given_up_in_time(worker: Worker, tmp_path: Path) -> None:
    lease = Lease(worker, tmp_path / "log", 0.05, 1 << 40)
    ended = lease.call(rest)
    assert ended.failure == f"{LATE} 0.05 s"
    assert not lease.reusable
