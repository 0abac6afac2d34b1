"""Evaluate a tree's build files with Starlark in one variant, and record the rules that they call.

A variant is one of the builds that build files are written for: Meta's ``fbcode``, Meta's
``xplat``, ``oss`` (open source), or ``switched``. In ``switched``, each read_config() switch has
the opposite of its default. Time, depth and, in the worker process, memory are limited, so a file
whose evaluation never ends is reported as not evaluated.
"""

from __future__ import annotations

import json
import posixpath
import re
import time
from collections.abc import Container
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from typing import Any, TypeAlias

import msgspec
import starlark as sl

from ci.parity.facts import is_inside
from ci.parity.policy import Layout
from ci.parity.trees import Matched, PackageFiles, SourceTree

VARIANTS = ("fbcode", "xplat", "oss", "switched")
FILE_LIMIT_S = 5.0
DEPTH_LIMIT = 300
RETRIES = 40
RULE_CALL = re.compile(r"\b(?:native|runtime|fb_native)\.(\w+)")
UNKNOWN_NAME = re.compile(r"Variable `(\w+)` not found")
DEFINED = re.compile(r"^(?:def\s+(\w+)\s*\(|(\w+)\s*=(?!=))", re.MULTILINE)


LIBRARIES = (
    sl.LibraryExtension.StructType,
    sl.LibraryExtension.RecordType,
    sl.LibraryExtension.EnumType,
    sl.LibraryExtension.Map,
    sl.LibraryExtension.Filter,
    sl.LibraryExtension.Partial,
    sl.LibraryExtension.Print,
    sl.LibraryExtension.Pprint,
    sl.LibraryExtension.Json,
    sl.LibraryExtension.Typing,
)


