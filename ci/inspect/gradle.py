"""Read what an Android module's Gradle build file states about native libraries, without a build.

A build file is a program, but it is read as text. Only literal values are recognized, those of a
version catalog (gradle/libs.versions.toml), and variables that have a text as value, there, in the
project's build file or in gradle.properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ci.inspect.gradle_archives import OF_MODULE, is_inside, list_archives, spell_paths
from ci.inspect.gradle_settings import DEFAULT_CATALOG, Tables, as_table, read_catalogs
from ci.inspect.gradle_text import MAX_BYTES, QUOTED, drop_blocks, drop_comments, find_blocks
from ci.inspect.maven import QNN_RUNTIME
from provisioning.doctor.survey.tree import BUILD_FILES
from provisioning.documents import read_text

# jniLibs { useLegacyPackaging = true }, jniLibs.useLegacyPackaging true; dex has a property of the
# same name.
LEGACY = re.compile(r"jniLibs\s*(?:\{[^{}]*?|\.\s*)useLegacyPackaging[\s=(]*([\w.]+)")
# Strings after a name: X += ["a", "b"], X.addAll(listOf("a")), X "a", "b".
STRINGS = (
    r"\b(?:\s*(?:\+?=|\.(?:add|addAll|set)\b))?[\s(\[]*"
    r"(?:(?:mutable)?(?:[Ll]ist|[Ss]et|array)Of(?:<\w{1,20}>)?[\s(]*)?"
    r"((?:[\"'][^\"'\n]*[\"'][\s,]*)+)"
)
KEPT = re.compile(rf"\b(?:keepDebugSymbols|doNotStrip){STRINGS}")
ABIS = re.compile(rf"\babiFilters?{STRINGS}")
# Any use that adds ABIs, and the rest of its line: abiFilters.addAll(property("abis").split(","))
ADDED_ABIS = re.compile(
    r"\babiFilters?\b(?!\s{0,9}(?:-=|\.\s{0,9}(?:remove|removeAll|clear|get|contains)\b))"
    r"(?=\s{0,9}(?:\+?=|\.\s{0,9}(?:add|addAll|set)\b|[(\"'\[*])|[ \t]+\w)([^\n;}]{0,300})"
)
ALL_OF_ABI = "lib/arm64-v8a/**"  # the ABI that QNN has libraries for
ABI = re.compile(r"arm64-v8a|armeabi(?:-v7a)?|x86(?:_64)?|riscv64|mips(?:64)?")
WORD = re.compile(r"\w[\w.]{0,100}")
# Of what is not packaged: packaging { jniLibs { excludes += "**/a.so" } }, with any spelling of
# Gradle's, and of before 2021, when one set was for native libraries and resources. Resources and
# .dex files have other sets.
OTHER_SETS = re.compile(r"\b(?:resources|dex)\s{0,9}\{")
NATIVE_SETS = re.compile(r"\b(?:packaging(?:Options)?|jniLibs)\s{0,9}\{")
EXCLUDED = re.compile(rf"\bexcludes?{STRINGS}")
AT_ONCE = re.compile(
    r"\b(?:jniLibs|packaging|packagingOptions)\s{0,9}\.\s{0,9}"
    r"(?=excludes?\b(?!\s{0,9}(?:-=|\.\s{0,9}(?:remove|removeAll|clear|get)\b)))"
)
# Any use that adds patterns, and what follows a text that is only a part of an expression.
EXCLUDES = re.compile(
    r"\bexcludes?\b(?!\s{0,9}(?:-=|\.\s{0,9}(?:remove|removeAll|clear|get)\b))"
    r"(?=\s{0,9}(?:\+?=|\.\s{0,9}\w|[(\"'\[])|[ \t]+\w)"
)
GOES_ON = re.compile(r"[\s)\]]{0,9}[+.]")
# val unused = listOf("**/a.so"), def unused = ['**/a.so']
LIST = re.compile(
    rf"\b(?:val|var|def)\s{{1,9}}(\w{{1,60}})(?:\s{{0,9}}:\s{{0,9}}[\w<>]{{1,60}})?{STRINGS}"
)
USE_OF_LIST = re.compile(
    r"\b(excludes?\b\s{0,9}(?:\+?=|\.\s{0,9}(?:addAll|set)\b)[\s(]{0,9})(\w{1,60})\b"
)
# Blocks for another build type than that of a released app, and blocks that apply to some builds.
NAMED_TYPE = r"\s{0,9}\(\s{0,9}[\"'](?!release[\"'])\w{1,60}[\"']\s{0,9}\)"
NOT_OF_RELEASE = re.compile(
    r"\bdebug\s{0,9}\{"
    r"|\b(?:getByName|named|maybeCreate|create)\s{0,9}\(\s{0,9}[\"']debug[\"']\s{0,9}\)\s{0,9}\{"
    rf"|\bwithBuildType{NAMED_TYPE}[\s.)\w(]{{0,40}}\{{"
    r"|\bif\s{0,9}\([^(){}\n]{0,80}\bbuildType\b[^(){}\n]{0,40}==\s{0,9}[\"'](?!release[\"'])\w{1,60}"
    r"[\"']\s{0,9}\)\s{0,9}\{"
)
OF_RELEASE = re.compile(
    r"\bif\s{0,9}\([^(){}\n]{0,80}\bbuildType\b[^(){}\n]{0,40}==\s{0,9}[\"']release[\"']\s{0,9}\)"
    r"\s{0,9}(?=\{)"
)
OF_SOME_BUILDS = re.compile(
    r"\b(?:if|when|while|for)\s{0,9}\([^\n]{0,200}\{|\belse\s{0,9}\{|\bproductFlavors\s{0,9}\{"
    r"|\bwithFlavor\s{0,9}\([^\n{]{0,120}\{|\.(?:forEach|each|configureEach)\s{0,9}\{"
)
MAX_GLOB = 300  # characters
# splits { abi { isEnable = true; reset(); include("x86", "arm64-v8a") } }
SPLITS = re.compile(r"\bsplits\s*\{\s*abi\s*\{([^{}]*)\}")
ENABLED = re.compile(r"\b(?:isEnable|enable)[\s=(]+true\b")
UNIVERSAL = re.compile(r"\b(?:isUniversalApk|universalApk)[\s=(]+true\b")
RESET = re.compile(r"\breset\s*\(")  # without it, include adds to all ABIs
INCLUDED = re.compile(rf"\binclude{STRINGS}")
# Of resolutionStrategy: Gradle takes this version, even if another dependency needs a newer one.
FORCED = re.compile(rf"\bforce{STRINGS}")
# api(...) { exclude(group = "com.qualcomm.qti", module = "qnn-runtime") }: no libraries of QNN
# configurations.all { exclude(...) }, configurations { implementation { exclude ... } }
OF_CONFIGURATIONS = re.compile(
    r"\bconfigurations\b(?![\w.\s(\"']{0,30}(?:[tT]est|[dD]ebug))[\w.\s()\"']{0,80}\{"
)
DROPS_RUNTIME = re.compile(
    r"\bexclude[\s(]{1,9}group\s{0,9}[:=]\s{0,9}[\"']com\.qualcomm\.qti[\"']"
    r"(?!\s{0,9},\s{0,9}module\s{0,9}[:=]\s{0,9}[\"'](?!qnn-runtime[\"']))"
)
EXCLUDED_MODULE = re.compile(
    r"\bexclude[\s(]{1,9}(?:group\s{0,9}[:=]\s{0,9}[\"']([\w.-]{1,100})[\"']\s{0,9},\s{0,9})?"
    r"module\s{0,9}[:=]\s{0,9}[\"']([\w.-]{1,100})[\"']"
)
# Dependencies of tests, of debug builds and of the compiler, which are not in a released app.
NOT_RELEASED = re.compile(
    r"\b(?:(?:test|androidTest|debug)\w*(?:Implementation|Api|RuntimeOnly)|\w*[cC]ompileOnly)\b[^\n;]*"
)
# project(":npu"), project(path: ':npu'), projects.npu
MODULE = re.compile(r"\bproject\s*\(\s*(?:path\s*[:=]\s*)?[\"'](:[\w.:-]+)[\"']")
MODULE_ACCESSOR = re.compile(r"\bprojects\.([\w.]+)")
# Modules with parts of an app that are installed on demand.
DYNAMIC = re.compile(rf"\bdynamicFeatures{STRINGS}")
COORDINATE = re.compile(r"[\w.-]+:(?P<name>[\w.-]+)(?::.*)?")
OF_QNN = ("qnn", "executorch", "litert", "onnxruntime-android")  # in the names of Maven packages
# def ort = '1.26.0', val ort = "1.26.0", ext.ort = "1.26.0", extra["ort"] = "1.26.0"
VARIABLE = re.compile(
    r"\b([A-Za-z_]\w{0,60})(?:[\"']\s{0,9}[\])])?(?:\s{0,9}:\s{0,9}String)?\s{0,9}=\s{0,9}"
    r"[\"']([\w.+-]{1,60})[\"']"
)
# const val runtime = "com.qualcomm.qti:qnn-runtime:$qnn", ext.runtime = 'a:b:1', runtime: 'a:b:1'
NAMED_PACKAGE = re.compile(
    r"\b([A-Za-z_]\w{0,60})(?:[\"']\s{0,9}[\])])?(?:\s{0,9}:\s{0,9}String)?\s{0,9}[=:]\s{0,9}"
    r"[\"']([\w.-]{1,100}:[\w.-]{1,100}:[\w.${}+-]{1,80})[\"']"
)
# implementation(Deps.runtime), npuImplementation deps.runtime, api rootProject.ext.runtime
NAMED_DEPENDENCY = re.compile(
    r"(\b(?:api|implementation|runtimeOnly|\w{1,60}(?:Api|Implementation|RuntimeOnly))"
    r"(?:[ \t]{1,9}|[ \t]{0,9}\([\s(]{0,9}))([A-Za-z_][\w.]{0,120})(?![\w.])(?!\s{0,9}[(:={])"
)
# What is read elsewhere, or is no dependency: group = "a", libs.runtime, projects.npu
OF_OTHER_RULES = re.compile(r"(?:libs|projects|by|group|path|name)\b")
NUMBER = re.compile(r"\b([A-Za-z_]\w{0,60})\s{0,9}=\s{0,9}(\d{1,5})\b(?![.])")  # minSdkVersion = 24
PROPERTY = re.compile(r"(?m)^[ \t]*([A-Za-z_][\w.]*)[ \t]*[=:][ \t]*([\w.+,-]{1,60})[ \t]*$")
# "a:b:$ort", "a:b:$rootProject.ext.ort", "a:b:${rootProject.ext.ort}", "a:b:${property("ort")}"
USE = re.compile(
    r"\$(?:\{[^{}\n]{0,80}?\b([A-Za-z_]\w{0,60})(?:[\"'][\])])?\}"
    r"|(?:(?:rootProject|project)\.)?(?:(?:ext|extra)\.)?([A-Za-z_]\w{0,60})\b)"
)
# (group = "a", name = "b", version = "1"), group: 'a', name: 'b', version: ort
NAMED = re.compile(
    r"\bgroup\s{0,9}[:=]\s{0,9}[\"']([\w.-]{1,100})[\"']\s{0,9},"
    r"\s{0,9}name\s{0,9}[:=]\s{0,9}[\"']([\w.-]{1,100})[\"']"
    r"(?:\s{0,9},\s{0,9}version\s{0,9}[:=]\s{0,9}(?:[\"']([\w.$+-]{1,60})[\"']|([A-Za-z_]\w{0,60})))?"
)
# ("a:b") { version { strictly("1") } }
RICH = re.compile(
    r"[\"']([\w.-]{1,100}:[\w.-]{1,100})[\"'][\s)]{0,9}\{\s{0,20}version\s{0,9}\{\s{0,20}"
    r"(?:(?:strictly|require)[\s(]{0,9}[\"'][^\"'\n]{1,60}[\"'][\s);]{1,20}(?=prefer))?"
    r"(?:strictly|require|prefer)[\s(]{0,9}(?:[\"']([\w.$+-]{1,60})[\"']|([A-Za-z_]\w{0,60}))"
)
JOINED = re.compile(r":[\"']\s{0,9}\+\s{0,9}([\w.]+)")  # "a:b:" + ort
NO_VARIABLES: Mapping[str, str] = {}
# A property that is looked up by name, and the variable of `val legacy: String by project`.
PROPERTY_USE = re.compile(
    r"(?:\b(?:rootProject|project|providers)\s{0,9}\.\s{0,9})?"
    r"(?:\b(?:findProperty|property|gradleProperty)\s{0,9}\(\s{0,9}[\"']([\w.]{1,100})[\"']\s{0,9}\)"
    r"(?:\s{0,9}\??\.\s{0,9}(?:get|getOrNull|toBoolean|toString)\s{0,9}\(\s{0,9}\)){0,3}"
    r"|\b([A-Za-z_]\w{0,60})\s{0,9}\??\.\s{0,9}toBoolean\s{0,9}\(\s{0,9}\))"
)
LEVEL = re.compile(
    r"\b(min|target)Sdk(?:Version)?[\s=(]+(?:Integer\.parseInt\(\s{0,9})?"
    r"(?:(?:rootProject|project)\.)?(?:(?:ext|extra)\.)?(\w{1,60})\b(?![.(])"
)
# libs.versions.minSdk.get().toInt(), and "a:b:${libs.versions.litert.get()}"
CATALOG_VERSION = re.compile(
    r"\$\{\s{0,9}(\w{1,60}\.versions\.[\w.]{1,100})\.get\(\)\s{0,9}\}"
    r"|\b(\w{1,60}\.versions\.[\w.]{1,100})\.get\(\)(?:\.to(?:Int|Integer|Boolean)\(\))?"
)
# libs.findLibrary("qnn-runtime").get(), in the sources of plugins
FOUND_IN_CATALOG = re.compile(
    r"\b(?:\w{1,60}\.)?find(Library|Bundle)\s{0,9}\(\s{0,9}[\"']([\w.-]{1,100})[\"']\s{0,9}\)"
    r"(?:\s{0,9}\.\s{0,9}get\s{0,9}\(\s{0,9}\))?"
)
# apply from: 'gradle/deps.gradle', apply(from = "$rootDir/gradle/deps.gradle")
# pluginManager.withPlugin("com.android.application") { }, which applies nothing
ASKS_FOR_PLUGIN = re.compile(r"\b(?:withPlugin|hasPlugin|withId)\s{0,9}\([^()\n]{0,200}\)")
OF_LIBRARIES = re.compile(
    r"\b(?:withPlugin|hasPlugin|withId)\s{0,9}\(\s{0,9}[\"']com\.android\.library[\"'][\s)]{1,9}\{"
)
# subprojects { }, allprojects { } of the root's build file
FOR_ALL_MODULES = re.compile(r"\b(?:subprojects|allprojects)\s{0,9}\{")
MANIFEST_FILE = re.compile(
    r"\bmanifest\s{0,9}[.{]\s{0,9}srcFile[\s=(]{1,9}(?:file[\s(]{1,9})?[\"']([^\"'\n]{1,200})[\"']"
)
APPLIED_SCRIPT = re.compile(
    r"\bapply[\s(]{1,9}from\s{0,9}[:=]\s{0,9}[\"'](?:\$\{?(?:rootDir|rootProject\.projectDir)\}?/)?"
    r"([\w./-]{1,200}\.gradle(?:\.kts)?)[\"']\s{0,9}\)?"
)
# `apply false` in a root's build file only sets the version.
APPLICATION = re.compile(r"\bandroid\.application\b(?![^\n;]*\bapply\b[\s(]*false)", re.IGNORECASE)
# A build of Gradle plugins, which names the plugins' ids, and the plugins that a module applies.
OF_PLUGINS = re.compile(r"\bgradlePlugin\s{0,9}\{|\bkotlin-dsl\b|\b(?:java|groovy)-gradle-plugin\b")
APPLIED = re.compile(
    r"(?:\b(?:id[\s(]{1,9}|apply[\s(]{1,9}plugin\s{0,9}[:=]\s{0,9})[\"']([\w.-]{1,100})[\"']"
    r"|\balias\s{0,9}\(\s{0,9}libs\.plugins\.([\w.]{1,100}))(?![^\n;]{0,99}\bapply\b[\s(]{1,9}false)"
)
# pluginManager.apply("own.base"), with(plugins) { apply("own.base") }
APPLIED_BY_CODE = re.compile(r"\bapply\s{0,9}\(\s{0,9}[\"']([\w.-]{1,100})[\"']\s{0,9}\)")
APP_PLUGIN = "com.android.application"
# register("app") { id = "own.app"; implementationClass = "own.AppPlugin" }
REGISTERED = re.compile(
    r"\bid\s{0,9}=\s{0,9}[\"']([\w.-]{1,100})[\"'][^{}]{0,200}?"
    r"\bimplementationClass\s{0,9}=\s{0,9}[\"']([\w.]{1,200})[\"']"
    r"|\bimplementationClass\s{0,9}=\s{0,9}[\"']([\w.]{1,200})[\"'][^{}]{0,200}?"
    r"\bid\s{0,9}=\s{0,9}[\"']([\w.-]{1,100})[\"']"
)
PACKAGE = re.compile(r"(?m)^package[ \t]{1,9}([\w.]{1,100})")
PUBLIC_PLUGIN = re.compile(r"(?:com[.](?:android|google)|org[.]jetbrains|kotlin|android)\b")
ACCESSOR = re.compile(r"\blibs\.([\w.]+)")
COORDINATES = re.compile(r"([\w.-]+):[\w.-]+(?::[^\"'\n/\\]{0,80})?")
# Groups, and aliases of a version catalog, of packages without a native library that runs models.
PLAIN = re.compile(
    r"androidx[.]|com[.]google[.]android[.]material|com[.]android[.]|org[.]jetbrains|kotlin|junit"
    r"|org[.]junit|material|compose|core|versions|plugins|bundles[.]androidx"
    r"|com[.]facebook[.](?:fbjni|soloader)|fbjni|soloader"  # those that ExecuTorch's need
)
# Files, libraries that CMake imports, what a task copies or another script adds; project(path) with
# a path that is computed is not in `modules`.
OF_FILES = re.compile(
    r"\b(?:(?:files|fileTree)\s*\(|externalNativeBuild\b|Copy\b|apply[\s(]{1,9}from\b"
    r"|project\s*\((?!\s*(?:path\s*[:=]\s*)?[\"']))"
)
# sourceSets { main { jniLibs.srcDirs = ['libs'] } }, jniLibs { srcDir("libs") }
FOLDERS = r"\bjniLibs\s*(?:\{[^{}]*?|\.\s*)(?:setSrcDirs|srcDirs?)\b"
JNI_FOLDERS = re.compile(rf"{FOLDERS}(?:[\s=+(]{{0,9}}file\b)?{STRINGS}")
ANY_FOLDERS = re.compile(FOLDERS)


@dataclass(frozen=True)
class Gradle:
    """A module's build file. ``legacy`` is the value of useLegacyPackaging, None if it is not set
    or ``is_computed``. ``abis`` are those of abiFilters, and ``symbols`` the patterns of
    keepDebugSymbols, ``excludes`` those of the native libraries that Gradle leaves out of the app,
    and ``maybe_excludes`` those that it leaves out of some builds, or "**" if they are computed.
    ``packages`` are the Maven packages with QNN, ExecuTorch or LiteRT, such as
    ``com.qualcomm.qti:qnn-runtime:2.37.1``, and ``forced`` those whose version it forces.
    ``modules`` are the paths of the modules of the project that it depends on, such as ``:npu``.
    ``splits`` are the ABIs for which it splits the app. ``jni_folders`` are those with libraries
    besides src/main/jniLibs, ``archives`` the globs of AARs and JARs, and ``manifest_file`` the
    manifest of the source set main, if it has another place. ``may_have_other_libraries`` is
    whether it depends on anything else that may contain native libraries: a file, or a package that
    is not one of Android's or Kotlin's own; after join_modules, also a module that is not in the
    project. ``has_features`` is whether it names feature modules, which Google Play may deliver to
    some devices only. ``drops_runtime`` is whether it excludes qnn-runtime from what its packages
    bring, and ``excludes_runtime`` whether from everything. ``left_out`` are the groups, or "", and
    the names of the packages that it excludes from everything."""

    file: str
    is_app: bool = False
    legacy: bool | None = None
    is_computed: bool = False
    min_sdk: int | None = None
    target_sdk: int | None = None
    abis: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    maybe_excludes: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    jni_folders: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    manifest_file: str = ""
    packages: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    may_have_other_libraries: bool = False
    has_features: bool = False
    drops_runtime: bool = False
    excludes_runtime: bool = False
    left_out: tuple[tuple[str, ...], ...] = ()

    def keeps(self, path: str) -> bool:
        """Return whether Gradle keeps the symbols of ``lib/ABI/NAME``."""
        return any(
            fnmatchcase(name, pattern.replace("**/", "*").lstrip("/"))
            for pattern in self.symbols
            for name in (path, path.partition("/")[2])
        )

    def find_exclude(self, path: str) -> str:
        """Return the pattern with which Gradle leaves ``lib/ABI/NAME`` out of the app, or ""."""
        return next((pattern for pattern in self.excludes if is_excluded(pattern, path)), "")

    def may_exclude(self, path: str) -> bool:
        """Return whether Gradle may leave ``lib/ABI/NAME`` out of the app, which this file
        computes."""
        return any(is_excluded(pattern, path) for pattern in self.maybe_excludes)


def is_excluded(pattern: str, path: str) -> bool:
    """Return whether Gradle's pattern matches ``lib/ABI/NAME``. It starts at the root of the app,
    unless it starts with an asterisk, and only two asterisks match slashes (Java's globs). The time
    grows linearly with its length."""
    if len(pattern) > MAX_GLOB:
        return False
    glob = pattern if pattern.startswith(("/", "*")) else f"/{pattern}"
    path = f"/{path}"
    return len(path) in _match_glob(glob, path, {0})


def _match_glob(glob: str, path: str, starts: set[int]) -> set[int]:
    """Return where in ``path`` a match of ``glob`` can end that begins at one of ``starts``."""
    ends = starts
    for part in re.findall(r"\*+|\{[^{}]*\}|.", glob):
        if part[0] == "*":
            stops = {
                start: len(path) if part[1:] else (path + "/").index("/", start) for start in ends
            }
            ends = {end for start in ends for end in range(start, stops[start] + 1)}
        elif part.startswith("{") and part.endswith("}"):
            choices = part[1:-1].split(",")
            ends = {end for choice in choices for end in _match_glob(choice, path, ends)}
        else:
            ends = {
                start + 1
                for start in ends
                if path[start : start + 1] == part or (part == "?" and path[start : start + 1])
            }
    return ends


Catalog = Mapping[str, tuple[str, ...]]  # packages by a name in build files, several of a bundle


Variables = Mapping[str, str]


class BuildFile(NamedTuple):
    """A module's build file: its name, and its text without comments."""

    name: str
    text: str


def read_build_file(module: Path) -> BuildFile | None:
    """Return the build file of a module; None if it has none that can be read, or only one that is
    larger than MAX_BYTES. Some projects name it after the module: npu/npu.gradle."""
    for name in (*BUILD_FILES, f"{module.name}.gradle.kts", f"{module.name}.gradle"):
        with suppress(OSError, ValueError):
            return BuildFile(name, drop_comments(read_text(module / name, "replace", MAX_BYTES)))
    return None


def read_variables(root: Path) -> Variables:
    """Return the variables with a text as value of a project's build file, of the scripts in the
    project that it applies, of gradle.properties and of the version catalog."""
    variables: dict[str, str] = {}
    for name in BUILD_FILES:
        with suppress(OSError, ValueError):
            text = read_text(root / name, "replace", MAX_BYTES)
            for script in APPLIED_SCRIPT.findall(drop_comments(text)):
                variables.update(list_variables(_read_script(root, root, script) or ""))
            variables.update(list_variables(text))
    with suppress(OSError, ValueError):
        text = read_text(root / "gradle.properties", "replace", MAX_BYTES)
        variables.update(PROPERTY.findall(text))
    for name, tables in read_catalogs(root).items():
        for alias, version in as_table(tables.get("versions")).items():
            if isinstance(version, str):
                variables[f"{name}.versions.{_name_accessor(alias)}"] = version
    return variables


def _read_script(root: Path, folder: Path, name: str) -> str | None:
    """Return the text of a script that a build file in a folder of a project applies, without
    comments; None if there is none in the project that can be read."""
    for path in (folder / name, root / name):
        if is_inside(path, root):
            with suppress(OSError, ValueError):
                return drop_comments(read_text(path, "replace", MAX_BYTES))
    return None


def list_shared_texts(text: str) -> list[str]:
    """Return the blocks of the root's build file that are for all modules."""
    return [text[start:end] for start, end in find_blocks(text, FOR_ALL_MODULES)]


def builds_app(text: str) -> bool:
    """Return whether a module's build file itself applies the plugin that builds an app."""
    own_text = ASKS_FOR_PLUGIN.sub(" ", drop_blocks(text, FOR_ALL_MODULES))
    return bool(APPLICATION.search(own_text)) and not OF_PLUGINS.search(text)


def take_scripts(root: Path, module: Path, text: str) -> tuple[str, list[str]]:
    """Return the text of a module's build file without the scripts of the project that it applies,
    and the texts of these scripts."""
    scripts = []

    def take(match: re.Match[str]) -> str:
        script = _read_script(root, module, match[1])
        if script is None:
            return match[0]
        scripts.append(script)
        return " "

    return APPLIED_SCRIPT.sub(take, text), scripts


def list_variables(text: str) -> Variables:
    """Return the variables with a text as value, a version or a package's coordinates, in a build
    file, or in the sources of a plugin."""
    text = drop_comments(text)
    values = {**dict(NUMBER.findall(text)), **dict(VARIABLE.findall(text))}
    named = {}
    for name, package in NAMED_PACKAGE.findall(text):
        named[name] = USE.sub(lambda use: values.get(use[1] or use[2], use[0]), package)
    return {**named, **values}


def _fill_variables(text: str, variables: Variables) -> str:
    """Return the text of a build file with the values of variables in its texts, and with packages
    as coordinates whose parts it names one by one."""
    text = CATALOG_VERSION.sub(lambda match: variables.get(match[1] or match[2], match[0]), text)
    text = FOUND_IN_CATALOG.sub(_spell_accessor, text)
    text = JOINED.sub(lambda match: f":${{{match[1]}}}'", text)
    text = NAMED.sub(lambda match: f"'{match[1]}:{match[2]}{_spell_version(match)}'", text)
    text = RICH.sub(lambda match: f"'{match[1]}{_spell_version(match)}' {{ {{ (", text)
    values: dict[str, str] = {**variables, **dict(VARIABLE.findall(text))}

    def spell_out(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], match[0])

    text = USE.sub(spell_out, text)
    packages = {**variables, **dict(NAMED_PACKAGE.findall(text))}

    def spell_package(match: re.Match[str]) -> str:
        package = packages.get(match[2].rpartition(".")[2], "")
        return f"{match[1]}'{package}'" if COORDINATES.fullmatch(package) else match[0]

    return NAMED_DEPENDENCY.sub(spell_package, text)


