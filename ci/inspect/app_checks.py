"""Check whether an Android app can run QNN. The checks in this module apply only to apps. The
doctor's checks of libraries and programs also run.

The rules are those of Android and Gradle, on developer.android.com:

- /guide/practices/page-sizes
- /guide/topics/manifest/uses-native-library-element: since API level 31
- /build/releases: from minSdk 23 on, Gradle stores libraries uncompressed, unless
  useLegacyPackaging is true
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import PurePath
from typing import NamedTuple

from ci.inspect.apps import QNN_ABI, AppUnit, Kind, PackedFile, find_texts
from ci.inspect.compat import Answer, Axis, Runtime, Verdict, judge_compat
from ci.inspect.files import describe_runtime, inspect_file
from ci.inspect.litert_libraries import DISPATCH, LITERT_NAME, PLUGIN, describe_releases
from ci.inspect.maven import (
    LITERT_PACKAGE,
    QNN_RUNTIME,
    Dependency,
    Package,
    choose_qnn,
    find_dependencies,
)
from ci.inspect.packs import GROUP, OTHER, list_groups
from ci.inspect.socs import is_too_old
from ci.report.text import name_some
from provisioning.doctor.checks.elf import FIRST_CHECKSUM
from provisioning.doctor.examine import judge_staged
from provisioning.doctor.registry import Finding, Seen, Severity, Subjects, seen
from provisioning.doctor.survey.programs import Program
from provisioning.doctor.survey.tree import LITERT
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6
from provisioning.elf.programs import is_loadable
from provisioning.errors import UnfitError, UsageError
from provisioning.files import hash_file
from provisioning.manifest.targets import (
    find_any_soc,
    is_same_soc,
    read_all_socs,
    read_litert_socs,
)
from provisioning.versions import is_older, is_same, is_version, parse_version

PAGE, LARGE_PAGE = 4096, 16384
DECLARED_FROM = 31  # API level
WIDE = frozenset({"arm64-v8a", "x86_64"})  # ABIs whose devices may have pages of 16 KiB
MOST_NAMED = 8
NOT_IN_NAMES = re.compile(r"[^a-z0-9]")  # what names of device groups may differ in
RPC = "libcdsprpc.so"
VENDOR = (RPC, "libadsprpc.so", "libsdsprpc.so", "libOpenCL.so")
OWN = re.compile(r"lib(Qnn|qnn|Genie|Htp|Snpe|SNPE|executorch|onnxruntime|LiteRt|c[+][+])")
PREPARE = "libQnnHtpPrepare.so"
OF_QNN = re.compile(r"lib(Qnn|SNPE)")
RUNTIME = re.compile(
    rf"lib(qnn_)?executorch.*|libonnxruntime.*|{re.escape(DISPATCH)}|{re.escape(PLUGIN)}"
)
# A message of litert/runtime/dispatch/litert_dispatch.cc: it is in each library that contains
# LiteRT, such as LiteRT-LM's. The prefix of the names that it searches is in none as one text.
OPENS_DISPATCH = b"No dispatch library found"
OTHER_DISPATCH = re.compile(r"libLiteRtDispatch(?!_Qualcomm\.so$).*")
# A directory of an AI pack that Google Play delivers to one group of devices, as LiteRT's AOT tools
# name it (litert/python/aot/ai_pack/export_lib.py).
DEVICE_GROUP = re.compile(r".*#group_Qualcomm_(\w+)/")
# Checks for files that may be missing from an incomplete copy or from a part of an app.
ABSENCES = frozenset({"QNN216", "QNN304", "QNN310", "QNN311", "QNN312", "QNN317"})
ABSENCES |= {"QNN870", "QNN309", "QNN850", "QNN851", "QNN852", "QNN864"}
ABSENCES |= {"QNN873", "QNN874", "QNN876"}
# The app that uses a library decides what these check.
OF_APP = frozenset({"QNN856", "QNN860"})
# Gradle changes what these check when it builds the app, or what is checked.
OF_BUILD = frozenset({"QNN228"})
NOT_EXTRACTED_FROM = 23  # minSdk: from it on, Gradle sets extractNativeLibs to false
# Checks of the doctor that other checks replace for apps.
REPLACED = frozenset({"QNN203", "QNN308", "QNN309", "QNN320", "QNN321", "QNN325"})


def tell_unit(unit: AppUnit) -> Seen:
    """Return the values for the texts of the checks of an app."""
    reason = unit.manifest.fault if unit.manifest else "there is none"
    return seen(unit.name, unit.name, abis=", ".join(unit.abis), reason=reason)


APPS: Subjects[AppUnit] = Subjects(tell=tell_unit)


class Pairing(NamedTuple):
    """A program of an app, and the answer of `compat` for it with the app's libraries.
    ``reported`` contains the id and the location of each of the doctor's findings.

    ``spared`` are the axes that are not reported. They are TARGETS if the app is judged for an SoC
    and at least one of its programs may be for that SoC, and for a program that Google Play
    delivers to one device group. Otherwise there are none.
    """

    program: PackedFile
    answer: Answer
    reported: Collection[tuple[str, str]]
    spared: Collection[Axis]


PAIRINGS: Subjects[Pairing] = Subjects()
TARGETS = frozenset({Axis.HEXAGON, Axis.SOC, Axis.VTCM})
OF_TARGETS = frozenset({"QNN323", "QNN324"})
SAME_AXIS = {Axis.BUILD: "QNN313", Axis.HEXAGON: "QNN323", Axis.SOC: "QNN323"}


def judge_unit(unit: AppUnit, socs: Sequence[str]) -> list[Finding]:
    """Return the findings on an app or flavour, sorted by id and without duplicates. Raises
    UsageError for an unknown SoC."""
    unit = replace(unit, socs=tuple(socs))
    findings = list(APPS.judge(unit))
    if unit.tree.files or unit.tree.lowered:
        # Without an SoC, the libraries are compared with each other only.
        for soc in socs or [""]:
            pairs = [*_pair(unit, soc)]
            staged = judge_staged(unit.tree, "android", soc, find_wanted(unit))
            reported = {(finding.id, unit.show(finding.where)) for finding in staged}
            fitting = [program.shown for program, answer in pairs if soc and _is_for_soc(answer)]
            spared = TARGETS if fitting else frozenset()
            # An app may contain a program for each of several SoCs, and chooses one at run time:
            # those for others are no fault.
            left_out = {*REPLACED, *(["QNN323"] if fitting else [])}
            if any(("QNN324", shown) not in reported for shown in fitting):
                left_out.add("QNN324")
            # Google Play delivers a model of a pack only to the SoCs of its group (QNN878, QNN889).
            findings += [
                finding
                for finding in staged
                if finding.id not in left_out
                and not (finding.id in OF_TARGETS and GROUP.search(unit.show(finding.where)))
            ]
            for program, answer in pairs:
                axes = TARGETS if GROUP.search(program.shown) else spared
                findings += PAIRINGS.judge(Pairing(program, answer, reported, axes))
    texts = (
        replace(finding, where=unit.show(finding.where), fix=unit.show(finding.fix))
        for finding in findings
    )
    is_built = unit.kind is not Kind.SOURCES
    return sorted({_weigh(unit, text) for text in texts if is_built or text.id not in OF_BUILD})


def _pair(unit: AppUnit, soc: str) -> Iterator[tuple[PackedFile, Answer]]:
    """Yield each program of the app, and the answer of `compat` for it. Damaged programs are left
    out: the doctor reports them (QNN322). So are those for other NPUs, which an app has besides."""
    # Of an app with thousands of libraries and programs, it is made once, and not for each program.
    runtimes: dict[frozenset[str], Runtime] = {}
    for asset in unit.assets:
        with suppress(UnfitError, UsageError):  # no onnx package, or an unreadable file
            for program in inspect_file(asset.path, asset.name).programs:
                if program.damage or program.is_of_other_maker:
                    continue
                operators = frozenset(
                    name for method in program.methods for name in method.cpu_operators
                )
                if operators not in runtimes:
                    runtimes[operators] = describe_runtime(unit.tree.files, unit.name, operators)
                yield asset, judge_compat(program, runtimes[operators], soc)


def _is_for_soc(answer: Answer) -> bool:
    """Return whether a program may be for the SoC: it has a context binary, and nothing shows that
    it is for another SoC."""
    rows = {row.axis: row.verdict for row in answer.rows}
    return rows[Axis.FILE] is Verdict.YES and Verdict.NO not in map(rows.get, TARGETS)


def is_unread(findings: Iterable[Finding]) -> bool:
    """Return whether it is not known if the app can run its models: its libraries were not read, no
    known dependency brings QNN's, or the build file computes what is left out."""
    return any(finding.id in {"QNN885", "QNN893", "QNN897"} for finding in findings)


