"""Keeps two runs from writing their reports into one directory."""

from __future__ import annotations

import stat
import time
from contextlib import suppress
from pathlib import Path

from provisioning.console.caller import shown_path
from provisioning.console.streams import package_log
from provisioning.documents import read_text
from provisioning.errors import UsageError
from provisioning.files import require_writable
from provisioning.quoting import shell_words
from provisioning.store.lock import HeldLock

LOCK = ".lock"
LOG = "log.txt"  # what other packages print in this run
REPORTS_FIX = "pass a writable directory with --reports"
GRACE_S, POLL_S = 1.0, 0.05
SHOWN_COMMAND = 200  # characters
_claims: dict[Path, HeldLock] = {}  # of this process, until its verb ends


def claim_reports(directory: Path) -> None:
    """Make a directory for reports, and keep other runs from writing into it until this process
    ends. Where the file system has no locks, nothing is kept. What other packages print goes to LOG
    in the first claimed directory from now on.

    Raises StoreError if the directory is not writable, and UsageError if another run writes there.
    """
    path = directory.resolve()
    if path in _claims:
        require_writable(directory, REPORTS_FIX)
        return
    if lock := lock_reports(directory):
        _claims[path] = lock
    if (log := package_log()) and not log.path:
        log.keep_in(directory / LOG)


def lock_reports(directory: Path) -> HeldLock | None:
    """Do as ``claim_reports``, but until the returned lock is released. It is None where the file
    system has no locks.

    Without it, a second run would replace the report that the first one has just named, or the
    files of both would be mixed. The second one does not wait, because it would still replace the
    report. A run that is about to end is waited for, for GRACE_S seconds.
    """
    require_writable(directory, REPORTS_FIX)
    lock = HeldLock(directory.resolve() / LOCK)
    with suppress(FileNotFoundError):
        state = lock.path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
            raise UsageError(
                f"{shown_path(directory / LOCK)} is a link, or not a file",
                why="a run locks this file in its directory, and yours is not replaced",
                fix="move it, or pass another directory with --reports",
            )
    try:
        is_free = lock.take()
    except OSError:
        return None
    deadline = time.monotonic() + GRACE_S
    while not is_free and time.monotonic() < deadline:
        time.sleep(POLL_S)
        is_free = lock.take()
    if not is_free:
        raise UsageError(
            f"another run writes its reports to {shown_path(directory)}",
            why=f"{describe_holder(lock.read_holder())} has not ended",
            fix="wait until it has ended, or pass another directory with --reports",
        )
    return lock


def release_reports() -> None:
    """Let other runs write to the directories that this process has claimed."""
    while _claims:
        _claims.popitem()[1].release()


def describe_holder(pid: str) -> str:
    """Return a process's ID and command, as far as they are known."""
    words: list[str] = []
    with suppress(OSError):
        words = read_text(Path("/proc", pid, "cmdline"), "replace").rstrip("\0").split("\0")
    command = shell_words(words)[:SHOWN_COMMAND] if any(words) else ""
    return f"process {pid or 'of another user'}{f' ({command})' if command else ''}"
