"""The proof from the bytes: every format is accepted, every spoiled part is found and named."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import itertools
import random
import struct

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ci.signing.proof.certificates import list_date_errors, list_link_errors, parse_chain
from ci.signing.proof.segments import MalformedError, parse_image
from ci.signing.proof.verdict import Kind, Scheme, Verdict, Verification
from ci.signing.proof.verify import verify_bytes, verify_file
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify
from tests.stand_ins.elfsigner.keys import make_key, make_known_key
from tests.stand_ins.elfsigner.mbn_writer import PLACES, Key, sign_elf

VERSIONS, ALGORITHMS = (3, 5, 6, 7, 8), ("sha256", "sha384", "sha512")
NOW = dt.datetime.now(dt.timezone.utc)
PLACE = 0x1000  # of the hash segment in these small files
TABLE_MOVES = (0x1C, 6)  # the program headers begin after the two that a signer adds


def verify(data: bytes, original: bytes | None = None, **more: int) -> Verification:
    before = memoryview(original) if original is not None else None
    return verify_bytes(memoryview(data), before, **more)


def spoil(data: bytes, position: int, *values: int) -> bytes:
    changed = bytearray(data)
    for offset, value in enumerate(values or (data[position] ^ 1,)):
        changed[position + offset] = value
    return bytes(changed)


def put_word(data: bytes, position: int, value: int) -> bytes:
    return spoil(data, position, *struct.pack("<I", value))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_format_is_proven(key: Key, library: bytes, version: int, algorithm: str) -> None:
    report = verify(sign_elf(library, key, version, algorithm), library)
    assert (report.verdict, report.errors, report.notes) == (Verdict.PROVEN, [], [])
    assert (report.header_version, report.algorithm) == (version, algorithm)
    expected = Scheme.PSS if version >= 6 else Scheme.PKCS1
    assert [one.scheme for one in report.signers] == [expected]
    # 9 program headers of the input, one of them empty, and the placeholder.
    assert report.hashed_segments == 9


def test_unsigned_library_is_unsigned(library: bytes) -> None:
    assert verify(library).verdict is Verdict.UNSIGNED


def test_report_names_chain_with_subject_dates_and_key_size(key: Key, library: bytes) -> None:
    data = verify(sign_elf(library, key)).as_data()
    leaf, middle, root = data["signers"][0]["certificates"]
    assert leaf["subject"].endswith("CN=Stand-in signer")
    assert leaf["issuer"] == middle["subject"]
    assert root["subject"] == root["issuer"]
    assert (leaf["key"], leaf["key_bits"]) == ("RSA", 2048)
    assert dt.datetime.fromisoformat(leaf["not_after"]) > NOW
    assert any("root" in one for one in data["not_judged"])


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


def test_ecdsa_signature_is_recognised(library: bytes) -> None:
    private = ec.generate_private_key(ec.SECP384R1())
    chain = certify(LEAF_NAME, private, ROOT_NAME, private)
    chain += certify(ROOT_NAME, private, ROOT_NAME, private)
    report = verify(sign_elf(library, EcKey(0, 0, chain, private=private)), library)
    assert (report.verdict, report.signers[0].scheme) == (Verdict.PROVEN, Scheme.ECDSA)
    assert report.signers[0].chain[0].key == "EC secp384r1"


@dataclasses.dataclass(frozen=True)
class FixedKey(Key):
    """Writes ``value`` as its signature."""

    value: bytes = b""

    @property
    def size(self) -> int:
        return len(self.value)

    def sign(self, signed: bytes, version: int) -> bytes:
        return self.value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xff" * 256, "OEM: the signature is filled with 0xff"),
        (b"", "OEM: the signature is empty"),
        (b"\x33" * 256, "OEM: the signature does not verify with the leaf's key"),
    ],
)
def test_signature_that_is_none_is_invalid(
    key: Key, library: bytes, value: bytes, words: str
) -> None:
    """Open tools fill it with ones for unfused devices; a chain may stand without a signature."""
    report = verify(sign_elf(library, FixedKey(0, 0, key.chain, value=value)))
    assert (report.verdict, report.errors) == (Verdict.INVALID, [words])


def test_another_file_s_signature_has_its_own_words(key: Key, library: bytes) -> None:
    other = spoil(library, parse_image(memoryview(library)).segments[2].offset)
    value = sign_elf(other, key)
    start = value.index(key.chain) - key.size
    borrowed = FixedKey(0, 0, key.chain, value=value[start : start + key.size])
    (error,) = verify(sign_elf(library, borrowed)).errors
    assert "of the leaf's key over another digest" in error


def test_key_without_a_published_scheme_is_a_verdict_of_its_own(library: bytes) -> None:
    private = ed25519.Ed25519PrivateKey.generate()
    authority = ec.generate_private_key(ec.SECP256R1())
    chain = certify(LEAF_NAME, private, ROOT_NAME, authority)
    chain += certify(ROOT_NAME, authority, ROOT_NAME, authority)
    report = verify(sign_elf(library, FixedKey(0, 0, chain, value=bytes(range(64)))))
    assert (report.verdict, report.errors) == (Verdict.UNRECOGNISED, [])
    assert "no scheme is published for a key of type Ed25519" in report.notes[0]


def test_test_signature_holds_the_serial_of_its_name(key: Key, library: bytes) -> None:
    data = sign_elf(library, key, serial=0xDEADBEEF)
    assert verify(data, serial=0xDEADBEEF).verdict is Verdict.PROVEN
    assert "own entry" in verify(data).errors[0]
    assert "own entry" in verify(data, serial=0xDEADBEEE).errors[0]


def test_serial_is_read_from_the_file_name(key: Key, library: bytes, tmp_path) -> None:
    data = sign_elf(library, key, serial=0xDEADBEEF)
    for name, verdict in (("testsig-0xdeadbeef.so", Verdict.PROVEN), ("a.so", Verdict.INVALID)):
        (tmp_path / name).write_bytes(data)
        assert verify_file(tmp_path / name).verdict is verdict


# The whole header, metadata and hash table: no bit of them can change unseen.
@pytest.mark.parametrize(
    ("version", "algorithm"), list(zip(VERSIONS, itertools.cycle(ALGORITHMS), strict=False))
)
def test_any_flipped_bit_in_headers_and_table_is_found(
    key: Key, library: bytes, version: int, algorithm: str
) -> None:
    data = sign_elf(library, key, version, algorithm)
    headers_end = parse_image(memoryview(data)).headers.end
    digest = hashlib.new(algorithm).digest_size
    table = PLACE + PLACES[version] + {6: 120, 7: 144, 8: 144}.get(version, 0) + 11 * digest
    rng = random.Random(version)
    for position in [*range(headers_end), *range(PLACE, table)]:
        bit = rng.randrange(8)
        report = verify(spoil(data, position, data[position] ^ (1 << bit)), library)
        unsigned = (position, bit) == TABLE_MOVES
        assert report.verdict is (Verdict.UNSIGNED if unsigned else Verdict.INVALID), hex(position)


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


@pytest.mark.parametrize("size", [0, 3, 51, 52, 100, 0x1000, 0x1020, 0x1800, 0x3100])
def test_truncated_file_is_invalid(key: Key, library: bytes, size: int) -> None:
    report = verify(sign_elf(library, key)[:size])
    assert report.verdict is Verdict.INVALID
    assert report.faults[0].kind in {Kind.TRUNCATED, Kind.LAYOUT}


def test_last_byte_that_is_missing_is_named_as_such(key: Key, library: bytes) -> None:
    (fault,) = verify(sign_elf(library, key)[:-1]).faults
    assert fault.kind is Kind.TRUNCATED
    assert "ends after the file's end" in fault.text


def test_changed_segment_differs_from_input_and_from_its_hash(key: Key, library: bytes) -> None:
    data = sign_elf(library, key)
    segment = parse_image(memoryview(data)).segments[4]
    kinds = {fault.kind for fault in verify(spoil(data, segment.offset + 3), library).faults}
    assert kinds == {Kind.HASH, Kind.DIFFERENT}


def test_resigned_other_bytes_have_right_hashes_and_still_differ(key: Key, library: bytes) -> None:
    other = spoil(library, parse_image(memoryview(library)).segments[2].offset)
    assert verify(sign_elf(other, key)).verdict is Verdict.PROVEN
    report = verify(sign_elf(other, key), library)
    assert {fault.kind for fault in report.faults} == {Kind.DIFFERENT}
    assert "other bytes than the input" in report.errors[0]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (18, "e_machine"),
        (24, "e_entry"),
        (36, "e_flags"),
        *((52 + word * 4, "other addresses or flags") for word in (2, 3, 5, 6, 7)),
    ],
)
def test_changed_header_of_resigned_library_differs(
    key: Key, library: bytes, field: int, words: str
) -> None:
    other = put_word(library, field, 7)
    assert any(words in error for error in verify(sign_elf(other, key), library).errors)


def test_lost_segment_differs(key: Key, library: bytes) -> None:
    other = spoil(library, 44, 8, 0)
    assert "8 loadable segments, the input has 9" in verify(sign_elf(other, key), library).errors


def test_added_segment_differs(key: Key, library: bytes) -> None:
    fewer = spoil(library, 44, 8, 0)
    errors = verify(sign_elf(library, key), fewer).errors
    assert "9 loadable segments, the input has 8" in errors


def test_segment_without_a_hash_is_an_error(key: Key, library: bytes) -> None:
    """A zero entry is for empty segments only, whatever the flags say of a segment's use."""
    unused = put_word(library, 52 + 2 * 32 + 24, 0x00600005)
    data = sign_elf(unused, key)
    table = PLACE + PLACES[6] + 120
    changed = spoil(data, table + 4 * 48, *bytes(48))
    assert verify(data).verdict is Verdict.PROVEN
    assert any("the hash of segment 4" in error for error in verify(changed).errors)


