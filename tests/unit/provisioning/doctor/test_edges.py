"""Things at the edge of a check; edges.txt says what each row tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from provisioning.doctor.checks.coherence import Family
from provisioning.doctor.checks.elf import Placed
from provisioning.doctor.checks.files import Need
from provisioning.doctor.checks.process import Runtime, Variables
from provisioning.doctor.facts import FileFacts, InstallationFacts, SdkFacts
from provisioning.doctor.fitness import ElfPolicy, Fitness
from provisioning.elf.facts import (
    EM_AARCH64,
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
    FLATCC,
    JSON,
    LATER,
    NEWER,
    OLD_PAIR,
    OTHER,
    OWN,
    PAIR,
    PLAIN,
    adaptor,
    aligned,
    backed,
    bare_skel,
    case,
    checkout,
    device,
    dsp,
    elf,
    entry,
    file,
    having,
    lacking,
    laid,
    lowered,
    machine,
    module,
    ndk,
    needing,
    on_path,
    python,
    read_snapshot,
    sdk,
    skel,
    staging,
    tell,
    tools,
    tree_of,
    variables,
)

HOME = "/sdk/lib/x86_64-linux-clang"
DEEP = "third-party/json/deep"
SKEL = Path("/libQnnHtpV75Skel.so")
LPAI, LPAI_79 = "libQnnLpaiStub.so", "libQnnLpaiV79Stub.so"
HALF_BUILD = QnnBuild("2.49.40", None, "2.49.40")
OTHER_HALF = QnnBuild("2.48.40", None, "2.48.40")
MISSING = (module("third-party/json", "missing"), module(DEEP, "missing"))
OLDER = lowered(None, targets=(Target("SM8650", 75, 8),))
CHANGED = elf(path=SKEL, machine=EM_QDSP6, checksum=Checksum(1, 2))


def before(*files: FileFacts) -> Variables:
    """A search path with these files before the SDK's."""
    return variables("/sdk", entry("/a", *files), OWN)


def policy(of: ElfPolicy, **change: Any) -> ElfPolicy:
    return msgspec.structs.replace(of, **change)


def null(kind: int) -> tuple[ProgramHeader, ...]:
    """A program header of PT_NULL with Qualcomm's segment type."""
    return (ProgramHeader(PT_NULL, kind << 24, 0, 0, 0, 9, 9, 0),)


def family(*files: FileFacts, **change: Any) -> Family:
    return Family(files)._replace(**change)


def staged_family(*files: FileFacts, **change: Any) -> Family:
    return family(*files, is_staged=True, **change)


def within(*missing: str, **change: Any) -> Placed:
    """A library next to others, which need the names ``missing`` and do not find them."""
    return Placed(elf(**change), PLAIN, missing=missing)


MACHINES = [
    ("QNN001", machine(Fitness(machines=("x86_64", "aarch64")), machine="riscv64")),
    ("QNN002", machine(glibc=None)),
    ("QNN003", lacking("libatomic.so.1", None)),
    ("QNN004", machine(Fitness(cpu_flags=("a", "b", "c")), cpu_flags=frozenset({"b"}))),
    ("QNN404", variables("/sdk", entry("/x"), OWN)),
    ("QNN404", variables("/sdk", entry(""))),
    ("QNN405", before(*(file(f"libQnn{name}.so") for name in "ABCDE"))),
    ("QNN405", before(file("libQnnB.so", machine=EM_AARCH64))),
    (
        "QNN405",
        variables("/sdk", entry("/a", file("libc++.so.1")), entry(HOME, file("libc++.so.1"))),
    ),
    (
        "QNN406",
        variables(
            "/sdk",
            entry("", *(file(f"l{name}.so", machine=EM_QDSP6) for name in "ABCDE")),
            entry(HOME, file("l.so", machine=EM_AARCH64)),
            entry("/b", file("l.so", machine=EM_AARCH64), file("m.so")),
        ),
    ),
    ("QNN407", variables(QAIRT_SDK_ROOT="/a", QAIRT_ROOT="", AISW_SDK_ROOT="/b")),
    ("QNN412", dsp(ADSP_LIBRARY_PATH="/a;/b", DSP_LIBRARY_PATH="/a:/b:/c")),
    ("QNN408", on_path("/a", "/b", "/c", wheel=True)),
    ("QNN409", on_path("/a", wheel=False, checkout="/src/executorch", PYTHONPATH="/a")),
    (
        "QNN415",
        Runtime(
            "/c",
            file("l", version_defs=("GLIBCXX_3.4.20", "CXXABI_1.3")),
            {"GLIBCXX": ((3, 4, 21), "a"), "CXXABI": ((1, 3, 1), "b"), "GCC": ((9,), "c")},
        ),
    ),
    ("QNN802", device(soc="")),
    ("QNN806", device(libraries={"c": "v3", "b": "", "a": "v2", "d": BUILD.text})),
    ("QNN807", device(align=1, page_bytes=None)),
    ("QNN807", device(align=1, page_bytes=2)),
]

