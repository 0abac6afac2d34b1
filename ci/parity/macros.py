"""Which files read the macros that build files define."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ci.parity.facts import BuckFacts, CMakeFacts, Word, is_header, is_source
from ci.parity.trees import SourceTree

WORD = re.compile(r"[A-Za-z_]\w*")


def find_macros(
    tree: SourceTree, buck: BuckFacts, cmake: Iterable[CMakeFacts]
) -> dict[str, tuple[str, ...]]:
    """Macro to the files that mention it, among the files of targets that define it.

    An exported macro is looked for in every file.
    """
    wanted: dict[str, set[str]] = defaultdict(set)
    exported: set[str] = set()
    for target in (*buck.targets, *(t for facts in cmake for t in facts.targets)):
        exported |= note_defines(wanted, target.defines, (e.path for e in target.entries))
    paths = sorted(path for path in tree.files if is_source(path) or is_header(path))
    tree.read_all(paths)
    found: dict[str, list[str]] = defaultdict(list)
    anywhere = re.compile("|".join(map(re.escape, sorted(exported))) or "(?!)")
    for path in paths:
        text = tree.read(path) or ""
        names = wanted.get(path, set())
        names = names | exported if anywhere.search(text) else names
        for name in names.intersection(WORD.findall(text)) if names else ():
            found[name].append(path)
    return {name: tuple(paths) for name, paths in sorted(found.items())}


def note_defines(
    wanted: dict[str, set[str]], defines: Iterable[Word], paths: Iterable[str]
) -> set[str]:
    """Remember which files may read some macros; return those that other targets get too."""
    words = list(defines)
    names = {word.text.partition("=")[0] for word in words}
    for path in paths if names else ():
        wanted[path] |= names
    return {word.text.partition("=")[0] for word in words if word.exported}
