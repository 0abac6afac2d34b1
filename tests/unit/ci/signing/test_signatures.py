"""Values of a signature: those of the leaf's key are recognised, all others are named."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from functools import cache

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

from ci.signing.certificates import Certificate, parse_chain
from ci.signing.signature import DIGEST_INFO, judge_signature, list_digests, read_identity
from ci.signing.verdict import Scheme
from tests.stand_ins.elfsigner.certify import (
    AUTHORITY_NAME,
    HARDWARE_ID,
    LEAF_NAME,
    SOFTWARE_ID,
    certify,
)
from tests.stand_ins.elfsigner.keys import make_known_key
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_keyed

SIGNED, OTHER = b"header and hash table", b"those of another file"
HASHES = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}
Make = Callable[[], bytes]


RSA_KEY, EC_KEY = make_known_key(), ec.generate_private_key(ec.SECP384R1())


@cache
def make_leaf(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Certificate:
    return parse_chain(certify(LEAF_NAME, key, AUTHORITY_NAME, EC_KEY))[0]


def sign_pss(
    data: bytes, name: str = "sha384", salt: int = 32, key: rsa.RSAPrivateKey = RSA_KEY
) -> bytes:
    scheme = padding.PSS(padding.MGF1(HASHES[name]), salt)
    return key.sign(data, scheme, HASHES[name])


def sign_by_another_key() -> bytes:
    """A signature of another key, as a number that the leaf's key could have made."""
    signatures = (sign_pss(SIGNED, key=make_known_key()) for _ in itertools.count())
    return next(one for one in signatures if int.from_bytes(one, "big") < modulus())


def sign_payload(payload: bytes) -> bytes:
    """PKCS #1 v1.5 padding around any payload."""
    numbers = RSA_KEY.private_numbers()
    block = b"\0\1" + b"\xff" * (256 - 3 - len(payload)) + b"\0" + payload
    value = pow(int.from_bytes(block, "big"), numbers.d, numbers.public_numbers.n)
    return value.to_bytes(256, "big")


def sign_ec(data: bytes, name: str = "sha384") -> bytes:
    return EC_KEY.sign(data, ec.ECDSA(HASHES[name]))


def modulus() -> int:
    return RSA_KEY.public_key().public_numbers().n


def number(value: int) -> bytes:
    return value.to_bytes(256, "big")


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def judge(signature: bytes, key: rsa.RSAPrivateKey = RSA_KEY) -> tuple[Scheme, str]:
    found = judge_signature(make_leaf(key), signature, SIGNED)
    return found.scheme, found.fault


def judge_ec(signature: bytes) -> tuple[Scheme, str]:
    found = judge_signature(make_leaf(EC_KEY), signature, SIGNED)
    return found.scheme, found.fault


@pytest.mark.parametrize("name", HASHES)
def test_rsa_of_every_hash_is_recognised(name: str) -> None:
    for salt in (0, 20, 64):
        assert judge(sign_pss(SIGNED, name, salt)) == (Scheme.PSS, "")
    digest = hashlib.new(name, SIGNED).digest()
    assert judge(sign_payload(digest)) == (Scheme.PKCS1, "")
    with_info = RSA_KEY.sign(SIGNED, padding.PKCS1v15(), HASHES[name])
    assert judge(with_info) == (Scheme.PKCS1, "")


@pytest.mark.parametrize("filler", [b"", b"\0", b"\xff"])
def test_padding_behind_a_signature_is_no_part_of_it(filler: bytes) -> None:
    assert judge(sign_pss(SIGNED) + 40 * filler) == (Scheme.PSS, "")
    for name in HASHES:
        assert judge_ec(sign_ec(SIGNED, name) + 5 * filler) == (Scheme.ECDSA, "")


def test_a_digest_keyed_by_the_identities_is_recognised() -> None:
    numbers = RSA_KEY.private_numbers()
    key = Key(numbers.public_numbers.n, numbers.d, b"", SOFTWARE_ID, HARDWARE_ID)
    assert judge(sign_keyed(SIGNED, key)) == (Scheme.PKCS1, "")
    swapped = Key(numbers.public_numbers.n, numbers.d, b"", HARDWARE_ID, SOFTWARE_ID)
    assert judge(sign_keyed(SIGNED, swapped)) == (Scheme.UNKNOWN, ANOTHER_DIGEST)
    assert [name for name, _ in list_digests("CN=leaf", SIGNED)] == [*HASHES, *HASHES]


