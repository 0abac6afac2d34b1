"""Find what each session uses: the files of its record and what these import. The noxfile and the
modules are parsed, not run.

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
from functools import cached_property, lru_cache, partial
from typing import Any

import msgspec

from ci.gate.rules import GateRules, Recorded
from ci.parity.facts import directory_of
from ci.parity.policy import matches
from ci.parity.uses import absolute
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
        # 1, 1.0 and true are equal in Python, but different values in TOML.
        if old == new and type(old) is type(new):
            continue
        name = f"{above}{key}"
        if depth > 1 and isinstance(old or new, dict) and isinstance(new or old, dict):
            yield from _compare(old or {}, new or {}, f"{name}.", depth - 1)
        else:
            yield name


DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
READ = ".py"


def parse_python(text: str) -> set[str]:
    """Return the dotted names that a Python file imports, also within functions. Relative ones
    start with their dots. If the file cannot be parsed, every dotted name in its text counts."""
    try:
        statements = [*walk_statements(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(DOTTED.findall(text))
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            names.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            module = "." * statement.level + (statement.module or "")
            joint = "" if module.endswith(".") else "."
            names.update([module, *(f"{module}{joint}{alias.name}" for alias in statement.names)])
    return names


# The fields of statements, handlers and cases that contain statements.
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def walk_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements of a module, also nested ones. ast.walk would also visit expressions,
    which are most of the nodes and contain no imports."""
    # A loop instead of ast.NodeVisitor, which takes twice as long for the same facts: a plan of
    # this project takes 5.6 s of CPU instead of 6.7 s, and reads a tree of any depth.
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in BLOCKS:
            nodes = getattr(node, block, None)
            if isinstance(nodes, list):  # the body of a lambda or conditional is an expression
                waiting += nodes


class TreeFiles:
    """The files and symbolic links of a tree. Its methods find the files that a name in one of them
    refers to."""

    def __init__(self, files: Iterable[str], links: Mapping[str, str], rules: GateRules) -> None:
        self.files = frozenset(files)
        self.links = links
        self.rules = rules

    def list_dependencies(self, path: str, imports: Iterable[str]) -> set[str]:
        """Return the files that ``path`` depends on because of its imports, its packages or, for a
        symbolic link, its target, which may be a folder."""
        dependencies = {file for name in imports for file in self.find_module(name, path)}
        folder = directory_of(path)
        while path.endswith(READ) and f"{folder}/__init__.py" in self.files:
            dependencies.add(f"{folder}/__init__.py")
            folder = directory_of(folder)
        if path in self.links:
            target = posixpath.normpath(posixpath.join(directory_of(path), self.links[path]))
            below = f"{target}/"
            dependencies.update(
                file for file in self.files if file == target or file.startswith(below)
            )
        return dependencies - {path}

    def find_module(self, name: str, importer: str) -> Iterator[str]:
        """Yield the files that run when a dotted name is imported: its packages and the module."""
        stem = ""
        for part in absolute(name, importer, self.rules.package).split("/"):
            stem = posixpath.join(stem, part)
            for file in (f"{stem}.py", f"{stem}/__init__.py"):
                if file in self.files:
                    yield file


Load = Callable[[Iterable[str]], Mapping[str, set[str]]]
SHOWN = 3


@dataclass(frozen=True)
class Reach:
    """The first files of a session and everything that they depend on. They are found when they are
    first needed: a plan without changes parses no file."""

    find_parents: Callable[[], Mapping[str, str]]

    @cached_property
    def parents(self) -> Mapping[str, str]:
        """For each of the files, the file that depends on it, or "" for a first file."""
        return self.find_parents()

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
        return Reach(partial(self._find_parents, tuple(starts)))

    def _find_parents(self, starts: Iterable[str]) -> dict[str, str]:
        parents = {path: "" for path in sorted(starts) if path in self.tree.files}
        wave = list(parents)
        while wave:
            new = [path for path in wave if path not in self._edges]
            imports = self._load(new)
            for path in new:
                edges = self.tree.list_dependencies(path, imports.get(path, ()))
                self._edges[path] = tuple(sorted(edges))
            wave_parents: dict[str, str] = {}
            for path in wave:
                for inner in self._edges[path]:
                    if inner not in parents:
                        wave_parents.setdefault(inner, path)
            parents.update(wave_parents)
            wave = list(wave_parents)
        return parents


NOXFILE, PYPROJECT = "noxfile.py", "pyproject.toml"
GROUPS = f"{PYPROJECT}#dependency-groups"
Read = Callable[[str], str]


@dataclass(frozen=True)
class SessionInputs:
    """What a session depends on. ``reach`` contains the session's first files and what they import.
    ``record`` is what its recorded run opened. ``uses`` maps parts of files, written as
    ``FILE#KEY``, to the reason why the session needs them.

    ``is_known`` is false if there is neither a record nor a first file. In that case, every change
    needs the session.
    """

    name: str
    reach: Reach
    record: Recorded = field(default_factory=Recorded)
    uses: Mapping[str, str] = field(default_factory=dict)
    is_known: bool = True

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
    inputs = {}
    for name in dict.fromkeys((*sessions, *rules.sessions)):
        roots = rules.session_rule(name).roots
        record = rules.recorded.get(name, Recorded())
        starts = {path for path in files if matches(path, roots) or record.covers(path)}
        uses = {
            f"{GROUPS}.{group}": f"the session's environment contains the dependency group {group}"
            for group in close_groups(record.groups, project)
        }
        inputs[name] = SessionInputs(name, graph.follow(starts), record, uses, bool(starts))
    return inputs


def close_groups(groups: Iterable[str], project: Mapping[str, Any]) -> tuple[str, ...]:
    """Return dependency groups together with all groups that they include, directly or
    indirectly."""
    tables = project.get("dependency-groups", {})
    closed: dict[str, None] = {}
    waiting = sorted(groups)
    while waiting:
        group = waiting.pop(0)
        if group not in closed:
            closed[group] = None
            rows = [row for row in tables.get(group, []) if isinstance(row, dict)]
            waiting += [row["include-group"] for row in rows if "include-group" in row]
    return tuple(closed)


def load(read: Read, path: str, files: Iterable[str]) -> Mapping[str, Any]:
    """Return the content of a TOML file of the tree, or an empty mapping if the file is missing or
    is not valid TOML."""
    return (parse_table(read(path)) if path in files else None) or {}


def parse_noxfile(text: str) -> Iterator[str]:
    """Yield the names of the sessions in a noxfile: the keys of its table SESSIONS, and its
    functions with the decorator ``nox.session``. Raises SyntaxError if ``text`` is not Python."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SESSIONS":
            yield from ast.literal_eval(node.value)
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                if ast.unparse(called) == "nox.session":
                    yield node.name
