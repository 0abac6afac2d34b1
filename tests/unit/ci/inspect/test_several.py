"""The second of several contexts, skels, programs or findings counts like the first."""

from __future__ import annotations

import zipfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from ci.inspect import app_archives
from ci.inspect.app_checks import (
    APPS,
    PAIRINGS,
    RPC,
    Pairing,
    _weigh,
    find_extraction,
    judge_unit,
)
from ci.inspect.app_manifest import AppManifest, merge_manifests
from ci.inspect.apps import QNN_ABI, AppUnit, Kind, PackedFile
from ci.inspect.compat import Answer, Axis, Row, Runtime, Verdict, judge_compat
from ci.inspect.files import Inspected, Library, inspect_file
from ci.inspect.gradle import Gradle
from ci.verbs import compat
from ci.verbs.check_app import CheckedUnit, data_of, measure, render_units
from ci.verbs.inspect import render_files
from provisioning.console.progress import Progress
from provisioning.doctor.checks.registry import Finding, Severity
from provisioning.doctor.facts import FileFacts, TreeFacts
from provisioning.doctor.survey.context_binaries import ContextBinary, Graph, TensorSpec
from provisioning.doctor.survey.programs import Method, Partition, Program, SegmentSpan
from provisioning.elf.facts import ElfFacts
from provisioning.elf.qnn_build import QnnBuild
from provisioning.errors import IntegrityError

FIRST = ContextBinary(
    *(0, 1000),
    qnn="2.48.40",
    binary_info=3,
    core_api="2.30.0",
    backend_api="5.48.0",
    soc="SM8650",
    soc_id=57,
    hexagon=75,
    vtcm_mb=8,
)
SECOND = replace(FIRST, qnn="2.50.40", soc="SM8750", soc_id=69, hexagon=79)


def row_of(axis: Axis, runtime: Runtime | None, soc: str, *contexts: ContextBinary) -> Row:
    methods = tuple(
        Method(name, (), (), (), {operator: 1})
        for name, operator in (("forward", "aten::erf.out"), ("second", "aten::bmm.out"))
    )
    program = Program("model.pte", "program", 1, contexts=contexts, methods=methods)
    return next(row for row in judge_compat(program, runtime, soc).rows if row.axis is axis)


OLD = Runtime("app", "2.47.0", stubs=(75,), skels=(73,), kernels=("aten::erf.out",))


@pytest.mark.parametrize(
    ("axis", "runtime", "soc", "contexts", "verdict", "told"),
    [
        (Axis.BUILD, OLD, "", (FIRST, SECOND), "no", "use 2.50.40 or later"),
        (Axis.BUILD, OLD, "", (SECOND, FIRST), "no", "use 2.50.40 or later"),
        (Axis.BUILD, replace(OLD, qnn="2.49.40"), "", (FIRST, SECOND), "no", "use 2.50.40"),
        (Axis.BUILD, replace(OLD, qnn="2.51.0"), "", (FIRST, SECOND), "yes", "QNN 2.50.40, and"),
        (Axis.BUILD, OLD, "", (FIRST, replace(SECOND, qnn="")), "cannot tell", "who compiled it"),
        (Axis.BUILD, replace(OLD, qnn=""), "", (FIRST,), "cannot tell", "app does not state"),
        (Axis.BINARY_INFO, OLD, "", (FIRST, replace(SECOND, binary_info=9)), "cannot tell", "3, 9"),
        (Axis.BINARY_INFO, replace(OLD, qnn="2.29.0"), "", (FIRST,), "yes", "2.29.0"),
        (Axis.BINARY_INFO, replace(OLD, qnn="2.28.9"), "", (FIRST,), "cannot tell", "2.28.9"),
        (Axis.ADAPTOR, replace(OLD, adaptor="2.48"), "", (FIRST,), "no", "of QNN 2.48, and the"),
        (Axis.HEXAGON, OLD, "", (FIRST, SECOND), "no", "for V73, V75, but none for V79"),
        (Axis.HEXAGON, OLD, "SM8650", (FIRST, SECOND), "no", "for V75, V79, but SM8650 has V75"),
        (Axis.HEXAGON, OLD, "SM8750", (SECOND,), "no", "none for V79"),
        (Axis.SOC, None, "SM8650", (FIRST, SECOND), "no", "for SM8750, not for SM8650"),
        (Axis.SOC, None, "SM8650", (FIRST, replace(FIRST, soc_id=0)), "cannot tell", "its SoC"),
        (Axis.VTCM, None, "SM8650", (FIRST, replace(SECOND, vtcm_mb=9)), "no", "9 MB of VTCM, and"),
        (Axis.VTCM, None, "SM8650", (FIRST,), "yes", "SM8650 has 8 MB"),
        (Axis.OPERATORS, OLD, "", (FIRST,), "no", "lack kernels for aten::bmm.out: "),
        (Axis.OPERATORS, None, "", (FIRST,), "not judged", "for aten::bmm.out, aten::erf.out"),
    ],
)
def test_every_context_and_method_counts(
    axis: Axis,
    runtime: Runtime | None,
    soc: str,
    contexts: tuple[ContextBinary, ...],
    verdict: str,
    told: str,
) -> None:
    row = row_of(axis, runtime, soc, *contexts)
    assert (row.verdict.value, told in row.why) == (verdict, True), row.why


