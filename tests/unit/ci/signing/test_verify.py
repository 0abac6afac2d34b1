"""The proof from the bytes: every format is accepted, every spoiled part is found and named."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import itertools
import random
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ci.signing import verify as verifying
from ci.signing.segments import MalformedError, TruncatedError, parse_image
from ci.signing.verdict import Kind, Scheme, Verdict, Verification
from ci.signing.verify import list_differences, verify_bytes, verify_file
from provisioning.elf.facts import PT_LOAD, Genuine, Proof
from provisioning.elf.qnn_build import QnnBuild
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
ELF_FILES = Path(__file__).parents[3] / "artifacts" / "elf"


def kinds(report: Verification) -> set[Kind]:
    return {fault.kind for fault in report.faults}


# What is accepted


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_format_is_proven(key: Key, library: bytes, version: int, algorithm: str) -> None:
    report = verify(sign_elf(library, key, version, algorithm), library)
    assert (report.verdict, report.errors, report.notes) == (Verdict.PROVEN, [], [])
    assert (report.header_version, report.algorithm) == (version, algorithm)
    expected = Scheme.PSS if version >= 6 else Scheme.PKCS1
    assert [one.scheme for one in report.signers] == [expected]
    assert report.hashed_segments == 9  # all but the empty one and the hash segment itself


def test_an_unsigned_library_is_unsigned(library: bytes) -> None:
    assert verify(library).verdict is Verdict.UNSIGNED


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


def test_an_ecdsa_signature_is_recognised(library: bytes) -> None:
    private = ec.generate_private_key(ec.SECP384R1())
    chain = certify(LEAF_NAME, private, ROOT_NAME, private)
    chain += certify(ROOT_NAME, private, ROOT_NAME, private)
    report = verify(sign_elf(library, EcKey(0, 0, chain, private=private)), library)
    assert (report.verdict, report.signers[0].scheme) == (Verdict.PROVEN, Scheme.ECDSA)
    assert report.signers[0].chain[0].key == "EC secp384r1"


def test_a_key_without_a_published_scheme_is_a_verdict_of_its_own(library: bytes) -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    authority = ec.generate_private_key(ec.SECP256R1())
    chain = certify(LEAF_NAME, private, ROOT_NAME, authority)
    chain += certify(ROOT_NAME, authority, ROOT_NAME, authority)
    report = verify(sign_elf(library, FixedKey(0, 0, chain, value=bytes(range(64)))))
    assert (report.verdict, report.errors) == (Verdict.UNRECOGNISED, [])
    assert "Ed25519" in report.notes[0]


# A modem's configuration (mcfg_hw.mbn), a DTB, Arm, Xtensa, Hexagon, AArch64, RISC-V.
@pytest.mark.parametrize("machine", [0, 1, 40, 94, 164, 183, 243])
def test_machines_of_released_images_are_proven(key: Key, library: bytes, machine: int) -> None:
    report = verify(sign_elf(put(library, 18, "<H", machine), key))
    assert report.verdict is Verdict.PROVEN
    assert report.hexagon_version == (0x69 if machine == 164 else 0)


@pytest.mark.parametrize(("machine", "name"), [(62, "x86-64"), (3, "x86"), (8, "e_machine 8")])
def test_other_machines_are_not(key: Key, library: bytes, machine: int, name: str) -> None:
    report = verify(sign_elf(put(library, 18, "<H", machine), key))
    assert report.errors == [f"no signed image is known for machine {name}"]


def place_segments(library: bytes, kind: int) -> list[int]:
    """Where the program headers of a type are in the file."""
    headers = struct.unpack_from("<I", library, 28)[0]
    places = range(headers, headers + 32 * struct.unpack_from("<H", library, 44)[0], 32)
    return [place for place in places if struct.unpack_from("<I", library, place)[0] == kind]


def test_a_segment_that_its_memory_does_not_hold_is_not_proven(key: Key, library: bytes) -> None:
    place = place_segments(library, PT_LOAD)[0]
    size = struct.unpack_from("<I", library, place + 16)[0]
    for memory, proven in ((size, True), (size + 1, True), (size - 1, False), (0, False)):
        report = verify(sign_elf(put_word(library, place + 20, memory), key))
        assert (report.verdict is Verdict.PROVEN) is proven
        assert proven or f"{memory} bytes of memory" in report.errors[0]


def test_an_image_of_which_nothing_is_loaded_is_not_proven(key: Key, library: bytes) -> None:
    for place in place_segments(library, PT_LOAD):
        library = put_word(library, place, 0x60000000)
    assert verify(sign_elf(library, key)).errors == ["no segment is loadable (type LOAD)"]


@pytest.mark.parametrize(("version", "known"), [(0x68, True), (0x81, True), (0x255, False)])
def test_a_hexagon_that_nobody_knows_is_noted(
    key: Key, library: bytes, version: int, known: bool
) -> None:
    report = verify(sign_elf(put_word(library, 36, version), key))
    assert report.verdict is Verdict.PROVEN
    assert any(f"V{version:X}" in note for note in report.notes) is not known


def test_the_version_of_hexagon_has_ten_bits(library: bytes) -> None:
    assert parse_image(memoryview(put_word(library, 36, 0x8168))).hexagon_version == 0x168


# Flipped bits


@pytest.mark.parametrize(
    ("version", "algorithm"), list(zip(VERSIONS, itertools.cycle(ALGORITHMS), strict=False))
)
def test_any_flipped_bit_in_headers_and_table_is_found(
    key: Key, library: bytes, version: int, algorithm: str
) -> None:
    """The whole MBN header, metadata and table of each version, which no original helps to judge;
    once the ELF headers, which are the same in all."""
    data = sign_elf(library, key, version, algorithm)
    headers_end = parse_image(memoryview(data)).headers.end
    size = PLACES[version] + METADATA[version] + ENTRIES * hashlib.new(algorithm).digest_size
    rng = random.Random(version)
    for position in [*range(headers_end if version == 6 else 0), *range(PLACE, PLACE + size)]:
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


# The image


@pytest.mark.parametrize("size", [0, 3, 51, 52, 60, 100, 0x1000, 0x1020, 0x1800, 0x3100, -1])
def test_a_truncated_file_is_invalid(key: Key, library: bytes, size: int) -> None:
    report = verify(sign_elf(library, key)[:size])
    assert report.verdict is Verdict.INVALID
    assert kinds(report) <= {Kind.TRUNCATED, Kind.LAYOUT}
    assert size >= 0 or kinds(report) == {Kind.TRUNCATED}
    assert issubclass(TruncatedError, MalformedError)


@pytest.mark.parametrize(("count", "good"), [(0, False), (99, True), (100, True), (101, False)])
def test_a_hundred_program_headers_are_read(library: bytes, count: int, good: bool) -> None:
    report = verify(put(library[:52], 44, "<H", count) + bytes(32 * (count or 1)))
    assert report.verdict is (Verdict.UNSIGNED if good else Verdict.INVALID)
    assert good or (len(report.errors) == 1 and f" {count} program headers" in report.errors[0])


@pytest.mark.parametrize("name", ["libbigendian.so", "version 2", "text"])
def test_what_is_no_image_that_a_dsp_loads(library: bytes, name: str) -> None:
    data = {"version 2": put(library, 6, "B", 2), "text": b"<html>" * 20}.get(name)
    report = verify(data or (ELF_FILES / name).read_bytes())
    assert kinds(report) == {Kind.LAYOUT}
    assert ("little-endian" in report.errors[0]) is (name != "text")


@pytest.mark.parametrize("with_hashes", [True, False])
def test_the_first_part_of_a_split_image_is_told_from_a_truncated_file(
    key: Key, library: bytes, with_hashes: bool
) -> None:
    data = sign_elf(library, key)
    image = parse_image(memoryview(data))
    (segment,) = image.hash_segments
    first = data[: image.headers.end]
    first += data[segment.offset : segment.end] if with_hashes else b""
    assert "(.mdt) of a split image" in verify(first).errors[0]
    assert kinds(verify(first + b"\0")) == {Kind.TRUNCATED}


def test_a_segment_is_described_by_its_kind(library: bytes) -> None:
    image = parse_image(memoryview(put_header(put_header(library, 0, 0, 0), 1, 0, 0x70000001)))
    described = [one.describe().partition(",")[0] for one in image.segments[:3]]
    assert described == ["segment 0 (NULL", "segment 1 (type 0x70000001", "segment 2 (LOAD"]
    one = image.segments[2]
    assert one.describe() == f"segment 2 (LOAD, {one.file_size} bytes at {one.offset:#x})"


# The layout of a signed image


def spoil_layout(data: bytes, how: str) -> bytes:
    end = parse_image(memoryview(data)).headers.end
    return {
        "two hash segments": put_header(data, 0, 6, 0x02200000),
        "no placeholder": put_header(data, 0, 6, 0),
        "placeholder too short": put_header(data, 0, 4, end - 1),
        "placeholder moved": put_header(data, 0, 1, 4),
        "no hash segment": put_header(data, 1, 6, 0),
        "segment over the hashes": put_header(data, 5, 1, PLACE),
        "text behind the last segment": data + b"\0\0key",
    }[how]


LAYOUTS = (
    "two hash segments",
    "no placeholder",
    "placeholder too short",
    "placeholder moved",
    "no hash segment",
    "segment over the hashes",
    "text behind the last segment",
)


def find_layout_faults(key: Key, library: bytes, how: str) -> list[str]:
    faults = verify(spoil_layout(sign_elf(library, key), how)).faults
    return [one.text for one in faults if one.kind is Kind.LAYOUT]


@pytest.mark.parametrize("how", LAYOUTS)
def test_a_wrong_layout_is_found(key: Key, library: bytes, how: str) -> None:
    assert find_layout_faults(key, library, how)


def test_faults_of_a_layout_read_like_their_snapshot(key: Key, library: bytes) -> None:
    found = {how: find_layout_faults(key, library, how) for how in LAYOUTS}
    lines = [f"{how}: {text}\n" for how, texts in found.items() for text in texts]
    check_snapshot(SNAPSHOTS / "layouts.txt", "".join(lines))


# The second: the hash segment touches its neighbours.
@pytest.mark.parametrize(
    ("name", "value", "faults"), [("PF_HEADERS", 0x06000000, 1), ("PAGE", 4, 0)]
)
def test_what_a_signer_lays_out(
    key: Key, library: bytes, monkeypatch, name: str, value: int, faults: int
) -> None:
    monkeypatch.setattr(mbn_writer, name, value)
    data = sign_elf(library, key)
    assert [one.kind for one in verify(data).faults] == [Kind.LAYOUT] * faults
    image = parse_image(memoryview(data))
    assert (image.hash_segments[0].offset == image.headers.end) is (name == "PAGE")


@pytest.mark.parametrize("less", [0, 1, 32])
def test_the_first_hash_covers_the_headers_and_no_less(key: Key, library: bytes, less: int) -> None:
    report = verify(sign_elf(library, key, uncovered=less))
    assert [one.kind for one in report.faults] == ([Kind.LAYOUT] if less else [])


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"\x01"])
def test_bytes_that_no_hash_covers_are_padding(key: Key, library: bytes, filler: bytes) -> None:
    data = sign_elf(library, key)
    verdict = Verdict.INVALID if filler == b"\1" else Verdict.PROVEN
    assert verify(data).uncovered
    for start, end in verify(data).uncovered:
        assert verify(data[:start] + filler * (end - start) + data[end:]).verdict is verdict
        mixed = verify(flip(data, end - 1))
        assert mixed.verdict is (Verdict.INVALID if end - start > 1 else Verdict.PROVEN)
    assert verify(data + b"\0" * 9).verdict is Verdict.PROVEN


# The hash segment and its hashes


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        (0, "the hash of the ELF header and the program headers"),
        (1, "the hash segment's own entry"),
        (3, "the hash of segment 3 (LOAD"),
    ],
)
def test_a_wrong_hash_names_its_segment(key: Key, library: bytes, entry: int, part: str) -> None:
    (fault,) = verify(sign_elf(library, key, wrong_entry=entry)).faults
    assert fault.kind is Kind.HASH
    assert fault.text.startswith(part)


@pytest.mark.parametrize("place", [0, 20, 47])
def test_the_hash_of_an_empty_segment_is_zero_or_right(
    key: Key, library: bytes, place: int
) -> None:
    """One byte of it that is not zero makes it a wrong hash."""
    data = sign_elf(library, key, 6)
    empty = [
        index
        for index, one in enumerate(parse_image(memoryview(data)).segments)
        if not one.file_size
    ]
    table = PLACE + PLACES[6] + METADATA[6]
    (index,) = empty
    entry = slice(table + 48 * index, table + 48 * index + 48)
    assert data[entry] == bytes(48)
    spoiled = flip(data, entry.start + place)
    faults = [one.text for one in verify(spoiled).faults if one.kind is Kind.HASH]
    assert [one.partition(" (")[0] for one in faults] == [f"the hash of segment {index}"]
    right = data[: entry.start] + hashlib.sha384().digest() + data[entry.stop :]
    assert not [one for one in verify(right).faults if one.kind is Kind.HASH]


def test_a_segment_without_a_hash_is_an_error(key: Key, library: bytes) -> None:
    """A zero entry is for empty segments only, whatever the flags say of a segment's use."""
    data = sign_elf(put_header(library, 2, 6, 0x00600005), key)
    table = PLACE + PLACES[6] + METADATA[6]
    changed = data[: table + 4 * 48] + bytes(48) + data[table + 5 * 48 :]
    assert verify(data).verdict is Verdict.PROVEN
    assert any("the hash of segment 4" in error for error in verify(changed).errors)


