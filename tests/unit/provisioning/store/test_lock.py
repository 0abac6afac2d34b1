"""One lock file: who holds it, what is in its place, and which process is which."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from provisioning.store import lock
from provisioning.store.lock import HeldLock, find_callers, is_alive, start_of

NO_PROCESS = str(1 << 23)  # above the largest pid_max


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.lock"


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("is_0_free", [False, True])
def test_lock_has_one_holder_who_is_named_in_its_file(path: Path, is_0_free: bool) -> None:
    """Also where the lock's file gets descriptor 0."""
    path.write_text("1" * 500)  # of an earlier holder
    keep = os.dup(0)
    if is_0_free:
        os.close(0)
    try:
        before, (held, other) = open_files(), (HeldLock(path), HeldLock(path))
        assert held.take()
        assert (held.fd == 0) is is_0_free
        assert not os.get_inheritable(held.fd)
        assert path.read_text() == f"{os.getpid()}\n"
        inode, taken = path.stat().st_ino, open_files()
        assert not other.take()
        assert (other.fd, open_files(), path.stat().st_ino) == (-1, taken, inode)
        assert other.read_holder() == str(os.getpid())
        for _ in range(2):
            held.release()
            assert (held.fd, open_files()) == (-1, before)
        assert other.take()
        other.release()
    finally:
        os.dup2(keep, 0)
        os.close(keep)


# -- processes ------------------------------------------------------------------------------------


def test_process_is_known_by_its_number_and_its_start() -> None:
    start, own = start_of(os.getpid()), str(os.getpid())
    assert int(start) > 0
    for pid, when, alive in (
        (own, start, True),
        (own, "0", False),
        (NO_PROCESS, "0", False),
        ("self", start, False),
    ):
        assert is_alive(pid, when) is alive
    assert start_of(int(NO_PROCESS)) == "0"
    with subprocess.Popen(["sleep", "60"]) as process:
        assert int(start_of(process.pid)) >= int(start)
        process.kill()


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    monkeypatch.setattr(lock, "PROC", proc)
    return proc


def add_process(proc: Path, pid: int, parent: int, start: str, exe: str) -> None:
    """A process as /proc shows it, with a name that is hard to read."""
    (proc / str(pid)).mkdir()
    fields = ["S", str(parent), *("9" * 17), start, "7", "7"]
    name = f"{pid} (a) 1 2 (b) ".encode() + b"\xff) "
    (proc / str(pid) / "stat").write_bytes(name + " ".join(fields).encode())
    (proc / str(pid) / "exe").symlink_to(exe)


@pytest.mark.parametrize(("above", "is_caller"), [("/bin/sh", True), ("/bin/bash", False)])
def test_callers_are_the_shell_and_the_one_that_it_is_a_copy_of(
    proc: Path, above: str, is_caller: bool
) -> None:
    parent, grandparent = os.getppid(), 1 << 22
    assert find_callers() == [(parent, "0")]  # nothing can be read of it
    add_process(proc, parent, grandparent, "500", "/bin/sh")
    assert find_callers() == [(parent, "500")]
    add_process(proc, grandparent, 1, "300", above)
    assert find_callers() == [(parent, "500"), *([(grandparent, "300")] if is_caller else [])]
    (proc / str(parent) / "stat").write_text("1 (sh) S x")
    assert find_callers() == [(parent, "0")]