BUILDING = [
    ("QNN505", having(executorch="1.4.1", torch="2.12.0")),
    ("QNN508", python(adaptors=("/s/b.so", "/s/c.so"), adaptor=None)),
    ("QNN512", adaptor(elf=None)),
    ("QNN515", python(lacking=("a", "b"), adaptor=None)),
    ("QNN510", python(modules={"yaml": True, "x": False, "y": False})),
    ("QNN516", python(adaptors=(), installed="/elsewhere/executorch", pth=("/a.pth", "/b.pth"))),
    ("QNN516", python(adaptors=(), installed="/site/executorch/")),
    ("QNN601", ndk("27.0.1", revision=None)),
    ("QNN605", ndk(host_tags=("a", "b"))),
    ("QNN704", checkout(commit=None)),
    ("QNN704", checkout(commit="b", pin="")),
    ("QNN705", checkout(*MISSING)),
    ("QNN706", checkout(*MISSING)),
    ("QNN707", checkout(JSON, module(DEEP, "moved"))),
    (
        "QNN708",
        checkout(
            leftovers=(
                (f"{FLATCC}/lib/a.a", "unknown"),
                (f"{FLATCC}/lib/b.a", "aarch64"),
                (f"{FLATCC}/bin/flatcc", "aarch64"),
                (f"{FLATCC}/lib/c.a", "x86-64"),
            )
        ),
    ),
    ("QNN902", laid(headers="2.50")._replace(library="an unknown version")),
    (
        "QNN903",
        laid(no_device="no", headers="")._replace(
            sdk=SdkFacts(Path("/sdk"), is_directory=True, version="2.37")
        ),
    ),
    ("QNN906", tools(hexagon="6.3", soc=75)),
    ("QNN907", tools(compiler="8.8", soc=75)),
    ("QNN908", backed(version="2.39")),
    ("QNN908", backed("lpai-arm", "2.37")),
]

SDKS = [
    ("QNN103", sdk(version=None, fault="no")),
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
    ("QNN110", sdk(api_version="2.37.1", library_api="2.38.0")),
    *(("QNN110", sdk(api_version=api, library_api="2.38.0")) for api in ("1.38.0", "3.0.0")),
    ("QNN113", InstallationFacts("qnn-sdk", Path("/q"), ("sdk.yaml",))),
    ("QNN113", InstallationFacts("my-qnn-sdk", Path("/q"), ("x", "y"), "MY")),
]

ELVES = [
    ("QNN205", ElfError(Path("/sdk/lib.so"), Defect.NOT_ELF, "it starts with PK")),
    ("QNN215", Placed(elf(path=Path("/libc++.so.1.0"), soname="libc++.so.1"), PLAIN)),
    ("QNN215", Placed(elf(path=Path("/libc++.so.10"), soname="libc++.so.1"), PLAIN)),
    ("QNN215", Placed(elf(soname="b"), policy(PLAIN, sonames={"libQnnA.so": "b"}))),
    # In a set, a wrong soname is a fault only if another library needs it or has the same.
    ("QNN215", within(soname="libQnnB.so")),
    ("QNN215", within("libQnnB.so", soname="libQnnB.so")),
    ("QNN215", within(path=Path("/libQnnHtp.so"), soname="libQnnGpu.so")),
    ("QNN215", within(path=SKEL, soname="libQnnHtpV73Skel.so")),
    (
        "QNN217",
        Placed(elf(rpath=("lib", "", "/lib", "$ORIGIN"), runpath=(".", "$ORIGINAL")), PLAIN),
    ),
    ("QNN217", Placed(elf(runpath=("${ORIGIN}/a/../..", "$ORIGIN/../../a/b/c")), PLAIN, 1)),
    ("QNN218", Placed(elf(rpath=("",), runpath=("lib", "/lib")), PLAIN)),
    ("QNN219", needing("GLIBC_2.35")._replace(policy=DROID)),
    ("QNN219", needing("GLIBC_PRIVATE")),
    ("QNN225", Placed(elf(program_headers=aligned(1)), policy(DROID, android_api=None))),
    *(
        (code, Placed(elf(path=SKEL, machine=EM_QDSP6, **change), DSP, build=build))
        for code, build in (("QNN231", BUILD), ("QNN235", QnnBuild("2.39", "1", "v2.39.1")))
        for change in (
            {"checksum": Checksum(1, 1)},
            {"program_headers": null(2)},
            {"program_headers": null(3)},
        )
    ),
    *(
        ("QNN231", bare_skel(build, name))
        for build, name in (
            (None, SKEL.name),
            (BARE_STAMP, SKEL.name),
            (BUILD, "libQnnHtpV75Stub.so"),
            (BUILD, "libQnnLpaiSkel.so"),
            (BUILD, SKEL.name),
        )
    ),
    ("QNN232", Placed(elf(needed=("libc.so", "libm.so.6", "libc.so.6")), DROID)),
    ("QNN216", Need("l", ["a", "b", "c"], Path("/a"), "a", is_libcxx=False)),
    ("QNN230", Placed(CHANGED, DSP, proof=Proof(Genuine.NOT_COVERED, "a.cat", "so"))),
    ("QNN230", Placed(CHANGED, DSP, proof=Proof(Genuine.NOT_COVERED, "a.cat", listed="5e"))),
]

