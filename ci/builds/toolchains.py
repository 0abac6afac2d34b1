"""What builds: cmake, ninja, a compiler cache, the compilers of the host, an NDK, Hexagon...

Each resolver returns CMake options and an identity; a toolchain that is missing or of another
version is an UnfitError before any compiler starts."""

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
from provisioning.artifacts.sources.local import read_version
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
    """CMake options that choose compilers, and what makes these compilers these: the identity.

    ``values`` are placeholders that the target may use.
    """

    options: Mapping[str, str]
    identity: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)


def resolve_compilers(
    kind: CompilerChoice, roots: Roots = NONE, variables: Variables = NONE
) -> Compilers:
    """The compilers of ``kind``, of the profile's artifacts and variables. Raises UnfitError."""
    return RESOLVERS[kind](roots, variables)


def identify_compiler(path: Path) -> str:
    """The first line of ``--version``, with the size and time of the program itself.

    Raises UnfitError when it does not run.
    """
    if not path.is_file():
        raise UnfitError(f"there is no compiler {path}", fix="provision the toolchain again")
    ended = run_process([path, "--version"], timeout_s=PROBE_S, check=False)
    if ended.returncode != 0:
        raise UnfitError(f"the compiler {path} {ended.describe()}", why=ended.tail)
    status = path.resolve().stat()
    first = ended.output.splitlines()[0] if ended.output else ""
    return f"{first} [{status.st_size} bytes, {status.st_mtime_ns}]"


def find_compiler(variable: str, names: tuple[str, ...], fix: str) -> Path:
    """The program that ``variable`` of the environment names, else the first of ``names``.

    Raises UnfitError.
    """
    wanted = os.environ.get(variable) if variable else None
    for name in (wanted,) if wanted else names:
        found = shutil.which(name)
        if found:
            return Path(found)
    what = f"{variable}={wanted} is not a program" if wanted else f"no {' or '.join(names)} on PATH"
    raise UnfitError(f"no compiler: {what}", fix=fix)


def resolve_host(_roots: Roots, _variables: Variables) -> Compilers:
    """CC and CXX, else the C and C++ compilers of the distribution."""
    fix = "install one (Debian, Ubuntu: apt-get install g++) or set CC and CXX"
    c = find_compiler("CC", ("cc", "gcc", "clang"), fix)
    cxx = find_compiler("CXX", ("c++", "g++", "clang++"), fix)
    return _describe_pair(c, cxx, {}, {})


def resolve_linux_cross(_roots: Roots, _variables: Variables) -> Compilers:
    """A vendor's sysroots where TOOLCHAIN_ROOT_HOST and _TARGET name them, else the
    distribution's aarch64 cross compiler."""
    host, target = (os.environ.get(f"TOOLCHAIN_ROOT_{side}") for side in ("HOST", "TARGET"))
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM": "NEVER",
    }
    if not host and not target:
        fix = "Debian, Ubuntu: apt-get install g++-aarch64-linux-gnu, or set TOOLCHAIN_ROOT_HOST"
        c = find_compiler("", (CROSS_PREFIX + "gcc",), fix)
        cxx = find_compiler("", (CROSS_PREFIX + "g++",), fix)
        return _describe_pair(c, cxx, options, {"linux_policy": "aarch64-linux"})
    if not host or not target or not Path(target).is_dir():
        raise UnfitError(
            f"TOOLCHAIN_ROOT_HOST={host or ''} and TOOLCHAIN_ROOT_TARGET={target or ''} do not fit",
            why="both must be set, to the two sysroots of one vendor SDK",
            fix="set both, or neither for the distribution's cross compiler",
        )
    options["CMAKE_SYSROOT"] = target
    c, cxx = (Path(host) / (VENDOR_PREFIX + name) for name in ("gcc", "g++"))
    return _describe_pair(c, cxx, options, {"linux_policy": "aarch64-oe-linux"})


def resolve_ndk(roots: Roots, _variables: Variables) -> Compilers:
    """The NDK of the profile; the doctor judges its version."""
    root = roots[NDK]
    toolchain = read_toolchain(NDK)
    found = read_version(root, toolchain.adoption) if toolchain.adoption else toolchain.default
    policy = elf_policy("aarch64-android")
    platform = f"android-{policy.android_api}"
    options = {
        "CMAKE_TOOLCHAIN_FILE": str(root / "build/cmake/android.toolchain.cmake"),
        "ANDROID_ABI": "arm64-v8a",
        "ANDROID_PLATFORM": platform,
        PAGE_BYTES: str(policy.load_align),  # NDKs before r28 align to 4096
    }
    identity = {"release": found, "cxx": identify_compiler(root / NDK_BIN / "clang++")}
    values = {"android_platform": platform, "page_bytes": str(policy.load_align)}
    if (objcopy := root / NDK_BIN / "llvm-objcopy").is_file():
        values["objcopy"] = str(objcopy)
    return Compilers(options, identity, values)