def pack(
    *names: str, abi: str = QNN_ABI, place: str = "app", **more: int
) -> tuple[PackedFile, ...]:
    return tuple(PackedFile(one, Path(one), f"{place}/{one}", 7, abi, **more) for one in names)


SKELS = ("libQnnHtpV75Skel.so", "libQnnHtpV79Skel.so", "libQnnHtpV81Skel.so")
INSIDE = AppManifest(extracts=False, native_libraries={"libOpenCL.so": True, "libmine.so": True})


def facts(name: str, *needed: str, machine: int = 183, program: bool = False) -> FileFacts:
    elf = ElfFacts(Path(name), 1, 64, True, machine, 3, 0, needed=needed)
    elf = replace(elf, interpreter="/linker" if program else None)
    return FileFacts(f"lib/{QNN_ABI}/{name}", Path(name), 1, elf)


def make(kind: Kind = Kind.SOURCES, *trees: FileFacts, **fields: object) -> AppUnit:
    libraries = fields.pop("libraries", pack("libQnnHtp.so", *SKELS))
    tree = TreeFacts(Path(), (*map(facts, SKELS), *trees))
    return AppUnit("u", kind, libraries=libraries, tree=tree, **{"manifest": None, **fields})  # type: ignore[arg-type]


COPIES = tuple(
    replace(one, size_bytes=n) for n in (1, 2, 3) for one in pack("liba.so", place=f"{n}")
)
USER = facts("liba.so", "libOpenCL.so")
TARGETS = [Gradle("b.gradle", target_sdk=level) for level in (30, 31)]
OPTIONAL = {"libOpenCL.so": False, "libmine.so": True}
UNITS = {
    "QNN851": (
        make(libraries=pack("liba.so", abi="x86") + pack("liba.so", abi="x86_64")),
        ("x86, x86_64",),
    ),
    "QNN851 by filters": (
        make(
            gradle=Gradle("b.gradle", abis=("x86", "mips")),
            libraries=pack("libQnnHtp.so") + pack("liba.so", abi="x86"),
        ),
        ("has libraries only for x86",),
    ),
    "QNN851 by filters that leave nothing": (
        make(gradle=Gradle("b.gradle", abis=("x86", "mips"))),
        ("has libraries only for x86, mips",),
    ),
    "QNN869": (
        make(gradle=Gradle("b.gradle", is_legacy_computed=True)),
        ("b.gradle sets useLegacyPackaging to a computed value",),
    ),
    "QNN853": (make(absent=("p/a.so", "q/b.so", "r/c.so")), ("a.so", ", and so are b.so, c.so")),
    "QNN854": (make(pointers=("p/a.so", "q/b.so")), ("a.so", ", and so is b.so")),
    "QNN856": (make(Kind.APK, manifest=INSIDE), (SKELS[0], "(and 2 more) stays", '"false"')),
    "QNN857": (make(Kind.APK, manifest=INSIDE), ("libQnnHtp.so (and 3 more)",)),
    "QNN858": (
        make(
            Kind.APK,
            manifest=INSIDE,
            libraries=pack("a.so", offset=4096)
            + pack("b.so", "c.so", offset=4095)
            + pack("d.so", offset=0),
        ),
        ("b.so (and 1 more)",),
    ),
    "QNN859": (
        make(
            Kind.APK,
            manifest=INSIDE,
            libraries=pack("a.so", "b.so", offset=4096) + pack("c.so", offset=16384),
        ),
        ("a.so (and 1 more)",),
    ),
    "QNN859 of an ABI of a computer": (
        make(Kind.APK, manifest=INSIDE, libraries=pack("a.so", abi="x86_64", offset=4096)),
        ("a.so does not start at a multiple of 16384",),
    ),
    "QNN860": (
        make(
            Kind.APK,
            facts("liba.so", "libcdsprpc.so"),
            facts("libb.so", "libcdsprpc.so"),
            manifest=AppManifest(),
        ),
        ("which liba.so (and 1 more) needs",),
    ),
    "QNN860 of the library that opens it": (
        make(Kind.APK, manifest=AppManifest()),
        ("which libQnnHtp.so needs",),
    ),
    "QNN861": (
        make(
            Kind.APK,
            facts("liba.so", "libcdsprpc.so"),
            facts("run1", program=True),
            facts("run2", program=True),
            manifest=AppManifest(),
        ),
        ("which liba.so needs", "the executable run1"),
    ),
    "QNN862": (
        make(
            Kind.APK,
            facts("liba.so", "libcdsprpc.so", "libOpenCL.so", "libadsprpc.so"),
            facts("libb.so", "libOpenCL.so"),
            manifest=AppManifest(),
        ),
        ("libadsprpc.so, which liba.so needs", "libOpenCL.so, which liba.so (and 1 more) needs"),
    ),
    "QNN862 from the level of the build file on": (
        make(Kind.SOURCES, USER, manifest=AppManifest(), gradle=TARGETS[1]),
        ("libOpenCL.so, which liba.so needs",),
    ),
    "QNN862 as the build file goes before the manifest": (
        make(Kind.SOURCES, USER, manifest=AppManifest(target_sdk=30), gradle=TARGETS[1]),
        ("libOpenCL.so, which liba.so needs",),
    ),
    "QNN863": (make(Kind.APK, manifest=INSIDE), ("requires libOpenCL.so",)),
    "QNN864": (
        make(assets=pack("m.dlc", "n.dlc", abi="")),
        (
            "m.dlc needs libQnnModelDlc.so or libSNPE.so",
            "n.dlc needs libQnnModelDlc.so or libSNPE.so",
        ),
    ),
    "QNN865": (
        make(
            gradle=Gradle("b.gradle", kept=("**/libQnnHtpV75*",), first=("**/*Skel.so",)),
            absent=("p/README", "p/libQnnHtpV85Skel.so"),
        ),
        ("strip libQnnHtpV79Skel.so (and 2 more)", "add to b.gradle"),
    ),
    "QNN865 of files that are absent": (
        make(
            gradle=Gradle("b.gradle"),
            libraries=pack("libQnnHtp.so", "libQnnHtpV75Skel.so"),
            absent=("p/README", "q/libQnnHtpV85Skel.so", "r/libQnnHtpV69Skel.so"),
        ),
        ("strip libQnnHtpV69Skel.so (and 2 more)",),
    ),
    "QNN866": (
        make(gradle=Gradle("b.gradle", kept=("**/liba.so",)), duplicates=(COPIES,)),
        ("liba.so is in several places: 1/liba.so and 2/liba.so and 3/liba.so",),
    ),
    "QNN868": (
        make(gradle=Gradle("b.gradle", maven=("a:qnn:1", "b:qnn:2"))),
        ("a:qnn:1, b:qnn:2",),
    ),
    "QNN871": (
        make(damaged={"p/a.aar": "it is cut", "p/b.aar": "it is long"}),
        ("b.aar was", "long"),
    ),
}


