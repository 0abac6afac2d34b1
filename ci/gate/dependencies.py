"""Find what each session uses: the files of its record and what these depend on. The names in a
file, such as modules that it imports and headers that it includes, lead to other files. The noxfile
is parsed, not run.

Parts of files are compared separately: keys of TOML files, such as
``pyproject.toml#dependency-groups.lint``, and the code blocks of Markdown pages, such as
``docs/reference/emulator.md#code``.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from ci.gate.rules import GateRules, Recorded
from ci.parity.facts import directory_of
from ci.parity.policy import matches
from ci.parity.uses import INCLUDE, absolute
from provisioning.documents import DocumentError, decoding

DEPTH = 2
CODE = "code"
# Blocks of these languages are not compared: tests/static finds commands without a test.
TYPED = frozenset({"", "sh", "bash", "console", "text"})
FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)


def list_changed_parts(path: str, old: str, new: str) -> frozenset[str] | None:
    """Return the changed parts of a TOML file or a Markdown page, or None for any other file."""
    if path.endswith(".toml"):
        return list_changed_keys(old, new)
    if path.endswith(".md"):
        return frozenset({CODE} if list_code(old) != list_code(new) else ())
    return None


def list_code(text: str) -> list[tuple[str, str]]:
    """Return the language and text of each code block of a page, except blocks of shell commands or
    plain text (see ``TYPED``)."""
    blocks = [(kind.strip(), body) for kind, body in FENCE.findall(text)]
    return [block for block in blocks if block[0] not in TYPED]


def list_changed_keys(old: str, new: str) -> frozenset[str]:
    """Return the dotted keys, at most two levels deep, whose values differ between two TOML texts,
    or ``?`` if one of the texts is not TOML. A changed comment makes no difference."""
    before, after = parse_table(old), parse_table(new)
    if before is None or after is None:
        return frozenset({"?"})
    return frozenset(_compare(before, after, "", DEPTH))


@lru_cache(maxsize=64)  # all sessions read the same few files
def parse_table(text: str) -> Mapping[str, Any] | None:
    """Return the content of a TOML text, or None if the text is not TOML."""
    try:
        with decoding():
            return msgspec.toml.decode(text, type=dict[str, Any])
    except DocumentError:
        return None


def _compare(
    before: Mapping[str, Any], after: Mapping[str, Any], above: str, depth: int
) -> Iterator[str]:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new and type(old) is type(new):
            continue
        name = f"{above}{key}"
        if depth > 1 and isinstance(old or new, dict) and isinstance(new or old, dict):
            yield from _compare(old or {}, new or {}, f"{name}.", depth - 1)
        else:
            yield name


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


BUCK_FILES, CMAKE_FILE = ("BUCK", "TARGETS", "targets.bzl"), "CMakeLists.txt"


class TreeFiles:
    """The files and symbolic links of a tree. Its methods find the files that a name in one of them
    refers to."""

    def __init__(self, files: Iterable[str], links: Mapping[str, str], rules: GateRules) -> None:
        self.files = frozenset(files)
        self.links = links
        self.rules = rules

    @cached_property
    def folders(self) -> Mapping[str, tuple[str, ...]]:
        """The files below each folder."""
        found: dict[str, list[str]] = {}
        for path in self.files:
            folder = directory_of(path)
            while folder:
                found.setdefault(folder, []).append(path)
                folder = directory_of(folder)
        return {folder: tuple(paths) for folder, paths in found.items()}

    def list_dependencies(self, path: str, facts: FileFacts) -> set[str]:
        """Return the files that ``path`` depends on because of the names in it, its folder or, for
        a symbolic link, its target."""
        found: set[str] = set()
        for name in facts.imports:
            found.update(self.find_module(name, path))
        found.update(self.find_includes(path, facts.includes))
        if path.endswith((".py", *SOURCES)):
            found.update(self.list_above(path))
        if path in self.links:
            target = posixpath.normpath(posixpath.join(directory_of(path), self.links[path]))
            found.update(self.expand(target))
        return found - {path}

    def expand(self, path: str) -> tuple[str, ...]:
        """Return ``path`` itself if it is a file, the files below it if it is a folder, otherwise
        nothing."""
        return (path,) if path in self.files else self.folders.get(path, ())

    def find_module(self, name: str, importer: str) -> Iterator[str]:
        """Yield the files that run when a dotted name is imported: its packages and the module."""
        stem = ""
        for part in absolute(name, importer, self.rules.package).split("/"):
            stem = posixpath.join(stem, part)
            for file in (f"{stem}.py", f"{stem}/__init__.py"):
                if file in self.files:
                    yield file

    def list_above(self, path: str) -> Iterator[str]:
        """Yield the build files above a source file and, for a Python module, the ``__init__.py``
        of each package that contains it.

        The build files are those in the nearest folder above that has a Buck file. For a C or C++
        file, every CMakeLists.txt above it is included, too.
        """
        if path.endswith(".py"):
            yield from self._list_packages(path)
        folder = directory_of(path)
        names: tuple[str, ...] = BUCK_FILES
        if not path.endswith(".py"):
            names = (*BUCK_FILES, CMAKE_FILE)
        while folder:
            found = [one for name in names if (one := f"{folder}/{name}") in self.files]
            yield from found
            if any(not one.endswith(CMAKE_FILE) for one in found):
                names = tuple(name for name in names if name == CMAKE_FILE)
            folder = directory_of(folder) if names else ""

    def _list_packages(self, path: str) -> Iterator[str]:
        folder = directory_of(path)
        while f"{folder}/__init__.py" in self.files:
            yield f"{folder}/__init__.py"
            folder = directory_of(folder)

    def find_includes(self, path: str, includes: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield the headers of the tree that a C++ file includes. Each header is followed by the C
        and C++ files next to it with the same name."""
        for quote, name in includes:
            inner = name.removeprefix(f"{self.rules.package}/") if self.rules.package else name
            beside = posixpath.normpath(posixpath.join(directory_of(path), name))
            candidates = (beside, inner) if quote == '"' else (inner,)
            header = next((one for one in candidates if one in self.files), "")
            if header:
                yield header
                stem = posixpath.splitext(header)[0]
                yield from (f"{stem}{end}" for end in SOURCES if f"{stem}{end}" in self.files)


