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
from ci.inspect.compat import Answer, Axis, Verdict, judge_compat
from ci.inspect.files import describe_runtime, inspect_file
from ci.inspect.litert_libraries import DISPATCH, LITERT_NAME, PLUGIN, describe_releases
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
from provisioning.manifest.targets import is_same_soc
from provisioning.versions import is_older

PAGE, LARGE_PAGE = 4096, 16384
DECLARED_FROM = 31  # API level
WIDE = frozenset({"arm64-v8a", "x86_64"})  # ABIs whose devices may have pages of 16 KiB
MOST_NAMED = 8
RPC = "libcdsprpc.so"
VENDOR = (RPC, "libadsprpc.so", "libsdsprpc.so", "libOpenCL.so")
OWN = re.compile(r"lib(Qnn|qnn|Genie|Htp|Snpe|SNPE|executorch|onnxruntime|LiteRt|c[+][+])")
PREPARE = "libQnnHtpPrepare.so"
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
QNN_PACKAGE = re.compile(r"com\.qualcomm\.qti:qnn-runtime:(\d+\.\d+\.\d+)")
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
    and at least one of its programs may be for that SoC. Otherwise there are none.
    """

    program: PackedFile
    answer: Answer
    reported: Collection[tuple[str, str]]
    spared: Collection[Axis]


PAIRINGS: Subjects[Pairing] = Subjects()
TARGETS = frozenset({Axis.HEXAGON, Axis.SOC, Axis.VTCM})
SAME_AXIS = {Axis.BUILD: "QNN313", Axis.HEXAGON: "QNN323", Axis.SOC: "QNN323"}


def judge_unit(unit: AppUnit, socs: Sequence[str]) -> list[Finding]:
    """Return the findings on an app or flavour, sorted by id and without duplicates. Raises
    UsageError for an unknown SoC."""
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
            findings += [finding for finding in staged if finding.id not in left_out]
            for program, answer in pairs:
                findings += PAIRINGS.judge(Pairing(program, answer, reported, spared))
    texts = (
        replace(finding, where=unit.show(finding.where), fix=unit.show(finding.fix))
        for finding in findings
    )
    is_built = unit.kind is not Kind.SOURCES
    return sorted({_weigh(unit, text) for text in texts if is_built or text.id not in OF_BUILD})


def _pair(unit: AppUnit, soc: str) -> Iterator[tuple[PackedFile, Answer]]:
    """Yield each program of the app, and the answer of `compat` for it. Damaged programs are left
    out: the doctor reports them (QNN322)."""
    for asset in unit.assets:
        with suppress(UnfitError, UsageError):  # no onnx package, or an unreadable file
            for program in inspect_file(asset.path, asset.name).programs:
                if program.damage:
                    continue
                operators = {name for method in program.methods for name in method.cpu_operators}
                runtime = describe_runtime(unit.tree.files, unit.name, operators)
                yield asset, judge_compat(program, runtime, soc)


def _is_for_soc(answer: Answer) -> bool:
    """Return whether a program may be for the SoC: it has a context binary, and nothing shows that
    it is for another SoC."""
    rows = {row.axis: row.verdict for row in answer.rows}
    return rows[Axis.FILE] is Verdict.YES and Verdict.NO not in map(rows.get, TARGETS)


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
    if finding.id in ABSENCES and not unit.is_complete:
        return replace(finding, severity=Severity.NOTE)
    if finding.severity is not Severity.ERROR:
        return finding
    name = PurePath(finding.where).name
    is_of_qnn = OWN.match(name) or name in _find_dsp_names(unit)
    # A fault of a library that is not QNN's does not keep QNN from running.
    is_others = finding.id.startswith("QNN2") and not is_of_qnn
    # An AAR that a dependency brings may add to the manifest of sources.
    is_of_app = unit.kind is Kind.AAR and finding.id in OF_APP
    is_of_app |= unit.kind is Kind.SOURCES and finding.id == "QNN860"
    if is_others or is_of_app:
        return replace(finding, severity=Severity.WARNING)
    return finding


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
    QNN850=lambda unit: not unit.libraries,
    QNN851=lambda unit: QNN_ABI not in unit.abis,
    QNN852=lambda unit: (
        not any(re.match(r"lib(Qnn|SNPE)", file.name) for file in (*unit.libraries, *unit.assets))
    ),
    QNN855=lambda unit: unit.kind is not Kind.FILES and (not unit.manifest or unit.manifest.fault),
    # Any other archive than an AAR is installed as it is.
    QNN872=lambda unit: (
        unit.kind is Kind.APK and not unit.name.endswith(".aar") and not unit.manifest
    ),
)


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
    if skels and find_extraction(unit) is False:
        cause = 'extractNativeLibs is "false"'
        if unit.gradle:
            cause = f"{unit.gradle.file} does not set useLegacyPackaging to true"
        yield seen(skels[0].name, skels[0].shown, others=_count_others(skels), cause=cause)


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
    """Report abiFilters without QNN's ABI."""
    if unit.gradle and unit.gradle.abis and QNN_ABI not in unit.gradle.abis:
        where = f"{unit.name}: {unit.gradle.file}"
        yield seen(unit.name, where, filters=", ".join(unit.gradle.abis))


