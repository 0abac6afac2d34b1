"""Chains of certificates: which parse, which lead from a leaf to an authority, what is noted."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from ci.signing.certificates import (
    MAX_CERTIFICATES,
    find_path,
    is_padding,
    list_chain_notes,
    list_date_errors,
    list_link_errors,
    measure_der,
    parse_chain,
)
from ci.signing.segments import MalformedError
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify
from tests.stand_ins.elfsigner.chains import (
    CA,
    LEAF,
    MAY_NOT_SIGN,
    MAY_SIGN,
    ROOT,
    issue,
    make_ec_key,
    make_name,
)
from tests.stand_ins.elfsigner.keys import make_known_key
from tests.stand_ins.elfsigner.mbn_writer import Key

NOW = dt.datetime.now(dt.timezone.utc)
SECOND = dt.timedelta(seconds=1)


def usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def limit(length: int) -> x509.BasicConstraints:
    return x509.BasicConstraints(ca=True, path_length=length)


UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0")
SPARE = issue("root 2", "root 2")
LONGEST = [LEAF, CA, *(issue(f"r{i}", f"r{i}") for i in range(17)), ROOT]
GOOD = {
    "leaf, authority, root": [LEAF, CA, ROOT],
    "leaf and root": [issue("leaf", "root"), ROOT],
    "two roots to choose from": [LEAF, CA, ROOT, SPARE],
    "a spare root that allows no authority below it": [
        *(LEAF, CA, ROOT),
        issue("root 2", "root 2", limit(0)),
    ],
    "a root before the leaf's": [LEAF, CA, SPARE, ROOT],
    "key usage that lets it sign": [LEAF, issue("ca", "root", MAY_SIGN, usage(signs=True)), ROOT],
    "no authority below the authority": [LEAF, issue("ca", "root", limit(0)), ROOT],
    "one authority below the root": [LEAF, CA, issue("root", "root", limit(1))],
    "as many as are read": LONGEST,
}


@pytest.mark.parametrize("chain", GOOD.values(), ids=GOOD.keys())
def test_a_good_chain_has_no_errors_and_a_note_on_what_was_ignored(chain: list[bytes]) -> None:
    parsed = parse_chain(b"".join(chain))
    path = find_path(parsed)
    spare = [one.subject for index, one in enumerate(parsed) if index not in path]
    assert list_link_errors(parsed) == []
    notes = list_chain_notes(parsed)
    assert len(notes) == bool(spare)
    assert all(subject in notes[0] for subject in spare[:2])


UNSIGNED = "is not signed by any certificate after it"
FORBIDDEN = "signs another certificate, which its extensions do not allow"
STRAY = "is neither part of the leaf's chain nor a root"
CRITICAL = (
    "has the critical extension 1.2.3.4, which is not known here, so RFC 5280 does not let it "
    "vouch for others"
)
ALONE = "so no authority vouches for it"
# Each with the one certificate that is named, and what is wrong with it.
BAD = {
    "leaf alone": ([LEAF], 0, f"{UNSIGNED}, {ALONE}"),
    "leaf that signs itself": ([issue("leaf", "leaf")], 0, f"signs itself, {ALONE}"),
    "leaf that signs itself, and a root": (
        [issue("leaf", "leaf"), ROOT],
        0,
        f"signs itself, {ALONE}",
    ),
    "leaf by another key of the authority's name": (
        [issue("leaf", "ca", key="other"), CA, ROOT],
        0,
        f"{UNSIGNED}, {ALONE}",
    ),
    "issuer that says it is no authority": (
        [LEAF, issue("ca", "root", MAY_NOT_SIGN), ROOT],
        1,
        FORBIDDEN,
    ),
    "issuer that does not say what it is": (
        [LEAF, issue("ca", "root", usage(signs=True)), ROOT],
        1,
        FORBIDDEN,
    ),
    "issuer whose key usage is another": (
        [LEAF, issue("ca", "root", MAY_SIGN, usage(signs=False)), ROOT],
        1,
        FORBIDDEN,
    ),
    "root that says it is no authority": (
        [LEAF, CA, issue("root", "root", MAY_NOT_SIGN)],
        2,
        FORBIDDEN,
    ),
    "authority below a root that allows none": (
        [LEAF, CA, issue("root", "root", limit(0))],
        2,
        FORBIDDEN,
    ),
    "root before its authority": ([LEAF, ROOT, CA], 2, UNSIGNED),
    "another root at the end": ([LEAF, CA, SPARE], 1, UNSIGNED),
    "signed by an earlier certificate": ([LEAF, CA, ROOT, issue("late", "ca")], 3, STRAY),
    "another leaf": ([LEAF, issue("leaf 2", "ca"), CA, ROOT], 1, STRAY),
    "spare root that may not sign": (
        [LEAF, CA, ROOT, issue("root 2", "root 2", MAY_NOT_SIGN)],
        3,
        STRAY,
    ),
    "spare root of another key": (
        [LEAF, CA, ROOT, issue("root 2", "root 2", key="other")],
        3,
        STRAY,
    ),
    "root that another key signed": (
        [LEAF, CA, issue("root", "root", key="other")],
        2,
        "is not signed by its own key",
    ),
    "root whose issuer was damaged": ([LEAF, CA, issue("root", "rOot", key="root")], 2, UNSIGNED),
    "issuer with a critical extension that nobody knows": (
        [LEAF, issue("ca", "root", MAY_SIGN, UNKNOWN), ROOT],
        1,
        CRITICAL,
    ),
    "authority of another key": ([LEAF, issue("ca", "root", key="other"), ROOT], 1, UNSIGNED),
}


@pytest.mark.parametrize(("chain", "index", "fault"), BAD.values(), ids=BAD.keys())
def test_a_bad_chain_has_one_error_that_names_its_certificate(
    chain: list[bytes], index: int, fault: str
) -> None:
    parsed = parse_chain(b"".join(chain))
    expected = f"certificate {index} {fault}: {parsed[index].subject}"
    assert list_link_errors(parsed) == [expected]


def test_a_missing_root_is_a_note_unless_one_byte_makes_it_one() -> None:
    """One other byte in the issuer is a damaged root; with two it is a root that is missing."""
    chain = parse_chain(LEAF + CA)
    assert list_link_errors(chain) == []
    (note,) = list_chain_notes(chain)
    assert "certificate 1" in note
    assert "CN=root" in note
    for issuer, faults in (("ce", 1), ("be", 0), ("c", 0)):
        chain = parse_chain(LEAF + issue("ca", issuer))
        assert len(list_link_errors(chain)) == faults, issuer


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the chain has no certificate"),
        (b"\xff" * 40, "the chain has no certificate"),
        (LEAF[:-1], "certificate 0 extends past the end of the chain"),
        (LEAF + CA[:-1], "certificate 1 extends past the end of the chain"),
        (LEAF + b"\x30\x02a", "certificate 1 extends past the end of the chain"),
        (LEAF + b"\x30\x03abc", "certificate 1 cannot be parsed"),
        (LEAF + CA + b"\1", "the bytes after the 2 certificates are not padding"),
        (LEAF + b"\xff\0", "the bytes after the 1 certificates are not padding"),
        (b"".join([*LONGEST, ROOT]), f"the chain has more than {MAX_CERTIFICATES} certificates"),
        (b"".join(LONGEST) + b"\x30 not read", "the chain has more than 20 certificates"),
        (LEAF + b"\x30", "the data ends before the length of a DER sequence"),
        (
            LEAF + b"\x30\x80",
            "the length of a DER sequence is indefinite or takes more than 3 bytes",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "data",
)
def test_what_is_no_chain_is_malformed(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_chain(data)
    assert str(caught.value).startswith(message)


def certify_rsa(bits: int, exponent: int) -> bytes:
    """A leaf with an RSA key of which nobody has the private half."""
    public = rsa.RSAPublicNumbers(exponent, (1 << bits) - 1).public_key()
    holder = SimpleNamespace(public_key=lambda: public)
    root = make_ec_key("root")
    return certify(make_name("leaf"), holder, make_name("root"), root)  # type: ignore[arg-type]


def test_an_rsa_key_whose_use_would_take_hours_is_malformed() -> None:
    assert parse_chain(certify_rsa(16384, 65537) + ROOT)[0].key_bits == 16384
    for bits, exponent in ((16385, 65537), (1 << 20, 3), (4096, (1 << 4000) + 1)):
        with pytest.raises(MalformedError, match=f"certificate 0 has an RSA key of {bits} bits"):
            parse_chain(certify_rsa(bits, exponent) + ROOT)


def test_a_date_that_no_calendar_has_is_malformed() -> None:
    late = certify(
        make_name("ca"), make_ec_key("ca"), make_name("root"), make_ec_key("root"), 20000
    )
    year = late.index(b"\x18\x0f20") + 2  # of a GeneralizedTime
    with pytest.raises(MalformedError, match="certificate 1 cannot be parsed"):
        parse_chain(LEAF + late[:year] + b"0000" + late[year + 4 :])


@pytest.mark.parametrize(
    "oid", [x509.SubjectAlternativeName.oid, x509.NameConstraints.oid], ids=["names", "constraints"]
)
def test_an_authority_with_names_that_cannot_be_read_may_not_sign(
    oid: x509.ObjectIdentifier,
) -> None:
    address = b"\x30\x04\xa3\x02\x30\x00"  # an X.400 address, which cryptography does not support
    if oid == x509.NameConstraints.oid:
        address = b"\x30\x08\xa0\x06" + address
    authority = issue("ca", "root", MAY_SIGN, x509.UnrecognizedExtension(oid, address))
    (error,) = list_link_errors(parse_chain(LEAF + authority + ROOT))
    assert error.startswith("certificate 1 signs another certificate, which")


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"\x30\x00", 2),
        (b"\x30\x7f", 129),
        (b"\x30\x81\x80", 131),
        (b"\x30\x82\x01\x02", 262),
        (b"\x30\x83\x01\x02\x03", 66056),
        (b"", None),
        (b"\x30", None),
        (b"\x30\x80", None),
        (b"\x30\x84\0\0\0\1", None),
        (b"\x30\xff", None),
    ],
)
def test_a_der_sequence_has_a_size_or_is_malformed(data: bytes, size: int | None) -> None:
    if size is None:
        with pytest.raises(MalformedError):
            measure_der(data)
    else:
        assert measure_der(data) == measure_der(b"??" + data, 2) == size


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", True),
        (b"\0\0", True),
        (b"\xff\xff", True),
        (b"\0\xff", False),
        (b"\xff\0", False),
        (b"\1", False),
        (b"\0\1\0", False),
    ],
)
def test_padding_is_of_one_kind(data: bytes, expected: bool) -> None:
    assert is_padding(data) is expected


def test_facts_of_a_certificate() -> None:
    leaf, root = parse_chain(LEAF + ROOT)
    dates = f"{leaf.not_before:%Y-%m-%d} to {leaf.not_after:%Y-%m-%d}"
    assert leaf.describe() == f"CN=leaf, EC secp256r1 256 bits, {dates}"
    assert (leaf.subject, leaf.issuer) == ("CN=leaf", "CN=ca")
    assert leaf.fingerprint == hashlib.sha256(LEAF).hexdigest()
    assert leaf.not_before.tzinfo is dt.timezone.utc
    assert (leaf.is_root, root.is_root) == (False, True)
    unusual = ed25519.Ed25519PrivateKey.generate()
    (one,) = parse_chain(certify(make_name(""), unusual, make_name(""), make_ec_key("ca")))
    assert (one.key, one.key_bits) == ("Ed25519", 0)
    assert (one.subject, one.issuer) == ("(no name)", "(no name)")


def test_a_certificate_is_valid_in_its_first_and_its_last_second() -> None:
    chain = parse_chain(LEAF + CA)
    first = max(one.not_before for one in chain)
    last = min(one.not_after for one in chain)
    assert list_date_errors(chain, first) == list_date_errors(chain, last) == []
    (early,) = list_date_errors(chain[:1], chain[0].not_before - SECOND)
    assert early == f"certificate 0 is not valid before {chain[0].not_before:%Y-%m-%d}: CN=leaf"
    (late,) = list_date_errors(chain[:1], chain[0].not_after + SECOND)
    assert late == f"certificate 0 expired on {chain[0].not_after:%Y-%m-%d}: CN=leaf"
    decades = dt.timedelta(days=20000)
    assert [one[:13] for one in list_date_errors(chain, NOW + decades)] == [
        "certificate 0",
        "certificate 1",
    ]


@pytest.mark.parametrize(("bits", "noted"), [(1024, True), (2048, False)])
def test_a_small_rsa_key_is_a_note(bits: int, noted: bool) -> None:
    key = rsa.generate_private_key(65537, bits) if noted else make_known_key()
    leaf = certify(make_name("leaf"), key, make_name("ca"), make_ec_key("ca"))
    notes = list_chain_notes(parse_chain(leaf + CA + ROOT))
    assert notes == (["certificate 0 has an RSA key of only 1024 bits"] if noted else [])


def is_chain_good(data: bytes) -> bool:
    try:
        chain = parse_chain(data)
    except MalformedError:
        return False
    return not [*list_link_errors(chain), *list_date_errors(chain, NOW)]


def test_any_flipped_bit_of_a_chain_is_found(key: Key) -> None:
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
