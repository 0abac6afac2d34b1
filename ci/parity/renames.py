"""What a change moves or renames: an old finding under a new name is still an old one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ci.parity.compare.findings import Finding
from ci.parity.facts import Configuration, ParityFacts, directory_of
from ci.parity.trees import SourceTree

PARTS = re.compile(r"( -> |: )")


@dataclass(frozen=True)
class Renames:
    """Old name to new name: of files, of folders, and of the targets of both sides."""

    files: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict)

    def translate(self, finding: Finding) -> tuple[str, str, str, str]:
        """The key that a finding of the base would have after the change."""
        kind, path, detail, where = finding.key
        parts = (self.targets.get(part, part) for part in PARTS.split(detail))
        return kind, self.translate_path(path), "".join(parts), where

    def translate_path(self, path: str) -> str:
        """A path after the change; a file that is in neither tree moves with its folder."""
        if path in self.files:
            return self.files[path]
        folder = directory_of(path)
        if folder not in self.folders:
            return path
        return f"{self.folders[folder]}/{path[len(folder) + 1 :]}"


def find_renames(
    base: SourceTree, tree: SourceTree, before: ParityFacts, after: ParityFacts
) -> Renames:
    files = find_moves(base, tree)
    folders: dict[str, str] = {}
    left = {directory_of(path) for path in tree.files}
    for old, new in files.items():
        if directory_of(old) not in left and old.rpartition("/")[2] == new.rpartition("/")[2]:
            folders.setdefault(directory_of(old), directory_of(new))
    buck = match_sources(sources_of_buck(before), sources_of_buck(after), files)
    cmake = match_sources(sources_of_cmake(before), sources_of_cmake(after), files)
    return Renames(files, folders, buck | cmake)


def find_moves(base: SourceTree, tree: SourceTree) -> dict[str, str]:
    """Files that are gone and stand, with the same content or the only one of their name,
    elsewhere."""
    gone, fresh = sorted(base.files - tree.files), sorted(tree.files - base.files)
    if not gone or not fresh:
        return {}
    base.read_all(gone)
    tree.read_all(fresh)
    contents = group((tree.read(path) or path, path) for path in fresh)
    names = group((path.rpartition("/")[2], path) for path in fresh)
    old_names = group((path.rpartition("/")[2], path) for path in gone)
    moves = {}
    for path in gone:
        name = path.rpartition("/")[2]
        same = contents.get(base.read(path) or path, [])
        alike = names.get(name, []) if len(old_names[name]) == 1 else []
        found = [p for p in same if p.rpartition("/")[2] == name] or same or alike
        if len(found) == 1:
            moves[path] = found[0]
    return moves


def group(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


def sources_of_buck(facts: ParityFacts) -> dict[str, set[str]]:
    return {t.label: {entry.path for entry in t.srcs} for t in facts.buck.targets}


def sources_of_cmake(facts: ParityFacts) -> dict[str, set[str]]:
    sides = [side for side in facts.cmake if side.configuration is Configuration.ANY]
    return {t.name: {e.path for e in t.sources} for side in sides for t in side.targets}


def match_sources(
    before: Mapping[str, set[str]], after: Mapping[str, set[str]], files: Mapping[str, str]
) -> dict[str, str]:
    """Targets that are gone, each with the new one that has most of its sources."""
    fresh = {name: sources for name, sources in after.items() if name not in before}
    found = {}
    for name in before.keys() - after.keys():
        moved = {files.get(path, path) for path in before[name]}
        shared = {other: len(moved & sources) for other, sources in fresh.items()}
        best = max(shared, key=lambda other: (shared[other], other), default="")
        if best and shared[best] * 2 > len(moved | fresh[best]):
            found[name] = best
    return found
