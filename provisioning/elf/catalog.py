"""Verify Windows catalogs: files signed by Microsoft that list other files by their SHA-256.

Qualcomm's SDKs and wheels contain a catalog, such as libqnnhtpv73.cat, next to the skels of V73
and, from QNN 2.40 on, of V81. A catalog is a PKCS #7 SignedData (RFC 2315) that contains a trust
list (MS-CAESO 2.2.1.1). Each entry of the list contains a file's name and its hash
(SpcIndirectDataContent in Authenticode_PE.docx). The signature remains valid after its certificate
has expired, if a timestamp (RFC 3161) proves that it was made earlier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from asn1crypto import cms, core, parser, tsp
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from provisioning.documents import read_bytes
from provisioning.elf.facts import Genuine, Proof

MAX_BYTES = 1 << 20
TRUST_LIST, TIME_INFO = "1.3.6.1.4.1.311.10.1", "1.2.840.113549.1.9.16.1.4"
NAME_VALUE, INDIRECT_DATA, SHA256 = (
    core.ObjectIdentifier(text).contents
    for text in ("1.3.6.1.4.1.311.12.2.1", "1.3.6.1.4.1.311.2.1.4", "2.16.840.1.101.3.4.2.1")
)
TIMES = {0x17, 0x18}  # UTCTime, GeneralizedTime
CONTENT_TAGS = {TRUST_LIST: 0x30, TIME_INFO: 0x04}  # SEQUENCE, OCTET STRING
# Tags of the fields of a SignerInfo, of its optional unsigned attributes, and of an algorithm with
# NULL as its parameters.
SIGNER_TAGS, UNSIGNED_TAG, ALGORITHM_TAGS = [0x02, 0x30, 0x30, 0xA0, 0x30, 0x04], 0xA1, [0x06, 0x05]
TIMESTAMP = "microsoft_time_stamp_token"
TIME_STAMPING = "1.3.6.1.5.5.7.3.8"
DIGESTS: Mapping[str, hashes.HashAlgorithm] = {
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
MAX_CHAIN = 8
# The exceptions that asn1crypto and cryptography raise for malformed data.
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
    OSError.
    """
    own = f"{path.name.lower().removesuffix('skel.so')}.cat"
    catalogs = [one for one in sorted(path.parent.iterdir()) if one.suffix.lower() == ".cat"]
    found = []
    for one in catalogs:
        try:
            catalog = parse_catalog(read_bytes(one), trust, now)
        except CatalogError as error:
            if one.name.lower() == own:
                found.append(Proof(Genuine.FORGED, one.name, str(error)))
            continue
        if catalog.covers(path.name, sha256):
            return Proof(Genuine.GENUINE, one.name, signed=catalog.signed)
        names = {name.lower(): listed for listed, name in catalog.files.items()}
        if listed := names.get(path.name.lower(), ""):
            why = f"it lists {path.name} with SHA-256 {listed}, but this file has {sha256}"
            found.append(Proof(Genuine.NOT_COVERED, one.name, why, listed=listed))
        elif one.name.lower() == own:
            found.append(Proof(Genuine.NOT_COVERED, one.name, f"it does not list {path.name}"))
    return next(iter(found), None)


def parse_catalog(data: bytes, trust: Trust, now: datetime) -> Catalog:
    """Verify a catalog and return its content. Raises CatalogError if it cannot be trusted.

    Its certificates must be valid at the time of its timestamp, or ``now`` if it has none.
    """
    if len(data) > MAX_BYTES:
        raise CatalogError(f"it is longer than {MAX_BYTES} bytes")
    try:
        signed = _load_signed(cms.ContentInfo.load(data, strict=True))
        info = signed["signer_infos"][0]
        when = _read_timestamp(info, trust.root)
        _verify(signed, TRUST_LIST, trust, when or now)
        return Catalog(dict(_list_files(_wrapped(signed))), when)
    except CatalogError:
        raise
    except UNREADABLE as error:
        raise CatalogError(f"it cannot be read: {error}") from error


def _load_signed(outer: Any) -> Any:
    """Return the SignedData in ``outer``. Raises CatalogError unless it has exactly one signer."""
    if outer["content_type"].native != "signed_data":
        raise CatalogError("it is not signed data")
    signed = outer["content"]
    if len(signed["signer_infos"]) != 1:
        raise CatalogError(f"it has {len(signed['signer_infos'])} signers; it must have one")
    return signed


