"""The checksum in a Hexagon library, over a real library that is given one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from provisioning.artifacts.trust import check_machines
from provisioning.elf.facts import ElfError
from provisioning.elf.reader import MAX_MEMORY_BYTES, parse_checksum, read_elf
from provisioning.errors import IntegrityError
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import sign_elf

LIBRARY = Path(__file__).parents[3] / "artifacts" / "elf" / "libhexagon.so"
PROGRAM_HEADERS, FILESZ, MEMSZ, FLAGS = 52, 16, 20, 24


@pytest.fixture
def sealed() -> bytearray:
    data = bytearray(LIBRARY.read_bytes())
    elf.add_swiv(data)
    return data


def list_loads(data: bytes | bytearray) -> list[tuple[int, int, int, int]]:
    """Index, offset, size in the file and in memory of each PT_LOAD."""
    segments = []
    for index in range(struct.unpack_from("<H", data, 44)[0]):
        words = struct.unpack_from("<8I", data, PROGRAM_HEADERS + 32 * index)
        if words[0] == 1:
            segments.append((index, words[1], words[4], words[5]))
    return segments


def test_good_hexagon_library_has_its_embedded_checksum(sealed: bytearray, tmp_path: Path) -> None:
    checksum = parse_checksum(bytes(sealed))
    assert checksum
    assert not checksum.is_wrong
    (tmp_path / "lib.so").write_bytes(sealed)
    assert read_elf(tmp_path / "lib.so").checksum == checksum


def test_flipped_bit_of_any_segment_breaks_the_checksum(sealed: bytearray) -> None:
    for _, offset, size, _ in list_loads(sealed):
        for position in (offset, offset + size // 2, offset + size - 1) if size else ():
            if position < PROGRAM_HEADERS + 32 * sealed[44]:
                continue  # the headers themselves, which must be readable
            sealed[position] ^= 1
            checksum = parse_checksum(bytes(sealed))
            assert checksum
            assert checksum.is_wrong, position
            sealed[position] ^= 1


def spoil_magic(data: bytearray) -> None:
    place = elf.find_swiv(data)
    assert place
    data[place] ^= 1


def shorten_section(data: bytearray) -> None:
    start, count = struct.unpack_from("<I", data, 32)[0], struct.unpack_from("<H", data, 48)[0]
    struct.pack_into("<I", data, start + 40 * (count - 1) + 20, 7)


def claim_memory(data: bytearray) -> None:
    index = list_loads(data)[0][0]
    elf.set_u32(PROGRAM_HEADERS + 32 * index + MEMSZ, MAX_MEMORY_BYTES + 1)(data)


def shrink_memory(data: bytearray, at: int = 0) -> None:
    index, _, size, _ = [load for load in list_loads(data) if load[2]][at]
    elf.set_u32(PROGRAM_HEADERS + 32 * index + MEMSZ, size - 1)(data)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (spoil_magic, "contains no checksum"),
        (shorten_section, "contains no checksum"),
        (claim_memory, "of memory"),
        (shrink_memory, "more bytes in the file than in memory"),
        (partial(shrink_memory, at=-1), "more bytes in the file than in memory"),
    ],
)
def test_hostile_file_is_an_error(
    sealed: bytearray, tmp_path: Path, edit: Callable[[bytearray], None], words: str
) -> None:
    edit(sealed)
    with pytest.raises(ValueError, match=words):
        parse_checksum(bytes(sealed))
    (tmp_path / "lib.so").write_bytes(sealed)
    with pytest.raises(ElfError):
        read_elf(tmp_path / "lib.so")


def test_stripped_library_is_distinguished_from_a_damaged_one(
    sealed: bytearray, tmp_path: Path
) -> None:
    undamaged = parse_checksum(bytes(sealed))
    assert undamaged
    assert (undamaged.is_wrong, undamaged.is_stripped) == (False, False)
    elf.strip_like_gradle(sealed)
    checksum = parse_checksum(bytes(sealed))
    assert checksum
    assert (checksum.is_wrong, checksum.is_stripped) == (True, True)
    assert "before it was stripped" in checksum.describe()
    (tmp_path / "lib.so").write_bytes(sealed)
    assert read_elf(tmp_path / "lib.so").checksum == checksum
    _, offset, size, _ = max(list_loads(sealed), key=lambda segment: segment[1])
    sealed[offset + size - 1] ^= 1
    damaged = parse_checksum(bytes(sealed))
    assert damaged
    assert (damaged.is_wrong, damaged.is_stripped) == (True, False)


def test_checksum_is_not_read_from_signed_or_non_hexagon_libraries(sealed: bytearray) -> None:
    signed = bytearray(sign_elf(bytes(sealed), make_key()))
    assert parse_checksum(bytes(signed)) is None
    sealed[0x400] ^= 1
    elf.set_u16(elf.E_MACHINE, 40)(sealed)
    assert parse_checksum(bytes(sealed)) is None


def test_first_use_of_archive_compares_its_checksums(sealed: bytearray, tmp_path: Path) -> None:
    path = tmp_path / "lib/hexagon-v69/unsigned/libQnnHtpV69Skel.so"
    path.parent.mkdir(parents=True)
    for name in ("libA.so", "libB.so", path.name):
        path.with_name(name).write_bytes(LIBRARY.read_bytes() if name == "libB.so" else sealed)
    assert check_machines(tmp_path) == [
        "3 libraries are hexagon",
        "2 of them match the checksum embedded in them",
    ]
    path.with_name("libA.so").unlink()
    path.with_name("libB.so").unlink()
    place = max(offset for _, offset, size, _ in list_loads(sealed) if size)
    sealed[place] ^= 1
    path.write_bytes(sealed)
    with pytest.raises(IntegrityError, match="is damaged") as caught:
        check_machines(tmp_path)
    assert "its checksum (SWIV) is" in caught.value.why
    path.write_bytes(LIBRARY.read_bytes())
    assert check_machines(tmp_path) == ["1 libraries are hexagon"]


def test_archive_with_a_stripped_skel_is_refused_on_first_use(
    sealed: bytearray, tmp_path: Path
) -> None:
    path = tmp_path / "lib/hexagon-v69/unsigned/libQnnHtpV69Skel.so"
    path.parent.mkdir(parents=True)
    elf.strip_like_gradle(sealed)
    path.write_bytes(sealed)
    with pytest.raises(IntegrityError, match="is damaged"):
        check_machines(tmp_path)
