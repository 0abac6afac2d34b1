"""Checks whose facts a test cannot make on this machine, or need no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.doctor.checks.device import DEVICES, Device
from provisioning.doctor.checks.elf import judge_defect
from provisioning.doctor.checks.files import NEEDS, find_needs, group_tree, judge_group
from provisioning.doctor.checks.host import MACHINE, SYSTEM, Machine, SystemLibrary
from provisioning.doctor.checks.python import PYTHON, Interpreter
from provisioning.doctor.checks.registry import Case
from provisioning.doctor.examine import find_fitness
from provisioning.doctor.facts import (
    DeviceFacts,
    EnvironmentFacts,
    FileFacts,
    HostFacts,
    PathEntry,
    PythonFacts,
    TreeFacts,
    VariableFacts,
)
from provisioning.doctor.finding import Finding, Severity
from provisioning.doctor.fitness import DevicePolicy
from provisioning.doctor.policies import read_doctor_policy, read_elf_policies
from provisioning.elf.facts import EM_X86_64, Defect, ElfError, ElfFacts

FITNESS = find_fitness("emulator")
HOST = HostFacts(
    system="Linux",
    machine="x86_64",
    glibc="2.36",
    cores=8,
    memory_gb=16,
    disk_free_gb=100,
    disk_path="/",
    cpu_flags=frozenset({"ssse3", "sse4_1"}),
    libraries={"libatomic.so.1": "/lib/libatomic.so.1"},
)
DEVICE = DeviceFacts(
    serial="abc",
    state="device",
    soc="SM8750",
    android="15",
    api_level=35,
    page_bytes=4096,
    free_mb=9000,
    is_root=True,
    directory="/data/local/tmp",
    libraries={"libQnnHtp.so": "v2.49.40.260810104044"},
)
POLICY = DevicePolicy(free_mb=500)


def ids(findings: Iterable[Finding]) -> list[str]:
    return [finding.id for finding in findings]


def test_a_fit_machine_has_no_finding() -> None:
    assert ids(MACHINE.judge(Machine(HOST, FITNESS))) == []


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        (replace(HOST, system="Darwin", machine="arm64"), "QNN001"),
        (replace(HOST, machine="aarch64", glibc="2.31"), "QNN001"),
        (replace(HOST, glibc="2.31"), "QNN002"),
        (replace(HOST, glibc=None), "QNN002"),
        (replace(HOST, cpu_flags=frozenset({"sse2"})), "QNN004"),
        (replace(HOST, disk_free_gb=0.5), "QNN005"),
        (replace(HOST, memory_gb=1.9), "QNN006"),
        (replace(HOST, cores=1), "QNN007"),
    ],
)
def test_one_lack_of_a_machine_gives_one_finding(host: HostFacts, wanted: str) -> None:
    assert ids(MACHINE.judge(Machine(host, FITNESS))) == [wanted]


def test_what_the_kernel_does_not_tell_is_no_fault() -> None:
    assert (
        ids(MACHINE.judge(Machine(replace(HOST, cpu_flags=frozenset(), memory_gb=0), FITNESS)))
        == []
    )


def test_a_library_of_the_system_that_is_not_there_names_its_package() -> None:
    there = SystemLibrary("libm.so.6", "/lib/libm.so.6", "libQnnSystem.so")
    assert ids(SYSTEM.judge(there)) == []
    (finding,) = SYSTEM.judge(SystemLibrary("libatomic.so.1", None, "libQnnSystem.so"))
    assert finding.id == "QNN003"
    assert "libQnnSystem.so" in finding.what
    assert "libatomic1" in finding.fix


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
        case = Case(facts, policy, FITNESS, kinds)
        found = [finding for one in SYSTEM.find(case) for finding in SYSTEM.judge(one)]
        assert ids(found) == wanted


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


def test_a_missing_library_is_told_once_with_who_needs_it() -> None:
    files = [
        library("libA.so", "libB.so"),
        library("libB.so", "libC.so"),
        library("libD.so", "libC.so"),
    ]
    (finding,) = judge_needs(files, {"libA.so", "libB.so", "libD.so"}, {})
    assert finding.id == "QNN216"
    assert finding.what == "libC.so is nowhere; libB.so, which libA.so needs, needs it and 1 more"


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


def test_libcxx_may_come_from_the_machine() -> None:
    files = [library("libQnnHtp.so", "libc++.so.1")]
    assert ids(judge_needs(files, set(), {"libc++.so.1": "/usr/lib/libc++.so.1"})) == []
    assert ids(judge_needs(files, set(), {"libc++.so.1": None})) == ["QNN229"]


def test_an_unreadable_file_has_its_own_id() -> None:
    assert judge_defect(ElfError(Path("lib.so"), Defect.UNREADABLE)).id == "QNN201"


@pytest.mark.parametrize("version", [(3, 9, 18), (3, 14, 0)])
def test_a_python_without_wheels(version: tuple[int, ...]) -> None:
    python = PythonFacts("/usr/bin/python", version)
    assert ids(PYTHON.judge(Interpreter(python, read_doctor_policy().python, "2.36"))) == ["QNN502"]


def judge(device: DeviceFacts, soc: str | None = "SM8750") -> list[Finding]:
    build = "v2.49.40.260810104044"
    return list(DEVICES.judge(Device(device, POLICY, 30, soc, build, 4096, needs_root=True)))


def test_a_fit_device_has_no_finding() -> None:
    assert judge(DEVICE) == []
    assert judge(DEVICE, soc=None) == []


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        (DeviceFacts("abc", "unauthorized"), "QNN801"),
        (DeviceFacts("abc", "offline"), "QNN801"),
        (replace(DEVICE, soc="SM8650"), "QNN802"),
        (replace(DEVICE, api_level=29), "QNN803"),
        (replace(DEVICE, free_mb=100), "QNN804"),
        (replace(DEVICE, is_root=False), "QNN805"),
        (replace(DEVICE, libraries={"libQnnHtp.so": "v2.37.0.250724175447"}), "QNN806"),
        (replace(DEVICE, page_bytes=16384), "QNN807"),
    ],
)
def test_a_device_never_makes_an_environment_unfit(device: DeviceFacts, wanted: str) -> None:
    (finding,) = judge(device)
    assert (finding.id, finding.severity) == (wanted, Severity.WARNING)
