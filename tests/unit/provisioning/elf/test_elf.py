from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.elf import loader
from provisioning.elf.facts import (
    EM_AARCH64,
    EM_QDSP6,
    EM_X86_64,
    PT_DYNAMIC,
    PT_LOAD,
    AndroidNote,
    Defect,
    ElfError,
    ElfFacts,
    VersionNeed,
)
from provisioning.elf.qnn_build import QnnBuild, find_headers_version, find_qnn_build, search_build
from provisioning.elf.reader import BUILD_ID, parse_notes, read_elf
from provisioning.errors import ExitCode

LIBRARIES = Path(__file__).parents[3] / "artifacts" / "elf"


def test_the_facts_of_an_x86_library_are_read() -> None:
    facts = read_elf(LIBRARIES / "libx86.so")
    assert (facts.bits, facts.little_endian, facts.machine) == (64, True, EM_X86_64)
    assert (facts.path.name, facts.interpreter) == ("libx86.so", None)
    assert (facts.soname, facts.needed) == ("libx86.so", ("libneeded.so",))
    assert facts.version_needs == (VersionNeed("libneeded.so", ("GLIBC_2.9",)),)
    assert facts.highest_need("GLIBC") == (2, 9)
    assert facts.highest_need("GLIBCXX") is None
    assert len(facts.build_id or "") == 40
    assert facts.stripped
    assert not facts.execstack
    assert not facts.textrel
    assert ".dynsym" in facts.sections


def edit_library(path: Path, tag: int, value: int) -> ElfFacts:
    """The facts of libx86.so with another entry instead of DT_SYMENT, which nobody reads."""
    data = bytearray((LIBRARIES / "libx86.so").read_bytes())
    heads = read_elf(LIBRARIES / "libx86.so").program_headers
    (dynamic,) = (head for head in heads if head.type == PT_DYNAMIC)
    entries = range(dynamic.offset, dynamic.offset + dynamic.filesz, 16)
    tags = {data[at]: at for at in entries}
    needed = struct.unpack_from("<Q", data, tags[1] + 8)[0]  # DT_NEEDED
    struct.pack_into("<QQ", data, tags[11], tag, needed if value < 0 else value)
    path.write_bytes(data)
    return read_elf(path)


@pytest.mark.parametrize(
    ("tag", "value", "moves"), [(22, 0, True), (30, 4, True), (30, 8, False), (21, 0, False)]
)
def test_text_relocations_are_found_by_dt_textrel_or_df_textrel(
    tmp_path: Path, tag: int, value: int, moves: bool
) -> None:
    assert edit_library(tmp_path / "lib.so", tag, value).textrel is moves


DYNAMIC = 64 + 56 * 5  # its program header in libx86.so
NAMES, LARGE = 1592 + 64, 1 << 40  # the first section header that is none of zeros


