"""Hash the inputs of a build, and record them.

A file is hashed again only if its size, time, inode or mode has changed. A second check of twelve
thousand files therefore takes a fraction of a second.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from provisioning.documents import DocumentError, read_json
from provisioning.errors import UnfitError
from provisioning.files import hash_file, write_whole
from provisioning.store.store import explain_errors

T = TypeVar("T")
PRUNED = frozenset({".git", "__pycache__", ".nox", ".mypy_cache", ".pytest_cache", "node_modules"})
GENERATED_MARKS = ("CMakeCache.txt", "pyvenv.cfg")
PRUNED_SUFFIXES = (".pyc",)


class InputEntry(msgspec.Struct, frozen=True, array_like=True):
    """The state of a file on disk, and the SHA-256 of its content. For a symbolic link, it is the
    SHA-256 of the target's path."""

    size: int
    mtime_ns: int
    inode: int
    mode: int
    sha256: str


NO_FILE = InputEntry(0, 0, 0, 0, "missing")
Snapshot: TypeAlias = dict[str, InputEntry]


def take_snapshot(
    root: Path,
    previous: Mapping[str, InputEntry] | None = None,
    skip: frozenset[str] = frozenset(),
    marks: tuple[str, ...] = GENERATED_MARKS,
) -> Snapshot:
    """Return the entries of all files below ``root``. The keys are relative paths, in sorted order.

    Version control, caches and the relative paths in ``skip`` are left out. So are directories
    below ``root`` that contain a file named in ``marks``, such as CMake builds and virtual
    environments. Raises UnfitError if ``root`` is unreadable.
    """
    known = previous or {}
    try:
        found = {
            relative: _read_entry(entry, known.get(relative))
            for relative, entry in _walk(root, "", skip, marks)
        }
    except OSError as error:
        raise UnfitError(f"cannot read {error.filename or root}", why=str(error)) from error
    return dict(sorted(found.items()))


def digest_snapshot(snapshot: Mapping[str, InputEntry]) -> str:
    """Return a SHA-256 over paths, executable bits and contents, but not times."""
    digest = hashlib.sha256()
    for path, entry in snapshot.items():
        digest.update(f"{path}\0{entry.mode & 0o111:o}\0{entry.sha256}\n".encode())
    return digest.hexdigest()


def _walk(
    directory: Path, prefix: str, skip: frozenset[str], marks: tuple[str, ...]
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as listing:
        entries = list(listing)
    if prefix and any(entry.name in marks for entry in entries):
        return
    for entry in entries:
        relative = prefix + entry.name
        if entry.name in PRUNED or relative in skip:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), relative + "/", skip, marks)
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
    """A published artifact."""

    path: str
    sha256: str


class State(msgspec.Struct, frozen=True):
    """The inputs of the last build, with a snapshot of each directory, and the published artifacts.
    ``digest`` is empty unless that build was published.
    """

    settings: str = ""
    inputs: dict[str, Snapshot] = msgspec.field(default_factory=dict)
    digest: str = ""
    artifacts: tuple[Built, ...] = ()


def read_record(path: Path, kind: type[T]) -> T:
    """Return the record in a file, or an empty one if the file is missing or invalid. ``kind`` is
    the type of the record."""
    try:
        return read_json(path, kind)
    except DocumentError:
        return kind()


def write_state(path: Path, state: State) -> None:
    write_whole(path, msgspec.json.encode(state))


def has_artifacts(directory: Path, state: State) -> bool:
    """Return whether artifacts were published and all of them still have the same content."""
    return bool(state.artifacts) and all(
        (directory / row.path).is_file() and hash_file(directory / row.path) == row.sha256
        for row in state.artifacts
    )


class CopyRecord(msgspec.Struct, frozen=True):
    """The copy of the sources after a build. ``files`` are all its files, and ``generated`` are the
    paths of the files that the build wrote."""

    files: Snapshot = msgspec.field(default_factory=dict)
    generated: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Copy:
    """The current state of the copy of the sources.

    ``files`` are all files in it, and ``generated`` are those that a build wrote. ``edited`` are
    paths that have been changed, added or removed since the last build. ``sure`` is false if the
    files that the build wrote are unknown or have changed. In that case, only a build from scratch
    is certain to use nothing but the sources.
    """

    files: Snapshot
    generated: frozenset[str]
    edited: tuple[str, ...]
    sure: bool


def inspect_copy(overlay: Path, sources: Snapshot, record: Path) -> Copy:
    """Find out how ``overlay``, the copy of the sources, was changed after the last build.

    ``sources`` are the sources of that build, and ``record`` is the file that it wrote. Content is
    compared, not times. Raises UnfitError if ``overlay`` cannot be read.
    """
    known = read_record(record, CopyRecord)
    if not sources or not known.files or not overlay.is_dir():
        return Copy({}, frozenset(), (), sure=False)
    files = take_snapshot(overlay, known.files, marks=())
    left = {path: known.files[path] for path in known.generated}
    changed = [path for path in sources.keys() | left if _differs(files, {**left, **sources}, path)]
    added = files.keys() - sources.keys() - known.generated
    edited = tuple(sorted({*changed, *added}))
    return Copy(files, known.generated, edited, sure=known.generated.isdisjoint(changed))


def _differs(files: Snapshot, wanted: Snapshot, path: str) -> bool:
    found, other = files.get(path, NO_FILE), wanted.get(path, NO_FILE)
    return (found.sha256, found.mode) != (other.sha256, other.mode)


def sync_overlay(source: Path, overlay: Path, wanted: Snapshot, copy: Copy) -> None:
    """Copy the files ``wanted`` from ``source`` to ``overlay``, whose current state is ``copy``.

    A file with the right content keeps its modification time, so that ninja rebuilds only what
    changed. Files written by a build are kept; all others are removed. Raises StoreError if the
    disk is full.
    """
    with explain_errors(overlay):
        overlay.mkdir(parents=True, exist_ok=True)
        for path in copy.files.keys() - wanted.keys() - copy.generated:
            (overlay / path).unlink(missing_ok=True)
        for path in wanted:
            if _differs(copy.files, wanted, path):
                _copy(source / path, overlay / path)


def record_copy(overlay: Path, wanted: Snapshot, copy: Copy, record: Path) -> None:
    """Record the files in ``overlay`` after a build, whether it succeeded or not."""
    files = take_snapshot(overlay, copy.files, marks=())
    written = CopyRecord(files, frozenset(files.keys() - wanted.keys()))
    write_whole(record, msgspec.json.encode(written))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    shutil.copy(
        source, target, follow_symlinks=False
    )  # its time is now, so it is newer than old objects