def parse_gradle(
    file: str, text: str, catalog: Catalog, variables: Variables = NO_VARIABLES
) -> Gradle:
    """Return what the text of a build file, in Groovy or Kotlin, states. ``catalog`` is what
    read_catalog returns, and ``variables`` what read_variables returns."""
    text = NOT_RELEASED.sub(" ", _fill_variables(drop_comments(text), variables))
    archives, text = list_archives(spell_paths(text))
    text = PROPERTY_USE.sub(lambda use: variables.get(use[1] or use[2], use[0]), text)
    text = OF_RELEASE.sub(" ", drop_blocks(text, NOT_OF_RELEASE))
    levels = _read_levels(text, variables)
    legacy = set(LEGACY.findall(text))
    is_computed = len(legacy) > 1 or not legacy <= {"true", "false"}
    packages = [quoted for quoted in QUOTED.findall(text) if is_of_qnn(quoted)]
    for name in ACCESSOR.findall(text):
        packages += catalog.get(name, ())
    for _, name in NAMED_DEPENDENCY.findall(text):  # npu.runtime, of a catalog with another name
        packages += catalog.get(name, ())
    forced = tuple(filter(is_of_qnn, _list_strings(FORCED, text)))
    packages = [package for package in packages if not _is_replaced(package, forced)]
    modules = [*MODULE.findall(text), *map(_name_module, MODULE_ACCESSOR.findall(text))]
    modules += _list_strings(DYNAMIC, text)
    excludes, maybe_excludes = _list_excludes(text)
    abis = _list_abis(text, variables)
    if abis is None:
        maybe_excludes = (*maybe_excludes, ALL_OF_ABI)
    excludes_runtime = any(
        DROPS_RUNTIME.search(text, start, end)
        for start, end in find_blocks(text, OF_CONFIGURATIONS)
    )
    if excludes_runtime:
        packages = [package for package in packages if not package.startswith(f"{QNN_RUNTIME}:")]
    left_out = tuple(
        match.groups("")
        for start, end in find_blocks(text, OF_CONFIGURATIONS)
        for match in EXCLUDED_MODULE.finditer(text, start, end)
    )
    packages = [package for package in packages if not _is_left_out(package, left_out)]
    return Gradle(
        file,
        is_app=bool(APPLICATION.search(text)) and not OF_PLUGINS.search(text),
        legacy=None if is_computed or not legacy else legacy == {"true"},
        is_computed=is_computed,
        min_sdk=levels.get("min"),
        target_sdk=levels.get("target"),
        abis=abis or (),
        symbols=_list_strings(KEPT, text),
        excludes=excludes,
        maybe_excludes=maybe_excludes,
        splits=_list_splits(text),
        jni_folders=tuple(OF_MODULE.sub("", name) for name in _list_strings(JNI_FOLDERS, text)),
        archives=archives,
        manifest_file="".join(MANIFEST_FILE.findall(text)[:1]),
        packages=tuple(dict.fromkeys(packages)),
        forced=forced,
        modules=tuple(dict.fromkeys(modules)),
        may_have_other_libraries=depends_on_unknown_libraries(text, catalog),
        has_features="dynamicFeatures" in text,
        drops_runtime=bool(DROPS_RUNTIME.search(text)),
        excludes_runtime=excludes_runtime,
        left_out=left_out,
    )


