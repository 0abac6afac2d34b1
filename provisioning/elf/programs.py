"""Find out for which SoCs a lowered program or a QNN context binary was compiled, and whether the
file is complete.

A context binary (as observed in QNN 2.29 to 2.51) starts with two big-endian u32, 2 and 3. At bytes
24 and 32, it has two little-endian u64: the offset and the size of the graphs, which add up to the
size of the file. A context binary for several SoCs is a DLC, which is a zip archive. Since QNN
2.36, each graph contains its compile options as text,
``soc_type=SM8750;arch=79;...;vtcm_size=8388608;``.

An ExecuTorch program has an extended header at byte 8 (executorch/exir/_serialize/_program.py):

- ``eh00``
- the length of this header (u32)
- the size of the flatbuffer (u64)
- the offset of the first segment in the file (u64)
- the size of all segments (u64), only if the length is at least 32

The flatbuffer is a Program of executorch/schema/program.fbs. Field 4 of Program lists the segments;
each has an offset (u64) from the first segment and a size (u64). ExecuTorch puts each segment at a
multiple of 128 bytes.

Read flatbuffers by field number with bounds checks, so that untrusted files are safe.

The format (flatbuffers.dev/internals): a table starts with the distance (i32) back to its vtable. A
vtable is a list of u16: its size, the table's size, and the offset of each field in the table (0 if
the field has its default). A field that is a table, text or vector contains the distance (u32) to
it. A vector starts with the number of its elements (u32).
"""

from __future__ import annotations

import io
import mmap
import re
import struct
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from provisioning.versions import is_older

Blob = bytes | mmap.mmap
View = Blob | memoryview  # parts of a file without copying
MAX_ITEMS = 1 << 20
MAX_TEXT = 4096
WORD = 4
SIZES = {"b": 1, "B": 1, "?": 1, "h": 2, "H": 2, "i": 4, "I": 4, "f": 4, "q": 8, "Q": 8, "d": 8}


class Tables:
    """A flatbuffer in ``blob``, between the bytes ``start`` and ``end``.

    A file with cyclic offsets would take forever, so at most MAX_ITEMS tables, texts and vector
    elements are read. Beyond that, and for bytes outside the flatbuffer, methods raise
    struct.error.
    """

    def __init__(self, blob: View, start: int = 0, end: int | None = None) -> None:
        self.blob, self.start = blob, start
        self.end = len(blob) if end is None else min(end, len(blob))
        self.items = 0

    def read(self, form: str, place: int) -> Any:
        """Return the number at byte ``place`` of the file."""
        if place < self.start or place + SIZES[form] > self.end:
            raise struct.error(f"byte {place} is outside the flatbuffer")
        return struct.unpack_from(f"<{form}", self.blob, place)[0]

    def follow(self, place: int) -> int:
        """Return the place that the offset at ``place`` points to."""
        distance: int = self.read("I", place)
        return place + distance

    def count(self, items: int = 1) -> None:
        """Count the items that were read. Raises struct.error above MAX_ITEMS: the offsets of a
        damaged file can lead to the same table again and again.
        """
        self.items += items
        if self.items > MAX_ITEMS:
            raise struct.error(f"more than {MAX_ITEMS} items")

    def root(self) -> Table:
        """Return the table that contains all others."""
        return Table(self, self.follow(self.start))


class Table:
    """A table at byte ``place`` of the file."""

    def __init__(self, tables: Tables, place: int) -> None:
        tables.count()
        self.tables, self.place = tables, place
        self.vtable = place - tables.read("i", place)
        self.vtable_size = tables.read("H", self.vtable)

    def find(self, number: int) -> int:
        """Return the byte where field ``number`` starts, or 0 if the field has its default."""
        # A vtable starts with two sizes of two bytes each.
        entry = WORD + 2 * number
        # A file of an older schema has shorter vtables, without the newer fields.
        if entry + 2 > self.vtable_size:
            return 0
        offset = self.tables.read("H", self.vtable + entry)
        return self.place + offset if offset else 0

    def number(self, number: int, form: str = "I", default: Any = 0) -> Any:
        """Return the value of a field that is a number; ``form`` is the type's letter in
        ``struct``.
        """
        place = self.find(number)
        return self.tables.read(form, place) if place else default

    def numbers(self, number: int, count: int) -> tuple[int, ...]:
        """Return the numbers in a field that is a struct of ``count`` u32; empty if the field is
        missing.
        """
        place = self.find(number)
        if not place:
            return ()
        return tuple(self.tables.read("I", place + WORD * index) for index in range(count))

    def table(self, number: int) -> Table | None:
        """Return the table in a field, or None if the field is missing."""
        place = self.find(number)
        return Table(self.tables, self.tables.follow(place)) if place else None

    def text(self, number: int) -> str:
        """Return the first MAX_TEXT bytes of a text field; empty if the field is missing."""
        return self.bytes(number).decode("utf-8", "replace")

    def span(self, number: int) -> tuple[int, int]:
        """Return where a vector of bytes starts, and its length; both 0 if it is missing."""
        start, count = self._vector(number)
        if start + count > self.tables.end:
            raise struct.error(f"a vector of {count} bytes exceeds the flatbuffer")
        return start, count

    def _vector(self, number: int) -> tuple[int, int]:
        place = self.find(number)
        vector = self.tables.follow(place) if place else 0
        return (vector + WORD, self.tables.read("I", vector)) if place else (0, 0)

    def bytes(self, number: int) -> bytes:
        """Return the first MAX_TEXT bytes of a vector of bytes."""
        self.tables.count()
        start, count = self.span(number)
        # A vector may claim any length, and only short texts are read this way.
        return bytes(self.tables.blob[start : start + min(count, MAX_TEXT)])

    def list(self, number: int, form: str = "I") -> tuple[int, ...]:
        """Return the numbers in a vector field."""
        return tuple(self.tables.read(form, place) for place in self._places(number, SIZES[form]))

    def list_tables(self, number: int) -> Iterator[Table]:
        """Yield the tables in a vector field."""
        for place in self._places(number, WORD):
            yield Table(self.tables, self.tables.follow(place))

    def _places(self, number: int, size: int) -> range:
        start, count = self._vector(number)
        self.tables.count(count)
        return range(start, start + size * count, size)


