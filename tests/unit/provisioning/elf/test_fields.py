"""Every field of a library's headers, set to zero and to its largest value: what is read then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from provisioning.elf.facts import PT_DYNAMIC, ElfError, ElfFacts, ProgramHeader
from provisioning.elf.reader import parse_checksum, parse_headers, read_elf
from tests.stand_ins.snapshots import check_snapshot

LIBRARIES = Path(__file__).parents[3] / "artifacts" / "elf"
SNAPSHOTS = Path(__file__).with_name("snapshots")
# Name and bytes of each field, 32 and 64 bit: the gABI's Elf32_Ehdr, Elf64_Ehdr and so on.
HEAD = (
    *(("ident", 16, 16), ("type", 2, 2), ("machine", 2, 2), ("version", 4, 4), ("entry", 4, 8)),
    *(("phoff", 4, 8), ("shoff", 4, 8), ("flags", 4, 4), ("ehsize", 2, 2), ("phentsize", 2, 2)),
    *(("phnum", 2, 2), ("shentsize", 2, 2), ("shnum", 2, 2), ("shstrndx", 2, 2)),
)
SEGMENT = {
    32: "type 4 offset 4 vaddr 4 paddr 4 filesz 4 memsz 4 flags 4 align 4",
    64: "type 4 flags 4 offset 8 vaddr 8 paddr 8 filesz 8 memsz 8 align 8",
}
SECTION = {
    32: "name 4 type 4 flags 4 addr 4 offset 4 size 4 link 4 info 4 addralign 4 entsize 4",
    64: "name 4 type 4 flags 8 addr 8 offset 8 size 8 link 4 info 4 addralign 8 entsize 8",
}


def split(text: str) -> list[tuple[str, int]]:
    words = text.split()
    return [(name, int(size)) for name, size in zip(words[::2], words[1::2], strict=True)]


def list_fields(data: bytes, facts: ElfFacts) -> Iterator[tuple[str, int, int]]:
    """Name, position and size of the fields of all headers and dynamic entries."""

    def number(name: str) -> int:
        at, size = places[name]
        return int.from_bytes(data[at : at + size], "little" if facts.little_endian else "big")

    at, places = 0, dict[str, tuple[int, int]]()
    for name, small, large in HEAD:
        places[name] = at, small if facts.bits == 32 else large
        at += places[name][1]
        if name != "ident":
            yield f"header {name}", *places[name]
    tables = (("segment", "ph", SEGMENT), ("section", "sh", SECTION))
    for kind, prefix, rows in tables:
        start, step = number(f"{prefix}off"), number(f"{prefix}entsize")
        for index in range(number(f"{prefix}num")):
            at = start + index * step
            for name, size in split(rows[facts.bits]):
                yield f"{kind} {index} {name}", at, size
                at += size
    dynamic = next((one for one in facts.program_headers if one.type == PT_DYNAMIC), None)
    size = facts.bits // 8
    for index in range(dynamic.filesz // (2 * size)) if dynamic else ():
        at = dynamic.offset + index * 2 * size if dynamic else 0
        yield f"dynamic {index} tag", at, size
        yield f"dynamic {index} value", at + size, size


def show(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], ProgramHeader):
        return " ".join("/".join(f"{part:x}" for part in one[:-1]) for one in value)
    return str(value)


def describe(path: Path, whole: ElfFacts) -> str:
    """What differs, or why it is refused."""
    try:
        facts = read_elf(path)
    except ElfError as error:
        return f"{error.defect.name}: {error.why or error.what}".replace(str(path), "FILE")
    names = [one.name for one in fields(facts) if one.name != "path"]
    changed = {name for name in names if getattr(facts, name) != getattr(whole, name)}
    changed -= (
        {"program_headers"} if len(facts.program_headers) == len(whole.program_headers) else set()
    )
    return ", ".join(f"{name} {show(getattr(facts, name))}" for name in names if name in changed)


@pytest.mark.parametrize("kind", ["header", "segment", "section", "dynamic"])
@pytest.mark.parametrize("name", ["libx86.so", "libhexagon.so"])
def test_every_field_is_checked_or_changes_what_is_read(
    name: str, kind: str, tmp_path: Path
) -> None:
    whole = read_elf(LIBRARIES / name)
    data = (LIBRARIES / name).read_bytes()
    path, lines = tmp_path / name, []
    for field, at, size in list_fields(data, whole):
        for value in (0, 255) if field.startswith(kind) else ():
            path.write_bytes(data[:at] + bytes([value]) * size + data[at + size :])
            if found := describe(path, whole):
                lines.append(f"{field} = {value:#x}: {found}")
    check_snapshot(SNAPSHOTS / f"{name}.{kind}.txt", "".join(f"{line}\n" for line in lines))


def why_not(parse: Callable[[bytes], object], data: bytes) -> str:
    """Why a parser refuses bytes; empty if it does not."""
    try:
        parse(data)
    except ValueError as error:
        return f"{parse.__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", ["libx86.so", "libhexagon.so"])
def test_a_library_that_ends_early_tells_what_is_missing(name: str, tmp_path: Path) -> None:
    data = (LIBRARIES / name).read_bytes()
    path, found = tmp_path / name, dict[str, int]()
    for size in (*range(0, 1024, 8), *range(1024, len(data), 64)):
        path.write_bytes(data[:size])
        with pytest.raises(ElfError) as caught:
            read_elf(path)
        found.setdefault(str(caught.value.why or caught.value.defect.name), size)
        for parse in (parse_headers, parse_checksum):
            found.setdefault(why_not(parse, data[:size]), size)
    found.pop("")
    lines = "".join(f"from {size} bytes: {text}\n" for text, size in found.items())
    check_snapshot(SNAPSHOTS / f"{name}.cut.txt", lines)
