"""Notes of an ELF file: its build ID, and what the NDK says of itself.

The layout of .note.android.ident is that of the NDK's crtbrand: API level (4 bytes), release and
build (64 bytes each, NUL-padded).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from provisioning.elf.facts import AndroidNote

HEADER_BYTES = 12
NT_GNU_BUILD_ID = 3


class Note(NamedTuple):
    """One note; ``name`` is without its NULs."""

    name: bytes
    type: int
    desc: bytes


def parse_notes(blob: bytes, order: Literal["little", "big"], align: int) -> Iterator[Note]:
    """The notes of one segment, whose p_align is ``align``; one that overruns it ends them."""
    step = 8 if align == 8 else 4
    at = 0
    while at + HEADER_BYTES <= len(blob):
        name_size, desc_size, kind = (
            int.from_bytes(blob[at + part : at + part + 4], order) for part in (0, 4, 8)
        )
        name_end = at + HEADER_BYTES + name_size
        start = _round_up(name_end, step)
        if start + desc_size > len(blob):
            return
        name = blob[at + HEADER_BYTES : name_end].rstrip(b"\0")
        yield Note(name, kind, blob[start : start + desc_size])
        at = _round_up(start + desc_size, step)


def find_build_id(notes: Iterable[Note]) -> str | None:
    """The GNU build ID in hexadecimal."""
    for note in notes:
        if note.name == b"GNU" and note.type == NT_GNU_BUILD_ID:
            return note.desc.hex()
    return None


def find_android(notes: Iterable[Note]) -> AndroidNote | None:
    """What .note.android.ident says."""
    for note in notes:
        if note.name == b"Android":
            texts = [note.desc[at : at + 64].split(b"\0")[0] for at in (4, 68)]
            ndk, build = (text.decode("ascii", "replace") for text in texts)
            return AndroidNote(int.from_bytes(note.desc[:4], "little"), ndk, build)
    return None


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
