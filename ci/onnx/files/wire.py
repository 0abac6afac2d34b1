"""Protocol Buffers' wire format: what an ONNX file is written in.

A message is a sequence of fields, each a tag (number and wire type as one varint) and a value:
0 varint, 1 eight bytes, 2 a length and that many bytes, 5 four bytes. Bytes are not copied.
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Value = int | memoryview
Readers = Mapping[int, Callable[[Value], Any]]

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
LONGEST_VARINT = 10
NAME_BYTES = 1 << 16


def walk(data: memoryview) -> Iterator[tuple[int, Value]]:
    """The fields of a message: number, and an integer or the bytes.

    Raises ValueError where the bytes are no such message.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError(f"a field of number 0 at byte {at}")
        if kind == VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        size = {EIGHT: 8, FOUR: 4}.get(kind)
        if kind == BYTES:
            size, at = _read_varint(data, at)
        if size is None:
            raise ValueError(f"wire type {kind} at byte {at}")
        if size > end - at:
            raise ValueError(f"a field of {size} bytes where {end - at} are left")
        yield number, data[at : at + size]
        at += size


def collect(message: Value, readers: Readers) -> dict[int, list[Any]]:
    """What ``readers`` make of a message's fields of their numbers, in the order of the file.

    Raises ValueError as walk and the readers do.
    """
    found: dict[int, list[Any]] = {number: [] for number in readers}
    for number, value in walk(as_bytes(message)):
        if number in readers:
            found[number].append(readers[number](value))
    return found


def last(values: list[Any], default: T) -> T:
    """A field that is there once; of several, the last one counts."""
    return values[-1] if values else default


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + LONGEST_VARINT, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise ValueError(f"a number that does not end at byte {at}")


def as_integer(value: Value) -> int:
    """An int64 field. Raises ValueError for bytes."""
    if isinstance(value, memoryview):
        raise ValueError("bytes where a number belongs")  # noqa: TRY004 - the file is wrong
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def as_bytes(value: Value) -> memoryview:
    """A field of bytes. Raises ValueError for a number."""
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")  # noqa: TRY004 - the file is wrong
    return value


def as_text(value: Value) -> str:
    """A name. Raises ValueError where it is no UTF-8, or too long for one."""
    data = as_bytes(value)
    if len(data) > NAME_BYTES:
        raise ValueError(f"a name of {len(data)} bytes, at most {NAME_BYTES} are read")
    return str(data, "utf-8")


def as_integers(value: Value) -> list[int]:
    """A repeated int64 field, packed or one of several. Raises ValueError."""
    if isinstance(value, int):
        return [as_integer(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = _read_varint(value, at)
        numbers.append(as_integer(number))
    return numbers


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, to append to a message."""
    return _varint(number << 3 | BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
