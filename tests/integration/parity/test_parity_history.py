"""Commits of pytorch/executorch that repaired Buck or CMake by hand.

The parent has exactly the drift that the commit repairs, and the commit has it no more. The data
names commits and findings; EXECUTORCH_ROOT names a clone of pytorch/executorch with its history.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci.parity.compare.comparison import compare_tree
from ci.parity.compare.findings import Finding, Kind
from ci.parity.policy import ParityPolicy
from ci.parity.reading import read_tree_here
from ci.parity.trees import RevisionTree, find_git_dir
from provisioning.manifest.reader import read_policy

ROOT = os.environ.get("EXECUTORCH_ROOT", "")
REPAIRS = json.loads(
    (Path(__file__).parents[2] / "artifacts" / "parity" / "repairs.json").read_text("utf-8")
)
MAIN = "cff6f4dd32e630945b7188512c1f2b4f102b05ad"

needs_clone = pytest.mark.skipif(
    not ROOT, reason="EXECUTORCH_ROOT names no clone of pytorch/executorch"
)


def findings_at(revision: str, scope: tuple[str, ...]) -> dict[tuple[str, ...], Finding]:
    """The findings of a revision below some folders, by their key."""
    git_dir = find_git_dir(Path(ROOT))
    assert git_dir is not None
    policy = read_policy("parity", ParityPolicy)
    facts = read_tree_here(RevisionTree(git_dir, revision, policy.layout))
    return {finding.key: finding for finding in compare_tree(facts, policy, scope)}


@needs_clone
@pytest.mark.slow
@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: repair["commit"][:10])
def test_a_repair_is_seen(repair: dict[str, Any]) -> None:
    scope = tuple(repair["scope"])
    before = findings_at(repair["commit"] + "^", scope)
    after = findings_at(repair["commit"], scope)

    repaired = {key[:3] for key in before if key not in after}
    assert repaired == {tuple(row) for row in repair["findings"]}
    assert not [key for key in after if key not in before]


@needs_clone
@pytest.mark.slow
def test_qualcomm_at_main_has_what_was_judged() -> None:
    """All are true: no such header, a pattern kept for files to come, an unlisted conftest, and
    two imports of tests that their deps do not reach."""
    found = findings_at(MAIN, ("backends/qualcomm",))

    assert {(f.kind, f.path) for f in found.values() if f.kind is not Kind.UNLISTED} == {
        (Kind.MISSING, "backends/backend.h"),
        (Kind.EMPTY_GLOB, "backends/qualcomm/runtime/backends/ir/*.cpp"),
        (Kind.DEPENDENCY, "backends/qualcomm/tests/test_qnn_delegate.py"),
        (Kind.DEPENDENCY, "backends/qualcomm/tests/tester.py"),
    }
    assert {f.path for f in found.values() if f.kind is Kind.UNLISTED} == {
        "backends/qualcomm/tests/conftest.py",
    }
