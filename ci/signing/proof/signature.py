"""Whether the signature of a hash segment is the leaf certificate's, as far as is public.

Published schemes: RSA with PKCS #1 v1.5 padding over a digest without DigestInfo, where the
digest is a double hash keyed by the SW_ID and HW_ID of the leaf's subject; RSA-PSS; ECDSA.
Source: https://www.qualcomm.com/media/documents/files/
secure-boot-and-image-authentication-technical-overview-v2-0.pdf
A signer may use another one, so "not recognised" is an answer of its own and not an error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from ci.signing.proof.certificates import Certificate
from ci.signing.proof.verdict import Scheme

INNER_PAD, OUTER_PAD = 0x3636363636363636, 0x5C5C5C5C5C5C5C5C
# DER of DigestInfo up to the digest, https://www.rfc-editor.org/rfc/rfc8017#section-9.2
DIGEST_INFO = {
    "sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
    "sha384": bytes.fromhex("3041300d060960864801650304020205000430"),
}
HASHES: dict[str, hashes.HashAlgorithm] = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384()}


def recognise_signature(leaf: Certificate, signature: bytes, signed: bytes) -> Scheme:
    """The scheme by which ``signature`` over ``signed`` verifies with the key of ``leaf``."""
    key = leaf.parsed.public_key()
    digests = list(list_digests(leaf.subject, signed))
    if isinstance(key, rsa.RSAPublicKey):
        return _recognise_rsa(key, signature, digests)
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _recognise_ecdsa(key, signature, digests)
    return Scheme.UNKNOWN


def list_digests(subject: str, signed: bytes) -> Iterator[tuple[str, bytes]]:
    """The digests that a signer may have signed: plain ones, and the one keyed by the ids."""
    for name in HASHES:
        yield name, hashlib.new(name, signed).digest()
    software, hardware = read_identity(subject, "SW_ID"), read_identity(subject, "HW_ID")
    for name in HASHES:
        inner = hashlib.new(name, signed).digest()
        for pad, identity in ((INNER_PAD, software), (OUTER_PAD, hardware)):
            inner = hashlib.new(name, (identity ^ pad).to_bytes(8, "big") + inner).digest()
        yield name, inner


def read_identity(subject: str, name: str) -> int:
    """The 64-bit SW_ID or HW_ID that older leaf certificates hold in their OU fields, else 0."""
    found = re.search(rf"OU=\d\d ([0-9A-Fa-f]{{16}}) {name}\b", subject)
    return int(found[1], 16) if found else 0


def _recognise_rsa(
    key: rsa.RSAPublicKey, signature: bytes, digests: list[tuple[str, bytes]]
) -> Scheme:
    value = signature[: key.key_size // 8]
    try:
        payload = key.recover_data_from_signature(value, padding.PKCS1v15(), None)
    except (InvalidSignature, ValueError):
        payload = b""
    # The whole payload counts: with exponent 3 anything before a digest could be forged.
    if any(payload in {digest, DIGEST_INFO[name] + digest} for name, digest in digests):
        return Scheme.PKCS1
    for name, digest in digests:
        algorithm = HASHES[name]
        scheme = padding.PSS(padding.MGF1(algorithm), padding.PSS.AUTO)
        try:
            key.verify(value, digest, scheme, utils.Prehashed(algorithm))
        except (InvalidSignature, ValueError):
            continue
        return Scheme.PSS
    return Scheme.UNKNOWN


def _recognise_ecdsa(
    key: ec.EllipticCurvePublicKey, signature: bytes, digests: list[tuple[str, bytes]]
) -> Scheme:
    for name, digest in digests:
        try:
            key.verify(_trim_der(signature), digest, ec.ECDSA(utils.Prehashed(HASHES[name])))
        except (InvalidSignature, ValueError):
            continue
        return Scheme.ECDSA
    return Scheme.UNKNOWN


def _trim_der(signature: bytes) -> bytes:
    """An ECDSA signature without the padding up to its declared size."""
    return signature[: 2 + signature[1]] if len(signature) > 2 else signature
