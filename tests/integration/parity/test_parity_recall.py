"""Drifts of pytorch/executorch that somebody repaired later, judged by hand: all are found.

drifts.json has, for a revision, the commits that repaired what had drifted there, and each thing
that was missing: its kind, and its path or, of a dependency, the two targets.
"""

from __future__ import annotations

import pytest

from tests.integration.parity.upstream import WALKS, compare_revision, read_artifact

DRIFTS: dict[str, dict[str, list[list[str]]]] = read_artifact("drifts.json")
pytestmark = WALKS


@pytest.mark.timeout(7200)
def test_parity_finds_drifts_that_upstream_repaired_later() -> None:
    missed: list[tuple[str, ...]] = []
    for revision, repairs in DRIFTS.items():
        findings = compare_revision(revision).values()
        reported = {
            (f.kind.value, reported_text) for f in findings for reported_text in (f.path, f.detail)
        }
        for commit, items in repairs.items():
            missed += [
                (commit[:10], kind, item) for kind, item in items if (kind, item) not in reported
            ]

    assert missed == []