# Subject and place of each finding.
OF_APP, OF_MANIFEST, DLC = ("u", "u"), "u: AndroidManifest.xml", "libQnnModelDlc.so or libSNPE.so"
PLACES = {
    "QNN851": [OF_APP],
    "QNN851 by filters": [OF_APP],
    "QNN851 by filters that leave nothing": [OF_APP],
    "QNN869": [("b.gradle", "u: b.gradle")],
    "QNN853": [("a.so", "p/a.so")],
    "QNN854": [("a.so", "p/a.so")],
    "QNN856": [(SKELS[0], f"app/{SKELS[0]}")],
    "QNN857": [("libQnnHtp.so", "app/libQnnHtp.so")],
    "QNN858": [("b.so", "app/b.so")],
    "QNN859": [("a.so", "app/a.so")],
    "QNN859 of an ABI of a computer": [("a.so", "app/a.so")],
    "QNN860": [("u", OF_MANIFEST)],
    "QNN860 of the library that opens it": [("u", OF_MANIFEST)],
    "QNN861": [("u", OF_MANIFEST)],
    "QNN862": [("libadsprpc.so", OF_MANIFEST), ("libOpenCL.so", OF_MANIFEST)],
    "QNN862 from the level of the build file on": [("libOpenCL.so", OF_MANIFEST)],
    "QNN862 as the build file goes before the manifest": [("libOpenCL.so", OF_MANIFEST)],
    "QNN863": [("libOpenCL.so", OF_MANIFEST)],
    "QNN864": [(DLC, "app/m.dlc"), (DLC, "app/n.dlc")],
    "QNN865": [(SKELS[1], f"app/{SKELS[1]}")],
    "QNN865 of files that are absent": [("libQnnHtpV69Skel.so", "r/libQnnHtpV69Skel.so")],
    "QNN866": [("liba.so", "1/liba.so")],
    "QNN868": [("a:qnn:1, b:qnn:2", "u: b.gradle")],
    "QNN871": [("a.aar", "p/a.aar"), ("b.aar", "p/b.aar")],
}


