"""Hash segments without an image around them: where every part lies, and each refusal's words."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ci.signing.proof.mbn import HashSegment, Span, parse_hash_segment
from ci.signing.proof.segments import MalformedError


def words(*values: int, body: int = 0, filler: bytes = b"") -> HashSegment:
    """A segment of these words, ``body`` counted bytes and what follows."""
    counted = bytes(i % 250 for i in range(body))
    return parse_hash_segment(
        memoryview(struct.pack(f"<{len(values)}I", *values) + counted + filler)
    )


def spans(found: HashSegment) -> dict[str, Any]:
    def pair(span: Span) -> tuple[int, int]:
        return span.start, span.end

    return {
        "parts": [pair(one) for one in (found.header, found.metadata, found.table)],
        "authorities": [
            (one.name, pair(one.signature), pair(one.chain), [pair(each) for each in one.others])
            for one in found.authorities
        ],
    }


def test_parts_of_version_3_are_one_authority_s() -> None:
    found = words(9, 3, 7, 7, 60, 32, 7, 8, 7, 20, body=60)

    assert spans(found) == {
        "parts": [(0, 40), (40, 40), (40, 72)],
        "authorities": [("OEM", (72, 80), (80, 100), [])],
    }
    assert (found.version, found.named_algorithm, found.faults) == (3, "", ())


def test_parts_of_version_5_are_two_authorities() -> None:
    found = words(0, 5, 4, 6, 62, 32, 0, 8, 0, 12, body=62)

    assert spans(found) == {
        "parts": [(0, 40), (40, 40), (40, 72)],
        "authorities": [
            ("Qualcomm", (72, 76), (76, 82), [(28, 32), (36, 40), (40, 40)]),
            ("OEM", (82, 90), (90, 102), [(8, 12), (12, 16), (40, 40)]),
        ],
    }


def test_metadata_of_version_6_stands_before_the_table() -> None:
    found = words(0, 6, 4, 6, 62, 32, 0, 8, 0, 12, 5, 3, body=70)

    assert spans(found) == {
        "parts": [(0, 48), (48, 56), (56, 88)],
        "authorities": [
            ("Qualcomm", (88, 92), (92, 98), [(28, 32), (36, 40), (53, 56)]),
            ("OEM", (98, 106), (106, 118), [(8, 12), (12, 16), (48, 53)]),
        ],
    }


def common(major: int = 0, minor: int = 0, algorithm: int = 3) -> tuple[int, ...]:
    return (major, minor, 0, 0, algorithm, 0)


def test_metadata_of_version_7_names_the_algorithm() -> None:
    found = words(0, 7, 24, 4, 6, 32, 1, 2, 3, 4, *common(), body=52)

    assert spans(found) == {
        "parts": [(0, 40), (40, 74), (74, 106)],
        "authorities": [
            ("Qualcomm", (106, 107), (107, 109), [(32, 36), (36, 40), (68, 74)]),
            ("OEM", (109, 112), (112, 116), [(24, 28), (28, 32), (64, 68)]),
        ],
    }
    assert (found.named_algorithm, found.faults) == ("sha384", ())


def test_version_8_has_four_signers_without_names() -> None:
    found = words(0, 8, 0, 0, 0, 32, 1, 2, 3, 4, 0, 0, 5, 6, body=53)

    assert [
        (one.name, one.signature.size, one.chain.size, one.others) for one in found.authorities
    ] == [
        ("signer 1", 1, 2, ()),
        ("signer 2", 3, 4, ()),
        ("signer 4", 5, 6, ()),
    ]


@pytest.mark.parametrize(
    ("sizes", "names"), [((0, 0, 8, 0), ["OEM"]), ((0, 4, 0, 0), ["Qualcomm"]), ((0,) * 4, [])]
)
def test_an_authority_is_there_with_a_signature_or_a_chain(
    sizes: tuple[int, ...], names: list[str]
) -> None:
    found = words(0, 7, 24, 0, 0, 32, *sizes, *common(), body=32 + sum(sizes))
    assert [one.name for one in found.authorities] == names


def test_one_signer_signs_everything_and_each_of_two_its_own() -> None:
    def signed(*values: int, body: int) -> list[list[bytes]]:
        data = memoryview(struct.pack(f"<{len(values)}I", *values) + b"\x01" * body)
        found = parse_hash_segment(data)
        return [list(found.list_signed(data, one)) for one in found.authorities]

    words_ = (0, 6, 4, 6, 62, 32, 0, 8, 0, 12, 5, 3)
    whole = struct.pack("<12I", *words_) + b"\x01" * 40
    first = (
        struct.pack("<12I", 0, 6, 4, 6, 62, 32, 0, 0, 0, 0, 5, 3)
        + b"\1" * 5
        + bytes(3)
        + b"\1" * 32
    )
    second = struct.pack("<12I", 0, 6, 0, 0, 62, 32, 0, 8, 0, 12, 5, 3) + bytes(5) + b"\1" * 35
    assert signed(*words_, body=70) == [[whole, first], [whole, second]]
    alone = (0, 5, 0, 0, 52, 32, 0, 8, 0, 12)
    assert signed(*alone, body=52) == [[struct.pack("<10I", *alone) + b"\1" * 32]]


@pytest.mark.parametrize(
    ("size", "count", "algorithm"), [(64, 2, "sha256"), (96, 2, "sha384"), (128, 2, "sha512")]
)
def test_the_table_s_size_tells_its_algorithm(size: int, count: int, algorithm: str) -> None:
    data = memoryview(struct.pack("<10I", 0, 3, 0, 0, size, size, 0, 0, 0, 0) + bytes(range(size)))
    name, entries = parse_hash_segment(data).entries(data, count)

    assert (name, b"".join(entries)) == (algorithm, bytes(range(size)))
    assert [len(entry) for entry in entries] == [size // count] * count


@pytest.mark.parametrize("size", [95, 97])
def test_a_table_of_another_size_is_malformed(size: int) -> None:
    data = memoryview(struct.pack("<10I", 0, 3, 0, 0, size, size, 0, 0, 0, 0) + bytes(size))
    with pytest.raises(MalformedError) as caught:
        parse_hash_segment(data).entries(data, 2)
    assert str(caught.value) == (
        f"the hash table has {size} bytes, which is no SHA-256, SHA-384 or SHA-512 for each of 2 "
        "program headers (a table by the page is not judged)"
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the hash segment has 0 bytes, less than an MBN header"),
        (bytes(39), "the hash segment has 39 bytes, less than an MBN header"),
        (bytes(40), "MBN header version 0 is none of 3, 5, 6, 7, 8"),
        (struct.pack("<11I", 0, 6, *[0] * 9), "truncated within the MBN header"),
        (
            struct.pack("<10I", 0, 5, 0, 0, 33, 32, 0, 1, 0, 0) + bytes(32),
            "the MBN header's parts have 73 bytes, the hash segment 72",
        ),
    ],
)
def test_a_segment_whose_parts_cannot_be_told_is_malformed(data: bytes, said: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_hash_segment(memoryview(data))
    assert str(caught.value) == said


def test_a_segment_that_ends_with_its_last_part_is_whole() -> None:
    assert words(0, 5, 0, 0, 32, 32, 0, 0, 0, 0, body=32).faults == ()
    assert words(0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0).faults == ()


@pytest.mark.parametrize(("total", "good"), [(39, False), (40, True), (44, True), (45, False)])
def test_the_total_of_early_versions_is_within_its_limits(total: int, good: bool) -> None:
    found = words(0, 5, 0, 0, total, 32, 0, 8, 0, 0, body=40, filler=b"\xff" * 4)
    said = (f"the header says {total} bytes follow, its parts have 40",)
    assert found.faults == (() if good else said)


@pytest.mark.parametrize(
    ("filler", "fault"),
    [
        (b"\xff", ()),
        (b"\0", ("1 bytes after the last part are not padding of 0xff",)),
        (b"\xff\xfe", ("2 bytes after the last part are not padding of 0xff",)),
    ],
)
def test_faults_of_a_late_version_are_all_named(filler: bytes, fault: tuple[str, ...]) -> None:
    found = words(3, 7, 24, 0, 0, 32, 0, 0, 0, 0, *common(1, 2, 9), body=32, filler=filler)
    assert found.faults == (
        *fault,
        "reserved word 0x3 instead of 0",
        "common metadata of version 1.2, which is not published",
    )
    assert found.named_algorithm == ""


@pytest.mark.parametrize(
    ("version", "published"), [((0, 0), True), ((0, 1), True), ((0, 2), False), ((1, 0), False)]
)
def test_two_versions_of_common_metadata_are_published(
    version: tuple[int, int], published: bool
) -> None:
    found = words(0, 7, 24, 0, 0, 32, 0, 0, 0, 0, *common(*version, 2), body=32)
    assert (found.named_algorithm, not found.faults) == ("sha256", published)


def test_common_metadata_that_is_too_small_is_not_read() -> None:
    small = words(0, 7, 23, 1, 0, 32, 0, 0, 0, 0, *common(9), body=32)
    late = words(0, 8, 23, 1, 0, 32, *[0] * 8, *common(9), body=32)

    assert (small.faults, small.named_algorithm) == (
        ("common metadata of 23 bytes instead of 24",),
        "",
    )
    assert (late.faults, late.named_algorithm) == ((), "")