def lacks_only_files(unit: AppUnit, findings: Iterable[Finding]) -> bool:
    """Return whether there are errors, and all of them are about Git LFS pointers in a
    directory."""
    errors = {finding.id for finding in findings if finding.severity is Severity.ERROR}
    return unit.kind in {Kind.DIRECTORY, Kind.FILES} and errors == {"QNN854"}


def find_wanted(unit: AppUnit) -> tuple[str, ...]:
    """Return the QNN libraries that an app needs: libQnnHtp.so unless it has only other backends,
    and libQnnSystem.so if it has ExecuTorch, ONNX Runtime or a program. An app without any QNN
    library needs none."""
    names = {library.name for library in unit.qnn_libraries}
    other_backends = {f"libQnn{backend}.so" for backend in ("Gpu", "Cpu", "Dsp", "Lpai")}
    if not any(name.startswith("libQnn") for name in names):
        return ()
    has_htp = any(name.startswith("libQnnHtp") for name in names)
    backend = () if names & other_backends and not has_htp else ("libQnnHtp.so",)
    needs_system = any(map(RUNTIME.fullmatch, names)) or bool(unit.tree.lowered)
    return (*backend, *(("libQnnSystem.so",) if needs_system else ()))


def _weigh(unit: AppUnit, finding: Finding) -> Finding:
    """Return the finding with the severity that it has for this app."""
    may_come = unit.kind is not Kind.SOURCES or not _is_without_qnn(unit)
    if finding.id in ABSENCES and not unit.is_complete and may_come:
        return replace(finding, severity=Severity.NOTE)
    if finding.severity is not Severity.ERROR:
        return finding
    name = PurePath(finding.where).name
    is_of_qnn = OWN.match(name) or name in _find_dsp_names(unit)
    # A fault of a library that is not QNN's does not keep QNN from running.
    is_others = finding.id.startswith("QNN2") and not is_of_qnn
    # An AAR that a dependency brings may add to the manifest of sources.
    is_of_app = unit.kind is Kind.AAR and finding.id in OF_APP
    gradle = unit.gradle
    may_be_added = gradle is None or bool(gradle.packages) or gradle.may_have_other_libraries
    is_of_app |= unit.kind is Kind.SOURCES and finding.id == "QNN860" and may_be_added
    # The model of another device group than those of the requested SoCs.
    wrong = _list_wrong_socs(unit, finding.where) if finding.id == "QNN878" and unit.socs else []
    is_of_app |= bool(wrong) and not any(
        is_same_soc(soc, name) for soc in wrong for name in unit.socs
    )
    if is_others or is_of_app:
        return replace(finding, severity=Severity.WARNING)
    return finding


def _is_without_qnn(unit: AppUnit) -> bool:
    """Return whether these are the sources of an app to which nothing brings QNN's libraries."""
    gradle = unit.gradle
    if not gradle or not gradle.is_app or _may_be_delivered(unit) or unit.pointers:
        return False
    files = (*unit.libraries, *unit.assets, *unit.excluded)
    has_qnn = any(OF_QNN.match(file.name) for file in files)
    return not (has_qnn or gradle.packages or gradle.may_have_other_libraries)


def _may_be_delivered(unit: AppUnit) -> bool:
    """Return whether feature modules of the app may have the libraries for the NPU: one per SoC, or
    per Hexagon version, which Google Play delivers by device group, as it does the models."""
    has_groups = bool(unit.groups or _list_pack_groups(unit))
    return has_groups and bool(unit.gradle and unit.gradle.has_features)


def _find_dsp_names(unit: AppUnit) -> set[str]:
    """Return the names of the files that are for the DSP."""
    return {file.name for file in unit.tree.files if file.elf and file.elf.machine == EM_QDSP6}


def find_extraction(unit: AppUnit) -> bool | None:
    """Return whether the installer extracts the libraries, or None if that is not known."""
    manifest, gradle = unit.manifest, unit.gradle
    stated = manifest.extracts if manifest else None
    if gradle:
        if gradle.is_computed or gradle.legacy is not None:
            return gradle.legacy
        # Without a minSdk in these files, nothing is known.
        is_default = stated is None and unit.min_sdk is not None
        return (unit.min_sdk or 0) < NOT_EXTRACTED_FROM if is_default else stated
    # In an APK, the attribute is missing if it has its default, true; before packaging, Gradle
    # decides.
    is_known = unit.kind is Kind.APK and manifest and not manifest.fault
    return True if stated is None and is_known else stated


