"""Manifests with NDK r27 beside r26c: one release row, one profile."""

from __future__ import annotations

import shutil
from pathlib import Path

from provisioning.manifest.reader import manifests_root

REVISION = "27.0.12077973"
PROFILE = "android-r27"
RELEASE = f"""
[[releases]]
source = "archive"
version = "{REVISION}"
filename = "android-ndk-r27-linux.zip"
url = "https://dl.google.com/android/repository/android-ndk-r27-linux.zip"
sha256 = "{"0" * 64}"
case_collisions = true
layout = [{{ take = "android-ndk-r27/**" }}]
"""
ROW = f"""
[{PROFILE}]
summary = "as android, with NDK r27"
like = "android"
artifacts = [{{ name = "android-ndk", version = "{REVISION}" }}]
"""


def make_manifests(directory: Path) -> Path:
    """A copy of the project's manifests with both rows."""
    shutil.copytree(manifests_root(), directory)
    for name, row in (("toolchains/android-ndk.toml", RELEASE), ("profiles.toml", ROW)):
        with (directory / name).open("a") as file:
            file.write(row)
    return directory