def test_a_paged_segment_with_one_hash_is_proven(key: Key, library: bytes) -> None:
    assert verify(sign_elf(put_header(library, 3, 6, 0x00100004), key)).verdict is Verdict.PROVEN


def test_only_an_unsigned_file_is_looked_up_in_catalogs(
    key: Key, library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    proof = Proof(Genuine.GENUINE, "libs.cat")

    def prove(path: Path, *given: object) -> Proof:
        asked.append((path.name, *given))
        return proof

    monkeypatch.setattr(verifying, "prove_skel", prove)
    monkeypatch.setattr(verifying, "find_qnn_build", lambda path: QnnBuild(None, None, path.stem))
    (tmp_path / "plain.so").write_bytes(library)
    (tmp_path / "signed.so").write_bytes(sign_elf(library, key))
    plain, signed = (verify_file(tmp_path / f"{name}.so", at=NOW) for name in ("plain", "signed"))
    assert (plain.proof, plain.build, plain.verdict) == (proof, "plain", Verdict.GENUINE)
    assert (signed.proof, signed.build, signed.verdict) == (None, "", Verdict.PROVEN)
    digest = hashlib.sha256(library).hexdigest()
    assert asked == [("plain.so", QnnBuild(None, None, "plain"), digest, NOW)]
    proof = Proof(Genuine.FORGED, "libs.cat", "its signature is wrong")
    forged = verify_file(tmp_path / "plain.so")
    assert [(one.kind, one.text) for one in forged.faults] == [
        (Kind.CATALOG, "libs.cat proves nothing: its signature is wrong")
    ]
    assert forged.verdict is Verdict.INVALID


def test_a_test_signature_holds_the_serial_of_its_name(
    key: Key, library: bytes, tmp_path: Path
) -> None:
    data = sign_elf(library, key, serial=0xDEADBEEF)
    assert verify(data, serial=0xDEADBEEF).verdict is Verdict.PROVEN
    assert kinds(verify(data)) == kinds(verify(data, serial=0xDEADBEEE)) == {Kind.HASH}
    for name, verdict in (("testsig-0xdeadbeef.so", Verdict.PROVEN), ("a.so", Verdict.INVALID)):
        (tmp_path / name).write_bytes(data)
        assert verify_file(tmp_path / name).verdict is verdict
    (tmp_path / "a.so").write_bytes(sign_elf(library, key))
    assert verify_file(tmp_path / "a.so").verdict is Verdict.PROVEN


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("trailer", "good"),
    [(b"\xff" * 208, True), (b"\0" * 208, False), (b"\xff" * 207 + b"\xfe", False)],
)
def test_only_ones_may_follow_the_last_part(
    key: Key, library: bytes, version: int, trailer: bytes, good: bool
) -> None:
    report = verify(sign_elf(library, key, version, trailer=trailer))
    assert kinds(report) == (set() if good else {Kind.HEADER})
    assert good or "208 bytes after the last part" in report.errors[0]


