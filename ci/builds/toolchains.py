"""Find the tools of a build: cmake, ninja, a compiler cache, host and cross compilers, NDK, Hexagon
tools.

Each function that finds a toolchain returns CMake options and the identity of its compilers. If a
tool is missing or too old, it raises UnfitError before any compiler starts.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from packaging.version import Version

from ci.builds.targets import CompilerChoice
from provisioning.artifacts.installations import read_version
from provisioning.console.caller import install_command
from provisioning.console.process import run_process
from provisioning.doctor.facts import PythonFacts
from provisioning.doctor.policies import elf_policy
from provisioning.doctor.survey.host import ask_version
from provisioning.doctor.survey.python import survey_python
from provisioning.errors import UnfitError, UsageError
from provisioning.manifest.reader import read_toolchain
from provisioning.versions import parse_version

NDK, HEXAGON_SDK = "android-ndk", "hexagon-sdk"
NDK_BIN = "toolchains/llvm/prebuilt/linux-x86_64/bin"
Roots: TypeAlias = Mapping[str, Path]
Variables: TypeAlias = Mapping[str, str]
NONE: Mapping[str, Any] = {}
HEXAGON_TOOLS = "tools/HEXAGON_Tools"
PAGE_BYTES = "QNN_CI_PAGE_BYTES"
CROSS_PREFIX = "aarch64-linux-gnu-"
VENDOR_PREFIX = "usr/bin/aarch64-oe-linux/aarch64-oe-linux-"


@dataclass(frozen=True)
class Compilers:
    """CMake options that choose compilers, and the identity of these compilers.

    ``values`` are values for placeholders in the target.
    """

    options: Mapping[str, str]
    identity: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)


def resolve_compilers(
    kind: CompilerChoice, roots: Roots = NONE, variables: Variables = NONE
) -> Compilers:
    """Return the compilers of ``kind``. ``roots`` and ``variables`` are the artifacts' directories
    and the environment variables of a profile. Raises UnfitError if a compiler is missing.
    """
    return RESOLVERS[kind](roots, variables)


def identify_compiler(path: Path) -> str:
    """Return the first line that ``PATH --version`` prints, with the program's size and
    modification time.

    Raises UnfitError if the program is missing or does not run.
    """
    if not path.is_file():
        raise UnfitError(f"the compiler {path} is missing", fix="provision the toolchain again")
    ended = run_process([path, "--version"], timeout_s=PROBE_S, check=False)
    if ended.returncode != 0:
        raise UnfitError(f"the compiler {path} {ended.describe()}", why=ended.tail)
    status = path.stat()
    first = ended.output.splitlines()[0] if ended.output else ""
    # A compiler that was rebuilt may print the same version.
    return f"{first} [{status.st_size} bytes, {status.st_mtime_ns}]"


def find_compiler(variable: str, names: tuple[str, ...], fix: str) -> Path:
    """Return the program in the environment variable ``variable``. If that is not set, return the
    first of ``names`` on PATH.

    Raises UnfitError if there is no such program.
    """
    requested = os.environ.get(variable) if variable else None
    for name in (requested,) if requested else names:
        program = shutil.which(name)
        if program:
            return Path(program)
    fault = (
        f"{variable}={requested} is not a program"
        if requested
        else f"no {' or '.join(names)} on PATH"
    )
    raise UnfitError(f"no compiler was found: {fault}", fix=fix)


def resolve_host(_roots: Roots, _variables: Variables) -> Compilers:
    """Return the compilers in CC and CXX. If one is not set, use the distribution's compiler."""
    # No minimum version: g++ 12.2 builds ExecuTorch 1.4.1, whose documentation asks for 13.
    fix = "install one (Debian, Ubuntu: apt-get install g++) or set CC and CXX"
    c = find_compiler("CC", ("cc", "gcc", "clang"), fix)
    cxx = find_compiler("CXX", ("c++", "g++", "clang++"), fix)
    return _describe_pair(c, cxx, {}, {})