def test_too_many_segments_are_refused(key: Key, library: bytes) -> None:
    data = spoil(sign_elf(library, key), 44, 101, 0)
    assert "101 program headers" in verify(data).errors[0]


def test_wrong_hash_names_its_segment(key: Key, library: bytes) -> None:
    errors = verify(sign_elf(library, key, wrong_entry=3)).errors
    assert len(errors) == 1
    assert "the hash of segment 3 (LOAD" in errors[0]


@pytest.mark.parametrize(
    ("position", "words"), [(4, "version"), (16, "parts"), (20, "the hash table has 77 bytes")]
)
def test_inconsistent_mbn_header_is_named(
    key: Key, library: bytes, position: int, words: str
) -> None:
    data = put_word(sign_elf(library, key, 5), PLACE + position, 77)
    if position == 16:
        words = "the header says 77 bytes follow"
    assert words in verify(data).errors[0]


def test_expired_certificate_is_a_note_and_an_error_at_a_date(library: bytes) -> None:
    data = memoryview(sign_elf(library, make_key(-1)))
    report = verify_bytes(data)
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])
    assert "OEM: certificate 0 expired on" in report.notes[0]
    judged = verify_bytes(data, at=NOW)
    assert [fault.kind for fault in judged.faults] == [Kind.DATE]
    assert "OEM: certificate 0 expired on" in judged.errors[0]
    assert verify_bytes(data, at=NOW - dt.timedelta(days=2)).verdict is Verdict.PROVEN


