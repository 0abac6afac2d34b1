"""Read a tree's build files as facts: evaluate them in every variant, merge the results, and add
line numbers.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from ci.parity.buck.evaluate import (
    RULE_CALL,
    VARIANTS,
    Evaluator,
    NotEvaluatedError,
    Package,
    Parsed,
    Recorded,
)
from ci.parity.facts import (
    BuckFacts,
    BuckTarget,
    Glob,
    ListEntry,
    NotEvaluated,
    Place,
    Word,
    is_header,
    is_inside,
    is_source,
)
from ci.parity.policy import Layout, compile_pattern
from ci.parity.trees import BUILD_NAMES, Literals, PackageFiles, SourceTree

Key: TypeAlias = "tuple[str, str, bool]"
INTERNAL = "inside Meta"
TARGETS_FILE = "targets.bzl"
TARGET_NAME = re.compile(r'\bname = "([^"]+)"')
DEFINES_TARGETS = "def define_common_targets("
LOADING = 'load(":targets.bzl", "define_common_targets")\ndefine_common_targets()\n'
LOCATION = re.compile(r"\$\(location ([^)\s]+)\)")
MARK = "\0select"
SOURCE_KEYS = ("srcs", "src", "platform_srcs", "main_src", "main", "test_srcs", "resources")
HEADER_KEYS = ("headers", "raw_headers")
EXPORTED_KEYS = ("exported_headers", "public_headers")
NAMED_KEYS = ("headers", *EXPORTED_KEYS)
DIRECTORY_KEYS = ("include_directories", "public_include_directories")
EXPORTED_FLAG_KEYS = (
    "exported_preprocessor_flags",
    "propagated_pp_flags",
    "exported_compiler_flags",
)
WORD_FIELDS = ("deps", "exported_deps", "external_deps", "defines")
FLAG_KEYS = ("defines", "preprocessor_flags", "compiler_flags", *EXPORTED_FLAG_KEYS)


def is_build_file(path: str) -> bool:
    """Return whether a file is a BUCK or TARGETS file, or a Starlark module."""
    return path.rpartition("/")[2] in BUILD_NAMES or path.endswith(".bzl")


def read_buck(tree: SourceTree) -> BuckFacts:
    """Evaluate all build files of ``tree`` in every variant."""
    paths = sorted(path for path in tree.files if is_build_file(path))
    tree.read_all(paths)
    owned = PackageFiles(tree.files)
    rules = {name for path in paths for name in RULE_CALL.findall(tree.read(path) or "")}
    # A submodule is read alike whether it is checked out or not.
    builds = [p for p in paths if not p.endswith(".bzl") and not is_inside(p, tree.submodules)]
    merger = Merger(Literals(tree), owned)
    parsed: dict[tuple[str, frozenset[str]], Parsed] = {}
    evaluators = [Evaluator(tree, owned, variant, rules, parsed) for variant in VARIANTS]
    # Each file in each variant: to leave some out saved no time, because CMake's side takes longer.
    for evaluator in evaluators:
        for path in builds:
            merger.evaluate(evaluator, path)
    unloaded = merger.find_unloaded(p for p in paths if not is_inside(p, tree.submodules))
    merger.owned = PackageFiles(tree.files, [path.rpartition("/")[0] for path in unloaded])
    for evaluator in evaluators:
        evaluator.owned = merger.owned
        for path in unloaded:
            merger.evaluate_unloaded(evaluator, path)
    return merger.facts(sorted({path.rpartition("/")[0] for path in (*builds, *unloaded)}))


@dataclass
class BuckWord:
    """A string in an attribute, with the key of the select() alternative that contains it.

    In a map, ``text`` is the value and ``key`` is its key. In a map of headers, the value is the
    file. In a map of resources, the key is the file.
    """

    text: str
    condition: str = ""
    key: str = ""


class Merger:
    """Collects the packages of all variants. A target that several variants have becomes one fact.

    A Python rule and a native rule that have the same name in two variants stay separate.
    """

    def __init__(self, literals: Literals, owned: PackageFiles) -> None:
        self.literals = literals
        self.owned = owned
        self.targets: dict[Key, BuckTarget] = {}
        self.repeated: dict[Key, BuckTarget] = {}
        self.globs: dict[tuple[str, tuple[str, ...]], Glob] = {}
        self.unread: dict[str, NotEvaluated] = {}
        self.read: set[str] = set()
        self.recorded: dict[Key, tuple[Recorded, BuckTarget]] = {}  # in the latest variant
        self.open_words: dict[Key, set[str]] = {}

    def evaluate(self, evaluator: Evaluator, path: str) -> None:
        """Evaluate one build file and add its content, or the reason why it could not be
        evaluated."""
        try:
            self.add(evaluator.evaluate(path), evaluator.variant)
        except NotEvaluatedError as error:
            place, folder = Place(error.path, error.line), path.rpartition("/")[0]
            reason = f"{path}: {error.reason}"
            self.unread[path] = NotEvaluated("buck", place, reason, folder, is_broken=True)

    def add(self, package: Package, variant: str) -> None:
        """Add the rules and globs of one build file in one variant."""
        names_so_far: set[str] = set()
        self.read.update(package.files)
        for rule in package.rules:
            name = str(rule.arguments["name"])
            key = (package.package, name, "python" in rule.kind)
            recorded_rule, target = self.recorded.get(key, (None, None))
            if target is None or name in names_so_far or recorded_rule != rule:
                target = self.build_target(package, rule)
                if name in names_so_far:
                    self.repeated[key] = target
                merged = self.targets.get(key)
                self.targets[key] = merge_targets(merged, target) if merged else target
                self.recorded[key] = (rule, target)
            names_so_far.add(name)
            if variant == "oss":
                words = (word for name in WORD_FIELDS for word in getattr(target, name))
                self.open_words[key] = {word.text for word in words}
        for call in package.globs:
            if (glob := (package.package, call.patterns)) not in self.globs:
                names = [*call.empty, *call.patterns]
                place = self.literals.find(names, package.files, Place(package.path))
                self.globs[glob] = Glob(*glob, call.empty, place, len(call.files))

    def find_unloaded(self, paths: Iterable[str]) -> list[str]:
        """Return each targets.bzl that no build file loads, if it has a function for its targets,
        or names a target that its package does not have.

        Folders in which a build file could not be evaluated are left out.
        """
        unread = {path.rpartition("/")[0] for path in self.unread}
        unloaded = []
        for path in paths:
            folder, _, name = path.rpartition("/")
            if name != TARGETS_FILE or path in self.read or folder in unread:
                continue
            text = self.literals.tree.read(path) or ""
            target_names = {key[1] for key in self.targets if key[0] == folder}
            if DEFINES_TARGETS in text or not target_names.issuperset(TARGET_NAME.findall(text)):
                unloaded.append(path)
        return unloaded

    def evaluate_unloaded(self, evaluator: Evaluator, path: str) -> None:
        """Add the content of a targets.bzl that no build file loads, as if a build file loaded it,
        if it defines a target that its package does not have.
        """
        folder = path.rpartition("/")[0]
        row = NotEvaluated("buck", Place(path), "no build file loads it", folder, is_broken=True)
        try:
            package = evaluator.evaluate(f"{path} as loaded", LOADING)
        except NotEvaluatedError:
            self.unread[path] = row
        else:
            target_names = {key[1] for key in self.targets if key[0] == folder}
            if path not in self.unread and target_names.issuperset(
                str(rule.arguments["name"]) for rule in package.rules
            ):
                return
            self.unread.setdefault(path, replace(row, is_known=True))
            package.path, package.files = path, package.files[1:]
            self.add(package, evaluator.variant)

    def build_target(self, package: Package, rule: Recorded) -> BuckTarget:
        """Return the facts of a rule, with the lines that mention them."""
        name = str(rule.arguments["name"])
        near = Place(package.path, 1)
        place = self.literals.find([name, *stems(name)], package.files, near)
        context = Context(self.literals, self.owned, package, rule.arguments, place)
        return BuckTarget(
            package=package.package,
            name=name,
            kind=rule.kind,
            place=place,
            srcs=(
                *context.entries(SOURCE_KEYS),
                *context.found(is_source),
                *context.located(),
            ),
            headers=(*context.entries(HEADER_KEYS), *context.found(is_header)),
            exported_headers=tuple(context.entries(EXPORTED_KEYS)),
            deps=context.words("deps", "fbcode_deps", "xplat_deps", "actual"),
            exported_deps=context.words(
                "exported_deps", "fbcode_exported_deps", "xplat_exported_deps"
            ),
            external_deps=context.words("external_deps", "exported_external_deps"),
            defines=tuple(context.defines()),
            include_names=tuple(context.include_names()),
            include_directories=tuple(context.include_directories()),
        )

    def marked(self, key: Key) -> BuckTarget:
        """Return a target in which each word that occurs only in Meta's builds has a condition.

        CMake describes the open source build, so only the dependencies and defines of that build
        are compared.
        """
        open_words = self.open_words.get(key, set())
        target = self.targets[key]
        marked = {}
        for name in WORD_FIELDS:
            words = list(getattr(target, name))
            for place, word in enumerate(words):
                if word.text not in open_words:
                    words[place] = replace(word, condition=INTERNAL)
            marked[name] = tuple(words)
        return replace(target, **marked)

    def facts(self, packages: Sequence[str]) -> BuckFacts:
        """Return everything that was added, sorted. ``packages`` are the folders with a build
        file."""
        return BuckFacts(
            targets=tuple(self.marked(key) for key in sorted(self.targets)),
            globs=tuple(self.globs[key] for key in sorted(self.globs)),
            repeated=tuple(self.repeated[key] for key in sorted(self.repeated)),
            packages=tuple(packages),
            not_evaluated=tuple(self.unread[key] for key in sorted(self.unread)),
        )


@dataclass
class Context:
    """Turns the attribute values of one target (``arguments``) into facts, with the lines that
    mention them.
    """

    literals: Literals
    owned: PackageFiles
    package: Package
    arguments: dict[str, Any]
    target: Place

    def items(self, keys: Iterable[str]) -> Iterator[BuckWord]:
        """Yield all strings in the attributes ``keys``."""
        for key in keys:
            yield from walk(self.arguments.get(key))

    def locate(self, *words: str) -> Place:
        """Return the line that mentions the first of ``words``, or the line of the target."""
        return self.literals.find(words, self.package.files, self.target)

    def absolute(self, label: str) -> str:
        """Return a label of this package with its folder, see ``absolute``."""
        return absolute(label, self.package.package, self.literals.tree.layout)

    def path(self, text: str) -> str:
        """Return the path of a file of the package from the root of the tree."""
        return posixpath.normpath(posixpath.join(self.package.package, text))

    def entries(self, keys: Sequence[str]) -> Iterator[ListEntry]:
        """Yield the files and labels in the attributes ``keys``. Labels stay labels."""
        # Includes of the rule's headers are relative to this folder.
        inner = self.literals.tree.layout.strip_root(
            str(self.arguments.get("header_namespace", ""))
        )
        folder = self.package.package if inner is None else inner
        return (self.entry(item, folder) for item in self.items(keys) if item.text)

    def located(self) -> Iterator[ListEntry]:
        """Yield the files that a rule's command names with $(location), since it may copy them."""
        for item in self.items(["cmd"]):
            for label in LOCATION.findall(item.text):
                yield self.entry(BuckWord(label, item.condition), "")

    def found(self, is_wanted: Callable[[str], bool]) -> Iterator[ListEntry]:
        """Yield the files of the package for which ``is_wanted`` returns true. Yield nothing if the
        rule has no ``autoglob_mode``. (With it, a rule uses all files of its package.)
        """
        names = (
            self.owned.files_of(self.package.package) if "autoglob_mode" in self.arguments else ()
        )
        paths = (f"{self.package.package}/{name}".lstrip("/") for name in names)
        return (ListEntry(path, self.target) for path in paths if is_wanted(path))

    def entry(self, item: BuckWord, folder: str) -> ListEntry:
        """Return a file or a label as an entry, with the line that mentions it. The path of a file
        starts at the root of the tree.
        """
        if item.key and not self.is_there(item.text) and self.is_there(item.key):
            item = BuckWord(item.key, item.condition)
        base = item.text.rpartition("/")[2]
        place = self.locate(item.text, base, base.partition(".")[0], *self.patterns(item.text))
        if is_label(item.text):
            made_as = f"{folder}/{item.key}".lstrip("/") if item.key else ""
            return ListEntry(self.absolute(item.text), place, item.condition, made_as)
        return ListEntry(self.path(item.text), place, item.condition)

    def is_there(self, text: str) -> bool:
        """Return whether a text is a label, or a file of the package."""
        return is_label(text) or self.path(text) in self.literals.tree.files

    def patterns(self, text: str) -> list[str]:
        """Return the include patterns of the package's glob() calls that matched a file."""
        calls = (call for call in self.package.globs if text in call.files)
        return [p for call in calls for p in call.patterns if compile_pattern(p).fullmatch(text)]

    def words(self, *keys: str) -> tuple[Word, ...]:
        """Return the labels or names in the attributes ``keys``."""
        return tuple(
            Word(self.absolute(item.text), self.locate(item.text), item.condition)
            for item in self.items(keys)
        )

    def include_names(self) -> Iterator[str]:
        """Yield the names by which other files include the rule's headers, if these differ from the
        paths in the tree.

        A rule with ``autoglob_mode`` is for Apple platforms, which use the file name without
        folders.
        """
        yield from (e.path.rpartition("/")[2] for e in self.found(is_header))
        namespace = self.arguments.get("header_namespace")
        if not isinstance(namespace, str) or namespace.startswith(MARK):
            return
        for item in self.items(NAMED_KEYS):
            if item.key or not is_label(item.text):
                yield posixpath.normpath(posixpath.join(namespace, item.key or item.text))

    def include_directories(self) -> Iterator[str]:
        """Yield the include directories in the rule's attributes, and in -I flags below one of
        Meta's roots.

        -I flags below the root of the tree are left out, because they work in none of Meta's
        builds.
        """
        for item in self.items(DIRECTORY_KEYS):
            yield self.path(item.text.lstrip("/"))
        for item in self.items(FLAG_KEYS):
            inner = self.literals.tree.layout.strip_root(item.text.removeprefix("-I"))
            if item.text.startswith("-I") and inner is not None:
                yield posixpath.normpath(inner)

    def defines(self) -> Iterator[Word]:
        """Yield the macros in -D flags and in ``defines``, without the -D."""
        for key in FLAG_KEYS:
            for item in self.items([key]):
                if key == "defines" or item.text.startswith("-D"):
                    text = item.text.removeprefix("-D").replace('\\"', '"')
                    place, exported = self.locate(item.text), key in EXPORTED_FLAG_KEYS
                    yield Word(text, place, item.condition, exported)