PARAMETERS = b"ISMQ" + b"\x17" * 96  # of an encryption: only the first word is published


@pytest.mark.parametrize("version", VERSIONS)
def test_a_signed_and_encrypted_image_is_named_as_such(
    key: Key, library: bytes, version: int
) -> None:
    """Whether its hashes are those of the bytes before encryption or of those in the file."""
    data = sign_elf(library, key, version, trailer=PARAMETERS)
    report = verify(data)
    assert (report.verdict, report.errors, report.notes) == (Verdict.ENCRYPTED, [], [])
    assert (report.encrypted, report.as_data()["encrypted"]) == (True, True)
    headers = parse_image(memoryview(data)).segments
    loaded = next(one for one in headers if one.header.type == PT_LOAD)
    encrypted = verify(flip(data, loaded.offset))
    assert (encrypted.verdict, encrypted.errors) == (Verdict.ENCRYPTED, [])
    assert len(encrypted.notes) == report.hashed_segments - encrypted.hashed_segments > 0
    assert any(loaded.describe() in note for note in encrypted.notes)
    plain = verify(sign_elf(library, key, version))
    assert (plain.encrypted, plain.as_data()["encrypted"]) == (False, False)


def test_an_encrypted_image_is_no_less_invalid(key: Key, library: bytes) -> None:
    data = sign_elf(library, key, trailer=PARAMETERS)
    start = data.index(key.chain)
    for spoiled in (flip(data, 24), flip(data, PLACE + 200), flip(data, start - 9)):
        report = verify(spoiled)
        assert (report.verdict, report.encrypted) == (Verdict.INVALID, True)
    table = sign_elf(library, key, trailer=PARAMETERS, wrong_entry=0)
    assert kinds(verify(table)) == {Kind.HASH}
    assert kinds(verify(sign_elf(library, key, trailer=b"QMSI" * 9))) == {Kind.HEADER}
    assert kinds(verify(sign_elf(library, key, trailer=b"\xff" * 4 + PARAMETERS))) == {Kind.HEADER}