def test_certificate_of_the_future_is_an_error_at_a_date(key: Key, library: bytes) -> None:
    early = NOW - dt.timedelta(days=1000)
    report = verify_bytes(memoryview(sign_elf(library, key)), at=early)
    assert len(report.errors) == 3
    assert "is not valid before" in report.errors[0]


def test_chain_of_other_issuers_is_an_error(key: Key, library: bytes) -> None:
    other = make_key()
    size = 4 + int.from_bytes(key.chain[2:4], "big")
    mixed = dataclasses.replace(key, chain=key.chain[:size] + other.chain[size:])
    report = verify(sign_elf(library, mixed))
    assert [fault.kind for fault in report.faults] == [Kind.CHAIN]
    assert "certificate 0 is signed by none after it" in report.errors[0]


def test_missing_root_is_a_note(key: Key, library: bytes) -> None:
    sizes = [4 + int.from_bytes(key.chain[2:4], "big")]
    sizes.append(4 + int.from_bytes(key.chain[sizes[0] + 2 : sizes[0] + 4], "big"))
    report = verify(sign_elf(library, dataclasses.replace(key, chain=key.chain[: sum(sizes)])))
    assert (report.verdict, report.errors) == (Verdict.PROVEN, [])
    assert "OEM: the root is not in the file" in report.notes[0]