Load = Callable[[Iterable[str]], Mapping[str, FileFacts]]
SHOWN = 3


@dataclass(frozen=True)
class Reach:
    """The first files of a session and everything that they depend on. ``parents`` maps each of
    these files to the file that depends on it, or to "" if it is a first file."""

    parents: Mapping[str, str]

    def __contains__(self, path: str) -> bool:
        return path in self.parents

    @cached_property
    def folders(self) -> frozenset[str]:
        """The directories that directly contain these files."""
        return frozenset(map(directory_of, self.parents))

    def explain(self, path: str) -> str:
        """Return the files through which ``path`` was reached, starting with the one that depends
        on it, such as ``a.py, by b.py, by c.py``. After three files, the rest is shown as ``...``.
        Return "" for a first file."""
        way: list[str] = []
        while (path := self.parents[path]) and len(way) < SHOWN:
            way.append(path)
        return ", by ".join([*way, *(["..."] if path else [])])


class Graph:
    """The dependencies of a tree's files, read when they are needed."""

    def __init__(self, tree: TreeFiles, load: Load) -> None:
        self.tree, self._load = tree, load
        self._edges: dict[str, tuple[str, ...]] = {}

    def follow(self, starts: Iterable[str]) -> Reach:
        """Return the files reached from ``starts``, including ``starts``."""
        parents = {path: "" for path in sorted(starts) if path in self.tree.files}
        wave = list(parents)
        while wave:
            self._read([path for path in wave if path not in self._edges])
            found: dict[str, str] = {}
            for path in wave:
                for inner in self._edges[path]:
                    if inner not in parents:
                        found.setdefault(inner, path)
            parents.update(found)
            wave = list(found)
        return Reach(parents)

    def _read(self, paths: list[str]) -> None:
        facts = self._load(paths)
        for path in paths:
            found = self.tree.list_dependencies(path, facts.get(path, NOTHING))
            self._edges[path] = tuple(sorted(found))


NOXFILE, PYPROJECT = "noxfile.py", "pyproject.toml"
GROUPS = f"{PYPROJECT}#dependency-groups"
Read = Callable[[str], str]


@dataclass(frozen=True)
class SessionInputs:
    """What a session depends on. ``reach`` contains the session's first files and what they import.
    ``record`` is what its recorded run opened. ``uses`` maps parts of files, written as
    ``FILE#KEY``, to the reason why the session needs them.

    ``known`` is false if there is neither a record nor a first file. In that case, every change
    needs the session.
    """

    name: str
    reach: Reach
    record: Recorded = field(default_factory=Recorded)
    uses: Mapping[str, str] = field(default_factory=dict)
    known: bool = True

    def explain(self, path: str) -> str:
        """Return the reason why the session needs a file, or "" if it does not need it."""
        if self.record.covers(path):
            return "the recorded run of the session opened it"
        if path not in self.reach:
            return ""
        way = self.reach.explain(path)
        return f"read by {way}" if way else "the session runs it"

    def explain_key(self, path: str, key: str) -> str:
        """Return the reason why the session uses a changed key, a table that contains it or a key
        inside it. Return "" if it uses none of them."""
        name = f"{path}#{key}"
        for use, why in self.uses.items():
            if name == use or name.startswith(f"{use}.") or use.startswith(f"{name}."):
                return why
        return ""


def describe_sessions(graph: Graph, read: Read, rules: GateRules) -> dict[str, SessionInputs]:
    """Return the inputs of each session in the noxfile or the rules, by name."""
    files = graph.tree.files
    sessions = parse_noxfile(read(NOXFILE)) if NOXFILE in files else ()
    project = load(read, PYPROJECT, files)
    found = {}
    for name in dict.fromkeys((*sessions, *rules.sessions)):
        roots = rules.session_rule(name).roots
        record = rules.recorded.get(name, Recorded())
        starts = {path for path in files if matches(path, roots) or record.covers(path)}
        uses = {
            f"{GROUPS}.{group}": f"the session's environment contains the dependency group {group}"
            for group in close_groups(record.groups, project)
        }
        found[name] = SessionInputs(name, graph.follow(starts), record, uses, bool(starts))
    return found


def close_groups(groups: Iterable[str], project: Mapping[str, Any]) -> tuple[str, ...]:
    """Return dependency groups together with all groups that they include, directly or
    indirectly."""
    tables = project.get("dependency-groups", {})
    found: dict[str, None] = {}
    waiting = sorted(groups)
    while waiting:
        group = waiting.pop(0)
        if group not in found:
            found[group] = None
            rows = [row for row in tables.get(group, []) if isinstance(row, dict)]
            waiting += [row["include-group"] for row in rows if "include-group" in row]
    return tuple(found)


def load(read: Read, path: str, files: Iterable[str]) -> Mapping[str, Any]:
    """Return the content of a TOML file of the tree, or an empty mapping if the file is missing or
    is not valid TOML."""
    return (parse_table(read(path)) if path in files else None) or {}


def parse_noxfile(text: str) -> Iterator[str]:
    """Yield the names of the sessions in a noxfile. Raises SyntaxError if ``text`` is not
    Python."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            for one in node.decorator_list:
                if ast.unparse(one.func if isinstance(one, ast.Call) else one) == "nox.session":
                    yield node.name
