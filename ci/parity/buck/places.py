"""Find the line of a build file that mentions a recorded name.

Starlark passes values to a rule without their positions, so a name is looked up as a string
literal. The build file is searched first, if possible from the line of the target on. Then the
files that the build file loads are searched.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ci.parity.facts import Place
from ci.parity.trees import SourceTree

LITERAL = re.compile(r'"[^"\\\n]*"|\'[^\'\\\n]*\'')

BLOCK = re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*"""', re.DOTALL)


class Literals:
    """The string literals of build files, with their lines. A file is scanned only once."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self._lines: dict[str, dict[str, list[int]]] = {}

    def find(self, words: Iterable[str], files: Sequence[str], near: Place) -> Place:
        """Return the place of the first of ``words`` that is found, preferably just below ``near``.
        If none is found, return ``near``.
        """
        return self.look_up(words, files, near) or near

    def look_up(self, words: Iterable[str], files: Sequence[str], near: Place) -> Place | None:
        """Return the place of the first of ``words`` that is found, preferably just below ``near``.
        If none is found, return None.
        """
        ordered = sorted(files, key=lambda path: path != near.path)
        for word in words:
            for path in ordered:
                if path not in self._lines:
                    self._lines[path] = self.scan(path)
                if lines := self._lines[path].get(word):
                    after = bisect_left(lines, near.line) if path == near.path else 0
                    return Place(path, lines[after % len(lines)])
        return None

    def scan(self, path: str) -> dict[str, list[int]]:
        """Return the string literals of a Starlark file with their lines, without multi-line
        strings.
        """
        found: dict[str, list[int]] = {}
        text = BLOCK.sub(lambda block: "\n" * block.group().count("\n"), self.tree.read(path) or "")
        for number, line in enumerate(text.splitlines(), 1):
            for match in LITERAL.finditer(line):
                before = line[: match.start()]
                if "#" in before and "#" in LITERAL.sub("", before):
                    break
                found.setdefault(match.group()[1:-1], []).append(number)
        return found