class NotEvaluatedError(Exception):
    """A build file or module could not be evaluated. The exception holds the path, the reason and
    the line.
    """

    def __init__(self, path: str, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.line = line


@dataclass
class Recorded:
    """A call of a rule. Its arguments are JSON values, in which each select() is a marked
    string.
    """

    kind: str
    arguments: dict[str, Any]


@dataclass
class Package:
    """The rules and globs of one build file in one variant, and the files that were read to
    evaluate it.
    """

    path: str
    package: str
    rules: list[Recorded] = field(default_factory=list)
    globs: list[Matched] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


# A file that is ready to be evaluated: its loads, and its syntax tree with the stubs that it needs.
Parsed: TypeAlias = "tuple[tuple[sl.AstLoad, ...], sl.AstModule]"


def _make_dialect() -> sl.Dialect:
    dialect = sl.Dialect.extended()
    dialect.enable_types = sl.DialectTypes.PARSE_ONLY
    return dialect


@cache  # each evaluator needs it
def _parse_prelude() -> tuple[sl.AstModule, frozenset[str]]:
    """Return the syntax tree of prelude.bzl, and the names that it defines for build files."""
    text = resources.files("ci.parity.buck").joinpath("prelude.bzl").read_text("utf-8")
    defined = {function or name for function, name in DEFINED.findall(text)}
    names = frozenset(name for name in defined if not name.startswith("_"))
    return sl.parse("prelude.bzl", text, _make_dialect()), names


# Build files are programs: names that concatenations, loops and dictionaries make are right only if
# they are evaluated.
class Evaluator:
    """Evaluates build files in one variant. Each .bzl module is evaluated only once."""

    def __init__(
        self,
        tree: SourceTree,
        owned: PackageFiles,
        variant: str,
        rules: set[str],
        parsed: dict[tuple[str, frozenset[str]], Parsed],
    ) -> None:
        self.tree = tree
        self.parsed = parsed
        self.owned = owned
        self.variant = variant
        self.current = Package("", "")
        self.modules: dict[str, tuple[sl.FrozenModule, tuple[str, ...]]] = {}
        self.loading: list[str] = []
        self.deadline = 0.0
        self.globals = sl.Globals.extended_by(list(LIBRARIES))
        self.dialect = _make_dialect()
        self.prelude = self._load_prelude(rules)

    def evaluate(self, build_file: str, text: str | None = None) -> Package:
        """Evaluate one build file. If ``text`` is given, it replaces the content of the file.

        Raises NotEvaluatedError.
        """
        folder = build_file.rpartition("/")[0]
        self.current = Package(build_file, folder)
        # The time of this thread on the CPU, so that a busy machine does not change the result.
        self.deadline = time.thread_time() + FILE_LIMIT_S
        try:
            _, files = self._run(build_file, folder, text)
        except RecursionError as error:
            raise NotEvaluatedError(build_file, "loads are nested too deeply") from error
        self.current.files = list(dict.fromkeys([build_file, *files]))
        return self.current

    def _load_prelude(self, rules: set[str]) -> sl.FrozenModule:
        ast, self.prelude_names = _parse_prelude()
        module = sl.Module()
        module["RULE_NAMES"] = sorted(rules | {"cxx_library", "genrule", "export_file"})
        module.add_callable("host_record", self._record)
        module.add_callable("host_glob", self._glob)
        module.add_callable("host_variant", lambda: self.variant)
        module.add_callable("host_package", lambda: self.current.package)
        module.add_callable("host_exists", lambda name: name in self._names())
        sl.eval(module, ast, self.globals)
        return module.freeze()

    def _record(self, kind: str, arguments: str) -> None:
        self.current.rules.append(Recorded(kind, msgspec.json.decode(arguments)))

    def _names(self) -> set[str]:
        return {rule.arguments["name"] for rule in self.current.rules}

    def _glob(self, include: list[str], exclude: list[str]) -> list[str]:
        matched = self.owned.match(self.current.package, include, exclude)
        self.current.globs.append(matched)
        return list(matched.files)

    def _run(
        self,
        path: str,
        folder: str,
        text: str | None = None,
        unknown: frozenset[str] = frozenset(),
    ) -> tuple[sl.Module, tuple[str, ...]]:
        """Evaluate a file, with a stub for each undefined name."""
        text = self.tree.read(path) if text is None else text
        if text is None:
            raise NotEvaluatedError(path, "cannot be read")
        if len(unknown) >= RETRIES:
            raise NotEvaluatedError(path, "uses too many undefined names")
        try:
            return self._run_once(path, folder, text, unknown)
        except sl.StarlarkError as error:
            # Starlark names only the first undefined name, so each attempt adds a stub for one.
            missing = UNKNOWN_NAME.search(str(error))
            if not missing or missing[1] in unknown:
                raise NotEvaluatedError(path, *explain(error, path)) from error
        return self._run(path, folder, text, unknown | {missing[1]})

    def _run_once(
        self, path: str, folder: str, text: str, unknown: frozenset[str]
    ) -> tuple[sl.Module, tuple[str, ...]]:
        key = (path, unknown)
        if key not in self.parsed:
            # Without this limit, one such file makes its whole side of the tree unknown.
            if is_too_deep(text):
                raise NotEvaluatedError(path, "is nested too deeply")
            # The empty line stands for the header, so that errors have the same line as below.
            loads = tuple(sl.parse(path, "\n" + text, self.dialect).loads())
            taken = {name for load in loads for name in load.symbols}
            text_with_header = self._header(text, taken, unknown) + text
            self.parsed[key] = (loads, sl.parse(path, text_with_header, self.dialect))
        loads, ast = self.parsed[key]
        frozen = {"@prelude": self.prelude}
        files: list[str] = []
        for load in loads:
            frozen[load.module_id], read = self._load(load, path, folder, text)
            files.extend(read)
        if unknown:
            frozen["@unknown"] = self._stub_module(unknown, text)
        module = sl.Module()
        sl.eval_with(
            sl.EvalOptions(
                check_cancelled=lambda: time.thread_time() > self.deadline,
                max_callstack_size=DEPTH_LIMIT,
            ),
            module,
            ast,
            self.globals,
            sl.FileLoader(frozen.__getitem__),
        )
        return module, tuple(files)

    def _header(self, text: str, taken: set[str], unknown: frozenset[str]) -> str:
        """Return a line that loads the stubs that this file uses and does not load itself."""
        words = set(re.findall(r"[A-Za-z_]\w*", text))
        names = sorted((self.prelude_names & words) - taken)
        rows = [("@prelude", names), ("@unknown", sorted(unknown))]
        # A list of names in JSON is one in Starlark, too.
        loads = [
            f'load("{name}", {json.dumps(symbols)[1:-1]})' for name, symbols in rows if symbols
        ]
        return "; ".join(loads) + "\n"

    def _load(
        self, load: sl.AstLoad, path: str, folder: str, text: str
    ) -> tuple[sl.FrozenModule, tuple[str, ...]]:
        file = resolve_load(load.module_id, folder, self.tree, self.owned.folders)
        symbols, stubbed = set(load.symbols.values()), self.tree.layout.stubbed
        # A link in the tree (shim/) may point to a file that is not a Starlark module.
        if file.path is not None and file.path.rpartition("/")[2] not in stubbed:
            return self._load_file(file.path, path)
        name = load.module_id.rpartition(":")[2].rpartition("/")[2]
        if file.is_project and name not in stubbed and not symbols <= {"runtime"}:
            raise NotEvaluatedError(
                path, f"load() refers to {load.module_id}, which is not in the tree"
            )
        # Some loads are not in the tree, such as those of Meta's platform definitions.
        return self._stub_module(symbols, text, "[]" if file.vendored else "'{}'"), ()

    def _load_file(self, target: str, path: str) -> tuple[sl.FrozenModule, tuple[str, ...]]:
        if target in self.loading:
            chain = " -> ".join([*self.loading[self.loading.index(target) :], target])
            raise NotEvaluatedError(path, f"loads form a cycle: {chain}")
        if target not in self.modules:
            self.loading.append(target)
            try:
                module, files = self._run(target, target.rpartition("/")[0])
            finally:
                self.loading.pop()
            self.modules[target] = module.freeze(), tuple(dict.fromkeys([target, *files]))
        return self.modules[target]

    def _stub_module(
        self, symbols: AbstractSet[str], text: str, constant: str = "'{}'"
    ) -> sl.FrozenModule:
        """Return a module that defines ``symbols``. A symbol of the prelude is taken from there.
        The others are stubs.
        """
        module = sl.Module()
        imported = sorted((symbols & self.prelude_names) | {"rule", "namespace"})
        lines = ["load('@prelude', " + ", ".join(f"_{n} = '{n}'" for n in imported) + ")"]
        for symbol in sorted(symbols):
            members = find_members(symbol, text)
            if symbol in self.prelude_names:
                lines.append(f"{symbol} = _{symbol}")
            elif members:
                lines.append(f"{symbol} = _namespace({members!r})")
            elif symbol.isupper():
                lines.append(f"{symbol} = " + constant.format(symbol))
            else:
                lines.append(f"{symbol} = _rule('{symbol}')")
        ast = sl.parse("stub", "\n".join(lines) + "\n", self.dialect)
        sl.eval(module, ast, self.globals, sl.FileLoader(lambda _: self.prelude))
        return module.freeze()


@lru_cache(maxsize=4096)
def find_members(symbol: str, text: str) -> list[str]:
    """Return the members of ``symbol`` that ``text`` uses, such as ``b`` in ``a.b``."""
    return sorted(set(re.findall(rf"\b{symbol}\.(?!bzl\b)(\w+)", text)))


def explain(error: Exception, path: str) -> tuple[str, int]:
    """Return the reason in a Starlark error, and the last line of ``path`` that the error mentions,
    or 0 if there is none.
    """
    text = str(error)
    lines = [int(n) for n in re.findall(rf"{re.escape(path)}:(\d+)", text)]
    rows = text.strip().splitlines() or ["failed"]
    reasons = [row[len("error: ") :].strip() for row in rows if row.startswith("error: ")]
    return (reasons or rows[-1:])[0], max(lines[-1] - 1, 0) if lines else 0


# Resolve load() statements to files of the tree


@dataclass(frozen=True)
class Loaded:
    """The result of looking up a load() statement.

    ``path`` is the file in the tree, or None if it was not found. ``is_project`` is true if the
    file should be in the tree. ``vendored`` is true for a file of a submodule, which may not be
    checked out.
    """

    path: str | None
    is_project: bool
    vendored: bool = False


def resolve_load(module: str, package: str, tree: SourceTree, folders: Container[str]) -> Loaded:
    """Find the file of ``module``, the first argument of a load() statement in a file of
    ``package``.

    ``//p:f.bzl`` is one of Meta's files if the tree has no folder ``p``.
    """
    cell, slashes, target = module.partition("//")
    if not slashes:
        name = module.removeprefix(":")
        path = posixpath.normpath(posixpath.join(package, name))
        is_above = path.startswith("../")  # a file of the repository that contains the tree
        return Loaded(path if path in tree.files else None, is_project=not is_above)
    cell = cell.removeprefix("@")
    folder, _, name = target.partition(":")
    if not name:
        folder, _, name = target.rpartition("/")
    for candidate in candidates(cell, folder, tree.layout):
        path = f"{candidate}/{name}" if candidate else name
        if path in tree.files:
            return Loaded(path, is_project=True)
    inside = is_inside(folder, tree.submodules)
    is_project = tree.layout.strip_root(folder) is not None or (cell == "" and folder in folders)
    is_internal = not set(folder.split("/")).isdisjoint(tree.layout.internal)
    return Loaded(None, is_project and not inside and not is_internal, inside)


def candidates(cell: str, folder: str, layout: Layout) -> list[str]:
    """Return the folders of the tree in which a module may be, the most likely one first."""
    if cell not in layout.cells:
        return []
    # xplat/executorch/P is the folder P of the tree, or one of a stand-in:
    # shim_et/xplat/executorch/P.
    inner = layout.strip_root(folder)
    paths = [] if inner is None else [inner, *(f"{top}/{inner}" for top in layout.stand_ins)]
    if cell in {"", "root", layout.project}:
        paths.append(folder)
    return [path.strip("/") for path in paths]


# Nesting depth: the parser recurses, and a stack overflow would end the whole reader

DEEPEST = 200
LONGEST_CHAIN = 1000
NESTING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""'
    r"|'''(?:[^'\\]|\\.|'(?!''))*'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|\#[^\n]*"
    r"|(?P<line>\n[ \t]*)"
    r"|(?P<open>[\[({])"
    r"|(?P<close>[\])}])"
    r"|(?P<next>,)"
    r"|(?P<chain>\b(?:and|or|not|if|elif|lambda)\b|[-+*/%~.|&<>=]+)",
    re.DOTALL,
)


def is_too_deep(text: str) -> bool:
    """Return whether brackets, blocks or chains of operators are nested deeper than people write
    them.
    """
    chains = [0]
    indents, branches = [0], 0
    for match in NESTING.finditer(text):
        kind = match.lastgroup
        if kind == "open":
            chains[-1] += 1
            chains.append(0)
        elif kind == "close" and len(chains) > 1:
            chains.pop()
        elif kind == "next":
            chains[-1] = 0
        elif kind == "chain":
            word = match.group()
            chains[-1] += len(word)
            branches += word == "elif"
        elif kind == "line" and len(chains) == 1:
            chains = [0]
            indent = len(match.group()) - 1
            while indents[-1] > indent:
                indents.pop()
            if indent > indents[-1]:
                indents.append(indent)
        if len(chains) + len(indents) > DEEPEST or max(sum(chains), branches) > LONGEST_CHAIN:
            return True
    return False
