"""Signed libraries with single bytes changed, and their verification."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ci.signing.verdict import Verification
from ci.signing.verify import verify_bytes
from tests.stand_ins.elfsigner.mbn_writer import Key

PLACE = 0x1000  # of the hash segment in the small library when it is signed
PROGRAM_HEADERS, PROGRAM_HEADER_BYTES = 52, 32


def verify(data: bytes, original: bytes | None = None, **options: int) -> Verification:
    before = memoryview(original) if original is not None else None
    return verify_bytes(memoryview(data), before, **options)


def put(data: bytes, position: int, form: str, *values: int) -> bytes:
    """``data`` with ``values`` written at ``position`` in struct's ``form``."""
    changed = bytearray(data)
    struct.pack_into(form, changed, position, *values)
    return bytes(changed)


def put_word(data: bytes, position: int, value: int) -> bytes:
    return put(data, position, "<I", value)


def put_header(data: bytes, index: int, word: int, value: int) -> bytes:
    """``data`` with one of the eight words of a program header changed."""
    position = PROGRAM_HEADERS + PROGRAM_HEADER_BYTES * index + 4 * word
    return put_word(data, position, value)


def flip(data: bytes, position: int, bit: int = 0) -> bytes:
    return put(data, position, "B", data[position] ^ (1 << bit))


@dataclass(frozen=True)
class LyingKey(Key):
    """Signs a header of which one word was changed before."""

    word: int = 0
    value: int = 0

    def sign(self, signed: bytes, version: int) -> bytes:
        return super().sign(put_word(signed, 4 * self.word, self.value), version)


@dataclass(frozen=True)
class FixedKey(Key):
    """Writes ``value`` as its signature."""

    value: bytes = b""

    @property
    def size(self) -> int:
        return len(self.value)

    def sign(self, signed: bytes, version: int) -> bytes:
        return self.value
