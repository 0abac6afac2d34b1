"""tar, plain or inside xz or gzip: one pass, members judged as they come."""

from __future__ import annotations

import gzip
import lzma
import posixpath
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from provisioning.archives.layout import (
    FileWriter,
    Layout,
    Limits,
    Member,
    check_members,
    check_name,
    make_directories,
    make_parents,
    place_members,
    unsafe,
)
from provisioning.archives.tar_members import ByteStream, TarReader, XzStream
from provisioning.store.tree import TreeEntry


def is_tarball(filename: str) -> bool:
    return filename.endswith((".tar", ".tar.xz", ".txz", ".tar.gz", ".tgz"))


def extract_tar(
    path: Path, root: Path, layout: Layout, limits: Limits, *, whole: bool = True
) -> tuple[list[TreeEntry], dict[str, str]]:
    """Write the wanted regular files below ``root`` (fresh): their tree entries with those of
    empty directories, and the symbolic links (path -> target), which are not made.

    Members are judged before they are written and all together at the end. Unless ``whole``, the
    reading ends when the layout names single files and all are there: for an archive whose hash
    was compared. Raises IntegrityError, OSError.
    """
    work = _Extraction(path.name, root, layout, limits)
    try:
        with _open(path) as stream:
            reader = TarReader(stream, path.name)
            for member in reader.members():
                work.take(reader, member)
                if not whole and work.literal and work.literal <= work.taken:
                    break  # the layout names single files, and all are there
        missing = {end: path for path, end in work.aliases.items() if end not in work.places}
        if missing:
            with _open(path) as stream:
                work.write_targets(TarReader(stream, path.name), missing)
    except (lzma.LZMAError, zlib.error, EOFError) as error:
        raise unsafe(path.name, f"it cannot be read: {error}") from error
    except OSError as error:
        if error.errno is None:  # gzip's own
            raise unsafe(path.name, f"it cannot be read: {error}") from error
        raise
    return work.finish()


@contextmanager
def _open(path: Path) -> Iterator[ByteStream]:
    if is_xz(path.name):
        with path.open("rb") as file:
            yield XzStream(file)
    else:
        is_gzip = path.name.endswith((".gz", ".tgz"))
        with _open_gzip(path) if is_gzip else path.open("rb") as stream:
            yield stream


def is_xz(filename: str) -> bool:
    return filename.endswith((".xz", ".txz"))


def _open_gzip(path: Path) -> gzip.GzipFile:
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile(path)
    opened: gzip.GzipFile = igzip.IGzipFile(path)
    return opened


class _Extraction:
    def __init__(self, name: str, root: Path, layout: Layout, limits: Limits) -> None:
        self.literal = layout.literal_paths()
        self.name, self.root, self.layout, self.limits = name, root, layout, limits
        self.members: list[Member] = []
        self.entries: dict[str, TreeEntry] = {}
        self.links: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.taken: set[str] = set()
        self.made: set[str] = set()
        self.total = 0

    def take(self, reader: TarReader, member: Member) -> None:
        """Judge one member, and write it when it is a wanted file."""
        self.members.append(member)
        self.total += member.size
        if self.limits.unpacked_bytes and self.total > self.limits.unpacked_bytes:
            raise unsafe(self.name, f"it unpacks to more than {self.limits.unpacked_bytes} bytes")
        path = self.layout.place(member.name) if member.kind != "dir" else ""
        if not path:
            return
        check_name(self.name, member)
        if path in self.taken:
            raise unsafe(self.name, f"two members go to {path!r}")
        self.taken.add(path)
        self.places[member.name] = path
        if member.kind == "symlink":
            self.links[path] = member.link
        elif member.kind == "hardlink":
            self.aliases[path] = member.link
        else:
            self.entries[path] = self._write(reader, path, member)

    def _write(self, reader: TarReader, path: str, member: Member) -> TreeEntry:
        try:
            if (parent := posixpath.dirname(path)) not in self.made:
                make_parents(self.root, [path])
                self.made.add(parent)
            writer = FileWriter(self.root, path, self.name, member.size)
        except (FileExistsError, NotADirectoryError) as error:
            raise unsafe(self.name, f"member {member.name!r} clashes with another") from error
        with closing(writer):
            for data in reader.data():
                writer.write(data)
            return writer.finish(member.stored_mode)

    def write_targets(self, reader: TarReader, missing: Mapping[str, str]) -> None:
        """Write what hard links name and the layout does not take, in a second pass, where the
        links belong. ``missing`` has one path for each."""
        for member in reader.members():
            if member.kind == "file" and (path := missing.get(member.name)):
                self.entries[path] = self._write(reader, path, member)
                self.places[member.name] = path
                del self.aliases[path]

    def finish(self) -> tuple[list[TreeEntry], dict[str, str]]:
        """Judge all members together, then make the hard links and the empty directories."""
        check_members(self.name, self.members, self.limits)
        make_parents(self.root, self.aliases)
        for path, target in sorted(self.aliases.items()):
            entry = self.entries[self.places[target]]
            (self.root / path).hardlink_to(self.root / entry.path)
            self.entries[path] = TreeEntry(path, entry.size, entry.mode, entry.sha256)
        placed = place_members(self.members, self.layout)
        empty = [path for path, member in placed if member.kind == "dir"]
        return [*self.entries.values(), *make_directories(self.root, empty)], self.links