APPS.when(
    # Gradle packages the libraries of dependencies, too: of those that are not known, it is QNN893.
    QNN850=lambda unit: (
        not unit.libraries and not _list_packages(unit) and not _may_get_libraries(unit)
    ),
    QNN851=lambda unit: unit.libraries and QNN_ABI not in unit.abis,
    QNN852=lambda unit: (
        not _list_packages(unit)
        and not _may_get_libraries(unit)
        and not any(OF_QNN.match(file.name) for file in (*unit.libraries, *unit.assets))
    ),
    QNN855=lambda unit: unit.kind is not Kind.FILES and (not unit.manifest or unit.manifest.fault),
    # Any other archive than an AAR is installed as it is.
    QNN872=lambda unit: (
        unit.kind is Kind.APK and not unit.name.endswith(".aar") and not unit.manifest
    ),
)


@APPS.check("QNN849")
def see_flavour_without_qnn(unit: AppUnit) -> Iterator[Seen]:
    """Report a flavour of an app without QNN, if another flavour has QNN."""
    if unit.npu_flavours:
        file = unit.gradle.file if unit.gradle else ""
        yield seen(unit.name, f"{unit.name}: {file}", flavours=" and ".join(unit.npu_flavours))


@APPS.check("QNN854")
def see_pointers(unit: AppUnit) -> Iterator[Seen]:
    """Report Git LFS pointers instead of libraries or programs, all in one finding."""
    if unit.pointers:
        first, *names = [PurePath(path).name for path in unit.pointers]
        verb = "are" if names[1:] else "is"
        others_text = f", and so {verb} {name_some(names, MOST_NAMED)}" if names else ""
        yield seen(first, unit.pointers[0], others=others_text)


@APPS.check("QNN856")
def see_skels_inside(unit: AppUnit) -> Iterator[Seen]:
    """Yield a finding for the arm64-v8a libraries that are for the DSP, or named like a skel."""
    skel_names = {file.name for file in unit.tree.files if file.qnn_name.part == "Skel"}
    dsp = _find_dsp_names(unit) | skel_names
    skels = [file for file in unit.qnn_libraries if file.name in dsp]
    bringing = [package.text for package in _list_dependencies(unit) if package.package.brings_qnn]
    if not (skels or bringing) or find_extraction(unit) is not False:
        return
    cause = 'extractNativeLibs is "false"'
    if unit.gradle:
        cause = f"{unit.gradle.file} does not set useLegacyPackaging to true"
    if not skels:
        where = f"{unit.name}: {unit.gradle.file}" if unit.gradle else unit.name
        yield seen(f"each skel of {bringing[0]}", where, others="", cause=cause)
    else:
        yield seen(skels[0].name, skels[0].shown, others=_count_others(skels), cause=cause)


@APPS.check("QNN895")
def see_packaging_for_skels(unit: AppUnit) -> Iterator[Seen]:
    """Report that the skels would not be files, in the sources of an app that contains no skel, but
    a stub, or a package that needs QNN."""
    parts = {file.name: file.qnn_name.part for file in unit.tree.files}
    for dependency in _list_dependencies(unit):
        if dependency.package.needs_qnn:
            parts[dependency.text] = "needs QNN"
        elif dependency.package.brings_qnn:
            parts[dependency.text] = "Skel"
    users = [name for name, part in parts.items() if part in {"Stub", "needs QNN"}]
    is_app = unit.gradle and unit.gradle.is_app and "Skel" not in parts.values()
    if is_app and users and unit.gradle and find_extraction(unit) is False:
        where = f"{unit.name}: {unit.gradle.file}"
        yield seen(users[0], where, others=_count_others(users), file=unit.gradle.file)


HTP_PART = re.compile(r"libQnnHtpV(\d+)(?:Stub|Skel)[.]so")
OF_ANY_DEVICE = ("libQnnHtp.so", "libQnnSystem.so")


def _list_excluded(unit: AppUnit) -> dict[str, str]:
    """Return the libraries for the NPU that the build file leaves out of the app, and for each its
    pattern. Skels that are in the assets are not missing."""
    if not unit.gradle:
        return {}
    packaged_names = {file.name for file in unit.excluded if file.abi == QNN_ABI}
    patterns = {
        name: unit.gradle.find_exclude(f"lib/{QNN_ABI}/{name}")
        for name in _list_for_npu(unit, packaged_names, unit.gradle.excludes)
    }
    return {name: pattern for name, pattern in patterns.items() if pattern}


def _list_for_npu(
    unit: AppUnit, packaged_names: Collection[str], patterns: Collection[str]
) -> list[str]:
    """Return the libraries for the NPU that an app may have: those of ``packaged_names``, and QNN's
    if a package brings them or a pattern names one."""
    names = set(packaged_names)
    brings_qnn = any(dependency.package.brings_qnn for dependency in _list_dependencies(unit))
    # A pattern that names QNN is for libraries that something brings.
    if brings_qnn or any("qnn" in pattern.lower() for pattern in patterns):
        names.update(OF_ANY_DEVICE)
        for version in {soc.hexagon for soc in read_all_socs().values() if soc.hexagon}:
            names.update(_name_parts(version))
    names -= {asset.name for asset in unit.assets}
    return sorted(
        name
        for name in names
        if name in OF_ANY_DEVICE or HTP_PART.fullmatch(name) or RUNTIME.fullmatch(name)
    )


def _name_parts(hexagon: int) -> tuple[str, str]:
    return f"libQnnHtpV{hexagon}Stub.so", f"libQnnHtpV{hexagon}Skel.so"


def see_excluded(number: str, unit: AppUnit) -> Iterator[Seen]:
    """Report the libraries that the build file leaves out of the app: QNN894 for those without
    which no device, or no requested SoC, can run QNN, and QNN896 for those of other Hexagon
    versions, if no SoC is requested."""
    patterns = _list_excluded(unit)
    by_version: dict[int, list[str]] = {}
    for name in patterns:
        if part := HTP_PART.fullmatch(name):
            by_version.setdefault(int(part[1]), []).append(name)
    requested = {find_any_soc(name).hexagon for name in unit.socs}
    packaged_versions = {soc.hexagon for soc in read_all_socs().values()} - by_version.keys() - {0}
    if unit.excluded and not _list_packages(unit):
        # Without a package, the app has no others than those in the sources.
        parts = [HTP_PART.fullmatch(file.name) for file in unit.qnn_libraries]
        packaged_versions = {int(part[1]) for part in parts if part} - by_version.keys()
    needed = requested or (set() if packaged_versions else by_version.keys())
    names = []
    for name in patterns:
        part = HTP_PART.fullmatch(name)
        if not part or int(part[1]) in needed:
            names.append(name)
    if number == "QNN896":
        names = [] if requested else [name for name in patterns if name not in names]
    if names and unit.gradle:
        where = f"{unit.name}: {unit.gradle.file}"
        scope = f"does not match {names[0]}"  # such as libQnnSystem.so, which has no version
        if any(map(HTP_PART.fullmatch, names)):
            scope = "only matches Hexagon versions for which the app is not made"
        yield seen(
            names[0],
            where,
            others=_count_others(names),
            file=unit.gradle.file,
            pattern=patterns[names[0]],
            scope=scope,
        )


