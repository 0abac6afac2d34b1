"""Hash segments without an image around them: where every part is, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ci.signing.mbn import HashSegment, Span, parse_hash_segment
from ci.signing.segments import MalformedError, Segment
from provisioning.elf.facts import ProgramHeader

VERSION_6 = (0, 6, 4, 6, 62, 32, 0, 8, 0, 12, 5, 3)


def parse(*words: int, body: int = 0, filler: bytes = b"") -> HashSegment:
    """A segment of a header of these words, ``body`` bytes of parts and what follows."""
    header = struct.pack(f"<{len(words)}I", *words)
    return parse_hash_segment(memoryview(header + bytes(body) + filler))


def common(major: int = 0, minor: int = 0, algorithm: int = 3) -> tuple[int, ...]:
    """The common metadata of version 7."""
    return (major, minor, 0, 0, algorithm, 0)


def list_spans(found: HashSegment) -> tuple[Any, ...]:
    """Header, metadata and table, then for each signer: signature, chain, what others add."""

    def pair(span: Span) -> tuple[int, int]:
        return span.start, span.end

    return (
        [pair(one) for one in (found.header, found.metadata, found.table)],
        *(
            (one.name, pair(one.signature), pair(one.chain), [pair(each) for each in one.others])
            for one in found.authorities
        ),
    )


@pytest.mark.parametrize(
    ("words", "body", "expected"),
    [
        (
            (9, 3, 7, 7, 60, 32, 7, 8, 7, 20),
            60,
            ([(0, 40), (40, 40), (40, 72)], ("OEM", (72, 80), (80, 100), [])),
        ),
        (
            (0, 5, 4, 6, 62, 32, 0, 8, 0, 12),
            62,
            (
                [(0, 40), (40, 40), (40, 72)],
                ("Qualcomm", (72, 76), (76, 82), [(28, 32), (36, 40), (40, 40)]),
                ("OEM", (82, 90), (90, 102), [(8, 12), (12, 16), (40, 40)]),
            ),
        ),
        (
            VERSION_6,
            70,
            (
                [(0, 48), (48, 56), (56, 88)],
                ("Qualcomm", (88, 92), (92, 98), [(28, 32), (36, 40), (53, 56)]),
                ("OEM", (98, 106), (106, 118), [(8, 12), (12, 16), (48, 53)]),
            ),
        ),
        (
            (0, 7, 24, 4, 6, 32, 1, 2, 3, 4, *common()),
            52,
            (
                [(0, 40), (40, 74), (74, 106)],
                ("Qualcomm", (106, 107), (107, 109), [(32, 36), (36, 40), (68, 74)]),
                ("OEM", (109, 112), (112, 116), [(24, 28), (28, 32), (64, 68)]),
            ),
        ),
        (
            (0, 8, 0, 0, 0, 32, 1, 2, 3, 4, 0, 0, 5, 6),
            53,
            (
                [(0, 56), (56, 56), (56, 88)],
                ("signer 1", (88, 89), (89, 91), []),
                ("signer 2", (91, 94), (94, 98), []),
                ("signer 4", (98, 103), (103, 109), []),
            ),
        ),
    ],
    ids=[3, 5, 6, 7, 8],
)
def test_the_parts_of_each_version(words: tuple[int, ...], body: int, expected: Any) -> None:
    found = parse(*words, body=body)
    assert list_spans(found) == expected
    assert (found.version, found.faults) == (words[1], ())
    assert found.named_algorithm == ("sha384" if found.version == 7 else "")


@pytest.mark.parametrize(
    ("sizes", "names"), [((0, 0, 8, 0), ["OEM"]), ((0, 4, 0, 0), ["Qualcomm"]), ((0,) * 4, [])]
)
def test_a_signer_has_a_signature_or_a_chain(sizes: tuple[int, ...], names: list[str]) -> None:
    found = parse(0, 7, 24, 0, 0, 32, *sizes, *common(), body=32 + sum(sizes))
    assert [one.name for one in found.authorities] == names


def test_a_single_signer_signs_everything_and_each_of_two_its_own() -> None:
    def list_signed(*words: int, body: int) -> list[list[bytes]]:
        data = memoryview(struct.pack(f"<{len(words)}I", *words) + b"\1" * body)
        found = parse_hash_segment(data)
        return [list(found.list_signed(data, one)) for one in found.authorities]

    def pack(*words: int) -> bytes:
        return struct.pack(f"<{len(words)}I", *words)

    whole = pack(*VERSION_6) + b"\1" * 40
    first = pack(0, 6, 4, 6, 62, 32, 0, 0, 0, 0, 5, 3) + b"\1" * 5 + bytes(3) + b"\1" * 32
    second = pack(0, 6, 0, 0, 62, 32, 0, 8, 0, 12, 5, 3) + bytes(5) + b"\1" * 35
    assert list_signed(*VERSION_6, body=70) == [[whole, first], [whole, second]]
    alone = (0, 5, 0, 0, 52, 32, 0, 8, 0, 12)
    assert list_signed(*alone, body=52) == [[pack(*alone) + b"\1" * 32]]


@pytest.mark.parametrize(
    ("size", "algorithm"), [(64, "sha256"), (96, "sha384"), (128, "sha512"), (95, ""), (97, "")]
)
def test_the_size_of_the_table_tells_its_algorithm(size: int, algorithm: str) -> None:
    table = bytes(range(size))
    data = memoryview(struct.pack("<10I", 0, 3, 0, 0, size, size, 0, 0, 0, 0) + table)
    found = parse_hash_segment(data)
    if not algorithm:
        with pytest.raises(MalformedError, match=f"the hash table is {size} bytes long"):
            found.entries(data, 2)
        return
    assert found.entries(data, 2) == (algorithm, (table[: size // 2], table[size // 2 :]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the hash segment is 0 bytes long, too short for an MBN header"),
        (bytes(39), "the hash segment is 39 bytes long, too short for an MBN header"),
        (bytes(40), "MBN header version 0 is not one of 3, 5, 6, 7, 8"),
        (struct.pack("<11I", 0, 6, *[0] * 9), "the hash segment ends inside its MBN header"),
        (
            struct.pack("<10I", 0, 5, 0, 0, 33, 32, 0, 1, 0, 0) + bytes(32),
            (
                "according to the MBN header, the hash segment's last part ends at byte 73, but"
                " the segment ends at byte 72"
            ),
        ),
    ],
)
def test_a_segment_whose_parts_cannot_be_told_apart_is_malformed(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_hash_segment(memoryview(data))
    assert str(caught.value) == message


@pytest.mark.parametrize(("version", "size"), [(3, 40), (5, 40), (6, 48), (7, 40), (8, 56)])
def test_a_header_is_whole_or_malformed(version: int, size: int) -> None:
    header = struct.pack("<14I", 0, version, *[0] * 12)
    assert parse_hash_segment(memoryview(header[:size])).version == version
    with pytest.raises(MalformedError):
        parse_hash_segment(memoryview(header[: size - 1]))


@pytest.mark.parametrize(("total", "good"), [(39, False), (40, True), (44, True), (45, False)])
def test_the_total_of_early_versions_is_within_its_limits(total: int, good: bool) -> None:
    found = parse(0, 5, 0, 0, total, 32, 0, 8, 0, 0, body=40, filler=b"\xff" * 4)
    fault = f"the MBN header states that {total} bytes follow it"
    assert [one.partition(", not ")[0] for one in found.faults] == ([] if good else [fault])


PUBLISHED = (7, 24, common(), 0)


@pytest.mark.parametrize(
    ("header", "filler", "faults"),
    [
        (PUBLISHED, b"", []),
        (PUBLISHED, b"\xff", []),
        ((7, 24, common(0, 1), 0), b"", []),
        ((7, 24, common(algorithm=9), 0), b"", []),
        ((8, 23, common(9), 0), b"", []),
        (PUBLISHED, b"\0", ["1 bytes after"]),
        (PUBLISHED, b"\xff\xfe", ["2 bytes after"]),
        ((7, 24, common(0, 2), 0), b"", ["version 0.2"]),
        ((7, 24, common(1, 0), 0), b"", ["version 1.0"]),
        ((7, 23, common(9), 0), b"", ["23 bytes long, shorter than 24"]),
        ((8, 24, common(), 1), b"", ["reserved word is 0x1"]),
        ((7, 24, common(1, 2), 3), b"\1", ["1 bytes after", "reserved word is 0x3", "version 1.2"]),
    ],
)
def test_faults_of_late_versions_are_all_named(
    header: tuple[int, int, tuple[int, ...], int], filler: bytes, faults: list[str]
) -> None:
    version, size, metadata, reserved = header
    extra = (0,) * 4 if version == 8 else ()
    padding = 24 - size
    words = (reserved, version, size, padding, 0, 32, 0, 0, 0, 0, *extra, *metadata)
    found = parse(*words, body=32, filler=filler)
    assert len(found.faults) == len(faults)
    assert all(part in fault for part, fault in zip(faults, found.faults, strict=True))


@pytest.mark.parametrize(("number", "name"), [(2, "sha256"), (3, "sha384"), (9, "")])
def test_version_7_names_its_algorithm(number: int, name: str) -> None:
    found = parse(0, 7, 24, 0, 0, 32, 0, 0, 0, 0, *common(algorithm=number), body=32)
    assert found.named_algorithm == name


@pytest.mark.parametrize(
    ("kind", "vendor", "headers", "hashes", "told"),
    [
        (0, 7, True, False, "segment 3 (NULL, 6 bytes at 0x10)"),
        (0, 2, False, True, "segment 3 (NULL, 6 bytes at 0x10)"),
        (1, 7, False, False, "segment 3 (LOAD, 6 bytes at 0x10)"),
        (1, 2, False, False, "segment 3 (LOAD, 6 bytes at 0x10)"),
        (2, 0, False, False, "segment 3 (type 0x2, 6 bytes at 0x10)"),
        (0, 0, False, False, "segment 3 (NULL, 6 bytes at 0x10)"),
    ],
)
def test_what_a_segment_is(kind: int, vendor: int, headers: bool, hashes: bool, told: str) -> None:
    header = ProgramHeader(kind, vendor << 24 | 7 << 27 | 5, 16, 0, 0, 6, 9, 1)
    one = Segment(3, header)
    assert (one.is_header_placeholder, header.is_hashes) == (headers, hashes)
    assert (one.offset, one.file_size, one.end) == (16, 6, 22)
    assert one.describe() == told
