"""What lies at an edge of a check of a tree: a thing a row, and all that is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.doctor.checks.coherence import Family
from provisioning.doctor.checks.elf import Placed
from provisioning.doctor.checks.files import Need
from provisioning.doctor.elf_policy import ElfPolicy
from provisioning.doctor.facts import (
    FileFacts,
    InstallationFacts,
)
from provisioning.doctor.fitness import Fitness
from provisioning.elf.facts import (
    PT_NULL,
    Checksum,
    Defect,
    ElfError,
    ProgramHeader,
)
from provisioning.elf.qnn_build import QnnBuild
from tests.unit.provisioning.doctor.cases import (
    BOTH,
    BUILD,
    DROID,
    DSP,
    LATER,
    NEWER,
    NOTE,
    PAIR,
    PLAIN,
    aligned,
    case,
    describe,
    elf,
    file,
    lowered,
    needing,
    replace_runtime,
    row,
    sdk,
    skel,
    staging,
    tree_of,
)

AT = "libQnnA.so | /sdk/libQnnA.so"
AGAIN = "fetch the artifact again; a verified download cannot contain such a file"
SKEL = Path("/libQnnHtpV75Skel.so")
LPAI = "libQnnLpaiStub.so"
HALF_BUILD = QnnBuild("2.49.40", None, "2.49.40")
OTHER_HALF = QnnBuild("2.48.40", None, "2.48.40")


def policy(of: ElfPolicy, **change: Any) -> ElfPolicy:
    return msgspec.structs.replace(of, **change)


def null(kind: int) -> tuple[ProgramHeader, ...]:
    """A program header of PT_NULL with Qualcomm's segment type."""
    return (ProgramHeader(PT_NULL, kind << 24, 0, 0, 0, 9, 9, 0),)


def needed_by(*users: str, libcxx: bool = False) -> Need:
    return Need("l", list(users), Path("/a"), users[0], libcxx)


def family(*files: FileFacts, **change: Any) -> Family:
    return Family(files)._replace(**change)


SDKS = [
    row(
        "QNN103",
        sdk(version=None, fault="no"),
        "sdk.yaml | /sdk/sdk.yaml | reason=: it cannot be read: no",
    ),
    row("QNN104", sdk(case(pin=""))),
    row("QNN104", sdk(case(pin="2.37.1"), version=None)),
    row("QNN105", sdk(case(minimum="2.39"), version=None)),
    row("QNN105", sdk()),
    row(
        "QNN106",
        sdk(case(Fitness(libraries={"lib/a": (), "lib/b": ()})), directories=("lib/c",)),
        "lib/a | /sdk",
        "lib/b | /sdk",
    ),
    row(
        "QNN107",
        sdk(
            case(Fitness(libraries={"lib/b": ("x",), "lib/a": ("x", "y", "z")})),
            directories=("lib/a",),
            tree=replace(tree_of(file("y", place="lib/a")), links={"lib/a/z": "y"}),
        ),
        "x | /sdk/lib/a | directory=lib/a",
    ),
    row(
        "QNN108",
        sdk(case(Fitness(headers=True), headers=("a", "b", "c")), headers=("b",)),
        "include/QNN | /sdk/include/QNN | names=a, c",
    ),
    row("QNN108", sdk(case(Fitness(headers=False), headers=("a",)))),
    row("QNN109", sdk(case(Fitness(headers=False)))),
    row("QNN110", sdk(api_version="2.39.0")),
    row("QNN110", sdk(library_api="2.39.0")),
    row("QNN110", sdk(api_version="2.37.1", library_api="2.38.0")),
    *(
        row(
            "QNN110",
            sdk(api_version=api, library_api="2.38.0"),
            f"QnnCommon.h | /sdk/include/QNN/QnnCommon.h | headers={api} | library=2.38.0",
        )
        for api in ("1.38.0", "3.0.0")
    ),
    row(
        "QNN112",
        sdk(
            tree=replace(
                tree_of(),
                links={"libQnnB.so": "b", "a/libQnnA.so": "c", "libQnnC.so": "d"},
                dangling=frozenset({"libQnnB.so", "a/libQnnA.so"}),
            )
        ),
        "libQnnA.so | /sdk/a/libQnnA.so | target=c",
        "libQnnB.so | /sdk/libQnnB.so | target=b",
    ),
    row("QNN113", InstallationFacts("qnn-sdk", Path("/q"), ("sdk.yaml",))),
    row("QNN113", InstallationFacts("android-ndk", Path("/q"), ("x",))),
    row("QNN113", InstallationFacts("executorch", Path("/q"), ("x",))),
    row("QNN113", InstallationFacts("hexagon-sdk", Path("/q"))),
    row(
        "QNN113",
        InstallationFacts("my-qnn-sdk", Path("/q"), ("x", "y"), "MY"),
        "my-qnn-sdk | /q | missing=x, y | variable=MY",
    ),
    row("QNN416", InstallationFacts("android-ndk", Path("/n"), (), "ANDROID_NDK_ROOT", "/n")),
]

