"""The certificates of a hash segment: DER certificates one after another, then padding.

Which root a device trusts is in its fuses and not in the file: nothing here judges that.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ci.signing.proof.segments import MalformedError

PADDING = {0x00, 0xFF}
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
WEAK_RSA_BITS = 2048


@dataclass(frozen=True)
class Certificate:
    """One certificate of a chain. Dates are UTC, ``fingerprint`` is the SHA-256 of the DER."""

    parsed: x509.Certificate
    subject: str
    issuer: str
    not_before: datetime
    not_after: datetime
    key: str
    key_bits: int
    fingerprint: str

    @property
    def is_root(self) -> bool:
        """Whether it names itself as its issuer."""
        return self.parsed.subject == self.parsed.issuer

    def describe(self) -> str:
        """One line: subject, key and dates."""
        return (
            f"{self.subject}, {self.key} {self.key_bits} bits, "
            f"{self.not_before:%Y-%m-%d} to {self.not_after:%Y-%m-%d}"
        )


def parse_chain(data: bytes) -> tuple[Certificate, ...]:
    """The certificates of ``data``. Raises MalformedError, also for padding that is not uniform."""
    found: list[Certificate] = []
    position = 0
    while position < len(data) and data[position] == 0x30:
        size = _measure_der(data, position)
        if position + size > len(data):
            raise MalformedError(f"certificate {len(found)} ends after the chain's end")
        found.append(_parse_certificate(data[position : position + size], len(found)))
        position += size
    if not found:
        raise MalformedError("the chain holds no certificate")
    padding = set(data[position:])
    if len(padding) > 1 or not padding <= PADDING:
        raise MalformedError(f"the chain has bytes after its {len(found)} certificates")
    return tuple(found)


def _measure_der(data: bytes, position: int) -> int:
    """The bytes of the DER sequence at ``position``, its tag and length included."""
    if position + 2 > len(data):
        raise MalformedError("the chain ends within a certificate")
    first = data[position + 1]
    if first < 0x80:
        return 2 + first
    width = first & 0x7F
    if width not in {1, 2, 3}:
        raise MalformedError("a certificate has no definite length")
    return 2 + width + int.from_bytes(data[position + 2 : position + 2 + width], "big")


def _parse_certificate(der: bytes, index: int) -> Certificate:
    try:
        # Test keys of the vendor's tools have serial numbers and extensions that are not strict.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = x509.load_der_x509_certificate(der)
            key = parsed.public_key()
            subject, issuer = _name(parsed.subject), _name(parsed.issuer)
    except UNREADABLE as error:
        raise MalformedError(f"certificate {index} does not parse: {error}") from error
    # The last element is the signature: a bit string, of which no bit may be unused.
    if der[-len(parsed.signature) - 1]:
        raise MalformedError(f"the signature of certificate {index} is not of whole bytes")
    if isinstance(key, rsa.RSAPublicKey):
        kind, bits = "RSA", key.key_size
    elif isinstance(key, ec.EllipticCurvePublicKey):
        kind, bits = f"EC {key.curve.name}", key.key_size
    else:
        kind, bits = type(key).__name__.removesuffix("PublicKey"), 0
    return Certificate(
        parsed,
        subject,
        issuer,
        parsed.not_valid_before_utc,
        parsed.not_valid_after_utc,
        kind,
        bits,
        parsed.fingerprint(hashes.SHA256()).hex(),
    )


def _name(name: x509.Name) -> str:
    return name.rfc4514_string() or "(no name)"


def list_date_errors(chain: Sequence[Certificate], now: datetime) -> list[str]:
    """The certificates of ``chain`` that are not valid at ``now``."""
    errors = []
    for index, one in enumerate(chain):
        if now > one.not_after:
            errors.append(f"certificate {index} expired on {one.not_after:%Y-%m-%d}: {one.subject}")
        if now < one.not_before:
            errors.append(
                f"certificate {index} is not valid before {one.not_before:%Y-%m-%d}: {one.subject}"
            )
    return errors


def list_link_errors(chain: Sequence[Certificate]) -> list[str]:
    """The certificates of ``chain`` that are signed by none above them.

    A chain runs from the leaf to its root, which the device compares with its fuses; several
    roots may stand at its end, of which the device chooses one.
    """
    return [
        f"certificate {index} is signed by none after it: {one.subject}"
        for index, one in enumerate(chain)
        if not _is_linked(one, chain[index + 1 :])
    ]


def list_chain_notes(chain: Sequence[Certificate]) -> list[str]:
    """What a reader should know of ``chain`` that is no error."""
    return [
        f"certificate {index} has an RSA key of only {one.key_bits} bits"
        for index, one in enumerate(chain)
        if one.key == "RSA" and one.key_bits < WEAK_RSA_BITS
    ]


def _is_linked(one: Certificate, above: Sequence[Certificate]) -> bool:
    if one.is_root:
        return _is_issued_by(one, one)
    return any(_is_issued_by(one, issuer) for issuer in above)


def _is_issued_by(one: Certificate, issuer: Certificate) -> bool:
    try:
        one.parsed.verify_directly_issued_by(issuer.parsed)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def utc_now() -> datetime:
    """The time that certificates are judged at."""
    return datetime.now(timezone.utc)