def _is_left_out(package: str, left_out: Iterable[tuple[str, ...]]) -> bool:
    """Return whether a package is one of those that a build file excludes from everything, by group
    (or "") and name."""
    group, _, name_and_version = package.partition(":")
    name = name_and_version.partition(":")[0]
    return any(name == module and owner in ("", group) for owner, module in left_out)


def _read_levels(text: str, variables: Variables) -> dict[str, int]:
    """Return the API levels of minSdk and targetSdk, the first of each that is known."""
    numbers = {**variables, **dict(NUMBER.findall(text))}
    levels: dict[str, int] = {}
    for name, word in LEVEL.findall(text):
        # The word is a number, or a variable.
        level = word if word.isdecimal() else numbers.get(word, "")
        if level.isdecimal() and len(level) < 6:
            levels.setdefault(name, int(level))
    return levels


def _list_abis(text: str, variables: Variables) -> tuple[str, ...] | None:
    """Return the ABIs of abiFilters, those in a property or a variable among them; None if some are
    computed."""
    abis = list(_list_strings(ABIS, text))
    if any("$" in abi for abi in abis):
        return None
    for match in ADDED_ABIS.finditer(text):
        if ABIS.match(text, match.start()):
            continue
        added = match[1]
        values = [variables.get(word.rpartition(".")[2], "") for word in WORD.findall(added)]
        named = ABI.findall(" ".join([added, *values]))
        if not named:
            return None
        abis += [abi for abi in named if abi not in abis]
    return tuple(abis)