def resolve_hexagon(roots: Roots, variables: Variables) -> Compilers:
    """The Hexagon tools that HEXAGON_TOOLS_ROOT names, by default the SDK's own."""
    sdk = roots[HEXAGON_SDK]
    tools = Path(variables.get("HEXAGON_TOOLS_ROOT", ""))
    toolchain = sdk / "build/cmake/hexagon_toolchain.cmake"
    if not toolchain.is_file():
        raise UnfitError(f"the Hexagon SDK in {sdk} has no {toolchain.relative_to(sdk)}")
    compiler = tools / "Tools/bin/hexagon-clang++"
    if not compiler.is_file():
        found = sorted(sdk.glob(f"{HEXAGON_TOOLS}/*/Tools/bin/{compiler.name}"))
        others = " or ".join(str(path.parents[2]) for path in found)
        raise UnfitError(
            f"there is no compiler {compiler}",
            why="HEXAGON_TOOLS_ROOT names tools without one, or the SDK has other tools",
            fix=f"set HEXAGON_TOOLS_ROOT to {others or 'the directory that holds Tools/bin'}",
        )
    identity = {"cxx": identify_compiler(compiler)}
    values = {"hexagon_tools_root": str(tools)}
    return Compilers({"CMAKE_TOOLCHAIN_FILE": str(toolchain)}, identity, values)


def _describe_pair(
    c: Path, cxx: Path, more: Mapping[str, str], values: Mapping[str, str]
) -> Compilers:
    options = {"CMAKE_C_COMPILER": str(c), "CMAKE_CXX_COMPILER": str(cxx), **more}
    return Compilers(options, {"cc": identify_compiler(c), "cxx": identify_compiler(cxx)}, values)


RESOLVERS: dict[CompilerChoice, Callable[[Roots, Variables], Compilers]] = {
    CompilerChoice.HOST: resolve_host,
    CompilerChoice.LINUX_CROSS: resolve_linux_cross,
    CompilerChoice.NDK: resolve_ndk,
    CompilerChoice.HEXAGON: resolve_hexagon,
}


CMAKE_FLOOR = Version("3.28")  # below, the wheel's config offers no imported targets
NINJA_FLOOR = Version("1.10")
PROBE_S = 20.0
CACHES = ("ccache", "sccache")


@dataclass(frozen=True)
class Program:
    """A program that ran and said its version."""

    path: Path
    version: Version


@dataclass(frozen=True)
class Tools:
    """What a build runs besides its compiler; ``cache`` is ccache, sccache or None."""

    cmake: Program
    ninja: Program
    cache: Program | None


def probe_program(path: Path) -> Program | None:
    """Run ``path --version``; None when it fails or names no version."""
    version = ask_version(path.name, path).version
    return Program(path, parse_version(version)) if version else None


def ask_python(
    python: Path, modules: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> PythonFacts:
    """What an interpreter is and which of ``modules`` it has. Raises UnfitError."""
    facts = survey_python(python, ("executorch",), modules, variables or os.environ)
    if facts.error:
        raise UnfitError(f"{python} cannot be used", why=facts.error, fix="correct --python")
    return facts


def choose_program(name: str, floor: Version) -> Program:
    """A program of at least ``floor``: next to this Python, which pins it, else on PATH.

    Raises UnfitError that names those that were found.
    """
    seen: list[str] = []
    for place in (Path(sys.executable).parent / name, name):
        if path := shutil.which(place):
            program = probe_program(Path(path))
            if program and program.version >= floor:
                return program
            seen.append(f"{path} is {program.version if program else 'not working'}")
    raise UnfitError(
        f"no {name} of version {floor} or newer",
        why="; ".join(seen) or f"{name} is neither next to this Python nor on PATH",
        fix=f'pip install {name}, or "executorch-qnn-ci[build]", which pins it',
    )


def find_cache() -> Program | None:
    """The compiler cache that QNN_CI_CACHE names, else ccache or sccache, whichever works first.

    ``none`` is not a cache. Raises UsageError for another name, UnfitError when a named one is not
    there.
    """
    wanted = os.environ.get("QNN_CI_CACHE", "")
    if wanted not in {"", "none", *CACHES}:
        raise UsageError(
            f"QNN_CI_CACHE={wanted} is not a compiler cache", fix="ccache, sccache or none"
        )
    for name in CACHES if not wanted else [name for name in CACHES if name == wanted]:
        found = shutil.which(name)
        program = probe_program(Path(found)) if found else None
        if program:
            return program
    if wanted in CACHES:
        raise UnfitError(f"QNN_CI_CACHE={wanted} is not on PATH", fix="install it, or unset it")
    return None


def find_tools() -> Tools:
    """Every tool of a build. Raises UnfitError."""
    return Tools(
        choose_program("cmake", CMAKE_FLOOR), choose_program("ninja", NINJA_FLOOR), find_cache()
    )
