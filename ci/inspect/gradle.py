"""Read from a Gradle build file how an app's native libraries are packaged. The build file is a
program, but it is read as text, so only literal values are recognized."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from provisioning.documents import read_text

BUILD_FILES = ("build.gradle.kts", "build.gradle")
MAX_BYTES = 1 << 18
# Strings are matched first, because "**/*.so" contains the start of a comment. The patterns take
# linear time, so that a hostile file cannot stall them.
COMMENT = re.compile(
    r"""("(?:[^"\\\n]|\\[^\n])*"?|'(?:[^'\\\n]|\\[^\n])*'?)|/\*.*?(?:\*/|\Z)|//[^\n]*""", re.DOTALL
)
QUOTED = re.compile(r"[\"']([^\"'\n]+)[\"']")
# jniLibs { useLegacyPackaging = true }, jniLibs.useLegacyPackaging true; dex has a property of the
# same name.
LEGACY = re.compile(r"jniLibs\s*(?:\{[^{}]*?|\.\s*)useLegacyPackaging[\s=(]*([\w.]+)")
# Strings after a name: X += ["a", "b"], X.addAll(listOf("a")), X "a", "b".
STRINGS = (
    r"\b(?:\s*(?:\+?=|\.(?:add|addAll|set)\b))?[\s(\[]*(?:(?:list|set|array)Of[\s(]*)?"
    r"((?:[\"'][^\"'\n]*[\"'][\s,]*)+)"
)
LISTS = {
    name: re.compile(rf"\b{words}{STRINGS}")
    for name, words in {
        "kept": "(?:keepDebugSymbols|doNotStrip)",
        "first": "pickFirsts?",
        "excluded": "excludes?",
        "abis": "abiFilters?",
        "libraries": r"jniLibs\s*(?:\{\s*|\.\s*)(?:setSrcDirs|srcDirs?)",
    }.items()
}
PROJECT = re.compile(r"\bproject\(\s*(?:path\s*[:=]\s*)?[\"']:([\w:.-]+)[\"']")
ARCHIVE = re.compile(
    r"[\"']([^\"'\n]+\.aar)[\"']|name\s*[:=]\s*[\"']([\w.-]+)[\"'],\s*ext\s*[:=]\s*[\"']aar"
)
COORDINATES = re.compile(
    r"[\"']([\w.-]+:[\w.-]*(?:qnn|executorch)[\w.-]*(?::[^\"'\s]*)?)[\"']", re.IGNORECASE
)
LEVEL = re.compile(r"\b(min|target)Sdk(?:Version)?[\s=(]+(\d{1,5})\b")
# `apply false` in a root's build file only sets the version.
APPLICATION = re.compile(r"\bandroid\.application\b(?![^\n;]*\bapply\b[\s(]*false)")
# A build of plugins: Kotlin's and Groovy's precompiled scripts, and classes.
PLUGIN = re.compile(r"`?kotlin-dsl`?|\b(?:java|groovy)-gradle-plugin\b|\bgradlePlugin\s*\{")
REGISTERED = re.compile(
    r"\bid\s*[=(]?\s*[\"']([^\"'\n]+)[\"'][^{}]*?implementationClass\s*=?\s*[\"']([\w.]+)[\"']"
)
# id("ID"), id 'ID', apply plugin: 'ID', apply(plugin = "ID"), alias(libs.plugins.NAME)
APPLIED = re.compile(
    r"(?:\bid\s*\(?|\bplugin\s*[:=])\s*[\"']([^\"'\n]+)[\"']|\.plugins\.([\w.]+)\)"
)
CATALOG = re.compile(
    r"^\s*([\w.-]+)\s*=\s*(?:\{[^}\n]*?\bid\s*=\s*)?[\"']([^\"':\n]+)", re.MULTILINE
)
# Their plugins add the libraries of other packages.
LINKERS = {
    "Flutter": re.compile(r"dev\.flutter\.flutter-gradle-plugin|flutter\.gradle\b"),
    "React Native": re.compile(r"com\.facebook\.react\b|native_modules\.gradle|autolinkLibraries"),
    "Cordova or Capacitor": re.compile(r"cordova\.gradle|capacitor\.build\.gradle"),
}


