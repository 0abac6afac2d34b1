"""Read flatbuffers by field number with bounds checks, so that untrusted files are safe.

The format (flatbuffers.dev/internals): a table starts with the distance (i32) back to its vtable. A
vtable is a list of u16: its size, the table's size, and the offset of each field in the table (0 if
the field has its default). A field that is a table, text or vector contains the distance (u32) to
it. A vector starts with the number of its elements (u32).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Any

Blob = bytes | mmap.mmap
View = Blob | memoryview  # parts of a file without copying
MAX_ITEMS = 1 << 20
MAX_TEXT = 4096
WORD = 4
SIZES = {"b": 1, "B": 1, "?": 1, "H": 2, "i": 4, "I": 4, "f": 4, "q": 8, "Q": 8, "d": 8}


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
        self.items += items
        if self.items > MAX_ITEMS:
            raise struct.error(f"more than {MAX_ITEMS} items")

    def root(self) -> Table:
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
        entry = WORD + 2 * number
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
        return tuple(
            self.tables.read("I", place + WORD * one) for one in range(count if place else 0)
        )

    def table(self, number: int) -> Table | None:
        place = self.find(number)
        return Table(self.tables, self.tables.follow(place)) if place else None

    def text(self, number: int) -> str:
        return self.bytes(number)[:MAX_TEXT].decode("utf-8", "replace")

    def span(self, number: int) -> tuple[int, int]:
        """Return where a vector of bytes starts, and its length; both 0 if it is missing."""
        place = self.find(number)
        if not place:
            return 0, 0
        vector = self.tables.follow(place)
        count = self.tables.read("I", vector)
        if vector + WORD + count > self.tables.end:
            raise struct.error(f"a vector of {count} bytes exceeds the flatbuffer")
        return vector + WORD, count

    def bytes(self, number: int) -> bytes:
        """Return the first MAX_TEXT bytes of a vector of bytes."""
        self.tables.count()
        start, count = self.span(number)
        return bytes(self.tables.blob[start : start + min(count, MAX_TEXT)])

    def list(self, number: int, form: str = "I") -> tuple[int, ...]:
        """Return the numbers in a vector field."""
        return tuple(self.tables.read(form, place) for place in self._places(number, SIZES[form]))

    def list_tables(self, number: int) -> Iterator[Table]:
        """Yield the tables in a vector field."""
        for place in self._places(number, WORD):
            yield Table(self.tables, self.tables.follow(place))

    def _places(self, number: int, size: int) -> range:
        place = self.find(number)
        if not place:
            return range(0)
        vector = self.tables.follow(place)
        count = self.tables.read("I", vector)
        self.tables.count(count)
        return range(vector + WORD, vector + WORD + size * count, size)
