"""Small certificates for tests: named by words, with EC keys that are made once per name."""

from __future__ import annotations

from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.stand_ins.elfsigner.certify import certify

MAY_SIGN = x509.BasicConstraints(ca=True, path_length=None)
MAY_NOT_SIGN = x509.BasicConstraints(ca=False, path_length=None)


@cache
def make_ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def make_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])


@cache
def issue(name: str, issuer: str, *extensions: x509.ExtensionType, key: str = "") -> bytes:
    """The DER of ``name`` by ``issuer``, signed with the key of ``key`` or of ``issuer``.

    Without ``extensions`` all but a name that begins with leaf may sign others.
    """
    all_extensions = extensions or (MAY_NOT_SIGN if name.startswith("leaf") else MAY_SIGN,)
    signing_key = make_ec_key(key or issuer)
    subject, above = make_name(name), make_name(issuer)
    return certify(subject, make_ec_key(name), above, signing_key, extensions=list(all_extensions))


LEAF = issue("leaf", "ca")
CA = issue("ca", "root")
ROOT = issue("root", "root")
