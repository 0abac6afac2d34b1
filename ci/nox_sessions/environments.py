"""Python environments with the packages of a lock."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nox
from filelock import FileLock, Timeout  # nox brings it, with virtualenv

from ci.nox_sessions.installers import install_with_pip, install_with_uv
from ci.packages.locks import Lock, list_pins
from ci.packages.uv import find_uv
from provisioning.console.progress import Progress
from provisioning.console.streams import user_stderr

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
        return os.access(self.python, os.X_OK)

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
        self.folder.parent.mkdir(exist_ok=True)
        # Two runs in one fresh checkout would otherwise install into the same folder at once.
        lock = FileLock(f"{self.folder}.lock")
        try:
            held_lock = lock.acquire(timeout=0)
        except Timeout:
            with announce(session, f"waiting for another nox that creates {self.lock.name}"):
                held_lock = lock.acquire()
        with held_lock:
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
        with announce(session, f"installing {count} packages into {self.lock.name}"):
            if uv is None:
                install_with_pip(session, self.folder, self.lock)
            else:
                install_with_uv(session, uv, self.folder, self.lock)
        # Last, so that an environment whose installation was interrupted counts as incomplete.
        stamp.write_text(self.lock.digest())


@contextmanager
def announce(session: nox.Session, activity: str) -> Iterator[None]:
    """Print what the block does, and from time to time how long it has taken."""
    session.log(activity)
    # Without bars, because rich, which draws them, is not installed with nox.
    with Progress(user_stderr()).waiting(activity):
        yield
