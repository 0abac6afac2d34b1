"""Find every library and program below a root directory, with its ELF facts and its QNN build."""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.doctor.facts import FileFacts, TreeFacts
from provisioning.documents import open_regular, read_text
from provisioning.elf.facts import EM_QDSP6, Defect, ElfError, ElfFacts, Proof
from provisioning.errors import UnfitError, UsageError
from provisioning.versions import parse_version

if TYPE_CHECKING:
    from provisioning.elf.qnn_build import QnnBuild

LIBRARY = re.compile(r"\.so(\.[0-9]+)*$")  # excludes libQnnHtp.so.md5
LOADABLE = {2, 3}  # ET_EXEC, ET_DYN
BUILD_FILES = ("build.gradle.kts", "build.gradle")
# minSdk = 31 in Kotlin; minSdk 31, minSdkVersion 31 or minSdkVersion(31) in Groovy.
MIN_SDK = re.compile(r"^[^\S\n]*minSdk(?:Version)?[\s=(]+(\d+)", re.MULTILINE)
MAGIC, LOWERED, CONTEXT = b"\x7fELF", ".pte", ".bin"
LITERT = (".tflite", ".litertlm")
PROGRAMS = {LOWERED, CONTEXT, *LITERT}
Accepts = Callable[[str], object]


def survey_tree(root: Path, accepts: Accepts = lambda _: True) -> TreeFacts:
    """Return facts about the libraries and programs below ``root``, in directories with a relative
    path for which ``accepts`` returns true.

    Symbolic links are listed. A link that points outside the tree is examined like its target,
    since a push to a device copies the target. If ``root`` is missing, the tree is empty.
    """
    links: dict[str, str] = {}
    dangling: set[str] = set()
    libraries: dict[str, Path] = {}
    lowered: list[FileFacts] = []
    for path, status in _walk(root, "", accepts):
        relative = path.relative_to(root).as_posix()
        if stat.S_ISLNK(status.st_mode):
            with suppress(OSError):
                links[relative] = str(path.readlink())
            if not path.exists():
                dangling.add(relative)
            status = _status_outside(path, root) or status
        if path.suffix in PROGRAMS and path.name.startswith("._"):
            continue  # a file of macOS
        if path.suffix in PROGRAMS and stat.S_ISREG(status.st_mode):
            read = _read_litert if path.suffix in LITERT else _read_lowered
            if program := read(relative, path, status.st_size):
                lowered.append(program)
        elif _is_candidate(path, status):
            libraries[relative] = path
    facts = read_files(libraries)
    return TreeFacts(root, facts, links, frozenset(dangling), tuple(lowered), root.is_dir())


def _status_outside(link: Path, root: Path) -> os.stat_result | None:
    """Return the status of a link's target outside ``root``; None if the target is missing or below
    ``root``.
    """
    with suppress(OSError, RuntimeError):
        target = link.resolve(strict=True)
        return None if target.is_relative_to(root.resolve()) else target.stat()
    return None


def find_min_sdk(root: Path) -> int | None:
    """Return the minSdk in the nearest Gradle build file in or above ``root``, up to the root of
    its git repository; None if no build file sets it to a number.
    """
    for directory in (root.absolute(), *root.absolute().parents):
        for name in BUILD_FILES:
            with suppress(OSError, UnicodeDecodeError):
                if match := MIN_SDK.search(read_text(directory / name)):
                    return int(match[1])
        # Not further up: a build file there belongs to another project.
        if (directory / ".git").exists():
            break
    return None


