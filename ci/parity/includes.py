"""Which files that Buck lists include a header by a name that an include directory gives it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

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
WHOLE = "executorch/"


def find_includes(
    tree: SourceTree, buck: BuckFacts, cmake: Iterable[CMakeFacts]
) -> tuple[Include, ...]:
    """The includes that need one of CMake's include directories in the tree.

    Those that begin with the project's name, or stand beside the header, need none.
    """
    folders = sorted({folder for facts in cmake for folder in facts.include_directories})
    entries = (e for t in buck.targets for e in (*t.srcs, *t.headers, *t.exported_headers))
    listed = {entry.path for entry in entries if is_source(entry.path) or is_header(entry.path)}
    paths = sorted(path for path in listed if path in tree.files)
    tree.read_all(paths)
    return tuple(row for path in paths for row in read_includes(tree, path, folders))


def read_includes(tree: SourceTree, path: str, folders: Iterable[str]) -> Iterator[Include]:
    """The includes of one file that a folder resolves."""
    text = tree.read(path) or ""
    for match in INCLUDE.finditer(text):
        name = match[2]
        beside = posixpath.normpath(posixpath.join(directory_of(path), name))
        if name.startswith(WHOLE) or (match[1] == '"' and beside in tree.files):
            continue
        for folder in folders:
            if posixpath.normpath(posixpath.join(folder, name)) in tree.files:
                line = text.count("\n", 0, match.start()) + 1
                yield Include(name, Place(path, line), folder)
                break