for excluded in ("QNN894", "QNN896"):
    APPS.check(excluded)(partial(see_excluded, excluded))


@APPS.check("QNN897")
def see_computed_excludes(unit: AppUnit) -> Iterator[Seen]:
    """Report libraries for the NPU that the build file leaves out of the app only in some builds,
    or by a pattern that it computes."""
    gradle = unit.gradle
    if not gradle or not gradle.is_app or not gradle.maybe_excludes:
        return
    packaged_names = {file.name for file in unit.libraries if file.abi == QNN_ABI}
    hexagons = {find_any_soc(name).hexagon for name in unit.socs}
    names = []
    for name in _list_for_npu(unit, packaged_names, gradle.maybe_excludes):
        part = HTP_PART.fullmatch(name)
        is_needed = not part or not hexagons or int(part[1]) in hexagons
        if is_needed and gradle.may_exclude(f"lib/{QNN_ABI}/{name}"):
            names.append(name)
    if names:
        where = f"{unit.name}: {gradle.file}"
        yield seen(names[0], where, others=_count_others(names), file=gradle.file)


@APPS.check("QNN879")
def see_skels_to_strip(unit: AppUnit) -> Iterator[Seen]:
    """Report the skels with a checksum that Gradle will strip, all in one finding."""
    if not unit.gradle:
        return
    stripped = []
    for file in unit.tree.files:
        has_checksum = not file.version or not is_older(file.version, FIRST_CHECKSUM)
        is_packed = file.relative.startswith("lib/") and file.qnn_name.is_htp_skel
        if is_packed and has_checksum and not unit.gradle.keeps(file.relative):
            stripped.append(file.name)
    if stripped:
        where = f"{unit.name}: {unit.gradle.file}"
        yield seen(stripped[0], where, others=_count_others(stripped))


@APPS.check("QNN880")
def see_filtered_abi(unit: AppUnit) -> Iterator[Seen]:
    """Report abiFilters, and splits per ABI, without QNN's ABI."""
    if unit.gradle:
        where = f"{unit.name}: {unit.gradle.file}"
        for name, abis in (("abiFilters", unit.gradle.abis), ("splits.abi", unit.gradle.splits)):
            if abis and QNN_ABI not in abis:
                yield seen(unit.name, where, option=name, filters=", ".join(abis))


@APPS.check("QNN881")
def see_newer_than_package(unit: AppUnit) -> Iterator[Seen]:
    """Report programs that were compiled with a newer QNN than the one that Gradle downloads."""
    files = dict(unit.placed())
    chosen = _choose_qnn(unit)
    if not chosen:
        return
    brought = "" if chosen.package.is_qnn else f", which brings QNN {chosen.qnn}"
    for facts in unit.tree.lowered:
        if facts.version and not is_loadable(facts.version, chosen.qnn):
            where = files[facts.relative].shown
            package = f"{chosen.text}{brought}"
            versions = {"compiler": facts.version, "package": package}
            yield seen(facts.name, where, **versions, doubt=_doubt(facts.version, chosen.qnn))


def _doubt(compiler: str, runtime: str) -> str:
    """Return what is not known of two versions that differ only after the second number, or "".

    onnxruntime-qnn is built with 2.49.40 and uses 2.49.0 of Maven on Android (its pull request
    783). No package of Maven was unpacked.
    """
    if parse_version(compiler).release[:2] != parse_version(runtime).release[:2]:
        return ""
    return (
        f"; whether this is so of {runtime}, too, is not known: the package of Maven may be of the"
        f" same release as {compiler}, so try the program on a device"
    )


@APPS.check("QNN882")
def see_packages(unit: AppUnit) -> Iterator[Seen]:
    """Report packages whose libraries are not in the sources."""
    if unit.gradle and unit.gradle.packages:
        names = name_some(unit.gradle.packages, MOST_NAMED)
        yield seen(names, f"{unit.name}: {unit.gradle.file}")


@APPS.check("QNN892")
def see_nothing_that_runs(unit: AppUnit) -> Iterator[Seen]:
    """Report models in the sources of an app that nothing can run: it has no library, and no
    dependency that may bring one."""
    models = _list_models_without_libraries(unit)
    if (
        models
        and not _list_packages(unit)
        and not (unit.gradle and unit.gradle.may_have_other_libraries)
    ):
        yield seen(models[0].name + _count_others(models), models[0].shown)


@APPS.check("QNN893")
def see_unread_libraries(unit: AppUnit) -> Iterator[Seen]:
    """Report an app, or its models, whose libraries come from dependencies of which nothing is
    known here. A compiled .tflite needs LiteRT's dispatch library, too."""
    gradle = unit.gradle
    if not gradle or not gradle.is_app or not (gradle.packages or gradle.may_have_other_libraries):
        return
    models = _list_models_without_libraries(unit)
    has_qnn = any(
        OF_QNN.match(file.name) for file in (*unit.libraries, *unit.assets, *unit.excluded)
    )
    of_qnn = [
        dependency
        for dependency in _list_dependencies(unit)
        if dependency.package.brings_qnn or dependency.package.needs_qnn
    ]
    needs_dispatch = any(unit.list_compiled()) and DISPATCH not in _list_brought(unit)
    without_npu = _find_litert_alone(unit) or _find_built_without_qnn(unit)
    is_known = (bool(of_qnn) and not needs_dispatch) or without_npu is not None
    if is_known or unit.pointers or (has_qnn and not models):
        return
    subject = models[0].name + _count_others(models) if models else "QNN"
    yield seen(unit.name, f"{unit.name}: {gradle.file}", models=subject)


# Libraries that are no own build of LiteRT, and do not connect it to QNN, as its dispatch library
# and QNN's delegate for TensorFlow Lite do.
UNCONNECTED = re.compile(r"lib(Qnn(?!TFLiteDelegate)|SNPE|LiteRt\.so|LiteRt\w*Accelerator|c\+\+)")
FIRST_NPU_RUNTIME = "2.3.0"  # the first version of litert-npu-runtime-qualcomm
DELEGATE = "com.qualcomm.qti:qnn-litert-delegate"


def _gets_all_from_packages(unit: AppUnit) -> bool:
    """Return whether all that brings libraries to an app is known: those in its sources, and
    packages of manifests/policies/maven.toml."""
    gradle = unit.gradle
    if not gradle or not gradle.is_app or gradle.may_have_other_libraries or unit.pointers:
        return False
    return not _may_be_delivered(unit) and len(_list_dependencies(unit)) == len(gradle.packages)