def _read_lowered(relative: str, path: Path, size_bytes: int) -> FileFacts | None:
    """Return facts about an ExecuTorch program or a context binary; None for any other .bin file.
    An empty .bin file is treated as a context binary.
    """
    from provisioning.doctor.survey.context_binaries import scan_context_binaries
    from provisioning.doctor.survey.programs import describe_other, parse_program
    from provisioning.elf import programs
    from provisioning.elf.qnn_build import search_build

    misplaced = ""
    try:
        with (
            open_regular(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            build, is_context = search_build(data), data[:8] == programs.MAGIC
            if path.suffix == LOWERED:
                program = parse_program(memoryview(data), path.name)
                damage = program.damage if program else describe_other(memoryview(data))
                misplaced = program.misplaced if program else ""
            elif is_context or build:
                is_known = is_context or data[:4] == programs.ARCHIVE
                damage = programs.find_context_damage(data) if is_known else ""
            else:
                return None
            targets = programs.find_targets(data) or tuple(
                programs.Target(
                    context_binary.soc or programs.NO_SOC,
                    context_binary.hexagon,
                    context_binary.vtcm_mb,
                )
                for context_binary in scan_context_binaries(data)
                if context_binary.hexagon
            )
    except (OSError, ValueError):  # an empty file cannot be mapped
        build, damage, targets = None, "is empty" if not size_bytes else "", ()
    defect = Defect.TRUNCATED if damage else None
    return FileFacts(
        relative,
        path,
        size_bytes,
        build=build,
        defect=defect,
        defect_why=damage,
        targets=targets,
        misplaced=misplaced,
    )


def _read_litert(relative: str, path: Path, size_bytes: int) -> FileFacts | None:
    """Return facts about a LiteRT model that is damaged or compiled for Qualcomm's NPU, or a bundle
    with such models; None for any other file: an app may encrypt its models.
    """
    from provisioning.doctor.survey.litert import list_models
    from provisioning.doctor.survey.programs import map_file
    from provisioning.elf.programs import NO_SOC, Target
    from provisioning.elf.qnn_build import search_whole

    try:
        models, damage = list_models(map_file(path), path.name)
    except UsageError:
        return None
    contexts = [context for model in models for context in model.contexts]
    if not contexts and not damage:
        return None
    targets = {
        Target(context.soc or NO_SOC, context.hexagon, context.vtcm_mb)
        for context in contexts
        if context.hexagon
    }
    # The newest one, since the runtime has to load all of them.
    newest = max(
        (context for context in contexts if context.qnn),
        key=lambda context: parse_version(context.qnn),
        default=None,
    )
    return FileFacts(
        relative,
        path,
        size_bytes,
        build=search_whole(newest.build.encode(), 0, len(newest.build)) if newest else None,
        defect=Defect.TRUNCATED if damage else None,
        defect_why=damage,
        targets=tuple(sorted(targets)),
    )


def read_files(files: Mapping[str, Path]) -> tuple[FileFacts, ...]:
    """Return facts about each file, in the order of relative paths, which are the keys."""
    # By one process and without a cache, which takes 1.8 s for 372 libraries of 4.8 GB, more than
    # any SDK has.
    return tuple(read_file(relative, path) for relative, path in sorted(files.items()))


def read_file(relative: str, path: Path) -> FileFacts:
    """Return facts about one file. A file that cannot be read as ELF has a ``defect``."""
    from provisioning.elf.qnn_build import find_qnn_build
    from provisioning.elf.reader import read_elf

    try:
        elf = read_elf(path)
        if elf.type in LOADABLE and not elf.program_headers:
            why = "it has no program headers"
            return FileFacts(relative, path, elf.size_bytes, defect=Defect.CORRUPT, defect_why=why)
        build = find_qnn_build(path, elf.rodata)
        proof = _prove(elf, build)
        return FileFacts(relative, path, elf.size_bytes, elf, build, proof=proof)
    except ElfError as error:
        size_bytes = path.lstat().st_size if os.path.lexists(path) else 0
        return FileFacts(relative, path, size_bytes, defect=error.defect, defect_why=error.why)


def _prove(elf: ElfFacts, build: QnnBuild | None) -> Proof | None:
    """Return what catalogs, or the list of genuine skels, prove about an unsigned DSP library; None
    for other files.
    """
    if elf.machine != EM_QDSP6 or any(head.is_hashes for head in elf.program_headers):
        return None
    from provisioning.manifest.catalogs import prove_skel

    with suppress(OSError):
        return prove_skel(elf.path, build)
    return None


def _walk(root: Path, relative: str, accepts: Accepts) -> Iterator[tuple[Path, os.stat_result]]:
    """Raises UnfitError for a directory that this user cannot read: its files would count as
    missing."""
    try:
        entries = sorted(os.scandir(root / relative), key=lambda entry: entry.name)
    except PermissionError as error:
        raise UnfitError(
            f"{root / relative} cannot be read",
            why=f"{error.strerror}; so nothing is known about the files in it",
            fix="make it readable (chmod -R u+rX), or run the command as a user who can read it",
        ) from error
    # Missing, or removed meanwhile.
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, f"{relative}/{entry.name}".lstrip("/"), accepts)
        elif accepts(relative):
            with suppress(OSError):  # it may be removed meanwhile
                yield Path(entry.path), entry.stat(follow_symlinks=False)


def _is_candidate(path: Path, status: os.stat_result) -> bool:
    """Return whether a file has a library's name, or is an executable that starts like an
    ELF file.
    """
    if not stat.S_ISREG(status.st_mode):
        return False
    # By its name even if it is no ELF file, so that an HTML page or an LFS pointer in its place is
    # reported.
    if LIBRARY.search(path.name):
        return True
    if status.st_mode & 0o111:
        with suppress(OSError), open_regular(path) as file:
            return file.read(4) == MAGIC
    return False
