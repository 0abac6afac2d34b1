"""A bundle: the files that a device needs to run programs, and the record that lists them."""

from __future__ import annotations

import filecmp
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

import msgspec

from ci.device import provenance
from ci.device.connection import require_plain
from ci.device.provenance import BundleFile
from ci.inspect.compat import Verdict, judge_compat
from ci.inspect.files import inspect_file, read_runtime
from ci.signing.record import RECORD_NAME, STATEMENT_NAME
from provisioning.console.progress import Progress
from provisioning.console.user_folder import owned_directory
from provisioning.doctor.examine import examine_request, make_request
from provisioning.doctor.facts import STAGING
from provisioning.documents import DocumentError, read_json
from provisioning.elf.facts import EM_AARCH64, EM_X86_64, ElfError, ElfFacts
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.elf.reader import read_elf
from provisioning.errors import UnfitError, UsageError
from provisioning.files import explain_writes, hash_file, walk, write_json
from provisioning.manifest.targets import find_soc
from provisioning.quoting import show_command

BUNDLE, FILES = "bundle.json", "files"
SCHEMA_VERSION = 1
BACKEND, SYSTEM = "libQnnHtp.so", "libQnnSystem.so"
LPAI = ("libQnnLpai.so", "libQnnLpaiStub.so")
BUNDLE_NAME = "qnn-ci-bundle"
STUB, SKEL = "libQnnHtpV{}Stub.so", "libQnnHtpV{}Skel.so"
EMULATED = ("libHtpPrepare.so", "libQnnHtpPrepare.so")  # QNN's loader opens them on an emulator
OURS = ("libQnn", "libqnn", "libexecutorch", "libc++")  # a bundle must contain these libraries
NO_SKEL = (
    # only a warning for an app, because the device may have a skel; a bundle must contain one
    "QNN317"
)
LICENCES = ("LICENSE*", "LICENCE*", "*LICENSE.pdf", "NOTICE*", "ThirdPartyNotices*")


class Target(str, Enum):
    """The system that a runner is built for. On x86-64, QNN emulates the SoC."""

    ANDROID = "aarch64-android"
    LINUX = "aarch64-linux"
    EMULATOR = "x86_64-linux"

    @property
    def profile(self) -> str:
        """The doctor's profile that checks files for this system, or "" for EMULATOR."""
        return {Target.ANDROID: "android", Target.LINUX: "linux"}.get(self, "")

    @property
    def machine(self) -> str:
        """The output of ``uname -m`` on this system."""
        return self.value.partition("-")[0]


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a bundle. ``runner`` is a file name, ``qnn`` the build of libQnnHtp.so, and
    ``files`` is sorted by name."""

    schema_version: int = SCHEMA_VERSION
    target: Target
    socs: tuple[str, ...]
    runner: str
    qnn: str
    files: tuple[BundleFile, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over the names and contents of all files."""
        rows = "".join(f"{file.name} {file.sha256}\n" for file in self.files)
        return hashlib.sha256(rows.encode()).hexdigest()


def stage(
    socs: Sequence[str],
    runner: Path,
    runtimes: Sequence[Path],
    out: Path,
    *,
    programs: Sequence[Path] = (),
    cases: Path | None = None,
    evidence: Path | None = None,
    signed: Path | None = None,
    force: bool = False,
    progress: Progress,
) -> Bundle:
    """Create a bundle in ``out`` for devices with ``socs``, and return its record.

    The bundle contains unchanged copies of ``runner``, of ``programs``, and of the libraries that
    they need. The libraries are searched for next to ``runner``, in its RUNPATH, and below
    ``runtimes``. ``cases`` is a directory that a run kept: its programs and inputs are added, with
    a script that runs them. ``evidence`` is a directory with statements about programs. ``signed``
    is a directory that `sign` wrote: LPAI's signed libraries and their record.

    Raises UsageError for an unknown SoC or two files with the same name, UnfitError if a file is
    missing or cannot be used on the SoCs, and StoreError if ``out`` cannot be written. After an
    error, ``out`` is unchanged. With ``force``, an ``out`` with files that are not ours is renamed;
    otherwise, UsageError is raised.
    """
    names = tuple(dict.fromkeys(soc.upper() for soc in socs))
    versions = {name: find_soc(name).hexagon for name in names}
    head = read_library(runner)
    if not head:
        raise UnfitError(
            f"the runner {runner} is not an ELF program",
            fix="pass a runner that build_android, build_linux or build_runner built",
        )
    target = find_target(head)
    near = [runner.parent, *map(Path, head.runpath)]
    libraries = index_libraries(near, runtimes, head, progress)
    required = [BACKEND, SYSTEM]
    skels: dict[str, Path] = {}
    if target is Target.EMULATOR:
        required += [name for name in EMULATED if name in libraries]
    else:
        for version in sorted(set(versions.values())):
            required.append(STUB.format(version))
            skels |= {SKEL.format(version): find_skel(SKEL.format(version), runtimes)}
    lpai = provenance.list_signed(signed) if signed else {}
    required += LPAI if signed else ()
    all_programs = [*programs, *provenance.list_programs(cases)]
    proven = provenance.find_evidence(all_programs, evidence) if evidence else {}
    user_files = _name_files([runner, *programs])
    files = {**user_files, **close_over(required, head, libraries), **skels, **lpai}
    with explain_writes(out), owned_directory(out, force=force) as fresh:
        for name, path in files.items():
            require_plain(name)
            (fresh / FILES).mkdir(exist_ok=True)
            shutil.copyfile(path, fresh / FILES / name)
            # copyfile copies no mode, and the runner must be executable.
            (fresh / FILES / name).chmod(0o755)
        bundle = describe(target, names, runner.name, fresh / FILES)
        for name in names if target.profile else ():
            require_fit(target, name, fresh / FILES, progress)
        # Now rather than on the device, whose error (5005, 14001 or 30010) names no cause.
        for program in all_programs:
            require_loads(program, fresh / FILES, names)
        copy_licences(runtimes, fresh / "licences")
        provenance.copy_files(proven.values(), fresh / provenance.EVIDENCE)
        if signed:
            records = [signed / name for name in (RECORD_NAME, STATEMENT_NAME)]
            provenance.copy_files(records, fresh / provenance.SIGNING)
        if provenance.has_sbom_library():
            parts = list_parts(bundle, fresh / FILES)
            provenance.write_sbom(fresh / provenance.SBOM, BUNDLE_NAME, bundle.digest, parts)
        provenance.write_by_hand(fresh, bundle.runner, cases, android=target is Target.ANDROID)
        write_json(fresh / BUNDLE, msgspec.to_builtins(bundle))
    return bundle


