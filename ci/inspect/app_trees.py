"""Read an Android app from an archive, or from a directory with its files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ci.inspect.apps import (
    ABIS,
    MANIFEST,
    PROGRAMS,
    QNN_ABI,
    AppManifest,
    AppUnit,
    ArchiveReader,
    Kind,
    PackedFile,
    merge_manifests,
    read_manifest,
)
from ci.inspect.gradle import (
    APP_PLUGIN,
    MAX_BYTES,
    OF_PLUGINS,
    Gradle,
    add_conventions,
    join_modules,
    list_app_plugins,
    list_modules,
    list_own_plugins,
    list_plugins,
    list_variables,
    parse_gradle,
    read_build,
    read_catalog,
    read_plugin_ids,
    read_variables,
)
from ci.inspect.packs import is_pack, read_build_text, read_groups
from provisioning.console.caller import shown_path
from provisioning.doctor.survey.tree import (
    BUILD_FILES,
    LITERT,
    LOWERED,
    MAGIC,
    read_file,
    survey_tree,
)
from provisioning.documents import open_regular, read_text
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, Defect
from provisioning.errors import UsageError
from provisioning.quoting import show_command

# Deep enough for the sources of an app.
MAX_DEPTH = 12
LINUX_LIBC = "libc.so.6"
SOURCE_FILES = tuple(
    f"{name}.gradle{suffix}" for name in ("build", "settings") for suffix in ("", ".kts")
)
SETTINGS = ("settings.gradle", "settings.gradle.kts")
NOT_RELEASED_SET = re.compile(r"(?:android)?(?:[tT]est|[dD]ebug)|\w*Debug$")  # of source sets
OTHER_BUILDS = ("MODULE.bazel", "WORKSPACE", "WORKSPACE.bazel", "CMakeLists.txt", "Android.bp")
PLUGIN_SOURCES = (".kt", ".kts", ".gradle", ".groovy", ".java")
MAX_PLUGIN_SOURCES = 200  # files
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
            yield from _read_project(root, project, places)
        return
    parents = sorted({place.parent for place in places if place.name in ABIS})
    if parents:
        for parent in parents:
            yield _read_plain(root, parent)
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


def _read_project(root: Path, project: Path, places: Iterable[Path]) -> Iterator[AppUnit]:
    """Yield the units of a Gradle project, such as android/ of React Native and Flutter."""
    above = _relative(root, project)
    for unit in _read_sources(project, [path for path in places if path.is_relative_to(project)]):
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


def _read_plain(root: Path, parent: Path) -> AppUnit:
    """Return the app in an unpacked APK or AAR, or in a directory with a subdirectory per ABI."""

    def see(path: Path, abi: str = "") -> PackedFile:
        size_bytes = path.stat().st_size if path.exists() else 0
        return PackedFile(path.name, path, _relative(root, path), size_bytes, abi)

    above = [parent.parent, *parent.parent.parents, root]
    # The nearest one: in an unpacked app, it is next to lib/, and in a source set above jniLibs/.
    manifests = [path / MANIFEST for path in above if path.is_relative_to(root)]
    manifest_path = next((path for path in manifests if path.is_file()), None)
    manifest = read_manifest(manifest_path) if manifest_path else None
    places = [(abi, parent / abi) for abi in sorted(ABIS) if (parent / abi).is_dir()]
    folders = (parent.parent / "assets", parent.parent / "res" / "raw")
    return AppUnit(
        _relative(root, parent) or root.name,
        Kind.DIRECTORY,
        manifest,
        libraries=tuple(
            see(path, abi)
            for abi, place in places
            for path in sorted(place.iterdir())
            if path.suffix == ".so" and (path.is_symlink() or path.is_file())
        ),
        assets=tuple(
            see(path)
            for folder in folders
            if folder.is_relative_to(root)
            for path in sorted(folder.rglob("*"))
            if path.suffix in {*PROGRAMS, ".so"} and path.is_file()
        ),
    )


def _read_sources(root: Path, places: Iterable[Path]) -> Iterator[AppUnit]:
    """Yield each module that builds an app or has libraries in jniLibs, with the files of its
    source set main. An app also gets the files of the modules that it depends on, which are not
    yielded for themselves, and the models of the project's AI packs and asset packs."""
    places = list(places)
    texts = {
        module: read_build_text(module, BUILD_FILES) for module in places if not module.is_symlink()
    }
    packed = [
        asset
        for module, text in texts.items()
        if is_pack(text)
        for asset in _read_plain(root, _find_main(module) / "jniLibs").assets
    ]
    builds = _read_builds(root, texts)
    folders = {_name_module(root, module): module for module in texts}
    in_apps = {
        name for path in builds if builds[path].is_app for name in list_modules(path, builds)[1:]
    }
    count = 0
    for module in places:
        path = _name_module(root, module)
        is_read = module in texts and path in builds
        gradle = join_modules(path, builds) if is_read else None
        has_libraries = bool(gradle and list(_list_jni_folders(module, gradle)))
        if gradle and (gradle.is_app or (has_libraries and path not in in_apps)):
            unit = _read_module(root, module, gradle)
            if gradle.is_app:
                for name in list_modules(path, builds)[1:]:
                    files = _read_module(root, folders[name], builds[name])
                    unit = _add_module(unit, files, gradle)
            manifest = unit.manifest
            if manifest:
                # Gradle merges the manifests of the modules that an app depends on into its own.
                modules = [folders[name] for name in list_modules(path, builds)[1:]]
                manifest = merge_manifests([manifest, *_read_manifests(modules)]) or manifest
                manifest = replace(
                    manifest,
                    min_sdk=gradle.min_sdk or manifest.min_sdk,
                    target_sdk=gradle.target_sdk or manifest.target_sdk,
                )
            name = _relative(root, module) or root.name
            unit = replace(unit, name=name, kind=Kind.SOURCES, manifest=manifest, gradle=gradle)
            if gradle.is_app:
                groups = read_groups(root, module, texts[module])
                unit = replace(unit, assets=(*unit.assets, *packed), groups=groups)
            yield unit
            count += 1
    if not count:
        raise UsageError(
            f"{root} contains no Android app, so nothing was checked",
            why="no Gradle build file in it applies com.android.application, and no module has "
            "libraries in src/main/jniLibs",
            fix="build the APK or the AAR and pass it; for libraries alone, pass their directory",
        )


