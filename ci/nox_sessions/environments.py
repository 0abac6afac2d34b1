"""Python environments with the packages of a lock."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.nox_sessions.installers import install_with_pip, install_with_uv
from ci.packages.locks import Lock, list_pins
from ci.packages.uv import find_uv

if TYPE_CHECKING:
    import nox

HEARTBEAT_S = 15.0
STAMP = "installed.sha256"  # in an environment that is complete: the digest of its lock


@dataclass(frozen=True)
class PythonEnvironment:
    """The environment in ``folder`` for a lock. It need not exist yet, and may have been created
    for another lock."""

    folder: Path
    lock: Lock

    @property
    def python(self) -> Path:
        """Return the path of the environment's Python, which need not exist."""
        return self.folder / "bin" / "python"

    def can_run(self) -> bool:
        """Return whether this user can run the environment's Python: it may belong to another user,
        or be a link to a Python that was removed."""
        effective = os.access in os.supports_effective_ids
        return os.access(self.python, os.X_OK, effective_ids=effective)

    def is_complete(self) -> bool:
        """Return whether this user can run the environment, and all packages of the lock are
        installed in it for the running version of Python."""
        try:
            stamp = (self.folder / STAMP).read_text()
        except (OSError, UnicodeDecodeError):
            return False
        return self.can_run() and stamp == self.lock.digest()

    def create(self, session: nox.Session) -> None:
        """Create the environment anew, unless it is complete. Two processes that want the same
        environment do this one after the other.

        Raises OSError if this user cannot write it, SettingsError, and CommandFailed of nox.
        """
        if self.is_complete():
            return
        # Two runs in one fresh checkout would otherwise install into the same folder at once.
        with hold_lock(self.folder.with_name(f"{self.folder.name}.lock"), session.log):
            if not self.is_complete():
                self._install(session)

    def _install(self, session: nox.Session) -> None:
        stamp = self.folder / STAMP
        stamp.unlink(missing_ok=True)
        # What was not installed to its end would count as installed.
        if self.folder.exists():
            shutil.rmtree(self.folder)
        uv = find_uv()
        if uv is None:
            session.log("uv cannot be used, so pip installs; to try again, remove .nox/bootstrap")
        count = sum(1 for _ in list_pins(self.lock.path))
        with show_progress(f"installing {count} packages into {self.lock.name}", session.log):
            if uv is None:
                install_with_pip(session, self.folder, self.lock)
            else:
                install_with_uv(session, uv, self.folder, self.lock)
        # Last, so that an environment whose installation was interrupted counts as incomplete.
        stamp.write_text(self.lock.digest())


@contextmanager
def hold_lock(path: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Hold a file lock for the duration of the block. While another process holds it, print a note
    and wait. Raises OSError if the file cannot be written."""
    import fcntl  # does not exist on Windows

    path.parent.mkdir(exist_ok=True)
    # A link is not followed, and nothing is written: it may be a file of the user's.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with show_progress(f"waiting for another nox process that creates {path.stem}", log):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def show_progress(activity: str, log: Callable[[str], None]) -> Iterator[None]:
    """Print ``activity`` at the start of the block and then, with the elapsed time, every
    HEARTBEAT_S seconds until its end."""
    begun, ended = time.monotonic(), threading.Event()

    def repeat() -> None:
        while not ended.wait(HEARTBEAT_S):
            log(f"{activity}: {time.monotonic() - begun:.0f} s")

    log(activity)
    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
