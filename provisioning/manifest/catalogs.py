"""Prove that a skel (a QNN library for the DSP) comes from Qualcomm.

The proof is a catalog by the publisher in manifests/policies/catalogs.toml, or the list of genuine
skels in manifests/policies/skels.toml.
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
from provisioning.files import hash_file
from provisioning.manifest.reader import manifests_root, read_policy

if TYPE_CHECKING:
    from provisioning.elf.catalog import Trust


class CatalogPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of catalogs.toml: the root certificate (PEM) with its SHA-256 fingerprint, and
    the name and key usage (an OID) of the publisher's certificate.
    """

    root: str
    sha256: str
    publisher: str
    usage: str


class KnownBuild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The unsigned skels of a QNN build. ``skels`` maps their names to their SHA-256; ``wheel`` and
    ``sha256`` are the name and the SHA-256 of the wheel that contains them.
    """

    wheel: str
    sha256: str
    skels: Mapping[str, str]


class KnownSkels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of skels.toml: genuine skels. The keys are QNN builds (v2.36.0.250627101419)."""

    builds: Mapping[str, KnownBuild]


@functools.cache
def read_trust() -> Trust:
    """Return the publisher whose catalogs are trusted. Raises ManifestError if the root certificate
    does not match its fingerprint.
    """
    # Most commands need no catalog, and these imports take 0.1 s.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    from provisioning.elf.catalog import Trust

    policy = read_policy("catalogs", CatalogPolicy)
    root = x509.load_pem_x509_certificate(policy.root.encode())
    if root.fingerprint(hashes.SHA256()).hex() != policy.sha256:
        raise ManifestError(
            "the root certificate in manifests/policies/catalogs.toml does not match its sha256"
        )
    return Trust(root, policy.publisher, policy.usage)


@functools.cache
def read_known() -> Mapping[str, KnownBuild]:
    """Return the genuine skels of each QNN build, empty if there is no skels.toml. Raises
    ManifestError."""
    path = manifests_root() / "policies" / "skels.toml"
    return read_policy("skels", KnownSkels).builds if path.is_file() else {}


def prove_skel(path: Path, build: QnnBuild | None, at: datetime | None = None) -> Proof | None:
    """Return what the catalogs in an unsigned skel's directory prove about it. If they do not list
    it, return what the list of genuine skels of its ``build`` proves; None if that does not list it
    either.

    The certificates of a catalog without a timestamp must be valid at the time ``at``, by default
    now. Raises OSError and ManifestError.
    """
    if any(file.suffix.lower() == ".cat" for file in path.parent.iterdir()):
        from provisioning.elf.catalog import prove_file

        time = at or datetime.now(timezone.utc)
        if proof := prove_file(path, hash_file(path), read_trust(), time):
            return proof
    # Without the number of the vendor's CI job, which the keys of the list do not have.
    known_build = read_known().get(build.text.partition("_")[0]) if build else None
    if known_build is None or path.name not in known_build.skels:
        return None
    source, listed = f"skels.toml ({known_build.wheel})", known_build.skels[path.name]
    sha256 = hash_file(path)
    if sha256 == listed:
        return Proof(Genuine.GENUINE, source, listed=listed)
    why = f"the wheel's {path.name} has SHA-256 {listed}, but this file has {sha256}"
    return Proof(Genuine.NOT_COVERED, source, why, listed=listed)
