"""Record the content of a published directory, file by file, and compare a directory with the
record.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from provisioning.documents import decode_json
from provisioning.files import hash_file, leads_out, walk

SCHEMA_VERSION: Final = 1
FILE_TIME_S = 946684800  # every published file's mtime, so that a touched file is noticed
DIRECTORY_MODE = 0o755
LONGEST_BYTES = 3000  # Linux allows paths of 4095 bytes
GIT = ".git"
# Files that git may rewrite in a .git directory; the others control what git does.
GIT_OWN = frozenset(
    {
        *("objects", "refs", "logs", "index", "shallow", "packed-refs"),
        *("HEAD", "ORIG_HEAD", "FETCH_HEAD"),
    }
)


class TreeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file (size, mode, SHA-256), a symbolic link (``link`` is its target), or an empty
    directory, whose path ends in ``/``.

    A negative mode is not compared.
    """

    path: str
    size: int = 0
    mode: int = 0o644
    sha256: str = ""
    link: str = ""

    def __post_init__(self) -> None:
        if leads_out(self.path):
            raise ValueError(f"{self.path!r} is outside its tree")


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tree.json of a published directory. Entries are sorted by path."""

    artifact: str
    version: str
    source_sha256: str
    components: tuple[str, ...]
    files: tuple[TreeEntry, ...]
    schema_version: Literal[1] = SCHEMA_VERSION

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(entry.size for entry in self.files)


class Difference(msgspec.Struct, frozen=True):
    """One difference between a directory and its tree: ``kind`` describes the difference, and
    ``detail`` may contain values, such as the found and the expected size.
    """

    path: str
    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}{' (' + self.detail + ')' if self.detail else ''}"


def encode_record(value: Any) -> bytes:
    """Return a value as JSON. The same value always results in the same bytes."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def parse_tree(data: bytes) -> Tree:
    """Decode a tree.json. Raises ValueError if it is not valid."""
    return decode_json(data, Tree)


def compare_tree(
    root: Path,
    entries: Iterable[TreeEntry],
    *,
    quick: bool = False,
    owners: frozenset[int] = frozenset(),
) -> list[Difference]:
    """Return every difference between the directory ``root`` and ``entries``, sorted by path.

    Symbolic links are not followed. All files are hashed, in parallel, unless ``quick`` is true,
    which compares only size, mode and modification time. If ``owners`` is not empty, files of users
    who are not in it are differences, too.
    """
    expected = {entry.path: entry for entry in entries}
    states = scan_tree(root, checkout=f"{GIT}/config" in expected, closed=True)
    differences = [*_compare_shape(states, expected)]
    differences += [
        Difference(path, "belongs to another user", str(state.st_uid))
        for path, state in states.items()
        if owners and state.st_uid not in owners
    ]
    # The largest first, so that no thread is still busy with a large file when all others are done.
    largest_first = sorted(expected.values(), key=lambda entry: -entry.size)

    def compare(entry: TreeEntry) -> Difference | None:
        return _compare(root, entry, states.get(entry.path), quick)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        differences += filter(None, pool.map(compare, largest_first))
    return sorted(differences, key=lambda difference: difference.path)


def scan_tree(
    root: Path, *, checkout: bool = False, closed: bool = False
) -> dict[str, os.stat_result]:
    """Return the status of everything below ``root`` by relative path; a directory's path ends in
    ``/``.

    If ``checkout`` is true, only those files in .git that control what git does are included. If
    ``closed`` is true, directories that this user may not read count as empty. Raises OSError.
    """
    states: dict[str, os.stat_result] = {}
    pending = [""]
    while pending:
        at = pending.pop()
        skipping = suppress(PermissionError) if closed else nullcontext()
        with skipping, os.scandir(root / at) as children:
            for child in children:
                if (
                    checkout
                    and (at, child.name) == ("", GIT)
                    and child.is_dir(follow_symlinks=False)
                ):
                    states.update(_scan_git(root, child.name))
                    continue
                state = child.stat(follow_symlinks=False)
                path = at + child.name
                if stat.S_ISDIR(state.st_mode):
                    path += "/"
                    if len(os.fsencode(path)) <= LONGEST_BYTES:  # our paths are shorter
                        pending.append(path)
                states[path] = state
    return states


