"""An archive in the shape of a QNN SDK, out of real QNN libraries, without compressing anew."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from provisioning.archives.layout import Member
from provisioning.archives.zip_directory import LOCAL_BYTES, FileSource, read_directory

LOCAL = struct.Struct("<4sHHHHHIIIHH")
CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
END = struct.Struct("<4sHHHHIIH")
UNIX, DATE = 3 << 8 | 20, 0x2821


def copy_member(source: FileSource, member: Member) -> bytes:
    """A member's compressed bytes."""
    header = source.read_at(member.offset, LOCAL_BYTES)
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    start = member.offset + LOCAL_BYTES + name_bytes + extra_bytes
    return source.read_at(start, member.compressed)


def write_archive(
    target: Path, parts: Iterable[tuple[Path, Callable[[str], str]]], texts: dict[str, bytes]
) -> int:
    """Write a ZIP of members of other ZIPs, and of stored texts; returns its size.

    ``parts`` are a ZIP and, for a library's file name, the directory to put it in (or none).
    """
    central: list[bytes] = []
    with target.open("wb") as out:
        for path, place in parts:
            with closing(FileSource(path)) as source:
                for member in read_directory(source):
                    base = member.name.rpartition("/")[2]
                    if ".so" in base and (directory := place(base)):
                        data = copy_member(source, member)
                        central.append(_add(out, f"{directory}/{base}", data, member))
        for name, data in texts.items():
            central.append(_add(out, name, data, _stored(name, data)))
        start = out.tell()
        out.writelines(central)
        size = out.tell() - start
        count = len(central)
        out.write(END.pack(b"PK\5\6", 0, 0, count, count, size, start, 0))
    return target.stat().st_size


def _stored(name: str, data: bytes) -> Member:
    import zlib

    return Member(name, len(data), compressed=len(data), crc=zlib.crc32(data))


def _add(out: BinaryIO, name: str, data: bytes, member: Member) -> bytes:
    """Write one member; its entry for the central directory."""
    raw, offset = name.encode(), out.tell()
    sizes = (member.crc, member.compressed, member.size)
    out.write(LOCAL.pack(b"PK\3\4", 20, 0, member.method, 0, DATE, *sizes, len(raw), 0))
    out.write(raw)
    out.write(data)
    head = (b"PK\1\2", UNIX, 20, 0, member.method, 0, DATE, *sizes, len(raw))
    return CENTRAL.pack(*head, 0, 0, 0, 0, 0o100755 << 16, offset) + raw
