"""Each check of an app finds its fault, in facts and in real apps, and not the nearest thing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from ci.inspect import app_checks
from ci.inspect.app_checks import (
    APPS,
    PAIRINGS,
    RPC,
    _weigh,
    find_extraction,
    find_wanted,
    judge_unit,
)
from ci.inspect.app_verdicts import CheckedUnit, render_units
from ci.inspect.apps import QNN_ABI, AppManifest, AppUnit, Kind, PackedFile
from ci.inspect.compat import Runtime
from ci.inspect.files import describe_runtime
from provisioning.doctor.facts import TreeFacts
from provisioning.doctor.registry import Finding, Severity
from provisioning.elf.facts import EM_X86_64
from provisioning.errors import ExitCode
from tests.build.apps import (
    CPU,
    POINTER,
    SET,
    SKELS,
    Make,
    apk,
    facts,
    judge,
    packed,
    read,
    show,
    unit,
    unpacked,
    write_files,
)
from tests.build.litert_libraries import list_libraries, make_library
from tests.stand_ins.android_apps import ABI, MANIFESTS, OLDER, library, make_set, skel, write_apk
from tests.stand_ins.litert import make_bundle, make_compiled, make_plain
from tests.stand_ins.lowered import Vector, make_binary, make_flatbuffer, make_program
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
PTE = b"QnnBackend" + bytes(60)
INSIDE = AppManifest(extracts=False, native_libraries={"libOpenCL.so": True, "libmine.so": True})
CL, USES_RPC = facts("liba.so", "libOpenCL.so"), facts("liba.so", RPC)
RUNS = facts("run1", program=True), facts("run2", program=True)
DLC = packed("m.dlc", abi="")
PLAIN, CUT = AppManifest(), AppManifest(fault="cut")


def apart(**fields: Any) -> AppUnit:
    """An APK whose libraries are not extracted, or another unit with such a manifest."""
    return unit(fields.pop("kind", Kind.APK), **{"manifest": INSIDE, **fields})


def needing(*names: str, target: int | None = None, machine: int = 183) -> AppUnit:
    """An APK with a library that needs others."""
    manifest = AppManifest(target_sdk=target)
    return unit(Kind.APK, facts("liba.so", *names, machine=machine), manifest=manifest)


# The check, what is special, and the app.
UNITS: list[tuple[str, str, AppUnit]] = [
    ("QNN850", "", unit(libraries=())),
    ("QNN851", "", unit(libraries=packed("a.so", abi="x86") + packed("a.so", abi="x86_64"))),
    ("QNN854", "", unit(pointers=("p/a.so", "q/b.so"))),
    ("QNN856", "", apart()),
    ("QNN856", "an unread manifest", unit(Kind.APK, manifest=CUT)),
    ("QNN857", "", apart()),
    ("QNN857", "a directory", apart(kind=Kind.DIRECTORY, libraries=packed("a.so"))),
    (
        *("QNN858", ""),
        apart(
            libraries=packed("a.so", offset=4096)
            + packed("b.so", "c.so", offset=4095)
            + packed("d.so", offset=0)
        ),
    ),
    (
        *("QNN859", ""),
        apart(libraries=packed("a.so", "b.so", offset=4096) + packed("c.so", offset=16384)),
    ),
    *(
        ("QNN859", abi, apart(libraries=packed("a.so", abi=abi, offset=4096)))
        for abi in ("x86_64", "x86", "armeabi-v7a")
    ),
    ("QNN860", "", unit(Kind.APK, USES_RPC, facts("libb.so", RPC), manifest=PLAIN)),
    ("QNN860", "the library that opens it", unit(Kind.APK, manifest=PLAIN)),
    ("QNN860", "an old app", needing(target=30)),
    ("QNN861", "", unit(Kind.APK, USES_RPC, *RUNS, manifest=PLAIN)),
    ("QNN861", "an unread manifest", unit(Kind.APK, USES_RPC, *RUNS, manifest=CUT)),
    (
        *("QNN862", ""),
        unit(
            *(Kind.APK, facts("liba.so", RPC, "libOpenCL.so", "libadsprpc.so", "libsdsprpc.so")),
            facts("libb.so", "libOpenCL.so"),
            manifest=PLAIN,
        ),
    ),
    ("QNN862", "not for a phone", needing("libOpenCL.so", machine=EM_X86_64)),
    ("QNN862", "an old app", needing("libOpenCL.so", target=30)),
    ("QNN863", "", apart()),
    ("QNN863", "optional", apart(manifest=AppManifest(native_libraries={"libOpenCL.so": False}))),
    ("QNN864", "", unit(assets=packed("m.dlc", "n.dlc", abi=""))),
    ("QNN864", "for another ABI", unit(libraries=packed("a.so", abi="x86"), assets=DLC)),
]  # fmt: skip


def test_app_checks_find_their_faulty_example_and_not_the_good_one() -> None:
    shown = ""
    for code, special, app in UNITS:
        findings = [finding for finding in APPS.judge(app) if finding.id == code]
        shown += f"{code} {special}".rstrip() + "\n" + (show(findings) or "  nothing\n")
    check_snapshot(SNAPSHOTS / "app_checks.txt", shown)


# -- real apps ------------------------------------------------------------------------------------

CXX = {"libc++_shared.so": library("libc++_shared.so")}
OTHER_CXX = {"libc++_shared.so": library("libc++_shared.so", OLDER)}
BACKEND = {"libqnn_executorch_backend.so": library("libqnn_executorch_backend.so")}
STORED = {"manifest": "inside", "stored": True}


def with_pointer(place: Path) -> Path:
    return write_files(place, {f"{ABI}/libQnnHtp.so": POINTER})


def with_splits(libraries: Mapping[str, bytes]) -> Make:
    """An app whose splits both have a C++ runtime."""

    def make(place: Path) -> Path:
        write_apk(place / "base.apk", SET | CXX)
        write_apk(place / "split.apk", libraries, manifest="split")
        return place

    return make


DISPATCH, PLUGIN = "libLiteRtDispatch_Qualcomm.so", "libLiteRtCompilerPlugin_Qualcomm.so"
DISPATCH_OF_MEDIATEK, PREPARE = "libLiteRtDispatch_MediaTek.so", "libQnnHtpPrepare.so"
COMPILED, PLAIN_MODEL = {"assets/m.tflite": make_compiled()}, {"assets/p.tflite": make_plain()}
OPENS = b"No dispatch library found in %s\0"
GROUP = "assets/model#group_Qualcomm_"
MODEL = 3  # the section type of a .litertlm's models
NEWER_MODEL = make_compiled(binary=make_binary(build="v2.51.0.261010101010"))
TO_SM8750 = make_binary(soc=("SM8750", 69, 79))
FOR_SA8775 = make_compiled(stamp=b"Qualcomm\0SA8775", binary=make_binary(soc=("SA8255", 52, 73)))
FOR_SM8750 = {"assets/n.tflite": make_compiled(stamp=b"Qualcomm\0SM8750", binary=TO_SM8750)}


def with_litert(*names: str, litert: str = "libLiteRt.so") -> dict[str, bytes]:
    """QNN's libraries, LiteRT and its dispatch library, and others."""
    # The plugin's name is longer than the one in the library that is edited.
    of_vendor = {name: library(name if name != PLUGIN else "") for name in (DISPATCH, *names)}
    return SET | of_vendor | {litert: library(litert) + OPENS}