@pytest.mark.parametrize(
    ("version", "is_told"), [("2.37.1", False), ("2.38.0", True), (None, True)]
)
def test_skels_are_stripped_without_harm_only_if_they_have_no_checksum(
    version: str | None, is_told: bool
) -> None:
    build = QnnBuild(version, "260810104044", version or "")
    stub = replace(facts("libQnnHtp.so"), build=build)
    found = APPS.judge(make(Kind.SOURCES, stub, gradle=Gradle("b.gradle")))
    assert ("QNN865" in {one.id for one in found}) is is_told


@pytest.mark.parametrize("code", UNITS)
def test_a_finding_tells_how_many_have_the_fault(code: str) -> None:
    unit, told = UNITS[code]
    found = [one for one in APPS.judge(unit) if one.id == code.split(maxsplit=1)[0]]
    text = "\n".join(f"{one.what} {one.fix}" for one in found)
    assert all(one in text for one in told), text
    assert [(one.subject, one.where) for one in found] == PLACES[code]


@pytest.mark.parametrize(
    ("code", "unit"),
    [
        ("QNN865", make(gradle=Gradle("b.gradle", kept=("**/*Skel.so",)))),
        ("QNN866", make(gradle=Gradle("b.gradle", first=("**/liba.so",)), duplicates=(COPIES,))),
        ("QNN862", make(Kind.APK, facts("liba.so", "libOpenCL.so"), manifest=INSIDE)),
        ("QNN862", make(Kind.SOURCES, USER, manifest=AppManifest(), gradle=TARGETS[0])),
        (
            "QNN862",
            make(Kind.SOURCES, USER, manifest=AppManifest(target_sdk=31), gradle=TARGETS[0]),
        ),
        ("QNN851", make(gradle=Gradle("b.gradle", abis=("x86", QNN_ABI)))),
        ("QNN863", make(Kind.APK, manifest=AppManifest(native_libraries=OPTIONAL))),
        ("QNN856", make(Kind.APK, manifest=AppManifest(fault="cut"))),
        # A manifest that cannot be read is the fault.
        ("QNN860", make(Kind.APK, facts("liba.so", RPC), manifest=AppManifest(fault="cut"))),
        (
            "QNN861",
            make(
                Kind.APK,
                facts("liba.so", RPC),
                facts("run", program=True),
                manifest=AppManifest(fault="cut"),
            ),
        ),
        ("QNN862", make(Kind.APK, USER, manifest=AppManifest(fault="cut"))),
        # Of another kind of app, or of none that is built by Gradle.
        ("QNN865", make(Kind.LIBRARY, gradle=Gradle("b.gradle"))),
        ("QNN865", make(Kind.SOURCES)),
        ("QNN866", make(duplicates=(COPIES,))),
        *(
            (code, make(Kind.DIRECTORY, manifest=INSIDE, libraries=pack("a.so", **packed)))
            for code, packed in (
                ("QNN857", {}),
                ("QNN858", {"offset": 1}),
                ("QNN859", {"offset": 4096}),
            )
        ),
        # The nearest fault is another one.
        ("QNN857", make(Kind.APK, manifest=INSIDE, libraries=pack("a.so", offset=1))),
        ("QNN858", make(Kind.APK, manifest=INSIDE, libraries=pack("a.so"))),
        ("QNN859", make(Kind.APK, manifest=INSIDE, libraries=pack("a.so", offset=4095))),
        ("QNN859", make(Kind.APK, manifest=INSIDE, libraries=pack("a.so"))),
        *(
            (
                "QNN859",
                make(Kind.APK, manifest=INSIDE, libraries=pack("a.so", abi=abi, offset=4096)),
            )
            for abi in ("armeabi-v7a", "x86")
        ),
        # Nothing is packaged that would have it.
        ("QNN856", make(Kind.APK, manifest=INSIDE, libraries=pack("libQnnHtp.so"))),
        (
            "QNN869",
            make(
                gradle=Gradle("b.gradle", is_legacy_computed=True), libraries=pack("libQnnHtp.so")
            ),
        ),
        ("QNN864", make(libraries=pack("liba.so", abi="x86"), assets=pack("m.dlc", abi=""))),
        ("QNN864", make(libraries=pack("libSNPE.so"), assets=pack("m.dlc", abi=""))),
    ],
)
def test_what_the_build_file_or_manifest_states_is_no_fault(code: str, unit: AppUnit) -> None:
    assert code not in {one.id for one in APPS.judge(unit)}


@pytest.mark.parametrize(("machine", "level"), [(164, Severity.ERROR), (183, Severity.WARNING)])
def test_a_fault_of_any_library_for_the_dsp_is_one_of_qnn(machine: int, level: Severity) -> None:
    unit = make(Kind.APK, facts("libcustom_op.so", machine=machine), facts("libother.so"))
    finding = Finding("QNN232", "it", "it is odd", "app/lib/libcustom_op.so", "", "")
    assert _weigh(unit, finding) == replace(finding, severity=level)