def _find_built_without_qnn(unit: AppUnit) -> Dependency | None:
    """Return a package that is built without QNN, such as ONNX Runtime's, in the sources of an app
    in which nothing else runs models with QNN, None if there is none, or if what the app gets is
    not all known."""
    dependencies = _list_dependencies(unit)
    runs_qnn = any(RUNTIME.fullmatch(file.name) for file in unit.libraries) or any(
        _calls_qnn(dependency.package) for dependency in dependencies
    )
    if runs_qnn or not _gets_all_from_packages(unit):
        return None
    return next(
        (each for each in dependencies if each.package.with_qnn and each.contents),
        None,
    )


@APPS.check("QNN900")
def see_built_without_qnn(unit: AppUnit) -> Iterator[Seen]:
    """Report a package that is built without QNN in an app in which nothing else runs QNN."""
    plain = _find_built_without_qnn(unit)
    if plain and unit.gradle:
        where = f"{unit.name}: {unit.gradle.file}"
        yield seen(plain.text, where, package=plain.package.with_qnn)


@APPS.check("QNN848")
def see_library_of_two_packages(unit: AppUnit) -> Iterator[Seen]:
    """Report a package with QNN and one without it that bring the same library."""
    dependencies = _list_dependencies(unit)
    for with_qnn in dependencies:
        for other in dependencies if with_qnn.package.brings_qnn else ():
            shared = [name for name in with_qnn.libraries if name in other.libraries]
            if shared and unit.gradle and not other.package.brings_qnn:
                where = f"{unit.name}: {unit.gradle.file}"
                module = other.text.split(":")[1]
                yield seen(
                    *(with_qnn.text, where), other=other.text, library=shared[0], module=module
                )


def _find_litert_alone(unit: AppUnit) -> Dependency | None:
    """Return LiteRT's package in the sources of an app in which nothing connects it to QNN, None if
    there is none, or if what the app gets is not all known."""
    if not _gets_all_from_packages(unit):
        return None
    dependencies = _list_dependencies(unit)
    # Packages of QNN without LiteRT, such as ONNX Runtime's, run other models.
    are_of_litert = all(
        dependency.package.is_qnn
        or (dependency.contents is not None and not _calls_qnn(dependency.package))
        for dependency in dependencies
    )
    files = (*unit.qnn_libraries, *unit.assets, *unit.excluded)
    libraries = [file.name for file in files if file.name.endswith(".so")]
    if not are_of_litert or not all(map(UNCONNECTED.match, libraries)):
        return None
    return next((dependency for dependency in dependencies if dependency.runs_models), None)


def _calls_qnn(package: Package) -> bool:
    """Return whether a package runs models with QNN."""
    return package.needs_qnn or (package.brings_qnn and not package.is_qnn)


# Before QNN898, because it answers the question of --soc: whatever connects the app to QNN, the
# model does not get there.
@APPS.check("QNN889")
def see_soc_without_group(unit: AppUnit) -> Iterator[Seen]:
    """Report that Google Play delivers no model of a pack to an SoC, or only the fallback. If the
    pack has a model for it, in a directory whose group is spelled in another way than the group of
    the configuration, that is another finding."""
    if not unit.groups or unit.groups.fault:
        return
    for model, groups in _list_pack_groups(unit).items():
        for soc in unit.socs:
            own_groups = [group for group, socs in unit.groups.socs.items() if soc in socs]
            is_misspelled = any(_find_spelled_alike(group, groups) for group in own_groups)
            if _find_delivered(unit, soc, groups) or is_misspelled:
                continue
            fallback = f"its devices get {model}#group_{OTHER}" if OTHER in groups else ""
            fallback = fallback or "its devices get no such model"
            same_version = _list_served(unit, find_any_soc(soc).hexagon, groups)
            near = (
                f"; the model for {same_version[0]} has the same Hexagon version"
                if same_version
                else ""
            )
            where = f"{unit.name}: {unit.groups.file}"
            yield seen(soc, where, model=model, fallback=fallback, near=near)


@APPS.check("QNN898")
def see_litert_without_npu(unit: AppUnit) -> Iterator[Seen]:
    """Report LiteRT's package in an app in which nothing connects it to QNN."""
    litert = _find_litert_alone(unit)
    if not litert or not unit.gradle:
        return
    compiled = [asset for asset, _ in unit.list_compiled()]
    models = (
        f"{compiled[0].name}{_count_others(compiled)} is compiled for Qualcomm's NPU, and runs"
        " nowhere: 'No dispatch library found' or 'unresolved custom op: DISPATCH_OP'"
        if compiled
        else "every model runs on the CPU or the GPU, without a message"
    )
    names = {file.name for file in unit.qnn_libraries}
    has_qnn = "libQnnHtp.so" in names or any(
        dependency.package.brings_qnn for dependency in _list_dependencies(unit)
    )
    how = f"{_tell_connection(litert)}{'' if has_qnn else f'; and depend on {QNN_RUNTIME}'}"
    yield seen(litert.text, f"{unit.name}: {unit.gradle.file}", models=models, how=how)


def _tell_connection(litert: Dependency) -> str:
    """Return what connects a package of LiteRT to QNN."""
    of_release = f"package {DISPATCH} of the LiteRT release of {litert.text}"
    if not litert.text.startswith(f"{LITERT_PACKAGE}:"):
        return of_release
    if is_older(litert.version, "2.0.0a0"):  # TensorFlow Lite's interpreter
        return f"depend on {DELEGATE}, which the interpreter takes as its delegate"
    runtime = f"{LITERT_PACKAGE}-npu-runtime-qualcomm"
    if is_older(litert.version, FIRST_NPU_RUNTIME):
        return (
            f"depend on {runtime}:{FIRST_NPU_RUNTIME}, and on {LITERT_PACKAGE} in that version; or"
            f" {of_release}"
        )
    return f"depend on {runtime}:{litert.version}"


@APPS.check("QNN899")
def see_packages_of_two_releases(unit: AppUnit) -> Iterator[Seen]:
    """Report a package whose version has to be that of LiteRT's package, and is another one."""
    dependencies = _list_dependencies(unit)
    for litert in dependencies:
        for dependency in dependencies if litert.text.startswith(f"{LITERT_PACKAGE}:") else ():
            versions = (dependency.version, litert.version)
            if not dependency.package.same_litert or not all(map(is_version, versions)):
                continue
            if unit.gradle and not is_same(*versions):
                where = f"{unit.name}: {unit.gradle.file}"
                yield seen(dependency.text, where, package=litert.text)


def _list_models_without_libraries(unit: AppUnit) -> list[PackedFile]:
    """Return the models in the sources of an app that has no native library for QNN's ABI."""
    is_app = unit.kind is Kind.SOURCES and bool(unit.gradle and unit.gradle.is_app)
    if not is_app or unit.qnn_libraries or _may_be_delivered(unit):
        return []
    files = dict(unit.placed())
    compiled = {files[facts.relative] for facts in unit.tree.lowered if facts.relative in files}
    return [file for file in unit.assets if file.path.suffix in LITERT or file in compiled]


