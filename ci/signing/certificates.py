"""Parse and check the certificate chain in a hash segment. A chain is a sequence of DER
certificates followed by padding.

Whether a device trusts the root depends on the fuses of the device, so it is not checked here.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ci.report.text import name_some
from ci.signing.mbn import MalformedError
from provisioning.elf.catalog import is_issued_by

# Enough for a leaf, its authorities, and the roots that a device may choose from.
# Images seen so far have three certificates.
MAX_CERTIFICATES = 20
UNREADABLE = (
    *(ValueError, TypeError, UnsupportedAlgorithm),
    *(x509.InvalidVersion, x509.UnsupportedGeneralNameType),
)
WEAK_RSA_BITS = 2048
SHOWN = 2
# Images with RSA keys of up to 4096 bits and the exponents 3 and 65537 are known. Larger numbers
# would take a forged file hours to be verified.
MAX_RSA_BITS, MAX_RSA_EXPONENT_BITS = 16384, 64
KEY_USAGE = x509.KeyUsage.oid
# The extensions whose meaning is checked here, or that do not limit what an authority signs.
KNOWN = frozenset(
    extension.oid
    for extension in (
        *(x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.CertificatePolicies),
        *(x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier, x509.SubjectAlternativeName),
    )
)


@dataclass(frozen=True)
class Certificate:
    """One certificate of a chain. Dates are in UTC, ``fingerprint`` is the SHA-256 of the DER
    bytes, and ``key_bits`` is 0 if the key is neither RSA nor EC.
    """

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
        """Return whether the certificate names itself as its issuer. (Its signature is not
        checked.)
        """
        return self.parsed.subject == self.parsed.issuer

    def is_issued_by(self, issuer: Certificate) -> bool:
        """Return whether ``issuer`` signed this certificate."""
        return is_issued_by(self.parsed, issuer.parsed)

    def describe(self) -> str:
        """Return the subject, the key and the dates of validity on one line."""
        return (
            f"{self.subject}, {self.key} {self.key_bits} bits, "
            f"{self.not_before:%Y-%m-%d} to {self.not_after:%Y-%m-%d}"
        )


def parse_chain(data: bytes) -> tuple[Certificate, ...]:
    """Return the certificates in ``data``, in the order of the file.

    Raises MalformedError if a certificate cannot be parsed, if there are none or more than
    MAX_CERTIFICATES, or if the bytes after the last one are not padding.
    """
    chain: list[Certificate] = []
    position = 0
    # The tag of a DER sequence; padding is 0x00 or 0xff.
    while position < len(data) and data[position] == 0x30:
        if len(chain) == MAX_CERTIFICATES:
            raise MalformedError(f"the chain has more than {MAX_CERTIFICATES} certificates")
        size = measure_der(data, position)
        if position + size > len(data):
            raise MalformedError(f"certificate {len(chain)} extends past the end of the chain")
        chain.append(_parse_certificate(data[position : position + size], len(chain)))
        position += size
    if not chain:
        raise MalformedError("the chain has no certificate")
    if not is_padding(data[position:]):
        raise MalformedError(f"the bytes after the {len(chain)} certificates are not padding")
    return tuple(chain)


def is_padding(data: bytes) -> bool:
    """Return whether ``data`` is padding, as signers write it: all 0x00, all 0xff, or empty."""
    # Both are in genuine images; 0xff may follow the chain.
    return not data.strip(b"\x00") or not data.strip(b"\xff")


def measure_der(data: bytes, position: int = 0) -> int:
    """Return the size in bytes of the DER sequence at ``position``, including its tag and length.

    Raises MalformedError if the length is missing or indefinite, or takes more than 3 bytes.
    """
    if position + 2 > len(data):
        raise MalformedError("the data ends before the length of a DER sequence")
    first = data[position + 1]
    if first < 0x80:
        return 2 + first
    width = first & 0x7F
    # Three bytes suffice for 16 MiB, and DER forbids an indefinite length.
    if width not in {1, 2, 3}:
        raise MalformedError(
            "the length of a DER sequence is indefinite or takes more than 3 bytes"
        )
    return 2 + width + int.from_bytes(data[position + 2 : position + 2 + width], "big")


def _parse_certificate(der: bytes, index: int) -> Certificate:
    try:
        # The vendor's test keys have serial numbers and extensions that cause warnings.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = x509.load_der_x509_certificate(der)
            key = parsed.public_key()
            names = [name.rfc4514_string() for name in (parsed.subject, parsed.issuer)]
            dates = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    except UNREADABLE as error:
        raise MalformedError(f"certificate {index} cannot be parsed: {error}") from error
    # The last element is the signature, a bit string: it must not have unused bits.
    if der[-len(parsed.signature) - 1]:
        raise MalformedError(f"the signature of certificate {index} is not a whole number of bytes")
    if isinstance(key, rsa.RSAPublicKey):
        kind, bits = "RSA", key.key_size
        exponent_bits = key.public_numbers().e.bit_length()
        if bits > MAX_RSA_BITS or exponent_bits > MAX_RSA_EXPONENT_BITS:
            raise MalformedError(
                f"certificate {index} has an RSA key of {bits} bits with an exponent of "
                f"{exponent_bits} bits; the limits are {MAX_RSA_BITS} and {MAX_RSA_EXPONENT_BITS}"
            )
    elif isinstance(key, ec.EllipticCurvePublicKey):
        kind, bits = f"EC {key.curve.name}", key.key_size
    else:
        kind, bits = type(key).__name__.removesuffix("PublicKey"), 0
    subject, issuer = (name or "(no name)" for name in names)
    digest = parsed.fingerprint(hashes.SHA256()).hex()
    return Certificate(parsed, subject, issuer, *dates, kind, bits, digest)


def list_date_errors(chain: Sequence[Certificate], now: datetime) -> list[str]:
    """Return an error for each certificate of ``chain`` that is not valid at ``now``."""
    errors = []
    for index, certificate in enumerate(chain):
        first, last, subject = certificate.not_before, certificate.not_after, certificate.subject
        if now > last:
            errors.append(f"certificate {index} expired on {last:%Y-%m-%d}: {subject}")
        if now < first:
            errors.append(f"certificate {index} is not valid before {first:%Y-%m-%d}: {subject}")
    return errors


def list_link_errors(chain: Sequence[Certificate]) -> list[str]:
    """Return an error for each certificate of ``chain`` that is not correctly linked to the others.

    The leaf must come first, and each authority after the certificate that it signed. There may be
    several roots, because a device chooses the one that matches its fuses. The root may be missing
    only if all certificates belong to the leaf's chain.
    """
    path = find_path(chain)
    if len(path) == 1:
        signs_itself = chain[0].is_issued_by(chain[0])
        alone = "signs itself" if signs_itself else "is not signed by any certificate after it"
        return [f"certificate 0 {alone}, so no authority vouches for it: {chain[0].subject}"]
    errors = [
        (index, "signs another certificate, which its extensions do not allow")
        for depth, index in enumerate(path[1:])
        if not _is_authority(chain[index], depth)
    ]
    no_voucher = "which is not known here, so RFC 5280 does not let it vouch for others"
    errors += [
        (index, f"has the critical extension {oid}, {no_voucher}")
        for index in path[1:]
        for oid in _list_unknown(chain[index])
    ]
    outside_path = set(range(len(chain))) - set(path)
    last = chain[path[-1]]
    if last.is_root and not last.is_issued_by(last):
        errors.append((path[-1], "is not signed by its own key"))
    # Some genuine chains end at an intermediate authority without the root.
    if not last.is_root and (outside_path or _is_nearly_root(last)):
        errors.append((path[-1], "is not signed by any certificate after it"))
    errors += [
        (index, "is neither part of the leaf's chain nor a root")
        for index in sorted(outside_path)
        if not (chain[index].is_issued_by(chain[index]) and _is_authority(chain[index], 0))
    ]
    return [f"certificate {index} {error}: {chain[index].subject}" for index, error in errors]


def find_path(chain: Sequence[Certificate]) -> list[int]:
    """Return the path from the leaf to its root as indexes into ``chain``. The leaf has index 0.

    The path ends early at a certificate whose issuer does not come after it in ``chain``.
    """
    path = [0]
    while not chain[path[-1]].is_root:
        above = range(path[-1] + 1, len(chain))
        issuer = next((i for i in above if chain[path[-1]].is_issued_by(chain[i])), None)
        if issuer is None:
            break
        path.append(issuer)
    return path


def _is_nearly_root(root: Certificate) -> bool:
    """Return whether issuer and subject differ in at most one byte, as in a damaged root.

    Without this check, a changed byte in the issuer of a root would go unnoticed: the certificate
    would look like an authority with its root missing.
    """
    subject, issuer = root.parsed.subject.public_bytes(), root.parsed.issuer.public_bytes()
    pairs = zip(subject, issuer, strict=False)
    return len(subject) == len(issuer) and sum(a != b for a, b in pairs) <= 1


def _is_authority(certificate: Certificate, below: int) -> bool:
    """Return whether its extensions allow ``certificate`` to sign others, with ``below`` other
    authorities between it and the leaf.
    """
    try:
        extensions = certificate.parsed.extensions
        basic = extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = next((each.value for each in extensions if each.oid == KEY_USAGE), None)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, *UNREADABLE):
        return False
    if isinstance(usage, x509.KeyUsage) and not usage.key_cert_sign:
        return False
    return basic.ca and (basic.path_length is None or below <= basic.path_length)


def _list_unknown(certificate: Certificate) -> list[str]:
    """Return the critical extensions of a certificate whose meaning is not known here. See
    https://www.rfc-editor.org/rfc/rfc5280#section-4.2."""
    try:
        rows = [*certificate.parsed.extensions]
    except (x509.DuplicateExtension, *UNREADABLE):
        return []  # _is_authority refuses it
    return [row.oid.dotted_string for row in rows if row.critical and row.oid not in KNOWN]


def list_chain_notes(chain: Sequence[Certificate]) -> list[str]:
    """Return notes about ``chain``: facts that a user should know, but that are not errors."""
    notes = [
        f"certificate {index} has an RSA key of only {certificate.key_bits} bits"
        for index, certificate in enumerate(chain)
        if certificate.key == "RSA" and certificate.key_bits < WEAK_RSA_BITS
    ]
    path = find_path(chain)
    if spare := sorted(set(range(len(chain))) - set(path)):
        named = name_some([f"{index} ({chain[index].subject})" for index in spare], SHOWN)
        notes.append(
            f"what is proven does not depend on certificate{'s' if spare[1:] else ''} {named}: "
            "nothing in the leaf's chain is signed with it, so it was ignored"
        )
    last = path[-1]
    if not chain[last].is_root:
        notes.append(
            f"the root is not in the file, so the signature of certificate {last} by "
            f"{chain[last].issuer} cannot be verified here"
        )
    return notes
