"""What is judged: the things that the facts of one environment give, and when they are judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.doctor.checks.coherence import FAMILIES, Family
from provisioning.doctor.checks.device import DEVICES
from provisioning.doctor.checks.files import Group, find_groups, judge_group
from provisioning.doctor.checks.machine import CHECKOUTS, see_missing_library
from provisioning.doctor.checks.process import PYTHON, RUNTIMES, Runtime
from provisioning.doctor.checks.sdk import ADAPTOR, Adaptor, see_no_root
from provisioning.doctor.examine import judge_environment
from provisioning.doctor.facts import (
    CheckoutFacts,
    FileFacts,
    PathEntry,
    SdkFacts,
    TreeFacts,
    VariableFacts,
)
from provisioning.doctor.fitness import Fitness
from provisioning.doctor.policies import elf_policy, read_elf_policies
from provisioning.doctor.registry import Case, Finding
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, Defect, VersionNeed
from tests.unit.provisioning.doctor import cases
from tests.unit.provisioning.doctor.cases import OTHER, aligned, file, tree_of

HOST, ANDROID = "x86_64-linux-clang", "aarch64-android"
KINDS = read_elf_policies()
SOC = ("SM8750", 79)
QNN_SDK = SdkFacts(Path("/sdk"), is_directory=True, markers=("sdk.yaml",), version="2.49.40")
NO_SDK = replace(QNN_SDK, is_directory=False, markers=())


def ask(
    fitness: Fitness | None = None, *, soc: tuple[str, int] | None = None, **change: Any
) -> Case:
    """A case whose SDK is /sdk; ``change`` are its facts."""
    facts = replace(cases.case().facts, **{"sdk": QNN_SDK, "trees": {"qnn-sdk": TREE}, **change})
    return replace(cases.case(fitness or Fitness()), facts=facts, kinds=KINDS, soc=soc)


def device_file(name: str, align: int) -> FileFacts:
    return file(name, machine=EM_AARCH64, program_headers=aligned(align))


FILES = (file("libA.so"), file("libB.so", OTHER), file("libC.so"))
TREE = tree_of(*FILES)


def test_a_checkout_is_judged_for_the_machine_that_it_is_built_for() -> None:
    leftovers = (("flatcc/libflatccrt.a", "x86-64"), ("flatcc/b.a", "aarch64"))
    facts = CheckoutFacts(
        Path("/src/executorch"), is_directory=True, is_git=True, leftovers=leftovers
    )
    for kinds, machine in (((HOST,), "aarch64"), ((ANDROID,), "x86-64"), ((), "x86-64")):
        (finding,) = CHECKOUTS.judge_all(ask(Fitness(kinds=kinds), checkout=facts))
        assert (finding.id, finding.what.rpartition(" ")[2]) == ("QNN708", machine)
    assert list(CHECKOUTS.find(ask())) == []


def test_consequences_of_a_fault_are_not_reported() -> None:
    missing = cases.module("third-party/json", "missing")
    for change, ids_of_findings in (
        ({}, ["QNN704", "QNN705"]),
        ({"is_git": False}, ["QNN703"]),
        ({"is_git": False, "is_directory": False}, ["QNN701"]),
    ):
        checkout = cases.checkout(missing, **{"commit": "c", **change})
        assert [finding.id for finding in CHECKOUTS.judge(checkout)] == ids_of_findings


def test_a_library_family_of_an_sdk_is_checked_as_it_is_pushed() -> None:
    skels = Fitness(skels=True)
    sdk = replace(QNN_SDK, stamp="260810104044")
    assert list(FAMILIES.find(ask(skels, soc=SOC, sdk=sdk))) == [
        Family(FILES, "2.49.40", "260810104044", ("Htp",), SOC)
    ]
    assert list(FAMILIES.find(ask(soc=SOC))) == [Family(FILES, "2.49.40", None, (), None)]
    bare = replace(QNN_SDK, markers=())
    assert list(FAMILIES.find(ask(skels, soc=SOC, sdk=bare))) == [
        Family(FILES, "2.49.40", None, ("Htp",), None)
    ]
    assert list(FAMILIES.find(ask(skels, sdk=NO_SDK))) == []
    assert list(FAMILIES.find(ask(sdk=None, trees={"staging": TREE}))) == [
        Family(FILES, is_staged=True)
    ]


def test_a_device_is_compared_with_the_libraries_that_would_be_pushed() -> None:
    phone = replace(cases.PHONE, libraries={"libA.so": OTHER.text})
    tree = tree_of(*FILES, device_file("libD.so", 8192), device_file("libE.so", 4096))
    case = ask(devices=(phone, replace(phone, serial="def")), trees={"qnn-sdk": tree})
    assert [finding.id for finding in DEVICES.judge_all(case)] == ["QNN806", "QNN807"] * 2
    for trees in ({"qnn-sdk": tree_of(file("libA.so", None))}, {}):
        assert list(DEVICES.judge_all(ask(devices=(phone,), trees=trees))) == []
    assert list(DEVICES.find(ask())) == []


@pytest.mark.parametrize(
    ("trees", "version", "library"),
    [
        ((file("a", OTHER),), "2.49.40", "2.48.40"),
        ((), "2.49.40", "2.49.40"),
        ((), None, "an unknown version"),
    ],
)
def test_an_adaptor_is_judged_with_the_sdk_that_it_loads(
    trees: tuple[FileFacts, ...], version: str | None, library: str
) -> None:
    sdk = replace(QNN_SDK, version=version)
    case = ask(python=cases.PYTHON, sdk=sdk, trees={"qnn-sdk": tree_of(*trees)})
    assert list(ADAPTOR.find(case)) == [Adaptor(cases.PYTHON, sdk, library)]


def test_the_executorch_of_a_checkout_counts_before_the_installed_one() -> None:
    checkout = CheckoutFacts(Path("/e"), is_directory=True, version="1.6.0a0")
    nameless = replace(checkout, version="")
    python = replace(cases.PYTHON, distributions={})
    assert ask(python=cases.PYTHON).executorch == "1.5.1"
    assert ask(python=cases.PYTHON, checkout=checkout).executorch == "1.6.0a0"
    assert ask(python=python, checkout=nameless).executorch == ""
    assert ask().executorch == ""


def test_the_qnn_version_of_a_wheel_is_required_only_without_an_overlay() -> None:
    wheel: dict[str, Any] = {"sdk_name": "qnn-runtime", "trees": {"qnn-runtime": TREE}}
    built = replace(cases.PYTHON, checkout="1.5.1")
    for facts, qnn in (
        ({"python": cases.PYTHON, **wheel}, "2.49.40"),
        ({"python": cases.PYTHON, **wheel, "sdk": None}, ""),
        ({"python": built, **wheel}, ""),
        ({"python": cases.PYTHON}, ""),
    ):
        assert [subject.qnn for subject in PYTHON.find(ask(**facts))] == [qnn]


def test_a_missing_sdk_is_reported_as_the_first_acceptable_artifact() -> None:
    fitness = Fitness(roots=("android-ndk", "libcxx"), sdk=("qnn-sdk", "qnn-runtime"))
    case = ask(fitness, sdk_name="", roots={"libcxx": "/l"})
    assert [values["subject"] for values in see_no_root(case)] == ["android-ndk", "qnn-sdk"]
    assert [values["subject"] for values in see_no_root(ask(fitness))] == ["android-ndk", "libcxx"]


def needing(name: str, *versions: str, **change: Any) -> FileFacts:
    return file(name, version_needs=(VersionNeed("l", versions),), **change)


def test_the_first_libstdcxx_is_compared_with_the_highest_needs() -> None:
    tree = tree_of(
        needing("libA.so", "GLIBCXX_3.4.9", "CXXABI_1.3.9"),
        needing("libB.so", "GLIBCXX_3.4.21", "GCC_3.0"),
        needing("libC.so", "GLIBCXX_3.4.20", "GCC_3.0"),
        needing("libD.so", "GLIBCXX_9", machine=EM_AARCH64),
        replace(file("libE.so"), elf=None),
    )
    adaptor = needing("P.so", "CXXABI_1.3.10", "GLIBC_2.99")
    ours, foreign = file("libstdc++.so.6"), file("libstdc++.so.6", machine=EM_AARCH64)
    broken, gcc = replace(ours, elf=None, defect=Defect.EMPTY), file("libgcc_s.so.1")
    path = (
        PathEntry("/a", runtimes=(foreign,)),
        PathEntry("", runtimes=(ours, gcc)),
        PathEntry("/c", runtimes=(broken,)),
    )
    needs = {
        "GLIBCXX": ((3, 4, 21), "libB.so"),
        "CXXABI": ((1, 3, 10), "P.so"),
        "GCC": ((3, 0), "libB.so"),
    }
    facts_of_case: dict[str, Any] = {
        "trees": {"qnn-sdk": tree},
        "python": replace(cases.PYTHON, adaptor=adaptor),
        "variables": VariableFacts({}, path),
    }
    runs = Fitness(kinds=(HOST,))
    place = "an empty entry (the current directory)"
    assert list(RUNTIMES.find(ask(runs, **facts_of_case))) == [
        Runtime(place, ours, needs),
        Runtime(place, gcc, needs),
    ]
    bare = ask(runs, trees={}, variables=VariableFacts({}, path[2:]))
    assert list(RUNTIMES.find(bare)) == [Runtime("/c", broken, {})]
    assert list(RUNTIMES.find(ask(**facts_of_case))) == []
    assert list(RUNTIMES.find(ask(runs))) == []


def test_libraries_of_the_system_are_those_that_the_host_libraries_need() -> None:
    tree = tree_of(
        file("libA.so", needed=("libz.so.1", "libc.so.6", "libX.so")),
        file("libB.so", needed=("libz.so.1", "libm.so.6")),
        file("libC.so", needed=("libdl.so.2",), machine=EM_AARCH64),
        replace(file("libD.so"), elf=None),
    )
    libraries = {"libz.so.1": None, "libm.so.6": None, "libdl.so.2": None, "libX.so": None}
    host = replace(cases.HOST, libraries=libraries)
    case = ask(host=host, trees={"qnn-sdk": tree})
    libraries_and_users = [
        (values["subject"], values["user"]) for values in see_missing_library(case)
    ]
    assert libraries_and_users == [("libz.so.1", "libA.so"), ("libm.so.6", "libB.so")]
    path = VariableFacts({}, (PathEntry("/r", runtimes=(file("libm.so.6"),)),))
    listed = ask(host=host, trees={"qnn-sdk": tree}, variables=path)
    assert [values["subject"] for values in see_missing_library(listed)] == ["libz.so.1"]
    assert list(see_missing_library(replace(case, kinds={}))) == []
    assert list(see_missing_library(ask(host=host, trees={}))) == []


def test_files_are_judged_in_groups_that_one_loader_sees() -> None:
    library = file("libA.so", place=f"lib/{HOST}")
    up = f"${{ORIGIN}}/../../lib/{HOST}"
    tool = file("tool", place=f"bin/{HOST}", runpath=("$ORIGIN/../none", up))
    skel = file(
        "libS.so",
        place="lib/hexagon-v79/unsigned",
        machine=EM_QDSP6,
        flags=0x79,
        rpath=(f"${{ORIGIN}}/../../{HOST}",),
    )
    windows_library = file("libW.so", place="lib/windows")
    links = {"lib/libQnn.so.1": "libA.so"}
    cxx = TreeFacts(Path("/cxx"), (file("libc++.so.1"),), {"libc++.so": "libc++.so.1"})
    beside = (file("libB.so"), file("libC.so", machine=EM_AARCH64), replace(library, elf=None))
    case = ask(
        trees={
            "qnn-sdk": replace(tree_of(library, tool, skel, windows_library), links=links),
            "libcxx": cxx,
        },
        variables=VariableFacts({}, (PathEntry("/x", beside), PathEntry("/y", (file("libD.so"),)))),
        host=replace(cases.HOST, libraries={"libc++.so.1": "/l", "libz.so.1": "/z"}),
    )
    policy = msgspec.structs.replace(case.policy, host_libraries=("libc++.so.1", "libunwind.so.1"))
    near = {"libB.so", "libD.so", "libQnn.so.1"}
    brings = {"libc++.so.1": "/l", "libunwind.so.1": None}
    assert list(find_groups(replace(case, policy=policy))) == [
        Group([library], HOST, KINDS[HOST], 2, brings, near),
        Group([tool], HOST, KINDS[HOST], 2, brings, {*near, "libA.so"}),
        Group([skel], "hexagon-v79", elf_policy("hexagon-v79"), 3, brings, {*near, "libA.so"}),
        Group(cxx.files, HOST, KINDS[HOST], nearby=frozenset({"libc++.so"})),
    ]


@pytest.mark.parametrize(
    ("kinds", "target"),
    [
        ((HOST, "aarch64-oe-linux", "hexagon"), "aarch64-oe-linux"),
        ((HOST,), ANDROID),
        ((), ANDROID),
    ],
)
def test_staged_files_are_grouped_by_their_loader(kinds: tuple[str, ...], target: str) -> None:
    skel, other_skel = cases.skel("libS.so", 0x79), cases.skel("libT.so", 0x8075)
    core, broken = file("libA.so", machine=EM_AARCH64), replace(file("libB.so"), elf=None)
    case = ask(
        Fitness(kinds=kinds), sdk=NO_SDK, trees={"staging": tree_of(skel, core, other_skel, broken)}
    )
    assert list(find_groups(case)) == [
        Group([core, broken], target, KINDS[target], depth=0, knows_level="linux" in target),
        Group([other_skel], "hexagon-v75", elf_policy("hexagon-v75"), depth=0),
        Group([skel], "hexagon-v79", elf_policy("hexagon-v79"), depth=0),
    ]


def ids(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(finding.id, finding.subject) for finding in findings]


def test_files_of_a_group_and_the_needs_of_fitting_ones_are_checked() -> None:
    policy = msgspec.structs.replace(KINDS[HOST], unused=("libU*",))
    files = (
        file("libA.so", soname="libA.so", needed=("libB.so", "libc.so.6", "libX.so", "libN.so")),
        replace(file("libB.so"), elf=None, defect=Defect.EMPTY),
        replace(file("libC.so"), elf=None),
        file("libD.so", needed=("libY.so",), machine=EM_AARCH64),
        file("libU.so", needed=("libZ.so",)),
        file("libE.so", soname="libE.so", needed=("libX.so", "libH.so"), runpath=("$ORIGIN/..",)),
    )
    group = Group(files, HOST, policy, 0, {"libH.so": "/h"}, ("libN.so",))
    expected = [
        ("QNN202", "libB.so"),
        ("QNN212", "libD.so"),
        ("QNN217", "libE.so"),
        ("QNN216", "libX.so"),
    ]
    assert ids(judge_group(group)) == expected
    elsewhere = replace(group, kind="other", depth=1)
    assert ids(judge_group(elsewhere)) == [*expected[:2], ("QNN216", "libH.so"), expected[3]]


def test_the_glibc_of_the_machine_is_compared_with_what_libraries_need() -> None:
    library = needing("libA.so", "GLIBC_2.35", place=f"lib/{HOST}", soname="libA.so")
    trees = {"qnn-sdk": tree_of(library)}
    for glibc, ids_of_findings in (
        ("2.34", ["QNN219"]),
        ("2.35", []),
        (None, ["QNN002", "QNN219"]),
    ):
        case = ask(host=replace(cases.HOST, glibc=glibc), trees=trees)
        assert [finding.id for finding in judge_environment(case)] == ids_of_findings
    bare = replace(ask(trees={}, sdk=None), kinds={ANDROID: KINDS[ANDROID]})
    assert judge_environment(bare) == []


def test_findings_come_once_in_the_order_of_ids_and_can_be_printed() -> None:
    files = [
        replace(file(name, place=f"lib/{HOST}"), elf=None, defect=Defect.EMPTY)
        for name in ("libB.so", "lib\udcff.so", "libB.so")
    ]
    case = ask(trees={"qnn-sdk": tree_of(*files)}, host=replace(cases.HOST, machine="x"))
    findings = judge_environment(case)
    assert [(finding.id, finding.subject) for finding in findings] == [
        ("QNN001", "Linux x"),
        ("QNN202", "libB.so"),
        ("QNN202", "lib\\udcff.so"),
    ]
