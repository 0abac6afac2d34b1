"""Each fault of a proof, word for word: certificates, signatures, layouts, what loads otherwise."""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from functools import cache
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from ci.signing.proof.certificates import (
    list_chain_notes,
    list_date_errors,
    list_link_errors,
    measure_der,
    parse_chain,
)
from ci.signing.proof.segments import MalformedError, TruncatedError, parse_image
from ci.signing.proof.signature import judge_signature, read_identity
from ci.signing.proof.verdict import Fault, Kind, Scheme, SignedBy, Verdict, Verification
from ci.signing.proof.verify import list_differences, verify_bytes, verify_file
from ci.signing.publish import check_target
from ci.signing.record import RecordFinding
from provisioning.errors import UsageError
from tests.stand_ins.elfsigner.certify import certify
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_elf

PLACE = 0x1000


def show(value: object) -> str:
    """Keys are made anew, so that bytes do not name a test."""
    return value if isinstance(value, str) else "data"


@cache
def private(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def name_of(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])


@cache
def make(name: str, issuer: str, *, ca: bool = True, key: str = "") -> bytes:
    basic = x509.BasicConstraints(ca=ca, path_length=None)
    return certify(
        name_of(name), private(name), name_of(issuer), private(key or issuer), extensions=[basic]
    )


LEAF, CA, ROOT = make("leaf", "ca", ca=False), make("ca", "root"), make("root", "root")


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (
            [make("l", "ca", ca=False)],
            "certificate 0 is signed by none after it, so that no authority vouches for it: CN=l",
        ),
        (
            [ROOT],
            "certificate 0 signs itself, so that no authority vouches for it: CN=root",
        ),
        (
            [LEAF, make("ca", "root", ca=False), ROOT],
            "certificate 1 signs others and may not: CN=ca",
        ),
        (
            [LEAF, CA, make("root", "root", key="other")],
            "certificate 2 is not signed by its own key: CN=root",
        ),
        ([LEAF, CA, make("r", "r")], "certificate 1 is signed by none after it: CN=ca"),
        (
            [LEAF, CA, ROOT, LEAF],
            "certificate 3 is neither part of the leaf's chain nor a root: CN=leaf",
        ),
    ],
    ids=show,
)
def test_what_is_wrong_with_a_chain(chain: list[bytes], said: str) -> None:
    assert list_link_errors(parse_chain(b"".join(chain))) == [said]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the chain holds no certificate"),
        (LEAF[:-1], "certificate 0 ends after the chain's end"),
        (LEAF + CA[:-1], "certificate 1 ends after the chain's end"),
        (LEAF + CA + b"\1", "the chain has bytes after its 2 certificates"),
        (LEAF * 21, "the chain holds more than 20 certificates"),
        (LEAF + b"\x30", "the data ends within a DER sequence"),
        (LEAF + b"\x30\x80", "a DER sequence has no definite length"),
    ],
    ids=show,
)
def test_what_is_no_chain(data: bytes, said: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_chain(data)
    assert str(caught.value) == said


def test_a_certificate_that_does_not_parse_is_counted() -> None:
    with pytest.raises(MalformedError, match=r"^certificate 1 does not parse: ."):
        parse_chain(LEAF + b"\x30\x03abc")
    with pytest.raises(MalformedError, match=r"^certificate 1 ends after"):
        parse_chain(LEAF + b"\x30\x02a")


def test_a_signature_of_a_certificate_has_whole_bytes() -> None:
    """Of an EC signature the last bit may be zero: then a parser takes one unused bit."""
    size = len(parse_chain(ROOT)[0].parsed.signature)
    changed = bytearray(LEAF + ROOT)
    assert changed[-size - 1] == 0
    for bits in range(1, 8):
        changed[-size - 1] = bits
        with pytest.raises(
            MalformedError, match=r"^certificate 1 (is|does not|the|of)|not of whole"
        ):
            parse_chain(bytes(changed))


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"\x30\x00", 2),
        (b"\x30\x7f", 129),
        (b"\x30\x81\x80", 131),
        (b"\x30\x82\x01\x02", 262),
        (b"\x30\x83\x01\x02\x03", 66056),
    ],
)
def test_a_sequence_s_size(data: bytes, size: int) -> None:
    assert measure_der(data) == size
    assert measure_der(b"??" + data, 2) == size


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x80", b"\x30\x84\0\0\0\1", b"\x30\xff"])
def test_a_sequence_without_a_size_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        measure_der(data)