@dataclass(frozen=True)
class Gradle:
    """A module's build file."""

    file: str
    is_app: bool = True  # whether it builds an app, not a library
    # The value of useLegacyPackaging; None if it is not set or is computed.
    legacy: bool | None = None
    is_legacy_computed: bool = False  # whether the build file computes useLegacyPackaging
    min_sdk: int | None = None
    target_sdk: int | None = None
    kept: tuple[str, ...] = ()  # the patterns of keepDebugSymbols
    first: tuple[str, ...] = ()  # the patterns of pickFirsts
    excluded: tuple[str, ...] = ()  # the patterns of excludes
    abis: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()  # the directories of jniLibs
    projects: tuple[str, ...] = ()  # other modules that it depends on, such as ``lib:qnn``
    archives: tuple[str, ...] = ()  # AARs that it depends on
    maven: tuple[str, ...] = ()  # packages with QNN or ExecuTorch from a repository
    linker: str = ""  # the framework whose plugins add libraries, such as Flutter
    plugins: tuple[str, ...] = ()  # the ids or catalog names of the plugins that it applies

    def keeps(self, path: str) -> bool:
        """Return whether Gradle keeps the symbols of ``lib/ABI/NAME``."""
        return _matches(path, self.kept)

    def picks_first(self, path: str) -> bool:
        """Return whether Gradle packages the first of several files for ``lib/ABI/NAME``."""
        return _matches(path, self.first)

    def excludes(self, path: str) -> bool:
        """Return whether Gradle leaves ``lib/ABI/NAME`` out of the package."""
        return _matches(path, self.excluded)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(
        fnmatchcase(each, pattern.replace("**/", "*").lstrip("/"))
        for pattern in patterns
        for each in (path, path.partition("/")[2])
    )


def read_build(modules: Iterable[Path], root: Path) -> dict[Path, Gradle]:
    """Read the build files of the modules below ``root``, except those of plugins. A module also
    has what the tree's own plugins that it applies do: whether it is an app, and its packaging."""
    texts = {place: read for place in modules if (read := _read_text(place))}
    builds = {place for place, (_, text) in texts.items() if PLUGIN.search(text)}
    builds |= {place for place in texts if "buildSrc" in place.relative_to(root).parts}
    plugins = {name: text for place in sorted(builds) for name, text in _list_plugins(place, texts)}
    catalogs = [*root.glob("gradle/*.versions.toml")]
    names = {
        name.replace("-", ".").replace("_", "."): own
        for path in catalogs
        for name, own in CATALOG.findall(_read_small(path))
    }
    found = {}
    for place, (file, text) in texts.items():
        if place not in builds:
            own = parse_gradle(file, text)
            more = [plugins.get(names.get(one, one), "") for one in own.plugins]
            found[place] = parse_gradle(file, "\n".join([text, *more])) if any(more) else own
    return found


def _list_plugins(place: Path, texts: Mapping[Path, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of each plugin that a build of plugins defines."""
    sources = {
        path: path.name for path in sorted((place / "src" / "main").rglob("*")) if path.is_file()
    }
    for path, name in sources.items():
        stem = name.removesuffix(".kts")
        if stem.endswith(".gradle"):
            text = _read_small(path)
            package = re.match(r"\s*package\s+([\w.]+)", text)
            prefix = f"{package[1]}." if package else ""
            yield prefix + stem.removesuffix(".gradle"), text
    for name, implementation in REGISTERED.findall(texts[place][1]):
        wanted = implementation.rpartition(".")[2]
        code = [path for path, file in sources.items() if file.partition(".")[0] == wanted]
        # `pluginManager.apply("com.android.application")` reads like a build file.
        yield name, "\n".join(map(_read_small, code))


def _read_text(module: Path) -> tuple[str, str] | None:
    """Return the name and the text of a module's build file. Return None if none can be read, or if
    it is larger than MAX_BYTES."""
    for name in BUILD_FILES:
        path = module / name
        if path.is_file() and (text := _read_small(path)):
            return name, text
    return None


def _read_small(path: Path) -> str:
    with suppress(OSError):
        if path.stat().st_size <= MAX_BYTES:
            return read_text(path, "replace") or " "
    return ""


def parse_gradle(file: str, text: str) -> Gradle:
    """Parse the text of a build file, in Groovy or Kotlin."""
    text = COMMENT.sub(lambda found: found[1] or " ", text)
    levels = {name: int(level) for name, level in reversed(LEVEL.findall(text))}
    legacy = {found[1] for found in LEGACY.finditer(text)}
    is_computed = len(legacy) > 1 or not legacy <= {"true", "false"}
    lists = {
        name: tuple(dict.fromkeys(QUOTED.findall(" ".join(one.findall(text)))))
        for name, one in LISTS.items()
    }
    return Gradle(
        file,
        is_app=bool(APPLICATION.search(text)),
        legacy=None if is_computed or not legacy else legacy == {"true"},
        is_legacy_computed=is_computed,
        min_sdk=levels.get("min"),
        target_sdk=levels.get("target"),
        projects=tuple(dict.fromkeys(PROJECT.findall(text))),
        archives=tuple(one or f"{name}.aar" for one, name in ARCHIVE.findall(text)),
        maven=tuple(dict.fromkeys(COORDINATES.findall(text))),
        linker=next((name for name, one in LINKERS.items() if one.search(text)), ""),
        plugins=tuple(one or name for one, name in APPLIED.findall(text)),
        **lists,
    )
