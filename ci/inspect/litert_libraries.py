"""Which releases of LiteRT a library belongs to. No library of LiteRT contains its version, so only
its SHA-256 shows it, if manifests/policies/litert-libraries.toml lists it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from provisioning.files import hash_file
from provisioning.manifest.reader import manifests_root, read_policy

LITERT_NAME, OLDER_NAME = "libLiteRt.so", "libLiteRtRuntimeCApi.so"
DISPATCH, PLUGIN = "libLiteRtDispatch_Qualcomm.so", "libLiteRtCompilerPlugin_Qualcomm.so"
# The library that runs models, with its name of LiteRT 2.0 and older, and those of Qualcomm's NPU,
# which run compiled models and compile models on the device. They must be of one release.
NAMES = (LITERT_NAME, OLDER_NAME, DISPATCH, PLUGIN)
MAX_HASHED = 256 << 20  # bytes; the largest listed library has 9 MB


class KnownLibrary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A library of LiteRT, and the versions of ai-edge-litert that contain it."""

    name: str
    machine: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    versions: Annotated[tuple[str, ...], Meta(min_length=1)]


class KnownLibraries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of litert-libraries.toml."""

    libraries: tuple[KnownLibrary, ...]


def read_known_libraries() -> tuple[KnownLibrary, ...]:
    """Return the listed libraries of LiteRT, none if there is no litert-libraries.toml. Raises
    ManifestError."""
    path = manifests_root() / "policies" / "litert-libraries.toml"
    if not path.is_file():
        return ()
    return read_policy("litert-libraries", KnownLibraries).libraries


def find_releases(path: Path) -> tuple[str, ...] | None:
    """Return the LiteRT versions that contain this very file, none if it is not listed. Return None
    if its name is not that of such a library, or if it cannot be read. Raises ManifestError."""
    if path.name not in NAMES:
        return None
    with suppress(OSError):
        if path.stat().st_size > MAX_HASHED:
            return ()
        sha256 = hash_file(path)
        libraries = (library for library in read_known_libraries() if library.sha256 == sha256)
        return next((library.versions for library in libraries), ())
    return None


def describe_releases(versions: tuple[str, ...]) -> str:
    """Return text such as ``LiteRT 2.1.0 or 2.1.1``."""
    if not versions:
        return "an unknown release of LiteRT (its SHA-256 is not listed)"
    return f"LiteRT {' or '.join(versions)}"