def sign_lie(key: Key, library: bytes, version: int, word: int, value: int) -> Verification:
    """Verify a file of which one word of the MBN header is another, and is signed so."""
    liar = LyingKey(**dataclasses.asdict(key), word=word, value=value)
    return verify(put_word(sign_elf(library, liar, version), PLACE + 4 * word, value))


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


@pytest.mark.parametrize(("version", "word", "value", "faulty"), HEADERS)
def test_a_signed_header_is_judged_by_what_it_says(
    key: Key, library: bytes, version: int, word: int, value: int, faulty: bool
) -> None:
    assert len(sign_lie(key, library, version, word, value).errors) == faulty


def test_faults_of_a_header_read_like_their_snapshot(key: Key, library: bytes) -> None:
    lines = [
        f"version {version}, word {word}: {error}\n"
        for version, word, value, faulty in HEADERS
        if faulty
        for error in sign_lie(key, library, version, word, value).errors
    ]
    check_snapshot(SNAPSHOTS / "headers.txt", "".join(lines))


# Signers


@pytest.mark.parametrize("value", [b"\xff" * 256, b"", b"\x33" * 256])
def test_a_signature_that_is_none_is_invalid(key: Key, library: bytes, value: bytes) -> None:
    """Open tools fill it with ones for unfused devices; a chain may come without a signature."""
    report = verify(sign_elf(library, FixedKey(0, 0, key.chain, value=value)))
    assert (report.verdict, kinds(report)) == (Verdict.INVALID, {Kind.SIGNATURE})
    assert report.errors[0].startswith("OEM: ")


