"""What a profile asks of an environment, and a directory of its ELF files, as data:
manifests/policies/doctor.toml and elf.toml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec


class ToolPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program of the PATH, ``minimum`` an error below and ``advised`` a warning.

    One that is ``optional`` may be missing.
    """

    program: str
    minimum: str = ""
    advised: str = ""
    why: str = ""
    optional: bool = False


class PythonPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requirements on the interpreter that lowers.

    ``torch`` and ``executorch`` are the pin, from manifests/pairs.toml.
    ``modules`` maps a module that is imported to the distribution that has it; ``flatc_below``
    is the first executorch that brings its own flatc.
    """

    minimum: str
    below: str
    torch_minimum: str
    torch: str = ""
    executorch: str = ""
    modules: Mapping[str, str] = {}
    flatc_below: str = ""


class NdkPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every NDK must be; the pin is the profile's."""

    minimum: int
    host_tag: str


class DevicePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device should have."""

    free_mb: int


class Fitness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one profile asks.

    ``sdk`` names the artifacts that may serve as the SDK, the best first; ``libraries`` maps
    its directories to the files that must lie there; ``skels`` says whether stubs and skels
    are shipped from it, ``staged`` what a device needs besides them; ``roots`` are the other
    artifacts that must be there.
    """

    machines: tuple[str, ...] = ("x86_64",)
    glibc: str = "2.34"
    cpu_flags: tuple[str, ...] = ()
    memory_gb: float = 0
    disk_gb: float = 0
    cores: int = 1
    sdk: tuple[str, ...] = ()
    libraries: Mapping[str, tuple[str, ...]] = {}
    skels: bool = False
    staged: tuple[str, ...] = ()
    headers: bool = False
    root_on_device: bool = False
    python: bool = False
    tools: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


class DoctorPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of manifests/policies/doctor.toml."""

    headers: tuple[str, ...]
    host_libraries: tuple[str, ...]
    python: PythonPolicy
    ndk: NdkPolicy
    device: DevicePolicy
    tools: Mapping[str, ToolPolicy]
    profiles: Mapping[str, Fitness]


HEXAGON_DIRECTORY = re.compile(r"hexagon-v(?P<version>[0-9a-f]{2,3})(?:/|$)")


class ElfPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What files of one kind of directory must be.

    ``directories`` are patterns for paths below a root. ``types`` are values of e_type;
    ``flags`` is the Hexagon version in e_flags (0x75), None where it is free. ``glibc``,
    ``glibcxx`` and ``cxxabi`` are the newest that the target has, ``android_api`` its API level;
    ``system`` the libraries it brings. ``load_align`` is advised, in bytes. ``sonames`` holds
    known exceptions by file name. Of files that match ``unused`` only the target and the
    alignment are judged.
    """

    bits: int
    machine: int
    directories: tuple[str, ...] = ()
    little_endian: bool = True
    types: tuple[int, ...] = (3,)
    flags: int | None = None
    flags_of_directory: bool = False
    glibc: str | None = None
    glibcxx: str | None = None
    cxxabi: str | None = None
    android_api: int | None = None
    load_align: int = 0
    system: tuple[str, ...] = ()
    sonames: Mapping[str, str] = {}
    unused: tuple[str, ...] = ()

    def is_unused(self, name: str) -> bool:
        """Whether nothing here loads a file of this name."""
        return any(fnmatchcase(name, pattern) for pattern in self.unused)


def choose_policy(
    directory: str, policies: Mapping[str, ElfPolicy]
) -> tuple[str, ElfPolicy] | None:
    """The kind and policy for ``directory`` (relative, '/' between), None where none applies.

    In a Hexagon directory the wanted e_flags are those that its name says.
    """
    for kind, policy in policies.items():
        if any(re.fullmatch(pattern, directory) for pattern in policy.directories):
            found = HEXAGON_DIRECTORY.search(directory)
            if found and policy.flags_of_directory:
                return f"hexagon-v{found['version']}", hexagon_policy(policy, found["version"])
            return kind, policy
    return None


def hexagon_policy(policy: ElfPolicy, version: str) -> ElfPolicy:
    """``policy`` for one Hexagon version: ``75`` means e_flags 0x75."""
    return msgspec.structs.replace(policy, flags=int(version, 16))