def test_copies_that_are_there_are_compared_with_the_first_of_them(tmp_path: Path) -> None:
    """Links to nothing and Git LFS pointers are reported as such."""
    contents = {
        "gone": None,
        "lost": None,
        "pointer": b"version https://git-lfs.github.com/spec/v1",
        "first": b"one",
        "same": b"one",
        "other": b"two",
        "longer": b"three",
    }
    files = {}
    for name, data in contents.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        files[name] = PackedFile("liba.so", tmp_path / name, name, len(data or b""), QNN_ABI)
    for chosen, told in (
        ([*files], ["first, but has different contents in other, longer"]),
        (["gone", "lost"], []),
        (["gone", "pointer", "other"], []),
        (["longer", "first", "same"], ["longer, but has different contents in first, same"]),
    ):
        unit = make(duplicates=(tuple(files[name] for name in chosen),))
        found = [one for one in APPS.judge(unit) if one.id == "QNN867"]
        assert [one.what.partition("from ")[2] for one in found] == told


def test_each_axis_of_a_program_is_a_finding_unless_it_is_known() -> None:
    rows = (
        Row(Axis.BUILD, Verdict.NO, "older"),
        Row(Axis.SOC, Verdict.NO, "another"),
        Row(Axis.VTCM, Verdict.YES, "enough"),
        Row(Axis.OPERATORS, Verdict.NO, "no kernel"),
    )
    answer = Answer("m.pte", "app", "SM8650", Verdict.NO, (), rows)
    (program,) = pack("m.pte", abi="")

    def judge(*known: tuple[str, str], spared: frozenset[Axis] = frozenset()) -> list[str]:
        found = PAIRINGS.judge(Pairing(program, answer, known, spared))
        return [one.what.partition("(")[2].rstrip(")") for one in found]

    assert judge() == ["build: older", "SoC: another", "operators: no kernel"]
    assert judge(("QNN323", program.shown), ("QNN313", "other.pte")) == [
        "build: older",
        "operators: no kernel",
    ]
    assert judge(("QNN313", program.shown), spared=frozenset({Axis.SOC})) == [
        "operators: no kernel"
    ]


def test_components_are_counted_and_the_largest_is_first() -> None:
    files = (
        *pack("libQnnHtpV75Skel.so", "libQnnHtpV79Skel.so", packed_bytes=3),
        *pack("liba.so", abi="x86", packed_bytes=50),
        PackedFile("b.pte", Path("b.pte"), "b.pte", 2_000_000, "", 1_500_000),
    )
    unit = AppUnit("u", Kind.APK, None, libraries=files[:3], assets=files[3:], min_sdk=23)
    assert list(measure(unit).items()) == [
        ("programs", (1, 2_000_000, 1_500_000)),
        ("QNN, HTP skels", (2, 14, 6)),
        ("all for x86", (1, 7, 50)),
    ]
    checked = CheckedUnit(unit, ())
    text = render_units([checked, checked], strict=False, width=80)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows[:5] == [
        "u (APK), minSdk 23, libraries extracted: unknown",
        "ABIs: arm64-v8a, x86; QNN: unknown",
        "programs 1 file 2.0 MB, 1.5 MB in the archive",
        "QNN, HTP skels 2 files 0.0 MB, 0.0 MB in the archive",
        "all for x86 1 file 0.0 MB, 0.0 MB in the archive",
    ]
    assert text == "\n".join([render_units([checked], strict=False, width=80)] * 2)
    copied = CheckedUnit(replace(unit, kind=Kind.DIRECTORY, min_sdk=None), ())
    told = render_units([copied], strict=False, width=80)
    assert "u (directory), minSdk not stated, libraries" in told
    assert "in the archive" not in told
    empty = render_units([CheckedUnit(AppUnit("u", Kind.APK, None), ())], strict=False, width=80)
    assert "ABIs: none; QNN: unknown" in empty


def test_data_of_an_app_count_errors_and_warnings() -> None:
    unit = AppUnit("u", Kind.APK, AppManifest(extracts=True), min_sdk=21, absent=("a",))
    levels = (Severity.ERROR, Severity.ERROR, Severity.WARNING, Severity.NOTE)
    found = tuple(Finding(f"QNN{n}", "x", "x", "x", "x", "x", one) for n, one in enumerate(levels))
    right, wrong = CheckedUnit(unit, found[2:]), CheckedUnit(unit, found)
    data = data_of("a", [right, wrong], ["SM8650"], strict=False)
    assert [(one["errors"], one["warnings"]) for one in data["units"]] == [(0, 1), (2, 1)]
    assert (data["fit"], data["units"][1]["min_sdk"], data["units"][1]["absent"]) == (
        False,
        21,
        ["a"],
    )
    assert [data_of("a", [right], [], strict=strict)["fit"] for strict in (False, True)] == [
        True,
        False,
    ]