def test_what_a_certificate_says() -> None:
    (one,) = parse_chain(LEAF)

    dates = f"{one.not_before:%Y-%m-%d} to {one.not_after:%Y-%m-%d}"
    assert one.describe() == f"CN=leaf, EC secp256r1 256 bits, {dates}"
    assert (one.subject, one.issuer, one.is_root) == ("CN=leaf", "CN=ca", False)
    assert one.fingerprint == hashlib.sha256(LEAF).hexdigest()
    assert one.not_before.tzinfo is dt.timezone.utc
    (root,) = parse_chain(ROOT)
    assert root.is_root


def test_keys_and_names_that_are_rare() -> None:
    odd = ed25519.Ed25519PrivateKey.generate()
    (one,) = parse_chain(certify(name_of(""), odd, name_of(""), private("ca")))
    assert (one.key, one.key_bits, one.subject, one.issuer) == (
        "Ed25519",
        0,
        "(no name)",
        "(no name)",
    )


def test_dates_are_said_by_certificate() -> None:
    chain = parse_chain(LEAF + CA)
    earlier, later = (dt.datetime(year, 1, 1, tzinfo=dt.timezone.utc) for year in (1999, 2999))

    assert list_date_errors(chain, later) == [
        f"certificate 0 expired on {chain[0].not_after:%Y-%m-%d}: CN=leaf",
        f"certificate 1 expired on {chain[1].not_after:%Y-%m-%d}: CN=ca",
    ]
    assert list_date_errors(chain, earlier) == [
        f"certificate 0 is not valid before {chain[0].not_before:%Y-%m-%d}: CN=leaf",
        f"certificate 1 is not valid before {chain[1].not_before:%Y-%m-%d}: CN=ca",
    ]


def test_a_missing_root_is_said() -> None:
    assert list_chain_notes(parse_chain(LEAF + CA)) == [
        "the root is not in the file: nothing here proves certificate 1, which CN=root signed"
    ]


def test_a_damaged_root_is_not_a_missing_one() -> None:
    """One byte of the issuer is another; with two it is another root, which may be missing."""
    near = make("ca", "ce")
    far, shorter = make("ca", "be"), make("ca", "c")
    said = "certificate 1 is signed by none after it: CN=ca"

    assert list_link_errors(parse_chain(LEAF + near)) == [said]
    assert list_link_errors(parse_chain(LEAF + far)) == []
    assert list_link_errors(parse_chain(LEAF + shorter)) == []


# Signatures


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def rsa_leaf() -> bytes:
    return certify(name_of("leaf"), rsa_key(), name_of("ca"), private("ca"))


def plain(payload: bytes) -> bytes:
    numbers = rsa_key().private_numbers()
    block = b"\0\1" + b"\xff" * (256 - 3 - len(payload)) + b"\0" + payload
    value = pow(int.from_bytes(block, "big"), numbers.d, numbers.public_numbers.n)
    return value.to_bytes(256, "big")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (bytes(256), "the signature is empty"),
        (b"\xff" * 256, "the signature is filled with 0xff"),
        (b"\1" * 255, "a signature of 255 bytes for a key of 2048 bits"),
        (b"\1" * 257, "a signature of 257 bytes for a key of 2048 bits"),
        (b"\xff" * 255 + b"\xfe", "the signature is a number that the leaf's key cannot have made"),
        (b"\0" * 255 + b"\5", "the signature does not verify with the leaf's key"),
    ],
    ids=show,
)
def test_what_is_wrong_with_an_rsa_signature(value: bytes, said: str) -> None:
    found = judge_signature(parse_chain(rsa_leaf())[0], value, b"signed")
    assert (found.scheme, found.fault) == (Scheme.UNKNOWN, said)


