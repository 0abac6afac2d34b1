"""The members of a tar stream, read strictly: what the format does not allow is refused.

Formats: POSIX.1-1988 (ustar), POSIX.1-2001 (pax) and GNU's long names. The interpreter's tarfile
takes a damaged header after the first member for the end of the archive, and reads headers of
any size into memory.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Protocol

from provisioning.archives.layout import Member, unsafe

BLOCK_BYTES = 512
COPY_BYTES = 256 << 10
XZ_MEMORY_BYTES = 160 << 20  # xz -9 takes 65 MiB
MAX_HEADER_BYTES = 1 << 20
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
    """What is read from its beginning to its end."""

    def read(self, count: int, /) -> bytes: ...


@dataclass
class _Extra:
    """What the headers before a member's own say of it."""

    name: str = ""
    link: str = ""
    size: int = -1
    is_sparse: bool = False
    seen_bytes: int = field(default=0)


class TarReader:
    """One pass over a tar stream. ``name`` is the archive's, for messages."""

    def __init__(self, stream: ByteStream, name: str) -> None:
        self.stream, self.name = stream, name
        self.left = 0
        self.padding = 0

    def members(self) -> Iterator[Member]:
        """Each member but the root directory. The stream is read to its end.

        Raises IntegrityError for anything that is not as the format has it.
        """
        extra = _Extra()
        while (block := self._next_header()) is not None:
            kind = block[156:157]
            size = self._number(block[124:136])
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
            raise unsafe(self.name, "it ends after the header of a name")
        self._drain()

    def data(self) -> Iterator[bytes]:
        """The bytes of the member that ``members`` gave last."""
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
        if block == NO_BLOCK:
            if self._read(BLOCK_BYTES) != NO_BLOCK:
                raise unsafe(self.name, "it has a member after an empty header")
            return None
        stated = self._number(block[148:156])
        blank = block[:148] + b" " * 8 + block[156:]
        if stated not in {sum(blank), sum(byte - (byte & 128) * 2 for byte in blank)}:
            raise unsafe(self.name, "a header's checksum is wrong")
        return block

    def _read(self, count: int) -> bytes:
        data = self.stream.read(count)
        while len(data) < count:
            more = self.stream.read(count - len(data))
            if not more:
                raise unsafe(self.name, "it is cut short")
            data += more
        return data

    def _drain(self) -> None:
        """Read what follows the end, so that a compressed stream's own checksum is compared."""
        count = 0
        while data := self.stream.read(COPY_BYTES):
            count += len(data)
            if count > MAX_PADDING_BYTES or data.strip(b"\0"):
                raise unsafe(self.name, "something follows its end")

    def _number(self, raw: bytes) -> int:
        """Octal digits, or GNU's base 256."""
        if raw[0] == 0x80:
            return int.from_bytes(raw[1:], "big")
        text = raw.strip(b" \0")
        try:
            return int(text, 8) if text else 0
        except ValueError as error:
            raise unsafe(self.name, f"a header has {raw!r} where a number belongs") from error

    def _read_extra(self, kind: bytes, size: int, extra: _Extra) -> None:
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
            if is_global and key in {b"path", b"linkpath", b"size"}:
                raise unsafe(self.name, f"a global pax header sets {key.decode()}")
            if key == b"path":
                extra.name = _text(value)
            elif key == b"linkpath":
                extra.link = _text(value)
            elif key == b"size":
                extra.size = int(value) if value.isdigit() and len(value) < 19 else -2
            elif key.startswith(b"GNU.sparse."):
                extra.is_sparse = True
        if extra.size == -2:
            raise unsafe(self.name, "a pax header's size is not a number")

    def _describe(self, block: bytes, size: int, extra: _Extra) -> Member:
        name = extra.name or _text(_until_zero(block[:100]))
        if not extra.name and block[257:263] == b"ustar\0" and block[345]:
            name = f"{_text(_until_zero(block[345:500]))}/{name}"
        kind = KINDS.get(block[156:157], "device file")
        if extra.is_sparse:
            kind = "sparse file"
        if kind == "file" and name.endswith("/"):
            kind = "dir"
        name = name.removeprefix("./")
        if kind == "dir":
            name = "/" if name == "." else name.rstrip("/") + "/"
        link = extra.link or _text(_until_zero(block[157:257]))
        if kind == "hardlink":
            link = link.removeprefix("./")
        return Member(
            name,
            (size if extra.size < 0 else extra.size) if kind == "file" else 0,
            self._number(block[100:108]) & 0o777,
            kind,
            link if kind in {"symlink", "hardlink"} else "",
        )


def _until_zero(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


class XzStream:
    """An xz file, of several streams too, unpacked with a limit for what xz's dictionary takes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.inner = self._begin()
        self.buffered = b""

    def _begin(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)

    def read(self, count: int, /) -> bytes:
        """At most ``count`` bytes; none at the end. Raises EOFError when the file is cut."""
        while count:
            if self.inner.eof:
                rest = self.inner.unused_data or self.file.read(COPY_BYTES)
                rest = rest.lstrip(b"\0")  # the padding between streams
                if not rest:
                    return b""
                self.inner, self.buffered = self._begin(), rest
            if self.inner.needs_input and not self.buffered:
                self.buffered = self.file.read(COPY_BYTES)
                if not self.buffered:
                    raise EOFError("the compressed data is cut short")
            data = self.inner.decompress(self.buffered, count)
            self.buffered = b""
            if data:
                return data
        return b""
