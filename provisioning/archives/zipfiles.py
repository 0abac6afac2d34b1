"""Read a ZIP's central directory, and inflate members in parallel with ISA-L while checking and
hashing their bytes.

The format follows PKWARE's APPNOTE.TXT 6.3; offsets are from the start of the file.

Python's zipfile is not used, because it accepts archives that tests/unit/provisioning/archives
shows to be refused here: split over several files, with another number of members than declared,
with a comment that is cut short, or without the ZIP64 record that they announce. It also reads a
directory of any size into memory, guesses the encoding of names, and refuses a comment that looks
like the end of an archive.
"""

from __future__ import annotations

import os
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from provisioning.archives.layout import (
    MAX_LINK_BYTES,
    MAX_MEMBERS,
    Member,
    make_directories,
    make_parents,
    unsafe,
    write_file,
)
from provisioning.console.process import run_tasks
from provisioning.documents import open_regular
from provisioning.errors import IntegrityError
from provisioning.store.tree import TreeEntry

END, END64, LOCATOR64, CENTRAL, LOCAL = (
    b"PK\5\6",
    b"PK\6\6",
    b"PK\6\7",
    b"PK\1\2",
    b"PK\3\4",
)
END_BYTES, END64_BYTES, LOCATOR_BYTES, CENTRAL_BYTES, LOCAL_BYTES = 22, 56, 20, 46, 30
# The longest end of a ZIP: its comment may have 65,535 bytes. One read, or one range request, finds
# the directory.
TAIL_BYTES = END_BYTES + 0xFFFF + LOCATOR_BYTES + END64_BYTES
STORED, DEFLATED = 0, 8
MAX_DIRECTORY_BYTES = 32 << 20
# Bit 0 of the general purpose flags (APPNOTE.TXT 4.4.4).
ENCRYPTED = 0x1


class ByteSource(Protocol):
    """A source of an archive's bytes: a local file, or ranges of a remote file."""

    name: str
    size: int

    def read_at(self, offset: int, count: int) -> bytes:
        """Return at most ``count`` bytes at ``offset``, fewer at the end of the file."""
        ...


