"""ZIP members inflated in parallel with ISA-L, checked and hashed as their bytes pass."""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

from provisioning.archives.layout import FileWriter, Member, make_directories, make_parents, unsafe
from provisioning.archives.zip_directory import LOCAL, LOCAL_BYTES, STORED, ByteSource
from provisioning.store.tree import TreeEntry

CHUNK_BYTES = 256 << 10
OUT_BYTES = 512 << 10  # whole pages, so that each write fills what it touches
OnBytes = Callable[[int], None]


def extract_members(
    source: ByteSource,
    root: Path,
    placed: Sequence[tuple[str, Member]],
    on_bytes: OnBytes = lambda _: None,
) -> tuple[list[TreeEntry], dict[str, str]]:
    """Write these regular files, each at its path below ``root`` (fresh), on all cores.

    Returns their tree entries, with those of empty directories, and the symbolic links
    (path -> target), which are not made.
    CRC-32 and declared sizes are checked, SHA-256 is computed as the bytes pass.
    ``on_bytes`` is told of every count of unpacked bytes. Raises IntegrityError, OSError.
    """
    check_placed(source.name, [path for path, _ in placed])
    make_parents(root, (path for path, _ in placed))
    files = [pair for pair in placed if pair[1].kind == "file"]
    files.sort(key=lambda pair: -pair[1].compressed)
    entries = _extract_parallel(source, root, files, on_bytes)
    empty, links = finish_members(source, root, placed)
    return [*entries, *empty], links


def finish_members(
    source: ByteSource, root: Path, placed: Sequence[tuple[str, Member]]
) -> tuple[list[TreeEntry], dict[str, str]]:
    """What extract_members gives beside regular files."""
    empty = [path for path, member in placed if member.kind == "dir"]
    return make_directories(root, empty), read_links(source, placed)


def read_links(source: ByteSource, placed: Sequence[tuple[str, Member]]) -> dict[str, str]:
    """The symbolic links among these members: path -> target. Raises IntegrityError."""
    return {path: read_link(source, member) for path, member in placed if member.kind == "symlink"}


def check_placed(archive: str, paths: Sequence[str]) -> None:
    """Two members that a layout sends to one path are a mistake of the manifest."""
    if len(set(paths)) != len(paths):
        twice = Counter(paths).most_common(1)[0][0]
        raise unsafe(archive, f"the manifest's layout sends two members to {twice!r}")


def read_link(source: ByteSource, member: Member) -> str:
    """The target of a symbolic link. Raises IntegrityError."""
    chunks: list[bytes] = []
    if member.size > 4096:
        raise unsafe(source.name, f"link {member.name!r} has a target of {member.size} bytes")
    inflate_member(source, member, chunks.append)
    try:
        return b"".join(chunks).decode("utf-8")
    except UnicodeDecodeError as error:
        raise unsafe(source.name, f"link {member.name!r} is not UTF-8") from error


def _extract_parallel(
    source: ByteSource,
    root: Path,
    files: Sequence[tuple[str, Member]],
    on_bytes: OnBytes,
) -> list[TreeEntry]:
    stop = Event()

    def pass_bytes(count: int) -> None:
        if stop.is_set():
            raise InterruptedError
        on_bytes(count)

    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        futures = [
            pool.submit(extract_member, source, root, path, member, pass_bytes)
            for path, member in files
        ]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = next((future for future in done if future.exception()), None)
            if failed:
                failed.result()
        finally:
            stop.set()
            for future in futures:
                future.cancel()
    return [future.result() for future in futures]


def extract_member(
    source: ByteSource,
    root: Path,
    path: str,
    member: Member,
    on_bytes: OnBytes = lambda _: None,
) -> TreeEntry:
    """Write one regular file. Raises IntegrityError, OSError.

    A ZIP made elsewhere than on Unix has no modes: ELF files and scripts can be run then.
    """
    with closing(FileWriter(root, path, source.name, member.size)) as writer:

        def take(data: bytes) -> None:
            writer.write(data)
            on_bytes(len(data))

        inflate_member(source, member, take)
        is_program = member.mode == 0 and writer.start.startswith((b"\x7fELF", b"#!"))
        return writer.finish(0o555 if is_program else member.stored_mode)


def inflate_member(source: ByteSource, member: Member, take: Callable[[bytes], None]) -> None:
    """Give ``take`` the member's bytes piece by piece; check its size and CRC-32."""
    start = _data_offset(source, member)
    crc32 = load_crc32()
    crc, total = 0, 0
    pieces = _chunks if member.method == STORED else _inflate
    for data in pieces(source, member, start):
        crc = crc32(data, crc)
        total += len(data)
        if total > member.size:
            raise unsafe(source.name, f"member {member.name!r} is longer than declared")
        take(data)
    if total != member.size:
        raise unsafe(source.name, f"member {member.name!r} is shorter than declared")
    if crc != member.crc:
        raise unsafe(
            source.name,
            f"member {member.name!r} has CRC-32 {crc:08x}, its directory says {member.crc:08x}",
        )


def load_crc32() -> Callable[[bytes, int], int]:
    """ISA-L's CRC-32 where there is a build of it, else the interpreter's own."""
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        return zlib.crc32
    return crc32


def _data_offset(source: ByteSource, member: Member) -> int:
    header = source.read_at(member.offset, LOCAL_BYTES)
    if len(header) < LOCAL_BYTES or not header.startswith(LOCAL):
        raise unsafe(source.name, f"member {member.name!r} has no local header")
    name_n, extra_n = struct.unpack_from("<HH", header, 26)
    name = source.read_at(member.offset + LOCAL_BYTES, name_n)
    if name != member.name.encode():
        raise unsafe(source.name, f"member {member.name!r} has another name in its local header")
    return int(member.offset + LOCAL_BYTES + name_n + extra_n)


def _chunks(source: ByteSource, member: Member, start: int) -> Iterator[bytes]:
    end = start + member.compressed
    while start < end:
        data = source.read_at(start, min(CHUNK_BYTES, end - start))
        if not data:
            raise unsafe(source.name, f"member {member.name!r} is cut short")
        start += len(data)
        yield data


def _inflate(source: ByteSource, member: Member, start: int) -> Iterator[bytes]:
    inflater, errors = open_inflater()
    chunks = _chunks(source, member, start)
    try:
        while not inflater.eof:
            data = next(chunks, None) if inflater.needs_input else b""
            if data is None:
                raise unsafe(source.name, f"member {member.name!r} is cut short")
            if out := inflater.decompress(data, OUT_BYTES):
                yield out
    except errors as error:
        raise unsafe(source.name, f"member {member.name!r} does not inflate: {error}") from error


def open_inflater() -> tuple[Any, Any]:
    """A decompressor of raw DEFLATE, as bz2 and lzma have them, and what it raises."""
    try:
        from isal import igzip_lib
    except ImportError:
        return _Inflater(), zlib.error
    return igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE), igzip_lib.error


class _Inflater:
    """The interpreter's zlib with the interface of ISA-L's IgzipDecompressor."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj(-15)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self.inner.eof

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self.inner.decompress(self.inner.unconsumed_tail + data, max_length)
        self.needs_input = not self.inner.unconsumed_tail and len(out) < max_length
        return out