def of_releases(runtime: str, dispatch: str) -> dict[str, bytes]:
    """LiteRT and its dispatch library of two releases."""
    return with_litert() | {
        "libLiteRt.so": make_library("libLiteRt.so", runtime),
        DISPATCH: make_library(DISPATCH, dispatch),
    }


def push(files: Mapping[str, bytes]) -> Make:
    """A directory whose files are pushed to a device."""
    return lambda place: write_files(place / "push", files)


KEEPS = """packaging { jniLibs { keepDebugSymbols += "**/*Skel.so" } }"""
CATALOG = b"""[versions]
qnn = "2.37.1"
[libraries]
qnn-runtime = { group = "com.qualcomm.qti", name = "qnn-runtime", version.ref = "qnn" }
"""
LEGACY = "packaging { jniLibs { useLegacyPackaging = true } }"
DECLARES = (MANIFESTS / "declared.xml").read_text().replace(' android:extractNativeLibs="true"', "")


def sources(*lines: str, libraries: Mapping[str, bytes] = SET, **models: bytes) -> Make:
    """A Gradle project with one module, whose build file has these lines."""
    main = "app/src/main"
    build = "\n".join(["plugins { id 'com.android.application' }", "minSdk 30", *lines])
    files: dict[str, str | bytes] = {
        "settings.gradle": "include ':app'",
        "app/build.gradle": build,
        f"{main}/AndroidManifest.xml": DECLARES,
        **{f"{main}/jniLibs/{ABI}/{name}": data for name, data in libraries.items()},
        **{f"{main}/{name}": data for name, data in models.items()},
    }
    return lambda place: write_files(place / "project", files)


FROM_MAVEN = LEGACY, "'com.qualcomm.qti:qnn-runtime:2.49.0'"
ORT = "'com.microsoft.onnxruntime:onnxruntime-android-qnn"
FLAVOURS = "productFlavors { npu { dimension 'a' }; cpu { dimension 'a' } }"
PLAIN_ORT = "'com.microsoft.onnxruntime:onnxruntime-android:1.23.0'"
RUNTIME_OF = "'com.qualcomm.qti:qnn-runtime"
EXECUTORCH = "'org.pytorch:executorch-android"
PLUGIN_OF_ORT = "'com.qualcomm.qti:onnxruntime-android-qnn:2.4.0'"
GROUPS_OF_PACK = """<c:device-targeting-config xmlns:c="http://schemas.android.com/apk/config">
<c:device-group name="Qualcomm_SM8650"><c:device-selector>
<c:system-on-chip manufacturer="QTI" model="SM8650"/></c:device-selector></c:device-group>
</c:device-targeting-config>"""
LITERT = "minSdk 31\nimplementation 'com.google.ai.edge.litert:litert:2.1.5'"
TARGETED = "bundle { deviceTargetingConfig = file('groups.xml') }"


LITERT_2_3 = LITERT.replace("2.1.5", "2.3.0")
LITERT_LM = "implementation 'com.google.ai.edge.litertlm:litertlm-android:0.11.0'"
NPU_RUNTIME = "api 'com.google.ai.edge.litert:litert-npu-runtime-qualcomm:2.3.0'"
DELEGATE = "api 'com.qualcomm.qti:qnn-litert-delegate"
OWN_DISPATCH = {DISPATCH: library(DISPATCH)}


# All that a compiled .tflite needs.
FOR_NPU = f"{LITERT_2_3}\n{NPU_RUNTIME}\n{RUNTIME_OF}:2.50.0'\n{LEGACY}"
FEATURE = {"npu/build.gradle": "plugins { id 'com.android.dynamic-feature' }"}
FEATURES = "dynamicFeatures += ':npu'"


def with_pack(
    *groups: str,
    build: str = TARGETED,
    config: str = GROUPS_OF_PACK,
    packages: str = FOR_NPU,
    features: Mapping[str, str | bytes] | None = None,
) -> Make:
    """A Gradle project with an app and an AI pack, which has a model for each of the groups."""
    files: dict[str, str | bytes] = {
        "settings.gradle": "include ':app', ':models', ':npu'",
        "app/build.gradle": f"plugins {{ id 'com.android.application' }}\n{build}\n{packages}",
        "app/groups.xml": config,
        "app/src/main/AndroidManifest.xml": DECLARES,
        "models/build.gradle": "plugins { id 'com.android.ai-pack' }",
        **(features or {}),
    }
    for group in groups:
        model = make_plain() if group == "other" else make_compiled()
        files[f"models/src/main/assets/net#group_{group}/m.tflite"] = model
    return lambda place: write_files(place / "project", files)


