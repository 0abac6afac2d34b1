"""Commits of pytorch/executorch that repaired Buck or CMake by hand.

The parent has exactly the drift that the commit repairs, and the commit has it no more.
"""

from __future__ import annotations

from typing import Any

import pytest

from ci.parity.compare.findings import Kind, Level
from tests.integration.parity.upstream import MAIN, WALKS, compare_revision, read_artifact

pytestmark = WALKS


@pytest.mark.parametrize(
    "repair", read_artifact("repairs.json"), ids=lambda repair: repair["commit"][:10]
)
def test_a_historical_parity_repair_removes_exactly_its_findings(repair: dict[str, Any]) -> None:
    before = compare_revision(repair["commit"] + "^", *repair["scope"])
    after = compare_revision(repair["commit"], *repair["scope"])

    repaired = {key[:3] for key in before if key not in after}
    assert repaired == {tuple(row) for row in repair["findings"]}
    assert not [key for key in after if key not in before and after[key].level is not Level.NOTE]


def test_parity_of_upstreams_qualcomm_backend_has_the_reviewed_findings() -> None:
    """Each finding is right: a missing header, a pattern for future files, an unlisted conftest,
    and two imports of tests that their deps do not cover."""
    findings = compare_revision(MAIN, "backends/qualcomm").values()

    assert {(f.kind, f.path) for f in findings} == {
        (Kind.MISSING, "backends/backend.h"),
        (Kind.EMPTY_GLOB, "backends/qualcomm/runtime/backends/ir/*.cpp"),
        (Kind.DEPENDENCY, "backends/qualcomm/tests/test_qnn_delegate.py"),
        (Kind.DEPENDENCY, "backends/qualcomm/tests/tester.py"),
        (Kind.UNLISTED, "backends/qualcomm/tests/conftest.py"),
    }