def test_judging_for_several_socs_names_each() -> None:
    unit = replace(make(Kind.APK, manifest=AppManifest(extracts=True)), libraries=pack(*SKELS))
    for socs in (["SM8650", "SM8850"], ["SM8850", "SM8650"]):
        ids = {one.id for one in judge_unit(unit, socs)}
        assert ids == {one.id for soc in socs for one in judge_unit(unit, [soc])}


def test_text_of_a_program_names_each_figure() -> None:
    port = TensorSpec("x", "float32", (1, 4), scale=0.5, zero_point=3)
    graphs = (
        Graph("g1", (port,), (replace(port, name="y", zero_point=0),), constant_bytes=2000),
        Graph("g2"),
        Graph("g3", constant_bytes=0),
    )
    context = replace(FIRST, offset=64, graphs=graphs)
    plain = TensorSpec("x", "float32", (1, 4))
    parts = tuple(Partition(f"{name}nnBackend") for name in "QXQ")
    methods = (
        Method("m1", (plain, replace(plain, name="x2")), (replace(plain, name="y"),), parts, {}),
        Method("m2", (), (), parts[:1], {}),
    )
    program = Program(
        "m.pte",
        "program",
        1,
        methods=methods,
        metadata={"get_length": 512, "get_dtype": (6, 5)},
        contexts=(context, SECOND),
        segments=(SegmentSpan(128, 2048, 128), SegmentSpan(4096, 4096, 4096)),
        constant_bytes={"float32": 2048, "int8": 100},
        misplaced="has a segment at byte 3",
    )
    text = render_files([Inspected("m.pte", "program", 1500, program=program)])
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows == [
        "m.pte: ExecuTorch program, 1.46 KiB",
        "warning has a segment at byte 3",
        "context 0.98 KiB at byte 64",
        "compiled with QNN 2.48.40, core API 2.30.0, backend API 5.48.0, binary info 3",
        "compiled for SM8650, V75, 8 MB VTCM",
        "graph g1, constants of 1.95 KiB",
        "input x float32 [1, 4], scale 0.5, zero point 3",
        "output y float32 [1, 4], scale 0.5, zero point 0",
        "graph g2",
        "graph g3, constants of 0 B",
        "context 0.98 KiB at byte 0",
        "compiled with QNN 2.50.40, core API 2.30.0, backend API 5.48.0, binary info 3",
        "compiled for SM8750, V79, 8 MB VTCM",
        "method m1, 3 partitions for QnnBackend,XnnBackend",
        "input x float32 [1, 4]",
        "input x2 float32 [1, 4]",
        "output y float32 [1, 4]",
        "method m2, 1 partition for QnnBackend",
        "constant get_length = 512",
        "constant get_dtype = (6, 5)",
        "segment 2.00 KiB at byte 128, a multiple of 128",
        "segment 4.00 KiB at byte 4096, a multiple of 4096",
        "CPU weights float32, 2.00 KiB",
        "CPU weights int8, 100 B",
    ]
    library = Inspected(
        "a.so", "library", 1, library=Library("Hexagon", 75, qnn="2.50", api_level=30, align=4096)
    )
    assert "Hexagon V75, QNN 2.50, Android API 30, aligned to 4096 bytes" in render_files([library])


def test_what_is_unknown_is_not_shown_or_named_as_unknown() -> None:
    def show(item: Inspected) -> list[str]:
        return [" ".join(line.split()) for line in render_files([item]).splitlines()]

    library = Library("aarch64", 0, qnn="", api_level=0, align=64)
    assert show(Inspected("a.so", "library", 1, library=library))[1:] == [
        "library aarch64, states no QNN build, aligned to 64 bytes"
    ]
    assert show(Inspected("a.so", "library", 1, "is cut"))[1:] == ["problem it is cut"]
    cut = Program("m.pte", "program", 1, metadata={"get_length": 512}, damage="is cut")
    assert show(Inspected("m.pte", "program", 1, "is cut", cut))[1:] == [
        "problem it is cut",
        "constant get_length = 512",
    ]
    context = ContextBinary(7, 1024, soc_id=57, unread="too new")
    method = Method("run", (), (), (), {"aten::erf.out": 1, "aten::bmm.out": 2})
    program = Program(
        "m.pte",
        "program",
        1,
        contexts=(
            context,
            replace(context, soc_id=0, unread=""),
            replace(context, soc_id=0, unread="a DLC"),
        ),
        methods=(method,),
        constant_bytes={"float32": 2048},
    )
    assert show(Inspected("m.pte", "program", 1, program=program))[1:] == [
        "context 1.00 KiB at byte 7",
        "compiled with QNN unknown",
        "compiled for SoC 57, V0, 0 MB VTCM",
        "not read too new",
        "context 1.00 KiB at byte 7",
        "compiled with QNN unknown",
        "compiled for an unknown SoC, V0, 0 MB VTCM",
        "context 1.00 KiB at byte 7",
        "not read a DLC",
        "method run, 0 partitions",
        "on the CPU aten::erf.out",
        "on the CPU aten::bmm.out, 2 times",
        "CPU weights float32, 2.00 KiB",
    ]


