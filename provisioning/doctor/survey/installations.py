"""Installations on disk: a QNN SDK, an Android NDK with its clang, a checkout of ExecuTorch with
its submodules and leftovers of flatcc.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from provisioning.artifacts.sources.local import SDK_YAML, SdkIdentity, read_sdk_yaml
from provisioning.console.git import ask_git, read_commit
from provisioning.console.process import run_process
from provisioning.doctor.facts import (
    HOST_DIRECTORY,
    CheckoutFacts,
    NdkFacts,
    SdkFacts,
    SubmoduleFacts,
)
from provisioning.doctor.survey import api_probe
from provisioning.doctor.survey.host import ask_version, read_text
from provisioning.doctor.survey.python_probe import find_adaptors
from provisioning.elf.facts import MACHINE_NAMES
from provisioning.errors import ToolError, UnfitError
from provisioning.files import has_files

MARKERS = (SDK_YAML, "QNN_README.txt")
API_PART = re.compile(r"^\s*#\s*define\s+QNN_API_VERSION_(MAJOR|MINOR|PATCH)\s+(\d+)", re.MULTILINE)
API_HEADER = "include/QNN/QnnCommon.h"
TIMEOUT_S = 30.0


def survey_sdk(root: Path, headers: Iterable[str], *, asks_library: bool = False) -> SdkFacts:
    """The facts of an SDK. ``headers`` are the paths below include/QNN to look for;
    ``asks_library`` loads libQnnHtp.so in a separate process for its API version.
    """
    if not root.is_dir():
        return SdkFacts(root, is_directory=False)
    identity, fault = SdkIdentity(), ""
    try:
        identity = read_sdk_yaml(root)
    except UnfitError as error:
        fault = error.why
    parts = dict(API_PART.findall(read_text(root / API_HEADER)))
    names = ("MAJOR", "MINOR", "PATCH")
    return SdkFacts(
        root,
        is_directory=True,
        markers=tuple(name for name in MARKERS if (root / name).is_file()),
        version=identity.version or None,
        stamp=identity.stamp or None,
        fault=fault,
        directories=tuple(_directories(root)),
        headers=tuple(name for name in headers if (root / "include" / "QNN" / name).is_file()),
        api_version=".".join(parts[name] for name in names) if set(names) <= parts.keys() else None,
        **(ask_library(root / HOST_DIRECTORY) if asks_library else {}),
    )


def ask_library(directory: Path) -> dict[str, Any]:
    """The core API version that libQnnHtp.so says it has, and where it reads socModel; nothing when
    it cannot be loaded."""
    variables = {**os.environ, "LD_LIBRARY_PATH": str(directory)}
    words = [sys.executable, api_probe.__file__, str(directory / "libQnnHtp.so")]
    try:
        ended = run_process(words, env=variables, timeout_s=TIMEOUT_S, check=False)
    except ToolError:
        return {}
    api = re.search(r"^api (\d+\.\d+\.\d+)$", ended.output, re.MULTILINE)
    offset = re.search(r"^socModel ([1-9]\d*)$", ended.output, re.MULTILINE)
    return {
        "library_api": api[1] if api else None,
        "soc_offset": int(offset[1]) if offset else None,
    }


def _directories(root: Path) -> list[str]:
    """lib/x86_64-linux-clang, lib/hexagon-v75/unsigned and their like."""
    found = [*root.glob("lib/*"), *root.glob("lib/*/*signed"), *root.glob("bin/*")]
    return sorted(path.relative_to(root).as_posix() for path in found if path.is_dir())


REVISION = re.compile(r"^Pkg\.Revision\s*=\s*([\w.+-]+)", re.MULTILINE)
TARGET = "aarch64-linux-android"


def survey_ndk(root: Path, host_tag: str) -> NdkFacts:
    """The facts of an NDK; its clang is run once."""
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


STATES = {"-": "missing", "+": "moved", "U": "moved", " ": "ok"}
FLATCC_OUTPUTS = ("bin/flatcc", "bin/flatcc_d", "lib/libflatccrt.a", "lib/libflatccrt_d.a")
ARCHIVE = b"!<arch>\n"
MAX_BYTES = 64 << 20
MAX_VERSION = 40


def survey_checkout(root: Path) -> CheckoutFacts:
    """The facts of a checkout; git is asked twice, nothing is written."""
    if not root.is_dir():
        return CheckoutFacts(root, is_directory=False)
    commit, status = None, ""
    with suppress(ToolError):
        commit = read_commit(root)
        status = ask_git(root, "submodule", "status", "--recursive").decode("utf-8", "replace")
    return CheckoutFacts(
        root,
        is_directory=True,
        is_git=commit is not None,
        commit=commit,
        submodules=tuple(_look_again(root, row) for row in _parse_status(status)),
        leftovers=tuple(_leftovers(root / "third-party" / "flatcc")),
        has_adaptor=bool(find_adaptors(str(root))),
        version=read_text(root / "version.txt").strip()[:MAX_VERSION],
    )


def _parse_status(output: str) -> Iterator[SubmoduleFacts]:
    """Lines such as ``-896db5... third-party/flatcc`` or `` 896db5... path (v0.6)``."""
    for line in output.splitlines():
        state = STATES.get(line[:1])
        commit, _, rest = line[1:].partition(" ")
        if state and len(commit) in (40, 64):
            path = rest.rsplit(" (", 1)[0] if rest.endswith(")") else rest
            yield SubmoduleFacts(path, state, commit)


def _look_again(root: Path, module: SubmoduleFacts) -> SubmoduleFacts:
    """For git a submodule without `git submodule init` is missing, even if its files are there, as
    in a mirror's copy. Its commit is compared if it has one."""
    place = root / module.path
    if module.state != "missing" or not has_files(place):
        return module
    with suppress(ToolError):
        if (place / ".git").exists() and (commit := read_commit(place)) != module.commit:
            return replace(module, state="moved", commit=commit)
    return replace(module, state="ok")


def _leftovers(flatcc: Path) -> Iterator[tuple[str, str]]:
    for relative in FLATCC_OUTPUTS:
        path = flatcc / relative
        if path.is_file():
            yield str(path), _machine_of(path)


def _machine_of(path: Path) -> str:
    """The machine of an ELF file, or of the first ELF member of an archive (.a)."""
    from provisioning.elf.reader import parse_headers

    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
        at = data.find(b"\x7fELF") if data.startswith(ARCHIVE) else 0
        return MACHINE_NAMES.get(parse_headers(data[at:]).machine, "unknown")
    except (OSError, ValueError):
        return "unknown"
