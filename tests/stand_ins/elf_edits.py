"""Edits of real ELF bytes: one field, one string, one entry of a table."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from provisioning.elf.facts import PT_DYNAMIC, ProgramHeader
from provisioning.elf.reader import read_elf

Edit = Callable[[bytearray], None]

E_TYPE, E_MACHINE, E_PHENTSIZE_64, EI_CLASS = 16, 18, 54, 4
E_FLAGS_32 = 36
PHDR_64 = struct.Struct("<IIQQQQQQ")
DYN_64 = struct.Struct("<qQ")


def set_u16(offset: int, value: int) -> Edit:
    def edit(data: bytearray) -> None:
        struct.pack_into("<H", data, offset, value)

    return edit


def set_u32(offset: int, value: int) -> Edit:
    def edit(data: bytearray) -> None:
        struct.pack_into("<I", data, offset, value)

    return edit


def set_byte(offset: int, value: int) -> Edit:
    def edit(data: bytearray) -> None:
        data[offset] = value

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


def set_segment(kind: int, field: str, value: int) -> Edit:
    """A field of the first program header of a type, in an ELF64 file."""
    index = ProgramHeader._fields.index(field)
    # The file has p_paddr between p_vaddr and p_filesz; ProgramHeader has not.
    index += field in ("filesz", "memsz", "align")

    def edit(data: bytearray) -> None:
        for at in _program_headers(data):
            row = list(PHDR_64.unpack_from(data, at))
            if row[0] == kind:
                row[index] = value
                PHDR_64.pack_into(data, at, *row)
                return
        raise AssertionError(f"no segment of type {kind}")

    return edit


def set_all_aligns(value: int) -> Edit:
    def edit(data: bytearray) -> None:
        for at in _program_headers(data):
            row = list(PHDR_64.unpack_from(data, at))
            if row[0] == 1:
                row[7] = value
                PHDR_64.pack_into(data, at, *row)

    return edit


def set_tag(old: int, new: int) -> Edit:
    """Make the first dynamic entry with tag ``old`` one with tag ``new``."""

    def edit(data: bytearray) -> None:
        rows = [PHDR_64.unpack_from(data, at) for at in _program_headers(data)]
        offset, size = next((row[2], row[5]) for row in rows if row[0] == PT_DYNAMIC)
        for at in range(offset, offset + size, DYN_64.size):
            tag, value = DYN_64.unpack_from(data, at)
            if tag == old:
                DYN_64.pack_into(data, at, new, value)
                return
        raise AssertionError(f"no dynamic entry with tag {old}")

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
