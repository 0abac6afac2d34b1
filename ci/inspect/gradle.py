"""Read what an Android module's Gradle build file states about native libraries, without a build.

A build file is a program, but it is read as text. Only literal values are recognized, and those of
a version catalog (gradle/libs.versions.toml).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from provisioning.doctor.survey.tree import BUILD_FILES
from provisioning.documents import DocumentError, decoding, read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 1 << 18
# Strings are matched first, because "**/*.so" contains the start of a comment. All patterns take
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
KEPT = re.compile(rf"\b(?:keepDebugSymbols|doNotStrip){STRINGS}")
ABIS = re.compile(rf"\babiFilters?{STRINGS}")
COORDINATE = re.compile(r"[\w.-]+:(?P<name>[\w.-]+)(?::.*)?")
OF_QNN = ("qnn", "executorch", "litert")  # in the names of Maven packages
LEVEL = re.compile(r"\b(min|target)Sdk(?:Version)?[\s=(]+(\d{1,5})\b")
# `apply false` in a root's build file only sets the version.
APPLICATION = re.compile(r"\bandroid\.application\b(?![^\n;]*\bapply\b[\s(]*false)", re.IGNORECASE)
ACCESSOR = re.compile(r"\blibs\.([\w.]+)")
COORDINATES = re.compile(r"([\w.-]+):[\w.-]+(?::[\w.@$-]*)?")
# Groups, and aliases of a version catalog, of packages without a native library that runs models.
PLAIN = re.compile(
    r"androidx[.]|com[.]google[.]android[.]material|com[.]android[.]|org[.]jetbrains|kotlin|junit"
    r"|org[.]junit|material|compose|core|versions|plugins|bundles[.]androidx"
)
OF_FILES = re.compile(r"\b(?:project|files|fileTree)\s*\(")


@dataclass(frozen=True)
class Gradle:
    """A module's build file. ``legacy`` is the value of useLegacyPackaging, None if it is not set
    or ``is_computed``. ``abis`` are those of abiFilters, and ``symbols`` the patterns of
    keepDebugSymbols. ``packages`` are the Maven packages with QNN, ExecuTorch or LiteRT, such as
    ``com.qualcomm.qti:qnn-runtime:2.37.1``. ``has_others`` is whether it depends on anything else
    that may contain native libraries: another module, a file, or a package that is not one of
    Android's or Kotlin's own."""

    file: str
    is_app: bool = False
    legacy: bool | None = None
    is_computed: bool = False
    min_sdk: int | None = None
    target_sdk: int | None = None
    abis: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    has_others: bool = False

    def keeps(self, path: str) -> bool:
        """Return whether Gradle keeps the symbols of ``lib/ABI/NAME``."""
        return any(
            fnmatchcase(name, pattern.replace("**/", "*").lstrip("/"))
            for pattern in self.symbols
            for name in (path, path.partition("/")[2])
        )


def read_build(module: Path, catalog: Mapping[str, str]) -> Gradle | None:
    """Return the build file of a module; None if it has none that can be read, or only one that is
    larger than MAX_BYTES. ``catalog`` is what read_catalog returns."""
    for name in BUILD_FILES:
        with suppress(OSError, ValueError):
            return parse_gradle(name, read_text(module / name, "replace", MAX_BYTES), catalog)
    return None


def parse_gradle(file: str, text: str, catalog: Mapping[str, str]) -> Gradle:
    """Return what the text of a build file, in Groovy or Kotlin, states."""
    text = COMMENT.sub(lambda match: match[1] or " ", text)
    levels = {name: int(level) for name, level in reversed(LEVEL.findall(text))}
    legacy = set(LEGACY.findall(text))
    is_computed = len(legacy) > 1 or not legacy <= {"true", "false"}
    packages = [quoted for quoted in QUOTED.findall(text) if is_of_qnn(quoted)]
    packages += [catalog[name] for name in ACCESSOR.findall(text) if name in catalog]
    return Gradle(
        file,
        is_app=bool(APPLICATION.search(text)),
        legacy=None if is_computed or not legacy else legacy == {"true"},
        is_computed=is_computed,
        min_sdk=levels.get("min"),
        target_sdk=levels.get("target"),
        abis=_list_strings(ABIS, text),
        symbols=_list_strings(KEPT, text),
        packages=tuple(dict.fromkeys(packages)),
        has_others=depends_on_others(text, catalog),
    )


def depends_on_others(text: str, catalog: Mapping[str, str]) -> bool:
    """Return whether a build file depends on something that may contain native libraries, besides
    the packages with QNN, ExecuTorch or LiteRT."""
    if OF_FILES.search(text):
        return True
    groups = [
        match[1]
        for quoted in QUOTED.findall(text)
        if (match := COORDINATES.fullmatch(quoted)) and not is_of_qnn(quoted)
    ]
    groups += [name for name in ACCESSOR.findall(text) if name not in catalog]
    return not all(map(PLAIN.match, groups))


def _list_strings(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(QUOTED.findall(" ".join(pattern.findall(text)))))


def read_catalog(root: Path) -> dict[str, str]:
    """Return the packages with QNN, ExecuTorch or LiteRT in the version catalog of a Gradle
    project, by the names that build files use, such as ``qnn.runtime``."""
    with suppress(DocumentError), decoding():
        text = read_text(root / "gradle" / "libs.versions.toml", "replace", MAX_BYTES)
        return dict(_list_packages(tomllib.loads(text)))
    return {}


def _list_packages(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    versions, libraries = (_as_table(tables.get(name)) for name in ("versions", "libraries"))
    for alias, entry in libraries.items():
        fields = _as_table(entry)
        module = fields.get("module") or f"{fields.get('group')}:{fields.get('name')}"
        version = fields.get("version", "")
        if isinstance(version, dict):
            version = versions.get(str(version.get("ref")), "")
        package = f"{module}:{version}" if isinstance(version, str) and version else f"{module}"
        if isinstance(entry, str):
            package = entry
        if is_of_qnn(package):
            yield re.sub(r"[-_]", ".", alias), package


def is_of_qnn(package: str) -> bool:
    """Return whether a text is the coordinate of a Maven package with QNN or a runtime that uses
    it, such as ``com.qualcomm.qti:qnn-runtime:2.37.1``. The time grows linearly with its length."""
    coordinate = COORDINATE.fullmatch(package)
    name = coordinate["name"].lower() if coordinate else ""
    return any(word in name for word in OF_QNN)


def _as_table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
