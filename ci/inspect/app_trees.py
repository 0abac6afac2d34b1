"""Read an Android app from an archive, or from a directory with its files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ci.inspect.apps import (
    ABIS,
    MANIFEST,
    PROGRAMS,
    QNN_ABI,
    AppUnit,
    ArchiveReader,
    Kind,
    PackedFile,
    read_manifest,
)
from ci.inspect.gradle_projects import read_project
from ci.inspect.gradle_settings import SETTINGS
from ci.inspect.plain_apps import read_plain, relative_path
from provisioning.console.caller import shown_path
from provisioning.doctor.survey.tree import (
    LITERT,
    LOWERED,
    MAGIC,
    read_file,
    survey_tree,
)
from provisioning.documents import open_regular
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, Defect
from provisioning.errors import UsageError
from provisioning.quoting import show_command

# Deep enough for the sources of an app.
MAX_DEPTH = 12
LINUX_LIBC = "libc.so.6"
SOURCE_FILES = tuple(
    f"{name}.gradle{suffix}" for name in ("build", "settings") for suffix in ("", ".kts")
)
OTHER_BUILDS = ("MODULE.bazel", "WORKSPACE", "WORKSPACE.bazel", "CMakeLists.txt", "Android.bp")
NOT_SOURCES = frozenset({"build", "node_modules", "Pods", "third_party", "third-party"})


def read_app(
    path: Path, scratch: Path, skip: Callable[[Path], None] = lambda _: None
) -> list[AppUnit]:
    """Return the app at ``path``, with one unit per directory of ABIs. ``skip`` is called with each
    directory that is searched for the app's, and cannot be read. Raises UsageError if it is
    not an app, UnfitError for an LFS pointer, IntegrityError for a damaged or hostile archive, and
    OSError if a file cannot be read."""
    reader, path = ArchiveReader(scratch), path.absolute()
    if path.is_dir():
        units = list(_read_directory(path, reader, skip))
    elif path.is_file():
        units = [reader.read_file(path)]
    elif not path.exists():
        raise UsageError(
            f"there is no {path}",
            fix="correct the path; it is relative to the directory from which you ran the command",
        )
    else:
        raise UsageError(
            f"{path} is neither a file nor a directory",
            fix="pass a program, a context binary, a library, an APK, an AAR or a directory",
        )
    return [_survey(unit, scratch) for unit in units]


def _survey(unit: AppUnit, scratch: Path) -> AppUnit:
    """Return the unit with the facts of its files. The facts are read through links in a directory
    that is laid out as on a device."""
    root = Path(tempfile.mkdtemp(dir=scratch))
    for relative, file in unit.placed():
        link = root / relative
        link.parent.mkdir(parents=True, exist_ok=True)
        # Links instead of copies, since libraries are large.
        link.symlink_to(file.path.absolute())
    tree = survey_tree(root)
    files = [
        file
        for file in tree.files
        if file.relative.startswith("lib/")
        or (file.elf and file.elf.machine in {EM_AARCH64, EM_QDSP6})
        or file.defect is Defect.LFS_POINTER
    ]
    pointers = tuple(packed.shown for _, packed in unit.placed() if packed.is_pointer)
    return replace(
        unit,
        pointers=pointers,
        assets=tuple(asset for asset in unit.assets if asset.shown not in pointers),
        tree=replace(tree, files=tuple(files), min_sdk=unit.min_sdk),
    )


def _read_directory(
    root: Path, archives: ArchiveReader, skip: Callable[[Path], None]
) -> Iterator[AppUnit]:
    """Yield the apps in a directory. They are read from the first of these that exists:
    directories named after ABIs, the APKs of one app, a manifest alone, or libraries to push to a
    device. In sources with Gradle's build files, each module is read. Raises UsageError if none of
    these exists."""
    places = list(_walk(root, 0, skip))
    if projects := _find_projects(root, places):
        for project in projects:
            yield from _read_gradle(root, project, places, archives)
        return
    parents = sorted({place.parent for place in places if place.name in ABIS})
    if parents:
        for parent in parents:
            yield read_plain(root, parent)
    elif apks := sorted(path for path in root.glob("*.apk") if path.is_file()):
        yield archives.read_set(root.name, apks)
    elif (root / MANIFEST).is_file():
        manifest = read_manifest(root / MANIFEST)
        yield AppUnit(root.name, Kind.DIRECTORY, manifest)
    elif any(_is_for_android(path) for path in sorted(root.glob("lib*.so"))):
        yield _read_files(root, places)
    else:
        why = (
            "it has no directory named after an ABI such as arm64-v8a, "
            f"no {MANIFEST}, no APK and no library for Android"
        )
        if other_build := next((name for name in OTHER_BUILDS if (root / name).is_file()), ""):
            why = f"of sources, only those with Gradle's build files are read, not {other_build}"
        fix = (
            "build the APK and pass it; for libraries laid out as on a device, use "
            f"{show_command('doctor', 'staged', '--root', f'staging={shown_path(root)}')}"
        )
        if program := _find_program(places):  # such as in what --keep-artifacts kept
            shown = show_command("inspect", shown_path(program))
            fix = f"use {shown} for the program in it; or {fix}"
        raise UsageError(f"{root} contains no Android app", why=why, fix=fix)


def _read_gradle(
    root: Path, project: Path, places: Iterable[Path], archives: ArchiveReader
) -> Iterator[AppUnit]:
    """Yield the units of a Gradle project, such as android/ of React Native and Flutter."""
    above = relative_path(root, project)
    inside = [path for path in places if path.is_relative_to(project)]
    for unit in read_project(root, project, inside, archives):
        yield replace(unit, name="/".join(filter(None, [above, unit.name])))


def _find_projects(root: Path, places: Iterable[Path]) -> list[Path]:
    """Return ``root`` if it has a Gradle build file, else the directories of Gradle projects below
    it, those in others left out. There, a module without a file with settings is none."""
    if any((root / name).is_file() for name in SOURCE_FILES):
        return [root]
    projects: list[Path] = []
    for place in places:
        is_inside = any(place.is_relative_to(project) for project in projects)
        with suppress(PermissionError):  # _walk has reported it
            if not is_inside and any((place / name).is_file() for name in SETTINGS):
                projects.append(place)
    return projects


def _find_program(places: Sequence[Path]) -> Path | None:
    """Return a program in these directories, a compiled one if possible, or None."""
    programs = [
        path
        for place in places
        for path in sorted(place.iterdir())
        if path.suffix in {LOWERED, *LITERT} and path.is_file()
    ]
    return min(programs, key=lambda path: not path.name.startswith("compiled"), default=None)


def _is_for_android(path: Path) -> bool:
    """Return whether a file is a library for the CPU of Android devices."""
    elf = read_file(path.name, path).elf
    # Linux on the same CPU has the libraries' versions in their names: libc.so.6.
    return elf is not None and elf.machine == EM_AARCH64 and LINUX_LIBC not in elf.needed


def _read_files(root: Path, places: Iterable[Path]) -> AppUnit:
    """Return the libraries, executables and programs in ``places`` below ``root``. Of files with
    the same name, the first one counts, since a push puts all of them into one directory."""
    libraries: dict[str, list[PackedFile]] = {}
    assets = []
    for place in places:
        if place.is_symlink() and place != root:
            continue
        paths: list[Path] = []
        with suppress(PermissionError):  # _walk has reported it
            paths = sorted(place.iterdir())
        for path in paths:
            if not path.is_file():
                continue
            is_library = path.suffix == ".so" or (not path.suffix and _is_elf(path))
            shown, size_bytes = relative_path(root, path), path.stat().st_size
            abi = QNN_ABI if is_library else ""
            file = PackedFile(path.name, path, shown, size_bytes, abi)
            if is_library:
                libraries.setdefault(path.name, []).append(file)
            elif path.suffix in PROGRAMS:
                assets.append(file)
    return AppUnit(
        root.name,
        Kind.FILES,
        None,
        libraries=tuple(files[0] for _, files in sorted(libraries.items())),
        duplicates=tuple(tuple(files) for files in libraries.values() if files[1:]),
        assets=tuple(assets),
    )


def _is_elf(path: Path) -> bool:
    with suppress(OSError), open_regular(path) as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def _walk(place: Path, depth: int, skip: Callable[[Path], None]) -> Iterator[Path]:
    """Yield the directory, and all directories below it that may contain sources, to a depth of
    MAX_DEPTH. Symbolic links are yielded but not followed."""
    yield place
    if place.is_symlink() or depth > MAX_DEPTH or place.name in ABIS:
        return
    try:
        paths = sorted(place.iterdir())
    except PermissionError:
        if not depth:
            raise
        skip(place)
        return
    for path in paths:
        # What Gradle generates in build/ contains copies of the same libraries.
        if path.name not in NOT_SOURCES and not path.name.startswith(".") and path.is_dir():
            yield from _walk(path, depth + 1, skip)
