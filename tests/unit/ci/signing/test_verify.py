"""The proof from the bytes: every format is accepted, every spoiled part is found and named."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import itertools
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ci.signing.mbn import parse_image
from ci.signing.verdict import Kind, Scheme, Verdict, Verification
from ci.signing.verify import list_differences, verify_bytes, verify_file
from provisioning.elf.facts import PT_LOAD
from tests.build.signing import findings, show
from tests.stand_ins.elfsigner import mbn_writer
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify
from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import CHAIN_BYTES, PLACES, Key, sign_elf
from tests.stand_ins.elfsigner.spoil import (
    PLACE,
    FixedKey,
    LyingKey,
    flip,
    put,
    put_header,
    put_word,
    verify,
)
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
VERSIONS, ALGORITHMS = (3, 5, 6, 7, 8), ("sha256", "sha384", "sha512")
METADATA = {3: 0, 5: 0, 6: 120, 7: 144, 8: 144}
ENTRIES = 11  # of the hash table: 9 program headers of the library and the two of a signer
NOW = dt.datetime.now(dt.timezone.utc)
DAY = dt.timedelta(days=1)
TABLE_MOVES = (0x1C, 6)  # the program headers begin after the two that a signer adds
TABLE = PLACE + PLACES[6] + METADATA[6]  # the hash table of version 6
ELF_FILES = Path(__file__).parents[3] / "artifacts" / "elf"
PARAMETERS = b"ISMQ" + b"\x17" * 96  # of an encryption: only the first word is published
Edit = Callable[[bytes], bytes]


def kinds(report: Verification) -> set[Kind]:
    return {fault.kind for fault in report.faults}


def place_segments(library: bytes, kind: int) -> list[int]:
    """Where the program headers of a type are in the file."""
    headers = struct.unpack_from("<I", library, 28)[0]
    places = range(headers, headers + 32 * struct.unpack_from("<H", library, 44)[0], 32)
    return [place for place in places if struct.unpack_from("<I", library, place)[0] == kind]


def first_offset(data: bytes, kind: int = PT_LOAD) -> int:
    segments = parse_image(memoryview(data)).segments
    return next(segment.header.offset for segment in segments if segment.header.type == kind)


# What is accepted


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_correct_signature_of_every_version_and_algorithm_is_proven(
    key: Key, library: bytes, version: int, algorithm: str
) -> None:
    report = verify(sign_elf(library, key, version, algorithm), library)
    assert (report.verdict, report.errors, report.notes) == (Verdict.PROVEN, [], [])
    assert (report.header_version, report.algorithm) == (version, algorithm)
    expected = Scheme.PSS if version >= 6 else Scheme.PKCS1
    assert [signer.scheme for signer in report.signers] == [expected]
    assert report.hashed_segments == 9  # all but the empty one and the hash segment itself
    assert (report.encrypted, report.as_data()["encrypted"]) == (False, False)


@dataclasses.dataclass(frozen=True)
class EcKey(Key):
    """An EC key in the stand-in's key, for signers that use ECDSA."""

    private: ec.EllipticCurvePrivateKey | None = None

    @property
    def size(self) -> int:
        return 104

    def sign(self, signed: bytes, version: int) -> bytes:
        assert self.private
        return self.private.sign(signed, ec.ECDSA(hashes.SHA384())).ljust(self.size, b"\0")


def test_ecdsa_is_recognised_and_ed25519_has_no_published_scheme(library: bytes) -> None:
    private = ec.generate_private_key(ec.SECP384R1())
    root = certify(ROOT_NAME, private, ROOT_NAME, private)
    chain = certify(LEAF_NAME, private, ROOT_NAME, private) + root
    report = verify(sign_elf(library, EcKey(0, 0, chain, private=private)), library)
    assert (report.verdict, report.signers[0].scheme) == (Verdict.PROVEN, Scheme.ECDSA)
    assert report.signers[0].chain[0].key == "EC secp384r1"
    chain = certify(LEAF_NAME, ed25519.Ed25519PrivateKey.generate(), ROOT_NAME, private) + root
    report = verify(sign_elf(library, FixedKey(0, 0, chain, value=bytes(range(64)))))
    assert list(findings(report)) == [
        "signature not recognised",
        (
            "note: OEM: no scheme is published for Ed25519 keys, so only the device can judge the "
            "signature"
        ),
    ]