FAMILIES = [
    ("QNN301", family(file("a"), file("b", None), file("libQnnC.so", HALF_BUILD))),
    (
        "QNN301",
        family(file("libQnnA.so", LATER), file("b"), file("c"), file("libGenie.so", OTHER_HALF)),
    ),
    ("QNN302", family(file("a"), version="2.48.40")),
    ("QNN302", family(file("a"), stamp="260810104045")),
    ("QNN303", family(file("b", None), file("libQnnA.so", OTHER_HALF, "c"))),
    *(
        ("QNN314", family(file("a"), file(name, None)))
        for name in ("libQnnHtpPrepare.so", PAIR[0], PAIR[1], "libQnnHtpV79.so", "libQnnHtpStub.so")
    ),
    ("QNN304", family(file("a"), file(LPAI), file(PAIR[0]))),
    ("QNN304", staged_family(file(PAIR[0]), skel(SKEL.name, 0x75), hexagon="75")),
    ("QNN304", staged_family(file(PAIR[0]), skel(SKEL.name, 0x75), hexagon="79")),
    ("QNN304", family(file(LPAI_79), skel("libQnnLpaiV79Skel_v5.so", 0x79))),
    ("QNN304", family(file(LPAI_79), skel("libQnnLpaiSkel.so", 0x79))),
    ("QNN317", staged_family(file(PAIR[0]), file(LPAI), hexagon="75")),
    ("QNN317", staged_family(file(PAIR[0]), file("libQnnHtpV75Stub.so"), skel("libX.so", 1))),
    ("QNN301", family(*OLD_PAIR, file("libQnnSystem.so"))),
    ("QNN316", family(*OLD_PAIR, file("libQnnSystem.so"))),
    ("QNN301", family(file("a"), file("b"), file("libQnnSystem.so", OTHER))),
    ("QNN316", family(file("a"), file("b"), file("libQnnSystem.so", OTHER))),
    ("QNN305", family(skel(PAIR[1], 0x75, "lib/hexagon-v75/unsigned"), backends=("Lpai",))),
    ("QNN305", family(skel("libQnnHtpV79.so", 0x68, "hexagon-v68"))),
    *(
        ("QNN319", family(replace(library, proof=Proof(Genuine.NOT_COVERED, "a.cat", "so"))))
        for library in (
            file(SKEL.name, machine=EM_QDSP6, flags=0x75, checksum=Checksum(1, 1)),
            file(SKEL.name, machine=EM_QDSP6, flags=0x73, checksum=Checksum(1, 1)),
            file("libCalculator_skel.so", machine=EM_QDSP6, checksum=Checksum(1, 1)),
        )
    ),
    ("QNN306", staged_family(replace(file(SKEL.name), elf=None), file(PAIR[1]))),
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
    ("QNN309", staging(staged=())),
    (
        "QNN310",
        staging(
            links={"a/libQnnHtp.so": "x", "libQnnSystem.so": "y"},
            dangling=frozenset({"libQnnSystem.so"}),
        ),
    ),
    ("QNN311", staging(*BOTH, soc=True)),
    ("QNN311", staging(*BOTH, PAIR[1])),
    ("QNN311", staging(*BOTH, "libQnnHtpPrepare.so")),
    ("QNN312", staging(*BOTH)),
    ("QNN312", staging(*BOTH, soc=True, staged=("libQnnSystem.so",))),
    ("QNN312", staging(*BOTH, PAIR[0], soc=True)),
    ("QNN312", staging(*BOTH, PAIR[1], soc=True)),
    ("QNN313", staging(*BOTH, lowered=(*lowered(BUILD), *lowered(None), *lowered(NEWER)))),
    ("QNN315", staging(lowered=(*lowered(None), *lowered(BUILD)), runtime="2.37.1")),
    ("QNN323", staging(*BOTH, lowered=OLDER)),
    ("QNN323", staging(*BOTH, soc=True, lowered=OLDER)),
]

ROWS = [*MACHINES, *BUILDING, *SDKS, *ELVES, *FAMILIES, *STAGED]


def test_checks_at_their_limits_read_as_their_snapshot() -> None:
    assert list(tell(ROWS)) == read_snapshot("edges.txt")
