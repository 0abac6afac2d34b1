"""Things at the edge of a check of a tree; edges_of_trees.txt says what each row tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from provisioning.doctor.checks.coherence import Family
from provisioning.doctor.checks.elf import Placed
from provisioning.doctor.checks.files import Need
from provisioning.doctor.facts import (
    FileFacts,
    InstallationFacts,
)
from provisioning.doctor.fitness import ElfPolicy, Fitness
from provisioning.elf.facts import (
    EM_QDSP6,
    PT_NULL,
    Checksum,
    Defect,
    ElfError,
    Genuine,
    ProgramHeader,
    Proof,
)
from provisioning.elf.programs import Target
from provisioning.elf.qnn_build import QnnBuild
from tests.unit.provisioning.doctor.cases import (
    BARE_STAMP,
    BOTH,
    BUILD,
    DROID,
    DSP,
    LATER,
    NEWER,
    NOTE,
    OLD_PAIR,
    OTHER,
    PAIR,
    PLAIN,
    aligned,
    bare_skel,
    case,
    elf,
    file,
    lowered,
    needing,
    read_snapshot,
    sdk,
    skel,
    staging,
    tell,
    tree_of,
)

SKEL = Path("/libQnnHtpV75Skel.so")
LPAI, LPAI_79 = "libQnnLpaiStub.so", "libQnnLpaiV79Stub.so"
V75 = "libQnnHtpV75Skel.so"
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


def staged_family(*files: FileFacts, **change: Any) -> Family:
    return family(*files, is_staged=True, **change)


def within(*wanted: str, **change: Any) -> Placed:
    """A library next to others, which need the names ``wanted`` and do not find them."""
    return Placed(elf(**change), PLAIN, wanted=wanted)


SDKS = [
    ("QNN103", sdk(version=None, fault="no")),
    ("QNN104", sdk(case(pin=""))),
    ("QNN104", sdk(case(pin="2.37.1"), version=None)),
    ("QNN105", sdk(case(minimum="2.39"), version=None)),
    ("QNN105", sdk()),
    ("QNN106", sdk(case(Fitness(libraries={"lib/a": (), "lib/b": ()})), directories=("lib/c",))),
    (
        "QNN107",
        sdk(
            case(Fitness(libraries={"lib/b": ("x",), "lib/a": ("x", "y", "z")})),
            directories=("lib/a",),
            tree=replace(tree_of(file("y", place="lib/a")), links={"lib/a/z": "y"}),
        ),
    ),
    ("QNN108", sdk(case(Fitness(headers=True), headers=("a", "b", "c")), headers=("b",))),
    ("QNN108", sdk(case(Fitness(headers=False), headers=("a",)))),
    ("QNN109", sdk(case(Fitness(headers=False)))),
    ("QNN110", sdk(api_version="2.39.0")),
    ("QNN110", sdk(library_api="2.39.0")),
    ("QNN110", sdk(api_version="2.37.1", library_api="2.38.0")),
    *(("QNN110", sdk(api_version=api, library_api="2.38.0")) for api in ("1.38.0", "3.0.0")),
    (
        "QNN112",
        sdk(
            tree=replace(
                tree_of(),
                links={"libQnnB.so": "b", "a/libQnnA.so": "c", "libQnnC.so": "d"},
                dangling=frozenset({"libQnnB.so", "a/libQnnA.so"}),
            )
        ),
    ),
    ("QNN113", InstallationFacts("qnn-sdk", Path("/q"), ("sdk.yaml",))),
    ("QNN113", InstallationFacts("android-ndk", Path("/q"), ("x",))),
    ("QNN113", InstallationFacts("executorch", Path("/q"), ("x",))),
    ("QNN113", InstallationFacts("hexagon-sdk", Path("/q"))),
    ("QNN113", InstallationFacts("my-qnn-sdk", Path("/q"), ("x", "y"), "MY")),
    ("QNN416", InstallationFacts("android-ndk", Path("/n"), (), "ANDROID_NDK_ROOT", "/n")),
]

ELVES = [
    ("QNN205", ElfError(Path("/sdk/lib.so"), Defect.NOT_ELF, "it starts with PK")),
    ("QNN212", Placed(elf(), policy(PLAIN, machine=8))),
    ("QNN213", Placed(elf(type=9), PLAIN)),
    ("QNN213", Placed(elf(type=2), policy(PLAIN, types=(2, 3)))),
    ("QNN214", Placed(elf(flags=0x73), PLAIN)),
    ("QNN215", Placed(elf(path=Path("/libc++.so.1.0"), soname="libc++.so.1"), PLAIN)),
    ("QNN215", Placed(elf(path=Path("/libc++.so.10"), soname="libc++.so.1"), PLAIN)),
    ("QNN215", Placed(elf(soname="b"), policy(PLAIN, sonames={"libQnnA.so": "b"}))),
    ("QNN215", Placed(elf(), policy(PLAIN, sonames={"libQnnA.so": "b"}))),
    # Next to others it is a fault only where they need the name, or where it is another's name.
    ("QNN215", within(soname="libQnnB.so")),
    ("QNN215", within("libQnnB.so", soname="libQnnB.so")),
    ("QNN215", within(path=Path("/libQnnHtp.so"), soname="libQnnGpu.so")),
    ("QNN215", within(path=Path("/libQnnHtp2.so"), soname="libQnnHtp.so")),
    ("QNN215", within(path=Path("/libQnnHtpV75Skel.so"), soname="libQnnHtpV75Stub.so")),
    ("QNN215", within(path=Path("/libQnnHtpV75Skel.so"), soname="libQnnHtpV73Skel.so")),
    ("QNN215", within(path=Path("/libQnnLpaiV79Skel_v5.so"), soname="libQnnLpaiV79Skel.so")),
    (
        "QNN217",
        Placed(elf(rpath=("lib", "", "/lib", "$ORIGIN"), runpath=(".", "$ORIGINAL")), PLAIN),
    ),
    ("QNN217", Placed(elf(runpath=("${ORIGIN}/a/../..", "$ORIGIN/../../a/b/c")), PLAIN, 1)),
    ("QNN217", Placed(elf(runpath=("$ORIGIN/a/..",)), PLAIN, 0)),
    ("QNN217", Placed(elf(runpath=("$ORIGIN/a/../..",)), PLAIN, 0)),
    ("QNN217", Placed(elf(runpath=("$ORIGIN/..",)), PLAIN, 0)),
    ("QNN218", Placed(elf(rpath=("",), runpath=("lib", "/lib")), PLAIN)),
    ("QNN219", needing("GLIBC_2.35")._replace(policy=DROID)),
    ("QNN219", needing("GLIBC_PRIVATE")),
    ("QNN222", Placed(elf(android=NOTE), DROID)),
    ("QNN223", Placed(elf(), DROID)),
    ("QNN223", Placed(elf(android=NOTE._replace(api_level=99)), PLAIN)),
    ("QNN225", Placed(elf(program_headers=()), DROID)),
    ("QNN225", Placed(elf(program_headers=aligned(1)), DROID)),
    ("QNN225", Placed(elf(program_headers=aligned(1)), policy(DROID, android_api=None))),
    ("QNN230", Placed(elf(), DSP)),
    ("QNN230", Placed(elf(checksum=Checksum(1, 1)), DSP)),
    ("QNN236", Placed(elf(checksum=Checksum(1, 1)), DSP)),
    ("QNN236", Placed(elf(), DSP)),
    ("QNN231", bare_skel(BUILD)),
    *(
        (code, Placed(elf(path=SKEL, machine=EM_QDSP6, **change), DSP, build=build))
        for code, build in (("QNN231", BUILD), ("QNN235", QnnBuild("2.39", "1", "v2.39.1")))
        for change in (
            {"checksum": Checksum(1, 1)},
            {"program_headers": null(2)},
            {"program_headers": (*null(2), *null(3))},
            {"program_headers": null(3)},
        )
    ),
    *(
        (code, bare_skel(build, name))
        for code in ("QNN231", "QNN235")
        for build, name in (
            (None, SKEL.name),
            (BARE_STAMP, SKEL.name),
            (BUILD, "libQnnHtpV75Stub.so"),
            (BUILD, "libQnnLpaiSkel.so"),
            (BUILD, "libQnnDspV66Skel.so"),
            (BUILD, SKEL.name),
            (QnnBuild("2.37.0", "250724175447", "v2.37.0.250724175447_124859"), SKEL.name),
        )
    ),
    ("QNN232", Placed(elf(needed=("libc.so.6",)), PLAIN)),
    ("QNN232", Placed(elf(needed=("libc.so", "libm.so.6", "libc.so.6")), DROID)),
    ("QNN233", Placed(elf(), PLAIN)),
    ("QNN216", needed_by("a", "b", "c")),
    ("QNN229", needed_by("a", "b", libcxx=True)),
]

FAMILIES = [
    ("QNN301", family(file("a"), file("b", None), file("libQnnC.so", HALF_BUILD))),
    (
        "QNN301",
        family(file("libQnnA.so", LATER), file("b"), file("c"), file("libGenie.so", OTHER_HALF)),
    ),
    ("QNN301", family(file("a", HALF_BUILD), file("libQnnB.so", OTHER_HALF))),
    ("QNN302", family(file("a"), version="2.48.40")),
    ("QNN302", family(file("a"), version="2.49.40")),
    ("QNN302", family(file("a"))),
    ("QNN302", family(file("a", None), version="2.49.40", stamp="1")),
    ("QNN302", family(file("a"), stamp="260810104045")),
    ("QNN303", family(file("libQnnA.so", None), file("b"))),
    ("QNN303", family()),
    ("QNN303", family(file("b", None), file("libQnnA.so", OTHER_HALF, "c"))),
    *(
        ("QNN314", family(file("a"), file(name, None)))
        for name in ("libQnnHtpPrepare.so", "libHtpPrepare.so", PAIR[0], PAIR[1])
    ),
    ("QNN314", family(file("a"), file("libQnnHtpV79.so", None))),
    ("QNN314", family(file("a"), file("libQnnHtpStub.so", None))),
    ("QNN314", family(file("a"), file("libHtpPrepare2.so", None))),
    ("QNN314", family(file("a"), file("libQnnHtp.so", None, little_endian=False))),
    ("QNN314", family(file("a"), replace(file("libQnnHtp.so", None), elf=None))),
    ("QNN314", family(file("libQnnHtp.so", None))),
    ("QNN304", family(file("a"), file(LPAI), file(PAIR[0]))),
    ("QNN304", family(file(LPAI), backends=("Htp",))),
    ("QNN304", family(file(PAIR[0]), backends=())),
    ("QNN304", family(file(PAIR[1]))),
    ("QNN304", staged_family(file(PAIR[0]))),
    ("QNN304", staged_family(file(PAIR[0]), skel(V75, 0x75))),
    ("QNN304", staged_family(file(PAIR[0]), skel(V75, 0x75), hexagon="75")),
    ("QNN304", staged_family(file(PAIR[0]), skel(V75, 0x75), hexagon="79")),
    ("QNN304", family(file(LPAI_79), skel("libQnnLpaiV79Skel_v5.so", 0x79))),
    ("QNN304", family(file(LPAI_79), skel("libQnnLpaiSkel.so", 0x79))),
    ("QNN317", staged_family(file(PAIR[0]), file(LPAI), hexagon="75")),
    ("QNN317", family(file(PAIR[0]))),
    ("QNN317", staged_family(file(PAIR[0]), file("libQnnHtpV75Stub.so"), skel("libX.so", 1))),
    ("QNN301", family(*OLD_PAIR, file("libQnnSystem.so"))),
    ("QNN316", family(*OLD_PAIR, file("libQnnSystem.so"))),
    ("QNN301", family(file("a"), file("b"), file("libQnnSystem.so", OTHER))),
    ("QNN316", family(file("a"), file("b"), file("libQnnSystem.so", OTHER))),
    ("QNN305", family(skel(PAIR[1], 0x75))),
    ("QNN305", family(skel(PAIR[1], 0x79, "lib/hexagon-v79/unsigned"))),
    ("QNN305", family(skel(PAIR[1], 0x75, "lib/hexagon-v75/unsigned"), backends=("Lpai",))),
    ("QNN305", family(skel("libQnnLpaiSkel.so", 0x75, "lib/hexagon-v75"))),
    ("QNN305", family(skel("libQnnHtpPrepare.so", 0x75, "lib/hexagon-v75"))),
    ("QNN305", family(skel(PAIR[0], 0x75, "lib/hexagon-v75"))),
    ("QNN305", family(replace(skel(PAIR[1], 0x75, "lib/hexagon-v75"), elf=None))),
    ("QNN305", family(file(PAIR[1], place="lib/hexagon-v75", flags=0x75))),
    ("QNN305", family(skel("libQnnHtpV79.so", 0x68, "hexagon-v68"))),
    ("QNN306", family(skel(PAIR[1], 0x75, "lib/hexagon-v75"))),
    ("QNN306", family(skel(PAIR[1], 0x75, "lib/hexagon-v79"))),
    ("QNN307", family(skel(PAIR[1], 0x79))),
    *(
        ("QNN319", family(replace(one, proof=Proof(Genuine.NOT_COVERED, "a.cat", "so"))))
        for one in (
            file(V75, machine=EM_QDSP6, flags=0x75, checksum=Checksum(1, 1)),
            file(V75, machine=EM_QDSP6, flags=0x73, checksum=Checksum(1, 1)),
            file("libCalculator_skel.so", machine=EM_QDSP6, checksum=Checksum(1, 1)),
            replace(skel(V75, 0x75), elf=None),
        )
    ),
    ("QNN306", staged_family(file("libQnnHtpV75Stub.so"), file("libQnnHtpV75.so"))),
    ("QNN306", staged_family(file("libQnnLpaiV79Skel.so"), file("libother.so"))),
    ("QNN306", staged_family(replace(file(V75), elf=None), file(PAIR[1]))),
    ("QNN306", family(file(V75))),
]

CHANGED = elf(path=SKEL, machine=EM_QDSP6, checksum=Checksum(1, 2))
ELVES += [
    ("QNN230", Placed(CHANGED, DSP, proof=Proof(Genuine.NOT_COVERED, "a.cat", "so"))),
    ("QNN230", Placed(CHANGED, DSP, proof=Proof(Genuine.NOT_COVERED, "a.cat", listed="5e"))),
    *(
        ("QNN231", Placed(one, DSP, build=BUILD))
        for one in (
            elf(path=SKEL, machine=EM_QDSP6),
            elf(path=SKEL, machine=EM_QDSP6, program_headers=null(2)),
            elf(path=SKEL, machine=EM_QDSP6, checksum=Checksum(1, 1)),
            elf(path=Path("/libQnnHtp.so"), machine=EM_QDSP6),
            elf(path=SKEL),
        )
    ),
]

STAGED = [
    (
        "QNN300",
        staging(
            *BOTH,
            links={"m.pte": "x", "a/libB.so": "../x", "libA.so": "y", "libC.so": "libQnnHtp.so"},
            dangling=frozenset({"m.pte", "a/libB.so", "libA.so"}),
        ),
    ),
    ("QNN309", staging(wanted=())),
    (
        "QNN310",
        staging(
            links={"a/libQnnHtp.so": "x", "libQnnSystem.so": "y"},
            dangling=frozenset({"libQnnSystem.so"}),
        ),
    ),
    ("QNN310", staging("x")),
    ("QNN311", staging("libQnnSystem.so")),
    ("QNN311", staging(*BOTH, soc=True)),
    ("QNN311", staging(*BOTH, PAIR[1])),
    ("QNN311", staging(*BOTH, "libQnnHtpPrepare.so")),
    ("QNN312", staging(*BOTH)),
    ("QNN312", staging(*BOTH, soc=True, wanted=("libQnnSystem.so",))),
    ("QNN312", staging(*BOTH, PAIR[0], soc=True)),
    ("QNN312", staging(*BOTH, PAIR[1], soc=True)),
    ("QNN312", staging(*BOTH, soc=True)),
    ("QNN313", staging(*BOTH, lowered=lowered(None))),
    ("QNN313", staging(*BOTH, lowered=lowered(BUILD))),
    ("QNN313", staging(lowered=lowered(NEWER))),
    ("QNN313", staging(*BOTH, lowered=(*lowered(BUILD), *lowered(None), *lowered(NEWER)))),
    ("QNN315", staging(lowered=lowered(BUILD))),
    ("QNN315", staging(*BOTH, lowered=lowered(BUILD), runtime="2.37.1")),
    ("QNN315", staging(lowered=lowered(None), runtime="2.37.1")),
    ("QNN315", staging(lowered=(*lowered(None), *lowered(BUILD)), runtime="2.37.1")),
]

OLDER = lowered(None, targets=(Target("SM8650", 75, 8),))
STAGED += [
    ("QNN323", staging(*BOTH, lowered=OLDER)),
    ("QNN323", staging(*BOTH, soc=True, lowered=OLDER)),
    ("QNN323", staging(*BOTH, soc=True, lowered=lowered(None))),
    ("QNN324", staging(*BOTH, soc=True, lowered=lowered(None))),
    ("QNN324", staging(*BOTH, lowered=OLDER)),
]

ROWS = [*SDKS, *ELVES, *FAMILIES, *STAGED]


def test_what_a_check_tells_at_its_edge() -> None:
    assert list(tell(ROWS)) == read_snapshot("edges_of_trees.txt")
