"""Windows catalogs with a chain of their own, as Microsoft's are laid out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache

from asn1crypto import algos, cms, core, tsp
from asn1crypto import x509 as asn1
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from provisioning.elf.catalog import INDIRECT_DATA, NAME_VALUE, TIME_STAMPING, Trust
from tests.stand_ins.elfsigner.keys import make_known_key

NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
YEAR = timedelta(days=365)
PUBLISHER, WHQL = "Test Hardware Publisher", "1.3.6.1.4.1.311.10.3.5"
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
    more: x509.ExtensionType | None = None,
    signs: bool | None = None,
) -> Holder:
    """An authority, or with ``usage`` a signer; without an issuer a root. Only an authority may
    sign others, unless ``signs`` says otherwise. `` and `` in ``name`` separates several names.
    """
    own = make_key(key or name)
    subject = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, one) for one in name.split(" and ")]
    )
    is_authority = not usage
    signs = is_authority if signs is None else signs
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(own.public_key())
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
    if more:
        builder = builder.add_extension(more, critical=False)
    return Holder(builder.sign(issuer.key if issuer else own, hashes.SHA256()), own)


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
    return bytes(core.ObjectIdentifier(text).dump())


def list_members(files: Mapping[str, bytes]) -> bytes:
    """A trust list of the files' names and bytes."""
    entries = []
    for name, data in files.items():
        digest = hashlib.sha256(data).digest()
        algorithm = algos.DigestAlgorithm({"algorithm": "sha256"}).dump()
        link = wrap(0x30, make_oid("1.3.6.1.4.1.311.2.1.25"))
        indirect = wrap(0x30, link, wrap(0x30, algorithm, wrap(0x04, digest)))
        text = (name + "\0").encode("utf-16-le")
        value = wrap(
            0x30, wrap(0x1E, "File".encode("utf-16-be")), wrap(0x02, b"\1"), wrap(0x04, text)
        )
        attributes = wrap(
            0x31,
            wrap(0x30, wrap(0x06, NAME_VALUE), wrap(0x31, value)),
            wrap(0x30, wrap(0x06, INDIRECT_DATA), wrap(0x31, indirect)),
        )
        entries.append(wrap(0x30, wrap(0x04, digest), attributes))
    return wrap(
        0x30,
        wrap(0x30, make_oid(TRUST_LIST_MEMBERS)),
        wrap(0x04, bytes(16)),
        wrap(0x17, b"260601000000Z"),
        wrap(0x30, make_oid("1.3.6.1.4.1.311.12.1.3"), b"\5\0"),
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
    algorithm: str = "rsassa_pkcs1v15",
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
    attributes = cms.CMSAttributes(
        [
            {"type": "content_type", "values": [named or kind]},
            {"type": "message_digest", "values": [digest]},
        ]
    )
    kind_of_digest = getattr(hashes, hashed.upper())()
    signature = signer.key.sign(attributes.dump(), padding.PKCS1v15(), kind_of_digest)
    certificate = asn1.Certificate.load(signer.der)
    info = {
        "version": "v1",
        "sid": cms.SignerIdentifier(
            name="issuer_and_serial_number",
            value={"issuer": certificate.issuer, "serial_number": certificate.serial_number},
        ),
        "digest_algorithm": {"algorithm": hashed},
        "signed_attrs": attributes,
        "signature_algorithm": {"algorithm": algorithm},
        "signature": signature,
    }
    if stamped:
        token = cms.ContentInfo.load(make_timestamp(signature, stamped, stamper, imprint))
        info["unsigned_attrs"] = [
            {"type": "microsoft_time_stamp_token", "values": [token] * stamps}
        ]
    holders = (signer, *chain)
    signed = cms.SignedData(
        {
            "version": "v1",
            "digest_algorithms": [{"algorithm": one} for one in (hashed, *listed)],
            "encap_content_info": {"content_type": kind},
            "certificates": [asn1.Certificate.load(one.der) for one in holders],
            "signer_infos": [info],
        }
    ).dump()
    # asn1crypto does not write content of a type that it does not know.
    empty = wrap(0x30, make_oid(kind))
    full = wrap(0x30, make_oid(kind), wrap(0xA0, content))
    fields = core.Sequence.load(signed).contents.replace(empty, full, 1)
    return wrap(0x30, make_oid("1.2.840.113549.1.7.2"), wrap(0xA0, wrap(0x30, fields)))


def make_timestamp(signature: bytes, when: datetime, stamper: Holder, imprint: str) -> bytes:
    info = tsp.TSTInfo(
        {
            "version": "v1",
            "policy": "1.2.3.4",
            "message_imprint": {
                "hash_algorithm": {"algorithm": imprint},
                "hashed_message": hashlib.new(imprint, signature).digest(),
            },
            "serial_number": 1,
            "gen_time": when,
        }
    ).dump()
    return sign("1.2.840.113549.1.9.16.1.4", wrap(0x04, info), stamper, AUTHORITY)


def make_catalog(files: Mapping[str, bytes], signer: Holder = SIGNER, **change: object) -> bytes:
    """A catalog that vouches for ``files``."""
    return sign("1.3.6.1.4.1.311.10.1", list_members(files), signer, AUTHORITY, **change)