ELVES = [
    row(
        "QNN205",
        ElfError(Path("/sdk/lib.so"), Defect.NOT_ELF, "it begins with PK"),
        f"lib.so | /sdk/lib.so | reason= (it begins with PK) | repair={AGAIN}",
    ),
    row("QNN212", Placed(elf(), policy(PLAIN, machine=8)), f"{AT} | machine=x86-64 | wanted=8"),
    row("QNN213", Placed(elf(type=9), PLAIN), f"{AT} | kind=of e_type 9"),
    row("QNN213", Placed(elf(type=2), policy(PLAIN, types=(2, 3)))),
    row("QNN214", Placed(elf(flags=0x73), PLAIN)),
    row("QNN215", Placed(elf(path=Path("/libc++.so.1.0"), soname="libc++.so.1"), PLAIN)),
    row(
        "QNN215",
        Placed(elf(path=Path("/libc++.so.10"), soname="libc++.so.1"), PLAIN),
        "libc++.so.10 | /libc++.so.10 | soname=libc++.so.1",
    ),
    row("QNN215", Placed(elf(soname="b"), policy(PLAIN, sonames={"libQnnA.so": "b"}))),
    row(
        "QNN215",
        Placed(elf(), policy(PLAIN, sonames={"libQnnA.so": "b"})),
        f"{AT} | soname=libQnnA.so",
    ),
    row(
        "QNN217",
        Placed(elf(rpath=("lib", "", "/lib", "$ORIGIN"), runpath=(".", "$ORIGINAL")), PLAIN),
        f"{AT} | entry=lib",
        f"{AT} | entry=.",
        f"{AT} | entry=$ORIGINAL",
    ),
    row(
        "QNN217",
        Placed(elf(runpath=("${ORIGIN}/a/../..", "$ORIGIN/../../a/b/c")), PLAIN, 1),
        f"{AT} | entry=$ORIGIN/../../a/b/c",
    ),
    row("QNN217", Placed(elf(runpath=("$ORIGIN/a/..",)), PLAIN, 0)),
    row(
        "QNN217",
        Placed(elf(runpath=("$ORIGIN/a/../..",)), PLAIN, 0),
        f"{AT} | entry=$ORIGIN/a/../..",
    ),
    row("QNN217", Placed(elf(runpath=("$ORIGIN/..",)), PLAIN, 0), f"{AT} | entry=$ORIGIN/.."),
    row(
        "QNN218",
        Placed(elf(rpath=("",), runpath=("lib", "/lib")), PLAIN),
        f"{AT} | entry=the current directory",
        f"{AT} | entry=/lib",
    ),
    row("QNN219", needing("GLIBC_2.35")._replace(policy=DROID)),
    row("QNN219", needing("GLIBC_PRIVATE")),
    row("QNN222", Placed(elf(android=NOTE), DROID)),
    row("QNN223", Placed(elf(), DROID)),
    row("QNN223", Placed(elf(android=NOTE._replace(api_level=99)), PLAIN)),
    row("QNN225", Placed(elf(program_headers=()), DROID)),
    row("QNN225", Placed(elf(program_headers=aligned(1)), DROID), f"{AT} | align=1 | wanted=16384"),
    row("QNN225", Placed(elf(program_headers=aligned(1)), policy(DROID, android_api=None))),
    row("QNN230", Placed(elf(), DSP)),
    row("QNN231", Placed(elf(path=SKEL, checksum=Checksum(1, 1)), DSP)),
    row("QNN231", Placed(elf(path=SKEL, program_headers=null(2)), DSP)),
    row("QNN231", Placed(elf(path=SKEL, program_headers=(*null(2), *null(3))), DSP)),
    row("QNN231", Placed(elf(path=SKEL, program_headers=null(3)), DSP), f"{SKEL.name} | {SKEL}"),
    row("QNN231", Placed(elf(path=Path("/libQnnHtpV75Stub.so")), DSP)),
    row("QNN232", Placed(elf(needed=("libc.so.6",)), PLAIN)),
    row(
        "QNN232",
        Placed(elf(needed=("libc.so", "libm.so.6", "libc.so.6")), DROID),
        f"{AT} | needed=libm.so.6",
    ),
    row("QNN233", Placed(elf(), PLAIN)),
    row("QNN216", needed_by("a", "b", "c"), "l | /a | chain=a | others= and 2 more | user=a"),
    row("QNN229", needed_by("a", "b", libcxx=True), "l | /a | chain=a | others= and 1 more"),
]

