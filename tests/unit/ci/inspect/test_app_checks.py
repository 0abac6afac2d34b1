"""Each check of an app sees its fault in a real app, and not the nearest thing to it."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.inspect.app_checks import (
    APPS,
    _weigh,
    find_extraction,
    find_wanted,
    judge_unit,
    lacks_only_files,
    list_app_checks,
)
from ci.inspect.app_manifest import AppManifest
from ci.inspect.app_trees import read_app
from ci.inspect.apps import MANIFEST, QNN_ABI, AppUnit, Kind, PackedFile
from ci.inspect.gradle import Gradle
from ci.verbs.check_app import CheckedUnit, _builds, choose_exit, measure
from provisioning.doctor.checks.registry import Finding, Severity
from provisioning.doctor.facts import TreeFacts
from provisioning.elf.facts import EM_X86_64
from provisioning.errors import ExitCode
from tests.stand_ins.android_apps import (
    ABI,
    KEPT,
    MANIFESTS,
    OLDER,
    library,
    make_set,
    skel,
    write_apk,
    write_sources,
)
from tests.stand_ins.lowered import Number, Vector, make_binary, make_flatbuffer, make_program

Make = Callable[[Path], Path]
SET = make_set()
CPU = {name: data for name, data in SET.items() if "Skel" not in name}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
LEGACY = "useLegacyPackaging = true"
PTE = b"QnnBackend" + bytes(60)


def units(path: Path, scratch: Path) -> list[AppUnit]:
    scratch.mkdir(exist_ok=True)
    return read_app(path, scratch)


def judge(path: Path, scratch: Path, *socs: str) -> list[Finding]:
    return [one for unit in units(path, scratch) for one in judge_unit(unit, socs)]


def ids(findings: Iterable[Finding]) -> set[str]:
    return {one.id for one in findings}


def apk(libraries: dict[str, bytes] = SET, **change: object) -> Make:
    return lambda place: write_apk(place / "app.apk", libraries, **change)  # type: ignore[arg-type]


def sources(libraries: dict[str, bytes] = SET, **change: str) -> Make:
    return lambda place: write_sources(place / "project", libraries, **change)


def with_aar(files: dict[str, bytes], jni: str = KEPT) -> Make:
    def make(place: Path) -> Path:
        root = write_sources(place / "project", SET, jni=jni)
        (root / "app" / "libs").mkdir()
        with zipfile.ZipFile(root / "app" / "libs" / "a.aar", "w") as archive:
            archive.writestr("R.txt", "")
            for name, data in files.items():
                archive.writestr(f"jni/{ABI}/{name}", data)
        return root

    return make


def with_file(make: Make, name: str, data: bytes) -> Make:
    def write(place: Path) -> Path:
        root = make(place)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        return root

    return write


def without(name: str) -> Make:
    """A checkout in which a file is missing."""

    def make(place: Path) -> Path:
        root = write_sources(place / "project", SET)
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", "-C", root, *words], check=True)
        (root / name).unlink()
        return root

    return make


def unpacked(place: Path) -> Path:
    """A directory with libraries for an ABI, but without a manifest."""
    (place / ABI).mkdir(parents=True)
    for name, data in SET.items():
        (place / ABI / name).write_bytes(data)
    return place


JNI = f"app/src/main/jniLibs/{ABI}"
APP_LIBS = {"libc++_shared.so": library("libc++_shared.so")}
OTHER_CXX = {"libc++_shared.so": library("libc++_shared.so", OLDER)}
PICK = f'{KEPT}; pickFirsts += "**/libc++_shared.so"'
OLD_SET = make_set("v2.37.0.250724175447")
PAIRS: dict[str, tuple[Make, Make]] = {
    "QNN850": (apk({}), apk()),
    "QNN851": (apk(abi="x86_64"), apk()),
    "QNN852": (apk({"libapp.so": library("libapp.so")}), apk()),
    "QNN853": (without(f"{JNI}/libQnnSystem.so"), without("app/src/main/AndroidManifest.xml")),
    "QNN854": (with_file(sources(), f"{JNI}/libQnnHtp.so", POINTER), sources()),
    "QNN855": (unpacked, apk(manifest="")),
    "QNN856": (apk(manifest="inside", stored=True), apk(CPU, manifest="inside", stored=True)),
    "QNN857": (apk(manifest="inside"), apk(manifest="declared")),
    "QNN858": (
        apk(manifest="inside", stored=True, align=4),
        apk(manifest="inside", stored=True, align=4096),
    ),
    "QNN859": (
        apk(manifest="inside", stored=True, align=4096),
        apk(manifest="inside", stored=True),
    ),
    "QNN860": (
        apk(manifest="undeclared"),
        apk({**SET, "libcdsprpc.so": b""}, manifest="undeclared"),
    ),
    "QNN863": (apk(manifest="inside"), apk()),
    "QNN864": (
        with_file(sources(), "app/src/main/assets/a.pte", PTE),
        with_file(
            sources(
                {**SET, "libqnn_executorch_backend.so": library("libqnn_executorch_backend.so")}
            ),
            "app/src/main/assets/a.pte",
            PTE,
        ),
    ),
    "QNN865": (sources(jni=LEGACY), sources(OLD_SET, jni=LEGACY)),
    "QNN866": (
        with_file(with_aar(APP_LIBS), f"{JNI}/libc++_shared.so", APP_LIBS["libc++_shared.so"]),
        with_file(
            with_aar(APP_LIBS, PICK), f"{JNI}/libc++_shared.so", APP_LIBS["libc++_shared.so"]
        ),
    ),
    "QNN867": (
        with_file(
            with_aar(OTHER_CXX, PICK), f"{JNI}/libc++_shared.so", APP_LIBS["libc++_shared.so"]
        ),
        with_file(
            with_aar(APP_LIBS, PICK), f"{JNI}/libc++_shared.so", APP_LIBS["libc++_shared.so"]
        ),
    ),
    "QNN868": (
        sources(dependencies='implementation("com.qualcomm.qti:qnn-runtime:2.49.0")'),
        sources(dependencies='implementation("com.google:guava:1")'),
    ),
    "QNN871": (with_file(with_aar({}), "app/libs/a.aar", b"PK\3\4 cut"), with_aar(APP_LIBS)),
    "QNN872": (apk(manifest=""), unpacked),
    "QNN869": (sources(jni=f"{LEGACY}.and(x)"), sources(CPU, jni=f"{LEGACY}.and(x)")),
}


@pytest.mark.parametrize("code", PAIRS)
def test_a_check_sees_its_fault_and_not_the_nearest_thing(code: str, tmp_path: Path) -> None:
    seen, near = (make(tmp_path / name) for make, name in zip(PAIRS[code], "ab", strict=True))
    found = [one for one in judge(seen, tmp_path / "1") if one.id == code]
    assert len(found) == 1
    assert all(str(tmp_path / "1") not in f"{one.where}{one.fix}" for one in found)
    assert code not in ids(judge(near, tmp_path / "2"))


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (apk({}), {"QNN850"}),
        (apk(abi="x86_64"), {"QNN851"}),
        (apk({"libapp.so": library("libapp.so")}), {"QNN852"}),
        (apk(others={"assets/a.bin": make_binary()[:-1]}), {"QNN322"}),
        (apk({}, others={"assets/a.bin": make_binary()[:-1]}), {"QNN850", "QNN322"}),
        (apk(manifest=""), {"QNN872"}),
    ],
)
def test_what_follows_from_a_fault_is_not_reported_too(
    make: Make, found: set[str], tmp_path: Path
) -> None:
    assert ids(judge(make(tmp_path / "app"), tmp_path / "scratch", "SM8650")) == found


def test_every_check_has_a_test() -> None:
    others = {"QNN861", "QNN862", "QNN870"}  # below
    assert {check.id for check in list_app_checks()} == PAIRS.keys() | others


def test_what_an_app_may_run_with_is_no_error() -> None:
    found = {
        level: [one.id for one in list_app_checks() if one.severity is level] for level in Severity
    }
    assert found[Severity.WARNING] == [
        *("QNN855", "QNN859", "QNN862", "QNN864", "QNN865", "QNN866", "QNN867"),
    ]
    assert found[Severity.NOTE] == ["QNN861", "QNN863", "QNN868", "QNN869"]


DSP = {"libQnnDspV66Skel.so": skel("libQnnDspV66Skel.so", 0x66)}


@pytest.mark.parametrize(
    "make",
    [apk(), sources(), sources({**SET, **DSP}), apk({**SET, **make_set(hexagon=0x79)})],
)
def test_a_right_app_has_no_finding(make: Make, tmp_path: Path) -> None:
    assert judge(make(tmp_path / "app"), tmp_path / "scratch", "SM8650") == []


@pytest.mark.parametrize(
    ("libraries", "code"),
    [
        (SET | {"libQnnHtpV75Stub.so": library("libQnnHtpV75Stub.so", OLDER)}, "QNN301"),
        (SET | {"libQnnHtpV75Skel.so": skel("libQnnHtpV75Skel.so", 0x75, stripped=True)}, "QNN236"),
        (SET | {"libQnnHtp.so": SET["libQnnHtp.so"][:300]}, "QNN206"),
        ({name: data for name, data in SET.items() if "System" not in name}, ""),
        ({name: data for name, data in SET.items() if name != "libQnnHtp.so"}, "QNN310"),
    ],
)
def test_the_doctors_checks_judge_the_libraries(
    libraries: dict[str, bytes], code: str, tmp_path: Path
) -> None:
    found = judge(apk(libraries)(tmp_path), tmp_path / "scratch")
    errors = [one for one in found if one.severity is Severity.ERROR]
    assert ids(errors) == ({code} if code else set())
    assert all("app.apk" in one.where for one in errors)
    assert all(str(tmp_path) not in one.fix for one in found)


@pytest.mark.parametrize("socs", [[], ["SM8650"], ["SM8650", "SM8750"]])
def test_checks_of_the_doctor_that_apps_have_of_their_own_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, socs: list[str]
) -> None:
    """The others are reported once, whichever SoCs they are found for."""
    replaced = {"QNN203", "QNN308", "QNN309", "QNN320", "QNN321", "QNN325"}
    others = {"QNN206", "QNN236", "QNN301", "QNN310", "QNN311", "QNN312"}
    asked = []

    def stage(tree: TreeFacts, target: str, soc: str, wanted: tuple[str, ...]) -> list[Finding]:
        asked.append((target, soc, wanted))
        ids_ = sorted(replaced | others, reverse=True)
        return [Finding(one, "x", "", f"{tree.root}/lib/{ABI}/x.so", "", "") for one in ids_]

    monkeypatch.setattr("ci.inspect.app_checks.judge_staged", stage)
    found = judge(apk()(tmp_path), tmp_path / "scratch", *socs)
    assert [one.id for one in found] == sorted(others)
    assert {one.where for one in found} == {f"lib/{ABI} of app.apk/x.so"}
    assert asked == [("android", soc, ("libQnnHtp.so",)) for soc in socs or [""]]
    asked.clear()
    judge(apk({})(tmp_path / "empty"), tmp_path / "other")
    assert asked == []


def test_each_soc_that_is_asked_for_needs_its_stub_and_skel(tmp_path: Path) -> None:
    path = apk()(tmp_path)
    assert judge(path, tmp_path / "scratch", "SM8650") == []
    (finding,) = judge(path, tmp_path / "scratch", "SM8650", "SM8750")
    assert (finding.id, "V79" in finding.subject) == ("QNN312", True)


def test_a_library_that_is_not_qnns_makes_no_app_unfit(tmp_path: Path) -> None:
    broken = {"libgame.so": library("libgame.so")[:300]}
    (finding,) = judge(apk({**SET, **broken})(tmp_path), tmp_path / "scratch")
    assert (finding.id, finding.severity) == ("QNN206", Severity.WARNING)


def test_an_incomplete_copy_is_named_and_what_it_lacks_is_no_fault(tmp_path: Path) -> None:
    root = without(f"{JNI}/libQnnHtpV75Skel.so")(tmp_path)
    (unit,) = units(root, tmp_path / "scratch")
    found = judge_unit(unit, ["SM8650"])
    assert ids(found) == {"QNN853"}
    assert lacks_only_files(unit, found)
    (unit,) = units(apk(manifest="undeclared")(tmp_path), tmp_path / "scratch")
    assert not lacks_only_files(unit, judge_unit(unit, []))


def test_a_checkout_of_an_app_runs_no_program_of_its_own(tmp_path: Path) -> None:
    root, ran = without(f"{JNI}/libQnnSystem.so")(tmp_path / "p"), tmp_path / "ran"
    words = ["config", "core.fsmonitor", f"touch {ran}; true"]
    subprocess.run(["git", "-C", root, *words], check=True)
    (unit,) = units(root, tmp_path / "scratch")
    assert unit.absent == (f"{JNI}/libQnnSystem.so",)
    assert not ran.exists()


def test_a_pointer_within_an_apk_is_a_fault_of_the_app(tmp_path: Path) -> None:
    path = apk({**SET, "libQnnHtp.so": POINTER})(tmp_path)
    (unit,) = units(path, tmp_path / "scratch")
    found = judge_unit(unit, [])
    assert "QNN854" in ids(found)
    assert not lacks_only_files(unit, found)


@pytest.mark.parametrize(
    ("name", "is_qnn"),
    [
        (f"lib/{ABI}/libQnnCpu.so", True),
        (f"lib/{ABI}/libSNPE.so", True),
        ("assets/qnn/libQnnHtp.so", True),
        (f"lib/{ABI}/libmyQnn.so", False),
    ],
)
def test_an_app_may_have_its_qnn_libraries_anywhere(
    tmp_path: Path, name: str, is_qnn: bool
) -> None:
    others = {name: library(name.rpartition("/")[2])}
    path = write_apk(tmp_path / "app.apk", {"libapp.so": library("libapp.so")}, others=others)
    assert ("QNN852" in ids(judge(path, tmp_path / "scratch"))) is not is_qnn


@pytest.mark.parametrize(
    ("name", "data", "is_skel"),
    [
        ("libsum_skel.so", skel("libsum_skel.so", 0x75), True),
        ("libQnnHtpV75Skel.so", b"damaged", True),
        ("libsum_skel.so", library("libsum_skel.so"), False),
    ],
)
def test_a_library_for_the_dsp_or_with_the_name_of_a_skel_has_to_be_a_file(
    tmp_path: Path, name: str, data: bytes, is_skel: bool
) -> None:
    path = apk({**CPU, name: data}, manifest="inside", stored=True)(tmp_path)
    assert ("QNN856" in ids(judge(path, tmp_path / "scratch"))) is is_skel


@pytest.mark.parametrize(
    ("jni", "cause"),
    [
        ("useLegacyPackaging = false", 'extractNativeLibs is "false"'),
        ("", "without useLegacyPackaging, Gradle sets extractNativeLibs to false"),
    ],
)
def test_the_cause_of_a_skel_inside_is_what_the_build_file_says(
    tmp_path: Path, jni: str, cause: str
) -> None:
    root = write_sources(tmp_path / "p", SET, jni=jni, manifest="undeclared")
    (what,) = (one.what for one in judge(root, tmp_path / "scratch") if one.id == "QNN856")
    assert what.endswith(cause)


def test_a_skel_in_assets_needs_no_extraction(tmp_path: Path) -> None:
    dsp = {f"assets/qnn/{name}": data for name, data in SET.items() if "Skel" in name}
    path = write_apk(tmp_path / "app.apk", CPU, manifest="inside", stored=True, others=dsp)
    assert ids(judge(path, tmp_path / "scratch", "SM8650")) == {"QNN863"}


def test_the_program_of_an_app_is_compared_with_its_libraries(tmp_path: Path) -> None:
    context = b"v2.51.0.261010101010\0"
    head = (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(16)
    size = len(context)
    data = head + (40).to_bytes(8, "little") + size.to_bytes(8, "little") + context
    path = write_apk(tmp_path / "app.apk", SET, others={"assets/model.bin": data})
    (finding,) = judge(path, tmp_path / "scratch")
    assert (finding.id, finding.where) == ("QNN313", "app.apk/assets/model.bin")


def test_min_sdk_of_the_manifest_counts(tmp_path: Path) -> None:
    note = bytearray(library("libQnnHtp.so"))
    at = note.index(b"Android\0") + 8
    note[at : at + 4] = (31).to_bytes(4, "little")
    path = apk({**SET, "libQnnHtp.so": bytes(note)})(tmp_path)
    assert ids(judge(path, tmp_path / "scratch")) == {"QNN223"}


@pytest.mark.parametrize(
    ("min_sdk", "extracts"), [(21, True), (22, True), (23, False), (None, False)]
)
def test_gradle_extracts_libraries_up_to_api_22(min_sdk: int | None, extracts: bool) -> None:
    unit = AppUnit("app", Kind.SOURCES, None, gradle=Gradle("build.gradle"), min_sdk=min_sdk)
    assert find_extraction(unit) is extracts
    computed = Gradle("build.gradle", is_legacy_computed=True)
    for stated in (True, False):
        stating = replace(unit, manifest=AppManifest(extracts=stated))
        assert find_extraction(stating) is stated
        assert find_extraction(replace(stating, gradle=computed)) is None


@pytest.mark.parametrize(
    ("kind", "stated", "fault", "extracts"),
    [
        (Kind.APK, None, "", True),
        (Kind.APK, False, "", False),
        (Kind.APK, True, "", True),
        (Kind.APK, None, "it is not XML", None),
        (Kind.AAR, None, "", None),
        (Kind.DIRECTORY, False, "", False),
    ],
)
def test_an_apk_with_a_whole_manifest_is_extracted_unless_it_says_no(
    kind: Kind, stated: bool | None, fault: str, extracts: bool | None
) -> None:
    manifest = AppManifest(extracts=stated, fault=fault)
    assert find_extraction(AppUnit("app", kind, manifest)) is extracts
    assert find_extraction(AppUnit("app", kind, None)) is None


def needing(unit: AppUnit, name: str, *needed: str, interpreter: str | None = None) -> AppUnit:
    """The unit with one more library, or program, that needs others."""
    first = next(one for one in unit.tree.files if one.name == "libQnnHtp.so")
    assert first.elf
    elf = replace(first.elf, needed=needed, interpreter=interpreter, path=Path(name))
    file = replace(first, relative=f"lib/{ABI}/{name}", path=Path(name), elf=elf)
    return replace(unit, tree=replace(unit.tree, files=(*unit.tree.files, file)))


@pytest.mark.parametrize("name", ["libOpenCL.so", "libadsprpc.so", "libsdsprpc.so"])
def test_each_library_of_the_vendor_has_to_be_declared(tmp_path: Path, name: str) -> None:
    (unit,) = units(apk()(tmp_path), tmp_path / "scratch")
    found = list(APPS.judge(needing(unit, "libQnnGpu.so", name)))
    assert [(one.id, one.subject) for one in found] == [("QNN862", name)]


@pytest.mark.parametrize(
    ("names", "severity"),
    [
        ("libQnnX.so libqnn_x.so libGenie.so libHtpPrepare.so libSnpeHtp.so", Severity.ERROR),
        ("libSNPE.so libexecutorch.so libonnxruntime.so libc++_shared.so", Severity.ERROR),
        ("libapp.so libGenius.so libcpp.so", Severity.WARNING),
    ],
)
def test_a_fault_of_a_library_that_is_not_qnn_s_is_a_warning(
    tmp_path: Path, names: str, severity: Severity
) -> None:
    (unit,) = units(apk()(tmp_path), tmp_path / "scratch")
    for name in names.split():
        where = f"{unit.name}: lib/{ABI}/{name}"
        weighed = _weigh(unit, Finding("QNN232", name, "needs glibc", where, "", ""))
        assert weighed
        assert weighed.severity is severity, name
        note = Finding("QNN232", name, "needs glibc", where, "", "", Severity.NOTE)
        assert _weigh(unit, note) == note


def test_other_libraries_of_the_vendor_are_declared_too(tmp_path: Path) -> None:
    (unit,) = units(apk()(tmp_path), tmp_path / "scratch")
    found = list(APPS.judge(needing(unit, "libQnnGpu.so", "libOpenCL.so", "libcdsprpc.so")))
    assert [(one.id, one.subject) for one in found] == [("QNN862", "libOpenCL.so")]
    other = needing(unit, "libQnnGpu.so", "libOpenCL.so")
    *files, last = other.tree.files
    assert last.elf
    x86 = replace(last, elf=replace(last.elf, machine=EM_X86_64))
    assert list(APPS.judge(replace(other, tree=replace(other.tree, files=(*files, x86))))) == []
    old = replace(unit, manifest=replace(unit.manifest, target_sdk=30, native_libraries={}))
    assert list(APPS.judge(needing(old, "libQnnGpu.so", "libOpenCL.so"))) == []
    first = replace(old, manifest=replace(old.manifest, target_sdk=31))
    assert ids(APPS.judge(first)) == {"QNN860"}


def test_a_program_that_the_app_starts_needs_no_declaration(tmp_path: Path) -> None:
    (unit,) = units(apk(manifest="undeclared")(tmp_path), tmp_path / "scratch")
    with_program = needing(unit, "librunner.so", interpreter="/system/bin/linker64")
    assert ids(APPS.judge(unit)) == {"QNN860"}
    assert ids(APPS.judge(with_program)) == {"QNN861"}


def test_a_program_is_compared_with_libraries_and_kernels(tmp_path: Path) -> None:
    """`compat` judges it: libexecutorch.so has no kernel for the operator on the CPU."""
    program = {"assets/model.pte": make_program()}
    runtime = {"libqnn_executorch_backend.so": library("libqnn_executorch_backend.so")}
    path = write_apk(tmp_path / "app.apk", SET | runtime, others=program)
    (finding,) = judge(path, tmp_path / "scratch", "SM8650")
    assert (finding.id, finding.where) == ("QNN870", "app.apk/assets/model.pte")
    runtime["libkernels.so"] = library("libkernels.so") + b"aten::erf.out\0"
    path = write_apk(tmp_path / "app.apk", SET | runtime, others=program)
    assert judge(path, tmp_path / "scratch", "SM8650") == []
    found = judge(path, tmp_path / "scratch", "SM8750")
    assert "QNN323" in ids(found)


@pytest.mark.parametrize("lacking", ["", "a::one", "a::two"])
def test_operators_of_every_method_need_kernels(tmp_path: Path, lacking: str) -> None:
    value = {0: Number("B", 5), 1: {2: Vector([1], "i")}}
    call = Vector([{2: Vector([{0: Number("B", 1), 1: {0: Number("i", 0)}}])}])
    method = {2: Vector([value]), 3: Vector([0], "i"), 5: call}
    plans = [{0: name, **method, 6: Vector([{0: f"a::{name}"}])} for name in ("one", "two")]
    program = {"assets/m.pte": make_flatbuffer({1: Vector(plans)}, b"ET12")}
    names = [name for name in ("a::one", "a::two") if name != lacking]
    kernels = library("libexecutorch.so") + "".join(f"{name}\0" for name in names).encode()
    path = write_apk(tmp_path / "app.apk", {**SET, "libexecutorch.so": kernels}, others=program)
    found = [one.what for one in judge(path, tmp_path / "scratch") if one.id == "QNN870"]
    assert [lacking in what for what in found] == ([True] if lacking else [])


def test_an_app_may_have_one_program_per_soc(tmp_path: Path) -> None:
    names = {"SM8650": ("SM8650", 57, 75), "SM8750": ("SM8750", 69, 79)}
    programs = {f"assets/{one}.bin": make_binary(soc=soc) for one, soc in names.items()}
    libraries = SET | make_set(hexagon=0x79)
    path = write_apk(tmp_path / "app.apk", libraries, others=programs)
    assert judge(path, tmp_path / "scratch", *names) == []
    path = write_apk(tmp_path / "one.apk", libraries, others={"assets/a.bin": make_binary()})
    assert ids(judge(path, tmp_path / "scratch", *names)) == {"QNN323"}


def test_a_program_that_needs_more_vtcm_may_be_next_to_one_that_fits(tmp_path: Path) -> None:
    large = make_binary(vtcm_mb=16)
    path = write_apk(tmp_path / "one.apk", SET, others={"assets/b.bin": large})
    alone = judge(path, tmp_path / "scratch", "SM8650")
    assert {one.severity for one in alone} == {Severity.ERROR}
    both = {"assets/a.bin": make_binary(), "assets/b.bin": large}
    path = write_apk(tmp_path / "both.apk", SET, others=both)
    assert judge(path, tmp_path / "scratch", "SM8650") == []


OF_69 = {"assets/m.bin": make_binary(soc=("SM8475", 42, 69))}
OF_75 = {"assets/75.bin": make_binary()}
UNSTATED = {"assets/u.bin": make_binary(soc=("", 0, 69))}


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ({}, [("QNN324", "app.apk/assets/m.bin")]),
        (OF_75, [("QNN324", "app.apk/assets/m.bin")]),
        ({"assets/other/m.bin": make_binary(soc=("SM8450", 36, 69))}, []),
        (UNSTATED, []),
    ],
)
def test_a_program_for_an_soc_of_the_same_hexagon_is_warned_of_unless_another_fits(
    others: dict[str, bytes], found: list[tuple[str, str]], tmp_path: Path
) -> None:
    """It fails with error 5005 if the SoCs differ in their VTCM."""
    libraries = make_set(hexagon=0x69) | make_set(hexagon=0x75)
    path = write_apk(tmp_path / "app.apk", libraries, others=OF_69 | others)
    findings = judge(path, tmp_path / "scratch", "SM8450")
    assert [(one.id, one.where) for one in findings] == found
    assert {one.severity for one in findings} <= {Severity.WARNING}


def test_a_program_without_a_context_is_for_no_soc(tmp_path: Path) -> None:
    """It does not excuse another program that is for another SoC."""
    plain = make_program().replace(b"QnnBackend", b"XnnBackend")
    programs = {"assets/a.bin": make_binary(), "assets/model.pte": plain}
    path = write_apk(tmp_path / "app.apk", SET | make_set(hexagon=0x79), others=programs)
    assert "QNN323" in ids(judge(path, tmp_path / "scratch", "SM8750"))
    assert "QNN323" not in ids(judge(path, tmp_path / "scratch", "SM8650"))


def test_what_packaging_is_without_a_word_of_it(tmp_path: Path) -> None:
    """Gradle leaves libraries inside from minSdk 23 on; Android extracts them by default."""
    root = write_sources(tmp_path / "p", SET, jni="", manifest="undeclared")
    assert "QNN856" in ids(judge(root, tmp_path / "scratch"))
    gradle = root / "app" / "build.gradle.kts"
    gradle.write_text(gradle.read_text().replace("minSdk = 30", "minSdk = 21"))
    assert "QNN856" not in ids(judge(root, tmp_path / "scratch"))
    (unit,) = units(apk(manifest="undeclared")(tmp_path), tmp_path / "scratch")
    assert find_extraction(unit) is True


def test_pages_of_16_kib_are_for_64_bits(tmp_path: Path) -> None:
    narrow = apk(abi="armeabi-v7a", manifest="inside", stored=True, align=4096)(tmp_path)
    assert ids(judge(narrow, tmp_path / "scratch")) == {"QNN851", "QNN863"}


def test_without_a_soc_each_program_must_fit_the_packaged_skels(tmp_path: Path) -> None:
    programs = {
        "assets/a.bin": make_binary(),
        "assets/b.bin": make_binary(soc=("SM8750", 69, 79)),
    }
    path = write_apk(tmp_path / "app.apk", SET, others=programs)
    (finding,) = judge(path, tmp_path / "scratch")
    assert (finding.id, finding.subject) == ("QNN323", "b.bin")


def test_a_flavours_library_replaces_the_main_one(tmp_path: Path) -> None:
    root = write_sources(tmp_path / "p", make_set(OLDER))
    write_sources(root, SET, source_set="newer")
    (unit,) = units(root, tmp_path / "scratch")
    assert {one.shown.split("/")[2] for one in unit.libraries} == {"newer"}
    assert judge_unit(unit, []) == []


def test_a_flavours_manifest_adds_libraries_to_the_main_one(tmp_path: Path) -> None:
    root = write_sources(tmp_path / "p", SET, manifest="inside")
    write_sources(root, SET, source_set="newer")
    uses = '<uses-native-library a:name="libOpenCL.so" a:required="false"/>'
    (root / "app" / "src" / "newer" / MANIFEST).write_text(
        '<manifest xmlns:a="http://schemas.android.com/apk/res/android">'
        f"<application>{uses}</application></manifest>"
    )
    (unit,) = units(root, tmp_path / "scratch")
    assert unit.manifest
    assert (unit.manifest.package, unit.manifest.extracts) == ("org.example.app", False)
    assert unit.manifest.native_libraries == {"libcdsprpc.so": True, "libOpenCL.so": False}


ABSENCES = "QNN216 QNN304 QNN309 QNN310 QNN311 QNN312 QNN317 QNN850 QNN851 QNN852 QNN864 QNN870"
FROM_GRADLE = Gradle("build.gradle", maven=("org.pytorch:executorch-android-qnn:1.0.0",))


@pytest.mark.parametrize(
    ("kind", "more", "notes", "warnings", "dropped"),
    [
        (Kind.APK, {}, "", "", ""),
        (Kind.DIRECTORY, {"absent": ("x/libother.so",)}, ABSENCES, "", ""),
        (Kind.SOURCES, {"gradle": FROM_GRADLE}, ABSENCES, "", "QNN228"),
        (Kind.SOURCES, {"pointers": ("m.pte",)}, ABSENCES, "", "QNN228"),
        (Kind.SOURCES, {"damaged": {"a.aar": "cut"}}, ABSENCES, "", "QNN228"),
        (Kind.SOURCES, {"absent": ("jni/libQnnHtp.so",)}, "", "", f"{ABSENCES} QNN228"),
        (Kind.AAR, {}, ABSENCES, "QNN856 QNN860", ""),
        (Kind.LIBRARY, {}, ABSENCES, "QNN856 QNN860", "QNN228"),
    ],
)
def test_a_fault_weighs_what_it_means_for_this_app(
    kind: Kind, more: dict[str, Any], notes: str, warnings: str, dropped: str
) -> None:
    unit = AppUnit("app", kind, None, **more)
    others = "QNN228 QNN230 QNN853 QNN854 QNN856 QNN860 QNN861 QNN872"
    found: dict[str, list[str]] = {}
    for id_ in f"{ABSENCES} {others}".split():
        where = "app: lib/arm64-v8a/libQnnHtp.so"
        weighed = _weigh(unit, Finding(id_, "app", "libQnnHtp.so is missing", where, "", ""))
        found.setdefault(weighed.severity.value if weighed else "", []).append(id_)
    words = {"note": notes, "warning": warnings, "": dropped}
    assert {name: sorted(found.get(name, [])) for name in words} == {
        name: sorted(ids_.split()) for name, ids_ in words.items()
    }
    warned = Finding("QNN856", "app", "", "", "", "", Severity.WARNING)
    assert _weigh(unit, warned) == warned


@pytest.mark.parametrize("field", ["subject", "what", "fix"])
def test_what_a_copy_lacks_is_told_once_whichever_text_names_it(field: str) -> None:
    unit = AppUnit("app", Kind.SOURCES, None, absent=("x/a.pte", "jni/libc++_shared.so"))
    bare = Finding("QNN312", "V79", "no stub", "app: lib/arm64-v8a", "", "add it")
    for name, is_told in (("libc++_shared.so", False), ("libQnnHtpV79Stub.so", True)):
        found = _weigh(unit, replace(bare, **{field: f"one needs {name} here"}))
        assert (found is not None) is is_told


def pack(*names: str) -> tuple[PackedFile, ...]:
    return tuple(PackedFile(name, Path(name), name, 1, QNN_ABI) for name in names)


@pytest.mark.parametrize(
    ("names", "lowered", "wanted"),
    [
        (["libapp.so"], False, ()),
        (["libapp.so"], True, ()),
        (["libQnnHtp.so"], False, ("libQnnHtp.so",)),
        (["libQnnHtpV79Stub.so"], False, ("libQnnHtp.so",)),
        (["libQnnHtp.so"], True, ("libQnnHtp.so", "libQnnSystem.so")),
        (["libQnnHtp.so", "libexecutorch_jni.so"], False, ("libQnnHtp.so", "libQnnSystem.so")),
        (["libQnnHtp.so", "libonnxruntime.so"], False, ("libQnnHtp.so", "libQnnSystem.so")),
        (
            ["libQnnHtp.so", "libqnn_executorch_backend.so"],
            *(False, ("libQnnHtp.so", "libQnnSystem.so")),
        ),
        (["libQnnGpu.so"], False, ()),
        (["libQnnCpu.so"], False, ()),
        (["libQnnDsp.so"], False, ()),
        (["libQnnLpai.so"], False, ()),
        (["libQnnSystem.so"], False, ("libQnnHtp.so",)),
        (["libQnnGpu.so", "libonnxruntime.so"], False, ("libQnnSystem.so",)),
        (["libQnnGpu.so", "libQnnHtpPrepare.so"], False, ("libQnnHtp.so",)),
    ],
)
def test_the_libraries_that_an_app_needs(
    names: list[str], lowered: bool, wanted: tuple[str, ...]
) -> None:
    tree = TreeFacts(Path(), (), lowered=(object(),) if lowered else ())  # type: ignore[arg-type]
    assert find_wanted(AppUnit("app", Kind.APK, None, pack(*names), tree=tree)) == wanted


def test_an_app_without_a_manifest_cannot_be_installed_but_a_library_is_not(
    tmp_path: Path,
) -> None:
    (finding,) = judge(apk(manifest="")(tmp_path), tmp_path / "1")
    assert (finding.id, finding.severity) == ("QNN872", Severity.ERROR)
    aar = (tmp_path / "app.apk").rename(tmp_path / "app.aar")
    found = {one.id: one.severity for one in judge(aar, tmp_path / "2")}
    assert found == {"QNN855": Severity.WARNING}


@pytest.mark.parametrize(
    ("name", "data", "needed"),
    [
        ("m.pte", b"", ()),
        ("m.pte", b"a QnnBackend and more", ("libqnn_executorch_backend.so",)),
        ("m.pte", b"dlc.metadata", ("libQnnModelDlc.so",)),
        (
            "m.pte",
            b"QnnBackend dlc.metadata EPContext",
            ("libqnn_executorch_backend.so", "libQnnModelDlc.so"),
        ),
        ("m.onnx", b"QnnBackend", ("libQnnHtpPrepare.so",)),
        ("m.onnx", b"EPContext", ()),
        ("m.dlc", b"", ("libQnnModelDlc.so|libSNPE.so",)),
        ("m.bin", b"QnnBackend dlc.metadata", ()),
    ],
)
def test_what_a_program_needs_depends_on_its_kind_and_contents(
    tmp_path: Path, name: str, data: bytes, needed: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(data)
    assert PackedFile(name, tmp_path / name, name, len(data)).find_needs() == needed


def make_checked(kind: Kind, **found: Severity) -> CheckedUnit:
    findings = (Finding(code, "x", "x", "x", "x", "x", level) for code, level in found.items())
    return CheckedUnit(AppUnit("app", kind, None), tuple(findings))


def test_a_failure_counts_more_than_an_incomplete_copy() -> None:
    right = make_checked(Kind.SOURCES, QNN868=Severity.NOTE)
    warned = make_checked(Kind.SOURCES, QNN862=Severity.WARNING)
    incomplete = make_checked(Kind.SOURCES, QNN853=Severity.ERROR, QNN862=Severity.WARNING)
    pointer = make_checked(Kind.LIBRARY, QNN854=Severity.ERROR)
    both = make_checked(Kind.SOURCES, QNN853=Severity.ERROR, QNN850=Severity.ERROR)
    failed = make_checked(Kind.APK, QNN853=Severity.ERROR)
    for units_, code, strict_code in (
        ([right], ExitCode.OK, ExitCode.OK),
        ([right, warned], ExitCode.OK, ExitCode.FAILED),
        ([right, incomplete], ExitCode.ENVIRONMENT, ExitCode.ENVIRONMENT),
        ([warned, incomplete], ExitCode.ENVIRONMENT, ExitCode.FAILED),
        ([pointer], ExitCode.ENVIRONMENT, ExitCode.ENVIRONMENT),
        ([both], ExitCode.FAILED, ExitCode.FAILED),
        ([incomplete, failed], ExitCode.FAILED, ExitCode.FAILED),
        ([failed, incomplete], ExitCode.FAILED, ExitCode.FAILED),
    ):
        assert choose_exit(units_, strict=False) is code
        assert choose_exit(units_, strict=True) is strict_code


def test_sizes_are_summed_by_component_and_those_in_the_archive_where_they_are_known() -> None:
    def pack_one(name: str, size: int, packed: int | None, abi: str = QNN_ABI) -> PackedFile:
        return PackedFile(name, Path(name), name, size, abi, packed)

    files = (
        pack_one("libQnnHtpV79Skel.so", 9000, 4000),
        pack_one("libQnnHtpV75Skel.so", 500, None),
        pack_one("libQnnHtp.so", 700, None),
        pack_one("libapp.so", 60, 50),
        pack_one("libQnnHtp.so", 8, 7, "x86_64"),
    )
    unit = AppUnit("app", Kind.APK, None, files, assets=(pack_one("net.pte", 3, 2, ""),))
    assert list(measure(unit).items()) == [  # the largest first
        ("QNN, HTP skels", (2, 9500, 4000)),
        ("QNN, others", (1, 700, 0)),
        ("other libraries", (1, 60, 50)),
        ("all for x86_64", (1, 8, 7)),
        ("programs", (1, 3, 2)),
    ]


def test_an_app_names_the_qnn_versions_that_its_libraries_tell(tmp_path: Path) -> None:
    both = {**SET, "libQnnGpu.so": library("libQnnGpu.so", OLDER)}
    (unit,) = units(apk(both)(tmp_path), tmp_path / "scratch")
    assert _builds(unit) == ["2.48.99", "2.49.99"]
    first, *others = unit.tree.files
    assert first.build
    for build in (None, first.build._replace(version=None)):
        one = replace(unit.tree, files=(replace(first, build=build),))
        assert _builds(replace(unit, tree=one)) == []
    other = replace(unit.tree, files=tuple(one for one in others if one.name != "libQnnGpu.so"))
    assert _builds(replace(unit, tree=other)) == ["2.49.99"]
    old = {"assets/libQnnHtpV75Skel.so": skel("libQnnHtpV75Skel.so", 0x75, OLDER)}
    (unit,) = units(apk(CPU, others=old)(tmp_path), tmp_path / "scratch")
    assert _builds(unit) == ["2.48.99", "2.49.99"]


def test_an_unpacked_app_has_its_assets_and_lacks_nothing(tmp_path: Path) -> None:
    root = tmp_path / "app"
    unpacked(root / "lib")
    for name in ("assets/m.pte", "res/raw/other.pte"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(PTE)
    (unit,) = units(root, tmp_path / "scratch")
    assert sorted(one.name for one in unit.assets) == ["m.pte", "other.pte"]
    assert unit.absent == ()
    assert {one.name for one in unit.libraries} == {*SET}


@pytest.mark.parametrize("name", ["assets/m.pte", "assets/nets/m.pte", "res/raw/m.pte"])
def test_a_program_of_an_apk_is_an_asset_or_a_raw_resource(tmp_path: Path, name: str) -> None:
    path = write_apk(tmp_path / "app.apk", SET, others={name: PTE, f"other/{name}": PTE})
    (unit,) = units(path, tmp_path / "scratch")
    assert [one.shown for one in unit.assets] == [f"app.apk/{name}"]


def test_of_a_set_with_a_universal_apk_that_one_alone_is_checked(tmp_path: Path) -> None:
    inner = write_apk(tmp_path / "inner.apk", SET)
    with zipfile.ZipFile(tmp_path / "app.apks", "w") as archive:
        for name in ("splits/base-arm64_v8a.apk", "universal.apk"):
            archive.write(inner, name)
    (unit,) = units(tmp_path / "app.apks", tmp_path / "scratch")
    assert (unit.duplicates, {one.name for one in unit.libraries}) == ((), {*SET})


def test_libraries_for_every_abi_of_android_are_found(tmp_path: Path) -> None:
    abis = ("arm64-v8a", "armeabi", "armeabi-v7a", "mips", "mips64", "riscv64", "x86", "x86_64")
    for abi in (*abis, "sparc"):
        (tmp_path / "app" / "lib" / abi).mkdir(parents=True)
        (tmp_path / "app" / "lib" / abi / "liba.so").write_bytes(library("liba.so"))
    (unit,) = units(tmp_path / "app", tmp_path / "scratch")
    assert unit.abis == abis


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (Kind.APK, "lib"),
        (Kind.DIRECTORY, "lib"),
        (Kind.AAR, "jni"),
        (Kind.SOURCES, "src/main/jniLibs"),
        (Kind.LIBRARY, "src/main/jniLibs"),
    ],
)
def test_a_file_that_is_missing_belongs_where_the_app_has_its_libraries(
    kind: Kind, place: str
) -> None:
    unit = AppUnit("app", kind, None, tree=TreeFacts(Path("/scratch/x"), ()))
    for inside in ("/scratch/x", f"/scratch/x/lib/{QNN_ABI}"):
        assert (
            unit.show(f"put it into {inside}/a.so") == f"put it into {place}/{QNN_ABI} of app/a.so"
        )


@pytest.mark.parametrize(
    ("change", "is_complete"),
    [
        ({"gradle": Gradle("build.gradle", archives=("libs/qnn.aar",))}, True),
        ({"gradle": Gradle("build.gradle", maven=("a:qnn:1",))}, False),
        ({"absent": ("liba.so",)}, False),
        ({"pointers": ("liba.so",)}, False),
        ({"damaged": {"a.aar": "it is empty"}}, False),
        ({"kind": Kind.LIBRARY}, False),
    ],
)
def test_an_app_is_complete_if_all_that_will_be_packaged_was_read(
    change: dict[str, Any], is_complete: bool
) -> None:
    unit = replace(AppUnit("app", Kind.SOURCES, None), **change)
    assert unit.is_complete == is_complete


def test_files_next_to_the_given_directory_do_not_belong_to_the_app(tmp_path: Path) -> None:
    """With the directory of an ABI directory, "assets" of an APK would lie above it."""
    folder = tmp_path / "libs"
    for name, data in SET.items():
        place = folder / QNN_ABI / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "other.pte").write_bytes(make_program())
    (tmp_path / MANIFEST).write_bytes((MANIFESTS / "declared.xml").read_bytes())
    (tmp_path / "scratch").mkdir()
    for given in (folder, folder / QNN_ABI):
        (unit,) = read_app(given, tmp_path / "scratch")
        assert (unit.assets, unit.manifest) == ((), None)
