"""Writes shared libraries without a function.

LiteRT's plugin for Qualcomm (ai-edge-litert 2.3.0) is linked with libQnnLpai.so, which it does not
use for HTP, and which no package has. Without a library of that name it does not load.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

ELF, PROGRAM = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
ENTRY = struct.Struct("<qQ")
IDENT = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")  # 64 bits, little endian
SHARED, X86_64 = 3, 62
LOAD, DYNAMIC, STACK, READ, WRITE = 1, 2, 0x6474E551, 4, 2
NULL, HASH, STRTAB, SYMTAB, STRSZ, SYMENT, SONAME = 0, 4, 5, 6, 10, 11, 14
PAGE, SYMBOL_BYTES = 0x1000, 24


def make_empty_library(soname: str) -> bytes:
    """Return an x86-64 library that has this name and no symbol.

    The format is that of the System V ABI: an ELF header, program headers for what is loaded, for
    the dynamic section and for a stack that is not executable, a symbol table with the empty symbol
    that each has, a hash table of it, the strings, and the dynamic section.
    """
    headers = ELF.size + 3 * PROGRAM.size
    strings = b"\0" + soname.encode("ascii") + b"\0"
    symbols_at = headers
    hash_at = symbols_at + SYMBOL_BYTES
    hashes = struct.pack("<4I", 1, 1, 0, 0)  # one bucket, one symbol
    strings_at = hash_at + len(hashes)
    dynamic_at = -(-(strings_at + len(strings)) // 16) * 16
    entries = (
        (HASH, hash_at),
        (STRTAB, strings_at),
        (SYMTAB, symbols_at),
        (STRSZ, len(strings)),
        (SYMENT, SYMBOL_BYTES),
        (SONAME, 1),
        (NULL, 0),
    )
    dynamic = b"".join(ENTRY.pack(*entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    data = bytearray(size)
    header = ELF.pack(
        IDENT, SHARED, X86_64, 1, 0, ELF.size, 0, 0, ELF.size, PROGRAM.size, 3, 64, 0, 0
    )
    programs = (
        _pack_program(LOAD, 0, size, PAGE),
        _pack_program(DYNAMIC, dynamic_at, len(dynamic), 8),
        _pack_program(STACK, 0, 0, 16),
    )
    pieces: Sequence[tuple[int, bytes]] = (
        (0, header + b"".join(programs)),
        (hash_at, hashes),
        (strings_at, strings),
        (dynamic_at, dynamic),
    )
    for place, piece in pieces:
        data[place : place + len(piece)] = piece
    return bytes(data)


def _pack_program(kind: int, offset: int, size: int, align: int) -> bytes:
    # Writable, because the loader of glibc relocates the addresses in the dynamic section.
    return PROGRAM.pack(kind, READ | WRITE, offset, offset, offset, size, size, align)
