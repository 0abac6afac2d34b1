"""Hash segments that are wrong in one field and right in all sums and signatures."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ci.signing.proof.mbn import parse_hash_segment
from ci.signing.proof.segments import MalformedError, parse_image
from ci.signing.proof.verdict import Verdict, Verification
from ci.signing.proof.verify import SIGNED_MACHINES, verify_bytes
from tests.stand_ins.elfsigner import mbn_writer
from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import CHAIN_BYTES, Key, sign_elf

PLACE = 0x1000
ELF_FILES = Path(__file__).parents[3] / "artifacts" / "elf"


def verify(data: bytes) -> Verification:
    return verify_bytes(memoryview(data))


def put_word(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + struct.pack("<I", value) + data[position + 4 :]


@pytest.mark.parametrize(
    ("trailer", "fault"),
    [
        (b"", ""),
        (b"\xff" * 208, ""),
        (b"\0" * 208, "208 bytes after the last part are not padding of 0xff"),
        (b"\xff" * 207 + b"\xfe", "208 bytes after the last part are not padding of 0xff"),
        (b"key", "3 bytes after the last part are not padding of 0xff"),
    ],
)
@pytest.mark.parametrize("version", [3, 5, 6, 7, 8])
def test_only_ones_may_follow_the_last_part(
    key: Key, library: bytes, version: int, trailer: bytes, fault: str
) -> None:
    report = verify(sign_elf(library, key, version, trailer=trailer))
    assert report.errors == ([fault] if fault else [])
    assert report.verdict is (Verdict.INVALID if fault else Verdict.PROVEN)


class LyingKey(Key):
    """Signs a header in which a word was changed before."""

    word, value = 0, 0

    def sign(self, signed: bytes, version: int) -> bytes:
        return super().sign(put_word(signed, 4 * self.word, self.value), version)


def lie(key: Key, library: bytes, version: int, word: int, value: int) -> Verification:
    """A file of which one word of the header is another, and is signed so."""
    signer = LyingKey(
        key.modulus, key.private_exponent, key.chain, key.software_id, key.hardware_id
    )
    LyingKey.word, LyingKey.value = word, value
    return verify(put_word(sign_elf(library, signer, version), PLACE + 4 * word, value))


@pytest.mark.parametrize(
    ("version", "word", "value"),
    [(3, 0, 0xC), (5, 0, 4), (6, 0, 5), (5, 6, 0xFA00), (6, 6, 0), (6, 8, 0x8BD00248), (3, 2, 7)],
)
def test_fields_that_only_a_loader_reads_are_not_judged(
    key: Key, library: bytes, version: int, word: int, value: int
) -> None:
    report = lie(key, library, version, word, value)
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])


def content_size(key: Key, entries: int = 11) -> int:
    return entries * 48 + key.size + CHAIN_BYTES


@pytest.mark.parametrize(("more", "good"), [(-1, False), (0, True), (120, True), (121, False)])
def test_total_holds_the_parts_and_at_most_all_that_follows(
    key: Key, library: bytes, more: int, good: bool
) -> None:
    total = content_size(key) + more
    report = lie(key, library, 6, 4, total)
    assert (report.verdict is Verdict.PROVEN) is good
    if not good:
        assert report.errors == [
            f"the header says {total} bytes follow, its parts have {content_size(key)}"
        ]


@pytest.mark.parametrize(
    ("version", "word", "value", "words"),
    [
        (7, 0, 1, "reserved word 0x1 instead of 0"),
        (8, 0, 1, "reserved word 0x1 instead of 0"),
        (7, 10, 1, "common metadata of version 1.0, which is not published"),
        (7, 11, 2, "common metadata of version 0.2, which is not published"),
        (7, 14, 2, "names hash algorithm sha256, the table is sha384"),
        (6, 5, 11 * 48 + 1, "parts have"),
    ],
)
def test_inconsistent_field_is_named(
    key: Key, library: bytes, version: int, word: int, value: int, words: str
) -> None:
    errors = lie(key, library, version, word, value).errors
    assert len(errors) == 1
    assert words in errors[0]


@pytest.mark.parametrize(("word", "value"), [(11, 1), (14, 9)])
def test_later_metadata_and_numbers_that_are_not_published_are_proven(
    key: Key, library: bytes, word: int, value: int
) -> None:
    assert lie(key, library, 7, word, value).verdict is Verdict.PROVEN


def test_small_common_metadata_is_named(key: Key, library: bytes) -> None:
    data = bytearray(sign_elf(library, key, 7))
    struct.pack_into("<I", data, PLACE + 8, 23)
    struct.pack_into("<I", data, PLACE + 16, 121)
    assert "common metadata of 23 bytes instead of 24" in verify(bytes(data)).errors


@pytest.mark.parametrize("version", [0, 1, 2, 4, 9])
def test_other_versions_are_refused(key: Key, library: bytes, version: int) -> None:
    (error,) = verify(put_word(sign_elf(library, key), PLACE + 4, version)).errors
    assert error == f"MBN header version {version} is none of 3, 5, 6, 7, 8"


@pytest.mark.parametrize(("version", "size"), [(3, 40), (5, 40), (6, 48), (7, 40), (8, 56)])
def test_header_is_whole_or_malformed(version: int, size: int) -> None:
    header = struct.pack("<14I", 0, version, *[0] * 12)
    assert parse_hash_segment(memoryview(header[:size])).version == version
    with pytest.raises(MalformedError):
        parse_hash_segment(memoryview(header[: size - 1]))


def test_one_part_more_than_the_segment_holds_is_malformed(key: Key, library: bytes) -> None:
    data = sign_elf(library, key, 6)
    (error,) = verify(put_word(data, PLACE + 4 * 9, CHAIN_BYTES + 1)).errors
    assert "the MBN header's parts have" in error


@pytest.fixture(scope="module")
def vendor() -> Key:
    return make_key()


def test_two_signatures_are_proven_each_over_its_own_part(
    key: Key, vendor: Key, library: bytes
) -> None:
    report = verify(sign_elf(library, key, vendor=vendor))
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])
    assert [one.authority for one in report.signers] == ["Qualcomm", "OEM"]


# Words 2 and 3 are Qualcomm's sizes, 7 and 9 the OEM's; the metadata starts at 48 and at 168.
@pytest.mark.parametrize(
    ("position", "authority"), [(48, "Qualcomm"), (167, "Qualcomm"), (168, "OEM"), (287, "OEM")]
)
def test_changed_metadata_of_one_of_two_signers_is_its_own_fault(
    key: Key, vendor: Key, library: bytes, position: int, authority: str
) -> None:
    data = bytearray(sign_elf(library, key, vendor=vendor))
    data[PLACE + position] ^= 1
    (error,) = verify(bytes(data)).errors
    assert error.startswith(f"{authority}: the signature is of the leaf's key over another digest")


def test_two_signatures_cover_every_byte_before_them(key: Key, vendor: Key, library: bytes) -> None:
    data = bytearray(sign_elf(library, key, vendor=vendor))
    for position in range(PLACE, PLACE + 48 + 240 + 11 * 48):
        data[position] ^= 1
        assert verify(bytes(data)).verdict is Verdict.INVALID, position
        data[position] ^= 1


def test_single_signer_may_not_leave_out_its_metadata(key: Key, library: bytes) -> None:
    """What two signers may do: sign with the other's metadata as zeros."""

    class BlankingKey(Key):
        def sign(self, signed: bytes, version: int) -> bytes:
            return super().sign(signed[:48] + bytes(120) + signed[168:], version)

    signer = BlankingKey(key.modulus, key.private_exponent, key.chain)
    data = bytearray(sign_elf(library, signer))
    data[PLACE + 48] ^= 1
    assert verify(bytes(data)).verdict is Verdict.INVALID