def _spell_version(match: re.Match[str]) -> str:
    """Return the version in the last two groups, a text or the name of a variable, as the end of a
    coordinate."""
    text, name = match.groups()[-2:]
    return f":{text}" if text else f":${name}" if name else ""


def _spell_accessor(match: re.Match[str]) -> str:
    """Return the name that a build file uses for what a plugin finds in the version catalog."""
    bundles = "bundles." if match[1] == "Bundle" else ""
    return f"{DEFAULT_CATALOG}.{bundles}{_name_accessor(match[2])}"


def list_plugins(text: str, ids: Mapping[str, str] = NO_VARIABLES) -> set[str]:
    """Return the ids of the plugins that a build file applies. ``ids`` are those in the version
    catalog, by their accessors."""
    plugins = APPLIED.findall(drop_comments(text))
    return {quoted or ids.get(alias, alias) for quoted, alias in plugins}


def list_own_plugins(plugins: Iterable[str]) -> set[str]:
    """Return those of ``plugins`` that may be the project's own."""
    return {plugin for plugin in plugins if not PUBLIC_PLUGIN.match(plugin)}


def name_plugins(build_texts: Iterable[str], sources: Mapping[str, str]) -> dict[str, str]:
    """Return the file name of the source of each of a project's plugins, by the plugin's id.
    ``sources`` are the texts of the plugins' sources by file name; ``build_texts`` are those of the
    builds that register classes of them. A script has the id of its name, without what follows
    ``.gradle``."""
    names = {}
    classes = {}
    for name, text in sources.items():
        script, is_script, _ = name.partition(".gradle")
        classes[name.partition(".")[0]] = name
        if is_script:
            names[script] = name
            if package := PACKAGE.search(text):
                names[f"{package[1]}.{script}"] = name
    for text in build_texts:
        for first_id, first_class, second_class, second_id in REGISTERED.findall(text):
            class_name = (first_class or second_class).rpartition(".")[2]
            if class_name in classes:
                names[first_id or second_id] = classes[class_name]
    return names


