"""Read the policies for checks from manifests/policies/."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import msgspec

from provisioning.doctor.fitness import DoctorPolicy, ElfPolicy, hexagon_policy
from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import find_row, read_policy


@functools.cache
def read_elf_policies() -> Mapping[str, ElfPolicy]:
    """Return the ELF policies in manifests/policies/elf.toml. The keys are kinds of directories.
    Raises ManifestError.
    """
    return read_policy("elf", dict[str, ElfPolicy])


@functools.cache
def read_doctor_policy() -> DoctorPolicy:
    """Return the policy in manifests/policies/doctor.toml, with the versions of torch and
    executorch from manifests/pairs.toml.

    Raises ManifestError.
    """
    policy, pairs = read_policy("doctor", DoctorPolicy), read_pairs()
    python = msgspec.structs.replace(
        policy.python, torch=pairs.find_torch(), executorch=pairs.default
    )
    return msgspec.structs.replace(policy, python=python)


def elf_policy(kind: str) -> ElfPolicy:
    """Return the ELF policy of a kind of directory: x86_64-linux-clang, aarch64-android,
    aarch64-oe-linux, lpai, or a Hexagon version such as hexagon-v75.

    Raises UsageError for another kind.
    """
    policies = read_elf_policies()
    if match := re.fullmatch(r"hexagon-v([0-9a-f]{2,3})", kind):
        return hexagon_policy(policies["hexagon"], match[1])
    return find_row(policies, kind, "ELF policy")
