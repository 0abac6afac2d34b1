"""Read tar archives, uncompressed or compressed with xz or gzip, in one pass. Each member is
checked when it is read, and any violation of the format is an error.

Formats: POSIX.1-1988 (ustar), POSIX.1-2001 (pax) and GNU's long names. Python's tarfile is not
used, because it treats a damaged header after the first member as the end of the archive, and reads
headers of any size into memory.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from provisioning.archives.layout import (
    MAX_RATIO,
    MIN_BOMB_BYTES,
    Census,
    Layout,
    Limits,
    Member,
    check_members,
    make_directories,
    make_parents,
    place_members,
    unsafe,
    write_file,
)
from provisioning.documents import UNDECODABLE, open_regular
from provisioning.store.tree import TreeEntry

BLOCK_BYTES = 512
COPY_BYTES = 256 << 10
XZ_MEMORY_BYTES = 160 << 20  # xz -9 needs 65 MiB
MAX_HEADER_BYTES = 1 << 20
# Base 256 can state numbers of 88 bits, which no file system can store.
MAX_NUMBER = 1 << 62
# A compressed file may contain zeros without end.
MAX_PADDING_BYTES = 64 << 20
NO_BLOCK = bytes(BLOCK_BYTES)
KINDS = {
    **dict.fromkeys((b"0", b"\0", b"7"), "file"),
    b"1": "hardlink",
    b"2": "symlink",
    b"5": "dir",
    b"S": "sparse file",
}
LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL = b"L", b"K", b"x", b"g"


class ByteStream(Protocol):
    """A stream that is read once, from start to end."""

    def read(self, count: int, /) -> bytes:
        """Return at most ``count`` bytes, ``b""`` at the end."""
        ...


@dataclass
class _Extra:
    """The values that extended headers set for the next member."""

    name: str = ""
    link: str = ""
    size: int = -1
    is_sparse: bool = False
    seen_bytes: int = 0


class TarReader:
    """Reads a tar stream in one pass. ``name`` is the archive's name in messages."""

    def __init__(self, stream: ByteStream, name: str) -> None:
        self.stream, self.name = stream, name
        self.left = 0
        self.padding = 0

    def members(self) -> Iterator[Member]:
        """Yield each member except the root directory, and read the stream to its end.

        Raises IntegrityError for anything that violates the format.
        """
        extra = _Extra()
        while (block := self._next_header()) is not None:
            kind = block[156:157]
            size = self._number(block[124:136])
            # Not a member: it describes the member whose header follows.
            if kind in {LONG_NAME, LONG_LINK, PAX, PAX_GLOBAL}:
                self._read_extra(kind, size, extra)
                continue
            member = self._describe(block, size, extra)
            extra = _Extra()
            self.left = member.size
            self.padding = -self.left % BLOCK_BYTES
            if member.name != "/":
                yield member
        if extra.seen_bytes:
            raise unsafe(self.name, "it ends after an extended header")
        self._drain()

    def data(self) -> Iterator[bytes]:
        """Yield the bytes of the member that ``members`` yielded last."""
        while self.left:
            data = self._read(min(self.left, COPY_BYTES))
            self.left -= len(data)
            yield data

    def _next_header(self) -> bytes | None:
        for _ in self.data():
            pass
        self._read(self.padding)
        self.padding = 0
        block = self._read(BLOCK_BYTES)
        # tarfile accepts a missing trailer; a download that was cut between two members looks like
        # that.
        if block == NO_BLOCK:
            if self._read(BLOCK_BYTES) != NO_BLOCK:
                raise unsafe(self.name, "its end is marked by one empty header instead of two")
            return None
        stated = self._number(block[148:156])
        blank = block[:148] + b" " * 8 + block[156:]
        # Some old programs added up signed bytes, which POSIX does not, so both sums are accepted.
        if stated not in {sum(blank), sum(byte - (byte & 128) * 2 for byte in blank)}:
            raise unsafe(self.name, "a header's checksum is wrong")
        return block

    def _read(self, count: int) -> bytes:
        # A decompressor may return fewer bytes than requested before the end.
        data = self.stream.read(count)
        while len(data) < count:
            block = self.stream.read(count - len(data))
            if not block:
                raise unsafe(self.name, "it is cut short")
            data += block
        return data

    def _drain(self) -> None:
        """Read the stream to its end, so that the checksum of compressed data is checked."""
        count = 0
        while data := self.stream.read(COPY_BYTES):
            count += len(data)
            # tar pads to its record size, 10 KiB by default and more with --blocking-factor.
            if count > MAX_PADDING_BYTES or data.strip(b"\0"):
                raise unsafe(self.name, "there is data after its end")

    def _number(self, raw: bytes) -> int:
        """Parse octal digits or GNU's base 256. Raises IntegrityError for anything else, such as a
        negative number.
        """
        text = raw.strip(b" \0")
        # GNU tar writes sizes of 8 GiB and more so, because eleven octal digits do not suffice.
        # 0xff would be a negative number.
        if raw[0] == 0x80:
            number = int.from_bytes(raw[1:], "big")
        elif re.fullmatch(rb"[0-7]*", text):
            number = int(text or b"0", 8)
        else:
            number = MAX_NUMBER
        if number >= MAX_NUMBER:
            raise unsafe(self.name, f"a header has {raw!r} instead of a number")
        return number

    def _read_extra(self, kind: bytes, size: int, extra: _Extra) -> None:
        # Plus one, so that empty headers without end count, too.
        extra.seen_bytes += size + 1
        if extra.seen_bytes > MAX_HEADER_BYTES:
            raise unsafe(self.name, f"it has a header of more than {MAX_HEADER_BYTES} bytes")
        raw = self._read(size)
        self._read(-size % BLOCK_BYTES)
        if kind == LONG_NAME:
            extra.name = _text(raw.rstrip(b"\0"))
        elif kind == LONG_LINK:
            extra.link = _text(raw.rstrip(b"\0"))
        else:
            self._read_pax(raw, extra, is_global=kind == PAX_GLOBAL)

    def _read_pax(self, raw: bytes, extra: _Extra, *, is_global: bool) -> None:
        at = 0
        while at < len(raw):
            digits, _, _ = raw[at : at + 12].partition(b" ")
            length = int(digits) if digits.isdigit() else 0
            record = raw[at + len(digits) + 1 : at + length]
            key, equals, value = record.removesuffix(b"\n").partition(b"=")
            at += length
            if not equals or not record.endswith(b"\n") or at > len(raw):
                raise unsafe(self.name, "a pax header is malformed")
            # It would give this value to every member that follows.
            if is_global and key in {b"path", b"linkpath", b"size"}:
                raise unsafe(self.name, f"a global pax header sets {key.decode()}")
            if key == b"path":
                extra.name = _text(value)
            elif key == b"linkpath":
                extra.link = _text(value)
            elif key == b"size":
                # Python takes quadratic time to parse a long number, and 18 digits suffice for any
                # size.
                extra.size = int(value) if value.isdigit() and len(value) < 19 else -2
            elif key.startswith(b"GNU.sparse."):
                extra.is_sparse = True
        if extra.size == -2:
            raise unsafe(self.name, "the size field of a pax header is not a number")

    def _describe(self, block: bytes, size: int, extra: _Extra) -> Member:
        name = extra.name or _field(block[:100])
        # GNU's older format has the magic "ustar " and other fields at this place.
        if not extra.name and block[257:263] == b"ustar\0" and block[345]:
            name = f"{_field(block[345:500])}/{name}"
        kind = KINDS.get(block[156:157], "device file")
        if extra.is_sparse:
            kind = "sparse file"
        # Before POSIX.1-1988, directories were files whose names end in a slash.
        if kind == "file" and name.endswith("/"):
            kind = "dir"
        name = name.removeprefix("./")
        if kind == "dir":
            name = "/" if name == "." else name.rstrip("/") + "/"
        link = extra.link or _field(block[157:257])
        if kind == "hardlink":
            link = link.removeprefix("./")
        return Member(
            name,
            (size if extra.size < 0 else extra.size) if kind == "file" else 0,
            self._number(block[100:108]) & 0o777,
            kind,
            link if kind in {"symlink", "hardlink"} else "",
        )


