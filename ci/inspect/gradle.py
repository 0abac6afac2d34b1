"""Read from a Gradle build file how an app's native libraries are packaged. The build file is a
program, but it is read as text, so only literal values are recognized."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

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
    abis: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()  # the directories of jniLibs
    projects: tuple[str, ...] = ()  # other modules that it depends on, such as ``lib:qnn``
    archives: tuple[str, ...] = ()  # AARs that it depends on
    maven: tuple[str, ...] = ()  # packages with QNN or ExecuTorch from a repository

    def keeps(self, path: str) -> bool:
        """Return whether Gradle keeps the symbols of ``lib/ABI/NAME``."""
        return _matches(path, self.kept)

    def picks_first(self, path: str) -> bool:
        """Return whether Gradle packages the first of several files for ``lib/ABI/NAME``."""
        return _matches(path, self.first)


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(
        fnmatchcase(each, pattern.replace("**/", "*").lstrip("/"))
        for pattern in patterns
        for each in (path, path.partition("/")[2])
    )


def read_gradle(module: Path) -> Gradle | None:
    """Read the build file in the directory ``module``. Return None if none can be read, or if it is
    larger than MAX_BYTES."""
    for name in BUILD_FILES:
        with suppress(OSError):
            path = module / name
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                return parse_gradle(name, path.read_text("utf-8", "replace"))
    return None


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
        **lists,
    )
