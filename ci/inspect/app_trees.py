"""Read an Android app in any form: an archive, a directory, or sources with Gradle's build
files."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath

from ci.inspect.app_manifest import AppManifest, merge_manifests
from ci.inspect.apps import (
    ABIS,
    MANIFEST,
    PROGRAMS,
    AppUnit,
    ArchiveReader,
    Kind,
    PackedFile,
    gather,
    is_pointer,
    read_manifest,
)
from ci.inspect.gradle import BUILD_FILES, Gradle, read_build
from provisioning.console.git import ask_git
from provisioning.doctor.survey.tree import FactsCache, find_min_sdk, survey_tree
from provisioning.documents import read_bytes
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, Defect
from provisioning.errors import IntegrityError, ToolError, UsageError

MAX_DEPTH = 12
MAX_CODE = 1 << 20  # bytes
CODE = frozenset({".kt", ".java", ".c", ".cc", ".cpp", ".cxx"})
NOT_SOURCES = frozenset({"build", "node_modules", "Pods", "third_party", "third-party"})
OTHER_SETS = re.compile(r"main|(test|androidTest|benchmark).*")


def read_app(path: Path, scratch: Path) -> list[AppUnit]:
    """Return the app at ``path``, with one unit per flavour. Raises UsageError if it is not an app,
    UnfitError for an LFS pointer, IntegrityError for a damaged or hostile archive, and OSError if a
    file cannot be read."""
    reader, path = ArchiveReader(scratch), path.absolute()
    if path.is_dir():
        units = list(_read_directory(path, reader))
    elif path.is_file():
        units = [reader.read_file(path)]
    else:
        raise UsageError(
            f"{path} is neither a file nor a directory", fix="pass an APK, an AAR or a directory"
        )
    return [_survey(unit, scratch) for unit in units]


def _survey(unit: AppUnit, scratch: Path) -> AppUnit:
    """Return the unit with the facts of its files. The facts are read through links in a directory
    that is laid out as on a device."""
    root = Path(tempfile.mkdtemp(dir=scratch))
    for relative, one in unit.placed():
        link = root / relative
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(one.path.absolute())
    tree = survey_tree(root, FactsCache(root))
    files = [
        file
        for file in tree.files
        if file.relative.startswith("lib/")
        or (file.elf and file.elf.machine in {EM_AARCH64, EM_QDSP6})
        or file.defect is Defect.LFS_POINTER
    ]
    pointers = [one.shown for _, one in unit.placed() if one.is_pointer]
    return replace(
        unit,
        pointers=(*unit.pointers, *pointers),
        assets=tuple(one for one in unit.assets if one.shown not in pointers),
        tree=replace(tree, files=tuple(files), min_sdk=unit.min_sdk),
    )


def _read_directory(root: Path, archives: ArchiveReader) -> Iterator[AppUnit]:
    """Yield the apps in a directory. They are read from the first of these that exists: sources
    with build files, directories named after ABIs, the APKs of one app, or a manifest alone. Raises
    UsageError if none of these exists."""
    places = list(_walk(root, 0))
    modules = [place for place in places if any((place / one).is_file() for one in BUILD_FILES)]
    parents = sorted({one.parent for one in places if one.name in ABIS})
    if modules:
        yield from _read_sources(root, modules, archives)
    elif parents:
        for parent in parents:
            yield _read_plain(root, parent)
    elif apks := sorted(one for one in root.glob("*.apk") if one.is_file()):
        yield archives.read_set(root.name, apks)
    elif (root / MANIFEST).is_file():
        manifest = read_manifest(root / MANIFEST)
        yield AppUnit(root.name, Kind.DIRECTORY, manifest)
    else:
        raise UsageError(
            f"{root} contains no Android app",
            why="it has no build.gradle, no directory named after an ABI such as arm64-v8a, "
            f"no {MANIFEST} and no APK",
            fix="pass the directory of the app; for libraries laid out as on a device, use "
            "`qnn-ci doctor staged --root staging=DIR`",
        )


def _read_plain(root: Path, parent: Path) -> AppUnit:
    """Return the app in an unpacked APK or AAR, or in a directory with a subdirectory per ABI."""
    above = [
        one for one in (parent.parent, *parent.parent.parents, root) if one.is_relative_to(root)
    ]
    found = next((one / MANIFEST for one in above if (one / MANIFEST).is_file()), None)
    manifest = read_manifest(found) if found else None
    libraries = _list_libraries(root, parent)
    folders = (parent.parent / "assets", parent.parent / "res" / "raw")
    assets = _list_assets(root, [one for one in folders if one.is_relative_to(root)])
    return AppUnit(
        _relative(root, parent) or root.name,
        Kind.DIRECTORY,
        manifest,
        tuple(libraries),
        assets=assets,
        absent=tuple(_list_absent(root, [parent])),
        min_sdk=manifest.min_sdk if manifest else None,
    )


def _read_sources(
    root: Path, modules: Sequence[Path], archives: ArchiveReader
) -> Iterator[AppUnit]:
    """Yield each app in the tree, and each library module with native libraries that no other
    module uses. Each flavour that has a jniLibs directory is a separate unit."""
    known = read_build(modules, root)
    whole = {place: _with_projects(root, place, known) for place in known}
    apps = [place for place in known if known[place].is_app]
    used = {each for place in apps for each in whole[place]}
    used |= {each for place in known for each in whole[place][1:]}
    count = 0
    for place in [*apps, *(one for one in known if one not in used)]:
        sets = [one.name for one in sorted((place / "src").glob("*")) if (one / "jniLibs").is_dir()]
        flavours = [one for one in sets if not OTHER_SETS.fullmatch(one)]
        units = [
            _read_variant(root, whole[place], known, one, archives) for one in flavours or [""]
        ]
        if known[place].is_app or any(unit.libraries or unit.absent for unit in units):
            yield from units
            count += len(units)
    if not count:
        raise UsageError(
            f"{root} contains no Android app, so nothing was checked",
            why=f"it has {len(modules)} Gradle build file{'s' if modules[1:] else ''}, but none"
            " applies com.android.application, directly or by a plugin of the same tree, and no"
            " module has native libraries",
            fix="pass the directory of the app, or build the APK and check that",
        )


def _read_variant(
    root: Path,
    modules: Sequence[Path],
    known: dict[Path, Gradle],
    flavour: str,
    archives: ArchiveReader,
) -> AppUnit:
    own, gradle = modules[0], known[modules[0]]
    sets = [name for name in (flavour, "main") if name]
    origins: list[Iterable[PackedFile]] = []
    kept = [module / part for module in modules for part in ("src", "libs")]
    manifests: list[AppManifest] = []
    absent, pointers = set(_list_absent(root, kept)), set()
    damaged: dict[str, str] = {}
    for module in modules:
        found = [module / "src" / name / "jniLibs" for name in sets]
        found += [module / name for name in known[module].libraries]
        merged = {
            (one.abi, one.name): one
            for place in reversed(found)
            for one in _list_libraries(root, place)
        }
        origins.append(merged.values())
        texts = [module / "src" / name / MANIFEST for name in sets]
        stacked = [read_manifest(one) for one in texts if one.is_file()]
        manifests += filter(None, [merge_manifests(stacked, len(stacked))])
        for archive, path in _list_archives(module, known[module]):
            if path is None:
                if PurePath(archive).name not in {PurePath(one).name for one in absent}:
                    absent.add(f"{_relative(root, module)}/{archive}".lstrip("/"))
            elif is_pointer(path):
                pointers.add(_relative(root, path))
            else:
                try:
                    unit = archives.read_file(path)
                except (IntegrityError, UsageError) as error:
                    damaged[_relative(root, path)] = error.why
                    continue
                shown = _relative(root, path)
                origins.append(
                    [
                        replace(one, shown=one.shown.replace(path.name, shown, 1))
                        for one in unit.libraries
                    ]
                )
                manifests += [unit.manifest] if unit.manifest else []
    folders = [
        one / "src" / name / part
        for one in modules
        for name in sets
        for part in ("assets", "res/raw")
    ]
    assets = _list_assets(root, folders)
    libraries, duplicates = gather(
        [one for one in origin if not gradle.excludes(f"lib/{one.abi}/{one.name}")]
        for origin in origins
    )
    manifest = merge_manifests(manifests)
    stated = manifest.min_sdk if manifest else None
    name = _relative(root, own) or root.name
    return AppUnit(
        f"{name} ({flavour})" if flavour else name,
        Kind.SOURCES if gradle.is_app else Kind.LIBRARY,
        manifest,
        libraries,
        duplicates,
        assets,
        gradle,
        tuple(sorted(absent)),
        tuple(sorted(pointers)),
        damaged,
        gradle.min_sdk or find_min_sdk(own) or stated,
        starter=_find_starter(root, modules, sets),
    )


def _find_starter(root: Path, modules: Sequence[Path], sets: Sequence[str]) -> str:
    """Return the first source file that sets LD_LIBRARY_PATH, as for a process that the app starts,
    or "" if there is none."""
    for path in (path for one in modules for name in sets for path in _list_code(one, name)):
        with suppress(OSError):
            if path.stat().st_size <= MAX_CODE and b"LD_LIBRARY_PATH" in read_bytes(path):
                return _relative(root, path)
    return ""


def _list_code(module: Path, name: str) -> list[Path]:
    found = (module / "src" / name).rglob("*")
    return sorted(path for path in found if path.suffix in CODE and path.is_file())


def _walk(place: Path, depth: int) -> Iterator[Path]:
    """Yield the directory, and all directories below it that may contain sources, to a depth of
    MAX_DEPTH. Symbolic links are yielded but not followed."""
    yield place
    if place.is_symlink() or depth > MAX_DEPTH or place.name in ABIS:
        return
    for path in sorted(place.iterdir()):
        if path.name not in NOT_SOURCES and not path.name.startswith(".") and path.is_dir():
            yield from _walk(path, depth + 1)


def _relative(root: Path, path: Path) -> str:
    """Return the path relative to ``root`` ('' for ``root`` itself), or the whole path if it is
    outside."""
    text = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return "" if text == "." else text


def _list_libraries(root: Path, place: Path) -> Iterator[PackedFile]:
    """Yield the libraries in ``place``/ABI."""
    for abi in sorted(ABIS):
        found = sorted((place / abi).iterdir()) if (place / abi).is_dir() else []
        for path in found:
            if path.suffix == ".so" and (path.is_symlink() or path.is_file()):
                yield _see(root, path, abi)


def _see(root: Path, path: Path, abi: str = "") -> PackedFile:
    size_bytes = path.stat().st_size if path.exists() else 0
    return PackedFile(path.name, path, _relative(root, path), size_bytes, abi)


def _list_assets(root: Path, folders: Sequence[Path]) -> tuple[PackedFile, ...]:
    """Return programs and libraries below ``folders``."""
    wanted = {*PROGRAMS, ".so"}
    return tuple(
        _see(root, path)
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.suffix in wanted and path.is_file()
    )


def _list_archives(module: Path, gradle: Gradle) -> Iterator[tuple[str, Path | None]]:
    """Yield the name and path of each AAR in ``libs`` or in the build file. The path is None if the
    AAR is missing."""
    found = {path.name: path for path in sorted((module / "libs").glob("*.aar"))}
    for archive in gradle.archives:
        name = archive.rpartition("/")[2]
        if "$" in archive or "*" in archive or name in found:
            continue
        places = (module / archive, *sorted(module.rglob(name)))
        if there := next((one for one in places if one.is_file()), None):
            found[name] = there
        else:
            yield archive, None
    yield from found.items()


def _with_projects(root: Path, module: Path, known: dict[Path, Gradle]) -> list[Path]:
    """Return the directories of a module and of all modules that it depends on. A module that is
    not in Gradle's default place is not found."""
    found, pending = [module], [module]
    while pending:
        for project in known[pending.pop()].projects:
            parts = project.split(":")
            above = [
                one.joinpath(*parts)
                for one in (module, *module.parents)
                if one.is_relative_to(root)
            ]
            place = next((one for one in above if one in known), None)
            if place and place not in found:
                found.append(place)
                pending.append(place)
    return found


def _list_absent(root: Path, places: Sequence[Path]) -> Iterator[str]:
    """Yield libraries, AARs and programs below ``places`` that are in git's index but not on disk.
    Outside a git checkout, yield nothing."""
    top = next((one for one in (root, *root.absolute().parents) if (one / ".git").exists()), None)
    if top is None:
        return
    patterns = [f"*{suffix}" for suffix in (".so", ".aar", *PROGRAMS)]
    words = ("-c", "core.fsmonitor=false", "ls-files", "-z", "--deleted", "--", *patterns)
    with suppress(ToolError):
        for name in os.fsdecode(ask_git(top, *words)).split("\0"):
            path = top / name
            if name and any(path.is_relative_to(place) for place in places):
                yield _relative(root, path)
