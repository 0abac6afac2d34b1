"""Replace files and directories in one step, hash files, remove trees, and explain failed writes.

Readers of a replaced file or directory see the old content or the new, never a mix.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from provisioning.documents import open_regular
from provisioning.errors import QnnCiError, StoreError

READ_BYTES = 1 << 20
SPARE_BYTES = 64 << 20  # always left free on the disk
AT_FDCWD, RENAME_EXCHANGE = -100, 2
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_LEAVE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
REPLACED = "replaced"
ELSEWHERE = "choose a path that can be written"
BIGGER = "choose a disk with enough free space"
ANOTHER_TMPDIR = "choose another directory with TMPDIR"
RUN_SCRATCH = "qnn-ci"  # the name of a run's scratch_directory, in the temporary directory


def leads_out(path: str) -> bool:
    """Return whether a path from a manifest or record could point outside its tree: it is absolute,
    has a part ``..``, or contains a NUL character.
    """
    # A quick test first, since a lock of an SDK has thousands of paths.
    is_odd = ".." in path or path[:1] == "/" or "\0" in path
    return is_odd and (path[:1] == "/" or "\0" in path or ".." in path.split("/"))


def write_whole(path: Path, data: bytes | str) -> None:
    """Replace the content of ``path`` with ``data`` (text as UTF-8) in one step; make its directory
    if needed.

    A symbolic link is replaced, and so is a hard link: the other file stays as it is. Temporary
    files that killed processes left next to it are removed. Raises OSError, also for a pipe, whose
    reader may never come, and for a device.
    """
    raw = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_stream(path):
        raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # In the same directory, since a rename works only within a file system. The process ID shows
    # whether its writer still runs.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _clear_writes(path)
        fresh.unlink(missing_ok=True)  # it may be a link to another file
        fresh.write_bytes(raw)
        fresh.replace(path)
    except OSError as error:
        if error.filename:
            raise
        # A failed write, such as one to a full disk, names no file.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        fresh.unlink(missing_ok=True)


def write_named(path: Path, data: bytes | str) -> None:
    """Write the file that an option of the user names: a pipe and a device in place, another file
    as write_whole does. Raises OSError.
    """
    if is_stream(path):
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    else:
        write_whole(path, data)


def is_stream(path: Path) -> bool:
    """Return whether a path is a pipe or a device, such as /dev/stdout, even if this was redirected
    to a file. /dev/shm has ordinary files and links of any user."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return True
    parent = Path(os.path.realpath(path.parent))
    is_in_system = any(parent.is_relative_to(top) for top in ("/dev", "/proc"))
    is_in_memory = parent.is_relative_to("/dev/shm")  # noqa: S108 - nothing is written there
    return path.is_symlink() and is_in_system and not is_in_memory