def _read_builds(root: Path, texts: Mapping[Path, str]) -> dict[str, Gradle]:
    """Return the build files of modules by the paths that Gradle gives the modules, such as
    ``:app``."""
    catalog = read_catalog(root.parent) | read_catalog(root)
    variables = {**read_variables(root.parent), **read_variables(root)}
    plugin_builds = [text for text in texts.values() if OF_PLUGINS.search(text)]
    sources = _read_plugin_sources(root, texts)
    for text in sources.values():  # object Versions { const val qnn = "2.37.1" } of buildSrc
        variables = {**list_variables(text), **variables}
    conventions = parse_gradle("", "\n".join(sources.values()), {}) if sources else None
    app_plugins = {APP_PLUGIN, *list_app_plugins(plugin_builds, sources)}
    plugin_ids = read_plugin_ids(root.parent) | read_plugin_ids(root)
    builds = {}
    for module, text in texts.items():
        if build := read_build(module, catalog, variables):
            plugins = list_plugins(text, plugin_ids)
            if conventions and list_own_plugins(plugins):
                build = add_conventions(build, conventions)
            if not plugins.isdisjoint(app_plugins):
                build = replace(build, is_app=True)
            if _has_other_libraries(module):
                build = replace(build, has_others=True)
            builds[_name_module(root, module)] = build
    return builds


