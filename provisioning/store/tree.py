"""What a published directory holds, file by file, and how a directory differs from it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from provisioning.files import hash_file

SCHEMA_VERSION = 1
FILE_TIME_S = 946684800  # every published file's mtime, so that a touched one shows


class TreeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A file (size, mode, SHA-256) or a symbolic link (``link`` is its target).

    A negative mode is one that does not matter.
    """

    path: str
    size: int = 0
    mode: int = 0o644
    sha256: str = ""
    link: str = ""


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tree.json of a published directory. Entries are sorted by path."""

    artifact: str
    version: str
    source_sha256: str
    components: tuple[str, ...]
    files: tuple[TreeEntry, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def size_bytes(self) -> int:
        """The sum of the files' sizes."""
        return sum(entry.size for entry in self.files)


class Difference(msgspec.Struct, frozen=True):
    """One way in which a directory is not its tree: ``kind`` says how, ``detail`` in figures."""

    path: str
    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.kind}{' (' + self.detail + ')' if self.detail else ''}"


def encode_tree(tree: Tree) -> bytes:
    """The bytes of tree.json."""
    return msgspec.json.format(msgspec.json.encode(tree), indent=1) + b"\n"


def parse_tree(data: bytes) -> Tree:
    """Decode tree.json. Raises ValueError when it is not one."""
    try:
        return msgspec.json.decode(data, type=Tree)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def compare_tree(
    root: Path, entries: Iterable[TreeEntry], *, quick: bool = False
) -> list[Difference]:
    """Every difference between the directory ``root`` and ``entries``, sorted by path.

    All files are hashed, in parallel; ``quick`` looks at size, mode and
    modification time only.
    """
    wanted = {entry.path: entry for entry in entries}
    seen = set(walk_tree(root))
    found = [Difference(path, "is not of the artifact") for path in seen - wanted.keys()]
    ordered = sorted(wanted.values(), key=lambda entry: -entry.size)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found += filter(None, pool.map(lambda entry: _compare(root, entry, quick), ordered))
    return sorted(found, key=lambda difference: difference.path)


def walk_tree(root: Path) -> Iterator[str]:
    """The files and links below ``root``, by relative path; what is git's own is left out."""
    base = os.fspath(root)
    for directory, names, files in os.walk(base):
        names[:] = [name for name in names if name != ".git"]
        files = [name for name in files if name != ".git"]
        links = [name for name in names if Path(directory, name).is_symlink()]
        for name in [*files, *links]:
            yield os.path.relpath(Path(directory, name), base)


def _compare(root: Path, entry: TreeEntry, quick: bool) -> Difference | None:
    path = root / entry.path
    try:
        state = path.lstat()
        if entry.link:
            return _compare_link(path, entry, state)
        if not stat.S_ISREG(state.st_mode):
            return Difference(entry.path, "is not a regular file")
        return _compare_state(entry, state, quick) or _compare_bytes(path, entry, quick)
    except FileNotFoundError:
        return Difference(entry.path, "is missing")
    except OSError as error:
        return Difference(entry.path, "cannot be read", str(error))


def _compare_state(entry: TreeEntry, state: os.stat_result, quick: bool) -> Difference | None:
    mode = stat.S_IMODE(state.st_mode)
    if state.st_size != entry.size:
        return Difference(entry.path, "wrong size", f"{state.st_size}, not {entry.size} bytes")
    if mode != entry.mode >= 0:
        return Difference(entry.path, "wrong mode", f"{mode:o}, not {entry.mode:o}")
    if quick and state.st_mtime != FILE_TIME_S:
        return Difference(entry.path, "was touched")
    return None


def _compare_bytes(path: Path, entry: TreeEntry, quick: bool) -> Difference | None:
    if quick or (found := hash_file(path)) == entry.sha256:
        return None
    return Difference(entry.path, "changed bytes", f"SHA-256 {found}, not {entry.sha256}")


def _compare_link(path: Path, entry: TreeEntry, state: os.stat_result) -> Difference | None:
    if not stat.S_ISLNK(state.st_mode):
        return Difference(entry.path, "is not a symbolic link")
    if (target := str(path.readlink())) != entry.link:
        return Difference(entry.path, "wrong link", f"{target}, not {entry.link}")
    return None