PAIRS: dict[str, tuple[Make, Make]] = {
    "QNN850": (apk({}), apk()),
    "QNN851": (apk(abi="x86_64"), apk()),
    "QNN852": (apk({"libapp.so": library("libapp.so")}), apk()),
    "QNN854": (with_pointer, unpacked),
    "QNN855": (unpacked, apk(manifest="")),
    "QNN856": (apk(**STORED), apk(CPU, **STORED)),
    "QNN857": (apk(manifest="inside"), apk(manifest="declared")),
    "QNN858": (apk(**STORED, align=4), apk(**STORED, align=4096)),
    "QNN859": (apk(**STORED, align=4096), apk(**STORED)),
    "QNN860": (apk(manifest="undeclared"), apk({**SET, RPC: b""}, manifest="undeclared")),
    "QNN863": (apk(manifest="inside"), apk()),
    "QNN864": (
        apk(other_files={"assets/a.pte": PTE}),
        apk(SET | BACKEND, other_files={"assets/a.pte": PTE}),
    ),
    "QNN867": (with_splits(OTHER_CXX), with_splits(CXX)),
    "QNN870": (
        apk(SET | BACKEND, other_files={"assets/m.pte": make_program()}),
        apk(
            SET | BACKEND | {"libk.so": library("libk.so") + b"aten::erf.out\0"},
            other_files={"assets/m.pte": make_program()},
        ),
    ),
    "QNN872": (apk(manifest=""), unpacked),
    "QNN873": (
        apk(SET | {"libLiteRt.so": library("libLiteRt.so")}, other_files=COMPILED),
        apk(with_litert(), other_files=COMPILED),
    ),
    "QNN874": (
        apk(SET | {DISPATCH: library(DISPATCH)}),
        apk(with_litert(litert="liblitertlm_jni.so")),
    ),
    "QNN875": (
        apk(with_litert(), other_files=PLAIN_MODEL | COMPILED),
        apk(with_litert(PLUGIN), other_files=PLAIN_MODEL),
    ),
    "QNN876": (apk(with_litert(PLUGIN)), apk(with_litert(PLUGIN, PREPARE))),
    "QNN877": (
        apk(with_litert(DISPATCH_OF_MEDIATEK)),
        apk(SET | {DISPATCH_OF_MEDIATEK: library(DISPATCH_OF_MEDIATEK)}),
    ),
    "QNN884": (apk(of_releases("2.1.0", "2.3.0")), apk(of_releases("2.1.0", "2.1.0"))),
    "QNN879": (sources(), sources(KEEPS)),
    "QNN880": (sources("abiFilters 'x86', 'x86_64'"), sources("abiFilters 'x86', 'arm64-v8a'")),
    "QNN881": (
        sources("implementation 'com.qualcomm.qti:qnn-runtime:2.37.1'", **COMPILED),
        sources("implementation 'com.qualcomm.qti:qnn-runtime:2.49.40'", **COMPILED),
    ),
    "QNN882": (sources("'com.microsoft.onnxruntime:onnxruntime-android-qnn:1.24.1'"), sources()),
    "QNN885": (
        sources(f"{DELEGATE}:2.49.0'", libraries={}),
        sources(f"{DELEGATE}:2.49.0'", f"{RUNTIME_OF}:2.49.0'"),
    ),
    "QNN886": (
        sources(f"{ORT}:1.26.0'", libraries={}),
        sources(f"{ORT}:1.26.0'", f"{RUNTIME_OF}:2.46.0'", libraries={}),
    ),
    "QNN887": (
        sources(f"{ORT}:1.99.0'", libraries={}),
        sources(f"{ORT}:1.99.0'", f"{RUNTIME_OF}:2.46.0'", libraries={}),
    ),
    "QNN888": (
        sources(f"{RUNTIME_OF}:2.42.0'"),  # and libraries in jniLibs
        sources(
            f"{RUNTIME_OF}:2.34.0'",
            "'com.qualcomm.qti:qnn-litert-delegate:2.34.0'",
            libraries={},
        ),
    ),
    "QNN889": (with_pack("Qualcomm_SM8650", "other"), with_pack()),
    "QNN890": (with_pack("Qualcomm_SM8650", "other"), with_pack("other")),
    "QNN891": (with_pack("Qualcomm_SM8750", "Qualcomm_SM8650"), with_pack("Qualcomm_SM8650")),
    "QNN883": (
        sources("jniLibs { useLegacyPackaging = isLegacy() }"),
        sources("jniLibs { useLegacyPackaging = true }"),
    ),
    "QNN878": (
        apk(with_litert(), other_files={f"{GROUP}SM8750/m.tflite": make_compiled()}),
        apk(
            with_litert(),
            other_files={
                f"{GROUP}SM8650/m.tflite": make_compiled(),
                f"{GROUP}SA8775/m.tflite": FOR_SA8775,  # whose context binary names SA8255
                "assets/model#group_other/m.tflite": make_plain(),
            },
        ),
    ),
}  # fmt: skip


PLAIN_CODE = "implementation 'androidx.core:core-ktx:1.13.1', libs.androidx.appcompat"
ASSET = {"assets/net.tflite": make_compiled()}
PAIRS |= {
    "QNN892": (
        sources(PLAIN_CODE, libraries={}, **ASSET),
        sources("implementation project(':runtime')", libraries={}, **ASSET),
    ),
    "QNN893": (
        sources(f"{ORT}:1.26.0'", libraries={}, **ASSET),
        sources(f"{ORT}:1.26.0'", libraries={}, **{"assets/net.tflite": make_plain()}),
    ),
}


PAIRS |= {
    "QNN894": (
        sources(LEGACY, "packaging { jniLibs { excludes += '**/libQnnHtpV75Skel.so' } }"),
        sources(LEGACY, "packaging { jniLibs { excludes += '**/libQnnHtpV68*.so' } }"),
    ),
    "QNN895": (sources(libraries=CPU), sources(LEGACY, libraries=CPU)),
    "QNN896": (
        sources(f"{RUNTIME_OF}:2.49.0'", "packagingOptions { exclude '**/libQnnHtpV68*.so' }"),
        sources(f"{RUNTIME_OF}:2.49.0'", "packagingOptions { exclude '**/libQnnHtpV*.so' }"),
    ),
    "QNN897": (
        sources(LEGACY, "packaging { jniLibs { excludes += unusedSkels() } }"),
        sources(LEGACY, "packaging { jniLibs { if (small) { excludes += '**/libother.so' } } }"),
    ),
}
PAIRS |= {
    "QNN849": (
        sources(FLAVOURS, f"npuImplementation {ORT}:1.26.0'", libraries={}),
        sources(FLAVOURS, f"implementation {ORT}:1.26.0'", libraries={}),
    ),
}
PAIRS |= {
    "QNN900": (
        sources(PLAIN_ORT, libraries={}),
        sources(PLAIN_ORT, f"{ORT}:1.26.0'", libraries={}),
    ),
    "QNN848": (
        sources(PLAIN_ORT, f"{ORT}:1.26.0'", libraries={}),
        sources(FLAVOURS, f"npuApi {ORT}:1.26.0'", f"cpuApi {PLAIN_ORT}", libraries={}),
    ),
    "QNN898": (sources(LITERT, libraries={}), sources(LITERT, NPU_RUNTIME, libraries={})),
    "QNN899": (
        sources(LITERT, NPU_RUNTIME, libraries={}),
        sources(LITERT_2_3, NPU_RUNTIME, libraries={}),
    ),
}
OF_SOCS = {"QNN886": ("SM8850",), "QNN889": ("SM8750",)}  # found only if the app is judged for one