@pytest.mark.parametrize(
    ("at", "size", "value", "why"),
    [
        (54, 2, 0, "e_phentsize is 0, and e_phnum is 10"),
        (56, 2, 257, "e_phentsize is 56, and e_phnum is 257"),
        (56, 2, 256, "the program header table should be at bytes 64 to 14400"),
        (60, 2, 16385, "e_shentsize is 64, and e_shnum is 16385"),
        (64 + 8, 8, LARGE, f"segment 0 should be at bytes {LARGE} to {LARGE + 560}"),
        (NAMES, 4, LARGE // 256 - 1, "a string should be at bytes 4294968710 to"),
        (NAMES + 24, 8, LARGE, f"a section should be at bytes {LARGE} to"),
        (DYNAMIC + 32, 8, 16, "its dynamic section has no end"),
    ],
)
def test_impossible_header_is_damage(
    tmp_path: Path, at: int, size: int, value: int, why: str
) -> None:
    data = bytearray((LIBRARIES / "libx86.so").read_bytes())
    data[at : at + size] = value.to_bytes(size, "little")
    (tmp_path / "lib.so").write_bytes(data)
    with pytest.raises(ElfError) as caught:
        read_elf(tmp_path / "lib.so")
    assert caught.value.why.startswith(why)
    assert (caught.value.defect is Defect.TRUNCATED) == (" should be at bytes " in why)


def test_an_address_outside_every_segment_is_damage(tmp_path: Path) -> None:
    for value in (1060, 2_000_000):  # of DT_RUNPATH in the table of strings: behind its segment
        with pytest.raises(ElfError, match="no segment contains address"):
            edit_library(tmp_path / "lib.so", 29, value)


SEARCHED = ("$ORIGIN/..", "/home/builder/out")
FACTS: dict[str, dict[str, object]] = {
    "aarch64": {"machine": EM_AARCH64, "runpath": SEARCHED, "rpath": (), "load_align": 65536},
    "hexagon": {"bits": 32, "machine": EM_QDSP6, "flags": 0x69, "needed": ("libneeded.so",)},
    "android": {"android": AndroidNote(30, "r26c", "11394342"), "load_align": 4096},
    "android16k": {"load_align": 16384},
    "bigendian": {"bits": 64, "little_endian": False, "machine": EM_AARCH64, "load_align": 4096},
    "execstack": {"execstack": True},
}


@pytest.mark.parametrize("name", FACTS)
def test_the_facts_of_each_sample_library_are_read(name: str) -> None:
    facts = read_elf(LIBRARIES / f"lib{name}.so")
    assert {key: getattr(facts, key) for key in FACTS[name]} == FACTS[name]


def test_without_section_headers_the_facts_are_the_same(tmp_path: Path) -> None:
    data = bytearray((LIBRARIES / "libx86.so").read_bytes())
    data[0x28:0x30] = bytes(8)  # e_shoff
    (tmp_path / "libx86.so").write_bytes(data)
    complete, bare = read_elf(LIBRARIES / "libx86.so"), read_elf(tmp_path / "libx86.so")
    assert bare.sections == ()
    assert (bare.needed, bare.version_needs, bare.build_id) == (
        complete.needed,
        complete.version_needs,
        complete.build_id,
    )


@pytest.mark.parametrize(
    ("content", "defect", "why"),
    [
        (b"", Defect.EMPTY, None),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", Defect.LFS_POINTER, None),
        (b"\n<!DOCTYPE html><title>Sign in</title>", Defect.HTML, None),
        (b"\xef\xbb\xbf<!DOCTYPE html><title>Sign in</title>", Defect.HTML, None),
        (b'<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml">', Defect.HTML, None),
        (
            b"PK\x03\x04 an archive of more",
            Defect.NOT_ELF,
            r"it starts with 'PK\x03\x04 an archive '",
        ),
        (
            b"MZ\x90\x00\x03\xff",
            Defect.NOT_ELF,
            r"it is a file of Windows: it starts with 'MZ\x90\x00\x03\xff'",
        ),
        (b"\x7fELF\x02\x01\x01", Defect.TRUNCATED, None),
        (b"\x7fELF\x07" + bytes(100), Defect.CORRUPT, None),
    ],
)
def test_file_that_is_not_elf_has_its_kind(
    tmp_path: Path, content: bytes, defect: Defect, why: str | None
) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    with pytest.raises(ElfError) as caught:
        read_elf(path)
    assert (caught.value.path, caught.value.defect) == (path, defect)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert caught.value.fix
    assert why in (None, caught.value.why)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("dynamic", "its dynamic section contains only zeros"),
        ("DT_STRTAB", "the table DT_STRTAB contains only zeros"),
        ("DT_JMPREL", "the table DT_JMPREL contains only zeros"),
        ("sections", "its section header table contains only zeros"),
        ("the end", "its dynamic section contains only zeros"),
    ],
)
def test_an_elf_table_of_only_zeros_is_damage(part: str, why: str, tmp_path: Path) -> None:
    """A download that broke off after its space was reserved looks like this."""
    data = bytearray((LIBRARIES / "libx86.so").read_bytes())
    facts = read_elf(LIBRARIES / "libx86.so")
    head = next(header for header in facts.program_headers if header.type == PT_DYNAMIC)
    rows = struct.iter_unpack("<QQ", data[head.offset : head.offset + head.filesz])
    tags = {tag: value for tag, value in rows if tag}
    shoff = struct.unpack_from("<Q", data, 0x28)[0]
    start, size = {
        "dynamic": (head.offset, head.filesz),
        "DT_STRTAB": (find_offset(facts, tags[5]), tags[10]),
        "DT_JMPREL": (find_offset(facts, tags[23]), tags[2]),
        "sections": (shoff, len(data) - shoff),
        "the end": (head.offset, len(data) - head.offset),
    }[part]
    data[start : start + size] = bytes(size)
    (tmp_path / "a.so").write_bytes(data)
    with pytest.raises(ElfError) as caught:
        read_elf(tmp_path / "a.so")
    assert (caught.value.defect, caught.value.why) == (Defect.CORRUPT, why)


