"""Hold locks in files that record their holder, and identify processes of this machine by process
ID and start time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from provisioning.console.allowance import PROC, read_stat
from provisioning.documents import read_text
from provisioning.files import open_own

# What a lock contains: the process ID of its last holder.
OWN_CONTENT = re.compile(rb"\d*\n?")
MOST_BYTES = 4096


class HeldLock:
    """A lock file that this process holds from ``take`` to ``release``. A file at its path that
    contains anything else than a process ID is locked, and keeps its content and its mode: it may
    be the user's."""

    def __init__(self, path: Path, mode: int = 0o644) -> None:
        self.path, self.mode = path, mode
        self.fd = -1

    def take(self) -> bool:
        """Take the lock if it is free, and return whether it was. Raises OSError, for example if
        the file system does not support locks.
        """
        fd = open_own(self.path, self.mode)
        try:
            is_own = bool(OWN_CONTENT.fullmatch(os.pread(fd, MOST_BYTES, 0)))
            if is_own:
                with suppress(PermissionError):  # another user's: only they can change its mode
                    os.fchmod(fd, self.mode)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_own:  # and held, so that the name in it is not another holder's
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
        """Release the lock."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read_holder(self) -> str:
        """Return the ID of the process that holds the lock, or held it last; '' if unknown."""
        with suppress(OSError, UnicodeDecodeError):
            text = read_text(self.path)
            return text.strip() if OWN_CONTENT.fullmatch(text.encode()) else ""
        return ""


def find_callers() -> list[tuple[int, str]]:
    """Return the process ID and start time of the shell that called this process.

    In ``$(...)``, the caller may be a copy of the shell, so if its parent runs the same program,
    both are returned.
    """
    callers = [os.getppid()]
    with suppress(OSError, IndexError):
        above = int(read_stat(callers[0])[1])
        if (PROC / str(above) / "exe").readlink() == (PROC / str(callers[0]) / "exe").readlink():
            callers.append(above)
    return [(pid, start_of(pid)) for pid in callers]


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot (proc(5), stat, field 22); ``0`` if
    unknown.

    The start time shows whether a process ID was reused.
    """
    return next(iter(read_stat(pid)[19:]), "0")


def is_alive(pid: str, start: str) -> bool:
    """Return whether the process with this ID and start time is still running."""
    return pid.isdigit() and (PROC / pid).is_dir() and start_of(int(pid)) == start
