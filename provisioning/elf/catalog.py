"""Verify Windows catalogs: files signed by Microsoft that list other files by their SHA-256.

Qualcomm's SDKs and wheels contain a catalog, such as libqnnhtpv73.cat, next to the skels of V73
and, from QNN 2.40 on, of V81. A catalog is a PKCS #7 SignedData (RFC 2315) that contains a trust
list (MS-CAESO 2.2.1.1). Each entry of the list contains a file's name and its hash
(SpcIndirectDataContent in Authenticode_PE.docx). The signature remains valid after its certificate
has expired, if a timestamp (RFC 3161) proves that it was made earlier.

The classes below describe the encoding (DER) of the parts. Bytes that do not match them are
refused, because no signature covers the fields around the signed content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from provisioning.documents import read_bytes
from provisioning.elf.facts import Genuine, Proof

MAX_BYTES = 1 << 20
SIGNED_DATA = "1.2.840.113549.1.7.2"
CONTENT_TYPE, MESSAGE_DIGEST = "1.2.840.113549.1.9.3", "1.2.840.113549.1.9.4"
TRUST_LIST, TIME_INFO = "1.3.6.1.4.1.311.10.1", "1.2.840.113549.1.9.16.1.4"
NAME_VALUE, INDIRECT_DATA = "1.3.6.1.4.1.311.12.2.1", "1.3.6.1.4.1.311.2.1.4"
TIMESTAMP, TIME_STAMPING = "1.3.6.1.4.1.311.3.3.1", "1.3.6.1.5.5.7.3.8"
# The first bytes of values: SEQUENCE, OCTET STRING; UTCTime, GeneralizedTime.
SEQUENCE, OCTET_STRING, TIMES = b"\x30", b"\x04", {b"\x17", b"\x18"}
CONTENT_TAGS = {TRUST_LIST: SEQUENCE, TIME_INFO: OCTET_STRING}
SHA256, SHA384, SHA512 = (f"2.16.840.1.101.3.4.2.{number}" for number in (1, 2, 3))
DIGESTS: Mapping[str, hashes.HashAlgorithm] = {
    SHA256: hashes.SHA256(),
    SHA384: hashes.SHA384(),
    SHA512: hashes.SHA512(),
}
# RSA with PKCS #1 v1.5, without or with a hash algorithm (RFC 8017, appendix C).
RSA, RSA_SHA256, RSA_SHA384, RSA_SHA512 = (f"1.2.840.113549.1.1.{arc}" for arc in (1, 11, 12, 13))
RSA_WITH = {SHA256: RSA_SHA256, SHA384: RSA_SHA384, SHA512: RSA_SHA512}
# Genuine chains have three certificates; a forged one may be a circle.
MAX_CHAIN = 8
# The exceptions that cryptography, and access to missing parts, raise for malformed data.
UNREADABLE = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError),
    *(UnsupportedAlgorithm, x509.InvalidVersion, x509.UnsupportedGeneralNameType),
    *(x509.ExtensionNotFound, x509.DuplicateExtension),
)


class CatalogError(ValueError):
    """A catalog that proves nothing; the message states why."""


class Trust(NamedTuple):
    """A trusted signer: the root of its certificate chain, its common name ('' accepts any) and its
    extended key usage (an OID).
    """

    root: x509.Certificate
    publisher: str
    usage: str


@asn1.sequence
class Algorithm:
    """The OID of an algorithm; genuine catalogs use only algorithms with NULL as parameters."""

    oid: x509.ObjectIdentifier
    parameters: asn1.Null


@asn1.sequence
class Digest:
    """A hash and its algorithm."""

    algorithm: Algorithm
    value: bytes


@asn1.sequence
class Attribute:
    """A set of values, and the OID of their kind."""

    kind: x509.ObjectIdentifier
    values: asn1.SetOf[asn1.TLV]


@asn1.sequence
class SignerName:
    """The issuer (a Name) and the serial number of a signer's certificate."""

    issuer: asn1.TLV
    serial_number: int


@asn1.sequence
class SignerInfo:
    """A signature. ``signed`` are the attributes that it covers."""

    version: int
    signer: SignerName
    digest_algorithm: Algorithm
    signed: Annotated[asn1.SetOf[Attribute], asn1.Implicit(0)]
    signature_algorithm: Algorithm
    signature: bytes
    unsigned: Annotated[asn1.SetOf[Attribute] | None, asn1.Implicit(1)]