def resolve_linux_cross(_roots: Roots, _variables: Variables) -> Compilers:
    """Return the cross compilers of a vendor's SDK for aarch64, otherwise the distribution's.

    TOOLCHAIN_ROOT_HOST and TOOLCHAIN_ROOT_TARGET are the two sysroots of the vendor's SDK. Raises
    UnfitError if only one is set, or if a compiler or the target's sysroot is missing.
    """
    host, target = (os.environ.get(f"TOOLCHAIN_ROOT_{side}") for side in ("HOST", "TARGET"))
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        # Programs in the target's sysroot cannot run on this machine.
        "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM": "NEVER",
    }
    if not host and not target:
        fix = "Debian, Ubuntu: apt-get install g++-aarch64-linux-gnu, or set TOOLCHAIN_ROOT_HOST"
        c = find_compiler("", (CROSS_PREFIX + "gcc",), fix)
        cxx = find_compiler("", (CROSS_PREFIX + "g++",), fix)
        return _describe_pair(c, cxx, options, {"linux_policy": "aarch64-linux"})
    if not host or not target:
        is_set, missing = ("HOST", "TARGET") if host else ("TARGET", "HOST")
        raise UnfitError(
            f"TOOLCHAIN_ROOT_{is_set} is set, but TOOLCHAIN_ROOT_{missing} is not",
            why="they are the two sysroots of one vendor's SDK",
            fix="set both, or unset both to use the distribution's cross compiler",
        )
    if not Path(target).is_dir():
        raise UnfitError(
            f"TOOLCHAIN_ROOT_TARGET={target} is not a directory",
            fix="set it to the sysroot for the target in the vendor's SDK",
        )
    options["CMAKE_SYSROOT"] = target
    c, cxx = (Path(host) / (VENDOR_PREFIX + name) for name in ("gcc", "g++"))
    return _describe_pair(c, cxx, options, {"linux_policy": "aarch64-oe-linux"})


def resolve_ndk(roots: Roots, _variables: Variables) -> Compilers:
    """Return the compilers of the profile's NDK. Its version is checked elsewhere, by the
    doctor."""
    root = roots[NDK]
    toolchain = read_toolchain(NDK)
    release = (
        read_version(root, toolchain.adoption) if toolchain.adoption.variable else toolchain.default
    )
    policy = elf_policy("aarch64-android")
    platform = f"android-{policy.android_api}"
    options = {
        "CMAKE_TOOLCHAIN_FILE": str(root / "build/cmake/android.toolchain.cmake"),
        "ANDROID_ABI": "arm64-v8a",
        "ANDROID_PLATFORM": platform,
        PAGE_BYTES: str(policy.load_align),  # NDKs before r28 align to 4096
    }
    identity = {"release": release, "cxx": identify_compiler(root / NDK_BIN / "clang++")}
    values = {"android_platform": platform, "page_bytes": str(policy.load_align)}
    if (objcopy := root / NDK_BIN / "llvm-objcopy").is_file():
        values["objcopy"] = str(objcopy)
    return Compilers(options, identity, values)


def resolve_hexagon(roots: Roots, variables: Variables) -> Compilers:
    """Return the compilers of the Hexagon tools in HEXAGON_TOOLS_ROOT. By default, a profile sets
    this variable to the tools in its Hexagon SDK. Raises UnfitError if the compiler or the SDK's
    CMake toolchain file is missing."""
    sdk = roots[HEXAGON_SDK]
    tools = Path(variables.get("HEXAGON_TOOLS_ROOT", ""))
    toolchain = sdk / "build/cmake/hexagon_toolchain.cmake"
    if not toolchain.is_file():
        raise UnfitError(f"the Hexagon SDK in {sdk} has no {toolchain.relative_to(sdk)}")
    compiler = tools / "Tools/bin/hexagon-clang++"
    if not compiler.is_file():
        compilers = sorted(sdk.glob(f"{HEXAGON_TOOLS}/*/Tools/bin/{compiler.name}"))
        present = " or ".join(str(path.parents[2]) for path in compilers)
        raise UnfitError(
            f"the compiler {compiler} is missing",
            why="HEXAGON_TOOLS_ROOT points to the wrong directory, or the SDK has other tools",
            fix=f"set HEXAGON_TOOLS_ROOT to {present or 'the directory that contains Tools/bin'}",
        )
    identity = {"cxx": identify_compiler(compiler)}
    values = {"hexagon_tools_root": str(tools)}
    return Compilers({"CMAKE_TOOLCHAIN_FILE": str(toolchain)}, identity, values)


