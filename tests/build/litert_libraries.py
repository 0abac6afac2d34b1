"""Libraries of LiteRT releases, and a list of their hashes that replaces the project's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ci.inspect.litert_libraries import NAMES
from provisioning.manifest.reader import MANIFESTS_VARIABLE, manifests_root
from tests.stand_ins.android_apps import library

# The releases that contain a library, by the text at its end.
RELEASES = {"2.1.0": ("2.1.0", "2.1.1"), "2.1.2": ("2.1.1", "2.1.2"), "2.3.0": ("2.3.0",)}
LISTED = "litert-libraries.toml"


def make_library(name: str, release: str) -> bytes:
    """A library of LiteRT. The list contains it if ``release`` is one of RELEASES."""
    return library("libany.so") + f"{name} {release}".encode()


def list_libraries(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the manifests with another list, in ``place``: of the libraries of RELEASES."""
    source = manifests_root()
    (place / "policies").mkdir(parents=True)
    for path in (*source.iterdir(), *(source / "policies").iterdir()):
        if path.name not in {"policies", LISTED}:
            (place / path.relative_to(source)).symlink_to(path)
    rows = []
    for name in NAMES:
        for release, versions in RELEASES.items():
            sha256 = hashlib.sha256(make_library(name, release)).hexdigest()
            rows.append(
                f'{{ name = "{name}", machine = "aarch64", sha256 = "{sha256}",'
                f" versions = {list(versions)} }},"
            )
    (place / "policies" / LISTED).write_text("\n".join(["libraries = [", *rows, "]\n"]), "utf-8")
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(place))