def set_memory(data: bytes, extra_bytes: int) -> bytes:
    """The first loaded segment gets ``extra_bytes`` more memory than it has bytes in the file."""
    place = place_segments(data, PT_LOAD)[0]
    return put_word(data, place + 20, struct.unpack_from("<I", data, place + 16)[0] + extra_bytes)


def load_nothing(data: bytes) -> bytes:
    for place in place_segments(data, PT_LOAD):
        data = put_word(data, place, 0x60000000)
    return data


# Libraries that are changed before they are signed: whether they are still proven.
# A modem's configuration (mcfg_hw.mbn), a DTB, Arm, Xtensa, Hexagon, AArch64, RISC-V are released.
RELEASED, OTHERS = (0, 1, 40, 94, 164, 183, 243), (62, 3, 8)
CHANGED_BEFORE: dict[str, tuple[Edit, bool]] = {
    **{
        f"machine {number}": (lambda data, to=number: put(data, 18, "<H", to), number in RELEASED)
        for number in (*RELEASED, *OTHERS)
    },
    "as much memory as bytes": (lambda data: set_memory(data, 0), True),
    "memory of one byte more": (lambda data: set_memory(data, 1), True),
    "memory of one byte less": (lambda data: set_memory(data, -1), False),
    "nothing is loaded": (load_nothing, False),
    "Hexagon V68": (lambda data: put_word(data, 36, 0x68), True),
    "Hexagon V99": (lambda data: put_word(data, 36, 0x99), True),
    "Hexagon V255": (lambda data: put_word(data, 36, 0x255), True),
    "a paged segment": (lambda data: put_header(data, 3, 6, 0x00100004), True),
    "a shared segment": (lambda data: put_header(data, 2, 6, 0x00600005), True),
}


def test_libraries_changed_before_signing_are_judged_as_their_snapshot(
    key: Key, library: bytes
) -> None:
    reports = {
        name: verify(sign_elf(edit(library), key)) for name, (edit, _) in CHANGED_BEFORE.items()
    }
    assert {name: report.verdict is Verdict.PROVEN for name, report in reports.items()} == {
        name: proven for name, (_, proven) in CHANGED_BEFORE.items()
    }
    shown = {
        name: [f"{report.machine} V{report.hexagon_version:X}", *findings(report)]
        for name, report in reports.items()
    }
    check_snapshot(SNAPSHOTS / "libraries.txt", show(shown))


# Flipped bits


@pytest.mark.parametrize(
    ("version", "algorithm"), list(zip(VERSIONS, itertools.cycle(ALGORITHMS), strict=False))
)
def test_any_flipped_bit_in_headers_and_table_is_found(
    key: Key, library: bytes, version: int, algorithm: str
) -> None:
    """Without an original: every byte of the MBN header, of the metadata and of the hash segment's
    own entry, and every third byte of the other hashes; once, the ELF headers, which all share."""
    data = sign_elf(library, key, version, algorithm)
    size = hashlib.new(algorithm).digest_size
    table = PLACE + PLACES[version] + METADATA[version]
    positions = [*range(PLACE, table), *range(table + size, table + 2 * size)]
    positions += [*range(table, table + ENTRIES * size, 3), table + ENTRIES * size - 1]
    if version == 6:
        positions += range(parse_image(memoryview(data)).headers.end)
    rng = random.Random(version)
    for position in positions:
        bit = rng.randrange(8)
        unsigned = (position, bit) == TABLE_MOVES
        expected = Verdict.UNSIGNED if unsigned else Verdict.INVALID
        report = verify(flip(data, position, bit), library if position < PLACE else None)
        assert report.verdict is expected, (hex(position), bit)


def test_random_bytes_never_raise(key: Key, library: bytes) -> None:
    data = sign_elf(library, key, 6)
    rng = random.Random(1)
    for _ in range(300):
        changed = bytearray(data[: rng.randrange(len(data) + 1)])
        for _ in range(rng.randrange(1, 30)):
            if changed:
                changed[rng.randrange(min(len(changed), 0x1100))] = rng.randrange(256)
        report = verify(bytes(changed), library)
        assert report.verdict in {Verdict.INVALID, Verdict.UNSIGNED}
        report.as_data()


# The image and its layout


def test_a_truncated_file_is_invalid(key: Key, library: bytes) -> None:
    data = sign_elf(library, key)
    for size in (0, 3, 51, 52, 100, 0x1000, 0x1020, 0x1800, 0x3100, len(data) - 1):
        report = verify(data[:size])
        assert report.verdict is Verdict.INVALID, size
        assert kinds(report) <= {Kind.TRUNCATED, Kind.LAYOUT}, size