def put_machine(library: bytes, machine: int) -> bytes:
    return library[:18] + struct.pack("<H", machine) + library[20:]


@pytest.mark.parametrize("machine", sorted(SIGNED_MACHINES))
def test_machines_of_released_images_are_proven(key: Key, library: bytes, machine: int) -> None:
    report = verify(sign_elf(put_machine(library, machine), key))
    assert report.verdict is Verdict.PROVEN
    assert report.as_data()["hexagon_version"] == ("V69" if machine == 164 else None)


@pytest.mark.parametrize(("machine", "name"), [(62, "x86-64"), (3, "x86"), (8, "e_machine 8")])
def test_other_machines_are_not(key: Key, library: bytes, machine: int, name: str) -> None:
    report = verify(sign_elf(put_machine(library, machine), key))
    assert report.errors == [f"is of machine {name}, which no signed image is"]
    assert report.verdict is Verdict.INVALID


def test_version_of_hexagon_has_ten_bits(library: bytes) -> None:
    changed = put_word(library, 36, 0x8168)
    assert parse_image(memoryview(changed)).hexagon_version == 0x168


@pytest.mark.parametrize("hashes", [True, False])
def test_first_part_of_a_split_image_is_told_from_a_truncated_file(
    key: Key, library: bytes, hashes: bool
) -> None:
    data = sign_elf(library, key)
    image = parse_image(memoryview(data))
    (segment,) = image.hash_segments
    first = data[: image.headers.end]
    first += data[segment.offset : segment.end] if hashes else b""
    (error,) = verify(first).errors
    assert "the first part (.mdt) of a split image" in error
    (other,) = verify(first + b"\0").errors
    assert "truncated" in other