def _list_packages(unit: AppUnit) -> tuple[str, ...]:
    return unit.gradle.packages if unit.gradle else ()


def _may_get_libraries(unit: AppUnit) -> bool:
    """Return whether these are the sources of an app to which something that is not known may
    bring native libraries."""
    return bool(unit.gradle and unit.gradle.is_app and unit.gradle.may_have_other_libraries)


def _list_dependencies(unit: AppUnit) -> list[Dependency]:
    return find_dependencies(_list_packages(unit))


def _list_brought(unit: AppUnit) -> set[str]:
    """Return the libraries that the packages of an app are known to bring, besides QNN's."""
    return {name for dependency in _list_dependencies(unit) for name in dependency.libraries}


def _choose_qnn(unit: AppUnit) -> Dependency | None:
    return choose_qnn(_list_dependencies(unit), unit.gradle.forced if unit.gradle else ())


@APPS.check("QNN885")
def see_no_qnn_package(unit: AppUnit) -> Iterator[Seen]:
    """Report a package that needs QNN's libraries, in an app to which nothing brings them. The
    packages that bring them get them from qnn-runtime, which a build file may exclude."""
    dependencies = _list_dependencies(unit)
    has_qnn = any(file.name.startswith("libQnn") for file in unit.qnn_libraries)
    is_excluded = unit.gradle is not None and unit.gradle.drops_runtime
    for dependency in dependencies:
        package = dependency.package
        has_qnn |= package.is_qnn or (package.brings_qnn and not is_excluded)
    for dependency in dependencies if not has_qnn else ():
        if (dependency.package.needs_qnn or dependency.package.brings_qnn) and unit.gradle:
            how = "of the QNN that compiled the models or newer"
            if dependency.package.same_version and is_version(dependency.version):
                how = f"in the same version, {dependency.version}"
            yield seen(dependency.text, f"{unit.name}: {unit.gradle.file}", how=how)


@APPS.check("QNN886")
def see_package_older_than_soc(unit: AppUnit) -> Iterator[Seen]:
    """Report that the QNN that Gradle downloads is known not to know an SoC. Of a release that is
    not known, this is known if a newer one does not know it, either."""
    chosen = _choose_qnn(unit)
    unknown = [dependency for dependency in _list_dependencies(unit) if dependency.newest_qnn]
    dependency = chosen or next(iter(unknown), None)
    if not (dependency and unit.gradle):
        return
    qnn = dependency.qnn or dependency.newest_qnn
    shown = dependency.qnn or f"{qnn} or older"
    for name in unit.socs:
        soc = find_any_soc(name)
        if is_too_old(soc, qnn):
            where = f"{unit.name}: {unit.gradle.file}"
            needed = f"{QNN_RUNTIME}:{soc.qnn}"
            file = unit.gradle.file
            how = (
                f"force {needed} or newer, or depend on it and remove the force in {file}"
                if dependency.text in unit.gradle.forced
                else f"depend on {needed} or newer: Gradle takes the newest version of it, unless"
                " the build file forces one"
            )
            yield seen(name, where, package=dependency.text, qnn=shown, how=how)


@APPS.check("QNN887")
def see_unknown_qnn(unit: AppUnit) -> Iterator[Seen]:
    """Report a package of which it is not known which QNN it brings, unless the app depends on a
    QNN, or excludes all."""
    dependencies = _list_dependencies(unit)
    if unit.gradle and unit.gradle.drops_runtime:
        return
    if any(dependency.package.is_qnn and dependency.qnn for dependency in dependencies):
        return
    for dependency in dependencies:
        if dependency.package.brings_qnn and not dependency.qnn and unit.gradle:
            yield seen(dependency.text, f"{unit.name}: {unit.gradle.file}")


@APPS.check("QNN888")
def see_two_builds(unit: AppUnit) -> Iterator[Seen]:
    """Report libraries in the sources that are of another QNN than the one that Gradle downloads,
    and a package whose version has to be that of QNN."""
    dependencies = _list_dependencies(unit)
    chosen = _choose_qnn(unit)
    if chosen is None or unit.gradle is None:
        return
    for dependency in dependencies:
        if dependency.package.same_version and not is_same(dependency.version, chosen.qnn):
            where = f"{unit.name}: {unit.gradle.file}"
            how = (
                f"depend on both in one version that Maven has of both, such as {chosen.qnn} or"
                f" {dependency.version}"
            )
            yield seen(dependency.text, where, qnn=dependency.version, package=chosen.text, how=how)
    other_files = [
        file
        for file in unit.tree.files
        if file.relative.startswith("lib/")
        and file.name.startswith("libQnn")
        and file.version
        and not is_same(file.version, chosen.qnn)
    ]
    if other_files:
        first = other_files[0]
        subject = first.name + _count_others(other_files)
        shown = dict(unit.placed())[first.relative].shown
        how = (
            f"remove the libraries of QNN {first.version} from the sources, such as {shown}, or"
            f" depend on {QNN_RUNTIME}:{first.version}, if Maven has that version"
        )
        yield seen(subject, first.relative, qnn=first.version, package=chosen.text, how=how)


def _list_pack_groups(unit: AppUnit) -> dict[str, set[str]]:
    """Return the device groups for which each model of the app's packs has a directory."""
    groups: dict[str, set[str]] = {}
    for model, group in list_groups(asset.shown for asset in unit.assets):
        groups.setdefault(model, set()).add(group)
    return groups


def _find_delivered(unit: AppUnit, soc: str, groups: Collection[str]) -> str:
    """Return the group with a directory that Google Play delivers to an SoC, or ""."""
    configured = unit.groups.socs if unit.groups else {}
    return next((group for group in groups if soc in configured.get(group, ())), "")


def _find_spelled_alike(group: str, others: Iterable[str]) -> str:
    """Return another group with the same letters and digits as ``group``, or ""."""
    letters = NOT_IN_NAMES.sub("", group.lower())
    alike = (other for other in others if NOT_IN_NAMES.sub("", other.lower()) == letters)
    return next((other for other in alike if other != group), "")


def _list_served(unit: AppUnit, hexagon: int, groups: Collection[str]) -> list[str]:
    """Return the SoCs of a Hexagon version for which a pack has a model."""
    configured = unit.groups.socs if unit.groups else {}
    served = [soc for group in groups for soc in configured.get(group, ())]
    socs = read_all_socs()
    return [soc for soc in served if hexagon and soc in socs and socs[soc].hexagon == hexagon]


