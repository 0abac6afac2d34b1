"""Dependencies and defines taken from one side of a real tree, one at a time: how many are found.

removals.json has them as side, build file, line and text: chosen at random, then those kept that
parity should be able to see, since the other side or an included header says that they are needed.
EXECUTORCH_ROOT names a clone of pytorch/executorch. One removal takes four seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from ci.parity.compare.comparison import compare_tree
from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.facts import BuckTarget, CMakeTarget, ParityFacts
from ci.parity.policy import ParityPolicy
from ci.parity.reading import read_tree_here
from ci.parity.trees import RevisionTree, find_git_dir
from provisioning.manifest.reader import read_policy

ROOT = os.environ.get("EXECUTORCH_ROOT", "")
MAIN = "cff6f4dd32e630945b7188512c1f2b4f102b05ad"
REMOVALS = json.loads(
    (Path(__file__).parents[2] / "artifacts" / "parity" / "removals.json").read_text("utf-8")
)
FIELDS = {
    "buck": ("deps", "exported_deps", "external_deps", "defines"),
    "cmake": ("links", "defines", "directory_defines"),
}
WANTED = 0.9

Target = TypeVar("Target", BuckTarget, CMakeTarget)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROOT, reason="EXECUTORCH_ROOT names no clone of pytorch/executorch"),
]


def without(targets: Iterable[Target], side: str, path: str, line: int, text: str) -> list[Target]:
    """The targets of a side without a word of a line."""
    found: list[Target] = []
    for target in targets:
        kept = {
            name: tuple(
                word
                for word in getattr(target, name)
                if (word.place.path, word.place.line, word.text) != (path, line, text)
            )
            for name in FIELDS[side]
        }
        found.append(msgspec.structs.replace(target, **kept))
    return found


def remove(facts: ParityFacts, side: str, path: str, line: int, text: str) -> ParityFacts:
    """The facts without a word of a line of one side."""
    if side == "buck":
        targets = tuple(without(facts.buck.targets, side, path, line, text))
        return msgspec.structs.replace(
            facts, buck=msgspec.structs.replace(facts.buck, targets=targets)
        )
    sides = tuple(
        msgspec.structs.replace(one, targets=tuple(without(one.targets, side, path, line, text)))
        for one in facts.cmake
    )
    return msgspec.structs.replace(facts, cmake=sides)


def is_counted(finding: Finding) -> bool:
    """Whether a gate would fail with a new finding."""
    level = finding.when_new or finding.level
    return level is not Level.NOTE and finding.kind in (Kind.DEPENDENCY, Kind.DEFINE)


@pytest.mark.timeout(7200)
def test_removed_dependencies_and_defines_are_found() -> None:
    git_dir = find_git_dir(Path(ROOT))
    assert git_dir is not None
    policy = read_policy("parity", ParityPolicy)
    facts = read_tree_here(RevisionTree(git_dir, MAIN, policy.layout))
    before = {finding.key for finding in compare_tree(facts, policy)}

    def is_found(row: list[str | int]) -> bool:
        side, path, line, text = str(row[0]), str(row[1]), int(row[2]), str(row[3])
        changed = remove(facts, side, path, line, text)
        assert changed != facts, row
        found = compare_tree(changed, policy)
        return any(is_counted(finding) and finding.key not in before for finding in found)

    missed = [row for row in REMOVALS["found"] if not is_found(row)]
    count = len(REMOVALS["found"]) + len(REMOVALS["missed"])
    print(f"{len(REMOVALS['found']) - len(missed)} of {count} found; also missed: {missed}")

    assert len(REMOVALS["found"]) - len(missed) >= WANTED * count