def test_a_signature_of_another_digest_says_so() -> None:
    value = plain(hashlib.sha256(b"other").digest())
    assert judge_signature(parse_chain(rsa_leaf())[0], value, b"signed").fault == (
        "the signature is of the leaf's key over another digest: it was made for another file, or "
        "the header or the hash table was changed since"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x31\0", "the signature is not one of ECDSA, as the leaf's key is"),
        (b"\x30\0", "the signature is not one of ECDSA, as the leaf's key is"),
        (
            private("leaf").sign(b"signed", ec.ECDSA(hashes.SHA256())) + b"\0\1",
            "the signature is followed by bytes that are not padding",
        ),
        (
            private("ca").sign(b"signed", ec.ECDSA(hashes.SHA256())),
            "the signature does not verify with the leaf's key",
        ),
    ],
    ids=show,
)
def test_what_is_wrong_with_an_ecdsa_signature(value: bytes, said: str) -> None:
    found = judge_signature(parse_chain(LEAF)[0], value, b"signed")
    assert (found.scheme, found.fault) == (Scheme.UNKNOWN, said)


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("CN=x,OU=01 00000000000000AF SW_ID", 0xAF),
        ("OU=01 00000000000000af SW_ID", 0xAF),
        ("OU=01 00000000000000AF SW_IDS", 0),
        ("OU=01 0000000000000AF SW_ID", 0),
        ("OU=1 00000000000000AF SW_ID", 0),
        ("OU=01 00000000000000AF HW_ID", 0),
        ("", 0),
    ],
)
def test_an_identity_is_sixteen_digits_of_its_field(subject: str, number: int) -> None:
    assert read_identity(subject, "SW_ID") == number


# Images


def errors(data: bytes, original: bytes | None = None) -> list[str]:
    return verify_bytes(memoryview(data), memoryview(original) if original else None).errors


def put(data: bytes, position: int, form: str, *values: int) -> bytes:
    size = struct.calcsize(form)
    return data[:position] + struct.pack(form, *values) + data[position + size :]


def test_what_is_no_image(library: bytes) -> None:
    def said(data: bytes) -> tuple[str, str]:
        (fault,) = verify_bytes(memoryview(data)).faults
        return fault.kind.value, fault.text

    assert said(put(library, 44, "<H", 0)) == ("layout", "0 program headers")
    assert said(put(library, 44, "<H", 101))[1].startswith(("101 program headers", "truncated"))
    assert said(put(library, 6, "<B", 2)) == ("layout", "not a little-endian ELF file of version 1")
    assert said(put(library, 18, "<H", 62)) == (
        "layout",
        "is of machine x86-64, which no signed image is",
    )
    kind, text = said(b"<html>")
    assert (kind, text.partition(":")[0]) in {
        ("layout", "not an ELF file that a DSP loads"),
        ("truncated", "truncated"),
    }
    cut = said(library[:60])
    assert (cut[0], cut[1].partition(":")[0]) == ("truncated", "truncated")
    first = parse_image(memoryview(library)).segments
    last = max(first, key=lambda one: one.end)
    assert said(library[: last.end - 1]) == (
        "truncated",
        f"truncated: {last.describe()} ends after the file's end",
    )
    assert isinstance(TruncatedError(""), MalformedError)


def test_a_segment_is_described_by_its_kind(library: bytes) -> None:
    image = parse_image(memoryview(put(put(library, 52, "<I", 0), 52 + 32, "<I", 0x70000001)))
    kinds = [one.describe().partition(",")[0] for one in image.segments[:3]]
    assert kinds == ["segment 0 (NULL", "segment 1 (type 0x70000001", "segment 2 (LOAD"]
    one = image.segments[2]
    assert one.describe() == f"segment 2 (LOAD, {one.file_size} bytes at {one.offset:#x})"