def sign_whole(data: bytes, place: int, *pairs: tuple[Key, int]) -> bytes:
    """Sign again over all that stands before the signatures, nothing left out."""
    changed = bytearray(data)
    for signer, position in pairs:
        changed[position : position + signer.size] = signer.sign(bytes(data[PLACE:place]), 6)
    return bytes(changed)


def test_two_signatures_over_the_whole_header_are_proven_too(
    key: Key, vendor: Key, library: bytes
) -> None:
    data = sign_elf(library, key, vendor=vendor)
    place = PLACE + 48 + 240 + 11 * 48
    second = place + vendor.size + len(vendor.chain)
    report = verify(sign_whole(data, place, (vendor, place), (key, second)))
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])


def test_metadata_of_a_signer_that_did_not_sign_is_not_left_out(
    key: Key, vendor: Key, library: bytes
) -> None:
    """Only a second signature can vouch for what the first leaves out."""
    data = bytearray(sign_elf(library, key, vendor=vendor))
    place = PLACE + 48 + 240 + 11 * 48
    gone = vendor.size + len(vendor.chain)
    # The same segment without Qualcomm's signature and chain, and without their sizes.
    data[place : place + 0x4000] = data[place + gone : place + 0x4000] + b"\xff" * gone
    data[PLACE + 8 : PLACE + 16] = bytes(8)
    report = verify(bytes(data))
    assert [one.authority for one in report.signers] == ["OEM"]
    assert any("OEM: the signature" in error for error in report.errors)


def test_hashes_without_any_signature_are_invalid(
    key: Key, library: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoKey(Key):
        size = 0

        def sign(self, signed: bytes, version: int) -> bytes:
            return b""

    monkeypatch.setattr(mbn_writer, "CHAIN_BYTES", 0)
    report = verify(sign_elf(library, NoKey(0, 0, b""), 5))
    assert report.errors == ["the hash segment holds hashes but no signature"]
    assert report.verdict is Verdict.INVALID


def test_first_program_header_stands_for_the_headers(
    key: Key, library: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mbn_writer, "PF_HEADERS", 0x06000000)
    (error,) = verify(sign_elf(library, key)).errors
    assert error == "the first program header does not stand for the headers"


@pytest.mark.parametrize("less", [0, 1, 32])
def test_first_hash_covers_the_headers_and_no_less(key: Key, library: bytes, less: int) -> None:
    report = verify(sign_elf(library, key, uncovered=less))
    assert len(report.errors) == (1 if less else 0)
    assert not less or report.errors[0].startswith("the first hash covers ")


def test_hash_segment_may_touch_its_neighbours(
    key: Key, library: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mbn_writer, "PAGE", 4)
    data = sign_elf(library, key)
    image = parse_image(memoryview(data))
    (segment,) = image.hash_segments
    assert segment.offset == image.headers.end
    assert verify(data).errors == []


@pytest.mark.parametrize(("count", "good"), [(99, True), (100, True), (101, False)])
def test_a_hundred_program_headers_are_read(library: bytes, count: int, good: bool) -> None:
    data = library[:44] + struct.pack("<H", count) + library[46:52]
    data += struct.pack("<8I", 0, 0, 0, 0, 0, 0, 0, 0) * count
    report = verify(data)
    assert report.verdict is (Verdict.UNSIGNED if good else Verdict.INVALID)
    assert good or report.errors == ["101 program headers"]


def test_other_byte_order_is_invalid() -> None:
    data = (ELF_FILES / "libbigendian.so").read_bytes()
    assert verify(data).errors == ["not a little-endian ELF file of version 1"]
