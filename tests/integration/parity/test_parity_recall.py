"""Drifts of pytorch/executorch that somebody repaired later, judged by hand: how many are found.

drifts.json has, for a revision, the commits that repaired what had drifted there, and each thing
that was missing: its kind, and its path or, of a dependency, the two targets. EXECUTORCH_ROOT
names a clone of pytorch/executorch with its history.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci.parity.compare.unread import compare_tree
from ci.parity.policy import ParityPolicy
from ci.parity.reading import read_tree_here
from ci.parity.trees import RevisionTree, find_git_dir
from provisioning.manifest.reader import read_policy

ROOT = os.environ.get("EXECUTORCH_ROOT", "")
DRIFTS: dict[str, dict[str, list[list[str]]]] = json.loads(
    (Path(__file__).parents[2] / "artifacts" / "parity" / "drifts.json").read_text("utf-8")
)
RELATIONS = {"dependency", "define"}
WANTED = 0.95
WANTED_RELATIONS = 0.85  # 54c3f78b69 and 484231c3b7 each have one that is not found

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROOT, reason="EXECUTORCH_ROOT names no clone of pytorch/executorch"),
]


def findings_at(revision: str) -> set[tuple[str, str]]:
    """Kind and path, and kind and detail, of each finding of a revision."""
    git_dir = find_git_dir(Path(ROOT))
    assert git_dir is not None
    policy = read_policy("parity", ParityPolicy)
    found = compare_tree(read_tree_here(RevisionTree(git_dir, revision, policy.layout)), policy)
    return {(f.kind.value, what) for f in found for what in (f.path, f.detail)}


@pytest.mark.timeout(7200)
def test_drifts_that_were_repaired_later_are_found() -> None:
    found: list[tuple[str, str, str]] = []
    missed: list[tuple[str, str, str]] = []
    for revision, repairs in DRIFTS.items():
        told = findings_at(revision)
        for commit, items in repairs.items():
            for kind, what in items:
                (found if (kind, what) in told else missed).append((commit[:10], kind, what))
    relations = [row for row in found if row[1] in RELATIONS]
    missed_relations = [row for row in missed if row[1] in RELATIONS]
    print(f"{len(found)} of {len(found) + len(missed)} items found; missed: {missed}")

    assert len(found) >= WANTED * (len(found) + len(missed))
    assert len(relations) >= WANTED_RELATIONS * (len(relations) + len(missed_relations))
