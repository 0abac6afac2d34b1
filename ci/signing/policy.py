"""manifests/policies/signing.toml as values."""

from __future__ import annotations

import msgspec

from provisioning.manifest.reader import read_policy


class Library(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A library by its place; ``hexagon`` is the version promised there, "" when none is."""

    path: str
    hexagon: str = ""


class OpPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Globs below an op package's directory, of which the first that finds something counts, and
    the first QNN SDK that it works with.
    """

    minimum_qnn: str
    patterns: tuple[str, ...]


class SignerPython(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which Python the SDK's signer needs, and how one is made."""

    below: str
    make: str
    installer: str


class SigningPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole policy."""

    lpai_architectures: tuple[str, ...]
    hexagon_architectures: tuple[str, ...]
    signer: str
    output: str
    usual: tuple[Library, ...]
    direct: tuple[Library, ...]
    op_package: OpPackage
    python: SignerPython


def read_signing_policy() -> SigningPolicy:
    """Read the policy. Raises ManifestError."""
    return read_policy("signing", SigningPolicy)