def first_part(data: bytes, *, with_hashes: bool) -> bytes:
    """The .mdt of a split image."""
    image = parse_image(memoryview(data))
    (segment,) = image.hash_segments
    hashed = data[segment.header.offset : segment.end] if with_hashes else b""
    return data[: image.headers.end] + hashed


# Edits of a signed library, each of which makes it invalid.
SPOILED: dict[str, Edit] = {
    "big-endian": lambda _: (ELF_FILES / "libbigendian.so").read_bytes(),
    "version 2 of ELF": lambda data: put(data, 6, "B", 2),
    "a web page": lambda _: b"<html>" * 20,
    "the first part of a split image": lambda data: first_part(data, with_hashes=True),
    "a first part without hashes": lambda data: first_part(data, with_hashes=False),
    "a truncated file of one byte more": lambda data: first_part(data, with_hashes=True) + b"\0",
    "a truncated file without hashes": lambda data: first_part(data, with_hashes=False) + b"\0",
    "two hash segments": lambda data: put_header(data, 0, 6, 0x02200000),
    "no placeholder": lambda data: put_header(data, 0, 6, 0),
    "a loaded placeholder": lambda data: put_header(data, 0, 0, 1),
    "placeholder too short": lambda data: put_header(data, 0, 4, 403),
    "placeholder moved": lambda data: put_header(data, 0, 1, 4),
    "no hash segment": lambda data: put_header(data, 1, 6, 0),
    "a segment over the hashes": lambda data: put_header(data, 5, 1, PLACE),
    "text behind the last segment": lambda data: data + b"\0\0key",
    "a hash of zeros": lambda data: data[: TABLE + 4 * 48] + bytes(48) + data[TABLE + 5 * 48 :],
    "a byte after the chain": lambda data: put(data, PLACE + 7000, "B", 0x41),
}


def test_spoiled_images_are_invalid_and_say_why(key: Key, library: bytes) -> None:
    data = sign_elf(library, key)
    reports = {name: verify(edit(data)) for name, edit in SPOILED.items()}
    assert {report.verdict for report in reports.values()} == {Verdict.INVALID}
    shown = show({name: findings(report) for name, report in reports.items()})
    check_snapshot(SNAPSHOTS / "layouts.txt", shown)
    assert verify(flip(data, data.index(key.chain) + 1000)).verdict is Verdict.INVALID


def test_the_layout_of_a_signed_file_is_checked(
    key: Key, library: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for less in (0, 1, 32):  # the first hash covers the headers and no less
        report = verify(sign_elf(library, key, uncovered=less))
        assert [fault.kind for fault in report.faults] == [Kind.LAYOUT] * bool(less)
    with monkeypatch.context() as patch:
        patch.setattr(mbn_writer, "PF_HEADERS", 0x06000000)
        assert kinds(verify(sign_elf(library, key))) == {Kind.LAYOUT}
    monkeypatch.setattr(mbn_writer, "PAGE", 4)
    data = sign_elf(library, key)
    image = parse_image(memoryview(data))
    assert image.hash_segments[0].header.offset == image.headers.end  # no gap between them
    assert verify(data).verdict is Verdict.PROVEN


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"\x01"])
def test_bytes_without_a_hash_may_only_be_padding(key: Key, library: bytes, filler: bytes) -> None:
    data = sign_elf(library, key)
    verdict = Verdict.INVALID if filler == b"\1" else Verdict.PROVEN
    assert verify(data).uncovered
    for start, end in verify(data).uncovered:
        assert verify(data[:start] + filler * (end - start) + data[end:]).verdict is verdict
        mixed = verify(flip(data, end - 1))
        assert mixed.verdict is (Verdict.INVALID if end - start > 1 else Verdict.PROVEN)
    assert verify(data + b"\0" * 9).verdict is Verdict.PROVEN


# The hash segment and its hashes


def test_a_wrong_hash_names_its_segment(key: Key, library: bytes) -> None:
    for entry, part in (
        (0, "hash: the hash of the ELF header and the program headers"),
        (1, "hash: the hash segment's own entry"),
        (3, "hash: the hash of segment 3 (LOAD"),
    ):
        _, fault = findings(verify(sign_elf(library, key, wrong_entry=entry)))
        assert fault.startswith(part)


