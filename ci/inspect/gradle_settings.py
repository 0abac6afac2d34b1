"""Read what the settings file of a Gradle project states, without a build: the folders of modules,
and version catalogs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ci.inspect.gradle_archives import MAX_PATH, is_inside
from ci.inspect.gradle_text import (
    MAX_BYTES,
    QUOTED,
    drop_blocks,
    drop_comments,
    find_blocks,
    list_children,
)
from provisioning.documents import DocumentError, decoding, read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS = ("settings.gradle", "settings.gradle.kts")
DEFAULT_CATALOG = "libs"
# project(":npu").projectDir = new File(rootDir, "../npu"), file("../npu"), rootDir.resolve("npu")
FOLDER = re.compile(
    r"\bproject\s{0,9}\(\s{0,9}[\"'](:[\w.:-]{1,200})[\"']\s{0,9}\)\s{0,9}\.\s{0,9}"
    r"(?:projectDir\s{0,9}=|setProjectDir\s{0,9}\()([^\n;]{1,300})"
)
ROOT = re.compile(r"^\$\{?(?:rootDir|settingsDir|rootProject\.projectDir|rootProject\.rootDir)\}?/")
# includeBuild("../npu"), except those with plugins
INCLUDED_BUILD = re.compile(r"\bincludeBuild[\s(]{1,9}[\"']([^\"'\n]{1,200})[\"']")
OF_PLUGINS = re.compile(r"\bpluginManagement\s{0,9}\{")
PROJECT_NAME = re.compile(r"\brootProject\.name\s{0,9}=\s{0,9}[\"']([\w.-]{1,100})[\"']")
# group = "org.own", group 'org.own' of a build file, and GROUP=org.own of gradle.properties
GROUP = re.compile(
    r"(?mi)^[ \t{]{0,20}group(?:[ \t]{0,9}=[ \t]{0,9}|[ \t]{1,9})[\"']?([\w.-]{1,100})"
)
CATALOGS = re.compile(r"\bversionCatalogs\s{0,9}\{")
# from(files("gradle/npu.versions.toml")), from(files("../gradle/libs.versions.toml"))
FILE = re.compile(r"\bfrom[\s(]{1,9}(?:[\w.]{1,40}\.)?files?[\s(]{1,9}[\"']([^\"'\n]{1,200})[\"']")
NAMED_DEFAULT = re.compile(
    r"\bdefaultLibrariesExtensionName(?:\s{0,9}=|\.set\s{0,9}\()\s{0,9}[\"'](\w{1,60})[\"']"
)
# Calls of a settings file that fills a catalog itself: version with an alias and a version, library
# with an alias and coordinates, bundle with an alias and a list of aliases.
VERSION = re.compile(
    r"\bversion[\s(]{1,9}[\"']([\w.-]{1,60})[\"'],\s{0,9}[\"']([\w.+-]{1,60})[\"']"
)
LIBRARY = re.compile(
    r"\blibrary[\s(]{1,9}[\"']([\w.-]{1,60})[\"'],\s{0,9}[\"']([\w.:+-]{1,200})[\"']"
    r"(?:,\s{0,9}[\"']([\w.-]{1,100})[\"'])?\s{0,9}\)?\s{0,9}"
    r"(?:\.\s{0,9}(version|versionRef)[\s(]{1,9}[\"']([\w.+-]{1,60})[\"'])?"
)
BUNDLE = re.compile(
    r"\bbundle[\s(]{1,9}[\"']([\w.-]{1,60})[\"'],([^()\[\]]{0,40}[(\[][^()\[\]]{0,800})"
)
Tables = Mapping[str, Any]  # of a version catalog, as TOML names them


def read_settings(root: Path) -> str:
    """Return the text of a project's settings file without comments, "" if it has none."""
    for name in SETTINGS:
        with suppress(OSError, ValueError):
            return drop_comments(read_text(root / name, "replace", MAX_BYTES))
    return ""


def list_folders(root: Path, settings: str) -> Iterator[tuple[str, Path]]:
    """Yield the path of each module, such as ``:npu``, that has another folder than the one of its
    path, and this folder. One whose folder is computed has none here."""
    for module, value in FOLDER.findall(settings):
        names = QUOTED.findall(value)
        folder = ROOT.sub("", names[-1]) if names else "$"
        if "$" not in folder and len(folder) <= MAX_PATH:
            yield module, root / folder


def list_included_builds(root: Path, settings: str) -> list[Path]:
    """Return the folders of the builds that a project includes, except those with plugins. Gradle
    takes their modules instead of packages with the same coordinates."""
    names = INCLUDED_BUILD.findall(drop_blocks(settings, OF_PLUGINS))
    folders = [root / ROOT.sub("", name) for name in names if "$" not in ROOT.sub("", name)]
    return [folder for folder in folders if folder.is_dir()]


def find_group(*texts: str) -> str:
    """Return the group of a module, which the first of these texts that names one states, or ""."""
    matches = (GROUP.search(text) for text in texts)
    return next((match[1] for match in matches if match), "")


def find_project_name(root: Path) -> str:
    """Return the name of a project, which is that of its folder if the settings have none."""
    match = PROJECT_NAME.search(read_settings(root))
    return match[1] if match else root.name


def list_accessors(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name that build files use for each library of the version catalogs, such as
    ``libs.npu.sdk``, and its group and name."""
    for catalog, tables in read_catalogs(root).items():
        for alias, entry in as_table(tables.get("libraries")).items():
            fields = as_table(entry)
            module = fields.get("module") or f"{fields.get('group')}:{fields.get('name')}"
            module = entry if isinstance(entry, str) else str(module)
            accessor = re.sub(r"[-_]", ".", alias)
            yield f"{catalog}.{accessor}", ":".join(module.split(":")[:2])


def read_catalogs(root: Path) -> Mapping[str, Tables]:
    """Return the version catalogs of a project by name: that of gradle/libs.versions.toml, and
    those that its settings file creates."""
    settings = read_settings(root)
    default = NAMED_DEFAULT.search(settings)
    default_name = default[1] if default else DEFAULT_CATALOG
    catalogs = {default_name: read_tables(root, "gradle/libs.versions.toml")}
    for start, end in find_blocks(settings, CATALOGS):
        for name, body in list_children(settings[start:end]):
            file = FILE.search(body)
            tables = dict(read_tables(root, ROOT.sub("", file[1]))) if file else {}
            for kind, entries in _parse_inline(body).items():
                tables[kind] = {**as_table(tables.get(kind)), **entries}
            catalogs[name] = tables
    return catalogs


def _parse_inline(body: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a version catalog that a settings file fills itself."""
    libraries: dict[str, Any] = {}
    for alias, first, name, kind, version in LIBRARY.findall(body):
        fields: dict[str, Any] = {"module": f"{first}:{name}" if name else first}
        if kind:
            fields["version"] = {"ref": version} if kind == "versionRef" else version
        libraries[alias] = fields
    bundles = {alias: QUOTED.findall(members) for alias, members in BUNDLE.findall(body)}
    return {"versions": dict(VERSION.findall(body)), "libraries": libraries, "bundles": bundles}


def read_tables(root: Path, name: str) -> Tables:
    """Return the tables of a version catalog's file, none if there is none that can be read. A file
    outside of the folder that contains the project is not read."""
    path = root / name
    if is_inside(path, root.parent):
        with suppress(DocumentError), decoding():
            return as_table(tomllib.loads(read_text(path, "replace", MAX_BYTES)))
    return {}


def as_table(value: object) -> Tables:
    """Return a table of TOML as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}
