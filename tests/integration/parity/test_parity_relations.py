"""Dependencies and defines taken from one side of a real tree, one at a time: how many are found.

removals.json has them as side, build file, line and text: chosen at random, then those kept that
parity should be able to see, since the other side or an included header says that they are needed.
One removal takes four seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
import pytest

from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.facts import BuckTarget, CMakeTarget, ParityFacts
from ci.parity.reading import read_tree_here
from tests.integration.parity.upstream import MAIN, WALKS, compare, open_revision, read_artifact

REMOVALS = read_artifact("removals.json")
FIELDS = {
    "buck": ("deps", "exported_deps", "external_deps", "defines"),
    "cmake": ("links", "defines", "directory_defines"),
}
WANTED = 0.9

Target = TypeVar("Target", BuckTarget, CMakeTarget)

pytestmark = WALKS


def without(targets: Iterable[Target], side: str, path: str, line: int, text: str) -> list[Target]:
    """The targets of a side without a word of a line."""
    changed_targets: list[Target] = []
    for target in targets:
        remaining_fields = {}
        for name in FIELDS[side]:
            remaining_fields[name] = tuple(
                word
                for word in getattr(target, name)
                if (word.place.path, word.place.line, word.text) != (path, line, text)
            )
        changed_targets.append(msgspec.structs.replace(target, **remaining_fields))
    return changed_targets


def remove(facts: ParityFacts, side: str, path: str, line: int, text: str) -> ParityFacts:
    """The facts without a word of a line of one side."""
    if side == "buck":
        targets = tuple(without(facts.buck.targets, side, path, line, text))
        return msgspec.structs.replace(
            facts, buck=msgspec.structs.replace(facts.buck, targets=targets)
        )
    sides = tuple(
        msgspec.structs.replace(
            cmake_facts, targets=tuple(without(cmake_facts.targets, side, path, line, text))
        )
        for cmake_facts in facts.cmake
    )
    return msgspec.structs.replace(facts, cmake=sides)


def is_counted(finding: Finding) -> bool:
    """Whether a gate would fail with a new finding."""
    level = finding.when_new or finding.level
    return level is not Level.NOTE and finding.kind in (Kind.DEPENDENCY, Kind.DEFINE)


@pytest.mark.timeout(7200)
def test_removed_dependencies_and_defines_are_found() -> None:
    facts = read_tree_here(open_revision(MAIN))
    before = compare(facts)

    def is_found(row: list[str | int]) -> bool:
        side, path, line, text = str(row[0]), str(row[1]), int(row[2]), str(row[3])
        changed = remove(facts, side, path, line, text)
        assert changed != facts, row
        findings = compare(changed)
        return any(is_counted(finding) and key not in before for key, finding in findings.items())

    missed = [row for row in REMOVALS["found"] if not is_found(row)]
    count = len(REMOVALS["found"]) + len(REMOVALS["missed"])
    print(f"{len(REMOVALS['found']) - len(missed)} of {count} found; also missed: {missed}")

    assert len(REMOVALS["found"]) - len(missed) >= WANTED * count
