"""Cases of the comparison as text: both sides of a tree, line by line, and what is found.

A case begins with ``# its name``; one that begins with ``## its name`` has the lines of the last
``#`` before it, where ``- the first two words of a line`` takes that line out, and a line with the
same first two words replaces it. The lines:

    buck PACKAGE:NAME FILE ... KEY=TEXT,TEXT ...     cmake NAME FILE ... KEY=TEXT,TEXT ...
    host NAME ..., android NAME ...: the targets of CMake's of one platform, where not all (- none)
    twice buck ..., twice cmake ...: a target that is defined again
    files, gone, submodules, packages, mentioned, names TEXT ...: of the tree
    headers, needed, imports FILE FILE ...     macros NAME FILE ...     alias NAME TARGET
    include FILE:LINE TEXT [DIRECTORY]     glob PACKAGE MATCHES EMPTY ...
    unread SIDE FILE FOLDER [broken]     scope FOLDER ...     policy KEY=TEXT,TEXT ...

``FILE?KEY`` stands under a key of select() or a condition, ``+TEXT`` is exported. A target is at
line 10 of its file, and what it lists in the lines below. A finding is

    = KIND LEVEL FILE [DETAIL] on PLATFORM, when new LEVEL, TARGET at PLACE, TARGET at PLACE

and, where a message is pinned, two lines with the message and what to do. WRITE_SNAPSHOTS=1 writes
these two lines anew; the others are facts, which only a person changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from ci.parity.compare.comparison import compare_tree, is_about
from ci.parity.compare.findings import Finding
from ci.parity.facts import BuckTarget, CMakeTarget, Glob, Include, NotEvaluated, ParityFacts, Place
from ci.parity.policy import Exclusion, Library, ParityPolicy
from tests.unit.ci.parity.compare.sides import buck, cmake, facts

POLICY = ParityPolicy(
    tests=("**/test/**",),
    android_only=("*_android_build",),
    twins=("*_aten",),
    implied=("core",),
    ignored_defines=("NDEBUG",),
    suffixes=("Apple", "AppleMac"),
    library=(
        Library("other", buck=("o",), cmake=("o",)),
        Library("gflags", buck=("gflags", "//third:g"), cmake=("gflags", "gflags_*")),
    ),
    exclude=(Exclusion(("out/**", "**/out/**"), "r"),),
)
PLAIN = ("kind", "directory")
SINGLE = {"files", "gone", "packages", "submodules", "mentioned", "names", "scope", "policy"}
WHOLE = {"include", "glob", "unread", "twice"}


@dataclass
class Case:
    """A case: its lines by their first two words, and what is found, by line number of its file."""

    name: str
    file: Path
    lines: dict[str, str] = field(default_factory=dict)
    expected: dict[int, str] = field(default_factory=dict)

    @property
    def found(self) -> list[str]:
        """The lines of what is found."""
        return list(self.expected.values())

    def run(self) -> list[str]:
        """What the comparison finds, as lines; messages only where this case pins them."""
        tree, policy, scope = self.build()
        findings = [finding for finding in compare_tree(tree, policy) if is_about(finding, scope)]
        pinned = any(not line.startswith("=") for line in self.found)
        return [line for finding in findings for line in show(finding, words=pinned)]

    def build(self) -> tuple[ParityFacts, ParityPolicy, tuple[str, ...]]:
        """The tree, the policy and the scope that the lines describe."""
        rows = [line.split() for line in self.lines.values()]
        by_word: dict[str, list[list[str]]] = {}
        for word, *arguments in rows:
            by_word.setdefault(word, []).append(arguments)
        values: dict[str, Any] = {}
        for word in ("files", "gone", "packages", "submodules", "mentioned", "names", "scope"):
            values[word] = tuple(chain.from_iterable(by_word.get(word, ())))
        twice = [read_target(row[0], row[1:]) for row in by_word.get("twice", ())]
        sides = {
            "mentioned": values.pop("mentioned"),
            "aliases": {row[0]: row[1] for row in by_word.get("alias", ())},
            "repeated": tuple(target for target in twice if isinstance(target, CMakeTarget)),
        }
        for word in ("headers", "needed", "imports", "macros"):
            values[word] = {row[0]: tuple(row[1:]) for row in by_word.get(word, ())}
        for word in ("host", "android"):
            listed = [row for row in by_word.get(word, ()) if row != ["-"]]
            if word in by_word:
                values[word] = [read_target("cmake", row) for row in listed]
        policy = POLICY
        for words in by_word.get("policy", ()):
            fields = {}
            for word in words:
                key, _, text = word.partition("=")
                fields[key] = text.split(",")
            policy = msgspec.convert(fields, ParityPolicy)
        scope = values.pop("scope")
        tree = facts(
            [read_target("buck", row) for row in by_word.get("buck", ())],
            [read_target("cmake", row) for row in by_word.get("cmake", ())],
            globs=tuple(map(read_glob, by_word.get("glob", ()))),
            repeated=tuple(target for target in twice if isinstance(target, BuckTarget)),
            includes=tuple(map(read_include, by_word.get("include", ()))),
            not_evaluated=tuple(map(read_unread, by_word.get("unread", ()))),
            header_names=frozenset(values.pop("names")),
            sides=sides,
            **values,
        )
        return tree, policy, scope


def read_target(side: str, words: list[str]) -> Any:
    name, *words_of_target = words
    files = [text.replace("?", " if ") for text in words_of_target if "=" not in text]
    options: dict[str, Any] = {}
    for key, _, text in (word.partition("=") for word in words_of_target if "=" in word):
        options[key] = text if key in PLAIN else tuple(text.replace("?", " if ").split(","))
    if "complete" in options:
        options["complete"] = False
    return buck(name, *files, **options) if side == "buck" else cmake(name, *files, **options)


def read_glob(words: list[str]) -> Glob:
    package, matches, *empty = words
    package = package.strip(".")
    return Glob(package, tuple(empty), tuple(empty), Place("p/BUCK", 7), int(matches))


def read_include(words: list[str]) -> Include:
    path, _, line = words[0].partition(":")
    return Include(words[1], Place(path, int(line)), words[2] if len(words) > 2 else "")


def read_unread(words: list[str]) -> NotEvaluated:
    side, path, folder, *marks = words
    named = None if folder == "-" else folder
    place = Place(path, 0 if path == "." else 4)
    return NotEvaluated(side, place, "a reason", named, is_broken="broken" in marks)


def show(finding: Finding, *, words: bool) -> Iterator[str]:
    """A finding as the lines of a case."""
    detail = f" [{finding.detail}]" if finding.detail else ""
    parts = [f"= {finding.kind.value} {finding.level.value} {finding.path}{detail}"]
    if finding.configuration:
        parts.append(f" on {finding.configuration.value}")
    if finding.when_new:
        parts.append(f" when new {finding.when_new.value}")
    for target, place in (
        (finding.buck_target, finding.buck_place),
        (finding.cmake_target, finding.cmake_place),
    ):
        if target or place:
            parts.append(f" {target or '-'} at {place or '-'}")
    yield ",".join(parts)
    if words:
        yield finding.message
        yield finding.fix


def read_cases(file: Path) -> Iterator[Case]:
    """The cases of a file."""
    case, keys, base = Case("", file), set[str](), dict[str, str]()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        if line.startswith("#"):
            if case.name:
                yield case
            is_variant = line.startswith("##")
            case = Case(line.strip("# "), file, dict(base) if is_variant else {})
            base = base if is_variant else case.lines
            keys = set()
        elif line.startswith("- "):
            del case.lines[line[2:]]
        elif line and (line.startswith("=") or case.expected):
            case.expected[number] = line
        elif line:
            key = key_of(line)
            key += " again" if key in keys else ""
            keys.add(key)
            case.lines[key] = line
    yield case


def write_messages(case: Case, lines_found: list[str]) -> None:
    """Write what was found into the file of a case, unless its facts differ from the expected."""
    if list(map(fact_of, lines_found)) == list(map(fact_of, case.found)):
        lines = case.file.read_text(encoding="utf-8").splitlines()
        for number, line in zip(case.expected, lines_found, strict=True):
            lines[number] = case.expected[number] = line
        case.file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def fact_of(line: str) -> str:
    """A line about a finding, without the text of a message."""
    return line if line.startswith("=") else ""


def key_of(line: str) -> str:
    """What a line of a variant replaces."""
    words = line.split()
    if words[0] in WHOLE:
        return line
    return words[0] if words[0] in SINGLE else " ".join(words[:2])