@asn1.sequence
class Content:
    """A value, and the OID of its kind."""

    kind: x509.ObjectIdentifier
    value: Annotated[asn1.TLV, asn1.Explicit(0)]


@asn1.sequence
class SignedData:
    """Content, its signatures, and certificates."""

    version: int
    digest_algorithms: asn1.SetOf[Algorithm]
    content: Content
    certificates: Annotated[asn1.SetOf[asn1.TLV], asn1.Implicit(0)]
    signers: asn1.SetOf[SignerInfo]


@asn1.sequence
class Entry:
    """An entry of a trust list."""

    identifier: bytes
    attributes: asn1.SetOf[Attribute]


@asn1.sequence
class NameValue:
    """The attribute of an entry that contains the file's name, if its own name is "File"."""

    name: asn1.TLV
    flags: int
    value: bytes


@asn1.sequence
class IndirectData:
    """The attribute of an entry that contains the file's hash."""

    data: asn1.TLV
    digest: Digest


@asn1.sequence
class Parts:
    """The parts of a SEQUENCE that has optional fields."""

    parts: list[asn1.TLV]


@asn1.sequence
class Wrapper:
    """A SEQUENCE around one value."""

    value: asn1.TLV


@dataclass(frozen=True)
class Catalog:
    """A verified catalog. ``files`` maps SHA-256 hashes (hexadecimal) to file names; ``signed`` is
    the time when it was signed (UTC; None if it has no timestamp).
    """

    files: Mapping[str, str]
    signed: datetime | None

    def covers(self, name: str, sha256: str) -> bool:
        """Return whether the catalog lists the hash ``sha256`` with the file name ``name``. The
        case of the name is ignored.
        """
        return self.files.get(sha256, "").lower() == name.lower()


def prove_file(path: Path, sha256: str, trust: Trust, now: datetime) -> Proof | None:
    """Return what the catalogs in the directory of ``path`` prove about the file, or None if no
    catalog is for it.

    A catalog that is named after another library and does not list this one is ignored. Raises
    OSError if the directory cannot be read.
    """
    own_name = f"{path.name.lower().removesuffix('skel.so')}.cat"
    refutations = []
    # Every catalog counts, since any of them may list this file.
    for file in sorted(path.parent.iterdir()):
        if file.suffix.lower() != ".cat":
            continue
        is_own = file.name.lower() == own_name
        try:
            catalog = parse_catalog(_read_file(file), trust, now)
        except CatalogError as error:
            # A catalog of another library may be damaged without any meaning for this one.
            if is_own:
                refutations.append(Proof(Genuine.FORGED, file.name, str(error)))
            continue
        if catalog.covers(path.name, sha256):
            return Proof(Genuine.GENUINE, file.name, signed=catalog.signed)
        hashes_by_name = {name.lower(): listed for listed, name in catalog.files.items()}
        if listed := hashes_by_name.get(path.name.lower(), ""):
            why = f"it lists {path.name} with SHA-256 {listed}, but this file has {sha256}"
            refutations.append(Proof(Genuine.NOT_COVERED, file.name, why, listed=listed))
        elif is_own:
            why = f"it does not list {path.name}"
            refutations.append(Proof(Genuine.NOT_COVERED, file.name, why))
    return refutations[0] if refutations else None


def _read_file(path: Path) -> bytes:
    """Return the content of a catalog. Raises CatalogError if it cannot be read, since then it
    proves nothing.
    """
    try:
        return read_bytes(path)
    except OSError as error:
        raise CatalogError(f"it cannot be read: {error.strerror}") from error


def parse_catalog(data: bytes, trust: Trust, now: datetime) -> Catalog:
    """Verify a catalog and return its content. Raises CatalogError if it cannot be trusted.

    Its certificates must be valid at the time of its timestamp, or ``now`` if it has none.
    """
    if len(data) > MAX_BYTES:
        raise CatalogError(f"it is longer than {MAX_BYTES} bytes")
    try:
        signed = _parse_signed(asn1.decode_der(Content, data))
        # Before the signature is verified: the certificates have to be valid at this time, since
        # they may have expired later.
        time = _read_timestamp(_only_signer(signed), trust.root)
        _verify(signed, TRUST_LIST, trust, time or now)
        return Catalog(dict(_list_files(signed.content.value)), time)
    except CatalogError:
        raise
    except UNREADABLE as error:
        raise CatalogError(f"it cannot be read: {error}") from error