class FileSource:
    """A local archive, read at any offset from any thread."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.file = open_regular(path)
        self.fd = self.file.fileno()
        self.size = os.fstat(self.fd).st_size

    def read_at(self, offset: int, count: int) -> bytes:
        """Return at most ``count`` bytes at ``offset``, fewer at the end of the file."""
        return os.pread(self.fd, count, offset)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def read_directory(source: ByteSource) -> list[Member]:
    """Return the members of a ZIP file in the order of its central directory.

    Raises IntegrityError if the directory is malformed or too large, if the archive is split over
    several files, or if a member overlaps another, is encrypted, or uses a compression method other
    than stored and deflated.
    """
    tail_offset = max(0, source.size - TAIL_BYTES)
    tail = source.read_at(tail_offset, source.size - tail_offset)
    try:
        offset, size, count = _find_directory(source, tail)
        if size > source.size or offset + size > source.size:
            raise unsafe(source.name, "its central directory is outside the file")
        # Before the directory is read into memory.
        if count > MAX_MEMBERS or size > MAX_DIRECTORY_BYTES:
            raise unsafe(source.name, f"its directory is too large: {count} members, {size} bytes")
        inside = offset - tail_offset
        # The directory is usually in the tail already, which saves a request to a remote archive.
        raw = tail[inside : inside + size] if inside >= 0 else source.read_at(offset, size)
        members = _parse_directory(source.name, raw, count)
    except (struct.error, IndexError) as error:
        raise unsafe(source.name, f"its central directory is cut short: {error}") from error
    _check_extents(source, members, offset)
    return members


def _find_directory(source: ByteSource, tail: bytes) -> tuple[int, int, int]:
    """Return the offset, the size and the number of entries of the central directory."""
    at = tail.rfind(END, 0, len(tail) - END_BYTES + len(END))
    while at >= 0:
        # The comment at the end may contain the signature, too: it must reach the end of the file.
        comment = struct.unpack_from("<H", tail, at + 20)[0]
        if at + END_BYTES + comment == len(tail):
            break
        at = tail.rfind(END, 0, at)
    if at < 0:
        is_named_zip = source.name.lower().endswith((".zip", ".aar", ".whl", ".apk"))
        hint = "" if is_named_zip else "; tarballs can be .tar, .tar.gz, .tgz, .tar.xz or .txz"
        raise unsafe(source.name, f"it is not a ZIP file, or its end is missing{hint}")
    disk, directory_disk, count_on_disk, count, size, offset = struct.unpack_from(
        "<HHHHII", tail, at + 4
    )
    # These values mean that the number is in the ZIP64 record (APPNOTE.TXT 4.4.1.4).
    is_full = offset == 0xFFFFFFFF or size == 0xFFFFFFFF or count == 0xFFFF
    locator = at - LOCATOR_BYTES
    if is_full and locator >= 0 and tail.startswith(LOCATOR64, locator):
        place = struct.unpack_from("<Q", tail, locator + 8)[0]
        raw = source.read_at(place, END64_BYTES) if place < source.size else b""
        if not raw.startswith(END64):
            raise unsafe(source.name, "its ZIP64 end record is missing")
        disk, directory_disk, count_on_disk, count, size, offset = struct.unpack_from(
            "<IIQQQQ", raw, 16
        )
    if disk or directory_disk or count_on_disk != count:
        raise unsafe(source.name, "it is split over several files")
    return offset, size, count


def _parse_directory(archive: str, raw: bytes, count: int) -> list[Member]:
    members = []
    at = 0
    for _ in range(count):
        if not raw.startswith(CENTRAL, at):
            raise unsafe(archive, "its central directory has fewer members than it declares")
        member, at = _parse_entry(archive, raw, at)
        members.append(member)
    if at != len(raw):
        raise unsafe(archive, "its central directory has data after its last member")
    return members


def _parse_entry(archive: str, raw: bytes, at: int) -> tuple[Member, int]:
    made_by, _, flags, method, _, _, crc, packed, size, name_n, extra_n, comment_n = (
        struct.unpack_from("<HHHHHHIIIHHH", raw, at + 4)
    )
    attributes, offset = struct.unpack_from("<II", raw, at + 38)
    start = at + CENTRAL_BYTES
    end = start + name_n + extra_n + comment_n
    if end > len(raw):
        raise unsafe(archive, "its central directory is cut short")
    try:
        # As UTF-8, whether or not the flag for it is set; a name in another encoding is refused
        # rather than guessed.
        name = raw[start : start + name_n].decode("utf-8")
    except UnicodeDecodeError as error:
        shown = raw[start : start + name_n][:200]
        raise unsafe(archive, f"member {shown!r} has a name that is not UTF-8") from error
    extra = raw[start + name_n : start + name_n + extra_n]
    size, packed, offset = _apply_zip64(extra, size, packed, offset)
    if flags & ENCRYPTED:
        raise unsafe(archive, "is encrypted", member=name)
    # Only Unix (3) and macOS (19) have a mode in the upper half of the attributes.
    mode = attributes >> 16 if made_by >> 8 in {3, 19} else 0
    kind = _kind(name, mode)
    if kind == "file" and method not in {STORED, DEFLATED}:
        raise unsafe(archive, f"has compression method {method}", member=name)
    if kind == "file" and (size != packed if method == STORED else size and not packed):
        raise unsafe(archive, f"is {packed} bytes long, too few for {size} bytes", member=name)
    member = Member(name, size, stat.S_IMODE(mode), kind, "", offset, packed, crc, method)
    return member, end


def _kind(name: str, mode: int) -> str:
    if name.endswith("/"):
        return "dir"
    kinds = {0: "file", stat.S_IFREG: "file", stat.S_IFLNK: "symlink", stat.S_IFDIR: "dir"}
    return kinds.get(stat.S_IFMT(mode), "device file")


def _apply_zip64(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int, int]:
    """Return ``size``, ``packed`` and ``offset``. A value of 0xFFFFFFFF is replaced with the one in
    the ZIP64 extra field, if there is one.
    """
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, at)
        if tag == 1:
            # The field contains only the values that do not fit into 32 bits, in this order
            # (APPNOTE.TXT 4.5.3).
            values = [size, packed, offset]
            for index, value in enumerate(values):
                if value == 0xFFFFFFFF:
                    values[index] = struct.unpack_from("<Q", extra, at + 4)[0]
                    at += 8
            size, packed, offset = values
            break
        at += 4 + length
    return size, packed, offset


def _check_extents(source: ByteSource, members: Sequence[Member], directory: int) -> None:
    """Refuse members that overlap in the file, as in a zip bomb, or extend into the central
    directory.
    """
    end = 0
    for member in sorted(members, key=lambda member: member.offset):
        if member.offset < end:
            raise _refuse(source, member, "overlaps another")
        end = member.offset + LOCAL_BYTES + len(member.name.encode()) + member.compressed
        if end > directory:
            raise _refuse(source, member, "extends into the central directory")


CHUNK_BYTES = 256 << 10
# With this size, the largest member first and no needless truncation (PartFile.restart), a cold
# fetch of 433 MB took 1.88 s instead of 2.19 s on two cores.
OUT_BYTES = 512 << 10  # whole pages, so that each write fills the pages that it touches
OnBytes = Callable[[int], None]


def extract_members(
    source: ByteSource,
    root: Path,
    placed: Sequence[tuple[str, Member]],
    on_bytes: OnBytes = lambda _: None,
) -> tuple[list[TreeEntry], dict[str, str]]:
    """Write each member at its path below the fresh directory ``root``, using all cores.

    Returns the tree entries of files and empty directories, and the symbolic links (path ->
    target), which the caller has to create. The size and the CRC-32 of each file are checked, and
    its SHA-256 is computed, while it is written. After each write, ``on_bytes`` is called with the
    number of bytes written. Raises IntegrityError and OSError.
    """
    path, count = Counter(path for path, _ in placed).most_common(1)[0] if placed else ("", 0)
    if count > 1:
        raise unsafe(source.name, f"the manifest's layout puts two members at {path!r}")
    make_parents(root, (path for path, _ in placed))
    files = [pair for pair in placed if pair[1].kind == "file"]
    # The largest first, so that no thread is still busy with a large file when all others are done.
    files.sort(key=lambda pair: -pair[1].compressed)
    stop = Event()

    def pass_bytes(count: int) -> None:
        if stop.is_set():
            raise InterruptedError
        on_bytes(count)

    waiting, entries = iter(files), dict[str, TreeEntry]()  # a task per file would take 2 KB

    def work() -> None:
        for path, member in waiting:
            if stop.is_set():
                return
            entries[path] = _extract(source, root, path, member, pass_bytes)

    # At least two, so that one can inflate while the other waits for the disk.
    threads = max(2, os.cpu_count() or 1)
    run_tasks([work] * threads, threads, abort=stop.set)
    empty = make_directories(root, [path for path, member in placed if member.kind == "dir"])
    links = {path: read_link(source, member) for path, member in placed if member.kind == "symlink"}
    return [*(entries[path] for path, _ in files), *empty], links


def read_link(source: ByteSource, member: Member) -> str:
    """Return the target of the symbolic link ``member``. Raises IntegrityError if the target is
    damaged, not UTF-8, or longer than MAX_LINK_BYTES.
    """
    if member.size > MAX_LINK_BYTES:
        why = (
            f"the target of link {member.name!r} is {member.size} bytes long; the limit is "
            f"{MAX_LINK_BYTES}"
        )
        raise unsafe(source.name, why)
    try:
        return b"".join(inflate_member(source, member)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise unsafe(source.name, f"the target of link {member.name!r} is not UTF-8") from error


def _extract(
    source: ByteSource, root: Path, path: str, member: Member, on_bytes: OnBytes
) -> TreeEntry:
    """Write one regular file. Raises IntegrityError or OSError.

    A ZIP that was not made on Unix does not contain file modes, so its ELF files and scripts are
    made executable.
    """
    data = inflate_member(source, member)
    first = next(data, b"")

    def take() -> Iterator[bytes]:
        for piece in chain([first], data):
            yield piece
            on_bytes(len(piece))

    # Without this, the compilers of an SDK that was packed on Windows could not be run.
    is_program = member.mode == 0 and first.startswith((b"\x7fELF", b"#!"))
    mode = 0o555 if is_program else member.stored_mode
    return write_file(root, path, source.name, member.size, take(), mode=mode)


def inflate_member(source: ByteSource, member: Member) -> Iterator[bytes]:
    """Yield the member's bytes piece by piece, and check its size and CRC-32. Raises
    IntegrityError.
    """
    from isal import isal_zlib

    start = find_data_offset(source, member)
    crc, total = 0, 0
    pieces = _chunks if member.method == STORED else _inflate
    for data in pieces(source, member, start):
        crc = isal_zlib.crc32(data, crc)
        total += len(data)
        if total > member.size:
            raise _refuse(source, member, "is longer than its declared size")
        yield data
    if total != member.size:
        raise _refuse(source, member, "is shorter than its declared size")
    if crc != member.crc:
        raise _refuse(source, member, f"has CRC-32 {crc:08x}, not {member.crc:08x}")


def _refuse(source: ByteSource, member: Member, why: str) -> IntegrityError:
    return unsafe(source.name, why, member=member.name)


def find_data_offset(source: ByteSource, member: Member) -> int:
    """Return the offset of a member's compressed bytes. Its local header is read, because the extra
    fields there can be longer than in the central directory. Raises IntegrityError.
    """
    header = source.read_at(member.offset, LOCAL_BYTES)
    if len(header) < LOCAL_BYTES or not header.startswith(LOCAL):
        raise _refuse(source, member, "has no local header")
    name_n, extra_n = struct.unpack_from("<HH", header, 26)
    # Tools differ in which of the two names they use, so an archive in which they differ would be
    # another one for each tool.
    name = source.read_at(member.offset + LOCAL_BYTES, name_n)
    if name != member.name.encode():
        raise _refuse(source, member, "has a different name in its local header")
    return int(member.offset + LOCAL_BYTES + name_n + extra_n)


def _chunks(source: ByteSource, member: Member, start: int) -> Iterator[bytes]:
    end = start + member.compressed
    while start < end:
        data = source.read_at(start, min(CHUNK_BYTES, end - start))
        if not data:
            raise _refuse(source, member, "is cut short")
        start += len(data)
        yield data


def _inflate(source: ByteSource, member: Member, start: int) -> Iterator[bytes]:
    from isal import igzip_lib  # raw DEFLATE

    errors: Any = igzip_lib.error
    # 430 MB of QNN libraries take 1.2 s on two threads.
    inflater = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE)
    chunks = _chunks(source, member, start)
    try:
        while not inflater.eof:
            # ISA-L returns at most OUT_BYTES for a call, and keeps the rest of its input.
            data = next(chunks, None) if inflater.needs_input else b""
            if data is None:
                raise _refuse(source, member, "is cut short")
            if out := inflater.decompress(data, OUT_BYTES):
                yield out
    except errors as error:
        raise _refuse(source, member, f"cannot be inflated: {error}") from error