@APPS.check("QNN890")
def see_served_socs(unit: AppUnit) -> Iterator[Seen]:
    """Report the SoCs that a pack has a model for, and those of the same Hexagon versions that get
    the fallback."""
    if not unit.groups or unit.groups.fault or unit.socs:
        return
    for model, groups in _list_pack_groups(unit).items():
        served = [soc for group in groups for soc in unit.groups.socs.get(group, ())]
        versions = {row.hexagon for name, row in read_all_socs().items() if name in served}
        left = [
            name
            for name, row in read_litert_socs().items()
            if row.hexagon in versions and name not in served
        ]
        if served:
            fallback_socs = name_some(left, MOST_NAMED)
            where = f"{unit.name}: {unit.groups.file}"
            yield seen(model, where, socs=", ".join(sorted(served)), others=fallback_socs)


@APPS.check("QNN891")
def see_group_without_partner(unit: AppUnit) -> Iterator[Seen]:
    """Report directories for device groups that the app does not define, and device groups that a
    pack has no directory for."""
    groups_of_models = _list_pack_groups(unit)
    if not groups_of_models or unit.kind is not Kind.SOURCES:
        return
    where = unit.name
    if unit.groups is None or unit.groups.fault:
        fault = unit.groups.fault if unit.groups else "the build file names none"
        model = next(iter(groups_of_models))
        yield seen(model, where, problem=f"no device targeting configuration was read ({fault})")
        return
    for model, groups in groups_of_models.items():
        for group in sorted(groups - {OTHER} - unit.groups.socs.keys()):
            alike = _find_spelled_alike(group, unit.groups.socs)
            spelled = f", but {alike}" if alike else ""
            problem = f"{unit.groups.file} defines no group {group}{spelled}"
            yield seen(model, where, problem=problem)
        for group in sorted(unit.groups.socs.keys() - groups):
            if _find_spelled_alike(group, groups):
                continue  # its directory was just named
            yield seen(model, where, problem=f"the pack has no directory for the group {group}")


@APPS.check("QNN883")
def see_computed_packaging(unit: AppUnit) -> Iterator[Seen]:
    """Report a build file that computes useLegacyPackaging, in a module with skels or with a
    package that brings them."""
    skels = [file for file in unit.tree.files if file.qnn_name.is_htp_skel]
    bringing = [package for package in _list_dependencies(unit) if package.package.brings_qnn]
    if unit.gradle and unit.gradle.is_computed and (skels or bringing):
        yield seen(unit.gradle.file, f"{unit.name}: {unit.gradle.file}")


def _is_off(file: PackedFile, page_bytes: int) -> bool:
    """Return whether the file is uncompressed in the APK but not aligned to a page."""
    return file.offset is not None and file.offset % page_bytes != 0


def see_packing(is_wrong: Callable[[PackedFile], bool], unit: AppUnit) -> Iterator[Seen]:
    """Yield one finding for all libraries that ``is_wrong`` selects. Yield none unless this is an
    APK whose libraries are not extracted."""
    is_used = unit.kind is Kind.APK and find_extraction(unit) is False
    wrong = [library for library in unit.libraries if is_used and is_wrong(library)]
    if wrong:
        yield seen(wrong[0].name, wrong[0].shown, others=_count_others(wrong))


APPS.check("QNN857")(partial(see_packing, lambda file: file.offset is None))
APPS.check("QNN858")(partial(see_packing, lambda file: _is_off(file, PAGE)))
APPS.check("QNN859")(
    partial(
        see_packing,
        lambda file: file.abi in WIDE and not _is_off(file, PAGE) and _is_off(file, LARGE_PAGE),
    )
)


def see_undeclared(number: str, unit: AppUnit) -> Iterator[Seen]:
    """Yield a finding for each vendor library that the app uses undeclared: QNN860 for RPC,
    QNN861 for RPC in an app that may start a process that uses QNN, QNN862 for any other."""
    programs = [file.name for file in unit.tree.files if file.elf and file.elf.interpreter]
    for name, users in _undeclared(unit).items():
        about = {"users": users[0] + _count_others(users)}
        if programs and name == RPC:
            about["program"] = f"the app also contains the executable {programs[0]}"
        if number == ("QNN862" if name != RPC else "QNN861" if programs else "QNN860"):
            yield seen(unit.name if name == RPC else name, unit.name, **about)


for undeclared in ("QNN860", "QNN861", "QNN862"):
    APPS.check(undeclared)(partial(see_undeclared, undeclared))


@APPS.check("QNN863")
def see_required(unit: AppUnit) -> Iterator[Seen]:
    """Report vendor libraries that the manifest requires: the app cannot be installed on
    devices without them.
    """
    for name, required in unit.manifest.native_libraries.items() if unit.manifest else ():
        if required and name in VENDOR:
            yield seen(name, unit.name)


def _undeclared(unit: AppUnit) -> dict[str, list[str]]:
    """Return the device's vendor libraries that the app needs but neither contains nor declares in
    its manifest. The values are the files that need them. Return none if the manifest is missing,
    or if the app targets an API level that needs no declaration."""
    manifest = unit.manifest
    if not manifest:
        return {}
    if manifest.target_sdk is not None and manifest.target_sdk < DECLARED_FROM:
        return {}
    available = {*manifest.native_libraries, *(library.name for library in unit.qnn_libraries)}
    for dependency in _list_dependencies(unit):
        # Gradle merges the manifest of a package into the app's.
        available.update(dependency.contents.declares if dependency.contents else ())
    available -= manifest.removed
    files = [file for file in unit.tree.files if file.elf and file.elf.machine == EM_AARCH64]
    users = {}
    for name in VENDOR:
        if name not in available:
            users[name] = [file.name for file in files if file.elf and name in file.elf.needed]
    # QNN opens libcdsprpc.so at run time, so no file needs to name it.
    if RPC in users and not users[RPC]:
        names = [library.name for library in unit.qnn_libraries]
        users[RPC] = [name for name in names if name == "libQnnHtp.so"]
        users[RPC] += [
            dependency.text
            for dependency in _list_dependencies(unit)
            if (dependency.package.brings_qnn or dependency.package.needs_qnn) and not users[RPC]
        ]
    return {name: needing_files for name, needing_files in users.items() if needing_files}


def _count_others(items: Sequence[object]) -> str:
    """Return text such as `` (and 2 more)`` for all items after the first one, or "" if there are
    none."""
    return f" (and {len(items) - 1} more)" if items[1:] else ""


@APPS.check("QNN867")
def see_different_duplicates(unit: AppUnit) -> Iterator[Seen]:
    """Report files with the same name and ABI but different content, of which only one is
    installed.
    """
    for files in unit.duplicates:
        readable = [file for file in files if file.path.is_file() and not file.is_pointer]
        differing = [
            file.shown
            for file in readable[1:]
            if file.size_bytes != readable[0].size_bytes
            or hash_file(file.path) != hash_file(readable[0].path)
        ]
        if differing:
            name, first = readable[0].name, readable[0].shown
            yield seen(name, first, first=first, others=", ".join(differing))


