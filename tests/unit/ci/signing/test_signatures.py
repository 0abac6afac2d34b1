"""Values of a signature: those of the leaf's key are recognised, all others are named."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

from ci.signing.certificates import Certificate, parse_chain
from ci.signing.verdict import Scheme
from ci.signing.verify import DIGEST_INFO, judge_signature
from tests.build.signing import show
from tests.stand_ins.elfsigner.certify import (
    AUTHORITY_NAME,
    HARDWARE_ID,
    LEAF_NAME,
    SOFTWARE_ID,
    certify,
)
from tests.stand_ins.elfsigner.keys import make_known_key
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_keyed
from tests.stand_ins.snapshots import check_snapshot

SIGNED, OTHER = b"header and hash table", b"those of another file"
HASHES = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}
RSA_KEY, EC_KEY = make_known_key(), ec.generate_private_key(ec.SECP384R1())
Make = Callable[[], bytes]


@cache
def odd_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(3, 2050)


@cache
def make_leaf(key: Any) -> Certificate:
    return parse_chain(certify(LEAF_NAME, key, AUTHORITY_NAME, EC_KEY))[0]


def judge(signature: bytes, key: Any = RSA_KEY) -> tuple[Scheme, str]:
    judgement = judge_signature(make_leaf(key), signature, SIGNED)
    return judgement.scheme, judgement.fault


def sign_pss(
    data: bytes, name: str = "sha384", salt: int = 32, key: rsa.RSAPrivateKey = RSA_KEY
) -> bytes:
    scheme = padding.PSS(padding.MGF1(HASHES[name]), salt)
    return key.sign(data, scheme, HASHES[name])


def sign_by_another_key() -> bytes:
    """A signature of another key, as a number that the leaf's key could have made."""
    signatures = (sign_pss(SIGNED, key=make_known_key()) for _ in itertools.count())
    return next(
        signature for signature in signatures if int.from_bytes(signature, "big") < modulus()
    )


def sign_payload(payload: bytes) -> bytes:
    """PKCS #1 v1.5 padding around any payload."""
    numbers = RSA_KEY.private_numbers()
    block = b"\0\1" + b"\xff" * (256 - 3 - len(payload)) + b"\0" + payload
    return number(pow(int.from_bytes(block, "big"), numbers.d, numbers.public_numbers.n))


def sign_identities(software: int, hardware: int) -> bytes:
    numbers = RSA_KEY.private_numbers()
    return sign_keyed(SIGNED, Key(numbers.public_numbers.n, numbers.d, b"", software, hardware))


def sign_ec(data: bytes, name: str = "sha384") -> bytes:
    return EC_KEY.sign(data, ec.ECDSA(HASHES[name]))


def modulus() -> int:
    return RSA_KEY.public_key().public_numbers().n


def number(value: int) -> bytes:
    return value.to_bytes(256, "big")


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.mark.parametrize("name", HASHES)
def test_rsa_and_ecdsa_of_every_hash_are_recognised(name: str) -> None:
    for salt in (0, 20, 64):
        assert judge(sign_pss(SIGNED, name, salt)) == (Scheme.PSS, "")
    digest = hashlib.new(name, SIGNED).digest()
    assert judge(sign_payload(digest)) == (Scheme.PKCS1, "")
    assert judge(RSA_KEY.sign(SIGNED, padding.PKCS1v15(), HASHES[name])) == (Scheme.PKCS1, "")
    for filler in (b"", bytes(5), b"\xff" * 5):
        assert judge(sign_pss(SIGNED, name) + filler) == (Scheme.PSS, "")
        assert judge(sign_ec(SIGNED, name) + filler, EC_KEY) == (Scheme.ECDSA, "")


def test_other_keys_and_keyed_digests_are_recognised() -> None:
    assert judge(sign_identities(SOFTWARE_ID, HARDWARE_ID)) == (Scheme.PKCS1, "")
    assert judge(sign_pss(SIGNED, salt=48, key=odd_key()), odd_key()) == (Scheme.PSS, "")
    unusual = ed25519.Ed25519PrivateKey.generate()
    assert judge(unusual.sign(SIGNED), unusual) == (Scheme.UNKNOWN, "")


WRONG: dict[str, Make] = {
    "nothing": lambda: b"",
    "zeros": lambda: bytes(256),
    "0xff": lambda: b"\xff" * 256,
    "0xff, longer": lambda: b"\xff" * 512,
    "one byte short": lambda: sign_pss(SIGNED)[:-1],
    "one byte too many": lambda: sign_pss(SIGNED) + b"\1",
    "mixed padding": lambda: sign_pss(SIGNED) + b"\xff\0",
    "n": lambda: number(modulus()),
    "n + 5": lambda: number(modulus() + 5),
    "n - 1": lambda: number(modulus() - 1),
    "1": lambda: number(1),
    "of another key": sign_by_another_key,
    "another file's": lambda: sign_pss(OTHER),
    "another file's, SHA-256": lambda: sign_pss(OTHER, "sha256", 64),
    "another file's, without a salt": lambda: sign_pss(OTHER, "sha512", 0),
    # Padding of 8 zeros before the salt is recognised, less is not.
    "another file's, with 8 zeros": lambda: sign_pss(OTHER, "sha256", 214),
    "another file's, with 7 zeros": lambda: sign_pss(OTHER, "sha256", 215),
    "another file's, without padding": lambda: sign_pss(OTHER, "sha256", 256 - 32 - 2),
    "another file's, PKCS #1": lambda: sign_payload(sha256(OTHER)),
    "bytes before the digest": lambda: sign_payload(b"!" + sha256(SIGNED)),
    "bytes behind the digest": lambda: sign_payload(sha256(SIGNED) + b"!"),
    "the digest of SHA-256 named SHA-384": lambda: sign_payload(
        DIGEST_INFO["sha384"] + sha256(SIGNED)
    ),
    "identities swapped": lambda: sign_identities(HARDWARE_ID, SOFTWARE_ID),
}
WRONG_EC: dict[str, Make] = {
    "zeros": lambda: bytes(104),
    "no sequence": lambda: b"\x31" + sign_ec(SIGNED)[1:],
    "one byte": lambda: b"\x30",
    "an empty sequence": lambda: b"\x30\0",
    "one byte short": lambda: sign_ec(SIGNED)[:-1],
    "RSA's": lambda: b"\1" + sign_pss(SIGNED)[1:],
    "bytes behind it": lambda: sign_ec(SIGNED) + b"\0\1",
    "another file's": lambda: sign_ec(OTHER),
    "r and s of 1": lambda: utils.encode_dss_signature(1, 1),
}


def test_a_wrong_signature_is_named() -> None:
    judgements = {f"RSA: {name}": judge(make()) for name, make in WRONG.items()}
    judgements |= {f"ECDSA: {name}": judge(make(), EC_KEY) for name, make in WRONG_EC.items()}
    judgements["RSA of 2050 bits: another file's"] = judge(
        sign_pss(OTHER, salt=48, key=odd_key()), odd_key()
    )
    assert all(scheme is Scheme.UNKNOWN and fault for scheme, fault in judgements.values())
    faults = {name: fault for name, (_, fault) in judgements.items()}
    check_snapshot(Path(__file__).with_name("snapshots") / "signatures.txt", show(faults))
