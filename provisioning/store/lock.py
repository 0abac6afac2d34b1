"""A lock file that says who holds it, also on a file system that knows no locks."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from provisioning.files import open_own

PROC = Path("/proc")
UNKNOWN = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL})
MARKER_SUFFIX = ".held"


class HeldLock:
    """One lock of this process, from ``take`` to ``release``."""

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self.path, self.mode = path, mode
        self.marker = path.with_name(path.name + MARKER_SUFFIX)
        self.fd = -1
        self.is_marked = False

    def take(self) -> bool:
        """Take the lock if it is free. Raises OSError."""
        fd = open_own(self.path, self.mode)
        try:
            with suppress(PermissionError):  # another user's: its mode is theirs
                os.fchmod(fd, self.mode)
            if not self._lock(fd):
                return False
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{describe_self()}\n".encode(), 0)
            self.fd, fd = fd, -1
            return True
        finally:
            if fd >= 0:
                os.close(fd)

    def release(self) -> None:
        """Let others have it."""
        if self.is_marked:
            self.marker.unlink(missing_ok=True)
            self.is_marked = False
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read_holder(self) -> str:
        """The process that has it, as far as it said so: its number; empty when not known."""
        with suppress(OSError, UnicodeDecodeError):
            for path in (self.marker, self.path):
                if path.is_file():
                    return path.read_text("ascii").partition(" ")[0].strip()
        return ""

    def _lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in UNKNOWN:
                return self._mark()
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return False
            raise
        return True

    def _mark(self) -> bool:
        """Where files cannot be locked, a marker stands for the lock until its process ends."""
        try:
            fd = os.open(self.marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            self._remove_stale()
            return False
        os.write(fd, f"{describe_self()}\n".encode())
        os.close(fd)
        self.is_marked = True
        return True

    def _remove_stale(self) -> None:
        with suppress(FileNotFoundError, UnicodeDecodeError):
            words = self.marker.read_text("ascii").split()
            if len(words) == 3 and words[2] == socket.gethostname() and not is_alive(*words[:2]):
                self.marker.unlink()


def describe_self() -> str:
    """This process: its number, when it started, its machine."""
    return f"{os.getpid()} {start_of(os.getpid())} {socket.gethostname()}"


def find_callers() -> list[tuple[int, str]]:
    """The shell that called this process: its number and when it started.

    In ``$(...)`` a shell may run a copy of itself in between; then both.
    """
    callers = [os.getppid()]
    with suppress(OSError, ValueError):
        text = (PROC / str(callers[0]) / "stat").read_text("ascii", "replace")
        above = int(text.rpartition(")")[2].split()[1])
        if (PROC / str(above) / "exe").readlink() == (PROC / str(callers[0]) / "exe").readlink():
            callers.append(above)
    return [(pid, start_of(pid)) for pid in callers]


def start_of(pid: int) -> str:
    """When a process of this machine started, in clock ticks since the boot; ``0`` when not known.

    With it, a number that was given to another process since is found out (proc(5), stat, 22).
    """
    try:
        return (
            (PROC / str(pid) / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
        )
    except (OSError, IndexError):
        return "0"


def is_alive(pid: str, start: str) -> bool:
    """Whether the process with this number that started then still runs."""
    if not pid.isdigit():
        return False
    try:
        state = (PROC / pid).stat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and start_of(int(pid)) == start
