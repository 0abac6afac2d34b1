"""tar, plain or inside xz or gzip: one pass, members judged as they come."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any, cast

from provisioning.archives.layout import (
    FileWriter,
    Layout,
    Limits,
    Member,
    check_members,
    make_parents,
    refuse,
)
from provisioning.store.tree import TreeEntry

COPY_BYTES = 256 << 10


def is_tarball(filename: str) -> bool:
    """Whether a file's name says that it is a tarball."""
    return filename.endswith((".tar", ".tar.xz", ".txz", ".tar.gz", ".tgz"))


def extract_tar(
    path: Path, root: Path, layout: Layout, limits: Limits, only: frozenset[str] | None = None
) -> tuple[list[TreeEntry], dict[str, str]]:
    """Write the wanted regular files below ``root`` (fresh): their tree entries, and the
    symbolic links (path -> target), which are not made.

    Members are judged before they are written and all together at the end. The reading ends
    early when the layout names single files and all are there. ``only`` limits the paths.
    Raises IntegrityError, OSError.
    """
    work = _Extraction(path.name, root, layout, limits, only)
    try:
        with _open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for info in archive:
                work.take(archive, info)
                if work.has_all():
                    break
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, UnicodeError) as error:
        raise refuse(path.name, f"it cannot be read: {error}") from error
    return work.finish()


def _open(path: Path) -> IO[bytes]:
    if path.name.endswith((".xz", ".txz")):
        return cast("IO[bytes]", lzma.open(path, "rb"))
    if path.name.endswith((".gz", ".tgz")):
        return _open_gzip(path)
    return path.open("rb")


def _open_gzip(path: Path) -> IO[bytes]:
    try:
        from isal import igzip
    except ImportError:
        import gzip

        return cast("IO[bytes]", gzip.open(path, "rb"))
    return cast("IO[bytes]", igzip.open(path, "rb"))


class _Extraction:
    def __init__(
        self,
        name: str,
        root: Path,
        layout: Layout,
        limits: Limits,
        only: frozenset[str] | None,
    ) -> None:
        self.only, self.literal = only, layout.literal_paths()
        self.name, self.root, self.layout, self.limits = name, root, layout, limits
        self.members: list[Member] = []
        self.entries: list[TreeEntry] = []
        self.links: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.total = 0

    def has_all(self) -> bool:
        """Whether a layout of single files has found every one of them."""
        return bool(self.literal) and self.literal <= set(self.places.values())

    def take(self, archive: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        """Judge one member, and write it when it is a wanted file."""
        member = _describe(info)
        if member is None:
            return
        self.members.append(member)
        self.total += member.size
        if self.limits.unpacked_bytes and self.total > self.limits.unpacked_bytes:
            raise refuse(self.name, f"it unpacks to more than {self.limits.unpacked_bytes} bytes")
        path = self.layout.place(member.name) if member.kind != "dir" else ""
        if not path or (self.only is not None and path not in self.only):
            return
        alone = Limits(self.limits.unpacked_bytes, self.limits.case_collisions)
        check_members(self.name, [_without_link(member)], alone)
        if path in self.places.values():
            raise refuse(self.name, f"two members go to {path!r}")
        self.places[member.name] = path
        if member.kind == "symlink":
            self.links[path] = member.link
        elif member.kind == "hardlink":
            self.aliases[path] = member.link
        else:
            self.entries.append(self._write(archive, info, path, member))

    def _write(
        self, archive: tarfile.TarFile, info: tarfile.TarInfo, path: str, member: Member
    ) -> TreeEntry:
        source = cast("IO[bytes]", archive.extractfile(info))
        try:
            make_parents(self.root, [path])
            writer = FileWriter(self.root, path, self.name, member.size)
        except (FileExistsError, NotADirectoryError) as error:
            raise refuse(self.name, f"member {member.name!r} clashes with another") from error
        try:
            while data := source.read(COPY_BYTES):
                writer.write(data)
            return writer.finish(member.stored_mode)
        finally:
            writer.close()

    def finish(self) -> tuple[list[TreeEntry], dict[str, str]]:
        """Judge all members together, then make the hard links."""
        check_members(self.name, self.members, self.limits)
        known = {entry.path: entry for entry in self.entries}
        for path, target in sorted(self.aliases.items()):
            entry = known.get(self.places.get(target, ""))
            if entry is None:
                raise refuse(self.name, f"hard link {path!r} to {target!r}, which is not taken")
            make_parents(self.root, [path])
            (self.root / path).hardlink_to(self.root / entry.path)
            self.entries.append(TreeEntry(path, entry.size, entry.mode, entry.sha256))
        return self.entries, self.links


def _without_link(member: Member) -> Member:
    """A member judged by its name alone; its link is judged when all are known."""
    return Member(member.name, member.size, kind="file" if member.link else member.kind)


def _describe(info: tarfile.TarInfo) -> Member | None:
    """A tar header as a Member; None for the root directory itself."""
    name = info.name.removeprefix("./")
    if info.isdir() and name in {"", "."}:
        return None
    kinds: list[tuple[Any, str]] = [
        (info.isdir(), "dir"),
        (info.issym(), "symlink"),
        (info.islnk(), "hardlink"),
        (info.issparse(), "sparse file"),
        (info.isreg(), "file"),
    ]
    kind = next((kind for is_kind, kind in kinds if is_kind), "device file")
    link = info.linkname.removeprefix("./") if kind == "hardlink" else info.linkname
    return Member(
        name + ("/" if kind == "dir" else ""),
        info.size if kind == "file" else 0,
        info.mode & 0o777,
        kind,
        link if kind in {"symlink", "hardlink"} else "",
    )