def _wrapped(signed: Any) -> bytes:
    """Return the content of ``signed`` in DER, with its own tag and length but without the explicit
    tag around it.
    """
    (_, content), *more = _children(signed["encap_content_info"]["content"].dump())
    if more:
        raise CatalogError("it has extra bytes after its content")
    return content


def _children(data: bytes) -> list[tuple[int, bytes]]:
    """Return the tags and contents of the values in ``data``, in order."""
    found = []
    while data:
        _, _, _, header, content, trailer = parser.parse(data)
        found.append((header[0], content))
        data = data[len(header) + len(content) + len(trailer) :]
    return found


def _read_timestamp(info: Any, root: x509.Certificate) -> datetime | None:
    """Return the time of signing according to the countersignature of ``info``, or None if there is
    none.

    Raises CatalogError if the timestamp is not valid, or if there are other unsigned attributes.
    """
    unsigned = [*(info["unsigned_attrs"] or ())]
    if [attribute["type"].native for attribute in unsigned] not in ([], [TIMESTAMP]):
        raise CatalogError("it has unsigned attributes other than one timestamp")
    tokens = [value for attribute in unsigned for value in attribute["values"]]
    if not tokens:
        return None
    (token,) = tokens
    signed = _load_signed(token)
    stamp = tsp.TSTInfo.load(_children(_wrapped(signed))[0][1], strict=True)
    imprint = stamp["message_imprint"]
    algorithm = imprint["hash_algorithm"]["algorithm"].native
    wanted = imprint["hashed_message"].native
    if (
        algorithm not in DIGESTS
        or hashlib.new(algorithm, info["signature"].native).digest() != wanted
    ):
        raise CatalogError("its timestamp belongs to another signature")
    when: datetime = stamp["gen_time"].native
    _verify(signed, TIME_INFO, Trust(root, "", TIME_STAMPING), when)
    return when


def _verify(signed: Any, kind: str, trust: Trust, when: datetime) -> None:
    """Raise CatalogError unless the content has type ``kind``, the signature matches it, and the
    signer and the certificate chain satisfy ``trust`` at the time ``when``.
    """
    info, encapsulated = signed["signer_infos"][0], signed["encap_content_info"]
    algorithm = info["digest_algorithm"]["algorithm"].native
    if algorithm not in DIGESTS:
        raise CatalogError(f"it uses the hash algorithm {algorithm}, which is not accepted")
    named = [one.dump() for one in signed["digest_algorithms"]]
    signature_algorithm = info["signature_algorithm"]["algorithm"].native
    is_rsa = signature_algorithm in {"rsassa_pkcs1v15", f"{algorithm}_rsa"}
    if named != [info["digest_algorithm"].dump()] or not is_rsa or info["version"].native != "v1":
        raise CatalogError("genuine catalogs have a different version or use other algorithms")
    attributes = {one["type"].native: one["values"] for one in info["signed_attrs"]}
    types = [
        encapsulated["content_type"].dotted,
        *(one.dotted for one in attributes["content_type"]),
    ]
    if types != [kind, kind]:
        raise CatalogError("its content has the wrong type")
    tag, content = _children(_wrapped(signed))[0]
    _require_encoding(signed, tag == CONTENT_TAGS[kind])
    digests = [one.native for one in attributes["message_digest"]]
    if digests != [hashlib.new(algorithm, content).digest()]:
        raise CatalogError("its content is not the content that was signed")
    certificates = list(_load_certificates(signed))
    signer = _find_signer(info, certificates)
    key = signer.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise CatalogError("its signer has no RSA key")
    text = info["signed_attrs"].untag().dump()
    try:
        key.verify(info["signature"].native, text, padding.PKCS1v15(), DIGESTS[algorithm])
    except InvalidSignature as error:
        raise CatalogError("its signature does not match its signer") from error
    _require_signer(signer, trust)
    _require_chain(signer, certificates, trust.root, when)


