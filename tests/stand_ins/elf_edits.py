"""Edits of real ELF bytes: one field, one string, one entry of a table."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from provisioning.elf.facts import EM_QDSP6, PT_LOAD
from provisioning.elf.reader import read_elf

Edit = Callable[[bytearray], None]

E_TYPE, E_MACHINE, E_PHENTSIZE_64, EI_CLASS = 16, 18, 54, 4
E_FLAGS_32 = 36
SWIV = 0xD3574956
PHDR_64 = struct.Struct("<IIQQQQQQ")


def set_u16(offset: int, value: int) -> Edit:
    def edit(data: bytearray) -> None:
        struct.pack_into("<H", data, offset, value)

    return edit


def set_u32(offset: int, value: int) -> Edit:
    def edit(data: bytearray) -> None:
        struct.pack_into("<I", data, offset, value)

    return edit


def set_string(old: str, new: str, *, everywhere: bool = False) -> Edit:
    """Replace ``old`` by ``new``, which is not longer; the rest becomes NUL."""
    assert len(new) <= len(old)

    def edit(data: bytearray) -> None:
        padded = new.encode().ljust(len(old), b"\0")
        at = data.index(old.encode())
        while at >= 0:
            data[at : at + len(old)] = padded
            at = data.find(old.encode(), at + len(old)) if everywhere else -1

    return edit


def set_build(old: str, new: str) -> Edit:
    """Another build of QNN, wherever the file names it."""
    return set_string(old, new, everywhere=True)


def set_all_aligns(value: int) -> Edit:
    def edit(data: bytearray) -> None:
        for at in _program_headers(data):
            row = list(PHDR_64.unpack_from(data, at))
            if row[0] == 1:
                row[7] = value
                PHDR_64.pack_into(data, at, *row)

    return edit


def _program_headers(data: bytearray) -> range:
    start, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    return range(start, start + count * PHDR_64.size, PHDR_64.size)


def named(path: Path, name: str) -> bytes:
    """The placeholder library ``path`` under another soname."""
    data = bytearray(path.read_bytes())
    soname = read_elf(path).soname
    assert soname is not None
    set_string(soname, name)(data)
    return bytes(data)


def reseal(data: bytearray) -> None:
    """Make the checksum of a Hexagon library that of its bytes again; others stay as they are."""
    place = find_swiv(data)
    if place is not None:
        struct.pack_into("<I", data, place + 4, sum_loads(data))


def add_swiv(data: bytearray) -> None:
    """Give an ELF32 file the checksum that QNN's skels carry, and their end: the names of the
    sections, the section headers at the next multiple of 4, the checksum.
    """
    start, count = struct.unpack_from("<I", data, 32)[0], struct.unpack_from("<H", data, 48)[0]
    table = bytearray(data[start : start + 40 * count])
    entry = 40 * struct.unpack_from("<H", data, 50)[0]
    names, size = struct.unpack_from("<2I", table, entry + 16)
    struct.pack_into("<I", table, entry + 16, len(data))
    data += data[names : names + size]
    data += bytes(-len(data) % 4)
    struct.pack_into("<I", data, 32, len(data))
    struct.pack_into("<H", data, 48, count + 1)
    place = len(data) + len(table) + 40
    data += table + struct.pack("<10I", 0, SWIV, 0, 0, place, 16, 0, 0, 0, 0)
    data += b"SWIV" + bytes(12)
    reseal(data)


def strip_like_gradle(data: bytearray) -> None:
    """What ``llvm-strip --strip-unneeded`` makes of a skel: the checksum comes before the section
    headers, so that e_shoff is another.
    """
    start, count = struct.unpack_from("<I", data, 32)[0], struct.unpack_from("<H", data, 48)[0]
    place = find_swiv(data)
    assert place == start + 40 * count
    table, checksum = data[start:place], data[place:]
    entry = next(
        at for at in range(0, len(table), 40) if struct.unpack_from("<I", table, at + 4)[0] == SWIV
    )
    struct.pack_into("<I", table, entry + 16, start)
    data[start:] = checksum + table
    struct.pack_into("<I", data, 32, start + len(checksum))


def find_swiv(data: bytes | bytearray) -> int | None:
    """Where the checksum of a Hexagon library stands."""
    if data[:5] != b"\x7fELF\1" or struct.unpack_from("<H", data, E_MACHINE)[0] != EM_QDSP6:
        return None
    start, count = struct.unpack_from("<I", data, 32)[0], struct.unpack_from("<H", data, 48)[0]
    for index in range(count):
        _, kind, _, _, place, *_ = struct.unpack_from("<10I", data, start + 40 * index)
        if kind == SWIV:
            return int(place)
    return None


def sum_loads(data: bytes | bytearray) -> int:
    """The CRC-32 of the PT_LOAD segments of an ELF32 file as they lie in memory."""
    start, count = struct.unpack_from("<I", data, 28)[0], struct.unpack_from("<H", data, 44)[0]
    memory = b""
    for index in range(count):
        kind, place, _, _, size, memory_size, *_ = struct.unpack_from(
            "<8I", data, start + 32 * index
        )
        if kind == PT_LOAD:
            memory += bytes(data[place : place + size]).ljust(memory_size, b"\0")
    return zlib.crc32(memory)