@APPS.check("QNN864")
def see_missing_for_program(unit: AppUnit) -> Iterator[Seen]:
    """Report libraries that a program needs and the app lacks. Nothing is reported for an app
    without QNN.
    """
    names = {library.name for library in unit.qnn_libraries}
    for asset in unit.assets:
        for needed in asset.find_needs() if names else ():
            if not names.intersection(needed.split("|")):
                yield seen(needed.replace("|", " or "), asset.shown, program=asset.name)


@APPS.check("QNN873")
def see_no_dispatch(unit: AppUnit) -> Iterator[Seen]:
    """Report that LiteRT's dispatch library is missing for compiled models, all in one finding."""
    names = {library.name for library in unit.qnn_libraries}
    compiled = [asset for asset, _ in unit.list_compiled()]
    if compiled and names and DISPATCH not in names | _list_brought(unit):
        models = compiled[0].name + _count_others(compiled)
        yield seen(DISPATCH, compiled[0].shown, models=models)


@APPS.check("QNN874")
def see_no_litert(unit: AppUnit) -> Iterator[Seen]:
    """Report a dispatch library or a compiler plugin in an app without LiteRT."""
    of_vendor = [file for file in unit.qnn_libraries if file.name in {DISPATCH, PLUGIN}]
    callers = [file for file in unit.qnn_libraries if file not in of_vendor]
    if (
        of_vendor
        and not any(dependency.runs_models for dependency in _list_dependencies(unit))
        and LITERT_NAME not in {file.name for file in callers}
        and not any(find_texts(file.path, [OPENS_DISPATCH]) for file in callers)
    ):
        yield seen(of_vendor[0].name, of_vendor[0].shown)


@APPS.check("QNN875")
def see_no_plugin(unit: AppUnit) -> Iterator[Seen]:
    """Report LiteRT models that no one compiles for the NPU, in an app with a dispatch library."""
    names = {library.name for library in unit.qnn_libraries} | _list_brought(unit)
    if DISPATCH not in names or PLUGIN in names:
        return
    plain = []
    for asset in unit.assets:
        group = GROUP.search(asset.shown)
        # The fallback of a pack is for devices without one of its SoCs.
        if asset.path.suffix in LITERT and not (group and group[2] == OTHER):
            with suppress(UnfitError, UsageError):
                models = inspect_file(asset.path, asset.name).programs
                # A model that is compiled for any manufacturer has partitions.
                if models and not any(map(_has_partitions, models)):
                    plain.append(asset)
    if plain:
        yield seen(plain[0].name + _count_others(plain), plain[0].shown)


def _has_partitions(model: Program) -> bool:
    return any(method.partitions for method in model.methods)


@APPS.check("QNN876")
def see_no_preparation(unit: AppUnit) -> Iterator[Seen]:
    """Report that a compiler plugin lacks the library that prepares graphs on the device."""
    files = {library.name: library for library in unit.qnn_libraries}
    if PLUGIN in files and PREPARE not in files:
        yield seen(PREPARE, files[PLUGIN].shown)


@APPS.check("QNN877")
def see_other_dispatch(unit: AppUnit) -> Iterator[Seen]:
    """Report dispatch libraries of other manufacturers next to Qualcomm's."""
    foreign = [file for file in unit.qnn_libraries if OTHER_DISPATCH.fullmatch(file.name)]
    if foreign and DISPATCH in {file.name for file in unit.qnn_libraries}:
        yield seen(foreign[0].name, foreign[0].shown, others=_count_others(foreign))


@APPS.check("QNN878")
def see_wrong_device_group(unit: AppUnit) -> Iterator[Seen]:
    """Report compiled models in an AI pack's directory for devices with another SoC."""
    for asset, facts in unit.list_programs():
        names = {target.soc for target in facts.targets}
        if wrong := _list_wrong_socs(unit, asset.shown):
            targets, socs = ", ".join(sorted(names)), ", ".join(wrong)
            yield seen(asset.name, asset.shown, targets=targets, socs=socs)


def _list_wrong_socs(unit: AppUnit, shown: str) -> list[str]:
    """Return the SoCs to whose devices Google Play delivers a compiled model of a pack that is for
    others. The app's configuration says which SoCs a group has; without it, the name of a group of
    LiteRT's tools does. An app may choose among several models in a directory of another group, and
    a model may run on another SoC of the same Hexagon version."""
    group = GROUP.search(shown)
    if not group:
        return []
    targets = [
        (program.shown, target)
        for program, facts in unit.list_programs()
        for target in facts.targets
    ]
    own_targets = [target for program, target in targets if program == shown]
    of_tools = DEVICE_GROUP.match(shown)
    if not own_targets:
        return []
    socs = unit.groups.socs.get(group[2], ()) if unit.groups and not unit.groups.fault else ()
    if of_tools and not socs:
        socs = (of_tools[1],)
    folder = shown[: group.end()]
    if not of_tools:
        own_targets = [target for program, target in targets if program.startswith(folder)]
    hexagons = set() if of_tools else {target.hexagon for target in own_targets}
    return [
        soc
        for soc in socs
        if not any(is_same_soc(soc, target.soc) for target in own_targets)
        and _find_hexagon(soc) not in hexagons
    ]


def _find_hexagon(name: str) -> int:
    """Return the Hexagon version of an SoC, 0 if it is not known."""
    with suppress(UsageError):
        return find_any_soc(name).hexagon
    return 0


@APPS.check("QNN884")
def see_different_releases(unit: AppUnit) -> Iterator[Seen]:
    """Report pairs of LiteRT's libraries that no release has in common. Libraries of an unknown
    release may belong to any."""
    identified = [(file, versions) for file, versions in unit.litert_libraries if versions]
    for (file, versions), (peer, peer_versions) in combinations(identified, 2):
        if file.abi == peer.abi and not set(versions) & set(peer_versions):
            yield seen(
                peer.name,
                peer.shown,
                release=describe_releases(peer_versions),
                peer=file.name,
                peer_release=describe_releases(versions),
            )


@PAIRINGS.check("QNN870")
def see_program_that_does_not_fit(pairing: Pairing) -> Iterator[Seen]:
    """Yield a finding for each axis on which the program does not load, unless the axis is spared
    or the doctor already reports it for this program."""
    for row in pairing.answer.rows:
        doctor_finding = (SAME_AXIS.get(row.axis, ""), pairing.program.shown)
        is_new = row.axis not in pairing.spared and doctor_finding not in pairing.reported
        if row.verdict is Verdict.NO and is_new:
            reason = f"{row.axis.value}: {row.why}"
            yield seen(pairing.program.name, pairing.program.shown, reason=reason)