def _clear_writes(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*"):
        number = left.suffix[1:]
        if number.isdecimal() and not Path("/proc", number).exists():
            left.unlink(missing_ok=True)


def open_own(path: Path, mode: int = 0o600) -> int:
    """Open a file that belongs to this project for reading and writing, and return its descriptor.
    A missing file is created.

    A symbolic or hard link, pipe or device at ``path`` is removed first, since writing to it would
    change something else. Raises OSError.
    """
    with suppress(FileNotFoundError):
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
            path.unlink()
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def explain_path(path: Path) -> str:
    """Return why a path cannot be used as a directory; '' if it is one."""
    if path.is_dir():
        return ""
    return "it is a file" if path.exists() else "it does not exist"


def has_files(directory: Path) -> bool:
    """Return whether ``directory`` exists and contains anything except ``.git``."""
    return directory.is_dir() and any(entry.name != ".git" for entry in directory.iterdir())


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal. Raises OSError."""
    with open_regular(path) as file:
        return hash_stream(file, hashlib.sha256())


def hash_stream(file: Any, digest: Any) -> str:
    """Add the rest of ``file``, a stream with ``readinto``, to ``digest``, and return the digest in
    hexadecimal. Raises OSError.
    """
    # One buffer for all reads: a new bytes object for each would be allocated and freed again.
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    while count := file.readinto(buffer):
        digest.update(view[:count])
    return str(digest.hexdigest())


def digest_sources(*places: Path) -> str:
    """Return the SHA-256 of the code that computes a result, for the result's cache key.

    ``places`` are files and directories. A directory stands for all files below it, except those in
    __pycache__. The names and the content of the files are hashed.
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
    """Yield a fresh directory next to ``target`` that replaces it in one step if the block
    succeeds.

    Several processes may stage the same target: the last one wins. Directories that killed
    processes left are removed first. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(target.parent, target.name) as staging:
        yield staging
        publish_directory(staging, target)


@contextmanager
def scratch_directory(parent: Path, name: str, mode: int = 0o777) -> Iterator[Path]:
    """Yield a directory below ``parent`` that is removed at the end of the block, unless it was
    renamed. The umask applies to ``mode``.

    Directories of the same name that killed processes left are removed first. Raises OSError.
    """
    clear_staging(parent / name)
    scratch, descriptor = _lock_new(parent / name, mode)
    try:
        yield scratch
    finally:
        with suppress(OSError):
            remove_tree(scratch)
        os.close(descriptor)


def publish_directory(staging: Path, target: Path) -> None:
    """Give the directory ``staging`` the name ``target``.

    If ``target`` exists, the two are exchanged, so that ``staging`` then contains the earlier
    content. If the file system cannot exchange directories, the earlier directory is moved aside
    and removed. One that a killed process left there is removed, too. Raises OSError.
    """
    aside = _beside(target, REPLACED)
    if not os.path.lexists(target):
        staging.rename(target)
        if aside.exists():
            with suppress(OSError):  # ``target`` is there
                remove_tree(aside)
        return
    library = ctypes.CDLL(None, use_errno=True)
    names = (AT_FDCWD, os.fsencode(staging), AT_FDCWD, os.fsencode(target))
    # Python has no function for it. With an exchange, the target exists at every moment. glibc has
    # it since 2.28.
    if hasattr(library, "renameat2") and library.renameat2(*names, RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    # Some file systems, and old kernels, cannot exchange.
    if number not in {0, errno.EINVAL, errno.ENOSYS}:
        raise OSError(number, os.strerror(number), str(target))
    if aside.exists():
        remove_tree(aside)
    target.rename(aside)
    try:
        staging.rename(target)
    except OSError:
        aside.rename(target)
        raise
    remove_tree(aside)


def remove_tree(path: Path) -> None:
    """Remove a file, a link, or a directory, even with read-only directories inside it. Raises
    OSError.
    """
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    with suppress(PermissionError):  # another user's directory may still be empty
        path.chmod(0o755)
    pending, numbers, mark = [path], itertools.count(), secrets.token_hex(4)
    while pending:
        at = pending.pop()
        for inner in list(at.iterdir()):
            if inner.is_symlink() or not inner.is_dir():
                inner.unlink()
                continue
            # A directory without write permission cannot be emptied.
            inner.chmod(0o755)
            # Directories are moved to the top, so that paths stay short at any depth, without
            # recursion.
            pending.append(inner.rename(path / f".{mark}-{next(numbers)}"))
        if at != path:
            at.rmdir()
    path.rmdir()


def walk(top: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk a tree like os.walk, but without the recursion that os.walk uses before Python 3.12."""
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
        yield at, names, files  # the caller may remove names
        pending += [at / name for name in names if name not in links]


@contextmanager
def explain_writes(place: Path, fix: str = ELSEWHERE) -> Iterator[None]:
    """Turn an OSError raised in the block, which writes ``place``, into a StoreError."""
    try:
        yield
    except OSError as error:
        raise explain_write(place, error, fix) from error


def require_writable(directory: Path, fix: str = ELSEWHERE) -> None:
    """Make a directory and check that files can be written into it. Raises StoreError."""
    with explain_writes(directory, fix):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()


def write_json(path: Path, data: Any, fix: str = ELSEWHERE) -> None:
    """Replace the content of ``path`` with ``data`` as indented JSON, in one step. Raises
    StoreError.
    """
    with explain_writes(path, fix):
        write_whole(path, json.dumps(data, indent=1) + "\n")


def confirm_write(error: StoreError) -> StoreError:
    """Raise ``error``, which another process reported, unless this process can write to the same
    place. Return the error of that process alone, which for example limited the size of its files.
    """
    place = error.place or Path(tempfile.gettempdir())
    directory = next((path for path in (place, *place.parents) if path.is_dir()), Path())
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            # A whole MiB, since a few bytes may fit into the last block of a full disk.
            file.write(bytes(READ_BYTES))
    except OSError:
        raise error from None
    if free_bytes(directory) < SPARE_BYTES:
        raise error
    return StoreError(
        error.what,
        why=f"{error.why}; other processes can write there",
        fix=error.fix if error.is_full else "do not limit the process (setrlimit) in the model",
    )


def explain_no_room(error: BaseException | None, place: Path | None = None) -> StoreError | None:
    """Return a StoreError if ``error`` or one of its causes reports a full disk or quota, else
    None. If that error names no file, it was in ``place`` or in the temporary directory, whichever
    has less free space.

    Whatever fails while the temporary directory is full may fail for that reason: ExecuTorch reads
    back what it could not write, and reports that it is no JSON.
    """
    first = error
    visited: list[BaseException] = []
    while error and error not in visited:  # `raise error from error` is its own cause
        if isinstance(error, QnnCiError):  # it states its reason itself
            return error if isinstance(error, StoreError) else None
        visited.append(error)
        failed = find_failed_write(error, place or Path(tempfile.gettempdir()))
        if failed and failed.errno in NO_ROOM:
            # Such as a process that writes to the cache, and to temporary files of libraries.
            unnamed = min(filter(None, (place, Path(tempfile.gettempdir()))), key=free_bytes)
            place = Path(failed.filename or unnamed)
            return explain_write(place, failed, ANOTHER_TMPDIR if _is_scratch(place) else BIGGER)
        error = error.__cause__ or error.__context__
    temporary = Path(tempfile.gettempdir())
    if first and free_bytes(temporary) < READ_BYTES:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))
        return explain_write(temporary, full, ANOTHER_TMPDIR)
    return None


