"""Chains of certificates: which lead from a leaf to an authority, each limit by itself."""

from __future__ import annotations

import datetime as dt
from functools import cache

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from ci.signing.proof.certificates import (
    MAX_CERTIFICATES,
    is_padding,
    list_chain_notes,
    list_date_errors,
    list_link_errors,
    parse_chain,
)
from ci.signing.proof.segments import MalformedError
from tests.stand_ins.elfsigner.certify import certify

SIGNS = x509.BasicConstraints(ca=True, path_length=None)
LEAF = x509.BasicConstraints(ca=False, path_length=None)


@cache
def make_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def name_of(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@cache
def make(name: str, issuer: str, *extensions: x509.ExtensionType, key: str = "") -> bytes:
    """The certificate of ``name`` by ``issuer``, with the key of ``key`` or of ``issuer``."""
    signing_key = make_key(key or issuer)
    more = extensions or (LEAF if name.startswith("leaf") else SIGNS,)
    return certify(
        name_of(name), make_key(name), name_of(issuer), signing_key, extensions=list(more)
    )


def usage(*, signs: bool) -> x509.KeyUsage:
    flags = dict.fromkeys(
        [
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ],
        False,
    )
    return x509.KeyUsage(**{**flags, "crl_sign": True, "key_cert_sign": signs})


def limit(length: int | None) -> x509.BasicConstraints:
    return x509.BasicConstraints(ca=True, path_length=length)


LEAF_CERTIFICATE = make("leaf", "ca")
CA, ROOT = make("ca", "root"), make("root", "root")

GOOD = {
    "leaf, authority, root": [LEAF_CERTIFICATE, CA, ROOT],
    "leaf and root": [make("leaf", "root"), ROOT],
    "two roots to choose from": [LEAF_CERTIFICATE, CA, ROOT, make("root 2", "root 2")],
    "a spare root that allows no authority below it": [
        *(LEAF_CERTIFICATE, CA, ROOT),
        make("root 2", "root 2", limit(0)),
    ],
    "a root before the leaf's": [LEAF_CERTIFICATE, CA, make("root 2", "root 2"), ROOT],
    "key usage that lets it sign": [
        LEAF_CERTIFICATE,
        make("ca", "root", SIGNS, usage(signs=True)),
        ROOT,
    ],
    "no authority below the authority": [LEAF_CERTIFICATE, make("ca", "root", limit(0)), ROOT],
    "one authority below the root": [LEAF_CERTIFICATE, CA, make("root", "root", limit(1))],
    "as many as are read": [LEAF_CERTIFICATE, CA]
    + [make(f"root {i}", f"root {i}") for i in range(MAX_CERTIFICATES - 3)]
    + [ROOT],
}


@pytest.mark.parametrize("chain", GOOD.values(), ids=GOOD.keys())
def test_good_chain_has_no_errors_and_no_notes(chain: list[bytes]) -> None:
    parsed = parse_chain(b"".join(chain))
    assert (list_link_errors(parsed), list_chain_notes(parsed)) == ([], [])


BAD = {
    "leaf alone": ([LEAF_CERTIFICATE], "0 is signed by none after it, so that no authority"),
    "leaf that signs itself": ([make("leaf", "leaf")], "certificate 0 signs itself"),
    "leaf that signs itself, and a root": (
        [make("leaf", "leaf"), ROOT],
        "certificate 0 signs itself",
    ),
    "leaf of another key of the authority's name": (
        [make("leaf", "ca", key="other"), CA, ROOT],
        "certificate 0 is signed by none after it",
    ),
    "issuer that says it is no authority": (
        [LEAF_CERTIFICATE, make("ca", "root", LEAF), ROOT],
        "certificate 1 signs others and may not",
    ),
    "issuer that does not say what it is": (
        [LEAF_CERTIFICATE, make("ca", "root", usage(signs=True)), ROOT],
        "certificate 1 signs others and may not",
    ),
    "issuer whose key usage is another": (
        [LEAF_CERTIFICATE, make("ca", "root", SIGNS, usage(signs=False)), ROOT],
        "certificate 1 signs others and may not",
    ),
    "root that says it is no authority": (
        [LEAF_CERTIFICATE, CA, make("root", "root", LEAF)],
        "certificate 2 signs others and may not",
    ),
    "authority below a root that allows none": (
        [LEAF_CERTIFICATE, CA, make("root", "root", limit(0))],
        "certificate 2 signs others and may not",
    ),
    "root before its authority": (
        [LEAF_CERTIFICATE, ROOT, CA],
        "certificate 2 is signed by none after it",
    ),
    "another root at the end": (
        [LEAF_CERTIFICATE, CA, make("root 2", "root 2")],
        "certificate 1 is signed by none after it",
    ),
    "signed by an earlier certificate": (
        [LEAF_CERTIFICATE, CA, ROOT, make("late", "ca")],
        "certificate 3 is neither part of the leaf's chain nor a root",
    ),
    "another leaf": (
        [LEAF_CERTIFICATE, make("leaf 2", "ca"), CA, ROOT],
        "certificate 1 is neither part of the leaf's chain nor a root",
    ),
    "spare root that may not sign": (
        [LEAF_CERTIFICATE, CA, ROOT, make("root 2", "root 2", LEAF)],
        "certificate 3 is neither part of the leaf's chain nor a root",
    ),
    "spare root of another key": (
        [LEAF_CERTIFICATE, CA, ROOT, make("root 2", "root 2", key="other")],
        "certificate 3 is neither part of the leaf's chain nor a root",
    ),
    "root that another key signed": (
        [LEAF_CERTIFICATE, CA, make("root", "root", key="other")],
        "certificate 2 is not signed by its own key",
    ),
    "root whose issuer was damaged": (
        [LEAF_CERTIFICATE, CA, make("root", "rOot", key="root")],
        "certificate 2 is signed by none after it",
    ),
    "authority of another key": (
        [LEAF_CERTIFICATE, make("ca", "root", key="other"), ROOT],
        "certificate 1 is signed by none after it",
    ),
}


@pytest.mark.parametrize(("chain", "words"), BAD.values(), ids=BAD.keys())
def test_bad_chain_has_one_error(chain: list[bytes], words: str) -> None:
    errors = list_link_errors(parse_chain(b"".join(chain)))
    assert len(errors) == 1
    assert words in errors[0]


def test_missing_root_is_a_note() -> None:
    chain = parse_chain(LEAF_CERTIFICATE + CA)
    assert list_link_errors(chain) == []
    (note,) = list_chain_notes(chain)
    assert "the root is not in the file: nothing here proves certificate 1" in note
    assert "CN=root" in note


def test_too_many_certificates_are_refused_at_once() -> None:
    many = GOOD["as many as are read"]
    with pytest.raises(MalformedError, match=f"more than {MAX_CERTIFICATES} certificates"):
        parse_chain(b"".join([*many, ROOT]))
    with pytest.raises(MalformedError, match=f"more than {MAX_CERTIFICATES} certificates"):
        parse_chain(b"".join(many) + b"\x30 not read any more")


def test_a_certificate_is_valid_in_its_first_and_its_last_second() -> None:
    chain = parse_chain(ROOT)
    first, last = chain[0].not_before, chain[0].not_after
    second = dt.timedelta(seconds=1)
    assert list_date_errors(chain, first) == list_date_errors(chain, last) == []
    assert "is not valid before" in list_date_errors(chain, first - second)[0]
    assert "expired on" in list_date_errors(chain, last + second)[0]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", True),
        (b"\0\0", True),
        (b"\xff\xff", True),
        (b"\0\xff", False),
        (b"\xff\0", False),
        (b"\1", False),
        (b"\0\1\0", False),
    ],
)
def test_padding_is_of_one_kind(data: bytes, expected: bool) -> None:
    assert is_padding(data) is expected


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "holds no certificate"),
        (b"\xff" * 40, "holds no certificate"),
        (LEAF_CERTIFICATE[:-1], "ends after the chain's end"),
        (LEAF_CERTIFICATE + b"\x30", "ends within"),
        (LEAF_CERTIFICATE + b"\x30\x84\0\0\0\1", "no definite length"),
        (LEAF_CERTIFICATE + b"\x30\x03abc", "certificate 1 does not parse"),
        (LEAF_CERTIFICATE + b"\xff\0", "bytes after its 1 certificates"),
    ],
)
def test_what_is_no_chain_is_malformed(data: bytes, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        parse_chain(data)


@pytest.mark.parametrize(("bits", "noted"), [(1024, True), (2048, False)])
def test_small_rsa_key_is_a_note(bits: int, noted: bool) -> None:
    key = rsa.generate_private_key(65537, bits)
    leaf = certify(name_of("leaf"), key, name_of("ca"), make_key("ca"), extensions=[LEAF])
    notes = list_chain_notes(parse_chain(leaf + CA + ROOT))
    assert notes == (["certificate 0 has an RSA key of only 1024 bits"] if noted else [])
