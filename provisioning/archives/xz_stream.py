"""xz with a limit for its memory, which the interpreter's lzma.open does not have."""

from __future__ import annotations

import lzma
from typing import IO

COPY_BYTES = 256 << 10
XZ_MEMORY_BYTES = 160 << 20  # xz -9 takes 65 MiB


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