def _is_scratch(place: Path) -> bool:
    """Return whether a path is in the temporary directory of a run, which TMPDIR chooses."""
    return any(part.startswith(f".{RUN_SCRATCH}.staging-") for part in place.parts)


_ERRNO = re.compile(r"\[Errno (\d+)\]")
# Writers that report a full disk without its number: numpy, torch and zip files, sqlite, C++.
_FULL = re.compile(
    r"\d+ requested and \d+ written|file write failed|unexpected pos \d+ vs|disk is full"
    r"|No space left on device|Disk quota exceeded"
)


def find_failed_write(error: BaseException, place: Path) -> OSError | None:
    """Return the OSError of the system for ``error``, whose ``filename`` is the path that could not
    be written, or None if ``error`` is about something else.

    A copy names its source first, but its target is what is full; a copy of a tree raises
    shutil.Error, which has the errors of its files as text. Some libraries report a full disk only
    as text, which counts if there is little space left for ``place``.
    """
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        for _, target, why in error.args[0]:
            if number := _ERRNO.search(str(why)):
                return OSError(int(number[1]), os.strerror(int(number[1])), str(target))
    if isinstance(error, OSError) and error.errno:
        path = error.filename2 or error.filename
        return OSError(error.errno, error.strerror, os.fsdecode(path) if path else None)
    is_full = isinstance(error, OSError | RuntimeError) and _FULL.search(str(error))
    if is_full and free_bytes(place) < SPARE_BYTES:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error if isinstance(error, OSError) else None


def explain_write(place: Path, error: OSError, fix: str) -> StoreError:
    """Return the StoreError for ``error``, which occurred while ``place`` was written. If the disk
    is full, it states the free space.
    """
    error = find_failed_write(error, place) or error
    why = f"{error.filename or place}: {error.strerror or error}"
    if error.errno == errno.EFBIG:
        fix = f"raise the limit for the size of a file (ulimit -f), or {fix}"
    elif error.errno in NO_ROOM:
        free = free_bytes(place)
        limit = ", so a quota or the number of files (df -i) is the limit"
        why = f"{mib(free)} are free{limit if free > SPARE_BYTES else ''}; {why}"
        return StoreError(
            f"there is no space left for {place}",
            why=why,
            fix=f"free some space, or {fix}",
            place=place,
            is_full=True,
        )
    return StoreError(f"{place} cannot be written", why=why, fix=fix, place=place)


def free_bytes(place: Path) -> int:
    """Return the number of free bytes on the disk of ``place``, which need not exist yet."""
    existing = next((path for path in (place, *place.parents) if path.exists()), Path())
    return shutil.disk_usage(existing).free


def mib(size_bytes: int) -> str:
    """Return a size as text, in MiB."""
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _beside(target: Path, word: str) -> Path:
    return target.with_name(f".{target.name}.staging-{word}")


def _lock_new(target: Path, mode: int) -> tuple[Path, int]:
    """Create and lock a directory next to ``target``; return it and the descriptor that holds the
    lock.

    Other processes do not remove the directory while it is locked, nor if its file system cannot
    lock directories, as NFS.
    """
    while True:
        staging = _beside(target, secrets.token_hex(4))
        staging.mkdir(mode)
        try:
            descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process removed it before it was locked
            continue
        is_held = True
        with suppress(OSError):
            is_held = _is_held(descriptor)
        if is_held and staging.exists():
            return staging, descriptor
        os.close(descriptor)


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def clear_staging(target: Path) -> None:
    """Remove directories that killed processes left next to ``target``, and restore ``target`` if
    one of these processes had moved it aside.
    """
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
