"""pytorch/executorch's history, for the tests that walk it: EXECUTORCH_ROOT names a clone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci.parity.compare.comparison import compare_tree, is_about
from ci.parity.compare.findings import Finding
from ci.parity.facts import ParityFacts
from ci.parity.policy import ParityPolicy
from ci.parity.reading import read_tree_here
from ci.parity.trees import RevisionTree, find_git_dir
from provisioning.manifest.reader import read_policy

ROOT = os.environ.get("EXECUTORCH_ROOT", "")
MAIN = "cff6f4dd32e630945b7188512c1f2b4f102b05ad"
POLICY = read_policy("parity", ParityPolicy)
WALKS = [
    pytest.mark.skipif(not ROOT, reason="EXECUTORCH_ROOT names no clone of pytorch/executorch"),
]


def read_artifact(name: str) -> Any:
    """A JSON file of tests/artifacts/parity."""
    return json.loads((Path(__file__).parents[2] / "artifacts/parity" / name).read_text("utf-8"))


def git_dir() -> Path:
    """The git directory of the clone."""
    folder = find_git_dir(Path(ROOT))
    assert folder is not None
    return folder


def open_revision(revision: str) -> RevisionTree:
    return RevisionTree(git_dir(), revision, POLICY.layout)


def compare(facts: ParityFacts, *scope: str) -> dict[tuple[str, ...], Finding]:
    """Findings below some folders by their key."""
    findings = compare_tree(facts, POLICY)
    return {finding.key: finding for finding in findings if is_about(finding, scope)}


def compare_revision(revision: str, *scope: str) -> dict[tuple[str, ...], Finding]:
    return compare(read_tree_here(open_revision(revision)), *scope)