def test_another_file_s_signature_is_told_from_another_key_s(key: Key, library: bytes) -> None:
    other = sign_elf(flip(library, parse_image(memoryview(library)).segments[2].offset), key)
    start = other.index(key.chain) - key.size
    borrowed = FixedKey(0, 0, key.chain, value=other[start : start + key.size])
    (error,) = verify(sign_elf(library, borrowed)).errors
    assert "over a different digest" in error


def test_hashes_without_any_signature_are_invalid(key: Key, library: bytes, monkeypatch) -> None:
    monkeypatch.setattr(mbn_writer, "CHAIN_BYTES", 0)
    report = verify(sign_elf(library, FixedKey(0, 0, b""), 5))
    assert report.errors == ["the hash segment contains hashes but no signature"]


@pytest.fixture(scope="module")
def vendor() -> Key:
    return make_key()


def find_parts(vendor: Key) -> tuple[int, int]:
    """Where the two signatures of a file are that the vendor and an OEM signed."""
    first = PLACE + PLACES[6] + 2 * METADATA[6] + ENTRIES * 48
    return first, first + vendor.size + len(vendor.chain)


@pytest.mark.parametrize("whole", [False, True])
def test_two_signatures_are_proven_over_their_own_parts_or_over_all(
    key: Key, vendor: Key, library: bytes, whole: bool
) -> None:
    data = bytearray(sign_elf(library, key, vendor=vendor))
    for signer, place in zip((vendor, key), find_parts(vendor), strict=True) if whole else ():
        signed = bytes(data[PLACE : find_parts(vendor)[0]])
        data[place : place + signer.size] = signer.sign(signed, 6)
    report = verify(bytes(data))
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])
    assert [one.authority for one in report.signers] == ["Qualcomm", "OEM"]


