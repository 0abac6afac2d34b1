"""Windows catalogs with a chain of their own, as Microsoft's are laid out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache

from cryptography import x509
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from provisioning.elf.catalog import TIME_STAMPING, Trust
from tests.stand_ins.elfsigner.keys import make_known_key

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
YEAR = timedelta(days=365)
PUBLISHER, WHQL = "Test Hardware Publisher", "1.3.6.1.4.1.311.10.3.5"
RSA = "1.2.840.113549.1.1.1"
RSA_WITH = {  # with a hash algorithm
    "sha256": "1.2.840.113549.1.1.11",
    "sha384": "1.2.840.113549.1.1.12",
    "sha512": "1.2.840.113549.1.1.13",
}
DIGEST_OIDS = {
    "sha1": "1.3.14.3.2.26",
    "sha224": "2.16.840.1.101.3.4.2.4",
    "sha256": "2.16.840.1.101.3.4.2.1",
    "sha384": "2.16.840.1.101.3.4.2.2",
    "sha512": "2.16.840.1.101.3.4.2.3",
}
TRUST_LIST_MEMBERS = "1.3.6.1.4.1.311.12.1.1"


@dataclass(frozen=True)
class Holder:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)


@cache
def make_key(name: str) -> rsa.RSAPrivateKey:
    """A key per name, of known primes: to find some takes a tenth of a second each."""
    return make_known_key()


def issue(
    name: str,
    issuer: Holder | None = None,
    usage: str = "",
    start: datetime = NOW - YEAR,
    end: datetime = NOW + YEAR,
    *,
    key: str = "",
    path_length: int | None = None,
    extension: x509.ExtensionType | None = None,
    signs: bool | None = None,
) -> Holder:
    """An authority, or with ``usage`` a signer; without an issuer a root. Only an authority may
    sign others, unless ``signs`` says otherwise. `` and `` in ``name`` separates several names.
    """
    subject_key = make_key(key or name)
    common_name = x509.NameOID.COMMON_NAME
    subject = x509.Name([x509.NameAttribute(common_name, part) for part in name.split(" and ")])
    is_authority = not usage
    signs = is_authority if signs is None else signs
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(subject_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(is_authority, path_length), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=signs,
                crl_sign=is_authority,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if usage:
        kinds = x509.ExtendedKeyUsage([x509.ObjectIdentifier(usage)])
        builder = builder.add_extension(kinds, critical=False)
    if extension:
        builder = builder.add_extension(extension, critical=False)
    return Holder(builder.sign(issuer.key if issuer else subject_key, hashes.SHA256()), subject_key)


ROOT = issue("Test Root", start=NOW - 9 * YEAR, end=NOW + 9 * YEAR)
AUTHORITY = issue("Test CA", ROOT, start=NOW - 9 * YEAR, end=NOW + 9 * YEAR)
SIGNER = issue(PUBLISHER, AUTHORITY, WHQL)
STAMPER = issue("Test Time", AUTHORITY, TIME_STAMPING, NOW - 9 * YEAR, NOW + 9 * YEAR)
TRUST = Trust(ROOT.certificate, PUBLISHER, WHQL)


def wrap(tag: int, *parts: bytes) -> bytes:
    """One DER value."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    width = (size.bit_length() + 7) // 8
    return bytes([tag, 0x80 | width]) + size.to_bytes(width, "big") + content


def make_oid(text: str) -> bytes:
    """An object identifier in DER."""
    return asn1.encode_der(x509.ObjectIdentifier(text))


def make_number(number: int) -> bytes:
    """An INTEGER in DER."""
    return asn1.encode_der(number)


def make_algorithm(oid: str) -> bytes:
    """An AlgorithmIdentifier with NULL as its parameters."""
    return wrap(0x30, make_oid(oid), b"\5\0")


def make_attribute(kind: str, *values: bytes) -> bytes:
    """A kind and a set of values, sorted as DER wants it."""
    return wrap(0x30, make_oid(kind), wrap(0x31, *sorted(values)))