def _describe_pair(
    c: Path, cxx: Path, further_options: Mapping[str, str], values: Mapping[str, str]
) -> Compilers:
    options = {"CMAKE_C_COMPILER": str(c), "CMAKE_CXX_COMPILER": str(cxx), **further_options}
    return Compilers(options, {"cc": identify_compiler(c), "cxx": identify_compiler(cxx)}, values)


RESOLVERS: dict[CompilerChoice, Callable[[Roots, Variables], Compilers]] = {
    CompilerChoice.HOST: resolve_host,
    CompilerChoice.LINUX_CROSS: resolve_linux_cross,
    CompilerChoice.NDK: resolve_ndk,
    CompilerChoice.HEXAGON: resolve_hexagon,
}


CMAKE_FLOOR = Version("3.28")  # older ones get no imported targets from the wheel's config
NINJA_FLOOR = Version("1.10")
PROBE_S = 20.0
CACHES = ("ccache", "sccache")


@dataclass(frozen=True)
class Program:
    """A program that ran and printed its version."""

    path: Path
    version: Version


@dataclass(frozen=True)
class Tools:
    """The programs that a build needs besides compilers. ``cache`` is ccache, sccache or None."""

    cmake: Program
    ninja: Program
    cache: Program | None


def probe_program(path: Path) -> Program | None:
    """Run ``path --version``; return None if it fails or prints no version."""
    version = ask_version(path.name, path).version
    return Program(path, parse_version(version)) if version else None


def ask_python(
    python: Path, modules: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> PythonFacts:
    """Return facts about an interpreter, including which of ``modules`` it has. Raises UnfitError
    if it does not work.
    """
    facts = survey_python(python, ("executorch",), modules, variables or os.environ)
    if facts.error:
        raise UnfitError(f"{python} cannot be used", why=facts.error, fix="correct --python")
    return facts


def choose_program(name: str, floor: Version) -> Program:
    """Return a program of version ``floor`` or later: the one next to this Python, otherwise the
    one on PATH.

    Raises UnfitError if neither is suitable. The error lists the programs that were found.
    """
    unsuitable: list[str] = []
    # The extra `build` pins cmake and ninja next to this Python; a distribution's may be too old,
    # as Debian 12's cmake 3.25 is.
    for place in (Path(sys.executable).parent / name, name):
        if path := shutil.which(place):
            program = probe_program(Path(path))
            if program and program.version >= floor:
                return program
            unsuitable.append(
                f"{path} {f'has version {program.version}' if program else 'does not work'}"
            )
    raise UnfitError(
        f"{name} {floor} or newer was not found",
        why="; ".join(unsuitable) or f"{name} is neither next to this Python nor on PATH",
        fix=f"pip install {name}, or {install_command('build')}, which pins it",
    )


def find_cache() -> Program | None:
    """Return the compiler cache that QNN_CI_CACHE names. If the variable is not set, return ccache
    if it works, otherwise sccache if it works, otherwise None.

    ``QNN_CI_CACHE=none`` means no cache. Raises UsageError for another name, and UnfitError if the
    requested cache is missing.
    """
    requested = os.environ.get("QNN_CI_CACHE", "")
    if requested not in {"", "none", *CACHES}:
        raise UsageError(
            f"QNN_CI_CACHE={requested}: no supported compiler cache has this name",
            fix="use ccache, sccache or none",
        )
    if requested == "none":
        return None
    for name in (requested,) if requested else CACHES:
        path = shutil.which(name)
        # A cache on PATH may be broken. It is optional, so this is no error unless it was
        # requested.
        if path and (program := probe_program(Path(path))):
            return program
    if requested:
        raise UnfitError(
            f"QNN_CI_CACHE={requested}: no working {requested} is on PATH",
            fix="install it, or unset QNN_CI_CACHE",
        )
    return None


def find_tools() -> Tools:
    """Return all tools of a build. Raises the same errors as choose_program and find_cache."""
    return Tools(
        choose_program("cmake", CMAKE_FLOOR), choose_program("ninja", NINJA_FLOOR), find_cache()
    )