def _read_plugin_sources(root: Path, texts: Mapping[Path, str]) -> dict[str, str]:
    """Return the sources of the project's Gradle plugins by file name, in buildSrc and in builds
    such as build-logic. Of files with the same name, the texts are joined."""
    folders = [module for module, text in texts.items() if OF_PLUGINS.search(text)]
    paths = []
    for folder in (*folders, root / "buildSrc"):
        for suffix in PLUGIN_SOURCES:
            paths += sorted(folder.glob(f"src/main/*/**/*{suffix}"))
    sources: dict[str, str] = {}
    for path in paths[:MAX_PLUGIN_SOURCES]:
        with suppress(OSError, ValueError):
            text = read_text(path, "replace", MAX_BYTES)
            sources[path.name] = f"{sources.get(path.name, '')}\n{text}"
    return sources


def _list_jni_folders(module: Path, gradle: Gradle) -> Iterator[Path]:
    """Yield the existing directories with the libraries of a module."""
    for folder in (_find_main(module) / "jniLibs", *(module / name for name in gradle.jni_folders)):
        if folder.is_dir():
            yield folder


def _has_other_libraries(module: Path) -> bool:
    """Return whether a module has native libraries in a source set that is not read, such as that
    of a flavour, and that a released app may get."""
    with suppress(OSError):
        for folder in (module / "src").iterdir():
            is_read = folder == _find_main(module) or NOT_RELEASED_SET.match(folder.name)
            if not is_read and any((folder / "jniLibs").glob(f"{QNN_ABI}/*.so")):
                return True
    return False


def _find_main(module: Path) -> Path:
    """Return the folder of a module's source set main, which has another name in a project for
    several platforms."""
    of_platforms = module / "src" / "androidMain"
    return of_platforms if of_platforms.is_dir() else module / "src" / "main"


def _read_module(root: Path, module: Path, gradle: Gradle) -> AppUnit:
    """Return the files of a module's source set main that its build file does not leave out."""
    unit = _read_plain(root, _find_main(module) / "jniLibs")
    for folder in _list_jni_folders(module, gradle):
        files = _read_plain(root, folder)
        names = {(file.abi, file.name) for file in unit.libraries}
        new = [file for file in files.libraries if (file.abi, file.name) not in names]
        unit = replace(unit, libraries=(*unit.libraries, *new))
    return _exclude(unit, gradle)


def _exclude(unit: AppUnit, gradle: Gradle) -> AppUnit:
    """Return the unit without the libraries that a build file leaves out, which are ``excluded``
    then."""
    excluded = [
        file for file in unit.libraries if gradle.find_exclude(f"lib/{file.abi}/{file.name}")
    ]
    packaged = [file for file in unit.libraries if file not in excluded]
    return replace(unit, libraries=tuple(packaged), excluded=(*unit.excluded, *excluded))


def _add_module(unit: AppUnit, module: AppUnit, gradle: Gradle) -> AppUnit:
    """Return an app with the files of a module that it depends on. What the module itself leaves
    out, the app may get from somewhere else."""
    packaged = _exclude(replace(module, excluded=()), gradle)
    own_files = {(file.abi, file.name): file for file in unit.libraries}
    new, twice = [], []
    for file in packaged.libraries:
        if own_file := own_files.get((file.abi, file.name)):
            twice.append((own_file, file))
        else:
            new.append(file)
    return replace(
        unit,
        libraries=(*unit.libraries, *new),
        duplicates=(*unit.duplicates, *twice),
        excluded=(*unit.excluded, *packaged.excluded),
        assets=(*unit.assets, *packaged.assets),
    )


def _read_manifests(modules: Iterable[Path]) -> list[AppManifest]:
    paths = [_find_main(module) / MANIFEST for module in modules]
    return [read_manifest(path) for path in paths if path.is_file()]


def _name_module(root: Path, module: Path) -> str:
    return ":" + ":".join(module.relative_to(root).parts)


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
            shown, size_bytes = _relative(root, path), path.stat().st_size
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


def _relative(root: Path, path: Path) -> str:
    """Return the path relative to ``root`` ('' for ``root`` itself), or the whole path if it is
    outside."""
    text = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    return "" if text == "." else text