# If options lack vtcm_size, the match fails where the next options start, which keeps the search
# fast.
COMPILED = re.compile(
    rb"soc_type=([^;]{1,40});arch=(\d{1,3});(?:(?!soc_type=).){1,4000}?;vtcm_size=(\d{1,12});",
    re.DOTALL,
)
NO_SOC = "UNKNOWN_SDM"  # compiled without a soc_model
MAGIC, ARCHIVE = b"\0\0\0\2\0\0\0\3", b"PK\x03\x04"
BINARY = re.compile(re.escape(MAGIC))
CONTEXT = struct.Struct("<24xQQ")
PROGRAM = struct.Struct("<4x4s4sIQQ")
EXTENDED, SEGMENTS_AT, SIZE = b"eh00", 32, struct.Struct("<Q")
SEGMENT_ALIGN = 128  # ExecutorchBackendConfig.segment_alignment
SEGMENTS_FIELD, OFFSET_BYTES = 4, 4


class Target(NamedTuple):
    """The SoC, Hexagon version and VTCM size that a graph was compiled for, according to its
    compile options.
    """

    soc: str
    hexagon: int
    vtcm_mb: int


def is_loadable(compiler: str, runtime: str) -> bool:
    """Return whether the QNN version ``runtime`` can load programs that the QNN version
    ``compiler`` compiled: it must not be older.

    Observed with all 25 pairs of QNN 2.47, 2.48.40, 2.49.40, 2.50.40 and 2.51 on the emulator, and
    with a program of 2.37 on 2.49.40.
    """
    return not is_older(runtime, compiler)


def find_targets(blob: View) -> tuple[Target, ...]:
    """Return the distinct targets of the graphs in a binary, sorted by SoC; empty if the binary
    does not state them.
    """
    targets = {
        Target(name.decode("ascii", "replace"), int(arch), int(size) >> 20)
        for name, arch, size in map(re.Match.groups, COMPILED.finditer(blob))
    }
    return tuple(sorted(targets, key=lambda target: target.soc))


def find_context_damage(blob: View) -> str:
    """Return why a context binary is incomplete, or '' if it looks complete."""
    if blob[:4] == ARCHIVE:
        try:
            # Opening reads only the directory at the end, which a cut archive lacks.
            zipfile.ZipFile(io.BytesIO(blob)).close()
        # Of a damaged directory, zipfile also raises the other three.
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            return f"is cut short: {error}"
        return ""
    if len(blob) < CONTEXT.size:
        size = f"{len(blob)} byte{'s' * (len(blob) != 1)}"
        return f"is only {size} long: it was cut short or is not from QNN"
    begin, size = CONTEXT.unpack_from(blob)
    if begin + size == len(blob):
        return ""
    stated_size = begin + size if begin + size < 1 << 40 else "an impossible size"
    return (
        f"is {len(blob)} bytes long, but its header states {stated_size}: it was cut short or is "
        "not from QNN"
    )


def find_program_damage(blob: View) -> str:
    """Return why an ExecuTorch program is incomplete, or '' if it looks complete."""
    if len(blob) < PROGRAM.size:
        return f"is cut short: it is only {len(blob)} bytes long"
    _, magic, length, size, segments = PROGRAM.unpack_from(blob)
    if magic != EXTENDED:
        return ""
    if length >= SEGMENTS_AT and segments and len(blob) >= PROGRAM.size + SIZE.size:
        size = segments + SIZE.unpack_from(blob, PROGRAM.size)[0]
    return f"is cut short: it has {len(blob)} of {size} bytes" if len(blob) < size else ""


def find_misplaced(blob: View) -> str:
    """Return why segments of a complete program cannot be mapped into memory, or '' if they can."""
    base = PROGRAM.unpack_from(blob)[4] if blob[8:12] == EXTENDED else 0
    headers = BINARY.finditer(blob, 0, base or len(blob))
    # Other numbers in the flatbuffer that look like a context binary are not aligned.
    if any(header.start() % OFFSET_BYTES == 0 for header in headers):
        return "contains a context binary in its flatbuffer, not in a segment"
    try:
        for start, size in list_segments(Tables(blob), base) if base else ():
            if start % SEGMENT_ALIGN:
                return f"has a segment at byte {start}, not at a multiple of {SEGMENT_ALIGN}"
            if start + size > len(blob):
                return f"is {len(blob)} bytes long, but a segment ends at byte {start + size}"
    except struct.error:
        return "has a flatbuffer that cannot be read"
    return ""


def list_segments(tables: Tables, base: int) -> list[tuple[int, int]]:
    """Return the offset in the file and the size of each segment, in bytes; ``base`` is the offset
    of the first segment. Raises struct.error.
    """
    segments = tables.root().list_tables(SEGMENTS_FIELD)
    return [(base + segment.number(0, "Q"), segment.number(1, "Q")) for segment in segments]
