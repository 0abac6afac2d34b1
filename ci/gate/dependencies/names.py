"""Find what one file refers to: modules that it imports and headers that it includes."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from ci.parity.uses import INCLUDE

DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".hh", ".inl")
READ = (".py", *SOURCES)


@dataclass(frozen=True)
class FileFacts:
    """The names in a file. ``imports``: dotted module names; relative ones start with their dots.
    ``includes``: the opening quote and the name of each header."""

    imports: set[str] = field(default_factory=set)
    includes: set[tuple[str, str]] = field(default_factory=set)


NOTHING = FileFacts()


def parse_file(path: str, text: str) -> FileFacts:
    """Return the names in a Python, C or C++ file. The suffix of ``path`` determines the language;
    a file with any other suffix has no names."""
    if path.endswith(".py"):
        return parse_python(text)
    return FileFacts(includes=set(INCLUDE.findall(text))) if path.endswith(SOURCES) else NOTHING


def parse_python(text: str) -> FileFacts:
    """Return the imports of a Python file, also those within functions. If it cannot be parsed,
    every dotted name in its text counts as an import."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return FileFacts(set(DOTTED.findall(text)))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            joint = "" if module.endswith(".") else "."
            found.update([module, *(f"{module}{joint}{alias.name}" for alias in node.names)])
    return FileFacts(found)
