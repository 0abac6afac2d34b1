"""Hash segments without an image around them: the place of every part, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from ci.signing.mbn import parse_hash_segment
from tests.build.signing import outcome, show
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOT = Path(__file__).with_name("snapshots") / "segments.txt"
VERSION_6 = (0, 6, 4, 6, 62, 32, 0, 8, 0, 12, 5, 3)


def pack(*words: int, body: bytes | int = b"") -> bytes:
    return struct.pack(f"<{len(words)}I", *words) + (bytes(body) if body else b"")


def common(major: int = 0, minor: int = 0, algorithm: int = 3) -> tuple[int, ...]:
    """The common metadata of version 7."""
    return (major, minor, 0, 0, algorithm, 0)


def seven(*sizes: int, body: int = 32, filler: bytes = b"", **metadata: int) -> bytes:
    sizes = sizes or (0,) * 4
    return pack(0, 7, 24, 0, 0, 32, *sizes, *common(**metadata), body=body + sum(sizes)) + filler


def late(version: int, size: int, words: tuple[int, ...], reserved: int = 0) -> bytes:
    """A header of version 7 or 8 whose common metadata is ``size`` bytes long."""
    extra = (0,) * 4 if version == 8 else ()
    return pack(reserved, version, size, 24 - size, 0, 32, *(0,) * 4, *extra, *words, body=32)


def early(total: int) -> bytes:
    """A header of version 5 with 40 bytes of parts and 4 of padding."""
    return pack(0, 5, 0, 0, total, 32, 0, 8, 0, 0, body=40) + b"\xff" * 4


SEGMENTS = {
    "version 3": pack(9, 3, 7, 7, 60, 32, 7, 8, 7, 20, body=60),
    "version 5": pack(0, 5, 4, 6, 62, 32, 0, 8, 0, 12, body=62),
    "version 6": pack(*VERSION_6, body=70),
    "version 7": pack(0, 7, 24, 4, 6, 32, 1, 2, 3, 4, *common(), body=52),
    "version 8": pack(0, 8, 0, 0, 0, 32, 1, 2, 3, 4, 0, 0, 5, 6, body=53),
    "a signature without a chain": seven(0, 0, 8, 0),
    "a chain without a signature": seven(0, 4, 0, 0),
    "no signer": seven(),
    "SHA-256 is named": seven(algorithm=2),
    "no known algorithm is named": seven(algorithm=9),
    "padding": seven(filler=b"\xff"),
    "metadata of version 0.1": seven(minor=1),
    "version 8 with other metadata": late(8, 23, common(9)),
    "the smallest total": early(40),
    "the largest total": early(44),
}
FAULTY = {
    "a total that is too small": early(39),
    "a total that is too large": early(45),
    "a zero behind": seven(filler=b"\0"),
    "mixed bytes behind": seven(filler=b"\xff\xfe"),
    "metadata of version 0.2": seven(minor=2),
    "metadata of version 1.0": seven(major=1),
    "metadata that is too short": late(7, 23, common(9)),
    "a reserved word in version 8": late(8, 24, common(), 1),
    "all at once": late(7, 24, common(1, 2), 3) + b"\1",
}
MALFORMED = {
    "nothing": b"",
    "39 bytes": bytes(39),
    "version 0": bytes(40),
    "half a header of version 6": pack(0, 6, *[0] * 9),
    "half a header of version 8": pack(0, 8, *[0] * 11),
    "a last part that ends outside": pack(0, 5, 0, 0, 33, 32, 0, 1, 0, 0, body=32),
}


def describe(data: bytes) -> Iterable[str]:
    hash_segment = outcome(lambda: parse_hash_segment(memoryview(data)))
    if isinstance(hash_segment, str):
        return [hash_segment]

    def place(*parts: slice) -> str:
        return " ".join(f"{part.start}-{part.stop}" for part in parts)

    return [
        f"version {hash_segment.version}: header, metadata, table "
        + place(hash_segment.header, hash_segment.metadata, hash_segment.table)
        + f" {hash_segment.named_algorithm}".rstrip(),
        *(
            f"{authority.name}: {place(authority.signature, authority.chain)}"
            + (f", of others: {place(*authority.peer_parts)}" if authority.peer_parts else "")
            for authority in hash_segment.authorities
        ),
        *(f"fault: {fault}" for fault in hash_segment.faults),
    ]


def test_hash_segments_are_parsed_and_judged_as_their_snapshot() -> None:
    faultless = {name: describe(data) for name, data in SEGMENTS.items()}
    faulty = {name: describe(data) for name, data in FAULTY.items()}
    malformed = {name: describe(data) for name, data in MALFORMED.items()}
    assert not [name for name, lines in faultless.items() if "fault" in str(lines)]
    assert all("fault: " in str(lines) for lines in faulty.values())
    assert all("MalformedError" in str(lines) for lines in malformed.values())
    check_snapshot(SNAPSHOT, show({**faultless, **faulty, **malformed}))


def list_signed(*words: int, size: int) -> list[list[bytes]]:
    data = memoryview(pack(*words, body=b"\1" * size))
    hash_segment = parse_hash_segment(data)
    return [
        list(hash_segment.list_signed(data, authority)) for authority in hash_segment.authorities
    ]


def test_a_single_signature_covers_everything_and_each_of_two_its_own_parts() -> None:
    everything = pack(*VERSION_6, body=b"\1" * 40)
    first = pack(0, 6, 4, 6, 62, 32, 0, 0, 0, 0, 5, 3) + b"\1" * 5 + bytes(3) + b"\1" * 32
    second = pack(0, 6, 0, 0, 62, 32, 0, 8, 0, 12, 5, 3) + bytes(5) + b"\1" * 35
    assert list_signed(*VERSION_6, size=70) == [[everything, first], [everything, second]]
    alone = (0, 5, 0, 0, 52, 32, 0, 8, 0, 12)
    assert list_signed(*alone, size=52) == [[pack(*alone, body=b"\1" * 32)]]
