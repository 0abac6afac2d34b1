"""Parse the program headers of an ELF file exactly, with the segment types that Qualcomm adds.

Qualcomm uses bits 20 to 27 of p_flags: bit 20 is paging, bits 21 to 23 are an access type, and bits
24 to 26 are a segment type. Type 2 is the hash segment; type 7 is the placeholder for the ELF
header and the program headers.

Source: https://github.com/torvalds/linux/blob/master/include/linux/soc/qcom/mdt_loader.h and
https://github.com/msm8916-mainline/qtestsign/blob/main/fw/hashseg.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from provisioning.documents import read_user_file
from provisioning.elf.facts import (
    EF_HEXAGON_MACH,
    EM_QDSP6,
    PT_LOAD,
    PT_NULL,
    ElfHeaders,
    ProgramHeader,
)
from provisioning.elf.reader import HeadersTruncatedError, parse_headers

# The limit of the vendor's tool. It also limits the time: overlapping segments are all hashed.
MAX_SEGMENTS = 100
TYPE_HEADERS = 7
SPLIT = (
    "this is the first part (.mdt) of a split image; join it with the others (.b00, .b01, ...) by "
    "`pil-squasher OUT.mbn IN.mdt`, and verify OUT.mbn"
)


class MalformedError(ValueError):
    """The bytes of a file contradict its headers. Callers report this as a fault of the file, so a
    user never sees the exception.
    """


class TruncatedError(MalformedError):
    """The file ends earlier than its headers state."""


@dataclass(frozen=True)
class Segment:
    """One program header and its place in the table."""

    index: int
    header: ProgramHeader

    @property
    def offset(self) -> int:
        """The position of the segment's first byte in the file."""
        return self.header.offset

    @property
    def file_size(self) -> int:
        return self.header.filesz

    @property
    def end(self) -> int:
        """The position in the file just after this segment."""
        return self.offset + self.file_size

    @property
    def is_header_placeholder(self) -> bool:
        """Whether the segment is the placeholder for the ELF header and the program headers."""
        return self.header.type == PT_NULL and self.header.vendor_type == TYPE_HEADERS

    def describe(self) -> str:
        number = self.header.type
        kind = {PT_NULL: "NULL", PT_LOAD: "LOAD"}.get(number, f"type {number:#x}")
        return f"segment {self.index} ({kind}, {self.file_size} bytes at {self.offset:#x})"


@dataclass(frozen=True)
class Image:
    """An ELF file's bytes, with its ELF header and program headers."""

    data: memoryview
    headers: ElfHeaders
    segments: tuple[Segment, ...]

    def bytes_of(self, segment: Segment) -> memoryview:
        return self.data[segment.offset : segment.end]

    def loadable(self) -> Iterator[Segment]:
        """Return the segments that are not of type NULL, in the order of the program headers."""
        return (segment for segment in self.segments if segment.header.type != PT_NULL)

    @property
    def hash_segments(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.header.is_hashes)

    @property
    def hexagon_version(self) -> int:
        """The Hexagon version in e_flags, such as 0x75 for V75, or 0 if the machine is not
        Hexagon."""
        return self.headers.flags & EF_HEXAGON_MACH if self.headers.machine == EM_QDSP6 else 0


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a library. Raises UsageError if it cannot be read."""
    return read_user_file(path, "the library")


def parse_image(data: memoryview) -> Image:
    """Parse the ELF header and the program headers of ``data``. Raises MalformedError."""
    try:
        headers = parse_headers(bytes(data))
    except HeadersTruncatedError as error:
        raise TruncatedError(f"truncated: {error}") from error
    except ValueError as error:
        raise MalformedError(f"this is not an ELF file that a DSP can load: {error}") from error
    if bytes(data[5:7]) != b"\1\1":
        raise MalformedError("this is not a little-endian ELF file of version 1")
    if not 0 < len(headers.program_headers) <= MAX_SEGMENTS:
        raise MalformedError(
            f"there are {len(headers.program_headers)} program headers instead of "
            f"1 to {MAX_SEGMENTS}"
        )
    image = Image(data, headers, tuple(map(Segment, count(), headers.program_headers)))
    outside = [one for one in image.segments if one.file_size and one.end > len(data)]
    if outside and _is_first_part(image):
        raise MalformedError(SPLIT)
    if outside:
        raise TruncatedError(f"truncated: {outside[0].describe()} extends past the end of the file")
    return image


def _is_first_part(image: Image) -> bool:
    """Return whether ``image`` is the .mdt file of a split image. Such a file ends after the
    program headers, or after a hash segment that follows them.
    """
    hashes = sum(one.file_size for one in image.hash_segments)
    return len(image.data) in {image.headers.end, image.headers.end + hashes}
