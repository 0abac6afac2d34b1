"""The classes that hold what provisioning.elf.reader reads from an ELF file.

Machines, types and flags are stored as the numbers of the ELF specification. Policies use the same
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from provisioning.errors import UnfitError

EM_X86_64, EM_QDSP6, EM_AARCH64 = 62, 164, 183
TYPE_HASHES = 2
PT_NULL, PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE = 0, 1, 2, 3, 4
PT_GNU_STACK = 0x6474E551
PF_X = 1
EF_HEXAGON_MACH = 0x3FF

MACHINE_NAMES = {
    3: "x86",
    40: "arm",
    EM_X86_64: "x86-64",
    EM_QDSP6: "hexagon",
    EM_AARCH64: "aarch64",
    243: "riscv",
}


def name_machine(machine: int) -> str:
    """Return a machine's name: ``x86-64``, ``aarch64``, ``hexagon``, or ``e_machine 8`` for an
    unknown one.
    """
    return MACHINE_NAMES.get(machine, f"e_machine {machine}")


class Defect(str, Enum):
    """The reasons why a file cannot be read as ELF."""

    UNREADABLE = "unreadable"
    EMPTY = "empty"
    LFS_POINTER = "an LFS pointer"
    HTML = "an HTML page"
    NOT_ELF = "not ELF"
    APPLE_DOUBLE = "a file of macOS, not a library"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"


class ElfError(UnfitError):
    """A file that should be ELF but cannot be read as ELF; ``defect`` states why."""

    def __init__(self, path: Path, defect: Defect, why: str = "") -> None:
        super().__init__(f"{path} is {defect.value}", why=why, fix=_FIXES.get(defect, _FETCH_AGAIN))
        self.path = path
        self.defect = defect


_FETCH_AGAIN = "download or build it again"
_FIXES = {
    Defect.UNREADABLE: "correct the permissions of the file",
    Defect.LFS_POINTER: "run 'git lfs pull' in the checkout that the file came from",
    Defect.APPLE_DOUBLE: "remove it: it is harmless, and the library is the file next to it",
    Defect.HTML: "a server answered with a page instead of the file; " + _FETCH_AGAIN,
}


class ProgramHeader(NamedTuple):
    """An entry of the program header table; sizes and offsets are in bytes."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int

    @property
    def vendor_type(self) -> int:
        """Qualcomm's segment type, bits 24 to 26 of p_flags."""
        return (self.flags >> 24) & 7

    @property
    def is_hashes(self) -> bool:
        """Whether it is the hash segment of a signed image."""
        return self.type == PT_NULL and self.vendor_type == TYPE_HASHES


class VersionNeed(NamedTuple):
    """Symbol versions needed from one library: ``("libc.so.6", ("GLIBC_2.17", ...))``."""

    library: str
    versions: tuple[str, ...]


class ElfHeaders(NamedTuple):
    """The ELF header and the program headers, which end at offset ``end`` of the file."""

    machine: int
    entry: int
    flags: int
    end: int
    program_headers: tuple[ProgramHeader, ...]