def test_the_hash_of_an_empty_segment_is_zero_or_right(key: Key, library: bytes) -> None:
    data = sign_elf(library, key, 6)
    segments = parse_image(memoryview(data)).segments
    (empty,) = [index for index, segment in enumerate(segments) if not segment.header.filesz]
    entry = slice(TABLE + 48 * empty, TABLE + 48 * empty + 48)
    assert data[entry] == bytes(48)
    for place in (0, 20, 47):
        report = verify(flip(data, entry.start + place))
        hashed = [fault.text for fault in report.faults if fault.kind is Kind.HASH]
        assert [text.partition(" (")[0] for text in hashed] == [f"the hash of segment {empty}"]
    right = data[: entry.start] + hashlib.sha384().digest() + data[entry.stop :]
    assert Kind.HASH not in kinds(verify(right))


def test_a_test_signature_is_proven_only_with_the_serial_of_its_file_name(
    key: Key, library: bytes, tmp_path: Path
) -> None:
    data = sign_elf(library, key, serial=0xDEADBEEF)
    assert verify(data, serial=0xDEADBEEF).verdict is Verdict.PROVEN
    assert kinds(verify(data)) == kinds(verify(data, serial=0xDEADBEEE)) == {Kind.HASH}
    for name, verdict in (("testsig-0xdeadbeef.so", Verdict.PROVEN), ("a.so", Verdict.INVALID)):
        (tmp_path / name).write_bytes(data)
        assert verify_file(tmp_path / name).verdict is verdict


@pytest.mark.parametrize("version", VERSIONS)
def test_only_padding_or_encryption_parameters_may_follow_the_last_part(
    key: Key, library: bytes, version: int
) -> None:
    """The hashes of an encrypted image are those of its bytes before or after encryption."""
    for trailer, good in (
        *((b"\xff" * 208, True), (b"\0" * 208, False), (b"\xff" * 207 + b"\xfe", False)),
        *((b"QMSI" * 9, False), (b"\xff" * 4 + PARAMETERS, False)),
    ):
        report = verify(sign_elf(library, key, version, trailer=trailer))
        assert kinds(report) == (set() if good else {Kind.HEADER})
        assert good or f"{len(trailer)} bytes after the last part" in report.errors[0]
    data = sign_elf(library, key, version, trailer=PARAMETERS)
    report = verify(data)
    assert (report.verdict, report.errors, report.notes) == (Verdict.ENCRYPTED, [], [])
    assert (report.encrypted, report.as_data()["encrypted"]) == (True, True)
    encrypted = verify(flip(data, first_offset(data)))
    assert (encrypted.verdict, encrypted.errors) == (Verdict.ENCRYPTED, [])
    assert len(encrypted.notes) == report.hashed_segments - encrypted.hashed_segments > 0
    assert any("does not match its encrypted bytes" in note for note in encrypted.notes)


def test_a_spoiled_encrypted_image_is_invalid(key: Key, library: bytes) -> None:
    data = sign_elf(library, key, trailer=PARAMETERS)
    start = data.index(key.chain)
    for spoiled in (flip(data, 24), flip(data, PLACE + 200), flip(data, start - 9)):
        report = verify(spoiled)
        assert (report.verdict, report.encrypted) == (Verdict.INVALID, True)
    table = sign_elf(library, key, trailer=PARAMETERS, wrong_entry=0)
    assert kinds(verify(table)) == {Kind.HASH}


CONTENT = ENTRIES * 48 + 256 + CHAIN_BYTES  # what follows the header and metadata of version 6
# The version of a header, which of its words is another, its value, and whether that is a fault.
HEADERS = [
    # Fields that only a loader reads, and numbers that are not published.
    *((version, 0, value, False) for version, value in ((3, 0xC), (5, 4), (6, 5))),
    *((5, 6, 0xFA00, False), (6, 6, 0, False), (6, 8, 0x8BD00248, False), (3, 2, 7, False)),
    *((7, 11, 1, False), (7, 14, 9, False)),
    # The total counts the parts, and at most all that follows the header.
    *((6, 4, CONTENT - 1, True), (6, 4, CONTENT, False)),
    *((6, 4, CONTENT + 120, False), (6, 4, CONTENT + 121, True)),
    # Reserved words, versions, another hash algorithm, parts that end too late.
    *((7, 0, 1, True), (8, 0, 1, True), (7, 10, 1, True), (7, 11, 2, True), (7, 14, 2, True)),
    *((6, 5, ENTRIES * 48 + 1, True), (6, 9, CHAIN_BYTES + 1, True), (6, 1, 4, True)),
]