def test_several_roots_may_end_a_chain(key: Key, library: bytes) -> None:
    other = make_key()
    sizes = [4 + int.from_bytes(other.chain[2:4], "big")]
    sizes.append(4 + int.from_bytes(other.chain[sizes[0] + 2 : sizes[0] + 4], "big"))
    roots = key.chain + other.chain[sum(sizes) :]
    report = verify(sign_elf(library, dataclasses.replace(key, chain=roots)))
    assert (report.verdict, len(report.signers[0].chain)) == (Verdict.PROVEN, 4)


def is_chain_good(data: bytes) -> bool:
    try:
        chain = parse_chain(data)
    except MalformedError:
        return False
    return not [*list_link_errors(chain), *list_date_errors(chain, NOW)]


def test_any_flipped_bit_of_the_chain_is_found(key: Key) -> None:
    chain = bytearray(key.chain + b"\xff" * 16)
    assert is_chain_good(bytes(chain))
    rng = random.Random(3)
    for position in range(len(chain)):
        bit = 1 << rng.randrange(8)
        chain[position] ^= bit
        assert not is_chain_good(bytes(chain)), (position, bit)
        chain[position] ^= bit


def test_unused_bits_of_a_signature_are_found() -> None:
    """A bit string may declare unused bits; a parser reads the same signature all the same.

    It does so only where those bits are zero, so that the last byte must be even.
    """
    private, days = make_known_key(), 0
    root = b"\1"
    while root[-1] % 2:
        days += 1
        root = certify(ROOT_NAME, private, ROOT_NAME, private, days)
    chain = bytearray(certify(LEAF_NAME, private, ROOT_NAME, private) + root)
    assert is_chain_good(bytes(chain))
    size = 257  # of an RSA signature of 2048 bits, after the count of unused bits
    assert chain[-size] == 0
    chain[-size] = 1
    assert not is_chain_good(bytes(chain))


def test_chain_in_a_file_is_judged(key: Key, library: bytes) -> None:
    data = sign_elf(library, key, 3)
    start = data.index(key.chain[:40])
    assert verify(spoil(data, start + 1000)).verdict is Verdict.INVALID


def test_bytes_after_the_chain_are_found(key: Key, library: bytes) -> None:
    data = sign_elf(library, key)
    end = data.index(key.chain) + len(key.chain)
    assert "bytes after its 3 certificates" in verify(spoil(data, end + 5, 0x41)).errors[0]


def test_what_is_left_of_a_signature_is_not_unsigned(key: Key, library: bytes) -> None:
    data = put_word(sign_elf(library, key), 52 + 32 + 24, 0)
    report = verify(data)
    assert report.verdict is Verdict.INVALID
    assert "is left of a signature" in report.errors[0]


def test_two_hash_segments_are_refused(key: Key, library: bytes) -> None:
    data = put_word(sign_elf(library, key), 52 + 24, 0x02200000)
    assert verify(data).errors == ["2 hash segments instead of one"]


def test_paged_segment_with_one_hash_is_proven(key: Key, library: bytes) -> None:
    paged = put_word(library, 52 + 3 * 32 + 24, 0x00100004)
    assert verify(sign_elf(paged, key)).verdict is Verdict.PROVEN


def test_segment_over_the_hash_segment_is_an_error(key: Key, library: bytes) -> None:
    data = put_word(sign_elf(library, key), 52 + 3 * 32 + 4, PLACE)
    assert any("overlaps the hash segment" in error for error in verify(data).errors)


@pytest.mark.parametrize(
    ("filler", "verdict"),
    [(b"\0", Verdict.PROVEN), (b"\xff", Verdict.PROVEN), (b"\x01", Verdict.INVALID)],
)
def test_bytes_that_no_hash_covers_are_padding(
    key: Key, library: bytes, filler: bytes, verdict: Verdict
) -> None:
    data = sign_elf(library, key)
    for start, end in verify(data).uncovered:
        changed = verify(data[:start] + filler * (end - start) + data[end:])
        assert changed.verdict is verdict
        one = verify(spoil(data, end - 1, data[end - 1] ^ 1))
        assert one.verdict is (Verdict.INVALID if end - start > 1 else Verdict.PROVEN)
    for tail, expected in ((b"\0" * 9, Verdict.PROVEN), (b"\0\0key", Verdict.INVALID)):
        assert verify(data + tail).verdict is expected


def test_version_seven_names_its_algorithm(key: Key, library: bytes) -> None:
    data = put_word(sign_elf(library, key, 7), PLACE + 40 + 16, 2)
    assert "names hash algorithm sha256, the table is sha384" in verify(data).errors[0]