@pytest.mark.parametrize(
    ("subject", "identity"),
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
def test_an_identity_is_sixteen_digits_of_its_field(subject: str, identity: int) -> None:
    assert read_identity(subject, "SW_ID") == identity


EMPTY, ONES = "the signature is empty", "the signature is filled with 0xff"
TOO_LARGE = "the signature is larger than the modulus of the leaf's key"
UNVERIFIED = "the signature does not verify with the leaf's key"
ANOTHER_DIGEST = (
    "the signature was made with the leaf's key, but over a different digest: it belongs to "
    "another file, or the header or the hash table was changed afterwards"
)
WRONG: dict[str, tuple[Make, str]] = {
    "nothing": (lambda: b"", EMPTY),
    "zeros": (lambda: bytes(256), EMPTY),
    "0xff": (lambda: b"\xff" * 256, ONES),
    "0xff, longer": (lambda: b"\xff" * 512, ONES),
    "one byte short": (
        lambda: sign_pss(SIGNED)[:-1],
        "a signature by a key of 2048 bits cannot be 255 bytes long",
    ),
    "one byte too many": (
        lambda: sign_pss(SIGNED) + b"\1",
        "a signature by a key of 2048 bits cannot be 257 bytes long",
    ),
    "mixed padding": (
        lambda: sign_pss(SIGNED) + b"\xff\0",
        "a signature by a key of 2048 bits cannot be 258 bytes long",
    ),
    "n": (lambda: number(modulus()), TOO_LARGE),
    "n + 5": (lambda: number(modulus() + 5), TOO_LARGE),
    "n - 1": (lambda: number(modulus() - 1), UNVERIFIED),
    "1": (lambda: number(1), UNVERIFIED),
    "of another key": (sign_by_another_key, UNVERIFIED),
    "another file's": (lambda: sign_pss(OTHER), ANOTHER_DIGEST),
    "another file's, SHA-256": (lambda: sign_pss(OTHER, "sha256", 64), ANOTHER_DIGEST),
    "another file's, without a salt": (lambda: sign_pss(OTHER, "sha512", 0), ANOTHER_DIGEST),
    "another file's, with a salt that leaves no padding to see": (
        lambda: sign_pss(OTHER, "sha256", 256 - 32 - 2),
        UNVERIFIED,
    ),
    # 8 zeros before the salt are padding to see, 7 are not.
    "another file's, with 8 zeros": (lambda: sign_pss(OTHER, "sha256", 214), ANOTHER_DIGEST),
    "another file's, with 7 zeros": (lambda: sign_pss(OTHER, "sha256", 215), UNVERIFIED),
    "another file's, PKCS #1": (lambda: sign_payload(sha256(OTHER)), ANOTHER_DIGEST),
    "bytes before the digest": (lambda: sign_payload(b"!" + sha256(SIGNED)), ANOTHER_DIGEST),
    "bytes behind the digest": (lambda: sign_payload(sha256(SIGNED) + b"!"), ANOTHER_DIGEST),
    "the digest of SHA-256 named SHA-384": (
        lambda: sign_payload(DIGEST_INFO["sha384"] + sha256(SIGNED)),
        ANOTHER_DIGEST,
    ),
}


@pytest.mark.parametrize(("make", "fault"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_rsa_signature_is_named(make: Make, fault: str) -> None:
    assert judge(make()) == (Scheme.UNKNOWN, fault)


NO_ECDSA = "the leaf's key is for ECDSA, but the signature is not an ECDSA signature"
WRONG_EC: dict[str, tuple[Make, str]] = {
    "zeros": (lambda: bytes(104), EMPTY),
    "no sequence": (lambda: b"\x31" + sign_ec(SIGNED)[1:], NO_ECDSA),
    "one byte": (lambda: b"\x30", NO_ECDSA),
    "an empty sequence": (lambda: b"\x30\0", NO_ECDSA),
    "one byte short": (lambda: sign_ec(SIGNED)[:-1], NO_ECDSA),
    "RSA's": (lambda: b"\1" + sign_pss(SIGNED)[1:], NO_ECDSA),
    "bytes behind it": (
        lambda: sign_ec(SIGNED) + b"\0\1",
        "the bytes after the signature are not padding",
    ),
    "another file's": (lambda: sign_ec(OTHER), UNVERIFIED),
    "r and s of 1": (lambda: utils.encode_dss_signature(1, 1), UNVERIFIED),
}


@pytest.mark.parametrize(("make", "fault"), WRONG_EC.values(), ids=WRONG_EC.keys())
def test_a_wrong_ecdsa_signature_is_named(make: Make, fault: str) -> None:
    assert judge_ec(make()) == (Scheme.UNKNOWN, fault)


def test_a_key_of_odd_bits_is_judged() -> None:
    key = rsa.generate_private_key(3, 2050)
    scheme = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
    assert judge(key.sign(SIGNED, scheme, hashes.SHA384()), key) == (Scheme.PSS, "")
    assert judge(key.sign(OTHER, scheme, hashes.SHA384()), key) == (Scheme.UNKNOWN, ANOTHER_DIGEST)


def test_a_key_without_a_published_scheme_is_not_recognised() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    (leaf,) = parse_chain(certify(LEAF_NAME, key, AUTHORITY_NAME, EC_KEY))
    found = judge_signature(leaf, key.sign(SIGNED), SIGNED)
    assert (found.scheme, found.fault) == (Scheme.UNKNOWN, "")