def _name_files(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the paths, keyed by file name. Raises UsageError if two different paths have the same
    file name."""
    paths_by_name: dict[str, Path] = {}
    for path in paths:
        if paths_by_name.setdefault(path.name, path) != path:
            raise UsageError(
                f"{paths_by_name[path.name]} and {path} have the same name",
                why="a bundle keeps all its files in one directory",
                fix="rename one of them",
            )
    return paths_by_name


def read_bundle(directory: Path) -> Bundle:
    """Return the record of a bundle. Raises UnfitError if ``directory`` is not a bundle, or if one
    of its files is missing or has changed. Raises UsageError for a file name with special
    characters."""
    try:
        bundle = read_json(directory / BUNDLE, Bundle)
    except DocumentError as error:
        raise UnfitError(
            f"{directory} is not a bundle",
            why=str(error),
            fix="create one with `stage`, as docs/guides/device.md shows",
        ) from error
    for file in bundle.files:
        require_plain(file.name)
        path = directory / FILES / file.name
        # A changed library would be judged by the record of the old one.
        if not path.is_file() or hash_file(path) != file.sha256:
            raise UnfitError(
                f"{path} is not the file that {BUNDLE} lists",
                why="the file was changed or removed after staging",
                fix="stage the bundle again",
            )
    # The record comes from a file, and this name is a part of a shell command.
    require_plain(bundle.runner)
    if bundle.runner not in {file.name for file in bundle.files}:
        raise UnfitError(
            f"{directory} has no runner {bundle.runner!r}",
            why=f"{BUNDLE} does not list it among the files",
            fix="stage the bundle again",
        )
    return bundle


def find_target(elf: ElfFacts) -> Target:
    """Return the system that a runner is for. Raises UnfitError for an unsupported machine."""
    if elf.machine == EM_X86_64:
        return Target.EMULATOR
    if elf.machine == EM_AARCH64:
        # A program may lack the note of the NDK. Its dynamic linker tells the system, too.
        is_android = elf.android or (elf.interpreter or "").startswith("/system/")
        return Target.ANDROID if is_android else Target.LINUX
    raise UnfitError(
        f"the runner {elf.path.name} is for {elf.machine_name}",
        why="programs run on AArch64 devices, or are emulated on x86-64",
        fix="pass a runner that build_android, build_linux or build_runner built",
    )


def read_library(path: Path) -> ElfFacts | None:
    """Return the facts of an ELF file, or None for any other file."""
    try:
        return read_elf(path)
    except ElfError:
        return None


def index_libraries(
    near: Iterable[Path], runtimes: Iterable[Path], like: ElfFacts, progress: Progress
) -> Mapping[str, ElfFacts]:
    """Return the libraries that fit the runner ``like``, keyed by file name: those for its
    processor and, on AArch64, for its system (Android or Linux). The directories ``near`` are
    searched first, then everything below ``runtimes``. Of several files with the same name, the
    first one is returned."""
    paths = [path for place in near if place.is_dir() for path in sorted(place.iterdir())]
    for place in runtimes:
        progress.step(f"looking for libraries in {place}")
        paths += (top / name for top, _, names in walk(place) for name in sorted(names))
    target = find_target(like)
    libraries: dict[str, ElfFacts] = {}
    for path in paths:
        if ".so" in path.name and path.name not in libraries:
            elf = read_library(path)
            if elf and elf.machine == like.machine:
                is_android = bool(elf.android) == (target is Target.ANDROID)
                if is_android or target is Target.EMULATOR:
                    libraries[path.name] = elf
    return libraries


def close_over(
    required_names: Iterable[str], runner: ElfFacts, libraries: Mapping[str, ElfFacts]
) -> dict[str, Path]:
    """Return the paths of the wanted libraries and of all libraries that they and the runner need,
    keyed by name. Raises UnfitError if a wanted library is missing, or a needed library of QNN,
    ExecuTorch or libc++. Other missing libraries are left out, because they are assumed to be part
    of the device's system."""
    paths: dict[str, Path] = {}
    todo = [*required_names, *runner.needed]
    required = {*required_names}
    while todo:
        name = todo.pop()
        if name in paths:
            continue
        if name in libraries:
            paths[name] = libraries[name].path
            todo += libraries[name].needed
        # A device has no libc++ that fits: its absence was reported several times
        # (pytorch/executorch#5120, #5311, #10895).
        elif name in required or name.startswith(OURS):
            raise UnfitError(
                f"{name} is missing",
                why="no searched directory contains this library for the runner's machine and"
                " system",
                fix="pass a directory with this library to --runtime, which may be repeated",
            )
    return paths


def find_skel(name: str, runtimes: Iterable[Path]) -> Path:
    """Return the path of a skel below ``runtimes``, preferably one in a directory called
    ``unsigned``. Raises UnfitError if there is none."""
    candidates: list[Path] = []
    for place in runtimes:
        candidates += (top / name for top, _, names in walk(place) if name in names)
    if not candidates:
        raise UnfitError(
            f"{name} is missing",
            why="the SoC's DSP loads this skel, but no directory passed to --runtime contains it",
            fix="pass an SDK to --runtime, or qnn-runtime-aarch64, which contains the skels V68"
            " to V81",
        )
    # An SDK has signed and unsigned skels; the path decides among several, so that the result is
    # always the same.
    return min(candidates, key=lambda path: ("unsigned" not in path.parts, str(path)))


def describe(target: Target, socs: tuple[str, ...], runner: str, directory: Path) -> Bundle:
    """Return the record of a bundle. Its files are those in ``directory``."""
    rows = []
    for path in sorted(directory.iterdir()):
        build = find_qnn_build(path) if ".so" in path.name else None
        size, build_text = path.stat().st_size, build.text if build else ""
        rows.append(BundleFile(path.name, hash_file(path), size, build_text))
    qnn = next((row.qnn for row in rows if row.name == BACKEND), "")
    return Bundle(target=target, socs=socs, runner=runner, qnn=qnn, files=tuple(rows))


def list_parts(bundle: Bundle, directory: Path) -> dict[BundleFile, tuple[str, ...]]:
    """Return the names of the libraries that each file of a bundle needs."""
    needed: dict[BundleFile, tuple[str, ...]] = {}
    for file in bundle.files:
        elf = read_library(directory / file.name)
        needed[file] = elf.needed if elf else ()
    return needed


def require_fit(target: Target, soc: str, directory: Path, progress: Progress) -> None:
    """Raise UnfitError if the doctor finds an error in the files staged for an SoC, or no skel for
    it."""
    request = make_request(target.profile, {STAGING: directory}, os.environ)
    verdict = examine_request(replace(request, soc=soc), progress)
    for finding in verdict.findings:
        is_grave = finding in verdict.errors or finding.id == NO_SKEL
        if is_grave and str(directory) in finding.where:
            raise UnfitError(f"{finding.id}: {finding.what}", why=finding.why, fix=finding.fix)


def require_loads(program: Path, directory: Path, socs: Sequence[str]) -> None:
    """Raise UnfitError if the staged libraries cannot load a program on one of ``socs``."""
    inspection = inspect_file(program)
    if inspection.program is None:
        raise UnfitError(f"{program} is not a program", why=inspection.why_no_program)
    operators = {
        operator for method in inspection.program.methods for operator in method.cpu_operators
    }
    for soc in socs:
        answer = judge_compat(inspection.program, read_runtime(str(directory), operators), soc)
        if answer.verdict is Verdict.NO:
            row = next(row for row in answer.rows if row.verdict is Verdict.NO)
            raise UnfitError(
                f"{program.name} does not load on {soc} (failed check: {row.axis.value})",
                why=row.why,
                fix=f"{show_command('inspect', str(program), '--soc', soc)} shows every check",
            )


def copy_licences(runtimes: Iterable[Path], target: Path) -> None:
    """Copy the licence files in ``runtimes`` to the directory ``target``. If files with the same
    name differ, a number is put before the names of all but the first."""
    folders = [folder for place in runtimes for folder in (place, place / "LICENSES")]
    licence_paths = (path for folder in folders for glob in LICENCES for path in folder.glob(glob))
    for path in filter(Path.is_file, licence_paths):
        target.mkdir(exist_ok=True)
        names = (f"{number}-{path.name}" for number in itertools.count(2))
        for name in itertools.chain([path.name], names):
            copy = target / name
            if not copy.exists() or filecmp.cmp(copy, path, shallow=False):
                shutil.copyfile(path, copy)
                break