def _field(raw: bytes) -> str:
    return _text(raw.partition(b"\0")[0])


def _text(raw: bytes) -> str:
    # Not refused here, so that the message can show the member's name: check_name refuses it.
    return raw.decode("utf-8", "surrogateescape")


class XzStream:
    """Decompresses an xz file of one or more streams, with at most XZ_MEMORY_BYTES of memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.inner = self._begin()
        self.buffered = b""

    def _begin(self) -> lzma.LZMADecompressor:
        # The header chooses the size of the dictionary, up to 4 GiB.
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)

    def read(self, count: int, /) -> bytes:
        """Return at most ``count`` bytes, ``b""`` at the end. Raises EOFError if the file is cut
        short, and LZMAError if it is damaged or needs too much memory.
        """
        while count:
            if self.inner.eof:
                next_stream = self.inner.unused_data or self.file.read(COPY_BYTES)
                next_stream = next_stream.lstrip(b"\0")  # the padding between streams
                if not next_stream:
                    return b""
                self.inner, self.buffered = self._begin(), next_stream
            if self.inner.needs_input and not self.buffered:
                self.buffered = self.file.read(COPY_BYTES)
                if not self.buffered:
                    raise EOFError("the compressed data is cut short")
            data = self.inner.decompress(self.buffered, count)
            self.buffered = b""
            if data:
                return data
        return b""


def is_tarball(filename: str) -> bool:
    """Return whether a file is a tarball, according to its name."""
    return filename.endswith((".tar", ".tar.xz", ".txz", ".tar.gz", ".tgz"))


def extract_tar(
    path: Path, root: Path, layout: Layout, limits: Limits, *, read_all: bool = True
) -> tuple[list[TreeEntry], dict[str, str]]:
    """Write the wanted regular files and empty directories below the fresh directory ``root``.
    Return their tree entries, and the symbolic links (path -> target), which the caller has to
    create.

    Each member is checked before it is written, and all of them together at the end. If
    ``read_all`` is false and every rule of the layout takes a single file, reading stops once all
    of these files are written. Use this only for an archive with a verified hash. Raises
    IntegrityError or OSError.
    """
    name, limits = path.name, _bound(limits, path, path.name)
    literal = set() if read_all else layout.literal_paths()
    census, members = Census(name, limits), list[Member]()
    placed, entries = dict[str, Member](), dict[str, TreeEntry]()
    with explain_damage(name), _open(path, name) as stream:
        reader = TarReader(stream, name)
        for member in reader.members():
            census.add(member)
            members.append(member)
            target = layout.place(member.name) if member.kind != "dir" else ""
            if target in placed:
                raise unsafe(name, f"two members would be written to {target!r}")
            if target:
                placed[target] = member
            if target and member.kind == "file":
                entries[target] = _write(reader, root, target, member)
            if literal and literal <= placed.keys():
                break  # all files that the layout names are written
    files = {member.name: at for at, member in placed.items() if member.kind == "file"}
    aliases = {at: member.link for at, member in placed.items() if member.kind == "hardlink"}
    # A second pass, since the stream cannot go back: the target may precede the link, and was not
    # wanted then.
    if missing := {end: at for at, end in aliases.items() if end not in files}:
        entries |= _write_targets(path, root, missing)
        files |= missing
    check_members(name, members, limits)
    make_parents(root, aliases)
    for at, end in aliases.items():
        if at not in entries:
            entry = entries[files[end]]
            (root / at).hardlink_to(root / entry.path)
            entries[at] = TreeEntry(at, entry.size, entry.mode, entry.sha256)
    empty = [at for at, member in place_members(members, layout) if member.kind == "dir"]
    links = {at: member.link for at, member in placed.items() if member.kind == "symlink"}
    return [*entries.values(), *make_directories(root, empty)], links


def _write(reader: TarReader, root: Path, path: str, member: Member) -> TreeEntry:
    """Write the file that ``reader`` yielded last."""
    try:
        make_parents(root, [path])
        pieces, mode = reader.data(), member.stored_mode
        return write_file(root, path, reader.name, member.size, pieces, mode=mode)
    except (FileExistsError, NotADirectoryError) as error:
        raise unsafe(reader.name, "clashes with another", member=member.name) from error


def _write_targets(path: Path, root: Path, missing: Mapping[str, str]) -> dict[str, TreeEntry]:
    """Read the archive again, and write each file that is wanted only because a wanted hard link
    points to it. ``missing`` maps the file's name to the path of the link, and the file is written
    to this path.
    """
    with explain_damage(path.name), _open(path, path.name) as stream:
        reader = TarReader(stream, path.name)
        return {
            missing[member.name]: _write(reader, root, missing[member.name], member)
            for member in reader.members()
            if member.kind == "file" and member.name in missing
        }


def read_members(path: Path, name: str, limits: Limits) -> list[Member]:
    """Return all members of the tarball ``path``. The suffix of ``name`` states its compression;
    messages show ``name``. Raises IntegrityError and OSError.
    """
    with explain_damage(name), _open(path, name) as stream:
        members, census = [], Census(name, _bound(limits, path, name))
        for member in TarReader(stream, name).members():
            census.add(member)
            members.append(member)
        return members


def _bound(limits: Limits, path: Path, name: str) -> Limits:
    """Return ``limits`` with a limit for the unpacked size that the size of the tarball ``path``
    allows: a compressed tarball unpacks to at most MAX_RATIO times its size, another one to less
    than its size.
    """
    size_bytes = path.stat().st_size
    max_bytes = size_bytes if name.endswith(".tar") else MAX_RATIO * size_bytes + MIN_BOMB_BYTES
    return replace(limits, unpacked_bytes=min(limits.unpacked_bytes or max_bytes, max_bytes))


@contextmanager
def explain_damage(name: str) -> Iterator[None]:
    """Turn a decompressor's error in the block into an IntegrityError for the archive ``name``."""
    from isal import igzip_lib

    errors: Any = igzip_lib.error
    try:
        yield
    except (lzma.LZMAError, errors, *UNDECODABLE) as error:
        raise unsafe(name, f"it cannot be read: {error}") from error
    except OSError as error:
        if error.errno is None:  # raised by gzip itself
            raise unsafe(name, f"it cannot be read: {error}") from error
        raise


@contextmanager
def _open(path: Path, name: str) -> Iterator[ByteStream]:
    if name.endswith((".xz", ".txz")):
        with open_regular(path) as file:
            yield XzStream(file)
    else:
        from isal import igzip

        is_gzip = name.endswith((".gz", ".tgz"))
        with open_regular(path) as file:
            yield igzip.IGzipFile(fileobj=file) if is_gzip else file
