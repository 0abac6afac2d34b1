"""Checks whose facts a test cannot make on this machine, or need no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from provisioning.doctor.checks.files import NEEDS, find_needs, group_tree, judge_group
from provisioning.doctor.checks.host import SYSTEM
from provisioning.doctor.checks.registry import Case, Finding
from provisioning.doctor.examine import find_fitness
from provisioning.doctor.facts import (
    EnvironmentFacts,
    FileFacts,
    PathEntry,
    TreeFacts,
    VariableFacts,
)
from provisioning.doctor.policies import read_doctor_policy, read_elf_policies
from provisioning.elf.facts import EM_X86_64, ElfFacts
from tests.unit.provisioning.doctor.cases import HOST


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
    assert "libC.so, which libB.so needs, which libA.so needs, needs it" in finding.what


def test_a_runpath_of_the_tree_is_followed() -> None:
    file = library("libA.so", "libB.so")
    assert file.elf is not None
    elf = replace(file.elf, runpath=("${ORIGIN}/../x86_64-linux-clang",))
    tool = replace(file, relative="bin/x86_64-linux-clang/libA.so", elf=elf)
    beside = replace(library("libB.so"), relative="lib/x86_64-linux-clang/libB.so")
    assert ids(judge_tree(tool, beside)) == ["QNN216"]
    elf = replace(elf, runpath=("$ORIGIN/../../lib/x86_64-linux-clang",))
    tool = replace(tool, elf=elf)
    assert ids(judge_tree(tool, beside)) == []


def test_files_around_a_subdirectory_are_all_judged() -> None:
    place = "lib/x86_64-linux-clang"
    files = [
        replace(library(name, "libX.so"), relative=f"{place}/{relative}")
        for name, relative in (("a.so", "a.so"), ("m.so", "sub/m.so"), ("z.so", "z.so"))
    ]
    (finding,) = judge_tree(*files)
    assert finding.what == "libX.so is nowhere; a.so needs it and 1 more"


def test_a_library_of_the_system_may_be_on_the_library_path() -> None:
    path = Path("/store/lib/libatomic.so.1")
    entry = PathEntry("/store/lib", runtimes=(FileFacts(path.name, path, 1),))
    needing = ElfFacts(Path("s"), 1, 64, True, EM_X86_64, 3, 0, needed=("libatomic.so.1",))
    system = FileFacts("lib/x86_64-linux-clang/libQnnSystem.so", Path("s"), 1, elf=needing)
    for entries, wanted in (((entry,), []), ((), ["QNN003"])):
        facts = EnvironmentFacts(
            "emulator",
            replace(HOST, libraries={"libatomic.so.1": None}),
            sdk_name="qnn-runtime",
            trees={"qnn-runtime": TreeFacts(Path("/sdk"), (system,))},
            variables=VariableFacts({}, entries),
        )
        policy, kinds = read_doctor_policy(), read_elf_policies()
        case = Case(facts, policy, find_fitness("emulator"), kinds)
        found = [finding for one in SYSTEM.find(case) for finding in SYSTEM.judge(one)]
        assert ids(found) == wanted
