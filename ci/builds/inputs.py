"""What a build reads and remembers: every file of its inputs, with a digest over all of them.

A file whose size, time and inode are as before keeps its hash, so that a second look at
twelve thousand files takes a fraction of a second and a touched but equal file is no change."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from provisioning.errors import UnfitError
from provisioning.files import hash_file, write_whole
from provisioning.store.store import explain_errors

T = TypeVar("T")
PRUNED = frozenset({".git", "__pycache__", ".nox", ".mypy_cache", ".pytest_cache", "node_modules"})
GENERATED_MARKS = ("CMakeCache.txt", "pyvenv.cfg")
PRUNED_SUFFIXES = (".pyc",)


class InputEntry(msgspec.Struct, frozen=True, array_like=True):
    """One file: its state on disk and the SHA-256 of its bytes (of its target, for a link)."""

    size: int
    mtime_ns: int
    inode: int
    mode: int
    sha256: str


NO_FILE = InputEntry(0, 0, 0, 0, "missing")
Snapshot: TypeAlias = dict[str, InputEntry]


def take_snapshot(
    root: Path, previous: Mapping[str, InputEntry] | None = None, skip: frozenset[str] = frozenset()
) -> Snapshot:
    """Every file below ``root`` by its relative path, sorted.

    Version control, caches, and directories that hold a CMake build or an environment are left
    out, and so are the relative paths in ``skip``. Raises UnfitError when ``root`` is unreadable.
    """
    known = previous or {}
    try:
        found = {
            relative: _read_entry(entry, known.get(relative))
            for relative, entry in _walk(root, "", skip)
        }
    except OSError as error:
        raise UnfitError(f"cannot read {error.filename or root}", why=str(error)) from error
    return dict(sorted(found.items()))


def digest_snapshot(snapshot: Mapping[str, InputEntry]) -> str:
    """SHA-256 over paths, executable bits and contents; times do not count."""
    digest = hashlib.sha256()
    for path, entry in snapshot.items():
        digest.update(f"{path}\0{entry.mode & 0o111:o}\0{entry.sha256}\n".encode())
    return digest.hexdigest()


def _walk(
    directory: Path, prefix: str, skip: frozenset[str]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as listing:
        entries = list(listing)
    if prefix and any(entry.name in GENERATED_MARKS for entry in entries):
        return
    for entry in entries:
        relative = prefix + entry.name
        if entry.name in PRUNED or relative in skip:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), relative + "/", skip)
        elif not entry.name.endswith(PRUNED_SUFFIXES):
            yield relative, entry


def _read_entry(entry: os.DirEntry[str], known: InputEntry | None) -> InputEntry:
    status = entry.stat(follow_symlinks=False)
    state = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode)
    if known and (known.size, known.mtime_ns, known.inode, known.mode) == state:
        return known
    if stat.S_ISLNK(status.st_mode):
        target = os.fspath(Path(entry.path).readlink())
        return InputEntry(*state, hashlib.sha256(target.encode()).hexdigest())
    if not stat.S_ISREG(status.st_mode):
        return InputEntry(*state, "")
    return InputEntry(*state, hash_file(Path(entry.path)))


class Built(msgspec.Struct, frozen=True):
    """One artifact as it was published."""

    path: str
    sha256: str


class State(msgspec.Struct, frozen=True):
    """The inputs and results of the last good build; ``inputs``: a snapshot a directory."""

    settings: str = ""
    inputs: dict[str, Snapshot] = msgspec.field(default_factory=dict)
    digest: str = ""
    artifacts: tuple[Built, ...] = ()


def read_record(path: Path, kind: type[T]) -> T:
    """The state of a build, or a snapshot; empty when there is none or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return kind()


def write_state(path: Path, state: State) -> None:
    write_whole(path, msgspec.json.encode(state))


def has_artifacts(directory: Path, state: State) -> bool:
    """Whether every published artifact is still there with the same bytes."""
    return bool(state.artifacts) and all(
        (directory / row.path).is_file() and hash_file(directory / row.path) == row.sha256
        for row in state.artifacts
    )


def sync_overlay(source: Path, overlay: Path, wanted: Snapshot, record: Path) -> int:
    """Make ``overlay`` hold the files of ``wanted``, as ``source`` has them; count the changes.

    A file whose bytes are as ``record`` says keeps its time, so that ninja rebuilds only what
    changed. Files that a build added are left. ``record`` never promises a file that is not
    yet there: an interrupted sync is taken up again. Raises StoreError when the disk is full.
    """
    present = read_record(record, dict[str, InputEntry])
    same = {
        path
        for path, entry in wanted.items()
        if path in present
        and (present[path].sha256, present[path].mode) == (entry.sha256, entry.mode)
    }
    stale = [path for path in wanted if path not in same]
    gone = present.keys() - wanted.keys()
    if not stale and not gone:
        return 0
    kept = {path: present[path] for path in same}
    with explain_errors(overlay):
        overlay.mkdir(parents=True, exist_ok=True)
        record.write_bytes(msgspec.json.encode(kept))
        for path in gone:
            (overlay / path).unlink(missing_ok=True)
        for path in stale:
            _copy(source / path, overlay / path)
        record.write_bytes(msgspec.json.encode(wanted))
    return len(stale) + len(gone)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.exists():
        target.unlink()
    shutil.copy(source, target, follow_symlinks=False)  # its time is now: newer than old objects