def _require_encoding(signed: Any, is_content: bool) -> None:
    """Raise CatalogError if a part that the signature does not cover is encoded differently than in
    genuine catalogs, for example with a tag that hides the timestamp.

    An attribute certificate in the timestamp is not checked, since its issuer's key is not in the
    file. Nothing here relies on it.
    """
    info = signed["signer_infos"][0]
    tags = [tag for tag, _ in _children(info.contents)]
    algorithm = [tag for tag, _ in _children(info["signature_algorithm"].contents)]
    is_info = tags in (SIGNER_TAGS, [*SIGNER_TAGS, UNSIGNED_TAG]) and algorithm == ALGORITHM_TAGS
    if not (is_content and is_info and signed["version"].native in {"v1", "v3"}):
        raise CatalogError("it is not encoded like a genuine catalog")


def _load_certificates(signed: Any) -> Iterator[x509.Certificate]:
    for one in signed["certificates"]:
        if one.name == "certificate":
            der = one.chosen.dump()
            if der not in signed.contents or one.chosen["signature_value"].contents[0]:
                raise CatalogError("one of its certificates is not in DER")
            yield x509.load_der_x509_certificate(der)


def _find_signer(info: Any, certificates: Sequence[x509.Certificate]) -> x509.Certificate:
    wanted = info["sid"].chosen
    for one in certificates:
        issuer = one.issuer.public_bytes()
        if (issuer, one.serial_number) == (wanted["issuer"].dump(), wanted["serial_number"].native):
            return one
    raise CatalogError("its signer's certificate is missing")


def _require_signer(signer: x509.Certificate, trust: Trust) -> None:
    names = [one.value for one in signer.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    usages = signer.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if trust.publisher and names != [trust.publisher]:
        raise CatalogError(f"its signer is {', '.join(map(str, names))}, not {trust.publisher}")
    if trust.usage not in {one.dotted_string for one in usages}:
        raise CatalogError("its signer's certificate is for another purpose")


def _require_chain(
    signer: x509.Certificate,
    certificates: Sequence[x509.Certificate],
    root: x509.Certificate,
    when: datetime,
) -> None:
    """Raise CatalogError unless a chain of certificates, all valid at ``when``, leads from
    ``signer`` to ``root``.
    """
    path = [signer]
    while path[-1] != root:
        above = [one for one in (root, *certificates) if is_issued_by(path[-1], one)]
        if not above or len(path) == MAX_CHAIN:
            raise CatalogError("its chain does not end at the trusted root")
        path.append(above[0])
    for below, one in enumerate(path):
        if not one.not_valid_before_utc <= when <= one.not_valid_after_utc:
            name = one.subject.rfc4514_string()
            raise CatalogError(f"the certificate of {name} was not valid on {when:%Y-%m-%d}")
        if below and not _is_authority(one, below - 1):
            raise CatalogError("a certificate in its chain is not allowed to sign others")


def _is_authority(one: x509.Certificate, below: int) -> bool:
    """Return whether ``one`` may sign others, with ``below`` authorities between it and the
    signer.
    """
    basic = one.extensions.get_extension_for_class(x509.BasicConstraints).value
    usage = one.extensions.get_extension_for_class(x509.KeyUsage).value
    is_short = basic.path_length is None or below <= basic.path_length
    return basic.ca and usage.key_cert_sign and is_short


def is_issued_by(one: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return whether ``issuer`` signed ``one``."""
    try:
        one.verify_directly_issued_by(issuer)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _list_files(content: bytes) -> Sequence[tuple[str, str]]:
    """Return the SHA-256 and the name of each entry of the trust list ``content`` that has both."""
    fields = _children(_children(content)[0][1])
    time = next(index for index, (tag, _) in enumerate(fields) if tag in TIMES)
    found = []
    for _, entry in _children(fields[time + 2][1]):
        name = sha256 = ""
        for _, attribute in _children(_children(entry)[1][1]):
            (_, kind), (_, values) = _children(attribute)
            parts = _children(_children(values)[0][1])
            if kind == NAME_VALUE and parts[0][1].decode("utf-16-be") == "File":
                name = parts[2][1].decode("utf-16-le").rstrip("\0")
            elif kind == INDIRECT_DATA:
                (_, algorithm), (_, digest) = _children(parts[1][1])
                is_sha256 = _children(algorithm)[0][1] == SHA256 and len(digest) == 32
                sha256 = digest.hex() if is_sha256 else sha256
        if name and sha256:
            found.append((sha256, name))
    return found