class Checksum(NamedTuple):
    """The CRC-32 stored in a Hexagon library (section SWIV), and the one computed from the
    library's segments.

    ``is_stripped`` is true if the stored CRC-32 matches the library as it was before it was
    stripped.
    """

    stored: int
    computed: int
    is_stripped: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether a byte was changed after the library was built."""
        return self.stored != self.computed

    def describe(self) -> str:
        """Return both checksums as text."""
        if self.is_stripped:
            return (
                f"its checksum (SWIV) {self.stored:08x} matches the library before it was stripped"
            )
        return f"its checksum (SWIV) is {self.stored:08x}, but its content has {self.computed:08x}"


class Genuine(str, Enum):
    """The possible results of comparing a file with a catalog or the list of genuine skels."""

    GENUINE = "genuine"
    NOT_COVERED = "not covered"
    FORGED = "forged"


class Proof(NamedTuple):
    """What a catalog, or the list of genuine skels, proves about a file. ``catalog`` is the name of
    the catalog or list, ``why`` the reason if the file is not genuine, and ``signed`` the time of
    the catalog's signature.

    ``listed`` is the SHA-256 that is listed for a file of this name, '' if none is.
    """

    outcome: Genuine
    catalog: str
    why: str = ""
    signed: datetime | None = None
    listed: str = ""

    def describe(self) -> str:
        """Return the proof as text."""
        if self.outcome is Genuine.GENUINE:
            date = f", signed on {self.signed:%Y-%m-%d}" if self.signed else ""
            return f"genuine according to {self.catalog}{date}"
        by = " by" if self.outcome is Genuine.NOT_COVERED else ","
        return f"{self.outcome.value}{by} {self.catalog}: {self.why}"


class AndroidNote(NamedTuple):
    """The note .note.android.ident: API level, NDK release (``r26c``) and build (``11394342``)."""

    api_level: int
    ndk: str
    build: str


@dataclass(frozen=True)
class ElfFacts:
    """What one ELF file contains. ``machine``, ``type`` and ``flags`` are e_machine, e_type and
    e_flags.

    ``rpath`` and ``runpath`` are split at colons. ``execstack`` is true if PT_GNU_STACK requires an
    executable stack. ``rodata`` is the offset and size of .rodata. ``checksum`` is
    None if the file has no checksum; it is read only from unsigned Hexagon libraries.
    """

    path: Path
    size_bytes: int
    bits: int
    little_endian: bool
    machine: int
    type: int
    flags: int
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    version_needs: tuple[VersionNeed, ...] = ()
    version_defs: tuple[str, ...] = ()
    android: AndroidNote | None = None
    build_id: str | None = None
    interpreter: str | None = None
    program_headers: tuple[ProgramHeader, ...] = field(default=(), repr=False)
    sections: tuple[str, ...] = field(default=(), repr=False)
    rodata: tuple[int, int] | None = None
    textrel: bool = False
    execstack: bool = False
    checksum: Checksum | None = None

    @property
    def machine_name(self) -> str:
        """The name of e_machine."""
        return name_machine(self.machine)

    @property
    def hexagon_version(self) -> int:
        """The architecture in e_flags: 0x75 for V75."""
        return self.flags & EF_HEXAGON_MACH

    @property
    def search_path(self) -> tuple[str, ...]:
        """The entries of RPATH and RUNPATH."""
        return (*self.rpath, *self.runpath)

    @property
    def stripped(self) -> bool:
        """Whether there is no symbol table (.symtab)."""
        return ".symtab" not in self.sections

    @property
    def load_align(self) -> int:
        """The smallest alignment of a LOAD segment in bytes, 0 if there is no LOAD segment."""
        return min((head.align for head in self.program_headers if head.type == PT_LOAD), default=0)

    def highest_def(self, prefix: str) -> tuple[int, ...] | None:
        """Return the highest version of the family ``prefix`` that the file defines, such as
        (3, 4, 30) for ``GLIBCXX``; None if it defines none.
        """
        return _highest(self.version_defs, prefix)

    def highest_need(self, prefix: str) -> tuple[int, ...] | None:
        """Return the highest version of the family ``prefix`` that the file needs, such as (2, 34)
        for ``GLIBC``; None if it needs none.
        """
        versions = (version for need in self.version_needs for version in need.versions)
        return _highest(versions, prefix)


def _highest(versions: Iterable[str], prefix: str) -> tuple[int, ...] | None:
    """Return (2, 17) for ``GLIBC_2.17``; versions such as ``GLIBC_PRIVATE`` are ignored."""
    numbers = []
    for version in versions:
        family, _, number = version.rpartition("_")
        parts = number.split(".")
        if family == prefix and all(map(str.isdecimal, parts)):
            numbers.append(tuple(map(int, parts)))
    return max(numbers, default=None)
