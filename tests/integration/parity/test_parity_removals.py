"""Ten source names taken out of either side of a real tree: each is found, nothing else appears.

QNN_CI_PARITY_REMOVALS is how often (default 3). One repetition takes about four seconds.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from ci.parity.buck.reader import read_buck
from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.compare.index import BUILT, Index
from ci.parity.facts import ParityFacts, Place
from ci.parity.reading import read_cmake_side, read_tree_here
from ci.parity.trees import SourceTree
from tests.integration.parity.upstream import MAIN, POLICY, WALKS, compare, open_revision
from tests.stand_ins.overlay_tree import OverlayTree

REPETITIONS = int(os.environ.get("QNN_CI_PARITY_REMOVALS", "3"))
FOLDERS = (
    "backends/qualcomm", "backends/xnnpack", "backends/cadence", "backends/apple", "backends/arm",
    "backends/cuda", "backends/aoti", "devtools", "examples/qualcomm", "extension", "kernels",
    "runtime",
)  # fmt: skip
AT_ONCE = 10

pytestmark = WALKS


@dataclass(frozen=True)
class Name:
    """A file's name as one line of one side's build files has it."""

    side: str
    path: str
    place: Place


def names_of(index: Index, tree: SourceTree, folder: str) -> list[Name]:
    """Names that stand for one file of their side, which both sides compile."""
    names = list(listed_names(index, tree, folder))
    shared = Counter((name.side, name.place, name.path.rpartition("/")[2]) for name in names)
    return [n for n in names if shared[n.side, n.place, n.path.rpartition("/")[2]] == 1]


def listed_names(index: Index, tree: SourceTree, folder: str) -> Iterator[Name]:
    """Every name of a file that both sides compile, where it stands on one line of a side."""
    for path in sorted(index.shared_files):
        if not path.startswith(folder + "/") or index.policy.is_excluded(path):
            continue
        buck = {use.entry.place for use in index.buck_uses[path]}
        cmake = {u.entry.place for c in index.cmake_uses.values() for u in c.get(path, ())}
        built = any(path in index.cmake_uses[configuration] for configuration in BUILT)
        if any(place.path.endswith("build_variables.bzl") for place in buck):
            continue  # both sides read this list: a name goes from both at once
        if len(buck) == 1 and built:
            yield from written(Name("buck", path, min(buck)), tree)
        if len(cmake) == 1:
            yield from written(Name("cmake", path, min(cmake)), tree)


def written(name: Name, tree: SourceTree) -> Iterator[Name]:
    """The name, if its line really has it."""
    if without(tree.read(name.place.path) or "", name) is not None:
        yield name


def without(text: str, name: Name) -> str | None:
    """A build file without one name; None when the line does not have it."""
    base = re.escape(name.path.rpartition("/")[2])
    lines = text.split("\n")
    line = lines[name.place.line - 1]
    quoted = rf'"(?:[^"\s]*/)?{base}"\s*,?'
    bare = rf"[^\s()\"]*(?<![\w-]){base}(?![\w.])"
    pattern = quoted if name.place.path.endswith((".bzl", "BUCK", "TARGETS")) else bare
    if name.side == "cmake" and re.search(rf'"[^"\s]*{base}"', line):
        pattern = rf'"[^"\s]*{base}"\s*,?'
    changed, count = re.subn(pattern, "", line)
    if count != 1 or len(re.findall(pattern, "\n".join(lines))) != 1:
        return None
    lines[name.place.line - 1] = changed
    return "\n".join(lines)


def remove(tree: SourceTree, chosen: list[Name]) -> OverlayTree:
    """The tree without the chosen names."""
    changes: dict[str, str | None] = {}
    for name in chosen:
        text = changes.get(name.place.path) or tree.read(name.place.path) or ""
        changes[name.place.path] = without(text, name)
    return OverlayTree(tree, changes)


def read_again(tree: OverlayTree, facts: ParityFacts, side: str) -> ParityFacts:
    """The facts with the changed side read anew."""
    if side == "buck":
        return msgspec.structs.replace(facts, buck=read_buck(tree))
    return msgspec.structs.replace(facts, cmake=read_cmake_side(tree))


def is_of_headers_now(finding: Finding, labels: set[str]) -> bool:
    """Whether a library whose last source is gone is said not to export what its headers need."""
    is_note = finding.kind is Kind.DEPENDENCY and finding.level is Level.NOTE
    return is_note and finding.buck_target in labels


@pytest.mark.timeout(7200)
def test_removed_names_are_found_and_nothing_else() -> None:
    tree = open_revision(MAIN)
    removed, missed, extra = 0, [], []
    facts = read_tree_here(tree)
    index = Index(facts, POLICY)
    for seed in range(REPETITIONS):
        rng = random.Random(seed)
        folder = FOLDERS[seed % len(FOLDERS)]
        names = names_of(index, tree, folder)
        before = compare(facts, folder)
        side = rng.choice([name.side for name in names])
        names = [name for name in names if name.side == side]
        chosen = rng.sample(names, min(AT_ONCE, len(names)))
        after = compare(read_again(remove(tree, chosen), facts, side), folder)
        fresh = [finding for key, finding in after.items() if key not in before]
        kinds = {"buck": Kind.CMAKE_ONLY, "cmake": Kind.BUCK_ONLY}
        expected = {(kinds[name.side], name.path): name for name in chosen}
        found = {(finding.kind, finding.path) for finding in fresh}
        removed += len(chosen)
        missed += [(seed, name) for key, name in expected.items() if key not in found]
        emptied = {use.target.label for name in chosen for use in index.buck_uses[name.path]}
        extra += [
            (seed, f)
            for f in fresh
            if (f.kind, f.path) not in expected and not is_of_headers_now(f, emptied)
        ]
        what = f"{len(chosen)} of {len(names)} {side} names"
        print(f"seed {seed} {folder}: {what}, {len(missed)} missed, {len(extra)} more", flush=True)
    print(f"{removed} removed, {len(missed)} missed: {missed}\n{len(extra)} more: {extra}")
    assert removed
    assert len(missed) <= removed / 100
    assert not extra
