"""Lowered programs and context binaries: what they were compiled for, and cut ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from provisioning.doctor.survey.tree import survey_tree
from provisioning.elf.programs import (
    Target,
    find_context_damage,
    find_misplaced,
    find_program_damage,
    find_targets,
)
from tests.stand_ins import lowered

TEXT = b"soc_type=SM8650;arch=75;unroll=1;vtcm_size=8388608;\0v2.49.40.260810104044\0"

SOCS = [(b"SM8750", 79), (b"QCM6490", 68), (b"SM8650", 75), (b"QCS9100", 73), (b"SA8295", 68)]


def make_context(text: bytes = TEXT) -> bytes:
    head = struct.pack(">IIII", 2, 3, 0, 1) + bytes(8) + struct.pack("<QQ", 64, len(text))
    return head.ljust(64, b"\0") + text


def make_program(segment: bytes = TEXT, *, is_short: bool = False) -> bytes:
    """With the extended header, or the shorter one of old programs, which has no segments' size."""
    length, base = (24, 0) if is_short else (32, 64)
    size = 64 + len(segment) if is_short else 60
    head = b"\x3c\0\0\0ET12eh00" + struct.pack("<IQQ", length, size, base)
    return (head + struct.pack("<Q", 0 if is_short else len(segment))).ljust(64, b"\0") + segment


def make_segmented(start: int, size: int = 64) -> bytes:
    """A program of 512 bytes whose flatbuffer lists two segments, ``start`` counted from 256."""
    program = bytearray(512)
    struct.pack_into("<I4s4sIQQQ", program, 0, 80, b"ET12", b"eh00", 32, 160, 256, 256)
    struct.pack_into("<7H", program, 64, 14, 8, 0, 0, 0, 0, 4)  # of Program's fields, the fifth
    struct.pack_into("<iI", program, 80, 16, 4)
    struct.pack_into("<III", program, 88, 2, 28, 44)
    struct.pack_into("<4H", program, 104, 8, 20, 4, 12)
    struct.pack_into("<iQQ", program, 120, 16, 0, 64)
    struct.pack_into("<iQQ", program, 140, 36, start, size)
    return bytes(program)


PROGRAMS = {"now": make_program(), "before": make_program(is_short=True)}


def test_the_target_socs_of_a_context_binary_are_read() -> None:
    assert find_targets(make_context()) == (Target("SM8650", 75, 8),)
    assert find_targets(b"soc_type=SM8650;arch=75;") == ()
    large = b"soc_type=X;arch=100;x=1;vtcm_size=67108864;"
    assert find_targets(large * 2) == (Target("X", 100, 64),)
    several = [
        b"soc_type=%s;arch=%d;x=1;vtcm_size=8388608;" % soc_and_arch for soc_and_arch in SOCS
    ]
    assert [target.soc for target in find_targets(b"".join(several))] == sorted(
        soc.decode() for soc, _ in SOCS
    )


def test_a_context_of_another_length_than_declared_is_damaged() -> None:
    data = make_context()
    assert not find_context_damage(data)
    for size in range(len(data)):
        assert find_context_damage(data[:size])
    assert find_context_damage(data + b"\0")


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_shorter_than_it_declares_is_damaged(kind: str) -> None:
    data = PROGRAMS[kind]
    assert not find_program_damage(data)
    for size in range(len(data)):
        assert find_program_damage(data[:size])
    assert not find_program_damage(b"\x3c\0\0\0ET12".ljust(64, b"\0"))


def test_a_program_cut_off_after_its_header_but_before_its_segments_end_is_damaged() -> None:
    head = b"\x3c\0\0\0ET12eh00" + struct.pack("<IQQQ", 32, 30, 36, 10)
    assert find_program_damage(head) == "is cut short: it has 40 of 46 bytes"
    assert not find_program_damage(head + bytes(6))
    assert find_program_damage(head[:-1]) == ""  # of whose segments it does not tell


def test_segments_of_a_program_that_cannot_be_mapped_are_found() -> None:
    assert not find_misplaced(make_segmented(128))
    assert "byte 356, not at a multiple of 128" in find_misplaced(make_segmented(100))
    assert "ends at byte 584" in find_misplaced(make_segmented(128, 200))
    assert "ends at" in find_misplaced(make_segmented(128, (1 << 32) + 64))
    inside = bytearray(make_segmented(128))
    inside[197:205] = make_context()[:8]  # as four-byte numbers look from their second byte on
    assert not find_misplaced(bytes(inside))
    inside[208:216] = make_context()[:8]
    assert "in its flatbuffer" in find_misplaced(bytes(inside))
    inline = b"\x3c\0\0\0ET12".ljust(64, b"\0")
    assert not find_misplaced(inline)
    assert "in its flatbuffer" in find_misplaced(inline + make_context())
    assert "cannot be read" in find_misplaced(b"\xff" * 4 + make_segmented(128)[4:])


def test_a_survey_finds_programs_with_misplaced_segments(tmp_path: Path) -> None:
    for name, start in (("right.pte", 128), ("wrong.pte", 100)):
        (tmp_path / name).write_bytes(make_segmented(start))
    (tmp_path / "cut.pte").write_bytes(make_segmented(100)[:-1])  # which is told instead
    tree = survey_tree(tmp_path)
    assert {program.name for program in tree.lowered if program.misplaced} == {"wrong.pte"}


def test_a_survey_lists_programs_with_their_damage(tmp_path: Path) -> None:
    files = {
        "whole.pte": make_program(),
        "cut.pte": make_program()[:-1],
        "whole.bin": make_context(),
        "cut.bin": make_context()[:70],
        "empty.bin": b"",
        "cut-package.bin": b"PK\3\4" + make_context(),
        "other.bin": b"other" + TEXT,
        "weights.bin": b"weights",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    programs = {program.name: program for program in survey_tree(tmp_path).lowered}
    assert programs.keys() == files.keys() - {"weights.bin"}
    damaged = {name for name, program in programs.items() if program.defect}
    assert damaged == {"cut.pte", "cut.bin", "empty.bin", "cut-package.bin"}
    assert (
        programs["whole.bin"].targets == programs["whole.pte"].targets == (Target("SM8650", 75, 8),)
    )


def test_a_survey_reads_targets_that_only_the_context_description_names(tmp_path: Path) -> None:
    """SDK 2.37 writes the options of a program in several pieces."""
    binary = lowered.make_binary().replace(b"soc_type=", b"soc_kind=")
    (tmp_path / "context.bin").write_bytes(binary)
    (tmp_path / "model.pte").write_bytes(lowered.make_program(binary))
    tree = survey_tree(tmp_path)
    assert [program.targets for program in tree.lowered] == [(Target("SM8650", 75, 8),)] * 2
