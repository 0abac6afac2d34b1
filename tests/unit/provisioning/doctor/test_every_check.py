"""Every check of the registry, with the things of ``cases``; and needs, which no single thing has.

What each tells is in seen.txt: its severity and the checks that it waits for, then the subject, the
place, and what fills its texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from provisioning.doctor.checks.elf import Placed
from provisioning.doctor.checks.files import NEEDS, find_needs, group_tree, judge_group
from provisioning.doctor.checks.registry import Finding
from provisioning.doctor.examine import list_checks
from provisioning.doctor.facts import FileFacts
from provisioning.doctor.policies import read_elf_policies
from provisioning.elf.facts import EM_QDSP6, EM_X86_64, ElfFacts, VersionNeed
from provisioning.elf.programs import Target
from tests.unit.provisioning.doctor.cases import (
    DROID,
    DSP,
    FLATCC,
    PAIRS,
    PLAIN,
    adaptor,
    checkout,
    describe,
    device,
    elf,
    lowered,
    read_snapshot,
    staging,
    subjects_of,
)

GLIBC = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "libstdc++.so.6")


def judge(code: str, subject: object) -> list[Finding]:
    """What the check of this id says of one thing."""
    return [found for one in subjects_of(code) for found in one.judge(subject) if found.id == code]


def test_every_check_has_its_pair() -> None:
    assert PAIRS.keys() == {check.id for check in list_checks()}


@pytest.mark.parametrize("code", PAIRS)
def test_a_check_sees_its_fault_and_not_the_nearest_thing(code: str) -> None:
    seen, not_seen = PAIRS[code]
    (finding,) = judge(code, seen)
    assert all(msgspec.to_builtins(finding).values())
    assert not re.search(r"\{\S|\{\{", f"{finding.what}{finding.why}{finding.fix}")
    assert judge(code, not_seen) == []


def test_what_each_check_tells() -> None:
    heads = {check.id: " ".join([check.severity.value, *check.after]) for check in list_checks()}
    told = [
        f"{code} {heads[code]} | {line}"
        for code, (seen, _) in PAIRS.items()
        for line in describe(code, seen)
    ]
    assert told == read_snapshot("seen.txt")


SIGNED = elf(machine=EM_QDSP6, bits=32, flags=0x75, sections=(".symtab",))
DANGLING = {"links": {"libQnnSystem.so": "gone"}, "dangling": frozenset({"libQnnSystem.so"})}
OLD_TARGET = lowered(None, targets=(Target("SM8650", 75, 8),))


@pytest.mark.parametrize(
    ("code", "subject", "count"),
    [
        ("QNN213", Placed(elf(type=2), PLAIN), 1),
        ("QNN228", Placed(SIGNED, DSP), 0),  # a skel may keep its symbols
        *(("QNN232", Placed(elf(needed=(name,)), DROID), 1) for name in GLIBC),
        ("QNN310", staging("libQnnHtp.so", **DANGLING), 0),  # QNN300 reports it
        ("QNN323", staging("libQnnLpaiV79Stub.so", lowered=OLD_TARGET), 0),
        ("QNN509", adaptor(elf=elf(version_needs=(VersionNeed("l", ("GLIBC_2.9",)),))), 0),
        ("QNN708", checkout(leftovers=((f"{FLATCC}/lib/libflatccrt.a", "unknown"),)), 0),
        ("QNN802", device(soc=""), 0),
    ],
)
def test_a_check_knows_what_is_near_its_fault(code: str, subject: object, count: int) -> None:
    assert len(judge(code, subject)) == count


def ids(findings: Iterable[Finding]) -> list[str]:
    return [finding.id for finding in findings]


def judge_needs(
    files: Iterable[FileFacts], provided: set[str], brings: dict[str, str | None]
) -> Iterator[Finding]:
    for need in find_needs(files, provided, brings):
        yield from NEEDS.judge(need)


def judge_tree(*files: FileFacts) -> Iterator[Finding]:
    for group in group_tree(files, read_elf_policies(), {}):
        yield from judge_group(group)


def library(name: str, *needed: str) -> FileFacts:
    path = Path("/sdk") / name
    facts = ElfFacts(path, 1, 64, True, EM_X86_64, 3, 0, soname=name, needed=needed)
    return FileFacts(name, path, 1, facts)


def test_needs_in_a_circle_end() -> None:
    files = [library("libA.so", "libB.so", "libX.so"), library("libB.so", "libA.so")]
    assert ids(judge_needs(files, {"libA.so", "libB.so"}, {})) == ["QNN216"]
    files = [
        library("libC.so", "libX.so"),
        library("libB.so", "libA.so", "libC.so"),
        library("libA.so", "libB.so"),
    ]
    (finding,) = judge_needs(files, {"libA.so", "libB.so", "libC.so"}, {})
    assert "libC.so (which libB.so needs, which libA.so needs)" in finding.what


@pytest.mark.parametrize("kind", ["rpath", "runpath"])
def test_a_path_of_the_tree_is_followed(kind: str) -> None:
    file = library("libA.so", "libB.so")
    assert file.elf is not None
    elf = replace(file.elf, **{kind: ("${ORIGIN}/../x86_64-linux-clang",)})
    tool = replace(file, relative="bin/x86_64-linux-clang/libA.so", elf=elf)
    beside = replace(library("libB.so"), relative="lib/x86_64-linux-clang/libB.so")
    assert ids(judge_tree(tool, beside)) == ["QNN216"]
    for origin in ("$ORIGIN", "${ORIGIN}"):
        place = f"{origin}/../../lib/x86_64-linux-clang"
        tool = replace(tool, elf=replace(elf, **{kind: ("$ORIGIN", place)}))
        assert ids(judge_tree(tool, beside)) == []
