"""Program headers of an ELF file, byte exact, with the segment types that Qualcomm adds.

Bits 20 to 27 of p_flags are Qualcomm's: bit 20 marks a segment hashed by the page, bits 21 to 23
are an access type, bits 24 to 26 a segment type, of which 2 is the hash segment and 7 the
placeholder that stands for the ELF header and the program headers.
Source: https://github.com/torvalds/linux/blob/master/include/linux/soc/qcom/mdt_loader.h and
https://github.com/msm8916-mainline/qtestsign/blob/main/fw/hashseg.py
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.console.user_files import read_user_file

PT_NULL, PT_LOAD = 0, 1
IDENT_SIZE = 16
PAGE_MODE_BIT = 1 << 20
# As the vendor's tool limits it; each segment is hashed, whatever it overlaps.
MAX_SEGMENTS = 100
TYPE_HASH, TYPE_HEADERS = 2, 7

# e_type to e_phnum
HEADER_LAYOUTS = {1: struct.Struct("<HHIIIIIHHH"), 2: struct.Struct("<HHIQQQIHHH")}
SEGMENT_LAYOUTS = {1: struct.Struct("<8I"), 2: struct.Struct("<2I6Q")}


class MalformedError(ValueError):
    """Bytes that are not what their headers say; becomes a fault, never reaches a user."""


class TruncatedError(MalformedError):
    """The bytes end before their headers say so."""


@dataclass(frozen=True)
class Segment:
    """One program header. ``offset`` and ``file_size`` are bytes in the file."""

    index: int
    type: int
    offset: int
    virtual_address: int
    physical_address: int
    file_size: int
    memory_size: int
    flags: int
    alignment: int

    @property
    def end(self) -> int:
        """The first byte of the file after this segment."""
        return self.offset + self.file_size

    @property
    def vendor_type(self) -> int:
        """Bits 24 to 26 of p_flags."""
        return (self.flags >> 24) & 7

    @property
    def is_hash_segment(self) -> bool:
        return self.type == PT_NULL and self.vendor_type == TYPE_HASH

    @property
    def is_header_placeholder(self) -> bool:
        return self.type == PT_NULL and self.vendor_type == TYPE_HEADERS

    @property
    def is_paged(self) -> bool:
        """Hashed by the page of 4 KiB, which no DSP library is."""
        return bool(self.flags & PAGE_MODE_BIT) and self.type != PT_NULL

    def describe(self) -> str:
        kind = {PT_NULL: "NULL", PT_LOAD: "LOAD"}.get(self.type, f"type {self.type:#x}")
        return f"segment {self.index} ({kind}, {self.file_size} bytes at {self.offset:#x})"


@dataclass(frozen=True)
class Image:
    """An ELF file's header and program headers over its bytes."""

    data: memoryview
    machine: int
    entry: int
    flags: int
    section_offset: int
    headers_end: int
    segments: tuple[Segment, ...]

    def bytes_of(self, segment: Segment) -> memoryview:
        """The segment's bytes in the file."""
        return self.data[segment.offset : segment.end]

    def loadable(self) -> Iterator[Segment]:
        """The segments that a loader reads, in the order of the program headers."""
        return (segment for segment in self.segments if segment.type != PT_NULL)

    @property
    def hash_segments(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.is_hash_segment)

    @property
    def hexagon_version(self) -> int:
        """The number that e_flags holds: 0x75 for V75."""
        return self.flags & 0xFF


def read_bytes(path: Path) -> bytes:
    """The bytes of a library. Raises UsageError when it cannot be read."""
    return read_user_file(path, "the library")


def parse_image(data: memoryview) -> Image:
    """Parse the ELF header and the program headers of ``data``. Raises MalformedError."""
    if len(data) < IDENT_SIZE or bytes(data[:4]) != b"\x7fELF":
        raise MalformedError("not an ELF file")
    elf_class, byte_order, version = data[4], data[5], data[6]
    if elf_class not in HEADER_LAYOUTS or byte_order != 1 or version != 1:
        raise MalformedError("not a little-endian ELF file of version 1")
    layout = HEADER_LAYOUTS[elf_class]
    if len(data) < IDENT_SIZE + layout.size:
        raise TruncatedError("truncated within the ELF header")
    fields = layout.unpack_from(data, IDENT_SIZE)
    _, machine, _, entry, table, sections, flags, _, entry_size, count = fields
    if entry_size != SEGMENT_LAYOUTS[elf_class].size or not 0 < count <= MAX_SEGMENTS:
        raise MalformedError(f"{count} program headers of {entry_size} bytes")
    end = table + count * entry_size
    if end > len(data):
        raise TruncatedError("truncated within the program headers")
    segments = tuple(
        _parse_segment(data, elf_class, table + index * entry_size, index) for index in range(count)
    )
    for segment in segments:
        if segment.file_size and segment.end > len(data):
            raise TruncatedError(f"truncated: {segment.describe()} ends after the file's end")
    return Image(data, machine, entry, flags, sections, end, segments)


def _parse_segment(data: memoryview, elf_class: int, position: int, index: int) -> Segment:
    words = SEGMENT_LAYOUTS[elf_class].unpack_from(data, position)
    if elf_class == 1:
        kind, offset, virtual, physical, file_size, memory_size, flags, alignment = words
    else:
        kind, flags, offset, virtual, physical, file_size, memory_size, alignment = words
    return Segment(index, kind, offset, virtual, physical, file_size, memory_size, flags, alignment)
