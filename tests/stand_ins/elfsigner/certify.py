"""Certificates of the stand-in signer, made by cryptography in the profile of a test chain."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

SOFTWARE_ID, HARDWARE_ID = 0x12, 0x00223344_0000_0001
AUTHORITY_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Stand-in attestation CA")])
ROOT_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Stand-in root")])
UNITS = (f"01 {SOFTWARE_ID:016X} SW_ID", f"02 {HARDWARE_ID:016X} HW_ID", "04 0000 OEM_ID")
LEAF_NAME = x509.Name(
    [x509.NameAttribute(NameOID.COMMON_NAME, "Stand-in signer")]
    + [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in UNITS]
)


def certify(
    subject: x509.Name,
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
    issuer: x509.Name,
    signing_key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey,
    days: int = 7300,
    extensions: Sequence[x509.ExtensionType] | None = None,
) -> bytes:
    """A DER certificate that ends ``days`` from now; all but the leaf say that they may sign."""
    now = dt.datetime.now(dt.timezone.utc)
    if extensions is None:
        extensions = [x509.BasicConstraints(ca=subject != LEAF_NAME, path_length=None)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=400))
        .not_valid_after(now + dt.timedelta(days=days))
    )
    for extension in extensions:
        unknown = isinstance(extension, x509.UnrecognizedExtension)
        builder = builder.add_extension(extension, critical=unknown)
    certificate = builder.sign(signing_key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.DER)