def find_offset(facts: ElfFacts, address: int) -> int:
    (head,) = (
        header
        for header in facts.program_headers
        if header.type == PT_LOAD and header.vaddr <= address < header.vaddr + header.filesz
    )
    return address - head.vaddr + head.offset


def test_a_missing_file_and_a_directory_are_errors_of_the_tree(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path / "no.so", "No such file or directory"),
        (tmp_path, "it is a directory"),
    ):
        with pytest.raises(ElfError) as caught:
            read_elf(path)
        assert (caught.value.path, caught.value.defect) == (path, Defect.UNREADABLE)
        assert caught.value.why == why
        with pytest.raises(ElfError) as caught:
            find_qnn_build(path)
        assert (caught.value.path, caught.value.defect) == (path, Defect.UNREADABLE)
        assert caught.value.why == why


def test_elf_version_needs_that_point_in_a_circle_are_an_error(tmp_path: Path) -> None:
    data = bytearray((LIBRARIES / "libx86.so").read_bytes())
    facts = read_elf(LIBRARIES / "libx86.so")
    low, high = next((h.offset, h.filesz) for h in facts.program_headers if h.type == PT_LOAD)
    verneed = data.index(b"\x01\x00\x01\x00", low, high)  # vn_version 1, vn_cnt 1
    data[verneed + 2 : verneed + 4] = b"\xff\xff"
    data[verneed + 16 + 12 : verneed + 16 + 16] = (2**32 - 1).to_bytes(4, "little")
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    with pytest.raises(ElfError):
        read_elf(path)


def test_the_qnn_version_is_found_in_the_bytes_of_a_library(tmp_path: Path) -> None:
    build = QnnBuild("2.49.40", "260810104044", "v2.49.40.260810104044")
    assert find_qnn_build(LIBRARIES / "libhexagon.so") == build
    path = tmp_path / "libQnnSystem.so"
    shutil.copy(LIBRARIES / "make.sh", path)
    assert find_qnn_build(path) is None
    path.write_bytes(b"")
    assert find_qnn_build(path) is None


@pytest.mark.parametrize(
    ("data", "build"),
    [
        (b"\0hexnn_ver_v2.49.40.260810104044.\0", ("2.49.40", "260810104044")),
        (b"v2.37.0.250724175447_124859\0", ("2.37.0", "250724175447")),
        (b"\0AISW_VERSION: 2.49.40\0", ("2.49.40", None)),
        (b"\x0040\x00260810104044\0", (None, "260810104044")),
        (b"\x009260810104044\0", None),
        (b"260810104044\0", None),
        (b"v2.49.40.2608101040441", None),
    ],
)
def test_each_form_of_a_qnn_build_string_is_recognised(
    data: bytes, build: tuple[str | None, str | None] | None, tmp_path: Path
) -> None:
    qnn_build = search_build(data)
    assert (qnn_build[:2] if qnn_build else None) == build
    assert qnn_build is None or qnn_build.text.encode() in data
    path = tmp_path / "libQnnSystem.so"
    path.write_bytes(data)
    assert find_qnn_build(path) == qnn_build
    is_whole = qnn_build is not None and None not in qnn_build[:2]
    assert find_qnn_build(path.rename(tmp_path / "libother.so")) == (
        qnn_build if is_whole else None
    )


@pytest.mark.parametrize(
    ("flags", "version"), [(0x73, 0x73), (0x8071, 0x71), (0x479, 0x79), (0x173, 0x173)]
)
def test_the_hexagon_version_is_in_ten_bits_of_the_flags(flags: int, version: int) -> None:
    facts = replace(read_elf(LIBRARIES / "libhexagon.so"), flags=flags)
    assert facts.hexagon_version == version


