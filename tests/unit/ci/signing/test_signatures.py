"""Values of a signature: those of the leaf's key are recognised, all others are named."""

from __future__ import annotations

import hashlib
import itertools
from functools import cache

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

from ci.signing.proof.certificates import Certificate, parse_chain
from ci.signing.proof.signature import judge_signature, list_digests
from ci.signing.proof.verdict import Scheme
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


def make_rsa(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    return keep_rsa(number, bits)


@cache
def keep_rsa(number: int, bits: int) -> rsa.RSAPrivateKey:
    return make_known_key() if bits == 2048 else rsa.generate_private_key(3, bits)


@cache
def make_ec() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def make_leaf(bits: int = 2048) -> Certificate:
    key = make_rsa(0, bits)
    return parse_chain(certify(LEAF_NAME, key, AUTHORITY_NAME, make_ec()))[0]


@cache
def make_ec_leaf() -> Certificate:
    return parse_chain(certify(LEAF_NAME, make_ec(), AUTHORITY_NAME, make_ec()))[0]


def sign_pss(data: bytes, name: str, number: int = 0, salt: int = 32) -> bytes:
    scheme = padding.PSS(padding.MGF1(HASHES[name]), salt)
    return make_rsa(number).sign(data, scheme, HASHES[name])


def sign_below(data: bytes, name: str, limit: int) -> bytes:
    """A signature of another key that is a number below ``limit``, as by chance it need not be."""
    signatures = (sign_pss(data, name, number) for number in itertools.count(1))
    return next(one for one in signatures if int.from_bytes(one, "big") < limit)


def sign_plain(payload: bytes, bits: int = 2048) -> bytes:
    numbers = make_rsa(0, bits).private_numbers()
    size = bits // 8
    block = b"\0\1" + b"\xff" * (size - 3 - len(payload)) + b"\0" + payload
    value = pow(int.from_bytes(block, "big"), numbers.d, numbers.public_numbers.n)
    return value.to_bytes(size, "big")


def modulus() -> int:
    return make_rsa().public_key().public_numbers().n


def judge(signature: bytes, leaf: Certificate | None = None) -> tuple[Scheme, str]:
    found = judge_signature(leaf or make_leaf(), signature, SIGNED)
    return found.scheme, found.fault


@pytest.mark.parametrize("name", HASHES)
@pytest.mark.parametrize("salt", [0, 20, 64])
def test_pss_of_every_hash_is_recognised(name: str, salt: int) -> None:
    assert judge(sign_pss(SIGNED, name, salt=salt)) == (Scheme.PSS, "")


@pytest.mark.parametrize("name", HASHES)
def test_pkcs1_of_every_hash_is_recognised(name: str) -> None:
    digest = hashlib.new(name, SIGNED).digest()
    assert judge(sign_plain(digest)) == (Scheme.PKCS1, "")
    with_info = make_rsa().sign(SIGNED, padding.PKCS1v15(), HASHES[name])
    assert judge(with_info) == (Scheme.PKCS1, "")


def test_digest_keyed_by_the_identities_is_recognised() -> None:
    numbers = make_rsa().private_numbers()
    key = Key(numbers.public_numbers.n, numbers.d, b"", SOFTWARE_ID, HARDWARE_ID)
    assert judge(sign_keyed(SIGNED, key)) == (Scheme.PKCS1, "")
    swapped = Key(numbers.public_numbers.n, numbers.d, b"", HARDWARE_ID, SOFTWARE_ID)
    assert "over another digest" in judge(sign_keyed(SIGNED, swapped))[1]


def test_every_hash_gives_a_plain_and_a_keyed_digest() -> None:
    names = [name for name, _ in list_digests("CN=leaf", SIGNED)]
    assert names == [*HASHES, *HASHES]


@pytest.mark.parametrize("filler", [b"", b"\0", b"\xff"])
def test_padding_behind_a_signature_is_no_part_of_it(filler: bytes) -> None:
    assert judge(sign_pss(SIGNED, "sha384") + 40 * filler) == (Scheme.PSS, "")


WRONG = {
    "nothing": (lambda: b"", "the signature is empty"),
    "zeros": (lambda: bytes(256), "the signature is empty"),
    "0xff": (lambda: b"\xff" * 256, "the signature is filled with 0xff"),
    "0xff, longer": (lambda: b"\xff" * 512, "the signature is filled with 0xff"),
    "one byte short": (lambda: sign_pss(SIGNED, "sha384")[:-1], "255 bytes for a key of 2048 bits"),
    "one byte too many": (lambda: sign_pss(SIGNED, "sha384") + b"\1", "257 bytes for a key of"),
    "mixed padding": (lambda: sign_pss(SIGNED, "sha384") + b"\xff\0", "258 bytes for a key of"),
    "n": (lambda: modulus().to_bytes(256, "big"), "a number that the leaf's key cannot have made"),
    "n + 5": (lambda: (modulus() + 5).to_bytes(256, "big"), "a number that the leaf's key cannot"),
    "n - 1": (lambda: (modulus() - 1).to_bytes(256, "big"), "does not verify"),
    "1": (lambda: (1).to_bytes(256, "big"), "does not verify"),
    "of another key": (lambda: sign_below(SIGNED, "sha384", modulus()), "does not verify"),
    "another file's": (lambda: sign_pss(OTHER, "sha384"), "of the leaf's key over another digest"),
    "another file's, SHA-256": (
        lambda: sign_pss(OTHER, "sha256", salt=64),
        "of the leaf's key over another digest",
    ),
    "another file's, without a salt": (
        lambda: sign_pss(OTHER, "sha512", salt=0),
        "of the leaf's key over another digest",
    ),
    "another file's, with a salt that leaves no padding to see": (
        lambda: sign_pss(OTHER, "sha256", salt=256 - 32 - 2),
        "does not verify",
    ),
    "another file's, PKCS #1": (
        lambda: sign_plain(hashlib.sha256(OTHER).digest()),
        "of the leaf's key over another digest",
    ),
    "the digest with bytes before it": (
        lambda: sign_plain(b"!" + hashlib.sha256(SIGNED).digest()),
        "of the leaf's key over another digest",
    ),
    "the digest with bytes behind it": (
        lambda: sign_plain(hashlib.sha256(SIGNED).digest() + b"!"),
        "of the leaf's key over another digest",
    ),
    "the digest of SHA-256 named SHA-384": (
        lambda: sign_plain(
            bytes.fromhex("3041300d060960864801650304020205000430")
            + hashlib.sha256(SIGNED).digest()
        ),
        "of the leaf's key over another digest",
    ),
}


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_value_of_an_rsa_signature_is_named(make, words: str) -> None:
    scheme, fault = judge(make())
    assert scheme is Scheme.UNKNOWN
    assert words in fault


def test_key_of_odd_bits_is_judged() -> None:
    key = make_rsa(0, 2050)
    leaf = make_leaf(2050)
    scheme = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
    assert judge(key.sign(SIGNED, scheme, hashes.SHA384()), leaf) == (Scheme.PSS, "")
    other = judge(key.sign(OTHER, scheme, hashes.SHA384()), leaf)
    assert "over another digest" in other[1]


def sign_ec(data: bytes, name: str = "sha384") -> bytes:
    return make_ec().sign(data, ec.ECDSA(HASHES[name]))


@pytest.mark.parametrize("name", HASHES)
@pytest.mark.parametrize("filler", [b"", b"\0", b"\xff"])
def test_ecdsa_of_every_hash_is_recognised(name: str, filler: bytes) -> None:
    assert judge(sign_ec(SIGNED, name) + 5 * filler, make_ec_leaf()) == (Scheme.ECDSA, "")


WRONG_EC = {
    "zeros": (lambda: bytes(104), "the signature is empty"),
    "0xff": (lambda: b"\xff" * 104, "filled with 0xff"),
    "no sequence": (lambda: b"\x31" + sign_ec(SIGNED)[1:], "not one of ECDSA"),
    "one byte": (lambda: b"\x30", "not one of ECDSA"),
    "short": (lambda: sign_ec(SIGNED)[:-1], "not one of ECDSA"),
    "bytes behind it": (lambda: sign_ec(SIGNED) + b"\0\1", "followed by bytes"),
    "another file's": (lambda: sign_ec(OTHER), "does not verify"),
    "r and s of 1": (
        lambda: utils.encode_dss_signature(1, 1),
        "does not verify",
    ),
    "RSA's": (lambda: sign_pss(SIGNED, "sha384"), "ECDSA"),
}


@pytest.mark.parametrize(("make", "words"), WRONG_EC.values(), ids=WRONG_EC.keys())
def test_wrong_value_of_an_ecdsa_signature_is_named(make, words: str) -> None:
    scheme, fault = judge(make(), make_ec_leaf())
    assert scheme is Scheme.UNKNOWN
    assert words in fault or "not one of ECDSA" in fault


def test_key_without_a_published_scheme_is_not_recognised() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(LEAF_NAME)
        .issuer_name(AUTHORITY_NAME)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(make_leaf().not_before)
        .not_valid_after(make_leaf().not_after)
        .sign(make_ec(), hashes.SHA256())
    )
    leaf = Certificate(
        certificate, "", "", make_leaf().not_before, make_leaf().not_after, "Ed25519", 0, ""
    )
    assert judge(key.sign(SIGNED), leaf) == (Scheme.UNKNOWN, "")