# Words 2 and 3 are Qualcomm's sizes, 7 and 9 the OEM's; the metadata starts at 48 and at 168.
@pytest.mark.parametrize(
    ("position", "authority"), [(48, "Qualcomm"), (167, "Qualcomm"), (168, "OEM"), (287, "OEM")]
)
def test_changed_metadata_of_one_of_two_signers_is_its_own_fault(
    key: Key, vendor: Key, library: bytes, position: int, authority: str
) -> None:
    (fault,) = verify(flip(sign_elf(library, key, vendor=vendor), PLACE + position)).faults
    assert fault.kind is Kind.SIGNATURE
    assert fault.text.startswith(f"{authority}: the signature was made with the leaf's key, but")


def test_two_signatures_cover_every_byte_before_the_hashes(
    key: Key, vendor: Key, library: bytes
) -> None:
    """The header, the metadata of both, and the own entry; the other entries are hashes."""
    data = sign_elf(library, key, vendor=vendor)
    table = PLACE + PLACES[6] + 2 * METADATA[6]
    for position in [*range(PLACE, table), *range(table + 48, table + 96)]:
        assert verify(flip(data, position)).verdict is Verdict.INVALID, position


class BlankingKey(Key):
    """Signs as one of two signers may: with the other's metadata as zeros."""

    def sign(self, signed: bytes, version: int) -> bytes:
        return super().sign(signed[:48] + bytes(120) + signed[168:], version)


def test_a_single_signer_may_not_leave_out_its_metadata(key: Key, library: bytes) -> None:
    data = sign_elf(library, BlankingKey(key.modulus, key.private_exponent, key.chain))
    assert verify(flip(data, PLACE + 48)).verdict is Verdict.INVALID


def test_metadata_of_a_signer_that_did_not_sign_is_not_left_out(
    key: Key, vendor: Key, library: bytes
) -> None:
    """Only a second signature can vouch for what the first leaves out."""
    data = bytearray(sign_elf(library, key, vendor=vendor))
    place, second = find_parts(vendor)
    gone = second - place
    # The same segment without Qualcomm's signature and chain, and without their sizes.
    data[place : place + 0x4000] = data[second : place + 0x4000] + b"\xff" * gone
    data[PLACE + 8 : PLACE + 16] = bytes(8)
    report = verify(bytes(data))
    assert [one.authority for one in report.signers] == ["OEM"]
    assert Kind.SIGNATURE in kinds(report)


# Certificates


def split_chain(chain: bytes) -> list[bytes]:
    found = []
    while chain:
        size = 4 + int.from_bytes(chain[2:4], "big")
        found.append(chain[:size])
        chain = chain[size:]
    return found


def with_chain(key: Key, *certificates: bytes) -> Key:
    return dataclasses.replace(key, chain=b"".join(certificates))


def test_dates_are_notes_and_faults_at_a_date(key: Key, library: bytes) -> None:
    data = memoryview(sign_elf(library, make_key(-1)))
    report = verify_bytes(data)
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])
    assert report.notes[0].startswith("OEM: certificate 0 expired on")
    (fault,) = verify_bytes(data, at=NOW).faults
    assert (fault.kind, fault.text) == (Kind.DATE, report.notes[0])
    assert verify_bytes(data, at=NOW - 2 * DAY).verdict is Verdict.PROVEN
    early = verify_bytes(memoryview(sign_elf(library, key)), at=NOW - 1000 * DAY)
    assert [one.kind for one in early.faults] == [Kind.DATE] * 3