@APPS.check("QNN881")
def see_newer_than_package(unit: AppUnit) -> Iterator[Seen]:
    """Report programs that were compiled with a newer QNN than the one that Gradle downloads."""
    files = dict(unit.placed())
    for package in unit.gradle.packages if unit.gradle else ():
        pinned = QNN_PACKAGE.fullmatch(package)
        for facts in unit.tree.lowered if pinned else ():
            if pinned and facts.version and not is_loadable(facts.version, pinned[1]):
                where = files[facts.relative].shown
                yield seen(facts.name, where, compiler=facts.version, package=package)


@APPS.check("QNN882")
def see_packages(unit: AppUnit) -> Iterator[Seen]:
    """Report packages whose libraries are not in the sources."""
    if unit.gradle and unit.gradle.packages:
        names = name_some(unit.gradle.packages, MOST_NAMED)
        yield seen(names, f"{unit.name}: {unit.gradle.file}")


@APPS.check("QNN883")
def see_computed_packaging(unit: AppUnit) -> Iterator[Seen]:
    """Report a build file that computes useLegacyPackaging, in a module with skels."""
    skels = [file for file in unit.tree.files if file.qnn_name.is_htp_skel]
    if unit.gradle and unit.gradle.is_computed and skels:
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
    files = [file for file in unit.tree.files if file.elf and file.elf.machine == EM_AARCH64]
    users = {}
    for name in VENDOR:
        if name not in available:
            users[name] = [file.name for file in files if file.elf and name in file.elf.needed]
    # QNN opens libcdsprpc.so at run time, so no file needs to name it.
    if RPC in users and not users[RPC]:
        names = [library.name for library in unit.qnn_libraries]
        users[RPC] = [name for name in names if name == "libQnnHtp.so"]
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
    if compiled and names and DISPATCH not in names:
        models = compiled[0].name + _count_others(compiled)
        yield seen(DISPATCH, compiled[0].shown, models=models)


@APPS.check("QNN874")
def see_no_litert(unit: AppUnit) -> Iterator[Seen]:
    """Report a dispatch library or a compiler plugin in an app without LiteRT."""
    of_vendor = [file for file in unit.qnn_libraries if file.name in {DISPATCH, PLUGIN}]
    callers = [file for file in unit.qnn_libraries if file not in of_vendor]
    if (
        of_vendor
        and LITERT_NAME not in {file.name for file in callers}
        and not any(find_texts(file.path, [OPENS_DISPATCH]) for file in callers)
    ):
        yield seen(of_vendor[0].name, of_vendor[0].shown)


@APPS.check("QNN875")
def see_no_plugin(unit: AppUnit) -> Iterator[Seen]:
    """Report LiteRT models that no one compiles for the NPU, in an app with a dispatch library."""
    names = {library.name for library in unit.qnn_libraries}
    if DISPATCH not in names or PLUGIN in names:
        return
    plain = []
    for asset in unit.assets:
        if asset.path.suffix in LITERT:
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
    for asset, facts in unit.list_compiled():
        names = {target.soc for target in facts.targets}
        group = DEVICE_GROUP.match(asset.shown)
        if group and names and not any(is_same_soc(group[1], name) for name in names):
            yield seen(asset.name, asset.shown, made=", ".join(sorted(names)), group=group[1])


@APPS.check("QNN884")
def see_different_releases(unit: AppUnit) -> Iterator[Seen]:
    """Report pairs of LiteRT's libraries that no release has in common. Libraries of an unknown
    release may belong to any."""
    known = [(file, versions) for file, versions in unit.litert_libraries if versions]
    for (file, versions), (peer, peer_versions) in combinations(known, 2):
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
