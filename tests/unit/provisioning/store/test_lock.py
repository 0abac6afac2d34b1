"""One lock file: who holds it, what is in its place, and which process is which."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from provisioning.store.lock import HeldLock, is_alive, start_of

NO_PROCESS = str(1 << 23)  # above the largest pid_max


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.lock"


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("is_0_free", [False, True])
def test_lock_has_one_holder_who_is_named_in_its_file(path: Path, is_0_free: bool) -> None:
    """This also holds if the lock file gets descriptor 0."""
    path.write_text("1" * 500)  # of an earlier holder
    keep = os.dup(0)
    if is_0_free:
        os.close(0)
    try:
        before, (first, second) = open_files(), (HeldLock(path), HeldLock(path))
        assert first.take()
        assert (first.fd == 0) is is_0_free
        assert not os.get_inheritable(first.fd)
        assert path.read_text() == f"{os.getpid()}\n"
        inode, taken = path.stat().st_ino, open_files()
        assert not second.take()
        assert (second.fd, open_files(), path.stat().st_ino) == (-1, taken, inode)
        assert second.read_holder() == str(os.getpid())
        for _ in range(2):
            first.release()
            assert (first.fd, open_files()) == (-1, before)
        assert second.take()
        second.release()
    finally:
        os.dup2(keep, 0)
        os.close(keep)


@pytest.mark.parametrize("content", ["mine\n", "[package]\n", "12 ab\n", "1\n2\n", "-1"])
def test_a_file_of_the_user_is_locked_and_not_written(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o640)
    first, second = HeldLock(path, 0o666), HeldLock(path, 0o666)
    assert (first.take(), second.take()) == (True, False)
    assert (path.read_text(), path.stat().st_mode & 0o777) == (content, 0o640)
    assert second.read_holder() == ""
    first.release()
    assert second.take()
    second.release()


# -- processes ------------------------------------------------------------------------------------


def test_process_is_identified_by_its_number_and_start_time() -> None:
    start, own_pid = start_of(os.getpid()), str(os.getpid())
    assert int(start) > 0
    for pid, when, alive in (
        (own_pid, start, True),
        (own_pid, "0", False),
        (NO_PROCESS, "0", False),
        ("self", start, False),
    ):
        assert is_alive(pid, when) is alive
    assert start_of(int(NO_PROCESS)) == "0"
    with subprocess.Popen(["sleep", "60"]) as process:
        assert int(start_of(process.pid)) >= int(start)
        process.kill()
