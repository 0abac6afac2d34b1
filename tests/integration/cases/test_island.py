"""What the code of one job does to its process reaches neither other jobs nor the session."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ci.cases.forked import run_forked
from ci.cases.pool import Pool, find_fork_server
from provisioning.console import usage
from provisioning.console.allowance import Allowance
from provisioning.console.usage import Usage, Watch, list_descendants
from tests.stand_ins.waits import pause, wait_until

MOST_BYTES = 200 << 20


def limit(kind: int, most: int) -> None:
    resource.setrlimit(kind, (most, most))


def fill() -> None:
    blocks = []
    while True:
        blocks.append(b"x" * (8 << 20))


def raise_much() -> None:
    raise ValueError("x" * (50 << 20))


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raise_unprintable() -> None:
    raise UnprintableError


def lose_streams() -> None:
    """A fork that cannot say how it ended would go on as a second process of its parent."""
    for name in ("stdout", "stderr"):
        setattr(sys, name, os.fdopen(os.dup(1), "w"))
        getattr(sys, name).close()
    raise ValueError("seven")


def write_everywhere() -> None:
    for descriptor in range(3, 64):
        with suppress(OSError):
            os.write(descriptor, b"\0\0\0\0\0\0\0\x08garbage!")


def drip() -> None:
    """Write an answer that never ends, slowly."""
    descriptors = [int(link.name) for link in Path("/proc/self/fd").iterdir()]
    while True:
        pause(0.01)
        for descriptor in filter(lambda number: number > 2, descriptors):
            with suppress(OSError):
                os.write(descriptor, b"\x01")


def spread() -> None:
    while len(list_descendants(os.getpid())) < 40:
        if not os.fork():
            time.sleep(600)
    time.sleep(600)


def leave_daemon(mark: str) -> None:
    command = f"import time; time.sleep(600)  # {mark}"
    if not os.fork():
        os.setsid()
        subprocess.Popen([sys.executable, "-c", command])
        os._exit(0)


def change_everything() -> str:
    os.chdir("/")
    os.umask(0o777)
    os.environ.clear()
    sys.stdout = sys.stderr = sys.stdin = None  # type: ignore[assignment]
    sys.path[:], sys.argv[:] = [], []
    sys.setrecursionlimit(10**6)
    for number in range(1, 32):
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    threading.Thread(target=lambda: time.sleep(600)).start()
    return "changed"


def remove_temporary_files() -> str:
    place = Path(tempfile.gettempdir())
    (place / "left").write_bytes(b"x")
    return str(place)


def kill_server() -> None:
    """Kill the fork server from a fork of a worker."""
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    assert "forkserver" in Path(f"/proc/{fields[1]}/cmdline").read_text()
    os.kill(int(fields[1]), signal.SIGKILL)
    time.sleep(600)


def hang_once(started: Path) -> None:
    if not started.exists():
        started.touch()
        time.sleep(600)


HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "no files": (partial(limit, resource.RLIMIT_FSIZE, 0), ""),
    "no descriptors": (partial(limit, resource.RLIMIT_NOFILE, 3), ""),
    "all closed": (lambda: os.closerange(0, 1000), "without a result"),
    "exits": (partial(os._exit, 0), "exited with 0 without a result"),
    "kills its parent": (lambda: os.kill(os.getppid(), signal.SIGKILL), "was killed by SIGKILL"),
    "stops its parent": (lambda: os.kill(os.getppid(), signal.SIGSTOP), "did not end within 2 s"),
    "kills its group": (lambda: os.killpg(0, signal.SIGKILL), "was killed by SIGKILL"),
    "memory": (fill, "needs more than 0.195 GiB of memory, its limit"),
    "a huge message": (raise_much, "ValueError: xxx"),
    "no message": (raise_unprintable, "UnprintableError, whose message raised ValueError"),
    "no streams": (lose_streams, "ValueError: seven"),
    "garbage": (write_everywhere, "result"),
    "an endless answer": (drip, "did not end within 2 s"),
    "sleeps": (partial(time.sleep, 600), "did not end within 2 s: it used 0."),
    "processes": (spread, "started more than 30 processes"),
    "changes": (change_everything, ""),
}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    empty = tmp_path_factory.mktemp("cwd")
    worker_pool = Pool({**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("tmp"))}, empty, ())
    yield worker_pool
    worker_pool.close()


def in_fork(name: str) -> Any:
    return run_forked(HOSTILE[name][0])


def in_worker(name: str) -> Any:
    return HOSTILE[name][0]()


def say_good() -> str:
    return f"{Path.cwd()} {os.environ['TMPDIR'] == tempfile.gettempdir()} {tempfile.mkdtemp()[:1]}"


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", [in_fork, in_worker])
def test_a_hostile_job_fails_alone_and_the_next_job_runs(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: Any
) -> None:
    monkeypatch.setattr(usage, "MAX_PROCESSES", 30)
    if where is in_worker and name in {"kills its parent", "stops its parent"}:
        pytest.skip("the parent is the fork server: see the next test")
    good = pool.run(say_good, tmp_path / "good", 60).result
    message = HOSTILE[name][1]
    limit_s = 2 if "within 2 s" in message else 10
    ended = pool.run(
        partial(where, name),
        tmp_path / "log",
        limit_s,
        fresh=where is in_worker,
        max_bytes=MOST_BYTES,
    )
    if where is in_fork or message:
        assert message in ended.failure
    assert pool.run(say_good, tmp_path / "good", 60).result == good
    assert good.endswith(" True /")
    assert len(ended.failure) < 10_000


def test_other_jobs_go_on_if_a_job_kills_the_fork_server(pool: Pool, tmp_path: Path) -> None:
    pool.run(say_good, tmp_path / "good", 60)
    before = find_fork_server()
    results: list[Any] = []
    job = partial(hang_once, tmp_path / "started")
    slow = threading.Thread(target=lambda: results.append(pool.run(job, tmp_path / "slow", 600)))
    slow.start()
    wait_until((tmp_path / "started").exists)
    ended = pool.run(partial(run_forked, kill_server), tmp_path / "log", 60)
    slow.join()
    assert (ended.failure != "", results[0].failure) == (True, "")
    assert find_fork_server() != before


def test_processes_and_temporary_files_of_a_job_are_removed_after_it(
    pool: Pool, tmp_path: Path
) -> None:
    mark = tmp_path.name
    for job in (partial(run_forked, partial(leave_daemon, mark)), partial(leave_daemon, mark)):
        assert pool.run(job, tmp_path / "log", 60).failure == ""
        lines = [
            file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()
        ]
        assert not [line for line in lines if f"# {mark}".encode() in line]
    call = "__import__('multiprocessing').Pool(1).map(abs, [-7])"  # as torch's loaders do
    assert pool.run(partial(eval, call), tmp_path / "log", 60).result == [7]
    place = pool.run(remove_temporary_files, tmp_path / "log", 60).result
    assert not Path(place).exists()


def test_waiting_for_a_processor_does_not_count_against_the_time_limit_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, usages = [0.0], iter([Usage()])
    monkeypatch.setattr(usage, "read_usage", lambda _: next(usages))
    monkeypatch.setattr(usage.time, "monotonic", lambda: now[0])

    def check(seconds: float, cpu_s: float, *, is_waiting: bool) -> Watch:
        """A job of 10 s that is looked at once per second, with a tenth of ``cpu_s`` each."""
        nonlocal usages
        now[0] = 0.0
        rows = [Usage((1,), 0, cpu_s * n / seconds, is_waiting) for n in range(int(seconds) + 1)]
        usages = iter(rows)
        watch = Watch(1, Allowance(10.0), now[0])
        while not watch.is_late and now[0] < seconds:
            now[0] += 1.0
            messages.append(watch.check())
        return watch

    messages: list[str] = []
    patient = check(99, 9.0, is_waiting=True)
    assert (patient.is_late, round(patient.waited_s)) == (False, 90)
    slept = check(10, 9.9, is_waiting=False)
    assert (slept.is_late, slept.waited_s) == (True, 0.0)
    assert messages[-1] == "did not end within 10 s: it used 9.9 s of CPU time"
    assert check(10, 20.0, is_waiting=True).is_late  # with two threads
    busy = check(100, 9.0, is_waiting=True)
    assert "did not end within 100 s, 10 times its limit: the machine was busy" in messages[-1]
    assert (busy.is_late, busy.is_starved) == (True, False)
    assert check(100, 0.09, is_waiting=True).is_starved
    assert not check(10, 0.0, is_waiting=False).is_starved  # it hangs


@pytest.mark.parametrize(
    ("resident", "shared", "free", "message"),
    [
        (99, 0, 50, ""),
        (101, 0, 50, ""),  # above its share, while there is enough
        (101, 0, 9, "its share is"),
        (101, 2, 9, ""),
        (301, 0, 50, "its limit"),
        (301, 2, 50, ""),
    ],
)
def test_a_job_may_exceed_its_memory_share_while_memory_is_free(
    monkeypatch: pytest.MonkeyPatch, resident: int, shared: int, free: int, message: str
) -> None:
    row = Usage((1,), resident, 0.0)
    monkeypatch.setattr(usage, "read_usage", lambda _: row)
    monkeypatch.setattr(usage, "read_window", lambda _: "")
    monkeypatch.setattr(Usage, "measure_bytes", lambda self: self.resident_bytes - shared)
    monkeypatch.setattr(usage, "measure_memory", lambda: (free, 160))
    assert message in (warning := Watch(1, Allowance(60.0, 300, 100)).check())
    assert bool(warning) is bool(message)