def _parse_signed(content: Content) -> SignedData:
    """Return the SignedData in ``content``. Raises CatalogError unless it has one signer."""
    if content.kind.dotted_string != SIGNED_DATA:
        raise CatalogError("it is not signed data")
    signed: SignedData = content.value.parse(SignedData)
    count = len(signed.signers.as_list())
    if count != 1:
        raise CatalogError(f"it has {count} signers; it must have one")
    return signed


def _only_signer(signed: SignedData) -> SignerInfo:
    return signed.signers.as_list()[0]


def _split(value: asn1.TLV) -> list[asn1.TLV]:
    """Return the parts of a SEQUENCE."""
    return asn1.decode_der(Parts, asn1.encode_der(Wrapper(value=value))).parts


def _find_values(attributes: asn1.SetOf[Attribute], kind: str) -> list[asn1.TLV]:
    values = []
    for attribute in attributes.as_list():
        if attribute.kind.dotted_string == kind:
            values += attribute.values.as_list()
    return values


def _hash(algorithm: Algorithm, data: bytes) -> bytes | None:
    """Return the hash of ``data``, None if the algorithm is not accepted."""
    digest = DIGESTS.get(algorithm.oid.dotted_string)
    return hashlib.new(digest.name, data).digest() if digest else None


def _read_timestamp(info: SignerInfo, root: x509.Certificate) -> datetime | None:
    """Return the time of signing according to the countersignature of ``info``, or None if there is
    none.

    Raises CatalogError if the timestamp is not valid, or if there are other unsigned attributes.
    """
    if info.unsigned is None:
        return None
    tokens = _find_values(info.unsigned, TIMESTAMP)
    # Nothing covers unsigned attributes, so that others could hide a timestamp that does not fit.
    if len(info.unsigned.as_list()) != 1 or len(tokens) != 1:
        raise CatalogError("it has unsigned attributes other than one timestamp")
    signed = _parse_signed(tokens[0].parse(Content))
    stamp = asn1.decode_der(asn1.TLV, signed.content.value.parse(bytes))
    _, _, imprint_part, _, time_part, *_ = _split(stamp)
    imprint: Digest = imprint_part.parse(Digest)
    if _hash(imprint.algorithm, info.signature) != imprint.value:
        raise CatalogError("its timestamp belongs to another signature")
    time: datetime = time_part.parse(asn1.GeneralizedTime).as_datetime()
    time = time.replace(tzinfo=timezone.utc)
    _verify(signed, TIME_INFO, Trust(root, "", TIME_STAMPING), time)
    return time


def _verify(signed: SignedData, kind: str, trust: Trust, time: datetime) -> None:
    """Raise CatalogError unless the content has type ``kind``, the signature matches it, and the
    signer and the certificate chain satisfy ``trust`` at the given time.
    """
    info, content = _only_signer(signed), signed.content
    algorithm = info.digest_algorithm.oid.dotted_string
    if algorithm not in DIGESTS:
        raise CatalogError(f"it uses the hash algorithm {algorithm}, which is not accepted")
    listed = [item.oid.dotted_string for item in signed.digest_algorithms.as_list()]
    is_rsa = info.signature_algorithm.oid.dotted_string in {RSA, RSA_WITH[algorithm]}
    versions_fit = info.version == 1 and signed.version in {1, 3}
    if listed != [algorithm] or not is_rsa or not versions_fit:
        raise CatalogError("genuine catalogs have a different version or use other algorithms")
    signed_kinds = [
        value.parse(x509.ObjectIdentifier).dotted_string
        for value in _find_values(info.signed, CONTENT_TYPE)
    ]
    is_encoded = content.value.tag_bytes == CONTENT_TAGS[kind]
    if [content.kind.dotted_string, *signed_kinds] != [kind, kind] or not is_encoded:
        raise CatalogError("its content has the wrong type")
    digests = [value.parse(bytes) for value in _find_values(info.signed, MESSAGE_DIGEST)]
    if digests != [_hash(info.digest_algorithm, bytes(content.value.data))]:
        raise CatalogError("its content is not the content that was signed")
    certificates = list(_load_certificates(signed))
    signer = _find_signer(info, certificates)
    key = signer.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise CatalogError("its signer has no RSA key")
    text = asn1.encode_der(info.signed)  # the signature covers them as a SET
    try:
        key.verify(info.signature, text, padding.PKCS1v15(), DIGESTS[algorithm])
    except InvalidSignature as error:
        raise CatalogError("its signature does not match its signer") from error
    _require_signer(signer, trust)
    _require_chain(signer, certificates, trust.root, time)


