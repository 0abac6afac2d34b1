"""Which headers the files of a tree include, and by which of CMake's directories."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ci.parity.facts import (
    BuckFacts,
    CMakeFacts,
    Include,
    Place,
    directory_of,
    is_header,
    is_source,
)
from ci.parity.trees import SourceTree

INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|import)[ \t]*([<\"])([^>\"\n]+)", re.MULTILINE)


@dataclass
class Includes:
    """What was found: includes that need a directory of CMake's, in files that Buck lists; the
    headers that each file includes; the last components of all that any file includes."""

    by_directory: list[Include] = field(default_factory=list)
    headers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def find_includes(tree: SourceTree, buck: BuckFacts, cmake: Iterable[CMakeFacts]) -> Includes:
    """Read the includes of every source and header of the tree."""
    folders = sorted({folder for facts in cmake for folder in facts.include_directories})
    entries = (e for t in buck.targets for e in t.entries)
    listed = {entry.path for entry in entries}
    paths = sorted(path for path in tree.files if is_source(path) or is_header(path))
    tree.read_all(paths)
    found = Includes()
    for path in paths:
        rows = list(read_includes(tree, path, folders))
        found.headers[path] = tuple(dict.fromkeys(header for _, header in rows if header))
        found.names.update(row.text.rpartition("/")[2] for row, _ in rows)
        if path in listed:
            found.by_directory.extend(row for row, header in rows if row.directory is not None)
    return found


def read_includes(
    tree: SourceTree, path: str, folders: Iterable[str]
) -> Iterator[tuple[Include, str]]:
    """The includes of one file, each with the header of the tree that it means, or "".

    Those that begin with the project's name, or stand beside the header, need no directory.
    """
    text = tree.read(path) or ""
    whole = f"{tree.layout.project}/"
    for match in INCLUDE.finditer(text):
        name = match[2]
        row = Include(name, Place(path, text.count("\n", 0, match.start()) + 1), None)
        beside = posixpath.normpath(posixpath.join(directory_of(path), name))
        if name.startswith(whole):
            inner = name.removeprefix(whole)
            yield row, inner if inner in tree.files else ""
        elif match[1] == '"' and beside in tree.files:
            yield row, beside
        else:
            yield next(resolve(tree, row, folders), (row, ""))


def resolve(
    tree: SourceTree, row: Include, folders: Iterable[str]
) -> Iterator[tuple[Include, str]]:
    """An include by each folder that has a header of its name."""
    for folder in folders:
        header = posixpath.normpath(posixpath.join(folder, row.text))
        if header in tree.files:
            yield Include(row.text, row.place, folder), header
