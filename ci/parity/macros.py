"""Which files read the macros that build files define."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ci.parity.facts import BuckFacts, CMakeFacts, is_header, is_source
from ci.parity.trees import SourceTree

WORD = re.compile(r"[A-Za-z_]\w*")


def find_macros(
    tree: SourceTree, buck: BuckFacts, cmake: Iterable[CMakeFacts]
) -> dict[str, tuple[str, ...]]:
    """Macro to the files that mention it, among the files of targets that define it."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for target in buck.targets:
        listed = (*target.srcs, *target.headers, *target.exported_headers)
        note_defines(wanted, (w.text for w in target.defines), (e.path for e in listed))
    for facts in cmake:
        for cmake_target in facts.targets:
            entries = (*cmake_target.sources, *cmake_target.headers)
            note_defines(wanted, (w.text for w in cmake_target.defines), (e.path for e in entries))
    tree.read_all(sorted(path for path in wanted if path in tree.files))
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(wanted):
        text = tree.read(path) if path in tree.files else None
        for name in wanted[path].intersection(WORD.findall(text)) if text else ():
            found[name].append(path)
    return {name: tuple(paths) for name, paths in sorted(found.items())}


def note_defines(wanted: dict[str, set[str]], defines: Iterable[str], paths: Iterable[str]) -> None:
    """Remember that some files may read some macros."""
    names = {text.partition("=")[0] for text in defines}
    for path in paths if names else ():
        if is_source(path) or is_header(path):
            wanted[path] |= names
