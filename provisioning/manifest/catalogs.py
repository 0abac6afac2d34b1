"""Prove that a skel (a QNN library for the DSP) is Qualcomm's: by catalogs that
manifests/policies/catalogs.toml trusts, or the list of genuine skels in
manifests/policies/skels.toml.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from provisioning.elf.facts import Genuine, Proof
from provisioning.elf.qnn_build import QnnBuild
from provisioning.errors import ManifestError
from provisioning.manifest.reader import manifests_root, read_policy

if TYPE_CHECKING:
    from provisioning.elf.catalog import Trust


class CatalogPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The root certificate (PEM) with its SHA-256, and the publisher's name and usage (an OID)."""

    root: str
    sha256: str
    publisher: str
    usage: str


class KnownBuild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The unsigned skels of a QNN build: SHA-256 by name, and the wheel that they come from."""

    wheel: str
    sha256: str
    skels: Mapping[str, str]


class KnownSkels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Genuine skels by their QNN build, such as v2.36.0.250627101419."""

    builds: Mapping[str, KnownBuild]


@functools.cache
def read_trust() -> Trust:
    """Return the publisher whose catalogs are trusted. Raises ManifestError if the root has another
    fingerprint.
    """
    # Most commands need no catalog, and these imports take 0.1 s.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    from provisioning.elf.catalog import Trust

    policy = read_policy("catalogs", CatalogPolicy)
    root = x509.load_pem_x509_certificate(policy.root.encode())
    if root.fingerprint(hashes.SHA256()).hex() != policy.sha256:
        raise ManifestError(
            "the root in manifests/policies/catalogs.toml does not match its sha256"
        )
    return Trust(root, policy.publisher, policy.usage)


@functools.cache
def read_known() -> Mapping[str, KnownBuild]:
    """Return the list of genuine skels, empty if the manifests have none. Raises ManifestError."""
    path = manifests_root() / "policies" / "skels.toml"
    return read_policy("skels", KnownSkels).builds if path.is_file() else {}


def prove_skel(
    path: Path, build: QnnBuild | None, sha256: str, at: datetime | None = None
) -> Proof | None:
    """Return what is proven about an unsigned skel by the catalogs in its directory, else by the
    list of genuine skels of its ``build``; None if neither lists it.

    The certificates of a catalog without a timestamp must be valid ``at`` that time, by default
    now. Raises OSError and ManifestError.
    """
    if any(one.suffix.lower() == ".cat" for one in path.parent.iterdir()):
        from provisioning.elf.catalog import prove_file

        proof = prove_file(path, sha256, read_trust(), at or datetime.now(timezone.utc))
        if proof:
            return proof
    known = read_known().get(build.text.partition("_")[0]) if build else None
    if known is None or path.name not in known.skels:
        return None
    source, listed = f"skels.toml ({known.wheel})", known.skels[path.name]
    if sha256 == listed:
        return Proof(Genuine.GENUINE, source, listed=listed)
    why = f"{path.name} of that build has SHA-256 {listed}, but this file has {sha256}"
    return Proof(Genuine.NOT_COVERED, source, why, listed=listed)
