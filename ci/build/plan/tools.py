"""Find the programs that drive a build: cmake, ninja, a compiler cache."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from provisioning.doctor.facts import PythonFacts
from provisioning.doctor.survey.host import ask_version
from provisioning.doctor.survey.python import survey_python
from provisioning.errors import UnfitError, UsageError
from provisioning.versions import parse_version

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


def iterate_candidates(name: str) -> Iterator[Path]:
    """Paths that may be ``name``: beside this Python first, since its version is pinned there."""
    beside = Path(sys.executable).parent / name
    if beside.is_file():
        yield beside
    found = shutil.which(name)
    if found:
        yield Path(found)


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
    """The first candidate that is at least ``floor``. Raises UnfitError that names the others."""
    seen: list[str] = []
    for path in iterate_candidates(name):
        program = probe_program(path)
        if program and program.version >= floor:
            return program
        seen.append(f"{path} is {program.version if program else 'not working'}")
    raise UnfitError(
        f"no {name} of version {floor} or newer",
        why="; ".join(seen) or f"{name} is neither beside this Python nor on PATH",
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
