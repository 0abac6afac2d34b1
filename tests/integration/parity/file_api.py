"""The file API's reply of a configured build: what CMake itself resolved, as an oracle.

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
    """The targets of a configured build directory of the tree at ``source``."""
    codemodel = read_reply(build, find_codemodel(read_index(build)))
    described = Path(codemodel["paths"]["source"]).resolve()
    reader = Replies(build, described, source.resolve())
    chosen = codemodel["configurations"][0]
    names = {row["id"]: row["name"] for row in chosen["targets"]}
    targets = [
        reader.read_target(read_reply(build, row["jsonFile"]), names) for row in chosen["targets"]
    ]
    with_sources = [target for target in targets if target is not None]
    return CMakeFacts(configuration=configuration, targets=tuple(with_sources))


def read_index(build: Path) -> Mapping[str, Any]:
    """The newest index file of the reply."""
    return read_reply(build, max((build / REPLY).glob("index-*.json")).name)


def find_codemodel(index: Mapping[str, Any]) -> str:
    """The file with the codemodel."""
    return next(str(row["jsonFile"]) for row in index["objects"] if row["kind"] == "codemodel")


def read_reply(build: Path, name: str) -> Mapping[str, Any]:
    """One JSON file of the reply."""
    value: Mapping[str, Any] = json.loads((build / REPLY / name).read_text(encoding="utf-8"))
    return value


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
            srcs=tuple(entry for entry in entries if not is_header(entry.path)),
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
        if path.is_relative_to(self.build.resolve()) or not path.is_relative_to(self.root):
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
