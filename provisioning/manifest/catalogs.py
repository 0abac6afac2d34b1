"""Whose catalogs prove libraries, out of manifests/policies/catalogs.toml."""

from __future__ import annotations

import functools

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from provisioning.elf.catalog import Trust
from provisioning.errors import ManifestError
from provisioning.manifest.reader import read_policy


class CatalogPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The root certificate (PEM) with its SHA-256, and the publisher's name and usage (an OID)."""

    root: str
    sha256: str
    publisher: str
    usage: str


@functools.cache
def read_trust() -> Trust:
    """Whose catalogs are taken. Raises ManifestError for a root of another fingerprint."""
    policy = read_policy("catalogs", CatalogPolicy)
    root = x509.load_pem_x509_certificate(policy.root.encode())
    if root.fingerprint(hashes.SHA256()).hex() != policy.sha256:
        raise ManifestError(
            "the root in manifests/policies/catalogs.toml is not that of its sha256"
        )
    return Trust(root, policy.publisher, policy.usage)
