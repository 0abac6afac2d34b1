"""A lock file that says who holds it; and the processes of this machine, by number and start."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from provisioning.files import open_own

PROC = Path("/proc")


class HeldLock:
    """One lock of this process, from ``take`` to ``release``."""

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self.path, self.mode = path, mode
        self.fd = -1

    def take(self) -> bool:
        """Take the lock if it is free. Raises OSError, also where files cannot be locked."""
        fd = open_own(self.path, self.mode)
        try:
            with suppress(PermissionError):  # another user's: its mode is theirs
                os.fchmod(fd, self.mode)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            self.fd, fd = fd, -1
            return True
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return False
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    def release(self) -> None:
        """Let others have it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read_holder(self) -> str:
        """The process that has it, as far as it said so: its number; empty when not known."""
        with suppress(OSError, UnicodeDecodeError):
            return self.path.read_text("ascii").partition(" ")[0].strip()
        return ""


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
