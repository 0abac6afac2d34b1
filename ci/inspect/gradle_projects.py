"""Read the apps of a Gradle project from its sources: each module's build file, and the files of
its source sets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ci.inspect.apps import (
    MANIFEST,
    QNN_ABI,
    AppManifest,
    AppUnit,
    ArchiveReader,
    Kind,
    merge_manifests,
    read_manifest,
)
from ci.inspect.flavours import (
    choose_flavours,
    list_other_sets,
    list_source_sets,
    list_variants,
)
from ci.inspect.gradle import (
    APP_PLUGIN,
    FOR_ALL_MODULES,
    OF_LIBRARIES,
    OF_PLUGINS,
    BuildFile,
    Catalog,
    Gradle,
    Variables,
    add_conventions,
    builds_app,
    join_modules,
    list_applied,
    list_modules,
    list_own_plugins,
    list_shared_texts,
    list_variables,
    name_plugins,
    parse_gradle,
    read_build_file,
    read_catalog,
    read_plugin_ids,
    read_variables,
    take_scripts,
)
from ci.inspect.gradle_archives import find_archives, find_place, is_inside
from ci.inspect.gradle_settings import (
    find_group,
    find_project_name,
    list_accessors,
    list_folders,
    list_included_builds,
    read_settings,
)
from ci.inspect.gradle_text import MAX_BYTES, drop_blocks, drop_comments
from ci.inspect.maven import find_dependencies
from ci.inspect.packs import PACK_PLUGINS, read_groups
from ci.inspect.plain_apps import read_plain, relative_path
from provisioning.documents import read_text
from provisioning.errors import QnnCiError, UsageError

NOT_RELEASED_SET = re.compile(r"(?:android)?(?:[tT]est|[dD]ebug)|\w*Debug$")  # of source sets
# The coordinates of a package as a text, and an accessor such as libs.npu.sdk.
NAME_OF_PACKAGE = re.compile(
    r"[\"']([\w.-]{1,100}:[\w.-]{1,100}(?::[\w.+$@{}-]{0,60})?)[\"']|\b([a-z]\w{0,60}\.[\w.]{1,100})\b"
)
# Plugins that add modules of packages that pubspec.yaml or package.json names: they may bring QNN.
ADDING_PLUGINS = frozenset(
    {"dev.flutter.flutter-gradle-plugin", "com.facebook.react", "org.apache.cordova"}
)
ADDING_SCRIPT = re.compile(r"/flutter\.gradle[\"']|\bnative_modules\.gradle\b")
PLUGIN_SOURCES = (".kt", ".kts", ".gradle", ".groovy", ".java")
MAX_PLUGIN_SOURCES = 200  # files


def read_project(
    top: Path, root: Path, places: Iterable[Path], archives: ArchiveReader
) -> Iterator[AppUnit]:
    """Yield each module of the project in ``root`` that builds an app or has libraries in jniLibs,
    an app for each combination of its flavours. An app also gets the files of the modules that it
    depends on, which are not yielded for themselves, those of archives in the project's folders,
    and the models of the project's AI packs and asset packs. ``places`` are the project's
    directories; nothing outside of ``top`` is read. Raises UsageError if there is none."""
    project = _find_modules(top, root, places)
    packed = [
        asset
        for path in project.files
        if not PACK_PLUGINS.isdisjoint(project.list_plugins(path))
        for asset in read_plain(top, _find_main(project.folders[path]) / "jniLibs").assets
    ]
    count = 0
    all_builds = project.read_builds(())
    in_apps = {
        name
        for path, build in all_builds.items()
        if build.is_app
        for name in list_modules(path, all_builds)[1:]
    }
    for path, build in all_builds.items():
        if not build.is_app:
            if path not in in_apps and project.has_libraries(path, build):
                yield project.read_unit(path, all_builds, (), archives)
                count += 1
            continue
        for unit in _read_variants(project, path, archives):
            groups = read_groups(root, project.folders[path], project.files[path].text)
            yield replace(unit, assets=(*unit.assets, *packed), groups=groups)
            count += 1
    if not count:
        raise UsageError(
            f"{root} contains no Android app, so nothing was checked",
            why="no Gradle build file in it applies com.android.application, and no module has "
            "libraries in src/main/jniLibs",
            fix="build the APK or the AAR and pass it; for libraries alone, pass their directory",
        )


def _read_variants(project: Project, path: str, archives: ArchiveReader) -> Iterator[AppUnit]:
    """Yield an app for each combination of its flavours."""
    variants = {}
    for variant in list_variants(project.texts[path]):
        unit = project.read_unit(path, project.read_builds(variant), variant, archives)
        if variant:
            flavours = f"flavour{'s' if variant[1:] else ''} {', '.join(variant)}"
            unit = replace(unit, name=f"{unit.name} ({flavours})")
        variants[", ".join(variant)] = unit
    with_qnn = tuple(name for name, unit in variants.items() if _has_qnn(unit))
    for name, unit in variants.items():
        yield unit if name in with_qnn else replace(unit, npu_flavours=with_qnn)


def _has_qnn(unit: AppUnit) -> bool:
    """Return whether an app has a library of QNN, or a package that brings or needs one."""
    packages = unit.gradle.packages if unit.gradle else ()
    known = [dependency.package for dependency in find_dependencies(packages)]
    return any(package.brings_qnn or package.needs_qnn for package in known) or any(
        file.name.startswith("libQnn") for file in unit.qnn_libraries
    )


@dataclass(frozen=True)
class Project:
    """A Gradle project. ``folders`` and ``files`` are the folder and the build file of each module
    by its path, such as ``:app``. ``sources`` are the texts of the project's own plugins by file
    name, and ``plugins`` the file names by the plugins' ids, ``plugin_ids`` the ids of the version
    catalog. ``included`` is the path of the build that each module of an included build belongs to,
    and ``substitutes`` the modules by the names of the packages that they replace."""

    top: Path
    root: Path
    folders: Mapping[str, Path]
    files: Mapping[str, BuildFile]
    catalog: Catalog
    variables: Variables
    sources: Mapping[str, str]
    plugins: Mapping[str, str]
    plugin_ids: Mapping[str, str]
    included: Mapping[str, str]
    substitutes: Mapping[str, str]

    def list_plugins(self, path: str) -> set[str]:
        """Return the ids of the plugins that a module applies, and of those that they apply."""
        text = self.files[path].text
        return list_applied(text, self.plugin_ids, self.plugins, self.sources)

    def _list_own_sources(self, path: str) -> set[str]:
        """Return the file names of the sources of the project's plugins that a module applies."""
        plugins = self.list_plugins(path)
        return {self.plugins[plugin] for plugin in plugins if plugin in self.plugins}

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The build file of each module with the project's plugins and scripts that it applies."""
        texts = {}
        for path, file in self.files.items():
            sources = [self.sources[name] for name in sorted(self._list_own_sources(path))]
            text, scripts = take_scripts(self.root, self.folders[path], file.text)
            shared = []
            if path in {":", *self.included}:
                text = drop_blocks(text, FOR_ALL_MODULES)
            elif ":" in self.files:
                # Those that are only for libraries count for modules that are not apps.
                for block in list_shared_texts(self.files[":"].text):
                    block = drop_blocks(block, OF_LIBRARIES) if builds_app(file.text) else block
                    block, shared_scripts = take_scripts(self.root, self.root, block)
                    shared += [block, *shared_scripts]
            texts[path] = "\n".join([*shared, *sources, *scripts, text])
        return texts

    def read_builds(self, variant: Collection[str]) -> dict[str, Gradle]:
        """Return the build files of all modules, of an app with these flavours, by path."""
        app_plugins = {
            plugin for plugin, name in self.plugins.items() if builds_app(self.sources[name])
        }
        return {
            path: self._read_build(path, variant, {APP_PLUGIN, *app_plugins}) for path in self.files
        }

    def _read_build(self, path: str, variant: Collection[str], app_plugins: set[str]) -> Gradle:
        file = self.files[path]
        applied = self.list_plugins(path)
        names = self._list_own_sources(path)
        text = choose_flavours(self.texts[path], variant)
        build = parse_gradle(file.name, self._substitute(text), self.catalog, self.variables)
        if prefix := self.included.get(path, ""):
            build = replace(build, modules=tuple(f"{prefix}{name}" for name in build.modules))
        is_app = builds_app(file.text) or not applied.isdisjoint(app_plugins)
        build = replace(build, is_app=is_app)
        own_plugins = list_own_plugins(applied)
        if own_plugins and self.sources:
            # What a plugin calls is in other files, and if it is not known, it may be any of them.
            are_known = own_plugins <= self.plugins.keys()
            others = self.sources.keys() - (names if not are_known else {*self.plugins.values()})
            helpers = "\n".join(self.sources[name] for name in sorted(others))
            build = add_conventions(build, parse_gradle("", helpers, {}))
        module = self.folders[path]
        _, are_all_found = find_archives(self.top, self.root, module, build.archives)
        are_known = all(find_place(self.root, module, name) for name in build.jni_folders)
        adds_modules = not applied.isdisjoint(ADDING_PLUGINS) or ADDING_SCRIPT.search(file.text)
        if (
            not are_all_found
            or not are_known
            or adds_modules
            or self._has_other_libraries(path, variant)
        ):
            build = replace(build, may_have_other_libraries=True)
        return build

    def _substitute(self, text: str) -> str:
        """Return the text of a build file with a module of an included build instead of each
        package that it replaces."""

        def name_module(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            path = self.substitutes.get(":".join(name.split(":")[:2]))
            return match[0] if path is None else f"project('{path}')"

        return NAME_OF_PACKAGE.sub(name_module, text) if self.substitutes else text

    def _has_other_libraries(self, path: str, variant: Collection[str]) -> bool:
        """Return whether a module has native libraries in a source set that is not read, such as
        one that is not known, and that a released app may get."""
        text = self.texts[path]
        known_names = {*list_source_sets(text, variant), *list_other_sets(text, variant)}
        known_names.add(_find_main(self.folders[path]).name)
        with suppress(OSError):
            for folder in (self.folders[path] / "src").iterdir():
                is_known = folder.name in known_names or NOT_RELEASED_SET.match(folder.name)
                if not is_known and any((folder / "jniLibs").glob(f"{QNN_ABI}/*.so")):
                    return True
        return False

    def has_libraries(self, path: str, build: Gradle) -> bool:
        """Return whether a module has a directory with libraries."""
        return any(self._list_jni_folders(path, build, ()))

    def _list_sets(self, path: str, variant: Collection[str]) -> list[Path]:
        """Return the folders of a module's source sets in a released app, that which replaces the
        files of the others first."""
        module = self.folders[path]
        names = list_source_sets(self.texts[path], variant)
        return [module / "src" / name for name in names[:-1]] + [_find_main(module)]

    def _list_jni_folders(
        self, path: str, build: Gradle, variant: Collection[str]
    ) -> Iterator[Path]:
        """Yield the existing directories with the libraries of a module."""
        folders = [folder / "jniLibs" for folder in self._list_sets(path, variant)]
        named = (find_place(self.root, self.folders[path], name) for name in build.jni_folders)
        folders += [place[0] / place[1] for place in named if place]
        for folder in folders:
            if folder.is_dir() and is_inside(folder, self.top):
                yield folder

    def _read_manifest(
        self, path: str, build: Gradle, variant: Collection[str]
    ) -> AppManifest | None:
        """Return the manifest of a module, into which Gradle merges those of its flavours."""
        paths = [folder / MANIFEST for folder in self._list_sets(path, variant)]
        place = find_place(self.root, self.folders[path], build.manifest_file)
        if place and is_inside(place[0] / place[1], self.top):
            paths[-1] = place[0] / place[1]
        manifests = [read_manifest(path) for path in paths if path.is_file()]
        merged = merge_manifests(manifests)
        if merged is None:
            return None
        for manifest in manifests[1:]:
            merged = replace(
                merged,
                package=merged.package or manifest.package,
                min_sdk=merged.min_sdk or manifest.min_sdk,
                target_sdk=merged.target_sdk or manifest.target_sdk,
                extracts=manifest.extracts if merged.extracts is None else merged.extracts,
                removed=merged.removed | manifest.removed,
            )
        return merged

    def read_unit(
        self,
        path: str,
        builds: Mapping[str, Gradle],
        variant: Collection[str],
        archives: ArchiveReader,
    ) -> AppUnit:
        """Return a module with its files and, if it builds an app, those of the modules that it
        depends on."""
        gradle = join_modules(path, builds)
        unit = self._read_files(path, gradle, variant)
        manifests = [self._read_manifest(path, gradle, variant) or unit.manifest]
        for name in list_modules(path, builds) if gradle.is_app else [path]:
            if name != path:
                unit = _add_files(unit, self._read_files(name, builds[name], variant), gradle)
                manifests.append(self._read_manifest(name, builds[name], variant))
            module = self.folders[name]
            paths, _ = find_archives(self.top, self.root, module, builds[name].archives)
            for archive in paths:
                try:
                    files = archives.read_file(archive)
                except UsageError:
                    continue  # a JAR without a native library
                except QnnCiError:  # the archive is damaged, or an LFS pointer
                    gradle = replace(gradle, may_have_other_libraries=True)
                    continue
                unit = _add_files(unit, files, gradle)
                manifests.append(files.manifest)
        own_manifest = manifests[0]
        manifest = merge_manifests([each for each in manifests if each]) if own_manifest else None
        if manifest:
            manifest = replace(
                manifest,
                min_sdk=gradle.min_sdk or manifest.min_sdk,
                target_sdk=gradle.target_sdk or manifest.target_sdk,
            )
        name = relative_path(self.root, self.folders[path]) or self.root.name
        return replace(unit, name=name, kind=Kind.SOURCES, manifest=manifest, gradle=gradle)

    def _read_files(self, path: str, gradle: Gradle, variant: Collection[str]) -> AppUnit:
        """Return the files of a module's source sets that its build file does not leave out."""
        unit = read_plain(self.top, _find_main(self.folders[path]) / "jniLibs")
        unit = replace(unit, libraries=())
        for folder in self._list_sets(path, variant)[:-1]:
            assets = read_plain(self.top, folder / "jniLibs").assets
            unit = replace(unit, assets=(*unit.assets, *assets))
        for folder in self._list_jni_folders(path, gradle, variant):
            files = read_plain(self.top, folder)
            names = {(file.abi, file.name) for file in unit.libraries}
            new = [file for file in files.libraries if (file.abi, file.name) not in names]
            unit = replace(unit, libraries=(*unit.libraries, *new))
        return _exclude(unit, gradle)


def _find_modules(top: Path, root: Path, places: Iterable[Path]) -> Project:
    """Return the project in ``root``. A module has the folder of its path, unless the settings name
    another one, which may be outside of the project, as node_modules of React Native is."""
    folders = {
        ":" + ":".join(place.relative_to(root).parts): place
        for place in places
        if not place.is_symlink()
    }
    for path, folder in list_folders(root, read_settings(root)):
        place = Path(os.path.normpath(folder))
        folders.pop(path, None)
        if is_inside(place, top) and place.is_dir():
            own_path = next((name for name, other in folders.items() if other == place), None)
            if own_path is not None:
                del folders[own_path]
            folders[path] = place
    included = _add_included(top, root, folders)
    files = {}
    for path, folder in folders.items():
        if file := read_build_file(folder):
            files[path] = file
    plugin_folders = [folders[path] for path, file in files.items() if OF_PLUGINS.search(file.text)]
    plugin_builds = [file.text for file in files.values() if OF_PLUGINS.search(file.text)]
    sources = _read_plugin_sources(root, plugin_folders)
    variables = {**read_variables(root.parent), **read_variables(root)}
    for text in sources.values():  # object Versions { const val qnn = "2.37.1" } of buildSrc
        variables = {**list_variables(text), **variables}
    return Project(
        top,
        root,
        folders,
        files,
        read_catalog(root.parent) | read_catalog(root),
        variables,
        sources,
        name_plugins(plugin_builds, sources),
        read_plugin_ids(root.parent) | read_plugin_ids(root),
        included,
        _name_packages(root, folders, files, included),
    )


def _add_included(top: Path, root: Path, folders: dict[str, Path]) -> dict[str, str]:
    """Add the modules of the builds that a project includes to the folders of its modules. Return
    the path of the build, such as ``:npu``, for each path of a module of one."""
    included = {}
    for folder in list_included_builds(root, read_settings(root)):
        place = Path(os.path.normpath(folder))
        if not is_inside(place, top):
            continue
        prefix = next((path for path, known in folders.items() if known == place), "")
        if not prefix:
            prefix = f":{place.name}"
            folders.setdefault(prefix, place)
            for child in sorted(path for path in place.iterdir() if path.is_dir()):
                folders.setdefault(f"{prefix}:{child.name}", child)
        for path in folders:
            if path == prefix or path.startswith(f"{prefix}:"):
                included[path] = prefix
    return included


def _name_packages(
    root: Path,
    folders: Mapping[str, Path],
    files: Mapping[str, BuildFile],
    included: Mapping[str, str],
) -> dict[str, str]:
    """Return the modules of included builds by the group and the name of the package that each of
    them replaces, and by the names of these packages in the version catalog."""
    modules = {}
    for path, prefix in included.items():
        place = folders[prefix]
        texts = [files[name].text for name in (path, prefix) if name in files]
        with suppress(OSError, ValueError):
            texts.append(read_text(place / "gradle.properties", "replace", MAX_BYTES))
        name = find_project_name(place) if path == prefix else path.rpartition(":")[2]
        if path in files and (group := find_group(*texts)):
            modules[f"{group}:{name}"] = path
    for accessor, package in list_accessors(root) if modules else ():
        if package in modules:
            modules[accessor] = modules[package]
    return modules


def _read_plugin_sources(root: Path, plugin_folders: Iterable[Path]) -> dict[str, str]:
    """Return the sources of the project's Gradle plugins by file name, in buildSrc and in builds
    such as build-logic. Of files with the same name, the texts are joined."""
    paths = []
    for folder in dict.fromkeys([*plugin_folders, root / "buildSrc"]):
        for suffix in PLUGIN_SOURCES:
            paths += sorted(folder.glob(f"src/main/*/**/*{suffix}"))
    sources: dict[str, str] = {}
    for path in dict.fromkeys(paths[:MAX_PLUGIN_SOURCES]):
        with suppress(OSError, ValueError):
            text = drop_comments(read_text(path, "replace", MAX_BYTES))
            sources[path.name] = f"{sources.get(path.name, '')}\n{text}"
    return sources


def _find_main(module: Path) -> Path:
    """Return the folder of a module's source set main, which has another name in a project for
    several platforms."""
    of_platforms = module / "src" / "androidMain"
    return of_platforms if of_platforms.is_dir() else module / "src" / "main"


def _exclude(unit: AppUnit, gradle: Gradle) -> AppUnit:
    """Return the unit without the libraries that a build file leaves out, which are ``excluded``
    then."""
    excluded = [
        file for file in unit.libraries if gradle.find_exclude(f"lib/{file.abi}/{file.name}")
    ]
    packaged = [file for file in unit.libraries if file not in excluded]
    return replace(unit, libraries=tuple(packaged), excluded=(*unit.excluded, *excluded))


def _add_files(unit: AppUnit, files: AppUnit, gradle: Gradle) -> AppUnit:
    """Return an app with the files of a module or an archive that it depends on. What a module
    itself leaves out, the app may get from somewhere else."""
    packaged = _exclude(replace(files, excluded=()), gradle)
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
