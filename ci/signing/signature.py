"""Judge whether the signature of a hash segment was made with the key of the leaf certificate.

The recognised schemes are RSA with PKCS #1 v1.5 padding (with or without DigestInfo), RSA-PSS and
ECDSA. In each, the signed digest is a plain hash or a double hash. The double hash is keyed by the
SW_ID and HW_ID in the subject of the leaf certificate.

Source of the double hash: https://www.qualcomm.com/media/documents/files/
secure-boot-and-image-authentication-technical-overview-v2-0.pdf

No scheme is published for other kinds of keys; the result is then "not recognised".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from ci.signing.certificates import Certificate, is_padding, measure_der
from ci.signing.mbn import MalformedError
from ci.signing.verdict import Scheme

INNER_PAD, OUTER_PAD = 0x3636363636363636, 0x5C5C5C5C5C5C5C5C
# DER of DigestInfo up to the digest, https://www.rfc-editor.org/rfc/rfc8017#section-9.2
DIGEST_INFO = {
    "sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
    "sha384": bytes.fromhex("3041300d060960864801650304020205000430"),
    "sha512": bytes.fromhex("3051300d060960864801650304020305000440"),
}
HASHES: dict[str, hashes.HashAlgorithm] = {
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
# PSS padding must start with at least this many zero bytes, so that a random block does not pass.
TELLING_BYTES = 8


@dataclass(frozen=True)
class Judgement:
    """The scheme of a signature. If the signature is wrong, ``scheme`` is UNKNOWN and ``fault``
    states why.
    """

    scheme: Scheme
    fault: str = ""


def judge_signature(leaf: Certificate, signature: bytes, signed: bytes) -> Judgement:
    """Judge whether ``signature`` was made over ``signed`` with the key of ``leaf``."""
    if is_padding(signature):
        filler = f"filled with {signature[0]:#04x}" if any(signature) else "empty"
        return _wrong(f"the signature is {filler}")
    key = leaf.parsed.public_key()
    digests = list(list_digests(leaf.subject, signed))
    if isinstance(key, rsa.RSAPublicKey):
        return _judge_rsa(key, signature, digests)
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _judge_ecdsa(key, signature, digests)
    return Judgement(Scheme.UNKNOWN)


def _wrong(fault: str) -> Judgement:
    return Judgement(Scheme.UNKNOWN, fault)


def list_digests(subject: str, signed: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield each digest that a signer may have signed, after the name of its hash algorithm. Plain
    digests come first, then those keyed by SW_ID and HW_ID.
    """
    for name in HASHES:
        yield name, hashlib.new(name, signed).digest()
    software, hardware = read_identity(subject, "SW_ID"), read_identity(subject, "HW_ID")
    for name in HASHES:
        inner = hashlib.new(name, signed).digest()
        for pad, identity in ((INNER_PAD, software), (OUTER_PAD, hardware)):
            inner = hashlib.new(name, (identity ^ pad).to_bytes(8, "big") + inner).digest()
        yield name, inner


def read_identity(subject: str, name: str) -> int:
    """Return the 64-bit number in the OU field ``name`` (SW_ID or HW_ID), or 0 if ``subject`` lacks
    it. Only older leaf certificates have these fields.
    """
    found = re.search(rf"OU=\d\d ([0-9A-Fa-f]{{16}}) {name}\b", subject)
    return int(found[1], 16) if found else 0


def _judge_rsa(
    key: rsa.RSAPublicKey, signature: bytes, digests: list[tuple[str, bytes]]
) -> Judgement:
    size = (key.key_size + 7) // 8
    value = signature[:size]
    if len(value) < size or not is_padding(signature[size:]):
        return _wrong(
            f"a signature by a key of {key.key_size} bits cannot be {len(signature)} bytes long"
        )
    numbers = key.public_numbers()
    if int.from_bytes(value, "big") >= numbers.n:
        return _wrong("the signature is larger than the modulus of the leaf's key")
    payload = _recover_pkcs1(key, value)
    # Compare the whole payload: with exponent 3, anything before the digest can be forged.
    if any(payload in {digest, DIGEST_INFO[name] + digest} for name, digest in digests):
        return Judgement(Scheme.PKCS1)
    if any(_verifies_pss(key, value, name, digest) for name, digest in digests):
        return Judgement(Scheme.PSS)
    block = pow(int.from_bytes(value, "big"), numbers.e, numbers.n).to_bytes(size, "big")
    if payload or any(_has_pss_padding(block, key.key_size, name) for name in HASHES):
        return _wrong(
            "the signature was made with the leaf's key, but over a different digest: it belongs "
            "to another file, or the header or the hash table was changed afterwards"
        )
    return _wrong("the signature does not verify with the leaf's key")


def _recover_pkcs1(key: rsa.RSAPublicKey, value: bytes) -> bytes:
    try:
        return key.recover_data_from_signature(value, padding.PKCS1v15(), None)
    except (InvalidSignature, ValueError):
        return b""


def _verifies_pss(key: rsa.RSAPublicKey, value: bytes, name: str, digest: bytes) -> bool:
    algorithm = HASHES[name]
    scheme = padding.PSS(padding.MGF1(algorithm), padding.PSS.AUTO)
    try:
        key.verify(value, digest, scheme, utils.Prehashed(algorithm))
    except (InvalidSignature, ValueError):
        return False
    return True


def _has_pss_padding(block: bytes, key_bits: int, name: str) -> bool:
    """Return whether ``block`` is padded for RSA-PSS. The digest in it is not compared.

    https://www.rfc-editor.org/rfc/rfc8017#section-9.1.2
    """
    digest_size = HASHES[name].digest_size
    masked, digest = block[: -digest_size - 1], block[-digest_size - 1 : -1]
    counters = range(-(-len(masked) // digest_size))
    mask = b"".join(hashlib.new(name, digest + i.to_bytes(4, "big")).digest() for i in counters)
    padded = int.from_bytes(masked, "big") ^ int.from_bytes(mask[: len(masked)], "big")
    padded &= (1 << (8 * len(masked) - (8 * len(block) - key_bits + 1))) - 1
    found = padded.to_bytes(len(masked), "big")
    zeros = len(found) - len(found.lstrip(b"\0"))
    return block[-1:] == b"\xbc" and zeros >= TELLING_BYTES and found[zeros : zeros + 1] == b"\1"


def _judge_ecdsa(
    key: ec.EllipticCurvePublicKey, signature: bytes, digests: list[tuple[str, bytes]]
) -> Judgement:
    try:
        size = measure_der(signature)
        utils.decode_dss_signature(signature[:size])
    except (MalformedError, ValueError):
        return _wrong("the leaf's key is for ECDSA, but the signature is not an ECDSA signature")
    if not is_padding(signature[size:]):
        return _wrong("the bytes after the signature are not padding")
    for name, digest in digests:
        try:
            key.verify(signature[:size], digest, ec.ECDSA(utils.Prehashed(HASHES[name])))
        except (InvalidSignature, ValueError):
            continue
        return Judgement(Scheme.ECDSA)
    return _wrong("the signature does not verify with the leaf's key")
