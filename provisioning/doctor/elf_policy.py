"""What ELF files of a directory must be, as data: manifests/policies/elf.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

HEXAGON_DIRECTORY = re.compile(r"hexagon-v(?P<version>[0-9a-f]{2,3})(?:/|$)")


class ElfPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What files of one kind of directory must be.

    ``directories`` are patterns for paths below a root. ``types`` are values of e_type;
    ``flags`` is the Hexagon version in e_flags (0x75), None where it is free. ``glibc``,
    ``glibcxx`` and ``cxxabi`` are the newest that the target has, ``android_api`` its API level;
    ``system`` the libraries it brings. ``load_align`` is advised, in bytes. ``sonames`` holds
    known exceptions by file name. Of files that match ``unused`` only the target is judged.
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
