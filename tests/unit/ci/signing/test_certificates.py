"""Chains of certificates: which parse, which lead from a leaf to an authority, what is noted."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from ci.signing.certificates import (
    list_chain_notes,
    list_date_errors,
    list_link_errors,
    parse_chain,
)
from ci.signing.mbn import MalformedError
from tests.build.signing import outcome, show
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify
from tests.stand_ins.elfsigner.chains import (
    CA,
    LEAF,
    MAY_NOT_SIGN,
    MAY_SIGN,
    ROOT,
    issue,
    make_ec_key,
    make_name,
)
from tests.stand_ins.elfsigner.keys import make_known_key
from tests.stand_ins.elfsigner.mbn_writer import Key
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
NOW = dt.datetime.now(dt.timezone.utc)
# An X.400 address, which the library cryptography does not support.
ADDRESS = b"\x30\x04\xa3\x02\x30\x00"


def usage(*, signs: bool) -> x509.KeyUsage:
    forbidden = dict.fromkeys(
        (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "encipher_only", "decipher_only"),
        ),
        False,
    )
    return x509.KeyUsage(**forbidden, key_cert_sign=signs, crl_sign=True)


def limit(length: int) -> x509.BasicConstraints:
    return x509.BasicConstraints(ca=True, path_length=length)


def unread(oid: str, value: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value)


def certify_rsa(bits: int, exponent: int) -> bytes:
    """A leaf with an RSA key of which nobody has the private half."""
    public = rsa.RSAPublicNumbers(exponent, (1 << bits) - 1).public_key()
    holder = SimpleNamespace(public_key=lambda: public)
    return certify(make_name("leaf"), holder, make_name("root"), make_ec_key("root"))  # type: ignore[arg-type]


def certify_impossible_date() -> bytes:
    ca, root = make_ec_key("ca"), make_ec_key("root")
    late = certify(make_name("ca"), ca, make_name("root"), root, 20000)
    year = late.index(b"\x18\x0f20") + 2  # of a GeneralizedTime
    return late[:year] + b"0000" + late[year + 4 :]


SPARE = issue("root 2", "root 2")
LONGEST = [LEAF, CA, *(issue(f"r{i}", f"r{i}") for i in range(17)), ROOT]
GOOD = {
    "leaf, authority, root": [LEAF, CA, ROOT],
    "leaf and root": [issue("leaf", "root"), ROOT],
    "root is missing": [LEAF, CA],
    "root is missing, two other bytes": [LEAF, issue("ca", "be")],
    "root is missing, a shorter name": [LEAF, issue("ca", "c")],
    "two roots to choose from": [LEAF, CA, ROOT, SPARE],
    "a spare root that allows no authority below it": [
        *(LEAF, CA, ROOT),
        issue("root 2", "root 2", limit(0)),
    ],
    "a root before the leaf's": [LEAF, CA, SPARE, ROOT],
    "key usage that lets it sign": [LEAF, issue("ca", "root", MAY_SIGN, usage(signs=True)), ROOT],
    "no authority below the authority": [LEAF, issue("ca", "root", limit(0)), ROOT],
    "one authority below the root": [LEAF, CA, issue("root", "root", limit(1))],
    "padding of zeros": [LEAF, CA, ROOT, bytes(9)],
    "as many as are read": LONGEST,
    "the largest RSA key": [certify_rsa(16384, 65537), ROOT],
}
BAD = {
    "leaf alone": [LEAF],
    "leaf that signs itself": [issue("leaf", "leaf")],
    "leaf that signs itself, and a root": [issue("leaf", "leaf"), ROOT],
    "leaf by another key of the authority's name": [issue("leaf", "ca", key="other"), CA, ROOT],
    "issuer that says it is no authority": [LEAF, issue("ca", "root", MAY_NOT_SIGN), ROOT],
    "issuer that does not say what it is": [LEAF, issue("ca", "root", usage(signs=True)), ROOT],
    "issuer whose key usage is another": [
        *(LEAF, issue("ca", "root", MAY_SIGN, usage(signs=False))),
        ROOT,
    ],
    "issuer with a critical extension that nobody knows": [
        *(LEAF, issue("ca", "root", MAY_SIGN, unread("1.2.3.4", b"\5\0"))),
        ROOT,
    ],
    "issuer whose names cannot be read": [
        *(LEAF, issue("ca", "root", MAY_SIGN, unread("2.5.29.17", ADDRESS))),
        ROOT,
    ],
    "issuer whose constraints cannot be read": [
        *(LEAF, issue("ca", "root", MAY_SIGN, unread("2.5.29.30", b"\x30\x08\xa0\x06" + ADDRESS))),
        ROOT,
    ],
    "root that says it is no authority": [LEAF, CA, issue("root", "root", MAY_NOT_SIGN)],
    "authority below a root that allows none": [LEAF, CA, issue("root", "root", limit(0))],
    "root before its authority": [LEAF, ROOT, CA],
    "another root at the end": [LEAF, CA, SPARE],
    "signed by an earlier certificate": [LEAF, CA, ROOT, issue("late", "ca")],
    "another leaf": [LEAF, issue("leaf 2", "ca"), CA, ROOT],
    "spare root that may not sign": [*(LEAF, CA, ROOT), issue("root 2", "root 2", MAY_NOT_SIGN)],
    "spare root of another key": [*(LEAF, CA, ROOT), issue("root 2", "root 2", key="other")],
    "root that another key signed": [LEAF, CA, issue("root", "root", key="other")],
    "root whose issuer was damaged": [LEAF, CA, issue("root", "rOot", key="root")],
    "authority whose issuer differs in one byte": [LEAF, issue("ca", "ce")],
    "authority of another key": [LEAF, issue("ca", "root", key="other"), ROOT],
}
MALFORMED = {
    "nothing": b"",
    "only padding": b"\xff" * 40,
    "cut leaf": LEAF[:-1],
    "cut authority": LEAF + CA[:-1],
    "sequence that is longer": LEAF + b"\x30\x02a",
    "sequence of other bytes": LEAF + b"\x30\x03abc",
    "byte behind": LEAF + CA + b"\1",
    "mixed padding": LEAF + b"\xff\0",
    "one too many": b"".join([*LONGEST, ROOT]),
    "sequence after the last that is read": b"".join(LONGEST) + b"\x30 not read",
    "tag alone": LEAF + b"\x30",
    "indefinite length": LEAF + b"\x30\x80",
    "RSA key of one bit too many": certify_rsa(16385, 65537) + ROOT,
    "RSA key of a million bits": certify_rsa(1 << 20, 3) + ROOT,
    "RSA exponent of 4001 bits": certify_rsa(4096, (1 << 4000) + 1) + ROOT,
    "date that no calendar has": LEAF + certify_impossible_date(),
}


def judge(data: bytes) -> list[str]:
    chain = outcome(lambda: parse_chain(data))
    if isinstance(chain, str):
        return [chain]
    errors = [f"error: {error}" for error in list_link_errors(chain)]
    return [*errors, *(f"note: {note}" for note in list_chain_notes(chain))]


def test_certificate_chains_are_judged_as_their_snapshot() -> None:
    good = {name: judge(b"".join(chain)) for name, chain in GOOD.items()}
    bad = {name: judge(b"".join(chain)) for name, chain in BAD.items()}
    malformed = {name: judge(data) for name, data in MALFORMED.items()}
    assert not [name for name, lines in good.items() if "error" in str(lines)]
    assert [len([line for line in lines if "error:" in line]) for lines in bad.values()] == [
        1
    ] * len(BAD)
    assert all("MalformedError" in str(lines) for lines in malformed.values())
    check_snapshot(SNAPSHOTS / "chains.txt", show({**good, **bad, **malformed}))


@pytest.mark.parametrize("bits", [1024, 2048])
def test_a_small_rsa_key_in_a_chain_is_noted(bits: int) -> None:
    key = rsa.generate_private_key(65537, bits) if bits < 2048 else make_known_key()
    leaf = certify(make_name("leaf"), key, make_name("ca"), make_ec_key("ca"))
    note = "certificate 0 has an RSA key of only 1024 bits"
    assert list_chain_notes(parse_chain(leaf + CA + ROOT)) == [note] * (bits < 2048)


def is_chain_good(data: bytes) -> bool:
    try:
        chain = parse_chain(data)
    except MalformedError:
        return False
    return not [*list_link_errors(chain), *list_date_errors(chain, NOW)]


def test_any_flipped_bit_of_a_chain_is_found(key: Key) -> None:
    chain = bytearray(key.chain + b"\xff" * 16)
    assert is_chain_good(bytes(chain))
    rng = random.Random(3)
    for position in range(len(chain)):
        bit = 1 << rng.randrange(8)
        chain[position] ^= bit
        assert not is_chain_good(bytes(chain)), (position, bit)
        chain[position] ^= bit


def test_unused_bits_of_a_signature_are_found() -> None:
    """A bit string may declare unused bits; a parser reads the same signature all the same.

    It does so only if those bits are zero, so the last byte must be even.
    """
    private, days = make_known_key(), 0
    root = b"\1"
    while root[-1] % 2:
        days += 1
        root = certify(ROOT_NAME, private, ROOT_NAME, private, days)
    chain = bytearray(certify(LEAF_NAME, private, ROOT_NAME, private) + root)
    assert is_chain_good(bytes(chain))
    size = 257  # of an RSA signature of 2048 bits, after the count of unused bits
    assert chain[-size] == 0
    chain[-size] = 1
    assert not is_chain_good(bytes(chain))