def test_each_wrong_word_of_a_signed_header_is_a_fault(key: Key, library: bytes) -> None:
    lines = []
    for version, word, value, faulty in HEADERS:
        liar = LyingKey(**dataclasses.asdict(key), word=word, value=value)
        data = put_word(sign_elf(library, liar, version), PLACE + 4 * word, value)
        errors = verify(data).errors
        assert len(errors) == faulty, (version, word, value)
        lines += [f"version {version}, word {word}: {error}\n" for error in errors]
    check_snapshot(SNAPSHOTS / "headers.txt", "".join(lines))


# Signers and certificates


def test_a_placeholder_or_missing_signature_is_invalid(
    key: Key, library: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open tools fill the signature with ones for unfused devices; a chain may have no
    signature."""
    for value in (b"\xff" * 256, b"", b"\x33" * 256):
        report = verify(sign_elf(library, FixedKey(0, 0, key.chain, value=value)))
        assert (report.verdict, kinds(report)) == (Verdict.INVALID, {Kind.SIGNATURE})
        assert report.errors[0].startswith("OEM: ")
    monkeypatch.setattr(mbn_writer, "CHAIN_BYTES", 0)
    report = verify(sign_elf(library, FixedKey(0, 0, b""), 5))
    assert report.errors == ["the hash segment contains hashes but no signature"]


def test_a_signature_of_another_file_is_distinguished_from_another_keys(
    key: Key, library: bytes
) -> None:
    other_image = sign_elf(
        flip(library, parse_image(memoryview(library)).segments[2].header.offset), key
    )
    start = other_image.index(key.chain) - key.size
    borrowed = FixedKey(0, 0, key.chain, value=other_image[start : start + key.size])
    (error,) = verify(sign_elf(library, borrowed)).errors
    assert "over a different digest" in error


@pytest.fixture(scope="module")
def vendor() -> Key:
    return make_key()


def find_parts(vendor: Key) -> tuple[int, int]:
    """Where the two signatures of a file are that the vendor and an OEM signed."""
    first = TABLE + METADATA[6] + ENTRIES * 48
    return first, first + vendor.size + len(vendor.chain)


@pytest.mark.parametrize("over_all", [False, True])
def test_two_signatures_are_proven_over_their_own_parts_or_over_all(
    key: Key, vendor: Key, library: bytes, over_all: bool
) -> None:
    data = bytearray(sign_elf(library, key, vendor=vendor))
    for signer, place in zip((vendor, key), find_parts(vendor), strict=True) if over_all else ():
        signed = bytes(data[PLACE : find_parts(vendor)[0]])
        data[place : place + signer.size] = signer.sign(signed, 6)
    report = verify(bytes(data))
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])
    assert [signer.authority for signer in report.signers] == ["Qualcomm", "OEM"]


def test_two_signatures_cover_every_byte_before_the_hashes(
    key: Key, vendor: Key, library: bytes
) -> None:
    """The header, both metadata and the entry of the hash segment; all other entries are hashes."""
    data = sign_elf(library, key, vendor=vendor)
    table = TABLE + METADATA[6]
    owners = {48: "Qualcomm", 167: "Qualcomm", 168: "OEM", 287: "OEM"}
    for place in [*range(48), *range(48, 288, 7), *owners, *range(table + 48, table + 96, 5)]:
        position = place if place > PLACE else PLACE + place
        report = verify(flip(data, position))
        assert report.verdict is Verdict.INVALID, position
        if place in owners:
            (fault,) = report.faults
            assert fault.kind is Kind.SIGNATURE
            assert fault.text.startswith(f"{owners[place]}: the signature was made with the leaf's")


class BlankingKey(Key):
    """Signs as one of two signers may: with the other's metadata as zeros."""

    def sign(self, signed: bytes, version: int) -> bytes:
        return super().sign(signed[:48] + bytes(120) + signed[168:], version)


def test_a_single_signature_that_does_not_cover_its_metadata_is_invalid(
    key: Key, library: bytes
) -> None:
    data = sign_elf(library, BlankingKey(key.modulus, key.private_exponent, key.chain))
    assert verify(flip(data, PLACE + 48)).verdict is Verdict.INVALID


def test_metadata_without_a_signature_is_not_ignored(key: Key, vendor: Key, library: bytes) -> None:
    """Only a second signature can cover what the first one leaves out."""
    data = bytearray(sign_elf(library, key, vendor=vendor))
    place, second = find_parts(vendor)
    gone = second - place
    # The same segment without Qualcomm's signature and chain, and without their sizes.
    data[place : place + 0x4000] = data[second : place + 0x4000] + b"\xff" * gone
    data[PLACE + 8 : PLACE + 16] = bytes(8)
    report = verify(bytes(data))
    assert [signer.authority for signer in report.signers] == ["OEM"]
    assert Kind.SIGNATURE in kinds(report)


def split_chain(chain: bytes) -> list[bytes]:
    certificates = []
    while chain:
        size = 4 + int.from_bytes(chain[2:4], "big")
        certificates.append(chain[:size])
        chain = chain[size:]
    return certificates


def test_expired_certificates_are_notes_unless_a_date_is_given(key: Key, library: bytes) -> None:
    data = memoryview(sign_elf(library, make_key(-1)))
    report = verify_bytes(data)
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])
    assert report.notes[0].startswith("OEM: certificate 0 expired on")
    (fault,) = verify_bytes(data, at=NOW).faults
    assert (fault.kind, fault.text) == (Kind.DATE, report.notes[0])
    assert verify_bytes(data, at=NOW - 2 * DAY).verdict is Verdict.PROVEN
    early = verify_bytes(memoryview(sign_elf(library, key)), at=NOW - 1000 * DAY)
    assert [fault.kind for fault in early.faults] == [Kind.DATE] * 3