def list_members(files: Mapping[str, bytes]) -> bytes:
    """A trust list of the files' names and bytes."""
    entries = []
    for name, data in files.items():
        digest = hashlib.sha256(data).digest()
        link = wrap(0x30, make_oid("1.3.6.1.4.1.311.2.1.25"))
        indirect = wrap(
            0x30, link, wrap(0x30, make_algorithm(DIGEST_OIDS["sha256"]), wrap(0x04, digest))
        )
        text = (name + "\0").encode("utf-16-le")
        value = wrap(0x30, wrap(0x1E, "File".encode("utf-16-be")), make_number(1), wrap(0x04, text))
        attributes = sorted(
            [
                make_attribute("1.3.6.1.4.1.311.12.2.1", value),
                make_attribute("1.3.6.1.4.1.311.2.1.4", indirect),
            ]
        )
        entries.append(wrap(0x30, wrap(0x04, digest), wrap(0x31, *attributes)))
    return wrap(
        0x30,
        wrap(0x30, make_oid(TRUST_LIST_MEMBERS)),
        wrap(0x04, bytes(16)),
        wrap(0x17, b"260601000000Z"),
        make_algorithm("1.3.6.1.4.1.311.12.1.3"),
        wrap(0x30, *entries),
    )


def sign(
    kind: str,
    content: bytes,
    signer: Holder,
    *chain: Holder,
    stamped: datetime | None = None,
    stamper: Holder = STAMPER,
    attributed: bytes | None = None,
    hashed: str = "sha256",
    algorithm: str = RSA,
    imprint: str = "sha256",
    named: str = "",
    stamps: int = 1,
    listed: Sequence[str] = (),
) -> bytes:
    """A ContentInfo with SignedData around ``content``, a whole DER value.

    ``attributed`` is what the signed digest is of, if it is not the content; ``hashed`` is the
    kind of digest, and ``imprint`` that of the timestamp's. ``named`` is the signed type, if it is
    not ``kind``. There are ``stamps`` timestamps, and ``listed`` are other kinds of digests in the
    list of them, which is not signed.
    """
    body = content[2 + (content[1] & 0x7F if content[1] & 0x80 else 0) :]
    digest = hashlib.new(hashed, body if attributed is None else attributed).digest()
    attributes = sorted(
        [
            make_attribute("1.2.840.113549.1.9.3", make_oid(named or kind)),
            make_attribute("1.2.840.113549.1.9.4", wrap(0x04, digest)),
        ]
    )
    hash_algorithm = getattr(hashes, hashed.upper())()
    signature = signer.key.sign(wrap(0x31, *attributes), padding.PKCS1v15(), hash_algorithm)
    certificate = signer.certificate
    info = [
        make_number(1),
        wrap(0x30, certificate.issuer.public_bytes(), make_number(certificate.serial_number)),
        make_algorithm(DIGEST_OIDS[hashed]),
        wrap(0xA0, *attributes),
        make_algorithm(algorithm),
        wrap(0x04, signature),
    ]
    if stamped:
        token = make_timestamp(signature, stamped, stamper, imprint)
        info.append(wrap(0xA1, make_attribute("1.3.6.1.4.1.311.3.3.1", *[token] * stamps)))
    digest_names = (hashed, *listed)
    fields = [
        make_number(1),
        wrap(0x31, *sorted(make_algorithm(DIGEST_OIDS[name]) for name in digest_names)),
        wrap(0x30, make_oid(kind), wrap(0xA0, content)),
        wrap(0xA0, *sorted(holder.der for holder in (signer, *chain))),
        wrap(0x31, wrap(0x30, *info)),
    ]
    return wrap(0x30, make_oid("1.2.840.113549.1.7.2"), wrap(0xA0, wrap(0x30, *fields)))


def make_timestamp(signature: bytes, when: datetime, stamper: Holder, imprint: str) -> bytes:
    """A countersignature: when ``signature`` was made, according to ``stamper``."""
    digest = hashlib.new(imprint, signature).digest()
    info = wrap(
        0x30,
        make_number(1),
        make_oid("1.2.3.4"),
        wrap(0x30, make_algorithm(DIGEST_OIDS[imprint]), wrap(0x04, digest)),
        make_number(1),
        wrap(0x18, f"{when:%Y%m%d%H%M%SZ}".encode()),
    )
    return sign("1.2.840.113549.1.9.16.1.4", wrap(0x04, info), stamper, AUTHORITY)


def make_catalog(files: Mapping[str, bytes], signer: Holder = SIGNER, **change: object) -> bytes:
    """A catalog that vouches for ``files``."""
    return sign("1.3.6.1.4.1.311.10.1", list_members(files), signer, AUTHORITY, **change)