def test_the_hash_segment_s_faults(key: Key, library: bytes) -> None:
    data = sign_elf(library, key)
    headers = parse_image(memoryview(data)).headers.end

    assert errors(put(data, 52 + 24, "<I", 0x02200000)) == ["2 hash segments instead of one"]
    assert errors(put(data, 52 + 24, "<I", 0)) == [
        "the first program header does not stand for the headers"
    ]
    assert errors(put(data, 52 + 16, "<I", headers - 1))[0] == (
        f"the first hash covers {headers - 1} bytes at 0x0, the headers have {headers} at 0x0"
    )
    assert errors(put(data, 52 + 4, "<I", 4))[0] == (
        f"the first hash covers {headers} bytes at 0x4, the headers have {headers} at 0x0"
    )
    assert errors(put(data, 52 + 32 + 24, "<I", 0)) == [
        f"{one.describe()} is left of a signature"
        for one in parse_image(memoryview(data)).segments[:1]
    ]
    moved = parse_image(memoryview(put(data, 52 + 5 * 32 + 4, "<I", PLACE))).segments[5]
    faults = verify_bytes(memoryview(put(data, 52 + 5 * 32 + 4, "<I", PLACE))).faults
    assert Fault(Kind.LAYOUT, f"{moved.describe()} overlaps the hash segment") in faults


def test_hashes_that_do_not_match_are_named(key: Key, library: bytes) -> None:
    def said(entry: int) -> list[str]:
        return errors(sign_elf(library, key, 6, wrong_entry=entry))

    data = sign_elf(library, key)
    assert said(0) == ["the hash of the ELF header and the program headers does not match"]
    assert said(1) == [
        "the hash segment's own entry is neither zero nor the serial in the file's name"
    ]
    third = parse_image(memoryview(data)).segments[3]
    assert said(3) == [f"the hash of {third.describe()} does not match"]
    assert errors(put(data, len(data) - 1, "<B", data[-1]) + b"\0key") == [
        f"bytes {len(data):#x} to {len(data) + 4:#x}, which no hash covers, are not padding"
    ]


def test_what_loads_otherwise_is_named(library: bytes) -> None:
    image = parse_image(memoryview(library))
    loads = list(image.loadable())

    def said(data: bytes) -> list[str]:
        return list_differences(parse_image(memoryview(data)), image)

    assert said(library) == []
    # One segment holds the ELF header, one the program headers, and one both.
    both, table = (
        f"{image.segments[index].describe()} has other bytes than the input" for index in (1, 0)
    )
    assert said(put(library, 18, "<H", 62)) == ["e_machine is 0x3e, the input's 0xa4", both]
    entry, flags = image.headers.entry, image.headers.flags
    assert said(put(library, 24, "<I", entry + 1)) == [
        f"e_entry is {entry + 1:#x}, the input's {entry:#x}",
        both,
    ]
    assert said(put(library, 36, "<I", flags + 1)) == [
        f"e_flags is {flags + 1:#x}, the input's {flags:#x}",
        both,
    ]
    assert said(put(library, 44, "<H", len(image.segments) - 1)) == [
        f"{len(loads) - 1} loadable segments, the input has {len(loads)}"
    ]
    third = loads[2]
    place = 52 + 32 * third.index
    address = struct.unpack_from("<I", library, place + 8)[0]
    assert said(put(library, place + 8, "<I", address + 4)) == [
        table,
        both,
        f"{third.describe()} has other addresses or flags than in the input",
    ]
    for position in (third.offset, third.end - 1):
        changed = put(library, position, "<B", library[position] ^ 1)
        assert f"{third.describe()} has other bytes than the input" in said(changed)


def test_a_file_is_judged_beside_another(key: Key, library: bytes, tmp_path: Path) -> None:
    signed, other = tmp_path / "testsig-0x7.so", tmp_path / "other.so"
    signed.write_bytes(sign_elf(library, key, serial=7))
    position = parse_image(memoryview(library)).segments[2].offset
    other.write_bytes(put(library, position, "<B", library[position] ^ 1))

    assert verify_file(signed).errors == []
    (tmp_path / "a.so").write_bytes(sign_elf(library, key))
    assert verify_file(tmp_path / "a.so").errors == []
    (error,) = verify_file(signed, other).errors
    assert "has other bytes than the input" in error


