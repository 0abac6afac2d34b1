"""A directory that appears whole or not at all.

Work is done in a hidden directory beside the target, which one rename publishes. Whoever holds
the lock on that directory owns it; what a killed run left in it is cleared by the next one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.errors import StoreError, UnfitError, UsageError

AT_FDCWD, RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True)
class Staging:
    """``scratch`` is for work, ``ready`` becomes the target."""

    target: Path
    scratch: Path
    ready: Path


def check_target(target: Path, *, force: bool, protected: Iterator[Path]) -> None:
    """Refuse a target that is kept or must not be written to. Raises UsageError."""
    resolved = target.resolve()
    for root in protected:
        if resolved.is_relative_to(root.resolve()) or root.resolve().is_relative_to(resolved):
            raise UsageError(
                f"{target} lies in {root}, or holds it",
                why="signed libraries are never written into an SDK: it is shared and verified",
                fix="choose another --out",
            )
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"{target} exists and is not a directory", fix="choose another --out")
    if target.exists() and not force:
        raise UsageError(
            f"{target} exists and is kept",
            fix="--force replaces it once everything is signed and verified",
        )


@contextmanager
def stage(target: Path) -> Iterator[Staging]:
    """A staging area for ``target``, taken away at the end. Raises UnfitError when it is held."""
    target = target.absolute()  # the signer runs in a directory of its own
    area = target.parent / f".{target.name}.signing"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(area)
    except OSError as error:
        raise StoreError(f"cannot write beside {target}", why=str(error)) from error
    try:
        _clear(area, target)
        run = Path(tempfile.mkdtemp(dir=area))
        staging = Staging(target, run / "scratch", run / "ready")
        staging.scratch.mkdir()
        staging.ready.mkdir()
        yield staging
    finally:
        shutil.rmtree(area, ignore_errors=True)
        os.close(descriptor)


def _lock(area: Path) -> int:
    area.mkdir(exist_ok=True)
    descriptor = os.open(area, os.O_RDONLY | os.O_DIRECTORY)
    if _holds(descriptor, area):
        return descriptor
    os.close(descriptor)
    raise UnfitError(
        f"another run is signing into {area.name[1:].removesuffix('.signing')}",
        fix="wait for it to end",
    )


def _holds(descriptor: int, area: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A run that ended just now took the directory of that name away.
        return area.stat().st_ino == os.fstat(descriptor).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _clear(area: Path, target: Path) -> None:
    """Take away what a killed run left; a target that it had moved aside goes back."""
    for left in area.iterdir():
        aside = left / "replaced"
        if aside.is_dir() and not target.exists():
            aside.rename(target)
        shutil.rmtree(left, ignore_errors=True)


def publish(staging: Staging) -> None:
    """Put ``ready`` in the target's place by one rename. Raises StoreError."""
    try:
        if staging.target.exists():
            exchange(staging.ready, staging.target)
        else:
            staging.ready.rename(staging.target)
    except OSError as error:
        raise StoreError(f"cannot publish {staging.target}", why=str(error)) from error


def exchange(one: Path, other: Path) -> None:
    """Swap two directories at once, so that there is no instant without one.

    On a file system that cannot, the old one is moved aside first.
    """
    library = ctypes.CDLL(None, use_errno=True)
    arguments = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    if hasattr(library, "renameat2") and library.renameat2(*arguments) == 0:
        return
    number = ctypes.get_errno()
    if number not in {0, errno.EINVAL, errno.ENOSYS}:
        raise OSError(number, os.strerror(number), str(other))
    aside = one.with_name("replaced")
    other.rename(aside)
    try:
        one.rename(other)
    except OSError:
        aside.rename(other)
        raise