def test_files_of_a_package_are_below_it() -> None:
    library = Library("aarch64", align=64)
    files = (
        Inspected("a.so", "library", 7, "is cut"),
        Inspected(
            "b.apk", "package", 9, entries=(Inspected("c.so", "library", 8, library=library),)
        ),
    )
    package = Inspected("app.apks", "package", 2048, "contains files", entries=files)
    assert render_files([package, files[0]]).splitlines() == [
        "app.apks: package, 2.00 KiB",
        "  problem       it contains files",
        "  a.so: library, 7 B",
        "    problem       it is cut",
        "  b.apk: package, 9 B",
        "    c.so: library, 8 B",
        "      library       aarch64, states no QNN build, aligned to 64 bytes",
        "",
        "a.so: library, 7 B",
        "  problem       it is cut",
    ]


def test_a_set_of_apks_is_described_by_its_first_manifest() -> None:
    first = AppManifest(min_sdk=21, target_sdk=34, extracts=True, native_libraries={"a": False})
    second = AppManifest(min_sdk=30, target_sdk=35, extracts=False, native_libraries={"b": True})
    whole = merge_manifests([first, second])
    assert whole is not None
    assert (whole.min_sdk, whole.target_sdk, whole.extracts) == (21, 34, True)
    assert dict(whole.native_libraries) == {"a": False, "b": True}


def test_archives_that_claim_more_than_4_gib_are_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "app.apk"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
        for name in ("a", "b"):
            archive.writestr(f"lib/{QNN_ABI}/lib{name}.so", bytes(3 << 20))
    data, place = bytearray(path.read_bytes()), 0
    while (place := data.find(b"PK\1\2", place + 1)) >= 0:  # both of the directory's rows
        data[place + 24 : place + 28] = (3 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    told = f"more than {4 << 30} bytes"
    with pytest.raises(IntegrityError) as caught:
        app_archives.ArchiveReader(tmp_path).read_file(path)
    assert told in caught.value.why
    assert told in inspect_file(path).damage


def test_one_limit_holds_for_all_archives_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        with zipfile.ZipFile(tmp_path / f"{name}.aar", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("R.txt", "")
            archive.writestr(f"jni/{QNN_ABI}/lib{name}.so", bytes(100))
    monkeypatch.setattr(app_archives, "MAX_UNPACKED", 200)
    reader = app_archives.ArchiveReader(tmp_path)
    for name in ("a", "b"):  # the limit is met
        assert [one.name for one in reader.read_file(tmp_path / f"{name}.aar").libraries] == [
            f"lib{name}.so"
        ]
    with zipfile.ZipFile(tmp_path / "empty.aar", "w") as archive:
        archive.writestr(f"jni/{QNN_ABI}/libe.so", b"")
    assert reader.read_file(tmp_path / "empty.aar").libraries  # which needs no more room
    with pytest.raises(IntegrityError, match=r"c\.aar is rejected"):
        reader.read_file(tmp_path / "c.aar")


def test_kernels_of_every_method_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = tuple(
        Method(name, (), (), (), {operator: 1})
        for name, operator in (("forward", "aten::erf.out"), ("second", "aten::bmm.out"))
    )
    program = Program("m.pte", "program", 1, contexts=(FIRST,), methods=methods)
    looked: list[set[str]] = []

    def read(word: str, operators: set[str]) -> Runtime:
        looked.append(operators)
        return Runtime(word, "2.49.40", kernels=tuple(operators))

    monkeypatch.setattr(
        compat, "inspect_file", lambda _: Inspected("m", "program", 1, program=program)
    )
    monkeypatch.setattr(compat, "read_runtime", read)
    args = Namespace(file=Path("m.pte"), runtime="app", soc="SM8650")
    outcome = compat.execute(args, Progress())
    assert (outcome.exit_code, looked) == (0, [{"aten::erf.out", "aten::bmm.out"}])
    *rows, last = outcome.text.splitlines()
    assert (len(rows), last) == (8, "m.pte for app on SM8650: yes")
    args.soc = "SM8750"
    told = compat.execute(args, Progress()).text.splitlines()[-1]
    assert told == "m.pte for app on SM8750: no (Hexagon, SoC)"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("program", "ExecuTorch program"),
        ("context", "QNN context binary"),
        ("onnx", "ONNX model"),
        ("library", "library"),
        ("package", "package"),
        ("unknown", "file"),
    ],
)
def test_each_kind_of_file_is_called_what_it_is(kind: str, name: str) -> None:
    assert render_files([Inspected("x", kind, 812)]) == f"x: {name}, 812 B\n"