def _load_certificates(signed: SignedData) -> Iterator[x509.Certificate]:
    """Yield the certificates, without the attribute certificate that a timestamp may contain. No
    proof relies on that.
    """
    for value in signed.certificates.as_list():
        if value.tag_bytes == SEQUENCE:
            _, _, signature = _split(value)
            if signature.data[0]:  # the number of unused bits, which no signature covers
                raise CatalogError("one of its certificates is not in DER")
            yield value.parse(x509.Certificate)


def _find_signer(info: SignerInfo, certificates: Sequence[x509.Certificate]) -> x509.Certificate:
    # By issuer and serial number, as RFC 2315 names a signer: the order of certificates means
    # nothing.
    signer_id = (asn1.encode_der(info.signer.issuer), info.signer.serial_number)
    for certificate in certificates:
        if (certificate.issuer.public_bytes(), certificate.serial_number) == signer_id:
            return certificate
    raise CatalogError("its signer's certificate is missing")


def _require_signer(signer: x509.Certificate, trust: Trust) -> None:
    attributes = signer.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    names = [attribute.value for attribute in attributes]
    usages = signer.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if trust.publisher and names != [trust.publisher]:
        raise CatalogError(f"its signer is {', '.join(map(str, names))}, not {trust.publisher}")
    if trust.usage not in {usage.dotted_string for usage in usages}:
        raise CatalogError("its signer's certificate is for another purpose")


def _require_chain(
    signer: x509.Certificate,
    certificates: Sequence[x509.Certificate],
    root: x509.Certificate,
    time: datetime,
) -> None:
    """Raise CatalogError unless a chain of certificates, all valid at the given time, leads from
    ``signer`` to ``root``.
    """
    chain = [signer]
    while chain[-1] != root:
        issuers = [issuer for issuer in (root, *certificates) if is_issued_by(chain[-1], issuer)]
        if not issuers or len(chain) == MAX_CHAIN:
            raise CatalogError("its chain does not end at the trusted root")
        chain.append(issuers[0])
    for index, certificate in enumerate(chain):
        if not certificate.not_valid_before_utc <= time <= certificate.not_valid_after_utc:
            name = certificate.subject.rfc4514_string()
            raise CatalogError(f"the certificate of {name} was not valid on {time:%Y-%m-%d}")
        if index and not _is_authority(certificate, index - 1):
            raise CatalogError("a certificate in its chain is not allowed to sign others")


def _is_authority(certificate: x509.Certificate, authorities_below: int) -> bool:
    """Return whether ``certificate`` may sign others, with this number of authorities between it
    and the signer.
    """
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    is_short = basic.path_length is None or authorities_below <= basic.path_length
    return basic.ca and usage.key_cert_sign and is_short


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return whether ``issuer`` signed ``certificate``."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _list_files(trust_list: asn1.TLV) -> Iterator[tuple[str, str]]:
    """Yield the SHA-256 and the name of each entry of the trust list that has both."""
    parts = _split(trust_list)
    tags = [part.tag_bytes for part in parts]
    time_index = next((index for index, tag in enumerate(tags) if tag in TIMES), len(tags))
    # The time is followed by the algorithm of the identifiers, then by the entries.
    for part in _split(parts[time_index + 2]):
        entry: Entry = part.parse(Entry)
        name = sha256 = ""
        for value in _find_values(entry.attributes, NAME_VALUE):
            name_value: NameValue = value.parse(NameValue)
            if bytes(name_value.name.data).decode("utf-16-be") == "File":
                name = name_value.value.decode("utf-16-le").rstrip("\0")
        for value in _find_values(entry.attributes, INDIRECT_DATA):
            digest: Digest = value.parse(IndirectData).digest
            if digest.algorithm.oid.dotted_string == SHA256 and len(digest.value) == 32:
                sha256 = digest.value.hex()
        if name and sha256:
            yield sha256, name
