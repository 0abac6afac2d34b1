"""A chain of test certificates in the profile of the vendor's test chain, made afresh."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.stand_ins.elfsigner.mbn_writer import Key

SOFTWARE_ID, HARDWARE_ID = 0x12, 0x00223344_0000_0001


def write_keys(directory: Path) -> None:
    """Write valid.{json,der} and expired.{json,der} for the stand-in."""
    for stem, days in (("valid", 3650), ("expired", -1)):
        key = make_key(days)
        numbers = {
            "modulus": key.modulus,
            "private_exponent": key.private_exponent,
            "software_id": key.software_id,
            "hardware_id": key.hardware_id,
        }
        (directory / f"{stem}.json").write_text(json.dumps(numbers))
        (directory / f"{stem}.der").write_bytes(key.chain)


def make_key(days: int = 3650) -> Key:
    """A leaf, an intermediate and a root; the leaf ends ``days`` from now."""
    keys = [rsa.generate_private_key(3, 2048) for _ in range(3)]
    names = [_leaf_name(), _name("Stand-in attestation CA"), _name("Stand-in root")]
    now = dt.datetime.now(dt.timezone.utc)
    start = now - dt.timedelta(days=400)
    ends = [now + dt.timedelta(days=days), *[now + dt.timedelta(days=7300)] * 2]
    chain = b""
    for level, end in enumerate(ends):
        issuer = min(level + 1, 2)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(names[level])
            .issuer_name(names[issuer])
            .public_key(keys[level].public_key())
            .serial_number(level + 1)
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=level > 0, path_length=None), critical=False)
            .sign(keys[issuer], hashes.SHA256())
        )
        chain += certificate.public_bytes(serialization.Encoding.DER)
    numbers = keys[0].private_numbers()
    return Key(numbers.public_numbers.n, numbers.d, chain, SOFTWARE_ID, HARDWARE_ID)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _leaf_name() -> x509.Name:
    units = (
        f"01 {SOFTWARE_ID:016X} SW_ID",
        f"02 {HARDWARE_ID:016X} HW_ID",
        "04 0000 OEM_ID",
    )
    return x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, "Stand-in signer")]
        + [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
    )