def test_a_chain_of_certificates_in_a_file_is_judged(key: Key, library: bytes) -> None:
    def judge(*certificates: bytes) -> Verification:
        return verify(sign_elf(library, dataclasses.replace(key, chain=b"".join(certificates))))

    leaf, middle, root = split_chain(key.chain)
    _, *foreign = split_chain(make_key().chain)
    mixed = judge(leaf, *foreign)
    assert [fault.kind for fault in mixed.faults] == [Kind.CHAIN]
    assert mixed.errors[0].startswith("OEM: certificate 0 is not signed by any certificate after")
    rootless = judge(leaf, middle)
    assert (rootless.verdict, rootless.errors) == (Verdict.PROVEN, [])
    assert rootless.notes[0].startswith("OEM: the root is not in the file")
    spare = judge(leaf, middle, root, foreign[-1])
    assert (spare.verdict, len(spare.signers[0].chain)) == (Verdict.PROVEN, 4)


# Beside the unsigned original


def test_signed_bytes_unlike_the_input_are_found(key: Key, library: bytes, tmp_path: Path) -> None:
    data = sign_elf(library, key)
    segment = parse_image(memoryview(data)).segments[4]
    assert kinds(verify(flip(data, segment.header.offset + 3), library)) == {
        Kind.HASH,
        Kind.DIFFERENT,
    }
    altered = flip(library, parse_image(memoryview(library)).segments[2].header.offset)
    assert verify(sign_elf(altered, key)).verdict is Verdict.PROVEN
    (tmp_path / "a.so").write_bytes(sign_elf(altered, key))
    (tmp_path / "b.so").write_bytes(library)
    assert kinds(verify_file(tmp_path / "a.so", tmp_path / "b.so")) == {Kind.DIFFERENT}
    for before in (b"", b"text", b"\x7fELF"):
        report = verify(data, before)
        assert (kinds(report), len(report.signers)) == ({Kind.DIFFERENT}, 1)
        assert report.errors[0].startswith("the input cannot be compared: ")


def test_a_signed_library_with_another_load_layout_differs_from_its_input(library: bytes) -> None:
    image = parse_image(memoryview(library))
    count = len(image.segments)
    third = list(image.loadable())[2]
    edits = {
        "machine": put(library, 18, "<H", 62),
        "entry": put(library, 24, "<I", image.headers.entry + 1),
        "flags": put(library, 36, "<I", image.headers.flags + 1),
        "a segment fewer": put(library, 44, "<H", count - 1),
        "first byte": flip(library, third.header.offset),
        "last byte": flip(library, third.end - 1),
    }
    for word in (2, 3, 5, 6, 7):
        value = struct.unpack_from("<I", library, 52 + 32 * third.index + 4 * word)[0]
        edits[f"word {word}"] = put_header(library, third.index, word, value + 4)
    differences = {
        name: list_differences(parse_image(memoryview(data)), image) for name, data in edits.items()
    }
    fewer = parse_image(memoryview(edits["a segment fewer"]))
    differences["a segment more"] = list_differences(image, fewer)
    assert all(differences.values())
    assert list_differences(image, image) == []
    check_snapshot(SNAPSHOTS / "differences.txt", show(differences))