def walk(value: Any, condition: str = "") -> Iterator[BuckWord]:
    """Yield all strings in an attribute's value, including those in lists, maps and select()
    alternatives.
    """
    if isinstance(value, str):
        if value.startswith(MARK):
            for key, inner in msgspec.json.decode(value[len(MARK) :]).items():
                yield from walk(inner, key if not condition else f"{condition} and {key}")
        elif value:
            yield BuckWord(value, condition)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, condition)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key.startswith(MARK) or not inner:
                yield from walk(key, condition)
            else:
                yield from (BuckWord(i.text, i.condition, key) for i in walk(inner, condition))


def is_label(text: str) -> bool:
    """Return whether a text is the label of a target, or a macro, and not the path of a file."""
    return text.startswith((":", "@", "$(")) or "//" in text


def absolute(label: str, package: str, layout: Layout) -> str:
    """Return ``label`` in the form ``//folder:name``, with the folder from the root of the tree. A
    label of another cell is returned unchanged."""
    if label.startswith(":"):
        return f"//{package}{label}"
    cell, slashes, path = label.partition("//")
    if not slashes or cell.removeprefix("@") not in layout.cells:
        return label
    folder, colon, name = path.partition(":")
    inner = layout.strip_root(folder)
    if inner is None and cell:
        return label
    return f"//{folder if inner is None else inner}:{name if colon else folder.rpartition('/')[2]}"


def stems(name: str) -> list[str]:
    """Return shorter names from which a macro may have made ``name``."""
    parts = name.split("_")
    return ["_".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def merge_targets(left: BuckTarget, right: BuckTarget) -> BuckTarget:
    """Merge ``left`` and ``right``, which are the same target in two variants. The result contains
    everything that either of them contains.
    """

    def key(item: ListEntry | Word | str) -> str:
        return str(getattr(item, "path", None) or getattr(item, "text", item))

    merged = {}
    for name in left.__struct_fields__:
        first = getattr(left, name)
        if isinstance(first, tuple):
            first_keys = set(map(key, first))
            merged[name] = (*first, *(e for e in getattr(right, name) if key(e) not in first_keys))
    return replace(left, **merged)
