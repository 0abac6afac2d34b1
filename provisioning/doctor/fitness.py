"""What a profile requires of an environment (manifests/policies/doctor.toml), and what a directory
requires of its ELF files (elf.toml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec


class ToolPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program on PATH. A version below ``minimum`` is an error, and a version below ``advised`` a
    warning.

    If ``optional`` is true, the program may be missing.
    """

    program: str
    minimum: str = ""
    advised: str = ""
    why: str = ""
    optional: bool = False


class PythonPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requirements for the interpreter that lowers models.

    ``torch`` and ``executorch`` are the pinned versions, from manifests/pairs.toml. ``modules``
    maps imported modules to their distributions; ``flatc_below`` is the first version of executorch
    that does not need flatc on PATH.
    """

    minimum: str
    below: str
    torch_minimum: str
    torch: str = ""
    executorch: str = ""
    modules: Mapping[str, str] = {}
    flatc_below: str = ""


class NdkPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requirements for every NDK: the oldest supported major version, and the tag of the host that
    it must run on. The pinned version comes from the profile.
    """

    minimum: int
    host_tag: str


class DevicePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recommendations for a device: the free space in MB (10**6 bytes)."""

    free_mb: int


class Fitness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requirements of a profile.

    ``machines`` are the allowed kinds of CPU, and ``glibc`` is the oldest allowed version.
    ``address_space_gb`` is the address space that the smallest model needs.
    ``sdk`` contains the names of the artifacts that may serve as the SDK, the best first.
    ``libraries`` maps the SDK's directories to required files. ``skels`` is true if the SDK's stubs
    and skels are pushed to a device; ``staged`` are the other files that a device needs.
    ``headers`` is true if the SDK's headers are needed, and ``python`` is true if a Python that
    lowers models is needed. ``packages`` are distributions that another profile's Python needs.
    ``tools`` are keys of DoctorPolicy.tools. ``roots`` are other required
    artifacts. ``kinds`` are the kinds of directories whose files are checked.
    """

    machines: tuple[str, ...] = ("x86_64",)
    glibc: str = "2.34"
    cpu_flags: tuple[str, ...] = ()
    memory_gb: float = 0
    address_space_gb: float = 0
    disk_gb: float = 0
    cores: int = 1
    sdk: tuple[str, ...] = ()
    libraries: Mapping[str, tuple[str, ...]] = {}
    skels: bool = False
    staged: tuple[str, ...] = ()
    headers: bool = False
    root_on_device: bool = False
    python: bool = False
    packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


class DoctorPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of manifests/policies/doctor.toml."""

    headers: tuple[str, ...]
    host_libraries: tuple[str, ...]
    python: PythonPolicy
    ndk: NdkPolicy
    device: DevicePolicy
    tools: Mapping[str, ToolPolicy]
    profiles: Mapping[str, Fitness]


HEXAGON_DIRECTORY = re.compile(r"hexagon-v(?P<version>[0-9a-f]{2,3})(?:/|$)")


class ElfPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requirements for the files in one kind of directory.

    ``directories`` are patterns for paths below a root. ``types`` are the allowed values of e_type;
    ``flags`` is the required Hexagon version in e_flags (0x75), None for any; for a Hexagon
    directory, it follows from the name. ``glibc``, ``glibcxx`` and ``cxxabi`` are the newest
    versions on the target, ``android_api`` is its API level, ``system`` are its libraries.
    ``load_align`` is the recommended alignment of LOAD segments, in bytes. ``sonames`` maps file
    names to their sonames, if the two differ. For files that match ``unused``, only target and
    alignment are checked.
    """

    bits: int
    machine: int
    directories: tuple[str, ...] = ()
    types: tuple[int, ...] = (3,)
    flags: int | None = None
    glibc: str | None = None
    glibcxx: str | None = None
    cxxabi: str | None = None
    android_api: int | None = None
    load_align: int = 0
    system: tuple[str, ...] = ()
    sonames: Mapping[str, str] = {}
    unused: tuple[str, ...] = ()

    def is_unused(self, name: str) -> bool:
        """Return whether a file with this name is never loaded from a directory of this kind."""
        return any(fnmatchcase(name, pattern) for pattern in self.unused)


def choose_policy(
    directory: str, policies: Mapping[str, ElfPolicy]
) -> tuple[str, ElfPolicy] | None:
    """Return the kind and the policy for ``directory`` (relative, with '/'), or None if none
    applies.

    For a Hexagon directory, the required e_flags follow from its name.
    """
    for kind, policy in policies.items():
        if any(re.fullmatch(pattern, directory) for pattern in policy.directories):
            if match := HEXAGON_DIRECTORY.search(directory):
                return f"hexagon-v{match['version']}", hexagon_policy(policy, match["version"])
            return kind, policy
    return None


def hexagon_policy(policy: ElfPolicy, version: str) -> ElfPolicy:
    """Return ``policy`` for one Hexagon version: ``75`` means e_flags 0x75."""
    return msgspec.structs.replace(policy, flags=int(version, 16))