def test_a_verification_as_data(key: Key, library: bytes) -> None:
    report = verify_bytes(memoryview(sign_elf(library, key)))
    data = report.as_data()
    chain = report.signers[0].chain

    assert data["signers"] == [
        {
            "authority": "OEM",
            "scheme": "RSA-PSS",
            "signature_bytes": 256,
            "certificates": [
                {
                    "subject": one.subject,
                    "issuer": one.issuer,
                    "not_before": one.not_before.isoformat(),
                    "not_after": one.not_after.isoformat(),
                    "key": "RSA",
                    "key_bits": 2048,
                    "sha256": one.fingerprint,
                }
                for one in chain
            ],
        }
    ]
    assert {k: v for k, v in data.items() if k not in {"signers", "notes", "uncovered_ranges"}} == {
        "verdict": "proven",
        "errors": [],
        "size_bytes": report.size,
        "machine": "hexagon",
        "hexagon_version": "V69",
        "mbn_header_version": 6,
        "hash_algorithm": "sha384",
        "hashed_segments": report.hashed_segments,
        "signature_ranges": [(PLACE + 48 + 120 + 11 * 48, PLACE + 48 + 120 + 11 * 48 + 256)],
        "not_judged": [
            "whether the device trusts the root certificate",
            "whether the device accepts the signer's identities (software, hardware, OEM, model)",
        ],
    }


def test_an_unsigned_file_as_data() -> None:
    report = Verification(7)
    report.add(Kind.HASH, "one", "two")

    assert report.as_data() == {
        "verdict": "invalid",
        "errors": [{"kind": "hash", "what": "one"}, {"kind": "hash", "what": "two"}],
        "notes": [],
        "size_bytes": 7,
        "machine": "",
        "hexagon_version": None,
        "mbn_header_version": 0,
        "hash_algorithm": "",
        "hashed_segments": 0,
        "signers": [],
        "uncovered_ranges": [],
        "signature_ranges": [],
        "not_judged": [],
    }


def test_a_verdict_is_the_worst_of_what_was_found() -> None:
    known, unknown = (SignedBy("a", (), one, 1) for one in (Scheme.PSS, Scheme.UNKNOWN))

    def verdict(*signers: SignedBy, signed: bool = True, fault: bool = False) -> Verdict:
        report = Verification(1, signed=signed, signers=list(signers))
        report.add(Kind.HASH, *(["x"] if fault else []))
        return report.verdict

    assert verdict(known) is Verdict.PROVEN
    assert verdict(known, unknown) is Verdict.UNRECOGNISED
    assert verdict(signed=False) is Verdict.UNSIGNED
    assert verdict(known, unknown, fault=True) is Verdict.INVALID
    assert verdict(signed=False, fault=True) is Verdict.INVALID


# Where it is written to


def test_targets_that_are_refused_say_why(tmp_path: Path) -> None:
    def said(target: Path, *, force: bool = True) -> tuple[str, str, str]:
        with pytest.raises(UsageError) as caught:
            check_target(target, force=force, protected=iter([tmp_path / "sdk"]))
        return caught.value.what, caught.value.why, caught.value.fix

    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert said(tmp_path / "sdk" / "out") == (
        f"{tmp_path}/sdk/out lies in {tmp_path}/sdk, or holds it",
        "signed libraries are never written into an SDK: it is shared and verified",
        "choose another --out",
    )
    assert said(tmp_path)[0] == f"{tmp_path} lies in {tmp_path}/sdk, or holds it"
    for name in ("file", "dangling"):
        assert said(tmp_path / name) == (
            f"{tmp_path}/{name} exists and is not a directory",
            "",
            "choose another --out",
        )
    assert said(tmp_path / "there", force=False) == (
        f"{tmp_path}/there exists and is kept",
        "",
        "--force replaces it once everything is signed and verified",
    )
    check_target(tmp_path / "there", force=True, protected=iter([tmp_path / "sdk"]))
    check_target(tmp_path / "new", force=False, protected=iter([tmp_path / "sdk"]))


def test_a_finding_about_a_record_is_its_message() -> None:
    assert str(RecordFinding("a.so", "a.so is gone")) == "a.so is gone"
