"""Read ELF files into immutable facts, in bounded time and memory. No other module reads ELF files.

Everything that the loader uses is found through the program headers, so these facts do not change
if the section headers are removed. Names and layouts are from the gABI and glibc's elf.h. The
Android note (ndk/sources/crt/crtbrand.S of the platform) contains the API level (4 bytes), and the
NDK's release and build (64 bytes each, padded with NULs).

Some Hexagon libraries contain a checksum, which reveals a changed byte. It is in a section of type
SWIV, which contains a magic number and the CRC-32 of all PT_LOAD segments in order, each padded
with zeros to p_memsz. Observed in November 2026:

- All 59 HTP skels of QNN 2.40.0 and newer have a checksum, and it matches.
- All 23 HTP skels up to 2.37.1 have none. libQnnDspV66Skel.so never has one.
- Of 1,556 DSP libraries from devices, only three have one. They are skels of QNN.

The name SWIV is from AIC100's loader (networkElfSWIVSectionType,
https://github.com/quic/software-kit-for-qualcomm-cloud-ai-100).

llvm-strip moves the section headers and so changes e_shoff, which is part of the sum. In 55 of 55
skels that were stripped with --strip-unneeded, the stored sum matches again if e_shoff is set back.
"""

from __future__ import annotations

import io
import mmap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf import enums
from elftools.elf.structs import ELFStructs

from provisioning.documents import open_regular
from provisioning.elf.facts import (
    EM_QDSP6,
    PF_X,
    PT_DYNAMIC,
    PT_GNU_STACK,
    PT_INTERP,
    PT_LOAD,
    PT_NOTE,
    AndroidNote,
    Checksum,
    Defect,
    ElfError,
    ElfFacts,
    ElfHeaders,
    ProgramHeader,
    VersionNeed,
)

# A web page may start with a byte order mark, a comment or an XML declaration.
HEAD_BYTES = 512
MAX_STRING, MAX_SECTION_NAME = 4096, 1024
# Each string is located by a search through the segments, so the number of strings times segments
# is limited.
MAX_SEGMENTS = 256
MAX_ENTRIES = 4096
MAX_SECTIONS = 16384
# The Android note, the longest that is read, has 132 bytes.
MAX_NOTE_BYTES = 1 << 16
DF_TEXTREL = 4
NOTE_HEADER_BYTES = 12
BUILD_ID = (b"GNU", 3)  # name and type of the note NT_GNU_BUILD_ID
SWIV_SECTION, SWIV_MAGIC, SWIV_BYTES = 0xD3574956, b"SWIV", 8
E_SHOFF = 0x20  # in an ELF32 header, which is in the first PT_LOAD
# Limit for a DSP library's memory; a header may claim any size.
MAX_MEMORY_BYTES = 1 << 28
CHUNK_BYTES = 1 << 20

_NUMBERS: dict[str, int] = {
    **enums.ENUM_E_TYPE,
    **enums.ENUM_E_MACHINE,
    **enums.ENUM_P_TYPE_AARCH64,
    **enums.ENUM_P_TYPE_ARM,
    **enums.ENUM_P_TYPE_MIPS,
    **enums.ENUM_P_TYPE_RISCV,
    **enums.ENUM_P_TYPE_BASE,
}


class HeadersTruncatedError(ValueError):
    """A structure extends past the end of the file."""


def read_elf(path: Path) -> ElfFacts:
    """Read the facts of ``path``. Raises ElfError and nothing else for an unreadable file."""
    try:
        with open_regular(path) as file, _only_value_errors():
            _refuse_other_formats(path, file.read(HEAD_BYTES))
            # Mapped instead of read, so that a large library costs only the pages that are looked
            # at.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return _Elf(mapped).facts(path)
    except OSError as error:
        raise ElfError(path, Defect.UNREADABLE, error.strerror or str(error)) from error
    except HeadersTruncatedError as error:
        raise ElfError(path, Defect.TRUNCATED, f"{error}, but the file ends before that") from error
    except ValueError as error:
        raise ElfError(path, Defect.CORRUPT, str(error)) from error


def parse_headers(data: bytes) -> ElfHeaders:
    """Return the ELF headers in ``data``, the start of a file. The segments need not be in
    ``data``.

    Raises ValueError, and its subclass HeadersTruncatedError for incomplete headers.
    """
    with _only_value_errors():
        return _Elf(data).headers()


