"""The file API's reply of a configured build: what CMake itself resolved, exactly.

Source: cmake-file-api(7), object kind "codemodel" version 2. The query is an empty file
``.cmake/api/v1/query/codemodel-v2`` in the build directory, made before CMake configures.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.parity.facts import (
    CMakeFacts,
    CMakeTarget,
    Configuration,
    ListEntry,
    Place,
    Word,
    is_header,
)
from provisioning.errors import UsageError

REPLY = ".cmake/api/v1/reply"
QUERY = ".cmake/api/v1/query/codemodel-v2"
KINDS = {
    "STATIC_LIBRARY": "static",
    "SHARED_LIBRARY": "shared",
    "MODULE_LIBRARY": "module",
    "OBJECT_LIBRARY": "object",
    "INTERFACE_LIBRARY": "interface",
    "EXECUTABLE": "add_executable",
}


def read_file_api(build: Path, source: Path, configuration: Configuration) -> CMakeFacts:
    """The targets of a configured build directory of the tree at ``source``.

    Raises UsageError when the directory has no reply, or one for another source directory.
    """
    index = read_index(build)
    codemodel = read_reply(build, find_codemodel(index, build))
    described = Path(codemodel["paths"]["source"]).resolve()
    if not is_inside(described, source.resolve()):
        raise UsageError(
            f"{build} was configured for {described}",
            why=f"the tree that is compared is {source}",
            fix="name a build directory of this tree",
        )
    reader = Replies(build, described, source.resolve())
    chosen = codemodel["configurations"][0]
    names = {row["id"]: row["name"] for row in chosen["targets"]}
    targets = [
        reader.read_target(read_reply(build, row["jsonFile"]), names) for row in chosen["targets"]
    ]
    kept = [target for target in targets if target is not None]
    return CMakeFacts(configuration=configuration, source="file-api", targets=tuple(kept))


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or lies in it."""
    return path == folder or folder in path.parents


def read_index(build: Path) -> Mapping[str, Any]:
    """The newest index file of the reply. Raises UsageError."""
    found = sorted((build / REPLY).glob("index-*.json"))
    if not found and (build / QUERY).exists():
        raise UsageError(
            f"no file API reply in {build}",
            why="it was asked for, and CMake has not configured this directory to the end since",
            fix="run cmake on it again, and mend what it says",
        )
    if not found:
        raise UsageError(
            f"no file API reply in {build}",
            fix=f"make an empty file {QUERY} in it and configure again",
        )
    return read_reply(build, found[-1].name)


def find_codemodel(index: Mapping[str, Any], build: Path) -> str:
    """The file with the codemodel. Raises UsageError."""
    for row in index.get("objects", ()):
        if row.get("kind") == "codemodel" and row["version"]["major"] == 2:
            return str(row["jsonFile"])
    raise UsageError(
        f"the reply in {build} has no codemodel", fix=f"make {QUERY} and configure again"
    )


def read_reply(build: Path, name: str) -> Mapping[str, Any]:
    """One JSON file of the reply. Raises UsageError."""
    path = build / REPLY / name
    try:
        value: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return value
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot read {path}", why=str(error), fix="configure the build again"
        ) from error


@dataclass(frozen=True)
class Replies:
    """Turns target objects of one build into facts about the tree."""

    build: Path
    described: Path
    root: Path

    def read_target(self, raw: Mapping[str, Any], names: Mapping[str, str]) -> CMakeTarget | None:
        """One target, or None for a kind that compiles nothing."""
        kind = KINDS.get(raw["type"])
        if kind is None:
            return None
        place = self.place(raw, raw.get("backtrace"))
        entries = list(self._entries(raw))
        links = [
            Word(names[row["id"]], self.place(raw, row.get("backtrace")))
            for row in raw.get("dependencies", ())
            if row["id"] in names
        ]
        return CMakeTarget(
            name=str(raw["name"]),
            kind=kind,
            place=place,
            directory=self.relative(raw["paths"]["source"]) or "",
            sources=tuple(entry for entry in entries if not is_header(entry.path)),
            headers=tuple(entry for entry in entries if is_header(entry.path)),
            links=tuple(links),
            defines=tuple(self._defines(raw)),
        )

    def _entries(self, raw: Mapping[str, Any]) -> Iterator[ListEntry]:
        for row in raw.get("sources", ()):
            path = self.relative(row["path"])
            if path is not None and not row.get("isGenerated"):
                yield ListEntry(path, self.place(raw, row.get("backtrace")))

    def _defines(self, raw: Mapping[str, Any]) -> Iterator[Word]:
        for group in raw.get("compileGroups", ()):
            for row in group.get("defines", ()):
                yield Word(str(row["define"]), self.place(raw, row.get("backtrace")))

    def relative(self, text: str) -> str | None:
        """A path from the root of the tree; None outside of it and in the build directory."""
        path = Path(posixpath.normpath(self.described / text))
        if is_inside(path, self.build.resolve()) or not is_inside(path, self.root):
            return None
        relative = path.relative_to(self.root).as_posix()
        return "" if relative == "." else relative

    def place(self, raw: Mapping[str, Any], node: int | None) -> Place:
        """The line that a backtrace begins with."""
        graph = raw.get("backtraceGraph", {})
        if node is None or not graph.get("nodes"):
            return Place(self.relative(raw["paths"]["source"]) or ".")
        row = graph["nodes"][node]
        path = self.relative(graph["files"][row["file"]])
        return Place(path or str(graph["files"][row["file"]]), int(row.get("line", 0)))