def list_files(root: Path) -> list[str]:
    """Return the relative paths of everything below ``root`` except directories."""
    return [path for path in scan_tree(root) if not path.endswith("/")]


def remove_others(root: Path, paths: Iterable[str]) -> None:
    """Remove everything below ``root``, a tree of this project, except ``paths`` and their parent
    directories. Raises OSError.
    """
    kept_paths = set(paths)
    kept_paths |= find_parents(kept_paths)
    # In reverse order, a directory comes after everything in it.
    for path in sorted(scan_tree(root).keys() - kept_paths, reverse=True):
        (root / path).rmdir() if path.endswith("/") else (root / path).unlink()


def _scan_git(root: Path, start: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path and status of each file in the .git directory ``start`` that git does not
    change itself. Git directories of submodules, which are below ``start``, are included.
    """
    for directory, names, files in walk(root / start):
        relative = directory.relative_to(root).as_posix()
        is_own = Path(directory, "HEAD").is_file()
        if is_own:
            names[:] = [name for name in names if name not in GIT_OWN]
            files = [name for name in files if name not in GIT_OWN]
            alternates = Path(directory, "objects", "info", "alternates")
            if os.path.lexists(alternates):
                yield f"{relative}/objects/info/alternates", alternates.lstat()
        links = [name for name in names if Path(directory, name).is_symlink()]
        for name in [*files, *links]:
            yield f"{relative}/{name}", Path(directory, name).lstat()


def find_parents(paths: Iterable[str]) -> set[str]:
    """Return every directory that contains one of ``paths``, each with a final ``/``."""
    parents: set[str] = set()
    for path in paths:
        add_parents(path, parents)
    return parents


def add_parents(path: str, parents: set[str]) -> None:
    """Add to ``parents`` every directory that contains ``path``, each with a final ``/``."""
    at = path.rstrip("/").rfind("/") + 1
    while at and (parent := path[:at]) not in parents:
        parents.add(parent)
        at = path.rfind("/", 0, at - 1) + 1


def _compare_shape(
    states: Mapping[str, os.stat_result], expected: Mapping[str, TreeEntry]
) -> Iterator[Difference]:
    """Yield a Difference for each file and empty directory that is not ``expected``, and for each
    parent directory of an expected entry with a mode other than DIRECTORY_MODE. ``states`` are the
    existing files and directories.
    """
    parents, nonempty = find_parents(expected), find_parents(states)
    for path, state in states.items():
        if path not in expected and path not in parents and path not in nonempty:
            yield Difference(path, "does not belong to the artifact")
        elif path in parents and (mode := stat.S_IMODE(state.st_mode)) != DIRECTORY_MODE:
            yield Difference(path, "wrong mode", f"{mode:o}, not {DIRECTORY_MODE:o}")


def _compare(
    root: Path, entry: TreeEntry, state: os.stat_result | None, quick: bool
) -> Difference | None:
    try:
        change = _find_change(root / entry.path, entry, state, quick) if state else ("is missing",)
    except FileNotFoundError:
        change = ("is missing",)
    except OSError as error:
        change = ("cannot be read", str(error))
    return Difference(entry.path, *change) if change else None


def _find_change(
    path: Path, entry: TreeEntry, state: os.stat_result, quick: bool
) -> tuple[str, ...]:
    """Return the kind and, if there is one, the detail of the first difference between a file and
    its entry. Raises OSError.
    """
    if entry.link:
        if not stat.S_ISLNK(state.st_mode):
            return ("is not a symbolic link",)
        target = str(path.readlink())
        return () if target == entry.link else ("wrong link", f"{target}, not {entry.link}")
    is_file = not entry.path.endswith("/")
    if is_file and not stat.S_ISREG(state.st_mode):
        return ("is not a regular file",)
    if is_file and state.st_size != entry.size:
        return "wrong size", f"{state.st_size}, not {entry.size} bytes"
    # Who writes to a file changes its time, unless it is set back on purpose; only hashes notice
    # that.
    if is_file and quick and state.st_mtime != FILE_TIME_S:
        return ("was touched",)
    if (mode := stat.S_IMODE(state.st_mode)) != entry.mode >= 0:
        return "wrong mode", f"{mode:o}, not {entry.mode:o}"
    if is_file and not quick and (sha256 := hash_file(path)) != entry.sha256:
        return "changed bytes", f"SHA-256 {sha256}, not {entry.sha256}"
    return ()