def parse_checksum(data: bytes) -> Checksum | None:
    """Return the checksum embedded in the Hexagon library ``data``, or None if there is none.
    Raises ValueError.
    """
    with _only_value_errors():
        return _Elf(data).checksum()


@contextmanager
def _only_value_errors() -> Iterator[None]:
    try:
        yield
    # What pyelftools raises for malformed headers, besides its own error.
    except (ELFError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _refuse_other_formats(path: Path, head: bytes) -> None:
    text, why = head.lower(), ""
    if head.startswith(MAGIC):
        return
    if not head:
        defect = Defect.EMPTY
    # A clone without git lfs has pointers instead of libraries.
    elif head.startswith(b"version https://git-lfs"):
        defect = Defect.LFS_POINTER
    elif b"<!doctype html" in text or b"<html" in text:  # after a comment, for example
        defect = Defect.HTML
    # macOS writes these next to each file on a disk that cannot store its attributes; an archive
    # made there contains them.
    elif head.startswith(APPLE_DOUBLE) and path.name.startswith("._"):
        defect = Defect.APPLE_DOUBLE
    else:
        windows = "it is a file of Windows: " if head.startswith(b"MZ") else ""
        defect, why = Defect.NOT_ELF, f"{windows}it starts with {repr(bytes(head[:16]))[1:]}"
    raise ElfError(path, defect, why)


# The tables that the loader reads before anything else, and the tags with their sizes in bytes.
TABLES = (("DT_STRTAB", "DT_STRSZ"), ("DT_RELA", "DT_RELASZ"), ("DT_JMPREL", "DT_PLTRELSZ"))
MAGIC, APPLE_DOUBLE = b"\x7fELF", bytes.fromhex("00051607")


class _Elf:
    """A file while it is being read. Every count from the file is bounded."""

    def __init__(self, mapped: mmap.mmap | bytes) -> None:
        self.map = mapped
        self.stream: Any = io.BytesIO(mapped) if isinstance(mapped, bytes) else mapped
        self.size_bytes = len(mapped)
        self.links = 0
        # The size of an ELF64 header. No library is shorter.
        if self.size_bytes < 64:
            raise HeadersTruncatedError("an ELF header is 52 or 64 bytes long")
        self.bits, self.little_endian = _identify(self.map[:6])
        # Some names, such as those of p_type, depend on the machine, which is in the header: so it
        # is read with separate structures first.
        basic = _make_structs(self.bits, self.little_endian)
        self.head = struct_parse(basic.Elf_Ehdr, self.stream, 0)
        kind = (self.head["e_type"], self.head["e_machine"], self.head["e_ident"]["EI_OSABI"])
        self.structs = _make_structs(self.bits, self.little_endian, *kind)
        self.heads = tuple(self._program_headers())
        self.loads = [head for head in self.heads if head.type == PT_LOAD]

    def headers(self) -> ElfHeaders:
        end = self.head["e_phoff"] + self.head["e_phnum"] * self.head["e_phentsize"]
        machine = _number(self.head["e_machine"])
        return ElfHeaders(machine, self.head["e_entry"], self.head["e_flags"], end, self.heads)

    def _require_segments(self) -> None:
        for index, head in enumerate(self.heads):
            if head.filesz:
                self._require(head.offset, head.filesz, f"segment {index}")

    def facts(self, path: Path) -> ElfFacts:
        self._require_segments()
        self._require_tables()
        # A note may be 12 bytes long, so a segment may claim thousands of them.
        notes = list(islice(self._notes(), MAX_ENTRIES))
        sections = list(self._sections())
        flags = self.tags.get("DT_FLAGS", [0])[0]
        interpreters = [head.offset for head in self.heads if head.type == PT_INTERP]
        return ElfFacts(
            path=path,
            size_bytes=self.size_bytes,
            bits=self.bits,
            little_endian=self.little_endian,
            machine=_number(self.head["e_machine"]),
            type=_number(self.head["e_type"]),
            flags=self.head["e_flags"],
            soname=next(self._strings("DT_SONAME"), None),
            needed=tuple(self._strings("DT_NEEDED")),
            rpath=tuple(self._search_path("DT_RPATH")),
            runpath=tuple(self._search_path("DT_RUNPATH")),
            version_needs=tuple(self._version_needs()),
            version_defs=tuple(self._version_defs()),
            android=next((_parse_android(note) for note in notes if note.name == b"Android"), None),
            build_id=next((note.desc.hex() for note in notes if note[:2] == BUILD_ID), None),
            interpreter=next(map(self._string_at, interpreters), None),
            program_headers=self.heads,
            sections=tuple(name for name, _ in sections),
            rodata=next((place for name, place in sections if name == ".rodata"), None),
            textrel="DT_TEXTREL" in self.tags or bool(flags & DF_TEXTREL),
            execstack=any(head.type == PT_GNU_STACK and head.flags & PF_X for head in self.heads),
            checksum=self.checksum(),
        )

    def _require(self, position: int, size: int, contents: str) -> None:
        if position + size > self.size_bytes:
            raise HeadersTruncatedError(
                f"{contents} should be at bytes {position} to {position + size}"
            )

    def _parse(self, kind: str, position: int) -> Any:
        structure = getattr(self.structs, kind)
        self._require(position, structure.sizeof(), kind)
        return struct_parse(structure, self.stream, position)

    def _entries(self, kind: str, table: str, limit: int) -> Iterator[Any]:
        """Yield the entries of the program (ph) or section (sh) header table."""
        start, step, count = (self.head[f"e_{table}{part}"] for part in ("off", "entsize", "num"))
        size = getattr(self.structs, kind).sizeof()
        if not start or not count:
            return
        if step != size or count > limit:
            raise ValueError(f"e_{table}entsize is {step}, and e_{table}num is {count}")
        named = {"ph": "program", "sh": "section"}[table]
        self._require(start, step * count, f"the {named} header table")
        for index in range(count):
            yield struct_parse(getattr(self.structs, kind), self.stream, start + index * step)

    def _string_at(self, position: int, limit: int = MAX_STRING) -> str:
        self._require(position, 1, "a string")
        end = self.map.find(b"\0", position, position + limit)
        if end < 0:
            raise ValueError(f"the string at byte {position} has no end")
        return self.map[position:end].decode("utf-8", "backslashreplace")

    def _program_headers(self) -> Iterator[ProgramHeader]:
        for entry in self._entries("Elf_Phdr", "ph", MAX_SEGMENTS):
            values = [entry[f"p_{name}"] for name in ProgramHeader._fields[1:]]
            yield ProgramHeader(_number(entry["p_type"]), *values)

    def _sections(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the names, offsets and sizes of sections."""
        entries = self.section_headers
        if not 0 < self.head["e_shstrndx"] < len(entries):
            return
        # Section headers are last in a file, so only zeros remain of them if a download broke after
        # its space was reserved.
        if all(entry["sh_type"] == "SHT_NULL" for entry in entries):
            raise ValueError("its section header table contains only zeros")
        table = entries[self.head["e_shstrndx"]]["sh_offset"]
        for entry in entries:
            # .bss has a size, but no bytes in the file.
            if entry["sh_type"] not in ("SHT_NOBITS", "SHT_NULL"):
                self._require(entry["sh_offset"], entry["sh_size"], "a section")
            name = self._string_at(table + entry["sh_name"], MAX_SECTION_NAME)
            yield name, (entry["sh_offset"], entry["sh_size"])

    def checksum(self) -> Checksum | None:
        """Return the checksum in the SWIV section of a Hexagon library, or None if there is none.
        Signed libraries are not searched, since signing moves the section.
        """
        if _number(self.head["e_machine"]) != EM_QDSP6 or any(
            head.is_hashes for head in self.heads
        ):
            return None
        self._require_segments()
        for entry in self.section_headers:
            if entry["sh_type"] == SWIV_SECTION:
                self._require(entry["sh_offset"], entry["sh_size"], "a section")
                start = entry["sh_offset"]
                stored = self._stored_checksum(self.map[start : start + entry["sh_size"]])
                computed = self._sum_segments()
                is_stripped = stored != computed and self._was_stripped(stored)
                return Checksum(stored, computed, is_stripped)
        return None

    def _stored_checksum(self, section: bytes) -> int:
        """Return the checksum in ``section``. Raises ValueError if it contains none or the segments
        have impossible sizes.
        """
        if len(section) < SWIV_BYTES or section[:4] != SWIV_MAGIC:
            raise ValueError("its checksum section contains no checksum")
        if sum(head.memsz for head in self.loads) > MAX_MEMORY_BYTES:
            raise ValueError(f"its segments take more than {MAX_MEMORY_BYTES} bytes of memory")
        if any(head.filesz > head.memsz for head in self.loads):
            raise ValueError("a segment has more bytes in the file than in memory")
        return int.from_bytes(section[4:8], "little")

    def _was_stripped(self, stored: int) -> bool:
        """Return whether the stored sum matches if e_shoff is set to where the linker put the
        section headers: after their string table, at the next multiple of 4.
        """
        entries = self.section_headers
        if self.bits != 32 or not 0 < self.head["e_shstrndx"] < len(entries):
            return False
        names = entries[self.head["e_shstrndx"]]
        # Where the Hexagon linker puts them. The sum is the proof: it matches only if this guess is
        # right.
        place = _round_up(names["sh_offset"] + names["sh_size"], 4)
        if place >= 1 << 32 or not self.little_endian:
            return False
        return self._sum_segments(place.to_bytes(4, "little")) == stored

    def _sum_segments(self, e_shoff: bytes = b"") -> int:
        """Return the CRC-32 of the PT_LOAD segments. If ``e_shoff`` is not empty, it replaces the
        field e_shoff of the ELF32 header.
        """
        value = 0
        for head in self.loads:
            for start in range(head.offset, head.offset + head.filesz, CHUNK_BYTES):
                end = min(start + CHUNK_BYTES, head.offset + head.filesz)
                chunk = self.map[start:end]
                if e_shoff and start <= E_SHOFF and E_SHOFF + len(e_shoff) <= end:
                    at = E_SHOFF - start
                    chunk = chunk[:at] + e_shoff + chunk[at + len(e_shoff) :]
                value = zlib.crc32(chunk, value)
            # The vendor sums what is in memory, so .bss counts as zeros. The limit MAX_MEMORY_BYTES
            # bounds them.
            value = zlib.crc32(bytes(head.memsz - head.filesz), value)
        return value

    @cached_property
    def section_headers(self) -> list[Any]:
        return list(self._entries("Elf_Shdr", "sh", MAX_SECTIONS))

    @cached_property
    def tags(self) -> dict[str, list[int]]:
        """Return the values in the dynamic section, in order, for each tag."""
        tags: dict[str, list[int]] = {}
        step = self.structs.Elf_Dyn.sizeof()
        dynamic = next((head for head in self.heads if head.type == PT_DYNAMIC), None)
        if dynamic is None or not dynamic.filesz:
            return tags
        # Zeros read as DT_NULL, the end of the section: the library would seem to need nothing.
        if not any(self.map[dynamic.offset : dynamic.offset + dynamic.filesz]):
            raise ValueError("its dynamic section contains only zeros")
        for index in range(min(dynamic.filesz // step, MAX_ENTRIES)):
            entry = self._parse("Elf_Dyn", dynamic.offset + index * step)
            if entry["d_tag"] == "DT_NULL":
                return tags
            tags.setdefault(entry["d_tag"], []).append(entry["d_val"])
        raise ValueError("its dynamic section has no end")

    def _require_tables(self) -> None:
        """Raise ValueError if a table that the loader reads contains only zeros, as at the end of a
        file whose download broke after its space was reserved."""
        for start, size in TABLES:
            if start in self.tags and (length := self.tags.get(size, [0])[0]):
                place = self._offset_of(self.tags[start][0])
                self._require(place, length, f"the table {start}")
                if not any(self.map[place : place + length]):
                    raise ValueError(f"the table {start} contains only zeros")

    def _offset_of(self, address: int) -> int:
        """Return the file offset of the byte that is loaded at ``address``."""
        for head in self.loads:
            if head.vaddr <= address < head.vaddr + head.filesz:
                return address - head.vaddr + head.offset
        raise ValueError(f"no segment contains address {address:#x}")

    def _dynamic_string(self, value: int) -> str:
        if "DT_STRTAB" not in self.tags:
            raise ValueError("its dynamic section has no string table")
        return self._string_at(self._offset_of(self.tags["DT_STRTAB"][0] + value))

    def _strings(self, tag: str) -> Iterator[str]:
        return map(self._dynamic_string, self.tags.get(tag, []))

    def _search_path(self, tag: str) -> list[str]:
        return next((text.split(":") for text in self._strings(tag)), [])

    def _version_needs(self) -> Iterator[VersionNeed]:
        for entry in self._chain("Elf_Verneed", "vn_next", *self._start_of("DT_VERNEED")):
            start = entry["at"] + entry["vn_aux"]
            rows = self._chain("Elf_Vernaux", "vna_next", start, entry["vn_cnt"])
            versions = tuple(self._dynamic_string(aux["vna_name"]) for aux in rows)
            yield VersionNeed(self._dynamic_string(entry["vn_file"]), versions)

    def _version_defs(self) -> Iterator[str]:
        for entry in self._chain("Elf_Verdef", "vd_next", *self._start_of("DT_VERDEF")):
            aux = self._parse("Elf_Verdaux", entry["at"] + entry["vd_aux"])
            yield self._dynamic_string(aux["vda_name"])

    def _start_of(self, tag: str) -> tuple[int, int]:
        """Return where a tag's table starts, and its most entries: 0 if there is no table."""
        return (self._offset_of(self.tags[tag][0]), MAX_ENTRIES) if tag in self.tags else (0, 0)

    def _chain(self, kind: str, link: str, position: int, count: int) -> Iterator[Any]:
        """Yield at most ``count`` entries, the first at ``position``. The field ``link`` of an
        entry is the distance to the next in bytes; ``at`` is set to its own position.
        """
        for _ in range(count):
            self.links += 1
            # Counted over all chains of a file, since many entries may point to the same long
            # chain.
            if self.links > MAX_ENTRIES:
                raise ValueError("its symbol versions have no end")
            entry = self._parse(kind, position)
            entry["at"] = position
            yield entry
            if not entry[link]:
                return
            position += entry[link]

    def _notes(self) -> Iterator[Note]:
        order: Any = "little" if self.little_endian else "big"
        for head in self.heads:
            if head.type == PT_NOTE:
                end = head.offset + min(head.filesz, MAX_NOTE_BYTES)
                yield from parse_notes(self.map[head.offset : end], order, head.align)


def _identify(start: bytes) -> tuple[int, bool]:
    """Return (bits, is little-endian) from the first bytes of a file."""
    if start[:4] != MAGIC:
        raise ValueError("it does not start with ELF's magic number")
    for name, byte in (("EI_CLASS", start[4]), ("EI_DATA", start[5])):
        if byte not in (1, 2):
            raise ValueError(f"{name} is {byte}")
    return 32 * start[4], start[5] == 1


# Building the structures takes longer than parsing a file's headers with them, so they are cached.
# The limit bounds the memory that files with arbitrary numbers can take.
@lru_cache(maxsize=36)
def _make_structs(bits: int, little_endian: bool, *kind: str | int) -> Any:
    """Return pyelftools' structs. ``kind`` contains e_type, e_machine and EI_OSABI, as names or, if
    they have none, as numbers. If ``kind`` is empty, the structs can be used only for an ELF
    header.
    """
    structs = ELFStructs(little_endian, bits)
    structs.create_basic_structs()
    if kind:
        structs.create_advanced_structs(*kind)
    return structs


def _number(name: str | int) -> int:
    return name if isinstance(name, int) else _NUMBERS[name]


class Note(NamedTuple):
    """An ELF note; ``name`` has no trailing NULs."""

    name: bytes
    type: int
    desc: bytes


def parse_notes(blob: bytes, order: Literal["little", "big"], align: int) -> Iterator[Note]:
    """Yield the notes in ``blob``, the content of a segment with p_align ``align``. A note that
    extends past the end of ``blob`` ends the iteration.
    """
    # The gABI says 8 for ELF64, but toolchains align notes to 4 unless p_align is 8
    # (NT_GNU_PROPERTY).
    step = 8 if align == 8 else 4
    at = 0
    while at + NOTE_HEADER_BYTES <= len(blob):
        name_size, desc_size, kind = (
            int.from_bytes(blob[at + part : at + part + 4], order) for part in (0, 4, 8)
        )
        name_end = at + NOTE_HEADER_BYTES + name_size
        start = _round_up(name_end, step)
        if start + desc_size > len(blob):
            return
        name = blob[at + NOTE_HEADER_BYTES : name_end].rstrip(b"\0")
        yield Note(name, kind, blob[start : start + desc_size])
        at = _round_up(start + desc_size, step)


def _parse_android(note: Note) -> AndroidNote:
    """Return the content of .note.android.ident."""
    texts = [note.desc[at : at + 64].split(b"\0")[0] for at in (4, 68)]
    ndk, build = (text.decode("ascii", "replace") for text in texts)
    return AndroidNote(int.from_bytes(note.desc[:4], "little"), ndk, build)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
