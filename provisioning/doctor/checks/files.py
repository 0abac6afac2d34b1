"""The files of a tree, each against the policy of its directory, and their needs together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from posixpath import normpath

from provisioning.doctor.checks.elf_policy import (
    ElfPolicy,
    choose_policy,
    hexagon_policy,
    judge,
    judge_defect,
    judge_identity,
)
from provisioning.doctor.checks.finding import Finding
from provisioning.doctor.checks.needs import judge_needs
from provisioning.doctor.facts import FileFacts
from provisioning.elf.facts import EM_QDSP6, ElfError

HOST_KIND = "x86_64-linux-clang"
SKEL_VERSION = re.compile(r"V([0-9a-f]{2,3})(?:Skel)?[.]so$")


@dataclass(frozen=True)
class Surroundings:
    """What lies around a tree: ``brings`` maps names that the machine may have to their paths,
    ``beside`` are the names on the search path outside the tree.
    """

    brings: Mapping[str, str | None]
    beside: Collection[str] = ()


def judge_files(
    files: Iterable[FileFacts], policies: Mapping[str, ElfPolicy], around: Surroundings
) -> Iterator[Finding]:
    """Every file of the kinds in ``policies``; directories of other kinds are left alone."""
    groups: dict[str, list[FileFacts]] = {}
    for file in files:
        groups.setdefault(file.directory, []).append(file)
    for directory, group in groups.items():
        chosen = choose_policy(directory, policies)
        if chosen:
            kind, policy = chosen
            beside = {*around.beside, *_searched(group, groups)}
            near = replace(around, beside=beside)
            yield from _judge_group(group, kind, policy, near, directory.count("/") + 1)


def _searched(
    group: Iterable[FileFacts], groups: Mapping[str, Iterable[FileFacts]]
) -> Iterator[str]:
    """The names in the directories of the tree that a group's RPATH and RUNPATH lead to."""
    for file in group:
        for entry in (*file.elf.rpath, *file.elf.runpath) if file.elf else ():
            below = entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", file.directory, 1)
            yield from (found.name for found in groups.get(normpath(below), ()))


def judge_flat(
    files: Iterable[FileFacts], kind: str, policy: ElfPolicy, around: Surroundings
) -> Iterator[Finding]:
    """All files below a root as one directory of ``kind``, whatever the root calls it."""
    yield from _judge_group(list(files), kind, policy, around, depth=1)


def judge_staged(
    files: Iterable[FileFacts], policies: Mapping[str, ElfPolicy], target: str
) -> Iterator[Finding]:
    """A directory as a device has it: libraries of kind ``target`` and of the DSP together."""
    groups: dict[str, list[FileFacts]] = {}
    for file in files:
        groups.setdefault(_staged_kind(file, target), []).append(file)
    for kind, group in sorted(groups.items()):
        policy = policies[kind.partition("-v")[0]]
        version = kind.partition("-v")[2]
        policy = hexagon_policy(policy, version) if version else policy
        yield from _judge_group(group, kind, policy, Surroundings({}), depth=0)


def _staged_kind(file: FileFacts, target: str) -> str:
    if file.elf is None or file.elf.machine != EM_QDSP6:
        return target
    return f"hexagon-v{file.elf.hexagon_version:x}"


def _judge_group(
    files: list[FileFacts], kind: str, policy: ElfPolicy, around: Surroundings, depth: int
) -> Iterator[Finding]:
    fitting, present = [], {file.name for file in files}
    for file in files:
        if file.elf is None:
            if file.defect:
                yield judge_defect(ElfError(file.path, file.defect, file.defect_why))
            continue
        yield from judge(file.elf, policy, depth=depth)
        if not judge_identity(file.elf, policy) and not policy.is_unused(file.name):
            fitting.append(file)
    brings = around.brings if kind == HOST_KIND else {}
    provided = {*present, *policy.system, *around.beside}
    yield from judge_needs(fitting, provided, brings)