FAMILIES = [
    row("QNN301", family(file("a"), file("b", None), file("c", HALF_BUILD))),
    row(
        "QNN301",
        family(file("a", LATER), file("b"), file("c"), file("d", OTHER_HALF)),
        f"a | /sdk/lib/a | build={LATER.text} | usual={BUILD.text}",
        f"d | /sdk/lib/d | build=2.48.40 | usual={BUILD.text}",
    ),
    row("QNN301", family(file("a", HALF_BUILD), file("b", OTHER_HALF))),
    row(
        "QNN302",
        family(file("a"), version="2.48.40"),
        f"QNN libraries | /sdk/lib | stated=2.48.40 | usual={BUILD.text}",
    ),
    row("QNN302", family(file("a"), version="2.49.40")),
    row("QNN302", family(file("a"))),
    row("QNN302", family(file("a", None), version="2.49.40", stamp="1")),
    row(
        "QNN302",
        family(file("a"), stamp="260810104045"),
        f"QNN libraries | /sdk/lib | stated=260810104045 | usual={BUILD.text}",
    ),
    row("QNN303", family(file("libQnnA.so", None), file("b"))),
    row("QNN303", family()),
    row(
        "QNN303",
        family(file("b", None), file("libQnnA.so", OTHER_HALF, "c")),
        "QNN libraries | /sdk/c",
    ),
    *(
        row(
            "QNN314",
            family(file("a"), file(name, None)),
            f"{name} | /sdk/lib/{name} | usual={BUILD.text}",
        )
        for name in ("libQnnHtpPrepare.so", "libHtpPrepare.so", PAIR[0], PAIR[1])
    ),
    row("QNN314", family(file("a"), file("libQnnHtpV79.so", None))),
    row("QNN314", family(file("a"), file("libQnnHtpStub.so", None))),
    row("QNN314", family(file("a"), file("libHtpPrepare2.so", None))),
    row("QNN314", family(file("a"), file("libQnnHtp.so", None, little_endian=False))),
    row("QNN314", family(file("a"), replace(file("libQnnHtp.so", None), elf=None))),
    row("QNN314", family(file("libQnnHtp.so", None))),
    row(
        "QNN304",
        family(file("a"), file(LPAI), file(PAIR[0])),
        f"{LPAI} | /sdk/lib/{LPAI} | directory=lpai-vN | skel=libQnnLpaiSkel.so",
        f"{PAIR[0]} | /sdk/lib/{PAIR[0]} | directory=hexagon-v79 | skel={PAIR[1]}",
    ),
    row("QNN304", family(file(LPAI), backends=("Htp",))),
    row("QNN304", family(file(PAIR[0]), backends=())),
    row("QNN304", family(file(PAIR[1]))),
    row("QNN305", family(skel(PAIR[1], 0x75))),
    row("QNN305", family(skel(PAIR[1], 0x79, "lib/hexagon-v79/unsigned"))),
    row("QNN305", family(skel(PAIR[1], 0x75, "lib/hexagon-v75/unsigned"), backends=("Lpai",))),
    row("QNN305", family(skel("libQnnLpaiSkel.so", 0x75, "lib/hexagon-v75"))),
    row("QNN305", family(skel("libQnnHtpPrepare.so", 0x75, "lib/hexagon-v75"))),
    row("QNN305", family(skel(PAIR[0], 0x75, "lib/hexagon-v75"))),
    row("QNN305", family(replace(skel(PAIR[1], 0x75, "lib/hexagon-v75"), elf=None))),
    row("QNN305", family(file(PAIR[1], place="lib/hexagon-v75", flags=0x75))),
    row(
        "QNN305",
        family(skel("libQnnHtpV79.so", 0x68, "hexagon-v68")),
        "libQnnHtpV79.so | /sdk/hexagon-v68/libQnnHtpV79.so"
        " | directory=hexagon-v68 | flags=68 | version=79",
    ),
    row("QNN306", family(skel(PAIR[1], 0x75, "lib/hexagon-v75"))),
    row("QNN306", family(skel(PAIR[1], 0x75, "lib/hexagon-v79"))),
    row("QNN307", family(skel(PAIR[1], 0x79))),
]