@pytest.mark.parametrize(("align", "step"), [(4, 4), (8, 8), (1, 4)])
def test_elf_notes_are_read_with_the_alignment_of_their_segment(align: int, step: int) -> None:
    def note(name: bytes, desc: bytes, kind: int = 3) -> bytes:
        head = b"".join(number.to_bytes(4, "little") for number in (len(name), len(desc), kind))
        record = (head + name).ljust(-(-(12 + len(name)) // step) * step, b"\0") + desc
        return record.ljust(-(-len(record) // step) * step, b"\0")

    blob = note(b"Linux\0", b"x") + note(b"GNU\0", b"y", 1) + note(b"GNU\0", b"\xab\xcd")
    notes = list(parse_notes(blob, "little", align))
    assert [note.desc for note in notes if note[:2] == BUILD_ID] == [b"\xab\xcd"]


def test_the_highest_needed_symbol_version_counts() -> None:
    needs = (VersionNeed("libc.so.6", ("GLIBC_2.4", "GLIBC_2.36", "GLIBC_2.17")),)
    facts = replace(read_elf(LIBRARIES / "libx86.so"), version_needs=needs)
    assert facts.highest_need("GLIBC") == (2, 36)
    assert facts.highest_need("GLIBCXX") is None
    odd = ("GLIBC_2.4", "GLIBC_PRIVATE", "GLIBC_3.x", "GLIBC_", "OTHER_GLIBC_9")
    odd_facts = replace(facts, version_needs=(VersionNeed("libc.so.6", odd),))
    assert odd_facts.highest_need("GLIBC") == (2, 4)
    assert replace(facts, version_defs=("A_1.10", "A_1.9")).highest_def("A") == (1, 10)
    assert replace(facts, version_defs=("A_B_1.2", "A_B")).highest_def("A_B") == (1, 2)


def test_two_qnn_builds_agree_if_the_parts_that_both_have_are_equal() -> None:
    complete = QnnBuild("2.49.40", "260810104044", "")
    assert complete.agrees_with(QnnBuild("2.49.40", None, ""))
    assert complete.agrees_with(QnnBuild(None, "260810104044", ""))
    assert not complete.agrees_with(QnnBuild("2.37.0", None, ""))
    assert not complete.agrees_with(QnnBuild("2.49.40", "260810104045", ""))


def test_the_qnn_build_is_found_in_an_8_gib_file_without_copying_it(tmp_path: Path) -> None:
    path = tmp_path / "libQnnHtp.so"
    with path.open("wb") as file:
        file.truncate(1 << 33)
        file.seek(1 << 20)
        file.write(b"v2.49.40.260810104044\0")
    assert find_qnn_build(path) is not None


# -- what few libraries have --------------------------------------------------------------------


def test_the_loader_looks_into_its_cache_and_then_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("cached/liba.so", "default/liba.so", "default/libb.so", "x86_64/libc.so")
    for name in (*names, "cached/libz.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    rows = [
        f"{tmp_path}/{name}".encode()
        for name in ("cached/liba.so", "default/liba.so", "gone/libb.so", "cached/libz.so")
    ]
    (tmp_path / "cache").write_bytes(b"ld.so\0liba.so\0" + b"\0".join(rows) + b"\0\xff")
    monkeypatch.setattr(loader, "LOADER_CACHE", tmp_path / "cache")
    monkeypatch.setattr(loader.platform, "machine", lambda: "x86_64")
    directories = (f"{tmp_path}/{{machine}}", f"{tmp_path}/default")
    monkeypatch.setattr(loader, "DEFAULT_DIRECTORIES", directories)
    names_in_order = ["libz.so", "libb.so", "liba.so", "libc.so", "libd.so", "liba.so"]
    libraries = loader.find_libraries(names_in_order)
    assert libraries == {
        "libz.so": f"{tmp_path}/cached/libz.so",
        "liba.so": f"{tmp_path}/cached/liba.so",
        "libb.so": f"{tmp_path}/default/libb.so",
        "libc.so": f"{tmp_path}/x86_64/libc.so",
        "libd.so": None,
    }
    assert list(libraries) == sorted(libraries)
    monkeypatch.setattr(loader, "LOADER_CACHE", tmp_path / "gone")
    assert loader.find_libraries(["liba.so"]) == {"liba.so": f"{tmp_path}/default/liba.so"}
    assert loader.find_libraries(iter(())) == {}


API = b"\x48\xb8\x05\0\0\0%c\0\0\0\x31\xd2\xc3"


@pytest.mark.parametrize(
    ("minors", "version"),
    [([], ""), ([37], "2.37"), ([37, 37], "2.37"), ([37, 40], ""), ([10], "2.10")],
)
def test_the_qnn_header_version_of_an_adaptor_is_read_from_its_bytes(
    tmp_path: Path, minors: list[int], version: str
) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(b"code" + b"more".join(API % minor for minor in minors) + API[:-1] % 9)
    assert find_headers_version(file) == version