def list_applied(
    text: str, ids: Mapping[str, str], plugins: Mapping[str, str], sources: Mapping[str, str]
) -> set[str]:
    """Return the ids of the plugins that a build file applies, and of those that the project's own
    ones among them apply. ``plugins`` is what name_plugins returns, ``ids`` as in list_plugins."""
    applied = list_plugins(text, ids)
    waiting = list(applied)
    for plugin in waiting:  # which grows
        source = sources.get(plugins.get(plugin, ""), "")
        nested = {*list_plugins(source, ids), *APPLIED_BY_CODE.findall(drop_comments(source))}
        waiting += sorted(nested - applied)
        applied |= nested
    return applied


def add_conventions(build: Gradle, conventions: Gradle) -> Gradle:
    """Return the build of a module to which a plugin of the project may add what the plugins'
    sources state. Whether it does is not known, as these are programs."""
    is_computed = build.legacy is None and (
        conventions.is_computed or conventions.legacy is not None
    )
    return replace(
        build,
        is_computed=build.is_computed or is_computed,
        min_sdk=build.min_sdk or conventions.min_sdk,
        target_sdk=build.target_sdk or conventions.target_sdk,
        maybe_excludes=(
            *build.maybe_excludes,
            *conventions.excludes,
            *conventions.maybe_excludes,
        ),
        may_have_other_libraries=build.may_have_other_libraries or bool(conventions.packages),
    )


