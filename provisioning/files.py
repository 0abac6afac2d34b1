"""Files and directories that others read while they are written: as they were or as they are."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import hashlib
import itertools
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from provisioning.errors import StoreError

READ_BYTES = 1 << 20
SPARE_BYTES = 64 << 20  # what a disk keeps free for others
AT_FDCWD, RENAME_EXCHANGE = -100, 2
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_LEAVE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
REPLACED = "replaced"
ELSEWHERE = "name a place that can be written"


def leads_out(path: str) -> bool:
    """Whether a path of a tree, as a manifest or record names it, is none below the tree's root."""
    is_odd = ".." in path or path[:1] == "/" or "\0" in path
    return is_odd and (path[:1] == "/" or "\0" in path or ".." in path.split("/"))


def write_whole(path: Path, data: bytes | str) -> None:
    """Replace ``path`` by ``data`` (text as UTF-8) in one step, making its directory.

    What a symbolic link names, a pipe or a device is written to as it is. What processes that were
    killed meanwhile left beside it goes. Raises OSError.
    """
    raw = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not path.is_file()):  # /dev/stdout is both
        path.write_bytes(raw)
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _clear_writes(path)
        fresh.write_bytes(raw)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _clear_writes(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*"):
        number = left.suffix[1:]
        if number.isdecimal() and not Path("/proc", number).exists():
            left.unlink(missing_ok=True)


def open_own(path: Path, mode: int = 0o600) -> int:
    """Open one of our files to read and write; anything else with its name is removed.

    A symbolic link, a second name of another file, or a pipe would lead elsewhere. Raises OSError.
    """
    with suppress(FileNotFoundError):
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
            path.unlink()
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def has_files(directory: Path) -> bool:
    """Whether a directory holds anything besides git's own."""
    return directory.is_dir() and any(entry.name != ".git" for entry in directory.iterdir())


def hash_file(path: Path) -> str:
    """The SHA-256 of a regular file, in hexadecimal. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        return hash_stream(file, hashlib.sha256())


def hash_stream(file: Any, digest: Any) -> str:
    """The digest of what is left of a stream that has readinto, in hexadecimal. Raises OSError."""
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    while count := file.readinto(buffer):
        digest.update(view[:count])
    return str(digest.hexdigest())


def digest_sources(*places: Path) -> str:
    """The SHA-256 of the code that computes a thing, for the key under which that is kept.

    Every file of a package's directory counts with its name, and so does each file named alone.
    """
    rows = [
        f"{path.relative_to(place.parent)}\0{hash_file(path)}\n"
        for place in places
        for path in (place.rglob("*") if place.is_dir() else [place])
        if path.is_file() and path.parent.name != "__pycache__"
    ]
    return hashlib.sha256("".join(sorted(rows)).encode()).hexdigest()


@contextmanager
def staged_directory(target: Path) -> Iterator[Path]:
    """A fresh directory beside ``target`` that takes its place at once when the block ends well.

    Several processes may stage the same target: the last one is kept. What a killed one left is
    removed by the next. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(target.parent, target.name) as staging:
        yield staging
        publish_directory(staging, target)


@contextmanager
def scratch_directory(parent: Path, name: str) -> Iterator[Path]:
    """A directory below ``parent`` for as long as the block takes.

    What killed processes left of the same name is removed first. Raises OSError.
    """
    _clear_staging(parent / name)
    scratch, descriptor = _lock_new(parent / name)
    try:
        yield scratch
    finally:
        with suppress(OSError):
            remove_tree(scratch)
        os.close(descriptor)


def publish_directory(staging: Path, target: Path) -> None:
    """Put ``staging`` where ``target`` is; the earlier content is in ``staging`` afterwards.

    On a file system that cannot exchange two directories, the old one is moved aside and removed.
    Raises OSError.
    """
    if not target.exists():
        staging.rename(target)
        return
    library = ctypes.CDLL(None, use_errno=True)
    names = (AT_FDCWD, os.fsencode(staging), AT_FDCWD, os.fsencode(target))
    if hasattr(library, "renameat2") and library.renameat2(*names, RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in {0, errno.EINVAL, errno.ENOSYS}:
        raise OSError(number, os.strerror(number), str(target))
    aside = _beside(target, REPLACED)
    target.rename(aside)
    try:
        staging.rename(target)
    except OSError:
        aside.rename(target)
        raise
    remove_tree(aside)


def remove_tree(path: Path) -> None:
    """Remove one of our directories, read-only ones inside included, or a file. Raises OSError."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    pending, numbers, mark = [path], itertools.count(), secrets.token_hex(4)
    while pending:
        at = pending.pop()
        for inner in list(at.iterdir()):
            if inner.is_symlink() or not inner.is_dir():
                inner.unlink()
                continue
            inner.chmod(0o755)
            # However deep it lies: its path stays short, and nothing calls itself.
            pending.append(inner.rename(path / f".{mark}-{next(numbers)}"))
        if at != path:
            at.rmdir()
    path.rmdir()


def walk(top: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """What os.walk gives, which calls itself for each level before Python 3.12."""
    pending = [top]
    while pending:
        at = pending.pop()
        names: list[str] = []
        files: list[str] = []
        links: set[str] = set()
        with suppress(OSError), os.scandir(at) as children:
            for child in children:
                (names if child.is_dir() else files).append(child.name)
                links |= {child.name} if child.is_symlink() else set()
        yield at, names, files  # the caller may take names out
        pending += [at / name for name in names if name not in links]


@contextmanager
def explain_writes(place: Path, fix: str = ELSEWHERE) -> Iterator[None]:
    """Turn what the system refuses while ``place`` is written into a StoreError."""
    try:
        yield
    except OSError as error:
        raise explain_write(place, error, fix) from error


def require_writable(directory: Path, fix: str = ELSEWHERE) -> None:
    """Make a directory, and see that a file can be written into it. Raises StoreError."""
    with explain_writes(directory, fix):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()


def write_json(path: Path, data: Any, fix: str = ELSEWHERE) -> None:
    """Replace ``path`` by ``data`` as JSON, indented, in one step. Raises StoreError."""
    with explain_writes(path, fix):
        write_whole(path, json.dumps(data, indent=1) + "\n")


def explain_no_room(error: BaseException | None) -> StoreError | None:
    """The error for a full disk, when that is what is behind ``error``."""
    while error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            place = Path(os.fsdecode(error.filename) if error.filename else tempfile.gettempdir())
            return explain_write(place, error, "name a place that has some")
        error = error.__cause__ or error.__context__
    return None


def explain_write(place: Path, error: OSError, fix: str) -> StoreError:
    """The error for a file system that has no room for ``place``, or refuses it."""
    why = f"{error.filename or place}: {error.strerror or error}"
    if error.errno in NO_ROOM:
        why = f"{mib(free_bytes(place))} are free; {why}"
        return StoreError(f"there is no room in {place}", why=why, fix=f"free some, or {fix}")
    return StoreError(f"{place} cannot be written", why=why, fix=fix)


def free_bytes(place: Path) -> int:
    """Return the free bytes on the disk of ``place``, which need not exist yet."""
    there = next((path for path in (place, *place.parents) if path.exists()), Path())
    return shutil.disk_usage(there).free


def mib(size_bytes: int) -> str:
    """A size as a person reads it."""
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _beside(target: Path, word: str) -> Path:
    return target.with_name(f".{target.name}.staging-{word}")


def _lock_new(target: Path) -> tuple[Path, int]:
    """A new directory whose lock says, as long as it is held, that somebody is at work in it."""
    while True:
        staging = _beside(target, secrets.token_hex(4))
        staging.mkdir()
        try:
            descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process swept it before it was locked
            continue
        if _is_held(descriptor) and staging.exists():
            return staging, descriptor
        os.close(descriptor)


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear_staging(target: Path) -> None:
    """Remove what killed processes left; a target that one had moved aside goes back."""
    aside = _beside(target, REPLACED)
    for left in sorted(target.parent.glob(glob.escape(_beside(target, "").name) + "*")):
        with suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if not _is_held(descriptor):
                    continue
                if left == aside and not target.exists():
                    left.rename(target)
                else:
                    remove_tree(left)
            finally:
                os.close(descriptor)
