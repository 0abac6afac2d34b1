"""Find what one file refers to: modules that it imports, headers that it includes, and other
files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ci.parity.uses import INCLUDE

WORD = re.compile(r"[\w.@+*-]+(?:/[\w.@+*-]+)*")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".hh", ".inl")
READ = (".py", ".sh", *SOURCES)
PATH = re.compile(r"[\w.+-]+(?:/[\w.+-]+)+")
# A table of verbs names modules, but only sessions that run a verb depend on its module.
TABLES = frozenset({"Verb"})
TELLING = (
    ast.Assign, ast.Import, ast.ImportFrom, ast.Call, ast.BinOp, ast.JoinedStr, ast.Constant,
)  # fmt: skip
BARE = (ast.Name, ast.expr_context, ast.operator)  # nodes without children to read
READERS = {"read_policy": "policies/{}.toml"}


@dataclass(frozen=True)
class FileFacts:
    """The names in a file.

    ``imports``: dotted module names; relative ones start with their dots. ``families``: packages
    from which the file imports modules by computed names. ``words``: strings that may be paths,
    with ``*`` for each part that is not constant. ``strings``: string constants that are a single
    word. ``profiles``: strings assigned to variables with names that end in PROFILE. ``includes``:
    the opening quote and the name of each header. ``paths``: paths in a shell script.
    """

    imports: set[str] = field(default_factory=set)
    families: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    profiles: set[str] = field(default_factory=set)
    includes: set[tuple[str, str]] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)


NOTHING = FileFacts()


def parse_file(path: str, text: str) -> FileFacts:
    """Return the names in a Python, C, C++ or shell file. The suffix of ``path`` determines the
    language; a file with any other suffix has no names."""
    if path.endswith(".py"):
        return parse_python(text)
    if path.endswith(SOURCES):
        return FileFacts(includes=set(INCLUDE.findall(text)))
    if path.endswith(".sh"):
        below_root = (one.rpartition("../")[2] for one in PATH.findall(text))
        return FileFacts(paths={one.removeprefix("./") for one in below_root})
    return NOTHING


def parse_python(text: str) -> FileFacts:
    """Return the names in a Python file. If it cannot be parsed, every dotted name in its text
    counts as an import."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return FileFacts(imports=set(DOTTED.findall(text)))
    reader = _Reader()
    reader.read_tree(tree)
    return reader.facts


class _Reader:
    def __init__(self) -> None:
        self.facts = FileFacts()

    def read_tree(self, tree: ast.AST) -> None:
        """Read all nodes, in any order and without recursion. This takes half the time of
        ast.NodeVisitor.

        If the ``read_*`` method for a node returns True, the node's children are skipped.
        """
        readers = {kind: getattr(self, f"read_{kind.__name__.lower()}") for kind in TELLING}
        found: list[Any] = [tree]
        while found:
            node = found.pop()
            read = readers.get(type(node))
            if read and read(node):
                continue
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, list):
                    found += [one for one in value if isinstance(one, ast.AST)]
                elif isinstance(value, ast.AST) and not isinstance(value, BARE):
                    found.append(value)

    def read_assign(self, node: ast.Assign) -> None:
        if any(getattr(target, "id", "").endswith("PROFILE") for target in node.targets):
            inner = (one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant))
            self.facts.profiles.update(value for value in inner if isinstance(value, str))

    def read_import(self, node: ast.Import) -> None:
        self.facts.imports.update(alias.name for alias in node.names)

    def read_importfrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        self.facts.imports.add(module)
        joint = "" if module.endswith(".") else "."
        self.facts.imports.update(f"{module}{joint}{alias.name}" for alias in node.names)

    def read_call(self, node: ast.Call) -> bool:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in TABLES:
            return True
        first = node.args[0] if node.args else None
        if name in READERS and isinstance(first, ast.Constant):
            self.facts.words.add(READERS[name].format(first.value))
        if name in {"Path", "joinpath", "with_name"}:
            self.add_word("/".join(map(_show, node.args)), bare=True)
        return False

    def read_binop(self, node: ast.BinOp) -> None:
        self.add_word("/".join(_flatten(node)).lstrip("*/"), bare=True)  # nothing unless a / b

    def read_joinedstr(self, node: ast.JoinedStr) -> None:
        text = _show(node)
        first = node.values[0] if node.values else None
        if isinstance(first, ast.FormattedValue) and getattr(first.value, "id", "") == "__name__":
            self.facts.families.add(".")
        elif DOTTED.fullmatch(text.removesuffix(".*")) and text.endswith(".*"):
            self.facts.families.add(text.removesuffix(".*"))
        self.add_word(text)

    def read_constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        self.add_word(node.value)
        if DOTTED.fullmatch(node.value):
            self.facts.imports.add(node.value)
        if re.fullmatch(r"\w+", node.value):
            self.facts.strings.add(node.value)

    def add_word(self, text: str, *, bare: bool = False) -> None:
        """Add ``text`` to ``words`` if it may name a file. A word without a slash or a dot is added
        only with ``bare``, which means that the code uses it as a path."""
        word = text.strip("/").removeprefix("./")
        named = word.replace("*", "").strip("./")
        wild = (word.startswith("*") and "/" not in word) or word.endswith("__init__.py")
        if named and not wild and WORD.fullmatch(word) and (bare or "/" in word or "." in word):
            self.facts.words.add(word)


def _flatten(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from _flatten(node.left)
        yield from _flatten(node.right)
    else:
        yield _show(node)


def _show(node: ast.expr) -> str:
    """Return the text of a string constant, or of an f-string with ``*`` for each computed part.
    Return ``*`` for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_show, node.values))
    return "*"