@pytest.mark.parametrize(
    ("component", "names"),
    [
        ("QNN, HTP skels", ("libQnnHtpV75Skel.so", "libQnnDspV66Skel.so")),
        ("QNN, HTP stubs", ("libQnnHtpV75Stub.so", "libQnnDspV66Stub.so")),
        ("QNN, graph preparation", ("libQnnHtpPrepare.so", "libHtpPrepare.so")),
        ("QNN, others", ("libQnnHtp.so", "libQnnSystem.so", "libGenie.so")),
        ("SNPE", ("libSnpeHtpV75Skel.so", "libSNPE.so")),
        ("ExecuTorch", ("libqnn_executorch_backend.so", "libexecutorch.so", "libfbjni.so")),
        ("ONNX Runtime", ("libonnxruntime.so", "libonnxruntime_providers_qnn.so")),
        ("C++ runtime", ("libc++_shared.so", "libc++abi.so.1")),
        ("programs", ("m.pte", "m_qnn.bin", "m.onnx", "m.dlc")),
        ("other libraries", ("libmine.so", "libunwind.so.1")),
    ],
)
def test_each_file_of_an_app_belongs_to_a_component(component: str, names: tuple[str, ...]) -> None:
    files = tuple(PackedFile(name, Path(name), name, 7, QNN_ABI) for name in names)
    unit = AppUnit("u", Kind.APK, None, libraries=files)
    assert measure(unit) == {component: (len(names), 7 * len(names), 0)}


def test_an_app_as_data_has_each_field() -> None:
    manifest = AppManifest(extracts=True, native_libraries={"libcdsprpc.so": True})
    unit = AppUnit(
        "free",
        Kind.AAR,
        manifest,
        libraries=(*pack("libQnnHtp.so", packed_bytes=3), *pack("a.so", abi="x86")),
        absent=("b.so",),
        min_sdk=21,
    )
    finding = Finding("QNN1", "a subject", "what", "where", "why", "fix", Severity.WARNING)
    data = data_of("an.aar", [CheckedUnit(unit, (finding,))], ["SM8650", "SM8750"], strict=True)
    (found,) = data.pop("units")
    assert data == {
        "schema_version": 1,
        "app": "an.aar",
        "socs": ["SM8650", "SM8750"],
        "strict": True,
        "fit": False,
    }
    (shown,) = found.pop("findings")
    assert (shown["id"], shown["severity"]) == ("QNN1", "warning")
    assert found == {
        "name": "free",
        "kind": Kind.AAR.value,
        "min_sdk": 21,
        "extracted": find_extraction(unit),
        "native_libraries": {"libcdsprpc.so": True},
        "abis": [QNN_ABI, "x86"],
        "qnn": [],
        "components": [
            {"name": "QNN, others", "files": 1, "bytes": 7, "packed_bytes": 3},
            {"name": "all for x86", "files": 1, "bytes": 7, "packed_bytes": None},
        ],
        "absent": ["b.so"],
        "errors": 0,
        "warnings": 1,
    }


@pytest.mark.parametrize(("extracts", "word"), [(True, "yes"), (False, "no"), (None, "unknown")])
def test_an_app_says_whether_its_libraries_are_extracted(extracts: bool | None, word: str) -> None:
    manifest = None if extracts is None else AppManifest(extracts=extracts)
    unit = AppUnit("u", Kind.APK, manifest, min_sdk=23)
    text = render_units([CheckedUnit(unit, ())], strict=False, width=80)
    assert f"libraries extracted: {word}" in text
    (row,) = data_of("u", [CheckedUnit(unit, ())], [], strict=False)["units"]
    assert row["extracted"] is extracts
    assert row["native_libraries"] == (None if manifest is None else {})


def test_the_verdict_on_an_app_is_as_strict_and_wide_as_asked() -> None:
    unit = AppUnit("u", Kind.APK, AppManifest(extracts=True), min_sdk=23)
    finding = Finding("QNN1", "a", "word " * 40, "where", "why", "fix", Severity.WARNING)
    lenient, strict, wide = (
        render_units([CheckedUnit(unit, (finding,))], strict=strict, width=width)
        for strict, width in ((False, 60), (True, 60), (True, 120))
    )
    assert lenient != strict != wide
    assert max(map(len, wide.splitlines())) > 60
    assert [max(map(len, one.splitlines()[3:])) <= 60 for one in (lenient, strict)] == [True] * 2
