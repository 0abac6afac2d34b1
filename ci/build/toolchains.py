"""Whose compiler builds: the host's, an NDK's, a cross compiler's, Hexagon's.

Each resolver returns CMake options and an identity; a toolchain that is missing or of another
version is an UnfitError before any compiler starts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ci.build.targets import Toolchain
from ci.build.tools import PROBE_S
from provisioning.errors import UnfitError
from provisioning.process import run_process


@dataclass(frozen=True)
class Compilers:
    """CMake options that choose compilers, and what makes these compilers these: the identity.

    ``values`` are placeholders that the target's options may use.
    """

    options: Mapping[str, str]
    identity: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)


def resolve_compilers(kind: Toolchain) -> Compilers:
    """The compilers of ``kind`` on this machine. Raises UnfitError."""
    return RESOLVERS[kind]()


def identify_compiler(path: Path) -> str:
    """The first line of ``--version``, with the size and time of the program itself.

    Raises UnfitError when it does not run.
    """
    ended = run_process([path, "--version"], timeout_s=PROBE_S, check=False)
    if ended.returncode != 0:
        raise UnfitError(f"the compiler {path} {ended.describe()}", why=ended.tail)
    status = path.resolve().stat()
    first = ended.output.splitlines()[0] if ended.output else ""
    return f"{first} [{status.st_size} bytes, {status.st_mtime_ns}]"


def find_compiler(variable: str, names: tuple[str, ...], todo: str) -> Path:
    """The program that ``variable`` of the environment names, else the first of ``names``.

    Raises UnfitError.
    """
    wanted = os.environ.get(variable)
    for name in (wanted,) if wanted else names:
        found = shutil.which(name)
        if found:
            return Path(found)
    what = f"{variable}={wanted} is no program" if wanted else f"no {' or '.join(names)} on PATH"
    raise UnfitError(f"no compiler: {what}", todo=todo)


def resolve_host() -> Compilers:
    """CC and CXX, else the C and C++ compilers of the distribution."""
    todo = "install one (Debian, Ubuntu: apt-get install g++) or set CC and CXX"
    c = find_compiler("CC", ("cc", "gcc", "clang"), todo)
    cxx = find_compiler("CXX", ("c++", "g++", "clang++"), todo)
    return _describe_pair(c, cxx, {})


def _describe_pair(c: Path, cxx: Path, more: Mapping[str, str]) -> Compilers:
    options = {"CMAKE_C_COMPILER": str(c), "CMAKE_CXX_COMPILER": str(cxx), **more}
    return Compilers(options, {"cc": identify_compiler(c), "cxx": identify_compiler(cxx)})


RESOLVERS: dict[Toolchain, Callable[[], Compilers]] = {
    Toolchain.HOST: resolve_host,
}
