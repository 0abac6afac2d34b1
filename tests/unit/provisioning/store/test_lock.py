"""One lock file at its edges: who has it, and what stands in its place."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.store import lock
from provisioning.store.lock import HeldLock, find_callers, is_alive, start_of

NO_PROCESS = str(1 << 23)  # above the largest pid_max


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.lock"


@pytest.fixture
def holder(path: Path) -> Iterator[HeldLock]:
    held = HeldLock(path)
    assert held.take()
    yield held
    held.release()


def refuse_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr("fcntl.flock", refuse)


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_one_has_it_and_says_so(path: Path, holder: HeldLock) -> None:
    before = open_files()
    other = HeldLock(path)
    assert not other.take()
    assert other.fd == -1
    assert open_files() == before
    assert path.read_text() == f"{os.getpid()}\n"
    assert other.read_holder() == str(os.getpid())
    holder.release()
    assert other.take()
    other.release()


def test_released_it_has_no_file_open_and_may_be_released_again(path: Path) -> None:
    before = open_files()
    held = HeldLock(path)
    assert held.take()
    assert open_files() != before
    assert not os.get_inheritable(held.fd)
    held.release()
    held.release()
    assert (held.fd, open_files()) == (-1, before)


@pytest.fixture
def free_descriptor_0() -> Iterator[None]:
    keep = os.dup(0)
    os.close(0)
    yield
    os.dup2(keep, 0)
    os.close(keep)


@pytest.mark.usefixtures("free_descriptor_0")
def test_descriptor_0_is_closed_too(path: Path) -> None:
    held, other = HeldLock(path), HeldLock(path)
    assert (held.take(), held.fd) == (True, 0)
    assert not other.take()
    held.release()
    assert other.take()
    other.release()


@pytest.mark.usefixtures("holder", "free_descriptor_0")
def test_descriptor_0_is_closed_where_another_has_it(path: Path) -> None:
    assert not HeldLock(path).take()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(0)


def test_a_longer_text_of_an_earlier_holder_goes(path: Path) -> None:
    path.write_text("1" * 500)
    held = HeldLock(path)
    assert held.take()
    held.release()
    assert path.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("mode", [None, 0o666])
def test_its_mode_does_not_follow_the_umask(path: Path, mode: int | None) -> None:
    before = os.umask(0o077)
    try:
        held = HeldLock(path) if mode is None else HeldLock(path, mode)
        assert held.take()
        held.release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == (mode or 0o644)


def test_the_file_of_another_user_keeps_its_mode(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, mode: int) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr("os.fchmod", refuse)
    held = HeldLock(path)
    assert held.take()
    held.release()


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_what_a_link_names_is_not_written_to(path: Path, tmp_path: Path, make: object) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    make(path, mine)  # type: ignore[operator]
    held = HeldLock(path)
    assert held.take()
    held.release()
    assert (mine.read_text(), path.is_symlink(), path.stat().st_nlink) == ("mine", False, 1)


def test_a_link_that_comes_at_the_last_moment_is_not_followed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def come_late(name: Path, flags: int, mode: int) -> int:
        name.symlink_to(tmp_path / "mine")
        return opened(name, flags, mode)

    monkeypatch.setattr("os.open", come_late)
    with pytest.raises(OSError, match="symbolic links"):
        HeldLock(path).take()
    assert not (tmp_path / "mine").exists()


def test_the_lock_file_of_others_is_not_replaced(path: Path, holder: HeldLock) -> None:
    before = path.stat().st_ino
    assert not HeldLock(path).take()
    assert path.stat().st_ino == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOLCK])
def test_what_the_file_system_refuses_is_raised(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_locks(monkeypatch, number)
    before = open_files()
    with pytest.raises(OSError, match="refused"):
        HeldLock(path).take()
    assert open_files() == before


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
def test_either_number_says_that_somebody_has_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_locks(monkeypatch, number)
    assert not HeldLock(path).take()


def test_nobody_is_known_of_a_lock_that_is_not_there_or_unreadable(path: Path) -> None:
    assert HeldLock(path).read_holder() == ""
    path.write_bytes(b"\xff\xfe 1")
    assert HeldLock(path).read_holder() == ""
    path.unlink()
    path.mkdir()
    assert HeldLock(path).read_holder() == ""


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    start = start_of(os.getpid())
    assert start.isdigit()
    assert int(start) > 0
    assert is_alive(str(os.getpid()), start)
    assert not is_alive(str(os.getpid()), "0")
    assert not is_alive(NO_PROCESS, "0")
    assert not is_alive("self", start)
    assert start_of(int(NO_PROCESS)) == "0"


def test_two_processes_have_two_starts() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert int(start_of(process.pid)) >= int(start_of(os.getpid()))
        assert start_of(process.pid) == start_of(process.pid)
        process.kill()


def make_process(proc: Path, pid: int, parent: int, start: str, exe: str) -> None:
    """A process as /proc shows it, with a name that is hard to read."""
    (proc / str(pid)).mkdir()
    fields = ["S", str(parent), *("9" * 17), start, "7", "7"]
    (proc / str(pid) / "stat").write_bytes(
        f"{pid} (a) 1 2 (b) ".encode() + b"\xff) " + " ".join(fields).encode()
    )
    (proc / str(pid) / "exe").symlink_to(exe)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    monkeypatch.setattr(lock, "PROC", proc)
    return proc


def test_the_callers_are_the_shell_and_the_one_that_it_is_a_copy_of(proc: Path) -> None:
    parent = os.getppid()
    make_process(proc, parent, 1 << 22, "500", "/bin/sh")
    make_process(proc, 1 << 22, 1, "300", "/bin/sh")
    assert find_callers() == [(parent, "500"), (1 << 22, "300")]


def test_another_program_above_the_shell_is_no_caller(proc: Path) -> None:
    parent = os.getppid()
    make_process(proc, parent, 1 << 22, "500", "/bin/sh")
    make_process(proc, 1 << 22, 1, "300", "/bin/bash")
    assert find_callers() == [(parent, "500")]


def test_a_shell_of_which_nothing_can_be_read_is_the_caller(proc: Path) -> None:
    assert find_callers() == [(os.getppid(), "0")]
    (proc / str(os.getppid())).mkdir()
    (proc / str(os.getppid()) / "stat").write_text("1 (sh) S x")
    assert find_callers() == [(os.getppid(), "0")]


def test_a_file_in_the_place_of_a_process_is_none(proc: Path) -> None:
    (proc / "77").write_text("")
    assert not is_alive("77", "0")
    (proc / "78").mkdir()
    assert is_alive("78", "0")