@pytest.mark.parametrize("code", PAIRS)
def test_each_fault_is_found_in_a_real_app(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_libraries(tmp_path / "manifests", monkeypatch)
    socs = OF_SOCS.get(code, ())
    fault, near = (make(tmp_path / name) for make, name in zip(PAIRS[code], "ab", strict=True))
    (finding_of_fault,) = (
        finding for finding in judge(fault, tmp_path / "1", *socs) if finding.id == code
    )
    assert str(tmp_path / "1") not in f"{finding_of_fault.where}{finding_of_fault.fix}"
    assert code not in {finding.id for finding in judge(near, tmp_path / "2", *socs)}


OF_VERSIONS = "only matches Hexagon versions for which the app is not made"


@pytest.mark.parametrize(
    ("pattern", "subject", "scope"),
    [
        ("**/libQnnHtpV75Skel.so", "libQnnHtpV75Skel.so", OF_VERSIONS),
        ("**/libQnnHtp*.so", "libQnnHtp.so", OF_VERSIONS),
        ("**/libQnnSystem.so", "libQnnSystem.so", "does not match libQnnSystem.so"),
        ("**/libQnnHtp.so", "libQnnHtp.so", "does not match libQnnHtp.so"),
    ],
)
def test_the_fix_of_a_pattern_fits_what_it_excludes(
    pattern: str, subject: str, scope: str, tmp_path: Path
) -> None:
    make = sources(LEGACY, KEEPS, f"jniLibs {{ excludes += '{pattern}' }}")
    findings = judge(make(tmp_path / "a"), tmp_path / "b", "SM8650")
    (found,) = [finding for finding in findings if finding.id == "QNN894"]
    assert found.subject == subject
    assert found.fix.startswith("remove the pattern from excludes in ")
    assert found.fix.endswith(f", or write one that {scope}")


@pytest.mark.parametrize(
    ("make", "soc", "expected"),
    [
        (with_pack("Qualcomm_SM8650", "other"), "SM8650", []),
        (with_pack("Qualcomm_SM8650", "other"), "SM8635", ["QNN889"]),
        (with_pack("Qualcomm_SM8650"), "SM8750", ["QNN889"]),
        # Only the spelling differs: the model need not be compiled again.
        (with_pack("qualcomm-sm8650", "other"), "SM8650", ["QNN891"]),
        (with_pack("Qualcomm_SM8650", build=""), "SM8650", ["QNN891"]),
        # Device groups deliver models, and libraries only if a feature module may have them.
        (with_pack("Qualcomm_SM8650", packages=LITERT), "SM8650", ["QNN898"]),
        # What --soc asks is answered first.
        (with_pack("Qualcomm_SM8650", packages=LITERT), "SM8750", ["QNN889", "QNN898"]),
        (
            with_pack("Qualcomm_SM8650", packages=f"{LITERT}\n{FEATURES}", features=FEATURE),
            *("SM8650", ["QNN893"]),
        ),
        (
            with_pack(
                "Qualcomm_SM8650",
                packages=f"{LITERT}\n{LEGACY}\n{KEEPS}\n{FEATURES}",
                features={
                    **FEATURE,
                    **{
                        f"npu/src/main/jniLibs/{ABI}/{name}": data
                        for name, data in with_litert().items()
                    },
                },
            ),
            *("SM8650", []),
        ),
        (with_pack("Qualcomm_SM8650", config="<a><b></a>"), "SM8650", ["QNN891"]),
        (with_pack("Qualcomm_SM8650", config='<!DOCTYPE a [<!ENTITY b "c">]><a/>'), "", ["QNN891"]),
        (
            with_pack("Qualcomm_SM8650", build=TARGETED.replace("groups", "../../../etc/a")),
            *("SM8650", ["QNN891"]),
        ),
        (with_pack("Qualcomm_SM8650", build=TARGETED.replace("groups", "gone")), "", ["QNN891"]),
        # What the model needs says more than that there is no library.
        (sources(PLAIN_CODE, libraries={}, **ASSET), "SM8550", ["QNN892"]),
        (sources(PLAIN_CODE, libraries={}), "SM8550", ["QNN850"]),
        (sources(f"{ORT}:1.22.0@aar'", libraries={}), "SM8850", ["QNN856", "QNN886"]),
        (sources(f"{ORT}:+'", libraries={}), "SM8850", ["QNN856", "QNN887"]),
        # Not known, but older than one whose QNN is known.
        (sources(f"{ORT}:1.24.1'", libraries={}), "SM8850", ["QNN856", "QNN886", "QNN887"]),
        (sources(f"{ORT}:1.24.1'", libraries={}), "SM8650", ["QNN856", "QNN887"]),
        (
            sources(f"{ORT}:1.26.0'", "jniLibs.useLegacyPackaging = true", libraries={}),
            *("SM8650", []),
        ),
        (
            sources(f"{ORT}:1.26.0'", f"{RUNTIME_OF}:[2.40,2.50[!!2.48.0'", LEGACY, libraries={}),
            *("SM8850", []),
        ),
        (  # whose QNN is not known
            sources(f"{ORT}:1.26.0'", f"{RUNTIME_OF}:[2.40,2.50['", LEGACY, libraries={}),
            *("SM8850", ["QNN887"]),
        ),
        (
            sources(f"{RUNTIME_OF}:2.49.0'", "'com.qualcomm.qti:qnn-litert-delegate:2.34.0'"),
            *("SM8850", ["QNN856", "QNN879", "QNN888", "QNN888"]),
        ),
        (  # the skel of this SoC is not in the app, and that of an SoC that is not asked for is
            sources(
                *FROM_MAVEN, "jniLibs { excludes.add('**/libQnnHtpV81Skel.so') }", libraries={}
            ),
            *("SM8850", ["QNN894"]),
        ),
        (
            sources(
                *FROM_MAVEN, "jniLibs { excludes.add('**/libQnnHtpV81Skel.so') }", libraries={}
            ),
            *("SM8650", []),
        ),
        (
            sources(*FROM_MAVEN, "jniLibs { pickFirsts += '**/libQnn*.so' }", libraries={}),
            *("SM8650", []),
        ),
        (sources(LEGACY, KEEPS, "jniLibs { excludes += ['**'] }"), "SM8650", ["QNN850", "QNN894"]),
        (sources(LEGACY, libraries={}), "SM8650", ["QNN850"]),
        (sources(libraries={}), "", ["QNN850"]),
        (sources("api 'x:other:1'", libraries={}), "", ["QNN893"]),
        (sources("jniLibs.srcDirs = [libs]", libraries={}), "", ["QNN893"]),
        (sources("implementation(Deps.gone)", libraries={}), "", ["QNN893"]),
        (sources(PLAIN_ORT, *FROM_MAVEN, libraries={}), "SM8650", ["QNN900"]),
        (sources(PLAIN_ORT, "api 'x:qnn-own:1'", libraries={}), "", ["QNN893"]),
        # The provider as a plugin is in another package of the same name.
        (sources(PLAIN_ORT, PLUGIN_OF_ORT, *FROM_MAVEN, libraries={}), "SM8650", []),
        (sources(PLAIN_ORT, PLUGIN_OF_ORT, LEGACY, libraries={}), "SM8650", ["QNN885"]),
        (
            sources(
                *(PLAIN_ORT, f"{ORT}:1.26.0'", LEGACY),
                "configurations.all { exclude(module = 'onnxruntime-android') }",
                libraries={},
            ),
            *("SM8650", []),
        ),
        (sources(PLAIN_ORT, LITERT, libraries={}), "", ["QNN898", "QNN900"]),
        (sources(LITERT, libraries={}), "", ["QNN898"]),
        (sources(LITERT, libraries={}, **ASSET), "SM8650", ["QNN898"]),
        (sources(LITERT.replace("2.1.5", "1.4.0"), libraries={}), "", ["QNN898"]),
        (sources(LITERT.replace("2.1.5", "+"), libraries={}), "", ["QNN893"]),
        (sources(LITERT, "api 'x:other:1'", libraries={}), "", ["QNN893"]),
        (sources(LITERT, "api 'x:litert-own:1'", libraries={}), "", ["QNN893"]),
        (sources(LITERT, *FROM_MAVEN, libraries={}), "", ["QNN898"]),
        (sources(LITERT, LEGACY, KEEPS), "", ["QNN898"]),
        (sources(LITERT, LEGACY, KEEPS, libraries=with_litert()), "", []),
        (sources(LITERT_LM, LEGACY, KEEPS, libraries=SET | OWN_DISPATCH, **ASSET), "SM8650", []),
        (sources(LITERT_LM, LEGACY, KEEPS, **ASSET), "SM8650", ["QNN873", "QNN898"]),
        (
            sources(
                LITERT_2_3, NPU_RUNTIME, LEGACY, f"{RUNTIME_OF}:2.50.0'", libraries={}, **ASSET
            ),
            *("SM8650", []),
        ),
        (sources(LITERT_2_3, NPU_RUNTIME, LEGACY, libraries={}, **ASSET), "", ["QNN885"]),
        (
            sources(LITERT, f"{DELEGATE}:2.49.0'", *FROM_MAVEN, libraries={}),
            *("SM8650", []),
        ),
        (sources(f"{DELEGATE}:2.49.0'", libraries={}), "SM8650", ["QNN885", "QNN895"]),
        # The package of ExecuTorch with QNN depends on qnn-runtime 2.37.0 up to 1.4.1.
        (sources(f"{EXECUTORCH}-qnn:1.4.0'", libraries={}), "SM8650", ["QNN856"]),
        (sources(f"{EXECUTORCH}-qnn:1.4.0'", LEGACY, libraries={}), "SM8850", ["QNN886"]),
        (
            sources(f"{EXECUTORCH}-qnn:1.4.0'", LEGACY, libraries={}, **COMPILED),
            *("SM8650", ["QNN881", "QNN893"]),
        ),
        (sources(f"{EXECUTORCH}-qnn:1.99.0'", LEGACY, libraries={}), "SM8650", ["QNN887"]),
        (
            sources(f"{EXECUTORCH}:1.4.0'", "api 'com.facebook.fbjni:fbjni:0.7.0'", libraries={}),
            *("SM8650", ["QNN900"]),
        ),
        (sources(f"{EXECUTORCH}:1.4.0'", "api 'x:qnn-own:1'", libraries={}), "", ["QNN893"]),
    ],
)
def test_packages_and_packs_are_judged_without_their_libraries(
    make: Make, soc: str, expected: list[str], tmp_path: Path
) -> None:
    findings = judge(make(tmp_path / "a"), tmp_path / "b", *filter(None, [soc]))
    finding_ids = sorted(finding.id for finding in findings if finding.id >= "QNN850")
    assert [code for code in finding_ids if code != "QNN882"] == expected


@pytest.mark.parametrize(
    ("build", "states"),
    [
        ("", ["not fit", "fit"]),  # and the module :npu alone
        ("api 'x:other:1'", ["cannot tell", "fit"]),
        ("api project(':npu')", ["fit"]),
        ("api project(':npu'); jniLibs.excludes += '**/libQnnSystem.so'", ["not fit"]),
        ("api project(':gone')", ["cannot tell", "fit"]),
        ("api project(':npu'); jniLibs.excludes += unused()", ["cannot tell"]),
        ("api project(':npu'); jniLibs.excludes += unused() + ['**/libother.so']", ["cannot tell"]),
        ("api project(':npu'); buildTypes { debug { jniLibs.excludes += '**' } }", ["fit"]),
        ("jniLibs { srcDir '../npu/src/main/jniLibs' }", ["fit", "fit"]),
    ],
)
def test_an_app_is_fit_only_if_something_brings_qnn(
    build: str, states: list[str], tmp_path: Path
) -> None:
    project = sources(LEGACY, KEEPS, build, libraries={})(tmp_path / "a")
    module = {f"npu/src/main/jniLibs/{ABI}/{name}": data for name, data in SET.items()}
    write_files(project, {**module, "npu/build.gradle": f"{LEGACY}\n{KEEPS}"})
    shown = render_units(
        [CheckedUnit(app, tuple(judge_unit(app, []))) for app in read(project, tmp_path / "b")],
        strict=False,
        width=100,
    )
    headlines = [line for line in shown.splitlines() if re.match(r"(app|npu): ", line)]
    assert [line.partition(": ")[2].partition(",")[0] for line in headlines] == states


OWN_PLUGIN = {
    "build-logic/build.gradle.kts": 'gradlePlugin { a { id = "own.android.application" } }',
    "build-logic/src/main/kotlin/Own.kt": 'jniLibs.excludes.add("**/libQnnHtpV75Skel.so")',
}
NPU_MODULE = {"npu/build.gradle": "implementation 'com.qualcomm.qti:qnn-runtime:2.49.0'"}


@pytest.mark.parametrize(
    ("build", "files", "expected"),
    [
        ("plugins { id 'own.npu' }", OWN_PLUGIN, ["QNN897"]),
        ("", OWN_PLUGIN, []),
        (
            "plugins { id 'own.npu' }",
            {"buildSrc/src/main/groovy/own.gradle": "jniLibs { useLegacyPackaging = true }"},
            ["QNN883"],
        ),
        ("dynamicFeatures = [':npu']", NPU_MODULE, []),
        ("", NPU_MODULE, ["QNN850"]),
    ],
)
def test_plugins_of_the_project_and_dynamic_features_belong_to_an_app(
    build: str, files: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    legacy = () if "QNN883" in expected else (LEGACY,)
    libraries = {} if files is NPU_MODULE else SET
    project = sources(*legacy, KEEPS, build, libraries=libraries)(tmp_path / "a")
    write_files(project, files)
    (app,) = read(project, tmp_path / "b")
    finding_ids = {finding.id for finding in judge_unit(app, [])}
    assert sorted(finding_ids & {"QNN850", "QNN856", "QNN883", "QNN897"}) == expected


def test_every_check_has_a_test() -> None:
    checked_in_units = {"QNN861", "QNN862"}  # in UNITS
    assert {
        check.id for check in (*APPS.checks, *PAIRINGS.checks)
    } == PAIRS.keys() | checked_in_units


def context(soc: str, number: int, hexagon: int, vtcm_mb: int = 8) -> bytes:
    return make_binary(soc=(soc, number, hexagon), vtcm_mb=vtcm_mb)


def for_api(level: int) -> bytes:
    """libQnnHtp.so for another API level."""
    data = bytearray(library("libQnnHtp.so"))
    at = data.index(b"Android\0") + 8
    data[at : at + 4] = level.to_bytes(4, "little")
    return bytes(data)


NEWER = b"v2.51.0.261010101010\0"
NEW_CONTEXT = (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(16)
NEW_CONTEXT += (40).to_bytes(8, "little") + len(NEWER).to_bytes(8, "little") + NEWER
V75, V79 = context("SM8650", 57, 75), context("SM8750", 69, 79)
LARGE = context("SM8650", 57, 75, 16)
BOTH = {"assets/a.bin": V75, "assets/b.bin": V79}
STUB = "libQnnHtpV75Stub.so"
ODD = {"assets/m.bin": context("SM8475", 42, 69)}
TWO, OLD_TWO = SET | make_set(hexagon=0x79), make_set(hexagon=0x69) | SET
DAMAGED = {"assets/a.bin": make_binary()[:-1]}
NO_CONTEXT = make_flatbuffer({1: Vector([{0: "forward"}])}, b"ET12")
PLAIN_PROGRAM = {"assets/a.bin": V75, "assets/m.pte": NO_CONTEXT}


def lacking(name: str) -> dict[str, bytes]:
    return {library_name: data for library_name, data in SET.items() if library_name != name}


# An app, and the SoCs that it is judged for.
APPS_AND_SOCS: dict[str, tuple[Make, str]] = {
    "an APK": (apk(), "SM8650"),
    "libraries for two SoCs": (apk(TWO), "SM8650 SM8750"),
    "no stub for one of two SoCs": (apk(), "SM8650 SM8750"),
    "a damaged program": (apk(other_files=DAMAGED), "SM8650"),
    "a stub of another build": (apk(SET | {STUB: library(STUB, OLDER)}), ""),
    "a stripped skel": (apk(SET | {SKELS[0]: skel(SKELS[0], 0x75, stripped=True)}), ""),
    "a cut library": (apk(SET | {"libQnnHtp.so": SET["libQnnHtp.so"][:300]}), ""),
    "no libQnnSystem.so": (apk(lacking("libQnnSystem.so")), ""),
    "no libQnnHtp.so": (apk(lacking("libQnnHtp.so")), ""),
    "a library for a later API": (apk({**SET, "libQnnHtp.so": for_api(31)}), ""),
    "skels in assets": (
        apk(
            CPU,
            **STORED,
            other_files={f"assets/{name}": SET[name] for name in SET.keys() - CPU.keys()},
        ),
        "SM8650",
    ),
    "a library for the DSP": (apk({**CPU, "a.so": skel("a.so", 0x75)}, **STORED), ""),
    "a damaged library with the name of a skel": (apk({**CPU, SKELS[0]: b"x"}, **STORED), ""),
    "a program of a newer QNN": (apk(other_files={"assets/m.bin": NEW_CONTEXT}), ""),
    "a program per SoC": (apk(TWO, other_files=BOTH), "SM8650 SM8750"),
    "a program for one of two SoCs": (apk(TWO, other_files={"assets/a.bin": V75}), "SM8650 SM8750"),
    "a program without skels": (apk(other_files=BOTH), ""),
    "a program that needs more VTCM": (apk(other_files={"assets/b.bin": LARGE}), "SM8650"),
    "and one that fits": (apk(other_files={"assets/a.bin": V75, "assets/b.bin": LARGE}), "SM8650"),
    "an SoC of the same Hexagon": (apk(OLD_TWO, other_files=ODD), "SM8450"),
    "and one for another": (apk(OLD_TWO, other_files={**ODD, "assets/75.bin": V75}), "SM8450"),
    "and one for the SoC": (
        apk(OLD_TWO, other_files={**ODD, "assets/other/m.bin": context("SM8450", 36, 69)}),
        "SM8450",
    ),
    "and one for no SoC": (
        apk(OLD_TWO, other_files={**ODD, "assets/u.bin": context("", 0, 69)}),
        "SM8450",
    ),
    "a LiteRT model": (apk(with_litert(), other_files=COMPILED), "SM8650"),
    "a LiteRT model for another SoC": (apk(with_litert(), other_files=COMPILED), "SM8750"),
    "a LiteRT model per SoC": (
        apk(
            with_litert() | TWO,
            other_files=COMPILED | FOR_SM8750,
        ),
        "SM8650 SM8750",
    ),
    "a LiteRT model of a newer QNN": (
        apk(
            with_litert(),
            other_files={"assets/m.tflite": NEWER_MODEL},
        ),
        "",
    ),
    "a bundle of LiteRT-LM with such a model": (
        apk(
            with_litert(),
            other_files={
                "assets/m.litertlm": make_bundle(
                    [(MODEL, make_plain(), {}), (MODEL, NEWER_MODEL, {"model_type": "decode"})]
                )
            },
        ),
        "",
    ),
    "a LiteRT model without its bytecode": (
        apk(with_litert(), other_files={"assets/m.tflite": make_compiled(size=1 << 30)}),
        "SM8650",
    ),
    "LiteRT models for other NPUs, and an encrypted one": (
        apk(
            with_litert(),
            other_files={
                "assets/m.tflite": make_compiled(stamp=b"MediaTek\0MT6989"),
                "assets/x.tflite": b"no model" * 9,
            },
        ),
        "SM8650",
    ),
    "LiteRT without libQnnSystem.so": (
        apk({name: data for name, data in with_litert().items() if "System" not in name}),
        "",
    ),
    "sources": (sources(), ""),
    "sources whose skels are extracted and kept": (sources(LEGACY, KEEPS), "SM8650"),
    "sources with a program for another SoC, and QNN from Maven": (
        sources(
            "implementation(libs.qnn.runtime)",
            libraries={},
            **COMPILED,
            **{"../../../gradle/libs.versions.toml": CATALOG},
        ),
        "SM8750",
    ),
    "files to push": (
        push(with_litert() | {"models/m.tflite": make_compiled(), "run_model": library("")}),
        "SM8650",
    ),
    "files to push, for another SoC, without LiteRT and with a stub twice": (
        push(SET | {"m.tflite": make_compiled(), f"old/{STUB}": library(STUB, OLDER)}),
        "SM8750",
    ),
    "files to push, LiteRT in an executable": (
        push(
            CPU
            | {DISPATCH: library(DISPATCH), "run_model": library("") + OPENS}
            | {f"hexagon-v75/{SKELS[0]}": SET[SKELS[0]]}
        ),
        "",
    ),
    "a program without a context, another SoC": (apk(TWO, other_files=PLAIN_PROGRAM), "SM8750"),
    "a program without a context, its SoC": (apk(TWO, other_files=PLAIN_PROGRAM), "SM8650"),
}  # fmt: skip


def test_check_app_of_a_directory_with_git_lfs_pointers_exits_with_3_not_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {f"{ABI}/{name}": data for name, data in SET.items()}
    root = write_files(tmp_path, names | {f"{ABI}/libQnnHtp.so": POINTER})
    assert main(["inspect", "--load", str(root)]) == ExitCode.ENVIRONMENT
    (root / ABI / "libQnnHtp.so").write_bytes(SET["libQnnHtp.so"])
    assert main(["inspect", "--load", str(root)]) == ExitCode.OK
    capsys.readouterr()


def test_real_apps_are_judged_for_their_socs(tmp_path: Path) -> None:
    """The doctor's checks of libraries and programs are included."""
    shown = ""
    for number, (name, (make, socs)) in enumerate(APPS_AND_SOCS.items()):
        findings = judge(make(tmp_path / str(number)), tmp_path / "scratch", *socs.split())
        texts = show(findings) or "  nothing\n"
        shown += f"{name}: {socs or 'no SoC'}\n{texts}"
    assert str(tmp_path) not in shown
    check_snapshot(SNAPSHOTS / "apps.txt", shown)


@pytest.mark.parametrize(
    ("kind", "manifest", "extracts"),
    [
        *((Kind.APK, AppManifest(extracts=flag), True) for flag in (None, True)),
        (Kind.APK, INSIDE, False),
        (Kind.APK, AppManifest(fault="it is not XML"), None),
        (Kind.APK, None, None),
        (Kind.AAR, PLAIN, None),
        (Kind.DIRECTORY, INSIDE, False),
    ],
)  # fmt: skip
def test_libraries_are_extracted_as_the_manifest_says(
    kind: Kind, manifest: AppManifest | None, extracts: bool | None
) -> None:
    """Android extracts them by default."""
    assert find_extraction(AppUnit("app", kind, manifest)) is extracts


# -- severities -----------------------------------------------------------------------------------

ABSENCES = "QNN216 QNN304 QNN309 QNN310 QNN311 QNN312 QNN317 QNN850 QNN851 QNN852 QNN864 QNN870"


@pytest.mark.parametrize(
    ("kind", "fields", "notes", "warnings"),
    [
        (Kind.APK, {}, "", ""),
        (Kind.DIRECTORY, {"pointers": ("m.pte",)}, ABSENCES, ""),
        (Kind.AAR, {}, ABSENCES, "QNN856 QNN860"),
    ],
)
def test_severity_of_an_app_finding_depends_on_the_kind_of_app(
    kind: Kind, fields: Mapping[str, Any], notes: str, warnings: str
) -> None:
    app = AppUnit("app", kind, None, **fields)
    other_codes = "QNN228 QNN230 QNN854 QNN856 QNN860 QNN861 QNN872"
    codes_by_severity: dict[str, list[str]] = {"note": [], "warning": [], "error": []}
    for code in f"{ABSENCES} {other_codes}".split():
        where = "app: lib/arm64-v8a/libQnnHtp.so"
        weighed = _weigh(app, Finding(code, "app", "libQnnHtp.so is missing", where, "", ""))
        codes_by_severity[weighed.severity.value].append(code)
    words = {"note": notes, "warning": warnings}
    assert {name: sorted(codes_by_severity[name]) for name in words} == {
        name: sorted(codes.split()) for name, codes in words.items()
    }
    warned = Finding("QNN856", "app", "", "", "", "", Severity.WARNING)
    assert _weigh(app, warned) == warned


@pytest.mark.parametrize(
    ("names", "severity"),
    [
        ("libQnnX.so libqnn_x.so libGenie.so libHtpPrepare.so libSnpeHtp.so", Severity.ERROR),
        ("libSNPE.so libexecutorch.so libonnxruntime.so libc++_shared.so", Severity.ERROR),
        ("libcustom_dsp.so", Severity.ERROR),
        ("libapp.so libGenius.so libcpp.so", Severity.WARNING),
    ],
)
def test_fault_of_a_library_is_an_error_only_if_it_is_qnns_or_for_the_dsp(
    names: str, severity: Severity
) -> None:
    app = unit(Kind.APK, facts("libcustom_dsp.so", machine=164), facts("libapp.so"))
    for name in names.split():
        finding = Finding("QNN232", name, "needs glibc", f"app: lib/{ABI}/{name}", "", "")
        assert _weigh(app, finding) == replace(finding, severity=severity)
        note = replace(finding, severity=Severity.NOTE)
        assert _weigh(app, note) == note


@pytest.mark.parametrize(
    ("names", "lowered", "expected"),
    [
        ("libapp.so", False, ""),
        ("libQnnHtp.so", False, "libQnnHtp.so"),
        ("libQnnHtpV79Stub.so", False, "libQnnHtp.so"),
        ("libQnnHtp.so", True, "libQnnHtp.so libQnnSystem.so"),
        ("libQnnHtp.so libonnxruntime.so", False, "libQnnHtp.so libQnnSystem.so"),
        ("libQnnHtp.so libqnn_executorch_backend.so", False, "libQnnHtp.so libQnnSystem.so"),
        *((f"libQnn{backend}.so", False, "") for backend in ("Gpu", "Cpu", "Dsp", "Lpai")),
        ("libQnnGpu.so libonnxruntime.so", False, "libQnnSystem.so"),
    ],
)
def test_the_qnn_libraries_that_an_app_needs_depend_on_those_that_it_has(
    names: str, lowered: bool, expected: str
) -> None:
    tree = TreeFacts(Path(), (), lowered=(object(),) if lowered else ())  # type: ignore[arg-type]
    app = AppUnit("app", Kind.APK, None, packed(*names.split()), tree=tree)
    assert " ".join(find_wanted(app)) == expected


@pytest.mark.parametrize(
    ("name", "data", "needed"),
    [
        ("m.pte", b"a QnnBackend and more", ("libqnn_executorch_backend.so",)),
        ("m.pte", b"dlc.metadata", ("libQnnModelDlc.so",)),
        (
            *("m.pte", b"QnnBackend dlc.metadata EPContext"),
            ("libqnn_executorch_backend.so", "libQnnModelDlc.so"),
        ),
        ("m.onnx", b"QnnBackend", ("libQnnHtpPrepare.so",)),
        ("m.dlc", b"", ("libQnnModelDlc.so|libSNPE.so",)),
        ("m.bin", b"QnnBackend dlc.metadata", ()),
    ],
)
def test_libraries_that_a_program_needs_depend_on_its_contents(
    tmp_path: Path, name: str, data: bytes, needed: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(data)
    assert PackedFile(name, tmp_path / name, name, len(data)).find_needs() == needed


# -- the verb -------------------------------------------------------------------------------------


def test_check_app_prints_text_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    app = str(apk(manifest="inside", stored=True)(tmp_path))
    shown = ""
    for words in ([], ["--soc", "sm8750", "--strict"], ["--soc", "SM1"], ["--json"]):
        code = main(["inspect", "--load", app, *words])
        text = capsys.readouterr()
        out = json.dumps(json.loads(text.out), indent=1) + "\n" if "--json" in words else text.out
        shown += f"$ inspect --load app.apk {' '.join(words)}\n{out}exit code {code:d}\n"
    check_snapshot(SNAPSHOTS / "check_app.txt", shown.replace(str(tmp_path), "TMP"))


def test_thousands_of_files_are_shown_where_users_know_them(tmp_path: Path) -> None:
    """A text was searched for each file of the app, which took hours."""
    count = 10_000
    names = [f"model {number}.pte" for number in range(count)]
    assets = tuple(PackedFile(name, tmp_path, f"a.apk/assets/{name}", 1) for name in names)
    library = PackedFile("libQnnHtp.so", tmp_path, "a.apk/lib/x", 1, QNN_ABI)
    tree = TreeFacts(tmp_path, ())
    unit = AppUnit("a.apk", Kind.APK, None, (library,), assets=assets, tree=tree)
    for number, name in enumerate(names):
        assert unit.show(f"{tmp_path}/assets/{number}/{name}") == f"a.apk/assets/{name}"
    near = f"{tmp_path}/assets/1/model 1.pte and {tmp_path}/lib/{QNN_ABI}/libQnnHtp.so.1"
    assert unit.show(near) == "a.apk/assets/model 1.pte and a.apk/lib/x.1"
    paths = f"{tmp_path}/assets/1/other, {tmp_path}/lib/{QNN_ABI}, {tmp_path}"
    place = f"lib/{QNN_ABI} of a.apk"
    assert unit.show(paths) == f"{place}/assets/1/other, {place}, {place}"


@pytest.mark.parametrize(
    ("group", "expected"), [("SM8750", ["QNN878"]), ("SM8650", []), ("other", [])]
)
def test_a_context_binary_in_a_pack_has_to_be_for_the_socs_of_its_group(
    group: str, expected: list[str], tmp_path: Path
) -> None:
    name = f"{GROUP}{group}/m.bin" if group != "other" else "assets/model#group_other/m.bin"
    make = apk(SET, other_files={name: V75})
    (app,) = read(make(tmp_path / "a"), tmp_path / "b")
    assert [finding.id for finding in judge_unit(app, []) if finding.id == "QNN878"] == expected


WITH_RUNTIME = "com.microsoft.onnxruntime:onnxruntime-android-qnn:1.26.0"
EXCLUDED = "{ exclude(group = 'com.qualcomm.qti', module = 'qnn-runtime') }"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (f"api('{WITH_RUNTIME}') {EXCLUDED}", ["QNN885"]),
        (f"api('{WITH_RUNTIME}') {EXCLUDED}; api('com.qualcomm.qti:qnn-runtime:2.49.0')", []),
        (f"api('{WITH_RUNTIME}')", []),
    ],
)
def test_a_package_without_its_runtime_brings_no_qnn(
    build: str, expected: list[str], tmp_path: Path
) -> None:
    (app,) = read(sources(LEGACY, KEEPS, build, libraries={})(tmp_path / "a"), tmp_path / "b")
    assert [finding.id for finding in judge_unit(app, []) if finding.id == "QNN885"] == expected


UNDECLARED = "<manifest><application/></manifest>"
REMOVED = """<manifest xmlns:android="http://schemas.android.com/apk/res/android"
xmlns:tools="http://schemas.android.com/tools"><application>
<uses-native-library android:name="libcdsprpc.so" tools:node="remove"/></application></manifest>"""


@pytest.mark.parametrize(
    ("build", "manifest", "expected"),
    [
        (LITERT_2_3, UNDECLARED, []),
        (LITERT.replace("2.1.5", "1.4.0"), UNDECLARED, ["QNN860"]),
        (LITERT_2_3, REMOVED, ["QNN860"]),
    ],
)
def test_the_manifest_of_a_package_declares_libraries_of_the_device(
    build: str, manifest: str, expected: list[str], tmp_path: Path
) -> None:
    project = sources(build, NPU_RUNTIME, *FROM_MAVEN, libraries={})(tmp_path / "a")
    write_files(project, {"app/src/main/AndroidManifest.xml": manifest})
    (app,) = read(project, tmp_path / "b")
    assert [finding.id for finding in judge_unit(app, []) if finding.id == "QNN860"] == expected


@pytest.mark.parametrize(
    ("make", "soc", "code", "expected"),
    [
        (sources(LITERT, libraries={}), "", "QNN898", "npu-runtime-qualcomm:2.3.0, and on"),
        (sources(LITERT_2_3, libraries={}), "", "QNN898", "litert-npu-runtime-qualcomm:2.3.0; and"),
        (sources(LITERT_LM, libraries={}), "", "QNN898", "package libLiteRtDispatch_Qualcomm.so"),
        (
            sources(LITERT.replace("2.1.5", "1.4.0"), LEGACY, KEEPS),
            *("", "QNN898", "depend on com.qualcomm.qti:qnn-litert-delegate, which"),
        ),
        (sources(f"{DELEGATE}:2.49.0'", libraries={}), "", "QNN885", "in the same version, 2.49.0"),
        (
            sources(f"{DELEGATE}:2.34.0'", f"{RUNTIME_OF}:2.46.0'", libraries={}),
            *("", "QNN888", "of both, such as 2.46.0 or 2.34.0"),
        ),
        (
            sources(f"{RUNTIME_OF}:2.42.0'", LEGACY, KEEPS),
            *("", "QNN888", ":2.49.99, if Maven has that version"),
        ),
        (
            sources(f"{RUNTIME_OF}:2.49.0'", f"force {RUNTIME_OF}:2.42.0'", libraries={}),
            *("SM8850", "QNN886", "force com.qualcomm.qti:qnn-runtime:2.46.0 or newer, or"),
        ),
        (
            sources(f"{ORT}:1.26.0' // no force", libraries={}),
            *("SM8850", "QNN886", "depend on com.qualcomm.qti:qnn-runtime:2.46.0 or newer: Gradle"),
        ),
    ],
)
def test_the_fix_of_a_package_fits_the_app(
    make: Make, soc: str, code: str, expected: str, tmp_path: Path
) -> None:
    findings = judge(make(tmp_path / "a"), tmp_path / "b", *filter(None, [soc]))
    (fix,) = [finding.fix for finding in findings if finding.id == code]
    assert expected in fix


@pytest.mark.parametrize(("runtime", "is_known"), [("2.37.1", True), ("2.49.0", False)])
def test_a_package_that_may_be_of_the_release_that_compiled_a_program_is_reported_as_unknown(
    runtime: str, is_known: bool, tmp_path: Path
) -> None:
    """Maven has 2.49.0, and no 2.49.40, of which 2.49.0 may be the package."""
    make = sources(f"{RUNTIME_OF}:{runtime}'", LEGACY, libraries={}, **COMPILED)
    findings = judge(make(tmp_path / "a"), tmp_path / "b")
    (why,) = [finding.why for finding in findings if finding.id == "QNN881"]
    assert ("not known" in why) is not is_known


def test_a_wrong_model_for_devices_that_are_not_requested_is_a_warning(tmp_path: Path) -> None:
    project = with_pack("Qualcomm_SM8750", "Qualcomm_SM8650")(tmp_path / "a")
    for number, (socs, severity) in enumerate(
        [((), Severity.ERROR), (("SM8750",), Severity.ERROR), (("SM8650",), Severity.WARNING)]
    ):
        findings = judge(project, tmp_path / f"b{number}", *socs)
        assert [each.severity for each in findings if each.id == "QNN878"] == [severity]


def test_libraries_of_two_modules_with_one_name_and_two_contents_are_reported(
    tmp_path: Path,
) -> None:
    project = sources(LEGACY, KEEPS, "api project(':npu')")(tmp_path / "a")
    name = "libQnnSystem.so"
    module = {"npu/build.gradle": "", f"npu/src/main/jniLibs/{ABI}/{name}": library(name, OLDER)}
    findings = judge(write_files(project, module), tmp_path / "b")
    assert [finding.subject for finding in findings if finding.id == "QNN867"] == [name]


def test_the_libraries_of_an_app_are_described_once_for_all_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An APK of 10,000 libraries and 10,000 programs took minutes."""
    descriptions: list[Runtime] = []

    def describe(*words: Any) -> Runtime:
        descriptions.append(describe_runtime(*words))
        return descriptions[-1]

    monkeypatch.setattr(app_checks, "describe_runtime", describe)
    programs = {f"assets/{name}.pte": make_program() for name in "abc"}
    judge(apk(SET | BACKEND, other_files=programs)(tmp_path / "a"), tmp_path / "b", "SM8650")
    assert len(descriptions) == 1