def _is_replaced(package: str, forced: tuple[str, ...]) -> bool:
    """Return whether another version of a package is forced."""
    module = package.rpartition(":")[0]
    return package not in forced and any(
        forced_package.startswith(f"{module}:") for forced_package in forced
    )


def _name_module(accessor: str) -> str:
    """Return the path, as ``:npu-core:io``, of a module that Kotlin names ``npuCore.io``."""
    return ":" + re.sub(r"[A-Z]", lambda match: f"-{match[0].lower()}", accessor).replace(".", ":")


def _list_splits(text: str) -> tuple[str, ...]:
    """Return the ABIs for which an app is split, or nothing if there is one for all ABIs."""
    for body in SPLITS.findall(text):
        if ENABLED.search(body) and RESET.search(body) and not UNIVERSAL.search(body):
            return _list_strings(INCLUDED, body)
    return ()


def _list_excludes(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the patterns of the native libraries that are left out of the app, and those that may
    be: patterns of blocks for some builds, and "**" for patterns that are computed."""
    lists = {match[1]: match[0] for match in LIST.finditer(text)}

    def spell_out(use: re.Match[str]) -> str:
        texts = QUOTED.findall(lists.get(use[2], ""))
        return use[1] + ", ".join(f'"{pattern}"' for pattern in texts) if texts else use[0]

    text = USE_OF_LIST.sub(spell_out, drop_blocks(text, OTHER_SETS))
    in_all_builds = drop_blocks(text, OF_SOME_BUILDS)
    certain, is_computed = _read_excludes(in_all_builds)
    possible, is_computed_in_some = _read_excludes(text)
    maybe = [pattern for pattern in possible if pattern not in certain]
    if is_computed or is_computed_in_some:
        maybe = ["**"]
    return tuple(certain), tuple(maybe)


def _read_excludes(text: str) -> tuple[list[str], bool]:
    """Return the patterns of native libraries that a text leaves out, and whether others are
    computed."""
    places = [match.end() for match in AT_ONCE.finditer(text)]
    for start, end in find_blocks(text, NATIVE_SETS):
        places += [match.start() for match in EXCLUDES.finditer(text, start, end)]
    patterns: list[str] = []
    is_computed = False
    for place in places:
        literal = EXCLUDED.match(text, place)
        texts = QUOTED.findall(literal[1]) if literal else []
        literal_patterns = [pattern for pattern in texts if "$" not in pattern]
        if literal and not GOES_ON.match(text, literal.end()):
            patterns += literal_patterns
            is_computed |= literal_patterns != texts
        else:
            is_computed = True
    return list(dict.fromkeys(patterns)), is_computed


def list_modules(path: str, builds: Mapping[str, Gradle]) -> list[str]:
    """Return the path of a module and those of all modules that it depends on."""
    paths = [path]
    for module_path in paths:  # which grows
        paths += [
            module
            for module in builds[module_path].modules
            if module in builds and module not in paths
        ]
    return paths


def join_modules(path: str, builds: Mapping[str, Gradle]) -> Gradle:
    """Return the build of a module with the packages, and what else may contain native libraries,
    of all modules that it depends on. ``builds`` are those of the project by path, such as
    ``:app``."""
    paths = list_modules(path, builds)
    forced = builds[path].forced
    excludes_runtime = builds[path].excludes_runtime
    packages = [
        package
        for module_path in paths
        for package in builds[module_path].packages
        if not _is_replaced(package, forced)
        and not (excludes_runtime and package.startswith(f"{QNN_RUNTIME}:"))
        and not _is_left_out(package, builds[path].left_out)
    ]
    may_have_other_libraries = any(
        builds[module_path].may_have_other_libraries
        or not builds.keys() >= {*builds[module_path].modules}
        for module_path in paths
    )
    keeping = [builds[name] for name in paths if not builds[name].drops_runtime]
    return replace(
        builds[path],
        packages=tuple(dict.fromkeys(packages)),
        may_have_other_libraries=may_have_other_libraries,
        drops_runtime=excludes_runtime
        or (len(keeping) < len(paths) and not any(build.packages for build in keeping)),
    )


def depends_on_unknown_libraries(text: str, catalog: Catalog) -> bool:
    """Return whether a build file depends on something that may contain native libraries, besides
    the packages with QNN, ExecuTorch or LiteRT."""
    if OF_FILES.search(text):
        return True
    if len(ANY_FOLDERS.findall(text)) > len(JNI_FOLDERS.findall(text)):
        return True  # a directory whose name is computed
    groups = []
    for quoted in QUOTED.findall(text):
        match = COORDINATES.fullmatch(quoted)
        if match and not is_of_qnn(quoted):
            groups.append(match[1])
    groups += [name for name in ACCESSOR.findall(text) if name not in catalog]
    # Those whose values are known are texts by now.
    groups += [
        name
        for _, name in NAMED_DEPENDENCY.findall(text)
        if name not in catalog and not OF_OTHER_RULES.match(name)
    ]
    return not all(map(PLAIN.match, groups))


def _list_strings(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(QUOTED.findall(" ".join(pattern.findall(text)))))


def read_catalog(root: Path) -> dict[str, tuple[str, ...]]:
    """Return the packages with QNN, ExecuTorch or LiteRT in the version catalogs of a Gradle
    project, by the names that build files use, such as ``qnn.runtime`` or, for a bundle of several,
    ``bundles.npu``. For a catalog with another name than ``libs``, it precedes them:
    ``npu.qnn.runtime``."""
    catalog: dict[str, tuple[str, ...]] = {}
    for catalog_name, tables in read_catalogs(root).items():
        prefix = "" if catalog_name == DEFAULT_CATALOG else f"{catalog_name}."
        packages = dict(_list_packages(tables))
        catalog |= {f"{prefix}{name}": (package,) for name, package in packages.items()}
        for alias, members in as_table(tables.get("bundles")).items():
            names = [_name_accessor(str(member)) for member in _as_list(members)]
            if bundled := [packages[name] for name in names if name in packages]:
                catalog[f"{prefix}bundles.{_name_accessor(alias)}"] = tuple(bundled)
    return catalog


def read_plugin_ids(root: Path) -> dict[str, str]:
    """Return the ids of plugins in the version catalog of a Gradle project, by the accessors that
    build files use."""
    ids = {}
    tables = read_catalogs(root).get(DEFAULT_CATALOG, {})
    for alias, entry in as_table(tables.get("plugins")).items():
        plugin = entry if isinstance(entry, str) else as_table(entry).get("id")
        ids[_name_accessor(alias)] = str(plugin).partition(":")[0]
    return ids


def _name_accessor(alias: str) -> str:
    return re.sub(r"[-_]", ".", alias)


def _list_packages(tables: Tables) -> Iterator[tuple[str, str]]:
    versions, libraries = (as_table(tables.get(name)) for name in ("versions", "libraries"))
    for alias, entry in libraries.items():
        fields = as_table(entry)
        module = fields.get("module") or f"{fields.get('group')}:{fields.get('name')}"
        version = fields.get("version", "")
        if isinstance(version, dict) and "ref" in version:
            version = versions.get(str(version["ref"]), "")
        if isinstance(version, dict):
            version = _join_rich(version.get("strictly") or version.get("require"), version)
        package = f"{module}:{version}" if isinstance(version, str) and version else f"{module}"
        if isinstance(entry, str):
            package = entry
        if is_of_qnn(package):
            yield _name_accessor(alias), package


def _join_rich(required: object, version: Tables) -> object:
    """Return a rich version of a catalog as a coordinate has it: ``[2.40,2.50[!!2.48.0``."""
    preferred = version.get("prefer")
    return f"{required}!!{preferred}" if required and preferred else required or preferred or ""


def is_of_qnn(package: str) -> bool:
    """Return whether a text is the coordinate of a Maven package with QNN or a runtime that uses
    it, such as ``com.qualcomm.qti:qnn-runtime:2.37.1``. The time grows linearly with its length."""
    coordinate = COORDINATE.fullmatch(package)
    name = coordinate["name"].lower() if coordinate else ""
    return any(word in name for word in OF_QNN)


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