def test_a_chain_in_a_file_is_judged(key: Key, library: bytes) -> None:
    leaf, middle, root = split_chain(key.chain)
    _, *others = split_chain(make_key().chain)
    mixed = verify(sign_elf(library, with_chain(key, leaf, *others)))
    assert [fault.kind for fault in mixed.faults] == [Kind.CHAIN]
    assert mixed.errors[0].startswith(
        "OEM: certificate 0 is not signed by any certificate after it"
    )
    rootless = verify(sign_elf(library, with_chain(key, leaf, middle)))
    assert (rootless.verdict, rootless.errors) == (Verdict.PROVEN, [])
    assert rootless.notes[0].startswith("OEM: the root is not in the file")
    spare = verify(sign_elf(library, with_chain(key, leaf, middle, root, others[-1])))
    assert (spare.verdict, len(spare.signers[0].chain)) == (Verdict.PROVEN, 4)


def test_bytes_in_and_after_a_chain_are_found(key: Key, library: bytes) -> None:
    data = sign_elf(library, key, 3)
    start = data.index(key.chain)
    assert verify(flip(data, start + 1000)).verdict is Verdict.INVALID
    after = put(data, start + len(key.chain) + 5, "B", 0x41)
    assert "bytes after the 3 certificates" in verify(after).errors[0]


# Beside the unsigned original


def test_other_bytes_differ_from_the_input_even_when_they_are_signed(
    key: Key, library: bytes, tmp_path: Path
) -> None:
    data = sign_elf(library, key)
    segment = parse_image(memoryview(data)).segments[4]
    assert kinds(verify(flip(data, segment.offset + 3), library)) == {Kind.HASH, Kind.DIFFERENT}
    other = flip(library, parse_image(memoryview(library)).segments[2].offset)
    assert verify(sign_elf(other, key)).verdict is Verdict.PROVEN
    assert kinds(verify(sign_elf(other, key), library)) == {Kind.DIFFERENT}
    (tmp_path / "a.so").write_bytes(sign_elf(other, key))
    (tmp_path / "b.so").write_bytes(library)
    assert kinds(verify_file(tmp_path / "a.so", tmp_path / "b.so")) == {Kind.DIFFERENT}


@pytest.mark.parametrize("before", [b"", b"text", b"\x7fELF"])
def test_an_input_that_is_no_image_is_not_taken_for_the_signed_file(
    key: Key, library: bytes, before: bytes
) -> None:
    report = verify(sign_elf(library, key), before)
    assert (kinds(report), len(report.signers)) == ({Kind.DIFFERENT}, 1)
    assert report.errors[0].startswith("the input cannot be compared: ")


def test_what_loads_otherwise_is_named(library: bytes) -> None:
    image = parse_image(memoryview(library))
    loads = list(image.loadable())
    third = loads[2]
    entry, flags = image.headers.entry, image.headers.flags

    def differences(data: bytes) -> list[str]:
        return list_differences(parse_image(memoryview(data)), image)

    assert differences(library) == []
    for position, form, name, before, now in (
        (18, "<H", "machine", 164, 62),
        (24, "<I", "entry", entry, entry + 1),
        (36, "<I", "flags", flags, flags + 1),
    ):
        found = differences(put(library, position, form, now))
        assert found[0] == f"e_{name} is {now:#x}, not {before:#x} as in the input"
    fewer = put(library, 44, "<H", len(image.segments) - 1)
    assert differences(fewer) == [
        f"there are {len(loads) - 1} loadable segments, but the input has {len(loads)}"
    ]
    more = list_differences(image, parse_image(memoryview(fewer)))
    assert more == [f"there are {len(loads)} loadable segments, but the input has {len(loads) - 1}"]
    for word in (2, 3, 5, 6, 7):
        value = struct.unpack_from("<I", library, 52 + 32 * third.index + 4 * word)[0]
        found = differences(put_header(library, third.index, word, value + 4))
        assert f"{third.describe()} differs from the input in its program header" in found
    for position in (third.offset, third.end - 1):
        found = differences(flip(library, position))
        assert f"{third.describe()} differs from the input in its bytes" in found