STAGED = [
    row("QNN309", staging()._replace(wanted=()), "staging | /sdk | first=library"),
    row(
        "QNN310",
        staging(
            links={"a/libQnnHtp.so": "x", "libQnnSystem.so": "y"},
            dangling=frozenset({"libQnnSystem.so"}),
        ),
        "libQnnSystem.so | /sdk",
    ),
    row("QNN310", staging("x"), "libQnnHtp.so | /sdk", "libQnnSystem.so | /sdk"),
    row("QNN311", staging("libQnnSystem.so")),
    row("QNN311", staging(*BOTH, soc=True)),
    row("QNN311", staging(*BOTH, PAIR[1])),
    row("QNN311", staging(*BOTH, "libQnnHtpPrepare.so"), "libQnnHtpVNNStub.so | /sdk"),
    row("QNN312", staging(*BOTH)),
    row("QNN312", staging(*BOTH, soc=True)._replace(wanted=("libQnnSystem.so",))),
    row("QNN312", staging(*BOTH, PAIR[0], soc=True)),
    row("QNN312", staging(*BOTH, PAIR[1], soc=True), f"{PAIR[0]} | /sdk | hexagon=79 | soc=SM8750"),
    row(
        "QNN312",
        staging(*BOTH, soc=True),
        f"{PAIR[0]} and {PAIR[1]} | /sdk | hexagon=79 | soc=SM8750",
    ),
    row("QNN313", staging(*BOTH, lowered=lowered(None))),
    row("QNN313", staging(*BOTH, lowered=lowered(BUILD))),
    row("QNN313", staging(lowered=lowered(NEWER))),
    row(
        "QNN313",
        staging(*BOTH, lowered=(*lowered(BUILD), *lowered(None), *lowered(NEWER))),
        "m.pte | /sdk/m.pte | compiler=2.50.0 | runtime=2.49.40",
    ),
    row("QNN315", staging(lowered=lowered(BUILD))),
    row("QNN315", replace_runtime(staging(*BOTH, lowered=lowered(BUILD)), "2.37.1")),
    row("QNN315", replace_runtime(staging(lowered=lowered(None)), "2.37.1")),
    row(
        "QNN315",
        replace_runtime(staging(lowered=(*lowered(None), *lowered(BUILD))), "2.37.1"),
        "m.pte | /sdk/m.pte | compiler=2.49.40 | runtime=2.37.1",
    ),
]


@pytest.mark.parametrize(("code", "thing", "told"), [*SDKS, *ELVES, *FAMILIES, *STAGED])
def test_what_a_check_tells_at_its_edge(code: str, thing: Any, told: list[str]) -> None:
    assert list(describe(code, thing)) == told
