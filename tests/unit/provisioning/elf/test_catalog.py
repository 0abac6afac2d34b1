"""Catalogs with a chain of their own: what proves a file, and what never does."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives.serialization import Encoding

from provisioning.elf.catalog import (
    MAX_BYTES,
    TIME_STAMPING,
    TIMESTAMP,
    CatalogError,
    Content,
    SignedData,
    SignerInfo,
    parse_catalog,
    prove_file,
)
from provisioning.elf.facts import Genuine, Proof
from provisioning.elf.qnn_build import QnnBuild
from provisioning.errors import ManifestError
from provisioning.files import hash_file
from provisioning.manifest import catalogs as manifest
from tests.stand_ins.catalogs import (
    AUTHORITY,
    DIGEST_OIDS,
    NOW,
    PUBLISHER,
    ROOT,
    RSA,
    RSA_WITH,
    SIGNER,
    STAMPER,
    TRUST,
    WHQL,
    YEAR,
    issue,
    list_members,
    make_algorithm,
    make_catalog,
    make_oid,
    sign,
    wrap,
)

NAME, BYTES = "libQnnHtpV73Skel.so", b"a skel"
FILES = {NAME: BYTES, "libqnnhtpv73.inf": b"an inf"}
DIGEST = hashlib.sha256(BYTES).hexdigest()
LIST = "1.3.6.1.4.1.311.10.1"
LATER = NOW + 5 * YEAR
PLAIN, STAMPED = make_catalog(FILES), make_catalog(FILES, stamped=NOW)


@pytest.mark.parametrize(
    ("data", "now", "signed"), [(PLAIN, NOW, None), (STAMPED, NOW, NOW), (STAMPED, LATER, NOW)]
)
def test_a_catalog_names_what_it_vouches_for(data: bytes, now: object, signed: object) -> None:
    catalog = parse_catalog(data, TRUST, now)
    assert catalog.signed == signed
    assert sorted(catalog.files.values()) == sorted(FILES)
    assert catalog.covers(NAME, DIGEST)
    assert catalog.covers(NAME.lower(), DIGEST)
    assert not catalog.covers("libQnnHtpV75Skel.so", DIGEST)
    assert not catalog.covers(NAME, "0" * 64)


OTHER_ROOT = issue("Test Root", key="another root")
OTHER_CA = issue("Test CA", OTHER_ROOT, key="another authority")
LOOK_ALIKE = issue(PUBLISHER, OTHER_CA, WHQL, key="look-alike")
NO_CA = issue("Test CA 2", AUTHORITY, WHQL)
NO_SIGNS = issue("Test CA 3", AUTHORITY, signs=False)
EXPIRED = issue("Test CA 5", AUTHORITY, end=NOW - YEAR / 12)
members = list_members(FILES)
SHA1_OID = re.escape(DIGEST_OIDS["sha1"])
SHA224_OID = re.escape(DIGEST_OIDS["sha224"])
# Why, and what.
REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "no bytes": ("it cannot be read: .*", lambda: b""),
    "text": ("it cannot be read: .*", lambda: b"<html>"),
    "too many bytes": ("it is longer than 1048576 bytes", lambda: bytes(MAX_BYTES + 1)),
    "cut": ("it cannot be read: .*", lambda: PLAIN[:-1]),
    "a name like the publisher's": (
        "its chain does not end at the trusted root",
        lambda: make_catalog(FILES, LOOK_ALIKE),
    ),
    "a whole chain with the same names": (
        "its chain does not end at the trusted root",
        lambda: sign(LIST, members, LOOK_ALIKE, OTHER_CA, OTHER_ROOT),
    ),
    "signed by itself": (
        "its chain does not end at the trusted root",
        lambda: make_catalog(FILES, issue(PUBLISHER, None, WHQL, key="alone")),
    ),
    "another publisher": (
        "its signer is Test Publisher, not Test Hardware Publisher",
        lambda: make_catalog(FILES, issue("Test Publisher", AUTHORITY, WHQL)),
    ),
    "another usage": (
        "its signer's certificate is for another purpose",
        lambda: make_catalog(FILES, issue(PUBLISHER, AUTHORITY, "1.3.6.1.5.5.7.3.3")),
    ),
    "an authority as the signer": (
        "it cannot be read: .*ExtendedKeyUsage.*",
        lambda: make_catalog(FILES, issue(PUBLISHER, AUTHORITY)),
    ),
    "below what is no authority": (
        "a certificate in its chain is not allowed to sign others",
        lambda: sign(LIST, members, issue(PUBLISHER, NO_CA, WHQL), NO_CA, AUTHORITY),
    ),
    "below an authority whose key signs no certificates": (
        "a certificate in its chain is not allowed to sign others",
        lambda: sign(LIST, members, issue(PUBLISHER, NO_SIGNS, WHQL), NO_SIGNS, AUTHORITY),
    ),
    "without the authority": (
        "its chain does not end at the trusted root",
        lambda: sign(LIST, members, SIGNER),
    ),
    "expired": (
        "the certificate of CN=Test Hardware Publisher was not valid on 2026-06-01",
        lambda: make_catalog(FILES, issue(PUBLISHER, AUTHORITY, WHQL, end=NOW - YEAR / 12)),
    ),
    "below an authority that has expired": (
        "the certificate of CN=Test CA 5 was not valid on 2026-06-01",
        lambda: sign(LIST, members, issue(PUBLISHER, EXPIRED, WHQL), EXPIRED, AUTHORITY),
    ),
    "a timestamp of a weak digest": (
        "its timestamp belongs to another signature",
        lambda: make_catalog(FILES, stamped=NOW, imprint="sha1"),
    ),
    "a weak digest": (
        f"it uses the hash algorithm {SHA1_OID}, which is not accepted",
        lambda: make_catalog(FILES, hashed="sha1"),
    ),
    "stamped after its end": (
        "the certificate of CN=Test Hardware Publisher was not valid on 2031-05-31",
        lambda: make_catalog(FILES, stamped=LATER),
    ),
    "stamped by another chain": (
        "its chain does not end at the trusted root",
        lambda: make_catalog(
            FILES, stamped=NOW, stamper=issue("Test Time", OTHER_CA, TIME_STAMPING, key="clock")
        ),
    ),
    "stamped by a publisher": (
        "its signer's certificate is for another purpose",
        lambda: make_catalog(FILES, stamped=NOW, stamper=SIGNER),
    ),
    "the digest of other content": (
        "its content is not the content that was signed",
        lambda: sign(LIST, members, SIGNER, AUTHORITY, attributed=b"other"),
    ),
    "other content under the signature": (
        "its content is not the content that was signed",
        lambda: PLAIN.replace(hashlib.sha256(BYTES).digest(), hashlib.sha256(b"evil").digest()),
    ),
    "content of another type": (
        "its content has the wrong type",
        lambda: sign("1.2.840.113549.1.7.1", members, SIGNER, AUTHORITY),
    ),
    "a timestamp instead of a catalog": (
        "its content has the wrong type",
        lambda: sign("1.2.840.113549.1.9.16.1.4", members, SIGNER, AUTHORITY),
    ),
    "a timestamp of another signature": (
        "its timestamp belongs to another signature",
        lambda: STAMPED.replace(
            *(_signature(data) for data in (STAMPED, make_catalog({**FILES, "x": b""})))
        ),
    ),
    "data": (
        "it is not signed data",
        lambda: wrap(0x30, make_oid("1.2.840.113549.1.7.1"), wrap(0xA0, wrap(0x04, b"x"))),
    ),
    "another digest": (
        f"it uses the hash algorithm {SHA224_OID}, which is not accepted",
        lambda: PLAIN.replace(*(make_oid(DIGEST_OIDS[name]) for name in ("sha256", "sha224"))),
    ),
}


@pytest.mark.parametrize("hashed", ["sha256", "sha384", "sha512"])
def test_a_catalog_may_use_any_strong_digest(hashed: str) -> None:
    for algorithm in (RSA, RSA_WITH[hashed]):
        data = make_catalog(FILES, hashed=hashed, algorithm=algorithm, imprint=hashed, stamped=NOW)
        assert parse_catalog(data, TRUST, NOW).covers(NAME, DIGEST)


def _signature(data: bytes) -> bytes:
    return outer_signer(data).signature


@pytest.mark.parametrize("kind", REFUSED)
def test_no_other_catalog_proves_anything(kind: str) -> None:
    why, make = REFUSED[kind]
    with pytest.raises(CatalogError) as caught:
        parse_catalog(make(), TRUST, NOW)
    assert re.fullmatch(why, str(caught.value))


def test_another_root_is_not_trusted() -> None:
    for root in (OTHER_ROOT, STAMPER):
        with pytest.raises(CatalogError, match="does not end at the trusted root"):
            parse_catalog(PLAIN, TRUST._replace(root=root.certificate), NOW)


def test_no_catalog_with_a_flipped_byte_proves_anything() -> None:
    proven = []
    for position in range(0, len(STAMPED), 5):
        data = bytearray(STAMPED)
        data[position] ^= 1
        with suppress(CatalogError):
            parse_catalog(bytes(data), TRUST, NOW)
            proven.append(position)
    assert not proven


def outer_signer(data: bytes) -> SignerInfo:
    signed: SignedData = asn1.decode_der(Content, data).value.parse(SignedData)
    return signed.signers.as_list()[0]


def replace_once(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    assert len(old) == len(new)
    return data.replace(old, new)


def test_what_no_signature_covers_cannot_hide_the_timestamp() -> None:
    info = outer_signer(STAMPED)
    assert info.unsigned
    (token,) = info.unsigned.as_list()[0].values.as_list()
    kind = make_oid(TIMESTAMP)
    attribute = wrap(0x30, kind, wrap(0x31, asn1.encode_der(token)))
    unsigned = wrap(0xA1, attribute)
    signature = wrap(0x04, info.signature)
    algorithm = make_algorithm(RSA) + signature
    for old, new, why in (
        (unsigned, b"\xa2" + unsigned[1:], "cannot be read"),
        (unsigned, b"\x21" + unsigned[1:], "cannot be read"),
        (kind, kind[:-1] + b"\x7f", "unsigned attributes other than one timestamp"),
        (algorithm, algorithm.replace(b"\5\0" + signature, b"\4\0" + signature), "cannot be read"),
    ):
        with pytest.raises(CatalogError, match=why):
            parse_catalog(replace_once(STAMPED, old, new), TRUST, NOW)


@pytest.mark.parametrize(("allowed", "is_refused"), [(0, True), (1, False), (2, False)])
def test_an_authority_has_no_more_authorities_below_it_than_it_may(
    allowed: int, is_refused: bool
) -> None:
    above = issue("Test CA 1", ROOT, key="chain", path_length=allowed)
    below = issue("Test CA 2", above, key="chain")
    data = sign(LIST, members, issue(PUBLISHER, below, WHQL), below, above)
    with pytest.raises(CatalogError, match="not allowed to sign") if is_refused else nullcontext():
        parse_catalog(data, TRUST, NOW)


def prove(directory: Path, name: str = NAME) -> tuple[Genuine, str] | None:
    path = directory / name
    proof = prove_file(path, hash_file(path), TRUST, NOW)
    return (proof.outcome, proof.catalog) if proof else None


def test_a_file_is_proven_by_a_catalog_next_to_it(tmp_path: Path) -> None:
    skel, catalog = tmp_path / NAME, tmp_path / "libqnnhtpv73.cat"
    skel.write_bytes(BYTES)
    assert prove(tmp_path) is None
    catalog.write_bytes(STAMPED)
    proof = prove_file(skel, DIGEST, TRUST, LATER)
    assert proof == Proof(Genuine.GENUINE, catalog.name, signed=NOW)
    assert prove(tmp_path) == (Genuine.GENUINE, catalog.name)
    skel_of_v75 = tmp_path / "libQnnHtpV75Skel.so"
    skel_of_v75.write_bytes(BYTES)
    assert prove(tmp_path, skel_of_v75.name) is None
    skel.write_bytes(BYTES + b"!")
    assert prove(tmp_path) == (Genuine.NOT_COVERED, catalog.name)
    proof = prove_file(skel, hash_file(skel), TRUST, NOW)
    assert proof
    assert proof.listed == DIGEST
    assert (
        proof.why == f"it lists {NAME} with SHA-256 {DIGEST}, but this file has {hash_file(skel)}"
    )
    catalog.write_bytes(make_catalog({"libqnnhtpv73.inf": b"i"}))
    assert prove(tmp_path) == (Genuine.NOT_COVERED, catalog.name)
    proof = prove_file(skel, hash_file(skel), TRUST, NOW)
    assert proof
    assert (proof.why, proof.listed) == (f"it does not list {NAME}", "")
    catalog.write_bytes(STAMPED[:-1])
    assert prove(tmp_path) == (Genuine.FORGED, catalog.name)
    proof = prove_file(skel, hash_file(skel), TRUST, NOW)
    assert proof
    assert proof.why.startswith("it cannot be read: ")
    skel.write_bytes(BYTES)
    (tmp_path / "other.CAT").write_bytes(PLAIN)
    assert prove(tmp_path) == (Genuine.GENUINE, "other.CAT")


def test_a_damaged_catalog_counts_only_for_the_skel_that_it_is_named_after(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(BYTES)
    (tmp_path / "libqnnhtpv75.cat").write_bytes(STAMPED[:-1])
    (tmp_path / "readme.txt").write_bytes(STAMPED)
    assert prove(tmp_path) is None
    (tmp_path / "LIBQNNHTPV73.Cat").write_bytes(STAMPED[:-1])
    assert prove(tmp_path) == (Genuine.FORGED, "LIBQNNHTPV73.Cat")
    (tmp_path / "a.cat").write_bytes(make_catalog({NAME.lower(): b"other"}))
    assert prove(tmp_path) == (Genuine.FORGED, "LIBQNNHTPV73.Cat")  # the first by name
    (tmp_path / "LIBQNNHTPV73.Cat").unlink()
    assert prove(tmp_path) == (Genuine.NOT_COVERED, "a.cat")
    (tmp_path / "a.cat").write_bytes(make_catalog({"x": b"other"}))
    assert prove(tmp_path) is None
    (tmp_path / "LIBQNNHTPV73.Cat").write_bytes(make_catalog({"x": b"other"}))
    assert prove(tmp_path) == (Genuine.NOT_COVERED, "LIBQNNHTPV73.Cat")


def test_a_catalog_that_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(BYTES)
    paths = [tmp_path / name for name in ("other.cat", "libqnnhtpv73.cat")]
    for path, proof in zip(paths, [None, (Genuine.FORGED, paths[1].name)], strict=True):
        path.mkdir()
        assert prove(tmp_path) == proof
        path.rmdir()
        path.symlink_to("missing")
        assert prove(tmp_path) == proof
        path.unlink()
        with path.open("wb") as file:
            file.truncate(1 << 40)
        assert prove(tmp_path) == proof
        path.unlink()


@pytest.mark.parametrize("is_listed", [False, True])
def test_the_list_of_genuine_skels_is_asked_where_no_catalog_is_for_a_skel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    build = QnnBuild("2.49.40", "260810104044", "v2.49.40.260810104044_123")
    listed_sha256 = "0" * 64
    skels = {NAME: DIGEST if is_listed else listed_sha256, "libQnnHtpV75Skel.so": listed_sha256}
    builds = {"v2.49.40.260810104044": manifest.KnownBuild("a.whl", "1" * 64, skels)}
    monkeypatch.setattr(manifest, "read_trust", lambda: TRUST)
    monkeypatch.setattr(manifest, "read_known", lambda: builds)
    path = tmp_path / NAME
    path.write_bytes(BYTES)
    source = "skels.toml (a.whl)"
    why = f"the wheel's {NAME} has SHA-256 {listed_sha256}, but this file has {DIGEST}"
    listed = Proof(Genuine.GENUINE, source, listed=DIGEST)
    if not is_listed:
        listed = Proof(Genuine.NOT_COVERED, source, why, listed=listed_sha256)
    for data in (b"", make_catalog({"x": b"x"})):
        if data:
            (tmp_path / "other.cat").write_bytes(data)
        assert manifest.prove_skel(path, build, NOW) == listed
        assert manifest.prove_skel(path, None, NOW) is None
        unknown = build._replace(text="v2.50.40.1")
        assert manifest.prove_skel(path, unknown, NOW) is None
        (tmp_path / "libother.so").write_bytes(BYTES)
        assert manifest.prove_skel(tmp_path / "libother.so", build, NOW) is None
    (tmp_path / "other.cat").rename(tmp_path / "OTHER.CAT")
    (tmp_path / "OTHER.CAT").write_bytes(PLAIN)
    proof = manifest.prove_skel(path, build, NOW)
    assert proof == Proof(Genuine.GENUINE, "OTHER.CAT")


@pytest.mark.parametrize("field", ["serial", "issuer"])
def test_the_certificate_of_the_signer_is_the_one_that_it_names(field: str) -> None:
    certificate = SIGNER.certificate
    serial = certificate.serial_number.to_bytes(
        certificate.serial_number.bit_length() // 8 + 1, "big"
    )
    text = {"serial": serial, "issuer": b"Test CA"}[field]
    head, _, tail = PLAIN.rpartition(text)  # behind the certificates
    with pytest.raises(CatalogError, match="its signer's certificate is missing"):
        parse_catalog(head + text[:-1] + bytes([text[-1] ^ 1]) + tail, TRUST, NOW)


def test_the_trusted_root_is_the_one_with_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    trust = manifest.read_trust()
    assert trust.root.subject == trust.root.issuer
    assert "Microsoft Root Certificate Authority 2010" in trust.root.subject.rfc4514_string()
    policy = manifest.read_policy("catalogs", manifest.CatalogPolicy)
    pem = ROOT.certificate.public_bytes(Encoding.PEM).decode()
    for fingerprint in (policy.sha256, ""):
        fake = manifest.CatalogPolicy(pem, fingerprint, policy.publisher, policy.usage)
        monkeypatch.setattr(manifest, "read_policy", lambda *_, fake=fake: fake)
        with pytest.raises(ManifestError):
            manifest.read_trust.__wrapped__()
