"""Drifts of pytorch/executorch that somebody repaired later, judged by hand: all are found.

drifts.json has, for a revision, the commits that repaired what had drifted there, and each thing
that was missing: its kind, and its path or, of a dependency, the two targets. EXECUTORCH_ROOT names
a clone of pytorch/executorch with its history.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ci.parity.compare.comparison import compare_tree
from ci.parity.policy import ParityPolicy
from ci.parity.reading import read_tree_here
from ci.parity.trees import RevisionTree, find_git_dir
from provisioning.manifest.reader import read_policy

ROOT = os.environ.get("EXECUTORCH_ROOT", "")
DATA = Path(__file__).parents[2] / "artifacts" / "parity"
DRIFTS: dict[str, dict[str, list[list[str]]]] = json.loads(
    (DATA / "drifts.json").read_text("utf-8")
)
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
    missed: list[tuple[str, str, str]] = []
    for revision, repairs in DRIFTS.items():
        told = findings_at(revision)
        for commit, items in repairs.items():
            rows = [(commit[:10], kind, what) for kind, what in items]
            missed += [row for row in rows if row[1:] not in told]

    assert missed == []
