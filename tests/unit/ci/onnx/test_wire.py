"""Numbers and fields of the wire format."""

from __future__ import annotations

import pytest

from ci.onnx.files.wire import as_integer, as_integers, as_text, field, walk
from tests.qnn_provider.raw import message, varint

NUMBERS = (0, 1, 127, 128, 300, 2**31, 2**62, 2**63 - 1, -1, -300, -(2**63))


def test_numbers_are_signed_and_of_64_bits() -> None:
    data = memoryview(message(*((1, number) for number in NUMBERS)))
    assert [as_integer(value) for _, value in walk(data)] == list(NUMBERS)
    packed = memoryview(b"".join(map(varint, NUMBERS)))
    assert as_integers(packed) == list(NUMBERS)
    assert as_integers(7) == [7]


def test_fields_of_every_length() -> None:
    for length in (0, 1, 127, 128, 20_000):
        ((number, value),) = walk(memoryview(field(300, bytes(length))))
        assert (number, len(value)) == (300, length)  # type: ignore[arg-type]


def test_fixed_widths_are_passed_by() -> None:
    data = memoryview(b"\x09" + bytes(8) + b"\x15" + bytes(4) + b"\x18\x05")
    assert [(number, value) for number, value in walk(data)][-1] == (3, 5)
    with pytest.raises(ValueError, match="a field of 8 bytes where 7 are left"):
        list(walk(data[:8]))


def test_names_are_utf_8() -> None:
    assert as_text(memoryview("größe".encode())) == "größe"
    assert len(as_text(memoryview(b"a" * 65536))) == 65536
    for wrong in (b"\xff", b"a" * 65537):
        with pytest.raises(ValueError, match=r"utf-8|a name of 65537 bytes"):
            as_text(memoryview(wrong))
