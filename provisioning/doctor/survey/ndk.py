"""An Android NDK on disk: revision, toolchain file, hosts, clang, API levels of its sysroot."""

from __future__ import annotations

import re
from pathlib import Path

from provisioning.doctor.facts import NdkFacts
from provisioning.doctor.survey.sdk import read_text
from provisioning.doctor.survey.tools import ask_version

REVISION = re.compile(r"^Pkg\.Revision\s*=\s*([\w.+-]+)", re.MULTILINE)
TARGET = "aarch64-linux-android"


def survey_ndk(root: Path, host_tag: str) -> NdkFacts:
    """What is there of an NDK; its clang is run once."""
    if not root.is_dir():
        return NdkFacts(root, is_directory=False)
    revision = REVISION.search(read_text(root / "source.properties"))
    prebuilt = root / "toolchains" / "llvm" / "prebuilt"
    clang = prebuilt / host_tag / "bin" / "clang++"
    levels = prebuilt / host_tag / "sysroot" / "usr" / "lib" / TARGET
    return NdkFacts(
        root,
        is_directory=True,
        revision=revision[1] if revision else None,
        has_toolchain_file=(root / "build" / "cmake" / "android.toolchain.cmake").is_file(),
        host_tags=tuple(sorted(path.name for path in prebuilt.glob("*") if path.is_dir())),
        clang=ask_version("clang++", clang) if clang.exists() else None,
        api_levels=tuple(sorted(int(p.name) for p in levels.glob("*") if p.name.isdecimal())),
    )
